"""F: files that the caller has Membrane write, and links that a command leaves in their place (F156, F157).

What is written came from inside: a learned policy over the caller's own would let out whatever the command has tried.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from escape_box import MEMBRANE, SECONDS, Box

KEPT = "the caller's own\n"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A directory outside of the view, with a file of the caller's."""
    made = tmp_path / "outside"
    made.mkdir()
    (made / "config.yaml").write_text(KEPT)
    return made


def membrane(box: Box, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MEMBRANE, *arguments],
        cwd=box.workspace,
        env=box.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def is_whole(victim: Path) -> bool:
    return os.listdir(victim) == ["config.yaml"] and (victim / "config.yaml").read_text() == KEPT


@pytest.mark.parametrize("option", ["learn", "report", "export"])
def test_f156_an_output_does_not_follow_a_link_of_the_command(box: Box, victim: Path, option: str) -> None:
    link = ["sh", "-c", f"ln -s {victim}/config.yaml config.yaml"]
    if option == "learn":
        done = membrane(box, "learn", "-o", "config.yaml", "--", *link)
    else:
        assert membrane(box, "--", *link).returncode == 0
        done = membrane(box, "trace", option, "-o", "config.yaml")
    assert done.returncode == 125 and "it is a symbolic link, which a command may have left there" in done.stderr, done
    assert is_whole(victim)
    assert (box.workspace / "config.yaml").read_text() == KEPT  # the control: who follows the link gets there


@pytest.mark.parametrize("option", ["learn", "trace-log"])
def test_f157_nor_a_directory_that_has_become_one(box: Box, victim: Path, option: str) -> None:
    (box.workspace / "out").mkdir()
    swap = ["sh", "-c", f"rm -rf out && ln -s {victim} out"]
    given = ["learn", "-o", "out/config.yaml"] if option == "learn" else ["--trace-log", "out/config.yaml"]
    done = membrane(box, *given, "--", *swap)
    assert "cannot write" in done.stderr and "out/config.yaml" in done.stderr, done
    assert is_whole(victim)
    assert (box.workspace / "out/config.yaml").read_text() == KEPT  # the control
    (box.workspace / "out").unlink()
    (box.workspace / "out").mkdir()
    assert membrane(box, *given, "--", "true").returncode == 0 and (box.workspace / "out/config.yaml").stat().st_size
