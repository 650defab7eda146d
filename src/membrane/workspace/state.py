"""What git keeps of a rebase, a pick, a patch or a bisect that stopped: could it run or obey what is in it?

Theory of operation
-------------------
When such work goes on, perhaps outside and days later, git takes programs and options from these files: it runs
``git-merge-STRATEGY`` (sequencer.c), the ``exec`` lines of a list, and older ones evaluate the lists of a bisect in a
shell.  Each function says why a content must go; each accepts exactly what git writes and refuses all else.  The work
is linear in the text, which the caller bounds.
"""

from __future__ import annotations

import re

_WORDS = frozenset(
    (
        *("pick", "p", "reword", "r", "edit", "e", "squash", "s", "fixup", "f", "break", "b", "drop", "d"),
        *("label", "l", "reset", "t", "merge", "m", "update-ref", "u", "noop", "revert"),
    )
)
_STRATEGIES = frozenset({"recursive", "ort", "resolve", "octopus", "ours", "subtree"})
# git-merge(1), MERGE STRATEGIES
_OPTION = re.compile(
    r"(?:--)?(?:ours|theirs|patience|minimal|histogram|renormalize|no-renormalize|no-renames|ignore-space-change"
    r"|ignore-all-space|ignore-space-at-eol|ignore-cr-at-eol|diff-algorithm=[a-z]+|find-renames(?:=\d+%?)?"
    r"|rename-threshold=\d+%?|subtree(?:=[\w./-]*)?)"
)
# git-am(1): what it hands to git apply
_APPLY = re.compile(
    r"(?:-C|-p)\d+|--whitespace=[a-z-]+|--ignore-(?:space-change|whitespace)|--reject"
    r"|--(?:directory|exclude|include)=(?!/)(?!(?:.*/)?\.\.(?:/|$))[^\0\n]*"
)
_QUOTED = r"'(?:[^'\n]|'\\''|'\\!')*'"  # quote.c, sq_quote_buf
_SCRIPT = re.compile(rf"(?:GIT_(?:AUTHOR|COMMITTER)_(?:NAME|EMAIL|DATE)={_QUOTED}\n)*")
_LIST = re.compile(rf"(?:[ \n]*{_QUOTED})*[ \n]*")
_WORD = re.compile(_QUOTED)
_CMDLINE = re.compile(r"\"[\w=./% -]*\"|'[\w=./% -]*'|[\w=./%-]+")
_CMDLINE_WHOLE = re.compile(rf"(?:(?:^|[ \n]+)(?:{_CMDLINE.pattern}))*[ \n]*")
_KEY = re.compile(r"(?:-S[\w@.+<>()=:, ]*)?\n?")
_NAME = re.compile(r"[\w@^~.{][\w@^~./{}+:=-]*")
_BISECT = re.compile(rf"(?:#[^\n]*|git[ -]bisect [a-z-]+(?: (?:{_QUOTED}|[\w@^~./{{}}+:=-]+))*|)(?:\n|$)")
_OPTS = frozenset(
    (
        *("no-commit", "edit", "allow-empty", "allow-empty-message", "drop-redundant-commits", "signoff"),
        *("keep-redundant-commits", "record-origin", "allow-ff", "mainline", "allow-rerere-auto", "ignore-date"),
        *("default-msg-cleanup", "committer-date-is-author-date", "reflog-message", "commit-use-reference"),
    )
)


def _quoted(text: str) -> list[str] | None:
    """The words of a list that ``sq_quote_buf`` has made; None: it is something else."""
    if not _LIST.fullmatch(text):
        return None
    return [word[1:-1].replace("'\\''", "'").replace("'\\!'", "!") for word in _WORD.findall(text)]


