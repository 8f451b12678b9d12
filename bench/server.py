"""Model double: an OpenAI API over HTTP in its own process. Prints its port; exits when its stdin is closed.

A request goes to /<scenario>/v1/chat/completions or /<scenario>/v1/responses; with `VARIANT = "final"` the scenario's
name is followed by `~final`. The number of tool results after the last prompt selects the reply, so the server is
stateless. An invalid request gets status 400 and the reason, so that a broken adapter fails instead of looking fast.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from scenarios import HISTORY_MARK, PROMPT, RESULT_MARK, SCENARIOS, TOOL_NAMES, Scenario
from script import STAMP, replies

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
GATE_DELAY = 0.2  # seconds from the last expected turn until the gate opens
GATE_TIMEOUT = 5.0  # seconds without a request after which it opens anyway: a client's pool may be smaller


class BadRequest(Exception):
    """The request is not one that a working agent sends."""


def verify(scenario: Scenario, path: str, request: dict[str, Any], body: bytes) -> None:
    """Reject requests that do not stream or lack tools or history."""
    if not path.endswith("/responses" if scenario.responses else "/chat/completions"):
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
        name, _, variant = path.split("/")[1].partition("~")
        scenario = SCENARIOS[name]
        request = json.loads(body)
        verify(scenario, path, request, body)
        results = body.count(RESULT_MARK.encode(), max(body.rfind(PROMPT.encode()), 0))
        options: dict[str, Any] = request.get("stream_options") or {}
        usage = options.get("include_usage") is True
        events = replies(name, as_call=variant == "final", usage=usage)[results]
        is_answer = results == sum(scenario.calls)
        if is_answer and scenario.gate:
            GATE.hold(self, events, scenario.concurrency)
        elif is_answer and scenario.pace_ms:
            self._send_paced(iter([HEAD + events[0], *events[1:]]), scenario.pace_ms / 1000)
        else:
            self.send(events)

    def send(self, events: list[bytes]) -> None:
        """Write a whole reply at once."""
        self._transport.write(_stamped(HEAD + b"".join(events)))

    def _send_paced(self, events: Iterator[bytes], gap: float) -> None:
        event = next(events, None)
        if event is None or self._transport.is_closing():
            return
        self._transport.write(_stamped(event))
        asyncio.get_running_loop().call_later(gap, self._send_paced, events, gap)

    def _reject(self, reason: str) -> None:
        body = json.dumps({"error": {"message": f"model double: {reason}", "type": "bench"}}).encode()
        head = b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        self._transport.write(head + body)


def _stamped(data: bytes) -> bytes:
    return data.replace(STAMP, str(time.monotonic_ns()).zfill(len(STAMP)).encode())


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Connection, "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
