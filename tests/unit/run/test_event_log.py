"""The session's log: what the gateway says is counted, and written where asked."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from membrane.errors import HostError, InternalError
from membrane.run import event_log
from membrane.run.event_log import EventLog

CLOSED = b'{"event": "ConnectionClosed", "source": "network", "id": 1, "bytes_up": 7, "bytes_down": 8}'


def test_totals_are_the_latest() -> None:
    """Without a destination the gateway sends totals of all connections, not one record of each."""
    log = EventLog("s", "")
    for up, down in ((1, 2), (10, 20)):
        log.add_totals(up, down)
    assert (log.bytes_up, log.bytes_down, log.sequence) == (10, 20, 0)


def test_closed_connections_add_up_and_are_numbered_where_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "events"
    log = EventLog("s", str(path))
    log.add_line(CLOSED, "network")
    log.add_line(CLOSED, "network")
    log.close()
    assert (log.bytes_up, log.bytes_down) == (14, 16)
    written = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [(record["seq"], record["session"], record["id"]) for record in written] == [(1, "s", 1), (2, "s", 1)]


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"[]", b"not json", b"{}", b'{"totals": 1}', b'{"event": 1}', b'{"event": "AccessDenied"}'),
        *(b"[" * 100_000, CLOSED.replace(b'"bytes_up": 7', b'"bytes_up": 1e999')),
        CLOSED.replace(b'"bytes_up": 7', b'"bytes_up": NaN'),
    ],
)
def test_what_the_network_process_does_not_send_is_an_internal_error(line: bytes) -> None:
    with pytest.raises(InternalError):
        EventLog("s", "").add_line(line, "network")


@pytest.mark.parametrize("event", ["SessionEnded", "SessionStarted", "ProcessStarted", "NameQuarantined", "Other"])
def test_the_network_process_writes_no_events_of_others(event: str) -> None:
    """Broken by what it parses, it still cannot say that the session ended, or what a process did."""
    log = EventLog("s", "")
    for source in ("network", "session"):
        with pytest.raises(InternalError):
            log.add_line(json.dumps({"event": event, "source": source}).encode(), "network")
    with pytest.raises(InternalError):
        log.add_line(CLOSED.replace(b'"network"', b'"session"'), "network")
    with pytest.raises(InternalError):
        log.add_line(CLOSED, "tracer")
    assert log.sequence == 0


LOST = {"event": "EventsLost", "source": "network", "kind": "x", "count": 0, "pad": "y" * 1000}


def filled(log: EventLog, count: int) -> None:
    for _ in range(count):
        log.add_line(json.dumps(LOST).encode(), "network")
    log.flush()


def test_a_fifo_that_nobody_reads_holds_nothing_up(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither at its opening nor later: what does not find room is counted, and said."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    log = EventLog("s", str(path))
    filled(log, 3)
    assert log.waits
    log.close()
    assert f"3 events were not read from {path}" in capfd.readouterr().err


def test_a_reader_that_comes_later_gets_everything(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    log = EventLog("s", str(path))
    filled(log, 3)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    filled(log, 1)
    log.close()
    lines = os.read(reader, 1 << 16).splitlines()
    os.close(reader)
    assert [json.loads(line)["seq"] for line in lines] == [1, 2, 3, 4]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("kind", ["fifo", "descriptor"])
def test_a_slow_reader_loses_events_and_is_told_in_their_place(
    tmp_path: Path, kind: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the descriptor is the caller's, and waits."""
    monkeypatch.setattr(event_log, "ROOM", 1 << 17)
    if kind == "fifo":
        os.mkfifo(tmp_path / "fifo")
        reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
        log = EventLog("s", str(tmp_path / "fifo"))
    else:
        reader, writer = os.pipe()
        log = EventLog("s", f"fd:{writer}")
    filled(log, 1000)  # the pipe holds 64 KiB
    assert log.waits
    data = b""
    os.set_blocking(reader, False)
    while log.waits:
        try:
            data += os.read(reader, 1 << 20)
        except BlockingIOError:
            pass
        log.flush()
    data += os.read(reader, 1 << 20)  # of what the pipe holds
    filled(log, 1)
    log.close()
    os.set_blocking(reader, True)
    while piece := os.read(reader, 1 << 20):
        data += piece
    os.close(reader)
    events = [json.loads(line) for line in data.splitlines()]
    (told,) = [event for event in events if event["kind"] == "events file"]
    kept = [event["seq"] for event in events if event is not told]
    first = kept.index(1001)
    assert kept[:first] == list(range(1, first + 1)) and first + told["count"] == 1000 and kept[first:] == [1001]
    assert f"{told['count']} events were not read" in capfd.readouterr().err
    assert log.lost == 0  # the record has them


