"""A client of the gateway for tests: it keeps every frame it was sent, in order."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from atlas_agents import Atlas
from atlas_agents.gateway.server import Gateway
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.storage.memory import MemoryStore
from atlas_agents.testing import Scripted, in_memory_atlas, says

WAIT = 10.0


@asynccontextmanager
async def opened(home: Path, atlas: Atlas | None = None, **settings: Any) -> AsyncGenerator[Gateway, None]:
    """A gateway on a port of its own, on both loopbacks."""
    chosen = GatewaySettings(home=home, port=0, **settings)
    gateway = Gateway(atlas or in_memory_atlas(Scripted(says("Hello.")), store=MemoryStore()), chosen)
    async with gateway.running():
        yield gateway


def main_token(gateway: Gateway) -> str:
    return (gateway.settings.home / "token").read_text().strip()


class Client:
    """One socket."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.frames: list[dict[str, Any]] = []
        self._numbers = 0

    async def next(self) -> dict[str, Any]:
        """The next frame, kept."""
        frame = json.loads(await asyncio.wait_for(self.socket.recv(), WAIT))
        self.frames.append(frame)
        return frame

    async def say(self, **frame: Any) -> None:
        await self.socket.send(json.dumps(frame))

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a request; events that come first are kept."""
        self._numbers += 1
        id = f"r{self._numbers}"
        await self.say(id=id, method=method, params=params)
        while (frame := await self.next()).get("id") != id:
            pass
        return frame

    async def get(self, method: str, **params: Any) -> Any:
        """The result of a request that must have one."""
        answer = await self.ask(method, **params)
        assert "result" in answer, answer
        return answer["result"]

    async def until(self, *events: str) -> dict[str, Any]:
        """The data of the next event of one of these names."""
        while (frame := await self.next()).get("event") not in events:
            pass
        return frame["data"]

    def events(self, run_id: str | None = None) -> list[dict[str, Any]]:
        """All events so far, of all runs or of one."""
        told = [frame for frame in self.frames if "event" in frame]
        return [frame for frame in told if run_id is None or frame["data"].get("runId") == run_id]

    async def closed(self) -> tuple[int, str]:
        """(code, reason), once the server has closed; frames before that are kept."""
        try:
            while True:
                await self.next()
        except ConnectionClosed as end:
            return (end.rcvd.code, end.rcvd.reason) if end.rcvd else (1006, "")


class Listening(Protocol):
    """A gateway here, or one in another process."""

    @property
    def port(self) -> int: ...


@asynccontextmanager
async def knocked(gateway: Listening, path: str = "/", **options: Any) -> AsyncGenerator[Client, None]:
    """A socket that has said nothing yet."""
    async with connect(f"ws://127.0.0.1:{gateway.port}{path}", open_timeout=WAIT, **options) as socket:
        yield Client(socket)


@asynccontextmanager
async def joined(gateway: Gateway, token: str | None = None, *, full: bool = True) -> AsyncGenerator[Client, None]:
    """A client that was let in."""
    async with knocked(gateway) as client:
        profile = {"protocol": 1} if full else {}
        await client.say(type="auth", token=main_token(gateway) if token is None else token, **profile)
        greeting = await client.next()
        assert greeting["ok"] is True, greeting
        yield client


@asynccontextmanager
async def talking(home: Path, atlas: Atlas, *, full: bool = True) -> AsyncGenerator[Client, None]:
    """A client of a gateway of its own."""
    async with opened(home, atlas) as gateway, joined(gateway, full=full) as client:
        yield client


async def http(
    gateway: Gateway, request: str, *, host: str = "127.0.0.1", body: str = "", **headers: str
) -> tuple[int, str]:
    """(status, whole answer) of one plain HTTP request, written by hand; `Host` is right unless given."""
    told = {"Host": f"127.0.0.1:{gateway.port}", "Connection": "close"}
    told |= {"Content-Length": str(len(body.encode()))} if body else {}
    told |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
    reader, writer = await asyncio.open_connection(host, gateway.port)
    writer.write(f"{request} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body.encode())
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT)
        rest = b"" if b" 101 " in head else await asyncio.wait_for(reader.read(), WAIT)
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
