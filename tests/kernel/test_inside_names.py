"""Names in directories that hold a hidden or read-only one, without namespaces: usual work, and each attack with its
control outside.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from started import Started

pytestmark = [
    pytest.mark.needs_kernel("landlock"),
    pytest.mark.needs_kernel("landlock without TCP"),
]

SECRET = "KEY=hidden"

PRELUDE = """
import ctypes, errno, json, os, sys, threading
L = ctypes.CDLL(None, use_errno=True)
INSIDE = bool(os.environ.get("MEMBRANE_SESSION"))
AT_FDCWD = -100
def check(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
def outcome(action):
    try:
        told = action()
        return "ok" if told is None else told
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
def read(path, **more): return os.read(os.open(path, os.O_RDONLY, **more), 100).decode()
def write(path, text="x"):
    with open(path, "w") as file: file.write(text)
"""


class Place:
    """A repository with a hidden file at its top, one in a directory, and a file that is read-only."""

    def __init__(self, path: Path) -> None:
        self.path, self.home = path / "w", path / "h"
        self.home.mkdir()
        self.make()

    def make(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        for each in (self.path, self.path / "sub", self.path / "free"):
            each.mkdir()
        for name in (".env", "sub/.env"):
            (self.path / name).write_text(SECRET)
        (self.path / "kept.txt").write_text("kept")
        (self.path / "old.txt").write_text("old")
        (self.path / ".membrane.yaml").write_text("readonly: [kept.txt]\n")

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self.home), "LANG": "C.UTF-8"}

    def run(self, *command: str, options: Sequence[str] = (), umask: int = -1) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "membrane", "-q", "--backend", "landlock", *options, "--", *command]
        return self._run(argv, umask)

    def _run(self, argv: Sequence[str], umask: int = -1) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: PLW1510
            argv, cwd=self.path, env=self.environment, capture_output=True, text=True, timeout=120, umask=umask
        )

    def python(self, body: str, *, outside: bool = False, options: Sequence[str] = ()) -> Any:
        command = ["/usr/bin/python3", "-c", PRELUDE + body]
        done = self._run(command) if outside else self.run(*command, options=options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def both(self, body: str) -> tuple[Any, Any]:
        """What a program tells outside, as the control, and inside."""
        control = self.python(body, outside=True)
        self.make()
        found = self.python(body)
        assert (self.path / ".env").read_text() == (self.path / "sub" / ".env").read_text() == SECRET
        assert (self.path / "kept.txt").read_text() == "kept"
        return control, found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


GIT = """
set -e
git init -q . ; git config user.email a@b ; git config user.name n
printf '.env\\n*.o\\n' > .gitignore
echo one > a ; git add . ; git commit -qm one
git checkout -qb two ; echo two > a ; mkdir d ; echo b > d/b ; git add . ; git commit -qm two
git checkout -q - ; test "$(cat a)" = one ; test ! -e d/b
git checkout -q two ; test "$(cat a)" = two ; test "$(cat d/b)" = b
echo three > a ; git stash -q ; test "$(cat a)" = two ; git stash pop -q ; test "$(cat a)" = three
git commit -qam three ; git mv a c ; git commit -qm four ; git reset -q --hard HEAD~1 ; test -e a ; test ! -e c
git gc -q ; git fsck --no-dangling 2>/dev/null ; git log --oneline | wc -l
"""


@pytest.mark.needs_tool("git")
@pytest.mark.parametrize("made", ["before", "inside"])
def test_git_works_in_a_repository_with_a_hidden_file(place: Place, made: str) -> None:
    if made == "before":
        place._run(["git", "init", "-q", "."])
        before = (place.path / ".git" / "config").read_text()
        config = {"GIT_AUTHOR_NAME": "n", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "n"}
        config["GIT_COMMITTER_EMAIL"] = "a@b"
        given = "".join(f"export {name}={value}\n" for name, value in config.items())
        done = place.run(
            "sh", "-c", given + GIT.replace("git init -q . ; git config user.email a@b ; git config user.name n", "")
        )
        assert (place.path / ".git" / "config").read_text() == before
    else:
        done = place.run("sh", "-c", GIT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "3"
    assert "membrane" not in " ".join(os.listdir(place.path / ".git" / "objects"))
    control = place._run(["git", "status", "--short"])
    assert ".env" not in control.stdout and control.returncode == 0, control.stderr


@pytest.mark.needs_tool("git")
def test_git_adds_no_hidden_file(place: Place) -> None:
    place._run(["git", "init", "-q", "."])
    argv = "git add . && git status --short && git check-ignore -v .env"
    done = place.run("sh", "-c", argv)
    assert done.returncode == 0, done
    assert "A  old.txt" in done.stdout and "A  .env" not in done.stdout
    control = place._run(["git", "add", "-n", "."])
    assert "add '.env'" in control.stdout


WORK = """
set -e
printf '#!/bin/sh\\necho script\\n' > s ; chmod +x s ; ./s
for n in 1 2 3 4 5 6 7 8 9 10 ; do cp /bin/true prog ; ./prog ; rm prog ; done ; cp /bin/true prog ; ./prog
mkdir -p node_modules/.bin node_modules/a/lib ; cp /bin/true node_modules/.bin/x ; ./node_modules/.bin/x
echo m > node_modules/a/lib/m ; mv node_modules/a node_modules/.a-1 ; mv node_modules/.a-1 node_modules/a
mv node_modules/.bin/x ./x ; ./x
mkdir -p sub/build ; cp /bin/true sub/build/p ; sub/build/p
ln -s a link ; ln old.txt hard ; mkfifo pipe ; (echo through > pipe &) ; cat pipe
printf 'temp' > .old.txt.swp ; mv .old.txt.swp old.txt ; cat old.txt ; echo
rm -r node_modules sub/build ; rm s prog x link hard pipe ; truncate -s 2 old.txt ; cat old.txt ; echo
ls -A
"""


def test_scripts_programs_trees_and_saves_of_editors_work_beside_a_hidden_file(place: Place) -> None:
    done = place.run("sh", "-c", WORK)
    assert (done.returncode, done.stderr) == (0, ""), done
    first, *names = done.stdout.split("\n", 4)
    assert [first, *names[:3]] == ["script", "through", "temp", "te"]
    assert names[3].split() == [".env", ".membrane.yaml", "free", "kept.txt", "old.txt", "sub"]


def test_a_descriptor_of_a_process_outside_leads_nowhere(place: Place) -> None:
    """Its link in proc(5) is one that the keeper can read, and a path to a file of the workspace."""
    held = os.open(
        place.path / ".env", os.O_RDONLY
    )  # it is shown empty: by the keeper, so what it takes that for counts
    try:
        body = f"""
outer = os.open("/proc/{os.getpid()}/fd", os.O_PATH)
own = os.open("/proc/self/fd", os.O_PATH)
mine = os.open("old.txt", os.O_RDONLY)
print(json.dumps([outcome(lambda: read("{held}", dir_fd=outer)), outcome(lambda: read(str(mine), dir_fd=own))]))
"""
        found, control = place.python(body), place.python(body, outside=True)
    finally:
        os.close(held)
    assert control == [SECRET, "old"]
    assert found == ["EACCES", "old"]


def test_modes_are_those_of_the_callers_umask(place: Place) -> None:
    body = """
os.mkdir("d1", 0o777); write("f1"); os.mkfifo("p1", 0o666)
os.umask(0o002)
os.mkdir("d2", 0o777); write("f2"); os.close(os.open("f3", os.O_WRONLY | os.O_CREAT, 0o400))
names = ("d1", "f1", "p1", "d2", "f2", "f3")
print(json.dumps([oct(os.stat(name).st_mode & 0o7777) for name in names] + [os.stat(n).st_uid for n in names]))
"""
    control, found = place.both("os.umask(0o022)\n" + body)
    assert found == control


READS = """
def by_link():
    os.symlink(".env", "l"); return read("l")
def by_hard_link(): os.link(".env", "h"); return read("h")
def by_hard_link_below(): os.link(".env", "free/h"); return read("free/h")
def by_descriptor():
    fd = os.open(".env", os.O_PATH); return read("/proc/self/fd/%d" % fd)
def by_task():
    fd, pid = os.open(".env", os.O_PATH), os.getpid()
    return read("/proc/%d/task/%d/fd/%d" % (pid, threading.get_native_id(), fd))
def by_empty_path():
    fd = os.open(".env", os.O_PATH)
    check(L.linkat(fd, b"", AT_FDCWD, b"e", 0x1000)); return read("e")
def by_link_of_descriptor():
    fd = os.open(".env", os.O_PATH)
    check(L.linkat(AT_FDCWD, b"/proc/self/fd/%d" % fd, AT_FDCWD, b"e2", 0x400)); return read("e2")
def by_rename(): os.rename(".env", "r"); return read("r")
def by_rename_back():
    try: os.rename(".env", "free/r"); return read("free/r")
    finally: INSIDE or os.rename("free/r", ".env")
def by_exchange():
    write("x"); check(L.renameat2(AT_FDCWD, b"x", AT_FDCWD, b".env", 2)); return read("x")
def by_exchange_of_the_other():
    write("free/y"); check(L.renameat2(AT_FDCWD, b"sub/.env", AT_FDCWD, b"free/y", 2)); return read("free/y")
def by_directory(): os.rename("sub", "sub2"); return read("sub2/.env")
def by_directory_below(): os.rename("sub", "free/sub"); return read("free/sub/.env")
def by_dirfd(): return read(".env", dir_fd=os.open("sub", os.O_PATH))
def by_dirfd_opened(): return read(".env", dir_fd=os.open("sub", os.O_RDONLY))
def by_dots(): return read("free/../sub/../.env")
def by_absolute(): return read(os.path.abspath(".env"))
def by_cwd(): return read("/proc/self/cwd/.env")
def by_working_directory():
    os.chdir("sub")
    try: return read(".env")
    finally: os.chdir("..")
def by_legacy_open():
    fd = check(L.syscall(2, b".env", 0)); return os.read(fd, 100).decode()
def by_openat2():
    fd = check(L.syscall(437, AT_FDCWD, b".env", bytes(24), 24)); return os.read(fd, 100).decode()
def by_copy():
    fd = os.open("c", os.O_WRONLY | os.O_CREAT); os.sendfile(fd, os.open(".env", os.O_RDONLY), 0, 100); return read("c")
def by_mount(): return read("/proc/self/root" + os.path.abspath(".env"))
def write_over(): write(".env", "KEY=hidden"); return "written"
def create_over(): os.close(check(L.creat(b".env", 0o600))); write(".env", "KEY=hidden"); return "written"
def cut(): check(L.truncate(b".env", 10)); return "cut"
def remove(): os.unlink(".env"); write(".env", "KEY=hidden"); return "removed"
def replace(): write("n", "KEY=hidden"); os.rename("n", ".env"); return "replaced"
def change_read_only(): write("kept.txt", "kept"); return "written"
def replace_read_only(): write("n", "kept"); os.rename("n", "kept.txt"); return "replaced"
def link_read_only():
    os.link("kept.txt", "k"); write("k", "kept"); return "written"
out = {}
for name in NAMES:
    out[name] = outcome(globals()[name])
    if not INSIDE:  # as it was, for the next one
        if not os.path.isdir("sub"):
            os.rename("sub2" if os.path.isdir("sub2") else "free/sub", "sub")
        write("kept.txt", "kept"); write(".env", "KEY=hidden"); write("sub/.env", "KEY=hidden")
print(json.dumps(out))
"""
NAMES = [line.split("(")[0][4:] for line in READS.splitlines() if line.startswith("def ")]


def test_no_way_by_name_leads_to_what_is_hidden_or_read_only(place: Place) -> None:
    control, found = place.both(f"NAMES = {NAMES!r}\n" + READS)
    # AT_EMPTY_PATH takes a capability before Linux 6.10
    passed = {name for name in NAMES if control[name] in (SECRET, "written", "cut", "removed", "replaced")}
    assert passed >= set(NAMES) - {"by_empty_path"}
    answers = set(found.values())
    assert answers <= {"EACCES", "EXDEV", "ENOSYS", "ENOENT", ""}, found  # some are shown empty, by name
    assert {name for name in NAMES if not found[name]} <= {name for name in NAMES if control[name] == SECRET}
    assert {name for name in NAMES if found[name] == "ENOSYS"} == {"by_openat2"}
    assert {name for name in NAMES if found[name] == "ENOENT"} <= {"by_empty_path"}


def test_a_temporary_inode_is_not_made_beside_what_is_hidden_and_programs_go_on_with_a_name(place: Place) -> None:
    control, found = place.both("""
def unnamed():
    fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600); os.write(fd, b"t")
    check(L.linkat(AT_FDCWD, b"/proc/self/fd/%d" % fd, AT_FDCWD, b"t", 0x400)); return read("t")
