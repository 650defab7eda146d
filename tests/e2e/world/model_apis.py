"""Stand-ins for the Anthropic Messages API and the OpenAI Responses API, streaming, enough for their agents.

Each conversation is answered by the number of tool results in it: the first answer makes a file, the second tries a
host that is not allowed and a private key, the third is text.  Tool results are journalled for the tests.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import parse_qsl

FIRST = "id -un; echo hello > made.txt; pwd"
SECOND = "curl -ksS -m 10 -o /dev/null https://example.com/; echo curl=$?; cat ~/.ssh/id_rsa; echo cat=$?; cat made.txt"
LAST = "All done."
TOLD = "# You are inside Membrane"  # of the instructions for agents: were they sent along?


def _event(kind: str, data: dict[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()


def messages(request: dict[str, Any], log: Callable[..., None]) -> tuple[str, Iterable[bytes]]:
    """(content type, body) of ``POST /v1/messages`` (docs.anthropic.com, "Streaming messages")."""
    results = [
        part
        for message in request.get("messages", [])
        if isinstance(message.get("content"), list)
        for part in message["content"]
        if part.get("type") == "tool_result"
    ]
    tools = [tool.get("name") for tool in request.get("tools", [])]
    told = TOLD in json.dumps(request)
    answers = [json.dumps(r.get("content")) for r in results]
    log(api="messages", model=request.get("model"), tools=tools, results=answers, told=told)
    if "Bash" in tools and len(results) < 2:
        command = (FIRST, SECOND)[len(results)]
        tool = {"type": "tool_use", "id": f"toolu_{len(results)}", "name": "Bash"}
        content = {**tool, "input": {"command": command, "description": "a step"}}
        reason = "tool_use"
    else:
        content = {"type": "text", "text": LAST}
        reason = "end_turn"
    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": request.get("model", "m"),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 1},
    }
    if not request.get("stream"):
        return "application/json", [json.dumps({**message, "content": [content], "stop_reason": reason}).encode()]
    return "text/event-stream", _stream(message, content, reason)


def _stream(message: dict[str, Any], content: dict[str, Any], reason: str) -> Iterator[bytes]:
    yield _event("message_start", {"message": message})
    if content["type"] == "text":
        yield _event("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}})
        delta = {"type": "text_delta", "text": content["text"]}
    else:
        yield _event("content_block_start", {"index": 0, "content_block": {**content, "input": {}}})
        delta = {"type": "input_json_delta", "partial_json": json.dumps(content["input"])}
    yield _event("content_block_delta", {"index": 0, "delta": delta})
    yield _event("content_block_stop", {"index": 0})
    yield _event(
        "message_delta", {"delta": {"stop_reason": reason, "stop_sequence": None}, "usage": {"output_tokens": 5}}
    )
    yield _event("message_stop", {})


def responses(request: dict[str, Any], log: Callable[..., None]) -> tuple[str, Iterable[bytes]]:
    """(content type, body) of ``POST /v1/responses`` (platform.openai.com, "Streaming API responses")."""
    items = [item for item in request.get("input", []) if isinstance(item, dict)]
    results = [item for item in items if item.get("type") == "function_call_output"]
    tools = [str(tool.get("name") or tool.get("type")) for tool in request.get("tools", [])]
    told = TOLD in json.dumps(request)
    answers = [json.dumps(r.get("output")) for r in results]
    log(api="responses", model=request.get("model"), tools=tools, results=answers, told=told)
    shell = next((name for name in ("shell", "exec_command", "shell_command") if name in tools), None)
    if shell and len(results) < 2:
        command = (FIRST, SECOND)[len(results)]
        arguments: dict[str, Any] = {
            "shell": {"command": ["bash", "-c", command]},
            "exec_command": {"cmd": command},
            "shell_command": {"command": command},
        }[shell]
        item: dict[str, Any] = {
            "type": "function_call",
            "id": f"fc_{len(results)}",
            "call_id": f"call_{len(results)}",
            "name": shell,
            "arguments": json.dumps(arguments),
        }
    else:
        item = {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "content": [{"type": "output_text", "text": LAST, "annotations": []}],
        }
    usage = {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 1,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 2,
    }
    body = (
        _event("response.created", {"response": {"id": "resp_1"}}),
        _event("response.output_item.done", {"output_index": 0, "item": item}),
        _event("response.completed", {"response": {"id": "resp_1", "usage": usage}}),
    )
    return "text/event-stream", body


def jwt(name: str, expires: int = 4102444800) -> str:
    """A JSON Web Token of this name; ``expires`` in seconds since 1970."""
    auth = {"chatgpt_account_id": "account-1", "chatgpt_plan_type": "pro", "chatgpt_user_id": "user-1"}
    claims = {"email": "me@example.com", "exp": expires, "name": name, "https://api.openai.com/auth": auth}
    parts = [json.dumps(part).encode() for part in ({"alg": "RS256", "typ": "JWT"}, claims)]
    signature = (name + "Sg1n" * 64)[:256].encode()
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (*parts, signature))


def tokens(place: str, log: Callable[..., None]) -> Callable[..., Iterable[bytes]]:
    """A token endpoint (RFC 6749 section 6): new tokens for each refresh token; what it was asked is journalled."""
    given = 0

    def app(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        nonlocal given
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        try:
            asked = json.loads(body)
        except ValueError:
            asked = dict(parse_qsl(body.decode()))
        if environ["PATH_INFO"] != place:
            start("404 Not Found", [("Content-Type", "application/json")])
            return [b"{}"]
        given += 1
        log(api="tokens", asked=asked)
        opaque = (
            f"sk-ant-{kind}01-" + f"{word}{given}" * 16 for kind, word in (("oat", "Access9"), ("ort", "Fresh7x"))
        )
        access, refresh = opaque if place.startswith("/v1") else (jwt(f"access{given}"), f"rt.{given}" + "Fresh7x" * 12)
        answer = {"access_token": access, "refresh_token": refresh, "expires_in": 28800, "token_type": "Bearer"}
        answer["scope"] = asked.get("scope", "")
        if not place.startswith("/v1"):
            answer["id_token"] = jwt(f"id{given}")
        start("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(answer).encode()]

    return app
