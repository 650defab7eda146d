"""Changes of a repository's ``config`` without mounts: everyday ones as outside, others not at all, by whatever way."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from inside_world import World

pytestmark = [pytest.mark.needs_kernel("landlock"), pytest.mark.needs_kernel("landlock without TCP")]
IDENTITY = "-c user.name=a -c user.email=a@example.org -c protocol.file.allow=always"
EVERYDAY = """set -e
git remote add origin ../remote.git
git push -q -u origin HEAD
git checkout -q -b side
git branch -q -u origin/main
git branch -m other
git config user.name somebody
git config branch.other.description words
git config --unset branch.other.description
git init -q
git $0 submodule --quiet add ../remote.git sub
git $0 submodule --quiet update --init
git submodule status | wc -l
git clone -q . ../inner
git worktree add -q -b third ../third
git remote rename origin upstream
git config --list --local > ../settings
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


@pytest.fixture
def app(world: World) -> Path:
    """A repository in the workspace, with a hidden file beside its ``.git``."""
    git(world, "init", "-q", "--bare", "-b", "main", "remote.git")
    git(world, "init", "-q", "-b", "main", "app")
    app = world.workspace / "app"
    (app / ".env").write_text("KEY=hidden")
    git(world, *f"-C app {IDENTITY} commit -q --allow-empty -m one".split())
    return app


def git(world: World, *command: str) -> None:
    subprocess.run(["git", *command], cwd=world.workspace, env=world.environment, check=True, timeout=60)


def test_everyday_commands_of_git_change_it_as_outside(world: World, app: Path) -> None:
    copy = world.path / "copy"
    shutil.copytree(world.workspace, copy)
    script = ["sh", "-c", EVERYDAY, IDENTITY]
    done = world.membrane("sh", "-c", 'cd app; exec sh -c "$0" "$1"', EVERYDAY, IDENTITY)
    assert (done.returncode, done.stdout.split()) == (0, ["1"]), done
    subprocess.run(script, cwd=copy / "app", env=world.environment, check=True, timeout=60, capture_output=True)
    found, control = ((top / "settings").read_text() for top in (world.workspace, copy))
    assert found.replace(str(world.workspace), str(copy)) == control and "branch.other.remote=upstream" in found
    assert (app / ".gitmodules").read_bytes() == (copy / "app" / ".gitmodules").read_bytes()
    assert not [*app.glob("*.lock"), *(app / ".git").glob("*.lock")]
    assert (app / ".git/config").stat().st_mode == (copy / "app/.git/config").stat().st_mode


OTHERS = """
import subprocess
os.chdir("app")
told = {}
def setting(*command):
    told[" ".join(command)] = subprocess.run(["git", "config", *command], capture_output=True).returncode
setting("user.name", "somebody")  # from here on the file is one that was put there
setting("core.fsmonitor", "./x")
setting("alias.x", "!x")
setting("remote.o.url", "ext::sh -c x")
def write(path, flags=os.O_WRONLY): os.write(os.open(path, flags, 0o644), b"[core]\\n\\tfsmonitor = ./x\\n")
config = ".git/config"
def planted(name):
    write(name, os.O_WRONLY | os.O_CREAT); os.rename(name, config)
def linked():
    os.link(config, "free/config"); write("free/config")
def symlinked():
    os.symlink("../free/lock", config + ".lock"); os.rename(config + ".lock", config)
def again(): write("/proc/self/fd/%d" % os.open(config, os.O_RDONLY))
os.mkdir("free"); write("free/lock", os.O_WRONLY | os.O_CREAT)
ways = {
    "write": lambda: write(config), "append": lambda: write(config, os.O_WRONLY | os.O_APPEND),
    "truncate": lambda: os.truncate(config, 0), "again": again, "unlink": lambda: os.unlink(config),
    "away": lambda: os.rename(config, "free/c"), "over": lambda: planted("free/n"),
    "lock": lambda: planted(config + ".lock"), "link": linked, "symlink": symlinked,
    "mode": lambda: os.chmod(config, 0o666), "directory": lambda: os.rename(".git", "g"),
    "exchange": lambda: check(L.renameat2(-100, b"free/lock", -100, b".git/config", 2)),
    "modules": lambda: planted(".gitmodules"),
}
good = open(config).read()
for name, way in ways.items():
    told[name] = outcome(way)
    if not os.environ.get("MEMBRANE"):  # outside it was changed
        if os.path.isdir("g"): os.rename("g", ".git")
        try: os.unlink(config)
        except OSError: pass
        open(config, "w").write(good)
    for each in (config + ".lock", "free/n"):
        try: os.unlink(each)
        except OSError: pass
os.chmod(config, 0o755); os.chmod(config, 0o644)  # as git init does
print(json.dumps(told))
"""


