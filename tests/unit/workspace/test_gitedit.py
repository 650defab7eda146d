"""Which changes of an existing ``config`` are everyday ones."""

from __future__ import annotations

import errno
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from membrane.plan.model import ScanHit
from membrane.tracer.edits import LONGEST
from membrane.workspace import gitedit
from membrane.workspace.gitedit import GO_ON, LARGEST, MOST_WAITING, Editor, editable, objection

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
    b'[remote "two"]\n\tfetch = +refs/pull/*/head:refs/remotes/two/pr/*\n\tfetch = ^refs/heads/x\n',
    b'[remote "two"]\n\tfetch = +refs/pull/*/head:refs/pull/*/head\n\tfetch = main\n',
    b"[user]\n\tname = A\n\temail = a@example.org\n",
    b'[submodule "lib"]\n\tactive = true\n\turl = https://example.org/lib\n\tbranch = main\n\tupdate = rebase\n',
    b"[core]\n\tautocrlf = input\n\tsparseCheckout = true\n[extensions]\n\tworktreeConfig = true\n",
    b"[init]\n\tdefaultBranch = main\n[pull]\n\trebase = true\n[push]\n\tdefault = current\n",
    b"[merge]\n\tconflictStyle = zdiff3\n[lfs]\n\trepositoryformatversion = 0\n",
    b"[pager]\n\tbranch = false\n\tlog\n[log]\n\tdate = iso\n[protocol]\n\tversion = 2\n[gc]\n\tautoDetach = false\n",
    b"[http]\n\tpostBuffer = 524288000\n\tversion = HTTP/1.1\n[uploadpack]\n\tallowFilter = true\n",
    b'[gitflow "branch"]\n\tmaster = main\n[gitflow "prefix"]\n\tfeature = feature/\n\tversiontag =\n',
    b'[remote "origin"]\n\tgh-resolved = base\n[mergetool]\n\tkeepBackup = false\n[rebase]\n\tstat = true\n',
    b"# a comment that says fsmonitor = x\n",
]

