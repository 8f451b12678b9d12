"""The agent loop, and the model call inside it.

A turn is one user message and everything that follows from it. It runs in rounds: the model replies, the tools it
called run, and the model replies again, until it calls none. Subscribers are behind `run.emit`, the model's wire format
behind `run.provider`, and tool governance behind `run.run_tool_calls`; none of them changes the loop.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TypeAlias, cast

import msgspec

from atlas_agents.agents.history import Compaction, SentRequest, context_state, drop_stale_reasoning
from atlas_agents.agents.options import HandoffPlan
from atlas_agents.agents.output import Output
from atlas_agents.agents.run import (
    WHOLE_TURN,
    DuplicateRun,
    MessageDraft,
    Run,
    Steered,
    TurnPhase,
    session_lock,
)
from atlas_agents.core import events
from atlas_agents.core.aio import finish_despite_cancel
from atlas_agents.core.budgets import DEFAULT_OUTPUT, MIN_OUTPUT, ModelCall, TurnBudget
from atlas_agents.core.errors import BadOutput, BudgetExceeded, ProviderError, failure_kind
from atlas_agents.core.events import StreamChunk
from atlas_agents.core.json import LARGE, check_memory
from atlas_agents.core.messages import (
    ROUNDS_EXHAUSTED,
    TIMING,
    Message,
    Opaque,
    Text,
    ToolCall,
    ToolSpec,
    approximate_tokens,
    user,
)
from atlas_agents.core.telemetry import INPUT_MESSAGES, SYSTEM_INSTRUCTIONS, ModelCallTrace
from atlas_agents.providers import base
from atlas_agents.providers.base import TextChunk
from atlas_agents.providers.catalogue import find_profile
from atlas_agents.providers.failover import TurnProvider, overhead_tokens, request_tokens
from atlas_agents.tools.client_tools import ClientRound
from atlas_agents.tools.journal import Journal

TurnFunction: TypeAlias = Callable[[Run], Awaitable[Message]]
"""How the rounds of a turn are organised: plain rounds, a plan, a chain of agents, or a single tool call."""
_NO_HANDOFFS = HandoffPlan()
_MAX_SHORTENINGS = 16


class RoundsExhausted(Exception):
    """The round limit was reached while the model still called tools; `partial` is its last message."""

    def __init__(self, partial: Message) -> None:
        super().__init__(ROUNDS_EXHAUSTED)
        self.partial = partial


_NO_REPLY = Message("assistant", ())


async def run_rounds(run: Run) -> Message:
    """Alternate between the model and its tools until the model calls none."""
    reply, rounds = _NO_REPLY, 0
    while rounds < run.max_rounds:
        rounds += 1
        if reply.tool_calls and (run.journal is not None or run.lock.steering):
            await run.take_steering_messages()
        reply = run.add(await call_model(run, is_last=rounds == run.max_rounds))
        if reply.tool_calls:
            client = await run.run_tool_calls(reply.tool_calls)
            if run.phase.is_complete() or run.must_end(client):
                return reply
            rounds = 0 if client is ClientRound.ANSWERED else rounds  # the client decides to go on
        elif reply.metadata.get("stop_reason") == "pause" or run.demand_client_call(reply) or run.ask_next_agent():
            continue
        else:
            return reply
    raise RoundsExhausted(reply)


async def run_turn(run: Run, message: Message | None, execute: TurnFunction = run_rounds) -> Message:
    """Run a turn from the user message to the answer, and emit how it ended, whatever happens."""
    status = "failed"
    with run.trace:
        try:
            reply = await _run_in_order(run, await accept_message(run, message), execute)
            status = "done"
        except (DuplicateRun, Steered):
            status = ""
            raise
        except asyncio.CancelledError as cancelled:
            await run.end("cancelled")
            status = "cancelled"
            report_failure(run, cancelled)
            raise
        except Exception as failure:
            report_failure(run, failure)
            raise
        else:
            run.emit(events.StreamEnd(run.id, run.usage))
            run.emit(events.MessageReceived(run.id, reply))
        finally:
            run.record_end(status)
    return reply


def report_failure(run: Run, failure: Exception | asyncio.CancelledError) -> None:
    """Emit how a turn without an answer ended, unless it has not ended and will be resumed."""
    if isinstance(failure, asyncio.CancelledError):
        if not run.detached:
            run.emit(events.StreamEnd(run.id, run.usage, cancelled=True))
    elif run.fenced or not run.detached:
        run.emit(events.StreamEnd(run.id, run.usage, error=str(failure)))
        run.emit(events.ErrorRaised(run.id, str(failure), failure_kind(failure)))


async def accept_message(run: Run, message: Message | None) -> list[Message]:
    """Accept the message in order of arrival; nothing is awaited between the two session locks, to keep the order."""
    if run.resumed or message is None:
        return []
    await run.lock.accept.acquire()  # as `async with`, without two coroutines for each turn
    try:
        return await run.accept(message)
    finally:
        run.lock.accept.release()


async def _run_in_order(run: Run, messages: Sequence[Message], execute: TurnFunction) -> Message:
    """Wait for earlier turns of the session, run this one, and record how it ended before the next one starts."""
    await run.wait_in_order(messages)
    try:
        await _start(run, messages)
        reply = await _final_reply(run, execute)
        if run.journal is not None:
            await run.end("done")
        if run.outcome is not None:
            run.resolve_outcome(reply)
    except asyncio.CancelledError:
        await run.end("cancelled")
        raise
    except Exception as failure:
        await run.end("failed", failure)
        run.resolve_outcome(None, failure)
        raise
    finally:
        if run.outcome is not None:
            run.resolve_outcome(None)
        run.lock.run.release()
    return reply


async def _start(run: Run, messages: Sequence[Message]) -> None:
    first = await run.begin(messages)
    if first:
        for message in first:
            run.append(message)
        run.user_message = first[-1]
        if not run.resumed:
            run.emit(events.MessageSent(run.id, run.user_message))
    run.emit(events.StreamStart(run.id, run.settings.id))


async def _final_reply(run: Run, execute: TurnFunction) -> Message:
    """Return the answer, or the last partial reply when the rounds are exhausted."""
    budget = run.scope.open_budget()
    try:
        if budget is None:
            return await execute(run)
        async with budget.running():
            return await execute(run)
    except BudgetExceeded as exceeded:
        exceeded.partial = run.text
        raise
    except RoundsExhausted as exhausted:
        run.rounds_exhausted = True
        return exhausted.partial


async def run_with_output(run: Run, execute: TurnFunction = run_rounds) -> Message:
    """Run a turn with structured output; an answer that does not match may be corrected `output_retries` times."""
    wanted, retries = cast(Output, run.output), run.output_retries
    reply = await execute(run)
    while True:
        try:
            run.read_output(reply)
        except BadOutput as problem:
            if reply.metadata.get("refused"):
                raise BadOutput(reply.refusal or f"The model refused to answer: {reply.text}") from None
            if not retries:
                raise
            retries -= 1
            run.replace_last_text(reply.text, "")
            run.add_own(user(f"Your answer does not match: {problem}\n{wanted.instruction}", synthetic=True))
            reply = await run_rounds(run)
        else:
            return reply


async def run_chain(run: Run, execute: TurnFunction = run_rounds) -> Message:
    """Run one agent after another, each with the answers of those before it."""
    *_, last = run.options.team.then
    run.phase = TurnPhase()
    reply = await execute(run)
    for agent_id in run.options.team.then:
        run.hand_off(agent_id)
        run.phase = WHOLE_TURN if agent_id == last else TurnPhase()
        run.add_own(user("Continue from the answer above: do your part and return the full result.", synthetic=True))
        reply = await run_rounds(run)
    return reply


async def call_model(run: Run, *, is_last: bool = False) -> Message:
    """Return the model's next message, replayed from the journal if an earlier process received it.

    A new reply is recorded before anything acts on it. The last reply of a turn is recorded together with the end of
    the turn; a reply with a single call that runs at once, together with the intent of that call. In the `is_last`
    round, a reply after which the model wanted to continue has the limit of rounds in its metadata.
    """
    journal = run.journal
    if journal is not None and journal.holds_reply:
        await finish_despite_cancel(journal.write_held_reply())
    if journal is not None and (summary := journal.next_summary()) is not None:
        run.restore_summary(summary)
    if journal is not None and (recorded := journal.next_reply()) is not None:
        await journal.check_request(run.provider, partial(_rebuild_request, run))
        run.trace.replay_round(journal.replayed_at)
        run.summary_tried = False
        run.texts.append(recorded.text)
        for message in journal.messages_added_with(recorded):
            run.add(message)
        return recorded
    run.trace.next_round()
    reply = await _request_reply(run)
    if run.interceptors.has_incoming:
        reply = await _intercept(run, reply)
    if is_last and reply.is_unfinished and not run.client_may_end:
        reply = msgspec.structs.replace(reply, metadata={**reply.metadata, "max_rounds": run.max_rounds})
    if journal is not None:
        await _record_reply(run, journal, reply)
    run.summary_tried = False
    return reply


async def _rebuild_request(run: Run, limit: int, cleared: str) -> SentRequest | None:
    """Rebuild the request of a recorded reply from its record; None if a hook answers it.

    Context limits that were learned since then are ignored.
    """
    state = context_state(run.conversation)
    if cleared != state.cleared:
        state.cleared = cleared
        run.refresh_messages()
    request = await _build_request(run, recorded_limit=limit or math.inf)
    return _describe_sent(run, request) if isinstance(request, base.Request) else None


def _describe_sent(run: Run, request: base.Request) -> SentRequest:
    """Describe a request for its record. Instructions of this turn are not part of the shared outline."""
    fixed, own = request.stable_system, run.options.instructions or ""
    fixed = fixed.removesuffix(own).removesuffix("\n\n") if own else fixed
    cleared = context_state(run.conversation).cleared
    return SentRequest(request, fixed, run.shortened_to, cleared, run.take_failed_attempts())


async def _request_reply(run: Run) -> Message:
    """Stream a reply; a conversation that exceeds the context window is shortened until it fits."""
    sent = math.inf
    failure: ProviderError | None = None
    run.sent_request = None
    for _ in range(_MAX_SHORTENINGS):
        request = await _build_request(run, sent)
        if isinstance(request, Message):
            return await _reply_of_hook(run, request)
        if sent != math.inf and request_tokens(request) >= sent:
            break
        try:
            budget = await run.scope.refresh_budget() if run.scope.may_be_limited else None
            reply = await (_stream(run, request) if budget is None else _stream_within(budget, run, request))
            if run.journal is not None:
                run.sent_request = _describe_sent(run, request)
            return reply
        except ProviderError as error:
            if error.kind != "context_length":
                raise
            sent, failure = request_tokens(request), error
    raise ProviderError(
        f"the message is too long for the model, even without the older ones (about {sent:,} tokens): send a shorter "
        f"message or smaller attachments, or use a model with a larger context window ({failure})",
        "context_length",
        status=failure.status if failure else None,
    ) from failure


async def _reply_of_hook(run: Run, reply: Message) -> Message:
    """Stream the reply of a hook as if the model had written it; it used no tokens."""
    run.reply_usage = events.NO_USAGE
    for part in reply.parts:
        if isinstance(part, ToolCall):
            _handle_chunk(run, base.ToolCallChunk(part))
        elif isinstance(part, Text):
            text = await run.interceptors.check_output(part.text, run.context, [])
            run.draft.add_part(Text(text))
            run.emit(StreamChunk(run.id, text))
        else:
            run.draft.add_part(part)
    return msgspec.structs.replace(reply, parts=run.finish_draft())


async def _build_request(
    run: Run, sent: float = math.inf, *, recorded_limit: float | None = None
) -> base.Request | Message:
    """Build the next request, or return a hook's reply.

    `sent` is the size in tokens of the previous request, if it was too long. `recorded_limit` is the number of tokens
    that was available for the messages when the request was recorded.
    """
    if not run.scope.has_chosen:
        await run.choose_tools()
    system, stable = await _system_prompt(run)
    tool_choice = run.phase.tool_choice or run.tool_choice
    tools = run.phase.offered(run.scope.offered_tools(tool_choice))
    request = base.Request(
        messages=tuple(await _select_messages(run, system, tools, sent, recorded_limit)),
        system=system,
        tools=tools,
        tool_choice=tool_choice,
        settings=run.settings.model_settings,
        output=run.output.spec if run.output and run.is_final else None,
        metadata=run.context.metadata,
        stable_system=stable,
    )
    return await run.interceptors.request(request, run.context) if run.interceptors.has_request else request


async def _select_messages(
    run: Run, system: str, tools: Sequence[ToolSpec], sent: float, recorded_limit: float | None
) -> Sequence[Message]:
    """Return the messages of the next request: all that fit into the context window of at least one of the models."""
    is_unknown, is_bound = run.history.compaction is None, False
    for limit in run.limits:
        is_unknown = is_unknown and limit.is_unknown
        is_bound = is_bound or limit.profile.bound_reasoning
    available = recorded_limit or (math.inf if is_unknown else await _find_available(run, system, tools, sent))
    selected = run.history.select(run.messages, available)
    run.shortened_to = 0 if selected is run.messages or available == math.inf else int(available)
    if is_bound:
        whole = len(selected) == run.inherited_count + len(run.conversation)
        selected = drop_stale_reasoning(selected, context_state(run.conversation), whole)
    return selected


async def _find_available(run: Run, system: str, tools: Sequence[ToolSpec], sent: float) -> float:
    """Return the number of tokens available for messages; compact the conversation first if it takes most of them."""
    limited = [limit for limit in run.available if limit != math.inf]
    if not limited and (run.history.compaction is None or run.history.max_tokens is None):
        return math.inf
    overhead = overhead_tokens(system, tools)
    if run.history.compaction is not None and not run.summary_tried:
        await _compact(run, run.history.compaction, overhead)
    limits = [limit for limit in run.available if limit < sent or sent == math.inf]
    available = max(limits, default=math.inf) - overhead
    return available if available == math.inf else max(int(available), 1)


async def _compact(run: Run, compaction: Compaction, overhead: int) -> None:
    """Compact the conversation if it takes most of its models' context windows."""
    limits = [limit - overhead for limit in run.available]
    available = min([*limits, run.history.max_tokens or math.inf])
    if 0 < available < math.inf and run.history.tokens(run.messages) > compaction.threshold * available:
        from atlas_agents.agents.compaction import compact  # rarely needed

        await compact(run, compaction, available)


