"""One sandbox for one test: an own workspace, an own state directory, an own home, and an attacker's tool box.

Theory of operation
-------------------
``Box.attack`` runs a Python script inside and returns what each attempt came to: ``"ok"`` or the name of the errno.
The same script runs outside of the sandbox with ``Box.control``: an attack that would fail anyway proves nothing.
The interpreter and the package that run membrane are those of the tests, also when the package is not installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import membrane
from started import Started

SOURCE = str(Path(membrane.__file__).resolve().parent.parent)
MEMBRANE = (
    sys.executable,
    "-P",
    "-c",
    f"import sys; sys.path.insert(0, {SOURCE!r}); from membrane.ui.cli import main; sys.exit(main(sys.argv[1:]))",
)
# Root would get events from eBPF (tests/e2e/test_trace_ebpf.py); this one has the command's notifications alone.
WITHOUT_EBPF = (
    *MEMBRANE[:-1],
    f"import sys; sys.path.insert(0, {SOURCE!r}); import membrane.tracer.ebpf as ebpf; ebpf.OBJECT = '/nowhere'; "
    "from membrane.ui.cli import main; sys.exit(main(sys.argv[1:]))",
)
PYTHON = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable
SECONDS = 180  # one run on a machine with much other work: a bound, not a measurement

# What an attack script finds: ``attempt(name, action)`` and ``call(name, number, *arguments)``.
TOOLS = r"""
import ctypes, errno, json, os, sys
_libc = ctypes.CDLL(None, use_errno=True)
_results = {}
X86 = os.uname().machine == "x86_64"
AT_FDCWD, RENAME_EXCHANGE, RENAME_NOREPLACE = -100, 2, 1

def attempt(name, action):
    try:
        value = action()
    except OSError as error:
        value = errno.errorcode.get(error.errno, str(error.errno))
    except MemoryError:
        value = "ENOMEM"
    else:
        value = "ok" if value is None or isinstance(value, int) else value
    _results[name] = value
    return value

def syscall(number, *arguments):
    "A raw call; a pair is (x86_64, aarch64)."
    if isinstance(number, tuple):
        number = number[0 if X86 else 1]
    ctypes.set_errno(0)
    values = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = _libc.syscall(ctypes.c_long(number), *values)
    if result < 0:
        raise OSError(ctypes.get_errno(), "syscall")
    return result

def read(path):
    "Open for reading.  A hidden file that may be read has nothing in it: then the value is 'empty'."
    def action():
        fd = os.open(path, os.O_RDONLY)
        status = os.fstat(fd)
        regular = status.st_mode & 0o170777 == 0o100444 and not os.path.realpath(path).startswith("/proc/")
        empty = regular and not status.st_size and os.read(fd, 1) == b""
        os.close(fd)
        return "empty" if empty else None
    return action

def write(path, text="evil"):
    def action():
        fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        os.write(fd, text.encode())
        os.close(fd)
    return action

def exchange(one, two):
    return lambda: syscall((316, 276), AT_FDCWD, one.encode(), AT_FDCWD, two.encode(), RENAME_EXCHANGE)

def link_of(fd, path):
    "linkat(2) of an open file."
    return lambda: syscall((265, 37), AT_FDCWD, f"/proc/self/fd/{fd}".encode(), AT_FDCWD, path.encode(), 0x400)

def wait_for(condition, seconds=60):
    import time
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return "timeout"
        time.sleep(0.01)
    return "ok"

def say(name, value):
    _results[name] = value
