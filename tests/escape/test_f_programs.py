"""F: programs in the workspace that git's configuration names: git outside runs them, so they stay as they are."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from escape_box import Box

EVIL = "#!/bin/sh\ntouch {marker}\nexit 1\n"


class Outside:
    """The caller's own git, and whether it has run what the command wrote."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.marker = box.home / "PWNED"
        self.evil = EVIL.format(marker=self.marker)
        self.variables: dict[str, str] = {}

    def git(self, *command: str, check: bool = False) -> None:
        environment = {**self.box.environment, "GIT_CONFIG_SYSTEM": "/dev/null"}
        environment |= self.variables
        environment |= {f"GIT_{who}_{what}": "x@y" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        subprocess.run(
            ["git", *command],
            cwd=self.box.workspace,
            env=environment,
            input=b"protocol=https\nhost=example.org\n\n",
            capture_output=True,
            check=check,
            timeout=60,
        )

    def ran(self, *command: str) -> bool:
        self.marker.unlink(missing_ok=True)
        self.git(*command)
        return self.marker.exists()


@pytest.fixture
def outside(box: Box) -> Outside:
    caller = Outside(box)
    caller.git("init", "-q", "-b", "main", ".", check=True)
    box.file("file", "text\n")
    box.file(".gitattributes", "file filter=x diff=x\n")
    caller.git("add", ".", check=True)
    caller.git("commit", "-q", "-m", "one", check=True)
    return caller


# setting: (value, the program, what runs it)
PROGRAMS = {
    "core.fsmonitor": ("./tools/fsm.sh", "tools/fsm.sh", ("status",)),
    "filter.x.clean": ("sh tools/clean.sh %f", "tools/clean.sh", ("add", "--renormalize", ".")),
    "filter.x.smudge": ("A=b tools/smudge", "tools/smudge", ("archive", "HEAD")),
    "diff.x.textconv": ("sh -c 'tools/text \"$1\"' -", "tools/text", ("show", "HEAD")),
    "diff.external": (
        "tools/differ",
        "tools/differ",
        ("diff", "--ext-diff", "--cached", "4b825dc642cb6eb9a060e54bf8d69288fbee4904"),
    ),
    "alias.go": ("!./tools/alias", "tools/alias", ("go",)),
    "core.sshCommand": ("./tools/ssh -x", "tools/ssh", ("ls-remote", "ssh://example.org/x")),
    "core.editor": ("tools/editor", "tools/editor", ("commit", "--allow-empty")),
    "gpg.program": ("./tools/gpg", "./tools/gpg", ("commit", "--allow-empty", "-S", "-m", "x")),
    "credential.helper": ("!tools/credential", "tools/credential", ("credential", "fill")),
}


@pytest.mark.parametrize("key", PROGRAMS)
def test_F44_a_program_that_configuration_names(box: Box, outside: Outside, key: str) -> None:
    value, program, command = PROGRAMS[key]
    box.file(program, "#!/bin/sh\n", 0o755)
    outside.git("config", key, value, check=True)
    script = (
        f"evil, program = {outside.evil!r}, {program!r}\n"
        + """
def put(name):
    with open(name, "w") as file: file.write(evil)
    os.chmod(name, 0o755)
attempt("write", lambda: put(program))
attempt("remove", lambda: os.unlink(program))
put("tools/other")
attempt("replace", lambda: os.rename("tools/other", program))
attempt("directory", lambda: os.rename("tools", "moved"))
attempt("beside", lambda: put("tools/beside"))
"""
    )
    found = box.attack(script)
    assert found == {"write": "EROFS", "remove": "EBUSY", "replace": "EBUSY", "directory": "EBUSY", "beside": "ok"}
    assert not outside.ran(*command)
    # The control: the caller's git would have run it.
    (box.workspace / program).write_text(outside.evil)
    (box.workspace / program).chmod(0o755)
    assert outside.ran(*command)


VARIABLES: dict[str, tuple[dict[str, str], str, tuple[str, ...]]] = {
    "GIT_EDITOR": ({"GIT_EDITOR": "tools/x"}, "tools/x", ("commit", "--allow-empty")),
    "GIT_SSH": ({"GIT_SSH": "./tools/x"}, "tools/x", ("ls-remote", "ssh://example.org/x")),
    "GIT_EXTERNAL_DIFF": ({"GIT_EXTERNAL_DIFF": "tools/x"}, "tools/x", ("diff", "HEAD", "HEAD~")),
    "GIT_CONFIG_COUNT": (
        {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "Core.hooksPath", "GIT_CONFIG_VALUE_0": "tools"},
        "tools/pre-commit",
        ("commit", "--allow-empty", "-m", "x"),
    ),
}


@pytest.mark.parametrize("name", VARIABLES)
def test_F44_a_program_that_a_variable_of_the_caller_names(box: Box, outside: Outside, name: str) -> None:
    variables, program, command = VARIABLES[name]
    box.file(program, "#!/bin/sh\n", 0o755)
    (box.workspace / "file").write_text("other\n")
    outside.git("commit", "-qam", "two", check=True)
    script = (
        f"evil, program = {outside.evil!r}, {program!r}\n"
        + """
def put():
    with open(program, "w") as file: file.write(evil)
attempt("write", put)
"""
    )
    assert box.attack(script, environment=variables) == {"write": "EROFS"}
    assert box.attack(script) == {"write": "ok"}  # the control: no variable names it
    (box.workspace / program).chmod(0o755)
    outside.variables = variables
    assert outside.ran(*command)


def test_F45_one_that_does_not_exist_yet(box: Box, outside: Outside) -> None:
    outside.git("config", "core.fsmonitor", "./tools/fsm.sh", check=True)
    script = (
        f"evil = {outside.evil!r}\n"
        + """
os.makedirs("tools", exist_ok=True)
attempt("make", write("tools/fsm.sh", evil))
try: os.chmod("tools/fsm.sh", 0o755)
except OSError: pass
attempt("control", write("tools/other", evil))
"""
    )
    found = box.attack(
        script
        + """
write("other")()
attempt("rename", lambda: os.rename("other", "tools/fsm.sh"))
attempt("link", lambda: os.link("tools/other", "tools/fsm.sh"))
attempt("symbolic link", lambda: os.symlink("other", "tools/fsm.sh"))
os.rename("tools", "moved")
os.mkdir("else")
write("else/fsm.sh")()
attempt("directory", lambda: os.rename("else", "tools"))
attempt("link on the way", lambda: os.symlink("else", "tools"))
os.unlink("else/fsm.sh")
os.rename("moved", "tools")
"""
    )
    refused = dict.fromkeys(("make", "rename", "link", "symbolic link", "directory", "link on the way"), "EACCES")
    assert found == {**refused, "control": "ok"}
    assert not os.path.lexists(box.workspace / "tools/fsm.sh")
    assert box.refused("tools/fsm.sh") and not box.moved()
    box.attack(script, "--no-trace")  # the guard alone
    assert not os.path.lexists(box.workspace / "tools/fsm.sh")
    assert box.moved()
    assert not outside.ran("status")
    box.file("tools/fsm.sh", outside.evil, 0o755)
    assert outside.ran("status")


@pytest.mark.parametrize("where", [".gitconfig", ".config/git/config", "included"])
def test_F46_hooks_that_only_the_callers_own_configuration_names(box: Box, outside: Outside, where: str) -> None:
    """One setting of a developer for all repositories: ``core.hooksPath = .myhooks``."""
    settings: Path = box.home / where
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text("[core]\n\thooksPath = .myhooks\n")
    if where == "included":
        (box.home / ".gitconfig").write_text("[include]\n\tpath = included\n")
    box.file(".myhooks/pre-commit", "#!/bin/sh\n", 0o755)
    script = (
        f"evil = {outside.evil!r}\n"
        + """
attempt("write", write(".myhooks/pre-commit", evil))
attempt("another", write(".myhooks/post-commit", evil))
attempt("rename", lambda: os.rename(".myhooks", "x"))
attempt("control", write("myhooks", evil))
"""
    )
    found = box.attack(script)
    assert found == {"write": "EROFS", "another": "EROFS", "rename": "EBUSY", "control": "ok"}
    commit = ("commit", "--allow-empty", "-m", "x")
    assert not outside.ran(*commit)
    (box.workspace / ".myhooks/pre-commit").write_text(outside.evil)
    assert outside.ran(*commit)


@pytest.mark.parametrize("there", [False, True], ids=["made", "changed"])
@pytest.mark.parametrize("kind", ["submodule", "linked"])
def test_F47_hooks_beside_each_work_tree_of_a_configuration(outside: Outside, kind: str, there: bool) -> None:
    """A relative ``core.hooksPath`` begins in the work tree that git works in, wherever the configuration lies."""
    box, caller = outside.box, outside
    if kind == "submodule":
        other = box.home / "other"
        subprocess.run(["git", "init", "-q", "-b", "main", other], check=True)
        caller.git("-C", str(other), "commit", "-q", "--allow-empty", "-m", "x", check=True)
        caller.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "tree", check=True)
        caller.git("-C", "tree", "config", "core.hooksPath", "hooks", check=True)
    else:
        caller.git("worktree", "add", "-q", "tree", check=True)
        caller.git("config", "core.hooksPath", "hooks", check=True)
    commit = ("-C", "tree", "commit", "-q", "--allow-empty", "-m", "y")
    if there:
        box.file("tree/hooks/pre-commit", "#!/bin/sh\n", 0o755)
    script = f"""
attempt("mkdir", lambda: os.makedirs("tree/hooks", exist_ok=True))
attempt("write", write("tree/hooks/pre-commit", {caller.evil!r}))
attempt("chmod", lambda: os.chmod("tree/hooks/pre-commit", 0o755))
"""
    found = box.attack(script)
    assert found["write"] in ("EROFS", "EACCES", "ENOENT"), found
    assert not caller.ran(*commit)
    # The control: outside the same makes git run it.
    assert box.control(script) == dict.fromkeys(("mkdir", "write", "chmod"), "ok")
    assert caller.ran(*commit)


