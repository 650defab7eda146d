"""gateway.server, the process: frames in, messages out; what is no frame ends it and says so; a crash is one event.

The supervisor's side is the test, over a real socket pair; the process is what a session starts, with listeners of the
test's on loopback in place of the sandbox's.
"""

from __future__ import annotations

import _socket
import contextlib
import fcntl
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import membrane
from membrane import clock
from membrane.errors import InternalError
from membrane.events import DefectSeen
from membrane.gateway import messages as m
from membrane.gateway import server
from membrane.gateway.event_queue import EventQueue
from membrane.messages import Frames, Message
from membrane.policy.model import HostRule, Network, Origin, Policy, PortRange

LONG = 30  # seconds
MANY = 120  # more than are taken in one turn
ORIGIN = Origin("library", "test")
PROGRAM = (
    sys.executable,
    "-I",
    "-c",
    f"import sys; sys.path.insert(0, {str(Path(membrane.__file__).parent.parent)!r}); "
    "from membrane.gateway.server import serve; serve(sys.argv)",
)


def allowing(port: int) -> Policy:
    network = Network(4, 127 << 24, 8)
    ports = (PortRange(port, port, "tcp"),)
    return Policy(allow=(HostRule("127.0.0.0/8", ORIGIN, "network", network=network, ports=ports, raw=True),))


class Gateway:
    """One process, and the supervisor's end of its control socket."""

    def __init__(self, *keep: int) -> None:
        self.control, theirs = socket.socketpair()
        self.control.settimeout(LONG)
        with theirs:
            fds = (theirs.fileno(), *keep)
            self.process = subprocess.Popen(
                [*PROGRAM, str(theirs.fileno())], pass_fds=fds, env={}, stderr=subprocess.PIPE, close_fds=True
            )
        self.frames = Frames(m.FROM_GATEWAY)
        self.waiting: list[Message] = []

    def send(self, *messages: Message) -> None:
        self.control.sendall(b"".join(m.TO_GATEWAY.frame(message) for message in messages))

    def next(self) -> Message | None:
        """What it says next; None: it has ended."""
        while not self.waiting:
            try:
                data = self.control.recv(1 << 16)
            except ConnectionResetError:  # it ended with something unread, which the kernel says first (unix(7))
                data = self.control.recv(1 << 16)
            if not data:
                return None
            self.waiting += self.frames.feed(data)
        return self.waiting.pop(0)

    def rest(self) -> list[Message]:
        out = []
        while (message := self.next()) is not None:
            out.append(message)
        return out

    def end(self) -> int:
        return self.process.wait(LONG)

    def close(self) -> None:
        self.control.close()
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with contextlib.closing(Gateway()) as made:
        yield made


def setup(policy: Policy | None = None, **more: Any) -> m.Setup:
    return m.Setup(policy or Policy(), "s", **more)


def events(messages: list[Message]) -> list[dict[str, Any]]:
    lines = b"".join(message.text for message in messages if isinstance(message, m.Lines))
    return [json.loads(line) for line in lines.splitlines()]


def test_it_begins_answers_and_ends_with_its_counts(gateway: Gateway) -> None:
    gateway.send(m.Begin(setup()))
    assert gateway.next() == m.Ready()
    gateway.send(m.Sync(7), m.Follow(Policy()), m.Answer(1, "once"), m.Sync(8), m.Stop())
    first, second, last = gateway.rest()
    assert (first, second) == (m.Synced(7), m.Synced(8))
    assert isinstance(last, m.Ended)
    counts = dict(zip(last.kinds, last.counts, strict=True))
    assert last.events == 0 == counts["crashes"] == counts["connections"] and gateway.end() == 0


def test_the_end_of_the_stream_is_a_stop(gateway: Gateway) -> None:
    gateway.send(m.Begin(setup()))
    assert gateway.next() == m.Ready()
    gateway.control.shutdown(socket.SHUT_WR)
    assert isinstance(gateway.rest()[-1], m.Ended) and gateway.end() == 0


