"""Events as the JSON of Tracee 0.24, so that what was written for its output keeps working.

Theory of operation
-------------------
Tracee's security events (``security_file_open``, ...) mean that the kernel let it pass, so only what succeeded becomes
one; what was refused becomes the system call's event with a negative ``returnValue`` and ``denied: true``, as do
events that Tracee has no name for.  Socket addresses are strings, as Tracee prints them; ``net_packet_dns`` has the
question with direction 2 and the answer with direction 1: both are taken from the data plane, which answers names.

Without a tracer there is no event of a process or file.  The command itself and the connections of the data plane are
then all that is known, and they are reported: ``ConnectionOpened`` becomes ``security_socket_connect`` with the address
that was dialled.  With a tracer the connect is its own, to the address that stood for the name (``remote_name`` says
it), and ``net_tcp_connect`` has the address that was dialled.

Strings keep the escapes of our events; arguments that nothing here knows (inodes, ctimes) are zero.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from typing import Any

from ... import events as ev
from ..query import DENIED_RESULTS
from ..recorded import Recorded, asked, nanoseconds

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
_NOBODY = ev.Process(0, 0, "", "")


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

    def convert(self, each: Recorded) -> list[dict[str, Any]]:
        """What Tracee would have written for one event; often nothing."""
        handler = getattr(self, f"_on_{each.kind}", None)
        return [] if handler is None else handler(each, each.event)

    def _make(
        self,
        each: Recorded,
        name: str,
        arguments: list[dict[str, Any]],
        *,
        result: str = "",
        syscall: str = "",
        value: int = 0,
    ) -> dict[str, Any]:
        process = each.process or _NOBODY
        parent = each.event.parent if isinstance(each.event, ev.ProcessStarted) else 0
        code = getattr(errno, result, 1) if result else 0
        out = {
            "timestamp": nanoseconds(each.time),
            "threadStartTime": 0,
            "processorId": 0,
            "processId": process.pid,
            "cgroupId": 0,
            "threadId": process.pid,
            "parentProcessId": parent,
            "hostProcessId": process.pid,
            "hostThreadId": process.pid,
            "hostParentProcessId": parent,
            "userId": 0,
            "mountNamespace": 0,
            "pidNamespace": 0,
            "processName": process.name,
            "executable": {"path": process.exe},
            "hostName": "",
            "containerId": each.session,
            "container": {"id": each.session},
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
        if result in DENIED_RESULTS or isinstance(each.event, ev.AccessDenied):
            out["denied"] = True
        if each.requested:
            out["requested"] = True
        return out

    # ------------------------------------------------------------ processes

    def _on_SessionStarted(self, each: Recorded, event: ev.SessionStarted) -> list[dict[str, Any]]:
        self.traced = "ebpf" in event.trace_source or "notify" in event.trace_source
        command = list(event.command)
        if self.traced or not command:
            return []
        started = each.replace(process=ev.Process(0, 0, command[0].rpartition("/")[2][:15], command[0]))
        return [self._exec(started, command[0], command, event.workspace)]

    def _exec(self, each: Recorded, path: str, argv: list[str], cwd: str) -> dict[str, Any]:
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
        return self._make(each, "sched_process_exec", arguments, syscall="execve")

    def _on_ProcessStarted(self, each: Recorded, event: ev.ProcessStarted) -> list[dict[str, Any]]:
        argv = list(event.argv)
        if event.result:
            arguments = [_argument("pathname", "string", event.path), _argument("argv", "[]string", argv)]
            return [self._make(each, "execve", arguments, result=event.result, syscall="execve")]
        return [self._exec(each, event.path, argv, event.cwd)]

    def _on_ProcessExited(self, each: Recorded, event: ev.ProcessExited) -> list[dict[str, Any]]:
        arguments = [
            _argument("exit_code", "int", event.exit_code),
            _argument("signal_code", "int", event.signal),
            _argument("process_group_exit", "bool", True),
        ]
        return [self._make(each, "sched_process_exit", arguments)]

    # ------------------------------------------------------------ files

    def _on_FileOpened(self, each: Recorded, event: ev.FileOpened) -> list[dict[str, Any]]:
        path, result = event.path, event.result
        flags = 0
        for flag in event.flags:
            flags |= FLAGS.get(flag, 0)
        if result:
            arguments = [
                _argument("dirfd", "int", -100),
                _argument("pathname", "string", path),
                _argument("flags", "int", flags),
                _argument("mode", "mode_t", 0),
            ]
            return [self._make(each, "openat", arguments, result=result, syscall="openat")]
        arguments = [
            _argument("pathname", "string", path),
            _argument("flags", "int", flags),
            _argument("dev", "dev_t", 0),
            _argument("inode", "unsigned long", 0),
            _argument("ctime", "unsigned long", 0),
            _argument("syscall_pathname", "string", path),
        ]
        return [self._make(each, "security_file_open", arguments, syscall="openat")]

    def _on_FileRemoved(self, each: Recorded, event: ev.FileRemoved) -> list[dict[str, Any]]:
        path, result = event.path, event.result
        arguments = [_argument("pathname", "string", path)]
        call = "rmdir" if event.directory else "unlinkat"
        if result or call == "rmdir":
            return [self._make(each, call, arguments, result=result, syscall=call)]
        arguments += [
            _argument("inode", "unsigned long", 0),
            _argument("dev", "dev_t", 0),
            _argument("ctime", "unsigned long", 0),
        ]
        return [self._make(each, "security_inode_unlink", arguments, syscall=call)]

    def _on_FileRenamed(self, each: Recorded, event: ev.FileRenamed) -> list[dict[str, Any]]:
        old, new, result = event.path, event.to, event.result
        if result:
            arguments = [_argument("oldpath", "string", old), _argument("newpath", "string", new)]
            return [self._make(each, "renameat2", arguments, result=result, syscall="renameat2")]
        arguments = [_argument("old_path", "string", old), _argument("new_path", "string", new)]
        return [self._make(each, "security_inode_rename", arguments, syscall="renameat2")]

    def _on_FileCreated(self, each: Recorded, event: ev.FileCreated) -> list[dict[str, Any]]:
        kind = event.type
        call = {"directory": "mkdirat", "link": "linkat", "symlink": "symlinkat"}.get(kind, "mknodat")
        arguments = [_argument("pathname", "string", event.path)]
        if kind in ("link", "symlink"):
            arguments = [
                _argument("oldpath" if kind == "link" else "target", "string", event.to),
                _argument("newpath" if kind == "link" else "linkpath", "string", event.path),
            ]
        return [self._make(each, call, arguments, result=event.result, syscall=call)]

    def _on_FileChanged(self, each: Recorded, event: ev.FileChanged) -> list[dict[str, Any]]:
        change, value = event.change, event.value
        path = _argument("pathname", "string", event.path)
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
        return [self._make(each, call, [path, *rest], result=event.result, syscall=call)]

    # ------------------------------------------------------------ network

    def _connect(self, each: Recorded, address: dict[str, str], name: str, result: str) -> dict[str, Any]:
        arguments = [
            _argument("sockfd", "int", -1),
            _argument("type", "int", 1),
            _argument("remote_addr", "SockAddr", address),
        ]
        if name:
            arguments.append(_argument("remote_name", "string", name))
        if result:
            return self._make(each, "connect", arguments, result=result, syscall="connect")
        return self._make(each, "security_socket_connect", arguments, syscall="connect")

    def _on_SocketCalled(self, each: Recorded, event: ev.SocketCalled) -> list[dict[str, Any]]:
        address = _address(event.family, event.address, event.port)
        call, result = event.call, event.result
        if result == "EINPROGRESS":
            result = ""  # it was let through
        if call == "connect":
            return [self._connect(each, address, each.host, result)]
        arguments = [_argument("sockfd", "int", -1)]
        if call == "bind":
            arguments.append(_argument("local_addr", "SockAddr", address))
            name = "bind" if result else "security_socket_bind"
            return [self._make(each, name, arguments, result=result, syscall="bind")]
        arguments.append(_argument("dest_addr", "SockAddr", address))
        return [self._make(each, "sendto", arguments, result=result, syscall="sendto")]

    def _on_ConnectionOpened(self, each: Recorded, event: ev.ConnectionOpened) -> list[dict[str, Any]]:
        if self.traced:  # the call is there already, with the address that was made for the name
            arguments = [
                _argument("dst", "string", event.address),
                _argument("dst_port", "int", event.port),
                _argument("dst_dns", "[]string", [event.host] if event.host else []),
            ]
            return [self._make(each, "net_tcp_connect", arguments)] if event.protocol != "udp" else []
        address = _address("", event.address, event.port)
        return [self._connect(each, address, event.host, "")]

    def _dns(self, each: Recorded, name: str, kind: str, address: str) -> list[dict[str, Any]]:
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
            out.append(self._make(each, "net_packet_dns", arguments))
        return out

    def _on_NameResolved(self, each: Recorded, event: ev.NameResolved) -> list[dict[str, Any]]:
        return self._dns(each, event.name, event.type, event.address)

    def _on_AccessDenied(self, each: Recorded, event: ev.AccessDenied) -> list[dict[str, Any]]:
        access = asked(event.access)
        if access.kind == "NameQuery":
            return self._dns(each, access.name, access.type, "")
        if access.kind == "Connect" and not self.traced:
            address = _address("", access.address or access.host, access.port)
            return [self._connect(each, address, access.host, "ECONNREFUSED")]
        return []


def convert(events: Iterable[Recorded]) -> Iterator[dict[str, Any]]:
    """The events of one session, in order, as Tracee's."""
    converter = Converter()
    for each in events:
        yield from converter.convert(each)