def test_no_other_change_is_made_by_whatever_way_and_each_is_recorded(world: World, app: Path) -> None:
    events = world.path / "events"
    before, control = (app / ".git/config").read_text(), world.path / "control"
    shutil.copytree(world.workspace, control)
    told = world.python(OTHERS, options=(f"--events={events}",))
    settings = {name: told.pop(name) for name in [*told] if " " in name}
    assert [*settings.values()] == [0, 4, 4, 4]
    assert set(told.values()) <= {"EACCES", "EXDEV", "EBUSY"}, told
    assert (app / ".git/config").read_text() == before + "[user]\n\tname = somebody\n"
    assert (app / ".git/config").stat().st_mode & 0o777 == 0o644
    refused = [json.loads(line) for line in events.read_text().splitlines()]
    hints = {each["hint"] for each in refused if each["event"] == "AccessDenied" and each["reason"] == "git setting"}
    assert {hint.split(";")[0] for hint in hints} == {
        f"{key} is no everyday setting" for key in ("core.fsmonitor", "alias.x", "remote.o.url")
    }
    assert all(hint.endswith("git_config: writable allows all") for hint in hints)
    world.workspace = control
    outside = world.python(OTHERS, outside=True)
    assert [outside.pop(name) for name in settings] == [0, 0, 0, 0] and outside["write"] == outside["append"] == "ok"


RACE = """
os.chdir("app")
lock, config = ".git/config.lock", ".git/config"
good = open(config, "rb").read() + b"[user]\\n\\tname = somebody\\n"
evil = good.replace(b"name = somebody", b"x\\n[core]\\nfsmonitor=.")
evil += b" " * (len(good) - len(evil)) if len(evil) < len(good) else b""
good += b" " * (len(evil) - len(good))
place, stop = [-1], []
def flip():
    while not stop:
        try: os.pwrite(place[0], random.choice((evil, good)), 0)
        except OSError: pass
threading.Thread(target=flip, daemon=True).start()
told = []
for _ in range(300):
    fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    os.write(fd, good); place[0] = fd
    told.append(outcome(lambda: os.rename(lock, config)))
    place[0] = -1; os.close(fd)
    if b"fsmonitor" in open(config, "rb").read(): told.append("EVIL"); break
print(json.dumps(sorted(set(told))))
"""


def test_what_changes_while_it_is_judged_is_not_put_in_place(world: World, app: Path) -> None:
    control = world.path / "control"
    shutil.copytree(world.workspace, control)
    found = world.python(RACE)
    assert "ok" in found and "EVIL" not in found and set(found) <= {"ok", "EACCES"}
    assert b"fsmonitor" not in (app / ".git/config").read_bytes()
    world.workspace = control
    assert "EVIL" in world.python(RACE, outside=True)


LEADS = """
import subprocess
os.chdir("app")
evil = os.environ["HOME"] + "/evil.git"
def git(*words): return subprocess.run(["git", *words], capture_output=True).returncode
git("init", "-q", "--bare", evil)
open(evil + "/hooks/pre-receive", "w").write("#!/bin/sh\\ntouch ran\\n")
os.chmod(evil + "/hooks/pre-receive", 0o755)
open("notes", "w").write("gitdir: " + evil + "\\n")
ways = [evil, "file://anyone" + evil, "notes"]
told = [git("remote", "add", "r%d" % number, way) for number, way in enumerate(ways)]
print(json.dumps([evil, told, git("remote", "add", "beside", "../remote.git")]))
"""


def test_an_address_leads_to_no_hook_of_the_command(world: World, app: Path) -> None:
    """``git push`` outside would run it; the home of the sandbox is a directory of the host."""
    evil, told, everyday = world.python(LEADS)
    assert 0 not in told and everyday == 0
    assert "evil" not in (app / ".git/config").read_text()
    for number, way in enumerate((evil, f"file://anyone{evil}", str(app / "notes"))):  # the control
        (app / "notes").write_text(f"gitdir: {evil}\n")
        git(world, "-C", "app", "push", "-q", way, f"HEAD:refs/heads/x{number}")
        Path(evil, "ran").unlink()
