"""AG-UI runs: start a turn or resume one after an interrupt, and encode its events."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, aclosing
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from atlas_agents.agents.agent import Agent
from atlas_agents.agents.options import TurnOptions, WhenBusy
from atlas_agents.agents.stream import AtlasStream
from atlas_agents.core.approvals import Answer, Question
from atlas_agents.core.errors import Conflict, NotFound
from atlas_agents.core.events import (
    ApprovalAnswered,
    ApprovalAsked,
    ErrorRaised,
    Event,
    HandedOver,
    MessageKept,
    PlanUpdated,
    StreamChunk,
    StreamEnd,
    StreamReset,
    StreamThinking,
    ToolAnswered,
    ToolCalled,
    ToolProgress,
    Usage,
)
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Message, ToolResult
from atlas_agents.core.store import OPEN, ApprovalRow
from atlas_agents.gateway.agui import events as agui
from atlas_agents.gateway.agui.events import (
    PAYLOAD_SCHEMA,
    AgUiEvent,
    Resume,
    RunInput,
    last_message,
    payload_of,
    snapshot_of,
)
from atlas_agents.gateway.auth import Grant
from atlas_agents.gateway.convert import asked as wire_question
from atlas_agents.gateway.convert import model_of
from atlas_agents.gateway.http_api import (
    ConcurrencyLimiter,
    EventStream,
    answered,
    body_of,
    data,
    on_disconnect,
    when_busy,
    who_asks,
)
from atlas_agents.gateway.http_errors import Hide, HTTPError, of_failure
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.protocol.frames import ProtocolError
from atlas_agents.gateway.submit import take_in
from atlas_agents.providers.base import spoken

_questions = msgspec.json.Decoder(Question)
_answers = msgspec.json.Decoder(Answer)


async def open_questions(hub: Hub, session: str) -> tuple[Question, ...]:
    """Return the pending approvals of a session."""
    return tuple([each for each in await hub.atlas.pending() if each.session == session])


async def answer(hub: Hub, who: Grant, session: str, entries: list[Resume]) -> Question:
    """Resolve the approvals and return the last one, whose turn continues. Repeating the same answer is allowed."""
    rows = [await _row(hub, session, entry) for entry in entries]
    answers = [_answer(entry, who) for entry in entries]
    answered = {entry.interrupt_id for entry in entries}
    missing = [each.id for each in await open_questions(hub, session) if each.id not in answered]
    if missing:
        raise HTTPError(409, "interrupt_pending", f"these interrupts also need an answer: {', '.join(missing)}")
    for entry, row, given in zip(entries, rows, answers, strict=True):
        await _give(hub, entry, row, given)
    return _questions.decode(rows[-1].question)


async def _row(hub: Hub, session: str, entry: Resume) -> ApprovalRow:
    """Return the approval; the error is the same whether it does not exist or belongs to another user."""
    row = await hub.store.approval(hub.atlas.tenant, entry.interrupt_id)
    if row is None or row.session != session:
        raise HTTPError(404, "interrupt_not_found", f"interrupt {entry.interrupt_id!r} not found in this thread")
    return row


async def _give(hub: Hub, entry: Resume, row: ApprovalRow, given: Answer) -> None:
    if row.answer is not None and _same(_answers.decode(row.answer), given):
        return
    try:
        await hub.atlas.answer(row.id, given)
    except (Conflict, NotFound) as late:
        if entry.status != "cancelled":  # cancelling an interrupt that is already resolved is allowed
            raise HTTPError(409, "interrupt_over", f"{late}; cancel the interrupt to continue") from None


def _answer(entry: Resume, who: Grant) -> Answer:
    by = who.principal.id
    if entry.status == "cancelled":
        return Answer("dismiss", by=by, reason="cancelled by the user")
    payload = payload_of(entry)
    if not payload.approved:
        return Answer("no", by=by, reason=payload.reason)
    return Answer(payload.remember, payload.edited_args, by, payload.reason)


def _same(before: Answer, now: Answer) -> bool:
    return (before.decision, before.arguments) == (now.decision, now.arguments)


class _Draft:
    """A message that is still being streamed."""

    __slots__ = ("calls", "id", "words")

    def __init__(self, id: str) -> None:
        self.id = id
        self.words: list[str] = []
        self.calls: list[agui.CallShape] = []

    def shape(self) -> agui.AssistantShape:
        return agui.AssistantShape(self.id, "assistant", "".join(self.words), tuple(self.calls))


class AgUiEncoder:
    """Encodes one run as AG-UI events. `over` is set after the terminal event.

    `page` holds the client's messages and those of this run, so that a message can be withdrawn by a snapshot.
    """

    def __init__(self, thread_id: str, run_id: str, model: str, page: list[Any], hide: Hide = str) -> None:
        self.over = False
        self._thread_id = thread_id
        self._run_id = run_id
        self._model = model
        self._page = page
        self._hide = hide
        self._numbers = 0
        self._text_id = ""
        self._thought_id = ""
        self._drafts: list[_Draft] = []
        """Streamed messages that are not complete yet."""

    def start(self) -> list[agui.AgUiEvent]:
        return [agui.RunStarted(self._thread_id, self._run_id, agui.VERSION)]

    def of(self, event: Event) -> list[agui.AgUiEvent]:
        """Return the AG-UI events for an event of a turn; none if the protocol has no equivalent."""
        match event:
            case StreamChunk(_, text):
                return self._say(text) if text else []
            case StreamThinking(_, text):
                return self._think(text) if text else []
            case StreamReset():
                return self._take_back()
            case ToolCalled(_, name, arguments, call_id):
                return self._call(call_id, name, arguments)
            case ToolProgress(_, name, call_id, message):
                value = {"toolCallId": call_id, "name": name, "message": message}
                return [agui.Custom("tool.progress", value)]
            case PlanUpdated(_, steps):
                return [agui.Custom("plan.updated", {"steps": msgspec.to_builtins(steps)})]
            case HandedOver(_, before, now):
                return [agui.Custom("run.handoff", {"from": before, "to": now})]
            case ToolAnswered(call_id=call_id, status=status, result=result, error=error):
                return self._result(ToolResult(call_id, status, result, error))
            case MessageKept(_, message) if message.role == "assistant" and not message.tool_calls:
                return self._complete()
            case _:
                return self._end(event)

    def replay(self, message: Message) -> list[agui.AgUiEvent]:
        """Return the events for a stored message."""
        said = self._complete()
        if message.role == "assistant" and message.text:
            said += self._say(message.text)
        for call in message.tool_calls:
            said += self._call(call.id, call.name, call.arguments)
        for result in message.tool_results:
            said += self._result(result)
        return said

    def ask(self, questions: tuple[Question, ...]) -> list[agui.AgUiEvent]:
        """End the run with interrupts; the turn waits for the answers."""
        outcome = agui.RunOutcomeShape("interrupt", tuple([_interrupt(each) for each in questions]))
        return self._finish(outcome)

    def done(self, usage: Usage | None = None, *, cancelled: bool = False) -> list[agui.AgUiEvent]:
        return self._finish(agui.RunOutcomeShape("cancelled" if cancelled else "success"), usage)

    def fail(self, message: str, code: str) -> list[agui.AgUiEvent]:
        closed = self._close()
        self.over = True
        return [*closed, agui.RunError(message, code)]

    def _end(self, event: Event) -> list[agui.AgUiEvent]:
        match event:
            case StreamEnd(_, usage, cancelled, None):
                return self.done(usage, cancelled=cancelled)
            case ApprovalAsked(_, question):
                return self.ask((question,))
            case ErrorRaised(_, message, kind):
                return self.fail(self._hide(message), kind)
            case _:
                return []

    def _finish(self, outcome: agui.RunOutcomeShape, usage: Usage | None = None) -> list[agui.AgUiEvent]:
        closed = self._close()
        self.over = True
        counted = (_usage(usage, self._model),) if usage is not None else ()
        return [*closed, agui.RunFinished(self._thread_id, self._run_id, outcome, counted)]

    def _say(self, text: str) -> list[agui.AgUiEvent]:
        opened: list[agui.AgUiEvent] = []
        if not self._text_id:
            opened = self._close()
            self._text_id = self._draft().id
            opened.append(agui.TextMessageStart(self._text_id, "assistant"))
        self._drafts[-1].words.append(text)
        return [*opened, agui.TextMessageContent(self._text_id, text)]

    def _think(self, text: str) -> list[agui.AgUiEvent]:
        opened: list[agui.AgUiEvent] = []
        if not self._thought_id:
            opened = self._close()
            id = self._thought_id = self._new_id()
            opened += [agui.ReasoningStart(id), agui.ReasoningMessageStart(id, "reasoning")]
        return [*opened, agui.ReasoningMessageContent(self._thought_id, text)]

    def _call(self, id: str, name: str, arguments: dict[str, Any]) -> list[agui.AgUiEvent]:
        closed, written = self._close(), encode(arguments).decode()
        parent = self._drafts[-1] if self._drafts else self._draft()
        parent.calls.append(agui.CallShape(id, "function", agui.FunctionShape(name, written)))
        start = agui.ToolCallStart(id, name, parent.id)
        return [*closed, start, agui.ToolCallArgs(id, written), agui.ToolCallEnd(id)]

    def _result(self, result: ToolResult) -> list[agui.AgUiEvent]:
        closed = self._complete()
        id, content = self._new_id(), spoken(result)
        self._page.append(agui.AgUiToolMessage(id, "tool", content, result.call_id))
        return [*closed, agui.ToolCallResult(id, result.call_id, content, "tool")]

    def _take_back(self) -> list[agui.AgUiEvent]:
        """Withdraw the current message: send a snapshot of all other messages."""
        seen, closed = bool(self._drafts), self._close()
        self._drafts.clear()
        return [*closed, agui.MessagesSnapshot(tuple(self._page))] if seen else closed

    def _close(self) -> list[agui.AgUiEvent]:
        """End the open messages."""
        closed: list[agui.AgUiEvent] = []
        if self._text_id:
            closed.append(agui.TextMessageEnd(self._text_id))
        if self._thought_id:
            closed += [agui.ReasoningMessageEnd(self._thought_id), agui.ReasoningEnd(self._thought_id)]
        self._text_id = self._thought_id = ""
        return closed

    def _complete(self) -> list[agui.AgUiEvent]:
        """Mark the current message as complete."""
        closed = self._close()
        self._page += [draft.shape() for draft in self._drafts]
        self._drafts.clear()
        return closed

    def _draft(self) -> "_Draft":
        self._drafts.append(_Draft(self._new_id()))
        return self._drafts[-1]

    def _new_id(self) -> str:
        self._numbers += 1
        return f"{self._run_id}-{self._numbers}"


def _interrupt(question: Question) -> agui.Interrupt:
    shown = wire_question(question)
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
        question.id, "tool_call", message, question.call_id, PAYLOAD_SCHEMA, expires.replace("+00:00", "Z"), metadata
    )


def _usage(usage: Usage, model: str) -> agui.TokenUsage:
    total = usage.input_tokens + usage.output_tokens
    return agui.TokenUsage(usage.input_tokens, usage.output_tokens, total, usage.cached_tokens, model)


class PageRun:
    """Streams the events of one AG-UI run."""

    def __init__(self, hub: Hub, who: Grant, request: Request, asked: RunInput, agent: Agent) -> None:
        self._hub = hub
        self._who = who
        self._asked = asked
        self._agent = agent
        self._session = who.prefix + asked.thread_id
        self._busy: WhenBusy = when_busy(request)
        self._message = None if asked.resume else last_message(asked)
        model = model_of(agent, hub.atlas.registry)
        self._words = AgUiEncoder(asked.thread_id, asked.run_id, model, snapshot_of(asked), hub.atlas.hide)
        self._stream: AtlasStream | None = None

    def stop(self) -> None:
        """Cancel the turn; a turn that waits for an approval keeps waiting."""
        if self._stream is not None and not self._words.over:
            self._stream.cancel()

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """Yield all events from the first to the last; a failure is the last event."""
        words = self._words
        yield _lines(words.start())
        try:
            async with aclosing(self._rest() if self._message is None else self._turn(self._message)) as told:
                async for said in told:
                    if said:
                        yield _lines(said)
                    if words.over:
                        return
            raise HTTPError(503, "unavailable", "the gateway is shutting down")
        except Exception as failure:  # noqa: BLE001 - the border: the status is told already
            trouble = of_failure(failure, self._hub.atlas.hide)
            yield _lines(words.fail(trouble.message, trouble.code))

    async def _turn(self, message: Message) -> AsyncGenerator[list[AgUiEvent], None]:
        """Run a new turn. The client's run id is its idempotency key."""
        if pending := await open_questions(self._hub, self._session):
            ids = ", ".join([each.id for each in pending])
            raise HTTPError(
                409, "interrupt_pending", f"this thread has pending interrupts that must be answered first: {ids}"
            )
        accepted, self._stream = await take_in(
            self._hub,
            self._agent,
            message,
            session=self._session,
            user=self._who.principal.id,
            options=TurnOptions(when_busy=self._busy, idempotency_key=f"ag-ui:{self._asked.run_id}"),
        )
        if accepted.status == "done":
            async for said in self._past(accepted.run_id, ""):
                yield said
            return
        async for event in self._stream:
            yield self._words.of(event)

    async def _rest(self) -> AsyncGenerator[list[AgUiEvent], None]:
        """Yield what follows the answer. The turn continues on its own, so it may have ended, here or elsewhere."""
        entries = self._asked.resume or []
        row = await self._hub.store.approval(self._hub.atlas.tenant, entries[-1].interrupt_id)
        live = (
            await self._hub.atlas.follow(row.run_id) if row is not None else None
        )  # before the answer lets the turn end
        question = await answer(self._hub, self._who, self._session, entries)
        if live is None:
            async for said in self._past(question.run_id, question.call_id):
                yield said
            return
        self._stream = live
        async for event in _after(live, question.id):
            yield self._words.of(event)

    async def _past(self, run_id: str, call_id: str) -> AsyncGenerator[list[AgUiEvent], None]:
        """Yield a finished turn from its stored messages: all of them, or those after a call."""
        store, tenant = self._hub.store, self._hub.atlas.tenant
        row = await store.run(tenant, run_id)
        if row is None or row.status in OPEN:
            raise HTTPError(503, "unavailable", "this turn is running in another process; retry in a moment")
        rows = [each for each in await store.messages(tenant, self._session) if each.run_id == run_id]
        messages = [Message.from_json(each.body) for each in rows]
        calls = [place for place, each in enumerate(messages) if call_id in [call.id for call in each.tool_calls]]
        for message in messages[calls[0] + 1 if calls else 0 :]:
            yield self._words.replay(message)
        if row.status == "failed":
            yield self._words.fail(self._hub.atlas.hide(row.error or "the turn failed"), "turn_failed")
        yield self._words.done(cancelled=row.status == "cancelled")


