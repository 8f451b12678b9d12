"""Cluster membership: heartbeats, the member registry and the status query.

The status is read from the database alone, whether or not a member responds. All times are the database's, so clock
differences between machines do not matter.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, LiteralString

import msgspec
import psycopg
from psycopg import sql

from atlas_agents.core import package_version
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.messages import new_id
from atlas_agents.dispatch.locks import lock_key
from atlas_agents.dispatch.queue import HEARTBEAT_TIMEOUT, ConnectorException, Queue, queue_name

logger = logging.getLogger(__name__)
HEARTBEAT_INTERVAL = 2.0
_MEMBER_TTL = 3600.0
"""Seconds for which a member is listed after its last heartbeat."""
_LEAVE_TIMEOUT = 2.0
_UPSERT_MEMBER = """
INSERT INTO cluster_members
    (id, tenant, role, host, pid, address, version, since, seen, worker, capacity, backend, draining, figures)
VALUES (%(id)s, %(tenant)s, %(role)s, %(host)s, %(pid)s, %(address)s, %(version)s,
    now() - make_interval(secs => %(age)s), now(), %(worker)s, %(capacity)s, %(backend)s, %(draining)s, %(figures)s)
ON CONFLICT (id) DO UPDATE SET seen = now(), worker = excluded.worker, capacity = excluded.capacity,
    backend = excluded.backend, draining = excluded.draining, figures = excluded.figures"""
_CREATE_TABLE = """
DO $$ BEGIN
    PERFORM pg_advisory_xact_lock(1096043601);
    CREATE UNLOGGED TABLE IF NOT EXISTS cluster_members (
        id text PRIMARY KEY, tenant text NOT NULL, role text NOT NULL, host text NOT NULL, pid integer NOT NULL,
        address text NOT NULL, version text NOT NULL, since timestamptz NOT NULL, seen timestamptz NOT NULL,
        worker bigint, capacity integer NOT NULL, backend integer, draining boolean NOT NULL, figures text NOT NULL);
END $$"""
"""Unlogged: every member rewrites its row every two seconds, also after a crash of the server."""
_DELETE_EXPIRED = "DELETE FROM cluster_members WHERE seen < now() - make_interval(secs => %(ttl)s)"
_DELETE_MEMBER = "DELETE FROM cluster_members WHERE id = %(id)s"
_LAG_SAMPLE = 500
"""How many queue entries to examine for the longest wait; later entries are younger."""
_TABLES_EXIST = "SELECT to_regclass('runs') IS NOT NULL, to_regclass('cluster_members') IS NOT NULL"
_MEMBERS = """
SELECT m.id, m.role, m.host, m.pid, m.address, m.version, extract(epoch FROM greatest(now() - m.since, '0'))::float8,
    extract(epoch FROM greatest(now() - m.seen, '0'))::float8, coalesce(q.count, 0), m.capacity, l.pid IS NOT NULL,
    m.draining, m.figures
FROM cluster_members m
LEFT JOIN (SELECT worker_id, count(*) FROM procrastinate_jobs WHERE queue_name = %(queue)s AND status = 'doing'
    AND worker_id IS NOT NULL GROUP BY worker_id) q ON q.worker_id = m.worker
LEFT JOIN pg_locks l ON l.locktype = 'advisory' AND l.granted AND l.pid = m.backend
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.classid = %(high)s AND l.objid = %(low)s AND l.objsubid = 1
WHERE m.tenant = %(tenant)s AND m.seen > now() - make_interval(secs => %(ttl)s)
ORDER BY m.role, m.since, m.id"""
_RUNS = """
SELECT count(*), count(*) FILTER (WHERE status = 'running'), count(*) FILTER (WHERE status = 'waiting'),
    count(*) FILTER (WHERE status = 'queued')
FROM runs WHERE tenant = %(tenant)s AND status IN ('queued', 'running', 'waiting')"""
_QUEUE = """
SELECT count(*) FILTER (WHERE status = 'todo'), count(*) FILTER (WHERE status = 'doing')
FROM procrastinate_jobs WHERE queue_name = %(queue)s AND status IN ('todo', 'doing')"""
_LAG = """
SELECT extract(epoch FROM greatest(now() - min(scheduled_at), '0'))::float8 FROM (
    SELECT scheduled_at FROM procrastinate_jobs WHERE queue_name = %(queue)s AND status = 'todo'
    ORDER BY id LIMIT %(limit)s) j"""
_JOBS = """
SELECT count(*) FILTER (WHERE state = 'queued' AND due_at <= extract(epoch FROM now()) * 1000),
    count(*) FILTER (WHERE state = 'queued' AND due_at > extract(epoch FROM now()) * 1000),
    count(*) FILTER (WHERE state = 'running'),
    (SELECT count(*) FROM jobs WHERE tenant = %(tenant)s AND state = 'dead')
