"""A copy of a layer that is being written: everything that overlayfs and the command have put there."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from copies import tree

from membrane.changes import duplicate as module
from membrane.changes.duplicate import duplicate
from membrane.changes.tree import TooMuch

PIECE = 1 << 16


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    made = tmp_path / "layer"
    (made / "d" / "deep").mkdir(parents=True)
    (made / "d" / "deep" / "file").write_text("text")
    (made / "file").write_bytes(os.urandom(3 * PIECE))
    os.link(made / "file", made / "d" / "second")
    (made / "link").symlink_to("/etc/passwd")
    (made / "dangling").symlink_to("nowhere")
    os.mknod(made / "gone", stat.S_IFCHR, os.makedev(0, 0))
    os.mkfifo(made / "fifo", 0o604)
    (made / os.fsdecode(b"\xff\n\x1b")).write_text("odd")
    os.setxattr(made / "d", "user.overlay.opaque", b"y")
    os.setxattr(made / "file", "user.mine", b"value")
    with (made / "sparse").open("wb") as file:
        file.truncate(1 << 26)
        file.seek(1 << 25)
        file.write(b"middle")
    (made / "set-id").write_text("x")
    (made / "set-id").chmod(0o4755)
    for path in (made / "d" / "deep" / "file", made / "d" / "deep", made / "d"):
        os.utime(path, ns=(10**18, 10**18 + 7))
    (made / "closed").mkdir()
    (made / "closed" / "shut").write_text("s")
    (made / "closed" / "shut").chmod(0)
    (made / "closed").chmod(0)
    return made


def _open_up(path: Path) -> None:
    (path / "closed").chmod(0o700)
    (path / "closed" / "shut").chmod(0o600)


@pytest.mark.parametrize("shares", ["as the file system does", "never"])
def test_the_copy_is_the_same(layer: Path, tmp_path: Path, shares: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if shares == "never":
        real = fcntl.ioctl

        def refuse(fd: int, request: int, argument: Any = 0) -> Any:
            if request == module.FICLONE:
                raise OSError(errno.EOPNOTSUPP, "refused by the test")
            return real(fd, request, argument)

        monkeypatch.setattr(fcntl, "ioctl", refuse)
    copy = tmp_path / "copy"
    copy.mkdir(0o700)
    assert duplicate(str(layer), str(copy)) == 14
    for each in (layer, copy):
        assert stat.S_IMODE((each / "closed").stat().st_mode) == 0
        _open_up(each)
        assert (each / "closed" / "shut").read_text() == "s"
    assert tree(copy) == tree(layer)
    assert (copy / "file").stat().st_ino == (copy / "d" / "second").stat().st_ino != (layer / "file").stat().st_ino
    assert (copy / "sparse").stat().st_blocks * 512 < 1 << 20
    assert os.getxattr(copy / "d", "user.overlay.opaque") == b"y"
    assert os.getxattr(copy / "file", "user.mine") == b"value"
    gone = (copy / "gone").lstat()
    assert stat.S_ISCHR(gone.st_mode) and gone.st_rdev == 0
    assert stat.S_IMODE((copy / "fifo").stat().st_mode) == 0o604
    assert stat.S_IMODE((copy / "set-id").stat().st_mode) == 0o4755
    for name in ("d", "d/deep", "d/deep/file"):
        assert (copy / name).stat().st_mtime_ns == 10**18 + 7


def test_no_link_is_followed_and_the_work_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside, layer = tmp_path / "outside", tmp_path / "layer"
    outside.mkdir()
    (outside / "secret").write_text("s")
    layer.mkdir()
    (layer / "link").symlink_to(outside)
    copy = tmp_path / "copy"
    copy.mkdir()
    duplicate(str(layer), str(copy))
    assert (copy / "link").is_symlink() and os.listdir(copy) == ["link"]
    monkeypatch.setattr(module, "MOST_CHANGES", 3)
    for number in range(3):
        (layer / str(number)).touch()
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(TooMuch):
        duplicate(str(layer), str(other))


def test_what_a_command_nested_deeper_than_is_looked_at_is_refused(tmp_path: Path) -> None:
    layer, copy = tmp_path / "layer", tmp_path / "copy"
    layer.mkdir()
    copy.mkdir()
    here = os.open(layer, os.O_RDONLY)
    for _ in range(module.DEEPEST + 5):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    with pytest.raises(TooMuch):
        duplicate(str(layer), str(copy))
