"""Reviewed workspaces: everything works inside, and the host's workspace is not written."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from world.box import Box

pytestmark = pytest.mark.needs_kernel("overlayfs in a user namespace")
IDENTITY = tuple(f"--env=GIT_{who}_{what}=agent" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL"))


def tree(root: Path) -> dict[str, Any]:
    """Everything of a tree that a program could tell apart: kind, mode, content, time of the last change."""
    found: dict[str, Any] = {}
    for path in sorted([root, *root.rglob("*")]):
        details = os.lstat(path)
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(root))] = (details.st_mode, details.st_ino, details.st_ctime_ns, content)
    return found


def review(box: Box, script: str, *options: str, name: str = "one") -> subprocess.CompletedProcess[str]:
    return box.run(*IDENTITY, f"--review={name}", *options, "--", "bash", "-euc", script)


def inside(box: Box, script: str, *options: str, name: str = "one") -> str:
    """The output of a shell script in a reviewed workspace that must succeed and change nothing outside."""
    before = tree(box.workspace)
    done = review(box, script, *options, name=name)
    assert done.returncode == 0, done
    assert tree(box.workspace) == before
    return done.stdout


def repository(box: Box) -> None:
    script = "git init -q; echo base > file; mkdir sub; echo s > sub/file; git add .; git commit -qm base"
    assert box.outside("bash", "-euc", script).returncode == 0


WORK = """
git config core.fsmonitor ./evil; git config alias.x '!sh'
printf '#!/bin/sh\\necho hook ran\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit
mkdir .vscode .claude; echo '{}' > .vscode/settings.json; echo '{}' > .mcp.json; echo x > .envrc
echo y > .membrane.yaml
git config --unset core.fsmonitor
echo changed > file; git add -A; git commit -m second 2>&1 | grep hook
git checkout -q -b side; git mv sub/file sub/moved; git commit -qm third; git rm -q file; git commit -qm fourth
git clone -q --no-hardlinks . clone; git -C clone log --oneline | wc -l
git log --oneline | wc -l; git status --short
"""


def test_everything_works_inside_and_nothing_is_visible_outside(box: Box) -> None:
    repository(box)
    assert inside(box, WORK, "--no-project") == "hook ran\n4\n4\n?? clone/\n"
    # The control: in a live workspace the same is refused, and what is not is there at once.
    done = box.run(*IDENTITY, "--live", "--", "bash", "-c", WORK)
    assert done.returncode != 0 or "protected" in done.stderr
    assert box.outside("git", "log", "--oneline").stdout != ""


def test_no_refusal_and_no_guard(box: Box) -> None:
    repository(box)
    inside(box, WORK, "--no-project", f"--events={box.events_path}")
    assert box.events("AccessDenied") == box.events("NameQuarantined") == []
    (started,) = box.events("SessionStarted")
    assert started["change_set"] == "one"
    rules = {each["rule"] for each in started["assurance"]}
    assert "workspace: review" in rules


def test_three_runs_continue_and_another_name_begins_anew(box: Box) -> None:
    (box.workspace / "file").write_text("base")
    for number in range(3):
        assert inside(box, f"cat file; echo {number} > file; echo x > n{number}; ls") == (
            f"{'base' if not number else number - 1}{'' if not number else chr(10)}file\n"
            + "".join(f"n{each}\n" for each in range(number + 1))
        )
    assert inside(box, "cat file; ls", name="two") == "basefile\n"


def test_two_names_at_once_do_not_see_each_other(box: Box) -> None:
    (box.workspace / "file").write_text("base")
    script = "echo $0 > file; echo $0; read _; cat file"
    runs = [
        box.popen(f"--review={name}", "--", "bash", "-c", script, name, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for name in ("a", "b")
    ]
    for run, name in zip(runs, "ab", strict=True):
        assert run.stdout is not None
        assert run.stdout.readline() == f"{name}\n".encode()
    second = review(box, "true", name="a")
    assert second.returncode == 78
    assert "in use by a run (session" in second.stderr
    assert "try: wait until it ends" in second.stderr
    for run, name in zip(runs, "ab", strict=True):
        assert run.communicate(b"\n", timeout=60)[0] == f"{name}\n".encode()
        assert run.returncode == 0
    assert (box.workspace / "file").read_text() == "base"
    assert review(box, "cat file", name="a").stdout == "a\n"


def test_hidden_names_are_empty_and_the_command_has_its_own(box: Box) -> None:
    box.policy(json.dumps({"presets": [], "ignore": ["*.key", "secrets/", ".env"]}))
    for name in ("a.key", "sub/b.key", "secrets/c"):
        (box.workspace / name).parent.mkdir(exist_ok=True)
        (box.workspace / name).write_text("SECRET")
    (box.workspace / "sub").chmod(0o750)
    script = """
        ls -A . sub secrets; cat a.key sub/b.key; cat .env 2>&1 | grep -c "No such file"; stat -c %a sub
        echo mine > a.key; echo mine > secrets/c; rm -r sub; mkdir sub; ls -A sub; cat a.key secrets/c
    """
    assert inside(box, script) == (".:\na.key\nsecrets\nsub\n\nsecrets:\n\nsub:\nb.key\n1\n750\nmine\nmine\n")
    # What it has made is there again, what it has removed is not, and nothing comes back from below.
    assert inside(box, "cat a.key secrets/c; ls -A sub; rm -r a.key secrets; ls") == "mine\nmine\nsub\n"
    assert inside(box, "ls; mkdir secrets; ls secrets; echo again > a.key; cat a.key") == "sub\nagain\n"
    # The control: without the rules all of it is there.
    box.policy(json.dumps({"presets": []}))
    assert inside(box, "cat a.key sub/b.key secrets/c", name="two") == "SECRETSECRETSECRET"


def test_a_tracked_hidden_file_is_not_committed_as_deleted(box: Box) -> None:
    repository(box)
    box.policy(json.dumps({"presets": [], "ignore": ["file"]}))
    done = review(box, "git commit -qam emptied; git show --stat")
    assert done.returncode != 0
    assert "unable to index" in done.stderr or "Permission denied" in done.stderr
    assert "deleted" not in inside(box, "git diff --stat || true; git show --stat")


def test_read_only_names_are_refused(box: Box) -> None:
    box.policy(json.dumps({"presets": [], "readonly": ["*.ro", "fixed/"]}))
    for name in ("a.ro", "fixed/file", "free"):
        (box.workspace / name).parent.mkdir(exist_ok=True)
        (box.workspace / name).write_text("x")
    script = (
        "for n in a.ro fixed/file fixed/new late.ro free; do (echo y > $n) 2>/dev/null && echo $n; done; rm -f a.ro"
    )
    done = review(box, script)
    assert done.stdout == "free\n"
    for target, status in (("fixed/new", 1), (".git/hooks/pre-commit", 0)):
        assert box.run("check", "--review=one", target, "-X", "write").returncode == status
    assert box.run("check", ".git/hooks/pre-commit", "-X", "write").returncode == 1  # the control
    assert (box.workspace / "a.ro").read_text() == "x"


STATUS = """
import json, os
names = [".", "file", "sub", "sub/file", ".env", "sub/.env"]
print(json.dumps({name: [*os.lstat(name)[:2], *os.lstat(name)[4:7], os.lstat(name).st_ctime_ns] for name in names}))
"""


@pytest.mark.parametrize("cached", ["false", "true"])
def test_git_inside_reads_no_file_again_and_a_look_is_no_change(box: Box, cached: str) -> None:
    """What its index says of a file holds in the view: the same inode number, times, owner and mode."""
    repository(box)
    for name in (".env", "sub/.env"):
        (box.workspace / name).write_text("SECRET=1")
    for words in (("config", "core.untrackedCache", cached), ("status",), ("status",)):
        assert box.outside("git", *words).returncode == 0
    outside = json.loads(box.outside("python3", "-c", STATUS).stdout)
    trace = "GIT_TRACE2_PERF=1 git status 2>&1 | grep -o 'refresh/sum_scan:.*'"
    said = inside(box, f"python3 -c '{STATUS}'; {trace}; git status --short; git add -A; git status --short")
    shown, scanned, *more = said.splitlines()
    found = json.loads(shown)
    for name in ("file", "sub/file"):
        assert found[name] == outside[name]
    assert found[".env"] != outside[".env"]  # the control: what hides it is another file
    assert (scanned.strip(), more) == ("refresh/sum_scan:0", [])
    assert box.run("diff", "one", "--name-status").stdout == ""
    # The control: a file with another inode number is read.
    again = review(box, f"cp -p file new; mv new file; {trace}")
    assert again.stdout.strip() == "refresh/sum_scan:1", again


def test_links_and_hard_links(box: Box) -> None:
    (box.workspace / "one").write_text("base")
    os.link(box.workspace / "one", box.workspace / "two")
    os.symlink("one", box.workspace / "link")
    os.symlink("/etc/passwd", box.workspace / "out")
    script = """
        readlink link out; echo changed > link; cat one; rm out; ln -s elsewhere out; readlink out
        ln one three; echo again > three; cat one; mv sub moved; ls moved
    """
    (box.workspace / "sub").mkdir()
    (box.workspace / "sub" / "f").write_text("")
    assert inside(box, script) == "one\n/etc/passwd\nchanged\nelsewhere\nagain\nf\n"


def test_what_the_host_writes_meanwhile(box: Box) -> None:
    """What ``docs/review.md`` says of it."""
    box.policy(json.dumps({"presets": [], "ignore": ["*.key", ".env", ".envrc"]}))
    (box.workspace / "sub").mkdir()
    for name in ("seen", "own", "old.key"):
        (box.workspace / name).write_text("base")
    script = """
