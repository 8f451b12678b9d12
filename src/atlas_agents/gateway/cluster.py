"""Gateways and workers of a cluster: membership, following runs of other processes, event logs, metrics, health."""

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any, cast

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette

from atlas_agents.agents.atlas import Atlas
from atlas_agents.agents.stream import AtlasStream
from atlas_agents.core import events as core
from atlas_agents.core.aio import BackgroundTasks, retry_while_lost
from atlas_agents.core.approvals import Form, Question
from atlas_agents.core.errors import StoreError
from atlas_agents.core.messages import Message, Thinking, ToolCall, ToolResult
from atlas_agents.core.messages import Part as CorePart
from atlas_agents.core.store import OPEN, RunRow, Store
from atlas_agents.dispatch import OnEvent, RunningTurn
from atlas_agents.dispatch.cluster import Cluster
from atlas_agents.dispatch.members import Backlog, MemberFigures, ModelFigures
from atlas_agents.dispatch.notifications import Notification
from atlas_agents.dispatch.queue import QueueWorker
from atlas_agents.gateway.asgi import App, Readiness, health_routes
from atlas_agents.gateway.auth import Authenticator
from atlas_agents.gateway.convert import ANSWERS, agent_model, core_part
from atlas_agents.gateway.events import RunLog, split_rows
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.protocol import events as wire
from atlas_agents.gateway.protocol import types
from atlas_agents.gateway.protocol.events import TERMINAL_EVENTS, RunEvent, decode_event, read_event_name
from atlas_agents.gateway.runs import RunRegistry, StoredRun, read_stored_run
from atlas_agents.gateway.server import bind_sockets, build_server, close_atlas, configure_collector, stop_signals
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.gateway.telemetry import Metrics

logger = logging.getLogger(__name__)
_PAGE = 256
_MAX_ENDED = 4096
_READ_RETRY_DELAY = 0.5
_POLL_INTERVAL = 0.05
_TERMINAL_EVENT_TIMEOUT = 3.0
"""Seconds to wait for the owner of a finished run to write its terminal event before writing it here."""
_FIGURES_INTERVAL = 5.0
_BATCH_DELAY = 0.04
"""Seconds to collect text deltas before they are written; subscribers see them after the write."""
_FLUSH_TIMEOUT = 2.0


class EventDecoder:
    """Decodes the wire events of one run into core events. Bindings and costs are not on the wire and stay empty."""

    def __init__(self, session: str, on_event: Callable[[core.Event], None]) -> None:
        self._session = session
        self._on_event = on_event
        self._calls: dict[str, wire.ToolCalling] = {}

    def decode(self, event: wire.RunEvent) -> None:
        """Decode an event and pass the resulting core events to `on_event`."""
        for decoded in self._convert(event):
            self._on_event(decoded)

    def _convert(self, event: wire.RunEvent) -> list[core.Event]:
        match event:
            case wire.ChatDelta(id, text):
                return [core.StreamChunk(id, text)]
            case wire.ChatReasoning(id, text):
                return [core.StreamThinking(id, text)]
            case wire.ChatReset(id, attempt):
                return [core.StreamReset(id, attempt)]
            case wire.ChatStarted(id, agent_id):
                return [core.StreamStart(id, agent_id)]
            case wire.PlanChanged(id, steps):
                return [core.PlanUpdated(id, tuple([core.PlanStep(step.text, step.status) for step in steps]))]
            case wire.RunHandoff(id, before, now):
                return [core.HandedOff(id, before, now)]
            case wire.SessionSummarized(id, message, messages, before, after):
                return [core.SessionCompacted(id, core_message(message), messages, before, after)]
            case wire.ChatMessage(id, message):
                return [core.MessageStored(id, core_message(message))]
            case wire.ChatFinal() | wire.ChatError():
                return _end_events(event)
            case _:
                return self._convert_tool_event(event)

    def _convert_tool_event(self, event: wire.RunEvent) -> list[core.Event]:
        match event:
            case wire.ToolCalling(id, call_id, name, arguments):
                self._calls[call_id] = event
                return [core.ToolCalled(id, name, arguments, call_id)]
            case wire.ToolProgressing(id, call_id, message):
                call = self._calls.get(call_id)
                return [core.ToolProgress(id, call.name if call else "", call_id, message)]
            case wire.ToolSettled(id, call_id, name, status, result, took, error):
                call = self._calls.get(call_id)
                known: Any = error
                return [
                    core.ToolAnswered(id, name, call.arguments if call else {}, call_id, status, known, result, took)
                ]
            case wire.StateUpdated(id, state):
                return [core.StateChanged(id, state)]
            case wire.ApprovalRequested(run_id=id):
                return [core.ApprovalAsked(id, _question(event, self._session))]
            case wire.ApprovalResolved(id, approval_id, decision, by):
                return [core.ApprovalAnswered(id, approval_id, ANSWERS[decision], by)]
            case wire.ToolsPending(id, pending):
                return [core.ClientToolsCalled(id, tuple([_client_call(id, self._session, call) for call in pending]))]
            case _:
                return []


