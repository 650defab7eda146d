"""workspace.watch: names that appear or are replaced, on a real inotify."""

from __future__ import annotations

import errno
import mmap
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from membrane.policy.model import Origin, PathRule
from membrane.workspace import watch as watch_module
from membrane.workspace.judge import judge
from membrane.workspace.scan import scan
from membrane.workspace.watch import Appeared, Watcher

ORIGIN = Origin("library", "test")
RULES = (
    PathRule(".env", ORIGIN, "hide"),
    PathRule("*.pem", ORIGIN, "hide"),
    PathRule("secrets/", ORIGIN, "hide"),
    PathRule("*.lock", ORIGIN, "readonly"),
)
PATIENCE = 60.0  # seconds until a test gives up


def make(root: Path, *paths: str) -> None:
    for path in paths:
        place = root / path
        if path.endswith("/"):
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text("x")


def collect(watcher: Watcher, until: Callable[[dict[str, Appeared]], bool]) -> dict[str, Appeared]:
    """Serve the watcher as the session does, until enough was returned."""
    found: dict[str, Appeared] = {}
    end = time.monotonic() + PATIENCE
    while not until(found):
        left = end - time.monotonic()
        assert left > 0, f"nothing more than {found}"
        timeout = watcher.timeout()
        select.select([watcher.fileno()], [], [], left if timeout is None else min(left, timeout))
        for name in watcher.read():
            found[name.path] = name
    return found


def has(*paths: str) -> Callable[[dict[str, Appeared]], bool]:
    return lambda found: set(paths) <= set(found)


def quiet(watcher: Watcher, root: Path) -> dict[str, Appeared]:
    """Everything that is returned up to a marker made now: events come in order."""
    make(root, "marker.pem")
    found = collect(watcher, has("marker.pem"))
    while (timeout := watcher.timeout()) is not None:  # names that settle
        select.select([watcher.fileno()], [], [], timeout)
        found.update({name.path: name for name in watcher.read()})
    (root / "marker.pem").unlink()
    del found["marker.pem"]
    return found


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    place = tmp_path / "ws"
    make(place, ".git/HEAD", ".git/config", ".git/hooks/", ".git/objects/ab/", ".env", "a/b/c/", "a/.env", "src/x.py")
    return place


@pytest.fixture
def start(workspace: Path) -> Iterator[Callable[[], Watcher]]:
    watchers: list[Watcher] = []

    def begin() -> Watcher:
        watcher = Watcher(scan(str(workspace), RULES).index)
        watchers.append(watcher)
        watcher.look()
        while not watcher.step(0.002):
            pass
        assert watcher.read() == []
        assert watcher.timeout() is None
        return watcher

    yield begin
    for watcher in watchers:
        watcher.close()


def test_a_created_name_is_returned_with_its_effect(workspace: Path, start: Callable[[], Watcher]) -> None:
    watcher = start()
    make(workspace, "a/b/c/new.pem", "x.lock", "a/secrets/", "plain.txt")
    os.symlink("x", workspace / "link.pem")
    assert collect(watcher, has("a/b/c/new.pem", "x.lock", "a/secrets", "link.pem")) == {
        "a/b/c/new.pem": Appeared("a/b/c/new.pem", "hide", False),
        "x.lock": Appeared("x.lock", "readonly", False),
        "a/secrets": Appeared("a/secrets", "hide", True),
        "link.pem": Appeared("link.pem", "hide", False, link=True),
    }


def test_the_atomic_save_of_an_editor_is_returned_as_known(workspace: Path, start: Callable[[], Watcher]) -> None:
    watcher = start()
    for _ in range(3):
        make(workspace, "a/.env.tmp")
        (workspace / "a" / ".env.tmp").rename(workspace / "a" / ".env")
        assert collect(watcher, has("a/.env")) == {"a/.env": Appeared("a/.env", "hide", False, known=True)}


def test_an_edit_in_place_is_nobodys_business(workspace: Path, start: Callable[[], Watcher]) -> None:
    watcher = start()
    with (workspace / "a" / ".env").open("a") as file:
        file.write("more")
    assert quiet(watcher, workspace) == {}


def test_the_host_may_replace_a_protected_file(workspace: Path, start: Callable[[], Watcher]) -> None:
    """git config on the host renames a new file into place: the mount is gone, but the file is not the agent's."""
    watcher = start()
    make(workspace, ".git/config.lock")
    (workspace / ".git" / "config.lock").rename(workspace / ".git" / "config")
    found = collect(watcher, has(".git/config"))
    assert found == {".git/config": Appeared(".git/config", "protect", False, known=True)}


