"""changes.writers: a sandbox that writes a workspace and an apply whose stage is in it exclude each other."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from membrane.changes.store import InUse
from membrane.changes.writers import PLACE, Claim
from membrane.errors import HostError


@pytest.fixture
def trees(tmp_path: Path) -> tuple[str, str]:
    """The directory of the change sets, and a workspace."""
    (tmp_path / "w" / "sub").mkdir(parents=True)
    return str(tmp_path / "changes"), str(tmp_path / "w")


def left(changes: str) -> list[str]:
    return os.listdir(f"{changes}/{PLACE}")


def test_whoever_is_second_is_refused_and_leaves_nothing(trees: tuple[str, str], tmp_path: Path) -> None:
    changes, root = trees
    other = tmp_path / "another name"
    other.symlink_to(root)
    for tree in (root, str(other), str(tmp_path)):
        with Claim(changes, "session", "s", (tree,)), pytest.raises(InUse, match="the session s can write"):
            Claim(changes, "apply", "one", (root,), f"{root}/stage")
        with (
            Claim(changes, "apply", "one", (root,), f"{root}/stage"),
            pytest.raises(InUse, match="one is being put in place"),
        ):
            Claim(changes, "session", "s", (tree,))
        assert left(changes) == []


def test_others_are_not_in_the_way(trees: tuple[str, str], tmp_path: Path) -> None:
    changes, root = trees
    with (
        Claim(changes, "session", "s", (f"{root}/sub", str(tmp_path / "nowhere"), "/dev/null")),
        Claim(changes, "apply", "one", (root,), f"{root}/stage"),
        Claim(changes, "apply", "two", (root,), f"{root}/other"),
    ):
        pass
    with Claim(changes, "session", "s", (root,)), Claim(changes, "session", "t", (root,)):
        assert len(left(changes)) == 2


def test_what_a_holder_that_was_killed_left_counts_until_it_is_gone(trees: tuple[str, str]) -> None:
    changes, root = trees
    stage = f"{root}/stage"
    os.mkdir(stage)
    Claim(changes, "apply", "one", (root,), stage).leave()
    with pytest.raises(InUse, match="was interrupted") as refused:
        Claim(changes, "session", "s", (root,))
    assert refused.value.fix == ("membrane apply --continue one", "membrane apply --abort one")
    Claim(changes, "apply", "one", (root,), stage).close()  # as --continue takes it
    os.mkdir(f"{root}/again")
    Claim(changes, "apply", "one", (root,), f"{root}/again").leave()
    os.rmdir(f"{root}/again")
    Claim(changes, "session", "s", (root,)).close()
    assert left(changes) == []


def test_what_does_not_count_any_more_is_removed_by_the_next_of_its_kind(trees: tuple[str, str]) -> None:
    changes, root = trees
    process = subprocess.Popen(["sleep", "60"])
    try:
        running = Claim(changes, "session", "running", (root,))
        killed = Claim(changes, "session", "killed", (root,))
        killed.keep_until([process.pid])
        killed.leave()
        for number in range(3):
            Claim(changes, "session", f"dead{number}", (root,)).leave()
        Claim(changes, "session", "s", (root,)).close()
        assert sorted(left(changes)) == ["session-killed", "session-running"], "what counts stays"
        running.close()
    finally:
        process.kill()
        process.wait()
    Claim(changes, "session", "s", (root,)).close()
    assert left(changes) == []
    os.mkdir(f"{root}/stage")
    Claim(changes, "apply", "one", (root,), f"{root}/stage").leave()
    Claim(changes, "apply", "two", (root,), f"{root}/other").close()
    assert left(changes) == ["apply-stage"]
    os.rmdir(f"{root}/stage")
    Claim(changes, "apply", "two", (root,), f"{root}/other").close()
    assert left(changes) == []


def test_the_last_processes_of_a_session_that_was_killed_count(trees: tuple[str, str]) -> None:
    changes, root = trees
    process = subprocess.Popen(["sleep", "60"])
    try:
        claim = Claim(changes, "session", "s", (root,))
        claim.keep_until((process.pid,))
        claim.leave()
        with pytest.raises(InUse, match="the session s can write"):
            Claim(changes, "apply", "one", (root,), f"{root}/stage")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    Claim(changes, "apply", "one", (root,), f"{root}/stage").close()
    assert left(changes) == []


@pytest.mark.parametrize("content", [b"", b"no marshal", b"i\0\0\0\0i\0\0\0\0"])
def test_a_claim_that_cannot_be_read_is_in_everybodys_way(trees: tuple[str, str], content: bytes) -> None:
    changes, root = trees
    Claim(changes, "session", "s", ("/nowhere",)).close()
    Path(f"{changes}/{PLACE}/session-x").write_bytes(content)
    with pytest.raises(InUse, match="the session x can write the workspace"):
        Claim(changes, "apply", "one", (root,), f"{root}/stage")
    assert left(changes) == ["session-x"]


def test_of_two_at_one_moment_at_least_one_gives_up(trees: tuple[str, str]) -> None:
    """Each round two processes begin at the same moment, and hold what they got until both have answered."""
    changes, root = trees
    for _ in range(40):
        begin_read, begin = os.pipe()
        hold_read, hold = os.pipe()
        read, write = os.pipe()
        children = []
        for kind in ("session", "apply"):
            if (child := os.fork()) == 0:
                answer = b"-"
                try:
                    os.close(begin)
                    os.close(hold)
                    os.read(begin_read, 1)  # its end
                    stage = f"{root}/stage" if kind == "apply" else ""
                    claim = Claim(changes, kind, "x", (root,), stage)  # type: ignore[arg-type]
                    answer = b"+"
                    os.write(write, answer)
                    os.read(hold_read, 1)  # its end
                    claim.close()
                except InUse:
                    os.write(write, answer)
                finally:
                    os._exit(0)
            children.append(child)
        os.close(begin)
        os.close(write)
        answers = os.read(read, 1) + os.read(read, 1)
        os.close(hold)
        for child in children:
            os.waitpid(child, 0)
        for fd in (begin_read, hold_read, read):
            os.close(fd)
        assert answers != b"++" and len(answers) == 2


def test_where_it_cannot_be_written_it_is_said(trees: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    changes, root = trees

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(HostError, match="No space left"):
        Claim(changes, "session", "s", (root,))
    assert left(changes) == []
