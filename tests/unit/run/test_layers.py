"""Which layer a run has, who may have one, and what is left of it."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
from pathlib import Path

import pytest

from membrane.plan.model import HostFacts, Overlay
from membrane.plan.mounts import base
from membrane.policy.model import Policy
from membrane.run import layers
from membrane.run.layers import Layers, planned

PLAIN, ONCE = Policy(), Policy(home="ephemeral")


@pytest.fixture
def facts(tmp_path: Path) -> HostFacts:
    tool = tmp_path / "home" / ".cargo" / "bin"
    tool.mkdir(parents=True)
    tool.chmod(0o750)
    return HostFacts(
        os.geteuid(),
        os.getegid(),
        "u",
        False,
        str(tmp_path / "home"),
        str(tmp_path / "state"),
        str(tmp_path / "work"),
        "box",
        (),
        existing=frozenset([str(tool)]),
    )


def number(made: Layers) -> str:
    return os.path.basename(made.facts.layers)


def test_runs_at_a_time_have_a_layer_each_and_the_first_is_taken_again(facts: HostFacts) -> None:
    facts = planned(PLAIN, facts)
    first, second = Layers(PLAIN, facts), Layers(PLAIN, facts)
    assert (number(first), number(second)) == ("0", "1")
    assert first.notes == () and "another run has the layer" in second.notes[0]
    third = Layers(PLAIN, facts)
    assert number(third) == "2" and third.notes != second.notes  # another place, another text
    for each in (first, second, third):
        each.end()
    again = Layers(PLAIN, facts)
    assert (number(again), again.notes) == ("0", ())
    again.end()


def test_engines_at_a_time_have_a_storage_each_of_one_workspace(facts: HostFacts) -> None:
    nested = Policy(containers="nested")
    other = planned(nested, facts.replace(workspace=f"{facts.workspace}-other"))
    facts = planned(nested, facts)
    made = [Layers(nested, each) for each in (facts, facts, other)]
    first, second, third = (each.facts.engines for each in made)
    assert (first, second) == (facts.engines, f"{os.path.dirname(first)}/1") and third == other.engines
    assert os.path.dirname(first).startswith(f"{facts.state}/containers/work-") and third not in (first, second)
    assert made[0].notes == () and "kept apart, in " + second in made[1].notes[-1] and made[2].notes == ()
    for each in made:
        each.end()
    assert os.path.isdir(second)  # it is kept
    assert planned(PLAIN, facts.replace(engines="")).engines == ""  # the control


def test_a_run_that_was_killed_has_its_layer_until_its_processes_have_ended(facts: HostFacts) -> None:
    facts = planned(PLAIN, facts)
    process = subprocess.Popen(["sleep", "1000"])
    try:
        killed = Layers(PLAIN, facts)
        killed.keep_until([process.pid])
        killed._places[0]._let_go()  # as the kernel does it
        second = Layers(PLAIN, facts)
        assert number(second) == "1"
        second.end()
    finally:
        process.kill()
        process.wait()
    last = Layers(PLAIN, facts)
    assert number(last) == "0"
    last.keep_until([os.getpid()])
    last.end()  # it says itself that nothing runs any more
    again = Layers(PLAIN, facts)
    assert number(again) == "0"
    again.end()


def test_when_all_are_taken_toolchains_are_read_only(facts: HostFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "MOST", 1)
    facts = planned(PLAIN, facts)
    first, second = Layers(PLAIN, facts), Layers(PLAIN, facts)
    assert first.facts.layers and not second.facts.layers and "read-only" in second.notes[0]
    assert not [op for op in base(PLAIN, second.facts) if isinstance(op, Overlay)]
    for each in (first, second):
        each.end()


def test_another_workspace_and_a_shared_home_have_their_own(facts: HostFacts) -> None:
    here = planned(PLAIN, facts).layers
    there = planned(PLAIN, facts.replace(workspace="/srv/other")).layers
    shared = planned(PLAIN.replace(home="shared"), facts).layers
    assert len({here, there, shared, planned(ONCE, facts).layers}) == 4
    assert shared == f"{facts.state}/layers/home/0"
    assert planned(PLAIN.replace(view="host"), facts) == facts
    assert planned(PLAIN, facts.replace(existing=frozenset())).layers == ""  # nothing to lay over


def test_the_layer_of_a_home_that_is_not_kept_goes_at_the_end(facts: HostFacts) -> None:
    facts = planned(ONCE, facts)
    one, two = Layers(ONCE, facts), Layers(ONCE, facts)
    assert one.facts.layers != two.facts.layers
    for each in (one, two):
        each.prepare(base(ONCE, each.facts))
        (Path(each.facts.layers) / ".cargo-bin" / "upper" / "left").mkdir(mode=0)
    one.end()
    assert not os.path.exists(one.facts.layers) and os.path.isdir(two.facts.layers)
    two._places[0]._let_go()  # as when it is killed
    Layers(ONCE, facts).end()
    assert os.listdir(f"{facts.state}/layers/.once") == []


def test_a_home_that_is_not_kept_has_a_layer_that_it_has_locked_or_none(
    facts: HostFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the making of its directory and its lock another run can take it for one that was left."""
    facts = planned(ONCE, facts)
    above = Path(facts.state) / "layers" / ".once"
    taken = above / (b"1" * 8).hex()
    taken.mkdir(parents=True)
    with monkeypatch.context() as patched:
        names = [b"1" * 8, b"2" * 8]
        patched.setattr(os, "urandom", lambda _size: names.pop(0) if len(names) > 1 else names[0])
        other = os.open(taken, os.O_RDONLY)
        fcntl.flock(other, fcntl.LOCK_EX)
        second = Layers(ONCE, facts)
        assert second.facts.layers == f"{above}/{(b'2' * 8).hex()}" and second._places[0]._lock >= 0
        names[:] = [b"1" * 8]
        third = Layers(ONCE, facts)
        assert (third.facts.layers, third._places[0]._lock) == ("", -1) and "no layer could be locked" in third.notes[0]
        assert not [op for op in base(ONCE, third.facts) if isinstance(op, Overlay)]
        third.end()
        assert sorted(os.listdir(above)) == [taken.name, (b"2" * 8).hex()]  # of the others nothing was removed
    second.end()
    os.close(other)