def test_what_a_new_directory_holds_already_is_returned(
    workspace: Path, start: Callable[[], Watcher], tmp_path: Path
) -> None:
    watcher = start()
    make(tmp_path / "staged", "one/two/.env", "one/two/three/key.pem", "one/.vscode/tasks.json")
    (tmp_path / "staged").rename(workspace / "moved")
    expected = {"moved/one/two/.env", "moved/one/two/three/key.pem", "moved/one/.vscode"}
    assert set(collect(watcher, has(*expected))) == expected
    make(workspace, "moved/one/two/three/later.pem")  # and it is watched from now on
    collect(watcher, has("moved/one/two/three/later.pem"))


def test_a_renamed_directory_is_followed_under_its_new_name(workspace: Path, start: Callable[[], Watcher]) -> None:
    watcher = start()
    (workspace / "a").rename(workspace / "z")
    collect(watcher, has("z/.env"))
    make(workspace, "z/b/c/new.pem")
    collect(watcher, has("z/b/c/new.pem"))
    make(workspace, "a/b/other.pem")  # the old name, anew
    collect(watcher, has("a/b/other.pem"))


def test_a_removed_tree_that_comes_back_is_covered_anew(workspace: Path, start: Callable[[], Watcher]) -> None:
    watcher = start()
    for number in range(5):  # file systems give freed inode numbers out again
        shutil.rmtree(workspace / "a")
        make(workspace, "a/b/c/x", "a/d/")
        quiet(watcher, workspace)
        make(workspace, f"a/b/c/{number}.pem", f"a/d/{number}.pem")
        collect(watcher, has(f"a/b/c/{number}.pem", f"a/d/{number}.pem"))
        (workspace / "a" / "b").rename(workspace / "other")
        (workspace / "other").rename(workspace / "a" / "b")
        quiet(watcher, workspace)
        make(workspace, f"a/b/c/{number}again.pem")
        collect(watcher, has(f"a/b/c/{number}again.pem"))


def test_deep_trees_made_in_one_go_are_covered(workspace: Path, start: Callable[[], Watcher]) -> None:
    watcher = start()
    paths = [f"n{first}/m{second}/k{third}/.env" for first in range(5) for second in range(5) for third in range(5)]
    make(workspace, *paths)
    collect(watcher, has(*paths))


@pytest.mark.parametrize(
    "raw", [b"\xff\xfe.pem", b"new\nline.pem", b"n" * 251 + b".pem", b" .pem", b"\x1b[2J.pem"], ids=repr
)
def test_odd_names(workspace: Path, start: Callable[[], Watcher], raw: bytes) -> None:
    watcher = start()
    directory = os.path.join(os.fsencode(workspace), b"d\xe9\n")
    os.mkdir(directory)
    os.close(os.open(os.path.join(directory, raw), os.O_CREAT | os.O_WRONLY))
    name = os.fsdecode(b"d\xe9\n/" + raw)
    assert list(collect(watcher, has(name))) == [name]


def test_links_are_never_followed(workspace: Path, start: Callable[[], Watcher], tmp_path: Path) -> None:
    watcher = start()
    make(tmp_path / "outside", "inner/")
    os.symlink(tmp_path / "outside", workspace / "src" / "away")
    make(tmp_path / "outside", "one.pem", "inner/two.pem")
    assert quiet(watcher, workspace) == {}
    # A directory that is replaced by a link while it is still to be visited.
    watcher._urgent.append(("src/away", 0, True))
    watcher._urgent.append(("src/away/inner", 0, True))
    assert quiet(watcher, workspace) == {}
    make(tmp_path / "outside", "three.pem")
    assert quiet(watcher, workspace) == {}


def test_changes_between_the_scan_and_the_watch_are_found(workspace: Path) -> None:
    watcher = Watcher(scan(str(workspace), RULES).index)
    try:
        make(workspace, "a/b/c/early.pem", "new/dir/early.pem", ".vscode/x", "a/fresh.tmp")
        (workspace / "a" / "fresh.tmp").rename(workspace / "a" / ".env")
        watcher.look()
        while not watcher.step(0.002):
            pass
        expected = {"a/b/c/early.pem", "new/dir/early.pem", ".vscode", "a/.env"}
        found = collect(watcher, has(*expected))
        # Names beside what changed may be returned as well: whether they were replaced cannot be known.
        assert set(found) - expected <= {".env"}
    finally:
        watcher.close()


