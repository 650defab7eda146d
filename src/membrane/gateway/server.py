"""The gateway of one session: ``python -I -m membrane.gateway.server CONTROL_FD``.

Theory of operation
-------------------
It runs in the host's network namespace; the sockets that it serves were made inside the sandbox's.  Nothing else
connects the two, so when this process ends, the sandbox has no network.

The control socket (AF_UNIX stream, its number in argv) carries ``gateway.messages``; its end stops the gateway.

Socket roles: ``tcp4`` ``tcp6`` (original destination by getsockname), ``tcp4-dnat`` ``tcp6-dnat`` (by
``SO_ORIGINAL_DST``), ``tcp4-named`` (by what comes on the socket ``destinations``, see there), ``dns4`` ``dns6`` (UDP,
with PKTINFO), ``udp4:PORT`` ``udp6:PORT`` (the same), ``unix:N`` (a listening unix socket of the view for the policy's
N-th rule, see ``messages.Setup``), ``exposed:PORT`` (a listener of the host's loopback for that port inside),
``refused`` (copies of packets that the namespace refused, see ``refused``), ``diag`` (see ``clients``), ``factory``
(where sockets of the sandbox's namespace come from, see ``exposed``), ``servers`` (where sockets come from that are
connected to servers of the command, see there), ``datagrams`` (see ``destinations``).

An exception that is not one connection's ends the process with status 1, and the session then kills the command.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal itself imports enum
import gc
import os
import resource
import sys
import time
from _socket import AF_INET, AF_INET6, AF_UNIX, MSG_DONTWAIT, SOCK_DGRAM
from _socket import socket as Socket

from .. import clock
from ..errors import InternalError, MembraneError
from ..events import DefectSeen
from ..host.ready import ready
from ..host.writing import write_all
from ..messages import Frames
from ..policy.decide import Decider
from . import messages as m
from .addresses import OwnAddresses
from .broker import Broker
from .budgets import Budget, Ledger
from .clients import Clients
from .destinations import Datagrams, Destinations
from .dns import MOST_NAMES, Answerer, Names
from .event_queue import EventQueue
from .exposed import Exposed
from .reactor import HUP, IN, OUT, Reactor
from .refused import RefusedPackets
from .relay import Engine
from .route import Router
from .udp import UdpRelay, serve_dns
from .upstream import (
    RESOLVER_DEADLINE,
    SYSTEM_DEADLINE,
    Proxy,
    Resolver,
    Upstreams,
    parse_proxy,
    proxy_from_environment,
    resolver_look_up,
    system_look_up,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import NoReturn

    from ..policy.model import Access, NameQuery, Policy, Verdict
    from .approvals import Approvals
    from .http.credentials import Destination, Secret
    from .http.logins import Logins
    from .http.sigv4 import Signers
    from .intercept import Inspector

_DNS_PORT = 53
_READ = 65536
_CRASHES_REPORTED = 10
_CONNECTIONS, _FLOWS = 4096, 256  # at a time
_FRAMES = 16  # of where it was
_GARBAGE = 20000  # containers made before the collector looks
_SPARE_FDS = 256  # of the process, beside two for each connection: pipes, flows, listeners
_NOT_SERVED = ("factory", "servers", "destinations", "senders")  # roles of sockets that answer
_TOTALS = 0.5  # seconds from one report of the totals to the next
_BATCH_DELAY = 0.005  # seconds that an event waits for others, to be sent with them
_TURNS = 256  # of the reactor, in which it takes more from a socket than the kernel keeps there
_SETTLE = 2  # turns in which what came last is judged: its first bytes are ready with it
# What ends is what the command sent last, and not a time: these are for what does not end, on a busy machine.
_FLUSH = 10.0  # seconds in which the supervisor does not read
_LAST_ROUND = 10.0  # seconds at the end to take what is still in the sockets, of which
_LOOK_UPS = 2.0  # seconds to wait for look-ups alone, and
_LAST_COUNT = 5.0  # seconds to count what is left after that
_TERMINAL_SIGNALS = (_signal.SIGINT, _signal.SIGQUIT, _signal.SIGHUP, _signal.SIGTSTP)


def main(argv: list[str]) -> int:
    """Serve until the session says stop or is gone; the exit status."""
    control = Socket(fileno=int(argv[1]))
    files = _harden()
    queue = EventQueue("")
    try:
        frames = Frames(m.TO_GATEWAY)
        setup = receive_setup(control, frames)
        _close_all_but([control.fileno(), *(fd for _role, fd in setup.sockets)])
        queue.session = setup.session
        clock.adopt(clock.offset() if setup.clock is None else setup.clock)
        queue.verbose = setup.verbose
        service = Service(control, frames, queue, setup, files)
        gc.freeze()
        gc.set_threshold(_GARBAGE, 20, 20)  # connections leave no cycles; looking for them costs
        service.run()
    except Exception as error:
        queue.send(m.Failed(explain(error)))
        send_all(control, queue)
        return 1
    service.close()
    send_all(control, queue)
    return 0


def _harden() -> int:
    """No core dumps, no new privileges, closed to ptrace(2) by equals, deaf to the terminal.

    Returns:
        How many descriptors the process may have; that is raised to what is allowed.
    """
    from ..host.syscalls import no_new_privs, set_dumpable

    no_new_privs()
    set_dumpable(False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for number in _TERMINAL_SIGNALS:  # meant for the command; the end of the control socket is meant for us
        _signal.signal(number, _signal.SIG_IGN)
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


def _close_all_but(keep: list[int]) -> None:
    """Let go of what the caller's shell left open for its children: none of it is ours."""
    from ..host.syscalls import close_range

    first = 3
    for fd in sorted(keep):
        if fd > first:
            close_range(first, fd - 1)
        first = fd + 1
    close_range(first)


