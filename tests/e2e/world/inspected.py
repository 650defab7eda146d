"""What the tests of HTTP inspection share: rules, clients inside, and what a run said."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from .box import Box


def url_rule(url: str, *methods: str, paths: list[str] | None = None) -> dict[str, Any]:
    item: dict[str, Any] = {"methods": list(methods)} if methods else {}
    if paths:
        item["paths"] = paths
    return {"dest": url, "http": [item]} if item else {"dest": url}


def every(url: str, **more: Any) -> dict[str, Any]:
    """A rule that lets every request pass and yet looks at each."""
    return {"dest": url, "inspect": True, **more}


def run(box: Box, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return box.run(f"--extra-ca={box.world.ca}", f"--events={box.events_path}", "--", *command, **options)


def python(box: Box, script: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return run(box, "python3", "-c", script, *arguments, **options)


def requests(box: Box) -> list[tuple[str, str, int, str]]:
    return [(e["method"], e["path"], e["status"], e["verdict"]) for e in box.events("RequestSeen")]


def denied(box: Box) -> list[str]:
    """The reasons of what the gateway refused."""
    return [event["reason"] for event in box.events("AccessDenied") if event["source"] == "network"]


def no_crash(box: Box) -> None:
    ended = box.events("ConnectionClosed")
    assert not [event for event in ended if "internal" in event["error"]], ended


def network_process(membrane: int) -> int:
    """The gateway of a run: the child that is told where its control socket is."""
    for task in Path(f"/proc/{membrane}/task").iterdir():
        for child in (task / "children").read_text().split():
            if b"membrane.gateway.server" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    raise AssertionError("no gateway")


def with_packages(box: Box, script: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a script inside with the interpreter and the packages that run the tests."""
    packages = sysconfig.get_path("purelib")
    mounts = [packages, *([sys.base_prefix] if not sys.base_prefix.startswith("/usr") else [])]
    shown = [f"--mount={path}" for path in mounts]
    interpreter = os.path.realpath(sys.executable)
    return box.run(
        f"--extra-ca={box.world.ca}", f"--events={box.events_path}", *shown, f"--env=PYTHONPATH={packages}", "--",
        interpreter, "-c", script, *arguments, **options,
    )  # fmt: skip
