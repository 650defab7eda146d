"""Rules for the whole suite: what may be left out, and how that is said.

Theory of operation
-------------------
A test may be left out for two reasons only, and both are written as a marker:

* ``needs_kernel(feature)``: the feature is tried here, in a throw-away child; without it the test is skipped and the
  skip names the feature.  Any other skip is a failure in CI (``CI=true``).
* ``needs_tool(program)``, ``as_root``, ``as_user``: the test is about a program or a caller that this run does not
  have; it is deselected, and pytest counts it.
"""

from __future__ import annotations

import fcntl
import functools
import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator
from typing import Any

import hypothesis
import pytest

# Feature -> a command that succeeds exactly where the kernel (and its settings) let this caller have it.
_IN_USER_NAMESPACE = ("unshare", "--user", "--map-root-user")
KERNEL_FEATURES: dict[str, tuple[str, ...]] = {
    "user namespaces": (*_IN_USER_NAMESPACE, "true"),
    "network namespaces": (*_IN_USER_NAMESPACE, "--net", "true"),
    "veth": (*_IN_USER_NAMESPACE, "--net", "ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1"),
    "overlayfs in a user namespace": (
        *_IN_USER_NAMESPACE,
        "--mount",
        "sh",
        "-c",
        "mount -t tmpfs t /tmp && cd /tmp && mkdir l u w m && mount -t overlay -olowerdir=l,upperdir=u,workdir=w o m",
    ),
    # landlock_create_ruleset(2), asked for its version; the number is the same on every architecture since 5.13.
    "landlock": (sys.executable, "-c", "import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall(444, None, 0, 1) < 1)"),
    "landlock without TCP": (
        sys.executable,
        "-c",
        "import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall(444, None, 0, 1) < 4)",
    ),
    "cgroups for containers": (
        "sh",
        "-c",
        "for d in pids .; do t=$(mktemp -d -p /sys/fs/cgroup/$d mb.XXXXXX) && rmdir $t && exit; done; exit 1",
    ),
    "subordinate ids": ("unshare", "--user", "--map-auto", "--map-root-user", "true"),
    "time namespaces": ("unshare", "--time", "true"),
    "ipv6": ("test", "-e", "/proc/net/if_inet6"),
    "sockets that take no descriptors": (  # SO_PASSRIGHTS, Linux 6.16
        sys.executable,
        "-c",
        "import socket; socket.socket(socket.AF_UNIX).getsockopt(socket.SOL_SOCKET, 83)",
    ),
    "lists of children": ("test", "-e", "/proc/thread-self/children"),
    "x86_64, on whose stack callers are found": (
        sys.executable,
        "-c",
        "import os; assert os.uname().machine == 'x86_64'",
    ),
}


@functools.cache
def kernel_has(feature: str) -> bool:
    """Whether ``feature`` works here, found by trying it."""
    return subprocess.run(KERNEL_FEATURES[feature], capture_output=True, timeout=120, check=False).returncode == 0


def pytest_configure(config: pytest.Config) -> None:
    # How long an example takes says something about the machine and its other work, nothing about the code.  A list
    # that a test has of its own replaces this one, and so names ``too_slow`` as well.
    #
    # CI runs the same examples for the same code, so what it says of a change is about that change; who works on it
    # gets new ones.
    slow = [hypothesis.HealthCheck.too_slow]
    fixed = bool(os.environ.get("CI"))
    hypothesis.settings.register_profile("any machine", deadline=None, suppress_health_check=slow, derandomize=fixed)
    hypothesis.settings.load_profile("any machine")
    for line in (
        "needs_kernel(feature): skipped where the kernel lacks the feature; the only skip there is",
        "needs_tool(program): deselected where the program is not installed",
        "as_root: about a caller who is root; deselected otherwise",
        "as_user: about a caller who is not root; deselected otherwise",
        "floods: fills queues of the machine; it waits for tests that are not_beside_floods, in whichever worker",
        "not_beside_floods: needs room in those queues; one such test runs at a time",
    ):
        config.addinivalue_line("markers", line)


def pytest_sessionstart(session: pytest.Session) -> None:
    """The first run of root pins the tracing programs for all later ones (docs/trace-ebpf.md), which may need a mount.

    That is done before the first test: many compare the mounts of the host before and after.
    """
    if _shares_programs(session):
        from membrane.tracer import ebpf

        source = ebpf.best_source()
        if not isinstance(source, str):
            source.close()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """The suite takes the programs away again."""
    from membrane.tracer import pins

    if _shares_programs(session) and os.path.isdir(pins.STATE):
        pins.remove()


def _shares_programs(session: pytest.Session) -> bool:
    """Root's, and the controller's alone: it starts before its workers and ends after them."""
    return os.getuid() == 0 and not hasattr(session.config, "workerinput")


def _applies(item: pytest.Item) -> bool:
    if any(shutil.which(mark.args[0]) is None for mark in item.iter_markers("needs_tool")):
        return False
    return not item.get_closest_marker("as_user" if os.getuid() == 0 else "as_root")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    away = [item for item in items if not _applies(item)]
    if away:
        config.hook.pytest_deselected(items=away)
        items[:] = [item for item in items if _applies(item)]


def pytest_collection_finish() -> None:
    """What is there before the first test stays until the end: no collection of garbage has to look at it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _directories_above_keep_their_modes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a test of root closes or opens there, every later test meets."""
    base = tmp_path_factory.getbasetemp()
    before = [(each, each.stat().st_mode) for each in base.parents]
    yield
    assert [(each, each.stat().st_mode) for each in base.parents] == before


def _settings() -> dict[str, bytes]:
    """What sysctl(8) sets for the whole machine; the number of the last process changes by itself."""
    out = {}
    for top in ("fs", "kernel", "user", "vm"):
        for directory, _, names in os.walk(f"/proc/sys/{top}"):
            for path in (f"{directory}/{name}" for name in names if name != "ns_last_pid"):
                try:
                    if os.stat(path).st_mode & 0o222:
                        with open(path, "rb") as file:
                            out[path] = file.read()
                except OSError:
                    pass  # is written only, or is not there for this machine
    return out


@pytest.fixture(autouse=True, scope="module")
def _settings_of_the_machine_stay() -> Iterator[None]:
    """The control of an attack is root on the machine, and would change them for good (or another worker's)."""
    before = _settings() if os.geteuid() == 0 else {}
    yield
    assert not before or _settings() == before


@pytest.fixture(autouse=True)
def _floods_and_others_take_turns(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """xdist's groups would need one worker for all of them."""
    floods = request.node.get_closest_marker("floods") is not None
    if not floods and request.node.get_closest_marker("not_beside_floods") is None:
        yield
        return
    base = tmp_path_factory.getbasetemp()
    place = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base  # of all workers
    with open(place / "floods.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH if floods else fcntl.LOCK_EX)
        yield


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs_kernel"):
        if not kernel_has(mark.args[0]):
            item.stash[_EXPECTED] = True
            pytest.skip(f"this kernel has no {mark.args[0]}")


_EXPECTED = pytest.StashKey[bool]()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    outcome = yield
    report = outcome.get_result()
    unexpected = report.skipped and not hasattr(report, "wasxfail") and not item.stash.get(_EXPECTED, False)
    if unexpected and os.environ.get("CI") == "true":
        report.outcome = "failed"
        report.longrepr = f"unexpected skip: {report.longrepr}"


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, None]:
    outcome = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get("CI") == "true":
        report.outcome = "failed"
        report.longrepr = f"unexpected skip of a whole module: {report.longrepr}"
