"""Which request this is, whether it may go on, and what is said when it may not; the same for HTTP/1.1 and HTTP/2.

Theory of operation
-------------------
A connection is *bound* to one name (or literal address), port and scheme before its first request is read.  ``Gate``
turns method, target, authority and fields into one canonical ``HttpRequest``, asks the policy, and returns either
``Admitted``, which holds the only form that may be forwarded, or ``Refused``, which holds the answer.

Rules
-----
1. What is decided is what is forwarded: canonical path, untouched query, canonical authority.
2. What two readers may read in two ways is malformed (400) and is never repaired.  ``FLAWS`` is the closed list.
3. A request that asks the server to read it as another one (``overrides``, a body under GET), or that only prepares it
   (a push of git), must be allowed as that one too.
4. Only ``Allow`` is a yes.

The protocol cores (``exchange``, ``http1``, ``http2``) read requests, ask the gate, and write what it admitted.

References: RFC 9110 (semantics), RFC 9112 sections 3.2, 6 (targets, framing), RFC 3986, gRPC over HTTP/2
(``grpc-status``, percent-encoded ``grpc-message``).
"""

from __future__ import annotations

from ...policy import reasons
from ...policy.hosts import canonical_host, format_address, parse_address
from ...policy.model import Allow, Ask, Deny, HttpRequest, Malformed
from ...policy.url_paths import canonical_path
from ...value import Value
from .overrides import LONGEST_METHOD, BadOverride, as_variable, kind_of, readings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Literal, TypeAlias

    from ...policy.model import HostRule, Verdict
    from ...policy.reasons import Reason

    Scheme: TypeAlias = Literal["http", "https"]
    Fields: TypeAlias = list[tuple[bytes, bytes]]
    Answers: TypeAlias = dict[HttpRequest, Callable[[HttpRequest], Verdict]]

LONGEST_HEAD = 65536  # bytes of a request head, or of an HTTP/2 field section
LONGEST_QUERY = 49152
MOST_FIELDS = 256
# Bytes of a refused request's content that are read and dropped.  Many clients look for an answer only when they
# have sent everything, and take a reset before that for a fault of the network.
DRAINED = 1 << 26
LONGEST_SHOWN = 1024  # characters of a method, path or hint in an answer
MOST_QUESTIONS = 4  # about one request and what it may be read as

# ---------------------------------------------------------------- flaws

BAD_AUTHORITY = "the authority is not a host name or address with an optional port"
BAD_BODY_LENGTH = "the body is not as long as Content-Length says"
BAD_CHUNK = "the chunked body is malformed"
BAD_CONNECTION = "Connection names a field that is not hop-by-hop"
BAD_CONTENT_LENGTH = "Content-Length is malformed or given more than once"
BAD_CONTENT = "the content begins like a request: a server that does not read it takes it for one"
BAD_EXPECTATION = "Expect asks for something unknown"
BAD_FIELD = "a header field is malformed"
BAD_FRAGMENT = "the target has a fragment"
BAD_LINE = "the request line is malformed"
BAD_METHOD = "the method is not an upper-case token"
BAD_OVERRIDE = "a method or path override is malformed"
BAD_PATH = "path: "  # followed by the cause that ``url_paths.canonical_path`` gives
BAD_PSEUDO = "pseudo-header fields are missing, repeated, unknown or after a regular field"
BAD_QUERY = "the query has a byte that must be escaped, or is too long"
BAD_SCHEME = "the scheme is not the one of this connection"
BAD_TARGET = "the target is neither a path nor an absolute URL"
BAD_TRAILER = "a trailer field is malformed or not allowed in a trailer"
BAD_TRANSFER_CODING = "Transfer-Encoding is not exactly one chunked"
BAD_VERSION = "the version is not HTTP/1.1 or HTTP/1.0"
BOTH_LENGTHS = "Content-Length and Transfer-Encoding together"
CONNECTION_FIELD = "a connection-specific field in HTTP/2"
HEAD_TOO_LONG = "the request head is too long"
NO_AUTHORITY = "the authority is missing or given more than once"
OTHER_AUTHORITY = "the target and Host name different authorities"
RAW_LINE_END = "a line does not end in CRLF, or holds a control character"
TOO_MANY_FIELDS = "the request has too many header fields"
FLAWS = (
    BAD_AUTHORITY, BAD_BODY_LENGTH, BAD_CHUNK, BAD_CONNECTION, BAD_CONTENT, BAD_CONTENT_LENGTH, BAD_EXPECTATION,
    BAD_FIELD, BAD_FRAGMENT, BAD_LINE, BAD_METHOD, BAD_OVERRIDE, BAD_PATH, BAD_PSEUDO, BAD_QUERY, BAD_SCHEME,
    BAD_TARGET, BAD_TRAILER, BAD_TRANSFER_CODING, BAD_VERSION, BOTH_LENGTHS, CONNECTION_FIELD, HEAD_TOO_LONG,
    NO_AUTHORITY, OTHER_AUTHORITY, RAW_LINE_END, TOO_MANY_FIELDS,
)  # fmt: skip


