"""changes.tree: what differs between a workspace and its copy, read from the layers."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from hashlib import blake2b
from pathlib import Path

import pytest
from copies import Workspace, engine, kinds, run_in, tree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from membrane.changes import tree as tree_module
from membrane.changes.tree import Copy, TooMuch, copy_file, digest, look

needs_overlay = pytest.mark.needs_kernel("overlayfs in a user namespace")


@pytest.fixture
def made(tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path / "w")
    base = workspace.base
    (base / "a.txt").write_text("one\ntwo\n")
    (base / "b.txt").write_text("bee\n")
    (base / "d/e").mkdir(parents=True)
    (base / "d/f").write_text("eff\n")
    (base / "d/e/g").write_text("gee\n")
    (base / "link").symlink_to("a.txt")
    return workspace


def test_an_untouched_copy_has_no_changes(made: Workspace) -> None:
    assert made.changes() == []


def test_each_kind_of_change_is_told(made: Workspace) -> None:
    made.write("a.txt", "one\nthree\n")
    made.write("new", "n")
    made.delete("d/f")
    made.write("b.txt", "bee\n", 0o600)
    (made.layer / "link").symlink_to("b.txt")
    (made.layer / "empty").mkdir()
    found = {change.path: change for change in made.changes()}
    assert {path: change.kind for path, change in found.items()} == {
        "a.txt": "changed",
        "b.txt": "mode",
        "d/f": "deleted",
        "empty": "added",
        "link": "changed",
        "new": "added",
    }
    assert found["a.txt"].content and not found["b.txt"].content
    assert found["link"].after is not None and found["link"].after.target == "b.txt"


def test_a_file_that_was_copied_up_and_not_changed_is_no_change(made: Workspace) -> None:
    made.write("a.txt", "one\ntwo\n")
    assert made.changes() == []


def test_an_opaque_directory_deletes_what_it_does_not_hold(made: Workspace) -> None:
    made.write("d/f", "eff\n")
    os.setxattr(made.layer / "d", "user.overlay.opaque", b"y")
    assert kinds(made.changes()) == [("deleted", "d/e"), ("deleted", "d/e/g")]


def test_a_mark_of_overlayfs_that_is_not_known_stops_the_reading(made: Workspace) -> None:
    (made.layer / "d").mkdir()
    os.setxattr(made.layer / "d", "user.overlay.opaque", b"x")
    with pytest.raises(Exception, match="does not know"):
        made.changes()


def test_a_deleted_directory_lists_all_that_goes_with_it(made: Workspace) -> None:
    made.delete("d")
    assert kinds(made.changes()) == [("deleted", p) for p in ("d", "d/e", "d/e/g", "d/f")]


def test_a_file_in_the_place_of_a_directory_and_the_other_way(made: Workspace) -> None:
    made.write("d", "now a file")
    (made.layer / "a.txt").mkdir()
    made.write("a.txt/x", "x")
    assert kinds(made.changes()) == [
        ("type", "a.txt"),
        ("added", "a.txt/x"),
        ("type", "d"),
        ("deleted", "d/e"),
        ("deleted", "d/e/g"),
        ("deleted", "d/f"),
    ]


def test_a_whiteout_of_an_older_layer_is_undone_by_a_newer_one(made: Workspace) -> None:
    made.delete("d")
    made.add_layer()
    (made.layer / "d").mkdir()
    os.setxattr(made.layer / "d", "user.overlay.opaque", b"y")
    made.write("d/f", "eff\n")
    made.add_layer()
    made.delete("a.txt")
    assert kinds(made.changes()) == [("deleted", "a.txt"), ("deleted", "d/e"), ("deleted", "d/e/g")]


def test_a_layer_without_a_mark_does_not_show_what_an_older_whiteout_hides(made: Workspace) -> None:
    made.delete("d")
    made.add_layer()
    made.write("d/f", "eff\n")  # upper of the newest: "d" in it is merged with the whiteout below, so nothing shows
    assert kinds(made.changes()) == [("deleted", "d/e"), ("deleted", "d/e/g")]


def test_renames_are_paired_by_content(made: Workspace) -> None:
    made.delete("d/e/g")
    made.write("moved/g", "gee\n")
    changes = made.changes()
    assert kinds(changes) == [("added", "moved"), ("renamed", "moved/g")]
    assert changes[1].source == "d/e/g" and changes[1].paths == ("d/e/g", "moved/g")


def test_names_that_are_not_utf8_are_kept_as_they_are(made: Workspace) -> None:
    name = b"n\xff\xfe\n"
    with open(os.path.join(os.fsencode(made.layer), name), "wb") as file:
        file.write(b"x")
    (change,) = made.changes()
    assert os.fsencode(change.path) == name


def test_hidden_names_are_neither_read_nor_deleted(made: Workspace) -> None:
    (made.base / "d/.env").write_text("SECRET=1\n")
    made.write("d/.env", "SECRET=1\n")

    def hidden(path: str) -> bool:
        return path.endswith(".env")

    (change,) = made.changes(hidden)
    assert change.path == "d/.env" and change.kind == "added" and change.before is None and change.never
    (made.layer / "d/.env").unlink()
    (made.layer / "d").rmdir()
    made.delete("d")
    assert kinds(made.changes(hidden)) == [("deleted", "d/e"), ("deleted", "d/e/g"), ("deleted", "d/f")]
    os.unlink(made.layer / "d")
    made.write("d", "now a file")
    changes = made.changes(hidden)
    assert changes[0].kind == "type" and changes[0].never
    assert kinds(made.changes())[0] == ("type", "d") and not made.changes()[0].never


def test_what_a_layer_of_masks_hides(made: Workspace, tmp_path: Path) -> None:
    masks = tmp_path / "masks"
    (masks / "d").mkdir(parents=True)
    (masks / "d/.env").write_text("")
    os.mknod(masks / "later", stat.S_IFCHR, 0)
    (masks / "secrets").mkdir()
    os.setxattr(masks / "secrets", "user.overlay.opaque", b"y")
    fd = os.open(masks, os.O_RDONLY)
    try:
        hidden = tree_module.masked(fd)
        assert [path for path in ("d", "d/.env", "later", "secrets", "a.txt", "d/f") if hidden(path)] == [
            "d/.env",
            "later",
            "secrets",
        ]
        (made.base / "secrets").mkdir()
        (made.base / "secrets/key").write_text("host")
        made.delete("secrets")
        made.delete("later")
        made.write("secrets-too/x", "x")
        assert kinds(made.changes(hidden)) == [("added", "secrets-too"), ("added", "secrets-too/x")]
    finally:
        os.close(fd)


def test_links_of_the_copy_and_of_the_host_lead_nowhere(made: Workspace, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "g").write_text("not of the workspace\n")
    (made.layer / "d").mkdir()
    (made.layer / "d/e").symlink_to(outside)
    shutil.rmtree(made.base / "d")
    (made.base / "d").symlink_to(outside)  # as a program of the host may do meanwhile
    changes = made.changes()
    assert [change.path for change in changes] == ["d", "d/e"]
    assert all("outside" not in (change.source or "") for change in changes)
    fd = os.open(made.base, os.O_RDONLY)
    try:
        assert look(fd, "d/g") is None
    finally:
        os.close(fd)


def test_what_the_command_closed_for_its_owner_is_read_and_stays_closed(made: Workspace) -> None:
    made.write("closed/in/file", "x", 0)
    (made.layer / "closed/in").chmod(0)
    found = {change.path: change for change in made.changes()}
    assert set(found) == {"closed", "closed/in", "closed/in/file"}
    after = found["closed/in"].after
    assert after is not None and after.mode == 0
    assert (made.layer / "closed/in").stat().st_mode & 0o777 == 0
    (made.layer / "closed/in").chmod(0o700)


@pytest.mark.parametrize("mode", [0o300, 0])
def test_a_directory_that_the_host_keeps_closed_hides_no_other_change(made: Workspace, mode: int) -> None:
    (made.base / "shut").mkdir()
    (made.base / "shut/file").write_text("before")
    made.write("shut/file", "after")
    made.write("other", "x")
    (made.base / "shut").chmod(mode)
    try:
        found = {change.path: change for change in made.changes()}
    finally:
        (made.base / "shut").chmod(0o700)
    assert {"other", "shut/file"} <= set(found) <= {"other", "shut", "shut/file"}
    seen = found["shut/file"]
    assert (seen.kind, bool(seen.never)) == (("changed", False) if os.geteuid() == 0 else ("added", True))


def test_more_than_the_bound_is_refused(made: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_module, "MOST_CHANGES", 20)
    for number in range(20):
        made.write(f"n{number}", "x")
    assert len(made.changes()) == 20
    made.write("one-more", "x")
    with pytest.raises(TooMuch):
        made.changes()


def test_a_path_too_deep_is_refused(made: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_module, "DEEPEST", 8)
    made.write("/".join("x" * 8).lstrip("/"), "x")
    made.changes()
    made.write("/".join("y" * 9), "x")
    with pytest.raises(TooMuch):
        made.changes()


def test_extended_attributes_are_compared_without_those_of_overlayfs(made: Workspace) -> None:
    place = made.write("b.txt", "bee\n")
    os.setxattr(place, "user.overlay.origin", b"x")
    assert made.changes() == []
    os.setxattr(place, "user.note", b"x")
    (change,) = made.changes()
    assert change.kind == "attributes" and change.attributes == ("user.note",)


# ---------------------------------------------------------------- against the kernel

_NAMES = ("a", "b", "c", "d\xe9")
_PATHS = st.lists(st.sampled_from(_NAMES), min_size=1, max_size=3).map("/".join)
_ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), _PATHS, st.sampled_from(["", "x\n", "y\nz\n"])),
        st.tuples(st.just("mkdir"), _PATHS, st.just("")),
        st.tuples(st.just("remove"), _PATHS, st.just("")),
        st.tuples(st.just("link"), _PATHS, st.sampled_from(["a", "../b", "nowhere"])),
        st.tuples(st.just("chmod"), _PATHS, st.sampled_from(["700", "755"])),
        st.tuples(st.just("rename"), _PATHS, _PATHS),
    ),
    max_size=14,
)
ACT = """
import os, shutil
def act(kind, path, more):
    try:
        if kind == "write":
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            with open(path, "w") as file:
                file.write(more)
        elif kind == "mkdir":
            os.makedirs(path)
        elif kind == "remove":
            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
        elif kind == "link":
            os.symlink(more, path)
        elif kind == "chmod":
            os.chmod(path, int(more, 8), follow_symlinks=True)
        elif not os.path.realpath(more).startswith(os.path.realpath(path) + "/"):  # move would copy it into itself
            shutil.move(path, more)
    except (OSError, shutil.Error, RecursionError):
        pass
