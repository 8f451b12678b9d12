"""Event log of runs: numbering, persistence in batches, live delivery to subscribers, and replay."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import takewhile
from typing import Any, Protocol

import msgspec

from atlas_agents.core.aio import SYSTEM_CLOCK, Alarm, Clock
from atlas_agents.core.errors import StaleOwner, StoreBusy, StoreError, StoreFull, StoreLost
from atlas_agents.core.store import AddEvents, EventRow, ReserveEvents, Store, Write
from atlas_agents.gateway.auth import Grant
from atlas_agents.gateway.protocol import events as wire
from atlas_agents.gateway.protocol.events import full_frame, plain_frames, read_event_name
from atlas_agents.gateway.protocol.types import Part, PlanStepShape, TextPart, ThinkingPart, ToolResultPart

RANGE = 512
"""Event numbers reserved at once. Reserved numbers that were not used before a crash are never used."""
_LOW_WATER = 128
_MAX_RECENT = 64
_MAX_RECENT_BYTES = 256 * 1024
_MAX_TAIL = 32 * 1024
_MAX_MERGED = 1024
"""Maximum number of characters in one event made of several text deltas."""
_MAX_JOINED = 64 * 1024
"""Size in bytes of joined deltas from which on further deltas get a new row."""
_DELTAS = (wire.ChatDelta, wire.ChatReasoning)
_CALLS = (wire.ToolCalling, wire.ToolSettled)
_WRITTEN_AT_ONCE = frozenset(
    (
        "tool.call",
        "tool.pending",
        "tool.result",
        "exec.approval_request",
        "approval.resolved",
        "chat.final",
        "chat.error",
    )
)
_WRITTEN_AT_ONCE_BY_WORKERS = _WRITTEN_AT_ONCE - {"tool.call", "tool.result"}
"""Calls and results of tools wait for the next batch, because a worker has no clients; see `LogWriter`."""
_WRITTEN_FIRST = _WRITTEN_AT_ONCE | {"chat.message"}
"""Events that are delivered only after they have been written. A `chat.message` waits for the next batch: an event that
is written at once follows it immediately."""
_JOINED = ("chat.delta", "chat.reasoning")
_encoder = msgspec.json.Encoder()
_PAGE = 256
_MAX_POSITIONS = 256
"""Runs of a session whose last delivered event is remembered for each subscriber."""
logger = logging.getLogger(__name__)
BATCH_DELAY = 0.075
TEXT_DELAY = 1.0
"""Seconds until already delivered text is written, unless another event of its run is written first."""
_COMMIT_TIMES = 4.0
_MAX_BATCH_DELAY = 0.25
"""Events of a worker wait for several times as long as the last commit took, up to this many seconds."""
_RETRY_DELAYS = (0.05, 0.1, 0.2, 0.5, 1.0)
_MAX_RETRY_DELAY = 2.0


class LoggedEvent(msgspec.Struct, frozen=True, gc=False):
    """An event with its number in the run."""

    seq: int
    name: str
    body: bytes


def split_rows(rows: Sequence[EventRow], after: int) -> list[EventRow]:
    """Return the events after a number that are in stored rows, where deltas may share a row.

    A row has the number of its last event. A repeated write may have left two rows with the same deltas.
    """
    events: list[EventRow] = []
    for row in rows:
        bodies = wire.split_deltas(row.body)
        for seq, body in enumerate(bodies, row.seq - len(bodies) + 1):
            if seq > after:
                events.append(EventRow(row.run_id, seq, body))
                after = seq
    return events


def _join_entries(entries: Iterable[LoggedEvent]) -> list[tuple[int, bytes]]:
    """Return the rows for events: consecutive deltas of one kind share a row, which has the number of the last one."""
    rows: list[tuple[int, bytes]] = []
    joined: list[LoggedEvent] = []
    size = 0
    for entry in entries:
        if joined and (entry.name != joined[0].name or entry.seq != joined[-1].seq + 1 or size > _MAX_JOINED):
            rows.append(_join_row(joined))
            joined, size = [], 0
        if entry.name in _JOINED:
            joined.append(entry)
            size += len(entry.body)
        else:
            rows.append((entry.seq, entry.body))
    if joined:
        rows.append(_join_row(joined))
    return rows


def _join_row(entries: Sequence[LoggedEvent]) -> tuple[int, bytes]:
    last = entries[-1]
    return last.seq, wire.join_deltas(last.name, [each.body for each in entries]) if len(entries) > 1 else last.body


class OutputTail:
    """The last characters of a running tool's output, up to a limit."""

    __slots__ = ("_size", "lines")

    def __init__(self) -> None:
        self.lines: deque[str] = deque()
        self._size = 0

    def add(self, line: str) -> None:
        self.lines.append(line)
        self._size += len(line) + 1
        while self._size > _MAX_TAIL and len(self.lines) > 1:
            self._size -= len(self.lines.popleft()) + 1


