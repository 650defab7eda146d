"""Learning: the policy that is printed admits what was tried, is small, and holds nothing that is somebody's own."""

from __future__ import annotations

from typing import Any

import pytest

from membrane.policy.decide import decide
from membrane.policy.load import Source, load
from membrane.policy.model import Allow, Connect, HttpRequest, NameQuery, Policy, SocketAccess
from membrane.record import recorded
from membrane.record.learn import Learner, component, learn
from membrane.record.recorded import Recorded

CURL = {"pid": 11, "start": 110, "name": "curl", "exe": "/usr/bin/curl"}


def event(kind: str, /, **fields: Any) -> Recorded:
    head = {"time": "2026-01-02T03:04:05.000Z", "session": "s", "seq": 1, "event": kind, "source": "network"}
    return recorded.parse({**head, "process": CURL, **fields})


def denied(reason: str = "name not allowed", count: int = 1, **access: Any) -> Recorded:
    return event("AccessDenied", access=access, reason=reason, rule=None, hint="", count=count)


def opened(number: int, host: str, port: int, protocol: str = "tls", address: str = "") -> Recorded:
    return event("ConnectionOpened", id=number, protocol=protocol, host=host, address=address, port=port)


def closed(number: int) -> Recorded:
    return event("ConnectionClosed", id=number, bytes_up=1, bytes_down=1, duration_ms=1.0, error="")


def request(number: int, method: str, path: str, host: str = "api.example", port: int = 443) -> Recorded:
    fields = {"method": method, "scheme": "https", "host": host, "port": port, "path": path, "status": 200}
    return event("RequestSeen", id=number, number=1, verdict="allow", query="?key=SECRETQUERY", **fields)


def read(text: str) -> Policy:
    return load([Source("user", "learned.yaml", text, "/w")], presets={"default": ""}, home="/home/u").policy


def learned(*events: Recorded) -> tuple[str, Policy]:
    text = learn([events])
    return text, read(text)


def allows(policy: Policy, access: Any) -> bool:
    return isinstance(decide(policy, access), Allow)


def test_a_refused_name_becomes_a_host() -> None:
    text, policy = learned(denied(count=3, kind="NameQuery", name="no.example", type="A"))
    assert text.splitlines()[1:] == [
        "allow:",
        '  - "no.example:443" # only the name, refused 3 times by curl; 443 is a guess',
    ]
    assert allows(policy, NameQuery("no.example"))
    assert allows(policy, Connect("no.example", "", 443))
    assert not allows(policy, Connect("no.example", "", 80))
    assert not allows(policy, NameQuery("other.example"))


def test_ports_that_were_tried_and_no_others() -> None:
    text, policy = learned(
        opened(1, "h.example", 443),
        closed(1),
        denied("port not allowed", kind="Connect", host="h.example", address="", port=22, protocol="tcp"),
        opened(2, "", 53, "udp", "192.0.2.1"),
        denied("address not allowed", kind="Connect", host="", address="2001:db8::5", port=5432, protocol="tcp"),
    )
    assert text.count("h.example") == 2
    for port, wanted in ((443, True), (22, True), (80, False)):
        assert allows(policy, Connect("h.example", "", port)) is wanted
    assert allows(policy, Connect("", "192.0.2.1", 53, "udp"))
    assert not allows(policy, Connect("", "192.0.2.1", 53, "tcp"))
    assert allows(policy, Connect("", "2001:db8::5", 5432))


def test_methods_and_paths_that_were_tried_and_no_others() -> None:
    text, policy = learned(
        opened(1, "api.example", 443, "h2"),
        request(1, "POST", "/v1/messages"),
        request(1, "GET", "/v1/models/123456/info"),
        denied(
            "path not allowed",
            kind="HttpRequest",
            host="api.example",
            port=443,
            scheme="https",
            method="PUT",
            path="/x",
        ),
        closed(1),
    )
    assert "SECRETQUERY" not in text

    def ask(method: str, path: str) -> bool:
        return allows(policy, HttpRequest("api.example", 443, "https", method, path))

    assert ask("POST", "/v1/messages")
    assert ask("GET", "/v1/models/777/info")
    assert ask("PUT", "/x")
    assert not ask("POST", "/v1/models/777/info")
    assert not ask("GET", "/v1/messages")
    assert not ask("DELETE", "/x")


