"""Plans of fixed policies and hosts, compared with the files beside this one."""

from __future__ import annotations

import pytest
from golden_cases import CASES, DIRECTORY, REFUSALS, path_of, refusals, texts

from membrane.host.messages import TO_LAUNCHER, Begin
from membrane.host.start import Start
from membrane.plan.build import build

ADVICE = "the plan changed; if that is meant: python tests/golden/update.py"
TEXTS = texts()


@pytest.mark.parametrize("name", TEXTS)
def test_plan_is_the_recorded_one(name: str) -> None:
    assert TEXTS[name] == path_of(name).read_text(), ADVICE


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in DIRECTORY.glob("*.txt")} == set(TEXTS)


def test_the_same_input_gives_the_same_plan() -> None:
    for policy, facts in CASES.values():
        assert build(policy, facts) == build(policy, facts)


@pytest.mark.parametrize("case", CASES)
def test_a_plan_travels_to_the_launcher_whole(case: str) -> None:
    plan = build(*CASES[case]).replace(bindings=())  # nothing is made of those
    begin = Begin(Start(plan, ("a", "\udcff\n"), (True, False, True), "id", 0o22, "reads", "kept"))
    assert TO_LAUNCHER.decode(*TO_LAUNCHER.encode(begin)) == begin


def test_every_refusal_names_a_place_or_what_to_do() -> None:
    """An error without ``file:line`` or advice leaves a person alone with it."""
    recorded = refusals().split("\n\n")
    for entry in recorded:
        name, headline, *advice = entry.strip().splitlines()
        # "policy: " is a setting; the sources of its value are several.
        assert advice or headline.startswith(("user ", "project ", "command line", "policy: ")), name


def test_the_refusals_are_in_the_golden_set() -> None:
    assert REFUSALS in TEXTS
