"""OpenAI-compatible endpoint `/v1/responses`.

A response is a run, or a part of it if the run waits for tools of its client: its id is `resp_`, that of the run and
the number of the part. `previous_response_id` is a position in a session. The stream is made of the events in the run's
log, so that it can be read again from any event, also after a restart.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import ExitStack, aclosing, suppress
from typing import Any, Literal, TypeAlias

import msgspec
from starlette.requests import Request

from atlas_agents.agents.agent import Agent
from atlas_agents.agents.options import TurnOptions
from atlas_agents.agents.output import Output
from atlas_agents.agents.run import decode_options
from atlas_agents.agents.sessions import SessionHeader, make_title
from atlas_agents.agents.stream import AtlasStream
from atlas_agents.core.aio import BackgroundTasks
from atlas_agents.core.approvals import Answer
from atlas_agents.core.errors import BadOutput, BrokenHistory, UnreadableRow
from atlas_agents.core.events import Usage
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Conversation, File, Image, Message, Part, Text, new_id
from atlas_agents.core.store import OPEN, RunRow, SetSessionMetadata
from atlas_agents.gateway import http_api
from atlas_agents.gateway.asgi import JsonResponse
from atlas_agents.gateway.auth import Grant
from atlas_agents.gateway.convert import Translator, agent_model, usage_shape
from atlas_agents.gateway.events import split_rows
from atlas_agents.gateway.http_errors import HTTPError, bad_request, to_http_error
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.openai import schema
from atlas_agents.gateway.protocol import events as wire
from atlas_agents.gateway.protocol.types import MessageShape, TextPart, ToolCallPart, ToolResultPart, UsageShape
from atlas_agents.providers.base import render_result_text
from atlas_agents.tools.client_tools import ClientTool, ClientTools
from atlas_agents.tools.journal import read_first_messages

_PREFIX = "resp_"
_SESSIONS = "responses/"
"""Beginning of the keys of the sessions of responses that name none."""
_METADATA = "openai_response"
"""Metadata key of a turn with the fields of the request that the response repeats."""
_DELETED = "deleted_responses"
"""Key of a session's metadata with the runs whose responses were deleted."""
_CANCEL_TIMEOUT = 10.0
_PAGE = 256
_MAX_ITEMS = 100
_CONTINUES = frozenset(("chat.delta", "chat.message", "chat.final", "tool.call"))
"""Events that confirm the replacement of withdrawn text."""
_CHOICES: tuple[Literal["none", "auto", "required"], ...] = ("none", "auto", "required")
_FAULTS = {"rate_limit": "rate_limit_exceeded", "BadOutput": "bad_output"}
_WITHDRAWN = "the model restarted its answer after part of it was sent; {advice}"
StreamEvent: TypeAlias = dict[str, Any]
RunEvents: TypeAlias = AsyncGenerator[wire.RunEvent, None]


class StoredRequest(msgspec.Struct, frozen=True):
    """Stored part of a request, kept with its run: the initial response, and the messages that are its input.

    These are `past` messages after the message number `after` of the session, and those that the run started with.
    """

    response: schema.ResponseObject
    after: int = 0
    past: int = 0


