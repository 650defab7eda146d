"""The resolver of the sandbox: what is answered, byte for byte as another library reads it."""

from __future__ import annotations

import struct

import dns.edns
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.reversename
import pytest
from hypothesis import given
from hypothesis import strategies as st

from membrane.events import AccessDenied, NameResolved
from membrane.gateway.dns import Answerer, Names, TcpMessages, is_fake
from membrane.policy import reasons
from membrane.policy.model import Allow, Ask, Deny, HostRule, NameQuery, Origin

RULE = HostRule("*.ok.test", Origin("user", "config.yaml", 7), "wildcard", host="ok.test")


class Resolver:
    """An ``Answerer`` for names below ok.test, and what it asked and told."""

    def __init__(self, **options) -> None:
        self.asked: list[NameQuery] = []
        self.events: list = []
        limit = options.pop("limit", 16384)
        self.names = Names(limit)
        self.answerer = Answerer(self.names, self.decide, self.events.append, **options)

    def decide(self, query: NameQuery):
        self.asked.append(query)
        if query.name.endswith("ok.test"):
            return Allow(RULE, "name allowed")
        if query.name == "ask.test":
            return Ask("somebody may be asked")
        if query.name == "denied.test":
            return Deny(RULE, "denied by rule")
        return Deny(None, "name not allowed", "allow: [x]")

    def ask(self, name: str, kind: str = "A", **options) -> dns.message.Message:
        query = dns.message.make_query(name, kind, **options)
        reply = self.answerer.answer(query.to_wire())
        assert reply is not None
        message = dns.message.from_wire(reply)
        assert message.id == query.id
        assert message.question == query.question
        assert message.flags & dns.flags.QR
        assert not message.flags & dns.flags.TC
        return message

    def addresses(self, name: str, kind: str = "A") -> list[str]:
        return [record.to_text() for rrset in self.ask(name, kind).answer for record in rrset]


def test_each_name_has_one_address_of_each_family_for_ever() -> None:
    resolver = Resolver()
    assert resolver.addresses("a.ok.test") == ["198.18.0.16"]
    assert resolver.addresses("b.ok.test", "AAAA") == ["fd00:6d65:6d62:1::11"]
    assert resolver.addresses("A.OK.test") == ["198.18.0.16"]
    assert resolver.addresses("a.ok.test", "AAAA") == ["fd00:6d65:6d62:1::10"]
    assert resolver.addresses("b.ok.test") == ["198.18.0.17"]
    assert resolver.names.name("198.18.0.17") == resolver.names.name("fd00:6d65:6d62:1::11") == "b.ok.test"
    assert [query.name for query in resolver.asked] == ["a.ok.test", "b.ok.test"]
    resolved = [(event.name, event.type, event.address) for event in resolver.events]
    assert all(isinstance(event, NameResolved) and event.verdict == "allow" for event in resolver.events)
    assert resolved == [
        ("a.ok.test", "A", "198.18.0.16"),
        ("b.ok.test", "AAAA", "fd00:6d65:6d62:1::11"),
        ("a.ok.test", "AAAA", "fd00:6d65:6d62:1::10"),
        ("b.ok.test", "A", "198.18.0.17"),
    ]


def test_numbers_past_16_bits_read_back() -> None:
    names = Names(1 << 17)
    for number in range(70000):
        names.assign(f"n{number}.test")
    assert names.v4(65536 + 5) == "198.19.0.5"
    assert names.v6(65536 + 5) == "fd00:6d65:6d62:1::1:5"
    assert names.v6(65536) == "fd00:6d65:6d62:1::1:0"
    assert names.name("198.19.0.5") == names.name("fd00:6d65:6d62:1::1:5")


def test_a_name_that_is_not_allowed_does_not_exist() -> None:
    resolver = Resolver()
    for name, reason, rule, hint in (
        ("evil.test", "name not allowed", None, "allow: [x]"),
        ("denied.test", "denied by rule", "*.ok.test (user config.yaml:7)", None),
        ("ask.test", "somebody may be asked", None, None),
    ):
        resolver.events.clear()
        assert resolver.ask(name).rcode() == dns.rcode.NXDOMAIN
        access = {"kind": "NameQuery", "name": name, "type": "A"}
        assert resolver.events == [AccessDenied(access, reason, rule, hint)]
    assert len(resolver.names) == 0


