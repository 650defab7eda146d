"""Names that a rule speaks of and that are not there yet: which may be made."""

from __future__ import annotations

import pytest

from membrane.workspace import creation
from membrane.workspace.creation import CreationRules

RULES = [("hide", ".env"), ("hide", "/keys/"), ("readonly", "*.lock"), ("hide", "!keep/.env"), ("readonly", "/infra")]


@pytest.mark.parametrize(
    ("path", "directory", "reason"),
    [
        (".env", False, "hidden"),
        ("a/b/.env", False, "hidden"),
        ("keep/.env", False, ""),
        ("keys", True, "hidden"),
        ("keys", False, ""),
        ("keys/deep/x", False, "hidden"),
        ("a/keys/x", False, ""),
        ("x.lock", False, "read-only"),
        ("infra/a/b", False, "read-only"),
        ("a/infra", False, ""),
        ("plain", False, ""),
    ],
)
def test_by_the_patterns_of_the_walk(path: str, directory: bool, reason: str) -> None:
    rules = CreationRules(RULES)
    assert rules.reason(path, directory) == reason
    assert rules.reason(path, directory) == reason  # and again, from what was kept


def test_without_rules_everything_may_be_made() -> None:
    assert CreationRules([]).reason("any/.env", False) == ""


def test_git_locks_its_own_files_whatever_is_read_only() -> None:
    rules = CreationRules([("readonly", "*.lock")])
    assert rules.reason("sub/.git/index.lock", False) == ""
    assert rules.reason("sub/git/index.lock", False) == "read-only"


def test_what_is_kept_of_directories_is_bounded() -> None:
    rules = CreationRules([("hide", "/d7/")])
    for number in range(creation.MOST_DIRECTORIES + 100):
        assert rules.reason(f"d{number}/x", False) == ("hidden" if number == 7 else "")
    assert len(rules._directories) <= creation.MOST_DIRECTORIES
    assert rules.reason("d7/x", False) == "hidden"
