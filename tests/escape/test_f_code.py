"""Names that something outside runs or obeys later: git, agents, editors, shells (rows F20 to F38)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from escape_box import SECONDS, Box

BENIGN = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n"
EVIL = "[core]\n\tfsmonitor = /tmp/evil\n"


def repository(box: Box, name: str = "") -> Path:
    """A repository as ``git init`` leaves it, in the workspace or below it."""
    base = f"{name}/.git" if name else ".git"
    box.file(f"{base}/HEAD", "ref: refs/heads/main\n")
    box.file(f"{base}/config", BENIGN)
    box.file(f"{base}/hooks/post-commit.sample", "#!/bin/sh\n", 0o755)
    box.file(f"{base}/info/exclude", "")
    for place in ("objects", "refs/heads"):
        (box.workspace / base / place).mkdir(parents=True)
    return box.workspace / base


def plants(box: Box, files: dict[str, str], control: str = "ordinary") -> set[str]:
    """Make ``files`` inside, wait for the sweep at the end; the paths that are still there, without the control."""
    script = f"files = {files!r}\n" + f"files[{control!r}] = 'x'\n"
    script += """
for name, text in files.items():
    try:
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    except FileNotFoundError:
        pass  # taken away between two of its directories
    attempt(name, write(name, text))
"""
    found = box.attack(script)
    # Refused, or made: then what is gone was taken away, perhaps before the next line could write to it.
    assert set(found.values()) <= {"ok", "EACCES", "ENOENT"}, found
    assert (box.workspace / control).read_text() == "x"
    return {name for name in files if os.path.lexists(box.workspace / name)}


def test_F20_F21_a_copy_on_write_workspace_of_another_kind_starts_nothing(box: Box) -> None:
    """``cow`` is Membrane's word, whose rules are not those of a reviewed workspace (rows F90 to F97)."""
    box.policy(workspace="live")
    assert box.run("touch", "control").returncode == 0
    box.policy(workspace="cow")
    refused = box.run("touch", "ran")
    assert refused.returncode == 78 and "workspace is 'cow'; expected review, live" in refused.stderr
    assert not (box.workspace / "ran").exists()


def test_F23_hooks_of_an_existing_repository(box: Box) -> None:
    repository(box)
    script = """
attempt("control", write(".git/COMMIT_EDITMSG"))
attempt("new hook", write(".git/hooks/post-commit"))
attempt("sample", write(".git/hooks/post-commit.sample"))
attempt("chmod", lambda: os.chmod(".git/hooks", 0o777))
attempt("rename hooks", lambda: os.rename(".git/hooks", ".git/h"))
attempt("rename .git", lambda: os.rename(".git", "g"))
attempt("link over", lambda: os.symlink("/tmp", ".git/hooks/x"))
"""
    assert box.attack(script) == {
        "control": "ok",
        "new hook": "EROFS",
        "sample": "EROFS",
        "chmod": "EROFS",
        "rename hooks": "EBUSY",
        "rename .git": "EBUSY",
        "link over": "EROFS",
    }
    assert os.listdir(box.workspace / ".git" / "hooks") == ["post-commit.sample"]


def test_F24_configuration_of_an_existing_repository(box: Box) -> None:
    repository(box)
    script = f"""
open("evil", "w").write({EVIL!r})
attempt("write", write(".git/config"))
attempt("replace", lambda: os.rename("evil", ".git/config"))
attempt("unlink", lambda: os.unlink(".git/config"))
attempt("truncate", lambda: os.truncate(".git/config", 0))
"""
    found = box.attack(script)
    assert found == {"write": "EROFS", "replace": "EXDEV", "unlink": "EBUSY", "truncate": "EROFS"}
    assert (box.workspace / ".git" / "config").read_text() == BENIGN


