"""Protocols of services behind unix sockets: what goes up is what was judged, however it is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membrane.gateway.adapters import Adapter, Broken
from membrane.gateway.adapters.docker import Containers, Docker
from membrane.gateway.adapters.gpg_agent import GpgAgent
from membrane.gateway.adapters.ssh_agent import LONGEST, SshAgent, fingerprint, frame, string
from membrane.policy.decide import decide
from membrane.policy.model import Allow, Origin, Policy, SocketAccess, SocketRule

HERE = Origin("user", "config.yaml", 1)


class Judge:
    """The policy's decision, and what was asked."""

    def __init__(self, adapter: str, *allow: str) -> None:
        self.policy = Policy(unix_sockets=(SocketRule("/s", HERE, adapter, allow),))
        self.refused: list[str] = []

    def __call__(self, operation: str, names: tuple[str, ...]) -> bool:
        verdict = decide(self.policy, SocketAccess("/s", operation, names))
        if not isinstance(verdict, Allow):
            self.refused.append(operation)
        return isinstance(verdict, Allow)


def taken(adapter: Adapter) -> tuple[bytes, bytes]:
    """What the adapter sends up and down; both are empty afterwards."""
    up, down = bytes(adapter.up), bytes(adapter.down)
    adapter.up.clear()
    adapter.down.clear()
    return up, down


# ---------------------------------------------------------------- ssh-agent

LIST, FAILURE = frame(b"\x0b"), frame(b"\x05")
KEYS = {b"blob-one": b"one", b"blob-two": b"two"}


def listed(keys: dict[bytes, bytes]) -> bytes:
    rows = b"".join(string(blob) + string(comment) for blob, comment in keys.items())
    return frame(b"\x0c" + len(keys).to_bytes(4, "big") + rows)


def sign(blob: bytes, data: bytes = b"data") -> bytes:
    return frame(b"\x0d" + string(blob) + string(data) + bytes(4))


def agent(*allow: str) -> tuple[SshAgent, Judge]:
    judge = Judge("ssh-agent", *allow)
    adapter = SshAgent(judge)
    assert taken(adapter) == (LIST, b"")  # its own question
    adapter.from_server(listed(KEYS))
    assert taken(adapter) == (b"", b"")
    return adapter, judge


def test_listing_and_signing_go_through() -> None:
    adapter, judge = agent()
    adapter.from_client(LIST)
    assert taken(adapter) == (LIST, b"")
    adapter.from_server(listed(KEYS))
    assert taken(adapter) == (b"", listed(KEYS))
    adapter.from_client(sign(b"blob-one"))
    assert taken(adapter) == (sign(b"blob-one"), b"")
    adapter.from_server(frame(b"\x0e" + string(b"signature")))
    assert taken(adapter) == (b"", frame(b"\x0e" + string(b"signature")))
    assert judge.refused == []


@pytest.mark.parametrize("name", ["two", fingerprint(b"blob-two")])
def test_keys_are_named_by_comment_or_fingerprint(name: str) -> None:
    adapter, judge = agent(name)
    adapter.from_client(LIST)
    taken(adapter)
    adapter.from_server(listed(KEYS))
    assert taken(adapter) == (b"", listed({b"blob-two": b"two"}))
    adapter.from_client(sign(b"blob-two"))
    assert taken(adapter)[0] == sign(b"blob-two")
    adapter.from_server(FAILURE)
    assert taken(adapter) == (b"", FAILURE)
    judge.refused.clear()
    adapter.from_client(sign(b"blob-one"))
    assert taken(adapter) == (b"", FAILURE)
    assert judge.refused == ["sign"]


def test_a_key_that_the_agent_does_not_list_is_not_asked_for() -> None:
    adapter, _judge = agent()
    adapter.from_client(sign(b"blob-three"))
    assert taken(adapter) == (b"", FAILURE)


