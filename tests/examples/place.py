"""Where the examples run: with an interpreter that has their packages, in directories of the test's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PYTHON = os.environ.get("MEMBRANE_EXAMPLES_PYTHON", sys.executable)
"""An interpreter whose environment has ``membrane-sandbox[examples]``; ``.ci/run`` makes one."""
PATIENCE = 240.0  # seconds: some of these programs start hundreds of megabytes


class Place:
    """A directory of the test: ``workspace``, where the example runs, and beside it a file that is not its business."""

    SECRET = "only-outside-3141"

    def __init__(self, root: Path) -> None:
        self.workspace = root / "w"
        self.workspace.mkdir()
        self.secret = root / "secret.txt"
        self.secret.write_text(self.SECRET)
        self.home = root / "home"
        self.home.mkdir()

    def run(self, *argv: str | Path, timeout: float = PATIENCE, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a program in the workspace; a variable of the caller's reaches it only if it is named here."""
        variables = {
            "PATH": f"{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": os.environ.get("PYTHONDONTWRITEBYTECODE", ""),
            **environment,
        }
        return subprocess.run(
            [str(word) for word in argv],
            cwd=self.workspace,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def python(self, example: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run one of the examples."""
        return self.run(PYTHON, EXAMPLES / example, *arguments, **environment)
