"""Seccomp user notification: what a process asks for, looked at from outside before the kernel does it.

Theory of operation
-------------------
The command process has given itself the filter of ``seccomp.notify_program`` and sent its listener out
(seccomp_unotify(2)).  A process that makes one of those calls sleeps until the reader of the listener has answered.
``Listener`` reads one call at a time and lets it go on, or refuses it with an errno.

Letting go on grants nothing: mounts, permissions and the other filter still decide.  What was read of the caller's
memory may be different when the kernel reads it (a second thread can write there), so a refusal here prevents
mistakes and makes an attack harder, and something else must hold when it is raced.  Everything read is bounded.

``View`` finds the name that a path has inside: below the sandbox's own root, with links resolved as the kernel does
there (openat2(2) RESOLVE_IN_ROOT), never following one of its links out.  The links of proc(5) that are not paths
are followed by what they show.

Rights: the reader lives in the parent of the sandbox's user namespace and owns it, which is every capability over
processes in there (user_namespaces(7)), whatever its own sets and the Yama setting say.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct

from . import ffi as ctypes
from . import syscalls as sc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    Call: TypeAlias = tuple[int, int, int, int, int, int, int, int, int]  # id, thread, number, six arguments

# include/uapi/linux/seccomp.h; the numbers hold the sizes of struct seccomp_notif and seccomp_notif_resp
_RECEIVE, _SEND, _SET_FLAGS = 0xC0502100, 0xC0182101, 0x40082104
_ADD_FD, _ADD_FD_SEND, _ID_VALID = 0x40182103, 2, 0x40082102
DONE, SENT = -1, -3  # in the place of an errno: the call was carried out; its answer was sent as well
_CONTINUE = 1  # SECCOMP_USER_NOTIF_FLAG_CONTINUE
_SYNC_WAKE_UP = 1  # SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP, Linux 6.6: the caller runs on our processor next
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")  # id, pid, flags; struct seccomp_data: nr, arch, instruction pointer, args
_ANSWER = struct.Struct("=QqiI")  # id, value, error, flags

PATH_MAX = 4096
PAGE = 4096
_SHORT = 512  # bytes that are tried first: most strings are shorter
LARGEST_READ = 1 << 20  # bytes of one piece of memory
MOST_LINKS = 40  # namei.h MAXSYMLINKS
ST_RDONLY, ST_NOEXEC = 1, 8  # statvfs(3)


class Listener:
    """The reading side of one filter."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._buffer = bytearray(_NOTIFICATION.size)
        self._zero = bytes(_NOTIFICATION.size)
        try:
            fcntl.ioctl(fd, _SET_FLAGS, _SYNC_WAKE_UP)
        except OSError:
            pass  # slower, not different

    def receive(self) -> Call | None:
        """The next call; None when the caller went away.  Blocks when there is none: poll first."""
        self._buffer[:] = self._zero
        try:
            fcntl.ioctl(self.fd, _RECEIVE, self._buffer, True)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):
                return None
            raise
        number, thread, _flags, call, _arch, _ip, *arguments = _NOTIFICATION.unpack_from(self._buffer)
        return number, thread, call, *arguments

    def answer(self, number: int, error: int) -> bool:
        """End the call with ``error``, or with 0 let the kernel carry it out; ``DONE``: it has been, the call gives 0.

        False when the caller went away.  True also says that what was read by its thread id was its own: as long as
        the call is pending the thread is there (seccomp_unotify(2), SECCOMP_IOCTL_NOTIF_ID_VALID).
        """
        if error == SENT:
            return True
        try:
            fcntl.ioctl(self.fd, _SEND, _ANSWER.pack(number, 0, -max(error, 0), 0 if error else _CONTINUE))
        except OSError as failed:
            if failed.errno != errno.ENOENT:
                raise
            return False
        return True

    def finish(self, number: int, value: int = 0) -> bool:
        """End the call with ``value`` without letting the kernel carry it out; false as ``answer``."""
        try:
            fcntl.ioctl(self.fd, _SEND, _ANSWER.pack(number, value, 0, 0))
        except OSError as failed:
            if failed.errno != errno.ENOENT:
                raise
            return False
        return True

    def inject(self, number: int, fd: int, *, close_on_exec: bool) -> bool:
        """End the call with a copy of our descriptor ``fd``, whose number it returns, in one step
        (SECCOMP_IOCTL_NOTIF_ADDFD with SECCOMP_ADDFD_FLAG_SEND, Linux 5.14); false as ``answer``.

        Raises:
            OSError: EMFILE, the caller may have no more.
        """
        flags = os.O_CLOEXEC if close_on_exec else 0
        try:
            fcntl.ioctl(self.fd, _ADD_FD, struct.pack("=QIIII", number, _ADD_FD_SEND, fd, 0, flags))
        except OSError as failed:
            if failed.errno != errno.ENOENT:
                raise
            return False
        return True

    def give(self, number: int, fd: int, *, close_on_exec: bool) -> None:
        """End the call with our descriptor ``fd``, whose number it returns; ours is closed before it does.

        A copy of ours that is open for writing a moment longer would have execve(2) fail (ETXTBSY).  The call has to
        be one that only a fatal signal ends (``seccomp_listen``): otherwise the descriptor would stay without it.

        Raises:
            OSError: EMFILE, the caller may have no more.
        """
        flags = os.O_CLOEXEC if close_on_exec else 0
        try:
            value = fcntl.ioctl(self.fd, _ADD_FD, bytearray(struct.pack("=QIIII", number, 0, fd, 0, flags)), True)
        except OSError as failed:
            if failed.errno != errno.ENOENT:
                raise
            return
        finally:
            os.close(fd)
        self.finish(number, value)

    def valid(self, number: int) -> bool:
        """Whether the call is still pending, and so its thread id its own (SECCOMP_IOCTL_NOTIF_ID_VALID)."""
        try:
            fcntl.ioctl(self.fd, _ID_VALID, struct.pack("=Q", number))
        except OSError:
            return False
        return True


