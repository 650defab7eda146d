"""Attacks on the name that a TLS client shows (rows N23-N26, N60), and on who sees its bytes first."""

from __future__ import annotations

import pytest
from net_wire import hello, record
from net_world import BACKENDS, Net, names

EXAMPLE4 = names.address("example.com")
REFUSED = "\x15\x03\x03\x00\x02\x02"  # a fatal alert of ours; its description follows
ACCESS_DENIED, UNRECOGNIZED_NAME = REFUSED + "\x31", REFUSED + "\x70"

# Each gives its first answer; a server that takes the hello shows its certificate, and with it the name it serves.
SEEN = """
def seen(data, host="example.com", port=443):
    answer = first(host, port, data)
    if b"google.com" in answer:
        return "google.com"
    return answer if answer[:1] == b"\\x15" else "served" if answer[:1] == b"\\x16" else answer
"""


@BACKENDS
def test_n23_the_name_must_be_the_resolved_one(net: Net) -> None:
    """Fronting: the connection is to an allowed host, the hello names another one."""
    script = SEEN + "attempt('x', lambda: seen(record(hello('google.com'))))"
    assert net.control(script) == {"x": "google.com"}
    net.allow("example.com", "google.com")  # also when both are allowed: each on its own address
    assert net.attack(script) == {"x": UNRECOGNIZED_NAME}
    [event] = net.denied("name differs from SNI")
    assert (event["access"]["host"], event["access"]["sni"]) == ("example.com", "google.com")
    assert net.attack(SEEN + "attempt('x', lambda: seen(record(hello('example.com'))))") == {"x": "served"}


@pytest.mark.parametrize("size", [1, 2, 5, 40, 100])
def test_n23_a_hello_in_pieces(net: Net, size: int) -> None:
    """Cut into records, into segments, into both; with pauses: nothing of it goes up before the name is known."""
    script = f"""
def drip(data, piece):
    with dial("example.com", 443) as sock:
        for at in range(0, len(data), piece):
            try:
                sock.sendall(data[at:at + piece])
            except ConnectionError:
                break
            select.select([sock], [], [], 0.001)
        answer = sock.recv(65536)
        return "google.com" if b"google.com" in answer else answer[:7]
message = hello("google.com")
many = b"".join(record(message[at:at + {max(size, 4)}]) for at in range(0, len(message), {max(size, 4)}))
attempt("segments", lambda: drip(record(message), {size}))
attempt("records", lambda: drip(many, 65536))
attempt("both", lambda: drip(many, {size}))
good = hello("example.com")
attempt("control", lambda: drip(record(good), {size})[:1])
"""
    net.allow("example.com")
    found = net.attack(script)
    assert found.pop("control") == "\x16"
    assert found.pop("segments") == UNRECOGNIZED_NAME
    # More records than a hello may be cut into are refused as well, as malformed.
    assert set(found.values()) <= {UNRECOGNIZED_NAME, ACCESS_DENIED}
    assert net.denied("name differs from SNI", host="example.com")


