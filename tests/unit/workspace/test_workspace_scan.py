"""workspace.scan: what is found before the start and what is new at the end."""

from __future__ import annotations

import itertools
import marshal
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from membrane.errors import HostError
from membrane.policy.model import Origin, PathRule
from membrane.workspace import scan as scan_module
from membrane.workspace.scan import ScanResult, rescan, scan

ORIGIN = Origin("library", "test")


def rules(*hide: str, readonly: tuple[str, ...] = ()) -> tuple[PathRule, ...]:
    return tuple(PathRule(text, ORIGIN, "hide") for text in hide) + tuple(
        PathRule(text, ORIGIN, "readonly") for text in readonly
    )


def make(root: Path, *paths: str) -> None:
    for path in paths:
        place = root / path
        if path.endswith("/"):
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text("x")


def by_path(result: ScanResult) -> dict[str, tuple[str, bool, bool]]:
    return {hit.path: (hit.effect, hit.directory, hit.link) for hit in result.hits}


def age(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the scanner see the tree as listed long after its last change."""
    now = time.time_ns()
    monkeypatch.setattr(scan_module.time, "time_ns", lambda: now + 60_000_000_000)


def test_hidden_and_read_only_names_are_found_once_with_their_kind(tmp_path: Path) -> None:
    make(tmp_path, ".env", "a/.env", "a/secrets/deep/key", "a/x.py", "lock/a.lock", "doc/")
    os.symlink("x.py", tmp_path / "a" / "link.pem")
    result = scan(str(tmp_path), rules(".env", "secrets/", "*.pem", readonly=("*.lock", "doc/")))
    assert by_path(result) == {
        ".env": ("hide", False, False),
        "a/.env": ("hide", False, False),
        "a/secrets": ("hide", True, False),
        "a/link.pem": ("hide", False, True),
        "lock/a.lock": ("readonly", False, False),
        "doc": ("readonly", True, False),
    }
    assert result.warnings == ()


def test_hide_beats_readonly_and_reaches_into_read_only_directories(tmp_path: Path) -> None:
    make(tmp_path, "vendor/lib/key.pem", "vendor/lib/x.lock", "both")
    result = scan(str(tmp_path), rules("*.pem", "both", readonly=("vendor/", "both", "*.lock")))
    assert by_path(result) == {
        "both": ("hide", False, False),
        "vendor": ("readonly", True, False),
        "vendor/lib/key.pem": ("hide", False, False),
    }
    paths = [hit.path for hit in result.hits]
    assert paths.index("vendor") < paths.index("vendor/lib/key.pem")


def test_read_only_patterns_leave_git_its_own_files_unless_they_name_it(tmp_path: Path) -> None:
    make(tmp_path, "x.lock", ".git/index.lock", ".git/refs/heads/a.lock", ".git/info/exclude", ".git/config")
    assert by_path(scan(str(tmp_path), rules(readonly=("*.lock", "exclude")))) == {
        "x.lock": ("readonly", False, False),
        ".git/config": ("protect", False, False),
    }
    assert ".git/info/exclude" in by_path(scan(str(tmp_path), rules(readonly=(".git/info/exclude",))))
    assert by_path(scan(str(tmp_path), rules(readonly=(".git/",))))[".git"] == ("readonly", True, False)


def test_hidden_names_are_found_inside_protected_directories(tmp_path: Path) -> None:
    make(tmp_path, ".vscode/token.pem", ".git/hooks/x.pem", ".git/objects/ab/y.pem", ".git/config")
    found = by_path(scan(str(tmp_path), rules("*.pem")))
    assert {path for path, (effect, _, _) in found.items() if effect == "hide"} == {
        ".vscode/token.pem",
        ".git/hooks/x.pem",
        ".git/objects/ab/y.pem",
    }


def test_symbolic_links_are_never_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    make(outside, "secret.pem")
    root = tmp_path / "ws"
    make(root, "real/")
    os.symlink(outside, root / "away")
    os.symlink("..", root / "real" / "up")
    assert scan(str(root), rules("*.pem")).hits == ()


@pytest.mark.parametrize(
    "raw",
    [b"\xff\xfe.pem", b"new\nline.pem", b" leading and trailing .pem", b"\x1b[31m.pem", b"n" * 251 + b".pem"],
    ids=["not UTF-8", "newline", "spaces", "escape", "255 bytes"],
)
def test_odd_names_survive_the_scan_and_the_cache(tmp_path: Path, raw: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "ws"
    root.mkdir()
    place = os.path.join(os.fsencode(root), b"d\xe9", raw)
    os.makedirs(os.path.dirname(place))
    os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o600))
    age(root, monkeypatch)
    cache = str(tmp_path / "cache")
    first = scan(str(root), rules("*.pem"), cache)
    again = scan(str(root), rules("*.pem"), cache)
    assert [os.fsencode(hit.path) for hit in first.hits] == [b"d\xe9/" + raw]
    assert again.hits == first.hits


def test_the_cache_is_private_and_spares_the_listing_of_unchanged_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "ws"
    make(root, "a/b/.env", "c/d")
    age(root, monkeypatch)
    cache = tmp_path / "cache"
    first = scan(str(root), rules(".env"), str(cache))
    assert cache.stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(scan_module, "list_directory", lambda *_: pytest.fail("listed again"))
    assert scan(str(root), rules(".env"), str(cache)).hits == first.hits


def test_a_cached_start_does_not_load_re(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "ws"
    make(root, "a/.env")
    age(root, monkeypatch)
    cache = str(tmp_path / "cache")
    scan(str(root), rules("*.env"), cache)
    program = (
        "import sys; from membrane.policy.model import *; from membrane.workspace.scan import scan;"
        f"r = scan({str(root)!r}, (PathRule('*.env', Origin('library', 'test'), 'hide'),), {cache!r});"
        "print(len(r.hits), 're' in sys.modules, 'ctypes' in sys.modules)"
    )
    command = [sys.executable, "-I", "-S", "-c", _with_path(program)]
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    assert out.stdout == "1 False False\n", out.stderr


def _with_path(program: str) -> str:
    import membrane

    place = os.path.dirname(os.path.dirname(membrane.__file__ or ""))
    return f"import sys; sys.path.insert(0, {place!r}); {program}"


def test_a_directory_whose_mtime_was_set_back_is_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "ws"
    make(root, "d/old")
    age(root, monkeypatch)
    cache = str(tmp_path / "cache")
    assert scan(str(root), rules("*.pem"), cache).hits == ()
    before = (root / "d").stat()
    tick(tmp_path)
    make(root, "d/new.pem")
    os.utime(root / "d", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (root / "d").stat().st_mtime_ns == before.st_mtime_ns
    assert list(by_path(scan(str(root), rules("*.pem"), cache))) == ["d/new.pem"]


def tick(place: Path) -> None:
    """Return when the clock of the file system has moved on."""
    probe = place / "tick"
    probe.write_text("")
    first = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns == first:
        os.utime(probe)


def test_a_directory_changed_just_before_its_listing_is_not_trusted(tmp_path: Path) -> None:
    root = tmp_path / "ws"
    make(root, "d/x")
    cache = str(tmp_path / "cache")
    index = scan(str(root), rules("*.pem"), cache).index
    assert all(entry[2] < 0 for entry in index.entries.values())  # racy: never equal to a ctime


@pytest.mark.parametrize("other_rules", [rules("*.key"), rules("*.pem", readonly=("x",)), ()])
def test_the_cache_of_other_rules_is_not_used(
    tmp_path: Path, other_rules: tuple[PathRule, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "ws"
    make(root, "a.pem", "a.key")
    age(root, monkeypatch)
    cache = str(tmp_path / "cache")
    scan(str(root), other_rules, cache)
    assert list(by_path(scan(str(root), rules("*.pem"), cache))) == ["a.pem"]


def _forged(entries: object) -> bytes:
    import binascii

    data = marshal.dumps(entries)
    return binascii.crc32(data).to_bytes(4, "big") + data


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 100, os.urandom(4096), b"\xff" * 3, _forged(1), _forged(("key", {})), _forged((None, []))],
    ids=["empty", "zeros", "random", "short", "number", "other key", "list"],
)
def test_a_damaged_cache_is_ignored(tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "ws"
    make(root, "a.pem")
    age(root, monkeypatch)
    cache = tmp_path / "cache"
    cache.write_bytes(content)
    cache.chmod(0o600)
    assert list(by_path(scan(str(root), rules("*.pem"), str(cache)))) == ["a.pem"]
    assert cache.read_bytes() != content  # replaced by a good one


def test_every_flipped_bit_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "ws"
    make(root, "a.pem")
    age(root, monkeypatch)
    cache = tmp_path / "cache"
    scan(str(root), rules("*.pem"), str(cache))
    good = cache.read_bytes()
    patterns = scan_module.Patterns(rules("*.pem"))
    assert scan_module._load(str(cache), str(root), patterns)  # positive control
    for at in range(0, len(good), 7):
        cache.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        assert scan_module._load(str(cache), str(root), patterns) == {}


def test_a_cache_that_others_can_read_or_a_link_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "ws"
    make(root, "a.pem")
    age(root, monkeypatch)
    cache = tmp_path / "cache"
    scan(str(root), rules("*.pem"), str(cache))
    patterns = scan_module.Patterns(rules("*.pem"))
    assert scan_module._load(str(cache), str(root), patterns)
    cache.chmod(0o640)
    assert scan_module._load(str(cache), str(root), patterns) == {}
    cache.chmod(0o600)
    os.symlink(cache, tmp_path / "link")
    assert scan_module._load(str(tmp_path / "link"), str(root), patterns) == {}


@pytest.mark.as_root
def test_a_cache_of_another_owner_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "ws"
    make(root, "a.pem")
    age(root, monkeypatch)
    cache = tmp_path / "cache"
    scan(str(root), rules("*.pem"), str(cache))
    os.chown(cache, 12345, 12345)
    assert scan_module._load(str(cache), str(root), scan_module.Patterns(rules("*.pem"))) == {}


def test_a_cache_that_can_not_be_written_changes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "ws"
    make(root, "a.pem")
    result = scan(str(root), rules("*.pem"), str(tmp_path / "missing" / "cache"))
    assert list(by_path(result)) == ["a.pem"]
    assert not (tmp_path / "missing").exists()


@pytest.mark.as_user
@pytest.mark.parametrize("mode", [0o000, 0o400, 0o100, 0o300])
def test_an_unreadable_directory_is_covered_whole(tmp_path: Path, mode: int) -> None:
    make(tmp_path, "d/e/.env", "f")
    (tmp_path / "d").chmod(mode)
    try:
        hidden = scan(str(tmp_path), rules(".env"))
        without = scan(str(tmp_path), ())
    finally:
        (tmp_path / "d").chmod(0o700)
    assert by_path(hidden) == {"d": ("hide", True, False)}
    assert by_path(without) == {"d": ("protect", True, False)}
    assert hidden.warnings == (f"{tmp_path}/d: this directory cannot be read here, so it is hidden as a whole",)


@pytest.mark.as_user
def test_many_unreadable_directories_are_one_line(tmp_path: Path) -> None:
    """A temporary directory is full of them."""
    names = [f"d{number}" for number in range(9)]
    for name in names:
        (tmp_path / name).mkdir(mode=0)
    (warning,) = scan(str(tmp_path), ()).warnings
    assert f"{tmp_path}/d" in warning and "and 6 more: these directories cannot be read" in warning


def test_a_hidden_file_with_a_second_name_is_warned_about(tmp_path: Path) -> None:
    make(tmp_path, ".env", "one.pem")
    os.link(tmp_path / ".env", tmp_path / "copy")
    warnings = scan(str(tmp_path), rules(".env", "*.pem")).linked
    assert len(warnings) == 1
    assert warnings[0].startswith(".env: the hidden file has 2 hard links")


def test_a_second_name_made_later_elsewhere_is_warned_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "ws"
    make(root, "a/.env", "b/")
    age(root, monkeypatch)
    cache = str(tmp_path / "cache")
    assert scan(str(root), rules(".env"), cache).linked == ()
    os.link(root / "a" / ".env", root / "b" / "copy")
    assert len(scan(str(root), rules(".env"), cache).linked) == 1


def test_a_path_that_no_mount_can_name_is_covered_above(tmp_path: Path) -> None:
    root = tmp_path / "ws"
    root.mkdir()
    fds = [os.open(root, os.O_RDONLY)]
    try:
        for _ in range(30):  # 30 * 201 bytes: longer than PATH_MAX
            os.mkdir("d" * 200, dir_fd=fds[-1])
            fds.append(os.open("d" * 200, os.O_RDONLY, dir_fd=fds[-1]))
        os.close(os.open(".env", os.O_CREAT | os.O_WRONLY, dir_fd=fds[-1]))
        hits = scan(str(root), rules(".env")).hits
        assert [hit.directory for hit in hits] == [True]
        assert 3_500 < len(f"{root}/{hits[0].path}") < 4_096
    finally:
        for fd in reversed(fds[:-1]):
            for name in os.listdir(fd):
                inner = os.open(name, os.O_RDONLY, dir_fd=fd)
                for child in os.listdir(inner):
                    if child == ".env":
                        os.unlink(child, dir_fd=inner)
                os.close(inner)
                os.rmdir(name, dir_fd=fd)
        for fd in fds:
            os.close(fd)


def test_a_missing_workspace_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"cannot scan the workspace .*/gone: No such file"):
        scan(str(tmp_path / "gone"), ())


def test_progress_is_told_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        (tmp_path / f"d{number}").mkdir()
    clock = itertools.count(0, 0.25)  # seconds at each look
    monkeypatch.setattr(scan_module, "PROGRESS_EVERY", 1)
    monkeypatch.setattr(scan_module.time, "monotonic", lambda: next(clock))
    told: list[int] = []
    scan(str(tmp_path), (), progress=told.append)
    assert len(told) == 41 // 5  # without it, at each of the looks after the first second


def test_progress_is_told_only_when_the_walk_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, *(f"d{number}/file" for number in range(200)))
    told: list[int] = []
    scan(str(tmp_path), (), progress=told.append)
    assert told == []
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr(scan_module.time, "monotonic", lambda: next(clock))
    scan(str(tmp_path), (), progress=told.append)
    assert len(told) >= 2
    assert told == sorted(told)


def test_rescan_returns_only_what_appeared(tmp_path: Path) -> None:
    make(tmp_path, "a/.env", ".git/config", ".git/HEAD", "plain/x", "b/y")
    index = scan(str(tmp_path), rules(".env")).index
    assert rescan(index).hits == ()
    make(tmp_path, "b/.env", "new/deep/.vscode/tasks.json", ".git/hooks/pre-commit", "plain/z")
    (tmp_path / "a" / ".env").unlink()
    assert by_path(rescan(index)) == {
        "b/.env": ("hide", False, False),
        "new/deep/.vscode": ("protect", True, False),
        ".git/hooks": ("protect", True, False),
    }
    assert by_path(rescan(index)) == by_path(rescan(index))


@pytest.mark.as_user
def test_a_new_directory_that_was_closed_is_reported_at_the_end(tmp_path: Path) -> None:
    """chmod 000 hides an armed repository from the last look, until somebody opens it again."""
    make(tmp_path, "old/")
    (tmp_path / "old").chmod(0o000)
    for policy in ((), rules(".env")):
        index = scan(str(tmp_path), policy).index
        make(tmp_path, "new/.git/config")
        (tmp_path / "new").chmod(0o000)
        try:
            assert by_path(rescan(index)) == {"new": ("protect", True, False)}
        finally:
            (tmp_path / "new").chmod(0o700)
            (tmp_path / "new" / ".git" / "config").unlink()
            (tmp_path / "new" / ".git").rmdir()
            (tmp_path / "new").rmdir()
    (tmp_path / "old").chmod(0o700)


def test_rescan_finds_an_interrupted_rebase_that_would_execute(tmp_path: Path) -> None:
    make(tmp_path, ".git/config", ".git/HEAD")
    start = scan(str(tmp_path), ())
    make(tmp_path, ".git/rebase-merge/git-rebase-todo")
    assert list(by_path(rescan(start.index))) == [".git/rebase-merge/git-rebase-todo"]
    # One that is there at the start is the user's: it stays writable, so that it can be finished inside.
    assert ".git/rebase-merge/git-rebase-todo" not in by_path(scan(str(tmp_path), ()))


def test_many_hits_are_found_without_a_call_per_hit_and_rule(tmp_path: Path) -> None:
    for number in range(3_000):
        os.close(os.open(tmp_path / f"{number}.pem", os.O_CREAT | os.O_WRONLY))
    result = scan(str(tmp_path), rules(*(f"*.{suffix}" for suffix in ("a", "b", "c", "pem"))))
    assert len(result.hits) == 3_000
    assert result.linked == ("only 2000 of the files that are covered were checked for hard links",)


def test_a_rule_over_a_ref_holds_though_git_writes_beside_it(tmp_path: Path) -> None:
    make(tmp_path, ".git/refs/heads/keep", ".git/refs/heads/other", ".git/objects/ab/keep", ".git/HEAD", "a/keep")
    found = scan(str(tmp_path), rules(readonly=(".git/refs/heads/keep",)))
    assert by_path(found) == {".git/refs/heads/keep": ("readonly", False, False)}
    assert ".git/refs/heads" in found.pins
    assert by_path(scan(str(tmp_path), rules("*.pem", readonly=(".git/refs/heads/keep",)))) == by_path(found)
    assert by_path(scan(str(tmp_path), rules(readonly=(".github/", "keep")))) == {  # without .git: files of the tree
        "a/keep": ("readonly", False, False)
    }


def test_what_was_put_aside_is_for_rules_what_it_was(tmp_path: Path) -> None:
    """A run that was killed leaves it there."""
    aside = ".membrane-refused-0123456789ab"
    long = "k" * 198 + "é"  # cut in the middle of a letter
    make(tmp_path, f".mcp.json{aside}", f"sub/.vscode{aside}/deep/x", f".git/x.pem{aside}", f".git/d{aside}/y.pem")
    make(tmp_path, f"plain{aside}", f"lock.ro{aside}", os.fsdecode(os.fsencode(long)[:200]) + aside, "k" * 199 + aside)
    found = scan(str(tmp_path), rules(".mcp.json", "/sub/.vscode/deep/x", "*.pem", readonly=("*.ro",)))
    assert {path.replace(aside, "") for path, what in by_path(found).items() if what[0] == "hide"} == {
        ".mcp.json", "sub/.vscode/deep/x", ".git/x.pem", ".git/d/y.pem", os.fsdecode(os.fsencode(long)[:200])
    }  # fmt: skip
    assert by_path(found)[f"lock.ro{aside}"] == ("readonly", False, False)
