"""A DNS server over UDP and TCP that answers from ``names`` and writes every question to a journal."""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
from collections.abc import Callable

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import names

Log = Callable[..., None]
IP_PKTINFO, IPV6_FREEBIND = 8, 78  # <linux/in.h>, <linux/in6.h>; the socket module has no names for them


def answer(wire: bytes, extra: dict[str, tuple[list[str], list[str]]]) -> tuple[bytes | None, str, str]:
    """(answer or None for silence, name, type) for one query."""
    query = dns.message.from_wire(wire)
    response = dns.message.make_response(query, recursion_available=True)
    if not query.question:
        response.set_rcode(dns.rcode.FORMERR)
        return response.to_wire(), "", ""
    question = query.question[0]
    name = question.name.to_text(omit_final_dot=True).lower()
    kind = dns.rdatatype.to_text(question.rdtype)
    if name in names.SILENT:
        return None, name, kind
    if name in names.SERVFAIL:
        response.set_rcode(dns.rcode.SERVFAIL)
        return response.to_wire(), name, kind
    target = name
    if name in names.CNAMES:
        target = names.CNAMES[name]
        response.answer.append(dns.rrset.from_text(question.name, 60, "IN", "CNAME", f"{target}."))
    zone = extra.get(target) or names.ZONE.get(target)
    if zone is None:
        response.set_rcode(dns.rcode.NXDOMAIN)
        return response.to_wire(), name, kind
    values = {"A": zone[0], "AAAA": zone[1], "TXT": ['"secret text record"']}.get(kind, [])
    if values:
        response.answer.append(dns.rrset.from_text(f"{target}.", 60, "IN", kind, *values))
    return response.to_wire(max_size=65535), name, kind


def _serve_udp(sock: socket.socket, serve: Callable[[bytes, str], bytes | None]) -> None:
    """Answer from the address that was asked: needed where every address is local (ip(7), IP_PKTINFO)."""
    while True:
        data, ancillary, _, peer = sock.recvmsg(4096, 256)
        v6 = sock.family == socket.AF_INET6
        _, _, info = ancillary[0]
        local = socket.inet_ntop(sock.family, info[:16] if v6 else info[8:12])
        try:
            reply = serve(data, local)
        except Exception:  # a hostile packet gets no answer
            continue
        if reply is None:
            continue
        if v6:
            control = (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, info[:16] + struct.pack("i", 0))
        else:
            control = (socket.IPPROTO_IP, IP_PKTINFO, struct.pack("i4s4s", 0, info[8:12], b"\0" * 4))
        try:
            sock.sendmsg([reply], [control], 0, peer)
        except OSError:
            continue


def udp(addresses: tuple[str, ...], port: int, serve: Callable[[bytes, str], bytes | None]) -> None:
    """Serve datagrams on ``port`` of each address; returns once bound."""
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_DGRAM)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
            sock.setsockopt(socket.IPPROTO_IPV6, IPV6_FREEBIND, 1)  # answer from an AnyIP address
        else:
            sock.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
        sock.bind((address, port))
        threading.Thread(target=_serve_udp, args=(sock, serve), daemon=True).start()


class TcpServer(socketserver.ThreadingTCPServer):
    """Threads per connection, both families when bound to ``::``."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 512

    def __init__(self, address: str, port: int, handle: Callable[[socket.socket, str], None]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__((address, port), socketserver.BaseRequestHandler)
        self.handle = handle
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 60}, daemon=True).start()

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def finish_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        request.settimeout(60)
        self.handle(request, local_address(request))

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is no event here."""


def local_address(sock: socket.socket) -> str:
    return str(sock.getsockname()[0]).removeprefix("::ffff:")


def exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = sock.recv(size - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return data


def start(
    addresses: tuple[str, ...], server: str, log: Log, extra: dict[str, tuple[list[str], list[str]]] | None = None
) -> None:
    """Serve DNS on port 53 of ``addresses``; the journal names them ``server``."""

    def one(wire: bytes, local: str, transport: str) -> bytes | None:
        reply, name, kind = answer(wire, extra or {})
        log(name=name, type=kind, server=server, local=local, transport=transport)
        return reply

    def over_tcp(sock: socket.socket, local: str) -> None:
        while True:
            wire = exactly(sock, int.from_bytes(exactly(sock, 2), "big"))
            reply = one(wire, local, "tcp")
            if reply is not None:
                sock.sendall(len(reply).to_bytes(2, "big") + reply)

    udp(addresses, 53, lambda wire, local: one(wire, local, "udp"))
    for address in addresses:
        if address != "0.0.0.0":
            TcpServer(address, 53, over_tcp)
