"""What a run remembers of itself, so that after a sudden end it goes on where it was.

Intent before, outcome after: a call that has its outcome is not made again, one that has only its intent is made again
if its effect allows, and else its outcome is unknown, and said to be.
"""

import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from atlas_agents.core.clock import SYSTEM_CLOCK, Clock, day_of
from atlas_agents.core.conversation import Conversation
from atlas_agents.core.errors import PoisonedRun, SessionBusy, StoreLost
from atlas_agents.core.events import Usage
from atlas_agents.core.jobs import NOBODY, Chain
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Message, Text, Thinking, ToolCall, ToolResult
from atlas_agents.core.store import (
    AcceptRun,
    AddAudit,
    AddJournal,
    AddMessage,
    AddUsage,
    ClaimRun,
    JournalKind,
    JournalRow,
    PutSession,
    Reserve,
    RunRow,
    RunStatus,
    SetRun,
    Store,
    StoredMessage,
    UsageRow,
    Write,
)
from atlas_agents.tools.audit import Entry
from atlas_agents.tools.ending import Ended
from atlas_agents.tools.errand import Errand, errand_of
from atlas_agents.tools.kept_questions import KeptQuestions
from atlas_agents.tools.patience import Patience

_read: "weakref.WeakSet[Conversation]" = weakref.WeakSet()
"""Conversations that are in step with the store: this process has read them and keeps them."""
T = TypeVar("T")
_results = msgspec.json.Decoder(ToolResult)
MOST_LIVES = 5
"""So often a run may begin anew without getting a step further; then it is what ends the process."""


def in_step(conversation: Conversation) -> bool:
    """This process has read it, and all its turns since."""
    return conversation in _read


