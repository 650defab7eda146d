"""Hunks of a text: any selection gives the text that a person would expect, byte for byte."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from membrane.changes import hunks, lines
from membrane.changes.hunks import Foreign, Hunk, blocks, chosen, cut, together

LINE = st.sampled_from([b"a\n", b"b\n", b"c\r\n", b"\n", b"\r\n", b"\xff\xfe\n", b"\x1b[31m\n", b"a b\r\r\n"])
END = st.sampled_from([b"", b"last", b"last\r", b"\xc3", b"other"])
TEXT = st.builds(lambda body, end: b"".join(body) + end, st.lists(LINE, max_size=30), END)

BASE = b"".join(b"line %d\n" % number for number in range(1, 41))


@given(TEXT, TEXT)
@example(b"", b"")
@example(b"a", b"a\nb")
@example(b"a\n", b"a")
@example(b"a\r\n", b"a\n")
def test_all_give_the_changed_text_and_none_the_base(base: bytes, changed: bytes) -> None:
    found = cut(base, changed)
    assert chosen(base, changed, found) == changed
    assert chosen(base, changed, ()) == base
    assert (found == ()) is (base == changed)


@given(TEXT, TEXT, st.randoms(use_true_random=False), st.data())
def test_the_order_does_not_count_and_what_was_chosen_is_no_difference_any_more(
    base: bytes, changed: bytes, dice: random.Random, data: st.DataObject
) -> None:
    found = list(cut(base, changed))
    some = data.draw(st.sets(st.sampled_from(found))) if found else set()
    once = chosen(base, changed, [hunk for hunk in found if hunk in some])
    mixed = [*some, *some]
    dice.shuffle(mixed)
    assert chosen(base, changed, mixed) == once
    # The lines are those of the two texts, whole, in their order: the others can be chosen later.
    expected, at = [], 0
    old = lines.split(base)
    for hunk in found:
        expected += [*old[at : hunk.old], *(hunk.added if hunk in some else hunk.removed)]
        at = hunk.old + len(hunk.removed)
    assert once == b"".join([*expected, *old[at:]])
    assert chosen(once, changed, cut(once, changed)) == changed


def test_one_of_two_is_one_and_the_rest_is_what_is_left() -> None:
    changed = BASE.replace(b"line 3\n", b"three\n").replace(b"line 30\n", b"thirty\r\n")
    first, second = cut(BASE, changed)
    assert first == Hunk(2, 2, (b"line 3\n",), (b"three\n",))
    half = chosen(BASE, changed, [second])
    assert half == BASE.replace(b"line 30\n", b"thirty\r\n")
    assert cut(half, changed) == (first,)


@pytest.mark.parametrize("field", ["old", "new", "removed", "added"])
def test_a_hunk_that_was_not_seen_is_refused(field: str) -> None:
    changed = BASE.replace(b"line 3\n", b"three\n")
    (hunk,) = cut(BASE, changed)
    other = hunk.replace(**{field: getattr(hunk, field) + ((b"x\n",) if field in ("removed", "added") else 1)})
    with pytest.raises(Foreign):
        chosen(BASE, changed, [other])
    assert chosen(BASE, changed, [hunk]) == changed


def test_near_ones_are_shown_together_and_can_be_shown_apart() -> None:
    changed = BASE.replace(b"line 3\n", b"three\n").replace(b"line 6\n", b"").replace(b"line 30\n", b"thirty\n")
    found = cut(BASE, changed)
    groups = together(found)
    assert [len(group) for group in groups] == [2, 1]
    whole = blocks(BASE, changed, groups)
    assert b"".join(b"".join(block) for block in whole) == b"".join(
        lines.hunks(lines.split(BASE), lines.split(changed))
    )
    apart = blocks(BASE, changed, [(hunk,) for hunk in found])
    assert [block[0] for block in apart] == [b"@@ -1,5 +1,5 @@\n", b"@@ -6,4 +6,3 @@\n", b"@@ -27,7 +26,7 @@\n"]


@pytest.mark.needs_tool("git")
@given(TEXT, TEXT)
def test_git_takes_what_is_shown(base: bytes, changed: bytes) -> None:
    import tempfile

    shown = b"".join(b"".join(block) for block in blocks(base, changed, together(cut(base, changed))))
    if not shown or not base or not changed:
        return
    with tempfile.TemporaryDirectory() as place:
        Path(place, "f").write_bytes(base)
        patch = b"--- a/f\n+++ b/f\n" + shown
        done = subprocess.run(["git", "apply", "-"], cwd=place, input=patch, capture_output=True, check=False)
        assert done.returncode == 0, (done.stderr, patch)
        assert Path(place, "f").read_bytes() == changed


def test_what_is_too_large_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hunks.is_small(BASE, BASE)
    monkeypatch.setattr(hunks, "MOST_LINES", 40)
    assert not hunks.is_small(BASE)
    monkeypatch.undo()
    monkeypatch.setattr(hunks, "LARGEST", len(BASE))
    assert hunks.is_small(BASE)
    monkeypatch.setattr(hunks, "LARGEST", len(BASE) - 1)
    assert not hunks.is_small(b"", BASE)
