"""Calls that wait for the supervisor: which, how many, how long, and what is said about them."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from membrane.events import FileRenamed
from membrane.host.notify import Place
from membrane.tracer.edits import GO_ON, MOST_HELD, Answer, Edits, Held, is_edit, is_first, is_switch
from membrane.tracer.messages import FROM_TRACER, TO_TRACER, CallWaits, Decide


def place(path: str, status: os.stat_result | None, *, readonly: bool = False) -> Place:
    made = Place(os.fsencode(path))
    made.status, made.readonly = status, readonly
    return made


@pytest.fixture
def status(tmp_path: Path) -> os.stat_result:
    (tmp_path / "file").touch()
    return os.stat(tmp_path / "file")


def held(path: str, seconds: float = 60.0, mode: int = -1) -> Held:
    event = FileRenamed(path + ".lock", path, "", True, False, "notify")
    return Held(1, 2, None, event, place(path, None, readonly=True), time.monotonic() + seconds, mode)


def test_a_call_waits_until_the_word(status: os.stat_result) -> None:
    sent: list[CallWaits] = []
    edits = Edits(sent.append)
    waiting = held("/w/.git/config")
    assert edits.due() == 0 and edits.begin(7, waiting)
    assert sent == [CallWaits(7, int(waiting.deadline * 1e6), -1, b"/w/.git/config")]
    assert edits.due() == waiting.deadline
    assert edits.decided(Decide(8, 0, "")) is None  # nothing waits
    assert edits.decided(Decide(7, errno.EACCES, "why")) == Answer(7, waiting, errno.EACCES, "why")
    assert edits.decided(Decide(7, 0, "")) is None and edits.due() == 0


def test_bounds() -> None:
    edits = Edits(lambda _message: None)
    assert all(edits.begin(number, held("/w/.git/config", 60.0 * number)) for number in range(MOST_HELD))
    assert not edits.begin(MOST_HELD, held("/w/.git/config"))
    assert [(late.number, late.what, late.why) for late in edits.late()] == [(0, errno.EACCES, "it took too long")]
    assert edits.begin(MOST_HELD, held("/w/.git/config"))


def test_the_kernel_s_cookie_of_a_call_has_64_bits_without_a_sign() -> None:
    sent: list[CallWaits] = []
    Edits(sent.append).begin((1 << 64) - 1, held("/w/.git/config"))
    assert FROM_TRACER.decode(*FROM_TRACER.encode(sent[0])) == sent[0]
    word = Decide((1 << 64) - 1, GO_ON, "")
    assert TO_TRACER.decode(*TO_TRACER.encode(word)) == word


def test_a_name_is_passed_on_byte_for_byte() -> None:
    sent: list[CallWaits] = []
    Edits(sent.append).begin(1, held(os.fsdecode(b"/w\n\xff\0/.git/config"), mode=0o744))
    assert (sent[0].path, sent[0].mode) == (b"/w\n\xff\0/.git/config", 0o744)


@pytest.mark.parametrize(
    ("source", "to", "flags", "expected"),
    [
        ("/w/.git/config.lock", "/w/.git/config", 0, True),
        ("/w/.gitmodules.lock", "/w/.gitmodules", 0, True),
        ("/w/.git/config.lock", "/w/.git/config", 2, False),
        ("/w/.git/config.lock", "/w/.git/config", 1, False),
        ("/w/config.lock", "/w/.git/config", 0, False),
        ("/w/.git/config.loc", "/w/.git/config", 0, False),
        ("/w/.git/HEAD.lock", "/w/.git/HEAD", 0, False),
    ],
)
def test_which_renames(source: str, to: str, flags: int, expected: bool, status: os.stat_result) -> None:
    assert is_edit(place(source, status), place(to, status, readonly=True), flags) is expected
    assert not is_edit(place(source, status), place(to, status), flags)
    assert not is_edit(place(source, status, readonly=True), place(to, status, readonly=True), flags)
    assert not is_edit(place(source, os.stat("/")), place(to, status, readonly=True), flags)
    assert not is_edit(place(source, status), place(to, None, readonly=True), flags)


def test_which_are_the_first_of_a_repository(status: os.stat_result) -> None:
    for path in ("/w/n/.git/config", "/w/n.git/config", "/w/.git/modules/a/config"):
        assert is_first(place(f"{path}.lock", status), place(path, None))
        assert not is_first(place(f"{path}.lock", status), place(path, status, readonly=True))
    assert not is_first(place("/w/config.lock", status), place("/w/config", None))


def test_which_modes(status: os.stat_result) -> None:
    config = place("/w/.git/config", status, readonly=True)
    assert is_switch(config, "mode", status.st_uid)
    assert not is_switch(config, "owner", status.st_uid) and not is_switch(config, "mode", status.st_uid + 1)
    assert not is_switch(place("/w/.git/config", status), "mode", status.st_uid)
    assert not is_switch(place("/w/.git/hooks", status, readonly=True), "mode", status.st_uid)
