"""``membrane trace``: which record is meant, what is printed of it, and what is gone before it was read."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest

from membrane.events import AccessDenied, CheckpointMade, SessionEnded, SessionStarted, encode
from membrane.record import reader, writer
from membrane.ui import cli, trace
from membrane.ui.options import UsageError, parse

FIRST, SECOND = "a" * 16, "b" * 16


def write(state: Path, session: str, workspace: str = "/w", *, ended: bool = True) -> str:
    events = [
        SessionStarted("1", ("make", "x\x1b[2J"), workspace, "d", (), (), "network", "u"),
        CheckpointMade("set", "label"),
        AccessDenied({"kind": "Connect", "host": "h.example"}, "not-listed", None, None),
        *([SessionEnded(3, 0, 1.0, {}, 1, 0)] if ended else []),
    ]
    path = writer.make(str(state), session)
    made = writer.Writer(path, "session")
    for number, event in enumerate(events):
        line = encode(event, time=f"2026-01-02T03:04:0{number}.000Z", session=session, seq=number)
        made.append(json.dumps(line).encode() + b"\n")
    made.close()
    return path


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "state"
    monkeypatch.setenv("MEMBRANE_HOME", str(place))
    return place


def test_the_list_of_none_and_of_two(state: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trace", "list"]) == 0
    assert capfd.readouterr().out == "nothing was recorded yet\n"
    path = write(state, FIRST)
    write(state, SECOND, ended=False)
    assert cli.main(["trace", "list", "--json"]) == 0
    first, second = map(json.loads, capfd.readouterr().out.splitlines())
    assert (first["id"], first["exit_code"], first["denied"], first["running"]) == (FIRST, 3, 1, False)
    assert first["bytes"] == sum(each.stat().st_size for each in Path(path).iterdir())
    assert (second["id"], second["exit_code"]) == (SECOND, None)
    assert cli.main(["trace", "list"]) == 0
    out = capfd.readouterr().out
    assert "exit 3" in out and "1 refusal " in out and "killed" in out and "\x1b" not in out


@pytest.mark.as_user
def test_a_record_that_cannot_be_read_hides_no_other(state: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = Path(write(state, FIRST))
    write(state, SECOND)
    path.chmod(0)
    try:
        assert cli.main(["trace", "list", "--json"]) == 0
    finally:
        path.chmod(0o700)
    out, err = capfd.readouterr()
    assert [json.loads(line)["id"] for line in out.splitlines()] == [SECOND]
    assert err == f"membrane: cannot read the record {path}: Permission denied\n"


@pytest.mark.parametrize("moment", ["before it is opened", "after its ends were read"])
def test_a_record_that_is_removed_during_the_listing_is_left_out(
    moment: str, state: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(state, FIRST)
    write(state, SECOND)
    if moment == "before it is opened":
        sessions = reader.sessions

        def listed(of: str) -> list[reader.Entry]:
            found = sessions(of)
            assert writer.remove(path)
            return found

        monkeypatch.setattr(reader, "sessions", listed)
    else:
        ends = reader.Record.ends

        def read(self: reader.Record) -> Any:
            found = ends(self)
            assert self.path != path or writer.remove(path)
            return found

        monkeypatch.setattr(reader.Record, "ends", read)
    assert cli.main(["trace", "list", "--json"]) == 0
    out, err = capfd.readouterr()
    assert [json.loads(line)["id"] for line in out.splitlines()] == [SECOND] and err == ""


def test_a_running_session_that_packs_a_segment_stays_in_the_list(
    state: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(state, FIRST)
    extra = Path(path) / "tracer-0001.jsonl"
    extra.write_text("x")
    ends = reader.Record.ends

    def read(self: reader.Record) -> Any:
        found = ends(self)
        extra.unlink()
        return found

    monkeypatch.setattr(reader.Record, "ends", read)
    with Held(path):
        assert cli.main(["trace", "list", "--json"]) == 0
    (row,) = map(json.loads, capfd.readouterr().out.splitlines())
    assert row["running"] and row["bytes"] == sum(each.stat().st_size for each in Path(path).iterdir())


class Held:
    """The lock that a writer holds on the directory of its record (``writer.is_written``)."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def __enter__(self) -> None:
        fcntl.flock(self.fd, fcntl.LOCK_SH)

    def __exit__(self, *_error: object) -> None:
        os.close(self.fd)