class ResponseEncoder:
    """Builds a response and the events of its stream from the events of a run; the same ones give the same stream.

    Structured output is sent only after it was validated. `withdrawn` is set when text that may have been sent is
    withdrawn, for which the protocol has no event.
    """

    def __init__(self, response: schema.ResponseObject) -> None:
        self._run_id, self._part = _parse_id(response.id)
        self.response = response
        self.withdrawn = False
        self.ended = False
        self._wanted = schema.response_output(response.text)
        self._streams_text = self._wanted is None and not _is_forced(response.tool_choice)
        self._client_tools = {tool.name for tool in response.tools}
        self._pending = PendingGroups()
        self._usage: Usage | None = None
        self._answered_at: int | None = None
        self._items: list[schema.OutputItem] = []
        self._text: list[str] = []
        self._calls: dict[str, int] = {}
        self._reset = False
        self._number = -1

    @property
    def is_continued(self) -> bool:
        """Whether the response continues a run that has waited for its client."""
        return self._part > 0

    def start(self) -> list[StreamEvent]:
        """Return the first events of the stream."""
        return [
            self._event("response.created", response=self.response),
            self._event("response.in_progress", response=self.response),
        ]

    def apply(self, event: wire.RunEvent) -> list[StreamEvent]:
        """Apply the next event of the run and return the events of the stream that it adds."""
        skips = len(self._pending) < self._part
        if type(event) is wire.ToolsPending:
            return self._call_client(event) if self._pending.add(event) and not skips else []
        if skips:
            return []
        if self._reset and event.event in _CONTINUES and not _breaks_off(event):
            self._withdraw()
        return self._apply(event)

    def _apply(self, event: wire.RunEvent) -> list[StreamEvent]:
        match event:
            case wire.ChatDelta(_, text):
                return self._add_text(text) if self._streams_text else []
            case wire.ChatReset():
                self._reset = bool(self._text)  # the text of a turn that fails now is not replaced
                return []
            case wire.ToolCalling(_, id, name, arguments):
                return self._call(id, name, arguments)
            case wire.ToolSettled(_, id, _, status, result):
                return self._settle(id, result, failed=status != "ok")
            case wire.ChatMessage(_, message):
                return self._add_message(message)
            case wire.ChatFinal(_, usage, message, cancelled):
                return self._end(usage, message, cancelled=cancelled)
            case wire.ChatError(_, message, kind):
                return self._fail(_FAULTS.get(kind, "server_error"), message)
            case _:
                return []

    def fail(self, error: HTTPError) -> StreamEvent:
        """Return the event that ends a stream which cannot be continued."""
        self.ended = True
        return self._event("error", code=error.code, message=error.message, param=error.param)

    def snapshot(self, row: RunRow) -> schema.ResponseObject:
        """Return the response as far as its run has come."""
        if self.ended:
            return self.response
        status = "queued" if row.status == "queued" else "in_progress"
        return msgspec.structs.replace(self.response, status=status, output=tuple(self._shown_items()))

    def _shown_items(self) -> list[schema.OutputItem]:
        """Return the items, with the text so far of one that is not complete."""
        items = list(self._items)
        if self._text and isinstance(item := items[-1], schema.MessageItem):
            items[-1] = msgspec.structs.replace(item, content=(schema.OutputText("".join(self._text)),))
        return items

    def _add_text(self, text: str) -> list[StreamEvent]:
        if not text:
            return []
        opened = [] if self._text else self._open_message(schema.OutputText(""))
        self._text.append(text)
        return [*opened, self._text_event("response.output_text.delta", delta=text, logprobs=[])]

    def _open_message(self, part: schema.OutputText | schema.OutputRefusal) -> list[StreamEvent]:
        item = schema.MessageItem(self._new_id("msg"), ())
        self._items.append(item)
        return [self._item_event("added", item), self._text_event("response.content_part.added", part=part)]

    def _close_message(
        self, part: schema.OutputText | schema.OutputRefusal, status: schema.ItemStatus
    ) -> list[StreamEvent]:
        item = schema.MessageItem(self._items[-1].id, (part,), status)
        self._items[-1] = item
        return [self._text_event("response.content_part.done", part=part), self._item_event("done", item)]

    def _close_text(self, status: schema.ItemStatus = "completed") -> list[StreamEvent]:
        if not self._text:
            return []
        text = "".join(self._text)
        self._text.clear()
        done = self._text_event("response.output_text.done", text=text, logprobs=[])
        return [done, *self._close_message(schema.OutputText(text), status)]

    def _withdraw(self) -> None:
        self._text.clear()
        self._items.pop()
        self._reset, self.withdrawn = False, True

    def _call(self, id: str, name: str, arguments: dict[str, Any]) -> list[StreamEvent]:
        if id in self._calls or name.removeprefix("client/") in self._client_tools:
            return []
        closed = self._close_text()
        item = schema.CallItem(self._new_id("mcp"), name, encode(arguments).decode())
        self._calls[id] = index = len(self._items)
        self._items.append(item)
        place: dict[str, Any] = {"item_id": item.id, "output_index": index}
        return [
            *closed,
            self._item_event("added", msgspec.structs.replace(item, arguments="")),
            self._event("response.mcp_call.in_progress", **place),
            self._event("response.mcp_call_arguments.delta", **place, delta=item.arguments),
            self._event("response.mcp_call_arguments.done", **place, arguments=item.arguments),
        ]

    def _call_client(self, event: wire.ToolsPending) -> list[StreamEvent]:
        """End the response with the calls that the client runs."""
        events = self._close_text()
        for call in event.calls:
            written = encode(call.arguments).decode()
            item = schema.FunctionCallItem(self._new_id("fc"), call.id, call.name, written)
            place: dict[str, Any] = {"item_id": item.id, "output_index": len(self._items)}
            self._items.append(item)
            events += [
                self._item_event("added", msgspec.structs.replace(item, arguments="")),
                self._event("response.function_call_arguments.delta", **place, delta=written),
                self._event("response.function_call_arguments.done", **place, name=item.name, arguments=written),
            ]
            self._items[-1] = done = msgspec.structs.replace(item, status="completed")
            events.append(self._item_event("done", done))
        usage = usage_shape(self._usage or Usage())
        return [*events, self._finish("completed", usage=_usage_shape(usage), completed_at=self._answered_at)]

    def _settle(self, id: str, result: Any, *, failed: bool) -> list[StreamEvent]:
        index = self._calls.get(id)
        item = None if index is None else self._items[index]
        if index is None or not isinstance(item, schema.CallItem) or item.status != "in_progress":
            return []
        text = _written(result)
        changed = (
            msgspec.structs.replace(item, status="failed", error=schema.CallFailure(text))
            if failed
            else msgspec.structs.replace(item, status="completed", output=text)
        )
        self._items[index] = changed
        kind = f"response.mcp_call.{changed.status}"
        return [
            self._event(kind, item_id=item.id, output_index=index),
            self._item_event("done", changed, index),
        ]

    def _add_message(self, message: MessageShape) -> list[StreamEvent]:
        """End the text of a message that was stored; a log that was pruned has its calls and results only here."""
        events = self._close_text() if message.role == "assistant" else []
        if message.role == "assistant":
            self._usage = (self._usage or Usage()) + Usage.from_metadata(message.metadata)
            self._answered_at = message.created_at // 1000
            if self._wanted is None and not self._streams_text and _has_calls(message):
                events += [*self._add_text(_text_of(message)), *self._close_text()]
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                events += self._call(part.id, part.name, part.arguments)
            elif isinstance(part, ToolResultPart):
                events += self._settle(part.call_id, part.result, failed=part.status != "ok")
        return events

    def _end(self, usage: UsageShape, message: MessageShape | None, *, cancelled: bool) -> list[StreamEvent]:
        if self._part:  # the rest is in the usage of the responses before
            usage = usage_shape(self._usage or Usage())
        if cancelled:
            events = [*self._close_text("incomplete"), *self._close_calls()]
            return [*events, self._finish("cancelled", usage=_usage_shape(usage))]
        events = [*self._close_text(), *self._close_calls()]
        try:
            events += self._add_answer(message) if message is not None else []
        except BadOutput as error:
            return [*events, *self._fail("bad_output", str(error))]
        details = schema.IncompleteDetails() if message is not None and _is_cut_off(message) else None
        status = "incomplete" if details else "completed"
        fields: dict[str, Any] = {"usage": _usage_shape(usage), "incomplete_details": details}
        if message is not None:
            fields["completed_at"] = message.created_at // 1000
        return [*events, self._finish(status, **fields)]

    def _add_answer(self, message: MessageShape) -> list[StreamEvent]:
        """Add content that was not streamed: structured output, a refusal, or the text of a message without deltas."""
        refusal, text = message.refusal, _text_of(message)
        if message.metadata.get("refused"):
            return self._refuse(refusal or text)
        if self._wanted is not None:
            text = encode(Output(self._wanted).parse(text)).decode()
        elif any(isinstance(item, schema.MessageItem) for item in self._items):
            return []
        return [*self._add_text(text), *self._close_text()]

    def _refuse(self, refusal: str) -> list[StreamEvent]:
        part = schema.OutputRefusal(refusal)
        return [
            *self._open_message(schema.OutputRefusal("")),
            self._text_event("response.refusal.delta", delta=refusal),
            self._text_event("response.refusal.done", refusal=refusal),
            *self._close_message(part, "completed"),
        ]

    def _fail(self, code: str, message: str) -> list[StreamEvent]:
        events = [*self._close_text("incomplete"), *self._close_calls()]
        return [*events, self._finish("failed", error=schema.ResponseError(code, message))]

    def _close_calls(self) -> list[StreamEvent]:
        """End the calls that have no result."""
        events: list[StreamEvent] = []
        for index, item in enumerate(self._items):
            if item.status == "in_progress":
                self._items[index] = changed = msgspec.structs.replace(item, status="incomplete")
                events.append(self._item_event("done", changed, index))
        return events

    def _finish(self, status: schema.ResponseStatus, **fields: Any) -> StreamEvent:
        self.ended = True
        self.response = msgspec.structs.replace(self.response, status=status, output=tuple(self._items), **fields)
        name = "incomplete" if status == "cancelled" else status
        return self._event(f"response.{name}", response=self.response)

    def _item_event(self, what: str, item: schema.OutputItem, index: int | None = None) -> StreamEvent:
        index = len(self._items) - 1 if index is None else index
        return self._event(f"response.output_item.{what}", output_index=index, item=item)

    def _text_event(self, kind: str, **fields: Any) -> StreamEvent:
        """Return an event of the last message, which has one part."""
        index = len(self._items) - 1
        return self._event(kind, item_id=self._items[-1].id, output_index=index, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> StreamEvent:
        self._number += 1
        return {"type": kind, "sequence_number": self._number, **fields}

    def _new_id(self, kind: str) -> str:
        return f"{kind}_{self._run_id}_{f'{self._part}.' if self._part else ''}{len(self._items)}"


class PendingGroups:
    """The calls that a run has waited for its client to run: one group for each reply with such calls."""

    def __init__(self, events: Sequence[wire.RunEvent] = ()) -> None:
        self._groups: list[wire.ToolsPending] = []
        for event in events:
            if type(event) is wire.ToolsPending:
                self.add(event)

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, index: int) -> wire.ToolsPending:
        return self._groups[index]

    def add(self, event: wire.ToolsPending) -> bool:
        """Add a group; return False for one that is announced again, as after a restart."""
        known = {call.id for group in self._groups for call in group.calls}
        if any(call.id in known for call in event.calls):
            return False
        self._groups.append(event)
        return True

    def find(self, id: str) -> int:
        """Return the index of the group of a call."""
        return next(index for index, group in enumerate(self._groups) if id in [call.id for call in group.calls])


