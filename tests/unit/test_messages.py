"""The codec: forms on the wire, and what is refused.  Round trips of every message: ``tests/property``."""

from __future__ import annotations

import pytest

from membrane.messages import Failure, Frames, Malformed, Message, Table
from membrane.value import Layout, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from membrane.messages import Fd, Fds, Json


class Mixed(Message):
    number: int
    flag: bool
    name: str
    names: tuple[str, ...]


class Empty(Message):
    pass


class Point(Value):
    x: int


class Carrying(Message):
    """Descriptors, and a record."""

    first: Fd
    maybe: Fd | None
    more: Fds
    point: Point
    ratio: float
    data: Json


class Paired(Message):
    names: tuple[str, ...]
    numbers: tuple[int, ...]

    def __post_init__(self) -> None:
        self.match(self.names, self.numbers)


TABLE = Table(
    "from here to there", Mixed, Empty, Failure, Carrying, Paired, longest=1 << 20, Point=Layout("point", Point)
)


def test_the_form_on_the_wire() -> None:
    raw, fds = TABLE.encode(Mixed(-2, True, "\udcff", ("a", "")))
    assert raw == b"\0" + b"\1\xfe" + b"\1" + b"\1\0\0\0\xff" + b"\2\0\0\0" + b"\1\0\0\0a" + b"\0\0\0\0"
    assert fds == []
    assert TABLE.encode(Empty()) == (b"\1", []) and TABLE.decode(b"\1") == Empty()


@pytest.mark.parametrize("maybe", [None, 8])
@pytest.mark.parametrize("more", [(), (9, 10)])
def test_descriptors_are_in_the_order_of_the_fields(maybe: int | None, more: tuple[int, ...]) -> None:
    message = Carrying(7, maybe, more, Point(3), 0.5, {"a": [None]})
    raw, fds = TABLE.encode(message)
    assert fds == [7, *([] if maybe is None else [maybe]), *more]
    assert raw[:6] == bytes((3, maybe is not None, len(more), 0, 0, 0))
    assert TABLE.decode(raw, fds) == message
    for wrong in (fds[:-1], [*fds, 11], []):
        with pytest.raises(Malformed, match=r"a descriptor is missing|something follows it"):
            TABLE.decode(raw, wrong)


def test_fields_that_belong_together_are_as_many() -> None:
    message = Paired(("a", "b"), (1, 1 << 64))
    raw, _fds = TABLE.encode(message)
    assert TABLE.decode(raw) == message
    with pytest.raises(ValueError, match="2 and 1 do not match"):
        Paired(("a", "b"), (1,))
    with pytest.raises(Malformed, match="1 and 2 do not match"):
        TABLE.decode(b"\4" + b"\1\0\0\0" + bytes(4) + b"\2\0\0\0" + b"\1\0" * 2)


@pytest.mark.parametrize("number", [0, -1, 127, 128, -128, -129, (1 << 64) - 1, (1 << 127) - 1, 1 - (1 << 127)])
def test_a_number_has_up_to_sixteen_bytes(number: int) -> None:
    message = Mixed(number, False, "", ())
    assert TABLE.decode(*TABLE.encode(message)) == message
    with pytest.raises(ValueError, match="is too large"):
        TABLE.encode(Mixed(number + (1 << 128), False, "", ()))


def test_only_what_the_table_lists_is_sent() -> None:
    with pytest.raises(KeyError):
        Table("elsewhere", Empty).encode(Failure(1, "a", "b", "c"))


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "IndexError"),
        (b"\5", "IndexError"),
        (b"\xff", "IndexError"),
        (b"\1\0", "something follows it"),
        (b"\0\0" + bytes(9), "no number has that length"),
        (b"\0\x11" + bytes(40), "no number has that length"),
        (b"\0\1\0" + b"\2" + bytes(8), "IndexError"),  # a bool is 0 or 1
        (b"\0\1\0" + b"\1" + b"\xff\xff\xff\xff", "it is cut short"),
        (b"\0\1\0" + b"\1" + bytes(4) + b"\xff\xff\xff\xff", "it is cut short"),
    ],
)
def test_what_is_no_message_is_refused(raw: bytes, why: str) -> None:
    with pytest.raises(Malformed, match=f"read a message from here to there: .*{why}"):
        TABLE.decode(raw)
    with pytest.raises(Malformed, match="something follows it"):
        TABLE.decode(b"\1", [3])


# ---------------------------------------------------------------- in a stream


def test_a_frame_is_the_length_and_the_message() -> None:
    assert TABLE.frame(Empty()) == b"\1\0\0\0\1"
    with pytest.raises(ValueError, match="3 descriptors do not fit in a frame from here to there"):
        TABLE.frame(Carrying(7, 8, (9,), Point(3), 0.5, None))
    small = Table("small", Mixed, longest=15)
    assert small.frame(Mixed(1, True, "ab", ())) and len(small.encode(Mixed(1, True, "ab", ()))[0]) == 14
    with pytest.raises(ValueError, match="16 bytes and 0 descriptors"):
        small.frame(Mixed(1, True, "abcd", ()))


def test_messages_come_when_they_are_whole_and_in_order() -> None:
    one, two = Mixed(1, True, "a", ()), Empty()
    raw = TABLE.frame(one) + TABLE.frame(two)
    for size in range(1, len(raw) + 1):
        frames = Frames(TABLE)
        came = [each for at in range(0, len(raw), size) for each in frames.feed(raw[at : at + size])]
        assert came == [one, two]


def test_what_is_missing_never_reaches_into_the_next_message() -> None:
    raw = TABLE.frame(Failure(1, "a", "b", "c")) + TABLE.frame(Empty())
    frames, at = Frames(TABLE), 0
    for _ in ("the length", "the content"):
        size = frames.missing
        found = list(frames.feed(raw[at : at + size]))
        at += size
    assert found == [Failure(1, "a", "b", "c")] and raw[at:] == TABLE.frame(Empty()) and frames.missing == 4


@pytest.mark.parametrize("size", [(1 << 20) + 1, 0xFFFFFFFF])
def test_a_frame_that_is_too_long_is_refused_by_its_length(size: int) -> None:
    frames = Frames(TABLE)
    got = []
    with pytest.raises(Malformed, match=f"from here to there: {size} bytes are too many"):
        for message in frames.feed(TABLE.frame(Empty()) + size.to_bytes(4, "little")):
            got.append(message)
    assert got == [Empty()]
    with pytest.raises(Malformed):
        _ = frames.missing


@pytest.mark.parametrize("raw", [b"\0\0\0\0", b"\1\0\0\0\x09", b"\2\0\0\0\1\0", b"\1\0\0\0\0"])
def test_a_frame_that_is_no_message_is_the_one_error(raw: bytes) -> None:
    with pytest.raises(Malformed, match="read a message from here to there"):
        list(Frames(TABLE).feed(raw))
