"""Cluster dispatcher: runs wait in a queue on Postgres, and any free worker executes them.

The store calls `enqueue_and_notify` inside its transaction, so a run, its queue entry and its notifications are written
in one commit. Postgres delivers the notifications on commit.
"""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeAlias

import msgspec
import psycopg

from atlas_agents.core.aio import BackgroundTasks, retry_while_lost
from atlas_agents.core.errors import ConfigError, NotFound, StoreError, StoreLost
from atlas_agents.core.store import OPEN, RunRow, Write
from atlas_agents.dispatch import OnEvent, RunExecutor, RunningTurn, notifications
from atlas_agents.dispatch.locks import LeaderElection, retry_while_unreachable
from atlas_agents.dispatch.members import (
    Backlog,
    MemberFigures,
    MemberInfo,
    MemberRegistry,
    leader_lock_key,
    read_backlog,
)
from atlas_agents.dispatch.queue import HEARTBEAT_TIMEOUT, ConnectorException, Queue, QueueWorker

logger = logging.getLogger(__name__)
OnResumed: TypeAlias = Callable[[RunningTurn, RunRow], Awaitable[None]]
"""Called with a run that was resumed here, and its row before that."""
Follow: TypeAlias = Callable[[RunRow, OnEvent], Awaitable[None]]
"""Forwards the events of a run that executes elsewhere until its terminal event."""
_MAX_SCHEMA = 53
"""Bytes of a schema name. Postgres keeps 63 bytes of the name of a channel, which adds 10 to that of the schema."""
_BACKLOG_TICKS = 5
_POLL_INTERVAL = 15.0
_NOTIFY_MANY = "SELECT pg_notify(channel, payload) FROM unnest(%s::text[], %s::text[]) AS n (channel, payload)"
_NOTIFY = "SELECT pg_notify(%(channel)s, %(payload)s)"


