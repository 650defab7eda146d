"""Everyday git: nothing is refused inside, and the repositories are those that the same commands make outside.

The table of what git writes in its directory (``workspace.gitdir``) is held against what it was seen to write.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from world.box import Box

from membrane.workspace import gitdir, protect

pytestmark = pytest.mark.needs_tool("git")

BEGIN = """
set -u
export TOP=$PWD HOME=$PWD/.h GIT_CONFIG_GLOBAL=$PWD/.h/global EDITOR=true LC_ALL=C
export GIT_AUTHOR_DATE=2020-01-01T00:00:00Z GIT_COMMITTER_DATE=2020-01-01T00:00:00Z
mkdir -p $HOME
git config --global user.name a; git config --global user.email a@example.test
git config --global init.defaultBranch main; git config --global protocol.file.allow always
run() { "$@" </dev/null >/dev/null 2>&1 || true; }
run git init o; cd o
for i in 1 2 3 4 5; do echo $i > f; ln -sf f link; git add .; run git commit -m $i; done
git branch side HEAD~2; cd ..
run git clone o w; cd w; main=$(git rev-parse HEAD)
"""
# One line is one piece of work; after each the repository is made as it was.
WORK = r"""
echo x>>f; run git commit -am x; run git commit --amend -m y; run git commit -o f -m only; run git commit --allow-empty
run git switch -c t HEAD~2; echo z>f; run git commit -am z; run git merge main; run git merge --abort; run git merge main; echo r>f; git add f; run git commit --no-edit; run git merge --squash side; run git merge --quit
run git switch -c p HEAD~2; echo z>f; run git commit -am z; run git cherry-pick main; run git cherry-pick --abort; run git cherry-pick main~1 main; echo q>f; git add f; run git cherry-pick --continue; run git cherry-pick --skip; run git cherry-pick -X theirs -S main; run git cherry-pick --quit
run git revert --no-edit HEAD~1; run git revert --abort; run git revert --no-edit HEAD~2 HEAD~1; echo b>f; git add f; run git revert --continue; run git revert --abort
GIT_SEQUENCE_EDITOR="sed -i 1s/pick/edit/" run git rebase -i --autosquash HEAD~2; echo e>g; git add g; run git commit --amend --no-edit; run git rebase --continue; run git rebase --abort
run git switch -c r HEAD~3; echo s>f; run git commit -am s; echo t>f; run git commit -am t; run git rebase -s ort -X ours --signoff main; run git rebase --abort; run git rebase main; echo d>f; git add f; run git rebase --continue; run git rebase --skip; run git rebase --abort; run git rebase -X theirs main
run git switch -c ra HEAD~3; echo s>f; run git commit -am s; run git rebase --apply main; run git rebase --skip; run git rebase --rebase-merges --update-refs main; run git rebase --abort; echo 1>>f; run git rebase --autostash main; run git rebase --abort; run git reset --hard
GIT_SEQUENCE_EDITOR="sed -i.bak s/pick/reword/" GIT_EDITOR="perl -pi.bak -e s/^/P/" run git rebase -i HEAD~2; GIT_EDITOR="perl -pi -e s/P/Q/" run git commit --amend; run git commit --allow-empty -m t --trailer A:b; run git tag -a v9 -m x --trailer A:b; run git commit --amend --trailer C:d; run git interpret-trailers --in-place --trailer E:f .git/COMMIT_EDITMSG
run git bisect start; run git bisect bad; run git bisect good HEAD~3; run git bisect run true; run git bisect reset; run git bisect start HEAD HEAD~3 -- f 'a b'; run git bisect skip; run git bisect log; run git bisect reset; run git bisect start --first-parent --term-old=ok --term-new=no; run git bisect reset
echo s>>f; run git stash; run git stash pop; run git stash -u; run git stash drop
run git worktree add wt -b wtb; cd wt; echo 1>>f; run git commit -am wt; run git rebase -i HEAD~1; run git merge main; run git merge --abort; cd ..; run git worktree lock wt; run git worktree unlock wt; run git worktree move wt wt2; run git worktree remove --force wt2; run git worktree prune
run git submodule add ../o sub; run git submodule add --name a/b ../o lib/sub; run git commit -m sub; run git submodule update --init --remote; run git submodule deinit -f sub; run git submodule update --init; run git clone --recurse-submodules . ../super
run git clone ../o inner; run git submodule add ./inner; run git submodule absorbgitdirs; run git rm -f --cached inner
run git notes add -m n; run git notes --ref x add -m q; run git notes merge x; run git notes edit; run git bundle create ../b.bundle --all; run git fetch ../b.bundle
run git format-patch -2 -o ../p; run git switch -c am main~2; run git am ../p/*; run git am -3 -C1 --signoff ../p/*; run git am --skip; run git am --abort; run git apply --check ../p/0001*
run git tag -a v1 -m t; run git tag -a v2; run git branch --edit-description; run git add -e; run git add -p; run git describe --dirty
run git sparse-checkout set f; run git sparse-checkout disable; run git config --worktree user.name z
run git commit-graph write --reachable; run git multi-pack-index write; run git maintenance run; run git reflog expire --expire=now --all; run git replace HEAD~1 HEAD~2; run git replace -d HEAD~1; run git gc; run git repack -adf --write-bitmap-index; run git fsck; run git prune; run git pack-refs --all; run git update-server-info
run git config rerere.enabled true; run git switch -c rr HEAD~2; echo z>f; run git commit -am z; run git merge main; run git rerere; run git merge --abort; run git update-index --split-index; run git update-index --untracked-cache; run git read-tree HEAD
run git pull --rebase --autostash; run git fetch --depth 2 "file://$TOP/o" main; run git fetch --unshallow; run git remote add x ../o; run git fetch x; run git push x HEAD:refs/heads/new; run git branch -m main m2; run git branch -m m2 main; run git symbolic-ref HEAD
run git filter-branch -f --msg-filter cat HEAD~1..HEAD; run git archive -o ../a.tar HEAD; run git checkout --orphan orp; run git reset --hard
run git clone --bare ../o ../bare.git; run git -C ../bare.git worktree add ../from-bare side; run git clone --mirror ../o ../mirror.git; run git init --separate-git-dir ../sep ../apart; run git clone --depth 1 --sparse "file://$TOP/o" ../shallow; run git clone -b side --filter=blob:none "file://$TOP/o" ../part
"""  # noqa: E501
AGAIN = "\nrun git reset --hard; run git checkout -f main; run git reset --hard $main; run git clean -fd\n"
SCRIPT = BEGIN + AGAIN.join(line for line in WORK.strip().splitlines()) + AGAIN


def state(place: Path) -> dict[str, Any]:
    """What a person would compare of all repositories below ``place``."""
    environment = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "LC_ALL": "C"}

    def git(where: Path, *command: str) -> list[str]:
        done = subprocess.run(
            ["git", *command], cwd=where, env=environment, capture_output=True, text=True, check=False
        )
        return (done.stdout + done.stderr).replace(str(place), "").splitlines()

    names = []
    for path, directories, files in os.walk(place):
        directories[:] = sorted({*directories} - {"objects", ".h"})
        for name in (*directories, *files):
            shown = os.path.relpath(os.path.join(path, name), place)
            link = os.path.islink(os.path.join(path, name))
            names.append((re.sub(r"sharedindex\.\w+", "sharedindex", shown), link))
    repositories = sorted({path.parent for path in place.rglob("HEAD") if (path.parent / "refs").is_dir()})
    asked = (("for-each-ref",), ("config", "--local", "--list"), ("fsck", "--no-dangling"))
    answers = {str(where.relative_to(place)): [git(where, *command) for command in asked] for where in repositories}
    return {"names": sorted(names), **answers}


def test_the_same_commands_make_the_same_repositories_and_nothing_is_refused(box: Box, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    done = box.outside("bash", "-c", SCRIPT, cwd=outside)
    assert done.returncode == 0, done
    done = box.run(f"--events={box.events_path}", "--", "bash", "-c", SCRIPT)
    assert done.returncode == 0, done
    assert box.events("AccessDenied") == [] and box.events("NameQuarantined") == []
    inside, expected = state(box.workspace), state(outside)
    assert len(expected) > 8 and len(expected["names"]) > 300  # the control: something was made
    assert inside == expected
    _written_is_in_the_table(box)


def _written_is_in_the_table(box: Box) -> None:
    """Every name that git was seen to make in a git directory has a row, and no row that all gits write is missing."""
    made: set[str] = set()
    for line in box.events_path.read_text().splitlines():
        event = json.loads(line)
        path = event.get("to") if event["event"] == "FileRenamed" else event.get("path", "")
        if event["event"] in ("FileRenamed", "FileCreated") or "creat" in event.get("flags", ()):
            made.add(str(path))
    rows: set[str] = set()
    for path in made:
        inner = path.rstrip("/").partition("/.git/")[2]
        if not inner or "/.git" in inner:
            continue
        place = "git"
        for part in inner.split("/"):
            if place in ("modules", "data", "hooks"):
                break
            if place == "worktrees":
                place = "linked"
                continue
            key = protect.fold(part)
            kind = gitdir.find(place, key)
            assert kind, f"git wrote {path}, and {part} has no row in {place}"
            rows.add(key)
            place = key if kind == "place" else "data" if kind == "data" else "hooks" if kind == "held" else place
    assert {"head", "index", "config", "rebase-merge", "sequencer", "rebase-apply", "strategy_opts", "opts"} <= rows


def test_a_clone_a_worktree_and_a_submodule_bring_the_names_of_tools(box: Box, tmp_path: Path) -> None:
    """They stay, tracked and unchanged, and are told at the end."""
    script = """
git() { command git -c user.name=a -c user.email=a@example.test -c protocol.file.allow=always "$@"; }
git clone -q ../origin c; git -C c worktree add -q ../w; git -C c submodule --quiet add "$TOP/../origin" s
for place in c w c/s; do
  git -C $place status --porcelain -- .vscode .mcp.json; ls -d $place/.vscode/x $place/.mcp.json
done
"""
    outside = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_GLOBAL": "/dev/null"}
    origin = tmp_path / "origin"
    (origin / ".vscode").mkdir(parents=True)
    (origin / ".vscode" / "x").write_text("{}")
    (origin / ".mcp.json").write_text("{}")
    for command in (["init", "-qb", "main"], ["add", "-A"], ["commit", "-qm", "x"]):
        names = ["-c", "user.name=a", "-c", "user.email=a@example.test"]
        subprocess.run(["git", *names, *command], cwd=origin, env=outside, check=True)
    done = box.run(f"--mount={origin}", "--", "bash", "-euc", f"TOP={box.workspace}\n{script}")
    assert done.returncode == 0, done
    assert done.stdout.split() == [
        f"{place}/{name}" for place in ("c", "w", "c/s") for name in (".mcp.json", ".vscode/x")
    ]
    assert "and 5 more: a new repository brought it" in done.stderr


def test_a_filter_that_may_not_install_its_hook_spoils_no_add(box: Box) -> None:
    """git-lfs tries to each time, and goes on; what lies in .git is in no index, so nothing is missing from it."""
    script = """
cat > clean <<'END'
#!/bin/sh
if echo exit > .git/hooks/pre-push; then echo installed >> ../said; fi
exec tr a b
END
chmod +x clean; git init -q r; cd r
git() { command git -c user.name=a -c user.email=a@b.test -c filter.x.clean=../clean -c filter.x.required=true "$@"; }
echo '*.bin filter=x' > .gitattributes; echo aaa > x.bin; git add .; git commit -qm x; git show HEAD:x.bin
"""
    done = box.run("--", "sh", "-euc", script)
    assert (done.returncode, done.stdout) == (0, "bbb\n"), done
    assert not (box.workspace / "said").exists() and "r/.git/hooks/pre-push" in done.stderr, done
    control = box.home / "control"
    control.mkdir()
    assert box.outside("sh", "-euc", script, cwd=control).stdout == "bbb\n"
    assert (control / "said").exists()
