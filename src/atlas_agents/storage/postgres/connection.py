"""Postgres connections: settings, timeouts, migration, vectors (pgvector), and the mapping of errors."""

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import socket
import struct
from functools import cache
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg import errors, sql
from psycopg.abc import PQGen
from psycopg.adapt import Dumper
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow

from atlas_agents.core.aio import TimeSlices
from atlas_agents.core.errors import StoreBusy, StoreError, StoreFull, StoreLost
from atlas_agents.storage.migrations import check_applied, log_step, pending_steps
from atlas_agents.storage.sql.tables import Query, Row, Vector

logger = logging.getLogger(__name__)
R = TypeVar("R")
Cursor: TypeAlias = psycopg.AsyncCursor[TupleRow]

CONNECT_OPTIONS: dict[str, Any] = {
    "autocommit": True,
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "atlas-agents",
}
_PARAMETER = re.compile(r":(\w+)")
_MIGRATION_LOCK = 0x41544C53
_CREATE_VERSIONS = "CREATE TABLE IF NOT EXISTS schema_versions (version BIGINT PRIMARY KEY, checksum TEXT NOT NULL)"
_READ_VERSIONS = "SELECT version, checksum FROM schema_versions"
_PUT_VERSION = "INSERT INTO schema_versions (version, checksum) VALUES (%s, %s)"
_STEP_TIMEOUT = 600.0
"""Seconds that a migration step may take, since it may scan a whole table."""
_LOST = ("08", "57P", "53300", "25P03")
_BUSY = ("55P03", "40P01", "40001", "57014")
_FULL = ("53100", "53200", "58030")
_REFUSED = ("28", "3D000", "42501")
_STARTING = re.compile("starting up|shutting down|recovery|too many|connection slots")
_MAX_DIMENSIONS = 2000
"""Maximum number of dimensions of a pgvector index."""
_INDEX_TIMEOUT = 600.0
_FLOAT_ARRAY_OID = 1021
_SLICE = 100
"""Rows that are converted without a check of the time."""


class Connection(psycopg.AsyncConnection[TupleRow]):
    """A connection that is closed if the server does not answer within `answer_timeout` seconds.

    TCP keepalives do not detect this: a stopped process keeps its connections, and its kernel acknowledges packets.
    """

    answer_timeout = 10.0

    async def wait(self, gen: PQGen[R], *more: Any, **named: Any) -> R:
        """Wait for the server within the timeout; psycopg sends every request through this method."""
        timed_out = False

        def shut_down() -> None:
            nonlocal timed_out
            timed_out = True
            with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self.fileno())) as connected:
                connected.shutdown(socket.SHUT_RDWR)

        timer = asyncio.get_running_loop().call_later(self.answer_timeout, shut_down)
        try:
            return await super().wait(gen, *more, **named)
        except psycopg.OperationalError as error:
            if timed_out:
                raise psycopg.OperationalError(f"no answer for {self.answer_timeout:g} seconds") from error
            raise
        finally:
            timer.cancel()


async def connect(url: str) -> Connection:
    """Open a connection outside the pool. Unlike the pool, it fails at once, with the reason."""
    try:
        conninfo_to_dict(url)
    except psycopg.Error:  # the original message contains the URL with its password
        raise StoreError("invalid Postgres URL: expected postgresql://user@host/database") from None
    return await Connection.connect(url, **CONNECT_OPTIONS)


async def configure(
    connection: Connection, schema: str, busy_timeout: float, answer_timeout: float, vectors: str | None = None
) -> None:
    """Set the options of a connection, and override settings of the server, database or role.

    The idle timeout ends the transaction of a paused process and frees its lock. Commits wait for the disk, and a
    statement after a lock sees all commits before the lock was acquired.
    """
    connection.answer_timeout = answer_timeout
    connection.adapters.register_dumper(Vector, VectorDumper)
    path = f'"{schema}"' if vectors is None else f'"{schema}", "{vectors}"'
    milliseconds = str(max(1, int(busy_timeout * 1000)))
    await connection.execute(
        """SELECT set_config('search_path', %(schema)s, false), set_config('lock_timeout', %(wait)s, false),
        set_config('idle_in_transaction_session_timeout', '10000', false),
        set_config('default_transaction_isolation', 'read committed', false),
        CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
        THEN set_config('synchronous_commit', 'on', false) END""",
        {"schema": path, "wait": milliseconds},
    )
    if vectors is not None:  # continue the index scan until enough rows match the filter
        await connection.execute("SELECT set_config('hnsw.iterative_scan', 'strict_order', false)")


async def migrate(connection: Connection, schema: str) -> None:
    """Apply pending migrations. Other processes wait and then find none pending."""
    while await _migrate_step(connection, schema):
        pass


async def _migrate_step(connection: Connection, schema: str) -> bool:
    """Apply the next migration in one transaction; return whether more may be pending."""
    where = f"the Postgres schema {schema}"
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
        found = await connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,))
        if not await found.fetchone():
            await connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        await connection.execute(_CREATE_VERSIONS)
        applied = dict(await (await connection.execute(_READ_VERSIONS)).fetchall())
        pending = pending_steps("postgres", max(applied, default=0), where)
        check_applied("postgres", applied, where)
        for step in pending[:1]:
            log_step(f"schema={schema}", step, pending[-1].version)
            connection.answer_timeout = _STEP_TIMEOUT
            await connection.execute(step.sql.encode())
            await connection.execute(_PUT_VERSION, (step.version, step.checksum))
    return len(pending) > 1


