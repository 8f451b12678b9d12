"""Unusual but complete responses (P03, P04, P11–P18, P25, P26, P39–P44) are decoded without loss."""

from collections.abc import Sequence
from typing import Any

import pytest
from stream_cases import (
    DONE,
    PAID,
    PAY,
    Look,
    StreamCase,
    a_tool,
    call_case,
    make_params,
    malformed_case,
    o_calls,
    text_case,
)
from wire_setup import ANTHROPIC, GEMINI, OPENAI, RESPONSES, FastClock, Turn, Wire, WireSetup, open_setup

from atlas_agents import Opaque, Thinking
from fault_server import FaultServer, Pause, Step, broken_response, byte_by_byte, response
from sse_events import a, g, o, r

EMOJI = "Hi 😀 é\u2028!"
HALF = r'{"to":"\ud83d","amount":5}'
REDACTED = {"type": "redacted_thinking", "data": "b3BhcXVl"}
SEARCH = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "bob"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"title": "Bob"}]}
FUTURE = {"type": "hologram", "light": {"lumens": 3}}
STRANGE = b'event: aurora\ndata: {"type":"aurora","delta":"none","index":"x"}\n\n'
HI = [a.start(), *a.block(0, "Hi")]


def after(*blocks: bytes) -> list[bytes]:
    """Return a complete response: these blocks, then Hi."""
    return [a.start(), *blocks, *a.block(9, "Hi"), *a.end_with("end_turn")]


def complete_block(index: int, block: dict[str, Any]) -> list[bytes]:
    return [a.event("content_block_start", index=index, content_block=block), a.close(index)]


def thinking(*texts: str, signature: str = "") -> list[bytes]:
    signed = [a.signature(0, signature)] if signature else []
    return [a.open(0, "thinking"), *(a.thinking(0, word) for word in texts), *signed, a.close(0)]


def lines(events: Sequence[bytes], old: bytes, new: bytes) -> list[bytes]:
    return [event.replace(old, new) for event in events]


def thought(text: str, signature: str = "") -> Look:
    def look(_: WireSetup, turn: Turn) -> None:
        assert turn.added[-1].parts[0] == Thinking(text, signature)
        assert turn.thoughts == text

    return look


def keeps(*blocks: dict[str, Any]) -> Look:
    def look(_: WireSetup, turn: Turn) -> None:
        assert [part.block for part in turn.added[-1].parts if isinstance(part, Opaque)] == list(blocks)

    return look


def estimated(_: WireSetup, turn: Turn) -> None:
    assert turn.reply is not None
    assert turn.reply.metadata["estimated"] is True
    assert min(turn.reply.metadata["usage"]["input"], turn.reply.metadata["usage"]["output"]) > 0


def check_resumed(setup: WireSetup, turn: Turn) -> None:
    """Check that a paused turn is sent back unchanged."""
    assert [message.role for message in turn.added] == ["user", "assistant", "assistant"]
    assert setup.server.requests[1].body["messages"][-1]["role"] == "assistant"