def test_a_look_compares_the_root_and_git_before_any_step(workspace: Path) -> None:
    watcher = Watcher(scan(str(workspace), RULES).index)
    try:
        make(workspace, ".mcp.json", ".git/commondir", "top.pem", ".git/config.worktree", "a/b/c/early.pem")
        watcher.look()
        found = collect(watcher, has(".mcp.json", ".git/commondir", "top.pem", ".git/config.worktree"))
        assert "a/b/c/early.pem" not in found  # the rest is the steps' business
    finally:
        watcher.close()


def test_the_first_step_watches_the_root_and_git(workspace: Path) -> None:
    watcher = Watcher(scan(str(workspace), RULES).index)
    try:
        watcher.look()
        for _place in range(2):
            watcher.step(0)  # one directory
        make(workspace, ".mcp.json", ".git/commondir", "top.pem", ".git/config.worktree")
        collect(watcher, has(".mcp.json", ".git/commondir", "top.pem", ".git/config.worktree"))
    finally:
        watcher.close()


def test_a_protected_name_is_returned_at_once_and_each_time_it_is_made(
    workspace: Path, start: Callable[[], Watcher]
) -> None:
    """Whatever is written to it, and whether or not it is still there: nothing puts it off."""
    watcher = start()
    for _ in range(3):
        with (workspace / ".mcp.json").open("w") as writer:
            writer.write("x")
            assert collect(watcher, has(".mcp.json"))[".mcp.json"] == Appeared(".mcp.json", "protect", False)
            (workspace / ".mcp.json").rename(workspace / "harmless")
        os.rename(workspace / "harmless", workspace / ".mcp.json")
        (workspace / ".mcp.json").unlink()
        collect(watcher, has(".mcp.json"))


def hold(watcher: Watcher, root: Path, path: str) -> str:
    watcher.let_go(path)
    fd = os.open(root / path, os.O_RDONLY)
    try:
        return watcher.hold(fd, path, path)
    finally:
        os.close(fd)


def test_a_held_file_is_returned_again_when_it_is_opened_or_rewritten(
    workspace: Path, start: Callable[[], Watcher]
) -> None:
    watcher = start()
    make(workspace, "n/.git/config")
    config = workspace / "n" / ".git" / "config"
    collect(watcher, has("n/.git/config"))
    for write in (config.read_text, lambda: config.write_text("x"), lambda: os.truncate(config, 0)):
        assert hold(watcher, workspace, "n/.git/config") == "held"
        assert quiet(watcher, workspace) == {}, "positive control: holding it is told to nobody"
        write()
        collect(watcher, has("n/.git/config"))


def test_what_could_be_written_through_a_mapping_is_known(workspace: Path, start: Callable[[], Watcher]) -> None:
    watcher = start()
    make(workspace, "n/.git/config")
    collect(watcher, has("n/.git/config"))
    with (workspace / "n" / ".git" / "config").open("r+b") as file:
        assert hold(watcher, workspace, "n/.git/config") == "written"
        mapping = mmap.mmap(file.fileno(), 1)
    assert hold(watcher, workspace, "n/.git/config") == "written"
    mapping.close()
    assert hold(watcher, workspace, "n/.git/config") == "held"
    with (workspace / "n" / ".git" / "config").open("rb") as file:
        shown = mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ)
        assert hold(watcher, workspace, "n/.git/config") == "held"  # nobody writes through this one
        shown.close()


def test_hooks_are_returned_when_something_is_put_into_them(workspace: Path, start: Callable[[], Watcher]) -> None:
    watcher = start()
    make(workspace, "n/.git/hooks/a.sample")
    collect(watcher, has("n/.git/hooks"))
    make(workspace, "n/.git/hooks/pre-commit")
    collect(watcher, has("n/.git/hooks"))


def test_a_pointer_is_returned_when_its_target_is_replaced(workspace: Path, start: Callable[[], Watcher]) -> None:
    watcher = start()
    make(workspace, "store/sub/")
    quiet(watcher, workspace)
    assert watcher.follow("n/.git", "store/sub")
    make(workspace, "n/.git")
    collect(watcher, has("n/.git"))
    (workspace / "store" / "sub").rename(workspace / "store" / "away")
    assert "n/.git" not in quiet(watcher, workspace)
    os.symlink("/etc", workspace / "store" / "sub")
    collect(watcher, has("n/.git"))


def test_a_layout_is_returned_by_its_head_when_it_is_complete(workspace: Path, start: Callable[[], Watcher]) -> None:
    watcher = start()
    make(workspace, "src/config", "src/HEAD", "src/objects/")
    assert quiet(watcher, workspace) == {}
    make(workspace, "src/refs/")
    collect(watcher, has("src/HEAD"))
    (workspace / "src" / "config.new").write_text("")
    (workspace / "src" / "config.new").rename(workspace / "src" / "config")
    collect(watcher, has("src/HEAD"))


