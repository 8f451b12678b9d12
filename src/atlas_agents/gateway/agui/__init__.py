"""AG-UI 1.0 endpoints: start a turn or resume one after an interrupt, and encode its events for AG-UI frontends."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import ExitStack, aclosing
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.routing import BaseRoute

from atlas_agents.agents.agent import Agent
from atlas_agents.agents.options import TurnOptions, WhenBusy
from atlas_agents.agents.stream import AtlasStream
from atlas_agents.core import events as core
from atlas_agents.core.approvals import Answer, Question
from atlas_agents.core.errors import BadArguments, ConfigError, Conflict, NotFound
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Message, ToolResult
from atlas_agents.core.store import OPEN, ApprovalRow
from atlas_agents.gateway import http_api
from atlas_agents.gateway.agui import events as agui
from atlas_agents.gateway.asgi import ApiRoute, Operation
from atlas_agents.gateway.auth import Grant
from atlas_agents.gateway.convert import agent_model, approval_event
from atlas_agents.gateway.http_errors import Hide, HTTPError, bad_request, to_http_error
from atlas_agents.gateway.hub import Hub
from atlas_agents.providers.base import render_result_text
from atlas_agents.providers.settings import ModelSettings
from atlas_agents.tools.client_tools import SOURCE, ClientResult, unknown_call
from atlas_agents.tools.journal import read_shared_state

_OF_CLIENT = f"{SOURCE}/"
_questions = msgspec.json.Decoder(Question)
_answers = msgspec.json.Decoder(Answer)


async def open_questions(hub: Hub, session: str) -> tuple[Question, ...]:
    """Return the pending approvals of a session."""
    return tuple([each for each in await hub.atlas.pending() if each.session == session])


async def resolve_interrupts(hub: Hub, grant: Grant, session: str, entries: list[agui.Resume]) -> Question:
    """Resolve the approvals and return the last one, whose turn continues. Repeating the same answer is allowed."""
    rows = [await _row(hub, session, entry) for entry in entries]
    answers = [_answer(entry, grant) for entry in entries]
    answered = {entry.interrupt_id for entry in entries}
    missing = [each.id for each in await open_questions(hub, session) if each.id not in answered]
    if missing:
        raise HTTPError(409, "interrupt_pending", f"these interrupts also need an answer: {', '.join(missing)}")
    for entry, row, given in zip(entries, rows, answers, strict=True):
        await _resolve(hub, entry, row, given)
    return _questions.decode(rows[-1].question)


async def _row(hub: Hub, session: str, entry: agui.Resume) -> ApprovalRow:
    """Return the approval; the error is the same whether it does not exist or belongs to another user."""
    row = await hub.store.approval(hub.atlas.tenant, entry.interrupt_id)
    if row is None or row.session != session:
        raise HTTPError(404, "interrupt_not_found", f"interrupt {entry.interrupt_id!r} not found in this thread")
    return row


async def _resolve(hub: Hub, entry: agui.Resume, row: ApprovalRow, given: Answer) -> None:
    if row.answer is not None and _same(_answers.decode(row.answer), given):
        return
    try:
        await hub.atlas.answer(row.id, given)
    except (Conflict, NotFound) as late:
        if entry.status != "cancelled":  # cancelling an interrupt that is already resolved is allowed
            raise HTTPError(409, "interrupt_over", f"{late}; cancel the interrupt to continue") from None


def _custom(event: core.PlanUpdated | core.SessionCompacted | core.HandedOff) -> agui.Custom:
    """Build a custom event, for events without an AG-UI type."""
    match event:
        case core.PlanUpdated(_, steps):
            return agui.Custom("plan.updated", {"steps": msgspec.to_builtins(steps)})
        case core.SessionCompacted(_, summary, messages):
            return agui.Custom("session.compacted", {"messageId": summary.id, "messages": messages})
        case core.HandedOff(_, before, now):
            return agui.Custom("run.handoff", {"from": before, "to": now})


def _answer(entry: agui.Resume, grant: Grant) -> Answer:
    by = grant.principal.id
    if entry.status == "cancelled":
        return Answer("dismiss", by=by, reason="cancelled by the user")
    payload = agui.read_payload(entry)
    if not payload.approved:
        return Answer("no", by=by, reason=payload.reason)
    return Answer(payload.remember, payload.edited_args, by, payload.reason)


def _same(before: Answer, now: Answer) -> bool:
    return (before.decision, before.arguments) == (now.decision, now.arguments)


class _Draft:
    """A message that is still being streamed."""

    __slots__ = ("calls", "chunks", "id")

    def __init__(self, id: str) -> None:
        self.id = id
        self.chunks: list[str] = []
        self.calls: list[agui.CallShape] = []

    def shape(self) -> agui.AssistantShape:
        return agui.AssistantShape(self.id, "assistant", "".join(self.chunks), tuple(self.calls))


class AgUiEncoder:
    """Encodes one run as AG-UI events. `ended` is set after the terminal event.

    The client's messages and those of this run are kept, so that a message can be withdrawn by a snapshot.
    """

    def __init__(self, run_input: agui.RunInput, model: str, hide: Hide = str) -> None:
        self.ended = False
        self._thread_id = run_input.thread_id
        self._run_id = run_input.run_id
        self._model = model
        self._messages = agui.client_messages(run_input)
        self._state: Any = msgspec.json.decode(encode(run_input.state))  # tools may change the value that they get
        """State that was last sent to the client."""
        self._sent_state = False
        self._hide = hide
        self._numbers = 0
        self._text_id = ""
        self._reasoning_id = ""
        self._drafts: list[_Draft] = []
        """Streamed messages that are not complete yet."""
        self._hidden: set[str] = set()
        """Stored calls of the frontend's tools, which the frontend knows under other ids."""

    def start(self) -> list[agui.AgUiEvent]:
        return [agui.RunStarted(self._thread_id, self._run_id, agui.VERSION)]

    def convert(self, event: core.Event) -> list[agui.AgUiEvent]:
        """Return the AG-UI events for an event of a turn; none if the protocol has no equivalent."""
        match event:
            case core.StreamChunk(_, text):
                return self._add_text(text) if text else []
            case core.StreamThinking(_, text):
                return self._add_reasoning(text) if text else []
            case core.StreamReset():
                return self._withdraw()
            case core.ToolCalled(_, name) | core.ToolAnswered(_, name) if name.startswith(_OF_CLIENT):
                return []  # only calls that wait for the frontend are sent to it, and it knows their results
            case core.ToolCalled(_, name, arguments, call_id):
                return self._call(call_id, name, arguments)
            case core.ToolProgress(_, name, call_id, message):
                value = {"toolCallId": call_id, "name": name, "message": message}
                return [agui.Custom("tool.progress", value)]
            case core.PlanUpdated() | core.SessionCompacted() | core.HandedOff():
                return [_custom(event)]
            case core.ToolAnswered(call_id=call_id, status=status, result=result, error=error):
                return self._result(ToolResult(call_id, status, result, error))
            case core.MessageStored(_, message) if message.role == "assistant" and not message.tool_calls:
                return [*self._add_refusal(message), *self._complete()]
            case _:
                return self._end(event)

    def replay(self, message: Message) -> list[agui.AgUiEvent]:
        """Return the events for a stored message."""
        events = self._complete()
        if message.role == "assistant" and message.text:
            events += self._add_text(message.text)
        events += self._add_refusal(message)
        for call in message.tool_calls:
            if call.id not in self._hidden:
                events += self._call(call.id, call.name, call.arguments)
        for result in message.tool_results:
            if result.call_id not in self._hidden:
                events += self._result(result)
        return events

    def set_state(self, state: Any) -> list[agui.AgUiEvent]:
        """Send a new state: a snapshot the first time, deltas later."""
        state = {} if state is None else state
        delta = tuple(agui.diff_states(self._state, state))
        if not delta:
            return []
        whole = not self._sent_state or not delta[0].path
        self._state, self._sent_state = state, True
        return [agui.StateSnapshot(state) if whole else agui.StateDelta(delta)]

    def hide(self, call_ids: Iterable[str]) -> None:
        """Leave out these calls, and their results, when stored messages are replayed."""
        self._hidden.update(call_ids)

    def call_frontend(self, calls: Sequence[Question]) -> list[agui.AgUiEvent]:
        """Send calls of the frontend's tools and end the run; the turn waits for their results."""
        sent = [event for call in calls for event in self._call(call.id, call.tool, call.arguments)]
        return [*sent, *self.wait_for(calls)]

    def wait_for(self, calls: Sequence[Question]) -> list[agui.AgUiEvent]:
        """End the run; the turn waits for the results of calls that were sent."""
        return self._finish(agui.RunOutcomeShape("success", pending_tool_call_ids=tuple([call.id for call in calls])))

    def ask(self, questions: tuple[Question, ...]) -> list[agui.AgUiEvent]:
        """End the run with interrupts; the turn waits for the answers."""
        outcome = agui.RunOutcomeShape("interrupt", tuple([_interrupt(each) for each in questions]))
        return self._finish(outcome)

    def done(self, usage: core.Usage | None = None, *, cancelled: bool = False) -> list[agui.AgUiEvent]:
        return self._finish(agui.RunOutcomeShape("cancelled" if cancelled else "success"), usage)

    def fail(self, message: str, code: str) -> list[agui.AgUiEvent]:
        closed = self._close()
        self.ended = True
        return [*closed, agui.RunError(message, code)]

    def _end(self, event: core.Event) -> list[agui.AgUiEvent]:
        match event:
            case core.StreamEnd(_, usage, cancelled, None):
                return self.done(usage, cancelled=cancelled)
            case core.ErrorRaised(_, message, kind):
                return self.fail(self._hide(message), kind)
            case _:
                return []

    def _finish(self, outcome: agui.RunOutcomeShape, usage: core.Usage | None = None) -> list[agui.AgUiEvent]:
        closed = self._close()
        self.ended = True
        counted = (_usage(usage, self._model),) if usage is not None else ()
        return [*closed, agui.RunFinished(self._thread_id, self._run_id, outcome, counted)]

    def _add_text(self, text: str) -> list[agui.AgUiEvent]:
        opened: list[agui.AgUiEvent] = []
        if not self._text_id:
            opened = self._close()
            self._text_id = self._draft().id
            opened.append(agui.TextMessageStart(self._text_id, "assistant"))
        self._drafts[-1].chunks.append(text)
        return [*opened, agui.TextMessageContent(self._text_id, text)]

    def _add_refusal(self, message: Message) -> list[agui.AgUiEvent]:
        """Show a refusal as text, because the run succeeded and the protocol has no event for it."""
        if not message.refusal:
            return []
        return self._add_text(f"\n\n{message.refusal}" if message.text else message.refusal)

    def _add_reasoning(self, text: str) -> list[agui.AgUiEvent]:
        opened: list[agui.AgUiEvent] = []
        if not self._reasoning_id:
            opened = self._close()
            id = self._reasoning_id = self._new_id()
            opened += [agui.ReasoningStart(id), agui.ReasoningMessageStart(id, "reasoning")]
        return [*opened, agui.ReasoningMessageContent(self._reasoning_id, text)]

    def _call(self, id: str, name: str, arguments: dict[str, Any]) -> list[agui.AgUiEvent]:
        closed, written = self._close(), encode(arguments).decode()
        parent = self._drafts[-1] if self._drafts else self._draft()
        parent.calls.append(agui.CallShape(id, "function", agui.FunctionShape(name, written)))
        start = agui.ToolCallStart(id, name, parent.id)
        return [*closed, start, agui.ToolCallArgs(id, written), agui.ToolCallEnd(id)]

    def _result(self, result: ToolResult) -> list[agui.AgUiEvent]:
        closed = self._complete()
        id, content = self._new_id(), render_result_text(result)
        self._messages.append(agui.AgUiToolMessage(id, "tool", content, result.call_id))
        return [*closed, agui.ToolCallResult(id, result.call_id, content, "tool")]

    def _withdraw(self) -> list[agui.AgUiEvent]:
        """Withdraw the current message: send a snapshot of all other messages."""
        had_draft, closed = bool(self._drafts), self._close()
        self._drafts.clear()
        return [*closed, agui.MessagesSnapshot(tuple(self._messages))] if had_draft else closed

    def _close(self) -> list[agui.AgUiEvent]:
        """End the open messages."""
        closed: list[agui.AgUiEvent] = []
        if self._text_id:
            closed.append(agui.TextMessageEnd(self._text_id))
        if self._reasoning_id:
            closed += [agui.ReasoningMessageEnd(self._reasoning_id), agui.ReasoningEnd(self._reasoning_id)]
        self._text_id = self._reasoning_id = ""
        return closed

    def _complete(self) -> list[agui.AgUiEvent]:
        """Mark the current message as complete."""
        closed = self._close()
        self._messages += [draft.shape() for draft in self._drafts]
        self._drafts.clear()
        return closed

    def _draft(self) -> "_Draft":
        self._drafts.append(_Draft(self._new_id()))
        return self._drafts[-1]

    def _new_id(self) -> str:
        self._numbers += 1
        return f"{self._run_id}-{self._numbers}"


