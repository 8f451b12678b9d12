"""The vendors' SDK clients, connected to a test server."""

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING

import openai
from wire_setup import KEY

if TYPE_CHECKING:
    import anthropic


@cache
def ssl_context() -> ssl.SSLContext:
    """One context for all clients: to read the certificates of the machine takes longer than most tests here."""
    return ssl.create_default_context()


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