def test_a_frame_in_pieces_and_one_that_waits_behind_the_first(gateway: Gateway) -> None:
    data = m.TO_GATEWAY.frame(m.Begin(setup())) + m.TO_GATEWAY.frame(m.Sync(3))
    for at in range(0, len(data), 7):
        gateway.control.sendall(data[at : at + 7])
    assert [gateway.next(), gateway.next()] == [m.Ready(), m.Synced(3)]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the supervisor closed the control socket"),
        (m.TO_GATEWAY.frame(m.Stop()), "Stop came first"),
        (m.TO_GATEWAY.frame(m.Begin(setup()))[:-1], "the supervisor closed the control socket"),
        (b"\xff" * 64, ""),
        (b"GET / HTTP/1.1\r\n\r\n", ""),
        (m.TO_GATEWAY.frame(m.Begin(setup(sockets=(("odd", 0),)))), "non-socket"),
        (m.TO_GATEWAY.frame(m.Begin(setup(Policy(upstream_proxy="odd://x")))), ""),
    ],
    ids=["nothing", "another message", "cut off", "no frame", "HTTP", "no socket", "no proxy"],
)
def test_a_beginning_that_is_none_ends_it_with_status_1(data: bytes, said: str, gateway: Gateway) -> None:
    gateway.control.sendall(data)
    gateway.control.shutdown(socket.SHUT_WR)
    messages = gateway.rest()
    assert isinstance(messages[-1], m.Failed) and said in messages[-1].text
    assert not any(isinstance(message, m.Ended | m.Ready) for message in messages)
    assert gateway.end() == 1


@pytest.mark.parametrize("data", [b"\xff" * 64, m.TO_GATEWAY.frame(m.Begin(setup()))], ids=["no frame", "a second one"])
def test_what_is_no_message_later_ends_it_as_well(data: bytes, gateway: Gateway) -> None:
    gateway.send(m.Begin(setup()))
    assert gateway.next() == m.Ready()
    gateway.control.sendall(data)
    messages = gateway.rest()
    assert isinstance(messages[-1], m.Failed) and not any(isinstance(each, m.Ended) for each in messages)
    assert gateway.end() == 1


def test_connections_are_decided_by_the_rules_of_the_moment_and_reported() -> None:
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.setblocking(False)
        port = listener.getsockname()[1]  # captured: where the client wanted to go is the socket's own address
        gateway = stack.enter_context(contextlib.closing(Gateway(listener.fileno())))
        gateway.send(m.Begin(setup(sockets=(("tcp4", listener.fileno()),), clock=clock.offset())))
        assert gateway.next() == m.Ready()
        for _ in range(2):
            with pytest.raises(ConnectionResetError), socket.create_connection(("127.0.0.1", port), LONG) as client:
                assert client.recv(1) == b"never"
        gateway.send(m.Stop())
        messages = gateway.rest()
        found = events(messages)
        assert {each["event"] for each in found} == {"AccessDenied"} and sum(each["count"] for each in found) == 2
        last = messages[-1]
        assert isinstance(last, m.Ended) and last.events == len(found)
        assert dict(zip(last.kinds, last.counts, strict=True))["connections_refused"] == 2


@pytest.mark.parametrize("kind", ["tcp4", "udp4"])
def test_what_was_done_before_a_question_is_told_before_its_answer(kind: str) -> None:
    """However many sockets are ready in the same turn: here as on a machine that let it run late."""
    kinds = {"tcp4": socket.SOCK_STREAM, "udp4": socket.SOCK_DGRAM}
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(socket.socket(socket.AF_INET, kinds[kind]))
        served.bind(("127.0.0.1", 0))
        if kind == "tcp4":
            served.listen(MANY)
            role = kind
        else:
            served.setsockopt(socket.IPPROTO_IP, 8, 1)  # IP_PKTINFO (ip(7)), as what the sandbox's namespace has
            role = f"{kind}:{served.getsockname()[1]}"
        gateway = stack.enter_context(contextlib.closing(Gateway(served.fileno())))
        gateway.send(m.Begin(setup(sockets=((role, served.fileno()),), clock=clock.offset())))
        assert gateway.next() == m.Ready()
        gateway.process.send_signal(signal.SIGSTOP)
        for _ in range(MANY):
            with socket.socket(socket.AF_INET, kinds[kind]) as client:
                client.connect(served.getsockname())
                client.send(b"x")
        gateway.send(m.Sync(5))
        gateway.process.send_signal(signal.SIGCONT)
        before: list[Message] = []
        while (message := gateway.next()) != m.Synced(5):
            assert message is not None
            before.append(message)
        found = events(before)
        assert {each["event"] for each in found} == {"AccessDenied"}
        assert sum(each["count"] for each in found) == MANY


