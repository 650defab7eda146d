"""changes.gitdata: objects are added, refs move from what they were, and git fsck is clean whatever both sides did.

One file of over 800 lines: one repository, and each thing that both sides do in it.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import zlib
from hashlib import sha1
from pathlib import Path

import pytest
from copies import Workspace, engine, run_in, tree
from test_changes_apply import child
from test_changes_red import GIT_ENVIRONMENT, git

from membrane.changes import connected, gitdata
from membrane.changes.apply import Report
from membrane.changes.gitdata import loose_name, pack_name
from membrane.changes.gitentries import entries
from membrane.errors import Conflict
from membrane.host import syscalls
from membrane.workspace import origins

Tree = dict[bytes, tuple[object, ...]]
pytestmark = [pytest.mark.needs_kernel("overlayfs in a user namespace"), pytest.mark.needs_tool("git")]

_GIT = f"""
import os, subprocess
os.environ.update({GIT_ENVIRONMENT!r})
def git(*args, check=True):
    return subprocess.run(["git", *args], check=check, capture_output=True, text=True)
def write(path, text):
    with open(path, "w") as file:
        file.write(text)
"""


@pytest.fixture
def made(tmp_path: Path) -> Workspace:
    return repository(tmp_path / "w")


def repository(place: Path) -> Workspace:
    workspace = Workspace(place)
    git(workspace.base, "init", "-q")
    (workspace.base / "a").write_text("one\n")
    (workspace.base / "b").write_text("one\n")
    git(workspace.base, "add", "-A")
    git(workspace.base, "commit", "-qm", "one")
    git(workspace.base, "branch", "old")
    workspace.begin()
    return workspace


def inside(workspace: Workspace, script: str) -> None:
    workspace.run(_GIT + script)


def apply(workspace: Workspace, *, red: bool = False, rest: bool = False) -> Report:
    with engine(workspace) as each:
        return each.apply(red=red, rest=rest)


def without_objects(found: Path | Tree) -> Tree:
    """What an undo brings back: objects stay, as a ref of the host may lead to them by now."""
    found = tree(found) if isinstance(found, Path) else found
    return {path: each for path, each in found.items() if b".git/objects/" not in path}


def fsck(where: Path) -> None:
    said = git(where, "fsck", "--full", "--strict", "--no-dangling")
    assert said.strip() == ""


def test_a_commit_made_inside_is_the_hosts_afterwards(made: Workspace) -> None:
    inside(made, "write('a', 'two\\n'); write('new', 'n\\n'); git('add', '-A'); git('commit', '-qm', 'two')")
    before = tree(made.base)
    report = apply(made)
    assert report.arrived == () and report.conflicts == ()
    assert git(made.base, "log", "--format=%s").split() == ["two", "one"]
    assert git(made.base, "status", "--porcelain") == ""
    assert git(made.base, "reflog", "--format=%gs").splitlines()[0] == "commit: two"
    fsck(made.base)
    with engine(made) as each:
        assert each.changes() == []
        assert each.undo() == []
    assert without_objects(made.base) == without_objects(before)


def test_branches_tags_and_packed_refs(made: Workspace) -> None:
    inside(
        made,
        "git('switch', '-qc', 'side/x'); write('a', '2\\n'); git('commit', '-qam', 'two'); git('tag', 'v1');"
        "git('branch', '-D', 'old'); git('gc', '-q'); git('switch', '-q', 'main')",
    )
    apply(made)
    assert git(made.base, "for-each-ref", "--format=%(refname)").split() == [
        "refs/heads/main",
        "refs/heads/side/x",
        "refs/tags/v1",
    ]
    assert git(made.base, "log", "--format=%s", "side/x").split() == ["two", "one"]
    fsck(made.base)


def test_a_packed_ref_that_was_deleted_inside_goes(made: Workspace) -> None:
    git(made.base, "pack-refs", "--all")
    made.begin()
    inside(made, "git('branch', '-D', 'old')")
    apply(made)
    assert git(made.base, "for-each-ref", "--format=%(refname)").split() == ["refs/heads/main"]
    assert git(made.base, "status", "--porcelain") == ""
    fsck(made.base)


@pytest.mark.parametrize("looked", [False, True], ids=["not looked at before", "looked at before"])
def test_when_the_host_committed_the_commits_arrive_under_a_name_of_their_own(made: Workspace, looked: bool) -> None:
    inside(made, "write('a', 'inside\\n'); git('commit', '-qam', 'inside')")
    if looked:
        with engine(made) as each:
            each.changes()
    (made.base / "b").write_text("host\n")
    git(made.base, "commit", "-qam", "host")
    index = (made.base / ".git/index").read_bytes()
    report = apply(made)
    (arrived,) = report.arrived
    assert arrived.command == "git merge refs/membrane/set/heads/main"
    assert git(made.base, "log", "--format=%s", "main").split() == ["host", "one"]
    assert git(made.base, "log", "--format=%s", arrived.name).split() == ["inside", "one"]
    assert (made.base / ".git/index").read_bytes() == index
    assert (made.base / "a").read_text() == "inside\n"
    fsck(made.base)
    git(made.base, "checkout", "-q", "a")
    git(made.base, "merge", "-q", "-m", "merged", arrived.name)
    assert (made.base / "a").read_text() == "inside\n" and (made.base / "b").read_text() == "host\n"
    with engine(made) as each:
        assert not [change for change in each.changes() if "refs" in change.path and not change.never]


def test_an_index_that_only_status_wrote_anew_is_no_hindrance(made: Workspace) -> None:
    inside(made, "write('a', 'two\\n'); git('commit', '-qam', 'two')")
    with engine(made) as each:
        each.changes()
    os.utime(made.base / "b", ns=(10**18, 10**18))
    git(made.base, "status")
    apply(made)
    assert git(made.base, "status", "--porcelain") == ""


def test_what_the_host_has_staged_stays(made: Workspace) -> None:
    inside(made, "write('a', 'two\\n'); git('commit', '-qam', 'two')")
    (made.base / "b").write_text("staged\n")
    git(made.base, "add", "b")
    index = (made.base / ".git/index").read_bytes()
    report = apply(made)
    assert "index was changed" in {c.path: why for c, why in report.refused}[".git/index"]
    assert (made.base / ".git/index").read_bytes() == index


def test_a_lock_of_git_stops_the_apply_and_nothing_is_done(made: Workspace) -> None:
    inside(made, "write('a', 'two\\n'); git('commit', '-qam', 'two')")
    (made.base / ".git/refs/heads/main.lock").write_text("")
    before = tree(made.base)
    with pytest.raises(Conflict, match="git holds it"):
        apply(made)
    assert tree(made.base) == before
    (made.base / ".git/refs/heads/main.lock").unlink()
    apply(made)
    assert git(made.base, "log", "--format=%s").split() == ["two", "one"]


def test_an_object_that_is_not_what_its_name_says_never_comes(made: Workspace) -> None:
    good = b"blob 2\0x\n"
    name = sha1(good).hexdigest()
    made.write(f".git/objects/{name[:2]}/{name[2:]}", zlib.compress(good), 0o444)
    other = sha1(b"other").hexdigest()
    made.write(f".git/objects/{other[:2]}/{other[2:]}", zlib.compress(good), 0o444)
    trailing = sha1(b"blob 1\0y").hexdigest()
    made.write(f".git/objects/{trailing[:2]}/{trailing[2:]}", zlib.compress(b"blob 1\0y") + b"more", 0o444)
    report = apply(made, red=True)
    refused = {change.path: why for change, why in report.refused}
    assert set(refused) == {f".git/objects/{n[:2]}/{n[2:]}" for n in (other, trailing)}
    assert (made.base / f".git/objects/{name[:2]}/{name[2:]}").exists()
    fsck(made.base)


@pytest.mark.parametrize(
    "data", [b"other", b"blob 9\0abc", b"blob 03\0abc", b"blob +3\0abc", b"blob 3abc", b"log 3\0abc"]
)
def test_what_has_no_form_of_an_object_never_comes(made: Workspace, data: bytes) -> None:
    """Under its hash as well: git gc outside stops at it, and git fsck names another one."""
    for each in (data, b"blob 3\0abc", b"blob 0\0", b"blob 70000\0" + b"x" * 70000):  # the control
        name = sha1(each).hexdigest()
        made.write(f".git/objects/{name[:2]}/{name[2:]}", zlib.compress(each), 0o444)
    bad = sha1(data).hexdigest()
    report = apply(made)
    assert {change.path: why for change, why in report.refused} == {
        f".git/objects/{bad[:2]}/{bad[2:]}": "it is not the object that its name says"
    }
    fsck(made.base)
    git(made.base, "gc", "-q")


def test_a_pack_is_indexed_by_us_and_a_broken_one_never_comes(made: Workspace) -> None:
    inside(made, "write('a', 'two\\n'); git('commit', '-qam', 'two'); git('repack', '-adq')")
    (pack,) = (made.layer / ".git/objects/pack").glob("*.pack")
    idx = pack.with_suffix(".idx")
    good = idx.read_bytes()
    idx.chmod(0o644)
    idx.write_bytes(b"not an index")
    apply(made)
    idx.write_bytes(good)
    assert (made.base / ".git/objects/pack" / idx.name).read_bytes() != b"not an index"
    fsck(made.base)
    inside(made, "write('a', 'three\\n'); git('commit', '-qam', 'three'); git('repack', '-adq')")
    (pack,) = [
        p
        for p in (made.layer / ".git/objects/pack").glob("*.pack")
        if not (made.base / p.relative_to(made.layer)).exists()
    ]
    pack.chmod(0o644)
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 0xFF
    pack.write_bytes(data)
    report = apply(made)
    assert any(why.startswith("git index-pack does not take it for a pack") for _, why in report.refused)
    assert not (made.base / ".git/objects/pack" / pack.name).exists()


def test_objects_of_the_host_are_never_replaced_nor_deleted(made: Workspace) -> None:
    loose = next(path for path in (made.base / ".git/objects").glob("??/*"))
    path = str(loose.relative_to(made.base))
    made.write(path, zlib.compress(b"blob 0\0"))
    report = apply(made, red=True)
    assert [change.path for change, _ in report.refused] == [path]
    (made.layer / path).unlink()
    (made.layer / path).parent.rmdir()
    made.delete(".git/objects/" + loose.parent.name)
    apply(made, red=True)
    assert loose.exists()
    fsck(made.base)


@pytest.mark.parametrize(
    ("path", "content"),
    [
        (".git/objects/info/alternates", "/etc\n"),
        (".git/hooks/post-checkout", "#!/bin/sh\n"),
        (".git/refs/heads/-x", "0" * 40),
        (".git/refs/heads/a..b", "0" * 40),
        (".git/refs/heads/x", "ref: refs/heads/main\n"),
        (".git/refs/heads/y", "../../x\n"),
        (".git/HEAD", "ref: ../x\n"),
        (".git/index.lock", ""),
        (".git/shallow", "0" * 40),
        ("made/.git/objects/info/alternates", "/etc\n"),
    ],
)
def test_what_git_would_be_led_by_stays_out(made: Workspace, path: str, content: str) -> None:
    place = made.write(path, content)
    if path == ".git/HEAD":
        place.chmod(0o644)
    before = tree(made.base)
    report = apply(made)
    assert path in [change.path for change, _ in report.refused]
    assert {key: entry for key, entry in tree(made.base).items() if key in before} == before
    assert not (made.base / path).exists() or path == ".git/HEAD"


def test_settings_that_both_changed_stay_the_hosts(made: Workspace) -> None:
    inside(made, "git('config', 'user.name', 'inside')")
    git(made.base, "config", "user.name", "host")
    report = apply(made)
    assert [change.path for change, _ in report.refused] == [".git/config"]
    assert git(made.base, "config", "user.name").strip() == "host"


def test_settings_that_only_the_command_changed_come(made: Workspace) -> None:
    inside(made, "git('config', 'user.name', 'inside')")
    (made.base / "b").write_text("host\n")
    git(made.base, "commit", "-qam", "host")
    apply(made)
    assert git(made.base, "config", "user.name").strip() == "inside"


def test_a_repository_is_not_taken_away(made: Workspace) -> None:
    made.delete(".git")
    before = tree(made.base)
    report = apply(made, red=True)
    assert [(change.path, why) for change, why in report.refused] == [
        (".git", "something in it stays"),
        (".git/HEAD", "a repository of the workspace is not taken away"),
    ]
    assert tree(made.base) == before


def test_names_of_objects() -> None:
    assert loose_name("objects/ab/" + "c" * 38) == "ab" + "c" * 38
    assert not loose_name("objects/ab/" + "c" * 37) and not loose_name("objects/AB/" + "c" * 38)
    assert pack_name("objects/pack/pack-" + "a" * 40 + ".pack") and not pack_name("objects/pack/pack-../x.pack")


def test_entries_of_an_index_are_told_from_what_it_remembers(made: Workspace) -> None:
    index = made.base / ".git/index"
    first = index.read_bytes()
    os.utime(made.base / "a", ns=(10**18, 10**18))
    git(made.base, "status")
    second = index.read_bytes()
    assert first != second and entries(first, 20) == entries(second, 20)
    (made.base / "a").write_text("other\n")
    git(made.base, "add", "a")
    assert entries(index.read_bytes(), 20) != entries(first, 20)


# ---------------------------------------------------------------- both sides

ACTS = (
    "write('{file}', '{text}'); git('add', '-A'); git('commit', '-qm', '{text}', check=False)",
    "write('{file}', '{text}')",
    "git('switch', '-qfc', '{branch}', check=False)",
    "git('switch', '-qf', 'main', check=False)",
    "git('switch', '-qf', '{branch}', check=False)",
    "git('branch', '-D', '{branch}', check=False)",
    "git('tag', '-f', '{branch}-tag', check=False)",
    "git('gc', '-q', '--prune=now')",
    "git('pack-refs', '--all')",
    "git('repack', '-adq')",
    "git('commit', '-q', '--amend', '-m', '{text}', '--allow-empty', check=False)",
    "git('merge', '-q', '-m', 'm', '{branch}', check=False); git('merge', '--abort', check=False)",
    "git('stash', '-q', check=False)",
    "git('reset', '-q', '--hard', 'HEAD~1', check=False)",
    "write('{file}', '{text}'); git('add', '{file}', check=False)",
)


def some(chance: random.Random) -> str:
    chosen = []
    for _ in range(chance.randrange(1, 4)):
        values = {
            "file": chance.choice(["a", "b", "c"]),
            "text": f"t{chance.randrange(1000)}",
            "branch": chance.choice(["old", "x", "y"]),
        }
        chosen.append(chance.choice(ACTS).format(**values))
    return "\n".join(chosen)


def test_an_object_that_the_host_pruned_comes_again(made: Workspace) -> None:
    inside(made, "git('checkout', '-qb', 'x'); write('c', '1'); git('add', '-A'); git('commit', '-qm', 'x1')")
    inside(made, "git('checkout', '-q', 'main')")
    apply(made)
    first = git(made.base, "rev-parse", "x").strip()
    git(made.base, "branch", "-D", "x")
    git(made.base, "reflog", "expire", "--expire=now", "--all")
    git(made.base, "gc", "-q", "--prune=now")
    assert not (made.base / f".git/objects/{first[:2]}/{first[2:]}").exists()
    inside(made, "git('checkout', '-q', 'x'); write('c', '2'); git('commit', '-qam', 'x2')")
    inside(made, "git('checkout', '-q', 'main')")
    report = apply(made)
    assert [each.name for each in report.arrived] == ["refs/membrane/set/heads/x"], report
    assert git(made.base, "log", "--format=%s", "refs/membrane/set/heads/x").split() == ["x2", "x1", "one"]
    fsck(made.base)


@pytest.mark.parametrize("seed", [*range(10), 1061, 1065])
def test_fsck_is_clean_after_random_turns_of_both(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    workspace = repository(tmp_path / "w")
    tips = tmp_path / "tips"  # of the refs inside: no commit that either side has is lost
    for _turn in range(5):
        acts = [("inside", some(chance)), ("host", some(chance))]
        chance.shuffle(acts)
        for who, script in acts:
            if chance.random() < 0.2:
                continue
            if who == "inside":
                inside(workspace, script)
            else:
                run_in(workspace.base, _GIT + script)
        heads = git(workspace.base, "for-each-ref", "--format=%(objectname)").split()
        inside(workspace, f"write({str(tips)!r}, git('for-each-ref', '--format=%(objectname)').stdout)")
        heads += tips.read_text().split()
        apply(workspace, red=True, rest=True)
        fsck(workspace.base)
        git(workspace.base, "status")
        for commit in heads:
            git(workspace.base, "cat-file", "-e", commit)


def test_a_ref_by_which_git_shows_another_object_is_red(made: Workspace) -> None:
    inside(
        made,
        """
