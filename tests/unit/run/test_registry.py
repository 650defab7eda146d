"""Records of sessions: the lock is the only proof of life, and nothing in the directory can mislead a reader."""

from __future__ import annotations

import errno
import fcntl
import marshal
import os
import resource
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from membrane.errors import HostError
from membrane.run import registry
from membrane.run.registry import Run, SessionRecord, collect_garbage, list_sessions, make_private


def record(name: str = "a1", started: float = 1.0) -> SessionRecord:
    return SessionRecord(name, os.getpid(), started, "/srv/app", ("curl", "x"), "network", 0, 0, 0)


@pytest.fixture
def state(tmp_path: Path) -> str:
    return str(tmp_path / "state")


@pytest.fixture
def child() -> Iterator[Callable[[Callable[[], None]], int]]:
    """Fork children that do something, tell that it is done, and then wait to be killed."""
    pids: list[int] = []

    def fork(body: Callable[[], None]) -> int:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.close(read)
                body()
                os.write(write, b"x")
                signal.pause()
                status = 0
            finally:
                os._exit(status)
        os.close(write)
        pids.append(pid)
        assert os.read(read, 1) == b"x", "the child failed"
        os.close(read)
        return pid

    yield fork
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def names(state: str) -> list[str]:
    return sorted(os.listdir(os.path.join(state, "run")))


def test_a_session_is_listed_while_it_lives_and_leaves_nothing(state: str) -> None:
    run = Run(state, record())
    assert list_sessions(state) == [record()]
    assert stat.S_IMODE(os.stat(run.path).st_mode) == 0o600
    run.close()
    assert list_sessions(state) == []
    assert names(state) == []


def test_a_session_killed_with_sigkill_is_dead_at_once(state: str, child: Callable[[Callable[[], None]], int]) -> None:
    pid = child(lambda: Run(state, record()) and None)
    (alive,) = list_sessions(state)
    assert alive.alive and alive.pid == pid
    assert collect_garbage(state) == []  # a living session is never touched
    end(pid)
    (dead,) = list_sessions(state)
    assert not dead.alive
    assert collect_garbage(state) == ["session record a1 (curl in /srv/app)"]
    assert names(state) == []
    assert collect_garbage(state) == []


def test_pid_of_a_living_process_proves_nothing(state: str) -> None:
    """A record that names our own, living pid but that nobody has locked is dead."""
    run = Run(state, record())
    fcntl.flock(run.fd, fcntl.LOCK_UN)
    (found,) = list_sessions(state)
    assert found.pid == os.getpid() and not found.alive
    run.close()


def test_sessions_are_listed_oldest_first(state: str) -> None:
    entries = [Run(state, record(name, started)) for name, started in (("b", 3.0), ("a", 9.0), ("c", 1.5))]
    assert [found.id for found in list_sessions(state)] == ["c", "b", "a"]
    for run in entries:
        run.close()


def test_update_replaces_the_record_also_by_a_shorter_one(state: str) -> None:
    run = Run(state, record().replace(command=("x" * 5000,)))
    shorter = record().replace(refused=7, bytes_up=1 << 40)
    run.update(shorter)
    assert list_sessions(state) == [shorter]
    assert os.path.getsize(run.path) < 5000
    run.close()


def test_text_that_is_not_utf8_is_kept(state: str) -> None:
    odd = record().replace(workspace="/srv/\udcff\n", command=("\udc80",))
    run = Run(state, odd)
    assert list_sessions(state) == [odd]
    run.close()


def test_without_a_directory_there_are_no_sessions(state: str) -> None:
    assert list_sessions(state) == []
    assert collect_garbage(state) == []


CORRUPT = {
    "empty": b"",
    "garbage": b"\xff\x00garbage",
    "cut": marshal.dumps((registry.FORMAT, "a1", 1, 1.0, "/w", ("c",), "n", 0, 0, 0, True, ()))[:-9],
    "other format": marshal.dumps((registry.FORMAT + 1, "a1")),
    "too few": marshal.dumps((registry.FORMAT, "a1")),
    "no tuple": marshal.dumps({"id": "a1"}),
    "a number": marshal.dumps(7),
    "wrong types": marshal.dumps((registry.FORMAT, "a1", "pid", "never", "/w", "command", "n", 0, 0, 0, True, ())),
}


@pytest.mark.parametrize("data", CORRUPT.values(), ids=CORRUPT)
def test_a_corrupted_record_is_not_listed_and_is_collected(state: str, data: bytes) -> None:
    good = Run(state, record("good"))
    bad = Path(state, "run", "bad")
    bad.write_bytes(data)
    assert [found.id for found in list_sessions(state)] == ["good"]
    assert collect_garbage(state) == ["session record bad"]
    assert names(state) == ["good"]
    good.close()


