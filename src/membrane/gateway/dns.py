"""Names in, fake addresses out: the only resolver that the sandbox has.

Theory of operation
-------------------
Each allowed name gets one number for the life of the session, and with it one address of each family from the
ranges of ``plan.model``.  Nothing is ever asked upstream here, so a query carries no data out; the real address is
looked up when a connection is made.  A later connection to a fake address names exactly one host.

Names that a rule spells out are as many as there are rules, and keep their number.  Names below a wildcard are the
command's choice: so many are known at a time (``MOST_NAMES``), and when there are more, those that were not used for
the longest time and have no connection are forgotten.  A number that was given away is never given to another name, so
an address that a program still has of a forgotten name is refused; the name, asked for again, gets a new one.  The
range of IPv4 has 131,056 numbers.  The last ``KEPT`` are for names that rules spell out; when the others are used up, a
name below a wildcard has an IPv6 address alone.

Rules
-----
1. An address is never given to a second name, not even when the first is forgotten: clients cache for ever.
2. A name that is not allowed is NXDOMAIN, the answer that makes every resolver library fail at once.
3. Other types of an allowed name are NODATA: no HTTPS records, hence no ECH keys and no HTTP/3 hints.
4. No input raises; what is not a query gets FORMERR, and what is too short for a header gets nothing.

References: RFC 1035 section 4 (format), RFC 6891 (EDNS), RFC 2308 (NODATA), RFC 3596 (AAAA and ip6.arpa).
"""

from __future__ import annotations

import struct

from ..events import AccessDenied, NameResolved, access_as_data
from ..plan.model import FAKE_V4, FAKE_V6
from ..policy import reasons
from ..policy.model import Allow, Ask, HostRule, NameQuery
from .event_queue import denial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..events import Client, Event
    from ..policy.model import Verdict
    from ..policy.reasons import Reason

A, PTR, AAAA, SRV, OPT, SVCB, HTTPS = 1, 12, 28, 33, 41, 64, 65
NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED, BADVERS = 0, 1, 2, 3, 4, 5, 16
_TYPES = {
    A: "A", 2: "NS", 5: "CNAME", 6: "SOA", 10: "NULL", PTR: "PTR", 13: "HINFO", 15: "MX", 16: "TXT", AAAA: "AAAA",
    SRV: "SRV", 35: "NAPTR", 43: "DS", 48: "DNSKEY", SVCB: "SVCB", HTTPS: "HTTPS", 252: "AXFR", 255: "ANY", 257: "CAA",
}  # fmt: skip
_V4_BASE = int.from_bytes(bytes(int(part) for part in FAKE_V4[0].split(".")), "big")
_V6_PREFIX = b"".join(int(group, 16).to_bytes(2, "big") for group in FAKE_V6.removesuffix("::").split(":"))
_TTL = 60  # seconds; of no consequence, the address never changes
_RESERVED = 16  # the first addresses of the range are the sandbox's own and the resolver's
_LABEL = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
_LOWER = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", b"abcdefghijklmnopqrstuvwxyz")
_HEADER = struct.Struct(">6H")
_ANSWER = struct.Struct(">HHHIH")  # pointer to the question's name, type, class, TTL, length
_HTTP_SERVICES = ("_http._tcp.", "_https._tcp.")  # apt-transport-http(1): asked first, and the host itself without it
_UDP_SIZE = 1232  # what we say we take (DNS flag day 2020)
LONGEST_QUERY = 4096  # bytes that are taken, over either transport
_LONGEST_NAME = 255  # bytes on the wire (RFC 1035 section 2.3.4)


MOST_NAMES = 16384  # names below wildcards that are known at a time
KEPT = 16384  # IPv4 addresses of a session that only names which a rule spells out are given
_END = 1 << (32 - FAKE_V4[1])  # numbers from here on have no IPv4 address
_MOST_REPORTED = 4 * MOST_NAMES  # names and types whose first answer is remembered
_RECYCLED = 16  # one in so many of the names is forgotten at a time, so that looking for living ones is rare


