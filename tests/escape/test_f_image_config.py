"""F: what the configuration of an image says of its use: volumes, where it begins, how it ends, who it is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from escape_box import MEMBRANE, Box
from test_f_images import SYSTEM, of_the_host, run

sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "host"))
from image_layout import image, layer

pytestmark = pytest.mark.needs_kernel("overlayfs in a user namespace")


@pytest.fixture(scope="module")
def system() -> bytes:
    return of_the_host(*SYSTEM)


def receipt(box: Box) -> dict[str, tuple[str, str]]:
    """The rows of the last run, by rule: status and mechanism."""
    events = [json.loads(line) for line in box.events.read_text().splitlines()]
    started = [event for event in events if event["event"] == "SessionStarted"][-1]
    return {row["rule"]: (row["status"], row["mechanism"]) for row in started["assurance"]}


def test_F130_volumes_are_private_writable_and_begin_as_the_image_has_them(
    box: Box, system: bytes, tmp_path: Path
) -> None:
    """Whatever a volume is named, none is over what the view has of its own, and nothing is written to a layer."""
    names = ("/data", "/srv/new/deep", "/opt/link", "/data/below", "/", "/etc", str(box.home.parent), "/tmp/v", "/proc")
    more = layer(
        ("data/seed", b"of the image\n"), ("opt/link", "/srv/place"), ("srv/place/x", b"x"), ("srv/beside", b"x")
    )
    layout = image(tmp_path / "image", system, more, Env=["PATH=/bin"], Volumes={name: {} for name in names})
    script = """cat /data/seed; for name in /data/seed /data/new /srv/new/deep/x /srv/place/y /tmp/v; do
    echo written > $name && cat $name; done; for name in /srv/beside /srv/x /opt/x /bin/x /etc/x /x; do
    touch $name 2>&1; done; mkdir /data/directory && mv /data/new /data/directory/ && ls /data"""
    first = run(box, layout, script)
    lines = first.stdout.splitlines()
    assert lines[:6] == ["of the image", *["written"] * 5], first
    assert len(lines[6:12]) == 6 and all("Read-only" in line for line in lines[6:12]), first
    assert lines[12:] == ["directory", "seed"], first
    rows = receipt(box)
    assert rows["image: volumes"][0] == "bound" and "/data, /srv/place, /srv/new/deep:" in rows["image: volumes"][1], (
        rows
    )
    assert rows["image: volume"][0] == "partial" and "/, /etc" in rows["image: volume"][1], rows
    assert not list((box.state / "layers" / ".once").iterdir())
    second = run(box, layout, "cat /data/seed; ls /data /srv/new/deep")  # another run has them as the image has them
    assert second.stdout.splitlines() == ["of the image", "/data:", "seed", "", "/srv/new/deep:"], second
    for path in (box.state / "images" / "layers").rglob("*"):
        assert path.name not in ("new", "directory", "y") and (not path.is_file() or path.read_bytes() != b"written\n")


def test_F131_the_images_own_command_begins_where_it_says_and_a_given_one_in_the_workspace(
    box: Box, system: bytes, tmp_path: Path
) -> None:
    box.policy(presets=[])
    own = layer(("srv/app/x", b"x"), ("srv/link", "app"))
    for said, place in (("/srv/link", "/srv/app"), ("/proc/self", str(box.workspace))):
        config = {"Env": ["PATH=/bin"], "Cmd": ["sh", "-c", "pwd -P; echo $PWD"], "WorkingDir": said}
        options = (f"--image=oci:{image(tmp_path / 'image', system, own, **config)}",)
        assert box.run(options=options).stdout.splitlines() == [place, place], said
        assert receipt(box)["image: working directory"][0] == ("bound" if place == "/srv/app" else "partial")
    assert box.run("sh", "-c", "pwd", options=options).stdout == f"{box.workspace}\n"


def test_F132_a_run_that_is_to_end_gets_the_signal_that_the_image_names(
    box: Box, system: bytes, tmp_path: Path
) -> None:
    box.policy(presets=[])
    script = "trap 'echo quit; exit 3' QUIT; trap 'echo term; exit 4' TERM; echo ready; while :; do read x; done"
    for said, ends, status in (("SIGQUIT", "quit", 3), ("", "term", 4)):
        layout = image(tmp_path / "image", system, Env=["PATH=/bin"], StopSignal=said)
        with box.start("sh", "-c", script, options=(f"--image=oci:{layout}",)) as running:
            assert running.stdout is not None and running.stdout.readline() == "ready\n"
            running.terminate()
            assert running.stdout.read() == f"{ends}\n", said
            assert running.wait(60) == status


def test_F133_what_an_image_says_is_shown_escaped(box: Box, system: bytes, tmp_path: Path) -> None:
    evil = "\x1b]0;x\x07"
    config = {"Env": [f"PATH=/bin:{evil}"], "User": evil, "WorkingDir": f"/{evil}", "StopSignal": evil}
    layout = image(
        tmp_path / "image",
        system,
        layer((f"opt/{evil}", b"")),
        **config,
        Entrypoint=["sh", "-c", ":", evil],
        Volumes={f"/etc/{evil}": {}, f"/{evil}": {}},
    )
    box.policy(presets=[])
    assert box.run("true", options=(f"--image=oci:{layout}",)).returncode == 0
    row = receipt(box)["image: user"]
    assert "]0;x" in row[1] and "whom its passwd(5) does not know" in row[1], row  # the control: it is said
    words = [*MEMBRANE, "plan", f"--image=oci:{layout}"]
    for more in ((), ("--json",)):
        shown = subprocess.run(
            [*words, *more], cwd=box.workspace, env=box.environment, capture_output=True, check=True
        ).stdout
        assert b"does not know" in shown and b"\x1b" not in shown and b"\x07" not in shown, shown


def test_F134_with_a_layer_over_the_system_volumes_take_owners(box: Box, tmp_path: Path) -> None:
    """As servers want them, which begin as root: what the image has there, and what it only names."""
    programs = of_the_host(*SYSTEM, "chown", "setpriv")
    seeded = layer(("data/seed", b"of the image\n"))
    volumes: dict[str, object] = {"/data": {}, "/var/lib/new/data": {}, "/new/deep": {}}
    layout = image(tmp_path / "image", programs, seeded, Env=["PATH=/bin"], Volumes=volumes)
    script = """
    for place in /data /var/lib/new/data /new/deep; do
        chown 70:70 $place; stat -c %u:%g $place
        setpriv --reuid 70 --regid 70 --clear-groups touch $place/made && echo made
    done; cat /data/seed
    """
    box.policy(presets=[])
    done = box.run("sh", "-c", script, options=(f"--image=oci:{layout}", "--system=writable"))
    assert done.stdout.splitlines() == [*["70:70", "made"] * 3, "of the image"], done
    assert receipt(box)["image: volumes"] == (
        "bound",
        "/data, /new/deep, /var/lib/new/data: over what the image has there, in the layer over the system",
    )


def _user(tmp_path: Path, user: str) -> str:
    """The option for an image with some users, run as one of them."""
    users = layer(
        ("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\napp:x:70:71::/app:/sbin/nologin\n"),
        ("etc/group", b"root:x:0:\napp:x:71:\nstaff:x:50:\n"),
        ("app/kept", b"of the image\n", 0o600),
    )
    programs = of_the_host(*SYSTEM, "chown", "chmod")
    return f"--image=oci:{image(tmp_path / 'image', programs, users, Env=['PATH=/bin'], User=user)}"


def test_F135_the_command_is_the_images_user_and_outside_the_caller(box: Box, tmp_path: Path) -> None:
    """It owns what it has to write, by the kernel's own ids: nothing of the image's number is left outside."""
    box.policy(presets=[])
    option = _user(tmp_path, "app:staff")
    script = """id; echo $USER; cat /app/kept; touch made $HOME/made && stat -c '%u:%g' made $HOME/made . /app/kept
    chown 70:50 made && echo chowned"""
    done = box.run("sh", "-c", script, options=(option,))
    lines = done.stdout.splitlines()
    assert lines[:3] == ["uid=70(app) gid=50(staff) groups=50(staff)", "app", "of the image"], done
    assert lines[3:8] == [*["70:50"] * 4, "chowned"], done
    details = (box.workspace / "made").stat()
    assert (details.st_uid, details.st_gid) == (os.getuid(), os.getgid())
    assert receipt(box)["image: user"][0] == "bound"
    reviewed = box.run("sh", "-c", "id -u; echo x > new; stat -c %u new", options=(option, "--review"))
    assert reviewed.stdout == "70\n70\n" and not (box.workspace / "new").exists(), reviewed
    plain = box.run("sh", "-c", "id -u; cat made && rm made", options=(_user(tmp_path, ""),))  # the control
    assert plain.stdout == f"{os.getuid()}\n" and not (box.workspace / "made").exists(), plain


@pytest.mark.as_root
@pytest.mark.parametrize("number", [70, 70_000])
def test_F136_the_number_of_the_image_opens_no_file_of_that_user_of_the_host(
    box: Box, tmp_path: Path, number: int
) -> None:
    """Root's workspace has files of many owners: one of them has the number that the image names."""
    box.policy(presets=[])
    other = box.file("other", "of another user", 0o600)
    os.chown(other, number, number)
    script = "cat other; echo x > other; chmod 644 other; chown 70:70 other; id -u"
    done = box.run("sh", "-c", script, options=(_user(tmp_path, str(number)),))
    assert done.stdout == f"{number}\n", done
    refused = [line.rpartition(": ")[2] for line in done.stderr.splitlines() if "other" in line]
    unmapped = "Value too large for defined data type" if number > 65535 else "Operation not permitted"
    assert refused == ["Permission denied", "Permission denied", unmapped, "Operation not permitted"], done
    # The control: who has that number outside may.
    words = ["setpriv", f"--reuid={number}", "--clear-groups", "cat", "/proc/self/fd/0"]
    assert (other.stat().st_uid, other.read_text()) == (number, "of another user")
    with other.open("rb") as file:
        assert subprocess.run(words, stdin=file, capture_output=True, check=True).stdout == b"of another user"


def test_F137_what_an_image_lacks_is_no_refusal(box: Box, system: bytes, tmp_path: Path) -> None:
    """The machine has a program that the image has not, and one beside the workspace: only that is kept from it."""
    box.policy(presets=[])
    beside = box.workspace.parent / "tool"
    shutil.copy("/usr/bin/env", beside)
    done = run(box, image(tmp_path / "image", system, Env=["PATH=/bin"]), f"/usr/bin/env; {beside}; echo went on")
    assert done.stdout == "went on\n" and done.stderr.count("not found") == 2, done
    events = [json.loads(line) for line in box.events.read_text().splitlines()]
    missed = [event["access"]["path"] for event in events if event["event"] == "AccessDenied"]
    assert missed == [str(beside)], missed
    control = box.run("/usr/bin/env")
    assert control.returncode == 0, control