write("a", "bad\\n"); git("commit", "-qam", "bad")
write("a", "good\\n"); git("commit", "-qa", "--amend", "-m", "good")
git("replace", "HEAD@{1}", "HEAD"); git("reset", "-q", "--soft", "HEAD@{1}"); git("pack-refs", "--all")
""",
    )
    report = apply(made)
    assert any("/refs/replace/" in change.path for change, _why in report.refused)
    assert not (made.base / ".git/refs/replace").exists() or not os.listdir(made.base / ".git/refs/replace")
    assert git(made.base, "show", "main:a") == "bad\n"
    apply(made, red=True)
    assert git(made.base, "show", "main:a") == "good\n"  # the control: it is shown, and not what a push would send


def test_objects_are_read_for_a_bounded_time(made: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"blob 33554432\0" + bytes(32 << 20)
    name = sha1(content).hexdigest()
    made.write(f".git/objects/{name[:2]}/{name[2:]}", zlib.compress(content), 0o444)
    monkeypatch.setattr(gitdata, "OBJECTS_TIME", 0)
    report = apply(made)
    assert [why for change, why in report.refused if change.what == "file"] == [
        "the objects took more than 0 seconds to read"
    ]
    monkeypatch.undo()
    apply(made)
    assert git(made.base, "cat-file", "-s", name).strip() == "33554432"  # the control


def refs_of(where: Path) -> str:
    return git(where, "for-each-ref", "--format=%(refname)")


@pytest.mark.parametrize("what", ["nothing", "refused", "tree", "parent", "tag", "packed"])
def test_a_ref_comes_only_with_all_that_it_leads_to(made: Workspace, what: str) -> None:
    """A commit, or something that it names, is not there; git would call the repository corrupt."""
    script = """
