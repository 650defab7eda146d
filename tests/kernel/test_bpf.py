"""What the kernel tells about a process tree: exact events, for whom, what is lost, what stays behind.

One file of over 800 lines: one set of programs, and each event that it makes or loses.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import shutil
import signal
import socket
import struct
import sys
import time

import children
import pytest
from tracing import (
    DEADLINE,
    below,
    ended,
    events_of,
    execute,
    follow,
    fork,
    of_type,
    private_mounts,
    python,
    system_python,
    trace,
    waiting,
)

from membrane.bpf import programs as bpf
from membrane.errors import HostError
from membrane.events import (
    AccessDenied,
    EventsLost,
    FileChanged,
    FileCreated,
    FileOpened,
    FileRemoved,
    FileRenamed,
    ProcessExited,
    ProcessStarted,
    SocketCalled,
)
from membrane.host import seccomp
from membrane.host import syscalls as sc
from membrane.tracer import ebpf, grant, pins
from membrane.tracer.ebpf import EbpfSource, Scope

PYTHON = os.path.realpath(sys.executable)


# ---------------------------------------------------------------- who may


def hold_only(*capabilities: int) -> None:
    """capset(2), version 3."""
    mask = sum(1 << number for number in capabilities)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    data = struct.pack("<6I", low, low, 0, high, high, 0)
    assert ctypes.CDLL(None).syscall(126, struct.pack("<II", 0x20080522, 0), data) == 0


@pytest.mark.as_user
def test_plain_user_is_told_why() -> None:
    reason = "eBPF tracing needs CAP_PERFMON and CAP_BPF, or root's permission (membrane setup tracing)"
    assert ebpf.best_source() == reason
    with pytest.raises(HostError) as caught:
        EbpfSource().prepare()
    assert caught.value.cause == os.strerror(errno.EPERM)
    assert caught.value.tried.startswith("load the map ")
    assert any("root" in line for line in caught.value.fix)


@pytest.mark.as_root
def test_two_capabilities_are_enough() -> None:
    def body() -> list[str]:
        hold_only(38, 39)  # CAP_PERFMON, CAP_BPF
        source = ebpf.best_source()
        assert isinstance(source, EbpfSource)
        return [
            event.path
            for event in of_type(trace(execute("/bin/true"), source), ProcessStarted)  # type: ignore[attr-defined]
        ]

    assert children.run(body, seconds=60) == ["/usr/bin/true"]


def test_a_wheel_without_the_object_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(ebpf, "OBJECT", str(tmp_path / "none.o"))
    reason = ebpf.best_source()
    assert isinstance(reason, str) and "built without a compiler" in reason


@pytest.mark.as_root
def test_one_capability_is_enough_after_the_preparation() -> None:
    """The tracer gives everything else up before it reads what the command did."""

    def body() -> list[tuple[str, int]]:
        source = EbpfSource()
        source.prepare()
        hold_only(39)  # CAP_BPF
        seen = trace(execute("/bin/true"), source)
        return [(type(event).__name__, process.pid > 1) for event, process in seen if not isinstance(event, FileOpened)]

    assert children.run(body, seconds=60) == [("ProcessStarted", True), ("ProcessExited", True)]


# ---------------------------------------------------------------- what is seen


@pytest.mark.as_root
def test_processes(tmp_path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\nexit 3\n")
    script.chmod(0o755)
    code = (
        "import os, signal\n"
        "def spawn(*argv, end=0):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        if end: os.kill(os.getpid(), end)\n"
        "        try: os.execv(argv[0], argv)\n"
        "        except OSError: os._exit(5)\n"
        "    os.waitpid(pid, 0)\n"
        "spawn('/bin/echo', 'one', 'two words')\n"
        "spawn('./script')\n"
        "spawn('/nonexistent')\n"
        "spawn('./data')\n"
        "spawn(end=signal.SIGTERM)\n"
        "os._exit(7)\n"
    )
    (tmp_path / "data").write_text("no program")
    seen = trace(python(code, cwd=str(tmp_path)), noise=True)
    started = [(event, process) for event, process in seen if isinstance(event, ProcessStarted)]
    main, root = started[0]
    assert (main.path, main.argv[:4], main.cwd) == (PYTHON, (sys.executable, "-I", "-S", "-c"), str(tmp_path))
    assert root.exe == PYTHON
    assert root.start == root.start and root.pid > 1
    here = str(tmp_path)
    assert [(e.path, e.argv, e.cwd, e.result, e.parent, p.exe) for e, p in started[1:]] == [
        ("/usr/bin/echo", ("/bin/echo", "one", "two words"), here, "", root.pid, "/usr/bin/echo"),
        (f"{here}/script", ("/bin/sh", "./script"), here, "", root.pid, "/usr/bin/dash"),
        ("/nonexistent", (), "", "ENOENT", root.pid, PYTHON),
        (f"{here}/data", (), "", "EACCES", root.pid, PYTHON),
    ]
    ends = [(event.exit_code, event.signal, process.pid) for event, process in seen if isinstance(event, ProcessExited)]
    assert [(code, number) for code, number, _pid in ends] == [(0, 0), (3, 0), (5, 0), (5, 0), (0, 15), (7, 0)]
    assert ends[-1][2] == root.pid
    assert all(event.duration_ms > 0 for event in of_type(seen, ProcessExited))  # type: ignore[attr-defined]


@pytest.mark.as_root
def test_start_is_what_proc_says(tmp_path) -> None:
    code = "import sys; open(sys.argv[1], 'w').write(open('/proc/self/stat').read())"
    seen = trace(python(code, str(tmp_path / "stat")))
    text = (tmp_path / "stat").read_text()
    process = next(process for event, process in seen if isinstance(event, ProcessStarted))
    assert (process.pid, process.start) == (int(text.split()[0]), int(text.rpartition(")")[2].split()[19]))
    assert process.name == text.partition("(")[2].rpartition(")")[0]


@pytest.mark.as_root
def test_files(tmp_path) -> None:
    here = str(tmp_path)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    code = (
        "import os\n"
        "os.close(os.open('link/new', os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))\n"
        "d = os.open('real', os.O_RDONLY | os.O_DIRECTORY)\n"
        "os.close(os.open('new', os.O_RDWR | os.O_APPEND, dir_fd=d))\n"
        "os.mkdir('dir', dir_fd=d)\n"
        "os.rename('new', 'newer', src_dir_fd=d, dst_dir_fd=d)\n"
        "os.rename('real/newer', '../' + os.path.basename(os.getcwd()) + '/moved')\n"
        "os.link('moved', 'real/dir/hard')\n"
        "os.symlink('any where', './soft')\n"
        "os.mkfifo('pipe')\n"
        "os.unlink('pipe')\n"
        "os.unlink('hard', dir_fd=os.open('real/dir', os.O_PATH))\n"
        "os.rmdir('real/dir')\n"
        "os.rmdir(os.getcwd() + '//./real')\n"
    )
    assert below(trace(python(code, cwd=here)), here) == [
        FileOpened(f"{here}/real/new", ("wronly", "creat", "excl")),
        FileOpened(f"{here}/real", ("rdonly", "directory")),
        FileOpened(f"{here}/real/new", ("rdwr", "append")),
        FileCreated(f"{here}/real/dir", "directory"),
        FileRenamed(f"{here}/real/new", f"{here}/real/newer"),
        FileRenamed(f"{here}/real/newer", f"{here}/moved"),
        FileCreated(f"{here}/real/dir/hard", "link", f"{here}/moved"),
        FileCreated(f"{here}/soft", "symlink", "any where"),
        FileCreated(f"{here}/pipe", "fifo"),
        FileRemoved(f"{here}/pipe"),
        FileOpened(f"{here}/real/dir", ("rdonly", "path")),
        FileRemoved(f"{here}/real/dir/hard"),
        FileRemoved(f"{here}/real/dir", True),
        FileRemoved(f"{here}/real", True, "ENOTEMPTY" if os.path.exists(f"{here}/real") else ""),
    ]


@pytest.mark.as_root
def test_modes_owners_attributes_and_sizes(tmp_path) -> None:
    """Every form of chmod(2), chown(2), setxattr(2) and truncate(2), by name and by descriptor, with its result."""
    here = str(tmp_path)
    (tmp_path / "f").write_text("x")
    (tmp_path / "link").symlink_to("f")
    code = (
        "import ctypes, os\n"
        "libc = ctypes.CDLL(None)\n"
        "os.chmod('f', 0o755)\n"
        "fd, d = os.open('f', os.O_RDONLY), os.open('.', os.O_PATH)\n"
        "os.fchmod(fd, 0o600)\n"
        "os.chmod('f', 0o640, dir_fd=d)\n"
        "libc.syscall(452, d, b'f', 0o644, 0)\n"
        "libc.syscall(452, fd, b'', 0o4711, 0x1000)\n"
        "os.chown('f', 12, -1)\n"
        "os.fchown(fd, -1, 13)\n"
        "os.lchown('link', 14, 15)\n"
        "os.chown('f', 0, 0, dir_fd=d)\n"
        "try: os.chmod('none', 0o777)\n"
        "except OSError: pass\n"
        "for file in ('f', fd):\n"
        "    os.setxattr(file, 'user.one', b'1')\n"
        "    os.removexattr(file, 'user.one')\n"
        "try: os.setxattr('link', 'user.two', b'2', follow_symlinks=False)\n"
        "except OSError: pass\n"
        "os.truncate('f', 0)\n"
    )
    seen = [event for event in below(trace(python(code, cwd=here)), here) if type(event) is FileChanged]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(452, -1, b"", 0, 0)  # fchmodat2 came with Linux 6.6
    missing = "ENOSYS" if ctypes.get_errno() == errno.ENOSYS else ""
    f, link = f"{here}/f", f"{here}/link"
    assert seen == [
        FileChanged(f, "mode", "0755"),
        FileChanged(f, "mode", "0600"),
        FileChanged(f, "mode", "0640"),
        FileChanged(f, "mode", "0644", missing),
        FileChanged(f, "mode", "4711", missing),
        FileChanged(f, "owner", "12:"),
        FileChanged(f, "owner", ":13"),
        FileChanged(link, "owner", "14:15"),
        FileChanged(f, "owner", "0:0"),
        FileChanged(f"{here}/none", "mode", "0777", "ENOENT"),
        FileChanged(f, "attribute", "user.one"),
        FileChanged(f, "attribute removed", "user.one"),
        FileChanged(f, "attribute", "user.one"),
        FileChanged(f, "attribute removed", "user.one"),
        FileChanged(link, "attribute", "user.two", "EPERM"),
    ]
    cut = below(trace(python("import os; os.truncate('f', 0)", cwd=here)), here)
    assert cut == [FileOpened(f, ("wronly", "trunc"))]


@pytest.mark.as_root
def test_long_and_odd_names(tmp_path) -> None:
    here = str(tmp_path)
    deep = here + "/" + "/".join(f"{number:02}" + "d" * 60 for number in range(40))
    odd = "a\nb\x1b[2J\udcff \u202e"
    code = (
        "import os, sys\n"
        "os.makedirs(sys.argv[1])\n"
        "open(sys.argv[1] + '/leaf', 'w').close()\n"
        "open(os.fsdecode(os.fsencode(sys.argv[2])), 'w').close()\n"
    )
    opened = [
        event.path for event in below(trace(python(code, deep, f"{here}/{odd}")), here) if type(event) is FileOpened
    ]
    assert opened == [f"{deep}/leaf", f"{here}/{odd}"]


@pytest.mark.as_root
def test_a_path_that_is_too_deep_is_told_as_cut(tmp_path) -> None:
    code = (
        "import os\n"
        "for number in range(60):\n"
        "    os.mkdir('etc')\n"
        "    os.chdir('etc')\n"
        "os.close(os.open('passwd', os.O_CREAT | os.O_WRONLY))\n"
        "os.unlink('passwd')\n"
    )
    seen = trace(python(code, cwd=str(tmp_path)))
    cut = "…/" + "etc/" * 47 + "passwd"
    assert [event.path for event, _process in seen if type(event) is FileOpened and "creat" in event.flags] == [cut]
    assert [event.path for event in of_type(seen, FileRemoved)] == ["…/" + "etc/" * 48 + "passwd"]  # type: ignore[attr-defined]


@pytest.mark.as_root
def test_refused_calls_with_their_errno(tmp_path) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0o600)
    tmp_path.chmod(0o755)
    filter_program = seccomp.program(machine=sc.MACHINE)

    def body() -> object:
        os.chdir(tmp_path)
        sc.no_new_privs()
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        sc.seccomp_set_filter(filter_program)
        for action in (
            lambda: os.open("secret", os.O_RDONLY),
            lambda: os.open("missing", os.O_RDONLY),
            lambda: os.open("new", os.O_RDWR | os.O_CREAT),
            lambda: os.unlink("secret"),
            lambda: os.rename("secret", "other"),
            lambda: sc.mount("none", "/mnt", "tmpfs", 0),
            lambda: sc.unshare(sc.CLONE_NEWUSER),
            lambda: socket.socket(38, socket.SOCK_SEQPACKET),
            lambda: sc.bpf(5, bytes(64)),
        ):
            try:
                action()  # type: ignore[no-untyped-call]
            except OSError:
                pass
        ctypes.CDLL(None).syscall(425, 8, 0)  # io_uring_setup
        return None

    here = str(tmp_path)
    seen = trace(body)
    assert below(seen, here) == [
        FileOpened(f"{here}/secret", ("rdonly",), "EACCES"),
        FileOpened(f"{here}/new", ("rdwr", "creat"), "EACCES"),
        FileRemoved(f"{here}/secret", False, "EACCES"),
        FileRenamed(f"{here}/secret", f"{here}/other", "EACCES"),
    ]
    refused = [(event.access["name"], event.reason) for event in of_type(seen, AccessDenied)]  # type: ignore[attr-defined]
    assert refused == [
        ("mount", "EPERM"),
        ("unshare", "EPERM"),
        ("socket", "EAFNOSUPPORT"),
        ("bpf", "EPERM"),
        ("io_uring_setup", "ENOSYS"),
    ]


@pytest.mark.as_root
def test_sockets(tmp_path) -> None:
    code = (
        "import socket, sys\n"
        "def attempt(action):\n"
        "    try: action()\n"
        "    except OSError: pass\n"
        "s = socket.socket()\n"
        "s.bind(('127.0.0.1', 0))\n"
        "s.listen()\n"
        "c = socket.socket(); c.connect(s.getsockname())\n"
        "print(s.getsockname()[1], c.getsockname()[1], file=open(sys.argv[1], 'w'))\n"
        "c.send(b'not told: connected')\n"
        "attempt(lambda: socket.socket(socket.AF_INET6).connect(('::1', 1)))\n"
        "attempt(lambda: socket.socket(socket.AF_UNIX).connect('/run/none.sock'))\n"
        "socket.socket(socket.AF_UNIX).bind('\\0membrane-test-' + sys.argv[1])\n"
        "attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.9', 9)))\n"
        "attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendmsg([b'x'], [], 0, ('127.0.0.8', 8)))\n"
    )
    seen = trace(python(code, str(tmp_path / "port")))
    port, local = map(int, (tmp_path / "port").read_text().split())
    called = of_type(seen, SocketCalled)
    assert [event.local_port for event in called[:2]] == [port, local]  # type: ignore[attr-defined]
    assert [event.replace(local_port=0) for event in called] == [  # type: ignore[attr-defined]
        SocketCalled("bind", "inet", "127.0.0.1", 0),
        SocketCalled("connect", "inet", "127.0.0.1", port),
        SocketCalled("connect", "inet6", "::1", 1, "ECONNREFUSED"),
        SocketCalled("connect", "unix", "/run/none.sock", 0, "ENOENT"),
        SocketCalled("bind", "unix", f"@membrane-test-{tmp_path / 'port'}", 0),
        SocketCalled("sendto", "inet", "127.0.0.9", 9),
        SocketCalled("sendmsg", "inet", "127.0.0.8", 8),
    ]


@pytest.mark.as_root
def test_an_address_that_is_written_anew_during_the_call(tmp_path) -> None:
    """The call waits, because the queue of the listener is full; meanwhile another process writes to its memory."""
    code = (
        "import ctypes, mmap, os, socket, struct, sys, time\n"
        "memory = mmap.mmap(-1, 4096)\n"
        "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(0)\n"
        "port = s.getsockname()[1]\n"
        "first = socket.create_connection(('127.0.0.1', port))\n"
        "memory[:16] = struct.pack('<H', 2) + port.to_bytes(2) + bytes([127, 0, 0, 1]) + bytes(8)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    c = socket.socket()\n"
        "    place = ctypes.addressof(ctypes.c_char.from_buffer(memory))\n"
        "    os._exit(-ctypes.CDLL(None).connect(c.fileno(), ctypes.c_void_p(place), 16))\n"
        "waits = ' 0100007F:%04X 02 ' % port\n"  # SYN_SENT
        "end = time.monotonic() + 60\n"
        "while waits not in open('/proc/net/tcp').read() and time.monotonic() < end: time.sleep(0.01)\n"
        "memory[4:8] = bytes([192, 0, 2, 1])\n"
        "s.accept()\n"
        "print(port, os.waitpid(pid, 0)[1], file=open(sys.argv[1], 'w'))\n"
    )
    seen = trace(python(code, str(tmp_path / "port")))
    port, status = map(int, (tmp_path / "port").read_text().split())
    called = [event.replace(local_port=0) for event in of_type(seen, SocketCalled) if event.call == "connect"]  # type: ignore[attr-defined]
    assert status == 0
    assert called == [SocketCalled("connect", "inet", "127.0.0.1", port)] * 2


@pytest.mark.as_root
def test_repeats_are_counted_not_repeated(tmp_path) -> None:
    here = str(tmp_path)
    (tmp_path / "f").write_text("x")
    code = "import os\nfor _ in range(500): os.close(os.open('f', os.O_RDONLY))\n"
    once = [event.count for event in below(trace(python(code, cwd=here)), here)]  # type: ignore[attr-defined]
    assert once[0] == 1 and sum(once) == 500 and len(once) < 10
    every = below(trace(python(code, cwd=here), repeats=True), here)
    assert every == [FileOpened(f"{here}/f", ("rdonly",))] * 500


@pytest.mark.as_root
def test_failed_look_ups_are_left_out_unless_asked(tmp_path) -> None:
    code = "import os\ntry: os.open('none', os.O_RDONLY)\nexcept OSError: pass\n"
    assert below(trace(python(code, cwd=str(tmp_path))), str(tmp_path)) == []
    told = below(trace(python(code, cwd=str(tmp_path)), noise=True), str(tmp_path))
    assert told == [FileOpened(f"{tmp_path}/none", ("rdonly",), "ENOENT")]


# ---------------------------------------------------------------- whose


@pytest.mark.as_root
def test_only_the_scope(tmp_path) -> None:
    """The same program beside it leaves nothing, one that it left behind as a daemon does."""
    code = (
        "import os, sys\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        open(sys.argv[1] + '/daemon', 'w').close()\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "open(sys.argv[1] + '/main', 'w').close()\n"
    )
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    source = EbpfSource()
    try:
        with waiting(python(code, str(inside))) as (pid, go), waiting(python(code, str(outside))) as (other, go_too):
            source.open(Scope(pid))
            pieces: list[bytes] = []
            go()
            go_too()
            follow(
                source,
                pieces,
                lambda: ended(pid) and ended(other) and not source.alive() and (outside / "daemon").exists(),
            )
    finally:
        source.close()
    seen = events_of(pieces)
    assert sorted(event.path for event in below(seen, str(tmp_path))) == [f"{inside}/daemon", f"{inside}/main"]  # type: ignore[attr-defined]
    assert len(of_type(seen, ProcessExited)) == 3


def _in_pid_namespaces(source: EbpfSource, directory: str) -> list[object]:
    """A sandbox with a pid namespace, and one more inside it, as (pid, path)."""
    told, tell = os.pipe()
    hold, release = os.pipe()

    def launcher() -> None:
        os.close(release)
        sc.unshare(sc.CLONE_NEWPID)
        pid = fork()
        if pid == 0:  # pid 1 of the sandbox
            os.read(hold, 1)
            os.close(os.open(f"{directory}/first", os.O_CREAT | os.O_WRONLY, 0o600))
            sc.unshare(sc.CLONE_NEWPID)
            if fork() == 0:
                os.close(os.open(f"{directory}/nested-{os.getpid()}", os.O_CREAT | os.O_WRONLY, 0o600))
                os._exit(0)
            os.wait()
            os._exit(0)
        os.write(tell, str(pid).encode())
        os.waitpid(pid, 0)

    with waiting(launcher) as (pid, go):
        go()
        source.open(Scope(int(os.read(told, 32))))
        pieces: list[bytes] = []
        os.close(release)
        follow(source, pieces, lambda: ended(pid) and not source.alive())
    for fd in (told, tell, hold):
        os.close(fd)
    source.close()
    return [(process.pid, event.path) for event, process in events_of(pieces) if isinstance(event, FileOpened)]


@pytest.mark.as_root
def test_pids_are_those_of_the_sandbox(tmp_path) -> None:
    expected = [(1, f"{tmp_path}/first"), (2, f"{tmp_path}/nested-1")]
    assert _in_pid_namespaces(EbpfSource(), str(tmp_path)) == expected


@pytest.mark.as_root
def test_tracer_inside_a_pid_namespace(tmp_path) -> None:
    """Its own count of processes is not the kernel's."""

    def body() -> list[object]:
        private_mounts()
        sc.unshare(sc.CLONE_NEWPID)
        receive, send = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                sc.mount("proc", "/proc", "proc", 0)
                answer = repr(_in_pid_namespaces(EbpfSource(shared=False), str(tmp_path)))
            except BaseException as error:
                answer = repr(error)
            os.write(send, answer.encode())
            os._exit(0)
        os.waitpid(pid, 0)
        return [os.read(receive, 65536).decode()]

    expected = [(1, f"{tmp_path}/first"), (2, f"{tmp_path}/nested-1")]
    assert children.run(body, seconds=90) == [repr(expected)]