HIDDEN = {
    "two names": "record(hello(names=server_names('example.com', 'google.com')))",
    "two extensions": "record(hello(names=server_names('example.com') + server_names('google.com')))",
    "an unknown name type": "record(hello(names=extension(0, vector(2, b'\\1' + vector(2, b'google.com')))))",
    "an empty name": "record(hello(names=server_names('')))",
    "an empty extension": "record(hello(names=extension(0, b'')))",
    "a name with NUL": "record(hello('google.com\\0.example.com'))",
    "a name with a space": "record(hello('google.com example.com'))",
    "Unicode": "record(hello('ехample.com'))",
    "an address": f"record(hello('{EXAMPLE4}'))",
    "ECH": "record(hello('example.com', more=extension(0xFE0D, bytes(200))))",
    "ESNI": "record(hello('example.com', more=extension(0xFFCE, bytes(200))))",
    "a warning before": "record(b'\\1\\x5a', 21) + record(hello('google.com'))",
    "many warnings before": "record(b'\\1\\x5a', 21) * 5 + record(hello('google.com'))",
    "change_cipher_spec before": "record(b'\\1', 20) + record(hello('google.com'))",
    "an empty record before": "record(b'') + record(hello('google.com'))",
    "record version 2.1": "record(hello('google.com'), version=b'\\2\\1')",
    "record version 4.1": "record(hello('google.com'), version=b'\\4\\1')",
    "record version 0": "record(hello('google.com'), version=b'\\0\\0')",
    "SSL 2.0 format": "old_hello()",
    "another message before": "record(b'\\0\\0\\0\\0' + hello('google.com'))",
    "another message behind": "record(hello('example.com') + hello('google.com'))",
    "trailing bytes": "record(hello('example.com') + b'x')",
    "an impossible length": "record(hello('google.com')).replace(b'\\3\\1', b'\\3\\1\\xff', 1)",
    "too long": "record(hello('google.com', more=extension(21, bytes(16000))) + bytes(900))",
    "an urgent first byte": "None",
}


def test_n24_n25_hellos_that_hide_a_name(net: Net) -> None:
    """What some server may read otherwise than we do is refused, also where no server of this world would."""
    attacks = "\n".join(f"attempt({name!r}, lambda: seen({data}))" for name, data in HIDDEN.items() if data != "None")
    script = (
        SEEN
        + attacks
        + """
def urgent():
    data = record(hello("google.com"))
    with dial("example.com", 443) as sock:
        sock.send(data[:1], socket.MSG_OOB)
        sock.sendall(data[1:])
        return sock.recv(7)
attempt("an urgent first byte", urgent)
attempt("control", lambda: seen(record(hello("example.com"))))
attempt("trailing dot", lambda: seen(record(hello("EXAMPLE.com."))))
"""
    )
    net.allow("example.com")
    found = net.attack(script)
    assert [found.pop("control"), found.pop("trailing dot")] == ["served", "served"]
    wrong = {name: value for name, value in found.items() if value not in (ACCESS_DENIED, UNRECOGNIZED_NAME)}
    assert wrong == {}
    refused = net.denied("name differs from SNI", host="example.com") + net.denied(
        "TLS without SNI", host="example.com"
    )
    assert any("Encrypted Client Hello" in (event["hint"] or "") for event in refused)
    opened = {event["sni"] for event in net.events("ConnectionOpened")}
    assert opened <= {"example.com", ""}


@BACKENDS
def test_n25_no_name_at_all(net: Net) -> None:
    script = SEEN + "attempt('x', lambda: seen(record(hello(''))))"
    assert net.control(script) == {"x": "served"}
    net.allow("example.com")
    assert net.attack(script) == {"x": ACCESS_DENIED}
    assert net.denied("TLS without SNI", host="example.com", port=443)


def test_a_rule_for_an_address_proves_no_name(net: Net) -> None:
    net.allow(EXAMPLE4)
    script = SEEN + "\n".join(
        f"attempt({name!r}, lambda: seen(record(hello({name!r})), {EXAMPLE4!r}))" for name in ("", "google.com")
    )
    assert net.attack(script) == {"": "served", "google.com": "google.com"}


SECOND = """
# HelloRetryRequest: the first hello offers no key, the second one names another host.
def retried(second, before=b"", finish=False, drip=0):
    same = {"thirteen": True, "random": bytes(range(32)), "session": bytes(32)}
    with dial("example.com", 443) as sock:
        sock.sendall(record(hello("example.com", **same)))
        answer = b""
        while len(answer) < 80:
            answer += sock.recv(65536)
        assert RETRY in answer
        key = (X25519, bytes.fromhex("09") + bytes(31))
        data = before + record(hello(second, share=key, **same), version=b"\\3\\3")
        for at in range(0, len(data), drip or len(data)):
            sock.sendall(data[at:at + (drip or len(data))])
        if finish:
            sock.shutdown(socket.SHUT_WR)
        answer = sock.recv(65536)
    return "served" if answer[:1] == b"\\x16" and answer[5] == 2 else answer[:7]
"""


