"""K: an image is built by an engine inside, behind the rules of its directory, and is judged like a stranger's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from escape_box import Box
from test_f_images import of_the_host

sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "host"))
from image_layout import image, layer

from membrane.changes.removal import remove_tree
from membrane.errors import HostError
from membrane.run import imagebuild, imagestore

pytestmark = [
    pytest.mark.needs_kernel("overlayfs in a user namespace"),
    pytest.mark.needs_tool("podman"),
]
PATIENCE = 180
ENGINE = ("podman", "conmon", "crun", "netavark", "aardvark-dns", "ip", "sh", "cat", "ls", "mkdir", "rm", "touch")
ENGINE += ("mount", "umount", "unshare")


@pytest.fixture
def context(box: Box) -> Iterator[Box]:
    """A workspace with a Dockerfile, which needs no registry, and a hidden name."""
    (box.workspace / "root").mkdir()
    subprocess.run(["tar", "-C", box.workspace / "root", "-x"], input=of_the_host("sh", "cat", "ls"), check=True)
    box.file("root/open.txt", "open\n")
    box.file("root/.env", "TOKEN=hidden\n")
    box.file("Dockerfile", 'FROM scratch\nCOPY root /\nENV PATH=/bin\nRUN ["sh", "-c", "echo made >/by-run"]\n')
    (box.state / "config.yaml").write_text(json.dumps({"presets": [], "ignore": [".env"]}))
    yield box
    remove_tree(str(box.state / "containers"))  # of ids that pytest has no right to


def test_K69_a_dockerfile_is_built_inside_once_and_runs(context: Box) -> None:
    options = ("--image=dockerfile:Dockerfile",)
    script = "cat /open.txt /by-run; ls /.env; cat /.env; echo >/x"
    done = context.run("sh", "-c", script, options=options, timeout=PATIENCE)
    assert done.stdout.startswith("open\nmade\n") and "TOKEN" not in done.stdout + done.stderr, done
    assert "Read-only" in done.stderr or "cannot create /x" in done.stderr, done
    assert (context.workspace / "root/.env").read_text() == "TOKEN=hidden\n"  # the control: it is there
    (context.state / "containers").rename(context.state / "containers.away")  # another build would make it again
    try:
        again = context.run("cat", "/open.txt", options=options)
        assert again.stdout == "open\n" and "building" not in again.stderr, again
        assert not (context.state / "containers").exists()
    finally:
        (context.state / "containers.away").rename(context.state / "containers")
    context.file("root/open.txt", "changed\n")  # what it copies counts, what lies beside it does not
    context.file("beside", "x")
    changed = context.run("cat", "/open.txt", options=options, timeout=PATIENCE)
    assert changed.stdout == "changed\n" and "building" in changed.stderr, changed
    context.file("beside", "y")
    assert "building" not in context.run("cat", "/open.txt", options=options).stderr
    context.file("Dockerfile", "FROM scratch\nCOPY absent /\n")
    broken = context.run("true", options=options, timeout=PATIENCE)
    assert broken.returncode == 125 and "cannot build the image" in broken.stderr and "absent" in broken.stderr, broken
    assert not [path for path in (context.state / "images").iterdir() if path.name.startswith(".build")]


def test_K73_what_an_image_in_from_takes_by_onbuild_counts(context: Box) -> None:
    base = "FROM scratch\nCOPY root /\nENV PATH=/bin\nONBUILD COPY beside /taken\n"
    context.file("base/Dockerfile", base)
    context.file("beside", "one\n")
    words = ("podman", "build", "-q", "--format=docker", "-t", "localhost/base", "-f", "base/Dockerfile", ".")
    made = context.run(*words, options=("--containers",), timeout=PATIENCE)
    assert made.returncode == 0, made
    context.file("Dockerfile", 'FROM localhost/base\nRUN ["sh", "-c", "echo STEP 1/1: echo >/x"]\n')
    options = ("--image=dockerfile:Dockerfile",)

    def seen() -> tuple[str, bool]:
        done = context.run("cat", "/taken", options=options, timeout=PATIENCE)
        assert done.returncode == 0, done
        return done.stdout, "building" in done.stderr

    # The first build tells that all counts; the next one, from the engine's cache, begins with a look at it.
    assert [seen() for _ in range(3)] == [("one\n", True), ("one\n", True), ("one\n", False)]
    context.file("beside", "two\n")
    assert [seen() for _ in range(2)] == [("two\n", True), ("two\n", False)]


def test_K70_a_projects_file_has_no_image_built(context: Box) -> None:
    context.file(".membrane.yaml", "image: dockerfile:Dockerfile\n")
    done = context.run("true", options=("--trust-workspace",))
    assert done.returncode == 78 and "a project's file cannot have an image built" in done.stderr, done
    assert not (context.state / "containers").exists()


def test_K71_what_a_build_writes_is_bounded_and_judged(
    context: Box, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """An engine that was replaced says what it wants on both ends."""
    for name, value in context.environment.items():
        monkeypatch.setenv(name, value)
    reference = f"dockerfile:{context.workspace}/Dockerfile"
    lines: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(imagebuild, "_SCRIPT", r"printf '\033]0;x\007\n' >&2; head -c 100000 /dev/zero")
        with pytest.raises(HostError, match="it is no image"):
            imagestore.pull(str(context.state), reference, lines.append)
        patch.setattr(imagebuild, "MOST_BYTES", 50_000)
        with pytest.raises(HostError, match="more than 50000 bytes"):
            imagestore.pull(str(context.state), reference, lines.append)
        script = r"printf '\033]0;x\007\nwhy\nlast\n' >&2; exit 3"
        patch.setattr(imagebuild, "_SCRIPT", script)
        with pytest.raises(HostError, match="cannot build") as caught:
            imagestore.pull(str(context.state), reference, lines.append)
        assert lines[-1] == "why" and caught.value.cause == "last" and "--denied" in caught.value.fix[0], lines
        patch.setattr(imagebuild, "_SCRIPT", "exit 69")
        with pytest.raises(HostError, match="no podman, docker or buildah"):
            imagestore.pull(str(context.state), reference, lines.append)
    shown = capfd.readouterr()
    assert "\x1b" not in str(caught.value) + shown.out + shown.err + "".join(lines)
    assert not list((context.state / "images" / "layers").iterdir())
    with pytest.raises(HostError, match="no such file"):
        imagestore.pull(str(context.state), f"{reference}.absent", lines.append)


def test_K72_engines_of_an_image_run_and_its_trees_stay_as_they_are(context: Box, tmp_path: Path) -> None:
    """Root of the inner user namespace over a read-only system: every way to write it or to get below it is closed."""
    found = os.pathsep.join((os.environ["PATH"], "/usr/sbin", "/usr/lib/podman", "/usr/libexec/podman"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", found)
        programs = of_the_host(*(name for name in ENGINE if shutil.which(name)))
    settings = ("etc/containers/policy.json", b'{"default": [{"type": "insecureAcceptAnything"}]}')
    own = layer(settings, ("opt/x", b"of the image\n"), ("var/lib/containers/y", b"x"), ("var/lib/z/a", b"z"))
    layout = image(tmp_path / "image", programs, own, Env=["PATH=/bin"])
    script = """
    exec 2>said
    mkdir /tmp/c /tmp/m /tmp/u /tmp/w
    mount -t tmpfs none /tmp/c && mount -o remount,bind,ro /tmp/c && mount -o remount,bind,rw /tmp/c &&
        umount /tmp/c && echo control
    for word in umount 'umount -l' 'mount -o remount,rw' 'mount -o remount,bind,rw'; do
        for place in /opt /bin /var/lib/z; do $word $place && echo "$word $place"; done; done
    touch /opt/new-y /bin/new-y && echo written
    rm /opt/x && echo removed
    mount --bind /opt /tmp/m && mount -o remount,bind,rw /tmp/m && echo bind
    mount -t overlay -o lowerdir=/opt,upperdir=/tmp/u,workdir=/tmp/w,userxattr none /tmp/m && touch /tmp/m/new-own
    unshare -m umount /opt && echo below
    ls /var/lib
    podman build -q -f Dockerfile . >id && echo built || echo $?
    """
    done = context.run("sh", "-c", script, options=("--containers", f"--image=oci:{layout}"), timeout=PATIENCE)
    said = (context.workspace / "said").read_text()
    assert done.stdout.split() == ["control", "cni", "containerd", "containers", "docker", "z", "built"], (done, said)
    assert said.lower().count("permi") + said.lower().count("invalid") + said.count("not mounted") >= 12, said
    layers = context.state / "images" / "layers"
    assert {path.read_text() for path in layers.glob("*/opt/x")} == {"of the image\n"}
    assert not list(layers.rglob("new-*"))
