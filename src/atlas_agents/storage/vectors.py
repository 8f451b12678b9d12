"""Exact vector search in memory, for databases that cannot compare vectors themselves.

There is no invalidation: each search checks the version of the library and reads the vectors that are new.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from atlas_agents.core.aio import in_thread
from atlas_agents.core.errors import StoreError
from atlas_agents.core.store import Hit

_PAGE = 5_000
_MAX_BYTES = 1 << 30
"""Memory limit; the least recently searched libraries are evicted first."""


class Library(NamedTuple):
    """The unit of search: passages of one kind with vectors of one model."""

    tenant: str
    kind: str
    model: str


class VectorSource(Protocol):
    """Storage of the vectors."""

    async def library(self, library: Library) -> tuple[int, int]:
        """Version and number of vectors."""
        ...

    async def vectors(self, library: Library, after: int, limit: int) -> Sequence[tuple[int, str, Any]]:
        """Id, collection and vector of the passages with ids above `after`."""
        ...

    async def vector_ids(self, library: Library) -> list[int]: ...


class Vectors:
    """LRU cache of one matrix per library."""

    def __init__(self, source: VectorSource) -> None:
        self._source = source
        self._matrices: OrderedDict[Library, _Matrix] = OrderedDict()

    async def search(self, library: Library, collection: str | None, vector: bytes, limit: int) -> list[Hit]:
        """Best matches first."""
        version, count = await self._source.library(library)
        if not count or limit < 1:
            return []
        matrix = self._matrices.get(library)
        if matrix is None:
            matrix = self._matrices[library] = _Matrix(len(vector) // 2)
        self._matrices.move_to_end(library)
        async with matrix.lock:
            if matrix.version != version:
                await self._refresh(library, matrix)
            query = matrix.query(vector)
            hits = await in_thread(matrix.search, collection, query, limit)
        self._evict()
        return hits

    async def _refresh(self, library: Library, matrix: "_Matrix") -> None:
        version, _ = await self._source.library(library)
        while rows := await self._source.vectors(library, matrix.last, _PAGE):
            await in_thread(matrix.add, rows)
        after, count = await self._source.library(library)
        if len(matrix) != count or after != version:
            await in_thread(matrix.retain, await self._source.vector_ids(library))
        matrix.version = version

    def _evict(self) -> None:
        while len(self._matrices) > 1 and sum(matrix.size for matrix in self._matrices.values()) > _MAX_BYTES:
            self._matrices.popitem(last=False)


class _Matrix:
    """Rows of unit length, ordered by passage id. Capacity doubles when it is full."""

    def __init__(self, width: int) -> None:
        import numpy

        self._np = numpy
        self.lock = asyncio.Lock()
        self.version = -1
        self._count = 0
        self._rows = numpy.zeros((64, width), numpy.float32)
        self._ids = numpy.zeros(64, numpy.int64)
        self._collections = numpy.zeros(64, numpy.int32)
        self._names: dict[str, int] = {}

    def __len__(self) -> int:
        return self._count

    @property
    def last(self) -> int:
        return int(self._ids[self._count - 1]) if self._count else 0

    @property
    def size(self) -> int:
        return self._rows.nbytes

    def query(self, vector: bytes) -> Any:
        return self._unit(self._read([vector]))[0]

    def add(self, rows: Sequence[tuple[int, str, Any]]) -> None:
        end = self._count + len(rows)
        self._grow(end)
        self._rows[self._count : end] = self._unit(self._read([vector for _, _, vector in rows]))
        self._ids[self._count : end] = [id for id, _, _ in rows]
        self._collections[self._count : end] = [self._names.setdefault(name, len(self._names)) for _, name, _ in rows]
        self._count = end

    def retain(self, ids: Sequence[int]) -> None:
        """Remove all other rows."""
        retained = self._np.isin(self._ids[: self._count], self._np.asarray(ids, self._np.int64))
        for name in ("_rows", "_ids", "_collections"):
            setattr(self, name, getattr(self, name)[: self._count][retained])
        self._count = len(self._ids)

    def search(self, collection: str | None, query: Any, limit: int) -> list[Hit]:
        np = self._np
        ids, rows = self._ids[: self._count], self._rows[: self._count]
        if collection is not None:
            indices = np.flatnonzero(self._collections[: self._count] == self._names.get(collection, -1))
            ids, rows = ids[indices], rows[indices]
        scores = rows @ query
        best = np.argpartition(-scores, limit - 1)[:limit] if limit < len(scores) else np.arange(len(scores))
        best = best[np.lexsort((ids[best], -scores[best]))]
        return [Hit(int(ids[index]), float(scores[index])) for index in best]

    def _read(self, vectors: Sequence[Any]) -> Any:
        """Decode vectors: bytes of 16-bit floats, or lists of numbers from Postgres."""
        np = self._np
        width = self._rows.shape[1]
        if vectors and isinstance(vectors[0], bytes):
            if any(len(vector) != width * 2 for vector in vectors):
                raise StoreError("vectors of one model differ in length: ingest all documents again")
            return np.frombuffer(b"".join(vectors), np.float16).astype(np.float32).reshape(-1, width)
        return np.asarray(vectors, np.float32)

    def _unit(self, rows: Any) -> Any:
        return rows / self._np.maximum(self._np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)

    def _grow(self, count: int) -> None:
        np = self._np
        if count <= len(self._ids):
            return
        capacity = max(count, 2 * len(self._ids))
        for name in ("_rows", "_ids", "_collections"):
            old = getattr(self, name)
            new = np.zeros((capacity, *old.shape[1:]), old.dtype)
            new[: self._count] = old[: self._count]
            setattr(self, name, new)
