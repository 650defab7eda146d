"""Requests that a server behind an allowed name reads as others (rows N30, N62): real servers, the whole product.

N62 is content that a server takes for the next request of its connection: it answers without reading it.
"""

from __future__ import annotations

import subprocess

from net_world import BACKENDS, Net

PORT = 8321
HOST = f"Host: host.internal:{PORT}\r\n"
# ``http.server`` as its documentation shows it; the host is read as Rails does (ActionDispatch::Http::URL#raw_host).
SERVER = f"""
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        host = self.headers.get("X-Forwarded-Host", "").split(",")[-1].strip() or self.headers["Host"]
        print(self.command, self.path, host, flush=True)
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"ok\\r\\n")
    do_GET = do_DELETE = do_POST
    def log_message(self, *_arguments):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", {PORT}), Handler)
print("up", flush=True)
server.serve_forever()
"""
SECOND = f"DELETE /admin HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n"
POST = f"POST /v1/x HTTP/1.1\r\n{HOST}"
REQUESTS = {
    "a second request": f"{POST}Content-Length: {len(SECOND)}\r\n\r\n{SECOND}",
    "another host": f"{POST}X-Forwarded-Host: admin.internal\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    "as a variable": f"{POST}X_Forwarded_Host: admin.internal\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    "in order": f"{POST}X-Forwarded-Host: host.internal\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
}


@BACKENDS
def test_n30_n62_neither_content_nor_a_field_leads_elsewhere(net: Net) -> None:
    process = net.world.popen(["python3", "-S", "-c", SERVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        script = f"""
HOST = "%s"
for name, request in {REQUESTS!r}.items():
    answer = attempt(name, lambda: talk(HOST, {PORT}, request.encode()))
    say(name, [line.split()[1] for line in answer.split("\\r\\n") if line.startswith("HTTP/1.")])
"""
        outside = net.control(script.replace("%s", "127.0.0.1"))
        assert outside["a second request"] == ["200", "200"]
        expected = [
            "POST /v1/x host.internal:8321",
            "DELETE /admin host.internal:8321",
            "POST /v1/x admin.internal",
            "POST /v1/x host.internal:8321",
            "POST /v1/x host.internal",
        ]
        assert [process.stdout.readline().decode().strip() for _ in expected] == expected
        rule = {"dest": f"http://host.internal:{PORT}/v1/", "http": [{"methods": ["GET", "POST"]}]}
        net.allow(rule)
        found = net.attack(script.replace("%s", "host.internal"))
        assert found == {
            "a second request": ["400"],
            "another host": ["403"],
            "as a variable": ["403"],
            "in order": ["200"],
        }
    finally:
        process.kill()
        out, _ = process.communicate()
    assert out.decode().splitlines() in (
        ["POST /v1/x host.internal"],
        ["POST /v1/x host.internal:8321", "POST /v1/x host.internal"],
    )
    assert net.denied("request malformed", host="host.internal", path="/v1/x")
    assert len(net.denied(host="host.internal", path="/v1/x")) == 3
