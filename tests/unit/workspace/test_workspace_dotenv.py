"""``show: names``: names come through, and nothing that could be a value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membrane.workspace.dotenv import LONGEST_NAME, MOST_NAMES, Unclear, names_only


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("KEY=value\n", "KEY=\n"),
        ("export KEY=value", "export KEY=\n"),
        ("  KEY = value # comment\r\n", "KEY=\n"),
        ("# SECRET=in a comment\n\nB=1\nA=2\nB=3\n", "B=\nA=\n"),
        ("A='x'\nB=\"y\" # z\nC=`z`\n", "A=\nB=\nC=\n"),
        ('PEM="-----BEGIN\nabcd=\nefgh==\n-----END"\nB=1\n', "PEM=\nB=\n"),
        ('A="x \\" y=\nb=1"\nC=2\n', "A=\nC=\n"),
        ("lower=1\nUPPER_2=1\nMixed=1\n", "lower=\nUPPER_2=\n"),
        ("\ufeffKEY=x\n", "KEY=\n"),
    ],
)
def test_names(text: str, shown: str) -> None:
    assert names_only(text.encode()).decode() == shown


@pytest.mark.parametrize(
    "text",
    [
        "KEY=-----BEGIN KEY-----\nMIIEowIBAAKCAQEA\nabc=\n",  # not quoted: the rest are lines of its own
        "KEY=abc\\\nsecret=\n",
        "KEY=abc\ndGhpcw==\n",
        "KEY=a'b\nsecret=1'\n",
        "KEY=$(cat <<E\nsecret=1\nE\n)\n",
        "KEY='never closed\nsecret=\n",
        "KEY='a\\'\nsecret='\n",  # the shell's value ends here, a library's does not
        "KEY='a'\"\nsecret=\"\n",
        "just a secret\n",
        "2KEY=x\n",
        "a.b=x\n",
        "set KEY=x\n",
        "KEY: x\n",
        "K" * (LONGEST_NAME + 1) + "=x\n",
    ],
)
def test_what_readers_take_differently_shows_nothing(text: str) -> None:
    with pytest.raises(Unclear):
        names_only(("A=1\n" + text).encode())
    with pytest.raises(Unclear):
        names_only(b"A=\xff")


def test_the_number_of_names_is_bounded() -> None:
    text = "".join(f"A{number}=x\n" for number in range(MOST_NAMES + 5))
    assert names_only(text.encode()).count(b"\n") == MOST_NAMES


@given(st.text(alphabet="aAb_1='\"`\\ #\n$(", max_size=60))
def test_only_empty_assignments_come_out(text: str) -> None:
    try:
        shown = names_only(text.encode())
    except Unclear:
        return
    for line in shown.decode().splitlines():
        name = line.removeprefix("export ").removesuffix("=")
        assert line.endswith("=") and name.isidentifier() and name in text


@given(st.from_regex(r"[A-Za-z0-9+/=\n\\]{1,40}", fullmatch=True))
def test_a_quoted_value_never_comes_out(value: str) -> None:
    for quote in "'\"":
        try:
            assert names_only(f"KEY={quote}{value}{quote}\n".encode()) == b"KEY=\n"
        except Unclear:
            pass
