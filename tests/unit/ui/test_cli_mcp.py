"""``membrane mcp wrap``: each server's command behind the boundary, and nothing else of the file touched."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from membrane.errors import HostError, PolicyError
from membrane.ui import cli, mcp


@pytest.mark.parametrize(
    ("server", "found"),
    [
        ({"command": "npx", "args": ["-y", "x"]}, ["--quiet", "--", "npx", "-y", "x"]),
        ({"command": "x", "env": {"A": "1", "B": "2"}}, ["--quiet", "--env=A", "--env=B", "--", "x"]),
        ({"command": "-x"}, ["--quiet", "--", "-x"]),
    ],
)
def test_a_command_goes_behind_the_boundary(server: dict[str, Any], found: list[str]) -> None:
    new = mcp.wrapped(server)
    assert new == {**server, "command": "membrane", "args": found}
    assert mcp.wrapped(new) is None  # once


def test_what_has_no_command_runs_elsewhere() -> None:
    assert mcp.wrapped({"url": "https://example.com"}) is None
    assert mcp.wrapped({"command": "/usr/bin/membrane", "args": ["--", "x"]}) is None


@pytest.mark.parametrize(
    "server",
    [
        {"command": ""},
        {"command": 1},
        {"command": "x", "args": "y"},
        {"command": "x", "args": [1]},
        {"command": "x", "env": []},
    ],
)
def test_what_is_no_entry_is_refused(server: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        mcp.wrapped(server)


def test_the_file_keeps_its_form_its_mode_and_what_is_not_ours(tmp_path: Path) -> None:
    file = tmp_path / ".mcp.json"
    content = {"other": [1, "ü"], "mcpServers": {"a": {"command": "x", "type": "stdio"}, "b": {"url": "u"}}}
    file.write_text(json.dumps(content, indent=4, ensure_ascii=False))
    file.chmod(0o640)
    assert mcp.wrap(str(file)) == ["a: now behind the boundary", "b: runs elsewhere, left as it is"]
    text = file.read_text()
    assert json.loads(text) == {
        **content,
        "mcpServers": {
            "a": {"command": "membrane", "type": "stdio", "args": ["--quiet", "--", "x"]},
            "b": {"url": "u"},
        },
    }
    assert text.splitlines()[1].startswith('    "') and "ü" in text
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    before = file.stat().st_ino
    assert mcp.wrap(str(file)) == ["a: was behind the boundary already", "b: runs elsewhere, left as it is"]
    assert file.stat().st_ino == before and os.listdir(tmp_path) == [".mcp.json"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text('{"servers": {"a": {"command": "x"}}}')
    (tmp_path / "link.json").symlink_to("real.json")
    mcp.wrap(str(tmp_path / "link.json"))
    assert (tmp_path / "link.json").is_symlink() and "membrane" in (tmp_path / "real.json").read_text()


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("{", "it is not JSON"),
        ("[]", "it has no object mcpServers or servers"),
        ('{"mcpServers": []}', "it has no object"),
        ('{"mcpServers": {"a": 1}}', "mcpServers.a is not an object"),
        ('{"mcpServers": {"a": {"command": 1}}}', "mcpServers.a: command is not a string"),
        ('{"mcpServers": {}}' + " " * (4 << 20), "it has no object"),
    ],
)
def test_what_is_no_list_of_servers_is_left_alone(tmp_path: Path, text: str, cause: str) -> None:
    file = tmp_path / "f"
    file.write_text(text)
    with pytest.raises(PolicyError, match=None) as refused:
        mcp.wrap(str(file))
    assert cause in refused.value.cause and file.read_text() == text
    with pytest.raises(HostError):
        mcp.wrap(str(tmp_path / "none"))


def test_what_a_record_holds_is_safe_to_show_and_bounded() -> None:
    deep: Any = "end"
    for _ in range(30):
        deep = [deep]
    shown = mcp._bounded({"a\x1b[31m": "b\x07" * 10, "long": "x" * 5000, "deep": deep, "n": 1}, 12)
    text = json.dumps(shown)
    assert "\\u001b" not in text and "\\u0007" not in text
    assert len(shown["long"]) == 4096 + 3 and "..." in json.dumps(shown["deep"]) and shown["n"] == 1


def test_a_client_that_would_not_find_us_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """After ``.venv/bin/membrane mcp wrap``, where nothing is activated: every server would fail to start."""
    file = tmp_path / "servers.json"
    file.write_text('{"mcpServers": {"a": {"command": "x"}}}')
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(["mcp", "wrap", str(file)]) == 0
    assert "by the name membrane, which is not in PATH; add " in capfd.readouterr().err
    (tmp_path / "membrane").write_text("#!/bin/sh\n")
    (tmp_path / "membrane").chmod(0o755)
    assert cli.main(["mcp", "wrap", str(file)]) == 0
    assert capfd.readouterr().err == ""
