"""Which words of git's configuration may lead into the workspace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from membrane.workspace.programs import named, own_files, words
from membrane.workspace.scan import scan


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("./tools/fsm.sh", [("./tools/fsm.sh", True)]),
        ("python3 fsm.py --fast", [("python3", True), ("fsm.py", False), ("--fast", False)]),
        ("LC_ALL=C A=./x tools/y %f", [("C", False), ("./x", False), ("tools/y", True), ("%f", False)]),
        ("--config=./x", [("./x", False)]),
        (
            "sh -c './x \"$1\"' -",
            [
                *(("sh", True), ("-c", False), ('./x "$1"', False), ("-", False)),
                *(("sh", True), ("-c", False), ("./x", False), ("$1", False), ("-", False)),
            ],
        ),
        ('"./a b" x', [("./a b", True), ("x", False), ("./a", True), ("b", False), ("x", False)]),
        ("./with\\ blank", [("./with blank", True)]),
        ("f() { ./x; }; f", [("f", True), ("./x", True), ("f", True)]),
        ("a|./b&&./c;d", [("a", True), ("./b", True), ("./c", True), ("d", True)]),
        ("", []),
        ("'open", [("open", True)]),
    ],
)
def test_words(value: str, expected: list[tuple[str, bool]]) -> None:
    assert words(value) == expected


def test_words_are_bounded() -> None:
    assert len(words("".join(f"a{n} " for n in range(10_000)))) == 64
    assert len(words("x" * 1_000_000)[0][0]) == 4096


CONFIG = """[core]
	repositoryformatversion = 0
	fsmonitor = ./tools/fsm.sh
	sshCommand = ssh -F ./ssh/config
	editor = vi
	pager = less tools
	attributesFile = attributes
[filter "x"]
	clean = python3 clean.py
	smudge = LC_ALL=C tools/smudge %f
[diff "x"]
	textconv = "./tools/text conv"
[merge "x"]
	driver = ./tools/driver %O %A
[mergetool "x"]
	path = tools/merge
[alias]
	go = !./tools/alias && make test
	short = status tools/status
[credential "https://example.org"]
	helper = !./tools/credential
	helper = store --file tools/store
[gpg "ssh"]
	program = tools/gpg
[remote "origin"]
	url = ./tools/remote
	uploadpack = ./tools/uploadpack
[submodule "x"]
	update = !./tools/update
[include]
	path = ../tools/included
"""
FILES = (
    "tools/fsm.sh",
    "ssh/config",
    "attributes",
    "clean.py",
    "tools/smudge",
    "tools/driver",
    "tools/merge",
    "tools/alias",
    "tools/credential",
    "tools/gpg",
    "tools/uploadpack",
    "tools/update",
    "tools/included",
)
OTHERS = ["tools/status", "tools/store", "tools/remote", "test/file", "make", "less"]


def repository(root: Path, config: str = CONFIG) -> None:
    for name in ("objects", "refs"):
        (root / ".git" / name).mkdir(parents=True)
    (root / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (root / ".git/config").write_text(config)


def test_what_configuration_names_is_protected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    root = tmp_path / "work"
    repository(root)
    for name in (*FILES, *OTHERS):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("[core]\n\thooksPath = .hooks-of-the-included\n" if name.endswith("included") else "x")
    found = scan(str(root), ())
    assert {hit.path for hit in found.hits} == {".git/config", *FILES}
    assert all(hit.effect == "protect" and not hit.directory for hit in found.hits)
    assert "tools" in found.pins
    assert set(found.index.missing) == {"tools/text", ".hooks-of-the-included"}


def test_the_callers_own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, root = tmp_path / "home", tmp_path / "home/work"
    (home / ".config/git").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.delenv(name, raising=False)
    (home / ".gitconfig").write_text("[core]\n\thooksPath = .myhooks\n[include]\n\tpath = more\n")
    (home / "more").write_text("[diff]\n\texternal = ~/work/tools/diff\n")
    (home / ".config/git/config").write_text("[alias]\n\tx = !tools/alias\n")
    repository(root, "[core]\n\tbare = false\n")
    for name in (".myhooks/pre-commit", "tools/diff", "tools/alias"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("x")
    (root / "sub").mkdir()
    repository(root / "sub", "")
    found = scan(str(root), ())
    named_there = {hit.path for hit in found.hits} - {".git/config", "sub/.git/config"}
    assert named_there == {".myhooks", "tools/diff", "tools/alias"}
    assert set(found.index.missing) == {"sub/.myhooks", "sub/tools/alias"}


def test_without_a_repository_nothing_of_the_callers_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".gitconfig").write_text("[core]\n\thooksPath = .myhooks\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "work/.myhooks").mkdir(parents=True)
    assert not scan(str(tmp_path / "work"), ()).hits


def test_files_of_the_caller() -> None:
    assert own_files({"HOME": "/h"}) == ("/etc/gitconfig", "/h/.config/git/config", "/h/.gitconfig")
    assert own_files({"HOME": "/h", "XDG_CONFIG_HOME": "/x", "GIT_CONFIG_SYSTEM": "/s"}) == (
        "/s",
        "/x/git/config",
        "/h/.gitconfig",
    )
    assert own_files({"HOME": "/h", "GIT_CONFIG_GLOBAL": "/g"}) == ("/etc/gitconfig", "/g")


def test_files_that_include_each_other_end(tmp_path: Path) -> None:
    repository(tmp_path, "[include]\n\tpath = config\n\tpath = ../a\n")
    (tmp_path / "a").write_text("[include]\n\tpath = a\n\tpath = a\n[core]\n\teditor = ./x\n")
    found = list(named(str(tmp_path), (".git",)))
    assert ("", "./x", "file") in found and len(found) < 5_000


def test_a_fifo_does_not_hold_the_start(tmp_path: Path) -> None:
    repository(tmp_path, "[include]\n\tpath = ../fifo\n")
    os.mkfifo(tmp_path / "fifo")
    assert any(target.endswith("/fifo") for _tree, target, _kind in named(str(tmp_path), (".git",)))


def test_what_does_not_exist_counts_where_it_would_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that somebody only works on is kept from being made."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    values = {
        "a": "!rm -rf build/x out/ && sed -i s/a/b/ src/gen.c",
        "b": "!make -C sub test HEAD:refs/heads/x",
        "c": "!python3 -u tools/later.py docs/in.md",
        "d": "!A=a/b ./tools/run c/d; sh -c 'tools/quoted e/f'",
    }
    config = "[alias]\n" + "".join(f'\t{key} = "{value}"\n' for key, value in values.items())
    repository(tmp_path, config)
    (tmp_path / "sub").mkdir()
    found = scan(str(tmp_path), ())
    assert {hit.path for hit in found.hits} == {".git/config"}
    expected = {"tools/later.py", "tools/run", "tools/quoted", "tools/quoted e/f"}
    assert set(found.index.missing) == expected
