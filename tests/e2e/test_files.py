"""What the command sees and may change of the file system."""

from __future__ import annotations

import json
import os
import select
import subprocess
import uuid
from pathlib import Path

import pytest
from world import PATIENCE
from world.box import Box

# Every way to change or read one name; prints {operation: errno or 0}.
ATTEMPTS = """
import errno, json, os, sys
target = sys.argv[1]
scratch = "scratch"
os.makedirs(scratch, exist_ok=True)
for name in "abc": open(f"{scratch}/{name}", "w").close()
def opened(flags):
    os.close(os.open(target, flags))
def read():
    with open(target, "rb") as file: return file.read()
def write():
    with open(target, "r+b") as file: file.write(b"changed")
operations = {
    "read": read,
    "write": write,
    "append": lambda: opened(os.O_WRONLY | os.O_APPEND),
    "truncate": lambda: os.truncate(target, 0),
    "create": lambda: opened(os.O_WRONLY | os.O_CREAT),
    "chmod": lambda: os.chmod(target, 0o600),
    "utime": lambda: os.utime(target, (1, 1)),
    "setxattr": lambda: os.setxattr(target, b"user.x", b"y"),
    "link": lambda: os.link(target, f"{scratch}/link"),
    "replace": lambda: os.rename(f"{scratch}/a", target),
    "exchange": lambda: os.rename(target, f"{scratch}/moved") or os.rename(f"{scratch}/moved", target),
    "unlink": lambda: os.unlink(target),
    "symlink": lambda: os.symlink("/etc/hostname", target),
}
result = {}
for name, operation in operations.items():
    try:
        operation()
        result[name] = 0
    except OSError as error:
        result[name] = error.errno
print(json.dumps(result))
"""
IDENTITY = tuple(f"--env=GIT_{who}_{what}=agent" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL"))
ODD_NAMES = [
    b"plain.key",
    b"two words.key",
    b"new\nline.key",
    b"\xff\xfe.key",
    b"-dash.key",
    b"back\\slash.key",
    b"quote'\".key",
    b"star*.key",
    "bücher\u202e.key".encode(),
    b"x" * 251 + b".key",
]


def attempt(box: Box, target: str) -> dict[str, int]:
    done = box.run("--", "python3", "-c", ATTEMPTS, target)
    assert done.returncode == 0, done
    answer: dict[str, int] = json.loads(done.stdout)
    return answer


def inside(box: Box, script: str, *options: str) -> str:
    """The output of a shell script inside that must succeed."""
    done = box.run(*options, "--", "bash", "-euc", script)
    assert done.returncode == 0, done
    return done.stdout


def refused(box: Box, script: str, *options: str) -> bool:
    """Whether a shell script inside fails, and membrane is not why."""
    done = box.run(*options, "--", "bash", "-euc", script)
    assert done.returncode not in (78, 125), done
    return done.returncode != 0


def repository(box: Box) -> Path:
    """A git repository with one commit in the workspace."""
    identity = dict(option.removeprefix("--env=").split("=", 1) for option in IDENTITY)
    (box.workspace / "file.txt").write_text("first\n")
    for command in (["init", "-qb", "main"], ["add", "-A"], ["commit", "-qm", "first"]):
        done = box.outside("git", *command, env=identity)
        assert done.returncode == 0, done
    return box.workspace


# ---------------------------------------------------------------- the view


def test_home_is_another_one(box: Box) -> None:
    """No dotfile of the real home; the control reads the same names without membrane."""
    script = "cat ~/.ssh/id_rsa ~/.aws/credentials ~/.netrc"
    assert box.outside("bash", "-euc", script).returncode == 0
    assert refused(box, script)
    listing = inside(box, "ls -A ~; cat ~/.bashrc 2>/dev/null || true")
    assert not {".ssh", ".aws", ".netrc"} & set(listing.split())
    assert "FROM_HOST_BASHRC" not in listing
    assert inside(box, "echo $HOME").strip() == str(box.home)


def test_home_persists_per_workspace(box: Box, tmp_path: Path) -> None:
    inside(box, "echo mine > ~/note")
    assert inside(box, "cat ~/note") == "mine\n"
    assert refused(box, "cat ~/note", "--home=ephemeral")
    other = tmp_path / "other"
    other.mkdir()
    assert box.run("--", "cat", str(box.home / "note"), cwd=other).returncode == 1
    assert not (box.home / "note").exists()


def test_toolchains_of_the_home_are_readable_and_written_in_a_layer(box: Box) -> None:
    tool = box.home / ".local" / "bin" / "hello-tool"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\necho tool\n")
    tool.chmod(0o755)
    assert inside(box, "~/.local/bin/hello-tool") == "tool\n"
    inside(box, "echo echo more >> ~/.local/bin/hello-tool; echo x > ~/.local/bin/new")
    assert inside(box, "~/.local/bin/hello-tool; ls ~/.local/bin") == "tool\nmore\nhello-tool\nnew\n"
    assert [path.name for path in tool.parent.iterdir()] == ["hello-tool"]
    assert tool.read_text() == "#!/bin/sh\necho tool\n"


@pytest.mark.as_root
def test_shadow(box: Box) -> None:
    assert box.outside("cat", "/etc/shadow").returncode == 0
    assert box.run("--", "cat", "/etc/shadow").returncode == 1
    assert box.run("--view=host", "--", "cat", "/etc/shadow").returncode == 1


def test_system_is_there_and_read_only(box: Box) -> None:
    inside(box, "ls /usr/bin/env; cat /etc/passwd >/dev/null; python3 -c 'import ssl, sqlite3'")
    for path in ("/usr/bin/x", "/etc/x", "/x", "/usr/lib/x", "/proc/sys/kernel/hostname", "/sys/x"):
        assert refused(box, f"echo x > {path}"), path


def test_only_the_workspace_of_its_neighbourhood(box: Box, tmp_path: Path) -> None:
    (tmp_path / "sibling").write_text("host-secret\n")
    assert box.outside("cat", "../sibling").returncode == 0
    assert refused(box, "cat ../sibling")
    assert inside(box, "ls ..").split() in (["work"], ["home", "work"])


def test_scratch_directories_are_private(box: Box) -> None:
    name = f"from-inside-{uuid.uuid4().hex}"
    inside(box, f"echo x > /tmp/{name}; echo y > /dev/shm/{name}; cat /tmp/{name}; ls /run /var/tmp")
    assert not Path(f"/tmp/{name}").exists()
    assert not Path(f"/dev/shm/{name}").exists()
    assert refused(box, f"test -e /tmp/{name}")


def test_processes_of_the_host_are_invisible(box: Box) -> None:
    pids = [int(word) for word in inside(box, "ls /proc").split() if word.isdigit()]
    assert len(pids) < 10
    assert "holder.py" not in inside(box, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    environ = inside(box, "cat /proc/[0-9]*/environ | tr '\\0' '\\n'")
    assert "host-secret" not in environ


def test_devices(box: Box) -> None:
    names = set(inside(box, "ls /dev").split())
    assert {"null", "zero", "full", "random", "urandom", "tty", "pts", "ptmx", "shm", "fd", "stdin"} <= names
    assert not {"kvm", "fuse", "mem", "kmsg", "sda", "vda", "loop-control"} & names
    inside(box, "head -c 4 /dev/urandom >/dev/null; echo x > /dev/null")


def test_environment_is_a_short_list(box: Box) -> None:
    lines = inside(box, "env").splitlines()
    names = {line.split("=")[0] for line in lines}
    assert {"PATH", "HOME", "LANG", "TERM", "MEMBRANE", "MEMBRANE_SESSION"} <= names
    assert "SECRET_TOKEN" not in names
    assert "host-secret" in inside(box, "echo $SECRET_TOKEN", "--env", "SECRET_TOKEN")
    assert inside(box, "echo $NEW", "--env", "NEW=a b=c") == "a b=c\n"


def test_identity_and_privileges(box: Box) -> None:
    """What is made inside belongs to the caller outside; inside there is no capability to be had."""
    status = dict(line.split(":\t", 1) for line in inside(box, "cat /proc/self/status").splitlines() if ":\t" in line)
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
    assert (status["NoNewPrivs"].strip(), status["Seccomp"].strip()) == ("1", "2")
    inside(box, "touch made; mkdir made-dir")
    for name in ("made", "made-dir"):
        assert (box.workspace / name).stat().st_uid == os.getuid()
        assert (box.workspace / name).stat().st_gid == os.getgid()


@pytest.mark.as_root
def test_root_inside_is_not_root_of_the_host(box: Box) -> None:
    assert refused(box, "echo 1 > /proc/sys/kernel/hostname")
    assert refused(box, "mount -t tmpfs none /tmp")
    assert refused(box, "unshare -Ur true")


def test_canonical_workspace(box: Box, tmp_path: Path) -> None:
    """Spaces in the path; entered by a symbolic link; the real path is what the command sees."""
    real = tmp_path / "with two spaces"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    done = box.run("--", "bash", "-c", "pwd -P; echo x > made; exit 37", cwd=tmp_path / "link")
    assert (done.stdout, done.returncode) == (f"{real}\n", 37)
    assert (real / "made").read_text() == "x\n"


def test_host_view(box: Box) -> None:
    """sandbox-runtime's: everything can be read, the workspace can be written."""
    assert refused(box, "test -d /boot")
    inside(box, "test -d /boot; test -d /srv; echo x > made", "--view=host")
    assert (box.workspace / "made").exists()
    for path in ("/srv/new", "/usr/new", "/etc/new"):
        assert refused(box, f"echo x > {path}", "--view=host")


def test_mounts(box: Box, tmp_path: Path) -> None:
    for name in ("ro", "rw"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(f"{name}\n")
    assert refused(box, f"cat {tmp_path}/ro/file")
    options = (f"--mount={tmp_path}/ro", f"--mount={tmp_path}/rw:rw")
    assert inside(box, f"cat {tmp_path}/ro/file; echo x > {tmp_path}/rw/new", *options) == "ro\n"
    assert refused(box, f"echo x > {tmp_path}/ro/new", *options)
    assert (tmp_path / "rw" / "new").read_text() == "x\n"
    assert box.run(f"--mount={tmp_path}/missing", "--", "true").returncode in (78, 125)


def test_contradicting_mounts(box: Box, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    done = box.run(f"--mount={tmp_path}/tree:ro", f"--mount={tmp_path}/tree:rw", "--", "true")
    assert done.returncode == 78, done
    assert f"{tmp_path}/tree" in done.stderr
    assert box.run(f"--mount={tmp_path}/tree:ro", f"--mount={tmp_path}/tree:ro", "--", "true").returncode in (0, 78)


def test_git_root_mount(box: Box) -> None:
    repository(box)
    below = box.workspace / "deep" / "er"
    below.mkdir(parents=True)
    assert box.run("--", "cat", "../../file.txt", cwd=below).returncode == 1
    box.allow(mounts=[{"type": "git-root", "mode": "ro"}])
    done = box.run(
        "--", "bash", "-c", "cat ../../file.txt; echo x > ../../file.txt || echo refused; echo y > own", cwd=below
    )
    assert done.stdout == "first\nrefused\n", done
    assert (below / "own").exists()


# ---------------------------------------------------------------- ignore, readonly


def test_a_workspace_far_below_the_home(box: Box) -> None:
    """The directories above it stay put, and each costs mounts of a fixed number, not twice what is there."""
    script = """
import os, sys
above = os.path.relpath(os.getcwd(), os.environ["HOME"]).split("/")[:-1]
moved = []
for count in range(1, len(above) + 1):
    path = os.path.join(os.environ["HOME"], *above[:count])
    try:
        os.rename(path, path + "-moved")
        moved.append(path)
    except OSError as error:
        assert error.errno == 16, error
print(len(above), moved, sum(1 for _ in open("/proc/self/mounts")))
"""

    def mounts(depth: int) -> int:
        workspace = box.home.joinpath(*(f"d{number}" for number in range(depth + 1)))
        workspace.mkdir(parents=True, exist_ok=True)
        done = box.run("--home=ephemeral", "--", "python3", "-c", script, cwd=workspace)
        assert done.returncode == 0, done
        found, moved, number = done.stdout.split()
        assert (int(found), moved) == (depth, "[]")
        return int(number)

    few, many = mounts(2), mounts(32)  # a doubling with each would be more than the kernel gives a namespace
    assert many - few <= 4 * 30


def test_everything_works_on_an_ordinary_file(box: Box) -> None:
    """The positive control of the next two."""
    (box.workspace / "file").write_text("text")
    assert set(attempt(box, "file").values()) == {0}


def test_hidden(box: Box) -> None:
    box.allow(ignore=["secret.txt", "vault/"])
    (box.workspace / "secret.txt").write_text("host-secret")
    (box.workspace / "vault").mkdir()
    (box.workspace / "vault" / "deep").write_text("host-secret")
    for target in ("secret.txt", "vault/deep"):
        results = attempt(box, target)
        if target == "secret.txt":
            assert results.pop("read") == 0 and inside(box, "cat secret.txt; ls -A vault") == ""
        assert 0 not in results.values(), (target, results)
    assert 0 not in [attempt(box, "vault")[name] for name in ("replace", "exchange", "unlink", "symlink", "chmod")]
    assert (box.workspace / "secret.txt").read_text() == "host-secret"
    assert (box.workspace / "vault" / "deep").read_text() == "host-secret"


def test_readonly(box: Box) -> None:
    box.allow(readonly=["config.yaml"])
    (box.workspace / "config.yaml").write_text("value")
    results = attempt(box, "config.yaml")
    assert results.pop("read") == 0
    # A hard link is another name of the same inode: it must fail, or be read-only too; EXDEV from a mount is that.
    assert 0 not in results.values(), results
    assert (box.workspace / "config.yaml").read_text() == "value"


def test_gitignore_semantics(box: Box) -> None:
    box.allow(ignore=["*.pem", "!public.pem", "/top", "build/", "docs/**/draft"])
    made = ["a.pem", "x/b.pem", "public.pem", "top", "x/top", "build", "y/build/z", "docs/a/b/draft", "docs/c/final"]
    for name in made:
        path = box.workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    script = "for f in " + " ".join(made) + "; do grep -qs . $f && echo $f; done; true"
    assert inside(box, script).split() == ["public.pem", "x/top", "build", "docs/c/final"]


def test_parents_of_masks_stay_put(box: Box) -> None:
    """Moving a directory away and making it anew would leave the mask behind."""
    box.allow(ignore=["a/b/secret"])
    (box.workspace / "a" / "b").mkdir(parents=True)
    (box.workspace / "a" / "b" / "secret").write_text("host-secret")
    script = "mv a z 2>/dev/null; mv a/b a/y 2>/dev/null; cat $(find . -name secret) 2>/dev/null; true"
    assert box.outside("cat", "a/b/secret").stdout == "host-secret"
    done = box.run("--", "bash", "-c", script)
    assert (done.stdout, done.returncode) == ("", 0), done
    assert (box.workspace / "a" / "b" / "secret").read_text() == "host-secret"


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_odd_names(box: Box, name: bytes) -> None:
    path = os.fsencode(box.workspace) + b"/" + name
    Path(os.fsdecode(path)).write_text("host-secret")
    (box.workspace / "open.txt").write_text("open")
    assert "host-secret" in inside(box, "cat -- *")
    box.allow(ignore=["*.key"])
    out = inside(box, "cat -- * 2>/dev/null || true")
    assert out == "open"
    assert os.listdir(os.fsencode(box.workspace)).count(name) == 1


@pytest.mark.parametrize("count", [1000, 10000])
def test_many_masks(box: Box, count: int) -> None:
    for number in range(count):
        (box.workspace / f"{number}.key").write_text("s")
    (box.workspace / "open.txt").write_text("open")
    assert inside(box, "cat *.key | wc -c").strip() == str(count)
    box.allow(ignore=["*.key"])
    script = (
        "import glob\nn = 0\nfor p in glob.glob('*'):\n  try: n += len(open(p).read())\n"
        "  except OSError: pass\nprint(n)"
    )
    assert box.run("--", "python3", "-c", script).stdout == "4\n"


def converse(box: Box, script: str) -> subprocess.Popen[bytes]:
    """A script inside that says ``ready`` and then waits for a line before it goes on."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = box.popen("--", "bash", "-c", f"echo ready; read line; {script}", **pipes)
    assert process.stdout
    assert select.select([process.stdout], [], [], PATIENCE)[0]
    assert os.read(process.stdout.fileno(), 6) == b"ready\n"
    return process


UNTIL_MASKED = "for i in $(seq 6000); do grep -qs . {0} || {{ echo masked; break; }}; sleep 0.02; done; cat other"


@pytest.mark.parametrize("how", ["appears", "atomic save", "parent appears", "moved in"])
def test_masks_follow_the_host(box: Box, tmp_path: Path, how: str) -> None:
    """A host process makes or replaces the file during the run; ``other`` is the control."""
    box.allow(ignore=["*.env"])
    name = "new/deep/x.env" if how in ("parent appears", "moved in") else "x.env"
    target = box.workspace / name
    if how == "atomic save":
        target.write_text("old secret")
    process = converse(box, UNTIL_MASKED.format(name))
    (box.workspace / "other").write_text("other\n")
    fresh = tmp_path / "fresh"
    if how == "moved in":
        (fresh / "deep").mkdir(parents=True)
        (fresh / "deep" / "x.env").write_text("host-secret")
        fresh.rename(box.workspace / "new")
    elif how == "atomic save":
        (box.workspace / ".x.swp").write_text("host-secret")
        (box.workspace / ".x.swp").rename(target)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("host-secret")
    out, err = process.communicate(b"go\n", timeout=PATIENCE)
    assert out == b"masked\nother\n", (out, err)
    assert target.read_text() == "host-secret"


def test_a_matching_name_made_inside_is_of_no_use(box: Box) -> None:
    """It cannot be made, or cannot be read again; the control makes another name."""
    box.allow(ignore=["*.env"])
    script = "echo x > fine.txt; cat fine.txt; echo x > made.env; "
    process = converse(box, script + UNTIL_MASKED.format("made.env"))
    (box.workspace / "other").write_text("other\n")
    out, _ = process.communicate(b"go\n", timeout=PATIENCE)
    assert out.split()[0] == b"x"
    assert b"masked" in out


# ---------------------------------------------------------------- protected names


@pytest.mark.parametrize(
    "script",
    [
        "echo '#!/bin/sh' > .git/hooks/pre-commit",
        "echo x >> .git/config",
        "rm .git/config",
        "mv .git .g && mkdir -p .git/hooks",
        "rm -rf .git/hooks && mkdir .git/hooks",
        "mv .git/hooks .git/h",
        "ln -s /tmp .git/hooks/x",
        "git config core.fsmonitor /tmp/evil",
        "git config --local core.hooksPath /tmp",
        "echo x > nested/.git/hooks/post-checkout",
        "mv nested n2 && mkdir -p nested/.git/hooks && echo x > nested/.git/hooks/post-checkout",
        "echo '{}' > .mcp.json.x && mv .mcp.json.x .claude/settings.json",
        "echo x >> .bashrc",
        "echo x > .vscode/tasks.json",
    ],
)
def test_protected_names_that_exist(box: Box, script: str) -> None:
    top = repository(box)
    for path in (".claude/settings.json", ".bashrc", ".vscode/tasks.json"):
        (top / path).parent.mkdir(exist_ok=True)
        (top / path).write_text("host\n")
    box.outside("git", "init", "-q", "nested")
    digest = box.outside(
        "bash", "-c", "find . -path ./tmp -prune -o -type f -print0 | sort -z | xargs -0 sha1sum"
    ).stdout
    box.run("--", "bash", "-c", script)
    after = box.outside(
        "bash", "-c", "find . -path ./tmp -prune -o -type f -print0 | sort -z | xargs -0 sha1sum"
    ).stdout
    changed = set(digest.splitlines()) - set(after.splitlines())
    assert not changed, f"changed or removed: {changed}"
    assert not (top / ".git" / "hooks" / "pre-commit").exists()
    assert not (top / ".git" / "hooks" / "x").is_symlink()
    assert not (top / "nested" / ".git" / "hooks" / "post-checkout").exists()


@pytest.mark.parametrize(
    "name",
    [".mcp.json", ".claude/settings.json", ".vscode/tasks.json", ".envrc", ".bashrc", ".membrane.yaml", ".MCP.json"],
)
def test_protected_names_that_appear(box: Box, name: str) -> None:
    """The command may be refused or see its file taken away: at the end the host has none, and is told."""
    done = box.run(
        f"--events={box.events_path}",
        "--",
        "bash",
        "-c",
        f"mkdir -p $(dirname {name}); echo '{{}}' > {name}; echo ordinary > fine",
    )
    assert (box.workspace / "fine").read_text() == "ordinary\n"
    assert not (box.workspace / name).exists()
    told = box.events("NameQuarantined") + box.events("AccessDenied")
    first = name.split("/", maxsplit=1)[0].lower()
    assert any(first in json.dumps(event).lower() for event in told) or "ermission" in done.stderr, done
    assert "membrane: " in done.stderr


def test_no_ghosts(box: Box) -> None:
    """Nothing of ours stays in the workspace: no placeholder for a name that might have appeared."""
    repository(box)
    before = sorted(str(p) for p in box.workspace.rglob("*"))
    box.allow(ignore=["*.env", "secrets/"], readonly=["late.txt"])
    inside(box, "ls -la >/dev/null")
    assert sorted(str(p) for p in box.workspace.rglob("*")) == before


def test_symlinked_and_separate_git_directories(box: Box, tmp_path: Path) -> None:
    """``.git`` is a link or a file: what it points to is protected too, where it is in the view."""
    top = repository(box)
    (top / ".git").rename(top / "gitdir")
    (top / ".git").symlink_to("gitdir")
    inside(box, "git status --porcelain")
    assert refused(box, "echo x >> .git/config")
    assert refused(box, "echo x >> gitdir/config")
    assert refused(box, "echo x > gitdir/hooks/pre-commit")
    box.run("--", "bash", "-c", "rm .git; mkdir -p .git/hooks; echo x > .git/hooks/pre-commit")
    assert (top / ".git").is_symlink()


# ---------------------------------------------------------------- real work


def test_git(box: Box) -> None:
    """The everyday life of a repository, with protections in force."""
    repository(box)
    script = """
    git status --porcelain
    echo change >> file.txt; echo new > new.txt
    git add -A; git commit -qm second
    echo wip >> file.txt; git stash -q; git stash pop -q; git checkout -q file.txt
    git checkout -qb topic HEAD~1; echo t > topic.txt; git add topic.txt; git commit -qm topic
    git rebase -q main
    git checkout -q main; git merge -q --no-edit topic
    git worktree add -q wt -b other; git -C wt status --porcelain; git -C wt log --oneline | wc -l
    git worktree remove wt
    git tag v1; git gc -q; git fsck --no-progress
    git log --format=%s
    """
    done = box.run(*IDENTITY, "--", "bash", "-euc", script)
    assert done.returncode == 0, done
    assert done.stdout.split()[-3:] == ["topic", "second", "first"]
    assert box.outside("git", "status", "--porcelain").stdout == ""
    assert box.outside("git", "fsck").returncode == 0


def test_git_init_and_clone_inside(box: Box) -> None:
    script = """
    git init -qb main fresh; cd fresh; echo x > f; git add f; git commit -qm one
    cd ..; git clone -q fresh copy; git -C copy log --oneline | wc -l
    """
    done = box.run(*IDENTITY, "--", "bash", "-euc", script)
    assert (done.stdout.strip(), done.returncode) == ("1", 0), done


def test_make_and_gcc(box: Box) -> None:
    (box.workspace / "main.c").write_text('#include <stdio.h>\nint main(void) { puts("built"); return 0; }\n')
    (box.workspace / "Makefile").write_text("prog: main.o\n\tcc -o prog main.o\nmain.o: main.c\n\tcc -c main.c\n")
    assert inside(box, "make -s -j2; ./prog") == "built\n"


def test_sqlite(box: Box) -> None:
    script = "sqlite3 data.db 'pragma journal_mode=wal; create table t(x); insert into t values (42); select x from t;'"
    assert inside(box, script).split() == ["wal", "42"]
    assert box.outside("sqlite3", "data.db", "select x from t").stdout == "42\n"


def test_pytest(box: Box, request: pytest.FixtureRequest) -> None:
    import sys

    (box.workspace / "test_it.py").write_text("def test_it(tmp_path):\n    (tmp_path / 'x').write_text('x')\n")
    done = box.run(f"--mount={sys.prefix}", "--", sys.executable, "-m", "pytest", "-q", "test_it.py")
    assert "1 passed" in done.stdout, done


def test_pip_install(box: Box) -> None:
    """Into a virtual environment in the workspace, from the index that the default policy allows."""
    script = """
    python3 -m venv venv
    venv/bin/pip install --isolated --disable-pip-version-check -q demo-pkg
    venv/bin/python -c 'import demo_pkg; print(demo_pkg.NAME)'
    """
    box.policy("allow: []\n")
    assert inside(box, script, *box.tls) == "demo\n"


def test_npm_install(box: Box) -> None:
    (box.workspace / "package.json").write_text('{"name": "app", "version": "1.0.0"}')
    box.policy("allow: []\n")
    script = "npm install --no-audit --no-fund --silent demo-pkg; node -p 'require(\"demo-pkg\")'"
    assert inside(box, script, *box.tls) == "demo\n"


@pytest.mark.needs_tool("cargo")
def test_cargo_build(box: Box) -> None:
    toolchain = subprocess.run(
        ["rustc", "--print", "sysroot"], check=True, capture_output=True, text=True
    ).stdout.strip()
    (box.workspace / "src").mkdir()
    (box.workspace / "src" / "main.rs").write_text('fn main() { println!("built"); }\n')
    (box.workspace / "Cargo.toml").write_text('[package]\nname = "app"\nversion = "0.1.0"\nedition = "2021"\n')
    options = (f"--mount={toolchain}", f"--env=PATH={toolchain}/bin:/usr/bin:/bin")
    assert inside(box, "cargo build -q --offline; target/debug/app", *options) == "built\n"


@pytest.mark.needs_tool("go")
def test_go_build(box: Box) -> None:
    (box.workspace / "go.mod").write_text("module example.test/app\n\ngo 1.18\n")
    (box.workspace / "main.go").write_text('package main\n\nfunc main() { println("built") }\n')
    assert inside(box, "go build -o app . && ./app 2>&1", "--env=GOFLAGS=-mod=mod") == "built\n"


def test_disk_full_is_said_by_the_command(box: Box) -> None:
    """A limit on the private scratch space: ENOSPC inside, membrane itself unharmed."""
    done = box.run("--limit=disk=20M", "--", "bash", "-c", "head -c 60M /dev/zero > /tmp/x; echo status $?")
    assert "No space left" in done.stderr or "File size limit" in done.stderr, done
    assert done.stdout != "status 0\n"


def test_further_down_the_rules_of_the_project_hold(box: Box) -> None:
    """Also after a command made a repository there, which would be another project."""
    sub = box.workspace / "src"
    (sub / "keys").mkdir(parents=True)
    (sub / "keys" / "a").write_text("secret of the project")
    script = "git init -q . 2>/dev/null || mkdir -p .git; cat keys/a; echo changed > fixed"
    control = box.run("--", "sh", "-c", script, cwd=sub)
    assert control.stdout == "secret of the project" and (sub / "fixed").read_text() == "changed\n"
    (box.workspace / ".membrane.yaml").write_text("ignore: [src/keys/]\nreadonly: [src/fixed]\n")
    (sub / "fixed").write_text("as it was")
    for _ in range(2):
        done = box.run("--", "sh", "-c", script, cwd=sub)
        assert "secret of the project" not in done.stdout and done.returncode != 0, done
        assert (sub / "fixed").read_text() == "as it was"
    assert (sub / ".git").is_dir()


@pytest.mark.as_user
def test_a_directory_that_is_closed_for_a_moment_stays_the_commands(box: Box) -> None:
    """One that is closed whole shows nothing; one that can be searched is covered, once, however often it is moved."""
    script = """
import os, stat, time
def cover(name):  # made, and covered as soon as the supervisor has seen it
    os.mkdir(name, 0o311)
    end = time.monotonic() + 60
    while stat.S_IMODE(os.stat(name).st_mode):
        assert time.monotonic() < end, name
        time.sleep(0.005)
os.mkdir("own")
os.mkdir("at-0")
os.mkdir("own/closed", 0)
cover("at-0/0")
os.chmod("own/closed", 0o700)
open("own/closed/file", "w").close()
os.remove("own/closed/file")
os.rmdir("own/closed")
for number in range(1, 6):
    os.rename(f"at-{number - 1}", f"at-{number}")
    cover(f"at-{number}/{number}")
mounts = [line.split()[4] for line in open("/proc/self/mountinfo")]
print(*[sum(at.endswith(f"/at-5/{number}") for at in mounts) for number in range(6)])
"""
    done = box.run("-q", "--", "python3", "-c", script)
    for path in (box.workspace / "at-5").iterdir():
        path.chmod(0o700)
    assert (done.returncode, done.stdout.split()) == (0, ["1"] * 6), done