def test_requests_wait_for_their_turn() -> None:
    judge = Judge("ssh-agent")
    adapter = SshAgent(judge)
    adapter.from_client(LIST + sign(b"blob-one") + frame(b"\x13"))
    assert taken(adapter) == (LIST, b"")
    adapter.from_server(listed(KEYS))
    assert taken(adapter) == (LIST, b"")
    adapter.from_server(listed(KEYS))
    assert taken(adapter) == (sign(b"blob-one"), listed(KEYS))
    adapter.from_server(frame(b"\x0e" + string(b"s")))
    assert taken(adapter) == (b"", frame(b"\x0e" + string(b"s")) + FAILURE)
    assert judge.refused == ["remove every key"]


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        (string(b"session-bind@openssh.com") + string(b"host key"), []),
        (string(b"session-bind@openssh.com.test"), ["extension"]),
        (b"session-bind@openssh.com", ["extension"]),
        (string(b"query"), ["extension"]),
    ],
)
def test_what_ssh_says_before_each_use_is_failed_and_no_refusal(name: bytes, refused: list[str]) -> None:
    adapter, judge = agent()
    adapter.from_client(frame(b"\x1b" + name))
    assert taken(adapter) == (b"", FAILURE)
    assert judge.refused == refused


@pytest.mark.parametrize("kind", [k for k in range(256) if k not in (11, 13)])
def test_nothing_else_is_asked_of_the_agent(kind: int) -> None:
    adapter, _judge = agent()
    adapter.from_client(frame(bytes((kind,)) + b"rest"))
    assert taken(adapter) == (b"", FAILURE)


@pytest.mark.parametrize(
    "data",
    [
        bytes(4),
        (LONGEST + 1).to_bytes(4, "big"),
        frame(b"\x0d"),
        frame(b"\x0d" + string(b"blob-one") + string(b"x") + bytes(5)),
        frame(b"\x0d" + string(b"blob-one") + (99).to_bytes(4, "big")),
    ],
)
def test_what_is_malformed_ends_the_connection(data: bytes) -> None:
    adapter, _judge = agent()
    with pytest.raises(Broken):
        adapter.from_client(data)
    assert taken(adapter)[0] == b""


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=40) | st.sampled_from([LIST, sign(b"blob-one"), sign(b"blob-two")]), max_size=6))
def test_only_known_requests_go_up_whatever_is_sent(parts: list[bytes]) -> None:
    adapter, _judge = agent("two")
    up = b""
    try:
        for part in parts:
            for octet in part:
                adapter.from_client(bytes((octet,)))
                sent, _down = taken(adapter)
                up += sent
                if sent == LIST:
                    adapter.from_server(listed(KEYS))
                elif sent:
                    adapter.from_server(FAILURE)
    except Broken:
        pass
    while up:
        one = next((each for each in (LIST, sign(b"blob-two")) if up.startswith(each)), None)
        assert one is not None
        up = up[len(one) :]


# ---------------------------------------------------------------- gpg-agent

GRIP, OTHER = "AB" * 20, "CD" * 20
FORBIDDEN = b"ERR 67109115 Forbidden <membrane>\n"


def gpg(*allow: str) -> tuple[GpgAgent, Judge]:
    judge = Judge("gpg-agent", *allow)
    adapter = GpgAgent(judge)
    adapter.from_client(b"NOP\n")
    assert taken(adapter) == (b"", b"")  # the agent speaks first
    adapter.from_server(b"OK Pleased to meet you\n")
    assert taken(adapter) == (b"NOP\n", b"OK Pleased to meet you\n")
    adapter.from_server(b"OK\n")
    taken(adapter)
    return adapter, judge


def talk(adapter: GpgAgent, *lines: str) -> tuple[bytes, bytes]:
    """Each line is sent and answered with OK; everything that went up, and down."""
    up = down = b""
    for line in lines:
        adapter.from_client(line.encode() + b"\n")
        sent, told = taken(adapter)
        up, down = up + sent, down + told
        if sent:
            adapter.from_server(b"OK\n")
            down += taken(adapter)[1]
    return up, down


def test_gpg_signs_with_the_named_key() -> None:
    adapter, _judge = gpg(GRIP)
    up, down = talk(adapter, f"SIGKEY {GRIP}", "SETKEYDESC Hello", "SETHASH 8 0011", "PKSIGN -- ABCD")
    assert up == f"SIGKEY {GRIP}\nSETKEYDESC A+sandboxed+command+asks:%0AHello\nSETHASH 8 0011\nPKSIGN\n".encode()
    assert down == b"OK\n" * 4
    up, down = talk(adapter, f"SIGKEY {OTHER}", "PKSIGN", "RESET", "PKSIGN")
    assert b"PKSIGN" not in up
    assert down == b"OK\n" + FORBIDDEN + b"OK\n" + FORBIDDEN


