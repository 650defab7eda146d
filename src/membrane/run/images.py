"""Images in our state, as a run takes them: what a reference stands for, held while it runs, and as the view shows it.

Theory of operation
-------------------
``STATE/images`` has ``layers/sha256-DIGITS`` (``host.unpack``), ``records/DIGITS`` (one for each image, by the digest
of its configuration: which layers, and what it says of its use; never changed) and ``names/KEY`` (which record a
reference stands for).  Each file is written beside its place and renamed, so whatever ends us, what is there is whole.
``run.imagestore`` fetches and removes; it is loaded only for that, as this module is on the way of each start.

A run holds a shared lock (flock(2)) of its record as long as it lives; what is in use is not removed.  A run that was
killed has let go, and its sandbox ends with it.  What a reference stands for is what it stood for when it was fetched,
as with ``docker run``, so such a run asks no registry; of a directory or file it is fetched again when that has
changed, and of a Dockerfile when what it copies has (``run.imagecontext``).
"""

from __future__ import annotations

import os

from ..errors import HostError
from ..host.imagetree import Tree
from ..messages import Malformed, Message, Table
from ..plan import mounts
from ..plan.model import ImageFacts, ImageTree
from ..policy.model import IMAGE_PATHS, MACHINES
from ..value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..plan.model import HostFacts
    from ..policy.model import Policy

LARGEST = 4 << 20  # of a record, and of passwd(5) of an image
ALL = "all:"  # before a digest of the whole directory of a Dockerfile; alone: that is to count at the next build
LONGEST_VOLUME = 1024  # characters of one that is to be made
MOST_VOLUMES = 32  # each is a mount with a directory of our state


class Named(Message):
    """A file in ``names``."""

    reference: str
    platform: str  # that was asked for; empty: this machine's
    digest: str  # of the record
    stamp: tuple[int, ...]  # of the directory or file that it came from
    content: str  # of a Dockerfile and what it copies (``imagecontext.content``), or ``ALL``; empty: nothing is known


class Record(Message):
    """A file in ``records``: layers, the lowest first, and what the configuration says (``imagefiles.Image``)."""

    layers: tuple[str, ...]
    environ: tuple[str, ...]
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    user: str
    directory: str
    volumes: tuple[str, ...]
    stop: str
    platform: str  # that it is made for


# Not JSON: to load what reads it costs more than all else that an image adds to a start.
FILES = Table("in a file of images", Named, Record)


class Kept(Value):
    """An image that is here."""

    reference: str  # empty: none stands for it any more
    digest: str
    said: Record
    stamp: tuple[int, ...] = ()  # of the directory or file that it came from
    platform: str = ""  # as of ``Named``
    content: str = ""

    @property
    def whole(self) -> bool:
        """Of a Dockerfile: the whole directory around it counts."""
        return self.content.startswith(ALL)

    @property
    def layers(self) -> tuple[str, ...]:
        """Names in ``layers``, the lowest first."""
        return self.said.layers


