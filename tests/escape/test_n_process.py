"""Attacks on the gateway: killing, exhausting, crashing and confusing it (rows N27, N45; DESIGN.md 7.9)."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from net_world import BACKENDS, Net, names

EXAMPLE4, ECHO4 = names.address("example.com"), names.address("echo.test")
MOST_MEMORY = 160 << 20  # bytes that the supervisor or the gateway may have in any of these tests

ANSWER = """
def answer(line):
    try:
        return str(eval(line))
    except OSError as error:
        return errno.errorcode.get(error.errno, repr(error)) if error.errno else type(error).__name__
"""
FLOOD = (
    ANSWER
    + """
socks = []
def flood(name, port, count):
    address = socket.getaddrinfo(name, port, socket.AF_INET)[0][4]
    for _ in range(count):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(address)
        socks.append(sock)
    return len(socks)
def end():
    for sock in socks: sock.close()
    socks.clear()
def settled(seconds=60):
    "Until one more connection is served; the others go away at their own pace."
    until = time.monotonic() + seconds
    while True:
        try:
            if (got := get("example.com")) == "200" or time.monotonic() > until:
                return got
        except OSError:
            if time.monotonic() > until:
                raise
        time.sleep(0.05)
"""
)


def memory(pid: int) -> int:
    """Bytes of the process that are in memory, at their peak (proc(5), VmHWM)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


# ---------------------------------------------------------------- its end is the command's end


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_without_it_the_command_dies(net: Net, number: int) -> None:
    net.allow("example.com")
    with net.talking(ANSWER) as (process, ask):
        assert ask("get('example.com')") == "200"
        pid = net.network_pid(process.pid)
        assert pid
        os.kill(pid, number)
        assert process.wait(60) == 125
        assert b"gateway died" in process.stderr.read()  # type: ignore[union-attr]
    assert net.events("SessionEnded")[-1]["exit_code"] == 125


def test_it_can_not_be_seen_or_signalled_from_inside(net: Net) -> None:
    net.allow("example.com")
    with net.talking(ANSWER) as (process, ask):
        assert ask("get('example.com')") == "200"
        pid = net.network_pid(process.pid)
        assert ask(f"os.kill({pid}, 9)") == "ESRCH"
        assert ask(f"os.kill({process.pid}, 9)") == "ESRCH"
        assert ask(f"os.path.exists('/proc/{pid}')") == "False"
        shown = ask("[open(f'/proc/{p}/cmdline').read() for p in os.listdir('/proc') if p.isdigit()]")
        assert "membrane.gateway" not in shown
        assert ask("get('example.com')") == "200"


