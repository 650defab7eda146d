"""Images in our state: fetched once, used by many runs, removed when none uses them.

Theory of operation
-------------------
``STATE/images`` has ``layers/sha256-DIGITS`` (``host.unpack``), ``records/DIGITS`` (one for each image, by the digest
of its configuration: which layers, and what it says of its use; never changed) and ``names/KEY`` (which record a
reference stands for).  Each file is written beside its place and renamed, so whatever ends us, what is there is whole;
what was begun has a name with a dot before it and is removed by who fetches or prunes next.

Who changes something has the lock (flock(2)) of the whole: a second fetch waits for the first, and then finds what it
wanted.  A run holds a shared lock of its record as long as it lives; what is in use is not removed.  A run that was
killed has let go, and its sandbox ends with it.

Registries, engines and credentials are skopeo's business, which runs outside with the caller's environment, and writes
an OCI layout that is judged like anybody's (``host.imagefiles``): nothing of it is believed but by digest.  What a
reference stands for is what it stood for when it was fetched, as with ``docker run``; of a directory or file it is
fetched again when that has changed.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import subprocess
import sys

from ..errors import HostError
from ..host import imagefiles
from ..host.imagetree import Tree
from ..host.private import make_private
from ..plan import mounts
from ..plan.model import ImageFacts
from ..policy import grammar
from ..value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ..plan.model import HostFacts
    from ..policy.model import Policy

_LARGEST = 4 << 20  # of a record, and of passwd(5) of an image
_TRANSPORTS = {"": "docker://", "docker-daemon": "docker-daemon:", "podman": "containers-storage:"}


class Kept(Value):
    """An image that is here."""

    reference: str  # empty: none stands for it any more
    digest: str
    layers: tuple[str, ...]  # names in ``layers``, the lowest first
    said: tuple[tuple[str, tuple[str, ...]], ...]  # what its configuration says, by field of ``imagefiles.Image``
    stamp: tuple[int, ...] = ()  # of the directory or file that it came from


class Use:
    """A record that a run uses; nobody removes it until ``end``."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def end(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _Lock:
    """The lock of ``images``; who waits for it says so."""

    def __init__(self, place: str, say: Callable[[str], None]) -> None:
        import fcntl

        make_private(place)
        self._fd = os.open(f"{place}/.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("another membrane fetches or removes images; waiting for it")
                fcntl.flock(self._fd, fcntl.LOCK_EX)
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_error: object) -> None:
        os.close(self._fd)


def _place(state: str) -> str:
    return f"{state}/images"


def quiet(_text: str) -> None:
    return None


# ---------------------------------------------------------------- what is here


def _read(path: str) -> Any:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        data = file.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise ValueError("too long")
    return json.loads(data)


def _write(path: str, value: object) -> None:
    directory, _, name = path.rpartition("/")
    made = f"{directory}/.{name}-{secrets.token_hex(8)}"
    fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        json.dump(value, file)
    os.rename(made, path)


def _kept(place: str, name: str) -> Kept | None:
    """What the file ``name`` in ``names`` stands for; None: nothing, or not whole any more."""
    try:
        row = _read(f"{place}/names/{name}")
        found = _record(place, row["digest"])
        return found.replace(reference=row["reference"], stamp=tuple(row["stamp"])) if found is not None else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _record(place: str, digest: str) -> Kept | None:
    try:
        row = _read(f"{place}/records/{digest.removeprefix('sha256:')}")
        said = tuple((name, tuple(texts)) for name, texts in row["said"])
        return Kept("", digest, tuple(row["layers"]), said)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def find(state: str, reference: str) -> Kept | None:
    """The image that ``reference`` stands for, if it is here and its source has not changed."""
    kept = _kept(_place(state), mounts.workspace_key(reference))
    if kept is None or kept.reference != reference or kept.stamp != _stamp(reference):
        return None
    return kept if all(os.path.isdir(f"{_place(state)}/layers/{layer}") for layer in kept.layers) else None


def _stamp(reference: str) -> tuple[int, ...]:
    """What tells whether a directory or file is as it was: of an image by name, nothing does."""
    kind, rest = grammar.parse_image(reference)
    if kind not in grammar.IMAGE_PATHS:
        return ()
    try:
        details = os.stat(f"{rest}/index.json" if kind == "oci" else rest)
    except OSError:
        return (0,)
    return details.st_dev, details.st_ino, details.st_size, details.st_mtime_ns, details.st_ctime_ns