def below():
    fd = os.open("free", os.O_TMPFILE | os.O_RDWR, 0o600); os.write(fd, b"t"); return "made"
import tempfile
def library():
    with tempfile.TemporaryFile(dir=".") as file: file.write(b"x"); return "made"
print(json.dumps([outcome(unnamed), outcome(below), outcome(library)]))
""")
    assert control == ["t", "made", "made"] and found == ["ENOTSUP", "made", "made"]


RACES = """
import time
def race(flip, action, good):
    stop = []
    def run():
        while not stop:
            try: flip()
            except OSError: pass
    thread = threading.Thread(target=run, daemon=True); thread.start()
    told = set()
    for n in range(4000 if INSIDE else 200000):
        told.add(outcome(action))
        if n > 400 and told >= ({good} if INSIDE else {good, SECRET}): break
    stop.append(1); thread.join()
    return sorted(told)
SECRET = "KEY=hidden"
write("pub", "public"); os.symlink("pub", "l")
def link():
    os.symlink(".env", "l2"); os.replace("l2", "l"); os.symlink("pub", "l2"); os.replace("l2", "l")
buffer = ctypes.create_string_buffer(b"pub\\0\\0", 5)
def memory():
    ctypes.memmove(buffer, b".env\\0", 5); ctypes.memmove(buffer, b"pub\\0\\0", 5)
