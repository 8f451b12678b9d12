"""The official OpenAI client, spoken to a gateway that really runs."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway_client import main_token, opened
from openai import AsyncOpenAI

from atlas_agents import Atlas, Tool
from atlas_agents.gateway.server import Gateway
from atlas_agents.storage.memory import MemoryStore
from atlas_agents.testing import Scripted, in_memory_atlas

MODEL = "atlas/assistant"


@asynccontextmanager
async def client_of(gateway: Gateway, token: str | None = None, **options: Any) -> AsyncGenerator[AsyncOpenAI, None]:
    """A client of this gateway that does not try again by itself."""
    key = main_token(gateway) if token is None else token
    where = f"http://127.0.0.1:{gateway.port}/v1"
    async with AsyncOpenAI(api_key=key, base_url=where, max_retries=0, timeout=20, **options) as client:
        yield client


@asynccontextmanager
async def asking(home: Path, atlas: Atlas, **settings: Any) -> AsyncGenerator[tuple[Gateway, AsyncOpenAI], None]:
    """A gateway and a client of it."""
    async with opened(home, atlas, **settings) as gateway, client_of(gateway) as client:
        yield gateway, client


def said(text: str) -> list[Any]:
    """The messages of a request with one sentence."""
    return [{"role": "user", "content": text}]


def kept(model: Scripted, tools: tuple[Tool, ...] = (), **options: Any) -> Atlas:
    """An Atlas that keeps what it is told, and says at once that a tool failed."""
    return in_memory_atlas(model, tools, store=MemoryStore(), retries=(), **options)


def upper(input: str) -> str:
    """A tool."""
    return input.upper()


class Slow:
    """A tool that waits to be let go, and remembers whether it was stopped."""

    def __init__(self) -> None:
        self.begun, self.go, self.stopped = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def run(self, input: str) -> str:
        self.begun.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.stopped.set()
            raise
        return f"did {input}"

    @property
    def tool(self) -> Tool:
        return Tool("slow", self.run)
