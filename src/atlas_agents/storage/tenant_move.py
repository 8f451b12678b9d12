"""Move a tenant from one Postgres database to another while its turns run.

Triggers on the source record the keys of changed rows. The rows are copied from one snapshot, then the changes, until
few are left. The fence then rejects further writes at the source as if the server was lost, so callers retry; the last
changes are copied, and the target is opened. Opening the target is the one commit that decides which database has the
tenant. A move that was killed continues when it is started again.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Literal, LiteralString, TypeAlias

import msgspec
import psycopg
from psycopg import errors, sql

from atlas_agents.core.errors import StoreError
from atlas_agents.storage import postgres_connection
from atlas_agents.storage.postgres import tenant_lock_id
from atlas_agents.storage.postgres_connection import Connection
from atlas_agents.storage.sql.derived import DERIVED_TABLES
from atlas_agents.storage.sql.tables import LIBRARY_STEP

MovePhase: TypeAlias = Literal["snapshot", "copying", "fenced", "moved", "arriving", "returning", "open"]
"""`returning` is like `arriving`, at a database from which the tenant was moved before."""
MoveStep: TypeAlias = Literal[
    "prepared", "captured", "copied", "caught up", "fenced", "complete", "opened", "closed", "deleted"
]
OnMoveStep: TypeAlias = Callable[[MoveStep], None]

MOVED_TABLES: dict[str, tuple[str, ...]] = {
    "sessions": ("key",),
    "messages": ("session", "seq"),
    "runs": ("id",),
    "journal": ("run_id", "seq"),
    "events": ("run_id", "seq"),
    "audit": ("seq",),
    "counters": ("agent_id", "day"),
    "approvals": ("id",),
    "usage_sums": ("day", "session", "agent_id", "model"),
    "documents": ("kind", "id"),
    "passages": ("kind", "document", "place"),
    "libraries": ("kind", "model"),
    "jobs": ("id",),
    "records": ("kind", "key"),
    "budgets": ("key", "period", "run_id"),
}
"""The tables of a tenant with their keys. The queue is not moved: the leader at the target enqueues open runs. Derived
tables are built again there."""
_CREATE_TABLES = """
CREATE TABLE IF NOT EXISTS tenant_moves (
    tenant TEXT COLLATE "C" PRIMARY KEY, phase TEXT NOT NULL, peer TEXT NOT NULL, changed_at TIMESTAMPTZ NOT NULL);
CREATE TABLE IF NOT EXISTS tenant_changes (
    tenant TEXT COLLATE "C" NOT NULL, table_name TEXT NOT NULL, key TEXT[] COLLATE "C" NOT NULL);
CREATE INDEX IF NOT EXISTS tenant_changes_of_table ON tenant_changes (tenant, table_name);"""
_FUNCTION = """CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE found TEXT; moving TEXT := TG_ARGV[0];
BEGIN
PERFORM pg_advisory_xact_lock_shared(CAST(TG_ARGV[1] AS BIGINT));
SELECT phase INTO found FROM tenant_moves WHERE tenant = moving;
IF found IN ('snapshot', 'copying') THEN
    IF TG_OP <> 'INSERT' THEN INSERT INTO tenant_changes VALUES (moving, TG_TABLE_NAME, {old}); END IF;
    IF TG_OP <> 'DELETE' THEN INSERT INTO tenant_changes VALUES (moving, TG_TABLE_NAME, {new}); END IF;
ELSIF found <> 'open' THEN
    RAISE EXCEPTION 'tenant % is in another database', moving USING ERRCODE = '57P03';