def test_what_it_has(net: Net) -> None:
    """An empty environment, no capability, no new privileges, no core dump, nothing of the caller's descriptors."""
    net.allow("example.com")
    read, write = os.pipe()
    os.set_inheritable(write, True)
    try:
        with net.talking(ANSWER, pass_fds=(write,)) as (process, ask):
            assert ask("get('example.com')") == "200"
            pid = net.network_pid(process.pid)
            status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            assert status["NoNewPrivs"] == "1"
            assert {status[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
            if os.getuid() == 0:  # for others it is closed: it is not dumpable
                environment = Path(f"/proc/{pid}/environ").read_bytes()
                assert environment == b"LC_ALL=C.UTF-8\0"
                ends = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd") if fd != "2"}
                assert os.readlink(f"/proc/self/fd/{write}") not in ends
                assert all(end.startswith(("socket:", "anon_inode:", "/dev/null")) for end in ends), ends
            else:
                with pytest.raises(PermissionError):
                    Path(f"/proc/{pid}/environ").read_bytes()
            limits = Path(f"/proc/{pid}/limits").read_text()
            assert limits.split("Max core file size")[1].split()[:2] == ["0", "0"]
    finally:
        os.close(read)
        os.close(write)


# ---------------------------------------------------------------- exhaustion


def test_ten_thousand_connections(net: Net) -> None:
    """More than there may be: the surplus is reset and on the record; when they end, the next one is served.

    They are half a DNS message each, which needs nobody outside.
    """
    net.allow("example.com")
    with net.talking(FLOOD) as (process, ask):
        assert ask("get('example.com')") == "200"
        assert ask("flood('example.com', 53, 10000)") == "10000"
        # What was open when the flood began goes on; a new one is refused at once, not left hanging.
        assert ask("get('example.com')") in ("200", "ECONNRESET")
        assert ask("end()") == "None"
        assert ask("settled()") == "200"
        assert memory(net.network_pid(process.pid)) < MOST_MEMORY
        assert memory(process.pid) < MOST_MEMORY
    assert net.denied("limit reached", kind="Connect")
    assert process.returncode == 0


def test_slow_loris(net: Net) -> None:
    """2,000 clients that begin a hello, a request, a DNS message, and stop; another client is served meanwhile."""
    net.allow("example.com")
    script = (
        FLOOD
        + """
def begin(count):
    some = record(hello("example.com"))[:100]
    for port, data in ((443, some), (80, b"GET / HT"), (53, b"\\xff\\xff\\0"), (443, b"\\x16")):
        address = socket.getaddrinfo("example.com", port, socket.AF_INET)[0][4]
        for _ in range(count):
            sock = socket.create_connection(address, 60)
            sock.send(data)
            socks.append(sock)
    return len(socks)
"""
    )
    with net.talking(script) as (process, ask):
        assert ask("begin(500)") == "2000"
        assert ask("get('example.com')") == "200"
        assert ask("code(ask(query('example.com')))") == "0"
        assert ask("code(ask_tcp(query('example.com')))") == "0"
        assert memory(net.network_pid(process.pid)) < MOST_MEMORY
        ask("end()")
        assert ask("settled()") == "200"


def test_unfinished_queries_are_bounded(net: Net) -> None:
    """2,000 DNS messages of 64 KiB over TCP that never end: a query is small, and only so much is kept of it."""
    net.allow("example.com")
    script = (
        FLOOD
        + """
def stuff(count):
    for _ in range(count):
        sock = socket.create_connection(("9.9.9.9", 53), 60)
        try:
            sock.sendall(b"\\xff\\xff" + bytes(60000))
        except OSError:
            pass
        socks.append(sock)
    return len(socks)
"""
    )
    with net.talking(script) as (process, ask):
        assert ask("stuff(2000)") == "2000"
        assert ask("code(ask_tcp(query('example.com')))") == "0"
        assert memory(net.network_pid(process.pid)) < 64 << 20


def test_unread_answers_are_bounded(net: Net) -> None:
    """500 clients that ask and never read: what is kept for them is a buffer each, and others are served."""
    net.allow("tcp://echo.test:7", "example.com")
    script = (
        FLOOD
        + """
def stuff(count):
    address = socket.getaddrinfo("echo.test", 7, socket.AF_INET)[0][4]
    for _ in range(count):
        sock = socket.create_connection(address, 60)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        for _ in range(20):
            try:
                sock.send(bytes(65536))
            except BlockingIOError:
                break
        socks.append(sock)
    return len(socks)
"""
    )
    with net.talking(script) as (process, ask):
        assert ask("stuff(500)") == "500"
        assert ask("settled()") == "200"
        assert memory(net.network_pid(process.pid)) < MOST_MEMORY
        assert ask("end()") == "None"


@pytest.mark.needs_tool("prlimit")
def test_few_descriptors(net: Net) -> None:
    """With a low hard limit it serves fewer at once, survives running out, and recovers."""
    net.allow("tcp://echo.test:7", "example.com")
    script = (
        FLOOD
        + """
pipe = os.pipe()
def processes(count):
    "Each floods as far as its own descriptors reach."
    for _ in range(count):
        if os.fork() == 0:
            flood("echo.test", 7, 200)
            os.read(pipe[0], 1)
            os._exit(0)
"""
    )
    with net.talking(script, before=("prlimit", "--nofile=300:300", "--")) as (_, ask):
        assert ask("get('example.com')") == "200"
        assert ask("processes(5)") == "None"
        assert ask("get('example.com')") in ("200", "502", "ECONNRESET", "TimeoutError", "EAI_AGAIN")
        assert ask("os.write(pipe[1], b'12345')") == "5"
        assert ask("settled()") == "200"


@pytest.mark.parametrize("what", ["names", "connections", "datagrams"])
def test_refusals_do_not_fill_the_disk(net: Net, what: str) -> None:
    """Five seconds and more of different refusals: memory and record stay small, and what is left out is counted."""
    net.allow("example.com", {"dest": "echo.test", "ports": ["5000/udp"]})
    script = (
        ANSWER
        + """
def names(seconds):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(1)
    sock.connect(("9.9.9.9", 53))
    until, sent = time.monotonic() + seconds, 0
    while time.monotonic() < until or sent <= 5000:
        for _ in range(50):
            sock.send(query(f"{sent}.evil.test"))
            sent += 1
        try:
            for _ in range(50): sock.recv(512)
        except OSError:
            pass
    return sent
def connections(seconds):
    until, sent = time.monotonic() + seconds, 0
    while time.monotonic() < until or sent <= 5000:
        with socket.socket() as sock:
            sock.setblocking(False)
            sock.connect_ex((f"93.{sent >> 16 & 255}.{sent >> 8 & 255}.{sent & 255}", 1 + sent % 60000))
        sent += 1
    return sent
def datagrams(seconds):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    until, sent = time.monotonic() + seconds, 0
    while time.monotonic() < until or sent <= 5000:
        sock.sendto(b"x", (f"93.{sent >> 16 & 255}.{sent >> 8 & 255}.{sent & 255}", 5000))
        sent += 1
    return sent
"""
    )
    with net.talking(script) as (process, ask):
        assert ask("get('example.com')") == "200"
        sent = int(ask(f"{what}(5)"))
        assert sent > 5000
        assert ask("get('example.com')") == "200"
        assert memory(net.network_pid(process.pid)) < MOST_MEMORY
        assert memory(process.pid) < MOST_MEMORY
    # What the command asked of the kernel is not what was refused: each connect(2) of it is an event of the tracer.
    lines = net.events_path.read_bytes().splitlines(keepends=True)
    assert sum(len(line) for line in lines if b'"event": "SocketCalled"' not in line) < 8 << 20
    lost = [event["count"] for event in net.events("EventsLost") if event["kind"] == "AccessDenied"]
    assert lost
    assert net.events("SessionEnded")[-1]["lost"] >= sum(lost)


def test_look_ups_that_hang(net: Net) -> None:
    """100 names whose server is silent: they fail in bounded time, and others are resolved afterwards."""
    net.allow("silent.test", "*.example.com", "example.com")
    script = """
import threading
out = []
def one(n):
    try:
        out.append(get("silent.test", 80 + n, seconds=120))
    except OSError as error:
        out.append(type(error).__name__)
threads = [threading.Thread(target=one, args=(n,)) for n in range(100)]
for thread in threads: thread.start()
attempt("meanwhile", lambda: get("example.com"))
for thread in threads: thread.join()
say("hanging", sorted(set(out)))
attempt("afterwards", lambda: get("www.example.com"))
"""
    found = net.attack(script)
    assert (found["meanwhile"], found["afterwards"]) == ("200", "200")
    assert found["hanging"] == ["502"]


# ---------------------------------------------------------------- crashes


def test_garbage(net: Net) -> None:
    """Mutated hellos, requests and DNS messages, whole and cut, over both transports: it lives, and tells no crash."""
    net.allow("example.com", "tcp://echo.test:7")
    script = """
import random
rng = random.Random(7)
seeds = [record(hello("example.com")), record(hello("google.com", thirteen=True)), old_hello(), query("example.com"),
         query("example.com", extra=edns(bytes(40)), more=1), b"GET / HTTP/1.1\\r\\nHost: example.com\\r\\n\\r\\n",
         b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n", b"CONNECT google.com:443 HTTP/1.1\\r\\n\\r\\n", bytes(20000)]
def mutated():
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.randrange(8)):
        at = rng.randrange(len(data))
        roll = rng.randrange(4)
        if roll == 0: data[at] = rng.randrange(256)
        elif roll == 1: del data[at:at + rng.randrange(40)]
        elif roll == 2: data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(9)))
        else: data = data[:at + 1]
        if not data: data = bytearray(b"x")
    return bytes(data)
dns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
fakes = {p: socket.getaddrinfo("example.com", p, socket.AF_INET)[0][4][0] for p in (80, 443)}
for _ in range(2000):
    dns.sendto(mutated()[:60000], ("9.9.9.9", 53))
    for host, port in ((fakes[443], 443), (fakes[80], 22), ("93.184.216.12", 443), ("9.9.9.9", 53)):
        sock = socket.socket()
        try:
            sock.settimeout(1)
            sock.connect((host, port))
            data = mutated()
            cut = rng.randrange(len(data) + 1)
            sock.send(data[:cut], rng.choice((0, 0, 0, socket.MSG_OOB)) if cut else 0)
            sock.send(data[cut:])
            if rng.random() < 0.3: sock.shutdown(socket.SHUT_WR)
            if rng.random() < 0.2: sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\\1\\0\\0\\0\\0\\0\\0\\0")
        except OSError:
            pass
        sock.close()
# The origins may still hold as many connections of the storm as the gateway admits: more are refused.
until, calm = time.monotonic() + 60, False
while not calm and time.monotonic() < until:
    try:
        calm = get("example.com") == "200" and bool(ask_tcp(query("example.com")))
    except OSError:
        select.select([], [], [], 0.2)
attempt("then", lambda: get("example.com"))
attempt("resolver", lambda: [code(ask(query("example.com"))), code(ask_tcp(query("example.com")))])
"""
    done = net.inside(script, "--debug")
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found == {"then": "200", "resolver": [0, 0]}
    assert "Traceback" not in done.stderr
    assert not any("crash" in event for event in net.events())
    hosts = {event["host"] for event in net.events("ConnectionOpened")}
    assert hosts <= {"example.com"}
    named = {event["sni"] for event in net.events("ConnectionOpened")}
    assert named <= {"", "example.com"}


# ---------------------------------------------------------------- the relay


def test_relay_confusion(net: Net) -> None:
    """Half close, reset, urgent bytes, bulk with them, tiny windows: bytes stay in order, ends are passed on."""
    net.allow("tcp://echo.test:7")
    script = """
import threading, hashlib
def connect():
    return dial("echo.test", 7, 20)
def half():
    with connect() as sock:
        sock.sendall(b"abc")
        sock.shutdown(socket.SHUT_WR)
        return receive(sock)
def nothing():
    with connect() as sock:
        sock.shutdown(socket.SHUT_WR)
        return receive(sock) == b""
def reset():
    with connect() as sock:
        sock.sendall(b"abc")
        sock.recv(3)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\\1\\0\\0\\0\\0\\0\\0\\0")
    with connect() as sock:
        sock.sendall(b"after")
        return sock.recv(9)
def urgent():
    with connect() as sock:
        sock.sendall(b"ab")
        sock.send(b"c", socket.MSG_OOB)
        sock.sendall(b"de")
        sock.shutdown(socket.SHUT_WR)
        return receive(sock)
def bulk(with_urgent, window=0):
    size = 8 << 20
    data = bytes(range(256)) * (size // 256)
    with connect() as sock:
        if window:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        def send():
            for at in range(0, size, 1 << 20):
                sock.sendall(data[at:at + (1 << 20) - 1])
                sock.send(data[at + (1 << 20) - 1:at + (1 << 20)], socket.MSG_OOB if with_urgent else 0)
            sock.shutdown(socket.SHUT_WR)
        thread = threading.Thread(target=send)
        thread.start()
        seen = hashlib.sha256()
        while part := sock.recv(1 << 16):
            seen.update(part)
        thread.join()
    return seen.digest() == hashlib.sha256(data).digest()
attempt("half", half)
attempt("nothing", nothing)
attempt("reset", reset)
attempt("urgent", urgent)
attempt("bulk", lambda: bulk(False))
attempt("bulk and urgent", lambda: bulk(True))
attempt("bulk and a small window", lambda: bulk(False, 65536))
"""
    assert net.attack(script, timeout=120) == {
        "half": "abc", "nothing": True, "reset": "after", "urgent": "abcde",
        "bulk": True, "bulk and urgent": True, "bulk and a small window": True,
    }  # fmt: skip
    closed = net.events("ConnectionClosed")
    assert sum(event["bytes_up"] == 8 << 20 == event["bytes_down"] for event in closed) == 3


# ---------------------------------------------------------------- the upload limit


def test_upload_limit(net: Net) -> None:
    """TCP and UDP together, many connections at once, down to the byte; what is over it never leaves."""
    limit = 300_000
    net.allow("tcp://echo.test:7", {"dest": "echo.test", "ports": ["5000/udp"]})
    script = """
import threading
lock, total = threading.Lock(), [0]
def up():
    try:
        with dial("echo.test", 7) as sock:
            sock.settimeout(60)
            def read():
                try:
                    while data := sock.recv(65536):
                        with lock: total[0] += len(data)
                except OSError:
                    pass
            reader = threading.Thread(target=read)
            reader.start()
            try:
                for _ in range(100): sock.sendall(bytes(10000))
                sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            reader.join()
    except OSError:
        pass
fake = socket.getaddrinfo("echo.test", 5000, socket.AF_INET)[0][4][0]
attempt("udp before", lambda: len(udp(fake, 5000, bytes(1000))))
threads = [threading.Thread(target=up) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
say("echoed", total[0])
attempt("udp after", lambda: udp(fake, 5000, bytes(1000), seconds=1))
attempt("tcp after", lambda: echo("echo.test"))
"""
    found = net.attack(script, f"--limit=upload={limit}")
    assert found["udp before"] == 1000
    assert found["echoed"] <= limit - 1000
    assert found["udp after"] == "timeout"
    assert found["tcp after"] in ("ECONNRESET", "")
    sent = sum(event["bytes_up"] for event in net.events("ConnectionClosed"))
    assert 0.9 * limit < sent <= limit
    assert net.denied("limit reached")
    control = net.attack("attempt('x', lambda: echo('echo.test'))", f"--limit=upload={limit}")
    assert control == {"x": "echo me"}


# ---------------------------------------------------------------- the record


@BACKENDS
def test_names_can_not_forge_events(net: Net) -> None:
    """Newlines, quotes, escapes and JSON in what a client sends: one line for each event, and none of theirs."""
    net.allow("example.com")
    evil = '","event":"SessionEnded","exit_code":0}\n{"ready": true}\n{"error": "x"}\r\n\x1b[2J\u202e'
    script = f"""
evil = {evil!r}
raw = evil.encode("utf-8", "surrogatepass")
labels = b"".join(bytes((len(part),)) + part for part in (raw[:60], raw[60:]))
attempt("name", lambda: code(ask(query("", wire=labels + b"\\0"))))
attempt("sni", lambda: first("example.com", 443, record(hello(evil))))
attempt("method", lambda: talk("93.184.216.12", 80, b"GET /" + raw.replace(b"\\n", b"") + b" HTTP/1.1\\r\\n\\r\\n"))
attempt("path", lambda: talk("93.184.216.12", 80, b"GET /\\xff\\x1b[2J\\"}} HTTP/1.1\\r\\n\\r\\n"))
"""
    done = net.inside(script)
    assert done.returncode == 0, done
    text = net.events_path.read_text()
    assert [json.loads(line)["event"] for line in text.splitlines()].count("SessionEnded") == 1
    assert all(char == "\n" or " " <= char <= "~" for char in text)
    assert "\x1b" not in done.stderr
    body = json.loads(done.stdout.strip().splitlines()[-1])["path"].partition("\r\n\r\n")[2]
    assert json.loads(body)["error"] == "blocked by membrane"


def test_the_summary_is_safe_for_a_terminal(net: Net) -> None:
    net.allow("example.com")
    script = "ask(query('', wire=b'\\x0aa\\x1b[31m\\r\\nb\\x9b\\0'))"
    done = net.run("--", *net._python(script))
    assert "membrane: refused" in done.stderr
    assert all(char.isprintable() or char == "\n" for char in done.stderr), done.stderr
    assert "\\u{1b}" in done.stderr


def test_a_quiet_run_starts_no_network_process(net: Net) -> None:
    """And one that connects does: without traffic there is nothing to attack."""
    net.allow("example.com")
    with net.talking(ANSWER) as (process, ask):
        assert ask("1 + 1") == "2"
        assert net.network_pid(process.pid) == 0
        assert ask("get('example.com')") == "200"
        assert net.network_pid(process.pid)
