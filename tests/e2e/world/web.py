"""The web sites of the world, as one WSGI application that chooses by host name."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import model_apis
import names
import registries
from httpbin import app as httpbin

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]

WHEEL = "demo_pkg-1.0-py3-none-any.whl"


def reply(start: StartResponse, body: bytes, kind: str = "text/plain", status: str = "200 OK") -> Iterable[bytes]:
    start(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [body]


def proofs(environ: Environ) -> dict[str, str]:
    """What the header fields were, for whoever knows it: their SHA-256."""
    return {
        key[5:].lower().replace("_", "-"): hashlib.sha256(value.encode("latin-1")).hexdigest()
        for key, value in environ.items()
        if key.startswith("HTTP_")
    }


def request_body(environ: Environ) -> bytes:
    if environ.get("wsgi.input_terminated"):  # chunked: ends by itself
        return bytes(environ["wsgi.input"].read())
    return bytes(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))


def wheel() -> bytes:
    """A wheel of one module (packaging.python.org, "Binary distribution format")."""
    files = {
        "demo_pkg.py": "NAME = 'demo'\n",
        "demo_pkg-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: demo-pkg\nVersion: 1.0\n",
        "demo_pkg-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, "demo_pkg-1.0.dist-info/RECORD"])
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in {**files, "demo_pkg-1.0.dist-info/RECORD": record}.items():
            archive.writestr(name, text)
    return out.getvalue()


def npm_package() -> bytes:
    """A package tarball as ``npm pack`` makes it: everything below ``package/``."""
    out = io.BytesIO()
    files = {
        "package/package.json": json.dumps({"name": "demo-pkg", "version": "1.0.0", "main": "index.js"}),
        "package/index.js": "module.exports = 'demo';\n",
    }
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(text), 0o644
            archive.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


def pypi(environ: Environ, start: StartResponse) -> Iterable[bytes]:
    """PEP 503 simple index."""
    if environ["PATH_INFO"].rstrip("/") != "/simple/demo-pkg":
        return reply(start, b"no such project", status="404 Not Found")
    digest = hashlib.sha256(wheel_bytes).hexdigest()
    link = f"https://files.pythonhosted.org/packages/{WHEEL}#sha256={digest}"
    return reply(start, f'<!DOCTYPE html><html><body><a href="{link}">{WHEEL}</a></body></html>'.encode(), "text/html")


def python_files(environ: Environ, start: StartResponse) -> Iterable[bytes]:
    return reply(start, wheel_bytes, "application/octet-stream")


def npm(environ: Environ, start: StartResponse) -> Iterable[bytes]:
    """The two requests ``npm view`` and ``npm install`` make of a registry."""
    path = environ["PATH_INFO"]
    if path.endswith(".tgz"):
        return reply(start, npm_bytes, "application/octet-stream")
    name = "@world/demo-pkg" if path == "/@world/demo-pkg" else "demo-pkg"
    if path != f"/{name}":
        return reply(start, b"{}", "application/json", "404 Not Found")
    tarball = f"{environ['wsgi.url_scheme']}://{environ['HTTP_HOST']}/demo-pkg/-/demo-pkg-1.0.0.tgz"
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(npm_bytes).digest()).decode()
    version = {
        "name": name,
        "version": "1.0.0",
        "main": "index.js",
        "dist": {"tarball": tarball, "integrity": integrity},
    }
    document = {"name": name, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    return reply(start, json.dumps(document).encode(), "application/json")


def git(root: Path) -> App:
    """``git http-backend`` as a CGI program (git-http-backend(1))."""

    def app(environ: Environ, start: StartResponse) -> Iterable[bytes]:
        cgi = {key: value for key, value in environ.items() if isinstance(value, str) and "." not in key}
        cgi.update(GIT_PROJECT_ROOT=str(root), GIT_HTTP_EXPORT_ALL="1", REMOTE_USER="agent", PATH=os.environ["PATH"])
        cgi.update(GIT_CONFIG_COUNT="2", GIT_CONFIG_KEY_0="safe.directory", GIT_CONFIG_VALUE_0="*")
        cgi.update(GIT_CONFIG_KEY_1="http.receivepack", GIT_CONFIG_VALUE_1="true")
        body = request_body(environ)
        cgi["CONTENT_LENGTH"] = str(len(body))
        out = subprocess.run(["git", "http-backend"], input=body, env=cgi, stdout=subprocess.PIPE, check=False).stdout
        head, _, rest = out.partition(b"\r\n\r\n")
        headers = [tuple(line.split(": ", 1)) for line in head.decode().split("\r\n") if ": " in line]
        status = next((value for key, value in headers if key == "Status"), "200 OK")
        start(status, [(key, value) for key, value in headers if key != "Status"])
        return [rest]

    return app


def metadata(environ: Environ, start: StartResponse) -> Iterable[bytes]:
    return reply(start, b"cloud-credential-of-the-machine\n")


def site(environ: Environ, start: StartResponse) -> Iterable[bytes]:
    """Any other host: says what was reached."""
    body = {key: environ.get(name, "") for key, name in (("host", "HTTP_HOST"), ("local", "world.local"))}
    return reply(start, json.dumps({**body, "path": environ["PATH_INFO"]}).encode() + b"\n", "application/json")


def model_api(log: Callable[..., None]) -> App:
    def app(environ: Environ, start: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        serve = {
            "/v1/messages": model_apis.messages,
            "/v1/responses": model_apis.responses,
            "/backend-api/codex/responses": model_apis.responses,
        }.get(path)
        if environ["REQUEST_METHOD"] != "POST" or serve is None:
            found = environ["REQUEST_METHOD"] == "POST" or environ["REQUEST_METHOD"] == "HEAD"
            return reply(start, b"{}", "application/json", "200 OK" if found else "404 Not Found")
        if environ.get("HTTP_CONTENT_ENCODING") == "zstd":
            return reply(start, b"{}", "application/json", "415 Unsupported Media Type")
        known = partial(log, authorization=environ.get("HTTP_AUTHORIZATION", ""))
        kind, body = serve(json.loads(request_body(environ) or b"{}"), known)
        start("200 OK", [("Content-Type", kind)])
        return body

    return app


def application(repositories: Path, log: Callable[..., None], log_model: Callable[..., None]) -> App:
    models = model_api(log_model)
    sites: dict[str, App] = {
        "httpbin.org": httpbin,
        names.address("httpbin.org"): httpbin,
        "pypi.org": pypi,
        "files.pythonhosted.org": python_files,
        "registry.npmjs.org": npm,
        "git.test": git(repositories),
        "github.com": git(repositories),
        "gitlab.com": git(repositories),
        "api.anthropic.com": models,
        "api.openai.com": models,
        "messages.test": models,
        "chatgpt.com": models,
        "platform.claude.com": model_apis.tokens("/v1/oauth/token", log_model),
        "auth.openai.com": model_apis.tokens("/oauth/token", log_model),
        names.METADATA4: metadata,
        **registries.SITES,
    }

    def app(environ: Environ, start: StartResponse) -> Iterable[bytes]:
        host = environ.get("HTTP_HOST", "").lower().split(":")[0]
        log(
            host=host,
            method=environ["REQUEST_METHOD"],
            path=environ.get("RAW_URI", environ["PATH_INFO"]),
            scheme=environ["wsgi.url_scheme"],
            sni=environ.get("world.sni", ""),
            local=environ["world.local"],
            port=int(environ["SERVER_PORT"]),
            fields=proofs(environ),
        )
        chosen = sites.get(host, site)
        if host == "github.com" and environ["PATH_INFO"] == "/":
            chosen = site
        return chosen(environ, start)

    return app


wheel_bytes, npm_bytes = wheel(), npm_package()