def _interrupt(question: Question) -> agui.Interrupt:
    shown = approval_event(question)
    expires = datetime.fromtimestamp(question.expires_at, UTC).isoformat(timespec="milliseconds")
    metadata = {
        "toolName": shown.tool_name,
        "arguments": shown.details,
        "workingDir": shown.working_dir,
        "risk": shown.risk,
    }
    if shown.form is not None:
        metadata["form"] = msgspec.to_builtins(shown.form)
    message = f"{shown.summary}: {shown.command}"
    return agui.Interrupt(
        question.id,
        "tool_call",
        message,
        question.call_id,
        agui.PAYLOAD_SCHEMA,
        expires.replace("+00:00", "Z"),
        metadata,
    )


def _usage(usage: core.Usage, model: str) -> agui.TokenUsage:
    total = usage.input_tokens + usage.output_tokens
    return agui.TokenUsage(usage.input_tokens, usage.output_tokens, total, usage.cached_tokens, model)


class AgUiRun:
    """Streams the events of one AG-UI run."""

    def __init__(self, hub: Hub, grant: Grant, request: Request, run_input: agui.RunInput, agent: Agent) -> None:
        self._hub = hub
        self._grant = grant
        self._run_input = run_input
        self._agent = agent
        self._session = grant.prefix + run_input.thread_id
        self._busy: WhenBusy = http_api.when_busy(request)
        self._traceparent = http_api.trace_of(request)
        self._results = [] if run_input.resume else agui.tool_results(run_input)
        self._message = None if run_input.resume or self._results else agui.last_message(run_input)
        self._offer = http_api.check_offer(hub, agui.frontend_tools(run_input))
        self._settings = _read_settings(grant, run_input)
        model = agent_model(agent, hub.atlas.registry)
        self._encoder = AgUiEncoder(run_input, model, hub.atlas.hide)
        self._stream: AtlasStream | None = None

    def stop(self) -> None:
        """Cancel the turn; a turn that waits for an approval keeps waiting."""
        if self._stream is not None and not self._encoder.ended:
            self._stream.cancel()

    async def stream_events(self) -> AsyncGenerator[bytes, None]:
        """Yield all events from the first to the last; a failure is the last event."""
        encoder = self._encoder
        yield _encode_events(encoder.start())
        try:
            if self._message is not None:
                turn = self._start_turn(self._message)
            else:
                turn = self._post_results(self._results) if self._results else self._resume_turn()
            async with aclosing(turn) as batches:
                async for events in batches:
                    if events:
                        yield _encode_events(events)
                    if encoder.ended:
                        return
            raise HTTPError(503, "unavailable", "the gateway is shutting down")
        except Exception as failure:  # noqa: BLE001 - the status line was already sent
            error = to_http_error(failure, self._hub.atlas.hide)
            yield _encode_events(encoder.fail(error.message, error.code))

    async def _start_turn(self, message: Message) -> AsyncGenerator[list[agui.AgUiEvent], None]:
        """Run a new turn. The client's run id is its idempotency key."""
        if pending := await open_questions(self._hub, self._session):
            ids = ", ".join([each.id for each in pending])
            raise HTTPError(
                409, "interrupt_pending", f"this thread has pending interrupts that must be answered first: {ids}"
            )
        accepted, self._stream = await self._hub.submit_turn(
            self._agent,
            message,
            session=self._session,
            user=self._grant.principal.id,
            options=TurnOptions(
                requested=self._settings,
                when_busy=self._busy,
                idempotency_key=f"ag-ui:{self._run_input.run_id}",
                client_tools=self._offer or msgspec.UNSET,
                metadata=agui.turn_metadata(self._run_input),
                traceparent=self._traceparent,
            ),
        )
        if accepted.status == "done":
            async for events in self._replay_stored(accepted.run_id, ""):
                yield events
            return
        repeated: set[tuple[type[core.Event], str]] = set()
        if accepted.status == "in_flight" and self._hub.runs.remote is None:
            pending = await self._hub.atlas.pending_client_calls(self._session)
            self._encoder.hide([call.call_id for call in pending])
            for message in await self._restored_messages(self._stream):
                yield self._encoder.replay(message)
                repeated |= {(core.ToolCalled, call.id) for call in message.tool_calls}
                repeated |= {(core.ToolAnswered, result.call_id) for result in message.tool_results}
            if self._stream.restored_messages:
                yield await self._stored_state(accepted.run_id)
        async for event in self._stream:
            if (type(event), getattr(event, "call_id", "")) not in repeated:
                yield await self._convert(event)

    async def _convert(self, event: core.Event) -> list[agui.AgUiEvent]:
        """Convert an event. A question ends the run, together with all other open questions of the turn."""
        if isinstance(event, core.ClientToolsCalled):
            return self._encoder.call_frontend(event.calls)
        if isinstance(event, core.StateChanged):
            return self._encoder.set_state(event.state)
        if not isinstance(event, core.ApprovalAsked):
            return self._encoder.convert(event)
        asked = event.question
        others = [each for each in await open_questions(self._hub, self._session) if each.run_id == asked.run_id]
        return self._encoder.ask(tuple(others) if asked.id in [each.id for each in others] else (asked, *others))

    async def _restored_messages(self, stream: AtlasStream) -> list[Message]:
        """Return the replies and results of a turn that an earlier process stored; its stream does not emit them."""
        await stream.begun()
        rows = await self._hub.store.messages(self._hub.atlas.tenant, self._session)
        found = [each.message for each in rows if each.id in stream.restored_messages]
        return [message for message in found if message.role != "user"]

    async def _stored_state(self, run_id: str, after: str = "") -> list[agui.AgUiEvent]:
        """Return the events for the last state that a turn set, or set since the result of a call."""
        states = await read_shared_state(self._hub.store, self._hub.atlas.tenant, run_id, after)
        return self._encoder.set_state(states[-1]) if states else []

    async def _post_results(self, results: Sequence[ClientResult]) -> AsyncGenerator[list[agui.AgUiEvent], None]:
        """Post the results of the frontend's tools, and yield the following events."""
        try:
            calls, missing, live = await self._store_results(results)
        except NotFound as error:
            raise HTTPError(404, "call_not_found", str(error)) from error
        except BadArguments as error:
            raise HTTPError(400, "invalid_result", str(error)) from error
        ids = {call.call_id for call in calls}
        if missing:
            yield self._encoder.wait_for(missing)
        elif live is None:
            self._encoder.hide(ids)
            async for events in self._replay_stored(calls[-1].run_id, calls[-1].call_id):
                yield events
        else:
            self._stream = live
            async for event in _events_after_results(live, ids):
                yield await self._convert(event)

    async def _store_results(
        self, results: Sequence[ClientResult]
    ) -> tuple[list[Question], list[Question], AtlasStream | None]:
        """Store results; return their calls, those of the same reply without a result, and the turn if it runs."""
        atlas, user = self._hub.atlas, self._grant.principal.id
        calls = await atlas.find_client_calls([each.call_id for each in results], user=user)
        run_id, ids = calls[0].run_id, {call.id for call in calls}
        if any((call.session, call.run_id) != (self._session, run_id) for call in calls):
            raise unknown_call(calls[0].id)
        waiting = [each for each in await atlas.pending_client_calls(self._session) if each.run_id == run_id]
        missing = [each for each in waiting if each.id not in ids]
        live = await atlas.follow(run_id)  # before the results let the turn end
        await atlas.post_results(results, user=user, offer=self._offer)
        posted_before = len(missing) == len(waiting)  # and the turn has gone on
        return calls, [] if posted_before else missing, live

    async def _resume_turn(self) -> AsyncGenerator[list[agui.AgUiEvent], None]:
        """Yield the events after the answer. The turn continues on its own, so it may have ended, here or elsewhere."""
        entries = self._run_input.resume or []
        row = await self._hub.store.approval(self._hub.atlas.tenant, entries[-1].interrupt_id)
        # Follow before the answer lets the turn end.
        live = await self._hub.atlas.follow(row.run_id) if row is not None else None
        question = await resolve_interrupts(self._hub, self._grant, self._session, entries)
        if live is None:
            async for events in self._replay_stored(question.run_id, question.call_id):
                yield events
            return
        self._stream = live
        async for event in _events_after(live, question.id):
            yield await self._convert(event)

    async def _replay_stored(self, run_id: str, call_id: str) -> AsyncGenerator[list[agui.AgUiEvent], None]:
        """Yield a finished turn from its stored messages: all of them, or those after a call."""
        store, tenant = self._hub.store, self._hub.atlas.tenant
        row = await store.run(tenant, run_id)
        if row is None or row.status in OPEN:
            raise HTTPError(503, "unavailable", "this turn is running in another process; retry in a moment")
        rows = [each for each in await store.messages(tenant, self._session) if each.run_id == run_id]
        messages = [each.message for each in rows]
        calls = [index for index, each in enumerate(messages) if call_id in [call.id for call in each.tool_calls]]
        for message in messages[calls[0] + 1 if calls else 0 :]:
            yield self._encoder.replay(message)
        yield await self._stored_state(run_id, call_id)
        if row.status == "failed":
            yield self._encoder.fail(self._hub.atlas.hide(row.error or "the turn failed"), "turn_failed")
        yield self._encoder.done(cancelled=row.status == "cancelled")


