"""Files and options become one policy, or an error with its place.

One file of over 800 lines: each key's right and wrong values, read one beside the other.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from membrane.errors import PolicyError
from membrane.policy import codec
from membrane.policy.globs import MOST_EXPRESSIONS
from membrane.policy.grammar import host_rule, parse_limit
from membrane.policy.load import Result, Source, load
from membrane.policy.model import HttpRule, Limits, Malformed, Origin, Policy, PortRange, RuleBudget

PRESETS = {
    "default": "presets: [one]\nignore: [.env, '!.env.example']\n",
    "one": "allow:\n  - one.example:443\n",
    "two": "presets: [one, two]\nallow: [two.example:443]\n",
    "profiles/agent": "command: [agent, agent2]\nallow: [agent.example:443]\nstate: [.agent/, .agent.json]\n"
    "env: {pass: [AGENT_KEY], set: {QUIET: '1'}}\n",
    "profiles/other": "command: [other]\npresets: [two]\n",
}
WHERE = Origin("user", "f", 1)


def read(text: str = "", *, level: Any = "user", **named: Any) -> Result:
    return load([Source(level, "f.yaml", text, "/dir")], presets=PRESETS, **named)


def policy(text: str, **named: Any) -> Policy:
    return read(text, **named).policy


def allowed(text: str, **named: Any) -> list[str]:
    return [rule.text for rule in policy(text, **named).allow]


# ---------------------------------------------------------------- destinations


@pytest.mark.parametrize(
    ("text", "kind", "host", "ports"),
    [
        ("example.com", "host", "example.com", ()),
        ("*.github.io", "wildcard", "github.io", ()),
        ("[::1]", "network", "", ()),
        ("[2001:db8::1]:443", "network", "", (PortRange("tcp", 443, 443),)),
        ("127.0.0.1:3000", "network", "", (PortRange("tcp", 3000, 3000),)),
        ("api.x.com:443", "host", "api.x.com", (PortRange("tcp", 443, 443),)),
        ("localhost", "host", "localhost", ()),
        ("**", "any", "", ()),
        ("*", "any", "", ()),
        ("**:443", "any", "", (PortRange("tcp", 443, 443),)),
        ("10.0.0.0/8", "network", "", ()),
        ("2001:db8::/32", "network", "", ()),
        ("8.8.8.8:53/udp", "network", "", (PortRange("udp", 53, 53),)),
        ("a.com:8000-8010", "host", "a.com", (PortRange("tcp", 8000, 8010),)),
        ("https://a.com", "host", "a.com", (PortRange("tcp", 443, 443),)),
        ("HTTP://A.com/", "host", "a.com", (PortRange("tcp", 80, 80),)),
        ("https://[2001:db8::1]:8443/", "network", "", (PortRange("tcp", 8443, 8443),)),
        ("https://*.example.com", "wildcard", "example.com", (PortRange("tcp", 443, 443),)),
        ("host.internal:5432", "host", "host.internal", (PortRange("tcp", 5432, 5432),)),
        ("münchen.de", "host", "xn--mnchen-3ya.de", ()),
    ],
)
def test_destination(text: str, kind: str, host: str, ports: tuple[PortRange, ...]) -> None:
    rule = host_rule(text, WHERE)
    assert (rule.kind, rule.host, rule.ports, rule.http) == (kind, host, ports, None)
    assert not rule.constrained


@pytest.mark.parametrize(
    "text",
    [
        "*example.com",
        "*.com",
        "*.",
        "::1:443x",
        "a.com:0",
        "a.com:99999",
        "evil\0.allowed.com",
        "127.1",
        "2130706433",
        "0x7f.0.0.1",
        "fe80::1%eth0",
        "",
        "*.co.uk",
        "*.*.x.com",
        "a.*.com",
        "**.x.com",
        "a.com:",
        "a.com:443:443",
        "a.com/path",
        "ftp://a.com",
        "https://",
        "https://u:p@a.com",
        "https://allowed@evil/",
        "https://a.com\\@evil.com",
        "https://a.com?x",
        "https://a.com/#x",
        "https://a.com/../x",
        "https://**",
        "https://a.com:443-444",
        "[1.2.3.4]",
        "[::1",
        "[::1]x",
        "10.0.0.1/8",
        "1.2.3.4/33",
        "host.internal",
        "*.host.internal",
        " a.com",
        "a.com ",
        "a.com:80-70",
        "a.com:080",
        "a.com:1e3",
        "a.com:٣",
    ],
)
def test_destination_is_refused(text: str) -> None:
    with pytest.raises(Malformed):
        host_rule(text, WHERE)


def test_url_with_a_path_is_a_constraint() -> None:
    rule = host_rule("https://api.example.com/v1/", WHERE)
    assert rule.http == (HttpRule((), ("/v1",)),)
    assert rule.scheme == "https"
    assert rule.constrained


def test_budgets() -> None:
    text = """
