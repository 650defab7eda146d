"""A gRPC server (grpcio), with TLS of its own and, in plain text, behind nginx; and nginx itself as an HTTP/2 origin.

Messages are raw bytes, so no code has to be generated: a generic handler serves ``/demo.Echo/METHOD``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pki
import streams

GRPC_PORT, GRPC_PLAIN_PORT, NGINX_PORT, NGINX_PLAIN_PORT = 8450, 8451, 8447, 8448
LARGE = 300_000_000  # bytes of nginx's /bytes/large, which is a hole

NGINX = """
daemon off;
pid {directory}/nginx.pid;
error_log {directory}/nginx.log;
worker_processes 1;
{user}
events {{ worker_connections 512; }}
http {{
  access_log off;
  client_body_temp_path {directory}/nginx-body; proxy_temp_path {directory}/nginx-proxy;
  fastcgi_temp_path {directory}/nginx-fastcgi; uwsgi_temp_path {directory}/nginx-uwsgi;
  scgi_temp_path {directory}/nginx-scgi;
  client_max_body_size 0;
  server {{
    listen [::]:{port} ssl http2 ipv6only=off;
    listen [::]:{open} ipv6only=off;
    server_name nginx.test;
    ssl_certificate {directory}/nginx.test.pem;
    ssl_certificate_key {directory}/nginx.test.pem;
    root {directory}/nginx-root;
    location / {{ return 200 "$request_method $request_uri $server_protocol\\n"; }}
    location /bytes/ {{ try_files $uri =404; }}
    location = /count {{
      proxy_pass http://127.0.0.1:{plain}; proxy_http_version 1.1; proxy_request_buffering off;
    }}
    location = /events {{ proxy_pass http://127.0.0.1:{plain}; proxy_http_version 1.1; proxy_buffering off; }}
    location = /heard {{ proxy_pass http://127.0.0.1:{plain}; }}
    location /demo.Echo/ {{ grpc_pass grpc://127.0.0.1:{grpc}; }}
  }}
}}
"""


def _same(message: bytes) -> bytes:
    return message


class Echo(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The four kinds of call."""

    def service(self, details: Any) -> Any:
        kind, call = {
            "Unary": (grpc.unary_unary_rpc_method_handler, self.unary),
            "Down": (grpc.unary_stream_rpc_method_handler, self.down),
            "Up": (grpc.stream_unary_rpc_method_handler, self.up),
            "Both": (grpc.stream_stream_rpc_method_handler, self.both),
            "Fail": (grpc.unary_unary_rpc_method_handler, self.fail),
        }[details.method.rpartition("/")[2]]
        return kind(call, _same, _same)

    @staticmethod
    def unary(message: bytes, context: Any) -> bytes:
        context.set_trailing_metadata((("x-trailer", "seen"),))
        return message[::-1]

    @staticmethod
    def down(message: bytes, _context: Any) -> Iterator[bytes]:
        for number in range(int(message)):
            yield b"%d" % number

    @staticmethod
    def up(messages: Iterator[bytes], _context: Any) -> bytes:
        return b"%d" % sum(len(message) for message in messages)

    @staticmethod
    def both(messages: Iterator[bytes], _context: Any) -> Iterator[bytes]:
        for message in messages:
            yield message.upper()

    @staticmethod
    def fail(_message: bytes, context: Any) -> bytes:
        context.abort(grpc.StatusCode.NOT_FOUND, "nothing there")
        return b""


def start(home: Path, authority: pki.Authority) -> list[int]:
    """Serve; the ports of the foreign programs that were started."""
    authority.context("grpc.test")
    authority.context("nginx.test")
    pem = (home / "grpc.test.pem").read_bytes()
    server = grpc.server(futures.ThreadPoolExecutor(8), handlers=(Echo(),))
    server.add_secure_port(f"[::]:{GRPC_PORT}", grpc.ssl_server_credentials([(pem, pem)]))
    server.add_insecure_port(f"127.0.0.1:{GRPC_PLAIN_PORT}")
    server.start()
    _kept.append(server)
    nginx = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin")
    if nginx is None:
        return []
    files = home / "nginx-root" / "bytes"
    files.mkdir(parents=True)
    with (files / "large").open("wb") as file:
        file.truncate(LARGE)
    config = home / "nginx.conf"
    user = "" if os.getuid() else "user root;"
    config.write_text(
        NGINX.format(
            directory=home, user=user, port=NGINX_PORT, open=NGINX_PLAIN_PORT, grpc=GRPC_PLAIN_PORT, plain=streams.PLAIN
        )
    )
    with (home / "nginx.stderr").open("wb") as errors:
        subprocess.Popen(
            [nginx, "-c", str(config), "-p", str(home), "-e", str(home / "nginx.log")],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
        )  # fmt: skip
    return [NGINX_PORT, NGINX_PLAIN_PORT]


_kept: list[Any] = []  # a server ends with its object
