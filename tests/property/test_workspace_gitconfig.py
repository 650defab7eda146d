"""workspace.gitconfig: what the reader accepts, git reads in the same way; nothing that runs is called harmless."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from membrane.workspace.gitconfig import ConfigError, module_objection, objection, parse

FRAGMENTS = (
    "[core]", "[Core]", '[remote "Origin"]', '[remote "a\\"b"]', "[a.b]", "[core ", '"x"', "]", "[", "bare",
    "fsmonitor", "url", " = ", "=", "true", "touch x", '"', '"a b"', "\\", "\\n", "\\t", "\\\\", '\\"', "\\x", "\\\n",
    "\n", "\n", "\n\t", " ", "\t", "#", ";", "# c", "-", "é", "::", "/", "a-b", "1", "\r", "\0", "\ufeff", "x = y\n",
    "[x]\n",
)  # fmt: skip


@pytest.mark.needs_tool("git")
@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join))
@example('[core]\n\ta = b ; c\n\td = "e # f" # g\n')
@example('[core] fsmonitor = touch x\n[remote "a"] url = ext::sh')
@example('[a]\n\tb = "" x\n')
@example("[a]\n\tb = x \\\n  y\n")
@example("[a]\n\tb\n\tc =\n\td = \\\n")
def test_what_is_accepted_is_what_git_reads(text: str) -> None:
    try:
        ours = parse(text)
    except ConfigError:
        return
    with tempfile.TemporaryDirectory() as base:
        place = Path(base) / "config"
        place.write_bytes(text.encode())
        listed = subprocess.run(
            ["git", "config", "--file", str(place), "--list", "-z", "--no-includes"],
            capture_output=True,
            env={"PATH": os.environ["PATH"], "HOME": base},
            check=False,
        )
    assert listed.returncode == 0, (text, listed.stderr)
    entries = [entry for entry in listed.stdout.decode().split("\0") if entry]
    theirs = [(key, value if equals else None) for key, equals, value in (entry.partition("\n") for entry in entries)]
    assert ours == theirs


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        for key, value in parse(text):
            objection(key, value)
            module_objection(key, value)
    except ConfigError:
        pass


DANGEROUS = (
    "core.fsmonitor=touch x", "core.fsmonitor=true", "core.hookspath=.h", "core.sshcommand=x", "core.pager=x",
    "core.editor=x", "core.askpass=x", "core.gitproxy=x", "core.attributesfile=x", "core.alternaterefscommand=x",
    "core.worktree=/", "core.protecthfs=false", "core.protectntfs=false", "alias.x=!touch x", "include.path=x",
    "includeif.gitdir:/.path=x", "filter.x.clean=x", "filter.x.smudge=x", "filter.x.process=x", "diff.external=x",
    "diff.x.textconv=x", "diff.x.command=x", "merge.x.driver=x", "mergetool.x.cmd=x", "difftool.x.cmd=x",
    "credential.helper=x", "credential.https://h.helper=x", "url.ext::sh.insteadof=https://", "pager.log=x",
    "sequence.editor=x", "gpg.program=x", "gpg.ssh.program=x", "gpg.ssh.defaultkeycommand=x", "http.proxy=x",
    "http.sslverify=false", "remote.o.uploadpack=x", "remote.o.receivepack=x", "remote.o.vcs=ext", "remote.o.proxy=x",
    "remote.o.url=ext::sh -c x", "remote.o.url=-x", "remote.o.url=foo::x", "remote.o.url=foo://x",
    "remote.o.url=ssh://-oProxyCommand=x/y", "remote.o.url=a@-b:c", "remote.o.pushurl=ext::x",
    "remote.ext::x.promisor=1", "branch.m.remote=ext::x", "branch.m.pushremote=ext::x", "branch.m.mergeoptions=-s x",
    "remote.pushdefault=ext::x", "extensions.partialclone=ext::x", "submodule.s.update=!x", "submodule.s.url=ext::x",
    "submodule.s.url=-x", "uploadpack.packobjectshook=x", "interactive.difffilter=x", "man.x.cmd=x",
    "browser.x.cmd=x", "web.browser=x", "sendemail.smtpserver=/x", "trailer.x.command=x", "tar.x.command=x",
    "protocol.ext.allow=always", "safe.directory=*", "lfs.customtransfer.x.path=x", "lfs.extension.x.clean=x",
    "lfs.url=x", "init.templatedir=x", "commit.template=x", "notes.x=y", "unknown.key=x", "core.unknown=x",
    "merge.tool=x", "diff.tool=x", "fsmonitor.x=y", "guitool.x.cmd=x",
)  # fmt: skip

HARMLESS = (
    "core.repositoryformatversion=0", "core.filemode=true", "core.bare=false", "core.logallrefupdates=true",
    "core.ignorecase=true", "core.precomposeunicode=true", "core.symlinks=false", "core.fsmonitor=false",
    "remote.origin.url=https://github.com/a/b.git", "remote.origin.url=git@github.com:a/b.git",
    "remote.origin.url=ssh://git@host:22/a", "remote.origin.url=/srv/a.git", "remote.origin.url=../a",
    "remote.origin.url=./a::b", "remote.origin.url=file:///a",
    "remote.origin.fetch=+refs/heads/*:refs/remotes/origin/*", "remote.origin.pushurl=https://h/x",
    "branch.main.remote=origin", "branch.main.remote=.", "branch.main.merge=refs/heads/main",
    "branch.a/b.rebase=true", "submodule.libs/a.url=https://h/a", "submodule.a.active=true",
    "submodule.a.update=rebase", "extensions.worktreeconfig=true", "extensions.partialclone=origin", "user.name=A B",
    "user.email=a@b", "init.defaultbranch=main", "pull.rebase=true", "lfs.repositoryformatversion=0",
    "lfs.https://h/a.git/info/lfs.access=basic", "core.sparsecheckout=true", "advice.detachedhead=false",
    "color.ui=auto", "commit.gpgsign=false", "push.autosetupremote=true",
)  # fmt: skip


@pytest.mark.parametrize("line", DANGEROUS)
def test_settings_that_run_something_are_objected_to(line: str) -> None:
    key, _, value = line.partition("=")
    assert objection(key, value)


@pytest.mark.parametrize("line", HARMLESS)
def test_settings_that_git_writes_are_harmless(line: str) -> None:
    key, _, value = line.partition("=")
    assert objection(key, value) == ""


@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyz.-:/", min_size=1, max_size=40), st.text(max_size=40))
def test_an_unknown_section_is_never_harmless(key: str, value: str) -> None:
    section = key.partition(".")[0]
    known = (
        "core extensions user author committer init pull push fetch merge rebase rerere commit tag diff status branch "
        "index feature gc maintenance pack repack receive clone submodule lfs remote advice color column checkout"
    )
    if section not in known.split():
        assert objection(key, value)
