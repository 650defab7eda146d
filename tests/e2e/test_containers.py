"""The boundary inside a real container of Docker: refused with the reason, and whole with the two options.

The container's system is the host's, read-only; its profile and its covered /proc are Docker's own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from world.docker import Daemon, daemon

import membrane
from membrane.ui import containers

__all__ = ["daemon"]
pytestmark = [
    pytest.mark.as_root,  # who may start a daemon
    pytest.mark.needs_tool("dockerd"),
    pytest.mark.needs_tool("busybox"),
    pytest.mark.needs_kernel("cgroups for containers"),
]
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc")


def run(daemon: Daemon, *options: str, user: str, command: str) -> subprocess.CompletedProcess[str]:
    """A shell command in a container with the host's system and this membrane."""
    package = str(Path(membrane.__file__).resolve().parent.parent)
    trees = dict.fromkeys([*filter(os.path.isdir, SYSTEM), sys.prefix, package])
    shown = [f"--volume={tree}:{tree}:ro" for tree in trees]
    home = daemon.directory / "home"
    (home / "work").mkdir(parents=True, exist_ok=True)
    for made in (home, home / "work"):
        made.chmod(0o777)
    places = [
        f"--volume={home}:/home/agent",
        "--tmpfs=/tmp:exec",
        "--workdir=/home/agent/work",
        "--env=HOME=/home/agent",
    ]
    path = f"--env=PATH={sys.prefix}/bin:/usr/bin:/bin"
    words = ["run", "--rm", "--network=none", f"--user={user}", path, *places, *shown, *options, "box"]
    return daemon.docker(*words, "/bin/sh", "-euc", command)


@pytest.fixture
def open_enough(daemon: Daemon) -> list[str]:
    """The two options, with the profile as the product prints it."""
    profile = daemon.directory / containers.PROFILE
    profile.write_text(containers.text("seccomp"))
    json.loads(profile.read_text())
    line = containers.text("docker").splitlines()[1].replace(containers.PROFILE, str(profile))
    words = line.split()
    return [f"--security-opt={words[at + 1]}" for at, word in enumerate(words) if word == "--security-opt"]


@pytest.mark.parametrize("user", ["1000:1000", "0:0"])
def test_a_default_container_is_named_as_the_reason(daemon: Daemon, user: str) -> None:
    done = run(daemon, user=user, command="membrane -- true")
    assert done.returncode == 125, done
    assert "a container of Docker forbids it" in done.stderr
    assert "try: start the container with two more options: membrane setup container docker" in done.stderr
    doctor = run(daemon, user=user, command="membrane doctor")
    assert "membrane setup container docker" in doctor.stdout, doctor
    for wrong in ("modprobe", "systemd.unified_cgroup_hierarchy", "ordinary user", "no answer in"):
        assert wrong not in doctor.stdout


ATTEMPT = """\
echo x > ../other
membrane --no-presets -- sh -c '
    echo made > made; cat /proc/self/uid_map; touch /usr/x || echo refused; ls /home/agent/other || echo hidden'
membrane trace verify @last
membrane doctor
cat made
"""


@pytest.mark.parametrize("user", ["1000:1000", "0:0"])
def test_with_the_two_options_the_boundary_is_whole(daemon: Daemon, open_enough: list[str], user: str) -> None:
    done = run(daemon, *open_enough, user=user, command=ATTEMPT)
    assert done.returncode == 0, done
    uid = user.partition(":")[0]
    assert done.stdout.splitlines()[0].split() == [uid, uid, "1"]
    assert "refused" in done.stdout and "hidden" in done.stdout
    assert done.stdout.splitlines()[-1] == "made"
    assert "not traced" not in done.stderr


def test_without_any_capability_it_is_whole_too(daemon: Daemon, open_enough: list[str]) -> None:
    options = [*open_enough, "--cap-drop=ALL", "--security-opt=no-new-privileges", "--read-only"]
    done = run(daemon, *options, user="1000:1000", command="membrane -- sh -c 'echo whole'")
    assert (done.returncode, done.stdout) == (0, "whole\n"), done


