"""Registry of open runs: numbers their events, persists them and delivers them to subscribers."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from atlas_agents.agents.stream import AtlasStream
from atlas_agents.core.aio import SYSTEM_CLOCK, BackgroundTasks, Clock
from atlas_agents.core.errors import StaleOwner, StoreError
from atlas_agents.core.events import Event, Usage
from atlas_agents.core.messages import Message, Text
from atlas_agents.core.store import OPEN, AddEvents, EventRow, ReserveEvents, RunRow, Store
from atlas_agents.gateway.convert import Translator, message_shape, usage_shape
from atlas_agents.gateway.events import PAUSE, Channel, Listener, LogWriter, Replay, RunLog
from atlas_agents.gateway.protocol.chat import RunOutcome
from atlas_agents.gateway.protocol.events import (
    LAST_WORDS,
    ApprovalRequested,
    ApprovalResolved,
    ChatDelta,
    ChatError,
    ChatFinal,
    ChatReasoning,
    ChatReset,
    RunEvent,
    ToolSettled,
    body_of,
    name_of,
)
from atlas_agents.gateway.protocol.types import TextPart, ThinkingPart
from atlas_agents.gateway.telemetry import Metrics
from atlas_agents.tools.journal import read_end_record


async def outcomes_of(
    store: Store, turns: Sequence[RunRow], shown: Collection[str], hide: Callable[[str], str]
) -> tuple[RunOutcome, ...]:
    """Return the outcomes of the turns whose ids are in `shown`."""
    return tuple(
        [
            RunOutcome(row.id, row.status, hide(row.error) if row.error else None, await said_by(store, row))
            for row in turns
            if row.id in shown and (row.status == "failed" or row.status == "cancelled")
        ]
    )


async def said_by(store: Store, row: RunRow) -> tuple[TextPart | ThinkingPart, ...]:
    """Return the content of a message that was never completed."""
    ended = await read_end_record(store, row)
    said = ended.partial if ended is not None else ()
    return tuple([TextPart(part.text) if isinstance(part, Text) else ThinkingPart(part.text) for part in said])


_ROOM = 8


async def finalize_run(store: Store, tenant: str, row: RunRow, hide: Callable[[str], str] = str) -> int:
    """Return the number of the run's last event, after appending a missing terminal event if the run has ended."""
    rows = await store.events(tenant, row.id, after=max(0, row.events - 2 * 512))
    if rows and name_of(rows[-1].body) in LAST_WORDS:
        return rows[-1].seq
    if row.status in OPEN:
        return rows[-1].seq if rows else 0
    try:
        (last,) = await store.commit(tenant, [ReserveEvents(row.id, _ROOM, row.epoch, takes=True)])
        first = last - _ROOM + 1
        words = await _last_words(store, tenant, row, hide)
        said = [(first + place, body_of(event)) for place, event in enumerate(words)]
        await store.commit(tenant, [AddEvents(row.id, tuple(said), row.epoch + 1)])
    except StaleOwner:  # another process appended it, or the owner was still alive
        found = await store.run(tenant, row.id)
        return await finalize_run(store, tenant, found, hide) if found is not None else 0
    return said[-1][0]


async def _last_words(store: Store, tenant: str, row: RunRow, hide: Callable[[str], str]) -> list[RunEvent]:
    """Return the events that withdraw the incomplete message, repeat it as a whole, and end the run."""
    begun: list[RunEvent] = [ChatReset(row.id, row.epoch)] if row.events else []
    if row.status == "failed":
        error = ChatError(row.id, hide(row.error or "the turn failed"), "failed")
        return [*begun, *await _broken_off(store, row), error]
    kept = await store.messages(tenant, row.session)
    replies = [Message.from_json(each.body) for each in kept if each.run_id == row.id]
    replies = [message for message in replies if message.role == "assistant"]
    usage = usage_shape(sum([_usage(message) for message in replies], Usage()))
    if row.status == "cancelled":
        return [*begun, *await _broken_off(store, row), ChatFinal(row.id, usage, cancelled=True)]
    if not replies:
        return [*begun, ChatFinal(row.id, usage)]
    reply = replies[-1]
    words: list[RunEvent] = [ChatDelta(row.id, reply.text)] if reply.text else []
    return [*begun, *words, ChatFinal(row.id, usage, message_shape(reply, row.id))]


