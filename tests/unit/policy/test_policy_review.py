"""``workspace``, ``apply``, ``containers``: a project makes them tighter, and no file takes back what it says."""

from __future__ import annotations

import pytest

from membrane.errors import PolicyError
from membrane.policy.load import Result, Source, load
from membrane.policy.model import Policy

MODES = ("never", "ask", "safe", "all")  # from the tightest to the widest


def read(user: str, project: str = "", **options: object) -> Result:
    files = [Source("user", "u.yaml", user, "/dir"), Source("project", "p.yaml", project, "/dir")]
    return load(files, presets={"default": ""}, home="/home/u", options={**options, "directory": "/dir"})


def test_what_holds_when_nobody_says_anything() -> None:
    assert (Policy().workspace, Policy().apply) == ("live", "ask")


@pytest.mark.parametrize("user", MODES)
@pytest.mark.parametrize("project", MODES)
def test_a_project_may_only_say_less_about_applying(user: str, project: str) -> None:
    mine, theirs = f"apply: {user}\n", f"apply: {project}\n"
    if MODES.index(project) > MODES.index(user):
        with pytest.raises(PolicyError, match=f"p.yaml:1:8: apply: {user} is in force, and a project's file may only"):
            read(mine, theirs)
        with pytest.raises(PolicyError):
            read(mine, theirs, trust_workspace=True)  # nor by anybody's approval
        # The control: the same in a file of one's own.
        assert read(theirs).policy.apply == project
    else:
        found = read(mine, theirs)
        assert found.policy.apply == project and not found.widening


def test_a_project_may_turn_review_on_and_never_off() -> None:
    found = read("", "workspace: review\n")
    assert found.policy.workspace == "review" and not found.widening
    assert read("workspace: live\n", "workspace: review\n").policy.workspace == "review"
    assert read("", "workspace: live\n").policy.workspace == "live"
    with pytest.raises(PolicyError, match=r"p\.yaml:1:12: workspace: review is in force"):
        read("workspace: review\n", "workspace: live\n")


def test_what_a_person_types_holds() -> None:
    assert read("workspace: review\napply: never\n", "", live=True).policy.workspace == "live"
    assert read("apply: never\n", "apply: never\n", review=":new", apply="all").policy.apply == "all"


@pytest.mark.parametrize("mode", MODES)
def test_a_file_that_applies_what_it_does_not_keep_apart_is_refused(mode: str) -> None:
    with pytest.raises(PolicyError, match=r"u\.yaml:2:8: apply is about a reviewed workspace, and it is live in"):
        read(f"workspace: live\napply: {mode}\n")
    # Of two files it is an answer of the later one; a word for when something is reviewed is none.
    assert read(f"apply: {mode}\n", "workspace: live\n").policy.apply == mode


def test_a_project_never_brings_containers() -> None:
    with pytest.raises(PolicyError, match=r"p\.yaml:1:13: containers: none is in force"):
        read("", "containers: nested\n", trust_workspace=True)
    assert read("containers: nested\n").policy.containers == "nested"  # the control
    assert read("containers: nested\n", "containers: none\n").policy.containers == "none"


def test_a_project_never_chooses_the_backend_without_namespaces() -> None:
    with pytest.raises(PolicyError, match=r"p\.yaml:1:10: backend: native is in force"):
        read("", "backend: landlock\n", trust_workspace=True)
    with pytest.raises(PolicyError, match=r"p\.yaml:1:10: backend: native is in force"):
        read("", "backend: auto\n", trust_workspace=True)
    for weaker in ("auto", "landlock"):
        with pytest.raises(PolicyError, match=r"p\.yaml:1:10: backend: docker is in force"):
            read("backend: docker\n", f"backend: {weaker}\n", trust_workspace=True)
    assert read("backend: landlock\n").policy.backend == "landlock"  # the control
    assert read("backend: auto\n").policy.backend == "auto"
    assert read("backend: landlock\n", "backend: native\n").policy.backend == "native"