async def _after(stream: AtlasStream, question_id: str) -> AsyncGenerator[Event, None]:
    """Yield the events after an approval was resolved; if it never was, the end of the turn."""
    heard = False
    async for event in stream:
        heard = heard or isinstance(event, StreamEnd)
        if heard:
            yield event
        heard = heard or (isinstance(event, ApprovalAnswered) and event.approval_id == question_id)


def _lines(events: list[AgUiEvent]) -> bytes:
    return b"".join([data(encode(event)) for event in events])


def agui_routes(hub: Hub) -> Sequence[BaseRoute]:
    """Return the routes of the AG-UI endpoints."""
    seats = ConcurrencyLimiter(hub)

    async def run(request: Request) -> Any:
        """Start a run. Answering an interrupt requires the scope `approve`."""
        who = who_asks(request, "read", "write")
        with ExitStack() as stack:
            seat = stack.enter_context(seats.taken(request, who))
            asked = await body_of(request, RunInput, hub.settings.max_frame)
            if asked.resume:
                who_asks(request, "approve")
            agent = hub.agent(request.path_params["agent_id"])
            if agent is None:
                raise HTTPError(404, "agent_not_found", f"unknown agent {request.path_params['agent_id'][:200]!r}")
            if hub.stopping:
                raise ProtocolError("UNAVAILABLE", "the gateway is shutting down", retry_after_ms=hub.retry_after_ms)
            page = PageRun(hub, who, request, asked, agent)
            if on_disconnect(request) == "cancel":
                stack.callback(page.stop)
            return EventStream(seat, page.lines(), hub.settings.ping, stack.pop_all().close)

    return (Route("/ag-ui/{agent_id:path}", answered(run, hub.atlas.hide), methods=["POST"]),)
