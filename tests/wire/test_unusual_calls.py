"""Unusual tool calls (P27–P38, P45): run if they are unambiguous, otherwise answered with an error."""

from typing import Any

import pytest
from stream_cases import (
    BAD,
    MISSING,
    OK,
    PAID,
    PAY,
    Look,
    StreamCase,
    a_tool,
    call_case,
    calls_in,
    make_params,
    malformed_case,
    o_calls,
)
from wire_setup import ANTHROPIC, GEMINI, OPENAI, RESPONSES, Turn, Wire, WireSetup, open_setup

from atlas_agents import ProviderError
from fault_server import FaultServer, response
from sse_events import a, g, o, r

ALL_WIRES = [OPENAI, ANTHROPIC, GEMINI, RESPONSES]
ITEM: dict[str, Any] = {"type": "function_call", "id": "fc_0", "name": "look"}
LOOKED = [("look", 0)]
CUT = '{"to":"bob","amount":5'
EVE = '{"to":"eve","amount":1}'
ODD_ID = "id with ünicode " * 9
VAST = "9" * 30
AMOUNT = '{"to":"bob","amount":%s}'


def raw(**call: Any) -> bytes:
    """Return a piece of a call as a server sends it."""
    return o.delta({"tool_calls": [call]})


def ids_are(*ids: str) -> Look:
    """Check the ids of the calls; `?` stands for a generated id."""

    def look(_: WireSetup, turn: Turn) -> None:
        found = [call.id for call in calls_in(turn)]
        assert ["?" if id.startswith(f"call_{turn.stream.stream_id}_") else id for id in found] == list(ids)
        assert len(set(found)) == len(found)

    return look


def unknown(id: str, wire: Wire, name: str) -> StreamCase:
    """A call of an unknown tool: the model reads the known names."""

    def look(_: WireSetup, turn: Turn) -> None:
        assert [call.name for call in calls_in(turn)] == [name]
        last_event = turn.added[2].tool_results[0].result
        assert repr(name[:80]) in last_event
        assert "look, pay" in last_event

    body = wire.builder.calls(("c1", name, "{}"))
    return call_case(id, wire, body, results=[MISSING], look=look)


def of_amount(id: str, wire: Wire, amount: str) -> StreamCase:
    return malformed_case(id, wire, wire.builder.calls(("c1", "pay", AMOUNT % amount)))


def both(id: str, *calls: tuple[str, str, str], look: Look, paid: list[tuple[str, int]]) -> list[StreamCase]:
    return [call_case(id, wire, wire.builder.calls(*calls), paid, look=look) for wire in ALL_WIRES]


