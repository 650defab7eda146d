"""Which chown(2) succeeds without effect: root's own file, to other ids of the sandbox, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from membrane.plan.build import BASE_KUID
from membrane.tracer.owners import UNCHANGED, keeps_owner


def scope(
    uid: int = BASE_KUID,
    nested: bool = False,
    owned: tuple[str, ...] | None = None,
    ids: tuple[int, int] = (0, 0),
) -> Any:
    return SimpleNamespace(uid=uid, nested=nested, owned=owned, ids=ids)


def place(owner: int | None = BASE_KUID, path: bytes = b"/w/x") -> Any:
    return SimpleNamespace(path=path, status=None if owner is None else SimpleNamespace(st_uid=owner))


@pytest.mark.parametrize(
    ("uid", "gid", "keeps"),
    [
        (1000, 1000, True),
        (1000, UNCHANGED, True),
        (UNCHANGED, 1000, True),
        (0, 1000, True),
        (1000 | 1 << 32, 0, True),  # only the low half counts
        (0, 0, False),
        (UNCHANGED, UNCHANGED, False),
        (-1, 0, False),
        (UNCHANGED | 5 << 32, 0, False),
    ],
)
def test_by_the_ids(uid: int, gid: int, keeps: bool) -> None:
    assert keeps_owner(scope(), place(), uid, gid) is keeps


@pytest.mark.parametrize(("uid", "gid"), [(70, 71), (UNCHANGED, 71), (70, UNCHANGED)])
def test_its_own_ids_are_those_that_its_namespace_shows(uid: int, gid: int) -> None:
    assert not keeps_owner(scope(ids=(70, 71)), place(), uid, gid)
    assert keeps_owner(scope(), place(), uid, gid)  # the control: of another


def test_not_of_anybody_else_nor_for_anybody_else() -> None:
    assert keeps_owner(scope(), place(), 1000, 1000)  # the control
    assert not keeps_owner(scope(), place(BASE_KUID + 1), 1000, 1000)
    assert not keeps_owner(scope(), place(0), 1000, 1000)  # a file of the host's root
    assert not keeps_owner(scope(), place(None), 1000, 1000)
    assert not keeps_owner(scope(nested=True), place(), 1000, 1000)
    assert not keeps_owner(scope(uid=1000), place(1000), 1001, 1001)  # a plain user's sandbox


@pytest.mark.parametrize(("path", "keeps"), [(b"/w", True), (b"/w/\xff", True), (b"/usr/x", False), (b"/world", False)])
def test_with_capabilities_only_where_they_do_not_hold(path: bytes, keeps: bool) -> None:
    assert keeps_owner(scope(owned=("/w",)), place(path=path), 1000, 0) is keeps
    assert keeps_owner(scope(), place(path=path), 1000, 0)  # the control: without them it changes nothing anywhere