@pytest.mark.parametrize(
    "setting",
    [
        "[core]\n\tfsmonitor = /tmp/x",
        "[core]\n\thooksPath = /tmp",
        "[core]\n\tsshCommand = sh",
        "[core]\n\tpager = sh",
        "[alias]\n\tst = !sh",
        "[include]\n\tpath = /tmp/x",
        '[includeIf "gitdir:/"]\n\tpath = x',
        '[filter "x"]\n\tclean = sh',
        '[diff "x"]\n\ttextconv = sh',
        "[credential]\n\thelper = !sh",
        '[url "ext::sh"]\n\tinsteadOf = x',
        '[remote "o"]\n\turl = ext::sh -c x',
        "[gpg]\n\tprogram = sh",
        "[core]\r\n\tfsmonitor = x",
        '[core]\n\t"fsmonitor" = x',
        "[CORE]FSMONITOR=x",
        "[core]\n\tbare = fa\\\nlse\n\tfs\\\nmonitor = x",
    ],
)
def test_F24_settings_that_run_something_in_a_new_repository(box: Box, setting: str) -> None:
    left = plants(box, {"new/.git/config": setting + "\n", "fine/.git/config": BENIGN})
    assert left == {"fine/.git/config"}  # the control: what git itself writes stays
    assert "new/.git/config" in box.moved()


@pytest.mark.guard_alone
@pytest.mark.parametrize("place", ["a/.git", "a/b/c/d/e/.git", ".git/modules/sub", "node_modules/p/.git", ".git"])
def test_F25_repositories_at_any_depth(box: Box, place: str) -> None:
    if place.startswith(".git/"):
        repository(box)
    fine = {f"{place}/{name}": "ref: x\n" for name in ("HEAD", "objects/x", "refs/x", "description")}
    assert plants(box, {**fine, f"{place}/hooks/post-checkout": "x", f"{place}/config": EVIL}) == set(fine)


def test_F25_a_nested_repository_of_the_start(box: Box) -> None:
    repository(box, "deep/down/project")
    script = """
base = "deep/down/project/.git"
attempt("hook", write(base + "/hooks/post-checkout"))
attempt("config", write(base + "/config"))
for name in ("deep", "deep/down", "deep/down/project", base):
    attempt(name, lambda: os.rename(name, name + "2"))
"""
    found = box.attack(script)
    assert found.pop("hook") == "EROFS" and found.pop("config") == "EROFS"
    assert set(found.values()) == {"EBUSY"}, found


def test_F26_a_repository_by_its_layout(box: Box) -> None:
    """git takes any directory with HEAD, objects and refs for a bare repository."""
    files = {"HEAD": "ref: refs/heads/main\n", "objects/x": "", "refs/x": ""}
    evil = {f"planted/{name}": text for name, text in {**files, "config": EVIL}.items()}
    fine = {f"bare/{name}": text for name, text in {**files, "config": BENIGN}.items()}
    left = plants(box, {**evil, **fine})
    assert set(fine) <= left and "planted/HEAD" not in left  # without HEAD it is no repository


@pytest.mark.parametrize(
    "files",
    [
        {"w/.git": "gitdir: /tmp/evil\n"},
        {"w/.git": "gitdir: ../../outside\n"},
        {"w/.git": "gitdir: ../tree\n", "tree/config": EVIL},
        {"w/.git/commondir": "/tmp/evil\n"},
        {"git~1": "gitdir: /tmp\n"},
    ],
)
def test_F27_pointers_to_a_git_directory(box: Box, files: dict[str, str]) -> None:
    name = next(iter(files))
    assert name not in plants(box, files)
    refused = {event["access"]["path"] for event in box.record("AccessDenied")}
    assert name in box.moved() | refused


def test_F27_worktrees_of_the_start(box: Box) -> None:
    base = repository(box)
    (base / "worktrees" / "w").mkdir(parents=True)
    for name, text in (("commondir", "../..\n"), ("gitdir", f"{box.workspace}/w/.git\n"), ("HEAD", "ref: x\n")):
        (base / "worktrees" / "w" / name).write_text(text)
    box.file("w/.git", f"gitdir: {base}/worktrees/w\n")
    script = """
attempt("control", write(".git/worktrees/w/HEAD"))
attempt("pointer", write("w/.git", "gitdir: /tmp"))
attempt("replace pointer", lambda: os.unlink("w/.git"))
attempt("commondir", write(".git/worktrees/w/commondir", "/tmp"))
attempt("gitdir", write(".git/worktrees/w/gitdir", "/tmp"))
"""
    assert box.attack(script) == {
        "control": "ok",
        "pointer": "EROFS",
        "replace pointer": "EBUSY",
        "commondir": "EROFS",
        "gitdir": "EROFS",
    }