head = git("rev-parse", "HEAD").stdout.strip()
def gone(name):
    os.unlink(f".git/objects/{name[:2]}/{name[2:]}")
WHAT = %r
write("new", "new\\n"); git("add", "-A"); git("commit", "-qm", "two"); git("branch", "side")
tree = git("rev-parse", "HEAD^{tree}").stdout.strip()
if WHAT == "nothing":
    os.makedirs(".git/refs/heads", exist_ok=True)
    write(".git/refs/heads/bad", "1" * 40 + "\\n")
elif WHAT == "refused":
    name = git("rev-parse", "HEAD").stdout.strip()
    os.chmod(f".git/objects/{name[:2]}/{name[2:]}", 0o644)
    write(f".git/objects/{name[:2]}/{name[2:]}", "rubbish")
elif WHAT == "tree":
    gone(tree)
elif WHAT == "parent":
    parent = git("rev-parse", "HEAD").stdout.strip()
    write("more", "x"); git("add", "-A"); git("commit", "-qm", "three"); git("branch", "-f", "side")
    gone(parent)
elif WHAT == "tag":
    git("tag", "-a", "-m", "t", "t"); gone(git("rev-parse", "t").stdout.strip())
    git("reset", "-q", "--hard", head); git("branch", "-D", "side")
