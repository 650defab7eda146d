"""One caller of membrane in a world, and the search for what a run may have left behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from membrane.tracer.pins import STATE

from . import Terminal, World

ROOT = Path(__file__).parents[3]
PRIVATE_KEY = "-----BEGIN OPENSSH PRIVATE KEY----- of the host\n"


def membrane_argv() -> list[str]:
    """The installed console script, or the script of this checkout."""
    script = Path(sys.executable).with_name("membrane")
    return [str(script)] if script.exists() else [sys.executable, str(ROOT / "scripts" / "membrane")]


class Box:
    """A caller of membrane: a home with secrets in it, a workspace, an own ``$MEMBRANE_HOME``."""

    def __init__(self, world: World, directory: Path) -> None:
        self.world = world
        self.home, self.workspace = directory / "home", directory / "work"
        self.state = self.home / ".membrane"
        self.workspace.mkdir()
        (self.home / ".ssh").mkdir(parents=True, mode=0o700)
        (self.home / ".ssh" / "id_rsa").write_text(PRIVATE_KEY)
        (self.home / ".aws").mkdir()
        (self.home / ".aws" / "credentials").write_text("[default]\naws_secret_access_key = host-secret\n")
        (self.home / ".netrc").write_text("machine example.com password host-secret\n")
        (self.home / ".bashrc").write_text("export FROM_HOST_BASHRC=1\n")
        (self.home / ".gitconfig").write_text("[user]\n\tname = Host\n\temail = host@example.com\n")
        self.events_path = directory / "events.jsonl"

    def environment(self, **extra: str) -> dict[str, str]:
        """What the caller's shell would have: nothing of the machine that runs the tests leaks in."""
        environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "TERM": "xterm",
            "USER": "caller",
            "MEMBRANE_HOME": str(self.state),
            "SECRET_TOKEN": "host-secret",
        }
        if not Path(membrane_argv()[0]).name.startswith("membrane"):
            environment["PYTHONPATH"] = str(ROOT / "src")
        return {**environment, **extra}

    def policy(self, text: str) -> None:
        """Write the user's policy file."""
        self.state.mkdir(mode=0o700, exist_ok=True)
        (self.state / "config.yaml").write_text(text)

    def allow(self, *entries: Any, **keys: Any) -> None:
        """Write a user's policy of these ``allow`` entries (JSON is YAML) and keys, and of no preset."""
        self.policy(json.dumps({"presets": [], "allow": list(entries), **keys}))

    @property
    def tls(self) -> list[str]:
        """Options that make clients inside trust the world's certificates: TLS passes through end to end."""
        inside = self.workspace / "ca.pem"
        if not inside.exists():
            shutil.copy(self.world.ca, inside)
        names = ("CURL_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO")
        return [f"--env={name}={inside}" for name in (*names, "NODE_EXTRA_CA_CERTS", "NPM_CONFIG_CAFILE")]

    def argv(self, *arguments: str) -> list[str]:
        return [*membrane_argv(), *arguments]

    def run(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """``membrane ARGUMENTS...`` in the workspace, as ``World.run`` runs things."""
        options.setdefault("cwd", self.workspace)
        options["env"] = self.environment(**options.pop("env", {}))
        return self.world.run(self.argv(*arguments), **options)

    def popen(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        options.setdefault("cwd", self.workspace)
        options["env"] = self.environment(**options.pop("env", {}))
        return self.world.popen(self.argv(*arguments), **options)

    def outside(self, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """The positive control: the same caller without membrane."""
        options.setdefault("cwd", self.workspace)
        options["env"] = self.environment(**options.pop("env", {}))
        return self.world.run(list(command), **options)

    def terminal(self, *arguments: str, **options: Any) -> Terminal:
        """``membrane ARGUMENTS...`` on a terminal of its own."""
        return self.shell_terminal(*self.argv(*arguments), **options)

    def shell_terminal(self, *command: str, **options: Any) -> Terminal:
        """Any command on a terminal of its own."""
        options["env"] = self.environment(**options.pop("env", {}))
        return self.world.terminal(list(command), cwd=self.workspace, **options)

    def events(self, kind: str = "") -> list[dict[str, Any]]:
        """The events of a run with ``--events`` ``events_path``."""
        lines = [json.loads(line) for line in self.events_path.read_text().splitlines()]
        return [event for event in lines if kind in ("", event["event"])]


def children() -> set[int]:
    """The children of this process, adopted orphans among them."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended meanwhile
            found.update(map(int, (task / "children").read_text().split()))
    return found


def describe(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return f"{pid}: {b' '.join(words).decode(errors='replace')}"
    except OSError:
        return f"{pid}: gone"


def wait_until_gone(before: set[int], patience: float = 60.0) -> set[int]:
    """Reap what ends within ``patience`` seconds; return the rest."""
    deadline = time.monotonic() + patience
    while left := children() - before:
        for pid in left:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue
        if time.monotonic() > deadline:
            return children() - before
        time.sleep(0.01)  # the deadline decides, not this
    return set()


def wait_for_no_more_mounts(pid: int, before: list[str], patience: float = 60.0) -> set[str]:
    """What a process has mounted beyond ``before``, once that is nothing or ``patience`` seconds have passed: what
    another process of the machine mounts for a moment comes along and goes away again."""
    deadline = time.monotonic() + patience
    while (more := set(mounts(pid)) - set(before)) and time.monotonic() < deadline:
        time.sleep(0.01)  # the deadline decides, not this
    return more


def mounts(pid: int) -> list[str]:
    """The mounts of a process, but for the one that root's runs keep their tracing programs in."""
    lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    return [line.split(" - ")[0].split(" ", 3)[3] for line in lines if f" {STATE}/" not in line]
