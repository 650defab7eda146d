"""The prompt of ``--ask`` on the caller's terminal.

Theory of operation
-------------------
The question goes to ``/dev/tty``, never to a stream of the command.  While it is there, the session copies neither
the command's output to the screen nor keys to the command, so that text from inside can neither follow it nor pose as
it; and before it is written, whatever the command may have left half done on the screen is ended: an escape sequence
(CAN, ST), margins and modes (DECSTR), colours (SGR 0), the line (ECMA-48, VT510 manual).  Keys that were typed before
are thrown away.  An answer is a whole line of one of the words that are offered; anything else asks again, and a few
of those are a "no".  Everything that is shown of the target is escaped.
"""

from __future__ import annotations

import os
import termios

from ..errors import MembraneError
from ..escaping import escape, one_line
from ..record.summary import shorten, target_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..policy.model import Level
    from .questions import Answer, Question

CLEAN = b"\x18\x1b\\\x1b[!p\x1b[0m\n"
_WORDS = {
    "o": "once", "once": "once", "s": "session", "session": "session", "a": "always", "always": "always",
    "p": "project", "project": "project", "n": "no", "no": "no", "": "no",
}  # fmt: skip
_WHAT = {
    "name": "a look-up of", "connection": "a connection to", "datagram": "datagrams to", "request": "the request",
    "socket": "the operation",
}  # fmt: skip
_WIDEST = 240  # characters of a target or a rule before it is cut in the middle
_TRIES = 3
_LONGEST = 256  # bytes of a line
_LASTING = ("always", "project")
_CHOICES = "[o]nce, for this [s]ession, [a]lways, always in this [p]roject, [N]o: "
_SHORT_CHOICES = "[o]nce, for this [s]ession, [N]o: "  # no file takes the rule as it is


class Prompt:
    """One question on the terminal."""

    def __init__(self, question: Question) -> None:
        """Show it.

        Raises:
            OSError: there is no terminal, or it is another job's now.
        """
        self.question = question
        self.terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._tries = _TRIES
        self._line = b""
        try:
            if os.tcgetpgrp(self.terminal) != os.getpgrp():
                raise OSError("this job is in the background")
            self._before = termios.tcgetattr(self.terminal)
            mode = termios.tcgetattr(self.terminal)
            mode[0] |= termios.ICRNL
            mode[1] |= termios.OPOST
            mode[3] |= termios.ICANON | termios.ECHO
            mode[3] &= ~termios.ISIG  # an interrupt is a "no" here, not the end of the command
            termios.tcsetattr(self.terminal, termios.TCSAFLUSH, mode)
            termios.tcflush(self.terminal, termios.TCIFLUSH)
            self._write(CLEAN + text(question).encode("ascii", "backslashreplace"))
        except termios.error as error:
            os.close(self.terminal)
            raise OSError(*error.args) from None
        except OSError:
            os.close(self.terminal)
            raise

    def read(self) -> str:
        """Take what was typed: a word of the choices, or empty while the line is not complete."""
        try:
            part = os.read(self.terminal, _LONGEST)
        except BlockingIOError:
            return ""
        except OSError:
            return "no"
        if not part or b"\x03" in part:
            return "no"
        self._line += part
        if len(self._line) >= _LONGEST:
            return "no"
        if not self._line.endswith(b"\n"):
            return ""
        word = _WORDS.get(self._line.decode("ascii", "replace").strip().lower())
        self._line = b""
        if word is None or (word in _LASTING and not _lasting(self.question)):
            self._tries -= 1
            if not self._tries:
                return "no"
            self._write(b"  " + choices(self.question).encode())
            return ""
        return word

    def say(self, line: str) -> None:
        """One line to the user, for what an answer led to."""
        self._write(b"membrane: " + line.encode("ascii", "backslashreplace") + b"\n")

    def close(self, note: str = "") -> None:
        """Give the terminal back as it was."""
        try:
            if note:
                self._write(b"\n")
                self.say(note)
            termios.tcsetattr(self.terminal, termios.TCSADRAIN, self._before)
        except (OSError, termios.error):
            pass  # it went away
        os.close(self.terminal)

    def _write(self, data: bytes) -> None:
        try:
            os.write(self.terminal, data)
        except BlockingIOError:
            raise OSError("the terminal takes no output") from None


