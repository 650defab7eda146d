"""Real engines inside (rows K65 to K68): what people do works, and their containers are behind the same walls.

A server on the host's loopback stands for the network: one port of it is allowed, by ``host.internal``.
"""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import engine_images
import pytest
from escape_box import Box

sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "run"))
from test_imagestore import registry

from membrane.changes.removal import remove_tree

CONTROL = "tests prove nothing where the engine itself does not run"
PATIENCE = 240  # seconds: a deadline, not a measurement
# Asked again: that a container runs does not say that the server in it listens.
PAGE = "until wget -q -O - http://web/passwd; do sleep 0.1; done"


@pytest.fixture
def server() -> Iterator[int]:
    """The port of an allowed server that answers with the path it was asked for."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), engine_images.Answer) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made.server_address[1]
        made.shutdown()


@pytest.fixture
def engines(box: Box, server: int) -> Iterator[Box]:
    engine_images.make(box.workspace / "image.tar")
    box.file("open.txt", "open")
    box.file("kept.txt", "kept")
    box.file(".env", "TOKEN=hidden")
    box.file("Dockerfile", f"FROM box\nRUN wget -q -O /fetched http://host.internal:{server}/by-build\n")
    box.policy(
        containers="nested", ignore=[".env"], readonly=["kept.txt"], ports={"connect": [server]}, presets=[], allow=[]
    )
    yield box
    remove_tree(str(box.state / "containers"))  # of ids that pytest has no right to
    assert not [path.name for path in box.state.iterdir() if path.name.startswith("containers")]


def shell(box: Box, text: str, *options: str) -> dict[str, str]:
    """Run each ``name: command`` line of ``text`` in one sandbox; the last line of what each said, or its failure."""
    lines = [line.strip().split(": ", 1) for line in text.strip().splitlines()]
    script = "".join(
        f"printf '== %s ' {name}; {{ {command}; }} >out 2>&1 </dev/null; echo \"$?\"; cat out; echo\n"
        for name, command in lines
    )
    done = box.run("/bin/sh", "-c", f"cd /tmp; W={box.workspace}; {script}", options=options, timeout=PATIENCE)
    assert done.returncode == 0, done
    found = {}
    for part in done.stdout.split("== ")[1:]:
        head, _, rest = part.partition("\n")
        name, status = head.split()
        said = rest.strip().splitlines()
        found[name] = said[-1] if said and status == "0" else f"{status} {rest.strip()[-300:]}"
    return found


def test_K65_docker_runs_builds_and_is_captured(engines: Box, server: int) -> None:
    """The daemon starts by the first call; nothing but the sandbox's own network is there for its containers."""
    found = shell(
        engines,
        f"""
        import: docker import $W/image.tar box
        run: docker run --rm box echo run
        set-id: docker run --rm box ls -l /bin/su
        allowed: docker run --rm box wget -q -O - http://host.internal:{server}/by-run
        by-address: docker run --rm box wget -q -O - http://127.0.0.1:{server}/
        refused: docker run --rm box wget -q -O - http://192.0.2.1/
        refused-on-the-host-network: docker run --rm --network host box wget -q -O - http://192.0.2.1/
        init: docker run --rm --init box sh -c 'cat /proc/1/comm'
        no-name: docker run --rm box nslookup nope.example
        network: docker network create own && echo made
        web: docker run -d --name web --network own -p 8125:80 box httpd -f -h /etc
        by-name: docker run --rm --network own box sh -c '{PAGE}'
        published: until wget -q -O - http://127.0.0.1:8125/passwd; do sleep 0.1; done
        build: docker build -q -t built - < $W/Dockerfile
        built: docker run --rm built cat /fetched
        buildkit: DOCKER_BUILDKIT=1 /usr/bin/docker build -q -t kit - < $W/Dockerfile
        kit: docker run --rm kit cat /fetched
        volume: docker run --rm -v data:/data box touch /data/x && docker run --rm -v data:/data box ls /data
        bind: docker run --rm -v $W:/w box cat /w/open.txt
        """,
    )
    assert found["import"].startswith("sha256:") and found["run"] == "run", (found, CONTROL)
    assert found["set-id"].startswith("-rwxr-xr-x"), found
    assert found["init"] == "docker-init", found
    assert found["allowed"] == "fetched /by-run" and found["built"] == "fetched /by-build", found
    assert found["by-name"] == found["published"] == "root:x:0:0::/:/bin/sh", found
    assert found["kit"] == "fetched /by-build", found
    assert found["volume"] == "x" and found["bind"] == "open", found
    assert "403" in found["refused"] and "403" in found["refused-on-the-host-network"], found
    assert found["by-address"].startswith("1 ") and found["no-name"].startswith("1 "), found
    denied = [event["access"] for event in engines.record("AccessDenied")]
    assert any(access.get("address") == "192.0.2.1" for access in denied), denied
    # Engines make directories that only their capabilities open; what they do there is not said to fail.
    below = [event for event in engines.record() if str(event.get("path")).startswith("/run/docker/exec/")]
    assert below and not [event for event in below if event["result"] == "EACCES"], below
    assert urllib.request.urlopen(f"http://127.0.0.1:{server}/control", timeout=10).read() == b"fetched /control"


