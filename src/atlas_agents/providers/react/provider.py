"""ReAct as a dialect: gives tools to a provider that knows only text. The loop above never learns of it."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from atlas_agents.core.errors import ProviderError
from atlas_agents.core.events import Usage
from atlas_agents.core.secret import Secret
from atlas_agents.core.specs import ToolSpec
from atlas_agents.providers.base import (
    Capabilities,
    Chunk,
    DoneChunk,
    Provider,
    Request,
    ResetChunk,
    TextChunk,
    ThinkingChunk,
    ToolCallChunk,
    keys_of,
)
from atlas_agents.providers.react.actions import as_calls
from atlas_agents.providers.react.reader import Piece, Reader
from atlas_agents.providers.react.words import as_text, mended, offered

_REPAIRS = 2


class React:
    """A provider around another. Thoughts come as thinking, the final answer as text, actions as calls.

    A reply that is neither an action nor an answer is asked for again, at most twice.
    """

    def __init__(self, inner: Provider) -> None:
        self.inner = inner

    @property
    def id(self) -> str:
        return self.inner.id

    @property
    def model(self) -> str | None:
        return getattr(self.inner, "model", None)

    @property
    def keys(self) -> tuple[Secret, ...]:
        return keys_of(self.inner)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(streaming=self.inner.capabilities.streaming, tools=True, structured=False)

    async def close(self) -> None:
        if (close := getattr(self.inner, "close", None)) is not None:
            await close()

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        asked, tools = as_text(request), offered(request)
        if not tools:
            async with aclosing(self.inner.stream(asked)) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        spent = Usage()
        for attempt in range(_REPAIRS + 1):
            hearing = _Hearing(tools, attempt, spent)
            async with aclosing(hearing.out(self.inner, asked)) as chunks:
                async for chunk in chunks:
                    yield chunk
            if hearing.complete or not hearing.ended:
                return
            spent = hearing.spent
            yield ResetChunk(attempt + 1)
            asked = mended(asked, hearing.reader.raw)
        raise ProviderError("the model wrote neither an action nor an answer, again after two repairs", "protocol")

    def __repr__(self) -> str:
        return f"React({self.inner!r})"


class _Hearing:
    """One reply, from the first word to what comes of it."""

    def __init__(self, tools: Sequence[ToolSpec], attempt: int, spent: Usage) -> None:
        self.reader = Reader()
        self.complete = self.ended = False
        self.spent = spent
        """Tokens, of the replies before it too."""
        self._tools = tools
        self._attempt = attempt
        self._kept: list[Chunk] = []  # what still stands after a withdrawal
        self._done: DoneChunk | None = None

    async def out(self, inner: Provider, asked: Request) -> AsyncGenerator[Chunk, None]:
        """Chunks as a provider with tools would give them."""
        async with aclosing(inner.stream(asked)) as chunks:
            async for chunk in chunks:
                for made in self._take(chunk):
                    yield made
                if self.reader.stopped:
                    break
        self.ended = self._done is not None or self.reader.stopped
        if not self.ended:
            return  # whoever asked sees that no end came
        for made in self._last():
            yield made

    def _take(self, chunk: Chunk) -> list[Chunk]:
        match chunk:
            case TextChunk(text):
                return self._told(self.reader.feed(text))
            case DoneChunk():
                self._done = chunk
                return []
            case ResetChunk():
                self.reader = Reader()
                self._kept.clear()
                return [chunk]
            case _:
                self._kept.append(chunk)
                return [chunk]

    def _told(self, pieces: list[Piece]) -> list[Chunk]:
        found: list[Chunk] = []
        for piece in pieces:
            if piece.voice == "misread":
                self._kept = [*map(_as_thought, self._kept), ThinkingChunk("\n")]
                found += [ResetChunk(self._attempt + 1), *self._kept]
                continue
            made = TextChunk(piece.text) if piece.voice == "words" else ThinkingChunk(piece.text)
            self._kept.append(made)
            found.append(made)
        return found

    def _last(self) -> list[Chunk]:
        """What was held back, the calls, and the end; nothing if it must be asked for again."""
        found = self._told(self.reader.end())
        done = self._done or DoneChunk(Usage(0, len(self.reader.raw) // 4, estimated=True))
        self.spent += done.usage
        calls, answer = as_calls(self.reader.actions, self._tools)
        if done.stop_reason == "length":
            calls, answer = [], ""  # what was cut off is never run, and neither is what stands beside it
        said = not self.reader.actions and self.reader.said_something
        self.complete = bool(calls or answer or said) or done.stop_reason in ("length", "refusal")
        if not self.complete:
            return []
        found += [TextChunk(answer)] if answer else []
        found += [ToolCallChunk(call) for call in calls]
        reason = "tool_calls" if calls else "stop" if done.stop_reason == "tool_calls" else done.stop_reason
        return [*found, msgspec.structs.replace(done, stop_reason=reason, usage=self.spent)]


def _as_thought(chunk: Chunk) -> Chunk:
    return ThinkingChunk(chunk.text) if isinstance(chunk, TextChunk) else chunk