allow:
  - {dest: a.com, budget: {upload: 10M}}
  - {dest: https://a.com, budget: {requests: 100, rate: 60/min}}
  - {dest: "b.com:5/udp", budget: {upload: 1K}}
"""
    rules = load([Source("user", "f", text)], presets={"default": ""}).policy.allow
    assert [rule.budget for rule in rules] == [
        RuleBudget(10 << 20),
        RuleBudget(0, 100, 60, 60),
        RuleBudget(1024),
    ]
    assert [rule.constrained for rule in rules] == [False, True, False]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("allow: [{dest: a.com, budget: {}}]", "budget is empty"),
        ("allow: [{dest: a.com, budget: 10M}]", "budget"),
        ("allow: [{dest: a.com, budget: {uploads: 1}}]", 'did you mean "upload"'),
        ("allow: [{dest: a.com, budget: {upload: 0}}]", "admits nothing"),
        ("allow: [{dest: a.com, budget: {requests: 0}}]", "admits nothing"),
        ("allow: [{dest: a.com, budget: {requests: 1K}}]", "not a count"),
        ("allow: [{dest: a.com, budget: {rate: 60}}]", "not a rate"),
        ("allow: [{dest: a.com, budget: {rate: 60/m}}]", "60/min"),
        ("allow: [{dest: a.com, budget: {rate: 0/min}}]", "from 1 to"),
        ("allow: [{dest: a.com, budget: {rate: 100001/h}}]", "from 1 to"),
        ("allow: [{dest: a.com, budget: {rate: /min}}]", "not a count"),
        ("deny: [{dest: a.com, budget: {upload: 1}}]", "no meaning in a deny"),
        ('allow: [{dest: "a.com:53/udp", budget: {requests: 1}}]', "HTTP rules are for TCP"),
    ],
)
def test_a_budget_is_refused(text: str, cause: str) -> None:
    with pytest.raises(PolicyError) as caught:
        load([Source("user", "f", text)], presets={"default": ""})
    assert cause in caught.value.cause
    assert caught.value.where.startswith("f:1:")


def test_http_items_are_relative_to_the_url() -> None:
    text = """
allow:
  - dest: https://api.example.com/v1/
    http:
      - methods: [post]
        paths: [messages, /v1/models/, "a/*/b"]
      - methods: [GET]
"""
    (rule,) = policy(text, options={"no_presets": True}).allow
    assert rule.http == (
        HttpRule(("POST",), ("/v1/messages", "/v1/models", "/v1/a/*/b")),
        HttpRule(("GET",), ("/v1",)),
    )


def test_ports_of_an_entry() -> None:
    text = "allow: [{dest: a.com, ports: [443, 22/tcp, 123/udp, 8000-8010, '80']}]"
    (rule,) = policy(text, options={"no_presets": True}).allow
    assert rule.ports == (
        PortRange("tcp", 443, 443),
        PortRange("tcp", 22, 22),
        PortRange("udp", 123, 123),
        PortRange("tcp", 8000, 8010),
        PortRange("tcp", 80, 80),
    )


# ---------------------------------------------------------------- levels, presets, profiles


def test_levels_are_concatenated_in_order() -> None:
    sources = [
        Source("user", "u", "allow: [u.example]\nignore: [u]\npresets: [default]\nhome: shared"),
        Source("project", "p", "allow: [p.example]\nignore: [p]\npresets: [two]\nhome: ephemeral"),
    ]
    result = load(sources, presets=PRESETS, options={"allow": ("c.example",), "ignore": ("c",), "home": "workspace"})
    assert [rule.text for rule in result.policy.allow] == [
        "one.example:443",
        "two.example:443",
        "u.example",
        "p.example",
        "c.example",
    ]
    assert [rule.text for rule in result.policy.paths] == [".env", "!.env.example", "u", "p", "c"]
    assert [rule.origin.level for rule in result.policy.paths][2:] == ["user", "project", "command line"]
    assert result.policy.home == "workspace"
    assert result.policy.levels == ("preset default", "preset one", "u", "p", "preset two", "command line")
    assert len(result.policy.digest) == 64


def test_presets_key_of_the_user_replaces_the_default() -> None:
    assert allowed("") == ["one.example:443"]
    assert allowed("presets: [two]") == ["two.example:443", "one.example:443"][::-1]
    assert allowed("presets: []") == []
    assert allowed("presets: [default]", options={"no_presets": True}) == []
    assert allowed("presets: []", options={"presets": ("one",)}) == ["one.example:443"]


def test_profile_is_chosen_by_the_command() -> None:
    result = read("presets: []", command="agent2")
    assert result.policy.profiles == ("agent",)
    assert result.policy.state_dirs == (".agent",)
    assert result.policy.state_files == (".agent.json",)
    assert [(rule.name, rule.value) for rule in result.policy.env] == [("AGENT_KEY", None), ("QUIET", "1")]
    assert str(result.policy.allow[0].origin) == "built-in profile agent:2"


def test_profile_options() -> None:
    assert policy("", command="agent", options={"no_profile": True}).profiles == ()
    assert policy("", command="agent", options={"profile": "other"}).profiles == ("other",)
    assert policy("profiles: [other]", command="agent").profiles == ("agent", "other")
    assert policy("", command="unknown").profiles == ()
    with pytest.raises(PolicyError, match='did you mean "agent"'):
        policy("", options={"profile": "agnet"})


def test_later_pattern_of_the_user_wins_over_a_preset_that_a_project_pulls_in() -> None:
    presets = {**PRESETS, "default": "", "show": "ignore: ['!.env']"}
    sources = [Source("user", "u", "ignore: [.env]"), Source("project", "p", "presets: [show]")]
    assert [rule.text for rule in load(sources, presets=presets).policy.paths] == ["!.env", ".env"]


def test_patterns_that_take_a_regular_expression_are_bounded_and_names_are_not() -> None:
    """Each is tried with each name of the workspace: how many of both is a hostile repository's choice."""
    names = [f"name{number}" for number in range(MOST_EXPRESSIONS + 1)] + [f"*.{number}" for number in range(3000)]
    stars = [f"a*{number}*b" for number in range(MOST_EXPRESSIONS)]
    for level in ("user", "project"):
        taken = read(json.dumps({"ignore": names + stars}), level=level).policy.paths
        assert {rule.text for rule in taken} >= {*names, *stars}
        with pytest.raises(PolicyError, match="more than 2000 patterns"):
            read(json.dumps({"ignore": stars, "readonly": ["/a/[bc]"]}), level=level)


# ---------------------------------------------------------------- every key


def test_every_key() -> None:
    text = """
presets: []
profiles: [other]
deny: ["*.tracker.example", {dest: https://a.example/x, http: [{methods: [DELETE]}]}]
hide: [secrets/, {pattern: "*.key", best_effort: true}, {path: .env, show: names}]
readonly: [config/]
mounts: [{path: ../lib}, {path: ~/x, mode: rw, target: /opt/x}, {type: git-root, mode: ro}]
unix_sockets: [$SOCK, {path: "${DIR}/s", as: ssh-agent, allow: [key1]}]
ports: {expose: [8000, "3000:13000"], connect: ["5432:15432"]}
env: {pass: [TOKEN, "CI_*"], set: {MODE: "", N: 1}}
limits: {memory: 2G, pids: 100, cpu: 1h, time: 90, files: 64, disk: 5M, upload: 1KiB}
secrets:
  - {name: gh, from: "env:GH", to: [api.github.com]}
  - {name: k, from: {command: [pass, k]}, to: [b.example:443], header: "X-Key"}
  - {name: s, from: env, to: ["*.c.example"], header: "*  X-Odd x-even"}
masks: [{env: M, to: [d.example]}, {env: N, to: [d.example], header: "* x-odd"}]
trace: {mode: off, max_size: 10M, keep: 3, http: full}
extra_ca: [ca.pem, /etc/ca.pem]
dns_resolver: "[2001:0db8::1]:5353"
upstream_proxy: http://proxy.example:3128/
ssl_insecure: yes
home: ephemeral
view: host
workspace: live
"""
    result = read(text, environ={"SOCK": "/run/s", "DIR": "/run/d"}, home="/home/u")
    got = result.policy
    assert [rule.http for rule in got.deny] == [None, (HttpRule(("DELETE",), ("/x",)),)]
    assert [(rule.text, rule.effect, rule.best_effort, rule.show_names) for rule in got.paths] == [
        ("secrets/", "hide", False, False),
        ("*.key", "hide", True, False),
        (".env", "hide", False, True),
        ("config/", "readonly", False, False),
    ]
    assert [(rule.path, rule.mode, rule.target, rule.git_root) for rule in got.mounts] == [
        ("../lib", "ro", "", False),
        ("/home/u/x", "rw", "/opt/x", False),
        ("", "ro", "", True),
    ]
    assert [(rule.path, rule.adapter, rule.allow) for rule in got.unix_sockets] == [
        ("/run/s", "", ()),
        ("/run/d/s", "ssh-agent", ("key1",)),
    ]
    assert [(rule.inside, rule.outside) for rule in got.expose] == [(8000, 8000), (3000, 13000)]
    assert [(rule.inside, rule.outside) for rule in got.connect] == [(15432, 5432)]
    assert [(rule.name, rule.value) for rule in got.env] == [
        ("TOKEN", None),
        ("CI_*", None),
        ("MODE", ""),
        ("N", "1"),
    ]
    assert got.limits == Limits(2 << 30, 100, 3600, 90, 64, 5 << 20, 1024)
    assert [(rule.source, rule.to, rule.header) for rule in got.secrets] == [
        ("env:GH", ("api.github.com",), "authorization: Bearer {}"),
        ("command:pass\0k", ("b.example:443",), "x-key: {}"),
        ("env:s", ("*.c.example",), "* x-odd x-even"),
    ]
    assert [(mask.source, mask.header) for mask in got.masks] == [("env:M", "*"), ("env:N", "* x-odd")]
    assert (got.trace.mode, got.trace.max_size, got.trace.keep, got.trace.http) == ("off", 10 << 20, 3, "full")
    assert got.extra_ca == ("/dir/ca.pem", "/etc/ca.pem")
    assert (got.dns_resolver, got.upstream_proxy) == ("[2001:db8::1]:5353", "http://proxy.example:3128")
    assert (got.ssl_insecure, got.home, got.view) == (True, "ephemeral", "host")
    assert got.profiles == ("other",)
    assert result.variables == (("DIR", "/run/d"), ("SOCK", "/run/s"))
    assert any("ssl_insecure" in warning for warning in result.warnings)
    assert codec.restore(codec.dump(got)) == got


@pytest.mark.parametrize("level", ["user", "project"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("home: shared\nargs: [--shm-size=1g]", r":2:8: args: '--shm-size' is an argument of docker run without a key"),
        ("workspace: cow", "workspace is .cow.; expected review, live"),
        ("workspace: copy", "workspace"),
    ],
)
def test_a_key_of_other_versions_stops_the_run(text: str, said: str, level: str) -> None:
    """Who relies on it must not be run without it."""
    with pytest.raises(PolicyError, match=said) as caught:
        read(text, level=level)
    assert caught.value.exit_code == 78


def test_options() -> None:
    result = read(
        "presets: []",
        home="/home/u",
        options={
            "directory": "/srv/project",
            "allow": ("a.com:443",),
            "deny": ("b.com",),
            "ignore": ("*.key",),
            "readonly": ("x/",),
            "mounts": ("../lib", "~/d:rw", "/a:/b:rw"),
            "env": ("CI", "A=1=2"),
            "limits": ("memory=1G", "time=5m"),
            "unix_sockets": ("s.sock",),
            "expose": ("80:8080",),
            "connect": ("5432",),
            "extra_ca": ("ca.pem",),
            "dns_resolver": "9.9.9.9",
            "upstream_proxy": "env",
            "ssl_insecure": True,
            "view": "host",
            "trace": "off",
        },
    )
    got = result.policy
    assert [(rule.path, rule.target, rule.mode) for rule in got.mounts] == [
        ("../lib", "", "ro"),
        ("/home/u/d", "", "rw"),
        ("/a", "/b", "rw"),
    ]
    assert [(rule.name, rule.value) for rule in got.env] == [("CI", None), ("A", "1=2")]
    assert (got.limits.memory, got.limits.time) == (1 << 30, 300)
    assert got.unix_sockets[0].path == "/srv/project/s.sock"
    assert got.extra_ca == ("/srv/project/ca.pem",)
    assert (got.expose[0].inside, got.expose[0].outside) == (80, 8080)
    assert got.trace.mode == "off"
    rules: list[Any] = [*got.allow, *got.deny, *got.paths, *got.env]
    assert {rule.origin.level for rule in rules} == {"command line"}


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"allow": ("*.com",)}, "--allow '*.com': \"com\" is a public suffix"),
        ({"ignore": ("a[",)}, "--ignore 'a[': a bracket is not closed"),
        ({"limits": ("memroy=1",)}, 'did you mean "memory"'),
        ({"limits": ("memory",)}, "has no value"),
        ({"mounts": ("a:b:c:d",)}, "--mount 'a:b:c:d': expected SRC"),
        ({"mounts": ("/a:b",)}, "not an absolute path"),
        ({"env": ("1A=2",)}, "not the name"),
        ({"env": ("A*=2",)}, "not the name"),
        ({"home": "sharde"}, 'did you mean "shared"'),
        ({"dns_resolver": "dns.example"}, "not an address"),
        ({"upstream_proxy": "http://u:p@h:1"}, "password"),
        ({"upstream_proxy": "http://h"}, "port is missing"),
        ({"presets": ("pyton",)}, "there is no preset"),
        ({"connect": ("0",)}, "not a port"),
    ],
)
def test_option_is_refused(options: dict[str, Any], cause: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read("", options=options)
    assert cause in str(caught.value)
    assert caught.value.exit_code == 78


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("text", "where", "cause"),
    [
        ("alow: []", "1:1", 'unknown key "alow" in a policy; did you mean "allow"?'),
        (
            "allow:\n  - dest: a.com\n    port: [1]",
            "3:5",
            'unknown key "port" in an entry of allow; did you mean "ports"?',
        ),
        ("allow: [{dest: a.com, http: [{method: [GET]}]}]", "1:31", 'did you mean "methods"?'),
        ("env: {passs: []}", "1:7", 'did you mean "pass"?'),
        ("limits: {memroy: 1}", "1:10", 'did you mean "memory"?'),
        ("trace: {mod: off}", "1:9", 'did you mean "mode"?'),
        ("allow: a.com", "1:8", "allow is a single value; expected a list: [a.com]"),
        ("allow: [{dest: a.com, ports: 443}]", "1:30", "ports is a single value; expected a list: [443]"),
        ("allow: [{dest: a.com, http: [{methods: GET}]}]", "1:40", "expected a list"),
        ("allow: [{dest: a.com, http: {methods: [GET]}}]", "1:29", "http is a mapping; expected a list"),
        ("allow: [{dest: a.com, http: []}]", "1:29", "admits nothing"),
        ("allow: [{dest: a.com, http: [{}]}]", "1:30", "empty"),
        ("allow: [{dest: a.com, ports: []}]", "1:30", "admits nothing"),
        ("allow: [{dest: a.com, http: [{methods: []}]}]", "1:40", "admits nothing"),
        ("allow: [{dest: a.com, ports: [0]}]", "1:31", "not a port"),
        ("allow: [{dest: a.com, ports: [65536]}]", "1:31", "not a port"),
        ("allow: [{dest: a.com, ports: [0x50]}]", "1:31", "not a port"),
        ("allow: [{dest: a.com, ports: [80/sctp]}]", "1:31", "not tcp or udp"),
        ("allow: [{dest: a.com, ports: [true]}]", "1:31", "not a port"),
        ("allow: [{dest: 'a.com:80', ports: [81]}]", "1:16", "given twice"),
        ("allow: [{dest: a.com, ports: [53/udp], http: [{methods: [GET]}]}]", "1:16", "UDP"),
        ("allow: [{dest: a.com, http: [{paths: [/../x]}]}]", "1:39", "above the root"),
        ("allow: [{dest: a.com, http: [{methods: ['GE T']}]}]", "1:41", "not an HTTP method"),
        ("allow: [{ports: [1]}]", "1:9", 'no "dest"'),
        ("allow: [{destt: a.com}]", "1:10", 'did you mean "dest"?'),
        ("presets:", "1:9", "presets is empty; expected a list, [] for none"),
        ("allow:\n  -\n  - b.com", "2:4", "empty"),
        ("allow: ['']", "1:9", "empty"),
        ("allow: [[a.com]]", "1:9", "an entry of allow is a list"),
        ("allow: [8.8]", "1:9", "ends in a number"),
        ("deny: [{dest: a.com, insecure: true}]", "1:8", "no meaning in a deny entry"),
        ("allow: [{dest: a.com, protocol: tls}]", "1:33", 'protocol is "raw" or left out'),
        ("allow: [{dest: 'https://a.com', protocol: raw}]", "1:16", "cannot be raw as well"),
        ("allow: [{dest: a.com, inspect: true, protocol: raw}]", "1:16", "cannot be raw as well"),
        ("deny: [{dest: a.com, protocol: raw}]", "1:15", "holds for every protocol"),
        ("deny: ['tcp://a.com:9']", "1:8", "holds for every protocol"),
        ("allow: ['tcp://a.com']", "1:9", "HOST:PORT and nothing else"),
        ("allow: ['tcp://a.com:9/x']", "1:9", "is not tcp or udp"),
        ("allow: ['tcp://a.com:9/udp']", "1:9", "HOST:PORT and nothing else"),
        ("allow: ['tcp://tcp://a.com:9']", "1:9", "HOST:PORT and nothing else"),
        ("allow: [{dest: a.com, insecure: maybe}]", "1:33", "expected true or false"),
        ("allow: []\nallow: []", "2:1", "given twice; first in line 1"),
        ("ignore: []\nhide: []", "2:1", "the same"),
        ("ignore: ['a[']", "1:10", "a bracket is not closed"),
        ("ignore: ['#x']", "1:10", "comment"),
        ("ignore: [*.bak]", "1:11", 'quote a value that begins with "*"'),
        ("ignore: [{best_effort: true}]", "1:10", 'no "pattern"'),
        ("ignore: [{path: a, pattern: a}]", "1:20", "the same"),
        ("ignore: [{path: a, show: all}]", "1:26", "expected names"),
        ("readonly: [{path: a, show: names}]", "1:22", "show"),
        ("ignore: [a]\nreadonly: [a]", "2:1", "readonly, and ignored in line 1"),
        ("allow: [a.com]\ndeny: [a.com]", "2:1", "takes back all of allow"),
        ("env: {pass: [A], set: {A: 1}}", "1:1", "A is set, and passed"),
        ("mounts: [{path: a}, {path: a, mode: rw}]", "1:1", "mounted rw, and ro"),
        ("mounts: [{path: a, mode: w}]", "1:26", "expected ro, rw"),
        ("mounts: [{path: a, target: b}]", "1:17", "not an absolute path"),
        ("mounts: [{path: ~other/x}]", "1:17", "another user's home"),
        ("mounts: [{type: git-rot}]", "1:17", 'did you mean "git-root"?'),
        ("mounts: [{type: git-root, path: x}]", "1:10", "do not belong"),
        ("mounts: [../lib]", "1:10", "expected keys and values"),
        ("ports: {expose: [1, '2:1']}", "1:1", "two meanings"),
        ("ports: {expose: [1/udp]}", "1:18", "not a port"),
        ("unix_sockets: [$NOPE]", "1:16", "NOPE is not set"),
        ("unix_sockets: [rel/s]", "1:16", "not an absolute path"),
        ("unix_sockets: [{path: /s, allow: [x]}]", "1:16", "adapter"),
        ("unix_sockets: ['${X']", "1:16", "not closed"),
        ("unix_sockets: ['$']", "1:16", "without a name"),
        ("env: {pass: [1A]}", "1:14", "not the name"),
        ("env: {set: {'A B': 1}}", "1:13", "not the name"),
        ("env: {set: {A: }}", "1:16", "empty"),
        ("limits: {memory: lots}", "1:18", "not a size"),
        ("limits: {pids: 1k}", "1:16", "not a count"),
        ("limits: {memory: 1000K}", "1:18", "no program starts with '1000K'; at least 1M"),
        ("limits: {files: 15}", "1:17", "no program starts with 15 open files; at least 16"),
        ("limits: {time: 1y}", "1:16", "not a duration"),
        ("secrets: [{name: a, from: x, to: [b]}]", "1:27", "expected env:NAME"),
        ("secrets: [{name: a, to: [b]}]", "1:11", 'no "from"'),
        ("secrets: [{name: a, from: 'env:X', to: []}]", "1:40", "admits nothing"),
        ("secrets: [{name: a, from: 'env:X', to: [b], header: 'x: y'}]", "1:53", "{}"),
        ("secrets: [{name: a, from: 'env:X', to: [b], header: '*x'}]", "1:53", "a space"),
        ("secrets: [{name: a, from: 'env:X', to: [b], header: '* x y:'}]", "1:53", "'y:' is not a header name"),
        ("masks: [{env: X, to: [b], header: 'x-key'}]", "1:9", "beside those that carry credentials"),
        ("secrets: [{name: a, from: 'env:X', to: [b], query: 'x&y'}]", "1:52", "not a parameter name"),
        ("secrets: [{name: a, from: 'env:X', to: [b], query: x, header: y}]", "1:11", "expected one place"),
        ("trace: off", "1:8", "trace is a single value"),
        ("trace: {mode: loud}", "1:15", "expected auto, off"),
        ("home: mine", "1:7", "expected ephemeral, workspace, shared"),
        ("dns_resolver: one.one", "1:15", "not an address"),
        ("upstream_proxy: ftp://x:1", "1:17", "expected http://"),
        ("ssl_insecure: 'yes'", "1:15", "expected true or false"),
        ("presets: [nope]", "1:11", "there is no preset"),
        ("presets: [profiles/agent]", "1:11", "there is no preset"),
        ("profiles: [agnt]", "1:12", 'did you mean "agent"?'),
        ("command: [x]", "1:1", "unknown key"),
        ("state: [x]", "1:1", "unknown key"),
        ("- a", "1:1", "a policy is a list"),
        ("x", "1:1", "a policy is a single value"),
        ("a: &x 1\nb: *x", "1:4", "anchors and aliases"),
        ("allow: !!python/object/apply:os.system [x]", "1:8", "tag"),
        ("a: 1\n---\nb: 2", "2:1", "second document"),
        ("<<: {allow: [a]}", "1:1", "unknown key"),
        ("a:\n\t- b", "2:1", "indent with spaces"),
        ("allow: [host.internal]", "1:9", "needs ports"),
    ],
)
def test_error_has_place_and_cause(text: str, where: str, cause: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read(text)
    assert caught.value.where == f"f.yaml:{where}"
    assert cause in caught.value.cause
    assert caught.value.exit_code == 78


@pytest.mark.parametrize("text", ["[" * 100_000, "- " * 100_000, "{a: " * 100_000, "a: \x01", "'\ud800'", "a: 'x"])
def test_parser_bombs_and_broken_text_are_policy_errors(text: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read(text)
    assert caught.value.where.startswith("f.yaml")


def test_empty_file_and_comments_are_no_error() -> None:
    for text in ("", "# only a comment\n", "---\n", "null\n"):
        assert read(text).policy.allow == read("presets: [default]").policy.allow


def test_unknown_limit() -> None:
    with pytest.raises(Malformed, match="memory"):
        parse_limit("mem=1")


# ---------------------------------------------------------------- a project file


@pytest.mark.parametrize(
    "text",
    [
        "ignore: [a]",
        "readonly: [a]",
        "deny: [a.com, '**']",
        "limits: {memory: 1G, pids: 5}",
        "ssl_insecure: false",
        "home: ephemeral",
        "home: workspace",
        "view: project",
        "workspace: live",
        "trace: {mode: required}",
        "presets: [default]",
    ],
)
def test_project_key_that_tightens(text: str) -> None:
    assert read(text, level="project").widening == ()


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ("allow:\n  - a.com", "allow", 2),
        ("ignore: [a]\nreadonly:\n  - '!a'", "readonly", 3),
        ("ignore: ['!.env']", "ignore", 1),
        ("mounts: [{path: x}]", "mounts", 1),
        ("unix_sockets: [/s]", "unix_sockets", 1),
        ("ports: {expose: [1]}", "ports.expose", 1),
        ("ports: {connect: [1]}", "ports.connect", 1),
        ("secrets: [{name: a, from: 'env:X', to: [b.com]}]", "secrets", 1),
        ("env: {pass: [X]}", "env.pass", 1),
        ("env:\n  set:\n    X: 1", "env.set", 3),
        ("ssl_insecure: true", "ssl_insecure", 1),
        ("home: shared", "home", 1),
        ("view: host", "view", 1),
        ("trace: {mode: off}", "trace.mode", 1),
        ("trace: {http: full}", "trace.http", 1),
        ("trace: {keep: 1}", "trace.keep", 1),
        ("dns_resolver: 9.9.9.9", "dns_resolver", 1),
        ("upstream_proxy: env", "upstream_proxy", 1),
        ("extra_ca: [x.pem]", "extra_ca", 1),
        ("profiles: [agent]", "profiles", 1),
        ("presets: [two]", "presets", 1),
        ("ignore:\n  - {path: .env, show: names}", "ignore", 2),
    ],
)
def test_project_key_that_widens(text: str, key: str, line: int) -> None:
    (widening,) = read(text, level="project").widening
    assert (widening.key, widening.line) == (key, line)
    assert widening.text
    assert read(text, level="user").widening == ()


