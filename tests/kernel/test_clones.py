"""What is shown is what was looked at: a link that came on the way to it meanwhile is not followed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import children
import pytest

from membrane.host import clones
from membrane.host import syscalls as sc
from membrane.plan.model import Bind, Overlay


def shown(op: Bind | Overlay) -> list[str] | int:
    """The names in the tree that is cloned first, or the number of the error."""

    def body() -> list[str] | int:
        children.unshare(sc.CLONE_NEWNS)
        try:
            trees = clones.clone_trees(0, op, lambda _op: 0)
        except OSError as error:
            return error.errno or 0
        return sorted(os.listdir(f"/proc/self/fd/{trees[clones.tree_key(0)]}"))

    return children.run(body)


@pytest.mark.parametrize("kind", ["bind", "overlay"])
@pytest.mark.parametrize("turned", ["it", "above", "nothing"])
def test_a_link_that_was_put_on_the_way_is_not_followed(tmp_path: Path, kind: str, turned: str) -> None:
    (tmp_path / "a" / "tree").mkdir(parents=True)
    (tmp_path / "secrets" / "tree").mkdir(parents=True)
    (tmp_path / "a" / "tree" / "own").touch()
    (tmp_path / "secrets" / "tree" / "key").touch()
    place = str(tmp_path / "a" / "tree")
    if turned != "nothing":
        path = tmp_path / "a" / "tree" if turned == "it" else tmp_path / "a"
        path.rename(tmp_path / "moved")
        path.symlink_to(tmp_path / "secrets" / ("tree" if turned == "it" else ""))
    followed, direct = (
        shown(Bind(place, "/x", direct=direct) if kind == "bind" else Overlay("/x", (place, place), direct=direct))
        for direct in (False, True)
    )
    assert followed == (["own"] if turned == "nothing" else ["key"])  # the control
    assert direct == (["own"] if turned == "nothing" else errno.ESTALE)
