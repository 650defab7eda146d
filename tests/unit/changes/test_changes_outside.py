"""changes.outside: no program of the workspace looks at what is in it, or puts it in place."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from copies import Workspace, engine
from test_changes_git import inside, repository

from membrane.changes.outside import program, search_path


def fake(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\necho "$@" >> {path}.ran\nexec /usr/bin/{path.name} "$@"\n')
    path.chmod(0o755)


def test_directories_of_the_workspace_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, other = tmp_path / "w", tmp_path / "wide"
    for place in (root / "bin", other / "bin"):
        fake(place / "git")
    (tmp_path / "link").symlink_to(root / "bin")
    (tmp_path / "links").mkdir()
    (tmp_path / "links/git").symlink_to(root / "bin/git")
    wanted = str(other / "bin/git")
    for first in (root / "bin", tmp_path / "link", tmp_path / "links", "bin", tmp_path / "nothing"):
        monkeypatch.setenv("PATH", f"{first}:{other / 'bin'}")
        monkeypatch.chdir(root)
        assert program("git", str(root)) == wanted, first
        if first != tmp_path / "nothing":
            found = shutil.which("git")  # the control
            assert found is not None and os.path.realpath(found) != wanted
    assert program(wanted, str(root)) == wanted
    for name in (str(root / "bin/git"), "bin/git", "absent"):
        assert program(name, str(root)) is None


@pytest.mark.needs_kernel("overlayfs in a user namespace")
@pytest.mark.needs_tool("git")
def test_what_looks_for_programs_itself_gets_a_path_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, outside = tmp_path / "work", tmp_path / "outside"
    (root / "bin").mkdir(parents=True)
    outside.mkdir()
    (tmp_path / "link").symlink_to(root / "bin")
    (tmp_path / "workshop").mkdir()  # the control: the name only begins like it
    places = [root / "bin", root, tmp_path / "link", "bin", "", outside, root / "missing", tmp_path / "workshop"]
    monkeypatch.setenv("PATH", ":".join(map(str, places)))
    assert search_path(str(root)) == f"{outside}:{tmp_path}/workshop"
    assert search_path(str(root), str(outside)) == f"{tmp_path}/workshop"
    fake(outside / "git")
    assert program("git", str(root)) == str(outside / "git") and program("git", str(root), str(outside)) is None


def test_no_git_of_the_workspace_takes_part_in_an_apply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An activated virtual environment of the workspace is the first directory of PATH."""
    workspace: Workspace = repository(tmp_path / "w")
    planted = workspace.base / ".venv/bin/git"
    fake(planted)
    workspace.begin()
    inside(workspace, "write('a', 'x'); git('commit', '-qam', 'x'); git('repack', '-adq')")
    monkeypatch.setenv("PATH", f"{planted.parent}:{os.environ['PATH']}")
    with engine(workspace) as each:
        assert "a" in {change.path for change in each.apply(merge=True).applied}
    assert not Path(f"{planted}.ran").exists()
    assert os.system("git --version > /dev/null") == 0 and Path(f"{planted}.ran").exists()  # the control
