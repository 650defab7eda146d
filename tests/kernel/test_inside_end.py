"""The end of a sandbox without namespaces: whichever process of ours is killed, and however the command forks."""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from inside_world import PRELUDE, World

from membrane.host import inside, landlock
from started import Started

pytestmark = [pytest.mark.needs_kernel("landlock"), pytest.mark.needs_kernel("landlock without TCP")]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def test_nothing_outlives_the_run(world: World) -> None:
    mark = f"{os.getpid()}{world.path.stat().st_ino}"
    script = f"setsid sleep 1000{mark} & (setsid sh -c 'sleep 2000{mark} & sleep 3000{mark}' &); exit 5"
    done = world.membrane("sh", "-c", script)
    assert done.returncode == 5, done.stderr
    lines = [Path(f"/proc/{pid}/cmdline") for pid in os.listdir("/proc") if pid.isdigit()]
    assert not [path for path in lines if path.exists() and mark.encode() in _content(path)]
    assert not list(Path("/tmp").glob(".membrane-*")) or not os.listdir(world.home / ".membrane" / "run")


STAYS = """
import signal, time
def named(word): check(L.prctl(15, (W["mark"] + word).encode(), 0, 0, 0))
def thread():  # the first thread ends, another one stays: it is shown as a zombie, and lives
    threading.Thread(target=lambda: time.sleep(1000), daemon=True).start()
    L.syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
def silent():  # a child that tells nobody of its end (clone(2) without SIGCHLD)
    if check(L.syscall({"x86_64": 56, "aarch64": 220}[os.uname().machine], 0, 0, 0, 0, 0)) == 0:
        time.sleep(1000)
    os._exit(0)
def reaper():  # what the grandchild leaves becomes its own
    check(L.prctl(36, 1, 0, 0, 0))
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
    time.sleep(1000)
def stopped(): os.kill(os.getpid(), signal.SIGSTOP)
for stays in (thread, silent, reaper, stopped):
    if os.fork() == 0:
        os.setsid()
        named(stays.__name__[:6])
        for fd in (0, 1, 2): os.close(fd)
        stays()
def there():  # (name, state, pid, parent) of each
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try: name, _, rest = open("/proc/%s/stat" % pid).read().partition("(")[2].rpartition(") ")
        except OSError: continue
        if name.startswith(W["mark"]):
            yield name[len(W["mark"]):], rest[0], int(pid), int(rest.split()[1])
def all_as_they_are_to_be():
    found, own = [*there()], os.getpid()
    def some(name, test): return any(test(*rest) for word, *rest in found if word == name)
    reapers = {pid for word, state, pid, parent in found if word == "reaper" and parent == own}
    return (some("thread", lambda state, pid, parent: state == "Z")
        and some("silent", lambda state, pid, parent: state == "Z" and parent == own)  # its child is adopted
        and some("silent", lambda state, pid, parent: state != "Z" and parent != own)
        and some("reaper", lambda state, pid, parent: state == "Z" and parent in reapers)  # and so is its child's
        and some("reaper", lambda state, pid, parent: state != "Z" and parent in reapers)
        and some("stoppe", lambda state, pid, parent: state == "T"))
until = time.monotonic() + 50
while not all_as_they_are_to_be():
    assert time.monotonic() < until, [*there()]
    time.sleep(0.01)
print(os.getppid(), flush=True)
if W["alone"]: time.sleep(1000)
"""


def _marked(mark: str) -> list[str]:
    """The names of the processes that begin with a mark and live: some thread of each is no zombie."""
    out = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        name, _, rest = _content(Path(f"/proc/{pid}/stat")).rpartition(b") ")
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue  # it has ended
        if f"({mark}".encode() in name and (rest[:1] not in b"ZX" or len(threads) > 1):
            out.append(name.partition(b"(")[2].decode())
    return out


