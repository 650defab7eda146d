"""K: device nodes of the host, with and without the rule that names them."""

from __future__ import annotations

import os

from escape_box import Box

from membrane.host.facts import device_nodes

NODES = {"kvm": "/dev/kvm", "fuse": "/dev/fuse"}
OPEN = """
import fcntl, stat
for name in ("kvm", "fuse"):
    attempt(name, lambda: os.close(os.open(f"/dev/{name}", os.O_RDWR)))
attempt("version", lambda: say("answer", fcntl.ioctl(os.open("/dev/kvm", os.O_RDWR), 0xAE00)))
attempt("made", lambda: os.mknod("null", 0o666 | stat.S_IFCHR, os.makedev(1, 3)))
say("dev", sorted(os.listdir("/dev")))
"""
PLAIN = ["fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero"]


def _stopped(box: Box, name: str) -> None:
    done = box.run("true", options=("--device", name))
    assert done.returncode == 78 and f"there is no {name} here" in done.stderr, done


def test_K38_a_device_is_there_by_its_rule_only(box: Box) -> None:
    # The ioctl is KVM_GET_API_VERSION (<linux/kvm.h>).
    inside = box.attack(OPEN)
    outside = box.control(OPEN)
    assert (inside["kvm"], inside["fuse"], inside["dev"]) == ("ENOENT", "ENOENT", PLAIN)
    assert inside["made"] in ("EACCES", "EPERM")  # Landlock, which comes first, or the user namespace
    assert outside["made"] == ("ok" if os.geteuid() == 0 else "EPERM")
    if not device_nodes(["gpu"]):
        _stopped(box, "gpu")
    for name, path in NODES.items():
        if not os.path.exists(path):
            _stopped(box, name)
            continue
        answers = box.attack(OPEN, "--device", name)
        assert answers[name] == outside[name]  # by the rights of the caller, and for root by a node of its own
        assert answers["dev"] == sorted((*PLAIN, name))
        if name == "kvm":
            assert answers.get("answer") == outside.get("answer")
        assert [each for each in box.record("SessionStarted") if f"device {name}: {path}" in str(each["assurance"])]


def test_K38_with_the_view_of_the_host_too(box: Box) -> None:
    assert box.attack(OPEN, "--view", "host")["dev"] == PLAIN
