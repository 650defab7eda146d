"""What membrane is made of on this machine is not in reach of the command."""

from __future__ import annotations

import os
import sys

import pytest

import membrane
from membrane.errors import PolicyError
from membrane.run import installed

PACKAGE = os.path.realpath(os.path.dirname(membrane.__file__))


def test_the_package_and_its_interpreter_are_named() -> None:
    trees = installed.trees()
    assert PACKAGE in trees and os.path.realpath(sys.prefix) in trees
    assert all(os.path.isabs(path) and os.path.realpath(path) == path for path in trees)
    running = installed.running()
    assert PACKAGE in running and os.path.realpath(os.path.dirname(os.__file__)) in running
    assert not {"/", "/usr", "/usr/local", "/opt"} & set(running)


@pytest.mark.parametrize("below", ["", "/ui", "/policy/presets"])
def test_a_workspace_within_it_stops_the_run(below: str) -> None:
    with pytest.raises(PolicyError, match="the command could change what confines it"):
        installed.refuse([PACKAGE + below])


def test_any_other_workspace_does_not(tmp_path: os.PathLike[str]) -> None:
    installed.refuse([str(tmp_path)])
    installed.refuse(["/usr/share"])  # an interpreter of the system is not a tree of ours
