"""``python -m scripts.tools [--write] [NAME ...]``: real programs outside and inside, and the table docs/tools.md.

Theory of operation
-------------------
For each row of ``tools.toml`` one script runs twice in fresh directories, outside and inside a sandbox with the default
policy, with the same environment; standard output and status are compared.  A difference that the row does not say is a
failure: it is printed, stands in the table, and the exit status is 1.  A program that is not installed is a line as
well.  ``--write`` makes the table, with the versions that ran; nothing in it is written by hand.  With names, the other
rows stay as they were measured.

Rows with ``registry`` talk to package registries; ``--offline`` leaves them out.  ``tests/e2e/test_tools.py`` runs the
quick rest.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from membrane.value import Value

ROWS = Path(__file__).with_name("tools.toml")
PAGE = Path(__file__).parents[1] / "docs" / "tools.md"
PATIENCE = 240  # seconds for one script
NOT_INSTALLED, SAME, REFUSED, DIFFERS, LEFT_OUT = "not installed", "same", "refused", "**differs**", "not run"


# Functions for the scripts.
_PRELUDE = r"""
repository() { git init -q -b main "$1"; cd "$1"; git config user.name A; git config user.email a@b.c; }
free_port() {  # below those that the kernel gives to whoever binds to port 0 (ip(7)): it is nobody's a moment later
  port=$(python3 -c '
import random, socket
end = int(open("/proc/sys/net/ipv4/ip_local_port_range").read().split()[0])
while True:
    port = random.SystemRandom().randrange(end // 2, end)
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            continue
    print(port)
    break
')
}
wait_port() { python3 - "$port" <<'PY'
import socket, sys, time
end = time.monotonic() + 60
while time.monotonic() < end:
    try:
        socket.create_connection(("127.0.0.1", int(sys.argv[1]))).close()
        break
    except OSError:
        time.sleep(0.02)
PY
}
with_page() { python3 - "$@" <<'PY'
import http.server, subprocess, sys, threading
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"page\n")
    def log_message(self, *_): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.exit(subprocess.run([*sys.argv[1:], f"http://127.0.0.1:{server.server_port}/"]).returncode)
PY
}
hello_c() { cat > a.c <<'C'
#include <stdio.h>
int twice(int x) { return 2 * x; }
int main(void) { printf("%d\n", twice(21)); return 0; }
C
}
"""


class Row(Value):
    """A program, or a few that belong together; ``tools.toml`` says what each field means."""

    group: str
    name: str
    needs: tuple[str, ...]
    what: str
    script: str
    network: str = ""
    refused: str = ""
    outside: bool = True
    to_know: str = ""
    registry: bool = False
    slow: bool = False
    plain: bool = False


def rows() -> list[Row]:
    """All of them, in the order of the table."""
    return [Row(**{**row, "needs": tuple(row["needs"])}) for row in _data()["row"]]


def _data() -> dict[str, Any]:
    return tomllib.loads(ROWS.read_text(encoding="utf-8"))


class Seen(Value):
    """What came out of one row."""

    outcome: str
    version: str = ""
    detail: str = ""  # of a difference, for a person


def measure(row: Row, membrane: Sequence[str], environ: Mapping[str, str], place: Path) -> Seen:
    """Run a row.

    Args:
        membrane: the program, with options that all rows get.
        environ: for both; ``HOME`` is set to a fresh directory.
        place: a directory that is shown inside when it is the workspace; fresh ones are made in it.
    """
    path = environ.get("PATH", os.defpath)
    if missing := [name for name in row.needs if shutil.which(name, path=path) is None]:
        return Seen(NOT_INSTALLED, detail=", ".join(missing))
    if row.plain and os.getuid() == 0:
        return Seen(LEFT_OUT, detail="not as root")
    version = _version(row.needs[0], environ, place)
    outside = _run(row, (), environ, place) if row.outside else None
    if outside is not None and not row.refused and outside.returncode:
        return Seen(LEFT_OUT, version, f"fails outside: {_told(outside)}")
    inside = _run(row, (*membrane, "--"), environ, place)
    if row.refused:
        if re.search(row.refused, inside.stdout + inside.stderr) and not (outside and outside.returncode):
            return Seen(REFUSED, version)
        return Seen(DIFFERS, version, f"expected a refusal; inside {_told(inside)}; outside {_told(outside)}")
    assert outside is not None
    if (inside.returncode, inside.stdout) == (outside.returncode, outside.stdout):
        return Seen(SAME, version)
    return Seen(DIFFERS, version, f"inside {_told(inside)}; outside {_told(outside)}")


def _run(row: Row, before: Sequence[str], environ: Mapping[str, str], place: Path) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory(dir=place, prefix="tool-", ignore_cleanup_errors=True) as fresh:
        home, work = Path(fresh, "home"), Path(fresh, "work")
        home.mkdir()
        work.mkdir()
        own = {**environ, "HOME": str(home), "MEMBRANE_HOME": str(home / ".membrane"), "PWD": str(work)}
        try:
            return subprocess.run(
                [*before, "sh", "-euc", _PRELUDE + row.script],
                cwd=work,
                env=own,
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=PATIENCE,
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess([], 124, "", f"no end in {PATIENCE} s")


def _told(done: subprocess.CompletedProcess[str] | None) -> str:
    if done is None:
        return "was not run"
    return f"{done.returncode}: {done.stdout[-300:]!r} {done.stderr[-600:]!r}"


def _version(program: str, environ: Mapping[str, str], place: Path) -> str:
    """The first thing with a dot that it says about itself; empty: it says nothing like that."""
    flags = {"tmux": "-V", "ssh-keygen": "", "ssh-agent": "", "go": "version", "openssl": "version", "dig": "-v"}
    flags |= {"unzip": "-v", "java": "-version", "lua5.4": "-v", "tclsh": "", "php": "-v", "nginx": "-v", "su": "-V"}
    flag = flags.get(program, "--version")
    if not flag:
        return ""
    try:
        done = subprocess.run(
            [program, flag],
            cwd=place,
            env={**environ, "HOME": str(place)},
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"\d+(?:\.\d+)+[a-z]?", done.stdout + done.stderr)
    return found[0] if found else ""


def cells(text: str) -> dict[str, list[str]]:
    """The rows of a page, by program: its cells."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    found = [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return {row[0]: row for row in found if row[0] not in ("program", "---")}


def page(seen: Mapping[str, Seen], where: str) -> str:
    """docs/tools.md."""
    out = [_data()["head"].format(where=where).rstrip("\n")]
    group = ""
    for row in rows():
        if row.group != group:
            group = row.group
            out += ["", f"## {group}", "", "| program | version | what was run | network rules | inside | to know |"]
            out.append("| --- | --- | --- | --- | --- | --- |")
        found = seen[row.name]
        outcome = f"{found.outcome}: {found.detail}" if found.outcome in (NOT_INSTALLED, LEFT_OUT) else found.outcome
        cells = (row.name, found.version or "-", row.what, row.network or "-", outcome, row.to_know or "-")
        out.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(out) + "\n"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.tools", description="Real programs outside and inside.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="rows; all where none is given")
    parser.add_argument(
        "--write", nargs="?", const=PAGE, type=Path, metavar="FILE", help="write docs/tools.md, or FILE"
    )
    parser.add_argument("--offline", action="store_true", help="leave out what needs a package registry")
    parser.add_argument("--in", dest="place", default=str(Path.home()), help="where directories are made")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        help="for membrane, in each row: --option=--allow=10.0.0.7:443 for registries at a private address",
    )
    given = parser.parse_args(arguments)
    if unknown := {*given.names} - {row.name for row in rows()}:
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    if given.write and given.offline:
        parser.error("--write is of all rows")
    program = Path(sys.executable).with_name("membrane")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MEMBRANE", "GIT_", "XDG_"))}
    seen: dict[str, Seen] = {}
    for row in rows():
        if given.names and row.name not in given.names:
            continue
        if row.registry and given.offline:
            seen[row.name] = Seen(LEFT_OUT)
        else:
            seen[row.name] = measure(row, (str(program), "--quiet", *given.option), environ, Path(given.place))
        found = seen[row.name]
        print(f"{row.name:<32} {found.version:<10} {found.outcome}  {found.detail}", flush=True)
    if given.write:
        for name, (_name, version, _what, _network, outcome, _know) in cells(PAGE.read_text(encoding="utf-8")).items():
            kind, _, detail = outcome.partition(": ")
            seen.setdefault(name, Seen(kind, "" if version == "-" else version, detail))
        who = "as root" if os.getuid() == 0 else "as a plain user"
        given.write.write_text(page(seen, f"Linux {platform.release().split('-')[0]}, {who}"), encoding="utf-8")
    outcomes = [found.outcome for found in seen.values()]
    counts = {each: outcomes.count(each) for each in (SAME, REFUSED, DIFFERS, NOT_INSTALLED, LEFT_OUT)}
    print(", ".join(f"{outcome} {number}" for outcome, number in counts.items()))
    return 1 if counts[DIFFERS] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
