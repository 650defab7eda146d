"""How servers show a text that they were sent, and how a reader gets it back."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable
from urllib.parse import quote, unquote

SPELLED: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], str]]] = {
    "as-it-is": (lambda text: text, bytes.decode),
    "quoted": (lambda text: quote(text).encode(), lambda shown: unquote(shown.decode())),
    "lower-escapes": (
        lambda text: text.replace(b"/", b"%2f").replace(b"+", b"%2b"),
        lambda shown: unquote(shown.decode()),
    ),
    "twice": (
        lambda text: quote(quote(text, safe=""), safe="").encode(),
        lambda shown: unquote(unquote(shown.decode())),
    ),
    "json": (
        lambda text: json.dumps({"key": text.decode()}).replace("+", "\\u002B").encode(),
        lambda shown: str(json.loads(shown)["key"]),
    ),
    "html": (
        lambda text: text.replace(b"/", b"&#x2F;").replace(b"+", b"&plus;").replace(b"w", b"&#119;"),
        lambda shown: html.unescape(shown.decode()),
    ),
    "lines": (base64.encodebytes, lambda shown: base64.decodebytes(shown).decode()),
    "base32": (base64.b32encode, lambda shown: base64.b32decode(shown).decode()),
    "hex": (
        lambda text: text.hex(":").encode(),
        lambda shown: bytes.fromhex(shown.decode().replace(":", "")).decode(),
    ),
    "utf-16": (lambda text: text.decode().encode("utf-16"), lambda shown: shown.decode("utf-16")),
    "upper": (bytes.upper, bytes.decode),
    "json-of-base64": (
        lambda text: json.dumps(base64.encodebytes(b"u:" + text).decode()).encode(),
        lambda shown: base64.decodebytes(json.loads(shown).encode()).decode(),
    ),
}
