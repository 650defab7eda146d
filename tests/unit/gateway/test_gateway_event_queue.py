"""What the session is told: nothing is lost in silence, nothing is told a thousand times."""

from __future__ import annotations

import json

from membrane import clock
from membrane.events import AccessDenied, ConnectionClosed, ConnectionOpened, NameResolved, encode
from membrane.gateway.event_queue import BURST, DIGITS, QUEUE, RATE, WINDOW, EventQueue
from membrane.gateway.messages import FROM_GATEWAY, LARGEST_BATCH, Ended, Lines, Synced
from membrane.messages import Frames, Message


class Clock:
    now = 1_700_000_000.25

    def __call__(self) -> float:
        return self.now


def stamp(seconds: float) -> str:
    return clock.iso(clock.nanoseconds(seconds), DIGITS)


def messages(queue: EventQueue) -> list[Message]:
    frames, out = Frames(FROM_GATEWAY), []
    while queue.waiting():
        part = bytes(queue.pending()[:65537])
        queue.sent(len(part))
        out += frames.feed(part)
    return out


def lines(queue: EventQueue) -> list[dict]:
    return [json.loads(line) for each in messages(queue) for line in each.text.splitlines()]  # type: ignore[attr-defined]


def denied(name: str = "evil.test", kind: str = "A", reason: str = "name not allowed") -> AccessDenied:
    return AccessDenied({"kind": "NameQuery", "name": name, "type": kind}, reason, None, None)


def test_an_event_in_full() -> None:
    queue = EventQueue("s1", Clock())
    queue.emit(denied())
    assert lines(queue) == [
        {
            "time": "2023-11-14T22:13:20.250Z",
            "session": "s1",
            "seq": 0,
            "event": "AccessDenied",
            "source": "network",
            "process": None,
            "access": {"kind": "NameQuery", "name": "evil.test", "type": "A"},
            "reason": "name not allowed",
            "rule": None,
            "hint": None,
            "count": 1,
            "client_port": 0,
            "client_socket": 0,
        }
    ]


def test_the_first_refusal_is_told_at_once_and_the_others_are_counted() -> None:
    clock = Clock()
    queue = EventQueue("s", clock)
    for kind in ("A", "AAAA", "A", "A"):
        queue.emit(denied(kind=kind))
    queue.emit(denied("other.test"))
    queue.emit(denied(reason="name malformed"))
    assert [line["count"] for line in lines(queue)] == [1, 1, 1]
    queue.report_repetitions()
    assert lines(queue) == []
    clock.now += WINDOW + 1
    queue.report_repetitions()
    assert [(line["access"]["name"], line["count"]) for line in lines(queue)] == [("evil.test", 3)]
    queue.emit(denied())
    assert [line["count"] for line in lines(queue)] == [1]
    assert queue.denied == 7


def test_a_flood_of_different_refusals_is_bounded() -> None:
    queue = EventQueue("s", Clock())
    for number in range(5000):
        queue.emit(denied(f"n{number}.test"))
        queue.emit(denied(f"n{number}.test"))
    queue.report_repetitions(everything=True)
    assert sum(line["count"] for line in lines(queue) if line["event"] == "AccessDenied") + queue.lost == 10000
    assert not queue.counting()


def test_different_refusals_are_told_at_a_bounded_rate() -> None:
    """An hour of them is megabytes, not the host's disk; what is left out is told once in a second."""
    clock = Clock()
    queue = EventQueue("s", clock)
    told = []
    for second in range(100):
        for number in range(200):
            clock.now += 0.005
            queue.emit(denied(f"n{second}-{number}.test"))
        told += lines(queue)
        queue.report_repetitions()
        told += lines(queue)
    kinds = [line["event"] for line in told]
    assert BURST <= kinds.count("AccessDenied") <= BURST + 100 * RATE + 1
    assert kinds.count("EventsLost") <= 100
    lost = sum(line["count"] for line in told if line["event"] == "EventsLost")
    assert kinds.count("AccessDenied") + lost == queue.denied == 20000
    clock.now += 2
    queue.emit(denied("again.test"))
    assert [line["event"] for line in lines(queue)] == ["AccessDenied"]


def test_what_does_not_fit_is_counted_by_kind() -> None:
    clock = Clock()
    queue = EventQueue("s", clock)
    for _ in range(QUEUE):
        queue.emit(ConnectionClosed(1, 2, 3, 4.5))
    for _ in range(3):
        clock.now += 1
        queue.emit(ConnectionClosed(1, 2, 3, 4.5))
    queue.emit(NameResolved("a.test", "A", "allow", "198.18.0.16"))
    told = lines(queue)
    assert [line["event"] for line in told[:-2]] == ["ConnectionClosed"] * QUEUE
    assert [(line["kind"], line["count"]) for line in told[-2:]] == [("ConnectionClosed", 3), ("NameResolved", 1)]
    assert told[-2]["event"] == "EventsLost"
    assert (told[-2]["start"], told[-2]["end"]) == (stamp(clock.now - 2), stamp(clock.now))
    queue.emit(ConnectionClosed(1, 2, 3, 4.5))
    assert [line["event"] for line in lines(queue)] == ["ConnectionClosed"]


def test_other_messages_keep_their_place_among_events() -> None:
    queue = EventQueue("s", Clock())
    queue.emit(denied())
    queue.send(Synced(3))
    queue.emit(denied("b.test"))
    queue.end({"names": 7})
    one, synced, two, end = messages(queue)
    assert isinstance(one, Lines) and isinstance(two, Lines) and b"b.test" in two.text
    assert (synced, end) == (Synced(3), Ended(2, ("names",), (7,)))


def test_many_events_are_several_messages_of_whole_lines() -> None:
    queue = EventQueue("s", Clock())
    for number in range(1000):
        queue.emit(ConnectionOpened(number, "tcp", "a" * 1000, "", 1))
    queue.send(Synced(1))
    *batches, last = messages(queue)
    assert last == Synced(1) and len(batches) > 10
    for each in batches:
        assert isinstance(each, Lines) and len(each.text) <= LARGEST_BATCH and each.text.endswith(b"}\n")
    ids = [json.loads(line)["id"] for each in batches for line in each.text.splitlines()]  # type: ignore[attr-defined]
    assert ids == list(range(1000))


def test_the_fast_lines_are_the_slow_lines() -> None:
    nasty = 'a"\\\x1b\u202e\n\xe9\udcff'
    for event in (
        ConnectionOpened(7, "tls", nasty, "::1", 443, nasty, 50000),
        ConnectionOpened(8, "udp", "a.test", "", 1),
        ConnectionClosed(9, 0, 1 << 40, 0.001, nasty),
        ConnectionClosed(9, 0, 1, 3.0),
    ):
        queue = EventQueue(nasty, Clock())
        queue.emit(event)
        (message,) = messages(queue)
        assert isinstance(message, Lines)
        assert message.text.decode() == json.dumps(encode(event, time=stamp(Clock.now), session=nasty, seq=0)) + "\n"


def test_without_a_reader_only_refusals_are_told() -> None:
    queue = EventQueue("s", Clock())
    queue.verbose = False
    queue.emit(NameResolved("a.test", "A", "allow", "198.18.0.16"))
    queue.emit(ConnectionOpened(1, "tcp", "a.test", "192.0.2.1", 80))
    queue.emit(ConnectionClosed(1, 2, 3, 4.5))
    assert not queue.waiting()
    queue.emit(denied())
    assert [line["event"] for line in lines(queue)] == ["AccessDenied"]