# ---------------------------------------------------------------- what is lost


@pytest.mark.as_root
def test_losses_are_counted_and_told(tmp_path) -> None:
    total = 3000
    (tmp_path / "f").write_text("x")
    code = f"import os\nfor _ in range({total}): os.close(os.open('f', os.O_RDONLY))\n"
    source = EbpfSource(keep=1 << 16, bulk=1 << 12)
    pieces: list[bytes] = []
    try:
        with waiting(python(code, cwd=str(tmp_path))) as (pid, go):
            source.open(Scope(pid, repeats=True))
            go()
            while not (ended(pid) and not source.alive()):
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            follow(source, pieces, lambda: True)
            losses, events = source.losses(), source._counters()[ebpf._EVENTS]
            assert source.ended and source.losses() == {}
    finally:
        source.close()
    seen = events_of(pieces)
    told = len(of_type(seen, FileOpened))
    lost = of_type(seen, EventsLost)
    assert set(losses) == {"file"} and losses["file"] >= total - 4096 // 100
    assert [(event.kind, event.count, event.source) for event in lost] == [("file", losses["file"], "ebpf")]  # type: ignore[attr-defined]
    assert lost[0].start < lost[0].end  # type: ignore[attr-defined]
    assert told > 0 and told < total
    # the flood took no exec and no exit away: they have a ring of their own
    assert len(of_type(seen, ProcessStarted)) == 1 and len(of_type(seen, ProcessExited)) == 1
    assert events == told + 2


