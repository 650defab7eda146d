"""Attacks on addresses: spellings, inner forms, rebinding, the host and its network (rows N08-N14, N23, N48, N58)."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
from collections.abc import Iterator

import pytest
from net_world import BACKENDS, Net, names

EXAMPLE4, EXAMPLE6 = names.address("example.com"), names.address("example.com", 6)


def gets(*hosts: str, port: int = 80) -> str:
    """A script that asks each host for a page."""
    return "\n".join(f"attempt({host!r}, lambda: get({host!r}, {port}))" for host in hosts)


# ---------------------------------------------------------------- N08: both families


def test_n08_ipv6_is_filtered_as_ipv4_is(net: Net) -> None:
    hosts = (
        EXAMPLE4,
        EXAMPLE6,
        names.address("google.com"),
        names.address("google.com", 6),
        "v4only.test",
        "v6only.test",
    )
    assert set(net.control(gets(*hosts)).values()) == {"200"}
    net.allow()
    found = net.attack(gets(*hosts))
    assert set(found.values()) == {"403", "EAI_NONAME"}
    assert {event["access"].get("address") or event["access"]["name"] for event in net.denied()} == set(hosts)
    net.allow(EXAMPLE4, "v4only.test")
    found = net.attack(gets(*hosts))
    assert [host for host, status in found.items() if status == "200"] == [EXAMPLE4, "v4only.test"]
    net.allow(EXAMPLE6, "v6only.test")
    found = net.attack(gets(*hosts))
    assert [host for host, status in found.items() if status == "200"] == [EXAMPLE6, "v6only.test"]


# ---------------------------------------------------------------- N09-N11: an address in other clothes

MAPPED = [f"::ffff:{EXAMPLE4}", "::ffff:5db8:d80b", "0:0:0:0:0:ffff:5db8:d80b"]
CARRIERS = ["64:ff9b::{0}", "::{0}", "::ffff:0:{0}", "2002:{0}::1", "64:ff9b:1::{0}", "2606:2800:220:1::5efe:{0}"]
METADATA = "a9fe:a9fe"  # 169.254.169.254


@pytest.mark.parametrize("rule", ["**", "0.0.0.0/0", "::/0", "169.254.0.0/16"])
def test_n09_inner_addresses_meet_the_floor(net: Net, rule: str) -> None:
    """Metadata inside of NAT64, 6to4, mapped, compatible, translated and ISATAP forms; none is ever dialled."""
    hosts = [form.format(METADATA) for form in CARRIERS]
    hosts += ["::ffff:169.254.169.254", "64:ff9b::169.254.169.254", "2001:0:5db8:d80b:0:0:5601:5601", "fd00:ec2::254"]
    before = len(net.requests())
    assert net.control(gets("169.254.169.254")) == {"169.254.169.254": "200"}
    assert len(net.requests()) == before + 1
    net.allow(rule)
    found = net.attack(gets(*hosts))
    assert set(found.values()) == {"403"}, found
    assert len(net.requests()) == before + 1
    assert {event["reason"] for event in net.denied()} <= {"metadata address", "address not allowed", "private address"}
    assert len(net.denied()) == len(hosts)


@pytest.mark.parametrize("rule", ["**", "64:ff9b::/96", "2002::/16"])
def test_n09_private_addresses_inside_are_private(net: Net, rule: str) -> None:
    hosts = [
        "64:ff9b::10.0.0.7",
        "64:ff9b::127.0.0.1",
        "2002:a00:7::1",
        "2002:7f00:1::1",
        "64:ff9b::a4d:2",
        "64:ff9b::7f00:1",
    ]
    net.allow(rule)
    found = net.attack(gets(*hosts))
    assert set(found.values()) == {"403"}, found
    assert len(net.denied()) == len(hosts)


@BACKENDS
def test_n09_a_mapped_address_is_the_address(net: Net) -> None:
    net.allow(EXAMPLE4)
    found = net.attack(gets(*MAPPED, "::ffff:93.184.216.12"))
    assert [found.pop(host) for host in MAPPED] == ["200"] * 3
    assert found == {"::ffff:93.184.216.12": "403"}
    net.allow("**", deny=[EXAMPLE4])
    assert set(net.attack(gets(EXAMPLE4, *MAPPED)).values()) == {"403"}
    assert {event["access"]["address"] for event in net.denied("denied by rule")} == {EXAMPLE4}


@pytest.mark.parametrize(
    "spelling",
    [
        "2606:2800:0220:0001:0000:0000:0000:000b",
        "2606:2800:220:1:0:0:0:b",
        "2606:2800:220:1::000b",
        "2606:2800:0220:1::B",
    ],
)
def test_n10_spellings_of_ipv6(net: Net, spelling: str) -> None:
    """What is judged is what the kernel parsed."""
    net.allow("**", deny=[EXAMPLE6])
    assert net.attack(gets(spelling)) == {spelling: "403"}
    assert net.denied("denied by rule", address=EXAMPLE6)
    net.allow(EXAMPLE6)
    assert net.attack(gets(spelling)) == {spelling: "200"}


@BACKENDS
def test_n10_zones(net: Net) -> None:
    """A zone changes nothing, and opens nothing."""
    net.allow("**", "fe80::/10")
    hosts = ("fe80::1%lo", "fe80::a9fe:a9fe%1")
    assert net.control("attempt('x', lambda: dial('fe80::1%eth0', 80, 1))")["x"] in ("timeout", "EHOSTUNREACH")
    assert set(net.attack(gets(*hosts)).values()) <= {"403", "EINVAL", "ENETUNREACH"}
    assert net.denied("metadata address", address="fe80::1")


LOOPBACK_SPELLINGS = [
    "127.1",
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "0177.0.0.1",
    "0",
    "0.0.0.0",
    "127.0.0.1",
    "localhost",
]


def test_n11_spellings_of_loopback_are_the_sandboxes_own(net: Net) -> None:
    """The C library reads all of them; none is the host's, whatever is allowed."""
    script = gets(*LOOPBACK_SPELLINGS, "[::1]"[1:-1], "::", port=names.DEV_PORT)
    outside = net.control(script)
    assert set(outside.values()) == {"200"}
    net.allow("**", "127.0.0.0/8", "0.0.0.0/8", "::1", "localhost")
    assert set(net.attack(script).values()) == {"ECONNREFUSED"}


