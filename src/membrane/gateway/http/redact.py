"""What may be recorded of requests: all of it but what opens doors.

Theory of operation
-------------------
A record is read by more people than the traffic, so whatever looks like a credential is replaced, by three signs: the
name says so (``authorization``, ``x-api-key``, ``access_token=``), the value begins as known tokens do (``ghp_``,
``sk-``), or it has the form of one (a JSON web token, a URL with a password).  It errs on the side of hiding.  Nothing
can switch it off.  Paths are recorded always; queries and header fields with ``trace: {http: full}``.

``Redactor`` is for the values that the session holds itself, and their placeholders: wherever text of any event has
one of them, escaped or not, it is taken out before the event is queued.

References: RFC 9110 section 11.6 (credentials), RFC 6265 (cookies), RFC 7519 (JSON web tokens), RFC 3986 3.2.1.
"""

from __future__ import annotations

import re

from .credentials import PUBLIC_PREFIXES, echoes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from ...events import Event
    from .credentials import Secret

REDACTED = "[redacted]"
MOST_RECORDED = 64  # fields of one head
LONGEST_RECORDED = 1024  # characters of one value; further ones are cut off
LONGEST_QUERY = 2048
# Parts of names, in lower case and without "-" and "_".
_CREDENTIAL_PARTS = (
    "accesskey", "apikey", "assertion", "auth", "bearer", "cookie", "credential", "csrf", "jwt", "nonce", "otp",
    "passcode", "passphrase", "passwd", "password", "private", "pwd", "secret", "securitytoken", "session", "sid",
    "signature", "ticket", "token", "xsrf",
)  # fmt: skip
_CREDENTIAL_WORDS = frozenset(["code", "hmac", "key", "pass", "pin", "pw", "sig", "state", "uid", "websocketkey"])
_PREFIXES = tuple(prefix.decode("ascii") for prefix in PUBLIC_PREFIXES)
_SCHEMES = frozenset(["basic", "bearer", "digest", "dpop", "hawk", "negotiate", "ntlm", "token"])
_ADDRESSES = frozenset(["content-location", "location", "origin", "referer"])
_SAFE = frozenset(
    ["access-control-allow-credentials", "www-authenticate", "proxy-authenticate", "sec-websocket-accept", "authority"]
)
_SHORTEST_TOKEN = 12  # characters with a known prefix
# In a path, where names of people and packages begin as tokens do, more is asked: twenty characters, a digit or a
# capital among them.  Then a JSON web token, a bot's token (Telegram) and the path of a web hook (Slack).
_RUN = re.compile(r"[A-Za-z0-9_-]{11,}")
# Of two that begin alike the shorter one: after it there is more.
_BEGINNING = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(map(re.escape, sorted(_PREFIXES, key=len)))})")
_LONGER = 20  # characters of a token in a path, after its beginning
_NOT_A_WORD = re.compile(r"[A-Z0-9]")
_WEB_TOKEN = re.compile(r"(?<![A-Za-z0-9])eyJ(?=[A-Za-z0-9_-]{8})")
_WEB_TOKEN_REST = re.compile(r"\.[A-Za-z0-9_-]+\.[A-Za-z0-9_.-]*")
_SHAPED = re.compile(
    r"(?<![A-Za-z0-9])(?:bot)?[0-9]{6,}:[A-Za-z0-9_-]{30,}"
    r"|(?<=/)T[A-Z0-9]{7,}/B[A-Z0-9]{7,}/[A-Za-z0-9]{20,}"
)
_USER = re.compile(r"(?<=:/)(/?)[^/@]+@|(^|/)[^/@:]*:[^/@]+@")
_DEEPEST = 4  # addresses within parameters of addresses that are looked into; one below is replaced whole
_MOST_PARAMETERS = 256  # ";name=" of one path that are looked at; further ones are cut off
_SHORTEST_TAIL = 8  # characters at the end of cut text by which a held secret is known


def redact_query(query: str, depth: int = 0) -> str:
    """A query, with or without its ``?``, with ``[redacted]`` as the value of parameters whose name says credential.

    Args:
        depth: of how many addresses within each other it is a part.
    """
    mark = "?" if query.startswith("?") else ""
    cut = len(query) > LONGEST_QUERY
    text = query[len(mark) : LONGEST_QUERY]
    if cut:  # half a token has no form by which it would be known
        text = text[: max(text.rfind("&"), text.rfind(";")) + 1]
    out, start = [], 0
    for at in range(len(text) + 1):
        if at == len(text) or text[at] in "&;":
            out.append(_parameter(text[start:at], depth) + text[at : at + 1])
            start = at + 1
    return mark + "".join(out) + ("..." if cut else "")