elif WHAT == "packed":
    git("repack", "-adq"); blob = git("rev-parse", "HEAD:new").stdout.strip()
    commit = git("commit-tree", "-p", "HEAD", "-m", "loose", tree).stdout.strip()
    write(".git/refs/heads/side", commit + "\\n"); gone(commit)
"""
    inside(made, script % what)
    report = apply(made)
    fsck(made.base)
    bad = {"nothing": "bad", "tag": "t"}.get(what, "side")
    why = {change.path.rpartition("/")[2]: why for change, why in report.refused}
    assert "object" in why[bad], why
    assert bad not in {ref.rpartition("/")[2] for ref in refs_of(made.base).split()}
    if what in ("refused", "tree", "parent"):
        assert "old" in refs_of(made.base)


@pytest.mark.parametrize("kind", ["shallow", "alternates", "sha256"])
def test_commits_come_to_repositories_that_have_not_all_objects_themselves(tmp_path: Path, kind: str) -> None:
    """The control of ``connected``: what is complete comes."""
    origin = repository(tmp_path / "origin")
    (origin.base / "a").write_text("two\n")
    git(origin.base, "commit", "-qam", "two")
    workspace = Workspace(tmp_path / "w")
    workspace.base.rmdir()
    options = {"shallow": ("--depth", "1"), "alternates": ("--shared",), "sha256": ()}[kind]
    if kind == "sha256":
        git(tmp_path, "init", "-q", "--object-format=sha256", str(workspace.base))
        git(workspace.base, "commit", "-q", "--allow-empty", "-m", "two")
    else:
        git(tmp_path, "clone", "-q", *options, f"file://{origin.base}", str(workspace.base))
    workspace.begin()
    inside(workspace, "write('n', 'n'); git('add', '-A'); git('commit', '-qm', 'three'); git('tag', '-am', 't', 't')")
    report = apply(workspace)
    assert report.refused == ()
    assert git(workspace.base, "log", "--format=%s", "-2", "t").split() == ["three", "two"]
    assert git(workspace.base, "status", "--porcelain") == ""
    fsck(workspace.base)


@pytest.mark.parametrize("what", ["HEAD", "index", "index 4", "branch"])
def test_a_linked_work_tree_comes_only_with_the_objects_that_it_leads_to(made: Workspace, what: str) -> None:
    git(made.base, "worktree", "add", "-q", "wt")
    made.begin()
    script = """