def test_project_limit_widens_only_above_the_users() -> None:
    def widening(user: str, project: str) -> int:
        sources = [
            Source("user", "u", f"limits: {{memory: {user}}}"),
            Source("project", "p", f"limits: {{memory: {project}}}"),
        ]
        return len(load(sources, presets=PRESETS).widening)

    assert widening("2G", "1G") == 0
    assert widening("2G", "2G") == 0
    assert widening("2G", "3G") == 1
    assert widening("2G", "0") == 1, "0 is no limit"


def test_project_scalar_widens_against_the_user() -> None:
    sources = [
        Source("user", "u", "home: ephemeral"),
        Source("project", "p", "home: workspace"),
    ]
    assert [each.key for each in load(sources, presets=PRESETS).widening] == ["home"]


def test_widening_shows_all_of_an_entry() -> None:
    text = "allow:\n  - dest: a.com\n    ports:\n      - 22\n    # why\n  - b.com\n"
    first, second = read(text, level="project").widening
    assert first.text == "- dest: a.com\nports:\n- 22"
    assert (second.line, second.text) == (6, "- b.com")


def test_widening_lines_can_not_be_shifted_by_odd_line_breaks() -> None:
    # YAML counts CR, NEL, LS and PS as line breaks; whoever splits at LF only would show an innocent line.
    text = "ignore: [a]\r# x\u2028# y\u2029# z\x85allow: [evil.example]\n# harmless\n# harmless\n"
    (widening,) = read(text, level="project").widening
    assert (widening.line, widening.text) == (5, "allow: [evil.example]")


