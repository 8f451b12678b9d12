"""Runs that wait for somebody to run them, in procrastinate's tables beside the store's own.

Of procrastinate this uses the queue: jobs, who has fetched which, heartbeats, and which jobs are stalled. Its worker is
not used: it ends with the first connection that is lost, waits for all its jobs to end before it begins again, and has
no heartbeat meanwhile, so that after every restart of Postgres turns would be taken from processes that are well.
"""

import contextlib
import logging
from collections.abc import Generator
from typing import Any, LiteralString

import psycopg
from procrastinate import App, PsycopgConnector
from procrastinate.exceptions import AlreadyEnqueued, ConnectorException
from procrastinate.jobs import Job, Status
from psycopg import sql

from atlas_agents.dispatch.bus import LINE
from atlas_agents.dispatch.queue_schema import bring_up_to_date, mark, packaged_steps

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