def _end_events(event: wire.ChatFinal | wire.ChatError) -> list[core.Event]:
    if isinstance(event, wire.ChatError):
        return [
            core.StreamEnd(event.run_id, core.Usage(), error=event.message),
            core.ErrorRaised(event.run_id, event.message, event.kind),
        ]
    if event.entered_run_id is not None:
        return [core.MessageSteered(event.run_id, event.entered_run_id)]
    ended = core.StreamEnd(event.run_id, _usage(event.usage), cancelled=event.cancelled)
    if event.cancelled or event.message is None:
        return [ended]
    return [ended, core.MessageReceived(event.run_id, core_message(event.message))]


def _usage(usage: types.UsageShape) -> core.Usage:
    return core.Usage(
        usage.input_tokens,
        usage.output_tokens,
        usage.cached_tokens,
        usage.estimated,
        cache_write_tokens=usage.cache_write_tokens,
        reasoning_tokens=usage.reasoning_tokens,
    )


def core_message(shape: types.MessageShape) -> Message:
    """Convert a wire message to a core message, without vendor-specific parts."""
    return Message(shape.role, tuple(map(_part, shape.parts)), shape.id, shape.created_at, shape.metadata)


def _part(part: types.Part) -> CorePart:
    match part:
        case types.ThinkingPart(text):
            return Thinking(text)
        case types.ToolCallPart(id, name, arguments):
            return ToolCall(id, name, arguments)
        case types.ToolResultPart(call_id, status, result, error):
            known: Any = error
            return ToolResult(call_id, status, result, known)
        case _:
            return core_part(part)


def _question(event: wire.ApprovalRequested, session: str) -> Question:
    return Question(
        title=event.summary,
        message="About to execute:",
        tool=event.tool_name,
        arguments=event.details,
        binding="",
        call_id=event.tool_call_id,
        run_id=event.run_id,
        agent_id=event.agent_id,
        session=session,
        asked_by="",
        expires_at=event.expires_at / 1000,
        working_directory=event.working_dir,
        reason=event.risk,
        options=tuple([ANSWERS[option] for option in event.options]),
        id=event.approval_id,
        preview=event.preview,
        facts=_facts(event),
        rule=event.rule,
        form=msgspec.convert(event.form, Form, from_attributes=True) if event.form is not None else None,
    )


def _client_call(run_id: str, session: str, call: wire.ClientCallShape) -> Question:
    return Question(
        title=f"Run {call.name} in the client",
        message="",
        tool=call.name,
        arguments=call.arguments,
        binding="",
        call_id=call.tool_call_id,
        run_id=run_id,
        agent_id="",
        session=session,
        asked_by="",
        expires_at=call.expires_at / 1000,
        working_directory="",
        options=(),
        id=call.id,
        facts={"file": call.file} if call.file else None,
        kind="client_tool",
    )


def _facts(event: wire.ApprovalRequested) -> dict[str, Any]:
    """Return the facts that the request was classified by, so that clients of this process see the same request."""
    facts: dict[str, Any] = {"sandbox": event.sandbox} if event.sandbox else {}
    if event.kind == "file":
        facts["file"] = event.working_dir
    elif event.kind == "command":
        facts["argv"] = []
    return facts


