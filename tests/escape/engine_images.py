"""Images of containers, made of what is installed here: no registry has to be reached.

Theory of operation
-------------------
An image is a tar archive of programs, the libraries that the dynamic linker names for them (ldd(1)) and their data, all
at their own places, beside a busybox with links for its applets.  ``docker import`` and ``podman import`` take it.
"""

from __future__ import annotations

import functools
import http.server
import io
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path

APPLETS = (
    "sh", "cat", "chmod", "chown", "echo", "grep", "httpd", "id", "ip", "kill", "ls", "mkdir", "mount", "mknod",
    "nslookup", "ping", "rm", "sleep", "test", "touch", "umount", "wget",
)  # fmt: skip
ROOT, POSTGRES_USER = "root:x:0:0::/:/bin/sh\n", "postgres:x:70:70::/tmp:/bin/sh\n"
# As Docker's own image of PostgreSQL does: a cluster of the user and the database that the variables name.
POSTGRES = """\
#!/bin/sh -e
mkdir -p -m 700 "$PGDATA"
echo "$POSTGRES_PASSWORD" > /tmp/password
initdb -A scram-sha-256 --no-locale -E UTF8 -N -U "${POSTGRES_USER:-postgres}" --pwfile=/tmp/password > /tmp/log
echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
echo "CREATE DATABASE \\"${POSTGRES_DB:-app}\\"" | postgres --single -F postgres > /tmp/log
exec postgres -h '*' -k /tmp -F
"""


class Answer(http.server.BaseHTTPRequestHandler):
    """An allowed server: says which path was fetched."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"fetched " + self.path.encode())

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def _libraries(program: str) -> set[str]:
    """The files of its dynamic linker's list, by the names it opens them by."""
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)  # 1: not a dynamic one
    return set(re.findall(r"(?:=> |^\t)(/\S+) \(0x", done.stdout, re.MULTILINE))


def _text(archive: tarfile.TarFile, name: str, text: str, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(text.encode()), mode
    archive.addfile(entry, io.BytesIO(text.encode()))


def _link(archive: tarfile.TarFile, name: str, to: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, to
    archive.addfile(entry)


def make(
    path: Path, programs: Iterable[str] = (), trees: Iterable[str] = (), texts: dict[str, str] | None = None
) -> None:
    """Write an image.

    Args:
        programs: paths of programs; each has its libraries with it, and a link in ``/usr/bin`` where it lies elsewhere.
        trees: directories, whole.
        texts: place -> content of further programs.
    """
    busybox = shutil.which("busybox")
    assert busybox is not None, "busybox is not installed"
    files = {program for program in programs if Path(program).exists()}
    shared = files.union(_libraries(busybox), *map(_libraries, files))
    more = {name.lstrip("/"): text for name, text in (texts or {}).items()}
    with tarfile.open(path, "w") as archive:
        # Each directory with its mode: the engine makes the missing ones for root alone.
        places = [Path(name.lstrip("/")).parents for name in (*shared, *trees, *more, "/var/x", "/bin/x")]
        needed = {str(place) for above in places for place in above} | {"tmp", "etc", "usr/bin"}
        for directory in sorted(needed - {"."}):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if directory == "tmp" else 0o755
            archive.addfile(entry)
        archive.add(busybox, "bin/busybox")
        su = archive.gettarinfo(busybox, "bin/su")
        su.type, su.size, su.mode = tarfile.REGTYPE, Path(busybox).stat().st_size, 0o4755  # as distributions have it
        with Path(busybox).open("rb") as file:
            archive.addfile(su, file)
        for name in APPLETS:
            _link(archive, f"bin/{name}", "busybox")
        _text(archive, "etc/passwd", more.pop("etc/passwd", ROOT))
        _text(archive, "etc/group", "root:x:0:\n")  # BuildKit asks for it
        for tree in trees:
            archive.add(tree, tree.lstrip("/"))
        for name in sorted(shared):
            entry = archive.gettarinfo(str(Path(name).resolve()), name.lstrip("/"))
            with Path(name).open("rb") as file:
                archive.addfile(entry, file)
            if name in files and Path(name).parent.name == "bin" and not name.startswith("/usr/bin/"):
                _link(archive, f"usr/bin/{Path(name).name}", name)
        for name, text in more.items():
            _text(archive, name, text, 0o755)


@functools.cache
def postgres() -> str:
    """The directory of the programs of the newest PostgreSQL here; empty without one."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    return str(max(found, key=lambda path: float(path.parent.name))) if found else ""


def services(path: Path, texts: dict[str, str]) -> None:
    """An image with PostgreSQL, Redis and their clients; ``/usr/bin/start-postgres`` makes a database and serves it."""
    home = Path(postgres())
    names = [f"{home}/{name}" for name in ("postgres", "initdb", "psql")]
    library, share = home.parent / "lib", Path("/usr/share/postgresql") / home.parent.name
    modules = [str(library / name) for name in ("plpgsql.so", "dict_snowball.so", "libpqwalreceiver.so")]
    more = {"/usr/bin/start-postgres": POSTGRES, "/etc/passwd": ROOT + POSTGRES_USER, **texts}
    make(path, [*names, *modules, "/usr/bin/redis-server", "/usr/bin/redis-cli"], [str(share)], more)
