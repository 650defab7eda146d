"""Fields and parameters by which a server takes a request for another one.

Theory of operation
-------------------
A request asks its server for a method and a path in its first line, of the host in ``Host``.  Frameworks and proxies
also look for them elsewhere: ``X-HTTP-Method-Override``, ``X-Original-URL``, ``SCRIPT_NAME``, ``X-Forwarded-Host``,
``?_method=``.  Some fields name a second place, which the server reads or removes: ``x-amz-copy-source``.  Which ones
cannot be listed, so a field is judged by what its name *looks like*, in the spelling that the most lenient family of
servers makes of it (``as_variable``); the request must then be allowed as each of the requests that it may be read as
(``readings``), and is malformed when the value is neither a method nor a path nor a host.  Names that hold such a word
and mean something else (``Access-Control-Request-Method``, ``X-Stainless-Helper-Method``) hold a further word that no
override has.

References (who reads what):

* CGI (RFC 3875 section 4.1.18), WSGI and Rack: "-" is "_"; lighttpd and Apache's mod_cgi before 2.4: every byte but
  letters and digits is.
* gunicorn ``wsgi.create``: ``SCRIPT_NAME`` is cut out of the path, at its first occurrence; Flask's ``ReverseProxied``
  recipe: ``X-Script-Name``; Spring ``ForwardedHeaderFilter``, Traefik StripPrefix: ``X-Forwarded-Prefix``.
* Symfony, IIS URL Rewrite: ``X-Original-URL``, ``X-Rewrite-URL``; Envoy: ``X-Envoy-Original-Path``; Traefik:
  ``X-Replaced-Path``, ``X-Forwarded-Uri``; nginx ``auth_request`` recipes: ``X-Original-URI``, ``X-Original-Method``.
* Rack::MethodOverride, Symfony, Express method-override, ASP.NET: ``X-HTTP-Method(-Override)``, ``X-Method-Override``,
  ``_method``; Google APIs: ``$httpMethod``.  Some take the name of such a field in the query as well.
* PHP ``php_register_variable_ex``: leading blanks of a parameter's name go, it ends at a NUL, and ".", " " and a lone
  "[" are "_".
* Rails ``ActionDispatch::Http::URL``: ``X-Forwarded-Host``, by default; Symfony, Django, Express, Spring and Werkzeug
  when they are told that a proxy is there; RFC 7239: ``Forwarded``.
* WebDAV (RFC 4918 section 10.3): ``Destination`` is where COPY and MOVE write.
* Object stores: ``x-amz-copy-source`` and its kin, ``x-ms-rename-source`` of Azure, ``x-oss-symlink-target`` of
  Alibaba; of Swift ``X-Copy-From``, ``X-Object-Manifest`` and ``X-Symlink-Target``.
* Rack::Sendfile: ``X-Accel-Mapping``, ``X-Sendfile-Type`` (CVE-2025-61780).
"""

from __future__ import annotations

from ...policy.hosts import canonical_host, format_address, parse_address
from ...policy.model import Malformed
from ...policy.url_paths import canonical_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal, TypeAlias

    from ...policy.model import HttpRequest

    Kind: TypeAlias = Literal[
        "", "method", "path", "prefix", "either", "destination", "host", "forwarded", "copied", "moved", "never"
    ]

