"""backend.landlock: what it refuses before anything is made, and that whatever happens nothing of a cell is left."""

from __future__ import annotations

import os
import secrets
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from membrane.backend import Ended
from membrane.backend import landlock as landlock_backend
from membrane.backend.landlock import Inside, InsideCell
from membrane.errors import HostError, InternalError, PolicyError
from membrane.host import landlock
from membrane.host.start import Start
from membrane.plan.inside import build
from membrane.plan.model import File, HostFacts, SandboxPlan, Symlink
from membrane.plan.mounts import MASK_SOURCE
from membrane.policy.model import Policy


@pytest.fixture
def plan(tmp_path: Path) -> SandboxPlan:
    for name in ("home/work", "state"):
        (tmp_path / name).mkdir(parents=True)
    home, work = f"{tmp_path}/home", f"{tmp_path}/home/work"
    facts = HostFacts(
        os.getuid() or 1000, os.getgid() or 1000, "dev", False, home, f"{tmp_path}/state", work, "box", ()
    )
    return build(Policy(), facts)


def start(plan: SandboxPlan, **how: Any) -> InsideCell:
    told: dict[str, Any] = {"terminal": (False,) * 3, "session": secrets.token_hex(8), "umask": 0o22, "notify": ""}
    return Inside().start(plan, ("true",), **{**told, "commands": "one", **how})


def test_several_commands_are_refused_before_anything_is_made(plan: SandboxPlan) -> None:
    before = set(os.listdir("/tmp"))
    with pytest.raises(PolicyError, match="runs one command in a sandbox"):
        start(plan, commands="fresh")
    assert not [name for name in set(os.listdir("/tmp")) - before if name.startswith(".membrane-")]


def test_a_kernel_that_cannot_refuse_tcp_is_said(plan: SandboxPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: landlock.SUPERVISED - 1)
    with pytest.raises(HostError, match="TCP is refused from ABI 4 on") as refused:
        start(plan)
    assert any("6.7" in each for each in refused.value.fix)


def cell(plan: SandboxPlan) -> Any:
    return InsideCell(Start(plan, ("true",), (False, False, False), secrets.token_hex(8), 0o22), None)


def in_a_child(body: Any) -> None:
    """A cell makes its process the reaper of orphans, which a worker of the tests must not become."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(60)
            body()
            status = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0, "see the traceback above"


@pytest.mark.needs_kernel("landlock without TCP")
@pytest.mark.parametrize("killed", [False, True])
def test_nothing_of_a_cell_is_left(plan: SandboxPlan, killed: bool) -> None:
    def body() -> None:
        before = set(os.listdir("/proc/self/fd"))
        made = cell(plan)
        directory = Path(made.directory)
        assert sorted(os.listdir(directory)) == ["copies", "doors", "files", "home", "logins", "memory", "none", "tmp"]
        assert directory.stat().st_mode & 0o777 == 0o700
        _how, sockets = made.sockets()
        assert [role for role, _fd in sockets] == ["tcp4-named", "destinations", "datagrams"]
        for _role, fd in sockets:
            os.close(fd)
        if killed:
            os.kill(made.pid, signal.SIGKILL)
        made.kill()
        made.reap()
        made.reap()
        assert not directory.exists()
        assert set(os.listdir("/proc/self/fd")) == before
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        raise AssertionError("a process is left")

    in_a_child(body)


@pytest.mark.needs_kernel("landlock without TCP")
def test_a_keeper_that_stands_still_is_ended_by_the_warden(plan: SandboxPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a wait: the first one is over at once."""

    def body() -> None:
        made = cell(plan)
        children: list[str] = []
        while not children:  # the keeper is there
            children = Path(f"/proc/{made.pid}/task/{made.pid}/children").read_text().split()
        handle = os.pidfd_open(int(children[0]))
        os.kill(int(children[0]), signal.SIGSTOP)
        real, waits = landlock_backend.ready, iter([(set(), set())])
        monkeypatch.setattr(landlock_backend, "ready", lambda *asked, **how: next(waits, None) or real(*asked, **how))
        made.kill()
        made.reap()
        assert select.select([handle], [], [], 60)[0] and not Path(made.directory).exists()
        os.close(handle)

    in_a_child(body)


@pytest.mark.needs_kernel("landlock without TCP")
def test_files_of_ours_are_in_its_own_directory_and_variables_lead_there(plan: SandboxPlan) -> None:
    def body() -> None:
        made = cell(plan)
        sent: list[Any] = []
        made._channel.send = sent.append
        environment = [
            ("CA", f"{MASK_SOURCE}/ca.pem"),
            ("HOME", f"{MASK_SOURCE}/home/x"),
            ("JAVA", f"-D={MASK_SOURCE}/s"),
        ]
        made.fill([File(f"{MASK_SOURCE}/ca.pem", b"certificate")], environment)
        own = made.directory
        assert Path(own, "files/ca.pem").read_bytes() == b"certificate"
        (filled,) = sent
        assert dict(filled.late.environment) == {
            "CA": f"{own}/files/ca.pem", "HOME": f"{own}/home/x", "JAVA": f"-D={own}/files/s"
        }  # fmt: skip
        made.kill()
        made.reap()

    in_a_child(body)


@pytest.mark.needs_kernel("landlock without TCP")
def test_what_it_has_not_is_an_error_of_ours_and_its_end_is_no_exit(plan: SandboxPlan) -> None:
    def body() -> None:
        made = cell(plan)
        for call in (made.trace_handle, made.fork):
            with pytest.raises(InternalError):
                call()
        assert not made.freeze(0, "x") and not made.hiding
        assert isinstance(made.read(made.descriptors()[0]), Ended)
        os.kill(made.pid, signal.SIGKILL)
        with pytest.raises(HostError, match="the keeper ended before"):
            made.built()
        assert "was killed" in made.command.read().why
        made.reap()

    in_a_child(body)


@pytest.mark.needs_kernel("landlock without TCP")
def test_a_home_in_which_a_link_is_in_the_way_leaves_nothing(plan: SandboxPlan, tmp_path: Path) -> None:
    home = tmp_path / "own"
    home.mkdir()
    (home / ".local").symlink_to(tmp_path)
    environment = tuple({**dict(plan.environment), "HOME": str(home)}.items())
    link = Symlink(f"{home}/.local/share", str(tmp_path / "kept"))
    session, changed = secrets.token_hex(8), plan.replace(environment=environment, mounts=(*plan.mounts, link))
    with pytest.raises(HostError, match="made inside"):
        InsideCell(Start(changed, ("true",), (False, False, False), session, 0o22), None)
    assert not os.path.lexists(f"/tmp/.membrane-{session}")
    assert not os.path.lexists(tmp_path / "share")
