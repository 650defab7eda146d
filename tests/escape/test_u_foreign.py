"""U: sockets in the workspace that somebody outside listens on, at the start and later."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from escape_box import Box, inside, until

CONNECT = """
import socket
def connect(path, kind=socket.SOCK_STREAM):
    with socket.socket(socket.AF_UNIX, kind) as one:
        one.setblocking(False)  # nobody accepts
        one.connect(path)
def send(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.setblocking(False)
        one.sendto(b"x", path)
def answer(line):
    what, _, path = line.partition(" ")
    if what == "connect":
        return str(attempt("", lambda: connect(path)))
    if what == "datagram":
        return str(attempt("", lambda: connect(path, socket.SOCK_DGRAM)))
    if what == "send":
        return str(attempt("", lambda: send(path)))
    if what == "hold":
        global held
        return str(attempt("", lambda: globals().__setitem__("held", os.open(path, os.O_PATH))))
    if what == "held":
        return str(attempt("", lambda: connect(f"/proc/self/fd/{held}")))
    if what == "move":
        return str(attempt("", lambda: os.rename(*path.split())))
    if what == "link":
        return str(attempt("", lambda: os.link(*path.split())))
    if what == "mkdir":
        return str(attempt("", lambda: os.mkdir(path)))
    if what == "serve":
        global own
        own = socket.socket(socket.AF_UNIX); own.bind(path); own.listen()
        return "ok"
"""


@contextmanager
def listening(directory: Path, name: str, kind: int = socket.SOCK_STREAM) -> Iterator[None]:
    """A program outside: its path may be longer than an address, so it binds below a descriptor."""
    place = os.open(directory, os.O_PATH)
    with socket.socket(socket.AF_UNIX, kind) as one:
        one.bind(f"/proc/self/fd/{place}/{name}")
        os.close(place)
        if kind != socket.SOCK_DGRAM:
            one.listen()
        try:
            yield
        finally:
            (directory / name).unlink(missing_ok=True)


@pytest.mark.parametrize("view", ["project", "host"])
@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM])
def test_U20_what_is_bound_at_the_start_is_covered(box: Box, view: str, kind: socket.SocketKind) -> None:
    (box.workspace / "sub").mkdir()
    script = CONNECT + "".join(
        f"attempt({name!r}, lambda: connect({path!r}, {int(kind)}))\n"
        for name, path in {"plain": "s", "deep": "sub/s", "proc": "/proc/self/cwd/s", "root": "sub/../s"}.items()
    )
    with listening(box.workspace, "s", kind), listening(box.workspace / "sub", "s", kind):
        assert set(box.control(script).values()) == {"ok"}
        assert set(box.attack(script, f"--view={view}").values()) == {"EACCES"}
    assert [event["reason"] for event in box.record("AccessDenied")][:1] == ["socket not allowed"]


@pytest.mark.parametrize("mode", ["ro", "rw"])
def test_U21_sockets_of_a_mounted_tree_are_covered(box: Box, tmp_path: Path, mode: str) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    box.policy(mounts=[{"path": str(tree), "mode": mode}])
    script = CONNECT + f"os.chdir({str(tree)!r})\nattempt('', lambda: connect('s'))\n"
    with listening(tree, "s"):
        assert box.control(script) == {"": "ok"}
        assert box.attack(script) == {"": "EACCES"}


def test_U22_a_dead_socket_is_left_to_the_command(box: Box) -> None:
    place = os.open(box.workspace, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(f"/proc/self/fd/{place}/dead")
    os.close(place)
    script = CONNECT + (
        "attempt('dead', lambda: connect('dead'))\nos.unlink('dead')\nanswer('serve dead')\n"
        "import time; time.sleep(1.5)\nattempt('own', lambda: connect('dead'))\n"
    )
    assert box.attack(script) == {"dead": "ECONNREFUSED", "own": "ok"}


def test_U23_sockets_of_the_command_work_among_its_processes(box: Box) -> None:
    script = CONNECT + (
        "import time\nos.mkdir('d')\n"
        "for name in ('own', 'd/own'):\n"
        "    answer('serve ' + name)\n"
        "    for n in range(20): attempt(name, lambda: connect(name)); time.sleep(0.02)\n"
        "two = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); two.bind('gram')\n"
        "for n in range(20): attempt('gram', lambda: connect('gram', socket.SOCK_DGRAM)); time.sleep(0.02)\n"
        "os.rename('own', 'moved')\ntime.sleep(0.3)\n"
        "own = socket.socket(socket.AF_UNIX); own.bind('own2'); own.listen(); os.rename('own2', 'moved')\n"
        "time.sleep(0.3); attempt('moved', lambda: connect('moved'))\n"
    )
    assert set(box.attack(script).values()) == {"ok"}


@pytest.mark.parametrize("name", ["late", "sub/late", "new/late"])
def test_U24_one_that_appears_is_refused_and_then_covered(box: Box, name: str) -> None:
    (box.workspace / "sub").mkdir()
    with inside(box, CONNECT) as ask:
        assert ask(f"connect {name}") == "ENOENT"
        if name.startswith("new"):
            assert ask("mkdir new") == "ok"
        directory, _, last = name.rpartition("/")
        with listening(box.workspace / directory, last):
            assert ask(f"connect {name}") == "EACCES"  # the first one: nothing has to be waited for
            assert ask(f"move {name} other") in ("EACCES", "EBUSY")
            assert ask(f"link {name} other") in ("EACCES", "EXDEV")
            assert until(lambda: ask(f"move {name} other"), "EBUSY") == "EBUSY"  # a mount point by now
            assert ask(f"connect {name}") == "EACCES"
            assert ask(f"connect /proc/self/cwd/{name}") == "EACCES"


def test_U25_without_the_tracer_one_that_appears_is_covered(box: Box) -> None:
    with inside(box, CONNECT, "--no-trace") as ask:
        assert ask("serve own") == "ok"
        for kind, what in ((socket.SOCK_STREAM, "connect"), (socket.SOCK_DGRAM, "send")):
            with listening(box.workspace, "late", kind):
                assert until(lambda what=what: ask(f"{what} late"), "EACCES") == "EACCES"  # type: ignore[misc]
            assert until(lambda: ask("connect late"), "ENOENT") == "ENOENT"
        assert ask("connect own") == "ok"


def test_U26_a_descriptor_taken_before_is_refused_by_what_it_is(box: Box) -> None:
    """What /proc/self/fd shows is a path, which is covered by then; what it leads to is the socket."""
    with inside(box, CONNECT) as ask:
        assert ask("connect late") == "ENOENT"
        with listening(box.workspace, "late"):
            held = ask("hold late")
            assert held in ("ok", "EACCES")
            assert ask("held") in ("EACCES", "ECONNREFUSED")
            os.rename(box.workspace / "late", box.workspace / "elsewhere")
            assert ask("held") in ("EACCES", "ECONNREFUSED")
            os.rename(box.workspace / "elsewhere", box.workspace / "late")


@pytest.mark.as_root  # whose home is in no private place, wherever the suite's own directory is
def test_U27_host_view_refuses_what_is_bound_later_anywhere(box: Box) -> None:
    with (
        tempfile.TemporaryDirectory(dir=Path.home()) as outside,  # of /tmp this view has a private one
        inside(box, CONNECT + f"os.chdir({outside!r})\n", "--view=host") as ask,
    ):
        assert ask("connect late") == "ENOENT"
        with listening(Path(outside), "late"):
            assert ask("connect late") == "EACCES"
