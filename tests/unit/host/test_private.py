"""Directories of our state: the caller's alone, each that is made, and nobody else's."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from membrane.errors import HostError
from membrane.host.private import make_private


def test_each_directory_that_is_made_is_private(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        make_private(str(tmp_path / "a" / "b" / "c"))
    finally:
        os.umask(mask)
    for name in ("a", "a/b", "a/b/c"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o700
    make_private(str(tmp_path / "a" / "b" / "c"))  # it stands


def test_what_is_no_directory_or_cannot_be_made_is_said_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "gone").symlink_to("nowhere")
    for name in ("file", "file/below", "gone"):
        with pytest.raises(HostError) as refused:
            make_private(str(tmp_path / name))
        assert refused.value.target == str(tmp_path / name) and "MEMBRANE_HOME" in refused.value.fix[0]


def test_somebody_else_s_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_private(str(tmp_path))  # the control
    monkeypatch.setattr(os, "geteuid", lambda: 1 << 20)
    with pytest.raises(HostError, match="it belongs to uid"):
        make_private(str(tmp_path))