def todo(text: str) -> str:
    """The list of a rebase or of picks: known words, and none that runs something."""
    for line in text.split("\n"):
        word = line.split(None, 1)[:1]
        if not word or not word[0][:1].isalnum():
            continue  # empty, or a comment whatever core.commentChar says
        if word[0] in ("x", "exec"):
            return (
                "git rebase --continue outside would run its exec lines: rebase without them, and run the program then"
            )
        if word[0] not in _WORDS and not _unfinished(text, line, word[0]):
            return f"{word[0][:40]} is not known in such a list"
    return ""


def _unfinished(text: str, line: str, word: str) -> bool:
    """The last line, still being written."""
    return line == word and text.endswith(line) and any(known.startswith(word) for known in _WORDS)


def strategy(text: str) -> str:
    """The name of a merge strategy of git's own: any other is a program."""
    return "" if text.strip() in _STRATEGIES else "git rebase --continue runs git-merge-STRATEGY with this name"


def strategy_options(text: str) -> str:
    """Options of merge strategies: words as a shell splits them (alias.c, split_cmdline)."""
    words = _CMDLINE.findall(text)
    if not _CMDLINE_WHOLE.fullmatch(text) or not all(_OPTION.fullmatch(word.strip("'\"")) for word in words):
        return "they are not options of a merge strategy of git's own"
    return ""


def apply_options(text: str) -> str:
    """Options that git am hands to git apply."""
    words = _quoted(text)
    if words is None or not all(_APPLY.fullmatch(word) for word in words):
        return "they are not options of git apply that stay in the tree"
    return ""


def signing(text: str) -> str:
    """``-S`` and the name of a key."""
    return "" if _KEY.fullmatch(text) else "it is more than -S and the name of a key"


def author(text: str) -> str:
    """Assignments of quoted text; older gits let a shell read them."""
    return "" if _SCRIPT.fullmatch(text) else "it is more than the quoted name, address and date of an author"


def name(text: str) -> str:
    """One name of an object or a branch that cannot be taken for an option."""
    return "" if _NAME.fullmatch(text.strip()) else "it is not the name of an object or a branch"


def terms(text: str) -> str:
    """Names of refs, one on a line."""
    return "" if all(_NAME.fullmatch(line) for line in text.split()) else "they are not names"


def paths(text: str) -> str:
    """``BISECT_NAMES``: git before 2.34 lets a shell read it."""
    return "" if _quoted(text) is not None else "it is more than a list of quoted paths"


def bisect_log(text: str) -> str:
    """``BISECT_LOG``: git bisect replay takes it, older ones let a shell read it."""
    at = 0
    while at < len(text):
        match = _BISECT.match(text, at)
        if match is None or match.end() == at:
            return "it is more than commands of git bisect"
        at = match.end()
    return ""


def options(text: str) -> str:
    """``sequencer/opts``: known options (sequencer.c, populate_opts_cb)."""
    from .gitconfig import ConfigError, parse

    try:
        settings = parse(text)
    except ConfigError as error:
        return f"it is not plain git configuration ({error})"
    for key, value in settings:
        section, _, option = key.partition(".")
        if section == "options" and option in _OPTS:
            continue
        if key == "options.strategy" and value in _STRATEGIES:
            continue
        if key == "options.strategy-option" and _OPTION.fullmatch(value or ""):
            continue
        if key == "options.gpg-sign" and _KEY.fullmatch("-S" + (value or "")):
            continue
        return f"git cherry-pick --continue obeys {key} = {value}"[:200]
    return ""


_STATE = {
    "autostash": name,
    "git-rebase-todo": todo,
    "todo": todo,
    "done": todo,
    "strategy": strategy,
    "strategy_opts": strategy_options,
    "gpg_sign_opt": signing,
    "author-script": author,
    "apply-opt": apply_options,
    "opts": options,
}
VALIDATORS = {
    **{(place, key): check for place in ("rebase-merge", "rebase-apply", "sequencer") for key, check in _STATE.items()},
    ("", "bisect_log"): bisect_log,
    ("", "bisect_names"): paths,
    ("", "bisect_start"): name,
    ("", "bisect_terms"): terms,
}