def test_widening_shows_the_value_that_escapes_hide() -> None:
    (widening,) = read('allow: ["\\x65vil.example"]', level="project").widening
    assert widening.text.endswith("= evil.example")


# ---------------------------------------------------------------- warnings, imports


def test_wide_rules_warn() -> None:
    assert "every host" in read("allow: ['**']").warnings[0]
    assert "private" in read("allow: ['0.0.0.0/0']").warnings[0]
    assert read("allow: ['10.0.0.0/8', a.com]").warnings == ()


@pytest.mark.parametrize("entry", ["localhost:5432", "db.localhost:5432", "127.0.0.1:5432", "127.0.0.0/8", "::1"])
def test_a_rule_about_the_loopback_of_the_sandbox_warns(entry: str) -> None:
    (warning,) = read(f"allow: ['{entry}']").warnings
    assert "host.internal" in warning and entry in warning
    assert load([], presets=PRESETS, options={"allow": (entry,)}).warnings == (
        warning.replace(warning.partition(": ")[0], "command line"),
    )
    assert read(f"deny: ['{entry}']").warnings == ()
    assert read("allow: ['host.internal:5432', '126.0.0.0/8', 'localhost.example']").warnings == ()


@pytest.mark.parametrize("pattern", ["~/.ssh", "!~/.ssh", "~", "/home/me/.ssh", "/home/me", "/home/me/project/keys/"])
def test_a_pattern_that_is_meant_as_a_path_of_the_machine_is_refused(pattern: str) -> None:
    """It would match nothing, and who wrote it would believe that it does."""
    for key in ("ignore", "readonly"):
        with pytest.raises(PolicyError, match="about the workspace"):
            load([Source("user", "p.yaml", f"{key}: ['{pattern}']")], presets=PRESETS, home="/home/me")
        with pytest.raises(PolicyError, match="about the workspace"):
            load([], presets=PRESETS, options={key: (pattern,)}, home="/home/me")
    for fine in ("/home/", "home/me", "/home/mean", "x~/y", "~x", "**/~"):
        load([Source("user", "p.yaml", f"ignore: ['{fine}']")], presets=PRESETS, home="/home/me")


