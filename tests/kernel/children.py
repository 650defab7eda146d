"""Run a function in a forked child, in namespaces of its own, and bring its result back.

The child is single-threaded (unshare(2) of a user namespace needs that) and its answer is what the function
returned; what it raised is raised here.  Nothing of the caller's namespaces is touched.
"""

from __future__ import annotations

import errno
import os
import pickle
import select
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from typing import TypeVar

from membrane.host import syscalls as sc

T = TypeVar("T")


class ChildFailed(Exception):
    """The child's traceback, or how it died."""


def run(body: Callable[[], T], *, seconds: float = 60.0) -> T:
    """``body()`` in a forked child."""
    receive, send = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # fork beside pytest-xdist's threads: the child execs nothing
        pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            try:
                answer = pickle.dumps((True, body()))
            except BaseException:
                answer = pickle.dumps((False, traceback.format_exc()))
            with open(send, "wb") as pipe:
                pipe.write(answer)
        finally:
            os._exit(0)
    os.close(send)
    try:
        data = _read_all(receive, time.monotonic() + seconds)
    finally:
        os.close(receive)
        try:
            os.killpg(pid, signal.SIGKILL)  # the child and what it left behind
        except ProcessLookupError:
            pass
        status = os.waitpid(pid, 0)[1]
    if not data:
        raise ChildFailed(f"no answer; wait status {status:#x}")
    done, answer = pickle.loads(data)
    if not done:
        raise ChildFailed(answer)
    return answer


def _read_all(fd: int, end: float) -> bytes:
    data = b""
    while select.select([fd], [], [], max(0.0, end - time.monotonic()))[0]:
        part = os.read(fd, 65536)
        if not part:
            return data
        data += part
    return b""


def unshare(flags: int) -> None:
    """New namespaces below a new user namespace that maps the caller's ids to themselves: all capabilities in it."""
    uid, gid = os.geteuid(), os.getegid()
    sc.unshare(sc.CLONE_NEWUSER | flags)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def in_network(body: Callable[[], T]) -> T:
    """``body()`` in a new user and network namespace, with every capability over both."""

    def child() -> T:
        unshare(sc.CLONE_NEWNET)
        return body()

    return run(child)


def outcome(action: Callable[[], object]) -> str:
    """``ok``, or the name of the errno."""
    try:
        action()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "ok"


def timed(action: Callable[[], object]) -> tuple[str, bool]:
    """The outcome, and whether it took much less than a call that nobody answers."""
    start = time.monotonic()
    result = outcome(action)
    return result, time.monotonic() - start < 10.0
