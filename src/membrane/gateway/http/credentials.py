"""Secrets that the command can use but not read.

Theory of operation
-------------------
Inside, a secret is a *placeholder*: random text of the same length and shape.  ``Vault`` looks for placeholders in
every request head after the policy has allowed it:

* in the place that the secret's rule names (one header field, one parameter of the query, or any header field whose
  name says that it carries credentials), and on the way to its destination, the value is put in;
* anywhere else the request is refused.

Answers of a destination are *scrubbed*: the value, however its characters are spelled (``spellings``), becomes the
placeholder.  Because nothing changes its length, no framing, no ``Content-Length`` and no flow-control window changes.

Rules
-----
1. A value is put in for scheme, host, port and path of its destination only, whichever of its readings a server takes
   for the request (``requests.Admitted.readings``); redirects are not followed here.
2. ``repr`` and errors never show a value.
3. What cannot be read cannot be scrubbed: such requests ask for ``identity`` and for the whole of it, and an answer
   in another coding, or in characters that do not agree with ASCII, is not passed on.

Not covered: values in request bodies (put in by ``logins`` only, to renew a log-in), and answers that show a value in a
way that ``spellings`` does not know, or a part of it.
"""

from __future__ import annotations

from ...policy import reasons
from ...policy.hosts import wildcard_matches
from ...policy.model import Deny
from ...policy.url_paths import path_matcher
from .overrides import as_variable
from .spellings import Scrubber, Spellings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, Protocol

    from ...policy.model import HttpRequest
    from .requests import Bound
    from .sigv4 import Signers

    class Renewals(Protocol):
        """What puts tokens into requests that renew a log-in (``logins.Logins``)."""

        def trade(self, readings: Sequence[HttpRequest], target: bytes, kinds: Sequence[bytes]) -> Any:
            """The body of such a request, written anew; None for any other."""


SHORTEST_SECRET = 8  # bytes; a shorter one would be found in text that has nothing to do with it
LONGEST_SECRET = 8192
# Beginnings that are public knowledge, by which clients check that they were given the right kind of token.
PUBLIC_PREFIXES = (
    b"sk-ant-api03-", b"sk-ant-oat01-", b"sk-ant-ort01-", b"sk-ant-", b"sk-proj-", b"sk-or-v1-", b"sk-", b"github_pat_",
    b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"glpat-", b"hf_", b"npm_", b"pypi-", b"xoxb-", b"xoxp-", b"AIza",
    b"AKIA", b"gsk_", b"dop_v1_",
)  # fmt: skip
# What a client may ask for that would show a value in a form, or in parts, in which it is not found.
_UNASKED = frozenset([b"a-im", b"accept-charset", b"if-range", b"range", b"sec-websocket-extensions", b"x-ms-range"])
# Fields that carry credentials, of which the last word does not say so.
CARRIERS = frozenset([b"authorization", b"cookie", b"x-cookie", b"x-auth-key-id", b"x-amz-credential"])
# The last words of names of fields that do.
_CARRYING = frozenset(
    [
        b"accesstoken", b"apikey", b"auth", b"authkey", b"authorization", b"authtoken", b"credential", b"credentials",
        b"jwt", b"key", b"passwd", b"password", b"pat", b"secret", b"token",
    ]
)  # fmt: skip
# Words in names of fields that a server keeps beside what it stores, hands on, or shows to others, whatever their last
# word is; and of what is a key of no lock.
_KEPT = frozenset(
    [
        b"blob", b"cache", b"container", b"content", b"custom", b"etag", b"idempotency", b"idempotent", b"info",
        b"link", b"object", b"partition", b"proxy", b"public", b"referer", b"referrer", b"routing", b"sec", b"sort",
        b"surrogate", b"sync", b"tag", b"tagging", b"tags", b"website",
    ]
)  # fmt: skip
_WORDS = bytes(each if bytes((each,)).isalnum() else 0x20 for each in range(256))
# Of content or of each message in it; the last two: Connect (connectrpc.com), RFC 3229.
CODINGS = frozenset([b"content-encoding", b"grpc-encoding", b"connect-content-encoding", b"im"])
# Character sets in which visible ASCII is itself, or itself between NULs: what ``spellings`` reads.
_CHARSETS = frozenset(
    [
        b"ascii", b"big5", b"euc-jp", b"euc-kr", b"gb18030", b"gb2312", b"gbk", b"koi8-r", b"koi8-u", b"latin1",
        b"macintosh", b"shift_jis", b"us-ascii", b"utf-16", b"utf-16be", b"utf-16le", b"utf-32", b"utf-32be",
        b"utf-32le", b"utf-8", b"utf8",
    ]
)  # fmt: skip
_LETTERS = b"abcdefghijklmnopqrstuvwxyz"
_DIGITS = b"0123456789"
_VISIBLE = bytes(range(0x21, 0x7F))


