"""What starts the processes of the library, and what of a caller's arguments can be a command.

Theory of operation
-------------------
A supervisor is spawned with an interpreter of its own, which finds our modules where this one was found and imports
nothing else of the caller's.  Words and names that have no bytes, or a NUL, are refused before anything is started.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from ..errors import PolicyError
from .streams import DEVNULL

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def argv_of(argv: Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    if isinstance(argv, str | bytes):
        cause = f"a command is a sequence of words, not the text {argv!r}"
        raise PolicyError("run a command", cause, fix=("shell(...) runs a line",))
    words = tuple(_word(word) for word in argv)
    if not words:
        raise PolicyError("run a command", "a command without a word names no program")
    if not words[0]:
        raise PolicyError("run a command", "the name of the program is empty")
    refuse_surrogates("run a command", words)
    return words


def _word(word: object) -> str:
    """One word of a command.

    Raises:
        PolicyError: it is no text or path, or has a NUL byte, which no argument of a program can hold.
    """
    text = os.fspath(word) if isinstance(word, os.PathLike) else word
    if not isinstance(text, str):
        raise PolicyError("run a command", f"{text!r} is no word of a command", fix=("str, or a pathlib.Path",))
    if "\0" in text:
        raise PolicyError("run a command", f"{text!r} has a NUL byte, which no argument of a program can hold")
    return text


def variables_of(env: Mapping[str, str] | None) -> dict[str, str]:
    """Variables of a command as text.

    Raises:
        PolicyError: none can have such a name or value.
    """
    variables = {str(name): str(value) for name, value in (env or {}).items()}
    for name, value in variables.items():
        if not name or "=" in name or "\0" in name + value:
            raise PolicyError("pass a variable", f"{name!r} is no variable")
        refuse_surrogates("pass a variable", (name, value))
    return variables


def directory_of(cwd: str | os.PathLike[str] | None) -> str:
    """Where a command is to begin; empty: in the workspace.

    Raises:
        PolicyError: no directory can have such a name.
    """
    directory = os.fspath(cwd) if cwd is not None else ""
    if "\0" in directory:
        raise PolicyError("enter a directory", f"{directory!r} has a NUL byte")
    refuse_surrogates("enter a directory", (directory,))
    return directory


def refuse_surrogates(tried: str, texts: Iterable[str]) -> None:
    """Raise PolicyError for text that has no bytes: a surrogate that does not stand for one (PEP 383)."""
    for text in texts:
        try:
            os.fsencode(text)
        except UnicodeEncodeError:
            raise PolicyError(tried, f"{text!r} has a lone surrogate, which is no character") from None


def umask() -> int:
    """This process's mask, without changing it (proc(5), Linux 4.7)."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o022


def own_program(module: str) -> list[str]:
    """An argv that runs ``main(sys.argv)`` of a module of ours, found where this one was; it imports nothing else."""
    source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    program = f"import sys; sys.path.append(sys.argv.pop(1)); from {module} import main; sys.exit(main(sys.argv))"
    return [sys.executable, "-I", "-c", program, source]


def spawn(channel: int, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*own_program("membrane.api.supervisor"), str(channel)],
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=DEVNULL,
        pass_fds=(channel,),
        start_new_session=True,
        env=dict(environ),
        cwd="/",
    )