class Journal:
    """One run's journal in a store. What was read at the start answers from memory; what is added is on the disk when
    the call returns, however long the store takes to come back."""

    def __init__(
        self,
        store: Store,
        tenant: str,
        run_id: str,
        session: str,
        *,
        row: RunRow | None = None,
        kept: Callable[[Message], None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        shared: bool = False,
    ) -> None:
        self._store = store
        self._tenant = tenant
        self._run_id = run_id
        self._session = session
        self._row = row
        self._kept = kept
        self._clock = clock
        self._shared = shared
        """Other processes write to the same sessions, and begin what this one takes in."""
        self._patience = patience = Patience(store, clock)
        self.questions = KeptQuestions(
            store, tenant, run_id, session, step=self._change, patience=patience, clock=clock
        )
        """What this run asks a person."""
        self._epoch = 0
        self._waiting: list[Message] = []
        self._began_with: list[Message] = []
        self._replies: list[Message] = []
        self._heard = 0
        self._intents: set[str] = set()
        self._outcomes: dict[str, ToolResult] = {}
        self._intended_at: dict[str, int] = {}
        self._took: dict[str, int] = {}
        self._stored: set[str] = set()
        self._ended = False
        self.given_up = False
        """It ended too many lives: it does nothing new, so that what it did so far can be told to its end."""

    async def accept(
        self,
        messages: Sequence[Message],
        agent_id: str,
        user: str,
        *,
        wait: bool = True,
        idle: bool = True,
        key: str = "",
        fingerprint: str = "",
        output: bytes | None = None,
        model: str = "",
        mode: str = "",
        team: bytes = b"{}",
        asks: bool = True,
        chain: Chain = NOBODY,
        call: ToolCall | None = None,
        wishes: bytes = b"null",
    ) -> RunRow:
        """Take the user's message in, the last of these: acknowledged when this returns, and begun if the session is
        idle. With `wait` it queues behind others; else SessionBusy. A key that was seen gives the known run."""
        began_with = tuple(msgspec.Raw(each.to_json()) for each in messages)
        wanted, line_up, made = msgspec.Raw(output or b"null"), msgspec.Raw(team), call or msgspec.UNSET
        errand = Errand(began_with, wanted, model, asks, mode, line_up, chain, made, msgspec.Raw(wishes))
        accepted = AcceptRun(
            self._run_id, self._session, agent_id, user, key, fingerprint, encode(errand), True, chain.urgency
        )
        self._began_with = list(messages)
        if self._shared:
            return await self._accept(msgspec.structs.replace(accepted, at_once=not wait), [])
        if idle or not wait:
            begun = [ClaimRun(self._run_id), *self._adding(self._began_with), self._first_step(1)]
            try:
                return await self._accept(accepted, begun)
            except SessionBusy:
                if not wait:
                    raise
        return await self._accept(msgspec.structs.replace(accepted, at_once=False), [])

    async def _accept(self, accepted: AcceptRun, begun: list[Write]) -> RunRow:
        try:
            _, row, *more = await self._store.commit(self._tenant, [PutSession(self._session), accepted, *begun])
        except StoreLost as lost:
            found = await self._store.run(self._tenant, self._run_id) if lost.unclear else None
            if found is None:
                raise
            row, more = found, [found.epoch] if begun else []
        if row.id == self._run_id:
            self._row, self._epoch = row, more[0] if more else 0
            if begun:
                self._tell(self._began_with)
        return row

    def _first_step(self, epoch: int) -> AddJournal:
        """The run begins: its messages join the session."""
        return AddJournal(self._run_id, epoch, "accepted", "", encode([message.id for message in self._began_with]))

    async def begin(self, conversation: Conversation) -> list[Message]:
        """It is this run's turn. Read the session as it was before it, become the owner, and give back the messages it
        begins with; of a run that was cut short, remember what it had done."""
        if self._shared or conversation not in _read:
            rows = await self._messages()
            conversation.messages[:] = [Message.from_json(row.body) for row in rows if row.run_id != self._run_id]
            _read.add(conversation)
        if self._epoch == 0 and self._row is not None:
            await self._begin_anew(self._row)
        return self._began_with

    async def _begin_anew(self, row: RunRow) -> None:
        past = await self._patience.read(lambda: self._store.journal(self._tenant, self._run_id)) if row.epoch else []
        epoch, first = row.epoch + 1, not past
        self._began_with = errand_of(row).began_with()
        writes: list[Write] = [ClaimRun(self._run_id), SetRun(self._run_id, epoch, "running")]
        if first:
            writes += self._adding(self._began_with)
            step = self._first_step(epoch)
        else:
            self._began_with = await self._messages_before(past)
            step = AddJournal(self._run_id, epoch, "resumed", str(epoch), b"{}")
        await self._patience.commit(self._tenant, [*writes, step], step)
        self._epoch = epoch
        if first:
            self._tell(self._began_with)
        for each in past:
            self._remember(each)
        self.given_up = len(past) >= MOST_LIVES and all(each.kind == "resumed" for each in past[-MOST_LIVES:])

    async def _messages_before(self, past: Sequence[JournalRow]) -> list[Message]:
        """What the run began with, as it stands in the session."""
        rows = await self._messages()
        mine = [Message.from_json(row.body) for row in rows if row.run_id == self._run_id]
        self._stored = {message.id for message in mine}
        ids: Any = msgspec.json.decode(past[0].payload)
        if isinstance(ids, list):
            return [message for message in mine if message.id in ids]
        spoken = next((place for place, message in enumerate(mine) if message.role == "assistant"), len(mine))
        return mine[:spoken]

    async def _messages(self) -> list[StoredMessage]:
        return await self._patience.read(lambda: self._store.messages(self._tenant, self._session))

    async def when_read(self, read: Callable[[], Awaitable[T]]) -> T:
        """What a read of the same store gives, when the store is there again if it is away."""
        return await self._patience.read(read)

    @property
    def row(self) -> RunRow | None:
        """The run as it was accepted."""
        return self._row

    @property
    def epoch(self) -> int:
        """Rises with every owner; 0 before it has begun."""
        return self._epoch

    @property
    def owned(self) -> bool:
        """The run is accepted, and ours."""
        return self._row is not None

    def leave(self) -> None:
        """Write nothing more: the run stays open, and goes on in another life of this program."""
        self._patience.end()

    @property
    def left(self) -> bool:
        return self._patience.ended

    def forget(self, conversation: Conversation) -> None:
        """What is in memory may be ahead of the store: the next turn reads it again."""
        _read.discard(conversation)

    def settled_before(self, call: ToolCall, *, repeatable: bool) -> bool:
        """Nothing is left to ask about this call: it has its outcome, or may have and must not be made again."""
        return call.id in self._outcomes or (call.id in self._intents and not repeatable)

    def next_reply(self) -> Message | None:
        """The reply that was heard in this place before, if one was. PoisonedRun if there was none, and is to be none
        any more."""
        if self._heard < len(self._replies):
            self._heard += 1
            return self._replies[self._heard - 1]
        if self.given_up:
            raise PoisonedRun(f"the process ended {MOST_LIVES} times while it went on with this turn; it is given up")
        return None

    def outcome(self, call: ToolCall) -> ToolResult | None:
        return self._outcomes.get(call.id)

    def took(self, call: ToolCall) -> int | None:
        """How many milliseconds a call of an earlier life took; None if that is not known."""
        return self._took.get(call.id)

    def intended(self, call: ToolCall) -> bool:
        """It was about to act, or acted, when everything stopped."""
        return call.id in self._intents

    def add(self, message: Message) -> None:
        """Keep a message with the next step; adding it again changes nothing."""
        if message.id not in self._stored:
            self._stored.add(message.id)
            self._waiting.append(message)

    async def reply(self, message: Message, agent_id: str, usage: Usage) -> None:
        """The model has spoken: kept, and counted, before anything comes of it."""
        self._heard += 1
        self.add(message)
        model = str(message.metadata.get("model") or message.metadata.get("provider") or "")
        used = self._used(agent_id, model, usage, turns=int(self._heard == 1))
        await self._step("reply", str(self._heard), message.to_json(), used)

    async def spend(self, agent_id: str, model: str, usage: Usage) -> None:
        """A tool had a model speak: counted at once, for it was paid for whatever becomes of the call."""
        await self._patience.commit(self._tenant, [self._used(agent_id, model, usage)])

    def _used(self, agent_id: str, model: str, usage: Usage, turns: int = 0) -> AddUsage:
        cost = round((usage.cost or 0) * 100_000_000)
        tokens = (usage.input_tokens, usage.output_tokens, usage.cached_tokens)
        return AddUsage(UsageRow(day_of(self._clock.time()), self._session, agent_id, model, *tokens, cost, turns))

    async def intend(self, call: ToolCall, reserve: Reserve | None = None) -> None:
        """About to act; counted against the day in the same step. LimitSpent when the day is."""
        if call.id not in self._intents:
            await self._step("intent", call.id, encode(call), *([reserve] if reserve else ()))

    async def settle(self, call: ToolCall, result: ToolResult, entry: Entry, *more: Write) -> None:
        """It has an outcome: the outcome, its audit row and what else belongs to it, all or nothing."""
        await self._step("outcome", call.id, encode(result), AddAudit(encode(entry)), *more)

    async def end(
        self, status: RunStatus, error: str | None = None, said: Sequence[Text | Thinking] = (), kind: str = ""
    ) -> None:
        """The turn is over, by an error of this kind; what it added last is kept with that, and so is what was `said`
        of a message that never was completed. One that never began just leaves the queue; one that began in an earlier
        life, and could not go on in this one, is left as it was."""
        if self._ended:
            return
        if self._epoch:
            ended = SetRun(self._run_id, self._epoch, status, error)
            await self._step("ended", "", encode(Ended(status, error, tuple(said), kind)), ended)
        elif self._row is not None and self._row.epoch:
            self.leave()
        elif self._row is not None:
            epoch = self._row.epoch + 1
            leaving = [ClaimRun(self._run_id), SetRun(self._run_id, epoch, status, error)]
            await self._patience.commit(self._tenant, leaving)
        self._ended = True

    async def _step(self, kind: JournalKind, key: str, payload: bytes, *more: Write) -> list[Any]:
        """What `more` came to."""
        waiting, self._waiting = self._waiting, []  # what is added meanwhile waits for the next step
        step = AddJournal(self._run_id, self._epoch, kind, key, payload)
        try:
            results = await self._patience.commit(self._tenant, [*self._adding(waiting), step, *more], step)
        except BaseException:
            self._waiting[:0] = waiting
            raise
        self._tell(waiting)
        return results[len(waiting) + 1 :]

    async def _change(self, kind: JournalKind, key: str, payload: bytes, status: RunStatus, *writes: Write) -> None:
        """A step that changes how the run stands."""
        await self._step(kind, key, payload, *writes, SetRun(self._run_id, self._epoch, status))

    def _adding(self, messages: Sequence[Message]) -> list[Write]:
        return [AddMessage(self._session, message.id, message.to_json(), self._run_id) for message in messages]

    def _tell(self, messages: Sequence[Message]) -> None:
        if self._kept is not None:
            for message in messages:
                self._kept(message)

    def _remember(self, row: JournalRow) -> None:
        if row.kind == "reply":
            self._replies.append(Message.from_json(row.payload))
        elif row.kind == "intent":
            self._intents.add(row.key)
            self._intended_at[row.key] = row.at
        elif row.kind == "outcome":
            self._outcomes[row.key] = _results.decode(row.payload)
            if row.key in self._intended_at:
                self._took[row.key] = row.at - self._intended_at[row.key]
        else:
            self.questions.remember(row)
