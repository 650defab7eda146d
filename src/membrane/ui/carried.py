"""Inside the container that carries a run (``plan.carrier``): pid 1, and what hands it the run.

Theory of operation
-------------------
``carry`` is pid 1.  It listens on a socket in a private tmpfs, says so by a file in Membrane's state, and takes one
caller: ``hand``, started by ``docker exec``, which copies what it reads to that socket.  So the policy and the values
of secrets come by a pipe, and are in no argument, variable or file.  The connection stays open as long as the
Membrane outside lives: when it ends, whatever killed that one, the run gets SIGTERM and, after ``GRACE`` seconds, the
container ends, and with it every process (pid_namespaces(7)).

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

from ..errors import EX_WRAPPER, HostError, MembraneError
from ..value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

DOOR = "/run/membrane"
VERSION = 4  # of marshal: every Python from 3.4 on reads it
LARGEST = 64 << 20  # bytes of a frame
GRACE = 10.0  # seconds for the run to end by itself when there is nobody outside any more
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGWINCH)


class Frame(Value):
    """A run that was resolved outside."""

    release: str  # of the Membrane outside
    workspace: str
    command: tuple[str, ...]  # empty: a shell
    options: tuple[tuple[str, str | bool], ...]  # arguments of ``prepare.RunOptions``
    environment: tuple[tuple[str, str], ...]
    policy: bytes  # ``codec.dump``
    secrets: tuple[bytes, ...]
    places: tuple[tuple[str, int], ...]  # the trees that may be written, with their inodes outside

    def dump(self) -> bytes:
        """The frame with its length (8 bytes, big endian) in front."""
        data = marshal.dumps(tuple(getattr(self, name) for name in self.field_names), VERSION)
        return len(data).to_bytes(8, "big") + data


def ready(state: str, name: str) -> str:
    """The file that says that ``carry`` listens."""
    return f"{state}/carried/{name}.ready"


def main(words: list[str]) -> int:
    """``carry NAME`` or ``hand``."""
    if words == ["hand"]:
        return hand()
    return carry(words[1])


def hand() -> int:
    """Copy stdin to pid 1 until it ends."""
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(DOOR)
        while data := os.read(0, 1 << 16):
            door.sendall(data)
    return 0


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
    except MembraneError as error:
        print("membrane: " + "\n".join(error.lines()), file=sys.stderr, flush=True)
        return error.exit_code
    wake, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    child = os.fork()
    if not child:
        status = EX_WRAPPER
        try:
            line.close()
            status = _run(frame)
            sys.stderr.flush()
        except MembraneError as error:
            print("membrane: " + "\n".join(error.lines()), file=sys.stderr, flush=True)
        finally:
            os._exit(status)
    for number in (*FORWARDED, signal.SIGCHLD):
        signal.signal(number, lambda _number, _frame: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    return _wait(child, line, wake)


def _wait(child: int, line: socket.socket, wake: int) -> int:
    """Until the child has ended, or the time for it has."""
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    poll.register(line, select.POLLIN)
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
        for fd, _ in poll.poll(None if left is None else left * 1000):
            if fd == wake:
                for number in os.read(wake, 512):
                    if number in FORWARDED:
                        os.kill(child, number)
            else:  # nothing more is said: there is nobody outside
                poll.unregister(line)
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
    from ..run import secrets
    from . import cli

    secrets.given[:] = frame.secrets
    return cli.run_carried(frame.command, frame.policy, dict(frame.options))


def _changed(given: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in given.items() if name not in ("HOME", "MEMBRANE_HOME") or name not in own}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
