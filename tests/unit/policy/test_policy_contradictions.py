"""Two entries of one file of which one takes back the other; of two files the later one is an answer."""

from __future__ import annotations

import pytest

from membrane.errors import PolicyError
from membrane.policy.load import Source, load


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
