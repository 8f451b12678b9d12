"""What one run says, numbered from 1 without gaps, and how much of it is written, and told."""

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from atlas_agents.core.store import AddEvents, EventRow, ReserveEvents, Write
from atlas_agents.gateway.protocol import events as wire
from atlas_agents.gateway.protocol.shapes import Part, PlanStepShape, TextPart, ThinkingPart, ToolResultPart

RANGE = 512
"""So many numbers are reserved at once: after a sudden end, none of them is used again."""
_LOW = 128
_RECENT = 64
_TAIL = 32 * 1024
_JOINED = 1024
"""So many characters are told in one piece at most, where pieces are joined."""
_WORDS = (wire.ChatDelta, wire.ChatReasoning)
_WRITTEN_FIRST = frozenset(
    ("tool.call", "tool.result", "exec.approval_request", "approval.resolved", "chat.final", "chat.error")
)
"""Nobody hears of these before they are on the disk."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """An event in its place."""

    seq: int
    name: str
    body: bytes


class Tail:
    """The last of what a tool said while it runs: so many characters."""

    __slots__ = ("_size", "lines")

    def __init__(self) -> None:
        self.lines: deque[str] = deque()
        self._size = 0

    def add(self, line: str) -> None:
        self.lines.append(line)
        self._size += len(line) + 1
        while self._size > _TAIL and len(self.lines) > 1:
            self._size -= len(self.lines.popleft()) + 1


class Draft:
    """What was told and is not yet a message that is kept: for those who come in the middle."""

    __slots__ = ("_progress", "_questions", "_results", "_text", "_thinking", "plan")

    def __init__(self) -> None:
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._results: list[ToolResultPart] = []
        self._progress: dict[str, Tail] = {}
        self._questions: dict[str, wire.ApprovalRequested] = {}
        self.plan: tuple[PlanStepShape, ...] = ()

    def see(self, event: wire.RunEvent) -> None:
        match event:
            case wire.ChatDelta(_, text):
                self._text.append(text)
            case wire.ChatReasoning(_, text):
                self._thinking.append(text)
            case wire.ChatReset():
                self._withdraw()
            case wire.PlanChanged(_, steps):
                self.plan = steps
            case wire.ChatMessage(_, message) if message.role == "assistant":
                self._withdraw()
            case wire.ChatMessage(_, message) if message.role == "tool":  # kept with the reply that follows it
                self._results.clear()
            case _:
                self._see_tool(event)

    def _see_tool(self, event: wire.RunEvent) -> None:
        match event:
            case wire.ToolProgressing(_, call_id, message):
                self._progress.setdefault(call_id, Tail()).add(message)
            case wire.ToolSettled(_, call_id, _, status, result, took, error):
                self._results.append(ToolResultPart(call_id, status, result, error, took))
                self._progress.pop(call_id, None)
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
    def approval(self) -> wire.ApprovalRequested | None:
        """The oldest question that waits for an answer."""
        return next(iter(self._questions.values()), None)

    @property
    def progress(self) -> dict[str, tuple[str, ...]]:
        """What tools that run have said, as far back as it is kept."""
        return {call_id: tuple(tail.lines) for call_id, tail in self._progress.items()}

    @property
    def parts(self) -> tuple[Part, ...]:
        thinking = [ThinkingPart("".join(self._thinking))] if self._thinking else []
        text = [TextPart("".join(self._text))] if self._text else []
        return (*self._results, *thinking, *text)


def _nobodys() -> None:
    """Whoever writes it need not own the run."""


class RunLog:
    """One run that is under way here, or elsewhere and heard of through the store. `seq` was given last, `written` and
    `told` are how far it got. `epoch` says under which the run is owned here: who has lost it writes nothing more.

    Where nobody hears it before it is written, it `joins` words that are written together: one event says them all.
    """

    __slots__ = (
        "_begun",
        "_entries",
        "_epoch",
        "_joins",
        "_last",
        "_untold",
        "began",
        "draft",
        "ended",
        "messages",
        "reserved",
        "run_id",
        "seq",
        "session",
        "told",
        "written",
    )

    def __init__(
        self,
        run_id: str,
        session: str,
        reserved: int = 0,
        epoch: Callable[[], int | None] = _nobodys,
        joins: bool = False,
    ) -> None:
        self._epoch = epoch
        self._joins = joins
        self._last: wire.RunEvent | None = None
        self.run_id = run_id
        self.session = session
        self.began = self.seq = self.written = self.told = self.reserved = reserved
        self.ended = False
        self.draft = Draft()
        self.messages: set[str] = set()
        """Messages that were told of."""
        self._entries: deque[Entry] = deque()
        self._untold: deque[tuple[Entry, wire.RunEvent]] = deque()
        self._begun = 0

    def add(self, event: wire.RunEvent) -> bool:
        """Give an event its number; True if it should be written at once."""
        if self._joins and self._join(event):
            return False
        self._last = event
        self.seq += 1
        entry = Entry(self.seq, event.event, wire.body_of(event))
        self._entries.append(entry)
        self._untold.append((entry, event))
        return self.seq > self.reserved - _LOW or entry.name in _WRITTEN_FIRST

    def _join(self, event: wire.RunEvent) -> bool:
        """Let the last event say this, too, if it says words of the same kind and nobody has seen it."""
        last = self._last
        if not isinstance(event, _WORDS) or not isinstance(last, _WORDS) or last.event != event.event:
            return False
        if self.seq <= max(self._begun, self.written) or len(last.text) + len(event.text) > _JOINED:
            return False
        self._last = joined = msgspec.structs.replace(last, text=last.text + event.text)
        self._entries[-1] = entry = Entry(self.seq, event.event, wire.body_of(joined))
        if self._untold and self._untold[-1][0].seq == self.seq:
            self._untold[-1] = (entry, joined)
        else:
            self.draft.see(event)
        return True

    def tell(self) -> list[Entry]:
        """The events that may be told now, in order; they count as told."""
        ready: list[Entry] = []
        untold = self._untold
        while untold:
            entry, event = untold[0]
            if entry.seq > self.reserved or (entry.name in _WRITTEN_FIRST and entry.seq > self.written):
                break
            untold.popleft()
            self.told = entry.seq
            self.draft.see(event)
            if type(event) is wire.ChatMessage:
                self.messages.add(event.message.id)
            ready.append(entry)
        return ready

    def hear(self, rows: Sequence[EventRow]) -> list[tuple[Entry, wire.RunEvent | None]]:
        """Events that another process has written, in order: they may be told."""
        heard = [(Entry(row.seq, wire.name_of(row.body), row.body), wire.event_of(row.body)) for row in rows]
        for entry, event in heard:
            self._entries.append(entry)
            self.seq = self.written = self.told = self.reserved = entry.seq
            self.ended = entry.name in wire.LAST_WORDS
            if event is not None:
                self.draft.see(event)
            if type(event) is wire.ChatMessage:
                self.messages.add(event.message.id)
        while len(self._entries) > _RECENT:
            self._entries.popleft()
        return heard

    @property
    def unwritten(self) -> bool:
        return self.seq > self.written

    @property
    def over(self) -> bool:
        """Its last word is told and everything is written."""
        return self.ended and not self._untold and not self.unwritten

    def writes(self) -> list[Write]:
        """What is to be written now: a further range of numbers if these run out, and what was said since."""
        writes: list[Write] = []
        epoch = self._epoch()
        if self.seq > self.reserved - _LOW:
            needed = -(-(self.seq - self.reserved + _LOW) // RANGE) * RANGE
            writes.append(ReserveEvents(self.run_id, needed, epoch))
        self._begun = self.seq
        new = tuple([(entry.seq, entry.body) for entry in self._entries if entry.seq > self.written])
        return [*writes, AddEvents(self.run_id, new, epoch)] if new else writes

    def wrote(self, reserved: int | None) -> None:
        """What `writes` gave is on the disk; `reserved` is the last number that may be used, if there are new ones."""
        self.written = self._begun
        if reserved is not None:
            self.reserved = reserved
        while len(self._entries) > _RECENT and self._entries[0].seq <= min(self.written, self.told):
            self._entries.popleft()

    def give_up(self) -> None:
        """It cannot be written any more, because it was removed: those who listen still hear it."""
        self.written = self.seq
        self.reserved = self.seq + RANGE

    @property
    def first(self) -> int:
        """The first number that is at hand; everything below is written."""
        return self._entries[0].seq if self._entries else self.seq + 1

    def after(self, seq: int) -> list[Entry] | None:
        """What was told after a number; None if that is not at hand any more."""
        if seq + 1 < self.first:
            return None
        return [entry for entry in self._entries if seq < entry.seq <= self.told]
