"""Completion scripts and the man page."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from membrane.ui import completion
from membrane.ui.options import COMMANDS, OPTIONS

BASH = shutil.which("bash") or "/bin/bash"


def complete(tmp_path: Path, *words: str) -> list[str]:
    """What bash offers for the last of ``words``."""
    script = tmp_path / "membrane.bash"
    script.write_text(completion.bash())
    program = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _membrane; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        [BASH, "--norc", "--noprofile", "-c", program, "bash", str(script), *words],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"PATH": str(tmp_path / "bin"), "LC_ALL": "C"},
    )
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if line]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    for name in ("zzprogram", "zztool"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "file.txt").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["membrane", "--hom"], ["--home"]),
        (["membrane", "--home", "e"], ["ephemeral"]),
        (["membrane", "--home", "=", "e"], ["ephemeral"]),
        (["membrane", "--view", "="], ["project", "host"]),
        (["membrane", "docto"], ["doctor"]),
        (["membrane", "check", "--js"], ["--json"]),
        (["membrane", "doctor", "--allo"], []),
        (["membrane", "run", "--qui"], ["--quiet"]),
        (["membrane", "completion", "z"], ["zsh"]),
        (["membrane", "-a", "x.org", "--vie"], ["--view"]),
        (["membrane", "-a", "=", "x.org", "--vie"], ["--view"]),
        (["membrane", "-a", "x.org", "zzp"], ["zzprogram"]),
        (["membrane", "--", "zzp"], ["zzprogram"]),
        (["membrane", "plan", "-q", "zzt"], ["zztool"]),
        (["membrane", "zzprogram", "fil"], ["file.txt"]),
        (["membrane", "zzprogram", "--hom"], []),
        (["membrane", "--", "zzprogram", "--hom"], []),
        (["membrane", "--events", "fil"], ["file.txt"]),
        (["membrane", "--limit", ""], []),
    ],
    ids=lambda value: " ".join(value) or "nothing",
)
def test_bash(words: list[str], expected: list[str], programs: Path) -> None:
    assert complete(programs, *words) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_option_and_subcommand_is_offered(shell: str) -> None:
    text = completion.script(shell)
    for option in OPTIONS:
        assert (f"-l {option.name} " if shell == "fish" else f"--{option.name}") in text, option.name
    for command in COMMANDS:
        assert command.name in text


def test_zsh_quoting() -> None:
    assert completion._zsh_quote("a:[b]'c\\") == "a\\:\\[b\\]'\\''c\\\\"


def test_man_page_has_every_option_and_no_stray_request() -> None:
    text = completion.man_page()
    for option in OPTIONS:
        assert f"\\-\\-{option.name}".replace(option.name, option.name.replace("-", "\\-")) in text, option.name
    requests = {line.split()[0] for line in text.splitlines() if line.startswith((".", "'"))}
    assert requests == {".TH", ".SH", ".SS", ".TP", ".B", ".br"}


def test_man_page_renders_without_a_warning() -> None:
    groff = shutil.which("groff")
    if groff is None:
        # groff is not part of membrane; the structure is asserted above.
        return
    done = subprocess.run(
        [groff, "-man", "-ww", "-Tutf8"], input=completion.man_page(), capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert "membrane - run a command behind a boundary" in done.stdout
