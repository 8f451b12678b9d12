"""One turn in flight: what it reads, where it writes, whom it tells."""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from atlas_agents.core.conversation import Conversation
from atlas_agents.core.errors import ProviderError, SessionBusy, StoreError, StoreLost, kind_of
from atlas_agents.core.events import Event, HandedOver, PlanStep, StreamChunk, StreamReset, Usage
from atlas_agents.core.jobs import NOBODY, Chain
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Message, Part, ToolCall, ToolResult, tool
from atlas_agents.core.store import RunRow, RunStatus
from atlas_agents.core.whole import whole
from atlas_agents.engine.context import Context
from atlas_agents.engine.draft import Draft
from atlas_agents.engine.history import History, mended
from atlas_agents.engine.interceptors import Interceptors
from atlas_agents.engine.lineup import HAND_OFF, Lineup
from atlas_agents.engine.order import Line
from atlas_agents.engine.output import Output
from atlas_agents.engine.result import Step
from atlas_agents.engine.settings import Mode, Settings
from atlas_agents.engine.stage import WHOLE_TURN, Stage
from atlas_agents.providers.base import Provider
from atlas_agents.providers.prices import Prices
from atlas_agents.tools.desk import Desk
from atlas_agents.tools.pipeline import run_tools

logger = logging.getLogger(__name__)
WhenBusy: TypeAlias = Literal["queue", "reject", "interrupt"]
_LAST_WORDS = 2.0
_MOST_REPAIRS = 2


class Accepted(msgspec.Struct, frozen=True):
    """A message that was taken in: the run it belongs to, and how that stands. `in_flight` and `done` are those of a
    run that was accepted before, under the same idempotency key."""

    run_id: str
    status: Literal["started", "queued", "in_flight", "done"]


class Wishes(msgspec.Struct, frozen=True):
    """What a caller would like of the model. The agent's own settings come first: a temperature counts where it has
    none, and a limit of tokens only where it is the lower one."""

    temperature: float | None = None
    max_tokens: int | None = None

    def within(self, settings: Settings) -> Settings:
        """The agent's settings with as much of the wishes as they leave room for."""
        limits = [limit for limit in (settings.max_tokens, self.max_tokens) if limit is not None]
        warmth = self.temperature if settings.temperature is None else settings.temperature
        return msgspec.structs.replace(settings, temperature=warmth, max_tokens=min(limits) if limits else None)


class Terms(msgspec.Struct, frozen=True):
    """How a turn is taken in: what to do when another one is under way, the name under which it is taken in only once,
    the model that speaks in place of the agent's, another mode than the agent's, who else takes part, the row of one
    that was taken in before and goes on, whether there is anybody to ask for a yes, who handed it on, of a turn without
    a model the one call that it makes, and what the caller would like of the model."""

    when_busy: WhenBusy = "queue"
    idempotency_key: str = ""
    model: str = ""
    mode: Mode | None = None
    team: Lineup = Lineup()
    row: RunRow | None = None
    asks: bool = True
    chain: Chain = NOBODY
    call: ToolCall | None = None
    wishes: Wishes | None = None


def _nobody(agent_id: str) -> None:
    """There are no others."""


class Known(Exception):
    """The message was accepted before, as this run."""

    def __init__(self, row: RunRow) -> None:
        super().__init__(f"accepted before, as run {row.id}")
        self.row = row


