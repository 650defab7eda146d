"""``--backend podman`` as a plain user: rootless, without a daemon.

Containers have no network here (``netns`` of containers.conf(5)): slirp4netns needs /dev/net/tun.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from world import carrier
from world.docker import PATIENCE, until

from membrane.plan.carrier import LABEL
from started import Started

pytestmark = [
    pytest.mark.as_user,
    pytest.mark.needs_tool("podman"),
    pytest.mark.needs_tool("runc"),
    pytest.mark.needs_tool("newuidmap"),
    pytest.mark.needs_kernel("subordinate ids"),
]
# crun refuses the hybrid cgroups of some machines, runc does not.
CONTAINERS = (
    '[containers]\nnetns = "none"\n[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
)


class Podman:
    """A home with podman's storage and settings of its own, and the image."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.workspace = directory / "src" / "a, b"
        settings = directory / ".config" / "containers"
        for path in (self.workspace, settings, directory / "run"):
            path.mkdir(parents=True)
        (directory / "run").chmod(0o700)
        (settings / "containers.conf").write_text(CONTAINERS)
        places = f'graphroot = "{directory}/storage"\nrunroot = "{directory}/run/c"\n'
        (settings / "storage.conf").write_text(f'[storage]\ndriver = "vfs"\n{places}')
        self.environ = {
            "HOME": str(directory), "PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": str(directory / "run"),
            "LANG": "C.UTF-8",
        }  # fmt: skip

    def docker(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["podman", *arguments], env=self.environ, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=PATIENCE, check=False,
        )  # fmt: skip

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", "membrane", *words]
        return Started(
            command, env=self.environ, cwd=self.workspace, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def containers(self) -> list[str]:
        return self.docker("ps", "-aq", f"--filter=label={LABEL}={self.directory}/.membrane").stdout.split()


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    made = Podman(Path(tempfile.mkdtemp(prefix="mb-podman-")))
    try:
        carrier.build(made)
        yield made
    finally:
        made.docker("unshare", "rm", "-rf", str(made.directory / "storage"))
        for pause in (made.directory / "run").rglob("pause.pid"):  # it holds podman's user namespace
            os.kill(int(pause.read_text()), signal.SIGKILL)
        shutil.rmtree(made.directory)


ATTEMPT = """
import os, socket, sys
print(os.getuid(), os.getcwd())
for line in open("/proc/self/status"):
    if line.startswith("CapEff"):
        print(line.split()[1])
with socket.socket(socket.AF_UNIX) as one:
    one.connect(sys.argv[1])
    print(one.recv(100).decode())
for path in (sys.argv[2], "/run/membrane-events", os.path.expanduser("~/.membrane/config.yaml")):
    try:
        open(path).close()
        print("opened")
    except OSError as error:
        print(error.errno)
open("made", "w").write("made")
sys.exit(7)
"""


def test_a_run_is_whole(podman: Podman) -> None:
    (podman.directory / "private").write_text("of the host")
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(podman.directory / "service"))
        service.listen()
        words = [f"--unix-socket={podman.directory}/service", "--events", str(podman.directory / "events"), "-q"]
        command = ["python3", "-c", ATTEMPT, str(podman.directory / "service"), str(podman.directory / "private")]
        with podman.start("--backend=podman", "--arg=--label=of=mine", *words, "--", *command) as process:
            service.settimeout(PATIENCE)
            connection, _ = service.accept()
            with connection:
                (container,) = podman.containers()
                (found,) = json.loads(podman.docker("inspect", container).stdout)
                connection.sendall(b"served")
            out, err = process.communicate(timeout=PATIENCE)
    own = [f"{os.getuid()} {podman.workspace}", "0000000000000000", "served", "2", "2", "2"]
    assert (process.returncode, out.splitlines(), err) == (7, own, "")
    assert (podman.workspace / "made").stat().st_uid == os.getuid()
    events = [json.loads(line)["event"] for line in (podman.directory / "events").read_text().splitlines()]
    assert events[0] == "SessionStarted" and events[-1] == "SessionEnded"
    assert found["HostConfig"]["Privileged"] is False and found["EffectiveCaps"] in (None, [])
    assert found["HostConfig"]["ReadonlyRootfs"] and found["Config"]["Labels"]["of"] == "mine"
    until(lambda: not podman.containers())


def test_who_kills_the_client_ends_the_container(podman: Podman) -> None:
    with podman.start("--backend=podman", "-q", "--", "sh", "-c", "echo there; sleep 1000") as process:
        assert process.stdout is not None and process.stdout.readline() == "there\n"
        assert len(podman.containers()) == 1
        os.kill(process.pid, signal.SIGKILL)
        until(lambda: not podman.containers())


def test_an_engine_of_another_machine_is_refused(podman: Podman) -> None:
    podman.environ["CONTAINER_HOST"] = "ssh://there/run/podman.sock"
    try:
        with podman.start("--backend=podman", "--", "true") as process:
            _out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 125 and "on another machine (ssh://there/run/podman.sock)" in err, err
    finally:
        del podman.environ["CONTAINER_HOST"]
