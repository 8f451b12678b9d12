"""Streams that break (P01–P28, P52): no answer, no tool call, but a retry or one error.

Each fault is tested with every attempt, and one of each kind with a good response to the retry. Faults of the
connection, which is the same for all wires, are tested with one wire.
"""

import gzip
from dataclasses import dataclass

import pytest
from _pytest.mark import ParameterSet
from wire_setup import ANTHROPIC, GEMINI, OPENAI, RESPONSES, FastClock, Turn, Wire, WireSetup, open_setup

from atlas_agents import ProviderError, RetryPolicy, Timeouts
from atlas_agents.core.aio import SYSTEM_CLOCK
from fault_server import FaultServer, Pause, Script, broken_response, response, response_head
from sse_events import a, g, o, r

PAY = '{"to":"bob","amount":5}'
HTML = b"<html><body>Bad gateway</body></html>"
LONG = b'"' + b"x" * (8 << 20) + b'"'
OPEN_A = [a.start(), a.open(0), a.text("Pay")]
OPEN_TOOL = [a.start(), a.tool(0, "c1", "pay"), a.json(0, PAY)]
BOMB = gzip.compress(b"x" * (64 << 20))
CHUNKED = response_head(transfer_encoding="chunked")
NEVER = 600


@dataclass(frozen=True)
class Fault:
    """What the server sends, the expected kind of error, and whether text was shown before it."""

    id: str
    wire: Wire
    script: Script
    kind: str
    shown: bool = True
    final: bool = False
    """True if a retry does not help."""


def _case(fault: Fault) -> ParameterSet:
    slow = fault.kind == "timeout" or "8 MB" in fault.id
    return pytest.param(fault, id=f"{fault.id} ({fault.wire})", marks=[pytest.mark.slow] if slow else [])


def closed_response(*body: bytes) -> Script:
    return response(*body, framing="until close")


