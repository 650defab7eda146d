"""Run a command in a world: ``python enter.py PID [--tty PATH] -- ARGV...``.

Joins the user (for a plain user), network and mount namespaces of process PID, keeps the working directory, and
execs.  With ``--tty`` the terminal at PATH becomes the controlling terminal and the three standard streams.
A plain user loses the capabilities of the world's user namespace at exec, so ARGV is a plain user in there.
"""

from __future__ import annotations

import os
import signal
import sys

import linux


def main(argv: list[str]) -> int:
    split = argv.index("--")
    options, command = argv[:split], argv[split + 1 :]
    pid, cwd = options[0], os.getcwd()
    kinds = [("user", linux.CLONE_NEWUSER), ("net", linux.CLONE_NEWNET), ("mnt", linux.CLONE_NEWNS)]
    handles = [(os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY), name, kind) for name, kind in kinds]
    for fd, name, kind in handles:
        own = os.stat(f"/proc/self/ns/{name}")
        there = os.fstat(fd)
        if (own.st_dev, own.st_ino) != (there.st_dev, there.st_ino):
            linux.setns(fd, kind)
        os.close(fd)
    os.chdir(cwd)
    if "--tty" in options:
        os.setsid()
        fd = os.open(options[options.index("--tty") + 1], os.O_RDWR)
        for target in (0, 1, 2):
            os.dup2(fd, target)
        if fd > 2:
            os.close(fd)
    # A defined start, whatever the test runner was started from: nothing ignored, nothing blocked.
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
