"""Whose server listens at a port of a shared loopback."""

from __future__ import annotations

import os
import socket

import pytest

from membrane.host.supervised_servers import LOOPBACK, Servers

OWN = "127.91.7.3"


def test_an_exposed_port_is_at_an_address_of_its_own_and_no_other_port_is() -> None:
    servers = Servers((3000,), OWN)
    assert (servers.place(3000), servers.place(3001)) == (OWN, LOOPBACK)
    assert servers.hides(OWN) and servers.hides(f"::ffff:{OWN}") and not servers.hides(LOOPBACK)
    assert not Servers().hides(LOOPBACK)


@pytest.mark.parametrize("address", [LOOPBACK, OWN, f"::ffff:{LOOPBACK}", f"::ffff:{OWN}"])
def test_what_listens_is_told_by_its_inode(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as server, socket.socket() as another:
        server.bind((address, 0))
        port = server.getsockname()[1]
        servers = Servers((port,), OWN)
        servers.bound(port, os.fstat(server.fileno()).st_ino)
        assert servers.listening(port) == "" and servers.dial(port) == -1  # it is bound, and does not listen
        server.listen()
        assert servers.listening(port) == address.removeprefix("::ffff:")
        made = servers.dial(port)
        server.accept()[0].close()
        os.close(made)
        servers.bound(port, os.fstat(another.fileno()).st_ino)
        assert servers.listening(port) == "" and servers.dial(port) == -1  # another one's
        assert servers.listening(port + 1) == ""