def use(state: str, kept: Kept) -> Use | None:
    """Hold the image for a run; None: it was removed a moment ago."""
    import fcntl

    path = f"{_place(state)}/records/{kept.digest.removeprefix('sha256:')}"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # who has the other kind is removing it
        if os.path.samestat(os.fstat(fd), os.stat(path)):
            return Use(fd)
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(fd)
    return None


def shown(policy: Policy, facts: HostFacts) -> HostFacts:
    """``facts`` with the image of ``policy``, and about its paths; as they are where it is not here yet.

    Raises:
        BadImage: its trees cannot be shown.
    """
    kept = find(facts.state, policy.image)
    if kept is None or policy.view == "host":
        return facts
    place = _place(facts.state)
    tree = Tree([f"{place}/layers/{name}" for name in kept.layers], f"{place}/empty")
    said = dict(kept.said)
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
    whole = ("/etc",) if policy.system == "read-only" else ("/etc", "/var")
    image = ImageFacts(
        reference=policy.image,
        digest=kept.digest,
        layers=len(kept.layers),
        trees=tuple(tree.trees(mounts.places_of_its_own(policy, facts), whole)),
        environ=said["environ"],
        entrypoint=said["entrypoint"],
        command=said["command"],
        user="".join(said["user"]),
        directory="".join(said["directory"]),
        shell=shell,
        passwd=_file(tree, "/etc/passwd"),
        group=_file(tree, "/etc/group"),
        bundle=bundle,
    )
    return facts.replace(image=image)


def _file(tree: Tree, path: str) -> bytes:
    """A small file of the image."""
    _real, kind, sources = tree.find(path)
    if kind != "file":
        return b""
    with open(sources[0], "rb") as file:
        data = file.read(_LARGEST + 1)
    return data if len(data) <= _LARGEST else b""


# ---------------------------------------------------------------- changes of the store


def need(state: str, reference: str, say: Callable[[str], None] = quiet) -> Use:
    """Fetch the image where it is not here, and hold it.

    Raises:
        HostError: it cannot be had, or is none.
    """
    for _attempt in range(3):
        kept = find(state, reference) or pull(state, reference, say, again=False)
        held = use(state, kept)
        if held is not None:
            return held
    raise HostError("use the image", "it is removed again and again", target=reference)


def pull(state: str, reference: str, say: Callable[[str], None] = quiet, *, again: bool = True) -> Kept:
    """Fetch the image, whatever is here under that name.

    Args:
        say: takes lines for a person.
        again: also where another process has fetched it while this one waited.

    Raises:
        HostError: it cannot be had, or is none.
    """
    kind, rest = grammar.parse_image(reference)
    place = _place(state)
    with _Lock(place, say):
        _tidy(place)
        for name in ("layers", "records", "names", "empty"):
            make_private(f"{place}/{name}")
        os.chmod(f"{place}/empty", 0o755)  # noqa: S103 - it is seen as the image's own
        if not again and (kept := find(state, reference)) is not None:
            return kept
        stamp = _stamp(reference)
        if kind == "oci":
            found = imagefiles.read(rest, f"{place}/layers")
        elif kind == "tar":
            found = imagefiles.read_archive(rest, f"{place}/layers")
        else:
            say(f"fetching the image {reference}")
            work = f"{place}/.fetch-{secrets.token_hex(8)}"
            try:
                _copy(f"{_TRANSPORTS[kind]}{rest}", work, reference)
                found = imagefiles.read(work, f"{place}/layers")
            finally:
                _remove(work)
        said = [
            *(("environ", found.environ), ("entrypoint", found.entrypoint), ("command", found.command)),
            *(("user", (found.user,)), ("directory", (found.directory,))),
        ]
        digits = found.digest.removeprefix("sha256:")
        if _record(place, found.digest) is None:  # a run may hold the one that is there
            _write(f"{place}/records/{digits}", {"layers": found.layers, "said": said})
        name = mounts.workspace_key(reference)
        _write(f"{place}/names/{name}", {"reference": reference, "digest": found.digest, "stamp": stamp})
    kept = _kept(place, name)
    if kept is None:
        raise HostError("keep the image", "what was written is not there", target=reference)
    return kept


