"""``system: writable``: a distribution's package manager, npm, pip and su, in a layer over the system trees."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from world.box import Box

as_root = pytest.mark.as_root
pytestmark = pytest.mark.needs_kernel("overlayfs in a user namespace")
WRITABLE, PERSISTENT = "--system=writable", "--system=persistent"
POSTINST = """#!/bin/sh
set -e
useradd --system --no-create-home layer-user
chown layer-user: /var/lib/layer-sample
su layer-user -s /bin/sh -c 'id -un > /var/lib/layer-sample/who'
"""


@pytest.fixture
def repository(box: Box) -> Path:
    """A flat repository (deb-src format of sources.list(5)) with one package, which has a set-user-ID program."""
    made, place = box.workspace / "package", box.workspace / "repository"
    for name, mode, text in (
        ("DEBIAN/control", 0o644, "Package: layer-sample\nVersion: 1.0\nArchitecture: all\nMaintainer: a <a@a.test>\n"),
        ("DEBIAN/postinst", 0o755, POSTINST),
        ("DEBIAN/conffiles", 0o644, "/etc/layer-sample.conf\n"),
        ("etc/layer-sample.conf", 0o644, "x\n"),
        ("usr/bin/layer-sample", 0o4755, "#!/bin/sh\necho sample\n"),
        ("var/lib/layer-sample/kept", 0o644, ""),
    ):
        path = made / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + ("Description: a\n" if name.endswith("control") else ""))
        path.chmod(mode)
    place.mkdir()
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", str(made), str(place / "s.deb")], check=True)
    size = (place / "s.deb").stat().st_size
    sums = subprocess.run(["sha256sum", str(place / "s.deb")], check=True, capture_output=True, text=True).stdout
    control = (made / "DEBIAN" / "control").read_text().strip()
    (place / "Packages").write_text(f"{control}\nFilename: ./s.deb\nSize: {size}\nSHA256: {sums.split()[0]}\n")
    return place


# The user _apt reads the repository, and the directories of the test are closed to others.
APT = """set -e
cp -r repository /tmp/repository
rm -rf /etc/apt/sources.list /etc/apt/sources.list.d
echo 'deb [trusted=yes] file:/tmp/repository ./' > /etc/apt/sources.list
apt-get -q update && apt-get -q install -y layer-sample
"""
SEEN = "layer-sample && cat /var/lib/layer-sample/who && stat -c %U:%a /usr/bin/layer-sample /var/lib/layer-sample"


@as_root
@pytest.mark.needs_tool("apt-get")
def test_apt_installs_a_package_with_a_user_of_its_own_and_nothing_reaches_the_host(box: Box, repository: Path) -> None:
    done = box.run(PERSISTENT, "--", "sh", "-c", APT, timeout=120)
    assert done.returncode == 0, done
    again = box.run(PERSISTENT, "--", "sh", "-c", SEEN)
    assert again.stdout.split() == ["sample", "layer-user", "root:755", "layer-user:755"], again
    removed = box.run(PERSISTENT, "--", "sh", "-c", "apt-get -q purge -y layer-sample && dpkg --audit; layer-sample")
    assert removed.returncode == 127 and "Removing layer-sample" in removed.stdout, removed
    for path in ("/usr/bin/layer-sample", "/etc/layer-sample.conf", "/var/lib/layer-sample"):
        assert not os.path.lexists(path)
    assert "layer-user" not in Path("/etc/passwd").read_text()
    other = box.workspace.parent / "other"
    other.mkdir()
    elsewhere = box.run(PERSISTENT, "--", "sh", "-c", "id layer-user", cwd=other)
    assert elsewhere.returncode == 1  # the layer is the workspace's


@as_root
def test_a_layer_is_thrown_away_or_kept_until_reset(box: Box) -> None:
    script = "ls /usr/local/made 2>/dev/null; echo x > /usr/local/made; echo y >> /etc/hosts.allow"
    for option, second in ((WRITABLE, ""), (PERSISTENT, "/usr/local/made\n")):
        assert box.run(option, "--", "sh", "-c", script).stdout == ""
        assert box.run(option, "--", "sh", "-c", script).stdout == second
    assert box.run("--", "ls", "/usr/local/made").returncode == 2
    plain = box.run("--", "sh", "-c", "touch /usr/local/made")
    assert plain.returncode == 1 and "Read-only file system" in plain.stderr  # the control
    assert not os.path.lexists("/usr/local/made")
    done = box.run("--reset=d", input="y\ny\n")
    assert done.returncode == 0 and not (box.state / "system").exists(), done


@as_root
@pytest.mark.needs_tool("su")
def test_su_and_what_writes_settings_of_the_system(box: Box) -> None:
    script = """set -e
