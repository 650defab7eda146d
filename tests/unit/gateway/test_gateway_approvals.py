"""Every kind of access waits for its answer, and nothing of it is done before."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import hpack
import pytest

from membrane.gateway import approvals, messages
from membrane.gateway.adapters import Asked
from membrane.gateway.adapters.docker import Containers, Docker
from membrane.gateway.adapters.gpg_agent import GpgAgent
from membrane.gateway.adapters.ssh_agent import SshAgent, frame, string
from membrane.gateway.approvals import Approvals
from membrane.gateway.dns import Answerer, Names
from membrane.gateway.http import frames as h2
from membrane.gateway.http.exchange import (
    AskFirst,
    CloseClient,
    CloseUpstream,
    OpenUpstream,
    Seen,
    SendClient,
    SendUpstream,
)
from membrane.gateway.http.http1 import Http1
from membrane.gateway.http.http2 import Http2
from membrane.gateway.http.requests import MOST_QUESTIONS, Bound, Gate
from membrane.gateway.messages import QUESTIONS
from membrane.gateway.reactor import Reactor
from membrane.gateway.sniff import PREFACE
from membrane.host import owner
from membrane.policy.grammar import host_rule
from membrane.policy.model import (
    Allow,
    Ask,
    Connect,
    Deny,
    HttpRequest,
    NameQuery,
    Origin,
    Policy,
    SocketAccess,
    SocketRule,
)
from membrane.run.prompt import text
from membrane.run.questions import Question, Questions, read_question

if TYPE_CHECKING:
    from membrane.gateway.http.exchange import Command
    from membrane.policy.model import Verdict

HERE = Origin("user", "config.yaml", 1)
NAME = "api.example"


REACTORS: list[Reactor] = []


@pytest.fixture(autouse=True)
def _closes_its_reactors() -> Iterator[None]:
    yield
    while REACTORS:
        REACTORS.pop().close()


class Inside:
    """The gateway's side."""

    def __init__(self, policy: Policy, *kinds: str) -> None:
        self.sent: list[Any] = []
        self.events: list[Any] = []
        self.names = Names(100)
        REACTORS.append(Reactor())
        self.approvals = Approvals(
            policy,
            frozenset(),
            self.names,
            REACTORS[-1],
            self.sent.append,
            lambda: None,
            60.0,
            self.events.append,
            kinds or QUESTIONS,
        )

    def ask(self, access: Any) -> list[Any]:
        got: list[Any] = []
        verdict = self.approvals.decide(access)
        assert isinstance(verdict, Ask), verdict
        self.approvals.ask(access, verdict.hint, got.append)
        return got


def limited(*more: str) -> Policy:
    rules = [host_rule(f"https://{NAME}/v1/", HERE, http=((("GET",), ()),)), *(host_rule(each, HERE) for each in more)]
    return Policy(allow=tuple(rules))


def request(method: str = "POST", path: str = "/v1/x") -> HttpRequest:
    return HttpRequest(NAME, 443, "https", method, path)


# ---------------------------------------------------------------- what is asked, and what a yes means


@pytest.mark.parametrize(
    ("access", "kind", "neighbour"),
    [
        (NameQuery("other.example"), "name", NameQuery("x.other.example")),
        (Connect("other.example", "", 443), "connection", Connect("other.example", "", 80)),
        (Connect("", "2001:4860::1", 443), "connection", Connect("", "2001:4860::2", 443)),
        (Connect("other.example", "", 5000, "udp"), "datagram", Connect("other.example", "", 5000)),
        (request(), "request", request("PUT")),
        (request("GET", "/v2"), "request", request("GET", "/v3")),
        (SocketAccess("/s", "sign", ("SHA256:b", "two")), "socket", SocketAccess("/s", "sign", ("SHA256:c", "three"))),
    ],
)
def test_a_yes_is_for_what_was_shown_and_not_for_its_neighbour(access: Any, kind: str, neighbour: Any) -> None:
    socket_rule = SocketRule("/s", HERE, "ssh-agent", ("SHA256:a",))
    inside = Inside(limited().replace(unix_sockets=(socket_rule,)))
    got = inside.ask(access)
    asked = inside.sent[0]
    assert (asked.kind, asked.number, asked.seconds, asked.client) == (kind, 1, 60.0, None)
    assert asked.lasting is (kind != "socket")
    inside.approvals.answer(1, "once")
    assert isinstance(got[0].decide(access), Allow)
    assert isinstance(got[0].decide(neighbour), Deny)
    assert isinstance(inside.approvals.decide(access), Ask)  # once
    inside.ask(access)
    inside.approvals.answer(2, "session")
    assert isinstance(inside.approvals.decide(access), Allow)
    assert isinstance(inside.approvals.decide(neighbour), Ask)
    inside.ask(neighbour)
    inside.approvals.answer(3, "no")
    assert isinstance(inside.approvals.decide(neighbour), Deny)
    assert [event.answer for event in inside.events] == ["once", "session", "no"]


