"""Embeddings: a local embedder (extra `local`) that needs no network, and one for an HTTP endpoint.

numpy and the tokenizer are imported when the first text is embedded.
"""

import asyncio
import importlib.util
import mmap
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from atlas_agents.core import install_command
from atlas_agents.core.aio import run_in_thread
from atlas_agents.core.errors import ConfigError, ProviderError
from atlas_agents.core.http import backoff
from atlas_agents.core.json import encode
from atlas_agents.core.paths import Secret
from atlas_agents.providers.base import classify_response
from atlas_agents.providers.http import HttpClient, RequestHeaders, header_value, read_error, remove_key

_LOCAL_BATCH = 256
_WEIGHTS = "weights/l2_supercat_256.safetensors"
_TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"
MISSING_EXTRA = f"semantic search needs an extra; run: {install_command('local')}, or set `embeddings` to a model"
_ENDPOINT_BATCH = 64
_MAX_RESPONSE = 64 << 20
_MAX_CHARACTERS = 8_000
"""Maximum number of characters of a text that are sent to an endpoint; most models accept no more."""
_RETRIES = 3
_FIRST_DELAY = 1.0
_RETRIABLE = ("rate_limit", "overloaded", "server", "network", "timeout")


class Embedder(Protocol):
    """Embedder port: returns vectors of 16-bit floats. Only vectors with the same `model` are compared."""

    @property
    def model(self) -> str: ...

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Return a vector for each text; empty for a text without content."""
        ...

    async def close(self) -> None: ...


class LocalEmbedder:
    """WordLlama embeddings: the mean of a static vector per token. The weights are read from the wordllama wheel,
    without its code, which imports a hub client."""

    model = "wordllama/l2-supercat-256"

    def __init__(self) -> None:
        self._folder = _package_folder()
        self._loaded: _VectorTable | None = None

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        found: list[bytes] = []
        for start in range(0, len(texts), _LOCAL_BATCH):
            found += await run_in_thread(self._embed, texts[start : start + _LOCAL_BATCH])
        return found

    async def close(self) -> None:
        """Do nothing; there is no resource to close."""

    def _embed(self, texts: Sequence[str]) -> list[bytes]:
        if self._loaded is None:
            self._loaded = _VectorTable(self._folder)
        return self._loaded.vectors(texts)


def _package_folder() -> Path:
    found = importlib.util.find_spec("wordllama")
    locations = found.submodule_search_locations if found is not None else None
    if not locations or importlib.util.find_spec("tokenizers") is None:
        raise ConfigError(MISSING_EXTRA)
    return Path(locations[0])


class _VectorTable:
    """The vector table, memory-mapped from the file."""

    def __init__(self, folder: Path) -> None:
        import numpy
        from tokenizers import Tokenizer

        self._np = numpy
        self._tokenizer: Any = Tokenizer.from_file(str(folder / _TOKENIZER))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._table: Any = _read_table(folder / _WEIGHTS).astype(numpy.float32)

    def vectors(self, texts: Sequence[str]) -> list[bytes]:
        encoded = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [self._mean(each.ids) for each in encoded]

    def _mean(self, ids: list[int]) -> bytes:
        np = self._np
        if not ids:
            return b""
        mean = self._table[ids].mean(axis=0)
        length = float(np.linalg.norm(mean))
        return (mean / length).astype(np.float16).tobytes() if length > 0 else b""


class _Tensor(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: list[int]


def _read_table(path: Path) -> Any:
    """Read the single table of a safetensors file: header length in eight bytes, JSON header, data."""
    import numpy

    with path.open("rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    size = int.from_bytes(content[:8], "little")
    header = msgspec.json.decode(content[8 : 8 + size], type=dict[str, msgspec.Raw])
    tensor = msgspec.json.decode(header["embedding.weight"], type=_Tensor)
    if tensor.dtype != "F16":
        raise ConfigError(f"{path}: expected F16 data, got {tensor.dtype}; is this another version of wordllama?")
    begin, end = (8 + size + offset for offset in tensor.data_offsets)
    return numpy.frombuffer(content, numpy.float16, (end - begin) // 2, begin).reshape(tensor.shape)


class _EmbeddingItem(msgspec.Struct):
    index: int
    embedding: list[float]


class _EmbeddingResponse(msgspec.Struct):
    data: list[_EmbeddingItem]


class EndpointEmbedder:
    """Calls `POST base_url/embeddings` in batches, with retries."""

    def __init__(self, name: str, *, base_url: str, key: Secret | None = None) -> None:
        self.model = f"{base_url.rstrip('/')}#{name}"
        self._name = name
        self._url = f"{base_url.rstrip('/')}/embeddings"
        self._key = key
        self._http = HttpClient()
        self._headers()  # checks the key

    def _headers(self) -> RequestHeaders:
        """Return the headers of a request. They are not kept, because they carry the key."""
        headers = RequestHeaders({"Content-Type": "application/json", "Accept": "application/json"})
        if self._key is not None:
            headers["Authorization"] = f"Bearer {header_value(self._key, 'embeddings')}"
        return headers

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        found: list[bytes] = []
        for start in range(0, len(texts), _ENDPOINT_BATCH):
            batch = texts[start : start + _ENDPOINT_BATCH]
            found += await self._embed_batch([text[:_MAX_CHARACTERS] for text in batch])
        return found

    async def close(self) -> None:
        await self._http.close()

    async def _embed_batch(self, texts: list[str]) -> list[bytes]:
        nonempty = [text for text in texts if text.strip()]
        vectors = iter(await self._request_with_retries(nonempty) if nonempty else [])
        return [next(vectors) if text.strip() else b"" for text in texts]

    async def _request_with_retries(self, texts: list[str]) -> list[bytes]:
        for attempt in range(_RETRIES):
            try:
                return await self._request(texts)
            except ProviderError as error:
                if error.kind not in _RETRIABLE:
                    raise
                delay = backoff(attempt, _FIRST_DELAY, factor=3.0)
                await asyncio.sleep(delay if error.retry_after is None else min(error.retry_after, 60.0))
        return await self._request(texts)

    async def _request(self, texts: list[str]) -> list[bytes]:
        body = encode({"model": self._name, "input": texts, "encoding_format": "float"})
        try:
            async with self._http.request("POST", self._url, self._headers(), body) as response:
                if response.status != 200:
                    raise classify_response(response.status, await read_error(response), response.headers)
                return _decode_vectors(await response.read_all(_MAX_RESPONSE), len(texts))
        except ProviderError as error:
            remove_key(error, self._key)
            raise


def _decode_vectors(content: bytes, count: int) -> list[bytes]:
    try:
        items = sorted(msgspec.json.decode(content, type=_EmbeddingResponse).data, key=lambda item: item.index)
        if [item.index for item in items] != list(range(count)):
            raise ProviderError(f"expected {count} vectors, got {len(items)}", "protocol")
        return [_pack_vector(item.embedding) for item in items]
    except (msgspec.DecodeError, struct.error, OverflowError) as error:
        raise ProviderError(f"invalid embeddings response: {error}", "protocol") from error


def _pack_vector(numbers: list[float]) -> bytes:
    """Normalise to unit length and pack as 16-bit floats."""
    length = sum(number * number for number in numbers) ** 0.5
    return struct.pack(f"<{len(numbers)}e", *(number / length for number in numbers)) if length > 0 else b""
