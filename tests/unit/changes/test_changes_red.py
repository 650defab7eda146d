"""changes.red: what outside programs would execute or obey is red, everyday work is not."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from copies import Workspace, engine

from membrane.changes import red
from membrane.changes.model import Change
from membrane.workspace import gitindex

GIT_ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.test",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.test",
    "LC_ALL": "C",
    "HOME": "/nonexistent",
}


def git(where: Path, *args: str) -> str:
    done = subprocess.run(
        ["git", "-c", "init.defaultBranch=main", *args],
        cwd=where,
        env=GIT_ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def made(tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path / "w")
    (workspace.base / "a.txt").write_text("one\n")
    (workspace.base / "tool").write_text("#!/bin/sh\n")
    (workspace.base / "tool").chmod(0o755)
    return workspace


def one(workspace: Workspace, path: str) -> Change:
    return next(change for change in workspace.changes() if change.path == path)


def test_everyday_work_is_not_red(made: Workspace) -> None:
    made.write("a.txt", "two\n")
    made.write("src/new.py", "x\n")
    made.write("tool", "#!/bin/sh\nexit\n", 0o755)  # it could be executed before
    (made.layer / "src/also.py").symlink_to("new.py")
    (made.layer / "up").symlink_to("./src/also.py")
    (made.layer / "src/back").symlink_to("../a.txt")
    made.write("node_modules/x/.vscode/settings.json", "{}")
    made.write("docs/b\xe9.md", "x")
    assert [change.path for change in made.changes() if change.red or change.never] == []


@pytest.mark.parametrize(
    "path",
    [
        ".envrc",
        "sub/.vscode/tasks.json",
        ".VSCode/tasks.json",
        ".github/hooks/x.json",
        ".mcp.json",
        ".git/hooks/pre-commit",
        ".git/info/attributes",
        ".git/unknown",
        "a/.git",
        ".membrane.yaml",
        "x/.hg/hgrc",
    ],
)
def test_protected_names_are_red(made: Workspace, path: str) -> None:
    (made.base / ".git").mkdir()
    made.write(path, "anything")
    assert one(made, path).red
    if path.startswith("."):
        control = path.replace(".", "x").replace("hgrc", "other")
        made.write(control, "anything")
        assert not one(made, control).red


def test_a_protected_name_that_is_deleted_is_red(made: Workspace) -> None:
    (made.base / ".envrc").write_text("x")
    made.delete(".envrc")
    made.delete("a.txt")
    assert one(made, ".envrc").red and not one(made, "a.txt").red


def test_a_rename_is_judged_by_both_names(made: Workspace) -> None:
    (made.base / ".envrc").write_text("x\n")
    made.delete(".envrc")
    made.write("plain", "x\n")
    change = one(made, "plain")
    assert change.kind == "renamed" and change.red


def test_new_rights_to_execute_are_red(made: Workspace) -> None:
    made.write("new.sh", "x", 0o755)
    made.write("a.txt", "one\n", 0o744)
    assert one(made, "new.sh").red == ("it can be executed",)
    assert one(made, "a.txt").red == ("it can be executed",)


def test_new_rights_to_write_for_everybody_are_red(made: Workspace) -> None:
    made.write("new", "x", 0o666)
    made.write("group", "x", 0o664)
    (made.base / "open").write_text("x")
    (made.base / "open").chmod(0o666)
    made.write("open", "y", 0o666)
    assert one(made, "new").red == ("everybody on this machine may write it",)
    assert not one(made, "group").red and not one(made, "open").red


@pytest.mark.parametrize("place", ["plain", ".git/modules/x"])
def test_a_repository_is_not_completed_around_what_git_would_obey(made: Workspace, place: str) -> None:
    """In two steps: first what git obeys, where git does not look yet; then the layout."""
    git(made.base, "init", "-q")
    made.write(f"{place}/config", "[core]\n\tfsmonitor = x\n")
    assert not one(made, f"{place}/config").red
    (made.base / place).mkdir(parents=True)
    (made.base / place / "config").write_text("[core]\n\tfsmonitor = x\n")
    (made.layer / place / "config").unlink()
    made.write(f"{place}/HEAD", "ref: refs/heads/main\n")
    (made.layer / place / "objects").mkdir()
    assert not one(made, f"{place}/HEAD").red
    (made.layer / place / "refs").mkdir()
    for name in ("HEAD", "objects", "refs"):
        assert "git repository" in one(made, f"{place}/{name}").red[0]
    made.write(f"{place}/config", "[core]\n\tbare = true\n")
    assert one(made, f"{place}/HEAD").red  # this one may stay behind, and the host's stays then
    (made.base / place / "config").write_text("[core]\n\tbare = true\n")
    assert not one(made, f"{place}/HEAD").red


def test_set_id_bits_are_red(made: Workspace) -> None:
    made.write("s", "x").chmod(0o4755)
    made.write("g", "x").chmod(0o2755)
    (made.layer / "d").mkdir()
    (made.layer / "d").chmod(0o2755)  # of a directory: who owns what is made in it, as many work trees have it
    assert len(one(made, "s").red) == 2 and len(one(made, "g").red) == 2 and not one(made, "d").red


@pytest.mark.parametrize("target", ["/etc/passwd", "../x", "a/../../x", "loop", "d/../../out"])
def test_links_that_lead_out_are_red(made: Workspace, target: str) -> None:
    (made.layer / "loop").symlink_to("loop")
    (made.layer / "x").symlink_to(target)
    assert one(made, "x").red == ("it leads out of the workspace",)


def test_links_through_links_of_the_copy_are_followed(made: Workspace) -> None:
    (made.layer / "in").mkdir()
    (made.layer / "in/up").symlink_to("..")
    (made.layer / "x").symlink_to("in/up/../a.txt")
    (made.layer / "y").symlink_to("in/up/a.txt")
    assert one(made, "x").red and not one(made, "y").red


def test_a_link_into_the_workspace_by_its_own_path_stays(made: Workspace) -> None:
    (made.layer / "x").symlink_to(made.base / "a.txt")
    (made.layer / "y").symlink_to(f"{made.base}-other/a.txt")
    assert not one(made, "x").red and one(made, "y").red


def test_links_to_git_and_to_hidden_names_are_red(made: Workspace) -> None:
    (made.base / ".git/hooks").mkdir(parents=True)
    (made.base / ".env").write_text("s")
    (made.layer / "x").symlink_to(".git/hooks")
    (made.layer / "y").symlink_to(".env")
    changes = {change.path: change for change in made.changes(lambda path: path == ".env")}
    assert changes["x"].red and changes["y"].red == ("it leads to a name that a rule hides",)


def test_devices_fifos_and_sockets_are_never_put_in_place(made: Workspace) -> None:
    os.mkfifo(made.layer / "fifo")
    where = os.open(made.layer, os.O_PATH)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"/proc/self/fd/{where}/socket")
    listener.close()
    os.close(where)
    assert one(made, "fifo").never and one(made, "socket").never


@pytest.mark.parametrize(
    "name", ["a\x1b[2Jb", "a\u202eb", "a\u200bb", " a", "a ", "a\nb", "a\u00a0b", "a\u3164", "a\u2800"]
)
def test_names_that_cannot_be_seen_are_red(made: Workspace, name: str) -> None:
    made.write(name, "x")
    assert one(made, name).red == ("its name holds characters that cannot be seen",)


def test_names_that_are_one_elsewhere_are_red(made: Workspace) -> None:
    made.write("A.TXT", "x")
    made.write("e\u0301", "x")
    made.write("\xe9", "x")
    assert one(made, "A.TXT").red and one(made, "\xe9").red and one(made, "e\u0301").red
    made.delete("a.txt")
    assert not one(made, "A.TXT").red


def test_programs_that_the_hosts_configuration_names_are_red(made: Workspace) -> None:
    git(made.base, "init", "-q")
    git(made.base, "config", "core.hooksPath", "scripts/hooks")
    git(made.base, "config", "filter.x.clean", "./bin/clean --fast")
    (made.base / "bin").mkdir()
    (made.base / "bin/clean").write_text("x")
    made.write("scripts/hooks/pre-commit", "x")
    made.write("scripts/other", "x")
    made.write("bin/clean", "y")
    assert one(made, "scripts/hooks/pre-commit").red and one(made, "bin/clean").red
    assert not one(made, "scripts/other").red


def test_a_repository_within_takes_nothing_from_what_the_outer_one_names(made: Workspace) -> None:
    git(made.base, "init", "-q")
    git(made.base, "config", "core.hooksPath", "scripts/hooks")
    hook = made.base / "scripts/hooks/pre-commit"
    hook.parent.mkdir(parents=True)
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    git(made.base, "init", "-q", "scripts")  # as a first set of changes may have brought it
    made.write("scripts/hooks/pre-commit", "#!/bin/sh\ntouch ran\n", 0o755)
    made.write("scripts/other", "x")
    assert one(made, "scripts/hooks/pre-commit").red and not one(made, "scripts/other").red
    with engine(made) as each:
        assert [change.path for change in each.apply().applied] == ["scripts/other"]
        each.apply(red=True)  # the control: with it, git outside runs what the command wrote
    git(made.base, "commit", "-q", "--allow-empty", "-m", "x")
    assert (made.base / "ran").exists()


def test_a_sticky_bit_excuses_a_directory_only(made: Workspace) -> None:
    made.write("f", "x").chmod(0o1666)
    made.write("tool", "#!/bin/sh\nx\n").chmod(0o1777)
    (made.layer / "d").mkdir()
    (made.layer / "d").chmod(0o1777)
    assert one(made, "f").red and one(made, "tool").red and not one(made, "d").red


def test_a_link_is_judged_by_what_stays_on_the_host_as_well(made: Workspace) -> None:
    """The directory cannot be replaced, since a hidden name is in it: with it the link would lead out at once."""
    (made.base / "a").mkdir()
    (made.base / "a/.env").write_text("s")
    (made.base / "x/y/z").mkdir(parents=True)
    (made.place / "secret").write_text("of the host")
    (made.layer / "a").symlink_to("x/y/z")
    (made.layer / "l").symlink_to("a/../../secret")
    (made.layer / "m").symlink_to("x/y")
    hidden = lambda path: path == "a/.env"  # noqa: E731
    with engine(made, hidden=hidden) as each:
        assert [change.path for change in each.apply().applied] == ["m"]
        each.apply(red=True)
    assert (made.base / "l").read_text() == "of the host"  # the control


def test_a_link_that_a_second_set_can_turn_out_is_red(made: Workspace) -> None:
    (made.base / "a/b/c").mkdir(parents=True)
    (made.base / "q/c").mkdir(parents=True)
    (made.place / "secret").write_text("of the host")
    (made.layer / "l").symlink_to("a/b/c/../../../secret")
    (made.layer / "m").symlink_to("a/b/secret")
    assert "after a name" in one(made, "l").red[0] and not one(made, "m").red
    # The control: what a second set, in which nothing is red, would have made of it.
    (made.base / "l").symlink_to("a/b/c/../../../secret")
    (made.base / "a/b/c").rmdir()
    (made.base / "a/b").rmdir()
    (made.base / "a/b").symlink_to("../q")
    assert (made.base / "l").read_text() == "of the host"


# ---------------------------------------------------------------- git


@pytest.fixture
def repository(made: Workspace) -> Workspace:
    git(made.base, "init", "-q")
    git(made.base, "add", "-A")
    git(made.base, "commit", "-qm", "one")
    return made


@pytest.mark.needs_kernel("overlayfs in a user namespace")
def test_what_git_does_in_everyday_work_is_not_red(repository: Workspace) -> None:
    environment = {**GIT_ENVIRONMENT, "HOME": "/nonexistent"}
    repository.run(
        f"""