def test_a_refusal_and_the_first_answer_of_a_name_say_who_asked_and_later_ones_do_not_look() -> None:
    resolver = Resolver()
    looked: list[str] = []

    def who() -> tuple[int, int]:
        looked.append("x")
        return 4001, 77

    for name in ("a.ok.test", "a.ok.test", "evil.test"):
        resolver.answerer.answer(dns.message.make_query(name, "A").to_wire(), None, who)
    [resolved] = [event for event in resolver.events if isinstance(event, NameResolved)]
    assert (resolved.client_port, resolved.client_socket) == (4001, 77)
    [refused] = [event for event in resolver.events if isinstance(event, AccessDenied)]
    assert (refused.client_port, refused.client_socket, len(looked)) == (4001, 77, 2)
    assert resolver.ask("other.test").rcode() == dns.rcode.NXDOMAIN  # whose client is not known
    assert resolver.events[-1].client_port == 0 and len(looked) == 2


@pytest.mark.parametrize(
    ("kind", "told"), [("TXT", 1), ("MX", 1), ("ANY", 1), ("NULL", 1), ("TYPE4711", 1), ("HTTPS", 0), ("SVCB", 0)]
)
def test_other_types_of_an_allowed_name_have_no_data(kind, told) -> None:
    resolver = Resolver()
    reply = resolver.ask("a.ok.test", kind)
    assert (reply.rcode(), reply.answer) == (dns.rcode.NOERROR, [])
    assert [event.reason for event in resolver.events] == ["query type not answered"] * told
    assert resolver.ask("evil.test", kind).rcode() == dns.rcode.NXDOMAIN


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("_http._tcp.a.ok.test", "service record of HTTP"),
        ("_HTTPS._TCP.a.ok.test", "service record of HTTP"),
        ("_mongodb._tcp.a.ok.test", "query type not answered"),  # without it the program goes nowhere
        ("_http._tcp.evil.test", "name not allowed"),
        ("_http._tcp.denied.test", "denied by rule"),
    ],
)
def test_what_apt_asks_before_it_asks_for_an_allowed_host_is_a_reason_of_its_own(name: str, reason: str) -> None:
    resolver = Resolver()
    reply = resolver.ask(name, "SRV")
    assert reply.answer == [] and [event.reason for event in resolver.events] == [reason]
    assert resolver.events[0].access == {"kind": "NameQuery", "name": name.lower(), "type": "SRV"}
    assert reasons.REASONS[reason].untold == (reason == "service record of HTTP")


def test_without_ipv6_aaaa_has_no_data() -> None:
    resolver = Resolver(ipv6=False)
    assert resolver.addresses("a.ok.test", "AAAA") == []
    assert resolver.ask("a.ok.test", "AAAA").rcode() == dns.rcode.NOERROR
    assert resolver.events == []


def test_reverse_look_ups_of_our_addresses() -> None:
    resolver = Resolver()
    for address in (*resolver.addresses("a.ok.test"), *resolver.addresses("a.ok.test", "AAAA")):
        name = dns.reversename.from_address(address).to_text()
        assert resolver.addresses(name, "PTR") == ["a.ok.test."]
    resolver.events.clear()
    for address in ("198.18.0.200", "8.8.8.8", "2001:db8::1", "fd00:6d65:6d62:1::99", "fd00:6d65:6d62:1:1::10"):
        assert resolver.ask(dns.reversename.from_address(address).to_text(), "PTR").rcode() == dns.rcode.NXDOMAIN
    assert resolver.events == []
    assert resolver.ask("x.in-addr.arpa", "PTR").rcode() == dns.rcode.NXDOMAIN
    assert [event.reason for event in resolver.events] == ["name not allowed"]


def test_a_name_that_was_not_used_for_the_longest_time_is_forgotten_and_its_address_is_nobodys() -> None:
    resolver = Resolver(limit=3)
    first = {name: resolver.addresses(f"{name}.ok.test")[0] for name in "abc"}
    resolver.names.living = lambda: {"b.ok.test"}
    assert resolver.addresses("a.ok.test") == [first["a"]]  # used: now b and c wait longer
    assert resolver.addresses("d.ok.test") == ["198.18.0.19"]
    assert resolver.names.name(first["c"]) is None  # b has a connection
    assert [resolver.names.name(first[name]) for name in "ab"] == ["a.ok.test", "b.ok.test"]
    assert resolver.addresses("c.ok.test") == ["198.18.0.20"]  # asked for again: never its old number, nor another's
    assert len(resolver.names) <= 3
    told = [event.address for event in resolver.events if event.name == "c.ok.test"]
    assert told == [first["c"], "198.18.0.20"]


