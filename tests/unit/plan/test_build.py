"""From a rule to its mechanism; every refusal with its text is in tests/golden/refusals.txt."""

from __future__ import annotations

import marshal

import pytest

from membrane.errors import EX_CONFIG, PolicyError
from membrane.plan.build import BASE_KUID, bindings, build
from membrane.plan.model import RANGE, HostFacts
from membrane.plan.network import MOST_UDP_PORTS, plan_network
from membrane.policy.model import (
    CarrierOption,
    HostRule,
    Limits,
    MountRule,
    Network,
    Origin,
    PathRule,
    Policy,
    PortRange,
    PortRule,
    SocketRule,
)

HERE = Origin("user", "config.yaml", 4)
FACTS = HostFacts(1000, 1000, "dev", False, "/home/dev", "/home/dev/.membrane", "/srv/app", "box", ())


def host(*ports: PortRange) -> HostRule:
    return HostRule("a.example", HERE, "host", "a.example", ports=ports)


def test_every_rule_of_a_policy_has_a_binding() -> None:
    """A rule that is in the policy and in no binding would be a rule that nobody enforces."""
    policy = Policy(
        allow=(host(), HostRule("10.0.0.0/8", HERE, "network", network=Network(4, 10 << 24, 8))),
        deny=(HostRule("**", HERE, "any"),),
        paths=(PathRule(".env", HERE, "hide"), PathRule("dist", HERE, "readonly")),
        mounts=(MountRule("/srv/lib", "ro", HERE),),
        unix_sockets=(SocketRule("/run/s", HERE),),
        connect=(PortRule(80, 8080, HERE),),
        limits=Limits(1, 2, 3, 4, 5, 6, 7),
    )
    found = bindings(policy)
    assert [binding.rule for binding in found] == [
        "allow a.example",
        "allow 10.0.0.0/8",
        "deny **",
        "hide .env",
        "readonly dist",
        "mount /srv/lib ro",
        "unix socket /run/s",
        "connect host.internal:80 to host loopback port 8080",
        "limit memory=1",
        "limit pids=2",
        "limit cpu=3",
        "limit time=4",
        "limit files=5",
        "limit disk=6",
        "limit upload=7",
    ]
    assert all(binding.mechanisms and binding.status == "bound" for binding in found)
    assert build(policy, FACTS).bindings == found


def test_ports_are_part_of_the_text_of_a_rule() -> None:
    rule = host(PortRange("tcp", 443, 443), PortRange("udp", 5000, 5010))
    (binding,) = bindings(Policy(allow=(rule,)))
    assert binding.rule == "allow a.example ports 443/tcp,5000-5010/udp"
    assert binding.origin == "user config.yaml:4"


def test_an_empty_policy_binds_nothing_and_opens_nothing() -> None:
    plan = build(Policy(), FACTS)
    assert plan.bindings == ()
    assert (plan.network.udp_ports, plan.network.tcp_ports) == ((), ())


def test_identity_of_a_user_and_of_root() -> None:
    plan = build(Policy(), FACTS)
    assert (plan.uid, plan.gid, plan.base_kuid) == (1000, 1000, 0)
    as_root = build(Policy(), FACTS.replace(uid=0, gid=0, root=True))
    assert (as_root.uid, as_root.gid, as_root.base_kuid) == (0, 0, BASE_KUID)
    # Root of a container has no private range to give away.
    assert build(Policy(), FACTS.replace(uid=0, gid=0, root=False)).base_kuid == 0


def test_the_private_range_is_in_the_container_range_and_clear_of_people_and_nobody() -> None:
    # systemd, "Users, Groups, UIDs and GIDs": 524288..1879048191 is for containers.
    assert BASE_KUID >= 524_288 and BASE_KUID + RANGE - 1 <= 1_879_048_191
    assert RANGE == 65_536


def test_a_refused_run_names_the_place_and_is_a_configuration_error() -> None:
    policy = Policy(unix_sockets=(SocketRule("/run", Origin("project", ".membrane.yaml", 9)),))
    with pytest.raises(PolicyError) as caught:
        build(policy, FACTS)
    assert caught.value.exit_code == EX_CONFIG
    assert caught.value.where == "project .membrane.yaml:9"


def test_an_argument_for_a_container_needs_one() -> None:
    policy = Policy(carrier_options=(CarrierOption("--cpus=2", HERE),))
    for backend in ("native", "auto", "landlock"):
        with pytest.raises(PolicyError, match="args: --cpus is for a container") as caught:
            build(policy.replace(backend=backend), FACTS)
        assert caught.value.exit_code == EX_CONFIG and "taskset" in caught.value.fix[0]
    build(policy.replace(backend="docker"), FACTS)  # the control


def test_stores_are_in_our_state_only() -> None:
    policy = Policy(profiles=("claude",), state_dirs=(".claude", ".cache/claude"))
    assert all(path.startswith("/home/dev/.membrane/") for path in build(policy, FACTS).stores)
    assert len(build(policy, FACTS).stores) == 3
    assert build(policy.replace(view="host"), FACTS).stores == ()
    assert len(build(policy.replace(home="ephemeral"), FACTS).stores) == 2


def test_a_plan_holds_plain_values_only() -> None:
    """It is sent to other processes and printed."""
    plan = build(Policy(allow=(host(),)), FACTS)

    def plain(value: object) -> object:
        fields = getattr(value, "field_names", None)
        if fields is not None:
            return [plain(getattr(value, name)) for name in fields]
        return [plain(item) for item in value] if isinstance(value, tuple) else value

    assert marshal.dumps(plain(plan))
    assert hash(plan) == hash(build(Policy(allow=(host(),)), FACTS))


def test_network_listens_for_what_rules_name() -> None:
    plan = plan_network(Policy(allow=(host(), host(PortRange("tcp", 8000, 8001)), host(PortRange("udp", 53, 54)))))
    assert plan.tcp_ports == (22, 80, 443, 8000, 8001)
    assert plan.udp_ports == (54,)  # 53 is always served


def test_udp_ports_are_counted_once() -> None:
    wide = host(PortRange("udp", 1000, 1000 + MOST_UDP_PORTS - 1))
    assert len(plan_network(Policy(allow=(wide, wide))).udp_ports) == MOST_UDP_PORTS
    with pytest.raises(PolicyError, match=f"opens more than {MOST_UDP_PORTS} UDP ports"):
        plan_network(Policy(allow=(wide, host(PortRange("udp", 1, 1)))))
    with pytest.raises(PolicyError, match="opens more than"):
        plan_network(Policy(allow=(host(PortRange("udp", 1, 65535)),)))


def test_a_deny_opens_no_listener() -> None:
    assert plan_network(Policy(deny=(host(PortRange("udp", 1000, 1000)),))).udp_ports == ()
