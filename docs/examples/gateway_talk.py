import asyncio
import json
import tempfile
from pathlib import Path

from websockets.asyncio.client import connect

from atlas_agents import Agent, Atlas, MemoryStore
from atlas_agents.gateway.server import Gateway
from atlas_agents.gateway.settings import GatewaySettings


async def main() -> None:
    home = Path(tempfile.mkdtemp())
    atlas = Atlas([Agent("assistant")], store=MemoryStore())
    async with Gateway(atlas, GatewaySettings(home=home, port=0)).running() as gateway:
        await talk(f"ws://127.0.0.1:{gateway.port}/", (home / "token").read_text().strip())


async def talk(address: str, token: str) -> None:
    async with connect(address) as socket:
        await socket.send(json.dumps({"type": "auth", "token": token}))
        print(await socket.recv())
        params = {"sessionKey": "main", "message": "Hello!"}
        await socket.send(json.dumps({"id": "1", "method": "chat.send", "params": params}))
        run_id = json.loads(await socket.recv())["result"]["runId"]
        text = ""
        async for frame in socket:
            event = json.loads(frame)
            assert event["data"]["runId"] == run_id
            if event["event"] == "chat.delta":
                text += event["data"]["text"]
            else:
                print(text)
                print(event["event"], sorted(event["data"]["usage"]))
                break


asyncio.run(main())
