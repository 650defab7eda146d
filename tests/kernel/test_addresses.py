"""The list of this machine's addresses follows the interfaces; in a network namespace of our own."""

import pytest
from children import run

from membrane.gateway.addresses import OwnAddresses
from membrane.gateway.reactor import Reactor
from membrane.host import netlink as nl
from membrane.host import syscalls as sc
from membrane.policy.decide import Decider
from membrane.policy.grammar import host_rule
from membrane.policy.model import Allow, Connect, Deny, Origin, Policy

pytestmark = pytest.mark.needs_kernel("network namespaces")

RULE = host_rule("a.example", Origin("user", "here", 1))


def in_a_new_network() -> list[str]:
    """The verdicts about one address while the loopback interface gets it and loses it."""
    sc.unshare(sc.CLONE_NEWUSER | sc.CLONE_NEWNET)
    reactor = Reactor()
    policy = Policy(allow=(RULE,))
    said: list[str] = []

    def judge() -> None:
        verdict = Decider(policy, own.current).decide(Connect("a.example", "93.184.216.34", 443))
        assert isinstance(verdict, Allow | Deny)
        said.append("allow" if isinstance(verdict, Allow) else verdict.reason)

    own = OwnAddresses(reactor, judge)
    judge()
    route = nl.Connection(nl.NETLINK_ROUTE)
    route.transact((nl.link_up(1),))
    route.transact((nl.add_address(2, "93.184.216.34", 1),))
    while said[-1] == "allow" and len(said) < 100:
        reactor.turn(10)
    count = len(said)
    own._ready(0)  # nothing has changed since: nobody is told
    assert len(said) == count
    own.close()
    reactor.close()
    return said


def test_a_new_address_of_this_machine_is_refused_from_then_on() -> None:
    said = run(in_a_new_network)
    assert said[0] == "allow", "the positive control: it was nobody's before"
    assert said[-1] == "private address"
