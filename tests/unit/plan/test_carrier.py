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

AROUND = Surroundings("/home/me/src", "/home/me/.membrane", "/home/me", 1000, 1000, "membrane-1", "/p.json")


def policy(**options: str | bool | tuple[str, ...]) -> Policy:
    given = {"directory": "/home/me/src", "no_presets": True, **options}
    return load([], presets={}, options=given, environ={}, home="/home/me", command="").policy


def test_the_rights_are_a_closed_list() -> None:
    words = carrier.options(policy(expose=("80:8000",)), AROUND)
    assert [word for word in words if word.startswith(("--security-opt", "--cap", "--privileged"))] == [
        "--security-opt=seccomp=/p.json",
        "--security-opt=systempaths=unconfined",
        "--security-opt=no-new-privileges",
        "--cap-drop=ALL",
    ]
    assert "--publish=127.0.0.1:8000:8000" in words
    assert "--read-only" in words and "--pull=never" in words and "--user=1000:1000" in words
    assert "--tty" not in words and "--tty" in carrier.options(policy(), AROUND.replace(terminal=True))
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
        (lambda: policy(connect=("8000",)), "ports: connect"),
        (lambda: policy(allow=("host.internal:8000",)), 'allow "host.internal:8000"'),
        (lambda: policy(unix_sockets=("/run/x",)), "unix_sockets /run/x"),
    ],
)  # fmt: skip
def test_what_would_mean_something_else_is_refused(make: Callable[[], Policy], cause: str) -> None:
    with pytest.raises(PolicyError, match="backend docker does not carry") as caught:
        carrier.refuse(make())
    assert cause in str(caught.value)
    assert caught.value.exit_code == 78
    carrier.refuse(policy(allow=("example.com",)))  # the control


def test_variables_go_where_the_policy_passes_them() -> None:
    environ = {"LANG": "C", "PATH": "/x", "HOME": "/h", "SECRET": "s", "MODE": "m", "https_proxy": "p"}
    assert carrier.environment(policy(env=("MODE",)), environ) == {"LANG": "C", "MODE": "m"}
    with_proxy = carrier.environment(policy(upstream_proxy="env"), environ)
    assert with_proxy == {"LANG": "C", "https_proxy": "p"}
