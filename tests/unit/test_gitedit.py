"""Which changes of an existing ``config`` are everyday ones."""

from __future__ import annotations

import pytest

from membrane.plan.model import ScanHit
from membrane.workspace.gitedit import LARGEST, editable, objection

BEFORE = b"""[core]
\trepositoryformatversion = 0
\tbare = false
\tfsmonitor = ./tools/fsm
[remote "origin"]
\turl = https://example.org/a.git
\tfetch = +refs/heads/*:refs/remotes/origin/*
[include]
\tpath = ../shared
[branch "old"]
\tremote = origin
\tmerge = refs/heads/old
"""

EVERYDAY = [
    b'[branch "main"]\n\tremote = origin\n\tmerge = refs/heads/main\n\tpushRemote = fork\n\trebase = true\n',
    b'[branch "main"]\n\tdescription = what it is for\n',
    b"""[remote "two"]\n\turl = git@example.org:a/b.git\n\tfetch = +refs/heads/*:refs/remotes/two/*\n\ttagOpt = -n\n""",
    b'[remote "two"]\n\turl = ssh://git@example.org/a\n\tpushurl = https://example.org/a\n\tprune = true\n',
    b"[user]\n\tname = A\n\temail = a@example.org\n",
    b'[submodule "lib"]\n\tactive = true\n\turl = https://example.org/lib\n\tbranch = main\n\tupdate = rebase\n',
    b"[core]\n\tautocrlf = input\n\tsparseCheckout = true\n[extensions]\n\tworktreeConfig = true\n",
    b"[init]\n\tdefaultBranch = main\n[pull]\n\trebase = true\n[push]\n\tdefault = current\n",
    b"[merge]\n\tconflictStyle = zdiff3\n[lfs]\n\trepositoryformatversion = 0\n",
    b"# a comment that says fsmonitor = x\n",
]

REFUSED = [
    (b"[core]\n\thooksPath = .husky/_\n", "core.hookspath"),
    (b"[core]\n\tfsmonitor = true\n", "core.fsmonitor"),
    (b"[core]\n\tsshCommand = ./x\n", "core.sshcommand"),
    (b"[core]\n\tpager = ./x\n", "core.pager"),
    (b"[core]\n\tworktree = /tmp\n", "core.worktree"),
    (b"[core]\n\tsharedRepository = 0666\n", "core.sharedrepository"),
    (b"[core]\n\tattributesFile = x\n", "core.attributesfile"),
    (b'[filter "lfs"]\n\tclean = git-lfs clean -- %f\n', "filter.lfs.clean"),
    (b'[filter "lfs"]\n\trequired = true\n', "filter.lfs.required"),
    (b'[diff "x"]\n\ttextconv = ./x\n', "diff.x.textconv"),
    (b'[merge "x"]\n\tdriver = ./x\n', "merge.x.driver"),
    (b"[alias]\n\tst = !./x\n", "alias.st"),
    (b"[credential]\n\thelper = ./x\n", "credential.helper"),
    (b"[include]\n\tpath = x\n", "include.path"),
    (b'[includeIf "gitdir:/"]\n\tpath = x\n', "includeif.gitdir:/.path"),
    (b'[url "ext::x "]\n\tinsteadOf = https://\n', "url.ext::x .insteadof"),
    (b'[remote "o"]\n\turl = ext::sh -c x\n', "remote.o.url"),
    (b'[remote "o"]\n\turl = --upload-pack=x\n', "remote.o.url"),
    (b'[remote "o"]\n\turl = ssh://-oProxyCommand=x/y\n', "remote.o.url"),
    (b'[remote "o"]\n\turl = -oProxyCommand=x:y\n', "remote.o.url"),
    (b'[remote "o"]\n\tuploadpack = ./x\n', "remote.o.uploadpack"),
    (b'[remote "o"]\n\treceivepack = ./x\n', "remote.o.receivepack"),
    (b'[remote "o"]\n\tvcs = x\n', "remote.o.vcs"),
    (b'[remote "o"]\n\tproxy = http://x\n', "remote.o.proxy"),
    (b'[remote "ext::x"]\n\tfetch = x\n', "remote.ext::x.fetch"),
    (b'[branch "main"]\n\tremote = ext::sh -c x\n', "branch.main.remote"),
    (b'[branch "main"]\n\tmergeOptions = -s ./x\n', "branch.main.mergeoptions"),
    (b'[submodule "x"]\n\tupdate = !./x\n', "submodule.x.update"),
    (b'[submodule "x"]\n\turl = ext::sh -c x\n', "submodule.x.url"),
    (b"[protocol]\n\tallow = always\n", "protocol.allow"),
    (b"[gpg]\n\tprogram = ./x\n", "gpg.program"),
    (b"[user]\n\tsigningKey = x\n", "user.signingkey"),
    (b"[some]\n\tthing = new\n", "some.thing"),
]


@pytest.mark.parametrize("more", EVERYDAY)
def test_everyday_settings_may_come_and_go(more: bytes) -> None:
    assert objection(BEFORE, BEFORE + more) == ""
    assert objection(BEFORE + more, BEFORE) == ""