WHOLE_ERROR = g.error("server_error")[6:-2]
PARTIAL = {"functionCall": {"name": "pay", "partialArgs": [{"jsonPath": "$.to", "stringValue": "bob"}]}}
_CUT = ("incomplete", True, False)
_EMPTY = ("empty_response", False, False)
_FAILED = ("protocol", False, False)
FAULTS = [
    Fault("P01 clean close mid text", OPENAI, closed_response(o.text("Pay")), "incomplete"),
    Fault("P01 clean close mid text", ANTHROPIC, closed_response(*OPEN_A), "incomplete"),
    Fault("P01 chunked body ends mid text", OPENAI, response(o.text("Pay")), "incomplete"),
    Fault("P01 sized body ends mid text", OPENAI, response(o.text("Pay"), framing="sized"), "incomplete"),
    Fault("P01 text block closed but no stop reason", ANTHROPIC, closed_response(*OPEN_A, a.close(0)), "incomplete"),
    Fault("P01 done without finish", OPENAI, response(o.text("Pay"), o.done), "incomplete"),
    Fault("P01 message_stop without stop reason", ANTHROPIC, response(*OPEN_A, a.close(0), a.end), "incomplete"),
    Fault("P02 close inside an event", OPENAI, closed_response(o.text("Pay"), o.text(" more")[:40]), "incomplete"),
    Fault("P02 close inside an event", ANTHROPIC, closed_response(*OPEN_A, a.text(" more")[:60]), "incomplete"),
    Fault("P02 finish without its blank line", OPENAI, closed_response(o.text("Pay"), o.finish()[:-1]), "incomplete"),
    Fault(
        "P02 stop reason without its blank line",
        ANTHROPIC,
        closed_response(*OPEN_A, a.close(0), a.stop("end_turn")[:-1]),
        "incomplete",
    ),
    Fault(
        "P04 stop reason inside an open block", ANTHROPIC, closed_response(*OPEN_A, a.stop("end_turn")), "incomplete"
    ),
    Fault("P04 tool use not stopped", ANTHROPIC, closed_response(*OPEN_TOOL, a.stop("tool_use")), "incomplete", False),
    Fault(
        "P04 tool use not stopped but message_stop",
        ANTHROPIC,
        response(*OPEN_TOOL, a.stop("tool_use"), a.end),
        "incomplete",
        False,
    ),
    Fault("P05 reset mid delta", OPENAI, broken_response(o.text("Pay"), o.text(" more")[:40]), "network"),
    Fault("P05 close inside a chunked body", OPENAI, broken_response(o.text("Pay"), by="close"), "network"),
    Fault(
        "P05 half close inside a chunked body",
        OPENAI,
        [*broken_response(o.text("Pay"), by="half close"), "hold"],
        "network",
    ),
    Fault("P06 stall before the first word", OPENAI, response(o.comment, "hold"), "timeout", False),
    Fault("P06 stall before the first word", ANTHROPIC, response(a.start(), "hold"), "timeout", False),
    Fault("P06 stall before the headers", OPENAI, ["hold"], "timeout", False),
    Fault("P06 stall mid stream", OPENAI, response(o.text("Pay"), "hold"), "timeout"),
    Fault("P07 slow drip", OPENAI, response(*[o.text("Pay"), Pause(0.05)] * NEVER), "timeout"),
    Fault("P08 comments forever", OPENAI, response(o.text("Pay"), *[o.comment, Pause(0.03)] * NEVER), "timeout"),
    Fault("P08 pings forever", ANTHROPIC, response(*OPEN_A, *[a.ping, Pause(0.03)] * NEVER), "timeout"),
    Fault("P08 pings only", ANTHROPIC, response(*[a.ping, Pause(0.03)] * NEVER), "timeout", False),
    Fault("P09 bad JSON", OPENAI, response(o.text("Pay"), b"data: {bad\n\n", *o.end_with("stop")), "incomplete"),
    Fault(
        "P09 bad JSON",
        ANTHROPIC,
        response(*OPEN_A, b"event: content_block_delta\ndata: {bad\n\n", a.close(0), *a.end_with("end_turn")),
        "incomplete",
    ),
    Fault(
        "P09 JSON nested too deeply", OPENAI, response(b'data: {"x":' + b"[" * 99_999 + b"\n\n"), "incomplete", False
    ),
    Fault(
        "P09 JSON nested too deeply",
        ANTHROPIC,
        response(b'event: message_start\ndata: {"x":' + b"[" * 99_999 + b"\n\n"),
        "incomplete",
        False,
    ),
    Fault(
        "P10 invalid UTF-8",
        OPENAI,
        response(o.text("Pay"), o.text("?").replace(b"?", b"\xff\xfe"), *o.end_with("stop")),
        "incomplete",
    ),
    Fault(
        "P10 invalid UTF-8",
        ANTHROPIC,
        response(*OPEN_A, a.text("?").replace(b"?", b"\xff\xfe"), a.close(0), *a.end_with("end_turn")),
        "incomplete",
    ),
    Fault("P15 a line of 8 MB", OPENAI, response(o.text("Pay"), b"data: ", LONG, b"\n\n"), "protocol"),
    Fault("P15 a compressed bomb", OPENAI, response(BOMB, content_encoding="gzip"), "protocol", False),
    Fault("P16 empty body", OPENAI, response(), "empty_response", False),
    Fault("P16 empty body", ANTHROPIC, response(), "empty_response", False),
    Fault("P16 empty body called JSON", OPENAI, response(type="application/json"), "empty_response", False),
    Fault("P16 empty body called JSON", ANTHROPIC, response(type="application/json"), "empty_response", False),
    Fault("P16 HTML with status 200", OPENAI, response(HTML, type="text/html"), "empty_response", False),
    Fault("P16 only done", OPENAI, response(o.done), "empty_response", False),
    Fault("P16 only message_stop", ANTHROPIC, response(a.end), "protocol", False),
    Fault("P16 finished without a word", OPENAI, response(*o.end_with("stop")), "empty_response", False),
    Fault(
        "P16 finished without a word", ANTHROPIC, response(a.start(), *a.end_with("end_turn")), "empty_response", False
    ),
    Fault("P16 a block without a word", ANTHROPIC, response(*a.says("")), "empty_response", False),
    Fault("P19 error mid stream", OPENAI, response(o.text("Pay"), o.error("server_error")), "server"),
    Fault("P19 error first", OPENAI, response(o.error("server_error")), "server", False),
    Fault("P19 rate limit mid stream", OPENAI, response(o.text("Pay"), o.error("rate_limit_exceeded")), "rate_limit"),
    Fault("P19 status as code", OPENAI, response(o.text("Pay"), o.error("", code=503)), "overloaded"),
    Fault("P19 a code that is not a number", OPENAI, response(o.text("Pay"), o.error("", code="²")), "unknown"),
    Fault("P19 an error that is a text", OPENAI, response(b'data: {"error":"out of luck"}\n\n'), "unknown", False),
    Fault("P19 quota", OPENAI, response(o.text("Pay"), o.error("insufficient_quota")), "quota", final=True),
    Fault(
        "P19 bad request", OPENAI, response(o.text("Pay"), o.error("invalid_request_error")), "bad_request", final=True
    ),
    Fault(
        "P19 error in a whole answer",
        OPENAI,
        response(o.error("server_error")[6:], type="application/json"),
        "server",
        False,
    ),
    Fault(
        "P20 error event without error", OPENAI, response(b'event: error\ndata: {"message":"no"}\n\n'), "unknown", False
    ),
    Fault("P20 error event that is not JSON", OPENAI, response(b"event: error\ndata: no luck\n\n"), "unknown", False),
    Fault("P21 overloaded mid stream", ANTHROPIC, response(*OPEN_A, a.error("overloaded_error")), "overloaded"),
    Fault("P21 overloaded first", ANTHROPIC, response(a.error("overloaded_error")), "overloaded", False),
    Fault("P21 api_error mid stream", ANTHROPIC, response(*OPEN_A, a.error("api_error")), "server"),
    Fault("P21 api_error first", ANTHROPIC, response(a.error("api_error")), "server", False),
    Fault(
        "P21 bad request mid stream",
        ANTHROPIC,
        response(*OPEN_A, a.error("invalid_request_error")),
        "bad_request",
        final=True,
    ),
    Fault(
        "P21 error in a whole answer",
        ANTHROPIC,
        response(b'{"type":"error","error":{"type":"api_error","message":"no"}}', type="application/json"),
        "server",
        False,
    ),
    Fault(
        "P22 error event that is not JSON", ANTHROPIC, response(*OPEN_A, b"event: error\ndata: no luck\n\n"), "unknown"
    ),
    Fault("P22 error event without data", ANTHROPIC, response(*OPEN_A, b"event: error\n\n"), "unknown"),
    Fault(
        "P23 no event lines",
        ANTHROPIC,
        response(*(event.partition(b"\n")[2] for event in a.says("Pay"))),
        "empty_response",
        False,
    ),
    Fault("P24 no message_start", ANTHROPIC, response(*a.says("Pay")[1:]), "protocol", False),
    Fault("P24 delta before its block", ANTHROPIC, response(a.start(), a.text("Pay")), "protocol", False),
    Fault("P24 two message_start", ANTHROPIC, response(*OPEN_A, a.close(0), *a.says("B")), "protocol"),
    Fault("P24 a block opened twice", ANTHROPIC, response(*OPEN_A, a.open(0)), "protocol"),
    Fault("P24 a block stopped twice", ANTHROPIC, response(*OPEN_A, a.close(0), a.close(0)), "protocol"),
    Fault("P24 message_delta first", ANTHROPIC, response(*a.end_with("end_turn")), "protocol", False),
    Fault(
        "P24 text after the stop reason",
        ANTHROPIC,
        response(*a.says("Pay")[:-1], *a.block(1, "more"), a.end),
        "protocol",
    ),
    Fault(
        "P28 arguments cut by a close",
        OPENAI,
        closed_response(o.call(0, "c1", "pay"), o.call(0, None, None, '{"to":"bob","amount":5')),
        "incomplete",
        False,
    ),
    Fault(
        "P28 whole arguments but no finish", OPENAI, closed_response(o.call(0, "c1", "pay", PAY)), "incomplete", False
    ),
    Fault(
        "P28 arguments cut by a close",
        ANTHROPIC,
        closed_response(a.start(), a.tool(0, "c1", "pay"), a.json(0, '{"to":"bob","amount":5')),
        "incomplete",
        False,
    ),
    Fault("P28 whole arguments but no stop", ANTHROPIC, closed_response(*OPEN_TOOL, a.close(0)), "incomplete", False),
    Fault(
        "P39 finish tool_calls without calls or text",
        OPENAI,
        response(*o.end_with("tool_calls")),
        "empty_response",
        False,
    ),
    Fault(
        "P39 stop tool_use without calls or text",
        ANTHROPIC,
        response(a.start(), *a.end_with("tool_use")),
        "empty_response",
        False,
    ),
    Fault("P52 reset before headers", OPENAI, ["reset"], "network", False),
    Fault("P52 close before headers", OPENAI, ["close"], "network", False),
    Fault("P52 close inside the headers", OPENAI, [b"HTTP/1.1 200 OK\r\ncontent-", "close"], "network", False),
    Fault("P52 not HTTP", OPENAI, [b"SSH-2.0-OpenSSH_9.6\r\n", "close"], "network", False),
    Fault(
        "P52 a header of 200 KB", OPENAI, [response_head(x="y" * 200_000), *o.says("Pay"), "close"], "network", False
    ),
    Fault(
        "P52 two framings",
        OPENAI,
        [response_head(content_length="9", transfer_encoding="chunked"), "close"],
        "network",
        False,
    ),
    Fault("P52 gzip that is none", OPENAI, response(*o.says("Pay"), content_encoding="gzip"), "network", False),
    Fault("P52 no chunk size, with the headers", OPENAI, [CHUNKED + b"zz\r\nhello\r\n", "close"], "network", False),
    Fault("P52 no chunk size, after the headers", OPENAI, [CHUNKED, b"zz\r\n", "close"], "timeout", False),
    Fault("P52 status 204", ANTHROPIC, [b"HTTP/1.1 204 No\r\n\r\n"], "protocol", False),
]


