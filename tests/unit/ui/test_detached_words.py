"""Names of started sessions, and which keys are the client's."""

from __future__ import annotations

import pytest

from membrane.ui import detached
from membrane.ui.options import UsageError


def test_a_name_stands_before_the_dashes() -> None:
    assert detached.split(("api", "--", "npm", "run", "--", "x")) == ("api", ("npm", "run", "--", "x"))
    assert detached.split(("api", "--")) == ("api", ())
    assert detached.split(("npm", "run", "--", "x")) == ("", ("npm", "run", "--", "x"))
    assert detached.split(()) == ("", ())


@pytest.mark.parametrize("name", ["", ".x", "-x", "a/b", "..", "a b", "é", "x" * 65, "a\n", "a\0"])
def test_what_is_no_name_of_a_file_is_none_of_a_session(name: str) -> None:
    with pytest.raises(UsageError, match="is no name of a session"):
        detached.check_name(name)
    assert detached.check_name("Api-2.x_") == "Api-2.x_"


def test_the_prefix_lets_go_and_twice_is_itself() -> None:
    assert detached.keys(b"ab", False) == (b"ab", False, False)
    assert detached.keys(b"a\x1cd", False) == (b"a", False, True)
    assert detached.keys(b"a\x1c", False) == (b"a", True, False)
    assert detached.keys(b"d", True) == (b"", False, True)
    assert detached.keys(b"\x1c\x1cd", False) == (b"\x1cd", False, False)
    assert detached.keys(b"\x1cx", False) == (b"\x1cx", False, False)