ENDS = [
    text_case("P03 done missing", OPENAI, o.text("Hi"), o.finish()),
    StreamCase("P03 reset after finish", OPENAI, [broken_response(o.text("Hi"), o.finish())]),
    text_case("P04 message_stop missing", ANTHROPIC, *HI, a.stop("end_turn")),
    call_case("P04 message_stop missing but tool use stopped", ANTHROPIC, a_tool(PAY)[:-1], PAID),
    text_case("P26 length", OPENAI, o.text("Hi"), *o.end_with("length"), stop_reason="length", truncated=True),
    text_case("P26 max_tokens", ANTHROPIC, *HI, *a.end_with("max_tokens"), stop_reason="length", truncated=True),
    text_case("P39 finish tool_calls but none", OPENAI, o.text("Hi"), *o.end_with("tool_calls")),
    text_case("P39 tool_use but none", ANTHROPIC, *HI, *a.end_with("tool_use")),
    text_case(
        "P40 content_filter", OPENAI, o.text("Hi"), *o.end_with("content_filter"), stop_reason="refusal", refused=True
    ),
    text_case("P40 content_filter without a word", OPENAI, *o.end_with("content_filter"), text="", refused=True),
    text_case(
        "P40 refusal deltas",
        OPENAI,
        o.delta({"refusal": "H"}),
        o.delta({"refusal": "i"}),
        *o.end_with("stop"),
        refused=True,
    ),
    text_case("P40 refusal", ANTHROPIC, *HI, *a.end_with("refusal"), stop_reason="refusal", refused=True),
    text_case("P40 refusal with calls", ANTHROPIC, *a_tool(PAY, stop="refusal"), text="", refused=True),
    text_case(
        "P40 content_filter with calls",
        OPENAI,
        o.call(0, "c", "pay", PAY),
        *o.end_with("content_filter"),
        text="",
        refused=True,
    ),
    StreamCase(
        "P41 pause_turn",
        ANTHROPIC,
        [response(*HI, *a.end_with("pause_turn")), DONE["anthropic"]],
        "Done.",
        look=check_resumed,
    ),
    text_case("P41 unknown stop reason", ANTHROPIC, *HI, *a.end_with("eclipse"), stop_reason="other"),
    text_case(
        "P41 unknown stop reason with calls", ANTHROPIC, *HI, *a.tool_block(1, "c", "pay", PAY), *a.end_with("eclipse")
    ),
    text_case(
        "P41 unknown finish reason with calls",
        OPENAI,
        o.text("Hi"),
        *o_calls(o.call(0, "c", "pay", PAY), finish="eclipse"),
    ),
    text_case("P43 usage missing", OPENAI, o.text("Hi"), o.finish(), o.done, look=estimated),
    text_case(
        "P43 usage null", OPENAI, o.text("Hi"), o.finish(), o.event(choices=[], usage=None), o.done, look=estimated
    ),
    text_case("P43 usage missing", ANTHROPIC, *HI, a.stop("end_turn", None), a.end, look=estimated),
    text_case(
        "P44 double finish",
        OPENAI,
        o.text("Hi"),
        o.finish(),
        o.text("!"),
        o.finish("length"),
        o.done,
        stop_reason="stop",
    ),
    text_case("P44 text after done", OPENAI, *o.says("Hi"), o.text(" you")),
    text_case("P44 calls after finish", OPENAI, o.text("Hi"), o.finish(), o.call(0, "c1", "pay", PAY), o.done),
    text_case("P44 events after message_stop", ANTHROPIC, *a.says("Hi"), *a.says("you")),
]
BYTES = [
    text_case("P12 surrogate pair over two deltas", OPENAI, *o.says("Hi \ud83d", "\ude00!"), text="Hi 😀!"),
    text_case("P12 surrogate pair over two deltas", ANTHROPIC, *a.says("Hi \ud83d", "\ude00!"), text="Hi 😀!"),
    text_case("P12 half a pair before other text", OPENAI, *o.says("Hi \ud83d", "!"), text="Hi \ufffd!"),
    text_case("P12 half a pair at the end", OPENAI, *o.says("Hi \ud83d"), text="Hi \ufffd"),
    text_case("P12 half a pair at the end", ANTHROPIC, *a.says("Hi \ud83d"), text="Hi \ufffd"),
    text_case(
        "P12 surrogate pair over two thoughts",
        OPENAI,
        *[o.delta({"reasoning_content": half}) for half in ("Hm \ud83d", "\ude00")],
        *o.says("Hi"),
        look=thought("Hm 😀"),
    ),
    text_case(
        "P12 surrogate pair over two thoughts",
        ANTHROPIC,
        *after(*thinking("Hm \ud83d", "\ude00", signature="sig")),
        look=thought("Hm 😀", "sig"),
    ),
    call_case(
        "P12 surrogate pair over two pieces of arguments",
        OPENAI,
        o_calls(o.call(0, "c1", "pay", '{"to":"\ud83d'), o.call(0, None, None, '\ude00","amount":5}')),
        [("😀", 5)],
    ),
    call_case(
        "P12 surrogate pair over two pieces of arguments",
        ANTHROPIC,
        [
            *[a.start(), a.tool(0, "c1", "pay"), a.json(0, '{"to":"\ud83d'), a.json(0, '\ude00","amount":5}')],
            *[a.close(0), *a.end_with("tool_use")],
        ],
        [("😀", 5)],
    ),
    malformed_case("P12 half a pair, escaped, in arguments", OPENAI, o.calls(("c1", "pay", HALF))),
    malformed_case("P12 half a pair, escaped, in arguments", ANTHROPIC, a_tool(HALF)),
    text_case(
        "P12 half a pair in a block that is kept",
        ANTHROPIC,
        *after(*complete_block(0, {"type": "x", "y": "\ud83d"})),
        look=keeps({"type": "x", "y": "\ufffd"}),
    ),
    text_case("P13 BOM first", OPENAI, b"\xef\xbb\xbf", *o.says("Hi")),
    text_case("P14 CRLF", OPENAI, *lines(o.says(EMOJI), b"\n", b"\r\n"), text=EMOJI),
    text_case("P14 CR only", OPENAI, *lines([o.text("Hi"), o.finish()], b"\n", b"\r")),
    text_case("P14 no space after data", OPENAI, *lines(o.says("Hi"), b"data: ", b"data:")),
    text_case(
        "P14 no space after data and event", ANTHROPIC, *lines(lines(a.says("Hi"), b"t: ", b"t:"), b"data: ", b"data:")
    ),
    text_case("P14 data over two lines", OPENAI, *lines(o.says("Hi"), b',"choices"', b',\ndata: "choices"')),
    text_case(
        "P14 ids, retries and comments",
        OPENAI,
        b"retry: 5\n\n",
        o.comment,
        *lines(o.says("Hi"), b"data", b"id: 7\ndata"),
    ),
]
SHAPES = [
    text_case(
        "P17 empty choices first, usage last", OPENAI, o.event(choices=[], prompt_filter_results=[]), *o.says("Hi")
    ),
    text_case("P18 choices null", OPENAI, o.event(choices=None), *o.says("Hi")),
    text_case("P18 delta null", OPENAI, o.delta(None), *o.says("Hi")),
    text_case("P18 delta null with the finish", OPENAI, o.text("Hi"), o.delta(None, "stop"), o.done),
    text_case("P18 content and calls null", OPENAI, o.delta({"content": None, "tool_calls": None}), *o.says("Hi")),
    text_case("P18 another choice", OPENAI, o.event(choices=[{"index": 1, "delta": {"content": "No"}}]), *o.says("Hi")),
    text_case("P25 unknown event", ANTHROPIC, a.start(), STRANGE, *a.says("Hi")[1:]),
    text_case(
        "P25 unknown event that is not JSON", ANTHROPIC, a.start(), b"event: aurora\ndata: green\n\n", *a.says("Hi")[1:]
    ),
    text_case("P25 event without data", ANTHROPIC, a.start(), b"event: ping\n\n", *a.says("Hi")[1:]),
    text_case("P25 unknown delta", ANTHROPIC, *HI[:2], a.delta(0, "aurora_delta", colour="green"), *a.says("Hi")[2:]),
    text_case("P25 unknown block", ANTHROPIC, *after(*complete_block(0, FUTURE)), look=keeps(FUTURE)),
    text_case(
        "P25 a tool of the server",
        ANTHROPIC,
        *after(
            a.open(0, "server_tool_use", id="srv_1", name="web_search", input={}),
            a.json(0, '{"query":'),
            a.json(0, '"bob"}'),
            a.close(0),
            *complete_block(1, FOUND),
        ),
        look=keeps(SEARCH, FOUND),
    ),
    text_case(
        "P42 thinking and signature",
        ANTHROPIC,
        *after(*thinking("Hm, ", "bob.", signature="s")),
        look=thought("Hm, bob.", "s"),
    ),
    text_case("P42 thinking without signature", ANTHROPIC, *after(*thinking("Hm")), look=thought("Hm")),
    text_case("P42 signature without text", ANTHROPIC, *after(*thinking(signature="sig")), look=thought("", "sig")),
    text_case("P42 redacted_thinking", ANTHROPIC, *after(*complete_block(0, REDACTED)), look=keeps(REDACTED)),
]


