"""Why the kernel may refuse namespaces here, by what can be seen of this process."""

from __future__ import annotations

import builtins
import io
import os
from typing import Any

import pytest

from membrane.host import surroundings

MOUNTED = "22 1 0:20 / /proc rw - proc proc rw\n23 0 8:1 / / rw - ext4 /dev/sda1 rw\n"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Files of /proc, and names that exist, by path; a fresh machine outside of everything."""
    files = {"/proc/self/status": "Name:\tx\nSeccomp:\t0\n", "/proc/self/mountinfo": MOUNTED}
    opened, exists = builtins.open, os.path.exists

    def fake_open(path: Any, *words: Any, **options: Any) -> Any:
        return io.StringIO(files[path]) if path in files else opened(path, *words, **options)

    monkeypatch.setattr(builtins, "open", fake_open)
    marks = ("/.dockerenv", "/run/.containerenv")
    monkeypatch.setattr(os.path, "exists", lambda path: path in files if path in marks else exists(path))
    for name in ("KUBERNETES_SERVICE_HOST", "MEMBRANE_SESSION"):
        monkeypatch.delenv(name, raising=False)
    return files


@pytest.mark.parametrize("mark", ["", "/.dockerenv"])
def test_without_a_filter_no_engine_forbids_it(machine: dict[str, str], mark: str) -> None:
    """The root of a chroot on a mount of its own looks like any other, and may be copied from an image."""
    if mark:
        machine[mark] = ""
    why, fix = surroundings.confined()
    assert "chroot" in why and "security module" in why and fix == surroundings.CHROOT_FIX
    mounting = surroundings.confined("mount proc")  # which an engine forbids without a filter too
    assert mounting == ((f"{surroundings.container()} forbids it", surroundings.CONTAINER_FIX) if mark else ("", ""))


def test_no_container_is_seen(machine: dict[str, str]) -> None:
    assert machine and surroundings.container() == ""


@pytest.mark.parametrize(
    ("mark", "kind"),
    [("/.dockerenv", "a container of Docker"), ("/run/.containerenv", "a container of Podman")],
)
def test_a_container(machine: dict[str, str], mark: str, kind: str) -> None:
    machine[mark] = ""
    machine["/proc/self/status"] = "Seccomp:\t2\n"
    assert surroundings.confined() == (f"{kind} forbids it", surroundings.CONTAINER_FIX)


def test_a_pod(machine: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    machine["/.dockerenv"] = ""
    assert surroundings.container() == "a pod of Kubernetes"


def test_a_filter_without_a_name(machine: dict[str, str]) -> None:
    machine["/proc/self/status"] = "Seccomp:\t2\nSeccomp_filters:\t1\n"
    assert surroundings.confined()[0] == "a seccomp filter forbids it"


def test_a_chroot(machine: dict[str, str]) -> None:
    machine["/proc/self/mountinfo"] = MOUNTED.splitlines()[0] + "\n"
    why, fix = surroundings.confined()
    assert "chroot" in why and "pivot_root" in fix


def test_another_membrane_comes_first(machine: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """By what a command can neither set nor hide: a filter, and a directory that only root could make outside."""
    machine["/proc/self/status"] = "Seccomp:\t2\n"
    machine["/.dockerenv"] = ""
    monkeypatch.setenv("MEMBRANE_SESSION", "abc")
    assert "another membrane" not in surroundings.confined()[0]  # without the directory a variable says nothing
    isdir = os.path.isdir
    monkeypatch.setattr(os.path, "isdir", lambda path: path == surroundings.MASK_SOURCE or isdir(path))
    assert surroundings.another() == "abc"
    assert "another membrane, session abc" in surroundings.confined()[0]
    machine["/proc/self/status"] = "Seccomp:\t0\n"
    assert surroundings.another() is None


def test_without_proc_nothing_is_claimed(machine: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_words: Any, **_options: Any) -> Any:
        raise FileNotFoundError

    assert machine
    monkeypatch.setattr(builtins, "open", none)
    assert surroundings.confined() == ("", "")
