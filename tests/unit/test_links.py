"""Every link between our own pages leads to a file and to a heading that there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings, without those of fenced examples."""
    plain = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    heads = [re.sub(r"[`*]", "", head).strip().lower() for head in re.findall(r"^#+ (.*)", plain, re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", head).replace(" ", "-") for head in heads}


def broken(page: Path, text: str) -> list[str]:
    found = []
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        place = (page.parent / name).resolve() if name else page
        if not place.exists() or (anchor and anchor not in anchors(place.read_text())):
            found.append(target)
    return found


def test_the_search_finds_what_it_looks_for() -> None:
    text = "[a](README.md) [b](none.md) [c](README.md#a-policy) [d](README.md#none) [e](https://x.example/y)"
    assert broken(ROOT / "README.md", text) == ["none.md", "README.md#none"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page, page.read_text()) == []


def test_the_first_page_is_short() -> None:
    assert 110 <= len((ROOT / "README.md").read_text().splitlines()) <= 130


NAMED = re.compile(r"`([\w/]+\.py)`(?:,| \()\s*`(\w+)`")


def absent(text: str) -> list[str]:
    """Names that a page says are in a file of ours, as ``file.py``, ``name``, and are not."""
    found = []
    for file, name in NAMED.findall(text):
        places = [each for each in (ROOT / "src/membrane").rglob(Path(file).name) if str(each).endswith("/" + file)]
        if places and not any(re.search(rf"\b{name}\b", each.read_text()) for each in places):
            found.append(f"{file}: {name}")
    return found


def test_the_search_for_names_finds_what_it_looks_for() -> None:
    text = "in `plan/toolchains.py`, `NAMES`, and `plan/toolchains.py` (`NOWHERE`); `elsewhere.py`, `NAMES`"
    assert absent(text) == ["plan/toolchains.py: NOWHERE"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_that_pages_give_of_the_code_are_there(page: Path) -> None:
    assert absent(page.read_text()) == []
