"""Attacks on rules about requests (rows N20, N26-N42, N44, N60): what the origin must never see.

Rows about single bytes of the framing are also in ``tests/unit/gateway/http`` and ``tests/property``; here the
whole product stands between a raw client and an origin that reads more than it should.
"""

from __future__ import annotations

from typing import Any

import pytest
from net_world import BACKENDS, Net, names

ALLOWED = "/anything/posts"
POLICY = {"methods": ["GET"], "paths": [ALLOWED]}
HOST = "Host: httpbin.org\r\n"
OK = f"GET {ALLOWED} HTTP/1.1\r\n{HOST}"
CLOSE = "Connection: close\r\n\r\n"
EVIL = f"GET /anything/admin HTTP/1.1\r\n{HOST}{CLOSE}"

RAW = """
import ssl
def speak(parts, secure, host="httpbin.org", port=0, wait=60):
    sock = dial(host, port or (443 if secure else 80))
    if secure:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        sock = context.wrap_socket(sock, server_hostname="httpbin.org")
    with sock:
        for part in parts:
            sock.sendall(part.encode("latin-1"))
            select.select([sock], [], [], 0.03)
        sock.settimeout(wait)
        try:
            answer = receive(sock)
        except OSError as error:
            return errno.errorcode.get(error.errno, type(error).__name__)
    return [line.split()[1] for line in answer.decode("latin-1").split("\\r\\n") if line.startswith("HTTP/1.")]
"""

