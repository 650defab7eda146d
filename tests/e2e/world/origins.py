"""The Internet of the world: every service listens on every address of both families."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import frameworks
import journal
import names
import pki
import proxies
import resolver
import rpc
import streams
import web
from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

HTTP_PORTS, HTTPS_PORTS = (80, 8000, 8787), (443, 8443)
ECHO_PORTS, BANNER_PORTS = (7, 5432, 9000), (22, 2222)
H2_PORT = 8445
UDP_ECHO_PORTS = (5000, 123)
PATIENCE = 120.0  # seconds until all of them must listen


class Handler(WSGIRequestHandler):
    def make_environ(self) -> dict[str, Any]:
        environ = super().make_environ()
        sock = self.connection
        environ["world.local"] = resolver.local_address(sock)
        environ["SERVER_PORT"] = str(sock.getsockname()[1])
        environ["world.sni"] = getattr(sock, "world_sni", "")
        environ["wsgi.url_scheme"] = "https" if isinstance(sock, ssl.SSLSocket) else "http"
        return environ

    def log(self, type: str, message: str, *args: object) -> None:
        """The journal has it."""


class WebServer(ThreadedWSGIServer):
    daemon_threads = True
    request_queue_size = 512

    def __init__(self, port: int, app: web.App, authority: pki.Authority | None) -> None:
        listener = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("::", port))
        listener.listen(512)
        super().__init__("::", port, app, Handler, fd=listener.detach())
        self.authority = authority

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In the connection's own thread, so that a slow handshake holds up nobody."""
        request.settimeout(60)
        if self.authority is None:
            super().finish_request(request, client_address)
            return
        local = resolver.local_address(request)
        with self.authority.listener(local).wrap_socket(request, server_side=True) as encrypted:
            super().finish_request(encrypted, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no event here."""


def echo(log: Callable[..., None], port: int) -> Callable[[socket.socket, str], None]:
    def serve(sock: socket.socket, local: str) -> None:
        log(service="echo", local=local, port=port)
        while data := sock.recv(65536):
            sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)

    return serve


def banner(log: Callable[..., None], port: int) -> Callable[[socket.socket, str], None]:
    """The first words of an SSH server (RFC 4253 section 4.2), then silence."""

    def serve(sock: socket.socket, local: str) -> None:
        log(service="ssh", local=local, port=port)
        sock.sendall(b"SSH-2.0-World_1.0\r\n")
        while sock.recv(4096):
            pass

    return serve


def child(argv: list[str], **options: Any) -> None:
    """Start a server that dies with this world: the pid namespace sees to it."""
    subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, **options)


def make_repository(root: Path) -> None:
    """``hello.git`` with one commit, readable over smart HTTP and ``git://``; copies of it with owners."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(root),
        "GIT_CONFIG_NOSYSTEM": "1",
        **{f"GIT_{who}_{what}": "world@test" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }
    bare, tree = root / "hello.git", root / "tree"

    def git(*argv: str) -> None:
        subprocess.run(["git", *argv], check=True, env=environment, stdout=subprocess.DEVNULL)

    git("init", "-q", "--bare", "-b", "main", str(bare))
    git("init", "-q", "-b", "main", str(tree))
    (tree / "hello.txt").write_text("hello from git\n")
    git("-C", str(tree), "add", ".")
    git("-C", str(tree), "commit", "-q", "-m", "first")
    git("-C", str(tree), "push", "-q", str(bare), "main")
    for name in ("me/mine", "you/yours", "group/sub/project", *names.CONFUSING):
        git("clone", "-q", "--bare", str(bare), str(root / f"{name}.git"))


def wait_for(port: int) -> None:
    """Until a child process listens: all of them start at once, and on a busy machine each of them takes long."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE).close()
            return
        except OSError:
            # Nothing announces that a foreign program listens; this is a poll for it, not an order of events.
            signal.sigtimedwait([], 0.025)
    raise TimeoutError(f"nothing listens on port {port} within {PATIENCE:.0f} s")


def start(directory: str) -> None:
    home = Path(directory)
    repositories = home / "repositories"
    repositories.mkdir()
    make_repository(repositories)
    authority = pki.Authority(home)
    requests, connections = journal.writer(home / "requests.jsonl"), journal.writer(home / "connections.jsonl")
    app = web.application(repositories, requests, journal.writer(home / "model.jsonl"))
    import threading

    for port in (*HTTP_PORTS, *HTTPS_PORTS):
        server = WebServer(port, app, authority if port in HTTPS_PORTS else None)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 60}, daemon=True).start()
    streams.start(authority)
    ports = [*rpc.start(home, authority), *frameworks.start(home)]
    authority.context("h2.test")
    if node := shutil.which("node"):
        child([node, str(Path(__file__).with_name("h2.js")), str(home / "h2.test.pem"), str(H2_PORT)])
    for port in ECHO_PORTS:
        resolver.TcpServer("::", port, echo(connections, port))
    for port in BANNER_PORTS:
        resolver.TcpServer("::", port, banner(connections, port))

    def echo_datagram(data: bytes, local: str) -> bytes:
        connections(service="udp", local=local)
        return data

    for port in UDP_ECHO_PORTS:
        resolver.udp(("0.0.0.0", "::"), port, echo_datagram)
    extra = {names.SPLIT_NAME: names.ZONE["example.com"]}
    resolver.start(("0.0.0.0", "::"), "public", journal.writer(home / "dns.jsonl"), extra)
    proxies.start(journal.writer(home / "proxy.jsonl"))
    git_daemon = ["git", "daemon", "--export-all", "--reuseaddr", f"--base-path={repositories}"]
    trust_all = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    child(git_daemon, env={**os.environ, **trust_all}, stderr=subprocess.DEVNULL)
    child(["redis-server", "--port", "6379", "--protected-mode", "no", "--save", "", "--dir", directory])
    if node:
        ports.append(H2_PORT)
    for port in (*ports, 9418, 6379):
        wait_for(port)
