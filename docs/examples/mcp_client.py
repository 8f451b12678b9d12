"""Use the official MCP client to call an agent's tool, and to ask the agent."""

import asyncio
import tempfile
from pathlib import Path

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from atlas_agents import Agent, Atlas, MemoryStore, tool
from atlas_agents.gateway.server import Gateway
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.testing import Scripted, says


@tool(effect="pure")
async def exchange_rate(currency: str) -> float:
    """Return the price of one dollar in another currency."""
    return {"EUR": 0.86, "PEN": 3.38}[currency]


async def main() -> None:
    banker = Agent("banker", description="Knows about money", model=Scripted(says("Buy.")), tools=[exchange_rate])
    atlas = Atlas([banker], store=MemoryStore())
    settings = GatewaySettings(home=Path(tempfile.mkdtemp()), port=0)
    async with Gateway(atlas, settings).running() as gateway:
        url = f"http://127.0.0.1:{gateway.port}/mcp"
        headers = {"Authorization": f"Bearer {gateway.hub.tokens.main.reveal()}"}
        async with (
            httpx2.AsyncClient(headers=headers) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            for each in (await client.list_tools()).tools:
                print(f"{each.name}: {each.description}")
            for name, given in (("exchange_rate", {"currency": "PEN"}), ("ask_banker", {"message": "Buy or sell?"})):
                (content,) = (await client.call_tool(name, given)).content
                if content.type == "text":
                    print(content.text)


asyncio.run(main())
