"""The Docker Engine API: operations that the policy lists, on containers that this session made, without the host.

Theory of operation
-------------------
Requests are parsed by the strict HTTP/1.1 reader of inspected connections, one at a time, and written anew: method,
canonical path, query, a handful of fields, and a JSON body that is serialised from what was understood.  So the daemon
reads exactly what was judged.  An operation must be in the closed list below *and* be allowed by the rule.

* A container is named by an id or name that this session's ``POST /containers/create`` gave; the full id goes up.
* In the bodies of ``create`` and ``exec`` every field is either known to be harmless, or must be empty.  Field names of
  another case are not known (Go would take them), a name twice is an error.
* ``attach`` and ``exec start`` become raw streams only by the daemon's 101.

Containers have a network of Docker's own: the policy's host rules do not reach into it (``docs/sockets.md``).

References: Docker Engine API v1.24 to v1.51; RFC 9112.
"""

from __future__ import annotations

import json
import re

from ...policy.url_paths import MalformedPath, canonical_path, split_query
from ..http.bodies import Body, Chunked, Sized
from ..http.heads import AnswerHead, Framing, RequestHead, end_of_head
from ..http.requests import Flaw
from . import Adapter, Asked, Broken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from . import Judge

LONGEST_HEAD = 16384
LONGEST_BODY = 1 << 20  # bytes of JSON from the client
LONGEST_ANSWER = 1 << 18  # bytes of the daemon's answer to ``create``
MOST_AHEAD = 1 << 16  # bytes of further requests while one is answered
MOST_KNOWN = 4096  # containers and execs of one session

_VERSION = re.compile(r"/v\d{1,2}\.\d{1,3}(?=/)")
_CONTAINER = r"/containers/(?P<id>[A-Za-z0-9][A-Za-z0-9_.-]{0,254})"
_EXEC = r"/exec/(?P<exec>[0-9a-f]{64})"
_IMAGE = r"/images/[A-Za-z0-9][A-Za-z0-9_.:/@-]{0,511}"
# (method, path, what its body is: "" none, "create", "exec", "start", "stream"; "attach" is none and hijacks)
_OPERATIONS = tuple(
    (methods.split(), re.compile(path), kind)
    for methods, path, kind in (
        ("GET HEAD", r"/_ping", ""),
        ("GET", r"/(version|info|events|system/df|containers/json|images/json)", ""),
        ("POST", r"/containers/create", "create"),
        ("GET", rf"{_CONTAINER}/(json|logs|top|stats|changes|export)", ""),
        ("POST", rf"{_CONTAINER}/(start|stop|kill|restart|wait|pause|unpause|resize|rename)", ""),
        ("POST", rf"{_CONTAINER}/attach", "attach"),
        ("POST", rf"{_CONTAINER}/exec", "exec"),
        ("GET HEAD", rf"{_CONTAINER}/archive", ""),
        ("PUT", rf"{_CONTAINER}/archive", "stream"),
        ("DELETE", _CONTAINER, ""),
        ("POST", rf"{_EXEC}/start", "start"),
        ("POST", rf"{_EXEC}/resize", ""),
        ("GET", rf"{_EXEC}/json", ""),
        ("GET", rf"{_IMAGE}/(json|history)", ""),
        ("POST", r"/images/create", ""),
    )
)
_FIELDS = frozenset((b"accept", b"content-type", b"user-agent", b"x-registry-auth", b"x-registry-config"))
# Of the configuration of a container: what speaks about its inside alone.
_CONFIG = frozenset(
    [
        "Hostname", "Domainname", "User", "AttachStdin", "AttachStdout", "AttachStderr", "ExposedPorts", "Tty",
        "OpenStdin", "StdinOnce", "Env", "Cmd", "Healthcheck", "ArgsEscaped", "Image", "Volumes", "WorkingDir",
        "Entrypoint", "NetworkDisabled", "Labels", "StopSignal", "StopTimeout", "Shell", "HostConfig",
        "NetworkingConfig",
    ]
)  # fmt: skip
_HOST_CONFIG = frozenset(
    [
        "Memory", "MemoryReservation", "MemorySwap", "MemorySwappiness", "CpuShares", "NanoCpus", "CpuPeriod",
        "CpuQuota", "CpusetCpus", "CpusetMems", "CpuRealtimePeriod", "CpuRealtimeRuntime", "PidsLimit",
        "AutoRemove", "ReadonlyRootfs", "ShmSize", "Tmpfs", "Init", "ConsoleSize", "CapDrop", "Dns", "DnsOptions",
        "DnsSearch", "ExtraHosts", "GroupAdd", "BlkioWeight", "Ulimits",
    ]
)  # fmt: skip
_CHOICES = {
    "NetworkMode": ("default", "none", "bridge"),
    "IpcMode": ("private", "none"),
    "CgroupnsMode": ("private",),
    "Isolation": ("default",),
}
_EXEC_CONFIG = frozenset(
    [
        "AttachStdin", "AttachStdout", "AttachStderr", "DetachKeys", "Tty", "Env", "Cmd", "User", "WorkingDir",
    ]
)  # fmt: skip
_HARDENING = frozenset(("no-new-privileges", "no-new-privileges:true", "no-new-privileges=true"))
_EXEC_START = frozenset(("Detach", "Tty", "ConsoleSize"))


