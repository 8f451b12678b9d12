"""A gateway, a channel before it, and a double of Telegram: all in this process, and in a hurry."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atlas_agents import Approvals, Atlas, Chunk, Request, TextChunk, Tool
from atlas_agents.app.serve import Borrowed
from atlas_agents.builtin_tools.telegram_api import BotApi
from atlas_agents.channels.telegram.channel import TelegramChannel
from atlas_agents.channels.telegram.state import Pairing, StateFile
from atlas_agents.channels.telegram.types import TelegramTiming
from atlas_agents.client import GatewayClient
from atlas_agents.core.paths import Secret
from atlas_agents.gateway.server import Gateway
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.storage.memory import MemoryStore
from atlas_agents.testing import Reply, Scripted, in_memory_atlas
from bot_double import TOKEN, BotDouble, Person, bot_double

FAST = TelegramTiming(edit=0.05, typing=0.05, poll=5, first=0.02, most=0.2, watch=0.02)


class Slow(Scripted):
    """Takes its time before each few words."""

    def __init__(self, *replies: Reply, pause: float) -> None:
        super().__init__(*replies)
        self._pause = pause

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        async for chunk in super().stream(request):
            if isinstance(chunk, TextChunk):
                await asyncio.sleep(self._pause)
            yield chunk


@dataclass
class Room:
    """What a test needs: the double, the gateway, and channels that come and go."""

    double: BotDouble
    gateway: Gateway
    home: Path
    model: Scripted

    @property
    def pairing(self) -> Pairing:
        return Pairing(self.home)

    @property
    def notebook(self) -> StateFile:
        """As it is on the disk."""
        return StateFile(self.home / "telegram", "7000001")

    @asynccontextmanager
    async def channel(self, token: str = TOKEN) -> AsyncGenerator[None, None]:
        """A channel as long as the block lasts; then it is cut off."""
        door = Borrowed(self.gateway.hub.tokens, f"http://127.0.0.1:{self.gateway.port}")
        api = BotApi(Secret(token), self.double.url)
        running = asyncio.create_task(TelegramChannel(api, self.pairing, self.notebook, door, FAST).run())
        try:
            yield
        finally:
            assert not running.done(), running.exception()
            running.cancel()
            await asyncio.wait({running})

    @asynccontextmanager
    async def owner(self) -> AsyncGenerator[GatewayClient, None]:
        token = self.gateway.hub.tokens.main.reveal()
        async with GatewayClient(f"http://127.0.0.1:{self.gateway.port}", token) as client:
            yield client

    async def pair(self, person: Person) -> None:
        """Let somebody in as their owner would."""
        person.says("/start")
        await self.double.until(lambda: any("atlas telegram pair" in each.text for each in person.sees))
        self.pairing.pair(person.sees[-1].text.split()[-1])
        await self.double.until(lambda: "You are let in" in person.sees[-1].text)
        person.sees.clear()

    async def said(self) -> list[str]:
        """What all people have said, in the order of the model's requests."""
        return [request.messages[-1].text for request in self.model.requests]


@asynccontextmanager
async def room(
    folder: Path, *replies: Reply, tools: tuple[Tool, ...] = (), pause: float = 0.0, deadline: float = 60.0, **more: Any
) -> AsyncGenerator[Room, None]:
    model = Slow(*replies, pause=pause)
    approvals = Approvals(wait=True, deadline=deadline)
    atlas: Atlas = in_memory_atlas(model, tools, store=MemoryStore(), approve=approvals, **more)
    home = folder / "home"
    home.mkdir(mode=0o700, exist_ok=True)
    gateway = Gateway(atlas, GatewaySettings(home=home, port=0))
    async with asyncio.timeout(40), bot_double() as double, gateway.running():
        yield Room(double, gateway, home, model)