# What makes ``tree`` a work tree, and what puts a hook beside it.
MADE = {
    "init": """
attempt("tree", lambda: git("init", "-q", "tree"))
attempt("mkdir", lambda: os.makedirs("tree/hooks", exist_ok=True))
attempt("write", write("tree/hooks/pre-commit", evil))
attempt("chmod", lambda: os.chmod("tree/hooks/pre-commit", 0o755))
""",
    "worktree": """
attempt("tree", lambda: git("worktree", "add", "-q", "tree"))
attempt("mkdir", lambda: os.makedirs("tree/hooks", exist_ok=True))
attempt("write", write("tree/hooks/pre-commit", evil))
attempt("chmod", lambda: os.chmod("tree/hooks/pre-commit", 0o755))
""",
    "first": """
os.makedirs("tree/hooks")
attempt("write", write("tree/hooks/pre-commit", evil))
attempt("chmod", lambda: os.chmod("tree/hooks/pre-commit", 0o755))
attempt("tree", lambda: git("init", "-q", "tree"))
""",
    "renamed": """
os.makedirs("tree/other")
write("tree/other/pre-commit", evil)()
os.chmod("tree/other/pre-commit", 0o755)
attempt("tree", lambda: git("init", "-q", "tree"))
attempt("rename", lambda: os.rename("tree/other", "tree/hooks"))
""",
    "linked": """
os.makedirs("other")
write("other/pre-commit", evil)()
os.chmod("other/pre-commit", 0o755)
attempt("tree", lambda: git("init", "-q", "tree"))
attempt("link", lambda: os.symlink("../other", "tree/hooks"))
""",
    "moved .git": """
os.makedirs("tree/hooks")
write("tree/hooks/pre-commit", evil)()
os.chmod("tree/hooks/pre-commit", 0o755)
git("init", "-q", "other")
attempt("move", lambda: os.rename("other/.git", "tree/.git"))
""",
    "a .git file": """
os.makedirs("tree/hooks")
write("tree/hooks/pre-commit", evil)()
os.chmod("tree/hooks/pre-commit", 0o755)
git("init", "-q", "other")
attempt("pointer", write("tree/.git", "gitdir: ../other/.git"))
""",
}
GIT_INSIDE = """
import subprocess
def git(*words):
    done = subprocess.run(["git", *words], capture_output=True)
    if done.returncode:
        raise OSError(errno.EACCES, done.stderr.decode())
"""


