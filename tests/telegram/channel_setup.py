"""A gateway, a Telegram channel and a double of the Bot API in one process, with short intervals."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atlas_agents import Approvals, Atlas, Chunk, Request, TextChunk, Tool
from atlas_agents.app.serve import TelegramTokens
from atlas_agents.builtin_tools.telegram_api import BotApi
from atlas_agents.channels.telegram.channel import TelegramChannel
from atlas_agents.channels.telegram.delivery import TelegramTiming
from atlas_agents.channels.telegram.state import Pairing, StateFile
from atlas_agents.client import GatewayClient
from atlas_agents.core.paths import Secret
from atlas_agents.gateway.server import Gateway
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Reply, Scripted, in_memory_atlas
from bot_double import TOKEN, BotDouble, Person, bot_double
from checks import TIMEOUT

FAST = TelegramTiming(edit=0.05, typing=0.05, poll=5, min_delay=0.02, max_delay=0.2, watch=0.02)


class SlowModel(Scripted):
    """Scripted model that waits before each text chunk."""

    def __init__(self, *replies: Reply, pause: float) -> None:
        super().__init__(*replies)
        self._pause = pause

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        async for chunk in super().stream(request):
            if isinstance(chunk, TextChunk):
                await asyncio.sleep(self._pause)
            yield chunk


@dataclass
class ChannelSetup:
    """The Bot API double, the gateway and a home; `channel` starts a channel."""

    double: BotDouble
    gateway: Gateway
    home: Path
    model: Scripted
    approvals: Approvals

    @property
    def pairing(self) -> Pairing:
        return Pairing(self.home)

    @property
    def state_file(self) -> StateFile:
        """The state as it is on disk."""
        return StateFile(self.home / "telegram", "7000001")

    @asynccontextmanager
    async def channel(self, token: str = TOKEN) -> AsyncGenerator[None, None]:
        """Run a channel inside the block, and cancel it at the end."""
        access = TelegramTokens(self.gateway.hub.tokens, f"http://127.0.0.1:{self.gateway.port}")
        api = BotApi(Secret(token), self.double.url)
        running = asyncio.create_task(TelegramChannel(api, self.pairing, self.state_file, access, FAST).run())
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
        """Pair a user as the owner would."""
        person.says("/start")
        await self.double.until(lambda: any("atlas telegram pair" in each.text for each in person.sees))
        self.pairing.pair(person.sees[-1].text.split()[-1])
        await self.double.until(lambda: "You are paired" in person.sees[-1].text)
        person.sees.clear()

    async def paired_person(self) -> Person:
        """Return Ana, whom a channel has paired that no longer runs."""
        ana = self.double.person(42, "Ana")
        async with self.channel():
            await self.pair(ana)
        return ana

    async def sent_texts(self) -> list[str]:
        """The last message of each request to the model."""
        return [request.messages[-1].text for request in self.model.requests]


@asynccontextmanager
async def channel_setup(
    folder: Path, *replies: Reply, tools: tuple[Tool, ...] = (), pause: float = 0.0, **more: Any
) -> AsyncGenerator[ChannelSetup, None]:
    model = SlowModel(*replies, pause=pause)
    approvals = Approvals(wait=True)
    atlas: Atlas = in_memory_atlas(model, tools, store=MemoryStore(), approve=approvals, **more)
    home = folder / "home"
    home.mkdir(mode=0o700, exist_ok=True)
    gateway = Gateway(atlas, GatewaySettings(home=home, port=0))
    async with asyncio.timeout(TIMEOUT), bot_double() as double, gateway.running():
        yield ChannelSetup(double, gateway, home, model, approvals)
