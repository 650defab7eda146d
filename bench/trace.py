"""What tracing costs: the start, the command, the tracer's own processor time, the decoder.

Theory of operation
-------------------
A child waits at a pipe; the time runs from its release to its end, with the source attached and without, alternating
in random order.  The tracer drains in this process, into memory.  The ratio is to the same round's run without it.
"""

from __future__ import annotations

import os
import random
import select
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from membrane.record.decode import Decoder
from membrane.tracer.ebpf import EbpfSource, Scope, best_source

ROUNDS = 9
STRACED = 3  # rounds of strace(1), which takes several times as long
EXECS = "i=0; while [ $i -lt 5000 ]; do /bin/true; i=$((i+1)); done"
FILES = 24


def run(argv: Sequence[str], source: EbpfSource | None, pieces: list[bytes], cwd: str) -> tuple[float, float]:
    """Seconds that the command took, and seconds of processor time that draining took."""
    hold, release = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(release)
        os.read(hold, 1)
        os.chdir(cwd)
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os.execvp(argv[0], argv)
    os.close(hold)
    if source:
        source.open(Scope(pid))
    end = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(end, select.POLLIN)
    if source:
        poll.register(source.fileno(), select.POLLIN)
    begin, used = time.perf_counter(), time.process_time()
    os.close(release)
    while not any(fd == end for fd, _ in poll.poll()):
        if source:
            source.drain(pieces.append)
    took = time.perf_counter() - begin
    if source:
        source.drain(pieces.append)
    used = time.process_time() - used
    os.waitpid(pid, 0)
    os.close(end)
    return took, used


def project(work: str) -> str:
    """A C project of ``FILES`` files and a Makefile."""
    root = Path(work) / "project"
    root.mkdir()
    names = [f"f{number}" for number in range(FILES)]
    for name in names:
        lines = ("#include <stdio.h>", "#include <string.h>", f"int {name}(void) {{ return puts(__FILE__); }}", "")
        (root / f"{name}.c").write_text("\n".join(lines))
    (root / "Makefile").write_text(
        f"all: {' '.join(name + '.o' for name in names)}\n\tar rc liball.a $^\nclean:\n\trm -f *.o liball.a\n"
    )
    return str(root)


def ebpf(bench: Any, work: str) -> None:
    """The eBPF source; only for callers who can have it."""
    source = best_source()
    if isinstance(source, str):
        print(f"ebpf: {source}", file=sys.stderr)
        return
    source.close()
    cold, warm = [], []
    for _ in range(5):
        begin = time.perf_counter()
        private = EbpfSource(shared=False)
        private.prepare()
        cold.append(1000 * (time.perf_counter() - begin))
        private.close()
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        shared = EbpfSource()
        shared.open(Scope(os.getpid()))
        shared.close()
        warm.append(1000 * (time.perf_counter() - begin))
    bench.add("eBPF: load and attach, first of all", cold, "ms", "", "<= 600")
    bench.add("eBPF: attach and detach, warm", warm, "ms", "", "<= 30")
    workloads: dict[str, tuple[list[str], str, str]] = {
        "find / -xdev": (["find", "/", "-xdev"], "/", "<= 1.35"),
        "5,000 execs": (["sh", "-c", EXECS], "/", "<= 1.25"),
    }
    if shutil.which("gcc") and shutil.which("make"):
        command = "make -s clean; make -s -j2"
        workloads[f"make, {FILES} files"] = (["sh", "-c", command], project(work), "<= 1.08")
    for name, (argv, cwd, target) in workloads.items():
        run(argv, None, [], cwd)
        found, per_event, lost = [], [], 0
        pieces: list[bytes] = []
        for _ in range(ROUNDS):
            pieces = []
            times = {}
            for traced in random.sample((False, True), 2):
                source = EbpfSource() if traced else None
                times[traced], used = run(argv, source, pieces, cwd)
                if source:
                    events = source.written
                    lost += sum(source.losses().values())
                    per_event.append(1e6 * used / max(1, events))
                    source.close()
            found.append(times[True] / times[False])
        bench.add(f"eBPF: {name}", found, "x", "untraced", target)
        if shutil.which("strace"):
            strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=%file,%process,%network"]
            pairs = [(run([*strace, *argv], None, [], cwd)[0], run(argv, None, [], cwd)[0]) for _ in range(STRACED)]
            bench.add(f"strace -f: {name}", [with_ / alone for with_, alone in pairs], "x", "untraced", "")
        bench.add(f"eBPF: {name}, drain", per_event, "us/event", "", "<= 0.3")
        bench.add(f"eBPF: {name}, lost", [lost], "", "", "0")
        rates = []
        for _ in range(5):
            decoder, count = Decoder(), 0
            begin = time.process_time()
            for piece in pieces:
                for _event in decoder.decode(piece):
                    count += 1
            rates.append(count / (time.process_time() - begin) / 1000)
        bench.add(f"eBPF: {name}, decode", rates, "k/s", "", ">= 150")
