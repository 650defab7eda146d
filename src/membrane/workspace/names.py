"""Names in a work tree that programs outside of the sandbox execute or obey.

Theory of operation
-------------------
Data only.  A row says which name, which program obeys it, what that does, and where this is written: the page of its
manual, or the file of its source.  ``docs/protected-names.md`` is this table as text, and a test compares the two.  A
name has up to three components, with at most one ``*`` in the last; it counts in every directory of the tree, but
for what package managers unpack (``protect.PACKAGES``).

What is in a git directory has another table, of what is *good* (``gitdir``): git says what it writes, and a list of
what it obeys would never be whole.  Here any program may be meant, so the list is of what is known to be obeyed.
"""

from __future__ import annotations

from ..value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal


class Protected(Value):
    """One row: ``name`` in any directory ("tree"), or in any git directory ("git")."""

    name: str
    where: Literal["tree", "git"]
    tool: str
    does: str  # what the tool does with it
    source: str  # where that is written

    @property
    def reason(self) -> str:
        """Why the name is protected, as a sentence."""
        return f"{self.tool} {self.does}"


HOOK = "git runs it on the next commit, checkout, merge, push"
CONFIG = "git runs programs named in it (fsmonitor, hooksPath, sshCommand, pager, filters)"
_TASKS = "runs tasks and tools named in it"
_AGENT = "runs hooks and servers named in it, outside of the sandbox"
_SAYS = "follows it as its instructions, outside of the sandbox"
_SHELL = "runs it when it starts here or in a home directory"
_PROMPT = "chooses or runs programs by it from the hook of a shell's prompt"
_START = "runs it when it starts in this directory"
_HOOKS = "runs what is named in it at the next commit, by the hook that it has installed"

_BASH, _ZSH = "bash(1), INVOCATION", "zsh(1), STARTUP/SHUTDOWN FILES"
_MISE = "mise.jdx.dev/configuration.html"
_CLAUDE = "code.claude.com/docs/en/settings"
_GEMINI = "google-gemini/gemini-cli, docs/reference/configuration.md"


def _rows(tool: str, reason: str, source: str, *names: str) -> tuple[Protected, ...]:
    return tuple(Protected(name, "tree", tool, reason, source) for name in names)


