"""What an agent inside reads: a policy as instructions (Markdown).  As data it is in ``written``.

Theory of operation
-------------------
A pure text of one policy.  ``guide`` is what agents read by themselves: what is allowed, how a refusal looks, and what
to ask the person for, so that an agent neither tries around a refusal nor gives up without a word.  It does not hold
what the command must not know: values of secrets and of variables that are set, where a secret comes from, a password
in the address of a proxy.

Rules and patterns may have been written by a project file: each is quoted or escaped, so that none adds a line, and
the text is bounded; what is left out is said.
"""

from __future__ import annotations

from ..escaping import escape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .model import HostRule, Policy, PortRange

PLACE = "/etc/membrane"
MOST_LISTED = 80  # rules of a kind in the guide
LONGEST = 200  # characters of one rule
INTRODUCTION = """\
# You are inside Membrane

Membrane is a sandbox that the person you work for started around this session. What is allowed is listed below;
everything else is refused by the kernel and by a gateway, whichever program or spelling is used, and each refusal is
on a record that the person reads. A refusal is an answer and not an obstacle: do not look for a way around it.
"""
_REFUSALS = """\
## How a refusal looks

| what | how it fails |
| --- | --- |
| a name that is not allowed | the look-up finds no such name: curl exits with 6, getaddrinfo gives EAI_NONAME |
| an address or a port that is not allowed | ECONNREFUSED, EACCES or a reset: curl exits with 7, 35 or 56 |
| plain or inspected HTTP that is not allowed | status 403 (malformed: 400, budget: 429); JSON with `reason`, `hint` |
| writing outside of what is listed | EROFS, and EXDEV or EBUSY for names that are covered |
| a protected name (`.git/hooks`, `.git/config`, `.envrc`, `.vscode`, ...) | EACCES, EPERM, EROFS or EBUSY |
| a hidden file | it is empty, or EACCES |
| another sandbox inside: `bwrap`, `codex sandbox`, `membrane`, `unshare` | EPERM, "No permissions to create ..." |
| root's rights: `sudo`, `mount`, raw sockets | EPERM |

You are already inside a sandbox: run commands without a further one, and switch an agent's own sandbox off.

A host that is allowed and cannot be reached fails in other ways (502, a time-out): that is no rule.
"""
_ASKING = """\
## What to ask the person for

When the task needs what is refused, stop that part, go on with the rest, and say in your answer what was refused and
which line allows it. They decide, and start Membrane again. Each of these is enough:

* a host: `membrane -a HOST:PORT ...`, or `allow: ["HOST:PORT"]` in `.membrane.yaml`;
* a directory: `membrane --mount PATH:ro ...` (or `rw`), or `mounts: [{path: PATH, mode: ro}]`;
* a hidden or read-only name: `ignore: ["!NAME"]` or `readonly: ["!NAME"]`;
* a variable of theirs: `membrane --env NAME ...`;
* a service on a port of their machine: `membrane --connect PORT ...`; then it is `host.internal:PORT` in here;
* a port of yours for their browser: `membrane --expose PORT ...`;
* a service behind a socket (ssh-agent, Docker): `membrane --unix-socket PATH ...`, or an adapter under `unix_sockets:`;
"""
_NO_PACKAGES = """\
* a program that needs a package of the system: that they install it outside; `apt-get install` fails in here.
"""
_LAST = """\

A file `.membrane.yaml` is read-only in here; propose its text. The policy in force is `/etc/membrane/config.yaml`.
"""


_LAYERS = {"writable": "is gone when the session ends", "persistent": "is kept for later sessions here"}


