"""Hidden files outside of the writable trees, held while the command runs.

Theory of operation
-------------------
The kernel drops a mount when a process replaces the file below it (an editor's atomic save, a token that is renewed).
The guard mends that in writable trees; here single files are held anywhere: every directory on the way to one is
watched by inotify(7), and what appears at one of the names is masked, within milliseconds.  That is also done for a
file that was shown with placeholders: what is in the new one is not known.
"""

from __future__ import annotations

import errno
import os
import struct

from ..host import syscalls
from ..plan.model import Mask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ..plan.model import MountOp

_IN_CREATE, _IN_MOVED_TO, _IN_ONLYDIR = 0x100, 0x80, 0x1000000  # inotify(7)
_MOST_WATCHED = 512  # directories
_READS = 16  # of 64 KiB, in one turn
_EVENT = struct.Struct("iIII")


class Held:
    """Watches until ``close``.

    Args:
        paths: without links; what is not there yet is masked when it appears.
        mask: mounts operations inside the sandbox.

    Attributes:
        unwatched: directory -> why what replaces a file in it is not masked.

    Raises:
        OSError: this user has no inotify instance left.
    """

    def __init__(self, paths: Iterable[str], mask: Callable[[Sequence[MountOp]], None]) -> None:
        self._mask = mask
        self._fd = syscalls.inotify_init()
        self._names: dict[int, dict[bytes, list[str]]] = {}
        self.unwatched: dict[str, str] = {}
        for path in paths:
            self._watch(path)

    def _watch(self, path: str) -> None:
        """Watch every directory on the way: any of them may be replaced."""
        parts = path.split("/")[1:]
        for count in range(len(parts)):
            directory = "/" + "/".join(parts[:count])
            if len(self._names) >= _MOST_WATCHED:
                self.unwatched[directory] = f"{_MOST_WATCHED} directories are watched already"
                return
            try:
                mask = _IN_CREATE | _IN_MOVED_TO | _IN_ONLYDIR
                watch = syscalls.inotify_add_watch(self._fd, os.fsencode(directory), mask)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ENOTDIR):
                    return  # it is not there: the directory above reports when it appears
                # A directory that this user may search but not list (mode 0711, as many a /home) has watchable ones
                # below.  What is in it is replaced by programs of this user only if they may write there.
                if error.errno != errno.EACCES or os.access(directory, os.W_OK | os.X_OK):
                    self.unwatched[directory] = os.strerror(error.errno or errno.EIO)
                continue
            names = self._names.setdefault(watch, {}).setdefault(os.fsencode(parts[count]), [])
            if path not in names:
                names.append(path)

    def fileno(self) -> int:
        return self._fd

    def on_change(self) -> None:
        """Mask what was replaced."""
        appeared: dict[str, None] = {}
        for _ in range(_READS):  # the rest is reported again: who makes more all the time must not keep us here
            try:
                data = os.read(self._fd, 1 << 16)
            except BlockingIOError:
                break
            at = 0
            while at < len(data):
                watch, _mask, _cookie, length = _EVENT.unpack_from(data, at)
                name = data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0")
                at += _EVENT.size + length
                appeared.update(dict.fromkeys(self._names.get(watch, {}).get(name, ())))
        for path in appeared:
            self._watch(path)
        ops: list[MountOp] = [Mask(path, os.path.isdir(path)) for path in appeared if os.path.lexists(path)]
        if ops:
            self._mask(ops)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
