"""Protocols that are plainly not TLS: how their clients begin.

Theory of operation
-------------------
A connection to a name is worth what its TLS name is worth: behind one address a service may keep many customers, and
the name in the hello says which one is meant.  Servers read that hello in more ways than ``sniff`` does (behind a PROXY
header, with another record version, after padding), so what is not *known* to be something else does not pass for it: a
client's first bytes must be those of a protocol in ``OPENINGS``, unless the server spoke first, which no TLS server
does (SMTP, FTP, IMAP, MySQL, ...), or the rule says ``protocol: raw``.  HTTP is read by ``sniff`` itself.

Left out on purpose: SOCKS and the PROXY protocol, which lead to a connection elsewhere; protocols whose first
bytes are arbitrary (WHOIS, Thrift, DNS over TCP, text of one's own).  No opening begins like a TLS record (0x14 to
0x18) without bytes that a hello cannot have, so none can be both; the tests hold ``sniff`` against the table.

Each row: the protocol, where its first bytes are laid down, and their forms: ASCII text as bytes, or bytes in
hexadecimal, ``..`` for any one and ``xx-yy`` for a range.
"""

from __future__ import annotations

# Of PostgreSQL ("SSL Session Encryption" in its manual): asks for TLS, or for GSSAPI, before the session begins.
ENCRYPTION_REQUESTS = (bytes.fromhex("0000000804d2162f"), bytes.fromhex("0000000804d21630"))
TLS_AGREED, NOTHING_AGREED = b"S", b"N"  # then a hello follows, or another opening

# fmt: off
OPENINGS: tuple[tuple[str, str, tuple[bytes | str, ...]], ...] = (
    ("SSH", "RFC 4253 section 4.2", (b"SSH-2.0-", b"SSH-1.99-")),
    ("git", "gitprotocol-pack(5): pkt-line of git-daemon", ("30-66 30-66 30-66 30-66 67 69 74 2d",)),
    ("rsync", "rsync csprotocol.txt", (b"@RSYNCD:",)),
    ("PostgreSQL", "PostgreSQL manual, Message Formats: SSLRequest, GSSENCRequest, CancelRequest, StartupMessage 3.x",
     ("00 00 00 08 04 d2 16 2f-30", "00 00 00 10 04 d2 16 2e", "00 00 00-27 .. 00 03 00 ..")),
    ("Redis", "Redis serialization protocol specification (arrays)", ("2a 31-39",)),
    ("memcached", "memcached protocol.txt and binary protocol (request magic, key length < 256)",
     (b"get ", b"gets ", b"set ", b"add ", b"delete ", b"incr ", b"stats", b"version\r\n", b"mg ", b"ms ", b"mn\r\n",
      "80 00-3f 00 .. .. 00")),
    ("MongoDB", "MongoDB Wire Protocol: OP_MSG, OP_QUERY; shorter than 64 KiB",
     (".. .. 00 00 .. .. .. .. 00 00 00 00 d4 07 00 00", ".. .. 00 00 .. .. .. .. 00 00 00 00 dd 07 00 00")),
    ("Cassandra", "CQL native protocol v3 to v5: STARTUP, OPTIONS, without flags (with one it could be SOCKS)",
     ("03-05 00 .. .. 01 00 00", "03-05 00 .. .. 05 00 00")),
    ("SQL Server", "MS-TDS 2.2.3.1: PRELOGIN", ("12 01 00 .. 00 00",)),
    ("Oracle", "Oracle Net (TNS): CONNECT", ("00 .. 00 00 01 00 00 00", "01 .. 00 00 01 00 00 00")),
    ("ClickHouse", "ClickHouse native protocol: client hello", ("00 .. 43 6c 69 63 6b 48 6f 75 73 65",)),
    ("Neo4j", "Bolt protocol handshake", ("60 60 b0 17",)),
    ("ZooKeeper", "ZooKeeper ConnectRequest", ("00 00 00 2c-31 00 00 00 00",)),
    ("Kafka", "Kafka protocol guide: Metadata, SaslHandshake, ApiVersions",
     ("00 00 .. .. 00 03 00 00-1f", "00 00 .. .. 00 11-12 00 00-1f")),
    ("AMQP", "AMQP 0-9-1 section 4.2.2, AMQP 1.0 section 2.2", (b"AMQP",)),
    ("MQTT", "MQTT 3.1.1 and 5.0 section 3.1: CONNECT",
     ("10 00-7f 00 04 4d 51 54 54", "10 80-ff 01-7f 00 04 4d 51 54 54", "10 00-7f 00 06 4d 51 49 73 64 70")),
    ("STOMP", "STOMP 1.2: CONNECT", (b"CONNECT\n", b"CONNECT\r\n", b"STOMP\n", b"STOMP\r\n")),
    ("XMPP", "RFC 6120 section 4", (b"<?xml ", b"<stream:stream")),
    ("IRC", "RFC 2812 section 3.1, IRCv3 capability negotiation", (b"NICK ", b"USER ", b"PASS ", b"CAP ")),
    ("LDAP", "RFC 4511 sections 4.2, 4.5.1, 4.12: bind, search, extended (BER, definite length)",
     ("30 00-7f 02 01 .. 60", "30 00-7f 02 01 .. 63", "30 00-7f 02 01 .. 77",
      "30 81 .. 02 01 .. 60", "30 81 .. 02 01 .. 63", "30 82 .. .. 02 01 .. 60", "30 82 .. .. 02 01 .. 63",
      "30 84 00 .. .. .. 02 01 .. 60", "30 84 00 .. .. .. 02 01 .. 63", "30 84 00 .. .. .. 02 01 .. 77")),
    ("SMB", "MS-SMB2 2.1: direct TCP", ("00 00 .. .. fe 53 4d 42", "00 00 .. .. ff 53 4d 42")),
    ("RDP", "MS-RDPBCGR 2.2.1.1: X.224 connection request", ("03 00 00 .. .. e0 00 00",)),
    ("VNC", "RFC 6143 section 7.1.1", (b"RFB 00",)),
    ("Java", "RMI wire protocol; JDWP handshake", (b"JRMI", b"JDWP-Handshake")),
    ("Hadoop", "Hadoop RPC connection header", (b"hrpc",)),
    ("adb", "Android adb protocol.txt", (b"CNXN",)),
)
# fmt: on


def _form(form: bytes | str) -> tuple[tuple[int, int], ...]:
    """Of each byte the least and the greatest value."""
    if isinstance(form, bytes):
        return tuple((byte, byte) for byte in form)
    out = []
    for word in form.split(" "):
        low, _, high = ("00-ff" if word == ".." else word).partition("-")
        out.append((int(low, 16), int(high or low, 16)))
    return tuple(out)


_FORMS = tuple((name, _form(form)) for name, _source, forms in OPENINGS for form in forms)


def recognise(data: bytes) -> str | None:
    """The protocol that a client's first bytes open; empty when none, ``None`` while more bytes could open one."""
    open_ = False
    for name, form in _FORMS:
        if all(low <= byte <= high for byte, (low, high) in zip(data, form, strict=False)):
            if len(data) >= len(form):
                return name
            open_ = True
    return None if open_ else ""