"""
REPORT = "\nsys.stdout.write('\\n' + json.dumps(_results) + '\\n')\n"


class Box:
    """Workspace, state and home of one test, and the two ways to run something in them."""

    def __init__(self, place: Path, *, below_home: bool = False, options: tuple[str, ...] = ()) -> None:
        self.options = options  # of every run
        self.home = place / "home"
        self.state = place / "state"
        self.workspace = (self.home / "projects" / "app") if below_home else place / "workspace"
        for path in (self.home, self.state, self.workspace):
            path.mkdir(parents=True, mode=0o755)
        self.events = place / "events.jsonl"
        self.environment = {
            "HOME": str(self.home),
            "MEMBRANE_HOME": str(self.state),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "TERM": "dumb",
            "LC_ALL": "C.UTF-8",
        }

    def policy(self, **keys: object) -> None:
        """Replace the user's policy file; without one the presets of the package are in force."""
        (self.state / "config.yaml").write_text(json.dumps(keys))

    def file(self, name: str, text: str = "", mode: int = 0o644) -> Path:
        """A file of the workspace, with its directories."""
        path = self.workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def arguments(self, command: tuple[str, ...], options: tuple[str, ...]) -> list[str]:
        return [*MEMBRANE, "--events", str(self.events), *self.options, *options, "--", *command]

    def run(
        self,
        *command: str,
        options: tuple[str, ...] = (),
        workspace: Path | None = None,
        environment: dict[str, str] | None = None,
        **more: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``command`` inside and wait."""
        more.setdefault("stdin", subprocess.DEVNULL)
        more.setdefault("timeout", SECONDS)
        return subprocess.run(
            self.arguments(command, options),
            cwd=workspace or self.workspace,
            env={**self.environment, **(environment or {})},
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            check=False,
            **more,
        )

    def start(self, *command: str, options: tuple[str, ...] = (), **more: Any) -> subprocess.Popen[str]:
        """Run ``command`` inside without waiting; its stdin and stdout are pipes."""
        return Started(
            self.arguments(command, options),
            cwd=self.workspace,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=0,
            **more,
        )

    def attack(self, script: str, *options: str, **more: Any) -> dict[str, Any]:
        """Run an attack script inside; what each attempt came to."""
        done = self.run(PYTHON, "-S", "-c", TOOLS + script + REPORT, options=options, **more)
        assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
        return self._results(done.stdout)

    def control(self, script: str, *, cwd: Path | None = None) -> dict[str, Any]:
        """Run the same kind of script on the host."""
        done = subprocess.run(
            [PYTHON, "-S", "-c", TOOLS + script + REPORT],
            cwd=cwd or self.workspace,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
        return self._results(done.stdout)

    @staticmethod
    def _results(stdout: str) -> dict[str, Any]:
        results: dict[str, Any] = json.loads(stdout.strip().splitlines()[-1])
        return results

    def record(self, kind: str = "") -> list[dict[str, Any]]:
        """The events so far, of one kind or all; each line must be one JSON object."""
        if not self.events.exists():
            return []
        events = [json.loads(line) for line in self.events.read_text().splitlines()]
        return [event for event in events if not kind or event["event"] == kind]

    def moved(self) -> set[str]:
        """Workspace paths of the names that were taken away, as recorded."""
        return {event["path"] for event in self.record("NameQuarantined")}

    def refused(self, path: str) -> bool:
        """Whether a refusal of this workspace path was recorded."""
        return any(event["access"].get("path") == path for event in self.record("AccessDenied"))


def until(ask: Callable[[], str], wanted: str) -> str:
    """Ask until the answer is ``wanted`` and then is so many times in a row; the last answer."""
    deadline = time.monotonic() + SECONDS / 3
    in_a_row = 0
    while time.monotonic() < deadline and in_a_row < 50:
        answer = ask()
        in_a_row = in_a_row + 1 if answer == wanted else 0
    return answer


@contextmanager
def inside(box: Box, script: str, *options: str) -> Iterator[Callable[[str], str]]:
    """A Python script inside that is talked to by lines: ``ask(line)`` gives the answer of its ``answer(line)``."""
    loop = "\nfor line in sys.stdin:\n    print(answer(line.strip()), flush=True)\n"
    process = box.start(PYTHON, "-S", "-c", TOOLS + script + loop, options=options)
    assert process.stdin and process.stdout

    def ask(line: str) -> str:
        assert process.stdin and process.stdout
        process.stdin.write(line + "\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    try:
        yield ask
    finally:
        process.stdin.close()
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        process.stdout.close()
        assert process.stderr
        process.stderr.close()