def opened():
    return os.read(check(L.open(buffer, 0)), 100).decode()
write("sw", "public"); os.symlink(".env", "sx")
def swap(): check(L.renameat2(AT_FDCWD, b"sw", AT_FDCWD, b"sx", 2))
place, sub, free = (os.open(name, os.O_PATH) for name in ("free", "sub", "free"))
write("free/.env", "public")
def descriptors(): os.dup2(sub, place); os.dup2(free, place)
print(json.dumps({
    "link": race(link, lambda: read("l"), "public"),
    "memory": race(memory, opened, "public"),
    "exchange": race(swap, lambda: read("sw"), "public"),
    "descriptors": race(descriptors, lambda: read(".env", dir_fd=place), "public"),
}))
"""


def test_what_changes_between_check_and_use_leads_to_nothing_hidden(place: Place) -> None:
    (place.path / ".membrane.yaml").write_text("ignore: ['!.env', '/.env', '/sub/.env']\n")
    control = place.python(RACES, outside=True)
    place.make()
    (place.path / ".membrane.yaml").write_text("ignore: ['!.env', '/.env', '/sub/.env']\n")
    found = place.python(RACES, options=("--trust-workspace",))
    for name, told in control.items():
        assert SECRET in told and "public" in told, name
    for name, told in found.items():
        assert SECRET not in told and "public" in told, (name, told)


def test_renames_race_with_what_is_made_in_them(place: Place) -> None:
    """A directory changes places with the one that holds the hidden file, while names are made by its path."""
    found = place.python("""
