"""What runs on the machine beside membrane: its resolver, a developer's server, unix sockets."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import journal
import names
import resolver


def http(sock: socket.socket, _: str) -> None:
    seen = b""
    while b"\r\n\r\n" not in seen:  # what is not read would make a reset of the close, which takes the answer along
        if not (part := sock.recv(65536)):
            return
        seen += part
    body = names.DEV_BODY.encode()
    sock.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


def unix(address: str) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)

    def serve() -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                try:
                    connection.sendall(names.SOCKET_GREETING.encode())
                except OSError:
                    continue

    threading.Thread(target=serve, daemon=True).start()


def start(directory: str) -> None:
    home = Path(directory)
    resolver.start((names.RESOLVER,), "host", journal.writer(home / "dns.jsonl"))
    resolver.TcpServer("127.0.0.1", names.DEV_PORT, http)
    resolver.TcpServer("::1", names.DEV_PORT, http)
    resolver.TcpServer("::", names.LAN_PORT, http)
    unix(str(home / "host.sock"))
    (home / "host.sock").chmod(0o666)
    unix("\0world")
