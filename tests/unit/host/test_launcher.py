"""host.launcher: it decides nothing, holds nothing it does not need, and ends when no plan comes."""

from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Callable

import pytest
from forks import forked

from membrane.host import launcher as launching
from membrane.host import messages as m
from membrane.host.channel import Channel, LaunchFailed, named_pair
from membrane.host.launcher import launcher
from membrane.host.start import Start
from membrane.plan.build import build
from membrane.plan.model import HostFacts
from membrane.policy.model import Policy

pytestmark = pytest.mark.needs_kernel("user namespaces")


def started(body: Callable[[Channel, int], object]) -> object:
    """What ``body`` gets of a launcher: the supervisor's end of its channel, and its pid."""

    def supervisor() -> object:
        ours, theirs = named_pair(m.TO_LAUNCHER, m.FROM_LAUNCHER)
        inner, inner_theirs = named_pair(m.TO_INSIDE, m.FROM_INSIDE)
        parent = os.getpid()
        os.environ["SECRET"] = "in-the-environment"
        kept = os.open("/etc/passwd", os.O_RDONLY)
        os.set_inheritable(kept, True)
        pid = os.fork()
        if pid == 0:
            try:
                ours.close()
                inner.close()
                launcher(theirs, inner_theirs, parent)
            except LaunchFailed:
                os._exit(3)
            finally:
                os._exit(4)
        theirs.close()
        inner_theirs.close()
        try:
            return body(ours, pid)
        finally:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass

    return forked(supervisor)


def asleep(pid: int) -> None:
    """Until it waits for the plan: its network namespace is another one than ours."""
    own = os.readlink("/proc/self/ns/net")
    while os.readlink(f"/proc/{pid}/ns/net") == own:
        os.sched_yield()


def test_before_the_plan_it_has_left_the_network_and_let_go_of_all_else() -> None:
    def body(_channel: Channel, pid: int) -> tuple[bool, int, bool]:
        asleep(pid)
        with open(f"/proc/{pid}/environ", "rb") as file:
            secret = b"in-the-environment" in file.read()
        return secret, len(os.listdir(f"/proc/{pid}/fd")), "/etc/passwd" in {
            os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")
        }  # fmt: skip

    secret, descriptors, passwd = started(body)  # type: ignore[misc]
    assert not secret and descriptors == 5 and not passwd  # its streams and two channels


def test_without_a_plan_it_ends() -> None:
    def body(channel: Channel, pid: int) -> int:
        channel.close()
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert started(body) == 3


def test_another_message_than_the_plan_ends_it() -> None:
    def body(channel: Channel, pid: int) -> int:
        channel.send(m.MapsWritten())
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert started(body) == 3


def test_it_says_which_step_failed_on_what() -> None:
    """The ids of the plan are not the caller's: the kernel refuses the map."""
    home = "/home/dev"
    facts = HostFacts(os.getuid() + 1, os.getgid(), "dev", False, home, f"{home}/.membrane", "/srv/app", "box", ())
    start = Start(build(Policy(), facts), ("true",), (False, False, False), "id", 0o22)

    def body(channel: Channel, pid: int) -> tuple[object, int]:
        channel.send(m.Begin(start))
        assert select.select([channel], [], [], 60)[0]
        return channel.receive(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    said, status = started(body)  # type: ignore[misc]
    assert status == 3 and type(said).__name__ == "Failure"
    assert said.step == "make a user namespace" and (said.target, said.errno) == ("/proc/self/uid_map", errno.EPERM)


@pytest.mark.parametrize(
    ("number", "times", "raised", "calls"),
    [
        (errno.EINVAL, 3, False, 4),
        (errno.EINVAL, launching.MOST_TRIES, True, launching.MOST_TRIES),
        (errno.ENOENT, 1, False, 1),
        (errno.EPERM, 1, True, 1),
    ],
)
def test_a_name_whose_mount_is_taken_away_in_this_moment_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch, number: int, times: int, raised: bool, calls: int
) -> None:
    asked: list[tuple[object, ...]] = []

    def operation(*words: object) -> None:
        asked.append(words)
        if len(asked) <= times:
            raise OSError(number, "open_tree")

    monkeypatch.setattr(launching, "workspace_operation", operation)
    if raised:
        with pytest.raises(OSError, match="open_tree"):
            launching.mask_name(object(), "ReadOnly", "/w/x")  # type: ignore[arg-type]
    else:
        launching.mask_name(object(), "ReadOnly", "/w/x")  # type: ignore[arg-type]
    assert len(asked) == calls and {words[1:3] for words in asked} == {("ReadOnly", "/w/x")}