END IF;
RETURN NULL; END $$"""
"""Records changes, or rejects them with the error of a server that is not available. The lock is held until the
transaction ends, so the fence waits for transactions that were not rejected."""
_TRIGGER = """CREATE TRIGGER {name} AFTER {events} ON {table} FOR EACH ROW
WHEN ({row}.tenant = {tenant} AND current_setting('atlas.mover', true) IS DISTINCT FROM {tenant})
EXECUTE FUNCTION {function}({tenant}, {lock})"""
_OPERATIONS: tuple[tuple[LiteralString, LiteralString], ...] = (("new", "INSERT OR UPDATE"), ("old", "DELETE"))
_SET_PHASE = """INSERT INTO tenant_moves VALUES (%(tenant)s, %(phase)s, %(peer)s, now())
ON CONFLICT (tenant) DO UPDATE SET phase = excluded.phase, peer = excluded.peer, changed_at = now()"""
_COLUMNS = """SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod)
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = ANY(%s) AND a.attnum > 0 AND NOT a.attisdropped
AND a.attgenerated = '' AND a.attidentity = '' ORDER BY c.relname, a.attnum"""
_IDENTITY = "SELECT system_identifier || '/' || current_database() FROM pg_control_system()"
_KEY_TYPES: dict[str, LiteralString] = {"text": "TEXT", "bigint": "BIGINT"}
_SOURCE_PHASES = ("snapshot", "copying", "fenced", "moved")
_READ_PHASE = "SELECT phase, peer FROM tenant_moves WHERE tenant = %s"
_READ_ENDS = """SELECT (SELECT hash FROM audit WHERE tenant = %(tenant)s ORDER BY seq DESC LIMIT 1),
(SELECT count(*) FROM runs WHERE tenant = %(tenant)s AND status IN ('queued', 'running', 'waiting')),
(SELECT max(updated_at) FROM sessions WHERE tenant = %(tenant)s)"""
_MERGE_TOKENS = """INSERT INTO commit_tokens AS t SELECT * FROM moved_tokens
ON CONFLICT (id) DO UPDATE SET token = greatest(t.token, excluded.token), written_at = now()"""
_CHANGE_LIBRARIES = "UPDATE libraries SET version = version + %s WHERE tenant = %s"
_READ_VERSION = "SELECT max(version) FROM schema_version"
_DDL_WAIT = "1s"
_DDL_ATTEMPTS = 60
_FENCE_WAIT = "5s"
_MAX_PASSES = 50
_DELETE_BATCH = 5000
_ANSWER_TIMEOUT = 24 * 3600.0


class TenantMove(msgspec.Struct, frozen=True):
    """Parameters of a move: the tenant, the source and the target. `max_pause` limits the pause in seconds; if it is
    exceeded, the fence is lifted and the tenant stays at the source."""

    tenant: str
    source: str
    target: str
    schema: str = "atlas"
    max_pause: float = 5.0
    on_step: OnMoveStep = lambda _: None


class MoveResult(msgspec.Struct, frozen=True):
    """Result of a move: `rows` of the first copy, later changed rows, and the seconds in which no write succeeded."""

    rows: int = 0
    changes: int = 0
    passes: int = 0
    pause: float = 0.0


async def move_tenant(move: TenantMove) -> MoveResult:
    """Move a tenant, or continue a move that was interrupted. Its processes must then use the target's address."""
    async with _open_both(move) as (source, target):
        phases = await source.read_phase(), await target.read_phase()
        if phases[0] == "moved" or phases == ("fenced", "open"):
            await _close_source(move, source, target)
            return MoveResult()
        result = MoveResult()
        if phases[0] in (None, "snapshot"):
            result = await _copy_snapshot(move, source, target)
        elif phases[1] != "arriving":
            raise StoreError(f"the target has lost the copy of tenant {move.tenant!r}: abort the move and start again")
        result = await _catch_up(move, source, target, result)
        return await _switch(move, source, target, result)


async def abort_move(move: TenantMove) -> None:
    """Give up a move that has not been completed: the tenant stays at the source, and the copy is deleted."""
    async with _open_both(move) as (source, target):
        if await source.read_phase() == "moved" or await target.read_phase() == "open":
            raise StoreError(f"the tenant {move.tenant!r} is at the target already: move it back instead")
        await source.forget_move()
        if await target.read_phase() == "arriving":
            await target.undo_arrival()


async def delete_moved(move: TenantMove) -> int:
    """Delete the rows that a completed move left at the source, in batches. The fence stays."""
    async with _open_both(move) as (source, _):
        if await source.read_phase() != "moved":
            raise StoreError(f"the tenant {move.tenant!r} was not moved away from this database: nothing was deleted")
        deleted = await source.delete_rows()
        move.on_step("deleted")
        return deleted


