"""git configuration files: a strict reader, and which settings can not make git run anything.

Theory of operation
-------------------
``parse`` accepts a subset of git-config(1) "CONFIGURATION FILE" and refuses everything else, so that what it
returns is what git reads (a property test compares it with ``git config --list``).  ``objection`` is an allow-list:
the settings that ``git init``, ``clone``, ``worktree add``, ``submodule`` and everyday ``git config`` write, with a
check of the values that git could run.  Anything not listed is refused, so a new dangerous setting of a later git is
refused as well.
"""

from __future__ import annotations

MOST_SETTINGS = 10_000


class ConfigError(ValueError):
    """The text is outside of the accepted subset; the message says where."""


def parse(text: str) -> list[tuple[str, str | None]]:
    """The settings in order: ``("core.bare", "false")``; the value of a key without "=" is None.

    Section and key are lower case, a quoted subsection keeps its case: ``remote.Origin.url``.

    Raises:
        ConfigError: NUL, carriage return, byte order mark or another control character; the old ``[a.b]`` form;
            an unknown escape; an unclosed quote; a setting before the first section; too many settings.
    """
    for char in text:
        if (char < " " and char not in "\n\t") or char in "\x7f\ufeff":
            raise ConfigError(f"control character {ord(char):#04x}")
    if text and not text.endswith("\n"):
        text += "\n"
    reader = _Reader(text)
    out: list[tuple[str, str | None]] = []
    section = ""
    while reader.at < len(text):
        char = text[reader.at]
        if char in " \t\n":
            reader.at += 1
        elif char in "#;":
            reader.at = text.index("\n", reader.at)
        elif char == "[":
            section = reader.section()
        elif not section:
            raise ConfigError("a setting before the first section")
        else:
            key, value = reader.setting()
            out.append((f"{section}.{key}", value))
            if len(out) > MOST_SETTINGS:
                raise ConfigError("too many settings")
    return out


