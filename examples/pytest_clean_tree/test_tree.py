"""What tests with the fixture look like: scripts that change the project they stand in."""

from __future__ import annotations

import os
from pathlib import Path

from membrane import Sandbox


def test_everything_can_be_removed(tree: Sandbox) -> None:
    assert tree.shell("cat build/result").stdout == "built\n"
    assert tree.shell("rm -rf ./* ./.[!.]*; ls -A").stdout == ""
    assert "build" not in os.listdir()


def test_and_the_next_one_has_it_all(tree: Sandbox) -> None:
    assert tree.shell("cat build/result").stdout == "built\n"
    tree.shell("echo changed > build/result; echo made > made.txt")
    found = {change.path for change in tree.changes()}
    assert found == {"build", "build/result", "made.txt"}
    assert not Path("made.txt").exists() and not Path("build").exists()
