"""The same cases on Postgres: one database per case, with fault points around commits and inside transactions."""

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg

from atlas_agents.core.aio import Clock
from atlas_agents.core.store import Store, Write
from atlas_agents.storage.postgres import PostgresStore
from atlas_agents.storage.postgres import connection as postgres_connection
from atlas_agents.storage.sql.tables import Query, Row
from crash.faulty_store import commit_with_faults
from crash.process_state import STATE
from crash.runner import run_in_child
from crash.stores import QUERIES, Database, Tables, tables

_CHANGES = ("INSERT", "UPDATE", "DELETE")
_SCHEMA = "atlas"


class FaultyPostgres(PostgresStore):
    """A real store with a fault point before and after each commit."""

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        return await commit_with_faults(super().commit, tenant, writes)


class PostgresDatabase:
    """One Postgres database."""

    def __init__(self, url: str) -> None:
        self._url = url

    def store(self, clock: Clock) -> Store:
        return FaultyPostgres(self._url, schema=_SCHEMA, connections=2, clock=clock)

    def rows(self) -> Tables:
        with psycopg.connect(self._url, options=f"-c search_path={_SCHEMA}") as connection:
            return tables([connection.execute(query).fetchall() for query in QUERIES])


@contextmanager
def postgres() -> Generator[Callable[[], Database]]:
    """Start a server and return a function that creates the database of the next case and removes that of the last."""
    from stores.postgres_server import PostgresServer  # pyrefly: ignore[missing-import] - `stores.py` is in this folder

    _install_faults()
    with PostgresServer() as server, ExitStack() as last:
        migrated = server.made("migrated")
        run_in_child(lambda: migrate(migrated))

        def create() -> Database:
            last.close()
            return PostgresDatabase(last.enter_context(server.copy_of("migrated", f"c{os.urandom(8).hex()}")))

        yield create


async def migrate(url: str) -> None:
    """Create the tables in a new database."""
    store = PostgresStore(url, schema=_SCHEMA)
    await store.open()
    await store.close()


def _install_faults() -> None:
    """Add fault points between the statements of the writer and before its COMMIT."""
    execute = postgres_connection.execute

    async def with_faults(cursor: Any, query: Query, **options: Any) -> list[Row]:
        verb = query.sql.split(None, 1)[0]
        if verb in _CHANGES:
            STATE.points.hit(f"sql {verb}")
        rows = await execute(cursor, query, **options)
        if verb in _CHANGES:
            STATE.points.hit(f"sql after {verb}")
        return rows

    setattr(postgres_connection, "execute", with_faults)  # noqa: B010 - it is another module's