class Names:
    """Which name has which number; the addresses are made of the number.

    Args:
        limit: names that are known at a time beside those that keep their number.
        kept: numbers with an IPv4 address that only names which keep theirs are given.
    """

    def __init__(self, limit: int = MOST_NAMES, kept: int = KEPT) -> None:
        self.limit = limit
        self.living: Callable[[], set[str]] = set  # names that connections and flows are bound to
        self._numbers: dict[str, int] = {}
        self._names: dict[str, str] = {}  # address, as inet_ntop writes it: name
        self._passing: dict[str, None] = {}  # names that may be forgotten, the one used last at the end
        self._first_kept = _END - kept
        self._next, self._next_kept, self._next_beyond = _RESERVED, self._first_kept, _END

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, name: str) -> int | None:
        """The number of a canonical name that already has one."""
        number = self._numbers.get(name)
        if number is not None:
            self._use(name)
        return number

    def assign(self, name: str, *, lasting: bool = False) -> int | None:
        """The number of ``name``, a new one if it has none.

        Args:
            lasting: it is never forgotten; only for names that the command cannot choose.

        Returns:
            ``None`` when as many names as there may be have connections.
        """
        number = self.number(name)
        if number is not None:
            return number
        if not lasting:
            if len(self._passing) >= self.limit and not self._recycle():
                return None
            self._passing[name] = None
        number = self._numbers[name] = self._new(lasting)
        if self.has_v4(number):
            self._names[self.v4(number)] = name
        self._names[self.v6(number)] = name
        return number

    def name(self, address: str) -> str | None:
        """The name that an address (as inet_ntop(3) writes it) was made for."""
        name = self._names.get(address)
        if name is not None:
            self._use(name)
        return name

    def _use(self, name: str) -> None:
        if name in self._passing:
            del self._passing[name]
            self._passing[name] = None

    def _new(self, lasting: bool) -> int:
        """A number that was never given away."""
        if self._next < self._first_kept:
            self._next += 1
            return self._next - 1
        if lasting and self._next_kept < _END:
            self._next_kept += 1
            return self._next_kept - 1
        self._next_beyond += 1
        return self._next_beyond - 1

    def _recycle(self) -> bool:
        """Forget names that were not used for the longest time and that no connection is bound to; false: none."""
        living, forgotten = self.living(), 0
        for name in list(self._passing):
            if name in living:
                self._use(name)  # not looked at again so soon
                continue
            del self._passing[name]
            number = self._numbers.pop(name)
            self._names.pop(self.v6(number))
            if self.has_v4(number):
                self._names.pop(self.v4(number))
            forgotten += 1
            if forgotten > self.limit // _RECYCLED:
                break
        return forgotten > 0

    @staticmethod
    def has_v4(number: int) -> bool:
        """Is there an IPv4 address of this number?"""
        return number < _END

    def v4(self, number: int) -> str:
        return ".".join(str(part) for part in (_V4_BASE + number).to_bytes(4, "big"))

    def v6(self, number: int) -> str:
        high, low = number >> 16, number & 0xFFFF
        return f"{FAKE_V6}{high:x}:{low:x}" if high else f"{FAKE_V6}{low:x}"

    def v4_bytes(self, number: int) -> bytes:
        return (_V4_BASE + number).to_bytes(4, "big")

    def v6_bytes(self, number: int) -> bytes:
        return _V6_PREFIX + number.to_bytes(8, "big")


def is_fake(address: str) -> bool:
    """Is a literal (as inet_ntop writes it) in the ranges that only we give out, or one of our own addresses?"""
    if ":" in address:
        return address.startswith(FAKE_V6.rsplit(":", 3)[0] + ":")  # the /48 holds our own addresses as well
    number = int.from_bytes(bytes(int(part) for part in address.split(".")), "big")
    return number >> (32 - FAKE_V4[1]) == _V4_BASE >> (32 - FAKE_V4[1])


def _wire(name: str) -> bytes:
    return b"".join(bytes((len(label),)) + label.encode("ascii") for label in name.split(".")) + b"\0"


def _skip_name(message: bytes, at: int) -> int:
    """The index after a name that may be compressed.

    Raises:
        IndexError: it ends too early.
    """
    while True:
        length = message[at]
        if length >= 0xC0:
            return at + 2
        at += 1 + length
        if length == 0:
            return at


def _edns(message: bytes, at: int, records: int) -> int | None:
    """EDNS version of the OPT record in the additional section, or ``None`` without one.

    Raises:
        ValueError, IndexError, struct.error: malformed, or more than one OPT (RFC 6891 section 6.1.1).
    """
    version = None
    for _ in range(records):
        root = message[at] == 0
        at = _skip_name(message, at)
        kind, _size, ttl, length = struct.unpack_from(">HHIH", message, at)
        at += 10 + length
        if at > len(message):
            raise ValueError("record ends too early")
        if kind == OPT:
            if version is not None or not root:
                raise ValueError("OPT twice or with a name")
            version = ttl >> 16 & 0xFF
    return version


