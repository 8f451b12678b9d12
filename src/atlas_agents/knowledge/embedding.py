"""From a text to a vector: the embedder that comes with the extra `local`, on this machine and without a network.

numpy and the tokenizer are imported with the first text, not before.
"""

import importlib.util
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from atlas_agents.core.calling import in_thread
from atlas_agents.core.errors import ConfigError

_AT_ONCE = 256
_WEIGHTS = "weights/l2_supercat_256.safetensors"
_TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"
MISSING = "searching by meaning needs an extra: pip install 'atlas-agents[local]', or set `embeddings` to a model"


class Embedder(Protocol):
    """Makes vectors of 16-bit floats. `model` is kept beside each of them: only those of one model are compared."""

    @property
    def model(self) -> str: ...

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """A vector for each text; an empty one for a text that says nothing."""
        ...

    async def close(self) -> None: ...


class LocalEmbedder:
    """The vectors of WordLlama: each token of a language model has one, and a text has their mean.

    Its weights lie in the wheel of that name. They are read here, since its own code loads a client for a hub first.
    """

    model = "wordllama/l2-supercat-256"

    def __init__(self) -> None:
        self._folder = _folder()
        self._loaded: _Words | None = None

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        found: list[bytes] = []
        for start in range(0, len(texts), _AT_ONCE):
            found += await in_thread(self._embed, texts[start : start + _AT_ONCE])
        return found

    async def close(self) -> None:
        """There is nothing to close."""

    def _embed(self, texts: Sequence[str]) -> list[bytes]:
        if self._loaded is None:
            self._loaded = _Words(self._folder)
        return self._loaded.vectors(texts)


def _folder() -> Path:
    found = importlib.util.find_spec("wordllama")
    places = found.submodule_search_locations if found is not None else None
    if not places or importlib.util.find_spec("tokenizers") is None:
        raise ConfigError(MISSING)
    return Path(places[0])


class _Words:
    """A vector for each token, read from the file when it is used."""

    def __init__(self, folder: Path) -> None:
        import numpy
        from tokenizers import Tokenizer

        self._np = numpy
        self._tokenizer: Any = Tokenizer.from_file(str(folder / _TOKENIZER))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._table: Any = _table(folder / _WEIGHTS).astype(numpy.float32)

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


def _table(path: Path) -> Any:
    """The one table of a safetensors file: eight bytes with the length of its head, the head as JSON, the numbers."""
    import numpy

    with path.open("rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    size = int.from_bytes(content[:8], "little")
    head = msgspec.json.decode(content[8 : 8 + size], type=dict[str, msgspec.Raw])
    tensor = msgspec.json.decode(head["embedding.weight"], type=_Tensor)
    if tensor.dtype != "F16":
        raise ConfigError(f"{path} holds {tensor.dtype} numbers, and F16 were expected: another version of wordllama?")
    begin, end = (8 + size + offset for offset in tensor.data_offsets)
    return numpy.frombuffer(content, numpy.float16, (end - begin) // 2, begin).reshape(tensor.shape)