class RemoteRuns:
    """Follows runs of other processes that a client of this process subscribes to or waits for.

    Of all other runs, it only tracks that they are open.
    """

    def __init__(self, runs: RunRegistry, store: Store, tenant: str) -> None:
        self._runs = runs
        self._store = store
        self._tenant = tenant
        self._open: dict[str, str] = {}
        """Session key by id of each open run that is known."""
        self._busy: Counter[str] = Counter()
        self._ended: OrderedDict[str, None] = OrderedDict()
        """Runs whose terminal event was delivered here. Messages that still call them open are older."""
        self._resyncs = 0
        self._ended_in_resync: set[str] = set()
        """Runs that ended while their state was read again: the result may still call them open."""
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._changed: set[str] = set()
        self._decoders: dict[str, list[tuple[int, EventDecoder]]] = {}
        self._tasks = BackgroundTasks("remote runs", expected=StoreError)

    def follow(self, run_id: str, session: str) -> RunLog:
        """Follow a run from its first event, once."""
        log = self._runs.get(run_id)
        if log is None and run_id in self._ended:
            log = RunLog(run_id, session)
            log.ended = True
        elif log is None:
            self._add_open(run_id, session)
            log = self._runs.open(RunLog(run_id, session))
            self._runs.report_change(session)
            self._schedule_read(log)
        return log

    async def follow_all(self, rows: Sequence[RunRow]) -> None:
        """Follow those of these runs that are open, and return when all their events written so far have been read.

        A subscriber that already has some of them would otherwise receive them again, as live events.
        """
        for row in rows:
            if row.status in OPEN:
                self.follow(row.id, row.session)
        if reading := [task for row in rows if (task := self._reading.get(row.id)) is not None]:
            await asyncio.wait(reading)

    def is_running(self, session: str) -> bool:
        return self._busy[session] > 0

    async def stream_events(self, row: RunRow, on_event: OnEvent) -> None:
        """Pass every event of a run to `on_event`, from the first to the terminal one."""
        decoder, seq = EventDecoder(row.session, on_event), 0
        while True:
            log, ended = self._runs.get(row.id), row.id in self._ended
            rows = await retry_while_lost(partial(self._store.events, self._tenant, row.id, after=seq, limit=_PAGE))
            for event in split_rows(rows, seq):
                if (decoded := decode_event(event.body)) is not None:
                    decoder.decode(decoded)
                seq = event.seq
            if ended if not rows else read_event_name(rows[-1].body) in TERMINAL_EVENTS:
                return
            if rows:
                continue
            log = log or self.follow(row.id, row.session)
            if self._runs.get(row.id) is log and log.delivered <= seq:
                break
        self._decoders.setdefault(row.id, []).append((seq, decoder))
        await self._runs.wait_ended(row.id)

    async def wait_for_terminal_event(self, row: RunRow) -> None:
        """Give the owner of a run that has just finished time to write its terminal event."""
        if not row.epoch or abs(time.time() - (row.ended_at or 0) / 1000) > 20 * _TERMINAL_EVENT_TIMEOUT:
            return
        deadline = time.monotonic() + _TERMINAL_EVENT_TIMEOUT
        while time.monotonic() < deadline:
            rows = await self._store.events(self._tenant, row.id, after=max(0, row.events - 1024))
            if rows and read_event_name(rows[-1].body) in TERMINAL_EVENTS:
                return
            await asyncio.sleep(_POLL_INTERVAL)

    def handle(self, notification: Notification) -> None:
        """Handle a notification that this or another process has committed something."""
        log = self._runs.get(notification.id)
        match notification.kind:
            case "begun" | "stop":
                if notification.session:
                    self._add_open(notification.id, notification.session)
                self._follow_if_subscribed(notification.id)
            case "events" if log is not None:
                if not 0 < notification.seq <= log.seq:  # else an earlier read has found them
                    self._schedule_read(log)
            case "events":
                self._follow_if_subscribed(notification.id)
            case "ended":
                if self._resyncs:
                    self._ended_in_resync.add(notification.id)
                session = self._remove_open(notification.id) or notification.session
                if log is not None:
                    self._tasks.spawn(self._ensure_terminal_event(log))
                elif session:
                    self._runs.report_change(session)
            case _:
                pass

    def resync(self) -> None:
        """Check everything again, because notifications may have been missed."""
        self._tasks.spawn(self._resync())

    async def _resync(self) -> None:
        known = dict(self._open)  # notifications that arrive during the read are newer than its result
        self._resyncs += 1
        try:
            rows = await self._store.open_runs()
        finally:
            self._resyncs -= 1
            ended = set(self._ended_in_resync)
            if not self._resyncs:
                self._ended_in_resync.clear()
        found = {row.id: row.session for row in rows if row.tenant == self._tenant and row.id not in ended}
        for run_id in known.keys() - found.keys():
            if (session := self._remove_open(run_id)) and self._runs.get(run_id) is None:
                self._runs.report_change(session)
        for run_id, session in found.items():
            if run_id not in known:
                self._add_open(run_id, session)
            if run_id in self._open and self._runs.has_subscribers(session):
                self.follow(run_id, session)
        for log in self._runs.all:
            self._schedule_read(log)
            if log.run_id not in self._open:
                self._tasks.spawn(self._ensure_terminal_event(log))

    def _follow_if_subscribed(self, run_id: str) -> None:
        """Follow a run if a client subscribes to its session."""
        session = self._open.get(run_id)
        if session is None:
            self._tasks.spawn(self._look_up_run(run_id))
        elif self._runs.has_subscribers(session):
            self.follow(run_id, session)

    async def _look_up_run(self, run_id: str) -> None:
        row = await self._store.run(self._tenant, run_id)
        if row is not None and row.status in OPEN:
            self._add_open(run_id, row.session)
            self._follow_if_subscribed(run_id)

    def _add_open(self, run_id: str, session: str) -> None:
        if run_id not in self._open and run_id not in self._ended:
            self._open[run_id] = session
            self._busy[session] += 1

    def _remove_open(self, run_id: str) -> str:
        session = self._open.pop(run_id, "")
        if session:
            self._busy -= Counter([session])
        return session

    async def _ensure_terminal_event(self, log: RunLog) -> None:
        """Write the terminal event of a finished run if its owner does not. One that never started has none, and one
        whose session was deleted never gets one."""
        row = await self._store.run(self._tenant, log.run_id) if not log.seq else None
        if log.seq or (row is not None and row.epoch):
            with suppress(TimeoutError):
                async with asyncio.timeout(_TERMINAL_EVENT_TIMEOUT):
                    await self._runs.wait_ended(log.run_id)
            if log.ended:
                return
            row = await self._store.run(self._tenant, log.run_id)
        if row is None and not log.ended:
            self._notify_decoders(log, self._runs.end_deleted(log))
        elif row is not None and row.status not in OPEN:
            await self._runs.last_seq(row)
            self._schedule_read(log)

    def _schedule_read(self, log: RunLog) -> None:
        """Read new events until there are none, including those written in the meantime."""
        if log.run_id in self._reading:
            self._changed.add(log.run_id)
            return
        self._reading[log.run_id] = self._tasks.spawn(self._read(log))

    async def _read(self, log: RunLog) -> None:
        try:
            await self._read_new(log)
        finally:  # here, not in a done callback: an event reported between the two would be missed
            self._reading.pop(log.run_id, None)

    async def _read_new(self, log: RunLog) -> None:
        while not log.ended:
            self._changed.discard(log.run_id)
            try:
                rows = await self._store.events(self._tenant, log.run_id, after=log.seq, limit=_PAGE)
            except StoreError as error:
                logger.warning("events of a remote run cannot be read; retrying: %s", error)
                await asyncio.sleep(_READ_RETRY_DELAY)
                continue
            if rows:
                self._notify_decoders(log, self._runs.receive(log, rows))
            if len(rows) < _PAGE and log.run_id not in self._changed:
                return  # a notification announces anything written later

    def _notify_decoders(self, log: RunLog, events: Sequence[tuple[int, RunEvent]]) -> None:
        for after, decoder in self._decoders.get(log.run_id, ()):
            for seq, event in events:
                if seq > after:
                    decoder.decode(event)
        if log.ended:
            self._decoders.pop(log.run_id, None)
            self._remove_open(log.run_id)
            self._ended[log.run_id] = None
            if len(self._ended) > _MAX_ENDED:
                self._ended.popitem(last=False)

    async def close(self) -> None:
        await self._tasks.close()