def test_what_is_no_regular_file_is_left_alone(state: str, tmp_path: Path) -> None:
    make_private(os.path.join(state, "run"))
    precious = tmp_path / "precious"
    precious.write_text("kept")
    Path(state, "run", "link").symlink_to(precious)
    Path(state, "run", "directory").mkdir()
    os.mkfifo(Path(state, "run", "fifo"))  # must not block the reader
    assert list_sessions(state) == []
    assert collect_garbage(state) == []
    assert precious.read_text() == "kept"
    assert names(state) == ["directory", "fifo", "link"]


@pytest.mark.as_root
def test_the_record_of_another_owner_is_neither_read_nor_removed(state: str) -> None:
    make_private(os.path.join(state, "run"))
    foreign = Path(state, "run", "foreign")
    foreign.write_bytes(marshal.dumps((registry.FORMAT, *(getattr(record(), name) for name in record().field_names))))
    assert [found.id for found in list_sessions(state)] == ["a1"]  # the control: it is a good record
    os.chown(foreign, 65534, 65534)
    assert list_sessions(state) == []
    assert collect_garbage(state) == []
    assert foreign.exists()


def test_two_readers_do_not_take_each_other_for_the_session(state: str) -> None:
    """Readers test with a lock of their own; it must not look like the session's."""
    run = Run(state, record())
    fcntl.flock(run.fd, fcntl.LOCK_UN)
    other = os.open(run.path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_SH)  # as a reader in the middle of its work
    assert [found.alive for found in list_sessions(state)] == [False]
    os.close(other)
    run.close()


def test_a_record_collected_before_it_was_locked_is_made_again(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``gc`` in the moment between the creation of the file and its lock."""
    collected: list[list[str]] = []
    flock = fcntl.flock

    def collect_first(fd: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX and not collected:
            collected.append(collect_garbage(state))
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", collect_first)
    run = Run(state, record())
    assert collected == [["session record a1"]]
    assert list_sessions(state) == [record()]
    run.close()


def test_collectors_and_sessions_at_the_same_time(state: str) -> None:
    """Collectors run all the time; every living session stays listed."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def collect() -> None:
        try:
            while not stop.is_set():
                collect_garbage(state)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=collect) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(500):
            run = Run(state, record(f"s{number}"))
            assert [(found.id, found.alive) for found in list_sessions(state)] == [(f"s{number}", True)]
            run.close()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert names(state) == []


def test_one_collector_at_a_time(state: str) -> None:
    run = Run(state, record())
    fcntl.flock(run.fd, fcntl.LOCK_UN)
    other = os.open(os.path.join(state, "run"), os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    assert collect_garbage(state) == []
    os.close(other)
    assert collect_garbage(state) == ["session record a1 (curl in /srv/app)"]
    run.close()


def test_a_full_disk_is_an_error_with_advice_and_leaves_no_record(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_fd: int, _data: bytes, _offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch, pytest.raises(HostError) as caught:
        patch.setattr(os, "pwrite", full)
        Run(state, record())
    assert caught.value.lines() == [
        f"cannot record the session {state}/run/a1: No space left on device",
        "  try: free some space",
    ]
    assert names(state) == []
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_record_that_fits_only_in_part_is_an_error(state: str) -> None:
    """The kernel writes what fits; half a record must not be taken for one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, hard))
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises(HostError, match="record the session"):
            Run(state, record())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert names(state) == []


def test_a_session_id_is_used_once(state: str) -> None:
    run = Run(state, record())
    with pytest.raises(HostError, match="File exists"):
        Run(state, record())
    assert [found.alive for found in list_sessions(state)] == [True]  # the first one is untouched
    run.close()


def test_state_directories_are_private_with_all_that_is_made_above_them(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        make_private(str(tmp_path / "a" / "b" / "c"))
    finally:
        os.umask(umask)
    for path in ("a", "a/b", "a/b/c"):
        assert stat.S_IMODE((tmp_path / path).stat().st_mode) == 0o700, path
    make_private(str(tmp_path / "a" / "b" / "c"))  # again: nothing to do


def test_a_state_directory_that_can_not_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError) as caught:
        make_private(str(tmp_path / "file" / "state"))
    assert caught.value.lines()[0].startswith("cannot make membrane's state directory ")
    assert caught.value.lines()[1] == "  try: set MEMBRANE_HOME to a directory that you can write"


@pytest.mark.as_root
def test_the_state_directory_of_another_owner_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.mkdir()
    make_private(str(path))  # the control
    os.chown(path, 65534, 65534)
    with pytest.raises(HostError, match="it belongs to uid 65534"):
        make_private(str(path))


@pytest.mark.as_user
def test_a_directory_of_root_is_refused() -> None:
    with pytest.raises(HostError, match="it belongs to uid 0"):
        make_private("/usr")


def test_what_is_said_once_is_noted_where_only_the_caller_can_look(state: str) -> None:
    assert [registry.first_time(state, text) for text in ("a", "a", "b", "a", "b")] == [True, False, True, False, False]
    assert stat.S_IMODE(os.stat(f"{state}/told").st_mode) == 0o700
