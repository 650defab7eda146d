"""What holds for every policy and every question."""

from __future__ import annotations

import ipaddress
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from membrane.errors import PolicyError
from membrane.gateway.budgets import Budget, Ledger
from membrane.policy import codec
from membrane.policy.decide import Decider
from membrane.policy.document import parse
from membrane.policy.globs import Pattern, compile_patterns
from membrane.policy.grammar import host_rule
from membrane.policy.hosts import (
    address_class,
    canonical_host,
    format_address,
    judged_forms,
    parse_address,
    wildcard_matches,
    wildcard_suffixes,
)
from membrane.policy.load import Source, load
from membrane.policy.model import (
    Allow,
    Connect,
    Deny,
    HostRule,
    HttpRequest,
    Malformed,
    NameQuery,
    Origin,
    PathAccess,
    Policy,
    RuleBudget,
    SocketAccess,
)
from membrane.policy.reasons import REASONS
from membrane.policy.url_paths import canonical_path, canonical_path_pattern, path_matcher

LOOSE = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])

WHERE = Origin("library", "test")

# ---------------------------------------------------------------- strategies: small worlds, so that things meet

NAMES = st.sampled_from(["a.example", "b.a.example", "example", "host.internal", "x.internal", "evil.test"])
ADDRESSES = st.sampled_from(
    [
        "8.8.8.8",
        "10.0.0.1",
        "127.0.0.1",
        "169.254.169.254",
        "::1",
        "fe80::1",
        "2606:4700::1",
        "::ffff:10.0.0.1",
        "64:ff9b::8.8.8.8",
        "64:ff9b::a9fe:a9fe",
        "100.100.100.200",
        "2002:a00:1::1",
    ]
)
PORTS = st.sampled_from([22, 53, 80, 443, 8080])
PATHS = st.sampled_from(["/", "/v1", "/v1/", "/v1/x", "/v10", "/v1/x/y", "/a%21b", "/admin"])
METHODS = st.sampled_from(["GET", "POST", "TRACE"])
DESTINATIONS = st.one_of(
    st.sampled_from(["**", "*.example.test", "*.a.example", "*.x.internal", "host.internal:80"]),
    st.builds(str, NAMES.filter(lambda name: name != "host.internal")),
    st.builds(lambda name, port: f"{name}:{port}", NAMES, PORTS),
    st.builds(lambda name, port: f"{name}:{port}/udp", NAMES, PORTS),
    st.sampled_from(["8.8.8.8", "10.0.0.0/8", "0.0.0.0/0", "127.0.0.1", "169.254.169.0/24", "169.254.0.0/16", "::/0"]),
    st.sampled_from(["64:ff9b::/96", "[::1]:80", "fe80::/64", "fe80::/10", "8.8.0.0/16"]),
    st.builds(lambda name, path: f"https://{name}{path}", NAMES, PATHS),
    st.builds(lambda name, path: f"http://{name}:8080{path}", NAMES, PATHS),
)
HTTP = st.none() | st.lists(
    st.tuples(st.lists(METHODS, max_size=2).map(tuple), st.lists(PATHS, max_size=2).map(tuple)), min_size=1, max_size=2
).map(tuple)
BUDGETS = st.one_of(
    st.builds(RuleBudget, upload=st.integers(1, 3)),
    st.builds(RuleBudget, requests=st.integers(1, 3)),
    st.builds(RuleBudget, rate=st.integers(1, 2), period=st.just(60)),
    st.builds(RuleBudget, st.integers(0, 3), st.integers(1, 3), st.integers(1, 2), st.just(1)),
)


@st.composite
def rules(draw: Any, deny: bool) -> HostRule:
    text = draw(DESTINATIONS)
    http = None if text.endswith("/udp") else draw(HTTP)
    budget = None if deny else draw(st.none() | BUDGETS)
    if budget is not None and text.endswith("/udp"):
        budget = RuleBudget(upload=budget.upload or 1)
    return host_rule(text, WHERE, deny=deny, http=http, budget=budget)


