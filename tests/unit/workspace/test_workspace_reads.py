"""First reads of hidden files: each is reported once, by whatever name it was opened."""

from __future__ import annotations

import os
import select
from pathlib import Path
from typing import TYPE_CHECKING, Any

from membrane.events import AccessDenied
from membrane.host import syscalls
from membrane.policy import reasons
from membrane.policy.load import Source, load
from membrane.workspace.reads import Reads

if TYPE_CHECKING:
    from membrane.events import Event

IN_OPEN, IN_ONESHOT = 0x20, 0x80000000  # inotify(7)


def policy(tmp_path: Path) -> Any:
    file = tmp_path / "policy.yaml"
    file.write_text("ignore: [.env, sub/key]\n")
    return load(
        [Source("user", str(file), file.read_text(), str(tmp_path))], presets={"default": ""}, home="/home/u"
    ).policy


def test_the_first_open_is_reported_and_no_second(tmp_path: Path) -> None:
    files = {"one": ".env", "two": "sub/key"}
    fd = syscalls.inotify_init()
    paths = {}
    for name, path in files.items():
        (tmp_path / name).touch()
        watch = syscalls.inotify_add_watch(fd, os.fsencode(tmp_path / name), IN_OPEN | IN_ONESHOT)
        paths[watch] = path
    seen: list[Event] = []
    reads = Reads(fd, paths, policy(tmp_path), seen.append)
    reads.on_change()
    assert seen == []
    os.link(tmp_path / "one", tmp_path / "another")
    for _ in range(3):
        (tmp_path / "another").read_bytes()
    assert select.select([reads], [], [], 10)[0]
    reads.on_change()
    (event,) = seen
    assert isinstance(event, AccessDenied)
    assert event.access == {"kind": "PathAccess", "path": ".env", "operation": "read", "directory": False}
    assert event.reason == reasons.HIDDEN and event.rule and "policy.yaml:1" in event.rule
    (tmp_path / "two").read_bytes()
    reads.close()  # which reports what is left
    assert [each.access["path"] for each in seen if isinstance(each, AccessDenied)] == [".env", "sub/key"]
