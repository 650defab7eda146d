"""``containers: nested`` in a plan: what it needs, what it puts into the view, what it says of itself."""

from __future__ import annotations

import pytest

from membrane.errors import PolicyError
from membrane.plan import containers
from membrane.plan.build import BASE_KUID, build
from membrane.plan.model import Bind, HostFacts, Proc, Reviewed, SandboxPlan, Subordinate
from membrane.policy.model import Limits, MountRule, Origin, Policy

PLAIN = HostFacts(1000, 1000, "u", False, "/home/u", "/home/u/.membrane", "/home/u/w", "box", ()).replace(
    subordinate=Subordinate((100_000, 65_536), (200_000, 65_536)), engines="/home/u/.membrane/containers/w-1/0"
)
ROOT = PLAIN.replace(uid=0, gid=0, root=True, subordinate=None)
NESTED = Policy(containers="nested")


def nested(policy: Policy = NESTED, facts: HostFacts = PLAIN) -> SandboxPlan:
    return build(policy, facts)


def test_without_the_key_nothing_is_different() -> None:
    plan = build(Policy(), PLAIN)
    assert plan == build(Policy(), PLAIN.replace(subordinate=None))
    assert not plan.network.inner and not plan.hardening.nested and not plan.hardening.set_ids
    assert plan.subordinate == ((0, 0), (0, 0)) and not plan.stores[1:]


def test_the_storage_is_where_the_run_has_its_place() -> None:
    plan = nested()
    binds = {op.target: op for op in plan.mounts if isinstance(op, Bind)}
    for place in containers.PLACES:
        bind = binds[place]
        assert bind.writable and bind.own and bind.make
        assert bind.source.startswith(f"{PLAIN.engines}/") and bind.source in plan.stores


@pytest.mark.parametrize("facts", [PLAIN, ROOT])
def test_proc_and_sys_are_whole_as_the_kernel_wants_them(facts: HostFacts) -> None:
    mounts = nested(facts=facts).mounts
    assert Proc(freeze_settings=False, whole=True) in mounts
    assert [op for op in mounts if isinstance(op, Bind) and op.target == "/sys" and not op.writable]


def test_ids() -> None:
    assert nested().subordinate == ((100_000, 65_536), (200_000, 65_536))
    root = nested(facts=ROOT)
    assert root.base_kuid == BASE_KUID and root.subordinate == ((0, 0), (0, 0))


@pytest.mark.parametrize(
    ("policy", "facts", "cause"),
    [
        (NESTED, PLAIN.replace(subordinate=Subordinate(lacking="no ids", fix="usermod")), "subordinate ids: no ids"),
        (NESTED, PLAIN.replace(subordinate=None), "subordinate ids"),
        (NESTED, PLAIN.replace(open_cgroup="/sys/fs/cgroup/a"), "stop and kill what is outside: /sys/fs/cgroup/a is"),
        (NESTED, ROOT.replace(root=False), "ids of its own for root"),
        (NESTED.replace(view="host"), PLAIN, "view: host"),
        (NESTED.replace(user_namespaces=True), PLAIN, "exclude each other"),
    ],
)
def test_what_cannot_be_bound_stops_the_run(policy: Policy, facts: HostFacts, cause: str) -> None:
    with pytest.raises(PolicyError, match=cause):
        build(policy, facts)


def test_set_user_id_files_only_where_all_that_is_written_is_in_our_state() -> None:
    review = NESTED.replace(workspace="review")
    facts = PLAIN.replace(reviewed=Reviewed("x", (), "/home/u/.membrane/changes/x"))
    rule = MountRule("/data", "rw", Origin("user", "config.yaml", 1))
    assert not nested().hardening.set_ids
    assert nested(review, facts).hardening.set_ids
    assert not nested(review.replace(mounts=(rule,)), facts).hardening.set_ids


def test_the_receipt_says_what_binds_and_what_is_weaker() -> None:
    held, weaker = [each for each in nested().bindings if each.rule.startswith("containers")]
    assert held.status == "bound" and weaker.status == "partial"
    assert any("Landlock" in each for each in weaker.mechanisms)
    assert any("set-user-ID" in each and "without the bit" in each for each in held.mechanisms)


def test_limits_of_the_policy_stay() -> None:
    assert nested(NESTED.replace(limits=Limits(pids=9))).hardening.limits.pids == 9