def test_K66_a_container_is_behind_the_walls_whatever_it_is_given(engines: Box) -> None:
    everything = (
        "docker run --rm --cap-add ALL --security-opt seccomp=unconfined --security-opt systempaths=unconfined"
        " -v /:/h box"
    )
    found = shell(
        engines,
        f"""
        import: docker import $W/image.tar box
        all: {everything} cat /h$W/open.txt
        privileged: docker run --rm --privileged box echo ran
        own-mount: {everything} sh -c 'mkdir /m && mount -t tmpfs t /m && umount /m && echo done'
        hidden: {everything} sh -c 'test ! -s /h$W/.env && echo empty'
        umount: {everything} umount /h$W/.env
        kept: {everything} sh -c 'echo x > /h$W/kept.txt'
        remount: {everything} mount -o remount,rw,bind /h$W/kept.txt
        write-usr: {everything} touch /h/usr/evil
        core: {everything} sh -c 'echo "|/evil" > /proc/sys/kernel/core_pattern'
        node: {everything} mknod /null c 1 3
        release: {everything} sh -c 'mkdir /c && mount -t cgroup -o memory c /c && echo /evil > /c/release_agent'
        raw: {everything} ping -c 1 -W 1 192.0.2.1
        set-id: docker run --rm -v $W:/w box sh -c 'touch /w/tool && chmod 4755 /w/tool && echo done'
        owner: docker run --rm -v $W:/w box sh -c 'touch /w/other && chown 7:7 /w/other && echo done'
        hook: docker run --rm -v $W:/w box sh -c 'mkdir -p /w/d/.git/hooks; echo > /w/d/.git/hooks/pre-commit; echo ran'
        state: {everything} ls /h{engines.state}
        host-pids: docker run --rm --pid host box echo ran
        rules: iptables -F && iptables -t nat -F && echo flushed
        after: docker run --rm --network host box wget -q -O - http://192.0.2.1/
        """,
    )
    assert found["all"] == "open" and found["own-mount"] == "done", (found, CONTROL)
    assert found["hidden"] == "empty" and found["owner"] == found["set-id"] == "done" and found["rules"] == "flushed", (
        found
    )
    for name, cause in (
        ("privileged", "sysfs"),  # the view's is read-only, and so is every other (fs/namespace.c, mnt_already_visible)
        ("umount", "Invalid argument"),
        ("kept", "Read-only file system"),
        ("remount", "ermission denied"),
        ("write-usr", "Read-only file system"),
        ("core", ""),
        ("node", "Operation not permitted"),
        ("release", ""),
        ("raw", ""),
        ("state", "No such file"),
        ("after", "403"),
    ):
        assert found[name][:1].isdigit() and not found[name].startswith("0 ") and cause in found[name], (name, found)
    assert found["host-pids"] == "ran" or found["host-pids"].startswith("12"), found  # of the sandbox, where it works
    assert (engines.workspace / ".env").read_text() == "TOKEN=hidden"
    assert (engines.workspace / "kept.txt").read_text() == "kept"
    assert not (engines.workspace / "tool").stat().st_mode & 0o6000
    # At another place than its own the tracer does not know the name: the guard puts it aside.
    assert found["hook"] == "ran" and not (engines.workspace / "d" / ".git" / "hooks" / "pre-commit").exists()


SAID = (
    'said() { id=$(podman run -d "$@") && status=$(podman wait $id) && podman logs $id && podman rm $id >/dev/null'
    " && return $status; }"
)


def test_K67_podman_runs_and_builds(engines: Box, server: int) -> None:
    """What a container says is read from its log: on a busy machine ``podman run`` (4.3, with conmon 2.1) sometimes has
    nothing of a short one, with a tracer and without.
    """
    found = shell(
        engines,
        f"""
        said: {SAID}
        import: podman import -q $W/image.tar box
        run: said box echo run
        allowed: said box wget -q -O - http://host.internal:{server}/by-podman
        refused: said box wget -q -O - http://192.0.2.1/
        build: podman build -q -t built -f $W/Dockerfile /run/lock
        built: said built cat /fetched
        bind: said -v $W:/w box cat /w/.env /w/open.txt
        backend: podman info --format '{{{{.Host.NetworkBackend}}}}'
        network: podman network create own && podman run -d --name web --network own -p 8125:80 box httpd -f -h /etc
        by-name: said --network own box sh -c '{PAGE}'
        published: until wget -q -O - http://127.0.0.1:8125/passwd; do sleep 0.1; done
        refused-there: said --network own box wget -q -O - http://192.0.2.1/
        buildah: buildah bud -q -t second -f $W/Dockerfile /run/lock && echo built
        """,
    )
    assert found["run"] == "run", (found, CONTROL)
    assert found["allowed"] == "fetched /by-podman" and found["built"] == "fetched /by-build", found
    assert found["bind"] == "open" and found["buildah"] == "built", found
    assert "403" in found["refused"] and "403" in found["refused-there"], found
    assert found["backend"] == "netavark", found
    assert found["by-name"] == found["published"] == "root:x:0:0::/:/bin/sh", found


