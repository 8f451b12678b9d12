"""One exchange with a vendor: send the request, feed what comes to a reader, give out its chunks.

Complete or nothing: the reader's last word, tool calls included, comes only from a message that has ended as its
vendor says a message ends.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

from atlas_agents.core.errors import MissingKey, ProviderError
from atlas_agents.core.secret import Secret
from atlas_agents.core.text import clean
from atlas_agents.providers.base import Chunk
from atlas_agents.providers.faults import fault_of_status
from atlas_agents.providers.http import Answer, HttpClient, read_error
from atlas_agents.providers.sse import MAX_RESPONSE

_SLICE = 16 * 1024
_AFTER_FINISH = 2.0
_AFTER_DONE = 0.1


class Reader(Protocol):
    """Reads one vendor's stream. Knows no socket, so that it can be tried at every cut."""

    heard: int
    """How many events counted so far; pings and comments don't."""
    complete: bool
    """The message has ended; at most its usage is still to come."""
    closed: bool
    """The vendor said that nothing follows."""

    def feed(self, piece: bytes) -> list[Chunk]: ...

    def whole(self, body: bytes) -> list[Chunk]:
        """Read an answer that came in one piece, from a server that does not stream."""
        ...

    def finish(self) -> list[Chunk]:
        """The tool calls and the end, or ProviderError if the message was not complete."""
        ...


async def exchange(
    http: HttpClient, url: str, headers: Mapping[str, str], body: bytes, reader: Reader, key: Secret | None
) -> AsyncGenerator[Chunk, None]:
    """Ask once. Raises ProviderError, with the key taken out of whatever the server said."""
    try:
        async with http.request("POST", url, headers, body) as answer:
            if answer.status != 200:
                raise await _refusal(answer)
            if answer.headers.get("content-type", "").startswith("application/json"):
                whole = await answer.read_all(MAX_RESPONSE)
                for chunk in reader.whole(whole) if whole.strip() else reader.finish():
                    yield chunk
                return
            async for piece in _pieces(answer, reader):
                for chunk in reader.feed(piece):
                    yield chunk
            for chunk in reader.finish():
                yield chunk
    except ProviderError as error:
        if key and key.reveal() in str(error):
            error.args = (str(error).replace(key.reveal(), "[REDACTED]"),)
        raise


async def _pieces(answer: Answer, reader: Reader) -> AsyncGenerator[bytes, None]:
    """The answer's bytes until nothing more is needed; the idle clock runs on while the reader hears only pings."""
    while piece := await _next(answer, reader):
        heard = reader.heard
        for start in range(0, len(piece), _SLICE):
            if start:
                await asyncio.sleep(0)  # a burst must not keep others, or its own listener, waiting
            yield piece[start : start + _SLICE]
        if reader.heard != heard:
            answer.watch.touch()


async def _next(answer: Answer, reader: Reader) -> bytes:
    """The next bytes, or none when nothing more is needed. A complete message outlives what its connection does."""
    if not reader.complete:
        return await answer.read()
    if reader.closed and answer.ended:
        return b""
    answer.watch.allow(_AFTER_DONE if reader.closed else _AFTER_FINISH)
    try:
        return await answer.read()
    except ProviderError:
        return b""


async def _refusal(answer: Answer) -> ProviderError:
    if 300 <= answer.status < 400:
        target = clean(answer.headers.get("location", "another address"))
        return ProviderError(
            f"HTTP {answer.status}: the server points to {target}; set that as base_url", "bad_request"
        )
    if answer.status < 300:
        return ProviderError(f"HTTP {answer.status} where 200 was expected", "protocol")
    return fault_of_status(answer.status, await read_error(answer), answer.headers)


def header_value(key: Secret, vendor: str) -> str:
    """The key as it goes into a header; a pasted line break would forge another one."""
    value = key.reveal().strip()
    if not value or not (value.isascii() and value.isprintable()):
        raise MissingKey(f"the key for {vendor} is blank or has characters that no key has; paste it again")
    return value