class WorkerEventLog:
    """Persists the events of the runs of this process. One per worker process."""

    def __init__(self, atlas: Atlas, metrics: Metrics, grace: float, force_stop: asyncio.Event | None = None) -> None:
        self._atlas = atlas
        self._store = cast(Store, atlas.store)
        self._grace = grace
        self._turns = metrics.turns
        self._figures: MemberFigures | None = None
        self._figures_at = 0.0
        self._force_stop = force_stop or asyncio.Event()
        self.runs = RunRegistry(
            self._store, atlas.tenant, metrics, hide=atlas.hide, batch_delay=_BATCH_DELAY, merge_deltas=True
        )
        self._tasks = BackgroundTasks("worker event log")
        self._tasks.spawn(self.runs.writer.run())

    async def follow(self, turn: RunningTurn, row: RunRow) -> None:
        """Log the events of a run that this process has taken over. Numbering continues after the previous owner's last
        event, which is final once that owner is fenced off.
        """
        stream = cast(AtlasStream, turn)
        await stream.begun()
        if row.epoch or stream.epoch != 1:  # else there was no earlier owner
            row = await self._store.run(self._atlas.tenant, row.id) or row
        if row.status in OPEN or stream.epoch is not None:
            if not row.events:
                self._turns.start(row.id, max(0.0, time.time() - row.created_at / 1000))
            await follow_resumed(self.runs, self._atlas, stream, row)

    def figures(self) -> MemberFigures:
        """Return the figures of the turns that this process executes, for the operations view of all gateways.

        They are computed again after some seconds: a heartbeat that was sent for another reason repeats them.
        """
        now = time.monotonic()
        if self._figures is None or now - self._figures_at >= _FIGURES_INTERVAL:
            self._figures, self._figures_at = self._compute_figures(now), now
        return self._figures

    def _compute_figures(self, now: float) -> MemberFigures:
        health = self._atlas.model_health
        models = [
            ModelFigures(
                each.model,
                each.requests,
                each.failures,
                health.first_chunk_buckets(each.model, now),
                each.last_error,
                each.last_error_at,
                each.cooldown,
            )
            for each in self._atlas.model_status()
        ]
        first, durations = self._turns.first_output.buckets(now), self._turns.durations.buckets(now)
        return MemberFigures(**self._turns.ended(), first_output=first, duration=durations, models=tuple(models))

    async def stop(self) -> None:
        """Write the remaining events of runs that have finished or were released."""
        self.runs.stopping = True
        await close_atlas(self._atlas, self._grace, self._force_stop)
        await self.runs.flush(_FLUSH_TIMEOUT)
        await self._tasks.close()


