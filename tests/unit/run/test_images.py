"""Images in our state: whole or not there, fetched once, kept while a run uses them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "host"))
from image_layout import ARCHITECTURE, archive, image, layer

from membrane.errors import HostError, PolicyError
from membrane.host import unpack
from membrane.host.imagefiles import read
from membrane.host.imagetree import Tree
from membrane.plan.model import HostFacts
from membrane.policy.model import Policy
from membrane.run import images, imagestore

ONE = layer(("a", b"1"))
TWO = layer(("b", b"2"))


def kept_in(state: Path, name: str) -> list[str]:
    return sorted(each for each in os.listdir(state / "images" / name))


def test_it_is_fetched_again_only_when_its_source_has_changed(tmp_path: Path) -> None:
    state, reference = str(tmp_path / "state"), f"oci:{image(tmp_path / 'image', ONE, Env=['A=1'], User='app')}"
    assert images.find(state, reference) is None
    first = imagestore.pull(state, reference)
    assert images.find(state, reference) == first
    assert (first.said.environ, first.said.user) == (("A=1",), "app")
    image(tmp_path / "image", ONE, TWO)
    assert images.find(state, reference) is None
    assert len(imagestore.pull(state, reference).layers) == 2
    assert [kept.reference for kept in imagestore.images(state)] == [reference, ""]  # what it stood for before is here


def test_an_archive_is_the_same_image(tmp_path: Path) -> None:
    layout, state = image(tmp_path / "image", ONE, TWO), str(tmp_path / "state")
    from_file = imagestore.pull(state, f"tar:{archive(layout, tmp_path / 'image.tar')}")
    assert from_file.digest == imagestore.pull(state, f"oci:{layout}").digest
    (tmp_path / "none.tar").write_bytes(b"x" * 2000)
    for name in ("none.tar", "absent.tar", "image"):
        with pytest.raises(HostError):
            imagestore.pull(state, f"tar:{tmp_path / name}")


@pytest.mark.needs_tool("skopeo")
@pytest.mark.parametrize("kind", ["docker-archive", "oci-archive"])
def test_archives_of_other_programs_are_read(tmp_path: Path, kind: str) -> None:
    layout = image(tmp_path / "image", ONE, TWO, Env=["A=1"])
    policy = tmp_path / "policy.json"
    policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    words = ["skopeo", f"--policy={policy}", "--tmpdir", str(tmp_path), "copy", f"oci:{layout}"]
    subprocess.run([*words, f"{kind}:{tmp_path / 'saved.tar'}"], check=True, capture_output=True)
    found = imagestore.pull(str(tmp_path / "state"), f"tar:{tmp_path / 'saved.tar'}")
    assert len(found.layers) == 2 and found.said.environ == ("A=1",)


def test_what_a_run_uses_stays(tmp_path: Path) -> None:
    state, root = str(tmp_path / "state"), tmp_path / "state"
    first, second = (f"oci:{image(tmp_path / name, ONE, *more)}" for name, more in (("1", ()), ("2", (TWO,))))
    imagestore.pull(state, second)
    held = images.need(state, first, lambda: imagestore.pull(state, first))
    imagestore.remove(state, first)
    assert images.find(state, first) is None and len(kept_in(root, "records")) == 2
    assert len(kept_in(root, "layers")) == 2
    imagestore.remove(state, second)
    assert len(kept_in(root, "layers")) == 1  # the one below both
    held.end()
    assert imagestore.prune(state) == 1
    assert kept_in(root, "layers") == kept_in(root, "records") == kept_in(root, "names") == []
    with pytest.raises(PolicyError, match="there is no image"):
        imagestore.remove(state, first)


def test_a_killed_fetch_leaves_nothing_that_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, reference = str(tmp_path / "state"), f"oci:{image(tmp_path / 'image', ONE, TWO)}"
    pid = os.fork()
    if pid == 0:
        calls = [0]
        whole = unpack.unpack

        def killed(raw: object, root: int, zstd: str) -> tuple[str, int]:
            calls[0] += 1
            if calls[0] == 2:  # half of the second layer is there
                os.close(os.open("half", os.O_CREAT | os.O_WRONLY, dir_fd=root))
                os.kill(os.getpid(), signal.SIGKILL)
            return whole(raw, root, zstd)  # type: ignore[arg-type]

        unpack.unpack = killed  # type: ignore[assignment]
        try:
            imagestore.pull(state, reference)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    left = kept_in(tmp_path / "state", "layers")
    assert images.find(state, reference) is None and any(name.startswith(".unpack-") for name in left)
    assert len(imagestore.pull(state, reference).layers) == 2  # the lock went with the process
    assert not any(name.startswith(".") for name in kept_in(tmp_path / "state", "layers"))


def test_two_fetch_at_once(tmp_path: Path) -> None:
    """The second waits, and says so."""
    state, reference = str(tmp_path / "state"), f"oci:{image(tmp_path / 'image', ONE, TWO)}"
    lock = imagestore._Lock(f"{state}/images", imagestore.quiet)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        os.close(lock._fd)  # the lock belongs to the open file, which is ours as well
        os.close(read)
        try:
            imagestore.pull(state, reference, lambda text: os.write(write, text.encode()) and None)
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    assert b"waiting" in os.read(read, 1000)
    os.close(read)
    assert images.find(state, reference) is None
    lock.__exit__()
    assert os.waitpid(pid, 0)[1] == 0
    assert images.find(state, reference) is not None


def test_without_skopeo_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match="skopeo") as caught:
        imagestore.pull(str(tmp_path / "state"), "busybox:1")
    assert "apt install skopeo" in caught.value.fix


@pytest.mark.needs_tool("zstd")
def test_zstd_is_none_that_a_command_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's layout with a layer in zstd, and a program of that name in the workspace, first in PATH."""
    layout, planted = tmp_path / "image", tmp_path / "workspace" / "zstd"
    image(layout, ONE)
    named = json.loads((layout / "index.json").read_text())["manifests"][0]["digest"].removeprefix("sha256:")
    manifest = json.loads((layout / "blobs/sha256" / named).read_text())
    blob = layout / "blobs/sha256" / manifest["layers"][0]["digest"].removeprefix("sha256:")
    # Its name stays: of a layer only the digest of what it is unpacked is judged.
    blob.write_bytes(subprocess.run(["zstd", "-1"], input=ONE, capture_output=True, check=True).stdout)
    planted.parent.mkdir()
    planted.write_text(f"#!/bin/sh\n: >{tmp_path}/ran\n")
    planted.chmod(0o755)
    monkeypatch.chdir(planted.parent)
    monkeypatch.setenv("PATH", f"{planted.parent}:{os.environ['PATH']}")
    kept = imagestore.pull(str(tmp_path / "state"), f"oci:{layout}")
    assert (tmp_path / "state/images/layers" / kept.layers[0] / "a").read_bytes() == b"1"
    assert not (tmp_path / "ran").exists()
    monkeypatch.chdir("/")  # the control: elsewhere it is the one that PATH names
    with pytest.raises(HostError):
        imagestore.pull(str(tmp_path / "other"), f"oci:{layout}")
    assert (tmp_path / "ran").exists()


