"""Events as the JSON of Tracee 0.24, so that what was written for its output keeps working.

Theory of operation
-------------------
Tracee's security events (``security_file_open``, ...) mean that the kernel let it pass, so only what succeeded becomes
one; what was refused becomes the system call's event with a negative ``returnValue`` and ``denied: true``, as do
events that Tracee has no name for.  Socket addresses are strings, as Tracee prints them; ``net_packet_dns`` has the
question with direction 2 and the answer with direction 1: both are taken from the data plane, which answers names.

Without a tracer there is no event of a process or file.  The command itself and the connections of the data plane are
then all that can be told, and they are: ``ConnectionOpened`` becomes ``security_socket_connect`` with the address that
was dialled.  With a tracer the connect is its own, to the address that stood for the name (``remote_name`` says it),
and ``net_tcp_connect`` has the address that was dialled.

Strings keep the escapes of our events; arguments that nothing here knows (inodes, ctimes) are zero.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from ..query import DENIED_RESULTS, items, number, text

# Names of open(2) flags as ``FileOpened`` writes them, and their numbers on x86-64 and arm64 but for the last four.
FLAGS = {
    "rdonly": 0,
    "wronly": 0o1,
    "rdwr": 0o2,
    "creat": 0o100,
    "excl": 0o200,
    "noctty": 0o400,
    "trunc": 0o1000,
    "append": 0o2000,
    "nonblock": 0o4000,
    "dsync": 0o10000,
    "async": 0o20000,
    "direct": 0o40000,
    "largefile": 0o100000,
    "directory": 0o200000,
    "nofollow": 0o400000,
    "noatime": 0o1000000,
    "cloexec": 0o2000000,
    "sync": 0o4010000,
    "path": 0o10000000,
    "tmpfile": 0o20200000,
}
# Tracee's numbers of the events (a string in its JSON).
_IDS = {
    "sched_process_exec": "715",
    "sched_process_exit": "714",
    "security_file_open": "730",
    "security_inode_unlink": "731",
    "security_inode_rename": "758",
    "security_socket_connect": "735",
    "security_socket_bind": "737",
    "net_packet_dns": "2010",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def nanoseconds(stamp: str) -> int:
    """Nanoseconds since the epoch of an ISO 8601 time in UTC, 0 for what is none."""
    try:
        delta = datetime.fromisoformat(stamp) - _EPOCH
    except (ValueError, TypeError):
        return 0
    return ((delta.days * 86400 + delta.seconds) * 1_000_000 + delta.microseconds) * 1000


def _argument(name: str, kind: str, value: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "value": value}


def _number(digits: str, base: int) -> int:
    try:
        return int(digits, base)
    except ValueError:
        return 0


def _address(family: str, address: str, port: int) -> dict[str, str]:
    if family == "unix":
        return {"sa_family": "AF_UNIX", "sun_path": address}
    if family == "inet6" or (not family and ":" in address):
        return {
            "sa_family": "AF_INET6",
            "sin6_addr": address,
            "sin6_port": str(port),
            "sin6_flowinfo": "0",
            "sin6_scopeid": "0",
        }
    if family in ("inet", ""):
        return {"sa_family": "AF_INET", "sin_addr": address, "sin_port": str(port)}
    return {"sa_family": f"AF_{family.upper()}"}


class Converter:
    """Turns the events of one session, in order, into Tracee's."""

    def __init__(self) -> None:
        self.traced = False

    def convert(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        """What Tracee would have written for ``event``; often nothing."""
        kind = event["event"]
        if kind == "SessionStarted":
            source = text(event.get("trace_source"))
            self.traced = "ebpf" in source or "notify" in source
        handler = getattr(self, f"_{kind}", None)
        return [] if handler is None else handler(event)

    def _make(
        self,
        event: dict[str, Any],
        name: str,
        arguments: list[dict[str, Any]],
        *,
        result: str = "",
        syscall: str = "",
        value: int = 0,
    ) -> dict[str, Any]:
        process = event.get("process")
        process = process if isinstance(process, dict) else {}
        pid, parent = number(process.get("pid")), number(event.get("parent"))
        code = getattr(errno, result, 1) if result else 0
        out = {
            "timestamp": nanoseconds(text(event.get("time"))),
            "threadStartTime": 0,
            "processorId": 0,
            "processId": pid,
            "cgroupId": 0,
            "threadId": pid,
            "parentProcessId": parent,
            "hostProcessId": pid,
            "hostThreadId": pid,
            "hostParentProcessId": parent,
            "userId": 0,
            "mountNamespace": 0,
            "pidNamespace": 0,
            "processName": text(process.get("name")),
            "executable": {"path": text(process.get("exe"))},
            "hostName": "",
            "containerId": text(event.get("session")),
            "container": {"id": text(event.get("session"))},
            "kubernetes": {},
            "eventId": _IDS.get(name, "0"),
            "eventName": name,
            "matchedPolicies": [],
            "argsNum": len(arguments),
            "returnValue": -code if code else value,
            "syscall": syscall,
            "stackAddresses": [0],
            "contextFlags": {"containerStarted": True, "isCompat": False},
            "threadEntityId": 0,
            "processEntityId": 0,
            "parentEntityId": 0,
            "args": arguments,
        }
        if result in DENIED_RESULTS or event["event"] == "AccessDenied":
            out["denied"] = True
        if event.get("requested") is True:
            out["requested"] = True
        return out

    # ------------------------------------------------------------ processes

    def _SessionStarted(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        command = [text(word) for word in items(event.get("command"))]
        if self.traced or not command:
            return []
        name = command[0].rpartition("/")[2][:15]
        started = {**event, "process": {"pid": 0, "name": name, "exe": command[0]}}
        return [self._exec(started, command[0], command, text(event.get("workspace")))]

    def _exec(self, event: dict[str, Any], path: str, argv: list[str], cwd: str) -> dict[str, Any]:
        arguments = [
            _argument("cmdpath", "string", path),
            _argument("pathname", "string", path),
            _argument("dev", "dev_t", 0),
            _argument("inode", "unsigned long", 0),
            _argument("ctime", "unsigned long", 0),
            _argument("inode_mode", "umode_t", 0),
            _argument("interpreter_pathname", "string", ""),
            _argument("interpreter_dev", "dev_t", 0),
            _argument("interpreter_inode", "unsigned long", 0),
            _argument("interpreter_ctime", "unsigned long", 0),
            _argument("argv", "[]string", argv),
            _argument("interp", "string", path),
            _argument("stdin_type", "umode_t", 0),
            _argument("stdin_path", "string", ""),
            _argument("invoked_from_kernel", "bool", False),
            _argument("prev_comm", "string", ""),
            _argument("env", "[]string", []),
            _argument("pwd", "string", cwd),
        ]
        return self._make(event, "sched_process_exec", arguments, syscall="execve")

    def _ProcessStarted(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        argv = [text(word) for word in items(event.get("argv"))]
        path, result = text(event.get("path")), text(event.get("result"))
        if result:
            arguments = [_argument("pathname", "string", path), _argument("argv", "[]string", argv)]
            return [self._make(event, "execve", arguments, result=result, syscall="execve")]
        return [self._exec(event, path, argv, text(event.get("cwd")))]

    def _ProcessExited(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        arguments = [
            _argument("exit_code", "int", number(event.get("exit_code"))),
            _argument("signal_code", "int", number(event.get("signal"))),
            _argument("process_group_exit", "bool", True),
        ]
        return [self._make(event, "sched_process_exit", arguments)]

    # ------------------------------------------------------------ files

    def _FileOpened(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        path, result = text(event.get("path")), text(event.get("result"))
        flags = 0
        for flag in items(event.get("flags")):
            flags |= FLAGS.get(flag, 0) if isinstance(flag, str) else 0
        if result:
            arguments = [
                _argument("dirfd", "int", -100),
                _argument("pathname", "string", path),
                _argument("flags", "int", flags),
                _argument("mode", "mode_t", 0),
            ]
            return [self._make(event, "openat", arguments, result=result, syscall="openat")]
        arguments = [
            _argument("pathname", "string", path),
            _argument("flags", "int", flags),
            _argument("dev", "dev_t", 0),
            _argument("inode", "unsigned long", 0),
            _argument("ctime", "unsigned long", 0),
            _argument("syscall_pathname", "string", path),
        ]
        return [self._make(event, "security_file_open", arguments, syscall="openat")]

    def _FileRemoved(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        path, result = text(event.get("path")), text(event.get("result"))
        arguments = [_argument("pathname", "string", path)]
        call = "rmdir" if event.get("directory") is True else "unlinkat"
        if result or call == "rmdir":
            return [self._make(event, call, arguments, result=result, syscall=call)]
        arguments += [
            _argument("inode", "unsigned long", 0),
            _argument("dev", "dev_t", 0),
            _argument("ctime", "unsigned long", 0),
        ]
        return [self._make(event, "security_inode_unlink", arguments, syscall=call)]

    def _FileRenamed(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        old, new, result = text(event.get("path")), text(event.get("to")), text(event.get("result"))
        if result:
            arguments = [_argument("oldpath", "string", old), _argument("newpath", "string", new)]
            return [self._make(event, "renameat2", arguments, result=result, syscall="renameat2")]
        arguments = [_argument("old_path", "string", old), _argument("new_path", "string", new)]
        return [self._make(event, "security_inode_rename", arguments, syscall="renameat2")]

    def _FileCreated(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        kind = text(event.get("type"))
        call = {"directory": "mkdirat", "link": "linkat", "symlink": "symlinkat"}.get(kind, "mknodat")
        arguments = [_argument("pathname", "string", text(event.get("path")))]
        if kind in ("link", "symlink"):
            arguments = [
                _argument("oldpath" if kind == "link" else "target", "string", text(event.get("to"))),
                _argument("newpath" if kind == "link" else "linkpath", "string", text(event.get("path"))),
            ]
        return [self._make(event, call, arguments, result=text(event.get("result")), syscall=call)]

    def _FileChanged(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        change, value = text(event.get("change")), text(event.get("value"))
        path = _argument("pathname", "string", text(event.get("path")))
        if change == "mode":
            call, rest = "fchmodat", [_argument("mode", "mode_t", _number(value, 8))]
        elif change == "owner":
            user, _, group = value.partition(":")
            numbers = [_number(each, 10) if each else -1 for each in (user, group)]
            call = "fchownat"
            rest = [
                _argument(name, kind, each)
                for name, kind, each in zip(("owner", "group"), ("uid_t", "gid_t"), numbers, strict=True)
            ]
        else:
            call = "setxattr" if change == "attribute" else "removexattr"
            rest = [_argument("name", "string", value)]
            path["name"] = "path"
        return [self._make(event, call, [path, *rest], result=text(event.get("result")), syscall=call)]

    # ------------------------------------------------------------ network

    def _connect(self, event: dict[str, Any], address: dict[str, str], name: str, result: str) -> dict[str, Any]:
        arguments = [
            _argument("sockfd", "int", -1),
            _argument("type", "int", 1),
            _argument("remote_addr", "SockAddr", address),
        ]
        if name:
            arguments.append(_argument("remote_name", "string", name))
        if result:
            return self._make(event, "connect", arguments, result=result, syscall="connect")
        return self._make(event, "security_socket_connect", arguments, syscall="connect")

    def _SocketCalled(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        address = _address(text(event.get("family")), text(event.get("address")), number(event.get("port")))
        call, result = text(event.get("call")), text(event.get("result"))
        if result == "EINPROGRESS":
            result = ""  # it was let through
        if call == "connect":
            return [self._connect(event, address, text(event.get("host")), result)]
        arguments = [_argument("sockfd", "int", -1)]
        if call == "bind":
            arguments.append(_argument("local_addr", "SockAddr", address))
            name = "bind" if result else "security_socket_bind"
            return [self._make(event, name, arguments, result=result, syscall="bind")]
        arguments.append(_argument("dest_addr", "SockAddr", address))
        return [self._make(event, "sendto", arguments, result=result, syscall="sendto")]

    def _ConnectionOpened(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        if self.traced:  # the call is there already, with the address that stands for the name
            arguments = [
                _argument("dst", "string", text(event.get("address"))),
                _argument("dst_port", "int", number(event.get("port"))),
                _argument("dst_dns", "[]string", [text(event.get("host"))] if event.get("host") else []),
            ]
            return [self._make(event, "net_tcp_connect", arguments)] if event.get("protocol") != "udp" else []
        address = _address("", text(event.get("address")), number(event.get("port")))
        return [self._connect(event, address, text(event.get("host")), "")]

    def _dns(self, event: dict[str, Any], name: str, kind: str, address: str) -> list[dict[str, Any]]:
        question = [{"name": name, "type": kind, "class": "IN"}]
        out = []
        for direction in (2, 1) if address else (2,):
            answer = direction == 1
            proto = {
                "ID": 0,
                "QR": int(answer),
                "opCode": "query",
                "AA": 0,
                "TC": 0,
                "RD": 1,
                "RA": int(answer),
                "Z": 0,
                "responseCode": "no error",
                "QDCount": 1,
                "ANCount": int(answer),
                "NSCount": 0,
                "ARCount": 0,
                "questions": question,
                "answers": [{"name": name, "type": kind, "class": "IN", "TTL": 0, "IP": address}] if answer else [],
                "authorities": [],
                "additionals": [],
            }
            arguments = [
                _argument("src", "string", ""),
                _argument("dst", "string", ""),
                _argument("src_port", "uint16", 53 if answer else 0),
                _argument("dst_port", "uint16", 0 if answer else 53),
                _argument("metadata", "trace.PacketMetadata", {"direction": direction}),
                _argument("proto_dns", "trace.ProtoDNS", proto),
            ]
            out.append(self._make(event, "net_packet_dns", arguments))
        return out

    def _NameResolved(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        return self._dns(event, text(event.get("name")), text(event.get("type")), text(event.get("address")))

    def _AccessDenied(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        access = event.get("access")
        if not isinstance(access, dict):
            return []
        if access.get("kind") == "NameQuery":
            return self._dns(event, text(access.get("name")), text(access.get("type")), "")
        if access.get("kind") == "Connect" and not self.traced:
            where = text(access.get("address")) or text(access.get("host"))
            address = _address("", where, number(access.get("port")))
            return [self._connect(event, address, text(access.get("host")), "ECONNREFUSED")]
        return []


def convert(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The events of one session, in order, as Tracee's."""
    converter = Converter()
    for event in events:
        yield from converter.convert(event)