def placeholder_for(value: bytes, random: Callable[[int], bytes]) -> bytes:
    """Random text of the same length and shape: letters for letters, digits for digits, the rest as it is.

    Args:
        random: gives that many random bytes, such as ``os.urandom``.

    Raises:
        ValueError: the value is too short or too long, has bytes that a header may not have, or is so regular
            that a placeholder would not differ from it enough.
    """
    if not SHORTEST_SECRET <= len(value) <= LONGEST_SECRET:
        raise ValueError(f"a secret has {SHORTEST_SECRET} to {LONGEST_SECRET} bytes")
    if value.translate(None, _VISIBLE):
        raise ValueError("a secret is visible ASCII without spaces")
    prefix = next((each for each in PUBLIC_PREFIXES if value.startswith(each) and len(value) - len(each) >= 8), b"")
    out = bytearray(value)
    changed = 0
    noise = random(2 * len(value))
    for at in range(len(prefix), len(value)):
        char = value[at : at + 1]
        dice = noise[2 * at] << 8 | noise[2 * at + 1]
        if char.isdigit():
            out[at] = _DIGITS[dice % 10]
        elif char.isalpha():
            letter = _LETTERS[dice % 26 : dice % 26 + 1]
            out[at] = (letter.upper() if char.isupper() else letter)[0]
        else:
            continue
        changed += 1
    if changed < SHORTEST_SECRET or out == value:
        raise ValueError(f"a secret has at least {SHORTEST_SECRET} letters and digits")
    return bytes(out)


def carries(name: bytes) -> bool:
    """Does the name of a header field, in lower case, say that it carries credentials?

    Every sign counts as "-": servers that hand fields on as variables fold them (RFC 3875 section 4.1.18).
    """
    words = name.translate(_WORDS).split()
    if any(word in _KEPT or word.startswith(b"meta") for word in words):
        return False
    return b"-".join(words) in CARRIERS or (words[-1:] != [] and words[-1] in _CARRYING)


def unasked(name: bytes) -> bool:
    """Does a client ask by a field of this name (in lower case) for a form in which a value is not found?

    Of every protocol above HTTP: ``grpc-accept-encoding``, ``connect-accept-encoding``; ``A-IM``: RFC 3229.
    """
    plain = as_variable(name)
    return plain in _UNASKED or plain.endswith(b"accept-encoding")


def legible(name: bytes, value: bytes) -> bool:
    """Can the content that a field of an answer describes be read as ``spellings`` does?  ``name`` in lower case."""
    if name in CODINGS:
        return value.lower() in (b"", b"identity")
    if name != b"content-type" or b"charset" not in value.lower():
        return True
    for part in value.lower().split(b";")[1:]:
        key, _, charset = part.partition(b"=")
        charset = charset.strip(b" \t\"'")
        if key.strip() == b"charset" and not (
            charset in _CHARSETS or charset.startswith((b"iso-8859-", b"windows-125")) or not charset
        ):
            return False
    return True


def plainly(name: bytes, value: bytes) -> bytes:
    """The value of a request's field without what asks for a character set of the client's choice."""
    if name != b"accept" or b"charset" not in value.lower():
        return value
    kinds = []
    for kind in value.split(b","):
        first, *parameters = kind.split(b";")
        kept = [part for part in parameters if part.partition(b"=")[0].strip().lower() != b"charset"]
        kinds.append(b";".join((first, *kept)))
    return b",".join(kinds)


class Destination:
    """Where a secret may go: scheme, host (or ``*.NAME``), port, and a path prefix (``url_paths.path_matcher``)."""

    __slots__ = ("host", "path", "port", "scheme")

    def __init__(self, scheme: str, host: str, port: int, path: str = "/") -> None:
        self.scheme, self.host, self.port = scheme, host, port
        self.path = path_matcher(path)

    def is_at(self, scheme: str, host: str, port: int) -> bool:
        """Is it there, whatever the path?"""
        if (self.scheme, self.port) != (scheme, port):
            return False
        return self.host == host or (self.host[:2] == "*." and wildcard_matches(self.host[2:], host))


