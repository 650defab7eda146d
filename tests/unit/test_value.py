"""Frozen records: construction, defaults, equality, refusal of every change."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from membrane.value import Value


class Point(Value):
    x: int
    y: int = 2


class Named(Point):
    name: str = "origin"


class Twin(Value):
    x: int
    y: int = 2


class Positive(Value):
    number: int

    def __post_init__(self) -> None:
        if self.number <= 0:
            raise ValueError("must be positive")


def test_fields_come_in_the_order_of_declaration_with_those_of_the_base_first() -> None:
    assert Named.field_names == ("x", "y", "name")
    assert (Named(1).x, Named(1).y, Named(1).name) == (1, 2, "origin")
    assert Named(1, 5, "p") == Named(x=1, y=5, name="p")


@pytest.mark.parametrize(
    ("args", "fields", "message"),
    [
        ((), {}, "Point: field 'x' is missing"),
        ((1, 2, 3), {}, "Point takes 2 fields, got 3"),
        ((1,), {"x": 1}, "Point: unexpected or repeated field 'x'"),
        ((1,), {"z": 1}, "Point: unexpected or repeated field 'z'"),
    ],
)
def test_wrong_fields_are_refused(args: tuple[int, ...], fields: dict[str, int], message: str) -> None:
    make: Any = Point
    with pytest.raises(TypeError, match=f"^{message}$"):
        make(*args, **fields)


def test_nothing_can_be_assigned_or_deleted() -> None:
    point: Any = Point(1)
    with pytest.raises(AttributeError, match="Point is frozen: cannot assign 'x'"):
        point.x = 2
    with pytest.raises(AttributeError, match="cannot assign 'other'"):
        point.other = 2
    with pytest.raises(AttributeError, match="cannot delete 'x'"):
        del point.x
    assert point == Point(1)


def test_equality_is_by_exact_type_and_fields() -> None:
    assert Point(1) == Point(1, 2)
    assert Point(1) != Point(2)
    assert Point(1) != Twin(1)
    assert Point(1) != (1, 2)
    assert Named(1) != Point(1)


def test_equal_values_have_equal_hashes_and_order_of_construction_does_not_count() -> None:
    assert hash(Point(y=3, x=1)) == hash(Point(1, 3))
    assert len({Point(1), Point(1), Point(2), Twin(1)}) == 3


def test_a_value_with_a_mutable_field_can_not_be_a_key() -> None:
    holder: Any = Point
    with pytest.raises(TypeError, match="unhashable"):
        hash(holder({}))


def test_the_invariant_is_checked_on_construction_and_on_replacement() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        Positive(0)
    with pytest.raises(ValueError, match="must be positive"):
        Positive(1).replace(number=-1)


def test_replace_copies_and_refuses_unknown_names() -> None:
    point = Point(1)
    assert point.replace(y=9) == Point(1, 9)
    assert point == Point(1, 2)
    with pytest.raises(TypeError, match="Point has no field 'z'"):
        point.replace(z=1)


def test_defaults_belong_to_the_class_that_declares_them() -> None:
    class Other(Point):
        y: int = 7

    assert (Point(1).y, Other(1).y) == (2, 7)


def test_text_form_is_the_constructor_call() -> None:
    assert repr(Named(1, name="a\nb")) == "Named(x=1, y=2, name='a\\nb')"
    assert eval(repr(Named(1)), {"Named": Named}) == Named(1)


def test_copies_are_equal_values() -> None:
    point = Named(1, 2, "p")
    assert copy.copy(point) == copy.deepcopy(point) == pickle.loads(pickle.dumps(point)) == point
