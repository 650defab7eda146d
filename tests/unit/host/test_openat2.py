"""openat2(2) below a directory: what others rename meanwhile is no reason to fail, and no reason to try for ever."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from membrane.host import syscalls

SCOPES = [syscalls.RESOLVE_BENEATH, syscalls.RESOLVE_IN_ROOT]


def busy(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """The kernel's answer to a ".." while something is renamed, ``times`` times; how often it was asked."""
    real, asked = syscalls._syscall, []

    def answer(*arguments: Any) -> int:
        asked.append(1)
        if len(asked) <= times:
            ctypes.set_errno(errno.EAGAIN)
            return -1
        return int(real(*arguments))

    monkeypatch.setattr(syscalls, "_syscall", answer)
    return asked


@pytest.mark.parametrize("scope", SCOPES)
def test_it_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: int) -> None:
    (tmp_path / "a").mkdir()
    root = os.open(tmp_path, os.O_RDONLY)
    asked = busy(monkeypatch, 3)
    try:
        os.close(syscalls.openat2(root, "a/..", os.O_PATH, 0, scope))
        assert len(asked) == 4
        with pytest.raises(FileNotFoundError):
            syscalls.openat2(root, "none", os.O_PATH, 0, scope)
        assert len(asked) == 5, "another error is one at once"
    finally:
        os.close(root)


@pytest.mark.parametrize("scope", SCOPES)
def test_it_is_not_tried_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: int) -> None:
    root = os.open(tmp_path, os.O_RDONLY)
    asked = busy(monkeypatch, 1 << 20)
    try:
        with pytest.raises(BlockingIOError):
            syscalls.openat2(root, "a/..", os.O_PATH, 0, scope)
    finally:
        os.close(root)
    assert len(asked) == 256


def test_what_may_lead_anywhere_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = os.open(tmp_path, os.O_RDONLY)
    asked = busy(monkeypatch, 1 << 20)
    try:
        with pytest.raises(BlockingIOError):  # such as a lease on a file (fcntl(2)), which would only be asked again
            syscalls.openat2(root, ".", os.O_PATH, 0, syscalls.RESOLVE_NO_SYMLINKS)
    finally:
        os.close(root)
    assert len(asked) == 1


def test_beside_who_renames(tmp_path: Path) -> None:
    """The control: a single try meets it, sooner or later."""
    for name in ("a/b", "x/y", "z"):
        (tmp_path / name).mkdir(parents=True)
    renames = os.fork()
    if not renames:
        try:
            for _ in range(5_000_000):  # it ends with its parent, at the latest here
                if os.getppid() == 1:
                    break
                os.rename(tmp_path / "x/y", tmp_path / "z/y")
                os.rename(tmp_path / "z/y", tmp_path / "x/y")
        finally:
            os._exit(0)
    root = os.open(tmp_path, os.O_RDONLY)
    how = (ctypes.c_uint64 * 3)(os.O_PATH | os.O_CLOEXEC, 0, syscalls.RESOLVE_BENEATH)
    path, met = b"a/b/../../a/b/../..", 0
    try:
        for _ in range(2_000_000):
            got = syscalls._syscall(syscalls._OPENAT2, root, path, ctypes.cast(how, ctypes.c_char_p), 24)
            if got < 0:
                assert ctypes.get_errno() == errno.EAGAIN
                met += 1
                if met == 5:
                    break
            else:
                os.close(got)
            os.close(syscalls.openat2(root, path, os.O_PATH, 0, syscalls.RESOLVE_BENEATH))
    finally:
        os.kill(renames, 9)
        os.waitpid(renames, 0)
        os.close(root)
    assert met == 5
