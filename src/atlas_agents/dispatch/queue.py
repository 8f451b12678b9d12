"""Runs that wait for somebody to run them, in procrastinate's tables beside the store's own.

Of procrastinate this uses the queue: jobs, who has fetched which, heartbeats, and which jobs are stalled. Its worker is
not used: it ends with the first connection that is lost, waits for all its jobs to end before it begins again, and has
no heartbeat meanwhile, so that after every restart of Postgres turns would be taken from processes that are well.
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

from atlas_agents.core.tasks import BackgroundTasks
from atlas_agents.dispatch.notifications import LINE

_MAKING = 0x41544C51
_FIRST = "03.04.00_50_post_add_retry_failed_job_procedure.sql"
"""The last step that the tables have of which nobody wrote down how they were made."""
_MARK = "atlas-queue "
_ROOM = 36
"""Letters of the schema that fit beside it into the 63 that Postgres keeps."""
_KEEP = "CREATE TABLE IF NOT EXISTS queue_steps (name TEXT PRIMARY KEY)"
_OTHERS = """
SELECT application_name FROM pg_stat_activity WHERE datname = current_database()
AND starts_with(application_name, %s)"""


def packaged_steps(folder: Path | None = None) -> list[Path]:
    """All steps that the installed version knows, in their order."""
    return sorted((folder or Path(SchemaManager.get_migrations_path())).glob("*.sql"), key=lambda step: step.name)


def mark(schema: str, steps: Sequence[Path]) -> str:
    """How a process that is at the queue names its connections: by the newest step that its code knows."""
    newest = max((_number(step.name) for step in steps), default="")
    return f"{_MARK}{newest} {schema[:_ROOM]}"


async def bring_up_to_date(url: str, schema: str, steps: Sequence[Path]) -> list[str]:
    """Make the tables, or take the steps that they have not taken yet; which these were."""
    async with await psycopg.AsyncConnection.connect(url, **LINE) as line:
        await line.execute("SELECT pg_advisory_lock(%s)", (_MAKING,))  # over several transactions
        await line.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(schema)))
        taken = await _taken(line, steps)
        missing = [step for step in steps if step.name not in taken]
        if missing and await _older_code_is_here(line, schema, steps):
            missing = _without_last_posts(missing)
        for step in missing:
            async with line.transaction():
                await line.execute(step.read_bytes())
                await _write_down(line, [step.name])
        await line.execute("SELECT pg_advisory_unlock(%s)", (_MAKING,))
        return [step.name for step in missing]


async def _taken(line: psycopg.AsyncConnection[Any], steps: Sequence[Path]) -> set[str]:
    async with line.transaction():
        await line.execute(_KEEP)
        rows = await (await line.execute("SELECT name FROM queue_steps")).fetchall()
        if rows:
            return {row[0] for row in rows}
        found = await (await line.execute("SELECT to_regclass('procrastinate_jobs')")).fetchone()
        names = [step.name for step in steps]
        if found is None or found[0] is None:
            await line.execute(SchemaManager.get_schema())
        else:
            names = [name for name in names if name <= _FIRST]
        await _write_down(line, names)
        return set(names)


async def _write_down(line: psycopg.AsyncConnection[Any], names: Sequence[str]) -> None:
    await line.execute("INSERT INTO queue_steps SELECT unnest(%s::text[])", (list(names),))


async def _older_code_is_here(line: psycopg.AsyncConnection[Any], schema: str, steps: Sequence[Path]) -> bool:
    rows = await (await line.execute(_OTHERS, (_MARK,))).fetchall()
    others = [row[0] for row in rows if row[0].endswith(f" {schema[:_ROOM]}")]
    return any(other < mark(schema, steps) for other in others)


def _without_last_posts(steps: list[Path]) -> list[Path]:
    """What comes before a later `pre` has waited long enough: that one counts on it."""
    while steps and "_post_" in steps[-1].name:
        steps = steps[:-1]
    return steps


def _number(name: str) -> str:
    """`03.04.00_50` of a step's name."""
    return name[:11]