def test_a_port_with_something_else_than_http_is_not_constrained() -> None:
    _text, policy = learned(
        opened(1, "api.example", 443, "h2"),
        request(1, "GET", "/a"),
        closed(1),
        opened(2, "api.example", 443, "tls"),
        closed(2),
    )
    verdict = decide(policy, Connect("api.example", "", 443))
    assert isinstance(verdict, Allow)
    assert not verdict.inspect


@pytest.mark.parametrize(
    "part",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "550e8400-e29b-41d4-a716-446655440000",
        "12345",
        "deadbeef",
        "a" * 40,
        "sk-ant-api03-abc123DEF456",
        "jane%40example.com",
        "with space",
    ],
)
def test_what_could_be_a_secret_is_a_star(part: str) -> None:
    assert component(part) == "*"
    text = learn([[request(1, "GET", f"/v1/{part}/x")]])
    assert part not in text
    assert '"/v1/*/x"' in text


@pytest.mark.parametrize("part", ["messages", "v1", "index.html", "@scope", "packages", "requests-2.31.tar.gz"])
def test_what_is_a_plain_word_stays(part: str) -> None:
    assert component(part) in (part, "*")
    assert component("messages") == "messages"


def test_personal_and_secret_paths_are_counted_and_never_named() -> None:
    paths = [
        "/home/jane/project/data",
        "/root/.aws/credentials",
        "/srv/app/secrets/db",
        "/etc/ssl/private/server.key",
        "/srv/id_rsa",
        "/opt/x/.env",
    ]
    events = [denied("not in the view", kind="PathAccess", path=path, operation="read") for path in paths]
    events.append(denied("not in the view", kind="PathAccess", path="/opt/toolchain", operation="read"))
    text, policy = learned(*events)
    for path in paths:
        assert path not in text
    assert "jane" not in text
    assert [rule.path for rule in policy.mounts] == ["/opt/toolchain"]
    assert "# Left out: paths in a home directory (2 times)." in text
    assert "# Left out: paths named like secrets (4 times)." in text


@pytest.mark.parametrize(
    "path", ["/", "//", "/.", "/home", "/home/.", "//home//", "/root", "/var", "/srv", "/srv/jane"]
)
def test_no_directory_above_a_home_is_opened(path: str) -> None:
    """Whoever is inside can have such a refusal: open(2) of / with O_TMPFILE, mkdir(2) of /home."""
    events = [
        denied("read-only", kind="PathAccess", path=path, operation="write"),
        event("FileOpened", path=path, flags=["rdwr", "tmpfile"], result="EROFS"),
    ]
    learner = Learner("/srv/jane/")
    learner.begin()
    for each in [*events, denied("not in the view", kind="PathAccess", path="/opt//x/./y", operation="read")]:
        learner.add(each)
    policy = read(learner.yaml())
    assert [(rule.path, rule.mode) for rule in policy.mounts] == [("/opt/x/y", "ro")]
    assert "(2 times)" in learner.yaml()


def test_sockets() -> None:
    text, policy = learned(denied("socket not allowed", kind="SocketAccess", path="/run/service.sock"))
    assert "/run/service.sock" in text
    assert allows(policy, SocketAccess("/run/service.sock"))


def test_a_decision_or_a_floor_is_not_unlearned() -> None:
    text, policy = learned(
        denied("denied by rule", kind="NameQuery", name="tracker.example", type="A"),
        denied("metadata address", kind="Connect", host="", address="169.254.169.254", port=80, protocol="tcp"),
        denied("private address", kind="Connect", host="in.example", address="10.0.0.1", port=80, protocol="tcp"),
        denied("name malformed", kind="NameQuery", name="..", type="A"),
    )
    assert policy.allow == ()
    assert "tracker" not in text
    assert "169.254" not in text
    assert text.count("# Left out: refused as") == 4


