"""What git itself writes in a git directory in everyday work; everything else there is protected.

Theory of operation
-------------------
A list of what git *obeys* in its directory would never be whole, and each new git adds to it; what it *writes* is
closed and can be watched (``tests/kernel/test_git_everyday.py`` runs some hundred commands of git and compares).  Each
row says which name, in which kind of directory, who writes it, what is asked of its content, and where that can be
read.  ``find`` answers with what a name is there.

Places: ``git`` is a ``.git`` or a submodule's below ``modules``, ``linked`` one of a linked worktree below
``worktrees``; the others are directories in those, by their names.

Kinds: ``file`` is a regular file that names no program and no other place; ``data`` a directory of such (links there
are refused: git outside appends to logs, writes to ``rr-cache`` and removes packs through them); ``checked``
a file that git may take a program or an option from, so its content decides, each time; ``held`` likewise, and it
cannot be changed where it stood at the start; ``probe`` a name that git makes and removes to learn what the file
system can do, also as a symbolic link: a refusal there would change the new repository for good; ``place`` a directory
with rows of its own.
"""

from __future__ import annotations

from ..value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

REFUSED = ".membrane-refused-"  # in the names of what the guard has put aside
LONGEST_KEPT = 200  # bytes of a name that it keeps when it is put aside (NAME_MAX is 255)


class Row(Value):
    """``name``: as git spells it; ``?`` is any character, at most one ``*`` any number of them."""

    name: str
    places: tuple[str, ...]
    kind: Literal["file", "data", "checked", "held", "probe", "place"]
    writer: str
    source: str
    check: str = ""


_LAYOUT = "gitrepository-layout(5)"
_TOP = ("git", "linked")
_STATE = ("rebase-merge", "rebase-apply", "sequencer")
_ANY = (*_TOP, "info", *_STATE)


def _files(places: tuple[str, ...], writer: str, source: str, names: str) -> tuple[Row, ...]:
    return tuple(Row(name, places, "file", writer, source) for name in names.split())