class Flaw(Exception):
    """The request is malformed; ``args[0]`` is one of ``FLAWS``, or ``BAD_PATH`` and a cause."""

    def __str__(self) -> str:
        return str(self.args[0])


# ---------------------------------------------------------------- grammar

TOKEN = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  # RFC 9110 5.6.2
VALUE = b"\t" + bytes(range(0x20, 0x7F)) + bytes(range(0x80, 0x100))  # field-value and obs-text
_METHOD = bytes(byte for byte in TOKEN if not 0x61 <= byte <= 0x7A)
_QUERY = bytes(byte for byte in range(0x21, 0x7F) if byte != 0x23)
_NEVER = frozenset(["CONNECT", "TRACE", "TRACK"])  # they tunnel, or echo the credentials that were put in
_BODILESS = frozenset(["GET", "HEAD", "OPTIONS"])
FRAMING = frozenset([b"content-length", b"transfer-encoding", b"host"])  # what says where a request ends, and whose
_GIT_DISCOVERY = "/info/refs"
# A trailer is merged into the header by some servers (RFC 9110 section 6.5.1): nothing that frames, routes,
# authenticates or changes how the request is read may come there (``no_trailer``).
NO_TRAILERS = frozenset(
    [
        b"authorization", b"connection", b"content-encoding", b"content-length", b"content-range", b"content-type",
        b"cookie", b"expect", b"forwarded", b"host", b"keep-alive", b"max-forwards", b"proxy-authorization",
        b"proxy-connection", b"range", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"x-forwarded-host",
    ]
)  # fmt: skip
# For the hop between the client and us; the last one would be read by a proxy that the operator has chained.
HOP_BY_HOP = frozenset([b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"http2-settings"])
_DIGITS = b"0123456789"


def no_trailer(name: bytes) -> bool:
    """May a field of this name (in lower case) not stand in a trailer, in whatever spelling?"""
    return as_variable(name) in NO_TRAILERS or kind_of(name) != ""


def content_length(values: Sequence[bytes]) -> int:
    """The length that a request announces, -1 without one.

    Raises:
        Flaw: more than one value, a list, a sign, leading zeros or an absurd number.
    """
    if not values:
        return -1
    text = values[0]
    if len(values) > 1 or not text or text.translate(None, _DIGITS) or len(text) > 18:
        raise Flaw(BAD_CONTENT_LENGTH)
    if text[0] == 0x30 and len(text) > 1:
        raise Flaw(BAD_CONTENT_LENGTH)
    return int(text)


# ---------------------------------------------------------------- the gate


class Bound(Value):
    """What a connection is bound to.

    ``authority`` is a further name that requests may carry: the SNI on a connection to a literal address.
    ``any_authority``: they may carry any name, on a connection to a literal address without SNI.  The policy is
    asked about ``host`` all the same.
    """

    host: str  # canonical name, or the canonical text of an address
    port: int
    scheme: Scheme
    authority: str = ""
    any_authority: bool = False


