"""User notification on this kernel: what a process asks for, what is read of it, what is refused, and what it costs
when nobody reads.

``observe`` runs a function in a process with the filter and reads its calls here, as the tracer does.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import pickle
import select
import signal
import socket
import stat
import struct
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from children import outcome, unshare

from membrane.host import notify, seccomp
from membrane.host import syscalls as sc
from membrane.policy.model import Policy
from membrane.tracer import process
from membrane.tracer.notify import Notifications
from membrane.tracer.process import Scope

SECONDS = 60.0  # one observed process, under load
Attempts = dict[str, Callable[[], object]]


class Observed:
    """What the process came to, and the events of its calls."""

    def __init__(self, answer: Any, events: list[dict[str, Any]], lost: dict[str, int]) -> None:
        self.answer, self.events, self.lost = answer, events, lost

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]


def _install(*, reads: bool) -> int:
    return sc.seccomp_listen(seccomp.notify_program(reads=reads, machine=sc.MACHINE))


def _inside(body: Callable[[], Any], channel: socket.socket, pipe: int, main: bool, reads: bool) -> None:
    """The process with the filter: pid 2 of a pid namespace, with its own proc(5), without a capability."""
    sc.mount(None, "/", None, sc.MS_REC | sc.MS_PRIVATE)
    sc.mount("proc", "/proc", "proc", sc.MS_NOSUID | sc.MS_NODEV | sc.MS_NOEXEC)
    sc.drop_capabilities()
    sc.no_new_privs()
    root = os.open("/", os.O_PATH | os.O_DIRECTORY)
    listener = _install(reads=reads)
    if main:
        sc.seccomp_set_filter(seccomp.program(machine=sc.MACHINE))
    socket.send_fds(channel, [b"x"], [listener, root])
    os.close(listener)
    channel.recv(1)
    os.write(pipe, pickle.dumps(body()))


def observe(
    body: Callable[[], Any],
    workspace: Path,
    *,
    main: bool = False,
    reads: bool = False,
    limit: int = 0,
    on: Callable[[bytes], object] = lambda _line: None,
) -> Observed:
    """``body()`` in a process of its own, its working directory the workspace.

    ``main``: with the filter of the sandbox as well.  ``limit``: so many calls are answered, then nobody is there.
    ``on``: is given each line when it is written.
    """
    ours, theirs = socket.socketpair()
    receive, send = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads of the test runner
        pid = os.fork()
    if pid == 0:
        try:
            os.chdir(workspace)
            unshare(sc.CLONE_NEWNS | sc.CLONE_NEWPID)  # the pid namespace is that of the next child
            if os.fork() == 0:
                if os.fork() == 0:
                    _inside(body, theirs, send, main, reads)
                    os._exit(0)
                os.wait()
                os._exit(0)
            os.wait()
        finally:
            os._exit(0)
    theirs.close()
    os.close(send)
    ours.settimeout(SECONDS)
    lines: list[bytes] = []

    def write(line: bytes) -> None:
        lines.append(line)
        on(line)

    lost: dict[str, int] = {}
    answer = b""
    try:
        fds = socket.recv_fds(ours, 1, 2)[1]
        assert fds, "the filter was not installed"
        scope = Scope(
            "s",
            Policy(),
            str(workspace),
            ((str(workspace), ()),),
            os.geteuid(),
            os.getegid(),
            tuple(os.getgroups()),
            False,
        )
        source = Notifications(scope.replace(reads=reads), *fds, lambda _line: None)
        ours.send(b"g")
        answered = 0
        end = time.monotonic() + SECONDS
        while not source.ended and time.monotonic() < end and not (limit and answered >= limit):
            due = source.timeout()
            select.select([source.fileno()], [], [], SECONDS if due is None else due)
            answered += source.drain(write)
        if not limit:
            assert source.ended
            source.finish(write)
        source.close()
        lost = source.losses()
        while piece := os.read(receive, 65536):
            answer += piece
    finally:
        ours.close()
        os.close(receive)
        os.waitpid(pid, 0)
    return Observed(pickle.loads(answer) if answer else None, [json.loads(line) for line in lines], lost)


def outcomes(attempts: Attempts) -> Callable[[], dict[str, str]]:
    return lambda: {name: outcome(attempt) for name, attempt in attempts.items()}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return tmp_path.resolve()


def opened(path: str, flags: int, mode: int = 0o644) -> Callable[[], None]:
    return lambda: os.close(os.open(path, flags, mode))


def test_every_kind_of_call_is_told(workspace: Path) -> None:
    (workspace / "there").write_text("x")
    attempts: Attempts = {
        "create": opened("new", os.O_WRONLY | os.O_CREAT | os.O_APPEND),
        "write": opened("there", os.O_RDWR),
        "truncate": lambda: os.truncate("there", 0),
        "mkdir": lambda: os.mkdir("dir"),
        "symlink": lambda: os.symlink("there", "sym"),
        "link": lambda: os.link("there", "hard"),
        "fifo": lambda: os.mkfifo("fifo"),
        "rename": lambda: os.rename("hard", "dir/hard"),
        "unlink": lambda: os.unlink("dir/hard"),
        "rmdir": lambda: os.rmdir("dir"),
        "read": opened("there", os.O_RDONLY),
    }
    seen = observe(outcomes(attempts), workspace)
    assert set(seen.answer.values()) == {"ok"}, seen.answer
    at = f"{workspace}/"
    rows = [
        {k: v for k, v in event.items() if k in ("event", "path", "flags", "type", "to", "directory", "result")}
        for event in seen.events
        if event["event"] != "ProcessExited"
    ]
    opens = {"event": "FileOpened", "result": ""}
    made = {"event": "FileCreated", "result": ""}
    assert rows == [
        {**opens, "path": at + "new", "flags": ["wronly", "creat", "append"]},
        {**opens, "path": at + "there", "flags": ["rdwr"]},
        {**opens, "path": at + "there", "flags": ["wronly", "trunc"]},
        {**made, "path": at + "dir", "type": "directory", "to": ""},
        {**made, "path": at + "sym", "type": "symlink", "to": "there"},
        {**made, "path": at + "hard", "type": "link", "to": at + "there"},
        {**made, "path": at + "fifo", "type": "fifo", "to": ""},
        {"event": "FileRenamed", "path": at + "hard", "to": at + "dir/hard", "result": ""},
        {"event": "FileRemoved", "path": at + "dir/hard", "directory": False, "result": ""},
        {"event": "FileRemoved", "path": at + "dir", "directory": True, "result": ""},
    ]
    assert all(event["source"] == "notify" for event in seen.events)
    assert {event["process"]["pid"] for event in seen.events} == {2}


def test_modes_owners_and_attributes_are_told(workspace: Path) -> None:
    (workspace / "f").write_text("x")
    (workspace / "link").symlink_to("f")
    libc = ctypes.CDLL(None)

    def by_descriptor(number: int, *arguments: object) -> Callable[[], object]:
        def call() -> object:
            fd = os.open("f", os.O_RDONLY)
            try:
                if libc.syscall(number, fd, *arguments):
                    raise OSError(ctypes.get_errno() or errno.EIO, "")
            finally:
                os.close(fd)
            return None

        return call

    uid, gid = os.geteuid(), os.getegid()
    attempts: Attempts = {
        "chmod": lambda: os.chmod("f", 0o755),
        "fchmod": by_descriptor(91 if sc.MACHINE == "x86_64" else 52, 0o600),
        "through a link": lambda: os.chmod("link", 0o640),
        "fchmodat2 of a descriptor": by_descriptor(452, b"", 0o644, 0x1000),
        "chown": lambda: os.chown("f", uid, -1),
        "lchown": lambda: os.lchown("link", -1, gid),
        "fchown": by_descriptor(93 if sc.MACHINE == "x86_64" else 55, uid, gid),
        "setxattr": lambda: os.setxattr("f", "user.one", b"1"),
        "removexattr": lambda: os.removexattr("f", "user.one"),
        "not there": lambda: os.chmod("none", 0o777),
        "not ours": lambda: os.chmod("/proc/sys/kernel/ostype", 0o444),
        "bad descriptor": lambda: os.fchmod(99, 0o666),
    }
    seen = observe(outcomes(attempts), workspace)
    at = f"{workspace}/"
    rows = [(e["path"], e["change"], e["value"], e["result"]) for e in seen.of("FileChanged")]
    assert rows == [
        (at + "f", "mode", "0755", ""),
        (at + "f", "mode", "0600", ""),
        (at + "f", "mode", "0640", ""),
        (at + "f", "mode", "0644", ""),
        (at + "f", "owner", f"{uid}:", ""),
        (at + "link", "owner", f":{gid}", ""),
        (at + "f", "owner", f"{uid}:{gid}", ""),
        (at + "f", "attribute", "user.one", ""),
        (at + "f", "attribute removed", "user.one", ""),
        (at + "none", "mode", "0777", "ENOENT"),
        ("/proc/sys/kernel/ostype", "mode", "0444", "" if uid == 0 else "EPERM"),
        ("", "mode", "0666", "EBADF"),
    ]
    refused = {"not there": "ENOENT", "not ours": "EPERM", "bad descriptor": "EBADF"}
    assert {name: answer for name, answer in seen.answer.items() if answer != "ok"} == refused


def test_a_connection_is_told_with_its_socket(workspace: Path) -> None:
    def body() -> list[int]:
        found = []
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            with socket.socket(family) as server, socket.socket(family) as client:
                server.bind((host, 0))
                server.listen()
                client.connect(server.getsockname())
                found += [server.getsockname()[1], os.fstat(client.fileno()).st_ino]
        return found

    seen = observe(body, workspace)
    calls = [(event["port"], event["socket"]) for event in seen.of("SocketCalled") if event["call"] == "connect"]
    assert [number for pair in calls for number in pair] == seen.answer
    assert {event["socket"] for event in seen.of("SocketCalled") if event["call"] == "bind"} == {0}


def test_opens_for_reading_are_told_when_asked(workspace: Path) -> None:
    (workspace / "there").write_text("x")
    seen = observe(outcomes({"read": opened("there", os.O_RDONLY)}), workspace, reads=True)
    assert seen.answer == {"read": "ok"}
    assert [(event["path"], event["flags"]) for event in seen.of("FileOpened")] == [(f"{workspace}/there", ["rdonly"])]


def test_the_prediction_is_what_the_kernel_says(workspace: Path) -> None:
    (workspace / "file").write_text("x")
    (workspace / "dir").mkdir()
    (workspace / "closed").mkdir()
    (workspace / "closed").chmod(0o500)
    (workspace / "mine").write_text("x")
    (workspace / "mine").chmod(0)
    (workspace / "loop").symlink_to("loop")
    (workspace / "link").symlink_to("file")
    wronly = os.O_WRONLY
    attempts: Attempts = {
        "not there": opened("nothing", wronly),
        "no parent": opened("nothing/x", wronly | os.O_CREAT),
        "below a file": opened("file/x", wronly | os.O_CREAT),
        "a directory": opened("dir", wronly),
        "exclusive": opened("file", wronly | os.O_CREAT | os.O_EXCL),
        "exclusive link": opened("link", wronly | os.O_CREAT | os.O_EXCL),
        "not followed": opened("link", wronly | os.O_NOFOLLOW),
        "loop": opened("loop", wronly),
        "closed file": opened("mine", wronly),
        "closed directory": opened("closed/x", wronly | os.O_CREAT),
        "mkdir there": lambda: os.mkdir("dir"),
        "mkdir closed": lambda: os.mkdir("closed/x"),
        "symlink there": lambda: os.symlink("x", "file"),
        "unlink nothing": lambda: os.unlink("nothing"),
        "unlink a directory": lambda: os.unlink("dir"),
        "rmdir a file": lambda: os.rmdir("file"),
        "rename nothing": lambda: os.rename("nothing", "x"),
        "truncate closed": lambda: os.truncate("mine", 0),
        "too long": lambda: os.unlink("x" * 4096),
        "empty": lambda: os.unlink(""),
        "bad descriptor": lambda: os.unlink("x", dir_fd=99),
        "fine": opened("file", wronly),
    }
    seen = observe(outcomes(attempts), workspace)
    predicted = [event["result"] or "ok" for event in seen.events if "result" in event]
    assert dict(zip(attempts, predicted, strict=True)) == seen.answer
    assert set(seen.answer.values()) >= {"ok", "ENOENT", "EEXIST", "EACCES", "EISDIR", "ENOTDIR", "ELOOP", "EBADF"}


PROTECTED: dict[str, Callable[[], object]] = {
    ".mcp.json": opened(".mcp.json", os.O_WRONLY | os.O_CREAT),
    ".MCP.JSON": opened(".MCP.JSON", os.O_WRONLY | os.O_CREAT),
    ".envrc": lambda: os.rename("harmless", ".envrc"),
    ".bashrc": lambda: os.link("harmless2", ".bashrc"),
    ".vscode": lambda: os.mkdir(".vscode"),
    "sub/.git": lambda: os.symlink("/tmp", "sub/.git"),
    "repo/.git/hooks/pre-commit": opened("repo/.git/hooks/pre-commit", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o755),
    "repo/.git/hooks/directory": lambda: os.mkdir("repo/.git/hooks/directory"),
    ".gitconfig": lambda: os.mkfifo(".gitconfig"),
    ".idea": lambda: os.mkdir("/proc/self/cwd/.idea"),
    "sub/.vscode": lambda: os.mkdir("sub/.vscode"),
    "repo/.git/commondir": opened("repo/.git/commondir", os.O_WRONLY | os.O_CREAT),
    "repo/.git/config.worktree": opened("repo/.git/config.worktree", os.O_WRONLY | os.O_CREAT),
    "repo/.git/info/attributes": opened("repo/.git/info/attributes", os.O_WRONLY | os.O_CREAT),
    "repo/.git/remotes": lambda: os.mkdir("repo/.git/remotes"),
    "repo/.git/branches/b": opened("repo/.git/branches/b", os.O_WRONLY | os.O_CREAT),
    "repo/.git/whatever": opened("repo/.git/whatever", os.O_WRONLY | os.O_CREAT),
    "repo/.git/config": lambda: os.rename("evil", "repo/.git/config"),  # what it brings is judged
    "other/.git/config.worktree": lambda: os.link("fine", "other/.git/config.worktree"),
    "other/.git/hooks": lambda: os.rename("h", "other/.git/hooks"),
    "other/.git/rebase-merge": lambda: os.rename("r", "other/.git/rebase-merge"),
    "plain/.git": lambda: os.rename("g", "plain/.git"),
    "bare/HEAD": lambda: os.rename("bare/HEAD.new", "bare/HEAD"),  # with it, the directory is a repository
    "store/hooks/update": opened("store/hooks/update", os.O_WRONLY | os.O_CREAT),  # it is one, without a ``.git``
    "store/hooks/pre-receive": lambda: os.link("harmless2", "store/hooks/pre-receive"),
    "store/hooks/post-update": lambda: os.rename("store/hooks/post-update.sample", "store/hooks/post-update"),
    "store/branches/o": opened("store/branches/o", os.O_WRONLY | os.O_CREAT),
    ".claude": lambda: os.rename("c", ".claude"),
    "repo/.git/worktrees/there/config.worktree": opened(
        "repo/.git/worktrees/there/config.worktree", os.O_WRONLY | os.O_CREAT
    ),
    "rust-toolchain": lambda: os.symlink("harmless", "rust-toolchain"),
    "sub/rust-toolchain": lambda: os.link("fine", "sub/rust-toolchain"),
    "sub/rust-toolchain.toml": lambda: os.rename("evil2", "sub/rust-toolchain.toml"),
}
HARMLESS: dict[str, Callable[[], object]] = {
    "repo/.git": lambda: os.mkdir("repo/.git2"),
    "sample": opened("repo/.git/hooks/pre-commit.sample", os.O_WRONLY | os.O_CREAT),
    "sample of a bare one": opened("store/hooks/pre-push.sample", os.O_WRONLY | os.O_CREAT),
    "hooks of nobody": opened("bare/hooks/update", os.O_WRONLY | os.O_CREAT),
    "config": opened("repo/.git/config", os.O_WRONLY | os.O_CREAT),
    "object": opened("repo/.git/.mcp.json.lock", os.O_WRONLY | os.O_CREAT),
    "package": lambda: os.mkdir("node_modules/.vscode"),
    "toolchain": opened("rust-toolchain.toml", os.O_WRONLY | os.O_CREAT),
    "worktree": lambda: [  # as git worktree add makes it beside one with a sparse checkout
        os.mkdir("repo/.git/worktrees/new"),
        os.close(os.open("repo/.git/worktrees/new/config.worktree", os.O_WRONLY | os.O_CREAT | os.O_EXCL)),
    ],
    "clone": lambda: [os.mkdir(name) for name in ("new", "new/.git", "new/.vscode")],  # of a repository that has it
    "existing": opened("repo/.git/hooks/existing", os.O_WRONLY | os.O_CREAT),
    "outside": lambda: os.close(os.open(os.devnull, os.O_WRONLY)),
}


def _tree(workspace: Path) -> None:
    for name in (
        "sub", "repo/.git/hooks", "repo/.git/info", "repo/.git/branches", "node_modules", "dangling", "other/.git",
        "h", "r", "g/hooks", "plain", "bare/objects", "bare/refs", "c/hooks", "repo/.git/worktrees/there",
        "bare/hooks", "store/objects", "store/refs", "store/hooks", "store/branches",
    ):  # fmt: skip
        (workspace / name).mkdir(parents=True)
    for name in ("harmless", "harmless2", "repo/.git/hooks/existing", "h/post-checkout", "bare/HEAD.new",
                 "store/HEAD", "store/hooks/post-update.sample"):  # fmt: skip
        (workspace / name).write_text("x")
    for name in ("evil", "evil2", "bare/config", "g/config"):
        (workspace / name).write_text("[core]\n\tfsmonitor = x\n")
    (workspace / "fine").write_text("[core]\n\tbare = false\n")
    (workspace / "r" / "strategy").write_text("x/../evil\n")


def test_protected_names_are_refused_before_they_exist(
    workspace: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    _tree(workspace)
    seen = observe(lambda: {**outcomes(PROTECTED)(), **outcomes(HARMLESS)()}, workspace)
    assert seen.answer == {**dict.fromkeys(PROTECTED, "EACCES"), **dict.fromkeys(HARMLESS, "ok")}
    made = {"repo/.git/config"}  # by a harmless attempt
    assert {name for name in PROTECTED if os.path.lexists(workspace / name)} == made
    assert (workspace / "repo/.git/config").read_text() == ""
    denied = seen.of("AccessDenied")
    assert {event["access"]["path"] for event in denied} == set(PROTECTED)
    assert {(event["reason"], event["access"]["operation"]) for event in denied} == {("protected name", "write")}
    control = tmp_path_factory.mktemp("control").resolve()
    _tree(control)

    def elsewhere() -> dict[str, str]:
        os.chdir(control)  # the same calls, in a tree that is no workspace
        return outcomes(PROTECTED)()

    assert observe(elsewhere, workspace).answer == dict.fromkeys(PROTECTED, "ok")


def test_one_name_by_many_ways(workspace: Path) -> None:
    (workspace / "a/b").mkdir(parents=True)
    (workspace / "way").symlink_to("a/b")
    (workspace / "absolute").symlink_to(workspace / "a")
    (workspace / "proc").symlink_to("/proc/self/cwd/a")
    (workspace / "name").symlink_to("a/b/x")

    def body() -> dict[str, str]:
        here = os.open("a", os.O_RDONLY | os.O_DIRECTORY)
        ways = {
            "plain": opened("a/b/x", os.O_WRONLY | os.O_CREAT),
            "dots": opened("./a/../a//b/./x", os.O_WRONLY | os.O_CREAT),
            "link": opened("way/x", os.O_WRONLY | os.O_CREAT),
            "absolute link": opened("absolute/b/x", os.O_WRONLY | os.O_CREAT),
            "last link": opened("name", os.O_WRONLY | os.O_CREAT),
            "descriptor": lambda: os.close(os.open("b/x", os.O_WRONLY | os.O_CREAT, dir_fd=here)),
            "proc": opened("/proc/self/cwd/a/b/x", os.O_WRONLY | os.O_CREAT),
            "thread": opened("/proc/thread-self/cwd/a/b/x", os.O_WRONLY | os.O_CREAT),
            "own number": opened(f"/proc/{os.getpid()}/fd/{here}/b/x", os.O_WRONLY | os.O_CREAT),
            "link to proc": opened("proc/b/x", os.O_WRONLY | os.O_CREAT),
            "root": opened(f"/proc/self/root{workspace}/a/b/x", os.O_WRONLY | os.O_CREAT),
            "above the root": opened("/../.." + str(workspace / "a/b/x"), os.O_WRONLY | os.O_CREAT),
        }
        return outcomes(ways)()

    seen = observe(body, workspace)
    paths = dict(zip(seen.answer, (event["path"] for event in seen.of("FileOpened")), strict=True))
    assert set(seen.answer.values()) == {"ok"} and paths == dict.fromkeys(seen.answer, f"{workspace}/a/b/x")


def test_what_can_not_be_read_is_left_to_the_kernel(workspace: Path) -> None:
    def body() -> list[str]:
        libc = ctypes.CDLL(None, use_errno=True)
        found = []
        for address in (0, 8, 0xFFFFFFFFFFFF0000):
            libc.unlink(ctypes.c_void_p(address))
            found.append(errno.errorcode[ctypes.get_errno()])
        pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)  # a name across a page, and one that ends with the memory
        start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        for offset in (mmap.PAGESIZE - 2, 2 * mmap.PAGESIZE - 5):
            pages[offset : offset + 5] = b"name\0"
            libc.mkdir(ctypes.c_void_p(start + offset), 0o755)
            found.append(str(ctypes.get_errno()) if not os.path.isdir("name") else "made")
            os.rmdir("name")
        return found

    seen = observe(body, workspace)
    assert seen.answer == ["EFAULT"] * 3 + ["made"] * 2
    assert [event["path"] for event in seen.of("FileCreated")] == [f"{workspace}/name"] * 2


def test_a_caller_that_can_not_be_read_does_nothing_unseen(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel closes the memory of a program that its caller may execute and not read (fs/exec.c would_dump)."""
    closed = {"one": True}

    def read_text(*arguments: Any) -> bytes:
        if closed.pop("one", False):
            raise PermissionError(errno.EPERM, "process_vm_readv")
        return real(*arguments)

    real = notify.read_text
    monkeypatch.setattr(notify, "read_text", read_text)
    seen = observe(outcomes({"first": lambda: os.mkdir("a"), "control": lambda: os.mkdir("b")}), workspace)
    assert seen.answer == {"first": "EPERM", "control": "ok"}
    assert [event["reason"] for event in seen.of("AccessDenied")] == ["caller cannot be read"]


