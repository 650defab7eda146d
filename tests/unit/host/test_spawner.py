"""host.spawner by itself: real namespaces, in which another child waits, and real commands without a view of their own.

Whole sandboxes of many commands are tests/library's and tests/e2e/test_exec.py's.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
from collections.abc import Callable, Iterator

import pytest

from membrane.host import messages as m
from membrane.host import spawner
from membrane.host import syscalls as sc
from membrane.host.channel import Channel, pair, run_child
from membrane.host.start import Job, Start
from membrane.messages import Failure
from membrane.plan.model import HardeningPlan, NetworkPlan, SandboxPlan
from membrane.policy.model import Limits

pytestmark = pytest.mark.needs_kernel("user namespaces")

LONG = 30  # seconds


def forked(body: Callable[[], object]) -> int:
    pid = os.fork()
    if not pid:
        try:
            body()
        finally:
            os._exit(1)
    return pid


class World:
    """Namespaces of a child that only waits, and a spawner of them in another child."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.channels: list[Channel] = []
        hold, self._let_go = os.pipe()
        ready, made = os.pipe()

        def sandbox() -> None:
            uid, gid = os.geteuid(), os.getegid()
            os.close(self._let_go)
            os.close(ready)
            sc.unshare(sc.CLONE_NEWUSER | sc.CLONE_NEWNS | sc.CLONE_NEWIPC | sc.CLONE_NEWUTS | sc.CLONE_NEWCGROUP)
            for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
            os.write(made, b"x")
            os.close(made)
            os.read(hold, 1)

        self.sandbox = forked(sandbox)
        self.pids.append(self.sandbox)
        os.close(hold)
        os.close(made)
        with open(ready, "rb") as file:
            assert file.read(1) == b"x"

    def spawn(self, of: int) -> Channel:
        """The supervisor's end of a spawner that is to enter the namespaces of a process."""
        ours, theirs = pair(m.TO_SPAWNER, m.FROM_SPAWNER)
        plan = SandboxPlan(
            *("/", "/", (), NetworkPlan(), HardeningPlan(Limits(), ("/",), landlock=False), (), 0),
            *(os.geteuid(), os.getegid(), ()),
        )
        start = Start(plan, (), (False, False, False), "session", 0o22, commands="fresh")

        def body() -> None:
            ours.close()
            os.close(self._let_go)
            namespaces = {kind: os.open(f"/proc/{of}/ns/{kind}", os.O_RDONLY) for kind in spawner.KINDS}
            run_child(lambda: spawner.spawner(start, theirs, namespaces), theirs)

        self.spawner = forked(body)
        self.pids.append(self.spawner)
        theirs.close()
        return self._kept(ours)

    def command(self, channel: Channel) -> Channel:
        """The supervisor's end of a keeper whose command waits for its job."""
        ours, theirs = pair(m.TO_INSIDE, m.FROM_INSIDE)
        channel.send(m.ForkCommand(theirs.fileno(), ()))
        theirs.close()
        self._kept(ours)
        assert ours.receive() == m.Ready(0, None)
        return ours

    def _kept(self, channel: Channel) -> Channel:
        channel.socket.settimeout(LONG)
        self.channels.append(channel)
        return channel

    def ended(self, pid: int) -> int:
        """The exit status of a child; it is waited for."""
        self.pids.remove(pid)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def close(self) -> None:
        os.close(self._let_go)
        for channel in self.channels:
            channel.close()
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def run(channel: Channel, *argv: str, environment: tuple[tuple[str, str], ...] = ()) -> socket.socket:
    """Give a command its job; what it reads and writes."""
    ours, theirs = socket.socketpair()
    ours.settimeout(LONG)
    with theirs:
        fd = theirs.fileno()
        channel.send(m.RunJob(Job(argv, environment, "/", 0o22), fd, fd, fd))
    return ours


def is_inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False  # the one of the listing


def all_of(stream: socket.socket) -> bytes:
    data = b""
    with stream:
        while part := stream.recv(4096):
            data += part
    return data


def test_namespaces_that_can_not_be_entered_are_said(world: World) -> None:
    """One's own user namespace: EINVAL (setns(2))."""
    failed = world.spawn(os.getpid()).receive()
    assert isinstance(failed, Failure) and (failed.errno, failed.step) == (errno.EINVAL, "enter the sandbox")
    assert world.ended(world.spawner) == 1


def test_each_command_is_confined_and_by_itself(world: World) -> None:
    channel = world.spawn(world.sandbox)
    assert channel.receive() == m.Ready(0, None)
    first, second = world.command(channel), world.command(channel)
    show = 'echo $$; readlink /proc/self/ns/user; grep -E "^(NoNewPrivs|Seccomp|CapEff|CapPrm):" /proc/self/status'
    looks = [run(each, "/bin/sh", "-c", show, environment=(("A", "b"),)) for each in (first, second)]
    for each, look in zip((first, second), looks, strict=True):
        lines = all_of(look).decode().splitlines()
        assert lines[0] == "2"  # its keeper is pid 1 of a pid namespace of its own
        status = dict(line.split(":\t") for line in lines[2:])
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0
        assert lines[1] == os.readlink(f"/proc/{world.sandbox}/ns/user") != os.readlink("/proc/self/ns/user")
        assert each.receive() == m.CommandExited(0)


def test_no_descriptor_of_one_job_reaches_another(world: World) -> None:
    channel = world.spawn(world.sandbox)
    assert channel.receive() == m.Ready(0, None)
    first = world.command(channel)
    held = run(first, "/bin/cat")
    second = world.command(channel)
    names = set(map(int, all_of(run(second, "/bin/ls", "/proc/self/fd")).split()))
    # What the launcher lets go of before (this process may have inherited some) is not the spawner's.
    inherited = {int(name) for name in os.listdir("/proc/self/fd") if is_inheritable(int(name))}
    assert {0, 1, 2} < names and len(names - inherited - {0, 1, 2}) == 1  # the directory that ls reads
    held.close()
    assert first.receive() == m.CommandExited(0)


def test_the_end_of_the_channel_ends_the_spawner_after_its_keepers(world: World) -> None:
    channel = world.spawn(world.sandbox)
    assert channel.receive() == m.Ready(0, None)
    keeper = world.command(channel)
    stream = run(keeper, "/bin/cat")
    stream.sendall(b"x")
    assert stream.recv(1) == b"x"
    channel.close()
    os.kill(world.spawner, 0)
    assert os.waitpid(world.spawner, os.WNOHANG) == (0, 0)  # a command runs
    stream.close()
    assert keeper.receive() == m.CommandExited(0)
    keeper.close()
    assert world.ended(world.spawner) == 0


def test_keepers_that_do_not_end_are_waited_for_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawner, "LAST", 0.01)
    hold, let_go = os.pipe()
    wake, end = os.pipe()

    def keeper() -> None:
        os.close(let_go)
        os.read(hold, 1)

    pid = forked(keeper)
    try:
        spawner._wait_for_all(wake)  # comes back
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    finally:
        os.close(let_go)
        os.waitpid(pid, 0)
        for fd in (hold, wake, end):
            os.close(fd)
