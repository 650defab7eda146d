"""UDP by rule without a network namespace: what a rule opens works by each call, and nothing else does."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from inside_world import World

pytestmark = [pytest.mark.needs_kernel("landlock"), pytest.mark.needs_kernel("landlock without TCP")]


class Peer:
    """A server that answers each datagram with its word and the datagram, after a stranger has sent one as well."""

    def __init__(self, word: str) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.word, self.got = word, list[bytes]()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            data, client = self.socket.recvfrom(65535)
            if data == b"end":
                return
            self.got.append(data)
            self.stranger.sendto(b"EVIL", client)
            self.socket.sendto(self.word.encode() + data, client)

    def close(self) -> None:
        self.stranger.sendto(b"end", ("127.0.0.1", self.port))
        self.thread.join(60)
        self.stranger.close()
        self.socket.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


@pytest.fixture
def peers(world: World) -> Iterator[tuple[Peer, Peer]]:
    one, two = Peer("one:"), Peer("two:")
    world.facts.update(one=one.port, two=two.port)
    yield one, two
    for each in (one, two):
        each.close()


UDP = """
name = socket.gethostbyname("host.internal") if os.environ.get("MEMBRANE") else "127.0.0.1"
one, two = (name, W["one"]), (name, W["two"])
def new(family=socket.AF_INET):
    s = socket.socket(family, socket.SOCK_DGRAM)
    return s
P = ctypes.c_void_p
class Message(ctypes.Structure):
    _fields_ = [("name", P), ("size", ctypes.c_uint), ("iov", P), ("count", ctypes.c_size_t),
        ("control", P), ("length", ctypes.c_size_t), ("flags", ctypes.c_int * 2), ("done", ctypes.c_ulong)]
kept = []
def vector(*messages):
    out = (Message * len(messages))()
    for each, (to, data) in zip(out, messages):
        name, data = (ctypes.create_string_buffer(b, len(b)) for b in (to, data))
        iov = (ctypes.c_size_t * 2)(ctypes.addressof(data), len(data))
        each.name, each.size, each.iov, each.count = ctypes.addressof(name), len(name), ctypes.addressof(iov), 1
        kept.extend((name, data, iov))
    return out
"""
CALLS = (
    UDP
    + """
def connected():
    s = new(); s.connect(one); s.send(b"a")
    return [s.recv(99).decode(), s.getpeername() == one]
def written():
    s = new(); s.connect(one); os.write(s.fileno(), b"b")
    return os.read(s.fileno(), 99).decode()
def addressed():
    s = new(); out = []
    for to in (one, two):
        s.sendto(b"c", to); data, source = s.recvfrom(99); out.append([data.decode(), source == to])
    return out + [outcome(s.getpeername)]
def passed_over():  # an answer that is received without asking whence it came
    s = new(); s.sendto(b"d", one); s.recv(99); s.sendto(b"e", two)
    data, source = s.recvfrom(99)
    return [data.decode(), source == two]
def messages():
    s = new(); s.sendmsg([b"f", b"g"], [], 0, two)
    data, _, flags, source = s.recvmsg(3)
    return [data.decode(), flags & 32 != 0, source == two]
def many():
    s = new()
    sent = check(L.sendmmsg(s.fileno(), vector((address(*reversed(one)), b"h"), (address(*reversed(two)), b"i")), 2, 0))
    out = []
    while len(out) < 2:
        got = vector((bytes(16), bytes(9)), (bytes(16), bytes(9)))
        for each in got[:check(L.recvmmsg(s.fileno(), got, 2, 0x10000, None))]:  # MSG_WAITFORONE
            out.append(ctypes.string_at(ctypes.c_size_t.from_address(each.iov).value, each.done).decode())
    return [sent, sorted(out)]
def mapped():
    s = new(socket.AF_INET6); to = ("::ffff:" + name, W["one"]); s.sendto(b"j", to)
    data, source = s.recvfrom(99)
    return [data.decode(), source[:2] == to]
def another():  # after another connect(2) answers of the first peer do not come
    s = new(); s.connect(one); s.connect(two); s.send(b"k")
    return s.recv(99).decode()
def empty():
    s = new(); s.connect(one); s.send(b""); first = s.recv(99).decode(); s.send(b"l")
    return [first, s.recv(99).decode()]
def asked():  # without waiting
    s = new(); s.setblocking(False)
    return outcome(lambda: s.recvfrom(9))
def large():
    s = new(); s.sendto(bytes(60000), one)
    return [len(s.recvfrom(65535)[0]), outcome(lambda: s.sendto(bytes(65508), one))]
def waited_for():  # poll(2) tells of an answer
    s = new(); s.sendto(b"m", one); s.setblocking(False)
    import select
    return [select.select([s], [], [], 60)[0] == [s], s.recvfrom(9)[0].decode()]
def of_errors():  # a datagram that waits is no error (recvmsg(2), MSG_ERRQUEUE)
    s = new(); s.sendto(b"n", one)
    import select
    select.select([s], [], [], 60)
    return [outcome(lambda: s.recvmsg(9, 99, 0x2000)), s.recvfrom(9)[0].decode()]