def blocks_are(*blocks: dict[str, Any]) -> Look:
    """Check what is kept verbatim, and that the next request returns it."""

    def look(_: WireSetup, turn: Turn) -> None:
        assert [part for part in turn.added[-1].parts if isinstance(part, Opaque)] == [
            Opaque("google", block) for block in blocks
        ]

    return look


SIGNATURE = {"thoughtSignature": "c2ln"}
CODE = {"executableCode": {"language": "PYTHON", "code": "print(1)"}, "thoughtSignature": "c2ln"}
GEMINI_ENDS = [
    StreamCase("P03 reset after the finish", GEMINI, [broken_response(g.text("Hi"), g.finish())]),
    text_case("P03 finish with the text", GEMINI, g.parts({"text": "Hi"}, finishReason="STOP")),
    text_case("P03 error after the finish", GEMINI, g.text("Hi"), g.finish(), g.error("server_error")),
    text_case("P26 MAX_TOKENS", GEMINI, g.text("Hi"), g.finish("MAX_TOKENS"), stop_reason="length", truncated=True),
    text_case("P40 SAFETY", GEMINI, g.text("Hi"), g.finish("SAFETY"), stop_reason="refusal", refused=True),
    text_case("P40 SAFETY without a word", GEMINI, g.finish("SAFETY"), text="", refused=True, refusal="SAFETY"),
    text_case("P40 SAFETY with calls", GEMINI, g.call("c", "pay", PAY), g.finish("SAFETY"), text="", refused=True),
    text_case(
        "P40 blocked prompt",
        GEMINI,
        g.event(promptFeedback={"blockReason": "BLOCKLIST", "blockReasonMessage": "no"}),
        text="",
        refused=True,
        refusal="the prompt was blocked: BLOCKLIST: no",
    ),
    text_case("P41 unknown finish reason", GEMINI, g.text("Hi"), g.finish("ECLIPSE"), stop_reason="other"),
    text_case(
        "P41 unknown finish reason with calls", GEMINI, g.text("Hi"), g.call("c", "pay", PAY), g.finish("ECLIPSE")
    ),
    text_case("P43 usage missing", GEMINI, g.text("Hi"), g.finish(input=None), look=estimated),
    text_case("P44 finish in every event", GEMINI, *[g.parts({"text": each}, finishReason="STOP") for each in "Hi"]),
    text_case("P44 double finish", GEMINI, g.text("Hi"), g.finish(), g.finish(), stop_reason="stop"),
    call_case("P44 call, then a bare finish", GEMINI, [g.call("c", "pay", PAY), g.finish()], PAID),
    call_case("P44 call and finish in one event", GEMINI, [g.call("c", "pay", PAY, x=1), g.finish()], PAID),
]
GEMINI_BYTES = [
    text_case("P12 surrogate pair over two parts", GEMINI, *g.says("Hi \ud83d", "\ude00!"), text="Hi 😀!"),
    text_case("P12 half a pair at the end", GEMINI, *g.says("Hi \ud83d"), text="Hi \ufffd"),
    text_case(
        "P12 surrogate pair over two thoughts",
        GEMINI,
        *[g.text(half, thought=True) for half in ("Hm \ud83d", "\ude00")],
        *g.says("Hi"),
        look=thought("Hm 😀"),
    ),
    malformed_case("P12 half a pair, escaped, in arguments", GEMINI, [g.call("c1", "pay", HALF), g.finish()]),
    text_case(
        "P12 half a pair in a part that is kept",
        GEMINI,
        g.parts({"hologram": {"y": "\ud83d"}}),
        *g.says("Hi"),
        look=blocks_are({"hologram": {"y": "\ufffd"}}),
    ),
]
GEMINI_SHAPES = [
    text_case("P17 usage first", GEMINI, g.event(usageMetadata={"promptTokenCount": 7}), *g.says("Hi")),
    text_case("P18 candidates null", GEMINI, g.event(candidates=None), *g.says("Hi")),
    text_case("P18 content null", GEMINI, g.event(candidates=[{"content": None}]), *g.says("Hi")),
    text_case("P18 parts null", GEMINI, g.event(candidates=[{"content": {"parts": None}}]), *g.says("Hi")),
    text_case("P18 an empty part", GEMINI, g.parts({}), *g.says("Hi"), look=blocks_are()),
    text_case("P18 another candidate", GEMINI, g.parts({"text": "No"}, index=1), *g.says("Hi")),
    text_case("P18 harmless feedback", GEMINI, g.event(promptFeedback={"safetyRatings": []}), *g.says("Hi")),
    text_case("P25 unknown part", GEMINI, g.parts(CODE), *g.says("Hi"), look=blocks_are(CODE)),
    text_case("P42 thoughts", GEMINI, g.text("Hm, bob.", thought=True), *g.says("Hi"), look=thought("Hm, bob.")),
    text_case(
        "P42 signature on text",
        GEMINI,
        g.text("H"),
        g.text("i", **SIGNATURE),
        g.finish(),
        look=blocks_are(SIGNATURE),
    ),
    text_case(
        "P42 signature on an empty part",
        GEMINI,
        g.text("Hi"),
        g.text("", **SIGNATURE),
        g.finish(),
        look=blocks_are({"text": "", **SIGNATURE}),
    ),
    text_case(
        "P42 signature without text",
        GEMINI,
        g.text("Hi"),
        g.parts(SIGNATURE),
        g.finish(),
        look=blocks_are({"text": "", **SIGNATURE}),
    ),
    text_case(
        "P42 text after a signed one",
        GEMINI,
        g.text("H", **SIGNATURE),
        g.text("i"),
        g.finish(),
        look=blocks_are(SIGNATURE, {}),
    ),
]


