"""What of the caller's git configuration is in force inside: a closed list, read without running anything."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from membrane.workspace.callers import HARMLESS, settings
from membrane.workspace.gitconfig import parse


def read(home: Path, text: str, workspace: str = "/w", **environ: str) -> dict[str, str | None]:
    (home / ".gitconfig").write_text(text)
    return dict(parse(settings({"HOME": str(home), **environ}, workspace)[0]))


def test_identity_and_harmless_settings_are_taken_and_nothing_else(tmp_path: Path) -> None:
    text = """
[user]
	name = Dev \\"E\\" Loper; no comment
	email = dev@example.org # a comment
	signingkey = AAAA
[credential]
	helper = store
[core]
	editor = evil
	pager = evil
	fsmonitor = evil
	hooksPath = /evil
	quotepath = false
[alias]
	st = status -sb
	evil = !sh -c evil
	spaced = "  !sh -c evil"
[url "https://evil/"]
	insteadOf = https://github.com/
[http]
	extraHeader = Authorization: secret
[pull]
	rebase
"""
    assert read(tmp_path, text) == {
        "user.name": 'Dev "E" Loper',
        "user.email": "dev@example.org",
        "core.quotepath": "false",
        "alias.st": "status -sb",
        "pull.rebase": None,
    }


def test_what_is_written_is_what_git_reads(tmp_path: Path) -> None:
    """The same names and values as git itself takes from the caller's file."""
    text = '[user]\n\tname = "a\\tb\\nc \\\\ \\" é "\n\temail = x\n[pull]\n\tff = only\n'
    (tmp_path / ".gitconfig").write_text(text)
    made = tmp_path / "made"
    made.write_text(settings({"HOME": str(tmp_path)}, "/w")[0])

    def listed(path: Path) -> bytes:
        argv = ["git", "config", "--file", str(path), "--list", "-z"]
        return subprocess.run(argv, check=True, capture_output=True, cwd=tmp_path).stdout

    assert listed(made) == listed(tmp_path / ".gitconfig")


def test_includes_are_followed_where_their_condition_is_known(tmp_path: Path) -> None:
    for name in ("one", "work", "other"):
        (tmp_path / name).write_text(f"[user]\n\temail = {name}\n")
    (tmp_path / "w").mkdir()
    text = (
        '[include]\n\tpath = one\n[includeIf "gitdir:~/w/"]\n\tpath = work\n[includeIf "onbranch:x"]\n\tpath = other\n'
    )
    assert read(tmp_path, text) == {"user.email": "one"}
    assert read(tmp_path, text, f"{os.path.realpath(tmp_path)}/w/project") == {"user.email": "work"}


@pytest.mark.parametrize("kind", ["fifo", "large", "broken", "loop"])
def test_what_can_not_be_read_says_nothing(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ".gitconfig"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "large":
        path.write_text("[user]\n\tname = x\n" + "#" * (1 << 17))
    elif kind == "broken":
        path.write_text("[user\n\tname = x\n")
    else:
        path.write_text("[include]\n\tpath = .gitconfig\n")
    assert settings({"HOME": str(tmp_path)}, "/w") == ("", b"")


def test_the_patterns_of_the_callers_excludes_file(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("*.swp\n")
    (tmp_path / ".gitconfig").write_text("[core]\n\texcludesFile = ~/mine\n")
    assert settings({"HOME": str(tmp_path)}, "/w") == ("", b"*.swp\n")


def test_no_key_of_the_list_names_a_program_or_a_path() -> None:
    words = ("program", "command", "helper", "hook", "editor", "pager", "fsmonitor", "filename", "url", "proxy", "ssh")
    for word in words:
        assert not [key for key in HARMLESS if word in key]
