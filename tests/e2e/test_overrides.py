"""Servers that take a request for another one: what they obey outside of membrane is refused inside.

gunicorn, PHP and lighttpd of the distribution, as ``world/frameworks.py`` starts them.
"""

from __future__ import annotations

import shlex

import pytest
from world import frameworks
from world.box import Box

SERVED = f"http://frameworks.test:{frameworks.GUNICORN_PORT}"
PHP = f"http://frameworks.test:{frameworks.PHP_PORT}"
CGI = f"http://frameworks.test:{frameworks.LIGHTTPD_PORT}"
CURL = ("curl", "-s", "-m", "60", "--path-as-is", "-g")


def denied(box: Box) -> list[str]:
    return [event["reason"] for event in box.events("AccessDenied")]


def judged(box: Box, *arguments: str) -> str:
    done = box.run(f"--events={box.events_path}", "--", *CURL, "-o", "/dev/null", "-w", "%{http_code}", *arguments)
    return done.stdout


@pytest.mark.needs_tool("gunicorn")
@pytest.mark.parametrize(
    ("field", "path"),
    [
        ("SCRIPT_NAME: /v1", "/v1/admin/users"),
        ("SCRIPT_NAME: v1", "/v1/admin/users"),
        ("SCRIPT_NAME: /v1/x", "/v1/x/admin/users"),
        ("Script_Name: 1", "/v1/admin/users"),
    ],
)
def test_gunicorn_s_script_name(box: Box, field: str, path: str) -> None:
    control = box.outside(*CURL, "-H", field, SERVED + path)
    assert control.stdout == "GET /admin/users\n", control
    box.allow({"dest": f"{SERVED}/v1/", "http": [{"methods": ["GET"]}]})
    assert judged(box, SERVED + path) == "200"
    assert judged(box, "-H", field, SERVED + path) == "403"
    assert denied(box) == ["path not allowed"]


OVERRIDES = [
    ("X-HTTP-Method-Override: DELETE", "/v1/x", "DELETE /v1/x"),
    ("X: y", "/v1/x?_method=DELETE", "DELETE /v1/x"),
    ("X: y", "/v1/x?.method=DELETE", "DELETE /v1/x"),
    ("X: y", "/v1/x?+_method=DELETE", "DELETE /v1/x"),
    ("X: y", "/v1/x?%20_method=DELETE", "DELETE /v1/x"),
    ("X: y", "/v1/x?_method%00=DELETE", "DELETE /v1/x"),
    ("X: y", "/v1/x?_method%00x=DELETE", "DELETE /v1/x"),
    ("X-Original-URL: /admin", "/v1/x", "POST /admin"),
]


@pytest.mark.needs_tool("php")
@pytest.mark.parametrize(("field", "path", "reached"), OVERRIDES)
def test_php_s_names(box: Box, field: str, path: str, reached: str) -> None:
    arguments = ("-d", "x", "-H", field, PHP + path)
    control = box.outside(*CURL, *arguments)
    assert control.stdout == f"{reached}\n", (control, shlex.join(arguments))
    box.allow({"dest": f"{PHP}/v1/", "http": [{"methods": ["POST"]}]})
    assert judged(box, "-d", "x", f"{PHP}/v1/x?page=1") == "200"
    assert judged(box, *arguments) == "403"
    assert denied(box) in (["method not allowed"], ["path not allowed"])


@pytest.mark.needs_tool("lighttpd")
@pytest.mark.needs_tool("php-cgi")
@pytest.mark.parametrize(
    ("field", "reached"),
    [
        ("X.HTTP.Method.Override: DELETE", "DELETE /v1/x"),
        ("X~HTTP!Method*Override: DELETE", "DELETE /v1/x"),
        ("X~Original~URL: /admin", "POST /admin"),
    ],
)
def test_lighttpd_s_names(box: Box, field: str, reached: str) -> None:
    arguments = ("-d", "x", "-H", field, f"{CGI}/v1/x")
    control = box.outside(*CURL, *arguments)
    assert control.stdout == f"{reached}\n", control
    box.allow({"dest": f"{CGI}/v1/", "http": [{"methods": ["POST"]}]})
    assert judged(box, "-d", "x", f"{CGI}/v1/x") == "200"
    assert judged(box, *arguments) == "403"
    assert denied(box) in (["method not allowed"], ["path not allowed"])
