"""Two entries of one file of which one takes back the other; of two files the later one is an answer."""

from __future__ import annotations

from typing import Any

import pytest

from membrane.errors import PolicyError
from membrane.policy import contradictions, grammar
from membrane.policy.load import Source, load
from membrane.policy.model import HostRule, Origin, PathRule


def read(*texts: str) -> None:
    levels = ("user", "project")
    sources = [Source(level, f"{level}.yaml", text, "/w") for level, text in zip(levels, texts, strict=False)]
    load(sources, presets={"default": ""}, home="/h")


@pytest.mark.parametrize(
    ("one", "other", "line"),
    [
        ("allow: [a.test]", "deny: [a.test]", 2),
        ("allow: ['a.test:443']", "deny: [a.test]", 2),
        ("allow: ['a.test:443']", "deny: ['a.test:443']", 2),
        ("ignore: [x]", "readonly: [x]", 2),
        ("env: {pass: [A], set: {A: b}}", "", 1),
        ("mounts: [{path: /x, mode: ro}, {path: /x, mode: rw}]", "", 1),
    ],
)
def test_in_one_file_it_is_a_mistake(one: str, other: str, line: int) -> None:
    with pytest.raises(PolicyError) as refused:
        read(f"{one}\n{other}\n")
    assert refused.value.where.startswith(f"user.yaml:{line}:")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("allow: [a.test]", "deny: ['a.test:443']"),  # the other ports stay
        ("allow: ['*.test']", "deny: [a.test]"),
        ("allow: [a.test]", "deny: [{dest: 'https://a.test', http: [{methods: [PUT]}]}]"),
        ("ignore: [x, '!x/y']", "readonly: [x]"),  # it holds for what is shown
        ("mounts: [{path: /x, mode: ro}, {path: /x, target: /y, mode: rw}]", ""),
    ],
)
def test_what_leaves_something_is_none(one: str, other: str) -> None:
    read(f"{one}\n{other}\n")


def test_of_two_files_it_is_an_answer() -> None:
    read("allow: [a.test]\nignore: [x]\n", "deny: [a.test]\nreadonly: [x]\n")


HERE = Origin("user", "u", 3)


def host(text: str, **fields: Any) -> HostRule:
    return grammar.host_rule(text, HERE, **fields)


@pytest.mark.parametrize(
    ("deny", "allow", "whole"),
    [
        ("a.test", "a.test", True),
        ("a.test", "a.test:443", True),
        ("a.test:443", "a.test:443", True),
        ("a.test:80", "a.test:443", False),
        ("a.test:443", "a.test", False),
        ("*.a.test", "x.a.test", False),  # it is refused by the decision; what is written keeps both
        ("10.0.0.0/8", "10.0.0.1", False),
    ],
)
def test_which_rule_leaves_nothing_of_another(deny: str, allow: str, whole: bool) -> None:
    rule = host(deny, deny=True)
    assert contradictions.takes_back(contradictions.refused([rule]), host(allow)) == (rule if whole else None)


def test_patterns_that_are_hidden_whatever_else_is_said() -> None:
    hide = [PathRule("a", HERE, "hide"), PathRule("b", HERE, "readonly")]
    assert set(contradictions.hidden_anyway(hide)) == {"a"}
    assert contradictions.hidden_anyway([*hide, PathRule("!a/x", HERE, "hide")]) == {}


def test_only_rules_of_the_file_that_is_read_are_compared() -> None:
    def level(file: str) -> dict[str, list[Any]]:
        of_file = Origin("user", file, 2)
        return {
            "allow": [host("a.test").replace(origin=of_file)],
            "deny": [host("a.test", deny=True)],
            "paths": [], "env": [], "mounts": [],
        }  # fmt: skip

    contradictions.check(level("another file"), "u")
    with pytest.raises(PolicyError, match=r'takes back all of allow "a\.test" in line 2') as refused:
        contradictions.check(level("u"), "u")
    assert refused.value.where == "u:3:1"
