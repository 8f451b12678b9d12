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
from atlas_agents.core.errors import NotFound, StaleOwner, StoreError
from atlas_agents.core.events import ErrorRaised, Event, Usage
from atlas_agents.core.messages import Message, Text
from atlas_agents.core.store import OPEN, AddEvents, EventRow, ReserveEvents, RunRow, Store, StoredMessage
from atlas_agents.gateway.convert import Translator, message_shape, usage_shape
from atlas_agents.gateway.events import (
    BATCH_DELAY,
    TEXT_DELAY,
    Channel,
    LogWriter,
    Replay,
    RunLog,
    Subscriber,
    split_rows,
)
from atlas_agents.gateway.protocol import events as wire
from atlas_agents.gateway.protocol.chat import RunOutcome
from atlas_agents.gateway.protocol.types import TextPart, ThinkingPart
from atlas_agents.gateway.telemetry import Metrics
from atlas_agents.tools.journal import read_answering_run, read_end_record

if TYPE_CHECKING:
    from atlas_agents.gateway.cluster import RemoteRuns

_PAGE = 256
_OWNER_CHECK_INTERVAL = 5.0
_OWNER_POLL_INTERVAL = 0.25
_TERMINAL_EVENT_DELAY = 3.0
"""Seconds after the end of a run before another process than its owner writes the terminal event."""
_OUTPUT = (wire.ChatDelta, wire.ChatReasoning)
_HOOKED = (wire.ToolSettled, wire.ApprovalRequested, wire.ApprovalResolved)
_AFTER_RESET = frozenset(("chat.delta", "chat.reasoning", "chat.reset", "chat.final", "chat.error"))
logger = logging.getLogger(__name__)


async def read_outcomes(
    store: Store, tenant: str, messages: Sequence[StoredMessage], hide: Callable[[str], str]
) -> tuple[RunOutcome, ...]:
    """Return the outcomes of the turns with these messages of a session that failed or were cancelled."""
    if not any([row.run_id for row in messages]):
        return ()
    shown = {row.run_id for row in messages}
    failed = await store.failed_runs(tenant, messages[0].session, messages[0].seq, messages[-1].seq)
    return tuple(
        [
            RunOutcome(row.id, row.status, hide(row.error) if row.error else None, await read_partial(store, row))
            for row in failed
            if row.id in shown and (row.status == "failed" or row.status == "cancelled")
        ]
    )


async def read_partial(store: Store, row: RunRow) -> tuple[TextPart | ThinkingPart, ...]:
    """Return the content of a message that was never completed."""
    ended = await read_end_record(store, row)
    parts = ended.partial if ended is not None else ()
    return tuple([TextPart(part.text) if isinstance(part, Text) else ThinkingPart(part.text) for part in parts])


class StoredRun(msgspec.Struct, frozen=True):
    """Stored state of a run from earlier processes: its messages, and the events that clients may have received."""

    row: RunRow
    messages: tuple[Message, ...] = ()
    events: tuple[wire.RunEvent, ...] = ()

    @property
    def unannounced(self) -> list[Message]:
        """The messages that were stored, but whose event was not. No client has received that event."""
        announced = {event.message.id for event in self.events if type(event) is wire.ChatMessage}
        return [message for message in self.messages if message.id not in announced]

    @property
    def replies(self) -> list[Message]:
        return [message for message in self.messages if message.role == "assistant"]

    @property
    def last_reply_unannounced(self) -> bool:
        """Whether clients may have received text of the last reply, but not the complete reply."""
        return bool(self.row.events and self.unannounced and self.unannounced[-1] in self.replies[-1:])

    @property
    def asked_again(self) -> bool:
        """Whether clients may have received text of a further reply, which was requested after the last stored one."""
        if not self.row.events:
            return False
        if not self.replies:
            return True
        settled = {event.tool_call_id for event in self.events if type(event) is wire.ToolSettled}
        calls = [call.id for call in self.replies[-1].tool_calls]
        return bool(calls) and settled.issuperset(calls)

    def catch_up_events(self, *, reset: bool) -> list[wire.RunEvent]:
        """Return the events that withdraw incomplete text and announce the messages that were not announced."""
        id = self.row.id
        events: list[wire.RunEvent] = [wire.ChatReset(id, self.row.epoch)] if reset else []
        for message in self.unannounced:
            if message.role == "assistant" and message.text:
                events.append(wire.ChatDelta(id, message.text))
            events.append(wire.ChatMessage(id, message_shape(message, id)))
        return events


