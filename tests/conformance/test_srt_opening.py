"""Settings that open what is closed otherwise: allowAllUnixSockets, filesystem.disabled, allowGitConfig and
allowNestedUserNamespaces.  Each opens what it names and nothing beside."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from srt_box import SOCKET_CLIENT, SOCKET_SERVER, SrtBox, outcomes, srt_argv


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path fits into sun_path."""
    directory = Path(tempfile.mkdtemp(prefix="mb-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


# ---------------------------------------------------------------- allowAllUnixSockets


def test_all_unix_sockets_are_reached(box: SrtBox, short: Path) -> None:
    """In a readable directory, in the workspace, and in /run where the caller may make one there."""
    paths = [f"{short}/one", "here"]
    runtime = Path(f"/run/mb-{os.getpid()}.sock")
    if os.access("/run", os.W_OK):
        paths.append(str(runtime))
    server = box.world.popen(
        ["/usr/bin/python3", "-c", SOCKET_SERVER, *paths], cwd=box.work, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert server.stdout is not None and server.stdout.readline() == b"up\n"
        arguments = ("-s", str(box.settings_path), "--", "/usr/bin/python3", "-c", SOCKET_CLIENT, *paths)
        assert "ok" not in box.srt(*arguments).stdout
        box.settings({"allowAllUnixSockets": True})
        done = box.srt(*arguments)
        assert done.stdout.split() == ["ok"] * len(paths), done
        # Also where sockets are named beside it, even one that does not exist.
        box.settings({"allowAllUnixSockets": True, "allowUnixSockets": ["/nowhere/socket"]})
        assert box.srt(*arguments).stdout.split() == ["ok"] * len(paths)
    finally:
        server.communicate(timeout=60)
        runtime.unlink(missing_ok=True)


@pytest.mark.ours
def test_all_unix_sockets_open_nothing_else(box: SrtBox) -> None:
    box.settings({"allowAllUnixSockets": True})
    state = box.directory / "state"
    found = outcomes(
        box,
        {
            "vsock": 'python3 -c "import socket; socket.socket(socket.AF_VSOCK)"',
            "packet": 'python3 -c "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)"',
            "userns": "unshare -U true",
            "io_uring": 'python3 -c "import ctypes, os; l = ctypes.CDLL(None, use_errno=True);'
            ' raise SystemExit(l.syscall(425, 4, 0) < 0)"',
            "state": f"ls {state}",
            "outside": f"echo x > {box.outside}/f",
            "net": "curl -sS --noproxy '*' --max-time 20 http://192.0.2.1/",
            "control": "python3 -c 'import socket; socket.socket(socket.AF_UNIX)'",
        },
    )
    assert {name for name, (status, _out) in found.items() if status == 0} == {"control", "net"}, found
    assert "address not allowed" in found["net"][1]


@pytest.mark.ours
def test_all_unix_sockets_warn_once_of_docker(box: SrtBox) -> None:
    box.settings({"allowAllUnixSockets": True})
    lines = box.shell("true").stderr.splitlines()
    assert len(lines) == 1 and "docker" in lines[0] and "whole machine" in lines[0], lines


# ---------------------------------------------------------------- filesystem.disabled


@pytest.fixture
def disabled(box: SrtBox) -> SrtBox:
    box.settings(files={"disabled": True, "allowWrite": [], "denyRead": [str(box.outside)], "denyWrite": ["."]})
    return box


def test_disabled_writes_anywhere_the_caller_may(disabled: SrtBox) -> None:
    disabled.written(".bashrc"), disabled.written(".git", "hooks", "pre-commit")
    places = [disabled.outside / "f", disabled.home / "g", disabled.work / ".bashrc", disabled.work / ".vscode"]
    hook = disabled.work / ".git" / "hooks" / "pre-commit"
    line = "; ".join(f"echo NEW > {path}" for path in (*places, hook))
    done = disabled.shell(f"{line}; mv {disabled.work} {disabled.work}2 && mv {disabled.work}2 {disabled.work}")
    assert done.returncode == 0, done
    assert all(path.read_text() == "NEW\n" and path.stat().st_uid == os.getuid() for path in (*places, hook))


def test_disabled_ignores_deny_read(disabled: SrtBox) -> None:
    (disabled.outside / "f").write_text("READ")
    assert disabled.shell(f"cat {disabled.outside}/f").stdout == "READ"
    disabled.settings(files={"denyRead": [str(disabled.outside)]})  # positive control
    assert disabled.shell(f"cat {disabled.outside}/f").returncode != 0


@pytest.mark.parametrize("given", ["", "/var/tmp"])
def test_disabled_leaves_tmpdir_untouched(disabled: SrtBox, given: str) -> None:
    done = disabled.shell('echo "${TMPDIR-unset}"', env={"TMPDIR": given} if given else {})
    assert done.stdout == f"{given or 'unset'}\n"


def test_disabled_holds_the_network(disabled: SrtBox) -> None:
    ask = "curl -sS --max-time 20 -o /dev/null -w '%{http_code}\\n'"
    disabled.settings({"allowedDomains": ["example.com"]}, {"disabled": True})
    done = disabled.shell(f"{ask} http://example.com/; {ask} http://google.com/")
    assert done.stdout.split() == ["200", "403"], done


@pytest.mark.ours
def test_disabled_does_not_disarm_the_boundary(disabled: SrtBox) -> None:
    """Our own state, what runs us, the sockets and the kernel's settings stay closed."""
    state = disabled.directory / "state"
    disabled.shell("true")  # makes the state
    before = sorted(path.name for path in state.iterdir())
    (state / "config.yaml").write_text("{}\n")
    import membrane

    package = Path(membrane.__file__).parent
    found = outcomes(
        disabled,
        {
            "read the state": f"ls {state}",
            "read the configuration": f"cat {state}/config.yaml",
            "write the configuration": f"echo 'allow: [\"**\"]' > {state}/config.yaml",
            "rename the state": f"mv {state} {state}2",
            "rename above the state": f"mv {disabled.directory} {disabled.directory}2",
            "own package": f"echo > {package}/run/session.py",
            "replace the package": f"mv {package} {package}2",
            "library": f"echo > {os.path.dirname(os.__file__)}/os.py",
            "AF_UNIX": "python3 -c 'import socket; socket.socket(socket.AF_UNIX)'",
            "setting": 'v=$(cat /proc/sys/kernel/printk) && echo "$v" > /proc/sys/kernel/printk',
            "mount": "mount -t tmpfs t /mnt",
            "new name in /run": "echo x > /run/mb-new",
            "control": f"echo x > {disabled.directory}/control",
        },
    )
    assert {name for name, (status, _out) in found.items() if status == 0} == {"control"}, found
    assert (state / "config.yaml").read_text() == "{}\n" and before
    assert package.joinpath("run", "session.py").stat().st_size > 1


@pytest.mark.ours
def test_disabled_hides_the_key_of_the_authority(disabled: SrtBox) -> None:
    """A rule of ours, not of the settings' lists, so it holds."""
    certificate, key = disabled.home / "ca.pem", disabled.home / "ca.key"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=of the caller"]
    subprocess.run(
        [*make, "-addext", "basicConstraints=critical,CA:TRUE", "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    terminate = {"caCertPath": str(certificate), "caKeyPath": str(key)}
    disabled.settings({"allowedDomains": ["example.com"], "tlsTerminate": terminate}, {"disabled": True})
    done = disabled.shell(f"head -n 1 {certificate}; cat {key}; mv {key} {key}2; mv {disabled.home} {disabled.home}2")
    assert done.stdout == "-----BEGIN CERTIFICATE-----\n" and done.returncode != 0, done
    assert key.exists()


@pytest.mark.ours
def test_disabled_warns_in_one_line(disabled: SrtBox) -> None:
    lines = disabled.shell("true").stderr.splitlines()
    assert len(lines) == 1 and "filesystem.disabled" in lines[0] and "only the network rules hold" in lines[0], lines


# ---------------------------------------------------------------- allowGitConfig


def test_allow_git_config_true_frees_config_not_hooks(box: SrtBox) -> None:
    subprocess.run(["git", "init", "-q", "."], cwd=box.work, check=True)
    (box.work / ".git" / "hooks" / "pre-push").write_text("ORIGINAL")
    lines = {"config": "git config user.name changed", "hook": "echo x > .git/hooks/pre-push"}
    assert all(status for status, _out in outcomes(box, lines).values())
    box.settings(files={"allowGitConfig": True})
    assert {name for name, (status, _) in outcomes(box, lines).items() if status == 0} == {"config"}
    assert "changed" in (box.work / ".git" / "config").read_text()


@pytest.mark.ours
def test_allow_git_config_frees_that_of_every_repository_and_nothing_beside(box: SrtBox) -> None:
    subprocess.run(["git", "init", "-q", "."], cwd=box.work, check=True)
    subprocess.run(["git", "init", "-q", "nested/repo"], cwd=box.work, check=True)
    module = box.work / ".git" / "modules" / "m"
    for name in ("objects", "refs", "hooks"):
        (module / name).mkdir(parents=True)
    (module / "HEAD").write_text("ref: refs/heads/main\n")
    for path in (module / "config", box.work / ".git" / "config.worktree", box.work / ".git" / "hooks" / "pre-push"):
        path.write_text("ORIGINAL")
    lines = {
        "config": "git config user.name changed",
        "nested config": "git -C nested/repo config user.name changed",
        "hook": "echo x > .git/hooks/pre-push",
        "new hook": "echo x > .git/hooks/post-checkout",
        "config of the worktree": "echo x > .git/config.worktree",
        "config of a submodule": "echo x > .git/modules/m/config",
        "the directory": "mv .git g",
        "remote": "git remote add origin https://example.com/x.git",
    }
    assert {name for name, (status, _) in outcomes(box, lines).items() if status == 0} == set()
    box.settings(files={"allowGitConfig": True})
    found = outcomes(box, lines)
    assert {name for name, (status, _) in found.items() if status == 0} == {"config", "nested config", "remote"}, found
    assert "changed" in (box.work / ".git" / "config").read_text()


@pytest.mark.ours
def test_allow_git_config_does_not_free_a_link(box: SrtBox) -> None:
    """A config that is a link leads elsewhere; what it leads to is protected with it."""
    subprocess.run(["git", "init", "-q", "."], cwd=box.work, check=True)
    (box.work / ".git" / "config").rename(box.work / "elsewhere")
    (box.work / ".git" / "config").symlink_to("../elsewhere")
    box.settings(files={"allowGitConfig": True})
    done = box.shell("ln -sf /tmp/x .git/config; echo x >> elsewhere")
    assert done.returncode != 0 and "Read-only" in done.stderr, done


# ---------------------------------------------------------------- allowNestedUserNamespaces

_NAMESPACES = {
    "user": "unshare -U true",
    "net": "unshare -Un true",
    "pid": "unshare -Upf true",
    "mount": "unshare -Um true",
    "umount": "unshare -U umount {hidden}",
    "bind over": "unshare -U mount --bind /usr {hidden}",
    "setns": "unshare -U nsenter -t $$ -n true",
}


@pytest.mark.ours
def test_nested_user_namespaces_open_no_rule(box: SrtBox) -> None:
    """User namespaces work; with them nothing is mounted, unmounted, read or reached that was not before."""
    hidden, file = box.directory / "hidden", box.work / "secret.pem"
    hidden.mkdir()
    (hidden / "f").write_text("HIDDEN")
    file.write_text("HIDDEN")
    files = {"denyRead": [str(hidden), "*.pem"], "denyWrite": ["fixed"]}
    box.written("fixed")
    lines = {name: line.format(hidden=hidden) for name, line in _NAMESPACES.items()}
    box.settings(files=files)
    assert {name for name, (status, _) in outcomes(box, lines).items() if status == 0} == set()
    box.settings(files=files, allowNestedUserNamespaces=True)
    # With every capability of a namespace of its own: files of mode 000 can be opened, and the masks are empty.
    mapped = "unshare -U --map-current-user --keep-caps" if os.getuid() else "unshare -U"
    lines |= {
        "read the hidden directory": f"{mapped} cat {hidden}/f",
        "read the hidden file": f"{mapped} grep -q HIDDEN secret.pem",
        "write the fixed file": f"{mapped} sh -c 'echo x > fixed'",
        "write outside": f"{mapped} sh -c 'echo x > {box.outside}/f'",
        "kernel setting": f"{mapped} sh -c 'echo 1 > /proc/sys/kernel/printk'",
        "device": f"{mapped} mknod {box.work}/d c 1 3",
        "no way out": "unshare -Un curl -sS --max-time 5 http://192.0.2.1/",
    }
    found = outcomes(box, lines)
    assert {name for name, (status, _) in found.items() if status == 0} == {"user", "net", "pid"}, found
    assert not (box.outside / "f").exists() and (box.work / "fixed").read_text() == "ORIGINAL"


@pytest.mark.ours
def test_nested_user_namespace_sees_a_mask_that_comes_later(box: SrtBox) -> None:
    """Why a mount namespace of its own stays refused: masks are mounted into the sandbox's."""
    box.settings(files={"denyRead": ["*.pem"]}, allowNestedUserNamespaces=True)
    script = (
        "import os, time\n"
        "os.unshare(os.CLONE_NEWUSER) if hasattr(os, 'unshare') else "
        "__import__('ctypes').CDLL(None, use_errno=True).unshare(0x10000000)\n"
        "print('ready', flush=True); input()\n"
        "deadline = time.monotonic() + 60\n"
        "while time.monotonic() < deadline:\n"
        "    try: shown = open('late.pem').read()\n"
        "    except PermissionError: shown = ''\n"
        "    if shown != 'LATE': print('masked'); break\n"
        "    time.sleep(0.01)"
    )
    argv = ["-s", str(box.settings_path), "/usr/bin/python3", "-c", script]
    running = box.popen(*argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert running.stdout is not None and running.stdout.readline() == b"ready\n"
    (box.work / "late.pem").write_text("LATE")  # from outside: the command itself may not make it
    assert running.communicate(b"\n", timeout=60)[0] == b"masked\n"


# ---------------------------------------------------------------- denied files that are replaced


@pytest.mark.ours
def test_a_denied_file_that_is_replaced_outside_stays_hidden(box: SrtBox) -> None:
    """The mount over it goes with the file; the new one gets its own."""
    secret = box.outside / "secret"
    secret.write_text("OLD")
    box.settings(files={"denyRead": [str(secret)]})
    script = (
        "import sys, time\n"
        "def read():\n"
        "    try: return open(sys.argv[1]).read()\n"
        "    except OSError as error: return type(error).__name__\n"
        "print(read(), flush=True); sys.stdin.readline()\n"
        "deadline = time.monotonic() + 60\n"
        "while (seen := read()) != 'PermissionError' and time.monotonic() < deadline: time.sleep(0.01)\n"
        "print(seen, flush=True)"
    )
    arguments = ("-s", str(box.settings_path), "/usr/bin/python3", "-c", script, str(secret))
    with box.popen(*arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"PermissionError\n"
        fresh = box.outside / "fresh"
        fresh.write_text("NEW")
        fresh.rename(secret)
        process.stdin.write(b"go\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"PermissionError\n"


@pytest.mark.ours
def test_nested_user_namespaces_are_enough_for_chromium(box: SrtBox) -> None:
    """Its own sandbox, as a plain user; root has no id that the kernel would map into a namespace of its own."""
    box.settings({"allowAllUnixSockets": True}, allowNestedUserNamespaces=True)
    if os.getuid() == 0:
        assert "Operation not permitted" in box.shell("unshare -Ur true").stderr
        return
    page = "chromium --headless=new --disable-gpu --user-data-dir=$PWD/profile --dump-dom 'data:text/html,<p>shown'"
    assert "<p>shown</p>" in box.shell(f"HOME=$PWD {page}").stdout
    box.settings({"allowAllUnixSockets": True})
    refused = box.shell(f"HOME=$PWD {page}")
    assert "<p>shown</p>" not in refused.stdout and "No usable sandbox" in refused.stderr, refused


# ---------------------------------------------------------------- allowUnixSockets of services that do not run

# What a service at each path says: "hello", or nothing when nobody is there.
GREETED = """
import socket, sys
def greeted(path):
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            return client.recv(100).decode()
    except OSError:
        return ""
print([greeted(path) for path in sys.argv[1:]], flush=True)
"""
GREETER = """
import socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
print("up", flush=True)
server.accept()[0].send(b"hello")
sys.stdin.read()
"""


@pytest.mark.ours
def test_sockets_that_can_not_be_opened_are_warnings(box: SrtBox, short: Path) -> None:
    """The README's example on a machine without Docker: absent, dead, a file; the command runs, the others are shut."""
    dead, file, writable = short / "dead", short / "file", short / "writable"
    writable.mkdir()
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(dead))
    file.write_text("")
    inside = [f"{writable}/s", f"{box.work}/s"]  # the command can replace what is there
    sockets = ["/var/run/mb-absent.sock", f"{short}/absent", str(dead), str(file), *inside]
    box.settings({"allowUnixSockets": sockets}, {"allowWrite": [str(box.work), str(writable)]})
    paths = ["/var/run/mb-absent.sock", str(dead)]
    done = box.srt("-s", str(box.settings_path), "--", "/usr/bin/python3", "-c", GREETED, *paths)
    assert (done.returncode, done.stdout) == (0, "['', '']\n"), done
    assert "/var/run/mb-absent.sock: it does not exist yet; it opens when its service starts" in done.stderr
    assert f"{short}/absent is left out: it does not exist" in done.stderr
    assert f"{dead} is left out: no program listens on it" in done.stderr
    assert f"{file} is left out: it is not a socket" in done.stderr
    for path in inside:
        assert f"{path} is left out: the command can write {os.path.dirname(path)}, and replace it" in done.stderr


@pytest.mark.ours
@pytest.mark.as_root
def test_a_socket_that_the_sandboxs_root_cannot_reach_is_a_warning(box: SrtBox, short: Path) -> None:
    """Another user's, in a directory that he closed, for root as containers have it; all capabilities reach it."""
    closed, path = short / "closed", short / "closed" / "s"
    closed.mkdir(mode=0o700)
    server = box.world.popen(
        ["/usr/bin/python3", "-c", GREETER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert server.stdout is not None and server.stdout.readline() == b"up\n"
        os.chown(closed, 65534, 65534)
        box.settings({"allowUnixSockets": [str(path)]})
        argv = ["-s", str(box.settings_path), "--", "/usr/bin/python3", "-c", GREETED, str(path)]
        bare = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", *srt_argv(), *argv]
        done = box.world.run(bare, cwd=box.work, env=box.environment())
        assert (done.returncode, done.stdout) == (0, "['']\n"), done
        assert f"{path} is left out: the sandbox's root may not search a directory above it" in done.stderr
        done = box.srt(*argv)
        assert done.returncode == 0 and "left out" not in done.stderr, done
    finally:
        server.kill()
        server.communicate()


@pytest.mark.ours
@pytest.mark.as_root  # who may make a socket in /run
@pytest.mark.parametrize("there", ["absent", "dead"])
def test_a_socket_of_run_opens_when_its_service_starts(box: SrtBox, there: str) -> None:
    """The command waits on a pipe; the service starts meanwhile, and the same path then leads to it."""
    path = f"/run/mb-{os.getpid()}-{there}.sock"
    if there == "dead":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path)
    box.settings({"allowUnixSockets": [path]})
    client = f"{GREETED}\nsys.stdin.readline()\nprint([greeted(path) for path in sys.argv[1:]])"
    argv = ["-s", str(box.settings_path), "--", "/usr/bin/python3", "-c", client, path]
    running = box.popen(*argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert running.stdout is not None and running.stdin is not None
    assert running.stdout.readline() == b"['']\n"
    Path(path).unlink(missing_ok=True)
    server = box.world.popen(
        ["/usr/bin/python3", "-c", GREETER, path], cwd=box.work, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert server.stdout is not None and server.stdout.readline() == b"up\n"
        assert running.communicate(b"\n", timeout=60)[0] == b"['hello']\n"
    finally:
        server.kill()
        server.communicate(timeout=60)
        Path(path).unlink(missing_ok=True)
