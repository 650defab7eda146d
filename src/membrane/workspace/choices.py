"""Files of a work tree that choose what a tool runs, or where it writes: could that be the command's own?

Theory of operation
-------------------
These are files that people and agents change every day, and most of what they may hold is harmless; so the content
decides, at each change (``judge.OBJECTIONS``).

``versions``: a version manager looks for the version of such a file below a directory of its own, and takes what is
there first in PATH, at every command here or from the hook of a shell's prompt.  Many do not look at the name: one
that goes up leads to a directory of the workspace (rbenv before 1.2, jenv, tfenv, SDKMAN), as does an absolute one
(fnm); to mise ``path:DIRECTORY`` is a version, and to Bazelisk ``FORK/VERSION`` what somebody else has built.  So each
word must be a plain name.

``npmrc``, ``pnpm_workspace``: npm, pnpm and Yarn take settings from here, and some name a program or a module that is
run at the next install, whatever scripts are allowed; others have what they send, with the person's tokens in it, go
through somebody else's hands.

``pickled``: what a pickle names is imported and called by who reads it; one of plain data names nothing
(docs.python.org/3/library/pickletools.html).

``backups``: ``hg recover`` and ``hg rollback`` write these files, from the copies that are named beside them, wherever
their names lead (mercurial/transaction.py, ``_playback``).

All work is linear in the text, which the caller bounds.
"""

from __future__ import annotations

import re

from .protect import fold

LEADS = "a version manager would run what it leads to"
LEADS_OUT = "Mercurial would write a file out of its store, or its own configuration"
NO_SETTING = "it is no plain list of settings"
PICKLED = "what is pickled in it would be run"

# ``lts/iron`` (nvm), ``3.12.1/envs/NAME`` (pyenv-virtualenv), ``latest:^1.5`` (tfenv).
_VERSION = re.compile(r"latest:[^/\s]*|(?:lts/)?[\w.+*@<>=!^~|,()-]*(?:/envs/[\w.+-]+)?", re.ASCII)
_SETTING = re.compile(r"[@\w./:*!-]+(?:\[\])?", re.ASCII)
_WORD = re.compile(r"[\w-]+", re.ASCII)

# docs.npmjs.com/cli/using-npm/config; pnpm.io/settings; of node-gyp what npm hands on to it.
_RUN = frozenset(
    (
        *("pnpmfile", "globalpnpmfile", "configdependencies", "scriptshell", "shell", "nodeoptions", "git", "editor"),
        *("viewer", "browser", "initmodule", "nodegyp", "nodedir", "python", "npmpath", "tokenhelper", "onloadscript"),
        *("userconfig", "globalconfig", "prefix", "globaldir", "globalbindir"),
    )
)
_SEND = frozenset(
    ("proxy", "httpproxy", "httpsproxy", "noproxy", "strictssl", "ca", "cafile", "cert", "certfile", "key", "keyfile")
)
# Of these the words that say nothing else in a list of packages.
_WORKSPACE = frozenset(
    (
        *("pnpmfile", "globalpnpmfile", "configdependencies", "scriptshell", "nodeoptions", "npmpath", "tokenhelper"),
        *("httpproxy", "httpsproxy", "noproxy", "strictssl", "cafile", "certfile", "keyfile"),
    )
)
# What Mercurial obeys in ``.hg`` (``names``).
_MERCURIAL = frozenset(("hgrc", "hgrc-not-shared", "sharedpath", "histedit-state"))
_DATA = frozenset(
    (
        *("PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET"),
        *("NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        *("EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
        *("EMPTY_DICT", "DICT", "SETITEM", "SETITEMS"),
    )
)


def versions(text: str) -> str:
    """Why a file of versions must go; empty when each is a plain name."""
    for line in text.splitlines():
        for word in line.split():
            if word.startswith("#"):
                break
            if ".." in word or not _VERSION.fullmatch(word):
                return f"{LEADS}: {word[:100]}"
    return ""


def npmrc(text: str) -> str:
    """Why an ``.npmrc`` must go; empty when no setting names a program or has traffic go elsewhere."""
    for line in re.split(r"[\r\n]+", text):
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        key = line.partition("=")[0].strip()
        if not _SETTING.fullmatch(key):  # quoted, with variables, or a section: read as who knows what
            return f"{NO_SETTING}: {key[:100]}"
        name = _plain(key.removesuffix("[]").rpartition(":")[2])  # ``//HOST/:cafile``
        if name in _RUN or name in _SEND:
            return _objection(key, name)
    return ""


def pnpm_workspace(text: str) -> str:
    """The same for ``pnpm-workspace.yaml``, which is not read as YAML: no such word is in it, and nothing escaped."""
    if "\\" in text or "BEGIN CERTIFICATE" in text:
        return NO_SETTING
    return next((_objection(word, name) for word in _WORD.findall(text) if (name := _plain(word)) in _WORKSPACE), "")


def pickled(text: str) -> str:
    """Why a file with a pickle must go; empty when that is of plain data: lists, tuples, texts and numbers."""
    import pickletools

    try:
        names = {
            operation.name for operation, _argument, _at in pickletools.genops(text.encode("utf-8", "surrogateescape"))
        }
    except (ValueError, KeyError, IndexError):
        return PICKLED
    return PICKLED if names - _DATA else ""


def backups(text: str) -> str:
    """Why Mercurial's list of what to put back must go: LOCATION NUL FILE NUL COPY NUL in a line, below ``.hg``."""
    for line in text.split("\n"):
        for name in line.split("\0")[1:3]:
            parts = name.split("/")
            if ".." in parts or name.startswith("/") or fold(parts[-1]) in _MERCURIAL:
                return LEADS_OUT
    return ""


def _plain(key: str) -> str:
    return key.lower().replace("-", "").replace("_", "").replace(".", "")


def _objection(key: str, name: str) -> str:
    does = "runs what is named by it" if name in _RUN else "sends what it fetches, and tokens, through it"
    return f"{key[:100]}: a package manager {does}"
