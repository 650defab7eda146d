"""The strict reader of YAML: each value has its place, and what can only surprise is refused there."""

from __future__ import annotations

import pytest

from membrane.errors import PolicyError
from membrane.policy import document
from membrane.policy.document import DEEPEST, Mapping, Scalar, Sequence, parse


def mapping(text: str) -> Mapping:
    root = parse(text, "p.yaml")
    assert isinstance(root, Mapping)
    return root


def refused(text: str) -> str:
    with pytest.raises(PolicyError) as error:
        parse(text, "p.yaml")
    return f"{error.value.where}: {error.value.cause}"


def test_a_value_is_its_text_and_knows_its_place() -> None:
    root = mapping('a: 010\nb: [no, "no",\n    ~]\n')
    _name, number = root.take("a") or ("", None)
    assert isinstance(number, Scalar)
    assert (number.text, number.line, number.column, number.plain) == ("010", 1, 4, True)
    _name, items = root.take("b") or ("", None)
    assert isinstance(items, Sequence)
    assert [(item.line, item.column) for item in items.items] == [(2, 5), (2, 9), (3, 5)]
    plain, quoted, null = items.items
    assert isinstance(plain, Scalar) and isinstance(quoted, Scalar) and isinstance(null, Scalar)
    assert plain.boolean("b") is False and null.null
    with pytest.raises(PolicyError, match="expected true or false"):
        quoted.boolean("b")
    root.finish("the policy")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a: 1\na: 2", 'p.yaml:2:1: the key "a" is given twice; first in line 1'),
        ("a: &x 1", "p.yaml:1:4: anchors and aliases are not used in a policy"),
        ("a: *x", "p.yaml:1:4: anchors and aliases"),
        ("a: !!python/object:os.system x", "p.yaml:1:4: the tag"),
        ("a:\n- !.env", 'p.yaml:2:3: the tag !.env is not used in a policy; quote a value that begins with "!"'),
        ("a: 1\n---\nb: 2", "p.yaml:2:1: a second document begins here"),
        ("? [a]\n: 1", "p.yaml:1:3: a key is a list"),
        ("a:\n\tb: 1", "indent with spaces"),
        ("a: @x", "quote this value"),
        ("a: [1", "p.yaml:"),
        ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), f"collections are nested deeper than {DEEPEST}"),
        ("a: \x07", "p.yaml: "),
        ("a: \ud800", "half a surrogate pair"),
    ],
)
def test_what_can_only_surprise_is_refused(text: str, found: str) -> None:
    assert found in refused(text)


def test_as_deep_as_it_may_be_is_read() -> None:
    assert isinstance(parse("[" * DEEPEST + "]" * DEEPEST, "p.yaml"), Sequence)


@pytest.mark.parametrize("text", ["", "~", "# nothing\n", "null"])
def test_nothing_is_none(text: str) -> None:
    assert parse(text, "p.yaml") is None


def test_a_key_that_nobody_took_is_refused_with_the_closest() -> None:
    root = mapping("alow: [a]\n")
    assert root.take("allow", "permit") is None
    with pytest.raises(PolicyError, match='unknown key "alow" in the policy; did you mean "allow"'):
        root.finish("the policy")


def test_a_key_that_is_like_no_other_is_refused_with_those_that_are_known() -> None:
    root = mapping("zzz: 1\n")
    root.take("dest", "ports")
    with pytest.raises(PolicyError, match='unknown key "zzz" in an entry; known are dest, ports'):
        root.finish("an entry")


def test_two_names_of_one_thing_are_refused_at_the_second() -> None:
    root = mapping("ignore: [a]\nhide: [b]\n")
    with pytest.raises(PolicyError) as error:
        root.take("hide", "ignore")
    assert error.value.where == "p.yaml:2:1"


def test_items_with_and_without_a_list_of_their_own() -> None:
    root = mapping("presets: [a, {b: [x, y]}]\n")
    _key, node = root.take("presets") or ("", None)
    assert node is not None
    assert [(name, texts) for name, texts, _place in document.named(node, "presets")] == [("a", ()), ("b", ("x", "y"))]
    _key, node = mapping("presets: [{b: []}]\n").take("presets") or ("", None)
    assert node is not None
    with pytest.raises(PolicyError, match="empty list"):
        document.named(node, "presets")


def test_lines_are_counted_as_yaml_counts_them() -> None:
    text = "a: 1\r\nb: 2\rc: 3\x85d: 4"
    root = mapping(text)
    places = {key.text: key.line for key, _value in root.pairs.values()}
    assert places == {"a": 1, "b": 2, "c": 3, "d": 4}
    assert document.split_lines(text)[3] == "d: 4"