# Each is sent as it stands, in parts; the origin must see nothing but GET of the allowed path, without what is forged.
ATTACKS: dict[str, list[str]] = {
    # N26, and N1, N2 of the predecessor: something that is not HTTP, or not yet
    "N26 another protocol": ["SSH-2.0-OpenSSH\r\n"],
    "N26 one byte first": ["P", f"OST {ALLOWED} HTTP/1.1\r\n{HOST}Content-Length: 0\r\n{CLOSE}"],
    "N26 empty line first": [f"\r\nPOST {ALLOWED} HTTP/1.1\r\n{HOST}Content-Length: 0\r\n{CLOSE}"],
    "N26 NUL first": ["\0" + EVIL],
    "N26 version 0.9": ["GET /anything/admin\r\n"],
    "N26 version 2.0": [EVIL.replace("HTTP/1.1", "HTTP/2.0")],
    "N26 preface": ["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"],
    # N27: a connection that was allowed once
    "N27 second request": [f"{OK}\r\n", EVIL],
    "N27 pipelined": [f"{OK}\r\n{EVIL}"],
    "N27 after an upgrade": [f"{OK}Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", EVIL],
    "N27 h2c": [f"{OK}Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n", EVIL],
    # N28, N60: a tunnel of its own
    "N28 CONNECT": ["CONNECT google.com:443 HTTP/1.1\r\nHost: google.com:443\r\n\r\n", EVIL],
    "N60 CONNECT and more at once": [f"CONNECT httpbin.org:443 HTTP/1.1\r\nHost: httpbin.org:443\r\n\r\n{EVIL}"],
    # N29: where does a request end?
    "N29 both lengths": [f"{OK}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{EVIL}"],
    "N29 two lengths": [f"{OK}Content-Length: 0\r\nContent-Length: 9\r\n\r\n{EVIL}"],
    "N29 list of lengths": [f"{OK}Content-Length: 0, {len(EVIL)}\r\n\r\n{EVIL}"],
    "N29 signed length": [f"{OK}Content-Length: +0\r\n\r\n{EVIL}"],
    "N29 bare LF": [f"GET {ALLOWED} HTTP/1.1\nHost: httpbin.org\n\n{EVIL}"],
    "N29 bare CR": [f"{OK}X: a\rContent-Length: 99\r\n\r\n{EVIL}"],
    "N29 folded": [f"{OK}Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n{EVIL}"],
    "N29 space before colon": [f"{OK}Content-Length : {len(EVIL)}\r\n\r\n{EVIL}"],
    "N29 another coding": [f"{OK}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{EVIL}"],
    "N29 chunked twice": [f"{OK}Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n{EVIL}"],
    "N29 chunked not last": [f"{OK}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{EVIL}"],
    "N29 chunk size": [f"{OK}Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n{EVIL}"],
    "N29 chunk overflow": [f"{OK}Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n\r\n{EVIL}"],
    "N29 chunk extension": [f"{OK}Transfer-Encoding: chunked\r\n\r\n0;a\nb\r\n\r\n{EVIL}"],
    "N29 chunk without CRLF": [f"{OK}Transfer-Encoding: chunked\r\n\r\n1\r\nZ0\r\n\r\n{EVIL}"],
    "N29 NUL in a field": [f"{OK}X: a\0b\r\n\r\n{EVIL}"],
    "N29 field without name": [f"{OK}: x\r\n\r\n{EVIL}"],
    # N30: who is asked?
    "N30 absolute form": [f"GET http://google.com{ALLOWED} HTTP/1.1\r\n{HOST}{CLOSE}"],
    "N30 absolute form, other path": [f"GET http://httpbin.org/anything/admin HTTP/1.1\r\n{HOST}{CLOSE}"],
    "N30 another Host": [f"GET {ALLOWED} HTTP/1.1\r\nHost: google.com\r\n{CLOSE}"],
    "N30 two Hosts": [f"{OK}Host: google.com\r\n{CLOSE}"],
    "N30 no Host": [f"GET {ALLOWED} HTTP/1.1\r\n{CLOSE}"],
    "N30 Host with user": [f"GET {ALLOWED} HTTP/1.1\r\nHost: httpbin.org@google.com\r\n{CLOSE}"],
    "N30 Host with port": [f"GET {ALLOWED} HTTP/1.1\r\nHost: httpbin.org:8000\r\n{CLOSE}"],
    "N30 list of Hosts": [f"GET {ALLOWED} HTTP/1.1\r\nHost: httpbin.org, google.com\r\n{CLOSE}"],
    # N34-N36: which path?
    "N34 dots": [f"GET {ALLOWED}/../admin HTTP/1.1\r\n{HOST}{CLOSE}"],
    "N34 encoded dots": [f"GET {ALLOWED}/%2e%2e/admin HTTP/1.1\r\n{HOST}{CLOSE}"],
    "N34 twice encoded dots": [f"GET {ALLOWED}/%252e%252e/admin HTTP/1.1\r\n{HOST}{CLOSE}"],
    "N34 overlong": [f"GET {ALLOWED}/%c0%ae%c0%ae/admin HTTP/1.1\r\n{HOST}{CLOSE}"],
    "N34 full-width": [f"GET {ALLOWED}/%ef%bc%8e%ef%bc%8e/admin HTTP/1.1\r\n{HOST}{CLOSE}"],
    "N34 parameter": [f"GET {ALLOWED}/..;/admin HTTP/1.1\r\n{HOST}{CLOSE}"],
    "N34 prefix": [f"GET {ALLOWED}-evil HTTP/1.1\r\n{HOST}{CLOSE}"],
    "N34 case": [f"GET {ALLOWED.upper()} HTTP/1.1\r\n{HOST}{CLOSE}"],
    "N35 slash": [f"GET {ALLOWED}%2f..%2fadmin HTTP/1.1\r\n{HOST}{CLOSE}"],
    "N35 backslash": [f"GET {ALLOWED}\\..\\admin HTTP/1.1\r\n{HOST}{CLOSE}"],
    "N35 encoded backslash": [f"GET {ALLOWED}%5c..%5cadmin HTTP/1.1\r\n{HOST}{CLOSE}"],
    "N36 path in the query": [f"GET /anything/admin?x=/..{ALLOWED} HTTP/1.1\r\n{HOST}{CLOSE}"],
    "N36 fragment": [f"GET /anything/admin#/..{ALLOWED} HTTP/1.1\r\n{HOST}{CLOSE}"],
    # N37, N38: which method?
    "N37 POST": [f"POST {ALLOWED} HTTP/1.1\r\n{HOST}Content-Length: 0\r\n{CLOSE}"],
    "N38 lower case": [f"get {ALLOWED} HTTP/1.1\r\n{HOST}{CLOSE}"],
    "N38 TRACE": [f"TRACE {ALLOWED} HTTP/1.1\r\n{HOST}{CLOSE}"],
    "N38 space": [f"GET\t{ALLOWED} HTTP/1.1\r\n{HOST}{CLOSE}"],
    "N38 two spaces": [f"GET  {ALLOWED} HTTP/1.1\r\n{HOST}{CLOSE}"],
    "N38 unknown": [f"PROPFIND {ALLOWED} HTTP/1.1\r\n{HOST}{CLOSE}"],
}


