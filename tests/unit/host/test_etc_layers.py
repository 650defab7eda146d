"""Files of ours among those of a host tree: by overlayfs and name by name, which must look the same."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from test_view import host, inside, plan, read, result, touch  # noqa: F401

from membrane.host import syscalls as sc
from membrane.plan.model import Bind, Layer, Mask

pytestmark = pytest.mark.needs_kernel("user namespaces")

NAMES = ("own/deep/new", "bin/ours", "bin/tool")


@pytest.fixture(params=["overlay", "joined"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """``joined``: the kernel makes no overlayfs, as in a container."""
    mount = sc.mount

    def refuses(source: Any, target: Any, kind: Any, *rest: Any) -> None:
        if kind == "overlay":
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        mount(source, target, kind, *rest)

    if request.param == "joined":
        monkeypatch.setattr(sc, "mount", refuses)
    return str(request.param)


def made(host: Path) -> tuple[object, ...]:  # noqa: F811
    (host / "tree" / "link").symlink_to("bin/tool")
    (host / "tree" / "secret").write_text("secret")
    tree = Bind(f"{host}/tree", "/tree", make=True)
    return plan(host, tree, Layer("/tree", NAMES), Mask("/tree/secret", False))


def test_ours_are_there_beside_those_of_the_tree(host: Path, way: str) -> None:  # noqa: F811
    def look() -> list[Any]:
        found = sorted(os.path.join(top, name)[6:] for top, dirs, names in os.walk("/tree") for name in (*dirs, *names))
        return [found, os.readlink("/tree/link"), Path("/tree/bin/tool").read_text(), os.stat("/tree").st_mode & 0o777]

    found, link, tool, mode = inside(made(host), look)
    assert found == ["bin", "bin/ours", "bin/tool", "link", "own", "own/deep", "own/deep/new", "secret"]
    assert link == "bin/tool" and mode == 0o555
    assert tool == "", "ours stands before the one of the tree"
    assert (host / "tree" / "bin" / "tool").read_text() == "tool" and not (host / "tree" / "own").exists()


def test_nothing_of_it_can_be_changed_and_masks_hold(host: Path, way: str) -> None:  # noqa: F811
    def attempts() -> list[str]:
        return [
            *(result(touch(f"/tree/{name}")) for name in ("x", "own/x", "own/deep/new", "bin/ours")),
            result(lambda: os.unlink("/tree/own/deep/new")),
            result(lambda: os.rename("/tree/own", "/tree/other")),
            result(lambda: os.chmod("/tree/bin/ours", 0o666)),
            result(read("/tree/secret")),
            result(read("/tree/bin/ours")),
        ]

    answers = inside(made(host), attempts)
    assert answers[-2:] == ["EACCES", "ok"]
    assert set(answers[:-2]) <= {"EROFS", "EBUSY", "EACCES"}, answers
