"""Fault-injecting HTTP server on loopback: it sends the exact bytes of a script and breaks its socket on demand.

A script is the response to one request: bytes (each in its own packet), pauses, resets and half closes. Requests get
the scripts in order, whichever connection they use, so that retries are visible.
"""

import asyncio
import socket
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeAlias

import msgspec

TIMEOUT = 10.0


@dataclass(frozen=True)
class Pause:
    """Send nothing for a while, or until the client disconnects."""

    seconds: float


SocketAction: TypeAlias = Literal["close", "reset", "half close", "hold"]
Step: TypeAlias = bytes | Pause | SocketAction
Script: TypeAlias = Sequence[Step]
_CLOSE: SocketAction = "close"
Framing: TypeAlias = Literal["chunked", "sized", "until close"]


@dataclass
class ReceivedRequest:
    """One request as received; `disconnected` is set when its client disconnects."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def body(self) -> Any:
        return msgspec.json.decode(self.raw)


class FaultServer:
    """`async with FaultServer(script, script, …) as server`: `server.url` is its address.

    `then` is the script of every further request; without one they get HTTP 500.
    """

    def __init__(self, *scripts: Script, then: Script | None = None) -> None:
        self.requests: list[ReceivedRequest] = []
        self.request_received = asyncio.Event()
        self._scripts = list(scripts)
        self._then = then or response(b"no script is left for this request", status="500 Script Exhausted")
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None
        self.url = ""

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def add(self, *scripts: Script) -> None:
        """Add scripts for further requests."""
        self._scripts += scripts

    def next_script(self) -> Script:
        return self._scripts.pop(0) if self._scripts else self._then

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self, self._connections), "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def stop_listening(self) -> None:
        """Accept no new connections; open ones stay open."""
        assert self._server is not None
        self._server.close()

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        tasks = [connection.stop() for connection in self._connections]
        if tasks:
            await asyncio.wait(tasks, timeout=TIMEOUT)
        await asyncio.wait_for(self._server.wait_closed(), TIMEOUT)


class _Connection(asyncio.Protocol):
    """One connection: requests in, scripts out."""

    def __init__(self, server: FaultServer, connections: "set[_Connection]") -> None:
        self._server, self._connections = server, connections
        self._received = bytearray()
        self._changed = asyncio.Event()
        self._disconnected = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._current: ReceivedRequest | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._socket: socket.socket = transport.get_extra_info("socket")
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections.add(self)
        self._task = asyncio.create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._changed.set()

    def eof_received(self) -> bool:
        self._mark_disconnected()
        return False

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._mark_disconnected()
        self._connections.discard(self)

    def stop(self) -> "asyncio.Task[None]":
        self._transport.abort()
        self._task.cancel()
        return self._task

    def _mark_disconnected(self) -> None:
        self._changed.set()
        self._writable.set()
        if not self._disconnected.is_set():
            self._disconnected.set()
            if self._current:
                self._current.disconnected.set()

    async def _serve(self) -> None:
        while (request := await self._read_request()) is not None:
            self._current = request
            self._server.requests.append(request)
            self._server.request_received.set()
            for step in self._server.next_script():
                if self._disconnected.is_set() or not await self._perform(step):
                    return

    async def _perform(self, step: Step) -> bool:
        """Perform one step; return False if it closed the connection."""
        match step:
            case bytes():
                self._transport.write(step)
                for _ in range(3):  # so that the client reads this packet before the next one is sent
                    await asyncio.sleep(0)
                await self._writable.wait()
            case Pause(seconds):
                await self._wait(seconds)
            case "hold":
                await self._wait(TIMEOUT)
            case "half close":
                self._transport.write_eof()
            case "reset":
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self._transport.abort()
                return False
            case "close":
                self._transport.close()
                return False
        return True

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._disconnected.wait(), seconds)

    async def _read_request(self) -> ReceivedRequest | None:
        while (end := self._received.find(b"\r\n\r\n")) < 0:
            if not await self._wait_for_data():
                return None
        first, *lines = self._received[:end].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        size = end + 4 + int(headers.get("content-length", "0"))
        while len(self._received) < size:
            if not await self._wait_for_data():
                return None
        body = bytes(self._received[end + 4 : size])
        del self._received[:size]
        method, path, _ = first.split(" ")
        return ReceivedRequest(method, path, headers, body)

    async def _wait_for_data(self) -> bool:
        self._changed.clear()
        if self._disconnected.is_set():
            return False
        await self._changed.wait()
        return not self._disconnected.is_set()


def response_head(status: str = "200 OK", type: str = "text/event-stream", **headers: str) -> bytes:
    """Build a status line and headers; `retry_after="1"` is written as `retry-after: 1`."""
    lines = [f"HTTP/1.1 {status}", f"content-type: {type}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def response(
    *body: Step, status: str = "200 OK", type: str = "text/event-stream", framing: Framing = "chunked", **headers: str
) -> list[Step]:
    """Build a complete HTTP response; each piece of its body is sent in its own packet.

    Other steps (a pause, a reset) happen between the pieces.
    """
    match framing:
        case "chunked":
            pieces: list[Step] = [_chunk(step) if isinstance(step, bytes) else step for step in body if step]
            return [response_head(status, type, transfer_encoding="chunked", **headers), *pieces, b"0\r\n\r\n"]
        case "sized":
            size = sum(len(step) for step in body if isinstance(step, bytes))
            return [response_head(status, type, content_length=str(size), **headers), *body]
        case "until close":
            return [response_head(status, type, connection="close", **headers), *body, _CLOSE]


def broken_response(
    *body: Step, by: SocketAction = "reset", type: str = "text/event-stream", **headers: str
) -> list[Step]:
    """Build a response whose connection breaks before its end: reset, or closed inside a chunked body."""
    pieces: list[Step] = [_chunk(step) if isinstance(step, bytes) else step for step in body]
    return [response_head("200 OK", type, transfer_encoding="chunked", **headers), *pieces, by]


def byte_by_byte(pieces: Iterable[bytes]) -> list[bytes]:
    """Split into single bytes, so that each is sent in its own packet."""
    return [bytes([byte]) for byte in b"".join(pieces)]


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)
