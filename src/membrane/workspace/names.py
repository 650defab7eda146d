"""Names in a work tree that programs outside of the sandbox execute or obey.

Theory of operation
-------------------
Data only.  A row says which name, which program obeys it, what that does, and where this is written: the page of its
manual, or the file of its source.  ``docs/protected-names.md`` is this table as text, and a test compares the two.  A
name has up to four components, with at most one ``*`` in the last; it counts in every directory of the tree, but
for what package managers unpack (``protect.PACKAGES``).  Of a row with ``check`` the content decides, at each change,
and the file stays writable.

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
    check: str = ""  # what its content may be; empty: nothing that it could hold is let be

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

_EVERY = "loads what is named in it, or is chosen by it, whatever it is asked"
_SERVERS = "starts the servers and programs named in it"
# lefthook.dev/configuration: every stem with every format.
_LEFTHOOK = tuple(
    f"{place}{stem}.{suffix}"
    for place in ("", ".", ".config/")
    for stem in ("lefthook", "lefthook-local")
    for suffix in ("yml", "yaml", "toml", "json", "jsonc")
)

# Files that hold versions and nothing else.
VERSION_FILES = (
    *(".node-version", ".nvmrc", ".ruby-version", ".python-version", ".python-versions", ".java-version", ".sdkmanrc"),
    *(".go-version", ".terraform-version", ".opentofu-version", ".perl-version", ".php-version", ".crystal-version"),
    *(".bun-version", ".deno-version", ".zig-version", ".swift-version", ".yvmrc", ".bazelversion"),
)

_BASH, _ZSH = "bash(1), INVOCATION", "zsh(1), STARTUP/SHUTDOWN FILES"
_MISE = "mise.jdx.dev/configuration.html"
_QWEN = tuple(
    f".qwen/{name}" for name in ("settings.json", ".env", "commands", "extensions", "hooks", "agents", "skills")
)
_CLAUDE = "code.claude.com/docs/en/settings"
_GEMINI = "google-gemini/gemini-cli, docs/reference/configuration.md"


def _rows(tool: str, reason: str, source: str, *names: str, check: str = "") -> tuple[Protected, ...]:
    return tuple(Protected(name, "tree", tool, reason, source, check) for name in names)


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
    *_rows("lefthook", _HOOKS, "lefthook.dev/configuration", *_LEFTHOOK, ".lefthook", ".lefthook-local"),
    *_rows("prek", _HOOKS, "prek.j178.dev/configuration", "prek.toml", ".pre-commit-config.yml"),
    *_rows(
        "hk",
        _HOOKS,
        "hk.jdx.dev/configuration.html",
        "hk.pkl",
        "hk.local.pkl",
        ".config/hk.pkl",
        ".config/hk.local.pkl",
    ),
    *_rows("git-lfs", "sends and takes large files where it says", "git-lfs-config(5)", ".lfsconfig"),
    *_rows("lazygit", "runs the pager, editor and commands named in it", "lazygit, docs/Config.md", ".lazygit.yml"),
    *_rows("repo", "runs it at every repo here", "gerrit.googlesource.com/git-repo, repo", ".repo/repo"),
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
        "Mercurial",
        "runs what is pickled in it (histedit, summary)",
        "hgext/histedit.py, histeditstate.read",
        ".hg/histedit-state",
        check="the text that it writes, version 1",
    ),
    *_rows(
        "Mercurial",
        "writes the files that are named in it (recover, rollback)",
        "mercurial/transaction.py, _playback",
        ".hg/store/journal.backupfiles",
        ".hg/store/undo.backupfiles",
        check="names below .hg, and none of its configuration",
    ),
    *_rows(
        "Jujutsu",
        "runs tools and aliases named in it",
        "docs.jj-vcs.dev/latest/config",
        ".jj/repo/config.toml",
        ".jj/workspace-config.toml",
    ),
    *_rows(
        "Jujutsu",
        "runs git on the repository that it names, with the programs of its configuration",
        "jj-vcs/jj, lib/src/git_backend.rs",
        ".jj/repo/store/git_target",
    ),
    *_rows(
        "Sapling", "runs hooks, aliases and extensions named in it", "sapling-scm.com, sl help config", ".sl/config"
    ),
    *_rows("Sapling", "takes configuration from where it points", "sapling-scm.com, sl help share", ".sl/sharedpath"),
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
    *_rows("tcsh", _SHELL, "tcsh(1), STARTUP AND SHUTDOWN", ".cshrc", ".tcshrc", ".login", ".logout"),
    *_rows("ksh", _SHELL, "ksh(1), Invocation", ".kshrc", ".mkshrc"),
    *_rows("fish", _SHELL, "fish(1), Configuration files", ".config/fish"),
    *_rows("direnv", _PROMPT, "direnv(1)", ".envrc"),
    *_rows(
        "direnv",
        "loads it without a question where an .envrc says so",
        "direnv-stdlib(1), source_env_if_exists",
        ".envrc.local",
        ".envrc.private",
    ),
    *_rows("shadowenv", _PROMPT, "shopify.github.io/shadowenv/trust: a directory is trusted", ".shadowenv.d"),
    *_rows(
        "nix-direnv",
        "runs it from the hook of a shell's prompt, or has it first in PATH",
        "nix-community/nix-direnv, direnvrc",
        ".direnv/*.rc",
        ".direnv/bin",
    ),
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
        "mise/conf.d",
        ".miserc.toml",
        ".miserc.local.toml",
    ),
    *_rows(
        "a version manager (mise, fnm, rbenv, jenv, tfenv, SDKMAN, Bazelisk)",
        "runs what a version leads to, by the hook of a shell's prompt or at each command",
        "mise.jdx.dev/dev-tools, path:; Schniz/fnm, src/commands/use.rs; rbenv 1.1, libexec/rbenv-version-file-read; "
        "bazelbuild/bazelisk, README.md, FORK/VERSION",
        *VERSION_FILES,
        check="plain names of versions",
    ),
    *_rows("proto", _PROMPT, "moonrepo.dev/docs/proto/config", ".prototools"),
    # interpreters and command-line tools that read a file of the directory they start in
    *_rows("ripgrep", "runs the preprocessor named in it", "rg(1), --pre", ".ripgreprc"),
    *_rows("pdb", _START, "docs.python.org/3/library/pdb.html", ".pdbrc"),
    *_rows("R", _START, "R, ?Startup", ".Rprofile"),
    *_rows(
        "R", "runs the profile that its variables name when it starts in this directory", "R, ?Startup", ".Renviron"
    ),
    *_rows(
        "R", "loads it, and runs the function .First in it, when it starts in this directory", "R, ?Startup", ".RData"
    ),
    *_rows(
        "R",
        "runs it when it starts in this directory, where renv has put that into .Rprofile",
        "rstudio.github.io/renv, activate",
        "renv/activate.R",
    ),
    *_rows("Octave", _START, "docs.octave.org, Startup Files", ".octaverc"),
    *_rows("GHCi", _START, "downloads.haskell.org/ghc/latest/docs/users_guide/ghci.html", ".ghci"),
    *_rows("irb", _START, "irb(1), FILES", ".irbrc"),
    *_rows("pry", _START, "github.com/pry/pry/wiki/Pry-rc", ".pryrc"),
    *_rows("gdb", _START, "gdb(1), -nx", ".gdbinit"),
    *_rows("lldb", "runs it where target.load-cwd-lldbinit is set", "lldb(1), CONFIGURATION FILES", ".lldbinit"),
    *_rows("byebug", _START, "deivid-rodriguez/byebug, GUIDE.md", ".byebugrc"),
    *_rows("perl's debugger", _START, "perldebug(1), Debugger Customization", ".perldb"),
    *_rows("ocaml", _START, "ocaml.org/manual/toplevel.html", ".ocamlinit"),
    *_rows("IEx", _START, "hexdocs.pm/iex/IEx.html", ".iex.exs"),
    *_rows("PsySH", _START, "github.com/bobthecow/psysh/wiki/Configuration", ".psysh.php"),
    *_rows(
        "latexmk",
        "runs it at every build here, also an editor's",
        "latexmk(1), CONFIGURATION",
        ".latexmkrc",
        "latexmkrc",
    ),
    *_rows(
        "valgrind", "takes options from it: where it writes, what it loads", "valgrind(1), .valgrindrc", ".valgrindrc"
    ),
    *_rows("act", "takes options from it: privileges and mounts of its containers", "nektosact.com/usage", ".actrc"),
    *_rows(
        "rustup",
        "runs the toolchain whose path it names at every cargo and rustc here, also an editor's",
        "rust-lang.github.io/rustup/overrides.html, path",
        "rust-toolchain.toml",
        "rust-toolchain",
        check="a released toolchain, its components, targets and profile",
    ),
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
        "pnpm",
        "runs it at every install, whatever scripts are allowed",
        "pnpm.io/pnpmfile",
        ".pnpmfile.cjs",
        ".pnpmfile.mjs",
    ),
    *_rows(
        "npm, pnpm or Yarn",
        "runs the programs and modules that its settings name, and sends tokens through the proxy named in it",
        "docs.npmjs.com/cli/using-npm/config; pnpm.io/settings",
        ".npmrc",
        "pnpm-workspace.yaml",
        check="settings that name no program, no proxy and no authority",
    ),
    *_rows("Bazel", _EVERY, "bazel.build/run/bazelrc; bazelbuild/bazelisk, README.md", ".bazelrc", ".bazeliskrc"),
    *_rows("Buck", _EVERY, "buck2.build/docs/concepts/buckconfig", ".buckconfig", ".buckconfig.local"),
    *_rows("Please", _EVERY, "please.build/config.html", ".plzconfig", ".plzconfig.local"),
    *_rows("sbt", _EVERY, "sbt(1) of sbt/sbt, sbt-runner", ".sbtopts", ".jvmopts"),
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
    *_rows(
        "Solargraph",
        "loads the plugins named in it",
        "castwide/solargraph, lib/solargraph/workspace.rb",
        ".solargraph.yml",
    ),
    *_rows("rust-analyzer", _SERVERS, "rust-analyzer.github.io/book/configuration.html", "rust-analyzer.toml"),
    *_rows("haskell-language-server", _SERVERS, "haskell/hie-bios, README.md, bios", "hie.yaml"),
    *_rows(
        "rope",
        "runs it when a language server or an editor opens the project",
        "python-rope/rope, docs/configuration.rst",
        ".ropeproject/config.py",
    ),
    *_rows(
        "rope",
        "runs what is pickled in it at the first refactoring",
        "python-rope/rope, rope/base/history.py",
        ".ropeproject/history",
        check="plain data",
    ),
    *_rows("Merlin", "runs the preprocessors named in it", "ocaml/merlin, .merlin, FLG", ".merlin"),
    *_rows(
        "YouCompleteMe",
        "runs it when a file here is opened, after a question or without",
        "ycm-core/YouCompleteMe, README.md, g:ycm_confirm_extra_conf",
        ".ycm_extra_conf.py",
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
    *_rows("a JetBrains IDE", _TASKS, "jetbrains.com/help/idea/run-debug-configuration.html", ".run/*.run.xml"),
    *_rows("Zed", _TASKS, "zed.dev/docs/tasks", ".zed"),
    *_rows("Sublime Text", _TASKS, "sublimetext.com/docs/projects.html", "*.sublime-project"),
    *_rows("Fleet", _TASKS, "jetbrains.com/help/fleet/run-configurations.html", ".fleet"),
    *_rows("Theia", _TASKS, "theia-ide.org/docs/user_getting_started", ".theia"),
    *_rows("Nova", _TASKS, "help.nova.app/nova/tasks", ".nova"),
    *_rows("Kate", _TASKS, "docs.kde.org, Kate, Project plugin and LSP client", ".kateproject"),
    *_rows("Visual Studio", _TASKS, "learn.microsoft.com/visualstudio/ide/customize-build-and-debug-tasks", ".vs"),
    *_rows(
        "Eclipse",
        "runs the builders named in it when it builds",
        "help.eclipse.org, External tool builders",
        ".externalToolBuilders",
    ),
    *_rows(
        "Emacs",
        "obeys it, code as well where its user has said so",
        "GNU Emacs Manual, Directory Variables",
        ".dir-locals.el",
        ".dir-locals-2.el",
    ),
    *_rows("Helix", "starts the language servers named in it", "docs.helix-editor.com/languages.html", ".helix"),
    *_rows(
        "neoconf.nvim",
        "starts language servers with the settings, and so the programs, in it",
        "folke/neoconf.nvim, README.md",
        ".neoconf.json",
    ),
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
        "Gitpod",
        "runs it when a workspace starts",
        "gitpod.io/docs/references/gitpod-yml",
        ".gitpod.yml",
        ".gitpod",
        ".ona",
    ),
    *_rows("Firebase Studio", "runs it when a workspace starts", "firebase.google.com/docs/studio, dev.nix", ".idx"),
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
        ".lazy.lua",
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
    *_rows(
        "Claude Code",
        "carries out the prompts in it by itself, outside of the sandbox",
        "Claude Code 2, what its own sandbox denies; code.claude.com/docs/en/scheduled-tasks",
        ".claude/scheduled_tasks.json",
        ".claude/routines",
        ".claude/loop.md",
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
        ".gemini/sandbox.Dockerfile",
        ".gemini/sandbox.bashrc",
    ),
    *_rows("OpenCode", _AGENT, "opencode.ai/docs/config", ".opencode", "opencode.json", "opencode.jsonc"),
    *_rows("Aider", _AGENT, "aider.chat/docs/config/aider_conf.html", ".aider.conf.yml"),
    *_rows("Amp", _AGENT, "ampcode.com/manual", ".amp"),
    *_rows("Kiro", _AGENT, "kiro.dev/docs/hooks", ".kiro"),
    *_rows("Roo Code", _AGENT, "docs.roocode.com/features/mcp/using-mcp-in-roo", ".roo/mcp.json"),
    *_rows("Windsurf", _AGENT, "docs.windsurf.com/windsurf/cascade/hooks", ".windsurf/hooks.json"),
    *_rows("Qwen Code", _AGENT, "QwenLM/qwen-code, docs/users/configuration/settings.md", *_QWEN),
    *_rows("Crush", _AGENT, "charmbracelet/crush, README.md", "crush.json", ".crush.json"),
    *_rows("pi", _AGENT, "badlogic/pi-mono, packages/coding-agent/README.md", ".pi/extensions", ".pi/settings.json"),
    *_rows("Factory", _AGENT, "docs.factory.ai/cli/configuration/settings", ".factory"),
    *_rows(
        "GitHub Copilot", _AGENT, "docs.github.com/copilot, Using hooks with GitHub Copilot agents", ".github/hooks"
    ),
    *_rows(
        "GitHub Copilot",
        _AGENT,
        "docs.github.com/copilot, Customizing Copilot CLI",
        ".github/copilot",
        ".github/agents",
        ".github/skills",
        ".github/extensions",
    ),
    *_rows("Cline", "runs it at each step of a task", "docs.cline.bot/customization/hooks", ".clinerules/hooks"),
    *_rows("Vibe", _AGENT, "mistralai/mistral-vibe, README.md", ".vibe"),
    *_rows("Grok CLI", _AGENT, "superagent-ai/grok-cli, README.md", ".grok"),
    *_rows(
        "Junie",
        _AGENT,
        "junie.jetbrains.com/docs/junie-cli-mcp-configuration.html",
        ".junie/mcp",
        ".junie/skills",
        ".junie/agents",
    ),
    *_rows("iFlow", _AGENT, "platform.iflow.cn/docs, hooks", ".iflow"),
    *_rows("CodeBuddy", _AGENT, "codebuddy.ai/docs/cli/hooks", ".codebuddy"),
    *_rows("Qoder", _AGENT, "docs.qoder.com/cli/hooks", ".qoder"),
    *_rows("Tabnine", _AGENT, "docs.tabnine.com, MCP", ".tabnine"),
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
        ".openhands/hooks.json",
        ".openhands/hooks",
        ".openhands/pre-commit.sh",
    ),
    *_rows("an agent", _SAYS, "agentskills.io/specification", ".agents/skills"),
    *_rows("Antigravity", _SAYS, "antigravity.google/docs/skills", ".agent/skills", ".agent/workflows", ".agent/rules"),
    # ours
    *_rows("membrane", "takes it for the policy of the next run", "docs/policy.md", ".membrane.yaml"),
)
