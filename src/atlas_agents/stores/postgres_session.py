"""A session with Postgres: how it is set up, how the schema comes up to date, and what its errors mean."""

import re
from functools import cache
from typing import Any, TypeAlias

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow

from atlas_agents.core.errors import StoreBusy, StoreError, StoreFull, StoreLost
from atlas_agents.stores.migrations import POSTGRES, pending
from atlas_agents.stores.postgres_line import Connection
from atlas_agents.stores.postgres_vectors import VectorDumper
from atlas_agents.stores.query import Query, Row, Vector

Cursor: TypeAlias = psycopg.AsyncCursor[TupleRow]

CONNECTING: dict[str, Any] = {
    "autocommit": True,
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "atlas-agents",
}
_NAME = re.compile(r":(\w+)")
_MIGRATING = 0x41544C53
_STEP_TIMEOUT = 600.0
"""Seconds that a step of the schema may take: it may have to read a whole table."""
_LOST = ("08", "57P", "53300", "25P03")
_BUSY = ("55P03", "40P01", "40001", "57014")
_FULL = ("53100", "53200", "58030")
_DENIED = ("28", "3D000", "42501")
_SOON = re.compile("starting up|shutting down|recovery|too many|connection slots")


async def connect(url: str) -> Connection:
    """A session outside of the pool: it says at once, and in one line, why it cannot be had."""
    try:
        conninfo_to_dict(url)
    except psycopg.Error:  # its words would repeat the address, and the password in it
        raise StoreError("the address of Postgres cannot be read: it looks like postgresql://user@host/name") from None
    return await Connection.connect(url, **CONNECTING)


async def set_up(
    connection: Connection, schema: str, busy_timeout: float, answer_timeout: float, vectors: str | None = None
) -> None:
    """Settings of every session. A worker that was paused inside a transaction loses it, and with it its lock."""
    connection.answer_timeout = answer_timeout
    connection.adapters.register_dumper(Vector, VectorDumper)
    path = f'"{schema}"' if vectors is None else f'"{schema}", "{vectors}"'
    milliseconds = str(max(1, int(busy_timeout * 1000)))
    await connection.execute(
        """SELECT set_config('search_path', %(schema)s, false), set_config('lock_timeout', %(wait)s, false),
        set_config('idle_in_transaction_session_timeout', '10000', false),
        CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
        THEN set_config('synchronous_commit', 'on', false) END""",
        {"schema": path, "wait": milliseconds},
    )
    if vectors is not None:  # an index that gives too few that are ours goes on looking
        await connection.execute("SELECT set_config('hnsw.iterative_scan', 'strict_order', false)")


async def migrate(connection: Connection, schema: str) -> None:
    """Bring the schema up to date in one transaction; other processes wait and find nothing to do."""
    name = sql.Identifier(schema)
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATING,))
        found = await connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,))
        if not await found.fetchone():
            await connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))
        await connection.execute("CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)")
        row = await (await connection.execute("SELECT max(version) FROM schema_version")).fetchone()
        version: int = row[0] if row and row[0] is not None else 0
        connection.answer_timeout = _STEP_TIMEOUT
        for number, statements in pending(version, f"the Postgres schema {schema}", POSTGRES):
            for statement in statements:
                await connection.execute(statement.encode())
            await connection.execute("INSERT INTO schema_version VALUES (%s)", (number,))


async def rows_of(cursor: Cursor, query: Query, *, prepare: bool | None = None) -> list[Row]:
    """Execute one query of ours."""
    await cursor.execute(_translated(query.sql), query.values, prepare=prepare)
    return [] if cursor.description is None else await cursor.fetchall()


@cache
def _translated(statement: str) -> bytes:
    """`:name` as Postgres' driver writes it; our statements contain neither casts nor per cent signs."""
    return _NAME.sub(r"%(\1)s", statement).encode()


def fault(error: psycopg.Error) -> StoreError:
    """What Postgres says, in our words: whether to try again, to make room or to look at the server."""
    code, line = error.sqlstate or "", _line(error)
    if code.startswith(_DENIED) or (not code and "FATAL: " in line and not _SOON.search(line)):
        return StoreError(f"Postgres does not let us in: {line}")
    if is_lost(error):
        return StoreLost(f"Postgres cannot be reached ({line}); nothing was written, try again")
    if code.startswith(_BUSY):
        return StoreBusy(f"Postgres is busy with another process ({line}); nothing was written, try again")
    if code.startswith(_FULL):
        return StoreFull(f"Postgres has no room ({line}); nothing was written, make room on its disk")
    if code == errors.ReadOnlySqlTransaction.sqlstate:
        return StoreError("Postgres is read-only: connect to the primary server")
    return StoreError(f"Postgres cannot be used: {line}")


def is_lost(error: psycopg.Error) -> bool:
    """The session is gone or could not be had; another one may do better."""
    code = error.sqlstate
    if code is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return code.startswith(_LOST)


def _line(error: psycopg.Error) -> str:
    words = error.diag.message_primary or str(error) or type(error).__name__
    return " ".join(words.split())[:300]
