"""The store on Postgres: many processes, one truth.

A commit takes the lock of its tenant first, so that the commits of one tenant happen one after the other wherever they
come from: counters are exact, chains have no gaps, and no two commits can wait for each other. To make up for it, the
commits of a tenant that wait in this process share a transaction, as on SQLite.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import psycopg
from psycopg_pool import AsyncConnectionPool

from atlas_agents.core.clock import SYSTEM_CLOCK, Clock
from atlas_agents.core.errors import StoreError
from atlas_agents.core.shelves import Hit, PutDocument, Where
from atlas_agents.core.store import DropSession, StoredMessage, Write
from atlas_agents.stores import shelf_statements as shelf
from atlas_agents.stores.histories import Histories
from atlas_agents.stores.matching import postgres_matching
from atlas_agents.stores.postgres_line import Connection
from atlas_agents.stores.postgres_session import (
    CONNECTING,
    connect,
    fault,
    is_lost,
    migrate,
    rows_of,
    set_up,
)
from atlas_agents.stores.postgres_vectors import ensure_index, find_extension
from atlas_agents.stores.postgres_writer import Beside, Pool, Writer, prune_tokens
from atlas_agents.stores.query import Query, Row, Vector, query
from atlas_agents.stores.reads import SqlReads
from atlas_agents.stores.seal import seal_of
from atlas_agents.stores.words import on_shelf

_PAUSE = 0.1


class PostgresStore(SqlReads):
    """All tables live in one Postgres schema of their own. A lost connection is made anew for up to `patience` seconds;
    then callers are told `StoreLost`, and the next call tries again. So they are of a server that is there and has not
    answered for `answer_timeout` seconds, which must be more than the `busy_timeout` that a lock may be waited for.
    Where the server has `pgvector`, it compares vectors; else this process does. What is to happen together with each
    commit, or not at all, is done by `beside`. With `histories` a conversation that was read before is not read again,
    but for what is new in it."""

    def __init__(
        self,
        url: str,
        *,
        schema: str = "atlas",
        connections: int = 8,
        patience: float = 5.0,
        busy_timeout: float = 5.0,
        answer_timeout: float = 10.0,
        clock: Clock = SYSTEM_CLOCK,
        pgvector: bool = True,
        beside: Beside | None = None,
        histories: Histories | None = None,
    ) -> None:
        super().__init__()
        if not schema.isidentifier():
            raise StoreError(f"{schema!r} cannot be the name of a Postgres schema")
        if answer_timeout <= busy_timeout:
            raise StoreError(
                "the answer_timeout must be longer than the busy_timeout, or every lock is taken for a loss"
            )
        self._url = url
        self._schema = schema
        self._connections = max(2, connections)
        self._patience = patience
        self._busy_timeout = busy_timeout
        self._answer_timeout = answer_timeout
        self._clock = clock
        self._pgvector = pgvector
        self._beside = beside
        self._histories = histories
        self._vectors_in: str | None = None
        self._indexed: dict[tuple[str, int], bool] = {}
        self._open: tuple[Pool, Writer] | None = None

    @property
    def transactions(self) -> int:
        """How often this process has committed; fewer than the commits it carried, when they came together."""
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
            raise fault(error) from error
        pool: Pool = AsyncConnectionPool(
            self._url,
            connection_class=Connection,
            kwargs=CONNECTING,
            configure=self._configure,
            min_size=1,
            max_size=self._connections,
            reconnect_timeout=1.0,
            open=False,
            name="atlas-postgres",
        )
        await pool.open()
        self._open = pool, Writer(pool, self._schema, self._clock, self._patience, self._beside)
        if self._histories is not None and self._histories.shared is not None:
            try:
                await self._histories.shared.open(partial(seal_of, self))
            except BaseException:
                await self.close()
                raise

    async def close(self) -> None:
        """Finish what was asked, then hang up."""
        if self._open is not None:
            pool, writer = self._open
            self._open = None
            await writer.finish()
            if self._histories is not None and self._histories.shared is not None:
                await self._histories.shared.close()
            await pool.close()

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        for write in writes:
            if isinstance(write, PutDocument) and write.passages and (vector := write.passages[0].vector):
                await self._is_indexed(write.document.model, len(vector) // 2)  # it is made while there is little in it
        results = await self._opened()[1].commit(tenant, writes)
        if self._histories is not None:
            for write in writes:
                if isinstance(write, DropSession):
                    self._histories.drop(tenant, write.key)
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
        if self._histories is not None and after == 0 and before is None and limit is None:
            return await self._histories.read(self.fetch, tenant, session)
        return await super().messages(tenant, session, after=after, before=before, limit=limit, last=last)

    async def fetch(self, query: Query) -> list[Row]:
        return await self._rows(query)

    async def search(self, query: Query) -> list[Row]:
        """Planned anew each time: whether an index helps depends on the words that are asked for."""
        return await self._rows(query, prepare=False)

    async def _rows(self, query: Query, *, prepare: bool | None = None) -> list[Row]:
        pool, _ = self._opened()
        end = self._clock.monotonic() + self._patience
        while True:
            try:
                async with pool.connection(timeout=1.0) as connection:
                    return await rows_of(connection.cursor(), query, prepare=prepare)
            except psycopg.Error as error:
                if not is_lost(error) or self._clock.monotonic() >= end:
                    raise fault(error) from error
            await self._clock.sleep(_PAUSE)

    @property
    def has_pgvector(self) -> bool:
        """Whether the server compares vectors; else this process does, with all of them in memory."""
        return self._vectors_in is not None

    async def matching(self, tenant: str, where: Where, words: Sequence[str], *, limit: int = 50) -> list[Hit]:
        return await postgres_matching(self.search, tenant, where, words, limit)

    async def nearest(self, tenant: str, where: Where, model: str, vector: bytes, *, limit: int = 50) -> list[Hit]:
        dimensions = len(vector) // 2
        if not await self._is_indexed(model, dimensions):
            return await super().nearest(tenant, where, model, vector, limit=limit)
        statement = shelf.postgres_nearest(dimensions)
        values = {"model": model, "vector": Vector(vector), "limit": max(limit, 0)}
        rows = await self.search(query(tenant, statement, **on_shelf(where), **values))
        hits = [Hit(id, score) for id, score in rows]
        return sorted(hits, key=lambda hit: (-hit.score, hit.passage))  # the index leaves the order of equals open

    async def _is_indexed(self, model: str, dimensions: int) -> bool:
        if self._vectors_in is None:
            return False
        if (model, dimensions) not in self._indexed:
            try:
                async with self._opened()[0].connection(timeout=1.0) as connection:
                    self._indexed[model, dimensions] = await ensure_index(connection, model, dimensions)
            except psycopg.Error as error:
                raise fault(error) from error
        return self._indexed[model, dimensions]

    async def _configure(self, connection: Connection) -> None:
        await set_up(connection, self._schema, self._busy_timeout, self._answer_timeout, self._vectors_in)

    def _opened(self) -> tuple[Pool, Writer]:
        if self._open is None:
            raise StoreError("the store is not open")
        return self._open
