"""What a reviewed run changed, looked at and put in place with the installed program."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from test_review import WORK, repository, review
from world.box import Box


def files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and ".git" not in path.parts
    }


def git(box: Box, *args: str) -> str:
    done = box.outside("git", *args)
    assert done.returncode == 0, done
    return str(done.stdout)


def test_commits_come_and_what_programs_obey_stays_out(box: Box) -> None:
    repository(box)
    assert review(box, WORK).returncode == 0
    told = json.loads(box.run("diff", "one", "--json").stdout)
    red = {row["path"] for row in told["changes"] if row["red"]}
    assert {".envrc", ".mcp.json", ".vscode", ".membrane.yaml", ".git/hooks/pre-commit", ".git/config"} <= red
    assert box.run("apply", "one").returncode == 1
    assert git(box, "log", "--format=%s", "side").split() == ["fourth", "third", "second", "base"]
    assert git(box, "fsck", "--full") == ""
    assert (box.workspace / "sub/moved").exists() and not (box.workspace / "file").exists()
    for name in (".envrc", ".mcp.json", ".vscode", ".membrane.yaml", ".git/hooks/pre-commit"):
        assert not (box.workspace / name).exists()
    assert "fsmonitor" not in (box.workspace / ".git/config").read_text()
    assert "alias" not in (box.workspace / ".git/config").read_text()


def test_the_patch_of_a_run_is_one_that_git_applies(box: Box, tmp_path: Path) -> None:
    (box.workspace / "a").write_text("one\ntwo\n")
    (box.workspace / "b").write_text("bee\n")
    assert review(box, "echo three >> a; mv b 'new name'; printf '\\0\\1' > binary; ln -s a link").returncode == 0
    patch = box.run("diff", "one").stdout
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", str(box.workspace), str(copy)], check=True)
    subprocess.run(["git", "apply", "-"], cwd=copy, input=patch.encode(), check=True)
    assert box.run("apply", "one").returncode == 0
    assert files(copy) == files(box.workspace) and os.readlink(box.workspace / "link") == "a"
    assert box.run("undo", "one").returncode == 0
    assert (box.workspace / "b").read_text() == "bee\n" and not (box.workspace / "binary").exists()
    assert box.run("apply", "one").returncode == 0
    # All of it was put in place: the next run begins with the workspace as it is.
    (box.workspace / "a").write_text("of the host\n")
    assert review(box, "cat a").stdout == "of the host\n"


def test_what_the_host_changed_meanwhile_is_not_touched(box: Box) -> None:
    (box.workspace / "a").write_text("one\n")
    assert review(box, "echo two > a; echo x > b").returncode == 0
    (box.workspace / "a").write_text("host\n")
    done = box.run("apply", "one")
    assert done.returncode == 125 and "changed in the workspace meanwhile" in done.stderr
    assert not (box.workspace / "b").exists()
    assert box.run("apply", "one", "--rest").returncode == 1
    assert (box.workspace / "a").read_text() == "host\n" and (box.workspace / "b").exists()


def test_a_hidden_name_of_the_host_is_not_replaced(box: Box) -> None:
    box.policy(json.dumps({"presets": [], "ignore": [".env"]}))
    (box.workspace / ".env").write_text("SECRET=1\n")
    assert review(box, "echo mine > .env; echo x > b").returncode == 0
    assert "SECRET" not in box.run("diff", "one").stdout
    assert box.run("apply", "one", "--all").returncode == 1
    assert (box.workspace / ".env").read_text() == "SECRET=1\n" and (box.workspace / "b").exists()


def test_what_is_done_at_the_end_by_an_option(box: Box) -> None:
    script = "echo x > plain; echo x > run; chmod +x run"
    assert "put in place: membrane apply" in review(box, script, "--apply=never").stderr
    assert not (box.workspace / "plain").exists()
    done = review(box, "true", "--apply=safe")
    assert "put in place: 1 added" in done.stderr
    assert (box.workspace / "plain").exists() and not (box.workspace / "run").exists()
    assert review(box, "true", "-q", "--apply=all").stderr == ""
    assert (box.workspace / "run").exists()
    assert review(box, "true", "--apply=some").returncode == 2
    assert review(box, "echo y > plain", "--apply=never").returncode == 0
    (box.workspace / "plain").write_text("host\n")
    assert "were not put in place" in review(box, "true", "-q", "--apply=all").stderr
    assert (box.workspace / "plain").read_text() == "host\n"


def test_what_is_done_at_the_end_by_the_policy(box: Box) -> None:
    box.policy(json.dumps({"presets": [], "workspace": "review", "apply": "safe"}))
    script = "echo x > plain; echo x > run; chmod +x run"
    assert box.run("--", "sh", "-c", script).returncode == 0
    assert (box.workspace / "plain").exists() and not (box.workspace / "run").exists()
    assert "apply" in box.run("config", "show").stdout
    # A project's file makes it tighter without anybody's approval, and never wider.
    (box.workspace / ".membrane.yaml").write_text("apply: never\n")
    assert box.run("--", "sh", "-c", "echo x > other").returncode == 0
    assert not (box.workspace / "other").exists()
    for wider in ("apply: all\n", "workspace: live\n"):
        (box.workspace / ".membrane.yaml").write_text(wider)
        for options in ((), ("--trust-workspace",)):
            done = box.run(*options, "--", "sh", "-c", "echo x > other")
            assert done.returncode == 78 and "may only make it tighter" in done.stderr, done
    assert not (box.workspace / "other").exists()
    # The person may.
    assert box.run("--no-project", "--apply=all", "--", "sh", "-c", "echo x > more; chmod +x more").returncode == 0
    assert os.access(box.workspace / "more", os.X_OK)


def test_nothing_is_applied_where_nothing_is_kept_apart(box: Box) -> None:
    done = box.run("--apply=never", "--", "sh", "-c", "echo x > plain")
    assert done.returncode == 78 and "the workspace is live" in done.stderr, done
    assert not (box.workspace / "plain").exists()
    assert box.run("--", "sh", "-c", "echo x > plain").returncode == 0
    assert (box.workspace / "plain").exists()
