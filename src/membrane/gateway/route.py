"""Where may this connection go, and what does the client get when it may not?

Theory of operation
-------------------
The destination of an intercepted connection is a fake address, which has one name, or a literal.  The
policy is asked up to three times, and each answer can only take away:

1. ``arrive``: the name or the literal, and the port.
2. ``candidates``: each address that the name resolved to, before it is dialled.
3. ``judge_first``: the first bytes.  A TLS hello on a connection that is bound to a name must carry that name.

``host.internal`` is the host's loopback.  It needs a rule that names it with its port: the address check that keeps
all other names away from loopback is not asked for it.

Refusals are answers in the client's own protocol (``http_answer``, ``alert``), so that a person or a program can
read what happened; the caller resets what speaks neither.
"""

from __future__ import annotations

from ..events import AccessDenied, access_as_data
from ..policy import reasons
from ..policy.hosts import canonical_host
from ..policy.literals import canonical_address
from ..policy.model import Allow, Ask, Connect, Deny, HostRule, PortRule
from ..value import Value
from .dns import Names, is_fake
from .event_queue import denial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from ..policy.model import Access, Protocol, Verdict
    from .sniff import First

    K = TypeVar("K")
    V = TypeVar("V")

HOST_INTERNAL = "host.internal"
LOOPBACK = ("127.0.0.1", "::1")  # what it is dialled as
ACCESS_DENIED, UNRECOGNIZED_NAME = 49, 112  # TLS alerts (RFC 8446 section 6)
LONGEST_SHOWN = 1024  # characters of a method or path in an answer
_CACHE = 4096  # decisions remembered; the policy does not change during a session


class Route(Value):
    """Go ahead.  ``addresses`` is set where nothing has to be resolved."""

    host: str  # empty for a literal
    address: str  # as the client dialled it
    port: int  # as the client dialled it
    dial_port: int
    addresses: tuple[str, ...] = ()
    protocol: Protocol = "tcp"
    inspect: bool = False  # each request is judged; never a raw relay
    insecure: bool = False  # the rule does not ask for a valid certificate of the server
    budgets: tuple[HostRule, ...] = ()  # the rules that its bytes count against
    raw: bool = False  # a client may begin with bytes of no known protocol


class Refusal(Value):
    """Do not.  ``event`` is to be recorded once; ``alert`` is for a client that speaks TLS."""

    event: AccessDenied
    host: str  # name or literal, for the answer
    alert: int = ACCESS_DENIED
    question: Connect | None = None  # what a person may be asked before this is final