UNREADABLE = [
    malformed_case("P27 cut by length", OPENAI, o_calls(o.call(0, "c1", "pay", CUT), finish="length")),
    malformed_case("P27 cut by length but whole JSON", OPENAI, o_calls(o.call(0, "c1", "pay", PAY), finish="length")),
    malformed_case("P27 cut by max_tokens", ANTHROPIC, a_tool(CUT, stop="max_tokens")),
    malformed_case("P27 cut by max_tokens but whole JSON", ANTHROPIC, a_tool(PAY, stop="max_tokens")),
    malformed_case("P29 no JSON", OPENAI, o.calls(("c1", "pay", "{to: bob}"))),
    malformed_case("P29 no JSON", ANTHROPIC, a_tool("{to: bob}")),
    malformed_case("P27 cut by MAX_TOKENS but whole JSON", GEMINI, [g.call("c1", "pay", PAY), g.finish("MAX_TOKENS")]),
    malformed_case("P29 no JSON", GEMINI, g.calls(("c1", "pay", "{to: bob}"))),
    malformed_case("P29 no object", GEMINI, g.calls(("c1", "pay", '["bob", 5]'))),
    call_case("P29 does not fit the schema", GEMINI, g.calls(("c1", "pay", AMOUNT % '"five"')), results=[BAD]),
    call_case("P29 one of two", GEMINI, g.calls(("c1", "pay", "{"), ("c2", "pay", PAY)), PAID, [BAD, OK]),
    malformed_case("P29 no object", OPENAI, o.calls(("c1", "pay", '["bob", 5]'))),
    malformed_case("P29 no object", ANTHROPIC, a_tool('["bob", 5]')),
    call_case("P29 does not fit the schema", OPENAI, o.calls(("c1", "pay", AMOUNT % '"five"')), results=[BAD]),
    call_case("P29 does not fit the schema", ANTHROPIC, a_tool(AMOUNT % '"five"'), results=[BAD]),
    call_case("P29 one of two", OPENAI, o.calls(("c1", "pay", "{"), ("c2", "pay", PAY)), PAID, [BAD, OK]),
    call_case("P29 one of two", ANTHROPIC, a.calls(("c1", "pay", "{"), ("c2", "pay", PAY)), PAID, [BAD, OK]),
    *[of_amount("P45 duplicate keys", wire, '5,"amount":500') for wire in ALL_WIRES],
    of_amount("P45 NaN", OPENAI, "NaN"),
    of_amount("P45 infinity", ANTHROPIC, "-Infinity"),
    of_amount("P45 1e400", GEMINI, "1e400"),
    of_amount("P45 a number of 30 digits", RESPONSES, VAST),
    *[of_amount("P45 nested beyond reason", wire, "[" * 5000 + "]" * 5000) for wire in ALL_WIRES],
    malformed_case(
        "P45 1e400 in an object", OPENAI, o_calls(o.call(0, "c", "pay", {"amount": 7}).replace(b"7", b"1e400"))
    ),
    malformed_case("P45 NaN in an object", OPENAI, o_calls(o.call(0, "c", "pay", {"amount": float("nan")}))),
    malformed_case("P45 30 digits in an object", OPENAI, o_calls(o.call(0, "c", "pay", {"amount": int(VAST)}))),
    malformed_case(
        "P45 30 digits in the first event",
        ANTHROPIC,
        [
            a.start(),
            a.open(0, "tool_use", id="c", name="pay", input={"amount": int(VAST)}),
            a.close(0),
            *a.end_with("tool_use"),
        ],
    ),
]
ARGUMENTS = [
    call_case("P30 empty", OPENAI, o.calls(("c1", "look", "")), LOOKED),
    call_case("P30 null", OPENAI, o_calls(raw(index=0, id="c1", function={"name": "look", "arguments": None})), LOOKED),
    call_case("P30 none", OPENAI, o_calls(raw(index=0, id="c1", function={"name": "look"})), LOOKED),
    call_case("P30 empty", ANTHROPIC, a_tool("", name="look"), LOOKED),
    call_case("P30 none", ANTHROPIC, [a.start(), a.tool(0, "c1", "look"), a.close(0), *a.end_with("tool_use")], LOOKED),
    call_case("P30 null", GEMINI, g.calls(("c1", "look", "null")), LOOKED),
    call_case("P30 none", GEMINI, [g.parts({"functionCall": {"name": "look"}}), g.finish()], LOOKED),
    call_case("P31 as an object", OPENAI, o_calls(o.call(0, "c1", "pay", {"to": "bob", "amount": 5})), PAID),
    call_case(
        "P31 in the first event",
        ANTHROPIC,
        [
            *[a.start(), a.open(0, "tool_use", id="c1", name="pay", input={"to": "bob", "amount": 5}), a.close(0)],
            *a.end_with("tool_use"),
        ],
        PAID,
    ),
]
IDS = [
    call_case("P32 id missing", OPENAI, o_calls(o.call(0, None, "pay", PAY)), PAID, look=ids_are("?")),
    call_case(
        "P32 id null",
        OPENAI,
        o_calls(raw(index=0, id=None, function={"name": "pay", "arguments": PAY})),
        PAID,
        look=ids_are("?"),
    ),
    call_case("P32 id missing", GEMINI, [g.call(None, "pay", PAY), g.finish()], PAID, look=ids_are("?")),
    call_case("P32 id null", ANTHROPIC, a_tool(PAY, id=None), PAID, look=ids_are("?")),
    *both("P32 ids empty", ("", "pay", PAY), ("", "look", "{}"), paid=PAID + LOOKED, look=ids_are("?", "?")),
    *both("P33 duplicate ids", ("c1", "pay", PAY), ("c1", "look", "{}"), paid=PAID + LOOKED, look=ids_are("c1", "?")),
    call_case("P37 an id that no vendor allows", OPENAI, o.calls((ODD_ID, "pay", PAY)), PAID, look=ids_are(ODD_ID)),
    call_case("P37 an id that no vendor allows", GEMINI, g.calls((ODD_ID, "pay", PAY)), PAID, look=ids_are(ODD_ID)),
    call_case("P37 an id that no vendor allows", ANTHROPIC, a_tool(PAY, id=ODD_ID), PAID, look=ids_are(ODD_ID)),
]
PIECES = [
    call_case(
        "P34 id and name in each piece",
        OPENAI,
        o_calls(o.call(0, "c1", "pay", PAY[:9]), o.call(0, "c1", "pay", PAY[9:])),
        PAID,
        look=ids_are("c1"),
    ),
    call_case(
        "P34 id and name in each piece, no index",
        OPENAI,
        o_calls(o.call(None, "c1", "pay", PAY[:9]), o.call(None, "c1", "pay", PAY[9:])),
        PAID,
        look=ids_are("c1"),
    ),
    call_case(
        "P35 two calls interleaved",
        OPENAI,
        o_calls(
            *[o.call(0, "c1", "pay", PAY[:9]), o.call(1, "c2", "pay", EVE[:9])],
            *[o.call(0, None, None, PAY[9:]), o.call(1, None, None, EVE[9:])],
        ),
        [*PAID, ("eve", 1)],
        look=ids_are("c1", "c2"),
    ),
    call_case(
        "P35 two calls interleaved",
        ANTHROPIC,
        [
            *[a.start(), a.tool(0, "c1", "pay"), a.tool(1, "c2", "pay"), a.json(0, PAY[:9]), a.json(1, EVE[:9])],
            *[a.json(0, PAY[9:]), a.json(1, EVE[9:]), a.close(0), a.close(1), *a.end_with("tool_use")],
        ],
        [*PAID, ("eve", 1)],
        look=ids_are("c1", "c2"),
    ),
    call_case(
        "P35 two calls in one event",
        GEMINI,
        [g.parts(*[{"functionCall": {"id": f"c{n}", "name": "look"}} for n in (1, 2)]), g.finish()],
        LOOKED * 2,
        look=ids_are("c1", "c2"),
    ),
    call_case("P36 index starts at 1", OPENAI, o_calls(o.call(1, "c1", "pay", CUT), o.call(1, None, None, "}")), PAID),
    call_case(
        "P36 index missing",
        OPENAI,
        o_calls(o.call(None, "c1", "pay", CUT), o.call(None, None, None, "}"), o.call(None, "c2", "look", "{}")),
        PAID + LOOKED,
        look=ids_are("c1", "c2"),
    ),
    call_case(
        "P36 index and ids missing",
        OPENAI,
        o_calls(o.call(None, None, "pay", PAY), o.call(None, None, "look", "{}")),
        PAID + LOOKED,
        look=ids_are("?", "?"),
    ),
    call_case(
        "P36 all at index 0 with new ids",
        OPENAI,
        o_calls(
            *[o.call(0, "c1", "pay", CUT), o.call(0, None, None, "}")],
            *[o.call(0, "c2", "look"), o.call(0, None, None, "{}")],
        ),
        PAID + LOOKED,
        look=ids_are("c1", "c2"),
    ),
    call_case(
        "P36 blocks start at 3",
        ANTHROPIC,
        [a.start(), *a.tool_block(3, "c", "pay", PAY), *a.end_with("tool_use")],
        PAID,
    ),
    call_case("P38 finish stop but calls", OPENAI, o_calls(o.call(0, "c1", "pay", PAY), finish="stop"), PAID),
    call_case("P38 finish function_call", OPENAI, o_calls(o.call(0, "c1", "pay", PAY), finish="function_call"), PAID),
    call_case("P38 end_turn but calls", ANTHROPIC, a_tool(PAY, stop="end_turn"), PAID),
]


