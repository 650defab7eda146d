"""Policy -> the listeners of one network namespace.

The namespace has no uplink: whatever the plan says, packets can only reach the sockets made here.  What a
connection may do is decided later, by name and port, in the gateway.
"""

from __future__ import annotations

from ..errors import PolicyError
from .model import PROXY_PORTS, NetworkPlan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..policy.model import HostRule, Policy

MOST_UDP_PORTS = 256  # one wildcard socket per port and family


def plan_network(policy: Policy) -> NetworkPlan:
    """The listeners.

    Raises:
        PolicyError: a rule opens more UDP ports than listeners can be made for.
    """
    udp: set[int] = set()
    tcp: set[int] = set()
    for rule in policy.allow:
        for ports in rule.ports:
            span = range(ports.first, ports.last + 1)
            if ports.protocol == "udp":
                if len(span) > MOST_UDP_PORTS or len(udp.union(span)) > MOST_UDP_PORTS:
                    raise _too_many(rule)
                udp.update(span)
            elif len(span) <= MOST_UDP_PORTS:
                tcp.update(span)
        if not rule.ports:
            tcp.update((22, 80, 443))
    if policy.offer_proxy:
        tcp.update(PROXY_PORTS)
    exposed = tuple((rule.inside, rule.outside) for rule in policy.expose)
    return NetworkPlan(
        udp_ports=tuple(sorted(udp - {53})),
        tcp_ports=tuple(sorted(tcp)),
        exposed=exposed,
        inner=policy.containers == "nested",
    )


def _too_many(rule: HostRule) -> PolicyError:
    return PolicyError(
        "open UDP ports",
        f"allow {rule.text!r} opens more than {MOST_UDP_PORTS} UDP ports; name the ports that are needed",
        where=str(rule.origin),
    )


def inspects(policy: Policy) -> bool:
    """Does some rule need connections to be read as HTTP?"""
    rules = (*policy.allow, *policy.deny)
    return bool(policy.secrets or policy.masks) or any(rule.constrained for rule in rules)
