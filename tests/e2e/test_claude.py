"""Real agents behind the boundary: Claude Code, and Codex, against stand-ins for their model APIs.

The stand-in (``world/model_apis.py``) answers with two tool calls, then text.  The first makes a file, the second
curls a host that is not allowed and reads a private key.  Both programs come from npm; ``.ci/run`` installs them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

import pytest
from world.box import PRIVATE_KEY, Box

AGENT_PATIENCE = 120.0  # seconds: these programs start a hundred megabytes
CLAUDE = ("claude", "--dangerously-skip-permissions", "-p", "do it")
CODEX = (
    "codex",
    "exec",
    "--skip-git-repo-check",
    "--dangerously-bypass-approvals-and-sandbox",
    "-mgpt-5",  # a name that this version does not know: it then uses plain tools
    "-cmodel_provider=fake",
    '-cmodel_providers.fake={name="fake",base_url="http://messages.test:8787/v1",'
    'wire_api="responses",env_key="OPENAI_API_KEY"}',
    "do it",
)
CLAUDE_ENVIRONMENT = {
    "ANTHROPIC_API_KEY": "not-a-key",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "IS_SANDBOX": "1",
}


def path_with(program: str) -> dict[str, str]:
    found = shutil.which(program)
    assert found
    return {"PATH": f"{os.path.dirname(found)}:/usr/local/bin:/usr/bin:/bin"}


def options(environment: dict[str, str]) -> list[str]:
    return [f"--env={name}={value}" for name, value in environment.items()]


def new_results(box: Box, api: str, before: int) -> list[str]:
    """The tool results that the last call of an agent's conversation carried."""
    calls: list[dict[str, Any]] = box.world.model_calls(api=api)[before:]
    results: list[str] = max((call["results"] for call in calls), key=len)
    assert len(results) == 2, calls
    return results


def refused_inside(box: Box, done: subprocess.CompletedProcess[str], api: str, before: int) -> None:
    assert done.returncode == 0, done
    assert "All done." in done.stdout, done
    _, second = new_results(box, api, before)
    assert "curl=6" in second, second
    assert "cat=1" in second, second
    assert PRIVATE_KEY.split()[1] not in second
    assert "hello" in second
    assert (box.workspace / "made.txt").read_text() == "hello\n"
    assert (box.workspace / "made.txt").stat().st_uid == os.getuid()


@pytest.mark.needs_tool("claude")
def test_the_control_has_both(box: Box) -> None:
    """Without membrane the same conversation reaches the host and reads the key."""
    before = len(box.world.model_calls(api="messages"))
    environment = {**path_with("claude"), **CLAUDE_ENVIRONMENT, "ANTHROPIC_BASE_URL": "http://messages.test:8787"}
    done = box.outside(*CLAUDE, env=environment, timeout=AGENT_PATIENCE)
    assert done.returncode == 0, done
    _, second = new_results(box, "messages", before)
    assert "curl=0" in second
    assert json.dumps(PRIVATE_KEY.strip())[1:-1] in second


@pytest.mark.needs_tool("claude")
def test_claude_code(box: Box) -> None:
    before = len(box.world.model_calls(api="messages"))
    box.allow("messages.test:8787")
    environment = {**CLAUDE_ENVIRONMENT, "ANTHROPIC_BASE_URL": "http://messages.test:8787"}
    done = box.run(
        *options(environment),
        f"--events={box.events_path}",
        "--",
        *CLAUDE,
        env=path_with("claude"),
        timeout=AGENT_PATIENCE,
    )
    refused_inside(box, done, "messages", before)
    assert "example.com" in json.dumps(box.events("AccessDenied"))
    assert "example.com" in done.stderr


