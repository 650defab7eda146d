"""changes.terminal: the question counts what is typed after it; text on a terminal is escaped."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator

import pytest

_ASK = "from membrane.changes import terminal; ask = terminal.asker(); print(repr(ask('Question: ') if ask else None))"
_PAGE = "from membrane.changes import terminal; terminal.page([b'+a\\x1b]0;x\\x07\\n', b'-\\tb\\\\n\\n'])"


@pytest.fixture
def pair() -> Iterator[tuple[int, int]]:
    master, slave = os.openpty()
    yield master, slave
    os.close(master)
    os.close(slave)


def read_until(fd: int, text: bytes) -> bytes:
    out = b""
    while text not in out:
        assert select.select([fd], [], [], 30)[0], out
        out += os.read(fd, 4096)
    return out


def test_what_was_typed_before_the_question_is_no_answer(pair: tuple[int, int]) -> None:
    master, slave = pair
    os.write(master, b"a\n")
    process = subprocess.Popen([sys.executable, "-c", _ASK], stdin=slave, stdout=subprocess.PIPE, stderr=slave)
    read_until(master, b"Question: ")
    os.write(master, b"s\n")
    out, _ = process.communicate(timeout=30)
    assert out == b"'s\\n'\n"


def test_the_end_of_input_is_said(pair: tuple[int, int]) -> None:
    master, slave = pair
    process = subprocess.Popen([sys.executable, "-c", _ASK], stdin=slave, stdout=subprocess.DEVNULL, stderr=slave)
    read_until(master, b"Question: ")
    os.write(master, b"\x04")
    assert b"EOFError" in read_until(master, b"EOFError")
    process.wait(timeout=30)


def test_without_a_terminal_there_is_nobody_to_ask() -> None:
    done = subprocess.run([sys.executable, "-c", _ASK], stdin=subprocess.DEVNULL, capture_output=True, check=True)
    assert done.stdout == b"None\n"


@pytest.mark.parametrize("pager", ["cat", "no-such-pager-here"])
def test_on_a_terminal_it_is_escaped_whatever_the_pager(pair: tuple[int, int], pager: str) -> None:
    master, slave = pair
    environment = {**os.environ, "PAGER": pager, "NO_COLOR": "1"}
    process = subprocess.Popen([sys.executable, "-c", _PAGE], stdin=slave, stdout=slave, stderr=slave, env=environment)
    shown = read_until(master, b"b\\n")
    process.wait(timeout=30)
    assert b"\x1b" not in shown and b"+a\\u{1b}]0;x\\u{7}" in shown


def test_into_a_pipe_it_goes_byte_for_byte() -> None:
    done = subprocess.run([sys.executable, "-c", _PAGE], capture_output=True, check=True)
    assert done.stdout == b"+a\x1b]0;x\x07\n-\tb\\n\n"
