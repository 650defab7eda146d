"""What somebody is to agree to: all of it is shown."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from membrane.escaping import WIDTH, folded, one_line
from membrane.run.prompt import text as question_text
from membrane.run.questions import Question


def test_nothing_hides_behind_blanks() -> None:
    lines = folded("allow: [a.example]" + " " * 3000 + "# ok" + " " * 3000 + ", evil.example]")
    assert lines == [r"allow: [a.example]\{3000 blanks}# ok\{3000 blanks}, evil.example]"]
    assert folded(f"a   b{' ' * 32}c") == [f"a   b{' ' * 32}c"]  # a comment that is aligned
    assert folded(f"a   b{' ' * 33}c") == [r"a   b\{33 blanks}c"]
    assert one_line("a   b    c") == r"a   b\{4 blanks}c"
    assert folded("a \nb\t\u00a0") == [r"a\{1 blanks}", r"b\u{9}\u{a0}"]
    assert folded(r"\{3000 blanks}") == [r"\\{3000 blanks}"]


@given(st.text(), st.text())
def test_two_texts_never_look_the_same(one: str, other: str) -> None:
    assert (folded(one) == folded(other)) == (one == other)
    assert all(len(line) <= WIDTH + 3 and line.isprintable() for line in folded(one))
    assert (one_line(one) == one_line(other)) == (one == other)


def test_a_question_says_how_much_it_does_not_show_and_keeps_no_rule_that_is_cut() -> None:
    path = "/a" + " " * 3000 + "/evil"
    access = {"kind": "HttpRequest", "method": "GET", "scheme": "https", "host": "h.example", "port": 443, "path": path}
    question = Question(1, "request", access, f"GET https://h.example{path}")
    shown = question_text(question)
    assert "characters are not shown" in shown and "/evil" in shown and "[a]lways" not in shown
    assert max(map(len, shown.splitlines())) < 600
    short = Question(1, "request", {**access, "path": "/a"}, "GET https://h.example/a")
    assert "[a]lways" in question_text(short)