async def _broken_off(store: Store, row: RunRow) -> list[RunEvent]:
    """Return the content that was emitted last and never became a message."""
    said = await said_by(store, row)
    return [
        ChatDelta(row.id, part.text) if isinstance(part, TextPart) else ChatReasoning(row.id, part.text)
        for part in said
    ]


def _usage(message: Message) -> Usage:
    counted: dict[str, int] = message.metadata.get("usage") or {}
    return Usage(counted.get("input", 0), counted.get("output", 0), counted.get("cached", 0))


logger = logging.getLogger(__name__)


class RemoteRunSource(Protocol):
    """Follows runs that other processes execute."""

    def attend(self, run_id: str, session: str) -> RunLog: ...

    async def attend_open(self, rows: Sequence[RunRow]) -> None: ...

    async def last_words(self, row: RunRow) -> None: ...

    def runs_in(self, session: str) -> bool: ...


class RunRegistry:
    """All open runs of a gateway and the channels of their sessions."""

    def __init__(
        self,
        store: Store,
        tenant: str,
        metrics: Metrics,
        clock: Clock = SYSTEM_CLOCK,
        pause: float = PAUSE,
        joins: bool = False,
    ) -> None:
        self.writer = LogWriter(store, tenant, self._wrote, clock, pause)
        self.far: RemoteRunSource | None = None
        """Follows runs of other processes; None if all runs are executed here."""
        self.on_change: Callable[[str], None] = lambda session: None
        """Called with the session key when a run starts or ends."""
        self.on_question: Callable[[str], None] = lambda session: None
        """Called with the session key when an approval is requested or resolved."""
        self.on_call: Callable[[], None] = lambda: None
        """Called when a tool call has a result."""
        self.notice: Callable[[str], str] = lambda agent_id: ""
        """Returns why an agent uses another model than its own; empty if it does not."""
        self.hide: Callable[[str], str] = str
        """Redacts secrets in a text."""
        self.stopping = False
        self._joins = joins
        self._store = store
        self._tenant = tenant
        self._metrics = metrics
        self._clock = clock
        self._live: dict[str, RunLog] = {}
        self._of_session: dict[str, dict[str, RunLog]] = {}
        self._ends: dict[str, asyncio.Event] = {}
        self._channels: dict[str, Channel] = {}
        self._expected: Counter[str] = Counter()
        self._healing: dict[str, asyncio.Lock] = {}
        self._tasks = BackgroundTasks("run registry")

    def follow(self, stream: AtlasStream, model: str, row: RunRow | None = None) -> RunLog:
        """Log and deliver all events of a run.

        A run that resumes after a crash continues above every number it has used; its incomplete message is withdrawn.
        """
        run_id = stream.stream_id
        if self.far is not None:
            return self.far.attend(run_id, stream.session)
        log = self.open(RunLog(run_id, stream.session, row.events if row else 0, lambda: stream.epoch, self._joins))
        if row is not None and row.events:
            self._say(log, ChatReset(run_id, row.epoch))
        stream.follow(partial(self._hear, log, Translator(model, self.notice, self.hide)))
        self.on_change(log.session)
        return log

    def open(self, log: RunLog) -> RunLog:
        """Add a run to the open runs."""
        self._live[log.run_id] = log
        self._of_session.setdefault(log.session, {})[log.run_id] = log
        self._ends[log.run_id] = asyncio.Event()
        self._metrics.runs.inc()
        return log

    def heard(self, log: RunLog, rows: Sequence[EventRow]) -> list[tuple[int, RunEvent]]:
        """Deliver events of a run that another process has written."""
        heard = log.hear(rows)
        channel = self._channels.get(log.session)
        if channel is not None:
            channel.tell(log.run_id, [entry for entry, _ in heard])
        events = [(entry.seq, event) for entry, event in heard if event is not None]
        for _, event in events:
            self._notice(log, event)
        if log.ended:
            self._metrics.ended.labels(_how(events[-1][1]) if events else "done").inc()
            self._over(log)
            self.on_change(log.session)
        return events

    async def attend(self, rows: Sequence[RunRow]) -> None:
        """Follow those of these runs that other processes execute."""
        if self.far is not None:
            await self.far.attend_open([row for row in rows if row.status in OPEN and row.id not in self._live])

    def listened(self, session: str) -> bool:
        """Return whether the session has subscribers, or is about to have one."""
        return session in self._channels or session in self._expected

    @contextmanager
    def expecting(self, session: str) -> Generator[None, None, None]:
        """Treat the session as subscribed while the block runs, so that no run that starts elsewhere is missed."""
        self._expected[session] += 1
        try:
            yield
        finally:
            self._expected -= Counter([session])

    @property
    def all(self) -> list[RunLog]:
        """Return every open run that is followed here."""
        return list(self._live.values())

    def live(self, session: str) -> list[RunLog]:
        """Return the runs of a session that are open or have just ended, in order."""
        return list(self._of_session.get(session, {}).values())

    def get(self, run_id: str) -> RunLog | None:
        return self._live.get(run_id)

    def running(self, session: str) -> bool:
        return any(not log.ended for log in self.live(session)) or (self.far is not None and self.far.runs_in(session))

    async def ended(self, run_id: str) -> None:
        """Wait for the terminal event of a run that is open here."""
        end = self._ends.get(run_id)
        if end is not None:
            await end.wait()

    def listen(self, session: str, listener: Listener) -> Channel:
        """Subscribe to a session, starting in this event loop tick."""
        channel = self._channels.get(session)
        if channel is None:
            channel = self._channels[session] = Channel(session)
        channel.listeners.add(listener)
        return channel

    def leave(self, session: str, listener: Listener) -> None:
        channel = self._channels.get(session)
        if channel is not None:
            channel.listeners.discard(listener)
            for key in [key for key in channel.behind if key[0] is listener]:
                del channel.behind[key]
            if not channel.listeners:
                del self._channels[session]

    def replay(self, channel: Channel, listener: Listener, run_id: str, after: int) -> None:
        """Send a subscriber the events it missed, then live events."""
        replay = Replay(self._store, self._tenant, channel, listener, run_id, after)
        listener.spawn(replay.run(self._live.get(run_id)))

    async def last_number(self, row: RunRow) -> int:
        """Return the number of the run's last event; append a missing terminal event if the run has ended."""
        lock = self._healing.setdefault(row.id, asyncio.Lock())
        try:
            async with lock:
                if self.far is not None and row.status not in OPEN:
                    await self.far.last_words(row)
                return await finalize_run(self._store, self._tenant, row, self.hide)
        finally:
            if not lock.locked():
                self._healing.pop(row.id, None)

    def _hear(self, log: RunLog, translator: Translator, event: Event) -> None:
        said = translator.of(event)
        if said is None:
            return
        if self.stopping and said.event in LAST_WORDS and _how(said) != "done":
            self._tasks.spawn(self._say_unless_left(log, said))
            return
        self._say(log, said)

    async def _say_unless_left(self, log: RunLog, said: RunEvent) -> None:
        """Emit the event, except the end of a turn that was interrupted by shutdown: it resumes at the next start."""
        try:
            row = await self._store.run(self._tenant, log.run_id)
        except StoreError:
            return
        if row is not None and row.status not in OPEN:
            self._say(log, said)

    def _say(self, log: RunLog, event: RunEvent) -> None:
        if log.ended:
            return
        at_once = log.add(event)
        if event.event in LAST_WORDS:
            log.ended = True
            self._metrics.ended.labels(_how(event)).inc()
            self.on_change(log.session)
        self._tell(log)
        self.writer.add(log, at_once=at_once)
        self._notice(log, event)

    def _notice(self, log: RunLog, event: RunEvent) -> None:
        if type(event) is ToolSettled:
            self.on_call()
        elif type(event) in (ApprovalRequested, ApprovalResolved):
            self.on_question(log.session)

    def _tell(self, log: RunLog) -> None:
        entries = log.tell()
        channel = self._channels.get(log.session)
        if entries and channel is not None:
            channel.tell(log.run_id, entries)

    def _wrote(self, log: RunLog) -> None:
        self._tell(log)
        if log.over:
            self._over(log)

    def _over(self, log: RunLog) -> None:
        if self._live.pop(log.run_id, None) is not None:
            self._forget(log)
            self._metrics.runs.dec()
            self._metrics.events.inc(log.seq - log.began)
            self._ends.pop(log.run_id).set()

    def _forget(self, log: RunLog) -> None:
        others = self._of_session[log.session]
        del others[log.run_id]
        if not others:
            del self._of_session[log.session]

    async def settle(self, limit: float) -> None:
        """Write all remaining events before shutdown."""
        await self._tasks.wait(limit)
        await self.writer.flush(limit)


def _how(event: RunEvent) -> str:
    if type(event) is ChatFinal:
        return "cancelled" if event.cancelled else "done"
    return "failed"