# ---------------------------------------------------------------- what is shared


def _links(state: str) -> list[int]:
    name = next(name for name in os.listdir(state) if name.startswith("links-"))
    with open(os.path.join(state, name)) as file:
        return [int(line.split()[1]) for line in file]


def _alive(number: int) -> bool:
    try:
        os.close(bpf.link_by_id(number))
    except OSError as error:
        assert error.errno == errno.ENOENT
        return False
    return True


def _shared(state: str) -> EbpfSource:
    return EbpfSource(state=state, system="/nonexistent", keep=1 << 16, bulk=1 << 16)


@pytest.mark.as_root
def test_two_sandboxes_share_the_programs(tmp_path) -> None:
    def body() -> dict[str, object]:
        private_mounts()
        state = str(tmp_path / "state")
        one, two = _shared(state), _shared(state)
        out: dict[str, object] = {}
        with waiting(execute("/bin/true")) as (pid1, go1), waiting(execute("/bin/false")) as (pid2, go2):
            one.open(Scope(pid1))
            links = _links(state)
            two.open(Scope(pid2))
            out["same links"] = _links(state) == links
            pieces1: list[bytes] = []
            pieces2: list[bytes] = []
            go1()
            go2()
            follow(one, pieces1, lambda: ended(pid1) and not one.alive())
            follow(two, pieces2, lambda: ended(pid2) and not two.alive())
        for name, pieces in (("one", pieces1), ("two", pieces2)):
            seen = events_of(pieces)
            out[name] = (
                [e.path for e in of_type(seen, ProcessStarted)],
                [e.exit_code for e in of_type(seen, ProcessExited)],
            )  # type: ignore[attr-defined]
        one.close()
        out["attached with one left"] = [_alive(number) for number in links]
        two.close()
        out["attached at the end"] = [_alive(number) for number in links]
        # pinned and attached to nothing; the next one takes what is there
        pinned = [name for name in os.listdir(f"{state}/bpf") if name.startswith("trace-")]
        three = _shared(state)
        three.prepare()
        three.close()
        out["pinned"] = (
            len(pinned),
            [name for name in os.listdir(f"{state}/bpf") if name.startswith("trace-")] == pinned,
        )
        pins.remove(state, "/nonexistent")
        out["removed"] = os.listdir(f"{state}/bpf")
        return out

    assert children.run(body, seconds=90) == {
        "same links": True,
        "one": (["/usr/bin/true"], [0]),
        "two": (["/usr/bin/false"], [1]),
        "attached with one left": [True] * 4,
        "attached at the end": [False] * 4,
        "pinned": (1, True),
        "removed": [],
    }