def test_a_program_and_its_end(workspace: Path) -> None:
    odd = "na\nme\x1b[31m"
    script = workspace / odd
    script.write_text("#!/bin/sh\nexit 7\n")
    script.chmod(0o755)
    long = "x" * 70_000

    def body() -> int:
        pid = os.fork()
        if pid == 0:
            os.execv(f"./{odd}", ["zero", "a b", "", long])
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    seen = observe(body, workspace)
    assert seen.answer == 7
    [started] = seen.of("ProcessStarted")
    assert started["path"] == f"{workspace}/na\\u{{a}}me\\u{{1b}}[31m" and started["result"] == ""
    assert started["argv"][:3] == ["zero", "a b", ""] and started["cwd"] == str(workspace)
    assert started["argv"][3]["truncated"] and started["argv"][3]["text"] == "x" * 4096
    assert started["parent"] == 2 and started["process"]["pid"] == 3
    [ended] = [event for event in seen.of("ProcessExited") if event["process"]["pid"] == 3] or [None]
    if ended is None:  # a kernel that does not tell how a process ended (before Linux 6.15)
        assert seen.lost.get("ProcessExited")
    else:
        assert (ended["exit_code"], ended["signal"]) == (7, 0)


def test_addresses(workspace: Path) -> None:
    def body() -> list[str]:
        found = []
        for family, address in (
            (socket.AF_INET, ("127.0.0.1", 1)),
            (socket.AF_INET6, ("::1", 1)),
            (socket.AF_UNIX, "sock"),
            (socket.AF_UNIX, b"\0abstract"),
        ):
            with socket.socket(family) as sock:
                found.append(outcome(lambda sock=sock, address=address: sock.connect(address)))
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind("sock")
        return found

    seen = observe(body, workspace)
    assert "ok" not in seen.answer
    rows = [(event["call"], event["family"], event["address"], event["port"]) for event in seen.of("SocketCalled")]
    assert rows == [
        ("connect", "inet", "127.0.0.1", 1),
        ("connect", "inet6", "::1", 1),
        ("connect", "unix", "sock", 0),
        ("connect", "unix", "@abstract", 0),
        ("bind", "unix", "sock", 0),
    ]