class Secret:
    """One secret.

    Args:
        name: for events and hints.
        place: a header name, ``query:NAME``, or ``*`` for any header field that carries credentials, with the names of
            further ones after it.  In ``authorization`` the placeholder may stand after any scheme, and within the
            base64 of ``Basic``.
    """

    __slots__ = ("destinations", "field", "further", "name", "parameter", "placeholder", "value")

    def __init__(
        self, name: str, value: bytes, placeholder: bytes, place: str, destinations: Iterable[Destination]
    ) -> None:
        if len(value) != len(placeholder) or value == placeholder:
            raise ValueError("a placeholder has the length of its secret and is not the secret")
        self.name, self.value, self.placeholder = name, value, placeholder
        kind, mark, rest = place.partition(":")
        self.parameter = rest.encode("ascii") if mark and kind == "query" else b""
        field, *further = (" " if self.parameter else place.lower()).split(" ")
        self.field, self.further = field.encode("ascii"), frozenset(each.encode("ascii") for each in further)
        self.destinations = tuple(destinations)

    def __repr__(self) -> str:
        return f"Secret({self.name!r})"

    def belongs_in(self, name: bytes) -> bool:
        """May it be in the header field of this name?"""
        if self.field != b"*":
            return name == self.field
        return carries(name) or name in self.further

    def goes_to(self, bound: Bound) -> bool:
        """May it go to this server, whatever the path?"""
        return any(each.is_at(bound.scheme, bound.host, bound.port) for each in self.destinations)

    def admits(self, readings: Sequence[HttpRequest]) -> bool:
        """May it go into a request that a server may read in each of these ways?"""
        return bool(readings) and all(
            any(each.is_at(read.scheme, read.host, read.port) and each.path(read.path) for each in self.destinations)
            for read in readings
        )

    def refusal(self, names: Sequence[bytes], values: Sequence[bytes]) -> Deny:
        """Why it is not put into a request that goes to a destination of it."""
        if self.parameter:
            place = f"the query parameter {self.parameter.decode()}"
        elif self.field != b"*":
            place = f"the header field {self.field.decode()}"
        else:
            place = "a header field that carries credentials"
            pairs = zip(names, values, strict=True)
            found = [name for name, value in pairs if self.placeholder in value and not self.belongs_in(name)]
            if found:
                shown = found[0].decode("latin-1")[:64]
                line = " ".join(["*", *sorted(each.decode("ascii") for each in self.further), shown])
                place += f', which {shown} is not known as; header: "{line}" in its rule allows it there'
        return Deny(None, reasons.MISPLACED_SECRET, f"the secret {self.name} may only be in {place}")


