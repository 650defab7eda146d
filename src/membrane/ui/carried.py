"""Inside the container that carries a run (``plan.carrier``): pid 1, and what hands it the run.

Theory of operation
-------------------
``carry`` is pid 1.  It listens on a socket in a private tmpfs, says so by a file in Membrane's state, and takes one
caller: ``hand``, started by ``docker exec``, which copies between its streams and that socket.  So the policy and the
values of secrets come by a pipe, and are in no argument, variable or file.  The connection stays open as long as the
Membrane outside lives: when it ends, whatever killed that one, the run gets SIGTERM and, after ``GRACE`` seconds, the
container ends, and with it every process (pid_namespaces(7)).

After the frame the same pipe has streams (``ui.pipe``).  For each unix socket that the policy names and each port of
the caller's loopback pid 1 listens at the same place of the container, before the run begins, so that the run finds
them as it would on the caller's machine; only the supervisor and its gateway can reach these places.  Files that the
caller named come the other way: what the run writes to a FIFO goes to the half outside, which has the file.

``membrane exec`` of outside is two processes here: ``join`` is the caller of ``ui.exec``, with the streams of a
``docker exec``, which forwards no signal and leaves its process behind when its client is killed.  So a second one,
``steer``, has a pipe from outside: each byte is a signal for the first, and the end of the pipe is its end.

The run is a child, in the foreground of the terminal if there is one; pid 1 forwards signals to it, lets it go on when
it stops itself (there is no shell here), and reaps.  It ends with its status, 128+n for signal n.
"""

from __future__ import annotations

import marshal
import os
import select
import signal
import socket
import sys
import time

from ..errors import EX_WRAPPER, HostError, MembraneError, PolicyError
from ..escaping import escape, visible
from ..value import Value
from .pipe import BACKLOG, Pipe, Service

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

DOOR = "/run/membrane"
TAKEN = b"\n"  # what pid 1 says when it has the frame
VERSION = 4  # of marshal: every Python from 3.4 on reads it
LARGEST = 64 << 20  # bytes of a frame
GRACE = 60.0  # seconds for the run to end by itself when there is nobody outside any more
FORWARDED = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGWINCH),
    *(signal.SIGUSR1, signal.SIGUSR2),  # the run passes these on to the command
)


class Frame(Value):
    """A run that was resolved outside."""

    release: str  # of the Membrane outside
    subcommand: str  # "run", or what else is carried
    workspace: str
    words: tuple[str, ...]  # the command of a run, empty: a shell; of another subcommand its words
    options: tuple[tuple[str, Any], ...]  # arguments of ``prepare.RunOptions``; of another subcommand what was typed
    environment: tuple[tuple[str, str], ...]
    policy: bytes  # ``codec.dump``
    secrets: tuple[bytes, ...]
    places: tuple[tuple[str, int], ...]  # trees that may be written, and those below them; their inodes outside
    services: tuple[tuple[str, str], ...] = ()  # outside, by number: ("socket", path), ("port", number), ("file", path)
    normalises: bool = False  # the file system outside may take two forms of a name in Unicode as one
    exposed: tuple[int, ...] = ()  # ports of this loopback that the half outside may open, by number

    def dump(self) -> bytes:
        """The frame with its length (8 bytes, big endian) in front."""
        data = marshal.dumps(tuple(getattr(self, name) for name in self.field_names), VERSION)
        return len(data).to_bytes(8, "big") + data


def ready(state: str, name: str) -> str:
    """The file that says that ``carry`` listens."""
    return f"{state}/carried/{name}.ready"


def main(words: list[str]) -> int:
    """``carry NAME``, ``hand``, ``steer TOKEN`` or ``join TOKEN SESSION DIRECTORY WORDS``."""
    if words[0] == "hand":
        return hand()
    if words[0] == "steer":
        return steer(f"{DOOR}-{words[1]}")
    if words[0] == "join":
        return join(f"{DOOR}-{words[1]}", words[2], words[3], words[4:])
    return carry(words[1])


def hand() -> int:
    """Copy stdin to pid 1 and what it says to stdout, until stdin ends."""
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(DOOR)
        reader = os.fork()  # two processes: neither direction waits for the other
        if not reader:
            _copy(door.fileno(), 1)
            os._exit(0)
        _copy(0, door.fileno())
        door.shutdown(socket.SHUT_RDWR)
    return 0


def _copy(source: int, sink: int) -> None:
    try:
        while data := os.read(source, 1 << 16):
            while data:
                data = data[os.write(sink, data) :]
    except OSError:
        pass  # one of the two has ended


