"""Run queue on procrastinate's tables, which live beside the store's own.

Only procrastinate's queue is used: jobs, which worker fetched them, heartbeats and stalled jobs. Its worker is not
used: it stops when it loses its first connection, waits for all its jobs before it starts again and sends no heartbeat
meanwhile, so that every Postgres restart would take runs away from healthy processes.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from pathlib import Path
from typing import Any, LiteralString, TypeVar

import psycopg
from procrastinate import App, PsycopgConnector
from procrastinate.exceptions import AlreadyEnqueued, ConnectorException
from procrastinate.jobs import Job, Status
from procrastinate.schema import SchemaManager
from psycopg import sql

from atlas_agents.core.aio import BackgroundTasks
from atlas_agents.dispatch.notifications import LINE

_MAKING = 0x41544C51
_FIRST = "03.04.00_50_post_add_retry_failed_job_procedure.sql"
"""The last migration contained in tables that have no record of how they were created."""
_MARK = "atlas-queue "
_SCHEMA_LENGTH = 36
"""Characters of the schema's name that fit into the 63 that Postgres keeps."""
_CREATE_STEPS = "CREATE TABLE IF NOT EXISTS queue_steps (name TEXT PRIMARY KEY)"
_OTHERS = """
SELECT application_name FROM pg_stat_activity WHERE datname = current_database()
AND starts_with(application_name, %s)"""


def packaged_steps(folder: Path | None = None) -> list[Path]:
    """Return all migrations of the installed procrastinate version, in order."""
    return sorted((folder or Path(SchemaManager.get_migrations_path())).glob("*.sql"), key=lambda step: step.name)


def mark(schema: str, steps: Sequence[Path]) -> str:
    """Return the application name of this process's queue connections; it contains the newest migration it knows."""
    newest = max((_number(step.name) for step in steps), default="")
    return f"{_MARK}{newest} {schema[:_SCHEMA_LENGTH]}"


async def bring_up_to_date(url: str, schema: str, steps: Sequence[Path]) -> list[str]:
    """Create the tables, or apply the pending migrations, and return their names."""
    async with await psycopg.AsyncConnection.connect(url, **LINE) as connection:
        await connection.execute("SELECT pg_advisory_lock(%s)", (_MAKING,))  # held across several transactions
        await connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(schema)))
        taken = await _acquire_lock(connection, steps)
        missing = [step for step in steps if step.name not in taken]
        if missing and await _older_version_is_running(connection, schema, steps):
            missing = _without_last_posts(missing)
        for step in missing:
            async with connection.transaction():
                await connection.execute(step.read_bytes())
                await _write_down(connection, [step.name])
        await connection.execute("SELECT pg_advisory_unlock(%s)", (_MAKING,))
        return [step.name for step in missing]


async def _acquire_lock(connection: psycopg.AsyncConnection[Any], steps: Sequence[Path]) -> set[str]:
    async with connection.transaction():
        await connection.execute(_CREATE_STEPS)
        rows = await (await connection.execute("SELECT name FROM queue_steps")).fetchall()
        if rows:
            return {row[0] for row in rows}
        found = await (await connection.execute("SELECT to_regclass('procrastinate_jobs')")).fetchone()
        names = [step.name for step in steps]
        if found is None or found[0] is None:
            await connection.execute(SchemaManager.get_schema())
        else:
            names = [name for name in names if name <= _FIRST]
        await _write_down(connection, names)
        return set(names)


async def _write_down(connection: psycopg.AsyncConnection[Any], names: Sequence[str]) -> None:
    await connection.execute("INSERT INTO queue_steps SELECT unnest(%s::text[])", (list(names),))


async def _older_version_is_running(
    connection: psycopg.AsyncConnection[Any], schema: str, steps: Sequence[Path]
) -> bool:
    rows = await (await connection.execute(_OTHERS, (_MARK,))).fetchall()
    others = [row[0] for row in rows if row[0].endswith(f" {schema[:_SCHEMA_LENGTH]}")]
    return any(other < mark(schema, steps) for other in others)


def _without_last_posts(steps: list[Path]) -> list[Path]:
    """Drop trailing post-deployment migrations; those before a later `pre` migration are required by it."""
    while steps and "_post_" in steps[-1].name:
        steps = steps[:-1]
    return steps


def _number(name: str) -> str:
    """Return the number of a migration, for example `03.04.00_50`."""
    return name[:11]


logger = logging.getLogger(__name__)
TASK = "atlas.run"
STALLED = 8.0
"""Seconds without a heartbeat after which a worker is considered dead."""
_ORPHANS = """
SELECT r.id, r.urgency FROM runs r WHERE r.tenant = %(tenant)s AND r.status IN ('running', 'waiting')
AND NOT EXISTS (SELECT 1 FROM procrastinate_jobs j WHERE j.queue_name = %(queue)s AND j.status IN ('todo', 'doing')
    AND j.args->>'run_id' = r.id)"""


