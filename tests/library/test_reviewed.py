"""A reviewed workspace for programs: many commands, one change set."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import pytest
from library_support import until

from membrane import PIPE, AsyncSandbox, ChangeSet, Conflict, Event, Poisoned, Policy, PolicyError, Report, Sandbox

pytestmark = pytest.mark.needs_kernel("overlayfs in a user namespace")
REVIEW = Policy.from_dict({"workspace": "review", "ignore": [".env"]})


def test_the_commands_of_a_sandbox_share_a_change_set(workspace: Path, environ: dict[str, str]) -> None:
    (workspace / "file").write_text("base")
    (workspace / ".env").write_text("SECRET")
    with Sandbox(REVIEW, workspace=workspace, environ=environ) as sandbox:
        assert sandbox.shell("echo mine > file; mkdir d; ls -A").stdout == ".env\nd\nfile\n"
        assert sandbox.shell("cat file; test -s .env || echo hidden; echo x > .env").stdout == "mine\nhidden\n"
        (workspace / "late").write_text("of the host")
        assert sandbox.shell("cat late .env").stdout == "of the hostx\n"
        # Another sandbox, another set.
        with Sandbox(REVIEW, workspace=workspace, environ=environ) as other:
            assert other.shell("cat file; ls").stdout == "basefile\nlate\n"
    assert (workspace / "file").read_text() == "base"
    assert sorted(os.listdir(workspace)) == [".env", "file", "late"]
    sets = [name for name in os.listdir(Path(environ["MEMBRANE_HOME"], "changes")) if not name.startswith(".")]
    assert len(sets) == 1  # of the first one: what changed nothing has left none


def test_the_control_writes_the_workspace(workspace: Path, environ: dict[str, str]) -> None:
    with Sandbox(Policy(), workspace=workspace, environ=environ) as sandbox:
        sandbox.shell("echo mine > file")
    assert (workspace / "file").read_text() == "mine\n"


def test_what_cannot_be_reviewed_is_said_at_the_start(workspace: Path, environ: dict[str, str]) -> None:
    rules = {"workspace": "review", "mounts": [{"path": str(workspace.parent), "mode": "rw"}]}
    with pytest.raises(PolicyError), Sandbox(Policy.from_dict(rules), workspace=workspace, environ=environ) as sandbox:
        sandbox.shell("true")


def changed(sandbox: Sandbox) -> dict[str, str]:
    return {change.path: change.kind for change in sandbox.changes()}


def test_a_sandbox_shows_applies_and_takes_back_its_changes(workspace: Path, environ: dict[str, str]) -> None:
    (workspace / "file").write_text("base\n")
    with Sandbox(Policy(), workspace=workspace, environ=environ, review=True) as sandbox:
        assert sandbox.changes() == ()
        sandbox.shell("echo mine > file; echo x > run; chmod +x run; mkdir d; echo y > d/y")
        assert changed(sandbox) == {"d": "added", "d/y": "added", "file": "changed", "run": "added"}
        assert sandbox.diff(["file"]).splitlines()[-2:] == [b"-base", b"+mine"]
        for call in (sandbox.diff, sandbox.apply):
            with pytest.raises(PolicyError, match=r"neither the change set .* nor its workspace has fiel"):
                call(["file", "fiel"])
        assert (workspace / "file").read_text() == "base\n"
        with pytest.raises(Poisoned) as poisoned:
            sandbox.apply(refuse="all")
        assert poisoned.value.paths == (("run", "it can be executed"),)
        (workspace / "d").mkdir()
        (workspace / "d" / "y").write_text("of the host\n")
        with pytest.raises(Conflict) as conflict:
            sandbox.apply(refuse="nothing")
        assert [path for path, _ in conflict.value.paths] == ["d/y"]
        assert [change.path for change in sandbox.apply(["file"]).applied] == ["file"]
        assert (workspace / "file").read_text() == "mine\n"
        # It goes on, and sees its own.
        assert sandbox.shell("cat file run; echo again >> file").stdout == "mine\nx\n"
        assert sandbox.undo() == ()
        assert (workspace / "file").read_text() == "base\n"
    # Closed, it is as it was.
    assert changed(sandbox)["file"] == "changed"
    sandbox.discard()
    with pytest.raises(PolicyError, match="no change set"):
        ChangeSet(sandbox.change_set, environ=environ).changes()
    assert sandbox.changes() == ()


def test_some_hunks_of_a_file_are_put_in_place_while_it_is_open_and_afterwards(
    workspace: Path, environ: dict[str, str]
) -> None:
    text = "".join(f"{number}\n" for number in range(30))
    (workspace / "file").write_text(text)
    with Sandbox(Policy(), workspace=workspace, environ=environ, review="set") as sandbox:
        sandbox.shell("sed -i 's/^2$/two/; s/^15$/fifteen/; s/^28$/last/' file")
        first, second, _third = sandbox.hunks("file")
        with pytest.raises(PolicyError, match="nothing was changed"):
            sandbox.hunks("nothing")
        with pytest.raises(Conflict):
            sandbox.apply(hunks={"file": [first.replace(added=(b"another\n",))]})
        assert (workspace / "file").read_text() == text
        assert sandbox.apply(refuse="all", hunks={"file": iter([second])}).partly == ("file",)
        assert (workspace / "file").read_text() == text.replace("15\n", "fifteen\n")
        assert sandbox.shell("sed -n '3p;16p' file").stdout == "two\nfifteen\n"  # the rest stays in the set

    async def again() -> tuple[Report, int]:
        closed = AsyncSandbox(Policy(), workspace=workspace, environ=environ, review="set")
        left = await closed.hunks("file")
        return await closed.apply(hunks={"file": left[:1]}), len(left)

    report, left = asyncio.run(again())
    assert (report.partly, left) == (("file",), 2)
    assert (workspace / "file").read_text() == text.replace("15\n", "fifteen\n").replace("\n2\n", "\ntwo\n")
    assert [change.path for change in sandbox.apply().applied] == ["file"] and sandbox.changes() == ()


def test_a_live_sandbox_has_no_changes_to_show(workspace: Path, environ: dict[str, str]) -> None:
    with Sandbox(Policy(), workspace=workspace, environ=environ) as sandbox:
        with pytest.raises(PolicyError, match="live"):
            sandbox.changes()
        with pytest.raises(PolicyError, match="live"):
            sandbox.checkpoint("one")
    with pytest.raises(PolicyError, match="cannot name"):
        Sandbox(Policy(), workspace=workspace, environ=environ, review="../x")


def test_what_was_put_in_place_wholly_begins_anew_and_what_came_after_does_not(
    workspace: Path, environ: dict[str, str]
) -> None:
    with Sandbox(Policy(), workspace=workspace, environ=environ, review="set") as sandbox:
        sandbox.shell("echo one > file")
        sandbox.apply()
        sandbox.shell("echo two > file")
    assert changed(sandbox) == {"file": "changed"}
    with Sandbox(Policy(), workspace=workspace, environ=environ, review="set") as sandbox:
        assert sandbox.shell("cat file").stdout == "two\n"
        sandbox.apply()
    (workspace / "file").write_text("three\n")
    with Sandbox(Policy(), workspace=workspace, environ=environ, review="set") as sandbox:
        assert sandbox.shell("cat file").stdout == "three\n"
        assert sandbox.changes() == ()


def test_checkpoints_of_an_open_sandbox(workspace: Path, environ: dict[str, str]) -> None:
    (workspace / "file").write_text("base\n")
    (workspace / "gone").write_text("base\n")
    with Sandbox(Policy(), workspace=workspace, environ=environ, review=True) as sandbox:
        sandbox.shell("echo one > file; rm gone; ln file second; mkdir d; chmod 000 d; ln -s file link")
        sandbox.checkpoint("one")
        first = sandbox.id
        with pytest.raises(PolicyError, match="already"):
            sandbox.checkpoint("one")
        sandbox.shell("echo two >> file; echo new > gone; rm link")
        sandbox.checkpoint("two")
        assert sandbox.id == first  # nothing was made anew for them
        assert sandbox.checkpoints() == ("one", "two")
        with pytest.raises(PolicyError, match="no checkpoint"):
            sandbox.restore("three")
        sandbox.restore("one")
        look = "cat file second; ls -d gone link d; stat -c %a d; test file -ef second && echo same"
        assert sandbox.shell(look).stdout == "one\none\nd\nlink\n0\nsame\n"
        sandbox.shell("echo three >> file")
        assert sandbox.id != first
        sandbox.restore("two")
        assert sandbox.shell("cat file gone").stdout == "one\ntwo\nnew\n"
        assert sandbox.checkpoints() == ("one", "two", "before-restore")
        sandbox.discard()
        assert sandbox.shell("cat file gone").stdout == "base\nbase\n"
        assert sandbox.checkpoints() == ()
    assert (workspace / "file").read_text() == "base\n"


def test_forks_begin_alike_and_go_their_own_ways(workspace: Path, environ: dict[str, str]) -> None:
    (workspace / "file").write_text("base\n")
    with Sandbox(Policy(), workspace=workspace, environ=environ, review=True) as sandbox:
        sandbox.shell("echo prepared > file")
        forks = [sandbox.fork(f"try-{number}") for number in range(3)]
        sandbox.shell("echo meanwhile > file")
        with forks[0], forks[1], forks[2]:
            assert len({sandbox.id, *(fork.id for fork in forks)}) == 4
            for number, fork in enumerate(forks):
                fork.shell(f"echo {number} >> file; echo {number} > only-{number}")
            told = [fork.shell("cat file; ls").stdout for fork in forks]
        assert sandbox.shell("cat file; ls").stdout == "meanwhile\nfile\n"
    assert told == [f"prepared\n{number}\nfile\nonly-{number}\n" for number in range(3)]
    assert [change.path for change in forks[1].apply().applied] == ["file", "only-1"]
    assert (workspace / "file").read_text() == "prepared\n1\n"
    for each in (sandbox, *forks):
        each.discard()


WRITER = """
import os
fd = os.open("file", os.O_WRONLY | os.O_CREAT)
other = os.open("other", os.O_WRONLY | os.O_CREAT)
number = 0
while True:
    number += 1
    os.pwrite(fd, b"%020d" % number, 0)
    if number == 2:
        print("begun", flush=True)
    if os.fork() == 0:
        os.pwrite(other, b"%020d" % number, 0)
        os._exit(0)
    os.wait()