os.mkdir("a")
stop = []
def flip():
    while not stop:
        for pair in ((b"a", b"sub"), (b"a", b"free"), (b"free", b"sub")):
            L.renameat2(AT_FDCWD, pair[0], AT_FDCWD, pair[1], 2)
thread = threading.Thread(target=flip, daemon=True); thread.start()
told = set()
for n in range(600):
    for top in ("a", "sub", "free"):
        told.add(outcome(lambda: read(top + "/.env")))
        told.add(outcome(lambda: (write(top + "/n"), "made")[1]))
        told.add(outcome(lambda: os.link(top + "/.env", "free/got")))
stop.append(1); thread.join()
print(json.dumps([sorted(told), outcome(lambda: read("free/got"))]))
""")
    assert set(found[0]) <= {"EACCES", "ENOENT", "EXDEV", "made", ""} and "made" in found[0] and found[1] == "ENOENT"
    assert (place.path / "sub" / ".env").read_text() == SECRET


def test_new_names_of_rules_and_protected_ones_are_refused_and_recorded(place: Place) -> None:
    place._run(["git", "init", "-q", "."])
    (place.path / ".membrane.yaml").write_text("readonly: [kept.txt, '*.lock']\nignore: ['*.pem']\n")
    events = place.home / "events"
    body = f"""{PRELUDE}
