"""Process and seccomp cases of sandbox-runtime's own tests (pid-namespace-isolation, seccomp-filter, integration)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest
from srt_box import SrtBox, outcomes
from world import World

CASES = {
    "AF_UNIX is refused": 'python3 -c "import socket; socket.socket(socket.AF_UNIX)"',
    "AF_INET works": 'python3 -c "import socket; socket.socket(socket.AF_INET)"',
    "io_uring is refused": 'python3 -c "import ctypes, os; l = ctypes.CDLL(None, use_errno=True);'
    ' r = l.syscall(425, 4, 0); print(r, os.strerror(ctypes.get_errno()))"',
    "ptrace of pid 1": 'python3 -c "import ctypes; print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))"',
    "memory of pid 1": "head -c 1 /proc/1/mem",
    "few processes": "ls /proc | grep -c '^[0-9]'",
    "capabilities": "grep CapEff /proc/self/status",
    "umount /proc": "umount /proc",
    "mount": "mount -t tmpfs t /mnt",
    "unshare -U": "unshare -U true",
    "setuid copy": "cp /usr/bin/id ./copy && chmod u+s copy && ./copy -u; rm -f copy",
    "sudo": "sudo -n id || su -c id </dev/null",
    "mkfifo": "mkfifo p && test -p p",
    "link of passwd": "ln /etc/passwd here",
    "device node": "mknod dev c 1 3",
    "sysctl": 'v=$(cat /proc/sys/kernel/printk) && echo "$v" > /proc/sys/kernel/printk',
    "pipeline": "seq 5 | sort -r | head -1",
    "zsh or bash": "bash -c 'echo $BASH_VERSION' | grep -q .",
    "mktemp": "f=$(mktemp) && echo x > $f && cat $f",
    "orphans are reaped": "(sleep 0.05 &) ; exit 7",
    "own loopback": "python3 -c \"import socket; s = socket.create_server(('127.0.0.1', 0));"
    ' c = socket.create_connection(s.getsockname()); print(1)"',
    "socketpair": 'python3 -c "import socket; socket.socketpair()"',
    "multiprocessing": 'python3 -c "import multiprocessing as m; p = m.Process(target=print); p.start(); p.join();'
    ' raise SystemExit(p.exitcode)"',
    "sqlite": "python3 -c \"import sqlite3; c = sqlite3.connect('db'); c.execute('create table t (x)'); c.commit()\"",
    "git init and commit": "git init -q r && cd r && echo a > a && git add . && "
    "git -c user.name=a -c user.email=a@b commit -qm m && git status --short",
    "git add -A": "git init -q q && cd q && echo a > a && git add -A && git status --short",
}


@pytest.fixture(scope="module")
def seen(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[int, str]]]:
    yield outcomes(SrtBox(world, tmp_path_factory.mktemp("processes")), CASES)


@pytest.mark.parametrize(
    "case",
    [
        *("AF_UNIX is refused", "memory of pid 1", "umount /proc", "mount", "unshare -U", "sudo", "link of passwd"),
        *("device node", "sysctl"),
    ],
)
def test_refused(seen: dict[str, tuple[int, str]], case: str) -> None:
    assert seen[case][0] != 0, seen[case]


@pytest.mark.parametrize(
    "case",
    [
        *("AF_INET works", "mkfifo", "zsh or bash", "mktemp", "own loopback", "socketpair", "multiprocessing"),
        *("sqlite", "git init and commit", "git add -A"),
    ],
)
def test_works(seen: dict[str, tuple[int, str]], case: str) -> None:
    assert seen[case][0] == 0, seen[case]


def test_details(seen: dict[str, tuple[int, str]]) -> None:
    assert seen["io_uring is refused"][1].startswith("-1 ")
    assert seen["ptrace of pid 1"][1] == "-1\n"
    assert int(seen["few processes"][1]) < 20
    assert int(seen["capabilities"][1].split()[1], 16) == 0
    assert seen["pipeline"][1] == "5\n"
    assert seen["orphans are reaped"][0] == 7
    if os.getuid():
        assert seen["setuid copy"][1] != "0\n"


def test_git_sees_no_phantom_files(seen: dict[str, tuple[int, str]]) -> None:
    assert seen["git add -A"] == (0, "A  a\n")


def test_background_processes_die_with_the_command(box: SrtBox) -> None:
    marker = box.work / "marker"
    line = f"(while true; do date +%N > {marker}; sleep 0.05; done) & while ! test -s {marker}; do sleep 0.02; done"
    assert box.shell(line).returncode == 0
    before = marker.read_text()
    box.world.run(["sleep", "0.3"])
    assert marker.read_text() == before


def test_timeout_leaves_no_orphan(box: SrtBox) -> None:
    """``box`` looks for processes that are left."""
    done = box.world.run(
        ["timeout", "2", *box_argv(box), "-c", "sleep 60 & sleep 60"], cwd=box.work, env=box.environment()
    )
    assert done.returncode == 124


def box_argv(box: SrtBox) -> list[str]:
    from srt_box import srt_argv

    return srt_argv()


def test_killed_srt_leaves_nothing(box: SrtBox) -> None:
    """``box`` looks for processes and mounts that are left."""
    before = sorted(os.listdir(box.work))
    with box.popen("-s", str(box.settings_path), "-c", "echo up; exec sleep 60", stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"up\n"
        process.kill()
        process.wait()
    assert sorted(os.listdir(box.work)) == before


def test_stdin_reaches_the_command(box: SrtBox) -> None:
    assert box.srt("cat", input="through\n").stdout == "through\n"