@st.composite
def policies(draw: Any) -> Policy:
    allow = draw(st.lists(rules(deny=False), max_size=5))
    deny = draw(st.lists(rules(deny=True), max_size=2))
    return Policy(allow=tuple(allow), deny=tuple(deny))


QUESTIONS = st.one_of(
    st.builds(NameQuery, NAMES | ADDRESSES, st.sampled_from(["A", "AAAA", "TXT"])),
    st.builds(Connect, NAMES, st.just("") | ADDRESSES, PORTS, st.sampled_from(["tcp", "udp"])),
    st.builds(Connect, st.just(""), ADDRESSES, PORTS, st.sampled_from(["tcp", "udp"])),
    st.builds(HttpRequest, NAMES | ADDRESSES, PORTS, st.sampled_from(["http", "https"]), METHODS, PATHS),
)
ANY_QUESTION = st.one_of(
    QUESTIONS,
    st.builds(NameQuery, st.text(), st.text()),
    st.builds(Connect, st.text(), st.text(), st.integers(-1, 70000), st.sampled_from(["tcp", "udp", "sctp"])),
    st.builds(HttpRequest, st.text(), st.integers(-1, 70000), st.sampled_from(["http", "https"]), st.text(), st.text()),
    st.builds(PathAccess, st.text(), st.sampled_from(["read", "write"]), st.booleans()),
    st.builds(SocketAccess, st.text()),
)


def allows(policy: Policy, question: Any) -> bool:
    return isinstance(Decider(policy).decide(question), Allow)


# ---------------------------------------------------------------- decide


@LOOSE
@given(policies(), rules(deny=True), QUESTIONS, st.integers(0, 3))
def test_adding_a_deny_never_widens(policy: Policy, rule: HostRule, question: Any, at: int) -> None:
    more = policy.replace(deny=(*policy.deny[:at], rule, *policy.deny[at:]))
    if allows(more, question):
        assert allows(policy, question)
        before = Decider(policy).decide(question)
        after = Decider(more).decide(question)
        assert isinstance(before, Allow)
        assert isinstance(after, Allow)
        assert after.inspect or not before.inspect


@LOOSE
@given(policies(), st.data(), QUESTIONS)
def test_removing_an_allow_never_widens(policy: Policy, data: Any, question: Any) -> None:
    if not policy.allow:
        return
    at = data.draw(st.integers(0, len(policy.allow) - 1))
    fewer = policy.replace(allow=policy.allow[:at] + policy.allow[at + 1 :])
    if allows(fewer, question):
        assert allows(policy, question)


@LOOSE
@given(policies(), st.data(), st.lists(st.tuples(QUESTIONS, st.integers(0, 2)), min_size=1, max_size=8))
def test_adding_a_budget_never_widens(policy: Policy, data: Any, questions: list[tuple[Any, int]]) -> None:
    """Neither what is decided nor what is counted: of one course of events, no more passes with the budget."""
    if not policy.allow:
        return
    at = data.draw(st.integers(0, len(policy.allow) - 1))
    rule = policy.allow[at]
    budget = data.draw(BUDGETS)
    if rule.budget is not None or (budget.counts_requests and any(port.protocol == "udp" for port in rule.ports)):
        return
    tighter = policy.replace(allow=(*policy.allow[:at], rule.replace(budget=budget), *policy.allow[at + 1 :]))
    before, after = Decider(policy), Decider(tighter)
    free, counted = Ledger(Budget(), lambda: 0.0), Ledger(Budget(), lambda: 0.0)
    for question, octets in questions:
        was, now = before.decide(question), after.decide(question)
        if isinstance(now, Allow):
            assert isinstance(was, Allow)
            assert now.inspect or not was.inspect
            assert {each.text for each in was.budgets} <= {each.text for each in now.budgets}
        passed = isinstance(now, Allow) and _passes(counted, now, question, octets)
        if not passed:
            continue
        assert isinstance(was, Allow)
        assert _passes(free, was, question, octets)


def _passes(ledger: Ledger, verdict: Allow, question: Any, octets: int) -> bool:
    if isinstance(question, HttpRequest) and ledger.admit(verdict.budgets, octets) is not None:
        return False
    return isinstance(question, NameQuery) or ledger.meter(verdict.budgets).spend(octets) is None


