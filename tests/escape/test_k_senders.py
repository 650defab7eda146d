"""Connections behind a NAT of the command's own (row K89) are joined with the process that made them.

Containers by hand: two network namespaces, each with a link to the command's, which translates what they send and gives
it another port.  The first one's connection is lost on the way.  It was asked for last before the other one's was
refused, so place and time alone name the wrong process; neither its own port nor its inode is the one that arrives.
"""

from __future__ import annotations

import json
import subprocess

import pytest
from escape_box import MEMBRANE, Box

pytestmark = [pytest.mark.needs_tool("iptables"), pytest.mark.needs_tool("nsenter")]

WORLD = r"""
set -e
echo 1 > /proc/sys/net/ipv4/ip_forward
for protocol in tcp udp; do
    iptables -t nat -A POSTROUTING -p $protocol -s 10.9.0.0/16 -o eth0 -j MASQUERADE --to-ports 5000-5009
done
iptables -I FORWARD -s 10.9.1.0/24 -j DROP
for n in 1 2; do
    mkfifo /tmp/made$n
    unshare -n sh -c "echo > /tmp/made$n; exec sleep 1000" & eval p$n=$!
    read line < /tmp/made$n
    eval p=\$p$n
    ip link add v$n type veth peer name eth0 netns $p
    ip addr add 10.9.$n.1/24 dev v$n
    ip link set v$n up
    nsenter -n -t $p ip addr add 10.9.$n.2/24 dev eth0
    nsenter -n -t $p ip link set eth0 up
    nsenter -n -t $p ip route add default via 10.9.$n.1
done
cp "$(readlink -f /usr/bin/python3)" /tmp/lost
cp /tmp/lost /tmp/asked
mkfifo /tmp/ready /tmp/lose /tmp/open /tmp/go
nsenter -n -t $p1 /tmp/lost -c "$LOST" & lost=$!  # which has started by then: what is refused is not explained for ever
read line < /tmp/ready
nsenter -n -t $p2 /tmp/asked -c "$ASKED" & asked=$!
read line < /tmp/open
echo > /tmp/lose
wait $lost
echo > /tmp/go
wait $asked
iptables -t nat -L POSTROUTING -v -n -x | grep MASQUERADE | while read packets rest; do echo translated $packets; done
/tmp/lost -c "$FORGE"
kill $p1 $p2
"""
ASKED = """
import socket
datagrams = socket.socket(type=socket.SOCK_DGRAM)
datagrams.bind(("", 4241))
connection = socket.socket()
connection.bind(("", 4243))
connection.connect(("192.0.2.1", 80))
with open("/tmp/open", "w") as opened:
    opened.write("\\n")
open("/tmp/go").read()
connection.send(b"GET / HTTP/1.1\\r\\nHost: 192.0.2.1\\r\\n\\r\\n")
print(connection.recv(100).split()[1].decode())
datagrams.sendto(bytes.fromhex("123401000001000000000000046e6f7065076578616d706c650000010001"), ("198.18.0.1", 53))
print(datagrams.recv(100)[:2].hex())
"""
LOST = """
import errno, socket
connection = socket.socket()
connection.bind(("", 4244))
connection.setblocking(False)
with open("/tmp/ready", "w") as ready:
    ready.write("\\n")
open("/tmp/lose").read()
assert connection.connect_ex(("192.0.2.1", 80)) == errno.EINPROGRESS
"""
# Answers of connection tracking, of the command's own making, to every socket of its namespace that could read them.
FORGE = """
import errno, socket
own, sender = (socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) for _ in range(2))
own.bind((0, 0))
sender.bind((0, 0))
mine = own.getsockname()[0], sender.getsockname()[0]
rows = [line.split() for line in open("/proc/net/netlink").read().splitlines()[1:]]
for port in [int(row[2]) for row in rows if row[1] == "12" and row[2] not in ("0", str(mine[1]))]:
    try:
        sender.sendto(bytes(64), (port, 0))
        print("own" if port == mine[0] else "another", "ok")
    except OSError as error:
        print("own" if port == mine[0] else "another", errno.errorcode[error.errno])
"""


def test_K89_a_connection_behind_a_nat_of_the_command_has_the_process_that_made_it(box: Box) -> None:
    box.policy(containers="nested", presets=[], allow=[])
    done = box.run(
        "/usr/bin/env", f"ASKED={ASKED}", f"LOST={LOST}", f"FORGE={FORGE}", "/bin/sh", "-c", WORLD, timeout=120
    )
    assert done.returncode == 0, done
    said = done.stdout.splitlines()
    assert said[:4] == ["403", "1234", "translated 1", "translated 1"], done
    assert sorted(said[4:]) == ["another ECONNREFUSED", "own ok"], "the launcher's socket, and the control"
    shown = subprocess.run(
        [*MEMBRANE, "trace", "show", "--json", "--denied", "@last"],
        cwd=box.workspace, env=box.environment, capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    refused = [event for event in map(json.loads, shown.splitlines()) if event["source"] == "network"]
    found = [(each["access"].get("address") or each["access"].get("name"), each["process"]["name"]) for each in refused]
    assert found == [("192.0.2.1", "asked"), ("nope.example", "asked")], refused
    assert [each["client_port"] for each in refused] == [4243, 4241], "not as it was translated"
    assert all(each["client_socket"] for each in refused), refused