import os, sys
open("own", "w").write("mine")
def answer(line):
    try:
        return open(line).read() or "empty"
    except OSError as error:
        return error.strerror
answer("seen"), answer("looked-up")
for line in sys.stdin:
    print(answer(line.strip()), flush=True)
"""
    run = box.popen("--review=one", "--", "python3", "-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(name: str) -> str:
        assert run.stdin is not None
        assert run.stdout is not None
        run.stdin.write(name.encode() + b"\n")
        run.stdin.flush()
        return run.stdout.readline().decode().strip()

    assert ask("seen") == "base"
    (box.workspace / "seen").write_text("edited")  # in place
    assert ask("seen") == "edited"
    (box.workspace / "own").write_text("edited")
    assert ask("own") == "mine"
    (box.workspace / "new").write_text("new")
    assert ask("new") == "new"
    (box.workspace / "looked-up").write_text("new")
    assert ask("looked-up") == "No such file or directory"  # as it was when it was asked for first
    (box.workspace / "saved").write_text("replaced")
    os.rename(box.workspace / "saved", box.workspace / "seen")
    assert ask("seen") == "edited"  # the file that the name led to when it was asked for first
    # Hidden names: replaced, or made where a rule names one file.
    for name, said in (("old.key", "empty"), (".env", "No such file or directory")):
        (box.workspace / "saved").write_text("SECRET")
        os.rename(box.workspace / "saved", box.workspace / name)
        assert ask(name) == said
    # A pattern over names that nobody had: within milliseconds; the second one is protected as well.
    for name in ("late.key", "sub/.envrc"):
        (box.workspace / name).write_text("SECRET")
        for _ in range(100_000):
            if (said := ask(name)) != "SECRET":
                break
        assert said in ("Permission denied", "No such file or directory")
    assert run.communicate(timeout=60)[0] == b""
    assert run.returncode == 0
    assert inside(box, "ls", name="one") == "late.key\nlooked-up\nnew\nold.key\nown\nseen\nsub\n"


def test_a_killed_run_leaves_a_set_that_goes_on(box: Box) -> None:
    (box.workspace / "file").write_text("base")
    script = f"echo kept > file; echo ready; exec sleep {os.getpid()}0000"
    for _ in range(3):
        run = box.popen("--review=one", "--", "bash", "-c", script, stdout=subprocess.PIPE)
        assert run.stdout is not None
        assert run.stdout.readline() == b"ready\n"
        run.send_signal(signal.SIGKILL)
        run.wait(60)
        run.stdout.close()
    # Of its own: what else the machine and the tests beside this one have mounted says nothing.
    assert str(box.state) not in Path(f"/proc/{box.world.pid}/mountinfo").read_text()
    assert inside(box, "cat file") == "kept\n"


def test_checkpoint_restore_and_fork(box: Box) -> None:
    (box.workspace / "file").write_text("base\n")
    inside(box, "echo first > file; echo x > new")
    assert box.run("checkpoint", "one", "first").returncode == 0
    inside(box, "echo second > file; rm new; mkdir d; echo y > d/e")
    assert box.run("fork", "one", "two").returncode == 0
    assert inside(box, "cat file; ls", name="two") == "second\nd\nfile\n"
    assert box.run("restore", "one", "first").returncode == 0
    assert inside(box, "cat file; ls") == "first\nfile\nnew\n"
    assert box.run("restore", "one", "before-restore").returncode == 0
    assert inside(box, "cat file; ls") == "second\nd\nfile\n"
    listed = json.loads(box.run("changes", "--json").stdout)["changes"]
    assert [(each["name"], each["checkpoints"], each["state"]) for each in listed] == [
        ("one", ["first", "before-restore"], "kept"),
        ("two", [], "kept"),
    ]
    for name in ("one", "two"):
        assert box.run("discard", name).returncode == 0
    assert os.listdir(box.state / "changes" / ".layers") == []
    assert box.run("discard", "one").returncode == 78


WRITES = """
number=0
while true; do
  number=$((number + 1)); printf %09d $number 1<> first; printf %09d $number 1<> second
  if [ $number = 3 ]; then echo begun; fi
