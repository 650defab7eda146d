"""The files from which an agent inside reads where it is and what is allowed.

Theory of operation
-------------------
The texts are those of ``policy.brief`` and ``policy.written``.  The plan puts empty files beside those of /etc
(``plan.model.Layer``): ``/etc/membrane/AGENTS.md`` and ``config.yaml``, ``/etc/claude-code/CLAUDE.md``, which Claude
Code reads for everybody on a machine, and ``/etc/codex/managed_config.toml``, which goes before what a user sets for
Codex.  Their content is made while the view is made, and bound over them, so that no start waits for it.

The first part is the user's own when ``$MEMBRANE_HOME/AGENTS.md`` is there.  What the machine's administrator says to
Claude Code is before ours.  Codex's own sandbox is switched off, since the kernel refuses it the namespaces; its
commands are confined by this one.  So are its analytics, as Claude Code's are by its profile.
"""

from __future__ import annotations

import os
import stat

from ..escaping import escape
from ..plan.model import File
from ..plan.mounts import CODEX, IN_FORCE, INSTRUCTIONS
from ..policy import brief, codec
from ..record.writer import digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..plan.model import HostFacts, Layer, MountOp, Overlay
    from ..policy.model import Policy

SOURCE = "AGENTS.md"  # below $MEMBRANE_HOME
LARGEST = 64 << 10  # bytes of another's text that is taken up


def files(policy: Policy, facts: HostFacts, layer: Layer | Overlay) -> tuple[list[MountOp], list[str]]:
    """The contents of the files that ``layer`` has made, and what to warn about."""
    introduction, warning = _text(f"{facts.state}/{SOURCE}")
    guide = brief.guide(policy, facts.workspace, introduction)
    managed, _ = _text(f"{layer.target}/{INSTRUCTIONS[1]}")
    texts = {
        INSTRUCTIONS[0]: guide,
        INSTRUCTIONS[1]: f"{managed}\n\n{guide}" if managed else guide,
        IN_FORCE: _in_force(policy, f"{facts.state}/cache"),
        CODEX: _codex(guide),
    }
    ops: list[MountOp] = [
        File(f"{layer.target}/{name}", texts[name].encode("utf-8", "backslashreplace"))
        for name in layer.names
        if name in texts
    ]
    return ops, [warning] if warning else []


def _in_force(policy: Policy, cache: str) -> str:
    """``written.in_force``; where it was made before, from one of 16 files: to make it loads the grammar (10 ms)."""
    made_by = os.stat(f"{os.path.dirname(brief.__file__)}/written.py")  # an upgrade may write it in another way
    key = digest(codec.dump(policy) + f"{made_by.st_mtime_ns} {made_by.st_size}".encode("ascii"))
    path = f"{cache}/in-force-{key[0]}"
    stored, _ = _text(path)
    head, _, text = stored.partition("\n")
    if head == key:
        return text
    from ..policy import written

    text = written.in_force(policy)
    half = f"{path}.{os.getpid()}"
    try:
        fd = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(f"{key}\n{text}".encode("utf-8", "backslashreplace"))
        os.rename(half, path)
    except OSError:
        pass  # it is made again
    return text


def _text(path: str) -> tuple[str, str]:
    """(content, warning) of a text that may be there."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return "", ""
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST:
            return "", f"{escape(path)} is left out: it is no file of at most {LARGEST >> 10} KB"
        return os.read(fd, LARGEST).decode("utf-8", "replace").replace("\0", ""), ""
    except OSError as error:
        return "", f"{escape(path)} is left out: {error.strerror}"
    finally:
        os.close(fd)


def _codex(guide: str) -> str:
    """Configuration of Codex (TOML 1.0), with the guide as a multi-line basic string.

    Not a literal one: that has no escapes, and whatever replaces three apostrophes can make three with what follows.
    """
    text = guide.encode("utf-8", "backslashreplace").decode().replace("\\", "\\\\").replace('"', '\\"')
    text = "".join(
        char if char in "\n\t" or " " <= char != "\x7f" else f"\\u{ord(char):04X}" for char in text
    )  # control characters stand in no string
    setting = 'sandbox_mode = "danger-full-access"'
    # Its analytics go to a host of their own (ab.chatgpt.com): each run would end with a refusal that nobody asked for.
    quiet = "[analytics]\nenabled = false"
    return f'# Membrane is the sandbox here.\n{setting}\ndeveloper_instructions = """\n{text}"""\n\n{quiet}\n'