def test_a_file_gets_everything_at_once(tmp_path: Path) -> None:
    """The control; a descriptor of a file as well."""
    log = EventLog("s", str(tmp_path / "file"))
    filled(log, 1000)
    assert not log.waits
    log.close()
    assert len((tmp_path / "file").read_bytes().splitlines()) == 1000
    log = EventLog("s", f"fd:{os.open(tmp_path / 'other', os.O_WRONLY | os.O_CREAT, 0o600)}")
    filled(log, 1000)
    assert not log.waits
    log.close()
    assert len((tmp_path / "other").read_bytes().splitlines()) == 1000


def test_what_a_command_puts_in_the_place_of_a_fifo_is_not_written_to(tmp_path: Path) -> None:
    """It is opened again by its descriptor: the name is the command's to change, in the workspace."""
    path, target = tmp_path / "fifo", tmp_path / "target"
    os.mkfifo(path)
    target.write_text("")
    log = EventLog("s", str(path))
    filled(log, 1)
    os.rename(path, tmp_path / "moved")
    path.symlink_to(target)
    filled(log, 1)
    reader = os.open(tmp_path / "moved", os.O_RDONLY | os.O_NONBLOCK)
    filled(log, 1)
    log.close()
    assert target.read_text() == ""
    assert len(os.read(reader, 1 << 16).splitlines()) == 3
    os.close(reader)


def test_a_link_that_an_earlier_command_left_is_not_followed(tmp_path: Path) -> None:
    """Else its target, such as a start file of the caller's shell, gets lines that came from inside."""
    target = tmp_path / "target"
    for left in (tmp_path / "link", tmp_path / "dangling"):
        left.symlink_to(target)
        with pytest.raises(HostError, match="symbolic link"):
            EventLog("s", str(left))
        assert not target.exists()
        target.write_text("")
        with pytest.raises(HostError, match="symbolic link"):
            EventLog("s", str(left))
        assert target.read_text() == ""
        target.unlink()
    system = EventLog("s", "/proc/self/fd/2")  # the control: a link of the system's
    system.close()


def conversation(number: int, host: str, error: str, reached: bool = True, protocol: str = "tls") -> list[bytes]:
    opened = {"event": "ConnectionOpened", "source": "network", "id": number, "protocol": protocol, "host": host}
    closed = {"event": "ConnectionClosed", "source": "network", "id": number, "bytes_up": 0, "bytes_down": 0}
    ends = {**closed, "error": error, "reached": reached}
    return [json.dumps(line).encode() for line in ({**opened, "port": 443}, ends)]


@pytest.mark.parametrize("error", ["no such name: a.test", "connection refused by 127.0.0.1", "", "any words"])
@pytest.mark.parametrize("reached", [True, False])
def test_what_was_allowed_and_not_reached_is_kept_once_whatever_its_words_are(error: str, reached: bool) -> None:
    log = EventLog("s", "")
    for number in (1, 2):
        for line in conversation(number, "a.test", error, reached):
            log.add_line(line, "network")
    assert list(log.failed) == ([] if reached else [("a.test", 443, "tcp", error)])


@pytest.mark.parametrize("reached", [None, 0, "", "false"])
def test_only_false_says_that_nothing_was_reached(reached: object) -> None:
    log = EventLog("s", "")
    for line in conversation(1, "a.test", "no such name: a.test", reached):  # type: ignore[arg-type]
        log.add_line(line, "network")
    assert not log.failed


def test_failures_are_bounded() -> None:
    log = EventLog("s", "")
    for number in range(event_log.MOST_KEPT + 1):
        for line in conversation(number, f"a{number}.test", "no such name: " + "x" * 9999, False, "udp"):
            log.add_line(line, "network")
    assert len(log.failed) == event_log.MOST_KEPT and log.more_failed
    assert max(len(why) for _, _, _, why in log.failed) == event_log.LONGEST_WHY
    log = EventLog("s", "")
    for number in range(event_log.MOST_OPEN + 1):
        log.add_line(conversation(number, "a.test", "")[0], "network")
    assert len(log._open) == event_log.MOST_OPEN


def test_what_is_said_waits_for_a_slow_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command has stderr as well, and may leave it without waiting (node does): what finds it full is not lost."""
    out, room = bytearray(), 0

    def write(_fd: int, data: memoryview) -> int:
        nonlocal room
        if not room:
            raise BlockingIOError
        taken, room = bytes(data[:room]), 0
        out.extend(taken)
        return len(taken)

    def reader(_reading: object, writing: tuple[int, ...]) -> None:
        nonlocal room
        assert writing == (2,)
        room = 7

    with monkeypatch.context() as patched:
        patched.setattr(event_log.os, "write", write)
        patched.setattr(event_log, "ready", reader)
        event_log.say("refused 1 (1 host)")
    assert out == b"membrane: refused 1 (1 host)\n"
