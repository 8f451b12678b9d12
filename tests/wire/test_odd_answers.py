"""Answers that are odd but complete (P03, P04, P11–P18, P25, P26, P39–P44): understood, with nothing lost."""

from collections.abc import Sequence
from typing import Any

import pytest
from odd_rows import DONE, PAID, PAY, Look, Odd, a_tool, act, every, o_calls, refused, say
from wire_turns import ANTHROPIC, OPENAI, QuickClock, Room, Turn, Wire, room

from atlas_agents import Opaque, Thinking
from fault_server import FaultServer, Pause, Step, broken_response, byte_by_byte, response
from sse_events import a, o

EMOJI = "Hi 😀 é\u2028!"
HALF = r'{"to":"\ud83d","amount":5}'
REDACTED = {"type": "redacted_thinking", "data": "b3BhcXVl"}
SEARCH = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "bob"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"title": "Bob"}]}
FUTURE = {"type": "hologram", "light": {"lumens": 3}}
STRANGE = b'event: aurora\ndata: {"type":"aurora","delta":"none","index":"x"}\n\n'
HI = [a.start(), *a.block(0, "Hi")]


def after(*blocks: bytes) -> list[bytes]:
    """A whole answer: these blocks, then Hi."""
    return [a.start(), *blocks, *a.block(9, "Hi"), *a.end_with("end_turn")]


def whole_block(index: int, block: dict[str, Any]) -> list[bytes]:
    return [a.event("content_block_start", index=index, content_block=block), a.close(index)]


def thinking(*words: str, signature: str = "") -> list[bytes]:
    signed = [a.signature(0, signature)] if signature else []
    return [a.open(0, "thinking"), *(a.thinking(0, word) for word in words), *signed, a.close(0)]


def lines(events: Sequence[bytes], old: bytes, new: bytes) -> list[bytes]:
    return [event.replace(old, new) for event in events]


def thought(text: str, signature: str = "") -> Look:
    def look(_: Room, turn: Turn) -> None:
        assert turn.added[-1].parts[0] == Thinking(text, signature)
        assert turn.thoughts == text

    return look


def kept(*blocks: dict[str, Any]) -> Look:
    def look(_: Room, turn: Turn) -> None:
        assert [part.block for part in turn.added[-1].parts if isinstance(part, Opaque)] == list(blocks)

    return look


def estimated(_: Room, turn: Turn) -> None:
    assert turn.reply is not None
    assert turn.reply.metadata["estimated"] is True
    assert min(turn.reply.metadata["usage"]["input"], turn.reply.metadata["usage"]["output"]) > 0


def went_on(here: Room, turn: Turn) -> None:
    """A paused turn is sent back as it stands."""
    assert [message.role for message in turn.added] == ["user", "assistant", "assistant"]
    assert here.server.requests[1].body["messages"][-1]["role"] == "assistant"


