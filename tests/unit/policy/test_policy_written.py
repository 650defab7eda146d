"""A policy as text: the same rules again, nothing that the command must not know, bounded, one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import membrane.policy
from membrane.errors import PolicyError
from membrane.policy import keys, written
from membrane.policy.decide import decide
from membrane.policy.load import Source, load
from membrane.policy.model import Connect, EnvRule, Limits, Origin, PathRule, Policy, TraceRule

HERE = Origin("user", "f", 1)
# Everything that a rule can hold, at least once as it is by default and once otherwise.
ALL = r"""
presets: []
allow:
  - example.com
  - "*.wild.example"
  - "[2001:db8::1]:443"
  - tcp://raw.example:5000
  - {dest: other.example, ports: [9], protocol: raw}
  - {dest: a.example, ports: [80, 8000-8010, 53/udp], insecure: true}
  - {dest: i.example, ports: [443], inspect: true}
  - https://path.example/v1/
  - dest: https://api.example/v1
    ports: [8443]
    http: [{methods: [GET, HEAD], paths: [x, "y/*", "/z#"]}, {methods: [POST]}]
  - {dest: 10.0.0.0/8, ports: [22]}
  - {dest: "http://b.example:81", budget: {upload: 10M, requests: 5, rate: 60/min}}
  - {dest: c.example, budget: {upload: 1000}}