def _read_settings(grant: Grant, run_input: agui.RunInput) -> ModelSettings | None:
    """Return the model settings that a frontend requests; without the scope `admin`, not a more expensive tier."""
    found = agui.requested_settings(run_input)
    if found is None:
        return None
    if problem := grant.check_service_tier(found.service_tier):
        raise bad_request(problem, "forwardedProps.settings.serviceTier")
    try:
        return ModelSettings(**msgspec.structs.asdict(found))
    except ConfigError as error:
        raise bad_request(f"invalid settings: {error}", "forwardedProps.settings") from None


async def _events_after(stream: AtlasStream, question_id: str) -> AsyncGenerator[core.Event, None]:
    """Yield the events after an approval was resolved; if it never was, the end of the turn."""
    resolved = False
    async for event in stream:
        resolved = resolved or isinstance(event, core.StreamEnd)
        if resolved:
            yield event
        resolved = resolved or (isinstance(event, core.ApprovalAnswered) and event.approval_id == question_id)


async def _events_after_results(stream: AtlasStream, call_ids: set[str]) -> AsyncGenerator[core.Event, None]:
    """Yield the events after these calls got their results; if they never do, the end of the turn."""
    waiting = set(call_ids)
    async for event in stream:
        if not waiting or isinstance(event, core.StreamEnd | core.ErrorRaised):
            yield event
        elif isinstance(event, core.ToolAnswered):
            waiting.discard(event.call_id)