def test_what_skopeo_writes_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in that would go on for ever; it is ended, and limits are on it from the start."""
    program = tmp_path / "bin" / "skopeo"
    program.parent.mkdir()
    limits = tmp_path / "limits"
    program.write_text(
        "#!/bin/sh\nfor last; do :; done\nlast=${last#oci:}\nlast=${last%:image}\n"
        'i=0; until [ "$(ulimit -t)" = 3600 ] || [ $i -gt 99999 ]; do i=$((i + 1)); done\n'  # it is set from outside
        f"ulimit -t > {limits}; ulimit -f >> {limits}; echo $$ > {tmp_path}/pid\n"
        "echo 0123456789 > $last/oci-put-blob1; exec sleep 1000\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setattr(imagestore, "MOST_ARRIVED", 5)
    monkeypatch.setattr(imagestore, "_LOOK", 10)
    with pytest.raises(HostError, match="more than 5 bytes"):
        imagestore.pull(str(tmp_path / "state"), "tool")
    assert limits.read_text() == f"3600\n{unpack.MOST_BYTES // 512}\n"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_what_is_shown_is_what_is_held(tmp_path: Path) -> None:
    """The reference may stand for another image a moment later, or for none: another command writes where it is."""
    state, layout = str(tmp_path / "state"), image(tmp_path / "image", ONE)
    held = images.need(state, f"oci:{layout}", lambda: imagestore.pull(state, f"oci:{layout}"))
    image(layout, ONE, TWO)
    facts = HostFacts(1000, 1000, "u", False, "/home/u", state, "/home/u/w", "box", ())
    policy = Policy(image=f"oci:{layout}")
    assert images.shown(policy, facts).image is None  # the control
    assert (shown := images.shown(policy, facts, held.digest).image) is not None and shown.digest == held.digest
    imagestore.pull(state, f"oci:{layout}")
    assert (shown := images.shown(policy, facts, held.digest).image) is not None and shown.layers == 1
    held.end()


@pytest.mark.parametrize(
    ("reference", "source"),
    [
        ("busybox:1", "docker://busybox:1"),
        ("docker-daemon:me/x:2", "docker-daemon:me/x:2"),
        ("podman:x", "containers-storage:x"),
    ],
)
def test_names_go_to_skopeo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str, source: str) -> None:
    """What it wrote is judged as anybody's; a failure of it is said and leaves nothing."""
    layout = image(tmp_path / "image", ONE)
    program = tmp_path / "bin" / "skopeo"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/said\nfor last; do :; done\n'
        f'last=${{last#oci:}}\ncp -R {layout}/. "${{last%:image}}"\n'
        f"[ ! -e {tmp_path}/fail ] || {{ echo no such >&2; exit 1; }}\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    state = tmp_path / "state"
    assert len(imagestore.pull(str(state), reference).layers) == 1
    words = (tmp_path / "said").read_text().split()
    assert words[0] == "copy" and words[-2] == source
    (tmp_path / "fail").touch()
    with pytest.raises(HostError, match="no such"):
        imagestore.pull(str(state), reference)
    assert not any(name.startswith(".") and name != ".lock" for name in os.listdir(state / "images"))


