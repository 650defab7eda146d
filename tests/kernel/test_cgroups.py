"""Control groups as root of a user namespace has them: ``host.facts.open_cgroup`` says what the kernel lets it do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from membrane.host.facts import mount_points

pytestmark = [
    pytest.mark.as_root,  # who may make a group and give it away
    pytest.mark.needs_tool("unshare"),
    pytest.mark.needs_kernel("cgroups for containers"),
]
UID = 1000
ASK = "from membrane.host.facts import open_cgroup; print(open_cgroup())"
# What is written changes nothing: the group runs on.
WRITE = "mount -t cgroup2 none /mnt && echo 0 > /mnt/cgroup.freeze"


@pytest.fixture
def group() -> Iterator[Path]:
    mounted = next(Path(place) for place, kind in mount_points() if kind == "cgroup2")
    made = mounted / f"membrane-test-{os.getpid()}"
    made.mkdir()
    yield made
    made.rmdir()


def within(group: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program of another user in the group."""
    enter = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group)]
    drop = [sys.executable, "-c", f"import os, sys; os.setgroups([]); os.setgid({UID}); os.setuid({UID}); "
            "os.chdir('/'); os.execvp(sys.argv[1], sys.argv[1:])"]  # fmt: skip
    return subprocess.run([*enter, *drop, *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("given", [True, False])
def test_who_owns_its_group_could_stop_it_from_inside(group: Path, given: bool) -> None:
    if given:
        for path in (group, *group.iterdir()):
            os.chown(path, UID, UID)
    written = within(group, "unshare", "-UrmC", "--propagation=private", "sh", "-c", WRITE)
    asked = within(group, sys.executable, "-P", "-c", ASK)
    assert asked.returncode == 0, asked
    refuses = not given or _delegates(group)
    assert (written.returncode != 0) == refuses, written
    assert asked.stdout == ("\n" if refuses else f"{group}\n")


def _delegates(group: Path) -> bool:
    """Does the kernel keep the group of a namespace from it (``nsdelegate``)?"""
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return any(line[4] == str(group.parent) and "nsdelegate" in line[-1].split(",") for line in lines)
