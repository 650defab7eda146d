"""MCP servers behind the boundary, and our own, met by the official client."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from world.box import membrane_argv

PATIENCE = 180.0


def environment(home: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(home), "MEMBRANE_HOME": str(home / "state"), "LANG": "C.UTF-8"}


def talk(tmp_path: Path, arguments: list[str], calls: list[tuple[str, dict[str, Any]]]) -> list[tuple[bool, str]]:
    """Start ``membrane ARGUMENTS`` as a server, call its tools; (refused, text) of each answer."""
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir(exist_ok=True)
    work.mkdir(exist_ok=True)
    program, *before = membrane_argv()
    server = StdioServerParameters(command=program, args=[*before, *arguments], env=environment(home), cwd=str(work))

    async def run() -> list[tuple[bool, str]]:
        out = []
        async with asyncio.timeout(PATIENCE):
            with (tmp_path / "errors").open("w") as errors:
                async with stdio_client(server, errlog=errors) as (read, write), ClientSession(read, write) as session:
                    await session.initialize()
                    for name, given in calls:
                        answer = await session.call_tool(name, given)
                        text = "".join(getattr(part, "text", "") for part in answer.content)
                        out.append((bool(answer.is_error), text))
        return out

    return asyncio.run(run())


@pytest.mark.needs_tool("mcp-server-filesystem")
def test_filesystem_server_writes_inside_only(tmp_path: Path) -> None:
    """The server is told that it may write everywhere; the boundary disagrees."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("of the host")
    inside = tmp_path / "work" / "made"
    calls = [
        ("write_file", {"path": str(inside), "content": "by the server"}),
        ("write_file", {"path": str(outside / "made"), "content": "by the server"}),
        ("read_text_file", {"path": str(outside / "secret")}),
        ("read_text_file", {"path": str(inside)}),
    ]
    written, refused, unread, read = talk(tmp_path, ["--quiet", "--", "mcp-server-filesystem", "/"], calls)
    assert not written[0] and inside.read_text() == "by the server"
    assert refused[0] and not (outside / "made").exists()
    assert unread[0] and "of the host" not in unread[1]
    assert read == (False, "by the server")


def test_our_server_runs_and_checks(tmp_path: Path) -> None:
    calls = [
        ("run_command", {"command": ["sh", "-c", "echo out; echo err >&2; echo x > made; exit 3"]}),
        ("run_command", {"command": ["sh", "-c", f"echo x > {tmp_path}/outside"]}),
        ("check", {"target": "unlisted.example:443"}),
        ("run_command", {"command": ["sleep", "30"], "timeout": 1}),
        ("run_command", {"command": []}),
    ]
    ran, outside, checked, late, nothing = talk(tmp_path, ["mcp", "serve"], calls)
    result = json.loads(ran[1])
    assert (result["exit_code"], result["stdout"], result["stderr"]) == (3, "out\n", "err\n")
    assert (tmp_path / "work" / "made").read_text() == "x\n"
    assert "exit_code" in json.loads(outside[1]) and not (tmp_path / "outside").exists()
    assert json.loads(checked[1])["verdict"] == "deny"
    assert json.loads(late[1])["timed_out"] is True
    assert nothing[0]


