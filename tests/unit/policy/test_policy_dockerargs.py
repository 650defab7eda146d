"""Arguments of ``docker run`` as keys of a policy: each form that Docker reads, and each refusal with what to use."""

from __future__ import annotations

import pytest

from membrane.policy.dockerargs import Misplaced, carrier, limit, translate, volume
from membrane.policy.model import Malformed

HOME, WORKSPACE = "/home/me", "/srv/tree"


def read(*words: str) -> list[tuple[int, str, str]]:
    return list(translate(enumerate(words)))


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("-e", "A=1"), [(1, "env", "A=1")]),
        (("-eA=1",), [(0, "env", "A=1")]),
        (("--env", "A=1"), [(1, "env", "A=1")]),
        (("--env=A=1",), [(0, "env", "A=1")]),
        (("-e A=1",), [(0, "env", "A=1")]),
        (("-e=A=1",), [(0, "env", "A=1")]),
        (("-v", "/a:/b", "-m2g", "--pids-limit=9"), [(1, "mount", "/a:/b"), (2, "memory", "2g"), (3, "pids", "9")]),
        (
            ("--cpus", "2", "-c9", "-l a=b"),
            [(1, "carrier", "--cpus=2"), (2, "carrier", "--cpu-shares=9"), (3, "carrier", "--label=a=b")],
        ),
        (("--ulimit=--privileged",), [(0, "carrier", "--ulimit=--privileged")]),
        ((), []),
    ],
)
def test_each_form_of_an_option(words: tuple[str, ...], found: list[tuple[int, str, str]]) -> None:
    assert read(*words) == found


@pytest.mark.parametrize(
    ("words", "place", "cause"),
    [
        (("-e", "A=1", "--cap-add", "SYS_ADMIN"), 2, "--cap-add"),
        (("--memory-swappiness=1",), 0, "without a key here"),
        (("--cpus",), 0, "has no value"),
        (("--privileged",), 0, "without a key here"),
        (("--network=host",), 0, "use allow: [HOST]"),
        (("A=1",), 0, "is not an option"),
        (("-e",), 0, "has no value"),
        (("-e", "A=1", "-v"), 2, "has no value"),
        (("--env-file=x",), 0, "env: {set: {NAME: VALUE}}"),
    ],
)
def test_what_has_no_key_is_refused_at_its_place(words: tuple[str, ...], place: int, cause: str) -> None:
    with pytest.raises(Misplaced, match=None) as refused:
        read(*words)
    assert refused.value.place == place
    assert cause in str(refused.value)


FOR_NO_CONTAINER = (
    *("--privileged", "--cap-add", "--security-opt", "--device", "--volumes-from", "--pid", "--ipc", "--uts"),
    *("--network", "--userns", "--mount", "--tmpfs", "--add-host", "--publish", "-p", "-P", "--name", "--rm"),
    *("--entrypoint", "--user", "--runtime", "--pull", "--cgroup-parent", "--cgroupns", "--group-add", "--sysctl"),
    *("--env-file", "--label-file", "--cidfile", "--gpus", "--dns", "--oom-kill-disable", "--oom-score-adj"),
    *("--shm-size", "--restart", "--init", "--detach"),
)  # fmt: skip


@pytest.mark.parametrize("option", FOR_NO_CONTAINER)
def test_what_could_break_the_boundary_reaches_no_container(option: str) -> None:
    for words in ((option,), (f"{option}=x",), (option, "x"), ("--cpus=1", f"{option} x")):
        with pytest.raises(Misplaced, match=option):
            read(*words)


def test_labels_of_ours_are_ours() -> None:
    assert carrier("--label=a=b") == "--label=a=b"
    with pytest.raises(Malformed):
        carrier("--label=membrane.state=/x")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/a:/b", ("/a", "/b", "rw")),
        ("~/a:/b:ro", ("~/a", "/b", "ro")),
        (".:/workspace", (".", WORKSPACE, "rw")),
        ("/a:/workspace/x:z", ("/a", f"{WORKSPACE}/x", "rw")),
        ("/a:/home/agent/.x:ro,Z", ("/a", f"{HOME}/.x", "ro")),
        ("/a:/home/agents", ("/a", "/home/agents", "rw")),
    ],
)
def test_a_volume(text: str, found: tuple[str, str, str]) -> None:
    assert volume(text, WORKSPACE, HOME) == found


@pytest.mark.parametrize("text", ["named:/b", "/a", "/a:", ":/b", "/a:/b:ro:x", "/a:/b:shared", "/a:/b:"])
def test_a_volume_that_is_none(text: str) -> None:
    with pytest.raises(Malformed):
        volume(text, WORKSPACE, HOME)


@pytest.mark.parametrize(
    ("key", "text", "found"),
    [
        ("pids", "-1", ("pids", "0")),
        ("pids", "20", ("pids", "20")),
        ("memory", "2g", ("memory", "2G")),
        ("memory", "512b", ("memory", "512")),
        ("memory", "b", ("memory", "B")),
    ],
)
def test_a_limit(key: str, text: str, found: tuple[str, str]) -> None:
    assert limit(key, text) == found  # type: ignore[arg-type]
