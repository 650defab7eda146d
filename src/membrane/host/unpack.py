"""One layer of an OCI image, unpacked into a directory of ours that overlayfs can take as a lower layer.

Theory of operation
-------------------
A layer is a tar archive, perhaps compressed with gzip or zstd, which a stranger made (OCI image-spec, layer.md).
For zstd there is no decoder in the standard library before Python 3.14: zstd(1), which has to be installed, gets the
bytes through a pipe, and no more than that; of what comes back only as much is taken as all bounds allow.  Only what is
listed here is made of it: directories, regular files, symbolic links, hard links to what the layer has made before, and
whiteouts.  Devices, FIFOs and what aufs kept for itself are left out and counted; any other kind, and any name that
cannot be meant, ends the whole.  Attributes of the archive are not taken, so no ``user.overlay.*`` and no file
capability comes from it; set-id bits neither.  Owners are the caller.

Each parent directory is looked up with openat2(2), RESOLVE_IN_ROOT, below the layer; the last name is never followed.
Bytes, entries, depth, names, headers and the compression ratio have bounds.  A layer is unpacked beside its place and
gets its name, its digest, only when the digest of all its bytes (``rootfs.diff_ids``) is right: whatever ends the work
before leaves nothing that counts.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import stat
import tarfile
import zlib
from contextlib import suppress

from ..errors import HostError
from . import syscalls as sc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

MOST_BYTES = 16 << 30  # of one layer, uncompressed
MOST_ENTRIES = 400_000
MOST_DEPTH = 64
# Bytes of all headers of one entry (pax, GNU long names, maps of sparse files): tarfile keeps them in memory.
MOST_HEADER = 1 << 20
MOST_RATIO = 200  # bytes out for each compressed byte, beyond ``FREE_BYTES``
FREE_BYTES = 16 << 20
_ZSTD = b"\x28\xb5\x2f\xfd"  # RFC 8878, 3.1.1
_SKIPPED = b"\x2a\x4d\x18"  # after a byte from 50 to 5f: a frame that decoders skip (3.1.2), as pzstd writes first
_SILENCE = 60  # seconds in which zstd(1) neither takes nor gives a byte, on a busy machine
_CPU = 3600  # seconds of a processor for one layer
_MEMORY = 1 << 30  # bytes of its address space; of its window 128 MiB, which is the program's own bound
_CHUNK = 1 << 16
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_AUFS = ".wh..wh."  # its own names (.wh..wh.plnk, .wh..wh.aufs): old images hold them, and no engine makes them
_XATTR = "user.overlay.opaque"  # overlayfs.rst, "userxattr"
_LOOKUP = sc.RESOLVE_IN_ROOT | sc.RESOLVE_NO_MAGICLINKS


class BadLayer(HostError):
    """The layer is refused; nothing of it was kept."""

    def __init__(self, cause: str, target: str = "", *fix: str) -> None:
        fix = fix or ("get the image again, from who made it",)
        super().__init__("unpack a layer", cause, target=target, fix=fix)


class _Zstd:
    """A zstd(1) process, which uncompresses what it is fed.

    Args:
        program: its path.
        feed: gives the next compressed bytes; empty at their end.
    """

    def __init__(self, program: str, feed: Callable[[], bytes]) -> None:
        import resource
        import select
        import subprocess

        self._feed, self._left = feed, b""
        words = [program, "--decompress", "--stdout", "--quiet", "--memory=128MB"]
        try:
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/", env={}
            )
        except OSError as error:
            raise BadLayer(f"{program} cannot be started ({error.strerror})", "", "apt install zstd") from None
        for limit, most in (
            (resource.RLIMIT_CPU, _CPU),
            (resource.RLIMIT_AS, _MEMORY),
            (resource.RLIMIT_FSIZE, 0),
            (resource.RLIMIT_CORE, 0),
        ):
            with suppress(ProcessLookupError, ValueError):  # it has ended; the caller's own is lower
                resource.prlimit(self._process.pid, limit, (most, most))
        assert self._process.stdin is not None and self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout
        os.set_blocking(self._to.fileno(), False)
        self._poll = select.poll()
        self._poll.register(self._to, select.POLLOUT)
        self._poll.register(self._from, select.POLLIN)

    def more(self) -> bytes:
        """The next uncompressed bytes; empty at their end.

        Raises:
            BadLayer: it cannot read them, or takes too long.
        """
        while True:
            ready = [fd for fd, _event in self._poll.poll(_SILENCE * 1000)]
            if not ready:
                raise BadLayer(f"zstd neither takes nor gives a byte for {_SILENCE} s")
            if self._from.fileno() in ready:
                if data := os.read(self._from.fileno(), _CHUNK):
                    return data
                if status := self._process.wait(_SILENCE):
                    raise BadLayer(f"zstd cannot read it (status {status})")
                return b""
            self._left = self._left or self._feed()
            try:
                self._left = self._left[os.write(self._to.fileno(), self._left) :] if self._left else self._close()
            except BrokenPipeError:
                self._close()

    def _close(self) -> bytes:
        """Nothing more is fed."""
        self._poll.unregister(self._to)
        self._to.close()
        return b""

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._to.close()
        self._from.close()


class _Source:
    """The uncompressed bytes of a layer, counted and digested; what ``tarfile`` needs of a file that only goes on."""

    def __init__(self, raw: IO[bytes], zstd: str) -> None:
        self._raw = raw
        self._kept = raw.read(_CHUNK)
        self._in, self._out, self._position = len(self._kept), 0, 0
        self._inflate = zlib.decompressobj(31) if self._kept[:2] == b"\x1f\x8b" else None
        self._zstd: _Zstd | None = None
        if self._kept[:4] == _ZSTD or (self._kept[1:4] == _SKIPPED and self._kept[0] & 0xF0 == 0x50):
            if not zstd:
                cause = "it is compressed with zstd, and the program zstd is not installed"
                raise BadLayer(cause, "", "apt install zstd", "skopeo copy --dest-compress-format=gzip")
            self._zstd = _Zstd(zstd, self._feed)
        self._ready = b""
        self.digest = hashlib.sha256()
        self.header = MOST_HEADER  # bytes that may be read before the next entry is known

    def _feed(self) -> bytes:
        data, self._kept = self._kept, b""
        if not data:
            data = self._raw.read(_CHUNK)
            self._in += len(data)
        return data

    def end(self) -> None:
        if self._zstd is not None:
            self._zstd.end()

    def _more(self) -> bytes:
        while True:
            if self._zstd is not None:
                data = self._zstd.more()
                break
            if not self._kept:
                self._kept = self._raw.read(_CHUNK)
                self._in += len(self._kept)
            if self._inflate is None:
                data, self._kept = self._kept, b""
                break
            if self._inflate.eof and self._kept:
                self._inflate = zlib.decompressobj(31)  # RFC 1952, 2.2: a file is a series of members
            ended = not self._kept
            data = self._inflate.decompress(self._kept, _CHUNK)
            self._kept = self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail
            if data:
                break
            if ended:
                if not self._inflate.eof:
                    raise BadLayer("the compressed bytes end too early")
                break
        self._out += len(data)
        if self._out > MOST_BYTES:
            raise BadLayer(f"it has more than {MOST_BYTES} bytes")
        packed = self._inflate is not None or self._zstd is not None
        if packed and self._out > FREE_BYTES + MOST_RATIO * self._in:
            raise BadLayer(f"it grows by more than {MOST_RATIO} times")
        self.digest.update(data)
        return data

    def read(self, size: int) -> bytes:
        if size > self.header:
            raise BadLayer(f"the headers of an entry have more than {MOST_HEADER} bytes")
        self.header -= size
        return self._take(size)

    def _take(self, size: int) -> bytes:
        parts, missing = [], size
        while missing > 0:
            if not self._ready:
                self._ready = self._more()
                if not self._ready:
                    break
            parts.append(self._ready[:missing])
            self._ready = self._ready[missing:]
            missing -= len(parts[-1])
        self._position += size - missing
        return b"".join(parts)

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> None:
        if position < self._position:
            raise BadLayer("an entry lies before the one that went before it")
        while self._position < position and self._take(min(_CHUNK, position - self._position)):
            pass

    def finish(self) -> None:
        """Read what comes after the archive: it is in the digest."""
        while self._take(_CHUNK):
            pass


def unpack(raw: IO[bytes], root: int, zstd: str = "") -> tuple[str, int]:
    """Unpack a layer.

    Args:
        raw: the layer's bytes, plain, gzip or zstd.
        root: a descriptor of an empty directory that nobody else writes.
        zstd: the path of zstd(1), which no command could have written; empty: there is none.

    Returns:
        ``sha256:`` and the digest of the uncompressed bytes; the number of entries that were left out.

    Raises:
        BadLayer: it has what is not taken, or is more than a bound.
    """
    left_out = entries = 0
    source = _Source(raw, zstd)
    try:
        # TarFile takes anything with read, seek and tell.
        with tarfile.TarFile(fileobj=source, errorlevel=2) as archive:  # type: ignore[arg-type]
            while (info := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # it would keep each
                entries += 1
                if entries > MOST_ENTRIES:
                    raise BadLayer(f"it has more than {MOST_ENTRIES} entries")
                source.header = MOST_BYTES  # the content
                left_out += not _entry(archive, info, root)
                source.header = MOST_HEADER
                if sum(len(key) + len(value) for key, value in archive.pax_headers.items()) > MOST_HEADER:
                    raise BadLayer(f"its global headers have more than {MOST_HEADER} bytes")  # they are kept
        source.finish()
    except (tarfile.TarError, zlib.error, EOFError, ValueError, OverflowError, RecursionError) as error:
        raise BadLayer(f"no archive that can be read ({type(error).__name__})") from None
    finally:
        source.end()
    return f"sha256:{source.digest.hexdigest()}", left_out


def keep(raw: IO[bytes], layers: str, diff_id: str, zstd: str = "") -> str:
    """The directory of the layer ``diff_id`` in ``layers``, unpacked once.

    Args:
        layers: a directory of our state.
        diff_id: what the image's configuration says, ``sha256:`` and 64 hexadecimal digits.
        zstd: as of ``unpack``.

    Raises:
        BadLayer: the bytes are others, or are refused.
    """
    algorithm, _, digits = diff_id.partition(":")
    if algorithm != "sha256" or len(digits) != 64 or set(digits) - set("0123456789abcdef"):
        raise BadLayer("its digest is not sha256: and 64 digits", diff_id)
    place = f"{layers}/sha256-{digits}"
    if os.path.isdir(place):
        return place
    work = f"{layers}/.unpack-{secrets.token_hex(8)}"
    os.mkdir(work, 0o700)
    try:
        os.mkdir(f"{work}/root", 0o755)
        root = os.open(f"{work}/root", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fchmod(root, 0o755)
            found, _left_out = unpack(raw, root, zstd)
        finally:
            os.close(root)
        if found != diff_id:
            raise BadLayer(f"its bytes are {found}", diff_id)
        try:
            os.rename(f"{work}/root", place)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            # Another process was first, with the same bytes.
    finally:
        shutil.rmtree(work)
    return place


def _parts(name: str) -> list[str]:
    """The names on the way to an entry; "/" is the layer itself, as engines have it and images of Nix need."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in name:
        raise BadLayer("a name leads out of the layer", repr(name))
    if len(parts) > MOST_DEPTH or any(len(os.fsencode(part)) > 255 for part in parts) or len(os.fsencode(name)) > 4095:
        raise BadLayer("a name is too long or too deep", repr(name[:80]))
    return parts


