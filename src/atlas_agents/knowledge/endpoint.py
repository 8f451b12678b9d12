"""Vectors from a server that speaks OpenAI's `embeddings`."""

import asyncio
import struct
from collections.abc import Sequence

import msgspec

from atlas_agents.core.errors import ProviderError
from atlas_agents.core.json import encode
from atlas_agents.core.secret import Secret
from atlas_agents.providers.faults import fault_of_status
from atlas_agents.providers.http import Clocks, HttpClient, read_error
from atlas_agents.providers.wire import header_value

_AT_ONCE = 64
_LARGEST_ANSWER = 64 << 20
_MOST_CHARACTERS = 8_000
_PAUSES = (1.0, 3.0, 9.0)
_AGAIN = ("rate_limit", "overloaded", "server", "network", "timeout")


class _Item(msgspec.Struct):
    index: int
    embedding: list[float]


class _Answer(msgspec.Struct):
    data: list[_Item]


class EndpointEmbedder:
    """Asks `POST base_url/embeddings`, many texts at a time; tries again where that may help."""

    def __init__(self, name: str, *, base_url: str, key: Secret | None = None, clocks: Clocks | None = None) -> None:
        self.model = f"{base_url.rstrip('/')}#{name}"
        self._name = name
        self._url = f"{base_url.rstrip('/')}/embeddings"
        self._key = key
        self._http = HttpClient(clocks)
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {header_value(key, 'embeddings')}"

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        found: list[bytes] = []
        for start in range(0, len(texts), _AT_ONCE):
            found += await self._some([text[:_MOST_CHARACTERS] for text in texts[start : start + _AT_ONCE]])
        return found

    async def close(self) -> None:
        await self._http.close()

    async def _some(self, texts: list[str]) -> list[bytes]:
        said = [text for text in texts if text.strip()]
        vectors = iter(await self._patiently(said) if said else [])
        return [next(vectors) if text.strip() else b"" for text in texts]

    async def _patiently(self, texts: list[str]) -> list[bytes]:
        for pause in _PAUSES:
            try:
                return await self._ask(texts)
            except ProviderError as error:
                if error.kind not in _AGAIN:
                    raise
                await asyncio.sleep(pause if error.retry_after is None else min(error.retry_after, 60.0))
        return await self._ask(texts)

    async def _ask(self, texts: list[str]) -> list[bytes]:
        body = encode({"model": self._name, "input": texts, "encoding_format": "float"})
        try:
            async with self._http.request("POST", self._url, self._headers, body) as answer:
                if answer.status != 200:
                    raise fault_of_status(answer.status, await read_error(answer), answer.headers)
                return _vectors(await answer.read_all(_LARGEST_ANSWER), len(texts))
        except ProviderError as error:
            if self._key and self._key.reveal() in str(error):
                error.args = (str(error).replace(self._key.reveal(), "[REDACTED]"),)
            raise


def _vectors(content: bytes, count: int) -> list[bytes]:
    try:
        items = sorted(msgspec.json.decode(content, type=_Answer).data, key=lambda item: item.index)
        if [item.index for item in items] != list(range(count)):
            raise ProviderError(f"{len(items)} vectors came for {count} texts", "protocol")
        return [_packed(item.embedding) for item in items]
    except (msgspec.DecodeError, struct.error, OverflowError) as error:
        raise ProviderError(f"no vectors could be read from the answer: {error}", "protocol") from error


def _packed(numbers: list[float]) -> bytes:
    """Of unit length first: numbers of any size would not fit into 16 bits."""
    length = sum(number * number for number in numbers) ** 0.5
    return struct.pack(f"<{len(numbers)}e", *(number / length for number in numbers)) if length > 0 else b""
