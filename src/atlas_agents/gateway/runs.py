"""Registry of open runs: numbers their events, persists them and delivers them to subscribers."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from atlas_agents.agents.stream import AtlasStream
from atlas_agents.core.aio import SYSTEM_CLOCK, BackgroundTasks, Clock
from atlas_agents.core.errors import StaleOwner, StoreError
from atlas_agents.core.events import Event, Usage
from atlas_agents.core.messages import Message, Text
from atlas_agents.core.store import OPEN, AddEvents, EventRow, ReserveEvents, RunRow, Store
from atlas_agents.gateway.convert import Translator, message_shape, usage_shape
from atlas_agents.gateway.events import BATCH_DELAY, Channel, LogWriter, Replay, RunLog, Subscriber
from atlas_agents.gateway.protocol import events as wire
from atlas_agents.gateway.protocol.chat import RunOutcome
from atlas_agents.gateway.protocol.types import TextPart, ThinkingPart
from atlas_agents.gateway.telemetry import Metrics
from atlas_agents.tools.journal import read_end_record

if TYPE_CHECKING:
    from atlas_agents.gateway.cluster import RemoteRuns

_RESERVED = 8
logger = logging.getLogger(__name__)


async def read_outcomes(
    store: Store, turns: Sequence[RunRow], shown: Collection[str], hide: Callable[[str], str]
) -> tuple[RunOutcome, ...]:
    """Return the outcomes of the turns whose ids are in `shown`."""
    return tuple(
        [
            RunOutcome(row.id, row.status, hide(row.error) if row.error else None, await read_partial(store, row))
            for row in turns
            if row.id in shown and (row.status == "failed" or row.status == "cancelled")
        ]
    )


async def read_partial(store: Store, row: RunRow) -> tuple[TextPart | ThinkingPart, ...]:
    """Return the content of a message that was never completed."""
    ended = await read_end_record(store, row)
    parts = ended.partial if ended is not None else ()
    return tuple([TextPart(part.text) if isinstance(part, Text) else ThinkingPart(part.text) for part in parts])


async def finalize_run(store: Store, tenant: str, row: RunRow, hide: Callable[[str], str] = str) -> int:
    """Return the number of the run's last event, after appending a missing terminal event if the run has ended."""
    rows = await store.events(tenant, row.id, after=max(0, row.events - 2 * 512))
    if rows and wire.read_event_name(rows[-1].body) in wire.TERMINAL_EVENTS:
        return rows[-1].seq
    if row.status in OPEN:
        return rows[-1].seq if rows else 0
    try:
        (last,) = await store.commit(tenant, [ReserveEvents(row.id, _RESERVED, row.epoch, takes=True)])
        first = last - _RESERVED + 1
        events = await _terminal_events(store, tenant, row, hide)
        rows = [(first + index, wire.encode_event(event)) for index, event in enumerate(events)]
        await store.commit(tenant, [AddEvents(row.id, tuple(rows), row.epoch + 1)])
    except StaleOwner:  # another process appended it, or the owner was still alive
        found = await store.run(tenant, row.id)
        return await finalize_run(store, tenant, found, hide) if found is not None else 0
    return rows[-1][0]


async def _terminal_events(store: Store, tenant: str, row: RunRow, hide: Callable[[str], str]) -> list[wire.RunEvent]:
    """Return the events that withdraw the incomplete message, repeat it as a whole, and end the run."""
    reset: list[wire.RunEvent] = [wire.ChatReset(row.id, row.epoch)] if row.events else []
    if row.status == "failed":
        error = wire.ChatError(row.id, hide(row.error or "the turn failed"), "failed")
        return [*reset, *await _partial_events(store, row), error]
    stored = await store.messages(tenant, row.session)
    replies = [Message.from_json(each.body) for each in stored if each.run_id == row.id]
    replies = [message for message in replies if message.role == "assistant"]
    usage = usage_shape(sum([_usage(message) for message in replies], Usage()))
    if row.status == "cancelled":
        return [*reset, *await _partial_events(store, row), wire.ChatFinal(row.id, usage, cancelled=True)]
    if not replies:
        return [*reset, wire.ChatFinal(row.id, usage)]
    reply = replies[-1]
    events: list[wire.RunEvent] = [wire.ChatDelta(row.id, reply.text)] if reply.text else []
    return [*reset, *events, wire.ChatFinal(row.id, usage, message_shape(reply, row.id))]


async def _partial_events(store: Store, row: RunRow) -> list[wire.RunEvent]:
    """Return the content that was emitted last and never became a message."""
    parts = await read_partial(store, row)
    return [
        wire.ChatDelta(row.id, part.text) if isinstance(part, TextPart) else wire.ChatReasoning(row.id, part.text)
        for part in parts
    ]