class _Held(Exception):
    """A query that waits for a person's answer."""

    def __init__(self, name: str, hint: str) -> None:
        super().__init__(name)
        self.name, self.hint = name, hint


class Answerer:
    """Answers queries, one datagram or TCP message at a time.

    Args:
        names: the table shared with ``route.Router``.
        decide: asked once for each name; its ``Allow`` is remembered.
        emit: takes ``NameResolved`` (first answer of a name and type) and ``AccessDenied``.
        ipv6: answer AAAA with an address; else NODATA.
    """

    def __init__(
        self,
        names: Names,
        decide: Callable[[NameQuery], Verdict],
        emit: Callable[[Event], None],
        *,
        ipv6: bool = True,
    ) -> None:
        self.names = names
        self.queries = 0
        self.refused = 0
        self._decide = decide
        self._emit = emit
        self._ipv6 = ipv6
        self._reported: set[tuple[int, int]] = set()  # number and type
        self._client: Callable[[], Client] | None = None  # of the query that is looked at
        # Takes a question, its hint and what to call with the answer; without one, what no rule decides is refused.
        self.ask: Callable[[NameQuery, str, Callable[[bool], None]], None] | None = None

    def answer(
        self,
        query: bytes,
        later: Callable[[bytes | None], None] | None = None,
        client: Callable[[], Client] | None = None,
    ) -> bytes | None:
        """The response to ``query``, or ``None`` where none may be sent.  Never raises.

        Args:
            later: takes the response when a person must be asked first; it is empty until then.
            client: who asks, for the events.
        """
        self._client = client
        if len(query) < 12:
            return None
        self.queries += 1
        ident, flags, questions, answers, authorities, additional = _HEADER.unpack_from(query)
        if flags & 0x8000:
            return None  # a response: answering it could loop
        head = 0x8480 | (flags & 0x7900)  # QR AA RA, opcode and RD as asked
        if flags & 0x7800:
            return _HEADER.pack(ident, head | NOTIMP, 0, 0, 0, 0)
        malformed = _HEADER.pack(ident, head | FORMERR, 0, 0, 0, 0)
        if questions != 1 or answers or authorities:
            return malformed
        labels = []
        at, size = 12, len(query)
        while at < size and (length := query[at]):
            end = at + 1 + length
            if length > 63 or end > size:  # a pointer has nothing before it to point to
                return malformed
            labels.append(query[at + 1 : end])
            at = end
        end = at + 5
        if end > size or end - 16 > _LONGEST_NAME:
            return malformed
        kind, family = struct.unpack_from(">HH", query, at + 1)
        opt = b""
        if additional:
            try:
                version = _edns(query, end, additional)
            except (ValueError, IndexError, struct.error):
                return malformed
            if version is not None:
                opt = struct.pack(">BHHIH", 0, OPT, _UDP_SIZE, 0, 0)
                if version > 0:
                    bad = struct.pack(">BHHIH", 0, OPT, _UDP_SIZE, BADVERS >> 4 << 24, 0)
                    return _HEADER.pack(ident, head, 1, 0, 0, 1) + query[12:end] + bad
        try:
            code, data = self._look_up(labels, kind, family, later is not None)
        except _Held as held:
            assert self.ask is not None and later is not None
            name, call = held.name, later
            self.ask(NameQuery(name), held.hint, lambda allowed: call(self._answer_now(query, name, allowed, client)))
            return b""
        out = _HEADER.pack(ident, head | code, 1, 1 if data else 0, 0, 1 if opt else 0) + query[12:end]
        if data:
            out += _ANSWER.pack(0xC00C, kind, 1, _TTL, len(data)) + data
        return out + opt

    def _answer_now(self, query: bytes, name: str, allowed: bool, client: Callable[[], Client] | None) -> bytes | None:
        """The response once its name was asked about."""
        self.queries -= 1  # it was counted when it came
        if allowed:
            self.names.assign(name, lasting=True)  # as many as were allowed by a person
        return self.answer(query, client=client)

    def _look_up(self, labels: list[bytes], kind: int, family: int, may_ask: bool) -> tuple[int, bytes]:
        """Response code and the data of the one record."""
        wire = b".".join(labels).translate(_LOWER)
        plain = all(map(_LABEL.issuperset, labels))
        name = wire.decode("ascii") if plain else wire.decode("latin-1")
        if family != 1:
            self._refuse(NameQuery(name, f"CLASS{family}"), reasons.QUERY_TYPE_NOT_ANSWERED)
            return REFUSED, b""
        if kind == PTR and plain and (address := _reverse(labels)) is not None:
            held = self.names.name(address)
            return (NXDOMAIN, b"") if held is None else (NOERROR, _wire(held))
        number = self.names.number(name) if plain else None
        if number is None:
            question = NameQuery(name, _TYPES.get(kind) or f"TYPE{kind}")
            if not plain:  # also a label with a dot in it, which would read as two
                self._refuse(question, reasons.NAME_MALFORMED)
                return NXDOMAIN, b""
            # The name is judged, whatever the type: what is not known by address is not known at all.
            service = kind == SRV and name.startswith(_HTTP_SERVICES)
            judged = name.split(".", 2)[2] if service else name
            verdict = self._decide(question if kind in (A, AAAA) else NameQuery(judged))
            if isinstance(verdict, Ask) and may_ask and self.ask is not None and not service:
                raise _Held(name, verdict.hint)
            if service and isinstance(verdict, Allow):
                self._refuse(question, reasons.HTTP_SERVICE_RECORD)
                return NXDOMAIN, b""
            if not isinstance(verdict, Allow):
                self.refused += 1
                self._emit(self._of_client(denial(question, verdict)))
                return NXDOMAIN, b""
            rule = verdict.rule
            number = self.names.assign(name, lasting=isinstance(rule, HostRule) and rule.kind == "host")
            if number is None:
                self._refuse(question, reasons.LIMIT_REACHED)
                return SERVFAIL, b""
        if kind == A and self.names.has_v4(number):
            data = self.names.v4_bytes(number)
        elif kind == AAAA and self._ipv6:
            data = self.names.v6_bytes(number)
        else:
            # SVCB and HTTPS are asked next to A by ordinary clients; that they have no answer is no refusal.
            if kind not in (A, AAAA, SVCB, HTTPS):
                self._refuse(NameQuery(name, _TYPES.get(kind) or f"TYPE{kind}"), reasons.QUERY_TYPE_NOT_ANSWERED)
            return NOERROR, b""
        if (number, kind) not in self._reported:
            if len(self._reported) >= _MOST_REPORTED:
                self._reported.clear()  # what is reported again was used again
            self._reported.add((number, kind))
            address = self.names.v4(number) if kind == A else self.names.v6(number)
            port, socket = (0, 0) if self._client is None else self._client()
            self._emit(NameResolved(name, _TYPES[kind], "allow", address, "network", port, socket))
        return NOERROR, data

    def _refuse(self, question: NameQuery, reason: Reason) -> None:
        self.refused += 1
        self._emit(self._of_client(AccessDenied(access_as_data(question), reason, None, None)))

    def _of_client(self, refused: AccessDenied) -> AccessDenied:
        return refused if self._client is None else refused.of(self._client())


