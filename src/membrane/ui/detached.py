"""``membrane start``, ``attach`` and ``stop``: sessions that go on without the terminal that began them.

Theory of operation
-------------------
``begin`` forks twice.  The *job* is an ordinary run, with a terminal of its own as its controlling terminal.  The
*keeper* holds the other end of that terminal, the last bytes that were printed, and a socket
``STATE/detached/NAME.sock``; there is no daemon, and it ends with its job.  ``attach`` and ``stop`` are its clients.
It knows nothing of the sandbox: what it carries are the bytes that a run prints and reads on any terminal.

The end of a job that no one saw waits in ``NAME.end`` (its exit status and the last bytes) for the next ``attach``.

Rules
-----
1. Only this user connects: the directory is 0700, the socket 0600, and the keeper asks the kernel who is there
   (SO_PEERCRED, unix(7)) and in which user namespace: a process of a sandbox is in another one, whatever it can see.
2. The job waits for no client: one that does not take what is printed is let go of.
3. If the keeper dies, its end of the terminal goes, the job gets SIGHUP and ends as any run whose terminal goes.

Messages (SOCK_SEQPACKET, which keeps their borders), first byte: to the keeper ``w`` (size of the window, as struct
winsize of tty_ioctl(4); attaches), ``d`` (keys), ``s`` (end the job); to the client ``d`` (output), ``k`` (another
terminal is attached now), ``x`` (exit status, 4 bytes).
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import termios

from ..errors import HostError, PolicyError
from ..escaping import escape
from ..host.private import make_private
from ..host.ready import ready
from ..run.session import Hooks
from .options import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..run.session import Session

KEPT = 1 << 16  # bytes of output that a client is shown when it comes
MESSAGE = 1 << 14  # bytes of one message
MOST_PENDING = 1 << 20  # bytes that a client has not taken; keys that the job has not
MOST_CLIENTS = 8
MOST_NAMES = 64  # sessions of one workspace whose name was not given
LONGEST_NAME = 64
PREFIX = 0x1C  # Ctrl-\, then d: let go of the session; twice: the key itself
DETACH = ord("d")
_PATIENCE = 30000  # ms that the end waits for clients to take what was printed


def check_name(name: str) -> str:
    """``name``, which becomes that of a file.

    Raises:
        UsageError: it is none.
    """
    good = name[:1].isalnum() and all(char.isalnum() or char in "._-" for char in name) and name.isascii()
    if not good or len(name) > LONGEST_NAME:
        cause = f"{name!r} is no name of a session: letters, digits, '.', '_' and '-', at most {LONGEST_NAME}"
        raise UsageError("parse the command line", cause)
    return name


def split(words: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Name and command of ``start [NAME] -- COMMAND``; without a name it is empty."""
    if words[1:2] == ("--",):
        return check_name(words[0]), words[2:]
    return "", words


# ---------------------------------------------------------------- start


class Begun(Hooks):
    """In the job: reports to the waiting caller that the command was released."""

    def __init__(self, state: str, name: str, news: int) -> None:
        self._state, self._name, self._news = state, name, news

    def started(self, session: Session) -> None:
        """Note the session's id beside the socket, and send it."""
        place = _place(self._state)
        _write(place, f"{self._name}.id", session.id.encode())
        os.close(place)
        os.write(self._news, session.id.encode())
        os.close(self._news)


def begin(state: str, name: str, workspace: str, *, kept: int = -1) -> tuple[Begun | None, int, str]:
    """Fork keeper and job.

    Args:
        name: of the session; empty: made from the workspace's.
        kept: a descriptor that the run is to have; of the caller's others it has none.

    Returns:
        In the job the hooks of its run, which is to follow.  In the caller None, the exit status, and what to say: the
        session runs, or has ended before its command ran.

    Raises:
        UsageError: a session of that name runs.
        HostError: a socket or a terminal cannot be made.
    """
    place = _place(state)
    fcntl.flock(place, fcntl.LOCK_EX)  # two that start at once take two names
    chosen, door = _door(place, name, workspace)
    for suffix in ("id", "end"):
        _remove(place, f"{chosen}.{suffix}")
    fcntl.flock(place, fcntl.LOCK_UN)  # each fork has the same lock
    size = _size()
    news, report = os.pipe2(os.O_CLOEXEC)
    sys.stdout.flush()
    if keeper := os.fork():
        door.close()
        os.close(report)
        os.close(place)
        session = os.read(news, 64).decode("ascii", "replace")
        os.close(news)
        if session:
            return None, 0, f"{chosen} runs, session {session}; membrane attach {chosen}"
        os.waitpid(keeper, 0)  # it writes down what the job said
        return None, _show_end(state, chosen), ""
    # What keeps the job from here on has nothing of the caller's: not its terminal, its job, its files.
    try:
        os.setsid()
        master, slave = os.openpty()
        fcntl.ioctl(master, termios.TIOCSWINSZ, size)
        job = os.fork()
    except OSError:
        os._exit(1)  # the caller reads the end of the pipe
    if not job:
        os.login_tty(slave)
        door.detach()
        # A pipe of the caller's would not end for who reads it before the session does.
        _close_others({0, 1, 2, report, kept})
        return Begun(state, chosen, report), 0, ""
    try:
        os.close(slave)
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        _close_others({0, 1, 2, master, place, door.fileno()})
        Keeper(place, chosen, door, master, job).run()
    finally:
        os._exit(0)


