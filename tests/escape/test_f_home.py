"""F: a run that takes the mount point of another one's workspace away, in a home that both have."""

from __future__ import annotations

import copy

import pytest
from escape_box import Box, inside

ANSWER = """
HOME = os.environ["HOME"]
TREE = HOME + "/projects/"
WAYS = {
    "rmdir": lambda: os.rmdir(TREE + "app"),
    "rename": lambda: os.rename(TREE + "app", TREE + "taken"),
    "replace": lambda: os.rename(TREE + "empty", TREE + "app"),
    "exchange": exchange(TREE + "empty", TREE + "app"),
    "parent": lambda: os.rename(HOME + "/projects", HOME + "/taken"),
    "exchange parent": exchange(HOME + "/empty", HOME + "/projects"),
}
def answer(line):
    if line == "ready":
        return line
    if line == "where":
        return open(TREE + "app/mine").read()
    for place in (TREE + "app", TREE + "empty", HOME + "/empty"):
        os.makedirs(place, exist_ok=True)
    return str(attempt("", WAYS[line]))
"""
WAYS = ("rmdir", "rename", "replace", "exchange", "parent", "exchange parent")


@pytest.fixture
def other(home_box: Box) -> Box:
    """Another workspace of the same user, with the same home in the sandbox."""
    other = copy.copy(home_box)
    other.workspace = home_box.home / "elsewhere"
    other.events = home_box.events.with_name("other.jsonl")
    other.workspace.mkdir()
    home_box.policy(home="shared", presets=[])
    home_box.file("mine", "mine")
    return other


@pytest.mark.parametrize("first", ["the attacker", "the other"])
def test_F140_no_run_takes_the_workspace_of_another_away(home_box: Box, other: Box, first: str) -> None:
    boxes = (other, home_box) if first == "the attacker" else (home_box, other)
    with inside(boxes[0], ANSWER) as one:
        assert one("ready") == "ready"
        with inside(boxes[1], ANSWER) as two:
            attack, victim = (one, two) if first == "the attacker" else (two, one)
            assert victim("where") == "mine"
            assert {way: attack(way) for way in WAYS} == dict.fromkeys(WAYS, "EBUSY")
            assert victim("where") == "mine"
    # The control: where no other run has it, each of them is done.
    with inside(other, ANSWER) as attack:
        assert {way: attack(way) for way in WAYS} == dict.fromkeys(WAYS, "ok")
    assert not list((home_box.state / "places").iterdir()), "a run has left its record"


def test_F141_nor_with_user_namespaces_of_its_own(home_box: Box, other: Box) -> None:
    """A copy of the view would not get what is mounted later (mount_namespaces(7), MS_PRIVATE): there is none."""
    home_box.policy(home="shared", presets=[], user_namespaces="allowed")
    own = """
CLONE_NEWUSER, CLONE_NEWNS = 0x10000000, 0x20000
WAYS["both"] = lambda: syscall((272, 97), CLONE_NEWUSER | CLONE_NEWNS)
WAYS["user"] = lambda: syscall((272, 97), CLONE_NEWUSER)
WAYS["mounts"] = lambda: syscall((272, 97), CLONE_NEWNS)
"""
    with inside(other, ANSWER + own) as attack:
        assert {way: attack(way) for way in ("both", "user", "mounts")} == {
            "both": "EPERM",
            "user": "ok",
            "mounts": "EPERM",
        }
        with inside(home_box, ANSWER) as victim:
            assert victim("where") == "mine"
            assert {way: attack(way) for way in WAYS} == dict.fromkeys(WAYS, "EBUSY")
            assert victim("where") == "mine"


def test_F142_a_deep_place_is_as_many_mounts_as_it_has_directories(home_box: Box, other: Box) -> None:
    """With mounts that are peers it would be 2 to the power of their number, and the kernel bounds it (sysctl/fs.rst,
    mount-max).
    """
    count = "def answer(line): return str(len(open('/proc/self/mountinfo').readlines()))"
    deep = home_box.home / "p/a/b/c/d/e/f"
    deep.mkdir(parents=True)
    with inside(other, count) as ask:
        before = int(ask(""))
        assert home_box.run("true", workspace=deep).returncode == 0
        assert int(ask("")) - before == 7


def test_F143_a_mount_of_a_rule_stays_at_its_path(home_box: Box) -> None:
    """At another one its protected names would be refused only after they were made."""
    tree = home_box.home / "data" / "deep"
    tree.mkdir(parents=True)
    home_box.policy(presets=[], mounts=[{"path": str(tree), "mode": "rw"}])
    script = """
home = os.environ["HOME"]
os.mkdir(home + "/control")
attempt("control", lambda: os.rename(home + "/control", home + "/moved"))
attempt("parent", lambda: os.rename(home + "/data", home + "/taken"))
attempt("exchange", exchange(home + "/data", home + "/moved"))
attempt("name", lambda: os.mkdir(home + "/data/deep/.vscode"))
attempt("plain", lambda: os.mkdir(home + "/data/deep/plain"))
"""
    results = {"control": "ok", "parent": "EBUSY", "exchange": "EBUSY", "name": "EACCES", "plain": "ok"}
    assert home_box.attack(script) == results
