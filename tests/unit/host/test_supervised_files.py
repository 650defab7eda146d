"""host.supervised_files: metadata of files that the command may write is changed for it, and of no others.

The caller is a child whose memory is what the test says; descriptors and directories are its real ones.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from membrane.host.supervised_files import LARGEST_VALUE, LONGEST_NAME, PATH_MAX, Metadata

Call = tuple[int, int, int, int, int, int, int, int, int]  # as ``host.notify``
AT_FDCWD, NOFOLLOW, EMPTY_PATH = 0xFFFFFF9C, 0x100, 0x1000
PAGE = 4096


class Caller:
    """A process that stands in ``work`` with a file open, and the calls that it makes."""

    def __init__(self, tmp_path: Path) -> None:
        self.work, self.outside = tmp_path / "work", tmp_path / "outside"
        for directory in (self.work, self.outside):
            directory.mkdir()
            (directory / "file").write_text("x")
            (directory / "file").chmod(0o600)
        (self.work / "out").symlink_to(self.outside / "file")
        self.fd = os.open(self.work / "file", os.O_RDONLY)
        self.outer = os.open(self.outside / "file", os.O_RDWR)
        self.pipe = os.pipe()
        ready, begun = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.chdir(self.work)
                os.write(begun, b"x")
                signal.pause()
            finally:
                os._exit(1)
        os.read(ready, 1)
        for fd in (ready, begun):
            os.close(fd)
        self.memory: dict[int, bytes] = {}
        self.files = Metadata(lambda path, _status: path.startswith(f"{self.work}/"), self._read)

    def _read(self, call: Call, address: int, size: int) -> bytes:
        """As of a process whose memory is the pages of ``memory``."""
        page = self.memory.get(address - address % PAGE)
        if page is None:
            raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
        assert address % PAGE + size <= PAGE or size > PAGE, "a read across a page that may not be there"
        return page[address % PAGE :][:size]

    def put(self, data: bytes, at: int = PAGE) -> int:
        for start in range(0, len(data) or 1, PAGE):
            self.memory[at + start] = data[start : start + PAGE].ljust(PAGE, b"\0")
        return at

    def call(self, *arguments: int) -> Call:
        return (1, self.pid, 0, *arguments, *([0] * (6 - len(arguments))))

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        for fd in (self.fd, self.outer, *self.pipe):
            os.close(fd)


@pytest.fixture
def caller(tmp_path: Path) -> Iterator[Caller]:
    before = set(os.listdir("/proc/self/fd"))
    made = Caller(tmp_path)
    yield made
    made.close()
    assert set(os.listdir("/proc/self/fd")) == before, "a descriptor was left open"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("how", ["relative", "absolute", "by a directory", "by descriptor", "no path", "/proc/self/fd"])
def test_a_mode_below_what_may_be_written(caller: Caller, how: str) -> None:
    files, put = caller.files, caller.put
    calls = {
        "relative": lambda: files.on_chmod(caller.call(put(b"file"), 0o640)),
        "absolute": lambda: files.on_chmod(caller.call(put(os.fsencode(caller.work / "file")), 0o640)),
        "by a directory": lambda: files.on_fchmodat(caller.call(AT_FDCWD, put(b"./file"), 0o640)),
        "by descriptor": lambda: files.on_fchmod(caller.call(caller.fd, 0o640)),
        "no path": lambda: files.on_fchownat(caller.call(caller.fd, put(b""), 2**32 - 1, 2**32 - 1, EMPTY_PATH)),
        "/proc/self/fd": lambda: files.on_chmod(caller.call(put(b"/proc/self/fd/%d" % caller.fd), 0o640)),
    }
    assert calls[how]() == 0
    assert mode(caller.work / "file") == (0o600 if how == "no path" else 0o640)


def test_set_id_bits_are_never_set(caller: Caller) -> None:
    caller.files.on_fchmod(caller.call(caller.fd, 0o7755))
    assert mode(caller.work / "file") == 0o1755


def refused(action: object) -> str:
    with pytest.raises(OSError) as raised:
        action()  # type: ignore[operator]
    return errno.errorcode[raised.value.errno or 0]


def test_what_lies_outside_is_refused_however_it_is_named(caller: Caller) -> None:
    files, put, call = caller.files, caller.put, caller.call
    names = (os.fsencode(caller.outside / "file"), b"../outside/file", b"out", b"/proc/self/fd/%d" % caller.outer)
    for name in names:
        assert refused(lambda name=name: files.on_chmod(call(put(name), 0o777))) == "EACCES"
        assert refused(lambda name=name: files.on_chown(call(put(name), 0, 0))) == "EACCES"
        assert refused(lambda name=name: files.on_utimensat(call(AT_FDCWD, put(name), 0, 0))) == "EACCES"
    assert refused(lambda: files.on_fchmod(call(caller.outer, 0o777))) == "EACCES"
    assert (
        refused(lambda: files.on_fsetxattr(call(caller.outer, put(b"user.a"), put(b"v", 3 * PAGE), 1, 0))) == "EACCES"
    )
    assert mode(caller.outside / "file") == 0o600
    os.fchmod(caller.outer, 0o777)  # the control: this process could
    assert mode(caller.outside / "file") == 0o777


def test_a_link_itself_is_in_the_workspace_wherever_it_leads(caller: Caller) -> None:
    same = 2**32 - 1
    assert caller.files.on_lchown(caller.call(caller.put(b"out"), same, same)) == 0
    assert caller.files.on_fchownat(caller.call(AT_FDCWD, caller.put(b"out"), same, same, NOFOLLOW)) == 0
    assert refused(lambda: caller.files.on_chown(caller.call(caller.put(b"out"), same, same))) == "EACCES"


def test_a_descriptor_of_another_process_is_no_file_of_the_view(caller: Caller) -> None:
    """The keeper may look into /proc/PID/fd, and the command may not."""
    other = b"/proc/%d/fd/%d" % (os.getpid(), caller.pipe[1])
    for name in (other, b"/proc/%d/cwd" % os.getpid(), b"/proc/%d/root/tmp" % os.getpid()):
        assert refused(lambda name=name: caller.files.on_chmod(caller.call(caller.put(name), 0o777))) == "ELOOP"
    assert caller.files.on_fchmod(caller.call(caller.pipe[1], 0o600)) == 0  # the control: its own pipe


def test_times_are_those_that_were_asked_for(caller: Caller) -> None:
    times = struct.pack("=qqqq", 11, 0, 22, 500)
    assert caller.files.on_utimensat(caller.call(AT_FDCWD, caller.put(b"file"), caller.put(times, 3 * PAGE), 0)) == 0
    found = (caller.work / "file").stat()
    assert (found.st_atime_ns, found.st_mtime_ns) == (11_000_000_000, 22_000_000_500)
    assert caller.files.on_utimensat(caller.call(caller.fd, 0, 0, 0)) == 0
    assert (caller.work / "file").stat().st_mtime_ns > 10**18


def test_calls_that_fail_half_way_leave_no_descriptor_open(caller: Caller) -> None:
    """The fixture counts them: each call would have held one of the keeper's."""
    put, call = caller.put, caller.call
    with pytest.raises(OSError, match="Bad address"):
        caller.files.on_utimensat(call(AT_FDCWD, put(b"file"), 99 * PAGE, 0))
    with pytest.raises(OSError, match="Bad address"):
        caller.files.on_setxattr(call(put(b"file"), 99 * PAGE, put(b"v", 3 * PAGE), 1, 0))
    top = place = os.open(caller.work, os.O_RDONLY)
    name = "d" * 250
    for _ in range(20):  # deeper than the kernel can say (PATH_MAX)
        os.mkdir(name, dir_fd=place)
        inner = os.open(name, os.O_RDONLY, dir_fd=place)
        if place != top:
            os.close(place)
        place = inner
    try:
        os.close(os.open("file", os.O_CREAT, 0o600, dir_fd=place))
        beside = Metadata(lambda _path, _status: True, caller._read)
        own = (1, os.getpid(), 0, place, put(b"file"), 0o640, 0, 0, 0)
        assert refused(lambda: beside.on_fchmodat(own)) == "ENAMETOOLONG"
    finally:
        os.close(place)
        os.close(top)


