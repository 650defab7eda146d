"""An HTTP/1.1 origin that says when it sends: events, large bodies, WebSocket; and one with the wrong certificate."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import struct
import threading
from collections.abc import Iterator

import pki
import resolver
from spelled import SPELLED

PLAIN, TLS, WRONG = 8080, 8444, 8446
EVENTS = 40
PATIENCE = 120.0  # seconds


class _Request:
    def __init__(self, sock: socket.socket) -> None:
        self._file = sock.makefile("rb")
        line = self._file.readline()
        if not line:
            raise EOFError
        self.method, self.path, _ = line.decode().split(" ", 2)
        self.fields: dict[str, str] = {}
        while (line := self._file.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode().partition(":")
            self.fields[name.lower()] = value.strip()

    def body(self) -> int:
        """Read the body; its bytes."""
        if self.fields.get("transfer-encoding") == "chunked":
            total = sum(map(len, self.chunks()))
            self.trailers()
            return total
        left = total = int(self.fields.get("content-length", "0"))
        while left:
            part = self._file.read(min(left, 1 << 20))
            if not part:
                raise ConnectionResetError("the client went away in the middle of a body")
            left -= len(part)
        return total

    def chunks(self) -> Iterator[bytes]:
        """The chunks of the body (RFC 9112 section 7.1), as they come."""
        while size := int(self._file.readline(), 16):
            yield self._file.read(size)
            self._file.readline()

    def trailers(self) -> list[str]:
        """The lines that follow the last chunk."""
        lines = []
        while (line := self._file.readline().decode().strip()) != "":
            lines.append(line)
        return lines

    def frame(self) -> tuple[int, bytes]:
        """One small masked WebSocket frame (RFC 6455 section 5.2): opcode and payload."""
        first, length = self._file.read(2)
        mask = self._file.read(4)
        payload = self._file.read(length & 0x7F)
        return first & 15, bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


def _answer(sock: socket.socket, body: bytes, *more: str) -> None:
    head = "".join(f"{line}\r\n" for line in ("HTTP/1.1 200 OK", f"content-length: {len(body)}", *more))
    sock.sendall(head.encode() + b"\r\n" + body)


_heard: dict[str, threading.Semaphore] = {}  # by the name that the client chose


def _events(sock: socket.socket, name: str) -> None:
    """Events of which each is sent when the one before it has been heard: ``/heard?NAME`` says so."""
    heard = _heard[name] = threading.Semaphore(0)
    sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    for number in range(EVENTS):
        event = f"data: {number}\n\n".encode()
        sock.sendall(b"%x\r\n%b\r\n" % (len(event), event))
        if not heard.acquire(timeout=PATIENCE):
            raise OSError("an event was not heard")  # the connection is cut: the answer stays incomplete
    sock.sendall(b"0\r\n\r\n")


def _echo(sock: socket.socket, request: _Request) -> None:
    """Answer each chunk when it has come, and the trailers at the end."""
    sock.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-seen\r\n\r\n")
    for chunk in request.chunks():
        sock.sendall(b"%x\r\n%b\r\n" % (len(chunk), chunk))
    sock.sendall(f"0\r\nx-seen: {','.join(request.trailers())}\r\n\r\n".encode())


def _websocket(sock: socket.socket, request: _Request) -> None:
    key = request.fields["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    proof = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
    lines = ("HTTP/1.1 101 Switching Protocols", "upgrade: websocket", "connection: Upgrade")
    sock.sendall("\r\n".join((*lines, f"sec-websocket-accept: {proof}", "", "")).encode())
    while True:
        opcode, payload = request.frame()
        sock.sendall(struct.pack("BB", 0x80 | opcode, len(payload)) + payload)
        if opcode == 8:
            return


def serve(sock: socket.socket, _: str) -> None:
    while True:
        try:
            request = _Request(sock)
        except (EOFError, ValueError):
            return
        path, _, name = request.path.partition("?")
        if path == "/events":
            _events(sock, name)
        elif path == "/heard":
            _heard[name].release()
            _answer(sock, b"")
        elif request.path == "/chunks":
            _echo(sock, request)
        elif request.path == "/socket":
            _websocket(sock, request)
            return
        elif request.path.startswith("/v1/spelled/"):
            shown = SPELLED[request.path[12:]][0](request.fields["x-api-key"].encode())
            _answer(sock, shown, f"x-proof: {hashlib.sha256(shown).hexdigest()}")
        elif request.path.startswith("/bytes/"):
            left = int(request.path[7:])
            sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % left)
            block = memoryview(bytes(1 << 20))
            while left:
                part = block[:left]
                sock.sendall(part)
                left -= len(part)
        else:
            if request.fields.get("expect") == "100-continue":
                sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            proof = hashlib.sha256(request.fields.get("authorization", "").encode()).hexdigest()
            seen = {
                "proof": proof,
                "method": request.method,
                "path": request.path,
                "bytes": request.body(),
                "fields": request.fields,
            }
            _answer(sock, json.dumps(seen).encode())


def start(authority: pki.Authority) -> None:
    def encrypted(name: str, port: int) -> None:
        def handle(sock: socket.socket, local: str) -> None:
            try:
                with authority.context(name).wrap_socket(sock, server_side=True) as wrapped:
                    serve(wrapped, local)
            except OSError:
                return  # the client went away

        resolver.TcpServer("::", port, handle)

    resolver.TcpServer("::", PLAIN, serve)
    encrypted("stream.test", TLS)
    encrypted("any", WRONG)