async def _system_prompt(run: Run) -> tuple[str, str]:
    """Join the Atlas's prompt, the agent's, the rules that apply, the context's system messages and the turn's own.

    Parts that may change from round to round come last: conditional rules, and the format of the answer. The second
    value is the text before them, which vendors can cache.
    """
    own = run.settings.system_prompt
    written = "" if isinstance(own, str) else await run.dynamic_prompt()
    pieces = [run.system_prompt, own if isinstance(own, str) else ""]
    fixed: list[str] = []
    dynamic: list[str] = []
    if run.context.rules:
        rules = await run.context.applied_rules()
        fixed = [rule.label for rule in rules if not rule.is_dynamic]
        dynamic = [text for rule in rules if rule.is_dynamic and (text := await rule.render(run.context))]
        pieces.append(_list_rules("Rules", fixed))
    if run.inherited_messages:
        pieces += [message.text for message in run.inherited_messages if message.role == "system"]
    if run.options.instructions:
        pieces.append(run.options.instructions)
    stable = "\n\n".join(filter(None, pieces))
    if not dynamic and not written and run.output is None:
        return stable, stable
    changing = [stable, written, _list_rules("Further rules" if fixed else "Rules", dynamic)]
    if run.output and run.is_final and not run.provider.capabilities.structured:
        changing.append(run.output.instruction)
    return "\n\n".join([piece for piece in changing if piece]), stable


