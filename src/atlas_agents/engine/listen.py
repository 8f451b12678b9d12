"""Hearing the model out: chunks become events as they come, and a message when it is complete."""

from contextlib import aclosing

from atlas_agents.core.errors import ProviderError
from atlas_agents.core.events import StreamChunk, StreamReset, StreamThinking, Usage
from atlas_agents.core.messages import Message, Opaque, ToolCall
from atlas_agents.core.tokens import approximate_tokens
from atlas_agents.core.whole import whole
from atlas_agents.engine.lineup import Lineup
from atlas_agents.engine.request import build_request
from atlas_agents.engine.run import Run
from atlas_agents.providers.base import (
    Chunk,
    DoneChunk,
    OpaqueChunk,
    Request,
    ResetChunk,
    TextChunk,
    ThinkingChunk,
    ToolCallChunk,
)


async def listen(run: Run) -> Message:
    """The model's next message. A history that is too long for it is shortened once.

    What was heard before a sudden end is not asked for again, and what is heard is kept before anything comes of it.
    """
    journal = run.desk.journal
    if journal is not None and (heard := journal.next_reply()) is not None:
        run.said.append(heard.text)
        return heard
    if journal is not None and (office := run.desk.house.office) is not None:
        await journal.when_read(office.tenancy.check_tokens)
    reply = await _intercepted(run, await _ask(run))
    if journal is not None:
        await whole(journal.reply(reply, run.settings.id, run.heard))
    return reply


async def _ask(run: Run) -> Message:
    request = await build_request(run)
    try:
        return await _hear(run, request)
    except ProviderError as error:
        shorter = run.history.halved(run.messages)
        if error.kind != "context_length" or len(shorter.shown(run.messages)) == len(request.messages):
            raise
        run.history = shorter
        return await _hear(run, await build_request(run))


async def _hear(run: Run, request: Request) -> Message:
    emit, id, draft = run.emit, run.id, run.draft
    done: DoneChunk | None = None
    async with aclosing(run.provider.stream(request)) as chunks:
        async for chunk in chunks:
            if type(chunk) is TextChunk:
                draft.words.append(chunk.text)
                emit(StreamChunk(id, chunk.text))
            elif type(chunk) is DoneChunk:
                done = chunk
            else:
                _take(run, chunk)
    if done is None:
        raise ProviderError("the stream ended without saying that the message is complete", "incomplete")
    usage = done.usage if done.usage.input_tokens else _estimated(done.usage, request)
    run.heard = usage = run.count(done.model or run.provider.id, usage)
    return Message("assistant", run.finish_draft(), metadata=_metadata(done, usage, run))


def _take(run: Run, chunk: Chunk) -> None:
    """The rarer chunks."""
    if type(chunk) is ThinkingChunk:
        run.draft.think(chunk.text, chunk.signature)
        if chunk.text:
            run.emit(StreamThinking(run.id, chunk.text))
    elif type(chunk) is ToolCallChunk:
        call = chunk.call
        run.draft.put(ToolCall(run.unique_id(call.id), call.name, call.arguments, call.malformed))
    elif type(chunk) is OpaqueChunk:
        run.draft.put(Opaque(chunk.vendor, chunk.block))
    elif type(chunk) is ResetChunk:
        run.draft.withdraw()
        run.emit(StreamReset(run.id, chunk.attempt))


def _estimated(usage: Usage, request: Request) -> Usage:
    counted = sum([approximate_tokens(message) for message in request.messages])
    return Usage(counted, usage.output_tokens, usage.cached_tokens, estimated=True)


def _metadata(done: DoneChunk, usage: Usage, run: Run) -> dict[str, object]:
    found: dict[str, object] = {
        "stop_reason": done.stop_reason,
        "provider": run.provider.id,
        "usage": {"input": usage.input_tokens, "output": usage.output_tokens, "cached": usage.cached_tokens},
    }
    if run.hand_overs or run.terms.team != Lineup():
        found["agent"] = run.settings.id
    if usage.cost is not None:
        found["cost"] = round(usage.cost, 8)
    if usage.estimated:
        found["estimated"] = True
    if done.model:
        found["model"] = done.model
    if done.stop_reason == "length":
        found["truncated"] = True
    if done.stop_reason == "refusal":
        found["refused"] = True
    return found


async def _intercepted(run: Run, reply: Message) -> Message:
    """The reply as interceptors leave it; changed words are withdrawn and said anew, so that all hear the same."""
    if not run.interceptors.watches_incoming:
        return reply
    try:
        *before, changed = await run.interceptors.incoming(reply)
    except Exception:  # refused, or the interceptor failed: either way the words do not stand
        run.say_instead(reply.text, "")
        raise
    for message in before:
        run.add(message)
    run.say_instead(reply.text, changed.text)
    return changed