class MoveEnd:
    """One of the two databases of a move. Everything happens on one connection, which also holds the lock of the move:
    a mover that lost its lock cannot write any more."""

    def __init__(self, connection: Connection, move: TenantMove, *, is_target: bool) -> None:
        self.connection = connection
        self.is_target = is_target
        self.tenant = move.tenant
        self.schema = move.schema
        self.peer = ""
        self._lock = tenant_lock_id(move.schema, move.tenant, "move")
        self._trigger = "tenant_move_" + hashlib.sha256(move.tenant.encode()).hexdigest()[:12]
        self.columns: dict[str, dict[str, str]] = {}

    async def prepare(self, *, migrate: bool) -> int:
        """Take the lock of the move, create the tables of moves, and return the version of the schema."""
        await self.connection.execute("SELECT set_config('search_path', %s, false)", (f'"{self.schema}"',))
        if migrate:
            await postgres_connection.migrate(self.connection, self.schema)
        await postgres_connection.set_guarantees(self.connection)
        self.connection.answer_timeout = _ANSWER_TIMEOUT
        lock = tenant_lock_id(self.schema, self.tenant, "mover")
        if await self.read_value("SELECT pg_try_advisory_lock(%s)", lock) is not True:
            raise StoreError(f"another process is moving tenant {self.tenant!r}; wait until it has ended")
        await self.connection.execute("SELECT set_config('atlas.mover', %s, false)", (self.tenant,))
        await self.connection.execute(_CREATE_TABLES)
        cursor = await self.connection.execute(_COLUMNS, (self.schema, list(MOVED_TABLES)))
        for table, column, kind in await cursor.fetchall():
            self.columns.setdefault(table, {})[column] = kind
        return int(str(await self.read_value(_READ_VERSION)))

    async def read_value(self, query: str, *values: object) -> object:
        row = await (await self.connection.execute(query.encode(), values)).fetchone()
        return row[0] if row else None

    async def read_phase(self) -> MovePhase | None:
        """Return the phase of the tenant here; StoreError if it belongs to a move with another database."""
        row = await (await self.connection.execute(_READ_PHASE, (self.tenant,))).fetchone()
        if row is None or (self.is_target and row[0] == "moved"):
            return None
        phase, peer = row
        if self.is_target and phase == "returning":
            phase = "arriving"
        if peer != self.peer or phase not in (("arriving", "open") if self.is_target else _SOURCE_PHASES):
            raise StoreError(
                f"the tenant {self.tenant!r} is in the phase {phase!r} of a move with the database {peer}: "
                "complete or abort that move first"
            )
        return phase

    async def set_phase(self, phase: MovePhase) -> None:
        """Change the phase once all transactions that saw the previous one have ended."""
        async with self._phase_lock():
            await self._put_phase(phase)

    @asynccontextmanager
    async def _phase_lock(self) -> AsyncGenerator[None]:
        async with self.connection.transaction():
            await self.connection.execute(f"SET LOCAL lock_timeout = '{_FENCE_WAIT}'")
            await self.connection.execute("SELECT pg_advisory_xact_lock(%s)", (self._lock,))
            yield

    async def start_arrival(self) -> None:
        """Reject writes at the target from now on. The triggers must be there, so that no row is written unseen."""
        was_here = await self.read_value(_READ_PHASE, self.tenant) == "moved"
        try:
            async with self._phase_lock():
                await self.check_empty()
                await self._put_phase("returning" if was_here else "arriving")
        except StoreError:
            if not was_here:
                await self._remove_triggers()
            raise

    async def undo_arrival(self) -> None:
        """Delete the copy. A tenant that was moved away from here before stays fenced."""
        await self.delete_rows()
        if await self.read_value(_READ_PHASE, self.tenant) == "returning":
            await self.set_phase("moved")
        else:
            await self.forget_move()

    async def check_empty(self) -> None:
        for table in MOVED_TABLES:
            query = sql.SQL("SELECT 1 FROM {} WHERE tenant = %s LIMIT 1").format(sql.Identifier(table))
            if await (await self.connection.execute(query, (self.tenant,))).fetchone():
                raise StoreError(f"the target already has rows of tenant {self.tenant!r} in the table {table}")

    async def _put_phase(self, phase: MovePhase) -> None:
        await self.connection.execute(_SET_PHASE, {"tenant": self.tenant, "phase": phase, "peer": self.peer})

    async def install_triggers(self) -> None:
        """Add the triggers to each table in a transaction of its own; it waits for the writers of the table."""
        for table, key in MOVED_TABLES.items():
            function = sql.Identifier(f"tenant_move_{table}")
            create = sql.SQL(_FUNCTION).format(name=function, old=_key_of("old", key), new=_key_of("new", key))
            values = {"tenant": sql.Literal(self.tenant), "function": function, "lock": sql.Literal(str(self._lock))}
            triggers = [
                sql.SQL(_TRIGGER).format(
                    name=sql.Identifier(f"{self._trigger}_{row}"),
                    events=sql.SQL(operations),
                    table=sql.Identifier(table),
                    row=sql.SQL(row),
                    **values,
                )
                for row, operations in _OPERATIONS
            ]
            await self._change_table([create, *self._drop_triggers(table), *triggers])

    async def forget_move(self) -> None:
        """Remove all traces of the move except the rows. Triggers do nothing once the phase is removed."""
        async with self.connection.transaction():
            await self.connection.execute("SELECT pg_advisory_xact_lock(%s)", (self._lock,))
            await self.connection.execute("DELETE FROM tenant_moves WHERE tenant = %s", (self.tenant,))
        await self._remove_triggers()
        await self.connection.execute("DELETE FROM tenant_changes WHERE tenant = %s", (self.tenant,))

    async def _remove_triggers(self) -> None:
        for table in MOVED_TABLES:
            await self._change_table(self._drop_triggers(table))

    def _drop_triggers(self, table: str) -> list[sql.Composed]:
        drop = sql.SQL("DROP TRIGGER IF EXISTS {} ON {}")
        return [drop.format(sql.Identifier(f"{self._trigger}_{row}"), sql.Identifier(table)) for row, _ in _OPERATIONS]

    async def _change_table(self, statements: list[sql.Composed]) -> None:
        """Change a table without making its writers wait for longer than a second."""
        for attempt in range(_DDL_ATTEMPTS):
            try:
                async with self.connection.transaction():
                    await self.connection.execute(f"SET LOCAL lock_timeout = '{_DDL_WAIT}'")
                    for statement in statements:
                        await self.connection.execute(statement)
                return
            except (errors.LockNotAvailable, errors.DeadlockDetected):
                if attempt == _DDL_ATTEMPTS - 1:
                    raise
                await asyncio.sleep(0.1)

    async def delete_rows(self) -> int:
        """Delete all rows of the tenant, in batches."""
        deleted = 0
        for table in (*MOVED_TABLES, *DERIVED_TABLES):
            statement = sql.SQL(
                "DELETE FROM {table} WHERE ctid = ANY(ARRAY(SELECT ctid FROM {table} WHERE tenant = %s LIMIT %s))"
            ).format(table=sql.Identifier(table))
            while count := (await self.connection.execute(statement, (self.tenant, _DELETE_BATCH))).rowcount:
                deleted += count
        return deleted

    async def open(self) -> None:
        """Accept writes from now on. Data that a process derived from incomplete rows is deleted."""
        async with self.connection.transaction():
            for lock in (tenant_lock_id(self.schema, self.tenant), self._lock):
                await self.connection.execute("SELECT pg_advisory_xact_lock(%s)", (lock,))
            for table in DERIVED_TABLES:
                statement = sql.SQL("DELETE FROM {} WHERE tenant = %s").format(sql.Identifier(table))
                await self.connection.execute(statement, (self.tenant,))
            await self.connection.execute(_CHANGE_LIBRARIES, (LIBRARY_STEP, self.tenant))
            await self._put_phase("open")