async def follow_resumed(runs: RunRegistry, atlas: Atlas, stream: AtlasStream, row: RunRow) -> None:
    """Follow a run that this process owns now, after reading the events and messages of its earlier owners."""
    stored, restored = StoredRun(row), stream.restored_messages
    if row.events or restored:
        stored = await read_stored_run(cast(Store, atlas.store), atlas.tenant, row, restored)
    agent = next((agent for agent in atlas.agents if agent.id == row.agent_id), None)
    runs.follow(stream, agent_model(agent, atlas.registry) if agent else "", stored)


class ClusterCollector(Collector):
    """Prometheus collector: the load of this worker and, on the leader, the queue of the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def collect(self) -> Iterable[Metric]:
        cluster = self._cluster
        member = cluster.member_info
        yield _gauge("atlas_draining", "1 while the worker is draining and takes no new turns", member.draining)
        if cluster.worker is not None:
            yield _gauge(
                "atlas_cluster_leads",
                "1 on the leader, which runs jobs and reassigns runs of dead workers",
                cluster.is_leader,
            )
            yield _gauge("atlas_worker_capacity", "Maximum number of concurrent turns", member.capacity)
            yield from _worker_metrics(cluster.worker)
        if cluster.backlog is not None:
            yield from _leader_metrics(cluster.backlog)


def _worker_metrics(worker: QueueWorker) -> Iterable[Metric]:
    yield _gauge("atlas_worker_runs", "Turns running on this worker", worker.running)
    yield _gauge(
        "atlas_worker_heartbeat_age_seconds", "Seconds since the last successful heartbeat", worker.heartbeat_age
    )
    yield _counter("atlas_worker_taken", "Turns taken from the queue", worker.fetched)
    yield _counter("atlas_worker_finished", "Taken turns that have finished", worker.finished)
    yield _counter("atlas_worker_given_back", "Taken turns that were released to other workers", worker.released)


def _leader_metrics(backlog: Backlog) -> Iterable[Metric]:
    yield _gauge("atlas_cluster_queue_waiting", "Turns waiting for a worker, as seen by the leader", backlog.waiting)
    yield _gauge("atlas_cluster_queue_taken", "Turns assigned to workers, as seen by the leader", backlog.taken)
    yield _gauge(
        "atlas_cluster_queue_lag_seconds", "Seconds the oldest queued turn has waited for a worker", backlog.lag
    )


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help, value)


def _counter(name: str, help: str, value: float) -> Metric:
    return CounterMetricFamily(name, help, value)


class ClusterMembership:
    """Makes a gateway a member of a cluster. With `executes_runs`, this process is also a worker."""

    def __init__(self, cluster: Cluster, *, executes_runs: bool) -> None:
        self._cluster = cluster
        self._executes_runs = executes_runs

    @asynccontextmanager
    async def join(self, hub: Hub, url: str) -> AsyncGenerator[None, None]:
        """Be a member while the block runs. `url` is the address of the gateway."""
        hub.metrics.add(ClusterCollector(self._cluster))
        remote = RemoteRuns(hub.runs, hub.store, hub.atlas.tenant)
        hub.runs.remote = remote
        self._cluster.subscribe(partial(_on_notification, hub, remote), partial(_on_reconnect, hub, remote))
        role = "all" if self._executes_runs else "gateway"
        async with AsyncExitStack() as stack:
            stack.push_async_callback(remote.close)
            await stack.enter_async_context(self._cluster.join(role, url, follow=remote.stream_events))
            # While it is a member: afterwards no notification tells that a turn of another process has ended.
            stack.push_async_callback(close_atlas, hub.atlas, hub.settings.grace, hub.force_stop)
            if self._executes_runs:
                # Separate metrics: runs of this process are also counted when one of its clients follows them.
                event_log = WorkerEventLog(hub.atlas, Metrics(), hub.settings.grace, hub.force_stop)
                await stack.enter_async_context(
                    self._cluster.run_worker(event_log.follow, event_log.stop, event_log.figures)
                )
            yield


def _on_notification(hub: Hub, remote: RemoteRuns, notification: Notification) -> None:
    """Forward a committed change to the subscribers of the lists it affects."""
    match notification.kind:
        case "audit":
            hub.audit.check()
        case "asked" | "answer":
            hub.session_updates.report_approval_change(notification.session)
        case "session" if notification.session:
            hub.assignments.forget(notification.session)
            hub.session_updates.report_change(notification.session)
        case _:
            remote.handle(notification)


def _on_reconnect(hub: Hub, remote: RemoteRuns) -> None:
    hub.audit.check()
    hub.assignments.forget_all()
    remote.resync()


class WorkerHealthServer:
    """HTTP server for the health, readiness and metrics endpoints of a worker."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self.url = ""
        """URL of the server while it is open."""

    @asynccontextmanager
    async def serve(self, readiness: Readiness, metrics: Metrics) -> AsyncGenerator[str, None]:
        """Serve while the block runs; yield the URL."""
        settings, started = self._settings, time.monotonic()
        routes = health_routes(
            readiness, metrics, lambda: round(time.monotonic() - started, 3), exposed=settings.exposed
        )
        sockets = bind_sockets(settings)
        self.url = settings.url(sockets[0].getsockname()[1])
        server = build_server(App(Authenticator(settings), metrics, Starlette(routes=routes)), settings)
        serving = asyncio.create_task(server.serve(sockets))
        try:
            yield self.url
        finally:
            server.should_exit = True
            await serving


