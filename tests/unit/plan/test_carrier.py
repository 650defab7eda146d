"""The container that carries a run: which options make it, and what is refused instead of carried."""

from __future__ import annotations

import csv
from collections.abc import Callable

import pytest

from membrane.errors import PolicyError
from membrane.plan import carrier
from membrane.plan.carrier import Surroundings, Tree
from membrane.policy.load import load
from membrane.policy.model import Policy

AROUND = Surroundings("/home/me/src", "/home/me/.membrane", "/home/me", 1000, 1000, "docker", "membrane-1", "/p.json")


def policy(**options: str | bool | tuple[str, ...]) -> Policy:
    given = {"directory": "/home/me/src", "no_presets": True, **options}
    return load([], presets={}, options=given, environ={}, home="/home/me", command="").policy


def test_the_rights_are_a_closed_list() -> None:
    words = carrier.options(policy(), AROUND)
    assert [word for word in words if word.startswith(("--security-opt", "--cap", "--privileged"))] == [
        "--security-opt=seccomp=/p.json",
        "--security-opt=systempaths=unconfined",
        "--security-opt=no-new-privileges",
        "--cap-drop=ALL",
    ]
    assert not any(word.startswith(("--publish", "-p", "--network", "--volume", "-v")) for word in words)
    assert "--read-only" in words and "--pull=never" in words and "--user=1000:1000" in words
    assert "--tty" not in words and "--tty" in carrier.options(policy(), AROUND.replace(terminal=True))
    assert "--workdir=/" in words and "--no-healthcheck" in words and "--log-driver=none" in words
    root = carrier.options(policy(), AROUND.replace(uid=0, gid=0))
    assert [word for word in root if word.startswith("--cap")] == ["--cap-drop=ALL", "--cap-add=SETFCAP"]


def test_trees_are_at_their_own_places_outer_ones_first() -> None:
    odd = '/home/me/a,"b"'
    around = AROUND.replace(workspace=f"{odd}/c", trees=(Tree(odd, "ro"), Tree(odd, "rw")))
    words = carrier.options(policy(), around)
    mounts = [next(csv.reader([word.removeprefix("--mount=")])) for word in words if word.startswith("--mount=")]
    assert mounts == [
        ["type=bind", "source=/home/me/.membrane", "target=/home/me/.membrane"],
        ["type=bind", f"source={odd}", f"target={odd}", "readonly"],
        ["type=bind", f"source={odd}/c", f"target={odd}/c"],
    ]
    assert "--tmpfs=/home/me:uid=1000,gid=1000,mode=0755" in words
    at_home = carrier.options(policy(), AROUND.replace(workspace="/home/me"))
    assert not any(word.startswith("--tmpfs=/home") for word in at_home)


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda: policy(view="host"), "view: host"),
        (lambda: policy(containers="nested"), "containers: nested"),
        (lambda: policy(devices=("kvm",)), "devices"),
        (lambda: policy(allow=("host.internal:53/udp",)), 'allow "host.internal:53/udp"'),
        (lambda: policy(allow=("host.internal:1-65535",)), "more than 256 ports of host.internal"),
    ],
)  # fmt: skip
def test_what_would_mean_something_else_is_refused(make: Callable[[], Policy], cause: str) -> None:
    with pytest.raises(PolicyError, match="backend docker does not carry") as caught:
        carrier.refuse(make().replace(backend="docker"))
    assert cause in str(caught.value)
    assert caught.value.exit_code == 78
    carrier.refuse(policy(allow=("example.com",)).replace(backend="docker"))  # the control


def test_ports_of_the_loopback_are_those_of_the_rules() -> None:
    made = policy(connect=("5432:15432",), allow=("host.internal:8000", "host.internal:9000-9002", "example.com:1"))
    carrier.refuse(made)
    assert carrier.loopback(made) == (5432, 8000, 9000, 9001, 9002)


def test_the_place_of_a_socket_is_empty_in_the_container() -> None:
    sockets = ("/tmp/a/s", "/run/user/1/s", "/var/run/s", "/home/me/.x/s", "/private/tmp/launchd.1/s", "/data/x/s")
    words = carrier.options(policy(), AROUND.replace(sockets=sockets))
    own = ":uid=1000,gid=1000,mode=0700"
    made = [word for word in words if word.startswith("--tmpfs=") and word.endswith("0700")]
    assert made == [f"--tmpfs=/run{own}", f"--tmpfs=/private/tmp/launchd.1{own}", f"--tmpfs=/data/x{own}"]


@pytest.mark.parametrize(
    "path", ["/home/me/src/s", "/home/me/.membrane/s", "/usr/lib/x/s", "/etc/s", "/s", "/opt/s", "/dev/log"]
)
def test_a_socket_has_no_place_in_a_tree_of_the_image_or_the_host(path: str) -> None:
    with pytest.raises(PolicyError, match=f"backend docker does not carry unix_sockets {path}"):
        carrier.options(policy(), AROUND.replace(sockets=(path,)))


def test_variables_go_where_the_policy_passes_them() -> None:
    environ = {"LANG": "C", "PATH": "/x", "HOME": "/h", "SECRET": "s", "MODE": "m", "https_proxy": "p"}
    assert carrier.environment(policy(env=("MODE",)), environ) == {"LANG": "C", "MODE": "m"}
    with_proxy = carrier.environment(policy(upstream_proxy="env"), environ)
    assert with_proxy == {"LANG": "C", "https_proxy": "p"}
