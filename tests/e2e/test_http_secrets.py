"""Secrets: servers that show them, servers that read another path, commands that write where they come from."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path

import pytest
from world.box import Box
from world.inspected import denied, no_crash, run
from world.spelled import SPELLED

STREAM = "https://stream.test:8444"
KEY = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYzz"
SECRET = {"name": "API_KEY", "from": "env:REAL", "to": [f"{STREAM}/v1/"], "header": "x-api-key"}
EX_CONFIG = 78


def test_an_echo_in_any_spelling_is_scrubbed(box: Box) -> None:
    box.allow(STREAM, secrets=[SECRET])
    script = f"""
    echo "$API_KEY"
    for name in {" ".join(SPELLED)}; do
        curl -sS -D /tmp/head -H "x-api-key: $API_KEY" {STREAM}/v1/spelled/$name | base64 -w0
        sed -n 's/^x-proof: / /p' /tmp/head | tr -d '\\r'
    done
    """
    done = run(box, "bash", "-c", script, env={"REAL": KEY})
    placeholder, *lines = done.stdout.splitlines()
    assert len(lines) == len(SPELLED), done
    for (name, (spell, reader)), line in zip(SPELLED.items(), lines, strict=True):
        text, proof = line.split()
        sent = spell(KEY.encode())
        assert hashlib.sha256(sent).hexdigest() == proof  # positive control: this is what the server sent
        assert KEY.upper() in reader(sent).upper()
        shown = base64.b64decode(text)
        assert len(shown) == len(sent) and placeholder.upper() in reader(shown).upper(), name
        assert KEY.upper() not in reader(shown).upper(), name
    no_crash(box)


def test_a_path_that_a_server_may_read_instead_is_judged_too(box: Box) -> None:
    box.allow(f"{STREAM}/", secrets=[SECRET])
    ask = "curl -sS -o /dev/null -w '%{http_code} ' -H \"x-api-key: $API_KEY\""
    script = f"""
    {ask} {STREAM}/v1/x
    {ask} -H 'X-Original-URL: /v1/y' {STREAM}/v1/x
    {ask} -H 'X-Original-URL: /public/log' {STREAM}/v1/x
    {ask} -H 'X_Rewrite_URL: /public/log' {STREAM}/v1/x
    {ask} {STREAM}/public/log
    """
    done = run(box, "bash", "-c", script, env={"REAL": KEY})
    assert done.stdout.split() == ["200", "200", "403", "403", "403"], done
    assert denied(box) == ["secret not for this place"] * 3
    assert "may be read as GET /public/log" in box.events("AccessDenied")[0]["hint"]


def test_a_value_goes_into_no_field_that_a_server_publishes(box: Box) -> None:
    box.allow(STREAM, secrets=[{**SECRET, "header": "* x-odd"}])
    fields = ("x-api-key", "X-Some-Token", "X-Odd", "Cache-Control", "content_type", "x-ms-tags", "X-Other")
    script = "".join(
        f"curl -sS -o /dev/null -w '%{{http_code}} ' -H \"{name}: $API_KEY\" {STREAM}/v1/x\n" for name in fields
    )
    done = run(box, "bash", "-c", script, env={"REAL": KEY})
    assert done.stdout.split() == ["200"] * 3 + ["403"] * 4, done
    assert 'header: "* x-odd cache-control"' in box.events("AccessDenied")[0]["hint"]


# ---------------------------------------------------------------- where values come from


def program(path: Path, proof: Path) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\ntouch {proof}\necho {KEY}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("argv", [["./tools/tok"], ["sh", "./tools/tok"], ["tok"], ["sh", "-c", "exec WORK/tools/tok"]])
def test_a_program_that_the_command_can_write_does_not_run(box: Box, argv: list[str], tmp_path: Path) -> None:
    proof = tmp_path / "ran"
    program(box.workspace / "tools" / "tok", proof)
    argv = [word.replace("WORK", str(box.workspace)) for word in argv]
    box.allow(STREAM, secrets=[{**SECRET, "from": {"command": argv}}])
    found = {"PATH": f"{box.workspace}/tools:/usr/bin:/bin"}
    assert box.outside(*argv, env=found).stdout == f"{KEY}\n"  # positive control
    proof.unlink()
    done = run(box, "true", env=found)
    assert done.returncode in (EX_CONFIG, 125) and not proof.exists(), done
    assert "which the command can write" in done.stderr or "no such program in an entry of PATH" in done.stderr


def test_a_program_outside_runs_without_what_the_command_can_write(box: Box, tmp_path: Path) -> None:
    """Its directory, its PATH and its variables name nothing of the workspace."""
    path = box.home / "bin" / "tok"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\n[ "$PATH$PWD$PYTHONPATH" = /usr/bin:/bin/ ] && echo {KEY}\n')
    path.chmod(0o755)
    box.allow(STREAM, secrets=[{**SECRET, "from": {"command": [str(path)]}}])
    names = {"PATH": f"{box.workspace}/bin:bin::/usr/bin:/bin", "PYTHONPATH": f"{box.workspace}/src"}
    done = run(box, "printenv", "API_KEY", env=names)
    assert len(done.stdout.strip()) == len(KEY) and KEY not in done.stdout, done


@pytest.mark.parametrize("kind", ["file", "link", "link above", "fifo", "homes"])
def test_a_file_that_the_command_can_choose_is_not_read(box: Box, kind: str) -> None:
    outside = box.home / "token"
    outside.write_text(KEY)
    box.allow(STREAM, secrets=[{**SECRET, "from": f"file:{outside}"}])
    assert len(run(box, "printenv", "API_KEY").stdout.strip()) == len(KEY)  # positive control
    path = box.workspace / "token"
    if kind == "file":
        path.write_text(KEY)
    elif kind == "link":
        path.symlink_to(outside)
    elif kind == "link above":
        (box.workspace / "d").symlink_to(box.home)
        path = box.workspace / "d" / "token"
    elif kind == "homes":
        path = next((box.state / "homes").iterdir()) / "token"
        path.write_text(KEY)
    else:
        path = box.home / "fifo"
        os.mkfifo(path)
    box.allow(STREAM, secrets=[{**SECRET, "from": f"file:{path}"}])
    done = run(box, "true")
    assert done.returncode == EX_CONFIG, done
    assert ("not a regular file" if kind == "fifo" else "which the command can write") in done.stderr


def test_an_approval_covers_the_program(box: Box, tmp_path: Path) -> None:
    box.allow()
    path = program(box.home / "bin" / "tok", tmp_path / "ran")
    secret = {**SECRET, "from": {"command": [path]}}
    (box.workspace / ".membrane.yaml").write_text(json.dumps({"allow": [STREAM], "secrets": [secret]}))
    assert run(box, "true").returncode == EX_CONFIG
    assert box.run("trust", input="y\n").returncode == 0
    assert run(box, "true").returncode == 0
    assert run(box, "true").returncode == 0  # out of the cache
    (tmp_path / "ran").unlink()
    Path(path).write_text(f"#!/bin/sh\necho {KEY} # changed\n")
    done = run(box, "true")
    assert done.returncode == EX_CONFIG and "is not approved" in done.stderr, done
    assert box.run("trust", input="y\n").returncode == 0
    assert run(box, "true").returncode == 0