def steer(place: str) -> int:
    """Wait for ``join``, and pass it the signals that come on stdin, those from before as well; with stdin it ends."""
    numbers = b""
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(place)
        door.listen(1)
        os.write(1, b"\n")
        while not _comes(door):
            came = os.read(0, 16)
            if not came:
                return 0
            numbers = (numbers + came)[-16:]
        line, _ = door.accept()
    os.unlink(place)
    pid = int.from_bytes(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4), sys.byteorder)
    try:
        process = os.pidfd_open(pid)
        line.sendall(TAKEN)
        while True:
            for number in numbers:
                if number in (*FORWARDED, signal.SIGKILL):
                    signal.pidfd_send_signal(process, number)
            if signal.SIGKILL in numbers or _comes(line):
                break
            numbers = os.read(0, 16) or bytes((signal.SIGKILL,))  # its session sees the end of its stream
    except (ProcessLookupError, BrokenPipeError):
        pass  # it has ended
    return 0


def _comes(other: socket.socket) -> bool:
    """Wait for ``other`` or stdin: whether it is ``other`` that can be read, or has ended."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(other, select.POLLIN)
    return any(fd == other.fileno() for fd, _events in poll.poll())


def join(place: str, session: str, directory: str, words: list[str]) -> int:
    """Be the caller of ``membrane exec``, in ``directory``; the exit status of the command.

    Nothing runs before ``steer`` has it: a signal would not reach it, nor the end of the one outside.
    """
    from . import cli

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until ``exec`` forwards it
    with socket.socket(socket.AF_UNIX) as line:
        try:
            line.connect(place)
            taken = line.recv(1)
        except OSError:
            taken = b""
        if taken != TAKEN:
            return 128 + signal.SIGKILL  # as the one outside has ended
        try:
            os.chdir(directory)
        except OSError:
            pass  # gone meanwhile: where it stands is in no workspace, which is said
        return cli.main(["exec", session, "--", *words])


def carry(name: str) -> int:
    """Take the run, run it, and return its exit status."""
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(DOOR)
        os.chmod(DOOR, 0o600)
        door.listen(1)
        os.close(os.open(ready(os.environ["MEMBRANE_HOME"], name), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        line, _ = door.accept()
    os.unlink(DOOR)
    try:
        frame = read(line)
        line.sendall(TAKEN)
        pipe = Pipe(line.fileno(), line.fileno(), 1, [Service("port", port=port) for port in frame.exposed])
        files = _Files(pipe)
        _offer(frame, pipe, files)
    except MembraneError as error:
        _say(error)
        return error.exit_code
    wake, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    child = os.fork()
    if not child:
        status = EX_WRAPPER
        try:
            files.forget()
            pipe.close()
            line.close()
            status = _run(frame)
            sys.stderr.flush()
        except MembraneError as error:
            _say(error)
        finally:
            os._exit(status)
    for number in (*FORWARDED, signal.SIGCHLD):
        signal.signal(number, lambda _number, _frame: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    status = _wait(child, pipe, wake)
    files.finish()
    return status


def _say(error: MembraneError) -> None:
    """On stderr; a cause may quote a name of the workspace, which steers no terminal."""
    lines = [visible(line) for line in error.lines()]
    print("membrane: " + "\n".join(lines), file=sys.stderr, flush=True)


class _Files:
    """What the run writes, and the half outside has a file for."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._open: list[int] = []  # streams
        self._kept: list[int] = []  # a writer of each FIFO: no end before the run's
        self._last: list[tuple[str, int]] = []

    def add(self, path: str, service: int) -> None:
        """A path of /run gets a FIFO, any other is sent when it is whole."""
        if not path.startswith(f"{DOOR}-"):
            self._last.append((path, service))
            return
        os.mkfifo(path, 0o600)
        source = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._kept.append(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
        self._open.append(self._pipe.send(source, service))

    def forget(self) -> None:
        """In the child, which writes by name."""
        for fd in self._kept:
            os.close(fd)

    def finish(self) -> None:
        """Send the rest; wait for the half outside to have written it, as long as it goes on."""
        self.forget()
        for path, service in self._last:
            try:
                self._open.append(self._pipe.send(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), service))
            except OSError:
                continue  # the run ended before it had one
        while any(self._pipe.is_open(number) for number in self._open):
            poll = select.poll()
            for fd, events in self._pipe.waits().items():
                poll.register(fd, events)
            ready = poll.poll(GRACE * 1000)
            if not ready:
                return
            _turn(self._pipe, ready)


def _offer(frame: Frame, pipe: Pipe, files: _Files) -> None:
    """Be what the run will find.

    Raises:
        HostError: a place cannot be made.
    """
    for number, (kind, where) in enumerate(frame.services):
        try:
            if kind == "file":
                files.add(where, number)
                continue
            if kind == "socket":
                os.makedirs(os.path.dirname(where), 0o700, exist_ok=True)
            listener = socket.socket(socket.AF_UNIX if kind == "socket" else socket.AF_INET)
            listener.bind(where if kind == "socket" else ("127.0.0.1", int(where)))
            listener.listen(BACKLOG)
        except OSError as error:
            raise HostError("make a place for a service of yours", error.strerror or "", target=where) from None
        pipe.listen(listener, number)