HI_R = r.says("Hi")
REFUSAL = {"type": "refusal", "refusal": "Hi"}
REFUSED = {**r.message_item(0), "content": [REFUSAL]}
RAW = {"type": "reasoning", "id": "rs_0", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]}
SEARCHED = {"type": "web_search_call", "id": "ws_0", "status": "completed", "action": {"type": "search"}}
KEPT = {"type": "message", "id": "msg_0", "status": "completed"}


def r_refusal(*pieces: str) -> list[bytes]:
    """A message that is a refusal."""
    deltas = [r.delta("refusal", 0, "msg_0", piece, content_index=0) for piece in pieces]
    return [*r.open_message(), *deltas, r.done(0, REFUSED)]


def r_item(index: int, item: dict[str, Any]) -> list[bytes]:
    return [r.added(index, item), r.done(index, item)]


def r_thoughts(*pieces: str) -> list[bytes]:
    """A reasoning item of a server that does not encrypt it."""
    deltas = [r.delta("reasoning_text", 0, "rs_0", piece, content_index=0) for piece in pieces]
    return [r.added(0, {**RAW, "content": []}), *deltas, r.done(0, RAW)]


RESPONSES_ENDS = [
    StreamCase("P03 reset after the end", RESPONSES, [broken_response(*HI_R)]),
    text_case("P03 done after the end", RESPONSES, *HI_R, o.done),
    text_case("P03 only the end", RESPONSES, HI_R[-1]),
    text_case("P03 no output in the end", RESPONSES, *HI_R[:-1], r.end()),
    text_case("P03 no deltas", RESPONSES, r.start(), *r_item(0, r.message_item(0, "Hi")), r.end()),
    text_case(
        "P26 max_output_tokens",
        RESPONSES,
        *HI_R[:-1],
        r.stop("max_output_tokens"),
        stop_reason="length",
        truncated=True,
    ),
    text_case("P26 cut inside a message", RESPONSES, *HI_R[:4], r.stop("max_output_tokens"), truncated=True),
    text_case("P40 content_filter inside a message", RESPONSES, *HI_R[:4], r.stop("content_filter"), refused=True),
    text_case(
        "P40 content_filter", RESPONSES, *HI_R[:-1], r.stop("content_filter"), stop_reason="refusal", refused=True
    ),
    text_case("P40 refusal deltas", RESPONSES, *r.complete(r_refusal("H", "i")), stop_reason="refusal", refused=True),
    text_case("P40 refusal without deltas", RESPONSES, *r.complete(r_refusal()), refused=True),
    text_case(
        "P40 content_filter with calls",
        RESPONSES,
        r.start(),
        *r.call(0, "c", "pay", PAY),
        r.stop("content_filter"),
        text="",
        refused=True,
    ),
    text_case("P41 unknown reason", RESPONSES, *HI_R[:-1], r.stop("eclipse"), stop_reason="other"),
    text_case(
        "P41 unknown reason with calls",
        RESPONSES,
        r.start(),
        *r.message(0, "Hi"),
        *r.call(1, "c", "pay", PAY),
        r.stop("eclipse"),
    ),
    text_case("P43 usage missing", RESPONSES, *HI_R[:-1], r.end(usage=None), look=estimated),
    text_case("P44 events after the end", RESPONSES, *HI_R, *r.says("you"), r.error("server_error")),
]
RESPONSES_BYTES = [
    text_case("P12 surrogate pair over two deltas", RESPONSES, *r.says("Hi \ud83d", "\ude00!"), text="Hi 😀!"),
    text_case("P12 half a pair at the end", RESPONSES, *r.says("Hi \ud83d"), text="Hi \ufffd"),
    text_case(
        "P12 surrogate pair over two thoughts",
        RESPONSES,
        *r.complete(r_thoughts("Hm \ud83d", "\ude00"), r.message(1, "Hi")),
        look=thought("Hm 😀"),
    ),
    malformed_case("P12 half a pair, escaped, in arguments", RESPONSES, r.calls(("c1", "pay", HALF))),
    text_case(
        "P12 half a pair in an item that is kept",
        RESPONSES,
        *[*HI_R[:-1], *r_item(1, {"type": "x", "y": "\ud83d"}), r.end()],
        look=keeps(KEPT, {"type": "x", "y": "\ufffd"}),
    ),
    text_case("P14 no event lines", RESPONSES, *(event.partition(b"\n")[2] for event in HI_R)),
]
RESPONSES_SHAPES = [
    text_case("P18 delta null", RESPONSES, *HI_R[:3], r.event("response.output_text.delta", delta=None), *HI_R[3:]),
    text_case("P18 item null", RESPONSES, *HI_R[:-1], *[r.added(1, {}), r.event("response.output_item.done")], r.end()),
    text_case("P25 unknown event", RESPONSES, HI_R[0], STRANGE, r.event("response.aurora", delta=1), *HI_R[1:]),
    text_case("P25 unknown event that is not JSON", RESPONSES, b"event: response.aurora\ndata: green\n\n", *HI_R),
    text_case("P25 event without data", RESPONSES, HI_R[0], b"event: keepalive\n\n", *HI_R[1:]),
    text_case(
        "P25 a tool of the server",
        RESPONSES,
        *r.complete(r_item(0, SEARCHED), r.message(1, "Hi")),
        look=keeps(SEARCHED, {**KEPT, "id": "msg_1"}),
    ),
    text_case(
        "P42 reasoning and summary",
        RESPONSES,
        *r.complete(r.reasoning(0, "Hm, bob."), r.message(1, "Hi")),
        look=thought("Hm, bob."),
    ),
    text_case(
        "P42 reasoning is kept as it was once it was done",
        RESPONSES,
        *r.complete(r.reasoning(0), r.message(1, "Hi")),
        look=keeps(r.reasoning_item(0), {**KEPT, "id": "msg_1"}),
    ),
    text_case(
        "P42 reasoning without content is dropped",
        RESPONSES,
        *r.complete(r.reasoning(0, encrypted=""), r.message(1, "Hi")),
        look=keeps({**KEPT, "id": "msg_1"}),
    ),
]


