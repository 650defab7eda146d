"""AWS Signature Version 4: requests that were signed with a placeholder are signed again with the secret.

Theory of operation
-------------------
A signature is a keyed digest, so a secret that is only put in for its placeholder would leave a wrong one.  ``Signers``
recognises the key by the placeholder of its id in ``Authorization`` and, after the policy has allowed the request and
``credentials.Vault`` has put the values in, computes the signature over what really goes up.  Scope, date and the
names of the signed fields stay the client's; a field that does not go up is signed no more.

The digest of the content is the client's own where ``X-Amz-Content-Sha256`` names it, or says that it is unsigned,
whole or in chunks with a checksum behind them (as the SDKs and the CLI of AWS upload to S3 since 2025): the content
is passed on as it is, so a wrong digest is the server's to refuse.  Without that field (every service but S3)
the content is held until its digest is known: at most ``LARGEST_HELD`` bytes, of all requests together ``MOST_HELD``.

What cannot be signed again is refused: content that is signed chunk by chunk (``STREAMING-AWS4-*``), Signature
Version 4A, a part of an answer (``Range``), and, by ``Vault``, signatures in the query (presigned URLs).

References: AWS General Reference, "Create a signed AWS API request"; Amazon S3 API Reference, "Signature calculations:
including trailing headers"; the vectors of botocore's aws4 test suite.
"""

from __future__ import annotations

import hashlib
import hmac

from ...policy import reasons
from ...policy.model import Deny

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .requests import Fields

LARGEST_HELD = 16 << 20  # bytes of one request's content
MOST_HELD = 64 << 20
_ALGORITHM = b"AWS4-HMAC-SHA256"
_ASYMMETRIC = b"AWS4-ECDSA-P256-SHA256"
_EMPTY = hashlib.sha256(b"").hexdigest().encode()
_HEX = frozenset(b"0123456789abcdef")
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~")
_TERMINATOR = b"aws4_request"
_DIGEST = b"x-amz-content-sha256"
_WHOLE = (
    "where a secret goes answers are asked for whole, and it asks for a Range: "
    "aws configure set default.s3.multipart_threshold 5TB"
)
_UNSIGNED = (b"UNSIGNED-PAYLOAD", b"STREAMING-UNSIGNED-PAYLOAD-TRAILER")  # what is signed in place of a digest


class KeyPair:
    """An access key: its id, the placeholder of it, and the secret."""

    __slots__ = ("_secret", "key_id", "placeholder")

    def __init__(self, placeholder: bytes, key_id: bytes, secret: bytes) -> None:
        self.placeholder, self.key_id, self._secret = placeholder, key_id, secret

    def __repr__(self) -> str:
        return "KeyPair()"

    def signature(self, scope: Sequence[bytes], text: bytes) -> bytes:
        """The signature of a string to sign; ``scope`` is date, region, service and ``aws4_request``."""
        key = b"AWS4" + self._secret
        for part in scope:
            key = hmac.digest(key, part, "sha256")
        return hmac.digest(key, text, "sha256").hex().encode()


class Signers:
    """The access keys of a session."""

    def __init__(self, pairs: Iterable[KeyPair]) -> None:
        self._pairs = {pair.placeholder: pair for pair in pairs}
        self.held = 0  # bytes of content that wait for their digest

    def recognise(self, names: Sequence[bytes], values: Sequence[bytes]) -> Signing | Deny | None:
        """What a request is signed with, as the client wrote its fields; None: nothing of ours."""
        at = next((index for index, name in enumerate(names) if name == b"authorization"), -1)
        if at < 0 or names.count(b"authorization") > 1:
            return None
        kind, _, rest = values[at].strip().partition(b" ")
        if kind not in (_ALGORITHM, _ASYMMETRIC):
            return None
        parts = dict(_pairs_of(rest))
        scope = parts.get(b"Credential", b"").split(b"/")
        pair = self._pairs.get(scope[0])
        if pair is None:
            return None
        if kind == _ASYMMETRIC:
            return _refusal("Signature Version 4A cannot be made with the secret alone")
        signed = parts.get(b"SignedHeaders", b"").split(b";")
        if b"range" in names:  # s3transfer writes what comes to where the range would have begun
            return _refusal(_WHOLE)
        if len(scope) != 5 or scope[4] != _TERMINATOR or b"host" not in signed:
            return _refusal("the signature has no scope of five parts, or does not cover the host")
        return Signing(self, pair, scope[1:], signed)


def _pairs_of(text: bytes) -> Iterable[tuple[bytes, bytes]]:
    for part in text.split(b","):
        name, _, value = part.strip().partition(b"=")
        yield name, value


def _refusal(cause: str) -> Deny:
    return Deny(None, reasons.MISPLACED_SECRET, f"the request cannot be signed again: {cause}")


class _Held:
    """Room for content that waits; given back when nothing waits for it any more."""

    __slots__ = ("_signers", "_size")

    def __init__(self, signers: Signers, size: int) -> None:
        self._signers, self._size = signers, size
        signers.held += size

    def __del__(self) -> None:
        self._signers.held -= self._size


