"""host.init: what a command finds itself with, in children that are made into one step by step."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from forks import ended, forked

from membrane.host import init, seccomp
from membrane.host import messages as m
from membrane.host import syscalls as sc
from membrane.host.channel import named_pair
from membrane.host.start import Start
from membrane.plan.build import build
from membrane.plan.model import HostFacts
from membrane.policy.model import Limits, Policy

FACTS = HostFacts(1000, 1000, "dev", False, "/home/dev", "/home/dev/.membrane", "/srv/app", "box", ())


def start(**fields: object) -> Start:
    made = Start(build(Policy(), FACTS), ("true",), (False, False, False), "id", 0o22)
    return made.replace(**fields)


def script(place: Path, text: str, mode: int = 0o755) -> str:
    place.write_text(text)
    place.chmod(mode)
    return str(place)


# ---------------------------------------------------------------- execve


def executed(argv: tuple[str, ...], path: str = "/usr/bin:/bin") -> tuple[int, str]:
    def body() -> None:
        _reading, writing = os.pipe()
        init.execute(argv, {"PATH": path, "X": "y"}, writing)

    return ended(body)


def test_a_command_is_found_as_a_shell_finds_it(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    script(tmp_path / "a" / "tool", "#!/bin/sh\nexit 1\n", 0o644)
    script(tmp_path / "b" / "tool", '#!/bin/sh\necho "$X $0 $1" >&2\nexit 7\n')
    path = f"{tmp_path}/none:{tmp_path}/a:{tmp_path}/b"
    assert executed(("tool", "word"), path) == (7, f"y {tmp_path}/b/tool word\n")
    assert executed((f"{tmp_path}/b/tool", ""), "") == (7, f"y {tmp_path}/b/tool \n")


def test_a_file_without_a_head_is_the_shells(tmp_path: Path) -> None:
    name = script(tmp_path / "plain", 'echo "$1" >&2; exit 5')
    assert executed((name, "word")) == (5, "word\n")


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("no-such-tool", 127, "membrane: no-such-tool: command not found\n"),
        ("./none", 127, "membrane: ./none: no such file\n"),
        ("no\x1b[2J", 127, "membrane: no\\u{1b}[2J: command not found\n"),
        ("/etc/passwd/x", 127, "membrane: /etc/passwd/x: no such file\n"),
        ("/etc", 126, "membrane: /etc: Permission denied\n"),
        ("/etc/passwd", 126, "membrane: /etc/passwd: Permission denied\n"),
    ],
)
def test_why_it_does_not_start(name: str, status: int, said: str) -> None:
    assert executed((name,)) == (status, said)


def test_one_that_may_not_be_executed_counts_also_where_a_later_place_has_none(tmp_path: Path) -> None:
    script(tmp_path / "tool", "#!/bin/sh\n", 0o644)
    assert executed(("tool",), f"{tmp_path}:/usr/bin") == (126, "membrane: tool: Permission denied\n")


# ---------------------------------------------------------------- limits and streams


def test_each_limit_is_the_processes_own_and_cannot_be_lifted() -> None:
    wanted = Limits(memory=1 << 30, cpu=77, files=99, disk=1 << 20)

    def body() -> list[tuple[int, int]]:
        init.set_limits(wanted)
        kinds = (resource.RLIMIT_CORE, resource.RLIMIT_DATA, resource.RLIMIT_CPU, resource.RLIMIT_NOFILE)
        return [resource.getrlimit(kind) for kind in (*kinds, resource.RLIMIT_FSIZE)]

    assert forked(body) == [(0, 0), (1 << 30, 1 << 30), (77, 77), (99, 99), (1 << 20, 1 << 20)]


def test_without_a_limit_only_core_dumps_go() -> None:
    def body() -> list[tuple[int, int]]:
        init.set_limits(Limits())
        return [resource.getrlimit(kind) for kind in (resource.RLIMIT_CORE, resource.RLIMIT_DATA, resource.RLIMIT_CPU)]

    kept = [resource.getrlimit(kind) for kind in (resource.RLIMIT_DATA, resource.RLIMIT_CPU)]
    assert forked(body) == [(0, 0), *kept]


def test_who_reads_the_streams_sees_their_end() -> None:
    reading, writing = os.pipe()

    def body() -> list[str]:
        os.close(reading)
        for fd in (1, 2):
            os.dup2(writing, fd)
        os.close(writing)
        init.replace_streams()
        return [os.readlink(f"/proc/self/fd/{fd}") for fd in (0, 1, 2)] + [str(os.get_inheritable(1))]

    assert forked(body) == ["/dev/null"] * 3 + ["False"]
    os.close(writing)
    assert os.read(reading, 1) == b""
    os.close(reading)


# ---------------------------------------------------------------- filters


def test_the_second_filter_is_installed_by_the_spawner_where_there_are_several_commands() -> None:
    assert init.assemble(start()).notifying == b""
    assert init.assemble(start(notify="writes", commands="fresh")).notifying == b""
    one = init.assemble(start(notify="writes"))
    assert one.notifying == seccomp.notify_program(reads=False, raw=True, namespaces=False, machine=sc.MACHINE)
    assert init.assemble(start(notify="reads")).notifying != one.notifying
    assert init.assemble(start(notify="writes"), forbidden=True).refusing != one.refusing


def test_raw_sockets_are_left_to_the_reader_only_where_the_kernel_would_refuse_them() -> None:
    plan = start().plan

    def notifies(notify: str, **fields: bool) -> bool:
        hardening = plan.hardening.replace(**fields)
        return init.notifies_raw(start(notify=notify, plan=plan.replace(hardening=hardening)))

    assert notifies("writes") and notifies("reads") and not notifies("")
    assert not notifies("writes", nested=True) and not notifies("writes", user_namespaces=True)


@pytest.mark.needs_kernel("user namespaces")
@pytest.mark.parametrize(("notify", "forbidden"), [("writes", True), ("", False)])
def test_user_namespaces_are_refused_by_the_kernel_where_somebody_reports_it(notify: str, forbidden: bool) -> None:
    def body() -> tuple[bool, str]:
        said = init.forbid_namespaces(start(notify=notify))
        try:
            sc.unshare(sc.CLONE_NEWUSER)
        except OSError as error:
            return said, os.strerror(error.errno or 0)
        return said, "made"

    assert forked(body, sc.CLONE_NEWNS) == (forbidden, "No space left on device" if forbidden else "made")


# ---------------------------------------------------------------- pid 1


def test_the_end_of_a_child_is_waited_for_and_reaped() -> None:
    def body() -> tuple[bool, bool]:
        ours, _theirs = named_pair(m.TO_INSIDE, m.FROM_INSIDE)
        poll, wake, _write = init.waiting_for(ours)
        child = os.fork()
        if child == 0:
            os._exit(0)
        ready = {fd for fd, _event in poll.poll(20_000)}
        init.reap_ended(wake)
        try:
            os.waitpid(child, os.WNOHANG)
        except ChildProcessError:
            return ready == {wake}, True
        return ready == {wake}, False

    assert forked(body) == (True, True)


def test_pid_1_ends_when_nobody_writes_its_maps(tmp_path: Path) -> None:
    """Its launcher has died: nothing of the view is made."""
    made = start()

    def body() -> None:
        ours, _theirs = named_pair(m.TO_INSIDE, m.FROM_INSIDE)
        reading, writing = os.pipe()
        os.close(writing)
        init.init(made, ours, {}, reading)

    assert ended(body) == (1, "")
