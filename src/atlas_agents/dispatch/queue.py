"""Run queue and its worker, on procrastinate's tables, which live beside the store's own.

Only procrastinate's queue is used: jobs, which worker fetched them, heartbeats and stalled jobs. Its worker is not
used: it stops when it loses its first connection, waits for all its jobs before it starts again and sends no heartbeat
meanwhile, so that every Postgres restart would take runs away from healthy processes.

The jobs are in an unlogged table: nothing about them is written to the WAL, and a crash of Postgres empties the queue.
Workers then put back the jobs that they hold, and the leader enqueues the other open runs.
"""

import asyncio
import contextlib
import logging
import math
import struct
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, LiteralString, TypeVar

import psycopg
from procrastinate import App, PsycopgConnector
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import Job, Status
from procrastinate.schema import SchemaManager
from psycopg import sql
from psycopg_pool import AsyncConnectionPool

from atlas_agents.core.aio import BackgroundTasks
from atlas_agents.dispatch.locks import hold_shared_lock, lock_key
from atlas_agents.dispatch.notifications import CONNECTION_OPTIONS

logger = logging.getLogger(__name__)
_MIGRATION_LOCK = 0x41544C51
_APPLICATION_PREFIX = "atlas-queue "
_SCHEMA_LENGTH = 36
"""Characters of the schema's name that fit into the 63 that Postgres keeps."""
_CREATE_MIGRATIONS_TABLE = "CREATE TABLE IF NOT EXISTS queue_steps (name TEXT PRIMARY KEY)"
_QUEUE_CONNECTIONS = """
SELECT application_name FROM pg_stat_activity WHERE datname = current_database()
AND starts_with(application_name, %s)"""
HEARTBEAT_TIMEOUT = 6.0
"""Seconds without a heartbeat after which a worker is considered dead."""
_UNUSED_TRIGGERS = """
SELECT tgname FROM pg_trigger WHERE tgrelid = 'procrastinate_jobs'::regclass AND tgenabled <> 'D' AND (
    starts_with(tgname, 'procrastinate_jobs_notify_queue_job_inserted')
    OR starts_with(tgname, 'procrastinate_trigger_status_events')
    OR starts_with(tgname, 'procrastinate_trigger_scheduled_events'))"""
"""Triggers that notify of new jobs and record their history. They are unused here: the time at which a job entered the
queue is its `scheduled_at`."""
_ORPHANS = """
SELECT r.id FROM runs r WHERE r.tenant = %(tenant)s AND r.status IN ('running', 'waiting')
AND NOT EXISTS (SELECT 1 FROM procrastinate_jobs j WHERE j.queue_name = %(queue)s AND j.status IN ('todo', 'doing')
    AND j.args->>'run_id' = r.id)"""
_CREATE_STARTS_TABLE = "CREATE UNLOGGED TABLE IF NOT EXISTS queue_starts (at TIMESTAMPTZ NOT NULL)"
"""First use of the queue since it was created, or since Postgres crashed, which empties this table as well."""
_NOTE_START = "INSERT INTO queue_starts SELECT now() WHERE NOT EXISTS (SELECT 1 FROM queue_starts)"
_HEARTBEAT = """
INSERT INTO procrastinate_workers (id) OVERRIDING SYSTEM VALUE VALUES (%(worker)s)
ON CONFLICT (id) DO UPDATE SET last_heartbeat = now()"""
"""Unlike procrastinate's own method, it registers a worker again that a replica did not know when it was promoted. Jobs
refer to workers, so an unknown worker cannot fetch any."""
_DEAD_WORKERS = """
SELECT id FROM procrastinate_workers
WHERE last_heartbeat < now() - make_interval(secs => %(timeout)s)
OR last_heartbeat < now() - make_interval(secs => %(unlocked_timeout)s) AND id <> ALL (ARRAY(
    SELECT objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND classid = %(locks)s))"""
