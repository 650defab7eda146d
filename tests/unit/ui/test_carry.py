"""The outer half of ``--backend docker`` as macOS has it: without a Linux call, against a client that records."""

from __future__ import annotations

import json
import marshal
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import membrane
from membrane.errors import HostError
from membrane.policy import codec
from membrane.run.installed import VERSION
from membrane.run.registry import SessionRecord
from membrane.ui import carry, containers
from membrane.ui.carried import Frame

# What CPython on macOS does not have, of what CPython on Linux has.
DARWIN = """
import os, posix, select, sys, _socket
for module, names in {
    os: ("O_PATH", "O_TMPFILE", "pipe2", "memfd_create", "pidfd_open", "setns", "unshare", "sched_getaffinity",
         "getxattr", "setxattr", "splice", "eventfd", "timerfd_create", "copy_file_range", "getrandom", "prctl",
         "setresuid", "setresgid", "mkfifoat", "P_PIDFD", "GRND_NONBLOCK", "MFD_CLOEXEC"),
    select: ("epoll", "EPOLLIN", "EPOLLOUT", "EPOLL_CLOEXEC"),
    _socket: ("AF_NETLINK", "AF_PACKET", "AF_VSOCK", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "SO_PEERCRED"),
}.items():
    for name in names:
        vars(module).pop(name, None)
        vars(posix).pop(name, None)
sys.platform = "darwin"
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name in ("ctypes", "_ctypes") or name.startswith(("membrane.bpf.")):
            raise ImportError(f"{name} is Linux's", name=name)
sys.meta_path.insert(0, Blocked())
real_open = open
def checked(path, *rest, **more):
    assert not str(path).startswith(("/proc", "/sys")), path
    return real_open(path, *rest, **more)
import builtins
builtins.open = checked
from membrane.ui.cli import main
sys.exit(main(sys.argv[1:]))
"""
CLIENT = """#!/bin/sh
case $1 in
image) echo null ;;
context) echo unix://$HOME/.colima/default/docker.sock ;;
run)
    printf '%s\\n' "$@" > "$RECORD/run"
    for word; do case $word in --name=*) name=${word#--name=} ;; esac; done
    touch "$MEMBRANE_HOME/carried/$name.ready"
    until [ -e "$RECORD/whole" ]; do sleep 0.02; done
    exit 5 ;;
exec)
    head -c 8 > "$RECORD/size"
    head -c $(od -An -tu1 "$RECORD/size" | { read a b c d e f g h; echo $((g * 256 + h)); }) > "$RECORD/frame"
    echo; touch "$RECORD/whole"; cat ;;
rm) touch "$RECORD/whole" ;;
esac
"""


class Mac:
    """A home with a client of Docker that records, and the command line in it."""

    def __init__(self, home: Path) -> None:
        self.home, self.workspace, self.record = home, home / "work", home / "record"
        for path in (home / "bin", self.workspace, self.record):
            path.mkdir(parents=True)
        self.client(CLIENT)
        self.environ = {
            "HOME": str(home), "MEMBRANE_HOME": str(home / ".membrane"), "RECORD": str(self.record), "LANG": "C.UTF-8",
            "PATH": f"{home}/bin:/usr/bin:/bin", "PYTHONPATH": str(Path(membrane.__file__).parents[1]), "REAL": "value",
        }  # fmt: skip

    def client(self, text: str) -> None:
        (self.home / "bin" / "docker").write_text(text)
        (self.home / "bin" / "docker").chmod(0o755)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-c", DARWIN, *words], cwd=self.workspace, env=self.environ, text=True,
            capture_output=True, stdin=subprocess.DEVNULL, check=False, timeout=120,
        )  # fmt: skip


@pytest.fixture
def mac(tmp_path: Path) -> Mac:
    return Mac(Path(os.path.realpath(tmp_path)) / "home")


