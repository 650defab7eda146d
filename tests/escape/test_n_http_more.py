"""More attacks on rules about requests (rows N24, N30, N36, N37, N41, N42): where two readers may differ."""

from __future__ import annotations

import pytest
from net_world import Net
from test_n_http import CLOSE, OK, RAW, TOKEN, constrained


def test_n24_where_tls_ends_at_us_so_does_ech(net: Net) -> None:
    """A browser sends the extension always; what is served is the outer name's, whatever the inner one is."""
    script = """
def served(host, name):
    answer = first(host, 443, record(hello(name, more=extension(0xFE0D, bytes(200)))), 5)
    return answer[:1] + answer[5:7] if answer[:1] == b"\\x15" else answer[:1]
attempt("outer", lambda: served("example.com", "example.com"))
attempt("another", lambda: served("example.com", "google.com"))
"""
    net.allow({"dest": "https://example.com/", "inspect": True}, {"dest": "https://google.com/", "inspect": True})
    found = net.attack(script, f"--extra-ca={net.world.ca}")
    assert found == {"outer": "\x16", "another": "\x15\x02\x70"}
    assert net.denied("name differs from SNI", host="example.com")
    net.allow("example.com")
    assert net.attack(script)["outer"] == "\x15\x02\x31"  # as it passes through, nobody could tell


OVERRIDES = {
    "an underscore": "X_HTTP_Method_Override: DELETE\r\n",
    "underscores and dashes": "x-http_method-override: DELETE\r\n",
    "a path, as a variable": "X_Original_URL: /anything/admin\r\n",
    "another path": "X-Override-URL: /anything/admin\r\n",
    "a length": "Content_Length: 5\r\n",
    "a coding": "Transfer_Encoding: chunked\r\n",
}


@pytest.mark.parametrize("secure", [False, True])
def test_n37_nor_as_servers_read_variables(net: Net, secure: bool) -> None:
    """CGI and WSGI hand ``X_A`` and ``X-A`` on as one variable."""
    script = RAW + "\n".join(
        f"attempt({name!r}, lambda: speak([{OK + fields + CLOSE!r}], {secure}))" for name, fields in OVERRIDES.items()
    )
    queries = ("_method=DELETE", "%5fmethod=DELETE", "%24httpMethod=DELETE", "a=b&$httpMethod=DELETE")
    for query in queries:
        part = OK.replace(" HTTP/1.1", f"?{query} HTTP/1.1") + CLOSE
        script += f"\nattempt({query!r}, lambda: speak([{part!r}], {secure}))"
    script += f"\nattempt('control', lambda: speak([{OK + 'X_Other: DELETE' + chr(13) + chr(10) + CLOSE!r}], {secure}))"
    outside = net.control(script)
    assert {outside[name][0] for name in ("an underscore", "control", *queries)} == {"200"}
    before = len(net.requests(host="httpbin.org"))
    found = net.attack(script, *constrained(net, secure))
    assert found.pop("control") == ["200"]
    assert {tuple(found.pop(name)) for name in ("a length", "a coding")} == {("400",)}
    assert set(map(tuple, found.values())) == {("403",)}, found
    assert len(net.requests(host="httpbin.org")) == before + 1


QUERIES = {
    "in its place": ("key={key}", "200"),
    "escaped": ("key={escaped}", "200"),
    "twice": ("key={key}&key={key}", "200"),
    "another name": ("x={key}", "403"),
    "its name escaped": ("k%65y={key}", "403"),
    "its name in capitals": ("KEY={key}", "403"),
    "beside something": ("key=a{key}", "403"),
    "beside its place": ("key={key}&x={escaped}", "403"),
    "as a name": ("{key}=key", "403"),
}


def test_n36_a_secret_in_a_query_has_one_place(net: Net) -> None:
    secret = {"name": "KEY", "from": "env:REAL", "to": ["http://httpbin.org/anything/v1"], "query": "key"}
    net.allow("http://httpbin.org/", secrets=[secret])
    script = (
        """
key = os.environ["KEY"]
escaped = "".join("%%%02x" % byte for byte in key.encode())
def ask_for(query):
    head = f"GET /anything/v1?{query} HTTP/1.1\\r\\nHost: httpbin.org\\r\\nConnection: close\\r\\n\\r\\n"
    answer = talk("httpbin.org", 80, head.encode()).decode("latin-1")
    return [answer[9:12], "REAL" in answer]
"""
        + f"for name, (query, _) in {QUERIES!r}.items():\n"
        + "    attempt(name, lambda: ask_for(query.format(key=key, escaped=escaped)))\n"
    )
    found = net.attack(script, env={"REAL": TOKEN})
    assert found == {name: [status, False] for name, (_, status) in QUERIES.items()}
    assert any(TOKEN in entry["path"] for entry in net.requests(host="httpbin.org")), "the value is used"
    assert "REALa1" not in net.events_path.read_text()


def test_n41_n42_a_secret_in_pieces(net: Net) -> None:
    """A placeholder that comes byte by byte is seen; an answer is never asked for in parts."""
    secret = {"name": "KEY", "from": "env:REAL", "to": ["http://httpbin.org/anything/v1"], "header": "x-key"}
    net.allow("http://httpbin.org/", secrets=[secret])
    script = """
key = os.environ["KEY"]
def drip(path, fields):
    head = f"GET {path} HTTP/1.1\\r\\nHost: httpbin.org\\r\\n{fields}Connection: close\\r\\n\\r\\n".encode()
    with dial("httpbin.org", 80) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(head)):
            sock.sendall(head[at:at + 1])
        answer = receive(sock).decode("latin-1")
    return [answer[9:12], "REAL" in answer, key in answer, "bytes=" in answer]
attempt("in its place", lambda: drip("/anything/v1", f"x-key: {key}\\r\\n"))
attempt("elsewhere", lambda: drip("/anything/v1", f"x-other: {key}\\r\\n"))
attempt("another path", lambda: drip("/anything/v2", f"x-key: {key}\\r\\n"))
attempt("in parts", lambda: drip("/anything/v1", f"x-key: {key}\\r\\nRange: bytes=0-9\\r\\n"))
"""
    found = net.attack(script, env={"REAL": TOKEN})
    assert found["in its place"] == ["200", False, True, False]
    assert found["in parts"] == ["200", False, True, False]
    assert (found["elsewhere"][0], found["another path"][0]) == ("403", "403")
    assert "REALa1" not in net.events_path.read_text()
