"""Files that choose versions or settings: plain choices are let be, and what leads elsewhere is not.

That rbenv 1.1.2, mise 2026.9.15 and pnpm 10.34.9 run what such a file names, and Mercurial 7.2.4 what is pickled in
``.hg/histedit-state`` and writes by ``.hg/store/journal.backupfiles``, was seen with these programs.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from membrane.workspace.choices import (
    LEADS,
    LEADS_OUT,
    NO_SETTING,
    PICKLED,
    backups,
    npmrc,
    pickled,
    pnpm_workspace,
    versions,
)
from membrane.workspace.judge import judge
from membrane.workspace.names import VERSION_FILES


@pytest.mark.parametrize(
    "text",
    [
        "", "18\n", "v20.11.1", "lts/*\n", "lts/iron\n", "lts/-1", "node\n", "# the one of CI: see /docs\n20\n",
        "20 # why\n",
        "3.12.1\n3.11\n", "cpython-3.12.1-linux-x86_64-gnu\n", "pypy3.9-7.3.11", ">=3.11,<4", "3.12.1/envs/my-env\n",
        "ruby-3.2.2@gems\r\n", "temurin64-17.0.9", "java=21.0.2-tem\ngradle = 8.5\n", "latest:^1\\.5", "min-required",
    ],
)  # fmt: skip
def test_plain_versions(text: str) -> None:
    assert versions(text) == ""


@pytest.mark.parametrize(
    "text",
    [
        "../../ws/evil\n", "/home/me/ws/evil", "path:/home/me/ws/evil\n", "path:evil", "..", "~/evil", "x/../../evil",
        "18\n../evil\n", "java=../../../ws/evil\n", "java=/ws/evil", "lts/../../evil", "3.12/envs/../../evil",
        "a#/../evil",
        "18\x0b../evil", "tools/py", "ref:master", "\ufeff/evil", "\\\\host\\share", "latest:/../evil", "$HOME",
    ],
)  # fmt: skip
def test_a_version_that_leads_somewhere(text: str) -> None:
    assert versions(text).startswith(LEADS)


@pytest.mark.parametrize(
    "text",
    [
        "engine-strict=true\nlegacy-peer-deps = true\n; a comment\n# git=./evil\n", "@me:registry=https://npm.example/\n",
        "//npm.example/:_authToken=${NPM_TOKEN}\n", "public-hoist-pattern[]=*eslint*\npublic-hoist-pattern[]=*types*\n",
        "registry=https://registry.npmjs.org/\r\nsave-exact=true\r\n", "electron_mirror=https://m.example/\n", "fund\n",
        "git-tag-version=false\nshamefully-hoist=true\n", "",
    ],
)  # fmt: skip
def test_plain_settings_of_npm(text: str) -> None:
    assert npmrc(text) == ""


@pytest.mark.parametrize(
    "text",
    [
        "pnpmfile=./evil.cjs\n", "PnpmFile = ./evil.cjs", "fund=true\n  global-pnpmfile=x", "script-shell=./evil\n",
        "git=./evil", "node-options=--require ./evil.cjs", "node_options=-r x", "pnpmfile[]=x", "init.module=x",
        "proxy=http://evil.example", "https-proxy=x", "strict-ssl=false", "ca[]=x", "//registry.npmjs.org/:cafile=x",
        "//registry.npmjs.org/:tokenHelper=x", "fund=true\rpnpmfile=x",
    ],
)  # fmt: skip
def test_a_setting_that_names_a_program_or_a_proxy(text: str) -> None:
    assert "a package manager" in npmrc(text)


@pytest.mark.parametrize(
    "text", ['"pnpm\\u0066ile"=x', "[section]\nfund=true", "${X}=y", "\ufeffpnpmfile=x", "pnpm\u200bfile=x", "'git'=x"]
)
def test_what_is_no_plain_setting(text: str) -> None:
    assert npmrc(text).startswith(NO_SETTING)


def test_settings_of_a_workspace_of_pnpm() -> None:
    plain = "packages:\n  - 'packages/*'\n  - '!**/proxy'\ncatalog:\n  react: ^18\nonlyBuiltDependencies: [esbuild]\n"
    assert pnpm_workspace(plain) == ""
    for more in (
        "pnpmfile: ./evil.cjs\n", '"pnpmfile": x\n', "? pnpmfile\n: x\n", "x: &a pnpmfile\n? *a\n: x\n",
        "{scriptShell: x}",
        "global-pnpmfile: x\n", "configDependencies:\n  evil: 1.0.0\n", "strictSsl: false\n", "httpsProxy: x\n",
    ):  # fmt: skip
        assert "a package manager" in pnpm_workspace(plain + more), more
    for more in ('"pnpm\\x66ile": x\n', "ca: |\n  -----BEGIN CERTIFICATE-----\n"):
        assert pnpm_workspace(plain + more) == NO_SETTING


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_of_plain_data(protocol: int) -> None:
    def text(value: object) -> str:
        return pickle.dumps(value, protocol).decode("utf-8", "surrogateescape")

    changes = [[("ChangeSet", ("a", [("ChangeContents", ("x.py", "new", None))], 1.5)), True, 70_000], {"a": -1, 2: ()}]
    assert pickled(text(changes)) == ""
    for value in (os.system, Path("x"), Exception("x"), [1, {"a": print}]):
        assert pickled(text(value)) == PICKLED
    assert pickled(text(changes)[:-1]) == PICKLED and pickled("no pickle") == PICKLED


def test_what_mercurial_puts_back() -> None:
    plain = "2\n\0phaseroots\0journal.backup.phaseroots.bck\x000\nplain\0dirstate\0journal.backup.dirstate.bck\x000\n"
    for size in range(len(plain) + 1):  # it is written line by line
        assert backups(plain[:size]) == ""
    for line in (
        "plain\0../../.bashrc\0evil\x000", "plain\0dirstate\0../../secret\x000", "plain\0/root/x\0evil\x000",
        "plain\0hgrc\0evil\x000", "plain\0x/HGRC\0evil\x000", "plain\0sharedpath\0evil\x000", "plain\0..",
    ):  # fmt: skip
        assert backups(plain + line) == LEADS_OUT, line


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        *((name, "18.2.0\n", "../evil\n") for name in VERSION_FILES),
        ("a/.npmrc", "fund=false\n", "git=./evil\n"),
        ("a/PNPM-workspace.yaml", "packages: ['*']\n", "pnpmfile: x\n"),
        ("a/.hg/histedit-state", "v1\n" + "0" * 40 + "\n", pickle.dumps(["evil"], 0).decode()),
        ("a/.hg/store/journal.backupfiles", "2\n", "2\nplain\0hgrc\0evil\x000\n"),
        ("a/.hg/store/undo.backupfiles", "2\n", "2\nplain\0../../x\0evil\x000\n"),
        ("a/.ropeproject/history", pickle.dumps([[], []], 0).decode(), pickle.dumps(os.system, 0).decode()),
    ],
)
def test_the_files_are_judged_by_what_they_hold(tmp_path: Path, name: str, good: str, bad: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(tmp_path, os.O_PATH)
    try:
        path.write_text(good)
        assert judge(fd, name) == ""
        path.write_text(bad)
        assert judge(fd, name)
        path.rename(tmp_path / "brought")
        assert judge(fd, name, "brought")
    finally:
        os.close(fd)


def test_the_row_counts_and_not_its_last_name(tmp_path: Path) -> None:
    path = tmp_path / ".git/history"
    path.parent.mkdir()
    path.write_text("")
    fd = os.open(tmp_path, os.O_PATH)
    try:
        assert judge(fd, ".git/history") == "git writes no such name in its directory"
    finally:
        os.close(fd)