def _remove_group(directory: str) -> None:
    """Newer kernels take a process out of its group a moment after somebody has waited for it."""
    end = time.monotonic() + DEADLINE
    while os.path.isdir(directory):
        try:
            os.rmdir(directory)
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > end:
                raise
            time.sleep(0.01)


@pytest.mark.as_root
def test_who_enters_the_group_of_a_sandbox_is_followed(tmp_path) -> None:
    """Processes that are no children of the command; control: one that stays outside."""

    def body() -> dict[str, object]:
        private_mounts()
        sc.mount("cgroup2", str(tmp_path), "cgroup2", 0)
        group = f"{tmp_path}/membrane-test-{os.getpid()}"
        os.mkdir(group)
        inner = f"{group}/inner"
        try:
            os.mkdir(inner)
            source = EbpfSource(shared=False, keep=1 << 16, bulk=1 << 16)
            pieces: list[bytes] = []
            with (
                waiting(execute("/bin/true")) as (command, go),
                waiting(execute("/bin/sh", "-c", "/bin/mkdir /proc/x; exit 5")) as (entered, enter),
                waiting(execute("/bin/false")) as (outside, pass_by),
            ):
                source.open(Scope(command, cgroup=os.stat(group).st_ino))
                with open(f"{inner}/cgroup.procs", "w") as file:
                    file.write(str(entered))
                for release, pid in ((pass_by, outside), (enter, entered), (go, command)):
                    release()
                    follow(source, pieces, lambda pid=pid: ended(pid))  # type: ignore[misc]
            seen = events_of(pieces)
            source.close()
        finally:
            for directory in (inner, group):
                _remove_group(directory)
        return {
            "started": [event.path for event in of_type(seen, ProcessStarted)],  # type: ignore[attr-defined]
            "ended": [event.exit_code for event in of_type(seen, ProcessExited)],  # type: ignore[attr-defined]
        }

    assert children.run(body, seconds=90) == {
        "started": ["/usr/bin/dash", "/usr/bin/mkdir", "/usr/bin/true"],
        "ended": [1, 5, 0],
    }