@asynccontextmanager
async def _open_both(move: TenantMove) -> AsyncGenerator[tuple[MoveEnd, MoveEnd]]:
    """Connect to both databases and take the lock of the move in each."""
    try:
        async with (
            await postgres_connection.connect(move.source) as one,
            await postgres_connection.connect(move.target) as other,
        ):
            source, target = MoveEnd(one, move, is_target=False), MoveEnd(other, move, is_target=True)
            target.peer, source.peer = [str(await end.read_value(_IDENTITY)) for end in (source, target)]
            if source.peer == target.peer:
                raise StoreError(
                    "the source and the target of the move are the same database, "
                    "or one server is a physical copy of the other: create the target with initdb"
                )
            versions = await source.prepare(migrate=False), await target.prepare(migrate=True)
            if versions[0] != versions[1]:
                raise StoreError(
                    f"the source has schema version {versions[0]}, the target {versions[1]}: "
                    "start one process of this version at the source first"
                )
            yield source, target
    except psycopg.Error as error:
        raise postgres_connection.translate_error(error) from error


async def _copy_snapshot(move: TenantMove, source: MoveEnd, target: MoveEnd) -> MoveResult:
    """Copy all rows of one snapshot. It starts over if it is interrupted."""
    is_new = await target.read_phase() != "arriving"
    if is_new:
        await target.check_empty()
    await target.install_triggers()
    if is_new:
        await target.start_arrival()
    await target.delete_rows()
    move.on_step("prepared")
    await source.set_phase("snapshot")
    await source.install_triggers()
    move.on_step("captured")
    rows = 0
    async with source.connection.transaction():
        await source.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await source.connection.execute("DELETE FROM tenant_changes WHERE tenant = %s", (move.tenant,))
        for table in MOVED_TABLES:
            where = sql.SQL("WHERE t.tenant = {}").format(sql.Literal(move.tenant))
            rows += await _copy_rows(source, target, table, where)
    await source.set_phase("copying")
    move.on_step("copied")
    return MoveResult(rows)


