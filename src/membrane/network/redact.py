"""What of a query and of header fields may be recorded: all of it but what opens doors.

Theory of operation
-------------------
``trace: {http: full}`` records queries and header fields.  A record is read by more people than the traffic, so
whatever looks like a credential is replaced, by three signs: the name says so (``authorization``, ``x-api-key``,
``access_token=``), the value begins as known tokens do (``ghp_``, ``sk-``), or it has the form of one (a JSON web
token, a URL with a password).  It errs on the side of hiding.  Nothing can switch it off.

The values that the session holds itself never come here: a request is recorded with its placeholder, an answer after
it was scrubbed (``credentials``).

References: RFC 9110 section 11.6 (credentials), RFC 6265 (cookies), RFC 7519 (JSON web tokens), RFC 3986 3.2.1.
"""

from __future__ import annotations

from .credentials import PUBLIC_PREFIXES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

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