def redact_path(path: str) -> str:
    """A path without tokens, without user and password of a URL in it, and without ``;name=`` values of such names."""
    if "%" in path:
        from urllib.parse import unquote

        parts = path.split("/")
        for index, part in enumerate(parts):
            plain = unquote(part)
            if plain != part and (_unshaped(plain) != plain or _USER.search(plain)):
                parts[index] = REDACTED
        path = "/".join(parts)
    path = _unshaped(path)
    if "@" in path:
        path = _USER.sub(rf"\1\2{REDACTED}@", path)
    if ";" in path:
        parts = path.split(";", _MOST_PARAMETERS + 1)
        if len(parts) > _MOST_PARAMETERS:
            parts[_MOST_PARAMETERS + 1 :] = ["..."]
        path = ";".join(parts)
        path = "/".join(";".join(map(_parameter, part.split(";"))) for part in path.split("/"))
    return path


def _unshaped(text: str) -> str:
    """Text without what has the form of a token.

    Each run of the characters that tokens are made of is looked at once: if its first beginning of a token is none,
    because too little or no capital and digit follows, then no later one in the same run is.  One pattern for all of it
    would look at the rest of the run from each beginning: eight seconds for 32 KiB of ``sk-sk-sk-``.
    """
    text = _SHAPED.sub(REDACTED, text)
    out: list[str] = []
    done = 0
    for run in _RUN.finditer(text):
        start, end = run.span()
        if start < done:
            continue  # a part of a web token
        # The character before a run decides whether a token begins with it, so the text is searched, not the run.
        found = _BEGINNING.search(text, start, end)
        at = -1
        if found is not None and end - found.end() >= _LONGER and _NOT_A_WORD.search(text, found.end(), end):
            at = found.start()
        web = _WEB_TOKEN.search(text, start, end)
        rest = _WEB_TOKEN_REST.match(text, end) if web is not None else None
        if web is not None and rest is not None and (at < 0 or web.start() < at):
            at = web.start()
        if at >= 0:
            out += (text[done:at], REDACTED)
            done = rest.end() if rest is not None else end
    return "".join((*out, text[done:])) if out else text


def redact_fields(fields: Sequence[tuple[bytes, bytes]]) -> tuple[tuple[str, str], ...]:
    """Header fields, names in lower case, as they may be recorded."""
    out = [_field(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in fields[:MOST_RECORDED]]
    if len(fields) > MOST_RECORDED:
        out.append(("...", f"{len(fields) - MOST_RECORDED} more"))
    return tuple(out)


def _field(name: str, value: str) -> tuple[str, str]:
    if name not in _SAFE and _names_credential(name):
        scheme, space, _rest = value.partition(" ")
        known = space and scheme.lower() in _SCHEMES
        return name, f"{scheme} {REDACTED}" if known else REDACTED
    if name in _ADDRESSES or "://" in value:
        value = _address(value)
    value = " ".join(REDACTED if _is_token(word.strip(",;\"'")) else word for word in value.split(" "))
    return name, value if len(value) <= LONGEST_RECORDED else f"{value[:LONGEST_RECORDED]}..."


def _address(value: str, depth: int = 0) -> str:
    """A URL without its password, its query as ``redact_query`` gives it, and without its fragment's values."""
    address, mark, fragment = value.partition("#")
    address, question, query = address.partition("?")
    scheme, slashes, rest = address.partition("://")
    if slashes:
        authority, slash, path = rest.partition("/")
        user, at, host = authority.rpartition("@")
        address = f"{scheme}://{REDACTED}@{host}{slash}{path}" if user and at else address
    asked = redact_query(f"?{query}", depth + 1) if question else ""
    return address + asked + (mark + redact_query(fragment, depth + 1) if mark else "")


def _parameter(part: str, depth: int = 0) -> str:
    from urllib.parse import unquote

    name, mark, value = part.partition("=")
    plain = unquote(value)
    if not mark:
        return REDACTED if _is_token(unquote(name)) else part
    if _names_credential(unquote(name)) or _is_token(plain):
        return f"{name}={REDACTED}"
    if "://" in plain and (depth >= _DEEPEST or _address(plain, depth) != plain):
        return f"{name}={REDACTED}"
    return part


def _names_credential(name: str) -> bool:
    """Does the name say that its value is a credential?"""
    lower = name.lower()
    words = lower.replace("_", "-").replace("[", "-").replace("]", "").replace(".", "-").split("-")
    joined = "".join(words)
    return (
        joined in _CREDENTIAL_WORDS
        or not _CREDENTIAL_WORDS.isdisjoint(words)
        or any(part in joined for part in _CREDENTIAL_PARTS)
    )  # fmt: skip


def _is_token(text: str) -> bool:
    if len(text) < _SHORTEST_TOKEN:
        return False
    if text.startswith(_PREFIXES):
        return True
    parts = text.split(".")
    return len(parts) in (3, 5) and text.startswith("eyJ") and len(text) > 32


class Redactor:
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
        return "Redactor()"

    def event(self, event: Event) -> Event:
        """The event as it may be recorded."""
        changed = {}
        for name in event.field_names:
            value = getattr(event, name)
            shown = self.value(value)
            if shown is not value:
                changed[name] = shown
        return event.replace(**changed) if changed else event

    def value(self, value: Any) -> Any:
        """Text, or what holds text, as it may be recorded; the same object when nothing is in it."""
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
        """Text as it may be recorded."""
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
