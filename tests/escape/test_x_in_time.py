"""A run ends within a second of work after its time limit or SIGTERM, whatever the command does.

Each flood is made for one of the parsers, queues or walks that read what the command made, and goes on for ever: that
the run has ended with the status of the limit, or of the signal, says what ended it.

On a machine that runs other tests at the same time a second has as many seconds as they leave of it.  So the time that
is judged is that of processors, of the run with all its processes; what only waits is found by ``PATIENCE``.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from escape_box import PYTHON, Box

LIMIT = 2.0  # seconds that the command is given
END = 1.0  # seconds after that in which a run ends
MARGIN = 6.0  # seconds more, for its start and for a slow processor
PATIENCE = 25.0  # seconds until a run is given up: less than a run waits for one of its own processes that hangs
AT_ONCE = min(4, len(os.sched_getaffinity(0)))  # processors that a flood, and what looks at it, keep busy
# What else ends such a run, with 125: the kernel's limit of mounts, and ours of protected names.
OTHER_ENDS = (
    "cannot mask a name that appeared: move_mount: No space left",
    "protected names; it was killed",
    "it made more than 500 protected names",
    "times, though it is a protected name and was put aside each time",
    "looking for protected names took longer than",
)
FLOODED = 1.0  # seconds of flood before the signal
pytestmark = pytest.mark.floods

BEGIN = r"""
import os, signal, socket, sys, threading, time
def begun():
    os.write(1, b"begun\n")
"""
FILES = {
    "pointers": r"""
begun()
while True:
    for n in range(60):
        os.makedirs(f"p{n}", exist_ok=True)
        try:
            with open(f"p{n}/.git", "w") as file: file.write("gitdir: " + "a/" * 524000)
        except OSError: pass
""",
    "long values of git configuration": r"""
begun()
while True:
    for n in range(60):
        try:
            os.makedirs(f"r{n}/.git", exist_ok=True)
            with open(f"r{n}/.git/config", "w") as file: file.write("[core]\n\tbare = " + "x" * 1000000)
        except OSError: pass
""",
    "many settings of git configuration": r"""
begun()
while True:
    for n in range(1500):
        try:
            os.makedirs(f"r{n}/.git", exist_ok=True)
            with open(f"r{n}/.git/config", "w") as file: file.write("[core]\n" + "\tbare = false\n" * 9000)
        except OSError: pass
""",
    "deep pointers": r"""
deep = "/".join("d" * 20 for _ in range(150))
os.makedirs(deep)
begun()
while True:
    for n in range(300):
        os.makedirs(f"p{n}", exist_ok=True)
        try:
            with open(f"p{n}/.git", "w") as file: file.write(f"gitdir: ../{deep}")
        except OSError: pass
""",
    "protected names": r"""
begun()
for n in range(10000):
    try:
        os.makedirs(f"b/{n}/.git")
        with open(f"b/{n}/.git/config", "w") as file: file.write("[core]\n\tbare = false\n")
    except OSError: pass
while True: pass
""",
    "hidden names": r"""
begun()
for n in range(300):
    try:
        os.makedirs(f"h/{n}")
        with open(f"h/{n}/.env", "w") as file: file.write("x")
    except OSError: pass
while True: pass
""",
    "a wide tree": r"""
begun()
for n in range(200000):
    if n % 100 == 0: os.makedirs(f"t/{n}")
    open(f"t/{n - n % 100}/f{n}", "w").close()
while True: pass
""",
    "a deep tree": r"""
begun()
for n in range(600):
    try: os.mkdir("d" * 50); os.chdir("d" * 50)
    except OSError: break
    if n % 10 == 0:
        try: os.mkdir(".git")
        except OSError: pass
while True: pass
""",
    "closed directories": r"""
begun()
for n in range(3000):
    os.makedirs(f"c{n}/x"); os.chmod(f"c{n}/x", 0); os.chmod(f"c{n}", 0)
while True: pass
""",
}
OTHERS = {
    "events": r"""
begun()
while True:
    for n in range(100): os.close(os.open(f"/tmp/{n}", os.O_CREAT | os.O_WRONLY)); os.unlink(f"/tmp/{n}")
""",
    "refusals": r"""
begun()
n = 0
while True:
    n += 1
    with socket.socket() as sock:
        sock.settimeout(0.2)
        try: sock.connect((f"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}", 80))
        except OSError: pass
""",
    "arguments": r"""
big = ["x" * 100000] * 18
begun()
while True:
    pid = os.fork()
    if not pid:
        try: os.execv("/bin/true", ["true", *big])
        finally: os._exit(1)
    os.waitpid(pid, 0)
""",
    "names asked for": r"""
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); sock.connect(("9.9.9.9", 53)); sock.setblocking(False)
begun()
n = 0
while True:
    n += 1
    name = b"n%d" % n
    try:
        sock.send(b"\x12\x34\1\0\0\1\0\0\0\0\0\0" + bytes([len(name)]) + name + b"\7example\3com\0\0\1\0\1")
        sock.recv(512)
    except OSError: pass
""",
    "requests": r"""