def test_n24_a_second_hello_with_another_name(net: Net) -> None:
    """OpenSSL serves the name of the second hello (``ssl/statem/extensions_srvr.c``), not the one of the first."""
    script = (
        SECOND
        + """
change = record(b"\\1", 20, b"\\3\\3")
attempt("plain", lambda: retried("google.com"))
attempt("after change_cipher_spec", lambda: retried("google.com", change))
attempt("half closed", lambda: retried("google.com", change, finish=True))
attempt("in pieces", lambda: retried("google.com", change, drip=3))
attempt("same name", lambda: retried("example.com", change))
attempt("same name in pieces", lambda: retried("example.com", change, drip=7))
"""
    )
    outside = net.control(script)
    assert set(outside.values()) == {"served"}
    net.allow("example.com", "google.com")
    found = net.attack(script)
    assert [found.pop("same name"), found.pop("same name in pieces")] == ["served", "served"]
    assert set(found.values()) == {UNRECOGNIZED_NAME}
    assert {event["access"]["sni"] for event in net.denied("name differs from SNI")} == {"google.com"}


@BACKENDS
def test_n24_a_second_hello_behind_early_data(net: Net) -> None:
    """More than may be looked at is refused, and what precedes the second hello does not hide it."""
    script = (
        SECOND
        + """
early = record(bytes(100), 23, b"\\3\\3")
attempt("some", lambda: retried("google.com", early * 20))
attempt("a lot", lambda: retried("google.com", record(bytes(16384), 23, b"\\3\\3") * 3))
attempt("a lot, then closed", lambda: retried("google.com", record(bytes(16384), 23, b"\\3\\3") * 3, finish=True))
"""
    )
    net.allow("example.com")
    assert set(net.attack(script).values()) <= {"ECONNRESET", "ENOTCONN", "EPIPE"}
    assert net.denied("name differs from SNI", host="example.com")


def test_real_clients_shake_hands(net: Net) -> None:
    """With a server that asks for a second hello, with early records, with resumption: nothing legitimate is held."""
    net.allow("example.com")
    script = """
import ssl
def shake(**options):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for name, value in options.items():
        getattr(context, name)(value) if callable(getattr(context, name)) else setattr(context, name, value)
    out = []
    for _ in range(2):
        with dial("example.com", 443) as raw, context.wrap_socket(raw, server_hostname="example.com") as sock:
            sock.sendall(b"GET / HTTP/1.1\\r\\nHost: example.com\\r\\nConnection: close\\r\\n\\r\\n")
            out.append(f"{sock.version()} {sock.recv(12).decode()[9:]}")
    return out
attempt("1.3", lambda: shake(minimum_version=ssl.TLSVersion.TLSv1_3))
attempt("1.3 again", lambda: shake(minimum_version=ssl.TLSVersion.TLSv1_3, set_ecdh_curve="secp521r1"))
attempt("1.2", lambda: shake(maximum_version=ssl.TLSVersion.TLSv1_2))
"""
    assert net.attack(script) == {
        "1.3": ["TLSv1.3 200"] * 2, "1.3 again": ["TLSv1.3 200"] * 2, "1.2": ["TLSv1.2 200"] * 2,
    }  # fmt: skip


def test_openssl_client_with_a_retry(net: Net) -> None:
    """A client whose first key is of a group that the server does not take."""
    net.allow("example.com")
    command = (
        "openssl s_client -connect example.com:443 -servername example.com -groups X448:X25519 -tls1_3 </dev/null 2>&1"
    )
    done = net.run("--", "sh", "-c", command)
    assert "Verification error" in done.stdout or "Verify return code" in done.stdout, done.stdout
    assert "CN = example.com" in done.stdout


