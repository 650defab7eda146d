"""Landlock as the command gets it: the errno of each refusal, and the same action without the restriction."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from children import outcome, run, unshare

from membrane.errors import HostError
from membrane.host import landlock
from membrane.host import syscalls as sc

Actions = dict[str, Callable[[], object]]
ABI = landlock.abi()
pytestmark = pytest.mark.needs_kernel("landlock")


def write(path: Path, flags: int = os.O_CREAT) -> None:
    os.close(os.open(path, os.O_WRONLY | flags, 0o644))


def restricted(
    actions: dict[str, Callable[[], object]], writable: Sequence[str], *, apply: bool = True
) -> dict[str, str]:
    """The outcome of each action, in one child under Landlock."""

    def body() -> dict[str, str]:
        if apply:
            sc.no_new_privs()
            assert landlock.restrict(("/",), writable) == ABI
        return {name: outcome(action) for name, action in actions.items()}

    return run(body)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """``in`` is writable, ``out`` is not; both hold a file and a directory."""
    for side in ("in", "out"):
        (tmp_path / side / "dir").mkdir(parents=True)
        (tmp_path / side / "file").write_text("text")
        (tmp_path / side / "victim").write_text("text")
    return tmp_path


def actions(side: Path) -> Actions:
    """Everything that changes ``side``; each can be done once."""
    return {
        "write": lambda: write(side / "file", 0),
        "create": lambda: write(side / "new"),
        "O_TRUNC": lambda: write(side / "file", os.O_TRUNC),
        "truncate": lambda: os.truncate(side / "file", 1),
        "mkdir": lambda: os.mkdir(side / "made"),
        "rmdir": lambda: os.rmdir(side / "dir"),
        "symlink": lambda: os.symlink("x", side / "symlink"),
        "link": lambda: os.link(side / "file", side / "link"),
        "fifo": lambda: os.mkfifo(side / "fifo"),
        "socket": lambda: socket.socket(socket.AF_UNIX).bind(str(side / "socket")),
        "rename": lambda: os.rename(side / "file", side / "renamed"),
        "unlink": lambda: os.unlink(side / "victim"),
    }


def test_outside_the_writable_paths_nothing_can_be_changed(tree: Path) -> None:
    refused = restricted(actions(tree / "out"), [str(tree / "in")])
    if ABI < 3:
        del refused["truncate"]  # this kernel cannot bind truncate(2)
    assert set(refused.values()) == {"EACCES"}, refused
    assert (tree / "out" / "file").read_text() == "text"
    control = restricted(actions(tree / "out"), [], apply=False)
    assert set(control.values()) == {"ok"}, control


def test_below_a_writable_path_everything_works(tree: Path) -> None:
    done = restricted(actions(tree / "in"), [str(tree / "in")])
    assert set(done.values()) == {"ok"}, done


def test_nothing_crosses_the_border(tree: Path) -> None:
    inside, outside = tree / "in", tree / "out"
    crossing: Actions = {
        "move out": lambda: os.rename(inside / "file", outside / "moved"),
        "move in": lambda: os.rename(outside / "file", inside / "moved"),
        "link out": lambda: os.link(inside / "file", outside / "linked"),
        "link in": lambda: os.link(outside / "file", inside / "linked"),
        "through a symlink": lambda: (os.symlink(outside / "file", inside / "s"), write(inside / "s", 0)),
        "through ..": lambda: write(inside / ".." / "out" / "file", 0),
    }
    refused = restricted(crossing, [str(inside)])
    assert set(refused.values()) <= {"EACCES", "EXDEV"}, refused
    assert restricted({"move out": crossing["move out"]}, [], apply=False) == {"move out": "ok"}


def test_reading_and_executing_work_everywhere(tree: Path) -> None:
    assert restricted(
        {
            "read": (tree / "out" / "file").read_text,
            "list": lambda: os.listdir(tree / "out"),
            "execute": lambda: subprocess.run(["/bin/true"], check=True, stdin=subprocess.PIPE),
            "write below /dev": lambda: write(Path("/dev/null"), 0),
        },
        [],
    ) == {"read": "ok", "list": "ok", "execute": "ok", "write below /dev": "EACCES"}


def test_a_writable_file_and_paths_that_are_not_there(tree: Path) -> None:
    (tree / "loop").symlink_to("loop")
    file = tree / "out" / "file"
    writable = [str(tree / "missing"), str(file), str(file / "below"), str(tree / "loop"), "/dev/null"]
    assert restricted(
        {
            "that file": lambda: write(file, os.O_TRUNC),
            "its neighbour": lambda: write(tree / "out" / "victim", 0),
            "null": lambda: write(Path("/dev/null"), 0),
            "a new file of a missing name": lambda: write(tree / "missing"),
        },
        writable,
    ) == {"that file": "ok", "its neighbour": "EACCES", "null": "ok", "a new file of a missing name": "EACCES"}


def test_device_nodes_are_refused_below_a_writable_path(tree: Path) -> None:
    node = {"char": lambda: os.mknod(tree / "in" / "null", 0o20666, os.makedev(1, 3))}
    if os.geteuid() == 0:
        assert restricted(node, [str(tree / "in")]) == {"char": "EACCES"}
        assert restricted(node, [], apply=False) == {"char": "ok"}
    else:  # the kernel asks for CAP_MKNOD first or second, either way it is no
        assert restricted(node, [str(tree / "in")])["char"] in ("EACCES", "EPERM")


def test_children_inherit_it(tree: Path) -> None:
    shell = partial(
        subprocess.run, ["sh", "-c", 'echo x > "$0"', str(tree / "out" / "file")], stderr=subprocess.DEVNULL
    )
    assert run(lambda: (sc.no_new_privs(), landlock.restrict(("/",), ("/dev",)), shell().returncode)[2]) == 2
    assert run(lambda: shell().returncode) == 0


def test_other_read_only_paths_than_the_root(tree: Path) -> None:
    def body() -> list[str]:
        sc.no_new_privs()
        landlock.restrict((str(tree / "out"),), ())
        return [outcome((tree / side / "file").read_text) for side in ("out", "in")]

    assert run(body) == ["ok", "EACCES"]


def test_a_socket_with_a_path_that_was_made_outside_is_closed_where_the_kernel_can(tmp_path: Path) -> None:
    """From ABI 9 on (Linux 7.1), also for a socket that is bound later; before that it is open, as docs say."""
    paths = {name: tmp_path / name for name in ("listed", "other", "own")}
    with socket.socket(socket.AF_UNIX) as listed, socket.socket(socket.AF_UNIX) as other:
        for name, listener in (("listed", listed), ("other", other)):
            listener.bind(str(paths[name]))
            listener.listen()

        def own_socket() -> None:
            served = socket.socket(socket.AF_UNIX)
            served.bind(str(paths["own"]))
            served.listen()
            socket.socket(socket.AF_UNIX).connect(str(paths["own"]))

        tries: Actions = {
            "listed": lambda: socket.socket(socket.AF_UNIX).connect(str(paths["listed"])),
            "other": lambda: socket.socket(socket.AF_UNIX).connect(str(paths["other"])),
            "own": own_socket,
        }
        writable = [str(tmp_path), str(paths["listed"])]
        assert restricted(tries, writable) == {
            "listed": "ok",
            "other": "EACCES" if ABI >= 9 else "ok",
            "own": "ok",
        }


@pytest.mark.parametrize(
    ("version", "other_sockets", "handles"), [(8, False, False), (9, False, True), (9, True, False)]
)
def test_what_a_kernel_of_abi_9_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, other_sockets: bool, handles: bool
) -> None:
    resolve_unix = 1 << 16  # include/uapi/linux/landlock.h of Linux 7.1
    attributes: list[bytes] = []
    rules: list[int] = []
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        monkeypatch.setattr(landlock, "abi", lambda: version)
        monkeypatch.setattr(sc, "landlock_create_ruleset", lambda data: attributes.append(data) or os.dup(0))
        monkeypatch.setattr(
            sc, "landlock_add_rule", lambda _set, _kind, data: rules.append(int.from_bytes(data[:8], "little"))
        )
        monkeypatch.setattr(sc, "landlock_restrict_self", lambda _set: None)
        assert landlock.restrict(("/",), (str(tmp_path), str(path)), other_sockets=other_sockets) == version
    assert bool(int.from_bytes(attributes[0][:8], "little") & resolve_unix) is handles
    assert [bool(rights & resolve_unix) for rights in rules] == [False, False, handles]  # the socket itself alone


def test_processes_and_abstract_sockets_outside_are_out_of_reach() -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("")  # autobind: an abstract name
    listener.listen()

    def own_child() -> None:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def own_socket() -> None:
        served = socket.socket(socket.AF_UNIX)
        served.bind("")
        served.listen()
        socket.socket(socket.AF_UNIX).connect(served.getsockname())

    tries: Actions = {
        "signal": lambda: os.kill(os.getppid(), 0),
        "connect": lambda: socket.socket(socket.AF_UNIX).connect(listener.getsockname()),
        "own child": own_child,
        "own socket": own_socket,
    }
    with listener:
        refused = "EPERM" if ABI >= 6 else "ok"  # older kernels have no scopes
        assert restricted(tries, []) == {"signal": refused, "connect": refused, "own child": "ok", "own socket": "ok"}
        assert set(restricted(tries, [], apply=False).values()) == {"ok"}


@pytest.mark.needs_kernel("landlock without TCP")
@pytest.mark.parametrize("signals_only", [False, True])
def test_names_go_from_one_directory_to_another_in_a_domain_around_which_signals_are_kept(
    tree: Path, signals_only: bool
) -> None:
    """A layer of scopes alone refuses that to every domain with file rights inside it (LANDLOCK_ACCESS_FS_REFER)."""

    def body() -> list[str]:
        sc.no_new_privs()
        landlock.restrict_scopes(signals_only=signals_only)
        landlock.confine([(str(tree / "in"), landlock.WRITE), (str(tree / "out"), landlock.READ)])
        side = tree / "in"
        moves: Actions = {
            "rename": lambda: os.rename(side / "file", side / "dir" / "file"),
            "link": lambda: os.link(side / "victim", side / "dir" / "victim"),
            "out": lambda: os.rename(side / "victim", tree / "out" / "dir" / "victim"),
            "in": lambda: os.link(tree / "out" / "file", side / "dir" / "other"),
        }
        return [outcome(move) for move in moves.values()]

    across = "ok" if signals_only or ABI < 6 else "EXDEV"
    assert run(body)[:2] == [across, across]
    assert not (tree / "out" / "dir" / "victim").exists() and not (tree / "in" / "dir" / "other").exists()


@pytest.mark.needs_kernel("landlock without TCP")
def test_a_grant_is_no_link(tree: Path) -> None:
    (tree / "link").symlink_to("in")

    def body() -> list[str]:
        sc.no_new_privs()
        landlock.confine([(str(tree / name), landlock.READ) for name in ("link", "link/dir", "out")])
        return [outcome((tree / name / "file").read_text) for name in ("link", "in", "out")]

    assert run(body) == ["EACCES", "EACCES", "ok"]


@pytest.mark.parametrize("version", range(1, ABI + 1))
def test_every_abi_up_to_the_kernels_own(tree: Path, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older kernel gets the rights and the attribute size that it knows."""
    monkeypatch.setattr(landlock, "abi", lambda: version)

    def body() -> list[str]:
        sc.no_new_privs()
        assert landlock.restrict(("/",), (str(tree / "in"),)) == version
        return [outcome(lambda side=side: write(tree / side / "file", 0)) for side in ("in", "out")]

    assert run(body) == ["ok", "EACCES"]


def test_without_landlock_nothing_is_done(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (errno.ENOSYS, errno.EOPNOTSUPP):

        def absent(_attributes: bytes | None, _flags: int = 0, number: int = number) -> int:
            raise OSError(number, "landlock_create_ruleset")

        monkeypatch.setattr(sc, "landlock_create_ruleset", absent)
        assert run(lambda: (landlock.restrict(("/",), ()), outcome(lambda: write(tree / "out" / "file", 0)))) == (
            0,
            "ok",
        )


def test_a_refusal_is_an_error_and_never_a_weaker_start() -> None:
    def body() -> str:
        unshare(0)
        sc.drop_capabilities()
        try:
            landlock.restrict(("/",), ())  # without no_new_privs
        except HostError as error:
            return error.headline()
        return "applied"

    assert run(body) == "cannot apply Landlock: landlock_restrict_self: Operation not permitted"