"""Workers that sent no heartbeat for some time, or for a shorter time if their lock is gone."""
_WORKER_TTL = 3600.0
"""Seconds after its last heartbeat for which a dead worker stays in the table."""
_FORGET_WORKERS = """
DELETE FROM procrastinate_workers WHERE id = ANY (ARRAY(
    SELECT w.id FROM procrastinate_workers w
    WHERE w.id = ANY (%(dead)s::bigint[]) AND w.last_heartbeat < now() - make_interval(secs => %(ttl)s)
    AND NOT EXISTS (SELECT 1 FROM procrastinate_jobs j WHERE j.worker_id = w.id AND j.status = 'doing')
    LIMIT 100 FOR UPDATE SKIP LOCKED))"""
"""A few at a time: for each, Postgres reads the whole table of jobs. A paused worker that goes on registers again."""
_HAS_UNCONFIRMED_WORKERS = """
SELECT EXISTS (SELECT 1 FROM procrastinate_workers
    WHERE last_heartbeat < (SELECT max(at) FROM queue_starts) AND id <> ALL (%(dead)s::bigint[]))"""
"""Whether a worker counts as alive but has sent no heartbeat since the last crash: it may hold missing jobs."""
_MISSING = """
SELECT held.id FROM unnest(%(jobs)s::bigint[]) AS held (id)
WHERE NOT EXISTS (SELECT 1 FROM procrastinate_jobs j WHERE j.id = held.id)"""
_RESTORE = """
INSERT INTO procrastinate_jobs (id, queue_name, task_name, priority, args, status, scheduled_at, worker_id)
SELECT held.id, %(queue)s::varchar, 'atlas.run', r.urgency, jsonb_build_object('run_id', r.id), 'doing', now(), w.id
FROM unnest(%(jobs)s::bigint[], %(runs)s::text[]) AS held (id, run_id)
JOIN runs r ON r.tenant = %(tenant)s AND r.id = held.run_id AND r.status IN ('running', 'waiting')
JOIN procrastinate_workers w ON w.id = %(worker)s
WHERE NOT EXISTS (SELECT 1 FROM procrastinate_jobs j
    WHERE j.queue_name = %(queue)s::varchar AND j.status IN ('todo', 'doing') AND j.args->>'run_id' = r.id)
FOR SHARE OF r ON CONFLICT (id) DO NOTHING RETURNING id"""
"""Puts back jobs that a crash of Postgres has removed. The lock waits for a commit that is ending a run, whose job must
stay deleted; one that comes later deletes the job by its id."""
_UNLOGGED_TABLES = ("procrastinate_events", "procrastinate_periodic_defers", "procrastinate_jobs")
"""The table of jobs and the (empty) tables that refer to it: a logged table must not refer to an unlogged one."""
_LOGGED = """
SELECT relname FROM pg_class WHERE relpersistence = 'p'
AND oid = ANY (ARRAY(SELECT to_regclass(name) FROM unnest(%s::text[]) AS name))"""
_UNLOGGED_SEQUENCES = """
SELECT relname FROM pg_class WHERE oid = to_regclass('procrastinate_jobs_id_seq') AND relpersistence = 'u'"""
_ENQUEUE = """
SELECT procrastinate_defer_jobs_v1(array_agg(ROW(%(queue)s, 'atlas.run', urgency, NULL, NULL,
    jsonb_build_object('run_id', id), now())::procrastinate_job_to_defer_v1))
FROM runs WHERE tenant = %(tenant)s AND id = ANY (%(run_ids)s::text[])"""
"""Adds all runs with one statement and without waiting for its answer, unlike procrastinate's own method."""
_RELEASE_STALLED = """
UPDATE procrastinate_jobs SET status = 'todo', attempts = attempts + 1, scheduled_at = now()
WHERE id = ANY (ARRAY(
    SELECT id FROM procrastinate_jobs WHERE queue_name = %(queue)s AND status = 'doing'
    AND (worker_id IS NULL OR worker_id = ANY (%(dead)s::bigint[])) FOR UPDATE SKIP LOCKED))
RETURNING args->>'run_id' AS run_id"""
"""Unlike procrastinate's own method, with the time of the database: a job is not fetched before its `scheduled_at`. A
locked job is being finished by a worker that is alive after all."""
_RELEASE = """
UPDATE procrastinate_jobs SET status = 'todo', attempts = attempts + 1, scheduled_at = now()
WHERE id = %(job)s AND status = 'doing' AND worker_id = %(worker)s"""
_FINISH = """
DELETE FROM procrastinate_jobs WHERE id = %(job)s AND status IN ('todo', 'doing') AND worker_id = %(worker)s"""
"""Unlike procrastinate's own methods, these two leave a job that another worker has fetched meanwhile."""
_FETCH = """
UPDATE procrastinate_jobs SET status = 'doing', worker_id = %(worker)s WHERE id = ANY (ARRAY(
    SELECT id FROM procrastinate_jobs
    WHERE status = 'todo' AND queue_name = %(queue)s AND (scheduled_at IS NULL OR scheduled_at <= now())
    ORDER BY priority DESC, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
RETURNING id, status, task_name, priority, lock, queueing_lock, args, scheduled_at, queue_name, attempts, worker_id"""
"""Like procrastinate_fetch_job, for several jobs; ours have no locks."""
_MAX_FETCH = 4
"""Maximum number of jobs that a worker fetches at a time, so that others get some as well."""
_DELETE = "DELETE FROM procrastinate_jobs WHERE id = ANY (%s::bigint[]) AND status IN ('todo', 'doing')"
T = TypeVar("T")
_MISSED_HEARTBEATS = 4
"""Number of missed heartbeats after which a worker is considered dead."""
_RECONNECT_TIME = 3.0
"""Seconds within which live workers reconnect and send a heartbeat after the database was unreachable."""
_CONNECT_TIMEOUT = 2
"""Seconds after which an attempt to connect is given up. One that began during an outage may never be answered, and the
next one must succeed within the time to reconnect."""
_CLOCK_TOLERANCE = 1.0
"""Seconds by which the clock of the database may move forward between two checks of the leader."""
_BUSY_DELAY, _MAX_BUSY_DELAY = 0.002, 0.02
"""Seconds that a worker waits before it fetches: per run that it executes, and at most. Workers with fewer runs fetch
first, and several new runs are fetched with one statement."""
_POLL_INTERVAL = 5.0
_RETRY_DELAY = 0.5
_RECHECK_PERIOD = 30.0
"""Seconds after a failed fetch during which this worker looks for jobs that were assigned to it unnoticed."""