def test_a_private_address_is_for_a_person_to_open() -> None:
    literal = ("10.0.0.1", "192.168.1.1", "100.64.0.1", "fd00::1", "fe80::1", "::ffff:10.0.0.1", "64:ff9b::a00:1")
    tried = [("93.184.216.34", "tcp"), *((address, protocol) for address in literal for protocol in ("tcp", "udp"))]
    text, policy = learned(
        *(
            denied("address not allowed", kind="Connect", host="", address=address, port=443, protocol=protocol)
            for address, protocol in tried
        )
    )
    assert text.count("# Not opened, as it is a private address: ") == 14
    assert '"10.0.0.1:443" (once' in text and '"[fd00::1]:443/udp" (once' in text
    assert [rule.text for rule in policy.allow] == ["93.184.216.34:443"], "the control"


def test_several_runs_are_one_policy_and_ids_do_not_mix() -> None:
    first = [opened(1, "a.example", 443, "h2"), request(1, "GET", "/x", "a.example"), closed(1)]
    second = [opened(1, "b.example", 22, "tcp"), closed(1)]
    text = learn([first, second])
    assert text.startswith("# Learned by membrane from 2 runs.")
    policy = read(text)
    assert allows(policy, HttpRequest("a.example", 443, "https", "GET", "/x"))
    assert allows(policy, Connect("b.example", "", 22))


def test_nothing_to_learn_is_still_a_policy() -> None:
    _text, policy = learned(event("SessionEnded", exit_code=0, signal=0, duration_ms=1.0))
    assert policy.allow == ()


def test_text_from_inside_can_not_add_a_rule() -> None:
    evil = 'x"]\nallow: ["**"]\n#'
    text, policy = learned(
        denied(kind="NameQuery", name=evil, type="A"),
        denied(kind="NameQuery", name="ok.example", type="A"),
        request(1, "GET", f"/{evil}"),
        request(1, f"GET], paths: ['/**']}} # {evil}", "/y"),
        denied("socket not allowed", kind="SocketAccess", path=f"/run/{evil}"),
        denied("not in the view", kind="PathAccess", path=f"/opt/{evil}", operation="read"),
        denied(f"name not allowed{evil}", kind="NameQuery", name="b.example", type="A"),
        recorded.parse(
            {**denied(kind="NameQuery", name="c.example", type="A").data, "process": {**CURL, "name": evil}}
        ),
    )
    assert {rule.kind for rule in policy.allow} == {"host"}
    assert "**" not in text
    assert len(policy.allow) == 3
    assert policy.unix_sockets == ()
    assert policy.mounts == ()


def test_what_is_not_there_gets_no_rule_which_would_stop_the_next_run() -> None:
    events = [
        event("FileOpened", path="/opt/new", flags=["wronly", "creat"], result="EROFS"),
        denied("socket not allowed", kind="SocketAccess", path="/run/gone.sock"),
        denied("not in the view", kind="PathAccess", path="/opt/there", operation="read"),
    ]
    learner = Learner()
    learner.begin()
    for each in events:
        learner.add(each)
    text = learner.yaml(lambda path: path == "/opt/there")
    policy = read(text)
    assert [rule.path for rule in policy.mounts] == ["/opt/there"] and policy.unix_sockets == ()
    assert '# Not there, so that no rule can show it: "/opt/new" (once).' in text
    assert '# Not there, so that no rule can show it: "/run/gone.sock" (once).' in text
    everything = learner.yaml()  # the control
    assert [rule.path for rule in read(everything).mounts] == ["/opt/new", "/opt/there"]
    assert '"/opt/new", mode: ro} # once; it tried to write: mode: rw' in everything


def test_a_record_that_is_incomplete_is_not_said_to_need_no_rule() -> None:
    learner = Learner()
    learner.begin()
    assert learner.yaml().splitlines()[1:] == ["# Nothing was tried that needs a rule.", "{}"]
    learner.incomplete = True
    assert learner.yaml().splitlines()[1:] == [
        "# The record is INCOMPLETE: what was tried and is not on it is not here either.",
        "# Nothing on it needs a rule.",
        "{}",
    ]
    read(learner.yaml())
