"""Everyday git in a ``Sandbox``: a change reaches every command, and none can use the moment of it."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest

from membrane import Policy, Result, Sandbox

RACER = r"""
import errno, os, sys
os.chdir(".git")
other = 0
while not os.path.exists("../over"):
    for name in ("config", "hooks/../config"):
        try:
            os.open(name, os.O_RDWR)
            sys.exit("opened")
        except OSError as error:
            other |= error.errno != errno.EROFS
sys.exit("another errno" if other else 0)
"""
CHANGES = """
git config core.pager ./evil; echo $?
for n in 1 2 3 4 5 6 7 8 9; do git config user.name $n || exit 1; done
touch over
"""


@pytest.mark.parametrize("record", [True, False])
def test_everyday_settings(workspace: Path, environ: dict[str, str], record: bool) -> None:
    subprocess.run(["git", "init", "-q", "."], cwd=workspace, env=environ, check=True, timeout=60)
    before = (workspace / ".git/config").read_bytes()
    with Sandbox(Policy(), workspace=workspace, environ=environ, record=record) as sandbox:
        if not record:  # without a tracer nobody can hold the call
            done = sandbox.run(["git", "config", "user.name", "x"])
            assert done.exit_code == 4 and "busy" in str(done.stderr)
            assert (workspace / ".git/config").read_bytes() == before
            return
        racers: list[Result] = []
        script = ["/usr/bin/python3", "-S", "-c", RACER]
        thread = threading.Thread(target=lambda: racers.append(sandbox.run(script)))
        thread.start()
        done = sandbox.run(["sh", "-c", CHANGES])
        thread.join()
        assert (done.exit_code, done.stdout) == (0, "4\n"), done.stderr
        assert [each.exit_code for each in racers] == [0], racers
        assert sandbox.run(["git", "config", "user.name"]).stdout == "9\n"
    assert (workspace / ".git/config").read_bytes() == before + b"[user]\n\tname = 9\n"