@pytest.mark.parametrize("killed", [False, True], ids=["its end", "the keeper killed"])
def test_no_process_outlives_the_run_however_it_is_made(world: World, killed: bool) -> None:
    mark = f"m{os.getpid() % 100000}{'ka'[killed]}"
    world.facts.update(mark=mark, alone=killed)
    argv = [sys.executable, "-m", "membrane", "-q", "--backend", "landlock", "--env", "W", "--"]
    argv += ["/usr/bin/python3", "-c", PRELUDE + STAYS]
    pipe = subprocess.PIPE
    with Started(argv, cwd=world.workspace, env=world.environment, stdout=pipe, stderr=pipe) as run:
        assert run.stdout is not None
        keeper = int(run.stdout.readline())
        if killed:
            assert {name[len(mark) :] for name in _marked(mark)} == {"thread", "silent", "reaper", "stoppe"}
            os.kill(keeper, signal.SIGKILL)
        _out, said = run.communicate(timeout=60)
    assert run.returncode == (125 if killed else 0), said
    assert not _marked(mark)


def _named(mark: str) -> list[str]:
    """The processes that begin with a mark, also those that have ended and are not reaped."""
    names = [_content(Path(f"/proc/{pid}/stat")) for pid in os.listdir("/proc") if pid.isdigit()]
    return [name.decode() for name in names if f"({mark}".encode() in name]


