"""``policy.reasons``: every reason that code can produce has its row, and nothing hangs on a sentence."""

from __future__ import annotations

import ast
import json
import marshal
from pathlib import Path

import pytest

import membrane
from membrane.events import AccessDenied
from membrane.gateway.event_queue import denial
from membrane.policy import reasons
from membrane.policy.model import Ask, Deny, NameQuery
from membrane.policy.reasons import REASONS, Reason

SOURCE = Path(membrane.__file__).parent
# What makes a refusal, and which of its arguments is the reason.
MAKERS = {"Deny": 1, "Ask": 0, "AccessDenied": 1, "_deny": 2, "malformed": 3}
# What the kernel alone refused; reasons of ``Allow`` that are looked at; a word of OpenSSL in an error of ``ssl``.
OTHERS = ("EPERM", "in the view", "mounted", "UNEXPECTED_EOF_WHILE_READING")
WORDS = ("hidden", "read-only")  # of plans and of sandbox modes as well: words that people read


def literals(tree: ast.Module) -> list[tuple[int, str]]:
    """Texts that stand where a reason is given, compared with or looked up."""
    found = []
    for node in ast.walk(tree):
        given: list[ast.AST] = []
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            place = MAKERS.get(name)
            if place is not None and len(node.args) > place:
                given.append(node.args[place])
            given += [each.value for each in node.keywords if each.arg == "reason" and place is not None]
        elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute) and node.left.attr == "reason":
            given += node.comparators
        for each in given:
            found += [(inner.lineno, inner.value) for inner in results(each) if isinstance(inner.value, str)]
    return found


def results(node: ast.AST) -> list[ast.Constant]:
    """The constants that an expression may become."""
    if isinstance(node, ast.Constant):
        return [node]
    if isinstance(node, ast.IfExp):
        return results(node.body) + results(node.orelse)
    inner = node.values if isinstance(node, ast.BoolOp) else getattr(node, "elts", [])
    return [each for part in inner for each in results(part)]


def texts(tree: ast.Module) -> list[tuple[int, str]]:
    """Texts of the table that are written again."""
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in REASONS
    ]


FILES = sorted(path for path in SOURCE.rglob("*.py") if path.name != "reasons.py")


def test_the_search_finds_what_it_looks_for() -> None:
    tree = ast.parse('Deny(None, "odd")\nself._deny(a, b, "x" if c else R)\nif v.reason in ("y",): pass\nz = "hidden"')
    assert [text for _, text in literals(tree)] == ["odd", "x", "y"]
    assert texts(tree) == [(4, "hidden")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_reason_is_written_outside_of_the_table(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    assert [row for row in literals(tree) if row[1] not in OTHERS] == []
    assert [row for row in texts(tree) if row[1] not in WORDS] == []


def test_every_name_has_one_row() -> None:
    named = {name: each for name, each in vars(reasons).items() if isinstance(each, Reason)}
    assert set(named.values()) == set(REASONS.values())
    assert len(named) == len(REASONS)
    assert all(REASONS[str(each)] is each for each in named.values())


def test_what_hangs_on_reasons_is_what_it_was() -> None:
    assert {text for text, each in REASONS.items() if each.askable} == {
        "name not allowed",
        "address not allowed",
        "port not allowed",
        "method not allowed",
        "path not allowed",
        "operation not allowed",
    }
    assert {text: each.status for text, each in REASONS.items() if each.status != 403} == {
        "request malformed": 400,
        "limit reached": 429,
    }
    assert not [text for text, each in REASONS.items() if each.floor and (each.askable or each.learned)]


@pytest.mark.parametrize("reason", REASONS.values())
def test_a_reason_is_its_text_in_every_encoding(reason: Reason) -> None:
    text = str(reason)
    assert type(text) is str
    assert reason == text
    assert hash(reason) == hash(text)
    assert f"{reason}" == text
    assert json.dumps(reason) == json.dumps(text)
    assert repr(reason) == repr(text)
    for verdict in (Deny(None, reason), Ask(reason)):
        event = denial(NameQuery("a.test"), verdict)
        assert type(event.reason) is str
        assert marshal.loads(marshal.dumps(event.reason)) == text
    assert Deny(None, reason) == Deny(None, REASONS[text])


def test_the_text_of_another_version_is_no_reason_and_stays_as_it_is() -> None:
    assert REASONS.get("of another version") is None
    event = AccessDenied({"kind": "NameQuery", "name": "a.test"}, "of another version", None, None)
    assert event.reason == "of another version"