"""


def test_a_checkpoint_while_a_command_runs_is_of_one_moment(workspace: Path, environ: dict[str, str]) -> None:
    with Sandbox(Policy(), workspace=workspace, environ=environ, review=True) as sandbox:
        with sandbox.popen(["/usr/bin/python3", "-c", WRITER], stdout=PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
            for number in range(5):
                sandbox.checkpoint(f"at-{number}")
            fork = sandbox.fork()
            with pytest.raises(PolicyError, match="commands run"):
                sandbox.restore("at-0")
            assert process.poll() is None
            # It goes on.
            before = [change.after.mtime for change in sandbox.changes() if change.after]
            until(
                lambda: [change.after.mtime for change in sandbox.changes() if change.after] != before, "another write"
            )
        seen = []
        for number in range(5):
            sandbox.restore(f"at-{number}")
            first, other = (int(text or 0) for text in sandbox.shell("cat file; echo; cat other").stdout.split("\n"))
            assert first - other in (0, 1), (first, other)
            seen.append(first)
        with fork:
            assert int(fork.shell("cat file").stdout) >= seen[-1]
        fork.discard()
    assert seen == sorted(seen)
    assert os.listdir(workspace) == []


def test_the_record_names_a_checkpoint(workspace: Path, environ: dict[str, str]) -> None:
    told: list[Event] = []
    with Sandbox(Policy(), workspace=workspace, environ=environ, review="set", on_event=told.append) as sandbox:
        sandbox.shell("echo one > file")
        sandbox.checkpoint("one")
        sandbox.restore("one")
        sandbox.shell("true")  # events come before the end of a command is told
    kinds = [(each.kind, each.data.get("change_set"), each.data.get("checkpoint")) for each in told]
    assert ("CheckpointMade", "set", "one") in kinds
    assert kinds.index(("CheckpointRestored", "set", "one")) > kinds.index(("CheckpointMade", "set", "one"))


def test_the_same_for_asyncio(workspace: Path, environ: dict[str, str]) -> None:
    async def main() -> list[str]:
        async with AsyncSandbox(Policy(), workspace=workspace, environ=environ, review=True) as sandbox:
            await sandbox.shell("echo one > file")
            await sandbox.checkpoint("one")
            fork = await sandbox.fork()
            assert isinstance(fork, AsyncSandbox)
            async with fork:
                await fork.shell("echo two >> file")
                # Calls at once wait for each other.
                both = await asyncio.gather(fork.changes(), fork.diff(), fork.checkpoint("two"))
            assert [change.path for change in both[0]] == ["file"]
            # One that is cancelled lets everything go on.
            looking = asyncio.ensure_future(sandbox.changes())
            await asyncio.sleep(0)
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking
            await sandbox.restore("one")
            return [change.path for change in (await fork.apply()).applied]

    assert asyncio.run(main()) == ["file"]
    assert (workspace / "file").read_text() == "one\ntwo\n"
