"""``docs/protected-names.md``, from the tables: ``python tests/golden/protected_names.py`` writes it again."""

from __future__ import annotations

from pathlib import Path

from membrane.workspace import gitdir, names

PLACE = Path(__file__).parents[2] / "docs" / "protected-names.md"
PLACES = {
    "git": "in `.git`, and below `modules`",
    "linked": "below `worktrees`",
    "info": "in `info`",
    "rebase-merge": "in `rebase-merge`",
    "rebase-apply": "in `rebase-apply`",
    "sequencer": "in `sequencer`",
}
KINDS = {
    "file": "written freely",
    "data": "a directory that is written freely",
    "checked": "its content is judged at each change",
    "held": "cannot be changed where it stood at the start; judged where it appears",
    "probe": "written freely, also as a link: git learns by it what the file system can do",
    "place": "a directory with rows of its own",
}
BEGIN = """# Protected names

Generated from `src/membrane/workspace/names.py` and `gitdir.py` by `tests/golden/protected_names.py`; a test compares.
What happens to such a name is in [threat-model.md](threat-model.md).

## Names that tools obey

In any directory of the workspace and of writable mounts, in any case, but not in trees that package managers unpack
(`node_modules`, `site-packages`, `vendor`, ...). One that exists at the start is read-only; a new one is refused. Where
a row says what may be in it, the content decides instead, at each change, and a link is refused. In a repository that
the command made below the top (a clone) it stays, and is reported at the end. Of a row with three parts a file or a
link in the place of the second is held as well: `.jj/repo` may be a file that says where the directory is.

| name | who obeys it | what that does | written in |
| --- | --- | --- | --- |
"""
GIT = """
## What git writes in its own directory

In a `.git`, in `modules/NAME` and `worktrees/NAME`, what is **not** in this table is refused. In a directory that is a
repository by its layout only (a bare one) the names that are held or judged count, and no others. `?` is any
character, `*` any number of them.

| name | where | who writes it | what holds | written in |
| --- | --- | --- | --- | --- |
"""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def render() -> str:
    """The whole page."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for row in names.TREE_ROWS:
        does = f"{row.does}; may be in it: {row.check}" if row.check else row.does
        grouped.setdefault((row.tool, does, row.source), []).append(f"`{row.name}`")
    out = BEGIN
    for (tool, does, source), found in grouped.items():
        out += f"| {_cell(', '.join(found))} | {_cell(tool)} | {_cell(does)} | {_cell(source)} |\n"
    out += GIT
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    for each in gitdir.ROWS:
        where = ", ".join(PLACES[place] for place in each.places)
        holds = KINDS[each.kind] + (f": {each.check}" if each.check else "")
        rows.setdefault((where, each.writer, holds, each.source), []).append(f"`{each.name}`")
    for (where, writer, holds, source), found in rows.items():
        out += f"| {' '.join(found)} | {where} | {_cell(writer)} | {holds} | {_cell(source)} |\n"
    return out


if __name__ == "__main__":
    PLACE.write_text(render())
