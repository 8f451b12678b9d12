"""One turn in flight: what it reads, where it writes, whom it tells."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from atlas_agents.core.conversation import Conversation
from atlas_agents.core.errors import ProviderError
from atlas_agents.core.events import Event, StreamChunk, StreamReset, Usage
from atlas_agents.core.messages import Message, Part, ToolCall, ToolResult, tool
from atlas_agents.engine.context import Context
from atlas_agents.engine.draft import Draft
from atlas_agents.engine.history import History, mended
from atlas_agents.engine.interceptors import Interceptors
from atlas_agents.engine.output import Output
from atlas_agents.engine.result import Step
from atlas_agents.engine.settings import Settings
from atlas_agents.providers.base import Provider
from atlas_agents.tools.desk import Desk
from atlas_agents.tools.pipeline import run_tools

_MOST_REPAIRS = 2


class Run:
    """All that a turn needs, in one place. The conversation outlives it; `messages` is what its model may be shown."""

    def __init__(
        self,
        *,
        id: str,
        settings: Settings,
        context: Context,
        conversation: Conversation,
        lock: asyncio.Lock,
        prelude: Sequence[Message],
        provider: Provider,
        desk: Desk,
        emit: Callable[[Event], None],
        interceptors: Interceptors,
        history: History,
        system_prompt: str,
        output: Output | None,
        max_rounds: int,
    ) -> None:
        self.id = id
        self.settings = settings
        self.context = context
        self.conversation = conversation
        self.lock = lock
        self.prelude = prelude
        self.provider = provider
        self.desk = desk
        self.emit = emit
        self.interceptors = interceptors
        self.history = history
        self.system_prompt = system_prompt
        self.output = output
        self.max_rounds = max_rounds
        self.question: Message | None = None
        self.messages: list[Message] = []
        self.added: list[Message] = []
        self.steps: list[Step] = []
        self.usage = Usage()
        self.said: list[str] = []
        self.draft = Draft()
        self.value: Any = None
        self.rounds_spent = False
        self._call_ids: set[str] = set()
        self._unreadable = 0

    def begin(self) -> None:
        """Read the conversation as it is now, mended where it was broken."""
        spoken = [message for message in self.prelude if message.role != "system"]
        self.messages = mended([*spoken, *self.conversation.messages] if spoken else self.conversation.messages)
        self._call_ids = {call.id for message in self.messages for call in message.tool_calls}

    def add(self, message: Message) -> Message:
        """Put a message into the conversation."""
        self.messages.append(message)
        self.conversation.messages.append(message)
        self.added.append(message)
        return message

    async def answer(self, calls: Sequence[ToolCall]) -> None:
        """Run the tools and add their results; also when cancelled, no call is left without its result."""
        results: list[ToolResult | None] = [None] * len(calls)
        try:
            await run_tools(calls, self.desk, results, parallel=self.settings.parallel_tools)
        finally:
            given = [result for result in results if result is not None]
            self.add(tool(*given))
            now = int(time.time() * 1000)
            self.steps += [
                Step(self.desk.shown_name(call), call.arguments, result.result, result.status, now)
                for call, result in zip(calls, given, strict=True)
            ]
        self._unreadable = self._unreadable + 1 if all(call.malformed is not None for call in calls) else 0
        if self._unreadable > _MOST_REPAIRS:
            raise ProviderError("the model wrote calls that cannot be read, again after two repairs", "protocol")

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
        if not call_id or call_id in self._call_ids:
            call_id = f"call_{self.id}_{len(self._call_ids) + 1}"
        self._call_ids.add(call_id)
        return call_id

    @property
    def text(self) -> str:
        """All that the model said in this turn, in order; what was withdrawn is not in it."""
        return "".join(self.said) + self.draft.text
