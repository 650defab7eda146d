"""Real application servers that take a request for another one: gunicorn, PHP's own server, lighttpd with PHP as CGI.

What they serve says which method and path the application was left with.  PHP does what Symfony's
``Request::getMethod`` does.  A WebSocket server made with the library ``websockets`` stands beside them.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

GUNICORN_PORT, PHP_PORT, LIGHTTPD_PORT, WEBSOCKETS_PORT = 8090, 8091, 8092, 8094

APPLICATION = """
def app(environ, start):
    start("200 OK", [("Content-Type", "text/plain")])
    return [f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}\\n".encode()]
"""
SYMFONY = r"""<?php
$method = $_SERVER['REQUEST_METHOD'];
if ($method === 'POST') {
    $other = $_SERVER['HTTP_X_HTTP_METHOD_OVERRIDE'] ?? $_GET['_method'] ?? '';
    if (is_string($other) && $other !== '') $method = strtoupper($other);
}
header('Content-Type: text/plain');
echo $method, ' ', strtok($_SERVER['HTTP_X_ORIGINAL_URL'] ?? $_SERVER['REQUEST_URI'], '?'), "\n";
"""
LIGHTTPD = """
server.modules = ( "mod_rewrite", "mod_cgi" )
server.document-root = "{directory}"
server.port = {port}
server.bind = "[::]"
server.set-v6only = "disable"
server.errorlog = "{directory}/lighttpd.log"
server.upload-dirs = ( "{directory}" )
url.rewrite-once = ( ".*" => "/symfony.php" )
cgi.assign = ( ".php" => "{php}" )
"""


def _programs(home: Path) -> list[tuple[int, list[str]]]:
    """Those that are installed."""
    path = "/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin"
    found = {name: shutil.which(name, path=path) for name in ("gunicorn", "php", "php-cgi", "lighttpd")}
    config = home / "lighttpd.conf"
    config.write_text(LIGHTTPD.format(directory=home, port=LIGHTTPD_PORT, php=found["php-cgi"]))
    out: list[tuple[int, list[str]]] = []
    if gunicorn := found["gunicorn"]:
        options = ["--chdir", str(home), "--workers", "1", "--worker-tmp-dir", str(home), "--log-level", "error"]
        out.append((GUNICORN_PORT, [gunicorn, *options, "-b", f"[::]:{GUNICORN_PORT}", "application:app"]))
    if php := found["php"]:
        out.append((PHP_PORT, [php, "-S", f"[::]:{PHP_PORT}", str(home / "symfony.php")]))
    if found["lighttpd"] and found["php-cgi"]:
        out.append((LIGHTTPD_PORT, [found["lighttpd"], "-D", "-f", str(config)]))
    return out


def start(home: Path) -> list[int]:
    """Serve; the ports of the foreign programs that were started."""
    here = home / "frameworks"
    here.mkdir()
    (here / "application.py").write_text(APPLICATION)
    (here / "symfony.php").write_text(SYMFONY)
    programs = _programs(here)
    for _port, argv in programs:
        environment = {**os.environ, "HOME": str(here), "TMPDIR": str(here)}
        subprocess.Popen(
            argv, cwd=here, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=(here / f"{Path(argv[0]).name}.stderr").open("wb"),
        )  # fmt: skip
    from websockets.sync.server import serve

    def talk(link: Any) -> None:
        """Echo; a text "raw" is answered by bytes that are no frame."""
        for message in link:
            if message == "raw":
                link.socket.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                link.send(message)

    listener = socket.create_server(("::", WEBSOCKETS_PORT), family=socket.AF_INET6, dualstack_ipv6=True)
    server = serve(talk, sock=listener, max_size=None)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return [port for port, _argv in programs]
