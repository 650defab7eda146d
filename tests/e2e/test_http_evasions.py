"""Requests over HTTP/2 that name one server on another's connection, or that a server may read as another request."""

from __future__ import annotations

import pytest
from world.box import Box
from world.inspected import denied, no_crash, requests, run, url_rule

NGINX = "https://nginx.test:8447"
H2 = "https://h2.test:8445"


@pytest.mark.parametrize(
    "origin",
    [
        pytest.param(NGINX, marks=pytest.mark.needs_tool("/usr/sbin/nginx")),
        pytest.param(H2, marks=pytest.mark.needs_tool("node")),
    ],
)
def test_one_connection_is_for_one_name(box: Box, origin: str) -> None:
    """Both names are allowed, and a certificate could be for both (RFC 9113 section 9.1.1): each has its connection."""
    box.allow(url_rule(f"{origin}/v1/", "GET"), url_rule("https://stream.test:8444/v1/", "GET"))
    script = f"""
    ask() {{ curl -sS -o /dev/null -w '%{{http_version}}:%{{http_code}} ' --http2 "$@"; }}
    ask {origin}/v1/a
    ask -H 'Host: stream.test:8444' {origin}/v1/a
    ask -H 'Host: stream.test' {origin}/v1/a
    ask -H 'Host: user@{origin[8:]}' {origin}/v1/a
    ask -H 'X_HTTP_Method_Override: DELETE' {origin}/v1/a
    ask -H 'content_length: 5' {origin}/v1/a
    ask --path-as-is '{origin}/v1/..;/admin'
    ask --path-as-is '{origin}/v1%2f..%2fadmin'
    ask {origin}/v1/a
    """
    done = run(box, "bash", "-c", script)
    assert done.stdout.split() == [f"2:{status}" for status in (200, 403, 403, 400, 403, 400, 400, 400, 200)], done
    allowed = [(method, path) for method, path, _status, verdict in requests(box) if verdict == "allow"]
    assert allowed == [("GET", "/v1/a"), ("GET", "/v1/a")]
    assert denied(box).count("name not allowed") == 2
    no_crash(box)
