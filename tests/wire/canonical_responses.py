"""Canonical responses, which tests split and cut at every byte, and their decoded form."""

from collections.abc import Iterable
from dataclasses import dataclass

from wire_setup import ANTHROPIC, GEMINI, OPENAI, RESPONSES, Wire

from atlas_agents import ToolCall, Usage
from atlas_agents.providers.base import Chunk, DoneChunk, OpaqueChunk, TextChunk, ThinkingChunk, ToolCallChunk
from atlas_agents.providers.http import StreamReader
from sse_events import a, g, o, r

PAY_BOB = '{"to":"bob","amount":5}'
PAY_EVE = '{"to":"éve 😀","amount":-1}'

CALLS = [("c1", "pay", PAY_BOB), ("c2", "pay", PAY_EVE)]


@dataclass(frozen=True)
class Body:
    """One response as events, and after how many of them something is shown and the message is complete."""

    id: str
    wire: Wire
    events: list[bytes]
    first: int
    last: int
    tools: bool

    @property
    def bytes(self) -> bytes:
        return b"".join(self.events)

    @property
    def complete_at(self) -> int:
        """The number of bytes after which the message is complete."""
        return len(b"".join(self.events[: self.last]))

    def reader(self) -> StreamReader:
        return self.wire.reader()

    def __repr__(self) -> str:
        return self.id


@dataclass(frozen=True)
class DecodedMessage:
    """A decoded message, independent of how its bytes were split."""

    text: str
    thoughts: tuple[tuple[str, str], ...]
    blocks: tuple[str, ...]
    calls: tuple[ToolCall, ...]
    stop: str
    model: str
    usage: Usage


def decode(reader: StreamReader, pieces: Iterable[bytes]) -> DecodedMessage:
    """Feed all pieces and finish; a tool call before the end of the message is an error of the reader."""
    early = [chunk for piece in pieces for chunk in reader.feed(piece)]
    assert not [chunk for chunk in early if isinstance(chunk, ToolCallChunk | DoneChunk)]
    return _joined(early + reader.finish())


def _joined(chunks: list[Chunk]) -> DecodedMessage:
    *rest, done = chunks
    assert isinstance(done, DoneChunk)
    thoughts: list[tuple[str, str]] = []
    thought = ""
    for chunk in rest:
        if isinstance(chunk, ThinkingChunk):
            thought += chunk.text
            if chunk.signature:
                thoughts.append((thought, chunk.signature))
                thought = ""
    return DecodedMessage(
        "".join([chunk.text for chunk in rest if isinstance(chunk, TextChunk)]),
        (*thoughts, (thought, "")),
        tuple(repr(chunk.block) for chunk in rest if isinstance(chunk, OpaqueChunk)),
        tuple(chunk.call for chunk in rest if isinstance(chunk, ToolCallChunk)),
        done.stop_reason,
        done.model,
        done.usage,
    )


_THOUGHT = [
    a.start(),
    a.open(0, "thinking"),
    a.thinking(0, "Hm "),
    a.thinking(0, "😀."),
    a.signature(0, "c2ln"),
    a.close(0),
]
BODIES = [
    Body("OpenAI text with emoji", OPENAI, o.says("Hi ", "😀 é", "\u2028!"), 2, 5, False),
    Body("OpenAI two tool calls", OPENAI, o.calls(*CALLS, says="Hm"), 1, 8, True),
    Body(
        "Anthropic text and thinking",
        ANTHROPIC,
        [*_THOUGHT, a.ping, *a.block(1, "Hi ", "😀 é", "\u2028!"), *a.end_with("end_turn")],
        3,
        13,
        False,
    ),
    Body("Anthropic tool use", ANTHROPIC, a.calls(*CALLS, says="Hm"), 3, 15, True),
    Body(
        "Responses text and reasoning",
        RESPONSES,
        r.complete(r.reasoning(0, "Hm 😀."), r.message(1, "Hi ", "😀 é", "\u2028!", phase="final_answer")),
        4,
        16,
        False,
    ),
    Body("Responses tool calls", RESPONSES, r.calls(*CALLS, says="Hm"), 4, 18, True),
    Body(
        "Gemini text and thoughts",
        GEMINI,
        [
            *[
                g.text("Hm 😀.", thought=True),
                g.text("Hi "),
                g.text("😀 é", thoughtSignature="c2ln"),
                g.text("\u2028!"),
            ],
            *[g.text("", thoughtSignature="bW9yZQ=="), g.finish()],
        ],
        1,
        6,
        False,
    ),
    Body("Gemini function calls", GEMINI, g.calls(*CALLS, says="Hm"), 1, 4, True),
]
