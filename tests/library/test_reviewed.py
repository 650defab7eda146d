"""A reviewed workspace for programs: many commands, one change set."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from membrane import Policy, PolicyError, Sandbox

pytestmark = pytest.mark.needs_kernel("overlayfs in a user namespace")
REVIEW = Policy.from_dict({"workspace": "review", "ignore": [".env"]})


def test_the_commands_of_a_sandbox_share_a_change_set(workspace: Path, environ: dict[str, str]) -> None:
    (workspace / "file").write_text("base")
    (workspace / ".env").write_text("SECRET")
    with Sandbox(REVIEW, workspace=workspace, environ=environ) as sandbox:
        assert sandbox.shell("echo mine > file; mkdir d; ls -A").stdout == ".env\nd\nfile\n"
        assert sandbox.shell("cat file; test -s .env || echo hidden; echo x > .env").stdout == "mine\nhidden\n"
        (workspace / "late").write_text("of the host")
        assert sandbox.shell("cat late .env").stdout == "of the hostx\n"
        # Another sandbox, another set.
        with Sandbox(REVIEW, workspace=workspace, environ=environ) as other:
            assert other.shell("cat file; ls").stdout == "basefile\nlate\n"
    assert (workspace / "file").read_text() == "base"
    assert sorted(os.listdir(workspace)) == [".env", "file", "late"]
    sets = [name for name in os.listdir(Path(environ["MEMBRANE_HOME"], "changes")) if not name.startswith(".")]
    assert len(sets) == 1  # of the first one: what changed nothing has left none


def test_the_control_writes_the_workspace(workspace: Path, environ: dict[str, str]) -> None:
    with Sandbox(Policy(), workspace=workspace, environ=environ) as sandbox:
        sandbox.shell("echo mine > file")
    assert (workspace / "file").read_text() == "mine\n"


def test_what_cannot_be_reviewed_is_said_at_the_start(workspace: Path, environ: dict[str, str]) -> None:
    rules = {"workspace": "review", "mounts": [{"path": str(workspace.parent), "mode": "rw"}]}
    with pytest.raises(PolicyError), Sandbox(Policy.from_dict(rules), workspace=workspace, environ=environ) as sandbox:
        sandbox.shell("true")
