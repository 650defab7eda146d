"""``system`` in a plan: what it needs, where the command is root, what it says of itself."""

from __future__ import annotations

import json

import pytest

from membrane.errors import PolicyError
from membrane.host.containers import inner_maps, outer_maps
from membrane.plan import system
from membrane.plan.build import build, identity
from membrane.plan.model import (
    Bind,
    File,
    HostFacts,
    ImageFacts,
    ImageTree,
    Layer,
    Mask,
    Overlay,
    Pin,
    Proc,
    SandboxPlan,
    Subordinate,
    Symlink,
    SystemLayer,
)
from membrane.plan.mounts import SYSTEM_TREES
from membrane.policy.model import MountRule, Origin, Policy
from membrane.ui import show

EXISTING = frozenset(("/usr", "/etc", "/bin", "/opt", "/etc/shadow", "/etc/ssl/private", "/etc/hosts", "/var/lib/dpkg"))
ROOT = HostFacts(0, 0, "root", True, "/root", "/root/.membrane", "/root/w", "box", ()).replace(
    existing=EXISTING, links=(("/bin", "/usr/bin"),), system=SystemLayer("/root/.membrane/system/k/0")
)
WRITABLE = Policy(system="writable")


IMAGE = ImageFacts("a", "sha256:0", 1, (ImageTree("/usr", "directory", ("/i/1/usr", "/i/empty")),))
PLAIN = ROOT.replace(uid=1000, gid=1001, root=False, user="u", image=IMAGE, environ=(("USER", "u"),)).replace(
    subordinate=Subordinate((100_000, 65_536), (200_000, 5_000))
)
LACKING = Subordinate(lacking="none", fix="usermod")


def made(policy: Policy = WRITABLE, facts: HostFacts = ROOT) -> SandboxPlan:
    return build(policy, facts)


def overlays(plan: SandboxPlan) -> dict[str, Overlay]:
    return {op.target: op for op in plan.mounts if isinstance(op, Overlay)}


def test_without_the_key_nothing_is_different() -> None:
    plan = build(Policy(), ROOT)
    assert plan == build(Policy(), ROOT.replace(system=None))
    assert not overlays(plan) and not plan.hardening.capabilities and plan.owned is None
    assert not plan.hardening.strips and not any("system" in each.rule for each in plan.bindings)


def test_each_system_tree_is_a_layer_over_what_is_closed_to_others() -> None:
    plan = made()
    found = overlays(plan)
    assert set(found) == {"/usr", "/etc", "/opt", "/var", "/var/lib/dpkg"}
    for target, op in found.items():
        assert op.system and op.own and op.closed is (target != "/var")
        assert op.layer.startswith("/root/.membrane/system/k/0/") and op.lowers[0].startswith(
            "/root/.membrane/system/k/0/own/"
        )
        assert op.lowers[1:] == (() if target == "/var" else (target,))
    assert len({op.layer for op in found.values()}) == len(found)
    assert Symlink("/bin", "/usr/bin") in plan.mounts
    assert not [op for op in plan.mounts if isinstance(op, Bind) and op.target in ("/usr", "/etc", "/opt")]


def test_what_hides_a_credential_is_no_mount_there() -> None:
    """A mount point cannot be replaced, and useradd(8) renames a new file over shadow(5)."""
    plan = made()
    assert overlays(plan)["/etc"].hidden == ("shadow", "ssl/private")
    assert not [op for op in plan.mounts if isinstance(op, Mask) and op.target.startswith("/etc")]
    rule = MountRule("/etc/ssl/private", "ro", Origin("user", "f"))
    named = made(WRITABLE.replace(mounts=(rule,)))
    assert overlays(named)["/etc"].hidden == ("shadow",)
    assert [op for op in named.mounts if isinstance(op, Bind) and op.target == "/etc/ssl/private" and not op.writable]


def test_the_files_for_agents_and_of_the_resolver_are_there() -> None:
    plan = made()
    assert not [op for op in plan.mounts if isinstance(op, Layer)]  # which would be read-only
    assert "membrane/AGENTS.md" in overlays(plan)["/etc"].names
    assert [op for op in plan.mounts if isinstance(op, File) and op.target == "/etc/hosts" and op.bind]


def test_capabilities_are_over_owners_modes_and_ids_only() -> None:
    plan = made()
    kept = [number for number in range(64) if plan.hardening.capabilities >> number & 1]
    assert kept == [0, 1, 3, 5, 6, 7]  # linux/capability.h
    assert plan.hardening.strips and not plan.hardening.set_ids and not plan.hardening.nested
    assert {"/usr", "/etc", "/opt", "/var"} <= set(plan.hardening.landlock_writable)
    assert plan.owned is not None and "/root/w" in plan.owned and "/root" in plan.owned
    assert not set(plan.owned) & set(overlays(plan))


def test_programs_of_root_are_found() -> None:
    path = dict(made(facts=ROOT.replace(environ=(("PATH", "/usr/bin:/usr/sbin"),))).environment)["PATH"]
    assert path == "/usr/bin:/usr/sbin:/usr/local/sbin:/sbin"


def test_what_is_mounted_below_a_tree_is_there_and_read_only() -> None:
    facts = ROOT.replace(system=SystemLayer("/l", ("/usr/local", "/usr/local/in", "/etc/x")))
    plan = made(facts=facts)
    binds = [op for op in plan.mounts if isinstance(op, Bind) and op.origin == "system"]
    assert [op.target for op in binds] == ["/usr/local", "/usr/local/in", "/etc/x"]
    assert not any(op.writable or op.own for op in binds)


