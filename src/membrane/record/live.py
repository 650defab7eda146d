"""``--trace-log``: the record in Tracee's form on stderr, or in a file, while the command runs.

Another process follows the record and ends when it is not written to any more, so the supervisor's loop converts
nothing, and whatever source writes to the record is in the log.
"""

from __future__ import annotations

import os
import sys
import time

from ..errors import HostError

END = 60.0  # seconds for the follower to write what is left


class LiveLog:
    """The follower of one session.

    Args:
        state: ``$MEMBRANE_HOME``.
        session: its id; the record is being written.
        stream: where it goes; it stays the caller's.

    Raises:
        HostError: it cannot be started.
    """

    def __init__(self, state: str, session: str, stream: int) -> None:
        source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        program = (
            "import sys; sys.path.append(sys.argv.pop(1)); "
            "from membrane.ui.cli import main; sys.exit(main(sys.argv[1:]))"
        )
        argv = [sys.executable, "-I", "-c", program, source, "trace", "export", session, "--follow"]
        moves = [(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, stream, 1)]
        environment = {"MEMBRANE_HOME": state, "LC_ALL": "C.UTF-8"}
        try:
            # A group of its own: Ctrl-C is for the command, and the last events come after it.
            self._pid = os.posix_spawn(sys.executable, argv, environment, file_actions=moves, setpgroup=0)
        except OSError as error:
            raise HostError("write the trace log", error.strerror or "", target=sys.executable) from None

    def wait(self) -> str:
        """Wait until it has written everything, once the record is closed; why it has not, else empty."""
        deadline = time.monotonic() + END
        pause = 0.002
        while True:
            done, status = os.waitpid(self._pid, os.WNOHANG)
            if done:
                return "" if status == 0 else f"what writes it ended with status {os.waitstatus_to_exitcode(status)}"
            if time.monotonic() > deadline:
                os.kill(self._pid, 9)
                os.waitpid(self._pid, 0)
                return f"who reads it did not take the rest within {END:g} s"
            time.sleep(pause)
            pause = min(pause * 2, 0.05)