@pytest.mark.parametrize("tracer", [True, False], ids=["tracer", "guard"])
@pytest.mark.parametrize("how", MADE)
def test_F48_hooks_beside_a_work_tree_that_is_made_inside(outside: Outside, how: str, tracer: bool) -> None:
    """A relative ``core.hooksPath`` of the caller holds in each repository, so in one that the command makes."""
    box, caller = outside.box, outside
    (box.home / ".gitconfig").write_text('[core]\n\thooksPath = hooks\n[protocol "file"]\n\tallow = always\n')
    script = f"evil = {caller.evil!r}\n" + GIT_INSIDE + MADE[how]
    found = box.attack(script, *(() if tracer else ("--no-trace",)))
    commit = ("-C", "tree", "commit", "-q", "--allow-empty", "-m", "y")
    if tracer:
        assert "EACCES" in found.values(), found
        assert not os.path.exists(box.workspace / "tree/.git") or not os.path.lexists(box.workspace / "tree/hooks")
    assert not caller.ran(*commit)
    # The control: outside the same makes git run it.
    for name in ("tree", "other"):
        shutil.rmtree(box.workspace / name, ignore_errors=True)
    caller.git("worktree", "prune")
    caller.git("branch", "-D", "tree")
    assert set(box.control(script).values()) == {"ok"}
    assert caller.ran(*commit)


