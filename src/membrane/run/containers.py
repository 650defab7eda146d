"""Names of the containers that engines inside keep, for the record: read from the engines' storage as they appear.

Theory of operation
-------------------
dockerd writes ``containers/ID/config.v2.json`` for each container before it starts it, podman one
``*-containers/containers.json`` for all (containers/storage).  Both put a new file in place by a rename, which
inotify(7) reports; what was there before is read at the start.  So it does not matter what traces the command, nor how
a container was made, and no engine is asked.

All of it is the sandbox's: a directory may be a link, a file a pipe, large, or no JSON.  Nothing outside of the storage
is opened (openat2(2), no links), a file is read once and to a bound, and after ``MOST_READS`` files no more are.  A
bound that is reached ends it, and the record says so (``lacks``).  The process that a name belongs to is found by its
id (``record.contained``), so a wrong name is wrong within the sandbox.
"""

from __future__ import annotations

import os
import stat
import struct

from ..events import ContainerSeen
from ..host import syscalls as sc
from ..lines import parsed
from ..record.contained import SHORT, is_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

MOST_CONTAINERS = 1024  # that are named, and directories that are watched
MOST_READS = 8192  # files in a run
LARGEST = 1 << 19  # bytes of one
_TURN, _READS = 64, 2  # places, and files that are read, at a time; the loop of the supervisor goes on between
_LONGEST = 256  # characters of a name
_HEADER = struct.Struct("=iIII")  # struct inotify_event
_DOCKER, _PODMAN = "config.v2.json", "containers.json"
_ROOTS = ((0, ""), (1, ""))