def _parse_id(id: str) -> tuple[str, int]:
    """Return the run of a response, and the part of it."""
    run_id, _, part = id.removeprefix(_PREFIX).partition("_")
    return run_id, int(part) if part.isdecimal() and len(part) < 6 else 0


def _make_id(run_id: str, part: int) -> str:
    return f"{_PREFIX}{run_id}_{part}" if part else _PREFIX + run_id


def _is_forced(choice: schema.ResponseToolChoice) -> bool:
    """Return whether a call of a client tool is required; text of the model may then be withdrawn."""
    if isinstance(choice, str):
        return choice == "required"
    return choice.type == "function" or choice.mode == "required"


def _written(result: Any) -> str:
    return result if isinstance(result, str) else encode(result).decode()


def _text_of(message: MessageShape) -> str:
    return "".join([part.text for part in message.parts if isinstance(part, TextPart)])


def _has_calls(message: MessageShape) -> bool:
    return any(isinstance(part, ToolCallPart) for part in message.parts)


def _is_cut_off(message: MessageShape) -> bool:
    """Return whether an answer is incomplete: because of its length, or because the agent has used up its rounds."""
    return _has_calls(message) or message.metadata.get("stop_reason") == "length"


def _usage_shape(usage: UsageShape) -> schema.ResponseUsage:
    return schema.ResponseUsage(
        usage.input_tokens,
        usage.output_tokens,
        usage.input_tokens + usage.output_tokens,
        schema.InputDetails(usage.cached_tokens, usage.cache_write_tokens),
        schema.OutputDetails(usage.reasoning_tokens),
    )


