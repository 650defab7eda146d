"""Registries of the world: crates.io (sparse index), a Debian archive, and Docker Hub with its tokens and storage.

Each has one package, ``demo-pkg`` or the image ``library/demo``, and refuses nothing: what does not arrive was refused
on the way.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterable
from typing import Any

Environ = dict[str, Any]
StartResponse = Callable[..., Any]

JSON = "application/json"
OCTETS = "application/octet-stream"


def reply(
    start: StartResponse, body: bytes, kind: str = OCTETS, status: str = "200 OK", **fields: str
) -> Iterable[bytes]:
    more = [(name.replace("_", "-"), value) for name, value in fields.items()]
    start(status, [("Content-Type", kind), ("Content-Length", str(len(body))), *more])
    return [body]


def missing(start: StartResponse) -> Iterable[bytes]:
    return reply(start, b"{}", JSON, "404 Not Found")


def tar(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o644
            archive.addfile(info, io.BytesIO(content))
    return gzip.compress(out.getvalue(), mtime=0)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# ---------------------------------------------------------------- crates.io

CRATE = tar(
    {
        "demo-pkg-1.0.0/Cargo.toml": b'[package]\nname = "demo-pkg"\nversion = "1.0.0"\nedition = "2021"\n',
        "demo-pkg-1.0.0/src/lib.rs": b'pub const NAME: &str = "demo";\n',
    }
)


def crates_index(environ: Environ, start: StartResponse) -> Iterable[bytes]:
    """A sparse index (The Cargo Book, "Registry Index")."""
    path = environ["PATH_INFO"]
    if path == "/config.json":
        told = {"dl": "https://static.crates.io/crates", "api": "https://crates.io"}
        return reply(start, json.dumps(told).encode(), JSON)
    if path != "/de/mo/demo-pkg":
        return missing(start)
    entry = {"name": "demo-pkg", "vers": "1.0.0", "deps": [], "cksum": digest(CRATE), "features": {}, "yanked": False}
    return reply(start, json.dumps(entry).encode() + b"\n", "text/plain")


def crates_files(environ: Environ, start: StartResponse) -> Iterable[bytes]:
    found = environ["PATH_INFO"] == "/crates/demo-pkg/1.0.0/download"
    return reply(start, CRATE) if found else missing(start)


def crates_api(environ: Environ, start: StartResponse) -> Iterable[bytes]:
    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    return reply(start, b'{"warnings": {"invalid_categories": [], "invalid_badges": [], "other": []}}', JSON)


# ---------------------------------------------------------------- Debian


def deb() -> bytes:
    """A binary package (deb(5))."""
    control = b"Package: demo-pkg\nVersion: 1.0\nArchitecture: all\nMaintainer: World <world@test>\nDescription: demo\n"
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.gz": tar({"./control": control}),
        "data.tar.gz": tar({"./usr/share/demo-pkg": b"demo\n"}),
    }
    out = b"!<arch>\n"
    for name, content in members.items():
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode() + content
        out += b"\n" * (len(content) % 2)
    return out


DEB = deb()
PACKAGES = (
    "Package: demo-pkg\nVersion: 1.0\nArchitecture: all\nMaintainer: World <world@test>\nDescription: demo\n"
    f"Filename: pool/demo-pkg_1.0_all.deb\nSize: {len(DEB)}\nSHA256: {digest(DEB)}\n\n"
).encode()
RELEASE = (
    "Origin: World\nSuite: stable\nCodename: stable\nArchitectures: amd64\nComponents: main\n"
    f"Date: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n {digest(PACKAGES)} {len(PACKAGES)} main/binary-amd64/Packages\n"
).encode()


def debian(environ: Environ, start: StartResponse) -> Iterable[bytes]:
    files = {
        "/debian/dists/stable/Release": RELEASE,
        "/debian/dists/stable/main/binary-amd64/Packages": PACKAGES,
        "/debian/pool/demo-pkg_1.0_all.deb": DEB,
    }
    content = files.get(environ["PATH_INFO"])
    return missing(start) if content is None else reply(start, content)


# ---------------------------------------------------------------- Docker Hub

LAYER = tar({"demo": b"demo\n"})
CONFIG = json.dumps(
    {
        "architecture": "amd64",
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest(gzip.decompress(LAYER))}"]},
    }
).encode()
MANIFEST_KIND = "application/vnd.docker.distribution.manifest.v2+json"
MANIFEST = json.dumps(
    {
        "schemaVersion": 2,
        "mediaType": MANIFEST_KIND,
        "config": {
            "mediaType": "application/vnd.docker.container.image.v1+json",
            "size": len(CONFIG),
            "digest": f"sha256:{digest(CONFIG)}",
        },
        "layers": [
            {
                "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
                "size": len(LAYER),
                "digest": f"sha256:{digest(LAYER)}",
            }
        ],
    }
).encode()
BLOBS = {f"sha256:{digest(blob)}": blob for blob in (LAYER, CONFIG)}


def registry(environ: Environ, start: StartResponse) -> Iterable[bytes]:
    """The distribution API for pulls (OCI Distribution Specification); layers are elsewhere, as with Docker Hub."""
    path = environ["PATH_INFO"]
    if environ.get("HTTP_AUTHORIZATION") != "Bearer world-token":
        challenge = 'Bearer realm="https://auth.docker.io/token",service="registry.docker.io"'
        return reply(start, b"{}", JSON, "401 Unauthorized", WWW_Authenticate=challenge)
    if path == "/v2/":
        return reply(start, b"{}", JSON)
    if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
        return reply(start, b"", status="202 Accepted", Location=f"{path}1")
    kind, name = path.split("/")[-2:]
    if kind == "manifests" and name in ("latest", f"sha256:{digest(MANIFEST)}"):
        return reply(start, MANIFEST, MANIFEST_KIND, Docker_Content_Digest=f"sha256:{digest(MANIFEST)}")
    if kind == "blobs" and name in BLOBS and path.startswith("/v2/library/"):
        to = f"https://production.cloudflare.docker.com/registry-v2/docker/registry/v2/blobs/{name}/data?verify=1"
        return reply(start, b"", status="307 Temporary Redirect", Location=to)
    return missing(start)


def registry_tokens(environ: Environ, start: StartResponse) -> Iterable[bytes]:
    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    return reply(start, b'{"token": "world-token", "expires_in": 300}', JSON)


def registry_storage(environ: Environ, start: StartResponse) -> Iterable[bytes]:
    return reply(start, BLOBS.get(environ["PATH_INFO"].split("/")[-2], b""))


SITES: dict[str, Callable[[Environ, StartResponse], Iterable[bytes]]] = {
    "index.crates.io": crates_index,
    "static.crates.io": crates_files,
    "crates.io": crates_api,
    "deb.debian.org": debian,
    "registry-1.docker.io": registry,
    "auth.docker.io": registry_tokens,
    "production.cloudflare.docker.com": registry_storage,
}