def _place(state: str) -> int:
    directory = f"{state}/detached"
    make_private(directory)
    return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _door(place: int, name: str, workspace: str) -> tuple[str, socket.socket]:
    """A listening socket, and the name it got."""
    base = "".join(char if char.isascii() and char.isalnum() else "-" for char in os.path.basename(workspace))
    base = base.strip("-")[: LONGEST_NAME - 3] or "session"
    names = [name] if name else [base, *(f"{base}-{number}" for number in range(2, MOST_NAMES + 1))]
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    for each in names:
        path = f"/proc/self/fd/{place}/{each}.sock"  # sun_path has 107 bytes, and a state directory may be deep
        running = _connect(path)
        if running is not None:
            running.close()
            continue
        _remove(place, f"{each}.sock")
        try:
            door.bind(path)
            os.chmod(path, 0o600)
            door.listen(MOST_CLIENTS)
        except OSError as error:
            raise HostError("make the socket of a session", error.strerror or "", target=f"{each}.sock") from None
        return each, door
    cause = f"a session {names[-1]} is running"
    raise UsageError("start a session", cause, fix=(f"membrane attach {names[-1]}", "membrane start NAME -- ..."))


def _connect(path: str) -> socket.socket | None:
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        channel.connect(path)
    except (ConnectionRefusedError, FileNotFoundError):
        channel.close()
        return None
    return channel


def _close_others(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                pass  # that of the listing


def _size() -> bytes:
    """The window of the caller's terminal (struct winsize); 80 to 24 where there is none."""
    for fd in (0, 1, 2):
        try:
            return fcntl.ioctl(fd, termios.TIOCGWINSZ, b"\0" * 8)
        except OSError:
            continue
    return struct.pack("HHHH", 24, 80, 0, 0)


def _write(place: int, name: str, data: bytes) -> None:
    """Write a file of ours whole, or not."""
    half = f".{name}.{os.getpid()}"
    fd = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=place)
    with open(fd, "wb") as file:
        file.write(data)
    os.rename(half, name, src_dir_fd=place, dst_dir_fd=place)


def _remove(place: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=place)
    except FileNotFoundError:
        pass


# ---------------------------------------------------------------- the keeper