def _turn(pipe: Pipe, ready: list[tuple[int, int]]) -> None:
    try:
        pipe.turn(ready)
    except HostError:
        pipe.close()


def _wait(child: int, pipe: Pipe, wake: int) -> int:
    """Until the child has ended, or the time for it has."""
    end = 0.0
    while True:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return EX_WRAPPER
            if not pid:
                break
            if pid == child and os.WIFSTOPPED(status):
                os.kill(child, signal.SIGCONT)
            elif pid == child:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
        left = max(0.0, end - time.monotonic()) if end else None
        if left == 0.0:
            return 128 + signal.SIGTERM
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        for fd, events in pipe.waits().items():
            poll.register(fd, events)
        ready = poll.poll(None if left is None else left * 1000)
        if any(fd == wake for fd, _events in ready):
            for number in os.read(wake, 512):
                if number in FORWARDED:
                    os.kill(child, number)
        _turn(pipe, ready)
        if pipe.ended and not end:  # nothing more is said: there is nobody outside
            end = time.monotonic() + GRACE
            os.kill(child, signal.SIGTERM)


def read(line: socket.socket) -> Frame:
    """The frame that comes first.

    Raises:
        HostError: it is cut short, or comes from another Membrane than the image has.
    """
    from ..run.installed import VERSION as RELEASE

    try:
        size = int.from_bytes(_exactly(line, 8), "big")
        fields: Any = marshal.loads(_exactly(line, size)) if size <= LARGEST else ()  # noqa: S302 - of our caller
        if fields[0] == RELEASE:
            return Frame(*fields)
    except (EOFError, TypeError, ValueError, IndexError):
        pass
    from ..plan.carrier import IMAGE

    raise HostError(
        "carry the run",
        f"the image has Membrane {RELEASE}, and was asked by another one",
        target=IMAGE,
        fix=(f"build it again: membrane setup container dockerfile | docker build -t {IMAGE} -",),
    )


def _exactly(line: socket.socket, size: int) -> bytes:
    out = b""
    while len(out) < size:
        data = line.recv(min(size - len(out), 1 << 20))
        if not data:
            raise EOFError
        out += data
    return out


def _run(frame: Frame) -> int:
    """The run itself, as ``ui.cli`` runs one."""
    if os.isatty(0):  # the terminal's own signals go to the run and not to pid 1
        os.setpgid(0, 0)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        os.tcsetpgrp(0, os.getpid())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.environ.update(_changed(dict(frame.environment), os.environ))
    for path, inode in frame.places:  # a name on the way may have become a link since it was looked at
        if os.stat(path).st_ino != inode:
            cause = "the container shows another directory there than the caller has"
            raise HostError("carry the run", cause, target=path, fix=("start it again",))
    os.chdir(frame.workspace)
    if frame.normalises and frame.subcommand in ("run", "learn"):
        _check_forms(frame)
    from ..run import secrets
    from . import cli

    secrets.given[:] = frame.secrets
    if frame.subcommand != "run":
        return cli.do_carried(frame.subcommand, frame.words, dict(frame.options), frame.policy)
    return cli.run_carried(frame.words, frame.policy, dict(frame.options))


def _check_forms(frame: Frame) -> None:
    """Refuse names that rules cover and that have a second spelling.

    APFS and HFS+ find a name by each of its forms (Unicode Standard Annex 15), the kernel here keeps them apart: what
    is mounted over one would not be over the other.  It holds for each directory on the way as well.  That HFS+ leaves
    out some characters is part of its comparison without case (TN1150), which is refused outside.

    Raises:
        PolicyError: names them.
    """
    from ..policy import codec
    from ..workspace.scan import scan

    policy = codec.restore(frame.policy)
    paths = [hit.path for hit in scan(frame.workspace, policy.paths).hits]
    own = f"file:{frame.workspace.rstrip('/')}/"
    paths += [mask.source.removeprefix(own) for mask in policy.masks if mask.source.startswith(own)]
    found = [path for path in paths if has_forms(path)]
    if found:
        cause = f"{escape(found[0])} has a second spelling, which the file system of your machine takes for the same"
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise PolicyError("bind a rule", cause + more, fix=("give it, and the directories above it, plain letters",))


def has_forms(path: str) -> bool:
    """Whether a path can be written in another way that is the same to a file system that normalises names."""
    if path.isascii():
        return False
    from unicodedata import normalize

    try:
        path.encode()
    except UnicodeEncodeError:
        return False  # not UTF-8: such a file system has no name like this
    return len({path, *(normalize(form, path) for form in ("NFC", "NFD"))}) > 1


def _changed(given: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in given.items() if name not in ("HOME", "MEMBRANE_HOME") or name not in own}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
