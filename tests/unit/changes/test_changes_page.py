"""changes.page: nothing from inside becomes an element or an attribute; red ones come first; all is bounded."""

from __future__ import annotations

import os
from html.parser import HTMLParser
from pathlib import Path

import pytest
from copies import Workspace

from membrane.changes import page

ATTACK = '</pre></style></title><script>x</script><img src=x onerror="x" \'>&lt;\x1b[31m\u202e'
ELEMENTS = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "pre", "span"}


class Parsed(HTMLParser):
    """The elements, their attributes and the text of a page."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: set[tuple[str, str]] = set()
        self.text = ""
        self.feed(data.decode())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        if tag != "meta":
            self.attributes |= {(key, value or "") for key, value in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def made(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "w")


def page_of(workspace: Workspace) -> bytes:
    with workspace.copy() as copy:
        return b"".join(page.page(copy, "work", workspace.changes()))


def test_nothing_from_inside_is_an_element_or_an_attribute(made: Workspace) -> None:
    control = Parsed(ATTACK.encode())
    assert "script" in control.elements
    assert ("onerror", "x") in control.attributes
    (made.layer / ATTACK.replace("/", "\\")).write_text("1\n")
    (made.layer / "content").write_bytes(ATTACK.encode() + b"\n\xff\x80\n")
    (made.layer / "link").symlink_to("../" + ATTACK)
    with open(os.fsencode(made.layer) + b"/\xff<b>", "wb"):
        pass
    data = page_of(made)
    parsed = Parsed(data)
    assert set(parsed.elements) <= ELEMENTS
    assert parsed.elements.count("style") == parsed.elements.count("meta") - 1 == 1
    assert parsed.attributes <= {("lang", "en"), ("class", "red"), ("class", "add"), ("class", "del"), ("class", "at")}
    assert "<script>x</script>" in parsed.text
    assert b"\x1b" not in data
    assert "\u202e" not in parsed.text


def test_red_ones_come_first_in_words(made: Workspace) -> None:
    (made.layer / "a").write_text("plain\n")
    (made.layer / "z.sh").write_text("#!/bin/sh\n")
    (made.layer / "z.sh").chmod(0o755)
    text = Parsed(page_of(made)).text
    assert text.index("z.sh") < text.index("RED: ") < text.index("a (added file)")


def test_what_is_cut_is_said(made: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_OF_ONE", 1000)
    monkeypatch.setattr(page, "MOST", 12_000)
    monkeypatch.setattr(page, "MOST_CHANGES", 3)
    for name in "abcd":
        (made.layer / name).write_text("line\n" * 1000)
    data = page_of(made)
    text = Parsed(data).text
    assert text.count("CUT: the rest is not shown") == 2
    assert "CUT: the page is full" in text
    assert "CUT: 1 more changes are not shown" in text
    assert len(data) < 13_500


def test_marks_and_names_count_as_bytes_of_the_page(made: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newline is an element of some thirty bytes, and a control character of a name several."""
    monkeypatch.setattr(page, "MOST", 10_000)
    for number in range(20):
        (made.layer / f"{number:02}{chr(1) * 200}").write_text("\n" * 1000)
    data = page_of(made)
    assert len(data) < 12_000 and b"more changes are not shown" in data


@pytest.mark.parametrize("most", [page.MOST_READ, 3 << 20])
def test_what_is_read_for_the_page_is_bounded(made: Workspace, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Sparse files cost the command nothing; without the bound (the control) all of them are read."""
    read: list[str] = []
    patch = page.diff.patch
    monkeypatch.setattr(page.diff, "patch", lambda copy, changes: read.append(changes[0].path) or patch(copy, changes))
    monkeypatch.setattr(page, "MOST_READ", most)
    for name in "abcdef":
        with open(made.layer / name, "wb") as file:
            file.truncate(1 << 20)
    text = Parsed(page_of(made)).text
    assert len(read) == (6 if most > 6 << 20 else 3)
    assert text.count("CUT: the page is full") == 6 - len(read)