def test_when_every_name_has_a_connection_the_answer_is_servfail_and_known_names_go_on() -> None:
    resolver = Resolver(limit=2)
    assert resolver.addresses("a.ok.test") == ["198.18.0.16"]
    assert resolver.addresses("b.ok.test") == ["198.18.0.17"]
    resolver.names.living = lambda: {"a.ok.test", "b.ok.test"}
    assert resolver.ask("c.ok.test").rcode() == dns.rcode.SERVFAIL
    assert resolver.events[-1].reason == "limit reached"
    assert resolver.addresses("a.ok.test") == ["198.18.0.16"]


def test_a_name_that_a_rule_spells_out_keeps_its_address() -> None:
    rule = HostRule("own.test", Origin("user", "config.yaml", 8), "host", host="own.test")
    resolver = Resolver(limit=2)
    resolver.decide = resolver.answerer._decide = lambda query: Allow(rule if query.name == "own.test" else RULE, "")
    assert resolver.addresses("own.test") == ["198.18.0.16"]
    for number in range(100):
        assert resolver.addresses(f"n{number}.ok.test")
    assert resolver.names.name("198.18.0.16") == "own.test"
    assert resolver.addresses("own.test") == ["198.18.0.16"]


def test_when_the_range_is_used_up_names_below_wildcards_have_ipv6_alone_and_others_both() -> None:
    kept = 2
    names = Names(4, kept)
    given = [names.assign(f"n{number}.test") for number in range((1 << 17) - 16 - kept)]
    assert len(set(given)) == len(given) and max(filter(None, given)) == (1 << 17) - 1 - kept
    late = names.assign("late.test")
    assert late is not None and not names.has_v4(late)
    assert names.name(names.v6(late)) == "late.test"
    assert is_fake(names.v6(late))
    for name, has_v4 in (("x.test", True), ("y.test", True), ("z.test", False)):
        number = names.assign(name, lasting=True)
        assert number is not None and names.has_v4(number) is has_v4 and number not in given
    resolver = Resolver(limit=4)
    resolver.names = resolver.answerer.names = names
    reply = resolver.ask("late.ok.test")
    assert (reply.rcode(), reply.answer) == (dns.rcode.NOERROR, [])
    assert resolver.addresses("late.ok.test", "AAAA")
    assert [event for event in resolver.events if isinstance(event, AccessDenied)] == []


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans()), max_size=200), st.integers(1, 5))
def test_an_address_never_stands_for_two_names(steps, limit) -> None:
    names = Names(limit, 3)
    ever: dict[str, str] = {}
    living: set[str] = set()
    names.living = lambda: living
    for name, connected in steps:
        number = names.assign(f"{name}.test")
        if number is None:
            assert len(living) >= limit
            continue
        (living.add if connected and len(living) < limit - 1 else living.discard)(f"{name}.test")
        for address in (names.v4(number), names.v6(number)):
            assert ever.setdefault(address, f"{name}.test") == f"{name}.test"
            assert names.name(address) == f"{name}.test"
        assert len(names) <= limit
    for address, name in ever.items():
        assert names.name(address) in (name, None)


def test_edns_is_answered_with_a_minimal_opt() -> None:
    resolver = Resolver()
    reply = resolver.ask(
        "a.ok.test", use_edns=0, payload=4096, want_dnssec=True, options=[dns.edns.GenericOption(10, b"cookie!!")]
    )
    assert (reply.edns, reply.payload, reply.options, reply.ednsflags) == (0, 1232, (), 0)
    assert resolver.ask("a.ok.test").edns == -1
    assert resolver.ask("evil.test", use_edns=0).edns == 0
    assert resolver.ask("a.ok.test", use_edns=1).rcode() == dns.rcode.BADVERS


def test_the_spelling_of_the_question_comes_back() -> None:
    resolver = Resolver()
    query = dns.message.make_query("a.oK.TeSt", "A").to_wire()
    reply = resolver.answerer.answer(query)
    assert reply is not None
    assert query[12:] in reply


def wire(
    flags: int = 0x0100, counts=(1, 0, 0, 0), question: bytes = b"\1a\2ok\4test\0\0\1\0\1", rest: bytes = b""
) -> bytes:
    return struct.pack(">6H", 7, flags, *counts) + question + rest