async def _copy_rows(source: MoveEnd, target: MoveEnd, table: str, where: sql.Composable) -> int:
    """Copy the rows that a condition selects, as a stream, and return their number."""
    columns = sql.SQL(", ").join(map(sql.Identifier, source.columns[table]))
    of_row = sql.SQL(", ").join([sql.Identifier("t", name) for name in source.columns[table]])
    out = sql.SQL("COPY (SELECT {} FROM {} t {}) TO STDOUT").format(of_row, sql.Identifier(table), where)
    into = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(table), columns)
    async with target.connection.cursor() as writer:
        async with source.connection.cursor().copy(out) as reading, writer.copy(into) as writing:
            async for data in reading:
                await writing.write(data)
        return writer.rowcount


async def _copy_changes(source: MoveEnd, target: MoveEnd) -> int:
    """Copy the changes since the last call, and return the number of changed rows.

    Afterwards the target is exactly the source at the snapshot of this call: all changes are one transaction there. If
    the process is killed before the source forgets them, the next call copies them again.
    """
    tenant = sql.Literal(source.tenant)
    async with source.connection.transaction():
        await source.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        async with target.connection.transaction():
            await target.connection.execute(
                'CREATE TEMP TABLE moved_keys (table_name TEXT, key TEXT[] COLLATE "C") ON COMMIT DROP'
            )
            out = sql.SQL(
                "COPY (SELECT DISTINCT table_name, key FROM tenant_changes WHERE tenant = {}) TO STDOUT"
            ).format(tenant)
            async with target.connection.cursor() as writer:
                async with (
                    source.connection.cursor().copy(out) as reading,
                    writer.copy("COPY moved_keys FROM STDIN") as writing,
                ):
                    async for data in reading:
                        await writing.write(data)
                changed = writer.rowcount
            cursor = await target.connection.execute("SELECT DISTINCT table_name FROM moved_keys")
            tables = [table for (table,) in await cursor.fetchall()]
            for table in tables:
                delete = sql.SQL("DELETE FROM {} t USING (SELECT key FROM moved_keys WHERE table_name = {}) c WHERE {}")
                match = _match_keys(source, table)
                await target.connection.execute(delete.format(sql.Identifier(table), sql.Literal(table), match))
            for table in tables:
                where = sql.SQL(
                    "JOIN (SELECT DISTINCT key FROM tenant_changes WHERE tenant = {} AND table_name = {}) c ON {}"
                ).format(tenant, sql.Literal(table), _match_keys(source, table))
                await _copy_rows(source, target, table, where)
        await source.connection.execute("DELETE FROM tenant_changes WHERE tenant = %s", (source.tenant,))
    return changed


