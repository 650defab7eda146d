"""What one command can do to the next one, or to its keeper; a persistent sandbox is the positive control."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from membrane import DEVNULL, PIPE, HostError, Policy, PolicyError, Sandbox

PYTHON = "/usr/bin/python3"
Maker = Callable[..., Sandbox]


@pytest.fixture
def make(workspace: Path, environ: dict[str, str]) -> Maker:
    def made(policy: Policy | None = None, **options: object) -> Sandbox:
        return Sandbox(policy or Policy(), workspace=workspace, environ=environ, **options)  # type: ignore[arg-type]

    return made


PLACES = f"/dev /dev/shm /run /run/lock /run/user /run/user/{os.getuid()} /tmp /var/tmp"
PLANT = f"for place in {PLACES}; do echo evil > $place/planted && echo $place; done 2> /dev/null"
LINKS = """cd /dev && for name in stdin fd ptmx; do ln -sfn /etc/passwd $name; done
mv /run/lock /run/gone; ln -s /etc /run/lock"""
LOOK = f"""for place in {PLACES}; do cat $place/planted; done 2> /dev/null
readlink /dev/stdin /dev/fd /dev/ptmx; ls -d /run/*"""


def test_no_writable_place_of_the_view_is_shared(make: Maker) -> None:
    """Names and links that one command leaves in /dev and /run would be the next one's."""
    with make() as sandbox:
        before = sandbox.shell(LOOK).stdout
        planted = sandbox.shell(PLANT).stdout.split()
        sandbox.shell(LINKS)
        for _ in range(3):  # the one that was made ready before is among them
            assert sandbox.shell(LOOK).stdout == before
        modes = sandbox.shell("stat -c '%a %n' /run /run/lock /dev/shm /tmp").stdout.split("\n")
    assert "evil" not in before and "/proc/self/fd/0" in before
    assert set(planted) == set(PLACES.split()) - {"/dev"}, "the scratch directories can be written"
    assert modes[:4] == ["755 /run", "1777 /run/lock", "1777 /dev/shm", "1777 /tmp"]
    with make(persistent=True) as sandbox:
        assert set(sandbox.shell(PLANT).stdout.split()) == set(PLACES.split())
        assert sandbox.shell(LOOK).stdout.count("evil") == len(PLACES.split())


def test_signals_of_a_terminal_reach_a_command(make: Maker) -> None:
    """The supervisor is deaf to them; what runs in it is not."""
    with make() as sandbox:
        status = sandbox.run(["cat", "/proc/self/status"]).stdout
        assert "\nSigIgn:\t0000000000000000\n" in status
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            with sandbox.popen(["/bin/sh", "-c", "echo here; exec sleep 600"], stdout=PIPE) as process:
                assert process.stdout is not None and process.stdout.readline() == b"here\n"
                process.send_signal(number)
                assert process.wait(60).signal == number


def test_a_fork_of_its_owner_is_told_that_the_sandbox_is_not_its_own(make: Maker) -> None:
    """There is no thread that would take the answer; and the end of the fork is not the end of the sandbox."""
    uses: dict[str, Callable[[Sandbox], object]] = {
        "run": lambda sandbox: sandbox.run(["true"]),
        "popen": lambda sandbox: sandbox.popen(["true"], stdin=DEVNULL),
        "stats": lambda sandbox: sandbox.stats(),
        "events": lambda sandbox: sandbox.events(),
        "update": lambda sandbox: sandbox.update(Policy()),
        "open": lambda sandbox: sandbox.open(),
    }
    with make() as sandbox:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            signal.alarm(60)
            for name, use in uses.items():
                try:
                    use(sandbox)
                except HostError as error:
                    told = "ok" if "fork" in str(error) else str(error)
                except BaseException as error:
                    told = repr(error)
                else:
                    told = "no error"
                os.write(write, f"{name}: {told}\n".encode())
            sandbox.close()
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as answers:
            assert answers.read().splitlines() == [f"{name}: ok" for name in uses]
        assert os.waitpid(pid, 0)[1] == 0
        assert sandbox.run(["true"]).exit_code == 0


@pytest.mark.parametrize("text", ["\ud800", "a\udfff", "\0", "a\0b"])
def test_text_that_has_no_octets_is_refused(make: Maker, text: str) -> None:
    with make() as sandbox:
        with pytest.raises(PolicyError):
            sandbox.run(["echo", text])
        with pytest.raises(PolicyError):
            sandbox.run(["true"], env={"NAME": text})
        with pytest.raises(PolicyError):
            sandbox.run(["true"], cwd=text)
        assert sandbox.run(["printf", "%s", "\udcff"]).stdout in ("\udcff", "\ufffd", b"\xff"), "bytes of a file name"


def test_a_keeper_with_no_descriptor_left_tells_the_true_status(make: Maker) -> None:
    """The keeper of a persistent sandbox has another number than 1, and the command's uid."""
    script = "import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (1, 1)); os._exit(7)"
    with make(persistent=True) as sandbox:
        assert sandbox.run([PYTHON, "-c", script]).exit_code == 7
        assert sandbox.run(["true"]).exit_code == 0


@pytest.mark.parametrize("persistent", [False, True])
def test_proc_of_a_command_tells_no_more_than_that_of_the_sandbox(make: Maker, persistent: bool) -> None:
    with make(persistent=persistent) as sandbox:
        told = sandbox.shell("cat /proc/keys /proc/cmdline; wc -l < /proc/self/status; ls -d /proc/1").stdout.split()
        assert told[0].isdigit() and told[1] == "/proc/1"
    assert Path("/proc/cmdline").read_text()