@pytest.mark.parametrize("spelling", ["1572395019", "0x5db8d80b", "0135.0270.0330.013", "93.12113931", "93.184.55307"])
def test_n11_spellings_of_a_public_address(net: Net, spelling: str) -> None:
    """They are the address that they mean, in a client; as a rule they are refused."""
    assert net.control(gets(spelling)) == {spelling: "200"}
    net.allow("example.com")
    assert net.attack(gets(spelling)) == {spelling: "403"}
    assert net.denied("address not allowed", address=EXAMPLE4)
    net.allow(spelling)
    assert net.inside("pass").returncode == 78
    # As a name in a query, past the library: not a host name.
    net.allow("**")
    assert net.attack(f"say('code', code(ask(query({spelling!r}))))") == {"code": 3}
    assert net.denied("name malformed", name=spelling)


# ---------------------------------------------------------------- N12, N13: names that lead inward, and change


class Zone:
    """A resolver on the host of the world whose answers change from question to question."""

    PORT = 5353
    SERVER = r"""
import dns.message, dns.rrset, dns.flags, socket, sys, json
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("127.0.0.1", int(sys.argv[1])))
script = json.loads(sys.argv[2])
print("up", flush=True)
asked = {}
while True:
    wire, peer = sock.recvfrom(4096)
    query = dns.message.from_wire(wire)
    entry = query.question[0]
    name, kind = entry.name.to_text(omit_final_dot=True).lower(), dns.rdatatype.to_text(entry.rdtype)
    turns = script.get(name + " " + kind, [[]])
    turn = asked.get((name, kind), 0)
    asked[name, kind] = turn + 1
    print(json.dumps([name, kind, turn]), flush=True)
    reply = dns.message.make_response(query)
    for owner, rtype, value in turns[min(turn, len(turns) - 1)]:
        reply.answer.append(dns.rrset.from_text(owner + ".", 0, "IN", rtype, value))
    sock.sendto(reply.to_wire(), peer)
"""


