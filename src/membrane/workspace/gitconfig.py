"""git configuration files: a strict reader, and which settings cannot make git run anything.

Theory of operation
-------------------
``parse`` accepts a subset of git-config(1) "CONFIGURATION FILE" and refuses everything else, so that what it
returns is what git reads (a property test compares it with ``git config --list``).  ``objection`` is an allow-list:
the settings that ``git init``, ``clone``, ``worktree add``, ``submodule`` and everyday ``git config`` write, with a
check of the values that git could run.  Anything not listed is refused, so a new dangerous setting of a later git is
refused as well.

The text is the command's own, and it is read while others wait: work is linear in it, and what is longer than the
bounds below is refused like anything else that is not plain.
"""

from __future__ import annotations

LARGEST_TEXT = 512 << 10  # characters of a file: some 2,500 branches with all that an editor writes about them
MOST_SETTINGS = 10_000
LONGEST_NAME = 1024  # characters of a section with its subsection, or of a key; each setting is returned with both
LONGEST_VALUE = 8192  # characters, as written


class ConfigError(ValueError):
    """The text is outside of the accepted subset; the message says where."""


def parse(text: str) -> list[tuple[str, str | None]]:
    """The settings in order: ``("core.bare", "false")``; the value of a key without "=" is None.

    Section and key are lower case, a quoted subsection keeps its case: ``remote.Origin.url``.

    Raises:
        ConfigError: NUL, carriage return, byte order mark or another control character; the old ``[a.b]`` form;
            an unknown escape; an unclosed quote; a setting before the first section; more or longer than the bounds.
    """
    if len(text) > LARGEST_TEXT:
        raise ConfigError(f"larger than {LARGEST_TEXT} characters")
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
        self._bound(start, LONGEST_NAME)
        return text[start : self.at].lower()

    def _expect(self, char: str) -> None:
        if self.text[self.at] != char:
            raise ConfigError(f"line {self.line()}")
        self.at += 1

    def _bound(self, start: int, longest: int) -> None:
        if self.at - start > longest:
            raise ConfigError(f"line {self.line()}: longer than {longest} characters")

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
        start = self.at
        sub: list[str] = []
        while text[self.at] != '"':
            char = text[self.at]
            if char == "\\":
                self.at += 1
                char = text[self.at]
            if char == "\n":
                raise ConfigError(f"line {self.line()}: unclosed section")
            sub.append(char)
            self.at += 1
        self._bound(start, LONGEST_NAME)
        self._expect('"')
        self._expect("]")
        return f"{name}.{''.join(sub)}"

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
        # Collected in a list: a string that grows by one character is copied each time.
        value: list[str] = []
        start, spaces, quoted = self.at, "", False
        while True:
            char = text[self.at]
            self.at += 1
            if char == "\n":
                if quoted:
                    raise ConfigError(f"line {self.line() - 1}: unclosed quote")
                self.at -= 1  # the end of the line is no part of it
                self._bound(start, LONGEST_VALUE)
                return key, "".join(value)
            if not quoted and char in " \t":
                spaces += char if value else ""
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
            if "\t" in spaces:
                raise ConfigError(f"line {self.line()}: tab")  # a space to older git, a tab to newer
            value += [piece for piece in (spaces, char) if piece]
            spaces = ""


# ---------------------------------------------------------------- what is harmless

