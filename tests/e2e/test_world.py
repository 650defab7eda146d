"""The world itself: what the other end-to-end tests stand on, without membrane."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from world import World, names


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["curl", "-sS", "http://169.254.169.254/"], "cloud-credential"),
        (["curl", "-sS", "http://10.0.0.7/"], '"local": "10.0.0.7"'),
        (["curl", "-sS", "-4", "http://example.com/"], names.address("example.com")),
        (["curl", "-sS", "-6", "http://example.com/"], names.address("example.com", 6)),
        (["curl", "-sS", f"http://127.0.0.1:{names.DEV_PORT}/"], names.DEV_BODY),
        (["curl", "-sS", f"http://{names.HOST4}:{names.LAN_PORT}/"], names.DEV_BODY),
        (["dig", "+short", "alias.test"], names.address("example.com")),
        (["dig", "+short", f"@{names.OTHER_RESOLVER}", names.SPLIT_NAME], names.address("example.com")),
        (["dig", "+short", "@2001:4860:4860::8888", "httpbin.org"], names.address("httpbin.org")),
        (["redis-cli", "-h", "redis.test", "ping"], "PONG"),
        (["curl", "-sk", "-d", "refresh_token=x", "https://platform.claude.com/v1/oauth/token"], "sk-ant-ort01-Fresh"),
        (["curl", "-sk", "-d", "refresh_token=x", "https://auth.openai.com/oauth/token"], '"id_token": "eyJ'),
        (["curl", "-sk", "-d", "{}", "https://chatgpt.com/backend-api/codex/responses"], "All done."),
        (["git", "ls-remote", "git://git.test/hello.git"], "refs/heads/main"),
    ],
)
def test_services_answer(world: World, command: list[str], expected: str) -> None:
    assert expected in world.run(command).stdout


def test_tls_by_name_and_by_address(world: World) -> None:
    for url in ("https://httpbin.org/anything", "https://8.8.8.8/", "https://portquiz.test:8443/"):
        done = world.run(["curl", "-sS", "--cacert", str(world.ca), "-w", "%{http_code}", "-o", os.devnull, url])
        assert done.stdout == "200", done
    assert world.requests(host="httpbin.org", sni="httpbin.org", scheme="https")


def test_there_is_no_way_out(world: World) -> None:
    """Two interfaces, and a peer that is a dead end."""
    links = [line.split(": ")[1].split("@")[0] for line in world.run(["ip", "-o", "link"]).stdout.splitlines()]
    assert sorted(links) == ["eth0", "lo"]
    assert world.run(["curl", "-sS", "-m", "5", "http://unreachable.test/"]).returncode == 7


def test_commands_are_the_caller(world: World) -> None:
    done = world.run(["python3", "-c", "import os;print(os.getuid());print(open('/proc/self/status').read())"])
    assert done.stdout.splitlines()[0] == str(os.getuid())
    effective = next(line for line in done.stdout.splitlines() if line.startswith("CapEff"))
    own = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
    assert effective.split() == own.split()


def test_terminal_is_controlling(world: World) -> None:
    with world.terminal(["bash", "-c", "read -r x </dev/tty; echo got $x; exit 3"]) as terminal:
        terminal.send("word\r")
        terminal.expect("got word")
        assert terminal.wait() == 3
