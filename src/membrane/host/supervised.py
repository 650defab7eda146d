"""Sockets of a sandbox without a network namespace: each is made, addressed and connected by us, from outside.

Theory of operation
-------------------
The command's filter (``seccomp.supervised_program``) asks before socket(2) and before every call that takes or returns
an address.  ``Sockets`` answers.  socket(2) gets a socket that was made here (SECCOMP_ADDFD_FLAG_SEND), of which a
duplicate is kept: the same open file description.  A later call names a descriptor of its process; the link of
/proc/TID/fd says which inode that is, and so which duplicate.  connect, bind and listen are done on the duplicate with
our copy of the address: the kernel never reads one from the command's memory, so there is nothing to win by changing
it.  A descriptor that is changed during the look-up is another socket of the same sandbox.  Nothing is exchanged under
the command: epoll registrations, O_NONBLOCK and SO_ERROR are the kernel's own.

Behind this is Landlock with no TCP right at all (``landlock.confine``): a bind or connect that reached the kernel
by another way fails there.  Calls that are let go on decide nothing: options of sockets, names of local ones, and
bind(2) of unix sockets where Landlock judges the directory.

* TCP is connected to one listener of the gateway, on loopback.  Before that the gateway gets the destination of that
  local port (``gateway.destinations``); it decides as about any captured connection.  A listener of the command
  listens on loopback, and it alone can be dialled there (``supervised_servers``).
* UDP is a stand-in, a pair of SOCK_SEQPACKET, which takes no addresses; the gateway carries what it sends, by rule
  (``supervised_datagrams``).
* A unix socket is connected to the inode that its path led to when it was judged: to one that was bound inside, or to
  the listener of ours that stands for one that a rule names.

A duplicate is closed as soon as nothing can be asked of it any more (when it is connected, or listens): the last close
of a connection is the command's.  Those that were never used are looked for when they are many (``MOST_HELD``).
Everything fails closed: an inode that is not known is refused.

Sources: seccomp_unotify(2), net/ipv4/af_inet.c, net/unix/af_unix.c, security/landlock/net.c.
"""

from __future__ import annotations

import _socket
import errno
import os
import select
import struct

from ..errors import MembraneError
from ..policy.reasons import SOCKET_NOT_ALLOWED
from . import seccomp
from . import syscalls as sc
from .caller import AF_INET as _AF_INET
from .caller import AF_INET6 as _AF_INET6
from .caller import MAPPED as _MAPPED
from .caller import Caller, Refused, internet, is_loopback
from .datagrams import LONGEST
from .notify import Listener
from .supervised_datagrams import Datagrams
from .supervised_files import Metadata
from .supervised_names import Names
from .supervised_servers import LOOPBACK, Servers
from .unixsockets import device_of_mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable, Collection, Iterable

    from .channel import Channel
    from .notify import Call
    from .pool import Pool, Shared
    from .supervised_datagrams import StandIn
    from .supervised_names import Judge, Report
else:
    import _signal

LONGEST_CONNECT = 2.0  # seconds in which connect(2) that does not wait is interrupted if it does
MOST_HELD = 2048  # duplicates of sockets that were not connected yet
MOST_NAMED = 65536  # connected sockets whose destination can be asked for (getpeername(2))
_TYPE, _CLOEXEC, _NONBLOCK = 0xF, 0o2000000, 0o4000
_AF_UNSPEC, _AF_UNIX, _AF_NETLINK = 0, 1, 16
_STREAM, _DGRAM, _RAW, _SEQPACKET = 1, 2, 3, 5
_IPV6_V6ONLY = 26
# Options of level IPPROTO_IP and IPPROTO_IPV6 that may be set.  Not among them: source routes (a connection to loopback
# would leave for the first hop), multicast groups (joining one sends packets), IP_BIND_ADDRESS_NO_PORT (hides the port
# that the gateway gets).
_OPTIONS = frozenset(
    (
        *((0, name) for name in (1, 2, 8, 10, 11, 12, 13, 21)),  # TOS TTL PKTINFO MTU_DISCOVER RECV{ERR,TTL,TOS} MINTTL
        *(
            (41, name) for name in (16, 23, 25, 26, 49, 51, 62, 66, 67)
        ),  # HOPS MTU_ RECVERR V6ONLY RECV* DONTFRAG TCLASS
    )
)
_SOL_UDP = 17
_MSG_DONTWAIT, _MSG_FASTOPEN = 0x40, 0x20000000
_SIGALRM = 14
_EVENTS = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR


