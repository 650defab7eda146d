"""The session's journal: what the network process says is counted, and written where asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from membrane.errors import InternalError
from membrane.journal import Journal

CLOSED = b'{"event": "ConnectionClosed", "source": "network", "id": 1, "bytes_up": 7, "bytes_down": 8}'


def test_totals_are_the_latest() -> None:
    """Without a destination the network process sends totals of all connections, not one record of each."""
    journal = Journal("s", "")
    for up, down in ((1, 2), (10, 20)):
        line = {"totals": {"bytes_up": up, "bytes_down": down}}
        assert journal.add_line(json.dumps(line).encode()) == line
    assert (journal.bytes_up, journal.bytes_down, journal.sequence) == (10, 20, 0)


def test_closed_connections_add_up_and_are_numbered_where_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "events"
    journal = Journal("s", str(path))
    assert journal.add_line(CLOSED) is None
    assert journal.add_line(CLOSED) is None
    journal.close()
    assert (journal.bytes_up, journal.bytes_down) == (14, 16)
    written = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [(record["seq"], record["session"], record["id"]) for record in written] == [(1, "s", 1), (2, "s", 1)]


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b"not json", b'{"totals": 1}', b'{"totals": {"bytes_up": 1}}', b'{"event": "AccessDenied"}'],
)
def test_what_the_network_process_does_not_send_is_an_internal_error(line: bytes) -> None:
    with pytest.raises(InternalError):
        Journal("s", "").add_line(line)