@pytest.mark.needs_kernel("overlayfs in a user namespace")
@pytest.mark.needs_tool("claude")
def test_claude_code_in_a_reviewed_workspace(box: Box) -> None:
    """What it makes is seen, put in place and taken back; before that nothing is there."""
    box.allow("messages.test:8787")
    (box.workspace / "old.txt").write_text("old\n")
    environment = {**CLAUDE_ENVIRONMENT, "ANTHROPIC_BASE_URL": "http://messages.test:8787"}
    arguments = ["--review=one", *options(environment), "--", *CLAUDE]
    done = box.run(*arguments, env=path_with("claude"), timeout=AGENT_PATIENCE)
    assert done.returncode == 0 and "All done." in done.stdout, done
    assert "the workspace is as it was; the change set one holds: 1 added" in done.stderr, done
    assert os.listdir(box.workspace) == ["old.txt"]
    assert "+hello" in box.run("diff", "one").stdout.splitlines()
    assert box.run("apply", "one").returncode == 0
    assert (box.workspace / "made.txt").read_text() == "hello\n"
    assert (box.workspace / "made.txt").stat().st_uid == os.getuid()
    assert box.run("undo", "one").returncode == 0
    assert os.listdir(box.workspace) == ["old.txt"]


@pytest.mark.needs_tool("claude")
@pytest.mark.parametrize("backend", ["native", "landlock"])
def test_claude_code_by_its_profile(box: Box, backend: str) -> None:
    """No policy at all: the command's name chooses the profile, which allows the real host name over TLS."""
    before = len(box.world.model_calls(api="messages"))
    arguments = [f"--backend={backend}", *options(CLAUDE_ENVIRONMENT), *box.tls, "--", *CLAUDE]
    done = box.run(*arguments, env=path_with("claude"), timeout=AGENT_PATIENCE)
    refused_inside(box, done, "messages", before)
    assert box.world.requests(host="api.anthropic.com", sni="api.anthropic.com")
    kept = box.state / "agents" / "claude"  # found in every workspace, by either backend
    assert list((kept / ".claude").rglob("*.jsonl")) and "userID" in json.loads((kept / ".claude.json").read_text())


@pytest.mark.needs_tool("claude")
def test_claude_code_may_only_ask_the_model_and_does_not_know_its_key(box: Box) -> None:
    before = len(box.world.model_calls(api="messages"))
    key = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789"
    api = "https://api.anthropic.com"
    box.allow(
        {"dest": api, "http": [{"methods": ["POST"], "paths": ["/v1/messages"]}]},
        secrets=[{"name": "ANTHROPIC_API_KEY", "from": "env:REAL_KEY", "to": [f"{api}/v1"], "header": "x-api-key"}],
    )
    environment = {name: value for name, value in CLAUDE_ENVIRONMENT.items() if name != "ANTHROPIC_API_KEY"}
    arguments = ["--no-profile", *options(environment), f"--extra-ca={box.world.ca}", f"--events={box.events_path}"]
    done = box.run(*arguments, "--", *CLAUDE, env={**path_with("claude"), "REAL_KEY": key}, timeout=AGENT_PATIENCE)
    refused_inside(box, done, "messages", before)
    asked = {(event["method"], event["path"]) for event in box.events("RequestSeen") if event["verdict"] == "allow"}
    assert asked == {("POST", "/v1/messages")}
    assert key not in done.stdout + done.stderr + box.events_path.read_text()


@pytest.mark.needs_tool("claude")
def test_claude_code_without_its_host_says_so(box: Box) -> None:
    box.allow("example.com")
    before = len(box.world.model_calls())
    environment = {
        **CLAUDE_ENVIRONMENT,
        "CLAUDE_CODE_MAX_RETRIES": "0",
        "ANTHROPIC_BASE_URL": "http://messages.test:8787",
    }
    done = box.run(
        "--no-profile", *options(environment), "--", *CLAUDE, env=path_with("claude"), timeout=AGENT_PATIENCE
    )
    assert done.returncode != 0
    assert len(box.world.model_calls()) == before
    assert "messages.test" in done.stderr


@pytest.mark.needs_tool("codex")
def test_codex(box: Box) -> None:
    before = len(box.world.model_calls(api="responses"))
    box.allow("messages.test:8787")
    done = box.run(
        *options({"OPENAI_API_KEY": "not-a-key"}), "--", *CODEX, env=path_with("codex"), timeout=AGENT_PATIENCE
    )
    refused_inside(box, done, "responses", before)
