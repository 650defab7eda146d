"""Questions to a record: choosing, joining, summing up."""

from __future__ import annotations

from typing import Any

import pytest

from membrane.record import joining, query, recorded
from membrane.record.recorded import Recorded
from membrane.ui import trace_text

SHELL = {"pid": 10, "start": 100, "name": "sh", "exe": "/bin/sh"}
CURL = {"pid": 11, "start": 110, "name": "curl", "exe": "/usr/bin/curl"}
OTHER = {"pid": 50, "start": 90, "name": "make", "exe": "/usr/bin/make"}


def event(kind: str, at: float = 0.0, process: Any = None, /, **fields: Any) -> Recorded:
    stamp = f"2026-01-02T03:{int(at) // 60:02}:{at % 60:06.3f}Z"
    head = {"time": stamp, "session": "s", "seq": 1, "event": kind, "source": "x", "process": process}
    return recorded.parse({**head, **fields})


def changed(each: Recorded, **fields: Any) -> Recorded:
    return recorded.parse({**each.data, **fields})


def denied(at: float = 0.0, reason: str = "name not allowed", **access: Any) -> Recorded:
    return event("AccessDenied", at, access=access, reason=reason, rule=None, hint='allow: ["h:443"]', count=1)


RUN = [
    event("SessionStarted", 0, command=["sh", "-c", "x"], workspace="/w", trace_source="ebpf, network"),
    event("ProcessStarted", 1, SHELL, parent=1, argv=["sh", "-c", "x"], cwd="/w", path="/bin/sh", result=""),
    event("ProcessStarted", 2, CURL, parent=10, argv=["curl", "h"], cwd="/w", path="/usr/bin/curl", result=""),
    event("FileOpened", 3, CURL, path="/etc/hosts", flags=["rdonly"], result="", outside_workspace=True),
    event("FileOpened", 3, CURL, path="/opt-data/x", flags=["rdonly"], result="", outside_workspace=True),
    event("FileOpened", 3, CURL, path="/w/a.txt", flags=["rdonly"], result=""),
    event("NameResolved", 4, name="h.example", type="A", verdict="allow", address="198.18.0.16"),
    event("SocketCalled", 5, CURL, call="connect", family="inet", address="198.18.0.16", port=443, result=""),
    event("ConnectionOpened", 5.1, id=7, protocol="tls", host="h.example", address="203.0.113.9", port=443),
    event(
        "RequestSeen", 5.5, id=7, number=1, method="GET", scheme="https", host="h.example", port=443, path="/v1",
        status=200, verdict="allow",
    ),
    event("ConnectionClosed", 6, id=7, bytes_up=100, bytes_down=2000, duration_ms=5.0, error=""),
    event("FileOpened", 7, CURL, path="/w/out.txt", flags=["wronly", "creat"], result=""),
    event("FileOpened", 7, CURL, path="/tmp/t", flags=["wronly", "creat"], result=""),
    event("FileOpened", 7, SHELL, path="/w/.github/workflows/ci.yml", flags=["wronly", "creat"], result=""),
    event("FileOpened", 7, SHELL, path="/root/secret", flags=["rdonly"], result="EACCES", outside_workspace=True),
    event("FileOpened", 7, OTHER, path="/w/other", flags=["wronly"], result=""),
    denied(8, kind="NameQuery", name="no.example", type="A"),
    denied(8.5, kind="Connect", host="no.example", address="", port=443, protocol="tcp"),
    event("ProcessExited", 9, CURL, exit_code=0, signal=0, duration_ms=5.0),
    event("SessionEnded", 10, exit_code=3, signal=0, duration_ms=10_000.0, counts={}, denied=2, lost=0, left_behind=[]),
]  # fmt: skip


def take(**wanted: Any) -> list[Recorded]:
    return list(query.chosen(joining.joined(RUN), query.Filter(**wanted)))


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        ({}, len(RUN)),
        ({"kinds": ("file",)}, 8),
        ({"kinds": ("process", "conn")}, 5),
        ({"kinds": ("exec",)}, 2),
        ({"kinds": ("nothing",)}, 0),
        ({"denied": True}, 3),
        ({"program": "make"}, 1),
        ({"host": "h.example"}, 5),
        ({"host": "*.example"}, 7),
        ({"host": "example"}, 0),
        ({"path": "*.txt"}, 2),
        ({"path": "/w/*"}, 3),
        ({"path": "/w/**"}, 4),
        ({"path": "/w/**/ci.yml"}, 1),
        ({"since": "2026-01-02T03:00:08"}, 4),
        ({"until": "2026-01-02T03:00:01"}, 2),
        ({"since": "2026-01-02T03:00:07", "until": "2026-01-02T03:00:07", "kinds": ("file",)}, 5),
        ({"pid": 11}, 11),
        ({"pid": 10, "kinds": ("process",)}, 3),
        ({"pid": 50}, 1),
        ({"pid": 999}, 0),
    ],
)
def test_choosing(wanted: dict[str, Any], count: int) -> None:
    found = take(**wanted)
    assert len(found) == count, [(each.kind, each.data["process"]) for each in found]