def _list_rules(title: str, rules: Sequence[str]) -> str:
    return "\n".join([f"{title}:", *[f"- {rule}" for rule in rules]]) if rules else ""


async def _stream_within(budget: TurnBudget, run: Run, request: base.Request) -> Message:
    """Stream a reply: reserve its maximum usage before, and settle its real usage afterwards."""
    await _reserve(run, budget, _model_call(run, request))
    try:
        reply = await _stream(run, request)
    except BaseException as failure:
        await _settle_failed(run, budget, sent=isinstance(failure, asyncio.CancelledError))
        raise
    finally:
        _limit_output(run, None)
    await budget.settle(run.reserved, run.reply_usage)
    if run.reserved is not None and run.reserved.max_tokens is not None and reply.metadata.get("truncated"):
        note = "cut off by a budget, which had no more tokens left"
        reply = msgspec.structs.replace(reply, metadata={**reply.metadata, "budget": note})
    return reply


def _model_call(run: Run, request: base.Request) -> ModelCall:
    """Describe a request for the budgets: its estimated input, its limit of output tokens and the possible models."""
    models = run.provider.models if isinstance(run.provider, TurnProvider) else ()
    prices = tuple([(model, run.meter.price(model)) for model in models])
    effort, limit = request.settings.effort, request.settings.max_tokens
    least = MIN_OUTPUT + (effort if isinstance(effort, int) else 0)
    known = [found for model in models if (found := find_profile(model).output_limit) is not None]
    longest = max(known) if known and len(known) == len(models) else None
    return ModelCall(request_tokens(request), limit, prices, least, longest or DEFAULT_OUTPUT)