def test_our_server_reads_the_record(tmp_path: Path) -> None:
    """What a run did, by pages; a record that was written by somebody else is escaped and cut."""
    forged = tmp_path / "home" / "state" / "trace" / "forged"
    forged.mkdir(parents=True)
    line = {"event": "FileWritten", "time": "2020-01-01T00:00:00.000000Z", "path": "\x1b[2J\u202e" + "x" * 9000}
    deep: Any = "deep"
    for _ in range(50):
        deep = [deep]
    huge = {**line, "more": ["y" * 4000] * 200}
    lines = [*[line] * 100, {**line, "more": deep}, huge, *[{"event": "Small", "time": line["time"]}] * 900]
    text = "".join(json.dumps(each) + "\n" for each in lines)
    (forged / "session-0001.jsonl").write_text(text + "no JSON\n")
    calls: list[tuple[str, dict[str, Any]]] = [
        ("run_command", {"command": ["sh", "-c", "mkdir .vscode; exit 3"]}),
        ("read_trace", {}),
        ("read_trace", {"denied": True}),
        ("read_trace", {"session": "nothing\x1b"}),
        ("read_trace", {"session": "../work"}),
        ("read_trace", {"skip": -1}),
        *(("read_trace", {"session": "forged", "skip": skip}) for skip in (0, 63, 101, 102, 602, 5000)),
    ]
    _ran, whole, denied, unknown, above, negative, *pages = talk(tmp_path, ["mcp", "serve"], calls)
    record = json.loads(whole[1])
    kinds = [event["event"] for event in record["events"]]
    assert (kinds[0], kinds[-1], record["next"]) == ("SessionStarted", "SessionEnded", None)
    refused = json.loads(denied[1])["events"]
    assert refused and len(refused) < len(kinds)
    assert any(".vscode" in json.dumps(event) for event in refused)
    assert (
        "no session" in json.loads(unknown[1])["error"] and "\x1b" not in unknown[1] + json.loads(unknown[1])["error"]
    )
    assert "no session" in json.loads(above[1])["error"]
    assert negative[0]
    assert all(len(text) < 1_200_000 and "\x1b" not in text and "\u202e" not in text for _refused, text in pages)
    read = [json.loads(text) for _refused, text in pages]
    assert 1 < read[0]["next"] < 100 and len(read[0]["events"]) == read[0]["next"]
    assert read[0]["events"][0]["path"].startswith("\\u{1b}[2J\\u{202e}xxx")
    assert len(read[0]["events"][0]["path"]) < 4200
    assert json.dumps(read[1]).count("[[") <= 12
    assert read[2]["events"][0]["left_out"] > 256 << 10
    assert (len(read[3]["events"]), read[3]["next"]) == (500, 602)
    assert (len(read[4]["events"]), read[4]["next"]) == (400, None)
    assert read[4]["problems"]
    assert (read[5]["events"], read[5]["next"]) == ([], None)


def run(path: Path, *arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [*membrane_argv(), "mcp", *arguments],
        capture_output=True,
        text=True,
        cwd=path,
        env=environment(path),
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_wrap_rewrites_each_command_once(tmp_path: Path) -> None:
    file = tmp_path / ".mcp.json"
    servers = {
        "files": {"command": "npx", "args": ["-y", "server", "."], "env": {"TOKEN": "x"}, "unknown": [1]},
        "remote": {"type": "http", "url": "https://mcp.example.com/"},
        "bare": {"command": "serve"},
    }
    file.write_text(json.dumps({"mcpServers": servers, "other": {"kept": True}}, indent=4))
    file.chmod(0o640)
    status, out, _err = run(tmp_path, "wrap", ".mcp.json")
    assert status == 0 and out.count("now behind the boundary") == 2 and "remote: runs elsewhere" in out
    made = json.loads(file.read_text())
    assert made["other"] == {"kept": True} and made["mcpServers"]["remote"] == servers["remote"]
    assert made["mcpServers"]["files"] == {
        "command": "membrane",
        "args": ["--quiet", "--env=TOKEN", "--", "npx", "-y", "server", "."],
        "env": {"TOKEN": "x"},
        "unknown": [1],
    }
    assert made["mcpServers"]["bare"]["args"] == ["--quiet", "--", "serve"]
    assert file.stat().st_mode & 0o777 == 0o640 and '\n    "mcpServers"' in file.read_text()
    before = file.read_bytes()
    status, out, _err = run(tmp_path, "wrap", ".mcp.json")
    assert status == 0 and out.count("already") == 2 and file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mcp.json"]


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"mcpServers": {"a": 1}}', '{"mcpServers": {"a": {"command": 1}}}'])
def test_wrap_leaves_what_it_does_not_understand(tmp_path: Path, text: str) -> None:
    file = tmp_path / "servers.json"
    file.write_text(text)
    status, _out, err = run(tmp_path, "wrap", str(file))
    assert status == 78 and err.startswith("membrane: ") and "Traceback" not in err
    assert file.read_text() == text


def test_wrapped_entry_starts(tmp_path: Path) -> None:
    """What ``wrap`` writes is a command line that membrane takes, and the server gets its variable."""
    file = tmp_path / "servers.json"
    entry = {"command": "sh", "args": ["-c", "echo $TOKEN $OTHER"], "env": {"TOKEN": "given"}}
    file.write_text(json.dumps({"servers": {"a": entry}}))
    assert run(tmp_path, "wrap", str(file))[0] == 0
    arguments = json.loads(file.read_text())["servers"]["a"]["args"]
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(
        [*membrane_argv(), *arguments],
        capture_output=True,
        text=True,
        cwd=work,
        env={**environment(tmp_path), "TOKEN": "given", "OTHER": "not passed"},
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "given\n"), done
