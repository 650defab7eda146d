"""changes.grafted and gitseats: a workspace and its repository elsewhere are put in place as one; others' is not."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest
from copies import Elsewhere, engine, run_in, tree
from test_changes_git import _GIT, fsck, repository, some
from test_changes_red import GIT_ENVIRONMENT, git

from membrane.changes.apply import Report
from membrane.changes.gitseats import ELSEWHERE, THEIRS
from membrane.changes.model import Change
from membrane.changes.transaction import Unfinished
from membrane.errors import Conflict, HostError
from membrane.host import syscalls

pytestmark = [pytest.mark.needs_kernel("overlayfs in a user namespace"), pytest.mark.needs_tool("git")]
COMMIT = "write('a', 'two\\n'); git('commit', '-qam', 'two')\n"
SEAT = ".git/worktrees/base"


def linked(place: Path, *, bare: bool = False) -> Elsewhere:
    """``base`` is on ``topic``, ``third`` on ``third``, and ``main``, unless it is ``bare``, on ``trunk``."""
    main, repository = place / "main", place / ("main" if bare else "main/.git")

    def make() -> None:
        main.mkdir()
        git(main, "init", "-q", "-b", "trunk")
        (main / "a").write_text("one\n")
        git(main, "add", "-A")
        git(main, "commit", "-qm", "one")
        if bare:
            git(place, "clone", "-q", "--bare", "main", "bare")
            os.rename(main, place / "old")
            os.rename(place / "bare", main)
        git(main, "worktree", "add", "-q", "../base", "-b", "topic")
        git(main, "worktree", "add", "-q", "../third")

    workspace = Elsewhere(place, repository, "worktrees/base", make)
    workspace.begin()
    return workspace


def fails(where: Path, *args: str) -> None:
    """git ends with conflicts."""
    assert subprocess.run(["git", *args], cwd=where, env=GIT_ENVIRONMENT, capture_output=True, check=False).returncode


@pytest.fixture
def made(tmp_path: Path) -> Elsewhere:
    return linked(tmp_path / "w")


def inside(workspace: Elsewhere, script: str) -> None:
    workspace.run(_GIT + script)


def apply(workspace: Elsewhere, *, red: bool = False) -> Report:
    with engine(workspace) as each:
        return each.apply(red=red)


def changes(workspace: Elsewhere) -> dict[str, Change]:
    with engine(workspace) as each:
        return {change.path: change for change in each.changes()}


def whys(report: Report) -> dict[str, str]:
    return {change.path: why for change, why in report.refused}


def test_a_commit_of_a_linked_work_tree_comes_and_goes(made: Elsewhere) -> None:
    before, files = tree(made.git), tree(made.base)
    inside(made, COMMIT + "git('branch', 'side'); git('tag', 'v1'); write('b', 'staged'); git('add', 'b')")
    report = apply(made)
    assert report.refused == () and report.arrived == ()
    assert git(made.base, "log", "--format=%s", "v1").split() == ["two", "one"]
    assert git(made.base, "status", "--porcelain") == "A  b\n" and (made.base / "a").read_text() == "two\n"
    assert git(made.base, "reflog", "--format=%gs").splitlines()[0] == "commit: two"
    fsck(made.base)
    # Nothing of the others has moved.
    for other, branch in (("main", "trunk"), ("third", "third")):
        assert git(made.place / other, "status", "--porcelain", "-b") == f"## {branch}\n"
    with engine(made) as each:
        assert each.undo() == []
    assert tree(made.base) == files
    assert {path: it for path, it in tree(made.git).items() if b"objects/" not in path} == {
        path: it for path, it in before.items() if b"objects/" not in path
    }
    fsck(made.base)


def test_a_merge_that_ends_inside_takes_its_state_away(made: Elsewhere) -> None:
    git(made.base, "checkout", "-q", "-b", "x")
    (made.base / "a").write_text("x\n")
    git(made.base, "commit", "-qam", "x")
    git(made.base, "checkout", "-q", "topic")
    (made.base / "a").write_text("y\n")
    git(made.base, "commit", "-qam", "y")
    fails(made.base, "merge", "x")
    made.begin()
    inside(made, "write('a', 'z\\n'); git('add', 'a'); git('commit', '-qm', 'merged')")
    assert apply(made).refused == ()
    assert "merg" not in git(made.base, "status") and git(made.base, "log", "-1", "--format=%s") == "merged\n"
    assert not (made.git / "worktrees/base/MERGE_HEAD").exists()


def test_what_is_of_other_work_trees_does_not_come(made: Elsewhere) -> None:
    git(made.place / "main", "bisect", "start")
    made.begin()
    inside(made, COMMIT)
    upper = made.layers[-1] / "git/upper"
    forged = {
        "HEAD": "ref: refs/heads/topic\n", "index": "x", "MERGE_MSG": "x", "ORIG_HEAD": "x",
        "modules/sub/config": "x", "info/sparse-checkout": "/*\n", "refs/bisect/bad": "0" * 40 + "\n",
        "refs/worktree/x": "0" * 40 + "\n", "BISECT_LOG": "x", "unknown": "x",
        "worktrees/third/HEAD": "ref: refs/heads/topic\n", "worktrees/new/HEAD": "ref: refs/heads/topic\n",
        "worktrees/new/gitdir": f"{made.base}/sub/.git\n", "worktrees/new/commondir": "../..\n",
    }  # fmt: skip
    for name, text in forged.items():
        (upper / name).parent.mkdir(parents=True, exist_ok=True)
        (upper / name).write_text(text)
    unsaid = ("logs/HEAD", "logs/refs/worktree/x", "worktrees/third/logs/HEAD")  # of the kind that git gc writes
    for name in unsaid:
        (upper / name).parent.mkdir(parents=True, exist_ok=True)
        (upper / name).write_text("x")
    others = [tree(made.place / "third"), tree(made.git / "worktrees/third"), (made.git / "logs/HEAD").read_text()]
    report = apply(made, red=True)
    refused = whys(report)
    assert {path: why for path, why in refused.items() if why == THEIRS}.keys() >= {f".git/{name}" for name in forged}
    with_them = tuple(f".git/{name.partition('/')[0]}/" for name in forged)  # directories, and logs of their refs
    assert all(path.removeprefix(".git/") in forged or f"{path}/".startswith(with_them) for path in refused), refused
    after = [tree(made.place / "third"), tree(made.git / "worktrees/third"), (made.git / "logs/HEAD").read_text()]
    assert after == others and not {f".git/{name}" for name in unsaid} & {each.path for each in report.applied}
    assert git(made.place / "main", "symbolic-ref", "HEAD") == "refs/heads/trunk\n"
    assert git(made.base, "log", "-1", "--format=%s") == "two\n"  # the control: the rest comes
    assert sorted(os.listdir(made.git / "worktrees")) == ["base", "third"]


@pytest.mark.parametrize("name", ["commondir", "gitdir", "locked"])
def test_where_the_work_tree_is_does_not_change(made: Elsewhere, name: str) -> None:
    there = made.git / "worktrees/base" / name
    before = there.read_text() if there.exists() else None
    place = made.layers[-1] / "git/upper/worktrees/base" / name
    place.parent.mkdir(parents=True)
    place.write_text("../../../other\n")
    assert whys(apply(made, red=True)) == {f"{SEAT}/{name}": "it says where a work tree and its repository are"}
    assert (there.read_text() if there.exists() else None) == before


@pytest.mark.parametrize("name", ["commondir", "gitdir", "HEAD"])
def test_a_work_tree_is_not_taken_away_from_its_repository(made: Elsewhere, name: str) -> None:
    inside(made, COMMIT + f"os.unlink('{made.git}/worktrees/base/{name}')")
    assert "a repository of the workspace is not taken away" in set(whys(apply(made, red=True)).values())
    assert (made.git / "worktrees/base" / name).exists() and git(made.base, "log", "-1", "--format=%s") == "one\n"


@pytest.mark.parametrize("ref", ["refs/heads/trunk", "refs/heads/third"])
def test_a_branch_that_another_work_tree_is_on_is_not_moved(made: Elsewhere, ref: str) -> None:
    inside(made, COMMIT + f"git('update-ref', {ref!r}, 'HEAD')")
    report = apply(made, red=True)
    assert [each.name for each in report.arrived] == [f"refs/membrane/set/{ref.removeprefix('refs/')}"]
    assert git(made.base, "log", "-1", "--format=%s", ref) == "one\n"
    assert git(made.base, "log", "-1", "--format=%s", report.arrived[0].name) == "two\n"
    assert git(made.base, "log", "-1", "--format=%s") == "two\n"


def test_a_branch_that_another_work_tree_is_on_is_neither_deleted_nor_taken(made: Elsewhere) -> None:
    git(made.base, "branch", "free")
    made.begin()
    inside(made, "git('update-ref', '-d', 'refs/heads/third'); git('branch', '-D', 'free')")
    assert whys(apply(made, red=True))[".git/refs/heads/third"] == ELSEWHERE
    assert git(made.base, "branch", "--list", "free") == ""  # the control
    made.add_layer()
    inside(made, "git('symbolic-ref', 'HEAD', 'refs/heads/trunk')")
    assert whys(apply(made, red=True))[f"{SEAT}/HEAD"] == ELSEWHERE
    assert git(made.base, "symbolic-ref", "HEAD") == "refs/heads/topic\n"


def test_a_branch_that_another_work_tree_has_taken_before_the_answer_is_not_moved(made: Elsewhere) -> None:
    git(made.base, "branch", "free")
    made.begin()
    inside(made, COMMIT + "git('update-ref', 'refs/heads/free', 'HEAD')")
    with engine(made) as each:
        found = each.changes()
        git(made.place / "third", "switch", "-q", "free")
        with pytest.raises(Conflict, match=ELSEWHERE):
            each.apply(found=found)
        assert git(made.base, "log", "-1", "--format=%s", "free") == "one\n"
        git(made.place / "third", "switch", "-q", "third")
        each.apply(found=found)  # the control
    assert git(made.base, "log", "-1", "--format=%s", "free") == "two\n"


def test_a_branch_that_is_rebased_in_another_work_tree_is_not_moved(made: Elsewhere) -> None:
    third = made.place / "third"
    (third / "a").write_text("x\n")
    git(third, "commit", "-qam", "x")
    (made.base / "a").write_text("y\n")
    git(made.base, "commit", "-qam", "y")
    fails(third, "rebase", "topic")
    assert (made.git / "worktrees/third/rebase-merge/head-name").exists()
    made.begin()
    inside(made, "git('update-ref', 'refs/heads/third', 'HEAD')")
    assert [each.ref for each in apply(made).arrived] == ["refs/heads/third"]


def test_a_set_of_the_main_work_tree_changes_nothing_of_linked_ones_outside(tmp_path: Path) -> None:
    made = repository(tmp_path / "w")
    git(made.base, "worktree", "add", "-q", "../third")
    git(made.base, "worktree", "add", "-q", "within")  # the control: this one is in the workspace
    made.begin()
    script = "import shutil; git('commit', '-q', '--allow-empty', '-m', 'two')\n"
    script += "for name in ('third', 'within'):\n git('update-ref', f'refs/heads/{name}', 'HEAD')\n"
    made.run(_GIT + script + "shutil.rmtree('.git/worktrees/third'); write('.git/worktrees/within/ORIG_HEAD', 'x')")
    before = [tree(made.place / "third"), tree(made.base / ".git/worktrees/third")]
    with engine(made) as each:
        report = each.apply(red=True)
    assert set(whys(report).values()) == {THEIRS, "its ref stays as it is"}
    assert [each.ref for each in report.arrived] == ["refs/heads/third"]
    assert [tree(made.place / "third"), tree(made.base / ".git/worktrees/third")] == before
    assert git(made.place / "third", "status", "--porcelain") == ""
    assert git(made.base, "log", "-1", "--format=%s", "refs/heads/within") == "two\n"
    assert (made.base / ".git/worktrees/within/ORIG_HEAD").read_text() == "x"
    fsck(made.base)


def test_in_a_bare_repository_the_branch_of_its_head_is_free(tmp_path: Path) -> None:
    made = linked(tmp_path / "w", bare=True)
    git(made.base, "checkout", "-q", "trunk")
    made.begin()
    inside(made, COMMIT)
    report = apply(made)
    assert report.refused == () and report.arrived == ()
    assert git(made.git, "log", "-1", "--format=%s", "trunk") == "two\n"
    assert git(made.base, "status", "--porcelain") == ""
    fsck(made.git)


def test_configuration_of_an_earlier_set_does_not_make_a_work_tree_go(made: Elsewhere) -> None:
    inside(made, "git('config', 'core.bare', 'true')")
    assert apply(made).refused == ()
    made.add_layer()
    made.begin()
    inside(made, COMMIT + "git('update-ref', 'refs/heads/trunk', 'HEAD')")
    assert [each.ref for each in apply(made).arrived] == ["refs/heads/trunk"]
    assert git(made.base, "log", "-1", "--format=%s", "trunk") == "one\n"


def test_a_commit_of_the_host_meanwhile_has_the_commits_arrive(made: Elsewhere) -> None:
    inside(made, COMMIT)
    (made.base / "b").write_text("mine\n")
    git(made.base, "add", "b")
    git(made.base, "commit", "-qm", "mine")
    report = apply(made)
    assert [each.command for each in report.arrived] == ["git merge refs/membrane/set/heads/topic"]
    assert git(made.base, "log", "-1", "--format=%s") == "mine\n"
    assert git(made.base, "log", "-1", "--format=%s", "refs/membrane/set/heads/topic") == "two\n"
    fsck(made.base)


def test_a_commit_in_another_work_tree_meanwhile_changes_nothing(made: Elsewhere) -> None:
    inside(made, COMMIT)
    changes(made)  # at the end of the run
    (made.place / "third/a").write_text("x\n")
    git(made.place / "third", "commit", "-qam", "x")
    git(made.place / "main", "pack-refs", "--all")
    report = apply(made)
    assert report.refused == () and report.arrived == ()
    assert git(made.base, "log", "-1", "--format=%s") == "two\n"
    assert git(made.place / "third", "log", "-1", "--format=%s") == "x\n"
    fsck(made.base)


def test_hooks_and_configuration_are_red(made: Elsewhere) -> None:
    script = "git('config', 'core.fsmonitor', './evil'); os.makedirs(f'{at}/hooks', exist_ok=True)\n"
    script += "write(f'{at}/hooks/pre-commit', '#!/bin/sh\\n'); os.chmod(f'{at}/hooks/pre-commit', 0o755)\n"
    inside(made, f"at = {str(made.git)!r}\n" + script + COMMIT.replace("git('commit'", "git('commit', '-n'"))
    found = changes(made)
    assert {path for path, change in found.items() if change.red} == {".git/config", ".git/hooks/pre-commit"}
    report = apply(made)
    assert whys(report).keys() == {".git/config", ".git/hooks/pre-commit"}
    assert "fsmonitor" not in (made.git / "config").read_text() and not (made.git / "hooks/pre-commit").exists()
    assert git(made.base, "log", "-1", "--format=%s") == "two\n"


@pytest.mark.parametrize("link", [False, True])
def test_what_the_shared_configuration_names_is_red(made: Elsewhere, link: bool) -> None:
    if link:
        (made.git / "hooks").rename(made.git / "old")
        (made.git / "hooks").symlink_to(made.base / "scripts")
    else:
        git(made.base, "config", "core.hooksPath", "scripts")
    made.begin()
    made.write("scripts/pre-commit", "#!/bin/sh\n")
    made.write("other/pre-commit", "#!/bin/sh\n")  # the control
    found = changes(made)
    assert found["scripts/pre-commit"].red and not found["other/pre-commit"].red


def test_the_git_file_and_the_repository_itself_are_in_no_change_set(made: Elsewhere) -> None:
    """Whatever a layer has under the name of the pointer, and whatever mode the copy of the repository has."""
    inside(made, COMMIT)
    (made.layer / ".git").write_text(f"gitdir: {made.place}/third\n")
    os.chmod(made.layers[-1] / "git/upper", 0o777)
    before = (made.base / ".git").read_text()
    report = apply(made, red=True)
    assert whys(report) == {".git": "it is the repository itself, which is outside of the workspace"}
    assert (made.base / ".git").read_text() == before and made.git.stat().st_mode & 0o022 == 0


def test_a_git_file_inside_leads_to_no_other_part_of_the_repository(made: Elsewhere) -> None:
    for name, target in (("s", made.git), ("t", made.git / "worktrees/third"), ("u", made.git / "worktrees/base")):
        made.write(f"{name}/.git", f"gitdir: {target}\n")
    made.write("v/.git", f"gitdir: {made.git}/worktrees/gone\n")
    found = changes(made)
    assert all(found[f"{name}/.git"].red for name in "stuv")
    assert whys(apply(made, red=True)) == {"v/.git": "the git directory that it points to does not come"}


def test_a_submodule_of_a_linked_work_tree_comes_as_a_whole(made: Elsewhere) -> None:
    """git keeps its repository in the seat of the work tree (git-worktree(1), BUGS)."""
    git(made.place / "main", "init", "-q", "../lib")
    git(made.place / "lib", "commit", "-q", "--allow-empty", "-m", "lib")
    made.begin()
    script = "git('-c', 'protocol.file.allow=always', 'submodule', 'add', '../lib', 'sub'); git('commit', '-qm', 'sub')"
    inside(made, f"git('config', 'remote.origin.url', '{made.place}/main'); {script}")
    assert not changes(made)["sub/.git"].red
    assert apply(made, red=True).refused == ()
    assert git(made.base, "submodule", "status").startswith(" ") and git(made.base, "status", "--porcelain") == ""
    assert git(made.base / "sub", "log", "--format=%s") == "lib\n"
    fsck(made.base / "sub")


def test_a_link_of_the_host_in_the_place_of_a_directory_is_not_followed(made: Elsewhere) -> None:
    inside(made, COMMIT + "git('tag', 'v1')")
    (made.git / "refs/tags").rmdir()
    (made.git / "refs/tags").symlink_to(made.place)
    assert whys(apply(made, red=True)).keys() == {".git/refs/tags/v1"}
    assert not (made.place / "v1").exists()


def test_of_what_is_no_repository_any_more_nothing_comes(made: Elsewhere) -> None:
    """git takes one whose ``objects`` is a link; what is said of a shared one is not asked of it then."""
    made.add_layer()
    upper = made.layers[-1] / "git/upper"
    (upper / "worktrees/third").mkdir(parents=True)
    for name in ("HEAD", "worktrees/third/HEAD", "packed-refs"):
        (upper / name).write_text("ref: refs/heads/topic\n")
    (made.git / "objects").rename(made.place / "objects")
    (made.git / "objects").symlink_to(made.place / "objects")
    before = tree(made.git)
    made.write("b", "new")
    report = apply(made, red=True)
    assert set(whys(report)) == {".git/HEAD", ".git/worktrees/third/HEAD", ".git/packed-refs"}
    assert [each.path for each in report.applied] == ["b"] and tree(made.git) == before


@pytest.mark.parametrize("by", ["this one", "another one"])
def test_an_undo_takes_no_branch_from_under_a_work_tree(made: Elsewhere, by: str) -> None:
    inside(made, COMMIT + "git('branch', 'side')")
    assert apply(made).refused == ()
    git(made.base if by == "this one" else made.place / "third", "switch", "-q", "side")
    with engine(made) as each:
        with pytest.raises(Conflict):
            each.undo()
        left = each.undo(rest=True)
    assert (".git/refs/heads/side", "HEAD is on that branch by now" if by == "this one" else ELSEWHERE) in left
    assert git(made.base, "log", "-1", "--format=%s", "side") == "two\n"
    assert git(made.base, "log", "-1", "--format=%s", "topic") == "one\n"  # the control: all else goes back


def test_a_branch_is_not_moved_under_a_symbolic_name_of_it_either(made: Elsewhere) -> None:
    git(made.place / "main", "symbolic-ref", "refs/heads/alias", "refs/heads/trunk")
    git(made.place / "main", "symbolic-ref", "HEAD", "refs/heads/alias")
    made.begin()
    inside(made, COMMIT + "git('update-ref', 'refs/heads/trunk', 'HEAD')")
    assert [each.ref for each in apply(made).arrived] == ["refs/heads/trunk"]
    assert git(made.base, "log", "-1", "--format=%s", "trunk") == "one\n"


@pytest.mark.parametrize("forward", [True, False])
def test_killed_in_the_middle_it_is_brought_to_either_end(made: Elsewhere, forward: bool) -> None:
    inside(made, COMMIT)
    before = [tree(made.base), tree(made.git)]
    count = 0

    class Killed(BaseException):
        pass

    def kill(step: str) -> None:
        nonlocal count
        count += step in ("new", "put")
        if count > 6 or (count > 5 and step.startswith("undo")):
            raise Killed

    with pytest.raises((Killed, Unfinished)), engine(made, kill) as each:
        each.apply()
    with engine(made) as each:
        with pytest.raises(Unfinished):
            each.changes()
        assert each.resume(forward=forward) == []
    if forward:
        assert git(made.base, "log", "-1", "--format=%s") == "two\n" and git(made.base, "status", "--porcelain") == ""
    else:
        after = [tree(made.base), {path: it for path, it in tree(made.git).items() if b"objects/" not in path}]
        assert after == [before[0], {path: it for path, it in before[1].items() if b"objects/" not in path}]
    fsck(made.base)


def test_an_object_that_is_not_what_its_name_says_does_not_come(made: Elsewhere) -> None:
    place = made.layers[-1] / "git/upper/objects/12" / ("3" * 38)
    place.parent.mkdir(parents=True)
    place.write_bytes(b"x\x9c\x03\x00\x00\x00\x00\x01")
    assert "it is not the object that its name says" in whys(apply(made, red=True)).values()
    assert not (made.git / "objects/12" / ("3" * 38)).exists()


def test_a_ref_to_objects_that_do_not_come_stays(made: Elsewhere) -> None:
    inside(made, f"write('{made.git}/refs/heads/topic', '{'5' * 40}\\n')")
    assert whys(apply(made, red=True)).keys() >= {".git/refs/heads/topic"}
    assert git(made.base, "log", "-1", "--format=%s") == "one\n"


def test_a_file_of_the_workspace_that_the_host_changed_is_a_conflict(made: Elsewhere) -> None:
    inside(made, COMMIT)
    (made.base / "a").write_text("mine\n")
    with pytest.raises(Conflict), engine(made) as each:
        each.apply()
    assert git(made.base, "log", "-1", "--format=%s") == "one\n"


@pytest.mark.parametrize("kind", ["separate", "submodule"])
def test_a_repository_of_one_work_tree_that_is_elsewhere(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "w"
    repository = place / "store" if kind == "separate" else place / ".git/modules/base"

    def make() -> None:
        source = place / "source"
        source.mkdir()
        git(source, "init", "-q", "-b", "topic")
        (source / "a").write_text("one\n")
        git(source, "add", "-A")
        git(source, "commit", "-qm", "one")
        if kind == "separate":
            git(place, "clone", "-q", f"--separate-git-dir={repository}", "source", "base")
        else:
            git(place, "init", "-q")
            git(place, "-c", "protocol.file.allow=always", "submodule", "add", "-q", "./source", "base")

    made = Elsewhere(place, repository, "", make)
    made.begin()
    inside(made, COMMIT + "git('checkout', '-q', '-b', 'more')")
    report = apply(made)
    assert report.refused == () and report.arrived == ()
    assert git(made.base, "log", "--format=%s").split() == ["two", "one"]
    assert git(made.base, "symbolic-ref", "HEAD") == "refs/heads/more\n"
    assert git(made.base, "status", "--porcelain") == ""
    fsck(made.base)
    with engine(made) as each:
        assert each.undo() == []
    assert git(made.base, "symbolic-ref", "HEAD") == "refs/heads/topic\n"


def test_a_repository_on_another_file_system_is_refused(made: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    inside(made, COMMIT)
    assert syscalls.one_mount(os.open(made.base, os.O_PATH), os.open(made.git, os.O_PATH))
    assert not syscalls.one_mount(os.open(made.base, os.O_PATH), os.open("/proc/self", os.O_PATH))
    monkeypatch.setattr(syscalls, "one_mount", lambda *_fds: False)
    before = [tree(made.base), tree(made.git)]
    with pytest.raises(HostError, match="on another file system"), engine(made) as each:
        each.apply()
    assert [tree(made.base), tree(made.git)] == before


@pytest.mark.parametrize("seed", [1, 2])
def test_random_turns_in_all_work_trees_lose_nothing_and_move_no_other(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    made = linked(tmp_path / "w")
    others = [made.place / "main", made.place / "third"]
    tips = tmp_path / "tips"
    for _turn in range(4):
        acts = [("inside", some(chance)), ("host", some(chance))]
        chance.shuffle(acts)
        for who, script in acts:
            if who == "inside":
                inside(made, script)
            else:
                run_in(chance.choice([made.base, *others]), _GIT + script)
        heads = git(made.base, "for-each-ref", "--format=%(objectname)").split()
        inside(made, f"write({str(tips)!r}, git('for-each-ref', '--format=%(objectname)').stdout)")
        heads += tips.read_text().split()
        before = [(git(each, "status", "--porcelain", "-b"), git(each, "rev-parse", "HEAD")) for each in others]
        with engine(made) as each:
            each.apply(red=True, rest=True)
        fsck(made.base)
        assert before == [(git(each, "status", "--porcelain", "-b"), git(each, "rev-parse", "HEAD")) for each in others]
        git(made.base, "status")
        for commit in heads:
            git(made.base, "cat-file", "-e", commit)