@contextmanager
def running(argv: list[str], world: World | None = None, **streams: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is killed at the end, also when a test has failed."""
    where: dict[str, Any] = {"cwd": world.workspace, "env": world.environment} if world else {}
    with subprocess.Popen(argv, **where, **streams) as run:
        try:
            yield run
        finally:
            run.kill()


@contextmanager
def adopting() -> Iterator[None]:
    """What a run leaves becomes a child of this process."""
    prctl = ctypes.CDLL(None).prctl
    adopts = ctypes.c_int()
    assert prctl(37, ctypes.byref(adopts), 0, 0, 0) == 0  # PR_GET_CHILD_SUBREAPER, <linux/prctl.h>
    assert prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER
    try:
        yield
    finally:
        assert prctl(36, adopts, 0, 0, 0) == 0


CHAIN = """
import time
if os.fork(): os._exit(0)
os.setsid()
check(L.prctl(15, W["mark"].encode(), 0, 0, 0))
for fd in (0, 1, 2): os.close(fd)
end = time.monotonic() + 60
for _ in range(32):  # 32 of them, each of which is another process of a session of its own every moment
    if os.fork() == 0:
        while time.monotonic() < end:
            if os.fork(): os._exit(0)
            os.setsid()
        os._exit(0)
"""


def test_processes_that_fork_while_they_are_killed_are_ended(world: World) -> None:
    """None of them, not one that has ended, is left to whoever adopts what the run leaves."""
    mark = f"c{os.getpid()}"
    world.facts["mark"] = mark
    with adopting(), running(["sleep", "1000"]) as beside:  # whom the signal to all must not reach
        done = world.membrane("/usr/bin/python3", "-c", PRELUDE + CHAIN)
        assert beside.poll() is None
        assert done.returncode == 0 and not _named(mark), done


WITHOUT_END = """
import time
check(L.prctl(15, W["mark"].encode(), 0, 0, 0))
keeper = os.getppid()
if os.fork() == 0:
    os.setsid()
    for _ in range(4):  # chains: each is another process of a session of its own every moment
        if os.fork() == 0:
            for fd in (0, 1, 2): os.close(fd)
            end = time.monotonic() + 200  # longer than what a test waits for, should nobody end it
            while time.monotonic() < end:
                if os.fork(): os._exit(0)
                os.setsid()
            os._exit(0)
    print(keeper, os.environ["TMPDIR"], flush=True)
time.sleep(1000)
"""


def _all_have_ended(mark: str) -> None:
    """Wait for it: nobody who can be waited for has killed them; and reap those that this process has adopted."""
    end = time.monotonic() + 60
    while _named(mark):
        assert time.monotonic() < end, _named(mark)
        for pid in map(int, _content(Path(f"/proc/self/task/{os.getpid()}/children")).split()):
            if f"({mark}".encode() in _content(Path(f"/proc/{pid}/stat")):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)  # between two looks


ORDERS = ["keeper", "warden", "supervisor", "keeper supervisor", "warden supervisor", "warden keeper", "keeper warden"]
ORDERS += ["supervisor warden keeper", "keeper supervisor warden"]


@pytest.mark.parametrize("killed", ORDERS)
def test_chains_without_an_end_are_ended_whichever_of_our_processes_is_killed(world: World, killed: str) -> None:
    """None of them, not one that has ended, is left, and no directory."""
    if landlock.abi() < 6:
        return  # without the scope of signals they are found one by one, and are faster than that
    mark = f"e{os.getpid()}{killed[::7]}"[:15]
    world.facts["mark"] = mark
    argv = [sys.executable, "-m", "membrane", "-q", "--backend", "landlock", "--env", "W", "--"]
    argv += ["/usr/bin/python3", "-c", PRELUDE + WITHOUT_END]
    pipe = subprocess.PIPE
    # Beside it a process of the same user, whom the signal to all must not reach.
    with adopting(), running(["sleep", "1000"]) as beside, running(argv, world, stdout=pipe, stderr=pipe) as run:
        assert run.stdout is not None
        keeper, scratch = run.stdout.readline().decode().split()
        pids = {"keeper": int(keeper), "warden": _parent(int(keeper)), "supervisor": run.pid}
        handles = [os.pidfd_open(pid) for pid in pids.values()]
        assert _named(mark)
        children = _content(Path(f"/proc/{pids['warden']}/task/{pids['warden']}/children")).split()
        (stays,) = (Path(f"/proc/{int(pid)}") for pid in children if int(pid) != pids["keeper"])
        called = _content(stays / "comm"), _content(stays / "cmdline").rstrip(b"\0")
        assert called == (inside.STAYS + b"\n", inside.STAYS)  # no pattern finds it that finds the others
        for name in killed.split():
            os.kill(pids[name], signal.SIGKILL)
        _out, said = run.communicate(timeout=60)
        for handle in handles:
            assert select.select([handle], [], [], 60)[0], f"of {pids} one stays"
            os.close(handle)
        assert beside.poll() is None
        assert run.returncode == (-signal.SIGKILL if "supervisor" in killed else 125), said
        if all(name in killed for name in pids):  # what stays ends the command, and ``gc`` removes the directory
            _all_have_ended(mark)
            shutil.rmtree(Path(scratch).parent)
        assert not _named(mark)
        assert not Path(scratch).parent.exists()


def test_a_keeper_that_is_killed_leaves_no_inodes_beside_the_objects_of_a_repository(world: World) -> None:
    """They lie there where the workspace is on another mount than the sandbox's directory."""
    top = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        assert top.stat().st_dev != Path("/tmp").stat().st_dev
        world.workspace = top
        subprocess.run(["git", "init", "-q", "."], cwd=top, env=world.environment, check=True)
        (top / ".env").write_text("x")
        argv = [sys.executable, "-m", "membrane", "-q", "--backend", "landlock", "--"]
        argv += ["sh", "-c", "echo $PPID; exec sleep 1000"]
        with running(argv, world, stdout=subprocess.PIPE) as run:
            assert run.stdout is not None
            keeper = int(run.stdout.readline())
            assert [*(top / ".git/objects").glob("membrane-*")]
            os.kill(keeper, signal.SIGKILL)
            assert run.wait(60) == 125
            assert not [*(top / ".git/objects").glob("membrane-*")]
    finally:
        shutil.rmtree(top)


def test_a_keeper_and_a_warden_that_are_killed_leave_no_process(world: World) -> None:
    mark = f"b{os.getpid()}"
    world.facts.update(mark=mark, alone=True)
    argv = [sys.executable, "-m", "membrane", "-q", "--backend", "landlock", "--env", "W", "--"]
    argv += ["/usr/bin/python3", "-c", PRELUDE + STAYS]
    pipe = subprocess.PIPE
    with adopting(), running(argv, world, stdout=pipe, stderr=pipe) as run:
        assert run.stdout is not None
        keeper = int(run.stdout.readline())
        assert _marked(mark)
        for pid in (_parent(keeper), keeper):
            os.kill(pid, signal.SIGKILL)
        _out, said = run.communicate(timeout=60)
        assert run.returncode == 125, said
        assert not _named(mark)


def test_a_supervisor_that_is_killed_leaves_no_process_no_directory_and_no_reader(world: World) -> None:
    mark = f"{os.getpid()}{world.path.stat().st_ino}"
    script = f'echo "$PPID $TMPDIR"; (setsid sleep 1000{mark} &); exec sleep 2000{mark}'
    argv = [sys.executable, "-m", "membrane", "-q", "--backend", "landlock", "--", "sh", "-c", script]
    with Started(argv, cwd=world.workspace, env=world.environment, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        keeper, scratch = run.stdout.readline().decode().split()
        directory, handle = Path(scratch).parent, os.pidfd_open(_parent(int(keeper)))
        assert directory.name.startswith(".membrane-") and directory.is_dir()
        run.kill()
        assert select.select([handle], [], [], 60)[0], "the warden stays"
        os.close(handle)
        assert select.select([run.stdout], [], [], 60)[0], "a process holds stdout"
        assert not run.stdout.read()
    lines = [Path(f"/proc/{pid}/cmdline") for pid in os.listdir("/proc") if pid.isdigit()]
    assert not [path for path in lines if mark.encode() in _content(path)]
    assert not directory.exists()


def test_a_keeper_that_is_killed_ends_the_run_with_a_sentence_and_the_command(world: World) -> None:
    mark = f"{os.getpid()}{world.path.stat().st_ino}"
    script = f'echo "$PPID $TMPDIR"; (setsid sleep 4000{mark} &); exec sleep 5000{mark}'
    argv = [sys.executable, "-m", "membrane", "-q", "--backend", "landlock", "--", "sh", "-c", script]
    pipe = subprocess.PIPE
    with Started(argv, cwd=world.workspace, env=world.environment, stdout=pipe, stderr=pipe) as run:
        assert run.stdout is not None
        keeper, scratch = run.stdout.readline().decode().split()
        os.kill(int(keeper), signal.SIGKILL)
        _out, said = run.communicate(timeout=60)
    assert run.returncode == 125, said
    assert b"the keeper of the command was killed" in said
    lines = [Path(f"/proc/{pid}/cmdline") for pid in os.listdir("/proc") if pid.isdigit()]
    assert not [path for path in lines if mark.encode() in _content(path)]
    assert not Path(scratch).parent.exists()


def test_what_a_killed_supervisor_warden_and_keeper_leave_is_collected(world: World) -> None:
    subprocess.run(["git", "init", "-q", "."], cwd=world.workspace, env=world.environment, check=True)
    script = 'echo "$PPID $TMPDIR"; exec sleep 1000'
    argv = [sys.executable, "-m", "membrane", "-q", "--backend", "landlock", "--", "sh", "-c", script]
    with Started(argv, cwd=world.workspace, env=world.environment, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        keeper, scratch = run.stdout.readline().decode().split()
        handle = os.pidfd_open(int(keeper))
        os.kill(run.pid, signal.SIGSTOP)  # so that it does not end what these leave
        os.kill(_parent(int(keeper)), signal.SIGSTOP)
        for pid in (int(keeper), _parent(int(keeper))):
            os.kill(pid, signal.SIGKILL)
        assert select.select([handle], [], [], 60)[0]
        run.kill()
        os.close(handle)
        directory = Path(scratch).parent
        assert select.select([run.stdout], [], [], 60)[0] and not run.stdout.read()  # the command has ended
    assert directory.is_dir()
    gc = [sys.executable, "-m", "membrane", "gc"]
    done = subprocess.run(gc, env=world.environment, capture_output=True, text=True, timeout=60)  # noqa: PLW1510
    assert f"removed directory {directory}" in done.stdout, done
    assert not directory.exists()


def _parent(pid: int) -> int:
    return int(_content(Path(f"/proc/{pid}/stat")).rpartition(b") ")[2].split()[1])


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_supervisor_that_is_killed_leaves_no_directory(world: World) -> None:
    argv = [sys.executable, "-m", "membrane", "-q", "--backend", "landlock", "--", "sh", "-c", "echo $TMPDIR; exec cat"]
    run = subprocess.Popen(
        argv, cwd=world.workspace, env=world.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    made = Path(run.stdout.readline().strip()).parent
    assert made.name.startswith(".membrane-") and made.is_dir()
    run.kill()
    run.wait()
    for _ in range(3000):
        if not made.exists():
            break
        threading.Event().wait(0.01)
    assert not made.exists()
    run.communicate()
