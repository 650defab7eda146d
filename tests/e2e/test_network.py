"""What can be reached, by which client, and how a refusal feels: at once, by name, and on the record."""

from __future__ import annotations

import json
import select
import subprocess
import time
from typing import Any

import pytest
from world import PATIENCE, names
from world.box import Box

WAITS = 60  # seconds that a client waits for an answer
QUICK = 50.0  # seconds within which a refusal must be felt, on whatever machine: nobody has waited to the end
EXAMPLE4, EXAMPLE6 = names.address("example.com"), names.address("example.com", 6)

URLLIB = f"import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout={WAITS}).status)"
ASYNCIO = """
import asyncio, ssl, sys, urllib.parse
async def main():
    url = urllib.parse.urlsplit(sys.argv[1])
    secure = url.scheme == "https"
    reader, writer = await asyncio.open_connection(url.hostname, 443 if secure else 80, ssl=secure or None)
    writer.write(f"GET / HTTP/1.0\\r\\nHost: {url.hostname}\\r\\n\\r\\n".encode())
    print((await reader.read()).split()[1].decode())
asyncio.run(main())
"""
NODE = "fetch(process.argv[1]).then(r => console.log(r.status), e => { console.error(e.cause || e); process.exit(1) })"
JAVA = """
import java.net.*;
public class Fetch {
    public static void main(String[] arguments) throws Exception {
        System.out.println(((HttpURLConnection) new URL(arguments[0]).openConnection()).getResponseCode());
    }
}
"""
GO = """
package main

import ("fmt"; "net/http"; "os")

func main() {
    response, err := http.Get(os.Args[1])
    if err != nil {
        fmt.Fprintln(os.Stderr, err)
        os.Exit(1)
    }
    fmt.Println(response.StatusCode)
}
"""
WGET = """
wget -q -S -O /dev/null -T 60 -t 1 --ca-certificate="$CURL_CA_BUNDLE" "$0" 2>&1 | grep -o "HTTP/1.1 [0-9]*" | cut -c10-
"""
CLIENTS: dict[str, list[str]] = {
    "curl": ["curl", "-fsS", "-m", f"{WAITS}", "-o", "/dev/null", "-w", "%{http_code}\n"],
    "wget": ["sh", "-c", WGET],
    "urllib": ["python3", "-c", URLLIB],
    "asyncio": ["python3", "-c", ASYNCIO],
    "node": ["node", "-e", NODE],
}
CURL = CLIENTS["curl"]
# What curl -f makes of a refusal: no connection, an HTTP error (plain HTTP is told why in a 403), a TLS alert, a reset.
REFUSED = {7, 22, 35, 52, 56}
NO_ANSWER = {"000", "403", "502"}
UDP_ECHO = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
sock = socket.socket(family, socket.SOCK_DGRAM)
sock.settimeout(60)
try:
    sock.connect((sys.argv[1], int(sys.argv[2])))
    sock.send(b"hello")
    print(sock.recv(100).decode())
except OSError as error:
    sys.exit(type(error).__name__)