class Containers:
    """What one session has made, by every name that the daemon gave or took."""

    def __init__(self) -> None:
        self.ids: dict[str, str] = {}  # id or name: id
        self.execs: set[str] = set()

    def full(self, name: str) -> str:
        """The id of the container that ``name`` means, empty if it is none of ours."""
        if name in self.ids:
            return self.ids[name]
        if len(name) < 12:
            return ""
        found = {full for full in self.ids.values() if full.startswith(name)}
        return found.pop() if len(found) == 1 else ""


class _Refused(Exception):
    """The request is understood and not allowed; the text says what of it."""


_HEAD, _BODY, _STREAM, _WAIT, _PIPE, _OVER = range(6)


class Docker(Adapter):
    """One connection to a Docker daemon."""

    def __init__(self, judge: Judge, containers: Containers) -> None:
        super().__init__(judge)
        self._containers = containers
        self._client, self._server = bytearray(), bytearray()
        self._state = _HEAD
        self._body: Body = Body()
        self._collected = bytearray()
        self._method = self._operation = self._kind = self._target = self._name = ""
        self._fields: list[tuple[bytes, bytes]] = []
        self._answer: Body | None = None  # of the daemon, while its content is read
        self._until_close = self._close = False
        self._noted: bytearray | None = None  # the content of an answer that names what was made

    def from_client(self, data: bytes) -> None:
        self._client += data
        try:
            while self._turn():
                pass
        except (Flaw, MalformedPath, ValueError) as error:
            self._explain(400, f"the request cannot be understood: {error}")
            self._state = _OVER

    def from_server(self, data: bytes) -> None:
        if self._state == _PIPE:
            self.down += data
            return
        self._server += data
        try:
            while self._server and self._read_answer():
                pass
        except (Flaw, ValueError) as error:
            raise Broken(f"the daemon's answer: {error}") from None
        self.from_client(b"")

    def waiting(self) -> bool:
        return self._state in (_WAIT, _STREAM)

    def over(self) -> bool:
        return self._state == _OVER

    # ------------------------------------------------------------ requests

    def _turn(self) -> bool:
        """Do the next thing with what the client sent; false when there is nothing to do."""
        if self._state == _PIPE:
            self.up += self._client
            self._client.clear()
            return False
        if self._state == _OVER:
            self._client.clear()
            return False
        if self.parked:
            return False
        if self._state == _WAIT:
            if len(self._client) > MOST_AHEAD:
                raise Broken("the client sends further requests without waiting for the answer")
            return False
        if self._state == _HEAD:
            end = self._client.find(b"\r\n\r\n")
            if end < 0:
                if len(self._client) > LONGEST_HEAD:
                    raise Broken("the head of a request is too long")
                return False
            head = bytes(self._client[:end])
            del self._client[: end + 4]
            try:
                self._begin(head)
            except Asked:
                self._client[:0] = head + b"\r\n\r\n"
                self.parked = True
            return True
        out: list[bytes] = []
        data = bytes(self._client)
        del self._client[: self._body.feed(data, 0, out)]
        if self._state == _STREAM:
            self.up += b"".join(out)
        else:
            self._collected += b"".join(out)
            if len(self._collected) > LONGEST_BODY:
                raise Broken("the body of a request is too long")
        if not self._body.done:
            return False
        if self._state == _STREAM:
            self._state = _WAIT
        else:
            self._state = _HEAD
            self._finish(bytes(self._collected))
        return True

    def _begin(self, raw: bytes) -> None:
        head = RequestHead()
        head.read(raw)
        framing = Framing(head)
        target, query = split_query(head.target.decode("ascii"))
        query = query.removeprefix("?")
        if "#" in query:
            raise ValueError("a fragment")
        path = canonical_path(target)
        version = _VERSION.match(path)
        plain = path[version.end() :] if version else path
        self._method = head.method.decode("ascii")
        self._operation = f"{self._method} {plain}"
        self._fields = [(name, value) for name, value in zip(head.names, head.values, strict=True) if name in _FIELDS]
        stream, self._close = False, framing.close
        try:
            self._kind, plain = self._known(plain)
            self._query(query)
            if not self.judge(self._operation, ()):
                self._explain(403, f"{self._operation} is not in the rule's allow list")
                raise _Refused
            stream = self._kind == "stream"
            if stream and not framing.body:
                raise ValueError("no content")
        except _Refused:
            self._kind = "refused"
        self._target = (version.group() if version else "") + plain + (f"?{query}" if query else "")
        if framing.expects:
            self.down += b"HTTP/1.1 100 Continue\r\n\r\n"
        if stream:
            self._body = framing.reader()
            self._state = _STREAM
            length = (
                b"Transfer-Encoding: chunked" if framing.chunked else b"Content-Length: %d" % max(framing.length, 0)
            )
            self._write(length)
            return
        self._body = Chunked(strict=True, framed=False) if framing.chunked else Sized(max(framing.length, 0))
        self._collected.clear()
        self._state = _BODY

    def _known(self, plain: str) -> tuple[str, str]:
        """The kind of operation, and its path with the container's full id."""
        for methods, pattern, kind in _OPERATIONS:
            found = pattern.fullmatch(plain)
            if found is None or self._method not in methods:
                continue
            names = found.groupdict()
            if names.get("id"):
                full = self._containers.full(names["id"])
                if not full:
                    self._forbid("a container that this session did not make")
                plain = plain[: found.start("id")] + full + plain[found.end("id") :]
            if names.get("exec") and names["exec"] not in self._containers.execs:
                self._forbid("a process that this session did not start")
            return kind, plain
        self._forbid("an operation that is not known to be harmless")
        raise AssertionError

    def _query(self, query: str) -> None:
        from urllib.parse import parse_qsl

        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=64, errors="strict")
        values = dict(pairs)
        if len(values) != len(pairs):
            raise ValueError("a parameter is given twice")
        self._name = values.get("name", "") if self._kind == "create" else ""
        if values.get("fromSrc"):
            self._forbid("fromSrc")
        if values.get("checkpoint") or values.get("checkpoint-dir"):
            self._forbid("a checkpoint")

    def _finish(self, body: bytes) -> None:
        """The request is complete: judge its body and send it."""
        if self._kind == "refused":
            return
        try:
            written = self._judged(body)
        except _Refused:
            return
        self._state = _WAIT
        self._noted = bytearray() if self._kind in ("create", "exec") else None
        extra = b"Upgrade: tcp\r\nConnection: Upgrade\r\n" if self._hijacks() else b""
        self._write(extra + b"Content-Length: %d" % len(written))
        self.up += written

    def _hijacks(self) -> bool:
        return self._kind in ("attach", "start")

    def _judged(self, body: bytes) -> bytes:
        if self._kind in ("", "attach"):
            if body.strip() not in (b"", b"{}", b"null"):
                self._forbid("a body")
            return b""
        value = json.loads(body.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
        if not isinstance(value, dict):
            raise ValueError("the body is not an object")
        if self._kind == "create":
            self._create(value)
        else:
            self._only(value, _EXEC_CONFIG if self._kind == "exec" else _EXEC_START, "")
        return json.dumps(value).encode("ascii")

    def _write(self, framing: bytes) -> None:
        fields = b"".join(b"%b: %b\r\n" % field for field in self._fields)
        line = f"{self._method} {self._target} HTTP/1.1\r\nHost: docker\r\n".encode("ascii")
        self.up += line + fields + framing + b"\r\n\r\n"

    # ------------------------------------------------------------ what a container may be

    def _create(self, config: dict[str, Any]) -> None:
        self._only(config, _CONFIG, "")
        host = config.get("HostConfig") or {}
        self._object(host, "HostConfig")
        others = {name: value for name, value in host.items() if name not in _HOST_CONFIG}
        for name in ("MaskedPaths", "ReadonlyPaths"):
            if others.pop(name, None) is not None:  # an empty list unmasks everything
                self._forbid(f"HostConfig.{name}")
        for name, choices in _CHOICES.items():
            if others.pop(name, "") not in ("", None, *choices):
                self._forbid(f"HostConfig.{name}")
        self._restart(others.pop("RestartPolicy", None))
        self._log(others.pop("LogConfig", None))
        self._mounts(others.pop("Mounts", None))
        options = others.pop("SecurityOpt", None) or []
        if not isinstance(options, list) or any(option not in _HARDENING for option in options):
            self._forbid("HostConfig.SecurityOpt")
        self._only(others, frozenset(), "HostConfig.")
        networks = config.get("NetworkingConfig") or {}
        self._object(networks, "NetworkingConfig")
        self._only(networks, frozenset(("EndpointsConfig",)), "NetworkingConfig.")
        endpoints = networks.get("EndpointsConfig") or {}
        self._object(endpoints, "NetworkingConfig.EndpointsConfig")
        for name, endpoint in endpoints.items():
            if name not in _CHOICES["NetworkMode"] or not _empty(endpoint):
                self._forbid("NetworkingConfig.EndpointsConfig")

    def _restart(self, policy: Any) -> None:
        if policy and (not isinstance(policy, dict) or policy.get("Name") not in (None, "", "no")):
            self._forbid("HostConfig.RestartPolicy")  # it would outlive the session

    def _log(self, log: Any) -> None:
        if log and (
            not isinstance(log, dict)
            or log.get("Type") not in (None, "", "none", "json-file", "local")
            or not _empty({name: value for name, value in log.items() if name != "Type"})
        ):
            self._forbid("HostConfig.LogConfig")

    def _mounts(self, mounts: Any) -> None:
        for mount in mounts or ():
            self._object(mount, "HostConfig.Mounts")
            extra = {name: value for name, value in mount.items() if name not in ("Type", "Target", "TmpfsOptions")}
            if mount.get("Type") not in ("tmpfs", "volume") or not _empty(extra):
                self._forbid("HostConfig.Mounts")

    def _object(self, value: Any, name: str) -> None:
        if not isinstance(value, dict):
            self._forbid(name)

    def _only(self, value: dict[str, Any], known: frozenset[str], prefix: str) -> None:
        for name, each in value.items():
            if name not in known and not _empty(each):
                self._forbid(f"{prefix}{name}")

    def _forbid(self, what: str) -> None:
        """Refuse whatever the rule allows.

        Raises:
            _Refused: always.
        """
        shown = what if what.isprintable() and len(what) < 200 else ascii(what)[:200]
        self.judge(f"{self._operation} with {shown}", ())  # the space makes it no rule's operation
        self._explain(403, f"{self._operation} with {shown} is not allowed")
        raise _Refused

    def _explain(self, status: int, message: str) -> None:
        body = json.dumps({"message": f"membrane: {message}"}).encode("ascii")
        phrase = b"Forbidden" if status == 403 else b"Bad Request"
        self.down += b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (
            status,
            phrase,
            len(body),
        )
        if self._method != "HEAD":
            self.down += body

    # ------------------------------------------------------------ answers

    def _read_answer(self) -> bool:
        if self._answer is None:
            end, after = end_of_head(self._server)
            if end < 0:
                if len(self._server) > LONGEST_HEAD * 4:
                    raise Broken("the head of the daemon's answer is too long")
                return False
            if self._state not in (_WAIT, _STREAM):
                raise Broken("the daemon answers what was not asked")
            head = AnswerHead(bytes(self._server[:end]))
            del self._server[:after]
            if head.status == 101:
                if not self._hijacks():
                    raise Broken("the daemon changes the protocol unasked")
                self.down += head.write(b"Upgrade", None)
                self.down += self._server
                self._server.clear()
                self._state = _PIPE
                return False
            if head.status < 200:
                return True  # 100: the client had ours
            bodiless = self._method == "HEAD" or head.status in (204, 304)
            self._answer, self._until_close = head.reader(bodiless, None, modern=True)
            if head.status != 201:
                self._noted = None
            self.down += head.write(b"close" if self._until_close else b"", None)
        out: list[bytes] = []
        data = bytes(self._server)
        del self._server[: self._answer.feed(data, 0, out)]
        content = b"".join(out)
        self.down += content
        if self._noted is not None:
            self._noted += content
            if len(self._noted) > LONGEST_ANSWER:
                raise Broken("the daemon's answer is too long")
        if not self._answer.done:
            return False
        self._answer = None
        self._note()
        # One that is answered before its end cannot be followed by another.
        self._state = _HEAD if self._state == _WAIT and not self._close else _OVER
        return True

    def _note(self) -> None:
        """Remember what the daemon has made."""
        noted, self._noted = self._noted, None
        if noted is None:
            return
        start, end = noted.find(b"{"), noted.rfind(b"}")  # chunk sizes may stand around it
        made = json.loads(noted[start : end + 1]).get("Id", "")
        if not re.fullmatch(r"[0-9a-f]{64}", made):
            raise Broken("the daemon names nothing that was made")
        containers = self._containers
        if len(containers.ids) + len(containers.execs) > MOST_KNOWN:
            raise Broken("this session has made too many containers")
        if self._kind == "exec":
            containers.execs.add(made)
            return
        containers.ids[made] = made
        if self._name:
            containers.ids[self._name.lstrip("/")] = made


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names are there once, in any case (encoding/json of Go does not distinguish cases)."""
    if len({name.casefold() for name, _value in pairs}) != len(pairs):
        raise ValueError("a name is given twice")
    return dict(pairs)


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _empty(value: Any) -> bool:
    """Is it what the field would be when it were not given?"""
    if isinstance(value, dict):
        return all(_empty(each) for each in value.values())
    if isinstance(value, list):
        return not value
    return value is None or value is False or value in ("", 0)


def protocol(judge: Judge, memory: dict[str, Any]) -> Docker:
    """What reads one connection (``broker.make_adapter``)."""
    return Docker(judge, memory.setdefault("containers", Containers()))
