"""Images come into our state and leave it: fetched once, judged by digest, removed when no run uses them.

Theory of operation
-------------------
What is there is described in ``run.images``.  What was begun has a name with a dot before it and is removed by who
fetches or prunes next.  Who changes something has the lock (flock(2)) of the whole: a second fetch waits for the first,
and then finds what it wanted.

Programs that run outside (skopeo, zstd) are looked for where no command writes.

Registries, engines and credentials are skopeo's business, which runs outside with the caller's environment, and writes
an OCI layout that is judged like anybody's (``host.imagefiles``): nothing of it is believed but by digest.  A fetch
that ends early leaves the layout in ``fetching/KEY``; skopeo gives a blob its name, its digest, when it is whole, and
takes one that is there, so the next fetch goes on with the layers that are missing.  A layout that is refused is
removed.

What a layer grows to while skopeo recompresses it is a stranger's choice: it has limits of processor time and of the
size of a file, and all that it writes is looked at while it does.

What skopeo says may be a registry's words: it comes through a pipe and is escaped, on a terminal as well.
"""

from __future__ import annotations

import errno
import os
import secrets
import subprocess
import sys
import time

from ..changes import outside
from ..errors import HostError, PolicyError
from ..escaping import escape
from ..host import imagefiles
from ..host.imagetree import BadImage
from ..host.private import make_private
from ..host.unpack import MOST_BYTES
from ..plan import mounts
from ..policy import grammar
from ..policy.model import IMAGE_PATHS
from . import imagebuild, imagecontext
from .images import ALL, FILES, Kept, Named, Record, find, is_whole, kept_as, key_of, place_of, record_of, stamp_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ..messages import Message

_TRANSPORTS = {"": "docker://", "docker-daemon": "docker-daemon:", "podman": "containers-storage:"}
_AGAIN = 1  # times that skopeo begins anew where the network breaks; each time takes twice as long
_SECONDS = 3600  # of a processor that skopeo may take
MOST_ARRIVED = 64 << 30  # bytes of an image as it is sent
_LOOK = 1000  # milliseconds between two looks at what has come; on a terminal a fifth
_LONGEST_LINE = 4096  # bytes that skopeo says without an end of line
_LAST_LINES = 20


def quiet(_text: str) -> None:
    return None


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


class Meter:
    """One line on a terminal that says how far a fetch is; nothing elsewhere.

    Args:
        fd: where the line goes, if it is a terminal.
    """

    def __init__(self, fd: int = 2) -> None:
        self._fd = fd
        self._shows = sys.stderr is not None and os.isatty(fd)
        self._shown = False
        self._next = 0.0

    @property
    def shows(self) -> bool:
        return self._shows

    def show(self, text: str, *, now: bool = False) -> None:
        """Replace the line, at most five times a second unless ``now``."""
        if self._shows and (now or time.monotonic() >= self._next):
            self._next, self._shown = time.monotonic() + 0.2, True
            self._put(f"\r\x1b[Kmembrane: {escape(text)[:70]}")

    def end(self) -> None:
        if self._shown:
            self._shown = False
            self._put("\r\x1b[K")

    def _put(self, text: str) -> None:
        try:
            os.write(self._fd, text.encode())
        except OSError:
            self._shows = False  # it is gone


def _write(path: str, value: Message) -> None:
    directory, _, name = path.rpartition("/")
    made = f"{directory}/.{name}-{secrets.token_hex(8)}"
    fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(FILES.encode(value)[0])
    os.rename(made, path)


