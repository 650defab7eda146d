"""Budgets of rules, seen by curl and by a raw connection."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from world.box import Box

H2 = "https://h2.test:8445"
STREAM = "https://stream.test:8444"


def run(box: Box, *command: str) -> subprocess.CompletedProcess[str]:
    return box.run(f"--extra-ca={box.world.ca}", f"--events={box.events_path}", "--", *command)


def denied(box: Box) -> list[dict[str, Any]]:
    return [event for event in box.events("AccessDenied") if event["reason"] == "limit reached"]


@pytest.mark.needs_tool("node")
@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_requests_over_budget_are_answered(box: Box, version: str) -> None:
    """Counted over connections: each curl makes its own."""
    box.allow({"dest": f"{H2}/v1", "budget": {"requests": 2}}, f"{H2}/v2")
    script = f"""
    for path in v1/a v2/a v1/b v1/c v2/b; do
        curl -sS {version} -o body -w '%{{http_code}} ' {H2}/$path; [ -s body ] && cp body $(basename $path)
    done
    """
    done = run(box, "bash", "-c", script)
    assert done.stdout.split() == ["200", "200", "200", "429", "200"], done
    told = json.loads((box.workspace / "c").read_text())
    assert (told["reason"], told["rule"], told["path"]) == ("limit reached", f"{H2}/v1", "/v1/c")
    assert "2 requests in a session" in told["hint"]
    (event,) = denied(box)
    assert event["access"]["path"] == "/v1/c" and event["rule"].startswith(f"{H2}/v1 (user ")


def test_a_rate_is_told_with_the_time_to_wait(box: Box) -> None:
    box.allow({"dest": STREAM, "budget": {"rate": "1/h"}})
    script = f"for i in 1 2; do curl -sS -o /dev/null -D- -w '%{{http_code}}\\n' {STREAM}/a; done"
    done = run(box, "bash", "-c", script)
    lines = done.stdout.replace("\r", "").splitlines()
    assert [line for line in lines if len(line) == 3 and line.isdigit()] == ["200", "429"], done
    (after,) = [int(line.split()[1]) for line in lines if line.lower().startswith("retry-after:")]
    assert 3000 < after <= 3601


def test_an_upload_budget_counts_what_is_inspected(box: Box) -> None:
    box.allow({"dest": STREAM, "budget": {"upload": "100K", "requests": 10}})
    script = f"""
    for size in 1000 200000 1000; do
        head -c $size /dev/zero | curl -sS -o /dev/null -w '%{{http_code}} ' --data-binary @- {STREAM}/count
    done
    """
    done = run(box, "bash", "-c", script)
    assert done.stdout.split() == ["200", "429", "200"], done
    assert [event["access"]["method"] for event in denied(box)] == ["POST"]


def test_an_upload_budget_needs_no_inspection(box: Box) -> None:
    """TLS is end to end, and the connection ends where the budget does; another rule has its own."""
    box.allow({"dest": "stream.test:8444", "budget": {"upload": "100K"}}, "h2.test:8445")
    script = f"""
    send() {{ curl -sS --cacert ca.pem -o /dev/null -w '%{{http_code}} ' --data-binary @- {STREAM}/count; }}
    for size in 1000 200000 1000; do head -c $size /dev/zero | send; done
    """
    (box.workspace / "ca.pem").write_bytes(box.world.ca.read_bytes())
    done = run(box, "bash", "-c", script)
    assert done.stdout.split() == ["200", "000", "000"], done
    events = denied(box)
    assert {(event["access"]["kind"], event["access"]["host"]) for event in events} == {("Connect", "stream.test")}
    assert all("budget of stream.test:8444: 102400 bytes" in event["hint"] for event in events)
    assert not box.events("RequestSeen")


def test_the_plan_says_what_a_budget_needs(box: Box) -> None:
    counted = {"dest": "a.test:443", "budget": {"requests": 5, "rate": "60/min"}}
    box.allow(counted, {"dest": "b.test:22", "budget": {"upload": "1M"}})
    done = box.run("plan", "--", "true")
    assert done.returncode == 0, done
    plan = done.stdout
    assert "intercepted: a budget counts requests" in plan
    bound = plan.partition("rules and what binds them")[2].splitlines()
    (a,) = [line for line in bound if "a.test" in line]
    (b,) = [line for line in bound if "b.test" in line]
    assert "TLS interception" in a and "requests counted in the gateway" in a
    assert "TLS interception" not in b and "bytes up counted in the gateway" in b
    assert "ports" not in a + b, "the text says it"
