"""Settings of sandbox-runtime: the grammar's vectors, what a policy of them decides, the tables of default paths."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membrane.errors import PolicyError
from membrane.policy import files
from membrane.policy.codec import dump, restore
from membrane.policy.decide import decide
from membrane.policy.literals import canonical_address
from membrane.policy.model import Allow, Connect, FileRule, NameQuery, Origin, PathAccess
from membrane.srt import settings as srt

HERE = Origin("user", "settings.json")


def converted(network: dict[str, Any] | None = None, filesystem: dict[str, Any] | None = None, **more: Any) -> Any:
    environ = more.pop("environ", {"PATH": "/bin", "TOKEN": "x", "HTTP_PROXY": ""})
    data = {
        "network": {"allowedDomains": [], "deniedDomains": [], **(network or {})},
        "filesystem": {"denyRead": [], "allowWrite": [], "denyWrite": [], **(filesystem or {})},
        **more,
    }
    return srt.convert(srt.check(data, "settings.json"), environ=environ, home="/home/u", base="/w")


@pytest.mark.parametrize(
    ("host", "entry", "matches"),
    [
        ("API.Example.com", "api.example.com", True),
        ("a.example.com", "*.example.com", True),
        ("a.b.example.com", "*.example.com", True),
        ("example.com", "*.example.com", False),
        ("notexample.com", "*.example.com", False),
        ("example.com.evil.org", "example.com", False),
    ],
)
def test_domain_match(host: str, entry: str, matches: bool) -> None:
    policy = converted({"allowedDomains": [entry]}).policy
    assert isinstance(decide(policy, NameQuery(host)), Allow) is matches
    assert isinstance(decide(policy, Connect(host, "", 443)), Allow) is matches


@pytest.mark.parametrize(
    ("text", "address"),
    [
        *((text, "127.0.0.1") for text in ("127.1", "2130706433", "0x7f.0.0.1", "0177.0.0.1", "::ffff:127.0.0.1")),
        ("2852039166", "169.254.169.254"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("[::1]", "::1"),
        *((text, "") for text in ("Example.COM.", "not a host", "1.2.3.4.5", "256.1.1.1", "1.2.3.256", "", "a.1")),
    ],
)
def test_canonical_address(text: str, address: str) -> None:
    assert canonical_address(text) == address


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_every_spelling_of_an_address_is_one(number: int) -> None:
    dotted = ".".join(str(number >> shift & 255) for shift in (24, 16, 8, 0))
    assert canonical_address(dotted) == canonical_address(str(number)) == canonical_address(hex(number)) == dotted


def test_deny_wins_and_star_denies_all() -> None:
    policy = converted({"allowedDomains": ["a.example.com"], "deniedDomains": ["*"]}).policy
    assert not isinstance(decide(policy, Connect("a.example.com", "", 443)), Allow)


def test_localhost_is_the_loopback_of_the_host() -> None:
    policy = converted({"allowedDomains": ["localhost:3000"]}).policy
    assert isinstance(decide(policy, Connect("host.internal", "127.0.0.1", 3000)), Allow)
    assert not isinstance(decide(policy, Connect("host.internal", "127.0.0.1", 3001)), Allow)
    assert not isinstance(decide(policy, Connect("a.example.com", "127.0.0.1", 3000)), Allow)


def test_denied_resolved_address() -> None:
    policy = converted({"allowedDomains": ["a.example.com"], "deniedResolvedAddresses": ["93.184.0.0/16"]}).policy
    assert isinstance(decide(policy, Connect("a.example.com", "8.8.4.4", 443)), Allow)
    assert not isinstance(decide(policy, Connect("a.example.com", "93.184.216.1", 443)), Allow)


def test_terminated_tls_leaves_other_ports_alone() -> None:
    network = {
        "allowedDomains": ["a.example.com", "b.example.com"],
        "tlsTerminate": {"excludeDomains": ["b.example.com"]},
    }
    policy = converted(network).policy
    inspected = {
        (host, port): decide(policy, Connect(host, "", port)).inspect  # type: ignore[union-attr]
        for host in ("a.example.com", "b.example.com")
        for port in (22, 443)
    }
    assert [key for key, value in inspected.items() if value] == [("a.example.com", 443)]


def test_excluded_domain_below_a_terminated_wildcard_stops_the_run() -> None:
    with pytest.raises(PolicyError, match="excludeDomains"):
        converted({"allowedDomains": ["*.example.com"], "tlsTerminate": {"excludeDomains": ["a.example.com"]}})


def test_credentials() -> None:
    made = converted(
        {"allowedDomains": ["api.example.com"], "tlsTerminate": {}},
        environ={"TOKEN": "x", "HIDDEN": "y", "OTHER": "z"},
        credentials={
            "envVars": [
                {"name": "TOKEN", "mode": "mask", "injectHosts": ["api.example.com"]},
                {"name": "HIDDEN", "mode": "deny"},
            ],
            "files": [{"path": "~/.netrc", "mode": "deny"}],
        },
    ).policy
    assert [(rule.name, rule.to) for rule in made.secrets] == [("TOKEN", ("api.example.com",))]
    passed = {rule.name for rule in made.env if rule.value is None}
    assert passed == {"OTHER"}
    assert not isinstance(decide(made, PathAccess("/home/u/.netrc")), Allow)


def test_mask_needs_terminated_tls() -> None:
    with pytest.raises(srt.SettingsError, match="tlsTerminate"):
        converted(credentials={"envVars": [{"name": "A", "mode": "mask"}]})


@pytest.mark.parametrize(
    ("parent", "environ", "expected"),
    [
        ({"https": "http://p.corp:1"}, {"HTTPS_PROXY": "http://e.corp:1"}, "http://p.corp:1"),
        ({"http": "p.corp:3128"}, {}, "http://p.corp:3128"),
        ({}, {"https_proxy": "http://e.corp:1"}, "http://e.corp:1"),
        ({}, {"HTTP_PROXY": "http://e.corp:1"}, "http://e.corp:1"),
        ({}, {"HTTPS_PROXY": "socks5://e.corp:1"}, ""),
        ({}, {}, ""),
    ],
)
def test_parent_proxy(parent: dict[str, str], environ: dict[str, str], expected: str) -> None:
    made = converted({"parentProxy": parent} if parent else None, environ=environ)
    assert dict(made.proxies).get("HTTPS_PROXY", "") == expected
    assert made.policy.upstream_proxy == ("env" if expected else "")


def test_external_proxy_port() -> None:
    policy = converted({"httpProxyPort": 8080}).policy
    assert policy.upstream_proxy == "http://127.0.0.1:8080"
    assert isinstance(decide(policy, Connect("any.example.com", "", 443)), Allow)


BOTH = ["/tmp/claude", "/home/u/.npm/_logs", "/home/u/.claude/debug"]


@pytest.mark.parametrize(
    ("denied", "reopened", "kept"),
    [
        *(([entry], [], BOTH[:1]) for entry in ("~", "~/", "~/**", "/", "/**")),
        *(([entry], [], BOTH) for entry in ("/dev", "~/.npmrc", "~/.np", "~/**/*.log", "~/backup[2024-01-15]")),
        *(([entry], [], [BOTH[0], BOTH[2]]) for entry in ("~/.npm/_logs", "~/.n*", "~/.np?", "~/**/_logs")),
        (["~"], ["~/.claude"], [BOTH[0], BOTH[2]]),
        (["~/.npm"], ["~"], [BOTH[0], BOTH[2]]),
        (["~"], ["~/.cl*"], BOTH[:1]),
    ],
    ids=str,
)
def test_default_write_paths(denied: list[str], reopened: list[str], kept: list[str]) -> None:
    assert list(srt.default_write_paths(denied, reopened, "/home/u")) == kept


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        *(("/t/*.env", f"/t/{name}", True) for name in ("token.env", "secrets.env")),
        *(("/t/*.env", f"/t/{name}", False) for name in ("readme.txt", "sub/token.env")),
        *(("/t/**/*.env", f"/t/{name}", True) for name in ("token.env", "sub/a.env", "sub/deep/a.env")),
        ("/t/**/*.env", "/t/readme.txt", False),
        *(("/t/file?.txt", f"/t/file{name}.txt", True) for name in "1A"),
        *(("/t/file?.txt", f"/t/file{name}.txt", False) for name in ("12", "/")),
        *(("/t/**", f"/t/{name}", True) for name in ("a", "a/b/c")),
        ("/t/[!a]x", "/t/!x", True),
        ("/t/[!a]x", "/t/bx", False),
        ("/t/[]x", "/t/[]x", True),
        ("/t/[z-a]x", "/t/[z-a]x", True),
        ("/t/a\\*", "/t/a\\b", True),
    ],
)
def test_glob(glob: str, path: str, matches: bool) -> None:
    covering = files.Covering([files.file_rule("deny-read", glob, "/home/u", "/w", HERE)])
    assert covering.access(path)[0] is not matches


def test_glob_that_no_rule_can_hold() -> None:
    with pytest.raises(PolicyError, match="whole directories"):
        converted(filesystem={"denyRead": ["/t/a**b"]})


def access(path: str, **lists: list[str]) -> tuple[bool, bool]:
    policy = converted(filesystem={"denyRead": [], "allowWrite": [], "denyWrite": [], **lists}).policy
    read = isinstance(decide(policy, PathAccess(path)), Allow)
    return read, isinstance(decide(policy, PathAccess(path, "write")), Allow)


@pytest.mark.parametrize(
    ("path", "lists", "expected"),
    [
        ("/w/a", {"allowWrite": ["."]}, (True, True)),
        ("a", {"allowWrite": ["."]}, (True, True)),
        ("/x", {"allowWrite": ["."]}, (True, False)),
        ("/w/f", {"allowWrite": ["."], "denyWrite": ["f"]}, (True, False)),
        ("/w/a/b", {"allowWrite": ["a"], "denyWrite": ["."]}, (True, False)),
        ("/w/s/k", {"denyRead": ["s"]}, (False, False)),
        ("/w/s/o/f", {"denyRead": ["s"], "allowRead": ["s/o"]}, (True, False)),
        ("/w/s/o/c", {"denyRead": ["s", "s/o/c"], "allowRead": ["s/o"]}, (False, False)),
        ("/w/s", {"denyRead": ["s"], "allowRead": ["."]}, (False, False)),
        ("/w/s", {"denyRead": ["s"], "allowRead": ["s"]}, (True, False)),
        ("/w/s/w/f", {"denyRead": ["s"], "allowWrite": ["s/w"]}, (True, True)),
        ("/w/s/x", {"denyRead": ["s"], "allowWrite": ["."]}, (False, False)),
        ("/w/f", {"denyRead": ["f"], "denyWrite": ["f"], "allowWrite": ["."]}, (False, False)),
        ("/d/x", {"allowWrite": ["/d/**"]}, (True, True)),
        ("/w/../x", {"allowWrite": ["/x"]}, (False, False)),
    ],
)
def test_file_rules(path: str, lists: dict[str, list[str]], expected: tuple[bool, bool]) -> None:
    assert access(path, **lists) == expected


NAMES = st.sampled_from(["a", "b", "c", "a.env", "b.env"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
ENTRIES = st.one_of(PATHS, PATHS.map(lambda path: f"{path}/*.env"), st.just("**/*.env"), st.just("a/?"))
LISTS = st.lists(ENTRIES, max_size=4)


@settings(deadline=None, max_examples=60)
@given(LISTS, LISTS, LISTS, LISTS, PATHS)
def test_rules_are_an_unordered_set_and_denies_only_take_away(
    denied: list[str], opened: list[str], writable: list[str], fixed: list[str], path: str
) -> None:
    def ask(*, deny: list[str], fix: list[str]) -> tuple[bool, bool]:
        return access(f"/w/{path}", denyRead=deny, allowRead=opened, allowWrite=writable, denyWrite=fix)

    one = ask(deny=denied, fix=fixed)
    assert ask(deny=denied[::-1], fix=fixed[::-1]) == one
    assert one[0] or not one[1]
    assert ask(deny=[*denied, path], fix=[*fixed, path])[1] is False
    if path not in opened and not any(files.is_glob(entry) for entry in (*opened, *writable)):
        deeper = any(len(entry.split("/")) >= len(path.split("/")) for entry in (*opened, *writable))
        assert deeper or not ask(deny=[*denied, path], fix=fixed)[0]


@settings(deadline=None, max_examples=60)
@given(LISTS, LISTS, st.lists(NAMES, min_size=1, max_size=3))
def test_residues_hold_inside_a_root_what_the_rules_say(denied: list[str], fixed: list[str], names: list[str]) -> None:
    from membrane.policy.globs import Pattern

    path = "/w/root/" + "/".join(names)
    for entry in (*denied, *fixed):
        rule = files.file_rule("deny-read", entry, "/h", "/w/root", HERE)
        inside, covers = files.residues(rule, "/w/root")
        held = any(
            Pattern(text).matches(names[depth - 1], "/".join(names[:depth]), True)
            for text in inside
            for depth in range(1, len(names) + 1)
        )
        assert (held or covers) is not files.Covering([rule]).access(path)[0]


@settings(deadline=None, max_examples=60)
@given(st.text(string.printable, min_size=1, max_size=8).filter(lambda t: "/" not in t and t not in (".", "..")))
def test_quoted_name_matches_itself_alone(name: str) -> None:
    rule = FileRule("deny-read", f"/t/{name}", name, HERE)
    inside, covers = files.residues(rule, "/t")
    from membrane.policy.globs import Pattern

    assert not covers and Pattern(inside[0]).matches(name, name, False)
    assert not Pattern(inside[0]).matches(name + "x", name + "x", False)


def test_policy_survives_the_codec() -> None:
    policy = converted({"allowedDomains": ["a.example.com"]}, {"denyRead": ["**/*.env"], "allowWrite": ["."]}).policy
    assert restore(dump(policy)) == policy


KEYS = st.sampled_from(["network", "filesystem", "credentials", "denyRead", "x"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


@settings(deadline=None, max_examples=60)
@given(JSON)
def test_any_json_is_settings_or_an_error(data: Any) -> None:
    try:
        srt.check(data, "settings.json")
    except srt.SettingsError as error:
        assert error.exit_code == 1 and "settings.json" in error.headline()


def test_duplicate_keys_and_constants_are_refused() -> None:
    for text in ('{"network": {}, "network": {}}', '{"mandatoryDenySearchDepth": NaN}', "[" * 100000):
        with pytest.raises(srt.SettingsError):
            srt.read(text, "settings.json")


def test_an_authority_of_the_caller_is_named_and_its_key_hidden() -> None:
    network = {"tlsTerminate": {"caCertPath": "~/ca.pem", "caKeyPath": "keys/ca.key"}}
    found = converted(network, {"denyRead": [], "allowRead": [], "allowWrite": ["."], "denyWrite": []})
    policy = restore(dump(found.policy))
    assert policy.authority == ("/home/u/ca.pem", "/w/keys/ca.key")
    assert not isinstance(decide(policy, PathAccess("/w/keys/ca.key")), Allow)
    assert isinstance(decide(policy, PathAccess("/home/u/ca.pem")), Allow)
    assert isinstance(decide(policy, PathAccess("/w/keys/other")), Allow)
    opened = {"denyRead": ["/w/keys"], "allowRead": ["/w/keys/ca.key"], "allowWrite": [], "denyWrite": []}
    with pytest.raises(PolicyError, match="caKeyPath"):
        converted(network, opened)


@pytest.mark.parametrize(
    ("given", "first"),
    [({}, 0), ({"GIT_CONFIG_COUNT": "2"}, 2), ({"GIT_CONFIG_COUNT": "x"}, 0), ({"GIT_CONFIG_COUNT": "0"}, None)],
)
def test_safe_directories_come_behind_what_the_caller_has(given: dict[str, str], first: int | None) -> None:
    policy = converted(git={"safeDirectories": ["/x", "/x/", "/"]}, environ={"PATH": "/bin", **given}).policy
    env = {rule.name: rule.value for rule in policy.env if rule.name.startswith("GIT_CONFIG_") and rule.value}
    if first is None:
        assert not env  # the caller wants none from the environment
        return
    values = ["/x", "/x/*", "/", "/*"]
    assert env.pop("GIT_CONFIG_COUNT") == str(first + 4)
    assert [env.pop(f"GIT_CONFIG_VALUE_{first + n}") for n in range(4)] == values
    assert {env.pop(f"GIT_CONFIG_KEY_{first + n}") for n in range(4)} == {"safe.directory"} and not env
