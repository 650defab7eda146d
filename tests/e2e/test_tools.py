"""The quick rows of docs/tools.md: programs that are installed here give inside what they give outside.

``python -m scripts.tools`` runs all of them and writes the page; this sees that the page is of these rows, and that the
quick ones still hold.
"""

from __future__ import annotations

import pytest
from scripts import tools
from world.box import Box, membrane_argv

ROWS = tools.rows()
# What other tests of this directory run for themselves, or more than a second of it: not twice in one suite.
LEFT_OUT = {
    "git",
    "git worktree, submodule",
    "python, venv",
    "gunicorn",
    "nginx",
    "redis",
    "docker",
    "apt",
    "AddressSanitizer",
}
QUICK = [row for row in ROWS if not row.registry and not row.slow and row.name not in LEFT_OUT]


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(
            row, id=row.name, marks=[*map(pytest.mark.needs_tool, row.needs), *([pytest.mark.as_user] * row.plain)]
        )
        for row in QUICK
    ],
)
def test_a_tool_does_inside_what_the_page_says(box: Box, row: tools.Row) -> None:
    environ = {name: value for name, value in box.environment().items() if name != "SECRET_TOKEN"}
    found = tools.measure(row, [*membrane_argv(), "--quiet"], environ, box.home)
    assert found.outcome == (tools.REFUSED if row.refused else tools.SAME), found


def test_the_page_is_of_these_rows() -> None:
    """Each row with what it says by hand; what was measured is none of: it differs."""
    shown = tools.cells(tools.PAGE.read_text(encoding="utf-8"))
    assert list(shown) == [row.name for row in ROWS]
    for row in ROWS:
        _name, _version, what, network, outcome, to_know = shown[row.name]
        assert (what, network, to_know) == (row.what, row.network or "-", row.to_know or "-")
        assert outcome.partition(":")[0] in (
            (tools.REFUSED,) if row.refused else (tools.SAME, tools.LEFT_OUT, tools.NOT_INSTALLED)
        ), outcome
