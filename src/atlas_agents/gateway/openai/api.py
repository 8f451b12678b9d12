"""OpenAI-compatible endpoints `/v1/models` and `/v1/chat/completions`."""

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
    """Collects the text of a turn. `withdrawn` is set when text was withdrawn that may have been sent already."""

    def __init__(self) -> None:
        self.usage = Usage()
        self.withdrawn = False
        self._messages: list[str] = []
        self._words: list[str] = []

    def hear(self, event: Event) -> str:
        """Handle an event and return the text it adds."""
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
    """Return the finish reason. An agent that has used up its rounds stopped because of the length."""
    if reply.tool_calls:
        return "length"
    return _ENDINGS.get(reply.metadata.get("stop_reason"), "stop")


def usage_shape(usage: Usage) -> OpenAIUsage:
    total = usage.input_tokens + usage.output_tokens
    return OpenAIUsage(usage.input_tokens, usage.output_tokens, total, InputDetails(usage.cached_tokens))


OPENING = 2.0
"""Seconds to wait before the response starts. Failures within it set the HTTP status, later ones end the stream."""
_DONE = data(b"[DONE]")
_WITHDRAWN = "the model restarted its answer after part of it was sent; retry the request, or retry without stream"


async def start(
    hub: Hub, who: Grant, request: Request, asked: CompletionRequest, agent: Agent
) -> tuple[AtlasStream, bool]:
    """Start the turn; return its stream and whether it is stored.

    With a session, the last message is sent to it and the turn is stored. Without one, the request contains the whole
    conversation and nothing is stored.
    """
    session = short(request, "x-atlas-session") or asked.user or ""
    asks = request.headers.get("x-atlas-approvals", "refuse").strip().lower()
    if asks not in ("refuse", "wait"):
        raise bad("invalid x-atlas-approvals: expected 'refuse' or 'wait'", "x-atlas-approvals")
    if asks == "wait" and not session:
        raise bad("x-atlas-approvals 'wait' requires a session: send the header X-Atlas-Session", "x-atlas-approvals")
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
        raise ProtocolError("UNAVAILABLE", "the gateway is shutting down", retry_after_ms=hub.retry_after_ms)
    *past, last = conversation(asked.messages)
    alone = Conversation(past, id=who.prefix + new_id())
    return hub.atlas.start_turn(last, options, session=alone, agent_id=agent.id, user=user), False


class Answering:
    """The answer of a turn in OpenAI's format."""

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
        """Return the complete answer."""
        async for event in self._stream:
            self._speech.hear(event)
        reply = await self._reply()
        text = self._checked(reply) if self._shaped else self._speech.text or reply.text
        choice = CompletionChoice(CompletionMessage(text), finish_reason(reply))
        return Completion(self._id, self._created, self._model, (choice,), usage_shape(self._speech.usage))

    async def begun(self) -> None:
        """Wait until the turn produces output; raise if it fails first."""
        try:
            async with asyncio.timeout(OPENING):
                async for event in self._stream:
                    if isinstance(event, StreamChunk | ToolCalled):
                        return
                await self._reply()
        except TimeoutError:
            pass

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """Yield the answer as server-sent events; a failure is the last event."""
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
        """Yield the text that can be sent now. Structured output is sent only after it was validated."""
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
        if not self._speech.text and reply.text:  # a repeated request whose turn had already ended
            yield reply.text

    def _check_words(self) -> None:
        """Raise if text was withdrawn after it was sent. A failed turn reports its own error."""
        if self._speech.withdrawn:
            raise HTTPError(502, "answer_withdrawn", _WITHDRAWN)

    async def _reply(self) -> Message:
        try:
            return await self._stream.reply()
        except Exception as failure:
            if self._hub.stopping:
                wait = self._hub.retry_after_ms / 1000
                raise HTTPError(503, "unavailable", "the gateway is shutting down", retry_after=wait) from failure
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
    """Return the routes of the OpenAI-compatible API."""
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
        """Run a turn. The scopes are checked before the body is read."""
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
        raise HTTPError(404, "unknown_url", f"unknown endpoint: {request.method} {request.url.path}")

    def _agent(self, model: str) -> Agent:
        """Return the agent by its id, with or without the 'atlas/' prefix."""
        agent = self._hub.agent(model) or self._hub.agent(model.removeprefix(_PREFIX))
        if agent is None:
            raise HTTPError(404, "model_not_found", f"unknown model {model[:200]!r}", param="model")
        return agent

    def _shape(self, agent: Agent) -> OpenAIModel:
        return OpenAIModel(_PREFIX + agent.id, self._hub.began_at)