done
"""


def test_a_checkpoint_and_a_fork_while_a_command_runs(box: Box) -> None:
    run = box.popen(*IDENTITY, "-q", "--review=one", "--", "bash", "-euc", WRITES, stdout=subprocess.PIPE)
    assert run.stdout is not None
    try:
        assert run.stdout.readline().strip() in ("begun", b"begun")
        for label in ("first", "second"):
            done = box.run("checkpoint", "one", label)
            assert done.returncode == 0, done
        assert box.run("fork", "one", "two").returncode == 0
        refused = box.run("restore", "one", "first")
        assert refused.returncode == 78 and "in use by a run" in refused.stderr
        assert box.run("checkpoint", "one", "second").returncode == 78
        assert run.poll() is None
    finally:
        run.terminate()
        run.wait(60)
        run.stdout.close()
    seen = [int(inside(box, "cat first", name="two"))]
    for label in ("second", "first"):
        assert box.run("restore", "one", label).returncode == 0
        first, second = map(int, inside(box, "cat first; echo; cat second").split())
        assert first - second in (0, 1)
        seen.append(first)
    assert seen == sorted(seen, reverse=True)
    assert os.listdir(box.workspace) == []


def test_a_checkpoint_of_a_run_on_a_terminal_suspends_nothing(box: Box) -> None:
    script = "echo x > made; echo begun; read -r go; echo went $go; exit 7"
    with box.terminal("-q", "--review=one", "--", "bash", "-c", script) as terminal:
        terminal.expect("begun")
        for label in ("first", "second"):
            assert box.run("checkpoint", "one", label).returncode == 0
        terminal.send("on\n")
        terminal.expect("went on")
        assert terminal.wait() == 7


def test_the_record_of_a_run_names_its_checkpoints(box: Box) -> None:
    script = "echo x > made; echo begun; read -r go; echo x > after; mkdir end"
    run = box.popen(
        *("-q", "--review=one", "--", "bash", "-euc", script), stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    assert run.stdout is not None and run.stdin is not None
    assert run.stdout.readline() == "begun\n"
    assert box.run("checkpoint", "one", "between").returncode == 0
    run.communicate("go\n", timeout=60)
    assert run.returncode == 0
    until = box.run("trace", "show", "@last", "--until", "between").stdout
    since = box.run("trace", "show", "@last", "--since", "between").stdout
    assert "between of one" in until and "between of one" in since
    assert "/made" in until and "/after" not in until and "/end" not in until
    assert "/after" in since and "/made" not in since
    wrong = box.run("trace", "show", "@last", "--since", "nowhere")
    assert wrong.returncode == 2 and "its checkpoints are between" in wrong.stderr


def test_the_default_name_and_a_run_that_changes_nothing(box: Box) -> None:
    done = box.run("--review", "--", "bash", "-c", "echo x > new")
    assert done.returncode == 0
    (name,) = [each["name"] for each in json.loads(box.run("changes", "--json").stdout)["changes"]]
    assert f"the change set {name} holds: 1 added" in done.stderr
    assert f"membrane diff {name}" in done.stderr
    assert box.run("-q", f"--review={name}", "--", "cat", "new").stderr == ""
    loads = {"PYTHONPROFILEIMPORTTIME": "1"}
    done = box.run("--review", "--", "true", env=loads)
    assert "nothing was changed" in done.stderr
    assert "membrane.changes.cell" in done.stderr and "membrane.changes.red" not in done.stderr
    done = box.run(f"--review={name}", "--", "true", env=loads)  # the control: there is something to judge
    assert "holds: 1 added" in done.stderr and "membrane.changes.red" in done.stderr
    assert len(json.loads(box.run("changes", "--json").stdout)["changes"]) == 1


def test_hidden_files_are_links_of_one_empty_file_and_each_is_written_by_itself(box: Box) -> None:
    box.policy(json.dumps({"presets": [], "workspace": "review", "ignore": ["*.key"]}))
    for name in ("a.key", "b.key", "c.key"):
        (box.workspace / name).write_text("secret\n")
    script = (
        "cat *.key; stat -c %i *.key | sort -u | wc -l; echo mine > a.key; chmod 600 b.key; ln c.key d; echo more > d"
    )
    done = box.run("-q", "--review=one", "--", "sh", "-c", f"{script}; cat a.key; wc -c < b.key; wc -c < c.key; cat d")
    assert (done.stdout.split(), done.stderr) == (["1", "mine", "0", "5", "more"], "")  # c.key and d are one file now
    again = box.run("-q", "--review=two", "--", "sh", "-c", "cat *.key; stat -c %a *.key | sort -u")
    assert again.stdout == "644\n"
    after = box.run("-q", "--review=one", "--", "sh", "-c", "cat a.key; wc -c < b.key; cat c.key")
    assert after.stdout.split() == ["mine", "0", "more"]
    assert {(box.workspace / name).read_text() for name in ("a.key", "b.key", "c.key")} == {"secret\n"}


def test_a_policy_says_review_and_the_option_live(box: Box) -> None:
    box.policy(json.dumps({"presets": [], "workspace": "review"}))
    assert box.run("-q", "--", "touch", "one").returncode == 0
    assert not (box.workspace / "one").exists()
    assert box.run("-q", "--live", "--", "touch", "one").returncode == 0
    assert (box.workspace / "one").exists()
    assert box.run("--live", "--review", "--", "true").returncode == 78
    assert "reviewed" in box.run("plan", "--", "true").stdout
    # A project file may not open what the user's keeps apart.
    (box.workspace / ".membrane.yaml").write_text("workspace: live\n")
    assert box.run("-q", "--", "touch", "two").returncode == 78


@pytest.mark.parametrize("name", ["../x", "a/b", ".layers", "", "x" * 65])
def test_a_name_that_cannot_be_one(box: Box, name: str) -> None:
    done = box.run(f"--review={name}", "--", "true")
    assert done.returncode in (2, 78)
    assert not (box.state / "changes").exists()


def test_another_workspace_is_refused(box: Box, tmp_path: Path) -> None:
    inside(box, "echo x > new")
    other = tmp_path / "other"
    other.mkdir()
    done = box.run("--review=one", "--", "true", cwd=other)
    assert done.returncode == 78
    assert f"belongs to {box.workspace}, not to {other}" in done.stderr


def test_a_writable_mount_that_holds_the_workspace_is_refused(box: Box) -> None:
    parent = str(box.workspace.parent)
    done = box.run("--review=one", f"--mount={parent}:rw", "--", "true")
    assert done.returncode == 78
    alias = box.home / "alias"
    alias.symlink_to(parent)
    assert box.run("--review=one", f"--mount={alias}:rw", "--", "true").returncode == 78


def test_changes_on_a_tmpfs(box: Box) -> None:
    """Another file system than the workspace's, and one whose extended attributes are new (Linux 6.6)."""
    box.policy(json.dumps({"presets": [], "ignore": ["*.key"]}))
    (box.workspace / "a.key").write_text("SECRET")
    (box.workspace / "d").mkdir()
    (box.workspace / "d" / "old").write_text("old")
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="membrane-test-") as place:
        shutil.copytree(box.state, f"{place}/state")
        before = tree(box.workspace)
        script = "ls; rm -r d; mkdir d; echo new > d/new; echo mine > a.key"
        for expected in ("a.key\nd\n", "a.key\nd\n"):
            done = box.run("-q", "--review=one", "--", "bash", "-euc", script, env={"MEMBRANE_HOME": f"{place}/state"})
            assert (done.returncode, done.stdout) == (0, expected), done
        done = box.run("-q", "--review=one", "--", "ls", "d", env={"MEMBRANE_HOME": f"{place}/state"})
        assert done.stdout == "new\n"
        assert box.run("discard", "one", env={"MEMBRANE_HOME": f"{place}/state"}).returncode == 0
    assert tree(box.workspace) == before


