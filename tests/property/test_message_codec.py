"""Every message of our processes: what is sent is what is received, and what is none is refused with the one error."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from membrane.api import wire
from membrane.gateway import messages as gateway
from membrane.host import messages as host
from membrane.host.start import Job, Late, Start
from membrane.messages import Frames, Malformed, Message, Table
from membrane.plan.build import build
from membrane.plan.model import HostFacts, Keep, Mask, Pin
from membrane.policy.model import Policy
from membrane.tracer import messages as tracer

PLAN = build(Policy(), HostFacts(1000, 1000, "dev", False, "/home/dev", "/home/dev/.membrane", "/srv/app", "box", ()))
SETUP = gateway.Setup(
    Policy(extra_ca=("/a",)),
    "id",
    (("tcp4", 7),),
    authority=(b"a", b"b"),
    ask=(1.5, ("name",)),
    doors=((0, "/s", 1000),),
    secrets=(gateway.SecretRow("n", b"value", b"other", "*", (("https", "a.test", 443, "/"),)),),
    logins=(gateway.LoginRow(("n",), (), (("https", "a.test", 443, "/"),), "*"),),
)
FROM_BELOW = [host.FROM_LAUNCHER, host.FROM_INSIDE, host.FROM_SPAWNER, host.TO_FACTORY, tracer.FROM_TRACER]
FROM_OUR_PROGRAMS = [gateway.FROM_GATEWAY, wire.TO_SUPERVISOR, wire.FROM_SUPERVISOR]
TABLES = [
    *FROM_BELOW,
    *(host.TO_LAUNCHER, host.TO_INSIDE, host.TO_SPAWNER, host.FROM_FACTORY, tracer.TO_TRACER),
    *(gateway.TO_GATEWAY, *FROM_OUR_PROGRAMS),
]
TEXT = st.binary(max_size=40).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
FD = st.integers(3, 1 << 20)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(1 - (1 << 127), (1 << 127) - 1) | st.sampled_from([-129, -128, 127, 128, 255, (1 << 64) - 1]),
    "bool": st.booleans(),
    "float": st.floats(allow_nan=False),
    "str": TEXT,
    "bytes": st.binary(max_size=40),
    "tuple[int, ...]": st.lists(st.integers(-1, 1 << 64), max_size=5).map(tuple),
    "tuple[str, ...]": st.lists(TEXT, max_size=5).map(tuple),
    "Json": st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
        max_leaves=9,
    ),
    "Fd": FD,
    "Fd | None": st.none() | FD,
    "Fds": st.lists(FD, max_size=9).map(tuple),
    "Start": st.just(Start(PLAN.replace(bindings=()), ("a", "\udcff"), (True, False, True), "id", 0o22)),
    "Late": st.just(Late((Mask("/a", False), Pin("/b"), Keep("/c", "/d")), (("A", "\udcff"),))),
    "Job": st.just(Job(("a", "b"), (("A", "b"),), "/", 0o22)),
    "Setup": st.just(SETUP),
    "Policy": st.just(SETUP.policy),
    "Watched": st.just(
        tracer.Watched((("/w", (("a", "b"),)),), ("/x",), (("/w", b"\xff"),), (("/w", ("hooks",), (), ("", "x")),))
    ),
}
PLAIN = st.dictionaries(st.text(max_size=9), st.text(max_size=9) | st.integers(0, 99) | st.lists(st.text(max_size=9)))
PLAIN = PLAIN.map(lambda data: {name: value for name, value in data.items() if name not in ("port", "pid")})
FIELDS: dict[tuple[type[Message], str], st.SearchStrategy[Any]] = {  # whose type does not say what may be in it
    (gateway.Asked, "kind"): st.sampled_from(gateway.QUESTIONS),
    (gateway.Asked, "access"): PLAIN,
    (gateway.Asked, "client"): st.none() | PLAIN,
}
ROWS = [(table, kind) for table in TABLES for kind in table.kinds]
PAIRS: dict[type[Message], Any] = {  # fields of the same length
    host.Trees: [("keys", "trees")],
    host.NetworkSockets: [("roles", "sockets")],
    host.ReadsWatched: [("watches", "files")],
    tracer.Totals: [("types", "counts")],
    gateway.Renewed: [("members", "names", "values")],
    gateway.Ended: [("kinds", "counts")],
}
every_message = pytest.mark.parametrize(("table", "kind"), ROWS, ids=[f"{kind.__name__} {t.name}" for t, kind in ROWS])
few = settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)


@st.composite
def some(draw: st.DrawFn, kind: type[Message]) -> Message:
    named = kind.__annotations__.items()
    fields: dict[str, Any] = {name: draw(FIELDS.get((kind, name), VALUES[field])) for name, field in named}
    for group in PAIRS.get(kind, ()):
        least = min(len(fields[name]) for name in group)
        fields |= {name: fields[name][:least] for name in group}
    return kind(**fields)


@every_message
@few
@given(data=st.data())
def test_what_is_sent_is_received(table: Table, kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(some(kind))
    assert table.decode(*table.encode(message)) == message


@every_message
@few
@given(data=st.data())
def test_a_piece_or_more_than_a_message_is_none(table: Table, kind: type[Message], data: st.DataObject) -> None:
    raw, fds = table.encode(data.draw(some(kind)))
    for cut in {0, 1, len(raw) // 2, len(raw) - 1, data.draw(st.integers(0, len(raw) - 1))} - {len(raw)}:
        with pytest.raises(Malformed):
            table.decode(raw[:cut], fds)
    for worse in ((raw + b"\0", fds), (raw, [*fds, 9]), *([(raw, fds[:-1])] if fds else [])):
        with pytest.raises(Malformed):
            table.decode(*worse)
    with pytest.raises(Malformed):
        table.decode(bytes((len(table.kinds),)) + raw[1:], fds)


@pytest.mark.parametrize("table", [*FROM_BELOW, *FROM_OUR_PROGRAMS], ids=lambda table: table.name)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_hostile_bytes_are_a_message_or_the_one_error(table: Table, data: st.DataObject) -> None:
    raw = data.draw(
        st.binary(max_size=60)
        | st.tuples(st.integers(0, len(table.kinds)), st.binary(max_size=60)).map(lambda row: bytes(row[:1]) + row[1])
    )
    fds = data.draw(st.lists(FD, max_size=3))
    try:
        message = table.decode(raw, fds)
    except Malformed as error:
        assert error.target == table.name
    else:
        assert type(message) in table.kinds


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_lengths_and_counts_without_content_cost_nothing(table: Table) -> None:
    """Four gigabytes are announced, and a datagram is there."""
    for number in range(len(table.kinds)):
        for filler in (b"", bytes(8), bytes(17), b"\1" * 9):
            with pytest.raises(Malformed):
                table.decode(bytes((number,)) + filler + struct.pack("<I", 0xFFFFFFFF) * 40)


def test_nothing_from_below_is_a_record_or_longer_than_a_datagram() -> None:
    """A layout is read by marshal, which trusts its bytes."""
    for table in (*FROM_BELOW, *FROM_OUR_PROGRAMS):
        assert not table.layouts
    assert {table.longest for table in FROM_BELOW} == {1 << 16}


@pytest.mark.parametrize("kind", PAIRS, ids=lambda kind: kind.__name__)
def test_fields_that_belong_together_are_as_many(kind: type[Message]) -> None:
    values = {"tuple[int, ...]": (1, 2), "tuple[str, ...]": ("a", "b"), "Fds": (3, 4), "Fd": 5, "str": "", "int": 1}
    fields = {name: values[field] for name, field in kind.__annotations__.items()}
    kind(**fields)
    ((one, *_others),) = PAIRS[kind]
    with pytest.raises(ValueError, match="1 and 2 do not match"):
        kind(**{**fields, one: fields[one][:1]})
    table = next(table for table, each in ROWS if each is kind)
    raw = object.__new__(kind)
    raw.__dict__.update({**fields, one: fields[one][:1]})
    with pytest.raises(Malformed, match="do not match"):
        table.decode(*table.encode(raw))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("kind", "other"), ("access", None), ("access", []), ("access", {"port": "1"}), ("access", {"a": None})),
        *(("access", {"a": {}}), ("access", {"n": [1]}), ("access", {"port": True}), ("access", {"a": float("nan")})),
        *(("client", []), ("client", {"pid": "1"}), ("client", {"port": 1.5})),
    ],
)
def test_a_question_of_another_form_is_none(field: str, value: Any) -> None:
    """Its readers take for granted what it holds."""
    question = gateway.Asked(1, "name", {"port": 1, "names": ["a"]}, "", True, None, 1.0)
    assert gateway.FROM_GATEWAY.decode(*gateway.FROM_GATEWAY.encode(question)) == question
    raw = object.__new__(gateway.Asked)
    raw.__dict__.update({**vars(question), field: value})
    with pytest.raises(Malformed, match=r"has another form|is no kind"):
        gateway.FROM_GATEWAY.decode(*gateway.FROM_GATEWAY.encode(raw))


@pytest.mark.parametrize("table", [gateway.FROM_GATEWAY, gateway.TO_GATEWAY], ids=lambda table: table.name)
@few
@given(data=st.data())
def test_a_stream_is_the_same_messages_however_it_is_cut(table: Table, data: st.DataObject) -> None:
    sent = [data.draw(some(data.draw(st.sampled_from(table.kinds)))) for _ in range(data.draw(st.integers(0, 4)))]
    raw = b"".join(table.frame(message) for message in sent)
    frames, came, at = Frames(table), [], 0
    while at < len(raw):
        assert frames.missing > 0
        size = data.draw(st.integers(1, 40) | st.just(frames.missing) | st.just(len(raw)))
        came += frames.feed(raw[at : at + size])
        at += size
    assert came == sent


@settings(max_examples=300, deadline=None)
@given(pieces=st.lists(st.binary(max_size=30)))
def test_a_hostile_stream_is_messages_or_the_one_error(pieces: list[bytes]) -> None:
    frames = Frames(gateway.FROM_GATEWAY)
    try:
        for piece in pieces:
            for message in frames.feed(piece):
                assert type(message) in gateway.FROM_GATEWAY.kinds
    except Malformed as error:
        assert error.target == gateway.FROM_GATEWAY.name


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, '{"a": }', "\x00", ""])
def test_json_that_is_none_is_the_one_error(text: str) -> None:
    data = text.encode()
    number = wire.FROM_SUPERVISOR.kinds.index(wire.Failed)
    with pytest.raises(Malformed):
        wire.FROM_SUPERVISOR.decode(bytes((number,)) + struct.pack("<I", len(data)) + data)