TREE_ROWS = (
    # git and its relatives
    *_rows("git", "clones what it names and checks out where it says", "gitmodules(5)", ".gitmodules"),
    *_rows("git", CONFIG.removeprefix("git "), "git-config(1), FILES", ".gitconfig"),
    *_rows("husky", "has git run it on the next commit, checkout, merge, push", "typicode.github.io/husky", ".husky"),
    *_rows(
        "git",
        HOOK.removeprefix("git ") + ", where core.hooksPath of the user names it",
        "git-config(1), core.hooksPath",
        ".githooks",
    ),
    *_rows("pre-commit", _HOOKS, "pre-commit.com", ".pre-commit-config.yaml"),
    *_rows(
        "lefthook",
        _HOOKS,
        "lefthook.dev/configuration",
        "lefthook.yml",
        "lefthook.yaml",
        "lefthook.toml",
        "lefthook.json",
        ".lefthook.yml",
        ".lefthook.yaml",
        ".lefthook.toml",
        ".lefthook.json",
        "lefthook-local.yml",
        ".lefthook-local.yml",
        ".lefthook",
        ".config/lefthook.yml",
    ),
    *_rows(
        "overcommit",
        _HOOKS,
        "github.com/sds/overcommit, README.md",
        ".overcommit.yml",
        ".local-overcommit.yml",
        ".git-hooks",
    ),
    *_rows("Mercurial", "runs hooks, aliases and extensions named in it", "hgrc(5)", ".hg/hgrc", ".hg/hgrc-not-shared"),
    *_rows("Mercurial", "takes configuration from where it points", "hg help -e share", ".hg/sharedpath"),
    *_rows(
        "Jujutsu",
        "runs tools and aliases named in it",
        "docs.jj-vcs.dev/latest/config",
        ".jj/repo/config.toml",
        ".jj/workspace-config.toml",
    ),
    *_rows(
        "Sapling", "runs hooks, aliases and extensions named in it", "sapling-scm.com, sl help config", ".sl/config"
    ),
    *_rows(
        "Pijul",
        "runs it, or the hooks named in it, at the next record",
        "pijul.org/manual; pijul, src/commands/hooks.rs",
        ".pijul/config",
        ".pijul/hooks",
    ),
    *_rows("darcs", "runs the hooks named in it", "darcs.net/Using/Configuration", "_darcs/prefs/defaults"),
    # shells
    *_rows(
        "bash", _SHELL, _BASH, ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile"
    ),
    *_rows("zsh", _SHELL, _ZSH, ".zshrc", ".zprofile", ".zshenv", ".zlogin", ".zlogout"),
    *_rows("direnv", _PROMPT, "direnv(1)", ".envrc"),
    *_rows("asdf or mise", _PROMPT, "asdf-vm.com/manage/configuration.html", ".tool-versions"),
    *_rows(
        "mise",
        _PROMPT,
        _MISE,
        "mise.toml",
        "mise.*.toml",
        ".mise.toml",
        ".mise.*.toml",
        ".mise",
        "mise/config.toml",
        "mise/config.*.toml",
        ".config/mise",
        ".config/mise.toml",
        ".config/mise.*.toml",
        ".rtx.toml",
        ".rtx.*.toml",
    ),
    # interpreters and command-line tools that read a file of the directory they start in
    *_rows("ripgrep", "runs the preprocessor named in it", "rg(1), --pre", ".ripgreprc"),
    *_rows("pdb", _START, "docs.python.org/3/library/pdb.html", ".pdbrc"),
    *_rows("R", _START, "R, ?Startup", ".Rprofile"),
    *_rows(
        "R", "runs the profile that its variables name when it starts in this directory", "R, ?Startup", ".Renviron"
    ),
    *_rows("Octave", _START, "docs.octave.org, Startup Files", ".octaverc"),
    *_rows("GHCi", _START, "downloads.haskell.org/ghc/latest/docs/users_guide/ghci.html", ".ghci"),
    *_rows("irb", _START, "irb(1), FILES", ".irbrc"),
    *_rows("pry", _START, "github.com/pry/pry/wiki/Pry-rc", ".pryrc"),
    *_rows("gdb", _START, "gdb(1), -nx", ".gdbinit"),
    *_rows(
        "Yarn",
        "runs the program and the plugins named in it, whatever it is asked",
        "yarnpkg.com/configuration/yarnrc",
        ".yarnrc.yml",
        ".yarnrc",
    ),
    *_rows(
        "Yarn",
        "runs it at every yarn here (yarnPath, plugins)",
        "yarnpkg.com/configuration/yarnrc",
        ".yarn/releases",
        ".yarn/plugins",
    ),
    *_rows(
        "Maven",
        "loads what is named in it at every mvn",
        "maven.apache.org/configure.html",
        ".mvn/jvm.config",
        ".mvn/maven.config",
        ".mvn/extensions.xml",
    ),
    *_rows(
        "Cargo",
        "runs wrappers and linkers named in it, also when an editor starts rust-analyzer",
        "doc.rust-lang.org/cargo/reference/config.html",
        ".cargo/config.toml",
        ".cargo/config",
    ),
    # editors
    *_rows(
        "VS Code",
        _TASKS,
        "code.visualstudio.com/docs/configure/settings",
        ".vscode",
        "*.code-workspace",
    ),
    *_rows("a JetBrains IDE", _TASKS, "jetbrains.com/help/idea/creating-and-managing-projects.html", ".idea"),
    *_rows("Zed", _TASKS, "zed.dev/docs/tasks", ".zed"),
    *_rows("Helix", "starts the language servers named in it", "docs.helix-editor.com/languages.html", ".helix"),
    *_rows(
        "coc.nvim",
        "starts the language servers named in it",
        "neoclide/coc.nvim, :help coc-config",
        ".vim/coc-settings.json",
    ),
    *_rows(
        "a tool for dev containers", _TASKS, "containers.dev/implementors/spec", ".devcontainer", ".devcontainer.json"
    ),
    *_rows(
        "Vim or Neovim",
        "runs it where 'exrc' is set",
        "vim, :help 'exrc'",
        ".vimrc",
        "_vimrc",
        ".exrc",
        "_exrc",
        ".nvimrc",
        ".nvim.lua",
    ),
    # agents
    *_rows("an MCP client", "starts the servers named in it", "code.claude.com/docs/en/mcp", ".mcp.json", "mcp.json"),
    *_rows(
        "Claude Code",
        _AGENT,
        _CLAUDE,
        ".claude/settings*.json",
        ".claude/commands",
        ".claude/agents",
        ".claude/hooks",
        ".claude/skills",
        ".claude/plugins",
        ".claude/launch.json",
        ".claude/workflows",
        ".claude-plugin",
    ),
    *_rows(
        "Claude Code",
        _SAYS,
        "code.claude.com/docs/en/memory",
        ".claude/rules",
        ".claude/output-styles",
        ".claude/CLAUDE.md",
    ),
    *_rows("Codex", _AGENT, "developers.openai.com/codex/config-reference", ".codex"),
    *_rows("Cursor", _AGENT, "cursor.com/docs/agent/hooks", ".cursor"),
    *_rows(
        "Gemini CLI",
        _AGENT,
        _GEMINI,
        ".gemini/settings.json",
        ".gemini/.env",
        ".gemini/commands",
        ".gemini/extensions",
        ".gemini/hooks",
        ".gemini/policies",
        ".gemini/agents",
        ".gemini/skills",
    ),
    *_rows("OpenCode", _AGENT, "opencode.ai/docs/config", ".opencode", "opencode.json", "opencode.jsonc"),
    *_rows("Aider", _AGENT, "aider.chat/docs/config/aider_conf.html", ".aider.conf.yml"),
    *_rows("Amp", _AGENT, "ampcode.com/manual", ".amp"),
    *_rows("Kiro", _AGENT, "kiro.dev/docs/hooks", ".kiro"),
    *_rows("Roo Code", _AGENT, "docs.roocode.com/features/mcp/using-mcp-in-roo", ".roo/mcp.json"),
    *_rows("Windsurf", _AGENT, "docs.windsurf.com/windsurf/cascade/hooks", ".windsurf/hooks.json"),
    *_rows("Qwen Code", _AGENT, "QwenLM/qwen-code, docs/users/configuration/settings.md", ".qwen/settings.json"),
    *_rows("Crush", _AGENT, "charmbracelet/crush, README.md", "crush.json", ".crush.json"),
    *_rows("pi", _AGENT, "badlogic/pi-mono, packages/coding-agent/README.md", ".pi/extensions", ".pi/settings.json"),
    *_rows("Factory", _AGENT, "docs.factory.ai/cli/configuration/settings", ".factory"),
    *_rows(
        "GitHub Copilot", _AGENT, "docs.github.com/copilot, Using hooks with GitHub Copilot agents", ".github/hooks"
    ),
    *_rows("Amazon Q", _AGENT, "aws/amazon-q-developer-cli, docs/agent-format.md", ".amazonq"),
    *_rows("Kilo Code", _AGENT, "kilo.ai/docs/features/mcp/using-in-kilo-code", ".kilocode"),
    *_rows("Trae", _AGENT, "docs.trae.ai/ide/model-context-protocol", ".trae"),
    *_rows("Augment", _AGENT, "docs.augmentcode.com/cli/hooks", ".augment"),
    *_rows("Continue", _AGENT, "docs.continue.dev/reference", ".continue"),
    *_rows(
        "OpenHands",
        "runs it when a session starts",
        "docs.openhands.dev, Repository customization",
        ".openhands/setup.sh",
        ".openhands/pre-commit.sh",
    ),
    *_rows("an agent", _SAYS, "agentskills.io/specification", ".agents/skills"),
    # ours
    *_rows("membrane", "takes it for the policy of the next run", "docs/policy.md", ".membrane.yaml"),
)