@make_params([*ENDS, *GEMINI_ENDS, *RESPONSES_ENDS])
async def test_unusual_end_of_a_stream_is_accepted(row: StreamCase) -> None:
    await row.check()


@make_params([*BYTES, *GEMINI_BYTES, *RESPONSES_BYTES])
async def test_unusual_bytes_decode_to_the_intended_text(row: StreamCase) -> None:
    await row.check()


@make_params([*SHAPES, *GEMINI_SHAPES, *RESPONSES_SHAPES])
async def test_unknown_or_empty_events_are_ignored(row: StreamCase) -> None:
    await row.check()


@pytest.mark.parametrize(
    ("wire", "body"),
    [
        pytest.param(OPENAI, [o.text("Hi"), o.finish(), "hold"], id="P03 finish, then nothing"),
        pytest.param(OPENAI, [*o.says("Hi"), "hold"], id="P03 done, but not closed"),
        pytest.param(OPENAI, [*o.says("Hi"), *[o.comment, Pause(0.002)] * 6000], id="P03 done, then comments"),
        pytest.param(ANTHROPIC, [*HI, a.stop("end_turn"), "hold"], id="P04 stop reason, then nothing"),
        pytest.param(
            ANTHROPIC, [*HI, a.stop("end_turn"), *[a.ping, Pause(0.02)] * 600], id="P04 stop reason, then pings"
        ),
        pytest.param(ANTHROPIC, [*a.says("Hi"), "hold"], id="P04 message_stop, but not closed"),
        pytest.param(GEMINI, [*g.says("Hi"), "hold"], id="P03 finishReason, but not closed"),
        pytest.param(RESPONSES, [*r.says("Hi"), "hold"], id="P03 completed, but not closed"),
    ],
)
async def test_complete_message_does_not_wait_for_the_connection_to_close(wire: Wire, body: list[Step]) -> None:
    clock = FastClock(20)
    async with open_setup(wire, FaultServer(response(*body)), clock=clock) as setup:
        begun = clock.monotonic()
        turn = await setup.turn()
        assert clock.monotonic() - begun < 25
        assert turn.reply_texts == ["Hi"]
        await setup.next_turn_works()


