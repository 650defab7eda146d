"""What is kept for a command is counted whatever it did to hide it, and too much of it is said."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from membrane.host import usage
from membrane.host.usage import Unmeasured, Usage, measure

BLOCK = 1 << 16
SECONDS = 60  # a deadline, not a measurement


def write(path: Path, size: int = BLOCK) -> Path:
    path.write_bytes(os.urandom(size))
    return path


def said(limit: int, *directories: Path) -> str:
    with begun(limit, *directories) as process:
        assert select.select([process.fd], [], [], SECONDS)[0]
        return process.cause()


@contextmanager
def begun(limit: int, *directories: Path) -> Iterator[Usage]:
    state = str(directories[0].parent)
    process = Usage(state, [str(each) for each in directories], limit, subordinate=False)
    try:
        yield process
    finally:
        process.close()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = tmp_path / "kept"
    made.mkdir()
    return made


def test_files_are_counted_once_and_links_are_not_followed(tree: Path, tmp_path: Path) -> None:
    empty = measure([str(tree)])
    file = write(tree / "file")
    one = measure([str(tree)])
    assert BLOCK <= one - empty < 2 * BLOCK
    os.link(file, tree / "second")
    outside = tmp_path / "outside"
    outside.mkdir()
    write(outside / "large", 10 * BLOCK)
    (tree / "link").symlink_to(outside)
    (tree / "file-link").symlink_to(outside / "large")
    assert one <= measure([str(tree)]) < one + BLOCK
    assert measure([str(tmp_path / "missing"), str(tree / "link"), str(tree)]) < one + BLOCK


def test_a_sparse_file_takes_what_it_takes(tree: Path) -> None:
    with (tree / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    assert measure([str(tree)]) < BLOCK


def test_a_deep_tree_is_counted(tree: Path) -> None:
    where = os.open(tree, os.O_RDONLY)
    for _level in range(300):
        os.mkdir("d", dir_fd=where)
        below = os.open("d", os.O_RDONLY, dir_fd=where)
        os.close(where)
        where = below
    fd = os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=where)
    os.write(fd, os.urandom(BLOCK))
    os.close(fd)
    os.close(where)
    assert measure([str(tree)]) >= BLOCK


def test_more_entries_than_are_counted_are_too_much(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "MOST_ENTRIES", 3)
    for number in range(4):
        write(tree / str(number), 1)
    with pytest.raises(Unmeasured, match="more than 3 files"):
        measure([str(tree)])
    assert "cannot be measured: more than 3 files" in said(1 << 40, tree)


@pytest.mark.as_user
def test_what_cannot_be_opened_is_too_much(tree: Path) -> None:
    (tree / "closed").mkdir(mode=0)
    with pytest.raises(Unmeasured, match="Permission denied: closed"):
        measure([str(tree)])


@pytest.mark.needs_kernel("user namespaces")
def test_the_process_counts_in_directories_that_are_closed(tree: Path) -> None:
    write(tree / "a")
    (tree / "closed").mkdir()
    write(tree / "closed" / "b", 4 * BLOCK)
    (tree / "closed").chmod(0)
    text = said(3 * BLOCK, tree)
    assert text.startswith("limits.disk ended the command: ") and f" of {3 * BLOCK} bytes are kept" in text
    assert "membrane plan names" in text


def test_within_the_limit_nothing_is_said_and_growth_is_noticed(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(usage, "MEASURE_EVERY", 0.01)
    with begun(8 * BLOCK, tree) as process:
        write(tree / "small")
        assert not select.select([process.fd], [], [], 0.2)[0]
        write(tree / "large", 20 * BLOCK)
        assert select.select([process.fd], [], [], SECONDS)[0]
        assert "limits.disk ended the command" in process.cause()


def test_its_death_is_said(tree: Path) -> None:
    with begun(1 << 40, tree) as process:
        os.kill(process._pid, 9)
        assert select.select([process.fd], [], [], SECONDS)[0]
        assert "died" in process.cause()


def test_nothing_is_left_of_it(tree: Path) -> None:
    with begun(1 << 40, tree) as process:
        pid = process._pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