WHAT = %r
if WHAT.startswith("index"):
    write("wt/c", "new"); git("-C", "wt", "add", "c")
    if WHAT == "index 4":
        git("-C", "wt", "update-index", "--index-version", "4")
    name = git("-C", "wt", "rev-parse", ":c").stdout.strip()
elif WHAT == "HEAD":
    git("-C", "wt", "checkout", "-q", "--detach"); git("-C", "wt", "commit", "-q", "--allow-empty", "-m", "x")
    name = git("-C", "wt", "rev-parse", "HEAD").stdout.strip()
else:
    git("worktree", "add", "-q", "other"); write("other/c", "new")
    git("-C", "other", "add", "c"); git("-C", "other", "commit", "-qm", "x")
    name = git("-C", "other", "rev-parse", "HEAD").stdout.strip()
os.unlink(f".git/objects/{name[:2]}/{name[2:]}")
"""
    inside(made, script % what)
    place = "other" if what == "branch" else "wt"
    report = apply(made)
    came = {change.path for change in report.applied}
    assert not [path for path in came if path.startswith(f".git/worktrees/{place}/") and "MSG" not in path], came
    fsck(made.base)
    git(made.base, "gc", "-q")
    # The control: with its objects it comes, and git outside goes on there.
    made.add_layer()
    inside(made, "import shutil; shutil.rmtree('wt'); git('worktree', 'prune'); git('worktree', 'add', '-q', 'more')")
    applied = {change.path for change in apply(made).applied}
    assert ".git/worktrees/more/HEAD" in applied
    assert git(made.base / "more", "status", "--porcelain") == ""


@pytest.mark.parametrize("form", ["loose", "packed"])
def test_git_gets_a_bounded_memory_for_what_comes(made: Workspace, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """Little that is deflated is much that is not: a kilobyte of a commit's message is a megabyte."""
    text = git(made.base, "cat-file", "commit", "HEAD").encode() + b"x" * (64 << 20)
    data = b"commit %d\0" % len(text) + text
    name = sha1(data).hexdigest()
    if form == "loose":
        made.write(f".git/objects/{name[:2]}/{name[2:]}", zlib.compress(data, 1))
    else:
        size = [1 << 4 | len(text) & 15]  # gitformat-pack(5): the kind, and the size in groups of bits
        left = len(text) >> 4
        while left:
            size[-1] |= 0x80
            size.append(left & 127)
            left >>= 7
        pack = b"PACK\0\0\0\2\0\0\0\1" + bytes(size) + zlib.compress(text, 1)
        pack += sha1(pack).digest()
        for ending in ("pack", "idx"):  # the second is made anew
            made.write(f".git/objects/pack/pack-{sha1(pack).hexdigest()}.{ending}", pack)
    made.write(".git/refs/heads/large", f"{name}\n")
    monkeypatch.setattr(connected, "MEMORY", 48 << 10)
    apply(made)
    assert "large" not in refs_of(made.base)
    fsck(made.base)
    monkeypatch.undo()
    apply(made)
    assert "refs/heads/large" in refs_of(made.base)  # the control


def test_a_linked_work_tree_never_points_to_nothing(made: Workspace) -> None:
    """git would fail there, and does not with the files only."""
    inside(made, "git('worktree', 'add', '-q', 'wt')")
    with engine(made) as each:
        report = each.apply(["wt"])
    assert [why for change, why in report.refused if change.path == "wt/.git"] == [
        "the git directory that it points to does not come"
    ]
    assert (made.base / "wt/a").exists() and not (made.base / "wt/.git").exists()
    git(made.base / "wt", "status")
    (made.base / "wt/.git").write_text(f"gitdir: {made.base}/.git/worktrees/wt\n")
    control = subprocess.run(["git", "status"], cwd=made.base / "wt", capture_output=True, check=False)
    assert control.returncode == 128
    (made.base / "wt/.git").unlink()
    apply(made)
    assert git(made.base / "wt", "status", "--porcelain") == ""


def test_an_undo_of_the_first_commit_leaves_a_branch_without_one(tmp_path: Path) -> None:
    made = Workspace(tmp_path / "w")
    git(made.base, "init", "-q")
    made.begin()
    inside(made, "git('commit', '-q', '--allow-empty', '-m', 'one'); git('branch', 'side')")
    assert apply(made).refused == ()
    with engine(made) as each:
        assert each.undo() == []
    assert git(made.base, "symbolic-ref", "HEAD") == "refs/heads/main\n" and git(made.base, "branch") == ""
    apply(made)
    git(made.base, "switch", "-q", "side")  # the control: on this one somebody is by now
    with pytest.raises(Conflict), engine(made) as each:
        each.undo()


def test_the_state_of_a_merge_goes_without_its_linked_work_tree(made: Workspace) -> None:
    git(made.base, "worktree", "add", "-q", "wt")
    state = made.base / ".git/worktrees/wt/MERGE_HEAD"
    state.write_text(git(made.base, "rev-parse", "old"))
    made.begin()
    inside(made, "os.chdir('wt'); write('new', 'x'); git('add', 'new'); git('commit', '-qm', 'merged')")
    assert apply(made).refused == ()
    assert not state.exists() and git(made.base / "wt", "log", "-1", "--format=%s") == "merged\n"
    fsck(made.base)


