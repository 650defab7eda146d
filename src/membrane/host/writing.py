"""``write_all``: all bytes of a buffer into a file, or an error.

Theory of operation
-------------------
write(2) and pwrite(2) may write fewer bytes than they were given and report only how many: on a file system that is
nearly full, at a quota, at RLIMIT_FSIZE.  The next call then says why (ENOSPC, EDQUOT, EFBIG).  So a file of ours that
has to be whole is written in a loop.
"""

from __future__ import annotations

import errno
import os


def write_all(fd: int, data: bytes, at: int = -1) -> None:
    """Write all of ``data`` to a blocking descriptor: at offset ``at``, or where its offset is (-1).

    Raises:
        OSError: not all of it could be written; some of it may be.
    """
    rest = memoryview(data)
    while rest:
        done = os.write(fd, rest) if at < 0 else os.pwrite(fd, rest, at + len(data) - len(rest))
        if not done:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rest = rest[done:]