def _key_of(row: LiteralString, key: tuple[str, ...]) -> sql.Composed:
    """Return the array with the key of a row in a trigger."""
    columns = [sql.SQL("CAST({}.{} AS TEXT)").format(sql.SQL(row), sql.Identifier(name)) for name in key]
    return sql.SQL("ARRAY[{}]").format(sql.SQL(", ").join(columns))


def _match_keys(source: MoveEnd, table: str) -> sql.Composed:
    """Return the condition that row `t` of a table has the key `c.key`."""
    parts = [
        sql.SQL("t.{} = CAST(c.key[{}] AS {})").format(
            sql.Identifier(name), sql.Literal(place), sql.SQL(_KEY_TYPES[source.columns[table][name]])
        )
        for place, name in enumerate(MOVED_TABLES[table], 1)
    ]
    return sql.SQL(" AND ").join([sql.SQL("t.tenant = {}").format(sql.Literal(source.tenant)), *parts])


async def _catch_up(move: TenantMove, source: MoveEnd, target: MoveEnd, result: MoveResult) -> MoveResult:
    """Copy changes until a pass takes less than half of the longest pause."""
    if await source.read_phase() == "fenced":  # killed during the pause: turns continue while the rest is copied
        await source.set_phase("copying")
    changes = 0
    for number in range(1, _MAX_PASSES + 1):
        started = time.monotonic()
        changes += await _copy_changes(source, target)
        if time.monotonic() - started < move.max_pause / 2:
            move.on_step("caught up")
            return MoveResult(result.rows, changes, number)
    raise StoreError(
        f"tenant {move.tenant!r} changes faster than its rows can be copied: run the command again when it is less busy"
    )


async def _switch(move: TenantMove, source: MoveEnd, target: MoveEnd, result: MoveResult) -> MoveResult:
    """Fence the source, copy the rest and open the target."""
    started = time.monotonic()
    await source.set_phase("fenced")
    move.on_step("fenced")
    try:
        async with asyncio.timeout(max(move.max_pause - (time.monotonic() - started), 0.01)):
            changes = await _copy_changes(source, target)
            await _copy_tokens(source, target)
            await _check_equal(source, target)
            move.on_step("complete")
    except BaseException as error:
        await source.set_phase("copying")
        if isinstance(error, TimeoutError):
            raise StoreError(
                f"the last changes of tenant {move.tenant!r} took longer than the pause of {move.max_pause:g} s: it "
                "stays where it is; run the command again when it is less busy, or with a longer pause"
            ) from error
        raise
    await target.open()
    pause = time.monotonic() - started
    move.on_step("opened")
    await _close_source(move, source, target)
    return MoveResult(result.rows, result.changes + changes, result.passes, pause)


async def _copy_tokens(source: MoveEnd, target: MoveEnd) -> None:
    """Copy the tokens of all writers, so that one whose last commit is unclear can ask the target about it."""
    async with target.connection.transaction(), target.connection.cursor() as writer:
        await writer.execute("CREATE TEMP TABLE moved_tokens (LIKE commit_tokens) ON COMMIT DROP")
        async with (
            source.connection.cursor().copy("COPY commit_tokens (id, token, written_at) TO STDOUT") as reading,
            writer.copy("COPY moved_tokens (id, token, written_at) FROM STDIN") as writing,
        ):
            async for data in reading:
                await writing.write(data)
        await writer.execute(_MERGE_TOKENS)


async def _check_equal(source: MoveEnd, target: MoveEnd) -> None:
    """Compare the ends of both copies; a difference is a defect, and the tenant stays at the source."""
    ends = [
        await (await end.connection.execute(_READ_ENDS, {"tenant": end.tenant})).fetchone() for end in (source, target)
    ]
    if ends[0] != ends[1]:
        raise StoreError(f"the copy of tenant {source.tenant!r} differs from the source: {ends[0]} and {ends[1]}")


async def _close_source(move: TenantMove, source: MoveEnd, target: MoveEnd) -> None:
    """Record at the source that the tenant is elsewhere, then remove the triggers of the target."""
    if await source.read_phase() != "moved":
        await source.set_phase("moved")
    await source.connection.execute("DELETE FROM tenant_changes WHERE tenant = %s", (move.tenant,))
    if await target.read_phase() == "open":
        await target.forget_move()
    move.on_step("closed")
