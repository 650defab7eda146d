"""One thread, one epoll: who is called when a descriptor is ready or a wait is over.

Theory of operation
-------------------
The data plane starts when a sandboxed command opens its first connection, so its start-up time is that
connection's latency.  asyncio costs 40-70 ms to import; a readiness loop is what the relay needs anyway, and costs
nothing.  TLS and HTTP are driven from here as well, by memory buffers (``intercept``).

Rules
-----
1. Descriptors are edge triggered where the mask says so; a handler must read until it would block.
2. A socket is closed at the end of a turn (``close_later``): its number cannot be reused while events of the same turn
   may still carry it.
3. An exception of a handler ends the loop.  Handlers of connections catch their own.
4. Every wait is one of a few fixed lengths (``Wait``), so waits expire in the order in which they began.
"""

from __future__ import annotations

import _thread
import os
import select
import time
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as Socket
    from collections.abc import Callable, Iterator
    from typing import Any

IN, PRI, OUT, ERR, HUP, RDHUP, EDGE = (
    select.EPOLLIN,
    select.EPOLLPRI,
    select.EPOLLOUT,
    select.EPOLLERR,
    select.EPOLLHUP,
    select.EPOLLRDHUP,
    select.EPOLLET,
)
_NEVER = float("inf")
_EVENTS = 256  # events taken in one turn


class Wait:
    """All waits of one length: who waits, until when, and what is called for each that waited too long."""

    __slots__ = ("_due", "_reactor", "expired", "seconds")

    def __init__(self, reactor: Reactor, seconds: float, expired: Callable[[Any], None]) -> None:
        self.seconds = seconds
        self.expired = expired
        self._reactor = reactor
        self._due: dict[Any, float] = {}

    def begin(self, item: Any) -> None:
        """Start, or start again, the wait of ``item``."""
        self._due.pop(item, None)
        reactor = self._reactor
        due = self._due[item] = reactor.now + self.seconds
        reactor.next_due = min(reactor.next_due, due)

    def end(self, item: Any) -> None:
        self._due.pop(item, None)

    def has(self, item: Any) -> bool:
        """Does ``item`` wait?"""
        return item in self._due

    def waiting(self) -> bool:
        """Does anything wait?"""
        return bool(self._due)

    def in_order(self) -> Iterator[tuple[Any, float]]:
        """What waits, and until when (as ``Reactor.now``); what began first comes first."""
        return iter(self._due.items())

    def expire(self, now: float) -> float:
        """Call for each that waited too long; when the next one will have, for ever if there is none."""
        while self._due:
            item, due = next(iter(self._due.items()))
            if due > now:
                return due
            del self._due[item]
            self.expired(item)
        return _NEVER


class Reactor:
    """The loop.  Not safe for threads, except ``post``."""

    def __init__(self) -> None:
        self.now = time.monotonic()
        self.next_due = _NEVER  # no wait is over before; some of those that began it may have ended
        self.at_end: list[Callable[[], None]] = []  # called once in every turn
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._soon: list[Callable[[], None]] = []
        self._waits: list[Wait] = []
        self._closing: list[Socket] = []
        self._posted: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._posting = _thread.allocate_lock()
        self._closed = False
        self._stopped = False
        self.watch(self._wake, IN, self._woken)

    def watch(self, fd: int, mask: int, handler: Callable[[int], None]) -> None:
        """Call ``handler(events)`` when ``fd`` is ready."""
        self._handlers[fd] = handler
        self._epoll.register(fd, mask)

    def change(self, fd: int, mask: int) -> None:
        self._epoll.modify(fd, mask)

    def rehandle(self, fd: int, handler: Callable[[int], None]) -> None:
        """Another handler for a watched descriptor."""
        self._handlers[fd] = handler

    def unwatch(self, fd: int) -> None:
        del self._handlers[fd]
        self._epoll.unregister(fd)

    def close_later(self, socket: Socket) -> None:
        """Forget a socket, and close it at the end of this turn."""
        self._handlers.pop(socket.fileno(), None)
        self._closing.append(socket)

    def wait(self, seconds: float, expired: Callable[[Any], None]) -> Wait:
        """A new kind of wait."""
        wait = Wait(self, seconds, expired)
        self._waits.append(wait)
        return wait

    def soon(self, call: Callable[[], None]) -> None:
        """Call in the next turn, after the ready descriptors had theirs."""
        self._soon.append(call)

    def post(self, call: Callable[[], None]) -> None:
        """Call in the loop's thread; for other threads.  Nothing happens once the reactor is closed."""
        with self._posting:  # the number of a closed descriptor may be another file's already
            if self._closed:
                return
            self._posted.append(call)
            os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """``run`` returns after this turn."""
        self._stopped = True

    def run(self) -> None:
        """Until ``stop``.

        Raises:
            Exception: whatever a handler raised.
        """
        while not self._stopped:
            self.turn(self._until_next())

    def turn(self, timeout: float) -> bool:
        """One round: ready descriptors, what was put off, what waited too long, the dead.

        Args:
            timeout: seconds to sleep when nothing is ready; -1 for ever.

        Returns:
            Whether there was anything to do.
        """
        events = self._epoll.poll(timeout, _EVENTS)
        self.now = time.monotonic()
        handlers = self._handlers
        for fd, mask in events:
            handler = handlers.get(fd)
            if handler is not None:
                handler(mask)
        if self._soon:
            calls, self._soon = self._soon, []
            for call in calls:
                call()
        if self.now >= self.next_due:
            self.next_due = _NEVER  # an expired wait may begin another one
            for wait in self._waits:
                due = wait.expire(self.now)
                self.next_due = min(self.next_due, due)
        for call in self.at_end:
            call()
        if self._closing:
            for socket in self._closing:
                socket.close()
            self._closing.clear()
        return bool(events or self._soon)

    def close(self) -> None:
        """Close the descriptors of the reactor itself."""
        for socket in self._closing:
            socket.close()
        self._closing.clear()
        with self._posting:
            self._closed = True
            os.close(self._wake)
        self._epoll.close()

    def _until_next(self) -> float:
        if self._soon:
            return 0
        if self.next_due == _NEVER:
            return -1
        left = self.next_due - time.monotonic()
        return left if left > 0 else 0

    def _woken(self, _mask: int) -> None:
        os.eventfd_read(self._wake)
        while self._posted:
            self._posted.popleft()()
