"""``membrane changes``, ``discard``, ``checkpoint``, ``restore`` and ``fork``: change sets of reviewed workspaces.

Theory of operation
-------------------
Each holds the lock of the set for as long as it works on it, so it is refused while a command runs on it or it is being
applied (``changes.store``); but a checkpoint and a fork stop the processes of a run and copy what it writes
(``backend.still``).  ``changes`` takes no lock: it shows what is there.
"""

from __future__ import annotations

import os
import time

from .. import backend, clock
from ..backend.still import standing
from ..changes import store
from ..errors import HostError
from ..escaping import escape
from ..record.summary import shorten, tilde
from . import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .options import Invocation

MOST_COUNTED = 200_000  # entries of a set that are looked at for its size


def main(invocation: Invocation, state: str, home: str) -> int:
    """Run one of the subcommands.

    Raises:
        ChangeSetError: there is no such set, it is in use, or a name cannot be one.
        HostError: the machine refused a step.
    """
    name = invocation.command.name
    if name == "changes":
        return _list(invocation, state, home)
    first, *rest = invocation.words
    if name == "discard":
        store.discard(state, first, "a discard")
        print(f"discarded {escape(first)}")
        return 0
    try:
        held = store.take(state, first, f"membrane {name}")
    except store.InUse as error:
        if name == "restore":
            raise store.InUse(
                "restore the checkpoint",
                f"{error.cause}; a restore takes away the files that it works on, so nothing was restored",
                fix=(f"end the command (membrane ps), then: membrane restore {first} {rest[0]}",),
            ) from None
        if name not in ("checkpoint", "fork"):
            raise
        _beside(name, state, first, rest[0])
        return 0
    with held:
        if name == "checkpoint":
            held.checkpoint(rest[0])
            print(_told(name, first, rest[0]))
        elif name == "restore":
            held.restore(rest[0])
            print(f"{escape(first)} is as it was at {escape(rest[0])}; what was changed since: {store.BEFORE_RESTORE}")
        else:
            held.fork(rest[0])
            print(_told(name, first, rest[0]))
    return 0


def _told(command: str, name: str, word: str) -> str:
    if command == "checkpoint":
        return f"checkpoint {escape(word)} of {escape(name)}"
    return f"forked {escape(name)} as {escape(word)}: membrane --review={escape(word)}"


def _beside(command: str, state: str, name: str, word: str) -> None:
    """A checkpoint, or a fork, while a run goes on: its processes are stopped for a copy."""
    held, processes = store.beside(state, name)
    try:
        still = backend.default().stand_still(processes)

        def confirm() -> None:
            still.confirm()
            if held.last() != processes:  # written before the first command of ``membrane exec`` is there
                raise HostError("hold the processes of the sandbox", "others began meanwhile", fix=("try it again",))

        with standing(still):
            if command == "checkpoint":
                held.checkpoint(word, mounted=confirm)
            else:
                held.fork(word, mounted=confirm)
    finally:
        held.leave()
    print(_told(command, name, word))


def _list(invocation: Invocation, state: str, home: str) -> int:
    sets = store.list_sets(state)
    found = [_facts(each, state) for each in sets]
    if invocation.has("json"):
        print(show.as_json({"changes": found}))
        return 0
    if not found:
        print("there is no change set; membrane --review -- COMMAND makes one")
        return 0
    now = time.time()
    rows = [("NAME", "AGE", "FILES", "SIZE", "STATE", "CHECKPOINTS", "WORKSPACE")]
    rows += [
        (
            escape(each["name"]),
            show.age(now - made),
            f"{'' if each['whole'] else '>'}{each['files']}",
            _size(each["bytes"]),
            escape(each["state"]),
            escape(" ".join(each["checkpoints"])) or "-",
            shorten(tilde(each["workspace"], home), 60),
        )
        for each, made in zip(found, [each.made / 1e9 for each in sets], strict=True)
    ]
    for line in show.table(rows, ""):
        print(line)
    return 0


def _facts(found: store.ChangeSet, state: str) -> dict[str, Any]:
    files, size, whole = _measure(store.all_uppers(state, found))
    busy = store.in_use(state, found.name)
    return {
        "name": found.name,
        "workspace": found.workspace,
        "made": clock.iso(found.made, 3),
        "session": found.session,
        "files": files,
        "bytes": size,
        "whole": whole,
        "state": busy or ("kept" if os.path.isdir(found.workspace) else "kept, its workspace is gone"),
        "checkpoints": [each.label for each in found.checkpoints],
        "fork_of": found.fork_of,
    }


def _measure(uppers: tuple[str, ...]) -> tuple[int, int, bool]:
    """(files and links, bytes on the disk, whether all were looked at) of the layers of a set.

    What is deleted counts as a file: it is a change.
    """
    files = size = looked = 0
    for upper in uppers:
        stack = [upper]
        while stack:
            try:
                with os.scandir(stack.pop()) as entries:
                    for entry in entries:
                        looked += 1
                        if looked > MOST_COUNTED:
                            return files, size, False
                        if entry.is_dir(follow_symlinks=False):
                            stack.append(entry.path)
                            continue
                        files += 1
                        size += entry.stat(follow_symlinks=False).st_blocks * 512
            except OSError:
                continue  # a directory that the command closed, or one that went away
    return files, size, True


def _size(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
