"""The gateway behind ``backend: landlock``: secrets, questions, and a control with the native one beside each."""

from __future__ import annotations

import base64
import hashlib

import pytest
from world import names
from world.box import Box
from world.inspected import denied, no_crash, run

pytestmark = [pytest.mark.needs_kernel("landlock"), pytest.mark.needs_kernel("landlock without TCP")]
STREAM = "https://stream.test:8444"
KEY = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYzz"
SECRET = {"name": "API_KEY", "from": "env:REAL", "to": [f"{STREAM}/v1/"], "header": "x-api-key"}
QUESTION = rf"allow a connection to host\.internal:{names.DEV_PORT}\?.*\[N\]o: "
CURL = f"curl -s -o /dev/null -w 'got %{{http_code}}\\n' http://host.internal:{names.DEV_PORT}/"
PATIENCE = 60.0
backends = pytest.mark.parametrize("backend", ["landlock", "native"])


@backends
def test_a_secret_goes_out_where_it_may_and_its_echo_is_scrubbed(box: Box, backend: str) -> None:
    box.allow(f"{STREAM}/", secrets=[SECRET], backend=backend)
    (box.workspace / ".env").write_text("KEY=hidden")
    script = f"""
    echo "$API_KEY"
    curl -sS -D head -H "x-api-key: $API_KEY" {STREAM}/v1/spelled/as-it-is | base64 -w0
    sed -n 's/^x-proof: / /p' head | tr -d '\\r'
    curl -sS -o /dev/null -w '%{{http_code}}\\n' -H "x-api-key: $API_KEY" {STREAM}/public/log
    """
    done = run(box, "bash", "-c", script, env={"REAL": KEY})
    placeholder, echoed, status = done.stdout.splitlines()
    text, proof = echoed.split()
    assert hashlib.sha256(KEY.encode()).hexdigest() == proof, done  # the server got it
    assert base64.b64decode(text).decode() == placeholder != KEY
    assert status == "403" and denied(box) == ["secret not for this place"]
    assert KEY not in done.stdout + done.stderr
    no_crash(box)


@backends
def test_a_person_is_asked_and_the_answer_holds(box: Box, backend: str) -> None:
    box.allow(backend=backend)
    (box.workspace / ".env").write_text("KEY=hidden")
    script = f"{CURL}; {CURL}; echo made > new"
    with box.terminal("--ask", f"--events={box.events_path}", "--", "bash", "-c", script) as terminal:
        terminal.expect(QUESTION, PATIENCE)
        terminal.send("o\n")
        terminal.expect("got 200", PATIENCE)
        terminal.expect(QUESTION, PATIENCE)
        terminal.send("n\n")
        terminal.expect("got 403", PATIENCE)
        assert terminal.wait(PATIENCE) == 0
    assert [event["answer"] for event in box.events("AccessAnswered")] == ["once", "no"]
    assert (box.workspace / "new").read_text() == "made\n"
