"""What git on the host must not be made to run while the command runs, or later: the whole guard (rows F60 to F68).

``hostile`` runs an attack with a caller beside it whose shell prompt asks git for the state again and again.  The
control of each attack is the same script outside of the sandbox, where git does run what was planted.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from escape_box import PYTHON, REPORT, SECONDS, TOOLS, Box

GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@example.test", "-c", "init.defaultBranch=main")
# Made in front of each attack: ``evil(place)`` is a git directory that executes, ``armed`` its configuration.
PLANT = """
import shutil, time
marker = os.environ["MARKER"]
armed = '[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = "touch ' + marker + '; false"\\n'
def toggle(source, name, seconds=3.0, beat=lambda: time.sleep(0.02)):
    "Give the name and take it back, and do what keeps somebody from judging it; (times it was there, times refused)."
    until = time.monotonic() + seconds
    there = refused = 0
    while time.monotonic() < until:
        try:
            os.rename(source, name)
            there += 1
            beat()
            os.rename(name, source)
        except OSError as error:
            refused += error.errno in (errno.EACCES, errno.EROFS, errno.EBUSY)
            time.sleep(0.005)
            if not os.path.lexists(source):
                break
    say("there", there)
    say("refused", refused > 0)
"""


def git(place: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(place),
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_EDITOR": "true",
    }
    return subprocess.run([*GIT, *command], cwd=place, env=environment, capture_output=True, text=True, check=False)


def repository(box: Box) -> None:
    box.file("file", "1\n")
    for command in (("init", "-q"), ("add", "."), ("commit", "-qm", "one")):
        assert git(box.workspace, *command).returncode == 0


@contextmanager
def prompt(place: Path, every: float = 0.05) -> Iterator[None]:
    """A shell prompt or an editor on the host: ``git status``, over and over."""
    over = threading.Event()

    def ask() -> None:
        while not over.wait(every):
            with contextlib.suppress(OSError):  # the attack may have taken the directory away just now
                git(place, "status", "--short")

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def hostile(box: Box, tmp_path: Path, script: str, victim: str = "") -> dict[str, Any]:
    """Attack with a prompt beside it, in ``victim``; nothing that was planted has run, then or afterwards.

    The same script outside is the control: there it does run.
    """
    marker = tmp_path / "executed"
    before = tmp_path / "before"
    shutil.copytree(box.workspace, before, symlinks=True)
    box.environment["MARKER"] = str(marker)
    with prompt(box.workspace / victim):
        found = box.attack(PLANT + script, "--env", "MARKER")
    git(box.workspace / victim, "status", "--short")
    assert not marker.exists()
    with prompt(before / victim):
        box.control(PLANT + script, cwd=before)
    git(before / victim, "status", "--short")
    assert marker.exists(), "positive control: the attack works outside"
    return found


# ---------------------------------------------------------------- 1: what keeps a judgement from being made


@pytest.mark.needs_tool("git")
@pytest.mark.parametrize("how", ["rename", "write", "written while it is there"])
def test_F60_a_common_directory_of_the_repository(box: Box, tmp_path: Path, how: str) -> None:
    repository(box)
    script = """
shutil.copytree(".git", "evil", ignore=shutil.ignore_patterns("*.lock")); os.remove("evil/HEAD")
with open("evil/config", "w") as file: file.write(armed)
open("cd", "w").write("../evil\\n")
"""
    if how == "write":
        script += """
for turn in range(30):
    attempt("open", write(".git/commondir", "../evil\\n")); time.sleep(0.05)
"""
    elif how == "rename":
        script += 'toggle("cd", ".git/commondir", beat=lambda: time.sleep(0.1))'
    else:
        script += """
def beat():
    for _ in range(10):
        time.sleep(0.02); os.close(os.open(".git/commondir", os.O_WRONLY | os.O_APPEND))
toggle("cd", ".git/commondir", beat=beat)
"""
    found = hostile(box, tmp_path, script)
    assert found == ({"open": "EACCES"} if how == "write" else {"there": 0, "refused": True})
    assert {event["access"]["path"] for event in box.record("AccessDenied")} >= {".git/commondir"}


NESTED = """
os.makedirs("n/.git/objects"); os.makedirs("n/.git/refs"); open("n/.git/HEAD", "w").write("ref: refs/heads/m\\n")
"""


@pytest.mark.needs_tool("git")
@pytest.mark.parametrize("place", ["n", ""], ids=["nested", "top"])
def test_F61_the_configuration_of_a_new_repository(box: Box, tmp_path: Path, place: str) -> None:
    base = f"{place}/.git" if place else ".git"
    script = NESTED.replace("n/.git", base) + 'open("cfg", "w").write(armed)\n'
    found = hostile(box, tmp_path, script + f'toggle("cfg", "{base}/config", beat=lambda: time.sleep(0.1))', place)
    assert found == {"there": 0, "refused": True}


def test_F61_a_configuration_that_is_made_over_and_over_ends_the_run(box: Box) -> None:
    """Nothing can be refused before it holds something; each time it is there for milliseconds, and not often."""
    script = (
        NESTED
        + """
