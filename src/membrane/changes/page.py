"""Changes as one HTML page, for those who look without a terminal.

Theory of operation
-------------------
The page loads nothing and runs nothing: its policy (CSP3, ``default-src 'none'``) admits one style sheet by its hash.
Each text from inside (names, contents, reasons) passes ``diff.shown`` or ``escaping.escape``, as for a terminal, and
then ``html.escape``; it is only ever text of an element, never in an attribute.  Red ones come first, marked in words
and in colour.  The bytes of one patch, of the whole page, and of what is read for it are bounded; what was cut is said.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from html import escape as quoted

from ..escaping import escape
from . import diff

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .model import Change
    from .tree import Copy

MOST_OF_ONE = 256 << 10  # bytes of the patch of one change, before it is marked up
MOST = 16 << 20  # bytes of the page
MOST_READ = 256 << 20  # bytes of files that are compared for it: a binary or a sparse one takes no room on the page
MOST_CHANGES = 10_000  # named at all

_STYLE = (
    "body{font:14px sans-serif;margin:2em}pre{overflow:auto;background:#f6f6f6;padding:.5em}"
    "h2{font:bold 14px monospace}.red{color:#b00020}.add{color:#116329}.del{color:#b00020}.at{color:#0550ae}"
)
_CLASSES = {"+": "add", "-": "del", "@": "at"}


def page(copy: Copy, name: str, changes: Sequence[Change]) -> Iterator[bytes]:
    """The page, in pieces of UTF-8; a change that cannot be read is named with the reason."""
    policy = f"default-src 'none'; style-src 'sha256-{b64encode(sha256(_STYLE.encode()).digest()).decode()}'"
    title = f"Changes of {_safe(name)}"
    yield (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>\n"
    ).encode()
    marked = sorted(changes, key=lambda change: not (change.red or change.never))
    red = sum(bool(change.red or change.never) for change in changes)
    yield f"<p>{len(changes)} changes, {red} of them red.</p>\n".encode()
    left, readable, shown = MOST, MOST_READ, 0
    for change in marked[:MOST_CHANGES]:
        head = _head(change).encode()
        left -= len(head)
        if left <= 0:
            break
        shown += 1
        yield head
        readable -= sum(side.size for side in (change.before, change.after) if side is not None)
        body = _patch(copy, change).encode("utf-8", "replace") if readable >= 0 else b""
        if len(body) > left or not body:
            body = b"<p>CUT: the page is full (membrane diff NAME PATH shows it)</p>\n"
        left -= len(body)
        yield body
    if len(marked) > shown:
        yield f"<p>CUT: {len(marked) - shown} more changes are not shown.</p>\n".encode()
    yield b"</body></html>\n"


def _safe(text: str) -> str:
    return quoted(escape(text))


def _head(change: Change) -> str:
    out = f"<h2>{quoted(diff.name_of(change))} ({change.kind} {_safe(change.what)})</h2>\n"
    rows = [("RED", why) for why in change.red] + [("NEVER PUT IN PLACE", why) for why in change.never]
    if change.conflict:
        rows.append(("CONFLICT", change.conflict))
    return out + "".join(f'<p class="red">{word}: {_safe(why)}</p>\n' for word, why in rows)


def _patch(copy: Copy, change: Change) -> str:
    """The patch of one change as an element."""
    text, note = b"", ""
    try:
        for piece in diff.patch(copy, [change]):
            if piece == b"GIT binary patch\n":
                note = "binary, not shown"
                break
            text += piece[: MOST_OF_ONE + 1 - len(text)]
            if len(text) > MOST_OF_ONE:
                text = text[:MOST_OF_ONE]
                note = "CUT: the rest is not shown (membrane diff NAME PATH shows it)"
                break
    except OSError as error:
        note = f"cannot be read: {error.strerror or error}"
    lines = []
    for line in diff.shown(text, colour=False).split("\n"):
        kind = _CLASSES.get(line[:1])
        lines.append(f'<span class="{kind}">{quoted(line)}</span>' if kind else quoted(line))
    out = "<pre>" + "\n".join(lines) + "</pre>\n"
    return out + (f"<p>{_safe(note)}</p>\n" if note else "")
