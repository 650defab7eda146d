"""One caller of ``srt``: settings, a workspace, a home."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from world import World
from world.box import ROOT

OTHER = os.environ.get("SRT_UNDER_TEST", "")


# Unix sockets at the paths that are its arguments, until its stdin ends; "up" is printed when all listen.
SOCKET_SERVER = (
    "import os, socket, sys\n"
    "kept = []\n"
    "for name in sys.argv[1:]:\n"
    "    kept.append(socket.socket(socket.AF_UNIX)); kept[-1].bind(name); kept[-1].listen(); os.chmod(name, 0o777)\n"
    "print('up', flush=True); sys.stdin.read()"
)
# What connecting to each of them comes to: "ok", or the name of the errno.
SOCKET_CLIENT = (
    "import errno, socket, sys\n"
    "for name in sys.argv[1:]:\n"
    "    try: socket.socket(socket.AF_UNIX).connect(name); print('ok')\n"
    "    except OSError as error: print(errno.errorcode[error.errno])"
)


def srt_argv() -> list[str]:
    """The program under test: ours as installed, or of this checkout."""
    if OTHER:
        return [OTHER]
    script = Path(sys.executable).with_name("srt")
    return [str(script)] if script.exists() else [sys.executable, str(ROOT / "scripts" / "srt")]


class SrtBox:
    """A caller with a workspace ``work`` and a home, and what is outside of both."""

    def __init__(self, world: World, directory: Path) -> None:
        self.world, self.directory = world, directory
        self.home, self.work, self.outside = directory / "home", directory / "work", directory / "outside"
        for path in (self.home, self.work, self.outside):
            path.mkdir()
        self.settings_path = directory / "settings.json"
        self.settings()

    def settings(self, network: dict[str, Any] | None = None, files: dict[str, Any] | None = None, **more: Any) -> None:
        """Write settings; the workspace is writable unless ``files`` says otherwise."""
        data = {
            "network": {"allowedDomains": [], "deniedDomains": [], **(network or {})},
            "filesystem": {"denyRead": [], "allowWrite": ["."], "denyWrite": [], **(files or {})},
            **more,
        }
        self.settings_path.write_text(json.dumps(data))

    def environment(self, **extra: str) -> dict[str, str]:
        environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "TERM": "xterm",
            "MEMBRANE_HOME": str(self.directory / "state"),
        }
        if OTHER:  # npm's trusts for its own connections what Node.js is told to
            environment["NODE_EXTRA_CA_CERTS"] = str(self.world.ca)
        if not OTHER and not Path(srt_argv()[0]).name.startswith("srt"):
            environment["PYTHONPATH"] = str(ROOT / "src")
        return {**environment, **extra}

    def srt(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """``srt ARGUMENTS`` in the workspace."""
        options.setdefault("cwd", self.work)
        options["env"] = self.environment(**options.pop("env", {}))
        return self.world.run([*srt_argv(), *arguments], **options)

    def popen(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        options.setdefault("cwd", self.work)
        options["env"] = self.environment(**options.pop("env", {}))
        return self.world.popen([*srt_argv(), *arguments], **options)

    def shell(self, line: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """``srt -s SETTINGS -c LINE``."""
        return self.srt("-s", str(self.settings_path), "-c", line, **options)

    def written(self, *names: str) -> Path:
        """A file of the workspace with the content ``ORIGINAL``; made with its directories."""
        path = self.work.joinpath(*names)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("ORIGINAL")
        return path


def outcomes(box: SrtBox, lines: dict[str, str], **options: Any) -> dict[str, tuple[int, str]]:
    """Run many lines of shell in one sandbox: name -> (status, output and errors)."""
    script = (
        "import json, subprocess, sys\n"
        "print(json.dumps({name: (lambda r: (r.returncode, r.stdout))(subprocess.run(['bash', '-c', line],"
        " stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace'))"
        " for name, line in json.loads(sys.argv[1]).items()}))"
    )
    done = box.srt("-s", str(box.settings_path), "--", "python3", "-c", script, json.dumps(lines), **options)
    assert done.returncode == 0, done
    return {name: (status, out) for name, (status, out) in json.loads(done.stdout).items()}