for turn in range(1000):
    try:
        open("n/.git/config", "w").write("[core]\\n\\tfsmonitor = x\\n")
    except OSError:
        pass
    wait_for(lambda: not os.path.exists("n/.git/config"))
open("after", "w")
"""
    )
    done = box.run("python3", "-c", box_tools() + script)
    assert done.returncode == 125 and "n/.git/config was made 8 times" in done.stderr, done
    assert not (box.workspace / "n/.git/config").exists() and not (box.workspace / "after").exists()
    assert "n/.git/config" in box.moved()


def box_tools() -> str:
    from escape_box import TOOLS

    return TOOLS


@pytest.mark.parametrize(("name", "what"), [("sub/.mcp.json", "file"), ("n/.git/hooks", "directory")])
def test_F62_a_name_that_is_renamed_to_and_fro(box: Box, tmp_path: Path, name: str, what: str) -> None:
    script = NESTED + 'import time; os.mkdir("sub"); os.mkdir("d"); write("d/post-checkout")()\n'
    script += f'write("f")(); attempt("rename", lambda: os.rename({what[0]!r}, {name!r}))\n'
    script += f'say("there", os.path.exists({name!r}))'
    assert box.attack(script) == {"rename": "EACCES", "there": False}
    assert box.control(script, cwd=tmp_path) == {"rename": "ok", "there": True}


@pytest.mark.guard_alone
@pytest.mark.parametrize("name", [".mcp.json", "sub/.mcp.json", ".git/commondir", "n/.git/hooks", ".git/remotes"])
def test_F62_without_the_tracer_it_loses_its_name_and_then_the_run_ends(box: Box, name: str) -> None:
    box.file(".git/HEAD", "ref: refs/heads/main\n")
    script = (
        NESTED
        + f"""
os.mkdir("sub")
directory = {name!r}.endswith(("hooks", "remotes"))
for turn in range(1000):
    if {name!r} == ".git/remotes": os.mkdir({name!r})
    elif directory: os.mkdir(f"d{{turn}}"); write(f"d{{turn}}/post-checkout")(); os.rename(f"d{{turn}}", {name!r})
    else: open({name!r}, "w").write("x")
    wait_for(lambda: not os.path.lexists({name!r}))
"""
    )
    done = box.run("python3", "-c", box_tools() + script)
    assert done.returncode == 125 and f"{name} was made 8 times" in done.stderr, done
    assert not os.path.lexists(box.workspace / name)
    assert len([1 for event in box.record("AccessDenied") if event["access"]["path"] == name]) >= 8


# ---------------------------------------------------------------- 2: work that the attacker sets


@pytest.mark.parametrize("many", [1, 10])
def test_F63_long_pointers_and_long_values_hold_nothing_up(box: Box, many: int) -> None:
    """Masks, the time limit and signals do not wait behind a judgement."""
    box.policy(presets=[], ignore=[".env"])
    script = f"""
import time
for n in range({many}):
    os.makedirs(f"x{{n}}"); open(f"x{{n}}/.git", "w").write("gitdir: " + "a/" * 524000)
    os.makedirs(f"y{{n}}/.git"); open(f"y{{n}}/.git/config", "w").write("[core]\\n\\tpager = " + "a" * 60000 + "\\n")
    open(f"y{{n}}/.gitmodules", "w").write("[submodule \\"" + "a" * 60000 + "\\"]\\n")
write("ready")()
say("made", wait_for(lambda: os.path.lexists(".env")))
began = time.monotonic()
def hidden():
    try: open(".env").read()
    except OSError: return True
say("masked", wait_for(hidden)); say("soon", time.monotonic() - began < 10)
"""
    over = threading.Event()

    def late() -> None:
        """Somebody outside makes the name: the command may not."""
        while not (box.workspace / "ready").exists() and not over.is_set():
            over.wait(0.002)
        (box.workspace / ".env").write_text("late")

    thread = threading.Thread(target=late)
    thread.start()
    try:
        assert box.attack(script) == {"made": "ok", "masked": "ok", "soon": True}
    finally:
        over.set()
        thread.join()
    assert not list(box.workspace.glob("[xy]*/.git/config")) and not list(box.workspace.glob("x*/.git"))


def test_F63_the_time_limit_holds_in_a_flood_of_names(box: Box) -> None:
    script = """
