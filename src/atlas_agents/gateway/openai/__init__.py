"""OpenAI-compatible API: the routes below `/v1`. Each agent is a model, and its tools run in the gateway."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, aclosing
from typing import Any, Literal, NamedTuple, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from atlas_agents.agents.agent import Agent
from atlas_agents.agents.options import TurnOptions
from atlas_agents.agents.output import Output
from atlas_agents.agents.stream import AtlasStream
from atlas_agents.core.approvals import Question
from atlas_agents.core.errors import NotFound
from atlas_agents.core.events import (
    ClientToolsCalled,
    Event,
    MessageStored,
    StreamChunk,
    StreamEnd,
    StreamReset,
    ToolAnswered,
    ToolCalled,
    Usage,
)
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Conversation, Message, new_id
from atlas_agents.core.store import OPEN, Store
from atlas_agents.gateway import http_api
from atlas_agents.gateway.asgi import ApiRoute, JsonResponse, Operation
from atlas_agents.gateway.auth import Grant
from atlas_agents.gateway.http_errors import HTTPError, bad_request, to_http_error
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.openai import schema
from atlas_agents.gateway.openai.responses import ResponsesEndpoint
from atlas_agents.tools.client_tools import ClientTools, client_call_id

_SEPARATOR = "\n\n"
_FINISH_REASONS: dict[object, schema.FinishReason] = {"length": "length", "refusal": "content_filter"}
_DONE = http_api.sse_event(b"[DONE]")
_WITHDRAWN = "the model restarted its answer after part of it was sent; retry the request, or retry without stream"
_PREFIX = "atlas/"
_COMPLETIONS = "completions/"
"""Key prefix of sessions that are created for clients with tools but without a session."""


class TextCollector:
    """Collects the text of a turn. `withdrawn` is set when text was withdrawn that may have been sent already."""

    def __init__(self) -> None:
        self.usage = Usage()
        self.reply_usage = Usage()
        """Usage of the replies whose events were added."""
        self.withdrawn = False
        self._messages: list[str] = []
        self._chunks: list[str] = []

    def add(self, event: Event) -> str:
        """Handle an event and return the text it adds."""
        match event:
            case StreamChunk(_, text):
                text = _SEPARATOR + text if self._messages and not self._chunks else text
                self._chunks.append(text)
                return text
            case StreamReset():
                self.withdrawn = self.withdrawn or bool(self._chunks)
                self._chunks.clear()
            case ToolCalled() if self._chunks:
                self._messages.append("".join(self._chunks))
                self._chunks.clear()
            case MessageStored(_, message) if message.role == "assistant":
                self.reply_usage += Usage.from_metadata(message.metadata)
            case StreamEnd(_, usage):
                self.usage = usage
            case _:
                pass
        return ""

    @property
    def text(self) -> str:
        return "".join(self._messages) + "".join(self._chunks)


def finish_reason(reply: Message) -> schema.FinishReason:
    """Return the finish reason. An agent that has used up its rounds stopped because of the length."""
    if reply.tool_calls:
        return "length"
    return _FINISH_REASONS.get(reply.metadata.get("stop_reason"), "stop")


def find_refusal(reply: Message) -> str | None:
    """Return the reason of a refusal, or the model's own words; None if it answered."""
    return (reply.refusal or reply.text) if reply.metadata.get("refused") else None


def usage_shape(usage: Usage) -> schema.OpenAIUsage:
    total = usage.input_tokens + usage.output_tokens
    read = schema.InputDetails(usage.cached_tokens, usage.cache_write_tokens)
    written = schema.OutputDetails(usage.reasoning_tokens)
    return schema.OpenAIUsage(usage.input_tokens, usage.output_tokens, total, read, written)


class StartedTurn(NamedTuple):
    """A turn that answers a request. `results` are the calls whose results resumed it."""

    stream: AtlasStream
    cancels: bool
    """Whether it is cancelled if the client disconnects."""
    results: Sequence[Question] = ()


