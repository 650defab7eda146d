"""changes.apply and changes.transaction: the workspace is wholly as before or wholly as after.

One file of over 800 lines: each step of a transaction is met by each way to fail, over the same set.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from copies import Workspace, engine, kinds, tree
from hypothesis import HealthCheck, example, given, settings
from test_changes_tree import _ACTS, ACT, act

from membrane.changes import transaction
from membrane.changes.apply import choose
from membrane.changes.removal import remove_tree
from membrane.changes.stagefiles import copy_tree
from membrane.changes.transaction import STAGE_NAME, Unfinished
from membrane.errors import Conflict, HostError, Poisoned
from membrane.host import syscalls

Tree = dict[bytes, tuple[object, ...]]


@pytest.fixture
def made(tmp_path: Path) -> Workspace:
    return full(tmp_path / "w")


def full(place: Path) -> Workspace:
    """Every kind of change at once."""
    workspace = Workspace(place)
    base = workspace.base
    (base / "changed").write_text("one\n")
    (base / "mode").write_text("m\n")
    (base / "moved").write_text("the content that moves\n")
    (base / "gone").write_text("g\n")
    (base / "tree/in").mkdir(parents=True)
    (base / "tree/in/x").write_text("x\n")
    (base / "tree/y").symlink_to("in/x")
    (base / "becomes-file").mkdir()
    (base / "becomes-file/z").write_text("z\n")
    (base / "becomes-directory").write_text("b\n")
    (base / "kept").write_text("k\n")
    workspace.begin()
    workspace.write("changed", "two\n")
    workspace.write("mode", "m\n", 0o600)
    workspace.delete("moved")
    workspace.write("to/moved", "the content that moves\n")
    workspace.delete("gone")
    workspace.delete("tree")
    workspace.write("becomes-file", "f\n")
    (workspace.layer / "becomes-directory").mkdir(mode=0o755)
    workspace.write("becomes-directory/c", "c\n")
    (workspace.layer / "link").symlink_to("kept")
    os.utime(workspace.write("new", "n\n", 0o640), ns=(10**18, 10**18))
    workspace.write("whole/one", "1\n")
    workspace.write("whole/deep/two", "2\n", 0o400)
    (workspace.layer / "whole/deep/link").symlink_to("two")
    (workspace.layer / "whole/deep/empty").mkdir(mode=0o700)
    (workspace.layer / "whole/closed").mkdir()
    workspace.write("whole/closed/three", "3\n")
    (workspace.layer / "whole/closed").chmod(0o555)
    return workspace


AFTER = {
    b"changed": b"two\n",
    b"mode": b"m\n",
    b"to/moved": b"the content that moves\n",
    b"becomes-file": b"f\n",
    b"becomes-directory/c": b"c\n",
    b"kept": b"k\n",
    b"new": b"n\n",
    b"whole/one": b"1\n",
    b"whole/deep/two": b"2\n",
    b"whole/closed/three": b"3\n",
}


def is_after(found: Tree) -> bool:
    files = {path: entry[2] for path, entry in found.items() if entry[0] == "file"}
    links = {path: entry[1] for path, entry in found.items() if entry[0] == "link"}
    return files == AFTER and links == {b"link": b"kept", b"whole/deep/link": b"two"}


def test_everything_is_put_in_place_and_can_be_undone(made: Workspace) -> None:
    before = tree(made.base)
    with engine(made) as each:
        report = each.apply()
    assert report.refused == () and report.conflicts == ()
    assert is_after(tree(made.base))
    status = (made.base / "new").stat()
    assert stat.S_IMODE(status.st_mode) == 0o640 and status.st_mtime_ns == 10**18
    assert stat.S_IMODE((made.base / "mode").stat().st_mode) == 0o600
    with engine(made) as each:
        assert each.changes() == []
        assert each.undo() == []
        assert tree(made.base) == before
        with pytest.raises(HostError, match=r"cannot undo the last apply of .+: there is none"):
            each.undo()
    with engine(made) as each:
        assert each.apply().conflicts == ()
    assert is_after(tree(made.base))


def test_a_dry_run_changes_nothing(made: Workspace) -> None:
    before = tree(made.base)
    with engine(made) as each:
        assert len(each.apply(dry_run=True).applied) == len(made.changes())
    assert tree(made.base) == before and not (made.place / "changes/set/applying").exists()


def test_only_what_is_asked_for_with_the_directories_that_it_needs(made: Workspace) -> None:
    with engine(made) as each:
        report = each.apply(["to/moved", "changed"])
    assert kinds(list(report.applied)) == [("changed", "changed"), ("added", "to"), ("renamed", "to/moved")]
    assert (made.base / "gone").exists() and not (made.base / "moved").exists()


@pytest.mark.parametrize("what", ["mode", "attributes"])
def test_what_else_was_done_to_a_directory_is_not_asked_for_with_a_name_in_it(tmp_path: Path, what: str) -> None:
    workspace = Workspace(tmp_path / "w")
    (workspace.base / "d").mkdir(mode=0o755)
    workspace.begin()
    workspace.write("d/new", "n\n")
    (workspace.layer / "d").chmod(0o700 if what == "mode" else 0o755)
    if what == "attributes":
        os.setxattr(workspace.layer / "d", "user.note", b"1")
    with engine(workspace) as each:
        assert (what, "d") in kinds(each.changes())
        report = each.apply(["d/new"])
    assert kinds(report.applied) == [("added", "d/new")] and not report.refused
    assert stat.S_IMODE((workspace.base / "d").stat().st_mode) == 0o755


def test_red_ones_stay_out_and_what_stands_below_them_too(made: Workspace) -> None:
    made.write(".vscode/tasks.json", "{}")
    made.write("run", "x", 0o755)
    with engine(made) as each:
        report = each.apply()
        assert [change.path for change, _ in report.refused] == [".vscode", ".vscode/tasks.json", "run"]
        assert is_after(tree(made.base))
        assert kinds(list(each.apply(red=True).applied)) == [
            ("added", ".vscode"),
            ("added", ".vscode/tasks.json"),
            ("added", "run"),
        ]


def test_set_id_bits_and_special_files_are_never_put_in_place(made: Workspace) -> None:
    made.write("setuid", "x").chmod(0o4755)
    os.mkfifo(made.layer / "fifo")
    with engine(made) as each:
        report = each.apply(red=True)
    assert [change.path for change, _ in report.refused] == ["fifo"]
    assert stat.S_IMODE((made.base / "setuid").stat().st_mode) == 0o755


def test_a_hidden_file_of_the_host_is_never_replaced_nor_deleted(made: Workspace) -> None:
    (made.base / "becomes-file/.env").write_text("host\n")
    made.write("new.env", "x")
    made.write("d/.env", "from inside")

    def hidden(path: str) -> bool:
        return path.endswith(".env")

    with engine(made, hidden=hidden) as each:
        report = each.apply(red=True)
    refused = {change.path for change, _ in report.refused}
    assert {"d/.env", "new.env", "becomes-file"} <= refused
    assert (made.base / "becomes-file/.env").read_text() == "host\n"
    assert not (made.base / "new.env").exists() and not (made.base / "d/.env").exists()


def test_a_directory_stays_when_something_in_it_is_not_asked_for(made: Workspace) -> None:
    chosen, refused = choose(made.changes(), ["tree/in"])
    assert [change.path for change in chosen] == ["tree/in", "tree/in/x"] and refused == []
    chosen, refused = choose([change for change in made.changes() if change.path != "tree/y"], ["tree"])
    assert "tree" in [change.path for change in chosen]
    changes = [c.replace(never=("no",)) if c.path == "tree/y" else c for c in made.changes()]
    chosen, refused = choose(changes, ["tree"])
    assert [(change.path, why) for change, why in refused] == [("tree", "something in it stays"), ("tree/y", "no")]


def test_the_bytes_that_are_judged_are_those_in_the_stage(made: Workspace) -> None:
    """What is written to a layer after the list was made is judged again, by the copy that is put in place."""
    made.write(".gitmodules", '[submodule "x"]\n\tpath = x\n\turl = https://h.test/x\n')

    def step(name: str) -> None:
        if name == "begin":
            made.write(".gitmodules", '[submodule "x"]\n\tpath = x\n\turl = ext::sh -c x\n')

    with engine(made, step) as each:
        report = each.apply()
    assert [change.path for change, _ in report.refused] == [".gitmodules"]
    assert not (made.base / ".gitmodules").exists() and is_after(tree(made.base))


@pytest.mark.as_user
def test_in_a_directory_that_is_closed_to_its_owner(tmp_path: Path) -> None:
    """The command opened it, wrote, and closed it again: its mode is no change."""
    workspace = Workspace(tmp_path / "w")
    (workspace.base / "closed").mkdir()
    (workspace.base / "closed/a").write_text("one\n")
    (workspace.base / "closed").chmod(0o555)
    workspace.begin()
    workspace.write("closed/a", "two\n")
    workspace.write("closed/b", "b\n")
    (workspace.layer / "closed").chmod(0o555)
    before = tree(workspace.base)
    with engine(workspace) as each:
        each.apply()
        assert (workspace.base / "closed/a").read_text() == "two\n" and (workspace.base / "closed/b").exists()
        assert stat.S_IMODE((workspace.base / "closed").stat().st_mode) == 0o555
        assert each.undo() == []
    assert tree(workspace.base) == before
    for place in (workspace.base, workspace.layer):
        (place / "closed").chmod(0o755)


def test_as_deep_as_is_looked_at(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "w")
    for top, letter in ((workspace.base, "b"), (workspace.layer, "l")):
        at = os.open(top, os.O_RDONLY)
        for _ in range(500):
            os.mkdir(letter, dir_fd=at)
            inner = os.open(letter, os.O_RDONLY, dir_fd=at)
            os.close(at)
            at = inner
        os.close(at)
    workspace.delete("b")
    with engine(workspace, hidden=lambda path: path.endswith("x")) as each:
        assert len(each.apply().applied) == 1000
        assert each.changes() == [] and os.listdir(workspace.base) == ["l"]
        assert each.undo() == []
    assert os.listdir(workspace.base) == ["b"]


# ---------------------------------------------------------------- the host meanwhile


def touch(path: Path) -> None:
    path.write_bytes(path.read_bytes())


HOST: list[tuple[str, Callable[[Path], object], str]] = [
    ("changed", lambda base: (base / "changed").write_text("host\n"), "changed"),
    ("gone", lambda base: (base / "gone").write_text("host\n"), "gone"),
    ("new", lambda base: (base / "new").write_text("host\n"), "new"),
    ("renamed source", lambda base: (base / "moved").write_text("host\n"), "moved"),
    ("in a deleted directory", lambda base: (base / "tree/in/more").write_text("host\n"), "tree/in/more"),
    ("type", lambda base: (base / "becomes-directory").write_text("host\n"), "becomes-directory"),
    ("replaced", lambda base: os.replace(copied(base / "changed", "host\n"), base / "changed"), "changed"),
    ("mode", lambda base: (base / "mode").chmod(0o666), "mode"),
]


def copied(path: Path, content: str) -> Path:
    other = path.with_name(path.name + ".new")
    other.write_text(content)
    return other


@pytest.mark.parametrize("looked", [False, True], ids=["not looked at before", "looked at before"])
@pytest.mark.parametrize(("name", "work", "path"), HOST, ids=[row[0] for row in HOST])
def test_what_the_host_changed_is_a_conflict_and_nothing_is_touched(
    made: Workspace, name: str, work: Callable[[Path], object], path: str, looked: bool
) -> None:
    if looked:
        with engine(made) as each:
            assert not any(change.conflict for change in each.changes())
    work(made.base)
    before = tree(made.base)
    with engine(made) as each:
        with pytest.raises(Conflict) as told:
            each.apply()
        assert path in [each for each, _ in told.value.paths]
        assert tree(made.base) == before
        report = each.apply(rest=True)
        assert path in [change.path for change in report.conflicts]
    found = tree(made.base)
    assert found[path.encode()] == before[path.encode()] and found[b"mode"][2] == b"m\n"
    if name not in ("changed", "replaced"):
        assert found[b"changed"][2] == b"two\n"


def test_a_touched_file_is_no_conflict_once_its_content_is_known(made: Workspace) -> None:
    with engine(made) as each:
        each.changes()
    touch(made.base / "changed")
    with engine(made) as each:
        each.apply()
    assert is_after(tree(made.base))


def test_without_knowing_its_content_a_touched_file_is_a_conflict(made: Workspace) -> None:
    touch(made.base / "changed")
    with engine(made) as each, pytest.raises(Conflict):
        each.apply()


def test_a_file_that_the_host_made_the_same_is_no_change(made: Workspace) -> None:
    (made.base / "changed").write_text("two\n")
    (made.base / "changed").chmod(0o644)
    with engine(made) as each:
        each.apply()
    assert is_after(tree(made.base))


def test_what_the_host_changes_after_an_apply_is_the_hosts(made: Workspace) -> None:
    with engine(made) as each:
        each.apply()
    (made.base / "changed").write_text("three\n")
    (made.base / "gone").write_text("again\n")
    with engine(made) as each:
        assert each.changes() == []
        before = tree(made.base)
        with pytest.raises(Conflict) as told:
            each.undo()
        assert {path for path, _ in told.value.paths} == {"changed", "gone"}
        assert tree(made.base) == before
        left = each.undo(rest=True)
        assert {path for path, _ in left} == {"changed", "gone"}
        assert (made.base / "tree/in/x").exists() and not (made.base / "new").exists()
    assert (made.base / "changed").read_text() == "three\n"


@pytest.mark.needs_kernel("overlayfs in a user namespace")
def test_a_changed_file_that_the_host_deleted_is_a_conflict(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "w")
    (workspace.base / "a").write_text("one\n")
    workspace.begin()
    workspace.run("open('a', 'a').write('two\\n'); open('b', 'w').write('b')")
    (workspace.base / "a").unlink()
    with engine(workspace) as each:
        with pytest.raises(Conflict, match="deleted in the workspace"):
            each.apply()
        assert kinds(list(each.apply(rest=True).applied)) == [("added", "b")]


# ---------------------------------------------------------------- whatever ends us


def child(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killed(workspace: Workspace, number: int, doing: str, state: Path | None = None) -> bool:
    """Apply, resume or undo in a child that is killed at its ``number``th step; False: it ended before."""
    left = [number]

    def step(_name: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        with engine(workspace, step, state=state) as each:
            if doing == "apply":
                each.apply()
            elif doing == "undo":
                each.undo()
            else:
                each.resume(forward=doing == "forward")

    status = child(work)
    assert status in (0, -signal.SIGKILL)
    return status != 0


def states(tmp_path: Path, other: bool) -> Path | None:
    """A place for the change set on another file system."""
    return Path(tempfile.mkdtemp(prefix="membrane-state-", dir="/dev/shm")) / "changes/set" if other else None


@pytest.mark.as_user
def test_a_workspace_that_cannot_be_written_has_no_stage(tmp_path: Path) -> None:
    """Where the stage has to be in it; the changes are kept, and are put in place once it can be."""
    workspace = full(tmp_path / "w")
    state = states(tmp_path, other=True)
    assert state is not None
    before = tree(workspace.base)
    mode = workspace.base.stat().st_mode & 0o7777
    workspace.base.chmod(0o555)
    try:
        with (
            engine(workspace, state=state) as each,
            pytest.raises(
                HostError, match=f"put changes in place in {workspace.base}: it cannot be written: Permission"
            ),
        ):
            each.apply()
        workspace.base.chmod(mode)
        assert tree(workspace.base) == before
        with engine(workspace, state=state) as each:
            each.apply()
        assert is_after(tree(workspace.base))
    finally:
        workspace.base.chmod(mode)
        shutil.rmtree(state.parent.parent)


@pytest.mark.parametrize("other", [False, True], ids=["one file system", "two file systems"])
@pytest.mark.parametrize("direction", ["forward", "back"])
def test_killed_at_each_step_it_can_be_brought_to_either_end(tmp_path: Path, direction: str, other: bool) -> None:
    number = 0
    journaled = 0
    while True:
        workspace = full(tmp_path / f"w{number}")
        state = states(tmp_path, other)
        try:
            before = tree(workspace.base)
            if not killed(workspace, number, "apply", state):
                break
            with engine(workspace, state=state) as each:
                if not ((state or workspace.place / "changes/set") / "applying/journal.json").exists():
                    found = {
                        path: entry for path, entry in tree(workspace.base).items() if STAGE_NAME.encode() not in path
                    }
                    assert found == before or is_after(found)
                    with pytest.raises(HostError, match="none ended"):
                        each.resume(forward=True)
                    assert tree(workspace.base) in (before, found)
                else:
                    journaled += 1
                    with pytest.raises(Unfinished):
                        each.apply()
                    assert each.resume(forward=direction == "forward") == []
                    found = tree(workspace.base)
                    assert is_after(found) if direction == "forward" else found == before
            assert not [name for name in os.listdir(workspace.base) if name.startswith(STAGE_NAME)]
        finally:
            if state is not None:
                shutil.rmtree(state.parent.parent)
            remove_tree(str(workspace.place))
        number += 1
    assert journaled > 12


@pytest.mark.parametrize("other", [False, True], ids=["one file system", "two file systems"])
@pytest.mark.parametrize("doing", ["forward", "back", "undo"])
def test_killed_while_it_is_brought_to_an_end(tmp_path: Path, doing: str, other: bool) -> None:
    number = 0
    while True:
        workspace = full(tmp_path / f"w{number}")
        state = states(tmp_path, other)
        try:
            before = tree(workspace.base)
            if doing == "undo":
                with engine(workspace, state=state) as each:
                    each.apply()
            else:
                assert killed(workspace, 25, "apply", state)
            again = killed(workspace, number, doing, state)
            set_place = state or workspace.place / "changes/set"
            if again and (set_place / "applying/journal.json").exists():
                with engine(workspace, state=state) as each:
                    assert each.resume(forward=doing == "forward") == []
            elif again and (set_place / "undo").exists() and doing == "undo":
                with engine(workspace, state=state) as each:
                    assert each.undo() == []
            elif again:
                with engine(workspace, state=state) as each, pytest.raises(HostError):
                    each.resume(forward=True)
            found = tree(workspace.base)
            assert is_after(found) if doing == "forward" else found == before
            if not again:
                break
        finally:
            if state is not None:
                shutil.rmtree(state.parent.parent)
            remove_tree(str(workspace.place))
        number += 1
    assert number > 3


@pytest.mark.parametrize("number_of_error", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_after_an_error_at_any_step_everything_is_as_before(tmp_path: Path, number_of_error: int) -> None:
    number = 0
    while True:
        workspace = full(tmp_path / f"w{number}")
        before = tree(workspace.base)
        left = [number]

        def step(_name: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == -1:
                raise OSError(number_of_error, os.strerror(number_of_error), "x")

        with engine(workspace, step) as each:
            try:
                each.apply()
            except (OSError, HostError):
                pass
        found = tree(workspace.base)
        if left[0] >= 0:
            assert is_after(found)
            break
        if found != before:  # the last steps: all is done, and the journal says so
            assert is_after(found)
            with engine(workspace) as each:
                assert each.resume(forward=True) == []
        with engine(workspace) as each:
            each.apply()
        assert is_after(tree(workspace.base))
        remove_tree(str(workspace.place))
        number += 1
    assert number > 20


_FULL = """
import ctypes, os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from copies import Workspace, engine, tree
from membrane.errors import HostError
workspace = Workspace(Path(sys.argv[2]))
if ctypes.CDLL(None, use_errno=True).mount(b"t", str(workspace.base).encode(), b"tmpfs", 0, b"size=512k"):
    raise OSError(ctypes.get_errno(), "mount")
