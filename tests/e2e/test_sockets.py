"""Unix sockets and ports: a real ssh-agent, real servers, and what must not cross (row U06 and its neighbours)."""

from __future__ import annotations

import array
import contextlib
import json
import os
import pwd
import select
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from world.box import Box

PATIENCE = 60.0  # seconds: a deadline, not a measurement


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path fits into sun_path (108 bytes)."""
    path = Path(tempfile.mkdtemp(prefix="mb-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def agent(box: Box, short: Path) -> Iterator[Path]:
    """An ssh-agent with two keys, ``one`` and ``two``, whose private halves the sandbox never sees."""
    path = short / "agent"
    server = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        assert select.select([server.stdout], [], [], PATIENCE)[0]
        assert b"SSH_AUTH_SOCK" in server.stdout.readline()
        for name in ("one", "two"):
            key = str(short / name)
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", key], check=True)
            subprocess.run(["ssh-add", "-q", key], env={"SSH_AUTH_SOCK": str(path)}, check=True)
        yield path
    finally:
        server.terminate()
        server.communicate(timeout=PATIENCE)


def keys(path: Path) -> str:
    """What ``ssh-add -l`` shows outside."""
    return subprocess.run(
        ["ssh-add", "-l"], env={"SSH_AUTH_SOCK": str(path)}, capture_output=True, text=True, check=False
    ).stdout


@contextlib.contextmanager
def serving(path: Path | str, serve: Callable[[socket.socket], Any]) -> Iterator[list[Any]]:
    """A unix server of the host; what ``serve`` returns for each connection is collected."""
    found: list[Any] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def run() -> None:
            while True:
                try:
                    connection = listener.accept()[0]
                except OSError:
                    return
                with connection:
                    connection.settimeout(PATIENCE)
                    found.append(serve(connection))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield found
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE)


# ---------------------------------------------------------------- ssh-agent


def test_a_commit_is_signed_through_the_agent(box: Box, agent: Path) -> None:
    box.allow(unix_sockets=[{"path": str(agent), "as": "ssh-agent"}])
    shutil.copy(agent.parent / "one.pub", box.workspace / "one.pub")
    listed = box.run("--", "ssh-add", "-l")
    assert listed.stdout == keys(agent) != ""
    git = "git -c user.name=a -c user.email=a@example.com -c gpg.format=ssh -c user.signingkey=$PWD/one.pub"
    done = box.run("--", "sh", "-c", f"git init -q r && {git} -C r commit -S -q --allow-empty -m x")
    assert done.returncode == 0, done
    signers = agent.parent / "signers"
    signers.write_text("a@example.com " + (agent.parent / "one.pub").read_text())
    git_config = ["-c", f"gpg.ssh.allowedSignersFile={signers}", "-c", "safe.directory=*"]
    verified = box.outside("git", *git_config, "-C", str(box.workspace / "r"), "verify-commit", "HEAD")
    assert "Good" in verified.stderr, verified


def test_only_named_keys_are_shown_and_sign(box: Box, agent: Path) -> None:
    one = keys(agent).splitlines()[0].split()[1]
    box.allow(unix_sockets=[{"path": str(agent), "as": "ssh-agent", "allow": [one]}])
    for name in ("one", "two"):
        shutil.copy(agent.parent / f"{name}.pub", box.workspace)
    script = (
        "ssh-add -l; for k in one two; do echo x | ssh-keygen -q -Y sign -n file -f $k.pub >/dev/null; echo $k $?; done"
    )
    outside = box.outside("sh", "-c", script, env={"SSH_AUTH_SOCK": str(agent)})
    assert outside.stdout.splitlines()[2:] == ["one 0", "two 0"], outside
    done = box.run(f"--events={box.events_path}", "--", "sh", "-c", script)
    lines = done.stdout.splitlines()
    assert lines[0].split()[1:3] == [one, "one"], done
    assert lines[1:] == ["one 0", "two 255"], done
    assert not box.events("AccessDenied")  # ssh-keygen does not ask for what is not listed

    ask = (
        "import base64, os, socket, sys\n"
        "def text(b): return len(b).to_bytes(4, 'big') + b\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(os.environ['SSH_AUTH_SOCK'])\n"
        "for name in sys.argv[1:]:\n"
        "    blob = base64.b64decode(open(name + '.pub').read().split()[1])\n"
        "    s.sendall(text(b'\\x0d' + text(blob) + text(b'data') + bytes(4))); print(s.recv(4096)[4])\n"
    )
    raw = ("/usr/bin/python3", "-c", ask, "one", "two")
    assert box.outside(*raw, env={"SSH_AUTH_SOCK": str(agent)}).stdout == "14\n14\n"
    assert box.run(f"--events={box.events_path}", "--", *raw).stdout == "14\n5\n"
    (refused,) = box.events("AccessDenied")
    assert refused["reason"] == "operation not allowed"
    assert (refused["access"]["operation"], refused["access"]["names"][1]) == ("sign", "two")


def test_keys_can_not_be_added_removed_or_locked(box: Box, agent: Path) -> None:
    before = keys(agent)
    box.allow(unix_sockets=[{"path": str(agent), "as": "ssh-agent"}])
    script = "ssh-keygen -q -t ed25519 -N '' -f k; ssh-add -q k; ssh-add -D; ssh-add -d k.pub; ssh-add -l | wc -l"
    done = box.run(f"--events={box.events_path}", "--", "sh", "-c", script)
    assert done.stdout == "2\n", done
    assert keys(agent) == before
    operations = {event["access"]["operation"] for event in box.events("AccessDenied")}
    assert {"add a key", "remove every key", "remove a key"} <= operations


def test_the_variable_names_the_socket_and_nothing_else_opens_it(box: Box, agent: Path) -> None:
    show = ("--", "sh", "-c", "echo ${SSH_AUTH_SOCK-none}; ssh-add -l >/dev/null 2>&1; echo $?")
    box.allow()
    assert box.run(*show, env={"SSH_AUTH_SOCK": str(agent)}).stdout == "none\n2\n"
    box.policy("presets: []\nunix_sockets: [{path: $SSH_AUTH_SOCK, as: ssh-agent}]")
    assert box.run(*show, env={"SSH_AUTH_SOCK": str(agent)}).stdout == f"{agent}\n0\n"


# ---------------------------------------------------------------- gpg-agent


def test_gpg_signs_with_the_named_key_alone(box: Box, short: Path) -> None:
    """The secret keys stay outside; what the agent shows and does beyond signing is forbidden."""
    home = {"GNUPGHOME": str(short / "gnupg"), "HOME": str(short), "PATH": os.environ["PATH"]}
    (short / "gnupg").mkdir(mode=0o700)

    def gpg(*arguments: str) -> str:
        return subprocess.run(
            arguments, env=home, capture_output=True, text=True, check=True, timeout=PATIENCE, cwd=box.workspace
        ).stdout

    try:
        for name in ("one", "two"):
            address = f"{name}@example.com"
            gpg("gpg", "--batch", "-q", "--passphrase", "", "--quick-gen-key", address, "ed25519", "sign", "never")
        shown = gpg("gpg", "--batch", "-q", "--with-colons", "--with-keygrip", "-K", "one@example.com")
        grip = next(line.split(":")[9] for line in shown.splitlines() if line.startswith("grp"))
        agent = gpg("gpgconf", "--list-dirs", "agent-socket").strip()
        gpg("gpg", "-q", "--export", "-o", str(box.workspace / "keys"))
        box.allow(unix_sockets=[{"path": agent, "as": "gpg-agent", "allow": [grip]}])
        script = (  # where gpg looks for the agent's socket depends on the machine: a file there redirects it
            "export GNUPGHOME=$HOME/g; mkdir -m 700 $GNUPGHOME; mkdir -p -m 700 /run/user/$(id -u)/gnupg\n"
            "s=$(gpgconf --list-dirs agent-socket); mkdir -p -m 700 $(dirname $s)\n"
            f"printf '%%Assuan%%\\nsocket={agent}\\n' > $s; gpg -q --import keys; echo text > f\n"
            "for k in one two; do gpg --batch -q -u $k@example.com -o $k.sig --detach-sign f; echo $k $?; done\n"
            "gpg-connect-agent killagent '/bye'; gpg-connect-agent 'keyinfo --list' /bye"
        )
        done = box.run(f"--events={box.events_path}", "--", "sh", "-c", script)
        lines = done.stdout.splitlines()
        assert lines[:2] == ["one 0", "two 2"], done
        assert all("Forbidden" in line for line in lines[2:]), done
        gpg("gpg", "--batch", "-q", "--verify", "one.sig", "f")
        assert {event["access"]["operation"] for event in box.events("AccessDenied")} == {
            "sign",
            "command killagent",
            "command keyinfo",
        }
        assert gpg("gpg-connect-agent", "--no-autostart", "getinfo version", "/bye")  # it was not ended
    finally:
        subprocess.run(["gpgconf", "--kill", "gpg-agent"], env=home, check=False, timeout=PATIENCE)


# ---------------------------------------------------------------- any socket

GREET = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print(s.recv(99))"


def test_the_host_s_view_has_none_of_its_sockets(box: Box) -> None:
    """A socket can be connected to through a read-only mount: what is bound when the run starts is covered."""
    # Below /tmp it would not be seen anyway.
    directory = Path(tempfile.mkdtemp(prefix=".mb-", dir=pwd.getpwuid(os.getuid()).pw_dir))
    path = directory / "service"
    server = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()\n"
        "print('up', flush=True)\n"
        "while c := s.accept()[0]: c.send(b'hello'); c.close()"
    )
    service = box.world.popen(["/usr/bin/python3", "-c", server, str(path)], stdout=subprocess.PIPE)
    try:
        assert service.stdout is not None
        assert service.stdout.readline() == b"up\n"
        os.chmod(path, 0o777)
        script = ("/usr/bin/python3", "-c", GREET, str(path))
        assert box.outside(*script).stdout == "b'hello'\n"
        refused = box.run("--view=host", "--", *script)
        assert refused.returncode == 1
        assert "PermissionError: [Errno 13]" in refused.stderr, refused
        assert box.run("--view=host", f"--unix-socket={path}", "--", *script).stdout == "b'hello'\n"
    finally:
        service.kill()
        service.communicate()
        shutil.rmtree(directory)


def test_descriptors_do_not_cross(box: Box, short: Path) -> None:
    """A service must not hand the sandbox a file of the host, nor get one of the sandbox's as its own (SCM_RIGHTS)."""

    def serve(connection: socket.socket) -> int:
        with open(short / "secret") as secret:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [secret.fileno()]))]
            connection.sendmsg([b"take"], rights)
        data, fds, _flags, _address = socket.recv_fds(connection, 99, 4)
        for fd in fds:
            os.close(fd)
        assert data == b"give"
        return len(fds)

    (short / "secret").write_text("of the host")
    script = (
        "import os, socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        "data, fds, flags, _ = socket.recv_fds(s, 99, 4); print(data, len(fds), [os.read(f, 99) for f in fds])\n"
        "try: socket.send_fds(s, [b'give'], [0])\n"
        "except PermissionError: s.send(b'give')\n"
        "s.shutdown(1); s.recv(1)"
    )
    path = str(short / "s")
    with serving(path, serve) as got:
        assert box.outside("/usr/bin/python3", "-c", script, path).stdout == "b'take' 1 [b'of the host']\n"
        box.allow(unix_sockets=[path])
        done = box.run("--", "/usr/bin/python3", "-c", script, path)
        assert done.stdout == "b'take' 0 []\n", done
    assert got == [1, 0]


