"""Sockets of the host: buses, agents, displays, editors (rows U02 to U09).

Each service is a listening socket of the test in the place where the real one stands.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from escape_box import Box

CONNECT = """
import socket
for name, address, kind in ADDRESSES:
    attempt(name, lambda: socket.socket(socket.AF_UNIX, kind).connect(address))
    if kind == socket.SOCK_DGRAM:
        attempt(name + " sendto", lambda: socket.socket(socket.AF_UNIX, kind).sendto(b"x", address))
        attempt(name + " sendmsg", lambda: socket.socket(socket.AF_UNIX, kind).sendmsg([b"x"], [], 0, address))
"""


@contextmanager
def serving(*addresses: tuple[str, socket.SocketKind]) -> Iterator[None]:
    servers = []
    try:
        for address, kind in addresses:
            server = socket.socket(socket.AF_UNIX, kind)
            servers.append(server)
            server.bind(address)
            if kind != socket.SOCK_DGRAM:
                server.listen()
        yield
    finally:
        for server in servers:
            server.close()


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path fits into sun_path (108 bytes)."""
    path = Path(tempfile.mkdtemp(prefix="mb-"))
    yield path
    shutil.rmtree(path)


def _refused(box: Box, variables: dict[str, str], *addresses: tuple[str, str, socket.SocketKind]) -> None:
    script = f"ADDRESSES = {[(n, a, int(k)) for n, a, k in addresses]!r}" + CONNECT
    script += f"say('variables', [name for name in {sorted(variables)!r} if name in os.environ])"
    with serving(*((address, kind) for _name, address, kind in addresses)):
        reached = box.control(script)
        reached.pop("variables")
        assert set(reached.values()) == {"ok"}
        found = box.attack(script, environment=variables)
    assert found.pop("variables") == []
    assert set(found.values()) <= {"ENOENT", "ECONNREFUSED", "EPERM"}, found


def test_U02_session_bus_and_private_socket_of_systemd(box: Box, short: Path) -> None:
    (short / "systemd").mkdir()
    variables = {"DBUS_SESSION_BUS_ADDRESS": f"unix:path={short}/bus", "XDG_RUNTIME_DIR": str(short)}
    stream = socket.SOCK_STREAM
    _refused(box, variables, ("bus", f"{short}/bus", stream), ("private", f"{short}/systemd/private", stream))
    for path in (f"/run/user/{os.getuid()}/bus", "/run/dbus/system_bus_socket", "/run/systemd/private"):
        assert box.attack(f"attempt('there', lambda: os.stat({path!r}) and None)") == {"there": "ENOENT"}


def test_U03_a_read_only_mount_of_the_bus_directory_is_not_made(box: Box) -> None:
    """A read-only bind would not stop connect(2): /run is another, empty one."""
    found = box.attack("say('run', sorted(os.listdir('/run')))")
    assert set(found["run"]) == {".membrane", "lock", "user"}


def test_U04_abstract_sockets(box: Box) -> None:
    name = f"\0tmp/.X11-unix/{os.getpid()}-{os.urandom(4).hex()}"
    _refused(box, {}, ("stream", name, socket.SOCK_STREAM), ("packet", name + "p", socket.SOCK_SEQPACKET))


def test_U05_datagrams(box: Box, short: Path) -> None:
    name = f"\0notify-{os.urandom(4).hex()}"
    kind = socket.SOCK_DGRAM
    _refused(box, {"NOTIFY_SOCKET": f"{short}/notify"}, ("path", f"{short}/notify", kind), ("abstract", name, kind))


def test_U06_agents_with_keys(box: Box, short: Path) -> None:
    variables = {"SSH_AUTH_SOCK": f"{short}/agent", "GPG_AGENT_INFO": f"{short}/gpg", "SSH_AGENT_PID": "1"}
    _refused(box, variables, ("ssh", f"{short}/agent", socket.SOCK_STREAM), ("gpg", f"{short}/gpg", socket.SOCK_STREAM))
    script = f"ADDRESSES = [('ssh', '{short}/agent', 1)]" + CONNECT
    os.unlink(short / "agent")
    with serving((f"{short}/agent", socket.SOCK_STREAM)):  # the rule lifted for this one socket
        assert box.attack(script, "--unix-socket", f"{short}/agent") == {"ssh": "ok"}


def test_U07_displays_sound_and_portals(box: Box, short: Path) -> None:
    variables = {
        "DISPLAY": ":0", "WAYLAND_DISPLAY": f"{short}/wayland", "XAUTHORITY": f"{short}/auth",
        "PULSE_SERVER": f"unix:{short}/pulse", "PIPEWIRE_REMOTE": f"{short}/pipewire",
    }  # fmt: skip
    stream = socket.SOCK_STREAM
    _refused(box, variables, ("wayland", f"{short}/wayland", stream), ("pulse", f"{short}/pulse", stream))
    assert box.attack("attempt('x', lambda: os.listdir('/tmp/.X11-unix'))") == {"x": "ENOENT"}


def test_U08_terminal_multiplexers(box: Box, short: Path) -> None:
    variables = {"TMUX": f"{short}/tmux,1,0", "STY": "1.x", "SCREENDIR": str(short), "ZELLIJ": "0"}
    _refused(box, variables, ("tmux", f"{short}/tmux", socket.SOCK_STREAM))


def test_U09_editors(box: Box, short: Path) -> None:
    variables = {
        "VSCODE_IPC_HOOK_CLI": f"{short}/vscode", "VSCODE_GIT_IPC_HANDLE": f"{short}/git", "NVIM": f"{short}/nvim",
        "EMACS_SERVER_FILE": f"{short}/emacs", "TERM_PROGRAM": "vscode",
    }  # fmt: skip
    stream = socket.SOCK_STREAM
    _refused(box, variables, ("vscode", f"{short}/vscode", stream), ("nvim", f"{short}/nvim", stream))


@pytest.mark.parametrize("place", ["scratch", "renamed", "relative"])
def test_U_the_host_s_view_has_no_socket_but_the_listed(box: Box, short: Path, place: str) -> None:
    """With file rules the host's /tmp is in the view: what listens there is covered, however it got its name."""
    box.policy(presets=[], view="host", files={"allow_write": ["."]})
    listed, other = short / "listed", short / "other"
    bound = {"scratch": other, "renamed": short / "passing", "relative": Path("other")}[place]
    before = os.getcwd()
    os.chdir(short)
    try:
        with serving((str(listed), socket.SOCK_STREAM), (str(bound), socket.SOCK_STREAM)):
            if place == "renamed":
                bound.rename(other)
            for path in (listed, other):
                path.chmod(0o777)
            short.chmod(0o755)
            addresses = [(path.name, str(path), int(socket.SOCK_STREAM)) for path in (listed, other)]
            script = f"ADDRESSES = {addresses!r}" + CONNECT
            assert box.control(script) == {"listed": "ok", "other": "ok"}
            assert box.attack(script, "--unix-socket", str(listed)) == {"listed": "ok", "other": "EACCES"}
            assert box.attack(script) == {"listed": "EPERM", "other": "EPERM"}  # AF_UNIX as a whole
    finally:
        os.chdir(before)