def _copy(source: str, work: str, reference: str) -> None:
    """Have skopeo write the image as an OCI layout."""
    import shutil

    program = shutil.which("skopeo")
    if program is None:
        raise HostError(
            "fetch the image",
            "skopeo, which speaks to registries and engines, is not installed",
            target=reference,
            fix=("apt install skopeo", "docker save NAME > FILE and --image tar:FILE"),
        )
    shows = sys.stderr is not None and os.isatty(2)
    # The name has no character that an option begins with (``grammar.parse_image``).
    words = [program, "copy", *(() if shows else ("--quiet",)), source, f"oci:{work}:image"]
    done = subprocess.run(
        words,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=2 if shows else subprocess.DEVNULL,
        stderr=None if shows else subprocess.PIPE,
    )
    if done.returncode:
        lines = (done.stderr or b"").decode("utf-8", "replace").strip().splitlines()
        cause = lines[-1][-500:] if lines else f"skopeo ended with {done.returncode}"
        raise HostError("fetch the image", cause, target=reference, fix=(f"skopeo inspect {source}",))


def images(state: str) -> list[Kept]:
    """Every image that is here, by name; at the end those that no name stands for."""
    place = _place(state)
    named = [kept for name in _names(f"{place}/names") if (kept := _kept(place, name)) is not None]
    known = {kept.digest for kept in named}
    rest = [kept for name in _names(f"{place}/records") if (kept := _record(place, f"sha256:{name}")) is not None]
    return [*sorted(named, key=lambda kept: kept.reference), *(kept for kept in rest if kept.digest not in known)]


def size(state: str, kept: Kept) -> int:
    """Bytes of the layers of an image, as its files say."""
    total = 0
    for layer in kept.layers:
        for directory, _below, files in os.walk(f"{_place(state)}/layers/{layer}"):
            total += sum(os.lstat(f"{directory}/{name}").st_size for name in files)
    return total


def remove(state: str, reference: str, say: Callable[[str], None] = quiet) -> None:
    """Forget a name, and remove its image where no other name stands for it and no run uses it.

    Raises:
        HostError: there is no such image.
    """
    place = _place(state)
    with _Lock(place, say):
        name = mounts.workspace_key(reference)
        kept = _kept(place, name)
        if kept is None or kept.reference != reference:
            raise HostError(
                "remove the image", "there is none of that name", target=reference, fix=("membrane image ls",)
            )
        os.unlink(f"{place}/names/{name}")
        _collect(place)


def prune(state: str, say: Callable[[str], None] = quiet) -> int:
    """Remove images without a name and layers without an image, but for those that runs use; how many there were."""
    place = _place(state)
    if not os.path.isdir(place):
        return 0
    with _Lock(place, say):
        _tidy(place)
        return _collect(place)


def _collect(place: str) -> int:
    import fcntl

    named, used, count = set[str](), set[str](), 0
    for name in _names(f"{place}/names"):
        kept = _kept(place, name)
        if kept is None:
            os.unlink(f"{place}/names/{name}")
        else:
            named.add(kept.digest)
    for name in _names(f"{place}/records"):
        kept = _record(place, f"sha256:{name}")
        if kept is not None and kept.digest not in named:
            path = f"{place}/records/{name}"
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
                count += 1
                continue
            except BlockingIOError:
                pass  # a run uses it
            finally:
                os.close(fd)
        if kept is not None:
            used.update(kept.layers)
    for name in _names(f"{place}/layers"):
        if name not in used:
            # First out of its place: what is half gone must not count as a layer.
            gone = f"{place}/layers/.gone-{secrets.token_hex(8)}"
            os.rename(f"{place}/layers/{name}", gone)
            _remove(gone)
    return count


def _tidy(place: str) -> None:
    """Remove what was begun by one that was killed; we have the lock."""
    for directory in (place, f"{place}/layers", f"{place}/records", f"{place}/names"):
        for name in _all_names(directory):
            path = f"{directory}/{name}"
            if name.startswith(".") and path != f"{place}/.lock":
                if os.path.isdir(path) and not os.path.islink(path):
                    _remove(path)
                else:
                    os.unlink(path)


def _names(directory: str) -> list[str]:
    return sorted(name for name in _all_names(directory) if not name.startswith("."))


def _all_names(directory: str) -> Iterator[str]:
    try:
        yield from os.listdir(directory)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise


def _remove(path: str) -> None:
    from ..changes.removal import remove_tree

    remove_tree(path)
