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

from ..query import host_of, is_denied, items, number, path_of, program_of, text
from .tracee_json import nanoseconds

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


def ocsf(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """OCSF objects of ``events``."""
    for event in events:
        access = event.get("access")
        access = access if isinstance(access, dict) else {}
        kind = event["event"]
        if kind == "AccessDenied":
            class_, category, activity = _OF_ACCESS.get(text(access.get("kind")), (0, 0, 0))
        else:
            class_, category, activity = _CLASSES.get(kind, (0, 0, 0))
        denied = is_denied(event)
        process = event.get("process")
        out: dict[str, Any] = {
            "class_uid": class_,
            "category_uid": category,
            "activity_id": activity,
            "type_uid": class_ * 100 + activity,
            "time": nanoseconds(text(event["time"])) // 1_000_000,
            "severity_id": 3 if denied else 1,
            "status_id": 2 if denied or event.get("result") else 1,
            "metadata": {
                "version": _VERSION,
                "product": {"name": "Membrane", "vendor_name": "Membrane"},
                "uid": f"{text(event.get('session'))}/{text(event.get('source'))}/{number(event.get('seq'))}",
                "event_code": kind,
            },
            "unmapped": event,
        }
        if denied:
            out.update(action_id=2, disposition_id=2, status_detail=text(event.get("reason") or event.get("result")))
        if isinstance(process, dict):
            actor = {
                "pid": number(process.get("pid")),
                "name": text(process.get("name")),
                "file": {"path": text(process.get("exe"))},
            }
            if class_ == 1007:
                argv = " ".join(text(word) for word in items(event.get("argv")))
                out["process"] = {**actor, "cmd_line": argv} if argv else actor
            else:
                out["actor"] = {"process": actor}
        if class_ == 1001:
            path = path_of(event)
            out["file"] = {"path": path, "name": path.rpartition("/")[2], "type_id": 0}
            if event.get("to"):
                out["file_result"] = {"path": text(event.get("to")), "type_id": 0}
        if class_ in (4001, 4002):
            source = access or event
            out["dst_endpoint"] = {
                "hostname": host_of(event),
                "ip": text(source.get("address")),
                "port": number(source.get("port")),
            }
            if kind == "ConnectionClosed":
                out["traffic"] = {
                    "bytes_out": number(event.get("bytes_up")),
                    "bytes_in": number(event.get("bytes_down")),
                }
        if class_ == 4002:
            source = access or event
            url = {
                "scheme": text(source.get("scheme")),
                "hostname": text(source.get("host")),
                "port": number(source.get("port")),
                "path": text(source.get("path")),
            }
            out["http_request"] = {"http_method": text(source.get("method")), "url": url}
            out["http_response"] = {"code": number(event.get("status"))}
        if class_ == 4003:
            source = access or event
            out["query"] = {"hostname": text(source.get("name")), "type": text(source.get("type"))}
            if event.get("address"):
                out["answers"] = [{"rdata": text(event.get("address"))}]
        yield out


def _attribute(key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"key": key, "value": {"boolValue": value}}
    if isinstance(value, int):
        return {"key": key, "value": {"intValue": str(value)}}  # 64 bits are strings in protobuf's JSON
    return {"key": key, "value": {"stringValue": str(value)}}


def otlp(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """OTLP ``LogsData`` objects of ``events``, one for each."""
    for event in events:
        at = str(nanoseconds(text(event["time"])))
        denied = is_denied(event)
        attributes = [
            _attribute("event.name", event["event"]),
            _attribute("membrane.source", text(event.get("source"))),
            _attribute("membrane.seq", number(event.get("seq"))),
            _attribute("membrane.denied", denied),
        ]
        process = event.get("process")
        if isinstance(process, dict):
            attributes.append(_attribute("process.pid", number(process.get("pid"))))
            attributes.append(_attribute("process.executable.name", program_of(event)))
        for key, value in (("file.path", path_of(event)), ("server.address", host_of(event))):
            if value:
                attributes.append(_attribute(key, value))
        record = {
            "timeUnixNano": at,
            "observedTimeUnixNano": at,
            "severityNumber": 13 if denied else 9,  # WARN, INFO
            "severityText": "WARN" if denied else "INFO",
            "body": {"stringValue": json.dumps(event)},
            "attributes": attributes,
        }
        resource = [
            _attribute("service.name", "membrane"),
            _attribute("membrane.session", text(event.get("session"))),
        ]
        yield {
            "resourceLogs": [
                {
                    "resource": {"attributes": resource},
                    "scopeLogs": [{"scope": {"name": "membrane"}, "logRecords": [record]}],
                }
            ]
        }
