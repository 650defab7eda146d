"""Renewals of log-ins: what gets the token, what an answer shows, and the bounds; the whole way is in tests/e2e."""

from __future__ import annotations

import json
import os

import pytest

from membrane.gateway.http.credentials import Destination, Secret, Vault, placeholder_for
from membrane.gateway.http.logins import MOST, MOST_TRADES, Login, Logins, Renewal, Trade
from membrane.gateway.http.requests import Bound
from membrane.policy.model import HttpRequest

HOST = "auth.example"
OLD, NEW, ACCESS = b"ort-" + b"Z9y8X7w6" * 8, b"ort-" + b"K5j6H7g8" * 8, b"oat-" + b"A1b2C3d4" * 8
REQUEST = HttpRequest(HOST, 443, "https", "POST", "/token")
JSON = [b"application/json; charset=utf-8"]


class Session:
    def __init__(self) -> None:
        place = [Destination("https", HOST, 443, "/token")]
        self.api = [Destination("https", "api.example", 443)]
        self.secrets = [Secret("f#0", OLD, placeholder_for(OLD, os.urandom), "*", self.api)]
        self.renewed: list[tuple[str, dict[str, tuple[str, bytes]], int]] = []
        login = Login(self.secrets, place, self.api, "*")

        def renewed(name: str, new: dict[str, Secret], expires_in: int) -> None:
            self.renewed.append((name, {member: (each.name, each.value) for member, each in new.items()}, expires_in))

        self.logins = Logins(self.secrets, [login], random=os.urandom, renewed=renewed, changed=lambda: None)

    @property
    def placeholder(self) -> str:
        return self.secrets[0].placeholder.decode()

    def trade(self) -> Trade:
        found = self.logins.trade([REQUEST], b"/token", JSON)
        assert found is not None
        return found

    def asked(self, body: bytes, pieces: int = 1) -> tuple[bytes, Trade]:
        trade = self.trade()
        size = len(body) // pieces + 1
        out = b"".join(trade.feed(body[at : at + size]) for at in range(0, len(body), size))
        return out + trade.flush(), trade

    def plain(self) -> bytes:
        return json.dumps({"grant_type": "refresh_token", "refresh_token": self.placeholder}).encode()


@pytest.fixture
def session() -> Session:
    return Session()


def answered(trade: Trade, body: bytes, pieces: int = 1) -> bytes:
    down = trade.down(200, None)
    assert isinstance(down, Renewal)
    size = len(body) // pieces + 1
    return b"".join(down.feed(body[at : at + size]) for at in range(0, len(body), size)) + down.flush()


@pytest.mark.parametrize("pieces", [1, 2, 50])
def test_the_token_goes_up_and_placeholders_come_down(session: Session, pieces: int) -> None:
    up, trade = session.asked(session.plain(), pieces)
    assert json.loads(up)["refresh_token"].encode() == OLD
    answer = {"access_token": ACCESS.decode(), "refresh_token": NEW.decode(), "expires_in": 60, "scope": "a b"}
    body = json.dumps(answer).encode()
    shown = answered(trade, body, pieces)
    assert len(shown) == len(body) and ACCESS not in shown and NEW not in shown
    assert json.loads(shown)["scope"] == "a b"
    new = {"access_token": ("f#0 access_token 1", ACCESS), "refresh_token": ("f#0 refresh_token 1", NEW)}
    assert session.renewed == [("f#0", new, 60)]
    vault = Vault(session.secrets, Bound("api.example", 443, "https"), None, session.logins)
    placeholder = json.loads(shown)["access_token"].encode()
    request = HttpRequest("api.example", 443, "https", "GET", "/")
    assert vault.apply([request], b"/", [b"authorization"], [b"Bearer " + placeholder]) == (b"/", [b"Bearer " + ACCESS])


