"""workspace.judge, workspace.gitconfig: work over what the command wrote has a bound; over it the answer is "bad"."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from membrane.host import syscalls
from membrane.workspace import gitconfig
from membrane.workspace import judge as judge_module
from membrane.workspace.gitconfig import ConfigError, parse
from membrane.workspace.judge import judge

LARGE = "it is larger than 65536 bytes"
ELSEWHERE = "it is not a pointer to a git directory of this workspace"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every path that openat2(2) is asked for."""
    paths: list[str] = []
    real = syscalls.openat2

    def counted(fd: int, path: str, flags: int, mode: int, resolve: int) -> int:
        paths.append(path)
        return real(fd, path, flags, mode, resolve)

    monkeypatch.setattr(syscalls, "openat2", counted)
    return paths


def _pointed(root: Path, target: str) -> str:
    place = root / "x" / ".git"
    place.parent.mkdir(exist_ok=True)
    place.write_text(f"gitdir: {target}\n")
    fd = os.open(root, os.O_PATH)
    try:
        return judge(fd, "x/.git")
    finally:
        os.close(fd)


def _repository(place: Path) -> None:
    (place / "objects").mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "HEAD").write_text("ref: refs/heads/main\n")


def test_a_pointer_is_followed_to_the_first_name_that_is_not_there(tmp_path: Path, opened: list[str]) -> None:
    # 524,000 components took 40 seconds, in the loop that keeps the time limit and the signals.
    assert _pointed(tmp_path, "a/" * 524_000) == LARGE
    assert _pointed(tmp_path, "a/" * 100)
    assert len(opened) < 12
    _repository(tmp_path / "r" / ".git")
    assert _pointed(tmp_path, "../r/.git") == ""  # the control: what is there is found


@pytest.mark.parametrize(
    ("target", "answer"),
    [
        ("../r/.git" + "/." * 2000, ""),  # as long as a path may be
        ("../r/.git" + "/." * 2050, ELSEWHERE),
        ("d/" * (judge_module.DEEPEST_TARGET - 1) + "d", ELSEWHERE),  # with the directory that it stands in: one more
        ("../" + "é" * 300, ELSEWHERE),
    ],
)
def test_a_longer_or_deeper_pointer_is_refused(tmp_path: Path, target: str, answer: str) -> None:
    _repository(tmp_path / "r" / ".git")
    assert _pointed(tmp_path, target) == answer


def test_a_full_directory_on_the_way_is_read_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes a repository is asked for by name: it is found however many others there are."""
    monkeypatch.setattr(judge_module, "MOST_LISTED", 50)
    _repository(tmp_path / "full" / "r.git")
    for number in range(500):
        (tmp_path / "full" / str(number)).touch()
        (tmp_path / "full" / "r.git" / f"{number:04}").touch()
    assert _pointed(tmp_path, "../full/r.git") == ""


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        (lambda n: "[a]\n\tb = " + "x" * n + "\n", gitconfig.LONGEST_VALUE),
        (lambda n: '[a "' + "x" * n + '"]\n\tb = 1\n', gitconfig.LONGEST_NAME),
        (lambda n: "[" + "x" * n + "]\n\tb = 1\n", gitconfig.LONGEST_NAME),
        (lambda n: "[a]\n\t" + "x" * n + " = 1\n", gitconfig.LONGEST_NAME),
        (lambda n: "[a]\n" + "\tb\n" * n, gitconfig.MOST_SETTINGS),
        (lambda n: "#" * (n - 1) + "\n", gitconfig.LARGEST_TEXT),
    ],
    ids=["value", "subsection", "section", "key", "settings", "text"],
)
def test_git_configuration_is_read_up_to_a_bound(text: Callable[[int], str], bound: int) -> None:
    parse(text(bound))
    with pytest.raises(ConfigError):
        parse(text(bound + 1))