su nobody -s /bin/sh -c 'id -un; touch /tmp/made /etc/made 2>/dev/null || echo refused'
stat -c %U /tmp/made
useradd somebody && su somebody -s /bin/sh -c 'id -un'
echo 'setting = 1' > /etc/sample.conf; mkdir /srv-like 2>/dev/null || echo read-only root
cp -a /etc/passwd /usr/local/copy && stat -c %U:%a /usr/local/copy
"""
    done = box.run(WRITABLE, "--", "sh", "-c", script)
    assert done.stdout.split("\n")[:-1] == ["nobody", "refused", "nobody", "somebody", "read-only root", "root:644"], (
        done
    )
    assert "somebody" not in Path("/etc/passwd").read_text()


@as_root
@pytest.mark.needs_tool("npm")
def test_npm_installs_a_program_for_everybody(box: Box) -> None:
    package = box.workspace / "p"
    package.mkdir()
    (package / "package.json").write_text(
        json.dumps({"name": "layer-p", "version": "1.0.0", "bin": {"layer-p": "p.js"}})
    )
    (package / "p.js").write_text("#!/usr/bin/env node\nconsole.log('from npm')\n")
    packed = box.outside("npm", "pack", "--silent", str(package))
    assert packed.returncode == 0, packed
    install = "npm i -g --silent --offline ./layer-p-1.0.0.tgz && layer-p"
    done = box.run(WRITABLE, "--", "sh", "-c", install, timeout=120)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["from npm"]), done
    refused = box.run("--", "sh", "-c", install, timeout=120)
    assert refused.returncode != 0  # the control
    assert shutil.which("layer-p") is None


@as_root
def test_the_record_and_the_plan_say_it(box: Box) -> None:
    done = box.run(
        WRITABLE, "--events", str(box.events_path), "--", "sh", "-c", "echo x > /etc/made; chown 7 /etc/made"
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    opened = [event for event in box.events("FileOpened") if event["path"] == "/etc/made"]
    assert opened and opened[0]["result"] == "" and opened[0]["outside_workspace"] is True, opened
    [started] = box.events("SessionStarted")
    rules = {each["rule"]: each["status"] for each in started["assurance"]}
    assert rules["system: writable"] == "bound" and rules["system: writable, weaker than without"] == "partial"
    assert any(each["mechanism"] == "/proc/PID/status CapEff = 00000000000000eb" for each in started["assurance"])
    plan = box.run("plan", WRITABLE)
    assert plan.returncode == 0 and "layer" in plan.stdout and "root      over owners" in plan.stdout, plan


@as_root
def test_it_is_one_commands(box: Box) -> None:
    session = box.popen(WRITABLE, "--", "sh", "-c", "echo ready; read x", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert session.stdout is not None and session.stdout.readline() == b"ready\n"
    done = box.run("exec", str(box.workspace), "--", "true")
    session.communicate(b"\n", timeout=60)
    assert done.returncode == 125 and "one command's" in done.stderr, done


def test_a_project_cannot_ask_for_it(box: Box) -> None:
    (box.workspace / ".membrane.yaml").write_text("system: writable\n")
    done = box.run("--trust-workspace", "--", "true")
    assert done.returncode == 78 and "system" in done.stderr, done


@pytest.mark.as_user
def test_a_plain_user_is_told_that_it_takes_root(box: Box) -> None:
    done = box.run(WRITABLE, "--", "true")
    assert done.returncode == 78 and "system: writable needs root outside" in done.stderr, done
