"""gpg-agent: sign, and decrypt where a rule says so, with named keys (Assuan protocol, libassuan manual section 1.1).

Theory of operation
-------------------
Lines of at most 1000 bytes.  A command is answered by status and data lines and one ``OK`` or ``ERR``; an ``INQUIRE``
of the agent in between is answered by the client with ``D`` lines and ``END`` or ``CAN``.  One command is under way at
a time, so a data line can never be read as a command.

Commands that go on are a closed list, each written anew or checked by its grammar.  A key is chosen by ``SIGKEY`` or
``SETKEY`` and judged when it is used.  Options, which would set where the agent is to show its pinentry or let the
client play it, are answered here.  The description that pinentry shows says that a sandboxed command asks.

References: gpg-agent manual, "Agent Protocol"; agent/command.c of GnuPG (what its restricted socket refuses).
"""

from __future__ import annotations

import re

from . import Adapter, Asked, Broken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from . import Judge

LONGEST = 1002  # bytes of a line with its end (assuan.h, ASSUAN_LINELENGTH)
MOST_AHEAD = 1 << 16  # bytes of further commands while one is answered
# libgpg-error, source GPG Agent: GPG_ERR_FORBIDDEN and GPG_ERR_ASS_UNKNOWN_CMD
_FORBIDDEN = b"ERR 67109115 Forbidden <membrane>\n"
_OPTIONS = re.compile(
    rb"OPTION (agent-awareness|allow-pinentry-notify|display|ttyname|ttytype|lc-ctype|lc-messages|xauthority"
    rb"|pinentry-user-data|use-cache-for-signing|allow-emacs-pinentry|putenv)([ =].*)?"
)
_GRIP = rb"[0-9A-Fa-f]{40}"
_KEY = re.compile(rb"(?:SIGKEY|SETKEY) (" + _GRIP + rb")")
_DESCRIPTION = re.compile(rb"SETKEYDESC ([!-~]{0,700})")
_READS = re.compile(
    rb"NOP|HAVEKEY( " + _GRIP + rb")+|HAVEKEY --list(=\d{1,6})?|KEYINFO " + _GRIP + rb"|READKEY (-- )?" + _GRIP + rb"|"
    rb"GETINFO (version|restricted|cmd_has_option [A-Z]+ [a-z-]+)|SETHASH (--hash=[a-z0-9]+|\d{1,3}) [0-9A-Fa-f]{2,256}"
)
_WHO = b"A+sandboxed+command+asks:%0A"

_GREETING, _READY, _BUSY, _INQUIRED, _OVER = range(5)


class GpgAgent(Adapter):
    """One connection to a gpg-agent."""

    def __init__(self, judge: Judge) -> None:
        super().__init__(judge)
        self._client, self._server = bytearray(), bytearray()
        self._state = _GREETING
        self._grip = ""

    def from_client(self, data: bytes) -> None:
        self._client += data
        while self._state in (_READY, _INQUIRED) and not self.parked and (line := _line(self._client)) is not None:
            try:
                if self._state == _READY:
                    self._command(line)
                else:
                    self._reply(line)
            except Asked:
                self._client[:0] = line + b"\n"
                self.parked = True
        if len(self._client) > MOST_AHEAD and not self.parked:
            raise Broken("the client sends further commands without waiting for the answer")

    def from_server(self, data: bytes) -> None:
        self._server += data
        while (line := _line(self._server)) is not None:
            self.down += line + b"\n"
            word = line.partition(b" ")[0]
            if word in (b"OK", b"ERR"):
                if self._state not in (_GREETING, _BUSY):
                    raise Broken("the agent answers what was not asked")
                self._state = _READY
            elif word == b"INQUIRE" and self._state == _BUSY:
                self._state = _INQUIRED
        self.from_client(b"")

    def waiting(self) -> bool:
        return self._state in (_BUSY, _INQUIRED) and bool(self._grip)

    def over(self) -> bool:
        return self._state == _OVER

    def _command(self, line: bytes) -> None:
        if line == b"BYE":
            self.down += b"OK closing connection\n"
            self._state = _OVER
        elif _OPTIONS.fullmatch(line):
            self.down += b"OK\n"
        elif line == b"RESET":
            self._grip = ""
            self._send(line)
        elif found := _KEY.fullmatch(line):
            self._grip = found.group(1).decode("ascii").upper()
            self._send(line)
        elif found := _DESCRIPTION.fullmatch(line):
            self._send(b"SETKEYDESC " + _WHO + found.group(1))
        elif _READS.fullmatch(line):
            self._send(line)
        elif line.split(b" ")[0] in (b"PKSIGN", b"PKDECRYPT"):
            self._use(line)
        else:
            self._refuse(line)

    def _use(self, line: bytes) -> None:
        command = line.split(b" ")[0]
        operation = "sign" if command == b"PKSIGN" else "decrypt"
        if not self._grip or not self.judge(operation, (self._grip,)):
            self.down += _FORBIDDEN
            return
        self._send(command)  # without the nonce of a passphrase cache

    def _send(self, line: bytes) -> None:
        self.up += line + b"\n"
        self._state = _BUSY

    def _refuse(self, line: bytes) -> None:
        word = line.split(b" ")[0][:32].decode("ascii", "replace")
        self.judge(f"command {word}", ())
        self.down += _FORBIDDEN

    def _reply(self, line: bytes) -> None:
        if line not in (b"END", b"CAN") and not line.startswith(b"D "):
            raise Broken("the client answers an inquiry with something else")
        self.up += line + b"\n"
        if line in (b"END", b"CAN"):
            self._state = _BUSY


def _line(data: bytearray) -> bytes | None:
    """Take one line from the front of ``data``, without its end; None: it is not complete.

    Raises:
        Broken: it is longer than any.
    """
    end = data.find(b"\n", 0, LONGEST)
    if end < 0:
        if len(data) >= LONGEST:
            raise Broken("a line is too long")
        return None
    line = bytes(data[:end])
    del data[: end + 1]
    return line.removesuffix(b"\r")


def protocol(judge: Judge, memory: dict[str, Any]) -> GpgAgent:
    """What reads one connection (``broker.make_adapter``)."""
    return GpgAgent(judge)
