"""F: an image as the system: its files open nothing of the host, and the command changes none of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from escape_box import MEMBRANE, Box

sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "host"))
from image_layout import archive, image, layer

from membrane.changes.removal import remove_tree
from membrane.host.unpack import BadLayer
from membrane.run import imagestore

pytestmark = pytest.mark.needs_kernel("overlayfs in a user namespace")
SECRET = "SECRET of the host"


def libraries(program: str) -> list[str]:
    """The shared libraries of a program, with the loader."""
    found = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout.split()
    return [word for word in found if word.startswith("/")]


def of_the_host(*programs: str) -> bytes:
    """A layer with programs of the host and what they load, at their places."""
    entries = []
    for program in programs:
        path = shutil.which(program)
        assert path is not None
        real = Path(path).resolve()
        entries.append((f"bin/{program}", real.read_bytes(), 0o755))
        entries += [(name.lstrip("/"), Path(name).read_bytes(), 0o755) for name in libraries(str(real))]
    return layer(*dict.fromkeys(entries))


SYSTEM = ("sh", "cat", "ls", "touch", "id", "stat", "env", "mkdir", "rm", "mv")


@pytest.fixture(scope="module")
def system() -> bytes:
    return of_the_host(*SYSTEM)


def run(box: Box, layout: Path, script: str) -> subprocess.CompletedProcess[str]:
    box.policy(presets=[])
    return box.run("sh", "-c", script, options=(f"--image=oci:{layout}",))


def test_F110_the_system_is_the_image_and_nothing_of_it_can_be_written(box: Box, system: bytes, tmp_path: Path) -> None:
    """Three layers, with whiteouts; the workspace is writable as ever."""
    layout = image(
        tmp_path / "image",
        system,
        layer(("opt/tool/a", b"low\n"), ("opt/tool/b", b"low\n"), ("opt/gone", b"x"), ("srv/data/x", b"x")),
        layer(("opt/tool/a", b"high\n"), ("opt/.wh.gone", b""), ("srv/data/.wh..wh..opq", b""), ("srv/data/y", b"y")),
        Env=["PATH=/bin", "FOO=bar"],
    )
    script = """
    cat /opt/tool/a /opt/tool/b; ls /opt /srv/data; echo "$FOO" "$PATH"
    for name in /bin/x /opt/tool/a /opt/tool/new /etc/passwd /etc/new /opt/x /var/x /x; do
        touch $name 2>&1; done
    rm /opt/tool/a 2>&1; mv /bin/sh /bin/sh2 2>&1; mkdir /bin/d 2>&1
    [ -e /usr/bin/python3 ] && echo host; echo ok > made
    """
    done = run(box, layout, script)
    lines = done.stdout.splitlines()
    assert lines[:5] == ["high", "low", "/opt:", "tool", ""], done
    assert lines[5:8] == ["/srv/data:", "y", "bar /bin"], done
    refused = lines[8:]
    assert len(refused) == 11, "\n".join(refused)
    assert all("Read-only file system" in line or "/etc/passwd': Permission denied" in line for line in refused), (
        "\n".join(refused)
    )
    assert (box.workspace / "made").read_text() == "ok\n"
    outside = box.workspace / "control"  # without the rule the same programs write
    subprocess.run(["sh", "-c", f"mkdir {outside} && touch {outside}/x && rm {outside}/x"], check=True)


def test_F111_links_of_the_image_lead_nowhere_outside(box: Box, system: bytes, tmp_path: Path) -> None:
    secret = box.home / "secret"
    secret.write_text(SECRET)
    up = "../" * 20
    layout = image(
        tmp_path / "image",
        system,
        layer(
            *(
                ("etc/passwd", str(secret)),
                ("etc/group", f"{up}{secret}"),
                ("etc/resolv.conf", "/run/x"),
                ("etc/hosts", up),
            ),
            *(
                ("secret", str(secret)),
                ("opt", f"{up}{box.home}"),
                ("home", "/etc"),
                ("tmp", str(box.home)),
                ("run", "/etc"),
            ),
            *(("proc/1", "x"), ("dev/null", b"x"), ("etc/shadow", b"root::\n"), ("var/run", "/etc")),
        ),
        Env=["PATH=/bin", "HOME=/etc", "MEMBRANE=0"],
    )
    assert secret.read_text() == SECRET
    script = "cat /secret /opt/secret /etc/passwd /etc/group /etc/resolv.conf 2>&1; echo $HOME $MEMBRANE"
    done = run(box, layout, script)
    assert SECRET not in done.stdout and "nameserver" in done.stdout, done
    assert done.stdout.endswith(f"{box.home} 1\n") and done.returncode == 0, done
    assert secret.read_text() == SECRET


def test_F112_no_set_user_id_file_and_no_device_comes_from_an_image(box: Box, system: bytes, tmp_path: Path) -> None:
    layout = image(tmp_path / "image", system, layer(("bin/su", b"x", 0o6755)), Env=["PATH=/bin"])
    done = run(box, layout, "stat -c %a /bin/su")
    assert (done.returncode, done.stdout) == (0, "755\n"), done


def test_F113_a_name_that_leads_out_of_a_layer_ends_the_whole(tmp_path: Path) -> None:
    for number, name in enumerate(("../x", "/../x", "a/../../x")):
        state = tmp_path / f"state{number}"
        layout = image(tmp_path / f"image{number}", layer((name, b"x")))
        with pytest.raises(BadLayer, match="leads out"):
            imagestore.pull(str(state), f"oci:{layout}")
        assert not list((state / "images" / "layers").iterdir())
        assert not (tmp_path / "x").exists()
    imagestore.pull(str(tmp_path / "good"), f"oci:{image(tmp_path / 'image', layer(('x', b'x')))}")


@pytest.mark.parametrize(
    "reference",
    ["--help", "-a", "a/../b", "../a", "a b", "a;b", "podman:--x", "docker-daemon:", "a@sha256:1", "a:-t", "oci:"],
)
def test_F114_no_option_and_no_path_is_a_name(box: Box, reference: str) -> None:
    box.policy(presets=[])
    done = box.run("true", options=(f"--image={reference}",))
    assert done.returncode in (2, 78) and "image" in done.stderr, done
    assert not (box.state / "images").exists()


def test_F115_entry_point_command_and_user_are_as_the_receipt_says(box: Box, system: bytes, tmp_path: Path) -> None:
    layout = image(
        tmp_path / "image",
        system,
        Env=["PATH=/bin"],
        Entrypoint=["sh", "-c", 'echo "$@"; id -u', "x"],
        Cmd=["own"],
        User="77",
    )
    box.policy(presets=[])
    options = (f"--image=tar:{archive(layout, tmp_path / 'image.tar')}",)
    own, given = box.run(options=options), box.run("given", options=options)
    assert own.stdout.splitlines()[0] == "own" and given.stdout.splitlines()[0] == "given", (own, given)
    events = [json.loads(line) for line in box.events.read_text().splitlines()]
    started = [event for event in events if event["event"] == "SessionStarted"][-1]
    bound = {row["rule"]: row for row in started["assurance"]}
    assert own.stdout.splitlines()[1] == "77", own
    assert bound["image: user"]["status"] == "bound" and "77: uid 77 and gid 0" in bound["image: user"]["mechanism"]
    assert "read-only overlay of 1 layers" in bound[f"image: {options[0][8:]}"]["mechanism"], bound


def test_F116_a_project_takes_no_image_without_approval(box: Box, system: bytes, tmp_path: Path) -> None:
    layout = image(tmp_path / "image", system, Env=["PATH=/bin"])
    box.policy(presets=[])
    box.file(".membrane.yaml", f"image: 'oci:{layout}'\n")
    refused = box.run("sh", "-c", "echo ran")
    assert refused.returncode == 78 and "image" in refused.stderr and "ran" not in refused.stdout, "\n".join(refused)
    assert "ran" in box.run("sh", "-c", "echo ran", options=("--trust-workspace",)).stdout


def test_F117_where_requests_are_inspected_the_bundles_of_the_image_have_the_sessions_authority(
    box: Box, system: bytes, tmp_path: Path
) -> None:
    """At the places of the image's distribution, also over a link; without inspection they are its own."""
    own = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    bundle, link = "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/certs/ca-certificates.crt"
    layout = image(tmp_path / "image", system, layer((bundle[1:], own.encode()), (link[1:], bundle)), Env=["PATH=/bin"])
    options = (f"--image=oci:{layout}",)
    box.policy(presets=[])
    assert box.run("cat", bundle, link, options=options).stdout == own * 2
    inspecting = (*options, "--allow=https://api.example.com/v1/")
    for path in (bundle, link, "/run/.membrane/certificates.pem"):
        found = box.run("cat", path, options=inspecting).stdout
        assert found.startswith(own) and found.count("BEGIN CERTIFICATE") == 2, (path, found)