@pytest.mark.parametrize("where", ["repository", "caller"])
@pytest.mark.parametrize("path", [".husky", "tools/hooks"])
def test_F49_a_work_tree_with_hooks_that_are_committed_can_be_made(outside: Outside, where: str, path: str) -> None:
    box, caller = outside.box, outside
    box.file(f"{path}/pre-commit", "#!/bin/sh\nexit 0\n", 0o755)
    box.file(f"{path}/sub/common.sh", "true\n")
    caller.git("add", ".", check=True)
    caller.git("commit", "-q", "-m", "hooks", check=True)
    if where == "repository":
        caller.git("config", "core.hooksPath", path, check=True)
    else:
        (box.home / ".gitconfig").write_text(f"[core]\n\thooksPath = {path}\n")
    script = (
        f"evil, path = {caller.evil!r}, {path!r}\n"
        + GIT_INSIDE
        + """
attempt("add", lambda: git("worktree", "add", "-q", "tree"))
attempt("clone", lambda: git("clone", "-q", ".", "clone"))
for tree in ("tree", "clone"):
    attempt(tree + " another", write(f"{tree}/{path}/post-commit", evil))
    attempt(tree + " change", write(f"{tree}/{path}/pre-commit", evil))
    attempt(tree + " file", write(f"{tree}/file", "other"))
"""
    )
    found = box.attack(script)
    assert found["add"] == "ok" and found["clone"] == "ok", found
    for tree in ("tree", "clone"):
        # A clone has a configuration of its own, in which the setting of this repository is not.
        held = tree == "tree" or where == "caller"
        assert found[f"{tree} another"] == ("EACCES" if held else "ok") and found[f"{tree} file"] == "ok", found
        assert (box.workspace / tree / path / "sub/common.sh").read_text() == "true\n"
        hook = box.workspace / tree / path / "pre-commit"
        assert not held or not hook.exists() or hook.read_text() == "#!/bin/sh\nexit 0\n"
        assert not caller.ran("-C", tree, "commit", "--allow-empty", "-m", "x")