async def test_P41_model_that_only_pauses_ends_at_the_round_limit() -> None:
    pause = response(*HI, *a.end_with("pause_turn"))
    async with open_setup(ANTHROPIC, FaultServer(*[pause] * 10)) as setup:
        turn = await setup.turn()
        assert turn.reply_texts == ["Hi"] * 10
        assert setup.requests == [10]
        await setup.next_turn_works()


async def test_P42_parts_of_gemini_are_sent_back_unchanged() -> None:
    parts: list[dict[str, Any]] = [
        {"text": "Paying "},
        {"text": "bob.", **SIGNATURE},
        {"text": " Now."},
        CODE,
        {"text": "", **SIGNATURE},
        {"functionCall": {"id": "c1", "name": "pay", "args": {"to": "bob", "amount": 5}}, **SIGNATURE},
        {"functionCall": {"id": "c2", "name": "look", "args": {}}},
    ]
    body = [*[g.parts(part) for part in parts], g.finish()]
    async with open_setup(GEMINI, FaultServer(response(*body), DONE["gemini"])) as setup:
        await setup.turn()
        assert setup.server.requests[1].body["contents"][1] == {"role": "model", "parts": parts}
        await setup.next_turn_works()


async def test_P42_blocks_are_sent_back_unchanged() -> None:
    blocks = [*thinking("Hm 😀", signature="c2ln"), *complete_block(1, REDACTED), *complete_block(2, FUTURE)]
    body = [a.start(), *blocks, *a.block(3, "Paying."), *a.tool_block(4, "c1", "pay", PAY), *a.end_with("tool_use")]
    async with open_setup(ANTHROPIC, FaultServer(response(*body), DONE["anthropic"])) as setup:
        await setup.turn()
        assert setup.server.requests[1].body["messages"][1] == {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm 😀", "signature": "c2ln"},
                REDACTED,
                FUTURE,
                {"type": "text", "text": "Paying."},
                {"type": "tool_use", "id": "c1", "name": "pay", "input": {"to": "bob", "amount": 5}},
            ],
        }
        await setup.next_turn_works()