import itertools
for n in itertools.count():
    os.makedirs(f"y{n}/.git"); open(f"y{n}/.git/config", "w").write("[core]\\n\\tbare = false\\n" * 2000)
"""
    for seconds in (1, 10):  # where the start alone takes so long there is no flood
        done = box.run("python3", "-c", box_tools() + script, options=("--limit", f"time={seconds}s"))
        late = done.returncode == 125 and "looking for protected names took longer than 10 s" in done.stderr
        assert done.returncode == 124 or late, done
        if any(box.workspace.iterdir()):
            return
    pytest.fail("the flood did not begin")


# ---------------------------------------------------------------- 3: where nothing can be moved to


@contextmanager
def elsewhere(box: Box) -> Iterator[Path]:
    """A workspace on another file system than the state directory."""
    place = Path("/dev/shm") / f"membrane-test-{os.getpid()}"
    place.mkdir()
    try:
        assert place.stat().st_dev != box.state.stat().st_dev
        yield place
    finally:
        shutil.rmtree(place)


@pytest.mark.needs_tool("git")
@pytest.mark.guard_alone
def test_F64_too_large_to_be_moved_to_another_file_system(box: Box, tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    script = f"""
import subprocess
subprocess.run(["git", "init", "-q", "r"], check=True, env={{**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}})
with open("cfg", "w") as file:
    file.write('[core]\\n\\tfsmonitor = "touch {marker};false"\\n'); file.truncate(300 << 20)
os.rename("cfg", "r/.git/config")
os.makedirs("sub/v"); open("sub/v/tasks.json", "w").write("x"); os.truncate("sub/v/tasks.json", 300 << 20)
os.rename("sub/v", "sub/.vscode")
"""
    with elsewhere(box) as place:
        done = box.run("python3", "-c", box_tools() + script, workspace=place)
        assert done.returncode == 0, done
        assert not (place / "r/.git/config").exists() and not (place / "sub/.vscode").exists()
        git(place / "r", "status")
        [aside] = (place / "sub").iterdir()
        assert aside.name.startswith(".vscode.membrane-refused-")
        assert f"is now {aside}" in done.stderr
    assert not marker.exists()


@pytest.mark.as_root
@pytest.mark.guard_alone
def test_F64_a_full_disk(box: Box, tmp_path: Path) -> None:
    """In a mount namespace of its own: others compare the mounts of this one before and after."""
    disk = tmp_path / "disk"
    disk.mkdir()
    script = """
os.makedirs("r/.git/refs"); open("r/cfg", "w").write("[core]\\n\\tfsmonitor = x\\n")
fill = os.open("fill", os.O_WRONLY | os.O_CREAT)
try:
    while True: os.write(fill, b"x" * 4096)
except OSError as error: say("full", errno.errorcode[error.errno])
os.rename("r/cfg", "r/.git/config")
say("gone", wait_for(lambda: not os.path.exists("r/.git/config")))
sys.stdout.write(json.dumps(_results))
"""
    around = """
