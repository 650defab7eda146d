"""How messages travel: datagrams with descriptors, long ones as files in memory, and what a peer may not do."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator

import pytest

from membrane.errors import HostError
from membrane.host import channel
from membrane.host import messages as m
from membrane.host.channel import Channel
from membrane.host.start import Job, Late
from membrane.messages import Failure, Malformed, Message, Table
from membrane.plan.model import Mask


@contextlib.contextmanager
def ends(sends: Table, takes: Table) -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = channel.pair(sends, takes)
    with contextlib.closing(ours), contextlib.closing(theirs):
        yield ours, theirs


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("size", [0, 5, channel.INLINE, 1 << 20])
def test_a_message_of_any_length_reaches_who_trusts_the_sender(size: int) -> None:
    with ends(m.TO_INSIDE, m.FROM_INSIDE) as (ours, theirs), open(os.devnull, "rb") as null:
        before = descriptors()
        job = Job(("a" * size,), (("A", "\udcff"),), "/", 0o22)
        ours.send(m.RunJob(job, *(null.fileno(),) * 3))
        got = theirs.receive()
        assert isinstance(got, m.RunJob) and got.job == job
        for fd in (got.stdin, got.stdout, got.stderr):
            assert os.path.samestat(os.fstat(fd), os.fstat(null.fileno())) and not os.get_inheritable(fd)
            os.close(fd)
        assert descriptors() == before


def test_names_of_a_whole_tree_are_one_message() -> None:
    with ends(m.TO_LAUNCHER, m.FROM_LAUNCHER) as (ours, theirs):
        late = Late(tuple(Mask(f"/srv/app/{number:06}/.env", False) for number in range(3000)))
        ours.send(m.HideNames(late))
        assert theirs.receive() == m.HideNames(late)


def test_from_inside_nothing_is_longer_than_a_datagram() -> None:
    with ends(m.FROM_INSIDE, m.TO_INSIDE) as (inside, supervisor):
        with pytest.raises(OSError, match="from pid 1") as failed:
            inside.send(Failure(1, "a" * (1 << 16), "", ""))
        assert failed.value.errno == errno.EMSGSIZE
        # Past the sender's check, and as a file in memory, which the supervisor takes from nobody below it.
        memory = os.memfd_create("message", os.MFD_CLOEXEC)
        os.write(memory, m.FROM_INSIDE.encode(m.CommandExited(0))[0])
        before = descriptors()
        with socket.socket(fileno=os.dup(inside.fileno())) as plain:
            plain.send(b"\7" * ((1 << 16) + 1))
            socket.send_fds(plain, [b"\xff"], [memory])
        for why in ("longer than a datagram", "IndexError"):
            with pytest.raises(Malformed, match=why):
                supervisor.receive()
        assert descriptors() == before, "what came along is closed"
        os.close(memory)


@pytest.mark.parametrize(
    ("raw", "fds"),
    [(b"R0", 0), (b"\x01", 1), (b"\x00", 0), (b"\x00", 2), (b"\x04" + bytes(8) + b"\1", 0), (b"\x05", 1)],
)
def test_what_is_no_message_is_refused_and_its_descriptors_are_closed(raw: bytes, fds: int) -> None:
    with ends(m.FROM_INSIDE, m.TO_INSIDE) as (inside, supervisor):
        before = descriptors()
        with socket.socket(fileno=os.dup(inside.fileno())) as plain:
            socket.send_fds(plain, [raw], [0] * fds)
        with pytest.raises(Malformed, match="from pid 1 or a keeper to the supervisor"):
            supervisor.receive()
        assert descriptors() == before
        inside.send(m.CommandExited(7))  # the control
        assert supervisor.receive() == m.CommandExited(7)


SHORT = Table("of the test", Failure, longest=(1 << 16) + 1)


@pytest.mark.parametrize(
    ("size", "why"), [((1 << 16) + 1, "IndexError"), ((1 << 16) + 2, "65538 bytes are too many"), (0, "IndexError")]
)
def test_a_file_in_memory_is_read_up_to_what_the_table_allows(size: int, why: str) -> None:
    with ends(SHORT, SHORT) as (ours, theirs), socket.socket(fileno=os.dup(ours.fileno())) as plain:
        memory = os.memfd_create("message", os.MFD_CLOEXEC)
        os.write(memory, b"\x07" * size)
        before = descriptors()
        socket.send_fds(plain, [b"\xff"], [memory])
        with pytest.raises(Malformed, match=why):
            theirs.receive()
        assert descriptors() == before
        os.close(memory)


def test_what_is_no_file_in_memory_is_refused() -> None:
    read, write = os.pipe()
    with ends(SHORT, SHORT) as (ours, theirs), socket.socket(fileno=os.dup(ours.fileno())) as plain:
        before = descriptors()
        for fds, why in (([read], "Illegal seek"), ([], "IndexError")):
            socket.send_fds(plain, [b"\xff"], fds)
            with pytest.raises(Malformed, match=why):
                theirs.receive()
        assert descriptors() == before
    os.close(read)
    os.close(write)


def test_the_end_is_none_and_what_was_said_before_it_is_not_lost() -> None:
    with ends(m.FROM_INSIDE, m.TO_INSIDE) as (inside, supervisor):
        supervisor.send(m.Go())  # unread: the kernel tells of a reset first
        inside.send(Failure(1, "a", "b", "c"))
        inside.close()
        assert supervisor.receive() == Failure(1, "a", "b", "c")
        assert supervisor.receive() is None and supervisor.receive() is None
        with pytest.raises(BrokenPipeError):
            supervisor.send(m.Go())


def test_an_empty_datagram_is_the_end() -> None:
    with ends(m.FROM_INSIDE, m.TO_INSIDE) as (inside, supervisor):
        before = descriptors()
        with socket.socket(fileno=os.dup(inside.fileno())) as plain:
            socket.send_fds(plain, [b""], [0])
        assert supervisor.receive() is None and descriptors() == before


def test_the_kernel_says_who_sent_a_message() -> None:
    supervisor, inside = channel.named_pair(m.TO_INSIDE, m.FROM_INSIDE)
    with contextlib.closing(supervisor), contextlib.closing(inside):
        pid = os.fork()
        if pid == 0:
            inside.send(m.Ready(0, 0))
            os._exit(0)
        os.waitpid(pid, 0)
        got = supervisor.receive()
        assert isinstance(got, m.Ready) and got.listener is not None and supervisor.sender == pid
        os.close(got.listener)
        inside.send(m.Ready(13, None))
        assert supervisor.receive() == m.Ready(13, None) and supervisor.sender == os.getpid()
        supervisor.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        inside.send(m.JobStopped())
        assert supervisor.receive() == m.JobStopped() and supervisor.sender == 0


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PermissionError(1, "Operation not permitted", "/x"), Failure(1, "do it", "Operation not permitted", "/x")),
        (KeyError("x"), Failure(0, "do it", "KeyError: 'x'", "")),
        (OSError("odd"), Failure(0, "do it", "", "")),
        (ValueError("\udcff" * 90_000), Failure(0, "do it", ("ValueError: " + "\udcff" * 90_000)[:8192], "")),
    ],
)
def test_a_step_that_failed_is_told_whatever_its_length(error: Exception, told: Message) -> None:
    with ends(m.FROM_LAUNCHER, m.TO_LAUNCHER) as (launcher, supervisor):
        with pytest.raises(channel.LaunchFailed), channel.Step(launcher, "do it"):
            raise error
        assert supervisor.receive() == told


def test_a_receiver_without_descriptors_says_so() -> None:
    """In a process of its own: its limit is lowered."""
    pid = os.fork()
    if pid == 0:
        import resource

        status = 1
        os.closerange(3, 4096)  # what other tests of this worker hold is not counted
        try:
            with ends(m.FROM_LAUNCHER, m.TO_LAUNCHER) as (launcher, supervisor):
                launcher.send(m.NetworkSockets("tproxy", ("a",) * 9, (0,) * 9))
                before = descriptors()
                resource.setrlimit(resource.RLIMIT_NOFILE, (before + 3, 64))
                supervisor.receive()
        except HostError as error:
            # The pair is closed by now, and so is what came.
            status = 0 if "RLIMIT_NOFILE" in str(error) and descriptors() == before - 2 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
