"""What the plan is told about this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from membrane.errors import HostError
from membrane.host.facts import (
    gather,
    git_root,
    home_dir,
    in_initial_user_namespace,
    mount_point,
    mount_point_field,
    state_dir,
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("home/.cargo/bin", "home/.ssh", "work", "tool/bin", "tool/lib"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    yield tmp_path.resolve()


def environ(place: Path, **more: str) -> dict[str, str]:
    return {"HOME": f"{place}/home", "PATH": "/usr/bin", **more}


def test_who_and_where(place: Path) -> None:
    facts = gather(environ(place, USER="somebody"))
    assert (facts.uid, facts.gid, facts.user) == (os.geteuid(), os.getegid(), "somebody")
    assert (facts.home, facts.workspace, facts.state) == (f"{place}/home", f"{place}/work", f"{place}/home/.membrane")
    assert facts.root == (os.geteuid() == 0 and in_initial_user_namespace())
    assert facts.hostname == os.uname().nodename
    assert dict(facts.environ) == environ(place, USER="somebody")


def test_user_name_falls_back_to_logname_and_to_nothing(place: Path) -> None:
    assert gather(environ(place, LOGNAME="l")).user == "l"
    assert gather(environ(place)).user == ""


def test_existing_holds_what_is_there_and_nothing_else(place: Path) -> None:
    facts = gather(environ(place, PATH=f"{place}/tool/bin:{place}/absent/bin"))
    there = {"/usr", "/etc", f"{place}/home/.cargo/bin", f"{place}/tool/bin", f"{place}/tool/lib", f"{place}/tool"}
    assert there <= facts.existing
    assert not {f"{place}/absent/bin", f"{place}/home/.nvm", f"{place}/home/.ssh"} & facts.existing
    assert all(os.path.lexists(path) for path in facts.existing)


def test_a_toolchain_that_is_a_link_in_a_circle_is_not_there(place: Path) -> None:
    (place / "home/.rustup").symlink_to(".rustup")
    (place / "home/.nvm").symlink_to(".pyenv")
    (place / "home/.pyenv").symlink_to(".nvm")
    facts = gather(environ(place))
    home = {path.removeprefix(f"{place}/home/") for path in facts.existing if path.startswith(f"{place}/home/")}
    assert home == {".cargo/bin"}
    assert not [path for path, _ in facts.links if path.startswith(f"{place}/home/")]


def test_links_are_resolved_also_those_above_a_path_entry(place: Path) -> None:
    (place / "current").symlink_to("work")
    (place / "work" / "bin").mkdir()
    (place / "direct").symlink_to("home/.ssh")
    (place / "dangling").symlink_to("nowhere")
    path = f"{place}/current/bin:{place}/direct:{place}/dangling"
    links = dict(gather(environ(place, PATH=path)).links)
    assert links[f"{place}/current"] == f"{place}/work"
    assert links[f"{place}/direct"] == f"{place}/home/.ssh"
    assert links[f"{place}/dangling"] == f"{place}/nowhere"
    assert set(links) <= gather(environ(place, PATH=path)).existing


def test_workspace_and_home_are_resolved(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "link").symlink_to("work")
    monkeypatch.chdir(place / "link")
    (place / "home-link").symlink_to("home")
    facts = gather(environ(place, HOME=f"{place}/home-link", PWD=f"{place}/link"))
    assert (facts.workspace, facts.home) == (f"{place}/work", f"{place}/home")


def test_a_home_that_is_the_root_directory_is_replaced(place: Path) -> None:
    assert gather(environ(place, HOME="/")).home == "/tmp/home"


@pytest.mark.parametrize("home", ["", "relative/home", None])
def test_without_a_usable_home_passwd_says(home: str | None) -> None:
    import pwd

    given = {} if home is None else {"HOME": home}
    assert home_dir(given) == os.path.realpath(pwd.getpwuid(os.getuid()).pw_dir)


def test_state_directory(place: Path) -> None:
    (place / "link").symlink_to("elsewhere")
    assert state_dir({"HOME": f"{place}/home"}) == f"{place}/home/.membrane"
    assert state_dir({"HOME": f"{place}/home", "MEMBRANE_HOME": f"{place}/link/x"}) == f"{place}/elsewhere/x"
    assert state_dir({"HOME": f"{place}/home", "MEMBRANE_HOME": ""}) == f"{place}/home/.membrane"


def test_git_root_is_the_nearest_one_and_only_asked_for_when_wanted(place: Path) -> None:
    deep = place / "work" / "a" / "b"
    deep.mkdir(parents=True)
    assert git_root(str(deep)) == git_root(str(place))
    (place / "work" / ".git").mkdir()
    assert git_root(str(deep)) == f"{place}/work"
    (deep / ".git").write_text("gitdir: elsewhere\n")  # a worktree or submodule
    assert git_root(str(deep)) == str(deep)
    assert gather(environ(place)).git_root == ""
    assert gather(environ(place), want_git_root=True).git_root == f"{place}/work"


def test_a_workspace_that_was_removed_is_an_error_with_advice(place: Path) -> None:
    (place / "work").rmdir()
    with pytest.raises(HostError) as caught:
        gather(environ(place))
    assert caught.value.lines() == [
        "cannot use the current directory as the workspace: No such file or directory",
        "  try: cd into a directory that exists",
    ]


def test_names_that_are_not_utf8_are_kept(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = os.fsencode(place) + b"/w\xff\n"
    os.mkdir(odd)
    monkeypatch.chdir(os.fsdecode(odd))
    assert os.fsencode(gather(environ(place)).workspace) == odd


@pytest.mark.needs_kernel("user namespaces")
def test_root_of_a_user_namespace_is_not_root_of_the_machine() -> None:
    program = (
        "from membrane.host import syscalls as s\nfrom membrane.host.facts import in_initial_user_namespace as i\n"
    )
    program += "before = i()\ns.unshare(s.CLONE_NEWUSER)\nprint(before, i())"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.split() == [str(in_initial_user_namespace()), "False"]


@pytest.mark.parametrize(
    ("field", "path"),
    [(b"/a", "/a"), (rb"/a\040b", "/a b"), (rb"/\134x", r"/\x"), (rb"/n\012l\011", "/n\nl\t"), (b"/\xff", "/\udcff")],
)
def test_a_mount_point_is_read_as_the_kernel_writes_it(field: bytes, path: str) -> None:
    assert mount_point(field) == path and mount_point_field(path) == field