def queue_of(tenant: str) -> str:
    """Return the name of a tenant's queue."""
    return f"atlas:{tenant}"


class Queue:
    """The queue of one tenant; `schema` is the store's."""

    def __init__(self, url: str, schema: str, tenant: str, lost_after: float = STALLED) -> None:
        self.lost_after = lost_after
        self.name = queue_of(tenant)
        self._url = url
        self._schema = schema
        self._tenant = tenant
        self._steps = packaged_steps()
        connector = PsycopgConnector(
            conninfo=url,
            min_size=1,
            max_size=4,
            timeout=5.0,
            kwargs={
                **LINE,
                "application_name": mark(schema, self._steps),
                "options": f"-c search_path={schema}",
            },
            name="atlas-queue",
        )
        self._app = App(connector=connector)

    @property
    def jobs(self) -> Any:
        return self._app.job_manager

    async def open(self) -> None:
        """Connect and migrate procrastinate's tables; the schema must exist."""
        if taken := await bring_up_to_date(self._url, self._schema, self._steps):
            logger.info("queue tables migrated: migrations=%s", ", ".join(taken))
        await self._app.open_async()

    async def close(self) -> None:
        await self._app.close_async()

    async def put(self, run_id: str, urgency: int, session: psycopg.AsyncConnection[Any] | None = None) -> None:
        """Enqueue a run, inside the transaction of `session` if one is given."""
        try:
            await self._app.configure_task(
                TASK, queue=self.name, priority=urgency, connection=session, lock=None
            ).defer_async(run_id=run_id)
        except ConnectorException as error:
            raise error.__cause__ or error from None  # the store maps its own errors

    async def execute(self, statement: LiteralString, **values: Any) -> None:
        """Execute a statement on a connection of the queue's pool."""
        await self._app.connector.execute_query_async(statement, **values)

    async def register(self) -> int:
        return await self.jobs.register_worker()

    async def unregister(self, worker: int) -> None:
        await self.jobs.unregister_worker(worker)

    async def beat(self, worker: int) -> None:
        await self.jobs.update_heartbeat(worker)

    async def fetch(self, worker: int) -> Job | None:
        """Fetch the most urgent job, the oldest first."""
        return await self.jobs.fetch_job(queues=[self.name], worker_id=worker)

    async def held_by(self, worker: int) -> list[Job]:
        """Return the jobs that this worker has fetched and not finished."""
        return [*await self.jobs.list_jobs_async(queue=self.name, status=Status.DOING.value, worker_id=worker)]

    async def finish(self, job: Job) -> None:
        """Delete a job. A job that is missing was finished before, and the response to that was lost."""
        with _suppress_missing():
            await self.jobs.finish_job(job, Status.SUCCEEDED, delete_job=True)

    async def put_back(self, job: Job) -> None:
        """Release a job so that any worker can fetch it. A job without a holder was released or finished before."""
        with _suppress_missing():
            await self.jobs.retry_job(job)

    async def put_back_stalled(self) -> list[str]:
        """Release the runs of workers without a heartbeat and return their ids."""
        found: list[str] = []
        for job in await self.jobs.get_stalled_jobs(queue=self.name, seconds_since_heartbeat=self.lost_after):
            with _suppress_missing():  # finished just now
                await self.jobs.retry_job(job)
                found.append(str(job.task_kwargs["run_id"]))
        return found

    async def put_orphans(self, connection: psycopg.AsyncConnection[Any]) -> list[str]:
        """Enqueue runs that are ready but in no queue and return their ids."""
        async with connection.transaction():
            await connection.execute(sql.SQL("SET LOCAL search_path = {}").format(sql.Identifier(self._schema)))
            asked = await connection.execute(_ORPHANS, {"tenant": self._tenant, "queue": self.name})
            rows = await asked.fetchall()
            for run_id, urgency in rows:
                await self.put(run_id, urgency, connection)
        return [run_id for run_id, _ in rows]


@contextlib.contextmanager
def _suppress_missing() -> Generator[None]:
    """Ignore that procrastinate does not find a job in the expected state; a lost connection is still raised."""
    try:
        yield
    except ConnectorException as error:
        if not isinstance(error.__cause__, psycopg.errors.RaiseException):
            raise
        logger.info("job no longer in the queue: %s", error.__cause__)


__all__ = ["STALLED", "AlreadyEnqueued", "ConnectorException", "Job", "Queue", "queue_of"]