class PartialMessage:
    """Content that was delivered but is not yet part of a stored message, for clients that subscribe mid-turn."""

    __slots__ = ("_calls", "_progress", "_questions", "_results", "_text", "_thinking", "plan")

    def __init__(self) -> None:
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._results: dict[str, ToolResultPart] = {}
        self._progress: dict[str, OutputTail] = {}
        self._questions: dict[str, wire.ApprovalRequested] = {}
        self._calls: dict[str, wire.ClientCallShape] = {}
        self.plan: tuple[PlanStepShape, ...] = ()

    def apply(self, event: wire.RunEvent) -> None:
        if type(event) is wire.ChatDelta:  # most of the events
            self._text.append(event.text)
            return
        match event:
            case wire.ChatReasoning(_, text):
                self._thinking.append(text)
            case wire.ChatReset():
                self._withdraw()
            case wire.PlanChanged(_, steps):
                self.plan = steps
            case wire.ChatMessage(_, message) if message.role == "assistant":
                self._withdraw()
            case wire.ChatMessage(_, message) if message.role == "tool":  # stored with the reply that follows it
                self._results.clear()
            case _:
                self._apply_tool(event)

    def _apply_tool(self, event: wire.RunEvent) -> None:
        match event:
            case wire.ToolProgressing(_, call_id, message):
                self._progress.setdefault(call_id, OutputTail()).add(message)
            case wire.ToolSettled(_, call_id, _, status, result, took, error):
                self._results[call_id] = ToolResultPart(call_id, status, result, error, took)
                self._progress.pop(call_id, None)
                self._calls.pop(call_id, None)
            case wire.ToolsPending(_, calls):
                self._calls = {call.tool_call_id: call for call in calls}
            case wire.ApprovalRequested(_, approval_id):
                self._questions[approval_id] = event
            case wire.ApprovalResolved(_, approval_id):
                self._questions.pop(approval_id, None)
            case _:
                pass

    def _withdraw(self) -> None:
        self._text.clear()
        self._thinking.clear()

    @property
    def approvals(self) -> tuple[wire.ApprovalRequested, ...]:
        """Return the pending approvals, oldest first."""
        return tuple(self._questions.values())

    @property
    def client_calls(self) -> tuple[wire.ClientCallShape, ...]:
        """Return the calls that wait for results of the client."""
        return tuple(self._calls.values())

    @property
    def progress(self) -> dict[str, tuple[str, ...]]:
        """Return the recent output of running tools, by call id."""
        return {call_id: tuple(tail.lines) for call_id, tail in self._progress.items()}

    @property
    def parts(self) -> tuple[Part, ...]:
        thinking = [ThinkingPart("".join(self._thinking))] if self._thinking else []
        text = [TextPart("".join(self._text))] if self._text else []
        return (*self._results.values(), *thinking, *text)


def _no_epoch() -> None:
    """Do nothing: the events of this run may be written without owning it."""


