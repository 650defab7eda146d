"""Sockets in a writable tree: whose they are, and which are covered."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from membrane.host import unixsockets
from membrane.host.unixsockets import Table
from membrane.workspace import sockets
from membrane.workspace.sockets import Appeared, covered

SECONDS = 10


@pytest.fixture
def table() -> Iterator[Table]:
    """The sockets of this process's own namespace: here, all that the tests make are its own."""
    made = Table(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4).detach())
    yield made
    made.close()


def listening(path: Path) -> socket.socket:
    opened = socket.socket(socket.AF_UNIX)
    opened.bind(str(path))
    opened.listen()
    return opened


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # a socket's address has room for 107 bytes
    return tmp_path


def opened(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_NOFOLLOW)


def test_the_start_covers_what_somebody_listens_on(tree: Path) -> None:
    with listening(Path("alive")):
        assert covered("alive")
    assert not covered("alive")  # left behind by a program that has ended: nobody's for ever
    (tree / "file").touch()
    (tree / "link").symlink_to("alive")
    assert not covered("file") and not covered("link") and not covered("none")


def test_bound_by_each_type(tree: Path) -> None:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        name = f"s{int(kind)}"
        with socket.socket(socket.AF_UNIX, kind) as made:
            made.bind(name)
            place = opened(name)
            assert unixsockets.bound(place) is True
        assert unixsockets.bound(place) is False
        os.close(place)


def test_a_table_knows_its_own(tree: Path, table: Table) -> None:
    with listening(Path("own")):
        place = opened("own")
        assert table.holds(place) and not unixsockets.is_foreign(place, table)
        os.close(place)
    (tree / "file").touch()
    place = opened("file")
    assert not table.holds(place) and not unixsockets.is_foreign(place, table)
    os.close(place)


class Nobodys(Table):
    """The table of a namespace without sockets."""

    def __init__(self) -> None:
        self.broken = False

    def holds(self, place: int, process: int = 0) -> bool:
        return False


def settled(appeared: Appeared) -> list[str]:
    """What is covered when nothing is asked again any more."""
    out: list[str] = []
    end = time.monotonic() + SECONDS
    while (left := appeared.timeout()) is not None:
        assert time.monotonic() < end
        time.sleep(left)  # the time that it asked for
        out += [op.target for op in appeared.operations()]
    return out


def test_a_foreign_one_that_appears_is_covered_and_an_own_one_is_not(tree: Path, table: Table) -> None:
    root = os.open(".", os.O_PATH)
    (tree / "file").touch()
    (tree / "link").symlink_to("made")
    with listening(Path("made")):
        for known, wanted in ((Nobodys(), [f"{tree}/made"]), (table, [])):
            appeared = Appeared(root, f"{tree}/", known)
            for name in ("made", "file", "link", "none"):
                appeared.add(name)
            assert [op.target for op in appeared.operations()] == wanted
            assert appeared.timeout() is None
    os.close(root)


def test_one_that_nobody_has_yet_is_asked_again(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "AGAIN", (0.001, 0.001))
    root = os.open(".", os.O_PATH)
    appeared = Appeared(root, f"{tree}/", Nobodys())
    listening(Path("late")).close()
    appeared.add("late")
    assert appeared.operations() == [] and appeared.timeout() is not None
    os.unlink("late")
    with listening(Path("late")):
        assert settled(appeared) == [f"{tree}/late"]
    appeared.add("late")
    assert settled(appeared) == []  # left behind; whoever takes the name makes a new inode, which is seen as one
    os.close(root)


def test_what_the_queue_has_no_room_for_is_covered_unseen(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "MOST", 1)
    root = os.open(".", os.O_PATH)
    appeared = Appeared(root, f"{tree}/", Nobodys())
    for name in ("a", "b", "c"):
        listening(Path(name)).close()
        appeared.add(name)
    assert len(appeared.operations()) == 2 and appeared.timeout() is not None  # and one is asked again
    os.close(root)


def test_without_a_table_none_is_covered(tree: Path) -> None:
    root = os.open(".", os.O_PATH)
    appeared = Appeared(root, f"{tree}/", None)
    with listening(Path("made")):
        appeared.add("made")
        assert appeared.timeout() is None and appeared.operations() == []
    os.close(root)