@pytest.mark.parametrize(("more", "key"), REFUSED)
def test_other_settings_stay_as_they_are(more: bytes, key: str) -> None:
    assert objection(BEFORE, BEFORE + more) == f"{key} is no everyday setting"
    assert objection(BEFORE + more, BEFORE) == f"{key} is no everyday setting and must stay"
    assert objection(BEFORE + more, BEFORE + more + EVERYDAY[0]) == ""  # whoever has made it, it may be there


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        (b"tools/fsm", b"tools/fsn", "core.fsmonitor"),
        (b"path = ../shared", b"path = ../other", "include.path"),
        (b"fsmonitor = ./tools/fsm", b"fsmonitor", "core.fsmonitor"),
        (b"fsmonitor = ./tools/fsm", b"fsmonitor = ./tools/fsm\n\tfsmonitor = ./tools/fsm", "core.fsmonitor"),
    ],
)
def test_a_program_that_is_there_is_not_changed(old: bytes, new: bytes, key: str) -> None:
    assert objection(BEFORE, BEFORE.replace(old, new)).startswith(key)


def test_the_order_of_programs_stays() -> None:
    """The last value counts: two values that change places are a change."""
    one, two = b"[core]\n\tpager = a\n", b"[core]\n\tpager = b\n"
    assert objection(one + two, two + one) == "core.pager is no everyday setting and must stay in its place"


@pytest.mark.parametrize(
    ("new", "why"),
    [
        (b"[core\n", "the new configuration is not plain git configuration"),
        (b"[core]\r\n\tbare = false\r\n", "the new configuration is not plain git configuration"),
        (b"\0", "the new configuration is not plain git configuration"),
        (b"[user]\n\tname = " + b"x" * LARGEST, "a configuration of more than 64 KiB"),
    ],
)
def test_what_is_not_understood_is_refused(new: bytes, why: str) -> None:
    assert objection(b"", new).startswith(why)
    assert objection(new, b"") != ""


def test_no_value_is_told() -> None:
    """An address can hold a password."""
    assert "secret" not in objection(b"", b'[remote "o"]\n\turl = ext::secret\n')


@pytest.mark.parametrize(
    ("path", "value", "good"),
    [
        ("/w/.git/modules/lib/config", "../../../lib", True),
        ("/w/.git/modules/a/b/config", "../../../../a/b", True),
        (".git/modules/lib/config", "../../../lib", True),
        ("/w/.git/modules/lib/config", "../../../../lib", False),
        ("/w/.git/modules/lib/config", "../../lib", False),
        ("/w/.git/modules/lib/config", "../../../", False),
        ("/w/.git/modules/lib/config", "../../../a/../..", False),
        ("/w/.git/modules/lib/config", "../../../.git", False),
        ("/w/.git/modules/lib/config", "../../../a/.GIT./hooks", False),
        ("/w/.git/modules/lib/config", "/w/lib", False),
        ("/w/x.git/modules/lib/config", "../../../lib", False),
        ("/w/.git/config", "../lib", False),
        ("/w/.git/config", "", False),
    ],
)
def test_the_work_tree_of_a_submodule(path: str, value: str, good: bool) -> None:
    why = objection(b"", f"[core]\n\tworktree = {value}\n".encode(), path)
    assert why == ("" if good else "core.worktree is no everyday setting")


def test_repositories_with_both_names() -> None:
    hits = [
        ScanHit("n/.git/config", "protect", False),
        ScanHit("n/.git/hooks", "protect", True),
        ScanHit(".git/config", "protect", False),
        ScanHit(".git/hooks", "protect", True),
        ScanHit("a/.git/config", "protect", False),  # no hooks
        ScanHit("b/.git/config", "protect", False, True),  # a link
        ScanHit("b/.git/hooks", "protect", True),
        ScanHit("c/.git/config", "readonly", False),  # a rule of the user's
        ScanHit("c/.git/hooks", "protect", True),
        ScanHit("d/.git/config", "protect", False),
        ScanHit("d/.git/hooks", "protect", False, True),
    ]
    hits += [ScanHit(".gitmodules", "protect", False), ScanHit("m/.gitmodules", "protect", False)]
    pins = (".git", "a", "b", "c", "d", "m", "n", "a/.git", "b/.git", "c/.git", "d/.git", "n/.git")
    found = ((".gitmodules", ".git/hooks"), (".git/config", ".git/hooks"), ("n/.git/config", "n/.git/hooks"))
    assert editable(hits, pins) == found
    assert editable(hits, pins[:-1]) == found[:2]


@pytest.mark.parametrize(
    ("more", "key"),
    [
        (b'[submodule "a"]\n\tpath = a\n\turl = ../a.git\n\tbranch = main\n\tupdate = none\n', ""),
        (b'[submodule "a"]\n\tpath = ../a\n', "submodule.a.path"),
        (b'[submodule "a"]\n\tpath = .git/x\n', "submodule.a.path"),
        (b'[submodule "../a"]\n\turl = x\n', "submodule.../a.url"),
        (b'[submodule "a"]\n\tupdate = !x\n', "submodule.a.update"),
        (b'[submodule "a"]\n\turl = -x\n', "submodule.a.url"),
        (b"[user]\n\tname = a\n", "user.name"),
    ],
)
def test_modules(more: bytes, key: str) -> None:
    before = b'[submodule "b"]\n\tpath = b\n\turl = https://example.org/b\n'
    assert objection(before, before + more, "a/.gitmodules") == (f"{key} is no everyday setting" if key else "")