"""
TCP_ECHO = """
import socket, sys, threading
sock = socket.create_connection((sys.argv[1], 7), timeout=60)
data = bytes(range(256)) * (int(sys.argv[2]) // 256)
def send():
    sock.sendall(data)
    sock.shutdown(socket.SHUT_WR)
threading.Thread(target=send).start()
back = b"".join(iter(lambda: sock.recv(1 << 16), b""))
print(back == data, len(back))
"""
MANY = """
import selectors, socket, sys
count = int(sys.argv[2])
socks = [socket.create_connection((sys.argv[1], 7), timeout=60) for _ in range(count)]
for index, sock in enumerate(socks):
    sock.sendall(b"%d\\n" % index)
print(sum(int(sock.recv(100)) == index for index, sock in enumerate(socks)))
"""


def timed(box: Box, *arguments: str, **options: Any) -> tuple[subprocess.CompletedProcess[str], float]:
    started = time.monotonic()
    done = box.run(*arguments, **options)
    return done, time.monotonic() - started


def fails_quickly(box: Box, *arguments: str) -> subprocess.CompletedProcess[str]:
    done, took = timed(box, *arguments)
    assert done.returncode not in (0, 78, 125), done
    assert took < QUICK, (took, done)
    return done


# ---------------------------------------------------------------- clients


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_clients(box: Box, client: str, scheme: str) -> None:
    box.allow("example.com")
    done = box.run(*box.tls, "--", *CLIENTS[client], f"{scheme}://example.com/")
    assert done.stdout.split() == ["200"], done
    before = len(box.world.requests(host="google.com"))
    denied, took = timed(box, *box.tls, "--", *CLIENTS[client], f"{scheme}://google.com/")
    assert "200" not in denied.stdout
    assert took < QUICK
    assert len(box.world.requests(host="google.com")) == before


@pytest.mark.needs_tool("java")
def test_java(box: Box) -> None:
    (box.workspace / "Fetch.java").write_text(JAVA)
    box.allow("example.com")
    done = box.run("--", "java", "Fetch.java", "http://example.com/")
    assert done.stdout.split() == ["200"], done
    assert "UnknownHost" in box.run("--", "java", "Fetch.java", "http://google.com/").stderr


@pytest.mark.needs_tool("go")
def test_go(box: Box) -> None:
    """Its own resolver, no libc: two queries at once from one socket, then both families at once."""
    (box.workspace / "fetch.go").write_text(GO)
    environment = {"CGO_ENABLED": "0", "GOCACHE": str(box.home / "go-cache"), "GO111MODULE": "off"}
    built = box.outside("go", "build", "-o", "fetch", "fetch.go", env=environment, timeout=180)
    assert built.returncode == 0, built
    box.allow("example.com")
    done = box.run(*box.tls, "--", "./fetch", "https://example.com/")
    assert done.stdout.split() == ["200"], done
    assert "no such host" in box.run("--", "./fetch", "http://google.com/").stderr


def test_proxy_variables_change_nothing(box: Box) -> None:
    """The host's are not inherited; a client that ignores them is filtered all the same."""
    box.allow("example.com")
    host = {"http_proxy": "http://127.0.0.1:1", "HTTPS_PROXY": "http://127.0.0.1:1", "ALL_PROXY": "http://127.0.0.1:1"}
    done = box.run("--", *CURL, "http://example.com/", env=host)
    assert done.stdout == "200\n", done
    fails_quickly(box, "--", *CURL, "--noproxy", "*", "http://google.com/")


# ---------------------------------------------------------------- names, addresses, ports


@pytest.mark.parametrize(
    ("rule", "url"),
    [
        ("example.com", "http://example.com/"),
        ("EXAMPLE.com.", "http://example.com/"),
        ("example.com", "http://EXAMPLE.COM/"),
        ("example.com", "http://example.com./"),
        ("*.example.com", "http://deep.sub.example.com/"),
        ("example.com:80", "http://example.com/"),
        ("**", "http://example.com/"),
        ("bücher.test", "http://xn--bcher-kva.test/"),
        ("v6only.test", "http://v6only.test/"),
        ("v4only.test", "http://v4only.test/"),
        ("alias.test", "http://alias.test/"),
        ("many.test", "http://many.test/"),
        (EXAMPLE4, f"http://{EXAMPLE4}/"),
        ("93.184.216.0/24", f"http://{EXAMPLE4}/"),
        (EXAMPLE6, f"http://[{EXAMPLE6}]/"),
        ("2606:2800:220:1::/64", f"http://[{EXAMPLE6}]/"),
        ("10.0.0.7", "http://10.0.0.7/"),
        ("10.0.0.0/24", "http://10.0.0.7/"),
        ("**", f"http://{EXAMPLE4}/"),
        ("**", f"http://[{EXAMPLE6}]/"),
    ],
)
def test_allowed(box: Box, rule: str, url: str) -> None:
    done = box.run("-a", rule, "--", *CURL, url)
    assert done.stdout == "200\n", done


@pytest.mark.parametrize(
    ("rule", "url", "status"),
    [
        ("example.com", "http://notexample.com/", 6),
        ("example.com", "http://www.example.com/", 6),
        ("*.example.com", "http://example.com/", 6),
        ("*.example.com", "http://notexample.com/", 6),
        ("example.com:443", "http://example.com/", 7),
        ("example.com", f"http://{EXAMPLE4}/", 7),  # a name does not open its address
        (EXAMPLE4, "http://93.184.216.12/", 7),
        (EXAMPLE4, f"http://[{EXAMPLE6}]/", 7),
        (EXAMPLE6, f"http://{EXAMPLE4}/", 7),
        ("93.184.216.0/25", "http://93.184.216.200/", 7),
        ("**", "http://10.0.0.7/", 7),
        ("**", "http://192.168.1.1/", 7),
        ("**", "http://100.64.0.1/", 7),
        ("**", "http://169.254.169.254/", 7),
        ("169.254.0.0/16", "http://169.254.169.254/", 7),
        ("0.0.0.0/0", "http://169.254.169.254/", 7),
        ("**", "http://[::ffff:169.254.169.254]/", 7),
        ("**", "http://[::ffff:10.0.0.7]/", 7),
        ("**", "http://[64:ff9b::a9fe:a9fe]/", 7),
        ("**", "http://[fd00:ec2::254]/", 7),
        ("**", f"http://{names.HOST4}:{names.LAN_PORT}/", 7),
        ("**", f"http://[{names.HOST6}]:{names.LAN_PORT}/", 7),
    ],
)
def test_not_allowed(box: Box, rule: str, url: str, status: int) -> None:
    options = ["--globoff"] if "[" in url else []
    control = box.outside(*CURL, *options, url)
    mapped = "::ffff:" in url  # never on a wire: the kernel speaks IPv4 for it
    assert mapped or control.stdout == "200\n", f"positive control: {control}"
    done, took = timed(box, "-a", rule, "--", *CURL, *options, url)
    assert done.returncode in (REFUSED if status == 7 else {6}), done
    assert done.stdout.strip() in NO_ANSWER
    assert took < QUICK


@pytest.mark.parametrize(
    ("name", "port"),
    [
        ("loopback.test", names.DEV_PORT),
        ("private.test", 80),
        ("metadata.test", 80),
        ("metadata.google.internal", 80),
        ("this-host.test", names.LAN_PORT),
        ("mapped.test", names.DEV_PORT),
        ("nat64.test", 80),
        ("zero.test", names.DEV_PORT),
    ],
)
@pytest.mark.parametrize("rule", ["exact", "**"])
def test_names_that_point_inward(box: Box, name: str, port: int, rule: str) -> None:
    """The address is judged when it is dialled: an allowed name opens no private one."""
    url = f"http://{name}:{port}/"
    box.outside(*CURL, url)  # reaches the host's own services for all but the translated ones
    before = len(box.world.requests(host=name))
    box.allow(name if rule == "exact" else "**")
    done = fails_quickly(box, "--", *CURL, url)
    assert done.stdout.strip() in NO_ANSWER
    assert len(box.world.requests(host=name)) == before


def test_a_name_and_its_private_address_together(box: Box) -> None:
    box.allow("private.test", "10.0.0.7")
    assert box.run("--", *CURL, "http://private.test/").stdout == "200\n"


def test_of_two_addresses_only_the_public_one_is_dialled(box: Box) -> None:
    box.allow("half.test")
    done = box.run("--", "curl", "-sS", "-m", f"{WAITS}", "http://half.test/")
    assert "10.0.0.7" not in [entry["local"] for entry in box.world.requests(host="half.test")]
    assert done.returncode != 0 or '"local": "93.184.216.31"' in done.stdout


def test_ports_of_a_rule(box: Box) -> None:
    box.allow({"dest": "example.com", "ports": [80, "8000-8010/tcp"]})
    for port in (80, 8000):
        assert box.run("--", *CURL, f"http://example.com:{port}/").stdout == "200\n"
    for url in ("http://example.com:8787/", "https://example.com/"):
        assert box.outside(*CURL, "-k", url).stdout == "200\n"
        assert fails_quickly(box, "--", *CURL, "-k", url).returncode in REFUSED


def test_deny_wins(box: Box) -> None:
    box.allow("**", deny=["google.com", "93.184.216.0/28", {"dest": "example.com", "ports": [8000]}])
    assert box.run("--", *CURL, "http://example.com/").stdout == "200\n"
    for url in ("http://google.com/", "http://93.184.216.11/", "http://example.com:8000/"):
        fails_quickly(box, "--", *CURL, url)


def test_nothing_at_all_without_rules(box: Box) -> None:
    box.allow()
    for url in ("http://example.com/", f"http://{EXAMPLE4}/", f"http://[{EXAMPLE6}]/", "http://localhost:3000/"):
        fails_quickly(box, "--", *CURL, url)


def test_default_policy_lets_registries_and_not_the_rest(box: Box) -> None:
    """No policy file at all: what a first run does."""
    for host in ("pypi.org", "registry.npmjs.org", "github.com"):
        done = box.run(*box.tls, "--", *CURL, f"https://{host}/simple/demo-pkg/")
        assert done.stdout.strip() in ("200", "404"), (host, done)
    assert fails_quickly(box, *box.tls, "--", *CURL, "https://google.com/").returncode == 6


# ---------------------------------------------------------------- TLS


def test_server_name_must_be_the_resolved_name(box: Box) -> None:
    """Domain fronting: the connection is to one allowed host, the TLS name is another."""
    box.allow("httpbin.org")
    front = ["--connect-to", "google.com:443:httpbin.org:443", "https://google.com/"]
    assert box.outside(*CURL, "-k", *front).stdout == "200\n"
    before = len(box.world.requests(host="google.com"))
    done = fails_quickly(box, f"--events={box.events_path}", "--", *CURL, "-k", *front)
    assert done.returncode == 35, done
    assert len(box.world.requests(host="google.com")) == before
    text = json.dumps(box.events("AccessDenied"))
    assert "google.com" in text
    assert "httpbin.org" in text
    assert box.run(*box.tls, "--", *CURL, "https://httpbin.org/").stdout == "200\n"


def test_tls_is_end_to_end(box: Box) -> None:
    """The certificate that the client sees is the origin's."""
    box.allow("httpbin.org")
    command = "openssl s_client -connect httpbin.org:443 -servername httpbin.org </dev/null 2>/dev/null | grep issuer"
    done = box.run("--", "sh", "-c", command)
    assert "world test CA" in done.stdout, done


# ---------------------------------------------------------------- UDP


@pytest.mark.parametrize("host", ["echo.test", names.address("echo.test"), names.address("echo.test", 6)])
def test_udp_where_a_rule_opens_it(box: Box, host: str) -> None:
    entry = {"dest": host, "ports": ["5000/udp"]}
    assert box.outside("python3", "-c", UDP_ECHO, host, "123").stdout == "hello\n"
    box.allow(entry)
    assert box.run("--", "python3", "-c", UDP_ECHO, host, "5000").stdout == "hello\n"
    fails_quickly(box, "--", "python3", "-c", UDP_ECHO, host, "123")


def test_udp_is_closed_by_default(box: Box) -> None:
    box.allow("echo.test", names.address("echo.test"))
    for host in ("echo.test", names.address("echo.test")):
        done = fails_quickly(box, "--", "python3", "-c", UDP_ECHO, host, "5000")
        assert done.stderr.split()[0] in ("ConnectionRefusedError", "PermissionError", "OSError"), done


def test_a_udp_rule_opens_no_tcp(box: Box) -> None:
    box.allow({"dest": "**", "ports": ["5000/udp"]})
    assert box.run("--", "python3", "-c", UDP_ECHO, "echo.test", "5000").stdout == "hello\n"
    fails_quickly(box, "--", *CURL, "http://example.com/")
    fails_quickly(box, "--", *CURL, f"http://{EXAMPLE4}/")


# ---------------------------------------------------------------- DNS


def dig(box: Box, *arguments: str) -> str:
    return box.run("--", "dig", "+tries=1", "+time=60", *arguments).stdout


def test_answers_without_asking(box: Box) -> None:
    """An allowed name has an address of ours; nobody upstream hears of it until a connection is made."""
    box.allow("www.example.com", "*.github.com")
    before = len(box.world.questions("www.example.com"))
    for kind in ("A", "AAAA"):
        out = dig(box, "www.example.com", kind)
        assert "status: NOERROR" in out
    address = dig(box, "+short", "www.example.com", "A").strip()
    assert address.startswith(("198.18.", "198.19.")), address
    assert dig(box, "+short", "any.label.github.com", "A").strip()
    assert len(box.world.questions("www.example.com")) == before
    assert box.world.questions("any.label.github.com") == []


@pytest.mark.parametrize("kind", ["TXT", "MX", "ANY", "HTTPS", "SRV", "NULL", "CNAME"])
def test_other_types_are_empty(box: Box, kind: str) -> None:
    name = "notexample.com"
    before = len(box.world.questions(name))
    box.allow(name)
    out = dig(box, name, kind)
    assert "ANSWER: 0" in out, out
    assert "status: NOERROR" in out, out
    assert len(box.world.questions(name)) == before


def test_refused_names(box: Box) -> None:
    box.allow("example.com")
    for name in ("google.com", "example.com.evil.test", "sub.example.com", "com", "."):
        assert "status: NXDOMAIN" in dig(box, name) or name == "."
    assert "status: NXDOMAIN" in dig(box, "+tcp", "google.com")
    assert "status: NOERROR" in dig(box, "+tcp", "example.com")
    assert "status: NXDOMAIN" in dig(box, "-x", "93.184.216.11")


def test_own_resolver_option(box: Box) -> None:
    url = f"http://{names.SPLIT_NAME}/"
    box.allow(names.SPLIT_NAME)
    fails_quickly(box, "--", *CURL, url)
    assert box.run(f"--dns-resolver={names.OTHER_RESOLVER}", "--", *CURL, url).stdout == "200\n"


@pytest.mark.parametrize("name", ["broken.test", "silent.test", "unreachable.test", "no-such.test"])
def test_resolution_that_fails_is_felt(box: Box, name: str) -> None:
    box.allow(name, "example.com")
    done = box.run("--", *CLIENTS["curl"], f"http://{name}/")
    assert done.returncode in REFUSED, done
    assert box.run("--", *CURL, "http://example.com/").stdout == "200\n"


# ---------------------------------------------------------------- the host


def test_loopback_is_the_sandboxes_own(box: Box) -> None:
    assert box.outside("curl", "-sS", f"http://127.0.0.1:{names.DEV_PORT}/").stdout == names.DEV_BODY
    box.allow("**", "localhost", "127.0.0.1", "127.0.0.0/8", "::1")
    for host in ("127.0.0.1", "localhost", "[::1]"):
        assert box.run("--", *CURL, "--globoff", f"http://{host}:{names.DEV_PORT}/").returncode == 7
    script = "python3 -m http.server -b 127.0.0.1 8123 >/dev/null 2>&1 & for i in $(seq 2000); do sleep 0.05; "
    script += "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8123/ && break; done"
    assert "200" in box.run("--", "bash", "-c", script).stdout


def test_host_internal(box: Box) -> None:
    url = f"http://host.internal:{names.DEV_PORT}/"
    fails_quickly(box, "--", *CURL, url)
    done = box.run(f"--connect={names.DEV_PORT}", "--", "curl", "-sS", url)
    assert done.stdout == names.DEV_BODY, done
    fails_quickly(box, f"--connect={names.DEV_PORT}", "--", *CURL, f"http://host.internal:{names.LAN_PORT}/")


@pytest.mark.parametrize("backend", ["native", "landlock"])
def test_exposed_port(box: Box, backend: str) -> None:
    """A server inside is on the host's loopback, and only there."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    server = (
        "import http.server as h, sys, threading\n"
        "s = h.HTTPServer(('127.0.0.1', 8124), h.SimpleHTTPRequestHandler)\n"
        "threading.Thread(target=s.serve_forever, daemon=True).start()\n"
        "print('up', flush=True); sys.stdin.read()"
    )
    process = box.popen(f"--backend={backend}", "--expose=8124", "--", "python3", "-c", server, **pipes)
    assert process.stdout
    assert select.select([process.stdout], [], [], PATIENCE)[0]
    assert process.stdout.read1(3) == b"up\n"  # type: ignore[attr-defined]
    assert box.outside(*CURL, "http://127.0.0.1:8124/").stdout == "200\n"
    assert box.outside(*CURL, f"http://{names.HOST4}:8124/").returncode == 7
    process.communicate(timeout=PATIENCE)
    assert box.outside(*CURL, "http://127.0.0.1:8124/").returncode == 7


UNIX = (
    "import socket, sys; s = socket.socket(socket.AF_UNIX); "
    "s.connect(sys.argv[1].replace('@', '\\0')); print(s.recv(99))"
)


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_unix_sockets_of_the_host(box: Box, kind: str) -> None:
    address = str(box.world.host_socket) if kind == "path" else "@world"
    assert "host unix socket" in box.outside("python3", "-c", UNIX, address).stdout
    assert box.run("--", "python3", "-c", UNIX, address).returncode == 1
    if kind == "path":
        done = box.run(f"--unix-socket={address}", "--", "python3", "-c", UNIX, address)
        assert "host unix socket" in done.stdout, done


def test_unix_sockets_inside(box: Box) -> None:
    script = (
        "import socket, threading\n"
        "l = socket.socket(socket.AF_UNIX); l.bind('/tmp/s'); l.listen()\n"
        "c = socket.socket(socket.AF_UNIX); c.connect('/tmp/s'); l.accept()[0].send(b'x'); print(c.recv(1))"
    )
    assert box.run("--", "python3", "-c", script).stdout == "b'x'\n"


# ---------------------------------------------------------------- chaining


@pytest.mark.parametrize(("scheme", "port", "kind"), [("http", 3128, "connect"), ("socks5", 1080, "socks5")])
def test_upstream_proxy(box: Box, scheme: str, port: int, kind: str) -> None:
    box.allow("httpbin.org", "v6only.test")
    chain = f"--upstream-proxy={scheme}://proxy.test:{port}"
    before = len(box.world.proxied(proxy=kind, host="httpbin.org", port=443))
    done = box.run(chain, *box.tls, "--", *CURL, "https://httpbin.org/anything")
    assert done.stdout == "200\n", done
    assert len(box.world.proxied(proxy=kind, host="httpbin.org", port=443)) == before + 1
    fails_quickly(box, chain, *box.tls, "--", *CURL, "https://example.com/")
    assert box.world.proxied(host="example.com") == []
    assert box.world.proxied(host=EXAMPLE4) == []


def test_upstream_proxy_that_is_down(box: Box) -> None:
    box.allow("httpbin.org")
    done = fails_quickly(box, "--upstream-proxy=http://proxy.test:3129", "--", *CURL, "http://httpbin.org/")
    assert done.returncode in REFUSED, done


# ---------------------------------------------------------------- volume


@pytest.mark.parametrize("host", ["echo.test", names.address("echo.test", 6)])
def test_megabytes_both_ways(box: Box, host: str) -> None:
    box.allow(f"tcp://{host}:7" if host == "echo.test" else host)
    done = box.run("--", "python3", "-c", TCP_ECHO, host, str(16 << 20))
    assert done.stdout == f"True {16 << 20}\n", done


def test_many_connections(box: Box) -> None:
    box.allow("tcp://echo.test:7")
    done = box.run("--", "python3", "-c", MANY, "echo.test", "200")
    assert done.stdout == "200\n", done


# ---------------------------------------------------------------- being told


def test_summary_names_host_reason_and_line_to_add(box: Box) -> None:
    box.allow("example.com")
    done = box.run("--", "bash", "-c", "curl -sS http://google.com:81/; curl -sS http://10.0.0.7:5432/; true")
    assert done.returncode == 0
    assert "membrane: refused" in done.stderr
    assert "google.com" in done.stderr
    assert "10.0.0.7:5432" in done.stderr
    assert 'allow: ["10.0.0.7:5432"]' in done.stderr
    assert "membrane" not in box.run("--quiet", "--", "bash", "-c", "curl -sS http://google.com/; true").stderr
    assert "membrane" not in box.run("--", *CURL, "http://example.com/").stderr


def test_nothing_is_suggested_for_a_floor(box: Box) -> None:
    box.allow("**")
    done = box.run("--", *CURL, "http://169.254.169.254/")
    assert "169.254.169.254" in done.stderr
    assert 'allow: ["169.254' not in done.stderr


def test_events_of_refusals(box: Box) -> None:
    box.allow("example.com")
    script = "curl -s http://google.com/; curl -s http://93.184.216.12/; curl -s -o /dev/null http://example.com/; true"
    box.run(f"--events={box.events_path}", "--", "bash", "-c", script)
    denied = box.events("AccessDenied")
    assert [event["access"]["kind"] for event in denied].count("Connect") == 1
    assert "google.com" in json.dumps(denied)
    assert all(event["reason"] for event in denied)
    opened, closed = box.events("ConnectionOpened"), box.events("ConnectionClosed")
    assert [event["host"] for event in opened] == ["example.com"]
    assert opened[0]["address"] in (EXAMPLE4, EXAMPLE6)
    assert closed[0]["bytes_down"] > 0
    everything = box.events()
    assert [event["seq"] for event in everything] == sorted({event["seq"] for event in everything})
    assert (everything[0]["event"], everything[-1]["event"]) == ("SessionStarted", "SessionEnded")
    assert everything[-1]["denied"] == len(denied)