ROWS = (
    # what everything needs
    Row("objects", _TOP, "data", "all", _LAYOUT),
    Row("refs", _TOP, "data", "all", _LAYOUT),
    Row("logs", _TOP, "data", "all", _LAYOUT),
    Row("reftable", _TOP, "data", "all", "refs/reftable-backend.c"),
    Row("rr-cache", ("git",), "data", "rerere", "git-rerere(1)"),
    Row("lfs", ("git",), "data", "git-lfs", "git-lfs/git-lfs, docs/spec.md"),
    Row("annex", ("git",), "data", "git-annex", "git-annex.branchable.com/internals"),
    Row("subtree-cache", _TOP, "data", "git-subtree", "contrib/subtree/git-subtree.sh"),
    Row("filter-repo", _TOP, "data", "git-filter-repo", "git-filter-repo(1), INTERNALS"),
    Row("NOTES_MERGE_WORKTREE", _TOP, "data", "notes merge", "notes-merge.c"),
    Row("fsmonitor--daemon", _TOP, "data", "fsmonitor--daemon", "builtin/fsmonitor--daemon.c"),
    Row("lint-staged", _TOP, "data", "lint-staged", "lint-staged/lint-staged, lib/gitWorkflow.js"),
    Row("revise.*", _TOP, "data", "git-revise", "mystor/git-revise, gitrevise/odb.py"),
    *_files(_TOP, "all", _LAYOUT, "HEAD"),
    Row("index", _TOP, "checked", "all", "gitformat-index(5)", "paths that stay in the tree and out of .git"),
    *_files(("git",), "pack-refs", _LAYOUT, "packed-refs packed-refs.new"),
    *_files(("git",), "go-git", "go-git/go-git, storage/filesystem/dotgit", "._packed-refs*"),
    *_files(("git",), "fetch --depth", _LAYOUT, "shallow shallow_??????"),
    *_files(("git",), "init, from its template", "git-init(1), TEMPLATE DIRECTORY", "description"),
    *_files(_ANY, "all: renamed into place when it is whole", "lockfile.h", "*.lock"),
    *_files(_TOP, "update-index --split-index", "git-update-index(1), SPLIT INDEX", "sharedindex_??????"),
    Row("sharedindex.*", _TOP, "checked", "update-index --split-index", "git-update-index(1), SPLIT INDEX", "as index"),
    *_files(_TOP, "commit --only, stash, am", "builtin/commit.c, builtin/stash.c", "index.stash.*"),
    *_files(_TOP, "reset, merge, rebase, fetch, cherry-pick, revert", "gitrevisions(7)",
            "ORIG_HEAD FETCH_HEAD MERGE_HEAD CHERRY_PICK_HEAD REVERT_HEAD REBASE_HEAD AUTO_MERGE"),
    *_files(_TOP, "merge", "branch.h, builtin/merge.c", "MERGE_MSG MERGE_MODE MERGE_AUTOSTASH SQUASH_MSG"),
    Row("MERGE_RR", _TOP, "checked", "rerere", "rerere.c", "files of the work tree that no rule hides, and no links"),
    *_files(_TOP, "rebase --apply", "builtin/rebase.c", "rebased-patches"),
    *_files(_TOP, "notes merge", "notes-merge.c", "NOTES_MERGE_REF NOTES_MERGE_PARTIAL NOTES_EDITMSG"),
    *_files(_TOP, "commit, tag, branch --edit-description, add", "git-commit(1), FILES",
            "COMMIT_EDITMSG TAG_EDITMSG EDIT_DESCRIPTION ADD_EDIT.patch addp-hunk-edit.diff PREPARE_COMMIT_MSG"),
    *_files(_TOP, "commit, tag and rebase --trailer, interpret-trailers --in-place", "trailer.c",
            "git-interpret-trailers-??????"),
    # What is lost if they are refused: lint-staged takes changes that are not staged out of the tree, and into this.
    *_files(_TOP, "lint-staged", "lint-staged/lint-staged, lib/gitWorkflow.js", "lint-staged_unstaged.patch"),
    *_files(_TOP, "lazygit", "lazygit, pkg/gui/controllers/helpers", "LAZYGIT_PENDING_COMMIT"),
    *_files(_TOP, "git-gui", "git-gui/lib/commit.tcl", "GITGUI_MSG GITGUI_BCK GITGUI_EDITMSG"),
    *_files(_TOP, "bisect", "builtin/bisect.c",
            "BISECT_ANCESTORS_OK BISECT_EXPECTED_REV BISECT_FIRST_PARENT BISECT_HEAD BISECT_RUN"),
    Row("BISECT_LOG", _TOP, "checked", "bisect", "builtin/bisect.c", "commands of git bisect, quoted words"),
    Row("BISECT_NAMES", _TOP, "checked", "bisect", "bisect.c", "quoted words"),
    Row("BISECT_START", _TOP, "checked", "bisect", "builtin/bisect.c", "one name that is no option"),
    Row("BISECT_TERMS", _TOP, "checked", "bisect", "builtin/bisect.c", "names that are no options"),
    *_files(("git",), "gc", "builtin/gc.c", "gc.log gc.pid"),
    *_files(_TOP, "fsmonitor--daemon", "fsmonitor-settings.h", "fsmonitor--daemon.ipc"),
    *_files(_TOP, "fast-import", "builtin/fast-import.c", "fast_import_crash_*"),
    *_files(("linked",), "worktree lock", "git-worktree(1)", "locked"),
    *_files(("linked",), "claude --worktree: the commit where it began", "Claude Code 2.1.197", "CLAUDE_BASE"),
    # probes of init and clone
    Row("t??????", _TOP, "probe", "init, clone", "setup.c, create_default_files"),
    Row("_git2_??????", _TOP, "probe", "libgit2", "libgit2, src/util/fs_path.c, git_fs_path_supports_symlinks"),
    Row("__link_src_file*", _TOP, "probe", "gitoxide", "gix-fs, src/capabilities.rs"),
    Row("__file_link*", _TOP, "probe", "gitoxide", "gix-fs, src/capabilities.rs"),
    Row("_test_executable_bit*", _TOP, "probe", "gitoxide", "gix-fs, src/capabilities.rs"),
    Row(".probe-*", _TOP, "probe", "JGit", "JGit, org.eclipse.jgit.util.FS"),
    # editors, beside the message or the list that git has them edit
    *_files(_ANY, "vim", "vim, :help swap-file", ".*.sw? .*.sw?x 4913 *~"),
    *_files(_ANY, "emacs", "emacs, Interlocking, Auto Save Files", "#*#"),
    Row(".#*", _ANY, "probe", "emacs", "emacs, Interlocking"),
    *_files(_ANY, "sed -i", "sed/execute.c", "sed??????"),
    *_files(_ANY, "perl -i", "perl, doio.c", "XX??????"),
    *_files(_TOP, "hooks (Gerrit's commit-msg), helix, sed -i.bak, perl -i.bak: copies of a message", "githooks(5)",
            "COMMIT_EDITMSG.* MERGE_MSG.* TAG_EDITMSG.*"),
    *_files(("rebase-merge",), "helix, sed -i.bak, perl -i.bak", "git-rebase(1), INTERACTIVE MODE",
            "git-rebase-todo.* message.*"),
    # what git obeys
    Row("hooks", ("git",), "held", "init, from its template", "githooks(5)", "regular files that end in .sample"),
    Row("config", ("git",), "held", "all", "git-config(1)", "settings that cannot make git run anything"),
    Row("config.worktree", _TOP, "held", "sparse-checkout, config --worktree", "git-worktree(1), CONFIGURATION FILE",
        "settings that cannot make git run anything"),
    Row("branches", ("git",), "held", "init, from its template", "git-fetch(1), REMOTES", "empty"),
    Row("commondir", ("linked",), "held", "worktree add", _LAYOUT, "the repository that holds it"),
    Row("gitdir", ("linked",), "held", "worktree add", _LAYOUT,
        "a worktree of this workspace, or one outside that leads back"),
    Row("attributes", ("info",), "held", "users", "gitattributes(5)", "empty"),
    # places
    Row("info", _TOP, "place", "init", _LAYOUT),
    Row("modules", ("git", "linked"), "place", "submodule", _LAYOUT),
    Row("worktrees", ("git",), "place", "worktree", _LAYOUT),
    Row("rebase-merge", _TOP, "place", "rebase", "builtin/rebase.c"),
    Row("rebase-apply", _TOP, "place", "am, rebase --apply", "builtin/am.c"),
    Row("sequencer", _TOP, "place", "cherry-pick, revert", "sequencer.c"),
    *_files(("info",), "init, sparse-checkout, update-server-info", _LAYOUT,
            "exclude sparse-checkout refs refs_??????"),
    # a rebase that stopped
    *_files(("rebase-merge",), "rebase", "sequencer.c, builtin/rebase.c",
            "head-name onto orig-head quiet verbose interactive allow_rerere_autoupdate signoff "
            "drop_redundant_commits keep_redundant_commits reschedule-failed-exec no-reschedule-failed-exec "
            "git-rebase-todo.backup msgnum end message message-squash message-fixup current-fixups amend stopped-sha "
            "rewritten-list rewritten-pending patch refs-to-delete update-refs cdate_is_adate ignore_date squash-onto "
            "dropped force-rebase fixup-* committer-date-is-author-date"),
    Row("autostash", _STATE, "checked", "rebase", "sequencer.c", "the name of an object"),
    Row("git-rebase-todo", ("rebase-merge",), "checked", "rebase", "git-rebase(1), INTERACTIVE MODE", "no exec lines"),
    Row("done", ("rebase-merge", "sequencer"), "checked", "rebase", "sequencer.c", "no exec lines"),
    Row("strategy", _STATE, "checked", "rebase", "git-merge(1), MERGE STRATEGIES", "a strategy of git's own"),
    Row("strategy_opts", _STATE, "checked", "rebase", "git-merge(1), MERGE STRATEGIES", "options of those"),
    Row("gpg_sign_opt", _STATE, "checked", "rebase", "sequencer.c", "-S and the name of a key"),
    Row("author-script", _STATE, "checked", "rebase, am", "sequencer.c", "quoted GIT_AUTHOR_* variables"),
    # patches that stopped
    *_files(("rebase-apply",), "am, rebase --apply", "builtin/am.c",
            "next last abort-safety applying dirtyindex final-commit head-name info keep messageid msg msg-clean "
            "no_inbody_headers scissors quoted-cr threeway quiet verbose sign utf8 rebasing onto orig-head "
            "original-commit rewritten patch patch-merge-base patch-merge-index "
            "allow_rerere_autoupdate signoff empty-action "
            "????"),
    Row("apply-opt", ("rebase-apply",), "checked", "am", "builtin/am.c", "options of git apply that stay in the tree"),
    # picks that stopped
    *_files(("sequencer",), "cherry-pick, revert", "sequencer.c", "head abort-safety"),
    Row("todo", ("sequencer",), "checked", "cherry-pick, revert", "sequencer.c", "no exec lines"),
    Row("opts", ("sequencer",), "checked", "cherry-pick, revert", "sequencer.c", "known options"),
)  # fmt: skip