def constrained(net: Net, secure: bool, **more: Any) -> list[str]:
    scheme = "https" if secure else "http"
    net.allow({"dest": f"{scheme}://httpbin.org/", "http": [POLICY]}, "google.com", **more)
    return [f"--extra-ca={net.world.ca}"] if secure else []


@pytest.mark.parametrize("secure", [False, True])
def test_n26_to_n38_what_the_origin_never_sees(net: Net, secure: bool) -> None:
    # Who is asked what is no request may keep the connection open: after two seconds it is no answer.  Several wait.
    script = RAW + f"attempt('control', lambda: speak({[OK + CLOSE]!r}, {secure}))\n"
    script += f"attacks = {ATTACKS!r}\nfrom concurrent.futures import ThreadPoolExecutor\n"
    script += f"def one(name): attempt(name, lambda: speak(attacks[name], {secure}, wait=2))\n"
    script += "with ThreadPoolExecutor(16) as pool: list(pool.map(one, attacks))\n"
    outside = net.control(script)
    # Positive control: what the origin reads when nobody stands before it.
    assert len({entry["path"] for entry in net.requests(host="httpbin.org")}) > 5
    before = len(net.requests())
    found = net.attack(script, *constrained(net, secure))
    assert {*found} == {*outside} == {"control", *ATTACKS}
    assert found.pop("control") == outside["control"] == ["200"]
    seen = [(entry["method"], entry["path"].partition("?")[0]) for entry in net.requests()[before:]]
    assert set(seen) == {("GET", ALLOWED)}, seen
    for name, statuses in found.items():
        if not isinstance(statuses, list):  # the connection was reset
            continue
        if name.startswith(("N27", "N29")) and statuses[:1] == ["200"]:  # what came before the attack was allowed
            statuses = statuses[1:] or ["403"]
        assert statuses in ([], ["403"], ["400"], ["405"], ["501"]), (name, statuses)
    assert net.denied()
    assert not [event for event in net.events("ConnectionClosed") if "internal" in event["error"]]


@pytest.mark.parametrize("secure", [False, True])
def test_n37_methods_are_not_overridden(net: Net, secure: bool) -> None:
    """A request with a field that makes a server take another method does not arrive where methods are scoped."""
    fields = ("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override")
    script = RAW + "\n".join(
        f"attempt({field!r}, lambda: speak([{OK!r} + '{field}: DELETE\\r\\n' + {CLOSE!r}], {secure}))"
        for field in fields
    )
    outside = net.control(script)
    assert set(map(tuple, outside.values())) == {("200",)}
    found = net.attack(script, *constrained(net, secure))
    assert set(map(tuple, found.values())) == {("403",)}
    assert sum(event["count"] for event in net.denied()) == len(fields)


@BACKENDS
@pytest.mark.parametrize("secure", [False, True])
def test_n39_content_under_get(net: Net, secure: bool) -> None:
    """Some servers take it for a POST: where only GET is allowed it does not arrive."""
    part = f"{OK}Content-Length: 6\r\n{CLOSE}secret"
    script = RAW + f"attempt('x', lambda: speak([{part!r}], {secure}))"
    assert net.control(script) == {"x": ["200"]}
    before = len(net.requests(host="httpbin.org"))
    assert net.attack(script, *constrained(net, secure)) == {"x": ["403"]}
    assert len(net.requests(host="httpbin.org")) == before
    assert net.denied("method not allowed", host="httpbin.org")