ENDS = [
    say("P03 done missing", OPENAI, o.text("Hi"), o.finish()),
    Odd("P03 reset after finish", OPENAI, [broken_response(o.text("Hi"), o.finish())]),
    Odd(
        "P03 closed inside a chunked body after finish", OPENAI, [broken_response(o.text("Hi"), o.finish(), by="close")]
    ),
    say("P04 message_stop missing", ANTHROPIC, *HI, a.stop("end_turn")),
    Odd("P04 reset after message_delta", ANTHROPIC, [broken_response(*HI, a.stop("end_turn"))]),
    act("P04 message_stop missing but tool use stopped", ANTHROPIC, a_tool(PAY)[:-1], PAID),
    say("P26 length", OPENAI, o.text("Hi"), *o.end_with("length"), stop_reason="length", truncated=True),
    say("P26 max_tokens", ANTHROPIC, *HI, *a.end_with("max_tokens"), stop_reason="length", truncated=True),
    say("P39 finish tool_calls but none", OPENAI, o.text("Hi"), *o.end_with("tool_calls")),
    say("P39 tool_use but none", ANTHROPIC, *HI, *a.end_with("tool_use")),
    say("P40 content_filter", OPENAI, o.text("Hi"), *o.end_with("content_filter"), stop_reason="refusal", refused=True),
    say("P40 content_filter without a word", OPENAI, *o.end_with("content_filter"), text="", refused=True),
    say(
        "P40 refusal deltas",
        OPENAI,
        o.delta({"refusal": "H"}),
        o.delta({"refusal": "i"}),
        *o.end_with("stop"),
        refused=True,
    ),
    say("P40 refusal", ANTHROPIC, *HI, *a.end_with("refusal"), stop_reason="refusal", refused=True),
    say("P40 refusal with calls", ANTHROPIC, *a_tool(PAY, stop="refusal"), text="", refused=True),
    say(
        "P40 content_filter with calls",
        OPENAI,
        o.call(0, "c", "pay", PAY),
        *o.end_with("content_filter"),
        text="",
        refused=True,
    ),
    Odd(
        "P41 pause_turn",
        ANTHROPIC,
        [response(*HI, *a.end_with("pause_turn")), DONE["anthropic"]],
        "Done.",
        look=went_on,
    ),
    say("P41 unknown stop reason", ANTHROPIC, *HI, *a.end_with("eclipse"), stop_reason="other"),
    say(
        "P41 unknown stop reason with calls", ANTHROPIC, *HI, *a.tool_block(1, "c", "pay", PAY), *a.end_with("eclipse")
    ),
    say(
        "P41 unknown finish reason with calls",
        OPENAI,
        o.text("Hi"),
        *o_calls(o.call(0, "c", "pay", PAY), finish="eclipse"),
    ),
    say("P43 usage missing", OPENAI, o.text("Hi"), o.finish(), o.done, look=estimated),
    say("P43 usage null", OPENAI, o.text("Hi"), o.finish(), o.event(choices=[], usage=None), o.done, look=estimated),
    say("P43 usage missing", ANTHROPIC, *HI, a.stop("end_turn", None), a.end, look=estimated),
    say(
        "P44 double finish",
        OPENAI,
        o.text("Hi"),
        o.finish(),
        o.text("!"),
        o.finish("length"),
        o.done,
        stop_reason="stop",
    ),
    say("P44 words after done", OPENAI, *o.says("Hi"), o.text(" you")),
    say("P44 calls after finish", OPENAI, o.text("Hi"), o.finish(), o.call(0, "c1", "pay", PAY), o.done),
    say("P44 events after message_stop", ANTHROPIC, *a.says("Hi"), *a.says("you")),
]
BYTES = [
    say("P11 emoji split at every byte", OPENAI, *byte_by_byte(o.says(EMOJI)), text=EMOJI),
    say("P11 emoji split at every byte", ANTHROPIC, *byte_by_byte(a.says(EMOJI)), text=EMOJI),
    say("P12 surrogate pair over two deltas", OPENAI, *o.says("Hi \ud83d", "\ude00!"), text="Hi 😀!"),
    say("P12 surrogate pair over two deltas", ANTHROPIC, *a.says("Hi \ud83d", "\ude00!"), text="Hi 😀!"),
    say("P12 half a pair before other words", OPENAI, *o.says("Hi \ud83d", "!"), text="Hi \ufffd!"),
    say("P12 half a pair at the end", OPENAI, *o.says("Hi \ud83d"), text="Hi \ufffd"),
    say("P12 half a pair at the end", ANTHROPIC, *a.says("Hi \ud83d"), text="Hi \ufffd"),
    say(
        "P12 surrogate pair over two thoughts",
        OPENAI,
        *[o.delta({"reasoning_content": half}) for half in ("Hm \ud83d", "\ude00")],
        *o.says("Hi"),
        look=thought("Hm 😀"),
    ),
    say(
        "P12 surrogate pair over two thoughts",
        ANTHROPIC,
        *after(*thinking("Hm \ud83d", "\ude00", signature="sig")),
        look=thought("Hm 😀", "sig"),
    ),
    act(
        "P12 surrogate pair over two pieces of arguments",
        OPENAI,
        o_calls(o.call(0, "c1", "pay", '{"to":"\ud83d'), o.call(0, None, None, '\ude00","amount":5}')),
        [("😀", 5)],
    ),
    act(
        "P12 surrogate pair over two pieces of arguments",
        ANTHROPIC,
        [
            *[a.start(), a.tool(0, "c1", "pay"), a.json(0, '{"to":"\ud83d'), a.json(0, '\ude00","amount":5}')],
            *[a.close(0), *a.end_with("tool_use")],
        ],
        [("😀", 5)],
    ),
    refused("P12 half a pair, escaped, in arguments", OPENAI, o.calls(("c1", "pay", HALF))),
    refused("P12 half a pair, escaped, in arguments", ANTHROPIC, a_tool(HALF)),
    say(
        "P12 half a pair in a block that is kept",
        ANTHROPIC,
        *after(*whole_block(0, {"type": "x", "y": "\ud83d"})),
        look=kept({"type": "x", "y": "\ufffd"}),
    ),
    say("P13 BOM first", OPENAI, b"\xef\xbb\xbf", *o.says("Hi")),
    say("P13 BOM first", ANTHROPIC, b"\xef\xbb\xbf", *a.says("Hi")),
    say("P13 BOM byte by byte", OPENAI, *byte_by_byte([b"\xef\xbb\xbf", *o.says("Hi")])),
    say("P14 CRLF", OPENAI, *lines(o.says(EMOJI), b"\n", b"\r\n"), text=EMOJI),
    say("P14 CRLF", ANTHROPIC, *lines(a.says(EMOJI), b"\n", b"\r\n"), text=EMOJI),
    say("P14 CRLF byte by byte", OPENAI, *byte_by_byte(lines(o.says("Hi"), b"\n", b"\r\n"))),
    say("P14 CRLF byte by byte", ANTHROPIC, *byte_by_byte(lines(a.says("Hi"), b"\n", b"\r\n"))),
    say("P14 CR only", OPENAI, *lines([o.text("Hi"), o.finish()], b"\n", b"\r")),
    say("P14 CR only", ANTHROPIC, *lines(a.says("Hi"), b"\n", b"\r")),
    say("P14 no space after data", OPENAI, *lines(o.says("Hi"), b"data: ", b"data:")),
    say(
        "P14 no space after data and event", ANTHROPIC, *lines(lines(a.says("Hi"), b"t: ", b"t:"), b"data: ", b"data:")
    ),
    say("P14 data over two lines", OPENAI, *lines(o.says("Hi"), b',"choices"', b',\ndata: "choices"')),
    say(
        "P14 ids, retries and comments",
        OPENAI,
        b"retry: 5\n\n",
        o.comment,
        *lines(o.says("Hi"), b"data", b"id: 7\ndata"),
    ),
]
SHAPES = [
    say("P17 empty choices first, usage last", OPENAI, o.event(choices=[], prompt_filter_results=[]), *o.says("Hi")),
    say("P18 choices null", OPENAI, o.event(choices=None), *o.says("Hi")),
    say("P18 delta null", OPENAI, o.delta(None), *o.says("Hi")),
    say("P18 delta null with the finish", OPENAI, o.text("Hi"), o.delta(None, "stop"), o.done),
    say("P18 content and calls null", OPENAI, o.delta({"content": None, "tool_calls": None}), *o.says("Hi")),
    say("P18 another choice", OPENAI, o.event(choices=[{"index": 1, "delta": {"content": "No"}}]), *o.says("Hi")),
    say("P25 unknown event", ANTHROPIC, a.start(), STRANGE, *a.says("Hi")[1:]),
    say(
        "P25 unknown event that is no JSON", ANTHROPIC, a.start(), b"event: aurora\ndata: green\n\n", *a.says("Hi")[1:]
    ),
    say("P25 event without data", ANTHROPIC, a.start(), b"event: ping\n\n", *a.says("Hi")[1:]),
    say("P25 unknown delta", ANTHROPIC, *HI[:2], a.delta(0, "aurora_delta", colour="green"), *a.says("Hi")[2:]),
    say("P25 unknown block", ANTHROPIC, *after(*whole_block(0, FUTURE)), look=kept(FUTURE)),
    say(
        "P25 a tool of the server",
        ANTHROPIC,
        *after(
            a.open(0, "server_tool_use", id="srv_1", name="web_search", input={}),
            a.json(0, '{"query":'),
            a.json(0, '"bob"}'),
            a.close(0),
            *whole_block(1, FOUND),
        ),
        look=kept(SEARCH, FOUND),
    ),
    say(
        "P42 thinking and signature",
        ANTHROPIC,
        *after(*thinking("Hm, ", "bob.", signature="s")),
        look=thought("Hm, bob.", "s"),
    ),
    say("P42 thinking without signature", ANTHROPIC, *after(*thinking("Hm")), look=thought("Hm")),
    say("P42 signature without words", ANTHROPIC, *after(*thinking(signature="sig")), look=thought("", "sig")),
    say("P42 redacted_thinking", ANTHROPIC, *after(*whole_block(0, REDACTED)), look=kept(REDACTED)),
]


