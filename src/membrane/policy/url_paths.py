"""Paths of HTTP requests in one canonical form, and the patterns of rules that match them.

Theory of operation
-------------------
The path of a rule and that of a request go through the same canonicaliser: RFC 3986 section 6.2.2 normal form.  The
canonical path is what is matched *and* what is forwarded, so the server reads what was judged.  What servers read in
different ways (an encoded separator, a doubly encoded one, a dot segment in disguise, text that compatibility
normalisation turns into a separator) is refused with the cause; nothing is guessed.

A pattern is compiled to a prefix comparison or, with stars, to one regular expression in which all runs but the last
take the leftmost fit: matching is linear in the path for hostile patterns too.  ``re`` is imported for those only.
"""

from __future__ import annotations

from .model import Malformed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class MalformedPath(Malformed):
    """Not an HTTP path that every server reads alike."""


_LONGEST_PATH = 32768
_HEX = frozenset("0123456789abcdefABCDEF")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
# Visible ASCII without what readers disagree about: "#" and "?" end a path, "\" is a slash to some.
_PATH_BYTES = bytes(code for code in range(0x21, 0x7F) if code not in b"\\#?")
ENCODED_SLASH = "it contains an encoded slash"
# Some readers drop control characters, or take what is beside them for the whole name: urlsplit of Python (as WHATWG's
# URL, section 4.4) takes tabs and line ends out, also of what was decoded before.
_CONTROL = "an encoded control character"
_REFUSED_ESCAPES = {
    **{f"{code:02X}": _CONTROL for code in (*range(1, 0x20), 0x7F)},
    "2F": "an encoded slash",
    "5C": "an encoded backslash",
    "00": "an encoded NUL",
}
SLASH = "%2F"  # in a canonical path: only where a rule's path has it too
END = "#"  # last in a pattern: the path ends here (no path holds one, so no pattern needs to quote it)
_TWICE = ("%252E", "%252F", "%255C", "%2500", "%2525")


def split_query(target: str) -> tuple[str, str]:
    """Split an origin-form request target (RFC 9112 section 3.2.1) into the path and the query with its ``?``."""
    path, mark, query = target.partition("?")
    return path, mark + query


def canonical_path(raw: str, *, slashes: bool = False) -> str:
    """Return the one path that is matched and forwarded; idempotent.

    Escapes of unreserved characters are decoded, others written in upper case (RFC 3986 section 6.2.2), runs of
    slashes collapsed, dot segments resolved.  The query must be split off before (``split_query``).

    Args:
        slashes: encoded slashes may stay, within what is one segment to some servers and several to others, if it
            has no dot segment and no empty one to either.

    Raises:
        MalformedPath: text that servers read in different ways.
    """
    if raw[:1] != "/":
        raise MalformedPath('it does not begin with "/"')
    if len(raw) > _LONGEST_PATH:
        raise MalformedPath(f"it is longer than {_LONGEST_PATH} characters")
    if not raw.isascii():
        raise MalformedPath("it contains a byte outside of ASCII")
    rest = raw.encode().translate(None, _PATH_BYTES)
    if rest:
        raise MalformedPath(f"it contains {rest[:1].decode()!r}")
    path = _decode_unreserved(raw, slashes) if "%" in raw else raw
    if "//" in path or "/." in path or ("%" in path and ".." in path):
        path = _resolve(path)
    if slashes and SLASH in path:
        parts = path.replace(SLASH, "/")
        if _resolve(parts) != parts or path.endswith(SLASH):
            raise MalformedPath(ENCODED_SLASH)
    return path


def _decode_unreserved(raw: str, slashes: bool) -> str:
    head, *parts = raw.split("%")
    out = [head]
    decoded = bytearray(head.encode())  # the escapes that stay, decoded, to see whether they are UTF-8
    for part in parts:
        code = part[:2].upper()
        if len(code) != 2 or not _HEX.issuperset(code):
            raise MalformedPath('a "%" is not followed by two hexadecimal digits')
        if code in _REFUSED_ESCAPES and not (slashes and code == "2F"):
            raise MalformedPath(f"it contains {_REFUSED_ESCAPES[code]}")
        char = chr(int(code, 16))
        if char in _UNRESERVED:
            out.append(char + part[2:])
            decoded += char.encode()
        else:
            out.append(f"%{code}{part[2:]}")
            decoded.append(int(code, 16))
        decoded += part[2:].encode()
    path = "".join(out)
    upper = path.upper()
    if any(twice in upper for twice in _TWICE):
        raise MalformedPath("it contains a doubly encoded separator or dot")
    if not decoded.isascii():
        _check_unicode(bytes(decoded))
    return path


