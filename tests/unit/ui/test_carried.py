"""What pid 1 of a carrying container takes, and what it refuses before anything runs."""

from __future__ import annotations

import marshal
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from membrane.errors import HostError, PolicyError
from membrane.policy import codec
from membrane.policy.load import load
from membrane.run.installed import VERSION
from membrane.ui import carried
from membrane.ui.carried import Frame
from membrane.ui.pipe import Pipe

FRAME = Frame(VERSION, "run", "/work", ("a", "b"), (("quiet", True),), (("LANG", "C"),), b"policy", (b"value",), ())


def given(data: bytes) -> Frame:
    """What is read of a line on which ``data`` was sent and nothing more will be."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        return carried.read(ours)


def test_a_frame_comes_whole() -> None:
    assert given(FRAME.dump()) == FRAME


@pytest.mark.parametrize(
    "data",
    [
        b"",
        FRAME.dump()[:-1],
        FRAME.replace(release="0.0.1").dump(),
        (carried.LARGEST + 1).to_bytes(8, "big"),
        b"\0\0\0\0\0\0\0\x01N",
        (len(short := marshal.dumps((VERSION, "/work"), carried.VERSION))).to_bytes(8, "big") + short,
    ],
    ids=["nothing", "cut short", "another release", "too large", "no frame", "fields are missing"],
)
def test_what_is_no_frame_of_this_release_is_refused_with_what_to_do(data: bytes) -> None:
    with pytest.raises(HostError, match="was asked by another one") as caught:
        given(data)
    assert caught.value.exit_code == 125 and "docker build" in caught.value.fix[0]


def test_another_directory_at_the_same_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in os.environ.items():
        monkeypatch.setenv(name, value)  # put back what the run sets
    monkeypatch.setattr(os, "isatty", lambda fd: False)
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    place = tmp_path / "old"
    frame = FRAME.replace(workspace=str(place), places=((str(place), place.stat().st_ino),))
    ran = []
    monkeypatch.setattr("membrane.ui.cli.run_carried", lambda *given: ran.append(given) or 7)
    monkeypatch.chdir(tmp_path)
    assert carried._run(frame) == 7 and len(ran) == 1  # the control
    checked: list[Frame] = []
    monkeypatch.setattr(carried, "_check_forms", checked.append)
    assert carried._run(frame.replace(normalises=True)) == 7 and len(checked) == 1
    ran.clear()
    os.chdir(tmp_path)
    place.rmdir()
    place.symlink_to(tmp_path / "new")
    with pytest.raises(HostError, match="shows another directory"):
        carried._run(frame)
    assert not ran


ACUTE = "\u00e9", "e\u0301"  # e with an acute accent: one character, and two


@pytest.mark.parametrize("form", ACUTE)
@pytest.mark.parametrize("name", ["{}/.env", "a/k{}y.pem"])
def test_a_covered_name_with_a_second_spelling_is_refused(form: str, name: str, tmp_path: Path) -> None:
    work = Path(os.path.realpath(tmp_path))
    path = work / name.format(form)
    path.parent.mkdir()
    path.touch()
    (work / f"open-{form}").mkdir()  # what no rule covers may be written in two ways
    given = {"directory": str(work), "no_presets": True, "ignore": (".env", "*.pem")}
    rules = load([], presets={}, options=given, environ={}, home="/home/me", command="").policy
    frame = FRAME.replace(workspace=str(work), policy=codec.dump(rules), normalises=True)
    with pytest.raises(PolicyError, match="has a second spelling") as caught:
        carried._check_forms(frame)
    assert caught.value.exit_code == 78
    path.rename(work / "plain.pem")
    carried._check_forms(frame)  # the control


def test_forms_of_names() -> None:
    assert all(carried.has_forms(f"a/{form}") for form in ACUTE)
    assert carried.has_forms("\u1112\u1161\u11ab") and carried.has_forms("\u212b")  # Hangul, the sign of the Angstrom
    assert not any(carried.has_forms(name) for name in ("a/b", "\u65e5\u672c", "\u00df", "\udcff", ""))


@pytest.mark.parametrize("by", ["itself", "a signal", "the end of the line"])
def test_pid_1_ends_as_the_run_does(by: str) -> None:
    ours, theirs = socket.socketpair()
    wake, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    ready, waits = os.pipe()
    child = os.fork()
    if not child:
        theirs.close()
        signal.alarm(60)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(3))
        os.write(waits, b"x")
        if by == "itself":
            os._exit(5)
        while True:
            signal.pause()
    os.read(ready, 1)
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    fd = signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    try:
        if by == "a signal":
            os.kill(child, signal.SIGKILL)
        elif by == "the end of the line":
            theirs.close()
        status = carried._wait(child, Pipe(ours.fileno(), ours.fileno(), 1, ()), wake)
    finally:
        signal.set_wakeup_fd(fd)
        signal.signal(signal.SIGCHLD, before)
        for each in (wake, wakes, ready, waits):
            os.close(each)
        ours.close()
        theirs.close()
    assert status == {"itself": 5, "a signal": 137, "the end of the line": 3}[by]


STEER = "import sys; from membrane.ui import carried; sys.exit(carried.steer(sys.argv[1]))"
JOIN = """
import sys
from membrane.ui import carried, cli
cli.main = lambda words: print("ran", *words, flush=True) or sys.stdin.read() or 9
sys.exit(carried.join(sys.argv[1], "session", "/", ["word"]))
"""


def started(script: str, place: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", script, str(place)]
    return subprocess.Popen(words, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize(
    ("before", "after", "ends", "status", "said"),
    [
        (b"", b"", False, 9, b"ran exec session -- word\n"),  # the control: by itself
        (b"", bytes((signal.SIGTERM,)), False, -signal.SIGTERM, b"ran exec session -- word\n"),
        (b"", b"", True, -signal.SIGKILL, b"ran exec session -- word\n"),
        (bytes((signal.SIGTERM,)), b"", False, -signal.SIGTERM, None),  # perhaps before it runs anything
        (bytes((signal.SIGINT,)), b"", False, -signal.SIGINT, None),
    ],
)
def test_a_joined_command_gets_signals_from_its_first_moment(
    before: bytes, after: bytes, ends: bool, status: int, said: bytes | None, tmp_path: Path
) -> None:
    steer = started(STEER, tmp_path / "door")
    assert steer.stdin is not None and steer.stdout is not None and steer.stdout.read(1) == b"\n"
    if before:
        steer.stdin.write(before)
    join = started(JOIN, tmp_path / "door")
    assert join.stdin is not None and join.stdout is not None
    out = b"" if before else join.stdout.readline()
    if after:
        steer.stdin.write(after)
    elif ends:
        steer.stdin.close()
        steer.stdin = None
    elif not before:
        join.stdin.close()
        join.stdin = None
    assert join.wait(60) == status, join.communicate()
    rest, errors = join.communicate()
    assert (said is None or out + rest == said) and not errors, (out, rest, errors)
    assert steer.wait(60) == 0
    steer.communicate()


def test_nothing_runs_when_the_one_outside_has_ended(tmp_path: Path) -> None:
    """Its end comes between the two: by a socket that nobody accepts on any more, and by none."""
    steer = started(STEER, tmp_path / "door")
    assert steer.stdout is not None and steer.stdout.read(1) == b"\n"
    steer.communicate()
    for number in range(2):
        join = started(JOIN, tmp_path / "door")
        out, errors = join.communicate()
        assert (join.returncode, out, errors) == (128 + signal.SIGKILL, b"", b""), number
        (tmp_path / "door").unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(tmp_path / "door"))
        door.listen(1)
        join = started(JOIN, tmp_path / "door")
        door.accept()[0].close()  # as when it ends after the connection came
        out, errors = join.communicate()
    assert (join.returncode, out, errors) == (128 + signal.SIGKILL, b"", b"")
