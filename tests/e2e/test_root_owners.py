"""Root callers and the owners of files: archives are unpacked, and what is refused says what to do."""

from __future__ import annotations

import os
import stat

import pytest
from world.box import Box

pytestmark = pytest.mark.as_root


def _archive(box: Box) -> None:
    source = box.workspace / "s"
    (source / "deep").mkdir(parents=True)
    for name, mode in (("f", 0o644), ("run", 0o755), ("deep/key", 0o600)):
        (source / name).write_text("x")
        (source / name).chmod(mode)
    for path in (source, *source.rglob("*")):
        os.chown(path, 4242, 4242)
    done = box.outside("tar", "cf", "t.tar", "--numeric-owner", "s")
    assert done.returncode == 0, done
    box.outside("rm", "-r", "s")


def test_tar_unpacks_what_others_own_and_root_inside_can_use_it(box: Box) -> None:
    _archive(box)
    script = "tar xf t.tar && echo more >> s/deep/key && tar cf again.tar s && rm -r s/deep && stat -c %u:%g:%a s/run"
    done = box.run("--", "sh", "-c", script)
    assert (done.returncode, done.stdout) == (0, "0:0:755\n"), done
    assert "owner" not in done.stderr
    assert {path.stat().st_uid for path in (box.workspace / "s").rglob("*")} == {0}
    control = box.outside("tar", "xf", "t.tar")
    assert control.returncode == 0 and (box.workspace / "s" / "f").stat().st_uid == 4242


@pytest.mark.parametrize("copy", [("cp", "-a", "s", "copy"), ("install", "-o", "4242", "-g", "4242", "s/run", "copy")])
def test_programs_that_give_owners_go_on_and_it_is_told(box: Box, copy: tuple[str, ...]) -> None:
    """Control: the same command outside gives the files their owner."""
    _archive(box)
    assert box.outside("tar", "xf", "t.tar").returncode == 0
    for path in (box.workspace / "s", *(box.workspace / "s").rglob("*")):
        path.chmod(path.stat().st_mode | 0o044)  # root inside has no CAP_DAC_OVERRIDE
    done = box.run("--", *copy)
    assert done.returncode == 0, done
    assert "chown   owner kept   files that root inside makes stay yours" in done.stderr
    made = [box.workspace / "copy", *(box.workspace / "copy").rglob("*")]
    assert {(path.stat().st_uid, path.stat().st_gid) for path in made} == {(0, 0)}
    untraced = box.run("--no-trace", "--", *copy[:-1], "again")
    assert untraced.returncode == 1 and "Operation not permitted" in untraced.stderr
    assert box.outside(*copy[:-1], "control").returncode == 0
    assert (box.workspace / "control").stat().st_uid == 4242


def test_what_is_given_away_keeps_no_bit_that_changes_who_executes_it(box: Box) -> None:
    """The call that succeeds changes nothing, so there is no set-id file of anybody, before or after."""
    script = "cp /usr/bin/env e; chmod 4755 e; echo $?; chown 4242:4242 e; echo $?; chmod 4755 e; echo $?; chmod 2755 e"
    done = box.run("--", "sh", "-c", script)
    assert done.stdout.split() == ["1", "0", "1"] and done.returncode == 1, done
    made = (box.workspace / "e").stat()
    assert (made.st_uid, stat.S_IMODE(made.st_mode) & 0o7000) == (0, 0)
