"""Postgres store: several processes share one database.

Each commit holds an advisory lock of its tenant, so the commits of a tenant run one after the other across all
processes: counters are exact, chains have no gaps, and deadlocks between commits are impossible. To compensate, waiting
commits of a tenant in one process share a transaction (group commit), as on SQLite.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool

from atlas_agents.core.aio import SYSTEM_CLOCK, Clock
from atlas_agents.core.errors import StoreError
from atlas_agents.core.store import DropSession, Hit, PutDocument, StoredMessage, Where, Write
from atlas_agents.storage.history_cache import HistoryCache, load_shared_secret
from atlas_agents.storage.postgres_connection import (
    CONNECT_OPTIONS,
    Connection,
    configure,
    connect,
    ensure_index,
    execute,
    find_extension,
    is_lost,
    migrate,
    translate_error,
)
from atlas_agents.storage.postgres_writer import Pool, TransactionHook, Writer, prune_tokens
from atlas_agents.storage.sql import statements as sql
from atlas_agents.storage.sql.query import Query, Row, Vector, bind
from atlas_agents.storage.sql.reads import SqlReads
from atlas_agents.storage.sql.text_search import scope_values, search_postgres

_RETRY_DELAY = 0.1


class PostgresStore(SqlReads):
    """All tables live in one Postgres schema.

    A lost connection is retried for up to `retry_timeout` seconds; then callers get `StoreLost`, and the next call
    tries again. A server that has not answered for `answer_timeout` seconds counts as lost; this must exceed
    `busy_timeout`, the time to wait for a lock. Vectors are compared by `pgvector` if the server has it, otherwise by
    this process. `transaction_hook` does further work in the transaction of each commit. With `history_cache` a
    conversation that was read before is not read again.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str = "atlas",
        connections: int = 8,
        retry_timeout: float = 5.0,
        busy_timeout: float = 5.0,
        answer_timeout: float = 10.0,
        clock: Clock = SYSTEM_CLOCK,
        pgvector: bool = True,
        transaction_hook: TransactionHook | None = None,
        history_cache: HistoryCache | None = None,
    ) -> None:
        super().__init__()
        if not schema.isidentifier():
            raise StoreError(f"invalid Postgres schema {schema!r}: expected an identifier")
        if answer_timeout <= busy_timeout:
            raise StoreError(f"answer_timeout must exceed busy_timeout ({busy_timeout:g} s), got {answer_timeout:g} s")
        self._url = url
        self._schema = schema
        self._connections = max(2, connections)
        self._retry_timeout = retry_timeout
        self._busy_timeout = busy_timeout
        self._answer_timeout = answer_timeout
        self._clock = clock
        self._pgvector = pgvector
        self._transaction_hook = transaction_hook
        self._history_cache = history_cache
        self._vectors_in: str | None = None
        self._indexed: dict[tuple[str, int], bool] = {}
        self._open: tuple[Pool, Writer] | None = None

    @property
    def transactions(self) -> int:
        """Transactions of this process so far; fewer than the commits if some shared one."""
        return self._opened()[1].transactions

    async def open(self) -> None:
        if self._open is not None:
            raise StoreError("the store is open already")
        try:
            async with await connect(self._url) as connection:
                await self._configure(connection)
                await migrate(connection, self._schema)
                await prune_tokens(connection)
                self._vectors_in = await find_extension(connection) if self._pgvector else None
        except psycopg.Error as error:
            raise translate_error(error) from error
        pool: Pool = AsyncConnectionPool(
            self._url,
            connection_class=Connection,
            kwargs=CONNECT_OPTIONS,
            configure=self._configure,
            min_size=1,
            max_size=self._connections,
            reconnect_timeout=1.0,
            open=False,
            name="atlas-postgres",
        )
        await pool.open()
        self._open = pool, Writer(pool, self._schema, self._clock, self._retry_timeout, self._transaction_hook)
        if self._history_cache is not None and self._history_cache.shared is not None:
            try:
                await self._history_cache.shared.open(partial(load_shared_secret, self))
            except BaseException:
                await self.close()
                raise

    async def close(self) -> None:
        """Finish all commits that were submitted, then disconnect."""
        if self._open is not None:
            pool, writer = self._open
            self._open = None
            await writer.finish()
            if self._history_cache is not None and self._history_cache.shared is not None:
                await self._history_cache.shared.close()
            await pool.close()

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        for write in writes:
            if isinstance(write, PutDocument) and write.passages and (vector := write.passages[0].vector):
                # Building the index is fast while the table is small.
                await self._is_indexed(write.document.model, len(vector) // 2)
        results = await self._opened()[1].commit(tenant, writes)
        if self._history_cache is not None:
            for write in writes:
                if isinstance(write, DropSession):
                    self._history_cache.drop(tenant, write.key)
        return results

    async def messages(
        self,
        tenant: str,
        session: str,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int | None = None,
        last: bool = False,
    ) -> list[StoredMessage]:
        if self._history_cache is not None and after == 0 and before is None and limit is None:
            return await self._history_cache.read(self.fetch, tenant, session)
        return await super().messages(tenant, session, after=after, before=before, limit=limit, last=last)

    async def fetch(self, query: Query) -> list[Row]:
        return await self._rows(query)

    async def search(self, query: Query) -> list[Row]:
        """Not prepared: the best plan depends on the values."""
        return await self._rows(query, prepare=False)

    async def _rows(self, query: Query, *, prepare: bool | None = None) -> list[Row]:
        pool, _ = self._opened()
        end = self._clock.monotonic() + self._retry_timeout
        while True:
            try:
                async with pool.connection(timeout=1.0) as connection:
                    return await execute(connection.cursor(), query, prepare=prepare)
            except psycopg.Error as error:
                if not is_lost(error) or self._clock.monotonic() >= end:
                    raise translate_error(error) from error
            await self._clock.sleep(_RETRY_DELAY)

    @property
    def has_pgvector(self) -> bool:
        """Whether the server compares vectors; otherwise this process does, with all of them in memory."""
        return self._vectors_in is not None

    async def search_text(self, tenant: str, where: Where, words: Sequence[str], *, limit: int = 50) -> list[Hit]:
        return await search_postgres(self.search, tenant, where, words, limit)

    async def find_nearest(self, tenant: str, where: Where, model: str, vector: bytes, *, limit: int = 50) -> list[Hit]:
        dimensions = len(vector) // 2
        if not await self._is_indexed(model, dimensions):
            return await super().find_nearest(tenant, where, model, vector, limit=limit)
        statement = sql.postgres_nearest(dimensions)
        values = {"model": model, "vector": Vector(vector), "limit": max(limit, 0)}
        rows = await self.search(bind(tenant, statement, **scope_values(where), **values))
        hits = [Hit(id, score) for id, score in rows]
        return sorted(hits, key=lambda hit: (-hit.score, hit.passage))  # the index does not define the order of ties

    async def _is_indexed(self, model: str, dimensions: int) -> bool:
        if self._vectors_in is None:
            return False
        if (model, dimensions) not in self._indexed:
            try:
                async with self._opened()[0].connection(timeout=1.0) as connection:
                    self._indexed[model, dimensions] = await ensure_index(connection, model, dimensions)
            except psycopg.Error as error:
                raise translate_error(error) from error
        return self._indexed[model, dimensions]

    async def _configure(self, connection: Connection) -> None:
        await configure(connection, self._schema, self._busy_timeout, self._answer_timeout, self._vectors_in)

    def _opened(self) -> tuple[Pool, Writer]:
        if self._open is None:
            raise StoreError("the store is not open")
        return self._open