def gemini_fault(id: str, script: Script, kind: str, shown: bool, final: bool) -> Fault:
    return Fault(id, GEMINI, script, kind, shown, final)


GEMINI_FAULTS = [
    gemini_fault("P01 clean close mid text", closed_response(g.text("Pay")), "incomplete", True, False),
    gemini_fault(
        "P01 unspecified finish reason", response(g.text("Pay"), g.finish("FINISH_REASON_UNSPECIFIED")), *_CUT
    ),
    gemini_fault("P02 finish without its blank line", closed_response(g.text("Pay"), g.finish()[:-1]), *_CUT),
    gemini_fault(
        "P08 usage forever", response(*[g.event(usageMetadata={}), Pause(0.03)] * NEVER), "timeout", False, False
    ),
    gemini_fault("P09 bad JSON", response(g.text("Pay"), b"data: {bad\n\n", g.finish()), *_CUT),
    gemini_fault(
        "P09 JSON nested too deeply", response(b'data: {"x":' + b"[" * 99_999 + b"\n\n"), "incomplete", False, False
    ),
    gemini_fault(
        "P10 invalid UTF-8", response(g.text("Pay"), g.text("?").replace(b"?", b"\xff\xfe"), g.finish()), *_CUT
    ),
    gemini_fault(
        "P10 invalid UTF-8 in arguments",
        response(g.text("Pay"), g.call("c", "pay", PAY).replace(b"bob", b"b\xffb"), g.finish()),
        *_CUT,
    ),
    gemini_fault("P16 empty body", response(), *_EMPTY),
    gemini_fault("P16 empty body called JSON", response(type="application/json"), *_EMPTY),
    gemini_fault("P16 empty array called JSON", response(b"[]", type="application/json"), *_EMPTY),
    gemini_fault("P16 only usage", response(g.event(usageMetadata={"promptTokenCount": 3})), *_EMPTY),
    gemini_fault("P16 finished without a word", response(g.finish()), *_EMPTY),
    gemini_fault("P16 finished with empty text", response(g.text(""), g.finish()), *_EMPTY),
    gemini_fault(
        "P16 finished with a thought only",
        response(g.text("Hm", thought=True), g.finish()),
        "empty_response",
        True,
        False,
    ),
    gemini_fault("P19 error mid stream", response(g.text("Pay"), g.error("server_error")), "server", True, False),
    gemini_fault("P19 error first", response(g.error("server_error")), "server", False, False),
    gemini_fault(
        "P19 overloaded mid stream", response(g.text("Pay"), g.error("UNAVAILABLE")), "overloaded", True, False
    ),
    gemini_fault(
        "P19 rate limit mid stream",
        response(g.text("Pay"), g.error("RESOURCE_EXHAUSTED")),
        "rate_limit",
        True,
        False,
    ),
    gemini_fault(
        "P19 an error that is a text", response(b'data: {"error":"out of luck"}\n\n'), "unknown", False, False
    ),
    gemini_fault("P19 bad request", response(g.text("Pay"), g.error("INVALID_ARGUMENT")), "bad_request", True, True),
    gemini_fault("P19 error in a whole answer", response(WHOLE_ERROR, type="application/json"), "server", False, False),
    gemini_fault(
        "P19 error in an array", response(b"[%s]" % WHOLE_ERROR, type="application/json"), "server", False, False
    ),
    gemini_fault(
        "P20 error event that is not JSON", response(b"event: error\ndata: no luck\n\n"), "unknown", False, False
    ),
    gemini_fault("P28 whole call but no finish", closed_response(g.call("c1", "pay", PAY)), "incomplete", False, False),
    gemini_fault("P28 arguments in parts", response(g.parts(PARTIAL), g.finish()), "protocol", False, False),
    gemini_fault(
        "P39 malformed call", response(g.text("Pay"), g.finish("MALFORMED_FUNCTION_CALL")), "protocol", True, False
    ),
    gemini_fault(
        "P39 call and malformed", response(g.call("c", "pay", PAY), g.finish("UNEXPECTED_TOOL_CALL")), *_FAILED
    ),
]
OPEN_R = [r.start(), *r.open_message(), r.text("Pay")]
OPEN_CALL = [r.start(), r.open_call(0, "c1", "pay"), r.delta("function_call_arguments", 0, "fc_0", PAY)]
MESSAGE_R = r.message(0, "Pay")


