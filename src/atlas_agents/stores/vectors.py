"""All vectors of a library in memory, compared at once and exactly; for stores whose database cannot do it itself.

Nothing has to tell it of changes: each search first looks at the library's version, and reads what is new.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from atlas_agents.core.calling import in_thread
from atlas_agents.core.errors import StoreError
from atlas_agents.core.shelves import Hit

_PAGE = 5_000
_MOST_BYTES = 1 << 30
"""So much is kept in memory; of more, what was searched longest ago goes first."""


class Library(NamedTuple):
    """What is searched together: the passages of a kind, with vectors of one model."""

    tenant: str
    kind: str
    model: str


class Shelves(Protocol):
    """Where the vectors are kept."""

    async def library(self, library: Library) -> tuple[int, int]:
        """Its version and how many vectors it has."""
        ...

    async def vectors(self, library: Library, after: int, limit: int) -> Sequence[tuple[int, str, Any]]:
        """Number, shelf and vector of the passages after one of this number."""
        ...

    async def vector_ids(self, library: Library) -> list[int]: ...


class Vectors:
    """A matrix for each library that was searched."""

    def __init__(self, shelves: Shelves) -> None:
        self._shelves = shelves
        self._held: OrderedDict[Library, _Matrix] = OrderedDict()

    async def nearest(self, library: Library, shelf: str | None, vector: bytes, limit: int) -> list[Hit]:
        """The best first."""
        version, count = await self._shelves.library(library)
        if not count or limit < 1:
            return []
        matrix = self._held.get(library)
        if matrix is None:
            matrix = self._held[library] = _Matrix(len(vector) // 2)
        self._held.move_to_end(library)
        async with matrix.lock:
            if matrix.version != version:
                await self._refresh(library, matrix)
            wanted = matrix.wanted(vector)
            hits = await in_thread(matrix.nearest, shelf, wanted, limit)
        self._evict()
        return hits

    async def _refresh(self, library: Library, matrix: "_Matrix") -> None:
        version, _ = await self._shelves.library(library)
        while rows := await self._shelves.vectors(library, matrix.last, _PAGE):
            await in_thread(matrix.add, rows)
        after, count = await self._shelves.library(library)
        if len(matrix) != count or after != version:
            await in_thread(matrix.keep, await self._shelves.vector_ids(library))
        matrix.version = version

    def _evict(self) -> None:
        while len(self._held) > 1 and sum(matrix.size for matrix in self._held.values()) > _MOST_BYTES:
            self._held.popitem(last=False)


class _Matrix:
    """Rows of unit length, in the order of the passages' numbers; room is made for twice as many when it is full."""

    def __init__(self, width: int) -> None:
        import numpy

        self._np = numpy
        self.lock = asyncio.Lock()
        self.version = -1
        self._count = 0
        self._rows = numpy.zeros((64, width), numpy.float32)
        self._ids = numpy.zeros(64, numpy.int64)
        self._shelves = numpy.zeros(64, numpy.int32)
        self._names: dict[str, int] = {}

    def __len__(self) -> int:
        return self._count

    @property
    def last(self) -> int:
        return int(self._ids[self._count - 1]) if self._count else 0

    @property
    def size(self) -> int:
        return self._rows.nbytes

    def wanted(self, vector: bytes) -> Any:
        return self._unit(self._read([vector]))[0]

    def add(self, rows: Sequence[tuple[int, str, Any]]) -> None:
        end = self._count + len(rows)
        self._make_room(end)
        self._rows[self._count : end] = self._unit(self._read([vector for _, _, vector in rows]))
        self._ids[self._count : end] = [id for id, _, _ in rows]
        self._shelves[self._count : end] = [self._names.setdefault(name, len(self._names)) for _, name, _ in rows]
        self._count = end

    def keep(self, ids: Sequence[int]) -> None:
        """Forget all others."""
        stays = self._np.isin(self._ids[: self._count], self._np.asarray(ids, self._np.int64))
        for name in ("_rows", "_ids", "_shelves"):
            setattr(self, name, getattr(self, name)[: self._count][stays])
        self._count = len(self._ids)

    def nearest(self, shelf: str | None, wanted: Any, limit: int) -> list[Hit]:
        np = self._np
        ids, rows = self._ids[: self._count], self._rows[: self._count]
        if shelf is not None:
            places = np.flatnonzero(self._shelves[: self._count] == self._names.get(shelf, -1))
            ids, rows = ids[places], rows[places]
        scores = rows @ wanted
        best = np.argpartition(-scores, limit - 1)[:limit] if limit < len(scores) else np.arange(len(scores))
        best = best[np.lexsort((ids[best], -scores[best]))]
        return [Hit(int(ids[place]), float(scores[place])) for place in best]

    def _read(self, vectors: Sequence[Any]) -> Any:
        """16-bit floats, or where a database gives numbers, those."""
        np = self._np
        width = self._rows.shape[1]
        if vectors and isinstance(vectors[0], bytes):
            if any(len(vector) != width * 2 for vector in vectors):
                raise StoreError("the vectors of one model differ in length: ingest all documents again")
            return np.frombuffer(b"".join(vectors), np.float16).astype(np.float32).reshape(-1, width)
        return np.asarray(vectors, np.float32)

    def _unit(self, rows: Any) -> Any:
        return rows / self._np.maximum(self._np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)

    def _make_room(self, count: int) -> None:
        np = self._np
        if count <= len(self._ids):
            return
        room = max(count, 2 * len(self._ids))
        for name in ("_rows", "_ids", "_shelves"):
            old = getattr(self, name)
            new = np.zeros((room, *old.shape[1:]), old.dtype)
            new[: self._count] = old[: self._count]
            setattr(self, name, new)
