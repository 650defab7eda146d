"""Which control groups a command that is root in a namespace of the caller's could stop or kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from membrane.host import facts

pytestmark = pytest.mark.as_user  # everything is root's to write


class Machine:
    """Files as proc(5) has them, and a directory in the place of each hierarchy."""

    def __init__(self, directory: Path, kind: str, options: str, own: str, root: str = "/") -> None:
        self.proc, self.mounted = directory / "proc", directory / "cg roup"
        self.proc.mkdir()
        (self.mounted / "a" / "b").mkdir(parents=True)
        place = str(self.mounted).replace(" ", "\\040")
        (self.proc / "mountinfo").write_text(
            "20 1 8:1 / / rw - ext4 /dev/vda rw\n"
            f"31 20 0:26 {root} {place} rw,relatime master:9 - {kind} cgroup {options}\n"
        )
        (self.proc / "cgroup").write_text(f"3:name=systemd:/other\n{own}\n")
        for group in (self.mounted, self.mounted / "a", self.mounted / "a" / "b"):
            (group / "cgroup.kill").touch(0o400)
        self.close(self.mounted, self.mounted / "a", self.mounted / "a" / "b")

    @staticmethod
    def close(*groups: Path) -> None:
        for group in groups:
            group.chmod(0o500)

    def found(self) -> str:
        out = facts.open_cgroup(str(self.proc))
        for group in (self.mounted, self.mounted / "a", self.mounted / "a" / "b"):
            group.chmod(0o700)
        return out.removeprefix(str(self.mounted))


V1, V2 = ("cgroup", "rw,cpu,cpuacct", "7:cpu,cpuacct:/a"), ("cgroup2", "rw,memory_recursiveprot", "0::/a")
DELEGATED = ("cgroup2", "rw,nsdelegate", "0::/a")


@pytest.mark.parametrize(
    ("machine", "writable", "found"),
    [
        (V2, "", ""),  # the control: of root's
        (V1, "", ""),
        (V2, "a", "/a"),
        (V1, "a", "/a"),
        (V2, "a/cgroup.kill", "/a"),  # by a rule of udev or an ACL
        (DELEGATED, "a", ""),  # the kernel takes no write from inside
        (DELEGATED, "a/b", "/a/b"),  # but below
        (V2, "a/b/cgroup.kill", "/a/b"),
        (V2, "cgroup.kill", ""),  # above: no namespace shows it
        (("cgroup2", "rw", "0::/"), "a/b", "/a/b"),
        (("cgroup", "rw,name=systemd", "0::/a"), "a", ""),  # of another hierarchy
        (("cgroup", "rw,cpu", "7:cpu,cpuacct:/a"), "a", ""),
        (("cgroup2", "rw", "0::/x", "/x"), "a", "/a"),  # a mount that begins at the own group
        (("cgroup2", "rw", "0::/xy", "/x"), "a", ""),
    ],
)
def test_what_is_the_callers_to_write(tmp_path: Path, machine: tuple[str, str, str], writable: str, found: str) -> None:
    made = Machine(tmp_path, *machine)
    if writable:
        (made.mounted / writable).chmod(0o700)
    assert made.found() == found


def test_more_groups_than_are_looked_at_count_as_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Machine(tmp_path, *V2)
    monkeypatch.setattr(facts, "MOST_GROUPS", 1)
    assert made.found() == "/a/b"