LINGERS = """
import errno, socket, struct, sys
listener = socket.create_server(("127.0.0.1", 0))
passed = socket.create_connection(listener.getsockname())
passed.setblocking(False)
try:
    while True:
        passed.send(bytes(65536))
except BlockingIOError:
    passed.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 1 << 20))
service = socket.socket(socket.AF_UNIX)
service.connect(sys.argv[1])
try:
    print(socket.send_fds(service, [b"x"], [passed.fileno()]))
except OSError as error:
    print(errno.errorcode[error.errno])
"""


@pytest.mark.needs_kernel("sockets that take no descriptors")
@pytest.mark.parametrize("options", [(), ("--backend", "landlock")])
def test_a_descriptor_that_waits_when_it_is_closed_is_not_taken(
    box: Box, short: Path, options: tuple[str, ...]
) -> None:
    """The last one to close such a socket waits for its data to be read: nobody of ours may be that."""
    path = str(short / "s")
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(path)
        service.listen()
        assert box.outside("/usr/bin/python3", "-c", LINGERS, path).stdout == "1\n"
        box.allow(unix_sockets=[path])
        done = box.run(*options, "--", "/usr/bin/python3", "-c", LINGERS, path)
        assert done.stdout == "EPERM\n", done


def test_the_command_can_not_take_the_socket_away(box: Box, short: Path) -> None:
    path = str(short / "s")
    script = (
        "import os, sys\np = sys.argv[1]\n"
        "for f in (lambda: os.unlink(p), lambda: os.rename(p, p + 'x'), lambda: os.chmod(p, 0)):\n"
        "    try: f(); print('done')\n"
        "    except OSError as e: print(e.strerror)\n" + GREET
    )
    with serving(path, lambda connection: connection.send(b"hello")):
        box.allow(unix_sockets=[path])
        done = box.run("--", "/usr/bin/python3", "-c", script, path)
    assert done.stdout.splitlines() == [
        "Device or resource busy",
        "Device or resource busy",
        "Read-only file system",
        "b'hello'",
    ], done


