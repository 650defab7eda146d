"""``python -m membrane``: nothing that lies in the current directory is run outside of the sandbox."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import membrane

SOURCE = str(Path(membrane.__file__).parent.parent)


def program(cwd: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A list of records, which needs the module json."""
    return subprocess.run(
        [sys.executable, *options, "-m", "membrane", "trace", "list", "--json"],
        cwd=cwd,
        env={"PYTHONPATH": SOURCE, "PATH": os.environ["PATH"], "MEMBRANE_HOME": str(cwd / "state")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_module_of_the_workspace_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('it was run')")
    control = subprocess.run(
        [sys.executable, "-c", "import json"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert control.stderr == "it was run\n"
    found = program(tmp_path)
    assert (found.returncode, found.stderr) == (0, "")


def test_a_path_that_was_asked_for_stays(tmp_path: Path) -> None:
    """With -P the current directory is not in it; what was asked for stays."""
    found = program(tmp_path, "-P")
    assert (found.returncode, found.stderr) == (0, "")


def test_a_current_directory_that_is_gone(tmp_path: Path) -> None:
    script = 'mkdir gone && cd gone && rmdir ../gone && exec "$0" -m membrane --version'
    found = subprocess.run(
        ["/bin/sh", "-c", script, sys.executable],
        cwd=tmp_path,
        env={"PYTHONPATH": SOURCE, "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (found.returncode, found.stderr) == (0, "") and found.stdout.startswith("membrane ")