logger = logging.getLogger(__name__)
TASK = "atlas.run"
STALLED = 8.0
"""Seconds without a heartbeat after which a worker is taken for lost."""
_ORPHANS = """
SELECT r.id, r.urgency FROM runs r WHERE r.tenant = %(tenant)s AND r.status IN ('running', 'waiting')
AND NOT EXISTS (SELECT 1 FROM procrastinate_jobs j WHERE j.queue_name = %(queue)s AND j.status IN ('todo', 'doing')
    AND j.args->>'run_id' = r.id)"""


def queue_of(tenant: str) -> str:
    """The name of a tenant's queue."""
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
        """Connect, and have procrastinate's tables; the schema is there already."""
        if taken := await bring_up_to_date(self._url, self._schema, self._steps):
            logger.info("the tables of the queue were brought up to date: %s", ", ".join(taken))
        await self._app.open_async()

    async def close(self) -> None:
        await self._app.close_async()

    async def put(self, run_id: str, urgency: int, session: psycopg.AsyncConnection[Any] | None = None) -> None:
        """Have a run run; within the transaction of a session, if one is given."""
        try:
            await self._app.configure_task(
                TASK, queue=self.name, priority=urgency, connection=session, lock=None
            ).defer_async(run_id=run_id)
        except ConnectorException as error:
            raise error.__cause__ or error from None  # the store knows what its own errors mean

    async def execute(self, statement: LiteralString, **values: Any) -> None:
        """Have something written beside the queue, by a connection of its pool."""
        await self._app.connector.execute_query_async(statement, **values)

    async def register(self) -> int:
        return await self.jobs.register_worker()

    async def unregister(self, worker: int) -> None:
        await self.jobs.unregister_worker(worker)

    async def beat(self, worker: int) -> None:
        await self.jobs.update_heartbeat(worker)

    async def fetch(self, worker: int) -> Job | None:
        """The most urgent one, and of those the oldest."""
        return await self.jobs.fetch_job(queues=[self.name], worker_id=worker)

    async def held_by(self, worker: int) -> list[Job]:
        """Return the jobs that this worker has fetched and not finished."""
        return [*await self.jobs.list_jobs_async(queue=self.name, status=Status.DOING.value, worker_id=worker)]

    async def finish(self, job: Job) -> None:
        """Delete a job. A job that is not there was finished before, and the answer to that was lost."""
        with _suppress_missing():
            await self.jobs.finish_job(job, Status.SUCCEEDED, delete_job=True)

    async def put_back(self, job: Job) -> None:
        """Let any worker fetch this job again. A job that nobody holds was put back before, or finished."""
        with _suppress_missing():
            await self.jobs.retry_job(job)

    async def put_back_stalled(self) -> list[str]:
        """The runs that workers had who are not heard of any more; others may have them."""
        found: list[str] = []
        for job in await self.jobs.get_stalled_jobs(queue=self.name, seconds_since_heartbeat=self.lost_after):
            with _suppress_missing():  # it was finished just now
                await self.jobs.retry_job(job)
                found.append(str(job.task_kwargs["run_id"]))
        return found

    async def put_orphans(self, line: psycopg.AsyncConnection[Any]) -> list[str]:
        """The runs whose turn it is and that stand in no queue; they are put there."""
        async with line.transaction():
            await line.execute(sql.SQL("SET LOCAL search_path = {}").format(sql.Identifier(self._schema)))
            asked = await line.execute(_ORPHANS, {"tenant": self._tenant, "queue": self.name})
            rows = await asked.fetchall()
            for run_id, urgency in rows:
                await self.put(run_id, urgency, line)
        return [run_id for run_id, _ in rows]


@contextlib.contextmanager
def _suppress_missing() -> Generator[None]:
    """Ignore that procrastinate does not find a job in the expected state; a lost connection is raised as before."""
    try:
        yield
    except ConnectorException as error:
        if not isinstance(error.__cause__, psycopg.errors.RaiseException):
            raise
        logger.info("the job was not in the queue any more: %s", error.__cause__)


__all__ = ["STALLED", "AlreadyEnqueued", "ConnectorException", "Job", "Queue", "queue_of"]


