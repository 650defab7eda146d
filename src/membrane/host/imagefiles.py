"""An image as a directory in the OCI image layout or as an archive: its layers, judged by digest, and what it says of
its use.

Theory of operation
-------------------
``index.json`` names a manifest, the manifest a configuration and layers, each by digest and size (OCI image-spec,
image-layout.md, manifest.md, config.md).  An archive is such a directory in a tar file (``docker save`` since 25.0,
``oci-archive:`` of skopeo), or what ``docker save`` made before (moby, image/spec/v1.2.md): ``manifest.json`` with the
names of a configuration and of layers.

The files may be anybody's: each document is read once, within a bound, and is taken only when its bytes have the digest
that named it (of the old form the configuration has no other name than that of its bytes); of a layer that is asked
while it is unpacked, by ``rootfs.diff_ids`` of the configuration (``unpack.keep``).  Files are opened without following
a link; of an archive nothing is written anywhere: its entries are read where they are.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import tarfile

from ..policy import grammar
from ..value import Value
from . import syscalls as sc
from .imagetree import BadImage
from .unpack import MOST_BYTES, MOST_HEADER, keep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO, Any, Protocol, TypeAlias

    Step: TypeAlias = Callable[[int, int], None]

    class Place(Protocol):
        """Where the files of an image are."""

        def open(self, name: str) -> IO[bytes]:
            """A regular file of it, from its beginning.

            Raises:
                OSError, ValueError: there is none.
            """


# Bytes of a manifest or configuration, as registries have it (distribution-spec, "4 megabytes").
MOST_DOCUMENT = 4 << 20
MOST_LAYERS = 120  # overlayfs takes 500; container engines 127
MOST_MEMBERS = 10_000  # of an archive
_LONGEST_MEMBER = 4096  # characters of a name in it, and of what it links to
MOST_WORDS = 1000  # of an entry point, of a command, of variables
_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_MOST_SAID = 20  # platforms


class Image(Value):
    """An image whose layers are unpacked."""

    digest: str  # of its configuration
    layers: tuple[str, ...]  # names in the directory of layers, the lowest first
    environ: tuple[str, ...] = ()  # NAME=VALUE
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    user: str = ""
    directory: str = ""
    volumes: tuple[str, ...] = ()  # absolute paths
    stop: str = ""  # the signal that ends it
    platform: str = ""


class _Unpacking(Value):
    """Where layers go, and how."""

    layers: str
    step: Step
    zstd: str


def opened(path: str, flags: int) -> int:
    """Open an absolute path without following a link: what it was resolved to is what is opened.

    Raises:
        OSError: as of openat2(2); ELOOP where a link is on the way.
    """
    return sc.openat2(-100, path, flags | os.O_CLOEXEC, 0, sc.RESOLVE_NO_SYMLINKS)  # AT_FDCWD


def cause_of(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "a symbolic link is on the way, which commands can make; name its target"
    return os.strerror(error.errno or 0)


def _silent(_number: int, _count: int) -> None:
    return None


def read(path: str, layers: str, platform: str = "", step: Step = _silent, zstd: str = "") -> Image:
    """Read the image in the OCI image layout ``path`` and unpack what of it is not in ``layers`` yet.

    Args:
        platform: of the image (``grammar.parse_platform``); empty: this machine's.
        step: is called before each layer, with its number and how many there are.
        zstd: as of ``unpack.unpack``.

    Raises:
        BadImage: it is none, or its bytes are others than it says.
        BadLayer: of one of its layers.
    """
    try:
        root = opened(path, os.O_PATH | os.O_DIRECTORY)
    except OSError as error:
        raise BadImage(cause_of(error), path, f"skopeo copy docker://NAME oci:{path}") from None
    try:
        return _judged(_Directory(root), path, platform or machine(), _Unpacking(layers, step, zstd))
    finally:
        os.close(root)


def read_archive(path: str, layers: str, platform: str = "", step: Step = _silent, zstd: str = "") -> Image:
    """The same for an archive (``docker save``, ``oci-archive:``), as ``read`` otherwise."""
    try:
        fd = opened(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO would wait
    except OSError as error:
        raise BadImage(cause_of(error), path, "docker save NAME > FILE") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise BadImage("it is no file", path, "docker save NAME > FILE")
    with os.fdopen(fd, "rb") as file:
        try:
            place = _Archive(file)
        except (tarfile.TarError, ValueError, EOFError, OverflowError, RecursionError):
            raise BadImage(
                "it is no tar archive of an image (a compressed one is to be unpacked first)", path
            ) from None
        return _judged(place, path, platform or machine(), _Unpacking(layers, step, zstd))


class _Directory:
    def __init__(self, root: int) -> None:
        self._root = root

    def open(self, name: str) -> IO[bytes]:
        flags = os.O_RDONLY | os.O_NONBLOCK  # a FIFO would wait
        fd = sc.openat2(self._root, name, flags, 0, sc.RESOLVE_BENEATH | sc.RESOLVE_NO_SYMLINKS)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise ValueError
        return os.fdopen(fd, "rb")


class _Bounded:
    """A file of which ``tarfile`` reads at most ``left`` bytes before the next entry is known."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.left = file, MOST_HEADER
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        if size > self.left:
            raise ValueError
        self.left -= size
        return self._file.read(size)


