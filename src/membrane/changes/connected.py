"""Whether all that refs, logs and an index lead to will be there: nothing comes that git would call corrupt.

Theory of operation
-------------------
As git does it for a push (connected.c, builtin/receive-pack.c): the objects that are to come are put into a repository
of their own, in the stage, which has the objects of the host's as alternates (gitrepository-layout(5)).  There
``git rev-list --objects`` walks from what would move to what the host's refs have, and ``git cat-file --batch-check``
asks for single names.  No configuration is read but three lines of ours, and no ref but those that are given.

What cannot be found out in time, in the memory that git gets, or without git, is not there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time

from .outside import program, search_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

TIME = 300.0  # seconds for all questions about one repository
MEMORY = 4 << 20  # KiB that each git of ours may allocate: a deflated megabyte may be a gigabyte (RFC 1951)
MOST_ALONE = 100  # names that are walked from one by one, where not all of them lead to what is there
LACKING = "an object that it leads to is not there"
_NO_GIT = "there is no git here that could check where it leads"
_PLACE = ".connected"
_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "LC_ALL": "C",
}


def lacking(
    stage: str,
    coming: Mapping[str, str],
    host: int,
    known: Iterable[str],
    tips: Mapping[str, str],
    lists: Mapping[str, frozenset[str]],
    width: int,
    shallow: bytes = b"",
    *,
    root: str,
) -> dict[str, str]:
    """Which of some names lead to what will not be there, each with the reason.

    Args:
        stage: a directory of ours.
        coming: the file in it of each object and pack that comes, by its path below ``objects``.
        host: the directory of the host's objects.
        known: objects from which all is there: what the host's refs have.
        tips: an object for each name, from which all must be there.
        lists: objects for each name, each of which must be there.
        width: bytes of the name of an object.
        root: the workspace, resolved: no git of it is run.
        shallow: what the host's file of this name holds: commits whose parents it has not (gitrepository-layout(5)).
    """
    if not tips and not any(lists.values()):
        return {}
    git = program("git", root)
    if git is None:
        return dict.fromkeys((*tips, *lists), _NO_GIT)
    place = f"{stage}/{_PLACE}"
    os.mkdir(place, 0o700)
    try:
        _make(place, coming, stage, host, width, shallow)
        asked = _Git(git, place, host, root)
        absent = asked.absent({*known, *tips.values(), *(name for names in lists.values() for name in names)})
        found = {path: LACKING for path, names in lists.items() if names & absent}
        found |= {path: LACKING for path, name in tips.items() if name in absent}
        there = {path: name for path, name in tips.items() if name not in absent}
        base = [name for name in known if name not in absent]
        if there and not asked.connected(there.values(), base):
            alone = dict(zip(there, range(MOST_ALONE), strict=False))
            found |= {
                path: LACKING for path, name in there.items() if path not in alone or not asked.connected((name,), base)
            }
        return found
    except (OSError, subprocess.SubprocessError):
        return dict.fromkeys((*tips, *lists), "where it leads could not be found out")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def bounded(words: Iterable[str]) -> list[str]:
    """The words of a command that may allocate ``MEMORY`` (setrlimit(2), RLIMIT_DATA); files that it maps are apart."""
    return ["/bin/sh", "-c", f'ulimit -d {MEMORY} && exec "$@"', "sh", *words]


def _make(place: str, coming: Mapping[str, str], stage: str, host: int, width: int, shallow: bytes) -> None:
    for name in ("refs", "objects", "objects/info", "objects/pack"):
        os.mkdir(f"{place}/{name}", 0o700)
    form = "\trepositoryformatversion = 1\n[extensions]\n\tobjectFormat = sha256\n" if width == 32 else ""
    for name, text in (
        ("HEAD", "ref: refs/heads/none\n"),
        ("config", f"[core]\n\tbare = true\n{form}"),
        ("objects/info/alternates", f"/proc/self/fd/{host}\n"),
    ):
        with open(f"{place}/{name}", "x") as file:
            file.write(text)
    if shallow:
        with open(f"{place}/shallow", "xb") as copy:
            copy.write(shallow)
    for inner, slot in coming.items():
        target = f"{place}/objects/{inner}"
        os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
        os.link(f"{stage}/{slot}", target)


class _Git:
    def __init__(self, git: str, place: str, host: int, root: str) -> None:
        self._git, self._host = git, host
        self._environment = {**_ENVIRONMENT, "PATH": search_path(root), "GIT_DIR": place}
        self._until = time.monotonic() + TIME

    def _run(self, words: Iterable[str], lines: Iterable[str]) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            bounded([self._git, *words]),
            cwd="/",
            env=self._environment,
            input="".join(f"{line}\n" for line in lines).encode("ascii"),
            capture_output=True,
            pass_fds=(self._host,),
            timeout=max(0.0, self._until - time.monotonic()),
            check=False,
        )

    def absent(self, names: Iterable[str]) -> frozenset[str]:
        done = self._run(("cat-file", "--batch-check=%(objectname)"), names)
        if done.returncode:
            raise subprocess.SubprocessError("git cat-file")
        rows = [line.split(" ") for line in done.stdout.decode("ascii", "replace").splitlines()]
        return frozenset(row[0] for row in rows if len(row) > 1)  # "NAME missing"

    def connected(self, tips: Iterable[str], known: Iterable[str]) -> bool:
        lines = (*tips, *(f"^{name}" for name in known))
        return self._run(("rev-list", "--objects", "--quiet", "--stdin"), lines).returncode == 0
