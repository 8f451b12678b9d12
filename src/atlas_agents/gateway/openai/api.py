"""`/v1/models` and `/v1/chat/completions`, for every client that speaks to OpenAI."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, aclosing
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from atlas_agents.agents.agent import Agent
from atlas_agents.agents.options import TurnOptions
from atlas_agents.agents.stream import AtlasStream
from atlas_agents.core.events import Event, StreamChunk, StreamEnd, StreamReset, ToolCalled, Usage
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Conversation, Message, new_id
from atlas_agents.gateway.asgi import Json
from atlas_agents.gateway.auth import Grant
from atlas_agents.gateway.http_api import (
    ConcurrencyLimiter,
    EventStream,
    answered,
    body_of,
    data,
    on_disconnect,
    short,
    when_busy,
    who_asks,
)
from atlas_agents.gateway.http_errors import HTTPError, bad, of_failure
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.openai.schema import (
    ChunkChoice,
    Completion,
    CompletionChoice,
    CompletionChunk,
    CompletionMessage,
    CompletionRequest,
    Delta,
    FinishReason,
    InputDetails,
    Models,
    OpenAIModel,
    OpenAIUsage,
    check,
    conversation,
    output_of,
    read,
    sampling_of,
)
from atlas_agents.gateway.protocol.frames import ProtocolError
from atlas_agents.gateway.submit import take_in

_BETWEEN = "\n\n"
_ENDINGS: dict[object, FinishReason] = {"length": "length", "refusal": "content_filter"}


class Speech:
    """Listens to a turn. `withdrawn` once words were taken back that somebody may have read already."""

    def __init__(self) -> None:
        self.usage = Usage()
        self.withdrawn = False
        self._messages: list[str] = []
        self._words: list[str] = []

    def hear(self, event: Event) -> str:
        """The words that come with an event."""
        match event:
            case StreamChunk(_, text):
                said = _BETWEEN + text if self._messages and not self._words else text
                self._words.append(said)
                return said
            case StreamReset():
                self.withdrawn = self.withdrawn or bool(self._words)
                self._words.clear()
            case ToolCalled() if self._words:
                self._messages.append("".join(self._words))
                self._words.clear()
            case StreamEnd(_, usage):
                self.usage = usage
            case _:
                pass
        return ""

    @property
    def text(self) -> str:
        return "".join(self._messages) + "".join(self._words)


def finish_reason(reply: Message) -> FinishReason:
    """Why the answer ends here. An agent whose rounds were used up has not come to its end either."""
    if reply.tool_calls:
        return "length"
    return _ENDINGS.get(reply.metadata.get("stop_reason"), "stop")


def usage_shape(usage: Usage) -> OpenAIUsage:
    total = usage.input_tokens + usage.output_tokens
    return OpenAIUsage(usage.input_tokens, usage.output_tokens, total, InputDetails(usage.cached_tokens))


OPENING = 2.0
"""Seconds in which a failure is told by the status; after that the answer has begun, and it is told in it."""
_DONE = data(b"[DONE]")
_WITHDRAWN = (
    "the model took back what it had said and began again, which cannot be shown here; ask again, or without stream"
)


async def start(
    hub: Hub, who: Grant, request: Request, asked: CompletionRequest, agent: Agent
) -> tuple[AtlasStream, bool]:
    """(the turn, whether it is kept). In a session the last message is said, and the turn is on the disk; without one
    everything that the model should know is in the request, and nothing of it is kept."""
    session = short(request, "x-atlas-session") or asked.user or ""
    asks = request.headers.get("x-atlas-approvals", "refuse").strip().lower()
    if asks not in ("refuse", "wait"):
        raise bad("x-atlas-approvals is refuse or wait", "x-atlas-approvals")
    if asks == "wait" and not session:
        raise bad("a question waits only in a session: name one with X-Atlas-Session", "x-atlas-approvals")
    options = TurnOptions(output=output_of(asked), asks=asks == "wait", sampling=sampling_of(asked))
    user = who.principal.id
    if session:
        _, stream = await take_in(
            hub,
            agent,
            read(asked.messages[-1], len(asked.messages) - 1),
            session=who.prefix + session,
            user=user,
            options=msgspec.structs.replace(
                options, when_busy=when_busy(request), idempotency_key=short(request, "idempotency-key")
            ),
        )
        return stream, True
    if hub.stopping:
        raise ProtocolError("UNAVAILABLE", "the gateway stops", retry_after_ms=hub.retry_after_ms)
    *past, last = conversation(asked.messages)
    alone = Conversation(past, id=who.prefix + new_id())
    return hub.atlas.start_turn(last, options, session=alone, agent_id=agent.id, user=user), False


class Answering:
    """A turn's answer, in OpenAI's shapes."""

    def __init__(self, hub: Hub, stream: AtlasStream, asked: CompletionRequest, agent: Agent) -> None:
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
        choice = CompletionChoice(CompletionMessage(text), finish_reason(reply))
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
            raise HTTPError(502, "answer_withdrawn", _WITHDRAWN)

    async def _reply(self) -> Message:
        try:
            return await self._stream.reply()
        except Exception as failure:
            if self._hub.stopping:
                wait = self._hub.retry_after_ms / 1000
                raise HTTPError(503, "unavailable", "the gateway stops", retry_after=wait) from failure
            raise

    def _checked(self, reply: Message) -> str:
        value = self._stream.output
        return reply.text if value is None else encode(value).decode()

    def _piece(self, delta: Delta, ending: FinishReason | None = None) -> bytes:
        return self._line((ChunkChoice(delta, ending),))

    def _line(self, choices: tuple[ChunkChoice, ...], usage: OpenAIUsage | None = None) -> bytes:
        shown = usage if self._counts else msgspec.UNSET
        return data(encode(CompletionChunk(self._id, self._created, self._model, choices, shown)))


_PREFIX = "atlas/"


def openai_routes(hub: Hub) -> Sequence[BaseRoute]:
    """The family's routes."""
    family = _Family(hub)
    table = (
        ("/v1/models", family.models, ["GET"]),
        ("/v1/models/{id:path}", family.model, ["GET"]),
        ("/v1/chat/completions", family.complete, ["POST"]),
        ("/v1/{rest:path}", family.nothing, ["GET", "POST", "PUT", "PATCH", "DELETE"]),
    )
    return [Route(path, answered(answer, hub.atlas.hide), methods=methods) for path, answer, methods in table]


