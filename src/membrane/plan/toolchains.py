"""The toolchains that may lie in a caller's home.

Theory of operation
-------------------
Package managers install programs for one user below the home, each in a directory of its own name.  Those directories
are shown in the view, with a layer for what the command writes (``mounts``), and nothing else of the home is: so each
name here holds programs and libraries, never credentials or caches.  What of them holds credentials all the same is
named here as well, and masked.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .model import HostFacts

# Relative to the home.
NAMES = (
    ".local/bin",
    ".local/lib",
    ".local/pipx",
    ".local/share/claude",
    ".local/share/pipx",
    ".local/share/uv/python",
    ".local/share/uv/tools",
    ".local/share/mise/installs",
    ".local/share/mise/shims",
    ".local/share/fnm",
    ".local/share/pnpm",
    ".local/share/rtx",
    ".asdf",
    ".bun/bin",
    ".cargo/bin",
    ".rustup",
    ".deno/bin",
    ".dotnet",
    ".fnm",
    ".ghcup/bin",
    ".ghcup/ghc",
    ".jenv",
    ".juliaup",
    ".linuxbrew",
    ".n",
    ".nodenv",
    ".npm-global",
    ".nvm",
    ".opam",
    ".opencode/bin",
    ".pyenv",
    ".rbenv",
    ".rye/shims",
    ".rye/py",
    ".rye/tools",
    ".sdkman/candidates",
    ".volta",
    "anaconda3",
    "bin",
    "go/bin",
    "miniconda3",
    "miniforge3",
    "sdk",
)
# Credentials in them: keys of certificates (.NET, X509Store of the user), tokens of opam-publish, and the configuration
# of one installation (npm "prefix/etc/npmrc", conda), which may hold a token of a registry.
SECRET_TREES = (".dotnet/corefx", ".opam/plugins/opam-publish")
SECRET_FILES = (
    *(".npm-global/etc/npmrc", ".n/etc/npmrc"),
    *("anaconda3/.condarc", "miniconda3/.condarc", "miniforge3/.condarc"),
)
SECRETS = (*SECRET_TREES, *SECRET_FILES)


def present(facts: HostFacts) -> list[str]:
    """Those that the caller has, as absolute paths."""
    return [tree for name in NAMES if (tree := f"{facts.home}/{name}") in facts.existing]


def secrets(facts: HostFacts) -> list[str]:
    """The credentials in them that there are, as absolute paths."""
    return [path for name in SECRETS if (path := f"{facts.home}/{name}") in facts.existing]