mount -t tmpfs -o size=4m tmpfs "$0" && cp -r "$MEMBRANE_HOME" "$0/state" && mkdir "$0/w" && cd "$0/w" || exit
MEMBRANE_HOME="$0/state" "$@"; echo " $?"; ls r/.git
"""
    command = box.arguments(("python3", "-c", box_tools() + script), ())
    run = subprocess.run(
        ["unshare", "--mount", "sh", "-c", around, str(disk), *command],
        env=box.environment, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert run.stdout == '{"full": "ENOSPC", "gone": "ok"} 0\nrefs\n', run


# ---------------------------------------------------------------- 4: what git goes on with


def _stopped_rebase(box: Box) -> None:
    repository(box)
    for branch, text in (("side", "2\n"), ("side", "4\n"), ("main", "3\n")):
        git(box.workspace, "checkout", "-q", "-b", branch)
        git(box.workspace, "checkout", "-q", branch)
        box.file("file", text)
        git(box.workspace, "commit", "-qam", text.strip())
    git(box.workspace, "checkout", "-q", "side")


def _rebase(box: Box) -> tuple[str, ...]:
    _stopped_rebase(box)
    assert git(box.workspace, "rebase", "-q", "main").returncode != 0
    return ("rebase", "--continue")


def _pick(box: Box) -> tuple[str, ...]:
    _stopped_rebase(box)
    assert git(box.workspace, "cherry-pick", "main", "main~1").returncode != 0
    return ("cherry-pick", "--continue")


PROGRAM = """
os.mkdir("git-merge-x"); open("evil", "w").write("#!/bin/sh\\ntouch " + marker + "\\n"); os.chmod("evil", 0o755)
open("file", "w").write("resolved\\n")
"""


@pytest.mark.needs_tool("git")
@pytest.mark.parametrize(
    ("stop", "name", "text"),
    [
        (_rebase, "rebase-merge/strategy", "x/../evil\n"),
        (_rebase, "rebase-merge/git-rebase-todo", "exec touch {marker}\n"),
        (_pick, "sequencer/opts", "[options]\n\tstrategy = x/../evil\n"),
    ],
)
@pytest.mark.parametrize("how", ["write", "rename"])
def test_F65_what_a_stopped_rebase_goes_on_with(
    box: Box, tmp_path: Path, stop: Callable[[Box], tuple[str, ...]], name: str, text: str, how: str
) -> None:
    goes_on = stop(box)
    marker = tmp_path / "executed"
    box.environment["MARKER"] = str(marker)
    before = tmp_path / "before"
    shutil.copytree(box.workspace, before, symlinks=True)
    text = text.format(marker=marker)
    script = PLANT + PROGRAM
    if how == "write":
        script += f'attempt("made", lambda: open(".git/{name}", "w").write({text!r}) and None)\n'
        script += "import time; time.sleep(0.3)\n"
    else:
        script += f'open("new", "w").write({text!r})\nattempt("made", lambda: os.rename("new", ".git/{name}"))\n'
    found = box.attack(script, "--env", "MARKER")
    assert found["made"] == ("ok" if how == "write" else "EACCES")
    box.control(script, cwd=before)
    for place in (box.workspace, before):
        git(place, "add", "file")
        git(place, *goes_on)
        assert marker.exists() is (place == before), place  # the control: outside it is executed
    denied = {event["access"]["path"] for event in box.record("AccessDenied")}
    assert denied == {f".git/{name}"}


# ---------------------------------------------------------------- 9: more names than can be looked at


def test_F66_a_mapping_writes_unseen_beside_thousands_of_harmless_names(box: Box) -> None:
    script = (
        NESTED
        + """
import mmap, time
for n in range(2500):
    os.makedirs(f"b/{n}/.git"); open(f"b/{n}/.git/config", "w").write("[core]\\n\\tbare = false\\n")
open("n/.git/config", "w").write("[core]\\n\\tbare = false\\n" + "#" * 100)
file = open("n/.git/config", "r+b"); shared = mmap.mmap(file.fileno(), 0); file.close()
time.sleep(0.3)
say("there", os.path.exists("n/.git/config"))
evil = b"[core]\\n\\tfsmonitor = x\\n"
shared[: len(evil)] = evil
say("gone", wait_for(lambda: not os.path.exists("n/.git/config")))
say("others", len(os.listdir("b")))
"""
    )
    done = box.run(PYTHON, "-S", "-c", TOOLS + script + REPORT)
    # On a very busy machine the last look at all of them is given up, which is said, and is no success.
    late = done.returncode == 125 and "looking for protected names took longer than 10 s" in done.stderr
    assert done.returncode == 0 or late, done
    assert box._results(done.stdout) == {"there": True, "gone": "ok", "others": 2500}
    assert late or box.moved() == {"n/.git/config"}
    assert not (box.workspace / "n/.git/config").exists()


def test_F66_who_keeps_a_protected_name_open_for_writing_loses_it(box: Box) -> None:
    script = (
        NESTED
        + """
import mmap, time
began = time.monotonic()
file = open("n/.git/config", "w+b"); file.write(b"[core]\\n\\tbare = false\\n"); file.flush()
say("gone", wait_for(lambda: not os.path.exists("n/.git/config"))); say("patient", time.monotonic() - began > 0.5)
"""
    )
    assert box.attack(script) == {"gone": "ok", "patient": True}


def test_F67_a_pointer_whose_target_is_replaced(box: Box) -> None:
    """The directory was judged; what takes its place, through a link, was not."""
    script = """
import time
for place in ("store", "away"):
    os.makedirs(f"{place}/objects"); os.makedirs(f"{place}/refs")
    open(f"{place}/HEAD", "w").write("ref: refs/heads/m\\n")
