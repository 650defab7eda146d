"""Messages between a program that uses the library and the supervisor of one of its sandboxes.

One SOCK_SEQPACKET datagram each: a kind of one byte, a value as JSON, and descriptors.  A value that is too long for a
datagram travels in a memfd, the first descriptor then.

Caller to supervisor
    P {policy, workspace, ...} open · R {number, argv, cwd, environment} (+ stdin, stdout, stderr) run
    S {number, signal} signal a command · K {number} kill a command and what it started
    U {number, policy} other network rules · A {number, answer} answer a question · T {number} statistics
    L {number} listen for callers of ``wrap`` · V {} send events from now on
Supervisor to caller
    O {id, workspace, assurance, source} open · s {number, pid, assurance} the command runs
    x {number, status, duration, denied, changes, failure} it has ended
    u {number}, t {number, ...}, l {number, path} done · f {number, error} not done
    v [line, ...] events · q {number, access, rule} a question · w {number} it is withdrawn
    e {error} the sandbox cannot be made, or has failed · z {} closed; the end of the stream follows

The end of the caller's side of the stream ends the sandbox, however the caller ends.
"""

from __future__ import annotations

import _socket
import os

from ..host.channel import MESSAGE, receive, send, send_data

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..errors import MembraneError

INLINE = MESSAGE // 2  # bytes of a value in its datagram
LONGEST = 64 << 20  # bytes of a value in a memfd


def put(channel: _socket.socket, kind: bytes, value: Any, fds: Sequence[int] = ()) -> None:
    """Send one message.

    Raises:
        BlockingIOError: there is no room now, on a socket that does not block.
        OSError: the other end is gone.
    """
    import json

    data = json.dumps(value).encode()
    if len(data) <= INLINE:
        send(channel, kind, b"." + data, fds)
        return
    send_data(channel, kind + b"m", data, fds)


def take(channel: _socket.socket) -> tuple[bytes, Any, list[int]]:
    """Receive one message; the kind is empty at the end of the stream.

    Raises:
        BlockingIOError: nothing is there, on a socket that does not block.
    """
    import json

    try:
        kind, payload, fds = receive(channel)
    except ConnectionError:
        return b"", None, []
    if not kind:
        return b"", None, []
    if payload[:1] == b"m":
        memory, *fds = fds
        try:
            payload = b"." + os.pread(memory, min(os.fstat(memory).st_size, LONGEST), 0)
        finally:
            os.close(memory)
    value: Any = json.loads(payload[1:])
    return kind, value, fds


def error_as_data(error: MembraneError) -> dict[str, Any]:
    """An error for the other side."""
    return {
        "type": type(error).__name__,
        "tried": error.tried,
        "cause": error.cause,
        "target": error.target,
        "fix": list(error.fix),
        "where": error.where,
    }


def error_of(data: dict[str, Any]) -> MembraneError:
    """The error that the other side told."""
    from .. import errors

    kind = {each.__name__: each for each in (errors.PolicyError, errors.HostError)}
    made = kind.get(str(data.get("type")), errors.InternalError)
    return made(
        str(data["tried"]),
        str(data["cause"]),
        target=str(data["target"]),
        fix=tuple(str(each) for each in data["fix"]),
        where=str(data["where"]),
    )
