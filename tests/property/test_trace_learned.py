"""What ``learn`` prints: whatever text an event holds, each line is ours, and every rule is of something tried."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from membrane.policy.hosts import canonical_host, parse_address
from membrane.policy.load import Source, load
from membrane.policy.model import Malformed
from membrane.record import recorded
from membrane.record.learn import LEARNED_REASONS, learn

# Pieces of YAML, of our own comments and rules, and of what ends a line for some reader.
PIECES = [
    "\n", "\r", "\u2028", "\u2029", "\x85", "\x0b", "\t", "\0", '"', "'", "\\", "\\n", "\\x0a", "# ", " #", ": ", "- ",
    "{", "}", "[", "]", ", ", "|", ">", "&a", "*a", "!!python/object", "%YAML", "---", "...", "?", "allow:", "deny:",
    '\n  - "**"', '"]\nallow: ["**"]\n#', "mode: rw", "mounts:", "**", "/", "/opt", "..", "h.example", "*.example",
    ".", "443", "\u202e", "\ufeff", "\x1b[31m", "é", "ß", "\udcff", "~", "${HOME}", "$HOME", "@last",
]  # fmt: skip
TEXT = st.one_of(st.lists(st.sampled_from(PIECES), max_size=5).map("".join), st.text(max_size=8))
PATHS = TEXT.map(lambda text: "/opt/" + text) | TEXT.map(lambda text: "/" + text) | TEXT
HOSTS = st.sampled_from(["h.example", "203.0.113.7", "2001:db8::7"]) | TEXT.map(lambda text: f"{text}.example") | TEXT
PORTS = st.integers(-1, 70000) | TEXT
REASONS = st.sampled_from(sorted(LEARNED_REASONS)) | TEXT
METHODS = st.sampled_from(["GET", "POST"]) | TEXT
PROCESS = st.fixed_dictionaries({"pid": st.just(3), "start": st.just(4), "name": TEXT, "exe": TEXT})
ACCESS = st.one_of(
    st.fixed_dictionaries({"kind": st.just("NameQuery"), "name": HOSTS, "type": TEXT}),
    st.fixed_dictionaries(
        {"kind": st.just("Connect"), "host": HOSTS, "address": HOSTS, "port": PORTS, "protocol": TEXT}),
    st.fixed_dictionaries({"kind": st.just("HttpRequest"), "host": HOSTS, "port": PORTS, "path": PATHS,
                           "scheme": st.sampled_from(["http", "https"]) | TEXT, "method": METHODS}),
    st.fixed_dictionaries({"kind": st.just("SocketAccess"), "path": PATHS}),
    st.fixed_dictionaries(
        {"kind": st.just("PathAccess"), "path": PATHS, "operation": st.sampled_from(["read", "write"])}),
)  # fmt: skip
EVENT = st.one_of(
    st.fixed_dictionaries({"event": st.just("AccessDenied"), "access": ACCESS, "reason": REASONS, "hint": TEXT}),
    st.fixed_dictionaries({"event": st.just("NameResolved"), "name": HOSTS}),
    st.fixed_dictionaries(
        {"event": st.just("ConnectionOpened"), "id": st.integers(0, 3), "host": HOSTS, "port": PORTS, "protocol": TEXT}
    ),
    st.fixed_dictionaries({"event": st.just("ConnectionClosed"), "id": st.integers(0, 3)}),
    st.fixed_dictionaries(
        {"event": st.just("RequestSeen"), "id": st.integers(0, 3), "verdict": st.just("allow"), "host": HOSTS,
         "port": PORTS, "scheme": st.just("https"), "method": METHODS, "path": PATHS}),
    st.fixed_dictionaries(
        {"event": st.just("FileOpened"), "path": PATHS, "flags": st.just(["rdonly"]), "result": st.just("EACCES")}
    ),
)  # fmt: skip
EVENTS = st.lists(st.builds(lambda event, who: {"time": "", **event, "process": who}, EVENT, PROCESS), max_size=6)
STRING = r'"(?:[^"\\]|\\.)*"'
LINE = re.compile(
    r"# .*|allow:|mounts:|unix_sockets:|\{\}|    http:"
    rf"|  - (?:{STRING}|dest: {STRING}|\{{path: {STRING}, mode: ro\}}) # [^#]*"
    rf"|  - dest: {STRING} # .*|      - \{{methods: \[[A-Z-]+\], paths: \[{STRING}(?:, {STRING})*\]\}}"
)


def canonical(value: Any) -> str:
    text = recorded.text(value)
    try:
        return canonical_host(text)
    except Malformed:
        try:
            parse_address(text)
        except Malformed:
            return ""
        return text


def plain(path: str) -> str:
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


@settings(max_examples=200, deadline=None)
@given(EVENTS)
def test_every_line_is_ours_and_every_rule_is_of_something_tried(events: list[dict[str, Any]]) -> None:
    text = learn([[recorded.parse(event) for event in events]])
    assert text.endswith("\n")
    for line in text[:-1].split("\n"):
        assert LINE.fullmatch(line) and line.isprintable(), ascii(line)
    policy = load([Source("user", "learned.yaml", text, "/w")], presets={"default": ""}, home="/home/u").policy
    told = [each for event in events for each in (event, event.get("access") or {})]
    hosts = {canonical(each.get(name)) for each in told for name in ("host", "name", "address")} - {""}
    paths = {plain(recorded.text(each.get("path"))) for each in told}
    for rule in policy.allow:
        assert rule.kind in ("host", "network") and "*" not in rule.text
        assert rule.host in hosts if rule.kind == "host" else any(host in rule.text for host in hosts), rule.text
    assert len(policy.allow) <= len(hosts) * (len(events) + 1)
    assert {rule.path for rule in policy.mounts} <= paths and all(rule.mode == "ro" for rule in policy.mounts)
    assert not any(f"{home}/".startswith(f"{rule.path}/") for rule in policy.mounts for home in ("/home", "/root", "/var/lib"))  # fmt: skip  # noqa: E501
    assert {rule.path for rule in policy.unix_sockets} <= paths
    assert not policy.deny and not policy.secrets and not policy.env
    # Comments carry nothing: without them it is the same policy.
    bare = "\n".join(re.sub(rf'^((?:[^"#]|{STRING})*)#.*$', r"\1", line) for line in text.split("\n"))
    again = load([Source("user", "learned.yaml", bare, "/w")], presets={"default": ""}, home="/home/u").policy
    assert [rule.text for rule in again.allow] == [rule.text for rule in policy.allow]
    assert [rule.path for rule in again.mounts] == [rule.path for rule in policy.mounts]
    assert [rule.path for rule in again.unix_sockets] == [rule.path for rule in policy.unix_sockets]
