"""tracer.setids: files without the set-ID bits, made with the rights of the caller's user namespace and no others."""

from __future__ import annotations

import errno
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from membrane.host import syscalls as sc
from membrane.host.notify import DONE
from membrane.tracer import setids

pytestmark = pytest.mark.needs_kernel("user namespaces")


@pytest.fixture
def listener() -> Iterator[int]:
    """One that is none: the file is made, and its descriptor cannot be given."""
    fd = os.open(os.devnull, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture(params=["root of a namespace", "without capabilities"])
def caller(request: pytest.FixtureRequest) -> Iterator[tuple[int, bool]]:
    """A process that waits, and whether it is root with all capabilities of a user namespace of ours."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            uid, gid = os.geteuid(), os.getegid()
            os.umask(0o027)
            sc.unshare(sc.CLONE_NEWUSER)
            for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
                Path("/proc/self", name).write_text(text)
            if request.param != "root of a namespace":
                sc.drop_capabilities()
            sc.set_dumpable(True)
            os.write(writing, b"x")
            signal.pause()
        finally:
            os._exit(1)
    assert os.read(reading, 1) == b"x"
    yield pid, request.param == "root of a namespace"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(reading)
    os.close(writing)


def opened(path: Path) -> int:
    return os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_mode_is_set_without_the_bits(caller: tuple[int, bool], tmp_path: Path) -> None:
    pid, may = caller
    file, directory = tmp_path / "f", tmp_path / "d"
    file.write_text("")
    file.chmod(0o600)
    directory.mkdir(0o700)
    before = set(os.listdir("/proc/self/fd"))
    wanted = DONE if may else errno.EPERM
    assert setids.change(pid, os.getuid(), opened(file), 0o6755) == wanted
    assert mode(file) == (0o755 if may else 0o600)
    assert setids.change(pid, os.getuid(), opened(directory), 0o6775) == wanted
    assert mode(directory) == (0o2775 if may else 0o700), "a directory keeps its set-group-ID bit"
    assert set(os.listdir("/proc/self/fd")) == before
    file.chmod(0o4755)  # the control: this process could
    assert mode(file) == 0o4755


def test_a_caller_of_another_user_gets_nothing(caller: tuple[int, bool], tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("")
    file.chmod(0o600)
    assert setids.change(caller[0], os.getuid() + 1, opened(file), 0o755) == errno.EPERM
    assert setids.change(1 << 22, os.getuid(), opened(file), 0o755) == errno.EPERM  # a process that has ended
    assert mode(file) == 0o600


def test_a_file_is_made_with_the_callers_mask_and_without_the_bits(
    caller: tuple[int, bool], listener: int, tmp_path: Path
) -> None:
    pid, may = caller
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    answer = setids.make(listener, 1, pid, os.getuid(), (opened(tmp_path), b"f"), flags, 0o6777)
    assert answer == (errno.ENOTTY if may else errno.EPERM)
    assert (tmp_path / "f").exists() is may
    if may:
        assert mode(tmp_path / "f") == 0o750


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_what_is_no_regular_file_is_not_opened(
    caller: tuple[int, bool], listener: int, tmp_path: Path, kind: str
) -> None:
    place = tmp_path / "f"
    target = tmp_path / "target"
    target.write_text("kept")
    {"link": lambda: place.symlink_to(target), "fifo": lambda: os.mkfifo(place), "directory": place.mkdir}[kind]()
    flags = os.O_CREAT | os.O_RDWR | os.O_TRUNC
    answer = setids.make(listener, 1, caller[0], os.getuid(), (opened(tmp_path), b"f"), flags, 0o4755)
    wanted = {"link": errno.ELOOP, "fifo": errno.EPERM, "directory": errno.EISDIR}[kind]
    assert answer == (wanted if caller[1] else errno.EPERM)
    assert target.read_text() == "kept"