@pytest.mark.parametrize(
    "text",
    [
        '[submodule "x"]\n\tpath = "sub\r"\n\turl = a\n',
        '[submodule "../../hooks"]\n\tpath = s\n\turl = a\n',
        '[submodule "x"]\n\tpath = .git/hooks\n\turl = a\n',
        '[submodule "x"]\n\tpath = s\n\turl = a\n\tupdate = !sh\n',
        '[submodule "x"]\n\tpath = s\n\turl = ext::sh\n',
        '[submodule "x"]\n\tpath = -u\n\turl = -x\n',
    ],
)
def test_F28_submodules_and_attributes(box: Box, text: str) -> None:
    fine = '[submodule "lib"]\n\tpath = lib\n\turl = https://example.com/lib.git\n'
    repository(box)
    left = plants(box, {"a/.gitmodules": text, "b/.gitmodules": fine, ".git/info/attributes": "* filter=x\n"})
    assert left == {"b/.gitmodules"}


AGENTS = """
.claude/settings.json .claude/settings.local.json .claude/commands/x.md .claude/hooks/x .claude/agents/x
.claude/skills/x
.mcp.json .codex/config.toml .cursor/mcp.json .cursor/rules/x .gemini/settings.json .opencode/x opencode.json
.aider.conf.yml .amp/x .clinerules/hooks/PreToolUse .openhands/hooks.json .github/copilot/settings.json .vibe/tools/x.py
.qwen/hooks/x .agent/workflows/x
"""
SHELLS = """
.bashrc .bash_profile .profile .zshrc .zshenv .envrc .tool-versions mise.toml .mise.toml .config/mise/config.toml
.ripgreprc .gitconfig .husky/pre-commit lefthook-local.json .config/lefthook.toml .lefthook-local/pre-commit/x prek.toml
.config/hk.pkl .lazygit.yml .repo/repo/main.py .cshrc .prototools
"""
EDITORS = """
.vscode/tasks.json .idea/workspace.xml .zed/tasks.json .devcontainer/devcontainer.json .exrc .nvim.lua .lazy.lua
x.sublime-project .fleet/run.json .theia/tasks.json .dir-locals.el hie.yaml rust-analyzer.toml
"""
# What programs read in the directory that they start in, whatever they are asked.
STARTED = """
.RData .ocamlinit .iex.exs .byebugrc .perldb .lldbinit .latexmkrc
.pnpmfile.cjs .bazelrc .sbtopts
.miserc.toml mise/conf.d/x.toml .ropeproject/config.py .envrc.local .shadowenv.d/500_x.lisp renv/activate.R
.solargraph.yml .run/x.run.xml .ycm_extra_conf.py .claude/scheduled_tasks.json .claude/routines/x.md .claude/loop.md
"""

RUSTUP = ("rust-toolchain", "rust-toolchain.toml")


def _taken_away(box: Box, words: str) -> None:
    names = words.split()
    files = {f"{place}{name}": "evil" for name in names for place in ("", "some/where/")}
    assert plants(box, files) == set()
    for name in files:
        assert any(name == path or name.startswith(path + "/") for path in box.moved()), name
    # What was there at the start stays, read-only.
    existing = dict.fromkeys(names, "old")
    for name in existing:
        box.file(name, "old")
    script = "".join(f"attempt({name!r}, write({name!r}))\n" for name in existing)
    script += "".join(f"attempt('rm ' + {name!r}, lambda: os.unlink({name!r}))\n" for name in existing)
    found = box.attack(script)
    assert set(found.values()) <= {"EROFS", "EBUSY"}, found
    assert all((box.workspace / name).read_text() == "old" for name in existing)


@pytest.mark.guard_alone
def test_F29_configuration_of_agents(box: Box) -> None:
    _taken_away(box, AGENTS)
    # The policy of the next run is read by membrane itself: only one that is valid may be there at the start.
    assert plants(box, {"deep/.membrane.yaml": "allow: ['**']\n"}) == set()


