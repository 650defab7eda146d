"""A browser behind rules about requests: it trusts the session without being told, and says what was refused."""

from __future__ import annotations

import json
import os

import pytest
from world.box import Box
from world.inspected import every, no_crash, requests, run, url_rule

NGINX = "https://nginx.test:8447"
STREAM = "https://stream.test:8444"
# Without its own sandbox, which needs namespaces; without what it asks of the network for itself.
BROWSER = """
browse() {
    chromium --headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking \\
        --disable-component-update --disable-sync --disable-dev-shm-usage --user-data-dir="$HOME/$1" \\
        --virtual-time-budget=20000 --dump-dom "$2" 2>"$HOME/errors" || tail -n 20 "$HOME/errors"
}
"""


@pytest.mark.needs_tool("chromium")
@pytest.mark.parametrize(
    ("origin", "protocol"),
    [(STREAM, "http/1.1"), pytest.param(NGINX, "h2", marks=pytest.mark.needs_tool("/usr/sbin/nginx"))],
)
def test_chromium(box: Box, origin: str, protocol: str) -> None:
    box.allow(url_rule(f"{origin}/v1/", "GET"))
    script = BROWSER + f"browse one {origin}/v1/a; echo; echo ----; browse one {origin}/v2"
    done = run(box, "bash", "-c", script)
    seen, _, refused = done.stdout.partition("----")
    assert "</html>" in seen and "membrane" not in seen, done
    told = json.loads(refused[refused.index("{") : refused.rindex("}") + 1].replace("&quot;", '"'))
    assert (told["error"], told["reason"]) == ("blocked by membrane", "path not allowed")
    asked = [(method, path, status) for method, path, status, _verdict in requests(box) if path != "/favicon.ico"]
    assert asked == [("GET", "/v1/a", 200), ("GET", "/v2", 403)], asked
    assert {event["protocol"] for event in box.events("RequestSeen")} == {protocol}
    no_crash(box)


@pytest.mark.parametrize("what", ["ln -s $PWD ~/.pki", "mkdir ~/.pki && ln -s $PWD ~/.pki/nssdb", "touch ~/.pki"])
def test_what_an_earlier_run_left_there_is_no_way_out(box: Box, what: str) -> None:
    """A link in the place of the database is not followed, and ends no later run."""
    box.allow(every(STREAM))
    assert run(box, "bash", "-c", "ls -a ~/.pki/nssdb").stdout.split() == [".", "..", "cert9.db"]
    assert (
        run(box, "bash", "-c", f"rm -rf ~/.pki/nssdb; rmdir ~/.pki/nssdb ~/.pki; mv ~/.pki ~/away; {what}").returncode
        == 0
    )
    done = run(box, "bash", "-c", "cat $SSL_CERT_FILE | grep -c BEGIN; ls -d ~/.pki; ls -A")
    assert done.returncode == 0 and done.stdout.split()[1].endswith("/.pki"), done
    assert os.listdir(box.workspace) == []