def test_each_option_alone_is_not_enough_and_says_which_is_missing(daemon: Daemon, open_enough: list[str]) -> None:
    seccomp, paths = open_enough
    done = run(daemon, seccomp, user="1000:1000", command="membrane -- true")
    assert done.returncode == 125
    assert "systempaths=unconfined" in done.stderr
    done = run(daemon, paths, user="1000:1000", command="membrane -- true")
    assert done.returncode == 125
    assert "setup container docker" in done.stderr


INSIDE = """\
echo x > ../other
membrane -q --backend landlock --no-presets -- sh -c '
    echo made > made; cat /home/agent/other || echo hidden; chmod 777 /home/agent/other || echo kept
    (setsid sleep 98765 &); exit 7' || echo status $?
grep -l ^sleep /proc/[0-9]*/cmdline && echo left
membrane -q --backend landlock --events events -- true
grep -q "shared with the container" events && echo receipt
membrane -q --backend landlock --profile claude -- sh -c 'echo state > ~/.claude/state'
membrane -q --backend landlock --profile claude -- sh -c 'cat ~/.claude/state'
python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 &
until python3 -c 'import socket; socket.create_connection(("127.0.0.1", 8000))' 2>/dev/null; do :; done
membrane -q --backend landlock -a host.internal:8000 -- python3 -c '
import urllib.request, socket
print(urllib.request.urlopen("http://host.internal:8000/made").read().decode(), end="")
try:
    socket.create_connection(("127.0.0.1", 8000))
except OSError as error:
    print(error.errno)
'
"""


@pytest.mark.parametrize("user", ["1000:1000", "0:0"])
def test_without_any_option_the_backend_landlock_works(daemon: Daemon, user: str) -> None:
    done = run(daemon, user=user, command=INSIDE)
    assert done.returncode == 0, done
    assert done.stdout.splitlines() == ["hidden", "kept", "status 7", "receipt", "state", "made", "111"], done


REPOSITORY = """\
mkdir repo ; cd repo ; git init -q . ; git config user.email a@b ; git config user.name n
echo KEY=hidden > .env ; echo .env > .gitignore ; printf 'all: prog\\nprog:\\n\\tcp /bin/true prog\\n' > Makefile
membrane -q --backend auto -- sh -euc '
    test -z "$(cat .env)" && echo hidden
    git add . ; git commit -qm one ; git checkout -qb two ; echo two > two ; git add . ; git commit -qm two
    git checkout -q - ; test ! -e two ; echo more >> Makefile ; git stash -q ; git stash pop -q
    git checkout -q Makefile
    git gc -q ; make -s ; ./prog ; mkdir -p node_modules/.bin ; cp prog node_modules/.bin ; node_modules/.bin/prog
    echo saved > .Makefile.swp ; mv .Makefile.swp Makefile ; cat Makefile
    echo x > .git/hooks/pre-commit || echo refused' 2>said
grep -c "auto took landlock" said
git log --oneline two | wc -l ; git fsck --no-dangling && ls .git/objects | grep membrane || echo clean
"""


@pytest.mark.parametrize("user", ["1000:1000", "0:0"])
@pytest.mark.needs_tool("git")
@pytest.mark.needs_tool("make")
def test_a_repository_with_a_hidden_file_is_worked_in_without_any_option(daemon: Daemon, user: str) -> None:
    done = run(daemon, user=user, command=REPOSITORY)
    assert done.returncode == 0, done
    assert done.stdout.split() == ["hidden", "saved", "refused", "1", "2", "clean"], done


ATTACKS = """\
cd {tree}
set -- -q -p no:cacheprovider -p no:hypothesispytest --basetemp=/home/agent/tests
python3 -m pytest "$@" tests/kernel/test_inside*.py -k '{rows}'
"""
ROWS = ("no_socket_call", "no_datagram", "an_address_that_changes", "an_exposed_port", "datagrams_of_no_rule")


@pytest.mark.parametrize("user", ["1000:1000", "0:0"])
def test_without_any_option_the_attacks_on_the_backend_landlock_fail(daemon: Daemon, user: str) -> None:
    """Each with its control, which succeeds in the same container."""
    tree = Path(__file__).resolve().parents[2]
    command = ATTACKS.format(tree=tree, rows=" or ".join(ROWS))
    done = run(daemon, f"--volume={tree}:{tree}:ro", user=user, command=command)
    assert done.returncode == 0, done
    assert " passed" in done.stdout and "skipped" not in done.stdout, done