def test_a_run_is_carried_by_itself(mac: Mac) -> None:
    (mac.workspace / ".membrane.yaml").write_text(
        "secrets: [{name: KEY, from: 'env:REAL', to: ['https://example.com/'], header: x-key}]\n"
    )
    done = mac.run("--trust-workspace", "-q", "-a", "example.com", "--", "some", "command")
    assert (done.returncode, done.stderr) == (5, ""), done
    words = (mac.record / "run").read_text().splitlines()
    assert words[0] == "run" and "--workdir=/" in words and "--cap-drop=ALL" in words
    assert not any("value" in word or "some" in word for word in words)
    frame = marshal.loads((mac.record / "frame").read_bytes())
    release, what, workspace, command, options, environ, policy, secrets, places, services, normalises, exposed = frame
    assert what == "run"
    assert (services, normalises, exposed) == ((), True, ())
    assert (release, workspace, command) == (VERSION, str(mac.workspace), ("some", "command"))
    assert dict(options)["quiet"] is True and secrets == (b"value",)
    assert places == ((str(mac.workspace), mac.workspace.stat().st_ino),)
    assert dict(environ) == {"LANG": "C.UTF-8"}
    carried = codec.restore(policy)
    assert carried.backend == "docker" and carried.secrets[0].source == "given:0"
    assert [rule.text for rule in carried.allow if rule.origin.level == "command line"] == ["example.com"]
    profile = next(word for word in words if "seccomp=" in word).partition("seccomp=")[2]
    assert Path(profile).read_text() == containers.text("seccomp")


def test_a_tree_below_the_workspace_is_compared_inside_though_it_is_read_only(mac: Mac) -> None:
    for path in (mac.workspace / "kept", mac.home / "other"):
        path.mkdir()
    mounts = [f"--mount={mac.workspace}/kept:ro", f"--mount={mac.home}/other:ro"]
    done = mac.run("-q", *mounts, "--", "x")
    assert done.returncode == 5, done
    places = marshal.loads((mac.record / "frame").read_bytes())[8]
    assert places == tuple((str(path), path.stat().st_ino) for path in (mac.workspace, mac.workspace / "kept"))


def test_services_of_the_machine_are_looked_at_outside_and_named_inside(mac: Mac) -> None:
    with socket.socket(socket.AF_UNIX) as agent, socket.create_server(("127.0.0.1", 0)) as taken:
        agent.bind(str(mac.home / "agent"))
        agent.listen()
        (mac.home / "plain").touch()
        port = taken.getsockname()[1]
        files = ("--events", str(mac.home / "events"), "--session-id-file=id", "--trace-log=../log.gz")
        words = (f"--unix-socket={mac.home}/agent", "--connect=5432", "-a", "host.internal:8000-8001", *files)
        done = mac.run("-q", *words, "--", "x")
        assert (done.returncode, done.stderr) == (5, ""), done
        frame = marshal.loads((mac.record / "frame").read_bytes())
        assert frame[9][:4] == (
            ("socket", f"{mac.home}/agent"), ("port", "5432"), ("port", "8000"), ("port", "8001"),
        )  # fmt: skip
        options = dict(frame[4])
        assert [where for kind, where in frame[9] if kind == "file"] == [
            options[name] for name in ("events", "session_id_file", "trace_log")
        ]
        assert options["events"] == "/run/membrane-events" and options["trace_log"].endswith(".log.gz")
        assert (mac.home / "events").exists() and (mac.workspace / "id").exists() and (mac.home / "log.gz").exists()
        refused = {
            f"--unix-socket={mac.home}/plain": "is not a socket",
            f"--unix-socket={mac.home}/gone": "No such file",
            f"--expose={port}": "the port is in use on this machine",
        }
        for word, cause in refused.items():
            done = mac.run(word, "--", "x")
            assert done.returncode == 78 and cause in done.stderr, done


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--backend=landlock", "--", "x"), 78, "backend landlock needs Linux"),
        (("--containers", "--", "x"), 78, "does not carry containers: nested"),
        (("--arg=--privileged", "--", "x"), 78, "'--privileged' is an argument of docker run without a key here"),
        (("--version",), 0, ""),
        (("--help",), 0, ""),
        (("setup", "container", "dockerfile"), 0, ""),
        (("config", "show"), 0, ""),
        (("doctor",), 0, ""),
        (("gc",), 0, ""),
    ],
)  # fmt: skip
def test_the_rest_of_the_command_line(mac: Mac, words: tuple[str, ...], status: int, said: str) -> None:
    done = mac.run(*words)
    assert done.returncode == status, done
    assert said in done.stderr and "internal error" not in done.stderr


