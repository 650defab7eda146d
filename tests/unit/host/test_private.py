"""Directories of our state: the caller's alone, each that is made, and nobody else's."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

import pytest

from membrane.errors import HostError
from membrane.host.private import is_held, make_private, take_back


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


@pytest.mark.as_root  # who can give a directory away without an engine of containers
def test_a_directory_that_was_given_away_is_taken_back_and_no_other(tmp_path: Path) -> None:
    given, outside, foreign = tmp_path / "given", tmp_path / "outside", tmp_path / "foreign"
    for path in (given, outside, foreign / "below"):
        path.mkdir(parents=True)
        (path / "kept").write_text("x")
        os.chown(path, 4242, 4242)
    os.chown(foreign, 4242, 4242)
    given.chmod(0)
    link = tmp_path / "link"
    link.symlink_to(outside)
    os.chown(link, 4242, 4242, follow_symlinks=False)
    with pytest.raises(HostError):
        make_private(str(given))
    for path in (given, link, foreign / "below", tmp_path / "missing"):
        take_back(str(path))
    make_private(str(given))
    assert (stat.S_IMODE(given.stat().st_mode), (given / "kept").read_text()) == (0o700, "x")
    assert {path.stat().st_uid for path in (outside, foreign / "below")} == {4242}


def test_a_lock_is_held_while_its_holder_lives_and_two_who_look_are_none(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    with path.open() as holder, path.open() as one, path.open() as other:
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert is_held(one.fileno()) and is_held(other.fileno())
        fcntl.flock(holder, fcntl.LOCK_UN)  # as its end does
        assert not is_held(one.fileno()) and not is_held(other.fileno())
        with pytest.raises(BlockingIOError):  # it is theirs: nobody takes it between the look and what follows
            fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
