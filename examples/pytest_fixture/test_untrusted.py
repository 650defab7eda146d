"""What tests with the fixture look like: code that a model wrote is run, and judged by its result."""

from __future__ import annotations

from pathlib import Path

import pytest

from membrane import Sandbox

GENERATED = """
import pathlib, urllib.request
pathlib.Path("sum.txt").write_text(str(sum(range(10))))
urllib.request.urlopen("http://example.com/collect", timeout=5)
"""


def test_it_works_in_its_directory_and_does_not_call_home(sandbox: Sandbox, tmp_path: Path) -> None:
    result = sandbox.run(["python3", "-c", GENERATED], timeout=60)
    assert (tmp_path / "sum.txt").read_text() == "45"
    assert result.exit_code == 1
    assert "URLError" in result.stderr
    assert {refused.target for refused in result.denied} == {"example.com"}


def test_it_changes_nothing_outside(sandbox: Sandbox, tmp_path: Path) -> None:
    outside = tmp_path.parent / "outside.txt"
    outside.write_text("mine\n")
    assert sandbox.shell(f"echo theirs > {outside}").exit_code != 0 or outside.read_text() == "mine\n"
    assert outside.read_text() == "mine\n"


@pytest.mark.allow("example.org")
def test_what_is_allowed_is_decided_by_the_mark(sandbox: Sandbox) -> None:
    assert sandbox.policy.decide("https://example.org/").allowed
    assert not sandbox.policy.decide("https://example.com/").allowed
