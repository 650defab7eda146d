"""The supervisor's side of a launch."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from membrane.errors import HostError
from membrane.host import channel
from membrane.host.channel import Channel, Step
from membrane.host.launch import Launch
from membrane.host.messages import FROM_LAUNCHER, TO_LAUNCHER, Trees
from membrane.host.start import Start
from membrane.plan.build import build
from membrane.plan.model import HostFacts
from membrane.policy.model import Policy
from started import Started


def has_ended(launch: Launch, seconds: float) -> bool:
    pidfd = os.pidfd_open(launch.pid)
    try:
        return bool(select.select([pidfd], [], [], seconds)[0])
    finally:
        os.close(pidfd)


def test_an_error_before_the_plan_leaves_no_launcher() -> None:
    with pytest.raises(KeyError), Launch() as launch:
        assert not has_ended(launch, 0)
        raise KeyError
    with pytest.raises(ChildProcessError):
        os.waitpid(launch.pid, os.WNOHANG)
    assert launch.launcher.fileno() == launch.init.fileno() == -1


def test_a_launcher_without_a_plan_ends_silently_with_its_channel(capfd: pytest.CaptureFixture[str]) -> None:
    launch = Launch()
    launch.launcher.close()
    assert has_ended(launch, 20)
    assert os.waitstatus_to_exitcode(os.waitpid(launch.pid, 0)[1]) == 1
    launch.init.close()
    assert capfd.readouterr() == ("", "")


def test_signals_of_the_caller_s_terminal_are_not_the_launcher_s_from_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has left the session before it loads anything, which takes it 10 ms."""
    loads, go = os.pipe()

    class Slow:
        @staticmethod
        def find_spec(name: str, *_rest: object) -> None:
            if name == "membrane.host.launcher":
                os.write(go, b"x%d" % os.getsid(0))
                os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.delitem(sys.modules, "membrane.host.launcher", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Slow, *sys.meta_path])
    with contextlib.suppress(KeyError), Launch() as launch:
        assert select.select([loads], [], [], 60)[0]
        assert os.read(loads, 100) == b"x%d" % launch.pid
        raise KeyError
    os.close(loads)
    os.close(go)


@pytest.mark.parametrize("number", [n for n in channel.HELD_DURING_FORK if n not in (signal.SIGCONT, signal.SIGWINCH)])
@pytest.mark.parametrize("undo", [channel.default_signals, None])
def test_a_signal_to_the_group_that_a_child_has_left_is_not_its_own(
    number: int, undo: Callable[[], None] | None
) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_BLOCK, channel.HELD_DURING_FORK)
            os.kill(os.getpid(), number)
            os.setsid()
            if undo is not None:
                undo()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, channel.HELD_DURING_FORK)
        finally:
            os._exit(0)
    status = os.waitpid(pid, os.WUNTRACED)[1]
    if os.WIFSTOPPED(status):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert (status == 0) is (undo is not None or number == signal.SIGTSTP)  # an orphaned group is not stopped


@pytest.mark.parametrize("wait", [Launch.wait_ready, Launch.network_sockets])
def test_why_a_launcher_ended_early_is_told(monkeypatch: pytest.MonkeyPatch, wait: Callable[[Launch], object]) -> None:
    """Also when it did not read the plan: then the end of its channel is told first, and before the reason."""

    def refused(channel: Channel, _init: Channel, _supervisor: int) -> None:
        select.select([channel], [], [], 20)
        with Step(channel, "make a user namespace"):
            raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("membrane.host.launch._launch", refused)
    plan = build(
        Policy(), HostFacts(1000, 1000, "dev", False, "/home/dev", "/home/dev/.membrane", "/srv/app", "box", ())
    )
    with pytest.raises(HostError, match="make a user namespace: EPERM"), Launch() as launch:
        launch.begin(Start(plan, (), (False, False, False), "id", 0o22))
        assert has_ended(launch, 20)
        wait(launch)


@pytest.mark.as_user
def test_descriptors_in_flight_of_the_whole_user_are_named_as_what_they_are() -> None:
    """They count together (net/unix/scm.c, too_many_unix_fds); a process with CAP_SYS_RESOURCE is not counted."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            most = max(map(int, os.listdir("/proc/self/fd"))) + 8
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
            ours, _theirs = channel.pair(TO_LAUNCHER, FROM_LAUNCHER)
            for _ in range(most // 8 + 2):
                ours.send(Trees(tuple(range(8)), (0,) * 8))  # received by nobody
        except OSError as error:
            status = 0 if error.errno == errno.EMFILE and "RLIMIT_NOFILE" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_the_launcher_s_environment_and_arguments_cannot_be_read() -> None:
    """It lives as long as the sandbox does; what the caller was started with names hosts, paths and passwords."""
    program = (
        "import sys\n"
        "from membrane.host.launch import Launch\n"
        "try:\n"
        "    with Launch() as launch:\n"
        "        print(launch.pid, flush=True)\n"
        "        sys.stdin.read()\n"
        "        raise KeyError\n"
        "except KeyError:\n"
        "    pass\n"
    )
    environ = {"SECRET": "in-the-environment", "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, "-c", program, "in-the-arguments"]
    with Started(arguments, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        end = time.monotonic() + 60
        # Its user namespace is made right after; nothing else can be waited for.
        while os.readlink(f"/proc/{pid}/ns/user") == os.readlink("/proc/self/ns/user"):
            assert time.monotonic() < end
            time.sleep(0.001)
        read = {
            (who, name): Path(f"/proc/{who}/{name}").read_bytes()
            for who in (process.pid, pid)
            for name in ("environ", "cmdline")
        }
        process.communicate("")
    assert b"in-the-environment" in read[process.pid, "environ"], "the control: its parent's can be read"
    assert b"in-the-arguments" in read[process.pid, "cmdline"]
    assert read[pid, "environ"] and not read[pid, "environ"].strip(b"\0")
    assert read[pid, "cmdline"].strip(b"\0") == b"membrane"
    assert process.returncode == 0