class Held:
    """A socket of the command.

    Attributes:
        socket: the duplicate; None: it is connected or listens, and nothing can be asked of it any more.
        kind: "tcp", "udp", "unix" or "netlink".
        peer: the address that it was connected to, as the command wrote it.
        local: the path to which it was bound here, as the command wrote it.
        exposed: the port to which it is bound at the sandbox's own address (``Servers.place``); 0: it is not.
        stand_in: what stands for a datagram socket; ``socket`` is the command's end of it.
    """

    __slots__ = ("exposed", "family", "inode", "kind", "local", "peer", "socket", "stand_in")

    def __init__(self, socket: _socket.socket, family: int, kind: str) -> None:
        self.socket: _socket.socket | None = socket
        self.family, self.kind = family, kind
        self.inode = os.fstat(socket.fileno()).st_ino
        self.peer, self.local, self.exposed = b"", b"", 0
        self.stand_in: StandIn | None = None


class Sockets:
    """The sockets of one sandbox.

    Args:
        listener: of the command's notifications.
        epoll: takes what is waited for here; ``on`` has what is to be called for a descriptor.
        tcp: port of the gateway's listener on 127.0.0.1.
        destinations: takes a line for each connection.
        datagrams: takes and gives datagrams; ``udp_ports``: to which some rule lets them go.
        doors: unix sockets of rules, and the listener of ours that stands for each.
        processes: the sandbox's processes now.
        servers: where the command's are; ``asked``: by which the gateway asks for connections to them, or None.
        granted, pool, judge, report, empty: as of ``supervised_names.Names``.
    """

    def __init__(
        self,
        listener: int,
        epoll: select.epoll,
        *,
        tcp: int,
        destinations: _socket.socket,
        datagrams: _socket.socket,
        udp_ports: Collection[int],
        doors: dict[str, str],
        processes: Callable[[], Iterable[int]],
        servers: Servers,
        asked: Channel | None,
        granted: Shared,
        pool: Pool | None,
        judge: Judge | None,
        report: Report,
        empty: str,
    ) -> None:
        self.on: dict[int, Callable[[int], None]] = {}
        self._listener, self._epoll = Listener(listener), epoll
        self._caller = Caller(self._listener)
        self._read = self._caller.read
        self._tcp, self._destinations = tcp, destinations
        self._doors, self._processes = doors, processes
        self._names = Names(granted, pool, self._listener, self._read, judge, report, empty)
        self._metadata = Metadata(self._names.may_change, self._read, self._names.stands_for, self._names.may_switch)
        destinations.setblocking(False)
        self._report = report
        self._most = max(16, min(MOST_HELD, (sc.open_files() - 64) // 4))
        self._sockets: dict[int, Held] = {}
        self._waiting: list[Call] = []  # for the gateway
        self._servers = servers
        self._held = 0
        self._calls = seccomp.supervised_calls(sc.MACHINE)
        self._handlers: dict[str, Callable[[Call], int | None]] = {}
        self._watch(listener, lambda _events: self._answer())
        _signal.signal(_SIGALRM, _late)
        self._datagrams = Datagrams(
            datagrams, udp_ports, self._caller, self._listener, self._stand_in, self._watch, self._unwatch
        )
        if asked is not None:
            self._watch(asked.fileno(), lambda _events: self._dial(asked))

    # ------------------------------------------------------------ one call

    def _answer(self) -> None:
        call = self._listener.receive()
        if call is not None:
            self._carry_out(call)

    def _carry_out(self, call: Call) -> None:
        number = call[0]
        try:
            name = self._calls[call[2]]
            handler = self._handlers.get(name)
            if handler is None:
                others = (getattr(each, f"on_{name}", None) for each in (self._metadata, self._names, self._datagrams))
                handler = getattr(self, f"_on_{name}", None) or next(each for each in others if each)
                self._handlers[name] = handler
            value = handler(call)
            if value is None:
                self._listener.answer(number, 0)
            elif value >= 0:
                self._listener.finish(number, value)
        except Refused as refused:
            self._listener.answer(number, refused.number)
        except OSError as error:
            self._listener.answer(number, error.errno or errno.EACCES)
        except Exception:  # a defect of ours refuses one call and ends nothing
            self._listener.answer(number, errno.EACCES)

    def _find(self, call: Call) -> Held:
        """The socket that the first argument names.

        Raises:
            Refused: it is none, or none of ours.
        """
        try:
            link = os.readlink(f"/proc/{call[1]}/fd/{call[3] & 0x7FFFFFFF}")
        except FileNotFoundError:
            raise Refused(errno.EBADF) from None
        except OSError:
            raise Refused(errno.EACCES) from None  # a process that may not be looked into has no network
        if not link.startswith("socket:["):
            raise Refused(errno.ENOTSOCK)
        held = self._sockets.get(int(link[8:-1]))
        if held is None or not self._listener.valid(call[0]):
            raise Refused(errno.EACCES)
        return held

    def _known(self, call: Call) -> Held | None:
        """As ``_find``, for calls that decide nothing."""
        try:
            return self._find(call)
        except Refused:
            return None

    def _stand_in(self, call: Call) -> StandIn | None:
        held = self._known(call)
        return None if held is None or held.socket is None else held.stand_in

    # ------------------------------------------------------------ making

    def _on_socket(self, call: Call) -> int:
        family, kind, protocol = call[3] & 0xFFFFFFFF, call[4] & 0xFFFFFFFF, call[5] & 0xFFFFFFFF
        flags, plain = kind & _NONBLOCK, kind & _TYPE
        if self._held >= self._most:
            self._sweep()
            if self._held >= self._most:
                raise Refused(errno.ENFILE)
        stand_in = None
        if family in (_AF_INET, _AF_INET6):
            if plain == _STREAM and protocol in (0, 6):
                made, name = _socket.socket(family, plain, protocol), "tcp"
            elif plain == _DGRAM and protocol in (0, 17):
                stand_in = self._datagrams.make(family, lambda: self._forget(held))
                made, name = stand_in.theirs, "udp"
            else:
                raise Refused(errno.EPROTONOSUPPORT)
        elif family == _AF_UNIX:
            if plain not in (_STREAM, _SEQPACKET):
                # A datagram socket takes an address with each datagram, in memory that is not ours to judge.
                raise Refused(errno.EACCES)
            made, name = _socket.socket(family, plain, 0), "unix"
        elif family == _AF_NETLINK and protocol == 0 and plain in (_RAW, _DGRAM):
            made, name = _socket.socket(family, plain, 0), "netlink"
        else:
            raise Refused(errno.EAFNOSUPPORT)
        os.set_blocking(made.fileno(), not flags)
        held = Held(made, family, name)
        old = self._sockets.pop(held.inode, None)
        if old is not None:
            self._let_go(old)
        self._sockets[held.inode] = held
        self._held += 1
        held.stand_in = stand_in
        if len(self._sockets) > MOST_NAMED:
            first = next(iter(self._sockets))
            self._forget(self._sockets[first])
        if not self._listener.inject(call[0], made.fileno(), close_on_exec=bool(kind & _CLOEXEC)):
            self._forget(held)
        return -1  # answered

    def _let_go(self, held: Held) -> None:
        """Nothing can be asked of the duplicate any more."""
        if held.socket is not None:
            held.socket.close()
            held.socket = None
            self._held -= 1

    def _forget(self, held: Held) -> None:
        self._let_go(held)
        if held.stand_in is not None:
            self._datagrams.end(held.stand_in)
            held.stand_in = None
        if self._sockets.get(held.inode) is held:
            del self._sockets[held.inode]

    def _sweep(self) -> None:
        """Let go of the duplicates that no process of the sandbox has any more."""
        inside: set[int] = set()
        for process in self._processes():
            try:
                for name in os.listdir(f"/proc/{process}/fd"):
                    try:
                        link = os.readlink(f"/proc/{process}/fd/{name}")
                    except OSError:
                        continue
                    if link.startswith("socket:["):
                        inside.add(int(link[8:-1]))
            except OSError:
                continue
        for held in [each for each in self._sockets.values() if each.socket is not None]:
            if held.inode not in inside:
                self._forget(held)

    # ------------------------------------------------------------ addresses

    def _on_connect(self, call: Call) -> int:
        held = self._find(call)
        raw = self._caller.address(call, call[4], call[5])
        if held.stand_in is not None:
            held.peer = held.stand_in.peer = b"" if raw[:2] == b"\0\0" else raw
            return 0
        if held.socket is None:
            raise Refused(errno.EISCONN)
        if held.kind == "unix":
            return self._connect_unix(call, held, raw)
        if held.kind != "tcp":
            raise Refused(errno.EOPNOTSUPP)
        if raw[:2] == b"\0\0":
            return 0  # connect(2), AF_UNSPEC: it is not connected, and stays so
        address, port = internet(raw, held.family)
        return self._connect_tcp(call, held, raw, address, port)

    def _connect_tcp(self, call: Call, held: Held, raw: bytes, address: bytes, port: int) -> int:
        assert held.socket is not None
        socket, loopback = held.socket, _loopback(held)
        if not loopback:
            raise Refused(errno.ENETUNREACH)  # IPV6_V6ONLY: nothing here listens on ::1
        if is_loopback(address):
            place = self._servers.listening(port)
            if not place:
                raise Refused(errno.ECONNREFUSED)
            loopback, target = _loopback(held, place), port
        else:
            if not socket.getsockname()[1]:
                socket.bind((loopback, 0))
            text = _socket.inet_ntop(_AF_INET if len(address) == 4 else _AF_INET6, address)
            try:  # before the connection: the gateway has the destination when it accepts it
                self._destinations.send(f"{socket.getsockname()[1]} {text} {port}".encode("ascii"))
            except BlockingIOError:
                self._put_off(call)
                return -1
            except OSError:
                raise Refused(errno.ECONNREFUSED) from None
            target = self._tcp
        blocking = os.get_blocking(socket.fileno())
        if blocking:
            os.set_blocking(socket.fileno(), False)  # only for us: the caller sleeps in its call
        try:
            code = _begin(socket, (loopback, target), errno.EINPROGRESS)
        finally:
            if blocking:
                os.set_blocking(socket.fileno(), True)
        if code not in (0, errno.EINPROGRESS):
            raise Refused(code)
        held.peer = raw
        if code and not _connected(socket):
            self._await(call[0] if blocking else 0, held)
            if blocking:
                return -1
        else:
            self._let_go(held)
        if code and not blocking:
            raise Refused(errno.EINPROGRESS)
        return 0

    def _put_off(self, call: Call) -> None:
        """The gateway has not read yet where the last ones go (it is being started, or the machine is busy): the call
        waits until it has, and begins anew."""
        fd = self._destinations.fileno()

        def go_on(_events: int) -> None:
            self._unwatch(fd)
            calls, self._waiting = self._waiting, []
            for each in calls:
                self._carry_out(each)

        if fd not in self.on:
            self._watch(fd, go_on, select.EPOLLOUT | select.EPOLLHUP | select.EPOLLERR)
        self._waiting.append(call)

    def _await(self, number: int, held: Held) -> None:
        """Wait for the connection; ``number``: of the call that waits as well."""
        socket = held.socket
        assert socket is not None
        fd = os.dup(socket.fileno())

        def ended(_events: int) -> None:
            self._unwatch(fd)
            code = socket.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR) if number and held.socket else 0
            os.close(fd)
            if not code:
                self._let_go(held)
            if number and code:
                self._listener.answer(number, code)
            elif number:
                self._listener.finish(number)

        self._watch(fd, ended, select.EPOLLOUT | select.EPOLLHUP | select.EPOLLERR)

    def _on_bind(self, call: Call) -> int | None:
        held = self._find(call)
        if held.kind == "udp":
            return 0
        if held.kind == "unix":
            return self._bind_unix(call, held)
        if held.kind != "tcp":
            return None
        if held.socket is None:
            raise Refused(errno.EINVAL)
        _address, port = internet(self._caller.address(call, call[4], call[5]), held.family)
        self._bind(held, port)
        return 0

    def _bind_unix(self, call: Call, held: Held) -> int | None:
        """Where a name is ours to make; elsewhere Landlock judges."""
        if held.socket is None:
            return None  # it has a name, or a peer: the kernel refuses another, or makes one that nobody can dial
        raw = self._caller.address(call, call[4], call[5])
        path = raw[2:].partition(b"\0")[0]
        if struct.unpack_from("=H", raw)[0] != _AF_UNIX or not path:
            return None
        if not self._names.bind(call, path, held.socket.bind):
            return None
        held.local = raw
        return 0

    def _bind(self, held: Held, port: int) -> None:
        socket, loopback = held.socket, _loopback(held, self._servers.place(port))
        if socket is None or not loopback:
            raise Refused(errno.EADDRNOTAVAIL)
        socket.bind((loopback, port))
        held.exposed = port if self._servers.hides(loopback) else 0
        self._servers.bound(socket.getsockname()[1], held.inode)

    def _on_listen(self, call: Call) -> int:
        held = self._find(call)
        if held.kind not in ("tcp", "unix"):
            raise Refused(errno.EOPNOTSUPP)
        if held.socket is None:
            return 0  # again, with another length of the queue
        if held.kind == "tcp" and not held.socket.getsockname()[1]:
            self._bind(held, 0)  # the kernel would take any address, which Landlock does not see
        held.socket.listen(min(call[4] & 0xFFFFFFFF, 4096))
        self._let_go(held)
        return 0

    def _on_getpeername(self, call: Call) -> int | None:
        held = self._known(call)
        if held is not None and held.kind == "udp" and not held.peer:
            raise Refused(errno.ENOTCONN)
        if held is None or not held.peer:
            return None
        self._caller.put_address(call, held.peer, call[4], call[5])
        return 0

    def _on_getsockname(self, call: Call) -> int | None:
        held = self._known(call)
        if held is not None and held.kind == "udp":
            self._caller.put_address(call, _own(held), call[4], call[5])
            return 0
        if held is not None and held.local:
            self._caller.put_address(call, held.local, call[4], call[5])
            return 0
        if held is None or not held.exposed:
            return None
        self._caller.put_address(call, _own(held, held.exposed), call[4], call[5])
        return 0

    def _dial(self, asked: Channel) -> None:
        """The gateway asks for a connection to a server of the command.

        Answers come in the order of the questions, so after one that is missing, and at its end, none is answered.
        """
        from .messages import DialServer, SocketMade

        made = -1
        try:
            wanted = asked.receive()
            if isinstance(wanted, DialServer):
                made = self._servers.dial(wanted.port)
                asked.send(SocketMade(None if made < 0 else made))
                return
        except (OSError, MembraneError):
            pass
        finally:
            if made >= 0:
                os.close(made)
        self._unwatch(asked.fileno())
        asked.close()

    def _on_setsockopt(self, call: Call) -> int | None:
        held = self._known(call)
        if held is not None and held.kind == "udp":
            if call[4] & 0xFFFFFFFF == _SOL_UDP:
                raise Refused(errno.ENOPROTOOPT)  # a datagram that is cut into many
            return 0  # glibc gives up asking when IP_RECVERR fails, and dig(1) ends where SO_REUSEPORT does
        if call[4] & 0xFFFFFFFF == _socket.SOL_SOCKET:
            raise Refused(errno.EOPNOTSUPP)  # one of those that reach beyond the sandbox
        # By level and name alone, which are not in memory: whatever the descriptor is by then, this is harmless.
        if (call[4] & 0xFFFFFFFF, call[5] & 0xFFFFFFFF) not in _OPTIONS:
            raise Refused(errno.ENOPROTOOPT)
        return None

    def _on_ioctl(self, call: Call) -> int:
        """TIOCGPTPEER: the other end of a terminal whose master the process holds (ioctl_tty(2)).

        Landlock shows no slave but the run's own, as those of other terminals of the same user are beside it.
        """
        flags = call[5] & 0xFFFFFFFF
        number = self._terminal(call)
        wanted = os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC | flags & _NONBLOCK
        slave = os.open(f"/dev/pts/{number}", wanted)
        try:
            if self._terminal(call) != number:  # closed meanwhile: the number may have been another's
                raise Refused(errno.EIO)
            self._listener.inject(call[0], slave, close_on_exec=bool(flags & _CLOEXEC))
        finally:
            os.close(slave)
        return -1  # answered

    def _terminal(self, call: Call) -> int:
        """The number of the terminal whose master the first argument names; only a master's fdinfo has one."""
        try:
            with open(f"/proc/{call[1]}/fdinfo/{call[3] & 0x7FFFFFFF}", "rb") as lines:
                found = lines.read(4096).partition(b"\ntty-index:")[2].split(None, 1)
        except FileNotFoundError:
            raise Refused(errno.EBADF) from None
        if not found or not self._listener.valid(call[0]):
            raise Refused(errno.ENOTTY)
        return int(found[0])

    # ------------------------------------------------------------ unix sockets

    def _connect_unix(self, call: Call, held: Held, raw: bytes) -> int:
        path = raw[2:].partition(b"\0")[0]
        if not path:
            name = "@" + os.fsdecode(raw[3:].partition(b"\0")[0])
            self._report(name, str(SOCKET_NOT_ALLOWED))  # abstract names are the container's
            raise Refused(errno.ECONNREFUSED)
        if not path.startswith(b"/"):
            path = os.fsencode(os.readlink(f"/proc/{call[1]}/cwd")) + b"/" + path
        door = self._doors.get(os.path.normpath(os.fsdecode(path)))
        place = sc.openat2(sc.AT_FDCWD, door or path, os.O_PATH, resolve=sc.RESOLVE_NO_MAGICLINKS)
        try:
            if not door and bound_to(place) not in self._sockets:
                self._report(os.readlink(f"/proc/self/fd/{place}"), str(SOCKET_NOT_ALLOWED))
                raise Refused(errno.EACCES)
            assert held.socket is not None
            blocking = os.get_blocking(held.socket.fileno())
            os.set_blocking(held.socket.fileno(), False)
            try:
                code = _begin(held.socket, f"/proc/self/fd/{place}", errno.EAGAIN)
            finally:
                if blocking:
                    os.set_blocking(held.socket.fileno(), True)
        finally:
            os.close(place)
        if code:
            raise Refused(code)  # EAGAIN: the queue is full; unix(7) has it for non-blocking sockets only
        self._let_go(held)
        return 0

    # ------------------------------------------------------------ datagrams

    def _on_sendto(self, call: Call) -> int:
        held = self._find(call)
        _number, _thread, _call, _fd, buffer, size, flags, at, length = call
        if flags & _MSG_FASTOPEN:
            raise Refused(errno.EOPNOTSUPP)
        if held.kind not in ("udp", "netlink") or held.socket is None:
            raise Refused(errno.EISCONN)
        if size > LONGEST:
            raise Refused(errno.EMSGSIZE)
        raw = self._caller.address(call, at, length)
        data = self._read(call, buffer, size) if size else b""
        if held.stand_in is None:
            _family, _pad, port, groups = struct.unpack_from("=HHII", raw.ljust(12, b"\0"))
            return held.socket.sendto(data, _MSG_DONTWAIT, (port, groups))
        self._datagrams.send(held.stand_in, data, raw)
        return len(data)

    # ------------------------------------------------------------ waiting

    def _watch(self, fd: int, handler: Callable[[int], None], events: int = _EVENTS) -> None:
        self.on[fd] = handler
        self._epoll.register(fd, events)

    def _unwatch(self, fd: int) -> None:
        if self.on.pop(fd, None):
            self._epoll.unregister(fd)


class _Late(Exception):
    """A connect(2) that was not to wait does."""


def _late(_number: int, _frame: object) -> None:
    raise _Late


def _begin(socket: _socket.socket, address: tuple[str, int] | str, waits: int) -> int:
    """The errno of connect(2) on a socket that does not wait; ``waits``: of one that would.

    Its description is the command's as well, and fcntl(2) of another thread may come in between.  So it is interrupted.
    """
    try:
        _signal.setitimer(_signal.ITIMER_REAL, LONGEST_CONNECT)
        try:
            return socket.connect_ex(address)
        finally:
            _signal.setitimer(_signal.ITIMER_REAL, 0)
    except _Late:
        return waits


def _loopback(held: Held, place: str = LOOPBACK) -> str:
    """Where sockets of this family reach an address of 127.0.0.0/8; empty: they do not."""
    if held.family == _AF_INET:
        return place
    assert held.socket is not None
    only = held.socket.getsockopt(_socket.IPPROTO_IPV6, _IPV6_V6ONLY)
    return "" if only else f"::ffff:{place}"


def _connected(socket: _socket.socket) -> bool:
    try:
        socket.getpeername()
    except OSError:
        return False
    return True


def _own(held: Held, port: int = 0) -> bytes:
    """The local address of a stand-in, or of a server at an exposed port, for a call that asks for it."""
    number = port.to_bytes(2, "big")
    if held.family == _AF_INET:
        return struct.pack("=H", _AF_INET) + number + b"\x7f\0\0\1" + bytes(8)
    address = _MAPPED + b"\x7f\0\0\1" if port else bytes(15) + b"\1"
    return struct.pack("=H", _AF_INET6) + number + bytes(4) + address + bytes(4)


_UNIX_REQUEST = struct.Struct("=IHHIIBBHIIIII")  # struct nlmsghdr; struct unix_diag_req (linux/unix_diag.h)
_UNIX_ANSWER = struct.Struct("=BBBBIII")  # struct unix_diag_msg: family, type, state, padding, inode, cookie
_BY_FAMILY, _DUMP, _DONE, _ERROR, _SHOW_VFS, _UNIX_DIAG_VFS = 20, 0x301, 3, 2, 2, 1
_MOST_DIAG = 4 << 20  # bytes of an answer


def bound_to(place: int) -> int:
    """The inode (of sockfs) of the listening unix socket that is bound to a file; 0: none of this network namespace.

    Args:
        place: an O_PATH descriptor of the file.
    """
    status = os.fstat(place)
    # Of btrfs and overlayfs stat(2) gives another device than the socket's
    devices = (os.major(status.st_dev) << 20 | os.minor(status.st_dev), device_of_mount(place, 0))
    table = _socket.socket(_AF_NETLINK, _RAW | _CLOEXEC, 4)
    found = 0
    try:
        states = 1 << 10  # TCP_LISTEN
        size = _UNIX_REQUEST.size
        table.send(_UNIX_REQUEST.pack(size, _BY_FAMILY, _DUMP, 1, 0, _AF_UNIX, 0, 0, states, 0, _SHOW_VFS, 0, 0))
        read = 0
        while read < _MOST_DIAG:
            data = table.recv(1 << 17, _MSG_DONTWAIT)
            read += len(data)
            at = 0
            while at + 16 <= len(data):
                length, kind = struct.unpack_from("=IH", data, at)
                if kind == _DONE:
                    return found
                if kind == _ERROR or length < 16:
                    return 0
                inode = _UNIX_ANSWER.unpack_from(data, at + 16)[4]
                rest, end = at + 16 + _UNIX_ANSWER.size, at + length
                while rest + 4 <= end:
                    part, what = struct.unpack_from("=HH", data, rest)
                    if what == _UNIX_DIAG_VFS and part >= 12:
                        file, device = struct.unpack_from("=II", data, rest + 4)
                        if file == status.st_ino & 0xFFFFFFFF and device in devices:
                            if found not in (0, inode):
                                return 0  # two that look alike: which one is dialled is not known
                            found = inode
                    rest += max(4, part + 3 & ~3)
                at += length + 3 & ~3
    except OSError:
        return 0
    finally:
        table.close()
    return 0