@pytest.mark.parametrize("value", ["~/projects/app/hooks", "{workspace}/hooks"])
def test_F50_hooks_of_every_repository_that_lie_in_a_workspace_without_one(box: Box, value: str) -> None:
    caller = Outside(box)
    other = box.home / "other"
    subprocess.run(["git", "init", "-q", other], check=True)
    if value.startswith("~"):
        value = f"~/{os.path.relpath(box.workspace, box.home)}/hooks"
    (box.home / ".gitconfig").write_text(f"[core]\n\thooksPath = {value.format(workspace=box.workspace)}\n")
    script = f"""
attempt("mkdir", lambda: os.makedirs("hooks", exist_ok=True))
attempt("write", write("hooks/pre-commit", {caller.evil!r}))
attempt("chmod", lambda: os.chmod("hooks/pre-commit", 0o755))
"""
    found = box.attack(script)
    assert found["mkdir"] == "EACCES", found
    commit = ("-C", str(other), "commit", "-q", "--allow-empty", "-m", "y")
    assert not caller.ran(*commit)
    assert set(box.control(script).values()) == {"ok"}
    assert caller.ran(*commit)


def test_F51_a_link_on_the_way_is_put_aside(box: Box, outside: Outside) -> None:
    """Without the tracer; in the work tree of the start and in one that is made."""
    (box.home / ".gitconfig").write_text("[core]\n\thooksPath = tools/hooks\n")
    script = (
        f"evil = {outside.evil!r}\n"
        + GIT_INSIDE
        + """
os.makedirs("other/hooks")
write("other/hooks/pre-commit", evil)()
os.chmod("other/hooks/pre-commit", 0o755)
attempt("top", lambda: os.symlink("other", "tools"))
git("init", "-q", "tree")
attempt("tree", lambda: os.symlink("../other", "tree/tools"))
git("init", "-q", "--bare", "bare")
attempt("bare", lambda: os.symlink("../other", "bare/tools"))
attempt("gone", lambda: wait_for(lambda: not any(map(os.path.lexists, ("tools", "tree/tools", "bare/tools")))))
"""
    )
    refused = dict.fromkeys(("top", "tree", "bare"), "EACCES")
    found = box.attack(script)
    assert found == {**refused, "gone": "ok"}
    shutil.rmtree(box.workspace / "tree")
    shutil.rmtree(box.workspace / "bare")
    shutil.rmtree(box.workspace / "other")
    found = box.attack(script, "--no-trace")
    assert found == {**dict.fromkeys(refused, "ok"), "gone": "ok"}
    assert box.moved() >= {"tools", "tree/tools", "bare/tools"}
    commit = ("commit", "--allow-empty", "-m", "x")
    assert not outside.ran(*commit) and not outside.ran("-C", "tree", *commit)
    (box.workspace / "tree/tools").symlink_to("../other")
    assert outside.ran("-C", "tree", *commit)


AT_HOME = r"""
import subprocess
# The command can read the place in /proc/self/mountinfo.
def git(*words):
    return subprocess.run(["git", *words], capture_output=True).returncode
evil = os.environ["HOME"] + "/evil.git"
git("init", "-q", "--bare", evil)
with open(evil + "/hooks/pre-receive", "w") as file:
    file.write(HOOK)
os.chmod(evil + "/hooks/pre-receive", 0o755)
os.symlink(host, "link")
os.mkdir("deep")
for name in ("notes", "deep/x.git"):  # git takes a file of any name for a link to a repository
    write(name, "gitdir: " + host + "/evil.git\n")()
relative = os.path.relpath(host + "/evil.git")
ways = [host + "/evil.git", "file://" + host + "/evil", relative, "link/evil.git", "./nothing/../link/evil"]
ways += ["file://anyone" + host + "/evil.git", "notes", "./deep/x", "file://" + os.getcwd() + "/notes"]
for number, address in enumerate(ways):
    say(number, git("remote", "add", f"r{number}", address))
say("pushurl", git("config", "remote.origin.pushurl", ways[0]))
say("branch", git("config", "branch.main.pushRemote", ways[0]))
git("init", "-q", "nested")
git("-C", "nested", "remote", "add", "origin", ways[0])
write("nested/.gitmodules", f'[submodule "m"]\n\tpath = m\n\turl = {ways[0]}\n')()
say("everyday", git("remote", "add", "beside", "../" + os.path.basename(os.getcwd()) + "/nested"))
"""