_readv = ctypes.PyDLL().process_vm_readv
_readv.restype = ctypes.c_ssize_t
_vectors = ctypes.create_string_buffer(b"", 32)  # two struct iovec (readv(2)): the place here, the piece there
_vectors_view = memoryview(_vectors).cast("B")
_pack_vectors = struct.Struct("=4Q").pack_into
_local_reference = ctypes.byref(_vectors)
_remote_reference = ctypes.byref(_vectors, 16)
_view, _address = memoryview(b""), 0


def _make_room(size: int) -> None:
    """The place that memory is read to, which is kept; most reads are smaller than a page."""
    global _view, _address
    buffer = ctypes.create_string_buffer(b"", size)
    _view, _address = memoryview(buffer).cast("B"), ctypes.addressof(buffer)


_make_room(PAGE)


def read_memory(thread: int, address: int, size: int) -> bytes:
    """At most ``size`` bytes of another process, fewer where its memory ends (process_vm_readv(2)).

    Raises:
        OSError: nothing can be read there, or the process may not be looked into.
    """
    if size > len(_view):
        size = min(size, LARGEST_READ)
        if size > len(_view):
            _make_room(size)
    _pack_vectors(_vectors_view, 0, _address, size, address, size)
    got = _readv(thread, _local_reference, 1, _remote_reference, 1, 0)
    if got < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"process_vm_readv: {os.strerror(number)}")
    return _view[:got].tobytes()


def read_text(thread: int, address: int, limit: int = PATH_MAX) -> bytes:
    """A string up to its NUL, or its first ``limit`` bytes.

    Raises:
        OSError: as ``read_memory``.
    """
    out = b""
    most = _SHORT
    while len(out) < limit:
        # A page that is not there must not spoil the one before.
        piece = read_memory(thread, address, min(limit - len(out), PAGE - address % PAGE, most))
        end = piece.find(b"\0")
        if end >= 0:
            return out + piece[:end]
        out += piece
        address += len(piece)
        most = PAGE
    return out


MOST_ARGUMENTS = 4096
LONGEST_ARGUMENTS = 1 << 20  # bytes of all arguments together
_TOGETHER = 2 * PAGE  # strings that are no further apart are read at once


def read_arguments(thread: int, address: int) -> tuple[bytes, ...]:
    """The strings of ``argv``; what is beyond the bounds is not there.

    Raises:
        OSError: as ``read_memory``.
    """
    pointers: list[int] = []
    most = _SHORT
    while address and len(pointers) < MOST_ARGUMENTS:
        chunk = read_memory(thread, address, min(PAGE - address % PAGE, most))
        numbers = struct.unpack(f"={len(chunk) // 8}Q", chunk[: len(chunk) & ~7])
        if not numbers:
            break
        if 0 in numbers:
            pointers += numbers[: numbers.index(0)]
            break
        pointers += numbers
        address += 8 * len(numbers)
        most = PAGE
    del pointers[MOST_ARGUMENTS:]
    whole = _read_strings(thread, pointers) if len(pointers) > 1 else {}
    out: list[bytes] = []
    room = LONGEST_ARGUMENTS
    for pointer in pointers:
        if room <= 0:
            break
        text = whole.get(pointer)
        if text is None or len(text) > room:
            text = read_text(thread, pointer, room)
        out.append(text)
        room -= len(text) + 1
    return tuple(out)


