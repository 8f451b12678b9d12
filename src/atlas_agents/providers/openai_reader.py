"""OpenAI's stream, read into our chunks. Lenient about what servers send, strict about what counts as an answer."""

from typing import Any, cast

import msgspec

from atlas_agents.core.errors import ProviderError
from atlas_agents.core.events import Usage
from atlas_agents.core.messages import ToolCall
from atlas_agents.core.text import Joiner, clean
from atlas_agents.providers.arguments import as_written, finished_call
from atlas_agents.providers.base import Chunk, DoneChunk, StopReason, TextChunk, ThinkingChunk, ToolCallChunk
from atlas_agents.providers.faults import fault_of_event
from atlas_agents.providers.sse import EventSplitter, read_event, read_plain

_STOP: dict[str, StopReason] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "refusal",
}


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Cached | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    model: str | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Event)


class _Open:
    """A call that is still being written."""

    __slots__ = ("id", "index", "name", "pieces")

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self.pieces: list[str] = []


class OpenAIReader:
    """Reads one answer. Choice 0 only; what comes after its finish reason is not heard, its usage apart."""

    def __init__(self) -> None:
        self.heard = 0
        self.complete = False
        self.closed = False
        self._events = EventSplitter()
        self._joiner = Joiner()
        self._thoughts = Joiner()
        self._stop = ""
        self._refused = False
        self._calls: list[_Open] = []
        self._usage: _Usage | None = None
        self._model = ""
        self._said = 0

    def feed(self, piece: bytes) -> list[Chunk]:
        chunks: list[Chunk] = []
        for name, data in self._events.feed(piece):
            if data == b"[DONE]":
                self.closed = self.complete
            elif data and not self.closed:
                self._take(name, data, chunks)
        return chunks

    def whole(self, body: bytes) -> list[Chunk]:
        chunks: list[Chunk] = []
        self._take(b"", body, chunks)
        return chunks + self.finish()

    def finish(self) -> list[Chunk]:
        if not self.complete:
            if self.heard == 0:
                raise ProviderError("the answer was empty: not one event of a chat completion came", "empty_response")
            raise ProviderError("the stream ended before its finish_reason", "incomplete")
        stop = "refusal" if self._refused else _STOP.get(self._stop, "other")
        chunks: list[Chunk] = []
        if rest := self._joiner.rest():
            chunks.append(TextChunk(rest))
        calls = self._finished_calls(cut=stop == "length") if stop in ("stop", "tool_calls", "length") else []
        chunks += [ToolCallChunk(call) for call in calls]
        if not calls and not self._said and stop in ("stop", "tool_calls"):
            raise ProviderError("the answer was empty: it ended without a word or a call", "empty_response")
        chunks.append(DoneChunk(_count(self._usage, self._said), stop, self._model))
        return chunks

    def _take(self, name: bytes, data: bytes, chunks: list[Chunk]) -> None:
        if name == b"error":
            raise fault_of_event(read_plain(data))
        event = read_event(_decoder, data)
        if event.error is not None:
            raise fault_of_event({"error": event.error})
        if event.usage is not None:
            self._usage = event.usage
        if event.model and not self._model:
            self._model = clean(event.model)
        if not event.choices or self.complete:
            return
        for choice in event.choices:
            if choice.index == 0:
                self._choose(choice, chunks)

    def _choose(self, choice: _Choice, chunks: list[Chunk]) -> None:
        delta = choice.delta or choice.message
        if delta is not None:
            self.heard += 1
            self._say(delta, chunks)
            for place, part in enumerate(delta.tool_calls or ()):
                if choice.message is not None:  # each entry of a whole answer is a call, whatever id it has
                    part.index = place
                self._write(part)
        if choice.finish_reason:
            self.heard += 1
            self.complete, self._stop = True, choice.finish_reason

    def _say(self, delta: _Delta, chunks: list[Chunk]) -> None:
        if delta.refusal:
            self._refused = True
        if content := delta.content or delta.refusal:
            self._said += len(content)
            if text := self._joiner.add(content):
                chunks.append(TextChunk(text))
        if (thought := delta.reasoning_content or delta.reasoning) and (text := self._thoughts.add(thought)):
            chunks.append(ThinkingChunk(text))

    def _write(self, part: _Call) -> None:
        """Add to the call that this piece belongs to; a new id means a new call, whatever the index says."""
        call = self._call_of(part)
        call.id = call.id or clean(part.id or "")
        if part.function is None:
            return
        call.name = call.name or clean(part.function.name or "")
        arguments = part.function.arguments
        if isinstance(arguments, str):
            call.pieces.append(arguments)
        elif arguments is not None:
            call.pieces.append(as_written(arguments))

    def _call_of(self, part: _Call) -> _Open:
        for call in reversed(self._calls):
            same_place = part.index is None or part.index == call.index
            if same_place and (not part.id or not call.id or clean(part.id) == call.id):
                if part.index is None and part.function and part.function.name and call.name and not part.id:
                    break  # neither index nor id, but a name of its own: a new call
                return call
        self._calls.append(_Open(part.index))
        return self._calls[-1]

    def _finished_calls(self, *, cut: bool) -> list[ToolCall]:
        return [finished_call(call.id, call.name, "".join(call.pieces), cut=cut) for call in self._calls]


def _count(usage: _Usage | None, said: int) -> Usage:
    if usage is None or usage.completion_tokens is None:
        return Usage(output_tokens=round(said / 3.6), estimated=True)
    cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None
    return Usage(usage.prompt_tokens or 0, usage.completion_tokens, cached or 0)


def first_model(body: object) -> str | None:
    """The id of the first model in an answer of `/models`."""
    listed = cast(dict[str, Any], body).get("data") if isinstance(body, dict) else None
    for entry in cast(list[Any], listed) if isinstance(listed, list) else []:
        if isinstance(entry, dict) and isinstance(name := cast(dict[str, Any], entry).get("id"), str):
            return name
    return None
