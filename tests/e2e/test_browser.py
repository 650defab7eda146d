"""A development server of the command, exposed, in a real browser of the host."""

from __future__ import annotations

import select
import subprocess

import pytest
from world.box import Box

PATIENCE = 120.0  # seconds: a deadline, not a measurement
PAGE = """<!doctype html><title>page</title><p id=made></p>
<script>
const made = document.getElementById("made");
fetch("/data.json").then(r => r.json()).then(d => { made.textContent = d.word + 6 * 7; });
</script>"""
SERVER = """
import http.server, sys, threading
server = http.server.ThreadingHTTPServer(("127.0.0.1", 8130), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print("up", flush=True)
sys.stdin.read()
"""


@pytest.mark.needs_tool("chromium")
def test_chromium_shows_what_an_exposed_server_serves(box: Box) -> None:
    (box.workspace / "index.html").write_text(PAGE)
    (box.workspace / "data.json").write_text('{"word": "answer "}')
    profile = box.home / "chromium"
    chromium = [
        "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-breakpad", "--disable-crash-reporter", "--no-proxy-server", f"--user-data-dir={profile}",
        "--virtual-time-budget=10000", "--dump-dom", "http://127.0.0.1:8131/",
    ]  # fmt: skip
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    box.allow(ports={"expose": ["8130:8131"]})
    process = box.popen(f"--events={box.events_path}", "--", "/usr/bin/python3", "-c", SERVER, **pipes)
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], PATIENCE)[0]
    assert process.stdout.readline() == b"up\n"
    shown = box.outside(*chromium, timeout=PATIENCE)
    process.communicate(timeout=PATIENCE)
    assert '<p id="made">answer 42</p>' in shown.stdout, shown
    assert {event["port"] for event in box.events("ConnectionOpened")} == {8130}
    gone = box.outside(*chromium, timeout=PATIENCE)  # and nothing when the run is over
    assert "answer 42" not in gone.stdout, gone
