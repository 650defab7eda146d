"""AWS Signature Version 4: what a client signed with a placeholder goes up with the signature that botocore makes with
the secret; what cannot be signed again does not go up."""

from __future__ import annotations

import gc
import hashlib
import io
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import botocore.auth
import botocore.credentials
import botocore.session
import hpack
import pytest
from botocore.awsrequest import AWSRequest as Request

from membrane.gateway.http import frames as h2
from membrane.gateway.http.credentials import Destination, Secret, Vault
from membrane.gateway.http.exchange import Seen, SendClient, SendUpstream
from membrane.gateway.http.fields import LARGEST_TABLE
from membrane.gateway.http.frames import frame
from membrane.gateway.http.http1 import Http1
from membrane.gateway.http.http2 import Http2
from membrane.gateway.http.requests import Bound, Gate
from membrane.gateway.http.sigv4 import LARGEST_HELD, MOST_HELD, KeyPair, Signers
from membrane.gateway.sniff import PREFACE
from membrane.policy.model import Allow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from membrane.gateway.http.exchange import Command

KEY_ID, SECRET = "AKIAREALREALREALREAL", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYREALKEY000"
SHOWN_ID, SHOWN_SECRET = "AKIASHOWNSHOWNSHOWNQ", "aBcdefGhiJKLM/N0PQRST+uVwXyzABCDEFGHI111"
TOKEN, SHOWN_TOKEN = "FwoGZXIvREALREALREAL000", "QwoGZXIvSHOWNSHOWN00111"


HEAD = (
    b"POST / HTTP/1.1\r\nHost: s.amazonaws.com\r\nX-Amz-Date: 20150830T123600Z\r\n"
    b"Authorization: AWS4-HMAC-SHA256 Credential=" + SHOWN_ID.encode() + b"/20150830/r/s/aws4_request, "
    b"SignedHeaders=host;x-amz-date, Signature=00\r\nContent-Length: "
)


def secret(name: str, value: str, shown: str, host: str) -> Secret:
    return Secret(name, value.encode(), shown.encode(), "*", [Destination("https", host, 443)])