class Cluster:
    """Cluster membership of one process. `async with cluster.join():` receives the other members' notifications, and
    `cluster.run_worker(…)` inside it executes runs."""

    is_remote = True
    _executor: RunExecutor
    _on_resumed: OnResumed

    def __init__(
        self,
        url: str,
        *,
        schema: str = "atlas",
        tenant: str = "default",
        concurrency: int = 64,
        heartbeat_timeout: float = HEARTBEAT_TIMEOUT,
    ) -> None:
        if (length := len(schema.encode())) > _MAX_SCHEMA:
            raise ConfigError(
                f"Postgres schema {schema!r} is too long for a Cluster: expected at most {_MAX_SCHEMA} bytes, got "
                f"{length}; choose a shorter schema for the Cluster and its PostgresStore"
            )
        self._url = url
        self._schema = schema
        self._tenant = tenant
        self._channel = f"atlas_{schema}"
        self._leader_lock_key = leader_lock_key(schema, tenant)
        self._concurrency = concurrency
        self._queue = Queue(url, schema, tenant, heartbeat_timeout)
        self._followed_channel = f"{self._channel}_log"
        self._has_clients = True
        self._postgres = notifications.PostgresSubscriber(url, self._channels, self._receive, self._handle_reconnect)
        self._worker: QueueWorker | None = None
        self._election: LeaderElection | None = None
        self._draining = False
        self._figures: Callable[[], MemberFigures] | None = None
        self._members = MemberRegistry(self._queue, tenant, lambda: self.member_info)
        self.backlog: Backlog | None = None
        """The backlog of the whole cluster; only the leader has it."""
        self._end_events: dict[str, asyncio.Event] = {}
        self._tasks = BackgroundTasks("cluster", expected=StoreError)
        self._ticks = 0
        self._stopped: set[str] = set()
        """Runs that were cancelled while they were being resumed here."""
        self._follow: Follow = self._wait_until_ended
        self._on_notification: list[Callable[[notifications.Notification], None]] = []
        self._on_reconnect: list[Callable[[], None]] = []

    def subscribe(
        self,
        on_notification: Callable[[notifications.Notification], None],
        on_reconnect: Callable[[], None] | None = None,
    ) -> None:
        """Call these functions for each notification, and after a reconnect, when notifications may have been lost."""
        self._on_notification.append(on_notification)
        if on_reconnect is not None:
            self._on_reconnect.append(on_reconnect)

    @property
    def worker(self) -> QueueWorker | None:
        """The worker of this process, while it executes runs."""
        return self._worker

    @property
    def member_info(self) -> MemberInfo:
        """This process's current entry in the member registry."""
        worker, election = self._worker, self._election
        if worker is None:
            return MemberInfo(draining=self._draining)
        figures = msgspec.json.encode(self._figures()).decode() if self._figures is not None else ""
        return MemberInfo(worker.id, self._concurrency, election.backend if election else None, self._draining, figures)

    @property
    def is_leader(self) -> bool:
        """Whether this process is the leader."""
        return self._election is not None and self._election.is_leader

    async def check_connection(self) -> None:
        """Raise StoreLost if this process cannot receive notifications or send heartbeats."""
        if not self._postgres.connected_for:
            raise StoreLost("no connection to Postgres for notifications; reconnecting")
        if self._worker is not None and self._worker.heartbeat_age > self._queue.heartbeat_timeout:
            raise StoreLost(f"no heartbeat reached Postgres for {self._worker.heartbeat_age:.0f} s; retrying")

    def serve(self, executor: RunExecutor) -> None:
        """Set the executor. Its tenant must be that of the cluster: notifications of others are not received."""
        if executor.tenant != self._tenant:
            raise ConfigError(
                f"the tenant of the Atlas is {executor.tenant!r}, that of its Cluster {self._tenant!r}: "
                f"use Cluster(…, tenant={executor.tenant!r})"
            )
        self._executor = executor

    async def enqueue_and_notify(
        self, connection: psycopg.AsyncConnection[Any], tenant: str, writes: Sequence[Write], results: Sequence[Any]
    ) -> Callable[[], None] | None:
        """Write the queue entry and the notifications inside a commit's transaction, and delete the jobs of this
        worker's runs that it ends, which the returned function notes."""
        if ready := notifications.find_ready_runs(writes, results):
            await self._queue.enqueue(ready, connection, tenant)
        found = list(dict.fromkeys(notifications.notifications_for(tenant, writes, results)))
        if found:
            await self._notify_others(connection, found)
        if self._worker is not None and tenant == self._tenant:
            jobs = self._worker.held_jobs([note.id for note in found if note.kind == "ended"])
            if jobs:
                await self._queue.delete([*jobs.values()], connection)
                return partial(self._worker.note_deleted, jobs)
        return None

    async def submit(self, row: RunRow, on_event: OnEvent) -> RunRow:
        """Wait for a run that was queued by the commit that accepted it."""
        await self._follow(row, on_event)
        while True:
            found = await retry_while_lost(partial(self._executor.run_row, row.id))
            if found is None:
                raise NotFound(f"not found: run {row.id!r}")
            if found.status not in OPEN:
                return found
            await self._wait_until_ended(found, on_event)

    async def cancel(self, run_id: str) -> bool:
        """Record the cancellation, then notify: the current owner stops, and so does any later one."""
        return await self._executor.request_stop(run_id)

    async def wake(self, approval_id: str) -> None:
        """Deliver the answer here; the commit that stored it has notified the other members."""
        await self._executor.deliver_answer(approval_id)

    async def recover(self) -> list[str]:
        """Resume nothing: the leader looks every second for runs without an owner. Only it can tell after an outage
        which workers are alive."""
        return []

    @asynccontextmanager
    async def join(
        self, role: str = "worker", address: str = "", *, follow: Follow | None = None, has_clients: bool = True
    ) -> AsyncGenerator["Cluster", None]:
        """Be a member of the cluster for the duration of the block, with this role and health endpoint address.
        `follow` also receives the events of runs that execute elsewhere; without it, only their end is awaited. A
        process without clients is not notified of changes that only clients see, such as new events."""
        self._follow = follow or self._wait_until_ended
        self._has_clients = has_clients
        try:
            await retry_while_unreachable(self._queue.open)
        except BaseException:
            await self._queue.close()
            raise
        services = BackgroundTasks("cluster member")
        for work in (self._postgres.run(), self._poll(), self._members.run(role, address)):
            services.spawn(work)
        try:
            await retry_while_unreachable(self._postgres.ready.wait)
            await self._members.wait_until_registered()
            yield self
        finally:
            await services.close()
            await self._tasks.close()
            await self._members.leave()
            await self._queue.close()

    @asynccontextmanager
    async def run_worker(
        self,
        on_resumed: OnResumed,
        stop: Callable[[], Awaitable[None]],
        figures: Callable[[], MemberFigures] | None = None,
    ) -> AsyncGenerator[None]:
        """Execute runs for the duration of the block, and lead if there is no other leader. Afterwards `stop` is
        called, which ends or releases the runs that execute here; released runs go to other workers. Heartbeats carry
        the `figures` of this process to the other members."""
        self._on_resumed, self._figures = on_resumed, figures
        self._worker = worker = QueueWorker(
            self._queue, self._execute_run, self._concurrency, self._members.publish, self._announce_released
        )
        self._election = election = LeaderElection(
            self._url, self._leader_lock_key, self._start_leading, self._lead_tick, self._stop_leading
        )
        services = BackgroundTasks("cluster worker")
        services.spawn(worker.run())
        services.spawn(election.run())
        try:
            yield
        finally:
            self._draining = True
            self._members.publish()
            try:
                await services.close()
                await stop()
            finally:
                await worker.finish(2.0)
                self._worker = self._election = None

    async def _execute_run(self, run_id: str) -> bool:
        """Execute a run to completion from its last recorded step; False if it has not ended and another worker must
        continue it. A run that another process took over belongs to that process."""
        self._stopped.discard(run_id)
        row = await self._executor.run_row(run_id)
        if row is None or row.status not in OPEN:
            return True
        turn = self._executor.running_turn(run_id)
        if turn is None:
            turn = await self._executor.resume_run(row)
            if turn is None:
                return True
            if run_id in self._stopped:  # after its row was read
                self._stopped.remove(run_id)
                turn.cancel()
            await self._on_resumed(turn, row)
        await turn.wait_ended()
        self._stopped.discard(run_id)
        if self._worker is not None and self._worker.has_ended(run_id):
            return True
        found = await self._executor.run_row(run_id)
        return found is None or found.status not in OPEN or found.epoch > max(row.epoch, turn.epoch or 0)

    async def _announce_released(self, run_id: str) -> None:
        """Announce a run that is back in the queue, so that others fetch it without waiting for their next poll."""
        with suppress(ConnectorException):
            payload = notifications.encode_notification(notifications.Notification("begun", self._tenant, run_id))
            await self._queue.execute(_NOTIFY, channel=self._channel, payload=payload)

    async def _start_leading(self) -> None:
        self._ticks = 0
        self._members.publish()
        await self._executor.start_jobs()

    async def _stop_leading(self) -> None:
        self.backlog = None
        self._members.publish()
        await self._executor.stop_jobs()

    async def _lead_tick(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Look for dead workers, unless the heartbeats of live ones may be late because the database was down."""
        self._ticks += 1
        if self._ticks % _BACKLOG_TICKS == 1:
            self.backlog = await read_backlog(connection, schema=self._schema, tenant=self._tenant)
        timeout = self._unlocked_timeout()
        dead = await self._queue.find_dead_workers(connection, timeout) if timeout < math.inf else []
        if self._worker is not None:
            await self._worker.check_clock(connection)
        if timeout == math.inf:
            return
        if self._unlocked_timeout() <= timeout:  # otherwise Postgres or this process was suspended meanwhile
            with suppress(ConnectorException):
                await self._reassign_lost_runs(connection, dead)
                if dead:
                    await self._queue.forget_workers(connection, dead)

    def _unlocked_timeout(self) -> float:
        if self._worker is None or self._election is None:
            return math.inf
        return self._worker.unlocked_timeout(self._election.connected_for)

    async def _reassign_lost_runs(self, connection: psycopg.AsyncConnection[Any], dead: Sequence[int]) -> None:
        runs = await self._queue.release_stalled(dead)
        runs += await self._queue.enqueue_orphans(connection, dead)
        if runs:
            logger.warning("reassigned runs without an owner: runs=%s", ", ".join(runs))
            begun = [notifications.Notification("begun", self._tenant, run_id) for run_id in runs]
            await self._notify_others(connection, begun)

    def _channels(self) -> list[str]:
        """Return the channels that this process needs."""
        return [self._channel, self._followed_channel] if self._has_clients else [self._channel]

    async def _notify_others(
        self, connection: psycopg.AsyncConnection[Any], found: Sequence[notifications.Notification]
    ) -> None:
        """Send notifications through Postgres: those of one channel in as few messages as possible."""
        by_channel: dict[str, list[str]] = {}
        for each in found:
            channel = self._followed_channel if each.kind in notifications.FOLLOWED else self._channel
            by_channel.setdefault(channel, []).append(notifications.encode_notification(each))
        messages = [
            (channel, each) for channel, texts in by_channel.items() for each in notifications.join_payloads(texts)
        ]
        channels, payloads = zip(*messages, strict=True)
        await connection.execute(_NOTIFY_MANY, ([*channels], [*payloads]))

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(_POLL_INTERVAL)
            self._handle_reconnect()

    def _receive(self, notification: notifications.Notification) -> None:
        if notification.tenant != self._tenant:
            return
        match notification.kind:
            case "begun" if self._worker is not None:
                self._worker.wake()
            case "ended":
                if (ended := self._end_events.pop(notification.id, None)) is not None:
                    ended.set()
            case "stop" if (turn := self._executor.running_turn(notification.id)) is not None:
                turn.cancel()
            case "stop" if self._worker is not None and self._worker.held_jobs([notification.id]):
                self._stopped.add(notification.id)
            case "answer":
                self._tasks.spawn(self._executor.deliver_answer(notification.id))
            case "job":
                self._tasks.spawn(self._executor.refresh_job(notification.id))
            case _:
                pass
        for on_notification in self._on_notification:
            on_notification(notification)

    def _handle_reconnect(self) -> None:
        """Re-read state after a reconnect: notifications may have been lost."""
        if self._worker is not None:
            self._worker.wake()
        for ended in self._end_events.values():
            ended.set()
        self._end_events.clear()
        self._tasks.spawn(self._executor.recheck())
        for on_reconnect in self._on_reconnect:
            on_reconnect()

    async def _wait_until_ended(self, row: RunRow, on_event: OnEvent) -> None:
        """Wait until the run has ended, without its events."""
        ended = self._end_events.setdefault(row.id, asyncio.Event())
        found = await retry_while_lost(partial(self._executor.run_row, row.id))
        if found is not None and found.status in OPEN:
            await ended.wait()
