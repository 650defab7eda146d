"""Arguments of ``docker run``, as ``args`` and ``--arg`` of Membrane's files hold them, as keys of a policy.

Theory of operation
-------------------
There is no Docker here, but what people pass to it is mostly one of four things, each of which has a key of its own:
a variable (``-e``), a tree (``-v``) and two limits (``-m``, ``--pids-limit``).  Where a container carries the run
(``plan.carrier``) a closed list of others reaches it: shares of processors and memory, limits and labels; nothing that
gives the container a right, a tree, a network or a process of the host.  ``translate`` reads the words as
``docker run`` does (docs.docker.com/reference/cli/docker/container/run: ``-e X``, ``-eX``, ``--env X``, ``--env=X``),
and an item with a blank after its option (``-e NAME=VALUE``) as one option with its value.  Anything else is refused
with the key that is to be used, because a run without it would not be the run that was asked for; so are those of the
closed list where nothing carries the run.
"""

from __future__ import annotations

from .model import Malformed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Literal, TypeAlias, TypeVar

    Key: TypeAlias = Literal["env", "mount", "memory", "pids", "carrier"]
    Place = TypeVar("Place")

_LONG: dict[str, Key] = {
    "--env": "env",
    "--volume": "mount",
    "--memory": "memory",
    "--pids-limit": "pids",
}
# For the container that carries the run: what bounds it, and what else does no harm to the boundary.
BOUNDS = (
    *("--cpus", "--cpu-shares", "--cpu-period", "--cpu-quota", "--cpuset-cpus", "--cpuset-mems"),
    *("--memory-swap", "--memory-reservation", "--blkio-weight"),
)
_LONG.update(dict.fromkeys((*BOUNDS, "--ulimit", "--label"), "carrier"))
_SHORT = {"-c": "--cpu-shares", "-l": "--label", "-e": "--env", "-v": "--volume", "-m": "--memory"}
_TRANSLATED = "-e, -v, -m and --pids-limit"
_INSTEAD = {
    "--device": "devices: [kvm], or fuse, or gpu",
    "--gpus": "devices: [gpu]",
    "--mount": "mounts: [{path: SOURCE, target: PLACE, mode: ro}]",
    "--env-file": "env: {set: {NAME: VALUE}}",
    "--publish": "ports: {expose: [PORT]}",
    "-p": "ports: {expose: [PORT]}",
    "--add-host": "allow: [HOST]",
    "--network": "allow: [HOST]",
    "--net": "allow: [HOST]",
    "--dns": "dns_resolver: ADDRESS",
    "--read-only": 'readonly: ["*"]',
    "--workdir": "cd to the directory before the start",
    "-w": "cd to the directory before the start",
    "--user": "start membrane as that user",
    "-u": "start membrane as that user",
}
# The same, of options that a container takes and the native backend does not.
_NATIVELY = {
    # limits: {cpu: ...} is a time and no share: it would end a run that --cpus only slows down.
    "--cpus": "taskset -c 0-1 membrane ... (limits: {cpu: TIME} bounds the time instead)",
    "--cpuset-cpus": "taskset -c LIST membrane ...",
    "--ulimit": "limits: {files: NUMBER}",
}
_HOME, _WORKSPACE = "/home/agent", "/workspace"  # where Membrane's image has the two


def translate(words: Iterable[tuple[Place, str]]) -> Iterator[tuple[Place, Key, str]]:
    """Each option with the place that its error belongs to, what it is, and its value as written.

    Raises:
        Misplaced: an option that has no translation, or lacks its value.
    """
    waiting: tuple[Place, Key, str] | None = None
    for place, word in words:
        if waiting is not None:
            yield place, waiting[1], _whole(waiting[1], waiting[2], word)
            waiting = None
            continue
        option, value = _split(word)
        key = _LONG.get(_SHORT.get(option, option))
        if key is None:
            use = f"; use {_INSTEAD[option]}" if option in _INSTEAD else ""
            what = "is not an option" if not word.startswith("-") else "is an argument of docker run without a key here"
            raise Misplaced(place, f"{option!r} {what}; {_TRANSLATED} are translated{use}")
        if value is None:
            waiting = place, key, option
        else:
            yield place, key, _whole(key, option, value)
    if waiting is not None:
        raise Misplaced(waiting[0], f"{waiting[2]!r} has no value")


def _whole(key: Key, option: str, value: str) -> str:
    """The value, of what is for a container with its option."""
    return f"{_SHORT.get(option, option)}={value}" if key == "carrier" else value


class Misplaced(Malformed):
    """A refusal, and the place of the word that it is about."""

    def __init__(self, place: object, cause: str) -> None:
        super().__init__(cause)
        self.place = place


def _split(word: str) -> tuple[str, str | None]:
    """An option and its value, ``None`` when that is the next word."""
    option, blank, value = word.partition(" ")
    if blank and "=" not in option and option.startswith("-"):
        return option, value.strip()
    if word.startswith("--"):
        option, equals, value = word.partition("=")
        return option, value if equals else None
    if not word.startswith("-"):
        return word, None
    option, value = word[:2], word[2:].removeprefix("=")
    return option, value or None


def carrier(text: str) -> str:
    """An option of the container that carries the run, as one word.

    Raises:
        Malformed: a label in our own name space, by which containers of dead runs are found.
    """
    option, _, value = text.partition("=")
    if option == "--label" and value.startswith("membrane."):
        raise Malformed(f"{value!r}: labels that begin with membrane. are Membrane's own")
    return text


def natively(text: str) -> tuple[str, ...]:
    """What to do where nothing carries the run."""
    instead = _NATIVELY.get(text.partition("=")[0])
    return (*((instead,) if instead else ()), "membrane --backend docker ...")


def volume(text: str, workspace: str, home: str) -> tuple[str, str, Literal["ro", "rw"]]:
    """``SOURCE:TARGET[:OPTIONS]`` of ``-v``: source, target and mode, which is ``rw`` as Docker has it.

    A target at or below ``/home/agent`` or ``/workspace`` is the same place of the home or the workspace here.

    Raises:
        Malformed: a volume with a name, an option that has no meaning here, or a form that ``docker run`` refuses too.
    """
    parts = text.split(":")
    if len(parts) not in (2, 3) or not all(parts):
        raise Malformed(f"{text!r} is not SOURCE:TARGET[:ro|rw]; a path with a colon goes under mounts")
    source, target = parts[0], parts[1]
    if not source.startswith(("/", "~", "./", "../")) and source not in (".", ".."):
        raise Malformed(f"{source!r} is the name of a volume; there are none here, give a path")
    mode: Literal["ro", "rw"] = "rw"
    for option in parts[2].split(",") if len(parts) == 3 else ():
        if option not in ("ro", "rw", "z", "Z"):  # z and Z label for SELinux, which is not touched here
            raise Malformed(f"{option!r} has no meaning here; expected ro or rw")
        if option in ("ro", "rw"):
            mode = "ro" if option == "ro" else "rw"
    for name, place in ((_HOME, home), (_WORKSPACE, workspace)):
        if place and (target == name or target.startswith(f"{name}/")):
            target = place + target[len(name) :]
            break
    return source, target, mode


def limit(key: Key, text: str) -> tuple[str, str]:
    """The name of the limit and its value as ``limits`` writes it; ``"0"`` is none."""
    if key == "pids":
        return "pids", "0" if text == "-1" else text
    return "memory", text[:-1] if text[:-1].isdigit() and text[-1] in "bB" else text.upper()