@pytest.mark.parametrize(
    ("key", "program"),
    [("network", "srt"), ("permissions", "claude"), ("hostnames", "cagent"), ("sandbox_mode", "codex")],
)
def test_the_settings_of_another_program_are_named_with_what_reads_them(key: str, program: str) -> None:
    with pytest.raises(PolicyError, match=f"membrane config import {program} FILE") as caught:
        read(f"allow: []\n{key}: {{}}")
    assert caught.value.where.endswith(":2:1")


def test_restore_refuses_other_layouts() -> None:
    import marshal

    data = codec.dump(policy("allow: [a.com]"))
    assert codec.restore(data).allow[-1].text == "a.com"
    for broken in (b"", data[:-10], marshal.dumps((("membrane policy 0", ()), [])), marshal.dumps(5)):
        with pytest.raises(ValueError, match="policy"):
            codec.restore(broken)


def test_restoring_a_policy_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom membrane.policy import codec\nfrom membrane.policy.model import Policy\n"
        "codec.restore(codec.dump(Policy()))\n"
        "heavy = ['yaml', 're', 'ipaddress', 'idna', 'hashlib']\n"
        "heavy += ['membrane.policy.' + name for name in ('hosts', 'url_paths', 'globs')]\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.strip() == "[]"


# ---------------------------------------------------------------- Membrane's files