@pytest.mark.parametrize("kind", QUESTIONS)
def test_what_is_not_a_kind_to_be_asked_about_is_refused(kind: str) -> None:
    inside = Inside(limited().replace(unix_sockets=(SocketRule("/s", HERE, "ssh-agent", ("a",)),)), kind)
    accesses = {
        "connection": Connect("other.example", "", 443),
        "datagram": Connect("other.example", "", 443, "udp"),
        "request": request(),
        "socket": SocketAccess("/s", "sign", ("b",)),
    }
    for each, access in accesses.items():
        assert isinstance(inside.approvals.decide(access), Ask if each == kind else Deny), each
    # Without a question of its own a name is answered where its connection would be asked about.
    expected = {"name": Ask, "connection": Allow}.get(kind, Deny)
    assert isinstance(inside.approvals.decide(NameQuery("other.example")), expected)


def test_neither_hard_refusals_nor_what_has_no_hint_is_asked() -> None:
    rules = Policy(
        deny=(host_rule(f"https://{NAME}/v1/secret", HERE, deny=True), host_rule("no.example", HERE, deny=True)),
        unix_sockets=(SocketRule("/s", HERE, "docker", ("GET /info",)),),
    )
    inside = Inside(rules.replace(allow=limited().allow))
    for access in (
        NameQuery("no.example"),
        NameQuery("metadata.google.internal"),
        NameQuery("other.example", "TXT"),
        Connect("no.example", "", 443, "udp"),
        Connect("", "169.254.169.254", 80, "udp"),
        request("GET", "/v1/secret"),
        request("POST", "/v1/../x"),
        request("post"),
        HttpRequest("other.example", 443, "https", "GET", "/"),  # there is no connection for it
        SocketAccess("/s", "POST /containers/create with HostConfig.Binds"),
        SocketAccess("/other"),
    ):
        assert isinstance(inside.approvals.decide(access), Deny), access
    assert isinstance(inside.approvals.decide(SocketAccess("/s", "POST /containers/create")), Ask)
    assert isinstance(inside.approvals.decide(SocketAccess("/s", "GET /info")), Allow)


def test_a_yes_does_not_lift_a_deny() -> None:
    inside = Inside(limited().replace(deny=(host_rule(f"https://{NAME}/v2/secret", HERE, deny=True),)))
    got = inside.ask(request("GET", "/v2"))
    inside.approvals.answer(1, "session")
    assert isinstance(got[0].decide(request("GET", "/v2/x")), Allow)
    assert isinstance(inside.approvals.decide(request("GET", "/v2/secret")), Deny)


def test_other_rules_keep_what_was_allowed_and_ask_again_about_what_was_not() -> None:
    inside = Inside(Policy())
    one, two = Connect("one.example", "", 443), Connect("two.example", "", 443)
    for access, answer in ((one, "session"), (two, "no")):
        inside.ask(access)
        inside.approvals.answer(len(inside.sent), answer)
    inside.approvals.follow(limited())
    assert isinstance(inside.approvals.decide(one), Allow)
    assert isinstance(inside.approvals.decide(two), Ask)
    inside.approvals.follow(Policy(deny=(host_rule("one.example", HERE, deny=True),)))
    assert isinstance(inside.approvals.decide(one), Deny)


def test_what_was_refused_is_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "REMEMBERED", 3)
    inside = Inside(Policy())
    for number in range(5):
        inside.ask(Connect(f"n{number}.example", "", 443))
        inside.approvals.answer(number + 1, "no")
    verdicts = [inside.approvals.decide(Connect(f"n{number}.example", "", 443)) for number in range(5)]
    assert [type(verdict) for verdict in verdicts] == [Ask, Ask, Deny, Deny, Deny]


