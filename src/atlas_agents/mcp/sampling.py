"""A server that wants a model's words: from our model, only if its entry allows it, and only so many a day."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import mcp_types as types
from mcp.client.session import ClientRequestContext

from atlas_agents.core.clock import SYSTEM_CLOCK, Clock, day_of
from atlas_agents.core.errors import AtlasError, PlanSpent
from atlas_agents.core.messages import Message, Text, assistant, user
from atlas_agents.mcp.speaking import Spoken
from atlas_agents.mcp.underway import Underway

logger = logging.getLogger(__name__)
Speak: TypeAlias = Callable[[list[Message], str, int], Awaitable[Spoken]]
"""Has a model answer: to these messages, under this instruction, in so many tokens."""
AT_MOST = 1024


class Sampling:
    """The tokens that one server may have spoken in a day."""

    def __init__(self, server: str, speak: Speak, tokens: int, underway: Underway, clock: Clock = SYSTEM_CLOCK) -> None:
        self._server = server
        self._underway = underway
        self._speak = speak
        self._tokens = tokens
        self._clock = clock
        self._day = ""
        self._left = 0

    async def answer(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        caller = self._underway.asked()
        if caller is None:
            return _no("a model speaks only for a call that is under way, and it is not clear for which")
        today = day_of(self._clock.time())
        if today != self._day:
            self._day, self._left = today, self._tokens
        most = min(params.max_tokens, AT_MOST, self._left)
        if most < 1:
            return _no(f"{self._server} has used up its {self._tokens} tokens of this day")
        self._left -= most  # held back until it is known what was used
        used = most
        try:
            await caller.check_budget()
            spoken = await self._speak([_message(each) for each in params.messages], params.system_prompt or "", most)
            used = min(most, spoken.usage.output_tokens or most)
            await caller.spend(spoken.model, spoken.usage)
        except AtlasError as error:
            logger.warning("%s asked for a model's words: %s", self._server, error)
            used = 0 if isinstance(error, PlanSpent) else used
            return _no("the model could not answer")
        finally:
            self._left += most - used
        return types.CreateMessageResult(
            role="assistant", content=types.TextContent(text=spoken.text), model=spoken.model, stop_reason="endTurn"
        )


def _message(said: types.SamplingMessage) -> Message:
    blocks: list[Any] = list(said.content_as_list)
    words = Text("\n".join(block.text for block in blocks if isinstance(block, types.TextContent)))
    return user(words) if said.role == "user" else assistant(words)


def _no(words: str) -> types.ErrorData:
    return types.ErrorData(code=types.INVALID_REQUEST, message=words)
