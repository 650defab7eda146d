"""Changes on the caller's terminal: a pager, and the question at the end of a run.

Theory of operation
-------------------
What is shown has passed ``diff.shown``, so nothing in it steers the terminal, nor the pager.  An answer counts only
when it was typed after the question: what was typed before is thrown away (tcflush(3)); it was meant for the command.
While a pager runs the terminal is the pager's: nothing ends before it, and nothing is printed beside it.
"""

from __future__ import annotations

import os
import sys

from . import diff
from .outside import program, search_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .model import Change
    from .tree import Copy


def page(parts: Iterable[bytes], root: str) -> None:
    """Show pieces of a patch: on a terminal through a pager (``PAGER``, else less), else byte for byte.

    ``root``: the workspace, resolved: no program of it is the pager.
    """
    if not sys.stdout.isatty():
        for part in parts:
            sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
        return
    import shlex
    import signal
    import subprocess

    colour = not os.environ.get("NO_COLOR")
    sys.stdout.flush()
    try:
        name, *options = shlex.split(os.environ.get("PAGER") or "less")
        pager = program(name, root)
        if pager is None:
            raise FileNotFoundError(name)
        environment = {"LESS": "FRX", **os.environ, "PATH": search_path(root)}
        process = subprocess.Popen([pager, *options], stdin=subprocess.PIPE, env=environment)
    except (OSError, ValueError):
        for part in parts:
            print(diff.shown(part, colour=colour), end="")
        return
    assert process.stdin is not None
    # Ctrl-C is for the pager, which has the terminal: it ends a search there, and the person leaves with its own key.
    before = signal.signal(signal.SIGINT, lambda _number, _frame: None)
    try:
        for part in parts:
            process.stdin.write(diff.shown(part, colour=colour).encode("utf-8", "replace"))
    except BrokenPipeError:
        pass  # the person has seen enough
    finally:  # also where a part cannot be made: what is said of that comes when the terminal is ours again
        try:
            process.stdin.close()
        except BrokenPipeError:
            pass
        process.wait()
        signal.signal(signal.SIGINT, before)


def look(copy: Copy, changes: Sequence[Change]) -> None:
    """Show the whole patch."""
    page(diff.patch(copy, changes), os.readlink(f"/proc/self/fd/{copy.base_fd}"))


def asker() -> Callable[[str], str] | None:
    """Asks on the terminal of the caller; None: standard input or standard error is none."""
    if not (os.isatty(0) and os.isatty(2)):
        return None

    def ask(question: str) -> str:
        import termios

        termios.tcflush(0, termios.TCIFLUSH)
        os.write(2, question.encode())
        line = os.read(0, 4096)  # a terminal gives one line at a time
        if not line:
            os.write(2, b"\n")
            raise EOFError
        return line.decode("utf-8", "replace")

    return ask