def test_a_hooks_path_that_appears_is_returned(tmp_path: Path) -> None:
    make(tmp_path, ".git/HEAD", "tools/")
    (tmp_path / ".git" / "config").write_text("[core]\n\thooksPath = tools/hooks\n")
    watcher = Watcher(scan(str(tmp_path), ()).index)
    try:
        watcher.look()
        while not watcher.step(0.002):
            pass
        make(tmp_path, "tools/hooks/pre-commit")
        assert collect(watcher, has("tools/hooks"))["tools/hooks"].effect == "protect"
    finally:
        watcher.close()


def test_an_overflow_of_the_queue_loses_nothing(workspace: Path, start: Callable[[], Watcher]) -> None:
    watcher = start()
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 100_000:
        limit = 0  # this host queues so many that the overflow is given by hand below
    churn = workspace / "src"
    for number in range(limit // 2 + 1_000):  # two directories in turn, so that equal events are not merged
        os.close(os.open(churn / f"f{number % 7}", os.O_CREAT | os.O_WRONLY))
        os.unlink(churn / f"f{number % 7}")
        os.close(os.open(workspace / "a" / f"f{number % 5}", os.O_CREAT | os.O_WRONLY))
        os.unlink(workspace / "a" / f"f{number % 5}")
    assert hold(watcher, workspace, "src/x.py") == "held"
    make(workspace, "a/b/lost.pem", "fresh/dir/lost.pem", ".mcp.json")
    (workspace / "a" / "tmp").write_text("new")
    (workspace / "a" / "tmp").rename(workspace / "a" / ".env")
    if not limit:
        watcher._take(-1, watch_module.IN_Q_OVERFLOW, b"")
    # Whether one that is held was written to is not known either.
    found = collect(watcher, has("a/b/lost.pem", "fresh/dir/lost.pem", ".mcp.json", "a/.env", "src/x.py"))
    assert found["a/.env"].known


def test_when_watches_run_out_the_rest_is_polled(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = watch_module.syscalls.inotify_add_watch
    calls = 0

    def add(fd: int, path: bytes, mask: int) -> int:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, path, mask)

    monkeypatch.setattr(watch_module.syscalls, "inotify_add_watch", add)
    monkeypatch.setattr(watch_module, "POLL", 0.05)
    watcher = Watcher(scan(str(workspace), RULES).index)
    try:
        watcher.look()
        while not watcher.step(0.002):
            pass
        assert len(watcher.warnings) == 1
        assert "max_user_watches" in watcher.warnings[0]
        make(workspace, "a/b/c/new.pem", "deep/er/new.pem", ".idea/x")
        (workspace / "a" / "tmp").write_text("new")
        (workspace / "a" / "tmp").rename(workspace / "a" / ".env")
        collect(watcher, has("a/b/c/new.pem", "deep/er/new.pem", ".idea", "a/.env"))
    finally:
        watcher.close()


def test_without_inotify_everything_is_polled(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def init() -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(watch_module.syscalls, "inotify_init", init)
    monkeypatch.setattr(watch_module, "POLL", 0.05)
    watcher = Watcher(scan(str(workspace), RULES).index)
    try:
        watcher.look()
        while not watcher.step(0.002):
            pass
        assert "max_user_instances" in watcher.warnings[0]
        with select.epoll() as epoll:
            epoll.register(watcher.fileno(), select.EPOLLIN)  # the session can wait for it all the same
        for name in ("a/one.pem", "a/two.pem"):
            make(workspace, name)
            collect(watcher, has(name))
    finally:
        watcher.close()


@pytest.mark.as_user
@pytest.mark.parametrize("mode", [0o100, 0o311, 0o011])
def test_a_new_directory_that_can_not_be_listed_is_hidden_whole(
    workspace: Path, start: Callable[[], Watcher], mode: int
) -> None:
    watcher = start()
    (workspace / "closed").mkdir(mode=mode)
    found = collect(watcher, has("closed"))
    (workspace / "closed").chmod(0o700)
    assert found["closed"] == Appeared("closed", "hide", True)


@pytest.mark.as_user
def test_a_new_directory_that_is_closed_is_looked_into_when_it_is_opened(
    workspace: Path, start: Callable[[], Watcher]
) -> None:
    """A program that closes a directory of its own for a moment can open and remove it again."""
    watcher = start()
    closed = workspace / "above" / "closed"
    (closed / "below").mkdir(parents=True)
    make(closed, "below/one.pem")
    closed.chmod(0o000)
    make(workspace, "two.pem")
    assert set(collect(watcher, has("two.pem"))) == {"two.pem"}
    closed.chmod(0o700)
    collect(watcher, has("above/closed/below/one.pem"))
    closed.chmod(0o000)  # it was looked into: its watch stays
    (workspace / "above").rename(workspace / "moved")
    (workspace / "moved" / "closed").chmod(0o100)
    collect(watcher, has("moved/closed"))
    (workspace / "moved" / "closed").chmod(0o700)


@pytest.mark.as_user
def test_one_that_is_closed_before_directories_are_watched_is_looked_into_as_well(workspace: Path) -> None:
    watcher = Watcher(scan(str(workspace), RULES).index)
    try:
        (workspace / "closed").mkdir()
        make(workspace, "closed/one.pem")
        (workspace / "closed").chmod(0o000)
        watcher.look()
        assert "closed" not in {found.path for found in watcher.read()}
        (workspace / "closed").chmod(0o700)
        collect(watcher, has("closed/one.pem"))
    finally:
        watcher.close()


@pytest.mark.as_user
def test_a_closed_directory_that_no_watch_tells_of_is_hidden_whole(
    workspace: Path, start: Callable[[], Watcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "MOST_CLOSED", 1)
    watcher = start()
    for name in ("one", "other"):
        (workspace / name).mkdir(mode=0o000)
    hidden = next(iter(collect(watcher, bool)))
    for name in ("one", "other"):
        (workspace / name).chmod(0o700)
    assert hidden in ("one", "other")


def test_a_step_is_short_in_a_large_tree(tmp_path: Path) -> None:
    for number in range(3_000):
        os.makedirs(tmp_path / f"d{number % 50}" / f"e{number}")
    watcher = Watcher(scan(str(tmp_path), RULES).index)
    try:
        steps = 0
        while not watcher.step(0.001):
            steps += 1
        assert steps >= 3  # it was cut into slices
    finally:
        watcher.close()


def test_a_deleted_tree_leaves_no_watches_behind(workspace: Path, start: Callable[[], Watcher]) -> None:
    watcher = start()
    before = len(watcher._directories)
    for _ in range(3):
        make(workspace, "build/x/y/z/")
        quiet(watcher, workspace)
        shutil.rmtree(workspace / "build")
        quiet(watcher, workspace)
    assert len(watcher._directories) == before


@pytest.mark.needs_tool("git")
def test_a_running_clone_is_judged_benign_all_the_way(workspace: Path, tmp_path: Path) -> None:
    """The session judges what is returned at that moment; git must never be interrupted."""
    environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null",
                   "HOME": str(tmp_path), "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a",
                   "GIT_COMMITTER_EMAIL": "a@b"}  # fmt: skip

    def git(where: Path, *args: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["git", "-c", "protocol.file.allow=always", *args], cwd=where, env=environment)

    origin = tmp_path / "origin"
    origin.mkdir()
    assert git(origin, "init", "-q", "-b", "main").wait() == 0
    make(origin, *(f"d{number}/file" for number in range(200)))
    assert git(origin, "add", ".").wait() == 0
    assert git(origin, "commit", "-qm", "x").wait() == 0
    root = tmp_path / "project"
    root.mkdir()
    assert git(root, "init", "-q", "-b", "main").wait() == 0
    assert git(root, "commit", "-q", "--allow-empty", "-m", "x").wait() == 0

    watcher = Watcher(scan(str(root), RULES[:3]).index)
    root_fd = os.open(root, os.O_PATH)
    seen: set[str] = set()
    running_git: list[subprocess.Popen[bytes]] = []
    try:
        watcher.look()
        while not watcher.step(0.002):
            pass
        for work in (
            ("clone", "-q", str(origin), "clone"),
            ("worktree", "add", "-q", "-b", "side", "side"),
            ("init", "-q", "--bare", "bare.git"),
        ):
            running = git(root, *work)
            running_git.append(running)
            while (
                running.poll() is None
                or watcher.timeout() is not None
                or select.select([watcher.fileno()], [], [], 0)[0]  # what its last calls did
            ):
                timeout = watcher.timeout()
                select.select([watcher.fileno()], [], [], 0.02 if timeout is None else min(0.02, timeout))
                for name in watcher.read():
                    seen.add(name.path)
                    assert judge(root_fd, name.path) == "", name.path
            assert running.returncode == 0
    finally:
        for running in running_git:
            running.wait()
        watcher.close()
        os.close(root_fd)
    assert {
        "clone/.git/config",
        "clone/.git/hooks",
        "side/.git",
        ".git/worktrees/side/commondir",
        "bare.git/HEAD",
    } <= seen
