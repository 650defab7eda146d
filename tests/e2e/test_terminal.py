"""A person at a terminal: job control, resize, signals from the keyboard, and the terminal given back as it was."""

from __future__ import annotations

import shlex
import signal
import time

import pytest
from world import PATIENCE, Terminal
from world.box import Box

IS_TERMINAL = "for fd in 0 1 2; do test -t $fd && printf T || printf F; done; echo"


def prompt(terminal: Terminal) -> None:
    terminal.expect(r"READY> ")


def shell(box: Box) -> Terminal:
    """An interactive shell outside, as a person has one."""
    terminal = box.shell_terminal("bash", "--norc", "--noprofile", "-i", env={"PS1": "READY> "})
    prompt(terminal)
    return terminal


def test_all_three_streams_are_a_terminal(box: Box) -> None:
    with box.terminal("--", "bash", "-c", IS_TERMINAL) as terminal:
        terminal.expect("TTT")
        assert terminal.wait() == 0


@pytest.mark.parametrize(
    ("redirection", "seen"),
    [("< /dev/null", "FTT"), ("> out", "TFT"), ("2> /dev/null", "TTF"), ("< /dev/null > out", "FFT")],
)
def test_each_stream_is_judged_alone(box: Box, redirection: str, seen: str) -> None:
    command = shlex.join(box.argv("--", "bash", "-c", f"{IS_TERMINAL}; {IS_TERMINAL} >&2"))
    with box.shell_terminal("bash", "-c", f"{command} {redirection}; echo; cat out; echo END $?") as terminal:
        terminal.expect(seen)
        terminal.wait()


def test_redirected_output_has_no_carriage_returns(box: Box) -> None:
    command = shlex.join(box.argv("--", "printf", r"a\nb\n"))
    with box.shell_terminal("bash", "-c", f"{command} > out") as terminal:
        assert terminal.wait() == 0
    assert (box.workspace / "out").read_bytes() == b"a\nb\n"


def test_the_terminal_inside_is_its_own(box: Box) -> None:
    """A device of the sandbox, so that TIOCSTI and friends cannot reach the caller's terminal."""
    with box.terminal("--", "bash", "-c", "tty; stty -a | head -n1; echo END") as terminal:
        name = terminal.expect(r"/dev/(pts/\d+|console|tty\S*)").group(0)
        terminal.expect("END")
        assert terminal.wait() == 0
    assert name


def test_control_c(box: Box) -> None:
    with box.terminal("--", "bash", "-c", "echo go; exec sleep 1000") as terminal:
        terminal.expect("go")
        terminal.send("\x03")
        assert terminal.wait() == 128 + signal.SIGINT


def test_control_c_goes_to_the_foreground_job_inside(box: Box) -> None:
    script = "trap 'echo caught' INT; sh -c 'echo go; exec sleep 1000'; echo after"
    with box.terminal("--", "bash", "-c", script) as terminal:
        terminal.expect("go")
        terminal.send("\x03")
        terminal.expect("caught")
        terminal.expect("after")
        assert terminal.wait() == 0


def test_control_backslash_and_end_of_file(box: Box) -> None:
    with box.terminal("--", "sh", "-c", "echo go; exec sleep 1000") as terminal:  # bash ignores SIGQUIT
        terminal.expect("go")
        terminal.send("\x1c")
        assert terminal.wait() == 128 + signal.SIGQUIT
    with box.terminal("--", "cat") as terminal:
        terminal.send("line\r")
        terminal.expect("line.*line")
        terminal.send("\x04")
        assert terminal.wait() == 0


def test_control_z_and_fg(box: Box) -> None:
    with shell(box) as terminal:
        command = shlex.join(box.argv("--", "bash", "-c", "echo be''gun; read x; echo got-$x"))
        terminal.send(f"{command}\r")
        terminal.expect("begun")
        terminal.send("\x1a")
        terminal.expect("Stopped")
        prompt(terminal)
        terminal.send("echo outer-$((40+2))\r")
        terminal.expect("outer-42")
        prompt(terminal)
        terminal.send("fg\r")
        terminal.expect("echo be")  # the job's command line: the shell has left its raw mode
        terminal.send("word\r")
        terminal.expect("got-word")
        prompt(terminal)
        terminal.send("exit\r")
        terminal.wait()


