"""Programs that people run, against real servers of their protocol: git, pip, npm, redis, and a shell's work."""

from __future__ import annotations

import pytest
from world.box import Box

WHERE = {"smart http": "https://git.test/hello.git", "raw tcp": "git://git.test/hello.git"}


@pytest.mark.parametrize("transport", WHERE)
def test_git_clone(box: Box, transport: str) -> None:
    box.allow("git.test")
    url = WHERE[transport]
    done = box.run(*box.tls, "--", "bash", "-euc", f"git clone -q {url} hello; cat hello/hello.txt; git -C hello fetch")
    assert done.stdout == "hello from git\n", done
    box.allow("example.com")
    denied = box.run(*box.tls, "--", "git", "clone", "-q", url, "again")
    assert denied.returncode == 128
    assert not (box.workspace / "again").exists()
    assert "git.test" in denied.stderr


def test_git_push(box: Box) -> None:
    """A host rule without paths lets writes through as well: this is what the word ``allow`` means."""
    box.allow("git.test")
    script = """
    git clone -q https://git.test/hello.git hello; cd hello
    git -c user.name=a -c user.email=a@b commit -q --allow-empty -m pushed
    git push -q origin HEAD:refs/heads/from-inside-$$; git ls-remote origin | grep -c from-inside
    """
    done = box.run(*box.tls, "--", "bash", "-euc", script)
    assert int(done.stdout) >= 1, done


def test_pip_download(box: Box) -> None:
    """With the default policy; the file comes from the second host that the index names."""
    command = ["python3", "-m", "pip", "--isolated", "download", "-q", "--no-deps", "-d", "wheels", "demo-pkg"]
    done = box.run(*box.tls, "--", *command)
    assert done.returncode == 0, done
    assert [path.name for path in (box.workspace / "wheels").iterdir()] == ["demo_pkg-1.0-py3-none-any.whl"]
    box.allow("pypi.org")
    denied = box.run(*box.tls, "--", *command[:-2], "other", "demo-pkg", "--retries=0")
    assert denied.returncode != 0
    assert "files.pythonhosted.org" in denied.stderr
    assert not (box.workspace / "other").exists() or not list((box.workspace / "other").iterdir())


def test_npm_view(box: Box) -> None:
    command = ["npm", "view", "--fetch-retries=0", "demo-pkg", "version"]
    done = box.run(*box.tls, "--", *command)
    assert done.stdout.strip() == "1.0.0", done
    box.allow("pypi.org")
    # Without the cache that the first run left in its home.
    assert box.run("--home=ephemeral", *box.tls, "--", *command).returncode != 0


def test_redis(box: Box) -> None:
    """A database by ``host:port``: its other ports stay closed."""
    command = ["redis-cli", "-h", "redis.test", "-p", "6379"]
    done = box.run(
        "-a", "redis.test:6379", "--", "bash", "-c", f"{' '.join(command)} set k v; {' '.join(command)} get k"
    )
    assert done.stdout.split() == ["OK", "v"], done
    other = ["curl", "-fsS", "http://redis.test/"]
    assert box.outside(*other).returncode == 0
    assert box.run("-a", "redis.test:6379", "--", *other).returncode in (7, 22)
    denied = box.run("-a", "redis.test:6380", "--", *command, "ping")
    assert "PONG" not in denied.stdout


def test_redis_keeps_a_connection(box: Box) -> None:
    """A blocking read that nobody answers for a while, then an answer on the same connection."""
    script = """
    redis-cli -h redis.test blpop queue-$$ 100 > out & pid=$!
    for i in $(seq 1000); do redis-cli -h redis.test client list | grep -q cmd=blpop && break; sleep 0.05; done
    redis-cli -h redis.test rpush queue-$$ late >/dev/null; wait $pid; tail -n1 out
    """
    box.allow("redis.test:6379")
    assert box.run("--", "bash", "-euc", script).stdout == "late\n"
