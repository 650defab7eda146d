"""``--backend docker`` with a real daemon: the run, its streams, its record, its end, and attacks from inside."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from world import carrier
from world.docker import PATIENCE, Daemon, until

from free_ports import free_port
from membrane.plan.carrier import LABEL
from started import Started

pytestmark = [
    pytest.mark.as_root,  # who may start a daemon
    pytest.mark.needs_tool("dockerd"),
    pytest.mark.needs_tool("busybox"),
    pytest.mark.needs_kernel("cgroups for containers"),
]
GATEWAY = "10.88.77.1"
VALUE = "sk-0123456789abcdefghijklmnopqrstuvwxyz"
USERS = (0, 1000)
ONE = pytest.mark.parametrize("own", [1000], indirect=True)  # a container costs seconds here
SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write(("x-key " + str(self.headers["x-key"])).encode()[::-1])
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer((sys.argv[1], 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


MODEL = """
import http.server, json, sys
from world.model_apis import messages
class Handler(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.send_response(200); self.end_headers()
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}")
        if not self.path.startswith("/v1/messages") or "count" in self.path:
            self.send_response(404); self.end_headers(); return
        kind, body = messages(asked, lambda **call: print(json.dumps(call), flush=True))
        self.send_response(200); self.send_header("content-type", kind); self.end_headers()
        for part in body:
            self.wfile.write(part)
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer((sys.argv[1], 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[Daemon]:
    directory = Path(tempfile.mkdtemp(prefix="mb-carry-"))
    directory.chmod(0o711)
    made = Daemon(directory, f"{GATEWAY}/24")
    try:
        made.socket.chmod(0o666)
        carrier.build(made)
        yield made
    finally:
        made.close()
        shutil.rmtree(directory)


class Home:
    """One user's home with a workspace, and the Membrane that is run in it."""

    def __init__(self, engine: Daemon, uid: int) -> None:
        self.engine, self.uid = engine, uid
        self.home = Path(tempfile.mkdtemp(prefix="home-", dir=engine.directory))
        self.workspace = self.home / "src" / "a, b"
        self.workspace.mkdir(parents=True)
        (self.home / "private").write_text("of the host")
        self.state = self.home / ".membrane"
        for path in (self.home, self.home / "src", self.workspace, self.home / "private"):
            os.chown(path, uid, uid)
        self.environ = {
            "HOME": str(self.home),
            "PATH": os.environ["PATH"],
            "DOCKER_HOST": f"unix://{engine.socket}",
            "LANG": "C.UTF-8",
        }

    def start(self, *words: str, backend: bool = True, **more: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", "membrane", *(["--backend=docker"] if backend else []), *words]
        more = {"env": self.environ, "stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE, **more}
        return Started(
            command, cwd=self.workspace, text=True, stdout=subprocess.PIPE, user=self.uid, group=self.uid,
            extra_groups=[], **more,
        )  # fmt: skip

    def run(self, *words: str, given: str | None = None, **more: Any) -> subprocess.CompletedProcess[str]:
        more = {**({"stdin": subprocess.PIPE} if given is not None else {}), **more}
        with self.start(*words, **more) as process:
            try:
                out, err = process.communicate(given, timeout=PATIENCE)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def containers(self) -> list[str]:
        return self.engine.docker("ps", "-aq", f"--filter=label={LABEL}={self.state}").stdout.split()

    def left(self) -> list[str]:
        place = self.state / "carried"
        files = place.iterdir() if place.is_dir() else ()
        return [*self.containers(), *(path.name for path in files if "seccomp" not in path.name)]


@pytest.fixture(params=USERS)
def own(engine: Daemon, request: pytest.FixtureRequest) -> Iterator[Home]:
    made = Home(engine, request.param)
    yield made
    until(lambda: not made.left())
    shutil.rmtree(made.home)


@pytest.fixture
def world(engine: Daemon) -> Iterator[Callable[[], int]]:
    """Starts web servers beside the daemon; each call gives a port."""
    servers: list[subprocess.Popen[str]] = []

    def start() -> int:
        words = engine.beside(sys.executable, "-c", SERVER, GATEWAY)
        servers.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        assert servers[-1].stdout is not None
        return int(servers[-1].stdout.readline())

    yield start
    for server in servers:
        server.kill()
        server.communicate()


ATTEMPT = """
id -u; cat; echo made > made; echo said >&2
cat ~/private || echo hidden
ls /var/run/docker.sock /run/docker.sock "$DOCKER" || echo no socket
ls ~/.membrane || echo no state
touch /usr/x || echo refused
grep CapEff /proc/self/status
exit 7
"""


def test_a_run_is_whole_and_leaves_a_record_and_nothing_else(own: Home) -> None:
    docker = f"--env=DOCKER={own.engine.socket}"
    done = own.run("--no-presets", docker, "--", "sh", "-c", ATTEMPT, given="by the pipe\n")
    assert done.returncode == 7, done
    expected = ["by the pipe", "hidden", "no socket", "no state", "refused", "CapEff:\t0000000000000000"]
    assert done.stdout.splitlines() == [str(own.uid), *expected], done
    assert "said" in done.stderr
    made = own.workspace / "made"
    assert (made.read_text(), made.stat().st_uid) == ("made\n", own.uid)
    shown = own.run("trace", "show", "@last", "--json", backend=False)
    events = [json.loads(line) for line in shown.stdout.splitlines()]
    (started,) = (event for event in events if event["event"] == "SessionStarted")
    (receipt,) = (line for line in started["assurance"] if line["rule"] == "backend")
    assert "container of docker" in receipt["mechanism"]
    assert started["workspace"] == str(own.workspace)
    verified = own.run("trace", "verify", "@last", backend=False)
    assert verified.returncode == 0, verified


def test_hosts_are_those_of_the_policy_and_values_are_nowhere(own: Home, world: Callable[[], int]) -> None:
    allowed, other = world(), world()
    url = f"http://{GATEWAY}:{allowed}/"
    masked = "ghp_" + "0a1B2c3D4e" * 3
    (own.workspace / "token").write_text(f"token={masked}\n")
    os.chown(own.workspace / "token", own.uid, own.uid)
    secret = {"name": "KEY", "from": "env:REAL", "to": [url], "header": "x-key"}
    mask = {"file": str(own.workspace / "token"), "to": [url], "extract": "token=(.*)", "header": "* x-key"}
    (own.workspace / ".membrane.yaml").write_text(json.dumps({"secrets": [secret], "masks": [mask], "allow": [url]}))
    script = (
        f'. ./token; curl -s -H "x-key: $token" {url}; echo; echo "$token"; '
        f'curl -s -H "x-key: $KEY" {url}; echo; curl -s -m 9 http://{GATEWAY}:{other}/;  echo "$KEY"; echo there; cat'
    )
    environ = {**own.environ, "REAL": VALUE}
    words = ("--trust-workspace", "-q", "--", "sh", "-c", script)
    with own.start(*words, env=environ, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        lines = []
        while not lines or (lines[-1] and lines[-1] != "there\n"):
            lines.append(process.stdout.readline())
        (container,) = own.containers()
        inspected = own.engine.docker("inspect", container).stdout
        words = Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")
        process.stdin.close()
        assert process.wait(PATIENCE) == 0, lines
        assert process.stderr is not None and not process.stderr.read()
    assert lines.pop(0) == f"x-key {masked}"[::-1] + "\n", lines
    assert lines.pop(0).strip() not in ("", masked), lines
    assert lines[0] == f"x-key {VALUE}"[::-1] + "\n", lines
    assert "port not allowed" in lines[1], lines
    assert lines[2].strip() not in ("", VALUE), lines
    assert words[1] == "run" and VALUE not in " ".join(words) and VALUE not in inspected
    settings = json.loads(inspected)[0]["HostConfig"]
    assert (settings["Privileged"], settings["CapDrop"], settings["PidMode"]) == (False, ["ALL"], "")
    assert settings["CapAdd"] == (["SETFCAP"] if own.uid == 0 else None) or settings["CapAdd"] == ["CAP_SETFCAP"]
    assert settings["ReadonlyRootfs"] and settings["AutoRemove"]


def test_an_exposed_port_is_reached_on_the_loopback_and_nowhere_else(own: Home) -> None:
    server = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8080, bind='127.0.0.1')"
    (own.workspace / "file").write_text("served")
    port = free_port()

    def fetched(address: str, *beside: str) -> tuple[int, bytes]:
        words = [*beside, "curl", "-s", "-m", "5", f"http://{address}:{port}/file"]
        done = subprocess.run(words, capture_output=True, check=False)
        return done.returncode, done.stdout

    with own.start("-q", f"--expose=8080:{port}", "--", "python3", "-c", server) as process:
        until(lambda: fetched("127.0.0.1") == (0, b"served"))
        (container,) = own.containers()
        found = own.engine.docker(
            "inspect", "--format={{.NetworkSettings.IPAddress}} {{.NetworkSettings.Ports}}", container
        )
        address, published = found.stdout.split()
        assert published == "map[]"
        assert fetched(address, *own.engine.beside()) == (7, b"")  # its neighbours of the network are refused
        tables = own.engine.docker("exec", container, "sh", "-c", "cd /proc/net && cat tcp udp tcp6 udp6").stdout
        rows = [line.split() for line in tables.splitlines() if "local_address" not in line]
        listening = {row[1].partition(":")[0] for row in rows if row[3] in ("0A", "07")}  # TCP_LISTEN, unconnected UDP
        assert listening == {"0100007F"}, tables  # nor would they find anything else
        again = own.run("-q", f"--expose=8080:{port}", "--", "true")
        assert again.returncode == 78 and "the port is in use on this machine" in again.stderr, again
        process.terminate()
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM


AGENT = """
import os, socket, struct, subprocess, sys, urllib.request
def agent(kind, body=b""):
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(os.environ["SSH_AUTH_SOCK"])
        one.sendall(struct.pack(">IB", len(body) + 1, kind) + body)
        size, answer = struct.unpack(">IB", one.recv(5, socket.MSG_WAITALL))
        return answer, one.recv(size - 1, socket.MSG_WAITALL) if size > 1 else b""
print(agent(11)[0], b"key of the host" in agent(11)[1])
print(agent(19)[0])
for port in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(f"http://host.internal:{port}/", timeout=30).status)
    except OSError as error:
        print("refused", getattr(error, "code", ""))
"""
HOST = """
import http.server, os, socket, struct, sys, threading
web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
other = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
for each in (web, other):
    threading.Thread(target=each.serve_forever, daemon=True).start()
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print(web.server_port, other.server_port, flush=True)
blob, comment = b"blob", b"key of the host"
answer = struct.pack(">BI", 12, 1) + b"".join(struct.pack(">I", len(each)) + each for each in (blob, comment))
while True:
    connection, _ = listener.accept()
    while head := connection.recv(5, socket.MSG_WAITALL):
        size, kind = struct.unpack(">IB", head)
        connection.recv(size - 1, socket.MSG_WAITALL) if size > 1 else b""
        print("asked", kind, flush=True)
        said = answer if kind == 11 else bytes([6])
        connection.sendall(struct.pack(">I", len(said)) + said)
"""


def test_services_of_the_callers_machine_and_files_elsewhere(own: Home) -> None:
    place = own.home / "agents"
    place.mkdir()
    os.chown(place, own.uid, own.uid)
    agent = place / "agent"
    start = [sys.executable, "-u", "-c", HOST, str(agent)]
    with Started(start, stdout=subprocess.PIPE, text=True, user=own.uid, group=own.uid, cwd="/") as host:
        assert host.stdout is not None
        try:
            connected, other = (int(word) for word in host.stdout.readline().split())
            (own.workspace / ".membrane.yaml").write_text(
                json.dumps(
                    {"unix_sockets": [{"path": str(agent), "as": "ssh-agent"}], "ports": {"connect": [connected]}}
                )
            )
            files = ("--events", str(place / "events"), "--session-id-file", "../id", "--trace-log", str(place / "log"))
            command = ("python3", "-c", AGENT, str(connected), str(other))
            done = own.run("--trust-workspace", "-q", *files, "--", *command)
        finally:
            host.kill()
        asked = [line.strip() for line in host.stdout]
    assert done.returncode == 0, done
    # What removes keys does not pass the broker; the port that no rule names is refused by the gateway.
    assert done.stdout.splitlines() == ["12 True", "5", "200", "refused 403"], done
    assert set(asked) == {"asked 11"}
    events = [json.loads(line) for line in (place / "events").read_text().splitlines()]
    assert events[-1]["event"] == "SessionEnded" and {event["session"] for event in events} == {
        (own.workspace.parent / "id").read_text()
    }
    log = [json.loads(line) for line in (place / "log").read_text().splitlines()]
    assert "python3" in {event.get("processName") for event in log}, log
    assert {path.stat().st_uid for path in (place / "events", place / "log", own.workspace.parent / "id")} == {own.uid}


class Terminal:
    """A run on a terminal of 31 rows and 97 columns."""

    def __init__(self, own: Home, *words: str) -> None:
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (31, 97))
        take = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY); os.execv(sys.argv[1], sys.argv[1:])"
        command = [sys.executable, "-c", take, sys.executable, "-P", "-m", "membrane", "--backend=docker", *words]
        self.process = subprocess.Popen(
            command, cwd=own.workspace, env={**own.environ, "TERM": "xterm"}, stdin=slave, stdout=slave, stderr=slave,
            user=own.uid, group=own.uid, extra_groups=[], start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self.seen = b""

    def expect(self, text: bytes) -> None:
        """Read until ``text``, which what follows does not begin with again."""
        while text not in self.seen:
            assert select.select([self.master], [], [], PATIENCE)[0], self.seen
            self.seen += os.read(self.master, 4096)
        self.seen = self.seen.partition(text)[2]

    def send(self, text: bytes) -> None:
        os.write(self.master, text)

    def end(self) -> int:
        status = self.process.wait(PATIENCE)
        os.close(self.master)
        return status


def test_its_terminal_is_the_callers(own: Home) -> None:
    terminal = Terminal(own, "-q", "--", "bash", "-c", "tty; stty size; read x; echo got $x; sleep 1000 || echo ended")
    terminal.expect(b"/dev/pts/")
    terminal.expect(b"31 97")
    terminal.send(b"word\r")
    terminal.expect(b"got word")
    terminal.send(b"\x03")
    assert terminal.end() == 128 + signal.SIGINT


KEYS = "import os, tty; tty.setraw(0); print('raw', flush=True)\nfor _ in 'pq': print('key', os.read(0, 9), flush=True)"


def test_every_key_is_the_commands(own: Home) -> None:
    """Docker's client holds back ctrl-p, and ctrl-p ctrl-q leaves a container by default."""
    terminal = Terminal(own, "-q", "--", "python3", "-c", KEYS)
    terminal.expect(b"raw")
    for key, seen in ((b"\x10", b"\\x10"), (b"\x11", b"\\x11")):
        terminal.send(key)
        terminal.expect(b"key b'" + seen)
    assert terminal.end() == 0


def test_a_person_is_asked_on_it(own: Home, world: Callable[[], int]) -> None:
    port = world()
    curl = f"curl -s -o /dev/null -w 'got %{{http_code}};' http://{GATEWAY}:{port}/"
    terminal = Terminal(own, "--ask", "--", "bash", "-c", f"{curl}; {curl}; {curl}")
    question = f"{GATEWAY}:{port}".encode()
    terminal.expect(question)
    terminal.expect(b"[N]o: ")
    terminal.send(b"o\r")
    terminal.expect(b"got 200;")
    terminal.expect(b"[N]o: ")
    terminal.send(b"n\r")
    terminal.expect(b"got 403;")
    terminal.expect(b"got 403;")
    assert terminal.end() == 0


ATTACK = """
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def say(name, call):
    try:
        result = call()
        print(name, "done" if result in (None, 0) or result else "none")
    except OSError as error:
        print(name, error.errno)
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
def connect(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(path)
def dial(host, port):
    with socket.create_connection((host, port), 9) as one:
        one.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
        if b"200" not in one.recv(100):
            raise OSError(111, "")
engine, home, gateway, port = sys.argv[1:]
say("socket", lambda: connect(engine))
say("usual socket", lambda: connect("/var/run/docker.sock"))
say("door", lambda: connect("/run/membrane"))
say("exec door", lambda: connect("/run/membrane-exec"))
say("events", lambda: os.open("/run/membrane-events", os.O_WRONLY | os.O_NONBLOCK))
say("resolver", lambda: dial("127.0.0.11", 53))
say("metadata", lambda: dial("169.254.169.254", 80))
say("loopback", lambda: dial("127.0.0.1", int(port) + 1))
say("private", lambda: open(home + "/private").read())
say("state", lambda: os.listdir(home + "/.membrane"))
say("outside", lambda: os.open("/etc/new", os.O_CREAT | os.O_WRONLY))
say("network", lambda: dial(gateway, int(port)))
say("namespace", lambda: check(libc.unshare(0x10000000)))
say("mount", lambda: check(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None)))
say("supervisor", lambda: os.kill(1, 0) or open("/proc/1/environ").read().index("MEMBRANE_HOME="))
"""
# Not for the control, which is root on the machine and would set this for good.
ON_THE_MACHINE = """
say("pattern", lambda: open("/proc/sys/kernel/core_pattern", "w").write("|/x"))
say("trigger", lambda: open("/proc/sysrq-trigger", "w").write("h"))
"""


def test_attacks_from_inside(own: Home, world: Callable[[], int]) -> None:
    port = world()
    arguments = [str(own.engine.socket), str(own.home), GATEWAY, str(port)]
    words = ("--events", "../events", f"--connect={port + 1}")  # which pid 1 has on the container's loopback
    done = own.run("-q", "--no-presets", *words, "--", "python3", "-c", ATTACK + ON_THE_MACHINE, *arguments)
    said = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    assert done.returncode == 0 and len(said) == 17, done
    assert "done" not in said.values(), said
    reached = subprocess.run(
        own.engine.beside("curl", "-s", f"http://{GATEWAY}:{port}/"), capture_output=True, check=False
    )
    assert reached.returncode == 0  # the control: without the boundary the same machine reaches and reads all of it
    control = subprocess.run(
        own.engine.beside(sys.executable, "-c", ATTACK, *arguments), capture_output=True, text=True, check=False
    )
    said = dict(line.rsplit(" ", 1) for line in control.stdout.splitlines())
    assert {said[name] for name in ("socket", "private", "state", "network")} == {"done"}, said


@pytest.mark.needs_tool("claude")
def test_claude_code(own: Home) -> None:
    (own.home / ".ssh").mkdir()
    (own.home / ".ssh" / "id_rsa").write_text("PRIVATE KEY")
    program = Path(shutil.which("claude") or "").resolve()
    serve = [sys.executable, "-c", MODEL, GATEWAY]
    above = Path(__file__).parent
    environ = {**os.environ, "PYTHONPATH": f"{above}:{above.parent}"}
    with Started(own.engine.beside(*serve), stdout=subprocess.PIPE, text=True, env=environ) as model:
        try:
            assert model.stdout is not None
            host = f"{GATEWAY}:{int(model.stdout.readline())}"
            variables = {
                "ANTHROPIC_API_KEY": "not-a-key", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "DISABLE_AUTOUPDATER": "1", "IS_SANDBOX": "1", "ANTHROPIC_BASE_URL": f"http://{host}",
            }  # fmt: skip
            words = [f"--env={name}={value}" for name, value in variables.items()]
            agent = [str(program), "--dangerously-skip-permissions", "-p", "do it"]
            done = own.run(f"--mount={program.parent}:ro", "-a", host, *words, "--", *agent)
        finally:
            model.kill()
        calls = [json.loads(line) for line in model.stdout]
    assert done.returncode == 0 and "All done." in done.stdout, done
    assert "example.com" in done.stderr  # refused, and said
    (_, second) = max((call["results"] for call in calls), key=len)
    assert "curl=6" in second and "cat=1" in second and "hello" in second, second
    made = own.workspace / "made.txt"
    assert (made.read_text(), made.stat().st_uid) == ("hello\n", own.uid)


@ONE
def test_who_is_logged_in_outside_is_so_inside_without_a_token(own: Home) -> None:
    token, refresh = ("sk-ant-" + kind * 24 for kind in ("oat1", "ort1"))
    login = own.home / ".claude" / ".credentials.json"
    login.parent.mkdir()
    login.write_text(json.dumps({"claudeAiOauth": {"accessToken": token, "refreshToken": refresh, "expiresAt": 9}}))
    (login.parent / "CLAUDE.md").write_text("what I told it")
    (login.parent / "history.jsonl").write_text("what I asked it")
    for path in (login.parent, *login.parent.iterdir()):
        os.chown(path, own.uid, own.uid)
    before = login.read_bytes()
    script = (
        "cd ~/.claude; cat .credentials.json; echo; cat CLAUDE.md; echo; echo own > CLAUDE.md; cat history.jsonl; env"
    )
    done = own.run("-q", "--profile=claude", "--", "sh", "-c", script)
    first, second, *_ = done.stdout.splitlines()
    shown = json.loads(first)["claudeAiOauth"]
    assert len(shown["accessToken"]) == len(token) and shown["expiresAt"] == 9, done
    assert second == "what I told it" and "what I asked it" not in done.stdout
    assert token not in done.stdout and refresh not in done.stdout
    assert login.read_bytes() == before and (login.parent / "CLAUDE.md").read_text() == "what I told it"


def sleeping(own: Home) -> tuple[subprocess.Popen[str], int]:
    """A run whose command is there; with the pid of its holder, which leads a session of its own."""
    process = own.start("-q", "--", "sh", "-c", "echo there; sleep 1000")
    assert process.stdout is not None and process.stdout.readline() == "there\n"
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    holders = [int(pid) for pid in children if os.getsid(int(pid)) == int(pid)]
    assert len(holders) == 1 and len(own.containers()) == 1
    return process, holders[0]


@pytest.mark.parametrize("holder_too", [False, True])
def test_who_kills_the_client_ends_the_container(own: Home, holder_too: bool) -> None:
    process, holder = sleeping(own)
    if holder_too:
        os.kill(holder, signal.SIGKILL)
    process.kill()
    process.communicate()
    until(lambda: not own.containers())
    if holder_too:
        assert own.left()  # its files, which are the next sentence's
        collected = own.run("gc", backend=False)
        assert collected.returncode == 0, collected
    until(lambda: not own.left())


@pytest.fixture
def image(own: Home) -> Iterator[Callable[..., None]]:
    """Changes the image as a Dockerfile would; afterwards it is what it was."""
    found = own.engine.docker("image", "inspect", "--format={{.Id}}", carrier.IMAGE).stdout.strip()

    def change(*instructions: str) -> None:
        made = own.engine.docker("create", carrier.IMAGE, "true").stdout.strip()
        done = own.engine.docker("commit", *(f"--change={each}" for each in instructions), made, carrier.IMAGE)
        assert done.returncode == 0, done
        own.engine.docker("rm", made)

    yield change
    assert own.engine.docker("tag", found, carrier.IMAGE).returncode == 0


@ONE
def test_nothing_runs_beside_the_sandbox_that_a_command_could_have_made(own: Home, image: Callable[..., None]) -> None:
    """By the PATH of the image, which holds for the supervisor as well, and by its check."""
    planted, proof = own.home / "src" / "a, b" / "bin" / "python3", own.workspace / "proof"
    planted.parent.mkdir()
    planted.write_text('#!/bin/sh\ntouch "${0%/*}/../proof"\nexec /usr/bin/python3 "$@"\n')
    planted.chmod(0o755)
    path = f"{planted.parent}:/usr/bin:/bin"
    image(f'ENV PATH="{path}"', 'HEALTHCHECK --interval=1s CMD python3 -c ""')
    with own.start("-q", "--", "sh", "-c", "echo $PATH; cat proof; echo whole; exec sleep 1000") as process:
        assert process.stdout is not None
        seen = [process.stdout.readline().strip() for _ in range(2)]
        assert seen == [path, "whole"]  # the command has the image's own
        (container,) = own.containers()
        (found,) = json.loads(own.engine.docker("inspect", container).stdout)
        assert "Health" not in found["State"] and found["Config"]["WorkingDir"] == "/"
        process.terminate()
    assert not proof.exists()
    tree = f'--mount=type=bind,"source={own.workspace}","target={own.workspace}"'
    control = own.engine.docker("run", "-d", "--name=control", tree, carrier.IMAGE, "sleep", "1000")
    assert control.returncode == 0, control
    until(proof.exists)
    assert own.engine.docker("rm", "--force", "control").returncode == 0


@ONE
def test_what_the_command_says_is_in_no_log(own: Home) -> None:
    process, _holder = sleeping(own)
    (container,) = own.containers()
    kept = own.engine.docker("logs", container)
    assert kept.returncode == 1 and "does not support reading" in kept.stderr, kept
    process.terminate()
    process.communicate(timeout=PATIENCE)
    assert own.engine.docker("run", "--name=control", carrier.IMAGE, "sh", "-c", "echo said").stdout == "said\n"
    assert own.engine.docker("logs", "control").stdout == "said\n"
    assert own.engine.docker("rm", "control").returncode == 0


@ONE
def test_a_further_command_joins_it_and_ends_with_its_caller(own: Home) -> None:
    process, _holder = sleeping(own)
    attempt = "id -u; pwd; cat; grep CapEff /proc/self/status; ps -o args | grep -c 'sleep 1000'; cat ~/private; exit 9"
    joined = own.run("exec", "@last", "--", "sh", "-c", attempt, given="given\n", backend=False)
    said = [str(own.uid), str(own.workspace), "given", "CapEff:\t0000000000000000"]
    assert joined.returncode == 9 and joined.stdout.splitlines()[:4] == said, joined
    assert "of the host" not in joined.stdout

    def runs() -> bool:
        (container,) = own.containers()
        return "sleep 2345" in own.engine.docker("top", container).stdout

    for number, status in ((signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)):
        with own.start("exec", "@last", "--", "sh", "-c", "echo there; exec sleep 2345", backend=False) as second:
            assert second.stdout is not None and second.stdout.readline() == "there\n"
            until(runs)  # ps(1) may look while the shell becomes sleep(1)
            second.send_signal(number)
            assert second.wait(PATIENCE) == status
        until(lambda: not runs())
    process.terminate()
    process.communicate(timeout=PATIENCE)


def test_a_signal_that_means_what_the_command_says_reaches_it(own: Home) -> None:
    process, _holder = sleeping(own)
    script = "trap 'echo heard; exit 3' USR1; echo there; while :; do sleep 0.1; done"
    for before, backend in ((("exec", "@last"), False), (("-q",), True)):
        with own.start(*before, "--", "sh", "-c", script, backend=backend) as second:
            assert second.stdout is not None and second.stdout.readline() == "there\n"
            second.send_signal(signal.SIGUSR1)
            assert (second.wait(PATIENCE), second.stdout.read()) == (3, "heard\n")
    process.terminate()
    process.communicate(timeout=PATIENCE)


def test_gc_removes_the_container_of_a_dead_run_and_of_no_other(own: Home) -> None:
    process, _holder = sleeping(own)
    dead = own.engine.docker("create", f"--label={LABEL}={own.state}", "--name=membrane-dead", "box", "sh")
    foreign = own.engine.docker("create", f"--label={LABEL}=/other", "--name=foreign", "box", "sh")
    assert dead.returncode == 0 and foreign.returncode == 0
    listed = own.run("ps", backend=False)
    assert "sleep 1000" in listed.stdout, listed
    collected = own.run("gc", backend=False)
    assert "removed container membrane-dead" in collected.stdout, collected
    assert len(own.containers()) == 1
    assert own.engine.docker("rm", "foreign").returncode == 0
    process.terminate()
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM


def test_what_is_not_carried_is_refused_before_anything_runs(own: Home) -> None:
    engine = str(own.engine.socket)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(own.workspace / "made"))
    refused = {
        "-v of the root": ["--arg=-v", "--arg=/:/host"],
        "-v of the socket": ["--arg=-v", f"--arg={engine}:/var/run/docker.sock"],
        "-v of what holds it": ["--arg=-v", f"--arg={own.engine.directory}:/mnt"],
        "privileged": ["--arg=--privileged"],
        "a capability": ["--arg=--cap-add=SYS_ADMIN"],
        "a profile": ["--arg=--security-opt=seccomp=unconfined"],
        "a namespace": ["--arg=--pid=host"],
        "a network": ["--arg=--net=host"],
        "user namespace": ["--arg=--userns=host"],
        "a device": ["--arg=--device=/dev/kvm"],
        "containers": ["--containers"],
        "the engine by a socket": ["--unix-socket", engine],
        "a socket of the workspace": ["--unix-socket", "made"],
    }
    for what, words in refused.items():
        done = own.run(*words, "--", "true")
        assert done.returncode == 78, (what, done)
        assert done.stderr.startswith("membrane: ") and "internal" not in done.stderr, (what, done)
    assert own.run("--events", "events", "--", "id").returncode == 0  # the control
    assert "SessionEnded" in (own.workspace / "events").read_text()


@ONE
def test_plan_and_learn_are_carried(own: Home, world: Callable[[], int]) -> None:
    planned = own.run("plan", "--backend=docker", "--arg=--cpus=2", "--json", backend=False)
    assert planned.returncode == 0, planned
    bindings = {row["rule"]: str(row) for row in json.loads(planned.stdout)["bindings"]}
    assert "container of docker" in bindings["backend"] and "argument --cpus=2" in bindings
    port = world()
    output = own.home / "learned.yaml"
    curl = ("curl", "-s", "-o", "/dev/null", f"http://{GATEWAY}:{port}/")
    learned = own.run("learn", "--backend=docker", "--output", str(output), "--", *curl, backend=False)
    assert learned.returncode == 0 and f"{GATEWAY}:{port}" in output.read_text(), learned
    assert output.stat().st_uid == own.uid


@ONE
def test_where_the_kernel_is_not_ours_a_container_applies_what_was_reviewed(own: Home) -> None:
    """The command line as macOS has it, with this machine's daemon."""
    bootstrap = (
        (Path(__file__).parents[1] / "unit/ui/test_carry.py")
        .read_text()
        .partition('DARWIN = """')[2]
        .partition('"""')[0]
    )

    def mac(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-c", bootstrap, *words], cwd=own.workspace / "sub", env=own.environ, text=True,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=False, user=own.uid, group=own.uid,
            extra_groups=[],
        )  # fmt: skip

    (own.workspace / "sub").mkdir()
    os.chown(own.workspace / "sub", own.uid, own.uid)
    done = own.run("--review=try", "--apply=never", "-q", "--", "sh", "-c", "echo new > new")
    assert done.returncode == 0 and not (own.workspace / "new").exists(), done
    applied = mac("apply")
    assert applied.returncode == 0 and (own.workspace / "new").read_text() == "new\n", applied
    refused = mac("start", "--", "true")
    assert refused.returncode == 78 and "membrane start needs Linux" in refused.stderr, refused


def test_by_the_file_of_the_user_and_reviewed(own: Home) -> None:
    own.state.mkdir(mode=0o700)
    (own.state / "config.yaml").write_text("backend: docker\n")
    for path in (own.state, own.state / "config.yaml"):
        os.chown(path, own.uid, own.uid)
    done = own.run("--review=try", "--apply=safe", "-q", "--", "sh", "-c", "echo new > new", backend=False)
    assert done.returncode == 0, done
    assert (own.workspace / "new").read_text() == "new\n"