def test_a_volume_is_a_directory_that_can_be_made(tmp_path: Path) -> None:
    """Of any number with any names some are made, outer ones first; the others are said."""
    (tmp_path / "1").mkdir()
    entries = (
        ("file", b"x"),
        ("link", "/real"),
        ("real/a", b"x"),
        ("loop", "loop"),
        ("out", "/../../etc"),
        ("etc/x", b""),
    )
    os.mkdir(tmp_path / "layers")
    layers = read(str(image(tmp_path / "image", layer(*entries))), str(tmp_path / "layers")).layers
    tree = Tree([f"{tmp_path}/layers/{name}" for name in layers], f"{tmp_path}/empty")
    own = ("/tmp", "/home/me", "/srv/mount")
    wrong = ("/", "/etc", "/out", "/file", "/home", "/srv", f"/{'n' * 256}", "/d" * 600)
    paths = ("/link", "/real/sub", "/new/a/b", "relative", "/tmp/v", "/home/me/x", "//double//", *wrong)
    made, refused = images._volumes(tree, paths, own)
    assert [each.path for each in made] == ["/double", "/real", "/relative", "/new/a/b"]
    assert set(refused) == set(wrong)
    many, more = images._volumes(tree, [f"/v{number}" for number in range(40)], own)
    assert len(many) == images.MOST_VOLUMES and len(more) == 40 - images.MOST_VOLUMES