class RunSubscriber:
    """Receives the live events of one run from its session's channel."""

    full = True

    def __init__(self, hub: Hub, grant: Grant, row: RunRow) -> None:
        self.grant = grant
        self._hub = hub
        self._row = row
        self._frames: asyncio.Queue[bytes] = asyncio.Queue()
        self._tasks = BackgroundTasks("response stream")

    def send(self, frame: bytes) -> bool:
        self._frames.put_nowait(frame)
        return True

    async def drain(self) -> bool:
        return True

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.spawn(work)

    async def events(self, after: int) -> RunEvents:
        """Yield the events after a number, up to the terminal event."""
        runs, session, id = self._hub.runs, self._row.session, self._row.id
        runs.replay(runs.subscribe(session, self), self, id, after)
        try:
            while True:
                event = wire.decode_event(await self._frames.get())
                if event is not None and event.run_id == id:
                    yield event
                    if event.event in wire.TERMINAL_EVENTS:
                        return
        finally:
            runs.unsubscribe(session, self)
            self._tasks.cancel()


async def read_stored_events(hub: Hub, row: RunRow) -> tuple[list[wire.RunEvent], int]:
    """Return the events in the log of a run and the number of the last one; if the run has ended, all of them."""
    await hub.runs.follow_remote([row])
    if row.status not in OPEN:
        await hub.runs.wait_ended(row.id)
        await hub.runs.last_seq(row)
    events: list[wire.RunEvent] = []
    last = 0
    while rows := await hub.store.events(hub.atlas.tenant, row.id, after=last, limit=_PAGE):
        events += [event for each in split_rows(rows, last) if (event := wire.decode_event(each.body)) is not None]
        last = rows[-1].seq
    return events, last


def drop_withdrawn(events: Sequence[wire.RunEvent]) -> list[wire.RunEvent]:
    """Return the events without the text that was replaced later."""
    kept: list[wire.RunEvent] = []
    for index, event in enumerate(events):
        if type(event) is not wire.ChatReset:
            kept.append(event)
        elif not any(_breaks_off(each) for each in events[index + 1 : index + 2]):
            while kept and type(kept[-1]) in (wire.ChatDelta, wire.ChatReasoning):
                kept.pop()
    return kept


def drop_client_calls(events: Sequence[wire.RunEvent]) -> list[wire.RunEvent]:
    """Return the events without calls of client tools, which the event of the wait lists."""
    groups = [event for event in events if type(event) is wire.ToolsPending]
    ids = {call.tool_call_id for group in groups for call in group.calls}
    return [event for event in events if not (type(event) is wire.ToolCalling and event.tool_call_id in ids)]


def _breaks_off(event: wire.RunEvent) -> bool:
    """Return whether the run ends without an answer."""
    return type(event) is wire.ChatError or (type(event) is wire.ChatFinal and event.cancelled)


async def read_events(hub: Hub, grant: Grant, row: RunRow) -> RunEvents:
    """Yield the events of a stored run: first those in the log without withdrawn text, then live ones."""
    events, last = await read_stored_events(hub, row)
    for event in drop_client_calls(drop_withdrawn(events)):
        yield event
    if not events or events[-1].event not in wire.TERMINAL_EVENTS:
        async with aclosing(RunSubscriber(hub, grant, row).events(last)) as live:
            async for event in live:
                yield event


async def convert_events(hub: Hub, stream: AtlasStream, agent: Agent) -> RunEvents:
    """Yield the events of a turn that is not stored."""
    translator = Translator(agent_model(agent, hub.atlas.registry), hub.services.model_notice, hub.atlas.hide)
    async for event in stream:
        if (converted := translator.convert(event)) is not None:
            yield converted


class ResponseTurn:
    """A response in progress, and where its events come from."""

    def __init__(self, hub: Hub, response: schema.ResponseObject, events: RunEvents) -> None:
        self.encoder = ResponseEncoder(response)
        self._hub = hub
        self._events = events

    def abandon(self, stream: AtlasStream) -> None:
        """Cancel the turn of a client that has gone, unless the turn waits for it."""
        if not self.encoder.ended:
            stream.cancel()

    async def complete(self) -> schema.ResponseObject:
        """Return the response once its run has ended."""
        async with aclosing(self._events) as events:
            async for event in events:
                self.encoder.apply(event)
                if self.encoder.ended:
                    break
        if not self.encoder.ended:
            raise self._shutting_down()
        return self.encoder.response

    async def stream_events(self, after: int = -1) -> AsyncGenerator[bytes, None]:
        """Yield the events with numbers above `after` as server-sent events; a failure is the last one."""
        encoder = self.encoder
        try:
            for started in encoder.start():
                if started["sequence_number"] > after:
                    yield _sse_event(started)
            async with aclosing(self._events) as events:
                async for event in events:
                    for each in encoder.apply(event):
                        if each["sequence_number"] > after:
                            yield _sse_event(each)
                    if encoder.ended:
                        return
                    if encoder.withdrawn:
                        raise HTTPError(502, "answer_withdrawn", _WITHDRAWN.format(advice=self._advice))
            if not encoder.ended:
                raise self._shutting_down()
        except Exception as failure:  # noqa: BLE001 - the status line was already sent
            yield _sse_event(encoder.fail(to_http_error(failure, self._hub.atlas.hide)))

    @property
    def _advice(self) -> str:
        stored = f"read it again with GET /v1/responses/{self.encoder.response.id}, with or without stream=true"
        return stored if self.encoder.response.store else "retry the request"

    def _shutting_down(self) -> HTTPError:
        wait = self._hub.retry_after_ms / 1000
        return HTTPError(503, "unavailable", "the gateway is shutting down", retry_after=wait)