def responses_fault(id: str, kind: str, script: Script, *, shown: bool = True, final: bool = False) -> Fault:
    return Fault(id, RESPONSES, script, kind, shown, final)


RESPONSES_FAULTS = [
    responses_fault("P01 clean close mid text", "incomplete", closed_response(*OPEN_R)),
    responses_fault("P01 whole item but no end", "incomplete", response(r.start(), *MESSAGE_R)),
    responses_fault("P01 done instead of an end", "incomplete", response(r.start(), *MESSAGE_R, o.done)),
    responses_fault(
        "P02 end without its blank line", "incomplete", closed_response(r.start(), *MESSAGE_R, r.end()[:-1])
    ),
    responses_fault("P04 message not done", "incomplete", response(*OPEN_R, r.end())),
    responses_fault("P04 call not done", "incomplete", response(*OPEN_CALL, r.end()), shown=False),
    responses_fault(
        "P08 keep-alive events forever", "timeout", response(*OPEN_R, *[r.event("keepalive"), Pause(0.03)] * NEVER)
    ),
    responses_fault(
        "P09 bad JSON",
        "incomplete",
        response(*OPEN_R, b"event: response.output_text.delta\ndata: {bad\n\n", *r.says("Pay")[3:]),
    ),
    responses_fault(
        "P09 JSON nested too deeply",
        "incomplete",
        response(b'event: response.completed\ndata: {"x":' + b"[" * 99_999 + b"\n\n"),
        shown=False,
    ),
    responses_fault(
        "P10 invalid UTF-8", "incomplete", response(*OPEN_R, r.text("?").replace(b"?", b"\xff\xfe"), r.end())
    ),
    responses_fault("P16 empty body", "empty_response", response(), shown=False),
    responses_fault("P16 empty body called JSON", "empty_response", response(type="application/json"), shown=False),
    responses_fault("P16 only done", "empty_response", response(o.done), shown=False),
    responses_fault("P16 finished without a word", "empty_response", response(r.start(), r.end()), shown=False),
    responses_fault("P16 a message without a word", "empty_response", response(*r.says("")), shown=False),
    responses_fault("P16 only reasoning", "empty_response", response(*r.complete(r.reasoning(0, "Hm")))),
    responses_fault("P19 error mid stream", "server", response(*OPEN_R, r.error("server_error"))),
    responses_fault("P19 error first", "server", response(r.error("server_error")), shown=False),
    responses_fault("P19 failed mid stream", "server", response(*OPEN_R, r.fail("server_error"))),
    responses_fault("P19 rate limit", "rate_limit", response(*OPEN_R, r.fail("rate_limit_exceeded"))),
    responses_fault("P19 quota", "quota", response(*OPEN_R, r.error("insufficient_quota")), final=True),
    responses_fault("P19 bad prompt", "bad_request", response(*OPEN_R, r.fail("invalid_prompt")), final=True),
    responses_fault("P19 bad image", "bad_request", response(r.fail("image_too_large")), shown=False, final=True),
    responses_fault("P19 unknown code", "unknown", response(*OPEN_R, r.fail("eclipse"))),
    responses_fault("P19 nested error", "server", response(*OPEN_R, r.event("error", error={"type": "server_error"}))),
    responses_fault("P19 nameless error", "server", response(*OPEN_R, o.error("server_error"))),
    responses_fault("P19 cancelled", "incomplete", response(*r.says("Pay")[:-1], r.end(status="cancelled"))),
    responses_fault(
        "P19 error in a whole answer",
        "server",
        response(o.error("server_error")[6:], type="application/json"),
        shown=False,
    ),
    responses_fault(
        "P20 error event without error", "unknown", response(b'event: error\ndata: {"message":"no"}\n\n'), shown=False
    ),
    responses_fault("P22 error event that is not JSON", "unknown", response(*OPEN_R, b"event: error\ndata: no\n\n")),
    responses_fault("P22 error event without data", "unknown", response(*OPEN_R, b"event: error\n\n")),
    responses_fault("P24 delta before its item", "protocol", response(r.start(), r.text("Pay")), shown=False),
    responses_fault("P24 two responses", "protocol", response(*OPEN_R, r.start())),
    responses_fault("P24 an item added twice", "protocol", response(*OPEN_R, *r.open_message())),
    responses_fault("P24 an item done twice", "protocol", response(r.start(), *MESSAGE_R, MESSAGE_R[-1])),
    responses_fault("P24 an item done again later", "protocol", response(r.start(), *MESSAGE_R, *r.open_message())),
    responses_fault("P28 whole arguments but no end", "incomplete", closed_response(*OPEN_CALL), shown=False),
    responses_fault(
        "P28 whole call but no end", "incomplete", closed_response(r.start(), *r.call(0, "c1", "pay", PAY)), shown=False
    ),
]
ALL_FAULTS = [*FAULTS, *GEMINI_FAULTS, *RESPONSES_FAULTS]
every_fault = pytest.mark.parametrize("fault", [_case(fault) for fault in ALL_FAULTS])
PASSING_FAULTS = {(fault.wire, fault.kind, fault.shown): fault for fault in ALL_FAULTS if not fault.final}
"""One fault for each outcome of an attempt, on which the retry depends."""
every_passing_fault = pytest.mark.parametrize("fault", [_case(fault) for fault in PASSING_FAULTS.values()])