def _usage(message: Message) -> Usage:
    counted: dict[str, int] = message.metadata.get("usage") or {}
    return Usage(counted.get("input", 0), counted.get("output", 0), counted.get("cached", 0))


class RunHooks(msgspec.Struct, frozen=True):
    """What to call when runs change. In a cluster, notifications of committed changes replace the last two."""

    on_change: Callable[[str], None]
    """Called with the session key when a run starts or ends."""
    on_approval: Callable[[str], None]
    """Called with the session key when an approval is requested or resolved."""
    on_tool_result: Callable[[], None]


def no_notice(agent_id: str) -> str:
    """Return no notice: the agent uses its own model."""
    return ""


class RunRegistry:
    """All open runs of a gateway and the channels of their sessions.

    `model_notice` returns why an agent uses another model than its own; `hide` redacts secrets.
    """

    def __init__(
        self,
        store: Store,
        tenant: str,
        metrics: Metrics,
        clock: Clock = SYSTEM_CLOCK,
        *,
        hooks: RunHooks | None = None,
        hide: Callable[[str], str] = str,
        model_notice: Callable[[str], str] = no_notice,
        batch_delay: float = BATCH_DELAY,
        merge_deltas: bool = False,
    ) -> None:
        self.writer = LogWriter(store, tenant, self._on_written, clock, batch_delay)
        self.remote: RemoteRuns | None = None
        """Follows runs of other processes; None if all runs are executed here."""
        self.stopping = False
        self._hooks = hooks
        self._hide = hide
        self._model_notice = model_notice
        self._merge_deltas = merge_deltas
        self._store = store
        self._tenant = tenant
        self._metrics = metrics
        self._clock = clock
        self._open: dict[str, RunLog] = {}
        self._by_session: dict[str, dict[str, RunLog]] = {}
        self._ends: dict[str, asyncio.Event] = {}
        self._channels: dict[str, Channel] = {}
        self._expected: Counter[str] = Counter()
        self._finalizing: dict[str, asyncio.Lock] = {}
        self._tasks = BackgroundTasks("run registry")

    def follow(self, stream: AtlasStream, model: str, row: RunRow | None = None) -> RunLog:
        """Log and deliver all events of a run.

        A run that resumes after a crash continues above every number it has used; its incomplete message is withdrawn.
        """
        run_id = stream.stream_id
        if self.remote is not None:
            return self.remote.follow(run_id, stream.session)
        log = self.open(
            RunLog(run_id, stream.session, row.events if row else 0, lambda: stream.epoch, self._merge_deltas)
        )
        if row is not None and row.events:
            self._emit(log, wire.ChatReset(run_id, row.epoch))
        stream.follow(partial(self._on_event, log, Translator(model, self._model_notice, self._hide)))
        self.report_change(log.session)
        return log

    def report_change(self, session: str) -> None:
        """Call the hook for a session in which a run has started or ended."""
        if self._hooks is not None:
            self._hooks.on_change(session)

    def open(self, log: RunLog) -> RunLog:
        """Add a run to the open runs."""
        self._open[log.run_id] = log
        self._by_session.setdefault(log.session, {})[log.run_id] = log
        self._ends[log.run_id] = asyncio.Event()
        self._metrics.runs.inc()
        return log

    def receive(self, log: RunLog, rows: Sequence[EventRow]) -> list[tuple[int, wire.RunEvent]]:
        """Deliver events of a run that another process has written."""
        received = log.append_remote(rows)
        channel = self._channels.get(log.session)
        if channel is not None:
            channel.deliver(log.run_id, [entry for entry, _ in received])
        events = [(entry.seq, event) for entry, event in received if event is not None]
        if log.ended:
            self._metrics.ended.labels(_end_status(events[-1][1]) if events else "done").inc()
            self._close_log(log)
            self.report_change(log.session)
        return events

    async def follow_remote(self, rows: Sequence[RunRow]) -> None:
        """Follow those of these runs that other processes execute, and wait until their events have been read."""
        if self.remote is not None:
            await self.remote.follow_all(rows)

    def has_subscribers(self, session: str) -> bool:
        """Return whether the session has subscribers, or is about to have one."""
        return session in self._channels or session in self._expected

    @contextmanager
    def expect_subscriber(self, session: str) -> Generator[None, None, None]:
        """Treat the session as subscribed while the block runs, so that no run that starts elsewhere is missed."""
        self._expected[session] += 1
        try:
            yield
        finally:
            self._expected -= Counter([session])

    @property
    def all(self) -> list[RunLog]:
        """Return every open run that is followed here."""
        return list(self._open.values())

    def session_runs(self, session: str) -> list[RunLog]:
        """Return the runs of a session that are open or have just ended, in order."""
        return list(self._by_session.get(session, {}).values())

    def get(self, run_id: str) -> RunLog | None:
        return self._open.get(run_id)

    def is_running(self, session: str) -> bool:
        return any(not log.ended for log in self.session_runs(session)) or (
            self.remote is not None and self.remote.is_running(session)
        )

    async def wait_ended(self, run_id: str) -> None:
        """Wait for the terminal event of a run that is open here."""
        end = self._ends.get(run_id)
        if end is not None:
            await end.wait()

    def subscribe(self, session: str, subscriber: Subscriber) -> Channel:
        """Subscribe to a session, starting in this event loop tick."""
        channel = self._channels.get(session)
        if channel is None:
            channel = self._channels[session] = Channel(session)
        channel.subscribers.add(subscriber)
        return channel

    def unsubscribe(self, session: str, subscriber: Subscriber) -> None:
        channel = self._channels.get(session)
        if channel is not None:
            channel.subscribers.discard(subscriber)
            for key in [key for key in channel.behind if key[0] is subscriber]:
                del channel.behind[key]
            if not channel.subscribers:
                del self._channels[session]

    def replay(self, channel: Channel, subscriber: Subscriber, run_id: str, after: int) -> None:
        """Send a subscriber the events it missed, then live events."""
        replay = Replay(self._store, self._tenant, channel, subscriber, run_id, after)
        subscriber.spawn(replay.run(self._open.get(run_id)))

    async def last_seq(self, row: RunRow) -> int:
        """Return the number of the run's last event; append a missing terminal event if the run has ended."""
        lock = self._finalizing.setdefault(row.id, asyncio.Lock())
        try:
            async with lock:
                if self.remote is not None and row.status not in OPEN:
                    await self.remote.wait_for_terminal_event(row)
                return await finalize_run(self._store, self._tenant, row, self._hide)
        finally:
            if not lock.locked():
                self._finalizing.pop(row.id, None)

    def _on_event(self, log: RunLog, translator: Translator, event: Event) -> None:
        wire_event = translator.convert(event)
        if wire_event is None:
            return
        if self.stopping and wire_event.event in wire.TERMINAL_EVENTS and _end_status(wire_event) != "done":
            self._tasks.spawn(self._emit_if_ended(log, wire_event))
            return
        self._emit(log, wire_event)

    async def _emit_if_ended(self, log: RunLog, wire_event: wire.RunEvent) -> None:
        """Emit the event, except the end of a turn that was interrupted by shutdown: it resumes at the next start."""
        try:
            row = await self._store.run(self._tenant, log.run_id)
        except StoreError:
            return
        if row is not None and row.status not in OPEN:
            self._emit(log, wire_event)

    def _emit(self, log: RunLog, event: wire.RunEvent) -> None:
        if log.ended:
            return
        at_once = log.add(event)
        if event.event in wire.TERMINAL_EVENTS:
            log.ended = True
            self._metrics.ended.labels(_end_status(event)).inc()
            self.report_change(log.session)
        self._deliver(log)
        self.writer.add(log, at_once=at_once)
        self._call_hooks(log, event)

    def _call_hooks(self, log: RunLog, event: wire.RunEvent) -> None:
        if self._hooks is None:
            return
        if type(event) is wire.ToolSettled:
            self._hooks.on_tool_result()
        elif type(event) in (wire.ApprovalRequested, wire.ApprovalResolved):
            self._hooks.on_approval(log.session)

    def _deliver(self, log: RunLog) -> None:
        entries = log.take_deliverable()
        channel = self._channels.get(log.session)
        if entries and channel is not None:
            channel.deliver(log.run_id, entries)

    def _on_written(self, log: RunLog) -> None:
        self._deliver(log)
        if log.finished:
            self._close_log(log)

    def _close_log(self, log: RunLog) -> None:
        if self._open.pop(log.run_id, None) is not None:
            self._remove_from_session(log)
            self._metrics.runs.dec()
            self._metrics.events.inc(log.seq - log.start_seq)
            self._ends.pop(log.run_id).set()

    def _remove_from_session(self, log: RunLog) -> None:
        others = self._by_session[log.session]
        del others[log.run_id]
        if not others:
            del self._by_session[log.session]

    async def flush(self, limit: float) -> None:
        """Write all remaining events before shutdown."""
        await self._tasks.wait(limit)
        await self.writer.flush(limit)


def _end_status(event: wire.RunEvent) -> str:
    if type(event) is wire.ChatFinal:
        return "cancelled" if event.cancelled else "done"
    return "failed"
