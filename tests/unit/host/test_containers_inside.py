"""host.containers: the command's own user and network namespace, with its ids and a locked copy of the view."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from forks import forked

from membrane.host import containers
from membrane.host import syscalls as sc
from membrane.plan.build import build
from membrane.plan.model import RANGE, HostFacts, SandboxPlan
from membrane.policy.model import Policy

pytestmark = pytest.mark.needs_kernel("user namespaces")
NONE = ((0, 0), (0, 0))


def plan(**fields: Any) -> SandboxPlan:
    uid, gid = os.getuid(), os.getgid()
    facts = HostFacts(uid, gid, "dev", False, "/home/dev", "/home/dev/.membrane", "/srv/app", "box", ())
    return build(Policy(), facts).replace(uid=uid, gid=gid, base_kuid=0).replace(**fields)


def test_each_id_has_its_own_number_in_the_outer_maps() -> None:
    assert containers.outer_maps(5, 6, plan(subordinate=NONE)) == (((5, 5, 1),), ((6, 6, 1),))
    made = containers.outer_maps(5, 6, plan(subordinate=((100, 50), (0, 0))))
    assert made == (((5, 5, 1), (100, 100, 50)), ((6, 6, 1),))


def refused(action: Any) -> str:
    try:
        action()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "done"


def inside(tmp_path: Path, ask: Any) -> Any:
    """What ``ask`` returns as the command, below a view with a mask over ``tree/hidden``."""
    tree = tmp_path / "tree"
    (tree / "hidden").mkdir(parents=True)
    (tree / "hidden" / "key").write_text("secret")
    made = plan(base_kuid=RANGE)  # a plain caller's takes newuidmap(1) (``tests/e2e/test_containers.py``)

    def body() -> Any:
        sc.unshare(sc.CLONE_NEWNS)
        sc.mount(None, "/", None, sc.MS_REC | sc.MS_PRIVATE)
        sc.mount("tmpfs", str(tree / "hidden"), "tmpfs", 0)
        outer = {name: os.readlink(f"/proc/self/ns/{name}") for name in ("user", "net", "mnt", "ipc", "uts", "cgroup")}
        descriptors = len(os.listdir("/proc/self/fd"))
        inner = containers.make(made)
        assert len(os.listdir("/proc/self/fd")) == descriptors + 2, "the two namespaces, and no child"
        try:
            os.waitpid(-1, os.WNOHANG)
            raise AssertionError("who made them is still there")
        except ChildProcessError:
            pass
        containers.enter(inner)
        return ask(tree, outer)

    return forked(body)


@pytest.mark.as_root
def test_the_command_is_root_in_namespaces_of_its_own(tmp_path: Path) -> None:
    def ask(_tree: Path, outer: dict[str, str]) -> tuple[int, int, set[str], str]:
        same = {name for name, link in outer.items() if os.readlink(f"/proc/self/ns/{name}") == link}
        return os.getuid(), os.getgid(), same, Path("/proc/self/uid_map").read_text().split("\n")[0]

    uid, gid, same, row = inside(tmp_path, ask)
    assert (uid, gid, same) == (0, 0, set())
    assert row.split() == ["0", "0", str(RANGE)]


@pytest.mark.as_root
def test_no_mask_can_be_uncovered_by_it(tmp_path: Path) -> None:
    def ask(tree: Path, _outer: dict[str, str]) -> tuple[str, str, list[str], str]:
        umount = refused(lambda: sc.umount(str(tree / "hidden"), 0))
        bind = refused(lambda: sc.mount(str(tree), "/tmp", None, sc.MS_BIND))  # without what covers it
        own = refused(lambda: sc.mount("tmpfs", str(tree), "tmpfs", 0))  # the control: it may mount
        return umount, bind, os.listdir(tree), own

    umount, bind, names, own = inside(tmp_path, ask)
    assert (umount, bind, own) == ("EINVAL", "EINVAL", "done")
    assert names == []


def test_a_range_of_subordinate_ids_is_bounded(tmp_path: Path) -> None:
    made = plan(base_kuid=RANGE)
    assert containers._own_maps(made) == (f"0 0 {RANGE}\n", f"0 0 {RANGE}\n")
    many = plan(subordinate=((200_000, 10 * RANGE), (300_000, 10)))
    uids, gids = containers._own_maps(many)
    assert uids.splitlines()[1] == f"1 200000 {RANGE - 1}" and gids.splitlines()[1] == "1 300000 10"


def test_a_refused_map_leaves_no_process(tmp_path: Path) -> None:
    made = plan(subordinate=((1, 1), (1, 1)))  # ids that the namespace above does not have

    def body() -> tuple[str, bool]:
        why = refused(lambda: containers.make(made))
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return why, True
        return why, False

    assert forked(body, sc.CLONE_NEWNS) == ("EPERM", True)
