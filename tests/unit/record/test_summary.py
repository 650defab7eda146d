"""The lines at the end of a run."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membrane.events import AccessDenied, access_as_data
from membrane.policy.model import Connect, HttpRequest, NameQuery, PathAccess, SocketAccess
from membrane.policy.reasons import PRIVATE_ADDRESS, PROTECTED_NAME, REASONS, Reason
from membrane.record import summary
from membrane.value import Value


def denied(access: Value, reason: str, hint: str | None = None, rule: str | None = None) -> AccessDenied:
    return AccessDenied(access_as_data(access), reason, rule, hint)


THREE = [
    denied(Connect("telemetry.example.com", "", 443), "name not allowed", 'allow: ["telemetry.example.com:443"]'),
    denied(Connect("", "10.0.0.7", 5432), "address not allowed", 'allow: ["10.0.0.7:5432"]'),
    denied(
        PathAccess("/home/me/.aws/credentials"), "not in the view", "mounts: [{path: ~/.aws/credentials, mode: ro}]"
    ),
]


def test_exact_look() -> None:
    assert summary.refusals(THREE, record="membrane trace show @last --denied", home="/home/me") == [
        "membrane: refused 3 (2 hosts, 1 path)",
        '  telemetry.example.com:443   name not allowed      allow: ["telemetry.example.com:443"]',
        '  10.0.0.7:5432               address not allowed   allow: ["10.0.0.7:5432"]',
        "  ~/.aws/credentials          not in the view       mounts: [{path: ~/.aws/credentials, mode: ro}]",
        "  full record: membrane trace show @last --denied",
    ]


@pytest.mark.parametrize(
    ("address", "advice"),
    [
        ("10.0.0.7", 'its address is 10.0.0.7; if that is meant: allow: ["10.0.0.7:443"]'),
        ("fd00::7", 'its address is fd00::7; if that is meant: allow: ["[fd00::7]:443"]'),
        ("127.0.0.1", f"127.0.0.1: {PRIVATE_ADDRESS.floor}"),
        ("93.184.216.34", f"93.184.216.34: {PRIVATE_ADDRESS.floor}"),  # one of this machine's own
        ('"]\x1b', PRIVATE_ADDRESS.floor),
    ],
)
def test_a_private_address_is_named(address: str, advice: str) -> None:
    """With the rule for it, as of a company's mirror; none for what would be this machine."""
    event = denied(Connect("mirror.example", address, 443), "private address")
    assert summary.refusals([event])[1] == f"  mirror.example:443   private address   {advice}"
    metadata = denied(Connect("m.example", "169.254.169.254", 80), "metadata address")
    assert "allow" not in summary.refusals([metadata])[1]


def test_nothing_refused_is_nothing_said() -> None:
    assert summary.refusals([]) == []


def test_equal_refusals_are_one_line_and_all_are_counted() -> None:
    again = [denied(NameQuery("a.example", kind), "name not allowed", 'allow: ["a.example:443"]') for kind in "AB" * 50]
    assert summary.refusals(again) == [
        "membrane: refused 100 (1 host)",
        '  a.example   name not allowed   allow: ["a.example:443"]  # http:// is :80',
    ]


def test_a_host_is_counted_once_whatever_was_asked_of_it() -> None:
    events = [
        denied(HttpRequest("h.example", 443, "https", "POST", "/a"), "method not allowed"),
        denied(HttpRequest("h.example", 443, "https", "GET", "/b"), "path not allowed"),
        denied(Connect("h.example", "", 22), "port not allowed"),
    ]
    lines = summary.refusals(events)
    assert lines[0] == "membrane: refused 3 (1 host)"
    assert [line.split("  ")[1] for line in lines[1:]] == [
        "POST https://h.example/a",
        "GET https://h.example/b",
        "h.example:22",
    ]


def test_a_fourth_kind_and_more_collapse() -> None:
    events = [denied(NameQuery(f"h{n}.example"), "name not allowed") for n in range(15)]
    lines = summary.refusals(events)
    assert lines[0] == "membrane: refused 15 (15 hosts)"
    assert lines[-1] == "  ... and 12 more"
    assert len(lines) == 5
    assert summary.refusals(events, limit=0)[1:] == ["  ... and 15 more"]


def test_the_total_of_a_longer_session_is_kept() -> None:
    assert summary.refusals(THREE[:1], total=9000)[0] == "membrane: refused 9000 (1 host)"


def test_what_nobody_asked_for_is_not_told() -> None:
    untold = [denied(Connect("", "192.0.2.1", 80), each, "") for each in REASONS.values() if each.untold]
    assert untold and summary.refusals(untold) == []
    assert summary.refusals([*untold, *THREE]) == summary.refusals(THREE)


