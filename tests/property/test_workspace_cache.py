"""The index: after any edits, a scan that uses it says what a scan without it says."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membrane.policy.model import Origin, PathRule
from membrane.workspace import scan as scan_module
from membrane.workspace.scan import rescan, scan

ORIGIN = Origin("library", "test")
NAMES = ("a", "b", ".env", "x.pem", "secrets", ".git", "config", "hooks", ".vscode", "HEAD", "objects", "refs",
         "worktrees", "commondir", "vendor", ".claude", "settings.json", "d\udcff", "l\n")  # fmt: skip
RULES = (
    PathRule(".env", ORIGIN, "hide"),
    PathRule("*.pem", ORIGIN, "hide"),
    PathRule("a/secrets/", ORIGIN, "hide"),
    PathRule("b/", ORIGIN, "readonly"),
    PathRule("!a/b/", ORIGIN, "readonly"),
)

paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join)
edits = st.tuples(st.sampled_from(["file", "directory", "link", "remove", "rename", "back date"]), paths, paths)


def edit(root: Path, what: str, path: str, other: str) -> None:
    place = root / path
    try:
        if what == "file":
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text("")
        elif what == "directory":
            place.mkdir(parents=True, exist_ok=True)
        elif what == "link":
            place.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(other, place)
        elif what == "remove":
            shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else place.unlink()
        elif what == "rename":
            place.rename(root / other)
        else:
            os.utime(place.parent, (1, 1))
    except OSError:
        pass  # the edit is impossible in this tree: nothing changed, or only in part


def tick(place: Path) -> None:
    """Return when the clock of the file system has moved on: the index is not asked to see a change within a tick."""
    probe = place / "tick"
    probe.write_text("")
    first = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns == first:
        os.utime(probe)


@settings(max_examples=60, deadline=None)
@given(st.lists(edits, max_size=25), st.lists(st.lists(edits, max_size=4), min_size=1, max_size=3))
def test_a_cached_scan_equals_a_fresh_one(start: list, rounds: list) -> None:
    with tempfile.TemporaryDirectory() as base:
        root = Path(base) / "ws"
        root.mkdir()
        cache = str(Path(base) / "cache")
        for change in start:
            edit(root, *change)
        later = time.time_ns() + 3_600_000_000_000  # nothing is racy: the cache is used wherever it can be
        with mock.patch.object(scan_module.time, "time_ns", lambda: later):
            first = scan(str(root), RULES, cache)
            known = {hit.path for hit in first.hits}
            for changes in rounds:
                tick(Path(base))
                for change in changes:
                    edit(root, *change)
                cached = scan(str(root), RULES, cache)
                fresh = scan(str(root), RULES)
                assert cached.hits == fresh.hits
                assert cached.pins == fresh.pins
                assert cached.index.missing == fresh.index.missing
                new = {hit.path for hit in rescan(first.index).hits}
                heads = {path for path in new if path.endswith("HEAD")}
                assert new - heads <= {hit.path for hit in fresh.hits} | set(first.index.missing)
                appeared = {hit.path for hit in fresh.hits if hit.effect == "hide"} - known
                assert appeared <= new


@pytest.mark.needs_tool("git")
@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "", "", "!"]),
            st.sampled_from(["", "", "/"]),
            st.lists(
                st.sampled_from(["a", "b", "*", "*.pem", "?", ".env", "secrets", "a*", "*b", "[ab]", "[!a]*", "**"]),
                min_size=1,
                max_size=3,
            ).map("/".join),
            st.sampled_from(["", "", "/"]),
        ).map("".join),
        min_size=1,
        max_size=4,
    ),
    st.lists(
        st.lists(st.sampled_from(["a", "b", "ab", ".env", "x.pem", "secrets", "a b"]), min_size=1, max_size=4).map(
            "/".join
        ),
        min_size=1,
        max_size=25,
    ),
)
def test_hidden_is_what_git_would_ignore(patterns: list[str], files: list[str]) -> None:
    from membrane.policy.globs import PatternError, compile_patterns

    try:
        compile_patterns(patterns)
    except PatternError:
        return  # refused where git ignores the pattern in silence
    with tempfile.TemporaryDirectory() as base:
        root = Path(base) / "ws"
        root.mkdir()
        for path in files:
            edit(root, "file", path, "")
        subprocess.run(["git", "init", "-q", "--bare", f"{base}/git"], check=True, capture_output=True)
        (Path(base) / "git" / "info" / "exclude").write_text("\n".join(patterns) + "\n")
        everything = [str(path.relative_to(root)) for path in root.rglob("*")]
        asked = subprocess.run(
            ["git", f"--git-dir={base}/git", f"--work-tree={root}", "-c", "core.bare=false", "check-ignore",
             "--no-index", "--stdin", "-z"],
            cwd=root, input="\0".join(everything) + "\0", capture_output=True, text=True, check=False,
            env={"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"},
        )  # fmt: skip
        assert asked.returncode in (0, 1), asked.stderr
        ignored = set(asked.stdout.split("\0")) - {""}
        hits = {hit.path for hit in scan(str(root), tuple(PathRule(t, ORIGIN, "hide") for t in patterns)).hits}
        hidden = {path for path in everything if any(f"{path}/".startswith(f"{hit}/") for hit in hits)}
        assert hidden == ignored