def test_another_socket_in_the_same_place_is_not_opened(box: Box, short: Path) -> None:
    """What was planned is a socket without links: a link put there later, to another service, is refused."""
    path, other = str(short / "s"), str(short / "other")
    script = (
        "import sys\nfor go in sys.stdin:\n    try:\n"
        + "".join(
            f"        {part.strip()}\n" for part in GREET.replace("import socket, sys", "import socket").split(";")
        )
        + "    except OSError as e: print(e.strerror)\n    sys.stdout.flush()"
    )
    box.allow(unix_sockets=[path])
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with serving(other, lambda connection: connection.send(b"other")):
        with serving(path, lambda connection: connection.send(b"first")):
            process = box.popen(f"--events={box.events_path}", "--", "/usr/bin/python3", "-c", script, path, **pipes)
            assert process.stdin is not None
            assert process.stdout is not None

            def ask() -> str:
                process.stdin.write(b"go\n")
                process.stdin.flush()
                assert select.select([process.stdout], [], [], PATIENCE)[0]
                return str(process.stdout.readline().decode())

            assert ask() == "b'first'\n"
        os.unlink(path)
        os.symlink(other, path)
        assert ask() in ("b''\n", "Connection reset by peer\n")
        os.unlink(path)
        with serving(path, lambda connection: connection.send(b"again")):  # the service was restarted
            assert ask() == "b'again'\n"
        process.communicate(timeout=PATIENCE)
    errors = [event["error"] for event in box.events("ConnectionClosed")]
    assert len(errors) == 3
    assert (errors[0], errors[2]) == ("", "")
    assert errors[1] == "it is no socket any more"


