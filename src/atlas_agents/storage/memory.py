"""In-memory store: SQLite on `:memory:`, for tests, examples and programs that keep nothing."""

import sqlite3
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atlas_agents.core.aio import SYSTEM_CLOCK, Clock
from atlas_agents.core.store import Hit, Where, Write
from atlas_agents.storage.sql.reads import SqlReads
from atlas_agents.storage.sql.tables import Query, Row, WriteContext
from atlas_agents.storage.sql.text_search import search_sqlite
from atlas_agents.storage.sql.writes import apply_writes
from atlas_agents.storage.sqlite import roll_back, run_steps
from atlas_agents.storage.sqlite_files import open_memory, translate_error

_NAME = Path(":memory:")


class MemoryStore(SqlReads):
    """Store in memory. It works without `open`, keeps its rows after `close`, and loses them with the object.

    Statements run on the calling thread: there is no disk to wait for.

    Args:
        clock: Source of time; a `VirtualClock` in tests.
    """

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        context = WriteContext(tenant, int(self._clock.time() * 1000))
        with self._lock:
            connection = self._connect()
            try:
                connection.execute("BEGIN")
                results = run_steps(connection, apply_writes(context, writes))
                connection.execute("COMMIT")
            except BaseException as error:
                roll_back(connection)
                if isinstance(error, sqlite3.Error):
                    raise translate_error(error, _NAME) from error
                raise
        return results

    async def fetch(self, query: Query) -> list[Row]:
        with self._lock:
            try:
                return self._connect().execute(query.sql, query.values).fetchall()
            except sqlite3.Error as error:
                raise translate_error(error, _NAME) from error

    async def search_text(self, tenant: str, where: Where, words: Sequence[str], *, limit: int = 50) -> list[Hit]:
        return await search_sqlite(self.search, tenant, where, words, limit)

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = open_memory()
            weakref.finalize(self, self._connection.close)
        return self._connection
