"""Sessions that go on without the terminal that began them: start, attach, stop."""

from __future__ import annotations

import json
import os
import select
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from world.box import Box, children, wait_until_gone

PYTHON = "/usr/bin/python3"
# A client by hand: what it is sent until that says "here", or "refused" when it was let go of before.
CLIENT = r"""
import os, socket, struct, sys
channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
try:
    channel.connect(sys.argv[1])
    channel.send(b"w" + struct.pack("HHHH", 24, 80, 0, 0))
    seen = b""
    while b"here" not in seen:
        message = channel.recv(1 << 17)
        if not message:
            raise OSError("closed")
        seen += message
    print("attached")
except OSError as error:
    print("refused", error)
"""


SLOW = """
import socket, struct, sys
channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
channel.connect(sys.argv[1])
channel.send(b"w" + struct.pack("HHHH", 24, 80, 0, 0))
channel.send(b"d\\r")
sys.stdin.read()
"""
SIZES = r"""
import os, signal
def show(*_):
    size = os.get_terminal_size()
    os.write(1, b"%d %d\n" % (size.lines, size.columns))  # not print: the signal may arrive within one
signal.signal(signal.SIGWINCH, show)
print("here", flush=True)
show()  # who attached before the handler stood has sent the signal already
input()
"""


def door(box: Box, name: str) -> Path:
    return box.state / "detached" / f"{name}.sock"


def started(box: Box, name: str, script: str) -> None:
    done = box.run("start", name, "--", "sh", "-c", script)
    assert done.returncode == 0 and f"{name} runs, session " in done.stderr, done


def test_a_session_goes_on_without_a_terminal(box: Box) -> None:
    started(box, "api", "echo here; read x; echo got $x; read x; exit 7")
    listed = box.run("ps").stdout
    assert "was started: membrane attach api" in listed, listed
    taken = box.run("start", "api", "--", "true")
    assert taken.returncode == 2 and "a session api is running" in taken.stderr
    with box.terminal("attach", "api", rows=30, columns=100) as terminal:
        terminal.expect("here")
        terminal.send("one\r")
        terminal.expect("got one")
        terminal.send("\x1cd")
        terminal.expect("detached; membrane attach api comes back")
        assert terminal.wait() == 0
    with box.terminal("attach") as terminal:  # the only one
        terminal.expect("here.*got one")  # what it missed
        terminal.send("two\r")
        assert terminal.wait() == 7
    again = box.run("attach", "api")
    assert again.returncode == 78 and "no session api was started" in again.stderr


def test_it_has_no_descriptor_of_who_began_it_but_the_one_of_its_events(box: Box) -> None:
    """A pipe of the caller's ends for who reads it when ``start`` returns."""
    (read, write), (lines, events) = os.pipe(), os.pipe()
    done = box.run("start", f"--events=fd:{events}", "api", "--", "sh", "-c", "read x", pass_fds=(write, events))
    assert done.returncode == 0, done
    os.close(write)
    os.close(events)
    assert select.select([read], [], [], 60)[0] and os.read(read, 1) == b""
    assert box.run("stop", "api").returncode == 0
    with open(lines, "rb") as told:
        assert [json.loads(line)["event"] for line in told][-1] == "SessionEnded"
    os.close(read)


def test_the_window_and_the_keys_are_those_of_who_is_attached(box: Box) -> None:
    (box.workspace / "sizes.py").write_text(SIZES)
    started(box, "w", f"exec {PYTHON} sizes.py")
    with box.terminal("attach", "w", rows=31, columns=101) as first:
        first.expect("here")
        first.expect("31 101")
        first.resize(33, 103)
        first.expect("33 103")
        with box.terminal("attach", "w", rows=35, columns=105) as second:
            second.expect("35 105")
            first.expect("another terminal is attached now")
            assert first.wait() == 0
            second.send("done\r")
            assert second.wait() == 0


