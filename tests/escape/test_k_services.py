"""Services as people have them in containers (row K69): PostgreSQL, Redis and a web service by compose, and the same
two databases by Testcontainers.  Each container is behind the sandbox's walls.

A server on the host's loopback stands for the network: one port of it is allowed, by ``host.internal``.
"""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator

import engine_images
import pytest
from escape_box import MEMBRANE, Box

from membrane.changes.removal import remove_tree

pytestmark = [
    pytest.mark.needs_tool("dockerd"),
    pytest.mark.needs_tool("docker-compose"),
    pytest.mark.needs_tool("redis-server"),
    pytest.mark.needs_tool("pg_lsclusters"),
]
PATIENCE = 240  # seconds: a deadline, not a measurement
IMPORT = (
    "docker import --change 'ENV PATH=/usr/bin:/bin PGDATA=/tmp/data PGPASSWORD=secret' --change 'USER postgres'"
    " services.tar services"
)

# What the web service answers: what it has from the database, the cache, an allowed and a refused host.
REPORT = """\
#!/bin/sh
printf 'Content-Type: text/plain\\r\\n\\r\\n'
psql -h db -U app -q -c 'CREATE TABLE IF NOT EXISTS seen (n int); INSERT INTO seen VALUES (42)'
echo "database $(psql -h db -U app -t -A -c 'SELECT max(n) FROM seen')"
until redis-cli -h cache PING >/dev/null; do sleep 0.1; done  # "started" does not say that it listens
echo "cache $(redis-cli -h cache SET word kept) $(redis-cli -h cache GET word)"
echo "allowed $(wget -q -O - "$ALLOWED/by-web")"
echo "refused $(wget -q -O - http://192.0.2.1/ 2>&1)"
echo "name $(wget -q -O - http://refused.example/ 2>&1)"
"""
COMPOSE = """\
version: "2.4"
services:
  db:
    image: services
    command: start-postgres
    environment: {POSTGRES_USER: app, POSTGRES_PASSWORD: secret, POSTGRES_DB: app}
    healthcheck: {test: [CMD, psql, -h, localhost, -U, app, -c, "SELECT 1"], interval: 1s, retries: 200}
  cache:
    image: services
    command: redis-server --save "" --protected-mode no
  web:
    image: services
    command: httpd -f -p 8080 -h /www
    environment: ["ALLOWED=http://host.internal:SERVER"]
    ports: ["8126:8080"]
    depends_on:
      db: {condition: service_healthy}
      cache: {condition: service_started}
"""
TESTCONTAINERS = """\
import psycopg
from testcontainers.community.postgres import PostgresContainer
from testcontainers.community.redis import RedisContainer


def test_postgres():
    with PostgresContainer("services", driver=None).with_command("start-postgres") as container:
        with psycopg.connect(container.get_connection_url()) as connection:
            connection.execute("CREATE TABLE seen (n int)")
            connection.execute("INSERT INTO seen VALUES (42)")
            assert connection.execute("SELECT n FROM seen").fetchone() == (42,)


def test_redis():
    with RedisContainer("services").with_command("redis-server --protected-mode no") as container:
        client = container.get_client()
        assert client.set("word", "kept") and client.get("word") == b"kept"
        status, said = container.exec(["wget", "-q", "-O", "-", "http://192.0.2.1/"])
        assert status and b"403" in said, said
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Box, int]]:
    """A workspace whose engine has the image ``services``, and the allowed port."""
    box = Box(tmp_path_factory.mktemp("services"))
    engine_images.services(box.workspace / "services.tar", {"/www/cgi-bin/report": REPORT})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), engine_images.Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        box.file("compose.yaml", COMPOSE.replace("SERVER", str(port)))
        shown = [{"path": path, "mode": "ro"} for path in {sys.prefix, sys.base_prefix} - {"/usr"}]
        box.policy(containers="nested", ports={"connect": [port]}, presets=[], allow=[], mounts=shown)
        try:
            done = box.run("/bin/sh", "-c", IMPORT, timeout=PATIENCE)
            assert done.returncode == 0, done
            yield box, port
        finally:
            server.shutdown()
            remove_tree(str(box.state / "containers"))  # of ids that pytest has no right to


def test_K69_compose_with_postgres_redis_and_a_web_service(engine: tuple[Box, int]) -> None:
    box, _port = engine
    page = "until wget -q -O report http://127.0.0.1:8126/cgi-bin/report; do sleep 0.1; done; cat report"
    script = f"docker-compose up -d >&2 && {{ {page}; }}"
    done = box.run("/bin/sh", "-c", script, timeout=PATIENCE)
    assert done.returncode == 0, done
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert said["database"] == "42" and said["cache"] == "OK kept", done
    assert said["allowed"] == "fetched /by-web", done
    assert "403" in said["refused"] and "bad address" in said["name"], done
    denied = [event["access"] for event in box.record("AccessDenied")]
    assert any(access.get("address") == "192.0.2.1" for access in denied), denied
    assert any("refused.example" in json.dumps(access) for access in denied), denied
    # The record names the container of a process, also of one that was forked and executed nothing (PostgreSQL's).
    names = {event["container"]: event["name"] for event in box.record("ContainerSeen")}
    found = {(event["process"]["name"], names[event["process"]["container"]].rpartition("workspace")[2])
             for event in box.record() if event["process"] and "container" in event["process"]}  # fmt: skip
    assert {("psql", "_web_1"), ("redis-cli", "_web_1"), ("redis-server", "_cache_1"), ("postgres", "_db_1")} <= found
    assert not any(name.startswith(("containerd", "dockerd", "docker")) for name, _of in found), found
    shown = subprocess.run(
        [*MEMBRANE, "trace", "show", "@last"],
        cwd=box.workspace, env=box.environment, capture_output=True, text=True, check=True, timeout=PATIENCE,
    ).stdout  # fmt: skip
    assert "workspace_db_1, image services) " in shown
    refused = [line for line in shown.splitlines() if "192.0.2.1:80" in line and "AccessDenied" in line]
    assert refused and all("workspace_web_1, image services) " in line for line in refused), refused


def test_K69_testcontainers_run_from_pytest(engine: tuple[Box, int]) -> None:
    """``membrane --containers -- pytest``: published ports, exec in a container, waiting, removal.  Its reaper is an
    image of a registry, so it is left out."""
    box, _port = engine
    box.file("test_services.py", TESTCONTAINERS)
    words = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_services.py")
    options = ("--env=TESTCONTAINERS_RYUK_DISABLED=true", "--env=TC_POOLING_INTERVAL=0.1")
    done = box.run(*words, options=options, timeout=PATIENCE)
    assert done.returncode == 0 and "2 passed" in done.stdout, (done.stdout[-4000:], done.stderr[-1000:])