class Path:
    """A connection to ``host`` through which requests go."""

    def __init__(self, host: str, to: str = "") -> None:
        held = [
            secret("ID", KEY_ID, SHOWN_ID, to or host),
            secret("SECRET", SECRET, SHOWN_SECRET, to or host),
            secret("TOKEN", TOKEN, SHOWN_TOKEN, to or host),
        ]
        self.signers = Signers([KeyPair(SHOWN_ID.encode(), KEY_ID.encode(), SECRET.encode())])
        bound = Bound(host, 443, "https")
        vault = Vault(held, bound, self.signers)
        gate = Gate(bound, lambda _request: Allow(None, "every request is allowed"))
        self.core = Http1(gate, lambda: 0.0, connected=True, vault=vault)
        self.up, self.down, self.seen = b"", b"", list[Seen]()

    def take(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if isinstance(command, SendUpstream):
                self.up += command.data
            elif isinstance(command, SendClient):
                self.down += command.data
            elif isinstance(command, Seen):
                self.seen.append(command)

    def send(self, data: bytes) -> None:
        self.take(self.core.client_data(data))

    def fields(self) -> dict[str, str]:
        head = self.up.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
        return {name.lower(): value for name, value in (line.split(": ", 1) for line in head)}


def signer(service: str, key: str, value: str, token: str | None = None) -> Any:
    kind = botocore.auth.S3SigV4Auth if service == "s3" else botocore.auth.SigV4Auth
    return kind(botocore.credentials.Credentials(key, value, token), service, "eu-central-1")


def written(request: Request) -> bytes:
    """The request as a client writes it."""
    prepared = request.prepare()
    url = urlsplit(prepared.url)
    target = url.path + (f"?{url.query}" if url.query else "")
    body = prepared.body or b""
    body = body.encode() if isinstance(body, str) else body
    lines = [f"{prepared.method} {target} HTTP/1.1", f"Host: {url.netloc}"]
    for name, value in prepared.headers.items():
        text = value.decode() if isinstance(value, bytes) else value
        lines.append(f"{name}: {text}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def expected(request: Request, service: str, sent: dict[str, str]) -> str:
    """The field that botocore makes with the secret for what went up."""
    real = signer(service, KEY_ID, SECRET)
    again = Request(request.method, request.url, data=request.data)
    signed = request.headers["Authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    for name in signed:
        if name != "host":
            again.headers[name] = sent[name]
    again.context["timestamp"] = sent["x-amz-date"]
    if service == "s3":
        again.context["client_config"] = None
    text = real.canonical_request(again)
    signature = real.signature(real.string_to_sign(again, text), again)
    scope = real.credential_scope(again)
    return f"AWS4-HMAC-SHA256 Credential={KEY_ID}/{scope}, SignedHeaders={';'.join(signed)}, Signature={signature}"


REQUESTS = [
    ("sts", "GET", "https://sts.amazonaws.com/?Action=GetCallerIdentity&Version=2011-06-15", b""),
    ("sts", "POST", "https://sts.amazonaws.com/", b"Action=GetCallerIdentity&Version=2011-06-15"),
    ("dynamodb", "POST", "https://dynamodb.eu-central-1.amazonaws.com/", b'{"TableName":"t"}' * 5000),
    ("lambda", "GET", "https://lambda.eu-central-1.amazonaws.com/2015-03-31/functions/a%3Ab/versions?B=2&A=1&A=0", b""),
    ("execute-api", "GET", "https://x.execute-api.eu-central-1.amazonaws.com/a//b/./c%20d/?q=a%2Bb%20c&e=", b""),
    ("s3", "GET", "https://bucket.s3.amazonaws.com/a%20b/c~d/e%2Bf?list-type=2&prefix=x%2Fy", b""),
    ("s3", "PUT", "https://bucket.s3.amazonaws.com/key", b"content of an object"),
]


@pytest.mark.parametrize(("service", "method", "url", "body"), REQUESTS, ids=[f"{r[0]} {r[1]}" for r in REQUESTS])
@pytest.mark.parametrize("token", [None, SHOWN_TOKEN], ids=["", "token"])
@pytest.mark.parametrize("cut", [1 << 20, 100], ids=["whole", "in parts"])
def test_signed_as_botocore_signs(
    service: str, method: str, url: str, body: bytes, token: str | None, cut: int
) -> None:
    request = Request(method, url, data=body, headers={"Content-Type": "application/x-amz-json-1.0"})
    signer(service, SHOWN_ID, SHOWN_SECRET, token).add_auth(request)
    way = Path(urlsplit(url).hostname or "")
    data = written(request)
    for at in range(0, len(data), cut):
        way.send(data[at : at + cut])
    sent = way.fields()
    assert sent["authorization"] == expected(request, service, sent)
    assert sent.get("x-amz-security-token") == (TOKEN if token else None)
    assert way.up.endswith(b"\r\n\r\n" + body) and SHOWN_ID.encode() not in way.up
    for text in (SECRET, SHOWN_SECRET):
        assert text.encode() not in way.up + way.down
    gc.collect()
    assert way.signers.held == 0


def test_published_vector() -> None:
    """AWS General Reference, "Signature Version 4 signing process": the request to IAM of 2015-08-30."""
    pair = KeyPair(b"AKIDSHOWN", b"AKIDEXAMPLE", b"wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
    names = [b"authorization", b"content-type", b"x-amz-date"]
    values = [
        b"AWS4-HMAC-SHA256 Credential=AKIDSHOWN/20150830/us-east-1/iam/aws4_request, "
        b"SignedHeaders=content-type;host;x-amz-date, Signature=00",
        b"application/x-www-form-urlencoded; charset=utf-8",
        b"20150830T123600Z",
    ]
    signing = Signers([pair]).recognise(names, values)
    assert signing is not None
    fields = list(zip(names[1:], values[1:], strict=True))
    assert signing.prepare(fields, 0) is None  # type: ignore[union-attr]
    target = b"/?Action=ListUsers&Version=2010-05-08"
    made = signing.authorization(b"GET", target, b"iam.amazonaws.com", fields)  # type: ignore[union-attr]
    assert made.endswith(b"Signature=5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7")


def signed_put(digest: str, **more: str) -> Request:
    request = Request("PUT", "https://bucket.s3.amazonaws.com/key", data=b"abc", headers=more)
    request.headers["X-Amz-Content-SHA256"] = digest
    signer("s3", SHOWN_ID, SHOWN_SECRET).add_auth(request)
    request.headers.replace_header("X-Amz-Content-SHA256", digest)
    return request


def test_unsigned_payload_goes_through_without_waiting() -> None:
    request = signed_put("UNSIGNED-PAYLOAD")
    way = Path("bucket.s3.amazonaws.com")
    head, _, body = written(request).partition(b"\r\n\r\n")
    way.send(head + b"\r\n\r\n")
    sent = way.fields()  # before any content
    assert sent["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD" and sent["authorization"] == expected(request, "s3", sent)
    way.send(body)
    assert way.up.endswith(b"abc")


def test_an_upload_as_the_sdk_does_it_by_itself_is_signed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """botocore's own choice for a file that goes to S3: unsigned chunks, with a checksum behind them."""
    for name in ("AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_REQUEST_CHECKSUM_CALCULATION"):
        monkeypatch.delenv(name, raising=False)
    client = botocore.session.Session().create_client(
        "s3", "eu-central-1", aws_access_key_id=SHOWN_ID, aws_secret_access_key=SHOWN_SECRET
    )
    caught: list[Any] = []

    def catch(request: Any, **_more: Any) -> None:
        caught.append(request)
        raise NotImplementedError  # it is sent below

    client.meta.events.register("before-send.s3.PutObject", catch)
    with pytest.raises(NotImplementedError):
        client.put_object(Bucket="bucket", Key="key", Body=io.BytesIO(b"abc" * 100))
    request = caught[0]
    assert request.headers["X-Amz-Content-SHA256"] == b"STREAMING-UNSIGNED-PAYLOAD-TRAILER"
    content = request.body.read()
    assert b"x-amz-checksum-" in content
    url = urlsplit(request.url)
    lines = [f"PUT {url.path} HTTP/1.1", f"Host: {url.netloc}"]
    for name, value in request.headers.items():
        lines.append(f"{name}: {value.decode() if isinstance(value, bytes) else value}")
    way = Path(url.netloc)
    way.send("\r\n".join(lines).encode() + b"\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(content), content))
    assert way.down == b"", way.down
    signed = Request("PUT", request.url, headers={"Authorization": request.headers["Authorization"].decode()})
    assert way.fields()["authorization"] == expected(signed, "s3", way.fields())
    assert content in way.up


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"x-amz-content-sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"}, b"signs each chunk"),
        ({"x-amz-content-sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"}, b"signs each chunk"),
        ({"x-amz-content-sha256": "zz"}, b"is not a digest"),
        ({"range": "bytes=8388608-16777215"}, b"asks for a Range"),
        ({"x-amz-date": "20150830"}, b"X-Amz-Date"),
        ({"x-amz-date": "20990101T000000Z"}, b"X-Amz-Date"),
        ({"content-length": str(LARGEST_HELD + 1)}, b"too long to be held"),
        ({"transfer-encoding": "chunked"}, b"no length"),
        ({"authorization": "AWS4-ECDSA-P256-SHA256 Credential={id}/x, SignedHeaders=host, Signature=0"}, b"4A"),
        ({"authorization": "AWS4-HMAC-SHA256 Credential={id}/d/r/s, SignedHeaders=host, Signature=0"}, b"scope"),
        ({"authorization": "AWS4-HMAC-SHA256 Credential={id}/d/r/s/aws4_request, Signature=0"}, b"host"),
    ],
)
def test_what_can_not_be_signed_again_does_not_go_up(change: dict[str, str], cause: bytes) -> None:
    date = "20150830T123600Z"
    fields = {
        "authorization": f"AWS4-HMAC-SHA256 Credential={SHOWN_ID}/20150830/r/s/aws4_request, "
        "SignedHeaders=host;x-amz-date, Signature=00",
        "x-amz-date": date,
        "content-length": "3",
        **{name: value.replace("{id}", SHOWN_ID) for name, value in change.items()},
    }
    if "transfer-encoding" in fields:
        del fields["content-length"]
    way = Path("s.amazonaws.com")
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    way.send(f"POST / HTTP/1.1\r\nHost: s.amazonaws.com\r\n{lines}\r\n".encode())
    assert way.up == b"" and way.down.startswith(b"HTTP/1.1 403 ") and cause in way.down, way.down
    control = Path("s.amazonaws.com")
    control.send(HEAD + b"3\r\n\r\nabc")
    assert control.up.endswith(b"abc")


def test_a_placeholder_for_another_host_is_refused() -> None:
    request = Request("GET", "https://evil.test/")
    signer("sts", SHOWN_ID, SHOWN_SECRET).add_auth(request)
    way = Path("evil.test", to="sts.amazonaws.com")
    way.send(written(request))
    assert way.up == b"" and way.down.startswith(b"HTTP/1.1 403 ")
    assert way.seen[0].verdict.reason == "secret not for this place"


def test_presigned_urls_are_refused() -> None:
    request = Request("GET", "https://bucket.s3.amazonaws.com/key")
    credentials = botocore.credentials.Credentials(SHOWN_ID, SHOWN_SECRET)
    botocore.auth.S3SigV4QueryAuth(credentials, "s3", "eu-central-1").add_auth(request)
    way = Path("bucket.s3.amazonaws.com")
    way.send(written(request))
    assert way.up == b"" and way.down.startswith(b"HTTP/1.1 403 ")


def test_real_keys_are_left_alone() -> None:
    request = Request("GET", "https://sts.amazonaws.com/")
    signer("sts", "AKIASOMEBODYELSE0000", "x" * 40).add_auth(request)
    before = request.headers["Authorization"]
    way = Path("sts.amazonaws.com")
    way.send(written(request))
    assert way.fields()["authorization"] == before


def test_held_content_is_bounded_over_all_connections() -> None:
    way = Path("s.amazonaws.com")
    others = []
    for _ in range(MOST_HELD // LARGEST_HELD):
        other = Path("s.amazonaws.com")
        assert other.core._vault is not None
        other.core._vault.signers = way.signers
        other.send(HEAD + b"%d\r\n\r\n" % LARGEST_HELD)
        assert other.up == other.down == b""
        others.append(other)
    way.send(HEAD + b"10\r\n\r\n0123456789")
    assert way.up == b"" and b"too long to be held" in way.down
    others.clear()
    del other
    gc.collect()
    assert way.signers.held == 0
    way = Path("s.amazonaws.com")
    way.send(HEAD + b"10\r\nExpect: 100-continue\r\n\r\n")
    assert way.down == b"HTTP/1.1 100 Continue\r\n\r\n" and way.up == b""
    way.send(b"0123456789")
    assert way.up.endswith(b"0123456789") and b"xpect" not in way.up
    assert hashlib.sha256(b"0123456789").hexdigest().encode() not in way.up  # it is signed, not shown


def test_a_server_that_goes_while_content_is_held_is_told() -> None:
    way = Path("s.amazonaws.com")
    way.send(HEAD + b"4\r\n\r\nab")
    way.take(way.core.upstream_eof())
    way.send(b"cd")
    assert way.up == b"" and way.down.startswith(b"HTTP/1.1 502 ")


def test_a_pair_does_not_show_itself() -> None:
    assert SECRET not in repr(KeyPair(b"a", b"b", SECRET.encode()))


def test_http2_signs_what_needs_no_content() -> None:
    """A request without content, or with a digest of it, goes up signed; else HTTP/2 holds none."""
    host = "s.amazonaws.com"
    signers = Signers([KeyPair(SHOWN_ID.encode(), KEY_ID.encode(), SECRET.encode())])
    bound = Bound(host, 443, "https")
    vault = Vault([secret("ID", KEY_ID, SHOWN_ID, host)], bound, signers)
    core = Http2(Gate(bound, lambda _request: Allow(None, "yes")), lambda: 0.0, vault=vault)
    core.client_data(PREFACE + frame(h2.SETTINGS, 0, 0))
    core.upstream_data(frame(h2.SETTINGS, 0, 0))
    encoder = hpack.Encoder()
    decoder = hpack.Decoder()
    decoder.max_allowed_table_size = LARGEST_TABLE

    def ask(stream: int, method: bytes, ends: bool, *more: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
        request = Request(method.decode(), f"https://{host}/", headers={name.decode(): v.decode() for name, v in more})
        signer("sts", SHOWN_ID, SHOWN_SECRET).add_auth(request)
        fields = [(b":method", method), (b":scheme", b"https"), (b":authority", host.encode()), (b":path", b"/")]
        fields += [(name.lower().encode(), value.encode()) for name, value in request.headers.items()]
        flags = h2.END_HEADERS | (h2.END_STREAM if ends else 0)
        commands = core.client_data(frame(h2.HEADERS, flags, stream, encoder.encode(fields)))
        up = b"".join(command.data for command in commands if isinstance(command, SendUpstream))
        down = b"".join(command.data for command in commands if isinstance(command, SendClient))
        if up:
            sent = dict(tuple(field) for field in decoder.decode(up[9:], raw=True))
            wanted = expected(request, "sts", {name.decode(): value.decode() for name, value in sent.items()})
            assert sent[b"authorization"].decode() == wanted
        return up, down

    up, _down = ask(1, b"GET", True)
    assert up
    up, _down = ask(3, b"POST", False, (b"x-amz-content-sha256", b"UNSIGNED-PAYLOAD"))
    assert up
    up, down = ask(5, b"POST", False)
    assert not up and down