@pytest.mark.guard_alone
def test_F29_a_name_that_is_hidden_and_protected(box: Box) -> None:
    """``.gemini/.env`` is protected, and hidden by the default rule for ``.env``: an agent outside would load it."""
    assert plants(box, {".gemini/.env": "evil"}) == set()


@pytest.mark.guard_alone
def test_F30_shell_files_of_the_workspace_and_of_the_home(box: Box) -> None:
    _taken_away(box, SHELLS)
    (box.home / ".bashrc").write_text("mine")
    script = """
for name in (".bashrc", ".zshenv", ".profile", ".config/fish/config.fish"):
    path = os.path.join(os.environ["HOME"], name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    attempt(name, write(path))
"""
    assert set(box.attack(script).values()) == {"ok"}
    assert (box.home / ".bashrc").read_text() == "mine" and sorted(os.listdir(box.home)) == [".bashrc"]


@pytest.mark.guard_alone
def test_F30_what_programs_read_where_they_start(box: Box) -> None:
    _taken_away(box, STARTED)


@pytest.mark.guard_alone
def test_F30_a_toolchain_of_the_command(box: Box) -> None:
    """``rust-toolchain``: what it holds decides, also of one that was there at the start."""
    released, own = "1.78.0\n", '[toolchain]\npath = "x"\n'
    files = {f"{place}{name}": text for place, text in (("fine/", released), ("evil/", own)) for name in RUSTUP}
    assert plants(box, files) == {f"fine/{name}" for name in RUSTUP}
    assert {f"evil/{name}" for name in RUSTUP} <= set(box.moved())
    for name in RUSTUP:
        box.file(f"there/{name}", released)
        box.file(f"here/{name}", released)
    script = f"""
for name in {RUSTUP!r}:
    attempt("there " + name, write("there/" + name, "stable\\n"))
    attempt("here " + name, write("here/" + name, "/tmp/evil\\n"))
    os.symlink("../fine/rust-toolchain", "link-" + name)
    attempt("link " + name, lambda: os.rename("link-" + name, name))
"""
    found = box.attack(script)
    assert {found[f"there {name}"] for name in RUSTUP} == {"ok"}
    assert all((box.workspace / "there" / name).read_text() == "stable\n" for name in RUSTUP)
    assert not any(os.path.lexists(box.workspace / "here" / name) for name in RUSTUP)
    assert not any(os.path.lexists(box.workspace / name) for name in RUSTUP)


# What each of these may hold, and what has a program outside run what is the command's.
CHOICES = {
    ".node-version": ("20.11.1\n", "path:evil\n"),
    ".ruby-version": ("3.3.0\n", "../../ws/evil\n"),
    ".bazelversion": ("7.4.1\n", "evil/7.4.1\n"),
    ".sdkmanrc": ("java=21.0.2-tem\n", "java=/ws/evil\n"),
    ".npmrc": ("engine-strict=true\n", "pnpmfile=./evil.cjs\n"),
    "pnpm-workspace.yaml": ("packages: ['*']\n", "pnpmfile: ./evil.cjs\n"),
    ".hg/histedit-state": ("v1\n", "cposix\nsystem\n(S'evil'\ntR."),
    ".hg/store/journal.backupfiles": ("2\n", "2\nplain\0../../x\0evil\x000\n"),
    ".ropeproject/history": ("(lp0\n.", "cposix\nsystem\n(S'evil'\ntR."),
}


@pytest.mark.guard_alone
def test_F30_choices_of_what_a_tool_runs(box: Box) -> None:
    """Versions, settings of package managers, Mercurial's state: what they hold decides."""
    files = {f"fine/{name}": fine for name, (fine, _evil) in CHOICES.items()}
    files |= {f"evil/{name}": evil for name, (_fine, evil) in CHOICES.items()}
    assert plants(box, files) == {f"fine/{name}" for name in CHOICES}
    assert {f"evil/{name}" for name in CHOICES} <= set(box.moved())