def r_cut(*events: bytes) -> list[bytes]:
    """A response that is cut by its limit."""
    return [r.start(), *events, r.stop("max_output_tokens")]


def r_item(item: dict[str, Any]) -> list[bytes]:
    """A response of one item that is not streamed in pieces."""
    return r.complete([r.added(0, item), r.done(0, item)])


RESPONSES_UNREADABLE = [
    malformed_case("P27 cut by its limit", RESPONSES, r_cut(*r.call(0, "c1", "pay", CUT))),
    malformed_case("P27 cut by its limit but whole JSON", RESPONSES, r_cut(*r.call(0, "c1", "pay", PAY))),
    malformed_case("P29 no JSON", RESPONSES, r.calls(("c1", "pay", "{to: bob}"))),
    malformed_case("P29 no object", RESPONSES, r.calls(("c1", "pay", '["bob", 5]'))),
    call_case("P29 does not fit the schema", RESPONSES, r.calls(("c1", "pay", AMOUNT % '"five"')), results=[BAD]),
    call_case("P29 one of two", RESPONSES, r.calls(("c1", "pay", "{"), ("c2", "pay", PAY)), PAID, [BAD, OK]),
    malformed_case(
        "P45 30 digits in an object", RESPONSES, r_item({**ITEM, "call_id": "c1", "arguments": {"amount": int(VAST)}})
    ),
]
RESPONSES_ARGUMENTS = [
    call_case("P30 empty", RESPONSES, r.calls(("c1", "look", "")), LOOKED),
    call_case("P30 null", RESPONSES, r_item({**ITEM, "call_id": "c1", "arguments": None}), LOOKED),
    call_case("P30 none", RESPONSES, r_item({**ITEM, "call_id": "c1"}), LOOKED),
    call_case("P31 as an object", RESPONSES, r_item({**ITEM, "call_id": "c1", "arguments": {}}), LOOKED),
]
RESPONSES_IDS = [
    call_case(
        "P32 id missing", RESPONSES, r_item({"type": "function_call", "name": "look"}), LOOKED, look=ids_are("?")
    ),
    call_case("P32 only the id of the item", RESPONSES, r_item(ITEM), LOOKED, look=ids_are("?")),
    call_case("P37 an id that no vendor allows", RESPONSES, r.calls((ODD_ID, "pay", PAY)), PAID, look=ids_are(ODD_ID)),
]
RESPONSES_PIECES = [
    call_case(
        "P35 two calls interleaved",
        RESPONSES,
        [
            *[r.start(), r.open_call(0, "c1", "pay"), r.open_call(1, "c2", "look")],
            *[r.done(1, r.call_item(1, "c2", "look", "{}")), r.done(0, r.call_item(0, "c1", "pay", PAY)), r.end()],
        ],
        [*LOOKED, *PAID],
        look=ids_are("c2", "c1"),
    ),
    call_case("P36 items start at 3", RESPONSES, r.complete(r.call(3, "c1", "pay", PAY)), PAID),
    call_case(
        "P36 index missing",
        RESPONSES,
        [event.replace(b'"output_index":0,', b"") for event in r.complete(r.call(0, "c1", "pay", PAY))],
        PAID,
    ),
    call_case("P38 only the end of the response", RESPONSES, [r.calls(("c1", "pay", PAY))[-1]], PAID),
]
NAMES = [
    unknown(f"P37 {what}", wire, name)
    for wire in ALL_WIRES
    for what, name in [
        ("unknown tool", "fly"),
        ("name with spaces", "pay bob now"),
        ("name in unicode", "zahlé😀"),
        ("name of 1 KB", "n" * 1024),
        ("empty name", ""),
    ]
]