def queue_name(tenant: str) -> str:
    """Return the name of a tenant's queue."""
    return f"atlas:{tenant}"


class Queue:
    """The queue of one tenant; `schema` is the store's."""

    def __init__(self, url: str, schema: str, tenant: str, heartbeat_timeout: float = HEARTBEAT_TIMEOUT) -> None:
        self.heartbeat_timeout = heartbeat_timeout
        self.name = queue_name(tenant)
        self.url = url
        self._schema = schema
        self._lock_class = lock_key("worker", schema) >> 32 & 0xFFFFFFFF
        self._tenant = tenant
        self._migrations = packaged_migrations()
        options = {
            "application_name": application_name(schema, self._migrations),
            "options": f'-c search_path="{schema}"',
            "connect_timeout": _CONNECT_TIMEOUT,
        }
        # By default, the delay between attempts doubles, so workers reconnect long after the database is back, and at
        # different times. An attempt that has failed is repeated instead by `check`, which lets the pool grow again.
        connector = PsycopgConnector(
            conninfo=url,
            min_size=1,
            max_size=4,
            timeout=5.0,
            reconnect_timeout=_RETRY_DELAY,
            reconnect_failed=AsyncConnectionPool.check,
            kwargs=CONNECTION_OPTIONS | options,
            name="atlas-queue",
        )
        self._app = App(connector=connector)

    @property
    def jobs(self) -> Any:
        return self._app.job_manager

    async def open(self) -> None:
        """Connect and migrate procrastinate's tables; the schema must exist."""
        if applied := await migrate_queue(self.url, self._schema, self._migrations):
            logger.info("queue tables migrated: migrations=%s", ", ".join(applied))
        await self._app.open_async()

    async def close(self) -> None:
        await self._app.close_async()

    async def enqueue(self, run_ids: Sequence[str], connection: psycopg.AsyncConnection[Any], tenant: str) -> None:
        """Enqueue runs inside the transaction of a connection whose search path is the schema."""
        await connection.execute(_ENQUEUE, {"queue": queue_name(tenant), "tenant": tenant, "run_ids": list(run_ids)})

    async def delete(self, jobs: Sequence[int], connection: psycopg.AsyncConnection[Any]) -> None:
        """Delete jobs inside the transaction that ends their runs, instead of finishing them afterwards."""
        await connection.execute(_DELETE, (list(jobs),))

    async def execute(self, statement: LiteralString, **values: Any) -> None:
        """Execute a statement on a connection of the queue's pool."""
        await self._app.connector.execute_query_async(statement, **values)

    async def fetch(self, worker: int, limit: int) -> list[Job]:
        """Fetch the most urgent jobs, the oldest first."""
        rows = await self._app.connector.execute_query_all_async(_FETCH, worker=worker, queue=self.name, limit=limit)
        return sorted(map(Job.from_row, rows), key=lambda job: (-job.priority, job.id or 0))

    async def list_held(self, worker: int) -> list[Job]:
        """Return the jobs that this worker has fetched and not finished."""
        return [*await self.jobs.list_jobs_async(queue=self.name, status=Status.DOING.value, worker_id=worker)]

    async def finish(self, job: Job) -> None:
        """Delete a job, unless it was deleted before or belongs to another worker by now."""
        await self.execute(_FINISH, job=job.id, worker=job.worker_id)

    async def release(self, job: Job) -> None:
        """Release a job so that any worker can fetch it, unless it belongs to another worker by now."""
        await self.execute(_RELEASE, job=job.id, worker=job.worker_id)

    async def send_heartbeat(self, worker: int) -> None:
        """Record that a worker is alive."""
        await self.execute(_HEARTBEAT, worker=worker)

    def worker_lock(self, worker: int) -> int:
        """Return the key of the lock that a worker holds while it is alive."""
        return int.from_bytes(struct.pack(">II", self._lock_class, worker & 0xFFFFFFFF), signed=True)

    async def find_dead_workers(self, connection: psycopg.AsyncConnection[Any], unlocked_timeout: float) -> list[int]:
        """Return the workers that are dead: they have sent no heartbeat until the timeout, or for `unlocked_timeout`
        seconds if they do not hold their lock."""
        values = {"timeout": self.heartbeat_timeout, "unlocked_timeout": unlocked_timeout, "locks": self._lock_class}
        async with connection.transaction():
            await self._set_search_path(connection)
            return [id for (id,) in await (await connection.execute(_DEAD_WORKERS, values)).fetchall()]

    async def read_clock(self, connection: psycopg.AsyncConnection[Any]) -> float:
        """Return the time of the database, in seconds since 1970."""
        row = await (await connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8")).fetchone()
        return row[0] if row is not None else 0.0

    async def forget_workers(self, connection: psycopg.AsyncConnection[Any], dead: Sequence[int]) -> None:
        """Delete the rows of those dead workers that died long ago."""
        async with connection.transaction():
            await self._set_search_path(connection)
            await connection.execute(_FORGET_WORKERS, {"dead": list(dead), "ttl": _WORKER_TTL})

    async def release_stalled(self, dead: Sequence[int]) -> list[str]:
        """Release the runs of dead workers and return their ids."""
        execute = self._app.connector.execute_query_all_async
        return [row["run_id"] for row in await execute(_RELEASE_STALLED, queue=self.name, dead=list(dead))]

    async def restore(self, worker: int, held: Mapping[str, int]) -> int:
        """Put back the jobs of runs that this worker holds and that a crash of Postgres has removed."""
        if not held:
            return 0
        execute = self._app.connector.execute_query_all_async
        missing = {row["id"] for row in await execute(_MISSING, jobs=[*held.values()])}
        lost = {run_id: job for run_id, job in held.items() if job in missing}
        if not lost:
            return 0
        values = {"queue": self.name, "tenant": self._tenant, "worker": worker}
        return len(await execute(_RESTORE, jobs=[*lost.values()], runs=[*lost], **values))

    async def note_start(self) -> None:
        """Record that the queue is in use, if Postgres has crashed since this was last recorded."""
        await self.execute(_NOTE_START)

    async def enqueue_orphans(self, connection: psycopg.AsyncConnection[Any], dead: Sequence[int]) -> list[str]:
        """Enqueue runs that are ready but in no queue and return their ids.

        Nothing is enqueued until every worker that is alive has sent a heartbeat since Postgres last crashed: a worker
        puts back its jobs before its next heartbeat.
        """
        async with connection.transaction():
            await self._set_search_path(connection)
            await connection.execute(_NOTE_START)
            found = await (await connection.execute(_HAS_UNCONFIRMED_WORKERS, {"dead": list(dead)})).fetchone()
            if found != (False,):
                return []
            cursor = await connection.execute(_ORPHANS, {"tenant": self._tenant, "queue": self.name})
            runs = [run_id for (run_id,) in await cursor.fetchall()]
            if runs:
                await self.enqueue(runs, connection, self._tenant)
        return runs

    async def _set_search_path(self, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute(sql.SQL("SET LOCAL search_path = {}").format(sql.Identifier(self._schema)))


class HeartbeatRecord:
    """A worker's own heartbeats. They tell a leader whether live workers may look dead after an outage.

    A live worker has sent a heartbeat at most one interval before the database became unreachable. A timeout therefore
    allows for a short outage; after a longer one, live workers look dead until they had time to reconnect. A worker
    that has just started does not know whether there was an outage.
    """

    def __init__(self, interval: float, reconnect_time: float, started: float) -> None:
        self.last = started
        """Time of the last heartbeat."""
        self._interval, self._reconnect_time = interval, reconnect_time
        self._outage = -math.inf, started + reconnect_time
        """The last heartbeat before the last outage, and the time at which all live workers have reconnected."""
        self._clock: float | None = None
        """The difference between the clock of the database and that of this process, at most."""

    def add(self, now: float, *, has_failed: bool) -> None:
        """Add a heartbeat; `has_failed` if attempts before it failed."""
        if has_failed or now - self.last > 2 * self._interval:
            before, end = self._outage
            if now >= end:
                before = self.last
            self._outage = min(before, self.last), now + self._reconnect_time
        self.last = now

    def note_clock(self, asked: float, now: float, clock: float) -> None:
        """Compare the clock of the database, by which heartbeats are judged, with that of this process. If it was set
        forward, live workers look dead until they have sent another heartbeat."""
        forward = 0.0 if self._clock is None else clock - now - self._clock
        self._clock = clock - asked
        if forward > _CLOCK_TOLERANCE:
            logger.warning("clock of the database was set forward: seconds=%.1f", forward)
            self._outage = -math.inf, now + self._reconnect_time

    def unlocked_timeout(self, now: float, connected_for: float) -> float:
        """Return the seconds without a heartbeat after which a worker without its lock is dead: half of the timeout, or
        all of it. Infinity if it is unknown whether a worker without a recent heartbeat is dead.

        A restart of Postgres releases the locks of live workers, even if it is too short for a heartbeat to fail, and
        breaks the connection of the leader. A new connection is therefore no evidence about locks.
        """
        timeout = self._interval * _MISSED_HEARTBEATS
        timeouts = (timeout / 2, timeout) if connected_for >= self._reconnect_time else (timeout,)
        return next((each for each in timeouts if self.can_judge(now, each)), math.inf)

    def can_judge(self, now: float, timeout: float) -> bool:
        """Return whether a worker that has sent no heartbeat for `timeout` seconds is dead."""
        tolerated = timeout - self._interval
        before, end = self._outage
        return now - self.last <= tolerated and not before + tolerated < now < end


class QueueWorker:
    """Queue worker: fetches runs and executes them with `execute_run`, which returns False if another worker must
    continue the run; `on_released` is then called. A lost database connection stops neither the worker nor its runs."""

    def __init__(
        self,
        queue: Queue,
        execute_run: Callable[[str], Awaitable[bool]],
        concurrency: int,
        on_registered: Callable[[], None],
        on_released: Callable[[str], Awaitable[None]],
    ) -> None:
        self._queue = queue
        self._execute_run = execute_run
        self._on_registered = on_registered
        self._on_released = on_released
        self._concurrency = concurrency
        self._slots = asyncio.Semaphore(concurrency)
        self.id: int | None = None
        """Its worker id in the queue."""
        self._wakeup = asyncio.Event()
        self._is_drained = False
        """Whether the last fetch found fewer jobs than requested."""
        self._runs = BackgroundTasks("worker run")
        self._heartbeat = BackgroundTasks("worker heartbeat")
        self._held: dict[str, int | None] = {}
        """Job of each run that this worker has fetched and not finished."""
        self._deleted: set[str] = set()
        """Runs that ended in a commit which has deleted their job."""
        self._recheck_until = 0.0
        self._heartbeats = self._start_record()
        self.fetched = 0
        """Runs fetched since the start; the next two count runs finished and released to other workers."""
        self.finished = 0
        self.released = 0

    @property
    def running(self) -> int:
        """Number of runs that execute here."""
        return len(self._runs)

    @property
    def heartbeat_age(self) -> float:
        """Seconds since the last successful heartbeat."""
        return time.monotonic() - self._heartbeats.last

    def unlocked_timeout(self, connected_for: float) -> float:
        """Return the seconds without a heartbeat after which a worker without its lock is dead; infinity after an
        outage of the database. The leader has been connected for `connected_for` seconds."""
        return self._heartbeats.unlocked_timeout(time.monotonic(), connected_for)

    async def check_clock(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Find out whether the clock of the database was set forward."""
        asked = time.monotonic()
        clock = await self._queue.read_clock(connection)
        self._heartbeats.note_clock(asked, time.monotonic(), clock)

    def held_jobs(self, run_ids: Iterable[str]) -> dict[str, int]:
        """Return the jobs of those runs that this worker has fetched."""
        return {run_id: job for run_id in run_ids if (job := self._held.get(run_id)) is not None}

    def note_deleted(self, run_ids: Iterable[str]) -> None:
        """Note that a commit has ended these runs and deleted their jobs."""
        self._deleted.update(run_id for run_id in run_ids if run_id in self._held)

    def has_ended(self, run_id: str) -> bool:
        """Return whether a commit of this process has ended the run and deleted its job."""
        return run_id in self._deleted

    def wake(self) -> None:
        """Check the queue for new runs now."""
        self._wakeup.set()

    async def run(self) -> None:
        """Fetch and execute runs until cancelled; executing runs are not affected by the cancellation."""
        await _retry_until_connected(self._queue.note_start)  # before its first heartbeat, which is the registration
        self.id = id = await _retry_until_connected(self._queue.jobs.register_worker)
        self._heartbeats = self._start_record()
        self._heartbeat.spawn(self._send_heartbeats(id))  # until `finish`, because runs may outlast this method
        self._heartbeat.spawn(hold_shared_lock(self._queue.url, self._queue.worker_lock(id)))
        self._on_registered()
        try:
            while True:
                async with self._slots:
                    jobs = await self._next_jobs(id)
                for job in jobs:
                    await self._slots.acquire()
                    self.fetched += 1
                    self._held[str(job.task_kwargs["run_id"])] = job.id
                    self._runs.spawn(self._run_job(job)).add_done_callback(lambda _: self._slots.release())
        finally:
            await self._release_unstarted(id)

    async def finish(self, limit: float) -> None:
        """Release unfinished runs to other workers and deregister this worker."""
        await self._runs.wait(limit)
        if self.id is None:
            return
        await self._heartbeat.close()
        try:
            async with asyncio.timeout(limit):
                await self._queue.jobs.unregister_worker(self.id)
        except (ConnectorException, TimeoutError) as error:
            logger.warning("worker not deregistered: error=%s", error)

    async def _release_unstarted(self, id: int) -> None:
        """Release jobs whose fetch was cancelled after the server had assigned them."""
        with contextlib.suppress(ConnectorException):
            held = set(self._held.values())
            for job in await self._queue.list_held(id):
                if job.id not in held:
                    await self._queue.release(job)
                    await self._on_released(str(job.task_kwargs["run_id"]))

    async def _next_jobs(self, id: int) -> list[Job]:
        """Wait for jobs, at most as many as this worker has slots for."""
        while True:
            if self._is_drained:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_INTERVAL):
                        await self._wakeup.wait()
                await asyncio.sleep(min(_BUSY_DELAY * self.running, _MAX_BUSY_DELAY))
            self._wakeup.clear()
            if jobs := await _retry_until_connected(lambda: self._fetch(id)):
                return jobs

    async def _fetch(self, id: int) -> list[Job]:
        """Fetch the next jobs. If the response to a fetch was lost, the server may have assigned jobs to this worker
        that no other would run, so check for such jobs first for a while."""
        limit = max(1, min(_MAX_FETCH, self._concurrency - self.running))
        if time.monotonic() < self._recheck_until:
            held = set(self._held.values())
            if lost := [job for job in await self._queue.list_held(id) if job.id not in held]:
                self._is_drained = False
                return lost[:limit]
        try:
            found = await self._queue.fetch(id, limit)
            self._is_drained = len(found) < limit
            return found
        except ConnectorException:
            self._recheck_until = time.monotonic() + _RECHECK_PERIOD
            raise

    async def _run_job(self, job: Job) -> None:
        run_id, finished, failed = str(job.task_kwargs["run_id"]), False, False
        try:
            finished = await self._execute_run(run_id)
        except Exception:
            failed = True
            logger.exception("run failed to execute here: run=%s", run_id)
            await asyncio.sleep(_RETRY_DELAY)
        if not self.has_ended(run_id):
            await _retry_until_connected(lambda: self._queue.finish(job) if finished else self._queue.release(job))
        if self._held.get(run_id) == job.id:
            del self._held[run_id]
            self._deleted.discard(run_id)
        self.finished += finished
        self.released += not finished
        if not finished and not failed:
            await self._on_released(run_id)

    def _start_record(self) -> HeartbeatRecord:
        timeout = self._queue.heartbeat_timeout
        return HeartbeatRecord(timeout / _MISSED_HEARTBEATS, min(timeout, _RECONNECT_TIME), time.monotonic())

    async def _send_heartbeats(self, id: int) -> None:
        interval = delay = self._queue.heartbeat_timeout / _MISSED_HEARTBEATS
        has_failed = False
        while True:
            await asyncio.sleep(delay)
            try:
                async with asyncio.timeout(self._queue.heartbeat_timeout):  # a stopped server acknowledges packets
                    if has_failed:
                        await self._queue.note_start()
                    if restored := await self._queue.restore(id, self.held_jobs(self._held.keys() - self._deleted)):
                        logger.warning("jobs put back into the queue after a crash of Postgres: jobs=%d", restored)
                    await self._queue.send_heartbeat(id)
                self._heartbeats.add(time.monotonic(), has_failed=has_failed)
                delay, has_failed = interval, False
            except (ConnectorException, TimeoutError) as error:
                logger.warning("heartbeat failed: error=%s", error.__cause__ or error or "no response")
                delay, has_failed = min(interval, _RETRY_DELAY), True


def packaged_migrations(folder: Path | None = None) -> list[Path]:
    """Return all migrations of the installed procrastinate version, in order."""
    return sorted((folder or Path(SchemaManager.get_migrations_path())).glob("*.sql"), key=lambda path: path.name)


def application_name(schema: str, migrations: Sequence[Path]) -> str:
    """Return the application name of this process's queue connections; it contains the newest migration it knows."""
    newest = max((_migration_number(migration.name) for migration in migrations), default="")
    return f"{_APPLICATION_PREFIX}{newest} {schema[:_SCHEMA_LENGTH]}"


async def migrate_queue(url: str, schema: str, migrations: Sequence[Path]) -> list[str]:
    """Create the tables, or apply the pending migrations, and return their names."""
    async with await psycopg.AsyncConnection.connect(url, **CONNECTION_OPTIONS) as connection:
        await connection.execute("SELECT pg_advisory_lock(%s)", (_MIGRATION_LOCK,))  # held across several transactions
        await connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(schema)))
        applied = await _read_applied(connection, migrations)
        missing = [migration for migration in migrations if migration.name not in applied]
        if missing and await _older_version_is_running(connection, schema, migrations):
            missing = _drop_trailing_post(missing)
        for migration in missing:
            async with connection.transaction():
                await connection.execute(migration.read_bytes())
                await _record_applied(connection, [migration.name])
        await _disable_unused_triggers(connection)
        await _set_unlogged(connection)
        await connection.execute(_CREATE_STARTS_TABLE)
        await connection.execute("SELECT pg_advisory_unlock(%s)", (_MIGRATION_LOCK,))
        return [migration.name for migration in missing]


async def _disable_unused_triggers(connection: psycopg.AsyncConnection[Any]) -> None:
    unused = await connection.execute(_UNUSED_TRIGGERS)
    for (trigger,) in await unused.fetchall():
        disable = sql.SQL("ALTER TABLE procrastinate_jobs DISABLE TRIGGER {}").format(sql.Identifier(trigger))
        await connection.execute(disable)


async def _set_unlogged(connection: psycopg.AsyncConnection[Any]) -> None:
    """Make the tables of jobs unlogged. The numbers of jobs stay logged, so that none is used again after a crash."""
    rows = await (await connection.execute(_LOGGED, ([*_UNLOGGED_TABLES],))).fetchall()
    async with connection.transaction():
        for table in (name for name in _UNLOGGED_TABLES if (name,) in rows):
            await connection.execute(sql.SQL("ALTER TABLE {} SET UNLOGGED").format(sql.Identifier(table)))
        for (sequence,) in await (await connection.execute(_UNLOGGED_SEQUENCES)).fetchall():
            await connection.execute(sql.SQL("ALTER SEQUENCE {} SET LOGGED").format(sql.Identifier(sequence)))


async def _read_applied(connection: psycopg.AsyncConnection[Any], migrations: Sequence[Path]) -> set[str]:
    """Return the names of the applied migrations; new tables are created with all of them."""
    async with connection.transaction():
        await connection.execute(_CREATE_MIGRATIONS_TABLE)
        rows = await (await connection.execute("SELECT name FROM queue_steps")).fetchall()
        if rows:
            return {row[0] for row in rows}
        names = [migration.name for migration in migrations]
        await connection.execute(SchemaManager.get_schema())
        await _record_applied(connection, names)
        return set(names)


async def _record_applied(connection: psycopg.AsyncConnection[Any], names: Sequence[str]) -> None:
    await connection.execute("INSERT INTO queue_steps SELECT unnest(%s::text[])", (list(names),))


async def _older_version_is_running(
    connection: psycopg.AsyncConnection[Any], schema: str, migrations: Sequence[Path]
) -> bool:
    rows = await (await connection.execute(_QUEUE_CONNECTIONS, (_APPLICATION_PREFIX,))).fetchall()
    others = [row[0] for row in rows if row[0].endswith(f" {schema[:_SCHEMA_LENGTH]}")]
    return any(other < application_name(schema, migrations) for other in others)


def _drop_trailing_post(migrations: list[Path]) -> list[Path]:
    """Drop trailing post-deployment migrations; those before a later `pre` migration are required by it."""
    while migrations and "_post_" in migrations[-1].name:
        migrations = migrations[:-1]
    return migrations


def _migration_number(name: str) -> str:
    """Return the number in the name of a migration, for example `03.04.00_50`."""
    return name[:11]


async def _retry_until_connected(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Retry an operation until the database is back."""
    while True:
        try:
            return await work()
        except ConnectorException as error:
            logger.warning("queue unreachable: error=%s", error.__cause__ or error)
            await asyncio.sleep(_RETRY_DELAY)
