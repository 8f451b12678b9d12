"""Query a gateway's health, readiness and metrics."""

import asyncio
import tempfile
from pathlib import Path

import aiohttp

from atlas_agents import Agent, Atlas, MemoryStore
from atlas_agents.gateway.server import Gateway
from atlas_agents.gateway.settings import GatewaySettings


async def main() -> None:
    atlas = Atlas([Agent("assistant")], store=MemoryStore())
    settings = GatewaySettings(home=Path(tempfile.mkdtemp()), port=0)
    async with Gateway(atlas, settings).running() as gateway, aiohttp.ClientSession() as web:
        for path in ("/health", "/readyz", "/metrics"):
            async with web.get(f"http://127.0.0.1:{gateway.port}{path}") as answer:
                lines = (await answer.text()).splitlines()
                print(path, answer.status, *[line for line in lines if line.startswith("atlas_runs ")])


asyncio.run(main())