(workspace.base / "a").write_text("one")
workspace.begin()
workspace.write("a", "two")
workspace.write("d/b", "b")
workspace.write("large", b"x" * (1 << 20))
before = tree(workspace.base)
with engine(workspace) as each:
    try:
        each.apply()
    except HostError as error:
        assert "No space left" in str(error) and "as before" in str(error), error
    else:
        raise AssertionError("it had room")
    assert tree(workspace.base) == before, tree(workspace.base)
    (workspace.layer / "large").write_bytes(b"x")
    each.apply()
assert sorted(os.listdir(workspace.base)) == ["a", "d", "large"] and (workspace.base / "a").read_text() == "two"
"""


@pytest.mark.needs_kernel("overlayfs in a user namespace")
def test_on_a_full_disk_everything_is_as_before(tmp_path: Path) -> None:
    command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", _FULL]
    command += [str(Path(__file__).parent), str(tmp_path / "w")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("at", ["stage file", "journal", "put"])
def test_an_apply_that_failed_takes_no_undo_copy_away(made: Workspace, at: str) -> None:
    before = tree(made.base)
    with engine(made) as each:
        each.apply()
    after = tree(made.base)
    made.write("changed", "three\n")

    def step(name: str) -> None:
        if name == at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with engine(made, step) as each, pytest.raises(HostError, match="everything is as before"):
        each.apply()
    assert tree(made.base) == after
    with engine(made) as each:
        assert each.undo() == []
    assert tree(made.base) == before


def test_a_copy_of_what_was_replaced_is_known_whatever_inode_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a file which the host has replaced since is free for it."""
    workspace = full(tmp_path / "w")
    state = states(tmp_path, other=True)
    assert state is not None
    try:
        with engine(workspace, state=state) as each:
            each.apply()
        ops = json.loads((state / "undo/journal.json").read_text())["ops"]
        slot = next(op[2] for op in ops if op[:2] == ["put", "changed"])
        free = workspace.place / "free"
        os.link(workspace.base / "changed", free)
        (workspace.base / "mine").write_text("mine\n")
        (workspace.base / "mine").rename(workspace.base / "changed")  # as an editor saves

        def copied(source: int, target: str) -> None:
            copy_tree(source, target)
            if STAGE_NAME in target:
                free.write_bytes(Path(target, slot).read_bytes())
                Path(target, slot).unlink()
                os.link(free, f"{target}/{slot}")

        monkeypatch.setattr(transaction, "copy_tree", copied)
        with engine(workspace, state=state) as each, pytest.raises(Conflict, match="changed in the workspace since"):
            each.undo()
        with engine(workspace, state=state) as each:
            left = each.undo(rest=True)
        assert left == [("changed", "it was changed in the workspace since")]
        assert (workspace.base / "changed").read_text() == "mine\n" and not (workspace.base / "new").exists()
    finally:
        shutil.rmtree(state.parent.parent)