# What git obeys in its directory though it writes it nowhere nowadays, for the record and for a reader's report.
NEVER = {
    "commondir": "takes configuration and hooks from where it points",
    "gitdir": "trusts it when worktrees are repaired or pruned",
    "remotes": "pushes to and fetches from the address in it",
    "branches": "pushes to and fetches from the address in it",
}


def _fold(pattern: str) -> str:
    return pattern.lower()  # the rows are ASCII and end in no dot: see ``protect.fold``


def fits(pattern: str, key: str) -> bool:
    """Does the folded name ``key`` fit a folded pattern of the table?"""
    before, star, after = pattern.partition("*")
    if not star:
        return len(key) == len(before) and _same(before, key)
    room = len(key) - len(before) - len(after)
    return room >= 0 and _same(before, key[: len(before)]) and _same(after, key[len(key) - len(after) :])


def _same(pattern: str, text: str) -> bool:
    return pattern == text or ("?" in pattern and all(p in ("?", c) for p, c in zip(pattern, text, strict=True)))


def _tables() -> dict[str, tuple[dict[str, str], tuple[tuple[str, str], ...]]]:
    exact: dict[str, dict[str, str]] = {}
    wild: dict[str, list[tuple[str, str]]] = {}
    for row in ROWS:
        key = _fold(row.name)
        for place in row.places:
            if "*" in key or "?" in key:
                wild.setdefault(place, []).append((key, row.kind))
            else:
                exact.setdefault(place, {})[key] = row.kind
    return {place: (exact.get(place, {}), tuple(wild.get(place, ()))) for place in {*exact, *wild}}


_TABLES = _tables()


def find(place: str, key: str) -> str:
    """The kind of the row for a folded name in a place of the table; empty: git does not write it there."""
    exact, wild = _TABLES[place]
    kind = exact.get(key)
    if kind is not None:
        return kind
    for pattern, other in wild:
        if fits(pattern, key):
            return other
    return ""


DATA_NAMES = frozenset(_fold(row.name) for row in ROWS if row.kind == "data")


def checked(place: str) -> frozenset[str]:
    """The names in a place whose content decides, as git spells them."""
    return frozenset(row.name for row in ROWS if row.kind == "checked" and place in row.places and "*" not in row.name)