def test_a_linked_work_tree_goes_as_a_whole(made: Workspace) -> None:
    git(made.base, "worktree", "add", "-q", "wt")
    made.begin()
    inside(made, "git('worktree', 'remove', '-f', 'wt')")
    with engine(made) as each:
        each.apply([".git/worktrees"], red=True)  # not its .git file
    assert git(made.base / "wt", "status", "--porcelain") == ""
    apply(made)  # not what is red: its files go
    git(made.base / "wt", "status")
    apply(made, red=True)
    assert not (made.base / "wt").exists() and not (made.base / ".git/worktrees").exists()
    git(made.base, "status")
    fsck(made.base)


def test_the_line_that_is_to_be_typed_runs_nothing_else(made: Workspace) -> None:
    """A branch and a directory of the command's choice are words of it."""
    branch, place = "b;touch${IFS}ran;", "d'$(touch ran)"
    git(made.base, "init", "-q", place)
    (made.base / place / "f").write_text("one\n")
    for args in (("add", "f"), ("commit", "-qm", "one"), ("branch", branch)):
        git(made.base / place, *args)
    made.begin()
    inside(
        made,
        f"""
os.chdir({place!r})
git("switch", "-q", {branch!r}); write("f", "two\\n"); git("commit", "-qam", "two")
""",
    )
    with engine(made) as each:
        each.changes()
    git(made.base / place, "commit", "-q", "--allow-empty", "-m", "other")
    git(made.base / place, "branch", "-f", branch)
    (arrived,) = apply(made, red=True, rest=True).arrived
    assert arrived.name.endswith(branch)
    git(made.base / place, "checkout", "-q", ".")
    done = subprocess.run(["sh", "-c", arrived.command], cwd=made.base, env=GIT_ENVIRONMENT, check=False)
    assert done.returncode == 0, done
    assert (made.base / place / "f").read_text() == "two\n"
    assert not list(made.base.rglob("ran"))
    unquoted = f"git -C . merge {arrived.name}"  # the control
    subprocess.run(["sh", "-c", unquoted], cwd=made.base, capture_output=True, check=False)
    assert (made.base / "ran").exists()


def test_what_is_red_in_git_and_the_host_changed_stays_the_hosts(made: Workspace) -> None:
    """Who asks for the red ones does not ask to lose what was changed outside meanwhile."""
    hooks = made.base / ".git/hooks"
    (hooks / "pre-commit").write_text("# before\n")
    (hooks / "post-merge").write_text("# before\n")
    made.begin()
    script = "git('config', 'alias.x', '!sh'); write('.git/shallow', '')\n"
    script += "for name in ('pre-commit', 'post-merge', 'new'): write(f'.git/hooks/{name}', '# inside\\n')"
    inside(made, script)
    with engine(made) as each:
        each.changes()
    git(made.base, "config", "user.email", "host@example.test")
    for name in ("pre-commit", "new"):
        (hooks / name).write_text("# host\n")
    (made.base / ".git/shallow").write_text("")
    report = apply(made, red=True)
    why = {change.path: why for change, why in report.refused}
    assert set(why) >= {".git/config", ".git/hooks/pre-commit", ".git/hooks/new"}, why
    assert "host@example.test" in (made.base / ".git/config").read_text()
    assert [(hooks / name).read_text() for name in ("pre-commit", "new")] == ["# host\n"] * 2
    assert (hooks / "post-merge").read_text() == "# inside\n"  # the control: what only the command changed comes


@pytest.mark.parametrize("act", ["branch keep", "stash", "commit -q --allow-empty -m more", "worktree add -q wt"])
def test_an_undo_takes_no_object_that_the_host_needs_by_now(made: Workspace, act: str) -> None:
    """git has put a ref, or a commit, on what was put in place."""
    inside(made, "write('a', 'two\\n'); git('commit', '-qam', 'two')")
    apply(made)
    (made.base / "b").write_text("dirty\n")
    git(made.base, *act.split())
    tips = git(made.base, "for-each-ref", "--format=%(objectname)").split()
    with engine(made) as each:
        each.undo(rest=True)
    fsck(made.base)
    for commit in tips:
        git(made.base, "cat-file", "-e", commit)
    git(made.base, "status")


def test_a_repository_that_came_is_undone_as_a_whole_or_not_at_all(made: Workspace) -> None:
    inside(
        made, "git('clone', '-q', '--no-hardlinks', '.', 'clone'); git('clone', '-q', '--no-hardlinks', '.', 'other')"
    )
    apply(made, red=True)
    git(made.base / "clone", "branch", "keep")
    with engine(made) as each:
        with pytest.raises(Conflict) as caught:
            each.undo()
        assert "something was made in it since" in str(caught.value)
        assert (made.base / "clone/a").exists() and (made.base / "other/a").exists()
        left = dict(each.undo(rest=True))
    assert left["clone/.git"] == "the repository was worked in since"
    assert not (made.base / "other").exists()
    fsck(made.base / "clone")
    assert git(made.base / "clone", "log", "-1", "--format=%s", "keep").strip() == "one"


def test_an_abort_takes_no_object_that_the_host_needs_by_now(made: Workspace) -> None:
    """The apply was killed when all was in place, and git worked on before it was brought to an end."""
    inside(made, "write('a', 'two\\n'); git('commit', '-qam', 'two')")

    def step(name: str) -> None:
        if name == "finish":
            os._exit(7)

    child = os.fork()
    if child == 0:
        with engine(made, step) as each:
            each.apply()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    git(made.base, "branch", "keep")
    with engine(made) as each:
        assert each.resume(forward=False) == []
    fsck(made.base)
    assert git(made.base, "log", "--format=%s", "keep").split() == ["two", "one"]
    assert git(made.base, "log", "--format=%s").split() == ["one"]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("first", "second"), [("old", "old/a/b"), ("old/a/b", "old"), ("old/a/b", "old/a/b/c")])