@pytest.mark.as_root
def test_nothing_of_a_killed_tracer_stays(tmp_path) -> None:
    def body() -> dict[str, object]:
        private_mounts()
        state = str(tmp_path / "state")
        told, tell = os.pipe()
        with waiting(execute("/bin/sleep", "60")) as (pid, _go):

            def tracer() -> None:
                _shared(state).open(Scope(pid))
                os.write(tell, b"x")
                signal.pause()

            with waiting(tracer) as (victim, start):
                start()
                os.read(told, 1)
                links = _links(state)
                before = [_alive(number) for number in links]
                os.kill(victim, signal.SIGKILL)
                os.waitpid(victim, 0)
            after = [_alive(number) for number in links]
            collected = ebpf.collect(state, "/nonexistent"), ebpf.collect(state, "/nonexistent")
            source = _shared(state)
            source.prepare()
            maps = source._set.maps
            left = [len(list(maps[name].keys())) for name in ("rings", "seeds", "members")]
            planted = [maps["control"].get(struct.pack("<I", index)) for index in (0, 1)]
            source.close()
        return {
            "before": before,
            "after": after,
            "collected": collected,
            "left": left,
            "idle": planted[0] == planted[1],
        }

    assert children.run(body, seconds=90) == {
        "before": [True] * 4,
        "after": [False] * 4,
        "collected": (1, 0),
        "left": [2 * ebpf.STAYING, 0, 0],
        "idle": True,
    }