import os, subprocess
os.environ.update({environment!r})
def git(*args, where="."):
    subprocess.run(["git", *args], check=True, cwd=where)
open("new", "w").write("n")
git("add", "-A"); git("commit", "-qm", "two")
git("switch", "-qc", "side"); git("config", "user.name", "me")
git("config", "branch.side.description", "x")
git("tag", "v1"); git("gc", "-q"); git("worktree", "add", "-q", "tree")
os.mkdir("made"); git("init", "-q", where="made")
open("new", "w").write("m"); git("stash", "-q")
"""
    )
    found = repository.changes()
    assert [(change.path, change.red) for change in found if change.red] == [("tree/tool", ("it can be executed",))]
    assert any(change.path == "made/.git/config" for change in found)


@pytest.mark.parametrize(
    "setting",
    ["[core]\n\tfsmonitor = x\n", "[include]\n\tpath = x\n", "[alias]\n\tst = !x\n", '[filter "x"]\n\tclean = y\n'],
)
def test_settings_that_run_something_are_red(repository: Workspace, setting: str) -> None:
    old = (repository.base / ".git/config").read_text()
    repository.write(".git/config", old + setting)
    assert one(repository, ".git/config").red
    repository.write(".git/config", old + "[user]\n\tname = x\n")
    assert not one(repository, ".git/config").red


def test_a_configuration_beside_it_overrides_nothing_that_has_to_stay(repository: Workspace) -> None:
    path = ".git/config.worktree"
    repository.write(path, '[remote "o"]\n\tmirror = true\n')
    assert one(repository, path).red
    repository.write(path, "[core]\n\tsparseCheckout = true\n")
    assert not one(repository, path).red, "the control"


@pytest.mark.parametrize("name", ["rust-toolchain", "a/rust-toolchain.toml"])
def test_a_toolchain_of_the_command_is_red(repository: Workspace, name: str) -> None:
    repository.write(name, '[toolchain]\npath = "x"\n')
    assert one(repository, name).red
    repository.write(name, "stable\n")
    assert not one(repository, name).red, "the control"


def test_an_index_that_leads_out_is_red(repository: Workspace) -> None:
    data = (repository.base / ".git/index").read_bytes()
    assert b"a.txt" in data
    repository.write(".git/index", data.replace(b"a.txt", b".git/"))
    assert one(repository, ".git/index").red


def test_a_todo_with_exec_is_red(repository: Workspace) -> None:
    repository.write(".git/rebase-merge/git-rebase-todo", "exec x\n")
    assert one(repository, ".git/rebase-merge/git-rebase-todo").red
    repository.write(".git/rebase-merge/git-rebase-todo", "noop\n")
    assert not one(repository, ".git/rebase-merge/git-rebase-todo").red


def test_a_submodule_file_that_runs_something_is_red(made: Workspace) -> None:
    made.write(".gitmodules", '[submodule "x"]\n\tpath = x\n\turl = https://h.test/x\n')
    assert not one(made, ".gitmodules").red
    made.write(".gitmodules", '[submodule "x"]\n\tpath = x\n\turl = ext::sh -c x\n')
    assert one(made, ".gitmodules").red


def test_a_directory_that_becomes_a_repository_by_its_layout_has_red_hooks(made: Workspace) -> None:
    made.write("bare/hooks/post-receive", "x")
    assert not one(made, "bare/hooks/post-receive").red
    made.write("bare/HEAD", "ref: refs/heads/main\n")
    (made.layer / "bare/objects").mkdir()
    (made.layer / "bare/refs").mkdir()
    assert one(made, "bare/hooks/post-receive").red


def test_what_a_repository_that_is_not_on_the_way_names_is_red(made: Workspace) -> None:
    """The configuration of ``sub`` leads out of it, to what another directory holds."""
    for name in ("init", "bare.git"):
        git(made.base, "init", "-q", *(("--bare",) if name == "bare.git" else ()), name)
    sub = made.base / "init"
    git(sub, "config", "core.hooksPath", "../tools/hooks")
    git(made.base / "bare.git", "config", "core.hooksPath", "../elsewhere")
    (made.base / "watch").write_text("#!/bin/sh\n")
    (made.base / "watch").chmod(0o755)
    git(sub, "config", "core.fsmonitor", "../watch")
    hook = made.base / "tools/hooks/pre-commit"
    hook.parent.mkdir(parents=True)
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    made.write("tools/hooks/pre-commit", f"#!/bin/sh\ntouch {made.base}/ran\n", 0o755)
    made.write("watch", "#!/bin/sh\nx\n", 0o755)
    made.write("elsewhere/post-receive", "x")
    made.write("tools/other", "x")
    for path in ("tools/hooks/pre-commit", "watch", "elsewhere/post-receive"):
        assert one(made, path).red, path
    assert not one(made, "tools/other").red
    with engine(made) as each:
        assert [change.path for change in each.apply().applied] == ["tools/other"]
        each.apply(red=True)  # the control: with it, git outside runs what the command wrote
    git(sub, "-c", "core.fsmonitor=false", "commit", "-q", "--allow-empty", "-m", "x")
    assert (made.base / "ran").exists()


def test_a_tree_with_too_many_directories_is_red_where_git_may_obey(
    made: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.write("plain", "x")
    assert not one(made, "plain").red
    monkeypatch.setattr(red, "MOST_DIRECTORIES", 1)
    (made.base / "d").mkdir()
    assert "too large" in one(made, "plain").red[0]


def test_repositories_are_found_wherever_they_are(made: Workspace) -> None:
    git(made.base, "init", "-q")
    git(made.base, "init", "-q", "--bare", "a/b/c.git")
    module = made.base / ".git/modules/x/modules/y"
    for place in (module, module.parent.parent):
        (place / "objects").mkdir(parents=True)
        (place / "refs").mkdir()
        (place / "HEAD").write_text("ref: refs/heads/x\n")
    (made.base / "link").symlink_to("a/b")
    fd = os.open(made.base, os.O_RDONLY)
    try:
        found = red.surroundings(fd, 0)
    finally:
        os.close(fd)
    assert found is not None
    assert sorted(found[0]) == [".git", ".git/modules/x", ".git/modules/x/modules/y", "a/b/c.git"]


@pytest.mark.parametrize("first", ["objects", "objects/info", "objects/info/alternates"])
def test_a_repository_is_not_made_whose_objects_are_elsewhere(made: Workspace, first: str) -> None:
    """By the layout of a bare one, whose ``objects`` leads to a directory with alternates."""
    git(made.base, "init", "-q", "secret")
    (made.base / "secret/f").write_text("SECRET\n")
    git(made.base / "secret", "add", "f")
    git(made.base / "secret", "commit", "-qm", "x")
    place = made.layer / "bare.git"
    (place / "refs").mkdir(parents=True)
    made.write("bare.git/HEAD", "ref: refs/heads/main\n")
    store = made.layer / "x"
    store.mkdir()
    target = f"{made.base}/secret/.git/objects\n"
    if first == "objects":
        (place / "objects").symlink_to("../x")
        (store / "info").mkdir()
        made.write("x/info/alternates", target)
    elif first == "objects/info":
        (place / "objects").mkdir()
        (place / "objects/info").symlink_to("../../x")
        made.write("x/alternates", target)
    else:
        made.write("bare.git/objects/info/alternates", target)
    with engine(made) as each:
        changes = {change.path: change for change in each.changes()}
        assert changes["bare.git/HEAD"].red and "objects elsewhere" in changes["bare.git/HEAD"].red[0]
        assert any(path.endswith("alternates") and change.never for path, change in changes.items())
        each.apply(red=True)
    assert not [path for path in made.base.rglob("*alternates") if "secret" not in path.parts]
    # The control: with the list, git outside reads objects of the other repository there.
    secret = git(made.base / "secret", "rev-parse", "HEAD").strip()
    assert subprocess.run(["git", "-C", made.base / "bare.git", "cat-file", "-e", secret], check=False).returncode
    list_of_host = made.base / ("x/alternates" if first == "objects/info" else "x/info/alternates")
    if first == "objects/info/alternates":
        list_of_host = made.base / "bare.git/objects/info/alternates"
    list_of_host.parent.mkdir(parents=True, exist_ok=True)
    list_of_host.write_text(target)
    git(made.base / "bare.git", "cat-file", "-e", secret)


def test_links_are_followed_for_a_bounded_time(made: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of many links has many others on its way; who has not been judged in time is red."""
    for number in range(30):
        (made.layer / f"l{number}").symlink_to("/".join(["d"] * 400) if number else "d")
    (made.layer / "d").mkdir()
    made.write("plain", "x")
    clock = iter(range(10**9))
    monkeypatch.setattr(red, "time", SimpleNamespace(monotonic=lambda: next(clock) / 100))
    with engine(made) as each:
        found = {change.path: change for change in each.changes()}
        report = each.apply()
    late = [path for path, change in found.items() if any("seconds for all links" in why for why in change.red)]
    assert "l0" not in late and len(late) >= 20 and not found["plain"].red
    assert {change.path for change in report.applied} >= {"plain", "l0", "d"}
    assert not {change.path for change in report.applied} & set(late)