# Per section, the keys whose value git does not run, whatever it is.
_PLAIN = {
    "core": (
        "repositoryformatversion filemode bare logallrefupdates ignorecase precomposeunicode symlinks "
        "autocrlf eol safecrlf quotepath abbrev sparsecheckout sparsecheckoutcone compression "
        "bigfilethreshold commitgraph untrackedcache preloadindex longpaths checkstat trustctime "
        "sharedrepository multipackindex splitindex whitespace"
    ),
    "extensions": "objectformat worktreeconfig preciousobjects noop refstorage compatobjectformat relativeworktrees",
    "user": "name email useconfigonly",
    "author": "name email",
    "committer": "name email",
    "init": "defaultbranch defaultobjectformat",
    "pull": "rebase ff",
    "push": "default autosetupremote followtags",
    "fetch": "prune prunetags recursesubmodules parallel writecommitgraph",
    "merge": "ff conflictstyle renames renamelimit log stat autostash verbosity renormalize",
    "rebase": "autosquash autostash updaterefs stat abbreviatecommands missingcommitscheck",
    "rerere": "enabled autoupdate",
    "commit": "gpgsign verbose cleanup status",
    "tag": "gpgsign sort",
    "diff": (
        "renames renamelimit algorithm colormoved submodule ignoresubmodules mnemonicprefix noprefix context "
        "interhunkcontext wserrorhighlight indentheuristic statgraphwidth"
    ),
    "log": "date decorate follow abbrevcommit",
    "stash": "showpatch showstat",
    "grep": "linenumber column patterntype extendedregexp",
    "apply": "whitespace",
    "notes": "rewriteref rewritemode displayref mergestrategy",
    "worktree": "guessremote",
    "checkout": "guess",
    "interactive": "singlekey",
    "difftool": "prompt",
    "mergetool": "prompt keepbackup",
    "http": "postbuffer version",
    "protocol": "version",
    "versionsort": "suffix",
    "status": "showuntrackedfiles submodulesummary branch short",
    "branch": "autosetupmerge autosetuprebase sort",
    "index": "version threads sparse",
    "feature": "manyfiles",
    "gc": "auto autodetach autopacklimit pruneexpire reflogexpire writecommitgraph",
    "maintenance": "auto strategy",
    "pack": "threads windowmemory usesparse writebitmaps",
    "repack": "writebitmaps",
    "receive": "denycurrentbranch",
    "uploadpack": "allowfilter",
    "clone": "defaultremotename",
    "submodule": "recurse active fetchjobs alternatelocation alternateerrorstrategy propagatebranches",
    "lfs": "repositoryformatversion",
}

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
        ("remote", "gh-resolved"),
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
    }
)

_DISPLAY = frozenset({"advice", "color", "column"})
_REMOTES = frozenset({"remote.pushdefault", "checkout.defaultremote", "extensions.partialclone"})  # name or address
_ADDRESSES = frozenset(
    {("remote", "url"), ("remote", "pushurl"), ("branch", "remote"), ("branch", "pushremote"), ("submodule", "url")}
)
_REF_STORAGES = frozenset({"files", "reftable"})  # a later git takes an address: ``files:///PATH``
_SCHEMES = frozenset({"http", "https", "ssh", "git", "file", "git+ssh", "ssh+git", "ftp", "ftps"})
_GITFLOW = frozenset({"branch", "prefix"})  # of branches; ``path`` has hooks
_BOOLEANS = frozenset({"true", "yes", "on", "1", "false", "no", "off", "0"})
_UPDATES = frozenset({"checkout", "rebase", "merge", "none"})


def objection(key: str, value: str | None) -> str:
    """Why git could run something because of this setting; empty when it cannot."""
    section, name, sub = _split(key)
    shown = f"{key} = {value}"[:200]
    if sub is None:
        if key == "extensions.refstorage" and value not in _REF_STORAGES:
            return f"{shown} may say where git keeps refs"
        if section in _DISPLAY or name in _PLAIN.get(section, "").split():
            return ""
        if key == "core.fsmonitor" and value is not None and value.lower() in ("false", "no", "off", "0"):
            return ""
        if section == "pager" and (value is None or value.lower() in _BOOLEANS):
            return ""  # anything else is a program
        if key in _REMOTES:
            return _address(value, shown)
        return f"{shown} is not a setting that git writes by itself"
    if section == "remote" and _address(sub, shown):
        return f"{shown}: the name of the remote would be used as its address"
    if (section, name) in _ADDRESSES:
        return _address(value, shown)
    if (section, name) == ("submodule", "update"):
        return "" if value in _UPDATES else f"{shown} is a command"
    if section == "gitflow" and sub in _GITFLOW:
        # gitflow-avh lets a shell read one of them (git-flow-release, VERSION_PREFIX).
        plain = all(char.isalnum() or char in "._/-" for char in value or "") and (value or "").isascii()
        return "" if plain and not (value or "").startswith("-") else f"{shown} is no plain name of branches"
    if (section, name) in _SUBSECTION or section in _DISPLAY:
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
        return "" if scheme in _SCHEMES and "::" not in scheme else f"{shown} runs git-remote-{scheme}"
    before, double, _ = value.partition("::")
    if double and "/" not in before and "[" not in before:
        return f"{shown} runs git-remote-{before}"
    return ""


def _is_inside(path: str) -> bool:
    parts = path.replace("\\", "/").split("/")
    return not path.startswith("/") and all(
        part not in ("", "..") and part.lower().partition(":")[0].rstrip(". ") not in (".git", "git~1")
        for part in parts
    )
