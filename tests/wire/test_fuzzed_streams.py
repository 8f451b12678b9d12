"""Fuzzing: randomly mutated responses decode to a complete message or an error, with calls only at the end."""

import json
import random
from collections.abc import Callable, Sequence

import pytest
from canonical_responses import BODIES, Body, decode
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_setup import ANTHROPIC

from atlas_agents import Message, Opaque, Part, ProviderError, Request, Text, Thinking, ToolResult, tool_message, user
from atlas_agents.providers import anthropic, gemini, openai, openai_responses
from atlas_agents.providers.base import Chunk, DoneChunk, OpaqueChunk, TextChunk, ThinkingChunk, ToolCallChunk
from atlas_agents.providers.catalogue import find_profile
from sse_events import a

NASTY = [
    b"\n\n",
    b"\r",
    b"\r\n\r\n",
    b"\x00",
    b"\xff",
    b"\xed\xa0\x80",
    b"\\ud83d",
    b'"',
    b"}",
    b"null",
    b"NaN",
    b"-1",
    b"1e999",
    b"9" * 5000,
    b"[" * 3000,
    b"[" * 60 + b"]" * 60,
    b"[" * 900 + b"]" * 900,
    b'{"a":' * 3000,
    b"data: ",
    b"data: [DONE]\n\n",
    b"event: error\n",
    b"event: message_stop\n",
    b": comment\n\n",
    b"\xef\xbb\xbf",
]
Mangle = Callable[[random.Random, bytes], bytes]


def _span(rng: random.Random, data: bytes) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.choice((1, 1, 2, 5, 30, 200)))


def _delete(rng: random.Random, data: bytes) -> bytes:
    start, end = _span(rng, data)
    return data[:start] + data[end:]


def _repeat(rng: random.Random, data: bytes) -> bytes:
    start, end = _span(rng, data)
    return data[:end] + data[start:]


def _insert(rng: random.Random, data: bytes) -> bytes:
    start, _ = _span(rng, data)
    return data[:start] + (rng.choice(NASTY) if rng.random() < 0.7 else rng.randbytes(3)) + data[start:]


def _replace(rng: random.Random, data: bytes) -> bytes:
    """Replace a JSON value with another one."""
    marks = [index for index, byte in enumerate(data) if byte in b':,"{}[]']
    if len(marks) < 2:
        return data
    index = rng.randrange(len(marks) - 1)
    return data[: marks[index] + 1] + rng.choice(NASTY) + data[marks[index + 1] :]


def _events(data: bytes) -> list[bytes]:
    return [event + b"\n\n" for event in data.split(b"\n\n") if event]


def _reorder(rng: random.Random, data: bytes) -> bytes:
    events = _events(data)
    if len(events) > 1:
        one, other = rng.sample(range(len(events)), 2)
        events[one], events[other] = events[other], events[one]
    return b"".join(events)


def _drop(rng: random.Random, data: bytes) -> bytes:
    events = _events(data)
    if events:
        del events[rng.randrange(len(events))]
    return b"".join(events)


def _twice(rng: random.Random, data: bytes) -> bytes:
    events = _events(data)
    if events:
        events.insert(rng.randrange(len(events) + 1), rng.choice(events))
    return b"".join(events)


UNKNOWN = Body(
    "Anthropic unknown blocks",
    ANTHROPIC,
    [
        *[a.start(), a.open(0, "hologram", light={"lumens": [3, 0.5]}), a.close(0)],
        *[
            a.open(1, "server_tool_use", id="s", name="web", input={}),
            a.json(1, '{"q":'),
            a.json(1, '"é😀"}'),
            a.close(1),
        ],
        *[*a.block(2, "Hi"), *a.end_with("end_turn")],
    ],
    10,
    11,
    False,
)
every_body = pytest.mark.parametrize("body", [*BODIES, UNKNOWN], ids=repr)
MANGLES: Sequence[Mangle] = (_delete, _repeat, _insert, _replace, _reorder, _drop, _twice)


def split_randomly(rng: random.Random, data: bytes) -> list[bytes]:
    cut_points = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 1, 3, 20))))
    return [data[start:end] for start, end in zip([0, *cut_points], [*cut_points, len(data)], strict=True)]


def to_part(chunk: Chunk) -> Part | None:
    match chunk:
        case TextChunk(text):
            return Text(text)
        case ThinkingChunk(text, signature):
            return Thinking(text, signature)
        case ToolCallChunk(call):
            return call
        case OpaqueChunk(vendor, block):
            return Opaque(vendor, block)
        case _:
            return None


def check(body: Body, pieces: Sequence[bytes]) -> None:
    """Check for an error, or a message that can be stored, decoded and sent to either vendor."""
    reader = body.reader()
    chunks: list[Chunk] = []
    try:
        for piece in pieces:
            chunks += reader.feed(piece)
            assert not [chunk for chunk in chunks if isinstance(chunk, ToolCallChunk | DoneChunk)]
        chunks += reader.finish()
    except ProviderError:
        return
    done = chunks[-1]
    assert isinstance(done, DoneChunk)
    parts = tuple(part for chunk in chunks if (part := to_part(chunk)) is not None)
    message = Message("assistant", parts, metadata={"model": done.model})
    assert Message.from_json(message.to_json()).parts == parts
    answers = tool_message(*(ToolResult(call.id, "ok", "done") for call in message.tool_calls))
    request = Request([user("Hi"), message, *([answers] if answers.parts else []), user("Go on")])
    json.loads(openai.encode_request(request, "m-1"))
    json.loads(anthropic.encode_request(request, "m-1"))
    json.loads(gemini.encode_request(request, find_profile("gemini-3.8-flash")))
    json.loads(openai_responses.encode_request(request, "m-1", "openai", find_profile("gpt-5.6")))


@every_body
@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**64))
def test_mutated_stream_gives_an_error_or_a_complete_message(body: Body, seed: int) -> None:
    rng = random.Random(seed)
    data = body.bytes
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        data = rng.choice(MANGLES)(rng, data)
    check(body, split_randomly(rng, data))


@every_body
@settings(max_examples=40, deadline=None)
@given(data=st.binary(max_size=400))
def test_random_bytes_are_an_error(body: Body, data: bytes) -> None:
    with pytest.raises(ProviderError):
        decode(body.reader(), [data])
