"""The gateway of one session, seen from the supervisor: started late, stopped in order, never trusted to parse.

The sockets of the sandbox's network namespace are kept until the first of them becomes readable.  Then an
interpreter of its own gets them, with an empty environment, and the policy over its control socket; our copies are
closed.  What it sends is decoded message by message (``gateway.messages``), each of a bounded length.

Its last message says that everything was sent, and how many events that were.  ``stop`` asks for it, waits within a
bound, and returns why it is missing: an end without that proof is none, and the record says so.
"""

from __future__ import annotations

import _socket
import os
import select
import sys
import time

from ..errors import HostError, MembraneError
from ..host.channel import SIGKILL
from ..host.ready import ready
from ..messages import Frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..gateway.messages import Asked, Renewed, Setup
    from ..messages import Message
    from ..policy.model import Policy
    from .event_log import EventLog

START = 60.0  # seconds for the gateway to make a certificate authority, on a busy machine
END = 30.0  # seconds for the gateway to take the last packets and send its last events, on a busy machine
SILENT = ("factory", "servers", "diag", "destinations", "senders")  # roles of sockets at which nothing arrives


class Gateway:
    """The gateway of one session, started when it is first needed.

    Args:
        sockets: role and descriptor of each.
        config: fields of ``gateway.messages.Setup``.
        secrets, logins: rows of ``run.secrets`` and ``run.masks``.
    """

    def __init__(
        self,
        sockets: list[tuple[str, int]],
        config: dict[str, Any],
        log: EventLog,
        secrets: Sequence[Sequence[Any]] = (),
        logins: Sequence[dict[str, Any]] = (),
    ) -> None:
        self.sockets = sockets
        self.pid = 0
        self.pidfd = -1
        self.control = -1
        self.stats: dict[str, int] = {}  # from its last message; empty until then
        self._taken = 0  # events of it
        self.error = ""
        self.certificate = b""  # of its certificate authority, once it has one
        self.on_question: Callable[[Asked], None] | None = None
        self.on_withdrawn: Callable[[int], None] | None = None
        self.on_login: Callable[[Renewed], None] | None = None
        self.on_synced: Callable[[int], None] | None = None
        self.copies = any(role == "refused" for role, _fd in sockets)  # refused packets are reported
        self._config = config
        self._rows = list(secrets), list(logins)
        self._log = log
        self._socket: _socket.socket | None = None
        self._frames: Frames | None = None

    def start(self) -> None:
        """Spawn the process with the sockets; our copies are closed.

        Raises:
            HostError: it cannot be started.
        """
        from ..gateway.messages import FROM_GATEWAY, TO_GATEWAY, Begin

        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        highest = max([theirs.fileno(), *(fd for _role, fd in self.sockets)]) + 1
        moves: list[Any] = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), highest)]
        numbered = []
        for offset, (role, fd) in enumerate(self.sockets, 1):
            moves.append((os.POSIX_SPAWN_DUP2, fd, highest + offset))
            numbered.append((role, highest + offset))
        moves += [(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_RDWR, 0) for fd in (0, 1)]
        # The package is found where this one was found, also when it is not installed; -I keeps everything of the
        # caller's environment and directory out of the process.
        source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        program = (
            "import sys; sys.path.append(sys.argv.pop(1)); "
            "from membrane.host import confine; confine.give_up_privileges(); confine.read_only_files(); "
            "from membrane.gateway.server import serve; serve(sys.argv)"
        )
        argv = [sys.executable, "-I", "-c", program, source, str(highest)]
        try:
            self.pid = os.posix_spawn(sys.executable, argv, {"LC_ALL": "C.UTF-8"}, file_actions=moves, setsid=True)
            self.pidfd = os.pidfd_open(self.pid)
        except OSError as error:
            raise HostError("start the gateway", error.strerror or "", target=sys.executable) from None
        finally:
            theirs.close()
            for _role, fd in self.sockets:
                os.close(fd)
            self.sockets = []
        self._frames = Frames(FROM_GATEWAY)
        ours.sendall(TO_GATEWAY.frame(Begin(self._setup(tuple(numbered)))))
        self._config, self._rows = {}, ([], [])  # secrets were in it
        ours.setblocking(False)
        self._socket, self.control = ours, ours.fileno()

    def _setup(self, sockets: tuple[tuple[str, int], ...]) -> Setup:
        from ..gateway.messages import LoginRow, SecretRow, Setup

        def places(rows: list[list[Any]]) -> tuple[Any, ...]:
            return tuple(map(tuple, rows))

        secrets, logins = self._rows
        return Setup(
            **self._config,
            sockets=sockets,
            secrets=tuple(SecretRow(row[0], row[1], row[2], row[3], places(row[4])) for row in secrets),
            logins=tuple(
                LoginRow(tuple(row["names"]), places(row["endpoints"]), places(row["to"]), row["place"])
                for row in logins
            ),
        )

    def update(self, policy: Policy) -> None:
        """Decide by another policy from now on.

        Raises:
            HostError: the process does not take it.
        """
        if self._socket is None:
            self._config["policy"] = policy
            return
        from ..gateway.messages import TO_GATEWAY, Follow

        try:
            self._socket.settimeout(END)
            self._socket.sendall(TO_GATEWAY.frame(Follow(policy)))
        except OSError as error:
            raise HostError("change the network rules", error.strerror or "it does not answer") from None
        finally:
            self._socket.setblocking(False)

    def read(self) -> bool:
        """Take messages; False at the end of the stream.

        Raises:
            InternalError: it sent something else (``Malformed``), or an event that is not one of its own.
        """
        assert self._socket is not None and self._frames is not None
        try:
            try:
                data = self._socket.recv(1 << 18)
            except ConnectionResetError:
                # It ended with something of ours unread.  The kernel says that once and before what it had sent
                # (unix(7), net/unix/af_unix.c unix_release_sock), and its last message is the one that matters.
                data = self._socket.recv(1 << 18)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        if not data:
            return False
        try:
            for message in self._frames.feed(data):
                self._take(message)
        finally:
            self._log.flush()
        return True

    def _take(self, message: Message) -> None:
        from ..gateway import messages as m

        if isinstance(message, m.Lines):
            for line in message.text.removesuffix(b"\n").split(b"\n"):
                self._log.add_line(line, "network")
                self._taken += 1
        elif isinstance(message, m.Totals):
            self._log.add_totals(message.bytes_up, message.bytes_down)
        elif isinstance(message, m.Asked):
            if self.on_question is not None:
                self.on_question(message)
        elif isinstance(message, m.Withdrawn):
            if self.on_withdrawn is not None:
                self.on_withdrawn(message.number)
        elif isinstance(message, m.Renewed):
            if self.on_login is not None:
                self.on_login(message)
        elif isinstance(message, m.Synced):
            if self.on_synced is not None:
                self.on_synced(message.number)
        elif isinstance(message, m.Certificate):
            self.certificate = message.pem
        elif isinstance(message, m.Failed):
            self.error = message.text
        elif isinstance(message, m.Ended):
            self.stats = {**dict(zip(message.kinds, message.counts, strict=True)), "events": message.events}

    def sync(self, number: int) -> bool:
        """Ask for ``on_synced(number)`` once everything that happened until now was sent; False when nothing runs."""
        if self._socket is None:
            return False
        from ..gateway.messages import TO_GATEWAY, Sync

        try:
            self._socket.settimeout(END)  # many ask, and it reads slowly
            self._socket.sendall(TO_GATEWAY.frame(Sync(number)))
        except OSError:
            return False
        finally:
            self._socket.setblocking(False)
        return True

    def answer(self, number: int, answer: str) -> None:
        """Send the answer to a question; a process that does not read is as good as dead, and is ended as such."""
        if self._socket is None:
            return
        from ..gateway.messages import TO_GATEWAY, Answer

        try:
            self._socket.send(TO_GATEWAY.frame(Answer(number, answer)))
        except OSError:
            pass  # its end is on the way; no answer is a "no"

    def wait_for_certificate(self) -> bytes:
        """Wait until the process, started before, has made its certificate authority; the certificate in PEM.

        Raises:
            HostError: it ended, or said nothing in time.
        """
        deadline = time.monotonic() + START
        while not self.certificate:
            left = deadline - time.monotonic()
            if left <= 0 or not ready((self.control,), seconds=left)[0]:
                raise HostError("start the gateway", f"no certificate authority within {START:.0f} s")
            if not self.read():
                raise HostError("start the gateway", self.error or "it ended early")
        return self.certificate

    def stop(self) -> str:
        """Ask for its last events and its end, wait for at most ``END``, then kill it.

        Returns:
            Why it is not known that it has sent everything; empty when it has said so, or never ran.
        """
        if self.has_packets():
            try:
                self.start()  # for what the command did last
            except MembraneError as error:
                return str(error)
        for _role, fd in self.sockets:
            os.close(fd)
        self.sockets = []
        if not self.pid:
            return ""
        deadline = time.monotonic() + END
        assert self._socket is not None
        try:
            self._socket.shutdown(_socket.SHUT_WR)
        except OSError:
            pass  # it is gone; what it sent before is still there
        wrong = self._take_rest(deadline)
        in_time = bool(ready((self.pidfd,), seconds=max(0.0, deadline - time.monotonic()))[0])
        if not in_time:
            os.kill(self.pid, SIGKILL)
        status = os.waitpid(self.pid, 0)[1]
        if not self.stats and not wrong:
            wrong = self._take_rest(0.0)  # what it had sent before
        os.close(self.pidfd)
        self._socket.close()
        self.pid, self.pidfd, self.control = 0, -1, -1
        if wrong:
            return wrong
        if self.stats:
            sent = self.stats["events"]
            return "" if sent == self._taken else f"it sent {sent} events, and {self._taken} came"
        if self.error:
            return f"it failed: {self.error.splitlines()[-1]}"
        if not in_time:
            return f"it did not end within {END:g} s and was killed"
        if os.WIFSIGNALED(status):
            return f"it was killed by signal {os.WTERMSIG(status)}"
        return f"it ended with status {os.WEXITSTATUS(status)} and without its last message"

    def has_packets(self) -> bool:
        """Has something arrived for a process that was not started yet?"""
        if self.pid:
            return False
        poll = select.poll()
        for role, fd in self.sockets:
            if role not in SILENT:
                poll.register(fd, select.POLLIN)
        # A pair whose other end was closed can be read as well: its end, if nothing came before (unix(7))
        arrived = any(not events & select.POLLHUP or _holds_packet(fd) for fd, events in poll.poll(0))
        return bool(self._config) and arrived

    def _take_rest(self, deadline: float) -> str:
        """Read until the end of its stream or ``deadline`` (0: what is there); what was wrong with it."""
        assert self._socket is not None
        try:
            while (left := deadline - time.monotonic() if deadline else 0.0) >= 0:
                if not ready((self._socket.fileno(),), seconds=left)[0] or not self.read():
                    break
        except (MembraneError, OSError) as error:
            return str(error)
        return ""


def _holds_packet(fd: int) -> bool:
    """Is something in a socket's queue that was not read?"""
    socket = _socket.socket(fileno=os.dup(fd))
    try:
        return bool(socket.recv(1, _socket.MSG_PEEK | _socket.MSG_DONTWAIT))
    except OSError:
        return False
    finally:
        socket.close()
