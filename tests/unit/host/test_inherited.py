"""What a parent leaves in a process: closed streams, an ignored SIGCHLD, a mask, somebody else's ``/proc``."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from membrane.errors import HostError
from membrane.host import inherited

if TYPE_CHECKING:
    from pathlib import Path

SETTLE = "from membrane.host.inherited import settle; settle(); "


def settled(program: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """``program`` after ``settle``, in a process that ``before`` prepared by an exec of its own."""
    start = f"import os, signal, sys; {before}; os.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])"
    return subprocess.run(
        [sys.executable, "-c", start, program], check=False, capture_output=True, text=True, timeout=60
    )


CHILD = "import os; p = os.fork() or os._exit(7); print(os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]))"
IGNORED = "signal.signal(signal.SIGCHLD, signal.SIG_IGN)"


def test_the_status_of_a_child_is_kept_where_sigchld_was_ignored() -> None:
    control = settled(CHILD, IGNORED)
    assert "ChildProcessError" in control.stderr
    assert settled(SETTLE + CHILD, IGNORED).stdout == "7\n"


def test_a_handler_for_sigchld_is_left_alone() -> None:
    kept = signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    try:
        handler = signal.getsignal(signal.SIGCHLD)
        inherited.settle()
        assert signal.getsignal(signal.SIGCHLD) is handler
    finally:
        signal.signal(signal.SIGCHLD, kept)


def test_no_signal_stays_blocked() -> None:
    blocked = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGCHLD])"
    mask = "import signal; print(len(signal.pthread_sigmask(signal.SIG_BLOCK, ())))"
    assert settled(mask, blocked).stdout == "2\n"
    assert settled(SETTLE + mask, blocked).stdout == "0\n"


def test_what_nohup_ignores_stays_ignored() -> None:
    shown = "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    assert settled(SETTLE + shown, "signal.signal(signal.SIGHUP, signal.SIG_IGN)").stdout == "True\n"


def test_a_closed_stream_becomes_the_null_device() -> None:
    """A descriptor that is opened later takes no number of a stream, and each stream can be asked about itself."""
    opened = "import os, sys; print(os.open('/', os.O_RDONLY), sys.stdin is None, file=sys.stderr)"
    control = settled(opened, "os.close(0)")
    assert control.stderr == "0 True\n"
    assert settled(SETTLE + opened, "os.close(0)").stderr == "3 False\n"
    asked = "import sys; print(sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty(), file=sys.stderr)"
    assert "AttributeError" in settled(asked, "os.close(1)").stderr
    assert settled(SETTLE + asked, "os.close(0); os.close(1)").stderr == "False False False\n"


def test_proc_of_another_pid_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    inherited.check_proc()
    monkeypatch.setattr(os, "getpid", lambda: 1_000_000_000)
    with pytest.raises(HostError, match="it shows another pid namespace") as caught:
        inherited.check_proc()
    assert "mount -t proc proc /proc" in caught.value.fix


def test_no_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "readlink", lambda _path: os.lstat(tmp_path / "gone"))
    monkeypatch.setattr(os.path, "isdir", lambda _path: False)
    with pytest.raises(HostError, match="cannot use /proc: No such file or directory"):
        inherited.check_proc()


@pytest.mark.parametrize(
    ("limit", "code", "advice"),
    [
        ("RLIMIT_NOFILE", errno.EMFILE, ("RLIMIT_NOFILE allows 5 open files in each process", "ulimit -n 1024")),
        ("RLIMIT_FSIZE", errno.EFBIG, ("RLIMIT_FSIZE allows files of at most 5 bytes", "ulimit -f unlimited")),
        (
            "RLIMIT_NPROC",
            errno.EAGAIN,
            ("RLIMIT_NPROC allows this user 5 processes and threads", "ulimit -u 1000"),
        ),
    ],
)
def test_a_limit_of_the_caller_is_named(limit: str, code: int, advice: tuple[str, str]) -> None:
    """Also when no module can be loaded any more; for another error the advice stays."""
    head, other = f"cannot do x: {os.strerror(code)}", ["cannot do x: No such file", "  try: membrane doctor"]
    program = f"""
import resource
from membrane.host.inherited import name_limit
resource.setrlimit(resource.{limit}, (5, 5))
print(name_limit({other!r}), name_limit({[head, other[1]]!r}), sep="\\n")
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60)
    limited = [head, f"  limit: {advice[0]}", f"  try: {advice[1]}"]
    assert (done.stdout.splitlines(), done.stderr) == ([repr(other), repr(limited)], "")


def test_a_process_more_is_no_matter_where_the_limit_is_far(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    lines = [f"cannot copy x: {os.strerror(errno.EAGAIN)}"]
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (inherited._threads() + 1000,) * 2)
    assert inherited.name_limit(lines) == lines
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (inherited._threads() + 1,) * 2)
    assert len(inherited.name_limit(lines)) == 3  # the control