def test_F30_such_a_choice_is_refused_where_it_stands_at_the_start(box: Box) -> None:
    for name, (fine, _evil) in CHOICES.items():
        box.file(f"there/{name}", fine)
    script = f"""
for name, (fine, evil) in {CHOICES!r}.items():
    attempt("again " + name, write("there/" + name, fine))
    write("brought", evil)()
    attempt("brought " + name, lambda: os.rename("brought", "there/" + name))
    attempt("elsewhere " + name, lambda: os.rename("brought", "there/ordinary"))
"""
    found = box.attack(script)
    assert {found[f"again {name}"] for name in CHOICES} == {"ok"}, found
    assert {found[f"brought {name}"] for name in CHOICES} == {"EACCES"}, found
    assert {found[f"elsewhere {name}"] for name in CHOICES} == {"ok"}, "the control"
    assert {name: (box.workspace / "there" / name).read_text() for name in CHOICES} == {
        name: fine for name, (fine, _evil) in CHOICES.items()
    }


def test_F30_perls_debugger_runs_no_file_of_the_command(box: Box) -> None:
    """``.perldb``, as one for all: perl(1) outside runs what stands there, and the command can put nothing there."""
    (box.workspace / "s.pl").write_text("1;\n")
    debug = ["perl", "-d", "s.pl"]
    environment = {**os.environ, "PERLDB_OPTS": "NonStop=1"}

    def outside() -> str:
        return subprocess.run(
            debug, cwd=box.workspace, env=environment, input="q\n", stdout=-1, text=True, check=False, timeout=SECONDS
        ).stdout

    script = "attempt('it', write('.perldb', 'print qq(evil ran);'))"
    assert box.attack(script)["it"] == "EACCES"
    assert "evil ran" not in outside()
    box.file(".perldb", "print qq(evil ran);")  # the control
    assert "evil ran" in outside()


def test_F31_a_file_that_says_where_jj_has_its_configuration(box: Box) -> None:
    """``jj workspace add`` writes one; a directory of that name is what ``jj git init`` makes."""
    script = """
os.mkdir("a"); os.mkdir("a/.jj"); os.makedirs("elsewhere")
attempt("file", write("a/.jj/repo", "../../elsewhere"))
attempt("link", lambda: os.symlink("../../elsewhere", "a/.jj/repo"))
open("pointer", "w").write("../../elsewhere")
attempt("rename", lambda: os.rename("pointer", "a/.jj/repo"))
attempt("directory", lambda: os.mkdir("a/.jj/repo"))
attempt("below", write("a/.jj/repo/other", "x"))
"""
    refused = dict.fromkeys(("file", "link", "rename"), "EACCES")
    assert box.attack(script) == {**refused, "directory": "ok", "below": "ok"}


@pytest.mark.parametrize(
    ("content", "stays"), [("../../../.git", True), ("/home/x/evil", False), ("../../../evil", False), ("git", False)]
)
def test_F31_jj_runs_git_on_no_repository_of_the_commands_choice(box: Box, content: str, stays: bool) -> None:
    name = "a/.jj/repo/store/git_target"
    assert plants(box, {name: content}) == ({name} if stays else set())


@pytest.mark.guard_alone
def test_F31_editor_and_container_configuration(box: Box) -> None:
    _taken_away(box, EDITORS)


INJECTED = {
    "LD_PRELOAD": "/tmp/evil.so",
    "LD_LIBRARY_PATH": "/tmp",
    "LD_AUDIT": "/tmp/evil.so",
    "BASH_ENV": "/tmp/evil",
    "ENV": "/tmp/evil",
    "NODE_OPTIONS": "--require /tmp/evil",
    "PYTHONSTARTUP": "/tmp/evil",
    "PYTHONPATH": "/tmp/evil",
    "PERL5OPT": "-Mevil",
    "RUBYOPT": "-revil",
    "GIT_SSH_COMMAND": "evil",
    "GIT_CONFIG_COUNT": "1",
    "GIT_EXTERNAL_DIFF": "evil",
    "JAVA_TOOL_OPTIONS": "-javaagent:evil",
    "DYLD_INSERT_LIBRARIES": "evil",
    "SHELLOPTS": "xtrace",
    "PS4": "$(evil)",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "SSH_AUTH_SOCK": "/tmp/agent",
    "HTTPS_PROXY": "http://127.0.0.1:1",
}