def receive_setup(control: Socket, frames: Frames) -> m.Setup:
    """Wait for the first message, ``Begin``; no byte after it is read.

    Raises:
        InternalError: the supervisor closed early, or sent something else (``Malformed``).
    """
    while data := control.recv(min(frames.missing, 1 << 20)):
        for message in frames.feed(data):
            if isinstance(message, m.Begin):
                return message.setup
            raise InternalError("begin", f"{type(message).__name__} came first")
    raise InternalError("begin", "the supervisor closed the control socket")


def explain(error: BaseException) -> str:
    """The headline of an error of ours; the place of any other."""
    if isinstance(error, MembraneError):
        return "\n".join(error.lines())
    import traceback

    return "".join(traceback.format_exception(error))[-4000:]


def defect(error: BaseException, count: int = 1) -> DefectSeen:
    """The event of a failure by a defect of ours: of which type and where.  Its text may quote a client or a server."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append(f"{os.path.basename(code.co_filename)}:{trace.tb_lineno} {code.co_name}")
        trace = trace.tb_next
    return DefectSeen(type(error).__name__, tuple(frames[-_FRAMES:]), count)


def send_all(control: Socket, queue: EventQueue) -> None:
    """Write what is queued, unless the session reads nothing for ``_FLUSH`` seconds."""
    try:
        control.settimeout(_FLUSH)
        while queue.waiting():
            queue.sent(control.send(queue.pending()))
    except OSError:
        return  # the session is gone, or does not read


def upstream_proxy(policy: Policy, environ: Mapping[str, str]) -> tuple[Proxy | None, tuple[str, ...]]:
    """The proxy to go through, and the hosts that are dialled all the same.

    Raises:
        PolicyError: it cannot be understood.
    """
    if not policy.upstream_proxy:
        return None, ()
    if policy.upstream_proxy == "env":
        return proxy_from_environment(environ)
    return parse_proxy(policy.upstream_proxy), ()


def socket_proxy(policy: Policy) -> Proxy | None:
    """The proxy behind a unix socket, bound to who owns that now; one that is not there is tried and fails."""
    if not policy.socket_proxy:
        return None
    try:
        owner = os.lstat(policy.socket_proxy).st_uid
    except OSError:
        owner = -1
    return Proxy("http", "", 0, socket=policy.socket_proxy, owner=owner)


def _signers(policy: Policy, secrets: Sequence[Secret]) -> Signers | None:
    """The access keys among the secrets."""
    if not policy.signing:
        return None
    from .http.sigv4 import KeyPair, Signers

    held = {secret.name: secret for secret in secrets}
    rules = [(held[rule.key_id], held[rule.secret]) for rule in policy.signing]
    return Signers(KeyPair(key.placeholder, key.value, secret.value) for key, secret in rules)


def destinations(rows: m.Destinations, go: bool = True) -> list[Destination]:
    """As the gateway asks them; ``go`` false: none."""
    from .http.credentials import Destination

    return [Destination(*row) for row in rows] if go else []


class _Barrier:
    """A question for everything that happened until now.

    Args:
        number: of ``Sync``.
        waiting: descriptors of the sandbox's sockets, which may hold what the command did before.
    """

    def __init__(self, number: int, waiting: Collection[int]) -> None:
        self.number = number
        self._waiting = set(waiting)
        self._turns, self._more = _TURNS, _SETTLE

    def passed(self) -> bool:
        """Asked once a turn: was each socket seen empty, and what came last judged?

        A socket that others fill all the time is never empty: but after ``_TURNS`` all that it held has been taken.
        """
        if self._waiting and self._turns:
            self._turns -= 1
            self._waiting = ready(self._waiting, seconds=0)[0]
        if not self._waiting or not self._turns:
            self._more -= 1
        return self._more < 0


class Service:
    """Everything that one session's sockets are served by."""

    def __init__(self, control: Socket, frames: Frames, queue: EventQueue, setup: m.Setup, files: int) -> None:
        self._control, self._frames, self._queue = control, frames, queue
        self._blocked = False
        self._listens = IN  # to the control socket
        self._gone = False  # who held its other end
        self._barriers: list[_Barrier] = []
        self._crashes = 0
        self._last_crash: DefectSeen | None = None  # of those that are not reported one by one
        policy = setup.policy
        self._reactor = reactor = Reactor()
        names = Names(setup.names or MOST_NAMES)
        self._approvals: Approvals | None = None
        self._own = OwnAddresses(reactor, self._moved)
        if setup.ask is not None:
            from .approvals import Approvals

            seconds, kinds = setup.ask
            self._approvals = Approvals(
                policy,
                self._own.current,
                names,
                reactor,
                queue.send,
                self._forget,
                seconds,
                queue.emit,
                kinds,
            )
            decide: Callable[[Access], Verdict] = self._approvals.decide
        else:
            self._decider = Decider(policy, self._own.current)
            decide = self._decide
        system = Resolver(reactor, system_look_up, SYSTEM_DEADLINE)
        resolver = system
        if policy.dns_resolver:
            resolver = Resolver(reactor, resolver_look_up(policy.dns_resolver), RESOLVER_DEADLINE)
        proxy, exceptions = upstream_proxy(policy, dict(setup.environ))
        upstreams = Upstreams(resolver, system, proxy, exceptions, socket_proxy(policy), policy.socket_proxied)
        sockets = [(role, Socket(fileno=fd)) for role, fd in setup.sockets]
        ipv6 = any(role.startswith("tcp6") for role, _socket in sockets)
        self._answerer = Answerer(names, decide, queue.emit, ipv6=ipv6)
        ledger = Ledger(Budget(policy.limits.upload), lambda: reactor.now)
        self._router = router = Router(names, decide)
        connections = min(setup.connections or _CONNECTIONS, max(16, (files - _SPARE_FDS) // 2))
        self._ca = b""
        self._inspector = inspector = self._make_inspector(policy, decide, setup) if setup.inspect else None
        self._engine = engine = Engine(
            reactor,
            router,
            self._answerer,
            upstreams,
            queue.emit,
            self._crashed,
            ledger=ledger,
            connections=connections,
            verbose=queue.verbose,
            inspector=inspector,
        )
        engine.approvals = self._approvals
        if self._approvals is not None:
            self._answerer.ask = self._ask_about_name
        if policy.offer_proxy:
            from .proxy import Proxies

            engine.proxies = Proxies(engine)
        self._udp = UdpRelay(
            reactor,
            router,
            upstreams,
            queue.emit,
            self._crashed,
            engine.number,
            ledger=ledger,
            flows=setup.udp_flows or _FLOWS,
        )
        self._udp.approvals = self._approvals
        names.living = lambda: engine.hosts() | self._udp.hosts()
        # Only then may a datagram to port 53 be for another than the answerer.
        self._udp.opens_dns = any(
            ports.protocol == "udp" and ports.first <= _DNS_PORT <= ports.last
            for rule in policy.allow
            for ports in rule.ports
        )
        factory = [(socket, role == "servers") for role, socket in sockets if role in ("factory", "servers")]
        common = queue.emit, self._crashed, engine.number
        self._exposed = (
            Exposed(reactor, factory[0][0], *common, memory=engine.memory, dials=factory[0][1]) if factory else None
        )
        self._broker = Broker(reactor, decide, *common, budget=ledger.session, memory=engine.memory)
        self._broker.approvals = self._approvals
        self._unix_sockets = policy.unix_sockets
        self._doors = {number: (path, owner) for number, path, owner in setup.doors}
        self._sockets = sockets
        # At which arrives what the command does
        self._from_inside = [
            socket.fileno()
            for role, socket in sockets
            if role not in _NOT_SERVED and role != "diag" and not role.startswith("exposed:")
        ]
        self._names = names
        self._repetitions = reactor.wait(1.0, self._report_repetitions)
        self._batch_delay = reactor.wait(_BATCH_DELAY, self._write)
        self._totals = reactor.wait(_TOTALS, self._report_totals)
        self._bytes_reported = 0
        self._sends_totals = setup.totals
        self._refused: RefusedPackets | None = None
        self._clients: Clients | None = None
        self._destinations = [Destinations(reactor, socket) for role, socket in sockets if role == "destinations"]
        for role, socket in sockets:
            self._serve(role, socket)
        if self._refused is not None:
            self._refused.clients = self._clients
        control.setblocking(False)
        reactor.watch(control.fileno(), IN, self._on_control)
        reactor.at_end.append(self._flush)

    def _make_inspector(self, policy: Policy, decide: Callable[..., Verdict], setup: m.Setup) -> Inspector:
        """Make the authority of the session; only sessions that need it pay for OpenSSL."""
        from .http.credentials import Secret
        from .intercept import Inspector
        from .tls import Authority

        authority = Authority(given=setup.authority)
        self._ca = authority.pem
        extra: tuple[str, ...] = ()
        if setup.authorities:  # by descriptor: a writer of the file cannot change what was read
            fd = os.memfd_create("authorities", os.MFD_CLOEXEC)
            write_all(fd, setup.authorities)
            extra = (f"/proc/self/fd/{fd}",)
        kept = {rule.secret for rule in policy.signing}  # they sign, and go nowhere
        secrets = [
            Secret(
                row.name, row.value, row.placeholder, row.place, destinations(row.destinations, row.name not in kept)
            )
            for row in setup.secrets
        ]
        if secrets:
            from .http.redact import Redactor

            self._queue.mask = Redactor(secrets)
        return Inspector(
            self._reactor,
            authority,
            decide,
            extra_ca=extra,
            insecure=policy.ssl_insecure,
            full=policy.trace.http == "full",
            secrets=secrets,
            signers=_signers(policy, secrets),
            logins=self._logins(secrets, setup.logins),
        )

    def _logins(self, secrets: list[Secret], rows: Sequence[m.LoginRow]) -> Logins | None:
        """Those of the session, by what ``run.masks`` has found."""
        if not rows:
            return None
        from .http.logins import Login, Logins
        from .http.redact import Redactor

        def renewed(login: str, new: dict[str, Secret], expires_in: int) -> None:
            names = tuple(secret.name for secret in new.values())
            values = tuple(secret.value.decode("ascii") for secret in new.values())
            # With the tokens: the supervisor writes them to the file.
            self._queue.send(m.Renewed(login, tuple(new), names, values, expires_in), whole=True)
            self._write()

        def changed() -> None:
            self._queue.mask = Redactor(secrets)

        found = []
        for row in rows:
            own = [secret for secret in secrets if secret.name in row.names]
            found.append(Login(own, destinations(row.endpoints), destinations(row.destinations), row.place))
        return Logins(secrets, found, random=os.urandom, renewed=renewed, changed=changed)

    def run(self) -> None:
        """Serve until it is stopped."""
        self._queue.send(m.Ready())
        if self._ca:
            self._queue.send(m.Certificate(self._ca))
        self._write()  # the supervisor waits for it
        if self._ca:
            assert self._inspector is not None
            self._inspector.warm_up()
        self._reactor.run()

    def close(self) -> None:
        """Take what was sent before the end, end all connections and write the totals."""
        self._last_round()
        for barrier in self._barriers:
            self._queue.send(m.Synced(barrier.number))
        self._engine.close()
        self._udp.close()
        self._broker.close()
        if self._exposed is not None:
            self._exposed.close()
        if self._refused is not None:
            self._refused.close()
        if self._last_crash is not None:
            self._queue.emit(self._last_crash)
        self._queue.report_repetitions(everything=True)
        engine, udp, answerer = self._engine, self._udp, self._answerer
        up, down = self._bytes()
        stats = {
            "connections": engine.accepted,
            "connections_refused": engine.refused,
            "connections_failed": engine.failed,
            "bytes_up": up,
            "bytes_down": down,
            "dns_queries": answerer.queries,
            "dns_refused": answerer.refused,
            "names": len(self._names),
            "unix_connections": self._broker.accepted,
            "unix_refused": self._broker.refused,
            "udp_flows": udp.opened,
            "udp_refused": udp.refused,
            "packets_refused": self._refused.packets if self._refused is not None else 0,
            "udp_datagrams": udp.datagrams,
            "denied": self._queue.denied,
            "events_lost": self._queue.lost,
            "crashes": self._crashes,
            "requests": self._inspector.requests if self._inspector is not None else 0,
        }
        self._queue.end(stats)
        self._own.close()
        self._reactor.close()
        for _role, socket in self._sockets:
            socket.close()

    def _last_round(self) -> None:
        """What the command did last may still be in the sockets: it is judged, reported and sent.

        The command sends no more, so there is an end to it; what is left after ``_LAST_ROUND`` is counted as lost.
        """
        self._listens = 0  # the end of the control socket is known
        self._reactor.change(self._control.fileno(), 0)
        now = time.monotonic()
        deadline, look_ups = now + _LAST_ROUND, 0.0
        while now < deadline and not self._gone:
            if not self._reactor.turn(0):
                if not self._udp.pending() or 0 < look_ups <= now:
                    return
                look_ups = look_ups or now + _LOOK_UPS
                self._reactor.turn(max(0.0, look_ups - now))
            now = time.monotonic()
        deadline = now + _LAST_COUNT
        for role, socket in self._sockets:
            if socket.family not in (AF_INET, AF_INET6, AF_UNIX) or role in _NOT_SERVED or role == "datagrams":
                continue
            lost = 0
            while time.monotonic() < deadline:
                try:
                    if socket.type == SOCK_DGRAM:
                        socket.recv(1, MSG_DONTWAIT)
                    else:
                        os.close(socket._accept()[0])  # type: ignore[attr-defined]
                except OSError:
                    break
                lost += 1
            if lost:
                self._queue.lose("datagram" if socket.type == SOCK_DGRAM else "connection", lost)

    def _serve(self, role: str, socket: Socket) -> None:
        kind, _, port = role.partition(":")
        six = socket.family == AF_INET6
        family = "6" if six else "4"
        if kind in (f"tcp{family}", f"tcp{family}-dnat"):
            self._engine.listen(socket, dnat=kind.endswith("-dnat"))
        elif kind == "tcp4-named":
            self._engine.listen(socket, destinations=self._destinations[0])
        elif kind == f"dns{family}":
            serve_dns(self._reactor, socket, self._answerer, self._crashed, self._udp, self._take_refused)
        elif kind == f"udp{family}" and port.isdigit():
            self._udp.listen(socket, int(port))
        elif kind == "exposed" and self._exposed is not None:
            self._exposed.listen(socket, int(port))
        elif kind in _NOT_SERVED:
            pass  # not served: it answers
        elif kind == "datagrams":
            Datagrams(self._reactor, socket, self._router, self._queue.emit, self._udp, self._answerer, self._crashed)
        elif kind == "refused":
            queue = self._queue
            self._refused = RefusedPackets(self._reactor, socket, self._router, queue.emit, queue.lose, self._crashed)
        elif kind == "diag":
            senders = next((other for name, other in self._sockets if name == "senders"), None)
            self._clients = self._engine.clients = self._udp.clients = Clients(socket, senders)
        elif kind == "unix" and port.isdigit():
            self._broker.listen(socket, self._unix_sockets[int(port)], *self._doors[int(port)])
        else:
            raise InternalError("serve a socket", "unknown role, or the role of another family", target=role)

    def _take_refused(self) -> None:
        if self._refused is not None:
            self._refused.take()

    def _crashed(self, error: BaseException) -> None:
        """A connection or a datagram failed by a defect of ours; the caller refuses it."""
        self._crashes += 1
        if self._crashes <= _CRASHES_REPORTED:
            self._queue.emit(defect(error))
        else:
            self._last_crash = defect(error, self._crashes - _CRASHES_REPORTED)

    def _on_control(self, mask: int) -> None:
        if mask & OUT:
            self._blocked = False
            self._reactor.change(self._control.fileno(), self._listens)
            self._write()
        self._gone = self._gone or bool(mask & HUP)
        if mask & ~OUT:
            self._read_messages()

    def _read_messages(self) -> None:
        try:
            data = self._control.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # the session died
        if not data:
            self._reactor.stop()
            return
        for message in self._frames.feed(data):
            if isinstance(message, m.Answer):
                if self._approvals is not None:
                    self._approvals.answer(message.number, message.answer)
            elif isinstance(message, m.Follow):
                self._follow(message.policy)
            elif isinstance(message, m.Sync):
                if not self._barriers:
                    self._reactor.soon(self._pass_barriers)
                self._barriers.append(_Barrier(message.number, self._from_inside))
            elif isinstance(message, m.Stop):
                self._reactor.stop()
            else:
                raise InternalError("follow the supervisor", f"{type(message).__name__} came again")

    def _pass_barriers(self) -> None:
        passed = [barrier for barrier in self._barriers if barrier.passed()]
        if passed:
            self._queue.report_repetitions(everything=True)
            for barrier in passed:
                self._barriers.remove(barrier)
                self._queue.send(m.Synced(barrier.number))
            self._write()
        if self._barriers:
            self._reactor.soon(self._pass_barriers)

    def _ask_about_name(self, question: NameQuery, hint: str, answered: Callable[[bool], None]) -> None:
        assert self._approvals is not None
        self._approvals.ask(question, hint, lambda router: answered(router is not None))

    def _forget(self) -> None:
        self._router.forget()

    def _decide(self, access: Access) -> Verdict:
        return self._decider.decide(access)

    def _follow(self, policy: Policy) -> None:
        """Other rules from now on; what was remembered of the old ones is forgotten."""
        if self._approvals is not None:
            self._approvals.follow(policy)
            return
        self._decider = Decider(policy, self._own.current)
        self._router.forget()

    def _moved(self) -> None:
        """This machine has other addresses; connections that are open stay."""
        if self._approvals is not None:
            self._approvals.moved(self._own.current)
        else:
            self._decider = Decider(self._decider.policy, self._own.current)
        self._router.forget()

    def _report_repetitions(self, _item: None) -> None:
        self._queue.report_repetitions()

    def _bytes(self) -> tuple[int, int]:
        """Bytes relayed so far, up and down."""
        pump, udp = self._engine.pump, self._udp
        return pump.bytes_up + udp.bytes_up, pump.bytes_down + udp.bytes_down

    def _report_totals(self, _item: None) -> None:
        up, down = self._bytes()
        self._bytes_reported = up + down
        self._queue.send(m.Totals(up, down))

    def _flush(self) -> None:
        """At the end of each turn: hand over what is many, and start the waits for what is few."""
        queue = self._queue
        if self._sends_totals and not self._totals.waiting() and sum(self._bytes()) != self._bytes_reported:
            self._totals.begin(None)
        if queue.counting() and not self._repetitions.waiting():
            self._repetitions.begin(None)
        if queue.urgent():
            self._write()
        elif queue.waiting() and not self._batch_delay.waiting():
            self._batch_delay.begin(None)

    def _write(self, _item: None = None) -> None:
        """Hand the session what it takes."""
        if self._blocked:
            return
        queue = self._queue
        try:
            while queue.waiting():
                queue.sent(self._control.send(queue.pending()))
        except BlockingIOError:
            self._blocked = True
            self._reactor.change(self._control.fileno(), self._listens | OUT)
        except OSError:
            self._reactor.stop()  # the session died


def serve(argv: list[str]) -> NoReturn:
    """``main``, and the end of the process, without the interpreter's own.

    A thread that looks a name up may be in it still, and would use a lock that the interpreter has freed by then
    (CPython 3.11, _PyRuntimeState_Fini): SIGSEGV.
    """
    os._exit(main(argv))


if __name__ == "__main__":
    serve(sys.argv)