def test_a_branch_may_get_the_name_of_a_directory_of_branches(
    made: Workspace, first: str, second: str, packed: bool
) -> None:
    if first != "old":
        git(made.base, "branch", "-m", "old", first)
    if packed:
        git(made.base, "pack-refs", "--all")
    made.begin()
    inside(made, f"git('branch', '-m', {first!r}, {second!r}); write('a', 'x'); git('commit', '-qam', 'two')")
    before = without_objects(made.base)
    apply(made)
    assert git(made.base, "branch", "--format=%(refname:short)").split() == ["main", second]
    assert git(made.base, "log", "--format=%s").split() == ["two", "one"]
    fsck(made.base)
    with engine(made) as each:
        assert each.undo() == []
    assert without_objects(made.base) == before


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("hosts", "inside_"), [("new", "new/a"), ("new/a", "new"), ("new/a/b", "new/a")])
def test_a_branch_that_has_no_room_beside_the_hosts_stays_out_and_the_rest_comes(
    made: Workspace, hosts: str, inside_: str, packed: bool
) -> None:
    inside(made, f"git('branch', {inside_!r}); git('branch', 'side'); write('a', 'x'); git('commit', '-qam', 'two')")
    git(made.base, "branch", hosts)
    if packed:
        git(made.base, "pack-refs", "--all")
    report = apply(made)
    assert [why for change, why in report.refused if change.path == f".git/refs/heads/{inside_}"]
    names = git(made.base, "branch", "--format=%(refname:short)").split()
    assert hosts in names and "side" in names and inside_ not in names
    fsck(made.base)


@pytest.mark.parametrize("left", [False, True])
def test_the_log_of_a_branch_goes_with_it(made: Workspace, left: bool) -> None:
    """git gc fails where a branch has the name of a directory of branches and a log still the old one's."""
    script = "git('branch', '-m', 'old', 'old/sub')"
    if left:
        script += "\nimport shutil; shutil.rmtree('.git/logs/refs/heads/old'); write('.git/logs/refs/heads/old', '')"
    inside(made, script)
    with engine(made) as each:
        each.changes()
    git(made.base, "switch", "-qc", "other")  # HEAD has moved
    apply(made)
    assert git(made.base, "branch", "--format=%(refname:short)").split() == ["main", "old/sub", "other"]
    git(made.base, "gc", "-q", "--prune=now")
    fsck(made.base)
    if not left:
        (made.base / ".git/logs/refs/heads/old").rename(made.base / ".git/logs/refs/heads/moved")
        (made.base / ".git/logs/refs/heads/old").write_text("")
        control = subprocess.run(["git", "gc", "-q"], cwd=made.base, capture_output=True, check=False)
        assert control.returncode == 128


@pytest.mark.parametrize("act", ["branch -f old", "branch -D old"])
def test_the_branch_that_the_host_is_on_by_now_is_not_moved_under_it(made: Workspace, act: str) -> None:
    inside(made, f"write('a', 'x'); git('commit', '-qam', 'two'); git(*{act.split()!r})")
    with engine(made) as each:
        each.changes()
    git(made.base, "switch", "-q", "old")
    report = apply(made)
    assert git(made.base, "log", "--format=%s").split() == ["one"]  # the control: HEAD is what it was
    assert git(made.base, "log", "--format=%s", "main").split() == ["two", "one"]
    assert [each.ref for each in report.arrived] == (["refs/heads/old"] if "-f" in act else [])
    assert git(made.base, "status", "--porcelain") == " M a\n"


def test_a_branch_that_a_work_tree_of_the_host_is_on_by_now_is_not_deleted(made: Workspace) -> None:
    inside(made, "git('branch', '-D', 'old'); git('branch', 'side')")
    with engine(made) as each:
        each.changes()
    git(made.base, "worktree", "add", "-q", "wt", "old")
    report = apply(made)
    assert {change.path: why for change, why in report.refused} == {
        ".git/refs/heads/old": "it is checked out in the workspace",
        ".git/logs/refs/heads/old": "its ref stays as it is",
    }
    assert git(made.base / "wt", "log", "--format=%s").split() == ["one"]
    git(made.base, "worktree", "remove", "wt")
    apply(made)
    assert git(made.base, "branch", "--format=%(refname:short)").split() == ["main", "side"]  # the control


def killed_in_the_lock(workspace: Workspace, *, before: bool) -> None:
    """An apply that is killed while it has a branch under its lock, before or after that has changed places."""

    def work() -> None:
        real = syscalls.exchange

        def exchange(source: int, name: str, target: int, other: str) -> None:
            if before and other == "main":
                os.kill(os.getpid(), signal.SIGKILL)
            real(source, name, target, other)
            if other == "main":
                os.kill(os.getpid(), signal.SIGKILL)

        syscalls.exchange = exchange
        apply(workspace)

    assert child(work) == -signal.SIGKILL


