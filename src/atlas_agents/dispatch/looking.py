"""One look at the database of a cluster says how it stands, whether or not anybody of it answers.

All times are the database's, so that clocks that disagree do not matter.
"""

import hashlib
from typing import Any

import psycopg
from psycopg import sql

from atlas_agents.core.errors import ConfigError
from atlas_agents.dispatch.queue import STALLED, queue_of
from atlas_agents.dispatch.status import Backlog, ClusterStatus, JobCounts, KeyRest, MemberStatus, TurnCounts

_FORGOTTEN = 3600.0
_OLDEST = 500
"""Of so many places in the queue the longest wait is looked for; those after them are later."""
_TABLES = "SELECT to_regclass('runs') IS NOT NULL, to_regclass('cluster_members') IS NOT NULL"
_MEMBERS = """
SELECT m.id, m.role, m.host, m.pid, m.door, m.version, extract(epoch FROM greatest(now() - m.since, '0'))::float8,
    extract(epoch FROM greatest(now() - m.seen, '0'))::float8, coalesce(q.count, 0), m.capacity, l.pid IS NOT NULL,
    m.draining
FROM cluster_members m
LEFT JOIN (SELECT worker_id, count(*) FROM procrastinate_jobs WHERE queue_name = %(queue)s AND status = 'doing'
    AND worker_id IS NOT NULL GROUP BY worker_id) q ON q.worker_id = m.worker
LEFT JOIN pg_locks l ON l.locktype = 'advisory' AND l.granted AND l.pid = m.backend
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.classid = %(high)s AND l.objid = %(low)s AND l.objsubid = 1
WHERE m.tenant = %(tenant)s AND m.seen > now() - make_interval(secs => %(kept)s)
ORDER BY m.role, m.since, m.id"""
_RUNS = """
SELECT count(*), count(*) FILTER (WHERE status = 'running'), count(*) FILTER (WHERE status = 'waiting'),
    count(*) FILTER (WHERE status = 'queued')
FROM runs WHERE tenant = %(tenant)s AND status IN ('queued', 'running', 'waiting')"""
_QUEUE = """
SELECT count(*) FILTER (WHERE status = 'todo'), count(*) FILTER (WHERE status = 'doing')
FROM procrastinate_jobs WHERE queue_name = %(queue)s AND status IN ('todo', 'doing')"""
_LAG = """
SELECT extract(epoch FROM greatest(now() - min(put.at), '0'))::float8
FROM (SELECT id FROM procrastinate_jobs WHERE queue_name = %(queue)s AND status = 'todo' ORDER BY id LIMIT %(most)s) j
CROSS JOIN LATERAL (SELECT max(e.at) AS at FROM procrastinate_events e WHERE e.job_id = j.id) put"""
_JOBS = """
SELECT count(*) FILTER (WHERE state = 'queued' AND due_at <= extract(epoch FROM now()) * 1000),
    count(*) FILTER (WHERE state = 'queued' AND due_at > extract(epoch FROM now()) * 1000),
    count(*) FILTER (WHERE state = 'running'),
    (SELECT count(*) FROM jobs WHERE tenant = %(tenant)s AND state = 'dead')
FROM jobs WHERE tenant = %(tenant)s AND state IN ('queued', 'running')"""
_KEYS = """
SELECT key, rest.seconds FROM records, LATERAL (
    SELECT (convert_from(body, 'UTF8')::json->>'rest')::float8 - extract(epoch FROM now())::float8 AS seconds) rest
WHERE tenant = 'default' AND kind = 'pace' AND rest.seconds > 0 ORDER BY key"""
"""The account of `providers.shared_pace`."""


def lead_key(schema: str, tenant: str) -> int:
    """The lock that the leader holds."""
    return int.from_bytes(hashlib.sha256(f"lead\0{schema}\0{tenant}".encode()).digest()[:8], signed=True)


async def read_backlog(line: psycopg.AsyncConnection[Any], *, schema: str, tenant: str) -> Backlog:
    """Of the queue alone."""
    async with line.transaction():
        await line.execute(sql.SQL("SET LOCAL search_path = {}").format(sql.Identifier(schema)))
        return await _backlog(line, queue_of(tenant))


async def read_status(
    line: psycopg.AsyncConnection[Any], *, schema: str = "atlas", tenant: str = "default"
) -> ClusterStatus:
    """All of it as it is at one moment; ConfigError if no cluster has ever worked here."""
    async with line.transaction():
        await line.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        await line.execute(sql.SQL("SET LOCAL search_path = {}").format(sql.Identifier(schema)))
        store, members = await _row(line, _TABLES)
        if not (store and members):
            missing = "a cluster" if store else "Atlas"
            raise ConfigError(
                f"{missing} has never worked on this database: start a member with `atlas serve --role …`, or set "
                "ATLAS_DATABASE_URL to the database of the cluster"
            )
        return ClusterStatus(
            (await _row(line, "SELECT current_setting('server_version')"))[0],
            await _members(line, schema, tenant),
            TurnCounts(*await _row(line, _RUNS, tenant=tenant)),
            await _backlog(line, queue_of(tenant)),
            JobCounts(*await _row(line, _JOBS, tenant=tenant)),
            tuple(KeyRest(*row) for row in await _rows(line, _KEYS)),
        )


async def _backlog(line: psycopg.AsyncConnection[Any], queue: str) -> Backlog:
    waiting, taken = await _row(line, _QUEUE, queue=queue)
    (lag,) = await _row(line, _LAG, queue=queue, most=_OLDEST) if waiting else (0.0,)
    return Backlog(waiting, taken, lag or 0.0)


async def _members(line: psycopg.AsyncConnection[Any], schema: str, tenant: str) -> tuple[MemberStatus, ...]:
    key = lead_key(schema, tenant) & 0xFFFFFFFFFFFFFFFF
    lock = {"high": key >> 32, "low": key & 0xFFFFFFFF}
    rows = await _rows(line, _MEMBERS, **lock, tenant=tenant, queue=queue_of(tenant), kept=_FORGOTTEN)
    return tuple(MemberStatus(*row, lost=row[7] > STALLED) for row in rows)


async def _rows(line: psycopg.AsyncConnection[Any], statement: str, **values: Any) -> list[tuple[Any, ...]]:
    return await (await line.execute(statement.encode(), values)).fetchall()


async def _row(line: psycopg.AsyncConnection[Any], statement: str, **values: Any) -> tuple[Any, ...]:
    return (await _rows(line, statement, **values))[0]