def text(question: Question) -> str:
    """What is shown: the access, who wants it if that is known, and the rule."""
    target = _folded(target_of(question.access))
    lines = [f"membrane: allow {_WHAT[question.kind]} {target}?  No rule decides."]
    process = question.process
    if process is not None:
        program = f"  {shorten(process.exe)}" if process.exe else ""
        lines.append(f"  process {shorten(process.name)} ({process.pid}){program}")
    below = "  (and what is below this path)" if question.kind == "request" else ""
    lines += [f"  rule    {_folded(question.rule)}{below}", f"  {choices(question)}"]
    return "\n".join(lines)


def _folded(text: str) -> str:
    """In one line, with long blanks counted; what is too long is cut in the middle, and how much is said."""
    line = one_line(text) if len(text) <= _WIDEST else ""
    if line and len(line) <= 2 * _WIDEST:
        return line
    part = _WIDEST // 3
    left = len(text) - 3 * part
    return f"{escape(text[: 2 * part])} \\{{{left} characters are not shown}} {escape(text[-part:])}"


def _lasting(question: Question) -> bool:
    """Can the rule be remembered?  Not when it is not shown whole."""
    return question.lasting and len(question.rule) <= _WIDEST


def choices(question: Question) -> str:
    """The words that may be answered."""
    return _CHOICES if _lasting(question) else _SHORT_CHOICES


class Prompts:
    """Where the questions of a run are answered: one prompt at a time on the terminal.

    Args:
        watch, unwatch: of the session's loop.
        pause, resume: copying between the terminal and the command.
    """

    def __init__(
        self,
        watch: Callable[[int, Callable[[], None]], None],
        unwatch: Callable[[int], None],
        pause: Callable[[], None],
        resume: Callable[[], None],
    ) -> None:
        self._watch, self._unwatch, self._pause, self._resume = watch, unwatch, pause, resume
        self._prompt: Prompt | None = None
        self._later: list[Question] = []

    @property
    def busy(self) -> bool:
        """Does a question stand on the terminal?"""
        return self._prompt is not None

    def show(self, question: Question, answer: Callable[[Answer], None]) -> None:
        """Put a question on the terminal; the command's output and the keys wait meanwhile."""
        self._pause()
        try:
            prompt = self._prompt = Prompt(question)
        except OSError:
            self._resume()
            answer("no")
            return

        def typed() -> None:
            word = prompt.read()
            if not word:
                return
            if word == "always":
                prompt.say(remember(question, "user"))
            elif word == "project":
                prompt.say("the rule goes into the project's file when the run ends")
                self._later.append(question)
            self.clear()
            answer("no" if word == "no" else "once" if word == "once" else "session")

        self._watch(prompt.terminal, typed)

    def finish(self) -> list[str]:
        """Write what was promised for the project's file; lines to say.

        Not before the end: while the command runs, a name like that which appears is taken for the command's and moved
        away (``workspace.guard``).
        """
        later, self._later = self._later, []
        return [remember(question, "project") for question in later]

    def withdraw(self, _question: Question) -> None:
        """The question was not answered in time."""
        self.clear("no answer in time: refused")

    def clear(self, note: str = "") -> None:
        """Take the question from the terminal."""
        if self._prompt is None:
            return
        prompt, self._prompt = self._prompt, None
        self._unwatch(prompt.terminal)
        prompt.close(note)
        self._resume()


def remember(question: Question, level: Level) -> str:
    """Write the rule of an "always" into the user's or the project's file; the line to say."""
    from .amend import add
    from .settings import config_path, project_file, read_alone, state_home, trust_project

    home = state_home(os.environ)
    path = project_file() if level == "project" else config_path(home)
    try:
        add(path, question.rule, lambda text: read_alone(level, path, text))
        if level == "project":
            trust_project(os.path.dirname(path), home)
    except MembraneError as error:
        return f"the rule is not in a file: {escape(str(error))}"
    return f"the rule is in {escape(path)} now"