@pytest.mark.parametrize(
    ("allow", "signs", "decrypts"),
    [((), True, False), (("sign",), True, False), (("decrypt",), False, True), ((f"decrypt {GRIP}",), False, True),
     ((OTHER,), False, False), (("sign", "decrypt"), True, True)],
)  # fmt: skip
def test_gpg_operations_follow_the_rule(allow: tuple[str, ...], signs: bool, decrypts: bool) -> None:
    adapter, _judge = gpg(*allow)
    assert (b"PKSIGN\n" in talk(adapter, f"SETKEY {GRIP}", "PKSIGN")[0]) == signs
    assert (b"PKDECRYPT\n" in talk(adapter, f"SETKEY {GRIP}", "PKDECRYPT")[0]) == decrypts


@pytest.mark.parametrize(
    "line",
    [
        "SCD SERIALNO", "GET_PASSPHRASE x y z w", "PRESET_PASSPHRASE x", "EXPORT_KEY " + GRIP, "IMPORT_KEY", "GENKEY",
        "DELETE_KEY " + GRIP, "KEYWRAP_KEY --export", "KILLAGENT", "RELOADAGENT", "PASSWD " + GRIP, "LEARN",
        "KEYTOCARD x", "KEYINFO --list", "GETINFO pid", "GETINFO socket_name", "UPDATESTARTUPTTY", "GETVAL x", "",
        "OPTION pinentry-mode=loopback", "OPTION s2k-count=1", "SETHASH --inquire", "ISTRUSTED x", "MARKTRUSTED x",
        "HAVEKEY " + GRIP + " x", "pksign", " PKSIGN", "SIGKEY " + GRIP + "0", "READKEY --card x", "D x", "END",
    ],
)  # fmt: skip
def test_gpg_commands_that_are_not_known_are_forbidden(line: str) -> None:
    adapter, _judge = gpg("sign", "decrypt")
    assert talk(adapter, line) == (b"", FORBIDDEN)


def test_gpg_data_is_no_command_and_a_command_no_data() -> None:
    adapter, _judge = gpg("decrypt")
    talk(adapter, f"SETKEY {GRIP}")
    adapter.from_client(b"PKDECRYPT\nKILLAGENT\n")
    assert taken(adapter) == (b"PKDECRYPT\n", b"")
    with pytest.raises(Broken):
        adapter.from_server(b"INQUIRE CIPHERTEXT\n")
    assert taken(adapter)[0] == b""
    adapter, _judge = gpg("decrypt")
    talk(adapter, f"SETKEY {GRIP}")
    adapter.from_client(b"PKDECRYPT\n")
    adapter.from_server(b"INQUIRE CIPHERTEXT\n")
    adapter.from_client(b"D KILLAGENT\nEND\n")
    assert taken(adapter)[0] == b"PKDECRYPT\nD KILLAGENT\nEND\n"
    adapter.from_server(b"D secret\nOK\n")
    assert talk(adapter, "KILLAGENT") == (b"", b"D secret\nOK\n" + FORBIDDEN)


def test_gpg_options_are_answered_here_and_long_lines_end_it() -> None:
    adapter, _judge = gpg()
    assert talk(adapter, "OPTION ttyname=/dev/pts/1", "OPTION display=:0") == (b"", b"OK\nOK\n")
    with pytest.raises(Broken):
        adapter.from_client(b"NOP" * 400)


# ---------------------------------------------------------------- docker

ID, EXEC = "ab" * 32, "cd" * 32
EVERYTHING = ("GET /**", "HEAD /**", "POST /**", "PUT /**", "DELETE /**")


def docker(*allow: str, containers: Containers | None = None) -> tuple[Docker, Judge]:
    judge = Judge("docker", *(allow or EVERYTHING))
    return Docker(judge, containers or Containers()), judge


def owned() -> Containers:
    containers = Containers()
    containers.ids.update({ID: ID, "mine": ID})
    containers.execs.add(EXEC)
    return containers


