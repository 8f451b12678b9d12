"""The dispatcher of many machines: runs wait in a queue on Postgres, and any process that is free runs them.

A run and its place in the queue are one commit, by `beside`, which the store calls in its transaction; so are the news
of it, which Postgres tells when the commit is there, or Valkey, where there is one.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeAlias

import psycopg

from atlas_agents.core.errors import NotFound, StoreError, StoreLost
from atlas_agents.core.store import OPEN, RunRow, Write
from atlas_agents.core.tasks import BackgroundTasks
from atlas_agents.dispatch.base import Hear, RunExecutor, RunningTurn
from atlas_agents.dispatch.locks import LeaderElection, reached
from atlas_agents.dispatch.members import Backlog, MemberInfo, MemberRegistry, lead_key, read_backlog
from atlas_agents.dispatch.notifications import (
    LINE,
    Notification,
    PostgresSubscriber,
    from_json,
    notices_of,
    place_of,
    submitted_by,
    to_json,
)
from atlas_agents.dispatch.queue import STALLED, ConnectorException, Queue, QueueWorker

logger = logging.getLogger(__name__)
Taken: TypeAlias = Callable[[RunningTurn, RunRow], Awaitable[None]]
"""Is called with a run that is taken on here, and its row as it was before."""
Follow: TypeAlias = Callable[[RunRow, Hear], Awaitable[None]]
"""Tells what a run says that is run elsewhere, until it has said its last word."""
_SWEEP = 2
_COUNT = 5
_LOOK = 15.0
_LOOK_BEHIND_VALKEY = 5.0
"""Seconds after which a process looks at everything without having been told: who dies between a commit and its
publication has told nobody, and a member that has no Valkey does not hear it."""
_TELL = "SELECT pg_notify(%s, told) FROM unnest(%s::text[]) AS told"
_TELL_ONE = "SELECT pg_notify(%(channel)s, %(told)s)"
_URGENCY = "SELECT urgency FROM runs WHERE tenant = %s AND id = %s"


class Cluster:
    """One per process. `async with cluster.joined():` hears the others, and `cluster.at_work(…)` in it runs runs. With
    `valkey`, a client that is the cluster's from then on, the news go by it."""

    apart = True
    _house: RunExecutor
    _taken: Taken

    def __init__(
        self,
        url: str,
        *,
        schema: str = "atlas",
        tenant: str = "default",
        at_once: int = 64,
        lost_after: float = STALLED,
        valkey: Any = None,
    ) -> None:
        self._url = url
        self._schema = schema
        self._tenant = tenant
        self._channel = f"atlas_{schema}"
        self._lead_key = lead_key(schema, tenant)
        self._at_once = at_once
        self._queue = Queue(url, schema, tenant, lost_after)
        self._bus = PostgresSubscriber(url, self._channel, self._hear, self._renewed)
        self._valkey = None
        if valkey is not None:
            from atlas_agents.dispatch.valkey import ValkeySubscriber

            self._valkey = ValkeySubscriber(valkey, self._hear_text, self._renewed, self._notify)
        self._worker: QueueWorker | None = None
        self._lead: LeaderElection | None = None
        self._draining = False
        self._roster = MemberRegistry(self._queue, tenant, lambda: self.standing)
        self.backlog: Backlog | None = None
        """What waits for a worker, of the whole cluster; only the leader knows."""
        self._ends: dict[str, list[asyncio.Future[None]]] = {}
        self._tasks = BackgroundTasks("cluster", expected=StoreError)
        self._beats = 0
        self.follow: Follow = self._until_ended
        """How a run elsewhere is followed; a gateway has its own way, which also hears what is said."""
        self.on_notice: Callable[[Notification], None] = lambda notice: None
        self.on_renewed: Callable[[], None] = lambda: None

    @property
    def worker(self) -> QueueWorker | None:
        """That of this process, while it works."""
        return self._worker

    @property
    def standing(self) -> MemberInfo:
        """How this process stands among the others."""
        worker, lead = self._worker, self._lead
        if worker is None:
            return MemberInfo(draining=self._draining)
        return MemberInfo(worker.id, self._at_once, lead.backend if lead else None, self._draining)

    @property
    def leads(self) -> bool:
        """This process sees to what must happen once."""
        return self._lead is not None and self._lead.leads

    async def look(self) -> None:
        """StoreLost unless this process hears the others, and they hear of it."""
        if not self._bus.steady:
            raise StoreLost("the line to Postgres does not hold")
        if self._worker is not None and self._worker.silent > self._queue.lost_after:
            raise StoreLost("Postgres cannot be told that this worker is well")

    def serve(self, house: RunExecutor) -> None:
        self._house = house

    async def beside(
        self, session: psycopg.AsyncConnection[Any], tenant: str, writes: Sequence[Write], results: Sequence[Any]
    ) -> Callable[[], None] | None:
        """What belongs into the transaction of a commit: the place in the queue, and the news, unless Valkey tells them
        afterwards."""
        for run_id in submitted_by(writes, results):
            row = await (await session.execute(_URGENCY, (tenant, run_id))).fetchone()
            await self._queue.put(run_id, row[0] if row else 1, session)
        told = [to_json(notice) for notice in notices_of(tenant, writes, results)]
        if told and self._valkey is not None and self._valkey.up:
            return partial(self._valkey.tell, told)
        if told:
            await session.execute(_TELL, (self._channel, told))
        return None

    async def submit(self, row: RunRow, hear: Hear) -> RunRow:
        """It stands in the queue since the commit that began it."""
        await self.follow(row, hear)
        while True:
            found = await self._house.run_row(row.id)
            if found is None:
                raise NotFound(f"there is no run {row.id!r} any more")
            if found.status not in OPEN:
                return found
            await self._until_ended(found, hear)

    async def cancel(self, run_id: str) -> bool:
        """Kept first, then told: whoever is at it stops, and so does whoever takes it on later."""
        return await self._house.want_stop(run_id)

    async def wake(self, approval_id: str) -> None:
        """The commit of the answer has told the others."""
        await self._house.answered(approval_id)

    async def recover(self) -> list[str]:
        """What the leader does every few seconds."""
        async with await psycopg.AsyncConnection.connect(self._url, autocommit=True) as line:
            return await self._sweep(line)

    @asynccontextmanager
    async def joined(self, role: str = "worker", door: str = "") -> AsyncGenerator["Cluster", None]:
        """A member as long as the block lasts; others are told its role, and the address of its door."""
        try:
            await reached(self._queue.open)
        except BaseException:
            await self._queue.close()
            raise
        services = BackgroundTasks("cluster member")
        for work in (self._bus.run(), self._look_on(), self._roster.run(role, door)):
            services.spawn(work)
        try:
            await reached(self._bus.ready.wait)
            await self._roster.seen()
            if self._valkey is not None:
                await self._valkey.open(await place_of(self._url, self._schema))
                services.spawn(self._valkey.run())
            yield self
        finally:
            await services.close()
            await self._tasks.close()
            await self._roster.leave()
            if self._valkey is not None:
                await self._valkey.close()
            await self._queue.close()

    @asynccontextmanager
    async def at_work(self, taken: Taken, stop: Callable[[], Awaitable[None]]) -> AsyncGenerator[None, None]:
        """Run runs as long as the block lasts, and lead when nobody else does. Then `stop` is called, which ends or
        leaves the runs that are under way here; those that are left go to others."""
        self._taken = taken
        self._worker = worker = QueueWorker(self._queue, self._perform, self._at_once)
        worker.on_registered, worker.on_left = self._roster.tell, self._left
        self._lead = lead = LeaderElection(
            self._url, self._lead_key, self._begin_to_lead, self._lead_on, self._end_to_lead
        )
        services = BackgroundTasks("cluster worker")
        for work in (worker.run(), lead.run()):
            services.spawn(work)
        try:
            yield
        finally:
            self._draining = True
            self._roster.tell()
            await services.close()
            await stop()
            await worker.finish(2.0)
            self._worker = self._lead = None

    async def _perform(self, run_id: str) -> bool:
        """Run a run to its end, from wherever it is; False if it is not over, and somebody is to go on with it. One
        that was taken from here by another process is that one's."""
        row = await self._house.run_row(run_id)
        if row is None or row.status not in OPEN:
            return True
        turn = self._house.turn(run_id)
        if turn is None:
            turn = await self._house.take_on(row)
            if turn is None:
                return True
            await self._taken(turn, row)
        await turn.over()
        found = await self._house.run_row(run_id)
        return found is None or found.status not in OPEN or found.epoch > max(row.epoch, turn.epoch or 0)

    async def _left(self, run_id: str) -> None:
        """A run is in the queue again: others need not wait until they look by themselves."""
        with suppress(ConnectorException):
            told = to_json(Notification("begun", self._tenant, run_id))
            await self._queue.execute(_TELL_ONE, channel=self._channel, told=told)

    async def _begin_to_lead(self) -> None:
        self._beats = 0
        self._roster.tell()
        await self._house.jobs_begin()

    async def _end_to_lead(self) -> None:
        self.backlog = None
        self._roster.tell()
        await self._house.jobs_end()

    async def _lead_on(self, line: psycopg.AsyncConnection[Any]) -> None:
        """Look for lost workers, if those that are well have had time to say so: after an outage of the database all of
        them look lost, and who saw it waits."""
        self._beats += 1
        if self._beats % _COUNT == 1:
            self.backlog = await read_backlog(line, schema=self._schema, tenant=self._tenant)
        if self._beats % _SWEEP == 0 and self._bus.steady > self._queue.lost_after:
            with suppress(ConnectorException):
                await self._sweep(line)

    async def _sweep(self, line: psycopg.AsyncConnection[Any]) -> list[str]:
        found = [*await self._queue.put_back_stalled(), *await self._queue.put_orphans(line)]
        if found:
            logger.warning("runs that nobody was at go on elsewhere: %s", ", ".join(found))
            told = [to_json(Notification("begun", self._tenant, run_id)) for run_id in found]
            await line.execute(_TELL, (self._channel, told))
        return found

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(_LOOK if self._valkey is None else _LOOK_BEHIND_VALKEY)
            self._renewed()

    async def _notify(self, told: Sequence[str]) -> None:
        """Tell by Postgres what was to be told by Valkey. If it cannot be, others find out when they look."""
        try:
            async with await psycopg.AsyncConnection.connect(self._url, **LINE) as line:
                await line.execute(_TELL, (self._channel, list(told)))
        except (psycopg.Error, OSError) as trouble:
            logger.warning("others could not be told what was committed here: %s", trouble)

    def _hear_text(self, told: str) -> None:
        if (notice := from_json(told)) is not None:
            self._hear(notice)

    def _hear(self, notice: Notification) -> None:
        if notice.tenant != self._tenant:
            return
        match notice.kind:
            case "begun" if self._worker is not None:
                self._worker.wake()
            case "ended":
                for waiter in self._ends.pop(notice.id, ()):
                    if not waiter.done():
                        waiter.set_result(None)
            case "stop" if (turn := self._house.turn(notice.id)) is not None:
                turn.cancel()
            case "answer":
                self._tasks.spawn(self._house.answered(notice.id))
            case "job":
                self._tasks.spawn(self._house.job_changed(notice.id))
            case _:
                pass
        self.on_notice(notice)

    def _renewed(self) -> None:
        """News may have been missed."""
        if self._worker is not None:
            self._worker.wake()
        for waiters in self._ends.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        self._ends.clear()
        self._tasks.spawn(self._house.look_again())
        self.on_renewed()

    async def _until_ended(self, row: RunRow, hear: Hear) -> None:
        """Only that it is over is heard."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ends.setdefault(row.id, []).append(waiter)
        found = await self._house.run_row(row.id)
        if found is not None and found.status in OPEN:
            await waiter