def test_a_link_that_the_host_made_anew_is_the_hosts(made: Workspace) -> None:
    """One of the same length may have the inode of the one whose place it took: only its time is another then."""
    with engine(made) as each:
        each.apply()
    link = made.base / "link"
    os.utime(link, ns=(1, 1), follow_symlinks=False)
    with engine(made) as each, pytest.raises(Conflict, match="changed in the workspace since"):
        each.undo()
    with engine(made) as each:
        assert each.undo(rest=True) == [("link", "it was changed in the workspace since")]
    assert link.is_symlink() and not (made.base / "new").exists()


@pytest.mark.as_user
@pytest.mark.parametrize("other", [False, True], ids=["one file system", "two file systems"])
def test_what_was_taken_back_is_removed_whatever_the_host_has_closed(tmp_path: Path, other: bool) -> None:
    """Else no apply of the set could begin any more."""
    workspace = full(tmp_path / "w")
    state = states(tmp_path, other)
    try:
        before = tree(workspace.base)
        with engine(workspace, state=state) as each:
            each.apply()
        (workspace.base / "whole/closed").chmod(0o511)
        with engine(workspace, state=state) as each:
            assert each.undo() == []
        assert tree(workspace.base) == before
        assert not ((state or workspace.place / "changes/set") / "applying").exists()
        with engine(workspace, state=state) as each:
            each.apply()
        assert is_after(tree(workspace.base))
    finally:
        if state is not None:
            shutil.rmtree(state.parent.parent)


