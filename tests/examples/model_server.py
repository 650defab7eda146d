"""A stand-in for the model APIs that the examples' SDKs ask: Messages, Responses and chat completions.

It plays a script: the n-th step is the answer to a conversation with n tool results in it (for chat completions: n
answers of the model), and after the last it says ``LAST``.  What the model was told is kept for the test.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

LAST = "All done."
Step = tuple[str, dict[str, Any]]
"""The tool that the model calls, and its arguments; for chat completions only ``{"text": ...}`` of them counts."""


class ModelServer:
    """The server, on a port of loopback; ``with`` it."""

    def __init__(self, script: Sequence[Step]) -> None:
        self.script = tuple(script)
        self.told: list[str] = []
        """The tool results of the longest conversation, as JSON."""
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = server.answer(self.path.partition("?")[0], request)
                kind, body = answer or ("application/json", b'{"error": {"type": "not_found_error", "message": "no"}}')
                self.send_response(200 if answer else 404)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_arguments: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def answer(self, path: str, request: dict[str, Any]) -> tuple[str, bytes] | None:
        """(content type, body) of one call; None: there is no such call."""
        if path.endswith("/messages"):
            return self._messages(request)
        if path.endswith("/responses"):
            return self._json(self._responses(request))
        if path.endswith("/chat/completions"):
            return self._json(self._completions(request))
        return None

    def _next(self, results: list[Any]) -> Step | None:
        with self._lock:
            if len(results) > len(self.told):
                self.told = [json.dumps(each) for each in results]
        return self.script[len(results)] if len(results) < len(self.script) else None

    @staticmethod
    def _json(value: dict[str, Any]) -> tuple[str, bytes]:
        return "application/json", json.dumps(value).encode()

    def _messages(self, request: dict[str, Any]) -> tuple[str, bytes]:
        """docs.anthropic.com, "Messages" and "Streaming messages"."""
        parts = [part for each in request["messages"] if isinstance(each["content"], list) for part in each["content"]]
        results = [part["content"] for part in parts if part["type"] == "tool_result"]
        # A request without tools is the program's own, for a title and the like.
        step = self._next(results) if request.get("tools") else None
        block: dict[str, Any] = {"type": "text", "text": LAST}
        if step:
            block = {"type": "tool_use", "id": f"toolu_{len(results)}", "name": step[0], "input": step[1]}
        message: dict[str, Any] = {
            "id": f"msg_{len(results)}",
            "type": "message",
            "role": "assistant",
            "model": request["model"],
            "content": [block],
            "stop_reason": "tool_use" if step else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 5},
        }
        if not request.get("stream"):
            return self._json(message)
        started = {**message, "content": [], "stop_reason": None}
        if step:
            begin, delta = {**block, "input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(step[1])}
        else:
            begin, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": LAST}
        ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
        events: tuple[tuple[str, dict[str, Any]], ...] = (
            ("message_start", {"message": started}),
            ("content_block_start", {"index": 0, "content_block": begin}),
            ("content_block_delta", {"index": 0, "delta": delta}),
            ("content_block_stop", {"index": 0}),
            ("message_delta", {"delta": ended, "usage": {"output_tokens": 5}}),
            ("message_stop", {}),
        )
        lines = (f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n" for kind, data in events)
        return "text/event-stream", "".join(lines).encode()

    def _responses(self, request: dict[str, Any]) -> dict[str, Any]:
        """platform.openai.com, "Responses": ``shell_call`` items, or text."""
        items = [item for item in request["input"] if isinstance(item, dict)]
        results = [item["output"] for item in items if item.get("type") == "shell_call_output"]
        step = self._next(results)
        if step:
            call = {"type": step[0], "id": f"sh_{len(results)}", "call_id": f"call_{len(results)}"}
            output: dict[str, Any] = {**call, "status": "completed", "action": step[1]}
        else:
            text = {"type": "output_text", "text": LAST, "annotations": []}
            output = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text]}
        return {
            "id": f"resp_{len(results)}",
            "object": "response",
            "created_at": 0,
            "status": "completed",
            "model": request["model"],
            "output": [output],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }

    def _completions(self, request: dict[str, Any]) -> dict[str, Any]:
        """platform.openai.com, "Chat completions": text only."""
        messages = request["messages"]
        asked = [index for index, each in enumerate(messages) if each["role"] == "assistant"]
        results = [messages[index + 1]["content"] for index in asked]
        step = self._next(results)
        message = {"role": "assistant", "content": step[1]["text"] if step else LAST}
        return {
            "id": f"chatcmpl-{len(results)}",
            "object": "chat.completion",
            "created": 0,
            "model": request["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