def pull(
    state: str,
    reference: str,
    say: Callable[[str], None] = quiet,
    *,
    again: bool = True,
    platform: str = "",
    writable: Sequence[str] = (),
) -> Kept:
    """Fetch the image, whatever is here under that name.

    Args:
        say: takes lines for a person.
        again: also where another process has fetched it while this one waited.
        platform: of the image; empty: this machine's.
        writable: trees that commands write beside the current directory, without links: no program of theirs runs,
            and no link in one leads to an image.

    Raises:
        HostError: it cannot be had, or is none.
    """
    kind, rest = grammar.parse_image(reference)
    place, name = place_of(state), key_of(reference, platform)
    roots = (os.getcwd(), os.path.realpath(state), *writable)
    meter = Meter(-1 if say is quiet else 2)
    with _Lock(place, say):
        _tidy(place)
        for directory in ("layers", "records", "names", "empty"):
            make_private(f"{place}/{directory}")
        os.chmod(f"{place}/empty", 0o755)  # noqa: S103 - it is seen as the image's own
        if not again and (kept := find(state, reference, platform)) is not None:
            return kept
        old = kept_as(place, name)
        whole = old is not None and old.whole
        stamp, content = stamp_of(reference, whole=whole), ""
        if kind in IMAGE_PATHS:
            rest = _resolved(rest, roots)
        if kind == "dockerfile":
            content = imagecontext.content(rest, whole=whole)
            content = ALL + content if whole and content else content
            if not again and content and old is not None and old.content == content and is_whole(place, old):
                _write(f"{place}/names/{name}", Named(reference, platform, old.digest, stamp, content))
                return old
            if not content:
                say("what it copies cannot be judged (a link, too many names or bytes): it is built at every start")

        zstd = outside.program("zstd", *roots) or ""

        def step(number: int, count: int) -> None:
            meter.show(f"layer {number} of {count} of {reference}", now=True)

        try:
            if kind == "oci":
                found = imagefiles.read(rest, f"{place}/layers", platform, step, zstd)
            elif kind == "tar":
                found = imagefiles.read_archive(rest, f"{place}/layers", platform, step, zstd)
            elif kind == "dockerfile":
                say(f"building the image {reference}")
                archive = f"{place}/.build-{secrets.token_hex(8)}"
                try:
                    by_trigger = imagebuild.build(rest, platform, archive, meter.show, say)
                    if stamp_of(reference, whole=whole) != stamp:  # by a command: what was built may be of neither
                        content = ""
                    if by_trigger != whole:  # what was looked at before is not what counts from now on
                        stamp, content = (), ALL if by_trigger else ""
                    found = imagefiles.read_archive(archive, f"{place}/layers", platform, step, zstd)
                finally:
                    if os.path.lexists(archive):
                        os.unlink(archive)
            else:
                say(f"fetching the image {reference}")
                work = f"{place}/fetching/{name}"
                _copy(f"{_TRANSPORTS[kind]}{rest}", work, reference, platform, meter, roots)
                try:
                    found = imagefiles.read(work, f"{place}/layers", platform, step, zstd)
                finally:
                    _remove(work)  # what was refused must not be gone on with
        except BadImage as error:
            if kind in ("oci", "tar"):
                raise
            raise BadImage(error.cause, reference, *error.fix) from None  # else it names a place in our state
        finally:
            meter.end()
        digits = found.digest.removeprefix("sha256:")
        if record_of(place, found.digest) is None:  # a run may hold the one that is there
            said = Record(**{name: getattr(found, name) for name in Record.field_names})
            _write(f"{place}/records/{digits}", said)
        _write(f"{place}/names/{name}", Named(reference, platform, found.digest, stamp, content))
    kept = kept_as(place, name)
    if kept is None:
        raise HostError("keep the image", "what was written is not there", target=reference)
    return kept


def _resolved(path: str, writable: Sequence[str]) -> str:
    """The path to open without following a link (``imagefiles.opened``).

    Links that a person made are followed here.  Below a tree of ``writable`` nothing is: a command of an earlier run,
    or of another one now, may have made what is there, or make it while this looks.
    """
    parts = path.strip("/").split("/")
    for count in range(1, len(parts) + 1):
        above = os.path.realpath("/" + "/".join(parts[:count]))
        if any(mounts.inside(above, tree) for tree in writable):
            return "/".join((above, *parts[count:]))
    return os.path.realpath(path)


def _copy(source: str, work: str, reference: str, platform: str, meter: Meter, roots: Iterable[str]) -> None:
    """Have skopeo write the image as an OCI layout; blobs that are in ``work`` are not fetched again.

    It starts helpers by name (credentials, newuidmap): like itself none is of ``roots``.
    """
    import resource
    from contextlib import suppress

    program = outside.program("skopeo", *roots)
    if program is None:
        raise HostError(
            "fetch the image",
            "skopeo, which speaks to registries and engines, is not installed",
            target=reference,
            fix=("apt install skopeo", "docker save NAME > FILE and --image tar:FILE"),
        )
    make_private(work)
    for name in _all_names(work):
        if name.startswith("oci-put-blob"):  # of a fetch that was killed
            os.unlink(f"{work}/{name}")
    # The name has no character that an option begins with (``grammar.parse_image``).  Signatures have no place in an
    # OCI layout, and skopeo has judged them by the caller's policy.json(5) before.
    names = ("--override-os", "--override-arch", "--override-variant")
    chosen = [f"{name}={word}" for name, word in zip(names, platform.split("/"), strict=False) if word]
    # Layers as ``unpack`` reads them: of zstd they become gzip; what an engine has unpacked stays so.
    form = ["--dest-compress-format=gzip", "--dest-compress-level=1"]
    if not source.startswith("docker://"):
        form = ["--dest-oci-accept-uncompressed-layers"]
    if source.startswith("docker-daemon:") and os.environ.get("DOCKER_HOST"):  # skopeo does not look at it by itself
        form.append(f"--src-daemon-host={os.environ['DOCKER_HOST']}")
    words = [program, *chosen, "copy", f"--retry-times={_AGAIN}", "--remove-signatures", *form]
    words += [source, f"oci:{work}:image"]
    environment = {**os.environ, "PATH": outside.search_path(*roots)}
    process = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    )
    try:
        for limit, most in ((resource.RLIMIT_FSIZE, MOST_BYTES), (resource.RLIMIT_CPU, _SECONDS)):
            with suppress(ProcessLookupError, ValueError):  # it has ended; the caller's own is lower
                resource.prlimit(process.pid, limit, (most, most))
        lines = _heard(process, work, reference, meter)
        status = process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if status:
        fix = [f"skopeo inspect {source}"]
        if _all_blobs(work):
            fix.append(f"membrane image pull {reference}   # goes on: whole layers that have come are kept")
        if source.startswith("containers-storage:") and "/" not in source:
            fix.insert(0, f"membrane image pull podman:localhost/{source.partition(':')[2]}   # what was built here")
        cause = _said(lines[-1])[-500:] if lines else f"skopeo ended with {status}"
        raise HostError("fetch the image", cause, target=reference, fix=tuple(fix))