def test_the_other_filter_refuses_first(workspace: Path) -> None:
    (workspace / "file").write_text("x")

    def raw(number: int, *arguments: object) -> Callable[[], None]:
        def call() -> None:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.syscall(ctypes.c_long(number), *arguments) < 0:
                raise OSError(ctypes.get_errno(), "")

        return call

    attempts: Attempts = {
        "set user id": opened("suid", os.O_WRONLY | os.O_CREAT, 0o4755),
        "mknod set user id": lambda: os.mknod("node", stat.S_IFREG | 0o4755),
        "openat2": raw(437, -100, b"other", struct.pack("=QQQ", os.O_WRONLY | os.O_CREAT, 0o600, 0), 24),
        "io_uring": raw(425, 1, bytes(120)),
        "x32": raw(0x40000000 | 257, -100, b"other", os.O_WRONLY | os.O_CREAT, 0o600),
        "control": opened("file", os.O_WRONLY),
    }
    seen = observe(outcomes(attempts), workspace, main=True)
    assert seen.answer == {
        "set user id": "EPERM",
        "mknod set user id": "EPERM",
        "openat2": "ENOSYS",
        "io_uring": "ENOSYS",
        "x32": "ENOSYS",
        "control": "ok",
    }
    assert [event["path"] for event in seen.of("FileOpened")] == [f"{workspace}/file"]


