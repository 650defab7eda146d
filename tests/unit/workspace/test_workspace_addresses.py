"""Addresses of git that lead to repositories of this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from membrane.workspace.addresses import MOST_LOCAL, Judge, Trees, local
from membrane.workspace.gitedit import objection as change


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("../o", "../o"), ("/o.git", "/o.git"), ("o", "o"), ("~/o", "~/o"), ("./a:b", "./a:b"), ("a/b:c", "a/b:c"),
        ("file:///s/x", "/s/x"), ("file:///%73/x", "/s/x"), ("file://h/s/x", "/s/x"), ("file://h%2fs/x", "/s/x"),
        ("file:///s%00/x", "/s%00/x"), ("file://h", ""), ("FILE:///s", ""),
        ("https://h/x", ""), ("ssh://h/x", ""), ("git@h:x", ""), ("h:/x", ""), ("ext::sh", ""),
    ],
)  # fmt: skip
def test_what_is_an_address_of_this_machine(address: str, path: str) -> None:
    assert local(address) == path


def objection(key: str, value: str | None, directory: str, places: Trees) -> str:
    return Judge(directory, places)(key, value)


@pytest.fixture
def places(tmp_path: Path) -> Trees:
    for name in ("work/.git", "work/sub/n/.git", "work/o.git", "state/homes/w", "else"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "work/link").symlink_to("../state/homes/w")
    (tmp_path / "work/other.git").symlink_to("../state/homes/w")
    (tmp_path / "work/bare.git").mkdir()
    (tmp_path / "work/bare.git/.git").symlink_to("../../state/homes/w")  # path.c, enter_repo
    (tmp_path / "work/notes").write_text(f"gitdir: {tmp_path}/state/homes/w\n")
    (tmp_path / "work/more.git").write_text(f"gitdir: {tmp_path}/state/homes/w\n")
    (tmp_path / "work/closed").touch(mode=0)
    (tmp_path / "work/bundle").write_bytes(b"# v2 git bundle\n")
    (tmp_path / "work/sub/.git").write_text("gitdir: ../.git/modules/sub\n")  # judged wherever it is
    return Trees((str(tmp_path / "work"),), (str(tmp_path / "state"),))


@pytest.mark.parametrize(
    "address",
    [
        "{top}/state/homes/w/e.git", "file://{top}/state/homes/w", "//{top}//state/./homes/w", "../state/homes/w/e.git",
        "o.git/../../state/homes/w", "file://{top}/%73tate", "link", "./link/e.git", "other", "bare",
        "{top}/work/link/e.git", "link/../o.git", "sub/../link", "{top}/work/../state", "a/" * 200,
        "file://h{top}/state/homes/w", "file://h%2f..{top}/state/homes/w", "notes", "./more", "file://{top}/work/notes",
    ],
)  # fmt: skip
def test_one_that_leads_to_hooks_of_the_command_is_refused(places: Trees, tmp_path: Path, address: str) -> None:
    value = address.format(top=tmp_path)
    directory = str(tmp_path / "work/.git")
    for key in ("remote.o.url", "remote.o.pushurl", "branch.b.remote", "branch.b.pushremote", "remote.pushdefault"):
        assert objection(key, value, directory, places), key
    assert objection(f"remote.{value}.fetch", "x", directory, places)
    relative = value.startswith(("./", "../")) and "state" not in value  # counts from the address of a remote
    assert bool(objection("submodule.m.url", value, directory, places)) is not relative
    assert not objection("remote.o.url", value, directory, Trees()), "the control"
    assert not objection("remote.o.url", f"https://h/{value}", directory, places), "the control"


def test_one_that_stays_in_the_tree_or_leads_to_what_no_command_writes_is_let_be(places: Trees, tmp_path: Path) -> None:
    nested = str(tmp_path / "work/sub/n/.git")
    for value in ("../../o.git", f"{tmp_path}/work/o.git", f"{tmp_path}/else", "../../../else", "not/there", "origin"):
        assert not objection("remote.o.url", value, nested, places), value
    for value in ("../../bundle", "../../sub"):
        assert not objection("remote.o.url", value, nested, places), value
    if os.geteuid():
        assert objection("remote.o.url", "../../closed", nested, places), "nobody knows what it names"
    assert objection("remote.o.url", "../../../state/x", nested, places)
    module = str(tmp_path / "work/.git/modules/m")  # whose work tree may be anywhere
    assert not objection("remote.o.url", "../o.git", module, places)
    assert objection("remote.o.url", "../../state/x", module, places)


def test_one_of_a_submodule_that_counts_from_a_remote_leads_from_nowhere_to_hooks(
    places: Trees, tmp_path: Path
) -> None:
    """``git submodule sync`` takes the path of the work tree where there is no remote (gitmodules(5))."""
    for directory in (f"{tmp_path}/work", f"{tmp_path}/work/sub/n"):
        for value in ("../state/e.git", "../../../../state/homes/w", "./../state", "..//state/x", "../x/../state/y"):
            assert objection("submodule.m.url", value, directory, places), value
        for value in ("../lib.git", "../../group/lib", "./lib", "../work/o.git", "../state2"):
            assert not objection("submodule.m.url", value, directory, places), value
    whole = Trees(places.guarded, ("/",))  # as of a change set
    assert not objection("submodule.m.url", "../lib.git", str(tmp_path / "work"), whole)
    assert not objection("submodule.m.url", "../state/e.git", str(tmp_path / "work"), Trees()), "the control"


def test_the_work_is_bounded(places: Trees, tmp_path: Path) -> None:
    judge = Judge(str(tmp_path / "work/.git"), places)
    said = [judge(f"remote.r{number}.url", f"o{number}") for number in range(MOST_LOCAL // 2 + 1)]
    assert not any(said[:-1]) and "too many" in said[-1]
    assert not judge("remote.r0.url", "o0") and not judge("remote.r1.url", "https://h/x"), (
        "these are known, or elsewhere"
    )
    (tmp_path / "work/.git/hooks").mkdir()
    assert Judge(str(tmp_path / "work/a"), places)("remote.o.url", "link/x")
    deep = str(tmp_path / "work" / "/".join(["d"] * 40))
    assert objection("remote.o.url", "x", deep, places), "nobody knows where a work tree of it is"


def test_it_is_refused_in_a_change_and_may_stay_where_it_was() -> None:
    said = "leads away"
    old, new = b'[remote "o"]\n\turl = /x\n', b'[remote "o"]\n\turl = /y\n'

    def judge(_key: str, value: str | None) -> str:
        return said if value == "/y" else ""

    assert change(old, new, local=judge) == said
    assert change(new, new + b'[remote "p"]\n\turl = /z\n', local=judge) == ""
    assert change(old, new) == ""  # the control
    modules = b'[submodule "m"]\n\tpath = m\n\turl = /y\n'
    assert change(b"", modules, ".gitmodules", local=judge) == said
    assert change(b"", modules, ".gitmodules") == ""  # the control