@LOOSE
@given(policies(), st.data(), QUESTIONS)
def test_order_does_not_matter(policy: Policy, data: Any, question: Any) -> None:
    other = policy.replace(
        allow=tuple(data.draw(st.permutations(policy.allow))), deny=tuple(data.draw(st.permutations(policy.deny)))
    )
    first, second = Decider(policy).decide(question), Decider(other).decide(question)
    assert type(first) is type(second)
    if isinstance(first, Allow) and isinstance(second, Allow):
        assert first.inspect == second.inspect


@LOOSE
@given(policies(), ANY_QUESTION)
def test_every_answer_is_a_verdict(policy: Policy, question: Any) -> None:
    verdict = Decider(policy).decide(question)
    assert isinstance(verdict, (Allow, Deny))
    if isinstance(verdict, Deny):
        assert verdict.reason in REASONS
        assert verdict.hint.isprintable()


@LOOSE
@given(ANY_QUESTION)
def test_the_empty_policy_allows_nothing(question: Any) -> None:
    if not isinstance(question, PathAccess):
        assert not allows(Policy(), question)


@LOOSE
@given(policies(), QUESTIONS)
def test_a_constrained_destination_never_becomes_raw(policy: Policy, question: Any) -> None:
    verdict = Decider(policy).decide(question)
    if not isinstance(question, Connect) or not isinstance(verdict, Allow) or question.protocol != "tcp":
        return
    for rule in policy.allow:
        covers = not rule.ports or any(port.first <= question.port <= port.last for port in rule.ports)
        if rule.constrained and covers and question.host and rule.host == question.host and rule.kind == "host":
            assert verdict.inspect


@LOOSE
@given(policies(), ADDRESSES, PORTS)
def test_a_name_stands_for_public_addresses_only(policy: Policy, address: str, port: int) -> None:
    forms = judged_forms(*parse_address(address))
    networks = [rule for rule in policy.allow if rule.kind == "network"]
    if all(address_class(*form) == "public" for form in forms) or networks:
        return
    assert not allows(policy, Connect("a.example", address, port))


@LOOSE
@given(policies(), QUESTIONS)
def test_a_hint_allows_what_was_refused(policy: Policy, question: Any) -> None:
    verdict = Decider(policy).decide(question)
    if not isinstance(verdict, Deny) or not verdict.hint:
        return
    if isinstance(question, HttpRequest) and question.method == "TRACE" and "http" not in verdict.hint:
        return  # the connection itself was refused, and that is what the line allows
    if isinstance(question, Connect) and question.host:
        question = question.replace(address="")  # the name was refused; its address has a floor of its own
    added = load([Source("user", "f", verdict.hint)], presets={"default": ""}).policy
    assert allows(policy.replace(allow=policy.allow + added.allow), question)


@LOOSE
@given(policies())
def test_a_policy_survives_storing(policy: Policy) -> None:
    assert codec.restore(codec.dump(policy)) == policy


# ---------------------------------------------------------------- hosts

LABEL_TEXT = st.text("abzABZ019-_.*éß。\u200b%:@[]\\ \0x", max_size=20)


@LOOSE
@given(st.text() | LABEL_TEXT)
@example("xn--")
@example("ẞ.de")
def test_canonical_host(raw: str) -> None:
    try:
        name = canonical_host(raw)
    except Malformed as error:
        assert str(error)
        return
    assert canonical_host(name) == name
    assert canonical_host(name.upper() + ".") == name
    assert name.isascii()
    assert name == name.lower()
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.")
    assert all(0 < len(label) <= 63 for label in name.split("."))
    try:
        parse_address(name)
    except Malformed:
        pass
    else:
        raise AssertionError("an address is no host name")


@LOOSE
@given(NAMES, st.text("ab.-", min_size=1, max_size=8))
def test_wildcards_match_what_their_index_finds(suffix: str, head: str) -> None:
    try:
        name = canonical_host(f"{head}{suffix}")
    except Malformed:
        return
    assert wildcard_matches(suffix, name) == (suffix in wildcard_suffixes(name))