class _Family:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._seats = ConcurrencyLimiter(hub)

    async def models(self, request: Request) -> Response:
        who_asks(request, "read")
        return Json(Models(tuple([self._shape(agent) for agent in self._hub.atlas.agents])))

    async def model(self, request: Request) -> Response:
        who_asks(request, "read")
        return Json(self._shape(self._agent(request.path_params["id"])))

    async def complete(self, request: Request) -> Any:
        """Take a turn. A client that has shown no right to it is not even read."""
        who = who_asks(request, "read", "write")
        with ExitStack() as stack:
            seat = stack.enter_context(self._seats.taken(request, who))
            asked = await body_of(request, CompletionRequest, self._hub.settings.max_frame)
            check(asked)
            agent, stays = self._agent(asked.model), on_disconnect(request) == "continue"
            stream, kept = await start(self._hub, who, request, asked, agent)
            if not (kept and stays):
                stack.callback(stream.cancel)
            answering = Answering(self._hub, stream, asked, agent)
            if not asked.stream:
                return Json(await seat.wait_for(answering.whole()))
            await seat.wait_for(answering.begun())
            return EventStream(seat, answering.lines(), self._hub.settings.ping, stack.pop_all().close)

    async def nothing(self, request: Request) -> Response:
        who_asks(request)
        raise HTTPError(404, "unknown_url", f"there is no {request.method} {request.url.path} here")

    def _agent(self, model: str) -> Agent:
        """By its id, with or without our name before it."""
        agent = self._hub.agent(model) or self._hub.agent(model.removeprefix(_PREFIX))
        if agent is None:
            raise HTTPError(404, "model_not_found", f"there is no model {model[:200]!r} here", param="model")
        return agent

    def _shape(self, agent: Agent) -> OpenAIModel:
        return OpenAIModel(_PREFIX + agent.id, self._hub.began_at)
