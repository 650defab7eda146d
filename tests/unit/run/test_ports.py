"""Listeners for exposed ports: on the loopback only, and a port that cannot be had stops the run."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from free_ports import free_port
from membrane.errors import PolicyError
from membrane.policy.model import Origin, PortRule
from membrane.run import ports

ORIGIN = Origin("user", "p.yaml", 4)


def rule(outside: int, inside: int = 80) -> PortRule:
    return PortRule(inside, outside, ORIGIN)


def test_both_loopback_addresses_and_no_other() -> None:
    port = free_port()
    made = ports.listen((rule(port),))
    places = []
    for role, fd in made:
        with socket.socket(fileno=fd) as listener:
            assert role == "exposed:80" and not os.get_inheritable(fd)
            places.append(listener.getsockname()[:2])
            with socket.create_connection(places[-1], 10):
                pass
    assert places[0] == ("127.0.0.1", port)
    assert set(places) <= {("127.0.0.1", port), ("::1", port)}


def test_a_port_in_use_stops_the_run_and_leaves_no_listener() -> None:
    first = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PolicyError) as refused:
            ports.listen((rule(first), rule(port)))
    assert refused.value.where == str(ORIGIN) and f"127.0.0.1:{port}: the port is in use" in refused.value.cause
    assert f'"80:{port + 1}"' in refused.value.fix[0]
    for role, fd in ports.listen((rule(first),)):  # the first one was given back
        assert role
        os.close(fd)


def test_a_host_without_ipv6_has_one_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ports._listener

    def only_ipv4(family: int, address: str, port: int) -> int:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "no IPv6")
        return made(family, address, port)

    monkeypatch.setattr(ports, "_listener", only_ipv4)
    ((_role, fd),) = ports.listen((rule(free_port()),))
    os.close(fd)


def test_a_port_that_this_user_may_not_bind_names_one_that_he_may(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_words: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(ports, "_listener", refuse)
    with pytest.raises(PolicyError) as refused:
        ports.listen((rule(80),))
    assert '"80:8080"' in refused.value.fix[0]


def test_as_they_are_shown() -> None:
    assert ports.shown((rule(80), rule(8080, 80))) == ("80", "8080:80")
