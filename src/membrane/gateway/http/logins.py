"""Log-ins that are renewed through the gateway: new tokens without the command seeing one (RFC 6749 section 6).

Theory of operation
-------------------
A log-in file is shown with placeholders (``run.masks``).  When its access token ends, the program inside asks the token
endpoint of its rule for a new one, with the placeholder of the refresh token in the content.  ``Trade`` is that one
exchange: the content is held, and where it is what is listed here, the real token is put in; the answer is held, each
new token in it becomes a new placeholder of the same length, and the values stay here and with the supervisor, which
writes them to the file outside (refresh tokens are often good for one use).

Rules
-----
1. A real token is put into a request for new tokens only: POST to exactly that URL without a query, one content type,
   the members of ``_MEMBERS`` and no other, none twice, ``grant_type`` is ``refresh_token``, and the placeholder
   stands in ``refresh_token`` and nowhere else.  So what is renewed is the person's log-in and no other: an answer to
   another person's token would be written to the person's file.  What is not of this form goes up unchanged.
2. An answer to such a request is passed on when each of its tokens was found and replaced.  Else its letters and digits
   are overwritten.
3. Placeholders that were given out stay good for what they stood for.

Bounds: ``MOST`` bytes of a request and of an answer, ``MOST_TRADES`` in a session.
"""

from __future__ import annotations

from ...policy import masking
from .credentials import Secret, placeholder_for
from .spellings import Scrubber, Spellings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from ...policy.model import HttpRequest
    from .credentials import Destination

MOST = 65_536
MOST_TRADES = 256
TOKENS = ("access_token", "refresh_token", "id_token")  # RFC 6749 section 5.1, OpenID Connect Core section 3.1.3.3
# RFC 6749 section 6, and what Claude Code and Codex say besides.
_MEMBERS = frozenset({"grant_type", "refresh_token", "client_id", "scope", "expires_in", "refresh_reason"})
_KINDS = {b"application/json": "json", b"application/x-www-form-urlencoded": "form"}
_HIDDEN = bytes.maketrans(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", b"X" * 26 + b"x" * 26 + b"0" * 10
)


class Login:
    """The tokens of one file.

    Args:
        secrets: what its placeholders stand for.
        endpoints: where it is renewed.
        destinations: where its tokens go.
        place: as of ``Secret``.
    """

    def __init__(
        self,
        secrets: Iterable[Secret],
        endpoints: Iterable[Destination],
        destinations: Sequence[Destination],
        place: str,
    ) -> None:
        self.secrets = list(secrets)
        self.endpoints = tuple(endpoints)
        self.destinations = destinations
        self.place = place


class Logins:
    """Those of a session.

    Args:
        secrets: all that the session holds; new ones are appended.
        logins: as they are at the start.
        random: gives that many random bytes.
        renewed: is called with the name of the secret that the refresh token was, for each member of the answer its new
            secret, and the seconds that it lasts (0: unknown), before those are in ``secrets``.
        changed: is called when they are.
    """

    def __init__(
        self,
        secrets: list[Secret],
        logins: Sequence[Login],
        *,
        random: Callable[[int], bytes],
        renewed: Callable[[str, dict[str, Secret], int], None],
        changed: Callable[[], None],
    ) -> None:
        self._secrets, self._logins = secrets, logins
        self._random, self._report, self._changed = random, renewed, changed
        self._trades = 0

    def is_renewed_at(self, host: str) -> bool:
        """Has a log-in its token endpoint there?"""
        return any(place.host == host for login in self._logins for place in login.endpoints)

    def trade(self, readings: Sequence[HttpRequest], target: bytes, kinds: Sequence[bytes]) -> Trade | None:
        """The exchange that a request to a token endpoint begins; None: it is another request.

        Args:
            readings: the request, and what else a server may take it for.
            target: path and query as they are sent.
            kinds: each content type that it names.
        """
        kind = _KINDS.get(kinds[0].partition(b";")[0].strip().lower()) if len(kinds) == 1 else None
        if kind is None or b"?" in target or self._trades >= MOST_TRADES:
            return None
        for login in self._logins:
            if all(
                read.method == "POST"
                and any(
                    each.is_at(read.scheme, read.host, read.port) and each.path(read.path) for each in login.endpoints
                )
                for read in readings
            ):
                return Trade(self, login, kind)
        return None

    def renewed(self, login: Login, old: Secret, answer: dict[str, Any]) -> list[Secret] | None:
        """Keep the tokens of an answer; None: one of them cannot be replaced."""
        self._trades += 1
        known = {secret.value: secret for secret in login.secrets}
        found: dict[str, Secret] = {}
        for member in TOKENS:
            value = answer.get(member)
            if value is None:
                continue
            if not isinstance(value, str):
                return None
            token = value.encode("utf-8", "replace")
            secret = known.get(token)
            if secret is None:
                try:
                    placeholder = self._placeholder(value)
                except ValueError:
                    return None
                name = f"{old.name.partition(' ')[0]} {member} {self._trades}"
                secret = Secret(name, token, placeholder, login.place, login.destinations)
            found[member] = secret
        if "access_token" not in found:
            return None
        lasts = answer.get("expires_in")
        self._report(old.name, found, lasts if isinstance(lasts, int) and not isinstance(lasts, bool) else 0)
        new = [secret for secret in found.values() if secret.value not in known]
        login.secrets += new
        self._secrets += new
        self._changed()
        return list(found.values())

    def _placeholder(self, value: str) -> bytes:
        def noise(text: str) -> str:
            return placeholder_for(text.encode("utf-8", "replace"), self._random).decode("ascii")

        if masking.payload_of(value) is None:
            return noise(value).encode()
        rest, _, signature = value.rpartition(".")  # clients read its claims
        return f"{rest}.{noise(signature)}".encode()