calls = (connected, written, addressed, passed_over, messages, many, mapped, another, empty, waited_for, asked, large)
calls += (of_errors,)
print(json.dumps({each.__name__: outcome(each) for each in calls}))
"""
)


def test_datagrams_to_a_peer_of_a_rule_go_by_every_call(world: World, peers: tuple[Peer, Peer]) -> None:
    options = [f"--allow=host.internal:{each.port}/udp" for each in peers]
    found = world.python(CALLS, options=options)
    assert found == {
        "of_errors": ["EAGAIN", "one:n"],
        "connected": ["one:a", True],
        "written": "one:b",
        "addressed": [["one:c", True], ["two:c", True], "ENOTCONN"],
        "passed_over": ["two:e", True],
        "messages": ["two", True, True],
        "many": [2, ["one:h", "two:i"]],
        "mapped": ["one:j", True],
        "another": "two:k",
        "empty": ["one:", "one:l"],
        "waited_for": [True, "one:m"],
        "asked": "EAGAIN",
        "large": [60004, "EMSGSIZE"],
    }
    # Outside a stranger reaches a socket that is not connected.
    assert (
        world.python(UDP + "s = new(); s.sendto(b'x', one); print(json.dumps(s.recv(9).decode()))", outside=True)
        == "EVIL"
    )


REFUSED = (
    UDP
    + """
s = new()
def to(place): return outcome(lambda: str(s.sendto(b"x", place)))
buffers = [ctypes.create_string_buffer(address(*reversed(each)), 16) for each in (one, two)]
place, stop = ctypes.create_string_buffer(buffers[0].raw[:16], 16), []
def flip():
    while not stop:
        for each in buffers: ctypes.memmove(place, each, 16)
threading.Thread(target=flip, daemon=True).start()
iov = (ctypes.c_size_t * 2)(ctypes.addressof(buffers[0]), 1)
header = Message(ctypes.addressof(place), 16, ctypes.addressof(iov), 1)
for _ in range(200):
    L.sendto(s.fileno(), b"raced", 5, 0, place, 16)
    L.sendmsg(s.fileno(), ctypes.byref(header), 0)
    L.connect(s.fileno(), place, 16); L.send(s.fileno(), b"raced", 5, 0)
stop.append(1)
c = new(); c.connect(two); c.send(b"x"); s.sendmsg([b"x"], [], 0, two)
s.connect(one); s.sendmsg([b"x"], [], 0, two)
out = [to(two), to(("127.0.0.1", W["one"])), to(("224.0.0.1", W["one"])), to(("255.255.255.255", W["one"]))]
out.append(outcome(lambda: s.setsockopt(17, 103, 1000)))  # UDP_SEGMENT
s.close(); c.close()
s = new(); s.sendto(b"last", one); s.recv(9)
print(json.dumps(out))
"""
)


def test_datagrams_of_no_rule_go_nowhere_and_are_recorded(world: World, peers: tuple[Peer, Peer]) -> None:
    """Also where their address changes during the call, or is that of loopback, a group, or everybody."""
    one, two = peers
    events = world.path / "events"
    options = [f"--allow=host.internal:{one.port}/udp", f"--events={events}"]
    assert world.python(REFUSED, options=options) == ["1", "1", "1", "1", "ENOPROTOOPT"]
    assert not two.got and b"raced" in one.got and one.got[-1] == b"last"
    assert set(one.got) <= {b"raced", b"last", b"\2"}
    told: list[dict[str, Any]] = [json.loads(line) for line in events.read_text().splitlines()]
    refused, opened = (
        [each for each in told if each["event"] == kind] for kind in ("AccessDenied", "ConnectionOpened")
    )
    denied = {(each["access"]["host"] or each["access"]["address"], each["access"]["port"]) for each in refused}
    assert {("host.internal", two.port), ("127.0.0.1", one.port), ("224.0.0.1", one.port)} <= denied
    assert {(each["protocol"], each["host"], each["port"]) for each in opened} == {("udp", "host.internal", one.port)}
    assert world.python(UDP + "new().sendto(b'x', one); print('1')") == 1 and one.got[-1] == b"last"


def test_an_answer_of_dns_comes_from_the_server_that_was_asked(world: World) -> None:
    """musl's resolver takes no other (src/network/res_msend.c): without this no program of Alpine resolves a name."""
    body = """
query = b"\\0\\1\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\x04host\\x08internal\\0\\0\\1\\0\\1"
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("0.0.0.0", 0)); s.sendto(query, ("192.0.2.53", 53))
data, _, _, source = s.recvmsg(4800)
print(json.dumps([data[:2] == query[:2], list(source)]))
"""
    assert world.python(body) == [True, ["192.0.2.53", 53]]


def test_options_of_a_stand_in_bind_nothing_and_programs_go_on(world: World) -> None:
    """dig(1) ends with an assertion where SO_REUSEPORT is refused; of a real socket it is."""
    body = """
def shared(kind):
    s = socket.socket(socket.AF_INET, kind); s.setsockopt(1, 15, 1)
    return [s.getsockopt(1, 15), s.getsockopt(1, 39)]
print(json.dumps([outcome(lambda: shared(kind)) for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM)]))
"""
    found = world.python(body)
    assert found[0][0] == 0, "nothing has been set"
    assert found[1] in ("EOPNOTSUPP", "ENOTSUP")


def test_no_descriptor_goes_to_the_process_that_carries_datagrams(world: World) -> None:
    """It would close it, and a socket with SO_LINGER is closed when its peer likes."""
    one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, two:
        try:
            one.setsockopt(socket.SOL_SOCKET, 83, 0)  # SO_PASSRIGHTS, Linux 6.16
            expected = "EPERM"
        except OSError:
            expected = "ok"
    body = """
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(("192.0.2.1", 53))
print(json.dumps(outcome(lambda: socket.send_fds(s, [b"x"], [0]) and None)))
"""
    assert world.python(body) == expected
