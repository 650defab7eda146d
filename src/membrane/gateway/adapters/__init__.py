"""Protocols of services behind unix sockets, read message by message.  No I/O: the broker moves the bytes.

Theory of operation
-------------------
An adapter is between one client inside and one service outside.  ``from_client`` and ``from_server`` take what
arrived; what may go on is appended to ``up`` (to the service) and ``down`` (to the client).  Each message is read as a
whole, put to ``judge``, and written anew or passed on unchanged; nothing that was not understood goes up.

Rules
-----
1. What an adapter holds is bounded; the broker reads no further while much is waiting in ``up`` or ``down``.
2. ``Broken``: one side does not keep to the protocol, or to the bounds.  The connection ends.
3. ``Asked``: an adapter puts the message back, unread, and takes no further one until ``resume``.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    # (operation, names of its object) -> may it be done?  A refusal is recorded where it is decided.
    Judge: TypeAlias = Callable[[str, tuple[str, ...]], bool]


class Broken(Exception):
    """One side does not keep to the protocol; the text says which and how."""


class Asked(Exception):
    """``judge`` has asked a person: nothing of the message was done.  ``resume`` is called when there is an answer."""


class Adapter:
    """Passes bytes on as they are: what a rule without ``as`` means.

    Args:
        judge: asked about each operation.
    """

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.up = bytearray()
        self.down = bytearray()
        self.parked = False  # a message waits for a person's answer

    def from_client(self, data: bytes) -> None:
        """Take bytes of the client.

        Raises:
            Broken: it does not keep to the protocol.
        """
        self.up += data

    def from_server(self, data: bytes) -> None:
        """Take bytes of the service.

        Raises:
            Broken: it does not keep to the protocol.
        """
        self.down += data

    def resume(self) -> None:
        """The answer is there: ``judge`` knows it now.

        Raises:
            Broken: as ``from_client``.
        """
        self.parked = False
        self.from_client(b"")

    def waiting(self) -> bool:
        """Is there something of the client that the service has not answered?  Its end is not passed on before."""
        return False

    def over(self) -> bool:
        """Does the connection end once ``down`` is written?"""
        return False