def test_one_name_has_an_image_for_each_platform(tmp_path: Path) -> None:
    state, layout = str(tmp_path / "state"), image(tmp_path / "image", ONE)
    reference, other = f"oci:{layout}", "s390x" if ARCHITECTURE == "riscv64" else "riscv64"
    own = imagestore.pull(state, reference)
    assert own.said.platform == f"linux/{ARCHITECTURE}"
    with pytest.raises(HostError, match=f"made for linux/{ARCHITECTURE}, not for linux/{other}"):
        imagestore.pull(state, reference, platform=f"linux/{other}")
    config = json.loads((layout / "blobs/sha256" / own.digest[7:]).read_bytes())
    image(layout, ONE, architecture=other)
    foreign = imagestore.pull(state, reference, platform=f"linux/{other}")
    assert config["architecture"] == ARCHITECTURE and foreign.said.platform == f"linux/{other}"
    assert images.find(state, reference) is None  # the layout has changed
    assert images.find(state, reference, f"linux/{other}") == foreign
    imagestore.remove(state, reference)
    assert imagestore.images(state) == []


def test_foreign_programs_need_an_interpreter_that_is_open_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As qemu-user-static registers it (binfmt-misc.rst); one that would be looked up in the view is none."""
    assert images._runs(f"linux/{ARCHITECTURE}") and images._runs(f"linux/{ARCHITECTURE}/v9")
    monkeypatch.setattr(images, "_BINFMT", str(tmp_path))
    magic = "7f454c4602020100000000000000000000020016"
    mask = "ffffffffffffff00fffffffffffffffffffeffff"
    rows = ("enabled", "interpreter /usr/bin/qemu-s390x-static", "flags: OCF", "offset 0", f"magic {magic}")
    (tmp_path / "status").write_text("enabled\n")
    for wanted, text in (
        (False, ""),
        (True, "\n".join((*rows, f"mask {mask}"))),
        (False, "\n".join(("disabled", *rows[1:], f"mask {mask}"))),
        (False, "\n".join((*rows[:2], "flags: ", *rows[3:]))),
        (False, "\n".join((*rows[:4], "magic 7f454c4602010100000000000000000002003e00"))),
        (False, "enabled\nflags: F\nextension .exe\n"),
        (False, "\n".join((*rows[:3], "offset x", rows[4]))),
    ):
        (tmp_path / "qemu-s390x").write_text(text)
        assert images._runs("linux/s390x") == wanted, text
    assert not images._runs("linux/none") and not images._runs("linux")


def test_no_link_that_a_command_can_make_leads_to_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links of a person are followed on the way to such a tree, and elsewhere."""
    state, outside, tree = str(tmp_path / "state"), tmp_path / "outside", tmp_path / "tree"
    layout = image(outside / "image", ONE)
    packed = archive(layout, outside / "image.tar")
    tree.mkdir()
    (tree / "own").symlink_to(layout)
    (tree / "below").symlink_to(outside)
    (tree / "own.tar").symlink_to(packed)
    (outside / "Dockerfile").write_text("FROM scratch\n")
    image(tree / "good", ONE)
    (tmp_path / "way").symlink_to(tree)
    for name in (
        "oci:{}/own",
        "oci:{}/below/image",
        "tar:{}/own.tar",
        "tar:{}/below/image.tar",
        "dockerfile:{}/below/Dockerfile",
    ):
        for way in (tree, tmp_path / "way"):
            with pytest.raises(HostError, match="symbolic link is on the way"):
                imagestore.pull(state, name.format(way), writable=(str(tree),))
    for name in (f"oci:{tree}/good", f"oci:{tmp_path}/way/good", f"oci:{layout}"):
        assert imagestore.pull(state, name, writable=(str(tree),)).layers
    with monkeypatch.context() as inside:
        inside.chdir(tree)  # the workspace
        with pytest.raises(HostError, match="symbolic link is on the way"):
            imagestore.pull(state, f"oci:{tree}/own")
    assert imagestore.pull(state, f"oci:{tree}/own").layers  # the control: without the rule it is followed