async def _settle_failed(run: Run, budget: TurnBudget, *, sent: bool) -> None:
    """Settle a call that did not complete; one that was cancelled had been `sent`, even if nothing came back."""
    if run.reserved is not None:
        await budget.settle(run.reserved, _partial_usage(run, sent))


def _partial_usage(run: Run, sent: bool = False) -> events.Usage | None:
    """Estimate the usage of an incomplete attempt; None if it was refused before it produced anything."""
    parts = run.draft.parts()
    if run.reserved is None or not (parts or sent):
        return None
    output = approximate_tokens(Message("assistant", parts)) if parts else 0
    return events.Usage(run.reserved.call.input_tokens, output, estimated=True)


async def _reserve(run: Run, budget: TurnBudget, call: ModelCall) -> None:
    """Reserve tokens for an attempt; its output is limited to the rest of the budget."""
    run.reserved = await budget.reserve(call)
    _limit_output(run, run.reserved.max_tokens)


def _limit_output(run: Run, max_tokens: int | None) -> None:
    if isinstance(run.provider, TurnProvider):
        run.provider.max_tokens = max_tokens


async def _reserve_again(run: Run, budget: TurnBudget, usage: events.Usage | None) -> None:
    """Settle a withdrawn attempt, and reserve tokens for the next one."""
    withdrawn = run.reserved
    if withdrawn is not None:
        usage, run.reserved = usage or _partial_usage(run), None
        await budget.settle(withdrawn, usage)
        await _reserve(run, budget, withdrawn.call)


