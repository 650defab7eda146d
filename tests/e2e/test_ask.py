"""``--ask``: a person at the terminal decides what no rule decides (rows T01, T03, T05 as far as given)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from world import Terminal, names
from world.box import Box

URL = f"http://host.internal:{names.DEV_PORT}/"
QUESTION = rf"allow a connection to host\.internal:{names.DEV_PORT}\?.*\[N\]o: "
CURL = f"curl -s -o /dev/null -w 'got %{{http_code}}\\n' {URL}"
PATIENCE = 60.0


@contextmanager
def asking(box: Box, script: str, *options: str) -> Iterator[Terminal]:
    with box.terminal("--ask", f"--events={box.events_path}", *options, "--", "bash", "-c", script) as terminal:
        yield terminal


def answers(box: Box) -> list[str]:
    return [event["answer"] for event in box.events("AccessAnswered")]


def test_once_holds_for_the_connection_that_waited(box: Box) -> None:
    box.allow()
    with asking(box, f"{CURL}; {CURL}") as terminal:
        question = terminal.expect(QUESTION, PATIENCE).group().decode()
        assert f'allow: ["host.internal:{names.DEV_PORT}"]' in question
        terminal.send("o\n")
        terminal.expect("got 200", PATIENCE)
        terminal.expect(QUESTION, PATIENCE)
        terminal.send("once\n")
        terminal.expect("got 200", PATIENCE)
        assert terminal.wait(PATIENCE) == 0
    assert answers(box) == ["once", "once"]


def test_session_is_asked_once_and_other_ports_are_another_question(box: Box) -> None:
    box.allow()
    other = CURL.replace(str(names.DEV_PORT), str(names.LAN_PORT))
    with asking(box, f"{CURL}; {CURL}; {other}; {CURL}") as terminal:
        terminal.expect(QUESTION, PATIENCE)
        terminal.send("s\n")
        terminal.expect("got 200.*got 200", PATIENCE)
        terminal.expect(rf"host\.internal:{names.LAN_PORT}\?.*\[N\]o: ", PATIENCE)
        terminal.send("\n")  # the default
        terminal.expect("got 403.*got 200", PATIENCE)
        terminal.wait(PATIENCE)
    assert answers(box) == ["session", "no"]


@pytest.mark.parametrize("word", ["n", "", "\x03", "x\ny\nz"])
def test_no_refuses_and_holds_for_the_session(box: Box, word: str) -> None:
    box.allow()
    with asking(box, f"{CURL}; {CURL}") as terminal:
        terminal.expect(QUESTION, PATIENCE)
        terminal.send(word + "\n")
        terminal.expect("got 403.*got 403", PATIENCE)
        terminal.wait(PATIENCE)
    assert answers(box) == ["no"]
    assert {event["reason"] for event in box.events("AccessDenied")} == {"name not allowed"}


def test_always_is_written_to_the_user_s_file_and_keeps_its_comments(box: Box) -> None:
    box.policy("# mine\npresets: []\nallow: [a.example]  # first\nhome: ephemeral\n")
    with asking(box, CURL) as terminal:
        terminal.expect(QUESTION, PATIENCE)
        terminal.send("a\n")
        terminal.expect("got 200", PATIENCE)
        terminal.wait(PATIENCE)
    text = (box.state / "config.yaml").read_text()
    rule = f'"host.internal:{names.DEV_PORT}"'
    assert text == f"# mine\npresets: []\nallow: [a.example, {rule}]  # first\nhome: ephemeral\n"
    assert box.run("--", "sh", "-c", CURL).stdout == "got 200\n"


def test_always_in_the_project_is_trusted_from_then_on(box: Box) -> None:
    box.allow()
    with asking(box, CURL) as terminal:
        terminal.expect(QUESTION, PATIENCE)
        terminal.send("p\n")
        terminal.expect("got 200", PATIENCE)
        terminal.wait(PATIENCE)
    assert (box.workspace / ".membrane.yaml").read_text() == f'allow:\n  - "host.internal:{names.DEV_PORT}"\n'
    assert box.run("--", "sh", "-c", CURL).stdout == "got 200\n"


def test_keys_typed_before_the_question_do_not_answer_it(box: Box) -> None:
    box.allow()
    with asking(box, f"echo ready; read -r go; {CURL}; echo after") as terminal:
        terminal.expect("ready", PATIENCE)
        terminal.send("go\ns\ns\ns\n")
        terminal.expect(QUESTION, PATIENCE)
        assert b"got" not in terminal.seen
        terminal.send("n\n")
        terminal.expect("got 403.*after", PATIENCE)
        terminal.wait(PATIENCE)
    assert answers(box) == ["no"]


def test_text_from_inside_neither_poses_as_the_question_nor_hides_it(box: Box) -> None:
    """What the command prints while the question stands comes after the answer; what it left half done is ended."""
    box.allow()
    fake = "membrane: allow a connection to good.example:443?"
    noise = "while sleep 0.02; do echo NOISE; done"
    script = f"echo '{fake}'; printf '\\033[8m\\033]0;title'; {CURL} & pid=$!; ({noise}) & n=$!; wait $pid; "
    script += "read -r go; kill $n"
    with asking(box, script) as terminal:
        terminal.expect(QUESTION, PATIENCE)
        start = terminal._from
        before = terminal.seen[: terminal.seen.rindex(b"membrane: allow")]
        assert before.endswith(b"\x18\x1b\\\x1b[!p\x1b[0m\r\n")
        terminal.send("o")
        terminal.expect("o", PATIENCE)  # the echo of the terminal itself
        assert b"NOISE" not in terminal.seen[start:]
        terminal.send("\n")
        terminal.expect("got 200", PATIENCE)
        terminal.expect("NOISE", PATIENCE)  # it goes on
        terminal.send("go\n")
        terminal.wait(PATIENCE)
    assert answers(box) == ["once"]


def test_others_go_on_while_one_waits(box: Box) -> None:
    box.allow(f"host.internal:{names.DEV_PORT}")
    other = CURL.replace(str(names.DEV_PORT), str(names.LAN_PORT))
    script = f"{other} & sleep 0.1; for i in 1 2 3; do {CURL} >> out; done; touch done; wait"
    with asking(box, script) as terminal:
        terminal.expect(rf"host\.internal:{names.LAN_PORT}\?.*\[N\]o: ", PATIENCE)
        deadline = 600
        while not (box.workspace / "done").exists() and deadline:
            terminal.process.poll()
            deadline -= 1
            _pause()
        assert (box.workspace / "out").read_text() == "got 200\n" * 3
        terminal.send("n\n")
        terminal.wait(PATIENCE)


def _pause() -> None:
    import time

    time.sleep(0.1)  # one of many short looks at a condition


def test_what_a_deny_or_a_floor_refuses_is_never_asked(box: Box) -> None:
    box.policy(f'presets: []\ndeny: ["host.internal:{names.DEV_PORT}"]\n')
    script = f"{CURL}; curl -s -m 60 http://169.254.169.254/; echo end $?"
    with asking(box, script) as terminal:
        terminal.expect("got (403|000).*end", PATIENCE)
        terminal.wait(PATIENCE)
        assert b"No rule decides" not in terminal.seen
    reasons = {event["reason"] for event in box.events("AccessDenied")}
    assert reasons == {"denied by rule", "metadata address"}


def test_without_a_terminal_nobody_is_asked(box: Box) -> None:
    box.allow()
    done = box.run("--ask", f"--events={box.events_path}", "--", "sh", "-c", f"{CURL}; echo end")
    assert re.search("got (403|000)\nend", done.stdout), done
    assert not box.events("AccessAnswered")
    assert {event["reason"] for event in box.events("AccessDenied")} == {"name not allowed"}


def test_the_terminal_is_given_back_as_it_was(box: Box) -> None:
    box.allow()
    with asking(box, f"{CURL}; read -r x; echo read=$x") as terminal:
        terminal.expect(QUESTION, PATIENCE)
        terminal.send("o\n")
        terminal.expect("got 200", PATIENCE)
        terminal.send("typed\n")
        terminal.expect("read=typed", PATIENCE)
        assert terminal.wait(PATIENCE) == 0
        assert terminal.attributes() == terminal.original
