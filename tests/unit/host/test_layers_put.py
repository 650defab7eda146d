"""host.layers: our names among those of a tree, in an overlay and, where the kernel makes none, in a copy of binds."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from forks import forked

from membrane.host import layers
from membrane.host import syscalls as sc
from membrane.plan.model import Layer

pytestmark = pytest.mark.needs_kernel("overlayfs in a user namespace")


def seen(tmp_path: Path, names: tuple[str, ...], refused: int = 0) -> dict[str, str]:
    """What the mounted tree holds afterwards; ``refused``: the errno with which the overlay is refused."""
    tree, scratch = tmp_path / "tree", tmp_path / "scratch"
    (tree / "sub").mkdir(parents=True)
    scratch.mkdir()
    (tree / "file").write_text("theirs")
    (tree / "sub/inner").write_text("theirs")
    (tree / "link").symlink_to("file")
    mount = sc.mount

    def without_overlay(source: object, target: str, kind: str | None, flags: int, data: str = "") -> None:
        if kind == "overlay":
            raise OSError(refused, os.strerror(refused))
        mount(source, target, kind, flags, data)  # type: ignore[arg-type]

    def body() -> dict[str, str]:
        mount("tmpfs", str(scratch), "tmpfs", 0)
        mount(str(tree), str(tree), None, sc.MS_BIND | sc.MS_REC)
        mount(None, str(tree), None, sc.MS_REMOUNT | sc.MS_BIND | sc.MS_RDONLY)
        if refused:
            sc.mount = without_overlay  # type: ignore[assignment]
        place = os.open(tree, os.O_PATH | os.O_DIRECTORY)
        layers.put(Layer(str(tree), names), f"{scratch}/own", str(tree), place)
        found = {}
        for name in ("file", "sub/inner", "link", *names):
            path = tree / name
            found[name] = os.readlink(path) if path.is_symlink() else path.read_text()
        for what, action in (
            ("write", lambda: (tree / "file").write_text("x")),
            ("make", (tree / "n").mkdir),
        ):
            try:
                action()
                found[what] = "done"
            except OSError as error:
                found[what] = errno.errorcode[error.errno or 0]
        return found

    answer = forked(body, sc.CLONE_NEWNS)
    assert isinstance(answer, dict)
    assert (tree / "file").read_text() == "theirs" and not (tree / "new").exists(), "the host's tree is as it was"
    return answer


@pytest.mark.parametrize("refused", [0, errno.EINVAL, errno.EPERM])
def test_the_names_of_both_are_there_and_nothing_can_be_written(tmp_path: Path, refused: int) -> None:
    found = seen(tmp_path, ("new", "sub/ours", "deep/er/ours"), refused)
    assert {name: found[name] for name in ("file", "sub/inner", "link")} == {
        "file": "theirs", "sub/inner": "theirs", "link": "file"
    }  # fmt: skip
    assert [found[name] for name in ("new", "sub/ours", "deep/er/ours")] == ["", "", ""]
    assert (found["make"], found["write"]) == ("EROFS", "EROFS")


def test_ours_comes_before_the_trees(tmp_path: Path) -> None:
    assert seen(tmp_path, ("file",))["file"] == ""


def test_another_refusal_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="Input/output error"):
        seen(tmp_path, ("new",), errno.EIO)
