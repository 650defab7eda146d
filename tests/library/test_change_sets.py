"""A change set as a program has it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from membrane import ChangeSet, Conflict, Poisoned, Policy, PolicyError, Sandbox


def name_of(environ: dict[str, str]) -> str:
    (name,) = [each for each in os.listdir(Path(environ["MEMBRANE_HOME"], "changes")) if not each.startswith(".")]
    return name


def test_what_a_sandbox_changed_is_looked_at_and_put_in_place(workspace: Path, environ: dict[str, str]) -> None:
    (workspace / "file").write_text("base\n")
    with Sandbox(Policy.from_dict({"workspace": "review"}), workspace=workspace, environ=environ) as sandbox:
        sandbox.shell("echo mine > file; echo x > run; chmod +x run; mkdir d; echo y > d/y")
        with pytest.raises(PolicyError, match="in use"):
            ChangeSet(name_of(environ), environ=environ).changes()
    found = ChangeSet(name_of(environ), environ=environ)
    assert {change.path: change.kind for change in found.changes()} == {
        "d": "added",
        "d/y": "added",
        "file": "changed",
        "run": "added",
    }
    assert found.diff(["file"]).splitlines()[-2:] == [b"-base", b"+mine"]
    for call in (found.diff, found.apply):
        with pytest.raises(PolicyError, match=r"neither the change set .* nor its workspace has fiel"):
            call(["file", "fiel"])
    with pytest.raises(Poisoned) as poisoned:
        found.apply(refuse="all")
    assert poisoned.value.paths == (("run", "it can be executed"),)
    assert (workspace / "file").read_text() == "base\n"
    report = found.apply()
    assert [change.path for change in report.applied] == ["d", "d/y", "file"]
    assert found.undo() == ()
    (workspace / "file").write_text("host\n")
    with pytest.raises(Conflict) as conflict:
        found.apply(["file"], refuse="nothing")
    assert [path for path, _ in conflict.value.paths] == ["file"]
    assert [change.path for change in found.apply(rest=True, refuse="nothing").applied] == ["d", "d/y", "run"]
    assert (workspace / "file").read_text() == "host\n"
    found.discard()
    with pytest.raises(PolicyError, match="no change set"):
        found.changes()


def test_some_hunks_of_a_file_are_put_in_place(workspace: Path, environ: dict[str, str]) -> None:
    text = "".join(f"{number}\n" for number in range(20))
    (workspace / "file").write_text(text)
    with Sandbox(Policy.from_dict({"workspace": "review"}), workspace=workspace, environ=environ) as sandbox:
        sandbox.shell("sed -i 's/^2$/two/; s/^15$/fifteen/' file; echo x > new")
    found = ChangeSet(name_of(environ), environ=environ)
    first, second = found.hunks("file")
    assert (first.removed, second.added) == ((b"2\n",), (b"fifteen\n",))
    with pytest.raises(PolicyError, match="comes only as a whole"):
        found.hunks("new")
    with pytest.raises(PolicyError, match="nothing was changed"):
        found.hunks("nothing")
    with pytest.raises(Conflict):
        found.apply(hunks={"file": [first.replace(added=(b"another\n",))]})
    report = found.apply(refuse="all", hunks={"file": iter([second])})
    assert report.partly == ("file",) and len(report.applied) == 2
    assert (workspace / "file").read_text() == text.replace("15\n", "fifteen\n")
    assert found.hunks("file") == (first,)
    assert found.apply().partly == () and found.changes() == ()