for each in ACTS:
    act(*each)
"""


def act(where: Path, acts: list[tuple[str, str, str]]) -> None:
    """The acts in a plain directory, by another process as in the copy."""
    run_in(where, f"ACTS = {acts!r}\n{ACT}")


def seen(copy: Copy, path: str = "") -> dict[bytes, tuple[object, ...]]:
    """The merged view of a copy, as ``copies.tree`` gives that of a directory."""
    out: dict[bytes, tuple[object, ...]] = {}
    for name in copy.names(path):
        inner = f"{path}/{name}" if path else name
        found = copy.find(inner)
        assert found is not None
        layer, there = found
        key = os.fsencode(inner)
        if there.what == "link":
            out[key] = ("link", os.fsencode(there.target))
        elif there.what == "file":
            fd = copy.open(layer, inner)
            out[key] = ("file", there.mode, b"".join(tree_module.pieces(fd)))
            os.close(fd)
        else:
            out[key] = (0o040000, there.mode)
            out |= seen(copy, inner)
    return out


@needs_overlay
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(before=_ACTS, inside=_ACTS, later=_ACTS)
def test_the_layers_are_read_as_the_kernel_shows_them(
    before: list[tuple[str, str, str]], inside: list[tuple[str, str, str]], later: list[tuple[str, str, str]]
) -> None:
    with tempfile.TemporaryDirectory(prefix="membrane-copies-") as place:
        workspace = Workspace(Path(place) / "w")
        act(workspace.base, before)
        untouched = tree(workspace.base)
        reference = Path(place) / "reference"
        shutil.copytree(workspace.base, reference, symlinks=True)
        for number, acts in enumerate((inside, later)):
            if number:
                workspace.add_layer()
            workspace.run(f"ACTS = {acts!r}\n{ACT}")
            act(reference, acts)
        wanted = tree(reference)
        with workspace.copy() as copy:
            assert seen(copy) == wanted
            changes = copy.changes()
        told = {os.fsencode(change.path) for change in changes}
        differ = {path for path in {*untouched, *wanted} if untouched.get(path) != wanted.get(path)}
        assert told == differ
        assert tree(workspace.base) == untouched
        for layer in workspace.layers:
            (layer / "work/work").chmod(0o700)


MiB = 1 << 20


@pytest.mark.parametrize(
    "rows",
    [
        [(0, b"x")],
        [(3 * MiB, b"x")],
        [(0, b"x"), (5 * MiB + 7, b"y" * MiB)],
        [(10, b"x"), (MiB, b"\0" * MiB), (3 * MiB, b"z")],
        [],
    ],
)
def test_a_hash_is_of_the_content_whether_zeros_are_holes_or_not(tmp_path: Path, rows: list[tuple[int, bytes]]) -> None:
    size = 7 * MiB + 11
    sparse, dense, other = (tmp_path / name for name in ("sparse", "dense", "other"))
    for path in (sparse, dense, other):
        with path.open("wb") as file:
            if path != sparse:
                file.write(bytes(size))
            file.truncate(size)
            for at, data in rows:
                file.seek(at)
                file.write(data)
            if path == other:
                file.seek(4 * MiB)
                file.write(b"\1")
    made = {}
    for path in (sparse, dense, other):
        with path.open("rb") as file:
            made[path] = digest(file.fileno())
        with path.open("rb") as source, (tmp_path / "copy").open("w+b") as target:
            copied = copy_file(source.fileno(), target.fileno())
            assert copied in (b"", made[path]) and digest(target.fileno()) == made[path]
    assert made[sparse] == made[dense] != made[other]
    small = tmp_path / "small"
    small.write_bytes(b"content")
    with small.open("rb") as file:
        assert digest(file.fileno()) == blake2b(b"content", digest_size=32).digest()


@needs_overlay
def test_the_work_for_a_huge_file_is_that_for_its_data(made: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a terabyte costs the command nothing."""
    made.run("file = open('huge', 'wb'); file.truncate(1 << 40); file.seek(1 << 39); file.write(b'x')")
    reads = 0
    read = os.pread

    def counted(fd: int, most: int, at: int) -> bytes:
        nonlocal reads
        reads += 1
        assert reads < 200, "it reads the holes"
        return read(fd, most, at)

    monkeypatch.setattr(os, "pread", counted)
    with engine(made) as each:
        assert [change.path for change in each.apply(["huge"]).applied] == ["huge"]
        assert not [change for change in each.changes() if change.path == "huge"]
        assert each.undo() == []
    assert reads > 2  # the control: it was read