class Router:
    """Decides about connections of one session.

    Args:
        names: the table that ``dns.Answerer`` fills.
        decide: the policy.
    """

    def __init__(self, names: Names, decide: Callable[[Access], Verdict]) -> None:
        self._names = names
        self.decide = decide
        self._arrivals: dict[tuple[str, int, str], Route | Refusal] = {}
        self._checked: dict[tuple[str, int, str, bool], tuple[tuple[str, ...], tuple[str, ...] | Refusal]] = {}

    def forget(self) -> None:
        """The policy has changed."""
        self._arrivals.clear()
        self._checked.clear()

    def arrive(self, address: str, port: int, protocol: Protocol = "tcp") -> Route | Refusal:
        """What to do with a connection to ``address`` (as inet_ntop(3) writes it, a zone is ignored)."""
        key = (address, port, protocol)
        known = self._arrivals.get(key)
        # A name may have been forgotten since: its address has none then.
        plain = _plain(address)
        if known is not None and (not is_fake(plain) or self._names.name(plain) == known.host):
            return known
        route = self._arrive(plain, port, protocol)
        # An address that no name has yet may get one later: that refusal is not remembered.
        if isinstance(route, Route) or not is_fake(plain):
            _remember(self._arrivals, key, route)
        return route

    def _arrive(self, address: str, port: int, protocol: Protocol) -> Route | Refusal:
        host = self._names.name(address)
        if host is None:
            access = Connect("", address, port, protocol)
            if is_fake(address) or _is_loopback(address):
                return Refusal(AccessDenied(access_as_data(access), reasons.ADDRESS_NOT_ALLOWED, None, None), address)
        else:
            access = Connect(host, "", port, protocol)
        return self._route(access, host, address, port, protocol)

    def proxied(self, host: str, port: int) -> Route | Refusal:
        """What to do with a connection that a client asked a proxy for.

        Args:
            host: as the client wrote it: a name, a literal in any form, perhaps in brackets.
        """
        address = canonical_address(host)
        if address and is_fake(address):
            return self.arrive(address, port)  # the client resolved the name itself
        if address:
            return self._route(Connect("", address, port), None, address, port, "tcp")
        lower = host.lower().rstrip(".")
        # A proxy is outside: its localhost is the host's.
        name = HOST_INTERNAL if lower == "localhost" or lower.endswith(".localhost") else host
        return self._route(Connect(name, "", port), name, "", port, "tcp")

    def _route(self, access: Connect, host: str | None, address: str, port: int, protocol: Protocol) -> Route | Refusal:
        verdict = self.decide(access)
        if not isinstance(verdict, Allow):
            question = access if isinstance(verdict, Ask) else None
            return Refusal(denial(access, verdict), host or address, question=question)
        if verdict.inspect and protocol != "tcp":
            hint = "requests over UDP (HTTP/3) are not inspected: use TCP"
            return Refusal(AccessDenied(access_as_data(access), reasons.NOT_HTTP, None, hint), host or address)
        insecure = isinstance(verdict.rule, HostRule) and verdict.rule.insecure
        if host is not None and not address:
            host = canonical_host(host)  # the decision found it well formed
        if host is None:
            addresses = (address,)
            return Route("", address, port, port, addresses, protocol, verdict.inspect, insecure, verdict.budgets)
        if host == HOST_INTERNAL:
            return self._internal(access, verdict)
        return Route(host, address, port, port, (), protocol, verdict.inspect, insecure, verdict.budgets, verdict.raw)

    @staticmethod
    def _internal(access: Connect, verdict: Allow) -> Route | Refusal:
        rule = verdict.rule
        dial_port = 0
        if isinstance(rule, PortRule):
            dial_port = rule.outside
        elif isinstance(rule, HostRule) and rule.kind == "host" and rule.host == HOST_INTERNAL and rule.ports:
            dial_port = access.port
        if not dial_port:
            hint = f"allow:\n  - dest: {HOST_INTERNAL}\n    ports: [{access.port}/{access.protocol}]"
            return Refusal(denial(access, Deny(None, reasons.PORT_NOT_ALLOWED, hint)), HOST_INTERNAL)
        insecure = isinstance(rule, HostRule) and rule.insecure
        return Route(
            *(HOST_INTERNAL, "", access.port, dial_port, LOOPBACK, access.protocol),
            inspect=verdict.inspect,
            insecure=insecure,
            budgets=verdict.budgets,
            raw=verdict.raw,
        )

    def candidates(self, route: Route, addresses: tuple[str, ...]) -> tuple[str, ...] | Refusal:
        """Those of the resolved ``addresses`` that may be dialled; a refusal when there is none."""
        key = (route.host, route.dial_port, route.protocol, route.inspect)
        known = self._checked.get(key)
        if known is not None and known[0] is addresses:
            return known[1]
        allowed = []
        refusal = None
        for address in addresses:
            access = Connect(route.host, address, route.dial_port, route.protocol)
            verdict = self.decide(access)
            if isinstance(verdict, Allow) and (route.inspect or not verdict.inspect):
                allowed.append(address)
            elif refusal is None:
                refused = Deny(None, reasons.NOT_HTTP) if isinstance(verdict, Allow) else verdict
                refusal = Refusal(denial(access, refused), route.host)
        if not allowed and refusal is None:
            access = Connect(route.host, "", route.dial_port, route.protocol)
            refusal = Refusal(denial(access, Deny(None, reasons.ADDRESS_NOT_ALLOWED)), route.host)
        result = tuple(allowed) or refusal
        assert result is not None
        _remember(self._checked, key, (addresses, result))
        return result

    @staticmethod
    def judge_first(route: Route, first: First) -> Refusal | None:
        """May a client that says ``first`` go on?  Only names are checked: a literal proves no name."""
        if not route.host or first.kind != "tls":
            return None
        access = access_as_data(Connect(route.host, route.address, route.port, route.protocol))
        if first.flaw:
            event = AccessDenied({**access, "sni": ""}, reasons.NAME_DIFFERS_FROM_SNI, None, first.flaw)
            return Refusal(event, route.host)
        if first.ech:
            hint = (
                "the client hides the server name (Encrypted Client Hello); switch that off in the client, or inspect"
            )
            event = AccessDenied({**access, "sni": first.sni}, reasons.NAME_DIFFERS_FROM_SNI, None, hint)
            return Refusal(event, route.host)
        if not first.sni:
            return Refusal(AccessDenied({**access, "sni": ""}, reasons.TLS_WITHOUT_SNI, None, None), route.host)
        if first.sni != route.host:
            event = AccessDenied({**access, "sni": first.sni}, reasons.NAME_DIFFERS_FROM_SNI, None, None)
            return Refusal(event, route.host, UNRECOGNIZED_NAME)
        return None

    @staticmethod
    def limit(route: Route, verdict: Deny) -> Refusal:
        """The refusal of a connection when a limit is reached."""
        access = Connect(route.host, route.address, route.port, route.protocol)
        return Refusal(denial(access, verdict), route.host or route.address)


