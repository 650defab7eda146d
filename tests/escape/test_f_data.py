"""What git on the host writes, reads or removes outside of the work tree by the *data* in its directory (row F69).

The names there are git's own and written freely; a link among them, a path in an index, a record of rerere are the
attack.  The control of each is the same script outside of the sandbox, after which git does what was planned.
"""

from __future__ import annotations

import hashlib
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from escape_box import Box
from test_f_guard import git, repository

from membrane.workspace.gitindex import index, rerere
from membrane.workspace.protect import GIT, GIT_INFO, GIT_LINKED, GIT_MODULES, NAMED, TREE, root_context

# The writer of an index by its format, inside and outside.
WRITER = """
import hashlib, struct, subprocess
def index_of(version=2, **files):
    out = b"DIRC" + struct.pack(">II", 2, len(files))
    for path, text in sorted(files.items()):
        name = subprocess.run(["git", "hash-object", "-w", "--stdin"], input=text.encode(), capture_output=True).stdout
        entry = bytes(24) + struct.pack(">I", 0o100755) + bytes(12) + bytes.fromhex(name.decode().strip())
        entry += struct.pack(">H", len(path)) + path.encode()
        out += entry + bytes(8 - len(entry) % 8)
    return out + hashlib.sha1(out).digest()
def put(path, data):
    with open(path, "wb") as file: file.write(data)
"""
HOOK = "#!/bin/sh\necho hook > executed\n"


def twice(box: Box, tmp_path: Path, script: str) -> tuple[dict[str, object], Path]:
    """The attack inside, and the control in a copy of the workspace; (what it came to inside, the copy).

    The script knows by ``inside`` which of the two it is.
    """
    before = tmp_path / "copy" / box.workspace.relative_to(tmp_path)
    shutil.copytree(box.workspace, before, symlinks=True)
    box.control("inside = False\n" + WRITER + script, cwd=before)
    return box.attack("inside = True\n" + WRITER + script), before


@pytest.mark.needs_tool("git")
@pytest.mark.parametrize("path", [".git/hooks/post-checkout", "../outside"])
@pytest.mark.parametrize("how", ["renamed", "written"])
def test_F69_paths_of_an_index(box: Box, tmp_path: Path, path: str, how: str) -> None:
    repository(box)
    script = f'evil = index_of(**{{"file": "1\\n", {path!r}: {HOOK!r}}})\nmine = index_of(file="2\\n")\n'
    if how == "renamed":
        script += """
put(".git/index.lock", evil); attempt("evil", lambda: os.rename(".git/index.lock", ".git/index"))
put(".git/index.lock", mine); attempt("mine", lambda: os.rename(".git/index.lock", ".git/index"))
if _results["evil"] == "ok": put(".git/index", evil)
"""
    else:
        script += 'put(".git/index", evil)\n'
    found, before = twice(box, tmp_path, script)
    assert found == ({"evil": "EACCES", "mine": "ok"} if how == "renamed" else {})
    for place, obeyed in ((box.workspace, False), (before, True)):
        git(place, "checkout", ".")
        assert (place / path).exists() is obeyed
    if how == "written":
        assert ".git/index" in box.moved()


@pytest.mark.needs_tool("git")
@pytest.mark.parametrize("name", [".git/logs/HEAD", ".git/logs", ".git/objects/pack", ".git/rr-cache", ".git/refs/x",
                                  ".git/packed-refs"])  # fmt: skip
@pytest.mark.parametrize("tracer", [True, False])
def test_F69_links_among_the_data(box: Box, tmp_path: Path, name: str, tracer: bool) -> None:
    repository(box)
    followed = name != ".git/refs/x"  # git follows no link of a ref: it stays
    script = f"""
here = {name!r}
import shutil
if os.path.isdir(here): shutil.rmtree(here)
elif os.path.lexists(here): os.remove(here)
os.makedirs(".git/annex")
attempt("link", lambda: os.symlink("../" * here.count("/") + "elsewhere", here))
os.symlink("x", ".git/annex/x"); attempt("rename", lambda: os.rename(".git/annex/x", here))
say("there", wait_for(lambda: not os.path.islink(here), inside and {60 if followed or tracer else 3}))
"""
    box.options = () if tracer else ("--no-trace",)
    found, before = twice(box, tmp_path, script)
    if tracer:
        assert found == {"link": "EACCES", "rename": "EACCES", "there": "ok"}
    else:
        assert found["link"] == "ok"
        assert found["there"] == ("ok" if followed else "timeout")
    assert (before / name).is_symlink()


@pytest.mark.needs_tool("git")
def test_F69_an_index_may_be_written_where_it_is(box: Box) -> None:
    """go-git opens it with O_TRUNC and writes it in pieces."""
    repository(box)
    script = """
import time
data = index_of(file="2\\n", other="3\\n")
fd = os.open(".git/index", os.O_WRONLY | os.O_TRUNC)
for at in range(0, len(data), 50):
    os.write(fd, data[at:at + 50]); time.sleep(0.05)
os.close(fd)
"""
    assert box.attack(WRITER + script) == {}
    assert git(box.workspace, "ls-files").stdout == "file\nother\n"
    assert not box.moved() and not box.record("AccessDenied")