async def run_worker(
    atlas: Atlas,
    cluster: Cluster,
    grace: float,
    on_ready: Callable[[], object] | None = None,
    *,
    health_server: WorkerHealthServer | None = None,
) -> None:
    """Execute runs until SIGTERM or SIGINT.

    Then no more runs are taken, and running ones have `grace` seconds to finish before they are released to other
    workers. A second signal releases them at once. The health server stays open to the end.
    """
    stop, force_stop = asyncio.Event(), asyncio.Event()
    metrics, readiness = Metrics(), Readiness(cluster.check_connection)
    metrics.follow(atlas)
    metrics.add(ClusterCollector(cluster))
    async with AsyncExitStack() as stack:
        stack.enter_context(stop_signals(lambda: (force_stop if stop.is_set() else stop).set()))
        url = await stack.enter_async_context(health_server.serve(readiness, metrics)) if health_server else ""
        await stack.enter_async_context(cluster.join("worker", url, has_clients=False))
        event_log = WorkerEventLog(atlas, metrics, grace, force_stop)
        await stack.enter_async_context(cluster.run_worker(event_log.follow, event_log.stop, event_log.figures))
        readiness.started.set()
        configure_collector()
        if on_ready is not None:
            on_ready()
        await stop.wait()
        readiness.stopping = True
