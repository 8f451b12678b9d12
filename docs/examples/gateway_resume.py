import asyncio
import json
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from atlas_agents import MemoryStore
from atlas_agents.gateway.server import Gateway
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.testing import Scripted, in_memory_atlas, says


async def main() -> None:
    home = Path(tempfile.mkdtemp())
    atlas = in_memory_atlas(Scripted(says("One two three four five six seven.")), store=MemoryStore())
    async with Gateway(atlas, GatewaySettings(home=home, port=0)).running() as gateway:
        address, token = f"ws://127.0.0.1:{gateway.port}/", (home / "token").read_text().strip()

        socket = await join(address, token)
        sent = await ask(socket, "chat.send", {"sessionKey": "main", "message": "Count."})
        received = [event async for event in events(socket, until=5)]
        socket.transport.abort()  # the connection drops

        socket = await join(address, token)
        last = received[-1]["data"]["seq"]
        await ask(socket, "sessions.subscribe", {"sessionKey": "main", "runs": {sent["runId"]: last}})
        received += [event async for event in events(socket)]
        await socket.close()

    print([event["data"]["seq"] for event in received])
    print("".join(event["data"]["text"] for event in received if event["event"] == "chat.delta"))


async def join(address: str, token: str) -> ClientConnection:
    socket = await connect(address)
    await socket.send(json.dumps({"type": "auth", "token": token, "protocol": 1}))
    await socket.recv()
    return socket


async def ask(socket: ClientConnection, method: str, params: dict[str, Any]) -> Any:
    await socket.send(json.dumps({"id": "1", "method": method, "params": params}))
    while "result" not in (frame := json.loads(await socket.recv())):
        pass
    return frame["result"]


async def events(socket: ClientConnection, until: int | None = None) -> AsyncGenerator[dict[str, Any], None]:
    """Yield run events up to a sequence number or the final event."""
    async for frame in socket:
        event = json.loads(frame)
        if "seq" in event["data"]:
            yield event
            if event["data"]["seq"] == until or event["event"] == "chat.final":
                return


asyncio.run(main())