async def start(hub: Hub, grant: Grant, request: Request, body: schema.CompletionRequest, agent: Agent) -> StartedTurn:
    """Start the turn of a request, or resume the one that waits for its tool results.

    With a session, the last message is sent to it and the turn is stored. Without one, the request contains the whole
    conversation. It is stored only if the client has tools, in an archived session of its own: the turn may wait.
    """
    offer = http_api.check_offer(hub, schema.client_tools_of(body))
    if body.messages[-1].role == "tool":
        return await resume_with_results(hub, grant, body, offer)
    session = http_api.short_header(request, "x-atlas-session") or body.user or ""
    asks = http_api.waits_for_approvals(request)
    if asks and not session:
        raise bad_request(
            "x-atlas-approvals 'wait' requires a session: send the header X-Atlas-Session", "x-atlas-approvals"
        )
    if problem := grant.check_service_tier(body.service_tier):
        raise bad_request(problem, "service_tier")
    options = TurnOptions(
        output=schema.output_of(body),
        asks=asks,
        requested=schema.settings_of(body),
        client_tools=offer or msgspec.UNSET,
        traceparent=http_api.trace_of(request),
    )
    if session:
        options = msgspec.structs.replace(
            options,
            when_busy=http_api.when_busy(request),
            idempotency_key=http_api.short_header(request, "idempotency-key"),
        )
        prompt = schema.to_prompt(body.messages)
        _, stream = await hub.submit_turn(
            agent, prompt, session=grant.prefix + session, user=grant.principal.id, options=options
        )
        return StartedTurn(stream, cancels=False)
    return StartedTurn(await _start_without_session(hub, grant, body, agent, options), cancels=True)


async def _start_without_session(
    hub: Hub, grant: Grant, body: schema.CompletionRequest, agent: Agent, options: TurnOptions
) -> AtlasStream:
    hub.check_accepting()
    *past, _ = schema.to_messages(body.messages)
    last, user = schema.to_prompt(body.messages), grant.principal.id
    await _release_superseded(hub, grant, body)
    if options.client_tools is msgspec.UNSET:
        transient = Conversation(past, id=grant.prefix + new_id())
        return hub.atlas.start_turn(last, options, session=transient, agent_id=agent.id, user=user)
    session = f"{grant.prefix}{_COMPLETIONS}{new_id()}"
    await hub.quotas.check(session, sessions=1, archived=True)
    await hub.atlas.sessions.put(session, label=agent.name or agent.id, archived=True)
    options = msgspec.structs.replace(options, history=tuple(past))
    _, stream = await hub.submit_turn(agent, last, session=session, user=user, options=options)
    return stream


async def _release_superseded(hub: Hub, grant: Grant, body: schema.CompletionRequest) -> None:
    """End the turn that waits for the last calls of a sessionless conversation: the client continued without it."""
    for id in schema.last_call_ids(body.messages):
        try:
            (call,) = await hub.atlas.find_client_calls([id], user=grant.principal.id)
        except NotFound:
            return
        if call.session.startswith(grant.prefix + _COMPLETIONS):
            await hub.atlas.cancel_client_calls(call.session)
            return


async def resume_with_results(
    hub: Hub, grant: Grant, body: schema.CompletionRequest, offer: ClientTools | None
) -> StartedTurn:
    """Post the tool results at the end of the messages and follow the turn that waited for them."""
    found = schema.trailing_results(body.messages)
    results = {f"messages.[{index}].tool_call_id": result for index, result in found.items()}
    calls = await http_api.post_tool_results(hub, grant, results, offer)
    return StartedTurn(await _follow_run(hub, calls), cancels=False, results=calls)


