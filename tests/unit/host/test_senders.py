"""Which socket is behind the command's own NAT: what the kernel is asked, what is made of its answer, the bounds."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from socket import AF_INET, AF_INET6, IPPROTO_TCP, inet_pton
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membrane.host import netlink, senders
from membrane.host.senders import Senders, original, question

CLIENT, SERVER = ("198.18.0.3", 5000), ("192.0.2.1", 80)


def answer(family: int, source: str, target: str, ports: tuple[int, int], kind: int = 1 << 8) -> bytes:
    first, second = (1, 2) if family == AF_INET else (3, 4)
    addresses = (
        netlink.attribute(first, inet_pton(family, source)),
        netlink.attribute(second, inet_pton(family, target)),
    )
    numbers = netlink.attribute(2, struct.pack(">H", ports[0])), netlink.attribute(3, struct.pack(">H", ports[1]))
    tuple_ = netlink.nested(1, netlink.nested(1, *addresses), netlink.nested(2, *numbers))
    return struct.pack("=IHHIIBBH", 20 + len(tuple_), kind, 0, 1, 0, family, 0, 0) + tuple_


def test_the_answers_of_the_connection_are_what_is_asked_for() -> None:
    asked = question(7, IPPROTO_TCP, CLIENT, SERVER)
    assert struct.unpack_from("=IHHI", asked) == (len(asked), 1 << 8 | 1, 1, 7)
    reply = netlink.attributes(netlink.attributes(asked[20:])[2])
    addresses, ports = netlink.attributes(reply[1]), netlink.attributes(reply[2])
    assert addresses == {1: inet_pton(AF_INET, SERVER[0]), 2: inet_pton(AF_INET, CLIENT[0])}
    assert ports == {1: b"\6", 2: b"\0\x50", 3: b"\x13\x88"}


@pytest.mark.parametrize(("family", "one", "other"), [(AF_INET, "10.0.0.2", "192.0.2.1"), (AF_INET6, "fd00::2", "::1")])
def test_the_connection_as_its_sender_has_it(family: int, one: str, other: str) -> None:
    assert original(answer(family, one, other, (4242, 80))) == ((one, 4242), (other, 80))
    assert original(answer(family, one, other, (4242, 80), kind=2)) is None, "NLMSG_ERROR"


@given(st.binary(max_size=200), st.integers(0, 220))
def test_whatever_the_table_says_is_read_to_its_end_and_no_further(rest: bytes, cut: int) -> None:
    whole = answer(AF_INET, "10.0.0.2", "192.0.2.1", (4242, 80))
    for data in (whole[:20] + rest, (whole + rest)[: max(20, cut)]):
        original(data)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Senders]:
    """One whose table says that ``CLIENT`` is 10.0.0.2, behind a NAT."""
    monkeypatch.setattr(senders, "inside", lambda _namespace, action: action())
    fd = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        found = Senders(fd)
    finally:
        os.close(fd)
    monkeypatch.setattr(found, "_original", lambda *_asked: (("10.0.0.2", 4242), SERVER))
    yield found
    found._tracked.close()


def test_where_an_address_was_is_asked_first_and_no_process_is_listed(
    made: Senders, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(made, "_processes", lambda _deadline: [30, 20])
    monkeypatch.setattr(made, "_ask", lambda pid, *_rest: asked.append(pid) or (9 if pid == 20 else 0))
    assert made.find(IPPROTO_TCP, CLIENT, SERVER) == (4242, 9) and asked == [30, 20]
    assert made.find(IPPROTO_TCP, CLIENT, SERVER) == (4242, 9) and asked == [30, 20, 20]


def test_what_is_not_found_costs_a_share_of_the_time_only(made: Senders, monkeypatch: pytest.MonkeyPatch) -> None:
    now, listed = 100.0, 0

    def processes(_over: object) -> list[int]:
        nonlocal now, listed
        now, listed = now + 0.02, listed + 1
        return [1]

    monkeypatch.setattr(senders, "time", SimpleNamespace(monotonic=lambda: now, thread_time=lambda: now))
    monkeypatch.setattr(made, "_at", now)
    monkeypatch.setattr(made, "_processes", processes)
    monkeypatch.setattr(made, "_ask", lambda *_asked: 0)
    for _ in range(100):
        assert made.find(IPPROTO_TCP, CLIENT, SERVER) == (4242, 0)
    assert listed == 3, "what is saved at the beginning"
    now += 10
    for _ in range(100):
        made.find(IPPROTO_TCP, CLIENT, SERVER)
    assert listed == 6, "no more is saved up than that"


@pytest.mark.parametrize(("clock", "work", "found"), [(0.1, 0.0, 9), (0.0, 0.1, 0), (1.0, 0.0, 0)])
def test_a_search_is_bounded_by_its_work_and_not_by_what_else_runs(
    made: Senders, monkeypatch: pytest.MonkeyPatch, clock: float, work: float, found: int
) -> None:
    """The clock goes on by so much with each process that is asked; the third one has it."""
    now, worked = 100.0, 0.0

    def ask(pid: int, *_rest: object) -> int:
        nonlocal now, worked
        now, worked = now + clock, worked + work
        return 9 if pid == 3 else 0

    monkeypatch.setattr(senders, "time", SimpleNamespace(monotonic=lambda: now, thread_time=lambda: worked))
    monkeypatch.setattr(made, "_at", now)
    monkeypatch.setattr(made, "_processes", lambda _over: [1, 2, 3])
    monkeypatch.setattr(made, "_ask", ask)
    assert made.find(IPPROTO_TCP, CLIENT, SERVER) == (4242, found)


def test_a_client_that_is_not_behind_a_nat_is_searched_nowhere(made: Senders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made, "_processes", lambda _deadline: pytest.fail("listed"))
    for original_ in ((CLIENT, SERVER), None):
        monkeypatch.setattr(made, "_original", lambda *_asked, original_=original_: original_)
        assert made.find(IPPROTO_TCP, CLIENT, SERVER) == (CLIENT[1], 0)


def test_our_own_namespace_is_none_of_a_container(made: Senders) -> None:
    assert os.stat("/proc/self/ns/net").st_ino in made._own
    for pid in made._processes(lambda: False):
        with contextlib.suppress(OSError):  # another test's, which has ended meanwhile
            assert os.stat(f"/proc/{pid}/ns/net").st_ino not in made._own
