"""Patterns of a project file, seen from a directory further down: they hide there what they hide from above."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from membrane.errors import PolicyError
from membrane.policy.files import moved
from membrane.policy.globs import compile_patterns
from membrane.policy.model import Origin, PathRule

HERE = Origin("project", "f", 1)
NAMES = st.sampled_from(["a", "b", "ab", "a b", "[x]", "!a", "#a"])
SEGMENTS = st.sampled_from(["a", "b", "ab", "*", "a*", "?", "**", "[ab]", "\\[x\\]", "\\!a", "\\#a", "a b"])
PATTERNS = st.builds(
    lambda no, anchored, parts, end: no + anchored + "/".join(parts) + end,
    st.sampled_from(["", "!"]),
    st.sampled_from(["", "/"]),
    st.lists(SEGMENTS, min_size=1, max_size=4),
    st.sampled_from(["", "/", " "]),
)


def rules(texts: list[str], effect: Literal["hide", "readonly"] = "hide") -> list[PathRule]:
    return [PathRule(text, HERE, effect) for text in texts]


def held(texts: list[str], parts: list[str], is_dir: bool) -> bool:
    """Is an entry matched, or a directory above it?"""
    patterns = compile_patterns(texts)
    return any(
        patterns.match(parts[count - 1], "/".join(parts[:count]), is_dir or count < len(parts))
        for count in range(1, len(parts) + 1)
    )


@settings(deadline=None, max_examples=400)
@example(["a/**"], ["a"], ["b"], False)
@example(["**/a/b"], ["a"], ["b"], False)
@example(["a/*", "!a/b"], ["a"], ["b"], True)
@example(["/**/b/"], ["a", "a"], ["b"], False)
@given(
    st.lists(PATTERNS, min_size=1, max_size=4),
    st.lists(NAMES, min_size=1, max_size=3),
    st.lists(NAMES, min_size=1, max_size=3),
    st.booleans(),
)
def test_what_is_hidden_from_above_is_hidden_from_below(
    texts: list[str], way: list[str], parts: list[str], is_dir: bool
) -> None:
    try:
        compile_patterns(texts)
    except ValueError:
        return  # no pattern
    if held(texts, way, True):
        with pytest.raises(PolicyError, match="hides the directory"):
            moved(rules(texts), way)
        assert held([rule.text for rule in moved(rules(texts, "readonly"), way)], parts, is_dir)
    else:
        below = [rule.text for rule in moved(rules(texts), way)]
        assert held(below, parts, is_dir) is held(texts, [*way, *parts], is_dir)


def test_what_a_rule_says_besides_goes_with_it() -> None:
    rule = PathRule("sub/.env", HERE, "hide", show_names=True)
    assert moved([rule], ["sub"]) == [rule.replace(text="/.env")]
    assert moved([rule], ["other"]) == []