def _check_unicode(decoded: bytes) -> None:
    """Refuse overlong or broken UTF-8 and characters that compatibility normalisation turns into a separator."""
    import unicodedata

    try:
        text = decoded.decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedPath("its escapes are not UTF-8") from None
    # Character by character: neither a separator nor a dot comes of putting others together, and to put thousands of
    # combining characters in order costs the square of their number.  NFKC_Casefold leaves out what is not seen.
    seen = [char for char in text if unicodedata.category(char) != "Cf"]
    folded = "".join([unicodedata.normalize("NFKC", char) for char in seen])
    if any("\x80" <= char <= "\x9f" for char in text):
        raise MalformedPath(f"it contains {_CONTROL}")
    if folded.count("/") != text.count("/") or "\\" in folded:
        raise MalformedPath("it contains a character that may be read as a slash")
    for before, after in zip(text.split("/"), folded.split("/"), strict=True):
        if after != before and after in (".", ".."):
            raise MalformedPath("it contains characters that may be read as a dot segment")


def _resolve(path: str) -> str:
    out: list[str] = []
    segments = [segment for segment in path.split("/") if segment]
    for segment in segments:
        if segment == "..":
            if not out:
                raise MalformedPath('".." leads above the root')
            out.pop()
        elif segment != ".":
            if segment[:1] in ".%" and (";" in segment or "%" in segment):
                _check_dots(segment)
            out.append(segment)
    directory = path[-1] == "/" or segments[-1] in (".", "..")
    return "/" + "/".join(out) + ("/" if directory and out else "")


def _check_dots(segment: str) -> None:
    """Refuse what is a dot segment to who drops parameters or blanks, or takes the decoded path for a URL; also when
    they are encoded twice."""
    from urllib.parse import unquote

    decoded = unquote(unquote(segment))
    whole = decoded.partition("?")[0].partition("#")[0]
    if whole != decoded and "".join(whole.split()) in (".", ".."):
        raise MalformedPath("a dot segment is followed by an encoded end of the path")
    name, parameter, _ = whole.partition(";")
    if "".join(name.split()) in (".", ".."):
        raise MalformedPath("a dot segment has a parameter" if parameter else "a dot segment has blanks in it")


def canonical_path_pattern(raw: str) -> str:
    """The canonical form of a path in a rule: as ``canonical_path``, without the trailing slash.

    ``*`` matches any part of one segment, a segment ``**`` for any number of segments; neither for ``%2F``.  A
    ``#`` at the end stays: it says that nothing below is meant.

    Raises:
        MalformedPath: as ``canonical_path``, or ``**`` that is not a whole segment.
    """
    end = raw[-1:] == END
    path = canonical_path(raw[:-1] if end else raw, slashes=True)
    segments = path.split("/")
    if any("**" in segment and segment != "**" for segment in segments):
        raise MalformedPath('"**" is not a whole segment')
    if end and segments[-1] == "**":
        raise MalformedPath('"**" has no end: what is below it is meant as well')
    return (path.rstrip("/") or "/") + (END if end else "")


def path_matcher(pattern: str) -> Callable[[str], bool]:
    """Compile a canonical path pattern; the result says whether it admits a canonical path.

    A pattern admits the path itself and everything below it, at a ``/`` boundary; one with the end mark the path
    itself only, without a slash at its end.  A path with encoded slashes is admitted only by a pattern with as many.
    """
    if SLASH in pattern:
        admits, slashes = _plain_matcher(pattern), pattern.count(SLASH)
        return lambda path: path.count(SLASH) == slashes and admits(path)
    plain = _plain_matcher(pattern)
    return lambda path: SLASH not in path and plain(path)


def _plain_matcher(pattern: str) -> Callable[[str], bool]:
    end = pattern[-1:] == END
    if end:
        pattern = pattern[:-1]
        if "*" not in pattern:
            return lambda path: path == pattern
    if pattern == "/":
        return lambda path: path[:1] == "/"
    if "*" not in pattern:
        below = pattern + "/"
        return lambda path: path == pattern or path.startswith(below)
    import re

    runs: list[str] = [""]
    for segment in pattern[1:].split("/"):
        if segment == "**":
            runs.append("")
        elif segment == "*":
            runs[-1] += "/[^/]+(?=/|\\Z)"
        else:
            head, *rest = [re.escape(part) for part in segment.split("*")]
            middle = "".join(f"(?>[^/]*?{part})" for part in rest[:-1])
            runs[-1] += "/" + head + (f"{middle}[^/]*{rest[-1]}" if rest else "") + "(?=/|\\Z)"
    # As in ``globs.Pattern``: all but the last run take the leftmost fit, so hostile patterns stay linear.
    regex = runs[0]
    if len(runs) > 1:
        regex += "".join(f"(?>(?:/[^/]*)*?{run})" for run in runs[1:-1] if run) + f"(?:/[^/]*)*?{runs[-1]}"
    match = re.compile(regex + ("\\Z" if end else "(?:/|\\Z)"), re.S).match
    return lambda path: match(path) is not None