async def read_stored_run(store: Store, tenant: str, row: RunRow, ids: Collection[str] | None = None) -> StoredRun:
    """Read the stored state of a run from earlier processes. `ids` limits the messages to these."""
    rows = await store.messages(tenant, row.session)
    messages = [each.message for each in rows if each.run_id == row.id and (ids is None or each.id in ids)]
    events: list[wire.RunEvent] = []
    seq = 0
    while page := await store.events(tenant, row.id, after=seq, limit=_PAGE):
        events += [event for each in split_rows(page, seq) if (event := wire.decode_event(each.body)) is not None]
        seq = page[-1].seq
    return StoredRun(row, tuple(messages), tuple(events))


async def finalize_run(store: Store, tenant: str, row: RunRow, hide: Callable[[str], str] = str) -> int:
    """Return the number of the run's last event, after appending a missing terminal event if the run has ended."""
    rows = await store.events(tenant, row.id, after=max(0, row.events - 2 * 512))
    if rows and wire.read_event_name(rows[-1].body) in wire.TERMINAL_EVENTS:
        return rows[-1].seq
    if row.status in OPEN:
        return rows[-1].seq if rows else 0
    try:
        await store.commit(tenant, [ReserveEvents(row.id, 0, row.epoch, takes=True)])
        events = await _terminal_events(store, await read_stored_run(store, tenant, row), hide)
        (last,) = await store.commit(tenant, [ReserveEvents(row.id, len(events), row.epoch + 1)])
        first = last - len(events) + 1
        bodies = [(first + index, wire.encode_event(event)) for index, event in enumerate(events)]
        await store.commit(tenant, [AddEvents(row.id, tuple(bodies), row.epoch + 1)])
    except StaleOwner:  # another process appended it, or the owner was still alive
        found = await store.run(tenant, row.id)
        return await finalize_run(store, tenant, found, hide) if found is not None else 0
    return last


async def _terminal_events(store: Store, stored: StoredRun, hide: Callable[[str], str]) -> list[wire.RunEvent]:
    """Return the events that withdraw an incomplete message, announce the unannounced ones, and end the run."""
    row = stored.row
    if (answering := await read_answering_run(store, row)).id != row.id:
        return [wire.ChatFinal(row.id, usage_shape(Usage()), entered_run_id=answering.id)]
    log = RunLog(row.id, row.session)
    log.restore(stored.events)
    if row.status == "done":
        events = stored.catch_up_events(reset=stored.last_reply_unannounced)
    else:
        events = [*stored.catch_up_events(reset=row.events > 0), *await _partial_events(store, row)]
    replies, ended = stored.replies, await read_end_record(store, row)
    counted = [Usage.from_metadata(message.metadata) for message in replies]  # before the end of a turn recorded it
    usage = usage_shape(ended.usage if ended is not None and ended.used else sum(counted, Usage()))
    if row.status == "failed":
        events.append(wire.ChatError(row.id, hide(row.error or "the turn failed"), "failed"))
    elif row.status == "cancelled":
        events.append(wire.ChatFinal(row.id, usage, cancelled=True))
    else:
        events.append(wire.ChatFinal(row.id, usage, message_shape(replies[-1], row.id) if replies else None))
    return [log.with_kept_text(event) for event in events]


async def _partial_events(store: Store, row: RunRow) -> list[wire.RunEvent]:
    """Return the content that was emitted last and never became a message."""
    parts = await read_partial(store, row)
    return [
        wire.ChatDelta(row.id, part.text) if isinstance(part, TextPart) else wire.ChatReasoning(row.id, part.text)
        for part in parts
    ]