class Signing:
    """One request on its way to be signed."""

    __slots__ = ("_body", "_date", "_held", "_pair", "_scope", "_signed", "_signers", "digest")

    def __init__(self, signers: Signers, pair: KeyPair, scope: Sequence[bytes], signed: Sequence[bytes]) -> None:
        self._signers, self._pair, self._scope, self._signed = signers, pair, tuple(scope), frozenset(signed)
        self.digest = b""  # of the content, as it is signed; empty: the content must be read first
        self._body = hashlib.sha256()
        self._date = b""
        self._held: _Held | None = None

    @staticmethod
    def knows(names: Sequence[bytes], body: bool) -> bool:
        """Is the digest known before the content?"""
        return not body or _DIGEST in names

    def prepare(self, fields: Fields, length: int) -> Deny | None:
        """Look at the fields that will go up.

        Args:
            length: of the content; 0: there is none, -1: not known.

        Returns:
            The refusal of a request that cannot be signed.
        """
        known = dict(fields)
        self._date = known.get(b"x-amz-date", b"")
        if len(self._date) != 16 or self._date[:8] != self._scope[0]:
            return _refusal("X-Amz-Date is missing, or is not of the day of the scope")
        digest = known.get(_DIGEST, b"")
        if digest.startswith(b"STREAMING-") and digest not in _UNSIGNED:
            return _refusal(f"{digest.decode('latin-1')[:64]} signs each chunk of the content")
        if digest in _UNSIGNED or (len(digest) == 64 and _HEX.issuperset(digest)):
            self.digest = digest
        elif digest:
            return _refusal("X-Amz-Content-Sha256 is not a digest")
        elif length == 0:
            self.digest = _EMPTY
        elif length < 0:
            return _refusal("its content has no length")
        elif length > LARGEST_HELD or self._signers.held + length > MOST_HELD:
            return _refusal(f"its content of {length} bytes is too long to be held until its digest is known")
        else:
            self._held = _Held(self._signers, length)
        return None

    def take(self, data: bytes) -> None:
        """Bytes of the content."""
        self._body.update(data)

    def authorization(self, method: bytes, target: bytes, host: bytes, fields: Fields) -> bytes:
        """The field of this name for the request as it goes up; the content has been taken where it was needed."""
        digest = self.digest or self._body.hexdigest().encode()
        text, names = canonical_request(method, target, host, fields, self._signed, self._scope[2], digest)
        scope = b"/".join(self._scope)
        to_sign = b"\n".join((_ALGORITHM, self._date, scope, hashlib.sha256(text).hexdigest().encode()))
        signature = self._pair.signature(self._scope, to_sign)
        return b"%b Credential=%b/%b, SignedHeaders=%b, Signature=%b" % (
            *(_ALGORITHM, self._pair.key_id, scope, b";".join(names), signature),
        )


def canonical_request(
    method: bytes, target: bytes, host: bytes, fields: Fields, signed: Iterable[bytes], service: bytes, digest: bytes
) -> tuple[bytes, list[bytes]]:
    """The canonical request, and the names of the signed fields that are there, sorted."""
    path, _, query = target.partition(b"?")
    found: dict[bytes, list[bytes]] = {b"host": [host]}
    for name, value in fields:
        if name in signed and name != b"host":
            found.setdefault(name, []).append(b" ".join(value.split()))
    names = sorted(found)
    lines = [b"%b:%b\n" % (name, b",".join(found[name])) for name in names]
    return b"\n".join(
        (method, canonical_path(path, service), canonical_query(query), b"".join(lines), b";".join(names), digest)
    ), names


def canonical_path(path: bytes, service: bytes) -> bytes:
    """S3 signs the path as it is; every other service without empty and dot segments, escaped once more."""
    if service in (b"s3", b"s3-object-lambda", b"s3-outposts", b"s3express"):
        return path or b"/"
    parts: list[bytes] = []
    for part in path.split(b"/"):
        if part == b"..":
            parts = parts[:-1]
        elif part not in (b"", b"."):
            parts.append(part)
    tail = b"/" if parts and path.endswith(b"/") else b""
    return b"/" + b"/".join(map(_escaped, parts)) + tail


def canonical_query(query: bytes) -> bytes:
    """Names and values decoded, escaped anew and sorted; a "+" is a plus."""
    from urllib.parse import unquote_to_bytes

    pairs = []
    for part in query.split(b"&"):
        if part:
            name, _, value = part.partition(b"=")
            pairs.append((_escaped(unquote_to_bytes(name)), _escaped(unquote_to_bytes(value))))
    return b"&".join(b"%b=%b" % pair for pair in sorted(pairs))


def _escaped(text: bytes) -> bytes:
    return b"".join(bytes((byte,)) if byte in _UNRESERVED else b"%%%02X" % byte for byte in text)