out = {{}}
for name in ("new.pem", "free/new.pem", "a.lock", ".git/hooks/pre-commit", ".envrc", ".vscode"):
    out[name] = outcome(lambda: (os.mkdir if name == ".vscode" else write)(name))
out["by rename"] = outcome(lambda: (write("plain"), os.rename("plain", "new.pem"))[1])
out["hook by rename"] = outcome(lambda: os.rename("plain", ".git/hooks/pre-commit"))
out["git"] = outcome(lambda: os.rename(".git", "g"))
out["plain"] = outcome(lambda: write("plain2"))
print(json.dumps(out))
"""
    done = place.run("/usr/bin/python3", "-c", body, options=("--events", str(events)))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("plain") == "ok"
    assert set(found.values()) == {"EACCES"}, found
    told = [json.loads(line) for line in events.read_text().splitlines()]
    denied = {one["access"]["path"]: one["reason"] for one in told if one["event"] == "AccessDenied"}
    assert denied["new.pem"] == "hidden" and denied["a.lock"] == "read-only", denied
    assert denied[".envrc"] == "protected name"
    control = place._run(["/usr/bin/python3", "-c", body])
    after = json.loads(control.stdout)
    assert after.pop("hook by rename") == "ENOENT"  # the one before has moved it
    assert set(after.values()) == {"ok"}, control


WAYS = """
os.mkdir("free/directory")
inner = os.open("free", os.O_RDONLY)
os.symlink(f"/proc/self/fd/{inner}", "free/link")
os.symlink(f"/proc/self/task/{os.getpid()}/cwd/free", "free/task")
ways = (
    "free", "/usr/.." + os.getcwd() + "/free", "/proc/self/cwd/free", f"/proc/self/fd/{inner}", f"/dev/fd/{inner}",
    f"/proc/thread-self/fd/{inner}", f"/proc/{os.getpid()}/cwd/free", "/proc/self/root" + os.getcwd() + "/free",
    f"/proc/self/task/{os.getpid()}/cwd/free", "free/link", "free/task", f"//proc/./self/fd/{inner}",
    "/dev/../proc/self/cwd/free",
)
def attempt(action, way):
    name = f"{way}/new.pem"
    found = outcome(lambda: action(name))
    if os.path.lexists("free/new.pem"):
        (os.rmdir if os.path.isdir("free/new.pem") else os.unlink)("free/new.pem")
    return found
def moved(name):
    write("free/plain")
    os.rename("free/plain", name)
