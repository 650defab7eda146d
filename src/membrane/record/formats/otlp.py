"""Events in the forms that other systems take: OCSF 1.3 objects and OTLP log records, as JSON.

Theory of operation
-------------------
Each event becomes one object.  OCSF (schema.ocsf.io, version 1.3.0): File System Activity 1001, Process Activity 1007,
Network Activity 4001, HTTP Activity 4002, DNS Activity 4003; a refusal has ``disposition_id`` 2 (Blocked), whatever has
no class becomes Base Event 0.  The event itself stays below ``unmapped``, so nothing is lost on the way.  OTLP
(opentelemetry-proto, ``LogsData`` in its JSON form): one ``resourceLogs`` line for each event.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from ... import events as ev
from ..query import host_of, is_denied, path_of
from ..recorded import Asked, Recorded, asked, nanoseconds

_VERSION = "1.3.0"
# event: class, category, activity (0 unknown)
_CLASSES = {
    "ProcessStarted": (1007, 1, 1),  # Launch
    "ProcessExited": (1007, 1, 2),  # Terminate
    "FileOpened": (1001, 1, 14),  # Open
    "FileCreated": (1001, 1, 1),  # Create
    "FileRemoved": (1001, 1, 4),  # Delete
    "FileRenamed": (1001, 1, 5),  # Rename
    "FileChanged": (1001, 1, 6),  # Set Attributes
    "NameQuarantined": (1001, 1, 5),
    "SocketCalled": (4001, 4, 1),  # Open
    "ConnectionOpened": (4001, 4, 1),
    "ConnectionClosed": (4001, 4, 2),  # Close
    "RequestSeen": (4002, 4, 99),  # Other: the method is in http_request
    "NameResolved": (4003, 4, 1),  # Query
}
_OF_ACCESS = {
    "NameQuery": (4003, 4, 1),
    "Connect": (4001, 4, 1),
    "HttpRequest": (4002, 4, 99),
    "PathAccess": (1001, 1, 14),
    "SocketAccess": (4001, 4, 1),
}


def ocsf(events: Iterable[Recorded]) -> Iterator[dict[str, Any]]:
    """OCSF objects of ``events``."""
    for each in events:
        event = each.event
        access = asked(event.access) if isinstance(event, ev.AccessDenied) else None
        if access is not None:
            class_, category, activity = _OF_ACCESS.get(access.kind, (0, 0, 0))
        else:
            class_, category, activity = _CLASSES.get(each.kind, (0, 0, 0))
        denied = is_denied(each)
        out: dict[str, Any] = {
            "class_uid": class_,
            "category_uid": category,
            "activity_id": activity,
            "type_uid": class_ * 100 + activity,
            "time": nanoseconds(each.time) // 1_000_000,
            "severity_id": 3 if denied else 1,
            "status_id": 2 if denied or each.result else 1,
            "metadata": {
                "version": _VERSION,
                "product": {"name": "Membrane", "vendor_name": "Membrane"},
                "uid": f"{each.session}/{each.source}/{each.seq}",
                "event_code": each.kind,
            },
            "unmapped": each.data,
        }
        if denied:
            reason = event.reason if isinstance(event, ev.AccessDenied) else each.result
            out.update(action_id=2, disposition_id=2, status_detail=reason)
        if each.process is not None:
            who = each.process
            actor = {"pid": who.pid, "name": who.name, "file": {"path": who.exe}}
            if class_ == 1007:
                argv = " ".join(event.argv) if isinstance(event, ev.ProcessStarted) else ""
                out["process"] = {**actor, "cmd_line": argv} if argv else actor
            else:
                out["actor"] = {"process": actor}
        if class_ == 1001:
            path = path_of(each)
            out["file"] = {"path": path, "name": path.rpartition("/")[2], "type_id": 0}
            if each.to:
                out["file_result"] = {"path": each.to, "type_id": 0}
        # What a refusal is about has the fields of what it would have been.
        about = access or event
        if class_ in (4001, 4002):
            out["dst_endpoint"] = {
                "hostname": host_of(each),
                "ip": getattr(about, "address", ""),
                "port": getattr(about, "port", each.port),
            }
            if isinstance(event, ev.ConnectionClosed):
                out["traffic"] = {"bytes_out": event.bytes_up, "bytes_in": event.bytes_down}
        if isinstance(about, ev.RequestSeen) or (isinstance(about, Asked) and class_ == 4002):
            url = {"scheme": about.scheme, "hostname": about.host, "port": about.port, "path": about.path}
            out["http_request"] = {"http_method": about.method, "url": url}
            out["http_response"] = {"code": about.status if isinstance(about, ev.RequestSeen) else 0}
        if isinstance(about, ev.NameResolved) or (isinstance(about, Asked) and class_ == 4003):
            out["query"] = {"hostname": about.name, "type": about.type}
            if isinstance(about, ev.NameResolved) and about.address:
                out["answers"] = [{"rdata": about.address}]
        yield out


def _attribute(key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"key": key, "value": {"boolValue": value}}
    if isinstance(value, int):
        return {"key": key, "value": {"intValue": str(value)}}  # 64 bits are strings in protobuf's JSON
    return {"key": key, "value": {"stringValue": str(value)}}


def otlp(events: Iterable[Recorded]) -> Iterator[dict[str, Any]]:
    """OTLP ``LogsData`` objects of ``events``, one for each."""
    for each in events:
        at = str(nanoseconds(each.time))
        denied = is_denied(each)
        attributes = [
            _attribute("event.name", each.kind),
            _attribute("membrane.source", each.source),
            _attribute("membrane.seq", each.seq),
            _attribute("membrane.denied", denied),
        ]
        if each.process is not None:
            attributes.append(_attribute("process.pid", each.process.pid))
            attributes.append(_attribute("process.executable.name", each.program))
        for key, value in (("file.path", path_of(each)), ("server.address", host_of(each))):
            if value:
                attributes.append(_attribute(key, value))
        record = {
            "timeUnixNano": at,
            "observedTimeUnixNano": at,
            "severityNumber": 13 if denied else 9,  # WARN, INFO
            "severityText": "WARN" if denied else "INFO",
            "body": {"stringValue": json.dumps(each.data)},
            "attributes": attributes,
        }
        resource = [
            _attribute("service.name", "membrane"),
            _attribute("membrane.session", each.session),
        ]
        yield {
            "resourceLogs": [
                {
                    "resource": {"attributes": resource},
                    "scopeLogs": [{"scope": {"name": "membrane"}, "logRecords": [record]}],
                }
            ]
        }