async def _follow_run(hub: Hub, calls: Sequence[Question]) -> AtlasStream:
    """Return the stream of a turn; for an ended turn, a stream of the messages stored after these calls."""
    run_id, session = calls[0].run_id, calls[0].session
    if (stream := await hub.atlas.follow(run_id)) is not None:
        return stream
    store, tenant = cast(Store, hub.atlas.store), hub.atlas.tenant
    row = await store.run(tenant, run_id)
    if row is None or row.status in OPEN:
        raise HTTPError(503, "unavailable", "the turn is being resumed: retry the request", retry_after=1.0)
    if row.status != "done":
        raise HTTPError(400, row.status, row.error or f"the turn was {row.status}")
    messages = [each.message for each in await store.messages(tenant, session) if each.run_id == run_id]
    stream = AtlasStream(run_id)
    for message in messages:
        stream.push(MessageStored(run_id, message))
        if message.role == "assistant" and message.text:
            stream.push(StreamChunk(run_id, message.text))
        for call in message.tool_calls:
            stream.push(ToolCalled(run_id, call.name, call.arguments, call.id))
        for result in message.tool_results:
            stream.push(ToolAnswered(run_id, "", {}, result.call_id, result.status, result.error, result.result))
        if pending := await _stored_calls(store, tenant, run_id, message):
            stream.push(ClientToolsCalled(run_id, pending))
    last = next(message for message in reversed(messages) if message.role == "assistant")
    stream.attach(_return(last))
    return stream


async def _stored_calls(store: Store, tenant: str, run_id: str, message: Message) -> tuple[Question, ...]:
    """Return the calls of a stored reply that its client ran."""
    ids = [client_call_id(run_id, call.id) for call in message.tool_calls]
    rows = [row for id in ids if (row := await store.approval(tenant, id)) is not None]
    return tuple([msgspec.json.decode(row.question, type=Question) for row in rows])


async def _return(message: Message) -> Message:
    return message


