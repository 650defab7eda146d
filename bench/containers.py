"""``--containers``: what it adds to a start, the first container of a cold daemon, and its network.

The image holds links into a /usr that is the machine's, bound read-only, so that inside and outside run one program.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any

from membrane.changes.removal import remove_tree

from .tools import membrane

STARTS, STREAMS, COLD = 25, 5, 5
MEGABYTES = "512"
RUN = "docker run --rm -v /usr:/usr:ro -v $PWD:/w -w /w box"
# The container waits until its engine has nothing to do: starting it takes processor time that the stream would lack.
STREAM = """
set -e
mkfifo go
for i in {times}; do
    id=$(docker run -d -v /usr:/usr:ro -v $PWD:/w -w /w box sh -c 'read line < go; exec {words} > out')
    {words}
    echo > go
    docker wait $id >&2
    cat out
    docker rm $id >&2
done
"""


def bench_containers(bench: Any, work: str, server: Any, load: list[str]) -> None:
    """Args:
    server: a context manager that gives a port of ``load.py serve``.
    load: the load generator's command, without what it is to do.
    """
    if shutil.which("dockerd") is None:
        print("containers: no dockerd here")
        return
    place = Path(work, "containers")
    place.mkdir()
    shutil.copy(Path(__file__).with_name("load.py"), place)
    _image(place / "image.tar")
    try:
        plain, nested = (membrane("--quiet", *more, "--", "true") for more in ((), ("--containers",)))
        _seconds(plain, place), _seconds(nested, place)
        pairs = [(_seconds(nested, place), _seconds(plain, place)) for _ in range(STARTS)]
        bench.add("--containers, no container", [1000 * (a - b) for a, b in pairs], "ms more", "", "<= 15")

        _inside(place, "docker import image.tar box")
        first = f"{RUN} true"
        bench.add("first docker run", [_inside(place, f"t {first}")[0] for _ in range(COLD)], "s", "", "<= 3")
        with server as port:
            words = f"{' '.join(load)} stream host.internal {port} {MEGABYTES}"
            script = STREAM.format(times=" ".join("x" * STREAMS), words=words)
            done = _run(
                membrane("--quiet", "--containers", f"-a=host.internal:{port}", "--", "sh", "-c", script), place
            )
        found = [json.loads(line) for line in done.stdout.splitlines()]
        for way in ("up", "down"):
            values = [a[way] / b[way] for b, a in zip(found[::2], found[1::2], strict=True)]
            bench.add(f"one stream of a container, {way}", values, "x", "the sandbox's own", ">= 0.8")
    finally:
        remove_tree(os.path.join(os.environ["MEMBRANE_HOME"], "containers"))


def _run(argv: list[str], cwd: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(argv, cwd=cwd, check=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)


def _seconds(argv: list[str], cwd: Path) -> float:
    begin = time.perf_counter()
    _run(argv, cwd)
    return time.perf_counter() - begin


def _inside(place: Path, script: str) -> list[float]:
    """Run a script in one sandbox; the seconds that each ``t COMMAND`` took."""
    timed = 't() { a=$(date +%s.%N); "$@" >/dev/null; date +"%s.%N $a"; }\n'
    done = _run(membrane("--quiet", "--containers", "--", "sh", "-ec", timed + script), place)
    pairs = [line.split() for line in done.stdout.decode().splitlines() if line.count(" ") == 1]
    return [float(end) - float(begin) for end, begin in pairs]


def _image(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        for name in ("usr", "tmp", "w"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for name in ("bin", "lib", "lib64", "sbin"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            archive.addfile(entry)
