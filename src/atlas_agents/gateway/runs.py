"""The runs under way here: each belongs to its session, is numbered, written down, and told to whoever listens."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from atlas_agents.core.clock import SYSTEM_CLOCK, Clock
from atlas_agents.core.errors import StoreError
from atlas_agents.core.events import Event
from atlas_agents.core.store import OPEN, EventRow, RunRow, Store
from atlas_agents.engine.stream import AtlasStream
from atlas_agents.gateway.channel import Channel, Listener
from atlas_agents.gateway.healing import heal
from atlas_agents.gateway.metrics import Metrics
from atlas_agents.gateway.protocol.events import (
    LAST_WORDS,
    ApprovalRequested,
    ApprovalResolved,
    ChatFinal,
    ChatReset,
    RunEvent,
    ToolSettled,
)
from atlas_agents.gateway.replay import Replay
from atlas_agents.gateway.runlog import RunLog
from atlas_agents.gateway.translate import Translator
from atlas_agents.gateway.writer import PAUSE, LogWriter

logger = logging.getLogger(__name__)


class Far(Protocol):
    """Hears of runs that other processes run."""

    def attend(self, run_id: str, session: str) -> RunLog: ...

    async def attend_open(self, rows: Sequence[RunRow]) -> None: ...

    async def last_words(self, row: RunRow) -> None: ...

    def runs_in(self, session: str) -> bool: ...


class Runs:
    """All of them, and the channels on which they are heard."""

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
        self.far: Far | None = None
        """Where runs are run by other processes: how they are heard of."""
        self.on_change: Callable[[str], None] = lambda session: None
        """Called with a session whose runs have begun or ended."""
        self.on_question: Callable[[str], None] = lambda session: None
        """Called with a session in which a question was put or answered."""
        self.on_call: Callable[[], None] = lambda: None
        """Called when a tool call has its result."""
        self.notice: Callable[[str], str] = lambda agent_id: ""
        """Says why an agent speaks with another model than its own."""
        self.hide: Callable[[str], str] = str
        """Takes secrets out of a text."""
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
        self._leaving: set[asyncio.Task[None]] = set()

    def follow(self, stream: AtlasStream, model: str, row: RunRow | None = None) -> RunLog:
        """Log and tell all that a run says; of one that goes on after a sudden end, above every number it ever used,
        and what it was saying then is withdrawn."""
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
        """Have a run among those that are under way."""
        self._live[log.run_id] = log
        self._of_session.setdefault(log.session, {})[log.run_id] = log
        self._ends[log.run_id] = asyncio.Event()
        self._metrics.runs.inc()
        return log

    def heard(self, log: RunLog, rows: Sequence[EventRow]) -> list[tuple[int, RunEvent]]:
        """Tell what another process has written of a run."""
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
        """Of these runs, have those that are under way elsewhere among those that are heard here."""
        if self.far is not None:
            await self.far.attend_open([row for row in rows if row.status in OPEN and row.id not in self._live])

    def listened(self, session: str) -> bool:
        """Somebody hears this session, or is about to."""
        return session in self._channels or session in self._expected

    @contextmanager
    def expecting(self, session: str) -> Generator[None, None, None]:
        """Somebody is about to hear this session: what begins elsewhere meanwhile is not missed."""
        self._expected[session] += 1
        try:
            yield
        finally:
            self._expected -= Counter([session])

    @property
    def all(self) -> list[RunLog]:
        """Every run that is under way, as far as it is heard here."""
        return list(self._live.values())

    def live(self, session: str) -> list[RunLog]:
        """A session's runs that are under way or have just ended, in the order they came."""
        return list(self._of_session.get(session, {}).values())

    def get(self, run_id: str) -> RunLog | None:
        return self._live.get(run_id)

    def running(self, session: str) -> bool:
        return any(not log.ended for log in self.live(session)) or (self.far is not None and self.far.runs_in(session))

    async def ended(self, run_id: str) -> None:
        """Wait until a run that is under way here has said its last word."""
        end = self._ends.get(run_id)
        if end is not None:
            await end.wait()

    def listen(self, session: str, listener: Listener) -> Channel:
        """Hear a session from this tick on."""
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
        """Feed a listener what it missed, then the rest as it happens."""
        replay = Replay(self._store, self._tenant, channel, listener, run_id, after)
        listener.spawn(replay.run(self._live.get(run_id)))

    async def last_number(self, row: RunRow) -> int:
        """The number of a run's last event. One that has ended and never said so, because everything stopped in
        between, says it now."""
        lock = self._healing.setdefault(row.id, asyncio.Lock())
        try:
            async with lock:
                if self.far is not None and row.status not in OPEN:
                    await self.far.last_words(row)
                return await heal(self._store, self._tenant, row, self.hide)
        finally:
            if not lock.locked():
                self._healing.pop(row.id, None)

    def _hear(self, log: RunLog, translator: Translator, event: Event) -> None:
        said = translator.of(event)
        if said is None:
            return
        if self.stopping and said.event in LAST_WORDS and _how(said) != "done":
            task = asyncio.create_task(self._say_unless_left(log, said))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
            return
        self._say(log, said)

    async def _say_unless_left(self, log: RunLog, said: RunEvent) -> None:
        """A turn that was stopped with the gateway is not over: it goes on after the next start."""
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
        """Before the end: what was said is written."""
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=limit)
        await self.writer.flush(limit)


def _how(event: RunEvent) -> str:
    if type(event) is ChatFinal:
        return "cancelled" if event.cancelled else "done"
    return "failed"