def _directory(root: int, parts: list[str]) -> int:
    """A descriptor of the directory, which is made where it is missing."""
    flags = os.O_RDONLY | os.O_DIRECTORY
    try:
        return sc.openat2(root, "/".join(parts) or ".", flags, 0, _LOOKUP)
    except (FileNotFoundError, NotADirectoryError):
        pass  # or a whiteout
    except OSError as error:
        raise BadLayer(f"no directory ({os.strerror(error.errno or 0)})", repr("/".join(parts))) from None
    above = _directory(root, parts[:-1])
    try:
        found = _found(above, parts[-1])
        if found is not None and not stat.S_ISCHR(found.st_mode):
            raise BadLayer("what is on the way to a name is no directory of the layer", repr("/".join(parts)))
        _make_directory(above, parts[-1], 0o755)
    finally:
        os.close(above)
    return sc.openat2(root, "/".join(parts), flags, 0, _LOOKUP)


def _make_directory(above: int, name: str, mode: int) -> None:
    """Make it or change its mode; in the place of a whiteout it hides what lower layers have there."""
    found = _found(above, name)
    if found is None or not stat.S_ISDIR(found.st_mode):
        _remove(above, name)
        os.mkdir(name, 0o700, dir_fd=above)
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        os.fchmod(fd, mode | 0o700)
        if found is not None and stat.S_ISCHR(found.st_mode):
            os.setxattr(fd, _XATTR, b"y")
    finally:
        os.close(fd)