def test_F52_an_address_of_git_leads_to_no_hook_of_the_command(box: Box, outside: Outside) -> None:
    """``git push`` to a path runs the hooks there; the sandbox's home is a directory on the host too."""
    push = ("push", "origin", "HEAD:refs/heads/x")
    outside.git("remote", "add", "origin", "https://example.invalid/x", check=True)
    box.attack("say('up', 1)")
    (home,) = (box.state / "homes").iterdir()
    found = box.attack(f"HOOK, host = {outside.evil!r}, {str(home)!r}\n" + AT_HOME)
    assert found.pop("everyday") == 0
    assert 0 not in found.values(), found
    assert not outside.ran(*push)
    config = box.workspace / "nested/.git/config"  # taken away in the middle of what git did
    assert not config.exists() or "evil.git" not in config.read_text()
    assert not (box.workspace / "nested/.gitmodules").exists()
    (box.workspace / "notes").write_text(f"gitdir: {home}/evil.git\n")
    ways = [str(home / "evil.git"), f"file://anyone{home}/evil.git", "notes"]
    for number, address in enumerate(ways):  # the control
        outside.git("remote", "set-url", "origin", address, check=True)
        assert outside.ran(*push[:2], f"HEAD:refs/heads/x{number}"), address


def test_F53_a_link_that_the_command_puts_where_an_address_leads_is_gone_at_the_end(box: Box, outside: Outside) -> None:
    push = ("push", "beside", "HEAD:refs/heads/x")
    (box.workspace / "real").mkdir()
    (box.workspace / "mine").symlink_to("real")
    outside.git("remote", "add", "mine", "mine/x.git", check=True)
    outside.git("config", "extensions.worktreeConfig", "true", check=True)
    outside.git("config", "--worktree", "remote.apart.url", "./apart", check=True)  # in a file of its own
    box.file(".gitmodules", f'[submodule "m"]\n\tpath = m\n\turl = {box.workspace}/module\n')
    box.attack("say('up', 1)")
    (home,) = (box.state / "homes").iterdir()
    script = (
        f"HOOK, host = {outside.evil!r}, {str(home)!r}\n"
        + AT_HOME.partition("os.symlink")[0]
        + """
os.mkdir("a")
say("set", git("remote", "add", "beside", "a/o.git"))
os.rename("a", "was")
attempt("link", lambda: os.symlink(host, "a"))
os.mkdir("o.git")
say("another", git("remote", "add", "other", "./o.git"))
os.rmdir("o.git")
attempt("other", lambda: os.symlink(host + "/evil.git", "o.git"))
attempt("apart", lambda: os.symlink(host + "/o.git", "apart"))
attempt("module", lambda: os.symlink(host + "/o.git", "module"))
say("third", git("remote", "add", "third", "notes"))
attempt("notes", write("notes", "gitdir: " + host + "/o.git"))
os.rename(evil, os.environ["HOME"] + "/o.git")
"""
    )
    found = box.attack(script)
    assert found == {
        "set": 0,
        "link": "ok",
        "another": 0,
        "other": "ok",
        "apart": "ok",
        "third": 0,
        "notes": "ok",
        "module": "ok",
    }
    gone = ("a", "o.git", "apart", "notes", "module")
    assert not any(os.path.lexists(box.workspace / name) for name in gone)
    assert os.path.lexists(box.workspace / "mine"), "what was there before is the caller's"
    assert not outside.ran(*push)
    (box.workspace / "a").symlink_to(home)  # the control
    assert outside.ran(*push)