def test_a_file_is_no_source_of_a_secret_where_nothing_can_prove_who_wrote_it(mac: Mac) -> None:
    (mac.workspace / ".membrane.yaml").write_text(
        "secrets: [{name: KEY, from: 'file:/etc/hostname', to: ['https://example.com/'], header: x-key}]\n"
    )
    done = mac.run("--trust-workspace", "--", "x")
    assert done.returncode == 78 and "a secret from a file needs Linux" in done.stderr, done


def test_what_is_missing_is_named_with_colima(mac: Mac) -> None:
    cannot = "#!/bin/sh\necho 'Cannot connect to the Docker daemon at unix:///x' >&2; exit 1\n"
    for client, cause, fix in (
        (cannot, "Cannot connect to the Docker daemon", "colima start --mount $HOME:w --mount /Volumes/src:w"),
        ("#!/bin/sh\necho 'Error: No such image: x' >&2; exit 1\n", "no image membrane-carrier", "docker build -t"),
    ):
        mac.client(client)
        done = mac.run("--", "x")
        assert done.returncode == 125 and cause in done.stderr and fix in done.stderr, done
        doctor = mac.run("doctor")
        assert doctor.returncode == 1 and cause in doctor.stdout and fix in doctor.stdout, doctor


def test_the_repository_around_the_workspace_is_a_tree(mac: Mac) -> None:
    (mac.home / "repo" / ".git").mkdir(parents=True)
    mac.workspace.rename(mac.home / "repo" / "sub")
    mac.workspace = mac.home / "repo" / "sub"
    (mac.workspace / ".membrane.yaml").write_text("mounts: [{type: git-root, mode: ro}]\n")
    assert mac.run("-q", "--trust-workspace", "--", "x").returncode == 5
    words = (mac.record / "run").read_text().splitlines()
    mounts = [word for word in words if f"target={mac.home}/repo" in word]
    assert mounts == [
        f"--mount=type=bind,source={mac.home}/repo,target={mac.home}/repo,readonly",
        f"--mount=type=bind,source={mac.workspace},target={mac.workspace}",
    ]


def test_an_exec_that_fails_at_first_is_tried_again(mac: Mac) -> None:
    mac.client(CLIENT.replace("exec)\n", 'exec)\n    [ -e "$RECORD/tried" ] || { touch "$RECORD/tried"; exit 1; }\n'))
    done = mac.run("-q", "--", "x")
    assert (done.returncode, done.stderr) == (5, "") and (mac.record / "tried").exists(), done


def test_a_container_that_takes_no_run_is_removed(mac: Mac) -> None:
    mac.client(CLIENT.replace("exec)\n", "exec) exit 1\n"))
    done = mac.run("-q", "--", "x")
    assert done.returncode == 5 and "cannot hand the run to its container: docker exec failed" in done.stderr, done