@pytest.mark.parametrize("key", ["allow", "deny", "ignore", "sealed", "readonly", "mounts", "args", "dns_resolver"])
@pytest.mark.parametrize("nothing", ["", " ~", " null"])
def test_an_empty_key_of_the_file_format_is_as_if_it_were_not_there(key: str, nothing: str) -> None:
    for level in ("user", "project"):
        got, without = read(f"{key}:{nothing}\n", level=level), read("", level=level)
        assert got.policy.replace(digest="") == without.policy.replace(digest="")
        assert got.widening == ()


@pytest.mark.parametrize("text", ["", "allow:", "allow: []"])
def test_no_list_of_allow_still_opens_nothing(text: str) -> None:
    assert read(text, options={"no_presets": True}).policy.allow == ()
    assert allowed("allow: [a.example]", options={"no_presets": True}) == ["a.example"]


def test_args_are_translated() -> None:
    text = """args:
- -e
- MODE=a b
- -ePASSED
- --env=X=$SET
- -v
- $HOME/.aws:/home/agent/.aws:ro
- --volume=/srv/data:/data
- -m 2g
- --pids-limit=100
"""
    got = read(text, home="/home/u", environ={"HOME": "/home/u", "SET": "1"}).policy
    assert [(rule.name, rule.value) for rule in got.env] == [("MODE", "a b"), ("PASSED", None), ("X", "1")]
    assert [(rule.path, rule.target, rule.mode) for rule in got.mounts] == [
        ("/home/u/.aws", "/home/u/.aws", "ro"),
        ("/srv/data", "/data", "rw"),
    ]
    assert (got.limits.memory, got.limits.pids) == (2 << 30, 100)