class _Archive:
    def __init__(self, file: IO[bytes]) -> None:
        bounded = _Bounded(file)
        self._archive = tarfile.TarFile(fileobj=bounded, errorlevel=2)  # type: ignore[arg-type]  # all that it needs
        self._members: dict[str, tarfile.TarInfo] = {}
        while (info := self._archive.next()) is not None:
            self._archive.members = []  # type: ignore[attr-defined]  # it would keep each
            self._archive.pax_headers = {}
            if len(self._members) >= MOST_MEMBERS or len(info.name) + len(info.linkname) > _LONGEST_MEMBER:
                raise ValueError
            info.pax_headers = {}
            self._members[info.name.removeprefix("./")] = info
            bounded.left = MOST_HEADER
        bounded.left = MOST_MEMBERS * MOST_BYTES  # what they hold

    def open(self, name: str) -> IO[bytes]:
        info = self._members[name]
        if info.issym() and info.linkname.startswith("../"):  # ``docker save`` of old, for a layer that is there twice
            info = self._members[info.linkname.removeprefix("../")]
        if not info.isreg() or info.sparse is not None:
            raise ValueError
        found = self._archive.extractfile(info)
        assert found is not None  # it is a regular file
        return found

    def has(self, name: str) -> bool:
        return name in self._members


def _judged(place: _Directory | _Archive, path: str, platform: str, into: _Unpacking) -> Image:
    try:
        if isinstance(place, _Archive) and not place.has("index.json"):
            if not place.has("manifest.json"):
                cause = "it is no image: neither index.json nor manifest.json is in it"
                raise BadImage(cause, path, "docker save NAME > FILE   # of a root directory: docker import FILE NAME")
            return _read_saved(place, path, platform, into)
        return _read(place, path, platform, into)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, tarfile.TarError):
        raise BadImage("a document of it is not as the OCI image layout has it", path) from None
    except OSError as error:
        raise BadImage(f"{error.filename or 'a file of it'}: {error.strerror}", path) from None


def _read(place: Place, path: str, platform: str, into: _Unpacking) -> Image:
    index = json.loads(_bytes(place, "index.json"))
    for _level in range(3):  # an index may name an index
        found = _chosen(index["manifests"], platform)
        if len(found) != 1:
            there = {"/".join((x["os"], x["architecture"])) for e in index["manifests"] if (x := e.get("platform"))}
            has = f"; it has some for {', '.join(sorted(there)[:_MOST_SAID])}" if there else ""
            cause = f"it has {len(found)} images for {platform}{has}"
            raise BadImage(cause, path, "--platform OS/ARCH", "copy one of them to a directory")
        named = _document(place, found[0]["digest"], path)
        if found[0]["mediaType"] not in _INDEXES:
            break
        index = named
    else:
        raise BadImage("its indexes name further ones", path)
    digest = named["config"]["digest"]
    blobs = [_blob(each["digest"]) for each in named["layers"]]
    return _image(place, path, platform, into, _document(place, digest, path), digest, blobs)


def _read_saved(place: Place, path: str, platform: str, into: _Unpacking) -> Image:
    found = json.loads(_bytes(place, "manifest.json"))
    if len(found) != 1:
        raise BadImage(f"it has {len(found)} images", path, "save one of them")
    data = _bytes(place, found[0]["Config"])
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return _image(place, path, platform, into, json.loads(data), digest, found[0]["Layers"])