FROM jobs WHERE tenant = %(tenant)s AND state IN ('queued', 'running')"""
_KEYS = """
SELECT key, cooldown.seconds FROM records, LATERAL (
    SELECT (convert_from(body, 'UTF8')::json->>'cooldown_end')::float8 - extract(epoch FROM now())::float8 AS seconds
) cooldown
WHERE tenant = 'default' AND kind = 'pace' AND cooldown.seconds > 0 ORDER BY key"""
"""Cool-downs recorded by the shared rate limiter."""


class ModelFigures(msgspec.Struct, frozen=True, rename="camel"):
    """Requests of one process to a model in the last 15 minutes; latencies as counts of buckets."""

    model: str
    requests: int
    failures: int
    first_chunk: dict[int, int]
    last_error: str = ""
    last_error_at: float = 0.0
    cooldown: float = 0.0


class MemberFigures(msgspec.Struct, frozen=True, rename="camel"):
    """Turns that one process executed in the last 15 minutes, and its models; latencies as counts of buckets."""

    done: int
    failed: int
    cancelled: int
    first_output: dict[int, int]
    duration: dict[int, int]
    models: tuple[ModelFigures, ...] = ()


_figures = msgspec.json.Decoder(MemberFigures)


class MemberInfo(msgspec.Struct, frozen=True):
    """A member's state: its worker id and capacity if it executes runs, and whether it is draining. `backend` is the
    Postgres backend that holds its leader lock. `figures` are the figures of the turns that it executes, as JSON."""

    worker: int | None = None
    capacity: int = 0
    backend: int | None = None
    draining: bool = False
    figures: str = ""


class MemberRegistry:
    """This process's entry in the member registry; written again when the database was down or has lost the row."""

    def __init__(self, queue: Queue, tenant: str, member_info: Callable[[], MemberInfo]) -> None:
        self._queue = queue
        self._member_info = member_info
        self._changed = asyncio.Event()
        self._registered = asyncio.Event()
        self._started = time.monotonic()
        self._identity = {"id": new_id(), "tenant": tenant, "host": socket.gethostname(), "pid": os.getpid()}
        self._identity |= {"version": package_version(), "role": "worker", "address": ""}

    async def wait_until_registered(self) -> None:
        """Wait until other members can see this process, with a short limit if the database does not respond."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HEARTBEAT_INTERVAL):
                await self._registered.wait()

    def publish(self) -> None:
        """Write a changed state now, without waiting for the next heartbeat."""
        self._changed.set()

    async def run(self, role: str, address: str) -> None:
        """Send heartbeats until cancelled."""
        self._identity |= {"role": role, "address": address}
        self._started = time.monotonic()
        has_table = False
        while True:
            self._changed.clear()
            has_table = has_table or (
                await self._execute(_CREATE_TABLE) and await self._execute(_DELETE_EXPIRED, ttl=_MEMBER_TTL)
            )
            if has_table:
                age = time.monotonic() - self._started
                if await self._execute(
                    _UPSERT_MEMBER, age=age, **self._identity, **msgspec.structs.asdict(self._member_info())
                ):
                    self._registered.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_INTERVAL):
                    await self._changed.wait()

    async def leave(self) -> None:
        """Remove this process from the registry, if the database responds."""
        try:
            async with asyncio.timeout(_LEAVE_TIMEOUT):
                await self._execute(_DELETE_MEMBER, id=self._identity["id"])
        except TimeoutError:
            logger.info("could not leave the member registry: database not responding")

    async def _execute(self, statement: LiteralString, **values: object) -> bool:
        try:
            await self._queue.execute(statement, **values)
        except ConnectorException as error:
            logger.info("heartbeat failed: error=%s", error.__cause__ or error)
            return False
        return True


class MemberStatus(msgspec.Struct, frozen=True, rename="camel"):
    """A process of the cluster; times are in seconds. `lost`: the heartbeat is overdue and its runs are reassigned."""

    id: str
    role: str
    host: str
    pid: int
    address: str
    version: str
    uptime: float
    heartbeat_age: float
    runs: int
    capacity: int
    leads: bool
    draining: bool
    lost: bool
    figures: MemberFigures | None = None
    """Figures of the turns that it executes; None for a gateway."""


class TurnCounts(msgspec.Struct, frozen=True, rename="camel"):
    """Open turns: running, waiting for a person, and queued behind another turn of their session."""

    open: int = 0
    running: int = 0
    waiting: int = 0
    queued: int = 0


class Backlog(msgspec.Struct, frozen=True, rename="camel"):
    """Runs that wait for a worker, runs that have one, and the longest wait in seconds."""

    waiting: int = 0
    taken: int = 0
    lag: float = 0.0


class JobCounts(msgspec.Struct, frozen=True, rename="camel"):
    """Jobs that are due, scheduled for later, running, and dead until a person retries them."""

    due: int = 0
    later: int = 0
    running: int = 0
    dead: int = 0


class KeyCooldown(msgspec.Struct, frozen=True, rename="camel"):
    """A provider key, identified by a hash, and its remaining cool-down in seconds."""

    name: str
    seconds: float


class ClusterStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The status of the whole cluster."""

    postgres: str
    members: tuple[MemberStatus, ...]
    turns: TurnCounts
    queue: Backlog
    jobs: JobCounts
    keys: tuple[KeyCooldown, ...]
    """Provider keys in cool-down."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Return problems that need attention, as sentences."""
        alive = [each for each in self.members if not each.lost]
        workers = [each for each in alive if each.capacity and not each.draining]
        found: list[str] = []
        if not workers and self.queue.waiting:
            found.append(
                f"No worker is running: {self.queue.waiting} turns are waiting. Start one: atlas serve --role worker"
            )
        elif not workers:
            found.append("No worker is running, so turns will wait. Start one: atlas serve --role worker")
        if not any(each.leads for each in alive) and workers:
            found.append(
                "No leader: jobs and schedules are paused. Expect a new leader within seconds if Postgres is healthy"
            )
        if all(each.role == "worker" for each in alive):
            found.append("No gateway is running, so clients cannot connect. Start one: atlas serve --role gateway")
        if len({each.version for each in alive}) > 1:
            found.append("Members run different versions")
        if self.jobs.dead:
            found.append(f"{self.jobs.dead} jobs are dead: see atlas jobs list --state dead")
        return tuple(found)