def test_what_cannot_be_begun_is_said_as_any_other_error(made: Workspace) -> None:
    def step(name: str) -> None:
        if name == "begin":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = tree(made.base)
    with engine(made, step) as each, pytest.raises(HostError, match="No space left on device; everything is as before"):
        each.apply()
    assert tree(made.base) == before


@pytest.mark.parametrize("other", [False, True], ids=["one file system", "two file systems"])
def test_what_an_undo_left_can_be_undone_later(tmp_path: Path, other: bool) -> None:
    workspace = full(tmp_path / "w")
    state = states(tmp_path, other)
    try:
        before = tree(workspace.base)
        with engine(workspace, state=state) as each:
            each.apply()
        (workspace.base / "new").rename(workspace.base / "aside")
        (workspace.base / "new").write_text("mine\n")
        with engine(workspace, state=state) as each:
            assert each.undo(rest=True) == [("new", "it was changed in the workspace since")]
        (workspace.base / "aside").rename(workspace.base / "new")
        with engine(workspace, state=state) as each:
            assert each.undo() == []
        assert tree(workspace.base) == before
    finally:
        if state is not None:
            shutil.rmtree(state.parent.parent)


def test_what_comes_is_written_down_for_later_runs_before_the_journal(
    made: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error there leaves no apply that has to be brought to an end."""
    before = tree(made.base)

    def begin(*_words: object) -> bytes:
        raise HostError("write down which commits are yours", "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("membrane.workspace.origins.begin", begin)
        with engine(made) as each, pytest.raises(HostError, match="which commits are yours"):
            each.apply()
    assert tree(made.base) == before
    with engine(made) as each:
        each.apply()
    assert is_after(tree(made.base))


def test_what_cannot_be_undone_is_said_and_can_be_tried_again(made: Workspace) -> None:
    before = tree(made.base)
    calls: list[str] = []

    def step(name: str) -> None:
        calls.append(name)
        if calls.count("put") == 2 or name == "undo put":
            raise OSError(errno.EIO, "x")

    with engine(made, step) as each, pytest.raises(Unfinished):
        each.apply()
    with engine(made) as each:
        assert each.resume(forward=False) == []
    assert tree(made.base) == before


# ---------------------------------------------------------------- races


def racing(made: Workspace, when: str, work: Callable[[], object]) -> None:
    """Apply, while the host does something just before a step; nothing may be left half done."""
    done: list[str] = []

    def step(name: str) -> None:
        if name == when and not done:
            done.append(name)
            work()

    with engine(made, step) as each, pytest.raises((Conflict, HostError)):
        each.apply()
    assert done


def test_a_file_that_is_changed_at_the_last_moment_is_not_lost(made: Workspace) -> None:
    before = tree(made.base)
    racing(made, "put", lambda: (made.base / "changed").write_text("host, just now\n"))
    found = tree(made.base)
    assert found.pop(b"changed")[2] == b"host, just now\n"
    before.pop(b"changed")
    assert found == before


def test_a_file_that_is_made_at_the_last_moment_is_not_lost(made: Workspace) -> None:
    before = tree(made.base)
    racing(made, "new", lambda: (made.base / "new").write_text("host, just now\n"))
    found = tree(made.base)
    assert found.pop(b"new")[2] == b"host, just now\n" and found == before


def test_a_directory_that_is_made_at_the_last_moment_is_not_lost(made: Workspace) -> None:
    """Also an empty one: rename(2) alone would take its place."""
    before = tree(made.base)
    racing(made, "new", (made.base / "whole").mkdir)
    found = tree(made.base)
    assert [path for path in found if path.startswith(b"whole")] == [b"whole"]
    found.pop(b"whole")
    assert found == before


def test_the_journal_of_another_version_is_not_carried_out(made: Workspace) -> None:
    def step(name: str) -> None:
        if name == "put":
            os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        with engine(made, step) as each:
            each.apply()

    assert child(work) == -signal.SIGKILL
    place = made.place / "changes/set/applying/journal.json"
    stored = json.loads(place.read_text())
    place.write_text(json.dumps(stored | {"format": stored["format"] - 1, "ops": [op[:-1] for op in stored["ops"]]}))
    with engine(made) as each:
        with pytest.raises(HostError, match="of another version"):
            each.resume(forward=True)
        place.write_text(json.dumps(stored))  # the control
        assert each.resume(forward=True) == []
    assert is_after(tree(made.base))


def test_a_file_that_is_made_in_a_directory_that_goes(made: Workspace) -> None:
    before = tree(made.base)
    racing(made, "remove", lambda: (made.base / "becomes-file/more").write_text("host, just now\n"))
    found = tree(made.base)
    assert found.pop(b"becomes-file/more")[2] == b"host, just now\n" and found == before


@pytest.mark.parametrize(("call", "name"), [("exchange", "changed"), ("rename_new", "new")])
def test_what_is_saved_in_the_moment_in_which_it_is_undone_is_not_lost(
    made: Workspace, monkeypatch: pytest.MonkeyPatch, call: str, name: str
) -> None:
    """An editor's save, after it was looked at: the control is the same undo without one."""
    real, done = getattr(syscalls, call), list[str]()

    def racing(from_fd: int, source: str, to_fd: int, target: str) -> None:
        if source == name and not done:
            done.append(name)
            (made.base / "save").write_text("host, just now\n")
            (made.base / "save").rename(made.base / name)
        real(from_fd, source, to_fd, target)

    before = tree(made.base)
    with engine(made) as each:
        each.apply()
    monkeypatch.setattr(syscalls, call, racing)
    with engine(made) as each:
        assert each.undo() == [(name, "it was changed in the workspace meanwhile")]
    assert done and (made.base / name).read_text() == "host, just now\n"
    (made.base / name).unlink()
    with engine(made) as each:
        each.undo(rest=True)
    found = tree(made.base)
    assert {**found, name.encode(): 0} == {**before, name.encode(): 0}


@pytest.mark.parametrize("other", [True, False], ids=["another directory", "nothing"])
def test_a_directory_that_is_moved_while_names_get_into_it(tmp_path: Path, other: bool) -> None:
    workspace = Workspace(tmp_path / "w")
    (workspace.base / "d").mkdir()
    (workspace.base / "d" / "b").write_text("old\n")
    workspace.begin()
    for name in "abc":
        workspace.write(f"d/{name}", f"{name}\n")
    before, steps = tree(workspace.base), []

    def step(name: str) -> None:
        steps.append(name)
        if name == "put":  # the second of three
            os.rename(workspace.base / "d", workspace.base / "moved")
            if other:
                (workspace.base / "d").mkdir()

    with engine(workspace, step) as each, pytest.raises(Unfinished):
        each.apply()
    assert steps.index("put") > steps.index("new")
    if other:
        assert os.listdir(workspace.base / "d") == []
        (workspace.base / "d").rmdir()
    os.rename(workspace.base / "moved", workspace.base / "d")
    with engine(workspace) as each:
        assert each.resume(forward=False) == []
        assert tree(workspace.base) == before
        assert len(each.apply().applied) == 3  # the control
    assert (workspace.base / "d" / "b").read_text() == "b\n"


def test_a_directory_that_is_swapped_for_a_link_leads_nowhere(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "w")
    (workspace.base / "d").mkdir()
    (workspace.base / "d/f").write_text("one\n")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("one\n")
    workspace.begin()
    workspace.write("d/f", "two\n")
    workspace.write("d/g", "new\n")

    def swap() -> None:
        (workspace.base / "d").rename(workspace.base / "other")
        (workspace.base / "d").symlink_to(outside)

    racing(workspace, "put", swap)
    assert tree(outside) == {b"f": ("file", 0o644, b"one\n")}
    assert (workspace.base / "other/f").read_text() == "one\n"


# ---------------------------------------------------------------- against a reference


@pytest.mark.needs_kernel("overlayfs in a user namespace")
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(before=_ACTS, inside=_ACTS, later=_ACTS)
@example(  # undone: a link stands where a directory with files was
    before=[("write", "a", ""), ("write", "c/a/a", "")],
    inside=[],
    later=[("write", "a", ""), ("remove", "c", ""), ("link", "c", "a")],
)
def test_what_is_put_in_place_is_what_the_command_saw(
    before: list[tuple[str, str, str]], inside: list[tuple[str, str, str]], later: list[tuple[str, str, str]]
) -> None:
    with tempfile.TemporaryDirectory(prefix="membrane-copies-") as place:
        workspace = Workspace(Path(place) / "w")
        act(workspace.base, before)
        untouched = tree(workspace.base)
        reference = Path(place) / "reference"
        shutil.copytree(workspace.base, reference, symlinks=True)
        workspace.run(f"ACTS = {inside!r}\n{ACT}")
        act(reference, inside)
        workspace.add_layer()
        workspace.run(f"ACTS = {later!r}\n{ACT}")
        act(reference, later)
        with engine(workspace) as each:
            report = each.apply(red=True)
            assert report.refused == ()
            assert tree(workspace.base) == tree(reference)
            assert each.changes() == []
            if report.applied:
                assert each.undo() == []
                assert tree(workspace.base) == untouched
        for layer in workspace.layers:
            (layer / "work/work").chmod(0o700)


# ---------------------------------------------------------------- in three ways


@pytest.fixture
def both(tmp_path: Path) -> Workspace:
    """A file that the command changed at its end, and looked at, so that the base is known."""
    workspace = Workspace(tmp_path / "w")
    (workspace.base / "text").write_text("".join(f"{number}\n" for number in range(30)))
    workspace.begin()
    workspace.write("text", (workspace.base / "text").read_text().replace("29\n", "inside\n"))
    with engine(workspace) as each:
        each.changes()
    return workspace


@pytest.mark.needs_tool("git")
def test_what_both_changed_in_different_places_is_merged(both: Workspace) -> None:
    place = both.base / "text"
    place.write_text(place.read_text().replace("0\n", "host\n", 1))
    host = place.read_text()
    with engine(both) as each:
        with pytest.raises(Conflict):
            each.apply()
        each.apply(merge=True)
    assert place.read_text() == host.replace("29\n", "inside\n")
    with engine(both) as each:
        assert each.changes() == []  # nothing that would take the host's lines away again
        assert each.undo() == []
    assert place.read_text() == host
    with engine(both) as each:
        each.apply(merge=True)
        both.write("text", (both.layer / "text").read_text().replace("28\n", "more\n"))
        with pytest.raises(Conflict):
            each.apply()
        each.apply(merge=True)
    assert place.read_text() == host.replace("29\n", "inside\n").replace("28\n", "more\n")


@pytest.mark.needs_tool("git")
def test_what_does_not_merge_stays_a_conflict(both: Workspace) -> None:
    place = both.base / "text"
    place.write_text(place.read_text().replace("29\n", "host\n"))
    host = place.read_text()
    with engine(both) as each, pytest.raises(Conflict, match="does not merge"):
        each.apply(merge=True)
    assert place.read_text() == host


@pytest.mark.needs_tool("git")
def test_what_is_merged_is_judged(tmp_path: Path) -> None:
    """Neither side is bad alone: the merge is what is put in place, so the merge is judged."""
    workspace = Workspace(tmp_path / "w")
    modules = '[submodule "x"]\n\tpath = x\n' + "# \n" * 9 + '[submodule "y"]\n\tpath = y\n'
    (workspace.base / ".gitmodules").write_text(modules)
    workspace.begin()
    workspace.write(".gitmodules", modules + "\turl = ext::sh -c x\n")
    with engine(workspace) as each:
        each.changes()
    (workspace.base / ".gitmodules").write_text(modules.replace("path = x", "path = z"))
    with engine(workspace) as each:
        report = each.apply(merge=True)
    assert [change.path for change, _ in report.refused] == [".gitmodules"]


def test_who_wants_nothing_red_gets_nothing_when_only_the_merge_is(
    both: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is listed is benign, and what is made ready is not."""
    modules = '[submodule "x"]\n\tpath = x\n'
    (both.base / ".gitmodules").write_text(modules)
    both.begin()
    both.write(".gitmodules", modules + "\turl = https://h.test/x\n")
    both.write("other", "x")
    with engine(both) as each:
        each.changes()
    (both.base / ".gitmodules").write_text("# of the host\n" + modules)
    evil = (modules + "\turl = ext::sh -c x\n").encode()
    monkeypatch.setattr("membrane.changes.merge.merged", lambda *_texts, **_how: evil)
    with engine(both) as each:
        with pytest.raises(Poisoned) as caught:
            each.apply([".gitmodules", "other"], merge=True, strict=True)
        assert [path for path, _why in caught.value.paths] == [".gitmodules"]
        assert not (both.base / "other").exists()
        report = each.apply([".gitmodules", "other"], merge=True)  # the control
        assert [change.path for change, _ in report.refused] == [".gitmodules"]
        assert [change.path for change in report.applied] == ["other"]


@pytest.mark.parametrize("call", [1, 2])
def test_what_cannot_be_brought_to_the_disk_is_not_taken_for_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """Many files go to the disk in one call, which says when some did not: sync(2) would say nothing."""
    calls: list[int] = []
    real = syscalls.syncfs

    def syncfs(fd: int) -> None:
        calls.append(fd)
        if len(calls) == call:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    monkeypatch.setattr(transaction, "MOST_SYNCED", 0)
    monkeypatch.setattr(syscalls, "syncfs", syncfs)
    workspace = full(tmp_path / "w")
    before = tree(workspace.base)
    with engine(workspace) as each, pytest.raises(HostError, match="Input/output error") as caught:
        each.apply()
    if call == 1:
        assert tree(workspace.base) == before
        return
    assert isinstance(caught.value, Unfinished)
    assert is_after(tree(workspace.base))
    with engine(workspace) as each:
        assert each.resume(forward=True) == []
    with engine(workspace) as each:
        assert each.undo() == []
    assert tree(workspace.base) == before


def trees(place: Path) -> Workspace:
    """Two directories that are wholly new, one of them with a file that nobody may read."""
    workspace = Workspace(place)
    workspace.begin()
    workspace.write("d/a", "a\n")
    workspace.write("d/e/b", "b\n")
    workspace.write("d/e/c", "c\n", 0)
    workspace.write("other/x", "x\n")
    return workspace


def test_a_directory_that_is_wholly_new_is_seen_with_all_that_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call puts it in place and one takes it back; the control is one in a directory that is there."""
    workspace = trees(tmp_path / "w")
    (workspace.base / "there").mkdir()
    workspace.write("there/y", "y\n")
    calls: list[str] = []
    real = syscalls.rename_new

    def rename_new(directory: int, name: str, other: int, other_name: str) -> None:
        real(directory, name, other, other_name)
        calls.append(other_name)
        if other_name == "d":
            assert sorted(os.listdir(workspace.base / "d/e")) == ["b", "c"]
            assert stat.S_IMODE((workspace.base / "d").stat().st_mode) == 0o755

    with engine(workspace) as each:
        monkeypatch.setattr(syscalls, "rename_new", rename_new)
        assert len(each.apply().applied) == 8
        assert calls[-3:] == ["d", "other", "y"]
        del calls[:]
        assert each.undo() == []
        assert len(calls) == 3 and os.listdir(workspace.base) == ["there"]


def test_a_new_directory_keeps_out_what_of_it_turns_out_to_be_red(tmp_path: Path) -> None:
    workspace = trees(tmp_path / "w")
    workspace.write("d/e/.gitmodules", '[submodule "x"]\n\tpath = x\n\turl = https://h.test/x\n')

    def step(name: str) -> None:
        if name == "begin":
            workspace.write("d/e/.gitmodules", '[submodule "x"]\n\tpath = x\n\turl = ext::sh -c x\n')

    with engine(workspace, step) as each:
        report = each.apply()
    assert [change.path for change, _ in report.refused] == ["d/e/.gitmodules"]
    assert sorted(os.listdir(workspace.base / "d/e")) == ["b", "c"]


@pytest.mark.parametrize("other", [False, True], ids=["one file system", "two file systems"])
@pytest.mark.parametrize("what", ["changed", "deleted", "made", "replaced"])
def test_what_the_host_changed_in_a_new_directory_stays_when_the_rest_is_undone(
    tmp_path: Path, what: str, other: bool
) -> None:
    """Also when that is killed at any step; and what stays can be undone when the host has taken its change back."""
    number, again = 0, True
    while again:
        workspace = trees(tmp_path / f"w{number}")
        state = states(tmp_path, other)
        try:
            with engine(workspace, state=state) as each:
                each.apply()
            place = workspace.base / "d/e/b"
            if what == "made":
                (workspace.base / "d/e/mine").write_text("host\n")
            else:
                place.unlink()
            if what == "replaced":
                place.mkdir()
            elif what == "changed":
                place.write_text("host\n")
            left = [number]

            def step(_name: str, left: list[int] = left) -> None:
                left[0] -= 1
                if left[0] == -1:
                    os.kill(os.getpid(), signal.SIGKILL)

            def work(workspace: Workspace = workspace, state: Path | None = state) -> None:
                with engine(workspace, step, state=state) as each:
                    assert each.undo(rest=True)

            again = child(work) != 0
            if again:
                assert left  # it was killed; what is left is done again
                with engine(workspace, state=state) as each:
                    try:
                        each.resume(forward=False, rest=True)
                    except HostError:  # before its first step, or when it was over
                        try:
                            each.undo(rest=True)
                        except HostError:
                            pass
            found = sorted(os.fsdecode(path) for path in tree(workspace.base) if STAGE_NAME.encode() not in path)
            assert (
                found
                == {
                    "changed": ["d", "d/e", "d/e/b"],
                    "deleted": [],
                    "made": ["d", "d/e", "d/e/mine"],
                    "replaced": ["d", "d/e", "d/e/b"],
                }[what]
            )
            assert os.listdir(workspace.base) in ([], ["d"])
        finally:
            if state is not None:
                shutil.rmtree(state.parent.parent)
            remove_tree(str(workspace.place))
        number += 1
    assert number > 5


def test_what_is_made_in_a_new_directory_while_it_is_taken_back_is_not_lost(tmp_path: Path) -> None:
    workspace = trees(tmp_path / "w")
    done: list[str] = []

    def step(name: str) -> None:
        if name == "undo new" and not done:  # it was found to be as it was put in place
            done.append(name)
            (workspace.base / "other/mine").write_text("host\n")

    with engine(workspace) as each:
        each.apply()
    with engine(workspace, step) as each:
        assert each.undo() == [("other", "something was made in it since")]
    assert sorted(os.fsdecode(path) for path in tree(workspace.base)) == ["other", "other/mine"]
    (workspace.base / "other/mine").unlink()
    with engine(workspace) as each:
        assert each.undo() == []
    assert os.listdir(workspace.base) == []


def test_what_the_host_made_in_a_new_directory_is_a_hindrance_to_an_undo(tmp_path: Path) -> None:
    """Nothing is undone then but for who asks for the rest; the control is the same without the file."""
    workspace = Workspace(tmp_path / "w")
    workspace.begin()
    workspace.write("d/e/f", "x")
    workspace.write("other", "x")
    with engine(workspace) as each:
        each.apply()
        (workspace.base / "d/e/mine").write_text("m")
        with pytest.raises(Conflict) as caught:
            each.undo()
        assert caught.value.paths == (("d/e", "something was made in it since"),)
        assert (workspace.base / "d/e/f").exists() and (workspace.base / "other").exists()
        (workspace.base / "d/e/mine").unlink()
        assert each.undo() == []
    assert os.listdir(workspace.base) == []