def test_a_protected_name_says_what_stands_against_it_where_that_is_known() -> None:
    access = PathAccess(".git/rebase-merge/git-rebase-todo", "write")
    assert summary.refusals([denied(access, PROTECTED_NAME, "exec \x1b[2J")])[1].endswith("   exec \\u{1b}[2J")
    assert summary.refusals([denied(access, PROTECTED_NAME)])[1].endswith(PROTECTED_NAME.floor)


@pytest.mark.parametrize("reason", [each for each in REASONS.values() if each.floor and each != PROTECTED_NAME])
def test_floors_say_why_and_suggest_nothing(reason: Reason) -> None:
    event = denied(Connect("", "169.254.169.254", 80), reason, 'allow: ["169.254.169.254:80"]')
    assert summary.refusals([event])[1] == f"  169.254.169.254:80   {reason}   {reason.floor}"


def test_a_deny_rule_is_named() -> None:
    event = denied(NameQuery("x.tracker.example"), "denied by rule", None, "*.tracker.example")
    assert summary.refusals([event])[1].endswith("denied by rule   deny: *.tracker.example")


@pytest.mark.parametrize(
    ("access", "expected"),
    [
        (Connect("h", "", 53, "udp"), "h:53/udp"),
        (Connect("", "2001:db8::1", 443), "[2001:db8::1]:443"),
        (HttpRequest("h", 8443, "https", "GET", "/x"), "GET https://h:8443/x"),
        (HttpRequest("2001:db8::1", 80, "http", "GET", "/"), "GET http://[2001:db8::1]/"),
        (SocketAccess("/run/docker.sock"), "/run/docker.sock"),
        (PathAccess("/home/me"), "~"),
        (PathAccess("/home/melon/x"), "/home/melon/x"),
    ],
)
def test_targets(access: Value, expected: str) -> None:
    assert summary.target_of(access_as_data(access), "/home/me") == expected


def untold(event: AccessDenied) -> bool:
    known = REASONS.get(event.reason)
    return known is not None and known.untold


@given(
    st.lists(
        st.builds(
            lambda text, reason, hint: denied(NameQuery(text), reason, hint),
            st.text(max_size=300),
            st.sampled_from(sorted(REASONS)) | st.text(max_size=20),
            st.none() | st.text(max_size=300),
        ),
        max_size=8,
    )
)
def test_text_from_inside_steers_no_terminal_and_is_bounded(events: list[AccessDenied]) -> None:
    lines = summary.refusals(events)
    assert bool(lines) is any(not untold(event) for event in events)
    for line in lines:
        assert len(line) < 400
        assert not any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 or 0x202A <= ord(char) <= 0x202E for char in line)
    assert len(lines) <= 5


def test_colour_only_where_asked() -> None:
    assert "\x1b" not in "".join(summary.refusals(THREE))
    assert summary.refusals(THREE, colour=True)[0] == "membrane: \x1b[31mrefused 3\x1b[0m (2 hosts, 1 path)"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_no_color_and_pipes_get_no_colour() -> None:
    closed = _Terminal()
    closed.close()
    assert summary.colour(_Terminal(), {"TERM": "xterm"}) is True
    assert summary.colour(_Terminal(), {"NO_COLOR": "1"}) is False
    assert summary.colour(_Terminal(), {"TERM": "dumb"}) is False
    assert summary.colour(io.StringIO(), {}) is False
    assert summary.colour(None, {}) is False


def test_shorten_keeps_start_and_end() -> None:
    cut = summary.shorten("a" * 100 + "/last", 30)
    assert cut == "a" * 17 + "..." + "aaaaa/last"
    assert len(cut) == 30


def test_what_could_not_be_reached_is_told_with_its_reason() -> None:
    failed = [("example.com", 443, "tcp", "no such name: example.com"), ("::1", 9, "udp", "refused\x1b[2J")]
    assert summary.failures(failed, record="membrane trace show @last --kind conn") == [
        "membrane: 2 places that the policy allows could not be reached",
        "  example.com:443   no such name: example.com",
        "  [::1]:9/udp       refused\\u{1b}[2J",
        "  who asked: membrane trace show @last --kind conn",
    ]
    assert summary.failures([]) == []
    assert summary.failures(failed, 1, more=True)[0] == (
        "membrane: 2 or more places that the policy allows could not be reached"
    )
    assert summary.failures(failed, 1)[-1] == "  ... and 1 more"


def test_the_quarantine_line_names_its_files() -> None:
    one = [(".gitmodules", "/state/quarantine/7/0/.gitmodules")]
    (line,) = summary.moved(one, "/state/quarantine")
    assert line == "a protected name was moved out of the workspace, to /state/quarantine/7: .gitmodules"
    several = [(f"{letter}\n", f"/state/quarantine/7/{letter}/x") for letter in "abcde"]
    (line,) = summary.moved(several, "/state/quarantine")
    assert line.startswith("5 protected names were moved") and line.endswith("and 2 more") and "\n" not in line
    (line,) = summary.moved([(".envrc", "")], "/state/quarantine")
    assert line.endswith("no room to rename it: .envrc")
