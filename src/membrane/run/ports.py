"""Listeners on the host's loopback for ``ports: expose``, bound before the command starts.

They are made by the supervisor, so that a port in use stops the run, and served by the gateway
(``gateway.exposed``).  Only 127.0.0.1 and ::1: no machine on the network reaches a server that an agent started.  In a
container that carries the run they are of its loopback, and others on that of the host lead to them (``ui.carry``).
"""

from __future__ import annotations

import _socket
import errno
import os

from ..errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..policy.model import PortRule

_BACKLOG = 128
_NO_IPV6 = frozenset((errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT))
LOOPBACK = ((_socket.AF_INET, "127.0.0.1"), (_socket.AF_INET6, "::1"))


def listen(rules: tuple[PortRule, ...]) -> list[tuple[str, int]]:
    """Bind the ports of all rules; (role, descriptor) of each listener, the role ``exposed:PORT`` with the port inside.

    Raises:
        PolicyError: a port is in use, or may not be bound by this user.
    """
    out: list[tuple[str, int]] = []
    try:
        for rule in rules:
            for family, address in LOOPBACK:
                try:
                    out.append((f"exposed:{rule.inside}", _listener(family, address, rule.outside)))
                except OSError as error:
                    if family == _socket.AF_INET6 and error.errno in _NO_IPV6:
                        continue  # a host without IPv6
                    raise _unbound(rule, address, error) from None
    except BaseException:
        for _role, fd in out:
            os.close(fd)
        raise
    return out


def shown(rules: tuple[PortRule, ...]) -> tuple[str, ...]:
    """As ``membrane ps`` shows them: the port outside, and the one inside where that is another."""
    return tuple(
        str(rule.outside) if rule.outside == rule.inside else f"{rule.outside}:{rule.inside}" for rule in rules
    )


def _listener(family: int, address: str, port: int) -> int:
    opened = _socket.socket(family, _socket.SOCK_STREAM)  # close-on-exec, as every socket of Python (PEP 446)
    try:
        opened.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)  # TIME_WAIT of the last run
        if family == _socket.AF_INET6:
            opened.setsockopt(_socket.IPPROTO_IPV6, _socket.IPV6_V6ONLY, 1)
        opened.bind((address, port))
        opened.listen(_BACKLOG)
    except BaseException:
        opened.close()
        raise
    return opened.detach()


def _unbound(rule: PortRule, address: str, error: OSError) -> PolicyError:
    shown = f"[{address}]:{rule.outside}" if ":" in address else f"{address}:{rule.outside}"
    fix: tuple[str, ...] = ()
    cause = error.strerror or str(error)
    if error.errno == errno.EADDRINUSE:
        cause = "the port is in use on this machine"
        fix = (f'expose it under another port: "{rule.inside}:{rule.outside + 1 if rule.outside < 65535 else 1024}"',)
    elif error.errno == errno.EACCES:
        fix = (f'expose it under a port above 1023: "{rule.inside}:{rule.inside + 8000}"',)
    return PolicyError("expose a port", f"{shown}: {cause}", where=str(rule.origin), fix=fix)