def _sse_event(event: StreamEvent) -> bytes:
    return b"event: %b\n%b" % (event["type"].encode(), http_api.sse_event(encode(event)))


class _Position(msgspec.Struct, frozen=True):
    """Position of a response: a `new` session that starts with `history`, or the session that it continues."""

    session: str
    new: bool = False
    history: tuple[Message, ...] = ()
    previous: RunRow | None = None
    known: frozenset[str] = frozenset()
    """The runs of the session that it continues, of those that the input names."""


class ResponsesEndpoint:
    """The handlers of `/v1/responses`. `find_agent` returns the agent that a request names as its model."""

    def __init__(self, hub: Hub, limiter: http_api.ConcurrencyLimiter, find_agent: Callable[[str], Agent]) -> None:
        self._hub = hub
        self._limiter = limiter
        self._find_agent = find_agent

    async def create(self, request: Request) -> Any:
        """Run a turn. The scopes are checked before the body is read."""
        grant = http_api.authorize(request, "read", "write")
        with ExitStack() as stack:
            pending = stack.enter_context(self._limiter.acquire(request, grant))
            body = await http_api.read_body(request, schema.ResponseRequest, self._hub.settings.max_frame)
            _check_supported(request, body)
            leaves = http_api.on_disconnect(request) == "cancel" and not body.background
            stream, turn = await self._start(grant, request, body)
            if stream is not None and (leaves or body.store is False):
                stack.callback(turn.abandon, stream)
            if body.background and not body.stream:
                return JsonResponse(msgspec.structs.replace(turn.encoder.response, status="queued"))
            if not body.stream:
                response = await pending.wait_for(turn.complete())
                if response.status == "failed" and stream is not None:
                    await http_api.wait_for_reply(stream, self._hub)  # raises the error, which sets the HTTP status
                return JsonResponse(response)
            if not body.background and stream is not None and not turn.encoder.is_continued:
                await pending.wait_for(http_api.wait_for_output(stream, stream, self._hub))
            return http_api.EventStream(pending, turn.stream_events(), self._hub.settings.ping, stack.pop_all().close)

    async def retrieve(self, request: Request) -> Any:
        grant = http_api.authorize(request, "read")
        row, response = await self._find(request, grant)
        if request.query_params.get("stream", "").lower() not in ("true", "1"):
            return JsonResponse(await self._read(row, response))
        after = _read_number(request, "starting_after", -1, None)
        if after >= 0 and await self._was_restarted(row):
            advice = "read its stream again without starting_after"
            raise bad_request(_WITHDRAWN.format(advice=advice), "starting_after", "answer_withdrawn")
        with ExitStack() as stack:
            pending = stack.enter_context(self._limiter.acquire(request, grant))
            turn = ResponseTurn(self._hub, response, read_events(self._hub, grant, row))
            close = stack.pop_all().close
            return http_api.EventStream(pending, turn.stream_events(after), self._hub.settings.ping, close)

    async def cancel(self, request: Request) -> Any:
        """Cancel the run and return the response; one that has ended stays as it is."""
        grant = http_api.authorize(request, "read", "write")
        row, response = await self._find(request, grant)
        if row.status in OPEN:
            await self._hub.atlas.cancel(row.id)
            await self._hub.runs.follow_remote([row])
            with suppress(TimeoutError):
                async with asyncio.timeout(_CANCEL_TIMEOUT):
                    await self._hub.runs.wait_ended(row.id)
            row, response = await self._find(request, grant)
        return JsonResponse(await self._read(row, response))

    async def delete(self, request: Request) -> Any:
        """Delete a response. Its messages stay in the session while other responses continue from them."""
        grant = http_api.authorize(request, "read", "write")
        row, response = await self._find(request, grant)
        if row.status in OPEN:
            raise bad_request("this response is in progress: cancel it first", code="response_in_progress")
        sessions, tenant = self._hub.atlas.sessions, self._hub.atlas.tenant
        deleted = {*(await sessions.get(row.session)).metadata.get(_DELETED, ()), row.id}
        others = await self._hub.store.runs(tenant, row.session, last=len(deleted) + 1)
        if {each.id for each in others} <= deleted and row.session.removeprefix(grant.prefix).startswith(_SESSIONS):
            await sessions.delete(row.session)
        else:
            await self._hub.store.commit(tenant, [SetSessionMetadata(row.session, {_DELETED: sorted(deleted)})])
        return JsonResponse(schema.DeletedResponse(response.id))

    async def list_input(self, request: Request) -> Any:
        """List the input items of a response, the last one first unless `order` is `asc`."""
        grant = http_api.authorize(request, "read")
        row, response = await self._find(request, grant)
        limit = _read_number(request, "limit", 20, _MAX_ITEMS)
        _, part = _parse_id(response.id)
        items = await self._read_outputs(row, part) if part else await self._read_items(row)
        if request.query_params.get("order", "desc") != "asc":
            items.reverse()
        ids = [item.id for item in items]
        after = request.query_params.get("after")
        if after is not None and after not in ids:
            raise bad_request(f"unknown item {after[:200]!r}", "after")
        first = ids.index(after) + 1 if after is not None else 0
        shown = tuple(items[first : first + limit])
        ends = (shown[0].id, shown[-1].id) if shown else (None, None)
        return JsonResponse(schema.StoredItems(shown, *ends, has_more=first + limit < len(items)))

    async def _read_items(self, row: RunRow) -> list[schema.StoredItem]:
        """Return the items that a run started with."""
        stored, store, tenant = _stored_request(row), self._hub.store, self._hub.atlas.tenant
        past = (
            await store.messages(tenant, row.session, after=stored.after, limit=stored.past)
            if stored is not None and stored.past
            else []
        )
        messages = [*[each.message for each in past], *read_first_messages(row)]
        return [item for message in messages for item in _stored_items(message)]

    async def _read_outputs(self, row: RunRow, part: int) -> list[schema.StoredItem]:
        """Return the outputs of the calls with which a part of a run started."""
        events, _ = await read_stored_events(self._hub, row)
        settled = {event.tool_call_id: event.result for event in events if type(event) is wire.ToolSettled}
        calls = [call for call in PendingGroups(events)[part - 1].calls if call.tool_call_id in settled]
        return [
            schema.StoredCallOutput(f"fco_{call.id}", call.id, _written(settled[call.tool_call_id])) for call in calls
        ]

    async def _start(
        self, grant: Grant, request: Request, body: schema.ResponseRequest
    ) -> tuple[AtlasStream | None, ResponseTurn]:
        """Start the turn, or resume the one that waits for the outputs in `input`.

        It is accepted when this returns, and stored unless `store` is false and the client has no tools.
        """
        hub, agent = self._hub, self._find_agent(body.model)
        offer = http_api.check_offer(hub, schema.response_tools(body))
        position = await self._locate(grant, request, body)
        messages, places = _read_input(body, position.known)
        if messages[-1].role == "tool":
            return await self._resume(grant, body, messages, places, offer)
        prompt, past = schema.to_prompt(messages, places), schema.to_messages(messages, places)[:-1]
        if problem := grant.check_service_tier(body.service_tier):
            raise bad_request(problem, "service_tier")
        response = _initial_response(body, agent)
        options = TurnOptions(
            output=schema.response_output(response.text),
            asks=http_api.waits_for_approvals(request),
            requested=schema.response_settings(body),
            instructions=body.instructions or msgspec.UNSET,
            client_tools=offer or msgspec.UNSET,
            traceparent=http_api.trace_of(request),
        )
        keeps = response.store or offer is not None  # a turn that waits for its client is stored
        position = await self._branch(grant, request, position, past, stored=keeps)
        if not keeps:
            hub.check_accepting()
            transient = Conversation([*position.history, *past], id=grant.prefix + new_id())
            options, user = msgspec.structs.replace(options, asks=False), grant.principal.id
            stream = hub.atlas.start_turn(prompt, options, session=transient, agent_id=agent.id, user=user)
            response = msgspec.structs.replace(response, id=_PREFIX + stream.stream_id)
            return stream, ResponseTurn(hub, response, convert_events(hub, stream, agent))
        if position.new:
            await self._create_session(position, past, prompt)
        kept = StoredRequest(response, len(position.history), len(past) if position.new else 0)
        options = msgspec.structs.replace(
            options,
            metadata={_METADATA: msgspec.to_builtins(kept)},
            when_busy=http_api.when_busy(request),
            idempotency_key=http_api.short_header(request, "idempotency-key"),
        )
        accepted, stream = await hub.submit_turn(
            agent, prompt, session=position.session, user=grant.principal.id, options=options
        )
        row = await hub.store.run(hub.atlas.tenant, accepted.run_id)
        if row is None:
            raise _not_found(_PREFIX + accepted.run_id)
        return stream, ResponseTurn(hub, _response_of(row), read_events(hub, grant, row))

    async def _resume(
        self,
        grant: Grant,
        body: schema.ResponseRequest,
        messages: list[schema.OpenAIMessage],
        places: list[str],
        offer: ClientTools | None,
    ) -> tuple[AtlasStream | None, ResponseTurn]:
        """Post the outputs at the end of the input; the response is the next part of the run that waited for them."""
        hub, found = self._hub, schema.trailing_results(messages)
        results = {f"{places[index]}.call_id": result for index, result in found.items()}
        calls = await http_api.post_tool_results(hub, grant, results, offer)
        row = await hub.store.run(hub.atlas.tenant, calls[0].run_id)
        if row is None:
            raise _not_found(_PREFIX + calls[0].run_id)
        stream = await hub.atlas.follow(row.id)
        groups = PendingGroups((await read_stored_events(hub, row))[0])
        response = await self._read_part(row, groups, groups.find(calls[0].id) + 1)
        response = msgspec.structs.replace(response, background=bool(body.background))
        return stream, ResponseTurn(hub, response, read_events(hub, grant, row))

    async def _read_part(self, row: RunRow, groups: PendingGroups, part: int) -> schema.ResponseObject:
        """Return a later part of a run as it started, with the tools that its client offered with the outputs."""
        approval = await self._hub.store.approval(self._hub.atlas.tenant, groups[part - 1].calls[0].id)
        answer = msgspec.json.decode(approval.answer, type=Answer) if approval and approval.answer else None
        offer = msgspec.convert(
            ((answer.arguments if answer else None) or {}).get("offer") or {"tools": ()}, ClientTools
        )
        forced = schema.ChosenResponseTool("function", offer.tool_choice)
        return msgspec.structs.replace(
            _response_of(row),
            id=_make_id(row.id, part),
            previous_response_id=_make_id(row.id, part - 1),
            tools=tuple([_function_of(each) for each in offer.tools]),
            tool_choice=next((each for each in _CHOICES if each == offer.tool_choice), forced),
        )

    async def _locate(self, grant: Grant, request: Request, body: schema.ResponseRequest) -> _Position:
        """Return the session that the request names or continues, or a new one."""
        named = body.conversation.id if isinstance(body.conversation, schema.ConversationRef) else body.conversation
        named = http_api.short_header(request, "x-atlas-session") or named
        if body.previous_response_id is None:
            session = grant.prefix + (named or self._new_session(grant, request))
            return _Position(session, new=not named)
        if named:
            raise bad_request(
                "previous_response_id names the session already: send it without conversation and X-Atlas-Session",
                "previous_response_id",
            )
        row = await self._find_row(grant, body.previous_response_id)
        if row is None:
            raise bad_request(
                f"previous response {body.previous_response_id[:200]!r} not found",
                "previous_response_id",
                "previous_response_not_found",
            )
        return _Position(row.session, previous=row, known=await self._find_known(row, body))

    async def _find_known(self, previous: RunRow, body: schema.ResponseRequest) -> frozenset[str]:
        """Return the runs of the session that items of the input belong to."""
        items = () if isinstance(body.input, str) else body.input
        named = {run for each in items if (run := schema.run_of_item(each.id or ""))}
        if named <= {previous.id}:
            return frozenset(named)
        runs = await self._hub.store.runs(self._hub.atlas.tenant, previous.session)
        return frozenset(named.intersection([each.id for each in runs]))

    async def _branch(
        self, grant: Grant, request: Request, position: _Position, past: list[Message], *, stored: bool
    ) -> _Position:
        """Return a copy of the session up to the previous response, unless the new one can simply be added to it."""
        row, store, tenant = position.previous, self._hub.store, self._hub.atlas.tenant
        if row is None:
            return position
        (last,) = await store.runs(tenant, row.session, last=1)
        key = http_api.short_header(request, "idempotency-key")
        continues = last.id == row.id or (
            key and key in [each.idempotency_key for each in await store.runs(tenant, row.session)]
        )
        if stored and continues and not past:
            return position
        if row.status in OPEN:
            raise bad_request(
                "the previous response is in progress: wait for it, or cancel it",
                "previous_response_id",
                "previous_response_in_progress",
            )
        rows = await store.messages(tenant, row.session)
        end = max([index for index, each in enumerate(rows, 1) if each.run_id == row.id], default=0)
        history = tuple([each.message for each in rows[:end]])
        return _Position(grant.prefix + self._new_session(grant, request), new=True, history=history)

    def _new_session(self, grant: Grant, request: Request) -> str:
        """Return the key of a new session; a repeated idempotency key gives the same one."""
        key = http_api.short_header(request, "idempotency-key")
        digest = hashlib.sha256(encode([grant.principal.id, key])).hexdigest()[:32]
        return _SESSIONS + (digest if key else new_id())

    async def _create_session(self, position: _Position, past: list[Message], prompt: Message) -> None:
        """Create the session of a response, which is archived from the start, with the messages before the prompt."""
        hub, key = self._hub, position.session
        if await hub.store.session(hub.atlas.tenant, key) is not None:
            return
        messages = [*position.history, *past]
        size = sum([len(each.to_json()) for each in messages])
        await hub.quotas.check(key, sessions=1, messages=len(messages), size=size, archived=True)
        if messages:
            lines = [encode(SessionHeader(1, key)), *[message.to_json() for message in messages]]
            try:
                await hub.atlas.sessions.load([line.decode() for line in lines], key=key)
            except BrokenHistory:
                raise bad_request(
                    "input has a tool call without its result, or a result without its call", "input"
                ) from None
        await hub.atlas.sessions.put(key, label=make_title(prompt.text), archived=True)

    async def _find(self, request: Request, grant: Grant) -> tuple[RunRow, schema.ResponseObject]:
        """Return the run of the response in the path, and the response as it started."""
        id = request.path_params["id"]
        row, (_, part) = await self._find_row(grant, id), _parse_id(id)
        if row is None or _make_id(row.id, part) != id:
            raise _not_found(id)
        groups = PendingGroups((await read_stored_events(self._hub, row))[0] if part else ())
        if part > len(groups):
            raise _not_found(id)
        return row, await self._read_part(row, groups, part) if part else _response_of(row)

    async def _find_row(self, grant: Grant, id: str) -> RunRow | None:
        """Return the run of a response that the caller may access; None if there is none, or it was deleted."""
        store, tenant = self._hub.store, self._hub.atlas.tenant
        row = await store.run(tenant, _parse_id(id)[0]) if id.startswith(_PREFIX) else None
        if row is None or not row.session.startswith(grant.prefix) or not _response_of(row).store:
            return None
        session = await store.session(tenant, row.session)
        deleted = session.metadata.get(_DELETED, ()) if session is not None else (row.id,)
        return None if row.id in deleted else row

    async def _was_restarted(self, row: RunRow) -> bool:
        """Return whether text of the response was withdrawn, so that its stream has other numbers than before."""
        events, _ = await read_stored_events(self._hub, row)
        return len(drop_withdrawn(events)) < len([each for each in events if type(each) is not wire.ChatReset])

    async def _read(self, row: RunRow, response: schema.ResponseObject) -> schema.ResponseObject:
        """Return the response as far as its run has come."""
        encoder = ResponseEncoder(response)
        events, _ = await read_stored_events(self._hub, row)
        for event in drop_client_calls(drop_withdrawn(events)):
            if not encoder.ended:
                encoder.apply(event)
        return encoder.snapshot(row)