def test_nobody_makes_a_listener_below_ours(workspace: Path) -> None:
    assert observe(outcomes({"second": lambda: _install(reads=False)}), workspace).answer == {"second": "EBUSY"}


def test_children_and_threads_keep_the_filter(workspace: Path) -> None:
    def body() -> int:
        import threading

        thread = threading.Thread(target=os.mkdir, args=("by-thread",))
        thread.start()
        thread.join()
        pid = os.fork()
        if pid == 0:
            if os.fork() == 0:
                os.setsid()
                os.mkdir("by-grandchild")
            else:
                os.wait()
            os._exit(0)
        os.waitpid(pid, 0)
        return os.getpid()

    seen = observe(body, workspace)
    made = {event["path"].rpartition("/")[2]: event["process"]["pid"] for event in seen.of("FileCreated")}
    assert made.pop("by-thread") == seen.answer and list(made) == ["by-grandchild"]


def test_without_a_reader_the_calls_do_not_exist(workspace: Path) -> None:
    def body() -> list[str]:
        first = outcome(lambda: os.mkdir("one"))
        found = "ok"
        end = time.monotonic() + SECONDS
        while found == "ok" and time.monotonic() < end:  # until the reader has closed
            found = outcome(opened("x", os.O_WRONLY | os.O_CREAT))
        return [first, found, outcome(opened("one", os.O_RDONLY))]

    seen = observe(body, workspace, limit=1)
    assert seen.answer == ["ok", "ENOSYS", "ok"]


