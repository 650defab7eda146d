"""Fuzz targets of the policy package: whatever the bytes, only the documented errors.

``fuzz_one`` is a plain function of bytes, so any fuzzer can drive it (``atheris.Setup(sys.argv, fuzz_one)``); the
suite runs the corpus and a bounded, seeded number of mutations of it (tests/property/test_policy_fuzz.py).
The first byte chooses the target.
"""

from __future__ import annotations

from membrane.errors import PolicyError
from membrane.policy.decide import Decider
from membrane.policy.globs import compile_patterns
from membrane.policy.grammar import host_rule, parse_limit, parse_mount, parse_port, parse_proxy, parse_resolver
from membrane.policy.hosts import canonical_host, format_address, parse_address, parse_network
from membrane.policy.load import Source, load
from membrane.policy.model import Allow, Connect, Deny, HttpRequest, Malformed, NameQuery, Origin, PathAccess
from membrane.policy.url_paths import canonical_path, canonical_path_pattern, path_matcher

_WHERE = Origin("library", "fuzz")
_POLICY = load(
    [
        Source(
            "user",
            "fuzz",
            "allow: [a.example, '*.b.example', 'https://c.example/v1', 10.0.0.0/8, {dest: '**', ports: [53/udp]}]\n"
            "deny: ['x.b.example', 'https://c.example/v1/admin']\nignore: [secrets/, '*.key', '!pub.key', 'a/**/b']\n",
        )
    ],
    presets={"default": ""},
).policy
_DECIDER = Decider(_POLICY)


def fuzz_file(data: bytes) -> None:
    """A policy file."""
    text = data.decode("utf-8", "replace")
    try:
        load([Source("project", "fuzz", text)], presets={"default": ""}, environ={"A": "/a"}, home="/h")
    except PolicyError as error:
        assert error.where.startswith("fuzz"), "an error has a place"


def fuzz_words(data: bytes) -> None:
    """The grammars of one word."""
    text = data.decode("utf-8", "surrogateescape")
    for read in (parse_limit, parse_port, parse_proxy, parse_resolver, parse_network):
        try:
            read(text)
        except Malformed:
            pass
    for make in (lambda: host_rule(text, _WHERE), lambda: parse_mount(text, _WHERE, "/h")):
        try:
            make()
        except Malformed:
            pass


def fuzz_host(data: bytes) -> None:
    """Host names and addresses, as a rule and as traffic."""
    text = data.decode("utf-8", "surrogateescape")
    try:
        name = canonical_host(text)
    except Malformed:
        name = ""
    assert not name or canonical_host(name) == name
    try:
        address = parse_address(text)
    except Malformed:
        pass
    else:
        assert not name, "a name or an address, never both"
        assert parse_address(format_address(*address)) == address
    for access in (
        NameQuery(text),
        Connect(text, "", 443),
        Connect("", text, 443),
        Connect("a.example", text, 53, "udp"),
    ):
        verdict = _DECIDER.decide(access)
        assert isinstance(verdict, (Allow, Deny))


def fuzz_path(data: bytes) -> None:
    """HTTP paths, as a rule and as traffic."""
    text = data.decode("latin-1")
    try:
        path = canonical_path(text)
    except Malformed:
        path = ""
    assert not path or canonical_path(path) == path
    verdict = _DECIDER.decide(HttpRequest("c.example", 443, "https", "GET", text))
    if isinstance(verdict, Allow):
        assert path == text, "only the canonical path passes"
        assert path == "/v1" or path.startswith("/v1/")
        assert not path.startswith("/v1/admin/")
    try:
        path_matcher(canonical_path_pattern(text))("/v1/x/y")
    except Malformed:
        pass


def fuzz_pattern(data: bytes) -> None:
    """gitignore patterns, one per line, then a NUL and a path."""
    head, _, tail = data.partition(b"\0")
    path = tail.decode("utf-8", "surrogateescape").strip("/") or "a"
    try:
        compiled = compile_patterns(head.decode("utf-8", "surrogateescape").split("\n"))
    except Malformed:
        compiled = None
    if compiled is not None:
        for is_dir in (False, True):
            compiled.match(path.rpartition("/")[2], path, is_dir)
    for operation in ("read", "write"):
        _DECIDER.decide(PathAccess(path, operation))


TARGETS = (fuzz_file, fuzz_words, fuzz_host, fuzz_path, fuzz_pattern)


def fuzz_one(data: bytes) -> None:
    """One input: the first byte chooses the target."""
    if data:
        TARGETS[data[0] % len(TARGETS)](data[1:])