class RunLog:
    """Event log of one run that is executed here, or followed here through the store.

    `seq` is the last number given; `written` and `delivered` are the last numbers written and delivered. `epoch` is the
    fencing token: a process that has lost the run writes nothing more. Deltas that are
    written together share a row, and keep their numbers. With `merge_deltas` they become one event; that requires that
    events are delivered only after they are written.
    """

    __slots__ = (
        "_added",
        "_calls",
        "_complete_text",
        "_entries",
        "_epoch",
        "_last",
        "_merge_deltas",
        "_undelivered",
        "_writing",
        "delivered",
        "ended",
        "handed_over",
        "late_reset",
        "messages",
        "partial",
        "reserved",
        "run_id",
        "seq",
        "session",
        "start_seq",
        "written",
    )

    def __init__(
        self,
        run_id: str,
        session: str,
        reserved: int = 0,
        epoch: Callable[[], int | None] = _no_epoch,
        merge_deltas: bool = False,
    ) -> None:
        self._epoch = epoch
        self._merge_deltas = merge_deltas
        self._last: wire.RunEvent | None = None
        self.run_id = run_id
        self.session = session
        self.seq: int = reserved
        self.start_seq = self.written = self.delivered = self.reserved = reserved
        self.ended = False
        self.handed_over = False
        """Whether another process has taken over the run: its events then come from the store."""
        self.late_reset: wire.ChatReset | None = None
        """Reset that withdraws text of an earlier process; sent before the next text."""
        self.partial = PartialMessage()
        self.messages: set[str] = set()
        """Ids of the messages that were announced."""
        self._entries: deque[LoggedEvent] = deque()
        self._added = 0
        """Upper bound of the bytes in memory: the size of all entries so far."""
        self._undelivered: deque[tuple[LoggedEvent, wire.RunEvent]] = deque()
        self._writing = 0
        self._complete_text: list[str] = []
        self._calls: set[tuple[str, str]] = set()

    def restore(self, events: Iterable[wire.RunEvent]) -> None:
        """Apply the events that earlier processes have written."""
        for event in events:
            self.partial.apply(event)
            self.with_kept_text(event)
            if type(event) is wire.ChatMessage:
                self.messages.add(event.message.id)
            elif isinstance(event, _CALLS):
                self._calls.add((event.event, event.tool_call_id))

    def is_repeated(self, event: wire.RunEvent) -> bool:
        """Return whether the event repeats a call or a result of an earlier process, which a resumed run replays."""
        if not self._calls or not isinstance(event, _CALLS):
            return False
        return (event.event, event.tool_call_id) in self._calls

    def with_kept_text(self, event: wire.RunEvent) -> wire.RunEvent:
        """Return the next event; a reset gets the text of the complete messages before it."""
        if type(event) is wire.ChatReset and self._complete_text:
            return msgspec.structs.replace(event, kept="".join(self._complete_text))
        if type(event) is wire.ChatMessage and event.message.role == "assistant":
            self._complete_text += [part.text for part in event.message.parts if isinstance(part, TextPart)]
        return event

    def add(self, event: wire.RunEvent) -> bool:
        """Number an event and append it; return whether it must be written at once."""
        if self._merge_deltas and self._merge_delta(event):
            return False
        self._last = event = self.with_kept_text(event)
        self.seq += 1
        entry = LoggedEvent(self.seq, event.event, wire.encode_event(event))
        self._entries.append(entry)
        self._added += len(entry.body)
        self._undelivered.append((entry, event))
        if self._merge_deltas:
            return entry.name in _WRITTEN_AT_ONCE_BY_WORKERS
        return self.seq > self.reserved - _LOW_WATER or entry.name in _WRITTEN_AT_ONCE

    def _merge_delta(self, event: wire.RunEvent) -> bool:
        """Merge a text delta into the last event if that has the same kind and was not delivered yet."""
        last = self._last
        if not isinstance(event, _DELTAS) or not isinstance(last, _DELTAS) or last.event != event.event:
            return False
        if self.seq <= max(self._writing, self.written) or len(last.text) + len(event.text) > _MAX_MERGED:
            return False
        self._last = merged = msgspec.structs.replace(last, text=last.text + event.text)
        self._entries[-1] = entry = LoggedEvent(self.seq, event.event, wire.encode_event(merged))
        self._added += len(entry.body)
        if self._undelivered and self._undelivered[-1][0].seq == self.seq:
            self._undelivered[-1] = (entry, merged)
        else:
            self.partial.apply(event)
        return True

    def take_deliverable(self) -> list[LoggedEvent]:
        """Return the events that can be delivered now, in order, and mark them as delivered."""
        ready: list[LoggedEvent] = []
        undelivered = self._undelivered
        while undelivered:
            entry, event = undelivered[0]
            if entry.seq > self.reserved or (entry.name in _WRITTEN_FIRST and entry.seq > self.written):
                break
            undelivered.popleft()
            self.delivered = entry.seq
            self.partial.apply(event)
            if type(event) is wire.ChatMessage:
                self.messages.add(event.message.id)
            ready.append(entry)
        return ready

    def append_remote(self, rows: Sequence[EventRow]) -> list[tuple[LoggedEvent, wire.RunEvent | None]]:
        """Append events written by another process, in order, and return them for delivery."""
        received = [
            (LoggedEvent(row.seq, wire.read_event_name(row.body), row.body), wire.decode_event(row.body))
            for row in split_rows(rows, self.seq)
        ]
        for entry, event in received:
            self._entries.append(entry)
            self._added += len(entry.body)
            self.seq = self.written = self.delivered = self.reserved = entry.seq
            self.ended = entry.name in wire.TERMINAL_EVENTS
            if event is not None:
                self.partial.apply(event)
            if type(event) is wire.ChatMessage:
                self.messages.add(event.message.id)
        self._drop_old_entries()
        return received

    @property
    def epoch(self) -> int | None:
        """Fencing token under which this process owns the run; None if it does not, or not yet."""
        return self._epoch()

    def close(self) -> None:
        """Drop the reference to the turn, whose events end here: the two would wait for the garbage collector."""
        epoch = self._epoch()
        self._epoch = lambda: epoch

    @property
    def undelivered(self) -> bool:
        """Whether events wait until they are written."""
        return bool(self._undelivered)

    @property
    def unwritten(self) -> bool:
        return self.seq > self.written

    @property
    def finished(self) -> bool:
        """Return whether the terminal event was delivered and everything is written."""
        return self.ended and not self._undelivered and not self.unwritten

    def pending_writes(self) -> list[Write]:
        """Return the pending writes: a new range of numbers if needed, and the events since the last write."""
        pending_writes: list[Write] = []
        epoch = self._epoch()
        if self.seq > self.reserved - _LOW_WATER:
            needed = -(-(self.seq - self.reserved + _LOW_WATER) // RANGE) * RANGE
            pending_writes.append(ReserveEvents(self.run_id, needed, epoch))
        self._writing = self.seq
        entries = list(takewhile(lambda entry: entry.seq > self.written, reversed(self._entries)))[::-1]
        new = tuple([(each.seq, each.body) for each in entries] if self._merge_deltas else _join_entries(entries))
        return [*pending_writes, AddEvents(self.run_id, new, epoch)] if new else pending_writes

    def mark_written(self, reserved: int | None) -> None:
        """Mark the pending writes as committed. `reserved` is the last usable number if a range was reserved."""
        self.written = self._writing
        if reserved is not None:
            self.reserved = reserved
        self._drop_old_entries()

    def _drop_old_entries(self) -> None:
        """Drop events that are written and delivered, and exceed what is kept in memory for clients that reconnect."""
        if len(self._entries) <= _MAX_RECENT and self._added <= _MAX_RECENT_BYTES:
            return
        size, done = sum([len(entry.body) for entry in self._entries]), min(self.written, self.delivered)
        while self._entries and self._entries[0].seq <= done:
            if len(self._entries) <= _MAX_RECENT and size <= _MAX_RECENT_BYTES:
                break
            size -= len(self._entries.popleft().body)

    def hand_over(self) -> None:
        """Drop undelivered events and stop writing: the new owner's events follow."""
        self.handed_over = True
        self._undelivered.clear()
        while self._entries and self._entries[-1].seq > self.delivered:
            self._entries.pop()
        self.seq = self.written = self.reserved = self.delivered

    def give_up(self) -> None:
        """Stop writing because the run was deleted; subscribers still receive its events."""
        self.written = self.seq
        self.reserved = self.seq + RANGE

    @property
    def first(self) -> int:
        """Return the first number held in memory; everything below is in the store."""
        return self._entries[0].seq if self._entries else self.seq + 1

    def after(self, seq: int) -> list[LoggedEvent] | None:
        """Return the delivered events after a number, or None if they are no longer in memory."""
        if seq + 1 < self.first:
            return None
        return [entry for entry in self._entries if seq < entry.seq <= self.delivered]


class Subscriber(Protocol):
    """A subscriber of a channel, such as a connection."""

    full: bool
    grant: Grant

    def send(self, frame: bytes) -> bool: ...

    async def drain(self) -> bool: ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...


class Channel:
    """The subscribers of one session, and the last event of each run that each of them was sent.

    A subscriber `behind` in a run is replaying it and receives no live events of it.
    """

    __slots__ = ("_keys", "_positions", "behind", "session")

    def __init__(self, session: str) -> None:
        self.session = session
        self.behind: dict[tuple[Subscriber, str], object] = {}
        self._positions: dict[Subscriber, dict[str, int]] = {}
        self._keys: dict[str, bytes] = {}

    def add(self, subscriber: Subscriber) -> None:
        self._positions.setdefault(subscriber, {})

    def remove(self, subscriber: Subscriber) -> bool:
        """Remove a subscriber; return whether it was the last one."""
        self._positions.pop(subscriber, None)
        for key in [key for key in self.behind if key[0] is subscriber]:
            del self.behind[key]
        return not self._positions

    def has_position(self, subscriber: Subscriber, run_id: str) -> bool:
        """Return whether the subscriber has received events of the run, or a snapshot of it."""
        return run_id in self._positions.get(subscriber, ())

    def set_position(self, subscriber: Subscriber, run_id: str, seq: int) -> None:
        """Have the subscriber receive live events after this number; a replay that is in progress ends."""
        self.behind.pop((subscriber, run_id), None)
        self.mark_sent(subscriber, run_id, seq)

    def mark_sent(self, subscriber: Subscriber, run_id: str, seq: int) -> None:
        positions = self._positions.get(subscriber)
        if positions is not None:
            positions[run_id] = seq
            if len(positions) > _MAX_POSITIONS:
                del positions[next(iter(positions))]

    def deliver(self, run_id: str, entries: list[LoggedEvent]) -> None:
        """Send events of a run to all subscribers that are up to date; each frame is encoded once."""
        behind = self.behind
        for entry in entries:
            encoded: dict[str | None, tuple[bytes, ...]] = {}
            for subscriber, positions in list(self._positions.items()):
                if (behind and (subscriber, run_id) in behind) or entry.seq <= positions.get(run_id, 0):
                    continue
                positions[run_id] = entry.seq
                if len(positions) > _MAX_POSITIONS:
                    del positions[next(iter(positions))]
                profile = subscriber.grant.prefix if subscriber.full else None
                if profile not in encoded:
                    encoded[profile] = self.frames(entry, subscriber)
                for frame in encoded[profile]:
                    subscriber.send(frame)

    def frames(self, entry: LoggedEvent, subscriber: Subscriber) -> tuple[bytes, ...]:
        """Return the frames of an event for this subscriber; none if its profile excludes it, or it is unreadable."""
        if not entry.name:
            return ()
        if not subscriber.full:
            return plain_frames(entry.name, entry.body)
        prefix = subscriber.grant.prefix
        key = self._keys.get(prefix)
        if key is None:
            key = self._keys[prefix] = _encoder.encode(self.session.removeprefix(prefix))
        return (full_frame(entry.body, key, entry.seq),)


class Replay:
    """Replays a run to one subscriber: from the store, then from memory, then live, without gaps or duplicates.

    The subscriber is `behind` from the moment the replay is created. `find_log` returns the log of the run while it is
    open here; it is called again after every wait, because the run may be opened or closed meanwhile.
    """

    def __init__(
        self,
        store: Store,
        tenant: str,
        channel: Channel,
        subscriber: Subscriber,
        run_id: str,
        after: int,
        find_log: Callable[[str], RunLog | None],
    ) -> None:
        self._store = store
        self._tenant = tenant
        self._channel = channel
        self._subscriber = subscriber
        self._run_id = run_id
        self._seq = after
        self._find_log = find_log
        channel.set_position(subscriber, run_id, after)
        channel.behind[subscriber, run_id] = self

    async def run(self) -> None:
        """Replay until the subscriber is up to date; from that event loop tick on it receives live events."""
        try:
            while self._active:
                log = self._find_log(self._run_id)
                entries = log.after(self._seq) if log is not None else None
                if entries is None:
                    entries = await self._read_stored(log)
                    if not entries and log is None and self._find_log(self._run_id) is None:
                        return
                elif not entries:
                    return
                if not await self._send(entries):
                    return
        finally:
            if self._active:
                del self._channel.behind[self._subscriber, self._run_id]

    @property
    def _active(self) -> bool:
        """Return whether the subscriber is still connected and has not started another replay of this run."""
        return self._channel.behind.get((self._subscriber, self._run_id)) is self

    async def _read_stored(self, log: RunLog | None) -> list[LoggedEvent]:
        """Return the next events from the store, without those that will be delivered live."""
        first = log.first if log is not None else 0
        rows = await self._store.events(self._tenant, self._run_id, after=self._seq, limit=_PAGE)
        last = log.delivered if log is not None else rows[-1].seq if rows else 0
        events = split_rows(rows, self._seq)
        entries = [LoggedEvent(row.seq, read_event_name(row.body), row.body) for row in events if row.seq <= last]
        if not entries and log is not None:  # none were emitted before those in memory, or they were lost in a crash
            self._seq = max(self._seq, first - 1)
        return entries

    async def _send(self, entries: list[LoggedEvent]) -> bool:
        for entry in entries:
            for frame in self._channel.frames(entry, self._subscriber):
                if not (await self._subscriber.drain() and self._active and self._subscriber.send(frame)):
                    return False
            self._seq = entry.seq
            self._channel.mark_sent(self._subscriber, self._run_id, entry.seq)
        return True


class LogWriter:
    """Writes the new events of all runs in batches, one commit per batch.

    A worker, whose events others read from the store, collects those of each run for `batch_delay` (`is_worker`), or
    longer while commits are slow: each batch of a run is a row, an entry of an index, and a notification.
    """

    def __init__(
        self,
        store: Store,
        tenant: str,
        on_written: Callable[[RunLog], None],
        on_fenced: Callable[[RunLog], None],
        clock: Clock = SYSTEM_CLOCK,
        batch_delay: float = BATCH_DELAY,
        text_delay: float = TEXT_DELAY,
        *,
        is_worker: bool = False,
    ) -> None:
        self._is_worker = is_worker
        self._last_due = self._commit_time = 0.0
        self._store = store
        self._tenant = tenant
        self._on_written = on_written
        self._on_fenced = on_fenced
        self._clock = clock
        self._batch_delay = batch_delay
        self._text_delay = text_delay
        self._next: dict[str, RunLog] = {}
        """Logs of the next batch, whose events must be written before they are delivered."""
        self._later: dict[str, tuple[float, RunLog]] = {}
        """Due times of logs whose new events are all delivered, earliest first."""
        self._alarm: Alarm | None = None
        """Starts the next batch."""
        self._text_alarm: Alarm | None = None
        """Starts a batch when the first of the other logs is due."""
        self._write_now = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, log: RunLog, *, at_once: bool) -> None:
        """Schedule the new events of a run for writing: at once, with the next batch, or when text is due."""
        self._idle.clear()
        is_awaited = log.undelivered and not self._is_worker
        delay = self._text_delay
        if self._is_worker:
            delay = max(delay, min(_COMMIT_TIMES * self._commit_time, _MAX_BATCH_DELAY))
        if at_once or is_awaited:
            self._next[log.run_id] = log
            self._later.pop(log.run_id, None)
        elif log.run_id not in self._next and log.run_id not in self._later:
            self._last_due = max(self._last_due, self._clock.monotonic() + delay)
            self._later[log.run_id] = (self._last_due, log)
        if at_once:
            self._write_now.set()
        elif self._alarm is None and is_awaited:
            self._alarm = self._clock.call_later(self._batch_delay, self._write_now.set)
        elif self._text_alarm is None and self._later:
            self._text_alarm = self._clock.call_later(delay, self._write_now.set)

    async def run(self) -> None:
        """Write batches until cancelled."""
        while True:
            await self._write_now.wait()
            self._write_now.clear()
            await self._write(self._take_batch())
            if not self._next and not self._later:
                self._idle.set()

    def _take_batch(self) -> list[RunLog]:
        """Remove and return the logs to write now: those that something waits for, and those that are almost due.

        The text of all other runs waits until it is due, so that one row holds as much text as possible.
        """
        for alarm in (self._alarm, self._text_alarm):
            if alarm is not None:
                alarm.cancel()
        self._alarm = self._text_alarm = None
        logs, self._next = list(self._next.values()), {}
        now = self._clock.monotonic()
        almost = 0.0 if self._is_worker else self._batch_delay
        for run_id, (due, log) in list(self._later.items()):
            if due > now + almost:
                self._text_alarm = self._clock.call_later(due - now, self._write_now.set)
                break
            del self._later[run_id]
            logs.append(log)
        return logs

    async def flush(self, limit: float) -> None:
        """Write everything, within a time limit in seconds."""
        self._text_delay = self._batch_delay
        for run_id, (_, log) in self._later.items():
            self._next[run_id] = log
        self._later.clear()
        self._write_now.set()
        try:
            async with asyncio.timeout(limit):
                await self._idle.wait()
        except TimeoutError:
            logger.error(
                "shutdown: the last events of %d runs could not be written", len(self._next) + len(self._later)
            )

    async def _write(self, logs: list[RunLog]) -> None:
        """Write all logs in one commit. If that is rejected, write each in its own commit."""
        tries = 0
        while logs:
            try:
                await self._commit(logs)
                return
            except (StoreBusy, StoreFull, StoreLost) as error:
                if tries % 15 == 0:
                    logger.warning("writing run events failed; retrying: %s", error)
                await self._clock.sleep(_RETRY_DELAYS[tries] if tries < len(_RETRY_DELAYS) else _MAX_RETRY_DELAY)
                tries += 1
            except StoreError as refusal:
                if len(logs) == 1 and isinstance(refusal, StaleOwner):
                    self._on_fenced(logs[0])
                    return
                if len(logs) == 1:
                    logger.warning("events of a run are no longer written: run=%s reason=%s", logs[0].run_id, refusal)
                    logs[0].give_up()
                    self._on_written(logs[0])
                    return
                for log in logs:
                    await self._write([log])
                return

    async def _commit(self, logs: list[RunLog]) -> None:
        parts = [(log, log.pending_writes()) for log in logs if not log.handed_over]
        pending_writes: list[Write] = [write for _, part in parts for write in part]
        if not pending_writes:
            return
        started = self._clock.monotonic()
        results = await self._store.commit(self._tenant, pending_writes)
        self._commit_time = self._clock.monotonic() - started
        position = 0
        for log, part in parts:
            if not log.handed_over:
                log.mark_written(results[position] if part and isinstance(part[0], ReserveEvents) else None)
            position += len(part)
            self._on_written(log)
