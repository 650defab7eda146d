"""``membrane exec``: a further command in the sandbox of a session that runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from world.box import Box

FACTS = """
import json, os
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
names = ("NoNewPrivs", "Seccomp", "Seccomp_filters", "CapEff", "CapBnd", "CapPrm", "Uid", "Gid", "Groups")
facts = {name: " ".join(status[name].split()) for name in names}
facts |= {name: os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns") if "_" not in name}
facts["fds"] = [fd for fd in range(64) if os.path.exists(f"/proc/self/fd/{fd}")]
facts["environment"] = {name: value for name, value in os.environ.items() if name not in ("PWD", "_")}
facts["umask"] = os.umask(0)
print(json.dumps(facts), flush=True)
"""


@contextmanager
def running(box: Box, *options: str, script: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A session whose command prints what ``script`` does, then waits for the end of its input."""
    command = ["sh", "-c", f"{script}\necho; echo ready; exec cat"]
    with box.popen(*options, "--", *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        try:
            process.first = process.stdout.readline()  # type: ignore[attr-defined]
            while (line := process.stdout.readline()) != b"ready\n":
                assert line, "it ended early"
            yield process
        finally:
            process.stdin.close()
            process.stdout.close()
            process.wait(60)


def ask(box: Box, *words: str) -> str:
    done = box.run("exec", *words)
    assert done.returncode == 0, done
    return str(done.stdout)


def test_it_is_confined_as_the_command_is(box: Box) -> None:
    python = f"/usr/bin/python3 -c {shlex.quote(FACTS)}"
    with running(box, script=python) as process:
        first = json.loads(process.first)  # type: ignore[attr-defined]
        second = json.loads(ask(box, "@last", "--", "/usr/bin/python3", "-c", FACTS))
    assert first["fds"][:3] == second["fds"][:3] == [0, 1, 2] and len(second["fds"]) == len(first["fds"])
    assert first == second
    assert second["CapEff"] == second["CapBnd"] == "0" * 16 and second["Seccomp"] == "2"
    # The control: outside none of it is so.
    outside = json.loads(box.outside("/usr/bin/python3", "-c", FACTS).stdout)
    assert outside["Seccomp"] != "2" or outside["pid"] != second["pid"]
    assert not {outside[name] for name in ("user", "mnt", "pid", "net", "ipc", "uts")} & set(map(str, second.values()))


def test_rules_hold_and_the_record_has_it(box: Box) -> None:
    box.policy(json.dumps({"presets": [], "ignore": [".env"], "readonly": ["*.lock"]}))
    (box.workspace / ".env").write_text("SECRET=1\n")
    (box.workspace / "a.lock").write_text("x\n")
    script = (
        "cat .env; mkdir .vscode 2>/dev/null && echo made; echo x > a.lock && echo written; cat ~/.netrc && echo read;"
        "cat /root/.ssh/id_rsa ~/.ssh/id_rsa; echo hi > plain; curl -sS --max-time 5 http://example.com"
    )
    with running(box, f"--events={box.events_path}") as process:
        done = box.run("exec", "@last", "--", "sh", "-c", script)
        assert done.stdout == "", done
        assert process.poll() is None
    assert (box.workspace / "plain").read_text() == "hi\n" and not (box.workspace / ".vscode").exists()
    refused = json.dumps(box.events("AccessDenied"))
    assert all(name in refused for name in (".vscode", "a.lock", "example.com")), refused
    shown = box.run("trace", "show", "@last").stdout
    assert "ProcessStarted    mkdir .vscode" in shown and "ProcessStarted    curl" in shown, shown


def test_how_a_session_is_named(box: Box) -> None:
    with running(box):
        (session,) = [each["id"] for each in json.loads(box.run("ps", "--json").stdout)["sessions"]]
        for name in ("@last", session, session[:6], ".", str(box.workspace)):
            assert ask(box, name, "echo", "a", "-n") == "a -n\n"
        for name, why in (("nosuch", "no session that runs is"), (session[:3], "no session that runs is")):
            done = box.run("exec", name, "true")
            assert done.returncode == 78 and why in done.stderr, done
        with running(box):
            done = box.run("exec", ".", "true")
            assert done.returncode == 78 and "means several" in done.stderr
    assert box.run("exec", "@last", "true").returncode == 78
    done = box.run("exec")
    assert done.returncode == 2 and "needs a session" in done.stderr


def test_status_streams_directory_and_signals(box: Box) -> None:
    (box.workspace / "sub").mkdir()
    with running(box) as process:
        assert box.run("exec", "@last", "sh", "-c", "echo e >&2; exit 7").returncode == 7
        assert box.run("exec", "@last", "sh", "-c", "kill -9 $$").returncode == 128 + signal.SIGKILL
        done = box.run("exec", "@last", "nonesuch")
        assert done.returncode == 127 and "command not found" in done.stderr
        assert box.run("exec", "@last", "cat", input="through").stdout == "through"
        assert box.run("exec", "@last", "pwd", cwd=box.workspace / "sub").stdout == f"{box.workspace}/sub\n"
        elsewhere = box.run("exec", str(box.workspace), "pwd", cwd="/")
        assert elsewhere.stdout == f"{box.workspace}\n"
        with box.popen("exec", "@last", "sh", "-c", "echo go; exec sleep 1000", stdout=subprocess.PIPE) as joined:
            assert joined.stdout and joined.stdout.readline() == b"go\n"
            os.killpg(joined.pid, signal.SIGTERM)
            assert joined.wait(60) == 128 + signal.SIGTERM
        assert process.poll() is None


def test_it_ends_with_its_caller_and_with_the_session(box: Box) -> None:
    with running(box):
        script = "sleep 1000 & echo go; wait"
        with box.popen("exec", "@last", "sh", "-c", script, stdout=subprocess.PIPE) as joined:
            assert joined.stdout and joined.stdout.readline() == b"go\n"
            os.killpg(joined.pid, signal.SIGKILL)
            assert joined.stdout.read() == b""  # the command has let go of it as well
        with box.popen("exec", "@last", "sh", "-c", "echo go; exec sleep 1000", stdout=subprocess.PIPE) as joined:
            assert joined.stdout and joined.stdout.readline() == b"go\n"
            assert len(os.listdir(box.state / "api")) == 1
            (session,) = json.loads(box.run("ps", "--json").stdout)["sessions"]
            os.kill(session["pid"], signal.SIGTERM)
            assert joined.wait(60) == 128 + signal.SIGKILL
    assert os.listdir(box.state / "api") == []


@pytest.mark.needs_kernel("overlayfs in a user namespace")
def test_a_reviewed_one_is_joined_by_the_name_of_its_change_set(box: Box) -> None:
    with running(box, "--review=one", script="echo mine > file; mkdir .vscode") as process:
        assert ask(box, "one", "cat", "file") == "mine\n"
        assert ask(box, "one", "--", "sh", "-c", "echo two > .vscode/tasks.json; echo more >> file") == ""
        assert os.listdir(box.workspace) == [] and process.poll() is None
    done = box.run("exec", "one", "true")
    assert done.returncode == 78 and "no session works on the change set 'one'" in done.stderr
    names = box.run("diff", "one", "--name-status").stdout
    assert ".vscode/tasks.json" in names
    assert "+more" in box.run("diff", "one").stdout


PAIRS = """
import os
files = [os.open(name, os.O_RDWR | os.O_CREAT, 0o600) for name in ("first", "last")]
number = 0
while True:
    number += 1
    for file in files:
        os.pwrite(file, b"%020d" % number, 0)
    if number == 1:
        print("writes", flush=True)
"""


@pytest.mark.needs_kernel("overlayfs in a user namespace")
def test_a_checkpoint_is_of_one_moment_for_it_as_well(box: Box) -> None:
    """It writes one number to two files; they are never apart by more than one."""
    script = "i=0; while [ $i -lt 300 ]; do echo x > between$i; i=$((i + 1)); done"
    command = ("exec", "one", "--", "/usr/bin/python3", "-c", PAIRS)
    with running(box, "--review=one", script=script), box.popen(*command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout and writer.stdout.readline() == b"writes\n"
        for label in ("a", "b", "c"):
            done = box.run("checkpoint", "one", label)
            assert done.returncode == 0, done
        assert writer.poll() is None
        writer.kill()
    seen = []
    for label in ("a", "b", "c"):
        assert box.run("restore", "one", label).returncode == 0
        diff = box.run("diff", "one").stdout
        first, last = map(int, re.findall(r"^\+(\d{20})$", diff, re.MULTILINE))
        assert first - last in (0, 1), label
        seen.append(first)
    assert seen == sorted(set(seen))  # the control: it wrote all the time


def test_a_terminal(box: Box) -> None:
    with running(box):
        script = "for fd in 0 1 2; do test -t $fd && printf T; done; tty; stty size; read x; echo got-$x; exec sleep 99"
        with box.terminal("exec", "@last", "bash", "-c", script, rows=31, columns=97) as terminal:
            terminal.expect(r"TTT/dev/pts/\d+")
            terminal.expect("31 97")
            terminal.send("word\r")
            terminal.expect("got-word")
            terminal.send("\x03")
            assert terminal.wait() == 128 + signal.SIGINT
            assert terminal.attributes() == terminal.original
        with box.terminal("exec", "@last", env={"SHELL": "/bin/bash"}) as terminal:
            terminal.send("echo in-$((2+3)); exit 6\r")
            terminal.expect("in-5")
            assert terminal.wait() == 6


def test_control_z_stops_it_and_not_the_session(box: Box) -> None:
    with (
        running(box) as process,
        box.shell_terminal("bash", "--norc", "--noprofile", "-i", env={"PS1": "READY> "}) as terminal,
    ):
        terminal.expect("READY> ")
        terminal.send(shlex.join(box.argv("exec", "@last", "bash", "-c", "echo be''gun; read x; echo got-$x")) + "\r")
        terminal.expect("begun")
        terminal.send("\x1a")
        terminal.expect("Stopped")
        terminal.expect("READY> ")
        assert ask(box, "@last", "echo", "it goes on") == "it goes on\n"
        terminal.send("fg\r")
        terminal.expect("echo be")
        terminal.send("word\r")
        terminal.expect("got-word")
        terminal.expect("READY> ")
        terminal.send("exit\r")
        terminal.wait()
        assert process.poll() is None
