"""``membrane --reset[=cid]``: take away what membrane keeps, and never anything else.

Theory of operation
-------------------
Only names that membrane itself makes below ``$MEMBRANE_HOME`` are candidates; whatever else is there stays and is
named.  What a person cannot get back (policy, trust decisions, homes with credentials) needs a second yes, on the
terminal or as a second line of piped input, and ``--yes`` does not give it.  Nothing is removed while a session is
alive, except dead sessions.
"""

from __future__ import annotations

import os
import sys

from ..errors import HostError
from ..escaping import visible
from ..value import Value
from .options import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LETTERS = "cid"
CACHES = ("cache", "images")
OWN = (
    "run",
    "logs",
    "tmp",
    "trace",
    "sessions",
    "told",
    "detached",
    "api",
    "places",
    "commits",
    "carried",
)  # made when needed
PRECIOUS = (
    "config.yaml",
    "trusted.yaml",
    "home",
    "homes",
    "agents",
    "layers",
    "system",
    "changes",
    "containers",
    "quarantine",
)  # a person's own


class Removal(Value):
    """What a reset will do."""

    dead_sessions: bool
    paths: tuple[str, ...]  # removed after the first yes
    precious: tuple[str, ...]  # removed after a second yes
    foreign: tuple[str, ...]  # not ours, left alone


def check_letters(letters: str) -> str:
    """Refuse what is not a set of letters.

    Raises:
        UsageError: an unknown letter.
    """
    for letter in letters:
        if letter not in LETTERS:
            raise UsageError(
                "reset",
                f"--reset does not know {letter!r}",
                fix=("c: dead sessions, i: caches, d: everything else below $MEMBRANE_HOME",),
            )
    return letters


def removal(letters: str, state: str) -> Removal:
    """What ``letters`` mean for what is there now.

    Raises:
        HostError: the state directory cannot be listed.
    """
    try:
        there = sorted(os.listdir(state))
    except FileNotFoundError:
        there = []
    except OSError as error:
        raise HostError("list", error.strerror or "", target=state) from None
    empty = [name for name in ("changes", "quarantine") if _is_empty(f"{state}/{name}")]
    kept = tuple(name for name in PRECIOUS if name not in empty)
    own = (*OWN, *(name for name in PRECIOUS if name not in kept))
    names = [*(CACHES if "i" in letters else ()), *(own if "d" in letters else ())]
    known = {*CACHES, *OWN, *PRECIOUS}

    def paths(wanted: Iterable[str]) -> tuple[str, ...]:
        return tuple(f"{state}/{name}" for name in wanted if name in there)

    return Removal(
        dead_sessions="c" in letters,
        paths=paths(names),
        precious=paths(kept) if "d" in letters else (),
        foreign=paths(name for name in there if name not in known) if "d" in letters else (),
    )


def _is_empty(path: str) -> bool:
    """Is no change set here, no file that was put aside?  A name that begins with a dot is made again when needed."""
    try:
        return all(name.startswith(".") for name in os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return True


def remove(path: str) -> None:
    """Remove a file or a tree below the state directory, never following a symbolic link.

    Raises:
        HostError: something could not be removed; the rest stays as it is.
    """
    import shutil

    def stop(_call: object, where: str, failure: tuple[type[BaseException], BaseException, object]) -> None:
        raise failure[1]

    try:
        if os.path.isdir(path) and not os.path.islink(path):
            from ..changes.removal import remove_tree

            remove_tree(path)  # commands choose modes and depth of what is in a home or a layer
            if os.path.lexists(path):
                shutil.rmtree(path, onerror=stop)  # says what could not be removed
        else:
            os.unlink(path)
    except OSError as error:
        raise HostError("remove", error.strerror or "", target=error.filename or path) from None


def _line(fd: int) -> bytes:
    """The next line, at most 64 bytes; read one by one, so that the rest is left for the next question."""
    line = b""
    try:
        while len(line) < 64 and (byte := os.read(fd, 1)) not in (b"", b"\n"):
            line += byte
    except OSError:  # standard input is closed, or a directory
        return b""
    return line


def confirm(question: str) -> bool:
    """Ask on the terminal; with other standard input (``echo y | membrane --reset``) a line of that is the answer.

    The end of the input, and no terminal, is a no.
    """
    if not os.isatty(0):
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        answer = _line(0)
        sys.stderr.write(visible(answer.decode(errors="replace")) + "\n")
        return answer.strip().lower() in (b"y", b"yes")
    try:
        fd = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return False
    try:
        os.write(fd, f"{question} [y/N] ".encode(errors="backslashreplace"))
        return os.read(fd, 64).strip().lower() in (b"y", b"yes")
    finally:
        os.close(fd)


def reset(
    letters: str,
    state: str,
    *,
    yes: bool,
    alive: list[str],
    collect: Callable[[], list[str]],
    ask: Callable[[str], bool],
    say: Callable[[str], None],
) -> int:
    """Carry out a reset; return the exit status: 0 done, 1 refused by the person.

    Args:
        letters: from ``check_letters``.
        state: $MEMBRANE_HOME, resolved.
        yes: take the first question as answered.
        alive: ids of living sessions.
        collect: removes what dead sessions left and returns it.
        ask: a yes or no question to the person.
        say: prints one line.

    Raises:
        HostError: a session is alive, or something could not be removed.
    """
    todo = removal(letters, state)
    if alive and set(letters) != {"c"}:
        raise HostError(
            "reset",
            f"session {', '.join(alive)} is running",
            target=state,
            fix=("end it first: membrane ps", "remove only what dead sessions left: membrane --reset=c"),
        )
    for path in todo.paths:
        say(f"will remove {path}")
    if todo.dead_sessions:
        say("will remove what dead sessions left")
    if not yes and not ask("continue?"):
        say("nothing was removed")
        return 1
    if todo.dead_sessions:
        for left in collect():
            say(f"removed {left}")
    for path in todo.paths:
        remove(path)
        say(f"removed {path}")
    if todo.precious:
        what = "your policy, trust decisions, agents' homes, change sets and what was put aside"
        say(f"{what}: {', '.join(todo.precious)}")
        if ask("remove these too? They cannot be brought back"):
            for path in todo.precious:
                remove(path)
                say(f"removed {path}")
        else:
            say("kept")
    for path in todo.foreign:
        say(f"left alone, not made by membrane: {path}")
    return 0