def test_where_no_overlay_can_be_had_the_run_ends_and_says_so(box: Box) -> None:
    """Changes that would lie on an overlayfs, as in a container without a volume."""
    (box.workspace / "file").write_text("base")
    place = box.home / "overlay"
    for name in ("lower", "upper", "work", "state"):
        (place / name).mkdir(parents=True)
    argv = " ".join(shlex.quote(word) for word in box.argv("--review=one", "--", "touch", "file", "new"))
    layers = f"lowerdir={place}/lower,upperdir={place}/upper,workdir={place}/work,userxattr"
    script = f"mount -t overlay overlay -o {layers} {place}/state; {argv}; echo $?"
    done = box.outside("unshare", "-Urm", "bash", "-c", script, env={"MEMBRANE_HOME": f"{place}/state"})
    assert done.stdout == "78\n", done
    assert f"its changes would be kept on an overlayfs ({place}/state/changes)" in done.stderr
    assert "try: set MEMBRANE_HOME to a directory on a disk or tmpfs" in done.stderr
    assert "use the workspace live: --live" in done.stderr
    assert os.listdir(box.workspace) == ["file"]
    # The control: the same namespaces, and changes on a disk.
    done = box.outside("unshare", "-Urm", "bash", "-c", f"{argv}; echo $?")
    assert done.stdout == "0\n", done
    assert os.listdir(box.workspace) == ["file"]