@pytest.mark.parametrize("kind", ["own", "linked"])
def test_what_git_obeys_in_a_work_tree_that_the_set_makes_is_red(
    made: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    """A relative ``core.hooksPath``, of the caller or of the repository, holds in each work tree, also in a new one."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)
    setting = "[core]\n\thooksPath = hooks\n"
    hook = made.base / "d/hooks/pre-commit"
    hook.parent.mkdir(parents=True)
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    git(made.base, "init", "-q")
    git(made.base, "commit", "-q", "--allow-empty", "-m", "x")
    if kind == "own":
        (home / ".gitconfig").write_text(setting)
        for name in ("HEAD", "config", "objects/x", "refs/x"):
            made.write(f"d/.git/{name}", "ref: refs/heads/main\n" if name == "HEAD" else "")
    else:
        git(made.base, "config", "core.hooksPath", "hooks")
        made.write("d/.git", f"gitdir: {made.base}/.git/worktrees/d\n")
    made.write("d/hooks/pre-commit", f"#!/bin/sh\ntouch {made.base}/ran\n", 0o755)
    made.write("e/hooks/other", "x")
    assert "in this work tree" in one(made, "d/hooks/pre-commit").red[0]
    assert not one(made, "e/hooks/other").red
    # The control: git outside runs what stands there once the directory is a work tree.
    hook.write_bytes((made.layer / "d/hooks/pre-commit").read_bytes())
    environment = {**GIT_ENVIRONMENT, "GIT_CONFIG_GLOBAL": str(home / ".gitconfig")}
    where = made.base / "d"
    if kind == "own":
        subprocess.run(["git", "init", "-q"], cwd=where, env=environment, check=True)
    else:
        where = made.base / "w"
        git(made.base, "worktree", "add", "-q", "w")
        shutil.copytree(made.base / "d/hooks", where / "hooks")
    commit = ["git", "commit", "-q", "--allow-empty", "-m", "x"]
    subprocess.run(commit, cwd=where, env=environment, check=False)
    assert (made.base / "ran").exists()


# ---------------------------------------------------------------- where a part of the changes stays behind


@pytest.mark.parametrize("way", ["objects", "refs", "HEAD"])
def test_what_git_obeys_stays_red_when_the_copy_is_no_repository_any_more(made: Workspace, way: str) -> None:
    """The host's is one all the same: objects and refs are never taken away."""
    git(made.base, "init", "-q", "--bare", "store")
    made.run(f"""
import os, shutil
shutil.rmtree("store/{way}") if os.path.isdir("store/{way}") else os.unlink("store/{way}")
open("store/config", "a").write("[alias]\\n\\tst = !touch ran\\n")
open("store/hooks/post-update", "w").write("#!/bin/sh\\n")
""")
    with engine(made) as each:
        applied = {change.path for change in each.apply(rest=True).applied}
    assert not applied & {"store/config", "store/hooks/post-update"}
    assert "alias" not in (made.base / "store/config").read_text()
    if way == "HEAD":
        return
    # The control: git outside obeys such a setting there.
    with (made.base / "store/config").open("a") as file:
        file.write("[alias]\n\tst = !touch ran\n")
    git(made.base / "store", "st")
    assert (made.base / "store/ran").exists()


def test_a_repository_is_not_completed_around_what_an_earlier_set_left(made: Workspace) -> None:
    """A benign file that cannot come, as it can be executed, is no answer to what is there."""
    (made.base / "x").mkdir()
    (made.base / "x/config").write_text("[alias]\n\tst = !touch ran\n")
    for path in ("x/objects/keep", "x/refs/keep"):
        made.write(path, "")
    made.write("x/config", "[core]\n\tbare = true\n", 0o755)
    made.write("x/HEAD", "ref: refs/heads/main\n")
    found = {change.path: change.red for change in made.changes()}
    assert found["x/config"] and "in its config" in found["x/HEAD"][0]
    made.write("x/config", "", 0o644)
    (made.base / "x/config").unlink()
    found = {change.path: change.red for change in made.changes()}
    assert not found["x/HEAD"]  # the control: there is nothing to obey


def test_an_index_is_read_as_the_host_reads_it(made: Workspace) -> None:
    """The copy's configuration, which does not come, says another size of names."""
    git(made.base, "init", "-q")
    (made.base / "a").write_text("x")
    git(made.base, "add", "a")
    data = (made.base / ".git/index").read_bytes().replace(b"\0\1a\0", b"\0\1/\0")
    made.write(".git/index", data)
    assert one(made, ".git/index").red
    text = (made.base / ".git/config").read_text().replace("formatversion = 0", "formatversion = 1")
    made.write(".git/config", f"{text}[extensions]\n\tobjectFormat = sha256\n")
    assert one(made, ".git/index").red


def test_what_a_link_of_a_protected_name_leads_to_is_red(made: Workspace) -> None:
    for name in ("editor", "agent", "scripts"):
        (made.base / name).mkdir()
    git(made.base, "init", "-q")
    (made.base / ".vscode").symlink_to("editor")
    (made.base / ".envrc").symlink_to("env.sh")  # which is not there yet
    (made.base / ".claude").mkdir()
    (made.base / ".claude/settings.json").symlink_to("../agent/settings.json")
    (made.base / ".git/hooks/pre-commit").symlink_to("../../scripts/pre-commit")
    (made.base / "plain").symlink_to("scripts")
    obeyed = ("editor/tasks.json", "env.sh", "agent/settings.json", "scripts/pre-commit")
    for path in obeyed:
        made.write(path, "x")
    for path in ("scripts/other", "agent/other"):
        made.write(path, "x")
    with engine(made) as each:
        assert {change.path for change in each.apply().applied} == {"scripts/other", "agent/other"}
        each.apply(red=True)
    assert (made.base / ".vscode/tasks.json").read_text() == "x"  # the control: it is what the name leads to


def test_links_among_the_data_of_git_are_red(made: Workspace) -> None:
    git(made.base, "init", "-q")
    git(made.base, "init", "-q", "--bare", "store")
    (made.base / "target").write_text("x")
    for path, target in ((".git/lfs/objects/l", "../../../target"), ("store/logs/HEAD", "../../target")):
        place = made.layer / path
        place.parent.mkdir(parents=True)
        place.symlink_to(target)
        assert "link in a git directory" in one(made, path).red[0], path
    (made.layer / "link").symlink_to("target")
    assert not one(made, "link").red  # the control


def access_list(*rows: tuple[int, int, int], mask: int = 6) -> bytes:
    """The owner may read and write, others read; ``rows``: (tag, rights, id)."""
    nobody = 0xFFFFFFFF
    entries = [(1, 6, nobody), *rows, (4, 4, nobody), (16, mask, nobody), (32, 4, nobody)]
    return b"\2\0\0\0" + b"".join(struct.pack("<HHI", *row) for row in sorted(entries, key=lambda row: row[0]))


def test_others_that_an_access_list_lets_write_are_red(made: Workspace) -> None:
    other = os.getuid() + 1
    rows = {
        "reads": (access_list((2, 4, other)), False),
        "writes": (access_list((2, 6, other)), True),
        "group": (access_list((8, 7, other)), True),
        "masked": (access_list((2, 6, other), mask=4), False),
        "own": (access_list((2, 6, os.getuid()), (8, 6, os.getgid())), False),
    }
    for name, (value, _red) in rows.items():
        os.setxattr(made.write(name, "x"), red.ACCESS_LIST, value)
    os.setxattr(made.write("a.txt", "one\n"), red.ACCESS_LIST, access_list((2, 6, other)))
    found = {change.path: change.red for change in made.changes()}
    for name, (_value, is_red) in rows.items():
        assert ("its access list lets others on this machine write it" in found[name]) == is_red, name
    assert found["a.txt"]
    os.setxattr(made.base / "a.txt", red.ACCESS_LIST, access_list((2, 6, other)))
    made.write("a.txt", "two\n")
    assert not one(made, "a.txt").red  # who could write it before may
    os.setxattr(made.base, "system.posix_acl_default", access_list((2, 7, other)))
    assert not one(made, "writes").red and one(made, "group").red  # as any file that is made there
    with engine(made) as each:
        assert "writes" in {change.path for change in each.apply().applied}
    assert (
        os.getxattr(made.base / "writes", red.ACCESS_LIST) == rows["writes"][0]
    )  # the control: it comes with the file


def test_a_damaged_access_list_is_no_list() -> None:
    good = access_list((2, 6, 5))
    assert red.writers(good) == {(2, 5)} and red.writers(b"") == set()
    for bad in (good[:-1], b"\3" + good[1:], b"\2", good + b"\0" * 4):
        assert red.writers(bad) is None


def test_attributes_of_a_directory_are_not_said_to_be_put_in_place(made: Workspace) -> None:
    (made.base / "d").mkdir()
    (made.layer / "d").mkdir()
    os.setxattr(made.layer / "d", "user.x", b"1")
    with engine(made) as each:
        report = each.apply()
    assert [change.path for change, _why in report.refused] == ["d"] and not report.applied
    assert os.listxattr(made.base / "d") == []


@pytest.mark.parametrize("version", ["2", "4"])
@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_an_index_by_which_git_hides_a_change_is_red(
    repository: Workspace, monkeypatch: pytest.MonkeyPatch, flag: str, version: str
) -> None:
    base = repository.base
    (base / "b").write_text("x")
    git(base, "add", "-A")
    git(base, "commit", "-qm", "more")
    repository.run(f"""
import os, subprocess
os.environ.update({GIT_ENVIRONMENT!r})
for args in (("--index-version", {version!r}), ({flag!r}, "b")):
    subprocess.run(["git", "update-index", *args], check=True)
open("b", "w").write("changed")
""")
    found = one(repository, ".git/index")
    assert found.red and "when b is changed" in found.red[0]
    shutil.copy(repository.layer / ".git/index", base / ".git/index")
    (base / "b").write_text("changed")
    assert git(base, "status", "--porcelain") == ""  # the control: git outside does not say it
    # Marks that are there are the person's, and files that are not there are those of a sparse checkout.
    assert not [change for change in repository.changes() if change.path == ".git/index" and change.red]
    git(base, "update-index", flag.replace("--", "--no-"), "b")
    repository.run("import os; os.unlink('b')")
    assert not one(repository, ".git/index").red
    monkeypatch.setattr(red, "MOST_MARKED", 0)
    assert one(repository, ".git/index").red


def test_marks_of_a_split_index_count_as_of_some_file() -> None:
    entry = bytes(24) + b"\0\0\x81\xa4" + bytes(12) + bytes(20)
    split = entry + b"\x80\0" + b"\0\0"
    assert gitindex.unwatched(b"DIRC\0\0\0\2\0\0\0\1" + split + bytes(20)) == {b""}
    plain = entry + b"\0\1b" + bytes(7)
    assert gitindex.unwatched(b"DIRC\0\0\0\2\0\0\0\1" + plain + bytes(20)) == frozenset()
