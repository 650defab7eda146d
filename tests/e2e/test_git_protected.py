"""What git brings under protected names is there and tracked, or git fails: never silently away.

The same sequences of git run inside and outside of the sandbox, and the two repositories are compared; then what the
command may try with a name that is let through.
"""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest
from world.box import Box

from membrane.workspace import commits, objects

pytestmark = pytest.mark.needs_tool("git")

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nowhere",
    "LC_ALL": "C",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_EDITOR": "true",
    **{f"GIT_{who}_NAME": "a" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": "a@example.test" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_DATE": "2020-01-01T00:00:00Z" for who in ("AUTHOR", "COMMITTER")},
}
INSIDE = tuple(f"--env={name}={value}" for name, value in ENVIRONMENT.items() if name not in ("PATH", "HOME"))
NAMES = (
    ".mcp.json",
    ".envrc",
    ".vscode/settings.json",
    ".vscode/sub/tasks.json",
    ".husky/pre-commit",
    "deep/.claude/commands/x.md",
)


def git(place: Path, *command: str) -> str:
    done = subprocess.run(
        ["git", "-c", "init.defaultBranch=main", *command],
        cwd=place, env=ENVIRONMENT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def put(place: Path, name: str, text: str, mode: int = 0o644) -> None:
    path = place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def repository(place: Path) -> None:
    """Branches that hold different protected names with different contents; ``main`` holds none."""
    place.mkdir(exist_ok=True)
    git(place, "init", "-q")
    put(place, "file", "0\n")
    git(place, "add", "."), git(place, "commit", "-qm", "0")
    for branch in range(3):
        git(place, "switch", "-qc", f"b{branch}", "main")
        for commit in range(3):
            for number, name in enumerate(NAMES):
                if (number + branch + commit) % 3:
                    put(
                        place,
                        name,
                        f"{branch if number % 2 else 0} {commit}\n" * 20,
                        0o755 if "husky" in name else 0o644,
                    )
                else:
                    (place / name).unlink(missing_ok=True)
            put(place, f"f{branch}", f"{commit}\n")
            git(place, "add", "-A"), git(place, "commit", "-qm", f"{branch} {commit}")
    git(place, "switch", "-q", "main"), git(place, "clean", "-qfdx")


def shown(place: Path) -> tuple[str, ...]:
    head, status = git(place, "rev-parse", "HEAD"), git(place, "status", "--porcelain", "-uall")
    return head, status, git(place, "ls-files", "-s"), git(place, "stash", "list")


STEPS = """
git switch -q ONE
git switch -q ONE
git switch -q main
git checkout -q ONE~1
git merge -q --no-edit ONE || git merge --abort
git rebase -q ONE || git rebase --abort
echo x >> file; git stash -q; git switch -q b1; git stash pop -q; git checkout -q file
git cherry-pick ONE || git cherry-pick --abort
git reset -q --hard ONE
git bisect start HEAD HEAD~2; git bisect good; git bisect reset
git restore -s ONE -SW .; git reset -q --hard
git worktree add -q wt ONE; git worktree remove --force wt
git clone -q . c -b ONE; rm -rf c
"""
STATE, END = "== the state ==\n", "== the end ==\n"  # git says neither
_LOOK = "git rev-parse HEAD; git status --porcelain -uall; git ls-files -s; git stash list"
TELL = f"echo '{STATE.strip()}'; {_LOOK}; echo '{END.strip()}'"


def work(seed: int) -> list[str]:
    """Steps of a random session; after each the state is told."""
    chance = random.Random(seed)
    steps = STEPS.strip().splitlines()
    return [chance.choice(steps).replace("ONE", f"b{chance.randrange(3)}") for _ in range(14)]


@pytest.mark.parametrize("seed", range(4))
def test_a_session_of_git_is_the_same_inside_and_outside(box: Box, tmp_path: Path, seed: int) -> None:
    """After each step the state is as outside, or git has failed (two contents were merged), and nothing is missing."""
    outside = tmp_path / "outside"
    repository(outside)
    repository(box.workspace)
    assert shown(outside) == shown(box.workspace)
    script = "\n".join(f"{{ {step}; }} </dev/null 2>&1\n{TELL}" for step in work(seed))
    control = subprocess.run(
        ["bash", "-c", script], cwd=outside, env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    done = box.run(*INSIDE, "--", "bash", "-c", script)
    assert done.returncode == 0, done
    compared = 0
    for step, there, here in zip(work(seed), control.stdout.split(END), done.stdout.split(END), strict=False):
        said, _, state = here.partition(STATE)
        if state != there.partition(STATE)[2]:
            assert "fatal: " in said or "error: " in said, (step, here, there, done.stderr)
            assert "\n D " not in state, (step, here, done.stderr)
            break
        compared += 1
    assert compared >= 2
    if compared == len(work(seed)):
        assert shown(box.workspace) == shown(outside)


def refused(box: Box, script: str) -> str:
    done = box.run(*INSIDE, "--", "bash", "-c", script)
    return done.stdout


@pytest.fixture
def repo(box: Box) -> Box:
    place = box.workspace
    git(place, "init", "-q")
    put(place, "file", "1\n")
    git(place, "add", "."), git(place, "commit", "-qm", "1")
    git(place, "switch", "-qc", "feat")
    put(place, ".mcp.json", "{}\n"), put(place, ".vscode/settings.json", "{ }\n")
    git(place, "add", "-A"), git(place, "commit", "-qm", "2")
    git(place, "switch", "-q", "main")
    return box


@pytest.mark.parametrize("attempt", [
    "echo evil > .mcp.json", "git switch -q feat; echo evil >> .mcp.json",
    "git switch -q feat; truncate -s 1 .mcp.json",
    "git switch -q feat; chmod +x .mcp.json", "git switch -q feat; ln .mcp.json other",
    "git switch -q feat; echo evil > x; mv x .mcp.json", "git switch -q feat; echo {} > .vscode/tasks.json",
    "git switch -q feat; mkdir .vscode/more", "git switch -q feat; ln -s file .vscode/link",
    "git switch -q feat; mv .vscode v; mv v .vscode", "ln -s file .mcp.json", "echo {} > .MCP.json", "mkdir .mcp.json",
    "echo {} > .vscode",
])  # fmt: skip
def test_only_what_a_commit_has_is_let_through(repo: Box, attempt: str) -> None:
    assert "errno 1\n" in refused(repo, f"{attempt} 2> err; echo errno $?; grep -q 'Permission denied' err") + "\n"
    there = repo.workspace / ".mcp.json"
    assert not there.exists() or there.read_bytes() == b"{}\n"


OWN, RELEASED = '[toolchain]\npath = "mine"\n', '[toolchain]\nchannel = "1.78.0"\n'


@pytest.mark.parametrize(
    ("then", "text"),
    [
        ("true", OWN),  # a person's own choice, which a commit from before the run has
        (f"printf '%s' '{RELEASED}' > rust-toolchain.toml", RELEASED),
        ("git rm -q rust-toolchain.toml", ""),
        ("sed -i s/mine/other/ rust-toolchain.toml", None),  # put aside, and what the commit has may be put back
    ],
)
def test_a_choice_of_tools_that_a_commit_has_may_be_changed_for_a_harmless_one(
    repo: Box, then: str, text: str | None
) -> None:
    place, name = repo.workspace, "rust-toolchain.toml"
    git(place, "switch", "-q", "feat")
    put(place, name, OWN)
    git(place, "add", "-A"), git(place, "commit", "-qm", "3")
    git(place, "switch", "-q", "main")
    done = repo.run(*INSIDE, "--", "bash", "-c", f"git switch -q feat; echo $?; git status --porcelain; {then}")
    assert done.stdout == "0\n", done
    found = (place / name).read_text() if (place / name).exists() else ""
    assert found == text if text is not None else found in ("", OWN), found


WRITE = """
import mmap, os, sys, time
fd = os.open(".mcp.json", int(sys.argv[1]) | os.O_CREAT | os.O_EXCL)
os.write(fd, sys.argv[2].encode())
if len(sys.argv) > 3:
    time.sleep(0.1)
    os.pwrite(fd, sys.argv[3].encode(), 0)
os.close(fd)
until = time.monotonic() + 60
while os.path.exists(".mcp.json") and time.monotonic() < until:
    pass
print(os.path.exists(".mcp.json"))
"""


@pytest.mark.parametrize("texts", [["evil"], ["{"], ["{}\n", "ev"], ["{}\nmore"]])
def test_bytes_of_no_commit_are_put_aside(repo: Box, texts: list[str]) -> None:
    """A file that is opened as git opens it is let through, and judged by its content."""
    done = repo.run("--", "python3", "-c", WRITE, str(os.O_WRONLY), *texts)
    assert done.stdout == "False\n", done
    assert not (repo.workspace / ".mcp.json").exists()


def test_a_file_that_could_be_mapped_is_not_let_through(repo: Box) -> None:
    assert "PermissionError" in repo.run("--", "python3", "-c", WRITE, str(os.O_RDWR), "{}\n").stderr


# Else git refuses to overwrite it, before anything of ours is asked.
PUT_ASIDE = "timeout 60 bash -c 'while test -e .mcp.json; do sleep 0.01; done'; "


def test_a_commit_made_inside_is_none_from_before(repo: Box) -> None:
    """Nor are refs, replacements and grafts that the command writes; outside the same checkout works."""
    script = """
    blob=$(echo evil | git hash-object -w --stdin); export GIT_INDEX_FILE=/tmp/own
    git read-tree main; git update-index --add --cacheinfo 100644,$blob,.mcp.json
    commit=$(git commit-tree -p main -m x $(git write-tree)); unset GIT_INDEX_FILE
    git update-ref refs/heads/evil $commit; git update-ref refs/replace/$(git rev-parse feat) $commit
    """
    done = repo.run(
        *INSIDE,
        "--",
        "bash",
        "-c",
        script + "git switch -q evil; echo $?; " + PUT_ASIDE + "git switch -q feat; echo $?; git status --porcelain",
    )
    assert done.stdout.startswith("128\n128\n"), done
    assert not (repo.workspace / ".mcp.json").exists()
    git(repo.workspace, "checkout", "-qf", "evil")
    assert (repo.workspace / ".mcp.json").read_text() == "evil\n"


def test_an_object_that_was_exchanged_is_not_believed(repo: Box) -> None:
    place = repo.workspace
    name = git(place, "rev-parse", "feat:.mcp.json").strip()
    other = git(place, "hash-object", "-w", "file").strip()
    path = f".git/objects/{name[:2]}/{name[2:]}"
    done = repo.run(
        *INSIDE, "--", "bash", "-c",
        f"chmod -R u+w .git/objects; cat .git/objects/{other[:2]}/{other[2:]} > {path}; git switch -q feat; echo $?",
    )  # fmt: skip
    there = place / ".mcp.json"
    assert not there.exists() or there.read_text() == "{}\n", done


def test_git_fails_where_a_name_of_the_start_would_have_to_change(repo: Box) -> None:
    """Bound read-only as before the run: git would go on, and end with 0."""
    git(repo.workspace, "switch", "-q", "feat")
    done = repo.run(*INSIDE, "--", "bash", "-c", "git switch main; echo $?; git rev-parse --abbrev-ref HEAD")
    assert done.stdout == "128\nfeat\n", done
    assert "index" in done.stderr
    assert git(repo.workspace, "ls-files", "-d") == ""


@pytest.mark.parametrize("name", [".cursor", ".env"])
def test_git_fails_where_a_name_may_not_be_made(repo: Box, name: str) -> None:
    """A link under a name of tools, a name that a rule hides: outside git switches, inside it used to leave `` D``."""
    place = repo.workspace
    git(place, "switch", "-qc", "more")
    os.symlink("file", place / name)
    git(place, "add", "-Af"), git(place, "commit", "-qm", "3")
    git(place, "switch", "-q", "main")
    repo.policy("presets: []\nignore: [.env]\n")
    done = repo.run(*INSIDE, "--", "bash", "-c", "git switch -q more; echo $?; git rev-parse --abbrev-ref HEAD")
    assert done.stdout == "128\nmain\n", done
    assert git(place, "ls-files", "-d") == ""
    git(place, "switch", "-qf", "more")
    assert git(place, "status", "--porcelain") == ""


@pytest.mark.parametrize("width", [20, 32])
@pytest.mark.parametrize("packed", [False, True])
def test_objects_are_read_as_git_reads_them(tmp_path: Path, packed: bool, width: int) -> None:
    if width == 32:
        git(tmp_path, "init", "-q", "--object-format=sha256")
    repository(tmp_path)
    if packed:
        git(tmp_path, "gc", "-q", "--aggressive")
    fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    reader = objects.Objects(fd, ".git", width)
    try:
        every = git(tmp_path, "cat-file", "--batch-all-objects", "--batch-check").splitlines()
        for name, kind, size in map(str.split, every):
            found = reader.read(bytes.fromhex(name))
            assert found is not None and found[0].decode() == kind and len(found[1]) == int(size)
        assert reader.read(bytes(width)) is None
        tips = commits.encoded(commits.tips(str(tmp_path))[0])
        assert len(tips) == 1 + width * 4
        known = commits.Committed(fd, tips)
        assert known.may_be(".mcp.json", "file") and known.may_be(".vscode", "directory")
        assert not known.may_be(".vscode", "file") and not known.may_be(".cursor", "directory")
        assert not known.may_be("file", "file") and not known.may_be(".vscode/.git", "directory")
        known.close()
    finally:
        reader.close()
        os.close(fd)


def test_a_conflict_under_a_protected_name_is_never_told_as_one_to_resolve(box: Box, tmp_path: Path) -> None:
    """git fails whether the guard was faster or not, and what follows works; the control has the conflict."""
    repository(tmp_path / "outside")
    repository(box.workspace)
    script = """
    git switch -q b2
    for round in 1 2 3 4; do
        git merge -q --no-edit b0 >out 2>&1; grep -c 'fatal: unable to write' out; git ls-files -u | wc -l
        git reset -q --hard && git clean -qfdx && git switch -q b1 && git switch -q b2 && git status --porcelain
    done
    """
    outside = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path / "outside", env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert outside.stdout.split() == ["0", "2"] * 4
    done = box.run(*INSIDE, "--", "bash", "-c", script)
    assert done.stdout.split() == ["1", "0"] * 4, done.stderr
