"""Devices by name: which mounts they become, and what stops the run."""

from __future__ import annotations

import pytest

from membrane.errors import PolicyError
from membrane.plan.build import build
from membrane.plan.devices import NODES, operations
from membrane.plan.model import Bind, DeviceFact, Devices, Directory, HostFacts, Symlink, Tmpfs
from membrane.plan.mounts import MASK_SOURCE, as_found
from membrane.policy.model import DeviceRule, Origin, Policy

HERE = Origin("user", "config.yaml", 3)
CARD = "/sys/devices/pci0000:00/0000:00:02.0"
RENDER = DeviceFact("gpu", "/dev/dri/renderD128", "226:128", f"{CARD}/drm/renderD128")
SECOND = DeviceFact("gpu", "/dev/dri/card0", "226:0", f"{CARD}/drm/card0")
KFD = DeviceFact("gpu", "/dev/kfd", "234:0", "/sys/devices/virtual/kfd/kfd")
KVM = DeviceFact("kvm", "/dev/kvm", "10:232", "/sys/devices/virtual/misc/kvm")
FACTS = HostFacts(1000, 1000, "u", False, "/home/u", "/home/u/.membrane", "/home/u/w", "box", ())


def policy(*names: str) -> Policy:
    return Policy(devices=tuple(DeviceRule(name, HERE) for name in names))  # type: ignore[arg-type]


def test_each_node_is_a_bind_of_its_own_and_a_card_is_found_in_sysfs() -> None:
    facts = FACTS.replace(devices=(SECOND, RENDER, KFD))
    ops = operations(policy("gpu"), facts)
    nodes = [op for op in ops if isinstance(op, Bind) and op.device]
    assert [op.target for op in nodes] == ["/dev/dri/card0", "/dev/dri/renderD128", "/dev/kfd"]
    assert all(op.writable and op.make and op.source == op.target and "config.yaml:3" in op.origin for op in nodes)
    shown = [op for op in ops if isinstance(op, Bind) and not op.device]
    assert [(op.source, op.writable) for op in shown] == [(CARD, False), ("/sys/devices/virtual/kfd/kfd", False)]
    links = {op.target: op.to for op in ops if isinstance(op, Symlink)}
    assert links["/sys/dev/char/226:128"] == f"{CARD}/drm/renderD128" and len(links) == 3
    assert [op.target for op in ops if isinstance(op, Directory)] == ["/sys/dev/char"]


@pytest.mark.parametrize("view", ["project", "host"])
def test_they_come_after_the_private_dev_and_what_root_needs_for_its_own(view: str) -> None:
    made = build(policy("kvm").replace(view=view), FACTS.replace(devices=(KVM,)))
    kinds = [(type(op), op.target) for op in made.mounts]
    place = kinds.index((Bind, "/dev/kvm"))
    assert place > kinds.index((Devices, "/dev")) and place > kinds.index((Tmpfs, MASK_SOURCE))
    assert not [op for op in made.mounts if "sys/devices/virtual" in op.target]  # a card's only
    (rule,) = [each for each in made.bindings if each.rule.startswith("device")]
    assert rule.rule == "device kvm: /dev/kvm" and rule.status == "bound" and "config.yaml:3" in rule.origin


def test_without_a_rule_no_mount_of_the_plan_lets_a_device_be_used() -> None:
    assert not [op for op in build(Policy(), FACTS).mounts if isinstance(op, Bind) and op.device]


@pytest.mark.parametrize("name", NODES)
def test_a_name_of_which_there_is_no_node_stops_the_run(name: str) -> None:
    with pytest.raises(PolicyError) as caught:
        build(policy(name), FACTS.replace(devices=tuple(each for each in (RENDER, KVM) if each.name != name)))
    assert f"there is no {name} here" in caught.value.cause and NODES[name][0] in caught.value.cause
    assert caught.value.where == str(HERE) and caught.value.fix


def test_a_node_that_the_caller_may_not_open_is_told() -> None:
    wanted = policy("gpu", "kvm")
    _, told = as_found(wanted, FACTS.replace(devices=(RENDER, KVM.replace(usable=False))))
    assert [line for line in told if "device" in line] == [
        "devices: /dev/kvm is in the view, but this user may not open it; a group of its own often has the right"
    ]