@contextlib.contextmanager
def zone(net: Net, port: int, script: dict[str, list[list[tuple[str, str, str]]]]) -> Iterator[subprocess.Popen[bytes]]:
    import sys

    command = [sys.executable, "-c", Zone.SERVER, str(port), json.dumps(script)]
    process = net.world.popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        assert process.stdout
        assert select.select([process.stdout], [], [], 60)[0]
        assert process.stdout.readline() == b"up\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def a(name: str, *values: str) -> list[tuple[str, str, str]]:
    return [(name, "AAAA" if ":" in value else "A", value) for value in values]


INWARD = {
    "loopback": "127.0.0.1",
    "loopback-other": "127.8.9.10",
    "private10": "10.0.0.7",
    "private172": "172.16.0.1",
    "private192": "192.168.1.1",
    "carrier": "100.64.0.1",
    "metadata": "169.254.169.254",
    "ecs": "169.254.170.2",
    "alibaba": "100.100.100.200",
    "azure": "168.63.129.16",
    "link-local": "169.254.1.1",
    "unspecified": "0.0.0.0",
    "broadcast": "255.255.255.255",
    "multicast": "224.0.0.1",
    "fake": "198.18.0.16",
    "own": "198.18.0.2",
    "host": names.HOST4,
    "loopback6": "::1",
    "unspecified6": "::",
    "mapped-loopback": "::ffff:127.0.0.1",
    "mapped-metadata": "::ffff:169.254.169.254",
    "compatible": "::127.0.0.1",
    "nat64-loopback": "64:ff9b::127.0.0.1",
    "nat64-metadata": "64:ff9b::169.254.169.254",
    "sixtofour": "2002:7f00:1::1",
    "teredo": "2001:0:5db8:d80b:0:0:80ff:fffe",
    "ula": "fd00::1",
    "host6": names.HOST6,
    "link-local6": "fe80::1",
    "aws6": "fd00:ec2::254",
    "multicast6": "ff02::1",
    "site-local": "fec0::1",
    "fake6": "fd00:6d65:6d62:1::10",
}


def test_n12_names_that_lead_inward(net: Net) -> None:
    """Every kind of address that is not the public Internet, as the only answer for an allowed name."""
    script = {
        f"{name}.test {'AAAA' if ':' in value else 'A'}": [a(f"{name}.test", value)] for name, value in INWARD.items()
    }
    script["public.test A"] = [a("public.test", EXAMPLE4)]
    hosts = [f"{name}.test" for name in INWARD]
    before = len(net.requests())
    net.allow("*.test", dns_resolver="127.0.0.1:5401")
    attack = (
        gets("public.test", *hosts)
        + f"\nfor host in {hosts!r}: attempt(host + ' dev', lambda: get(host, {names.DEV_PORT}))"
    )
    with zone(net, 5401, script):
        found = net.attack(attack)
    assert found.pop("public.test") == "200", "positive control"
    assert set(found.values()) == {"403"}, {host: value for host, value in found.items() if value != "403"}
    assert len(net.requests()) == before + 1
    refused = net.denied("private address") + net.denied("metadata address")
    assert {event["access"]["host"] for event in refused} == set(hosts)


def test_n12_public_names_for_loopback(net: Net) -> None:
    hosts = ("loopback.test", "mapped.test", "this-host.test", "zero.test")
    outside = net.control(gets(*hosts, port=names.LAN_PORT))
    assert set(outside.values()) == {"200"}
    net.allow("**")
    assert set(net.attack(gets(*hosts, port=names.LAN_PORT)).values()) == {"403"}
    assert {event["access"]["host"] for event in net.denied("private address")} == set(hosts)


def test_n13_the_answer_changes(net: Net) -> None:
    """First public, then private: what was resolved is what is judged and dialled, each time."""
    script = {"turn.test A": [a("turn.test", EXAMPLE4), a("turn.test", "127.0.0.1")]}
    attack = f"""
seen = []
until = time.monotonic() + 60
while time.monotonic() < until:  # an answer is kept for five seconds, whatever its TTL says
    seen.append(get("turn.test", {names.LAN_PORT}))
    if seen[-1] != "200":
        break
    time.sleep(0.2)
say("first", seen[0])
say("last", seen[-1])
"""
    net.allow("turn.test", dns_resolver="127.0.0.1:5402")
    before = len(net.requests(host="turn.test"))
    with zone(net, 5402, script) as process:
        assert net.attack(attack) == {"first": "200", "last": "403"}
        process.kill()
        assert process.stdout
        asked = [json.loads(line) for line in process.stdout.read().splitlines()]
    assert [turn for _, kind, turn in asked if kind == "A"] == [0, 1]  # one question for many connections
    assert len(net.requests(host="turn.test")) > before
    assert net.denied("private address", host="turn.test", address="127.0.0.1")
    assert {event["address"] for event in net.events("ConnectionOpened")} == {EXAMPLE4}


