"""The codec: forms on the wire, and what is refused.  Round trips of every message: ``tests/property``."""

from __future__ import annotations

import pytest

from membrane.messages import Failure, Malformed, Message, Table


class Mixed(Message):
    number: int
    flag: bool
    name: str
    names: tuple[str, ...]


class Empty(Message):
    pass


TABLE = Table("from here to there", Mixed, Empty, Failure)


def test_the_form_on_the_wire() -> None:
    raw, fds = TABLE.encode(Mixed(-2, True, "\udcff", ("a", "")))
    assert raw == b"\0" + b"\1\xfe" + b"\1" + b"\1\0\0\0\xff" + b"\2\0\0\0" + b"\1\0\0\0a" + b"\0\0\0\0"
    assert fds == []
    assert TABLE.encode(Empty()) == (b"\1", []) and TABLE.decode(b"\1") == Empty()


def test_only_what_the_table_lists_is_sent() -> None:
    with pytest.raises(KeyError):
        Table("elsewhere", Empty).encode(Failure(1, "a", "b", "c"))


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "IndexError"),
        (b"\3", "IndexError"),
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
