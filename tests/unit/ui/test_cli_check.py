"""``membrane check``: targets, questions and what is printed."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membrane.plan.model import HostFacts
from membrane.policy import grammar
from membrane.policy.model import (
    Allow,
    Connect,
    Deny,
    HttpRequest,
    MountRule,
    NameQuery,
    Origin,
    PathAccess,
    PathRule,
    Policy,
    SocketAccess,
    SocketRule,
)
from membrane.run.check import Answer, TargetError, check, is_path
from membrane.ui import show

USER = Origin("user", "/home/me/.membrane/config.yaml", 31)
BUILT_IN = Origin("built-in", "preset default", 12)
HOME = "/home/me"


def facts(workspace: str) -> HostFacts:
    return HostFacts(
        uid=1000,
        gid=1000,
        user="me",
        root=False,
        home=HOME,
        state=f"{HOME}/.membrane",
        workspace=workspace,
        hostname="box",
        environ=(("PATH", "/usr/bin"),),
        existing=frozenset({"/usr", "/etc", "/etc/shadow"}),
    )


def policy(*hosts: str) -> Policy:
    return Policy(allow=tuple(grammar.host_rule(text, USER) for text in hosts))


@pytest.fixture
def work(tmp_path: Path) -> Path:
    path = tmp_path.resolve() / "work"
    path.mkdir()
    return path


def ask(target: str, rules: Policy, work: Path, method: str = "") -> Answer:
    return check(target, method, rules, facts(str(work)))


# ---------------------------------------------------------------- hosts


@pytest.mark.parametrize(
    "target", ["localhost:80", "localhost", "127.0.0.1:80", "127.9.9.9", "[::1]:80", "::1", "http://localhost:8000/x"]
)
def test_the_loopback_inside_is_the_sandboxs_own(target: str, work: Path) -> None:
    """No rule is asked about it; "refused", with a line that opens nothing, was the answer."""
    found = ask(target, Policy(), work)
    assert isinstance(found.verdict, Allow)
    assert "host.internal:PORT" in found.bound_by[0]
    for other in ("host.internal:80", "localhost.example:80", "128.0.0.1:80"):  # the control
        assert isinstance(ask(other, Policy(), work).verdict, Deny)


@pytest.mark.parametrize(
    ("target", "cause", "advice"),
    [
        ("", "'' names nothing", "membrane check HOST"),
        ("git@github.com:me/x.git", "is a repository over ssh", "membrane check github.com:22"),
    ],
)
def test_what_is_no_target_is_told_what_to_ask(target: str, cause: str, advice: str, work: Path) -> None:
    with pytest.raises(TargetError, match=cause) as refused:
        ask(target, Policy(), work)
    assert refused.value.fix[0].startswith(advice) and refused.value.exit_code == 2


def test_a_socket_is_one_also_before_its_service_starts(work: Path) -> None:
    found = ask("unix:/run/absent.sock", Policy(), work)
    assert found.access == SocketAccess("/run/absent.sock")
    assert isinstance(found.verdict, Deny) and found.verdict.hint == 'unix_sockets: ["/run/absent.sock"]'


def test_no_rule_is_advised_that_would_uncover_nothing(work: Path) -> None:
    found = ask("/etc/shadow", Policy(), work)
    assert isinstance(found.verdict, Deny) and (found.verdict.reason, found.verdict.hint) == ("hidden", "")


@pytest.mark.parametrize(
    ("target", "access", "verdict"),
    [
        ("pypi.org", Connect("pypi.org", "", 443), Allow),
        ("pypi.org:22", Connect("pypi.org", "", 22), Allow),
        ("pypi.org:53/udp", Connect("pypi.org", "", 53, "udp"), Deny),
        ("db.example", Connect("db.example", "", 5432), Allow),
        ("db.example:443", Connect("db.example", "", 443), Deny),
        ("evil.example", NameQuery("evil.example"), Deny),
        ("127.1", NameQuery("127.1"), Deny),
        ("192.0.2.7:80", Connect("", "192.0.2.7", 80), Allow),
        ("192.0.2.8", Connect("", "192.0.2.8", 443), Deny),
        ("2001:db8::1", Connect("", "2001:db8::1", 443), Allow),
        ("[2001:DB8:0::1]:80", Connect("", "2001:db8::1", 80), Allow),
        ("169.254.169.254", Connect("", "169.254.169.254", 443), Deny),
        ("ssh://pypi.org/x", Connect("pypi.org", "", 22), Allow),
        ("postgres://db.example/base", Connect("db.example", "", 5432), Allow),
        ("https://pypi.org/simple/?q=1#x", HttpRequest("pypi.org", 443, "https", "GET", "/simple/"), Allow),
        ("http://pypi.org:8080", HttpRequest("pypi.org", 8080, "http", "GET", "/"), Allow),
        ("https://api.example/v1/x", HttpRequest("api.example", 443, "https", "GET", "/v1/x"), Allow),
        ("https://api.example/v1/../admin", HttpRequest("api.example", 443, "https", "GET", "/admin"), Deny),
        ("https://api.example/v1/%2e%2fx", HttpRequest("api.example", 443, "https", "GET", "/v1/%2e%2fx"), Deny),
        ("https://api.example:8443/v1/", Connect("api.example", "", 8443), Deny),
        ("https://evil.example/", Connect("evil.example", "", 443), Deny),
    ],
)
def test_host_targets(target: str, access: object, verdict: type, work: Path) -> None:
    rules = policy("pypi.org", "db.example:5432", "192.0.2.7", "2001:db8::/64", "https://api.example/v1/")
    found = ask(target, rules, work)
    assert found.access == access
    assert isinstance(found.verdict, verdict)


@pytest.mark.parametrize(
    ("target", "method", "message"),
    [
        ("pypi.org:0", "", "'pypi.org:0' has the port '0'; a port is 1 to 65535"),
        ("pypi.org:99999", "", "'pypi.org:99999' has the port '99999'; a port is 1 to 65535"),
        ("pypi.org:http", "", "'pypi.org:http' has the port 'http'; a port is 1 to 65535"),
        ("10.0.0.0/24", "", "'10.0.0.0/24' is a whole network"),
        ("pypi.org", "POST", "'pypi.org' is a host; POST needs a URL or a path"),
        ("https://u:p@h.example/", "", "holds a user name"),
        ("https:///x", "", "'https:///x' has no host"),
        ("zz://h.example/", "", "has the scheme 'zz', whose port is not known"),
        ("https://h.example/", "read", "is a URL; read is for paths"),
        ("https://h.example/", "G T", "'G T' is not an HTTP method"),
        ("./x", "POST", "'./x' is a path; -X is read or write for it, not 'POST'"),
    ],
)
def test_what_can_not_be_asked(target: str, method: str, message: str, work: Path) -> None:
    with pytest.raises(TargetError) as caught:
        ask(target, policy(), work, method)
    assert message in caught.value.headline()
    assert caught.value.exit_code == 2


def test_a_whole_network_names_an_address_to_ask_about(work: Path) -> None:
    with pytest.raises(TargetError) as caught:
        ask("2001:db8::/64", policy(), work)
    assert caught.value.fix == ("ask about one address: membrane check 2001:db8::1",)


# ---------------------------------------------------------------- paths


def test_hidden_readonly_and_ordinary_names(work: Path) -> None:
    rules = Policy(paths=(PathRule(".env", BUILT_IN, "hide"), PathRule("db/", USER, "readonly")))
    (work / "db").mkdir()
    assert ask(".env", rules, work).verdict == Deny(rules.paths[0], "hidden")
    found = ask("./db/schema.sql", rules, work)
    assert isinstance(found.verdict, Allow)
    assert found.write is not None
    assert found.write.verdict == Deny(rules.paths[1], "read-only")
    found = ask("./src/main.py", rules, work)
    assert isinstance(found.verdict, Allow)
    assert found.write is None
    assert isinstance(ask("./db/x", rules, work, "write").verdict, Deny)
    assert ask("./db/x", rules, work, "read").write is None


@pytest.mark.parametrize("name", [".git/hooks/pre-commit", ".git/config", ".membrane.yaml", "sub/.envrc"])
def test_protected_names_can_be_read_and_not_written(name: str, work: Path) -> None:
    (work / ".git").mkdir()
    found = ask(f"./{name}", Policy(), work)
    assert isinstance(found.verdict, Allow)
    assert found.write is not None
    assert found.write.verdict == Deny(None, "protected name")
    assert ask("./.git/objects/ab", Policy(), work).write is None


def test_outside_the_workspace_the_view_decides(work: Path) -> None:
    found = ask("~/.aws/credentials", Policy(), work)
    assert isinstance(found.access, PathAccess)
    assert isinstance(found.verdict, Deny)
    assert found.verdict.reason == "not in the view"
    assert found.verdict.hint.startswith("mounts: [{path: ")
    system = ask("/usr/bin/env", Policy(), work)
    assert isinstance(system.verdict, Allow)
    assert system.write is not None
    assert system.write.verdict == Deny(None, "read-only")
    assert isinstance(ask("/etc/shadow", Policy(), work).verdict, Deny)
    assert isinstance(ask("/tmp/of-the-host", Policy(), work).verdict, Deny)


def test_a_mount_rule_opens_a_tree(work: Path) -> None:
    library = work.parent / "lib"
    library.mkdir()
    rule = MountRule(str(library), "rw", USER)
    found = ask("../lib/x", Policy(mounts=(rule,)), work)
    assert found.verdict == Allow(rule, "mounted")
    assert found.write is None
    readonly = ask("../lib/x", Policy(mounts=(rule.replace(mode="ro"),)), work)
    assert readonly.write is not None
    assert isinstance(readonly.write.verdict, Deny)


def test_a_symbolic_link_is_judged_by_what_it_leads_to(work: Path) -> None:
    rules = Policy(paths=(PathRule(".env", BUILT_IN, "hide"),))
    (work / ".env").write_text("x")
    (work / "link").symlink_to(".env")
    (work / "out").symlink_to("/root/secret")
    assert isinstance(ask("link", rules, work).verdict, Deny)
    assert isinstance(ask("out", rules, work).verdict, Deny)
    # A name that is itself hidden stays hidden, wherever it leads.
    (work / "sub").mkdir()
    (work / "sub" / ".env").symlink_to("/usr/bin/env")
    assert isinstance(ask("sub/.env", rules, work).verdict, Deny)


def test_the_workspace_itself_and_its_parent(work: Path) -> None:
    assert isinstance(ask(".", Policy(), work).verdict, Allow)
    assert isinstance(ask("..", Policy(), work).verdict, Deny)


def test_host_sockets(work: Path) -> None:
    path = str(work.parent / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        found = ask(path, Policy(), work)
        assert found.access == SocketAccess(path)
        assert isinstance(found.verdict, Deny)
        assert found.verdict.reason == "socket not allowed"
        rules = Policy(unix_sockets=(SocketRule(path, USER),))
        assert isinstance(ask(f"unix:{path}", rules, work).verdict, Allow)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("./x", True),
        (".env", True),
        ("/etc", True),
        ("~/x", True),
        ("a/b", True),
        ("README.md", True),
        ("other.md", False),
        ("pypi.org", False),
        ("h:53/udp", False),
        ("localhost", False),
    ],
)
def test_path_or_host(target: str, expected: bool, work: Path) -> None:
    (work / "README.md").touch()
    assert is_path(target, str(work)) is expected


_PIECES = st.sampled_from(
    [
        "://",
        "https",
        ":",
        "443",
        "/",
        "..",
        "%2e",
        "[",
        "]",
        "::1",
        "*",
        "**",
        "10.0.0.1",
        "a.example",
        "~",
        "@",
        "/udp",
    ]
)


@given(
    st.lists(_PIECES | st.text(st.characters(exclude_characters="\0"), max_size=4), min_size=1, max_size=6).map(
        "".join
    ),
    st.sampled_from(["", "GET", "read", "write", "p o", "\u00e9"]),
)
def test_any_target_is_answered_or_refused_with_a_cause(target: str, method: str) -> None:
    rules = policy("a.example", "https://b.example/v1/", "10.0.0.0/24")
    try:
        found = check(target, method, rules, facts("/nonexistent/work"))
    except TargetError as error:
        assert error.headline()
    else:
        text = show.answer(found, HOME)
        assert text[0].split()[0] == show.verdict_name(found.verdict)
        hidden = [*range(32), *range(0x7F, 0xA0), *range(0x200B, 0x2010), *range(0x2028, 0x202F)]
        assert not {ord(char) for line in text for char in line} & set(hidden)
        json.loads(show.as_json(show.answer_data(found)))


# ---------------------------------------------------------------- text


def test_text_of_an_allowed_request(work: Path) -> None:
    rule = grammar.host_rule("https://api.example.com/v1/", USER, http=((("POST",), ("messages",)),))
    found = ask("https://api.example.com/v1/messages", Policy(allow=(rule,)), work, "POST")
    assert show.answer(found, HOME) == [
        "allow   POST https://api.example.com/v1/messages",
        "  rule   ~/.membrane/config.yaml:31  https://api.example.com/v1/  methods POST  paths /v1/messages",
        "  bound  by: DNS name, destination port, TLS interception, HTTP method and path",
    ]


def test_text_of_a_hidden_file(work: Path) -> None:
    found = ask(".env", Policy(paths=(PathRule(".env", BUILT_IN, "hide"),)), work)
    assert show.answer(found, HOME) == [
        "deny    read .env",
        '  rule   built-in default:12  ignore ".env"',
        "  bound  by: mount mask (live), re-mask on replacement",
    ]


def test_text_of_a_refusal_without_a_rule_says_what_to_add(work: Path) -> None:
    assert show.answer(ask("evil.example", Policy(), work), HOME) == [
        "deny    resolve evil.example",
        "  reason name not allowed",
        '  add    allow: ["evil.example:443"]',
        "  bound  by: DNS name",
    ]
    assert show.answer(ask("evil.example:8443", Policy(), work), HOME)[:3] == [
        "deny    connect evil.example:8443",
        "  reason name not allowed",
        '  add    allow: ["evil.example:8443"]',
    ]


def test_text_of_a_deny_rule(work: Path) -> None:
    deny = grammar.host_rule("*.tracker.example", Origin("project", "/w/.membrane.yaml", 4), deny=True)
    found = ask("a.tracker.example", Policy(allow=policy("**").allow, deny=(deny,)), work)
    assert show.answer(found, HOME)[1] == "  rule   /w/.membrane.yaml:4  deny *.tracker.example"


def test_nothing_is_suggested_for_a_floor(work: Path) -> None:
    lines = show.answer(ask("169.254.169.254:80", policy("**"), work), HOME)
    assert lines[1].startswith("  reason metadata address: ")
    assert not any("add " in line for line in lines)


def test_hostile_names_are_escaped(work: Path) -> None:
    name = "a\x1b[31m\n\u202e" + os.fsdecode(b"\xff")
    text = "\n".join(show.answer(ask(f"./{name}", Policy(), work), HOME))
    assert "\x1b" not in text
    assert "read a\\u{1b}[31m\\u{a}\\u{202e}\\xff" in text


def test_json_fields(work: Path) -> None:
    found = ask("./db/x", Policy(paths=(PathRule("db", USER, "readonly"),)), work)
    data = json.loads(show.as_json(show.answer_data(found)))
    assert data == {
        "target": "./db/x",
        "access": {"kind": "PathAccess", "path": "db/x", "operation": "read", "directory": False},
        "verdict": "allow",
        "rule": None,
        "reason": "in the workspace",
        "hint": None,
        "bound_by": ["mount namespace"],
        "write": {
            "target": "./db/x",
            "access": {"kind": "PathAccess", "path": "db/x", "operation": "write", "directory": False},
            "verdict": "deny",
            "rule": {"text": 'readonly "db"', "file": USER.file, "line": 31, "level": "user"},
            "reason": "read-only",
            "hint": None,
            "bound_by": ["read-only mount (live)", "re-mount on replacement"],
        },
    }