def flood():
    while True:
        try:
            sock = socket.create_connection(("rec.example.com", 8080), timeout=5)
            path = "/v2/" + "sk-" * 10800
            sock.sendall(f"POST {path} HTTP/1.1\r\nHost: rec.example.com:8080\r\n\r\n".encode() * 3)
            while sock.recv(65536): pass
        except OSError: pass
begun()
for _ in range(8): threading.Thread(target=flood).start()
""",
    "output": r"""
begun()
while True: os.write(1, b"\x1b[31m" * 10000)
""",
    "processes": r"""
begun()
while True:
    try:
        if not os.fork(): signal.pause()
    except OSError: pass
""",
}
FLOODS = {**FILES, **OTHERS}


@pytest.fixture
def flooded(box: Box) -> Iterator[Box]:
    box.policy(
        allow=["*.example.com", {"dest": "http://rec.example.com:8080/v1/", "http": [{"methods": ["GET"]}]}],
        ignore=[".env"],
        limits={"pids": 200},
    )
    yield box
    # Deeper than a recursion of Python goes, and perhaps closed.
    for command in (["rm", "-rf"], ["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
        if box.workspace.exists():
            subprocess.run([*command, str(box.workspace)], stderr=subprocess.DEVNULL, check=False)


def _used() -> float:
    """Seconds of processors that processes which have ended took, with their own."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _begin(box: Box, script: str, *options: str) -> tuple[subprocess.Popen[bytes] | None, float]:
    """A run whose flood has begun, or None when it ended before; ``_used`` before it."""
    arguments = box.arguments((PYTHON, "-S", "-c", BEGIN + script), (*options, "--no-presets"))
    arguments = [each for each in arguments if each not in ("--events", str(box.events))]
    before = _used()
    run = subprocess.Popen(
        arguments, cwd=box.workspace, env=box.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert run.stdout is not None
    if os.read(run.stdout.fileno(), 6) == b"begun\n":
        return run, before
    run.kill()
    _, told = run.communicate()
    print(told.decode(errors="replace"))  # shown where the test fails
    return None, before


def _unlimited(box: Box, script: str) -> tuple[subprocess.Popen[bytes], float]:
    run, before = _begin(box, script)
    assert run is not None, "the flood did not begin"
    return run, before


def _limited(box: Box, script: str, *options: str) -> tuple[subprocess.Popen[bytes], float, float]:
    """With a time limit, which is longer where the start alone takes so long; that limit is the last."""
    for limit in (LIMIT, 5 * LIMIT):
        run, before = _begin(box, script, *options, "--limit", f"time={limit:.0f}s")
        if run is not None:
            return run, before, limit
    pytest.fail("the flood did not begin")


def _seconds(run: subprocess.Popen[bytes], before: float) -> tuple[int, float, str]:
    """Status, and seconds of processors of the whole run."""
    try:
        _, told = run.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        run.kill()
        _, told = run.communicate()
    return run.returncode, _used() - before, told[-2000:].decode(errors="replace")


@pytest.mark.parametrize("flood", FLOODS)
def test_a_run_ends_at_its_time_limit(flooded: Box, flood: str) -> None:
    run, before, limit = _limited(flooded, FLOODS[flood])
    status, seconds, told = _seconds(run, before)
    assert status == 124 or (status == 125 and any(end in told for end in OTHER_ENDS)), told
    assert seconds < limit * AT_ONCE + END + MARGIN, told


@pytest.mark.parametrize("flood", FLOODS)
def test_a_run_ends_at_sigterm(flooded: Box, flood: str) -> None:
    run, before = _unlimited(flooded, FLOODS[flood])
    try:
        run.wait(FLOODED)
    except subprocess.TimeoutExpired:
        run.send_signal(signal.SIGTERM)
    status, seconds, told = _seconds(run, before)
    assert status == 128 + signal.SIGTERM or (status == 125 and any(end in told for end in OTHER_ENDS)), told
    assert seconds < FLOODED * AT_ONCE + END + MARGIN, told


@pytest.mark.parametrize("flood", FILES)
def test_a_run_that_is_not_traced_ends_at_its_time_limit(flooded: Box, flood: str) -> None:
    """Without the tracer nothing is refused in advance, so the guard sees all of it."""
    run, before, limit = _limited(flooded, FLOODS[flood], "--no-trace")
    status, seconds, told = _seconds(run, before)
    assert status == 124 or (status == 125 and any(end in told for end in OTHER_ENDS)), told
    assert seconds < limit * AT_ONCE + END + MARGIN, told


def test_masks_are_mounted_while_pointers_are_judged(flooded: Box, tmp_path: Path) -> None:
    """One file of 524,000 components once kept what should be hidden readable for 39 seconds."""
    script = r"""
os.makedirs("p")
with open("p/.git", "w") as file: file.write("gitdir: " + "a/" * 524000)
begun()
while True:
    try:
        open(".env").close()
    except FileNotFoundError:
        pass
    except OSError:
        break
"""
    run, before = _unlimited(flooded, script)
    (flooded.workspace / ".env").write_text("late")  # from outside: the command may not make it
    status, seconds, told = _seconds(run, before)
    assert status == 0, told
    assert seconds < END + MARGIN, told
