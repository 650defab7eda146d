"""What may be recorded of requests: all of it but what opens doors.

Theory of operation
-------------------
A record is read by more people than the traffic, so whatever looks like a credential is replaced, by three signs: the
name says so (``authorization``, ``x-api-key``, ``access_token=``), the value begins as known tokens do (``ghp_``,
``sk-``), or it has the form of one (a JSON web token, a URL with a password).  It errs on the side of hiding.  Nothing
can switch it off.  Paths are recorded always; queries and header fields with ``trace: {http: full}``.

``Mask`` is for the values that the session holds itself, and their placeholders: wherever text of any event has one of
them, escaped or not, it is taken out before the event is queued.

References: RFC 9110 section 11.6 (credentials), RFC 6265 (cookies), RFC 7519 (JSON web tokens), RFC 3986 3.2.1.
"""

from __future__ import annotations

import re

from .credentials import PUBLIC_PREFIXES, echoes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from ..events import Event
    from .credentials import Secret

REDACTED = "[redacted]"
MOST_RECORDED = 64  # fields of one head
LONGEST_RECORDED = 1024  # characters of one value; further ones are cut off
LONGEST_QUERY = 2048
# Parts of names, in lower case and without "-" and "_".
_TELLING = (
    "accesskey", "apikey", "assertion", "auth", "bearer", "cookie", "credential", "csrf", "jwt", "nonce", "otp",
    "passcode", "passphrase", "passwd", "password", "private", "pwd", "secret", "securitytoken", "session", "sid",
    "signature", "ticket", "token", "xsrf",
)  # fmt: skip
_TELLING_WHOLE = frozenset(["code", "hmac", "key", "pass", "pin", "pw", "sig", "state", "uid", "websocketkey"])
_PREFIXES = tuple(prefix.decode("ascii") for prefix in PUBLIC_PREFIXES)
_SCHEMES = frozenset(["basic", "bearer", "digest", "dpop", "hawk", "negotiate", "ntlm", "token"])
_ADDRESSES = frozenset(["content-location", "location", "origin", "referer"])
_SAFE = frozenset(
    ["access-control-allow-credentials", "www-authenticate", "proxy-authenticate", "sec-websocket-accept", "authority"]
)
_SHORTEST_TOKEN = 12  # characters with a known prefix
# In a path, where names of people and packages begin as tokens do, more is asked: twenty characters, a digit or a
# capital among them.  Then a JSON web token, a bot's token (Telegram) and the path of a web hook (Slack).
_SHAPED = re.compile(
    rf"(?<![A-Za-z0-9])(?:{'|'.join(map(re.escape, _PREFIXES))})(?=[a-z_-]*[A-Z0-9])[A-Za-z0-9_-]{{20,}}"
    r"|(?<![A-Za-z0-9])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_.-]*"
    r"|(?<![A-Za-z0-9])(?:bot)?[0-9]{6,}:[A-Za-z0-9_-]{30,}"
    r"|(?<=/)T[A-Z0-9]{7,}/B[A-Z0-9]{7,}/[A-Za-z0-9]{20,}"
)
_USER = re.compile(r"(?<=:/)(/?)[^/@]+@|(^|/)[^/@:]*:[^/@]+@")
_SHORTEST_TAIL = 8  # characters at the end of cut text by which a held secret is known


def redact_query(query: str) -> str:
    """A query, with or without its ``?``, whose telling parameters have ``[redacted]`` as their value."""
    mark = "?" if query.startswith("?") else ""
    cut = len(query) > LONGEST_QUERY
    text = query[len(mark) : LONGEST_QUERY]
    if cut:  # half a token has no form by which it would be known
        text = text[: max(text.rfind("&"), text.rfind(";")) + 1]
    out, start = [], 0
    for at in range(len(text) + 1):
        if at == len(text) or text[at] in "&;":
            out.append(_parameter(text[start:at]) + text[at : at + 1])
            start = at + 1
    return mark + "".join(out) + ("..." if cut else "")


def redact_path(path: str) -> str:
    """A path without tokens, without the user and password of a URL in it, and without telling ``;name=`` values."""
    if "%" in path:
        from urllib.parse import unquote

        parts = path.split("/")
        for index, part in enumerate(parts):
            plain = unquote(part)
            if plain != part and (_SHAPED.search(plain) or _USER.search(plain)):
                parts[index] = REDACTED
        path = "/".join(parts)
    path = _SHAPED.sub(REDACTED, path)
    if "@" in path:
        path = _USER.sub(rf"\1\2{REDACTED}@", path)
    if ";" in path:
        path = "/".join(";".join(map(_parameter, part.split(";"))) for part in path.split("/"))
    return path


