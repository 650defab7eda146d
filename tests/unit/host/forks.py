"""A function in a forked child, in namespaces of its own where it asks for them, and its answer here."""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from membrane.host import syscalls as sc


def forked(body: Callable[[], Any], flags: int = 0) -> Any:
    """What ``body`` returns in a child; ``flags``: of unshare(2), below a user namespace that keeps the ids."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(60)
            if flags:
                uid, gid = os.geteuid(), os.getegid()
                sc.unshare(sc.CLONE_NEWUSER | flags)
                rows = (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1"))
                for name, text in rows:
                    Path("/proc/self", name).write_text(text)
            answer = (True, body())
        except BaseException:
            answer = (False, traceback.format_exc())
        with open(writing, "wb") as pipe:
            pipe.write(pickle.dumps(answer))
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        data = pipe.read()
    status = os.waitpid(pid, 0)[1]
    assert data, f"it ended with wait status {status:#x}"
    done, answer = pickle.loads(data)
    assert done, answer
    return answer


def ended(body: Callable[[], object]) -> tuple[int, str]:
    """The exit status of a child that does ``body`` and ends in it, and what it wrote to its standard error."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(60)
            os.dup2(writing, 2)
            body()
        finally:
            os._exit(99)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said