T = TypeVar("T")
_BEATS = 4
"""So many heartbeats are missed before a worker is taken for lost."""
_LOOK = 5.0
_PAUSE = 0.5
_RECHECK = 30.0
"""Seconds after a failed fetch during which this worker looks for jobs it was given without learning of it."""


class QueueWorker:
    """`perform` runs a run to its end; False if it is not over, and somebody else is to go on with it. A lost database
    ends neither the worker nor its runs: both go on when it is back."""

    def __init__(self, queue: Queue, perform: Callable[[str], Awaitable[bool]], at_once: int) -> None:
        self._queue = queue
        self._perform = perform
        self._room = asyncio.Semaphore(at_once)
        self.id: int | None = None
        """Its number in the queue."""
        self.on_registered: Callable[[], None] = lambda: None
        self.on_left: Callable[[str], Awaitable[None]] = _nobody
        """Called with a run that others may have now."""
        self._news = asyncio.Event()
        self._runs = BackgroundTasks("worker run")
        self._heartbeat = BackgroundTasks("worker heartbeat")
        self._held: set[int | None] = set()
        self._recheck_until = 0.0
        self._beaten = time.monotonic()
        self.taken = 0
        """Runs that were fetched, ever; so are the next two."""
        self.finished = 0
        self.given_back = 0

    @property
    def at_hand(self) -> int:
        """Runs that are under way here."""
        return len(self._runs)

    @property
    def silent(self) -> float:
        """Seconds since this worker could last say that it is well."""
        return time.monotonic() - self._beaten

    def wake(self) -> None:
        """There may be something to do."""
        self._news.set()

    async def run(self) -> None:
        """Until cancelled; runs that are under way are not touched by that."""
        self.id = id = await _patiently(self._queue.register)
        self._beaten = time.monotonic()
        self._heartbeat.spawn(self._beat(id))  # until `finish`, because runs may outlast this method
        self.on_registered()
        while True:
            await self._room.acquire()
            job = await self._next(id)
            self.taken += 1
            self._held.add(job.id)
            self._runs.spawn(self._do(job)).add_done_callback(lambda _: self._room.release())

    async def finish(self, limit: float) -> None:
        """After the end: what was not over is given to others, and the worker signs off."""
        await self._runs.wait(limit)
        if self.id is None:
            return
        await self._heartbeat.close()
        try:
            async with asyncio.timeout(limit):
                await self._queue.unregister(self.id)
        except (ConnectorException, TimeoutError) as trouble:
            logger.warning("the worker could not sign off: %s", trouble)

    async def _next(self, id: int) -> Job:
        while True:
            self._news.clear()
            job = await _patiently(lambda: self._fetch(id))
            if job is not None:
                return job
            try:
                async with asyncio.timeout(_LOOK):
                    await self._news.wait()
            except TimeoutError:
                pass

    async def _fetch(self, id: int) -> Job | None:
        """Fetch the next job. If the answer to a fetch was lost, the server may have assigned a job to this worker that
        no one else would ever run: for a while, look for such jobs first."""
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

    async def _do(self, job: Job) -> None:
        run_id, over, broken = str(job.task_kwargs["run_id"]), False, False
        try:
            over = await self._perform(run_id)
        except Exception:
            broken = True
            logger.exception("the run %s could not be run here", run_id)
            await asyncio.sleep(_PAUSE)
        await _patiently(lambda: self._queue.finish(job) if over else self._queue.put_back(job))
        self._held.discard(job.id)
        self.finished += over
        self.given_back += not over
        if not over and not broken:
            await self.on_left(run_id)

    async def _beat(self, id: int) -> None:
        while True:
            await asyncio.sleep(self._queue.lost_after / _BEATS)
            try:
                await self._queue.beat(id)
                self._beaten = time.monotonic()
            except ConnectorException as trouble:
                logger.warning("this worker cannot say that it is well: %s", trouble.__cause__ or trouble)


async def _nobody(run_id: str) -> None:
    """Nobody is told."""


async def _patiently(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Until the database is there."""
    while True:
        try:
            return await work()
        except ConnectorException as trouble:
            logger.warning("the queue cannot be reached at the moment: %s", trouble.__cause__ or trouble)
            await asyncio.sleep(_PAUSE)