def test_n13_of_many_answers_only_public_ones_are_dialled(net: Net) -> None:
    """Also when the public one does not answer: a client that waits for the next address gets none."""
    script = {
        "mixed.test A": [a("mixed.test", "127.0.0.1", "10.0.0.7", EXAMPLE4, "169.254.169.254")],
        "dead.test A": [a("dead.test", names.UNREACHABLE4, "127.0.0.1", "10.0.0.7")],
        "alias.test A": [[("alias.test", "CNAME", "localhost."), ("localhost", "A", "127.0.0.1")]],
        "stray.test A": [a("google.com", EXAMPLE4)],
        "text.test A": [[("text.test", "TXT", '"93.184.216.11"')]],
        "crowd.test A": [a("crowd.test", *(f"10.1.{n // 200}.{n % 200 + 1}" for n in range(1000)))],
    }
    net.allow("*.test", dns_resolver="127.0.0.1:5403")
    with zone(net, 5403, script):
        found = net.attack(gets("mixed.test", "dead.test", "alias.test", "stray.test", "text.test", "crowd.test"))
    assert found == {
        "mixed.test": "200",
        "dead.test": "502",
        "alias.test": "403",
        "stray.test": "502",
        "text.test": "502",
        "crowd.test": "403",
    }
    dialled = {event["address"] for event in net.events("ConnectionOpened")}
    assert dialled <= {EXAMPLE4, names.UNREACHABLE4, ""}


def test_n13_another_process_can_not_answer_for_the_resolver(net: Net) -> None:
    """Inside, whatever is sent to whatever port: the resolver that is asked is outside, on another network."""
    net.allow("example.com")
    script = f"""
noise = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
answer = b"\\0\\0\\x81\\x80\\0\\1\\0\\1\\0\\0\\0\\0" + query("example.com")[12:]
answer += b"\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\x3c\\0\\4" + socket.inet_aton("127.0.0.1")
say("sent", 0)
for port in range(1024, 65536, 7):
    try:
        noise.sendto(answer, ("127.0.0.1", port))
        _results["sent"] += 1
    except OSError:
        pass
attempt("dialled", lambda: get("example.com", {names.LAN_PORT}))
"""
    assert net.attack(script)["dialled"] == "200"
    assert {event["address"] for event in net.events("ConnectionOpened")} <= {EXAMPLE4, EXAMPLE6}


# ---------------------------------------------------------------- N14: metadata