async def run_fault(fault: Fault, server: FaultServer) -> tuple[WireSetup, Turn]:
    """Run the turn with one retry, then another turn, which must work. For timeouts the clock runs fast."""
    retry = RetryPolicy(retries=1, backoff=0.001)
    clock, timeouts = (FastClock(60), Timeouts(total=60)) if fault.kind == "timeout" else (SYSTEM_CLOCK, Timeouts())
    async with open_setup(fault.wire, server, retry=retry, timeouts=timeouts, clock=clock) as setup:
        turn = await setup.turn()
        assert setup.paid == []
        before = setup.requests
        await setup.next_turn_works()
        assert setup.requests == [before[0] + 1]
        return setup, turn


@every_passing_fault
async def test_broken_stream_is_withdrawn_and_the_next_attempt_answers(fault: Fault) -> None:
    good = response(*fault.wire.builder.says("All ", "good."))
    setup, turn = await run_fault(fault, FaultServer(fault.script, good))
    assert turn.reply is not None, turn.error
    assert turn.reply.text == turn.shown == "All good."
    assert [message.role for message in turn.added] == ["user", "assistant"]
    assert turn.resets == fault.shown
    assert setup.requests == [3]


@every_fault
async def test_stream_that_always_breaks_ends_the_turn_with_one_error(fault: Fault) -> None:
    attempts = 1 if fault.final else 2
    setup, turn = await run_fault(fault, FaultServer(*[fault.script] * attempts))
    assert isinstance(turn.error, ProviderError)
    assert turn.error.kind == fault.kind
    assert [message.role for message in turn.added] == ["user"]
    assert turn.resets == attempts * fault.shown
    assert turn.kinds.count("error") == 1
    assert setup.requests == [attempts + 1]


@pytest.mark.slow
async def test_P06_model_that_reasons_may_be_silent_for_longer() -> None:
    """The pause is 60 s of the clock: longer than `idle`, shorter than `reasoning`."""
    added, *rest = r.reasoning(0)
    whole = r.complete([added, *rest], r.message(1, "Paid."))
    body = [*whole[:2], Pause(1), *whole[2:]]
    async with open_setup(RESPONSES, FaultServer(response(*body)), clock=FastClock(60)) as setup:
        assert (await setup.turn()).reply_texts == ["Paid."]
        await setup.next_turn_works()


@pytest.mark.slow
@pytest.mark.parametrize("wire", [OPENAI, ANTHROPIC, GEMINI], ids=repr)
async def test_P15_response_of_more_than_32_MB_is_an_error(wire: Wire) -> None:
    many = response(*wire.builder.says(*["x" * 1_000_000] * 34))
    async with open_setup(wire, FaultServer(many, response(*wire.builder.says("Short.")))) as setup:
        turn = await setup.turn()
        assert turn.reply is not None
        assert (turn.reply.text, turn.resets) == ("Short.", 1)
        await setup.next_turn_works()