def test_a_reused_pid_is_a_stranger() -> None:
    again = {**CURL, "start": 500, "name": "spy"}
    events = [
        *RUN[:3],
        RUN[-2],  # curl is over
        event("FileOpened", 20, again, path="/w/x", flags=["rdonly"], result=""),
    ]
    assert [each.kind for each in query.chosen(events, query.Filter(pid=10))] == [
        "ProcessStarted",
        "ProcessStarted",
        "ProcessExited",
    ]


def test_one_id_joins_process_name_connection_and_request() -> None:
    by_kind = {each.kind: each for each in joining.joined(RUN) if each.kind != "FileOpened"}
    for kind in ("ConnectionOpened", "RequestSeen", "ConnectionClosed"):
        assert by_kind[kind].data["process"] == CURL
        assert by_kind[kind].data["joined"] is True
    assert by_kind["SocketCalled"].data["host"] == "h.example"
    assert by_kind["ConnectionClosed"].data["host"] == "h.example"
    assert by_kind["SessionEnded"].process is None


def test_connections_of_two_processes_are_told_apart() -> None:
    """The first call belongs to the first connection; a call is used once; what is too old belongs to nobody."""
    name = event("NameResolved", 0, name="h", type="A", verdict="allow", address="198.18.0.1")

    def call(at: float, process: Any) -> Recorded:
        fields = {"call": "connect", "family": "inet", "address": "198.18.0.1", "port": 443, "result": ""}
        return event("SocketCalled", at, process, **fields)

    def opened(at: float, number: int) -> Recorded:
        return event("ConnectionOpened", at, id=number, protocol="tls", host="h", address="203.0.113.1", port=443)

    events = [name, call(1, SHELL), call(1.1, CURL), opened(1.2, 1), opened(1.3, 2), opened(1.4, 3)]
    events += [call(2, OTHER), opened(30, 4)]
    found = [each.data["process"] for each in joining.joined(events) if each.kind == "ConnectionOpened"]
    assert found == [SHELL, CURL, None, None]


@pytest.mark.parametrize(("ours", "theirs"), [("local_port", "client_port"), ("socket", "client_socket")])
def test_a_port_or_a_socket_joins_exactly(ours: str, theirs: str) -> None:
    fields = {"call": "connect", "family": "inet", "address": "198.18.0.1", "port": 443, "result": ""}
    events = [
        event("SocketCalled", 1, SHELL, **fields, **{ours: 4001}),
        event("SocketCalled", 1, CURL, **fields, **{ours: 4002}),
        event("ConnectionOpened", 1, id=1, protocol="tls", host="h", address="", port=443, **{theirs: 4002}),
        event("ConnectionOpened", 1, id=2, protocol="tls", host="h", address="", port=443, **{theirs: 4001}),
    ]
    found = [each.data["process"] for each in joining.joined(events) if each.kind == "ConnectionOpened"]
    assert found == [CURL, SHELL]


def called(process: dict[str, Any], at: float = 1, **fields: Any) -> Recorded:
    """A call to one place."""
    return event(
        "SocketCalled",
        at,
        process,
        call="connect",
        family="inet",
        address="198.18.0.1",
        port=443,
        result="",
        **fields,
    )


def openers(*events: Recorded) -> list[Any]:
    return [each.data["process"] for each in joining.joined(events) if each.kind == "ConnectionOpened"]


def connection(number: int, at: float = 1, **fields: Any) -> Recorded:
    return event("ConnectionOpened", at, id=number, protocol="tls", host="h", address="198.18.0.1", port=443, **fields)


