"""What a reviewed workspace is made of: layers, whiteouts, what the host makes late, and the line at the end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from membrane.changes import cell, store
from membrane.errors import HostError, PolicyError
from membrane.plan.model import HostFacts, ScanHit
from membrane.policy.model import MountRule, Origin, PathRule, Policy

HERE = Origin("user", "config.yaml", 1)
REVIEW = Policy(workspace="review", change_set="one")


def rules(*patterns: str) -> list[PathRule]:
    return [PathRule(pattern, HERE, "hide") for pattern in patterns]


@pytest.fixture
def facts(tmp_path: Path) -> HostFacts:
    (tmp_path / "ws").mkdir()
    return HostFacts(
        uid=os.geteuid(),
        gid=os.getegid(),
        user="dev",
        root=False,
        home=str(tmp_path / "home"),
        state=str(tmp_path / "state"),
        workspace=str(tmp_path / "ws"),
        hostname="box",
        environ=(),
    )


def whiteout(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))


def is_whiteout(path: Path) -> bool:
    details = os.lstat(path)
    return stat.S_ISCHR(details.st_mode) and details.st_rdev == 0


def test_the_layers_of_a_run(facts: HostFacts) -> None:
    held, found = cell.begin(REVIEW, facts, "5e55104")
    with held:
        Path(held.top, "upper", "a").write_text("a")
        held.checkpoint("first")
    held, found = cell.begin(REVIEW, facts, "5e55105")
    with held:
        assert found.reviewed is not None
        old, new = held.uppers
        assert found.reviewed.lowers == (old, f"{facts.state}/changes/one/masks")
        assert f"{found.reviewed.layer}/upper" == new
        assert os.listdir(f"{facts.state}/changes/one/masks") == []
        with pytest.raises(store.InUse):
            cell.begin(REVIEW, facts, "5e55106")


def test_a_new_set_is_named_by_the_session(facts: HostFacts) -> None:
    held, found = cell.begin(REVIEW.replace(change_set=""), facts, "0123456789abcdef")
    held.close()
    assert found.reviewed is not None
    assert found.reviewed.name == "0123456789ab"


def test_what_would_be_makes_nothing(facts: HostFacts) -> None:
    found = cell.shown(REVIEW, facts).reviewed
    assert found is not None
    assert found.lowers == (f"{facts.state}/changes/one/masks",)
    assert not os.path.exists(facts.state)
    cell.begin(REVIEW, facts, "5e55104")[0].close()
    again = cell.shown(REVIEW, facts).reviewed
    assert again is not None
    assert again.layer != found.layer  # that of the set


def test_masks_are_those_of_this_run_and_what_is_right_stays(facts: HostFacts) -> None:
    place = Path(facts.state, "changes", "one", "masks")
    for name in ("a/b", "way", "whole/in"):
        Path(facts.workspace, name).mkdir(parents=True)
    Path(facts.workspace, "a/b").chmod(0o1751)
    cell.begin(REVIEW, facts, "1")[0].close()
    masks = cell.Masks(str(place), facts.workspace)
    masks.add("late")
    masks.hide(
        {".env": "file", "a/b/x": "file", "a/b/d": "directory", "none": "", "way/one": "file", "whole": "directory",
         "turns/1": "file", "turns/2": "directory", "turns/3": "", "old/in/it": "file"}
    )  # fmt: skip
    assert list(masks.names)[:2] == [".env", "a/b/x"] and not (place / "late").exists()
    assert stat.S_IMODE((place / "a/b").stat().st_mode) == 0o1751
    assert os.getxattr(place / "whole", "user.overlay.opaque") == b"y"
    kept = {name: os.lstat(place / name).st_ino for name in ("a/b/d", "none", "way")}
    (place / "whole" / "left").write_text("")  # as a name that was hidden in it once
    cell.begin(REVIEW, facts, "2")[0].close()
    assert is_whiteout(place / "none")  # until the next run knows better: its names may be those of an apply
    Path(facts.workspace, "a/b").chmod(0o700)
    again = cell.Masks(str(place), facts.workspace)
    again.hide(
        {".env": "file", "a/b/x": "file", "a/b/d": "directory", "none": "", "way/two": "file", "whole": "directory",
         "turns/1": "directory", "turns/2": "", "turns/3": "file"}
    )  # fmt: skip
    assert {name: os.lstat(place / name).st_ino for name in kept} == kept
    assert stat.S_IMODE((place / "a/b").stat().st_mode) == 0o700
    assert os.listdir(place / "way") == ["two"] and os.listdir(place / "whole") == []
    assert os.getxattr(place / "turns/1", "user.overlay.opaque") == b"y" and is_whiteout(place / "turns/2")
    assert (place / "turns/3").is_file() and not (place / "old").exists()
    assert (place / ".env").stat().st_ino == (place / "way/two").stat().st_ino
    # What hides a name with all in it becomes a directory on the way, and back.
    again.hide({"whole/in/x": "file", ".env": "directory"})
    with pytest.raises(OSError, match="No data"):
        os.getxattr(place / "whole", "user.overlay.opaque")
    assert sorted(os.listdir(place)) == [".env", "whole"] and (place / "whole/in/x").stat().st_size == 0
    again.hide({"whole/in/x": "file", "whole": "directory"})
    assert os.getxattr(place / "whole", "user.overlay.opaque") == b"y" and os.listdir(place / "whole") == []
    again.hide({})
    assert os.listdir(place) == []


def test_the_empty_file_is_made_anew_when_it_is_another_or_has_too_many_links(
    facts: HostFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(facts.state, "changes", "one", "masks")
    held, _facts = cell.begin(REVIEW, facts, "1")
    with held:
        masks = cell.Masks(str(place), facts.workspace)
        masks.hide({"a": "file", "b": "file"})
        empty = place.with_name("masks.empty")
        assert empty.stat().st_ino == (place / "a").stat().st_ino and empty.stat().st_nlink == 3
        empty.write_text("not empty")
        masks.hide({"a": "file", "b": "file"})
        assert [(place / name).stat().st_size for name in "ab"] == [0, 0]
        held.fork("two")
        assert empty.stat().st_nlink == 6

        def full(*_args: object, **_options: object) -> None:
            raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))

        monkeypatch.setattr(os, "link", full)
        masks.hide({"a": "file", "b": "file", "c": "file"})
        assert (place / "c").stat().st_nlink == 1 and stat.S_IMODE((place / "c").stat().st_mode) == 0o644
        masks.hide({"a": "file", "n": ""})
        held.fork("three")
    third = place.parents[1] / "three" / "masks"
    assert (third / "a").stat().st_size == 0 and is_whiteout(third / "n")


def test_a_new_set_begins_with_the_masks_of_one_that_is_gone(facts: HostFacts, tmp_path: Path) -> None:
    Path(facts.workspace, "d").mkdir()
    wanted: dict[str, cell.Kind] = {"d/a": "file", "d/k": "directory", "n": ""}

    def run(wanted: dict[str, cell.Kind], facts: HostFacts = facts, *, spare: bool = True) -> dict[str, int]:
        """As a run that changes nothing; the inodes of what it found before it made its masks."""
        held, _facts = cell.begin(REVIEW, facts, "1")
        with held:
            place = Path(held.path, "masks")
            found = {str(each.relative_to(place)): os.lstat(each).st_ino for each in place.rglob("*")}
            masks = cell.Masks(str(place), facts.workspace)
            masks.hide(wanted)
            assert {*masks.names} == {*wanted}
            names = {str(each.relative_to(place)) for each in place.rglob("*")}
            assert names - {"d"} == {*wanted}
            assert all((place / name).stat().st_size == 0 for name, kind in wanted.items() if kind == "file")
            held.discard(spare=spare)
        return found

    assert run(wanted) == {}
    first = run({"d/a": "file", "x": ""})
    assert first.keys() == {"d", *wanted}
    second = run({"d/a": "file"})
    assert second.keys() == {"d", "d/a", "x"} and second["d/a"] == first["d/a"]
    place = Path(facts.state, "changes", store.SPARE)
    (spare,) = place.iterdir()
    (spare / "masks.empty").unlink()  # another process has taken the half of it
    assert run(wanted).keys() == {"d", "d/a"}
    assert run(wanted, spare=False).keys() == {"d", *wanted} and os.listdir(spare) == []
    assert run(wanted) == {}
    for number in range(store.MOST_SPARE + 1):
        other = tmp_path / f"other{number}"
        other.mkdir()
        assert run({"y": "file"}, facts.replace(workspace=str(other))) == {}
        assert len(list(place.iterdir())) == min(number + 2, store.MOST_SPARE)
    assert run(wanted) == {}  # of the oldest nothing is kept


def test_a_whiteout_has_the_directories_of_the_workspace(facts: HostFacts, tmp_path: Path) -> None:
    deep = Path(facts.workspace, "a", "b")
    deep.mkdir(parents=True)
    deep.chmod(0o1751)
    (tmp_path / "masks").mkdir()
    masks = cell.Masks(str(tmp_path / "masks"), facts.workspace)
    for name in ("a/b/.env", "a/b/.env", "top", "gone/x"):  # twice is once; and what went away
        masks.add(name)
    made = tmp_path / "masks" / "a" / "b"
    assert is_whiteout(made / ".env")
    assert is_whiteout(tmp_path / "masks" / "top")
    assert stat.S_IMODE(made.stat().st_mode) == 0o1751


def test_which_names_the_masks_hide() -> None:
    hits = (
        ScanHit("empty", "hide", False),
        ScanHit("tracked", "hide", False),
        ScanHit("link", "hide", False, link=True),  # what it leads to is covered
        ScanHit("shown", "hide", False),
        ScanHit("read", "readonly", False),
    )
    assert cell.masked(hits, frozenset(("empty", "link", "shown")), ("shown",)) == hits[:1]


def test_names_that_nobody_has_yet(facts: HostFacts) -> None:
    Path(facts.workspace, "there").write_text("")
    given = rules("/a", "**/b", "c/", "*.key", "d/e", "there", "no[x]", "f", "!f", "g", "!/g", "..", "h", "!*.h")
    assert cell.future(given, facts.workspace) == ["a", "b", "c", "h"]
    many = rules(*(f"n{number}" for number in range(cell.MOST_FUTURE + 5)))
    assert len(cell.future(many, facts.workspace)) == cell.MOST_FUTURE
    assert cell.future([PathRule("a", HERE, "readonly")], facts.workspace) == []


def test_a_place_below_which_something_is_mounted_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"/proc.* is mounted in the workspace"):
        cell.refuse_mounts("/")
    cell.refuse_mounts("/etc/ssl")  # the control
    cell.refuse_mounts("/pro")  # no part of a name


def test_a_writable_tree_that_is_the_workspace_is_refused(facts: HostFacts, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(tmp_path)
    (tmp_path / "data").mkdir()
    Path(facts.workspace, "sub").mkdir()

    def begin(path: str, mode: str) -> None:
        policy = REVIEW.replace(mounts=(MountRule(path, mode, HERE),))  # type: ignore[arg-type]
        cell.begin(policy, facts, "1")[0].close()

    for path in ("alias", "alias/ws", "alias/ws/sub"):
        with pytest.raises(PolicyError, match="leads to the workspace"):
            begin(str(tmp_path / path), "rw")
        begin(str(tmp_path / path), "ro")  # the control
    begin(str(tmp_path / "data"), "rw")


def test_a_name_that_is_in_the_view_all_the_same_stops_the_start(tmp_path: Path) -> None:
    workspace, upper = tmp_path / "ws", tmp_path / "upper"
    (workspace / "sub").mkdir(parents=True)
    upper.mkdir()
    root = os.open(tmp_path, os.O_PATH)
    try:
        names = (".env", "sub/.env", "gone/.env")
        cell.confirm(root, "/ws", names, (str(upper),))  # the control
        (workspace / "sub" / ".env").symlink_to("nowhere")
        with pytest.raises(HostError, match=r"hide names of the workspace /ws/sub/\.env: it is in the view"):
            cell.confirm(root, "/ws", names, (str(upper),))
        (upper / "sub").mkdir()
        (upper / "sub" / ".env").write_text("made by a command")
        cell.confirm(root, "/ws", names, (str(upper),))
    finally:
        os.close(root)


def test_an_empty_file_and_an_empty_directory(facts: HostFacts, tmp_path: Path) -> None:
    (tmp_path / "masks").mkdir()
    masks = cell.Masks(str(tmp_path / "masks"), facts.workspace)
    masks.add("file", "file")
    masks.add("directory", "directory")
    masks.add("directory", "directory")
    assert list(masks.names) == ["file", "directory"]
    assert stat.S_IMODE((tmp_path / "masks" / "file").stat().st_mode) == 0o644
    assert os.getxattr(tmp_path / "masks" / "directory", "user.overlay.opaque") == b"y"
    root = os.open(tmp_path / "masks", os.O_PATH)
    try:
        cell.confirm(root, "", ("file", "directory"), ())
        (tmp_path / "masks" / "directory" / "x").write_text("")
        with pytest.raises(HostError, match="/directory: it is in the view"):
            cell.confirm(root, "", ("directory",), ())
    finally:
        os.close(root)


def test_files_of_another_group_are_named_before_a_command_meets_eoverflow(tmp_path: Path) -> None:
    workspace = tmp_path / "w"
    workspace.mkdir()
    for name in ("a", "b\x1b[1m", "c", "d"):
        (workspace / name).write_text("")
    (workspace / "link").symlink_to("/etc/passwd")
    status = workspace.stat()
    assert cell.unwritable(str(workspace), status.st_uid, status.st_gid) == ""  # the control
    said = cell.unwritable(str(workspace), status.st_uid, status.st_gid + 1)
    assert f"{workspace}, " in said and "and 2 more; " in said and "EOVERFLOW" in said and "\x1b" not in said
