"""changes.connected: what git would call corrupt is found before anything comes, with git itself and in its time."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_changes_red import git

from membrane.changes import connected
from membrane.changes.connected import LACKING, lacking

pytestmark = pytest.mark.needs_tool("git")


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    place = tmp_path / "stage"
    place.mkdir()
    return place


class Host:
    """A repository with a commit of the host's, and one that is to come."""

    def __init__(self, place: Path) -> None:
        place.mkdir()
        git(place, "init", "-q")
        (place / "a").write_text("one\n")
        git(place, "add", "-A")
        git(place, "commit", "-qm", "one")
        self.place, self.old = place, git(place, "rev-parse", "HEAD").strip()
        (place / "a").write_text("two\n")
        git(place, "commit", "-qam", "two")
        self.new = git(place, "rev-parse", "HEAD").strip()
        self.blob = git(place, "rev-parse", "HEAD:a").strip()
        self.objects = os.open(place / ".git/objects", os.O_RDONLY | os.O_DIRECTORY)

    def take(self, *names: str) -> dict[str, bytes]:
        """Loose objects, which are not there any more."""
        out = {}
        for name in names:
            path = self.place / ".git/objects" / name[:2] / name[2:]
            out[f"{name[:2]}/{name[2:]}"] = path.read_bytes()
            path.unlink()
        return out


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path / "host")
    yield made
    os.close(made.objects)


def staged(stage: Path, objects: dict[str, bytes]) -> dict[str, str]:
    coming = {}
    for number, (path, data) in enumerate(objects.items()):
        (stage / str(number)).write_bytes(data)
        coming[path] = str(number)
    return coming


def ask(stage: Path, host: Host, coming: dict[str, str], **how: object) -> dict[str, str]:
    lists = {"index": frozenset({host.blob})}
    return lacking(str(stage), coming, host.objects, [host.old], {"main": host.new}, lists, 20, root=str(stage), **how)  # type: ignore[arg-type]


def test_all_that_comes_and_was_there_is_connected(stage: Path, host: Host) -> None:
    taken = host.take(host.new, host.blob)
    assert ask(stage, host, staged(stage, taken)) == {}
    assert sorted(os.listdir(stage)) == ["0", "1"], "its repository is gone again"


def test_a_commit_whose_content_does_not_come_is_lacking_by_name(stage: Path, host: Host) -> None:
    taken = host.take(host.new, host.blob)
    commit = {path: data for path, data in taken.items() if path.replace("/", "") == host.new}
    assert ask(stage, host, staged(stage, commit)) == {"main": LACKING, "index": LACKING}
    blob = {path: data for path, data in taken.items() if path not in commit}
    for name in os.listdir(stage):
        (stage / name).unlink()
    assert ask(stage, host, staged(stage, blob)) == {"main": LACKING}


def test_of_many_only_those_that_lead_nowhere(stage: Path, host: Host) -> None:
    host.take(host.new)
    tips = {"old": host.old, "new": host.new}
    assert lacking(str(stage), {}, host.objects, [], tips, {}, 20, root=str(stage)) == {"new": LACKING}
    assert lacking(str(stage), {}, host.objects, [], {}, {"x": frozenset()}, 20, root=str(stage)) == {}


def test_a_damaged_object_is_not_there(stage: Path, host: Host) -> None:
    taken = host.take(host.new)
    damaged = {path: data[:-4] for path, data in taken.items()}
    assert set(ask(stage, host, staged(stage, damaged))) == {"main"}


def test_what_cannot_be_found_out_is_not_there(stage: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(stage, host, {}) == {}  # the control
    monkeypatch.setattr(connected, "TIME", 0.0)
    assert ask(stage, host, {}) == dict.fromkeys(("main", "index"), "where it leads could not be found out")
    assert os.listdir(stage) == []
    monkeypatch.setenv("PATH", "/nowhere")
    assert "no git here" in ask(stage, host, {})["main"]


def test_no_configuration_and_no_hook_of_the_host_runs(
    stage: Path, host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that the host's own configuration names for every git command of that repository."""
    mark = tmp_path / "ran"
    config = tmp_path / "config"
    config.write_text(f"[core]\n\tfsmonitor = touch {mark}\n[alias]\n\trev-list = !touch\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    git(host.place, "config", "core.fsmonitor", f"touch {mark}; false")
    subprocess.run(["git", "status"], cwd=host.place, capture_output=True, check=False)
    assert mark.exists()  # the control
    mark.unlink()
    assert ask(stage, host, {}) == {}
    assert not mark.exists()
