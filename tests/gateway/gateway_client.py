"""Gateway client for tests: it stores every received frame, in order."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from atlas_agents import Atlas
from atlas_agents.gateway.hub import GatewayServices
from atlas_agents.gateway.server import Gateway
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, in_memory_atlas, says
from checks import TIMEOUT


def text_of(frames: list[dict[str, Any]]) -> str:
    """Return the text a client shows: everything since the last reset."""
    shown = ""
    for frame in frames:
        if frame["event"] == "chat.reset":
            shown = ""
        elif frame["event"] == "chat.delta":
            shown += frame["data"]["text"]
    return shown


@asynccontextmanager
async def serve_gateway(
    home: Path, atlas: Atlas | None = None, *, services: GatewayServices | None = None, **settings: Any
) -> AsyncGenerator[Gateway, None]:
    """Serve a gateway on a free port of both loopback addresses."""
    atlas = atlas or in_memory_atlas(Scripted(says("Hello.")), store=MemoryStore())
    gateway = Gateway(atlas, GatewaySettings(home=home, port=0, **settings), services=services)
    async with gateway.running():
        yield gateway


def main_token(gateway: Gateway) -> str:
    return (gateway.settings.home / "token").read_text().strip()


class Client:
    """One WebSocket connection."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.frames: list[dict[str, Any]] = []
        self._last_id = 0

    async def next(self) -> dict[str, Any]:
        """Receive the next frame and store it."""
        frame = json.loads(await asyncio.wait_for(self.socket.recv(), TIMEOUT))
        self.frames.append(frame)
        return frame

    async def send(self, **frame: Any) -> None:
        await self.socket.send(json.dumps(frame))

    async def request(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request and return its response; events that arrive first are stored."""
        self._last_id += 1
        id = f"r{self._last_id}"
        await self.send(id=id, method=method, params=params)
        while (frame := await self.next()).get("id") != id:
            pass
        return frame

    async def get(self, method: str, **params: Any) -> Any:
        """Send a request and return its result; fail if it has none."""
        answer = await self.request(method, **params)
        assert "result" in answer, answer
        return answer["result"]

    async def until(self, *events: str) -> dict[str, Any]:
        """Wait for the next event with one of these names and return its data."""
        while (frame := await self.next()).get("event") not in events:
            pass
        return frame["data"]

    def events(self, run_id: str | None = None) -> list[dict[str, Any]]:
        """Return all events received so far, of all runs or of one."""
        events = [frame for frame in self.frames if "event" in frame]
        return [frame for frame in events if run_id is None or frame["data"].get("runId") == run_id]

    async def closed(self) -> tuple[int, str]:
        """Wait until the server closes the socket; return the code and the reason."""
        try:
            while True:
                await self.next()
        except ConnectionClosed as end:
            return (end.rcvd.code, end.rcvd.reason) if end.rcvd else (1006, "")


class HasPort(Protocol):
    """A gateway in this process or in another one."""

    @property
    def port(self) -> int: ...


@asynccontextmanager
async def open_socket(gateway: HasPort, path: str = "/", **options: Any) -> AsyncGenerator[Client, None]:
    """Open a WebSocket without authenticating."""
    url = f"ws://127.0.0.1:{gateway.port}{path}"
    chosen: dict[str, Any] = {"open_timeout": TIMEOUT, "ping_interval": None, **options}
    async with connect(url, **chosen) as socket:
        yield Client(socket)


@asynccontextmanager
async def connect_client(
    gateway: Gateway, token: str | None = None, *, full: bool = True
) -> AsyncGenerator[Client, None]:
    """Connect and authenticate a client."""
    async with open_socket(gateway) as client:
        profile = {"protocol": 1} if full else {}
        await client.send(type="auth", token=main_token(gateway) if token is None else token, **profile)
        welcome = await client.next()
        assert welcome["ok"] is True, welcome
        yield client


@asynccontextmanager
async def serve_and_connect(home: Path, atlas: Atlas, *, full: bool = True) -> AsyncGenerator[Client, None]:
    """Serve a gateway and connect a client to it."""
    async with serve_gateway(home, atlas) as gateway, connect_client(gateway, full=full) as client:
        yield client


async def http(
    gateway: Gateway, request: str, *, host: str = "127.0.0.1", body: str = "", **headers: str
) -> tuple[int, str]:
    """Send one HTTP request; return the status and the whole response. `Host` is correct unless given."""
    sent = {"Host": f"127.0.0.1:{gateway.port}", "Connection": "close"}
    sent |= {"Content-Length": str(len(body.encode()))} if body else {}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    reader, writer = await asyncio.open_connection(host, gateway.port)
    writer.write(f"{request} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body.encode())
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT)
        rest = b"" if b" 101 " in head else await asyncio.wait_for(reader.read(), TIMEOUT)
    finally:
        writer.close()
        await writer.wait_closed()
    answer = (head + rest).decode("latin-1")
    return int(answer.split(" ", 2)[1]), answer


UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec_WebSocket_Version": "13",
}