def _check_supported(request: Request, body: schema.ResponseRequest) -> None:
    """Refuse unsupported parameters and combinations instead of ignoring them."""
    for name, value in (("prompt", body.prompt), ("max_tool_calls", body.max_tool_calls)):
        if value is not None:
            raise bad_request(f"{name} is not supported", name, "unsupported_parameter")
    if body.store is False and body.background:
        raise bad_request("background requires store: a response that runs in the background is stored", "background")
    if body.store is False and (body.conversation or request.headers.get("x-atlas-session")):
        raise bad_request("a conversation requires store: its messages are stored", "store")
    if http_api.when_busy(request) == "steer":
        raise bad_request("a response cannot enter a running turn: use another x-atlas-when-busy", "x-atlas-when-busy")


def _read_input(body: schema.ResponseRequest, known: frozenset[str]) -> tuple[list[schema.OpenAIMessage], list[str]]:
    """Return the input as messages, with the place of each in the request."""
    items = [schema.InputItem(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    messages, places = schema.items_to_messages(items, known)
    if not messages or messages[-1].role not in ("user", "tool"):
        raise bad_request(
            "the last item of input must be a message with the role 'user', or the output of a function call", "input"
        )
    return messages, places


def _initial_response(body: schema.ResponseRequest, agent: Agent) -> schema.ResponseObject:
    """Return the response as it starts, with the parameters of its request. The run gives it an id and a time."""
    conversation = body.conversation
    given = {
        name: value
        for name in schema.ResponseObject.__struct_fields__
        if name in schema.ResponseRequest.__struct_fields__ and (value := getattr(body, name)) is not None
    }
    given |= {
        "model": f"atlas/{agent.id}",
        "conversation": schema.ConversationRef(conversation) if isinstance(conversation, str) else conversation,
    }
    return schema.ResponseObject(id="", created_at=int(time.time()), **given)


def _function_of(tool: ClientTool) -> schema.ResponseFunction:
    return schema.ResponseFunction(tool.name, tool.parameters, tool.strict, tool.description)


def _stored_request(row: RunRow) -> StoredRequest | None:
    """Return the stored part of a response's request; None if the run was started in another way."""
    try:
        found = (decode_options(row).metadata or {}).get(_METADATA)
        return msgspec.convert(found, StoredRequest) if found is not None else None
    except (UnreadableRow, msgspec.ValidationError):
        return None


def _response_of(row: RunRow) -> schema.ResponseObject:
    """Return the response of a run as it started."""
    stored = _stored_request(row)
    response = stored.response if stored is not None else schema.ResponseObject("", 0, f"atlas/{row.agent_id}")
    return msgspec.structs.replace(response, id=_make_id(row.id, 0), created_at=row.created_at // 1000)


def _not_found(id: str) -> HTTPError:
    return HTTPError(404, "response_not_found", f"not found: response {id[:200]!r}")


def _read_number(request: Request, name: str, default: int, most: int | None) -> int:
    """Return a number of the query."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isdecimal() or len(text) > 9 or (most is not None and not 1 <= int(text) <= most):
        expected = f"a number from 1 to {most}" if most is not None else "the number of an event"
        raise bad_request(f"invalid {name} {text[:20]!r}: expected {expected}", name)
    return int(text)


def _stored_items(message: Message) -> list[schema.StoredItem]:
    """Return a stored message as input items."""
    items: list[schema.StoredItem] = []
    for call in message.tool_calls:
        items.append(schema.StoredCall(f"fc_{call.id}", call.id, call.name, encode(call.arguments).decode()))
    for result in message.tool_results:
        items.append(schema.StoredCallOutput(f"fco_{result.call_id}", result.call_id, render_result_text(result)))
    content = tuple([found for part in message.parts if (found := _stored_part(part, message.role)) is not None])
    if content and message.role != "tool":
        items.insert(0, schema.StoredInput(f"msg_{message.id}", message.role, content))
    return items


def _stored_part(part: Part, role: str) -> Any:
    match part:
        case Text(text):
            return schema.OutputText(text) if role == "assistant" else schema.InputText(text)
        case Image(media_type, data, url):
            return schema.InputImage(url or f"data:{media_type};base64,{data}")
        case File(name, media_type, data):
            return schema.InputFile(name, f"data:{media_type};base64,{data}")
        case _:
            return None