@pytest.mark.parametrize("ends", [False, True])
def test_an_engine_that_takes_nothing_is_not_waited_for_without_an_end(
    mac: Mac, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """More than a pipe holds, which nobody reads: until the engine's patience is over, or its ``run`` has ended."""
    mac.client("#!/bin/sh\nexec sleep 1000\n")
    large = Frame(VERSION, "run", "/work", (), (), (), b"x" * 1_000_000, (), ())
    alive, lives = os.pipe()
    if ends:
        os.close(lives)
    else:
        monkeypatch.setattr(carry, "PATIENCE", 0.2)
    assert carry._try(f"{mac.home}/bin/docker", large, "membrane-0", alive) is None
    os.close(alive)
    if not ends:
        os.close(lives)
        found = SessionRecord("0" * 16, 1, 0.0, str(mac.workspace), (), "", 0, 0, 0, container="docker:membrane-0")
        monkeypatch.setenv("PATH", f"{mac.home}/bin:/usr/bin:/bin")
        with pytest.raises(HostError, match="has no answer"):
            carry.join(found, ["true"], str(mac.home / ".membrane"))


def test_an_engine_of_another_machine_is_refused(mac: Mac) -> None:
    mac.environ["DOCKER_HOST"] = "unix:///x"
    assert mac.run("-q", "--arg=--cpus=2", "--", "x").returncode == 5  # the control
    assert "--cpus=2" in (mac.record / "run").read_text().splitlines()
    for given in ("tcp://127.0.0.1:2375", "ssh://me@there"):
        mac.environ["DOCKER_HOST"] = given
        done = mac.run("--", "x")
        assert done.returncode == 125 and f"on another machine ({given})" in done.stderr, done
    del mac.environ["DOCKER_HOST"]
    mac.client(CLIENT.replace("unix://$HOME/.colima/default/docker.sock", "ssh://there"))
    done = mac.run("--", "x")
    assert done.returncode == 125 and "on another machine (ssh://there)" in done.stderr, done


def test_a_client_that_a_command_could_have_made_is_not_executed(mac: Mac) -> None:
    (mac.workspace / "bin").mkdir()
    planted = mac.workspace / "bin" / "docker"
    planted.write_text(f"#!/bin/sh\ntouch {mac.record}/planted\n")
    planted.chmod(0o755)
    (mac.home / "linked").symlink_to(mac.workspace / "bin")
    own = mac.environ["PATH"]
    mac.environ["PATH"] = f"{mac.workspace}/bin:{mac.home}/linked:bin:{own}"
    assert mac.run("--", "x").returncode == 5
    mac.run("gc"), mac.run("doctor")
    assert not (mac.record / "planted").exists()
    mac.environ["PATH"] = f"{mac.workspace}/bin"
    done = mac.run("--", "x")
    assert done.returncode == 125 and "no docker command outside of what commands can write" in done.stderr
    subprocess.run([planted], check=True)  # the control
    assert (mac.record / "planted").exists()


@pytest.mark.parametrize(
    ("own", "path"),
    [
        ("{work}/bin:bin:{work}/../.membrane/bin::/opt/bin:/usr/bin", "/opt/bin:/usr/bin"),
        ("bin", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("/opt/bin", "/opt/bin"),  # the control
        ("", ""),  # the engine's own
    ],
)
def test_the_supervisor_is_not_looked_up_where_a_command_may_write(mac: Mac, own: str, path: str) -> None:
    own = own.format(work=mac.workspace)
    said = json.dumps(["A=1", f"PATH={own}"]) if own else "null"
    mac.client(CLIENT.replace("echo null", f"echo '{said}'"))
    assert mac.run("-q", "--", "x").returncode == 5
    words = (mac.record / "run").read_text().splitlines()
    assert [word for word in words if word.startswith("--env=PATH")] == ([f"--env=PATH={path}"] if path else [])
    environ = dict(marshal.loads((mac.record / "frame").read_bytes())[5])
    assert environ.get("PATH", "") == own  # of the command nothing is taken


def test_what_a_client_starts_by_name_is_none_that_a_command_could_have_made(mac: Mac) -> None:
    """As podman starts newuidmap(1), and docker its plugins."""
    mac.client(CLIENT.replace("#!/bin/sh\n", "#!/bin/sh\nhelper\n"))
    for place, said in ((mac.workspace / "bin", "planted"), (mac.home / "bin", "own")):
        place.mkdir(exist_ok=True)
        (place / "helper").write_text(f"#!/bin/sh\ntouch {mac.record}/{said}\n")
        (place / "helper").chmod(0o755)
    mac.environ["PATH"] = f"{mac.workspace}/bin:{mac.environ['PATH']}"
    assert mac.run("--", "x").returncode == 5
    mac.run("gc"), mac.run("doctor")
    assert not (mac.record / "planted").exists()
    assert (mac.record / "own").exists()  # the control: beside the client it is found


def test_a_file_system_that_takes_one_case_for_another_is_known(tmp_path: Path) -> None:
    def folding(path: str) -> os.stat_result:
        """lstat(2) as on such a file system."""
        head, _, name = path.rpartition("/")
        found = {entry.casefold(): entry for entry in os.listdir(head)}
        return os.lstat(f"{head}/{found.get(name.casefold(), name)}")

    work = tmp_path / "work"
    (work / "1").mkdir(parents=True)
    assert carry.folds(str(work), folding) and not carry.folds(str(work))
    assert not carry.folds(str(work / "1"), folding)  # nothing with a letter is there to try
    (work / "1" / ".env").touch()
    assert carry.folds(str(work / "1"), folding) and not carry.folds(str(work / "1"))
    (work / "1" / ".ENV").hardlink_to(work / "1" / ".env")
    assert not carry.folds(str(work / "1"))
