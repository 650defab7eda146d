"""A real Docker daemon in namespaces of its own, with one image and no network."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

PATIENCE = 120.0  # seconds: a deadline, not a measurement


def until(fact: Callable[[], bool]) -> None:
    """Wait for it; it fails the test when it is not there in time."""
    deadline = time.monotonic() + PATIENCE
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.05)  # between two looks at a condition


class Engine(Protocol):
    """What an image can be made in."""

    directory: Path

    def docker(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The client."""


class Daemon:
    """A daemon in namespaces of its own, with one image ``box`` that is a busybox and a shell.

    Args:
        network: the address of its bridge with the length of its prefix; empty: containers have no network.
    """

    def __init__(self, directory: Path, network: str = "") -> None:
        self.directory, self.socket = directory, directory / "s"
        self.group = f"/mb-{directory.name}"
        self._log = (directory / "log").open("wb")
        options = [
            f"--data-root={directory}/data", f"--exec-root={directory}/exec", f"--pidfile={directory}/pid",
            f"--host=unix://{self.socket}", "--iptables=false", "--ip6tables=false",
            f"--bip={network}" if network else "--bridge=none",
            "--storage-driver=vfs", f"--cgroup-parent={self.group}",
        ]  # fmt: skip
        own = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        start = ["sh", "-c", 'ip link set lo up; exec "$@"', "sh", "dockerd", *options]
        self._process = subprocess.Popen([*own, *start], stdout=self._log, stderr=self._log)
        try:
            self._wait()
            self._import()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while self.docker("version").returncode:
            assert self._process.poll() is None and time.monotonic() < deadline, self.log()
            time.sleep(0.05)  # between two looks at a condition

    def _import(self) -> None:
        image = self.directory / "image"
        (image / "bin").mkdir(parents=True)
        busybox = shutil.which("busybox")
        assert busybox is not None
        shutil.copy(busybox, image / "bin" / "busybox")
        for name in ("sh", "cat", "echo", "ls", "grep"):
            (image / "bin" / name).symlink_to("busybox")
        subprocess.run(["tar", "-C", image, "-cf", self.directory / "image.tar", "."], check=True)
        done = self.docker("import", str(self.directory / "image.tar"), "box")
        assert done.returncode == 0, done

    def docker(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The client outside of any sandbox."""
        command = ["docker", "--host", f"unix://{self.socket}", *arguments]
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.directory)}
        return subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def beside(self, *command: str) -> list[str]:
        """``command`` in the daemon's network, where its ports are published and its bridge has an address."""
        pid = (self.directory / "pid").read_text()
        (inner,) = (
            each.name for each in Path("/proc").iterdir() if each.name.isdigit() and self._is_daemon(each.name, pid)
        )
        return ["nsenter", f"--net=/proc/{inner}/ns/net", *command]

    def _is_daemon(self, pid: str, own: str) -> bool:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except OSError:
            return False
        numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()
        return numbers[-1] == own.strip() and f"--pidfile={self.directory}/pid" in words

    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")[-4000:]

    def close(self) -> None:
        """End it with every process of its namespace."""
        self._process.kill()  # and with it, --kill-child, pid 1 of the namespace
        self._process.wait(PATIENCE)
        self._log.close()
        deadline = time.monotonic() + PATIENCE
        for controller in [Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").iterdir()]:
            made = controller / self.group[1:]
            while made.is_dir() and not controller.is_symlink() and time.monotonic() < deadline:
                try:
                    for each in [*sorted(made.rglob("*/"), reverse=True), made]:
                        each.rmdir()
                except OSError:
                    time.sleep(0.05)  # its last process is on its way out


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    directory = Path(tempfile.mkdtemp(prefix="mb-docker-"))
    made = Daemon(directory)
    yield made
    made.close()
    shutil.rmtree(directory)