class Run:
    """All that a turn needs, in one place. The conversation outlives it; `messages` is what its model may be shown."""

    accepted: "asyncio.Future[Accepted] | None" = None
    question: Message | None = None
    value: Any = None
    """Of an answer of a wanted shape."""
    stage: Stage = WHOLE_TURN
    plan: tuple[PlanStep, ...] = ()
    hand_overs = 0
    rounds_spent = False

    def __init__(
        self,
        *,
        id: str,
        settings: Settings,
        context: Context,
        conversation: Conversation,
        line: Line,
        prelude: Sequence[Message],
        provider: Provider,
        desk: Desk,
        emit: Callable[[Event], None],
        interceptors: Interceptors,
        history: History,
        system_prompt: str,
        output: Output | None,
        max_rounds: int,
        prices: Prices,
        terms: Terms,
    ) -> None:
        self.id = id
        self.settings = settings
        self.context = context
        self.conversation = conversation
        self.line = line
        self.prelude = prelude
        self.provider = provider
        self.desk = desk
        self.emit = emit
        self.interceptors = interceptors
        self.history = history
        self.system_prompt = system_prompt
        self.output = output
        self.max_rounds = max_rounds
        self.prices = prices
        self.terms = terms
        self.messages, self.added = list[Message](), list[Message]()
        self.steps: list[Step] = []
        self.usage = self.heard = Usage()
        """All, and of the last reply alone."""
        self.said: list[str] = []
        self.draft = Draft()
        self.let_speak: Callable[[str], None] = _nobody
        """Has another agent speak from here on; whoever opened the run knows how."""
        desk.count = self.count
        self._call_ids: set[str] = set()
        self._unreadable = 0

    def count(self, model: str, usage: Usage) -> Usage:
        """Add what a model took to the turn, and give it back with its price."""
        if (price := self.prices.of(model)) is not None:
            usage = msgspec.structs.replace(usage, cost=price.of(usage))
        self.usage += usage
        return usage

    async def take_in(self, message: Message) -> list[Message]:
        """Take the user's message in, as interceptors leave it: from here on it is not lost."""
        messages = await self.interceptors.outgoing(message, self.desk.actor)
        busy, journal = self.line.busy, self.desk.journal
        if busy and self.terms.when_busy == "reject":
            raise SessionBusy(
                "a turn of this session is under way; wait for it, or send this one with when_busy='queue'"
            )
        if journal is not None:
            await self._admitted()
            accepting = journal.accept(
                messages,
                self.settings.id,
                self.desk.actor.user,
                wait=self.terms.when_busy != "reject",
                idle=not busy,
                key=self.terms.idempotency_key,
                fingerprint=self._fingerprint(message) if self.terms.idempotency_key else "",
                output=self.output.schema.encode() if self.output else None,
                model=self.terms.model,
                mode=self.terms.mode or "",
                team=encode(self.terms.team),
                asks=self.terms.asks,
                chain=self.terms.chain,
                call=self.terms.call,
                wishes=encode(self.terms.wishes),
            )
            try:
                row = await whole(accepting)
            except StoreLost:  # it may have been taken in: the next turn looks who is there
                journal.forget(self.conversation)
                raise
            if row.id != self.id:
                raise Known(row)
            busy = row.status == "queued"
        self._acknowledge(Accepted(self.id, "queued" if busy else "started"))
        return messages

    async def _admitted(self) -> None:
        """The plan allows another turn of this agent; one that was taken in before needs no leave again."""
        office = self.desk.house.office
        if office is not None:
            await office.tenancy.admit(self.settings.id, [each.id for each in office.agents()])

    async def begin(self, messages: Sequence[Message]) -> Sequence[Message]:
        """It is this run's turn: read the conversation as it is, mended where it was broken; a run that goes on gives
        what it began with."""
        journal = self.desk.journal
        begun = await whole(journal.begin(self.conversation)) if journal is not None else messages
        spoken = [message for message in self.prelude if message.role != "system"]
        self.messages = mended([*spoken, *self.conversation.messages] if spoken else self.conversation.messages)
        self._call_ids = {call.id for message in self.messages for call in message.tool_calls}
        if self.terms.team.stays and (speaker := _last_speaker(self.conversation.messages)):
            self.let_speak(speaker)
        return begun

    async def end(self, status: RunStatus, failure: Exception | None = None) -> None:
        """Write down how it ended, before anybody hears of it."""
        journal = self.desk.journal
        if journal is None or not journal.owned or journal.left:
            return
        try:
            async with asyncio.timeout(None if status == "done" else _LAST_WORDS):
                error, kind = (str(failure), kind_of(failure)) if failure is not None else (None, "")
                await asyncio.shield(journal.end(status, error, self.draft.spoken(), kind))
        except (StoreError, TimeoutError) as trouble:
            journal.leave()
            journal.forget(self.conversation)
            if status == "done":
                raise
            logger.error("how run %s ended could not be written down, it will be gone on with: %s", self.id, trouble)

    def _acknowledge(self, accepted: Accepted) -> None:
        if self.accepted is not None and not self.accepted.done():
            self.accepted.set_result(accepted)

    def _fingerprint(self, message: Message) -> str:
        wanted = self.output.schema if self.output else None
        mode = [self.terms.mode] if self.terms.mode else []
        return hashlib.sha256(
            encode([self.settings.id, message.role, message.parts, wanted, self.terms.model, *mode])
        ).hexdigest()

    def join(self, message: Message) -> Message:
        """Put a message into the conversation."""
        self.messages.append(message)
        self.conversation.messages.append(message)
        self.added.append(message)
        return message

    def add(self, message: Message) -> Message:
        """Put a message into the conversation, and keep it."""
        if self.desk.journal is not None:
            self.desk.journal.add(message)
            self._call_ids.update([call.id for call in message.tool_calls])  # of a reply that was heard before, too
        return self.join(message)

    def add_own(self, message: Message) -> Message:
        """Add a message that the run itself made; its id follows from the run, so a run that goes on makes the same."""
        return self.add(msgspec.structs.replace(message, id=f"{self.id}.{len(self.added)}"))

    async def answer(self, calls: Sequence[ToolCall]) -> None:
        """Run the tools and add their results; also when cancelled, no call is left without its result."""
        results: list[ToolResult | None] = [None] * len(calls)
        try:
            await run_tools(calls, self.desk, results, parallel=self.settings.parallel_tools)
        finally:
            given = [result for result in results if result is not None]
            took = self.desk.took
            self.add_own(tool(*given, durations={id: took[id] for each in given if (id := each.call_id) in took}))
            now = int(time.time() * 1000)
            self.steps += [
                Step(self.desk.shown_name(call), call.arguments, result.result, result.status, now)
                for call, result in zip(calls, given, strict=True)
            ]
        for call, result in zip(calls, given, strict=True):
            if call.name == HAND_OFF and result.status == "ok":
                self.hand_over(str(call.arguments.get("agent")))
        self._unreadable = self._unreadable + 1 if all(call.malformed is not None for call in calls) else 0
        if self._unreadable > _MOST_REPAIRS:
            raise ProviderError("the model wrote calls that cannot be read, again after two repairs", "protocol")

    def hand_over(self, agent_id: str) -> None:
        """Have another agent go on with this turn."""
        before = self.settings.id
        self.let_speak(agent_id)
        if self.settings.id != before:
            self.hand_overs += 1
            self.emit(HandedOver(self.id, before, self.settings.id))

    def finish_draft(self) -> tuple[Part, ...]:
        """The parts of the message that is now complete."""
        parts = self.draft.finish()
        self.said.append(self.draft.text)
        self.draft.withdraw()
        return parts

    def say_instead(self, old: str, new: str) -> None:
        """Take the words of the last message back and say others, so that all who listen hear what is kept."""
        if new != old:
            self.said[-1] = new
            self.emit(StreamReset(self.id, 0))
            if new:
                self.emit(StreamChunk(self.id, new))

    def unique_id(self, call_id: str) -> str:
        """The id as it came, or one of our own where it is missing or was already used in this conversation."""
        number = len(self._call_ids)
        while not call_id or call_id in self._call_ids:  # of a run that goes on, numbers may be missing in between
            number += 1
            call_id = f"call_{self.id}_{number}"
        self._call_ids.add(call_id)
        return call_id

    @property
    def goes_on(self) -> bool:
        """It was taken in before, in another life of this program."""
        return self.terms.row is not None

    @property
    def left(self) -> bool:
        """The program is closing: the turn has not ended, it goes on in the next life."""
        return self.desk.journal is not None and self.desk.journal.left

    @property
    def text(self) -> str:
        """All that the model said in this turn, in order; what was withdrawn is not in it."""
        return "".join(self.said) + self.draft.text


def _last_speaker(messages: Sequence[Message]) -> str:
    """Who answered last, where that was said."""
    replies = [message for message in messages if message.role == "assistant"]
    return str(replies[-1].metadata.get("agent") or "") if replies else ""