class RunHooks(msgspec.Struct, frozen=True):
    """Callbacks for changes of runs. In a cluster, notifications of committed changes replace the last two."""

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
        text_delay = batch_delay if merge_deltas else TEXT_DELAY
        self.writer = LogWriter(
            store, tenant, self._on_written, self._hand_over, clock, batch_delay, text_delay, is_worker=merge_deltas
        )
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

    def follow(self, stream: AtlasStream, model: str, stored: StoredRun | None = None) -> RunLog:
        """Log and deliver all events of a run.

        A run that resumes after a crash continues above every number it has used. Messages that were stored and not
        announced are announced first, and incomplete text is withdrawn.
        """
        run_id = stream.stream_id
        if self.remote is not None:
            return self.remote.follow(run_id, stream.session)
        first = stored.row.events if stored else 0
        log = self.open(RunLog(run_id, stream.session, first, lambda: stream.epoch, self._merge_deltas))
        if stored is not None:
            log.restore(stored.events)
            reset = stored.last_reply_unannounced or stored.asked_again
            if first and not reset and stored.replies and not stored.replies[-1].tool_calls:
                log.late_reset = wire.ChatReset(run_id, stored.row.epoch)
            for event in stored.catch_up_events(reset=reset):
                self._emit(log, event)
        stream.follow(partial(self._on_event, log, Translator(model, self._model_notice, self._hide)))
        stream.on_end(partial(self._on_stream_end, log))
        self.report_change(log.session)
        return log

    def report_change(self, session: str) -> None:
        """Call the hook for a session in which a run has started or ended."""
        if self._hooks is not None:
            self._hooks.on_change(session)

    def open(self, log: RunLog) -> RunLog:
        """Add a run to the open runs. A run that is resumed gets a new log."""
        if log.run_id not in self._open:
            self._ends[log.run_id] = asyncio.Event()
            self._metrics.runs.inc()
            if not log.start_seq:
                self._metrics.turns.start(log.run_id)
        self._open[log.run_id] = log
        self._by_session.setdefault(log.session, {})[log.run_id] = log
        return log

    def receive(self, log: RunLog, rows: Sequence[EventRow]) -> list[tuple[int, wire.RunEvent]]:
        """Deliver events of a run that another process has written."""
        received = log.append_remote(rows)
        channel = self._channels.get(log.session)
        if channel is not None:
            channel.deliver(log.run_id, [entry for entry, _ in received])
        events = [(entry.seq, event) for entry, event in received if event is not None]
        if any(type(event) in _OUTPUT for _, event in events):
            self._metrics.turns.note_output(log.run_id)
        if log.ended:
            self._count_end(log, _end_status(events[-1][1]) if events else "done")
            self._close_log(log)
            self.report_change(log.session)
        return events

    def end_deleted(self, log: RunLog) -> list[tuple[int, wire.RunEvent]]:
        """Deliver an error as the terminal event of a run whose session was deleted: its own can no longer be read."""
        error = wire.ChatError(log.run_id, "the session was deleted", NotFound.__name__)
        return self.receive(log, [EventRow(log.run_id, log.seq + 1, wire.encode_event(error))])

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
        channel.add(subscriber)
        return channel

    def unsubscribe(self, session: str, subscriber: Subscriber) -> None:
        channel = self._channels.get(session)
        if channel is not None and channel.remove(subscriber):
            del self._channels[session]

    def replay(self, channel: Channel, subscriber: Subscriber, run_id: str, after: int) -> None:
        """Send a subscriber the events it missed, then live events, starting in this event loop tick."""
        log = self._open.get(run_id)
        if log is not None and self.remote is None:
            after = min(after, log.delivered)  # a larger number was never sent
        replay = Replay(self._store, self._tenant, channel, subscriber, run_id, after, self._open.get)
        subscriber.spawn(replay.run())

    async def send_run(self, session: str, subscriber: Subscriber, run_id: str, *, new: bool) -> None:
        """Subscribe to a session and send all events of a run of it, unless the subscriber has them already."""
        if not new and self._open.get(run_id) is None:
            row = await self._store.run(self._tenant, run_id)
            if row is not None:
                await self.follow_remote([row])
                await self.last_seq(row)
        channel = self.subscribe(session, subscriber)
        if not channel.has_position(subscriber, run_id):
            self.replay(channel, subscriber, run_id, 0)

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
        if type(event) is ErrorRaised and event.kind == StaleOwner.__name__:
            self._hand_over(log)
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
        if log.ended or log.handed_over or log.is_repeated(event):
            return
        if log.late_reset is not None and event.event in _AFTER_RESET:
            reset, log.late_reset = log.late_reset, None
            if not (type(event) is wire.ChatFinal and not event.cancelled):
                self._emit(log, reset)
        at_once = log.add(event)
        if type(event) in _OUTPUT:
            self._metrics.turns.note_output(log.run_id)
        if event.event in wire.TERMINAL_EVENTS:
            log.ended = True
            self._count_end(log, _end_status(event))
            self.report_change(log.session)
        self._deliver(log)
        self.writer.add(log, at_once=at_once)
        if self._hooks is not None and type(event) in _HOOKED:
            self._call_hooks(self._hooks, log, event)

    def _count_end(self, log: RunLog, status: str) -> None:
        self._metrics.ended.labels(status).inc()
        self._metrics.turns.end(log.run_id, status)

    async def watch_owners(self) -> None:
        """Find runs that other processes have taken over while they wait here and write nothing, until cancelled."""
        while True:
            await self._clock.sleep(_OWNER_CHECK_INTERVAL)
            for log in self.all:
                epoch = log.epoch
                if epoch is None or log.ended or log.handed_over or log.unwritten:
                    continue
                try:
                    row = await self._store.run(self._tenant, log.run_id)
                except StoreError:
                    break
                if row is not None and row.epoch > epoch == log.epoch:
                    self._hand_over(log)

    def _on_stream_end(self, log: RunLog, failure: BaseException | None) -> None:
        """Follow a run whose turn has ended here without a terminal event, because its end could not be recorded."""
        if self._open.get(log.run_id) is log and not self.stopping:
            self._hand_over(log)

    def _hand_over(self, log: RunLog) -> None:
        """Follow a run that this process no longer executes, so that its subscribers receive the rest."""
        if log.ended or log.handed_over:
            return
        logger.warning("run is no longer executed here, following it in the store: run=%s", log.run_id)
        log.hand_over()
        if self._hooks is None:  # it has no subscribers
            self._close_log(log)
        else:
            self._tasks.spawn(self._follow_stored(log))

    async def _follow_stored(self, log: RunLog) -> None:
        """Deliver the events that the next owner writes, until the terminal event or until the run is resumed here."""
        while self._open.get(log.run_id) is log and not self.stopping:
            try:
                rows = await self._store.events(self._tenant, log.run_id, after=log.seq, limit=_PAGE)
                if self._open.get(log.run_id) is not log:
                    return
                if rows:
                    self.receive(log, rows)
                    continue
                row = await self._store.run(self._tenant, log.run_id)
                if row is None:
                    self.end_deleted(log)
                    return
                if row.ended_at is not None and abs(self._clock.time() - row.ended_at / 1000) > _TERMINAL_EVENT_DELAY:
                    await self.last_seq(row)
            except StoreError as error:
                logger.warning("events of a run cannot be read; retrying: run=%s: %s", log.run_id, error)
            await self._clock.sleep(_OWNER_POLL_INTERVAL)

    @staticmethod
    def _call_hooks(hooks: RunHooks, log: RunLog, event: wire.RunEvent) -> None:
        if type(event) is wire.ToolSettled:
            hooks.on_tool_result()
        else:
            hooks.on_approval(log.session)

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
            self._metrics.turns.forget(log.run_id)
            self._metrics.events.inc(log.seq - log.start_seq)
            self._ends.pop(log.run_id).set()
        log.close()

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