@every(ENDS)
async def test_an_odd_end_is_an_end(row: Odd) -> None:
    await row.check()


@every(BYTES)
async def test_odd_bytes_give_the_text_that_was_meant(row: Odd) -> None:
    await row.check()


@every(SHAPES)
async def test_what_is_unknown_or_empty_is_no_hindrance(row: Odd) -> None:
    await row.check()


@pytest.mark.parametrize(
    ("wire", "body"),
    [
        pytest.param(OPENAI, [o.text("Hi"), o.finish(), "hold"], id="P03 finish, then nothing"),
        pytest.param(
            OPENAI, [o.text("Hi"), o.finish(), *[o.comment, Pause(0.02)] * 600], id="P03 finish, then comments"
        ),
        pytest.param(OPENAI, [*o.says("Hi"), "hold"], id="P03 done, but not closed"),
        pytest.param(OPENAI, [*o.says("Hi"), *[o.comment, Pause(0.002)] * 6000], id="P03 done, then comments"),
        pytest.param(ANTHROPIC, [*HI, a.stop("end_turn"), "hold"], id="P04 stop reason, then nothing"),
        pytest.param(
            ANTHROPIC, [*HI, a.stop("end_turn"), *[a.ping, Pause(0.02)] * 600], id="P04 stop reason, then pings"
        ),
        pytest.param(ANTHROPIC, [*a.says("Hi"), "hold"], id="P04 message_stop, but not closed"),
    ],
)
async def test_a_complete_message_does_not_wait_long_for_its_connection_to_end(wire: Wire, body: list[Step]) -> None:
    clock = QuickClock(20)
    async with room(wire, FaultServer(response(*body)), clock=clock) as here:
        begun = clock.monotonic()
        turn = await here.turn()
        assert clock.monotonic() - begun < 25
        assert turn.said == ["Hi"]
        await here.next_turn_works()


