"""A server at an address: one connection for a while, with the headers of its entry or the tokens of a login."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import httpx2
from mcp.client.streamable_http import streamable_http_client

from atlas_agents.mcp.entries import Entry
from atlas_agents.mcp.pipes import LONGEST_LINE

_CONNECT, _SILENCE = 15.0, 900.0


@asynccontextmanager
async def dialled(entry: Entry, auth: httpx2.Auth | None) -> AsyncGenerator[tuple[object, object], None]:
    """The two streams of messages, as long as the block lasts. Redirects to other places are not followed."""
    timeout = httpx2.Timeout(_CONNECT, read=_SILENCE)
    own = any(name.lower() == "authorization" for name in entry.headers)
    async with (
        httpx2.AsyncClient(
            headers=entry.headers, timeout=timeout, auth=None if own else auth, transport=_Bounded()
        ) as client,
        streamable_http_client(entry.url, http_client=client, max_sse_event_size=LONGEST_LINE) as streams,
    ):
        yield streams


class _Bounded(httpx2.AsyncHTTPTransport):
    """Reads no answer that is longer than a line may be. (Of a stream of events, each has that limit.)"""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = _Counted(cast(httpx2.AsyncByteStream, response.stream))
        return response


class _Counted(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:
            size += len(piece)
            if size > LONGEST_LINE:
                raise httpx2.ReadError(f"the answer is longer than {LONGEST_LINE:,} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