@pytest.mark.parametrize("ours", ["local_port", "socket"])
def test_calls_that_open_nothing_take_no_place_away(ours: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert joining.CALLS > 100_000  # 5,000 calls a second, for the 20 seconds that a connection may be dialled
    monkeypatch.setattr(joining, "CALLS", 4096)
    theirs = {"local_port": "client_port", "socket": "client_socket"}[ours]
    flood = [called(OTHER, **{ours: 1_000_000 + number}) for number in range(joining.CALLS)]
    told = [called(SHELL, **{ours: 1}), called(CURL, **{ours: 2})]
    opened = [connection(1, **{theirs: 2}), connection(2, **{theirs: 1})]
    assert openers(*flood, *told, *opened) == [CURL, SHELL]
    # Nor does what is called while they are dialled.
    assert openers(*told, *flood[:4000], *opened) == [CURL, SHELL]
    assert openers(*told, *flood, *opened) != [CURL, SHELL]  # the control: what is kept is bounded


def test_a_guess_is_no_call_by_another_socket() -> None:
    assert openers(called(SHELL, socket=11), called(CURL), connection(1, client_socket=22)) == [CURL]
    datagrams = changed(connection(1, client_socket=22), protocol="udp")  # sendto(2) without a call that is seen
    assert openers(called(SHELL, socket=11), datagrams) == [None]
    assert openers(called(SHELL, socket=11), connection(1)) == [SHELL]  # whose socket is not known


def test_a_descriptor_that_was_swapped_during_the_call_hides_nobody() -> None:
    events = [called(OTHER, at=1, socket=10), called(SHELL, at=1.1, socket=11)]
    assert openers(*events, connection(1, at=1.2, client_socket=22)) == [SHELL]
    elsewhere = changed(connection(1, at=1.2, client_socket=22), host="", address="")
    assert openers(*events, elsewhere) == [None]


@pytest.mark.parametrize("theirs", [{"client_port": 4001}, {"client_socket": 11}])
@pytest.mark.parametrize("kind", ["Connect", "NameQuery", "HttpRequest"])
def test_a_refusal_with_its_client_is_of_that(kind: str, theirs: dict[str, int]) -> None:
    access = {"kind": kind, "name": "h", "host": "h", "address": "", "port": 443}
    events = [
        called(SHELL, local_port=4001, socket=11),
        called(CURL, local_port=4002, socket=12),
        event("AccessDenied", 1, access=access, reason="", rule=None, hint=None, count=1, **theirs),
    ]
    assert list(joining.joined(events))[-1].data["process"] == SHELL


@pytest.mark.parametrize("kind", ["Connect", "NameQuery", "HttpRequest"])
def test_the_repetitions_of_a_refusal_are_of_who_was_first(kind: str) -> None:
    """They are told seconds later, when the port may be another's."""
    access = {"kind": kind, "name": "h", "host": "h", "address": "", "port": 443}
    told = {"access": access, "reason": "", "rule": None, "hint": None, "client_port": 4001}
    elsewhere = {**told, "access": {**access, "name": "g", "host": "g"}}
    events = [
        called(SHELL, local_port=4001),
        event("AccessDenied", 1.1, count=1, **told),
        called(CURL, at=1.2, local_port=4001),
        event("AccessDenied", 1.3, count=1, **elsewhere),
        event("AccessDenied", 1.4, count=3, **told),
        event("AccessDenied", 20, count=1, **told),  # the first of a new series
    ]
    found = [each.data["process"] for each in joining.joined(events) if each.kind == "AccessDenied"]
    assert found == [SHELL, CURL, SHELL, CURL]


def test_who_comes_from_outside_is_no_process_of_the_sandbox() -> None:
    opened = connection(1, client_port=4001)
    assert openers(called(SHELL, local_port=4001), opened) == [SHELL]
    assert openers(called(SHELL, local_port=4001), changed(opened, protocol="exposed")) == [None]


def test_a_socket_with_two_flows_is_one_s_own() -> None:
    events = [called(SHELL, socket=11), called(CURL, socket=12)]
    assert openers(*events, connection(1, client_socket=11), connection(2, client_socket=11)) == [SHELL, SHELL]


def test_a_refused_name_is_of_who_asked_last() -> None:
    other = {**CURL, "pid": CURL["pid"] + 50, "name": "other"}
    asks = {"call": "connect", "family": "inet", "address": "198.18.0.2", "port": 53, "result": ""}
    events = [
        event("SocketCalled", 1.0, other, **asks),
        event("SocketCalled", 1.2, CURL, **asks),
        denied(1.21, kind="NameQuery", name="no.example", type="A"),
        event("SocketCalled", 1.4, other, **asks),
        denied(1.5, kind="NameQuery", name="no.example", type="A"),  # the repetitions
        denied(1.6, kind="NameQuery", name="else.example", type="A"),
    ]
    assert [(each.who or [0])[0] for each in list(joining.joined(events))[4:]] == [
        CURL["pid"],
        other["pid"],
    ]
    assert list(joining.joined(events))[2].who == (CURL["pid"], CURL["start"])


STARTED = event("SessionStarted", 0, command=["x"], workspace="/w", trace_source="ebpf, notify, network")


def asked(at: float, path: str, *argv: str, process: Any = CURL) -> Recorded:
    made = event("ProcessStarted", at, process, argv=list(argv), path=path, result="", requested=True)
    return changed(made, source="notify")


def done(at: float, path: str, *argv: str, result: str = "", process: Any = CURL) -> Recorded:
    made = event("ProcessStarted", at, process, argv=list(argv), path=path, result=result, requested=False)
    return changed(made, source="ebpf")


def programs(*events: Recorded) -> list[tuple[str, str, bool]]:
    found = joining.joined([STARTED, *events])
    return [(e.source, e.path, "asked" in e.data) for e in found if e.kind == "ProcessStarted"]


def test_a_program_that_two_sources_tell_of_is_one_event() -> None:
    """By descriptor (execveat, fexecve), and with arguments that eBPF cuts."""
    by_descriptor = asked(1, "/memfd:x", "x", "1"), done(1.1, "/dev/fd/4", "x", "1")
    assert programs(*by_descriptor) == [("ebpf", "/dev/fd/4", True)]
    row = query.summarise(joining.joined([STARTED, *by_descriptor])).data()["programs"]
    assert [(each["path"], each["count"]) for each in row] == [("/memfd:x", 1)]
    assert programs(asked(1, "/bin/x", "x", "yyy"), done(1.1, "/bin/x", "x", "yy")) == [("ebpf", "/bin/x", True)]
    failed = asked(1, "/bin/x", "x"), done(1.1, "/bin/x", result="ENOEXEC")
    assert programs(*failed) == [("ebpf", "/bin/x", True)]


def test_what_does_not_belong_together_stays_two_events() -> None:
    """Else a program whose event was lost on purpose would lend its name to the next one."""
    first = asked(1, "/memfd:x", "x")
    for other in (done(2, "/bin/y", "x"), done(2, "/dev/fd/4", "y"), done(2, "/memfd:x", "x", process=OTHER)):
        assert sorted(programs(first, other)) == sorted(
            [("notify", "/memfd:x", False), (*programs(other)[0][:2], False)]
        )
    assert programs(first) == [("notify", "/memfd:x", False)]  # what became of it is not told
    assert len(programs(first, first, done(2, "/dev/fd/4", "x"))) == 2
    far = [event("FileOpened", 3, CURL, path="/w/a", flags=[])] * (joining.FOLLOWS + 1)
    assert len(programs(first, *far, done(2, "/dev/fd/4", "x"))) == 2
    alone = [changed(STARTED, trace_source="notify, network"), first, first]
    assert [e.kind for e in joining.joined(alone)] == ["SessionStarted", "ProcessStarted", "ProcessStarted"]


def test_an_allowed_name_is_of_who_asked() -> None:
    """By the socket or the port of the question, else who asked a resolver last."""
    calls = [
        event("SocketCalled", 1, CURL, call="connect", family="inet", address="198.18.0.1", port=53, socket=7),
        event("SocketCalled", 1.1, OTHER, call="connect", family="inet", address="198.18.0.1", port=53, socket=8),
    ]
    name = event("NameResolved", 1.2, name="h", type="A", verdict="allow", address="198.18.0.16")
    for fields, who in (({"client_socket": 7}, CURL), ({"client_socket": 8}, OTHER), ({}, OTHER)):
        *_calls, resolved = joining.joined([*calls, changed(name, **fields)])
        assert resolved.data["process"] == who and resolved.data["joined"] is True
    (unknown,) = joining.joined([name])
    assert unknown.process is None


@pytest.mark.parametrize("call", ["sendto", "sendmsg", "sendmmsg"])
def test_a_connection_that_is_opened_by_sending_is_of_who_sent(call: str) -> None:
    sent = event("SocketCalled", 1, CURL, call=call, family="inet", address="203.0.113.9", port=80, socket=7)
    refused = denied(1.1, "address not allowed", kind="Connect", host="", address="203.0.113.9", port=80)
    for fields in ({"client_socket": 7}, {}):
        *_call, joined = joining.joined([sent, changed(refused, **fields)])
        assert joined.data["process"] == CURL


def test_the_summary_answers_every_question() -> None:
    data = query.summarise(joining.joined(RUN)).data()
    assert data["command"] == ["sh", "-c", "x"]
    assert data["exit_code"] == 3
    assert [(row["path"], row["count"]) for row in data["programs"]] == [("/bin/sh", 1), ("/usr/bin/curl", 1)]
    assert [row["path"] for row in data["written"]] == ["/w/out.txt", "/w/.github/workflows/ci.yml", "/w/other"]
    assert [row["path"] for row in data["read_outside"]] == ["/etc/**", "/opt-data/x"]
    [connection] = data["connections"]
    assert {name: connection[name] for name in ("host", "port", "bytes_up", "bytes_down", "by")} == {
        "host": "h.example",
        "port": 443,
        "bytes_up": 100,
        "bytes_down": 2000,
        "by": ["curl"],
    }
    [request] = data["requests"]
    assert (request["method"], request["path"], request["status"]) == ("GET", "/v1", [200])
    refused = [(row["target"], row["reason"], row["allow"]) for row in data["refused"]]
    assert ("no.example", "name not allowed", 'allow: ["h:443"]') in refused
    assert ("/root/secret", "read: EACCES", None) in refused
    assert [(row["path"], row["why"]) for row in data["left"]] == [("/w/.github/workflows/ci.yml", "CI runs it")]
    assert (data["complete"], data["gaps"], data["not_seen"]) == (True, [], [])


def test_what_is_missing_makes_it_incomplete() -> None:
    lost = event("EventsLost", 5, kind="FileOpened", count=7, start="a", end="b", cause="ring full")
    with_loss = query.summarise([*RUN, lost]).data()
    assert not with_loss["complete"]
    assert with_loss["gaps"] == ["7 events of FileOpened were lost (ring full) between a and b"]
    unproven = event("EventsLost", 9, kind="network", count=0, start="a", end="b", cause="it was killed")
    ended = changed(RUN[-1], incomplete=["network: it was killed", "notify: gone"])
    for events in ([*RUN[:-1], unproven, ended], [*RUN[:-1], ended, unproven]):
        assert query.summarise(events).data()["gaps"] == [
            "events may be missing: network: it was killed",
            "events may be missing: notify: gone",
        ]
    no_end = query.summarise(RUN[:-1]).data()
    assert no_end["gaps"] == ["the end of the session is missing"]
    assert query.summarise(RUN[:-1]).data(running=True)["gaps"] == ["the session is still running"]
    assert query.summarise(RUN).data(["torn"])["gaps"] == ["torn"]
    untraced = query.summarise([changed(RUN[0], trace_source="network"), RUN[-1]]).data()
    assert not untraced["complete"]
    assert untraced["gaps"] == []
    assert "no tracer" in untraced["not_seen"][0]


@pytest.mark.parametrize(
    ("path", "later"),
    [
        ("/w/.git/hooks/pre-commit", True),
        ("/w/sub/.git/config", True),
        ("/w/.bashrc", True),
        ("/w/.claude/settings.local.json", True),
        ("/w/.GitHub/Workflows/x.yml", True),
        ("/w/package.json", True),
        ("/w/Makefile", True),
        ("/home/u/.local/bin/x", True),
        ("/w/.git/hooks/pre-commit.sample", False),  # git runs exact names only
        ("/w/.git/hooks/pre-commit.sample/x", True),
        ("/w/.git/hooks/pre-commit.sample.sh", True),
        ("/w/hooks/readme", False),
        ("/w/src/main.c", False),
        ("/w/config", False),
        ("/w/settings.json", False),
    ],
)
def test_what_may_run_later(path: str, later: bool) -> None:
    assert bool(query.runs_later(path)) is later


def test_a_removed_file_is_not_left_behind() -> None:
    events = [
        event("FileOpened", 1, SHELL, path="/w/Makefile", flags=["wronly"], result=""),
        event("FileRemoved", 2, SHELL, path="/w/Makefile", result=""),
        event("FileRenamed", 3, SHELL, path="/w/a", to="/w/.git/hooks/post-merge", result=""),
    ]
    assert [row["path"] for row in query.summarise(events).data()["left"]] == ["/w/.git/hooks/post-merge"]


def test_a_file_that_was_made_executable_may_run_later() -> None:
    def mode(at: float, path: str, value: str, result: str = "") -> Recorded:
        return event("FileChanged", at, SHELL, path=path, change="mode", value=value, result=result)

    events = [
        event("FileCreated", 1, SHELL, path="/w/directory", type="directory", result=""),
        mode(2, "/w/directory", "0755"),
        mode(3, "/w/tool", "0755"),
        mode(4, "/w/refused", "0755", "EPERM"),
        mode(5, "/tmp/elsewhere", "0755"),
        mode(6, "/w/data", "0644"),
        mode(7, "/w/taken-back", "0700"),
        mode(8, "/w/taken-back", "0600"),
        mode(9, "/w/part.tmp", "0711"),
        event("FileRenamed", 10, SHELL, path="/w/part.tmp", to="/w/moved", result=""),
        event("FileChanged", 11, SHELL, path="/w/own", change="owner", value=":7", result=""),
    ]
    data = query.summarise(events).data()
    assert [(row["path"], row["why"]) for row in data["left"]] == [
        ("/w/tool", "it was made executable"),
        ("/w/moved", "it was made executable"),
    ]
    assert {row["path"]: row["how"] for row in data["written"]}["/w/own"] == ["owner :7"]
    assert [(row["target"], row["reason"]) for row in data["refused"]] == [("/w/refused", "write: EPERM")]


def test_a_workspace_below_tmp_is_not_temporary() -> None:
    events = [
        event("SessionStarted", 0, None, command=["x"], workspace="/tmp/w", trace_source="ebpf, network"),
        event("FileOpened", 1, SHELL, path="/tmp/w/Makefile", flags=["wronly"], result=""),
        event("FileOpened", 2, SHELL, path="/tmp/w2/Makefile", flags=["wronly"], result=""),
    ]
    data = query.summarise(events).data()
    assert [row["path"] for row in data["written"]] == ["/tmp/w/Makefile"]
    assert [row["path"] for row in data["left"]] == ["/tmp/w/Makefile"]


def test_a_summary_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "MOST", 100)
    events = (event("FileOpened", 1, SHELL, path=f"/w/{n}", flags=["wronly"], result="") for n in range(1000))
    data = query.summarise(events).data()
    assert len(data["written"]) == 100
    assert any("900 more" in gap for gap in data["gaps"])