def _read_strings(thread: int, pointers: list[int]) -> dict[int, bytes]:
    """Those of the strings that lie close together and are short, by address: a call for each would take longer."""
    out: dict[int, bytes] = {}
    ordered = sorted(set(pointers))
    begin = 0
    for index, pointer in enumerate(ordered):
        if index + 1 < len(ordered) and ordered[index + 1] - pointer <= _TOGETHER:
            continue
        first = ordered[begin]
        # Not beyond the page of the last one; what is before it and cannot be read is found by ``read_text``.
        size = pointer - first + min(_SHORT, PAGE - pointer % PAGE)
        try:
            block = read_memory(thread, first, size)
        except OSError:
            block = b""
        for each in ordered[begin : index + 1]:
            end = block.find(b"\0", each - first, each - first + PAGE)  # bounded: they may overlap
            if end >= 0:
                out[each] = block[each - first : end]
        begin = index + 1
    return out


def _how(flags: int, resolve: int) -> bytes:
    """struct open_how; ``mode`` is 0."""
    return struct.pack("=3Q", flags, 0, resolve)


_O_PATH = os.O_PATH | os.O_CLOEXEC
_follow = _how(_O_PATH, sc.RESOLVE_IN_ROOT)
_no_follow = _how(_O_PATH | os.O_NOFOLLOW, sc.RESOLVE_IN_ROOT)
# In these no link is followed; the last component may be one where it is not to be.
_plain_follow = _how(_O_PATH, sc.RESOLVE_IN_ROOT | sc.RESOLVE_NO_SYMLINKS)
_plain_no_follow = _how(_O_PATH | os.O_NOFOLLOW, sc.RESOLVE_IN_ROOT | sc.RESOLVE_NO_SYMLINKS)
# Links are left alone: an absolute one would start from our root.
_no_links = _how(_O_PATH | os.O_NOFOLLOW, sc.RESOLVE_NO_SYMLINKS | sc.RESOLVE_NO_MAGICLINKS)


class Place:
    """Where a path leads.

    ``path``: the canonical name inside; the last component is a link's own name when it was not to be followed.
    ``status``: of what is there, or None.  ``above``: of the directory, when nothing is there.  ``readonly`` and
    ``noexec``: of the mount.  ``error``: the errno of the look-up but for a missing last component, 0 for none.
    ``link``: of /proc/PID/fd and its like, through which the last component led; its name inside.
    """

    __slots__ = ("above", "error", "link", "noexec", "path", "readonly", "status")

    def __init__(self, path: bytes, error: int = 0) -> None:
        self.path = path
        self.error = error
        self.link = b""
        self.status: os.stat_result | None = None
        self.above: os.stat_result | None = None
        self.readonly = self.noexec = False