def test_arg_options_are_translated() -> None:
    got = policy("", options={"args": ("-e", "A=1", "--memory=512mb", "-v", "/x:/workspace/y"), "directory": "/w"})
    assert [(rule.name, rule.value) for rule in got.env] == [("A", "1")]
    assert [(rule.path, rule.target, rule.mode) for rule in got.mounts] == [("/x", "/w/y", "rw")]
    assert got.limits.memory == 512 << 20
    with pytest.raises(PolicyError, match=r"--arg '--privileged': .* without a key here") as caught:
        policy("", options={"args": ("-e", "A=1", "--privileged")})
    assert caught.value.exit_code == 78


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("args: [-v, '/x:/x:ro', -v, '/x:/x']", {}),
        ("args: [-v, '/x:/x']\nmounts: [{path: /x, mode: ro}]", {}),
        ("", {"mounts": ("/x:ro",), "args": ("-v", "/x:/x")}),
    ],
)
def test_an_argument_does_not_open_what_is_mounted_read_only_beside_it(text: str, options: dict[str, object]) -> None:
    with pytest.raises(PolicyError, match=r'"/x" is mounted r[ow], and r[ow] '):
        policy(text, options=options)
    control = {name: tuple(word + ":ro" * (word == "/x:/x") for word in words) for name, words in options.items()}  # type: ignore[attr-defined]
    assert policy(text.replace("'/x:/x'", "'/x:/x:ro'"), options=control).mounts


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        ("args: [-e, A=1, --privileged]", "1:17", "'--privileged' is an argument of docker run without a key here"),
        ("args:\n- -p\n- 8000:8000", "2:3", "use ports: {expose: [PORT]}"),
        ("args: [--network=host]", "1:8", "use allow: [HOST]"),
        ("args: [--read-only]", "1:8", "use readonly:"),
        ("args: [alpine]", "1:8", "'alpine' is not an option"),
        ("args:\n- -e", "2:3", "'-e' has no value"),
        ("args: [-v, 'data:/data']", "1:12", "the name of a volume"),
        ("args: [-v, '/a:/b:nocopy']", "1:12", "'nocopy' has no meaning here"),
        ("args: [-v, /a]", "1:12", "is not SOURCE:TARGET"),
        ("args: [-v, '$NOT_SET:/b']", "1:12", "NOT_SET"),
        ("args: [-m, lots]", "1:12", "size"),
        ("args: [--pids-limit, many]", "1:22", "count"),
        ("args: -e", "1:7", "expected a list"),
    ],
)
def test_args_that_can_not_be_translated_stop_the_run(text: str, where: str, said: str) -> None:
    """Who relies on one must not be run without it; the error names the place and what to use."""
    with pytest.raises(PolicyError) as caught:
        read(text)
    assert f":{where}" in str(caught.value)
    assert said in str(caught.value)
    assert caught.value.exit_code == 78