def test_it_is_hardened_and_holds_nothing_of_its_caller() -> None:
    read, write = os.pipe()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, write)
        high = fcntl.fcntl(read, fcntl.F_DUPFD_CLOEXEC, 500)  # above what it is to keep, as the other is below
        gateway = stack.enter_context(contextlib.closing(Gateway(read, high)))
        os.close(read)
        os.close(high)
        gateway.send(m.Begin(setup()))
        assert gateway.next() == m.Ready()
        status = Path(f"/proc/{gateway.process.pid}/status").read_text()
        assert "\nNoNewPrivs:\t1\n" in status
        with pytest.raises(BrokenPipeError):  # its copies were the last readers
            os.write(write, b"x")


# ---------------------------------------------------------------- in this process


class Queue(EventQueue):
    def __init__(self) -> None:
        super().__init__("s")
        self.emitted: list[Any] = []

    def emit(self, event: Any) -> None:
        self.emitted.append(event)


def test_each_crash_is_one_event_and_many_are_one_at_the_end() -> None:
    ours, theirs = socket.socketpair()
    control = _socket.socket(fileno=theirs.detach())
    queue = Queue()
    with ours:
        service = server.Service(control, Frames(m.TO_GATEWAY), queue, setup(), 1024)
        for number in range(server._CRASHES_REPORTED + 3):
            try:
                raise KeyError("secret of a client", number)
            except KeyError as error:
                service._crashed(error)
        assert [event.count for event in queue.emitted] == [1] * server._CRASHES_REPORTED
        service.close()
        control.close()
    *_first, last = queue.emitted
    assert isinstance(last, DefectSeen) and (last.error, last.count) == ("KeyError", 3)
    assert "secret" not in repr(queue.emitted)
    frame = last.where[-1]
    assert frame.startswith("test_gateway_server.py:") and " test_each_crash" in frame


@pytest.mark.parametrize("clock_step", [0.05, 2.0], ids=["a busy machine", "one that hangs"])
def test_the_last_round_ends_when_nothing_is_left(clock_step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock finds it so many seconds later.  What is not taken then is counted as lost."""
    ours, theirs = socket.socketpair()
    queue = EventQueue("s")
    with contextlib.ExitStack() as stack:
        stack.enter_context(ours)
        control = _socket.socket(fileno=theirs.detach())
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=MANY))
        sockets = (("tcp4", os.dup(listener.fileno())),)
        service = server.Service(control, Frames(m.TO_GATEWAY), queue, setup(sockets=sockets), 1024)
        for _ in range(MANY):
            stack.enter_context(socket.create_connection(listener.getsockname()))
        ticks = itertools.count(time.monotonic(), clock_step)
        monkeypatch.setattr(server.time, "monotonic", lambda: next(ticks))
        service.close()
        monkeypatch.undo()
        assert (queue.denied == MANY) is (clock_step < 1)
        assert queue.denied + queue.lost <= MANY and (queue.lost > 0) is (clock_step > 1)
        control.close()


def test_when_the_session_is_gone_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    control = _socket.socket(fileno=theirs.detach())
    service = server.Service(control, Frames(m.TO_GATEWAY), EventQueue("s"), setup(), 1024)
    monkeypatch.setattr(service._udp, "pending", lambda: True)  # a look-up that never ends
    looks = itertools.count()
    monkeypatch.setattr(server.time, "monotonic", lambda: 1000.0 + 0 * next(looks))  # time stands still
    ours.close()
    service.close()
    control.close()


def test_a_deep_failure_is_cut() -> None:
    def fail(depth: int) -> None:
        if not depth:
            raise ValueError
        fail(depth - 1)

    with pytest.raises(ValueError) as caught:
        fail(50)
    assert len(server.defect(caught.value).where) == server._FRAMES
    assert len(server.explain(caught.value)) <= 4000
    assert server.explain(InternalError("begin", "x")) == "cannot begin: x"


def test_a_supervisor_that_does_not_read_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_FLUSH", 0.05)
    ours, theirs = socket.socketpair()
    queue = EventQueue("s")
    for _ in range(40):
        queue.send(m.Failed("x" * 60000))
    with ours, theirs:
        thread = threading.Thread(target=server.send_all, args=(theirs, queue), daemon=True)
        thread.start()
        thread.join(LONG)
        assert not thread.is_alive() and queue.waiting()


def test_the_proxy_behind_a_socket_is_its_owners(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    assert server.socket_proxy(Policy()) is None
    missing = server.socket_proxy(Policy(socket_proxy=path))
    assert missing is not None and missing.owner == -1
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path)
        found = server.socket_proxy(Policy(socket_proxy=path))
    assert found is not None and (found.socket, found.owner) == (path, os.getuid())
