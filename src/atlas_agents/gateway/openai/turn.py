"""One request for a completion: the turn it starts, and its answer in one piece or in many."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from starlette.requests import Request

from atlas_agents.core.conversation import Conversation
from atlas_agents.core.events import StreamChunk, ToolCalled
from atlas_agents.core.ids import new_id
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Message
from atlas_agents.engine.agent import Agent
from atlas_agents.engine.stream import AtlasStream
from atlas_agents.gateway.asking import short, when_busy
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.openai.reading import conversation, output_of, read, wishes_of
from atlas_agents.gateway.openai.shapes import (
    Asked,
    Choice,
    Chunk,
    ChunkChoice,
    Completion,
    Delta,
    FinishReason,
    Said,
    UsageShape,
)
from atlas_agents.gateway.openai.speech import Speech, finish_reason, usage_shape
from atlas_agents.gateway.protocol.faults import Fault
from atlas_agents.gateway.sse import data
from atlas_agents.gateway.tokens import Grant
from atlas_agents.gateway.trouble import Trouble, bad, of_failure
from atlas_agents.gateway.turns import take_in

OPENING = 2.0
"""Seconds in which a failure is told by the status; after that the answer has begun, and it is told in it."""
_DONE = data(b"[DONE]")
_WITHDRAWN = (
    "the model took back what it had said and began again, which cannot be shown here; ask again, or without stream"
)


async def start(hub: Hub, who: Grant, request: Request, asked: Asked, agent: Agent) -> tuple[AtlasStream, bool]:
    """(the turn, whether it is kept). In a session the last message is said, and the turn is on the disk; without one
    everything that the model should know is in the request, and nothing of it is kept."""
    session = short(request, "x-atlas-session") or asked.user or ""
    asks = request.headers.get("x-atlas-approvals", "refuse").strip().lower()
    if asks not in ("refuse", "wait"):
        raise bad("x-atlas-approvals is refuse or wait", "x-atlas-approvals")
    if asks == "wait" and not session:
        raise bad("a question waits only in a session: name one with X-Atlas-Session", "x-atlas-approvals")
    output, wishes, user = output_of(asked), wishes_of(asked), who.principal.id
    if session:
        _, stream = await take_in(
            hub,
            agent,
            read(asked.messages[-1], len(asked.messages) - 1),
            session=who.prefix + session,
            user=user,
            when_busy=when_busy(request),
            idempotency_key=short(request, "idempotency-key"),
            output=output,
            asks=asks == "wait",
            wishes=wishes,
        )
        return stream, True
    if hub.stopping:
        raise Fault("UNAVAILABLE", "the gateway stops", retry_after_ms=hub.retry_after_ms)
    *past, last = conversation(asked.messages)
    alone = Conversation(past, id=who.prefix + new_id())
    return hub.atlas.send(
        last, session=alone, agent_id=agent.id, user=user, output=output, asks=False, wishes=wishes
    ), False


class Answering:
    """A turn's answer, in OpenAI's shapes."""

    def __init__(self, hub: Hub, stream: AtlasStream, asked: Asked, agent: Agent) -> None:
        self._hub = hub
        self._stream = stream
        self._id = f"chatcmpl-{stream.stream_id}"
        self._model = f"atlas/{agent.id}"
        self._created = int(time.time())
        self._shaped = output_of(asked) is not None
        self._counts = bool(asked.stream_options and asked.stream_options.include_usage)
        self._speech = Speech()

    async def whole(self) -> Completion:
        """The answer in one piece."""
        async for event in self._stream:
            self._speech.hear(event)
        reply = await self._reply()
        text = self._checked(reply) if self._shaped else self._speech.text or reply.text
        choice = Choice(Said(text), finish_reason(reply))
        return Completion(self._id, self._created, self._model, (choice,), usage_shape(self._speech.usage))

    async def begun(self) -> None:
        """Wait until it is clear that there will be an answer; raises what stands in the way."""
        try:
            async with asyncio.timeout(OPENING):
                async for event in self._stream:
                    if isinstance(event, StreamChunk | ToolCalled):
                        return
                await self._reply()
        except TimeoutError:
            pass

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """The answer in many pieces, as events. A failure is the last of them."""
        yield self._piece(Delta("assistant", ""))
        try:
            async with aclosing(self._words()) as told:
                async for words in told:
                    yield self._piece(Delta(content=words))
            reply = await self._reply()
        except Exception as failure:  # noqa: BLE001 - the border: the status is told already
            yield data(of_failure(failure, self._hub.atlas.hide).body)
            return
        yield self._piece(Delta(), finish_reason(reply))
        if self._counts:
            yield self._line((), usage_shape(self._speech.usage))
        yield _DONE

    async def _words(self) -> AsyncGenerator[str, None]:
        """What may be read now. An answer of a wanted shape comes when it was checked; one that does not fit is mended
        before anybody sees it."""
        async for event in self._stream:
            words = self._speech.hear(event)
            if words and not self._shaped:
                self._check_words()
                yield words
        reply = await self._reply()
        if self._shaped:
            yield self._checked(reply)
            return
        self._check_words()
        if not self._speech.text and reply.text:  # of a turn that was taken in before, and had ended
            yield reply.text

    def _check_words(self) -> None:
        """Words that were read cannot be taken back. (Those of a turn that fails are; it says why itself.)"""
        if self._speech.withdrawn:
            raise Trouble(502, "answer_withdrawn", _WITHDRAWN)

    async def _reply(self) -> Message:
        try:
            return await self._stream.reply()
        except Exception as failure:
            if self._hub.stopping:
                wait = self._hub.retry_after_ms / 1000
                raise Trouble(503, "unavailable", "the gateway stops", retry_after=wait) from failure
            raise

    def _checked(self, reply: Message) -> str:
        value = self._stream.output
        return reply.text if value is None else encode(value).decode()

    def _piece(self, delta: Delta, ending: FinishReason | None = None) -> bytes:
        return self._line((ChunkChoice(delta, ending),))

    def _line(self, choices: tuple[ChunkChoice, ...], usage: UsageShape | None = None) -> bytes:
        shown = usage if self._counts else msgspec.UNSET
        return data(encode(Chunk(self._id, self._created, self._model, choices, shown)))
