"""What the library hands out: refusals and results as a person reads them."""

from __future__ import annotations

from typing import Any

import pytest

from membrane.api.model import Result, denied_of, question_of, target_of
from membrane.events import Process


@pytest.mark.parametrize(
    ("access", "target"),
    [
        ({"kind": "NameQuery", "name": "a.example", "type": "A"}, "a.example"),
        ({"kind": "Connect", "host": "a.example", "address": "10.0.0.1", "port": 443}, "a.example:443"),
        ({"kind": "Connect", "host": "", "address": "10.0.0.1", "port": 5432}, "10.0.0.1:5432"),
        ({"kind": "Connect", "host": "", "address": "fd00::1", "port": 1}, "[fd00::1]:1"),
        ({"kind": "PathAccess", "path": ".env"}, ".env"),
        (
            {"kind": "HttpRequest", "host": "h", "port": 443, "scheme": "https", "method": "PUT", "path": "/x"},
            "PUT https://h/x",
        ),
        (
            {"kind": "HttpRequest", "host": "h", "port": 8080, "scheme": "http", "method": "GET", "path": "/"},
            "GET http://h:8080/",
        ),
        ({}, ""),
    ],
)
def test_the_target_of_an_access(access: dict[str, Any], target: str) -> None:
    assert target_of(access) == target
    denied = denied_of({"access": access, "reason": "name not allowed", "rule": None, "hint": None})
    assert (denied.target, denied.rule, denied.hint, denied.count) == (target, "", "", 1)


def test_output_that_is_no_text_is_still_there() -> None:
    result = Result(("x",), 0, 0, b"a\xff", b"\xfe", 0.1, False, False, (), (), ())
    assert (result.stdout, result.stderr, result.complete) == ("a\ufffd", "\ufffd", True)


def test_a_question_with_and_without_its_process() -> None:
    asked = {"number": 3, "kind": "connect", "access": {"host": "a.example", "port": 443}, "rule": "a.example:443"}
    question = question_of(asked)
    assert (question.number, question.host, question.port, question.process) == (3, "a.example", 443, None)
    process = {"pid": 7, "start": 9, "name": "curl", "exe": "/usr/bin/curl"}
    assert Process.field_names == (*process, "container")  # which is missing outside of one
    assert question_of({**asked, "process": process}).process == Process(**process)