def test_an_open_connection_knows_new_tokens_too(session: Session) -> None:
    vault = Vault(session.secrets, Bound("api.example", 443, "https"), None, session.logins)
    _, trade = session.asked(session.plain())
    shown = answered(trade, json.dumps({"access_token": ACCESS.decode()}).encode())
    placeholder = json.loads(shown)["access_token"].encode()
    request = HttpRequest("api.example", 443, "https", "GET", "/")
    assert vault.apply([request], b"/", [b"authorization"], [placeholder]) == (b"/", [ACCESS])
    scrubber = vault.scrubber()
    assert scrubber is not None and scrubber.whole(b"you sent " + ACCESS) == b"you sent " + placeholder


def test_a_form_is_a_renewal_as_well(session: Session) -> None:
    trade = session.logins.trade([REQUEST], b"/token", [b"application/x-www-form-urlencoded"])
    assert trade is not None
    body = f"grant_type=refresh_token&refresh_token={session.placeholder}&client_id=x".encode()
    assert trade.feed(body) + trade.flush() == body.replace(session.placeholder.encode(), OLD)


@pytest.mark.parametrize(
    "body",
    [
        '{"grant_type": "refresh_token", "refresh_token": "P", "refresh_token": "x"}',
        '{"grant_type": "refresh_token", "refresh_token": "x", "scope": "P"}',
        '{"grant_type": "refresh_token", "refresh_token": "P", "scope": "P"}',
        '{"grant_type": "refresh_token", "refresh_token": "P", "assertion": "x"}',
        '{"grant_type": "password", "refresh_token": "P"}',
        '{"grant_type": "refresh_token", "refresh_token": ["P"]}',
        '["P"]',
        "P",
        "",
    ],
)
def test_what_is_no_plain_renewal_goes_up_as_it_is(session: Session, body: str) -> None:
    octets = body.replace("P", session.placeholder).encode()
    up, trade = session.asked(octets, 3)
    assert up == octets and trade.taken is None
    assert trade.down(200, None) is None, "and its answer is an ordinary one"


def test_requests_that_are_none(session: Session) -> None:
    other = HttpRequest(HOST, 443, "https", "POST", "/other")
    get = HttpRequest(HOST, 443, "https", "GET", "/token")
    elsewhere = HttpRequest("api.example", 443, "https", "POST", "/token")
    for readings in ([other], [get], [elsewhere], [REQUEST, other]):
        assert session.logins.trade(readings, b"/token", JSON) is None
    assert session.logins.trade([REQUEST], b"/token?refresh_token=x", JSON) is None
    for kinds in ([], [b"text/plain"], [b"application/json", b"application/x-www-form-urlencoded"]):
        assert session.logins.trade([REQUEST], b"/token", kinds) is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"access_token": "' + ACCESS[:10] + b"\\u0041" + ACCESS[11:] + b'"}',  # not found as it stands
        b'{"access_token": "short"}',
        b'{"access_token": ["' + ACCESS + b'"]}',
        b'{"access_token": "' + ACCESS + b'", "access_token": "' + NEW + b'"}',
        b'{"refresh_token": "' + NEW + b'"}',
        b"token=" + ACCESS,
        b'{"access_token": "' + ACCESS + b'"' + b" " * MOST + b"}",
    ],
)
def test_an_answer_that_cannot_be_replaced_shows_nothing(session: Session, body: bytes) -> None:
    _, trade = session.asked(session.plain())
    shown = answered(trade, body, 4)
    assert len(shown) == len(body)
    for token in (ACCESS, NEW, ACCESS[-20:], NEW[-20:]):
        assert token not in shown


def test_a_request_over_the_bound_is_passed_on(session: Session) -> None:
    body = session.plain() + b" " * MOST
    up, trade = session.asked(body, 7)
    assert up == body and trade.taken is None


def test_renewals_of_a_session_are_counted(session: Session) -> None:
    for number in range(MOST_TRADES):
        _, trade = session.asked(session.plain())
        answered(trade, json.dumps({"access_token": f"{ACCESS.decode()}{number}"}).encode())
    assert session.logins.trade([REQUEST], b"/token", JSON) is None
