"""host.confine: what a process of ours can do before, and cannot after, as the kernel answers."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from membrane.host import confine, landlock

CHOWN = 1 << 0  # CAP_CHOWN


def in_child(body: Callable[[], Any]) -> Any:
    """What ``body`` returns in a forked child; what it gives up is the child's alone."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(read)
            try:
                answer = [True, body()]
            except BaseException:
                answer = [False, traceback.format_exc()]
            with os.fdopen(write, "w") as out:
                json.dump(answer, out)
        finally:
            os._exit(0)
    os.close(write)
    try:
        with os.fdopen(read) as file:
            done, answer = json.load(file)
    finally:
        os.waitpid(pid, 0)
    assert done, answer
    return answer


def outcome(action: Callable[[], object]) -> str:
    try:
        action()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"


def status() -> dict[str, str]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}


def capabilities(found: dict[str, str]) -> list[int]:
    return [int(found[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")]


def is_dumpable() -> bool:
    return bool(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))  # PR_GET_DUMPABLE


def test_nothing_is_kept() -> None:
    def body() -> Any:
        before = status(), is_dumpable()
        confine.give_up_privileges()
        return before, (status(), is_dumpable())

    (before, dumpable), (after, closed) = in_child(body)
    assert before["NoNewPrivs"] == "0" and dumpable  # the control
    assert after["NoNewPrivs"] == "1" and not closed
    inherited, permitted, effective, _bounding, ambient = capabilities(after)
    assert inherited == permitted == effective == ambient == 0
    bounding = capabilities(before)[3]
    # The bounding set can be dropped with CAP_SETPCAP only.
    assert capabilities(after)[3] == (0 if capabilities(before)[2] >> 8 & 1 else bounding)


@pytest.mark.as_root
def test_one_capability_of_root_is_kept_and_the_bounding_set_on_request() -> None:
    def body() -> Any:
        before = status()
        confine.give_up_privileges(CHOWN, bounding=False)
        return before, status()

    before, after = map(capabilities, in_child(body))
    assert after == [0, CHOWN, CHOWN, before[3], 0]


@pytest.mark.as_user
def test_an_equal_can_not_look_into_it() -> None:
    """/proc/PID/mem is opened as ptrace(2) would be."""

    def target(confined: bool) -> str:
        read, write = os.pipe()
        hold, let_go = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                os.close(read)
                os.close(let_go)
                if confined:
                    confine.give_up_privileges()
                os.write(write, b"x")
                os.read(hold, 1)
            finally:
                os._exit(0)
        os.close(write)
        os.close(hold)
        try:
            assert os.read(read, 1) == b"x"
            return outcome(lambda: os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY)))
        finally:
            os.close(let_go)
            os.close(read)
            os.waitpid(pid, 0)

    assert target(False) == "ok"
    assert target(True) == "EACCES"


@pytest.mark.needs_kernel("landlock")
def test_files_are_read_and_none_is_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    parent = os.getpid()

    def answers() -> dict[str, str]:
        def opened(path: str | Path, flags: int) -> str:
            return outcome(lambda: os.close(os.open(path, flags, 0o600)))

        return {
            "read": opened(tmp_path / "file", os.O_RDONLY),
            "write": opened(tmp_path / "file", os.O_WRONLY),
            "make": opened(tmp_path / "new", os.O_CREAT | os.O_WRONLY),
            "null": opened("/dev/null", os.O_WRONLY),
            "remove": outcome(lambda: os.unlink(tmp_path / "new")),
            "link": outcome(lambda: os.symlink("x", tmp_path / "link")),
        }

    def body() -> Any:
        before = answers()
        os.unlink(tmp_path / "link")
        (tmp_path / "new").touch()
        confine.give_up_privileges()  # landlock_restrict_self(2) wants no_new_privs
        confine.read_only_files()
        return before, answers(), outcome(lambda: os.kill(parent, 0))

    before, after, kill = in_child(body)
    assert set(before.values()) == {"ok"}
    assert after == {**before, "write": "EACCES", "make": "EACCES", "remove": "EACCES", "link": "EACCES"}
    assert kill == ("EPERM" if landlock.abi() >= 6 else "ok")  # LANDLOCK_SCOPE_SIGNAL, Linux 6.12
