"""What one command can do to the next one, or to its keeper; a persistent sandbox is the positive control."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from membrane import PIPE, Policy, Sandbox

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