def _image(
    place: Place, path: str, platform: str, into: _Unpacking, config: Any, digest: str, blobs: list[str]
) -> Image:
    """Unpack the layers ``blobs`` of an image with this configuration."""
    ids = config["rootfs"]["diff_ids"]
    if len(ids) != len(blobs) or not 0 < len(ids) <= MOST_LAYERS:
        raise BadImage(f"it has {len(blobs)} layers and {len(ids)} digests of them, of at most {MOST_LAYERS}", path)
    made = config.get("config") or {}
    made_for = _platform(config) or platform
    if made_for.split("/")[:2] != platform.split("/")[:2]:
        fix = f"--platform {made_for}   # it needs an interpreter for such programs"
        raise BadImage(f"it is made for {made_for}, not for {platform}", path, fix)
    image = Image(
        digest,
        (),
        _texts(made.get("Env")),
        _texts(made.get("Entrypoint")),
        _texts(made.get("Cmd")),
        _text(made.get("User")),
        _text(made.get("WorkingDir")),
        tuple(path for path in _texts(made.get("Volumes")) if path.startswith("/")),
        _text(made.get("StopSignal")),
        made_for,
    )
    if not all("=" in each for each in image.environ):
        raise ValueError
    places = []
    for number, (diff_id, blob) in enumerate(zip(ids, blobs, strict=True), 1):
        into.step(number, len(ids))
        with place.open(blob) as raw:
            places.append(os.path.basename(keep(raw, into.layers, diff_id, into.zstd)))
    return image.replace(layers=tuple(places))


def _texts(found: Any) -> tuple[str, ...]:
    texts = tuple(found or ())
    if len(texts) > MOST_WORDS or not all(isinstance(each, str) and "\0" not in each for each in texts):
        raise ValueError
    "".join(texts).encode()  # JSON can write half a surrogate pair, which no file name and no variable is
    return texts


def _platform(config: dict[str, Any]) -> str:
    """What a configuration is made for; empty: it does not say it."""
    system, architecture, variant = (_text(config.get(name)) for name in ("os", "architecture", "variant"))
    if not system or not architecture:
        return ""
    made_for = f"{system}/{architecture}/{variant}".rstrip("/")
    if not made_for.isascii() or not made_for.replace("/", "").isalnum():
        raise ValueError
    return made_for


def _text(found: Any) -> str:
    return _texts((found or "",))[0]


def machine() -> str:
    """The platform of this machine."""
    return grammar.parse_platform(f"linux/{os.uname().machine}")


def _chosen(entries: list[dict[str, Any]], platform: str) -> list[dict[str, Any]]:
    """The entries of an index that fit best: one, none, or several that say the same of themselves."""
    ranks = [_rank(each.get("platform"), platform) for each in entries]
    best = max(ranks, default=0)
    return [each for each, rank in zip(entries, ranks, strict=True) if rank == best > 0]


def _rank(found: dict[str, Any] | None, platform: str) -> int:
    """How well an entry fits; 0: not at all."""
    if found is None:
        return 1  # it says nothing, as in a layout of one image; its configuration does
    system, architecture, *more = platform.split("/")
    if (found["os"], found["architecture"]) != (system, architecture):
        return 0
    variant = found.get("variant") or ""
    if variant == grammar.PLAIN_VARIANTS.get(architecture):
        variant = ""
    if variant == (more[0] if more else ""):
        return 9
    return {"v7": 8, "v6": 7, "v5": 6}.get(variant, 0) if architecture == "arm" and not more else 0


def _blob(digest: str) -> str:
    algorithm, _, digits = digest.partition(":")
    if algorithm != "sha256" or len(digits) != 64 or set(digits) - set("0123456789abcdef"):
        raise ValueError
    return f"blobs/sha256/{digits}"


def _document(place: Place, digest: str, path: str) -> Any:
    data = _bytes(place, _blob(digest))
    if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
        raise BadImage(f"the bytes of {digest} are others", path)
    return json.loads(data)


def _bytes(place: Place, name: str) -> bytes:
    with place.open(name) as file:
        data = file.read(MOST_DOCUMENT + 1)
    if len(data) > MOST_DOCUMENT:
        raise ValueError
    return data