def _encode_events(events: list[agui.AgUiEvent]) -> bytes:
    return b"".join([http_api.sse_event(encode(event)) for event in events])


def agui_routes(hub: Hub) -> Sequence[BaseRoute]:
    """Return the routes of the AG-UI endpoints."""
    limiter = http_api.ConcurrencyLimiter(hub)

    async def run(request: Request) -> Any:
        """Start a run. Answering an interrupt requires the scope `approve`."""
        grant = http_api.authorize(request, "read", "write")
        with ExitStack() as stack:
            pending = stack.enter_context(limiter.acquire(request, grant))
            run_input = await http_api.read_body(request, agui.RunInput, hub.settings.max_frame)
            if run_input.resume:
                http_api.authorize(request, "approve")
            agent = hub.agent(request.path_params["agent_id"])
            if agent is None:
                raise HTTPError(404, "agent_not_found", f"unknown agent {request.path_params['agent_id'][:200]!r}")
            hub.check_accepting()
            turn = AgUiRun(hub, grant, request, run_input, agent)
            if http_api.on_disconnect(request) == "cancel":
                stack.callback(turn.stop)
            return http_api.EventStream(pending, turn.stream_events(), hub.settings.ping, stack.pop_all().close)

    operation = Operation(
        "Run an agent with the AG-UI protocol.", "AG-UI", ("read", "write"), body=agui.RunInput, streams=True
    )
    path = "/ag-ui/{agent_id:path}"
    return (ApiRoute(path, http_api.with_error_responses(run, hub.atlas.hide), operation, ["POST"]),)
