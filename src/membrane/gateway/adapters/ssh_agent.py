"""ssh-agent: list keys, and sign with those that the policy names (draft-miller-ssh-agent).

Theory of operation
-------------------
Each message is a length of 4 bytes, a type and contents; one reply follows one request.  The adapter asks the agent for
its keys itself, before the client's first request is read: so it knows the comment and the fingerprint of every key
blob that may be named, and a key that the agent does not list is refused without asking.

Only REQUEST_IDENTITIES and SIGN_REQUEST go on, written anew from their parsed fields; everything else (adding and
removing keys, locking, smartcards, extensions, protocol 1) is answered with SSH_AGENT_FAILURE here.  The list that the
client gets has only the keys that it may sign with.
"""

from __future__ import annotations

from . import Adapter, Asked, Broken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from . import Judge

LONGEST = 256 * 1024  # bytes of a message (OpenSSH, authfd.h AGENT_MAX_LEN)
MOST_KEYS = 2048  # OpenSSH, authfd.c MAX_AGENT_IDENTITIES
# draft-miller-ssh-agent, section 6.1
_FAILURE, _REQUEST_IDENTITIES, _IDENTITIES_ANSWER, _SIGN_REQUEST, _SIGN_RESPONSE = 5, 11, 12, 13, 14
_EXTENSION = 27
_REFUSED = bytes((_FAILURE,))
# OpenSSH's ssh says by it to which host a connection goes, before it asks for anything (OpenSSH, PROTOCOL.agent,
# section 1).  An agent that knows no extensions fails it and ssh goes on, so it is failed and is no refusal to tell.
_SESSION_BIND = b"session-bind@openssh.com"
_NAMES = {
    17: "add a key",
    18: "remove a key",
    19: "remove every key",
    20: "add a smartcard",
    21: "remove a smartcard",
    22: "lock",
    23: "unlock",
    25: "add a key",
    26: "add a smartcard",
    _EXTENSION: "extension",
}


def fingerprint(blob: bytes) -> str:
    """``SHA256:...`` of a key blob, as ``ssh-add -l`` shows it."""
    from base64 import b64encode
    from hashlib import sha256

    return "SHA256:" + b64encode(sha256(blob).digest()).rstrip(b"=").decode("ascii")


def frame(message: bytes) -> bytes:
    return len(message).to_bytes(4, "big") + message


def string(data: bytes) -> bytes:
    """RFC 4251 section 5."""
    return len(data).to_bytes(4, "big") + data


def take_string(data: bytes, at: int) -> tuple[bytes, int]:
    """The string at ``at`` and where it ends.

    Raises:
        Broken: it is longer than what is left.
    """
    end = at + 4
    if end > len(data):
        raise Broken("a string is cut short")
    size = int.from_bytes(data[at:end], "big")
    if end + size > len(data):
        raise Broken("a string is longer than its message")
    return data[end : end + size], end + size


def keys_of(answer: bytes) -> list[tuple[bytes, bytes]]:
    """The (blob, comment) pairs of an IDENTITIES_ANSWER.

    Raises:
        Broken: it is malformed.
    """
    if len(answer) < 5:
        raise Broken("the agent's list is cut short")
    count = int.from_bytes(answer[1:5], "big")
    if count > MOST_KEYS:
        raise Broken("the agent lists too many keys")
    at, keys = 5, []
    for _ in range(count):
        blob, at = take_string(answer, at)
        comment, at = take_string(answer, at)
        keys.append((blob, comment))
    if at != len(answer):
        raise Broken("something follows the agent's list")
    return keys


class SshAgent(Adapter):
    """One connection to an ssh-agent."""

    def __init__(self, judge: Judge) -> None:
        super().__init__(judge)
        self._client, self._server = bytearray(), bytearray()
        self._keys: dict[bytes, tuple[str, str]] = {}  # blob: fingerprint and comment
        self._expected = "keys"  # which reply: keys (for us), list, signature; empty: none
        self.up += frame(bytes((_REQUEST_IDENTITIES,)))

    def from_client(self, data: bytes) -> None:
        self._client += data
        self._requests()

    def from_server(self, data: bytes) -> None:
        self._server += data
        while (message := _next(self._server)) is not None:
            self._reply(message)
            self._requests()

    def waiting(self) -> bool:
        return bool(self._expected and self._expected != "keys") or len(self._client) > 4

    def _requests(self) -> None:
        while not self._expected and not self.parked and (message := _next(self._client)) is not None:
            try:
                self._request(message)
            except Asked:
                self._client[:0] = frame(message)
                self.parked = True
        if len(self._client) > LONGEST + 4 and not self.parked:
            raise Broken("the client sends further requests without waiting for the answer")

    def _request(self, message: bytes) -> None:
        if message == bytes((_REQUEST_IDENTITIES,)):
            if self.judge("list", ()):
                self.up += frame(message)
                self._expected = "list"
            else:
                self.down += frame(_REFUSED)
        elif message[0] == _SIGN_REQUEST:
            self._sign(message)
        else:
            if not message.startswith(bytes((_EXTENSION,)) + string(_SESSION_BIND)):
                self.judge(_NAMES.get(message[0], f"request {message[0]}"), ())
            self.down += frame(_REFUSED)

    def _sign(self, message: bytes) -> None:
        blob, at = take_string(message, 1)
        data, at = take_string(message, at)
        if len(message) != at + 4:
            raise Broken("a signature request has another length")
        if not self.judge("sign", self._keys.get(blob) or (fingerprint(blob),)) or blob not in self._keys:
            self.down += frame(_REFUSED)
            return
        self.up += frame(bytes((_SIGN_REQUEST,)) + string(blob) + string(data) + message[at:])
        self._expected = "signature"

    def _reply(self, message: bytes) -> None:
        expected, self._expected = self._expected, ""
        if expected in ("keys", "list"):
            keys = keys_of(message) if message[0] == _IDENTITIES_ANSWER else []
            self._keys = {blob: (fingerprint(blob), comment.decode("utf-8", "replace")) for blob, comment in keys}
            if expected == "list":
                self._list(keys, message)
        elif expected == "signature":
            if message[0] == _SIGN_RESPONSE:
                _signature, end = take_string(message, 1)
                if end != len(message):
                    raise Broken("something follows the agent's signature")
                self.down += frame(message)
            else:
                self.down += frame(_REFUSED)
        else:
            raise Broken("the agent answers what was not asked")

    def _list(self, keys: list[tuple[bytes, bytes]], message: bytes) -> None:
        if message[0] != _IDENTITIES_ANSWER:
            self.down += frame(_REFUSED)
            return
        shown = [(blob, comment) for blob, comment in keys if self.judge("offer", self._keys[blob])]
        rows = b"".join(string(blob) + string(comment) for blob, comment in shown)
        self.down += frame(bytes((_IDENTITIES_ANSWER,)) + len(shown).to_bytes(4, "big") + rows)


def _next(data: bytearray) -> bytes | None:
    """Take one message from the front of ``data``; None: it is not complete.

    Raises:
        Broken: it is empty, or longer than any.
    """
    if len(data) < 4:
        return None
    size = int.from_bytes(data[:4], "big")
    if not 1 <= size <= LONGEST:
        raise Broken(f"a message of {size} bytes")
    if len(data) < size + 4:
        return None
    message = bytes(data[4 : size + 4])
    del data[: size + 4]
    return message


def protocol(judge: Judge, memory: dict[str, Any]) -> SshAgent:
    """What reads one connection (``broker.make_adapter``)."""
    return SshAgent(judge)