async def _stream(run: Run, request: base.Request) -> Message:
    """Stream a reply into the draft, and record the time to its first and its last chunk."""
    emit, id, draft, waiting = run.emit, run.id, run.draft, True
    append, size, limit = draft.text_chunks.append, 0, LARGE
    done: base.DoneChunk | None = None
    with ModelCallTrace(run.trace, run.provider, run.settings.id) as call:
        filtered_by: list[str] = []
        chunks = _open_stream(run, request, call, filtered_by)
        try:
            async for chunk in chunks:
                if waiting:
                    waiting = call.mark_first()
                if type(chunk) is TextChunk:
                    text = chunk.text
                    append(text)
                    size += len(text)
                    limit = limit if size <= limit else _check_size(size, draft)
                    emit(StreamChunk(id, text))
                elif type(chunk) is base.DoneChunk:
                    done = chunk
                else:
                    waiting = type(chunk) is base.ResetChunk
                    size = 0 if waiting else size + len(getattr(chunk, "text", ""))
                    limit = limit if limit - LARGE <= size <= limit else _check_size(size, draft)
                    await _handle_other(run, chunk, call)
        finally:
            await chunks.aclose()
        if done is None:
            raise ProviderError("the provider's stream ended before the message was complete", "incomplete")
        return _complete_reply(run, request, done, filtered_by, call)


def _complete_reply(
    run: Run, request: base.Request, done: base.DoneChunk, filtered_by: list[str], call: ModelCallTrace
) -> Message:
    """Return the message of a draft that is complete; `filtered_by` are the hooks that changed its text."""
    usage = done.usage if done.usage.input_tokens else _estimate_usage(done.usage, request)
    provider = run.provider.id
    run.reply_usage = usage = run.meter.add(done.model or provider, usage, provider)
    metadata = _reply_metadata(done, usage, provider, run)
    if filtered_by:
        metadata["hooks"] = [*dict.fromkeys(filtered_by)]
    reply = Message("assistant", run.finish_draft(), metadata=metadata)
    metadata[TIMING] = call.complete(reply, usage)
    return reply


def _open_stream(
    run: Run, request: base.Request, call: ModelCallTrace, filtered_by: list[str]
) -> AsyncGenerator[base.Chunk]:
    """Return the chunks of a reply, checked by hooks; those that change its text are added to `filtered_by`."""
    base.turn_warnings.set(run.warnings)
    if call.span.recording:
        run.trace.capture_messages(call.span, INPUT_MESSAGES, request.messages)
        run.trace.capture(call.span, SYSTEM_INSTRUCTIONS, [{"type": "text", "content": request.system}])
    chunks = run.provider.stream(request)
    return run.interceptors.filter_output(chunks, run.context, filtered_by) if run.interceptors.has_output else chunks