def _said(line: str) -> str:
    """The message of a line as skopeo's logger writes it (logfmt), or the line."""
    _, mark, said = line.partition(' msg="')
    return said.rstrip().removesuffix('"').replace('\\"', '"') if mark and line.startswith("time=") else line


def _heard(process: subprocess.Popen[bytes], work: str, reference: str, meter: Meter) -> list[str]:
    """The last lines that skopeo says, to its end; the meter shows how much has come.

    Raises:
        HostError: more comes than an image may have.
    """
    import select

    assert process.stdout is not None
    fd, text, lines = process.stdout.fileno(), b"", list[str]()
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    with process.stdout:
        while True:
            if not waiting.poll(_LOOK // 5 if meter.shows else _LOOK):
                size = _arrived(work)
                if size > MOST_ARRIVED:
                    raise HostError("fetch the image", f"it has more than {MOST_ARRIVED} bytes", target=reference)
                meter.show(f"{size / 1_000_000:.1f} MB of {reference}")
                continue
            data = os.read(fd, 1 << 16)
            *whole, text = (text + data).split(b"\n")
            lines = [*lines, *(line.decode("utf-8", "replace") for line in whole if line.strip())][-_LAST_LINES:]
            if not data or len(text) > _LONGEST_LINE:
                if text.strip():
                    lines.append(text.decode("utf-8", "replace"))
                    text = b""
                if not data:
                    return lines


def _all_blobs(work: str) -> list[str]:
    return [f"{work}/blobs/sha256/{name}" for name in _all_names(f"{work}/blobs/sha256")]


def _arrived(work: str) -> int:
    """Bytes of a layout that is being written."""
    total = 0
    for path in (*_all_blobs(work), *(f"{work}/{name}" for name in _all_names(work))):
        try:
            total += os.lstat(path).st_size
        except FileNotFoundError:
            pass  # it got its name meanwhile
    return total


def images(state: str) -> list[Kept]:
    """Every image that is here, by name; at the end those that no name stands for."""
    place = place_of(state)
    named = [kept for name in _names(f"{place}/names") if (kept := kept_as(place, name)) is not None]
    known = {kept.digest for kept in named}
    rest = [kept for name in _names(f"{place}/records") if (kept := record_of(place, f"sha256:{name}")) is not None]
    return [*sorted(named, key=lambda kept: kept.reference), *(kept for kept in rest if kept.digest not in known)]


def size(state: str, kept: Kept) -> int:
    """Bytes of the layers of an image, as its files say."""
    total = 0
    for layer in kept.layers:
        for directory, _below, files in os.walk(f"{place_of(state)}/layers/{layer}"):
            total += sum(os.lstat(f"{directory}/{name}").st_size for name in files)
    return total


def remove(state: str, reference: str, say: Callable[[str], None] = quiet) -> None:
    """Forget a name, for all platforms, and remove its images where no other name stands for them and no run uses them.

    Raises:
        HostError: there is no such image.
    """
    place = place_of(state)
    with _Lock(place, say):
        rows = [(name, kept_as(place, name)) for name in _names(f"{place}/names")]
        found = [name for name, kept in rows if kept is not None and kept.reference == reference]
        if not found:
            cause = f"there is no image {escape(reference)}"
            raise PolicyError("remove the image", cause, fix=("membrane image ls",))
        for name in found:
            os.unlink(f"{place}/names/{name}")
        _collect(place)


def prune(state: str, say: Callable[[str], None] = quiet) -> int:
    """Remove images without a name and layers without an image, but for those that runs use; how many there were."""
    place = place_of(state)
    if not os.path.isdir(place):
        return 0
    with _Lock(place, say):
        _tidy(place)
        if os.path.isdir(f"{place}/fetching"):
            _remove(f"{place}/fetching")
        return _collect(place)


def _collect(place: str) -> int:
    import fcntl

    named, used, count = set[str](), set[str](), 0
    for name in _names(f"{place}/names"):
        kept = kept_as(place, name)
        if kept is None:
            os.unlink(f"{place}/names/{name}")
        else:
            named.add(kept.digest)
    for name in _names(f"{place}/records"):
        kept = record_of(place, f"sha256:{name}")
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