def test_job_control_inside(box: Box) -> None:
    """Control-Z inside an inner shell stops the inner job, not membrane."""
    with box.terminal("--", "bash", "--norc", "--noprofile", "-i", env={"PS1": "outside> "}) as terminal:
        terminal.expect(r"[$#>] ")
        terminal.send("PS1='inner> '\r")
        terminal.expect("inner> ")
        terminal.send("sh -c \"echo be''gun; exec sleep 1000\"\r")
        terminal.expect("begun")
        terminal.send("\x1a")
        terminal.expect("Stopped")
        terminal.send("kill -9 %1; while kill -0 %1; do :; done 2>/dev/null; echo still-$((1+1))\r")
        terminal.expect("still-2")
        terminal.send("exit 4\r")
        assert terminal.wait() == 4


def test_no_command_is_an_interactive_shell(box: Box) -> None:
    with box.terminal(env={"SHELL": "/bin/bash"}) as terminal:
        terminal.send("echo in-$((2+3)); exit 6\r")
        terminal.expect("in-5")
        assert terminal.wait() == 6


def test_size_and_resize(box: Box) -> None:
    script = "stty size; trap 'stty size; seen=1' WINCH; echo go; while [ -z $seen ]; do sleep 0.05; done; exit 7"
    with box.terminal("--", "bash", "-c", script, rows=31, columns=97) as terminal:
        terminal.expect("31 97")
        terminal.expect("go")
        terminal.resize(45, 120)
        terminal.expect("45 120")
        assert terminal.wait() == 7


@pytest.mark.parametrize("end", ["exit 0", "kill -9 $$", "exec sleep 1000"])
def test_the_terminal_is_given_back(box: Box, end: str) -> None:
    """Raw mode inside, then any end: the caller's settings are what they were."""
    with box.terminal("--", "bash", "-c", f"stty raw -echo; echo go; {end}") as terminal:
        terminal.expect("go")
        if end.startswith("exec"):
            terminal.process.terminate()
        terminal.wait()
        assert terminal.attributes() == terminal.original


@pytest.mark.parametrize("moment", [0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.15])
def test_control_c_at_a_bad_moment(box: Box, moment: float) -> None:
    """Early, late, while the run is being set up: it ends, says nothing wild, restores the terminal, leaves nothing."""
    with box.terminal("--", "sleep", "1000") as terminal:
        signal.sigtimedwait([], moment)  # the time is the experiment, not a synchronisation
        terminal.send("\x03")
        # A Control-C before anyone listens may be lost to no one; a person presses again, until it has ended.
        deadline = time.monotonic() + PATIENCE
        while terminal.process.poll() is None and time.monotonic() < deadline:
            signal.sigtimedwait([], 0.25)
            terminal.send("\x03")
        assert terminal.wait() != 0
        assert terminal.attributes() == terminal.original
        # A traceback of the interpreter's own start is beyond us, up to the program's first instruction (line 0, before
        # any line of it); one with a frame of ours is not.
        assert b'membrane"' not in terminal.seen.replace(b'membrane", line 0, in <module>', b"")
        assert b"membrane/" not in terminal.seen


def test_a_flood_does_not_lose_or_reorder(box: Box) -> None:
    with box.terminal("--", "seq", "1", "20000") as terminal:
        terminal.expect("\r\n20000\r\n")
        assert terminal.wait() == 0
        words = terminal.seen.split()
    assert words == [str(n).encode() for n in range(1, 20001)]


def test_hang_up(box: Box) -> None:
    """The window is closed: the command is told, and ends."""
    with box.terminal("--", "bash", "-c", "echo go; exec sleep 1000") as terminal:
        terminal.expect("go")
        terminal.process.send_signal(signal.SIGHUP)
        assert terminal.wait() == 128 + signal.SIGHUP