def test_args_of_a_project_file_widen() -> None:
    for text, line in (("args: [-v, '/:/host:rw']", 1), ("args:\n- -e\n- LD_PRELOAD=/x", 3), ("args:\n- -eTOKEN", 2)):
        assert [(each.key, each.line) for each in read(text, level="project").widening] == [("args", line)]
        assert read(text, level="user").widening == ()
    below = [
        Source("user", "u", "limits: {memory: 1G, pids: 9}"),
        Source("project", "p", "args: [-m2g, --pids-limit=-1]"),
    ]
    assert [each.key for each in load(below, presets=PRESETS).widening] == ["args", "args"]
    tighter = [below[0], Source("project", "p", "args: [-m512m, --pids-limit=8]")]
    assert load(tighter, presets=PRESETS).widening == ()


def test_sealed_is_ignore() -> None:
    got = policy("sealed: [secrets/]", options={"sealed": ("*.pem",)})
    assert [(rule.text, rule.effect) for rule in got.paths][-2:] == [("secrets/", "hide"), ("*.pem", "hide")]
    with pytest.raises(PolicyError, match='"ignore" and "sealed" are the same'):
        read("ignore: [a]\nsealed: [b]")


def test_an_empty_list_of_presets_in_a_project_file_closes_the_built_in_hosts() -> None:
    """It only tightens, so it needs no approval; the user's own hosts, and what lists hide, stay."""
    mine = Source("user", "u.yaml", "allow: [mine.example]\n")
    project = Source("project", "p.yaml", "presets: []\n")
    got = load([mine, project], presets=PRESETS, command="agent")
    assert [rule.text for rule in got.policy.allow] == ["mine.example"] and got.widening == ()
    assert [rule.text for rule in got.policy.paths] == [".env", "!.env.example"]
    control = load([mine], presets=PRESETS, command="agent").policy
    assert [rule.text for rule in control.allow] == ["one.example:443", "agent.example:443", "mine.example"]
    again = load([mine, project], presets=PRESETS, options={"presets": ("one",), "profile": "agent"})
    assert {rule.text for rule in again.policy.allow} == {"one.example:443", "agent.example:443", "mine.example"}


def test_without_the_global_file_no_built_in_host_is_open() -> None:
    options = {"no_global_config": True}
    assert allowed("") == ["one.example:443"]
    got = policy("", options=options, command="agent")
    assert got.allow == ()
    assert got.profiles == ("agent",)
    assert [rule.text for rule in got.paths] == [".env", "!.env.example"]  # what protects stays
    assert allowed("", options={**options, "presets": ("one",)}) == ["one.example:443"]
    assert allowed("", options={**options, "profile": "agent"}) == ["agent.example:443"]
    named = read("presets: [one]", level="project", options=options)
    assert [each.key for each in named.widening] == ["presets"]
