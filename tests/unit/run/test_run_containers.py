"""Names of containers come from the engines' storage, of which every byte is the sandbox's."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from membrane.events import ContainerSeen
from membrane.run import containers
from membrane.run.containers import Containers

ONE, TWO = "a1" * 32, "b2" * 32
SECONDS = 60  # a deadline, not a measurement


class World:
    """The storage of both engines, and what is reported of it."""

    def __init__(self, place: Path) -> None:
        self.docker, self.podman = place / "docker", place / "containers"
        for path in (self.docker, self.podman):
            path.mkdir()
        self.found: list[ContainerSeen] = []
        self.watcher: Containers | None = None

    def begin(self) -> None:
        self.watcher = Containers((str(self.docker), str(self.podman)), self.found.append)
        self.look()

    def look(self) -> None:
        """Until nothing has changed any more."""
        assert self.watcher is not None
        while self.watcher.waits or select.select([self.watcher.fileno()], [], [], 0)[0]:
            self.watcher.on_change()
            self.watcher.step()

    def container(self, name: str, text: str) -> None:
        """As dockerd writes it: the directory, a temporary file, a rename."""
        directory = self.docker / "containers" / name
        directory.mkdir(parents=True, exist_ok=True)
        (directory / ".tmp").write_text(text)
        (directory / ".tmp").rename(directory / "config.v2.json")

    def pods(self, *rows: object) -> None:
        directory = self.podman / "storage" / "overlay-containers"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / ".tmp").write_text(json.dumps(rows))
        (directory / ".tmp").rename(directory / "containers.json")

    @property
    def names(self) -> list[tuple[str, str, str, str]]:
        return [(each.container, each.name, each.image, each.engine) for each in self.found]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    if made.watcher is not None:
        made.watcher.close()


def config(name: str, image: str = "x") -> str:
    return json.dumps({"Name": f"/{name}", "Config": {"Image": image, "Env": []}})


def pod(name: str, number: str = ONE) -> dict[str, object]:
    return {"id": number, "metadata": json.dumps({"name": name, "image-name": "localhost/x"})}


def test_what_is_there_and_what_comes(world: World) -> None:
    world.container(ONE, config("db"))
    world.begin()
    assert world.names == [(ONE[:12], "db", "x", "docker")]
    world.container(TWO, config("web", "y:1"))
    world.look()
    assert world.names[1:] == [(TWO[:12], "web", "y:1", "docker")]
    world.container(TWO, config("again"))
    world.look()
    assert len(world.found) == 2


def test_from_an_empty_storage_step_by_step(world: World) -> None:
    world.begin()
    for path in (world.docker / "containers", world.docker / "containers" / ONE, world.podman / "storage"):
        path.mkdir()
        world.look()
    world.container(ONE, "{")  # not whole yet
    world.look()
    assert not world.found
    world.container(ONE, config("db"))
    world.look()
    assert world.names == [(ONE[:12], "db", "x", "docker")]
    world.pods(pod("pod", TWO), {"id": "c3" * 32, "metadata": "{}"}, None, {"id": "../x", "metadata": "1"})
    world.look()
    assert world.names[1:] == [(TWO[:12], "pod", "localhost/x", "podman")]


@pytest.mark.parametrize("what", ["file", "directory", "fifo", "directories"])
def test_nothing_outside_is_read_and_nothing_waits(world: World, tmp_path: Path, what: str) -> None:
    outside = tmp_path / "outside"
    (outside / ONE).mkdir(parents=True)
    (outside / ONE / "config.v2.json").write_text(config("secret"))
    place = world.docker / "containers"
    if what == "directories":
        place.symlink_to(outside)
    else:
        place.mkdir()
        if what == "directory":
            (place / ONE).symlink_to(outside / ONE)
        else:
            (place / ONE).mkdir()
            if what == "file":
                (place / ONE / "config.v2.json").symlink_to(outside / ONE / "config.v2.json")
            else:
                os.mkfifo(place / ONE / "config.v2.json")
    world.begin()
    assert not world.found
    assert (place / ONE / "config.v2.json").exists()  # the control: a program that follows links finds it


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"Name": 1, "Config": {"Image": "x"}}',
        '{"Name": "/x", "Config": {"Image": ["x"]}}',
        '{"Name": "/x", "Config": 7}',
        "[" * 100_000,
        '{"Name": ' + "9" * 100_000 + "}",
        '"\\ud800"',
        "\x00",
        json.dumps({"Name": "/x", "Config": {"Image": "x"}, "more": "x" * containers.LARGEST}),
    ],
)
def test_other_contents_name_nothing(world: World, text: str) -> None:
    world.container(ONE, text)
    world.container(TWO, config("control"))
    world.begin()
    assert world.names == [(TWO[:12], "control", "x", "docker")]


def test_other_names_are_no_containers(world: World) -> None:
    for name in ("short", ONE.upper(), ONE + "0"):
        world.container(name, config("other"))
    world.begin()
    assert not world.found


def test_containers_and_reads_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "MOST_CONTAINERS", 3)
    for number in range(6):
        world.container(f"{number:064x}"[::-1], config("x" * 1000))
    world.begin()
    assert len(world.found) == 3 and {len(each.name) for each in world.found} == {256}
    assert world.watcher is not None and world.watcher.lacks.startswith("3 directories of the engines are watched")
    world.watcher.lacks = ""
    monkeypatch.setattr(containers, "MOST_READS", 0)
    monkeypatch.setattr(containers, "MOST_CONTAINERS", 100)
    world.container(ONE, config("late"))
    world.look()
    assert len(world.found) == 3
    assert world.watcher.lacks.startswith("0 files of the engines were read; ")


def test_a_turn_reads_few_files_however_many_there_are(world: World) -> None:
    for number in range(40):
        world.container(f"{number:064x}"[::-1], config("x"))
        (world.podman / "storage" / f"{number}-containers").mkdir(parents=True)
    world.watcher = Containers((str(world.docker), str(world.podman)), world.found.append)
    turns = []
    while world.watcher.waits:
        before = world.watcher._reads
        world.watcher.step()
        turns.append(world.watcher._reads - before)
    assert max(turns) == 2 and len(world.found) == 40


def test_a_file_that_is_replaced_for_ever_stops_no_turn(world: World) -> None:
    world.begin()
    for _ in range(3 * 64):
        world.container(ONE, "{}")
    assert world.watcher is not None
    world.watcher.on_change()
    world.look()
    assert not world.found and not world.watcher.waits


def test_what_waits_is_bounded_while_a_directory_comes_again_and_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time it brings all names in it."""
    monkeypatch.setattr(containers, "MOST_READS", 100)
    world.begin()
    assert world.watcher is not None
    directory, other = world.docker / "containers", world.docker / "other"
    directory.mkdir()
    for number in range(90):
        (directory / f"{number:064x}").mkdir()
    for _ in range(80):
        directory.rename(other)
        other.rename(directory)
    world.watcher.on_change()
    most = 0
    while world.watcher.waits:
        world.watcher.step()
        most = max(most, len(world.watcher._waiting))
    assert 0 < most <= 100 and not world.watcher.lacks
    world.container(ONE, config("late"))  # control: it goes on
    monkeypatch.setattr(containers, "MOST_READS", 1000)
    world.look()
    assert [name for _id, name, _image, _engine in world.names] == ["late"]