class Client:
    """One connection."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.attached = False
        self.waiting: list[bytes] = []

    def say(self, message: bytes) -> bool:
        """Send it, now or later; False: it has too much waiting, or is gone."""
        self.waiting.append(message)
        return sum(map(len, self.waiting)) <= MOST_PENDING and self.flush()

    def flush(self) -> bool:
        """Send what waits, as far as it is taken; False: the other end is gone."""
        try:
            while self.waiting:
                self.channel.send(self.waiting[0], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                del self.waiting[0]
        except BlockingIOError:
            pass
        except OSError:
            return False
        return True


class Keeper:
    """Carries bytes between the job's terminal and who is attached, until the job ends."""

    def __init__(self, place: int, name: str, door: socket.socket, master: int, job: int) -> None:
        self._place, self._name, self._door, self._master, self._job = place, name, door, master, job
        self._kept = bytearray()
        self._keys = bytearray()
        self._clients: dict[int, Client] = {}
        self._namespace = os.stat("/proc/self/ns/user").st_ino
        os.set_blocking(master, False)

    def run(self) -> None:
        """Until the job's end."""
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda _number, _frame: self._stop())
        ended = os.pidfd_open(self._job)
        printed = True  # the terminal is open inside
        while True:
            poll = select.poll()
            poll.register(ended, select.POLLIN)
            poll.register(self._door, select.POLLIN)
            if printed or self._keys:
                poll.register(self._master, printed * select.POLLIN | bool(self._keys) * select.POLLOUT)
            for fd, client in self._clients.items():
                reads = len(self._keys) < MOST_PENDING
                poll.register(fd, reads * select.POLLIN | bool(client.waiting) * select.POLLOUT)
            for fd, event in poll.poll():
                if fd == self._master:
                    printed = self._on_terminal(event) and printed
                    if not printed:
                        self._keys.clear()  # nothing reads them
                elif fd == self._door.fileno():
                    self._accept()
                elif fd in self._clients:
                    self._on_client(fd, event)
                elif fd == ended:
                    self._end()
                    return

    def _on_terminal(self, event: int) -> bool:
        if event & select.POLLOUT:
            try:
                del self._keys[: os.write(self._master, self._keys[:4096])]
            except OSError:
                self._keys.clear()
        if not event & ~select.POLLOUT:
            return True
        try:
            data = os.read(self._master, MESSAGE)
        except BlockingIOError:
            return True
        except OSError:  # EIO: no process has it open any more
            return False
        self._kept += data
        del self._kept[:-KEPT]
        for fd, client in [*self._clients.items()]:
            if client.attached and not client.say(b"d" + data):
                self._drop(fd)
        return bool(data)

    def _accept(self) -> None:
        channel, _ = self._door.accept()
        if len(self._clients) >= MOST_CLIENTS or not self._is_own(channel):
            channel.close()
            return
        self._clients[channel.fileno()] = Client(channel)

    def _is_own(self, channel: socket.socket) -> bool:
        pid, uid, _gid = struct.unpack("iII", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        try:
            return uid == os.geteuid() and os.stat(f"/proc/{pid}/ns/user").st_ino == self._namespace
        except OSError:
            return False

    def _on_client(self, fd: int, event: int) -> None:
        client = self._clients[fd]
        if event & select.POLLOUT and not client.flush():
            return self._drop(fd)
        if not event & ~select.POLLOUT:
            return None
        try:
            message = client.channel.recv(MESSAGE + 1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:
            message = b""
        kind, rest = message[:1], message[1:]
        if kind == b"w" and len(rest) == 8:
            self._attach(fd, client, rest)
        elif kind == b"d" and client.attached:
            self._keys += rest
        elif kind == b"s":
            self._stop()
        else:
            self._drop(fd)
        return None

    def _attach(self, fd: int, client: Client, size: bytes) -> None:
        try:
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)  # the kernel notifies the job: SIGWINCH
        except OSError:
            pass
        if client.attached:
            return
        for other, each in [*self._clients.items()]:
            if each.attached:
                each.say(b"k")
                self._drop(other)
        client.attached = True
        kept = bytes(self._kept)
        if not all(client.say(b"d" + kept[at : at + MESSAGE]) for at in range(0, len(kept), MESSAGE)):
            self._drop(fd)

    def _stop(self) -> None:
        try:
            os.kill(self._job, signal.SIGTERM)  # it is reaped by us alone, so the number is still its own
        except ProcessLookupError:
            pass

    def _drop(self, fd: int) -> None:
        client = self._clients.pop(fd, None)
        if client is not None:
            client.channel.close()

    def _end(self) -> None:
        while self._on_terminal(select.POLLIN):
            if not ready((self._master,), seconds=0)[0]:
                break
        code = os.waitstatus_to_exitcode(os.waitpid(self._job, 0)[1])
        status = 128 - code if code < 0 else code
        seen = False
        for client in self._clients.values():
            alive = client.say(b"x" + struct.pack("i", status))
            poll = select.poll()
            poll.register(client.channel, select.POLLOUT)
            while alive and client.waiting and poll.poll(_PATIENCE):
                alive = client.flush()
            seen = seen or (client.attached and alive and not client.waiting)
        if not seen:
            _write(self._place, f"{self._name}.end", struct.pack("i", status) + self._kept)
        _remove(self._place, f"{self._name}.id")
        _remove(self._place, f"{self._name}.sock")
        for client in self._clients.values():
            client.channel.close()


# ---------------------------------------------------------------- attach and stop


def names(state: str) -> dict[str, str]:
    """Names of the detached sessions by session id, and by name "" each of those that have no id (yet)."""
    out: dict[str, str] = {}
    for name in _listed(state, ".id"):
        try:
            with open(f"{state}/detached/{name}.id", encoding="ascii") as file:
                out[file.read(64)] = name
        except (OSError, ValueError):
            continue  # it has ended meanwhile
    return out


def _listed(state: str, suffix: str) -> Iterator[str]:
    try:
        found = sorted(os.listdir(f"{state}/detached"))
    except FileNotFoundError:
        return
    yield from (name.removesuffix(suffix) for name in found if name.endswith(suffix) and name[0] != ".")


def _client(state: str, name: str) -> tuple[str, socket.socket | None]:
    """The session ``name`` (or the id of one; empty: the only one), connected; None: it has ended.

    Raises:
        PolicyError: there is none, or more than one.
    """
    running = [*_listed(state, ".sock")]
    known = {*running, *_listed(state, ".end")}
    if not name:
        choice = running or sorted(known)
        if len(choice) != 1:
            cause = f"there are {len(choice)}: {', '.join(choice)}" if choice else "no detached session is running"
            raise PolicyError(
                "attach to a session", cause, fix=("membrane start NAME -- COMMAND",) if not choice else ()
            )
        name = choice[0]
    elif name not in known:
        name = names(state).get(name, name)
    if name not in known:
        more = f"; there are: {', '.join(sorted(known))}" if known else ""
        raise PolicyError("attach to a session", f"no session {escape(name)} was started{more}", fix=("membrane ps",))
    place = _place(state)
    try:
        return name, _connect(f"/proc/self/fd/{place}/{name}.sock")
    finally:
        os.close(place)


def _show_end(state: str, name: str) -> int:
    """Print the end of a session that no one saw, once; its exit status."""
    place = _place(state)
    try:
        fd = os.open(f"{name}.end", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
        with open(fd, "rb") as file:
            data = file.read(KEPT + 4)
        _remove(place, f"{name}.end")
    except FileNotFoundError:
        _remove(place, f"{name}.sock")
        _remove(place, f"{name}.id")
        raise HostError("attach to a session", "it was killed, and has left nothing", target=name) from None
    finally:
        os.close(place)
    _print(data[4:])
    return int.from_bytes(data[:4], sys.byteorder, signed=True)


def _print(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def stop(state: str, name: str) -> int:
    """End a session as SIGTERM does, and wait for that; 0.

    Raises:
        UsageError: there is none of that name.
    """
    name, channel = _client(state, name)
    if channel is None:
        return 0
    with channel:
        channel.send(b"s")
        while (message := channel.recv(MESSAGE + 1))[:1] != b"x":
            if not message:
                raise HostError("end the session", "what keeps it was killed", target=name, fix=("membrane ps",))
    return 0


def attach(state: str, name: str, say: Callable[[str], None]) -> int:
    """Be the terminal of a session until it ends, another one is, or the person types Ctrl-\\ d; the exit status.

    Raises:
        UsageError: there is none of that name.
    """
    name, channel = _client(state, name)
    if channel is None:
        return _show_end(state, name)
    keyboard = os.isatty(0)
    cooked = termios.tcgetattr(0) if keyboard else None
    resized = signal.signal(signal.SIGWINCH, lambda _number, _frame: channel.send(b"w" + _size()))
    try:
        channel.send(b"w" + _size())
        if keyboard:
            import tty

            tty.setraw(0)
        status, why = _carry(channel, keyboard)
    finally:
        signal.signal(signal.SIGWINCH, resized)
        if cooked is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, cooked)
        channel.close()
    if why:
        say(f"{why}; membrane attach {name} comes back, membrane stop {name} ends it")
    return status


def _carry(channel: socket.socket, keyboard: bool) -> tuple[int, str]:
    """Copy both ways; the exit status, and why it is not the session's."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(0, select.POLLIN)
    prefixed = False
    while True:
        for fd, _event in poll.poll():
            if fd == 0:
                try:
                    typed = os.read(0, 4096)
                except OSError as error:
                    if error.errno != errno.EIO:
                        raise
                    typed = b""  # the terminal was hung up
                if not typed:
                    if keyboard:
                        return 0, "the terminal is gone"
                    poll.unregister(0)
                    continue
                if keyboard:
                    typed, prefixed, leave = keys(typed, prefixed)
                    if leave:
                        return 0, "\r\ndetached"
                if typed:
                    channel.send(b"d" + typed)
                continue
            message = channel.recv(MESSAGE + 1)
            if message[:1] == b"d":
                _print(message[1:])
            elif message[:1] == b"x":
                return int.from_bytes(message[1:5], sys.byteorder, signed=True), ""
            elif message[:1] == b"k":
                return 0, "another terminal is attached now"
            else:
                raise HostError("talk to the session", "what keeps it was killed", fix=("membrane ps",))


def keys(typed: bytes, prefixed: bool) -> tuple[bytes, bool, bool]:
    """What of the keys goes to the session, whether the last one was the prefix, and whether to let go.

    Args:
        prefixed: of those before.
    """
    out = bytearray()
    for key in typed:
        if prefixed:
            prefixed = False
            if key == DETACH:
                return bytes(out), False, True
            out += bytes([key]) if key == PREFIX else bytes([PREFIX, key])
        elif key == PREFIX:
            prefixed = True
        else:
            out.append(key)
    return bytes(out), prefixed, False