def _found(above: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=above, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _remove(above: int, name: str) -> None:
    """Make room for a later entry of the same name; a directory stays, and is refused."""
    try:
        os.unlink(name, dir_fd=above)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise BadLayer(f"two kinds of one name ({os.strerror(error.errno or 0)})", repr(name)) from None


def _entry(archive: tarfile.TarFile, info: tarfile.TarInfo, root: int) -> bool:
    """Make one entry; False: it is left out."""
    parts = _parts(info.name)
    if not parts:
        if not info.isdir():
            raise BadLayer("the root is no directory")
        return True
    if any(part.startswith(_AUFS) for part in parts[:-1]) or (parts[-1].startswith(_AUFS) and parts[-1] != _OPAQUE):
        return False
    if info.ischr() or info.isblk() or info.isfifo():
        return False
    if info.size < 0 or info.sparse is not None or not (info.isdir() or info.isreg() or info.issym() or info.islnk()):
        raise BadLayer("an entry of a kind that is not taken", repr(info.name))
    name = parts[-1]
    above = _directory(root, parts[:-1])
    try:
        if name.startswith(_WHITEOUT):
            return _white_out(above, name)
        if info.isdir():
            _make_directory(above, name, info.mode & 0o1777)
        elif info.islnk():
            _link(root, above, name, info.linkname)
        elif info.issym():
            if not info.linkname or "\0" in info.linkname or len(os.fsencode(info.linkname)) > 4095:
                raise BadLayer("a link to no name", repr(info.name))
            _remove(above, name)
            os.symlink(info.linkname, name, dir_fd=above)
        else:
            _remove(above, name)
            _file(archive, info, above, name)
    finally:
        os.close(above)
    return True


def _white_out(above: int, name: str) -> bool:
    if name == _OPAQUE:
        os.setxattr(above, _XATTR, b"y")
        return True
    hidden = name[len(_WHITEOUT) :]
    if hidden in ("", ".", ".."):
        raise BadLayer("a whiteout of no name", repr(name))
    if _found(above, hidden) is None:  # of the same layer: it is about lower ones only (layer.md, "Whiteouts")
        os.mknod(hidden, stat.S_IFCHR, 0, dir_fd=above)  # no privilege needed since Linux 5.8
    return True


def _link(root: int, above: int, name: str, to: str) -> None:
    parts = _parts(to)
    try:
        directory = sc.openat2(root, "/".join(parts[:-1]) or ".", os.O_RDONLY | os.O_DIRECTORY, 0, _LOOKUP)
    except OSError as error:
        raise BadLayer(f"a hard link to nothing ({os.strerror(error.errno or 0)})", repr(to)) from None
    try:
        found = _found(directory, parts[-1]) if parts else None
        if found is None or not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
            raise BadLayer("a hard link to no file of the layer", repr(to))
        here = _found(above, name)
        if here is not None and os.path.samestat(here, found):
            return  # to itself
        _remove(above, name)
        os.link(parts[-1], name, src_dir_fd=directory, dst_dir_fd=above, follow_symlinks=False)
    finally:
        os.close(directory)


def _file(archive: tarfile.TarFile, info: tarfile.TarInfo, above: int, name: str) -> None:
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o600, dir_fd=above), "wb", buffering=0) as out:
        data = archive.extractfile(info)
        missing = info.size
        while data is not None and missing:
            part = data.read(min(_CHUNK, missing))
            if not part:
                raise BadLayer("it ends within a file", repr(info.name))
            view = memoryview(part)
            while view:
                view = view[out.write(view) :]
            missing -= len(part)
        os.fchmod(out.fileno(), info.mode & 0o777 | 0o400)
