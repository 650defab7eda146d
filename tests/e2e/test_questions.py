"""``--ask`` beyond connections: requests, datagrams, operations on sockets; and who it is that asks."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_sockets import agent, keys, short  # noqa: F401  fixtures
from world import Terminal
from world.box import Box
from world.inspected import denied, no_crash, requests, url_rule

PLAIN = "http://stream.test:8080"
H2 = "https://h2.test:8445"
PATIENCE = 60.0
CODE = "-s -o /dev/null -w 'got %{http_code}\\n'"
NEXT = "read -r go;"  # each step begins when the output of the one before was seen
ANSWER = r"\[N\]o: "


@contextmanager
def asking(box: Box, script: str, *options: str) -> Iterator[Terminal]:
    arguments = ["--ask", f"--extra-ca={box.world.ca}", f"--events={box.events_path}", *options]
    with box.terminal(*arguments, "--", "bash", "-c", script) as terminal:
        yield terminal


def answered(box: Box) -> list[tuple[str, str]]:
    return [(event["access"]["kind"], event["answer"]) for event in box.events("AccessAnswered")]


# ---------------------------------------------------------------- requests


def test_a_request_beside_its_rule_waits_and_others_go_on(box: Box) -> None:
    box.allow(url_rule(f"{PLAIN}/v1/", "GET"))
    first = f"curl {CODE} -d some=content {PLAIN}/v1/x"
    others = f"for i in 1 2; do curl {CODE} {PLAIN}/v1/y >> out; done; wait"
    script = f"{first} & {others}; {NEXT} {first}; {NEXT} curl {CODE} {PLAIN}/v2"
    with asking(box, script) as terminal:
        question = terminal.expect(rf"allow the request POST {PLAIN}/v1/x\?.*{ANSWER}", PATIENCE).group().decode()
        assert f'rule    allow: [{{dest: "{PLAIN}/v1/x", http: [{{methods: ["POST"]}}]}}]' in question
        assert re.search(r"process curl \(\d+\)  /\S*curl\r", question), question
        out = box.workspace / "out"
        deadline = 600
        while not (out.exists() and out.read_text() == "got 200\n" * 2) and deadline:
            deadline -= 1
            with pytest.raises(subprocess.TimeoutExpired):
                terminal.process.wait(0.1)
        assert out.read_text() == "got 200\n" * 2
        terminal.send("o\n")
        terminal.expect("got 200", PATIENCE)
        terminal.send("next\n")
        terminal.expect(f"POST.*{ANSWER}", PATIENCE)  # "once" was for the request that waited
        terminal.send("n\n")
        terminal.expect("got 403", PATIENCE)
        terminal.send("next\n")
        terminal.expect(rf"GET {PLAIN}/v2.*{ANSWER}", PATIENCE)
        terminal.send("s\n")
        terminal.expect("got 200", PATIENCE)
        terminal.wait(PATIENCE)
    assert answered(box) == [("HttpRequest", "once"), ("HttpRequest", "no"), ("HttpRequest", "session")]
    # In the order in which they ended.
    assert sorted(requests(box)) == sorted(
        [
            ("GET", "/v1/y", 200, "allow"),
            ("GET", "/v1/y", 200, "allow"),
            ("POST", "/v1/x", 200, "allow"),
            ("POST", "/v1/x", 403, "deny"),
            ("GET", "/v2", 200, "allow"),
        ]
    )
    assert denied(box) == ["method not allowed"]
    no_crash(box)


@pytest.mark.needs_tool("node")
def test_a_stream_of_http2_waits(box: Box) -> None:
    box.allow(url_rule(f"{H2}/v1/", "GET"))
    with asking(box, f"curl --http2 -w ' got %{{http_code}}\\n' -s -d some=content {H2}/v1/x {H2}/v1/y") as terminal:
        terminal.expect(rf"allow the request POST {H2}/v1/x\?.*{ANSWER}", PATIENCE)
        terminal.send("o\n")
        terminal.expect(rf"allow the request POST {H2}/v1/y\?.*{ANSWER}", PATIENCE)
        terminal.send("n\n")
        terminal.expect("got 403", PATIENCE)
        terminal.wait(PATIENCE)
        assert re.search(rb'"bytes": ?12.*got 200', terminal.seen, re.S)  # the content that waited went up
    assert {event["protocol"] for event in box.events("RequestSeen")} == {"h2"}
    no_crash(box)


def test_always_for_a_request_is_written_as_it_was_shown(box: Box) -> None:
    box.policy(f"presets: []\nallow:\n  - {PLAIN}/v1/\n")
    with asking(box, f"curl {CODE} -X PUT {PLAIN}/v2") as terminal:
        terminal.expect(rf"PUT {PLAIN}/v2.*{ANSWER}", PATIENCE)
        terminal.send("a\n")
        terminal.expect("got 200", PATIENCE)
        terminal.wait(PATIENCE)
    text = (box.state / "config.yaml").read_text()
    entry = f'{{dest: "{PLAIN}/v2", http: [{{methods: ["PUT"]}}]}}'
    assert text == f"presets: []\nallow:\n  - {entry}\n  - {PLAIN}/v1/\n"
    script = f"for m in PUT DELETE; do curl {CODE} -X $m {PLAIN}/v2; done"
    assert box.run("--", "bash", "-c", script).stdout == "got 200\ngot 403\n"


def test_what_a_rule_denies_or_nobody_understands_is_no_question(box: Box) -> None:
    deny = [{"dest": f"{PLAIN}/v1/", "http": [{"methods": ["DELETE"]}]}]
    box.allow(url_rule(f"{PLAIN}/v1/", "GET"), deny=deny)
    script = f"curl {CODE} -X DELETE {PLAIN}/v1/x; curl {CODE} --path-as-is '{PLAIN}/v1/..%2fx'; echo end"
    with asking(box, script) as terminal:
        terminal.expect("got 403.*got 400.*end", PATIENCE)
        terminal.wait(PATIENCE)
        assert b"No rule decides" not in terminal.seen
    assert denied(box) == ["denied by rule", "request malformed"]


def test_hostile_paths_are_shown_escaped_and_cut(box: Box) -> None:
    box.allow(url_rule(f"{PLAIN}/v1/"))
    path = "/" + "A" * 4000 + "/%e2%80%ae%5b2J"  # U+202E turns the direction of what follows
    with asking(box, f"curl {CODE} '{PLAIN}{path}'") as terminal:
        question = terminal.expect(f"allow the request.*{ANSWER}", PATIENCE).group()
        assert len(question) < 1200
        assert b"characters are not shown" in question
        assert b"%E2%80%AE%5B2J?" in question.upper()
        assert b"\xe2\x80\xae" not in question
        terminal.send("n\n")
        terminal.expect("got 403", PATIENCE)
        terminal.wait(PATIENCE)


# ---------------------------------------------------------------- datagrams

ECHO = (
    "import socket, sys\n"
    "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(60)\n"
    "s.connect((sys.argv[1], 5000))\n"
    "s.send(b'hello'); print('echo', s.recv(100).decode())\n"
)


def test_a_flow_of_datagrams_waits(box: Box) -> None:
    box.allow({"dest": "example.com", "ports": ["5000/udp"]})
    refused = ECHO.partition("print")[0] + "input()\n"
    (box.workspace / "echo.py").write_text(ECHO)
    (box.workspace / "refused.py").write_text(refused)
    script = f"for i in 1 2; do python3 echo.py echo.test; done; {NEXT} python3 refused.py portquiz.test; echo end"
    with asking(box, script) as terminal:
        question = terminal.expect(rf"allow datagrams to echo\.test:5000/udp\?.*{ANSWER}", PATIENCE).group()
        assert b'rule    allow: ["echo.test:5000/udp"]' in question
        assert re.search(rb"process python3[.\d]* \(\d+\)", question), question
        terminal.send("s\n")
        terminal.expect("echo hello.*echo hello", PATIENCE)
        terminal.send("next\n")
        terminal.expect(rf"allow datagrams to portquiz\.test:5000/udp\?.*{ANSWER}", PATIENCE)
        terminal.send("n\n")
        terminal.send("go on\n")
        terminal.expect("end", PATIENCE)
        terminal.wait(PATIENCE)
    assert answered(box) == [("Connect", "session"), ("Connect", "no")]
    assert denied(box) == ["name not allowed"]


# ---------------------------------------------------------------- sockets


def test_a_key_that_no_rule_names_signs_when_somebody_says_so(box: Box, agent: Path) -> None:  # noqa: F811
    one, two = (line.split()[1] for line in keys(agent).splitlines())
    box.allow(unix_sockets=[{"path": str(agent), "as": "ssh-agent", "allow": [one]}])
    for name in ("one", "two"):
        shutil.copy(agent.parent / f"{name}.pub", box.workspace)
    signs = "echo x | ssh-keygen -q -Y sign -n file -f %s.pub > /dev/null; echo %s=$?"
    script = f"; {NEXT} ".join(signs % (name, name) for name in ("one", "two", "two"))
    with asking(box, script) as terminal:
        terminal.expect("one=0", PATIENCE)
        terminal.send("next\n")
        question = terminal.expect(f"allow the operation sign with SHA256.*{ANSWER}", PATIENCE).group().decode()
        assert two in question.replace("\r\n", "")
        assert "[a]lways" not in question
        assert re.search(r"process ssh-keygen \(\d+\)", question), question
        terminal.send("always\n")  # not offered, no answer
        terminal.expect(ANSWER, PATIENCE)
        terminal.send("o\n")
        terminal.expect("two=0", PATIENCE)
        terminal.send("next\n")
        terminal.expect(f"sign with.*{ANSWER}", PATIENCE)
        terminal.send("n\n")
        terminal.expect("two=255", PATIENCE)
        terminal.wait(PATIENCE)
    assert answered(box) == [("SocketAccess", "once"), ("SocketAccess", "no")]
    assert denied(box) == ["operation not allowed"]


# ---------------------------------------------------------------- the agent against the person


def test_T03_the_name_that_is_shown_is_the_one_that_is_reached(box: Box) -> None:
    """Letters that look like others are shown as what they are (RFC 5891 A-label)."""
    box.allow()
    with asking(box, f"curl {CODE} http://b\u00fccher.test:8080/") as terminal:
        question = terminal.expect(f"allow a connection to .*{ANSWER}", PATIENCE).group()
        assert b"xn--bcher-kva.test:8080?" in question
        assert question.decode("ascii")
        terminal.send("o\n")
        terminal.expect("got 200", PATIENCE)
        terminal.wait(PATIENCE)


def test_T04_a_yes_to_one_place_is_none_to_where_it_leads(box: Box) -> None:
    """What was approved is judged by what it does: the place that is fetched from it is another question."""
    box.allow()
    script = f"curl {CODE} {PLAIN}/list; {NEXT} curl {CODE} http://example.com/payload"
    with asking(box, script) as terminal:
        terminal.expect(rf"allow a connection to stream\.test:8080\?.*{ANSWER}", PATIENCE)
        terminal.send("s\n")
        terminal.expect("got 200", PATIENCE)
        terminal.send("next\n")
        terminal.expect(rf"allow a connection to example\.com:80\?.*{ANSWER}", PATIENCE)
        terminal.send("n\n")
        terminal.expect("got 403", PATIENCE)
        terminal.wait(PATIENCE)
    assert answered(box) == [("Connect", "session"), ("Connect", "no")]


def test_T05_an_answer_ends_with_its_run(box: Box) -> None:
    box.allow()
    script = f"curl {CODE} {PLAIN}/; {NEXT} curl {CODE} {PLAIN}/"
    with asking(box, script) as terminal:
        terminal.expect(f"allow a connection.*{ANSWER}", PATIENCE)
        terminal.send("s\n")
        terminal.expect("got 200", PATIENCE)
        terminal.send("next\n")
        terminal.expect("got 200", PATIENCE)
        terminal.wait(PATIENCE)
    before = (box.state / "config.yaml").read_text()
    assert box.run("--", "bash", "-c", f"curl {CODE} {PLAIN}/").stdout == "got 000\n"  # the name is not answered
    assert (box.state / "config.yaml").read_text() == before


def test_a_program_that_names_itself_writes_nothing_on_the_terminal(box: Box) -> None:
    box.allow()
    script = (
        "import ctypes, socket, sys\n"
        "ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0)\n"  # PR_SET_NAME
        "s = socket.create_connection(('stream.test', 8080))\n"
        "s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n'); print(s.recv(12))"
    )
    (box.workspace / "named.py").write_text(script)
    name = "a\x1b[2J)\\n rule"
    with asking(box, f"python3 named.py $'{name}'") as terminal:
        question = terminal.expect(f"allow a connection to .*{ANSWER}", PATIENCE).group()
        lines = question.replace(b"\r", b"").split(b"\n")
        assert [line.split()[0] for line in lines] == [b"allow", b"process", b"rule", b"[o]nce,"]
        assert b"\x1b" not in question
        assert b"a\\u{1b}[2J)\\u{a} rule (" in lines[1]
        terminal.send("o\n")
        terminal.expect("HTTP/1.. 200", PATIENCE)
        terminal.wait(PATIENCE)