def test_equal_refusals_are_counted(workspace: Path) -> None:
    def body() -> set[str]:
        return {outcome(lambda: os.mkdir(".vscode")) for _ in range(300)}

    seen = observe(body, workspace)
    assert seen.answer == {"EACCES"}
    counts = [event["count"] for event in seen.of("AccessDenied")]
    assert counts[0] == 1 and sum(counts) == 300 and len(counts) < 100
    assert len(seen.of("FileCreated")) == 300


def test_repetitions_are_told_while_nothing_else_happens(workspace: Path) -> None:
    told, tell = os.pipe()

    def body() -> bytes:
        for _ in range(5):
            outcome(lambda: os.mkdir(".vscode"))
        return os.read(told, 1) if select.select([told], [], [], SECONDS / 2)[0] else b"never"

    counts: list[int] = []

    def on(line: bytes) -> None:
        event = json.loads(line)
        if event["event"] == "AccessDenied":
            counts.append(event["count"])
            if sum(counts) == 5:
                os.write(tell, b"x")

    seen = observe(body, workspace, on=on)
    os.close(told)
    os.close(tell)
    assert seen.answer == b"x" and counts[0] == 1


def test_a_view_resolves_as_the_kernel_does(workspace: Path) -> None:
    (workspace / "a/b").mkdir(parents=True)
    (workspace / "l").symlink_to("a/b")
    (workspace / "up").symlink_to("../..")
    (workspace / "gone").symlink_to("a/nothing")
    view = notify.View(os.open("/", os.O_PATH | os.O_DIRECTORY), nested=False)
    base = os.fsencode(workspace)
    for path in (
        "l",
        "l/..",
        "up",
        "up/x",
        "gone",
        "gone/x",
        ".",
        "l/new",
        "/etc/../l",
        "/proc/self",
        "/dev/fd/0",
        "a//",
    ):
        place = view.resolve(os.getpid(), base, os.fsencode(path), follow=True)
        expected = os.path.realpath(workspace / path)
        if path.startswith(("/proc", "/dev/fd")):
            continue
        assert os.fsdecode(place.path) == expected, path
    view_root = notify.View(os.open(workspace, os.O_PATH | os.O_DIRECTORY), nested=False)
    os.symlink("/a", workspace / "rooted")
    place = view_root.resolve(os.getpid(), b"/", b"rooted/../../b", follow=True)
    assert place.status is None  # a link's "/" is the root of the view, and ".." does not leave it


def test_a_tracer_that_does_not_come_to_its_end_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second wait would take an hour."""
    scope = Scope("s", Policy(), "/", (), os.geteuid(), os.getegid(), (), False)
    tracer = process.Tracer(scope, live=False, store=None, take=lambda _line: None)
    os.kill(tracer.pid, signal.SIGSTOP)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(process, "END", 0.1)
            assert not tracer.finish()
        monkeypatch.setattr(process, "END", 3600.0)
        assert not tracer.finish()
    finally:
        assert not tracer.stop()
    assert tracer.pid == 0
