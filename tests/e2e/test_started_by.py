"""Runs by callers that leave odd things in their children: ignored and blocked signals, closed streams, many
descriptors, a ``/proc`` that is somebody else's."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from world.box import Box

PRELUDES = {
    "SIGCHLD is ignored": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "all signals are blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
    "stdin is closed": "os.close(0)",
    "above 1023": "resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]));"
    "[os.set_inheritable(os.open('/', os.O_RDONLY), True) for _ in range(1100)]",
}


@pytest.fixture(params=PRELUDES)
def prefix(request: pytest.FixtureRequest) -> list[str]:
    """Words that run the rest as a child of such a caller."""
    program = f"import os, resource, signal, sys; {PRELUDES[request.param]}; os.execv(sys.argv[1], sys.argv[1:])"
    return [sys.executable, "-c", program]


def test_a_run(box: Box, prefix: list[str]) -> None:
    done = box.outside(*prefix, *box.argv("--", "sh", "-c", "echo made > made; ls /proc/self/fd | wc -l; exit 7"))
    assert (done.returncode, done.stderr) == (7, ""), done
    assert int(done.stdout) == 4, "the caller's descriptors do not reach the command"
    assert (box.workspace / "made").read_text() == "made\n"


def test_a_started_session_is_joined_and_stopped(box: Box, prefix: list[str]) -> None:
    started = box.outside(*prefix, *box.argv("start", "odd", "--", "sleep", "600"))
    assert started.returncode == 0, started
    try:
        joined = box.outside(*prefix, *box.argv("exec", "@last", "--", "sh", "-c", "echo joined; exit 5"))
        assert (joined.returncode, joined.stdout) == (5, "joined\n"), joined
    finally:
        stopped = box.outside(*prefix, *box.argv("stop", "odd"))
    assert stopped.returncode == 0, stopped


def test_the_changes_of_a_review_without_an_stdout(box: Box) -> None:
    assert box.run("--review=odd", "--", "touch", "made").returncode == 0
    closed = 'exec "$@" >&-'
    done = box.outside("sh", "-c", closed, "sh", *box.argv("diff", "odd"))
    assert (done.returncode, done.stderr) == (0, ""), done
    done = box.outside("sh", "-c", closed, "sh", *box.argv("apply", "odd"))
    assert (done.returncode, done.stderr) == (0, ""), done
    assert (box.workspace / "made").exists()


@pytest.mark.parametrize("stderr", ["/dev/full", "/dev/null"], ids=["full", "control"])
def test_a_summary_that_cannot_be_written(box: Box, stderr: str) -> None:
    """The status stays the command's: the refusals are on the record."""
    (box.workspace / ".env").write_text("SECRET=1\n")
    run = box.argv("--", "sh", "-c", "cat .env; exit 7")
    done = box.outside("sh", "-c", f'exec "$@" 2>{stderr}', "sh", *run)
    assert (done.returncode, done.stdout) == (7, ""), done
    shown = box.run("trace", "show", "@last", "--denied")
    assert ".env" in shown.stdout, shown


@pytest.mark.parametrize("options", [(), ("--backend", "landlock")], ids=["native", "landlock"])
def test_proc_of_another_pid_namespace(box: Box, options: tuple[str, ...]) -> None:
    """What is read back there would be of another process: a refusal that says what to do, with /proc of its own as
    the control."""
    unshare = ("unshare", "--user", "--map-root-user", "--pid", "--fork")
    run = box.argv(*options, "--no-trace", "--", "true")
    refused = box.outside(*unshare, *run)
    assert refused.returncode == 125, refused
    assert "membrane: cannot use /proc: it shows another pid namespace" in refused.stderr, refused
    assert "mount -t proc proc /proc" in refused.stderr
    control = box.outside(*unshare, "--mount-proc", *run)
    assert control.returncode == 0, control


@pytest.mark.as_root  # who may make such a /dev
def test_a_machine_without_a_tty_node(box: Box) -> None:
    """As in a small container: what is not outside is not inside, and the command runs."""
    nodes = "null zero random urandom"
    script = f"""
    mount -t tmpfs dev /mnt && for n in {nodes}; do touch /mnt/$n; mount --bind /dev/$n /mnt/$n; done
    mkdir /mnt/pts && mount --bind /dev/pts /mnt/pts && ln -s pts/ptmx /mnt/ptmx && mount --rbind /mnt /dev
    exec "$@"
    """
    check = "ls /dev/tty /dev/full; echo x > /dev/null; head -c 4 /dev/urandom | wc -c"
    command = box.argv("-q", "--", "sh", "-c", check)
    done = box.outside("unshare", "-m", "sh", "-euc", script, "sh", *command)
    assert (done.returncode, done.stdout) == (0, "4\n"), done
