"""Two AG-UI runs: the first ends with an interrupt, the second resumes with the approval."""

import asyncio
import json
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import aiohttp

from atlas_agents import Agent, Approvals, Atlas, MemoryStore, tool
from atlas_agents.gateway.server import Gateway
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.testing import Scripted, calls, says


@tool(confirm=True)
async def order(item: str) -> str:
    """Order something."""
    return f"{item} is on its way"


async def main() -> None:
    agent = Agent("shop", model=Scripted(calls("order", item="tea"), says("Tea is ordered.")), tools=[order])
    atlas = Atlas([agent], store=MemoryStore(), approve=Approvals(wait=True))
    home = Path(tempfile.mkdtemp())
    async with Gateway(atlas, GatewaySettings(home=home, port=0)).running() as gateway:
        headers = {"Authorization": f"Bearer {(home / 'token').read_text().strip()}"}
        async with aiohttp.ClientSession(f"http://127.0.0.1:{gateway.port}", headers=headers) as page:
            await talk(page)


async def talk(page: aiohttp.ClientSession) -> None:
    message = {"id": "m1", "role": "user", "content": "Order tea."}
    answers: list[dict[str, Any]] = []
    async for event in run(page, threadId="main", runId="r1", messages=[message]):
        print(event["type"])
        if event["type"] == "RUN_FINISHED":
            (interrupt,) = event["outcome"]["interrupts"]
            print(interrupt["message"])
            answers.append({"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}})
    async for event in run(page, threadId="main", runId="r2", messages=[message], resume=answers):
        print(event["type"], event.get("content") or event.get("delta") or "")


async def run(page: aiohttp.ClientSession, **body: Any) -> AsyncGenerator[dict[str, Any], None]:
    """Do what `runAgent` of @ag-ui/client does."""
    async with page.post("/ag-ui/shop", json=body) as answer:
        async for line in answer.content:
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))


asyncio.run(main())