T = TypeVar("T")
_MISSED_HEARTBEATS = 4
"""Number of missed heartbeats after which a worker is considered dead."""
_LOOK = 5.0
_PAUSE = 0.5
_RECHECK = 30.0
"""Seconds after a failed fetch during which this worker looks for jobs that were assigned to it unnoticed."""


class QueueWorker:
    """Queue worker: fetches runs and executes them with `perform`, which returns False if another worker must
    continue the run. A lost database connection stops neither the worker nor its runs; both continue once it is
    back."""

    def __init__(self, queue: Queue, perform: Callable[[str], Awaitable[bool]], at_once: int) -> None:
        self._queue = queue
        self._execute_run = perform
        self._slots = asyncio.Semaphore(at_once)
        self.id: int | None = None
        """Its worker id in the queue."""
        self.on_registered: Callable[[], None] = lambda: None
        self.on_left: Callable[[str], Awaitable[None]] = _ignore
        """Called with a run that was released to other workers."""
        self._subscriber = asyncio.Event()
        self._runs = BackgroundTasks("worker run")
        self._heartbeat = BackgroundTasks("worker heartbeat")
        self._held: set[int | None] = set()
        self._recheck_until = 0.0
        self._beaten = time.monotonic()
        self.taken = 0
        """Counters since the start: runs fetched; the next two likewise."""
        self.finished = 0
        self.given_back = 0

    @property
    def at_hand(self) -> int:
        """Number of runs that execute here."""
        return len(self._runs)

    @property
    def silent(self) -> float:
        """Seconds since the last successful heartbeat."""
        return time.monotonic() - self._beaten

    def wake(self) -> None:
        """Check the queue for new runs now."""
        self._subscriber.set()

    async def run(self) -> None:
        """Fetch and execute runs until cancelled; executing runs are not affected by the cancellation."""
        self.id = id = await _retry_until_connected(self._queue.register)
        self._beaten = time.monotonic()
        self._heartbeat.spawn(self._send_heartbeats(id))  # until `finish`, because runs may outlast this method
        self.on_registered()
        while True:
            await self._slots.acquire()
            job = await self._next(id)
            self.taken += 1
            self._held.add(job.id)
            self._runs.spawn(self._run_job(job)).add_done_callback(lambda _: self._slots.release())

    async def finish(self, limit: float) -> None:
        """Release unfinished runs to other workers and deregister this worker."""
        await self._runs.wait(limit)
        if self.id is None:
            return
        await self._heartbeat.close()
        try:
            async with asyncio.timeout(limit):
                await self._queue.unregister(self.id)
        except (ConnectorException, TimeoutError) as error:
            logger.warning("worker not deregistered: error=%s", error)

    async def _next(self, id: int) -> Job:
        while True:
            self._subscriber.clear()
            job = await _retry_until_connected(lambda: self._fetch(id))
            if job is not None:
                return job
            try:
                async with asyncio.timeout(_LOOK):
                    await self._subscriber.wait()
            except TimeoutError:
                pass

    async def _fetch(self, id: int) -> Job | None:
        """Fetch the next job. If the response to a fetch was lost, the server may have assigned a job to this worker
        that no other would run, so check for such jobs first for a while."""
        if time.monotonic() < self._recheck_until:
            held = set(self._held)
            for job in await self._queue.held_by(id):
                if job.id not in held:
                    return job
        try:
            return await self._queue.fetch(id)
        except ConnectorException:
            self._recheck_until = time.monotonic() + _RECHECK
            raise

    async def _run_job(self, job: Job) -> None:
        run_id, over, broken = str(job.task_kwargs["run_id"]), False, False
        try:
            over = await self._execute_run(run_id)
        except Exception:
            broken = True
            logger.exception("run failed to execute here: run=%s", run_id)
            await asyncio.sleep(_PAUSE)
        await _retry_until_connected(lambda: self._queue.finish(job) if over else self._queue.put_back(job))
        self._held.discard(job.id)
        self.finished += over
        self.given_back += not over
        if not over and not broken:
            await self.on_left(run_id)

    async def _send_heartbeats(self, id: int) -> None:
        while True:
            await asyncio.sleep(self._queue.lost_after / _MISSED_HEARTBEATS)
            try:
                await self._queue.beat(id)
                self._beaten = time.monotonic()
            except ConnectorException as error:
                logger.warning("heartbeat failed: error=%s", error.__cause__ or error)


async def _ignore(run_id: str) -> None:
    """Default callback: no one is notified."""


async def _retry_until_connected(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Retry an operation until the database is back."""
    while True:
        try:
            return await work()
        except ConnectorException as error:
            logger.warning("queue unreachable: error=%s", error.__cause__ or error)
            await asyncio.sleep(_PAUSE)