def test_a_rule_that_can_not_be_bound_stops_the_run(box: Box, short: Path) -> None:
    (short / "file").write_text("")
    (short / "dangling").symlink_to(short / "nowhere")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(short / "stale"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(str(short / "dgram"))
        for name, cause in (
            ("file", "is not a socket"), ("nothing", "does not exist"), ("dangling", "does not exist"),
            ("dgram", "not a stream socket"), ("stale", "no program listens"),
        ):  # fmt: skip
            done = box.run(f"--unix-socket={short / name}", "--", "touch", "started")
            assert (done.returncode, cause in done.stderr) == (78, True), done
    assert not (box.workspace / "started").exists()


def test_large_transfers_and_half_closed_ends(box: Box, short: Path) -> None:
    def serve(connection: socket.socket) -> int:
        size = 0
        while part := connection.recv(1 << 16):
            size += len(part)
        for _ in range(64):
            connection.sendall(b"x" * (1 << 16))
        return size

    script = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        "for _ in range(64): s.sendall(b'y' * 65536)\n"
        "s.shutdown(1); n = 0\n"
        "while p := s.recv(1 << 16): n += len(p)\nprint(n)"
    )
    path = str(short / "s")
    with serving(path, serve) as got:
        box.allow(unix_sockets=[path])
        done = box.run("--", "/usr/bin/python3", "-c", script, path)
        assert done.stdout == f"{64 << 16}\n", done
    assert got == [64 << 16]


