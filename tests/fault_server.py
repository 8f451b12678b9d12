"""A real server on loopback that says exactly the bytes a test wants, and does to its socket what a test wants.

A script is what happens after one request: bytes (each its own packet), pauses, resets, half closes. The first
request gets the first script, the second the second, on whichever connection it comes; so retries can be seen.
"""

import asyncio
import socket
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeAlias

import msgspec

PATIENCE = 10.0


@dataclass(frozen=True)
class Pause:
    """Say nothing for a while; a client that leaves ends it."""

    seconds: float


Deed: TypeAlias = Literal["close", "reset", "half close", "hold"]
Step: TypeAlias = bytes | Pause | Deed
Script: TypeAlias = Sequence[Step]
_CLOSE: Deed = "close"
Framing: TypeAlias = Literal["chunked", "sized", "until close"]


@dataclass
class Asked:
    """One request as it came, and when its client went away, on the clock of `time.monotonic`."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def body(self) -> Any:
        return msgspec.json.decode(self.raw)


class FaultServer:
    """`async with FaultServer(script, script, …) as server`: `server.url` is where it is, `server.asked` what came.

    `then` is the script of every further request; without one they get HTTP 500 and a test that counts requests fails.
    """

    def __init__(self, *scripts: Script, then: Script | None = None) -> None:
        self.asked: list[Asked] = []
        self.came = asyncio.Event()
        self._scripts = list(scripts)
        self._then = then or answer(b"no script is left for this request", status="500 Script Exhausted")
        self._lines: set[_Line] = set()
        self._server: asyncio.Server | None = None
        self.url = ""

    @property
    def connections(self) -> int:
        """How many are open now."""
        return len(self._lines)

    def add(self, *scripts: Script) -> None:
        """Scripts for requests to come."""
        self._scripts += scripts

    def next_script(self) -> Script:
        return self._scripts.pop(0) if self._scripts else self._then

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Line(self, self._lines), "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def stop_listening(self) -> None:
        """From now on nobody is there; what is connected stays so."""
        assert self._server is not None
        self._server.close()

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        tasks = [line.stop() for line in self._lines]
        if tasks:
            await asyncio.wait(tasks, timeout=PATIENCE)
        await asyncio.wait_for(self._server.wait_closed(), PATIENCE)


class _Line(asyncio.Protocol):
    """One connection: requests in, scripts out."""

    def __init__(self, server: FaultServer, lines: "set[_Line]") -> None:
        self._server, self._lines = server, lines
        self._came = bytearray()
        self._news = asyncio.Event()
        self._gone = asyncio.Event()
        self._free = asyncio.Event()
        self._free.set()
        self._asked: Asked | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._socket: socket.socket = transport.get_extra_info("socket")
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lines.add(self)
        self._task = asyncio.create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        self._came += data
        self._news.set()

    def eof_received(self) -> bool:
        self._leave()
        return False

    def pause_writing(self) -> None:
        self._free.clear()

    def resume_writing(self) -> None:
        self._free.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._lines.discard(self)

    def stop(self) -> "asyncio.Task[None]":
        self._transport.abort()
        self._task.cancel()
        return self._task

    def _leave(self) -> None:
        self._news.set()
        self._free.set()
        if not self._gone.is_set():
            self._gone.set()
            if self._asked:
                self._asked.gone.set()

    async def _serve(self) -> None:
        while (asked := await self._request()) is not None:
            self._asked = asked
            self._server.asked.append(asked)
            self._server.came.set()
            for step in self._server.next_script():
                if self._gone.is_set() or not await self._do(step):
                    return

    async def _do(self, step: Step) -> bool:
        """Take one step; False when it was the connection's last."""
        match step:
            case bytes():
                self._transport.write(step)
                for _ in range(3):  # so that the client reads this packet before the next one is sent
                    await asyncio.sleep(0)
                await self._free.wait()
            case Pause(seconds):
                await self._wait(seconds)
            case "hold":
                await self._wait(PATIENCE)
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
            await asyncio.wait_for(self._gone.wait(), seconds)

    async def _request(self) -> Asked | None:
        while (end := self._came.find(b"\r\n\r\n")) < 0:
            if not await self._more():
                return None
        first, *lines = self._came[:end].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        size = end + 4 + int(headers.get("content-length", "0"))
        while len(self._came) < size:
            if not await self._more():
                return None
        body = bytes(self._came[end + 4 : size])
        del self._came[:size]
        method, path, _ = first.split(" ")
        return Asked(method, path, headers, body)

    async def _more(self) -> bool:
        self._news.clear()
        if self._gone.is_set():
            return False
        await self._news.wait()
        return not self._gone.is_set()


def head(status: str = "200 OK", type: str = "text/event-stream", **headers: str) -> bytes:
    """A status line and headers; `retry_after="1"` is written as `retry-after: 1`."""
    lines = [f"HTTP/1.1 {status}", f"content-type: {type}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def answer(
    *body: Step, status: str = "200 OK", type: str = "text/event-stream", framing: Framing = "chunked", **headers: str
) -> list[Step]:
    """A whole HTTP answer that ends cleanly, whatever its body is: every piece of it goes out as its own packet.

    What is no bytes (a pause, a reset) happens at its place between them.
    """
    match framing:
        case "chunked":
            pieces: list[Step] = [_chunk(step) if isinstance(step, bytes) else step for step in body if step]
            return [head(status, type, transfer_encoding="chunked", **headers), *pieces, b"0\r\n\r\n"]
        case "sized":
            size = sum(len(step) for step in body if isinstance(step, bytes))
            return [head(status, type, content_length=str(size), **headers), *body]
        case "until close":
            return [head(status, type, connection="close", **headers), *body, _CLOSE]


def broken(*body: Step, by: Deed = "reset", type: str = "text/event-stream", **headers: str) -> list[Step]:
    """An answer whose connection breaks before its HTTP end: by a reset, or closed inside a chunked body."""
    pieces: list[Step] = [_chunk(step) if isinstance(step, bytes) else step for step in body]
    return [head("200 OK", type, transfer_encoding="chunked", **headers), *pieces, by]


def byte_by_byte(pieces: Iterable[bytes]) -> list[bytes]:
    """The same bytes, each its own packet."""
    return [bytes([byte]) for byte in b"".join(pieces)]


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)