def leader_lock_key(schema: str, tenant: str) -> int:
    """Return the key of the leader lock."""
    return lock_key("lead", schema, tenant)


async def read_backlog(connection: psycopg.AsyncConnection[Any], *, schema: str, tenant: str) -> Backlog:
    """Read the backlog of the queue."""
    async with connection.transaction():
        await connection.execute(sql.SQL("SET LOCAL search_path = {}").format(sql.Identifier(schema)))
        return await _read_backlog(connection, queue_name(tenant))


async def read_status(
    connection: psycopg.AsyncConnection[Any], *, schema: str = "atlas", tenant: str = "default"
) -> ClusterStatus:
    """Read the cluster's status from one snapshot; ConfigError if no cluster has ever used this database."""
    async with connection.transaction():
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        await connection.execute(sql.SQL("SET LOCAL search_path = {}").format(sql.Identifier(schema)))
        store, members = await _fetch_one(connection, _TABLES_EXIST)
        if not (store and members):
            missing = "a cluster" if store else "Atlas"
            raise ConfigError(
                f"{missing} has never used this database; start a member with `atlas serve --role …`, or set "
                "ATLAS_DATABASE_URL to the cluster's database"
            )
        return ClusterStatus(
            (await _fetch_one(connection, "SELECT current_setting('server_version')"))[0],
            await _read_members(connection, schema, tenant),
            TurnCounts(*await _fetch_one(connection, _RUNS, tenant=tenant)),
            await _read_backlog(connection, queue_name(tenant)),
            JobCounts(*await _fetch_one(connection, _JOBS, tenant=tenant)),
            tuple(KeyCooldown(*row) for row in await _fetch_all(connection, _KEYS)),
        )


async def _read_backlog(connection: psycopg.AsyncConnection[Any], queue: str) -> Backlog:
    waiting, taken = await _fetch_one(connection, _QUEUE, queue=queue)
    (lag,) = await _fetch_one(connection, _LAG, queue=queue, limit=_LAG_SAMPLE) if waiting else (0.0,)
    return Backlog(waiting, taken, lag or 0.0)


async def _read_members(connection: psycopg.AsyncConnection[Any], schema: str, tenant: str) -> tuple[MemberStatus, ...]:
    key = leader_lock_key(schema, tenant) & 0xFFFFFFFFFFFFFFFF
    lock = {"high": key >> 32, "low": key & 0xFFFFFFFF}
    rows = await _fetch_all(connection, _MEMBERS, **lock, tenant=tenant, queue=queue_name(tenant), ttl=_MEMBER_TTL)
    return tuple(
        MemberStatus(*row, lost=row[7] > HEARTBEAT_TIMEOUT, figures=_read_figures(figures)) for *row, figures in rows
    )


def _read_figures(text: str) -> MemberFigures | None:
    """Return the figures of a member; those of a newer version that cannot be read count as none."""
    with suppress(msgspec.MsgspecError):
        return _figures.decode(text) if text else None


async def _fetch_all(connection: psycopg.AsyncConnection[Any], statement: str, **values: Any) -> list[tuple[Any, ...]]:
    return await (await connection.execute(statement.encode(), values)).fetchall()


async def _fetch_one(connection: psycopg.AsyncConnection[Any], statement: str, **values: Any) -> tuple[Any, ...]:
    return (await _fetch_all(connection, statement, **values))[0]
