"""``scripts/mutants.py``: what it changes, and that its data speaks of functions, tests and changes that exist."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def _loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "scripts/mutants.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


mutants = _loaded()


def changes(body: str) -> list[str]:
    source = "def f(a, b):\n" + "".join(f"    {line}\n" for line in body.split("\n"))
    found = mutants.mutants_of("x.py", source.encode(), ("f",))
    for mutant in found:
        changed = mutants.applied(source.encode(), mutant).decode()
        compile(changed, "x.py", "exec")
        assert changed != source
    return [mutant.change for mutant in found]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("if a:\n    raise KeyError", ["a -> (not (a))", "raise KeyError -> pass"]),
        ("if not a:\n    return b", ["not a -> (a)", "return b -> pass"]),
        ("return a < b", ["a < b -> (a <= b)"]),
        ("return a != b", ["a != b -> (a == b)"]),
        ("return a <= b <= 5", ["a <= b <= 5 -> (a < b <= 5)", "a <= b <= 5 -> (a <= b < 5)"]),
        ("return a not in b", ["a not in b -> (a in b)"]),
        ("return a and b", ["a and b -> ((b))", "a and b -> ((a))"]),
        ("return False", ["return False -> return True"]),
        ("return a", []),
        ("a.check(b)", ["a.check(b) -> pass"]),
        ("a.refused += 1\na.done = True\nc = 1", ["a.refused += 1 -> pass", "a.done = True -> pass"]),
        ("return [x for x in a if x]", ["x -> (not (x))"]),
        ("for x in a:\n    if x:\n        continue", ["x -> (not (x))", "continue -> pass"]),
        ("assert a is not None", []),
        ('"""A text of bücher."""\nif "ü" in a:\n    return 1', ['"ü" in a -> ("ü" not in a)', "return 1 -> pass"]),
        (
            "if (\n    a\n    and b\n):\n    return 1",
            ["a and b -> (not (a and b))", "a and b -> ((b))", "a and b -> ((a))", "return 1 -> pass"],
        ),
    ],
)
def test_changes(body: str, expected: list[str]) -> None:
    assert changes(body) == expected


def test_methods_are_named_with_their_class() -> None:
    source = b"class A:\n    def m(self):\n        return True\ndef g():\n    return True\n"
    assert [each.function for each in mutants.mutants_of("x.py", source, ())] == ["A.m", "g"]
    assert [each.function for each in mutants.mutants_of("x.py", source, ("A.*",))] == ["A.m"]
    with pytest.raises(LookupError, match="no function h"):
        mutants.mutants_of("x.py", source, ("h",))


def test_the_data_speaks_of_what_there_is() -> None:
    targets, reasons = mutants.read_data((ROOT / "scripts/mutants.toml").read_text())
    known = set()
    for target in targets:
        found = mutants.mutants_of(target.file, (ROOT / "src/membrane" / target.file).read_bytes(), target.functions)
        assert found, target
        known |= {(each.file, each.function, each.change) for each in found}
        assert all((ROOT / test).is_file() for test in target.tests)
    assert [row for row in reasons if row not in known] == []
    assert all(len(reason) > 20 for reason in reasons.values())