async def execute(cursor: Cursor, query: Query, *, prepare: bool | None = None) -> list[Row]:
    """Execute a query and return its rows."""
    await cursor.execute(_translate_parameters(query.sql), query.values, prepare=prepare)
    if cursor.description is None:
        return []
    if cursor.rowcount <= _SLICE:
        return await cursor.fetchall()
    slices, found = TimeSlices(), list[Row]()
    while rows := await cursor.fetchmany(_SLICE):
        found += rows
        await slices.pause()
    return found


async def send(connection: Connection, query: Query) -> Cursor:
    """Send a query on a connection in pipeline mode; `receive` reads its answer."""
    return await connection.execute(_translate_parameters(query.sql), query.values)


async def receive(cursor: Cursor) -> list[Row]:
    """Return the rows of a query that was sent in pipeline mode and returns rows.

    Fetching first sends the rest of the query. `pipeline.sync` would wait for the answer at once, and forever if the
    query exceeds the buffers of the socket.
    """
    return await cursor.fetchall()


@cache
def _translate_parameters(statement: str) -> bytes:
    """Convert `:name` to `%(name)s`. The statements contain neither `::` casts nor percent signs."""
    return _PARAMETER.sub(r"%(\1)s", statement).encode()


def translate_error(error: psycopg.Error) -> StoreError:
    """Map a Postgres error to a `StoreError` with a remedy."""
    code, line = error.sqlstate or "", _one_line(error)
    if code.startswith(_REFUSED) or (not code and "FATAL: " in line and not _STARTING.search(line)):
        return StoreError(f"Postgres refused the connection: {line}")
    if is_lost(error):
        return StoreLost(f"cannot reach Postgres ({line}); nothing was written, try again")
    if code.startswith(_BUSY):
        return StoreBusy(f"Postgres is busy with another process ({line}); nothing was written, try again")
    if code.startswith(_FULL):
        return StoreFull(f"Postgres is out of space ({line}); nothing was written, free some disk space on the server")
    if code == errors.ReadOnlySqlTransaction.sqlstate:
        return StoreError("Postgres is read-only: connect to the primary server")
    return StoreError(f"cannot use Postgres: {line}")


def is_lost(error: psycopg.Error) -> bool:
    """Return whether the connection was lost or refused, so that a new one may succeed."""
    code = error.sqlstate
    if code is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return code.startswith(_LOST)


def is_retried(error: psycopg.Error) -> bool:
    """Return whether a transaction should be retried unchanged, or was refused because a lock was held for too long."""
    return is_lost(error) or error.sqlstate == errors.LockNotAvailable.sqlstate


def _one_line(error: psycopg.Error) -> str:
    message = error.diag.message_primary or str(error) or type(error).__name__
    return " ".join(message.split())[:300]


class VectorDumper(Dumper):
    """Writes a `Vector` as a Postgres array."""

    oid = _FLOAT_ARRAY_OID

    def dump(self, obj: Any) -> bytes:
        numbers = struct.unpack(f"<{len(obj) // 2}e", obj)
        return b"{" + ",".join([f"{number:.6g}" for number in numbers]).encode() + b"}"


async def find_pgvector(connection: Connection) -> str | None:
    """Return the schema of pgvector, and install it if possible; None if this process must compare the vectors."""
    query = """SELECT n.nspname, e.extversion FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
        WHERE e.extname = 'vector'"""
    row = await (await connection.execute(query)).fetchone()
    if row is None:
        try:
            await connection.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
        except psycopg.Error as error:
            reason = " ".join((error.diag.message_primary or str(error)).split())
            logger.info("pgvector is not available (%s): comparing vectors in memory", reason)
            return None
        row = await (await connection.execute(query)).fetchone()
    if row is None or _parse_version(row[1]) < (0, 8):
        logger.info("pgvector is missing or older than 0.8: comparing vectors in memory")
        return None
    return str(row[0])


def _parse_version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


async def ensure_vector_index(connection: Connection, model: str, dimensions: int) -> bool:
    """Create the index for the vectors of a model if it is missing; False if they have too many dimensions."""
    if dimensions > _MAX_DIMENSIONS:
        return False
    name = "nearest_" + hashlib.sha256(f"{model}\0{dimensions}".encode()).hexdigest()[:24]
    statement = sql.SQL(
        "CREATE INDEX IF NOT EXISTS {name} ON passages USING hnsw (CAST(vector AS vector({size})) vector_cosine_ops)"
        " WHERE model = {model} AND vector IS NOT NULL"
    ).format(name=sql.Identifier(name), size=sql.Literal(dimensions), model=sql.Literal(model))
    previous, connection.answer_timeout = connection.answer_timeout, _INDEX_TIMEOUT
    try:
        await connection.execute(statement)
    finally:
        connection.answer_timeout = previous
    return True
