"""Load generators and servers, run as ``python bench/load.py ROLE ...`` inside a sandbox or beside it.

Standard library only, so that the same file runs where the package is not visible.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

CHUNK = bytes(1 << 18)


def serve(ready_fd: int) -> None:
    """A TCP server on loopback: the first byte chooses: u = sink until EOF, d = source of N MiB, e = echo."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    os.write(ready_fd, f"{listener.getsockname()[1]}\n".encode())
    os.close(ready_fd)
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_serve_one, args=(client,), daemon=True).start()


def _serve_one(client: socket.socket) -> None:
    with client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        kind = client.recv(1)
        try:
            if kind == b"u":
                total, buffer = 0, bytearray(1 << 18)
                while n := client.recv_into(buffer):
                    total += n
                client.sendall(struct.pack(">Q", total))
            elif kind == b"d":
                for _ in range(4 * struct.unpack(">Q", _exactly(client, 8))[0]):
                    client.sendall(CHUNK)
            elif kind == b"e":
                while data := client.recv(4096):
                    client.sendall(data)
        except OSError:
            pass


def _exactly(sock: socket.socket, count: int) -> bytes:
    out = b""
    while len(out) < count:
        data = sock.recv(count - len(out))
        if not data:
            raise EOFError
        out += data
    return out


def _connect(host: str, port: int) -> socket.socket:
    sock = socket.create_connection((host, port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def stream(host: str, port: int, mebibytes: int) -> dict[str, float]:
    """MB/s of one stream up and down."""
    with _connect(host, port) as sock:
        sock.sendall(b"u")
        begin = time.perf_counter()
        for _ in range(4 * mebibytes):
            sock.sendall(CHUNK)
        sock.shutdown(socket.SHUT_WR)
        assert struct.unpack(">Q", _exactly(sock, 8))[0] == mebibytes << 20
        up = mebibytes / (time.perf_counter() - begin)
    with _connect(host, port) as sock:
        begin = time.perf_counter()
        sock.sendall(b"d" + struct.pack(">Q", mebibytes))
        left, buffer = mebibytes << 20, bytearray(1 << 18)
        while left:
            n = sock.recv_into(buffer)
            assert n
            left -= n
        down = mebibytes / (time.perf_counter() - begin)
    return {"up": up, "down": down}


def _address(host: str, port: int) -> tuple[int, tuple[str, int]]:
    """The family and address that most programs would take: the first one."""
    family, _type, _protocol, _name, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return family, (str(address[0]), int(address[1]))


def _once(family: int, address: tuple[str, int]) -> None:
    """Connect, one byte there and back, close."""
    sock = socket.socket(family)
    sock.connect(address)
    sock.sendall(b"ex")
    sock.recv(1)
    sock.close()


def connections(host: str, port: int, seconds: float, processes: int = 2) -> dict[str, float]:
    """New connections per second: connect, one byte there and back, close."""
    pipes = []
    family, address = _address(host, port)
    for _ in range(processes):
        read, write = os.pipe()
        if os.fork() == 0:
            count, end = 0, time.perf_counter() + seconds
            while time.perf_counter() < end:
                _once(family, address)
                count += 1
            os.write(write, struct.pack("=Q", count))
            os._exit(0)
        os.close(write)
        pipes.append(read)
    total = sum(struct.unpack("=Q", os.read(read, 8))[0] for read in pipes)
    for _ in pipes:
        os.wait()
    return {"per_second": total / seconds}


def counted(host: str, port: int, count: int, processes: int = 2) -> dict[str, float]:
    """For each line of stdin, ``count`` connections of each process; says when it is ready and when each is done."""
    family, address = _address(host, port)
    _once(family, address)  # the gateway is up
    print("ready", flush=True)
    for _line in sys.stdin:
        for _ in range(processes):
            if os.fork() == 0:
                for _ in range(count):
                    _once(family, address)
                os._exit(0)
        for _ in range(processes):
            os.wait()
        print("done", flush=True)
    return {}


def latency(host: str, port: int, count: int) -> dict[str, float]:
    """Median milliseconds from connect to the first echoed byte."""
    family, address = _address(host, port)
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        sock = socket.socket(family)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.connect(address)
        sock.sendall(b"ex")
        sock.recv(1)
        times.append(time.perf_counter() - begin)
        sock.close()
    times.sort()
    return {"median_ms": 1000 * times[len(times) // 2]}


def dns(server: str, name: str, seconds: float, window: int = 64) -> dict[str, float]:
    """Answers per second with ``window`` queries in flight."""
    question = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0\0\1\0\1"
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect((server, 53))
    sock.settimeout(2)
    query = struct.pack(">6H", 7, 0x100, 1, 0, 0, 0) + question
    sock.send(query)
    sock.recv(512)  # the gateway is up
    for _ in range(window):
        sock.send(query)
    count, begin = 0, time.perf_counter()
    end = begin + seconds
    while time.perf_counter() < end:
        for _ in range(100):
            sock.recv(512)
            sock.send(query)
        count += 100
    return {"per_second": count / (time.perf_counter() - begin)}


def main() -> None:
    role, *args = sys.argv[1:]
    if role == "serve":
        serve(int(args[0]))
        return
    roles: dict[str, tuple[Callable[..., dict[str, float]], type[int] | type[float]]] = {
        "stream": (stream, int),
        "connections": (connections, float),
        "counted": (counted, int),
        "latency": (latency, int),
    }
    if role == "dns":
        result = dns(args[0], args[1], float(args[2]))
    else:
        function, kind = roles[role]
        result = function(args[0], int(args[1]), kind(args[2]))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
