"""The loop of the gateway."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from membrane.gateway.reactor import EDGE, IN, OUT, Reactor


@pytest.fixture
def reactor():
    made = Reactor()
    yield made
    made.close()


@pytest.fixture
def pair():
    one, other = socket.socketpair()
    one.setblocking(False)
    with one, other:
        yield one, other


def test_a_ready_descriptor_is_handled(reactor, pair) -> None:
    one, other = pair
    got = []
    reactor.watch(one.fileno(), IN, lambda mask: got.append((mask, one.recv(10))))
    reactor.turn(0)
    assert got == []
    other.send(b"x")
    reactor.turn(1)
    assert got == [(IN, b"x")]
    reactor.unwatch(one.fileno())
    other.send(b"y")
    reactor.turn(0)
    assert len(got) == 1


def test_an_edge_is_told_once(reactor, pair) -> None:
    one, other = pair
    got = []
    reactor.watch(one.fileno(), IN | OUT | EDGE, got.append)
    reactor.turn(0)
    assert got == [OUT]
    reactor.turn(0)
    assert got == [OUT]
    other.send(b"x")
    reactor.turn(1)
    assert len(got) == 2
    assert got[1] & IN


def test_a_buried_socket_is_not_handled_again_and_its_number_stays_taken_for_the_turn(reactor) -> None:
    one, other = socket.socketpair()
    third, fourth = socket.socketpair()
    handled = []

    def close_later(which):
        def handler(_mask):
            handled.append(which)
            reactor.close_later(one)
            reactor.close_later(third)
            assert one.fileno() >= 0

        return handler

    with other, fourth:
        reactor.watch(one.fileno(), IN, close_later("one"))
        reactor.watch(third.fileno(), IN, close_later("third"))
        other.send(b"x")
        fourth.send(b"x")
        reactor.turn(1)
    assert len(handled) == 1
    assert one.fileno() == third.fileno() == -1


def test_waits_end_in_order_and_can_be_ended(reactor) -> None:
    over = []
    short, long = reactor.wait(0.01, over.append), reactor.wait(0.02, over.append)
    for item in ("a", "b", "c"):
        short.begin(item)
    long.begin("d")
    short.end("b")
    short.begin("a")  # again: behind c
    reactor.soon(lambda: None)
    while len(over) < 3:
        reactor.turn(reactor._until_next())
    assert over == ["c", "a", "d"]
    assert not short.waiting()
    assert reactor._until_next() == -1


def test_a_wait_may_begin_another(reactor) -> None:
    over = []
    wait = reactor.wait(0.001, lambda item: (over.append(item), item < 3 and wait.begin(item + 1)))
    wait.begin(1)
    while len(over) < 3:
        reactor.turn(reactor._until_next())
    assert over == [1, 2, 3]


def run(reactor: Reactor) -> list[str]:
    """Work from a thread, a wait, a descriptor and a turn later; the last one stops the loop."""
    order: list[str] = []
    one, other = socket.socketpair()

    def readable(_mask: int) -> None:
        order.append(one.recv(10).decode())
        wait.begin("wait")

    def waited(item: str) -> None:
        order.append(item)
        reactor.soon(lambda: (order.append("soon"), reactor.stop()))

    wait = reactor.wait(0.005, waited)
    reactor.watch(one.fileno(), IN, readable)
    thread = threading.Thread(target=reactor.post, args=(lambda: (order.append("posted"), other.send(b"read")),))
    thread.start()
    reactor.run()
    thread.join()
    reactor.close_later(one)
    other.close()
    return order


def test_everything_runs(reactor) -> None:
    assert run(reactor) == ["posted", "read", "wait", "soon"]


def test_an_exception_of_a_handler_ends_the_loop(reactor) -> None:
    reactor.post(lambda: os.stat("/no such file"))
    with pytest.raises(FileNotFoundError):
        reactor.run()


def test_a_thread_that_is_late_finds_the_reactor_closed() -> None:
    """Nothing is called, and nothing is written to whatever has the number of the descriptor now."""
    reactor = Reactor()
    called: list[str] = []
    number = reactor._wake
    reactor.close()
    taken = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        os.dup2(taken, number)
        reactor.post(lambda: called.append("late"))
        with pytest.raises(BlockingIOError):
            os.eventfd_read(number)
        assert called == []
    finally:
        os.close(taken)
        if number != taken:
            os.close(number)
