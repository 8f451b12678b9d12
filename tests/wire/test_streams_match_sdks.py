"""Valid streams decode as in the vendors' SDKs."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from sdk_clients import anthropic_client, openai_client
from wire_setup import ANTHROPIC, OPENAI, RESPONSES, TIMEOUT, Wire

from atlas_agents import Agent, Atlas, DoneChunk, Thinking, Usage
from atlas_agents.providers.anthropic import AnthropicReader
from fault_server import FaultServer, byte_by_byte, response
from sse_events import a, o, r

PAY = '{"to":"bob","amount":5}'
EVE = '{"to":"éve 😀","amount":-1.5e3,"why":[null,true,{"a":"\\u00e9\\n"}]}'
TEXTS = ["Hi ", "😀 é ", "\u2028\u0000\x7f", "مرحبا ", "{}[]\\\"'\n\n", "data: x\n"]


@dataclass(frozen=True)
class DecodedMessage:
    """A message as one decoder returns it."""

    text: str
    calls: Sequence[tuple[str, str, Any]]
    thoughts: Sequence[tuple[str, str]]
    input: int
    output: int
    stop: str


def crlf(events: Sequence[bytes]) -> list[bytes]:
    return [event.replace(b"\n", b"\r\n") for event in events]


def with_between(events: Sequence[bytes], between: bytes) -> list[bytes]:
    return [piece for event in events for piece in (between, event)]


def thinking(signature: str) -> list[bytes]:
    return [a.open(0, "thinking"), a.thinking(0, "Hm "), a.thinking(0, "😀."), a.signature(0, signature), a.close(0)]


def _overlapping(first: list[bytes], second: list[bytes]) -> list[bytes]:
    """Return a response whose second item is added before the first is done."""
    *begun, done = first
    whole = r.complete(first, second)
    return [whole[0], *begun, second[0], done, *second[1:], whole[-1]]


GOOD: dict[str, tuple[Wire, list[bytes]]] = {
    "text (openai)": (OPENAI, o.says("Hi", " there")),
    "unicode (openai)": (OPENAI, o.says(*TEXTS)),
    "unicode byte by byte (openai)": (OPENAI, byte_by_byte(o.says(*TEXTS))),
    "CRLF (openai)": (OPENAI, crlf(o.says("Hi ", "😀"))),
    "comments (openai)": (OPENAI, with_between(o.says("Hi ", "there"), o.comment)),
    "a call (openai)": (OPENAI, o.calls(("c1", "pay", PAY))),
    "text and two calls (openai)": (OPENAI, o.calls(("c1", "pay", PAY), ("c2", "pay", EVE), says="Paying.")),
    "interleaved calls (openai)": (
        OPENAI,
        [
            *[o.call(0, "c1", "pay", PAY[:4]), o.call(1, "c2", "pay", EVE[:9]), o.call(0, None, None, PAY[4:])],
            *[o.call(1, None, None, EVE[9:]), *o.end_with("tool_calls")],
        ],
    ),
    "empty object as arguments (openai)": (OPENAI, o.calls(("c1", "look", "{}"))),
    "usage with the finish (openai)": (
        OPENAI,
        [
            o.text("Hi"),
            o.event(
                choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}],
                usage={"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13},
            ),
            o.done,
        ],
    ),
    "azure's first chunk (openai)": (OPENAI, [o.event(choices=[], prompt_filter_results=[]), *o.says("Hi")]),
    "text (anthropic)": (ANTHROPIC, a.says("Hi", " there")),
    "unicode (anthropic)": (ANTHROPIC, a.says(*TEXTS)),
    "unicode byte by byte (anthropic)": (ANTHROPIC, byte_by_byte(a.says(*TEXTS))),
    "CRLF (anthropic)": (ANTHROPIC, crlf(a.says("Hi ", "😀"))),
    "pings and comments (anthropic)": (ANTHROPIC, with_between(a.says("Hi ", "there"), a.ping + a.comment)),
    "a call (anthropic)": (ANTHROPIC, a.calls(("c1", "pay", PAY))),
    "text and two calls (anthropic)": (ANTHROPIC, a.calls(("c1", "pay", PAY), ("c2", "pay", EVE), says="Paying.")),
    "empty arguments (anthropic)": (ANTHROPIC, a.calls(("c1", "look", ""))),
    "thinking and signature (anthropic)": (
        ANTHROPIC,
        [a.start(), *thinking("c2ln"), *a.block(1, "Hi"), *a.end_with("end_turn")],
    ),
    "thinking, text and a call (anthropic)": (
        ANTHROPIC,
        [
            *[a.start(21), *thinking("c2ln"), *a.block(1, "Paying."), *a.tool_block(2, "c1", "pay", EVE)],
            *a.end_with("tool_use"),
        ],
    ),
    "cut by max_tokens (anthropic)": (ANTHROPIC, [a.start(), *a.block(0, "Hi"), *a.end_with("max_tokens")]),
    "a stop sequence (anthropic)": (ANTHROPIC, [a.start(), *a.block(0, "Hi"), *a.end_with("stop_sequence")]),
    "a refusal (anthropic)": (ANTHROPIC, [a.start(), *a.block(0, "No"), *a.end_with("refusal")]),
    "two blocks of text (anthropic)": (
        ANTHROPIC,
        [a.start(), *a.block(0, "Hi "), *a.block(1, "there"), *a.end_with("end_turn")],
    ),
    "text (responses)": (RESPONSES, r.says("Hi", " there")),
    "unicode (responses)": (RESPONSES, r.says(*TEXTS)),
    "unicode byte by byte (responses)": (RESPONSES, byte_by_byte(r.says(*TEXTS))),
    "CRLF (responses)": (RESPONSES, crlf(r.says("Hi ", "😀"))),
    "comments (responses)": (RESPONSES, with_between(r.says("Hi ", "there"), r.comment)),
    "a call (responses)": (RESPONSES, r.calls(("c1", "pay", PAY))),
    "text and two calls (responses)": (RESPONSES, r.calls(("c1", "pay", PAY), ("c2", "pay", EVE), says="Paying.")),
    "empty object as arguments (responses)": (RESPONSES, r.calls(("c1", "look", "{}"))),
    "reasoning and text (responses)": (RESPONSES, r.complete(r.reasoning(0, "Hm 😀."), r.message(1, "Hi"))),
    "two summaries and a call (responses)": (
        RESPONSES,
        r.complete(r.reasoning(0, "Hm.", "Ah."), r.message(1, "Paying."), r.call(2, "c1", "pay", EVE)),
    ),
    "reasoning without a summary (responses)": (RESPONSES, r.complete(r.reasoning(0), r.message(1, "Hi"))),
    "two messages (responses)": (
        RESPONSES,
        r.complete(r.message(0, "Hi ", phase="commentary"), r.message(1, "there", phase="final_answer")),
    ),
    "items that overlap (responses)": (RESPONSES, _overlapping(r.call(0, "c1", "pay", PAY), r.message(1, "Hi"))),
}
OUR_STOP = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "refusal": "refusal",
}


async def decode_with_openai_sdk(url: str) -> DecodedMessage:
    async with openai_client(url) as client:
        question: Any = {"role": "user", "content": "Hi"}
        options: Any = {"include_usage": True}
        async with client.chat.completions.stream(model="m-1", messages=[question], stream_options=options) as stream:
            final = await stream.get_final_completion()
    reply_texts = final.choices[0].message
    calls: list[tuple[str, str, Any]] = [
        (call.id, call.function.name, json.loads(call.function.arguments)) for call in reply_texts.tool_calls or []
    ]
    assert final.usage is not None
    usage = final.usage
    reason = OUR_STOP[final.choices[0].finish_reason]
    return DecodedMessage(reply_texts.content or "", calls, [], usage.prompt_tokens, usage.completion_tokens, reason)


async def decode_with_responses_sdk(url: str) -> DecodedMessage:
    async with openai_client(url) as client, client.responses.stream(model="m-1", input="Hi") as stream:
        final: Any = await stream.get_final_response()
    calls: list[tuple[str, str, Any]] = [
        (item.call_id, item.name, json.loads(item.arguments)) for item in final.output if item.type == "function_call"
    ]
    summaries = [item.summary for item in final.output if item.type == "reasoning" and item.summary]
    thoughts = [("\n\n".join([part.text for part in summary]), "") for summary in summaries]
    usage, reason = final.usage, "tool_calls" if calls else "stop"
    return DecodedMessage(final.output_text, calls, thoughts, usage.input_tokens, usage.output_tokens, reason)


async def decode_with_anthropic_sdk(url: str) -> DecodedMessage:
    async with anthropic_client(url) as client:
        question: Any = {"role": "user", "content": "Hi"}
        async with client.messages.stream(model="m-1", max_tokens=99, messages=[question]) as stream:
            final = await stream.get_final_message()
    return DecodedMessage(
        "".join(block.text for block in final.content if block.type == "text"),
        [(block.id, block.name, block.input) for block in final.content if block.type == "tool_use"],
        [(block.thinking, block.signature) for block in final.content if block.type == "thinking"],
        final.usage.input_tokens,
        final.usage.output_tokens,
        OUR_STOP[final.stop_reason or ""],
    )


SDKS = {
    "openai": decode_with_openai_sdk,
    "anthropic": decode_with_anthropic_sdk,
    "responses": decode_with_responses_sdk,
}


async def decode_with_atlas(wire: Wire, url: str) -> DecodedMessage:
    agent = Agent("assistant", model=wire.provider(url), max_rounds=1)
    async with Atlas([agent]) as atlas:
        reply = await atlas.send("Hi").reply()
    usage = reply.metadata["usage"]
    return DecodedMessage(
        reply.text,
        [(call.id, call.name, call.arguments) for call in reply.tool_calls],
        [(part.text, part.signature) for part in reply.parts if isinstance(part, Thinking)],
        usage["input"],
        usage["output"],
        reply.metadata["stop_reason"],
    )


@pytest.mark.parametrize("name", GOOD)
async def test_stream_decodes_like_the_vendor_sdk(name: str) -> None:
    wire, body = GOOD[name]
    async with FaultServer(response(*body), response(*body)) as server, asyncio.timeout(TIMEOUT):
        ours = await decode_with_atlas(wire, server.url)
        theirs = await SDKS[wire.name](server.url)
    assert ours == theirs


def test_cached_tokens_count_as_input_tokens() -> None:
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 3, "cache_read_input_tokens": 20}}}
    events: list[dict[str, Any]] = [
        start,
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hi"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    body = b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)
    reader = AnthropicReader()
    reader.feed(body)
    done = reader.finish()[-1]
    assert isinstance(done, DoneChunk)
    assert done.usage == Usage(23, 1, 20)