def test_an_end_that_nobody_saw_is_shown_once(box: Box) -> None:
    started(box, "b", "echo the end; exit 3")
    done = box.run("attach", "b")
    assert (done.returncode, done.stdout.splitlines()[:1]) == (3, ["the end"]), done
    assert box.run("attach", "b").returncode == 78
    assert [*(box.state / "detached").iterdir()] == []


def test_stop_ends_it_and_waits(box: Box) -> None:
    started(box, "s", "trap 'echo asked; exit 5' TERM; echo here; sleep 1000 & wait")
    with box.terminal("attach", "s") as terminal:
        terminal.expect("here")
        assert box.run("stop", "s").returncode == 0
        terminal.expect("asked")
        assert terminal.wait() == 5
    assert "no session is running" in box.run("ps").stdout
    assert box.run("stop", "s").returncode == 78


def test_a_policy_that_is_wrong_is_told_at_the_start(box: Box) -> None:
    (box.workspace / ".membrane.yaml").write_text("allow: [project.example]\n")
    done = box.run("start", "p", "--", "true")
    assert done.returncode == 78 and "is not approved" in done.stderr, done
    assert not door(box, "p").exists()


def test_only_the_caller_connects_and_no_sandbox_does(box: Box) -> None:
    started(box, "c", "echo here; read x")
    path = door(box, "c")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert box.outside(PYTHON, "-c", CLIENT, str(path)).stdout == "attached\n"
    inside = box.run("--view=host", "--", PYTHON, "-c", CLIENT, str(path))
    assert inside.stdout.startswith("refused"), inside
    # Also where it sees the socket: another user namespace, the same user.
    other = box.outside("unshare", "-U", PYTHON, "-c", CLIENT, str(path))
    assert other.stdout.startswith("refused"), other
    assert box.run("stop", "c").returncode == 0


@pytest.mark.as_root
def test_another_user_is_refused_whatever_the_modes_are(box: Box) -> None:
    started(box, "c", "echo here; read x")
    path = door(box, "c")
    for place in (path, path.parent):
        place.chmod(0o777)
    as_other = ("setpriv", "--reuid", "65534", "--clear-groups", PYTHON, "-I", "-c", CLIENT, path.name)
    other = box.outside(*as_other, cwd=path.parent)  # what is above it is private as well
    assert other.stdout.startswith("refused") and "Permission denied" not in other.stdout, other
    assert box.outside(PYTHON, "-c", CLIENT, str(path)).stdout == "attached\n"
    assert box.run("stop", "c").returncode == 0


def test_with_its_keeper_the_session_ends(box: Box) -> None:
    started(box, "k", "echo here; sleep 1000")
    session = box.run("ps", "--json").stdout
    assert "sleep 1000" in session
    [supervisor] = [row["pid"] for row in json.loads(session)["sessions"]]
    parent = int(Path(f"/proc/{supervisor}/stat").read_text().rpartition(")")[2].split()[1])
    watched = os.pidfd_open(supervisor)
    os.kill(parent, signal.SIGKILL)
    assert select.select([watched], [], [], 60)[0]
    os.close(watched)
    assert "no session is running" in box.run("ps").stdout
    gone = box.run("attach", "k")
    assert gone.returncode == 125 and "it was killed" in gone.stderr, gone


def test_output_waits_for_nobody(box: Box) -> None:
    """A client that takes nothing is let go of, and the command goes on."""
    fifo = box.workspace / "finished"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    started(box, "o", "echo here; read x; yes | head -c 5000000 >/dev/tty; echo done > finished; read x")
    slow = box.world.popen(
        [PYTHON, "-c", SLOW, str(door(box, "o"))], cwd=box.workspace, env=box.environment(), stdin=subprocess.PIPE
    )
    assert select.select([reader], [], [], 60)[0]
    assert os.read(reader, 99) == b"done\n"
    os.close(reader)
    slow.communicate(b"", timeout=60)
    assert box.run("stop", "o").returncode == 0


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    before = children()
    yield
    assert not wait_until_gone(before)