class View:
    """Paths as the processes of one sandbox see them.

    Args:
        root: O_PATH descriptor of its root directory.
        nested: processes may have roots of their own (chroot(2), mount namespaces).
    """

    def __init__(self, root: int, *, nested: bool) -> None:
        self._root = root
        self._nested = nested

    def base(self, thread: int, directory: int) -> bytes:
        """The path of ``AT_FDCWD`` or of a descriptor of the process.

        Raises:
            OSError: there is no such descriptor or process.
        """
        directory &= 0xFFFFFFFF
        if directory == 0xFFFFFF9C:
            return os.readlink(b"/proc/%d/cwd" % thread)
        return os.readlink(b"/proc/%d/fd/%d" % (thread, directory & 0x7FFFFFFF))

    def resolve(self, thread: int, base: bytes, path: bytes, *, follow: bool) -> Place:
        """Look ``path`` up as the process would; never raises for what is inside."""
        if len(path) >= PATH_MAX:
            return Place(path, errno.ENAMETOOLONG)
        whole = path if path[:1] == b"/" else base + b"/" + path
        if not self._nested:
            return self._plain(whole, follow) or self._resolve(self._root, thread, whole, follow)
        try:
            root = os.open(b"/proc/%d/root" % thread, _O_PATH | os.O_DIRECTORY)
        except OSError as error:
            return Place(os.path.normpath(whole), error.errno or 0)
        try:
            return self._resolve(root, thread, whole, follow)
        finally:
            os.close(root)

    def read(self, thread: int, path: bytes, limit: int) -> bytes:
        """The beginning of a regular file of a canonical name; empty: there is none.

        Raises:
            OSError: it cannot be read.
        """
        root = os.open(b"/proc/%d/root" % thread, _O_PATH | os.O_DIRECTORY) if self._nested else os.dup(self._root)
        try:
            place = sc_openat2(root, path, False)
        finally:
            os.close(root)
        if place < 0:
            if -place == errno.ENOENT:
                return b""
            raise OSError(-place, os.strerror(-place))
        try:
            if not stat.S_ISREG(os.fstat(place).st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            fd = os.open(b"/proc/self/fd/%d" % place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            os.close(place)
        try:
            return os.read(fd, limit)
        finally:
            os.close(fd)

    def open(self, thread: int, place: Place) -> int:
        """An O_PATH descriptor of what is at a place that ``resolve`` found, whatever has happened to the name since.

        A link of proc(5) is followed to its target, which may have another name by now or none.

        Raises:
            OSError: it is gone.
        """
        above, last = self.open_above(thread, place)
        try:
            return os.open(last or b".", _O_PATH | (0 if place.link else os.O_NOFOLLOW), dir_fd=above)
        finally:
            os.close(above)

    def open_above(self, thread: int, place: Place) -> tuple[int, bytes]:
        """An O_PATH descriptor of the directory of a place that ``resolve`` found, and the last name of it.

        Raises:
            OSError: it is gone.
        """
        path, root = place.link or place.path, self._root
        if self._nested:
            # The names of a place begin at the root of the mount namespace, also for who has called chroot(2).
            within = os.readlink(b"/proc/%d/root" % thread).rstrip(b"/")
            if within and path.startswith(within + b"/"):
                path = path[len(within) :]
            root = os.open(b"/proc/%d/root" % thread, _O_PATH | os.O_DIRECTORY)
        head, _, last = path.rpartition(b"/")
        try:
            above = sc_openat2(root, head or b"/", False)
        finally:
            if root != self._root:
                os.close(root)
        if above < 0:
            raise OSError(-above, os.strerror(-above))
        return above, last

    def resolve_below(self, thread: int, directory: int, path: bytes) -> Place:
        """A relative path from a directory whose own name is too long to be given; never raises.

        Links in it are not followed.  The name of what is there is given when it is short enough, as after ``..``.
        """
        directory &= 0xFFFFFFFF
        name = b"cwd" if directory == 0xFFFFFF9C else b"fd/%d" % (directory & 0x7FFFFFFF)
        try:
            start = os.open(b"/proc/%d/%s" % (thread, name), _O_PATH | os.O_DIRECTORY)
        except OSError as error:
            return Place(path, error.errno or 0)
        head, _, last = path.rstrip(b"/").rpartition(b"/")
        if last == b"..":
            head, last = path, b"."
        try:
            above = _open(start, head or b".", _no_links)
        finally:
            os.close(start)
        if above < 0:
            return Place(path, -above)
        try:
            at = _open(above, last, _no_links)
            if at < 0 and -at not in (errno.ENOENT, errno.ELOOP):
                os.close(above)
                return Place(path, -at)
            if at < 0:
                return _missing(above, last)
            os.close(above)
            return _described(at)
        except OSError:
            return Place(path)  # it is there, and as deep as the directory

    def _plain(self, whole: bytes, follow: bool) -> Place | None:
        """The common case: the path is the canonical name already, for there is no link in it.  None: it is not."""
        if b"//" in whole or b"/./" in whole or b"/../" in whole or whole.endswith((b"/", b"/.", b"/..")):
            return None
        fd = _open(self._root, whole, _plain_follow if follow else _plain_no_follow)
        if fd >= 0:
            return _described(fd, whole)
        if -fd == errno.ENOENT:
            head, _, name = whole.rpartition(b"/")
            above = _open(self._root, head or b"/", _plain_follow)
            if above >= 0:
                return _missing(above, name, whole)
        return None

    def _resolve(self, root: int, thread: int, whole: bytes, follow: bool) -> Place:
        fd = sc_openat2(root, whole, follow)
        if fd >= 0:
            return _described(fd)
        if -fd == errno.ENOENT:
            head, _, name = whole.rstrip(b"/").rpartition(b"/")
            if name not in (b"", b".", b".."):
                above = sc_openat2(root, head or b"/", True)
                if above >= 0:
                    if follow and _is_link(above, name):
                        os.close(above)
                        return self._walk(root, thread, whole, follow)
                    return _missing(above, name)
        return self._walk(root, thread, whole, follow)

    def _walk(self, root: int, thread: int, whole: bytes, follow: bool) -> Place:
        """Component by component: for the links of /proc, dangling links, and to say where a look-up failed."""
        through: list[bytes] = []
        place = self._step_by_step(root, thread, whole, follow, through)
        place.link = through[-1] if through else b""
        return place

    def _step_by_step(self, root: int, thread: int, whole: bytes, follow: bool, through: list[bytes]) -> Place:
        """``_walk``; ``through`` gets what ``Place.link`` says."""
        at: list[bytes] = []
        todo = [part for part in whole.split(b"/")[::-1] if part not in (b"", b".")]
        links = 0
        while todo:
            part = todo.pop()
            if part == b"..":
                del at[-1:]
                continue
            if at == [b"proc"] and part in (b"self", b"thread-self"):
                inside = _inside_pids(thread)
                if inside is None:
                    break
                if part == b"self":
                    part = b"%d" % inside[0]
                else:
                    todo += [b"%d" % inside[1], b"task"]
                    part = b"%d" % inside[0]
            at.append(part)
            name = b"/" + b"/".join(at)
            fd = sc_openat2(root, name, False)
            if fd < 0:
                if -fd == errno.ENOENT and not todo:
                    above = sc_openat2(root, name.rpartition(b"/")[0] or b"/", True)
                    if above >= 0:
                        return _missing(above, part)
                return Place(b"/".join([name, *(p for p in reversed(todo))]), -fd)
            try:
                link = os.readlink(b"", dir_fd=fd) if stat.S_ISLNK(os.fstat(fd).st_mode) else b""
            except OSError as error:
                return Place(name, error.errno or 0)
            finally:
                os.close(fd)
            if link and (todo or follow):
                links += 1
                if links > MOST_LINKS:
                    return Place(name, errno.ELOOP)
                through[:] = [name] if not todo and at[0] == b"proc" and len(at) > 2 else ()
                if link[:1] == b"/":
                    at = []
                else:
                    at.pop()
                    if not link.count(b"/") and link.endswith(b"]") and b":[" in link:
                        return Place(link)  # pipe:[1], socket:[2]: not a name
                todo += [p for p in link.split(b"/")[::-1] if p not in (b"", b".")]
        fd = sc_openat2(root, b"/" + b"/".join(at), False)
        return _described(fd) if fd >= 0 else Place(b"/" + b"/".join(at), -fd)


def sc_openat2(root: int, path: bytes, follow: bool) -> int:
    """A descriptor (O_PATH), or the errno negated: the common answers are not exceptions here."""
    return _open(root, path, _follow if follow else _no_follow)


def _open(root: int, path: bytes, how: bytes) -> int:
    result: int = sc._syscall(sc._OPENAT2, root, path, how, 24)
    return result if result >= 0 else -ctypes.get_errno()


def _described(fd: int, path: bytes = b"") -> Place:
    try:
        place = Place(path or os.readlink(b"/proc/self/fd/%d" % fd))
        place.status = os.fstat(fd)
        _mount_of(fd, place)
    finally:
        os.close(fd)
    return place


def _missing(above: int, name: bytes, path: bytes = b"") -> Place:
    try:
        if not path:
            directory = os.readlink(b"/proc/self/fd/%d" % above)
            path = (b"" if directory == b"/" else directory) + b"/" + name
        place = Place(path)
        place.above = os.fstat(above)
        if not stat.S_ISDIR(place.above.st_mode):
            place.error = errno.ENOTDIR
        _mount_of(above, place)
    finally:
        os.close(above)
    return place


def _mount_of(fd: int, place: Place) -> None:
    flags = os.fstatvfs(fd).f_flag
    place.readonly, place.noexec = bool(flags & ST_RDONLY), bool(flags & ST_NOEXEC)


def _is_link(directory: int, name: bytes) -> bool:
    try:
        os.readlink(name, dir_fd=directory)
    except OSError:
        return False
    return True


def _inside_pids(thread: int) -> tuple[int, int] | None:
    """(process, thread) as numbered in the sandbox."""
    status = process_status(thread)
    if status is None:
        return None
    return status[1], status[2]


def _process_file(process: int, name: bytes) -> bytes:
    """The beginning of /proc/PID/NAME; empty: the process is gone."""
    try:
        fd = os.open(b"/proc/%d/%s" % (process, name), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 4096)
    except OSError:
        return b""
    finally:
        os.close(fd)


def process_status(thread: int) -> tuple[int, int, int, int] | None:
    """(process, process inside, thread inside, parent) of a thread of the sandbox, from /proc/PID/status; None: gone.

    "Inside" is the pid namespace of the sandbox, the first below ours; the others are our numbers.
    """
    data = _process_file(thread, b"status")
    try:
        at = data.index(b"\nTgid:\t")  # the name before it is escaped: it holds no newline
        process, parent, inside, thread_inside = (
            _field(data, name, at) for name in (b"\nTgid:\t", b"\nPPid:\t", b"\nNStgid:\t", b"\nNSpid:\t")
        )
        return int(process[0]), int(inside[1]), int(thread_inside[1]), int(parent[0])
    except (IndexError, ValueError):
        return None


def _field(data: bytes, name: bytes, at: int) -> list[bytes]:
    begin = data.index(name, at) + len(name)
    return data[begin : data.index(b"\n", begin)].split()


_TGID_IN_NAMESPACE = 0x8004B709  # NS_GET_TGID_IN_PIDNS, Linux 6.12


class Numbers:
    """What the processes of one sandbox are called there: in the first pid namespace below ours."""

    def __init__(self) -> None:
        self._namespace = -1  # descriptor; -2: this kernel cannot be asked

    def of(self, process: int, pidfd: int) -> int | None:
        """The number inside of a process with our number and a descriptor; None: it is gone."""
        if self._namespace >= 0:
            try:
                return fcntl.ioctl(self._namespace, _TGID_IN_NAMESPACE, process)
            except OSError:
                return None
        data = _process_file(os.getpid(), b"fdinfo/%d" % pidfd)  # proc(5), a tenth of the work of /proc/PID/status
        try:
            numbers = _field(data, b"\nNSpid:\t", 0)
            inside = int(numbers[1])
        except (IndexError, ValueError):
            return None
        if self._namespace == -1 and len(numbers) == 2:
            self._find(process, inside)
        return inside

    def _find(self, process: int, inside: int) -> None:
        """``process`` is in no namespace further below."""
        try:
            self._namespace = os.open(b"/proc/%d/ns/pid" % process, os.O_RDONLY | os.O_CLOEXEC)
            known = fcntl.ioctl(self._namespace, _TGID_IN_NAMESPACE, process) == inside
        except OSError:
            known = False
        if not known:
            self.close()
            self._namespace = -2

    def close(self) -> None:
        if self._namespace >= 0:
            os.close(self._namespace)
            self._namespace = -1


def start_time(process: int) -> tuple[str, int, int] | None:
    """(name, start in clock ticks since boot, parent) from /proc/PID/stat; None: gone."""
    head, _, tail = _process_file(process, b"stat").rpartition(b")")
    try:
        fields = tail.split(None, 20)
        return os.fsdecode(head.partition(b"(")[2]), int(fields[19]), int(fields[1])
    except (IndexError, ValueError):
        return None


def program_of(process: int) -> str:
    """What /proc/PID/exe shows, as the process sees it; empty when it is not known."""
    try:
        return os.fsdecode(os.readlink(b"/proc/%d/exe" % process))
    except OSError:
        return ""


_PIDFD_GET_INFO = 0xC040FF0B  # _IOWR(0xFF, 11, struct pidfd_info), its first size of 64 bytes
_PIDFD_INFO_EXIT = 1 << 3


def reports_exits() -> bool:
    """Whether the kernel knows PIDFD_GET_INFO (Linux 6.13; the exit status since 6.15)."""
    pidfd = os.pidfd_open(os.getpid())
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, bytearray(64), True)
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return True


def exit_status(pidfd: int) -> int | None:
    """The wait status of a process that was reaped; None: not known (before Linux 6.15), or not yet."""
    buffer = bytearray(64)
    struct.pack_into("=Q", buffer, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, buffer, True)
    except OSError:
        return None
    mask = struct.unpack_from("=Q", buffer, 0)[0]
    return struct.unpack_from("=i", buffer, 60)[0] if mask & _PIDFD_INFO_EXIT else None
