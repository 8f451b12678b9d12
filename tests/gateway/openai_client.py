"""The official OpenAI client, connected to a real gateway."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from gateway_client import HasPort, main_token, serve_gateway
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from atlas_agents import Atlas, Provider, Tool
from atlas_agents.gateway.server import Gateway
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import in_memory_atlas
from checks import TIMEOUT, ssl_context

MODEL = "atlas/assistant"


@asynccontextmanager
async def connect_openai(
    gateway: HasPort, token: str | None = None, **options: Any
) -> AsyncGenerator[AsyncOpenAI, None]:
    """Connect a client that does not retry. A gateway in another process needs a token."""
    key = main_token(cast(Gateway, gateway)) if token is None else token
    where = f"http://127.0.0.1:{gateway.port}/v1"
    options |= {"max_retries": 0, "timeout": TIMEOUT, "http_client": DefaultAsyncHttpxClient(verify=ssl_context())}
    async with AsyncOpenAI(api_key=key, base_url=where, **options) as client:
        yield client


@asynccontextmanager
async def serve_openai(home: Path, atlas: Atlas, **settings: Any) -> AsyncGenerator[tuple[Gateway, AsyncOpenAI], None]:
    """Serve a gateway and connect a client to it."""
    async with serve_gateway(home, atlas, **settings) as gateway, connect_openai(gateway) as client:
        yield gateway, client


def user_messages(text: str) -> list[Any]:
    """Return the messages of a request with one user message."""
    return [{"role": "user", "content": text}]


def stored_atlas(model: Provider, tools: tuple[Tool, ...] = (), **options: Any) -> Atlas:
    """Return an Atlas with a store that does not retry failed tools."""
    return in_memory_atlas(model, tools, store=MemoryStore(), retries=(), **options)


def upper(input: str) -> str:
    """Return the text in upper case."""
    return input.upper()


class Slow:
    """A tool that waits until it is released, and records whether it was cancelled."""

    def __init__(self) -> None:
        self.started, self.release, self.cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def run(self, input: str) -> str:
        self.started.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return f"did {input}"

    @property
    def tool(self) -> Tool:
        return Tool("slow", self.run)
