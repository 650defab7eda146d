"""The caller's terminal and the sandbox's own pty: bytes, size, stops.

Theory of operation
-------------------
The command never gets the caller's terminal: it could read what the user types for other programs and push
characters into it.  Streams that are terminals are replaced by a pty of the sandbox's own devpts, each judged on
its own; the rest is wired straight through.  The supervisor copies bytes between the two terminals.

Raw mode is only set while the supervisor is in the terminal's foreground process group, and only when it reads the
keyboard: when stdin is the terminal, or when stdout is (``cat file | membrane -- less``).  It is restored before
the supervisor stops and when it ends, also after a failure.
"""

from __future__ import annotations

import errno
import fcntl
import os
import termios

CHUNK = 65536
MOST_PENDING = 1 << 20  # bytes typed ahead that the command has not read
_GONE = (OSError, termios.error)  # the latter is no OSError, and says EIO of a terminal that was hung up


def streams() -> tuple[bool, bool, bool]:
    """For stdin, stdout and stderr: whether it is a terminal."""
    return os.isatty(0), os.isatty(1), os.isatty(2)


class Relay:
    """Copies between the caller's terminal and the pty master."""

    def __init__(self, master: int, own: tuple[bool, bool, bool]) -> None:
        self.master = master
        self.screen = next(fd for fd in (1, 2, 0) if own[fd])  # where the command's output goes
        self.keyboard = 0 if own[0] else 1 if own[1] else -1  # -1: only stderr is a terminal
        self.pending = b""
        self.hung_up = False
        self._cooked: list[object] | None = None
        os.set_blocking(master, False)
        try:
            fcntl.ioctl(master, termios.TIOCSWINSZ, fcntl.ioctl(self.screen, termios.TIOCGWINSZ, b"\0" * 8))
            termios.tcsetattr(master, termios.TCSANOW, termios.tcgetattr(self.screen))
        except _GONE:
            pass  # a terminal without a size
        self.enter_raw_mode()

    def in_foreground(self) -> bool:
        """Whether the terminal is ours to change (else tcsetattr would stop us with SIGTTOU)."""
        try:
            return os.tcgetpgrp(self.screen) == os.getpgrp()
        except OSError:
            return False

    def enter_raw_mode(self) -> None:
        """Give every key to the command."""
        if self.keyboard < 0 or self._cooked is not None or not self.in_foreground():
            return
        try:
            cooked = termios.tcgetattr(self.keyboard)
            raw = termios.tcgetattr(self.keyboard)
        except _GONE:
            return  # its end is reported by the next read
        raw[0] &= ~(termios.BRKINT | termios.ICRNL | termios.INPCK | termios.ISTRIP | termios.IXON)
        raw[1] &= ~termios.OPOST
        raw[2] = raw[2] & ~(termios.CSIZE | termios.PARENB) | termios.CS8
        raw[3] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN | termios.ISIG)
        raw[6][termios.VMIN], raw[6][termios.VTIME] = 1, 0
        self._cooked = cooked
        try:
            termios.tcsetattr(self.keyboard, termios.TCSADRAIN, raw)
        except _GONE:
            pass

    def restore(self) -> None:
        """Put the caller's terminal back as it was."""
        if self._cooked is None:
            return
        cooked, self._cooked = self._cooked, None
        try:
            termios.tcsetattr(self.keyboard, termios.TCSADRAIN, cooked)  # type: ignore[arg-type]
        except _GONE:
            pass  # the terminal went away

    @property
    def reads_keyboard(self) -> bool:
        """Whether the keyboard should be watched now."""
        return self._cooked is not None and not self.hung_up and len(self.pending) < MOST_PENDING

    def resize(self) -> None:
        """Copy the window size; the kernel sends SIGWINCH to the foreground job inside."""
        try:
            fcntl.ioctl(self.master, termios.TIOCSWINSZ, fcntl.ioctl(self.screen, termios.TIOCGWINSZ, b"\0" * 8))
        except OSError:
            pass

    def from_keyboard(self) -> bool:
        """Copy what was typed; False when the terminal is gone (hang-up)."""
        try:
            data = os.read(self.keyboard, CHUNK)
        except OSError as error:
            self.hung_up = error.errno != errno.EAGAIN
            return not self.hung_up
        if not data:
            self.hung_up = True
            return False
        self.pending += data
        self.flush()
        return True

    def flush(self) -> None:
        """Write what is pending to the command, as far as it takes it."""
        while self.pending:
            try:
                self.pending = self.pending[os.write(self.master, self.pending) :]
            except OSError as error:
                if error.errno != errno.EAGAIN:
                    self.pending = b""
                return

    def to_screen(self) -> bool:
        """Copy what the command printed; False at the end (no process has the pty open)."""
        try:
            data = os.read(self.master, CHUNK)
        except OSError as error:
            return error.errno == errno.EAGAIN
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self.screen, view) :]
            except BlockingIOError:
                from .ready import ready

                ready((), (self.screen,), seconds=1)
            except OSError:
                return False
        return bool(data)
