"""Where a path leads, whether a command could have chosen that, and how a program is found."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from membrane.errors import PolicyError
from membrane.run import sources
from membrane.run.sources import Found, Program, Trees, digest, read_value


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """``work`` can be written by the command, ``safe`` cannot."""
    (tmp_path / "work" / "deep").mkdir(parents=True)
    (tmp_path / "safe").mkdir()
    (tmp_path / "work" / "token").write_text("in work")
    (tmp_path / "safe" / "token").write_text(" in safe\n")
    return tmp_path


def found(place: Path, path: str, *trees: str) -> tuple[str, str, str, int]:
    """The path, the tree and the link without the place, and the error."""
    result = Found(path if path.startswith("/") else f"{place}/{path}", Trees([f"{place}/{each}" for each in trees]))
    result.close()
    shown = (each.removeprefix(str(place)) for each in (result.path, result.tree, result.link))
    return (*shown, result.error)  # type: ignore[return-value]


def test_where_a_path_leads(place: Path) -> None:
    assert found(place, "safe/token", "work") == ("/safe/token", "", "", 0)
    assert found(place, "work/token", "work") == ("/work/token", "/work", "", 0)
    assert found(place, "safe/./../safe//token", "work") == ("/safe/token", "", "", 0)
    assert found(place, "work/deep/../../safe/token", "work")[1] == "/work", "the command can move what is passed"
    assert found(place, "safe/none", "work")[3] == errno.ENOENT
    assert found(place, "work/none", "work")[1:] == ("/work", "", errno.ENOENT)
    assert found(place, "safe/token/x", "work")[3] == errno.ENOTDIR
    assert found(place, "safe/token", "safe/token")[1] == "/safe/token", "a tree may be one file"
    result = Found(f"{place}/safe/token", Trees(["/"]))
    result.close()
    assert result.tree == "/"


def test_links_are_followed_by_hand(place: Path) -> None:
    (place / "safe" / "same").symlink_to("token")
    (place / "safe" / "into").symlink_to("../work/token")
    (place / "work" / "out").symlink_to(place / "safe" / "token")
    (place / "work" / "deep" / "up").symlink_to("../../safe")
    (place / "safe" / "loop").symlink_to("loop")
    assert found(place, "safe/same", "work") == ("/safe/token", "", "", 0), "the user's own link, in his own tree"
    assert found(place, "safe/into", "work") == ("/work/token", "/work", "", 0)
    assert found(place, "work/out", "work") == ("/safe/token", "/work", "/work/out", 0)
    assert found(place, "work/deep/up/token", "work") == ("/safe/token", "/work", "/work/deep/up", 0)
    assert found(place, "safe/loop", "work")[3] == errno.ELOOP
    assert found(place, "/" + "safe/../" * 200 + "x", "work")[3] in (errno.ENOENT, errno.ENAMETOOLONG)


def test_another_name_of_a_tree_is_that_tree(place: Path) -> None:
    (place / "alias").symlink_to("work")
    assert found(place, "alias/token", "work")[1] == "/work"
    assert found(place, "work/token", "alias")[1] == "/alias"


def test_a_part_of_a_tree_that_is_mounted_elsewhere_is_in_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(place, "safe/token", "work")[1] == ""  # positive control
    rows = [(f"{place}/safe", "8:1", f"{place}/work/deep"), ("/", "8:1", "/")]
    monkeypatch.setattr(sources, "_mounts", lambda: rows)
    assert found(place, "safe/token", "work")[1] == "/work"
    monkeypatch.setattr(sources, "_mounts", lambda: [(f"{place}/safe", "8:2", f"{place}/work/deep"), ("/", "8:1", "/")])
    assert found(place, "safe/token", "work")[1] == "", "another file system"


def test_nothing_is_left_open(place: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for path in ("safe/token", "work/token", "none", "safe/token/x", "../../..", "safe/../work/deep/../token"):
        found(place, path, "work")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_of_a_secret(place: Path) -> None:
    trees = Trees([str(place / "work")])
    assert read_value(f"{place}/safe/token", trees, "KEY", "here") == b"in safe"
    with pytest.raises(PolicyError, match="which the command can write") as caught:
        read_value(f"{place}/work/token", trees, "KEY", "here")
    assert caught.value.exit_code == 78 and any("masks" in line for line in caught.value.fix)
    os.link(place / "safe" / "token", place / "work" / "other")
    with pytest.raises(PolicyError, match="hard links"):
        read_value(f"{place}/safe/token", trees, "KEY", "here")
    os.mkfifo(place / "safe" / "fifo")
    with pytest.raises(PolicyError, match="not a regular file"):  # and it does not wait
        read_value(f"{place}/safe/fifo", trees, "KEY", "here")
    (place / "safe" / "large").write_bytes(b"x" * (sources.LARGEST + 1))
    with pytest.raises(PolicyError, match="larger than"):
        read_value(f"{place}/safe/large", trees, "KEY", "here")


def executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_program_is_found_where_no_command_put_it(place: Path) -> None:
    trees = Trees([str(place / "work")])
    executable(place / "work" / "tok")
    safe = executable(place / "safe" / "tok")
    environ = {
        "PATH": f"{place}/work:bin::{place}/safe:/usr/bin", "PYTHONPATH": f"lib:{place}/work/lib", "HOME": "/root",
        "FLAGS": f"-I{place}/work", "OPTS": f"--x={place}/work/y", "KEPT": f"{place}/safe",
    }  # fmt: skip
    made = Program(["tok", "--file", f"{place}/safe/token"], trees, environ, "KEY", "here")
    assert made.path == str(safe) and made.files == [str(safe), f"{place}/safe/token"]
    path = f"{place}/safe:/usr/bin"
    assert made.environ == {"PATH": path, "HOME": "/root", "KEPT": f"{place}/safe"}
    with pytest.raises(PolicyError, match="no such program in an entry of PATH"):
        Program(["tok"], trees, {"PATH": f"{place}/work"}, "KEY", "here")


@pytest.mark.parametrize(
    "argv",
    [
        ["WORK/tok"],
        ["sh", "WORK/tok"],
        ["sh", "-c", "exec 'WORK/tok' --key"],
        ["sh", "-c", "cat <WORK/none"],
        ["env", "X=WORK/tok"],
        ["env", "-IWORK/deep"],
        ["SAFE/into"],
        ["SAFE/script"],
        ["SAFE/relative"],
        ["SAFE/through-env"],
        ["sh", "-c", "exec $PLACE/work/tok"],
        ["sh", "-c", 'exec "${PLACE}/work/tok"'],
        ["sh", "-c", "exec 'WORK'/tok"],
        ["sh", "-c", "exec \\WORK/tok"],
        ["git", "-c", "credential.helper=!WORK/tok", "credential", "fill"],
    ],
)
def test_a_program_that_a_command_can_write_is_refused(
    place: Path, argv: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLACE", str(place))
    executable(place / "work" / "tok")
    (place / "safe" / "into").symlink_to(place / "work" / "tok")
    executable(place / "safe" / "script", f"#!{place}/work/tok\n")
    executable(place / "safe" / "relative", "#!work/tok\n")
    executable(place / "safe" / "through-env", f"#!/usr/bin/env -S sh {place}/work/tok\n")
    argv = [word.replace("WORK", f"{place}/work").replace("SAFE", f"{place}/safe") for word in argv]
    if "relative" not in argv[0]:
        Program(argv, Trees(()), {}, "KEY", "here")  # positive control
    with pytest.raises(PolicyError, match=r"which the command can write|not named by an absolute path"):
        Program(argv, Trees([str(place / "work")]), {}, "KEY", "here")


def test_the_digest_is_of_the_content(place: Path) -> None:
    path = executable(place / "safe" / "tok")
    first = digest(str(path))
    executable(path, "#!/bin/sh\n#\n")
    assert len(first) == 64 and digest(str(path)) not in (first, "")
    assert digest(str(place / "none")) == "ENOENT"