COMPOSE = """
version: "3"
services:
  web: {image: box, command: httpd -f -h /etc, stop_signal: SIGKILL}
  job:
    build: .
    depends_on: [web]
    volumes: [".:/w"]
    command: sh -c 'PAGE; cat /fetched /w/.env /w/open.txt; wget -q -O - http://192.0.2.1/'
""".replace("PAGE", PAGE)


def test_K67_compose_brings_services_up_that_reach_each_other_and_what_is_allowed(engines: Box) -> None:
    engines.file("compose.yaml", COMPOSE)
    up = "docker-compose up --no-color --abort-on-container-exit"
    done = engines.run("/bin/sh", "-c", f"docker import image.tar box && {up}", timeout=PATIENCE)
    said = [line.partition("| ")[2].strip() for line in done.stdout.splitlines() if "job_1" in line.partition("| ")[0]]
    assert "root:x:0:0::/:/bin/sh" in said and any(line.startswith("fetched /by-buildopen") for line in said), done
    assert any("403" in line for line in said), done


@pytest.mark.needs_tool("docker-registry")
def test_K67_compose_pulls_from_a_registry_that_the_sandbox_s_own_daemon_json_names(
    engines: Box, tmp_path: Path
) -> None:
    """As docs/containers.md says; what the machine's own /etc/docker has is not there."""
    with registry(tmp_path / "registry") as (port, _log):
        place, option = f"host.internal:{port}", f"--allow=host.internal:{port}"
        engines.file("compose.yaml", f"services:\n  job:\n    image: {place}/tool\n    command: cat /etc/passwd\n")
        push = f"docker import $W/image.tar {place}/tool && docker push {place}/tool && docker rmi {place}/tool"
        refused = shell(engines, f"push: {push}", option)["push"]
        assert "HTTP response to HTTPS client" in refused, refused
        settings = json.dumps({"insecure-registries": [place]})
        made = f"mkdir -p ~/.config/docker && echo '{settings}' > ~/.config/docker/daemon.json"
        found = shell(
            engines,
            f"""
            settings: {made} && echo made
            push: {push}
            up: docker-compose -f $W/compose.yaml up --no-color --abort-on-container-exit | grep -o root:.*
            """,
            option,
        )
        assert found["settings"] == "made" and found["push"].startswith("Deleted"), (found, CONTROL)
        assert found["up"] == "root:x:0:0::/:/bin/sh", found


def test_K68_two_runs_of_a_workspace_have_engines_that_do_not_stop_each_other(engines: Box) -> None:
    """One storage would be locked by the first dockerd, and the second gave up after 15 s."""
    script = "docker import image.tar box && docker run -d box sleep 1000 && exec cat"
    with engines.start("sh", "-c", script) as first:
        assert first.stdout is not None and first.stdin is not None
        assert first.stdout.readline().startswith("sha256:") and first.stdout.readline().strip(), CONTROL
        own = engines.run("sh", "-c", "docker ps -q && docker import image.tar box", timeout=PATIENCE)
        assert own.returncode == 0 and own.stdout.startswith("sha256:"), own  # an engine, with nothing of the other
        assert "those of this one are kept apart" in own.stderr, own
        first.stdin.close()
        assert first.wait(PATIENCE) == 0
    assert shell(engines, "kept: docker ps -a --format '{{.Image}}'")["kept"] == "box"


def test_K68_images_are_kept_for_the_workspace_and_go_with_the_reset(engines: Box) -> None:
    """What they hold belongs to subordinate ids, and is removed all the same."""
    text = "import: docker import $W/image.tar box\nowner: docker run --name c box sh -c 'touch /x && chown 7:7 /x'"
    assert shell(engines, text)["import"].startswith("sha256:")
    assert shell(engines, "kept: docker images -q box")["kept"]
    other = engines.workspace.parent / "other"
    other.mkdir()
    done = engines.run("docker", "images", "-q", "box", workspace=other)
    assert done.returncode == 0 and not done.stdout.strip(), done
    storage = engines.state / "containers"
    assert any(Path(storage).rglob("repositories.json"))

    def outside(*words: str, given: str = "") -> str:
        done = subprocess.run(
            words,
            input=given,
            cwd=engines.workspace,
            env=engines.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done
        return done.stdout

    # Of one workspace, as docs/containers.md says; the other one keeps what it has.
    membrane = engines.arguments((), ())[:4]
    planned = outside(*membrane, "plan", "--containers").split()
    (own,) = {str(Path(word).parent) for word in planned if word.startswith(f"{storage}/")}
    ids = () if os.geteuid() == 0 else ("unshare", "--map-root-user", "--map-auto")
    outside(*ids, "rm", "-r", own)
    (kept,) = (place for place in storage.iterdir() if any(place.iterdir()))
    assert kept.name.startswith("other-")
    assert shell(engines, "gone: docker images -q box")["gone"] == "0 "
    outside(*membrane, "--reset=d", given="y\ny\n")
    assert not [path.name for path in engines.state.iterdir() if path.name.startswith("containers")]