def test_attributes_come_and_go_and_are_bounded(caller: Caller) -> None:
    files, call, put = caller.files, caller.call, caller.put
    name, value = put(b"user.a"), put(b"value", 3 * PAGE)
    assert files.on_fsetxattr(call(caller.fd, name, value, 5, 0)) == 0
    assert os.getxattr(caller.work / "file", "user.a") == b"value"
    assert refused(lambda: files.on_fsetxattr(call(caller.fd, name, value, 5, os.XATTR_CREATE))) == "EEXIST"
    assert files.on_fremovexattr(call(caller.fd, name)) == 0
    assert os.listxattr(caller.work / "file") == []
    assert refused(lambda: files.on_fsetxattr(call(caller.fd, name, value, LARGEST_VALUE + 1, 0))) == "E2BIG"
    put(b"n" * LONGEST_NAME)
    assert refused(lambda: files.on_fremovexattr(call(caller.fd, name))) == "ENAMETOOLONG"


def test_a_name_is_read_no_further_than_its_end_and_its_bound(caller: Caller) -> None:
    files, call = caller.files, caller.call
    caller.memory[PAGE] = b"\0".rjust(PAGE, b"x")[: PAGE - 5] + b"file\0"
    assert files.on_chmod(call(2 * PAGE - 5, 0o640)) == 0, "the next page is not there"
    assert refused(lambda: files.on_chmod(call(caller.put(b"x" * (PATH_MAX + 1), 5 * PAGE), 0o640))) == "ENAMETOOLONG"
    assert refused(lambda: files.on_chmod(call(9 * PAGE, 0o640))) == "EFAULT"
    assert refused(lambda: files.on_chmod(call(caller.put(b""), 0o640))) == "ENOENT"
    assert refused(lambda: files.on_fchmod(call(9999, 0o640))) == "ENOENT"