LONGEST_METHOD = 32
MOST_READINGS = 16  # of one request: fields that are put together; each is judged
_METHOD = frozenset(b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_LETTERS = b"abcdefghijklmnopqrstuvwxyz"
_DIGITS = b"0123456789"
_VARIABLE = bytes(byte if byte in _LETTERS + _LETTERS.upper() + _DIGITS else 0x2D for byte in range(256))

_METHOD_WORDS = frozenset([b"method", b"methods", b"verb"])
_PATH_WORDS = frozenset([b"uri", b"url", b"path", b"pathinfo"])
_PREFIX_WORDS = frozenset([b"prefix", b"basepath", b"context"])
_HOST_WORDS = frozenset([b"host", b"hostname", b"authority", b"server"])
# What says that the next hop should take something for something else.
_OVERRIDES = frozenset([b"override", b"overridden", b"overrides", b"rewrite", b"rewritten", b"replaced", b"replace"])
_MARKS = _OVERRIDES | frozenset(
    [
        b"base", b"effective", b"forward", b"forwarded", b"http", b"ingress", b"invoke", b"mapped", b"matched",
        b"mount", b"orig", b"original", b"proxied", b"proxy", b"raw", b"real", b"redirect", b"request", b"requested",
        b"root", b"script", b"unencoded",
    ]
)  # fmt: skip
_FILLERS = frozenset([b"x", b"http", b"envoy", b"https"])
_TELLING = _METHOD_WORDS | _PATH_WORDS | _PREFIX_WORDS | _MARKS | _FILLERS
_ALL_WORDS = _TELLING | _HOST_WORDS
_BY_FIRST = {first: tuple(word for word in _ALL_WORDS if word[0] == first) for first in range(256)}
_LONGEST_WORD = 64  # bytes of words that were written as one
_EXACT: dict[bytes, Kind] = {
    b"script-name": "prefix",
    b"path-info": "path",
    b"path-translated": "path",
    b"document-uri": "path",
    b"forwarded": "forwarded",
    # A front end's word on which paths are which others: no single place can be read of it, and no client says it.
    b"accel-mapping": "never",
    b"sendfile-type": "never",
    b"host": "host",  # X-Host; ``Host`` itself is the connection's
}
_SOURCES: dict[tuple[bytes, ...], Kind] = {
    (b"copy", b"source"): "copied",
    (b"copy", b"from"): "copied",
    (b"move", b"source"): "moved",
    (b"rename", b"source"): "moved",
    (b"object", b"manifest"): "copied",
    (b"symlink", b"target"): "copied",
}
# In a query, after ``_parameter``.
_PARAMETERS = frozenset([b"_method", b"$httpmethod", b"x_http_method_override", b"x_http_method", b"x_method_override"])
_MOST_KNOWN = 1024
_known: dict[bytes, Kind] = {}


class BadOverride(Exception):
    """The value is neither a method nor a path nor a host that every server reads alike."""


def as_variable(name: bytes) -> bytes:
    """A field's name as a server may read it that hands fields on as variables: all but letters and digits is "-"."""
    return name.translate(_VARIABLE)


def kind_of(name: bytes) -> Kind:
    """What a field may override; empty for all that look like no override.

    Args:
        name: in lower case.
    """
    kind = _known.get(name)
    if kind is None:
        kind = _kind_of(name)
        if len(_known) < _MOST_KNOWN and len(name) <= 64:
            _known[name] = kind
    return kind


def _kind_of(name: bytes) -> Kind:
    words = [part for word in as_variable(name).split(b"-") for part in _parts(word)]
    skipped = 0
    while skipped < len(words) - 1 and words[skipped] in _FILLERS:
        skipped += 1
    words = words[skipped:]
    exact = _EXACT.get(b"-".join(words))
    if exact:
        return exact
    source = _SOURCES.get(tuple(words[-2:]))
    if source:
        return source
    marked = not _MARKS.isdisjoint(words)
    if not _METHOD_WORDS.isdisjoint(words):
        return "method" if not _OVERRIDES.isdisjoint(words) or _TELLING.issuperset(words) else ""
    if not _PREFIX_WORDS.isdisjoint(words) or words[-2:] == [b"script", b"name"] or words[-2:] == [b"base", b"path"]:
        return "prefix" if marked else ""
    if not _PATH_WORDS.isdisjoint(words):
        return "path" if marked else ""
    if not _HOST_WORDS.isdisjoint(words):
        return "host" if marked and _ALL_WORDS.issuperset(words) else ""
    # What is not all made of such words is a field of one service, unless it says what it overrides.
    return "either" if not _OVERRIDES.isdisjoint(words) and _TELLING.issuperset(words) else ""


def _parts(word: bytes) -> list[bytes]:
    """The words that were written as one (``httpmethod``); the word itself when it is not made of ours."""
    if not word or word in _ALL_WORDS or len(word) > _LONGEST_WORD:
        return [word] if word else []
    made: list[list[bytes] | None] = [[], *[None] * len(word)]  # of each beginning, the words that it is made of
    for start in range(len(word)):
        before = made[start]
        if before is not None:
            for part in _BY_FIRST.get(word[start], ()):
                if word.startswith(part, start):
                    made[start + len(part)] = made[start + len(part)] or [*before, part]
    return made[-1] or [word]


def readings(
    request: HttpRequest, names: Sequence[bytes], values: Sequence[bytes], query: bytes
) -> tuple[HttpRequest, ...]:
    """What else the request may be read as, because of its fields and its query, each alone and all together: a server
    that takes the method from one field and the path from another one serves what neither says.

    Args:
        names: of the fields, in lower case; ``values`` in the same order.
        query: with its ``?``, or empty.

    Raises:
        BadOverride: with the name of the field or parameter.
    """
    asked: list[tuple[Kind, bytes, bytes]] = []
    for name, value in zip(names, values, strict=True):
        kind = kind_of(name) if name != b"host" else ""
        if kind == "never":
            raise BadOverride(name)
        if kind == "either":
            kind = "path" if value[:1] == b"/" or b"://" in value else "method"
        if kind or name == b"destination":
            asked.append((kind or "destination", name, value))
    if query and (b"%" in query or b"method" in query.lower()):
        asked += [("method", b"_method", value) for value in _method_parameters(query)]
    if not asked:
        return ()
    found = dict.fromkeys([request])
    known: set[tuple[str, str]] = set()
    # The same one again says nothing new; a head has room for hundreds.
    once = {(kind, value): name for kind, name, value in asked}
    for (kind, value), name in sorted(once.items(), key=lambda each: _ORDER.index(each[0][0])):
        if kind == "prefix":
            more = [read for each in found for read in _prefixed(each, name, value)]
        elif kind in ("copied", "moved"):
            source = _source(request, value, name)
            more = [source, source.replace(method="DELETE")] if kind == "moved" else [source]
        else:
            changes = dict.fromkeys(_changes(request, kind, name, value))
            more = [
                each.replace(**{member: text})
                for member, text in changes
                if (kind, text) not in known
                for each in found
                if kind != "destination" or each.method in ("COPY", "MOVE")
            ]
            known.update((kind, text) for _member, text in changes)
        found.update(dict.fromkeys(more))
        if len(found) > MOST_READINGS:
            raise BadOverride(name)
    del found[request]
    return tuple(found)


# What changes what the next ones start from comes first; a path is of the request's own host.
_ORDER: tuple[Kind, ...] = ("method", "path", "destination", "prefix", "host", "forwarded", "copied", "moved")


def _changes(request: HttpRequest, kind: Kind, name: bytes, value: bytes) -> list[tuple[str, str]]:
    """Which members of the request a field may be read to change, and to what."""
    if kind == "method":
        return [("method", _method(value, name))]
    if kind in ("path", "destination"):
        return [("path", _path(request, value, name))]
    if kind == "host":
        hosts = value.split(b",")
    else:
        pairs = [part.partition(b"=") for each in value.split(b",") for part in each.split(b";")]
        hosts = [host.strip(b' \t"') for key, _, host in pairs if key.strip().lower() == b"host"]
    if len(hosts) > MOST_READINGS:
        raise BadOverride(name)
    return [("host", _host(each, name)) for each in hosts]


def _prefixed(request: HttpRequest, name: bytes, value: bytes) -> list[HttpRequest]:
    if value in (b"", b"/"):
        return []
    # A prefix is cut off by some, at the first place where it is, and put before the path by others.
    prefix = _path(request, value, name, relative=True)
    joined = request.replace(path=_path(request, prefix.encode() + request.path.encode(), name))
    out = [joined, request.replace(path=prefix)]
    for whole in (request.path, _unescaped(request.path)):
        for cut in (value.decode("latin-1"), prefix, prefix.rstrip("/")):
            if cut and cut in whole:
                rest = whole.split(cut, 1)[1]
                out.append(request.replace(path=_path(request, b"/" + rest.encode("latin-1"), name)))
    return out


def _host(value: bytes, name: bytes) -> str:
    """The canonical host of an authority.  Its port is not looked at: whichever a server builds links with."""
    try:
        text = value.strip().decode("ascii")
        host, colon, port = text.rpartition(":")
        if not colon or text[-1:] == "]" or not port.isdigit():
            host = text
        if host[:1] == "[" and host[-1:] == "]":
            return format_address(*parse_address(host[1:-1]))
        return format_address(*parse_address(host)) if host.rpartition(".")[2].isdigit() else canonical_host(host)
    except (Malformed, UnicodeDecodeError):
        raise BadOverride(name) from None


def _source(request: HttpRequest, value: bytes, name: bytes) -> HttpRequest:
    """The request for what is copied: a path, whose escapes are those of the field, or a URL, of any host."""
    from urllib.parse import quote_from_bytes, unquote_to_bytes

    scheme, mark, rest = value.partition(b"://")
    if mark and b"/" not in scheme:
        authority, _, below = rest.partition(b"/")
        host, kind, path = _host(authority, name), scheme.lower(), b"/" + below
        if kind not in (b"http", b"https"):
            raise BadOverride(name)
        port = authority.rpartition(b":")[2] if authority[-1:] != b"]" else b""
        named = int(port) if port.isdigit() and len(port) <= 5 else 80 if kind == b"http" else 443
        request = request.replace(host=host, port=named, scheme=kind.decode("ascii"))
    else:
        path = unquote_to_bytes(value.partition(b"?")[0])
        path = quote_from_bytes(b"/" + path.lstrip(b"/"), safe="/:@!$&'()*+,;=~").encode()
    return request.replace(method="GET", path=_path(request, path, name))


def _unescaped(path: str) -> str:
    from urllib.parse import unquote_to_bytes

    return unquote_to_bytes(path).decode("latin-1")


def _path(request: HttpRequest, value: bytes, name: bytes, *, relative: bool = False) -> str:
    """The path of a value that is one, or a URL of the request's own host."""
    scheme, mark, rest = value.partition(b"://")
    if mark and b"/" not in scheme:
        authority, _, below = rest.partition(b"/")
        shown = f"[{request.host}]" if ":" in request.host else request.host
        if authority.lower() not in (shown.encode(), f"{shown}:{request.port}".encode()):
            raise BadOverride(name)
        value = b"/" + below
    try:
        path = value.partition(b"?")[0].decode("latin-1")
        return canonical_path(f"/{path}" if relative and path[:1] != "/" else path)
    except Malformed:
        raise BadOverride(name) from None


def _method(value: bytes, name: bytes) -> str:
    method = value.strip().upper()
    if not 0 < len(method) <= LONGEST_METHOD or not _METHOD.issuperset(method):
        raise BadOverride(name)
    return method.decode("ascii")


def _method_parameters(query: bytes) -> list[bytes]:
    """The values of every parameter by which some server takes another method, however it is spelled."""
    from urllib.parse import unquote_to_bytes

    found = []
    for part in query[1:].replace(b";", b"&").split(b"&"):
        name, _, value = part.partition(b"=")
        if any(map(_is_parameter, _parameter(unquote_to_bytes(name.replace(b"+", b" "))))):
            found.append(unquote_to_bytes(value.replace(b"+", b" ")))
    return found


def _is_parameter(name: bytes) -> bool:
    """One that is known, or that is called like a field that overrides.

    Not ``method`` or ``request_method``, by which applications ask for things of their own.
    """
    if name in _PARAMETERS:
        return True
    marked = b"override" in name or name.startswith((b"x-", b"x_", b"xhttp", b"_http", b"-http"))
    return marked and kind_of(name) == "method"


def _parameter(name: bytes) -> tuple[bytes, ...]:
    """A parameter's name as servers may read it: PHP's own changes, and without what makes it an array."""
    plain = name.partition(b"\0")[0].strip().lower()
    mangled = plain.translate(_MANGLED)
    return plain, mangled, plain.partition(b"[")[0].translate(_MANGLED), mangled.rstrip(b"_]")


_MANGLED = bytes(0x5F if byte in b" .-[" else byte for byte in range(256))
