"""What a person is told when an overlay cannot be had."""

from __future__ import annotations

import errno

import pytest

from membrane.host import facts, overlay


@pytest.mark.parametrize(
    ("kind", "number", "said", "fix"),
    [
        ("overlay", errno.EINVAL, "would be kept on an overlayfs (/s)", "set MEMBRANE_HOME"),
        ("ext4", errno.ENODEV, "this kernel has no overlayfs", "modprobe overlay"),
        ("ext4", errno.EPERM, "does not mount overlayfs in a user namespace", "--live"),
        ("vfat", errno.EINVAL, "changes are kept on vfat", "set MEMBRANE_HOME"),
        ("ext4", errno.ENOSPC, "ENOSPC: mount overlay", "--live"),
    ],
)
def test_why_not(monkeypatch: pytest.MonkeyPatch, kind: str, number: int, said: str, fix: str) -> None:
    monkeypatch.setattr(facts, "file_system", lambda _path: kind)
    error = overlay.why(f"{errno.errorcode[number]}: mount overlay", number, "/w", "/s")
    assert error.exit_code == 78
    lines = error.lines()
    assert lines[0].startswith("cannot mount an overlay /w: ")
    assert said in lines[0]
    assert fix in "\n".join(lines[1:])
    assert "use the workspace live: --live" in lines[-1]


def test_of_a_system_tree_it_is_said_what_that_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "file_system", lambda _path: "ext4")
    lines = overlay.why("EINVAL: mount_setattr", errno.EINVAL, "/usr", "/s", system=True).lines()
    assert "the tree one with id maps (not overlayfs or NFS)" in lines[0] and "leave --system out" in lines[-1]
