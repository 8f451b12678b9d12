"""The vendors' SDK clients, connected to a test server."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import openai
from wire_setup import KEY

from checks import ssl_context

if TYPE_CHECKING:
    import anthropic


@asynccontextmanager
async def openai_client(url: str) -> AsyncGenerator[openai.AsyncOpenAI]:
    connections = openai.DefaultAsyncHttpxClient(verify=ssl_context())
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, http_client=connections) as client:
        yield client


@asynccontextmanager
async def anthropic_client(url: str) -> "AsyncGenerator[anthropic.AsyncAnthropic]":
    import anthropic  # slow to import

    connections = anthropic.DefaultAsyncHttpxClient(verify=ssl_context())
    async with anthropic.AsyncAnthropic(base_url=url, api_key=KEY, max_retries=0, http_client=connections) as client:
        yield client
