"""Waiting for descriptors, those above 1023 as well."""

from __future__ import annotations

import fcntl
import os
import resource
import select
from collections.abc import Iterator

import pytest

from membrane.host.ready import ready


@pytest.fixture(params=[3, 1100], ids=["low", "above 1023"])
def pipe(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    """A pipe whose numbers are at least the parameter."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2048)), hard))
    first = os.pipe2(os.O_NONBLOCK)
    ends = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, request.param) for fd in first]
    for fd in first:
        os.close(fd)
    yield ends[0], ends[1]
    for fd in ends:
        try:
            os.close(fd)
        except OSError:
            pass  # the test closed it
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_can_be_read_and_written(pipe: tuple[int, int]) -> None:
    read, write = pipe
    assert ready((read,), (write,)) == (set(), {write})
    os.write(write, b"x")
    assert ready((read,), (write,)) == ({read}, {write})
    assert ready((), seconds=0) == (set(), set())


def test_the_time_is_over(pipe: tuple[int, int]) -> None:
    assert ready((pipe[0],), seconds=0) == (set(), set())


def test_an_end_can_be_read(pipe: tuple[int, int]) -> None:
    os.close(pipe[1])
    assert ready((pipe[0],)) == ({pipe[0]}, set())


def test_one_without_a_reader_can_be_written(pipe: tuple[int, int]) -> None:
    os.close(pipe[0])
    assert ready((), (pipe[1],)) == (set(), {pipe[1]})


def test_one_descriptor_in_both(pipe: tuple[int, int]) -> None:
    assert ready((pipe[1],), (pipe[1],)) == (set(), {pipe[1]})


def test_select_takes_no_such_number() -> None:
    with pytest.raises(ValueError, match="out of range"):
        select.select([1100], [], [], 0)


def test_where_no_descriptor_is_allowed_any_more() -> None:
    """A command of the same pid namespace can set that for each process of its user (prlimit(2))."""
    read, write = os.pipe2(os.O_CLOEXEC)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    poll = select.poll()
    poll.register(read, select.POLLIN)
    os.write(write, b"x")
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(OSError, match="Invalid argument"):
            poll.poll(0)
        assert ready((read,), (write,)) == ({read}, {write})
        assert ready((write,), seconds=0) == (set(), set())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(read)
        os.close(write)