def _check_size(size: int, draft: MessageDraft) -> int:
    """Drop the answer if too little memory is left for this size; return the size at which to check again."""
    try:
        check_memory(size)
    except MemoryError:
        draft.clear()
        raise
    return size + LARGE


async def _record_reply(run: Run, journal: Journal, reply: Message) -> None:
    """Record a reply. Large ones are encoded several times, so only one of them is recorded at a time."""
    large = len(reply.text) > LARGE
    async with session_lock(run.scope.governance.workers).run if large else nullcontext():
        if large:
            check_memory(len(reply.text))
        request, contents = run.take_request_record()
        hold = not large and _may_hold(run, reply)
        on_stored = partial(run.request_recorder.mark_stored, contents)
        recording = journal.record_reply(
            reply, run.settings.id, run.reply_usage, request, contents, hold=hold, on_stored=on_stored
        )
        await (recording if hold else finish_despite_cancel(recording))  # to hold it waits for nothing


def _may_hold(run: Run, reply: Message) -> bool:
    """Return whether a reply is recorded with the next step, which is the end of the turn, or follows at once."""
    calls = reply.tool_calls
    if calls:
        return len(calls) == 1 and run.scope.runs_at_once(calls[0])
    return run.is_final and reply.metadata.get("stop_reason") != "pause"


async def _handle_other(run: Run, chunk: base.Chunk, call: ModelCallTrace) -> None:
    """Handle a chunk other than text; a reset settles the usage of the withdrawn attempt."""
    if type(chunk) is base.ResetChunk:
        call.restart()
        if run.scope.budget is not None:
            await _reserve_again(run, run.scope.budget, chunk.usage)
    _handle_chunk(run, chunk)


def _handle_chunk(run: Run, chunk: base.Chunk) -> None:
    """Handle the chunk types that are less frequent than text."""
    if type(chunk) is base.ThinkingChunk:
        run.draft.add_thinking(chunk.text, chunk.signature)
        if chunk.text:
            run.emit(events.StreamThinking(run.id, chunk.text))
    elif type(chunk) is base.ToolCallChunk:
        call = chunk.call
        id = run.unique_call_id(call.id)
        run.draft.add_call(call if id == call.id else msgspec.structs.replace(call, id=id), chunk.after)
    elif type(chunk) is base.OpaqueChunk:
        run.draft.add_part(Opaque(chunk.vendor, chunk.block))
    elif type(chunk) is base.ResetChunk:
        run.draft.clear()
        run.emit(events.StreamReset(run.id, chunk.attempt))


def _estimate_usage(usage: events.Usage, request: base.Request) -> events.Usage:
    tokens = sum([approximate_tokens(message) for message in request.messages])
    return events.Usage(tokens, usage.output_tokens, usage.cached_tokens, estimated=True)


def _reply_metadata(done: base.DoneChunk, usage: events.Usage, provider: str, run: Run) -> dict[str, object]:
    metadata: dict[str, object] = {
        "stop_reason": done.stop_reason,
        "provider": provider,
        "speaker": run.settings.id,
        **usage.to_metadata(),
    }
    if run.handoffs or run.options.team != _NO_HANDOFFS:
        metadata["agent"] = run.settings.id
    if done.model:
        metadata["model"] = done.model
    if run.warnings:
        metadata["warnings"] = list(run.warnings.values())
    if done.stop_reason == "length":
        metadata["truncated"] = True
    if done.stop_reason == "refusal":
        metadata["refused"] = True
        if done.detail:
            metadata["refusal"] = done.detail
    return metadata


async def _intercept(run: Run, reply: Message) -> Message:
    """Apply interceptors to the reply; text that they change is withdrawn from the stream and streamed again."""
    try:
        *before, changed = await run.interceptors.incoming(reply, run.context)
    except Exception:  # refused, or the interceptor failed: either way the text is withdrawn
        run.replace_last_text(reply.text, "")
        raise
    for message in before:
        run.add(message)
    run.replace_last_text(reply.text, changed.text)
    if changed is reply and not before:
        return reply
    added: dict[str, object] = {"added": [message.id for message in before]} if before else {}
    return msgspec.structs.replace(changed, metadata={**reply.metadata, **changed.metadata, **added})
