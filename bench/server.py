"""Model double: OpenAI chat completions over HTTP in its own process. Prints its port; exits when its stdin is closed.

A request goes to /<scenario>/v1/chat/completions. The number of tool results after the last prompt selects the reply,
so the server is stateless. An invalid request gets status 400 and the reason, so that a broken adapter fails instead
of looking fast.
"""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

from scenarios import (
    HISTORY_MARK,
    MODEL,
    PROMPT,
    RESULT_MARK,
    SCENARIOS,
    TOOL_ARGUMENTS,
    TOOL_NAMES,
    Scenario,
    answer_deltas,
)

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
USAGE = {"prompt_tokens": 100, "completion_tokens": 200, "total_tokens": 300}
ARGUMENT_PIECES = 4
GATE_DELAY = 0.2  # seconds from the last expected turn until the gate opens
GATE_TIMEOUT = 5.0  # seconds without a request after which it opens anyway: a client's pool may be smaller


class BadRequest(Exception):
    """The request is not one that a working agent sends."""


# Replies: each server-sent event is one HTTP chunk, as real servers send them.


@cache
def replies(scenario: Scenario, *, usage: bool) -> dict[int, list[bytes]]:
    """Return the events of each model reply by the number of tool results in the request."""
    rendered: dict[int, list[bytes]] = {}
    results = 0
    for round_number, count in enumerate(scenario.calls):
        calls = [part for index in range(count) for part in _call(index, f"call_{round_number}_{index}")]
        rendered[results] = _reply(calls, "tool_calls", usage)
        results += count
    rendered[results] = _reply([_event({"content": text}) for text in answer_deltas(scenario)], "stop", usage)
    return rendered


def _reply(events: list[bytes], finish: str, usage: bool) -> list[bytes]:
    first = _event({"role": "assistant", "content": "" if finish == "stop" else None})
    closing = [_completion_chunk(choices=[], usage=USAGE)] if usage else []
    return [first, *events, _event({}, finish), *closing, _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"]


def _call(index: int, call_id: str) -> list[bytes]:
    """Return the deltas of a tool call, whose arguments arrive in pieces."""
    function = {"name": TOOL_NAMES[index], "arguments": ""}
    parts: list[dict[str, object]] = [{"index": index, "id": call_id, "type": "function", "function": function}]
    size = len(TOOL_ARGUMENTS) // ARGUMENT_PIECES + 1
    for at in range(0, len(TOOL_ARGUMENTS), size):
        parts.append({"index": index, "function": {"arguments": TOOL_ARGUMENTS[at : at + size]}})
    return [_event({"tool_calls": [part]}) for part in parts]


def _event(change: dict[str, object], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": change, "logprobs": None, "finish_reason": finish}
    return _completion_chunk(choices=[choice])


def _completion_chunk(**fields: object) -> bytes:
    body = {
        "id": "chatcmpl-bench",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": MODEL,
        "system_fingerprint": "fp_bench",
        **fields,
    }
    return _chunk(b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


# The server


def verify(scenario: Scenario, path: str, request: dict[str, Any], body: bytes) -> None:
    """Reject requests that do not stream or lack tools or history."""
    if not path.endswith("/chat/completions"):
        raise BadRequest(f"unexpected path {path}")
    if request.get("stream") is not True:
        raise BadRequest("the request does not stream")
    if len(request.get("tools", ())) < len(TOOL_NAMES):
        raise BadRequest(f"the request has fewer than {len(TOOL_NAMES)} tools")
    if body.count(HISTORY_MARK.encode()) != scenario.history:
        raise BadRequest("the request lacks messages of the history")


class Gate:
    """Holds answers until all concurrent turns wait for one."""

    def __init__(self) -> None:
        self._held: list[tuple[Connection, list[bytes]]] = []
        self._opening: asyncio.TimerHandle | None = None

    def hold(self, connection: "Connection", events: list[bytes], expected: int) -> None:
        self._held.append((connection, events))
        if self._opening:
            self._opening.cancel()
        delay = GATE_DELAY if len(self._held) == expected else GATE_TIMEOUT
        self._opening = asyncio.get_running_loop().call_later(delay, self._open)

    def _open(self) -> None:
        held, self._held, self._opening = self._held, [], None
        for connection, events in held:
            connection.send(events)


GATE = Gate()


class Connection(asyncio.Protocol):
    """Persistent client connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (request := self._next_request()) is not None:
            try:
                self._answer(*request)
            except (BadRequest, KeyError, ValueError) as error:
                self._reject(repr(error))

    def _next_request(self) -> tuple[str, bytes] | None:
        """Remove and return one complete request (path, body) from the buffer, if there is one."""
        head, found, rest = self._received.partition(b"\r\n\r\n")
        if not found:
            return None
        _, _, after = head.lower().partition(b"content-length:")
        length = int(after.split(b"\r\n", 1)[0] or 0)
        if len(rest) < length:
            return None
        self._received = rest[length:]
        return head.split(b" ", 2)[1].decode(), rest[:length]

    def _answer(self, path: str, body: bytes) -> None:
        scenario = SCENARIOS[path.split("/")[1]]
        request = json.loads(body)
        verify(scenario, path, request, body)
        results = body.count(RESULT_MARK.encode(), max(body.rfind(PROMPT.encode()), 0))
        options: dict[str, Any] = request.get("stream_options") or {}
        events = replies(scenario, usage=options.get("include_usage") is True)[results]
        is_answer = results == sum(scenario.calls)
        if is_answer and scenario.gate:
            GATE.hold(self, events, scenario.concurrency)
        elif is_answer and scenario.pace_ms:
            self._send_paced(iter([HEAD + events[0], *events[1:]]), scenario.pace_ms / 1000)
        else:
            self.send(events)

    def send(self, events: list[bytes]) -> None:
        """Write a whole reply at once."""
        self._transport.write(HEAD + b"".join(events))

    def _send_paced(self, events: Iterator[bytes], gap: float) -> None:
        event = next(events, None)
        if event is None or self._transport.is_closing():
            return
        self._transport.write(event)
        asyncio.get_running_loop().call_later(gap, self._send_paced, events, gap)

    def _reject(self, reason: str) -> None:
        body = json.dumps({"error": {"message": f"model double: {reason}", "type": "bench"}}).encode()
        head = b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        self._transport.write(head + body)


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Connection, "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