SERVICES = ["169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "fd00:ec2::254", "192.0.0.192"]


@pytest.mark.parametrize("rule", ["**", "0.0.0.0/0", "169.254.0.0/16", "100.64.0.0/10", "fd00::/8"])
def test_n14_broad_rules_never_open_metadata(net: Net, rule: str) -> None:
    script = gets(*SERVICES, "metadata.google.internal", "metadata.test")
    outside = net.control(script)
    assert set(outside.values()) == {"200"}
    before = len(net.requests())
    net.allow(rule, "metadata.test", "**")
    found = net.attack(script)
    assert set(found.values()) <= {"403", "EAI_NONAME"}, found
    assert len(net.requests()) == before
    told = net.denied("metadata address")
    asked = [event["access"] for event in told]
    assert {access.get("host") or access.get("address") or access["name"] for access in asked} == {
        *SERVICES, "metadata.google.internal", "metadata.test",
    }  # fmt: skip
    assert all("169.254" not in (event["hint"] or "") for event in told)


def test_n14_an_exact_rule_opens_it(net: Net) -> None:
    net.allow("169.254.169.254:80")
    assert net.attack(gets("169.254.169.254")) == {"169.254.169.254": "200"}


@BACKENDS
@pytest.mark.parametrize("proxy", ["http://proxy.test:3128", "socks5://proxy.test:1080"])
def test_n14_not_through_an_upstream_proxy(net: Net, proxy: str) -> None:
    """The proxy resolves names itself, so the names of these services are refused, and their addresses."""
    net.allow("**", upstream_proxy=proxy)
    found = net.attack(gets("example.com", "metadata.google.internal", "169.254.169.254", "::ffff:169.254.169.254"))
    assert found.pop("example.com") == "200"
    assert found == {
        "metadata.google.internal": "EAI_NONAME",
        "169.254.169.254": "403",
        "::ffff:169.254.169.254": "403",
    }
    assert net.proxied(host="metadata.google.internal") == []
    assert net.proxied(host="169.254.169.254") == []
    assert net.denied("metadata address", kind="NameQuery", name="metadata.google.internal")


# ---------------------------------------------------------------- our own addresses


def test_fake_addresses_are_good_for_their_name_only(net: Net) -> None:
    """Guessing: an address that no name has, one whose name is open on another port, the next one, the last one."""
    net.allow("example.com:80", "google.com:8000")
    script = """
known = socket.getaddrinfo("google.com", 8000, socket.AF_INET)[0][4][0]
known6 = socket.getaddrinfo("google.com", 8000, socket.AF_INET6)[0][4][0]
attempt("its port", lambda: get(known, 8000, "google.com"))
attempt("its port, v6", lambda: get(known6, 8000, "google.com"))
attempt("another port", lambda: get(known, 80, "google.com"))
attempt("another port, v6", lambda: get(known6, 80, "google.com"))
for n in (0, 1, 3, 15, 17, 18, 4000):
    attempt(f"guess {n}", lambda: get(f"198.18.{n >> 8}.{n & 255}", 80, "example.com"))
    attempt(f"guess6 {n}", lambda: get(f"fd00:6d65:6d62:1::{n:x}", 80, "example.com"))
attempt("end", lambda: get("198.19.255.255", 80, "example.com"))
attempt("prefix", lambda: get("fd00:6d65:6d62::1", 80, "example.com"))
attempt("network", lambda: get("fd00:6d65:6d62:2::10", 80, "example.com"))
"""
    found = net.attack(script)
    assert [found.pop("its port"), found.pop("its port, v6")] == ["200", "200"]
    assert set(found.values()) == {"403"}, found
    assert {event["access"]["host"] for event in net.denied("port not allowed")} == {"google.com"}
    assert len(net.denied("address not allowed")) == 17


@pytest.mark.parametrize("rule", ["198.18.0.0/15", "fd00:6d65:6d62::/48", "**"])
def test_fake_addresses_can_not_be_opened_by_address(net: Net, rule: str) -> None:
    net.allow(rule)
    found = net.attack(gets("198.18.0.16", "198.18.0.99", "198.18.0.1", "fd00:6d65:6d62:1::10", "fd00:6d65:6d62::1"))
    assert set(found.values()) == {"403"}
    assert len(net.denied("address not allowed")) == 5


def test_the_intercept_port(net: Net) -> None:
    """Nobody inside can listen there, or learn anything by connecting."""
    net.allow("**")
    script = """
def bind(address, port, *options):
    with socket.socket(family(address)) as sock:
        for option in options:
            sock.setsockopt(socket.SOL_SOCKET, option, 1)
        sock.bind((address, port))
        sock.listen()
for address in ("198.18.0.2", "fd00:6d65:6d62::2", "0.0.0.0", "::"):
    attempt(address, lambda: bind(address, 1))
    attempt(address + " shared", lambda: bind(address, 1, socket.SO_REUSEADDR, socket.SO_REUSEPORT))
attempt("control", lambda: bind("0.0.0.0", 2))
attempt("foreign", lambda: bind("127.0.0.1", 1))
attempt("connect", lambda: get("198.18.0.2", 1))
attempt("connect6", lambda: get("fd00:6d65:6d62::2", 1))
"""
    found = net.attack(script)
    assert [found.pop("control"), found.pop("foreign")] == ["ok", "ok"]
    assert [found.pop("connect"), found.pop("connect6")] == ["403", "403"]
    assert set(found.values()) == {"EADDRINUSE"}
    assert len(net.denied("address not allowed", port=1)) == 2


@BACKENDS
def test_a_listener_inside_takes_no_traffic_of_ours(net: Net) -> None:
    """Every address is local in there, so it can be bound; connections to it still go through the policy."""
    net.allow("example.com")
    script = f"""
import threading
def serve(address, port):
    sock = socket.socket(family(address))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((address, port))
    sock.listen()
    def accept():
        client = sock.accept()[0]
        say("taken", address)
        client.sendall(b"HTTP/1.1 299 mine\\r\\n\\r\\n")
    threading.Thread(target=accept, daemon=True).start()  # it waits until the end
fake = socket.getaddrinfo("example.com", 80, socket.AF_INET)[0][4][0]
attempt("bind", lambda: serve(fake, 80))
attempt("bind foreign", lambda: serve("{EXAMPLE4}", 80))
attempt("bind any", lambda: serve("0.0.0.0", 8000))
attempt("by name", lambda: get("example.com"))
attempt("by address", lambda: get("{EXAMPLE4}"))
attempt("by name, any", lambda: get("example.com", 8000))
"""
    found = net.attack(script)
    assert "taken" not in found
    assert [found["by name"], found["by address"], found["by name, any"]] == ["200", "403", "200"]


# ---------------------------------------------------------------- N23, N48, N58


@BACKENDS
def test_n23_the_dialled_address_is_ours(net: Net) -> None:
    """The client chooses a name's address only by naming it: hosts files and --resolve lead to a literal."""
    net.allow("example.com")
    curl = "curl -s -m 60 -k -o /dev/null -w '%{http_code}'"
    google = names.address("google.com")
    script = f"{curl} --resolve example.com:443:{google} https://example.com/; echo; {curl} https://example.com/"
    assert net.outside("sh", "-c", script).stdout.split() == ["200", "200"]
    done = net.run(f"--events={net.events_path}", "--", "sh", "-c", script)
    assert done.stdout.split() == ["000", "200"], done
    assert net.denied("address not allowed", address=google)
    assert {event["address"] for event in net.events("ConnectionOpened")} <= {EXAMPLE4, EXAMPLE6}


@BACKENDS
@pytest.mark.parametrize("allowed", [["**"], ["*.internal", "*.docker.internal"]])
def test_n48_host_services(net: Net, allowed: list[str]) -> None:
    """The host's loopback, its own addresses, its router, its resolver; by every name that tools have for it."""
    targets = [names.HOST4, names.HOST6, names.ROUTER4, "172.17.0.1", "192.168.65.2", "127.0.0.53"]
    outside = net.control(gets(names.HOST4, names.HOST6, port=names.LAN_PORT))
    assert set(outside.values()) == {"200"}
    net.allow(*allowed)
    aliases = [
        "host.internal",
        "host.docker.internal",
        "gateway.docker.internal",
        "host.containers.internal",
        "localhost",
    ]
    found = net.attack(gets(*targets, *aliases, port=names.LAN_PORT))
    assert "200" not in found.values(), found
    assert net.denied(address=names.HOST4, port=names.LAN_PORT)
    assert net.denied(kind="NameQuery", name="host.internal")


@BACKENDS
def test_n48_host_internal_needs_its_port(net: Net) -> None:
    net.allow("host.internal")
    assert net.inside("pass").returncode == 78
    net.allow(f"host.internal:{names.DEV_PORT}", "**")
    script = f"attempt('its', lambda: get('host.internal', {names.DEV_PORT}))\n"
    script += f"attempt('other', lambda: get('host.internal', {names.LAN_PORT}))\n"
    script += "fake = socket.getaddrinfo('host.internal', 1, socket.AF_INET)[0][4][0]\n"
    script += f"attempt('by address', lambda: get(fake, {names.LAN_PORT}))"
    assert net.attack(script) == {"its": "200", "other": "403", "by address": "403"}
    assert net.denied("port not allowed", host="host.internal", port=names.LAN_PORT)


UDP_SERVER = r"""
import socket
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    socks = globals().setdefault("socks", [])
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.bind((address, 5000))
    socks.append(sock)
import select
print("up", flush=True)
while True:
    for sock in select.select(socks, [], [])[0]:
        data, peer = sock.recvfrom(99)
        print(data.decode(), flush=True)
        sock.sendto(b"host " + data, peer)
"""
LOOPBACK = ("127.0.0.1", "127.0.0.53", "::1", "198.18.0.2", "0.0.0.0", "::")


@pytest.mark.parametrize("rule", ["**", "0.0.0.0/0", "127.0.0.1", "::1", "127.0.0.0/8", "::/0"])
def test_n48_datagrams_to_loopback_stay_inside(net: Net, rule: str) -> None:
    """What is sent to the sandbox's loopback is its own business; that is no way to the host's."""
    import sys

    reached = rule in ("**", "0.0.0.0/0")
    script = """
def send(address):
    with socket.socket(family(address), socket.SOCK_DGRAM) as sock:
        return sock.sendto(b"inside", (address, 5000))
"""
    script += f"for address in {LOOPBACK}: attempt(address, lambda: send(address))\n"
    script += f"attempt('elsewhere', lambda: {'udp' if reached else 'send'}({names.address('echo.test')!r}"
    script += ", 5000))" if reached else "))"
    server = net.world.popen([sys.executable, "-c", UDP_SERVER], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert server.stdout
        assert server.stdout.readline() == b"up\n"
        net.allow({"dest": rule, "ports": ["5000/udp"]})
        found = net.attack(script)
        # The run is over, and a socket is read in order: what came out of the sandbox came before this.
        outside = net.control("for address in ('127.0.0.1', '::1'): attempt(address, lambda: udp(address, 5000))")
        assert set(outside.values()) == {"host hello"}
    finally:
        server.kill()
        seen, _errors = server.communicate()
    assert seen == b"hello\nhello\n"
    assert found.pop("elsewhere") == ("hello" if reached else len(b"inside"))
    assert set(found) == set(LOOPBACK) and set(found.values()) <= {len(b"inside"), "ECONNREFUSED"}
    assert bool(net.denied(address=names.address("echo.test"), port=5000)) is not reached
    assert bool(net.connections(service="udp")) is reached


@pytest.mark.parametrize("port", [22, 25, 123, 587])
def test_n58_no_port_is_open_to_everybody(net: Net, port: int) -> None:
    """No rule for one host opens a port, and no port opens a host: SSH, mail, NTP."""
    net.allow({"dest": "github.com", "ports": [22, 443]}, "tcp://echo.test:7")
    script = f"""
NO_REQUEST = b"\\0"
attempt("tcp", lambda: first("{EXAMPLE4}", {port}, b"x"))  # may become a request: it has a second for that
attempt("tcp6", lambda: first("{EXAMPLE6}", {port}, NO_REQUEST))
attempt("lan", lambda: first("10.77.0.1", {port}, NO_REQUEST))
attempt("github by address", lambda: first("{names.address("github.com")}", {port}, NO_REQUEST))
attempt("banner", lambda: first("github.com", 22))
attempt("udp", lambda: udp("{EXAMPLE4}", {port}))
"""
    found = net.attack(script)
    assert found.pop("banner").startswith("SSH-2.0"), "positive control"
    assert found.pop("udp") == "EPERM"
    assert set(found.values()) == {"ECONNRESET"}, found
    assert len(net.denied("address not allowed", port=port)) == 5  # the datagram among them


def test_n58_on_port_53_our_resolver_answers_whatever_the_address(net: Net) -> None:
    """No DNS server is reached, and what is no query gets no answer: the first one is that of the query behind it."""
    net.allow({"dest": "github.com", "ports": [22, 443]}, "tcp://echo.test:7")
    servers = (EXAMPLE4, EXAMPLE6, "10.77.0.1", names.address("github.com"))
    script = f"""
def behind_no_query(server):
    with socket.socket(family(server), socket.SOCK_DGRAM) as sock:
        sock.settimeout(60)
        sock.sendto(b"hello", (server, 53))
        sock.sendto(query("n58.test"), (server, 53))
        return sock.recv(65535)
def no_message(server):
    with dial(server, 53) as sock:
        sock.sendall(b"x")
        sock.shutdown(socket.SHUT_WR)
        return receive(sock)
for server in {servers}:
    attempt("tcp " + server, lambda: ask_tcp(query("n58.test"), server)[3] & 15)
    attempt("udp " + server, lambda: behind_no_query(server)[3] & 15)
    attempt("no message " + server, lambda: no_message(server))
attempt("banner", lambda: first("github.com", 22))
"""
    found = net.attack(script)
    assert found.pop("banner").startswith("SSH-2.0"), "positive control"
    ways = {"tcp": 3, "udp": 3, "no message": ""}  # 3: NXDOMAIN (RFC 1035)
    assert found == {f"{way} {server}": seen for server in servers for way, seen in ways.items()}
    assert net.questions("n58.test") == []
