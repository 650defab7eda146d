"""What ``wrap`` returns: a program that runs a command in an open sandbox, as if it were that command.

``SOCKET [--cwd DIRECTORY] [--env NAME=VALUE ... ] -- COMMAND ...``.  It passes its standard streams and its signals on,
waits, and ends as the command ended.  When it is killed, its stream ends, and with it the command.
"""

from __future__ import annotations

import os
import sys

from ..errors import HostError, MembraneError
from ..host.channel import Channel
from ..host.inherited import settle
from ..host.ready import ready
from ..run.door import reach
from . import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Sequence
else:
    import _signal

FORWARDED = (1, 2, 3, 10, 12, 15)  # SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGTERM
NUMBER = 1  # of the one command on this channel


def main(argv: list[str]) -> int:
    """Run ``argv``; the exit status."""
    try:
        settle()  # else a descriptor of ours would be one of the standard streams, and would be sent to the command
        return _run(argv[1], argv[2:])
    except MembraneError as error:
        for line in error.lines():
            print(f"membrane: {line}", file=sys.stderr)
        return error.exit_code


def parse(words: Sequence[str]) -> tuple[str | None, dict[str, str], tuple[str, ...]]:
    """Directory (None: not given), variables and command of the words behind the socket, as ``wrap`` writes them."""
    cwd, at = None, 0
    if words[at] == "--cwd":
        cwd, at = words[at + 1], at + 2
    environment = {}
    if words[at] == "--env":
        at += 1
        while words[at] != "--":  # a variable has "=" in it
            name, _, value = words[at].partition("=")
            environment[name] = value
            at += 1
    return cwd, environment, tuple(words[at + 1 :])


def _connected(path: str) -> Channel:
    try:
        return Channel(reach(path), wire.TO_SUPERVISOR, wire.FROM_SUPERVISOR)
    except OSError as error:
        cause = f"{error.strerror}; it works while the sandbox is open"
        raise HostError("reach the sandbox", cause, target=path) from None


def _run(path: str, words: list[str]) -> int:
    cwd, environment, command = parse(words)
    if cwd is None:
        try:
            cwd = os.getcwd()
        except OSError as error:
            raise HostError("use the current directory", error.strerror or "") from None
    channel = _connected(path)
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    for number in FORWARDED:
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, lambda _number, _frame: None)
    _signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    umask = os.umask(0o077)
    os.umask(umask)
    try:
        channel.send(wire.Run(NUMBER, command, cwd, environment, umask, (0, 1, 2)))
    except OSError as error:
        raise HostError("run the command", error.strerror or "") from None
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in (0, 1):  # their other ends are to see the end of the command
        os.dup2(null, fd)
    while True:
        readable, _ = ready((channel.fileno(), read))
        if read in readable:
            for number in os.read(read, 64):
                if number in FORWARDED:
                    try:
                        channel.send(wire.Signal(NUMBER, number))
                    except ConnectionError:
                        pass  # it is closed; how the command ended may still be there to be read
        if channel.fileno() not in readable:
            continue
        message = channel.receive()
        if isinstance(message, wire.CommandEnded):
            if message.failure is not None:
                raise wire.error_of(message.failure)
            code = os.waitstatus_to_exitcode(message.status)
            return code if code >= 0 else 128 - code
        if message is None:
            raise HostError("run the command", "the sandbox was closed")
