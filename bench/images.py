"""Images against the host's trees and against skopeo with umoci: warm starts, and a fetch from a registry; in turns.

The image that is started is made here, of ``true`` and names of no use, with as many layers as usual ones have.  What
is fetched has ``PULLED`` bytes of this machine's libraries, over loopback.  Both sides leave their files unpacked.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from .tools import membrane, ratios

ROUNDS = 15
LAYERS = 8
PULLED = 500_000_000  # bytes, unpacked
PULLS = 3
TOOLS = ("skopeo", "umoci", "docker-registry")
LIBRARIES = "/usr/lib"


class Rows(Protocol):
    def add(self, name: str, values: list[float], unit: str, against: str, target: str) -> None: ...


def bench_images(bench: Rows, work: str) -> None:
    """A warm start of ``true`` with an image; a fetch, where the tools for it are installed."""
    linked = subprocess.run(["ldd", "/bin/true"], check=True, capture_output=True, text=True).stdout.split()
    needed = ["/bin/true", *dict.fromkeys(word for word in linked if word.startswith("/"))]
    first = [*((path[1:], Path(path).read_bytes()) for path in needed), ("etc/passwd", b"root:x:0:0::/:/bin/sh\n")]
    above = [[(f"{top}/of{number}", b"x") for top in ("etc", "opt", "usr/lib", "var/lib")] for number in range(LAYERS)]
    layout = _image(Path(work) / "image", [_layer(first), *(_layer(entries) for entries in above[1:])])
    workspace = Path(work) / "workspace"
    workspace.mkdir()
    image, host = membrane("--quiet", f"--image=oci:{layout}", "--", "true"), membrane("--quiet", "--", "true")

    def start(argv: list[str]) -> float:
        begin = time.perf_counter()
        subprocess.run(argv, cwd=workspace, check=True, stdin=subprocess.DEVNULL)
        return 1000 * (time.perf_counter() - begin)

    pairs = [(start(image), start(host)) for _ in range(ROUNDS + 1)][1:]
    bench.add(f"--image of {LAYERS} layers", [x - y for x, y in pairs], "ms more", "the host's trees", "<= 10")
    if all(map(shutil.which, TOOLS)):
        _bench_pull(bench, Path(work))


def _bench_pull(bench: Rows, work: Path) -> None:
    layers, entries, size, total = list[bytes](), list[tuple[str, bytes]](), 0, 0
    for path in _files(LIBRARIES):
        data = path.read_bytes()
        entries.append((str(path)[1:], data))
        size += len(data)
        if size >= PULLED // 5:
            layers.append(_layer(entries))
            total, size, entries = total + size, 0, []
        if total + size >= PULLED:
            break
    layout = _image(work / "large", layers or [_layer(entries)])
    home = work / "home"
    (home / ".config/containers").mkdir(parents=True)
    (home / ".config/containers/policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    environ = {**os.environ, "HOME": str(home), "XDG_RUNTIME_DIR": str(home)}
    with _registry(work / "registry") as port:
        name = f"localhost:{port}/large"
        (home / ".config/containers/registries.conf").write_text(
            f'[[registry]]\nlocation = "localhost:{port}"\ninsecure = true\n'
        )

        def timed(*commands: list[str]) -> Callable[[], float]:
            def run() -> float:
                begin = time.perf_counter()
                for command in commands:
                    subprocess.run(command, env=environ, check=True, capture_output=True)
                return time.perf_counter() - begin

            return run

        subprocess.run(
            ["skopeo", "copy", f"oci:{layout}", f"docker://{name}"], env=environ, check=True, capture_output=True
        )
        unpacked, bundle = work / "unpacked", work / "bundle"
        state = {**environ, "MEMBRANE_HOME": str(work / "state")}
        ours = timed(["env", f"MEMBRANE_HOME={state['MEMBRANE_HOME']}", *membrane("image", "pull", name)])
        rootless = ["--rootless"] if os.geteuid() else []
        theirs = timed(
            ["skopeo", "copy", f"docker://{name}", f"oci:{unpacked}:image"],
            ["umoci", "unpack", *rootless, "--image", f"{unpacked}:image", str(bundle)],
        )
        a, b = [], []
        for _ in range(PULLS):
            a.append(ours())
            b.append(theirs())
            for made in (work / "state", unpacked, bundle):
                shutil.rmtree(made)
        bench.add(f"pull of {total / 1e6:.0f} MB", a, "s", "", "")
        bench.add("pull / skopeo copy and umoci unpack", ratios(a, b), "x", "skopeo and umoci", "<= 1.3")


def _files(top: str) -> Iterator[Path]:
    for directory, below, names in os.walk(top):
        below.sort()
        for name in sorted(names):
            path = Path(directory, name)
            if path.is_file() and not path.is_symlink() and os.access(path, os.R_OK):
                yield path


def _layer(entries: list[tuple[str, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in entries:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o755
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def _image(place: Path, layers: list[bytes]) -> Path:
    """An OCI image layout of these layers."""
    (place / "blobs/sha256").mkdir(parents=True)

    def put(kind: str, data: bytes) -> dict[str, str | int]:
        digits = hashlib.sha256(data).hexdigest()
        (place / "blobs/sha256" / digits).write_bytes(data)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digits}", "size": len(data)}

    blobs = [put("layer.v1.tar+gzip", gzip.compress(each, 1)) for each in layers]
    root = {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(each).hexdigest()}" for each in layers]}
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    said = {"architecture": machine, "os": "linux", "rootfs": root, "config": {"Env": ["PATH=/bin"]}}
    config = put("config.v1+json", json.dumps(said).encode())
    manifest = {"schemaVersion": 2, "config": config, "layers": blobs}
    entry = put("manifest.v1+json", json.dumps(manifest).encode())
    (place / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (place / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    return place


@contextmanager
def _registry(place: Path) -> Iterator[int]:
    """Docker's registry on a port of loopback."""
    place.mkdir()
    (place / "config.yml").write_text(
        f"version: 0.1\nlog: {{level: info, accesslog: {{disabled: true}}}}\n"
        f"storage: {{filesystem: {{rootdirectory: {place}/data}}}}\nhttp: {{addr: 127.0.0.1:0}}\n"
    )
    words = ["docker-registry", "serve", str(place / "config.yml")]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(rb"listening on 127\.0\.0\.1:(\d+)", line):
                yield int(found[1])
                break
    finally:
        process.kill()
        process.wait()