class Admitted(Value):
    """The request may go on, in this form."""

    request: HttpRequest
    verdict: Allow
    target: bytes  # canonical path and query
    authority: bytes
    readings: tuple[HttpRequest, ...]  # the request, and each other one that a server may take it for; all are allowed


class Refused(Value):
    """The request may not go on.  ``request`` is what could be read of it, for the event and the answer."""

    status: int
    verdict: Deny
    request: HttpRequest
    retry_after: float = 0.0  # seconds after which it may be tried again; 0: not known, or never


class Undecided(Value):
    """No rule decides; the request may go on when a person allows it (``exchange.Core.answered``)."""

    request: HttpRequest
    verdict: Ask

    @property
    def refusal(self) -> Deny:
        return Deny(None, self.verdict.reason, self.verdict.hint)


class Gate:
    """Judges the requests of one connection.

    Args:
        bound: what the connection is bound to.
        decide: the policy.  An exception from it ends the connection; nothing was sent by then.
        admit: counts a request against the budgets of rules (``budgets.Ledger.admit``).
        asks: the driver can ask; else what ``decide`` wants to be asked about is refused.
    """

    def __init__(
        self,
        bound: Bound,
        decide: Callable[[HttpRequest], Verdict],
        admit: Callable[[tuple[HostRule, ...], int], tuple[Deny, float] | None] | None = None,
        *,
        asks: bool = False,
    ) -> None:
        self.bound = bound
        self._decide = decide
        self._asks = asks
        self._admit = admit
        self._authorities: dict[bytes, bytes] = {}

    def judge(
        self,
        method: bytes,
        target: bytes,
        authority: bytes,
        names: Sequence[bytes],
        values: Sequence[bytes],
        *,
        body: bool,
        absolute: bool = False,
        answers: Answers | None = None,
    ) -> Admitted | Refused | Undecided:
        """May this request go on?

        Args:
            authority: the value of Host or ``:authority``.
            names: of the fields, in lower case; ``values`` in the same order.
            body: content follows.
            absolute: the target may be an absolute URL (RFC 9112 section 3.2.2).
            answers: what was said to questions about this very request, also about what it may be read as.
        """
        try:
            return self._judge(method, target, authority, names, values, body, absolute, answers or {})
        except Flaw as flaw:
            return self.malformed(str(flaw), method, target)

    def malformed(self, flaw: str, method: bytes = b"", target: bytes = b"", reason: Reason | None = None) -> Refused:
        """The refusal of a request that has no single meaning."""
        return Refused(400, Deny(None, reason or reasons.REQUEST_MALFORMED, flaw), self._shown(method, target))

    def refused(self, request: HttpRequest, verdict: Deny | Ask) -> Refused:
        """The refusal of a request that was understood."""
        if isinstance(verdict, Ask):  # there is no one to ask here
            verdict = Deny(None, verdict.reason, verdict.hint)
        return Refused(verdict.reason.status, verdict, request)

    def unreachable(self, request: HttpRequest, cause: str, *, late: bool = False) -> Refused:
        """The answer when the server cannot be asked, or (``late``) has not answered in time."""
        return Refused(504 if late else 502, Deny(None, reasons.Reason(cause)), request)

    def _shown(self, method: bytes, target: bytes) -> HttpRequest:
        path = target.partition(b"?")[0].partition(b"#")[0].decode("latin-1")
        if "://" in path[:8]:
            path = "/" + path.partition("://")[2].partition("/")[2]
        bound = self.bound
        shown = method[:LONGEST_METHOD].decode("latin-1")
        return HttpRequest(bound.host, bound.port, bound.scheme, shown, path[:LONGEST_SHOWN])

    def _judge(
        self,
        method: bytes,
        target: bytes,
        authority: bytes,
        names: Sequence[bytes],
        values: Sequence[bytes],
        body: bool,
        absolute: bool,
        answers: Answers,
    ) -> Admitted | Refused | Undecided:
        if not 0 < len(method) <= LONGEST_METHOD or method.translate(None, _METHOD):
            raise Flaw(BAD_METHOD)
        verb = method.decode("ascii")
        if verb in _NEVER:
            return self.refused(self._shown(method, target), Deny(None, reasons.METHOD_NOT_ALLOWED))
        canonical = self._authorities.get(authority) or self._authority(authority)
        if canonical is None:
            hint = f"the request names {authority.decode('latin-1')[:253]} on a connection to {self.bound.host}"
            return self.refused(self._shown(method, target), Deny(None, reasons.NAME_NOT_ALLOWED, hint))
        if target[:1] != b"/":
            if not absolute:
                raise Flaw(BAD_TARGET)
            target = self._origin_form(target, canonical)
        path, query = self._target(target)
        bound = self.bound
        request = HttpRequest(bound.host, bound.port, bound.scheme, verb, path)
        verdict = answers[request](request) if request in answers else self._decide(request)
        if not isinstance(verdict, Allow):
            if isinstance(verdict, Ask) and self._asks:
                return Undecided(request, verdict)
            return self.refused(request, verdict)
        try:
            others = list(readings(request, names, values, query))
        except BadOverride:
            raise Flaw(BAD_OVERRIDE) from None
        if body:
            others += [each.replace(method="POST") for each in (request, *others) if each.method in _BODILESS]
        if path.endswith(_GIT_DISCOVERY) and b"service=git-receive-pack" in query:
            # A push begins with this question (gitprotocol-http(5)).  Git shows the answer to it, and not the one to
            # the request that the push itself is.
            others.append(request.replace(method="POST", path=f"{path[: -len(_GIT_DISCOVERY)]}/git-receive-pack"))
        for other in others:
            answer = answers[other](other) if other in answers else self._decide(other)
            if isinstance(answer, Ask) and self._asks and len(answers) < MOST_QUESTIONS:
                return Undecided(other, answer)
            if not isinstance(answer, Allow):
                hint = answer.hint or f"the request may be read as {other.method} {other.path}"
                if other.host != request.host:  # no line for that host makes this request a harmless one
                    hint = f"a field of the request names the host {other.host}: leave it out, or allow that host, too"
                rule = answer.rule if isinstance(answer, Deny) else None
                return self.refused(request, Deny(rule, answer.reason, hint))
            verdict = verdict.replace(budgets=tuple(dict.fromkeys((*verdict.budgets, *answer.budgets))))
        if verdict.budgets:
            assert self._admit is not None
            length = next((value for name, value in zip(names, values, strict=True) if name == b"content-length"), b"")
            # Of the content as much as is announced; the framing is judged where the connection is read.
            size = int(length) if 0 < len(length) <= 18 and not length.translate(None, _DIGITS) else 0
            size += len(method) + len(target) + len(canonical) + sum(map(len, names)) + sum(map(len, values))
            refusal = self._admit(verdict.budgets, size)
            if refusal is not None:
                return self.refused(request, refusal[0]).replace(retry_after=refusal[1])
        return Admitted(request, verdict, path.encode("ascii") + query, canonical, (request, *others))

    @staticmethod
    def _target(target: bytes) -> tuple[str, bytes]:
        raw, mark, query = target.partition(b"?")
        if b"#" in target:
            raise Flaw(BAD_FRAGMENT)
        if len(query) > LONGEST_QUERY or query.translate(None, _QUERY):
            raise Flaw(BAD_QUERY)
        try:
            return canonical_path(raw.decode("latin-1"), slashes=True), mark + query
        except Malformed as cause:
            raise Flaw(f"{BAD_PATH}{cause}") from None

    def _origin_form(self, target: bytes, authority: bytes) -> bytes:
        """An absolute URL as a path; its authority must be the one of Host (attacks N30)."""
        scheme, mark, rest = target.partition(b"://")
        if not mark:
            raise Flaw(BAD_TARGET)
        if scheme.lower() != self.bound.scheme.encode():
            raise Flaw(BAD_SCHEME)
        ends = [at for at in (rest.find(b"/"), rest.find(b"?"), rest.find(b"#")) if at >= 0]
        end = min(ends, default=len(rest))
        port = b":%d" % self.bound.port  # the one that there is, whether written or not
        named = self._authority(rest[:end])
        if named is None or named.removesuffix(port) != authority.removesuffix(port):
            raise Flaw(OTHER_AUTHORITY)
        path = rest[end:]
        return path if path[:1] == b"/" else b"/" + path

    def _authority(self, raw: bytes) -> bytes | None:
        """The canonical authority; ``None`` when it is not the one of this connection."""
        bound = self.bound
        host, colon, port = raw.rpartition(b":")
        if not colon or raw[-1:] == b"]":
            host, port = raw, b""
        elif not port or port.translate(None, _DIGITS) or len(port) > 5:
            raise Flaw(BAD_AUTHORITY)
        try:
            text = host.decode("ascii")
            if text[:1] == "[" and text[-1:] == "]" and ":" in text:
                name = format_address(*parse_address(text[1:-1]))
            elif text.rpartition(".")[2].isdigit():
                name = format_address(*parse_address(text))
            else:
                name = canonical_host(text)
        except (Malformed, UnicodeDecodeError):
            raise Flaw(BAD_AUTHORITY) from None
        if port and int(port) != bound.port:
            return None
        if name not in (bound.host, bound.authority) and not bound.any_authority:
            return None
        canonical = f"[{name}]" if ":" in name else name
        if port:
            canonical = f"{canonical}:{bound.port}"
        if len(self._authorities) < 16:
            self._authorities[raw] = canonical.encode("ascii")
        return canonical.encode("ascii")


