"""Credentials inside of text: what is one, and the text with placeholders in their stead.

Theory of operation
-------------------
``extract`` is a regular expression in the common grammar of Python and JavaScript; group 1 of each match is a
credential.  ``decode: jwt`` takes JSON Web Tokens (RFC 7519) that parse as one: without ``claims`` the token is the
credential, with them it is the named claims, and the token around them.  A placeholder has the length of what it
stands for, so nothing else in a text moves.

All spans are found in the original text: what was put in is never looked at again.  Where a value is repeated outside
of the matches, ``duplicates`` replaces it as well, the longer ones first.
"""

from __future__ import annotations

from .model import Malformed

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterable

JWT = r"(eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+)"
_FAR = 4102444800  # 2100-01-01, as NumericDate


def compiled(text: str) -> re.Pattern[str]:
    """The expression of an ``extract``.

    Raises:
        Malformed: it is none, or has no group.
    """
    import re

    try:
        pattern = re.compile(_python(text), re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise Malformed(f"{text!r} is not a regular expression: {error}") from None
    if not pattern.groups:
        raise Malformed(f"{text!r} needs a group: group 1 is the credential")
    return pattern


def _python(text: str) -> str:
    """JavaScript's spelling of named groups, and of the end of the text, as Python has it."""
    out: list[str] = []
    index, in_set = 0, False
    while index < len(text):
        char = text[index]
        if char == "\\":
            named = text.startswith("\\k<", index)
            end = text.find(">", index)
            if named and end > 0:
                out.append(f"(?P={text[index + 3 : end]})")
                index = end + 1
                continue
            out.append(text[index : index + 2])
            index += 2
            continue
        if in_set:
            in_set = char != "]"
        elif char == "[":
            in_set = True
        elif char == "$":
            char = r"\Z"
        elif text.startswith("(?<", index) and text[index + 3 : index + 4] not in ("=", "!", ""):
            out.append("(?P<")
            index += 3
            continue
        out.append(char)
        index += 1
    return "".join(out)


def substitute(
    text: str, pattern: re.Pattern[str], placeholder: Callable[[str], str | None], *, duplicates: bool = False
) -> str | None:
    """``text`` with each credential replaced; None: there is none.

    Args:
        placeholder: the placeholder of a credential; None: this match is no credential and stays.

    Raises:
        Malformed: a match without group 1, where it is optional: such a credential would be left as it is.
    """
    spans: list[tuple[int, int, str]] = []
    replaced: dict[str, str | None] = {}
    for found in pattern.finditer(text):
        start, end = found.span(1)
        if start < 0:
            raise Malformed("group 1 took no part in a match; a credential would stay as it is")
        value = text[start:end]
        if not value or (spans and start < spans[-1][1]):
            continue
        if value not in replaced:
            replaced[value] = placeholder(value)
        shown = replaced[value]
        if shown is not None:
            spans.append((start, end, shown))
    if not spans:
        return None
    if duplicates:
        for value in sorted((each for each, shown in replaced.items() if shown is not None), key=len, reverse=True):
            shown = replaced[value] or ""
            at = text.find(value)
            while at >= 0:
                end = at + len(value)
                if all(end <= other or at >= last for other, last, _shown in spans):
                    spans.append((at, end, shown))
                at = text.find(value, at + 1)
    out: list[str] = []
    at = 0
    for start, end, shown in sorted(spans):
        out += (text[at:start], shown)
        at = end
    return "".join((*out, text[at:]))


# ---------------------------------------------------------------- JSON Web Tokens


def _segment(text: str) -> bytes:
    import base64

    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _encoded(data: bytes) -> str:
    import base64

    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def payload_of(token: str) -> str | None:
    """The text of a JSON Web Token's claims; None: it is no such token."""
    import binascii
    import json

    parts = token.split(".")
    if len(parts) != 3 or not all(parts):
        return None
    try:
        header, claims = (_segment(part) for part in parts[:2])
        head, body = json.loads(header), json.loads(claims)
        text = claims.decode("ascii")
    except (ValueError, binascii.Error, RecursionError):
        return None
    if not isinstance(head, dict) or not isinstance(head.get("alg"), str) or not isinstance(body, dict):
        return None
    return text if _encoded(claims) == parts[1] else None


def fake_token(token: str, placeholder: Callable[[str], str]) -> str:
    """A token of the same header and length, with no claim of the real one and a signature that no key made.

    Args:
        placeholder: a placeholder of the same length and alphabet.

    Raises:
        ValueError: its signature is too short to be a placeholder.
    """
    header, claims, signature = token.split(".")
    length = len(_segment(claims))
    text = f'{{"exp":{_FAR}}}' if length >= 19 else "{}"
    return f"{header}.{_encoded(text.ljust(length).encode())}.{placeholder(signature)}"


def mask_claims(
    token: str, names: Iterable[str], placeholder: Callable[[str], str], noise: Callable[[str], str]
) -> tuple[str, dict[str, str]] | None:
    """The token with the named claims replaced, and what replaces each; None: it has none of them as text.

    Args:
        placeholder: the placeholder of a claim.
        noise: random text of the same length and alphabet, for the signature.

    Raises:
        ValueError: a named claim cannot be replaced in its place, or by a placeholder.
    """
    payload = payload_of(token)
    if payload is None:
        return None
    wanted = set(names)
    spans = [(start, end, value) for name, start, end, value in _members(payload) if name in wanted]
    replaced: dict[str, str] = {}
    out: list[str] = []
    at = 0
    for start, end, value in spans:
        if not isinstance(value, str):
            continue
        if payload[start + 1 : end - 1] != value:
            raise ValueError("a claim with escapes cannot be replaced")
        if value not in replaced:
            replaced[value] = placeholder(value)
        out += (payload[at : start + 1], replaced[value])
        at = end - 1
    if not replaced:
        return None
    header, _claims, signature = token.split(".")
    body = _encoded("".join((*out, payload[at:])).encode())
    return f"{header}.{body}.{noise(signature)}", replaced


def _members(text: str) -> list[tuple[str, int, int, object]]:
    """The members of a JSON object: name, where the value is, and the value."""
    import json

    decoder = json.JSONDecoder()
    out: list[tuple[str, int, int, object]] = []
    at = text.index("{") + 1
    while True:
        while text[at] in " \t\r\n,":
            at += 1
        if text[at] == "}":
            return out
        name, at = decoder.raw_decode(text, at)
        at = text.index(":", at) + 1
        while text[at] in " \t\r\n":
            at += 1
        value, end = decoder.raw_decode(text, at)
        out.append((name, at, end, value))
        at = end