os.mkdir("sub"); open("sub/.git", "w").write("gitdir: ../store\\n"); time.sleep(0.3)
say("there", os.path.exists("sub/.git"))
os.rename("store", "s2"); os.symlink("away", "store")
say("gone", wait_for(lambda: not os.path.exists("sub/.git")))
"""
    assert box.attack(script) == {"there": True, "gone": "ok"}


@pytest.mark.parametrize("name", [".vscode", ".git", ".mcp.json", "sub/.envrc", ".claude"])
def test_F68_a_protected_name_that_is_a_link_to_itself(box: Box, name: str) -> None:
    """It stops no run, and cannot be replaced."""
    place = box.workspace / name
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(place.name)
    box.file("plain", "x")
    script = f'attempt("read", read("plain")); attempt("unlink", lambda: os.unlink({name!r}))\n'
    script += f'attempt("replace", lambda: os.rename("plain", {name!r}))'
    found = box.attack(script)
    assert found.pop("replace") in ("EBUSY", "EXDEV")  # a directory above it is bound onto itself
    assert found == {"read": "ok", "unlink": "EBUSY"}
    assert place.is_symlink()


def test_F69_ways_around_the_table_of_git(box: Box) -> None:
    """Where nobody looks (objects), where names are free (modules), by a later name, by a link, by another spelling."""
    box.file(".git/HEAD", "ref: refs/heads/main\n")
    for place in ("objects", "refs", "info"):
        (box.workspace / ".git" / place).mkdir()
    box.file("old/file", "x")
    script = """
armed = "[core]\\n\\tfsmonitor = x\\n"
def repository(place):
    os.makedirs(f"{place}/refs"); os.makedirs(f"{place}/objects"); write(f"{place}/config", armed)()
repository("evil")
attempt("a last name", write("evil/HEAD", "ref: refs/heads/m\\n"))
attempt("a link in modules", lambda: os.makedirs(".git/modules") or os.symlink("../../evil", ".git/modules/tracker"))
attempt("a probe in modules", lambda: os.symlink("testing", ".git/modules/tracker"))
os.makedirs(".git/modules/s/refs"); os.makedirs(".git/modules/s/objects"); write(".git/modules/s/HEAD", "ref: x\\n")()
os.mkdir(".git/modules/s/hooks")
attempt("a hook in modules", write(".git/modules/s/hooks/post-checkout"))
write(".git/modules/s/config.lock", armed)()
attempt("a configuration in modules", lambda: os.rename(".git/modules/s/config.lock", ".git/modules/s/config"))
attempt("a link in worktrees", lambda: os.makedirs(".git/worktrees") or os.symlink("../../evil", ".git/worktrees/w"))
repository(".git/objects/e"); write(".git/objects/e/HEAD", "ref: refs/heads/m\\n")()
os.mkdir("v")
attempt("out of objects", lambda: os.rename(".git/objects/e", "v/.git"))
attempt("out of objects, by layout", lambda: os.rename(".git/objects/e", "v/store"))
os.mkdir(".git/objects/p"); os.rename(".git/objects/e", ".git/objects/p/e")
attempt("out of objects, deeper", lambda: os.rename(".git/objects/p", "v/p"))
attempt("a link to it", lambda: os.symlink("../.git/objects/p/e", "v/.git"))
attempt("a pointer to it", write("v/.git", "gitdir: ../.git/objects/p/e\\n"))
say("taken away", wait_for(lambda: not os.path.exists("v/.git")))
os.makedirs("q/.GIT/HOOKS")
attempt("another spelling", write("q/.GIT/HOOKS/post-checkout"))
attempt("a name of ours", lambda: os.mkdir(".git/x.membrane-refused-1"))
repository(".git/x.membrane-refused-1/e")
attempt("out of it", lambda: os.rename(".git/x.membrane-refused-1", "v/.git"))
os.mkdir("q/sub"); os.mkdir("q/sub/.git"); unnamed = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o644)
attempt("an unnamed file", link_of(unnamed, "q/sub/.git/config"))
attempt("a fifo", lambda: os.mkfifo("q/sub/.git/config"))
os.mkdir("old/.git")
attempt("an old directory as a new repository", lambda: os.mkdir("old/.vscode"))
"""
    found = box.attack(script)
    went_on = {
        name: found.pop(name) for name in ("a probe in modules", "a pointer to it", "taken away", "a name of ours")
    }
    assert set(went_on.values()) == {"ok"}, went_on
    assert set(found.values()) == {"EACCES"}, found
    assert not list(box.workspace.glob(".git/modules/tracker")) and not list(box.workspace.glob("v/.git"))