# ---------------------------------------------------------------- look-ups


def query(name: str, kind: int = 1) -> bytes:
    wire = b"".join(bytes((len(label),)) + label.encode() for label in name.split(".")) + b"\0"
    return struct.pack(">6H", 7, 0x100, 1, 0, 0, 0) + wire + struct.pack(">HH", kind, 1)


@pytest.mark.parametrize(("answer", "code", "records"), [("once", 0, 1), ("session", 0, 1), ("no", 3, 0)])
def test_a_look_up_waits(answer: str, code: int, records: int) -> None:
    inside = Inside(Policy())
    answerer = Answerer(inside.names, inside.approvals.decide, inside.events.append)
    answerer.ask = lambda question, hint, call: inside.approvals.ask(question, hint, lambda router: call(bool(router)))
    later: list[bytes | None] = []
    for kind in (1, 28):  # one question for both
        assert answerer.answer(query("a.example", kind), later.append) == b""
    assert [asked.access for asked in inside.sent] == [{"kind": "NameQuery", "name": "a.example", "type": "A"}]
    assert answerer.answer(query("b.example"))[3] & 15 == 3  # type: ignore[index]  # who cannot wait is refused
    inside.approvals.answer(1, answer)
    assert len(later) == 2
    for response in later:
        assert response is not None
        assert (response[3] & 15, response[7]) == (code, records)
    assert answerer.queries == 3


# ---------------------------------------------------------------- requests


def http1(inside: Inside, *, connected: bool = True) -> Http1:
    gate = Gate(Bound(NAME, 443, "https"), inside.approvals.decide, asks=True)
    return Http1(gate, lambda: 0.0, connected=connected)


def post(path: str = "/v1/x", *fields: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"Host: {NAME}", "Content-Length: 2", *fields]
    return "\r\n".join([*lines, "", "ab"]).encode()


def about(commands: list[Command]) -> HttpRequest:
    """The question, which is all that there is."""
    (command,) = commands
    assert isinstance(command, AskFirst)
    return command.question.request


def yes(_request: HttpRequest) -> Verdict:
    return Allow(None, "somebody said so")


def test_nothing_of_a_request_goes_up_before_the_answer() -> None:
    core = http1(Inside(limited()))
    assert about(core.client_data(post())) == request()
    assert core.client_data(post("/v1/later")) == []
    assert core.waiting == "nothing"
    (sent,) = core.answered(yes)
    assert isinstance(sent, SendUpstream)
    assert sent.data.startswith(b"POST /v1/x HTTP/1.1\r\n")
    assert sent.data.endswith(b"\r\n\r\nab")
    *_, last = core.upstream_data(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert about([last]).path == "/v1/later"  # the next one of the pipeline


def test_a_refused_request_is_answered_and_the_next_one_judged() -> None:
    core = http1(Inside(limited()))
    about(core.client_data(post()))
    commands = core.answered(None)
    assert isinstance(commands[0], SendClient)
    assert commands[0].data.startswith(b"HTTP/1.1 403 ")
    (told,) = [each for each in commands if isinstance(each, Seen)]
    assert isinstance(told.verdict, Deny)
    assert told.verdict.reason == "method not allowed"
    (sent,) = core.client_data(f"GET /v1/x HTTP/1.1\r\nHost: {NAME}\r\n\r\n".encode())
    assert isinstance(sent, SendUpstream)


def test_what_it_may_be_read_as_is_asked_as_well_and_not_without_end() -> None:
    core = http1(Inside(limited()))
    fields = [f"X-HTTP-Method-Override: M{number}" for number in range(MOST_QUESTIONS + 1)]
    assert about(core.client_data(post("/v1/x", *fields))).method == "POST"
    for number in range(MOST_QUESTIONS - 1):
        assert about(core.answered(yes)).method == f"M{number}"
    commands = core.answered(yes)
    assert isinstance(commands[0], SendClient)
    assert commands[0].data.startswith(b"HTTP/1.1 403 ")


def test_a_server_that_closed_meanwhile_is_a_readable_502() -> None:
    core = http1(Inside(limited()))
    about(core.client_data(post()))
    assert core.upstream_eof() == []
    commands = core.answered(yes)
    assert isinstance(commands[0], SendClient)
    assert commands[0].data.startswith(b"HTTP/1.1 502 ")
    assert isinstance(commands[-1], CloseClient)
    assert [each for each in commands if isinstance(each, CloseUpstream)]


def test_a_client_that_ends_or_a_server_that_speaks_meanwhile() -> None:
    core = http1(Inside(limited()), connected=False)
    about(core.client_data(post()))
    assert core.client_eof() == []  # it may still read
    assert [type(each) for each in core.answered(yes)] == [OpenUpstream]
    core = http1(Inside(limited()))
    about(core.client_data(post()))
    assert isinstance(core.upstream_data(b"HTTP/1.1 200 OK\r\n\r\n")[-1], CloseClient)
    assert core.answered(yes) == []
    assert core.answered(yes) == []


def test_streams_of_http2_go_up_in_their_order() -> None:
    encoder = hpack.Encoder()

    def head(stream: int, method: bytes, path: bytes) -> bytes:
        fields = [(b":method", method), (b":scheme", b"https"), (b":authority", NAME.encode()), (b":path", path)]
        return h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, stream, encoder.encode(fields))

    core = Http2(Gate(Bound(NAME, 443, "https"), Inside(limited()).approvals.decide, asks=True), lambda: 0.0)
    core.client_data(PREFACE + h2.frame(h2.SETTINGS, 0, 0))
    core.upstream_data(h2.frame(h2.SETTINGS, 0, 0))
    first, second, third = head(1, b"POST", b"/v1/x"), head(3, b"GET", b"/v1/y"), head(5, b"GET", b"/v1/z")
    assert about(core.client_data(first + second)) == request()
    assert not core.wants_client
    assert core.waiting == "nothing"
    assert core.client_data(third) == []
    (sent,) = core.answered(yes)
    assert isinstance(sent, SendUpstream)
    streams = []
    data = sent.data
    while data:
        streams.append(int.from_bytes(data[5:9], "big"))
        data = data[9 + int.from_bytes(data[:3], "big") :]
    assert streams == [1, 3, 5]
    assert core.wants_client
    core.client_data(head(7, b"POST", b"/v1/x"))
    commands = core.answered(None)
    assert [each.status for each in commands if isinstance(each, Seen)] == [403]


