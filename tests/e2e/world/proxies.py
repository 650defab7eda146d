"""Two upstream proxies at proxy.test: HTTP CONNECT (RFC 9110 section 9.3.6) on 3128, SOCKS5 (RFC 1928) on 1080."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable

import names
from resolver import TcpServer, exactly


def _dial(host: str, port: int) -> socket.socket:
    try:
        target = str(ipaddress.ip_address(host))
    except ValueError:
        target = names.address(host) if names.ZONE.get(host, ([], []))[0] else names.address(host, 6)
    return socket.create_connection((target, port), timeout=60)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    try:
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def _relay(client: socket.socket, server: socket.socket) -> None:
    thread = threading.Thread(target=_pump, args=(client, server), daemon=True)
    thread.start()
    _pump(server, client)
    thread.join(60)
    server.close()


def connect(log: Callable[..., None]) -> Callable[[socket.socket, str], None]:
    def serve(client: socket.socket, _: str) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += exactly(client, 1)
        method, target, _version = head.split(b"\r\n", 1)[0].decode().split(" ")
        host, _, port = target.rpartition(":")
        log(proxy="connect", method=method, host=host.strip("[]"), port=int(port or 0))
        if host == "refused.test" or method != "CONNECT":
            client.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            return
        try:
            server = _dial(host.strip("[]"), int(port))
        except (OSError, KeyError):
            client.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
            return
        client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        _relay(client, server)

    return serve


def socks(log: Callable[..., None]) -> Callable[[socket.socket, str], None]:
    def serve(client: socket.socket, _: str) -> None:
        exactly(client, exactly(client, 2)[1])
        client.sendall(b"\x05\x00")
        _, command, _, kind = exactly(client, 4)
        if kind == 3:
            host = exactly(client, exactly(client, 1)[0]).decode()
        else:
            host = str(ipaddress.ip_address(exactly(client, 4 if kind == 1 else 16)))
        port = int.from_bytes(exactly(client, 2), "big")
        log(proxy="socks5", method=command, host=host, port=port)
        try:
            server = _dial(host, port)
        except (OSError, KeyError):
            client.sendall(b"\x05\x05\x00\x01" + bytes(6))
            return
        client.sendall(b"\x05\x00\x00\x01" + bytes(6))
        _relay(client, server)

    return serve


def start(log: Callable[..., None]) -> None:
    TcpServer("::", 3128, connect(log))
    TcpServer("::", 1080, socks(log))
