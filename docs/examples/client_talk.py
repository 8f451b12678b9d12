import asyncio
import tempfile
from pathlib import Path

from atlas_agents.app.serve import private_gateway
from atlas_agents.client import GatewayClient, GatewayError
from atlas_agents.config import load
from atlas_agents.gateway.protocol.events import ChatDelta, ChatFinal, ToolSettled


async def main(home: Path) -> None:
    async with private_gateway(load({"home": home})) as here:
        await talk(here.url, here.token.reveal())


async def talk(url: str, token: str) -> None:
    async with GatewayClient(url, token) as client:
        agents = await client.call("agents.list")
        print(*[agent["id"] for agent in agents["agents"]])

        async with client.follow("main") as feed:
            sent = await feed.send("Hello!")
            async for event in feed.run_events(sent.run_id):
                match event:
                    case ChatDelta(text=words):
                        print(words, end="")
                    case ToolSettled(name=name, status=status):
                        print(f"({name}: {status})")
                    case ChatFinal():
                        print()
                    case _:
                        pass

        try:
            await client.call("sessions.get", session_key="nowhere")
        except GatewayError as error:
            print(error.kind, error.retryable)


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(main(Path(folder) / "home"))