@pytest.mark.as_root
def test_the_first_slot_s_rings_stay_and_hold_nothing_of_their_last_sandbox(tmp_path) -> None:
    state = str(tmp_path / "state")

    def usual() -> EbpfSource:
        return EbpfSource(state=state, system="/nonexistent")

    def numbers(source: EbpfSource) -> list[int]:
        return [bpf.map_number(ring.fd) for ring in source._rings]

    def body() -> dict[str, object]:
        private_mounts()
        found: dict[str, list[int]] = {}
        first, second = usual(), usual()
        first.reserve()
        second.reserve()  # another slot
        found["first"], found["second"] = numbers(first), numbers(second)
        first.close()
        second.close()
        with waiting(execute("/bin/mkdir", str(tmp_path / "one"))) as (pid, go):
            unread = usual()
            unread.open(Scope(pid))
            go()
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            found["unread"] = numbers(unread)
            written = unread._rings[0].written > unread._rings[0]._read_to[0]
            unread.close()
        later = trace(execute("/bin/mkdir", str(tmp_path / "two")), usual())
        small = _shared(state)
        small.reserve()
        found["small"] = numbers(small)
        small.close()
        again = usual()  # what is pinned is in its place no more
        again.reserve()
        found["again"] = numbers(again)
        rings = again._set.maps["rings"]
        placed = [struct.unpack("<I", rings.get(struct.pack("<I", index)) or bytes(4))[0] for index in (0, 1)]
        left = len(list(rings.keys()))
        again.close()
        made = [event.path for event in of_type(later, FileCreated)]  # type: ignore[attr-defined]
        return {
            "same": found["first"] == found["unread"],
            "other": len({*found["first"], *found["second"], *found["small"], *found["again"]}),
            "written": written,
            "placed": placed == found["again"],
            "left": left,
            "made": made,
        }

    assert children.run(body, seconds=90) == {
        "same": True,
        "other": 8,
        "written": True,  # the control: there was something to be dropped
        "placed": True,
        "left": 2 * ebpf.STAYING,
        "made": [str(tmp_path / "two")],
    }