def _reverse(labels: list[bytes]) -> str | None:
    """The address that an in-addr.arpa or ip6.arpa name asks about, as ``Names`` writes it."""
    texts = [label.decode("ascii").lower() for label in labels]
    if len(texts) == 6 and texts[4:] == ["in-addr", "arpa"]:
        return ".".join(reversed(texts[:4]))
    if len(texts) == 34 and texts[32:] == ["ip6", "arpa"] and all(len(text) == 1 for text in texts[:32]):
        digits = "".join(reversed(texts[:32]))
        if not all(digit in "0123456789abcdef" for digit in digits):
            return None
        head = ":".join(f"{int(digits[at : at + 4], 16):x}" for at in range(0, 16, 4))
        number = int(digits[16:], 16)
        if number >> 32:
            return "::"  # not one of ours
        high, low = number >> 16, number & 0xFFFF
        return f"{head}::{high:x}:{low:x}" if high else f"{head}::{low:x}"
    return None


class TcpMessages:
    """Cuts a TCP stream into DNS messages: two length bytes, then the message (RFC 7766 section 8)."""

    def __init__(self) -> None:
        self._held = bytearray()

    def held(self) -> int:
        """Bytes of the unfinished message."""
        return len(self._held)

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that ``data`` completes.  Holds at most one unfinished message (64 KiB)."""
        self._held += data
        out = []
        while len(self._held) >= 2:
            end = 2 + int.from_bytes(self._held[:2], "big")
            if len(self._held) < end:
                break
            out.append(bytes(self._held[2:end]))
            del self._held[:end]
        return out
