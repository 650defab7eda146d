"""``policy.sockets``: a service behind a socket is one row and one file."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from membrane.gateway.adapters import Adapter
from membrane.gateway.broker import make_adapter
from membrane.policy.decide import Decider
from membrane.policy.model import Allow, Deny, Origin, Policy, SocketAccess, SocketRule
from membrane.policy.sockets import SERVICES, Service

HERE = Origin("user", "config.yaml", 1)


class Echo(Adapter):
    """Of the row below."""


def ask(name: str, operation: str) -> Allow | Deny:
    verdict = Decider(Policy(unix_sockets=(SocketRule("/s", HERE, name, ("say",)),))).decide(
        SocketAccess("/s", operation, ("x",))
    )
    assert isinstance(verdict, Allow | Deny)
    return verdict


def test_a_service_is_added_by_a_row_and_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no adapter 'echo-agent'"):
        make_adapter("echo-agent", lambda *_: True, {})
    assert isinstance(ask("echo-agent", "say"), Deny)

    row = Service("echo-agent", lambda allow: None, lambda allow, operation, names: operation in allow, lambda _: True)
    monkeypatch.setitem(SERVICES, row.name, row)
    file = ModuleType("membrane.gateway.adapters.echo_agent")
    made: list[dict[str, Any]] = []
    file.protocol = lambda judge, memory: made.append(memory) or Echo(judge)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, file.__name__, file)

    memory: dict[str, Any] = {}
    assert isinstance(make_adapter("echo-agent", lambda *_: True, memory), Echo)
    assert made[0] is memory
    assert isinstance(ask("echo-agent", "say"), Allow)
    refused = ask("echo-agent", "shout")
    assert refused == Deny(None, refused.reason, 'allow: ["shout"]')


@pytest.mark.parametrize("name", SERVICES)
def test_each_row_has_its_file(name: str) -> None:
    made = make_adapter(name, lambda *_: True, {})
    assert type(made).__module__ == f"membrane.gateway.adapters.{name.replace('-', '_')}"


def test_a_socket_without_a_service_is_carried_and_admits_no_operation() -> None:
    assert type(make_adapter("", lambda *_: True, {})) is Adapter
    assert isinstance(ask("", "say"), Deny)
