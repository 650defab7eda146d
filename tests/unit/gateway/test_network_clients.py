"""Who is behind the command's NAT: the launcher is asked at once, and waited for when an event needs the answer."""

from __future__ import annotations

import _socket
import socket
from collections.abc import Iterator

import pytest

from membrane.gateway import clients as module
from membrane.gateway.clients import MOST_ASKED, Clients
from membrane.host.channel import Channel, pair
from membrane.host.messages import FROM_SENDERS, TO_SENDERS, FindSender, SenderFound
from membrane.host.sockdiag import SOCK_DIAG
from membrane.plan.model import INNER_V4

SERVER = ("192.0.2.1", 80)


@pytest.fixture
def world() -> Iterator[tuple[Clients, Channel]]:
    """The gateway's part, and the launcher's end."""
    diagnosing = _socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, SOCK_DIAG)
    launcher, theirs = pair(FROM_SENDERS, TO_SENDERS)
    launcher.setblocking(False)
    yield Clients(diagnosing, theirs.socket), launcher
    for each in (diagnosing, launcher, theirs):
        each.close()


def asked(launcher: Channel) -> FindSender:
    question = launcher.receive()
    assert isinstance(question, FindSender)
    return question


def test_it_is_asked_at_once_and_its_answer_read_when_it_is_needed(world: tuple[Clients, Channel]) -> None:
    clients, launcher = world
    first, second = (clients.tcp((INNER_V4, port), SERVER) for port in (5000, 5001))
    questions = [asked(launcher), asked(launcher)]
    assert [(each.client, each.client_port, each.server, each.server_port) for each in questions] == [
        (INNER_V4, 5000, *SERVER),
        (INNER_V4, 5001, *SERVER),
    ]
    for question in questions:
        launcher.send(SenderFound(question.number, question.client_port - 1000, question.number + 70))
    assert tuple(second) == (4001, 72) and (first[0], first[1]) == (4000, 71)


def test_only_clients_of_the_command_s_own_namespace_are_asked_about(world: tuple[Clients, Channel]) -> None:
    clients, launcher = world
    assert tuple(clients.tcp(("127.0.0.1", 9), SERVER)) == (9, 0)
    with pytest.raises(BlockingIOError):
        launcher.receive()


def test_a_late_launcher_is_waited_for_once_and_asked_again_when_it_owes_nothing(
    world: tuple[Clients, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    clients, launcher = world
    waits: list[float] = []
    monkeypatch.setattr(module, "ready", lambda _fds, seconds: waits.append(seconds) or (set(), set()))
    late = clients.tcp((INNER_V4, 5000), SERVER)
    assert tuple(late) == (5000, 0) and len(waits) == 1
    assert tuple(clients.tcp((INNER_V4, 5001), SERVER)) == (5001, 0) and len(waits) == 1, "not asked, not waited for"
    launcher.send(SenderFound(asked(launcher).number, 4000, 7))
    assert tuple(late) == (4000, 7)
    clients.tcp((INNER_V4, 5002), SERVER)
    assert asked(launcher).client_port == 5002


def test_a_launcher_that_is_gone_is_not_waited_for(world: tuple[Clients, Channel]) -> None:
    clients, launcher = world
    first = clients.tcp((INNER_V4, 5000), SERVER)
    launcher.close()
    assert tuple(first) == (5000, 0)
    assert tuple(clients.tcp((INNER_V4, 5001), SERVER)) == (5001, 0)


def test_all_answers_have_room(world: tuple[Clients, Channel]) -> None:
    """A launcher that cannot send an answer ends the conversation (``host.launcher``)."""
    clients, launcher = world
    found = [clients.tcp((INNER_V4, port), SERVER) for port in range(5000, 5000 + 2 * MOST_ASKED)]
    for _ in range(MOST_ASKED):
        launcher.send(SenderFound(asked(launcher).number, 1, 2))
    with pytest.raises(BlockingIOError):
        launcher.receive()
    assert [tuple(each) for each in found[:MOST_ASKED]] == [(1, 2)] * MOST_ASKED
    assert tuple(found[-1]) == (5000 + 2 * MOST_ASKED - 1, 0)
