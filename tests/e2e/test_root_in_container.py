"""Root as containers have it: without CAP_SYS_ADMIN, and with everything on overlayfs.

Docker's default set lacks CAP_SYS_ADMIN, and its root file system is an overlay: such a root gets what a plain user
gets, as uid 0 itself.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from world.box import Box

pytestmark = pytest.mark.as_root

# capabilities(7) of moby's profiles/seccomp default set, without those that a test machine's kernel may lack.
DOCKER = "chown,dac_override,fowner,fsetid,kill,setgid,setuid,setpcap,net_bind_service,net_raw,sys_chroot,mknod"
DOCKER += ",audit_write,setfcap"


def as_container_root(box: Box, *arguments: str, keep: str = DOCKER) -> subprocess.CompletedProcess[str]:
    kept = ",".join(f"+{name}" for name in keep.split(",") if name)
    bounding = f"--bounding-set=-all{',' + kept if kept else ''}"
    argv = ["setpriv", bounding, "--inh-caps=-all", *box.argv(*arguments)]
    return box.world.run(argv, cwd=box.workspace, env=box.environment())


def test_root_without_cap_sys_admin_gets_what_a_plain_user_gets(box: Box) -> None:
    script = "id -u; cat /proc/self/uid_map; echo made > made; grep CapEff /proc/self/status"
    done = as_container_root(box, "--", "sh", "-euc", script)
    assert done.returncode == 0, done
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["0"],
        ["0", "0", "1"],
        ["CapEff:", "0" * 16],
    ]
    made = (box.workspace / "made").stat()
    assert (made.st_uid, made.st_gid) == (0, 0)


def test_the_tracer_keeps_the_capabilities_that_it_has(box: Box) -> None:
    done = as_container_root(box, f"--events={box.events_path}", "--", "sh", "-c", "echo x > made", keep="setfcap")
    assert done.returncode == 0, done
    assert "not traced" not in done.stderr
    assert [event["path"] for event in box.events("FileOpened") if event["path"].endswith("/made")]


def test_root_that_may_not_map_itself_is_told_why(box: Box) -> None:
    done = as_container_root(box, "--", "true", keep="")
    assert done.returncode == 125
    assert "lacks CAP_SETFCAP" in done.stderr
    assert "run membrane as an ordinary user" in done.stderr


# Settings that ask for no capability: kernel uid 0 may write them by file mode.  Each is opened, none is written.
SETTINGS = """
import errno, json, sys
answer = {}
for path in sys.argv[1:]:
    try:
        open(path, "r+b", buffering=0).close()
        answer[path] = 0
    except OSError as error:
        answer[path] = error.errno
print(json.dumps(answer))
"""


def test_uid_0_itself_can_change_no_setting_of_the_machine(box: Box) -> None:
    paths = ["/proc/sys/kernel/sysrq", "/proc/sys/vm/swappiness", "/proc/sys/kernel/core_pattern", "/proc/mtrr"]
    paths = [path for path in paths if os.path.exists(path)]
    control = box.world.run(
        ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "python3", "-c", SETTINGS, *paths], cwd=box.workspace
    )
    assert 0 in json.loads(control.stdout).values(), control  # by mode alone, without any capability
    done = as_container_root(box, "--", "python3", "-c", SETTINGS, *paths)
    assert done.returncode == 0, done
    assert 0 not in json.loads(done.stdout).values()


@pytest.fixture
def overlay(box: Box, tmp_path: Path) -> Iterator[Path]:
    """A directory of the caller's on overlayfs."""
    for name in ("lower", "upper", "scratch", "merged"):
        (tmp_path / name).mkdir()
    where = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/scratch"
    merged = tmp_path / "merged"
    assert box.world.run(["mount", "-t", "overlay", "overlay", "-o", where, str(merged)]).returncode == 0
    try:
        yield merged
    finally:
        assert box.world.run(["umount", str(merged)]).returncode == 0


def test_a_workspace_on_overlayfs_works_and_says_what_is_weaker(box: Box, overlay: Path) -> None:
    done = box.run("--", "sh", "-euc", "echo made > made; id -u; cat /proc/self/uid_map", cwd=overlay)
    assert done.returncode == 0, done
    assert done.stdout.split() == ["0", "0", "0", "1"]
    assert "runs as uid 0 itself" in done.stderr
    assert box.world.run(["stat", "-c", "%u", str(overlay / "made")]).stdout == "0\n"
    elsewhere = box.run("--", "cat", "/proc/self/uid_map")  # the control: on another file system it has its own ids
    assert elsewhere.stdout.split() == ["0", "0", "65536"]
    assert "uid 0 itself" not in elsewhere.stderr
