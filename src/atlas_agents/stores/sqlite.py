"""The store on SQLite: one file, no server, one thread that writes, one that reads and one that searches.

Commits that arrive while another is on its way to the disk are written together in one transaction (group commit),
each in its own savepoint, so that one that fails harms no other. A caller hears of success only after the transaction
that carries its commit is on the disk.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atlas_agents.core.clock import SYSTEM_CLOCK, Clock
from atlas_agents.core.errors import StoreError
from atlas_agents.core.shelves import Hit, Where
from atlas_agents.core.store import Write
from atlas_agents.stores.matching import sqlite_matching
from atlas_agents.stores.query import Query, Row
from atlas_agents.stores.reads import SqlReads
from atlas_agents.stores.sqlite_file import Opening
from atlas_agents.stores.sqlite_threads import Commit, Reader, Writer


class SqliteStore(SqlReads):
    """`must_exist` refuses to make a new database: for a place where there has been one before. `max_pages` (4 KB each)
    keeps the file from filling the disk."""

    def __init__(
        self,
        path: str | Path,
        *,
        must_exist: bool = False,
        max_pages: int | None = None,
        busy_timeout: float = 5.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__()
        self.path = Path(path)
        self._how = Opening(self.path, must_exist, max_pages, busy_timeout)
        self._clock = clock
        self._threads: tuple[Writer, Reader, Reader] | None = None

    @property
    def transactions(self) -> int:
        """How often the writer has committed; fewer than the commits it carried, when they came together."""
        return self._open_threads()[0].transactions

    async def open(self) -> None:
        if self._threads is not None:
            raise StoreError(f"the database {self.path} is open already")
        writer, *readers = Writer(self._how, self._clock), Reader(self._how), Reader(self._how, large=True)
        try:
            for each in (writer, *readers):
                await each.lane.do("open")
        except BaseException:
            for each in (*readers, writer):
                await each.lane.close("close")
            raise
        self._threads = writer, readers[0], readers[1]

    async def close(self) -> None:
        """Finish what was asked, then let go of the file."""
        if self._threads is not None:
            threads, self._threads = self._threads, None
            for each in reversed(threads):
                await each.lane.close("close")

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        return await self._open_threads()[0].lane.do(Commit(tenant, tuple(writes)))

    async def fetch(self, query: Query) -> list[Row]:
        return await self._open_threads()[1].lane.do(query)

    async def search(self, query: Query) -> list[Row]:
        """On a thread of its own, so that no other read waits for it."""
        return await self._open_threads()[2].lane.do(query)

    async def matching(self, tenant: str, where: Where, words: Sequence[str], *, limit: int = 50) -> list[Hit]:
        return await sqlite_matching(self.search, tenant, where, words, limit)

    def _open_threads(self) -> tuple[Writer, Reader, Reader]:
        if self._threads is None:
            raise StoreError(f"the database {self.path} is not open")
        return self._threads
