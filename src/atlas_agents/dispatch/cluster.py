"""Cluster dispatcher: runs wait in a queue on Postgres, and any free worker executes them.

A run and its queue entry are written in one commit by `beside`, which the store calls inside its transaction. So are
the notifications, which Postgres delivers on commit; with Valkey they are published after the commit instead.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeAlias

import psycopg

from atlas_agents.core.aio import BackgroundTasks
from atlas_agents.core.errors import NotFound, StoreError, StoreLost
from atlas_agents.core.store import OPEN, RunRow, Write
from atlas_agents.dispatch.base import OnEvent, RunExecutor, RunningTurn
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
"""Called with a run that was resumed here, and its row before that."""
Follow: TypeAlias = Callable[[RunRow, OnEvent], Awaitable[None]]
"""Forwards the events of a run that executes elsewhere until its terminal event."""
_SWEEP = 2
_COUNT = 5
_LOOK = 15.0
_VALKEY_POLL_INTERVAL = 5.0
"""Polling interval in seconds behind Valkey: a process that dies between a commit and its publication has notified
no one, and a member without Valkey does not receive the message."""
_NOTIFY_MANY = "SELECT pg_notify(%s, told) FROM unnest(%s::text[]) AS told"
_NOTIFY = "SELECT pg_notify(%(channel)s, %(told)s)"
_URGENCY = "SELECT urgency FROM runs WHERE tenant = %s AND id = %s"


class Cluster:
    """The cluster as one process sees it. `async with cluster.joined():` receives notifications of the other
    members, and `cluster.at_work(…)` inside it executes runs. With a `valkey` client, which the cluster then owns,
    notifications go through Valkey."""

    is_remote = True
    _executor: RunExecutor
    _acquire_lock: Taken

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
        self._bus = PostgresSubscriber(url, self._channel, self._receive, self._reconnected)
        self._valkey = None
        if valkey is not None:
            from atlas_agents.dispatch.valkey import ValkeySubscriber

            self._valkey = ValkeySubscriber(valkey, self._receive_text, self._reconnected, self._notify)
        self._worker: QueueWorker | None = None
        self._lead: LeaderElection | None = None
        self._draining = False
        self._roster = MemberRegistry(self._queue, tenant, lambda: self.standing)
        self.backlog: Backlog | None = None
        """The backlog of the whole cluster; only the leader has it."""
        self._ends: dict[str, list[asyncio.Future[None]]] = {}
        self._tasks = BackgroundTasks("cluster", expected=StoreError)
        self._beats = 0
        self.follow: Follow = self._wait_until_ended
        """How to follow a run elsewhere; a gateway replaces it with a way that also receives the events."""
        self.on_notice: Callable[[Notification], None] = lambda notice: None
        self.on_renewed: Callable[[], None] = lambda: None

    @property
    def worker(self) -> QueueWorker | None:
        """The worker of this process, while it executes runs."""
        return self._worker

    @property
    def standing(self) -> MemberInfo:
        """This process's current entry in the member registry."""
        worker, lead = self._worker, self._lead
        if worker is None:
            return MemberInfo(draining=self._draining)
        return MemberInfo(worker.id, self._at_once, lead.backend if lead else None, self._draining)

    @property
    def leads(self) -> bool:
        """Whether this process is the leader."""
        return self._lead is not None and self._lead.leads

    async def look(self) -> None:
        """Check the connection in both directions; raises StoreLost if notifications or heartbeats do not get
        through."""
        if not self._bus.steady:
            raise StoreLost("no connection to Postgres for notifications")
        if self._worker is not None and self._worker.silent > self._queue.lost_after:
            raise StoreLost("cannot send heartbeats to Postgres")

    def serve(self, executor: RunExecutor) -> None:
        self._executor = executor

    async def beside(
        self, session: psycopg.AsyncConnection[Any], tenant: str, writes: Sequence[Write], results: Sequence[Any]
    ) -> Callable[[], None] | None:
        """Write the queue entry and the notifications inside a commit's transaction; with Valkey, return a function
        that publishes the notifications afterwards."""
        for run_id in submitted_by(writes, results):
            row = await (await session.execute(_URGENCY, (tenant, run_id))).fetchone()
            await self._queue.put(run_id, row[0] if row else 1, session)
        told = [to_json(notice) for notice in notices_of(tenant, writes, results)]
        if told and self._valkey is not None and self._valkey.up:
            return partial(self._valkey.tell, told)
        if told:
            await session.execute(_NOTIFY_MANY, (self._channel, told))
        return None

    async def submit(self, row: RunRow, on_event: OnEvent) -> RunRow:
        """Wait for a run that was queued by the commit that accepted it."""
        await self.follow(row, on_event)
        while True:
            found = await self._executor.run_row(row.id)
            if found is None:
                raise NotFound(f"run not found: {row.id!r}")
            if found.status not in OPEN:
                return found
            await self._wait_until_ended(found, on_event)

    async def cancel(self, run_id: str) -> bool:
        """Record the cancellation, then notify: the current owner stops, and so does any later one."""
        return await self._executor.request_stop(run_id)

    async def wake(self, approval_id: str) -> None:
        """Nothing to do: the commit of the answer has notified the other members."""
        await self._executor.deliver_answer(approval_id)

    async def recover(self) -> list[str]:
        """Reassign runs without an owner, as the leader does every few seconds."""
        async with await psycopg.AsyncConnection.connect(self._url, autocommit=True) as connection:
            return await self._sweep(connection)

    @asynccontextmanager
    async def joined(self, role: str = "worker", door: str = "") -> AsyncGenerator["Cluster", None]:
        """Be a member of the cluster for the duration of the block, with this role and health endpoint address."""
        try:
            await reached(self._queue.open)
        except BaseException:
            await self._queue.close()
            raise
        services = BackgroundTasks("cluster member")
        for work in (self._bus.run(), self._poll(), self._roster.run(role, door)):
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
        """Execute runs for the duration of the block, and lead if there is no other leader. Afterwards `stop` is
        called, which ends or releases the runs that execute here; released runs go to other workers."""
        self._acquire_lock = taken
        self._worker = worker = QueueWorker(self._queue, self._execute_run, self._at_once)
        worker.on_registered, worker.on_left = self._roster.tell, self._released
        self._lead = lead = LeaderElection(
            self._url, self._lead_key, self._begin_to_lead, self._reassign_lost_runs, self._end_to_lead
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

    async def _execute_run(self, run_id: str) -> bool:
        """Execute a run to completion from its last recorded step; False if it has not ended and another worker must
        continue it. A run that another process took over belongs to that process."""
        row = await self._executor.run_row(run_id)
        if row is None or row.status not in OPEN:
            return True
        turn = self._executor.running_turn(run_id)
        if turn is None:
            turn = await self._executor.resume_run(row)
            if turn is None:
                return True
            await self._acquire_lock(turn, row)
        await turn.over()
        found = await self._executor.run_row(run_id)
        return found is None or found.status not in OPEN or found.epoch > max(row.epoch, turn.epoch or 0)

    async def _released(self, run_id: str) -> None:
        """Announce a run that is back in the queue, so that others fetch it without waiting for their next poll."""
        with suppress(ConnectorException):
            told = to_json(Notification("begun", self._tenant, run_id))
            await self._queue.execute(_NOTIFY, channel=self._channel, told=told)

    async def _begin_to_lead(self) -> None:
        self._beats = 0
        self._roster.tell()
        await self._executor.start_jobs()

    async def _end_to_lead(self) -> None:
        self.backlog = None
        self._roster.tell()
        await self._executor.stop_jobs()

    async def _reassign_lost_runs(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Look for dead workers, unless the database was down recently: after an outage every heartbeat is late, so the
        leader waits until live workers had time to send one."""
        self._beats += 1
        if self._beats % _COUNT == 1:
            self.backlog = await read_backlog(connection, schema=self._schema, tenant=self._tenant)
        if self._beats % _SWEEP == 0 and self._bus.steady > self._queue.lost_after:
            with suppress(ConnectorException):
                await self._sweep(connection)

    async def _sweep(self, connection: psycopg.AsyncConnection[Any]) -> list[str]:
        found = [*await self._queue.put_back_stalled(), *await self._queue.put_orphans(connection)]
        if found:
            logger.warning("reassigned runs without an owner: runs=%s", ", ".join(found))
            told = [to_json(Notification("begun", self._tenant, run_id)) for run_id in found]
            await connection.execute(_NOTIFY_MANY, (self._channel, told))
        return found

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(_LOOK if self._valkey is None else _VALKEY_POLL_INTERVAL)
            self._reconnected()

    async def _notify(self, told: Sequence[str]) -> None:
        """Send through Postgres what could not be published through Valkey. If that fails too, others find out by
        polling."""
        try:
            async with await psycopg.AsyncConnection.connect(self._url, **LINE) as connection:
                await connection.execute(_NOTIFY_MANY, (self._channel, list(told)))
        except (psycopg.Error, OSError) as error:
            logger.warning("notification not sent: error=%s", error)

    def _receive_text(self, told: str) -> None:
        if (notice := from_json(told)) is not None:
            self._receive(notice)

    def _receive(self, notice: Notification) -> None:
        if notice.tenant != self._tenant:
            return
        match notice.kind:
            case "begun" if self._worker is not None:
                self._worker.wake()
            case "ended":
                for waiter in self._ends.pop(notice.id, ()):
                    if not waiter.done():
                        waiter.set_result(None)
            case "stop" if (turn := self._executor.running_turn(notice.id)) is not None:
                turn.cancel()
            case "answer":
                self._tasks.spawn(self._executor.deliver_answer(notice.id))
            case "job":
                self._tasks.spawn(self._executor.refresh_job(notice.id))
            case _:
                pass
        self.on_notice(notice)

    def _reconnected(self) -> None:
        """Re-read state after a reconnect: notifications may have been lost."""
        if self._worker is not None:
            self._worker.wake()
        for waiters in self._ends.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        self._ends.clear()
        self._tasks.spawn(self._executor.recheck())
        self.on_renewed()

    async def _wait_until_ended(self, row: RunRow, on_event: OnEvent) -> None:
        """Wait until the run has ended, without its events."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ends.setdefault(row.id, []).append(waiter)
        found = await self._executor.run_row(row.id)
        if found is not None and found.status in OPEN:
            await waiter