REFUSED = [
    (b"[core]\n\thooksPath = .husky/_\n", "core.hookspath"),
    (b"[core]\n\tfsmonitor = true\n", "core.fsmonitor"),
    (b"[core]\n\tsshCommand = ./x\n", "core.sshcommand"),
    (b"[core]\n\tpager = ./x\n", "core.pager"),
    (b"[core]\n\tworktree = /tmp\n", "core.worktree"),
    (b"[core]\n\tsharedRepository = 0666\n", "core.sharedrepository"),
    (b"[commit]\n\tgpgSign = false\n", "commit.gpgsign"),
    (b'[remote "origin"]\n\tmirror = true\n', "remote.origin.mirror"),
    (b'[remote "origin"]\n\tpush = +refs/heads/*:refs/heads/*\n', "remote.origin.push"),
    (b'[remote "o"]\n\tfetch = +refs/heads/*:refs/heads/*\n', "remote.o.fetch"),
    (b'[remote "o"]\n\tfetch = +refs/*:refs/*\n', "remote.o.fetch"),
    (b'[remote "o"]\n\tfetch = main:main\n', "remote.o.fetch"),
    (b'[remote "o"]\n\tfetch = +refs/tags/*:refs/tags/*\n', "remote.o.fetch"),
    (b'[remote "o"]\n\tpruneTags = true\n', "remote.o.prunetags"),
    (b"[fetch]\n\tpruneTags = true\n", "fetch.prunetags"),
    (b"[extensions]\n\trefStorage = files:///home/x\n", "extensions.refstorage"),
    (b"[gc]\n\tpruneExpire = now\n", "gc.pruneexpire"),
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
    (b"[pager]\n\tlog = ./x\n", "pager.log"),
    (b"[http]\n\tproxy = http://x\n", "http.proxy"),
    (b"[http]\n\tsslVerify = false\n", "http.sslverify"),
    (b"[uploadpack]\n\tpackObjectsHook = ./x\n", "uploadpack.packobjectshook"),
    (b"[interactive]\n\tdiffFilter = ./x\n", "interactive.difffilter"),
    (b"[notes]\n\tx = ./x\n", "notes.x"),
    (b'[gitflow "path"]\n\thooks = ./x\n', "gitflow.path.hooks"),
    (b'[gitflow "prefix"]\n\tversiontag = $(./x)\n', "gitflow.prefix.versiontag"),
    (b"[merge]\n\ttool = ../../x\n", "merge.tool"),
    (b'[difftool "x"]\n\tcmd = ./x\n', "difftool.x.cmd"),
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


class Place:
    """A repository, and an ``Editor`` whose launcher is the test."""

    def __init__(self, top: Path) -> None:
        self.config, self.lock = top / ".git/config", top / ".git/config.lock"
        self.hooks = top / ".git/hooks"
        self.hooks.mkdir(parents=True)
        self.config.write_bytes(BEFORE)
        self.lock.write_bytes(BEFORE + EVERYDAY[0])
        self.frozen: list[str] = []
        self.answers: list[tuple[int, int, str]] = []
        self.busy = False
        self.shared = ""
        self.editor = Editor(
            {str(self.config): os.open(self.hooks, os.O_PATH)},
            freeze=lambda _fd, name: bool(self.frozen.append(name)) or True,
            busy=lambda: self.busy,
            shared=lambda path: path == self.shared,
            answer=lambda *answer: self.answers.append(answer),
        )

    def begin(self) -> None:
        self.editor.ask(7, str(self.config), time.monotonic() + 60)
        self.editor.step()

    def end(self) -> tuple[int, str]:
        """The launcher has done its part."""
        self.editor.frozen(True)
        self.editor.step()
        [(number, what, why)] = self.answers
        assert number == 7 and list(self.hooks.iterdir()) == []
        return what, why

    @property
    def unchanged(self) -> bool:
        return self.config.read_bytes() == BEFORE and self.lock.exists()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.editor.close()


def test_a_change(place: Place) -> None:
    place.config.chmod(0o640)
    place.begin()
    assert place.unchanged and not place.answers
    assert [path.name for path in place.hooks.iterdir()] == place.frozen
    assert place.end() == (0, "")
    assert place.config.read_bytes() == BEFORE + EVERYDAY[0] and not place.lock.exists()
    assert place.config.stat().st_mode & 0o777 == 0o640


def test_a_change_that_is_refused_touches_nothing(place: Place) -> None:
    place.lock.write_bytes(BEFORE + REFUSED[0][0])
    place.begin()
    assert place.answers == [(7, errno.EACCES, f"{REFUSED[0][1]} is no everyday setting")]
    assert place.unchanged and not place.frozen and list(place.hooks.iterdir()) == []


def test_it_waits_for_masks(place: Place) -> None:
    place.begin()
    place.busy = True
    place.editor.frozen(True)
    place.editor.step()
    assert place.unchanged and not place.answers
    place.busy = False
    assert place.end() == (0, "")


def test_another_session(place: Place) -> None:
    place.begin()
    place.shared = str(place.config)
    assert place.end() == (errno.EACCES, "another session shows this repository")
    assert place.unchanged


def test_somebody_outside_was_faster(place: Place) -> None:
    place.begin()
    place.config.write_bytes(BEFORE + EVERYDAY[1])
    assert place.end() == (errno.EACCES, "it was changed meanwhile")
    assert place.config.read_bytes() == BEFORE + EVERYDAY[1] and place.lock.exists()


@pytest.mark.parametrize("how", ["open", "written"])
def test_a_new_file_that_somebody_could_write(place: Place, how: str) -> None:
    place.begin()
    fd = os.open(place.hooks / place.frozen[0], os.O_RDWR)
    if how == "written":
        os.pwrite(fd, b"#", 0)
        os.close(fd)
    assert place.end() == (errno.EACCES, "another process has the new file open")
    assert place.unchanged
    if how == "open":
        os.close(fd)


def test_too_late(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.begin()
    monkeypatch.setattr(gitedit, "MARGIN", 3600.0)  # which has begun by now
    assert place.end() == (errno.EACCES, "it took too long")
    assert place.unchanged


def test_a_launcher_that_can_not(place: Place) -> None:
    place.begin()
    place.editor.frozen(False)
    assert place.answers == [(7, errno.EACCES, "the new file could not be made read-only inside")]
    assert place.unchanged and list(place.hooks.iterdir()) == []


def test_the_end_of_the_sandbox_in_between(place: Place) -> None:
    place.begin()
    place.editor.close()
    assert place.unchanged and list(place.hooks.iterdir()) == []


def test_another_hooks_directory(place: Place) -> None:
    place.hooks.rename(place.hooks.with_name("old"))
    place.hooks.mkdir()
    place.begin()
    assert place.answers == [(7, errno.EACCES, "its hooks directory was replaced since the start")]
    assert place.unchanged and not place.frozen


def test_paths_that_are_not_known(place: Place) -> None:
    place.editor.ask(1, "/etc/config", time.monotonic() + 9)
    assert place.answers == [(1, GO_ON, "")]


def test_requests_are_bounded_and_rest(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(100.0, 0.25)  # a quarter of a second from each look at it to the next
    monkeypatch.setattr(gitedit, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    for number in range(MOST_WAITING + 1):
        place.editor.ask(number, str(place.config), 200.0)
    assert place.answers == [(MOST_WAITING, errno.EACCES, "too many changes at once")]
    assert place.editor.timeout() == 0
    place.lock.unlink()
    place.editor.step()  # the first: there is nothing to read
    assert place.answers[1:] == [(0, errno.EACCES, "it could not be put in place (openat2: No such file or directory)")]
    assert 0 < (place.editor.timeout() or 0) < gitedit.LONGEST_REST


def test_one_that_a_busy_machine_held_up_does_not_make_the_next_one_late(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tracer gives each call ``LONGEST``; after a step of two seconds the next one waited for eight."""
    now, slow = [100.0], [2.0]

    def monotonic() -> float:
        now[0] += slow[0]
        return now[0]

    monkeypatch.setattr(gitedit, "time", SimpleNamespace(monotonic=monotonic))
    place.begin()
    assert place.end() == (0, "")
    slow[0] = 0.0
    place.answers.clear()
    place.editor.ask(8, str(place.config), now[0] + LONGEST)
    place.editor.step()
    assert not place.answers  # it rests
    now[0] += gitedit.LONGEST_REST
    place.editor.step()
    assert place.answers == [(8, errno.EACCES, "it could not be put in place (openat2: No such file or directory)")]


def test_the_execute_bit_and_no_other(place: Place) -> None:
    for mode, answer in ((0o744, 0), (0o644, 0), (0o666, GO_ON), (0o600, GO_ON), (0o4755, GO_ON)):
        place.editor.ask(mode, str(place.config), 0.0, mode)
        assert place.answers.pop() == (mode, answer, "")
    assert place.config.stat().st_mode & 0o7777 == 0o644
