"""F: a rule that names what does not exist yet: it may not be made."""

from __future__ import annotations

import subprocess

import pytest
from escape_box import Box

RULES = {"ignore": ["*.env", "sub/secret", "gone/"], "readonly": ["cfg.json", "ro/", "*.lock"]}
NAMES = ("a.env", "deep/a.env", "sub/secret", "cfg.json", "deep/cfg.json", "x.lock")
MAKE = """
open("source", "w").close()
os.makedirs("deep"); os.makedirs("sub")
for name in NAMES:
    attempt(f"write {name}", write(name))
    attempt(f"rename {name}", lambda: os.rename("source", name))
    attempt(f"link {name}", lambda: os.link("source", name))
    attempt(f"symlink {name}", lambda: os.symlink("source", name))
    attempt(f"fifo {name}", lambda: os.mkfifo(name))
    attempt(f"unnamed {name}", link_of(os.open(".", os.O_TMPFILE | os.O_WRONLY, 0o644), name))
for name in ("gone", "ro", "deep/gone", "deep/ro"):
    attempt(f"mkdir {name}", lambda: os.mkdir(name))
    attempt(f"rename {name}", lambda: (os.mkdir("d"), os.rename("d", name))[1])
    os.path.isdir("d") and os.rmdir("d")
"""
OTHERS = """
attempt("file gone", write("gone")); attempt("other", write("a.envx")); attempt("below", write("deep/secret"))
say("there", sorted(os.listdir(".")))
"""


def test_F60_names_of_rules_are_not_made(box: Box) -> None:
    box.policy(**RULES)
    answers = box.attack(f"NAMES = {NAMES!r}" + MAKE + OTHERS)
    assert answers.pop("there") == ["a.envx", "deep", "gone", "source", "sub"]
    others = {name: answers.pop(name) for name in ("file gone", "other", "below")}
    assert others == dict.fromkeys(others, "ok")
    assert set(answers.values()) == {"EACCES"}
    assert box.refused("a.env") and box.refused("cfg.json") and box.refused("ro")
    reasons = {event["access"]["path"]: (event["reason"], event["rule"]) for event in box.record("AccessDenied")}
    assert reasons["a.env"][0] == "hidden" and reasons["cfg.json"][0] == "read-only" and reasons["a.env"][1]


def test_F61_without_the_rules_all_of_it_is_made(box: Box) -> None:
    """The positive control: the same calls."""
    box.policy()
    answers = box.attack("NAMES = ('cfg.json',)" + MAKE)
    assert answers["write cfg.json"] == answers["mkdir ro"] == answers["mkdir deep/gone"] == "ok"


def test_F62_a_copy_of_the_example_is_refused_at_once(box: Box) -> None:
    box.policy(ignore=[".env"])
    box.file(".env.example", "A=1\n")
    done = box.run("cp", ".env.example", ".env")
    assert done.returncode == 1 and "Permission denied" in done.stderr
    assert not (box.workspace / ".env").exists() and box.refused(".env")


def test_F63_git_works_under_rules_that_mean_other_files(box: Box) -> None:
    box.policy(**RULES)
    script = "git init -q . && git config user.email a@b.c && git config user.name n && git commit -qm x --allow-empty"
    done = box.run("sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert subprocess.run(["git", "-C", box.workspace, "-c", "safe.directory=*", "log"], check=False).returncode == 0


@pytest.mark.parametrize("name", ["new/file", "new.txt"])
def test_F64_file_rules_refuse_it_as_well(box: Box, name: str) -> None:
    work = str(box.workspace)
    box.policy(view="host", files={"allow_write": [work], "deny_write": [f"{work}/{name}"]})
    (box.workspace / "new").mkdir()
    script = f"attempt('denied', write({name!r})); attempt('other', write('other'))"
    assert box.attack(script) == {"denied": "EACCES", "other": "ok"}
    assert not (box.workspace / name).exists()