async def test_P41_a_model_that_only_pauses_ends_with_the_rounds() -> None:
    pause = response(*HI, *a.end_with("pause_turn"))
    async with room(ANTHROPIC, FaultServer(*[pause] * 10)) as here:
        turn = await here.turn()
        assert turn.said == ["Hi"] * 10
        assert here.requests == [10]
        await here.next_turn_works()


async def test_P42_blocks_are_sent_back_as_they_came() -> None:
    blocks = [*thinking("Hm 😀", signature="c2ln"), *whole_block(1, REDACTED), *whole_block(2, FUTURE)]
    body = [a.start(), *blocks, *a.block(3, "Paying."), *a.tool_block(4, "c1", "pay", PAY), *a.end_with("tool_use")]
    async with room(ANTHROPIC, FaultServer(response(*body), DONE["anthropic"])) as here:
        await here.turn()
        assert here.server.requests[1].body["messages"][1] == {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm 😀", "signature": "c2ln"},
                REDACTED,
                FUTURE,
                {"type": "text", "text": "Paying."},
                {"type": "tool_use", "id": "c1", "name": "pay", "input": {"to": "bob", "amount": 5}},
            ],
        }
        await here.next_turn_works()


@pytest.mark.parametrize("framing", ["chunked", "sized", "until close"])
@pytest.mark.parametrize("wire", [OPENAI, ANTHROPIC], ids=repr)
async def test_every_way_to_frame_a_body_is_read(wire: Wire, framing: Any) -> None:
    pieces = byte_by_byte(wire.builder.says("Hi"))
    await Odd("framed", wire, [response(*pieces, framing=framing)]).check()


WHOLE = {
    "openai": b'{"choices":[{"index":0,"message":{"role":"assistant","content":"Hi","tool_calls":[{"id":"c1","type":'
    b'"function","function":{"name":"pay","arguments":"{\\"to\\":\\"bob\\",\\"amount\\":5}"}}]},"finish_reason":'
    b'"tool_calls"}],"usage":{"prompt_tokens":7,"completion_tokens":5}}',
    "anthropic": b'{"type":"message","role":"assistant","content":[{"type":"text","text":"Hi"},{"type":"tool_use","id":'
    b'"c1","name":"pay","input":{"to":"bob","amount":5}}],"stop_reason":"tool_use","usage":{"input_tokens":7,'
    b'"output_tokens":5}}',
}


@pytest.mark.parametrize("wire", [OPENAI, ANTHROPIC], ids=repr)
async def test_a_server_that_does_not_stream_is_understood(wire: Wire) -> None:
    whole = response(WHOLE[wire.name], type="application/json; charset=utf-8", framing="sized")
    async with room(wire, FaultServer(whole, DONE[wire.name])) as here:
        turn = await here.turn()
        assert turn.said == ["Hi", "Done."]
        assert here.paid == PAID
        await here.next_turn_works()