def test_the_layer_of_a_toolchain_of_another_user_is_used_again(
    facts: HostFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root gives it the toolchain's owner; the next run must not take it for somebody else's state."""
    made = Layers(PLAIN, planned(PLAIN, facts))
    ops = base(PLAIN, made.facts)
    (op,) = [op for op in ops if isinstance(op, Overlay)]
    made.prepare(ops)
    if os.geteuid() == 0:
        os.chown(op.lowers[0], 1234, 1234)
        made.prepare(ops)
        assert os.stat(f"{op.layer}/upper").st_uid == 1234
    else:
        real, upper = os.stat, f"{op.layer}/upper"
        other = os.stat_result((0o40755, 0, 0, 2, 1234, 1234, 0, 0, 0, 0))
        monkeypatch.setattr(os, "stat", lambda path, **rest: other if path == upper else real(path, **rest))
    made.prepare(ops)
    made.end()


def test_its_directories_are_the_callers_alone_and_look_like_the_toolchain(facts: HostFacts) -> None:
    made = Layers(PLAIN, planned(PLAIN, facts))
    ops = base(PLAIN, made.facts)
    made.prepare(ops)
    used = f"{made.facts.layers}/.cargo-bin/work/work/incompat/volatile"  # as the kernel leaves it
    os.makedirs(used)
    os.chmod(f"{made.facts.layers}/.cargo-bin/work/work", 0)
    made.prepare(ops)
    assert not os.path.lexists(f"{made.facts.layers}/.cargo-bin/work/work")
    (op,) = [op for op in ops if isinstance(op, Overlay)]
    assert (op.target, op.lowers, op.fallback) == (f"{facts.home}/.cargo/bin", (f"{facts.home}/.cargo/bin",), True)
    assert stat.S_IMODE(os.stat(f"{op.layer}/upper").st_mode) == 0o750
    for path in (op.layer, f"{op.layer}/work", made.facts.layers, os.path.dirname(made.facts.layers)):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o700, path
    made.end()


def test_a_state_where_overlayfs_cannot_write_has_none_and_says_so(
    facts: HostFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [("/", "ext4"), (facts.state, "overlay")]
    monkeypatch.setattr(layers, "mount_points", lambda: rows)
    assert planned(PLAIN, facts) == facts
    assert ["takes no layers" in text for text in Layers(PLAIN, facts).notes] == [True]
    rows.append((facts.state, "ext4"))  # something else is mounted over it
    assert planned(PLAIN, facts).layers


def test_what_is_mounted_below_the_home_is_known(facts: HostFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = f"{facts.home}/.cargo/bin/mounted"
    monkeypatch.setattr(layers, "mount_points", lambda: [("/", "ext4"), (inner, "tmpfs")])
    found = planned(PLAIN, facts)
    assert found.mounted == {inner} and found.layers
    assert not [op for op in base(PLAIN, found) if isinstance(op, Overlay)]  # an overlay would not show it