class CompletionTurn:
    """The answer of a turn in OpenAI's format."""

    def __init__(self, hub: Hub, started: StartedTurn, body: schema.CompletionRequest, agent: Agent) -> None:
        self._hub = hub
        self._stream = started.stream
        self._resumed_by = started.results
        self._calls: tuple[Question, ...] = ()
        """The calls that the turn waits for, at the end of the answer."""
        number = f"-{started.results[-1].id[-8:]}" if started.results else ""
        self._id = f"chatcmpl-{started.stream.stream_id}{number}"
        self._model = f"atlas/{agent.id}"
        self._created = int(time.time())
        self._output = schema.output_of(body)
        forced = isinstance(body.tool_choice, schema.ForcedChoice) or body.tool_choice == "required"
        self._streams_text = self._output is None and not forced
        """False if text may be withdrawn, so that it must not be streamed."""
        self._includes_usage = bool(body.stream_options and body.stream_options.include_usage)
        self._collector = TextCollector()

    async def complete_answer(self) -> schema.Completion:
        """Return the complete answer, or the calls that the client has to run."""
        async for event in self._events():
            self._collector.add(event)
        if self._calls:
            called = schema.CompletionMessage(self._collector.text or None, tool_calls=schema.call_shapes(self._calls))
            return self._completion(schema.CompletionChoice(called, "tool_calls"))
        reply = await self._reply()
        text = self._collector.text or reply.text if self._output is None else self._validated(reply, self._output)
        refusal = find_refusal(reply)
        message = schema.CompletionMessage(text or (None if refusal else ""), refusal=refusal)
        return self._completion(schema.CompletionChoice(message, finish_reason(reply)))

    def _completion(self, choice: schema.CompletionChoice) -> schema.Completion:
        return schema.Completion(self._id, self._created, self._model, (choice,), usage_shape(self._usage))

    @property
    def _usage(self) -> Usage:
        """Usage of this answer: of the whole turn, or of a part if the turn waits or has waited for its client."""
        return self._collector.reply_usage if self._calls or self._resumed_by else self._collector.usage

    def abandon(self) -> None:
        """Cancel the turn of a client that has gone, unless the turn waits for it."""
        if not self._calls:
            self._stream.cancel()

    async def _events(self) -> AsyncGenerator[Event, None]:
        """Yield the events of this answer: those after the results that it starts with, until the next calls."""
        waiting = {call.call_id for call in self._resumed_by}
        async for event in self._stream:
            if waiting:
                if isinstance(event, ToolAnswered):
                    waiting.discard(event.call_id)
                continue
            if isinstance(event, ClientToolsCalled):
                self._calls = event.calls
            yield event
            if self._calls:
                return

    async def wait_for_output(self) -> None:
        """Wait until the turn produces output; raise if it fails first."""
        await http_api.wait_for_output(self._events(), self._stream, self._hub)

    async def stream_events(self) -> AsyncGenerator[bytes, None]:
        """Yield the answer as server-sent events; a failure is the last event."""
        yield self._choice_chunk(schema.Delta("assistant", ""))
        try:
            async with aclosing(self._stream_text()) as texts:
                async for text in texts:
                    yield self._choice_chunk(schema.Delta(content=text))
            reply = await self._reply() if not self._calls else None
        except Exception as failure:  # noqa: BLE001 - the status line was already sent
            yield http_api.sse_event(to_http_error(failure, self._hub.atlas.hide).body)
            return
        for index, call in enumerate(schema.call_shapes(self._calls)):
            head = schema.CallDelta(index, schema.FunctionDelta("", call.function.name), call.id, call.type)
            yield self._choice_chunk(schema.Delta(tool_calls=(head,)))
            rest = schema.CallDelta(index, schema.FunctionDelta(call.function.arguments))
            yield self._choice_chunk(schema.Delta(tool_calls=(rest,)))
        if reply is not None and (refusal := find_refusal(reply)):
            yield self._choice_chunk(schema.Delta(refusal=refusal))
        yield self._choice_chunk(schema.Delta(), finish_reason(reply) if reply is not None else "tool_calls")
        if self._includes_usage:
            yield self._chunk((), usage_shape(self._usage))
        yield _DONE

    async def _stream_text(self) -> AsyncGenerator[str, None]:
        """Yield the text that can be sent now. Structured output is sent only after it was validated."""
        async for event in self._events():
            text = self._collector.add(event)
            if text and self._streams_text:
                self._check_not_withdrawn()
                yield text
        if self._calls:
            if not self._streams_text and self._collector.text:
                yield self._collector.text
            return
        reply = await self._reply()
        if self._output is not None:
            yield self._validated(reply, self._output)
            return
        if self._streams_text:
            self._check_not_withdrawn()
        sent = self._streams_text and self._collector.text
        if not sent and reply.text:  # also for a repeated request whose turn had already ended
            yield reply.text

    def _check_not_withdrawn(self) -> None:
        """Raise if text was withdrawn after it was sent. A failed turn reports its own error."""
        if self._collector.withdrawn:
            raise HTTPError(502, "answer_withdrawn", _WITHDRAWN)

    async def _reply(self) -> Message:
        return await http_api.wait_for_reply(self._stream, self._hub)

    def _validated(self, reply: Message, wanted: dict[str, Any]) -> str:
        value = self._stream.output
        if value is None:  # or the turn had already ended
            value = Output(wanted).parse(reply.text)
        return encode(value).decode()

    def _choice_chunk(self, delta: schema.Delta, ending: schema.FinishReason | None = None) -> bytes:
        return self._chunk((schema.ChunkChoice(delta, ending),))

    def _chunk(self, choices: tuple[schema.ChunkChoice, ...], usage: schema.OpenAIUsage | None = None) -> bytes:
        shown = usage if self._includes_usage else msgspec.UNSET
        return http_api.sse_event(encode(schema.CompletionChunk(self._id, self._created, self._model, choices, shown)))


def _operation(summary: str, body: Any, result: Any, *, reads: bool = False, **more: Any) -> Operation:
    return Operation(summary, "OpenAI", ("read",) if reads else ("read", "write"), body, result, **more)


