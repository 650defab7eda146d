"""The Docker adapter between the real client and a real daemon: containers yes, the host no."""

from __future__ import annotations

from pathlib import Path

import pytest
from world.box import Box
from world.docker import PATIENCE, Daemon, daemon

from membrane.run import imagestore

__all__ = ["daemon"]
pytestmark = [
    pytest.mark.as_root,  # who may start a daemon
    pytest.mark.needs_tool("dockerd"),
    pytest.mark.needs_tool("busybox"),
    pytest.mark.needs_kernel("cgroups for containers"),
]
ALLOWED = [
    "POST /containers/create", "POST /containers/*/start", "POST /containers/*/attach", "POST /containers/*/wait",
    "POST /containers/*/exec", "POST /exec/*/start", "GET /exec/*/json", "GET /containers/*/json",
    "GET /containers/json", "GET /containers/*/logs", "DELETE /containers/*", "GET /containers/*/archive",
]  # fmt: skip


def test_containers_of_its_own_and_nothing_of_the_host(daemon: Daemon, box: Box) -> None:
    box.allow(unix_sockets=[{"path": str(daemon.socket), "as": "docker", "allow": ALLOWED}])
    host = daemon.directory / "host"
    host.mkdir()
    (host / "file").write_text("of the host")
    others = daemon.docker("create", "--name", "others", "--network", "none", "box", "sh")
    assert others.returncode == 0, others

    run = ["run", "--rm", "--network", "none"]
    hostile = {
        "bind": [*run, "-v", f"{host}:/host", "box", "cat", "/host/file"],
        "mount": [*run, "--mount", f"type=bind,src={host},dst=/host", "box", "cat", "/host/file"],
        "privileged": [*run, "--privileged", "box", "echo", "privileged"],
        "capability": [*run, "--cap-add", "SYS_ADMIN", "box", "echo", "capability"],
        "device": [*run, "--device", "/dev/null:/dev/other", "box", "echo", "device"],
        "pid": [*run, "--pid", "host", "box", "echo", "pid"],
        "network": ["run", "--rm", "--network", "host", "box", "echo", "network"],
        "ipc": [*run, "--ipc", "host", "box", "echo", "ipc"],
        "uts": [*run, "--uts", "host", "box", "echo", "uts"],
        "seccomp": [*run, "--security-opt", "seccomp=unconfined", "box", "echo", "seccomp"],
        "group": [*run, "--cgroup-parent", daemon.group, "box", "echo", "group"],
        "volumes": [*run, "--volumes-from", "others", "box", "echo", "volumes"],
        "another": ["logs", "others"],
        "remove": ["rm", "others"],
        "volume": ["volume", "ls"],
    }
    friendly = {
        "run": [*run, "box", "sh", "-c", "echo in a container"],
        "start": ["run", "-d", "-i", "--name", "mine", "--network", "none", "box", "cat"],
        "exec": ["exec", "mine", "echo", "by exec"],
    }
    privileged_exec = ["exec", "--privileged", "mine", "grep", "CapEff", "/proc/self/status"]
    script = "\n".join(
        [
            "try() { name=$1; shift; docker \"$@\" > out 2>&1 < /dev/null; echo \"== $name $?\"; cat out; }",
            *(" ".join(["try", name, *map(quoted, arguments)]) for name, arguments in friendly.items()),
            *(" ".join(["try", name, *map(quoted, arguments)]) for name, arguments in hostile.items()),
            " ".join(["try", "escalate", *privileged_exec]),
            "try end rm -f mine",
        ]
    )  # fmt: skip
    done = box.run(f"--events={box.events_path}", "--", "bash", "-c", script, timeout=PATIENCE)
    inside = parts(done.stdout)
    assert inside["run"] == (0, "in a container"), done
    assert inside["start"][0] == 0, done
    assert inside["exec"] == (0, "by exec"), done
    assert inside["end"][0] == 0, done
    refused = {name: inside[name] for name in (*hostile, "escalate")}
    for name, (status, text) in refused.items():
        assert status != 0, (name, text)
        assert "membrane: " in text, (name, text)
    events = [event for event in box.events("AccessDenied") if event["access"]["kind"] == "SocketAccess"]
    assert len(events) >= len(refused)
    assert {event["reason"] for event in events} == {"operation not allowed"}
    assert daemon.docker("ps", "-aq").stdout.split() == daemon.docker("ps", "-aqf", "name=others").stdout.split()

    # Without the adapter the daemon takes all of it; not every machine can start each of those containers.
    assert daemon.docker(*friendly["start"]).returncode == 0
    assert daemon.docker(*hostile["bind"]).stdout == "of the host"
    for name, arguments in hostile.items():
        taken = daemon.docker(*(["create", *arguments[2:]] if arguments[0] == "run" else arguments))
        assert taken.returncode == 0, (name, taken)
    assert "membrane" not in daemon.docker(*privileged_exec).stderr


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def parts(output: str) -> dict[str, tuple[int, str]]:
    """What ``try`` wrote: name -> exit status and output."""
    out = {}
    for part in output.split("== ")[1:]:
        head, _, text = part.partition("\n")
        name, status = head.split()
        out[name] = (int(status), text.strip())
    return out


@pytest.mark.needs_tool("skopeo")
def test_an_image_of_the_daemon_can_be_the_system(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``docker-daemon:NAME`` of the daemon that DOCKER_HOST names; its layers come as the daemon has them, unpacked."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{daemon.socket}")
    kept = imagestore.pull(str(tmp_path / "state"), "docker-daemon:box:latest")
    (layer,) = kept.layers
    assert (tmp_path / "state/images/layers" / layer / "bin/sh").is_symlink()