def test_directories_above_what_is_mounted_in_a_layer_cannot_be_renamed() -> None:
    """A mask that comes later is made by path."""
    rule = MountRule("/data", "rw", Origin("user", "f"), target="/opt/a/data")
    facts = ROOT.replace(workspace="/opt/b/work")
    pins = [op.target for op in made(WRITABLE.replace(mounts=(rule,)), facts).mounts if isinstance(op, Pin)]
    assert set(pins) == {"/opt/a", "/opt/b"} and len(pins) == 2
    plain = build(Policy(mounts=(rule,)), facts)
    assert not [op for op in plain.mounts if isinstance(op, Pin)]  # the control: nothing can be renamed there


def test_what_a_rule_mounts_over_the_layer_is_the_hosts_and_masked() -> None:
    named = made(WRITABLE.replace(mounts=(MountRule("/etc", "ro", Origin("user", "f")),)))
    assert {op.target for op in named.mounts if isinstance(op, Mask)} == {"/etc/shadow", "/etc/ssl/private"}


def test_the_trees_of_an_image_are_layers_too_and_have_no_secret_of_the_host() -> None:
    trees = (
        *(ImageTree("/etc", "directory", ("/i/2/etc", "/i/empty")), ImageTree("/usr", "directory", ("/i/1/usr",))),
        *(ImageTree("/bin", "link", ("usr/bin",)), ImageTree("/srv", "expanded", ())),
    )
    image = ImageFacts("a", "sha256:0", 2, trees, passwd=b"root:x:0:0::/:/x\nu:x:1:1::/:/of-the-image\n")
    plan = made(WRITABLE.replace(image="a"), ROOT.replace(image=image, user=""))
    found = overlays(plan)
    assert set(found) == {"/etc", "/usr", "/var"} and all(op.system and not op.closed for op in found.values())
    assert found["/etc"].lowers[1:] == ("/i/2/etc", "/i/empty") and not found["/etc"].hidden
    assert dict(found["/etc"].contents)["passwd"] == b"root:x:0:0:root:/root:/bin/sh\nu:x:1:1::/:/of-the-image\n"
    assert {"resolv.conf", "hosts", "membrane/AGENTS.md"} <= set(found["/etc"].names)
    files = {op.target for op in plan.mounts if isinstance(op, File) and op.target.startswith("/etc")}
    assert files == {"/etc/resolv.conf", "/etc/hosts", "/etc/hostname"}  # the others can be replaced
    assert not [op for op in plan.mounts if isinstance(op, Layer)]
    assert {"/etc", "/usr", "/var"} <= set(plan.hardening.landlock_writable)
    shown = show.plan_data(plan, WRITABLE, {}, 0, "/root")
    assert "of-the-image" not in json.dumps(shown) and shown["process"]["capabilities"] == "0xeb"


def test_a_plain_caller_is_root_over_an_image_with_subordinate_ids() -> None:
    plan = made(WRITABLE.replace(image="a"), PLAIN)
    assert plan.mapped and plan.base_kuid == 0 and (plan.uid, plan.gid) == (1000, 1001)
    assert outer_maps(1000, 1001, plan) == (((0, 1000, 1), (1, 100_000, 65_535)), ((0, 1001, 1), (1, 200_000, 5_000)))
    assert inner_maps(plan) == (((0, 0, 1), (1, 1, 65_535)), ((0, 0, 1), (1, 1, 5_000)))  # a row is within one of those
    environment = dict(plan.environment)
    assert environment["USER"] == "root" and environment["TAR_OPTIONS"] == "--no-same-owner"
    assert dict(overlays(plan)["/etc"].contents)["passwd"].startswith(b"root:x:0:0:root:/root:")
    assert Proc(freeze_settings=True) in plan.mounts  # uid 0 owns the settings of its network namespace
    assert identity(plan) == "uid 0 as kuid 1000"
    assert not made(facts=ROOT).mapped


@pytest.mark.parametrize(
    ("policy", "facts", "cause"),
    [
        (WRITABLE, PLAIN.replace(image=None), "needs root outside"),
        (WRITABLE.replace(image="a"), PLAIN.replace(subordinate=None), "subordinate ids"),
        (WRITABLE.replace(image="a"), PLAIN.replace(subordinate=LACKING), "subordinate ids: none"),
        (WRITABLE, ROOT.replace(root=False), "ids of its own for root"),
        (WRITABLE, ROOT.replace(system=None), "takes none"),
        (WRITABLE, ROOT.replace(state="/opt/state"), "inside: /opt/state is in /opt"),
        (WRITABLE.replace(view="host"), ROOT, "view: host"),
        (WRITABLE.replace(containers="nested"), ROOT, "containers: nested exclude each other"),
        (WRITABLE.replace(user_namespaces=True), ROOT, "user_namespaces: allowed exclude each other"),
    ],
)
def test_where_it_would_not_hold_it_stops(policy: Policy, facts: HostFacts, cause: str) -> None:
    with pytest.raises(PolicyError, match=cause) as caught:
        system.refuse(policy, facts, SYSTEM_TREES)
    assert caught.value.exit_code == 78


def test_the_receipt_says_what_is_weaker() -> None:
    held, weaker = [each for each in made().bindings if each.rule.startswith("system")]
    assert (held.rule, held.status, weaker.status) == ("system: writable", "bound", "partial")
    assert "thrown away" in held.mechanisms[0]
    assert "kept for this workspace" in made(Policy(system="persistent")).bindings[-2].mechanisms[0]
    assert not any("subordinate" in each for each in weaker.mechanisms)
    plain = [each for each in made(WRITABLE.replace(image="a"), PLAIN).bindings if "weaker" in each.rule]
    assert any("files of subordinate ids" in each for each in plain[0].mechanisms)
