"""Forge presets: whatever groups and projects are called, nothing is written to another one than the preset names."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import membrane.policy
from membrane.policy.decide import Decider
from membrane.policy.load import Source, load
from membrane.policy.model import Allow, Deny, HttpRequest, Malformed
from membrane.policy.url_paths import canonical_path

DIRECTORY = Path(membrane.policy.__file__).parent / "presets"
PRESETS = {str(path.relative_to(DIRECTORY))[:-5]: path.read_text() for path in DIRECTORY.rglob("*.yaml")}
FORGES = [
    ("github-read", "github.com", ""),
    ("github-push: [me/mine]", "github.com", "me/mine"),
    ("gitlab-read", "gitlab.com", ""),
    ("gitlab-push: [me/sub/mine]", "gitlab.com", "me/sub/mine"),
]
# Names that patterns for git's URLs may look for, and pieces of others.
WORDS = ["git-upload-pack", "git-receive-pack", "info", "refs", "lfs", "objects", "batch", "locks", "api", "v4", "-"]
PIECES = [*WORDS, "me", "sub", "mine", ".git", "projects", "repository", "x", "..", ".", "", "%2F", "%2e", "*", "#"]
NAME = st.lists(st.sampled_from(PIECES), min_size=1, max_size=2).map("".join)
GROUPS = st.lists(st.one_of(NAME, st.sampled_from(["me", "me/mine", "me/sub/mine"])), max_size=5)
METHOD = st.sampled_from(["POST", "PUT", "PATCH", "DELETE"])


@pytest.mark.parametrize(("preset", "host", "mine"), FORGES)
def test_a_push_goes_to_the_named_repository_only(preset: str, host: str, mine: str) -> None:
    wanted = f"{{{preset}}}" if ":" in preset else preset
    decider = Decider(load([Source("user", "u", f"presets: [{wanted}]")], presets=PRESETS).policy)

    @settings(deadline=None, max_examples=600)
    @given(GROUPS, METHOD, st.sampled_from(["/git-receive-pack", ".git/git-receive-pack", "/git-receive-pack/"]))
    def judged(groups: list[str], method: str, end: str) -> None:
        try:
            path = canonical_path("/" + "/".join(groups) + end, slashes=True)
        except Malformed:
            return
        if isinstance(decider.decide(HttpRequest(host, 443, "https", method, path)), Allow):
            # The API of the named project takes paths of its own; it is spelled with an encoded slash.
            api = f"/api/v4/projects/{mine.replace('/', '%2F')}/"
            assert mine and (
                path.startswith(api) or path in (f"/{mine}/git-receive-pack", f"/{mine}.git/git-receive-pack")
            )

    judged()
    if mine:  # the control
        push = HttpRequest(host, 443, "https", "POST", f"/{mine}.git/git-receive-pack")
        assert isinstance(decider.decide(push), Allow)


@pytest.mark.parametrize(("preset", "host", "mine"), FORGES)
def test_nothing_below_a_call_of_git_is_open(preset: str, host: str, mine: str) -> None:
    """What ends a pattern ends the path: a group named like a call of git opens nothing."""
    wanted = f"{{{preset}}}" if ":" in preset else preset
    decider = Decider(load([Source("user", "u", f"presets: [{wanted}]")], presets=PRESETS).policy)

    @settings(deadline=None, max_examples=300)
    @given(GROUPS, st.sampled_from(["git-upload-pack", "info/lfs/objects/batch", "git-receive-pack"]), NAME)
    def judged(groups: list[str], call: str, below: str) -> None:
        try:
            path = canonical_path("/" + "/".join([*groups, call, below]))
        except Malformed:
            return
        calls = ("/git-upload-pack", "/info/lfs/objects/batch", "/git-receive-pack")
        if not path.endswith(calls) and not path.startswith(("/api/", f"/{mine}/")):
            assert not isinstance(decider.decide(HttpRequest(host, 443, "https", "POST", path)), Allow)

    judged()


@pytest.mark.parametrize("call", ["issues/1/move", "issues/1/clone", "milestones/1/promote", "labels/a/promote"])
def test_a_call_that_writes_to_another_project_is_closed(call: str) -> None:
    decider = Decider(load([Source("user", "u", "presets: [{gitlab-push: [me/sub/mine]}]")], presets=PRESETS).policy)
    method = "PUT" if call.startswith("labels") else "POST"
    for project in ("me%2Fsub%2Fmine", "me%2fsub%2Fmine"):
        path = canonical_path(f"/api/v4/projects/{project}/{call}", slashes=True)
        refused = decider.decide(HttpRequest("gitlab.com", 443, "https", method, path))
        assert isinstance(refused, Deny) and refused.reason == "denied by rule"
        other = canonical_path(path.rpartition("/")[0], slashes=True)  # the control
        assert isinstance(decider.decide(HttpRequest("gitlab.com", 443, "https", method, other)), Allow)
