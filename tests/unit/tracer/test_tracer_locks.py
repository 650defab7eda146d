"""git's index.lock: a refusal to who holds it, or to a child of its, spoils it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from membrane.tracer import locks
from membrane.tracer.locks import Locks
from started import Started

OURS = os.getpid()


@pytest.fixture
def child() -> Iterator[int]:
    """A process that this one started."""
    with Started([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as running:
        yield running.pid
        running.communicate(b"\n", timeout=60)


def test_nothing_was_refused() -> None:
    known = Locks()
    known.made(b"/w/.git/index.lock", OURS)
    assert known.taken(b"/w/.git/index.lock") == ""
    assert known.taken(b"/w/.git/index.lock") == ""  # it is forgotten, and nobody's lock any more


def test_a_refusal_to_the_holder_spoils_it_once() -> None:
    known = Locks()
    known.made(b"/w/.git/index.lock", OURS)
    known.spoil(OURS, ".vscode")
    known.spoil(OURS, ".idea")
    assert known.taken(b"/w/.git/index.lock") == ".vscode"  # the first one is named
    known.made(b"/w/.git/index.lock", OURS)
    assert known.taken(b"/w/.git/index.lock") == ""


def test_a_refusal_to_a_child_or_a_thread_of_the_holder_too(child: int) -> None:
    known = Locks()
    known.made(b"/w/.git/index.lock", OURS)
    known.spoil(child, ".vscode")
    assert known.taken(b"/w/.git/index.lock") == ".vscode"
    known.made(b"/w/.git/index.lock", OURS)
    thread = threading.Thread(target=lambda: known.spoil(threading.get_native_id(), ".husky"))
    thread.start()
    thread.join()
    assert known.taken(b"/w/.git/index.lock") == ".husky"


def test_what_a_child_wants_outside_of_the_workspace_is_no_file_of_the_checkout(child: int) -> None:
    known = Locks()
    known.made(b"/w/.git/index.lock", OURS)
    known.spoil(child, "/opt/log", alone=True)
    assert known.taken(b"/w/.git/index.lock") == ""
    known.made(b"/w/.git/index.lock", OURS)
    known.spoil(OURS, "/w/sibling/file", alone=True)
    assert known.taken(b"/w/.git/index.lock") == "/w/sibling/file"


@pytest.mark.parametrize(
    ("name", "spoils"),
    [
        ("/w/.git/hooks/pre-push", False),  # in no index
        ("/w/a/.git/config", False),
        ("/w/a/.git", True),  # a checkout of submodules makes it
        ("/w/.gitmodules", True),
        ("/w/.git2/x/.vscode", True),
    ],
)
def test_what_lies_in_a_git_directory_is_in_no_index(child: int, name: str, spoils: bool) -> None:
    known = Locks()
    known.made(b"/w/.git/index.lock", OURS)
    known.spoil(child, name)
    assert known.taken(b"/w/.git/index.lock") == (name if spoils else "")


def test_a_refusal_to_anybody_else_does_not(child: int) -> None:
    known = Locks()
    known.made(b"/w/.git/index.lock", child)
    known.spoil(OURS, ".vscode")  # the parent of the holder
    known.spoil(1, ".vscode")
    known.spoil(1 << 30, ".vscode")  # gone
    assert known.taken(b"/w/.git/index.lock") == ""


def test_the_newest_locks_are_remembered() -> None:
    known = Locks()
    for number in range(locks.MOST + 5):
        known.made(b"/w/%d/index.lock" % number, OURS)
    known.spoil(OURS, "x")
    assert known.taken(b"/w/0/index.lock") == ""
    assert known.taken(b"/w/%d/index.lock" % (locks.MOST + 4)) == "x"