def test_n26_ports_of_a_rule(net: Net) -> None:
    """An allowed host on another port, whatever is spoken there."""
    net.allow("example.com:443")
    script = (
        SEEN
        + """
attempt("tls", lambda: seen(record(hello("example.com"))))
attempt("tls elsewhere", lambda: seen(record(hello("example.com")), port=8443))
attempt("http", lambda: get("example.com"))
attempt("raw", lambda: first("example.com", 22))
attempt("echo", lambda: echo("example.com", 5432))
"""
    )
    assert net.attack(script) == {
        "tls": "served", "tls elsewhere": ACCESS_DENIED, "http": "403", "raw": "ECONNRESET", "echo": "ECONNRESET",
    }  # fmt: skip
    assert {event["access"]["port"] for event in net.denied("port not allowed")} == {8443, 80, 22, 5432}


def test_n60_bytes_before_the_decision(net: Net) -> None:
    """What is sent with, or before, the first packet reaches nobody unless the connection is allowed."""
    net.allow("tcp://echo.test:7")
    script = f"""
def early(host, port, data=b"secret" * 1000):
    address = socket.getaddrinfo(host, port, socket.AF_INET)[0][4]
    with socket.socket() as sock:
        sock.sendto(data, socket.MSG_FASTOPEN, address)
        sock.settimeout(60)
        return sock.recv(6)
attempt("fast open", lambda: early("echo.test", 7))
attempt("refused", lambda: early("{EXAMPLE4}", 7))
"""
    before = len(net.connections(service="echo", local=EXAMPLE4))
    assert net.attack(script) == {"fast open": "secret", "refused": "ECONNRESET"}
    assert len(net.connections(service="echo", local=EXAMPLE4)) == before
    assert net.denied("address not allowed", address=EXAMPLE4, port=7)


PROXIED = b"PROXY TCP4 192.0.2.1 192.0.2.2 1 443\r\n"


@pytest.mark.parametrize("version", [b"\x03\x01", b"\x10\x01", b"\xff\x01"])
def test_n61_a_hello_of_any_version_is_one(net: Net, version: bytes) -> None:
    """s2n-tls takes any record version: the name in such a hello is judged, also under ``protocol: raw``."""
    data = b"\x16" + version + record(hello("google.com"))[3:]
    script = f"attempt('x', lambda: first('echo.test', 7, {data!r})[:1].hex())"
    net.allow("tcp://echo.test:7")
    assert net.attack(script)["x"] in ("15", "ECONNRESET")  # an alert, or a reset
    assert net.denied("name differs from SNI", host="echo.test", port=7)
    assert net.control(script) == {"x": "16"}, "the control: it is echoed"


@pytest.mark.parametrize("before", [PROXIED, b"\5\2\0\2", b"\x17\3\3\0\1x", b"\x16\x10\1\0\0"])
def test_n61_a_hello_behind_something_else_does_not_arrive(net: Net, before: bytes) -> None:
    data = before + record(hello("google.com"))
    script = f"attempt('x', lambda: len(first('echo.test', 7, {data!r})))"
    net.allow("echo.test:7")
    assert net.attack(script) == {"x": "ECONNRESET"}
    assert net.denied("protocol not known", host="echo.test", port=7)
    assert net.control(script) == {"x": len(data)}


def test_late_tls_is_the_hosts_own_matter(net: Net) -> None:
    """Under ``protocol: raw`` no name is checked after STARTTLS, but the bytes reach that host only."""
    data = record(hello("google.com"))
    script = f"attempt('x', lambda: len(first('echo.test', 7, b'STARTTLS\\r\\n' + {data!r})))"
    net.allow("echo.test:7")
    assert net.attack(script) == {"x": "ECONNRESET"}
    assert net.denied("protocol not known", host="echo.test", port=7)
    net.allow("tcp://echo.test:7")
    assert net.attack(script) == {"x": len(data) + 10}
    assert {event["host"] for event in net.events("ConnectionOpened")} == {"echo.test"}
    assert {event["address"] for event in net.events("ConnectionOpened")} <= set(names.ZONE["echo.test"][0]) | set(
        names.ZONE["echo.test"][1]
    )
