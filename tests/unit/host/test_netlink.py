"""The encoding of netlink requests and the reading of the answers, without a kernel."""

from __future__ import annotations

import errno
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membrane.host import netlink, netns


def attributes(data: bytes) -> list[tuple[int, bool, bytes]]:
    """Decode a run of struct nlattr: (kind, nested, value); every byte must belong to one."""
    found, offset = [], 0
    while offset < len(data):
        length, kind = struct.unpack_from("=HH", data, offset)
        assert length >= 4 and offset + length <= len(data)
        found.append((kind & 0x3FFF, bool(kind & 0x8000), data[offset + 4 : offset + length]))
        padded = (length + 3) & ~3
        assert data[offset + length : offset + padded] == bytes(padded - length)
        offset += padded
    return found


@given(st.integers(0, 0x3FFF), st.binary(max_size=200))
def test_attribute_round_trip(kind: int, value: bytes) -> None:
    encoded = netlink.attribute(kind, value)
    assert len(encoded) % 4 == 0
    assert attributes(encoded) == [(kind, False, value)]


@given(st.lists(st.tuples(st.integers(0, 0x3FFF), st.binary(max_size=40)), max_size=8))
def test_nested_round_trip(members: list[tuple[int, bytes]]) -> None:
    encoded = netlink.nested(5, *(netlink.attribute(kind, value) for kind, value in members))
    [(kind, nested, value)] = attributes(encoded)
    assert (kind, nested) == (5, True)
    assert attributes(value) == [(kind, False, value) for kind, value in members]


def expressions(message: netlink.Message) -> list[str]:
    """The names of a rule's expressions."""
    kind, _, body, _ = message
    assert kind == 10 << 8 | 6
    [rule] = [value for kind, nested, value in attributes(body[4:]) if nested]
    names = []
    for kind, nested, element in attributes(rule):
        assert (kind, nested) == (1, True)
        (_, _, name), (_, nested, data) = attributes(element)
        assert nested and attributes(data)
        names.append(name.rstrip(b"\0").decode())
    return names


BOTH = (socket.AF_INET, socket.AF_INET6)


@pytest.mark.parametrize(("mode", "chains", "action"), [("tproxy", 2, "tproxy"), ("dnat", 3, "nat")])
def test_ruleset_is_well_formed_and_treats_both_families_alike(mode: str, chains: int, action: str) -> None:
    messages = netns.ruleset(mode, BOTH, (443, 8443))
    kinds = [kind & 0xFF for kind, _, _, _ in messages]
    assert (kinds.count(0), kinds.count(3)) == (1, chains)
    rules = [message for message in messages if message[0] & 0xFF == 6]
    steering = [expressions(rule) for rule in rules if action in expressions(rule)]
    assert len(steering) == 2 * (chains - 1)
    assert all(names == steering[0] for names in steering)
    about = [what.rpartition(": ")[2] for _, _, _, what in rules]
    for once in ("udp 53", "udp 443", "udp 8443", "everything else", "tcp", "not lo", "broadcast"):
        assert about.count(once) == 1
    for twice in ("loopback", "own address", "multicast"):
        assert about.count(twice) == 2
    assert about[: about.index("everything else")].count("multicast") == 2
    assert about.index("udp 53") > max(i for i, what in enumerate(about) if what == "multicast")


def test_one_family_is_steered_where_there_is_one() -> None:
    rules = [m for m in netns.ruleset("tproxy", BOTH[:1], ()) if m[0] & 0xFF == 6]
    assert sum("tproxy" in expressions(rule) for rule in rules) == 1


# ---------------------------------------------------------------- answers


class Kernel:
    """Stands for the socket: keeps the request and gives out prepared datagrams."""

    def __init__(self, *answers: bytes) -> None:
        self.sent = b""
        self.answers = list(answers)

    def send(self, data: bytes) -> int:
        assert not self.sent
        self.sent = data
        return len(data)

    def recv(self, _size: int) -> bytes:
        if not self.answers:
            raise BlockingIOError(errno.EAGAIN, "nothing comes")
        return self.answers.pop(0)


def answer(sequence: int, number: int = 0, kind: int = 2) -> bytes:
    return struct.pack("=IHHIIi", 36, kind, 0, sequence, 0, -number) + bytes(16)


def transact(kernel: Kernel, count: int = 3, *, batch: bool = False) -> None:
    connection = netlink.Connection.__new__(netlink.Connection)
    connection._socket = kernel  # type: ignore[assignment]
    connection.transact([(16, 0x400, b"body", f"message {number}") for number in range(1, count + 1)], batch=batch)


def test_one_datagram_in_which_every_message_asks_for_an_answer() -> None:
    kernel = Kernel(answer(1), answer(2) + answer(3))
    transact(kernel)
    assert not kernel.answers
    for number in range(3):
        header = struct.unpack_from("=IHHII", kernel.sent, 20 * number)
        assert header == (20, 16, 0x405, number + 1, 0)
    assert len(kernel.sent) == 60


def test_of_a_batch_the_last_message_is_answered_and_what_is_refused() -> None:
    kernel = Kernel(answer(3))
    transact(kernel, batch=True)
    assert [struct.unpack_from("=IHHII", kernel.sent, 20 * number)[2] for number in (1, 2, 3)] == [0x401, 0x401, 0x405]
    with pytest.raises(FileExistsError, match="netlink message 2: File exists"):
        transact(Kernel(answer(2, errno.EEXIST) + answer(3)), batch=True)
    with pytest.raises(PermissionError, match="netlink batch"):
        transact(Kernel(answer(0, errno.EPERM) + answer(3)), batch=True)


def test_a_batch_has_its_borders() -> None:
    kernel = Kernel(answer(1))
    transact(kernel, 1, batch=True)
    kinds = [struct.unpack_from("=IH", kernel.sent, 20 * number)[1] for number in range(3)]
    assert kinds == [0x10, 16, 0x11]


def test_the_first_refused_message_is_named_and_all_answers_are_read() -> None:
    kernel = Kernel(answer(1), answer(2, errno.EEXIST), answer(3, errno.EINVAL))
    with pytest.raises(FileExistsError, match="netlink message 2: File exists"):
        transact(kernel)
    assert not kernel.answers


def test_a_batch_refused_as_a_whole_has_one_answer() -> None:
    with pytest.raises(PermissionError, match="netlink batch: Operation not permitted"):
        transact(Kernel(answer(0, errno.EPERM)), batch=True)


def test_a_missing_answer_is_an_error() -> None:
    with pytest.raises(BlockingIOError):
        transact(Kernel(answer(1), answer(2)))


def test_other_messages_and_answers_are_passed_over() -> None:
    transact(Kernel(answer(1, kind=3), answer(77), answer(1) + answer(2), answer(3)))


@given(st.lists(st.binary(max_size=80), max_size=5))
def test_any_answer_ends_in_success_or_oserror(answers: list[bytes]) -> None:
    try:
        transact(Kernel(*answers))
    except OSError:
        pass
