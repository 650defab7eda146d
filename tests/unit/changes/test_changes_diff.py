"""changes.diff and changes.lines: the patch is one that git applies, and it makes the tree that the command saw."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from copies import Workspace, tree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from membrane.changes import diff
from membrane.changes.lines import hunks, matches, split

GIT = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_CEILING_DIRECTORIES": "/",
    "LC_ALL": "C",
}


@pytest.fixture
def made(tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path / "w")
    (workspace.base / "a.txt").write_text("".join(f"line {number}\n" for number in range(40)))
    return workspace


def patch_of(workspace: Workspace) -> bytes:
    with workspace.copy() as copy:
        return b"".join(diff.patch(copy, workspace.changes()))


def git_apply(where: Path, patch: bytes) -> None:
    for more in (["--check"], []):
        done = subprocess.run(
            ["git", "apply", "--whitespace=nowarn", *more, "-"],
            cwd=where,
            input=patch,
            capture_output=True,
            env={**GIT, "GIT_CEILING_DIRECTORIES": str(where.parent)},
            check=False,
        )
        assert done.returncode == 0, (done.stderr.decode(), patch)


def files(root: Path) -> dict[bytes, tuple[object, ...]]:
    """What git knows of a tree: files with their execute bit, and links."""
    out: dict[bytes, tuple[object, ...]] = {}
    for path, entry in tree(root).items():
        if entry[0] == "file":
            assert isinstance(entry[1], int)
            out[path] = ("file", bool(entry[1] & 0o100), entry[2])
        elif entry[0] == "link":
            out[path] = entry
    return out


def check(workspace: Workspace, wanted: Path | None = None) -> bytes:
    """The patch makes a copy of the workspace what the changes make of it; the patch."""
    patch = patch_of(workspace)
    reached = workspace.place / "patched"
    shutil.rmtree(reached, ignore_errors=True)
    shutil.copytree(workspace.base, reached, symlinks=True)
    if b"diff --git" in patch:
        git_apply(reached, patch)
    if wanted is not None:
        assert files(reached) == files(wanted)
    return patch


def test_every_kind_of_change_is_in_the_patch_and_git_applies_it(made: Workspace) -> None:
    base = made.base
    (base / "gone").write_text("g\n")
    (base / "moved").write_text("m" * 100)
    (base / "binary").write_bytes(bytes(range(256)))
    (base / "link").symlink_to("a.txt")
    (base / "becomes-link").write_text("x\n")
    (base / "no-newline").write_text("a\nb")
    (base / "d").mkdir()
    (base / "d/x").write_text("x\n")
    (base / "run").write_text("r\n")
    made.write("a.txt", (base / "a.txt").read_text().replace("line 7\n", "seven\n").replace("line 30\n", ""))
    made.delete("gone")
    made.delete("moved")
    made.write("other dir/mov\xe9d", "m" * 100, 0o755)
    made.write("binary", bytes(range(255, -1, -1)) * 9)
    (made.layer / "link").symlink_to("elsewhere")
    (made.layer / "becomes-link").symlink_to("a.txt")
    made.write("no-newline", "a\nc")
    made.write("d", "now a file\n")
    made.write("run", "r\n", 0o755)
    made.write("empty", "")
    made.write("with space", "x\ty\r\n")
    made.write('q"uote\\d\x01', "x\n")
    made.write("new-binary", b"\0\1\2")
    wanted = made.place / "wanted"
    shutil.copytree(base, wanted, symlinks=True)
    for name in ("gone", "moved", "link", "becomes-link"):
        (wanted / name).unlink()
    shutil.rmtree(wanted / "d")
    shutil.copytree(
        made.layer, wanted, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns("gone", "moved")
    )
    patch = check(made, wanted)
    assert b"rename from moved\n" in patch and b"GIT binary patch" in patch
    assert patch.count(b"@@ -") >= 2 and b"\\ No newline at end of file" in patch


def test_names_that_are_not_utf8(made: Workspace) -> None:
    with open(os.path.join(os.fsencode(made.layer), b"n\xff\n"), "wb") as file:
        file.write(b"x\n")
    assert b'+++ "b/n\\377\\n"' in check(made)


def test_what_git_has_no_words_for_is_said_at_the_top(made: Workspace) -> None:
    (made.layer / "d\nir").mkdir(mode=0o700)
    os.mkfifo(made.layer / "fifo")
    made.write("a.txt", (made.base / "a.txt").read_text(), 0o600)
    made.write(".git/hooks/post-commit", "x")
    patch = patch_of(made)
    assert patch.decode().splitlines() == [
        "# in git's directory, added: .git",
        "# in git's directory, added: .git/hooks",
        "# in git's directory, added: .git/hooks/post-commit",
        "# file, mode 0600: a.txt",
        '# new directory, mode 0700: "d\\nir"',
        "# fifo, added: fifo",
    ]


def test_what_was_made_under_a_hidden_name_is_said_at_the_top(made: Workspace) -> None:
    """The host has another file there: git would refuse all of the patch."""
    (made.base / ".env").write_text("mine\n")
    made.write(".env", "theirs\n")
    made.write("new", "n\n")

    def hidden(path: str) -> bool:
        return path == ".env"

    with made.copy(hidden) as copy:
        found = copy.changes()
        assert [change.path for change in found] == [".env", "new"]
        patch = b"".join(diff.patch(copy, found))
    assert patch.startswith(b"# under a name that a rule hides, never put in place: .env\ndiff --git a/new b/new\n")
    git_apply(made.base, patch)
    assert (made.base / ".env").read_text() == "mine\n" and (made.base / "new").read_text() == "n\n"


def test_stat_names_and_json(made: Workspace) -> None:
    made.write("a.txt", "line 0\nx\n")
    made.write("b", b"\0")
    made.delete("a.txt.not-there")
    with made.copy() as copy:
        changes = made.changes()
        assert list(diff.stat(copy, changes)) == [
            " a.txt | 40 +" + "-" * 39,
            " b     | Bin 0 -> 1 bytes",
            " 2 files changed, 1 insertions(+), 39 deletions(-)",
        ]
    assert b"".join(diff.name_status(changes)) == b"M\ta.txt\nA\tb\n"
    rows = diff.as_json(changes)
    assert rows[0]["before"]["size"] > rows[0]["after"]["size"] and rows[1]["kind"] == "added"


def test_no_content_steers_a_terminal(made: Workspace) -> None:
    made.write("a.txt", "\x1b]0;owned\x07\t\u202e\r\x9b2J\\n\xff\n")
    made.write("b\x1b[2J", "x\n")
    text = "".join(diff.shown(piece, colour=False) for piece in [patch_of(made)])
    assert all(char.isprintable() or char in "\n\t" for char in text)
    assert "\\u{1b}]0;owned" in text and "\\u{202e}" in text
    assert "\x1b[32m+" in diff.shown(b"+x\n", colour=True)


def test_no_content_looks_like_another() -> None:
    """What hides in a text is not shown as what merely spells its escape."""
    pairs = (
        (b"\\u{202e}", "\u202e".encode()),
        (b"\\xff", b"\xff"),
        (b"\\\\u{1b}", b"\\\x1b"),
        (b"\t\\u{7}", b"\t\x07"),
    )
    for written, hidden in pairs:
        assert diff.shown(written, colour=False) != diff.shown(hidden, colour=False)
    for code in (rb"printf '\x1b[0m\n' \u{1f600} C:\\x \d+\\", b"+\tre.sub(r'\\\\(.)', '')"):
        assert diff.shown(code, colour=False) == code.decode(), "the control: other backslashes stay as they are"


def test_a_patch_is_bounded(made: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diff, "LARGEST", 100)
    made.write("large", "x" * 101)
    assert patch_of(made) == b"# file of 101 bytes, added: large\n"


# ---------------------------------------------------------------- lines

_TEXTS = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"\n", b"d"]), max_size=30)


def patched(old: list[bytes], new: list[bytes]) -> list[bytes]:
    """``new``, made of ``old`` and the hunks."""
    out: list[bytes] = []
    at = 0
    for piece in hunks(old, new):
        if piece.startswith(b"@@"):
            start, _, count = piece.split()[1][1:].partition(b",")
            first = int(start) - (1 if count != b"0" else 0)
            out += old[at:first]
            at = first
            continue
        sign, line = piece[:1], piece[1:]
        if line.endswith(b"\n\\ No newline at end of file\n"):
            line = line[: -len(b"\n\\ No newline at end of file\n")]
        if sign in b" -":
            assert old[at] == line
            at += 1
        if sign in b" +":
            out.append(line)
    return out + old[at:]


@given(old=_TEXTS, new=_TEXTS)
def test_hunks_make_the_new_text(old: list[bytes], new: list[bytes]) -> None:
    old, new = split(b"".join(old)), split(b"".join(new))
    assert patched(old, new) == new
    last = (0, 0)
    for i, j, length in matches(old, new):
        assert i >= last[0] and j >= last[1] and length > 0 and old[i : i + length] == new[j : j + length]
        last = (i + length, j + length)


@given(data=st.binary(max_size=60))
def test_lines_are_the_text(data: bytes) -> None:
    assert b"".join(split(data)) == data


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ([b"a\n"] * 60_000, [b"b\n", b"a\n"] * 30_000),
        ([b"a\n", b"b\n"] * 30_000, [b"b\n", b"b\n", b"a\n"] * 20_000),
        ([b"%d\n" % n for n in range(60_000)], [b"%d\n" % n for n in range(60_000, 0, -1)]),
        ([b"%d\n" % (n * n % 977) for n in range(60_000)], [b"%d\n" % (n * n % 983) for n in range(60_000)]),
    ],
    ids=["equal lines", "two lines", "reversed", "few lines"],
)
def test_the_work_is_bounded(old: list[bytes], new: list[bytes]) -> None:
    begun = time.process_time()
    assert patched(old, new) == new
    assert time.process_time() - begun < 20


_NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=6).filter(
    lambda name: name not in (".", "..") and len(name.encode()) < 200 and not diff.is_gits(name)
)
_CONTENTS = st.one_of(_TEXTS.map(b"".join), st.binary(max_size=200))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(before=st.dictionaries(_NAMES, _CONTENTS, max_size=6), after=st.dictionaries(_NAMES, _CONTENTS, max_size=6))
def test_git_makes_of_the_patch_what_the_command_saw(before: dict[str, bytes], after: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory(prefix="membrane-patch-") as place:
        workspace = Workspace(Path(place) / "w")
        wanted = Path(place) / "wanted"
        wanted.mkdir()
        for name, data in before.items():
            (workspace.base / name).write_bytes(data)
        for number, (name, data) in enumerate(after.items()):
            workspace.write(name, data, 0o755 if number % 3 else 0o644)
            shutil.copy2(workspace.layer / name, wanted / name)
        for name in before.keys() - after.keys():
            workspace.delete(name)
        check(workspace, wanted)


def test_all_files_of_a_patch_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes beyond is named at the top, and what is small comes all the same."""
    workspace = Workspace(tmp_path / "w")
    workspace.begin()
    for name, size in (("a", 60), ("b", 60), ("c", 30)):
        workspace.write(name, "x" * (size - 1) + "\n")
    with workspace.copy() as copy:
        changes = copy.changes()
        whole = b"".join(diff.patch(copy, changes))
        assert all(b"+++ b/%s\n" % name in whole for name in (b"a", b"b", b"c"))
        monkeypatch.setattr(diff, "MOST", 100)
        text = b"".join(diff.patch(copy, changes))
        assert text.startswith(b"# beyond the 100 bytes that are read for a patch, added: b\n")
        assert b"+++ b/a\n" in text and b"+++ b/c\n" in text and b"+++ b/b\n" not in text
        assert b"+++ b/b\n" in b"".join(diff.patch(copy, [change for change in changes if change.path == "b"]))