# ---------------------------------------------------------------- addresses


@LOOSE
@given(st.ip_addresses())
def test_addresses_agree_with_ipaddress(address: Any) -> None:
    mapped = getattr(address, "ipv4_mapped", None)
    expected = mapped or address
    assert parse_address(str(address)) == (expected.version, int(expected))
    assert parse_address(address.exploded) == (expected.version, int(expected))
    assert format_address(*parse_address(str(address))) == str(expected)
    if (
        address_class(expected.version, int(expected)) == "public"
        and len(judged_forms(*parse_address(str(address)))) == 1
    ):
        # Ours is the stricter list.
        assert expected.is_global or expected in ipaddress.ip_network("64:ff9b::/96")


@LOOSE
@given(st.text() | st.text("0123456789abcdefx.:%/[]", max_size=24))
def test_parse_address_never_guesses(text: str) -> None:
    try:
        version, value = parse_address(text)
    except Malformed:
        return
    assert ipaddress.ip_address(text) is not None
    assert parse_address(format_address(version, value)) == (version, value)


# ---------------------------------------------------------------- paths

PATH_TEXT = st.text("/.%2eEfF05c;a*\\#?é\0 ", max_size=30).map(lambda text: "/" + text)


@LOOSE
@given(st.text() | PATH_TEXT)
@example("/%25%32%65")
@example("/a/..;/b")
@example("/%2%65")
def test_canonical_path(raw: str) -> None:
    try:
        path = canonical_path(raw)
    except Malformed as error:
        assert str(error)
        return
    assert canonical_path(path) == path, "what is matched is what is forwarded, and reads the same again"
    segments = path.split("/")[1:]
    assert ".." not in segments
    assert "." not in segments
    assert "" not in segments[:-1]
    lowered = path.lower()
    assert not any(bad in lowered for bad in ("%2f", "%5c", "%00", "%2e", "%252e", "%252f", "\\", "#", "?"))


@LOOSE
@given(PATH_TEXT, PATH_TEXT)
def test_a_pattern_admits_itself_and_what_is_below(pattern: str, below: str) -> None:
    try:
        canonical = canonical_path_pattern(pattern)
        path = canonical_path(canonical.replace("**", "x").replace("*", "x").rstrip("/") + canonical_path(below))
    except Malformed:
        return
    matches = path_matcher(canonical)
    assert matches(path)
    if "*" not in canonical and canonical != "/":
        assert not matches(canonical + "x")
        assert matches(canonical)
        assert matches(canonical + "/")


def spelled(text: str, choices: list[int]) -> str:
    """``text`` with each letter as it is, in the other case, escaped, or escaped twice."""
    out = []
    for char, choice in zip(text, choices, strict=True):
        code, other = ord(char), ord(char.upper())
        forms = (char, char.swapcase(), f"%{code:02x}", f"%25{code:02X}", f"%25{other:02x}")
        out.append(char if char == "/" else forms[choice])
    return "".join(out)


DENIED = "/v1/admin"


@LOOSE
@given(
    st.lists(st.integers(0, 4), min_size=len(DENIED), max_size=len(DENIED)),
    st.sampled_from(["", "/", "/x", ";a=b", "%3Ba", "%3Fx", "%23x", ".", "%20", "::$DATA", "/x/y", "//"]),
)
def test_a_deny_holds_for_every_spelling_and_no_reading_widens(choices: list[int], after: str) -> None:
    try:
        path = canonical_path(spelled(DENIED, choices) + after)
    except Malformed:
        return
    allow = host_rule("https://a.example/v1/", WHERE)
    request = HttpRequest("a.example", 443, "https", "GET", path)
    for text in (DENIED, DENIED + "#", "/V1/Admin", "/v1/%61dmin", "/*/adm*"):
        if text.endswith("#") and after in ("/x", "/x/y"):
            continue
        refused = Policy(allow=(allow,), deny=(host_rule(f"https://a.example{text}", WHERE, deny=True),))
        assert isinstance(Decider(refused).decide(request), Deny), (text, path)
    # The same pattern in an allow admits its own spelling only.
    admits = Decider(Policy(allow=(host_rule(f"https://a.example{DENIED}", WHERE),))).decide(request)
    assert isinstance(admits, Allow) is (path == DENIED or path.startswith(f"{DENIED}/"))


