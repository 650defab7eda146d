"""F: what an apply has judged, and a live sandbox in the same workspace, which can write all that is in it."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from escape_box import Box, inside

from membrane.changes import review, store, transaction

pytestmark = pytest.mark.needs_kernel("overlayfs in a user namespace")
GOOD = "judged\n"
EVIL = "written after it was judged\n"
# Writes over what is in a stage below the directory, and answers how many files that were.
WRITER = f"""
import glob
def answer(below):
    found = [each for each in glob.glob(f"{{below}}/.membrane-apply-*/*") if os.path.isfile(each)]
    for path in found:
        open(path, "w").write({EVIL!r})
    return str(len(found))
"""


@pytest.fixture
def reviewed(box: Box) -> Iterator[Box]:
    """A change set with one file, whose state is on another file system than the workspace."""
    place = Path(tempfile.mkdtemp(prefix="membrane-stage-", dir="/dev/shm"))
    assert place.stat().st_dev != box.workspace.stat().st_dev
    try:
        box.environment["MEMBRANE_HOME"] = str(place)
        box.state = place
        box.policy(presets=[])
        (box.workspace / "sub").mkdir()
        done = box.run("sh", "-c", f"printf '%s' '{GOOD}' > file; mkdir new", options=("--review=one",))
        assert done.returncode == 0, done
        yield box
    finally:
        for root, directories, _names in os.walk(place):
            for name in directories:
                os.chmod(f"{root}/{name}", 0o700)
        shutil.rmtree(place)


def apply(box: Box, step: Callable[[str], None] = transaction.nothing) -> None:
    with store.take(str(box.state), "one", "a test") as held, review.opened(held, step=step) as (engine, _copy):
        engine.apply()


def command(box: Box, *words: str) -> Any:
    import subprocess

    from escape_box import MEMBRANE

    return subprocess.run(
        [*MEMBRANE, *words], cwd=box.workspace, env=box.environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("place", [".", ".."], ids=["the workspace", "a directory above"])
def test_F98_what_was_judged_is_what_is_put_in_place(
    reviewed: Box, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    rewritten: list[str] = []
    if place == "..":
        reviewed.policy(presets=[], mounts=[{"path": str(reviewed.workspace.parent), "mode": "rw"}])
    with inside(reviewed, WRITER) as ask:
        assert ask(str(reviewed.workspace)) == "0"

        def step(name: str) -> None:
            if name == "journal":  # all is judged
                rewritten.append(ask(str(reviewed.workspace)))

        with pytest.raises(store.InUse, match=r"can write .*, which holds what was judged"):
            apply(reviewed, step)
        done = command(reviewed, "apply", "one")
        assert done.returncode == 78 and "end that session, then apply again" in done.stderr, done
        assert not rewritten and sorted(os.listdir(reviewed.workspace)) == ["sub"]

        class NoClaim:
            def __init__(self, *_: object) -> None: ...

            def close(self) -> None: ...

        with monkeypatch.context() as control:
            control.setattr(transaction, "Claim", NoClaim)
            apply(reviewed, step)
        assert rewritten == ["1"] and (reviewed.workspace / "file").read_text() == EVIL
        # What the undo copy would come from lies in the workspace for a while as well.
        done = command(reviewed, "undo", "one")
        assert done.returncode == 78 and "can write" in done.stderr
    (reviewed.workspace / "file").unlink()
    assert command(reviewed, "undo", "--rest", "one").returncode == 1  # without the session it is done
    assert command(reviewed, "apply", "one").returncode == 0
    assert (reviewed.workspace / "new").is_dir()


def test_F98_no_sandbox_is_started_over_a_stage_that_was_left(reviewed: Box) -> None:
    def killed(name: str) -> None:
        if name == "new":
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            apply(reviewed, killed)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    left = [name for name in os.listdir(reviewed.workspace) if name.startswith(transaction.STAGE_NAME)]
    assert len(left) == 1
    done = reviewed.run("true")
    assert done.returncode == 78 and "was interrupted" in done.stderr, done
    assert "membrane apply --abort one" in done.stderr
    # The controls: from below nothing of the stage is in reach, and what is written to a reviewed tree is a copy.
    assert reviewed.run("true", workspace=reviewed.workspace / "sub").returncode == 0
    assert reviewed.run("true", options=("--review=two",)).returncode == 0
    assert command(reviewed, "apply", "--continue", "one").returncode == 0
    assert (reviewed.workspace / "file").read_text() == GOOD
    assert reviewed.run("true").returncode == 0
    assert os.listdir(reviewed.state / "changes" / ".writers") == []
