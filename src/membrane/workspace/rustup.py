"""``rust-toolchain`` and ``rust-toolchain.toml``: could what rustup runs here be the command's?

Theory of operation
-------------------
rustup runs, at every ``cargo`` and ``rustc`` in the tree, what the file says: a toolchain that lies at ``path``, or the
``channel`` of that name (rust-lang.github.io/rustup/overrides.html; rustup, src/config.rs, ``parse_override_file``).
``rust-toolchain`` may also be one line, which is a path where it is absolute and else a channel.

Accepted are channels that Rust itself releases: rustup takes those from its own server or from where it has put them
before.  Any other name is of a toolchain that a person has linked (``rustup toolchain link``), perhaps to a directory
of this workspace, and what is linked there may change; so it is refused, as each ``path`` is.

The text is read as a list of tokens, of which each is something that TOML reads in the same way: strings without
escapes, and of the keys those that rustup knows.  What is no such token, or stands in another order, is refused.  The
work is linear in the text, which the caller bounds.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(r"[ \t\n]+|#[^\n]*|\"[\w.+-]*\"|'[\w.+-]*'|[a-z]+|[\[\]=,]", re.ASCII)
# rustup, src/dist/mod.rs, TOOLCHAIN_CHANNEL_PATTERN; of the hosts that may follow those that rustup has always known:
# a name with another ending may be one that a person has given.
_CHANNEL = re.compile(
    r"(?:stable|beta|nightly|[0-9]\.[0-9]{1,3}(?:\.[0-9]{1,2})?(?:-beta(?:\.[0-9]{1,2})?)?)(?:-[0-9]{4}-[0-9]{2}-[0-9]{2})?"
    r"(?:-(?:x86_64|i686|aarch64)-(?:unknown-linux-(?:gnu|musl)|apple-darwin|pc-windows-(?:msvc|gnu)))?"
)
_LISTS = ("components", "targets")
LEADS = "rustup would run the toolchain at this path"
NOT_READ = "it is not a plain choice of a released toolchain, with its components, targets and profile"


def objection(text: str) -> str:
    """Why a file of this content must go; empty when all that it does is to choose a released toolchain."""
    text = text.replace("\r\n", "\n")
    line = text.strip(" \t\n")
    if not line or _CHANNEL.fullmatch(line):
        return ""
    if "\n" not in line and "/" in line and line[0] not in "[#":
        return LEADS
    tokens = _tokens(text)
    return NOT_READ if tokens is None else _table(tokens)


def _tokens(text: str) -> list[str] | None:
    """What is no space and no comment; None: something else is in between."""
    found, at = [], 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            return None
        at = token.end()
        if token[0][0] not in " \t\n#":
            found.append(token[0])
        elif not token[0].isprintable() and token[0][0] == "#":
            return None  # a control character, which TOML has in no comment
    return found


def _table(tokens: list[str]) -> str:
    """``[toolchain]`` once, and its settings."""
    if tokens[:3] != ["[", "toolchain", "]"]:
        return "" if not tokens else NOT_READ
    at, seen = 3, set()
    while at < len(tokens):
        key, equals, first = (*tokens[at : at + 3], "", "", "")[:3]
        if key == "path" and equals == "=":
            return LEADS
        if equals != "=" or key in seen:
            return NOT_READ
        seen.add(key)
        at += 3
        if key == "channel":
            if first[:1] not in ("'", '"') or not _CHANNEL.fullmatch(first[1:-1]):
                return f"rustup would run the toolchain that is linked as {first[:40]}" if first[1:-1] else NOT_READ
        elif key in _LISTS and first == "[":
            end = _end_of_list(tokens, at)
            if end < 0:
                return NOT_READ
            at = end
        elif key != "profile" or first[:1] not in ("'", '"'):
            return NOT_READ
    return ""


def _end_of_list(tokens: list[str], at: int) -> int:
    """Where the list of strings that has begun before ``at`` is over; -1: it is something else."""
    while at < len(tokens) and tokens[at] != "]":
        if tokens[at][0] not in "'\"" or tokens[at + 1 : at + 2] not in ([","], ["]"]):
            return -1
        at += 2 if tokens[at + 1] == "," else 1
    return at + 1 if at < len(tokens) else -1