# ---------------------------------------------------------------- ports

CURL = ("curl", "-sS", "-m", "60")


def test_a_server_of_the_command_on_both_loopbacks(box: Box) -> None:
    """One that listens on IPv6 alone is reached as well, under another port."""
    (box.workspace / "page").write_text("of the sandbox\n")
    server = (
        "import functools, http.server as h, socket, sys, threading\n"
        "class Six(h.ThreadingHTTPServer): address_family = socket.AF_INET6\n"
        "for kind, at in ((h.ThreadingHTTPServer, ('127.0.0.1', 8125)), (Six, ('::1', 8126))):\n"
        "    threading.Thread(target=kind(at, h.SimpleHTTPRequestHandler).serve_forever, daemon=True).start()\n"
        "print('up', flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    box.allow(ports={"expose": ["8125", "8126:8127", "8128"]})
    process = box.popen(f"--events={box.events_path}", "--", "/usr/bin/python3", "-c", server, **pipes)
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], PATIENCE)[0]
    assert process.stdout.readline() == b"up\n"
    assert json.loads(box.run("ps", "--json").stdout)["sessions"][0]["ports"] == ["8125", "8127:8126", "8128"]
    for place in ("127.0.0.1:8125", "[::1]:8125", "127.0.0.1:8127", "[::1]:8127"):
        assert box.outside(*CURL, f"http://{place}/page").stdout == "of the sandbox\n", place
    assert box.outside(*CURL, "http://127.0.0.1:8126/page").returncode == 7  # that port is the sandbox's
    assert box.outside(*CURL, "http://127.0.0.1:8128/page").returncode in (7, 56)  # reset: nobody listens inside
    process.communicate(timeout=PATIENCE)
    opened = box.events("ConnectionOpened")
    assert {(event["protocol"], event["host"], event["port"]) for event in opened} == {
        ("exposed", "localhost", port) for port in (8125, 8126, 8128)
    }


def test_a_port_in_use_stops_the_run(box: Box) -> None:
    script = (
        "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()\n"
        "print(s.getsockname()[1], flush=True); input()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    holder = box.world.popen(["/usr/bin/python3", "-c", script], **pipes)
    assert holder.stdout is not None
    port = int(holder.stdout.readline())
    done = box.run(f"--expose={port}", "--", "touch", "started")
    holder.communicate(b"\n", timeout=PATIENCE)
    assert (done.returncode, "is in use" in done.stderr) == (78, True), done
    assert not (box.workspace / "started").exists()


def test_plan_and_check_show_sockets_and_ports(box: Box, short: Path) -> None:
    path = str(short / "s")
    with serving(path, lambda connection: connection.send(b"x")):
        box.allow(unix_sockets=[{"path": path, "as": "ssh-agent", "allow": ["k"]}], ports={"expose": [8125]})
        text = box.run("plan").stdout
        assert f"unix socket {path} as ssh-agent allow k" in text
        assert "expose port 8125 as 127.0.0.1:8125 and [::1]:8125" in text
        answer = json.loads(box.run("check", "--json", path).stdout)
    assert answer["verdict"] == "allow"