@make_params([*UNREADABLE, *RESPONSES_UNREADABLE])
async def test_malformed_call_does_not_run_and_the_model_reads_an_error(row: StreamCase) -> None:
    await row.check()


@make_params([*ARGUMENTS, *RESPONSES_ARGUMENTS])
async def test_arguments_may_be_absent_or_a_json_value(row: StreamCase) -> None:
    await row.check()


@make_params([*IDS, *RESPONSES_IDS])
async def test_every_call_has_a_unique_id(row: StreamCase) -> None:
    await row.check()


@make_params([*PIECES, *RESPONSES_PIECES])
async def test_argument_deltas_are_assigned_to_their_call(row: StreamCase) -> None:
    await row.check()


@make_params(NAMES)
async def test_call_of_an_unknown_tool_is_answered_with_the_known_names(row: StreamCase) -> None:
    await row.check()


@pytest.mark.parametrize("wire", ALL_WIRES, ids=repr)
async def test_P29_model_that_always_writes_malformed_arguments_gets_two_repairs(wire: Wire) -> None:
    broken_call = response(*wire.builder.calls(("c1", "pay", "{to: bob}")))
    async with open_setup(wire, FaultServer(*[broken_call] * 3)) as setup:
        turn = await setup.turn()
        assert isinstance(turn.error, ProviderError)
        assert turn.error.kind == "protocol"
        assert turn.results == [BAD] * 3
        assert setup.paid == []
        assert setup.requests == [3]
        await setup.next_turn_works()
