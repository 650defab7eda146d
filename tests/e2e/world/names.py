"""The names and addresses of the world: one table for the resolver, the origins and the tests.

The public addresses below exist only in network namespaces that have no uplink; nothing is ever sent to their owners.
"""

from __future__ import annotations

HOST4, ROUTER4 = "10.77.0.2", "10.77.0.1"  # the machine membrane runs on, and its router
HOST6, ROUTER6 = "fd77::2", "fd77::1"
RESOLVER = "127.0.0.53"  # the host's resolver, on its loopback as systemd-resolved is
OTHER_RESOLVER = "9.9.9.9"  # knows SPLIT_NAME, which the host's resolver does not
PUBLIC_DNS = "8.8.8.8"
METADATA4 = "169.254.169.254"
UNREACHABLE4 = "93.184.218.9"  # the router answers "no route"
DEV_PORT, DEV_BODY = 3000, "host dev server\n"  # HTTP on the host's loopback only
LAN_PORT = 8000  # the same on every address of the host
SOCKET_GREETING = "host unix socket\n"
SPLIT_NAME = "only-there.test"
# Groups and projects of somebody else, named like what a pattern for git's URLs may look for.
CONFUSING = (
    "attacker/git-upload-pack/exfil",
    "attacker/x.git/git-upload-pack/exfil",
    "attacker/info/refs",
    "attacker/info/lfs/objects/batch/exfil",
    "attacker/api/-/git-receive-pack",
    "api/v4/projects/me%2Fmine/repository",
    "me/mine/info/lfs/exfil",
    "me/mine/git-receive-pack/exfil",
    "me/mine.git/info/lfs/exfil",
    "group/sub/project/info/lfs/exfil",
    "group/sub/project.git/git-receive-pack/exfil",
    "group/sub/project2",
)


def _pair(number: int) -> tuple[list[str], list[str]]:
    return [f"93.184.216.{number}"], [f"2606:2800:220:1::{number:x}"]


# name -> (A, AAAA)
ZONE: dict[str, tuple[list[str], list[str]]] = {
    "httpbin.org": _pair(10),
    "example.com": _pair(11),
    "google.com": _pair(12),
    "github.com": _pair(13),
    "api.github.com": _pair(14),
    "portquiz.test": _pair(15),
    "pypi.org": _pair(16),
    "files.pythonhosted.org": _pair(17),
    "registry.npmjs.org": _pair(18),
    "api.anthropic.com": _pair(19),
    "api.openai.com": _pair(20),
    "git.test": _pair(21),
    "redis.test": _pair(22),
    "echo.test": _pair(23),
    "proxy.test": _pair(24),
    "messages.test": _pair(25),
    "deep.sub.example.com": _pair(26),
    "www.example.com": _pair(27),
    "notexample.com": _pair(28),
    "xn--bcher-kva.test": _pair(29),
    "v4only.test": (["93.184.216.30"], []),
    "v6only.test": ([], ["2606:2800:220:1::30"]),
    "many.test": ([f"93.184.217.{n}" for n in range(1, 20)], []),
    "unreachable.test": ([UNREACHABLE4], []),
    # What a hostile or careless zone may answer:
    "loopback.test": (["127.0.0.1"], ["::1"]),
    "private.test": (["10.0.0.7"], []),
    "metadata.test": ([METADATA4], []),
    "metadata.google.internal": ([METADATA4], ["fd00:ec2::254"]),
    "this-host.test": ([HOST4], [HOST6]),
    "mapped.test": ([], ["::ffff:127.0.0.1"]),
    "nat64.test": ([], ["64:ff9b::7f00:1"]),
    "zero.test": (["0.0.0.0"], []),
    "stream.test": _pair(32),
    "h2.test": _pair(33),
    "nginx.test": _pair(34),
    "grpc.test": _pair(35),
    "gitlab.com": _pair(36),
    "frameworks.test": _pair(46),
    "index.crates.io": _pair(37),
    "static.crates.io": _pair(38),
    "crates.io": _pair(39),
    "deb.debian.org": _pair(40),
    "registry-1.docker.io": _pair(41),
    "auth.docker.io": _pair(42),
    "production.cloudflare.docker.com": _pair(43),
    "platform.claude.com": _pair(47),
    "auth.openai.com": _pair(48),
    "chatgpt.com": _pair(49),
    "half.test": (["10.0.0.7", "93.184.216.31"], []),
}
CNAMES = {"alias.test": "example.com"}
SERVFAIL = {"broken.test"}
SILENT = {"silent.test"}  # never answered


def address(name: str, version: int = 4) -> str:
    """The first address of ``name``."""
    return ZONE[name][0 if version == 4 else 1][0]
