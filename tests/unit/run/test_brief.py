"""The files for agents: whose words stand in them, and where."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from membrane.plan.model import File, HostFacts, Layer
from membrane.plan.mounts import CODEX, IN_FORCE, INSTRUCTIONS
from membrane.policy import written
from membrane.policy.model import HostRule, Origin, PathRule, Policy
from membrane.run import brief

HERE = Origin("user", "f", 1)


def texts(tmp_path: Path, policy: Policy | None = None) -> tuple[dict[str, str], list[str]]:
    facts = HostFacts(1000, 1000, "me", False, "/home/me", str(tmp_path), "/work", "box", ())
    layer = Layer(str(tmp_path / "etc"), (*INSTRUCTIONS, IN_FORCE, CODEX))
    ops, warnings = brief.files(policy or Policy(), facts, layer)
    assert all(isinstance(op, File) for op in ops)
    return {
        op.target.removeprefix(layer.target + "/"): op.content.decode() for op in ops if isinstance(op, File)
    }, warnings


def test_each_has_its_text(tmp_path: Path) -> None:
    found, warnings = texts(tmp_path)
    assert sorted(found) == ["claude-code/CLAUDE.md", CODEX, "membrane/AGENTS.md", "membrane/config.yaml"]
    assert found["claude-code/CLAUDE.md"] == found["membrane/AGENTS.md"]
    assert not warnings


@pytest.mark.parametrize("quote", ["'", '"', "`", "\\"])
@pytest.mark.parametrize("count", range(1, 9))
def test_codex_gets_toml_whatever_a_rule_holds(tmp_path: Path, quote: str, count: int) -> None:
    """Of a literal string, five apostrophes of which three are replaced were an end."""
    text = quote * count
    rules = (f"a{text}\nsandbox_mode = 'read-only'\\u", f"{text} x = 1", text, f"\udcff{text}", f"\x7f\x1b{text}\r\n")
    own = f"Mine {text} \x1b\x7f\\u0041 \r\n{text}\n"
    (tmp_path / brief.SOURCE).write_text(own, newline="")
    found, _ = texts(tmp_path, Policy(paths=tuple(PathRule(rule, HERE, "hide") for rule in rules)))
    data = tomllib.loads(found[CODEX])
    assert data.keys() == {"sandbox_mode", "developer_instructions", "analytics"}
    assert data["sandbox_mode"] == "danger-full-access" and data["analytics"] == {"enabled": False}
    assert data["developer_instructions"] == found["membrane/AGENTS.md"]
    assert data["developer_instructions"].startswith(own)


def test_what_the_administrator_says_stands_before(tmp_path: Path) -> None:
    (tmp_path / "etc" / "claude-code").mkdir(parents=True)
    (tmp_path / "etc" / "claude-code" / "CLAUDE.md").write_text("Company rules.")
    found, _ = texts(tmp_path)
    assert found["claude-code/CLAUDE.md"].startswith("Company rules.\n\n# You are inside")
    assert found["membrane/AGENTS.md"].startswith("# You are inside")


def test_a_text_that_is_too_large_or_no_file_is_left_out_and_said(tmp_path: Path) -> None:
    own = tmp_path / brief.SOURCE
    own.write_bytes(b"x" * (brief.LARGEST + 1))
    assert texts(tmp_path)[1] == [f"{own} is left out: it is no file of at most 64 KB"]
    own.unlink()
    os.mkfifo(own)  # would block
    found, warnings = texts(tmp_path)
    assert warnings and found["membrane/AGENTS.md"].startswith("# You are inside")


def test_a_policy_without_end_is_bounded_and_what_is_left_out_is_said(tmp_path: Path) -> None:
    policy = Policy(allow=tuple(HostRule(f"{number}.{'x' * 200}", HERE, "host") for number in range(4_000)))
    found, _ = texts(tmp_path, policy)
    assert len(found[IN_FORCE]) <= written.LARGEST
    assert "\n  # and " in found[IN_FORCE]


def test_what_was_made_for_the_same_policy_is_taken_and_for_no_other(tmp_path: Path) -> None:
    from membrane.policy.load import Source, load
    from membrane.policy.written import in_force

    def policy(text: str) -> Policy:
        return load([Source("user", "p.yaml", text, "/")], presets={"default": ""}, home="/h").policy

    one, other = policy("allow: [one.example]"), policy("allow: [other.example]")
    cache = tmp_path / "cache"
    assert brief._in_force(one, str(cache)) == in_force(one)  # without a place for it
    cache.mkdir()
    for _ in range(2):
        assert brief._in_force(one, str(cache)) == in_force(one)
        assert brief._in_force(other, str(cache)) == in_force(other)
    for file in cache.iterdir():
        assert file.stat().st_mode & 0o077 == 0
        head, _, _text = file.read_text().partition("\n")
        file.write_text(f"{head}\nkept")
    assert "kept" in {brief._in_force(one, str(cache)), brief._in_force(other, str(cache))}  # the control: it is read
    for file in cache.iterdir():
        file.write_text("0" * 64 + "\nof another policy")
    assert brief._in_force(one, str(cache)) == in_force(one)