# ---------------------------------------------------------------- answers

PHRASES = {
    400: b"Bad Request", 403: b"Forbidden", 429: b"Too Many Requests", 502: b"Bad Gateway", 504: b"Gateway Timeout",
}  # fmt: skip
UNANSWERED = (502, 504)  # our answers to requests that were allowed
# INTERNAL, PERMISSION_DENIED, RESOURCE_EXHAUSTED, UNAVAILABLE, DEADLINE_EXCEEDED
_GRPC_STATUS = {400: b"13", 403: b"7", 429: b"8", 502: b"14", 504: b"4"}
_UNANSWERED_BY = {502: "membrane could not connect", 504: "the server did not answer membrane"}


def answer(refused: Refused) -> tuple[Fields, bytes]:
    """Fields and body of the answer to a request that does not go on: JSON, and lines of text for git, which shows
    only those."""
    import json

    request, verdict = refused.request, refused.verdict
    answer = {
        "error": _UNANSWERED_BY.get(refused.status, "blocked by membrane"),
        "host": request.host,
        "method": request.method,
        "path": request.path[:LONGEST_SHOWN],
        "reason": verdict.reason[:LONGEST_SHOWN],
        "hint": verdict.hint[:LONGEST_SHOWN],
    }
    if refused.status == 429 and verdict.rule is not None:
        answer["rule"] = verdict.rule.text[:LONGEST_SHOWN]
    body, kind = json.dumps(answer).encode() + b"\n", b"application/json"
    if request.path.endswith(_GIT_DISCOVERY):
        text = f"{answer['error']}: {answer['reason']}\n{answer['hint']}\n"
        body, kind = text.encode("ascii", "backslashreplace"), b"text/plain"
    fields = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
    if refused.retry_after:
        fields.append((b"retry-after", b"%d" % (refused.retry_after + 1)))  # RFC 9110 section 10.2.3: whole seconds
    if refused.status not in UNANSWERED:
        fields.append((b"x-membrane-verdict", b"deny"))
    return fields, body


def grpc_answer(refused: Refused) -> Fields:
    """The fields of a gRPC "trailers-only" answer: the call fails with a status and the reason."""
    from urllib.parse import quote

    verdict = refused.verdict
    what = _UNANSWERED_BY.get(refused.status, "blocked by membrane")
    message = f"{what}: {verdict.reason}" + (f" ({verdict.hint})" if verdict.hint else "")
    return [
        (b"content-type", b"application/grpc"),
        (b"grpc-status", _GRPC_STATUS[refused.status]),
        (b"grpc-message", quote(message[:LONGEST_SHOWN], safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~").encode("ascii")),
        *([(b"x-membrane-verdict", b"deny")] if refused.status not in UNANSWERED else []),
    ]