class Vault:
    """The secrets of a session, towards one server.

    Args:
        secrets: those of the session; ``logins`` appends to them.
        bound: the server.
        signers: of the session.
        logins: the same.
    """

    def __init__(
        self, secrets: Sequence[Secret], bound: Bound, signers: Signers | None = None, logins: Renewals | None = None
    ) -> None:
        self.signers, self.logins = signers, logins
        self._all, self._bound = secrets, bound
        self._look()

    def _look(self) -> None:
        self._seen = len(self._all)
        self._secrets = sorted(self._all, key=lambda secret: len(secret.placeholder), reverse=True)
        self._here = [secret for secret in self._all if secret.goes_to(self._bound)]
        self._spellings = Spellings([(each.value, each.placeholder) for each in self._here]) if self._here else None
        self.scrubs = bool(self._here)

    def scrubber(self) -> Scrubber | None:
        """A new scrubber for one answer; ``None`` when no secret can be in it."""
        if len(self._all) != self._seen:
            self._look()
        return Scrubber(self._spellings) if self._spellings is not None else None

    def apply(
        self, readings: Sequence[HttpRequest], target: bytes, names: Sequence[bytes], values: list[bytes]
    ) -> tuple[bytes, list[bytes]] | Deny:
        """Put the values in for the placeholders.

        Args:
            readings: the request and what else a server may take it for, each allowed by the policy.
            target: canonical path and query, as they will be sent.
            names: of the fields, in lower case; ``values`` in the same order.

        Returns:
            target and values to send, or a refusal when a placeholder is where it does not belong.
        """
        if len(self._all) != self._seen:
            self._look()
        every = b"\n".join(values)
        basic = b"basic " in every.lower()
        for secret in self._secrets:
            if not (
                secret.placeholder in every
                or secret.placeholder in target
                or (b"%" in target and _unescaped(target, secret.placeholder))
                or (basic and any(_in_basic(value, secret.placeholder) for value in values))
            ):
                continue
            if not secret.admits(readings):
                hint = f"the secret {secret.name} may not go to this destination"
                if secret.admits(readings[:1]):
                    other = next(each for each in readings if not secret.admits([each]))
                    hint += f": the request may be read as {other.method} {other.path}"
                return Deny(None, reasons.MISPLACED_SECRET, hint)
            applied = self._put(secret, target, names, values)
            if applied is None:
                return secret.refusal(names, values)
            target, values = applied
            every = b"\n".join(values)
        return target, values

    @staticmethod
    def _put(
        secret: Secret, target: bytes, names: Sequence[bytes], values: list[bytes]
    ) -> tuple[bytes, list[bytes]] | None:
        """Put one secret in; ``None`` when its placeholder is left anywhere after that."""
        placeholder = secret.placeholder
        if secret.parameter:
            from urllib.parse import quote_from_bytes, unquote_to_bytes

            path, mark, query = target.partition(b"?")
            parts = query.split(b"&")
            for index, part in enumerate(parts):
                key, _, value = part.partition(b"=")
                if key == secret.parameter and unquote_to_bytes(value) == placeholder:
                    parts[index] = key + b"=" + quote_from_bytes(secret.value, safe="").encode()
            target = path + mark + b"&".join(parts)
        else:
            values = [
                _put_in_field(name, value, secret) if secret.belongs_in(name) else value
                for name, value in zip(names, values, strict=True)
            ]
        left = placeholder in target or placeholder in b"\n".join(values) or _unescaped(target, placeholder)
        if left or any(_in_basic(value, placeholder) for value in values):
            return None
        return target, values


def _put_in_field(name: bytes, value: bytes, secret: Secret) -> bytes:
    if name in (b"authorization", b"proxy-authorization") and value[:6].lower() == b"basic ":
        inner = _basic(value)
        if secret.placeholder in inner:
            import base64

            return value[:6] + base64.b64encode(inner.replace(secret.placeholder, secret.value))
    return value.replace(secret.placeholder, secret.value)


def _basic(value: bytes) -> bytes:
    """The credentials of a Basic authorization (RFC 7617), empty when there are none."""
    import base64
    import binascii

    if value[:6].lower() != b"basic ":
        return b""
    try:
        return base64.b64decode(value[6:].strip(), validate=True)
    except binascii.Error:
        return b""


def _in_basic(value: bytes, placeholder: bytes) -> bool:
    return placeholder in _basic(value)


def _unescaped(target: bytes, placeholder: bytes) -> bool:
    from urllib.parse import unquote_to_bytes

    return placeholder in unquote_to_bytes(target)


def _url(text: bytes) -> bytes:
    from urllib.parse import quote_from_bytes

    return quote_from_bytes(text, safe="").encode()


def _json(text: bytes) -> bytes:
    return text.replace(b"\\", b"\\\\").replace(b'"', b'\\"')


def _json_with_slashes(text: bytes) -> bytes:
    return _json(text).replace(b"/", b"\\/")


def echoes(value: bytes, placeholder: bytes) -> list[tuple[bytes, bytes]]:
    """The usual forms of ``value`` and the same ones of its placeholder, for events (``redact``)."""
    import base64

    pairs = {value: placeholder}
    for escape in (_url, _json, _json_with_slashes):
        pairs.setdefault(escape(value), escape(placeholder))
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for before in range(3):
            # The sextets that depend on the value alone, when ``before`` bytes of a triple come first.
            first = (before * 8 + 5) // 6
            last = (before + len(value)) * 8 // 6
            pairs.setdefault(encode(bytes(before) + value)[first:last], encode(bytes(before) + placeholder)[first:last])
    return [(shown, real) for shown, real in pairs.items() if len(shown) == len(real) and shown != real]
