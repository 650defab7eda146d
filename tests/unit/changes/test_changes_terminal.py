"""changes.terminal: the question counts what is typed after it; text on a terminal is escaped."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator

import pytest

from membrane.changes import terminal

_ASK = "from membrane.changes import terminal; ask = terminal.asker(); print(repr(ask('Question: ') if ask else None))"
_PAGE = "from membrane.changes import terminal; terminal.page([b'+a\\x1b]0;x\\x07\\n', b'-\\tb\\\\n\\n'], '/x')"


@pytest.fixture
def pair() -> Iterator[tuple[int, int]]:
    master, slave = os.openpty()
    yield master, slave
    os.close(master)
    os.close(slave)


def read_until(fd: int, text: bytes) -> bytes:
    out = b""
    while text not in out:
        assert select.select([fd], [], [], 60)[0], out
        out += os.read(fd, 4096)
    return out


def test_what_was_typed_before_the_question_is_no_answer(pair: tuple[int, int]) -> None:
    master, slave = pair
    os.write(master, b"a\n")
    process = subprocess.Popen([sys.executable, "-c", _ASK], stdin=slave, stdout=subprocess.PIPE, stderr=slave)
    read_until(master, b"Question: ")
    os.write(master, b"s\n")
    out, _ = process.communicate(timeout=60)
    assert out == b"'s\\n'\n"


def test_the_end_of_input_is_said(pair: tuple[int, int]) -> None:
    master, slave = pair
    process = subprocess.Popen([sys.executable, "-c", _ASK], stdin=slave, stdout=subprocess.DEVNULL, stderr=slave)
    read_until(master, b"Question: ")
    os.write(master, b"\x04")
    assert b"EOFError" in read_until(master, b"EOFError")
    process.wait(timeout=60)


def test_without_a_terminal_there_is_nobody_to_ask() -> None:
    done = subprocess.run([sys.executable, "-c", _ASK], stdin=subprocess.DEVNULL, capture_output=True, check=True)
    assert done.stdout == b"None\n"


@pytest.mark.parametrize("pager", ["cat", "no-such-pager-here"])
def test_on_a_terminal_it_is_escaped_whatever_the_pager(pair: tuple[int, int], pager: str) -> None:
    master, slave = pair
    environment = {**os.environ, "PAGER": pager, "NO_COLOR": "1"}
    process = subprocess.Popen([sys.executable, "-c", _PAGE], stdin=slave, stdout=slave, stderr=slave, env=environment)
    shown = read_until(master, b"b\\n")
    process.wait(timeout=60)
    assert b"\x1b" not in shown and b"+a\\u{1b}]0;x\\u{7}" in shown


def test_into_a_pipe_it_goes_byte_for_byte(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    terminal.page([b"+a\x1b]0;x\x07\n", b"-\tb\\n\n"], "/x")
    assert capfdbinary.readouterr().out == b"+a\x1b]0;x\x07\n-\tb\\n\n"


_SLOW_PAGER = "sh -c 'trap \"\" INT; cat; echo UP; read -r word < /dev/tty; echo LEFT-$word'"


def paged(pair: tuple[int, int], program: str) -> subprocess.Popen[bytes]:
    """In a session of its own, whose terminal is the pair's."""
    setup = "import fcntl, os, signal, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    setup += "signal.signal(2, signal.default_int_handler); "  # a background job of a shell has it ignored
    return subprocess.Popen(
        [sys.executable, "-c", f"{setup}{program}; print('AFTER')"],
        stdin=pair[1],
        stdout=pair[1],
        stderr=pair[1],
        env={**os.environ, "PAGER": _SLOW_PAGER, "NO_COLOR": "1"},
        start_new_session=True,
    )


def test_an_interrupt_is_the_pagers(pair: tuple[int, int]) -> None:
    process = paged(pair, _PAGE)
    read_until(pair[0], b"UP\r\n")
    os.write(pair[0], b"\x03")  # SIGINT to the whole foreground group
    os.write(pair[0], b"q\n")
    assert b"Traceback" not in read_until(pair[0], b"AFTER")
    assert process.wait(timeout=60) == 0


def test_after_the_pager_an_interrupt_is_ours_again(pair: tuple[int, int]) -> None:
    process = paged(pair, f"{_PAGE}; print(signal.getsignal(2) is signal.default_int_handler)")
    read_until(pair[0], b"UP\r\n")
    os.write(pair[0], b"q\n")
    assert b"True" in read_until(pair[0], b"AFTER")
    assert process.wait(timeout=60) == 0


def test_what_fails_half_way_is_said_after_the_pager(pair: tuple[int, int]) -> None:
    failing = "from membrane.changes import terminal; terminal.page((bytes([43, 10 // n]) for n in (1, 0)), '/x')"
    process = paged(pair, failing)
    assert b"Traceback" not in read_until(pair[0], b"UP\r\n")
    os.write(pair[0], b"q\n")
    shown = read_until(pair[0], b"ZeroDivisionError")
    assert shown.index(b"LEFT-q") < shown.index(b"Traceback")
    assert process.wait(timeout=60) == 1


def test_who_leaves_early_ends_it_without_a_word(pair: tuple[int, int]) -> None:
    program = (
        "from membrane.changes import terminal; "
        "terminal.page((b'+line\\n' for _ in range(100_000)), '/x'); print('AFTER')"
    )
    environment = {**os.environ, "PAGER": "head -n 1"}
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=pair[1], stdout=pair[1], stderr=pair[1], env=environment
    )
    assert b"BrokenPipe" not in read_until(pair[0], b"AFTER")
    assert process.wait(timeout=60) == 0
