"""What commits from before the run hold, read from real repositories and proven by hashes."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from membrane.workspace import commits, objects
from membrane.workspace.commits import EXECUTABLE, FILE, Committed, encoded, is_tool, tips
from membrane.workspace.objects import Objects, named


def git(place: Path, *words: str, data: bytes = b"") -> bytes:
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(place.parent), "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@a", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@a",
    }  # fmt: skip
    return subprocess.run(
        ["git", *words], cwd=place, env=environment, input=data, check=True, capture_output=True
    ).stdout.strip()


def make(place: Path, *options: str) -> Path:
    place.mkdir()
    git(place, "init", "-q", "-b", "main", *options)
    return place


@pytest.fixture(params=["sha1", "sha256"])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return make(tmp_path / "repository", f"--object-format={request.param}")


def commit(place: Path, files: dict[str, bytes], message: str = "x") -> bytes:
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    git(place, "add", "-A")
    git(place, "commit", "-q", "-m", message)
    return git(place, "rev-parse", "HEAD")


@pytest.fixture
def opened(repository: Path) -> Iterator[int]:
    fd = os.open(repository, os.O_PATH)
    yield fd
    os.close(fd)


def width(name: bytes) -> int:
    return len(name) // 2


def test_loose_and_packed_objects_are_read_and_proven(repository: Path, opened: int) -> None:
    long = b"".join(b"%d\n" % number for number in range(5_000))
    names = []
    for number in range(12):  # alike, so that git packs them as deltas of each other
        content = long + b"line %d\n" % number
        commit(repository, {"file": content})
        names.append((bytes.fromhex(git(repository, "rev-parse", "HEAD:file").decode()), content))
    for _ in range(2):  # loose, then packed
        found = Objects(opened, ".git", len(names[0][0]))
        assert [found.read(name) for name, _content in names] == [(b"blob", content) for _name, content in names]
        assert found.read(bytes(len(names[0][0]))) is None
        found.close()
        git(repository, "gc", "-q", "--prune=now")
    assert not list((repository / ".git" / "objects").glob("[0-9a-f][0-9a-f]"))


def test_an_object_under_a_wrong_name_is_not_there(tmp_path: Path) -> None:
    place = make(tmp_path / "r")
    content = b"good\n"
    name = hashlib.sha1(b"blob 5\0" + content, usedforsecurity=False).digest()
    assert named(b"blob", content, 20) == name
    path = place / ".git" / "objects" / name.hex()[:2] / name.hex()[2:]
    path.parent.mkdir()
    fd = os.open(place, os.O_PATH)
    read = Objects(fd, ".git", 20).read
    path.write_bytes(zlib.compress(b"blob 5\0" + content))
    assert read(name) == (b"blob", content)  # the control
    for bad in (
        zlib.compress(b"blob 5\0evil\n"),
        zlib.compress(b"tree 5\0" + content),
        zlib.compress(b"blob 5\0" + content)[:-6],
        b"",
        zlib.compress(b"blob 9999999\0" + bytes(objects.LARGEST + 1)),
    ):
        path.write_bytes(bad)
        assert read(name) is None
    path.unlink()
    os.mkfifo(path)  # nobody writes: reading it must not wait
    assert read(name) is None
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_bytes(zlib.compress(b"blob 5\0" + content))
    assert read(name) is None
    os.close(fd)


def test_a_pack_that_is_cut_or_changed_gives_nothing(tmp_path: Path) -> None:
    place = make(tmp_path / "r")
    commit(place, {"file": b"content\n" * 100})
    name = bytes.fromhex(git(place, "rev-parse", "HEAD:file").decode())
    git(place, "gc", "-q", "--prune=now")
    fd = os.open(place, os.O_PATH)
    (pack,) = (place / ".git" / "objects" / "pack").glob("*.pack")
    good = pack.read_bytes()

    def read() -> tuple[bytes, bytes] | None:
        objects = Objects(fd, ".git", 20)
        try:
            return objects.read(name)
        finally:
            objects.close()

    assert read() is not None  # the control
    pack.chmod(0o600)
    for end in (0, 12, len(good) // 2):
        pack.write_bytes(good[:end])
        assert read() is None
    for at in range(12, len(good) - 20, 7):
        pack.write_bytes(good[:at] + bytes((good[at] ^ 0x55,)) + good[at + 1 :])
        found = read()
        assert found is None or found == (b"blob", b"content\n" * 100)
    index = pack.with_suffix(".idx")
    index.chmod(0o600)
    pack.write_bytes(good)
    index.write_bytes(index.read_bytes()[:1032])
    assert read() is None
    os.close(fd)


def committed(repository: Path, fd: int) -> Committed:
    return Committed(fd, encoded(tips(str(repository))[0]))


def test_what_a_commit_from_before_holds_may_be_made(repository: Path, opened: int) -> None:
    commit(repository, {".vscode/tasks.json": b"{}\n", ".mcp.json": b"1\n", "plain": b"x"})
    git(repository, "checkout", "-q", "-b", "other")
    (repository / ".envrc").write_bytes(b"export A=1\n")
    (repository / ".envrc").chmod(0o755)
    commit(repository, {".mcp.json": b"2\n"})
    git(repository, "checkout", "-q", "main")
    known = committed(repository, opened)
    assert known.may_be(".vscode", "directory") and known.may_be(".vscode/tasks.json", "file")
    assert not known.may_be(".vscode", "file") and not known.may_be(".idea", "directory")
    assert not known.may_be("plain", "file")  # no name of tools: nobody has to ask
    for content, fits in ((b"1\n", True), (b"2\n", True), (b"3\n", False), (b"", False)):
        (repository / ".mcp.json").write_bytes(content)
        assert (known.objection(".mcp.json") == "") is fits, content
    (repository / ".mcp.json").write_bytes(b"")
    assert known.objection(".mcp.json", partly=True) == ""
    # With the right to be executed only where a commit has it.
    (repository / ".mcp.json").write_bytes(b"1\n")
    (repository / ".mcp.json").chmod(0o755)
    assert known.objection(".mcp.json")
    (repository / ".envrc").write_bytes(b"export A=1\n")
    (repository / ".envrc").chmod(0o755)
    assert known.objection(".envrc") == ""
    assert known.found is not None and known.found[0] == EXECUTABLE
    assert known.content(known.found) == (b"export A=1\n", 0o777)
    known.close()


@pytest.mark.parametrize(
    ("clock", "work", "found"),
    [(0.5, 0.0, True), (0.0, 0.5, False), (50.0, 0.0, False)],
    ids=["a busy machine", "much work", "a disk that hangs"],
)
def test_what_counts_is_work_and_not_the_load_of_the_machine(
    repository: Path, opened: int, monkeypatch: pytest.MonkeyPatch, clock: float, work: float, found: bool
) -> None:
    """Each look at a clock finds it so many seconds later; what is asked for is eleven commits away."""
    commit(repository, {".mcp.json": b"1\n"})
    for number in range(10):
        commit(repository, {".mcp.json": b"other %d\n" % number})
    (repository / ".mcp.json").write_bytes(b"1\n")
    known = committed(repository, opened)
    for name, step in (("monotonic", clock), ("thread_time", work)):
        ticks = itertools.count(1000.0, step)
        monkeypatch.setattr(commits.time, name, lambda ticks=ticks: next(ticks))
    try:
        assert (known.objection(".mcp.json") == "") is found
    finally:
        monkeypatch.undo()
        known.close()


def test_what_was_committed_later_does_not_count(repository: Path, opened: int) -> None:
    commit(repository, {".mcp.json": b"before\n"})
    known = committed(repository, opened)
    commit(repository, {".mcp.json": b"after\n"})
    assert "no commit from before this run" in known.objection(".mcp.json")
    (repository / ".mcp.json").write_bytes(b"before\n")
    assert known.objection(".mcp.json") == ""
    assert known.found == (FILE, bytes.fromhex(git(repository, "rev-parse", "HEAD~1:.mcp.json").decode()))
    known.close()


def test_a_link_is_never_let_through(repository: Path, opened: int) -> None:
    (repository / ".mcp.json").symlink_to("plain")
    commit(repository, {"plain": b"x"})
    known = committed(repository, opened)
    assert not known.may_be(".mcp.json", "file")
    with pytest.raises(OSError):
        known.objection(".mcp.json")
    known.close()


def test_refs_of_every_kind_are_remembered(repository: Path) -> None:
    assert encoded(tips(str(repository.parent))[0]) == b""  # no repository
    first = commit(repository, {"a": b"1"})
    git(repository, "tag", "-a", "v1", "-m", "x")
    git(repository, "branch", "deep/er/name")
    git(repository, "pack-refs", "--all")
    second = commit(repository, {"a": b"2"})
    found = encoded(tips(str(repository))[0])
    size = found[0]
    names = {found[at : at + size].hex().encode() for at in range(1, len(found), size)}
    assert size == width(first)
    assert {first, second, git(repository, "rev-parse", "v1")} <= names
    shutil.rmtree(repository / ".git" / "refs")
    assert isinstance(encoded(tips(str(repository))[0]), bytes)  # a damaged one ends nothing


@pytest.mark.parametrize(
    ("path", "tool"),
    [
        (".vscode", True),
        (".vscode/a/b", True),
        ("a/.vscode/x", True),
        ("a/plain", False),
        (".git/hooks", False),
        (".vscode/.git/x", False),
        (".envrc", True),
    ],
)
def test_names_of_tools(path: str, tool: bool) -> None:
    assert is_tool(path) is tool
