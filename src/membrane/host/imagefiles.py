"""An image as a directory in the OCI image layout: its layers, judged by digest, and what it says of its use.

Theory of operation
-------------------
``index.json`` names a manifest, the manifest a configuration and layers, each by digest and size (OCI image-spec,
image-layout.md, manifest.md, config.md).  The directory may be anybody's: each document is read once, within a bound,
and is taken only when its bytes have the digest that named it; of a layer that is asked while it is unpacked, by
``rootfs.diff_ids`` of the configuration (``unpack.keep``).  Blobs are opened without following a link.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat

from ..errors import HostError
from ..value import Value
from . import syscalls as sc
from .unpack import keep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_DOCUMENT = (
    4 << 20
)  # bytes of a manifest or configuration, as registries have it (distribution-spec, "4 megabytes")
MOST_LAYERS = 120  # overlayfs takes 500; container engines 127
_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_PLATFORMS = {"x86_64": "amd64", "aarch64": "arm64"}


class BadImage(HostError):
    """The image cannot be used; nothing of it was kept that has not the right digest."""

    def __init__(self, cause: str, path: str, *fix: str) -> None:
        super().__init__("use the image", cause, target=path, fix=fix)


class Image(Value):
    """An image whose layers are unpacked."""

    digest: str  # of its configuration
    layers: tuple[str, ...]  # directories, the lowest first
    environ: tuple[str, ...]  # NAME=VALUE


def read(path: str, layers: str) -> Image:
    """Read the image in the OCI image layout ``path`` and unpack what of it is not in ``layers`` yet.

    Raises:
        BadImage: it is none, or its bytes are others than it says.
        BadLayer: of one of its layers.
    """
    try:
        root = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise BadImage(os.strerror(error.errno or 0), path, f"skopeo copy docker://NAME oci:{path}") from None
    try:
        return _read(root, path, layers)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise BadImage("a document of it is not as the OCI image layout has it", path) from None
    except OSError as error:
        raise BadImage(f"{error.filename or 'a file of a layer'}: {error.strerror}", path) from None
    finally:
        os.close(root)


def _read(root: int, path: str, layers: str) -> Image:
    index = json.loads(_bytes(root, "index.json"))
    for _level in range(3):  # an index may name an index
        found = [each for each in index["manifests"] if _is_ours(each)]
        if len(found) != 1:
            raise BadImage(f"it has {len(found)} images for this machine", path, "copy one of them to a directory")
        named = _document(root, found[0]["digest"], path)
        if found[0]["mediaType"] not in _INDEXES:
            break
        index = named
    else:
        raise BadImage("its indexes name further ones", path)
    digest = named["config"]["digest"]
    config = _document(root, digest, path)
    ids, blobs = config["rootfs"]["diff_ids"], named["layers"]
    if len(ids) != len(blobs) or not 0 < len(ids) <= MOST_LAYERS:
        raise BadImage(f"it has {len(blobs)} layers and {len(ids)} digests of them, of at most {MOST_LAYERS}", path)
    places = []
    for diff_id, blob in zip(ids, blobs, strict=True):
        with os.fdopen(_open(root, _blob(blob["digest"])), "rb") as raw:
            places.append(keep(raw, layers, diff_id))
    environ = (config.get("config") or {}).get("Env") or ()
    if not all(isinstance(each, str) and "=" in each and "\0" not in each for each in environ):
        raise ValueError
    return Image(digest, tuple(places), tuple(environ))


def _is_ours(entry: dict[str, Any]) -> bool:
    platform = entry.get("platform")
    machine = os.uname().machine
    return platform is None or (platform["os"], platform["architecture"]) == (
        "linux",
        _PLATFORMS.get(machine, machine),
    )


def _blob(digest: str) -> str:
    algorithm, _, digits = digest.partition(":")
    if algorithm != "sha256" or len(digits) != 64 or set(digits) - set("0123456789abcdef"):
        raise ValueError
    return f"blobs/sha256/{digits}"


def _document(root: int, digest: str, path: str) -> Any:
    data = _bytes(root, _blob(digest))
    if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
        raise BadImage(f"the bytes of {digest} are others", path)
    return json.loads(data)


def _open(root: int, name: str) -> int:
    flags = os.O_RDONLY | os.O_NONBLOCK  # a FIFO would wait
    fd = sc.openat2(root, name, flags, 0, sc.RESOLVE_BENEATH | sc.RESOLVE_NO_SYMLINKS)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ValueError
    return fd


def _bytes(root: int, name: str) -> bytes:
    with os.fdopen(_open(root, name), "rb") as file:
        data = file.read(MOST_DOCUMENT + 1)
    if len(data) > MOST_DOCUMENT:
        raise ValueError
    return data