_OPERATIONS = {
    "GET /v1/models": _operation("List the agents.", None, schema.Models, reads=True),
    "GET /v1/models/{id:path}": _operation("Get an agent.", None, schema.OpenAIModel, reads=True),
    "POST /v1/chat/completions": _operation(
        "Run an agent on a conversation.", schema.CompletionRequest, schema.Completion, streams=True
    ),
    "POST /v1/responses": _operation("Run an agent.", schema.ResponseRequest, schema.ResponseObject, streams=True),
    "GET /v1/responses/{id}": _operation(
        "Get a response, or its events after a number.",
        None,
        schema.ResponseObject,
        reads=True,
        streams=True,
        query={"stream": bool, "starting_after": int},
    ),
    "DELETE /v1/responses/{id}": _operation("Delete a response.", None, schema.DeletedResponse),
    "POST /v1/responses/{id}/cancel": _operation("Cancel a response.", None, schema.ResponseObject),
    "GET /v1/responses/{id}/input_items": _operation(
        "List the input of a response.",
        None,
        schema.StoredItems,
        reads=True,
        query={"limit": int, "after": str, "order": Literal["asc", "desc"]},
    ),
}
_EVERY_METHOD = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def openai_routes(hub: Hub) -> Sequence[BaseRoute]:
    """Return the routes of the OpenAI-compatible API."""
    endpoints, hide = _Endpoints(hub), hub.atlas.hide
    responses = endpoints.responses
    answers = (
        endpoints.models,
        endpoints.model,
        endpoints.complete,
        responses.create,
        responses.retrieve,
        responses.delete,
        responses.cancel,
        responses.list_input,
    )
    routes: list[BaseRoute] = []
    for (name, operation), answer in zip(_OPERATIONS.items(), answers, strict=True):
        method, _, path = name.partition(" ")
        routes.append(ApiRoute(path, http_api.with_error_responses(answer, hide), operation, [method]))
    unknown = http_api.with_error_responses(endpoints.unknown, hide)
    return [*routes, Route("/v1/{rest:path}", unknown, methods=_EVERY_METHOD, include_in_schema=False)]


class _Endpoints:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._limiter = http_api.ConcurrencyLimiter(hub)
        self.responses = ResponsesEndpoint(hub, self._limiter, self._agent)

    async def models(self, request: Request) -> Response:
        http_api.authorize(request, "read")
        return JsonResponse(schema.Models(tuple([self._shape(agent) for agent in self._hub.atlas.agents])))

    async def model(self, request: Request) -> Response:
        http_api.authorize(request, "read")
        return JsonResponse(self._shape(self._agent(request.path_params["id"])))

    async def complete(self, request: Request) -> Any:
        """Run a turn. The scopes are checked before the body is read."""
        grant = http_api.authorize(request, "read", "write")
        with ExitStack() as stack:
            pending = stack.enter_context(self._limiter.acquire(request, grant))
            body = await http_api.read_body(request, schema.CompletionRequest, self._hub.settings.max_frame)
            schema.check_supported(body)
            agent, keeps_running = self._agent(body.model), http_api.on_disconnect(request) == "continue"
            started = await start(self._hub, grant, request, body, agent)
            turn = CompletionTurn(self._hub, started, body, agent)
            if started.cancels or not keeps_running:
                stack.callback(turn.abandon)
            if not body.stream:
                return JsonResponse(await pending.wait_for(turn.complete_answer()))
            await pending.wait_for(turn.wait_for_output())
            return http_api.EventStream(pending, turn.stream_events(), self._hub.settings.ping, stack.pop_all().close)

    async def unknown(self, request: Request) -> Response:
        http_api.authorize(request)
        raise HTTPError(404, "unknown_url", f"unknown endpoint: {request.method} {request.url.path}")

    def _agent(self, model: str) -> Agent:
        """Return the agent by its id, with or without the 'atlas/' prefix."""
        agent = self._hub.agent(model) or self._hub.agent(model.removeprefix(_PREFIX))
        if agent is None:
            raise HTTPError(404, "model_not_found", f"unknown model {model[:200]!r}", param="model")
        return agent

    def _shape(self, agent: Agent) -> schema.OpenAIModel:
        return schema.OpenAIModel(_PREFIX + agent.id, self._hub.started_at)