def test_F118_a_joined_command_has_the_same_system(box: Box, system: bytes, tmp_path: Path) -> None:
    """``membrane exec`` into a run whose image was removed meanwhile: it is there until the end."""
    layout = image(tmp_path / "image", system, layer(("opt/mark", b"of the image\n")), Env=["PATH=/bin"])
    box.policy(presets=[])
    reference = f"oci:{layout}"
    with box.start("sh", "-c", "echo ready; read line", options=(f"--image={reference}",)) as running:
        assert running.stdin is not None and running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        imagestore.remove(str(box.state), reference)
        words = [*MEMBRANE, "exec", str(box.workspace), "--", "cat", "/opt/mark"]
        joined = subprocess.run(
            words, cwd=box.workspace, env=box.environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert joined.stdout == "of the image\n", joined
        running.stdin.write("\n")
        running.stdin.close()
        assert running.wait(60) == 0
    assert imagestore.prune(str(box.state)) == 1


def test_F119_a_mount_has_its_place_among_the_trees_of_the_image(box: Box, system: bytes, tmp_path: Path) -> None:
    """Also below a directory that is a link on the host; nothing is made in a layer, and what is beside it stays."""
    layout = image(tmp_path / "image", system, Env=["PATH=/bin"])
    extra = tmp_path / "extra"
    extra.mkdir()
    (extra / "file").write_text("mounted\n")
    box.policy(presets=[])
    options = (f"--image=oci:{layout}", f"--mount={extra}:/bin/deep/place")
    done = box.run("sh", "-c", "cat /bin/deep/place/file; touch /bin/new /bin/deep/new 2>&1", options=options)
    lines = done.stdout.splitlines()
    assert lines[0] == "mounted" and len(lines) == 3, done
    assert all("Read-only file system" in line for line in lines[1:]), done
    assert not list((box.state / "images" / "layers").glob("*/bin/deep"))


@pytest.mark.as_root
def test_F120_with_a_layer_everything_of_the_image_is_roots_and_the_image_stays(
    box: Box, system: bytes, tmp_path: Path
) -> None:
    """Kept for the workspace and this image; links of the image lead nowhere outside."""
    secret = box.home / "secret"
    secret.write_text(SECRET)
    layout = image(
        tmp_path / "image",
        system,
        layer(
            *(("etc/passwd", b"root:x:7:7::/:/bin/evil\nuser:x:5:5::/:/bin/sh\n"), ("etc/hosts", str(secret))),
            *(("etc/shadow", b"user:of-the-image:::\n", 0o600), ("etc/resolv.conf", str(secret))),
            *(("var/run", str(secret)), ("var/lib/db", b"x"), ("opt/tool", b"x\n", 0o4755), ("home", str(box.home))),
        ),
        Env=["PATH=/bin"],
    )
    script = """
    cat /opt/new 2>/dev/null
    for path in /bin/new /etc/new /var/new /var/lib/db /opt/new /var/tmp/x /var/run/x; do
        echo y >> $path || echo no $path; done
    cat /etc/passwd /etc/shadow; ls -ld /etc/hosts; echo z > /etc/passwd.new && mv /etc/passwd.new /etc/passwd
    rm /opt/tool; cat /home/* 2>/dev/null; touch /new 2>/dev/null || echo root is closed
    """
    box.policy(presets=[])
    options = (f"--image=oci:{layout}", "--system=persistent")
    done = box.run("sh", "-c", script, options=options)
    lines = done.stdout.splitlines()
    assert lines[:3] == [
        "root:x:0:0:root:" + str(box.home) + ":/bin/sh",
        "user:x:5:5::/:/bin/sh",
        "user:of-the-image:::",
    ], done
    assert lines[3].startswith("-") and lines[4:] == ["root is closed"], done
    again = box.run("sh", "-c", "cat /etc/passwd /opt/new; ls /opt", options=options)
    assert again.stdout.split()[-2:] == ["y", "new"] and "of-the-image" not in again.stdout, again
    assert secret.read_text() == SECRET
    other = box.run("sh", "-c", "ls /opt; echo x > /opt/tool", options=options[:1])
    assert (other.returncode, other.stdout) == (2, "tool\n"), other  # without a layer it is as it was
    assert len(list((box.state / "system").iterdir())) == 1


def test_F121_root_over_an_image_is_the_caller_outside_with_ids_of_its_own(box: Box, tmp_path: Path) -> None:
    """For a plain caller, too, by his subordinate ids; in the workspace nothing changes hands."""
    layout = image(tmp_path / "image", of_the_host(*SYSTEM, "chown", "chmod", "setpriv"), Env=["PATH=/bin"])
    box.file("own", "x")
    script = """
    id -u; grep -c . /proc/self/uid_map >/dev/null 2>&1; echo y > /opt; mkdir /srv 2>/dev/null; mkdir /bin/d /tmp/d
    chown 5:6 /bin/d /tmp/d; stat -c %u:%g /bin/d /tmp/d
    setpriv --reuid 5 --regid 6 --clear-groups sh -c '
        id -u; touch /bin/d/made && echo in its own; touch /bin/other 2>/dev/null || echo refused
        touch in-workspace 2>/dev/null || echo refused; cat /etc/passwd.new /proc/1/environ 2>/dev/null || echo refused'
    chown 5:6 own; chmod 4755 own; stat -c %u:%g:%a own
    echo x > /bin/suid; chmod 4755 /bin/suid; stat -c %a /bin/suid
    for setting in /proc/sys/net/ipv4/ip_forward /proc/sys/kernel/core_pattern; do
        (echo 1 > $setting) 2>/dev/null || echo refused; done
    """
    box.policy(presets=[])
    done = box.run("sh", "-c", script, options=(f"--image=oci:{layout}", "--system=writable"))
    expected = [
        "0",
        "5:6",
        "5:6",
        "5",
        "in its own",
        "refused",
        "refused",
        "refused",
        "0:0:755",
        "755",
        "refused",
        "refused",
    ]
    assert done.stdout.splitlines() == expected, done
    found = (box.workspace / "own").stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (os.getuid(), os.getgid(), 0o755)
    assert os.listdir(box.state / "system" / ".once") == []  # files of other ids as well
    [start] = box.record("SessionStarted")
    assert start["identity"].startswith("uid 0 as kuid ")
    plain = box.run("sh", "-c", "id -u; touch /bin/x", options=(f"--image=oci:{layout}",))
    assert (plain.returncode, plain.stdout) == (1, f"{os.getuid()}\n"), plain  # the control


@pytest.mark.as_user
def test_F122_no_protected_name_is_made_where_the_tracer_cannot_look(box: Box, tmp_path: Path) -> None:
    """A plain caller's tracer may not search what belongs to a subordinate id; the root inside may."""
    layout = image(tmp_path / "image", of_the_host(*SYSTEM, "chmod", "setpriv"), Env=["PATH=/bin"])
    script = """
    mkdir open; chmod 777 open; mkdir /tmp/made; echo x > /tmp/made/f
    setpriv --reuid 5 --regid 6 --clear-groups sh -c '
        mkdir open/d open/searched /tmp/d; chmod 700 open/d /tmp/d; chmod 711 open/searched'
    mkdir open/d/.git 2>/dev/null || echo refused; echo x > open/d/f 2>/dev/null || echo refused
    echo x > open/f; mv open/f open/d/f 2>/dev/null || echo refused
    mkdir open/searched/sub && echo control
    mkdir /tmp/d/.git && echo x > /tmp/d/f && mv /tmp/d/f /tmp/d/g && echo scratch
    """
    box.policy(presets=[])
    done = box.run("sh", "-c", script, options=(f"--image=oci:{layout}", "--system=writable"))
    assert done.stdout.splitlines() == ["refused", "refused", "refused", "control", "scratch"], done
    made = [event for event in box.record("FileCreated") if event["path"] == "/tmp/d/.git"]
    assert [event["result"] for event in made] == [""]  # what the kernel said is not known: no refusal is claimed
    remove_tree(str(box.workspace / "open"))  # which has the caller's ids
    assert os.listdir(box.workspace) == []


def test_F123_what_other_users_of_the_layer_keep_is_counted(box: Box, tmp_path: Path) -> None:
    """No mode keeps ``limits.disk`` from counting: none hides what is kept, none ends a run that keeps little."""
    layout = image(tmp_path / "image", of_the_host(*SYSTEM, "chmod", "chown", "head", "sleep"), Env=["PATH=/bin"])
    script = "mkdir /bin/d; head -c 4M /dev/zero > /bin/d/f; chown -R 5:6 /bin/d; chmod 700 /bin/d; echo written"
    box.policy(presets=[])
    options = (f"--image=oci:{layout}", "--system=persistent", "--limit")
    try:
        done = box.run("sh", "-c", script, options=(*options, "disk=64M"))
        assert (done.returncode, done.stdout) == (0, "written\n"), done
        done = box.run("sh", "-c", "stat -c %u:%a /bin/d", options=(*options, "disk=64M"))  # control
        assert (done.returncode, done.stdout) == (0, "5:700\n"), done
        done = box.run("sleep", "1000", options=(*options, "disk=2M"))
        assert done.returncode == 125 and " of 2097152 bytes are kept for it " in done.stderr, done
    finally:
        remove_tree(str(box.state / "system"))
