"""The vendors' SDK clients, connected to a test server."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anthropic
import openai
from wire_setup import KEY


@asynccontextmanager
async def openai_client(url: str) -> AsyncGenerator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@asynccontextmanager
async def anthropic_client(url: str) -> "AsyncGenerator[anthropic.AsyncAnthropic]":
    async with anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0) as client:
        yield client