class Containers:
    """Reports each container once.

    Args:
        stores: the directories that the engines see as ``/var/lib/docker`` and ``/var/lib/containers``.
        report: takes each event.
    """

    def __init__(self, stores: tuple[str, str], report: Callable[[ContainerSeen], None]) -> None:
        self._report = report
        self._fd = sc.inotify_init()
        self._roots = tuple(os.open(store, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for store in stores)
        self._watched: dict[int, tuple[int, str]] = {}  # watch: store, place in it
        self._waiting = dict.fromkeys(_ROOTS)  # places to be looked at, each once
        self._seen: set[str] = set()
        self._reads = 0
        self.lacks = ""  # why later containers may have no name on the record

    def fileno(self) -> int:
        """Readable when something has changed."""
        return self._fd

    @property
    def waits(self) -> bool:
        """Is there more for ``step`` to do?"""
        return bool(self._waiting)

    def on_change(self) -> None:
        """Take what inotify reports; ``step`` looks at it."""
        try:
            data = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return
        at = 0
        while at + _HEADER.size <= len(data):
            watch, mask, _cookie, length = _HEADER.unpack_from(data, at)
            at += _HEADER.size + length
            name = os.fsdecode(data[at - length : at].rstrip(b"\0"))
            if mask & sc.IN_Q_OVERFLOW:
                self._waiting = dict.fromkeys(_ROOTS)
            elif mask & sc.IN_IGNORED:
                self._watched.pop(watch, None)
            elif watch in self._watched:
                store, place = self._watched[watch]
                self._later(store, os.path.join(place, name))

    def step(self) -> None:
        """Look at some of the places that wait."""
        before = self._reads
        for _ in range(_TURN):
            if not self._waiting or self._reads - before >= _READS:
                break
            store, place = next(iter(self._waiting))
            del self._waiting[store, place]
            names = place.split("/") if place else []
            if store == 0:
                self._docker(names)
            else:
                self._podman(names)
        if self._reads >= MOST_READS:
            self._waiting.clear()
            self.lacks = f"{MOST_READS} files of the engines were read; containers from here on may have no name"

    def _later(self, store: int, place: str) -> None:
        """Look at a place: not now, as the directory of it may come again and again with other names in it."""
        if len(self._waiting) < MOST_READS:
            self._waiting[store, place] = None
        else:
            self.lacks = f"more than {MOST_READS} places of the engines changed at once"

    def close(self) -> None:
        for fd in (self._fd, *self._roots):
            os.close(fd)

    # ------------------------------------------------------------ the two engines

    def _docker(self, names: list[str]) -> None:
        match names:
            case []:
                self._watch(0, "")
                self._docker(["containers"])
            case ["containers"]:
                self._watch(0, "containers")
                for each in self._list(0, "containers"):
                    if is_id(each):
                        self._later(0, f"containers/{each}")
            case ["containers", name] if is_id(name) and name[:SHORT] not in self._seen:
                self._watch(0, f"containers/{name}")
                self._docker(["containers", name, _DOCKER])
            case ["containers", name, "config.v2.json"] if is_id(name):
                data = self._read(0, "/".join(names))
                if isinstance(data, dict) and isinstance(config := data.get("Config"), dict):
                    self._add("docker", name, data.get("Name"), config.get("Image"))
                    self._unwatch(0, f"containers/{name}")

    def _podman(self, names: list[str]) -> None:
        match names:
            case []:
                self._watch(1, "")
                self._podman(["storage"])
            case ["storage"]:
                self._watch(1, "storage")
                for each in self._list(1, "storage"):
                    self._later(1, f"storage/{each}")
            case ["storage", driver] if driver.endswith("-containers"):  # of overlay or vfs
                self._watch(1, f"storage/{driver}")
                self._podman(["storage", driver, _PODMAN])
            case ["storage", driver, "containers.json"]:
                found = self._read(1, "/".join(names))
                for each in found if isinstance(found, list) else ():
                    try:
                        details = parsed(each["metadata"])
                        self._add("podman", each["id"], details["name"], details["image-name"])
                    except (AttributeError, KeyError, TypeError, ValueError):
                        continue  # of another program of that storage, such as buildah

    def _add(self, engine: str, name: Any, shown: Any, image: Any) -> None:
        texts = isinstance(name, str) and isinstance(shown, str) and isinstance(image, str)
        if not texts or not is_id(name) or name[:SHORT] in self._seen:
            return
        if len(self._seen) >= MOST_CONTAINERS:
            self.lacks = f"{MOST_CONTAINERS} containers have a name; more get none"
        else:
            self._seen.add(name[:SHORT])
            self._report(ContainerSeen(name[:SHORT], shown.lstrip("/")[:_LONGEST], image[:_LONGEST], engine))

    # ------------------------------------------------------------ the storage

    def _open(self, store: int, place: str, flags: int) -> int:
        return sc.openat2(self._roots[store], place or ".", flags, 0, sc.RESOLVE_BENEATH | sc.RESOLVE_NO_SYMLINKS)

    def _watch(self, store: int, place: str) -> None:
        if len(self._watched) >= MOST_CONTAINERS:
            self.lacks = f"{MOST_CONTAINERS} directories of the engines are watched, and no more"
            return
        try:
            fd = self._open(store, place, os.O_PATH | os.O_DIRECTORY)
        except OSError:
            return
        try:
            mask = sc.IN_CREATE | sc.IN_MOVED_TO | sc.IN_ONLYDIR
            watch = sc.inotify_add_watch(self._fd, b"/proc/self/fd/%d" % fd, mask)
            self._watched[watch] = store, place
        except OSError:  # the user's share is used up, or it is gone
            pass
        finally:
            os.close(fd)

    def _unwatch(self, store: int, place: str) -> None:
        for watch in [each for each, what in self._watched.items() if what == (store, place)]:
            del self._watched[watch]
            try:
                sc.inotify_rm_watch(self._fd, watch)
            except OSError:
                pass  # gone with its directory

    def _list(self, store: int, place: str) -> Iterator[str]:
        try:
            fd = self._open(store, place, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return
        try:
            with os.scandir(fd) as found:
                for number, entry in enumerate(found):
                    if number >= MOST_CONTAINERS:
                        self.lacks = f"more than {MOST_CONTAINERS} names in a directory of the engines"
                        return
                    yield entry.name
        finally:
            os.close(fd)

    def _read(self, store: int, place: str) -> Any:
        """The JSON value of a file; None where there is none that can be read."""
        if self._reads >= MOST_READS:
            return None
        self._reads += 1
        try:
            fd = self._open(store, place, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            details = os.fstat(fd)
            if not stat.S_ISREG(details.st_mode) or details.st_size > LARGEST:
                return None
            return parsed(os.read(fd, LARGEST))
        except (OSError, ValueError):
            return None
        finally:
            os.close(fd)
