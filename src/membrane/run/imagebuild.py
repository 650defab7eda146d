"""``dockerfile:PATH``: an image is built by an engine inside a sandbox, and comes out as an archive.

Theory of operation
-------------------
A run of our own, with ``containers: nested``, has the directory of the Dockerfile as its workspace, which is the
context, and the policy of that directory, without its image; so what a build fetches and sees is behind the same rules
as what a command does, and its layers are kept for the next build.  Engines are those that are installed; the host's
are not asked.

What the engine writes is a stranger's archive.  It comes through a pipe, at most ``MOST_BYTES``, into a file that no
sandbox has, and is judged like any other (``host.imagefiles``) after everything in the sandbox has ended.  What it says
is escaped.

It also says what it executes, line by line.  An instruction there that takes files and is none of the Dockerfile is one
of an image in FROM (ONBUILD): what it takes is not known, so the whole directory counts (``imagecontext``).  What a
command of the build prints can look like one, which is a build too many.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

from ..errors import HostError
from ..escaping import escape
from ..host import imagefiles
from ..host.unpack import MOST_BYTES
from ..policy.grammar import NO_IMAGE
from . import imagecontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LONGEST_LINE = 4096  # bytes that an engine says without an end of line
_LAST_LINES = 20
NO_ENGINE = 69  # EX_UNAVAILABLE of sysexits(3): the status of ``_SCRIPT`` without an engine
_SCRIPT = f"""
set -e
if command -v podman >/dev/null; then
    podman build ${{2:+"--platform=$2"}} -t membrane-image -f "$1" . >&2
    exec podman save --format oci-archive membrane-image
elif command -v docker >/dev/null; then
    docker build ${{2:+"--platform=$2"}} -t membrane-image -f "$1" . >&2
    exec docker save membrane-image
elif command -v buildah >/dev/null; then
    buildah build ${{2:+"--platform=$2"}} -t membrane-image -f "$1" . >&2
    buildah push membrane-image oci-archive:/tmp/membrane-image.tar >&2
    exec cat /tmp/membrane-image.tar
fi
exit {NO_ENGINE}
"""
# An instruction as podman and buildah say it, as BuildKit does; what Docker's older builder says of all of an image.
_EXECUTED = re.compile(r"STEP \d+/\d+: (.*)|#\d+ \[[^\]]*\d+/\d+\] (.*)|# Executing \d+ build trigger")


def build(path: str, platform: str, archive: str, progress: Callable[[str], None], say: Callable[[str], None]) -> bool:
    """Build the Dockerfile ``path`` and write the image to the new file ``archive``.

    Returns:
        It took files by an instruction of an image in FROM (``triggered``).

    Args:
        platform: of the image (``grammar.parse_platform``); empty: this machine's.
        progress: takes what the engine says, line by line.
        say: takes the last of these lines, for a person, where the build failed.

    Raises:
        HostError: there is no such file, no engine, or the build failed.
    """
    reference = f"dockerfile:{path}"
    context, name = os.path.split(path)
    try:
        place = imagefiles.opened(context, os.O_PATH | os.O_DIRECTORY)
    except OSError as error:
        raise HostError("build the image", imagefiles.cause_of(error), target=path) from None
    source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    program = "import sys; sys.path.append(sys.argv.pop(1)); from membrane.ui.cli import main; "
    program += "sys.exit(main(sys.argv[1:]))"
    ours = [sys.executable, "-I", "-c", program, source]
    options = ["--quiet", f"--image={NO_IMAGE}", "--containers", "--"]
    words = [*ours, *options, "/bin/sh", "-c", _SCRIPT, "sh", f"./{name}", platform]
    if not os.path.isfile(f"/proc/self/fd/{place}/{name}"):
        os.close(place)
        raise HostError("build the image", "there is no such file", target=path, fix=("membrane image init FILE",))
    own, by_trigger = imagecontext.instructions(path), False

    def hear(line: str) -> None:
        nonlocal by_trigger
        by_trigger = by_trigger or triggered(line, own)
        progress(line)

    fd = os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        process = subprocess.Popen(
            words,
            cwd=f"/proc/self/fd/{place}",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        os.close(place)
        try:
            lines = _heard(process, file.write, hear)
            status = process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if status == NO_ENGINE and not lines:
        cause = "no podman, docker or buildah is installed"
        raise HostError("build the image", cause, target=reference, fix=("apt install podman",))
    if status:
        for line in lines[:-1]:  # why a step failed stands before the engine's own last word
            say(escape(line[-500:]))
        cause = escape(lines[-1][-500:]) if lines else f"the engine ended with {status}"
        fix = f"cd {context} && membrane --containers -- podman build -f {name} ."
        refused = "membrane trace show @last --denied   # what it may not reach"
        raise HostError("build the image", cause, target=reference, fix=(refused, fix))
    return by_trigger


def triggered(line: str, own: Sequence[str] | None) -> bool:
    """Does an engine say by ``line`` that it takes files of the context by an instruction that the Dockerfile has not?

    Args:
        own: its instructions (``imagecontext.instructions``); None: all of the context counts without this.
    """
    found = _EXECUTED.search(line) if own is not None else None
    if found is None or own is None:
        return False
    words = (found[1] or found[2] or "").split()
    if not words:
        return True
    takes = words[0].upper() in ("COPY", "ADD") or (words[0].upper() == "RUN" and any("--mount" in x for x in words))
    return takes and words not in [instruction.split() for instruction in own]


def _heard(
    process: subprocess.Popen[bytes], keep: Callable[[bytes], object], progress: Callable[[str], None]
) -> list[str]:
    """Keep what comes on stdout, to the end of both; the last lines of stderr.

    Raises:
        HostError: more comes than an image may have.
    """
    import select

    assert process.stdout is not None and process.stderr is not None
    out, said = process.stdout.fileno(), process.stderr.fileno()
    total, text, lines = 0, b"", list[str]()
    waiting, open_ends = select.poll(), {out, said}
    for fd in open_ends:
        waiting.register(fd, select.POLLIN)
    with process.stdout, process.stderr:
        while open_ends:
            for fd, _events in waiting.poll():
                data = os.read(fd, 1 << 16)
                if not data:
                    waiting.unregister(fd)
                    open_ends.discard(fd)
                if fd == out:
                    total += len(data)
                    if total > MOST_BYTES:
                        raise HostError("build the image", f"it has more than {MOST_BYTES} bytes")
                    keep(data)
                    continue
                *whole, text = (text + data).split(b"\n")
                if not data or len(text) > _LONGEST_LINE:
                    whole, text = [*whole, text], b""
                new = [line.decode("utf-8", "replace").rstrip() for line in whole if line.strip()]
                for line in new:
                    progress(line)
                lines = [*lines, *new][-_LAST_LINES:]
    return lines