deny: ["b.example:443", {dest: "https://api.example/v1/secret", http: [{paths: [k]}]}]
ignore: ["*.pem", 'a"b', 'c\d', "\u00e9\u202ef", "!d.pem", {path: .env, show: names}, {path: big, best_effort: true}]
readonly: [config/, "!d.pem", {path: x, best_effort: true}]
mounts: [{path: /opt/x, mode: ro}, {path: ~/y, mode: rw, target: /y}, {path: ../z}, {type: git-root, mode: rw}]
files: {deny_read: [~/a, "/b/*.key"], allow_read: [/b/c], allow_write: [., /w/**], deny_write: [/w/no]}
unix_sockets: [$WHERE/x, {path: "/a$$b", as: ssh-agent, allow: ["SHA256:0"]}]
ports: {expose: [8000, "1:2"], connect: ["3:4"]}
env: {pass: [TOKEN, "CI_*"], set: {A: value-of-it, B: "", "null": "", "NULL": x, yes: y}}
devices: [kvm, gpu]
secrets:
  - {name: S, from: "file:/secret/place", to: [https://api.example]}
  - {name: T, from: {command: [secret-program, x]}, to: [api.example, "*.wild.example"], header: "* X-Key"}
  - {name: U, from: env, to: [api.example], query: key}
  - {name: V, from: "keyring:secret/place", to: [api.example], header: "X-Key: k {}"}
masks:
  - {file: $WHERE/m, to: [api.example]}
  - env: M
    to: ["*.wild.example"]
    extract: 'k=(\w+)'
    decode: jwt
    claims: [c]
    duplicates: true
    unmatched: warn
    header: "* X"
  - {file: ~/l, to: [api.example], login: true, renew: ["https://api.example/token"], replaced: true}
signing: [{key_id: S, secret: T}]
git_config: writable
user_namespaces: allowed
containers: nested
system: persistent
args: [--cpus=2, -l, "a=$$b"]
limits: {memory: 1GB, pids: 3, cpu: 4, time: 1h, files: 50, disk: 6K, upload: 7}
home: ephemeral
view: host
hard_links: refuse
image: "tar:/x.tar"
platform: linux/arm/v6
backend: landlock
workspace: review
apply: safe
dns_resolver: "[2001:db8::1]:53"
upstream_proxy: socks5://proxy.example:1080
extra_ca: [/a.pem, ~/b.pem]
ssl_insecure: true
trace: {mode: required, max_size: 1G, keep: 2, http: full}
"""
SECRET = ("value-of-it", "secret/place", "secret-program")


def read(*texts: str) -> Policy:
    files = [Source(level, level, text) for level, text in zip(("user", "project"), texts, strict=False)]  # type: ignore[arg-type]
    presets = {"default": "allow: [default.example]"}
    return load(files, presets=presets, home="/home/u", environ={"WHERE": "/run/a$b"}).policy


def bare(value: Any) -> Any:
    """Rules without their places, and without what the command must not know."""
    if isinstance(value, tuple):
        return tuple(bare(item) for item in value)
    if not hasattr(value, "origin"):
        return value
    left_out = {"origin", "source"} if hasattr(value, "header") and hasattr(value, "name") else {"origin"}
    fields = [(name, getattr(value, name)) for name in value.field_names if name not in left_out]
    return [(name, item is not None) if name == "value" else (name, item) for name, item in fields]


def same(one: Policy, other: Policy) -> None:
    for field in keys.FIELDS:
        if field.name != "change_set":  # of one run, by --review
            assert bare(getattr(one, field.name)) == bare(getattr(other, field.name)), field.name


def test_all_that_can_be_said_is_written_and_read_again() -> None:
    policy = read(ALL)
    text = written.in_force(policy)
    same(read(text), policy)
    with pytest.raises(AssertionError, match="git"):
        same(read(text.replace('git_config: "writable"\n', "")), policy)
    again = written.in_force(read(text))
    assert again == text
    for word in SECRET:
        assert word in ALL and word not in text


def test_the_text_of_this_test_says_all_that_a_rule_can_hold() -> None:
    policy = read(ALL)
    for field in keys.FIELDS:
        value = getattr(policy, field.name)
        if field.name not in ("profiles", "open_files", "open_sockets", "change_set"):  # texts of test_policy_keys
            assert value != getattr(Policy(), field.name), field.name
    once = {"origin", "key_id", "secret", "optional"}  # the last is of settings of sandbox-runtime
    for field in keys.FIELDS:
        rules = getattr(policy, field.name)
        if field.kind is not None:
            alike = [rule for key in keys.FIELDS if key.kind is field.kind for rule in getattr(policy, key.name)]
            for name in set(field.kind.field_names) - once:
                found = {repr(getattr(rule, name)) for rule in alike}
                assert len(found) > 1, (field.name, name)
        elif isinstance(rules, (Limits, TraceRule)):
            for name in rules.field_names:
                assert getattr(rules, name) != getattr(type(rules)(), name), name


def test_a_default_policy_is_written_without_the_lists_that_it_came_from() -> None:
    policy = read("")
    assert [rule.text for rule in policy.allow] == ["default.example"]
    same(read(written.in_force(policy)), policy)
    assert [rule.text for rule in read("").allow + read("presets: []").allow] == ["default.example"], "the control"


LEVELS = [
    ("allow: [a.example, b.example, 'c.example:443']", "deny: [a.example, 'c.example:443']"),
    ("deny: [a.example]", "allow: [a.example]"),
    ("env: {pass: [A, B]}", "env: {set: {A: x}}"),
    ("env: {set: {A: x}}", "env: {set: {A: y}}"),
    ("mounts: [{path: /x, mode: rw}, {path: /y}]", "mounts: [{path: /x, mode: ro}]"),
    ("ignore: [a, b]", "readonly: [a, c]"),
    ("ignore: [a, '!a/b']", "readonly: [a, '!a/b']"),
]


@pytest.mark.parametrize(("user", "project"), LEVELS)
def test_what_two_files_say_and_one_may_not_is_written_as_what_holds(user: str, project: str) -> None:
    head = "presets: []\n"
    policy = read(head + user, project)
    again = read(written.in_force(policy))
    assert written.in_force(again).replace(again.digest, policy.digest) == written.in_force(policy)
    for host in ("a.example", "b.example", "c.example"):
        for port in (80, 443):
            asked = Connect(host, "", port)
            assert type(decide(policy, asked)) is type(decide(again, asked))
    given = {rule.name for rule in policy.env if rule.value is not None}
    assert {rule.name for rule in again.env if rule.value is not None} == given
    assert {rule.name for rule in again.env} == {rule.name for rule in policy.env}
    assert {rule.path: rule.mode for rule in again.mounts} == {rule.path: rule.mode for rule in policy.mounts}
    hidden = [rule.text for rule in policy.paths if rule.effect == "hide"]
    assert [rule.text for rule in again.paths if rule.effect == "hide"] == hidden
    rest = [rule.text for rule in policy.paths if rule.effect == "readonly"]
    kept = [text for text in rest if text not in hidden or "!a/b" in hidden]
    assert [rule.text for rule in again.paths if rule.effect == "readonly"] == kept


@pytest.mark.parametrize(
    "text",
    [
        "allow: [a.example]\ndeny: [a.example]",
        "env: {pass: [A], set: {A: x}}",
        "mounts: [{path: /x, mode: rw}, {path: /x, mode: ro}]",
        "ignore: [a]\nreadonly: [a]",
    ],
)
def test_the_control_one_file_may_not_say_it(text: str) -> None:
    with pytest.raises(PolicyError):
        read(text)


def test_a_password_of_a_proxy_is_not_written() -> None:
    text = written.in_force(Policy(upstream_proxy="http://me:pass@word@proxy.example:3128"))
    assert 'upstream_proxy: "http://proxy.example:3128"' in text
    for kept in ("me:pass", "pass@", "word@"):
        assert kept not in text


def test_a_file_name_that_is_no_text_is_counted_and_not_written() -> None:
    policy = Policy(paths=(PathRule("a\udcff", HERE, "hide"), PathRule("b", HERE, "hide")), extra_ca=("/\udcff",))
    text = written.in_force(policy)
    assert 'ignore:\n  - "b"\n  # and 1 more\n' in text and "extra_ca: []\n  # and 1 more\n" in text
    assert [rule.text for rule in read(text).paths] == ["b"]


def test_a_name_that_is_too_long_for_a_key_is_counted_and_not_written() -> None:
    names = ("V" * 1_000, "W" * 1_025)
    text = written.in_force(Policy(env=tuple(EnvRule(name, "x", HERE) for name in names)))
    assert [rule.name for rule in read(text).env] == [names[0]] and "    # and 1 more\n" in text
    with pytest.raises(PolicyError):
        read(f"env: {{set: {{}}}}\n{names[1]}: []")


FILES = Path(membrane.policy.__file__).parent / "presets"
PRESETS = {str(path.relative_to(FILES).with_suffix("")): path.read_text() for path in FILES.rglob("*.yaml")}
AGENTS = [name.removeprefix("profiles/") for name in PRESETS if name.startswith("profiles/")]


@pytest.mark.parametrize("agent", ["", *AGENTS])
def test_the_lists_and_profiles_that_are_shipped_are_written_and_read_again(agent: str) -> None:
    names = [name for name in PRESETS if "/" not in name and not name.endswith("-push")]
    policy = load(
        [Source("user", "u", f"presets: [{', '.join(names)}, {{github-push: [a/b]}}]")],
        presets=PRESETS,
        home="/home/u",
        environ={},
        command=agent,
    ).policy
    again = load([Source("user", "u", written.in_force(policy))], presets=PRESETS, home="/home/u", environ={}).policy
    same(again, policy.replace(profiles=()))
    assert policy.profiles == ((agent,) if agent else ())
    assert len(policy.allow) > 50


@pytest.mark.parametrize("length", [1, 500, 4_000])
def test_it_is_bounded_and_what_is_left_out_is_said(length: int) -> None:
    many = min(20_000, 1_000_000 // length)  # some times more than there is room for
    env = tuple(EnvRule(f"V{number}", "x", HERE) for number in range(many))
    paths = tuple(PathRule(f"{number}{'y' * length}", HERE, "hide") for number in range(many))
    readonly = tuple(rule.replace(effect="readonly", text=f"r{rule.text}") for rule in paths)
    policy = Policy(paths=paths + readonly, env=env, extra_ca=tuple(f"/{'z' * length}{n}" for n in range(many)))
    text = written.in_force(policy)
    assert len(text) <= written.LARGEST
    again = read(text)
    assert again.paths and again.env and again.extra_ca
    counted = sum(int(line.split()[2]) for line in text.splitlines() if line.strip().startswith("# and "))
    rows = text.count("  - ") + text.count(': ""')
    assert rows + counted == 4 * many and rows > 10
