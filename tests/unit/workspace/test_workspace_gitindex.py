"""Indexes as git writes them are kept; one that leads git out of the work tree is not, in each of its forms."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from membrane.workspace.gitindex import SHORT, hash_size, index, rerere

SIZES = {"sha1": 20, "sha256": 32}


def git(place: Path, *words: str) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(place), "GIT_CONFIG_GLOBAL": "/dev/null"}
    subprocess.run(["git", *words], cwd=place, env=environment, check=True, capture_output=True)


@pytest.mark.parametrize("version", ["2", "3", "4"])
@pytest.mark.parametrize("form", ["sha1", "sha256"])
def test_what_git_writes_is_kept(tmp_path: Path, version: str, form: str) -> None:
    git(tmp_path, "init", "-q", f"--object-format={form}")
    for name in ("a", "deep/er/file", "gitignore", ".gitignore", "x.git", "..a", "a..", "ü", "long" * 60):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    git(tmp_path, "add", "-A")
    if version == "3":
        (tmp_path / "later").write_text("x")
        git(tmp_path, "add", "-N", "later")  # an extended entry
    git(tmp_path, "update-index", "--index-version", version)
    data = (tmp_path / ".git" / "index").read_bytes()
    assert data[7] == int(version)
    assert index(data, SIZES[form]) == ""
    for end in (0, 11, len(data) // 2):
        assert index(data[:end], SIZES[form]) == SHORT
    assert index(b"DIRX" + data[4:], SIZES[form]) and index(data[:7] + b"\5" + data[8:], SIZES[form])


def plain(*names: bytes) -> bytes:
    """A version 2 index with these paths."""
    out = b"DIRC" + (2).to_bytes(4, "big") + len(names).to_bytes(4, "big")
    for name in names:
        entry = bytes(40) + bytes(20) + len(name).to_bytes(2, "big") + name
        out += entry + bytes(8 - len(entry) % 8)
    return out + hashlib.sha1(out, usedforsecurity=False).digest()


def packed(*entries: tuple[int, bytes]) -> bytes:
    """A version 4 index: of each path how much of the one before goes, and what comes."""
    out = b"DIRC" + (4).to_bytes(4, "big") + len(entries).to_bytes(4, "big")
    for strip, rest in entries:
        out += bytes(40) + bytes(20) + bytes(2) + bytes((strip,)) + rest + b"\0"
    return out + hashlib.sha1(out, usedforsecurity=False).digest()


@pytest.mark.parametrize(
    "name",
    [
        b"../x", b"a/../../x", b"/x", b"a//b", b"./x", b"a/.", b".git/hooks/post-checkout", b"a/.GIT/config",
        b".git./x", b".git /x", b"git~1/x", b".git::$INDEX_ALLOCATION/x", b".git\\x", b"a/.git",
    ],
)  # fmt: skip
def test_a_path_out_of_the_tree_is_not(name: bytes) -> None:
    assert index(plain(b"a/ok", b"b")) == ""  # the control
    assert "writes outside of the work tree" in index(plain(b"a/ok", name, b"z"))
    assert "writes outside of the work tree" in index(packed((0, b"a/ok"), (4, name)))


@pytest.mark.parametrize("version", ["3", "4"])
@pytest.mark.parametrize("form", ["sha1", "sha256"])
def test_a_sparse_index_is_kept(tmp_path: Path, version: str, form: str) -> None:
    """It has whole directories, as paths that end with a "/"."""
    git(tmp_path, "init", "-q", f"--object-format={form}")
    for name in ("a/f", "b/f", "c/deep/f", "top"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    git(tmp_path, "add", "-A")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "one")
    git(tmp_path, "sparse-checkout", "init", "--cone", "--sparse-index")
    git(tmp_path, "sparse-checkout", "set", "a")
    git(tmp_path, "update-index", "--index-version", version)
    data = (tmp_path / ".git" / "index").read_bytes()
    assert b"sdir" in data and not (tmp_path / "b").exists()
    assert index(data, SIZES[form]) == ""


def moded(mode: int, name: bytes) -> bytes:
    """A version 2 index with a usual path and this one."""
    data = bytearray(plain(b"a/ok", name))
    at = 12 + 72 + 24  # the first entry has 66 bytes and the NULs up to a multiple of eight
    data[at : at + 4] = mode.to_bytes(4, "big")
    return bytes(data)


@pytest.mark.parametrize("name", [b"b//", b".git/", b"b/.git/", b"../", b"b/../", b"/", b"/b/", b"./"])
def test_a_directory_of_a_sparse_index_does_not_lead_out(name: bytes) -> None:
    assert index(moded(0o040000, b"b/")) == ""  # the control
    assert "writes outside of the work tree" in index(moded(0o040000, name))


@pytest.mark.parametrize("mode", [0o100644, 0o120000, 0o160000, 0, 0o040755])
def test_only_a_directory_may_end_so(mode: int) -> None:
    assert "writes outside of the work tree" in index(moded(mode, b"b/"))


def test_a_path_that_is_put_together_from_two() -> None:
    assert index(packed((0, b".gi"), (0, b"thub/x"))) == ""
    assert "writes outside" in index(packed((0, b".gi"), (0, b"t/hooks/x")))


def test_a_small_file_with_long_paths_is_bounded() -> None:
    long = (0, b"a/" * 20_000)
    assert index(packed(long, *[(1, b"b")] * 10_000)) == "it is not an index that git writes"


def test_a_name_with_an_end_inside_is_no_index() -> None:
    assert index(plain(b"a\0b")) == "it is not an index that git writes"


def test_entries_that_git_reads_from_elsewhere() -> None:
    """EOIE and IEOT say where; then they must say what was read."""
    data = plain(b"a", b"b")[:-20]

    def ended(extra: bytes, entries_end: int) -> bytes:
        body = data + extra
        end = b"EOIE" + (24).to_bytes(4, "big") + entries_end.to_bytes(4, "big") + bytes(20)
        return body + end + bytes(20)

    def table(*blocks: tuple[int, int]) -> bytes:
        rows = b"".join(at.to_bytes(4, "big") + number.to_bytes(4, "big") for at, number in blocks)
        return b"IEOT" + (4 + len(rows)).to_bytes(4, "big") + (1).to_bytes(4, "big") + rows

    assert index(ended(b"", len(data))) == ""
    assert index(ended(table((12, 2)), len(data))) == ""
    assert index(ended(table((12, 1), (12 + 64 + 8, 1)), len(data))) in ("", "it is not an index that git writes")
    for bad in (ended(b"", len(data) - 8), ended(table((20, 2)), len(data)), ended(table((12, 1)), len(data))):
        assert index(bad) == "it is not an index that git writes"


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ("", 20),
        ("[extensions]\n\tobjectFormat = sha256\n", 32),
        ("[extensions]\nobjectformat=sha256\nobjectformat=sha1\n", 20),
        ("[broken", 20),
    ],
)
def test_the_size_of_a_name(config: str, size: int) -> None:
    assert hash_size(config) == size


def test_the_record_of_rerere() -> None:
    name = "0" * 40
    assert rerere("", lambda _path: "x") == ""
    assert rerere(f"{name}\ta/b\0{name}.1\tc\0", lambda _path: "") == ""
    assert "it is hidden" in rerere(f"{name}\t.env\0", lambda path: "it is hidden" if path == ".env" else "")
    for path in ("../../etc/passwd", "/etc/passwd", ".git/config", "a//b"):
        assert "outside of the work tree" in rerere(f"{name}\t{path}\0", lambda _path: "")
    for text in ("x", f"{name}\ta", f"{name} a\0", f"{name[:39]}\ta\0", f"{name}.x\ta\0"):
        assert rerere(text, lambda _path: "") == "it is not a record that git writes"
