"""The directories of ours below a layer over system trees."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from membrane.errors import HostError
from membrane.plan.model import HostFacts, Overlay
from membrane.policy.model import Policy
from membrane.run import system
from membrane.run.layers import Layers, planned


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tmp_path / "0" / "own" / "etc"


def test_names_are_hidden_and_ours_are_there(own: Path) -> None:
    names, hidden = ("membrane/AGENTS.md",), ("shadow", "ssl/private", "sudoers.d")
    op = Overlay("/etc", (str(own), "/etc"), "/l", system=True, closed=True, hidden=hidden, names=names)
    old = os.umask(0o077)
    try:
        for _ in range(2):  # anew for each run
            (own / "left").mkdir(parents=True, exist_ok=True)
            system.make_own(op)
    finally:
        os.umask(old)
    assert not (own / "left").exists()
    for name in ("ssl/private", "sudoers.d"):
        found = (own / name).lstat()
        assert stat.S_ISCHR(found.st_mode) and found.st_rdev == 0  # overlayfs.rst: a white-out
    assert stat.S_ISREG((own / "shadow").lstat().st_mode) and (own / "shadow").stat().st_mode & 0o777 == 0o600
    assert (own / "membrane" / "AGENTS.md").stat().st_mode & 0o777 == 0o444
    assert all((own / name).stat().st_mode & 0o777 == 0o755 for name in (".", "ssl", "membrane"))


def test_var_has_what_packages_expect(own: Path) -> None:
    op = Overlay("/var", (str(own),), "/l", system=True)
    system.make_own(op)
    assert os.readlink(own / "run") == "/run" and os.readlink(own / "lock") == "/run/lock"
    for name in ("lib/dpkg", "lib/apt/lists/partial", "cache/apt/archives/partial", "log/apt", "tmp"):
        assert (own / name).is_dir(), name


def test_nobody_has_a_password(tmp_path: Path) -> None:
    users = tmp_path / "passwd"
    users.write_text("root:x:0:0::/root:/bin/sh\n# a comment:\n+nis::::::\n\nuser:HASH:1:1::/:/bin/sh\n:x:2:2:::\n")
    assert system.shadow(str(users)) == b"root:*:::::::\nuser:*:::::::\n"
    assert system.shadow(str(tmp_path / "none")) == b""


def test_a_layer_is_kept_for_a_workspace_or_removed_at_the_end(tmp_path: Path) -> None:
    base = HostFacts(0, 0, "root", True, str(tmp_path / "h"), str(tmp_path / "s"), str(tmp_path / "w"), "box", ())
    kept, once = Policy(system="persistent"), Policy(system="writable")
    facts = planned(kept, base)
    assert facts.system is not None and facts.system.place.endswith("/0") and "/system/w-" in facts.system.place
    first, second = Layers(kept, facts), Layers(kept, facts)
    assert first.facts.system is not None and first.facts.system.place == facts.system.place
    assert second.facts.system is not None and second.facts.system.place.endswith("/1")
    assert not first.notes and "another run has the layer over the system trees" in second.notes[0]
    for each in (first, second):
        each.end()
    assert os.path.isdir(facts.system.place)
    other = planned(kept, base.replace(workspace=str(tmp_path / "other")))
    assert other.system is not None and other.system.place != facts.system.place
    run = Layers(once, planned(once, base))
    assert run.facts.system is not None and os.path.isdir(run.facts.system.place)
    place = run.facts.system.place
    run.end()
    assert not os.path.exists(place)
    assert planned(Policy(), base).system is None


def test_where_the_layer_cannot_be_made_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match="make membrane"):
        system.make_own(Overlay("/var", (str(tmp_path / "file" / "own"),), "/l", system=True))