@pytest.mark.parametrize("name", [".git/logs/HEAD", ".git/refs/heads/x", ".git/COMMIT_EDITMSG", ".git/objects/ab"])
def test_F69_git_outside_does_not_wait_for_a_fifo(box: Box, tmp_path: Path, name: str) -> None:
    for path in ("HEAD", "logs/x", "refs/heads/y", "objects/y"):
        box.file(f".git/{path}")
    script = f"attempt('fifo', lambda: os.mkfifo({name!r})); os.mkfifo('fifo')"
    before = tmp_path / "copy"
    shutil.copytree(box.workspace, before)
    assert box.attack(script) == {"fifo": "EACCES"}
    assert box.control(script, cwd=before) == {"fifo": "ok"}


@pytest.mark.needs_tool("git")
def test_F69_a_directory_that_holds_links_does_not_become_data(box: Box, tmp_path: Path) -> None:
    repository(box)
    script = """
os.mkdir("d"); os.symlink("../../../x", "d/thisimage"); os.mkdir(".git/rr-cache")
attempt("rename", lambda: os.rename("d", ".git/rr-cache/" + "a" * 40))
"""
    found, before = twice(box, tmp_path, script)
    assert found == {"rename": "EACCES"}
    assert (before / ".git/rr-cache" / ("a" * 40) / "thisimage").is_symlink()


@pytest.mark.needs_tool("git")
@pytest.mark.parametrize("where", ["outside", "hidden", "link"])
def test_F69_rerere_copies_no_file_to_where_the_command_reads_it(box: Box, tmp_path: Path, where: str) -> None:
    repository(box)
    box.policy(ignore=["secret.txt"])
    box.file("secret.txt", "secret\n")
    (box.workspace.parent / "outside").write_text("secret\n")
    path = {"outside": "../outside", "hidden": "secret.txt", "link": "link"}[where]
    script = f"""
record = "a" * 40
os.makedirs(".git/rr-cache/" + record); write(".git/rr-cache/" + record + "/preimage")()
if {path!r} == "link": os.symlink("../outside", "link")
put(".git/m.lock", (record + "\\t" + {path!r} + "\\0").encode())
attempt("record", lambda: os.rename(".git/m.lock", ".git/MERGE_RR"))
put(".git/m.lock", (record + "\\tfile\\0").encode())
attempt("plain", lambda: os.rename(".git/m.lock", ".git/MERGE_RR"))
if _results["record"] == "ok": put(".git/MERGE_RR", (record + "\\t" + {path!r} + "\\0").encode())
"""
    before = tmp_path / "copy" / box.workspace.relative_to(tmp_path)
    shutil.copytree(box.workspace.parent, before.parent, symlinks=True, ignore=shutil.ignore_patterns("copy"))
    box.control(WRITER + script, cwd=before)
    assert box.attack(WRITER + script) == {"record": "EACCES", "plain": "ok"}
    for place, obeyed in ((box.workspace, False), (before, True)):
        git(place, "commit", "--allow-empty", "-qm", "two")
        kept = place / ".git/rr-cache" / ("a" * 40) / "postimage"
        assert (kept.exists() and kept.read_text() == "secret\n") is obeyed


@pytest.mark.needs_tool("git")
@pytest.mark.parametrize("name", ["info/attributes", "foo", "config.worktree", "commondir", "COMMIT_EDITMSG",
                                  "worktrees/w/COMMIT_EDITMSG", "worktrees/w/logs/HEAD"])  # fmt: skip
def test_F70_a_tree_that_is_a_git_directory_itself(box: Box, tmp_path: Path, name: str) -> None:
    """The common directory of a linked worktree is a tree of its own: its root is a ``.git``, by its path."""
    repository(box)
    tree = tmp_path / "tree"
    git(box.workspace, "worktree", "add", "-q", "-b", "w", str(tree))
    (box.workspace / ".git/worktrees/tree").rename(box.workspace / ".git/worktrees/w")
    (tree / ".git").write_text(f"gitdir: {box.workspace}/.git/worktrees/w\n")
    link = name.endswith(("HEAD", "EDITMSG"))
    make = "os.symlink('/tmp/x', name)" if link else "write(name, 'x')()"
    script = f"""
name = {str(box.workspace / ".git" / name)!r}
if os.path.lexists(name): os.remove(name)
attempt("make", lambda: {make})
attempt("git", write({str(box.workspace / ".git" / "worktrees/w/ORIG_HEAD")!r}, ""))
"""
    assert box.attack(script, workspace=tree) == {"make": "EACCES", "git": "ok"}
    assert not (box.workspace / ".git" / name).exists()
    assert box.control(script) == {"make": "ok", "git": "ok"}


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/w/.git", GIT), ("/w/.git/modules/a", GIT_MODULES), ("/w/.git/worktrees/a", GIT_LINKED),
     ("/w/.Git/info", GIT_INFO), ("/w/.git/refs", GIT), ("/w/.git/x/.git/modules", GIT_MODULES)],
)  # fmt: skip
def test_what_a_tree_is_by_its_path(path: str, kind: int) -> None:
    assert root_context(path) == kind | NAMED
    assert root_context("/w/git") == root_context("/w/x.git") == root_context("/") == TREE