class Trade:
    """One exchange with a token endpoint; as a scrubber of the request's content it has ``feed`` and ``flush``."""

    def __init__(self, logins: Logins, login: Login, kind: str) -> None:
        self.logins, self.login = logins, login
        self._kind = kind
        self._held: list[bytes] | None = []  # None: it is no request for tokens
        self._size = 0
        self.taken: Secret | None = None  # the refresh token that was put in

    def feed(self, data: bytes) -> bytes:
        """Take content of the request; give what can go up."""
        if self._held is None:
            return data
        self._held.append(data)
        self._size += len(data)
        if self._size <= MOST:
            return b""
        data, self._held = b"".join(self._held), None
        return data

    def flush(self) -> bytes:
        """The content has ended: all of it, with the token where that belongs."""
        data, self._held = b"".join(self._held or ()), None
        secret = self._asked_with(data)
        if secret is None:
            return data
        self.taken = secret
        return data.replace(secret.placeholder, secret.value)

    def whole(self, data: bytes) -> bytes:
        """Trailers are not changed."""
        return data

    def _asked_with(self, data: bytes) -> Secret | None:
        members = _members(data, self._kind)
        if members is None or not members.keys() <= _MEMBERS or members.get("grant_type") != "refresh_token":
            return None
        token = members.get("refresh_token")
        if not isinstance(token, str):
            return None
        for secret in self.login.secrets:
            if secret.placeholder.decode("ascii") == token and data.count(secret.placeholder) == 1:
                return secret
        return None

    def down(self, status: int, scrubber: Scrubber | None) -> Scrubber | Renewal | None:
        """What goes over the content of the answer."""
        return scrubber if self.taken is None or status != 200 else Renewal(self, self.taken)


class Renewal:
    """The content of an answer with new tokens; a scrubber that gives nothing before ``flush``."""

    def __init__(self, trade: Trade, old: Secret) -> None:
        self._trade, self._old = trade, old
        self._held: list[bytes] = []
        self._size = 0
        self._over = False

    def feed(self, data: bytes) -> bytes:
        """Take content; nothing is passed on before all of it is there."""
        if self._over:
            return data.translate(_HIDDEN)
        self._held.append(data)
        self._size += len(data)
        if self._size <= MOST:
            return b""
        self._over = True
        return b"".join(self._held).translate(_HIDDEN)

    def flush(self) -> bytes:
        """All of it, with placeholders."""
        if self._over:
            return b""
        data = b"".join(self._held)
        answer = _members(data, "json")
        found = self._trade.logins.renewed(self._trade.login, self._old, answer) if answer is not None else None
        if found is None:
            return data.translate(_HIDDEN)
        shown = data
        for secret in sorted(found, key=lambda secret: len(secret.value), reverse=True):
            if secret.value not in shown:
                return data.translate(_HIDDEN)  # with escapes
            shown = shown.replace(secret.value, secret.placeholder)
        pairs = [(secret.value, secret.placeholder) for secret in self._trade.login.secrets]
        return Scrubber(Spellings(pairs)).whole(shown)

    def whole(self, data: bytes) -> bytes:
        """Trailers: no client needs them."""
        return data.translate(_HIDDEN)


def _members(data: bytes, kind: str) -> dict[str, Any] | None:
    """The members of an object in JSON or of a form; None: it is none, or has one twice."""
    try:
        if kind == "json":
            import json

            found = json.loads(data, object_pairs_hook=_each_once)
            return found if isinstance(found, dict) else None
        from urllib.parse import parse_qsl

        return _each_once(
            parse_qsl(data.decode("ascii"), keep_blank_values=True, strict_parsing=True, max_num_fields=16)
        )
    except (ValueError, RecursionError):
        return None


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raises ValueError: a name is there twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a member is there twice")
    return found