# ---------------------------------------------------------------- operations


class Judge:
    """``judge`` of an adapter, answered later."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.answers: list[bool] = []

    def __call__(self, operation: str, names: tuple[str, ...]) -> bool:
        if operation in ("list", "offer"):
            return True
        if self.answers:
            return self.answers.pop(0)
        self.asked.append((operation, names))
        raise Asked


def ssh(judge: Judge) -> tuple[Any, bytes, bytes, bytes]:
    adapter = SshAgent(judge)
    blobs = string(b"blob") + string(b"comment")
    adapter.from_server(frame(b"\x0c" + (1).to_bytes(4, "big") + blobs))
    message = frame(b"\x0d" + string(b"blob") + string(b"data") + bytes(4))
    return adapter, message, message, frame(b"\x05")


def gpg(judge: Judge) -> tuple[Any, bytes, bytes, bytes]:
    adapter = GpgAgent(judge)
    adapter.from_server(b"OK hello\n")
    adapter.from_client(b"SIGKEY " + b"A" * 40 + b"\n")
    adapter.from_server(b"OK\n")
    return adapter, b"PKSIGN\n", b"PKSIGN\n", b"ERR 67109115"


def docker(judge: Judge) -> tuple[Any, bytes, bytes, bytes]:
    message = b"GET /info HTTP/1.1\r\nHost: docker\r\n\r\n"
    sent = b"GET /info HTTP/1.1\r\nHost: docker\r\nContent-Length: 0\r\n\r\n"
    return Docker(judge, Containers()), message, sent, b"HTTP/1.1 403 "


@pytest.mark.parametrize("make", [ssh, gpg, docker])
@pytest.mark.parametrize("allowed", [True, False])
def test_a_message_to_a_service_waits_whole(make: Callable[[Judge], Any], allowed: bool) -> None:
    judge = Judge()
    adapter, message, sent, refused = make(judge)
    adapter.up.clear()
    adapter.down.clear()
    for octet in message * 2:  # a second one waits behind it, however it is cut
        adapter.from_client(bytes((octet,)))
    assert adapter.parked
    assert (bytes(adapter.up), bytes(adapter.down), len(judge.asked)) == (b"", b"", 1)
    judge.answers = [allowed]
    adapter.resume()
    if allowed:
        assert bytes(adapter.up) == sent
        assert adapter.down == b""
    else:
        assert adapter.up == b""
        assert bytes(adapter.down).startswith(refused)
    assert len(judge.asked) == (1 if allowed else 2)  # the second one is asked about once the first is answered


# ---------------------------------------------------------------- the session's side


def test_the_question_is_typed_and_its_text_is_safe() -> None:
    access = {"kind": "HttpRequest", "host": NAME, "port": 443, "scheme": "https", "method": "GET", "path": "/\x1b[2J"}
    process = owner.Process(7, 1, "c\x1b[8murl\n", "/usr/bin/c\u202eurl")
    asked = {"number": 3, "kind": "request", "access": access, "rule": "allow: [\x07]", "lasting": True, "seconds": 5}
    question = read_question(asked, process)
    assert (question.kind, question.host, question.port, question.method) == ("request", NAME, 443, "GET")
    assert (question.path, question.socket, question.seconds) == ("/\x1b[2J", "", 5.0)
    shown = text(question)
    assert shown.replace("\n", "").isprintable()
    assert shown.isascii()
    assert len(shown.splitlines()) == 4
    named = read_question({"number": 1, "kind": "name", "access": {"kind": "NameQuery", "name": "a"}, "rule": ""})
    assert (named.host, named.path, named.process) == ("a", "", None)
    signing = {"kind": "SocketAccess", "path": "/s", "operation": "sign", "names": ["k"]}
    socket_question = read_question({"number": 1, "kind": "socket", "access": signing, "rule": "", "lasting": False})
    assert (socket_question.socket, socket_question.path, socket_question.names) == ("/s", "", ("k",))


def test_several_questions_at_once_are_answered_in_any_order() -> None:
    shown: list[tuple[Question, Any]] = []
    ended: list[int] = []
    sent: list[tuple[int, str]] = []
    questions = Questions(
        lambda question, answer: shown.append((question, answer)),
        lambda question: ended.append(question.number),
        lambda number, answer: sent.append((number, answer)),
        at_once=2,
    )
    access = {"kind": "Connect", "host": "a", "port": 1}
    for number in (1, 2, 3):
        questions.take(messages.Asked(number, "connection", access, "", True, None, 1.0))
    assert [question.number for question, _ in shown] == [1, 2]
    shown[1][1]("once")
    questions.withdraw(1)
    shown[0][1]("session")
    shown[2][1]("no")
    assert (sent, ended) == ([(2, "once"), (3, "no")], [1])


HOLDER = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); %s; sys.stdin.read()"


@pytest.mark.parametrize("shared", [False, True])
def test_the_holder_of_a_socket_is_named_if_it_is_the_only_one(shared: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        fork = "import os; os.set_inheritable(s.fileno(), True); os.fork()" if shared else "0"
        command = [sys.executable, "-c", HOLDER % fork, str(server.getsockname()[1])]
        child = subprocess.Popen(command, stdin=subprocess.PIPE)
        try:
            connection, (_host, port) = server.accept()
            deadline = time.monotonic() + 60
            while shared and owner.of({"protocol": "tcp", "port": port}, os.getpid()) and time.monotonic() < deadline:
                pass  # until the fork is done
            found = owner.of({"protocol": "tcp", "port": port}, os.getpid())
            connection.close()
        finally:
            assert child.stdin is not None
            child.stdin.close()
            child.wait(60)
    if shared:
        assert found is None
    else:
        assert found is not None
        assert found.pid == child.pid
        assert "python" in found.exe


def test_a_search_among_too_many_descriptors_names_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        end = {"protocol": "tcp", "port": client.getsockname()[1]}
        found = owner.of(end, os.getpid())
        assert found is not None
        assert found.pid == os.getpid()
        monkeypatch.setattr(owner, "MOST_DESCRIPTORS", 1)
        assert owner.of(end, os.getpid()) is None


def test_nobody_is_named_on_a_guess() -> None:
    me = os.getpid()
    for client in (None, {}, {"protocol": "tcp", "port": 0}, {"protocol": "tcp", "port": 1}, {"protocol": "unix"}):
        assert owner.of(client, me) is None
    assert owner.of({"protocol": "unix", "pid": me}, 1 << 22) is None
    found = owner.of({"protocol": "unix", "pid": me}, me)
    assert found is not None
    assert found.pid == me
