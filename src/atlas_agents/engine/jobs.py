"""The jobs of a house: what is asked of agents by agents or by the clock, and who sees to it.

A job's turn goes through the same loop as any other, in a session of its own. All that a job comes to stands in its row
first: a process that dies in between goes on from there.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from atlas_agents.core.clock import Alarm
from atlas_agents.core.errors import Conflict, NotStored, StoreError
from atlas_agents.core.jobs import OPEN_JOB, AddJob, JobRow, JobState, RetryJob
from atlas_agents.core.office import Office
from atlas_agents.core.store import RunRow
from atlas_agents.engine.job_work import Turns, Work
from atlas_agents.engine.schedules import Schedules
from atlas_agents.engine.stream import AtlasStream
from atlas_agents.tools.beat import Beat
from atlas_agents.tools.errand import errand_of

logger = logging.getLogger(__name__)


class Jobs:
    """`async with atlas.jobs.at_work():` sees to them: at once when there is something new, and at every tick."""

    def __init__(self, turns: Turns, office: Office, beat: Beat) -> None:
        self._turns = turns
        self._office = office
        self._store = office.store
        self._beat = beat
        self._work = Work(turns, office, self._tell, self.wake)
        self._news: asyncio.Event | None = None
        self._looking: asyncio.Task[None] | None = None
        self._tasks: dict[str, asyncio.Task[bool]] = {}
        self._doing: set[str] = set()
        self._alarms: dict[str, Alarm] = {}
        self._seen: dict[str, JobState] = {}
        self._waiting: dict[str, list[asyncio.Future[JobRow]]] = {}
        self.schedules = Schedules(office.store, lambda: turns.tenant, office.clock, self.wake)
        """Tasks that recur."""
        self.on_change: Callable[[JobRow], object] = _nobody
        """Called with a job that is new, begun, put back or over."""

    async def list(
        self, *, states: Sequence[JobState] = (), limit: int = 100, before: int | None = None
    ) -> "list[JobRow]":
        """The latest first, in these states or in any; `before` is the `seq` to go on from."""
        return await self._store.jobs(self._turns.tenant, states=states, limit=limit, before=before)

    async def get(self, id: str) -> JobRow:
        """NotStored if there is none."""
        job = await self._store.job(self._turns.tenant, id)
        if job is None:
            raise NotStored(f"there is no job {id!r}")
        return job

    async def ended(self, id: str) -> JobRow:
        """Wait until a job is over, however it ends; NotStored if there is none."""
        waiter: asyncio.Future[JobRow] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(id, []).append(waiter)
        job = await self.get(id)
        return job if job.state not in OPEN_JOB else await waiter

    async def add(self, job: JobRow) -> JobRow:
        """Have something done; a job of this id that is there already is not added again."""
        (added,) = await self._store.commit(self._turns.tenant, [AddJob(job)])
        self.wake()
        return added

    async def cancel(self, id: str, by: str = "") -> JobRow:
        """End a job, and whatever was asked for in it; whoever asked is told. Conflict if it has ended."""
        return await self._work.end(await self.get(id), "cancelled", f"by {by}" if by else "on request")

    async def retry(self, id: str) -> JobRow:
        """Have a job tried again that failed, expired or was cancelled. Conflict if it is open, or done."""
        (job,) = await self._store.commit(self._turns.tenant, [RetryJob(id)])
        self._tell(job)
        self.wake()
        return job

    def on_turn(self, listener: Callable[[AtlasStream, str], object]) -> None:
        """Have this called with the stream of each turn that a job begins, and the agent that takes it."""
        self._work.on_turn = listener

    @asynccontextmanager
    async def at_work(self) -> AsyncGenerator[Self, None]:
        """Jobs are worked on as long as the block lasts. Turns that were cut short are to be recovered before."""
        self.start()
        try:
            yield self
        finally:
            await self.close()

    def start(self) -> None:
        """Begin to work on jobs, until `close`."""
        if self._looking is None:
            self._news = asyncio.Event()
            self._office.wake = self.wake
            self._looking = asyncio.create_task(self._look_on(self._news))

    async def close(self) -> None:
        """Leave all as it is; turns under way are not touched, and what they come to is seen at the next start."""
        looking, self._looking = self._looking, None
        if looking is None:
            return
        self._beat.leave(self._ring)
        tasks: list[asyncio.Task[Any]] = [looking, *self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for alarm in self._alarms.values():
            alarm.cancel()
        self._alarms.clear()

    def wake(self) -> None:
        """There may be something to do."""
        if self._news is not None:
            self._news.set()

    async def changed(self, id: str) -> None:
        """Another process may have changed a job: who listens here hears of it, and so does who waits for its end."""
        self.wake()
        job = await self._store.job(self._turns.tenant, id)
        if job is not None:
            self._tell(job)

    async def is_over(self, row: RunRow) -> bool:
        """A run that goes on is that of a job which has ended meanwhile: it is to be stopped."""
        id = errand_of(row).chain.job
        job = await self._store.job(row.tenant, id) if id else None
        return bool(id) and (job is None or job.state not in OPEN_JOB)

    def _ring(self) -> None:
        self._beat.next(self._ring)
        self.wake()

    async def _look_on(self, news: asyncio.Event) -> None:
        self._beat.next(self._ring)
        while True:
            news.clear()
            try:
                await self.schedules.due()
                await self._look()
            except StoreError as trouble:
                logger.warning("jobs wait until the store is back: %s", trouble)
            await news.wait()

    async def _look(self) -> None:
        now = int(self._office.clock.time() * 1000)
        for job in await self._store.pending_jobs(self._turns.tenant, now):
            if job.state in OPEN_JOB and job.deadline is not None and job.deadline <= now:
                await self._expire(job)
            elif job.id in self._tasks:
                continue
            elif job.state not in OPEN_JOB:
                self._begin(job, self._work.tell(job))
            elif self._work.holds(job.id):
                self._begin(job, self._work.do(job))
            elif len(self._doing) < self._office.delegation.at_once:
                self._doing.add(job.id)
                self._begin(job, self._work.do(job))

    def _begin(self, job: JobRow, work: Coroutine[Any, Any, bool]) -> None:
        if job.state in OPEN_JOB:
            self._tell(job)
        task = self._tasks[job.id] = asyncio.create_task(work)
        task.add_done_callback(lambda task: self._ended(job, task))
        if job.deadline is not None and job.id not in self._alarms:
            left = job.deadline / 1000 - self._office.clock.time()
            self._alarms[job.id] = self._office.clock.call_later(max(0.0, left), self.wake)

    def _ended(self, job: JobRow, task: "asyncio.Task[bool]") -> None:
        """What has got somewhere may have made room, or more to do; what has not waits for the next tick."""
        self._tasks.pop(job.id, None)
        made_room = job.id in self._doing and self._work.holds(job.id)
        self._doing.discard(job.id)
        if task.cancelled():
            return
        if (bug := task.exception()) is not None:
            logger.error("the job %s could not be seen to", job.id, exc_info=bug)
        elif made_room or task.result():
            self.wake()
        if not self._work.holds(job.id) and (alarm := self._alarms.pop(job.id, None)) is not None:
            alarm.cancel()

    async def _expire(self, job: JobRow) -> None:
        try:
            await self._work.end(job, "expired", "its deadline has passed")
        except Conflict:
            logger.debug("the job %s ended just in time", job.id)

    def _tell(self, job: JobRow) -> None:
        """Tell of a change, once."""
        if self._seen.get(job.id) != job.state:
            self._seen[job.id] = job.state
            self.on_change(job)
        if job.state not in OPEN_JOB:
            self._seen.pop(job.id, None)
            for waiter in self._waiting.pop(job.id, ()):
                if not waiter.done():
                    waiter.set_result(job)


def _nobody(job: JobRow) -> None:
    """Nobody listens."""
