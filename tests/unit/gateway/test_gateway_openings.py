"""Known beginnings of protocols: they are recognised drip by drip, and none is a TLS hello."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membrane.gateway.openings import ENCRYPTION_REQUESTS, OPENINGS, recognise
from membrane.gateway.sniff import classify, may_be_hello

FIRST = {
    "SSH": b"SSH-2.0-OpenSSH_9.2\r\n",
    "git": b"0033git-upload-pack /hello.git\0host=git.test\0",
    "rsync": b"@RSYNCD: 31.0\n",
    "PostgreSQL": b"\0\0\0\x29\0\3\0\0user\0me\0",
    "Redis": b"*1\r\n$4\r\nPING\r\n",
    "memcached": b"\x80\x0b\0\0\0\0\0\0",
    "MongoDB": b"\x26\1\0\0\1\0\0\0\0\0\0\0\xd4\7\0\0",
    "Cassandra": b"\4\0\0\0\5\0\0\0\0",
    "SQL Server": b"\x12\1\0\x3a\0\0\1\0",
    "Oracle": b"\0\xf5\0\0\1\0\0\0\1\x3f",
    "ClickHouse": b"\0\x11ClickHouse client",
    "Neo4j": b"\x60\x60\xb0\x17\0\0\4\4",
    "ZooKeeper": b"\0\0\0\x2d\0\0\0\0",
    "Kafka": b"\0\0\0\x25\0\x12\0\3\0\0\0\1",
    "AMQP": b"AMQP\0\0\x09\1",
    "MQTT": b"\x10\x1b\0\4MQTT\4\2",
    "STOMP": b"CONNECT\naccept-version:1.2\n\n\0",
    "XMPP": b"<?xml version='1.0'?>",
    "IRC": b"CAP LS 302\r\n",
    "LDAP": b"\x30\x0c\2\1\1\x60\7\2\1\3",
    "SMB": b"\0\0\0\xe4\xfeSMB",
    "RDP": b"\3\0\0\x13\x0e\xe0\0\0",
    "VNC": b"RFB 003.008\n",
    "Java": b"JRMI\0\2\x4b",
    "Hadoop": b"hrpc\x09\0\0",
    "adb": b"CNXN\1\0\0\1",
}


def test_every_row_has_an_example_and_a_source() -> None:
    assert [name for name, source, forms in OPENINGS if source and forms] == list(FIRST)


@pytest.mark.parametrize(("name", "data"), FIRST.items())
def test_a_client_is_recognised(name: str, data: bytes) -> None:
    assert recognise(data) == name
    answers = [recognise(data[:end]) for end in range(1, len(data))]
    assert set(answers) <= {None, name}, "it is never something else before"
    assert classify(data) is None or classify(data).kind == "other"  # type: ignore[union-attr]


@pytest.mark.parametrize("request_", ENCRYPTION_REQUESTS)
def test_a_request_for_encryption_is_postgresql(request_: bytes) -> None:
    assert recognise(request_) == "PostgreSQL"


@given(st.binary(min_size=1, max_size=64))
def test_the_answer_is_stable(data: bytes) -> None:
    for end in range(1, len(data)):
        early = recognise(data[:end])
        if early == "":
            assert recognise(data) == ""
        elif early is not None:
            assert recognise(data)
    assert recognise(data + bytes(64)) is not None


@given(
    st.sampled_from([0x14, 0x15, 0x16, 0x17, 0x18]),
    st.binary(min_size=2, max_size=2),
    st.integers(0, 16640),
    st.binary(min_size=16, max_size=64),
)
def test_no_record_of_tls_is_a_known_opening(kind: int, version: bytes, length: int, content: bytes) -> None:
    """Whatever its version: of a record that holds as much as it says, or of an empty one before another."""
    data = bytes([kind]) + version + length.to_bytes(2, "big") + content
    if length == 0:
        data = data[:5] + b"\x16" + version + b"\2\0\1" + content
    if version[1] or length >> 8:  # else it is a message of MongoDB, whose record would be of version x.0 and tiny
        assert recognise(data) == ""


@given(st.integers(0x80, 0xBF), st.integers(0, 255), st.binary(max_size=32))
def test_no_hello_of_ssl_2_is_a_known_opening(first: int, second: int, rest: bytes) -> None:
    data = bytes([first, second, 1]) + b"\3\1" + rest
    assert may_be_hello(data)
    assert recognise(data + bytes(16)) == "" or data[2:4] == b"\0\0"
