"""What ``workspace.gitedit`` relies on: a cover moves with its file when two names change places outside."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import children
import pytest

from membrane.host import syscalls as sc
from membrane.host import view

CHANGES = 1000
LINES = 200


def _cover(path: str, *, read_only: bool) -> None:
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    view._bind_onto_itself(fd, read_only=read_only)


def _inside(git: str, channel: socket.socket, counts: mmap.mmap) -> None:
    """A mount namespace with what a run binds, two racers in it, and a launcher that freezes on request."""
    uid, gid = os.getuid(), os.getgid()
    sc.unshare(sc.CLONE_NEWUSER | sc.CLONE_NEWNS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        Path(f"/proc/self/{name}").write_text(text)
    sc.mount(None, "/", None, sc.MS_REC | sc.MS_PRIVATE)
    _cover(git, read_only=False)
    kept = view.keep(f"{git}/hooks")
    _cover(f"{git}/hooks", read_only=True)
    _cover(f"{git}/config", read_only=True)
    racers = []
    for number in range(2):
        pid = os.fork()
        if pid == 0:
            sc.set_parent_death_signal(signal.SIGKILL)
            _race(git, counts, number)
        racers.append(pid)
    channel.send(b"ready")
    while channel.recv(16):
        view.freeze(kept, "new")
        channel.send(b"frozen")
    for pid in racers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _race(git: str, counts: mmap.mmap, number: int) -> None:
    os.chdir(git)
    while True:
        counts[number] = 1
        for name in ("config", "hooks/new", f"{git}/config"):
            for flags in (os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
                try:
                    os.open(name, flags)
                except OSError as error:
                    if error.errno not in (errno.EROFS, errno.ENOENT):
                        counts[3] = 1
                else:
                    counts[2] = 1
                    os._exit(1)


def _read(config: str, counts: mmap.mmap) -> None:
    """Somebody outside."""
    while True:
        with open(config, "rb") as file:
            lines = file.read().splitlines(keepends=True)
        counts[4] = 1
        if len(lines) != LINES or len(set(lines)) != 1:
            counts[5] = 1


def _changed(base: Path, change: Callable[[int, int], None]) -> tuple[list[int], bytes]:
    git = str(base / ".git")
    os.makedirs(f"{git}/hooks")
    Path(f"{git}/config").write_bytes(b"version 0\n" * LINES)
    counts = mmap.mmap(-1, 8)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    inside = os.fork()
    if inside == 0:
        try:
            sc.set_parent_death_signal(signal.SIGKILL)
            ours.close()
            _inside(git, theirs, counts)
        finally:
            os._exit(0)
    theirs.close()
    assert ours.recv(16) == b"ready"
    reader = os.fork()
    if reader == 0:
        sc.set_parent_death_signal(signal.SIGKILL)
        _read(f"{git}/config", counts)
    hooks, above = (os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (f"{git}/hooks", git))
    for number in range(1, CHANGES + 1):
        fd = os.open("new", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644, dir_fd=hooks)
        os.write(fd, b"version %d\n" % number * LINES)
        os.close(fd)
        ours.send(b"freeze")
        assert ours.recv(16) == b"frozen"
        change(hooks, above)
    os.kill(reader, signal.SIGKILL)
    ours.close()
    for pid in (reader, inside):
        os.waitpid(pid, 0)
    return list(counts[:6]), Path(f"{git}/config").read_bytes()


def _exchange(hooks: int, git: int) -> None:
    sc.exchange(hooks, "new", git, "config")
    os.unlink("new", dir_fd=hooks)


def _rename(hooks: int, git: int) -> None:
    os.rename("new", "config", src_dir_fd=hooks, dst_dir_fd=git)


@pytest.mark.needs_kernel("user namespaces")
@pytest.mark.parametrize(("change", "opened"), [(_exchange, 0), (_rename, 1)], ids=["exchange", "rename (control)"])
def test_no_moment_to_open_it(tmp_path: Path, change: Callable[[int, int], None], opened: int) -> None:
    """Two racers inside, a reader outside; the plain rename takes the cover off the present file for a moment."""
    counts, content = children.run(lambda: _changed(tmp_path, change), seconds=60)
    assert content == b"version %d\n" % CHANGES * LINES
    assert counts[:2] == [1, 1] and counts[4] == 1  # the racers and the reader were there
    assert counts[2:4] == [opened, 0]  # opened for writing; another errno
    assert opened or not counts[5]  # the reader has seen each state whole


def test_names_that_can_not_change_places(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("1")
    with pytest.raises(FileNotFoundError):
        sc.exchange(sc.AT_FDCWD, str(tmp_path / "one"), sc.AT_FDCWD, str(tmp_path / "two"))
