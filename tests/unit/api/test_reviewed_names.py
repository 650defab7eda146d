"""api.reviewed: the name of a change set, what a set that is gone means, and work that cannot be broken off."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import pytest

from membrane.api import reviewed
from membrane.api.policy import Policy
from membrane.changes import store
from membrane.errors import PolicyError


def test_a_live_workspace_has_no_name_and_the_policy_is_as_it_was() -> None:
    policy = Policy()
    assert reviewed.named(policy, False) == (policy, "")


@pytest.mark.parametrize(
    ("policy", "review", "name"),
    [
        ({}, "mine", "mine"),
        ({"workspace": "review"}, "mine", "mine"),
        ({"workspace": "review"}, False, r"[0-9a-f]{12}"),
        ({}, True, r"[0-9a-f]{12}"),
    ],
)
def test_a_reviewed_one_is_named_in_the_policy(policy: dict[str, Any], review: bool | str, name: str) -> None:
    made, found = reviewed.named(Policy.from_dict(policy), review)
    assert re.fullmatch(name, found)
    assert (made.rules.workspace, made.rules.change_set) == ("review", found)
    assert reviewed.named(made, False)[1] == found, "a second sandbox with this policy works on the same set"


@pytest.mark.parametrize("name", ["../x", "-a", "a b", "a" * 65, "x\n"])
def test_what_cannot_be_a_name_is_refused(name: str) -> None:
    with pytest.raises(PolicyError, match="cannot name a change set"):
        reviewed.named(Policy(), name)


def test_a_set_that_is_gone_is_empty_only_after_its_sandbox_was_open() -> None:
    def gone() -> tuple[()]:
        raise store.NotThere("use the change set", "there is none")

    assert reviewed.without_set(gone, True, ())() == ()
    for was_open, empty in ((False, ()), (True, reviewed.MISSING)):
        with pytest.raises(store.NotThere):
            reviewed.without_set(gone, was_open, empty)()

    def other() -> tuple[()]:
        raise store.ChangeSetError("use the change set", "it cannot be used")

    with pytest.raises(store.ChangeSetError):
        reviewed.without_set(other, True, ())()


def test_a_cancellation_waits_for_the_end_of_what_has_begun() -> None:
    begun, go_on, done = threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        begun.set()
        go_on.wait(60)
        done.append("whole")

    async def use() -> None:
        task = asyncio.ensure_future(reviewed.whole(asyncio.to_thread(work)))
        await asyncio.to_thread(begun.wait, 60)
        for _again in range(3):  # as of a timeout, and then of the group that it is in
            task.cancel()
            await asyncio.sleep(0)
            assert not task.done() and not done
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == ["whole"]

    asyncio.run(use())
