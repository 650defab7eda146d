"""Images of three distributions, made here, in a ``Sandbox``: names, users, files and hosts are as with any system.

One has Debian's layout (glibc, ``/bin`` a link, four layers), one Alpine's (musl with its own loader, ``/bin`` a
directory), one is a single static program, as "distroless" images are: no shell, no library, no ``/etc``.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "host"))
from image_layout import image, layer

from membrane import Policy, Sandbox

pytestmark = [
    pytest.mark.needs_kernel("overlayfs in a user namespace"),
    pytest.mark.needs_tool("gcc"),
    pytest.mark.needs_tool("musl-gcc"),
]
# Each C library asks for names, users and hosts in its own way.
PROBE = r"""
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void place(const char *path) {
    int fd = open(path, O_WRONLY | O_CREAT, 0644);
    printf("%s %s\n", path, fd >= 0 ? "written" : errno == EROFS ? "EROFS" : strerror(errno));
    if (fd >= 0) close(fd);
}

static void host(const char *name, const char *port) {
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found;
    int got = getaddrinfo(name, port, &hints, &found);
    char text[64] = "";
    if (!got) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (!connect(fd, found->ai_addr, found->ai_addrlen) && write(fd, "GET / HTTP/1.0\r\n\r\n", 18) == 18) {
            char buffer[4096];
            ssize_t size, all = 0;
            while ((size = read(fd, buffer + all, sizeof buffer - 1 - all)) > 0) all += size;
            buffer[all] = 0;
            strncpy(text, all > 5 ? buffer + all - 5 : buffer, sizeof text - 1);
        }
    }
    printf("%s %s\n", name, got ? "unknown" : text);
}

int main(int count, char **words) {
    char here[4096];
    struct passwd *who = getpwuid(getuid());
    printf("%s %s %s\n", words[0], who ? who->pw_name : "nobody", getcwd(here, sizeof here));
    place("made"); place("/probe-made"); place("/bin/made"); place("/etc/passwd"); place("/tmp/made");
    host("host.internal", words[1]); host("refused.example.com", "80");
    return 0;
}
"""


@pytest.fixture(scope="session")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of each distribution an image in the OCI layout."""
    place = tmp_path_factory.mktemp("distributions")
    (place / "probe.c").write_text(PROBE)
    made = {}
    for name, words in (("glibc", ["gcc"]), ("musl", ["musl-gcc"]), ("static", ["musl-gcc", "-static"])):
        subprocess.run([*words, "-o", str(place / name), str(place / "probe.c")], check=True, timeout=60)
        made[name] = (place / name).read_bytes()
    shell = shutil.which("dash") or "/bin/sh"
    debian = [
        layer(("bin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64"), ("usr/bin/sh", Path(shell).read_bytes())),
        layer(*((f"usr{path}" if path.startswith("/lib") else path[1:], data) for path, data in _libraries(shell))),
        layer(("etc/passwd", b"root:x:0:0::/root:/bin/sh\n"), ("etc/debian_version", b"12.0\n"), ("var/lib/old", b"x")),
        layer(("usr/bin/probe", made["glibc"]), ("etc/debian_version", b"12.1\n"), ("var/lib/.wh.old", b"")),
    ]
    loader = next(Path("/lib").glob("ld-musl-*.so.1"))
    alpine = layer(
        (f"lib/{loader.name}", loader.resolve().read_bytes()),
        ("bin/probe", made["musl"]),
        ("etc/passwd", b"root:x:0:0:root:/root:/bin/ash\n"),
        ("usr/bin/x", b""),
    )
    return {
        "debian": image(place / "debian", *debian),
        "alpine": image(place / "alpine", alpine),
        "distroless": image(place / "distroless", layer(("bin/probe", made["static"])), Env=["PATH=/bin"]),
    }


def _libraries(program: str) -> list[tuple[str, bytes]]:
    """The shared libraries of a program, with the loader."""
    words = subprocess.run(["ldd", program], check=True, capture_output=True, text=True, timeout=60).stdout.split()
    return [(word.replace("/usr/", "/", 1), Path(word).read_bytes()) for word in words if word.startswith("/")]


@pytest.mark.parametrize("name", ["debian", "alpine", "distroless"])
def test_a_distribution(
    name: str, layouts: dict[str, Path], workspace: Path, environ: dict[str, str], port: int
) -> None:
    policy = Policy.from_dict({"image": f"oci:{layouts[name]}", "allow": [f"host.internal:{port}"]})
    with Sandbox(policy, workspace=workspace, environ=environ) as sandbox:
        done = sandbox.run(["probe", str(port)])
        assert done.exit_code == 0, done
        lines = str(done.stdout).splitlines()
        who = pwd.getpwuid(os.getuid()).pw_name
        assert lines[0] == f"probe {who} {workspace}", lines
        assert lines[1:4] == ["made written", "/probe-made EROFS", "/bin/made EROFS"], lines
        assert lines[4] in ("/etc/passwd EROFS", "/etc/passwd Permission denied") and lines[5] == "/tmp/made written"
        assert lines[6:] == ["host.internal hello", "refused.example.com unknown"], lines
        if name == "debian":
            shown = sandbox.run(["sh", "-c", "read v </etc/debian_version; echo $v; echo /var/lib/*; exec probe 1"])
            assert str(shown.stdout).startswith("12.1\n/var/lib/*\nprobe "), shown
    assert (workspace / "made").exists()
