"""A port of this machine's loopback for a program that has to be given its number before it listens.

The kernel gives a port from ``ip_local_port_range`` (ip(7)) to whoever binds to port 0 or connects: one that was asked
for in that way and given back may be another worker's a moment later.  So these lie below that range.
"""

from __future__ import annotations

import errno
import random
import socket
from pathlib import Path


def free_port() -> int:
    """A port that nothing is bound to on 127.0.0.1 or ::1, and that the kernel gives to nobody by itself."""
    end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    chance = random.SystemRandom()  # hypothesis sets the common one to the same state in every worker
    for _ in range(100):
        port = chance.randrange(end // 2, end)
        try:
            for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
                with socket.socket(family) as probe:
                    probe.bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):  # no IPv6
                raise
        return port
    raise OSError(errno.EADDRINUSE, "no port of 100 is free")
