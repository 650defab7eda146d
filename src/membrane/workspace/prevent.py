"""Which protected names may not even be made: the guard's judgement, before the fact.

Theory of operation
-------------------
``judge`` looks at what a name holds, because git itself writes configuration and pointers that are benign.  For the
other names nothing that they could hold is benign: editor, agent and shell configuration, hooks that are not samples,
links in the place of a name that git obeys.  Making one of those can be refused when it is asked for.

Below the top of the workspace this holds for git's own names only.  A checkout brings the others (a clone into a
subdirectory, a submodule), and a refusal in the middle of one leaves a tree that is half written: there they are
taken away by the guard, after the fact.

Lexical and without a look at the disk: a directory that has the layout of a repository but not its name is left to
the guard, as is everything that a race gets past this.
"""

from __future__ import annotations

from .judge import judged_by_content, reason
from .protect import GIT_NAMES, HOOK, PROTECT, TREE, classify, fold

_MOST_CONTEXTS = 4096
_HOOKS = -10  # context of a directory where git looks for hooks: only samples are made
_contexts: dict[str, tuple[int, str, str]] = {"": (TREE, "", "")}


def objection(path: str, *, directory: bool = False, link: bool = False) -> str:
    """Why ``path`` may not be made; empty when nothing is known against it.

    Args:
        path: canonical and relative to the workspace.
        directory: what would be made is a directory.
        link: it is a symbolic link.
    """
    parent, _, name = path.rpartition("/")
    context, above, why = _context(parent)
    if context == _HOOKS:
        sample = not directory and not link and fold(name).endswith(".sample")
        return "" if sample else f"{HOOK}: {name}"
    return why or (_judged(context, fold(name), above, directory, link, bool(parent)) if context >= 0 else "")


def _context(path: str) -> tuple[int, str, str]:
    """(context of the children, folded name, why nothing may be made below)."""
    known = _contexts.get(path)
    if known is not None:
        return known
    parent, _, name = path.rpartition("/")
    context, above, why = _context(parent)
    key = fold(name)
    if context == _HOOKS:
        why = f"{HOOK}: {name}"  # git makes no directories there
    elif not why and context >= 0:
        why = _judged(context, key, above, True, False, bool(parent))
        hooks = key == "hooks" and above != ".claude" and classify(context, key, True, False) == PROTECT
        context = _HOOKS if hooks else classify(context, key, True, False)
    if len(_contexts) >= _MOST_CONTEXTS:
        _contexts.clear()
        _contexts[""] = (TREE, "", "")
    _contexts[path] = context, key, why
    return _contexts[path]


def _judged(context: int, key: str, above: str, directory: bool, link: bool, nested: bool) -> str:
    if classify(context, key, directory, link) != PROTECT:
        return ""
    if nested and context == TREE and key not in GIT_NAMES:
        return ""
    if link:
        return "it is a symbolic link"
    if key == "hooks" and directory and above != ".claude":
        return ""
    if judged_by_content(key, above):
        return "" if not directory or key in GIT_NAMES else "it is not a regular file"
    return reason(key, above)