@pytest.mark.as_root
def test_state_that_others_can_write_is_refused(tmp_path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o777)
    state.chmod(0o777)
    with pytest.raises(HostError, match="another user can write to it"):
        EbpfSource(state=str(state), system="/nonexistent").prepare()


@pytest.mark.as_root
def test_without_a_place_to_pin_a_set_of_its_own(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    source = EbpfSource(state=str(tmp_path / "file"), system="/nonexistent")
    seen = trace(execute("/bin/true"), source)
    assert [event.path for event in of_type(seen, ProcessStarted)] == ["/usr/bin/true"]  # type: ignore[attr-defined]
    assert source._shared is False


@pytest.mark.as_root
def test_no_descriptor_survives_exec() -> None:
    source = EbpfSource(shared=False)
    before = set(os.listdir("/proc/self/fd"))
    try:
        with waiting(execute("/bin/true")) as (pid, _go):
            source.open(Scope(pid))
            ours = set(os.listdir("/proc/self/fd")) - before
            assert len(ours) > 20
            for name in ours:
                try:
                    assert fcntl.fcntl(int(name), fcntl.F_GETFD) & fcntl.FD_CLOEXEC, os.readlink(
                        f"/proc/self/fd/{name}"
                    )
                except OSError as error:
                    assert error.errno == errno.EBADF  # the directory's own
    finally:
        source.close()


# ---------------------------------------------------------------- plain users

NOBODY = 64321  # an uid that nobody has


def become(uid: int) -> None:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


def read_some(fd: int) -> bytes:
    return os.read(fd, 4096) if select.select([fd], [], [], 60)[0] else b"nothing"


def _as_user_with_grant(granted: str, body) -> object:  # type: ignore[no-untyped-def]
    """``body()`` in a process of the user who was given sets."""

    def child() -> object:
        become(NOBODY)
        return body()

    return children.run(child, seconds=60)


@pytest.mark.as_root
def test_a_user_with_a_grant_traces_his_own_processes_only() -> None:
    """Not root's, not a set-user-ID program that he starts; a positive control beside each."""

    def world() -> object:
        private_mounts()
        sc.mount("t", "/run", "tmpfs", 0, "mode=0755")
        granted = "/run/membrane-tracing"
        out: dict[str, object] = {"made": (grant.grant(NOBODY, each=2), grant.grant(NOBODY, each=2))}
        shutil.copy("/usr/bin/id", "/run/set-uid")
        os.chmod("/run/set-uid", 0o4755)
        shutil.copy("/usr/bin/id", "/run/plain")
        os.chmod("/run/plain", 0o755)

        def programs(seen: list[object]) -> list[str]:
            return [event.path for event in of_type(seen, ProcessStarted)]  # type: ignore[arg-type,attr-defined]

        def own() -> object:
            code = "import subprocess\nfor name in 'plain', 'set-uid', 'plain': subprocess.run(['/run/' + name])\n"
            seen = trace(system_python(code))
            return programs(seen), sorted({process.exe for _event, process in seen} - {""})

        def forbidden() -> object:
            place = f"{granted}/{NOBODY}/{sorted(os.listdir(f'{granted}/{NOBODY}'))[0]}"
            outcomes = {}
            for name in ("owner", "handlers", "members", "counted"):
                outcomes[name] = children.outcome(lambda name=name: os.close(bpf.reuse(f"{place}/{name}")))  # type: ignore[misc]
            outcomes["counted, to read"] = children.outcome(
                lambda: os.close(bpf.reuse(f"{place}/counted", read_only=True))
            )
            outcomes["seeds"] = children.outcome(lambda: os.close(bpf.reuse(f"{place}/seeds")))
            outcomes["new name"] = children.outcome(lambda: os.mkdir(f"{place}/new"))
            return outcomes

        def all_in_use() -> object:
            sources = [EbpfSource(), EbpfSource()]
            for source in sources:
                source.prepare()
            try:
                EbpfSource().prepare()
            except HostError as error:
                return error.cause
            return "three"

        def other() -> object:
            return ebpf.best_source()

        out["own"] = _as_user_with_grant(granted, own)
        out["forbidden"] = _as_user_with_grant(granted, forbidden)
        out["all in use"] = _as_user_with_grant(granted, all_in_use)
        told, tell = os.pipe()
        with waiting(execute("/bin/true")) as (victim, go):

            def tracer() -> None:
                """Names a process of root's, which root then releases."""
                become(NOBODY)
                source = EbpfSource()
                source.open(Scope(victim))
                os.write(tell, b"named")
                pieces: list[bytes] = []
                follow(source, pieces, lambda: not os.path.exists(f"/proc/{victim}"))
                os.write(tell, repr((source._counters()[ebpf._EVENTS], events_of(pieces))).encode())

            with waiting(tracer) as (_pid, start):
                start()
                out["named"] = read_some(told)
                go()
                os.waitpid(victim, 0)
                out["root's"] = read_some(told)

        def somebody_else() -> object:
            become(NOBODY + 1)
            return other()

        out["somebody else"] = children.run(somebody_else)
        grant.revoke()
        out["left"] = sorted(name for name in os.listdir("/run") if name.startswith("membrane"))
        return out

    assert children.run(world, seconds=120) == {
        "made": (2, 0),
        "own": (["/usr/bin/python3.11", "/run/plain", "/run/plain"], ["/run/plain", "/usr/bin/python3.11"]),
        "forbidden": {
            "owner": "EACCES",
            "handlers": "EACCES",
            "members": "ENOENT",
            "counted": "EACCES",
            "counted, to read": "ok",
            "seeds": "ok",
            "new name": "EACCES",
        },
        "all in use": "all 2 sets of tracing programs of this user are in use",
        "named": b"named",
        "root's": b"(0, [])",
        "somebody else": "eBPF tracing needs CAP_PERFMON and CAP_BPF, or root's permission (membrane setup tracing)",
        "left": [],
    }


@pytest.mark.as_root
def test_who_traces_goes_on_when_the_pins_are_taken_away(tmp_path) -> None:
    """``setup no-tracing``, or another version of the programs, while a sandbox is traced: neither loses anything."""

    def body() -> list[int]:
        private_mounts()
        state = str(tmp_path / "state")
        made = _shared(state)
        made.prepare()  # the first run; the next one finds the pins
        made.close()
        first = _shared(state)
        with waiting(execute("/bin/mkdir", str(tmp_path / "one"))) as (pid, go):
            first.open(Scope(pid))
            pins.remove(state, "/nonexistent")
            later = trace(execute("/bin/mkdir", str(tmp_path / "two")), _shared(state))
            pieces: list[bytes] = []
            go()
            follow(first, pieces, lambda: ended(pid) and not first.alive())
        first.close()
        return [len(of_type(seen, FileCreated)) for seen in (events_of(pieces), later)]

    assert children.run(body, seconds=90) == [1, 1]