class _Reader:
    """A position in a text that ends in a newline."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def line(self) -> int:
        return self.text.count("\n", 0, self.at) + 1

    def _word(self, also: str) -> str:
        start, text = self.at, self.text
        while text[self.at].isascii() and (text[self.at].isalnum() or text[self.at] in also):
            self.at += 1
        if start == self.at:
            raise ConfigError(f"line {self.line()}")
        return text[start : self.at].lower()

    def _expect(self, char: str) -> None:
        if self.text[self.at] != char:
            raise ConfigError(f"line {self.line()}")
        self.at += 1

    def section(self) -> str:
        """``[name]`` or ``[name "subsection"]``."""
        self._expect("[")
        name = self._word("-")
        text = self.text
        if text[self.at] not in " \t":
            self._expect("]")
            return name
        while text[self.at] in " \t":
            self.at += 1
        self._expect('"')
        sub = ""
        while text[self.at] != '"':
            char = text[self.at]
            if char == "\\":
                self.at += 1
                char = text[self.at]
            if char == "\n":
                raise ConfigError(f"line {self.line()}: unclosed section")
            sub += char
            self.at += 1
        self._expect('"')
        self._expect("]")
        return f"{name}.{sub}"

    def setting(self) -> tuple[str, str | None]:
        """``key``, or ``key = value`` with quotes, escapes, comments and continuation lines (config.c parse_value)."""
        text = self.text
        if not (text[self.at].isascii() and text[self.at].isalpha()):
            raise ConfigError(f"line {self.line()}")
        key = self._word("-")
        while text[self.at] in " \t":
            self.at += 1
        if text[self.at] == "\n":
            return key, None
        self._expect("=")
        while text[self.at] in " \t":
            self.at += 1
        value, spaces, quoted = "", "", False
        while True:
            char = text[self.at]
            self.at += 1
            if char == "\n":
                if quoted:
                    raise ConfigError(f"line {self.line() - 1}: unclosed quote")
                return key, value
            if not quoted and char in " \t":
                spaces += char
                continue
            if not quoted and char in "#;":
                self.at = text.index("\n", self.at)
                continue
            if char == "\\":
                char = text[self.at]
                self.at += 1
                if char == "\n":
                    if spaces or self.at >= len(text):
                        raise ConfigError(f"line {self.line() - 1}: continuation")
                    continue
                if char not in 'tn"\\':
                    raise ConfigError(f"line {self.line()}: escape")
                char = {"t": "\t", "n": "\n"}.get(char, char)
            elif char == '"':
                quoted = not quoted
                char = ""
            value, spaces = value + spaces + char, ""


# ---------------------------------------------------------------- what is harmless

_BOOLEANS = frozenset({"true", "false", "yes", "no", "on", "off", "1", "0", ""})

# Exact keys whose value git does not run, whatever it is.
_PLAIN = frozenset(
    """
    core.repositoryformatversion core.filemode core.bare core.logallrefupdates core.ignorecase
    core.precomposeunicode core.symlinks core.autocrlf core.eol core.safecrlf core.quotepath core.abbrev
    core.sparsecheckout core.sparsecheckoutcone core.compression core.bigfilethreshold core.commitgraph
    core.untrackedcache core.preloadindex core.longpaths core.checkstat core.trustctime core.sharedrepository
    core.multipackindex core.splitindex core.whitespace
    extensions.objectformat extensions.worktreeconfig extensions.partialclone extensions.preciousobjects
    extensions.noop extensions.refstorage extensions.compatobjectformat extensions.relativeworktrees
    user.name user.email user.useconfigonly
    author.name author.email committer.name committer.email
    init.defaultbranch init.defaultobjectformat
    pull.rebase pull.ff push.default push.autosetupremote push.followtags
    fetch.prune fetch.prunetags fetch.recursesubmodules fetch.parallel fetch.writecommitgraph
    merge.ff merge.conflictstyle merge.renames merge.renamelimit merge.log
    rebase.autosquash rebase.autostash rebase.updaterefs rerere.enabled rerere.autoupdate
    commit.gpgsign commit.verbose commit.cleanup tag.gpgsign tag.sort
    diff.renames diff.renamelimit diff.algorithm diff.colormoved diff.submodule diff.ignoresubmodules
    diff.mnemonicprefix diff.noprefix diff.context
    status.showuntrackedfiles status.submodulesummary status.branch status.short
    branch.autosetupmerge branch.autosetuprebase branch.sort
    index.version index.threads index.sparse feature.manyfiles
    gc.auto gc.autopacklimit gc.pruneexpire gc.reflogexpire gc.writecommitgraph maintenance.auto maintenance.strategy
    pack.threads pack.windowmemory pack.usesparse pack.writebitmaps repack.writebitmaps receive.denycurrentbranch
    checkout.defaultremote clone.defaultremotename
    submodule.recurse submodule.active submodule.fetchjobs submodule.alternatelocation
    submodule.alternateerrorstrategy submodule.propagatebranches
    lfs.repositoryformatversion
    """.split()
)

# (section, key) with any subsection between them.
_SUBSECTION = frozenset(
    {
        ("remote", "fetch"),
        ("remote", "push"),
        ("remote", "mirror"),
        ("remote", "prune"),
        ("remote", "prunetags"),
        ("remote", "tagopt"),
        ("remote", "skipfetchall"),
        ("remote", "skipdefaultupdate"),
        ("remote", "promisor"),
        ("remote", "partialclonefilter"),
        ("branch", "merge"),
        ("branch", "rebase"),
        ("branch", "description"),
        ("branch", "vscode-merge-base"),
        ("branch", "gh-merge-base"),
        ("submodule", "active"),
        ("submodule", "branch"),
        ("submodule", "ignore"),
        ("submodule", "shallow"),
        ("submodule", "fetchrecursesubmodules"),
        ("lfs", "access"),
        ("lfs", "locksverify"),
        ("color", "ui"),
    }
)

_ADDRESSES = frozenset(
    {("remote", "url"), ("remote", "pushurl"), ("branch", "remote"), ("branch", "pushremote"), ("submodule", "url")}
)
_SCHEMES = frozenset({"http", "https", "ssh", "git", "file", "git+ssh", "ssh+git", "ftp", "ftps"})
_UPDATES = frozenset({"checkout", "rebase", "merge", "none"})


def objection(key: str, value: str | None) -> str:
    """Why git could run something because of this setting; empty when it can not."""
    section, name, sub = _split(key)
    shown = f"{key} = {value}"[:200]
    if sub is None:
        if key in _PLAIN or (section in ("advice", "color", "column") and (value or "").lower() not in ("", None)):
            return ""
        if key == "core.fsmonitor" and value is not None and value.lower() in ("false", "no", "off", "0"):
            return ""
        if key == "remote.pushdefault":
            return _address(value, shown)
        return f"{shown} is not a setting that git writes by itself"
    if (section, name) in _ADDRESSES:
        return _address(value, shown)
    if (section, name) == ("submodule", "update"):
        return "" if value in _UPDATES else f"{shown} is a command"
    if (section, name) in _SUBSECTION or section in ("advice", "color"):
        return ""
    return f"{shown} is not a setting that git writes by itself"


def module_objection(key: str, value: str | None) -> str:
    """The same for ``.gitmodules`` (gitmodules(5)): only submodules, with names and paths inside of the tree."""
    section, name, sub = _split(key)
    shown = f"{key} = {value}"[:200]
    if section != "submodule" or sub is None:
        return f"{shown} does not describe a submodule"
    if not _is_inside(sub):
        return f"the submodule name {sub!r} leads out of its place"
    if name == "path":
        return "" if value and _is_inside(value) and not value.startswith("-") else f"{shown} leads out of the tree"
    return objection(key, value)


def _split(key: str) -> tuple[str, str, str | None]:
    """(section, key, subsection or None)."""
    section, _, rest = key.partition(".")
    sub, dot, name = rest.rpartition(".")
    return (section, name, sub) if dot else (section, rest, None)


def _address(value: str | None, shown: str) -> str:
    """gitremote-helpers(7): ``helper::address`` runs git-remote-helper, and so does an unknown ``scheme://``.

    A leading "-" would be an option of ssh or of git itself (CVE-2017-1000117).
    """
    if not value:
        return ""
    if any(char < " " or char == "\x7f" for char in value):
        return f"{shown!r} holds a control character"
    scheme, separator, rest = value.partition("://")
    host = rest.rpartition("@")[2] if separator else value
    if value.startswith("-") or host.startswith("-") or rest.startswith("-") or "@-" in value:
        return f"{shown} would be read as an option"
    if separator and "/" not in scheme:
        return "" if scheme.lower() in _SCHEMES and "::" not in scheme else f"{shown} runs git-remote-{scheme}"
    before, double, _ = value.partition("::")
    if double and "/" not in before and "[" not in before:
        return f"{shown} runs git-remote-{before}"
    return ""


def _is_inside(path: str) -> bool:
    parts = path.replace("\\", "/").split("/")
    return not path.startswith("/") and all(
        part not in ("", "..") and not part.lower().rstrip(". ").startswith((".git", "git~")) for part in parts
    )