actions = (write, os.mkdir, lambda name: os.symlink("nowhere", name), lambda name: os.link("old.txt", name), moved)
out = [[attempt(action, way) for action in actions] for way in ways]
# As programs do it: what is no name of a rule is made, and what is open is opened again.
os.close(os.open(f"/proc/self/fd/{inner}/file", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
os.mkdir("/proc/self/cwd/free/directory/in")
os.rename(f"/dev/fd/{inner}/file", f"/dev/fd/{inner}/directory/moved")
file = os.open("free/directory/moved", os.O_WRONLY)
for again in (f"/proc/self/fd/{file}", f"/dev/fd/{file}", "/dev/null"):
    write(again, "again")
print(json.dumps([out, read("free/directory/moved")]))
"""


def test_no_way_to_a_directory_makes_a_name_that_may_not_be_made(place: Place) -> None:
    """By ``..`` from a directory of the system, and by links of proc(5): Landlock allows all below a free directory."""
    ways, text = place.python(WAYS, outside=True)
    assert all(set(each) == {"ok"} for each in ways) and text == "again", ways  # the control
    place.make()
    (place.path / ".membrane.yaml").write_text("ignore: ['*.pem']\n")
    ways, text = place.python(WAYS)
    assert all(set(each) <= {"EACCES", "ELOOP", "ENOENT"} for each in ways) and ways[0] == ["EACCES"] * 5, ways
    assert text == "again"
    assert not list(place.path.rglob("*.pem"))


def test_protected_names_are_refused_where_nothing_is_hidden_or_protected_yet(place: Place) -> None:
    for name in (".env", "sub/.env", ".membrane.yaml"):
        (place.path / name).unlink()
    body = """
os.makedirs("free/new/.git/hooks")
print(json.dumps([outcome(lambda: write(name)) for name in ("free/new/.git/hooks/pre-commit", ".envrc", "plain")]))
"""
    assert place.python(body) == ["EACCES", "EACCES", "ok"]
    shutil.rmtree(place.path / "free" / "new")
    assert place.python(body, outside=True) == ["ok", "ok", "ok"]


SERVERS = """
import socket
def served(path, umask):
    os.umask(umask)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(path)
        server.listen()
        client.connect(path)
        accepted, _address = server.accept()
        client.send(b"x")
        found = [accepted.recv(1).decode(), oct(os.stat(path).st_mode & 0o777), server.getsockname() == path]
    os.unlink(path)
    return found
def bound(path):
    with socket.socket(socket.AF_UNIX) as one: one.bind(path)
os.mkdir("directory")
out = [outcome(lambda: served(*each)) for each in
    (("here", 0o022), (os.getcwd() + "/here", 0o077), ("directory/here", 0), ("free/here", 0))]
out.append([outcome(lambda: bound(name)) for name in
    ("kept.txt", "new.pem", ".envrc", ".git/hooks/pre-commit", "sub/new.pem", "../here")])
print(json.dumps(out))
"""


def test_unix_sockets_are_served_beside_hidden_names_and_at_no_name_that_may_not_be_made(place: Place) -> None:
    place._run(["git", "init", "-q", "."])
    control = place.python(SERVERS, outside=True)
    place.make()
    place._run(["git", "init", "-q", "."])
    (place.path / ".membrane.yaml").write_text("readonly: [kept.txt]\nignore: ['*.pem']\n")
    (place.path.parent / "here").unlink()
    found = place.python(SERVERS)
    served = [["x", "0o755", True], ["x", "0o700", True], ["x", "0o777", True], ["x", "0o777", True]]
    assert found[:4] == control[:4] == served
    assert control[4] == ["EADDRINUSE", "ok", "ok", "ok", "ok", "ok"]
    assert found[4] == ["EADDRINUSE", *["EACCES"] * 5]
    assert not (place.path.parent / "here").exists()


MEMORY = """
import multiprocessing, stat
from multiprocessing import shared_memory
def square(number): return number * number
with multiprocessing.Pool(2) as pool: squares = pool.map(square, [2, 3])
block = shared_memory.SharedMemory(create=True, size=16)
block.buf[0] = 7
again = shared_memory.SharedMemory(block.name)
out = {"squares": squares, "shared": again.buf[0], "kept": block.name.lstrip("/")}
again.close()
def update(path):
    with open(path, "r+") as file: return file.read()
other = sys.argv[1]
name = os.path.basename(other)
out["open"] = outcome(lambda: update(other))
out["by .."] = outcome(lambda: update(f"/dev/shm/../shm/{name}"))
os.symlink(other, "/dev/shm/membrane-test-link")
out["by link"] = outcome(lambda: update("/dev/shm/membrane-test-link"))
os.unlink("/dev/shm/membrane-test-link")
write("/dev/shm/membrane-test")
out["out"] = outcome(lambda: os.rename("/dev/shm/membrane-test", "free/x"))
out["link out"] = outcome(lambda: os.link("/dev/shm/membrane-test", "x"))
out["in"] = outcome(lambda: os.rename("old.txt", "/dev/shm/membrane-test"))
os.unlink("/dev/shm/membrane-test")
out["list"] = outcome(lambda: os.listdir("/dev/shm")[:0])
out["remove"] = outcome(lambda: os.unlink(other))
block.close()
if not INSIDE: block.unlink()
print(json.dumps(out))
"""


def test_semaphores_and_shared_memory_are_the_sandboxs_own(place: Place) -> None:
    made, path = tempfile.mkstemp(dir="/dev/shm", prefix="membrane-test-")
    os.write(made, b"other")
    os.close(made)
    here = f"import sys\nsys.argv[1:] = [{path!r}]\n" + MEMORY
    try:
        found = place.python(here)
        assert Path(path).read_text() == "other"
        assert not os.path.exists(f"/dev/shm/{found.pop('kept')}")  # it was never unlinked
        control = place.python(here, outside=True)
        assert not os.path.exists(path)
    finally:
        Path(path).unlink(missing_ok=True)
    control.pop("kept")
    same = {"squares": [4, 9], "shared": 7, "out": "EXDEV", "link out": "EXDEV", "in": "EXDEV"}
    opened = dict.fromkeys(("open", "by ..", "by link"), "other")
    assert control == {**same, **opened, "list": [], "remove": "ok"}
    assert found == {
        **same,
        "open": "ENOENT",
        "by ..": "EACCES",
        "by link": "ENOENT",
        "list": "EACCES",
        "remove": "ENOENT",
    }


def test_what_is_made_outside_meanwhile_is_readable_unless_a_rule_hides_it(place: Place) -> None:
    script = (
        PRELUDE
        + """
sys.stdin.readline()
print(json.dumps([outcome(lambda: read(name)) for name in ("late.txt", ".env.d/x", ".env", "sub/late")] + [
    outcome(lambda: os.rename(".env.d", "seen")), outcome(lambda: os.link("sub/.env", "free/seen"))]), flush=True)
"""
    )
    (place.path / ".membrane.yaml").write_text("ignore: [.env.d/]\n")
    argv = [sys.executable, "-m", "membrane", "-q", "--backend", "landlock", "--", "sh", "-c"]
    argv += ["echo ready; exec /usr/bin/python3 -c '" + script.replace("'", '"') + "'"]
    with Started(
        argv, cwd=place.path, env=place.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdin is not None and run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        (place.path / "late.txt").write_text("late")
        (place.path / ".env.d").mkdir()
        (place.path / ".env.d" / "x").write_text(SECRET)
        (place.path / "new").write_text(SECRET)
        (place.path / "new").rename(place.path / ".env")  # as an editor saves it
        (place.path / "new").write_text(SECRET)
        (place.path / "new").rename(place.path / "sub" / ".env")
        (place.path / "sub" / "late").write_text("late")
        out, _said = run.communicate("go\n", timeout=60)
    assert json.loads(out) == ["late", "EACCES", "", "late", "EACCES", "EACCES"]


def test_hidden_files_that_programs_read_at_their_start_are_empty_as_natively(place: Place) -> None:
    body = """
def grown():
    os.write(os.open("/proc/self/fd/%d" % os.open(".env", os.O_RDONLY), os.O_RDWR), b"x")
def directory(): os.open(".env", os.O_RDONLY | os.O_DIRECTORY)
print(json.dumps([outcome(lambda: read(name)) for name in (".env", "sub/.env", "id_rsa")] + [outcome(directory),
    outcome(lambda: os.write(os.open(".env", os.O_RDONLY), b"x")), outcome(grown) not in ("ok", "")]))
"""
    (place.path / "id_rsa").write_text(SECRET)
    events = place.home / "events"
    found = place.python(body, options=("--events", str(events)))
    assert found == ["", "", "", "ENOTDIR", "EBADF", True]
    told = [json.loads(line) for line in events.read_text().splitlines()]
    reads = [one["access"]["path"] for one in told if one["event"] == "AccessDenied"]
    assert {".env", "sub/.env", "id_rsa"} <= set(reads)
    argv = [sys.executable, "-m", "membrane", "-q", "--no-trace", "--", "/usr/bin/python3", "-c", PRELUDE + body]
    native = place._run(argv)
    assert json.loads(native.stdout)[:5] == found[:5], native


def test_what_the_pool_has_no_inode_for_is_made_and_read_as_well(place: Place) -> None:
    found = place.python("""
for n in range(400):
    write("f%d" % n, str(n)); os.mkdir("d%d" % n); write("d%d/x" % n, str(n))
good = all(read("f%d" % n) == read("d%d/x" % n) == str(n) for n in range(400))
os.rename("d399", "moved"); listed = sorted(os.listdir("moved"));
write("moved/y"); os.unlink("moved/x"); os.unlink("moved/y")
os.rmdir("moved")
print(json.dumps([good, listed, os.path.exists("moved")]))
""")
    assert found == [True, ["x"], False]


def test_metadata_of_new_names_changes_and_of_hidden_ones_does_not(place: Place) -> None:
    control, found = place.both("""
write("n"); os.mkdir("m"); write("m/n")
print(json.dumps([outcome(lambda: os.chmod(name, 0o700)) for name in ("n", "m", "m/n", ".", ".env", "kept.txt")]))
os.chmod(".", 0o755)
""")
    assert set(control) == {"ok"}
    assert found == ["ok"] * 4 + ["EACCES"] * 2