def test_the_last_record_is_that_of_the_workspace(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "w" / "inner"
    place.mkdir(parents=True)
    write(state, FIRST, str(tmp_path / "w"))
    write(state, SECOND, "/elsewhere")
    monkeypatch.chdir(place)
    for words in (["show"], ["show", "@last"], ["show", FIRST[:5]]):
        assert cli.main(["trace", *words, "--json"]) == 0
        assert {json.loads(line)["session"] for line in capfd.readouterr().out.splitlines()} == {FIRST}
    place.rmdir()
    assert cli.main(["trace", "show", SECOND, "--json"]) == 0  # a name of its own needs no place
    assert cli.main(["trace", "show", "nothing"]) == 78
    capfd.readouterr()
    for words in (["trace", "show"], ["trace", "verify", "@2"], ["learn", "--from", "@last"]):
        assert cli.main(words) == 125
        assert "cannot use the current directory as the workspace" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ([], 4),
        (["--denied"], 1),
        (["--host", "h.example"], 1),
        (["--since", "label"], 3),
        (["--until", "label"], 2),
        (["--since", "2026-01-02T03:04:02"], 2),
    ],
)
def test_what_is_chosen(words: list[str], count: int, state: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(state, FIRST)
    assert cli.main(["trace", "show", FIRST, *words]) == 0
    out = capfd.readouterr().out
    assert len(out.splitlines()) == count and "\x1b" not in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["list", "extra"], "does not take 'extra'"),
        (["list", "--denied"], "membrane trace list does not take --denied"),
        (["summary", FIRST, "--host", "x"], "membrane trace summary does not take --host"),
        (["show", FIRST, "--pid", "x"], "--pid is a number, not 'x'"),
        (["show", FIRST, "--since", "none"], "no checkpoint of the record; its checkpoints are label"),
    ],
)
def test_wrong_words_are_refused(words: list[str], said: str, state: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(state, FIRST)
    assert cli.main(["trace", *words]) == 2
    out, err = capfd.readouterr()
    assert said in err and out == ""


def test_verify_says_whether_it_is_all(state: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write(state, FIRST)
    assert cli.main(["trace", "verify", FIRST, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["problems"] == []
    (segment,) = Path(path).glob("session-*")
    segment.write_bytes(segment.read_bytes().replace(b"h.example", b"x.example"))
    assert cli.main(["trace", "verify", FIRST, "--json"]) == 1
    assert json.loads(capfd.readouterr().out)["problems"]


def test_the_export_goes_to_a_file_or_stdout_and_what_cannot_be_written_is_said(
    state: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(state, FIRST)
    assert cli.main(["trace", "export", FIRST, "--format", "events"]) == 0
    printed = capfd.readouterr().out
    assert printed and all(json.loads(line) for line in printed.splitlines())
    file = tmp_path / "out"
    assert cli.main(["trace", "export", FIRST, "--format", "events", "--output", str(file)]) == 0
    assert file.read_text() == printed and file.stat().st_mode & 0o777 == 0o600
    assert cli.main(["trace", "report", FIRST, "--output", str(tmp_path / "none" / "x")]) == 125
    assert "cannot write" in capfd.readouterr().err
    for words in (["export"], ["report"]):
        assert cli.main(["trace", *words, FIRST, "--output", "/dev/full"]) == 125
        assert "cannot write /dev/full: No space left on device\n  try: -o FILE\n" in capfd.readouterr().err


def test_what_the_options_choose_and_what_is_missing(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["trace", "show", "--pid", "7", "--kind", "A", "--kind", "dns", "--path", "*.c", "--denied"]
    chosen = trace.wanted(parse(words))
    assert (chosen.pid, chosen.kinds, chosen.path, chosen.denied, chosen.host) == (7, ("A", "dns"), "*.c", True, "")
    with pytest.raises(UsageError, match=r"--kind conect: no kind of event; known are .*ConnectionOpened"):
        trace.wanted(parse(["trace", "show", "--kind", "proc", "--kind", "conect"]))  # not a record without any
    with pytest.raises(UsageError, match="--pid is a number"):
        trace.wanted(parse(["trace", "show", "--pid", "1" * 10]))
    trace.note(["a segment \x1b[2J", "another"])
    out, err = capfd.readouterr()
    assert out == "" and len(err.splitlines()) == 2 and "\x1b" not in err