def request(method: str, target: str, body: Any = None, *fields: str) -> bytes:
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"{method} {target} HTTP/1.1", "Host: x", *fields]
    if body is not None:
        head.append(f"Content-Length: {len(data)}")
    return "\r\n".join((*head, "", "")).encode() + data


def answer(status: int, body: bytes = b"{}", *fields: str) -> bytes:
    head = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *fields]
    return "\r\n".join((*head, "", "")).encode() + body


def status(down: bytes) -> int:
    return int(down.split(b" ", 2)[1])


def test_an_allowed_operation_is_written_anew() -> None:
    adapter, _judge = docker("GET /containers/json")
    adapter.from_client(request("GET", "/v1.41//containers/./json?all=1", None, "X-Other: 1", "Accept: a/b"))
    up, down = taken(adapter)
    assert up.startswith(b"GET /v1.41/containers/json?all=1 HTTP/1.1\r\nHost: docker\r\naccept: a/b\r\n")
    assert b"Other" not in up
    assert down == b""
    adapter.from_server(answer(200, b"[]"))
    assert taken(adapter)[1].endswith(b"\r\n\r\n[]")
    adapter.from_client(request("GET", "/info"))
    assert status(taken(adapter)[1]) == 403


def test_ping_and_version_need_no_rule_and_all_else_does() -> None:
    for method, target in (("HEAD", "/_ping"), ("GET", "/_ping"), ("GET", "/v1.51/version")):
        adapter, _judge = docker("GET /nothing")
        adapter.from_client(request(method, target))
        assert taken(adapter)[0].startswith(f"{method} {target} ".encode())
    for method, target in (("GET", "/info"), ("GET", "/containers/json"), ("POST", "/containers/create")):
        adapter, judge = docker("GET /nothing")
        adapter.from_client(request(method, target, {}))
        up, down = taken(adapter)
        assert (up, status(down)) == (b"", 403)
        assert judge.refused == [f"{method} {target}"]


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/build"), ("POST", "/session"), ("POST", "/grpc"), ("POST", "/volumes/create"), ("POST", "/commit"),
        ("POST", "/swarm/init"), ("POST", "/plugins/pull"), ("POST", "/services/create"), ("GET", "/secrets"),
        ("POST", "/images/load"), ("POST", f"/containers/{ID}/update"), ("GET", f"/containers/{ID}/attach/ws"),
        ("POST", "/networks/x/connect"), ("POST", "/v1.41/v1.41/containers/create"), ("POST", "/CONTAINERS/create"),
        ("POST", "/images/create?fromSrc=http://x/"), ("POST", "/containers/mine/start?checkpoint=x"),
    ],
)  # fmt: skip
def test_operations_that_are_not_known_are_refused_whatever_the_rule_says(method: str, target: str) -> None:
    adapter, judge = docker(containers=owned())
    adapter.from_client(request(method, target, {}))
    up, down = taken(adapter)
    assert (up, status(down)) == (b"", 403)
    assert len(judge.refused) == 1


SAFE = {"Image": "i", "Cmd": ["true"], "Env": None, "HostConfig": {"Binds": None, "Privileged": False, "PidMode": ""}}


@pytest.mark.parametrize(
    "host",
    [
        {}, {"NetworkMode": "none"}, {"NetworkMode": "bridge", "Memory": 1 << 20, "CapDrop": ["ALL"]},
        {"Mounts": [{"Type": "tmpfs", "Target": "/t"}]}, {"SecurityOpt": ["no-new-privileges"]},
        {"LogConfig": {"Type": "", "Config": {}}}, {"RestartPolicy": {"Name": "no", "MaximumRetryCount": 0}},
        {"MaskedPaths": None, "Devices": [], "PortBindings": {}, "AutoRemove": True, "ConsoleSize": [0, 0]},
    ],
)  # fmt: skip
def test_harmless_containers_are_made(host: dict[str, Any]) -> None:
    adapter, judge = docker("POST /containers/create")
    adapter.from_client(request("POST", "/containers/create", {**SAFE, "HostConfig": host}))
    up, down = taken(adapter)
    assert json.loads(up.partition(b"\r\n\r\n")[2]) == {**SAFE, "HostConfig": host}
    assert (down, judge.refused) == (b"", [])


