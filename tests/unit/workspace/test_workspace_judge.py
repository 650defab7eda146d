"""workspace.judge: what git writes by itself stays, what would execute on the host goes."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from membrane.workspace import aside, below
from membrane.workspace import judge as judge_module
from membrane.workspace.aside import quarantine
from membrane.workspace.judge import judge
from membrane.workspace.scan import Index, rescan, scan

GIT_ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.test",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.test",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}


def git(where: Path, *args: str, check: bool = True) -> str:
    command = ["git", "-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main", *args]
    environment = {**GIT_ENVIRONMENT, "HOME": str(where)}
    done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, check=False)
    if check:
        assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    place = tmp_path / "origin"
    place.mkdir()
    git(place, "init", "-q")
    (place / "file").write_text("1\n")
    git(place, "add", "file")
    git(place, "commit", "-qm", "one")
    return place


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    place = tmp_path / "ws"
    place.mkdir()
    git(place, "init", "-q")
    (place / "file").write_text("1\n")
    git(place, "add", "file")
    git(place, "commit", "-qm", "one")
    return place


@pytest.fixture
def root_fd(workspace: Path) -> Iterator[int]:
    fd = os.open(workspace, os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.fixture
def quarantine_fd(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "quarantine").mkdir()
    fd = os.open(tmp_path / "quarantine", os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def objections(index: Index, root_fd: int) -> dict[str, str]:
    """What the end of a session would take away, and why."""
    named = {hit.path: judge(root_fd, hit.path) for hit in rescan(index).hits if hit.effect == "protect"}
    return {path: why for path, why in named.items() if why}


# ---------------------------------------------------------------- everyday git


def _clone(ws: Path, origin: Path) -> None:
    git(ws, "clone", "-q", str(origin), "deep/clone")
    git(ws / "deep" / "clone", "config", "user.email", "b@example.test")
    git(ws / "deep" / "clone", "checkout", "-q", "-b", "work")
    git(ws / "deep" / "clone", "push", "-q", "-u", "origin", "work")


def _shallow_partial_sparse(ws: Path, origin: Path) -> None:
    git(origin, "config", "uploadpack.allowFilter", "true")
    git(ws, "clone", "-q", "--depth=1", "--filter=blob:none", "--sparse", f"file://{origin}", "part")
    git(ws / "part", "sparse-checkout", "set", "a", "b")


def _init(ws: Path, origin: Path) -> None:
    git(ws, "init", "-q", "fresh")
    git(ws, "init", "-q", "--object-format=sha256", "fresh256")
    git(ws / "fresh", "remote", "add", "origin", "https://example.test/x.git")
    git(ws / "fresh", "remote", "add", "ssh", "git@example.test:x/y.git")
    git(ws / "fresh", "commit", "-q", "--allow-empty", "-m", "x")


def _bare(ws: Path, origin: Path) -> None:
    git(ws, "clone", "-q", "--bare", str(origin), "store.git")
    git(ws, "clone", "-q", "--mirror", str(origin), "mirror.git")
    git(ws / "store.git", "worktree", "add", "-q", "../from-bare", "main")


def _worktree(ws: Path, origin: Path) -> None:
    git(ws, "worktree", "add", "-q", "-b", "side", "trees/side")
    git(ws / "trees" / "side", "commit", "-q", "--allow-empty", "-m", "x")


def _submodule(ws: Path, origin: Path) -> None:
    git(ws, "init", "-q", "super")
    git(ws / "super", "submodule", "add", "-q", str(origin), "libs/sub")
    git(ws / "super", "submodule", "add", "-q", "--name", "hooks", str(origin), "config")
    git(ws / "super", "commit", "-qm", "sub")
    git(ws, "clone", "-q", "--recurse-submodules", "super", "super2")
    git(ws / "super2", "submodule", "update", "--init", "--remote", "-q")


def _separate(ws: Path, origin: Path) -> None:
    git(ws, "init", "-q", "--separate-git-dir", str(ws / "store"), "apart")


def _rebase(ws: Path, origin: Path) -> None:
    for text in ("2", "3"):
        (ws / "file").write_text(text)
        git(ws, "commit", "-qam", text)
    git(ws, "checkout", "-q", "-b", "other", "HEAD~1")
    (ws / "file").write_text("4")
    git(ws, "commit", "-qam", "4")
    git(ws, "rebase", "main", check=False)
    assert (ws / ".git" / "rebase-merge").is_dir()


@pytest.mark.needs_tool("git")
@pytest.mark.parametrize(
    "work", [_clone, _shallow_partial_sparse, _init, _bare, _worktree, _submodule, _separate, _rebase]
)
def test_what_git_writes_for_new_repositories_is_benign(
    workspace: Path, origin: Path, root_fd: int, work: Callable[[Path, Path], None]
) -> None:
    index = scan(str(workspace), ()).index
    work(workspace, origin)
    assert rescan(index).hits  # positive control: there is something to judge
    assert objections(index, root_fd) == {}


# ---------------------------------------------------------------- attacks, each proven by git itself


def _arm(config: Path, marker: Path) -> None:
    with config.open("a") as file:
        file.write(f"[core]\n\tfsmonitor = touch {marker}; false\n")


def _evil_copy(ws: Path, marker: Path, name: str = "evil") -> Path:
    shutil.copytree(ws / ".git", ws / name)
    _arm(ws / name / "config", marker)
    return ws / name


def _nested(ws: Path, marker: Path) -> Path:
    git(ws, "init", "-q", "nested")
    _arm(ws / "nested" / ".git" / "config", marker)
    return ws / "nested"


def _commondir_of_the_main_repository(ws: Path, marker: Path) -> Path:
    _evil_copy(ws, marker)
    (ws / ".git" / "commondir").write_text("../evil\n")
    return ws


def _commondir_of_a_new_worktree(ws: Path, marker: Path) -> Path:
    git(ws, "worktree", "add", "-q", "-b", "side", "side")
    _evil_copy(ws, marker)
    (ws / ".git" / "worktrees" / "side" / "commondir").write_text(str(ws / "evil"))
    return ws / "side"


def _pointer_file(ws: Path, marker: Path) -> Path:
    (ws / "sub").mkdir()
    _evil_copy(ws, marker)
    (ws / "sub" / ".git").write_text("gitdir: ../evil\n")
    return ws / "sub"


def _pointer_into_git_data(ws: Path, marker: Path) -> Path:
    """The scan does not look into .git/objects, so nothing may point there."""
    (ws / "sub").mkdir()
    shutil.copytree(ws / ".git", ws / "evil")
    _arm(ws / "evil" / "config", marker)
    (ws / "evil").rename(ws / ".git" / "objects" / "evil")
    (ws / "sub" / ".git").write_text("gitdir: ../.git/objects/evil\n")
    return ws / "sub"


def _linked_git(ws: Path, marker: Path) -> Path:
    (ws / "sub").mkdir()
    _evil_copy(ws, marker)
    os.symlink("../evil", ws / "sub" / ".git")
    return ws / "sub"


def _bare_layout(ws: Path, marker: Path) -> Path:
    """CVE-2026-45033: a directory that looks like a bare repository with a work tree."""
    evil = _evil_copy(ws, marker)
    git(evil, "config", "core.worktree", "..")
    return evil


def _submodule_module(ws: Path, marker: Path) -> Path:
    (ws / "sub").mkdir()
    evil = _evil_copy(ws, marker)
    (ws / ".git" / "modules").mkdir()
    evil.rename(ws / ".git" / "modules" / "sub")
    (ws / "sub" / ".git").write_text("gitdir: ../.git/modules/sub\n")
    return ws / "sub"


def _worktree_configuration(ws: Path, marker: Path) -> Path:
    git(ws, "init", "-q", "nested")
    git(ws / "nested", "config", "extensions.worktreeConfig", "true")
    _arm(ws / "nested" / ".git" / "config.worktree", marker)
    return ws / "nested"


def _included(ws: Path, marker: Path) -> Path:
    git(ws, "init", "-q", "nested")
    _arm(ws / "harmless", marker)
    git(ws / "nested", "config", "include.path", "../../harmless")
    return ws / "nested"


ATTACKS = [
    _nested,
    _commondir_of_the_main_repository,
    _commondir_of_a_new_worktree,
    _pointer_file,
    _pointer_into_git_data,
    _linked_git,
    _bare_layout,
    _submodule_module,
    _worktree_configuration,
    _included,
]


@pytest.mark.needs_tool("git")
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_that_executes_on_the_host_is_taken_away(
    workspace: Path, tmp_path: Path, root_fd: int, quarantine_fd: int, attack: Callable[[Path, Path], Path]
) -> None:
    index = scan(str(workspace), ()).index
    marker = tmp_path / "executed"
    victim = attack(workspace, marker)

    git(victim, "status", "--short", check=False)
    assert marker.exists(), "positive control: the attack works"
    marker.unlink()

    assert objections(index, root_fd)
    for _ in range(2):  # a pointer goes in the second round, when what it points to is no repository any more
        for path in objections(index, root_fd):
            quarantine(root_fd, path, quarantine_fd)
    git(victim, "status", "--short", check=False)
    git(workspace, "status", "--short", check=False)
    assert not marker.exists()
    assert objections(index, root_fd) == {}


@pytest.mark.needs_tool("git")
def test_a_new_hook_is_taken_away_and_samples_stay(
    workspace: Path, tmp_path: Path, root_fd: int, quarantine_fd: int
) -> None:
    index = scan(str(workspace), ()).index
    git(workspace, "init", "-q", "nested")
    hooks = workspace / "nested" / ".git" / "hooks"
    assert list(hooks.glob("*.sample"))
    assert objections(index, root_fd) == {}
    hook = hooks / "post-commit"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/executed\n")
    hook.chmod(0o755)
    git(workspace / "nested", "commit", "-q", "--allow-empty", "-m", "x")
    assert (tmp_path / "executed").exists()
    assert list(objections(index, root_fd)) == ["nested/.git/hooks"]
    quarantine(root_fd, "nested/.git/hooks", quarantine_fd)
    assert not hook.exists()


@pytest.mark.needs_tool("git")
@pytest.mark.parametrize("entry", ["link.sample", "directory.sample/"])
def test_only_regular_samples_are_benign(workspace: Path, root_fd: int, entry: str) -> None:
    hooks = workspace / "n" / ".git" / "hooks"
    hooks.mkdir(parents=True)
    if entry.endswith("/"):
        (hooks / entry).mkdir()
    else:
        os.symlink("/bin/true", hooks / entry)
    assert judge(root_fd, "n/.git/hooks")


@pytest.mark.needs_tool("git")
def test_a_configuration_beside_another_overrides_nothing_that_has_to_stay(workspace: Path, root_fd: int) -> None:
    """``git push`` outside would delete branches, ``git fetch`` overwrite them; the control is one that is new."""
    git(workspace, "init", "-q", "n")
    for text in (
        '[remote "o"]\n\tmirror = true\n',
        '[remote "o"]\n\tfetch = +refs/*:refs/*\n',
        "[commit]\n\tgpgSign = no\n",
    ):
        for name, refused in (("config.worktree", True), ("worktrees/w/config.worktree", True), ("config", False)):
            path = workspace / "n/.git" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            assert bool(judge(root_fd, f"n/.git/{name}")) is refused, (text, name)
    for name in ("config.worktree", "worktrees/w/config.worktree"):
        (workspace / "n/.git" / name).write_text("[core]\n\tsparseCheckout = true\n")
        assert judge(root_fd, f"n/.git/{name}") == ""


def test_a_directory_of_the_host_is_not_moved_because_a_layout_was_planted(workspace: Path, root_fd: int) -> None:
    """A React project has hooks/ and config/: planting HEAD, objects and refs must not make us move them."""
    app = workspace / "app"
    for name in ("hooks", "config"):
        (app / name).mkdir(parents=True)
        (app / name / "useThing.ts").write_text("x")
    index = scan(str(workspace), ()).index
    (app / "HEAD").write_text("ref: refs/heads/main\n")
    (app / "objects").mkdir()
    (app / "refs").mkdir()
    assert list(objections(index, root_fd)) == ["app/HEAD"]


@pytest.mark.needs_tool("git")
def test_a_rebase_that_would_execute_is_taken_away(workspace: Path, root_fd: int) -> None:
    index = scan(str(workspace), ()).index
    todo = workspace / ".git" / "rebase-merge" / "git-rebase-todo"
    todo.parent.mkdir()
    todo.write_text("pick 1234567 execute everything\n")
    assert objections(index, root_fd) == {}
    for line in ("exec touch /tmp/x", "x touch /tmp/x", "\t exec y"):
        todo.write_text(f"pick 1234567 a\n{line}\n")
        assert list(objections(index, root_fd)) == [".git/rebase-merge/git-rebase-todo"]


# ---------------------------------------------------------------- single judgements


@pytest.mark.parametrize(
    "path",
    [".vscode/tasks.json", ".claude/settings.json", ".mcp.json", ".bashrc", ".envrc", ".husky/pre-commit", ".codex/x"],
)
def test_configuration_of_editors_agents_and_shells_is_never_benign(tmp_path: Path, path: str) -> None:
    place = tmp_path / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("")
    fd = os.open(tmp_path, os.O_PATH)
    try:
        for hit in scan(str(tmp_path), ()).hits:
            assert judge(fd, hit.path)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    "text",
    [
        "gitdir: /etc\n", "gitdir: ../../outside/.git\n", "gitdir: .git\nx\n", "gitdir:.git\n", "GITDIR: .git\n",
        "gitdir: \n", "x" * 100, "gitdir: ../.git/objects\n", "gitdir: ../.git/refs\n",
        "gitdir: ../.git/info\n", "gitdir: ../link\n", "gitdir: ../file\n", "gitdir: ../.git/hooks\n",
        "gitdir: ../.git/modules/a/objects/x\n",
        "gitdir: ../.git\0\n", "gitdir: ../.git\r\n",
    ],
)  # fmt: skip
@pytest.mark.needs_tool("git")
def test_pointers_elsewhere_are_refused(workspace: Path, root_fd: int, text: str) -> None:
    (workspace / "plain").mkdir()
    (workspace / "sub").mkdir()
    os.symlink(".git", workspace / "link")
    for place in (".git", "plain", "missing", ".git/modules/a", ".git/worktrees/w"):  # positive control
        (workspace / "sub" / ".git").write_text(f"gitdir: ../{place}\n")
        assert judge(root_fd, "sub/.git") == ""
    (workspace / "sub" / ".git").write_text(text)
    assert judge(root_fd, "sub/.git")


@pytest.mark.parametrize(
    "text",
    ["../../", "/ws/.git/x", "/ws/", "/ws/evil/../.git", "/other/.git", "..", "../../\n\n", "../..\0", "../../../evil"],
)
@pytest.mark.needs_tool("git")
def test_a_worktree_shares_only_with_its_own_repository(workspace: Path, root_fd: int, text: str) -> None:
    place = workspace / ".git" / "worktrees" / "w"
    place.mkdir(parents=True)
    for own in ("../..\n", f"{workspace}/.git/\n"):  # as git and as libgit2 write it
        (place / "commondir").write_text(own)
        assert judge(root_fd, ".git/worktrees/w/commondir") == ""
    (place / "commondir").write_text(text.replace("/ws/", f"{workspace}/"))
    assert judge(root_fd, ".git/worktrees/w/commondir")


@pytest.mark.needs_tool("git")
def test_a_worktree_directory_outside_of_a_repository_is_refused(workspace: Path, root_fd: int) -> None:
    place = workspace / "fake" / "worktrees" / "w"
    place.mkdir(parents=True)
    for text in ("../..\n", f"{workspace}/fake\n"):
        (place / "commondir").write_text(text)
        assert judge(root_fd, "fake/worktrees/w/commondir")


@pytest.mark.parametrize("text", ["/etc/.git\n", "../../../.git\n", "/outside/w/.git\n", "..\n"])
@pytest.mark.needs_tool("git")
def test_the_back_link_of_a_worktree_stays_inside(workspace: Path, root_fd: int, text: str) -> None:
    place = workspace / ".git" / "worktrees" / "w"
    place.mkdir(parents=True)
    (place / "gitdir").write_text(f"{workspace}/w/.git\n")
    assert judge(root_fd, ".git/worktrees/w/gitdir") == ""
    (place / "gitdir").write_text(text)
    assert bool(judge(root_fd, ".git/worktrees/w/gitdir")) is (text != "../../../.git\n")


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.needs_tool("git")
def test_the_back_link_of_a_worktree_outside_is_that_of_one_that_leads_back(
    workspace: Path, root_fd: int, tmp_path: Path, relative: bool
) -> None:
    """A person adds one while the command runs; nothing else that lies outside can be named."""
    outside = tmp_path / "outside tree"
    outside.mkdir()
    own = workspace / ".git" / "worktrees" / "w"
    own.mkdir(parents=True)
    pointer = outside / ".git"
    (own / "gitdir").write_text(f"{os.path.relpath(pointer, own) if relative else pointer}\n")

    def judged() -> str:
        return judge(root_fd, ".git/worktrees/w/gitdir")

    assert judged() == judge_module.UNANSWERED
    pointer.write_text("")
    assert judged() == judge_module.UNANSWERED
    pointer.write_text(f"gitdir: {os.path.relpath(own, outside) if relative else own}\n")
    assert judged() == ""  # the control: what git makes
    for text in (f"gitdir: {own}/x\n", f"gitdir: {own.parent}\n", f"{own}\n", f"gitdir: {own}\nx\n", "x" * 10_000):
        pointer.write_text(text)
        assert judged() == judge_module.LEADS_OUT, text
    pointer.unlink()
    real = outside / "real"
    real.write_text(f"gitdir: {own}\n")
    pointer.symlink_to("real")
    assert judged() == judge_module.LEADS_OUT
    pointer.unlink()
    os.mkfifo(pointer)
    assert judged() == judge_module.LEADS_OUT
    pointer.unlink()
    pointer.mkdir()
    assert judged() == judge_module.LEADS_OUT
    for text in ("/\n", "/.git\n", "/nonexistent/w/.git\n", f"{real}\n", f"{outside}/\n", f"{pointer}\nx\n"):
        (own / "gitdir").write_text(text)
        assert judged() in (judge_module.LEADS_OUT, judge_module.UNANSWERED if text == "/.git\n" else "x"), text


@pytest.mark.parametrize(
    ("text", "benign"),
    [
        ('[submodule "a"]\n\tpath = a\n\turl = https://example.test/a\n\tbranch = main\n', True),
        ('[submodule "a"]\n\tpath = a\n\turl = ../relative\n', True),
        ('[submodule "a"]\n\tpath = a\n\turl = ext::sh -c x\n', False),
        ('[submodule "a"]\n\tpath = a\n\turl = -u./payload\n', False),
        ('[submodule "a"]\n\tpath = a\r\n\turl = x\n', False),  # CVE-2025-48384
        ('[submodule "a"]\n\tpath = "a\r"\n', False),
        ('[submodule "a"]\n\tpath = .git/hooks\n', False),
        ('[submodule "a"]\n\tpath = A/modules/a\n', True),
        ('[submodule "../../x"]\n\tpath = a\n', False),  # CVE-2018-11235
        ('[submodule "a"]\n\tpath = ../a\n', False),
        ('[submodule "a"]\n\tpath = /etc\n', False),
        ('[submodule "a"]\n\tpath = -x\n', False),
        ('[submodule "a"]\n\tupdate = !touch x\n', False),  # CVE-2019-19604
        ('[submodule "a"]\n\tupdate = rebase\n', True),
        ("[core]\n\tbare = true\n", False),
    ],
)
def test_submodule_descriptions(tmp_path: Path, text: str, benign: bool) -> None:
    (tmp_path / ".gitmodules").write_bytes(text.encode())
    fd = os.open(tmp_path, os.O_PATH)
    try:
        assert (judge(fd, ".gitmodules") == "") is benign
    finally:
        os.close(fd)


def test_special_files_and_sizes_are_refused_without_blocking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git" / "config").mkdir(parents=True)
    os.mkfifo(tmp_path / ".gitmodules")
    (tmp_path / ".git" / "commondir").write_text("x" * 100)
    fd = os.open(tmp_path, os.O_PATH)
    try:
        assert judge(fd, ".gitmodules") == "it is not a regular file"
        assert judge(fd, ".git/config") == "it is not a regular file"
        monkeypatch.setattr(judge_module, "LARGEST_READ", 99)
        assert "larger than 99 bytes" in judge(fd, ".git/commondir")
        assert judge(fd, ".git/vanished") == ""
        assert judge(fd, "gone/away/.git") == ""
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("place", "name", "benign"),
    [
        ("file", "config", True),
        ("nothing", "config", True),
        ("link", "config", False),
        ("file", "hooks", True),
        ("link", "hooks", False),
        ("file", "branches", True),
        ("link", "branches", False),
    ],
)
def test_what_goes_away_while_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, name: str, benign: bool
) -> None:
    """``git submodule absorbgitdirs`` moves a git directory away, and a file takes its place."""
    if name == "config":
        (tmp_path / "a/.git").mkdir(parents=True)
        (tmp_path / "a/.git/config").write_text("[core]\n")
    else:
        (tmp_path / "a/.git" / name).mkdir(parents=True)
    opening = below.open_below
    opened = []

    def late(root_fd: int, path: str, flags: int) -> int:
        if path == f"a/.git/{name}" and flags & os.O_PATH == 0 and not opened:
            opened.append(path)
            (tmp_path / "a/.git").rename(tmp_path / "gone")
            if place == "file":
                (tmp_path / "a/.git").write_text("gitdir: ../gone\n")
            elif place == "link":
                (tmp_path / "a/.git").symlink_to("../gone")
        return opening(root_fd, path, flags)

    for module in (below, judge_module):
        monkeypatch.setattr(module, "open_below", late)
    fd = os.open(tmp_path, os.O_PATH)
    try:
        said = judge(fd, f"a/.git/{name}")
    finally:
        os.close(fd)
    assert opened and (said == "") is benign, said


def test_a_linked_parent_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "config").write_text("")
    root = tmp_path / "ws"
    (root / "a").mkdir(parents=True)
    os.symlink(outside, root / "a" / ".git")
    fd = os.open(root, os.O_PATH)
    try:
        assert judge(fd, "a/.git/config").startswith("it cannot be looked at")
        with pytest.raises(OSError) as refused:
            quarantine(fd, "a/.git/config", fd)
        assert refused.value.errno in (errno.ELOOP, errno.ENOTDIR)
        with pytest.raises(OSError) as refused:
            quarantine(fd, "../outside/config", fd)
        assert refused.value.errno == errno.EXDEV
    finally:
        os.close(fd)
    assert (outside / "config").exists()


# ---------------------------------------------------------------- quarantine


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[tuple[Path, int, Path, int]]:
    root, away = tmp_path / "ws", tmp_path / "q"
    root.mkdir()
    away.mkdir()
    fds = [os.open(place, os.O_RDONLY | os.O_DIRECTORY) for place in (root, away)]
    yield root, fds[0], away, fds[1]
    for fd in fds:
        os.close(fd)


def test_quarantine_moves_and_never_overwrites(tree: tuple[Path, int, Path, int]) -> None:
    root, root_fd, away, away_fd = tree
    (away / "1").write_text("taken")
    places = []
    for number in range(3):
        (root / "d" / ".vscode").mkdir(parents=True)
        (root / "d" / ".vscode" / "tasks.json").write_text(str(number))
        places.append(quarantine(root_fd, "d/.vscode", away_fd))
        assert not (root / "d" / ".vscode").exists()
    assert [(away / place / "tasks.json").read_text() for place in places] == ["0", "1", "2"]
    assert (away / "1").read_text() == "taken"
    assert (root / "d").is_dir()


@pytest.mark.parametrize("raw", [b"\xff.bashrc", b"new\nline", b"n" * 255, b"-rf", b" "])
def test_quarantine_takes_any_name(tree: tuple[Path, int, Path, int], raw: bytes) -> None:
    root, root_fd, away, away_fd = tree
    os.close(os.open(os.path.join(os.fsencode(root), raw), os.O_CREAT | os.O_WRONLY))
    to = quarantine(root_fd, os.fsdecode(raw), away_fd)
    assert os.path.exists(os.path.join(os.fsencode(away), os.fsencode(to)))
    assert os.listdir(root) == []


def test_quarantine_moves_a_link_and_not_its_target(tree: tuple[Path, int, Path, int], tmp_path: Path) -> None:
    root, root_fd, away, away_fd = tree
    (tmp_path / "target").write_text("x")
    os.symlink(tmp_path / "target", root / ".bashrc")
    to = quarantine(root_fd, ".bashrc", away_fd)
    assert os.readlink(away / to) == str(tmp_path / "target")
    assert (tmp_path / "target").exists()


def test_a_vanished_name_leaves_nothing_behind(tree: tuple[Path, int, Path, int]) -> None:
    _, root_fd, away, away_fd = tree
    with pytest.raises(FileNotFoundError):
        quarantine(root_fd, "gone", away_fd)
    assert os.listdir(away) == []


def _across_file_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    def rename(*_args: object, **_fds: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(aside.os, "rename", rename)


def test_quarantine_copies_across_file_systems(
    tree: tuple[Path, int, Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, root_fd, away, away_fd = tree
    _across_file_systems(monkeypatch)
    evil = root / ".vscode"
    (evil / "sub").mkdir(parents=True)
    (evil / "sub" / "tasks.json").write_bytes(b"x" * 3_000_000)
    (evil / "tool").write_text("x")
    (evil / "tool").chmod(0o4755)
    os.symlink("/etc/passwd", evil / "link")
    os.mkfifo(evil / "fifo")
    to = away / quarantine(root_fd, ".vscode", away_fd)
    assert not evil.exists()
    assert (to / "sub" / "tasks.json").read_bytes() == b"x" * 3_000_000
    assert (to / "tool").stat().st_mode & 0o7777 == 0o600
    assert os.readlink(to / "link") == "/etc/passwd"
    assert not (to / "fifo").exists()


@pytest.mark.parametrize("limit", ["LARGEST_COPY", "MOST_COPIED", "DEEPEST_COPY"])
def test_too_much_to_copy_stays_where_it_is(
    tree: tuple[Path, int, Path, int], monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    root, root_fd, away, away_fd = tree
    _across_file_systems(monkeypatch)
    (root / ".vscode" / "a" / "b" / "c").mkdir(parents=True)
    (root / ".vscode" / "a" / "b" / "c" / "file").write_text("content")
    monkeypatch.setattr(aside, limit, 2)
    with pytest.raises(OSError) as refused:
        quarantine(root_fd, ".vscode", away_fd)
    assert refused.value.errno == errno.EFBIG
    assert (root / ".vscode" / "a" / "b" / "c" / "file").read_text() == "content"
    assert os.listdir(away) == []