def guide(policy: Policy, workspace: str, introduction: str = "") -> str:
    """The instructions.

    Args:
        workspace: absolute, as the command sees it.
        introduction: what comes first; empty: ``INTRODUCTION``.
    """
    lines = [(introduction or INTRODUCTION).rstrip("\n"), "", "## Files", ""]
    if policy.file_rules is not None:
        lines.append(f"* The working directory is {_code(workspace)}.")
    elif policy.workspace == "review":
        lines.append(
            f"* {_code(workspace)} can be read and written. What you change there is kept apart from the person's own "
            "directory, until they look at it and apply it: say what you changed and why."
        )
    else:
        lines.append(
            f"* {_code(workspace)} can be read and written: it is the person's own directory, and what you write is "
            "there at once."
        )
    for effect, words in (("readonly", "Read-only in it"), ("hide", "Hidden in it (what is found there is empty)")):
        lines += _listed(words, [_code(rule.text) for rule in policy.paths if rule.effect == effect])
    if policy.file_rules is not None:
        lines += _listed("Rules", [f"{rule.effect} {_code(rule.text)}" for rule in policy.file_rules])
    elif policy.view == "project":
        kept = "is gone when the session ends" if policy.home == "ephemeral" else "is kept for later sessions"
        lines.append(f"* The home is the sandbox's own and not the person's; it {kept}. `/tmp` is private.")
        lines.append(
            "* Toolchains of the person's home (`~/.cargo`, `~/.local/bin`, nvm's, pyenv's, ...) can be used, and "
            "written as far as the sandbox has a layer over them: what you install for the user (`pip install --user`, "
            "`cargo install`, `npm install -g` with a prefix in the home) works and stays in here."
        )
        if policy.system == "read-only":
            lines.append(
                "* `/usr`, `/etc` and other system directories are read-only; what is not listed is not there."
            )
        else:
            lines.append(
                "* You are root over a layer above `/usr`, `/etc`, `/opt` and `/var`: `apt-get update`, "
                "`apt-get install`, `npm install -g` and `su` work; nothing of it reaches the machine. "
                f"The layer {_LAYERS[policy.system]}."
            )
    else:
        lines.append("* Everything else of this machine can be read as the person can, and not written.")
    mounts = [f"{_code(rule.target or rule.path or 'the repository')} ({rule.mode})" for rule in policy.mounts]
    lines += _listed("Mounted", mounts)
    lines += _listed("Sockets of services", [_code(rule.path) for rule in policy.unix_sockets])
    lines += ["", "## Network", ""]
    if policy.allow:
        lines += ["Reachable, and nothing else:", "", *_rows([_destination(rule) for rule in policy.allow])]
    else:
        lines.append("Nothing is reachable.")
    if policy.deny:
        lines += ["", "Refused whatever allows it:", "", *_rows([_destination(rule) for rule in policy.deny])]
    if policy.connect:
        ports = ", ".join(str(rule.inside) for rule in policy.connect)
        lines += ["", f"Services of this machine: `host.internal`, port {ports}."]
    if policy.secrets or policy.masks:
        names = ", ".join(_code(secret.name) for secret in policy.secrets)
        what = f"The variables {names} hold" if names else "Masked files and variables hold"
        lines += ["", f"{what} random text; the value is put into requests to its destinations on their way."]
    asking = _ASKING + (_NO_PACKAGES if policy.system == "read-only" else "") + _LAST
    return "\n".join((*lines, "", _REFUSALS, asking))


def _listed(words: str, rules: Sequence[str]) -> list[str]:
    if not rules:
        return []
    more = f" and {len(rules) - MOST_LISTED} more" if len(rules) > MOST_LISTED else ""
    return [f"* {words}: {', '.join(rules[:MOST_LISTED])}{more}."]


def _rows(rows: Sequence[str]) -> list[str]:
    more = [f"* and {len(rows) - MOST_LISTED} more: {PLACE}/config.yaml"] if len(rows) > MOST_LISTED else []
    return [*(f"* {row}" for row in rows[:MOST_LISTED]), *more]


def _destination(rule: HostRule) -> str:
    parts = [_code(rule.text)]
    if _adds_ports(rule):
        parts.append(f"port {', '.join(_ports(rule.ports))}")
    elif not rule.ports and not rule.scheme:
        parts.append("any TCP port")
    if rule.http:
        alternatives = []
        for item in rule.http:
            methods = " or ".join(map(_code, item.methods)) or "any method"
            alternatives.append(f"{methods} of {' or '.join(map(_code, item.paths)) or 'any path'}")
        parts.append(f"only {'; '.join(alternatives)}")
    if rule.budget is not None:
        parts.append("within a budget")
    return ", ".join(parts)


def _adds_ports(rule: HostRule) -> bool:
    """Are the ports said beside the text of the rule, and not in it?"""
    return bool(rule.ports) and not rule.scheme and not rule.text.endswith(f":{rule.ports[0].first}")


def _ports(ports: Iterable[PortRange]) -> list[str]:
    out = []
    for span in ports:
        number = str(span.first) if span.first == span.last else f"{span.first}-{span.last}"
        out.append(number if span.protocol == "tcp" else f"{number}/{span.protocol}")
    return out


def _shown(text: str) -> str:
    return escape(text[:LONGEST] + ("..." if len(text) > LONGEST else ""))


def _code(text: str) -> str:
    return f"`{_shown(text).replace('`', chr(39))}`"