@LOOSE
@given(PATH_TEXT, PATH_TEXT)
def test_a_deny_only_takes_away(pattern: str, path: str) -> None:
    try:
        deny = host_rule(f"https://a.example{canonical_path_pattern('/' + pattern)}", WHERE, deny=True)
        path = canonical_path("/" + path)
    except Malformed:
        return
    allow = host_rule("https://a.example/v1/", WHERE)
    request = HttpRequest("a.example", 443, "https", "GET", path)
    if isinstance(Decider(Policy(allow=(allow,), deny=(deny,))).decide(request), Allow):
        assert isinstance(Decider(Policy(allow=(allow,))).decide(request), Allow)
        assert not path_matcher(canonical_path_pattern("/" + pattern))(path)


# ---------------------------------------------------------------- file patterns

PATTERN_TEXT = st.text("ab*?[]!/\\-.#^: \udcff", max_size=12)
FILE_NAME = st.text("ab.-!#*[] \udcff", min_size=1, max_size=6).filter(lambda name: name not in (".", ".."))


@LOOSE
@given(st.lists(PATTERN_TEXT, max_size=4), st.lists(FILE_NAME, min_size=1, max_size=3), st.booleans())
def test_a_set_is_the_last_of_its_patterns(texts: list[str], parts: list[str], is_dir: bool) -> None:
    patterns = []
    for text in texts:
        try:
            patterns.append(Pattern(text))
        except Malformed as error:
            assert str(error)
            texts = [other for other in texts if other != text]
    compiled = compile_patterns(texts)
    relpath = "/".join(parts)
    expected = False
    for pattern in patterns:
        if pattern.matches(parts[-1], relpath, is_dir):
            expected = not pattern.negated
    assert compiled.match(parts[-1], relpath, is_dir) is expected
    if compiled.by_name:
        assert compiled.match(parts[-1], "", is_dir) is expected


@LOOSE
@given(FILE_NAME, st.booleans())
def test_a_quoted_name_matches_itself(name: str, is_dir: bool) -> None:
    quoted = "".join(f"\\{char}" for char in name)
    assert compile_patterns([quoted]).match(name, f"x/{name}", is_dir)
    assert not compile_patterns([quoted]).match(name + "y", name + "y", is_dir)


# ---------------------------------------------------------------- files

YAML_TEXT = st.text("allowdeny: -[]{}\"'#*&!|>\n\t,%@`~/.0123456789", max_size=80)


@LOOSE
@given(st.text() | YAML_TEXT)
def test_any_text_is_a_policy_or_a_policy_error(text: str) -> None:
    for level in ("user", "project"):
        try:
            result = load([Source(level, "f", text)], presets={"default": ""})
        except PolicyError as error:
            assert error.exit_code == 78
            assert error.where.startswith("f")
        else:
            assert isinstance(result.policy, Policy)


@LOOSE
@given(st.text() | YAML_TEXT)
def test_the_parser_agrees_with_pyyaml_on_what_is_yaml(text: str) -> None:
    import yaml

    try:
        tree = parse(text, "f")
    except PolicyError:
        return
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        # The C parser is more tolerant in corners; what it takes is judged strictly afterwards.
        return
    assert (tree is None) == (
        node is None or (node.tag == "tag:yaml.org,2002:null" and isinstance(node, yaml.ScalarNode))
    )


@LOOSE
@given(DESTINATIONS)
def test_a_file_and_an_option_make_the_same_rule(text: str) -> None:
    quoted = text.replace('"', '\\"')
    file = load([Source("user", "f", f'allow: ["{quoted}"]')], presets={"default": ""}).policy.allow
    option = load([], presets={"default": ""}, options={"allow": (text,)}).policy.allow
    assert file[0].replace(origin=WHERE) == option[0].replace(origin=WHERE)
