"""Images in the OCI image layout, made for a test without any program of containers."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

from membrane.policy.grammar import parse_platform

ARCHITECTURE = parse_platform(f"linux/{os.uname().machine}").split("/")[1]
TYPES = {"manifest": "manifest.v1+json", "config": "config.v1+json", "layer": "layer.v1.tar+gzip"}


def layer(*entries: tuple[str, bytes | str | None] | tuple[str, bytes | str | None, int]) -> bytes:
    """A tar archive: of each entry its name, its content (a text: what a link says; None: a directory) and its mode."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content, *mode in entries:
            info = tarfile.TarInfo(name)
            info.mode = mode[0] if mode else 0o755  # type: ignore[assignment]
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
            elif content is None:
                info.type = tarfile.DIRTYPE
            else:
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    return out.getvalue()


def _put(place: Path, kind: str, data: bytes) -> dict[str, Any]:
    digits = hashlib.sha256(data).hexdigest()
    (place / "blobs/sha256").mkdir(parents=True, exist_ok=True)
    (place / "blobs/sha256" / digits).write_bytes(data)
    named = f"application/vnd.oci.image.{TYPES[kind]}"
    return {"mediaType": named, "digest": f"sha256:{digits}", "size": len(data)}


def image(place: Path, *layers: bytes, architecture: str = ARCHITECTURE, **config: Any) -> Path:
    """Write an image of these layers, the lowest first, with this ``config``; what was there before stays."""
    blobs = [_put(place, "layer", gzip.compress(each, 1)) for each in layers]
    ids = [f"sha256:{hashlib.sha256(each).hexdigest()}" for each in layers]
    root = {"type": "layers", "diff_ids": ids}
    machine = {"architecture": architecture, "os": "linux", "rootfs": root, "config": config}
    named = _put(place, "config", json.dumps(machine).encode())
    manifest = {"schemaVersion": 2, "config": named, "layers": blobs}
    entry = _put(place, "manifest", json.dumps(manifest).encode())
    (place / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (place / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    return place


def archive(layout: Path, file: Path) -> Path:
    """The layout as one file (``oci-archive:``)."""
    with tarfile.open(file, "w") as out:
        for path in sorted(layout.rglob("*")):
            out.add(path, str(path.relative_to(layout)), recursive=False)
    return file