def refuse_protocol(route: Route, hint: str) -> Refusal:
    """The refusal of a connection that must be HTTP and is not, or not in a form that can be read."""
    access = Connect(route.host, route.address, route.port, route.protocol)
    return Refusal(denial(access, Deny(None, reasons.NOT_HTTP, hint)), route.host or route.address)


def refuse_unknown(route: Route) -> Refusal:
    """The refusal of a client of a name whose first bytes are neither TLS nor those of a known protocol."""
    access = Connect(route.host, route.address, route.port, route.protocol)
    hint = f'allow: ["tcp://{route.host}:{route.port}"]'
    return Refusal(denial(access, Deny(None, reasons.PROTOCOL_NOT_KNOWN, hint)), route.host)


def _remember(cache: dict[K, V], key: K, value: V) -> None:
    if len(cache) >= _CACHE:
        cache.clear()
    cache[key] = value


def _plain(address: str) -> str:
    """Without the zone of a link-local address, and an IPv4-mapped one as IPv4 (RFC 4291 section 2.5.5.2)."""
    address = address.partition("%")[0]
    if address.startswith("::ffff:") and "." in address:
        return address[7:]
    return address


def _is_loopback(address: str) -> bool:
    """The sandbox's own loopback: only a relay socket for UDP hears of it, and it is no way to the host's."""
    return address.startswith(("127.", "0.")) or address in ("::1", "::")


# ---------------------------------------------------------------- answers


def alert(code: int) -> bytes:
    """A fatal TLS alert record (RFC 8446 section 6)."""
    return b"\x15\x03\x03\x00\x02\x02" + bytes((code,))


def http_answer(status: int, first: First, host: str, reason: str, hint: str) -> bytes:
    """The HTTP/1.1 answer that explains a refusal (403) or a failure (502), and closes the connection."""
    import json

    target = first.target
    if "://" in target[:8]:  # absolute-form
        target = "/" + target.partition("://")[2].partition("/")[2]
    body = json.dumps(
        {
            "error": "blocked by membrane" if status == 403 else "membrane could not connect",
            "host": host,
            "method": first.method,
            "path": target.partition("?")[0][:LONGEST_SHOWN],
            "reason": reason,
            "hint": hint,
        }
    ).encode()
    body += b"\n"  # a terminal's next line begins after it
    phrase = {403: "Forbidden", 502: "Bad Gateway"}[status]
    verdict = "x-membrane-verdict: deny\r\n" if status == 403 else ""
    head = (
        f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\n{verdict}"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    if first.method == "HEAD":
        return head.encode()
    return head.encode() + body