@pytest.mark.parametrize(
    "host",
    [
        {"Privileged": True}, {"privileged": True}, {"Binds": ["/:/host"]}, {"binds": ["/:/h"]},
        {"Binds": ["/var/run/docker.sock:/s"]}, {"Mounts": [{"Type": "bind", "Source": "/", "Target": "/h"}]},
        {"Mounts": [{"Type": "volume", "Source": "others", "Target": "/v"}]},
        {"Mounts": [{"Type": "volume", "Target": "/v", "VolumeOptions": {"DriverConfig": {"Options": {"o": "bind"}}}}]},
        {"VolumesFrom": ["db"]}, {"PidMode": "host"},
        {"PidMode": "container:x"}, {"IpcMode": "host"}, {"NetworkMode": "host"}, {"NetworkMode": "container:x"},
        {"UTSMode": "host"}, {"UsernsMode": "host"}, {"CgroupnsMode": "host"}, {"Cgroup": "x"}, {"CgroupParent": "/"},
        {"CapAdd": ["SYS_ADMIN"]}, {"Devices": [{"PathOnHost": "/dev/sda"}]}, {"DeviceCgroupRules": ["a *:* rwm"]},
        {"DeviceRequests": [{"Count": -1}]}, {"SecurityOpt": ["seccomp=unconfined"]}, {"SecurityOpt": "x"},
        {"MaskedPaths": []}, {"ReadonlyPaths": []}, {"Sysctls": {"a": "b"}}, {"Runtime": "other"},
        {"PortBindings": {"80/tcp": [{"HostPort": "80"}]}}, {"PublishAllPorts": True}, {"Links": ["db"]},
        {"RestartPolicy": {"Name": "always"}}, {"LogConfig": {"Type": "syslog"}}, {"OomScoreAdj": -1000},
        {"LogConfig": {"Type": "json-file", "Config": {"x": "y"}}}, {"StorageOpt": {"size": "1G"}}, {"New": {"x": 1}},
        {"VolumeDriver": "nfs"}, {"Annotations": {"a": "b"}}, {"ContainerIDFile": "/x"},
    ],
)  # fmt: skip
def test_a_container_with_the_host_in_it_is_refused(host: dict[str, Any]) -> None:
    adapter, judge = docker()
    adapter.from_client(request("POST", "/v1.41/containers/create", {**SAFE, "HostConfig": host}))
    up, down = taken(adapter)
    assert (up, status(down)) == (b"", 403)
    assert judge.refused[0].startswith("POST /containers/create with HostConfig.")


@pytest.mark.parametrize(
    "body",
    [
        b'{"HostConfig": {"Privileged": false, "Privileged": true}}',
        b'{"HostConfig": {"Mounts": [{"Type": "tmpfs", "type": "bind"}]}}',
        b'{"HostConfig": {}, "hostconfig": {"Privileged": true}}',
        b'{"HostConfig": {}} {}', b"[]", b"", b'{"Image": NaN}', b'{"Image": "\xff"}', b"{",
    ],
)  # fmt: skip
def test_json_that_may_be_read_in_two_ways_is_refused(body: bytes) -> None:
    adapter, _judge = docker()
    adapter.from_client(request("POST", "/containers/create", body))
    up, down = taken(adapter)
    assert (up, status(down)) == (b"", 400)
    assert adapter.over()


@pytest.mark.parametrize(
    "top", [{"hostconfig": {"Privileged": True}}, {"NetworkingConfig": {"EndpointsConfig": {"db": {}}}}]
)
def test_other_fields_of_a_container_are_refused(top: dict[str, Any]) -> None:
    adapter, _judge = docker()
    adapter.from_client(request("POST", "/containers/create", {"Image": "i", **top}))
    up, down = taken(adapter)
    assert (up, status(down)) == (b"", 403)


def test_chunked_bodies_are_read_whole() -> None:
    body = json.dumps(SAFE).encode()
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:9], body[9:])) + b"0\r\n\r\n"
    head = request("POST", "/containers/create", None, "Transfer-Encoding: chunked")
    adapter, _judge = docker()
    for octet in head + chunks:
        adapter.from_client(bytes((octet,)))
    up, _down = taken(adapter)
    assert json.loads(up.partition(b"\r\n\r\n")[2]) == SAFE
    assert b"chunked" not in up
    evil = json.dumps({"HostConfig": {"Privileged": True}}).encode()
    adapter, _judge = docker()
    adapter.from_client(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(evil), evil))
    assert status(taken(adapter)[1]) == 403


