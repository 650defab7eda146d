"""What our texts tell people to install is ours: ``membrane`` on the package index is somebody else's project."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# "membrane" or "membrane[extra]" as the argument of an installer, not followed by more of a name.
FOREIGN = re.compile(r"""(?:pipx? install|--no-binary|uv tool install)[^\n`"]*?[ '"=]membrane(?:\[|[ '"`\n]|$)""")


def texts() -> list[Path]:
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "src").rglob("*.py")),
    ]


def test_no_text_installs_a_strangers_project() -> None:
    assert FOREIGN.search("pip install 'membrane[watch]'")  # the control
    assert FOREIGN.search("pipx install membrane")
    assert not FOREIGN.search("pip install 'membrane-sandbox[watch]'")
    found = [str(path.relative_to(ROOT)) for path in texts() if FOREIGN.search(path.read_text())]
    assert found == []


def test_every_extra_that_a_text_names_exists() -> None:
    name, extras = PROJECT["name"], set(PROJECT["optional-dependencies"])
    named = {extra for path in texts() for extra in re.findall(rf"{name}\[(\w+)\]", path.read_text())}
    assert named and named <= extras
