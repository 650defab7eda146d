"""The AppArmor profile: whom it names, that the parser takes it, and that nothing stays when it is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from membrane.errors import HostError
from membrane.ui import apparmor

OWN = ("/opt/membrane/bin/membrane", "/opt/membrane/bin/python3.12")


class Machine:
    """A machine that restricts user namespaces, with a parser that writes down how it was called."""

    def __init__(self, place: Path, restricted: str = "1") -> None:
        self.place = place
        self.profile, self.setting, self.calls = place / "d" / "membrane", place / "setting", place / "calls"
        self.parser = place / "parser"
        self.profile.parent.mkdir()
        self.setting.write_text(restricted + "\n")
        self.answers("exit 0")

    def answers(self, script: str) -> None:
        self.parser.write_text(f'#!/bin/sh\necho "$@" >>{self.calls}\n{script}\n')
        self.parser.chmod(0o755)

    def set_up(self, command: str = "/usr/bin/env") -> list[str]:
        said: list[str] = []
        apparmor.userns(
            command, said.append, profile=str(self.profile), setting=str(self.setting), parser=str(self.parser)
        )
        return said

    def take_away(self) -> list[str]:
        said: list[str] = []
        apparmor.no_userns(said.append, profile=str(self.profile), parser=str(self.parser))
        return said

    def called(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return Machine(tmp_path)


@pytest.mark.as_user
def test_a_plain_user_cannot(tmp_path: Path) -> None:
    for action in (lambda: apparmor.userns("/usr/bin/env", print), lambda: apparmor.no_userns(print)):
        with pytest.raises(HostError, match="only root") as caught:
            action()
        assert caught.value.fix == ("sudo membrane setup userns",)


def test_it_is_checked_written_loaded_and_taken_away(machine: Machine) -> None:
    real = os.path.realpath("/usr/bin/env")
    assert machine.set_up() == [f"{real} may make user namespaces now, and after each boot ({machine.profile})"]
    assert f"profile membrane {real} flags=(unconfined) {{\n  userns,\n}}\n" in machine.profile.read_text()
    check, load = machine.called()
    assert check.startswith(f"--skip-kernel-load --skip-cache {machine.profile.parent}/.membrane.")
    assert load == f"--replace {machine.profile}"
    assert machine.set_up() and len(machine.called()) == 4  # again, as after an update
    assert os.listdir(machine.profile.parent) == ["membrane"]
    assert machine.take_away() == [f"{machine.profile} is removed: new runs are restricted again"]
    assert machine.called()[-1] == f"--remove {machine.profile}"
    assert machine.take_away() == [f"there is no {machine.profile}: nothing to take away"]


def test_where_nothing_is_restricted_nothing_is_written(machine: Machine) -> None:
    machine.setting.write_text("0\n")
    assert machine.set_up() == ["AppArmor does not restrict user namespaces here: there is nothing to set up"]
    machine.setting.unlink()
    assert machine.set_up() and not machine.profile.exists() and not machine.called()


def test_what_the_parser_refuses_leaves_no_file(machine: Machine) -> None:
    machine.answers("echo 'AppArmor parser error: syntax error' >&2; exit 1")
    with pytest.raises(HostError, match="syntax error"):
        machine.set_up()
    machine.answers('case "$1" in --replace) echo "cannot load" >&2; exit 1;; esac')
    with pytest.raises(HostError, match="cannot load"):
        machine.set_up()
    machine.parser.unlink()
    with pytest.raises(HostError) as caught:
        machine.set_up()
    assert caught.value.fix == ("sudo apt install apparmor",)
    assert os.listdir(machine.profile.parent) == []


def test_a_profile_of_somebody_else_stays(machine: Machine) -> None:
    machine.profile.write_text("profile membrane /usr/bin/other { }\n")
    for action in (machine.set_up, machine.take_away):
        with pytest.raises(HostError, match="not written by this command"):
            action()
    assert machine.profile.read_text() == "profile membrane /usr/bin/other { }\n" and not machine.called()


def test_what_others_can_change_is_never_named(machine: Machine) -> None:
    program = machine.place / "membrane"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o777)
    with pytest.raises(HostError, match="others than root can change") as caught:
        machine.set_up(str(program))
    assert "sudo python3 -m venv --copies /opt/membrane" in caught.value.fix
    with pytest.raises(HostError, match="no program"):
        machine.set_up("/etc/passwd")
    assert not machine.profile.exists()


def test_an_interpreter_is_named_only_where_it_is_this_installations_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(apparmor, "others_can_change", lambda path: "")
    env = os.path.realpath("/usr/bin/env")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert apparmor.programs("/usr/bin/env") == (env,)  # a link to the system's interpreter
    own = tmp_path / "python3"
    own.write_text("")
    own.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(own))
    assert apparmor.programs("/usr/bin/env") == (env, os.path.realpath(own))
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert apparmor.programs("/usr/bin/env") == (env,)


@pytest.mark.parametrize(
    "path", ["/opt/a b", "/opt/*", "/opt/{a,b}", "/opt/@{HOME}", "/opt/a\nprofile x {}", "opt/a", "/é"]
)
def test_a_path_that_could_be_a_pattern_is_refused(path: str) -> None:
    with pytest.raises(HostError, match="pattern"):
        apparmor.text([path])


@pytest.mark.needs_tool("apparmor_parser")
def test_the_parser_takes_it(tmp_path: Path) -> None:
    """A parser before 4.0 (Debian 12) knows no ``userns``: it takes the rest, and stumbles over exactly that rule."""

    def check(text: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "profile"
        path.write_text(text)
        argv = ["apparmor_parser", "--skip-kernel-load", "--skip-cache", str(path)]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)

    text = apparmor.text(OWN)
    if os.path.exists("/etc/apparmor.d/abi/4.0"):
        assert check(text).returncode == 0
    else:
        older = text.replace("abi/4.0", "abi/3.0")
        assert "at line 6" in check(older).stderr and older.splitlines()[5] == "  userns,"
        text = older.replace("userns,", "network,")
        assert check(text).returncode == 0
    assert check(text.replace("flags=(unconfined)", "flags=(none)")).returncode != 0
    assert check(text.replace(OWN[0], "opt/membrane")).returncode != 0