@pytest.mark.parametrize(
    "fields", [("Content-Length: 2", "Transfer-Encoding: chunked"), ("Content-Length: 2", "Content-Length: 3")]
)
def test_ambiguous_lengths_are_refused(fields: tuple[str, ...]) -> None:
    adapter, _judge = docker()
    adapter.from_client(request("POST", "/containers/create", None, *fields) + b"{}0\r\n\r\n")
    up, down = taken(adapter)
    assert (up, status(down)) == (b"", 400)


def test_only_containers_of_this_session_are_reached() -> None:
    containers = Containers()
    adapter, _judge = docker(containers=containers)
    for name in (ID, "db", ID[:12]):
        adapter.from_client(request("POST", f"/containers/{name}/exec", {"Cmd": ["sh"]}))
        up, down = taken(adapter)
        assert (up, status(down)) == (b"", 403)
    adapter.from_client(request("POST", "/containers/create?name=mine", SAFE))
    assert taken(adapter)[0]
    adapter.from_server(answer(201, json.dumps({"Id": ID, "Warnings": []}).encode()))
    taken(adapter)
    for name in (ID, "mine", ID[:12]):
        adapter.from_client(request("POST", f"/v1.41/containers/{name}/start"))
        assert taken(adapter)[0].startswith(f"POST /v1.41/containers/{ID}/start ".encode())
        adapter.from_server(answer(204, b""))
        taken(adapter)
    adapter.from_client(request("POST", f"/exec/{EXEC}/start", {"Tty": False}))
    assert status(taken(adapter)[1]) == 403
    adapter.from_client(request("POST", "/containers/mine/exec", {"Cmd": ["sh"], "Privileged": True}))
    assert status(taken(adapter)[1]) == 403
    adapter.from_client(request("POST", "/containers/mine/exec", {"Cmd": ["sh"]}))
    adapter.from_server(answer(201, json.dumps({"Id": EXEC}).encode()))
    taken(adapter)
    adapter.from_client(request("POST", f"/exec/{EXEC}/start", {"Tty": False}))
    assert taken(adapter)[0].startswith(b"POST /exec/")


def test_a_stream_is_raw_only_after_the_daemon_s_101() -> None:
    adapter, _judge = docker(containers=owned())
    smuggled = request("POST", "/containers/create", {"HostConfig": {"Privileged": True}})
    adapter.from_client(
        request("POST", "/containers/mine/attach?stream=1", None, "Upgrade: tcp", "Connection: Upgrade")
    )
    up, _down = taken(adapter)
    assert b"Upgrade: tcp\r\nConnection: Upgrade" in up
    adapter.from_client(smuggled)
    assert taken(adapter) == (b"", b"")
    adapter.from_server(answer(200, b""))
    up, down = taken(adapter)
    assert up == b""
    assert b" 403 " in down  # it was judged as the request that it is
    adapter.from_client(request("POST", "/containers/mine/attach?stream=1"))
    taken(adapter)
    adapter.from_server(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\nhello")
    assert taken(adapter)[1].endswith(b"\r\n\r\nhello")
    adapter.from_client(b"keys")
    adapter.from_server(b"text")
    assert taken(adapter) == (b"keys", b"text")


def test_a_daemon_that_changes_the_protocol_unasked_ends_the_connection() -> None:
    adapter, _judge = docker()
    adapter.from_client(request("GET", "/info", None, "Upgrade: tcp", "Connection: Upgrade"))
    assert b"Upgrade" not in taken(adapter)[0]
    with pytest.raises(Broken):
        adapter.from_server(b"HTTP/1.1 101 UPGRADED\r\n\r\n")


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 120))
def test_damaged_requests_never_reach_the_daemon_with_the_host(junk: bytes, at: int) -> None:
    whole = request("POST", "/containers/create", {**SAFE, "HostConfig": {"Privileged": True}})
    adapter, _judge = docker()
    try:
        adapter.from_client(whole[:at] + junk + whole[at:])
    except Broken:
        pass
    assert b"Privileged" not in taken(adapter)[0]
