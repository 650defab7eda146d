"""For whom tracing is set up, and what the unit may run; the sets themselves are in kernel/test_bpf.py."""

from __future__ import annotations

import grp
import os
import pwd
import subprocess
from types import SimpleNamespace

import pytest

from membrane.errors import HostError
from membrane.tracer import grant
from membrane.ui import setup


def people(monkeypatch: pytest.MonkeyPatch, members: list[str]) -> None:
    def group(name: str) -> SimpleNamespace:
        if name != "membrane":
            raise KeyError(name)
        return SimpleNamespace(gr_gid=77, gr_mem=members)

    monkeypatch.setattr(grp, "getgrnam", group)
    users = [("root", 0, 77), ("anna", 1001, 1001), ("berta", 1002, 77), ("carl", 1003, 1003)]
    monkeypatch.setattr(pwd, "getpwall", lambda: [SimpleNamespace(pw_name=n, pw_uid=u, pw_gid=g) for n, u, g in users])


def test_members_by_either_way_and_never_root(monkeypatch: pytest.MonkeyPatch) -> None:
    people(monkeypatch, ["anna", "root", "nobody-known"])
    assert setup.members() == {"anna": 1001, "berta": 1002}
    with pytest.raises(HostError, match="no group other") as caught:
        setup.members("other")
    assert caught.value.fix[0].startswith("groupadd --system other")


@pytest.mark.as_user
def test_a_plain_user_can_not() -> None:
    with pytest.raises(HostError, match="only root"):
        setup.tracing("/usr/bin/membrane", print)
    with pytest.raises(HostError, match="only root"):
        setup.no_tracing(print)


def test_the_unit(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    people(monkeypatch, ["anna"])
    given: list[int] = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(grant, "grant", lambda uid, directory: given.append(uid) or 4)
    real = os.path.isdir
    monkeypatch.setattr(os.path, "isdir", lambda path: path == "/run/systemd/system" or real(path))
    said: list[str] = []
    units, granted = str(tmp_path / "units"), str(tmp_path / "granted")
    os.mkdir(units)
    setup.tracing("/usr/bin/env", said.append, units=units, granted=granted)
    assert given == [1001, 1002]
    assert said[:2] == [f"{name}: can trace, up to 4 sandboxes at a time" for name in ("anna", "berta")]
    unit = tmp_path / "units" / setup.UNIT
    assert "ExecStart=/usr/bin/env setup tracing\n" in unit.read_text()
    assert os.readlink(f"{units}/multi-user.target.wants/{setup.UNIT}") == str(unit)
    setup.no_tracing(said.append, units=units, granted=granted, state=str(tmp_path / "state"))
    assert not unit.exists() and os.listdir(f"{units}/multi-user.target.wants") == []


def test_root_never_runs_what_others_can_change(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    assert setup.others_can_change("/usr/bin/env") == ""
    program = tmp_path / "membrane"
    program.write_text("")
    program.chmod(0o777)
    assert setup.others_can_change(str(program)) == str(program)
    people(monkeypatch, ["anna"])
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(grant, "grant", lambda uid, directory: 4)
    real = os.path.isdir
    monkeypatch.setattr(os.path, "isdir", lambda path: path == "/run/systemd/system" or real(path))
    said: list[str] = []
    setup.tracing(str(program), said.append, units=str(tmp_path / "units"), granted=str(tmp_path / "granted"))
    assert said[-1] == f"not restored at boot: root would run {program}, and others can change {program}"
    assert not (tmp_path / "units").exists()


@pytest.mark.needs_tool("systemd-analyze")
@pytest.mark.parametrize(("program", "status"), [("/usr/bin/true", 0), ("/nonexistent/membrane", 1)])
def test_systemd_takes_the_unit(tmp_path, program: str, status: int) -> None:
    unit = tmp_path / setup.UNIT
    unit.write_text(setup._TEXT.format(program=program))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, timeout=60, check=False)
    assert done.returncode == status, done.stderr