@pytest.mark.parametrize("forward", [False, True], ids=["back", "forward"])
@pytest.mark.parametrize("before", [False, True], ids=["after the step", "before the step"])
def test_killed_while_it_holds_a_lock_of_git_it_leaves_none(made: Workspace, forward: bool, before: bool) -> None:
    """git outside, and membrane itself, would wait for its end for ever."""
    inside(made, "write('a', 'two\\n'); git('commit', '-qam', 'two')")
    killed_in_the_lock(made, before=before)
    lock = made.base / ".git/refs/heads/main.lock"
    assert lock.exists()
    with pytest.raises(AssertionError, match="Another git process"):  # the control: git takes it for one of its own
        git(made.base, "update-ref", "refs/heads/main", "old~0")
    with engine(made) as each:
        assert each.resume(forward=forward) == []
    assert not lock.exists()
    assert git(made.base, "log", "--format=%s").split() == (["two", "one"] if forward else ["one"])
    assert git(made.base, "status", "--porcelain") == ""
    fsck(made.base)


def test_a_lock_of_git_that_came_meanwhile_is_left_to_git(made: Workspace) -> None:
    inside(made, "write('a', 'two\\n'); git('commit', '-qam', 'two')")
    killed_in_the_lock(made, before=True)
    lock = made.base / ".git/refs/heads/main.lock"
    lock.unlink()
    lock.write_text("")  # git's, after a person had removed ours
    with engine(made) as each:
        left = dict(each.resume(forward=True))
    assert left[".git/refs/heads/main"] == "git holds it: main.lock is there" and lock.exists()


def test_after_an_apply_that_was_brought_to_its_end_the_command_goes_on_from_it(made: Workspace) -> None:
    """What it changes then is no conflict with what came from itself."""
    inside(made, "write('a', 'two\\n'); git('commit', '-qam', 'two')")

    def work() -> None:
        def step(name: str) -> None:
            if name == "finish":
                os.kill(os.getpid(), signal.SIGKILL)

        with engine(made, step) as each:
            each.apply()

    assert child(work) == -signal.SIGKILL
    with engine(made) as each:
        assert each.resume(forward=True) == []
        assert each.changes() == []
    inside(made, "write('a', 'three\\n'); git('commit', '-qam', 'three')")
    report = apply(made)
    assert not report.refused and not report.arrived
    assert git(made.base, "log", "--format=%s").split() == ["three", "two", "one"]
    with engine(made) as each:
        assert each.undo() == []
    assert git(made.base, "log", "--format=%s").split() == ["two", "one"]


def test_after_an_apply_that_was_taken_back_it_can_be_done_again(made: Workspace) -> None:
    inside(made, "write('a', 'two\\n'); git('commit', '-qam', 'two')")

    def work() -> None:
        def step(name: str) -> None:
            if name == "keep undo":  # all is done, and written down
                os.kill(os.getpid(), signal.SIGKILL)

        with engine(made, step) as each:
            each.apply()

    assert child(work) == -signal.SIGKILL
    with engine(made) as each:
        assert each.resume(forward=False) == []
    assert git(made.base, "log", "--format=%s").split() == ["one"]
    report = apply(made)
    assert not report.refused and not report.arrived
    assert git(made.base, "log", "--format=%s").split() == ["two", "one"]


def test_a_ref_that_an_undo_left_as_it_is_is_what_the_command_goes_on_from(made: Workspace) -> None:
    inside(made, "write('a', 'two\\n'); git('commit', '-qam', 'two'); git('branch', 'side')")
    apply(made)
    (made.base / ".git/refs/heads/main.lock").write_text("")
    with engine(made) as each:
        left = dict(each.undo(rest=True))
    (made.base / ".git/refs/heads/main.lock").unlink()
    assert ".git/refs/heads/main" in left
    with engine(made) as each:
        assert each.base.rows[".git//refs/heads/main"].content == git(made.base, "rev-parse", "main").strip()
        assert each.base.rows[".git//refs/heads/side"].content == ""  # the control: that went


def test_a_head_of_which_only_the_beginning_is_a_ref_never_comes(made: Workspace) -> None:
    good = "ref: refs/heads/" + "a" * (gitdata.LONGEST_REF - 16)
    made.write(".git/HEAD", f"{good}/../../x.lock\n")
    report = apply(made, red=True)
    assert [(change.path, why) for change, why in report.refused] == [(".git/HEAD", "it names no ref and no commit")]
    assert git(made.base, "log", "--format=%s").split() == ["one"]


def test_a_commit_that_an_undo_brings_back_is_still_the_commands(made: Workspace, tmp_path: Path) -> None:
    """Also when no ref had it for the time of a live run: what is in it must not be made in the next one."""
    state, root = tmp_path / "state", str(made.base)

    def run(session: str) -> bytes:
        tips = origins.begin(str(state), root, session, lambda: ())
        origins.note(str(state), root, session)
        return tips

    def put() -> None:
        with engine(made, state=state / "changes/set") as each:
            each.apply()

    owners = git(made.base, "rev-parse", "main").strip()
    run("first")
    inside(made, "write('a', 'two\\n'); git('commit', '-qam', 'two')")
    put()
    commands = git(made.base, "rev-parse", "main").strip()
    inside(made, "write('a', 'three\\n'); git('commit', '-qam', 'three')")
    put()
    run("live")
    with engine(made, state=state / "changes/set") as each:
        assert each.undo() == []
    assert git(made.base, "rev-parse", "main").strip() == commands
    tips = run("later")
    assert bytes.fromhex(owners) in tips and bytes.fromhex(commands) not in tips


def test_an_index_that_lists_the_same_is_no_change_though_head_was_moved(made: Workspace) -> None:
    inside(made, "write('a', 'two\\n'); git('add', 'a'); write('new', 'n\\n')")
    (made.base / "a").write_text("two\n")
    git(made.base, "commit", "-qam", "mine")
    with engine(made) as each:
        assert [change.path for change in each.changes() if not change.path.startswith(".git/objects")] == ["new"]
