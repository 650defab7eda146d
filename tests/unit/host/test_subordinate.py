"""Which subordinate ids a user has, by subuid(5)."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from membrane.errors import HostError
from membrane.host import subordinate

ME = os.getuid()


def files(place: Path, *texts: str | None) -> list[str]:
    paths = []
    for name, text in zip(("subuid", "subgid"), texts, strict=True):
        paths.append(str(place / name))
        if text is not None:
            (place / name).write_text(text)
    return paths


def test_the_largest_range_of_the_name_or_the_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subordinate, "program", lambda name: f"/usr/bin/{name}")
    name = pwd.getpwuid(ME).pw_name
    uids = f"# comment\nsomebody:1:99999\n{name}:100000:2000\n{ME}:500000:65536\n{name}:x:1\nodd\n"
    found = subordinate.find(ME, files=files(tmp_path, uids, f"{name}:700000:9999999\n"))
    assert (found.uids, found.gids, found.lacking) == ((500_000, 65_536), (700_000, 65_536), "")


@pytest.mark.parametrize("uids", [None, "", "somebody:1:99999\n", f"{ME}:100000:10\n", "\0\xff:::\n"])
def test_what_is_lacking_is_said_with_the_line_that_adds_it(tmp_path: Path, uids: str | None) -> None:
    found = subordinate.find(ME, files=files(tmp_path, uids, f"{ME}:100000:65536\n"))
    assert found.lacking and "usermod --add-subuids 100000-165535" in found.fix


def test_missing_programs_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subordinate, "program", lambda name: "")
    line = f"{ME}:100000:65536\n"
    found = subordinate.find(ME, files=files(tmp_path, line, line))
    assert "newuidmap and newgidmap are not installed" in found.lacking and "uidmap" in found.fix


def test_a_program_that_refuses_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = tmp_path / "refuses"
    said.write_text('#!/bin/sh\necho "uid range $3 not allowed" >&2\nexit 1\n')
    said.chmod(0o755)
    monkeypatch.setattr(subordinate, "program", lambda name: str(said))
    with pytest.raises(HostError, match="uid range 1 not allowed"):
        subordinate.write_maps(1, (((0, 1, 1),), ((0, 1, 1),)))