def test_a_refused_write_is_one_refusal() -> None:
    """The policy says why, the call with which errno: ``refused`` of the summary does not count it twice."""
    hook, alone = "/w/.git/hooks/x", "/w/alone"
    events = [
        event("SessionStarted", 0, command=["x"], workspace="/w", trace_source="notify, network"),
        denied(1, "protected name", kind="PathAccess", path=".git/hooks/x", operation="write"),
        event("FileOpened", 1, SHELL, path=hook, flags=["wronly", "creat"], result="EROFS", requested=True),
        event("FileOpened", 1, SHELL, path=alone, flags=["wronly", "creat"], result="EROFS", requested=True),
        event("FileOpened", 1, SHELL, path=hook, flags=["rdonly"], result="EACCES", requested=True),
    ]
    found = query.summarise(events).data()["refused"]
    assert [(row["target"], row["reason"]) for row in found] == [
        (".git/hooks/x", "protected name"),
        (alone, "write: EROFS"),
        (hook, "read: EACCES"),
    ]


@pytest.mark.parametrize(("silent", "known"), [("reads of what is not in the view; limits", False), ("limits", True)])
def test_what_was_not_recorded_is_not_called_none(silent: str, known: bool) -> None:
    bound = [{"rule": "refusals without an event", "mechanism": silent, "status": "partial", "read_back": False}]
    start = event("SessionStarted", 0, command=["x"], workspace="/w", trace_source="notify, network", assurance=bound)
    ran = event("ProcessStarted", 1, SHELL, parent=1, argv=["sh"], cwd="/w", path="/bin/sh", result="")
    data = query.summarise([start, ran]).data()
    assert (query.READS not in data["not_seen"]) is known
    lines = trace_text.summary_lines(data)
    assert f"read outside the workspace: {'none' if known else 'not recorded'}" in lines
    # A tracer whose events did not come is not the same as none.
    missing = trace_text.summary_lines(query.summarise([start]).data())
    assert "programs that ran: not known, the events are missing" in missing
    without = trace_text.summary_lines(query.summarise([changed(start, trace_source="network")]).data())
    assert "programs that ran: not seen, there was no tracer" in without