@pytest.mark.parametrize(
    ("query", "code"),
    [
        (wire(counts=(0, 0, 0, 0), question=b""), dns.rcode.FORMERR),
        (wire(counts=(2, 0, 0, 0), question=b"\1a\2ok\4test\0\0\1\0\1" * 2), dns.rcode.FORMERR),
        (wire(counts=(1, 1, 0, 0)), dns.rcode.FORMERR),
        (wire(counts=(1, 0, 1, 0)), dns.rcode.FORMERR),
        (wire(question=b"\xc0\x0c\0\1\0\1"), dns.rcode.FORMERR),
        (wire(question=b"\1a\xc0\x0c\0\1\0\1"), dns.rcode.FORMERR),
        (wire(question=b"\x40" + b"a" * 64 + b"\0\0\1\0\1"), dns.rcode.FORMERR),
        (wire(question=(b"\x3f" + b"a" * 63) * 4 + b"\0\0\1\0\1"), dns.rcode.FORMERR),
        (wire(question=b"\1a\2ok\4test\0\0\1\0"), dns.rcode.FORMERR),
        (wire(question=b"\1a\2ok\4te"), dns.rcode.FORMERR),
        (wire(counts=(1, 0, 0, 1)), dns.rcode.FORMERR),
        (wire(counts=(1, 0, 0, 2), rest=b"\0\0\x29\4\xd0\0\0\0\0\0\0" * 2), dns.rcode.FORMERR),
        (wire(counts=(1, 0, 0, 1), rest=b"\0\0\x29\4\xd0\0\0\0\0\0\x09"), dns.rcode.FORMERR),
        (wire(flags=0x2800), dns.rcode.NOTIMP),
        (wire(flags=0x1000), dns.rcode.NOTIMP),
        (wire(question=b"\1a\2ok\4test\0\0\1\0\3"), dns.rcode.REFUSED),
        (wire(question=b"\1a\2ok\4test\0\0\xff\0\xff"), dns.rcode.REFUSED),
    ],
)
def test_what_is_not_a_plain_question(query, code) -> None:
    resolver = Resolver()
    reply = resolver.answerer.answer(query)
    assert reply is not None
    assert reply[:2] == query[:2]
    assert reply[3] & 15 == code
    assert reply[2] & 0x78 == query[2] & 0x78
    assert reply[6:8] == b"\0\0"
    assert len(resolver.names) == 0


def test_the_longest_name_is_answered() -> None:
    name = ".".join(["a" * 63, "b" * 63, "c" * 63, "d" * 53, "ok", "test"])
    assert len(name) == 253
    resolver = Resolver()
    assert resolver.addresses(name) == ["198.18.0.16"]
    assert resolver.addresses(dns.reversename.from_address("198.18.0.16").to_text(), "PTR") == [name + "."]


@pytest.mark.parametrize("query", [b"", b"\0" * 11, wire(flags=0x8100)])
def test_what_gets_no_answer(query) -> None:
    assert Resolver().answerer.answer(query) is None


@pytest.mark.parametrize("label", [b"a.b", b"a\0b", b"a b", b"\xff", b"%41", b"a\x1b[0m"])
def test_labels_that_would_read_as_something_else_are_malformed(label) -> None:
    """The policy is not even asked: a dot inside a label would read as two labels."""
    resolver = Resolver()
    question = bytes([len(label)]) + label + b"\2ok\4test\0\0\1\0\1"
    reply = resolver.answerer.answer(wire(question=question))
    assert reply is not None
    assert reply[3] & 15 == dns.rcode.NXDOMAIN
    assert [event.reason for event in resolver.events] == ["name malformed"]
    assert resolver.asked == []


@pytest.mark.parametrize(
    "address", ["198.18.0.0", "198.18.0.2", "198.19.255.255", "fd00:6d65:6d62::2", "fd00:6d65:6d62:1::5"]
)
def test_our_ranges(address) -> None:
    assert is_fake(address)


@pytest.mark.parametrize(
    "address", ["198.17.255.255", "198.20.0.0", "1.2.3.4", "fd00:6d65:6d63::1", "::1", "fd00:6d65::1"]
)
def test_not_our_ranges(address) -> None:
    assert not is_fake(address)


def test_messages_of_a_stream() -> None:
    messages = TcpMessages()
    assert messages.feed(b"\0\2ab\0\0\0") == [b"ab", b""]
    assert messages.feed(b"\1") == []
    assert messages.feed(b"c\0\1d") == [b"c", b"d"]