def test_F34_variables_that_inject_code(box: Box) -> None:
    script = "say('names', sorted(os.environ))"
    # LD_PRELOAD names a file that does not exist: membrane itself must start all the same.
    environment = {name: value for name, value in INJECTED.items() if name != "PYTHONPATH"}
    found = box.attack(script, environment=environment)
    assert not set(found["names"]) & set(INJECTED)
    named = box.attack(
        script, "--env", "GIT_EXTERNAL_DIFF", "--env", "LD_*", "--env", "HTTPS_*", environment=environment
    )
    assert "GIT_EXTERNAL_DIFF" in named["names"]  # the control: given by its name
    assert not {"LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "HTTPS_PROXY"} & set(named["names"])  # never by a pattern


def test_F34_a_shell_inside_changes_only_itself(box: Box) -> None:
    done = box.run("sh", "-c", "export BASH_ENV=./x LD_PRELOAD=./x; echo x > file; membrane --version || echo none")
    assert (box.workspace / "file").exists()
    assert box.run("sh", "-c", "echo ${BASH_ENV-unset} ${LD_PRELOAD-unset}").stdout == "unset unset\n", done.stderr


@pytest.mark.guard_alone
@pytest.mark.parametrize(
    "name", [".GIT/hooks/x", ".Git/config", ".CLAUDE/settings.json", ".McP.json", ".VSCode/tasks.json"]
)
def test_F37_other_case(box: Box, name: str) -> None:
    """The tree may be copied to a file system that ignores case."""
    assert plants(box, {name: EVIL}) == set()


@pytest.mark.guard_alone
@pytest.mark.parametrize(
    "name",
    [
        ".g\u200cit/hooks/x",
        ".git\ufeff/config",
        ".git./config",
        ".git /hooks/x",
        ".git::$INDEX_ALLOCATION/config",
        "git~1/hooks/x",
        ".mcp.json.",
        ".mcp.js\u200bon",
        ".\uff4dcp.json",
        ".g\u0131t/hooks/x",  # an I by the up-case table of exFAT
        ".G\u0130T/config",
        ".cl\u0131nerules/hooks/x",
    ],
)
def test_F38_other_spellings(box: Box, name: str) -> None:
    """Normal forms, ignorable code points, trailing dots and streams that some file system takes for the same name."""
    assert plants(box, {name: EVIL}) == set()


STORM = """
import signal
for name in ("x/y", "z"):
    os.makedirs(name, exist_ok=True)
renames = os.fork()
if not renames:
    for _ in range(3_000_000):
        os.rename("x/y", "z/y")
        os.rename("z/y", "x/y")
    os._exit(0)
def make(name):
    os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    os.unlink(name)
WAYS = {"plain": "x/../plain", "tool": "x/../.mcp.json", "shell": "x/../.envrc", "hook": "x/../.git/hooks/pre-commit"}
try:
    for what, name in WAYS.items():
        found = {attempt("", lambda: make(name)) for _ in range(300)}
        say(what, sorted(found))
    say("hidden", sorted({attempt("", lambda: open("x/../.env").read()) for _ in range(300)}))
finally:
    os.kill(renames, signal.SIGKILL)
    os.waitpid(renames, 0)
_results.pop("", None)
"""


def test_F145_no_rule_is_lost_in_a_storm_of_renames(box: Box) -> None:
    """openat2(2) answers EAGAIN to a ".." while anything is renamed: no such answer is one that lets something pass."""
    subprocess.run(["git", "init", "-q", box.workspace], check=True)
    box.file(".env", "SECRET=1\n")
    answers = box.attack(STORM)
    assert answers.pop("plain") == ["ok"], "the control"
    assert answers.pop("hidden") == [""]
    assert set(answers) == {"tool", "shell", "hook"}
    assert all(set(found) <= {"EACCES", "EROFS", "EPERM"} for found in answers.values()), answers
    for name in (".mcp.json", ".envrc", ".git/hooks/pre-commit"):
        assert not (box.workspace / name).exists()