@BACKENDS
@pytest.mark.parametrize("secure", [False, True])
def test_a_constrained_port_is_never_raw(net: Net, secure: bool) -> None:
    """Nor by another rule for the same host on another port (N7 of the predecessor), nor with the wrong layer."""
    port = 443 if secure else 80
    scheme = "https" if secure else "http"
    rules = [
        {"dest": f"{scheme}://httpbin.org/", "http": [POLICY]},
        {"dest": "httpbin.org", "ports": [22]},
        "echo.test",
    ]
    net.allow(*rules)
    options = [f"--extra-ca={net.world.ca}"]
    script = (
        RAW
        + f"""
attempt("raw", lambda: first("httpbin.org", {port}, b"\\0\\1\\2\\3 raw"))
attempt("evil", lambda: speak([{EVIL!r}], {secure}))
attempt("wrong layer", lambda: speak([{EVIL!r}], {not secure}, port={port}))
attempt("its other port", lambda: first("httpbin.org", 22))
attempt("by address", lambda: get("{names.address("httpbin.org")}", {port}))
"""
    )
    before = len(net.requests(host="httpbin.org"))
    found = net.attack(script, *options)
    assert found["its other port"].startswith("SSH-2.0")
    assert found["evil"] == ["403"]
    assert "200" not in str([found["raw"], found["wrong layer"], found["by address"]])
    assert len(net.requests(host="httpbin.org")) == before
    assert net.denied("path not allowed", host="httpbin.org")


def test_n20_a_host_of_others_content_can_be_scoped(net: Net) -> None:
    """One account of a shared host, by path; the same host by another name or address is not it."""
    net.allow({"dest": "http://github.com/our/", "http": [{"methods": ["GET"]}]})
    script = """
def ask_for(path):
    head = f"GET {path} HTTP/1.1\\r\\nHost: github.com\\r\\nConnection: close\\r\\n\\r\\n"
    return talk("github.com", 80, head.encode())[9:12]
attempt("ours", lambda: ask_for("/our/x"))
attempt("theirs", lambda: ask_for("/their/x"))
attempt("alias", lambda: get("api.github.com"))
"""
    found = net.attack(script)
    assert found["ours"] != "403"
    assert (found["theirs"], found["alias"]) == ("403", "EAI_NONAME")
    assert net.denied("path not allowed", host="github.com")


TOKEN = "sk-ant-REALa1b2c3d4e5f6g7h8i9"


@BACKENDS
def test_n40_n41_a_secret_goes_to_its_destination_only(net: Net) -> None:
    """Not to another host, path or port, not in another place of the request, and not back inside."""
    secret = {"name": "KEY", "from": "env:REAL", "to": ["http://httpbin.org/anything/v1"], "header": "x-key"}
    net.allow(
        "http://httpbin.org/", {"dest": "http://example.com/", "inspect": True}, "tcp://echo.test:7", secrets=[secret]
    )
    script = """
key = os.environ["KEY"]
def ask_for(path, host="httpbin.org", fields=""):
    head = f"GET {path} HTTP/1.1\\r\\nHost: {host}\\r\\n{fields}Connection: close\\r\\n\\r\\n"
    return talk(host, 80, head.encode()).decode("latin-1")
def status(text):
    return text[9:12]
answer = ask_for("/anything/v1", fields=f"x-key: {key}\\r\\n")
say("used", [status(answer), "REAL" in answer, key in answer])
for name, call in {
    "another path": lambda: ask_for("/anything/v2", fields=f"x-key: {key}\\r\\n"),
    "another host": lambda: ask_for("/", "example.com", f"x-key: {key}\\r\\n"),
    "another field": lambda: ask_for("/anything/v1", fields=f"x-other: {key}\\r\\n"),
    "the query": lambda: ask_for(f"/anything/v1?k={key}"),
    "the path": lambda: ask_for(f"/anything/v1/{key}"),
}.items():
    attempt(name, lambda: status(call()))
attempt("raw", lambda: echo_key())
say("environment", [name for name, value in os.environ.items() if "REAL" in value])
""".replace("echo_key()", "(lambda s: (s.sendall(key.encode()), s.recv(99))[1] == key.encode())(dial('echo.test', 7))")
    found = net.attack(script, env={"REAL": TOKEN})
    assert found.pop("used") == ["200", False, True]
    assert found.pop("raw") is True  # raw TCP carries the placeholder as it is
    assert found.pop("environment") == []
    assert set(found.values()) == {"403"}, found
    assert "REALa1" not in net.events_path.read_text()
    assert net.denied()