def redact_fields(fields: Sequence[tuple[bytes, bytes]]) -> tuple[tuple[str, str], ...]:
    """Header fields, names in lower case, as they may be recorded."""
    out = [_field(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in fields[:MOST_RECORDED]]
    if len(fields) > MOST_RECORDED:
        out.append(("...", f"{len(fields) - MOST_RECORDED} more"))
    return tuple(out)


def _field(name: str, value: str) -> tuple[str, str]:
    if name not in _SAFE and _tells(name):
        scheme, space, _rest = value.partition(" ")
        known = space and scheme.lower() in _SCHEMES
        return name, f"{scheme} {REDACTED}" if known else REDACTED
    if name in _ADDRESSES or "://" in value:
        value = _address(value)
    value = " ".join(REDACTED if _is_token(word.strip(",;\"'")) else word for word in value.split(" "))
    return name, value if len(value) <= LONGEST_RECORDED else f"{value[:LONGEST_RECORDED]}..."


def _address(value: str) -> str:
    """A URL without its password, its query as ``redact_query`` gives it, and without its fragment's values."""
    address, mark, fragment = value.partition("#")
    address, question, query = address.partition("?")
    scheme, slashes, rest = address.partition("://")
    if slashes:
        authority, slash, path = rest.partition("/")
        user, at, host = authority.rpartition("@")
        address = f"{scheme}://{REDACTED}@{host}{slash}{path}" if user and at else address
    return address + (redact_query(f"?{query}") if question else "") + (mark + redact_query(fragment) if mark else "")


def _parameter(part: str) -> str:
    from urllib.parse import unquote

    name, mark, value = part.partition("=")
    plain = unquote(value)
    if not mark:
        return REDACTED if _is_token(unquote(name)) else part
    if _tells(unquote(name)) or _is_token(plain) or ("://" in plain and _address(plain) != plain):
        return f"{name}={REDACTED}"
    return part


def _tells(name: str) -> bool:
    """Does a name say that its value is a credential?"""
    lower = name.lower()
    words = lower.replace("_", "-").replace("[", "-").replace("]", "").replace(".", "-").split("-")
    joined = "".join(words)
    return (
        joined in _TELLING_WHOLE
        or not _TELLING_WHOLE.isdisjoint(words)
        or any(part in joined for part in _TELLING)
    )  # fmt: skip


def _is_token(text: str) -> bool:
    if len(text) < _SHORTEST_TOKEN:
        return False
    if text.startswith(_PREFIXES):
        return True
    parts = text.split(".")
    return len(parts) in (3, 5) and text.startswith("eyJ") and len(text) > 32


class Mask:
    """Takes held secrets out of events.

    A host name is in lower case and a path may be escaped in as many layers as its sender likes, so neither matters
    here.  Text that was cut may end in the beginning of a secret: that is taken out as well.
    """

    def __init__(self, secrets: Iterable[Secret]) -> None:
        whole: dict[str, None] = {}  # a set that keeps its order
        forms: dict[str, None] = {}
        for secret in secrets:
            for value in (secret.value, secret.placeholder):
                whole[value.decode("ascii").lower()] = None
            for pair in echoes(secret.value, secret.placeholder):
                forms.update((form.decode("ascii").lower(), None) for form in pair)
        self._whole = tuple(whole)
        self._forms = tuple(forms)
        escaped = ["".join(map(_escaped, text)) for text in whole]
        others = [re.escape(form) for form in forms if form not in whole]
        self._pattern = re.compile("|".join(escaped + others), re.IGNORECASE)

    def __repr__(self) -> str:
        return "Mask()"

    def event(self, event: Event) -> Event:
        """The event as it may be told."""
        changed = {}
        for name in event.field_names:
            value = getattr(event, name)
            shown = self.value(value)
            if shown is not value:
                changed[name] = shown
        return event.replace(**changed) if changed else event

    def value(self, value: Any) -> Any:
        """Text, or what holds text, as it may be told; the same object when nothing is in it."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            shown: Any = {key: self.value(item) for key, item in value.items()}
            return shown if any(shown[key] is not value[key] for key in value) else value
        if isinstance(value, (tuple, list)):
            shown = [self.value(item) for item in value]
            return type(value)(shown) if any(a is not b for a, b in zip(shown, value, strict=True)) else value
        return value

    def text(self, text: str) -> str:
        """Text as it may be told."""
        lower = text.lower()
        if any(form in lower for form in self._forms) or ("%" in text and self._pattern.search(text)):
            text = self._pattern.sub(REDACTED, text)
            lower = text.lower()
        for secret in self._whole:
            at = lower.rfind(secret[:_SHORTEST_TAIL], -len(secret))
            if at >= 0 and secret.startswith(lower[at:]):
                return text[:at] + REDACTED
        return text


def _escaped(char: str) -> str:
    """A pattern for a character, escaped for a URL any number of times or not (RFC 3986 section 2.1)."""
    return f"(?:{re.escape(char)}|%(?:25)*{ord(char):02x}{f'|%(?:25)*{ord(char.upper()):02x}' * char.isalpha()})"
