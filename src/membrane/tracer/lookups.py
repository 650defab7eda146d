"""The question of the C library for nscd: a refused socket that no program asked for.

Theory of operation
-------------------
Before it reads /etc/passwd and its like, glibc asks a cache of names over a socket of AF_UNIX (nscd(8); ``open_socket``
in nscd/nscd_helper.c), and goes on without it where it gets none.  So ``id``, ``ls -l`` and every start of a shell have
a refusal where unix sockets are refused as a whole, and those that matter stand between.  Which address is meant is not
known at socket(2), and what it names would be the command's own text.  The fact is who calls: the function that made
the system call returns into the C library, so the library itself wants that socket, and of these only nscd's client
asks for this type.  A program's own call returns into the program, or into a library of its own.

The library is known by its file, device and inode: the one that runs here too.  A command that jumps into the middle of
it can look the same; it gets no socket by that, and the refusal is on the record as any other.

Only where a call leaves its return address on the stack (x86_64), and where the view has the host's own library; else
the refusal is told as others are.
"""

from __future__ import annotations

import os

from ..host import notify, syscalls

AF_UNIX = 1
_STREAM = 1 | 0o4000 | 0o2000000  # SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC
_LIBRARY = b"/libc.so.6"
LONGEST_MAPS = 1 << 18  # bytes of /proc/PID/maps that are looked through


class Lookups:
    """Tells the C library's own sockets from those of programs."""

    def __init__(self) -> None:
        self._library: tuple[bytes, bytes] | None = None  # device and inode, as proc(5) writes them

    def is_one(self, thread: int, family: int, kind: int, protocol: int) -> bool:
        """Is this socket(2), in which ``thread`` waits, the C library's question for nscd?  Unknown is no.

        Args:
            thread: by our number.
            family: the arguments of the call; only their low 32 bits count.
            kind: the same.
            protocol: the same.
        """
        if [each & 0xFFFFFFFF for each in (family, kind, protocol)] != [AF_UNIX, _STREAM, 0]:
            return False
        if syscalls.MACHINE != "x86_64":
            return False
        try:
            # proc_pid_syscall(5): number, six arguments, stack pointer, program counter.
            words = _read(b"/proc/%d/syscall" % thread, 4096).split()
            if len(words) != 9:
                return False
            back = notify.read_memory(thread, int(words[7], 16), 8)
            if self._library is None:
                self._library = next(
                    (file for _, _, file, path in _mapped(b"self") if path.endswith(_LIBRARY)), (b"", b"")
                )
            places = {int(words[8], 16), int.from_bytes(back, "little")}
            found = {
                place
                for start, end, file, _ in _mapped(b"%d" % thread)
                for place in places
                if file == self._library and start <= place < end
            }
        except (OSError, ValueError):
            return False
        return len(back) == 8 and found == places


def _mapped(process: bytes) -> list[tuple[int, int, tuple[bytes, bytes], bytes]]:
    """(start, end, (device, inode), path) of the files that a process has mapped to execute."""
    out = []
    for line in _read(b"/proc/%s/maps" % process, LONGEST_MAPS).split(b"\n"):
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[1][2:3] == b"x" and fields[4] != b"0":
            start, _, end = fields[0].partition(b"-")
            out.append((int(start, 16), int(end, 16), (fields[3], fields[4]), fields[5]))
    return out


def _read(path: bytes, most: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        out = b""
        while len(out) < most and (piece := os.read(fd, most - len(out))):  # a page at a time
            out += piece
        return out
    finally:
        os.close(fd)
