"""host.writing: all bytes or an error, at the kernel's own short write (RLIMIT_FSIZE, setrlimit(2))."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from membrane.host.writing import write_all


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """A write across ``size`` is short and the next one EFBIG (Python ignores SIGXFSZ)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


def test_the_control_a_single_call_is_short_without_an_error(fd: int) -> None:
    with largest_file(10):
        assert os.pwrite(fd, b"a" * 100, 0) == 10
        assert os.write(fd, b"a" * 100) == 10


def test_a_short_write_becomes_the_error_of_the_next(fd: int) -> None:
    for at in (-1, 0, 4):
        os.ftruncate(fd, 0)
        os.lseek(fd, 0, os.SEEK_SET)
        with largest_file(10), pytest.raises(OSError) as raised:
            write_all(fd, b"a" * 100, at)
        assert raised.value.errno == errno.EFBIG
        assert os.fstat(fd).st_size == 10


def test_what_is_written_in_pieces_is_whole(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(256))
    write, pwrite = os.write, os.pwrite
    monkeypatch.setattr(os, "write", lambda fd, rest: write(fd, rest[:7]))
    monkeypatch.setattr(os, "pwrite", lambda fd, rest, at: pwrite(fd, rest[:7], at))
    write_all(fd, data)
    write_all(fd, data, 1000)
    assert os.pread(fd, 5000, 0) == data + bytes(1000 - 256) + data
    write_all(fd, b"")


def test_a_kernel_that_writes_nothing_is_not_asked_for_ever(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", lambda _fd, _rest: 0)
    with pytest.raises(OSError) as raised:
        write_all(fd, b"a")
    assert raised.value.errno == errno.EIO