@pytest.mark.parametrize("framing", ["chunked", "sized", "until close"])
@pytest.mark.parametrize("wire", [OPENAI, ANTHROPIC, GEMINI, RESPONSES], ids=repr)
async def test_every_body_framing_is_decoded(wire: Wire, framing: Any) -> None:
    pieces = byte_by_byte(wire.builder.says("Hi"))
    await StreamCase("framed", wire, [response(*pieces, framing=framing)]).check()


WHOLE = {
    "openai": b'{"choices":[{"index":0,"message":{"role":"assistant","content":"Hi","tool_calls":[{"id":"c1","type":'
    b'"function","function":{"name":"pay","arguments":"{\\"to\\":\\"bob\\",\\"amount\\":5}"}}]},"finish_reason":'
    b'"tool_calls"}],"usage":{"prompt_tokens":7,"completion_tokens":5}}',
    "anthropic": b'{"type":"message","role":"assistant","content":[{"type":"text","text":"Hi"},{"type":"tool_use","id":'
    b'"c1","name":"pay","input":{"to":"bob","amount":5}}],"stop_reason":"tool_use","usage":{"input_tokens":7,'
    b'"output_tokens":5}}',
    "gemini": b'[{"candidates":[{"content":{"parts":[{"text":"Hi"}]}}]},{"candidates":[{"content":{"parts":[{'
    b'"functionCall":{"id":"c1","name":"pay","args":{"to":"bob","amount":5}}}]},"finishReason":"STOP"}]}]',
    "responses": b'{"object":"response","status":"completed","error":null,"output":[{"type":"message","id":"m","role":'
    b'"assistant","content":[{"type":"output_text","text":"Hi","annotations":[]}]},{"type":"function_call","id":"f",'
    b'"call_id":"c1","name":"pay","arguments":"{\\"to\\":\\"bob\\",\\"amount\\":5}"}],"usage":{"input_tokens":7,'
    b'"output_tokens":5}}',
}


@pytest.mark.parametrize("wire", [OPENAI, ANTHROPIC, GEMINI, RESPONSES], ids=repr)
async def test_non_streaming_server_is_supported(wire: Wire) -> None:
    whole = response(WHOLE[wire.name], type="application/json; charset=utf-8", framing="sized")
    async with open_setup(wire, FaultServer(whole, DONE[wire.name])) as setup:
        turn = await setup.turn()
        assert turn.reply_texts == ["Hi", "Done."]
        assert setup.paid == PAID
        await setup.next_turn_works()