def test_a_tree_that_ends_in_git_and_looks_like_a_repository_is_one(tmp_path: Path) -> None:
    for place in (tmp_path / "x.git", tmp_path / "y", tmp_path / ".git" / "modules" / "m"):
        for name in ("HEAD", "objects", "refs"):
            (place / name).mkdir(parents=True)
    assert root_context(str(tmp_path / "x.git")) == root_context(str(tmp_path / ".git/modules/m")) == GIT | NAMED
    assert root_context(str(tmp_path / "y")) == TREE


# ---------------------------------------------------------------- the formats


def of(*paths: bytes, version: int = 2, size: int = 20) -> bytes:
    out = b"DIRC" + struct.pack(">II", version, len(paths))
    before = b""
    for path in paths:
        entry = bytes(40 + size) + struct.pack(">H", min(len(path), 0xFFF))
        if version == 4:
            out += entry + bytes([len(before)]) + path + b"\0"
            before = path
        else:
            out += entry + path + bytes(8 - len(entry + path) % 8)
    return out + hashlib.new("sha1" if size == 20 else "sha256", out).digest()


GOOD = [b"a", b".github/x", b"a/.gitignore", b"..a/...", b".gitx", b"a.git/x", b"x" * 5000, b"\xff/\n", b"git~10"]
BAD = [b".git/x", b"a/.GIT/x", b".git", b"../x", b"a/../x", b"/x", b"a//x", b"a/./x", b"a/", b".", b"..", b"GIT~1/x",
       b"a/.git. ./x", b".git::$INDEX_ALLOCATION/x", b".git\\x"]  # fmt: skip


@pytest.mark.parametrize("version", [2, 4])
@pytest.mark.parametrize("size", [20, 32])
def test_an_index_holds_paths_of_the_work_tree(version: int, size: int) -> None:
    good = GOOD if version == 2 else [path for path in GOOD if len(path) < 100]
    assert index(of(*good, version=version, size=size), size) == ""
    for path in BAD:
        assert index(of(b"a", path, b"z", version=version, size=size), size), path


def test_an_index_that_git_could_read_in_another_way_is_none() -> None:
    good = of(b"a", b"b")[:-20]
    end = len(good)
    later = of(b"../x")[12:-20]
    offsets = b"IEOT" + struct.pack(">III", 12, 1, end + 20) + struct.pack(">I", 2) + later
    for begin, expected in ((end, True), (end + 20, True), (12, True)):
        eoie = b"EOIE" + struct.pack(">II", 24, begin) + bytes(20)
        assert bool(index(good + offsets + eoie + bytes(20))) is expected
    right = b"IEOT" + struct.pack(">IIII", 20, 1, 12, 1) + struct.pack(">II", (end + 12) // 2, 1)
    assert index(good + right + b"EOIE" + struct.pack(">II", 24, end) + bytes(40)) == ""
    for broken in (
        b"",
        b"DIRC",
        good[:40],
        good.replace(b"\0\1a\0", b"\0\2a\0"),
        good.replace(b"\0\1a\0", b"\0\3a\0x"),
    ):
        assert index(broken)


@pytest.mark.needs_tool("git")
@pytest.mark.parametrize("setting", ["index.version=2", "index.version=4", "index.threads=4", "core.splitIndex=true"])
@pytest.mark.parametrize("form", ["sha1", "sha256"])
def test_what_git_writes_is_benign(tmp_path: Path, setting: str, form: str) -> None:
    subprocess.run(["git", "init", "-q", f"--object-format={form}", tmp_path], check=True)
    entries = "".join(f"100644 {'1' * (40 if form == 'sha1' else 64)}\td/f{n}\n" for n in range(25_000))
    command = ["git", "-c", setting, "update-index", "--index-info"]
    for lines in (entries, f"100644 {'2' * (40 if form == 'sha1' else 64)}\td/g\n"):
        subprocess.run(command, cwd=tmp_path, input=lines, text=True, check=True)
    for file in (tmp_path / ".git/index", *(tmp_path / ".git").glob("sharedindex.*")):
        assert index(file.read_bytes(), 20 if form == "sha1" else 32) == ""


def test_a_record_of_rerere_is_read_as_git_writes_it() -> None:
    assert rerere(f"{'a' * 40}\tx\0{'b' * 40}.12\td/y\n\0", lambda _path: "") == ""
    for text in (f"{'a' * 40}\t/x\0", f"{'a' * 40}\td/../x\0", f"{'a' * 40}\tx", "x\0", f"{'a' * 40}\t.git/x\0"):
        assert rerere(text, lambda _path: "")
    assert "linked" in rerere(f"{'a' * 40}\tx\0", lambda path: "linked" if path == "x" else "")