class Use:
    """A record that a run uses; nobody removes it until ``end``."""

    def __init__(self, fd: int, digest: str) -> None:
        self._fd, self.digest = fd, digest

    def end(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def place_of(state: str) -> str:
    return f"{state}/images"


def _read(path: str) -> Message:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError("too long")
    return FILES.decode(data)


def kept_as(place: str, name: str) -> Kept | None:
    """What the file ``name`` in ``names`` stands for; None: nothing, or not whole any more."""
    try:
        row = _read(f"{place}/names/{name}")
    except (OSError, ValueError, Malformed):
        return None
    found = record_of(place, row.digest) if isinstance(row, Named) else None
    if found is None or not isinstance(row, Named):
        return None
    return found.replace(reference=row.reference, stamp=row.stamp, platform=row.platform, content=row.content)


def record_of(place: str, digest: str) -> Kept | None:
    """The image with this digest, without a name; None: it is not here."""
    try:
        row = _read(f"{place}/records/{digest.removeprefix('sha256:')}")
    except (OSError, ValueError, Malformed):
        return None
    return Kept("", digest, row) if isinstance(row, Record) else None


def key_of(reference: str, platform: str) -> str:
    """The name of a file in ``names``."""
    return mounts.workspace_key(f"{reference} {platform}" if platform else reference)


def find(state: str, reference: str, platform: str = "") -> Kept | None:
    """The image that ``reference`` stands for, if it is here and its source has not changed.

    Args:
        platform: that it is to be made for; empty: this machine's.
    """
    place = place_of(state)
    kept = kept_as(place, key_of(reference, platform))
    if kept is None or (kept.reference, kept.platform) != (reference, platform) or not _is_as_it_was(kept):
        return None
    return kept if is_whole(place, kept) else None


def is_whole(place: str, kept: Kept) -> bool:
    """Are all its layers there?"""
    return all(os.path.isdir(f"{place}/layers/{layer}") for layer in kept.layers)


def _is_as_it_was(kept: Kept) -> bool:
    return kept.stamp == stamp_of(kept.reference, whole=kept.whole)


def stamp_of(reference: str, *, whole: bool = False) -> tuple[int, ...]:
    """What tells whether a directory or file is as it was: of an image by name, nothing does.

    Args:
        whole: of a Dockerfile, as of ``imagecontext.stamp``.
    """
    kind, _, rest = reference.partition(":")  # ``grammar.parse_image`` has seen it; a start does without that module
    if kind not in IMAGE_PATHS:
        return ()
    if kind == "dockerfile":
        from . import imagecontext

        return imagecontext.stamp(rest, whole=whole)
    try:
        details = os.stat(f"{rest}/index.json" if kind == "oci" else rest)
    except OSError:
        return (0,)
    return details.st_dev, details.st_ino, details.st_size, details.st_mtime_ns, details.st_ctime_ns


def need(state: str, reference: str, fetch: Callable[[], Kept], platform: str = "") -> Use:
    """Hold the image for a run.

    Args:
        fetch: ``imagestore.pull``, for where it is not here.

    Raises:
        HostError: it cannot be had, or is none.
    """
    for _attempt in range(3):
        held = use(state, find(state, reference, platform) or fetch())
        if held is not None:
            return held
    raise HostError("use the image", "it is removed again and again", target=reference)


def use(state: str, kept: Kept) -> Use | None:
    """Hold the image for a run; None: it was removed a moment ago."""
    import fcntl

    path = f"{place_of(state)}/records/{kept.digest.removeprefix('sha256:')}"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # who has the other kind is removing it
        if os.path.samestat(os.fstat(fd), os.stat(path)):
            return Use(fd, kept.digest)
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(fd)
    return None


def shown(policy: Policy, facts: HostFacts, held: str = "") -> HostFacts:
    """``facts`` with the image of ``policy``, and about its paths; as they are where it is not here yet.

    Args:
        held: the digest of the one that a run holds, whatever the reference stands for meanwhile; empty: none is held.

    Raises:
        BadImage: its trees cannot be shown.
    """
    kept = record_of(place_of(facts.state), held) if held else find(facts.state, policy.image, policy.platform)
    if kept is None or policy.view == "host":
        return facts
    place = place_of(facts.state)
    tree = Tree([f"{place}/layers/{name}" for name in kept.layers], f"{place}/empty")
    said = kept.said
    bundle = ""
    existing, links = set[str](), list[tuple[str, str]]()
    for path in mounts.candidates(facts.home, ""):
        if path.startswith((*mounts.KERNEL_TREES, facts.home)) or path in (
            *mounts.ETC_SECRET_FILES,
            *mounts.ETC_SECRET_TREES,
        ):
            if path in facts.existing and not path.startswith(facts.home):
                existing.add(path)  # of this machine: the view may have it by another rule
            continue
        if path in (mounts.WORKSPACE_NAME, mounts.HOME_NAME):
            continue  # the view's own
        real, kind, sources = tree.find(path)
        if not kind:
            continue
        existing.add(path)
        if real != path:
            links.append((path, real))
        if path in mounts.BUNDLES and kind == "file":
            bundle = bundle or sources[0]
    if not bundle:
        bundle = next((os.path.realpath(path) for path in mounts.BUNDLES if os.path.exists(path)), "")
    shell = "/bin/bash" if tree.find("/bin/bash")[1] == "file" else "/bin/sh"
    facts = facts.replace(existing=frozenset(existing), links=tuple(links))  # by which the places below are found
    own = mounts.places_of_its_own(policy, facts)
    volumes, refused = _volumes(tree, said.volumes, own)
    new = [each.path for each in volumes if len(each.sources) == 1]  # the image has nothing there
    whole = ("/etc",) if policy.system == "read-only" else ("/etc", "/var")
    image = ImageFacts(
        reference=policy.image,
        digest=kept.digest,
        layers=len(kept.layers),
        trees=tuple(tree.trees((*own, *new), whole)),
        environ=said.environ,
        entrypoint=said.entrypoint,
        command=said.command,
        user=said.user,
        directory=said.directory,
        begins=_begins(tree, said.directory, own, facts.workspace, volumes),
        volumes=volumes,
        refused=refused,
        stop=said.stop,
        foreign="" if _runs(said.platform) else said.platform,
        shell=shell,
        passwd=_file(tree, "/etc/passwd"),
        group=_file(tree, "/etc/group"),
        bundle=bundle,
    )
    return facts.replace(image=image)


_ELF = {  # class, byte order and e_machine of programs (elf(5))
    "386": (1, 1, 3),
    "arm": (1, 1, 40),
    "amd64": (2, 1, 62),
    "arm64": (2, 1, 183),
    "ppc64le": (2, 1, 21),
    "riscv64": (2, 1, 243),
    "s390x": (2, 2, 22),
}
_BINFMT = "/proc/sys/fs/binfmt_misc"


def _runs(platform: str) -> bool:
    """Are programs of it executed here: by the machine, or by an interpreter that is there in every view?

    The kernel opens an interpreter when it is registered, if its flags have F (binfmt-misc.rst); any other is looked
    up in the view, where it is not.
    """
    machine = os.uname().machine
    if platform.split("/")[:2] == ["linux", MACHINES.get(machine, machine)]:
        return True
    size, order, number = _ELF.get(platform.split("/")[1] if "/" in platform else "", (0, 0, 0))
    head = b"\x7fELF" + bytes((size, order, 1)) + bytes(9)
    head += (2).to_bytes(2, "little" if order == 1 else "big") + number.to_bytes(2, "little" if order == 1 else "big")
    try:
        names = os.listdir(_BINFMT)
    except OSError:
        return False
    return any(_takes(f"{_BINFMT}/{name}", head) for name in names if name not in ("register", "status"))


def _takes(path: str, head: bytes) -> bool:
    try:
        with open(path, encoding="ascii") as file:
            state, *rows = file.read(LARGEST).splitlines()
        said = dict(row.split(" ", 1) for row in rows if " " in row)
        magic = bytes.fromhex(said["magic"])
        mask = bytes.fromhex(said["mask"]) if "mask" in said else b"\xff" * len(magic)
        offset = int(said["offset"])
    except (OSError, ValueError, KeyError):
        return False  # gone, or by the end of a name
    found = head[offset : offset + len(magic)]
    same = len(found) == len(magic) and all((x ^ y) & z == 0 for x, y, z in zip(found, magic, mask, strict=True))
    return state == "enabled" and "F" in said.get("flags:", "") and same


def _volumes(tree: Tree, paths: Sequence[str], own: Sequence[str]) -> tuple[tuple[ImageTree, ...], tuple[str, ...]]:
    """The directories that are writable, with what the image has there, and those that cannot be.

    Args:
        own: paths where the view has something else.
    """
    made: list[ImageTree] = []
    refused: list[str] = []
    named = {os.path.normpath(f"/{path.lstrip('/')}") for path in paths}
    for path in sorted(named, key=lambda path: (path.count("/"), path)):  # outer ones first
        at, kind, sources = tree.find(path)
        if not kind and (len(path) > LONGEST_VOLUME or any(len(os.fsencode(part)) > 255 for part in path.split("/"))):
            refused.append(path)
            continue
        if not kind and mounts.inside(path, at):
            at = path  # no link is on the way to what is missing
        elif kind != "directory":
            refused.append(path)
            continue
        if any(mounts.inside(at, each) for each in (*own, *(volume.path for volume in made))):
            continue  # it is the view's own, or in one that is writable already
        if len(made) >= MOST_VOLUMES or any(mounts.inside(each, at) or mounts.inside(at, "/etc") for each in own):
            refused.append(path)
            continue
        made.append(ImageTree(at, "directory", (*sources, tree.empty)))
    return tuple(made), tuple(refused)


def _begins(tree: Tree, said: str, own: Sequence[str], workspace: str, volumes: Sequence[ImageTree]) -> str:
    """Where in the view the image's own command begins; empty: the view has no such directory."""
    path = os.path.normpath(f"/{said.lstrip('/')}")
    if path in ("/", mounts.WORKSPACE_NAME, workspace):
        return workspace
    at, kind, _sources = tree.find(path)
    if any(mounts.inside(at, each) for each in own):
        return ""
    return at if kind == "directory" else path if any(volume.path == path for volume in volumes) else ""


def _file(tree: Tree, path: str) -> bytes:
    """A small file of the image."""
    _real, kind, sources = tree.find(path)
    if kind != "file":
        return b""
    with open(sources[0], "rb") as file:
        data = file.read(LARGEST + 1)
    return data if len(data) <= LARGEST else b""
