"""What a server's refusal leads to (P40, P46–P51, P54): another try or provider, a shorter history, or the end."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from wire_turns import ANTHROPIC, KEY, OPENAI, WIRES, LeapClock, Turn, Wire, room

from atlas_agents import ProviderError, RetryPolicy
from fault_server import FaultServer, Script, response
from sse_events import a, o

both_wires = pytest.mark.parametrize("wire", WIRES, ids=repr)
GIVEN = RetryPolicy(order="given")
PLAIN = {400: "bad_request", 404: "bad_request", 422: "bad_request", 418: "bad_request", 302: "bad_request"}
KEYS = {401: "auth", 403: "auth"}
PASSING = {
    408: "timeout",
    409: "server",
    429: "rate_limit",
    500: "server",
    502: "server",
    503: "overloaded",
    504: "server",
    529: "overloaded",
}
TOO_LONG: dict[str, tuple[int, dict[str, str]]] = {
    "413": (413, {}),
    "OpenAI's code": (400, {"code": "context_length_exceeded", "message": "reduce the length"}),
    "Anthropic's words": (
        400,
        {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8"},
    ),
    "a proxy's words": (400, {"message": "This model's maximum context length is 8 tokens"}),
}


def refusal(status: int, error: object = None, **headers: str) -> Script:
    body = json.dumps({"error": error or {"message": "no luck"}}).encode()
    return response(body, status=f"{status} No", type="application/json", framing="sized", **headers)


def good(wire: Wire, text: str = "Fine.") -> Script:
    return response(*wire.builder.says(text))


def kind_of(turn: Turn) -> str:
    assert isinstance(turn.error, ProviderError)
    return turn.error.kind


@both_wires
@pytest.mark.parametrize("status", PLAIN, ids=lambda status: f"P46 {status}")
async def test_a_bad_request_is_final_and_not_sprayed_over_other_providers(status: int, wire: Wire) -> None:
    async with room(wire, FaultServer(refusal(status)), FaultServer(), retry=GIVEN) as here:
        turn = await here.turn()
        assert kind_of(turn) == PLAIN[status]
        assert [message.role for message in turn.added] == ["user"]
        assert here.requests == [1, 0]
        await here.next_turn_works()
        assert here.requests == [2, 0]


@both_wires
@pytest.mark.parametrize("status", KEYS, ids=lambda status: f"P46 {status}")
async def test_a_provider_that_refuses_the_key_rests_long_while_another_answers(status: int, wire: Wire) -> None:
    clock = LeapClock()
    first, second = FaultServer(refusal(status)), FaultServer(good(wire), good(wire))
    async with room(wire, first, second, retry=GIVEN, clock=clock) as here:
        assert (await here.turn()).said == ["Fine."]
        assert here.requests == [1, 1]
        clock.ahead += 590
        assert (await here.turn()).said == ["Fine."]
        assert here.requests == [1, 2]
        clock.ahead += 20
        await here.next_turn_works()
        assert here.requests == [2, 2]
        assert clock.slept == []


@both_wires
@pytest.mark.parametrize("status", KEYS, ids=lambda status: f"P46 {status}")
async def test_a_refused_key_of_the_only_provider_is_final(status: int, wire: Wire) -> None:
    async with room(wire, FaultServer(refusal(status, {"message": f"wrong key: {KEY}"})), clock=LeapClock()) as here:
        turn = await here.turn()
        assert kind_of(turn) == "auth"
        assert str(turn.error) == f"HTTP {status}: wrong key: [REDACTED]"
        assert here.requests == [1]
        await here.next_turn_works()


@both_wires
@pytest.mark.parametrize("case", TOO_LONG, ids=lambda case: f"P46 {case}")
async def test_a_history_that_is_too_long_is_shortened_once(case: str, wire: Wire) -> None:
    too_long = refusal(TOO_LONG[case][0], TOO_LONG[case][1])
    calling = response(*wire.builder.calls(("c1", "pay", '{"to":"bob","amount":5}')))
    server = FaultServer(calling, good(wire), good(wire), too_long, good(wire, "Shorter."), too_long, too_long)
    async with room(wire, server) as here:
        await here.turn("first " * 50)
        await here.turn("second " * 50)
        turn = await here.turn("third")
        assert turn.said == ["Shorter."]
        assert here.requests == [5]
        before, after = [asked.body["messages"] for asked in server.requests[3:5]]
        assert len(after) < len(before)
        assert after[-1] == before[-1]
        assert here.paid == [("bob", 5)]
        assert kind_of(await here.turn("fourth")) == "context_length"
        assert here.requests == [7]
        await here.next_turn_works()


@pytest.mark.parametrize(
    ("wire", "too_long"),
    [
        pytest.param(OPENAI, [o.text("Well"), o.error("", code="context_length_exceeded")], id="P19 openai"),
        pytest.param(ANTHROPIC, [*a.says("Well")[:3], a.error("request_too_large")], id="P21 anthropic"),
    ],
)
async def test_a_history_found_too_long_after_the_first_words_is_shortened_too(
    wire: Wire, too_long: list[bytes]
) -> None:
    server = FaultServer(good(wire), good(wire), response(*too_long), good(wire, "Shorter."))
    async with room(wire, server) as here:
        await here.turn("first " * 50)
        await here.turn("second " * 50)
        turn = await here.turn("third")
        assert (turn.said, turn.resets) == (["Shorter."], 1)
        assert here.requests == [4]
        await here.next_turn_works()


@both_wires
async def test_P46_a_redirect_is_named_whatever_bytes_it_points_to(wire: Wire) -> None:
    moved = [b"HTTP/1.1 302 Moved\r\nlocation: http://\xff/\r\ncontent-length: 0\r\n\r\n"]
    async with room(wire, FaultServer(moved)) as here:
        turn = await here.turn()
        assert kind_of(turn) == "bad_request"
        assert "http://\ufffd/" in str(turn.error)
        await here.next_turn_works()


@both_wires
async def test_P46_a_single_message_that_is_too_long_is_final(wire: Wire) -> None:
    async with room(wire, FaultServer(refusal(413))) as here:
        assert kind_of(await here.turn()) == "context_length"
        assert here.requests == [1]
        await here.next_turn_works()


@both_wires
@pytest.mark.parametrize("status", PASSING, ids=lambda status: f"P47 {status}")
async def test_a_passing_trouble_is_tried_twice_more_with_growing_waits(status: int, wire: Wire) -> None:
    clock = LeapClock()
    async with room(wire, FaultServer(refusal(status), refusal(status), good(wire)), retry=GIVEN, clock=clock) as here:
        turn = await here.turn()
        assert turn.said == ["Fine."]
        assert turn.resets == 0
        assert here.requests == [3]
        assert 0.37 < clock.slept[0] < 0.63
        assert 0.74 < clock.slept[1] < 1.26
        await here.next_turn_works()


@both_wires
@pytest.mark.parametrize("status", PASSING, ids=lambda status: f"P47 {status}")
async def test_a_trouble_that_stays_leads_to_the_next_provider_and_a_rest(status: int, wire: Wire) -> None:
    clock = LeapClock()
    first, second = FaultServer(*[refusal(status)] * 3), FaultServer(good(wire), good(wire))
    async with room(wire, first, second, retry=GIVEN, clock=clock) as here:
        assert (await here.turn()).said == ["Fine."]
        assert here.requests == [3, 1]
        assert (await here.turn()).said == ["Fine."]
        assert here.requests == [3, 2]
        clock.ahead += 16
        await here.next_turn_works()
        assert here.requests == [4, 2]


@pytest.mark.parametrize("status", PASSING, ids=lambda status: f"P47 {status}")
async def test_a_trouble_that_stays_ends_the_turn_of_the_only_provider(status: int) -> None:
    async with room(OPENAI, FaultServer(*[refusal(status)] * 3), clock=LeapClock()) as here:
        turn = await here.turn()
        assert kind_of(turn) == PASSING[status]
        assert here.requests == [3]
        await here.next_turn_works()


def header_of(value: str) -> str:
    """`in 25 s` is the date which that is now; all else stays as it is."""
    match value.split():
        case ["in", seconds, "s"]:
            return format_datetime(datetime.now(UTC) + timedelta(seconds=float(seconds)), usegmt=True)
        case _:
            return value


@both_wires
@pytest.mark.parametrize(
    ("header", "value", "least", "most"),
    [
        pytest.param("retry_after", "1", 1, 1, id="P48 one second"),
        pytest.param("retry_after", "0", 0, 0, id="P48 at once"),
        pytest.param("retry_after", "29.5", 29.5, 29.5, id="P48 nearly too long"),
        pytest.param("retry_after_ms", "250", 0.25, 0.25, id="P48 milliseconds"),
        pytest.param("retry_after", "in 25 s", 20, 25, id="P48 a date"),
        pytest.param("retry_after", "-5", 0.37, 0.63, id="P50 negative"),
        pytest.param("retry_after", "nan", 0.37, 0.63, id="P50 NaN"),
        pytest.param("retry_after", "in -60 s", 0.37, 0.63, id="P50 a date in the past"),
        pytest.param("retry_after", "soon", 0.37, 0.63, id="P50 a word"),
        pytest.param("retry_after", "", 0.37, 0.63, id="P50 empty"),
        pytest.param("retry_after", "Fri, 99 Foo 99999 25:61:61 GMT", 0.37, 0.63, id="P50 no date"),
    ],
)
async def test_a_wished_wait_is_kept_and_nonsense_is_not(
    wire: Wire, header: str, value: str, least: float, most: float
) -> None:
    clock = LeapClock()
    busy = refusal(429, **{header: header_of(value)})
    async with room(wire, FaultServer(busy, good(wire)), retry=GIVEN, clock=clock) as here:
        assert (await here.turn()).said == ["Fine."]
        assert len(clock.slept) == 1
        assert least <= clock.slept[0] <= most
        await here.next_turn_works()
        assert here.requests == [3]


@both_wires
@pytest.mark.parametrize("value", ["3600", "31", "inf", "1e400", "in 7200 s"], ids=lambda value: f"P49 {value}")
async def test_a_wait_that_is_too_long_is_not_kept(wire: Wire, value: str) -> None:
    clock = LeapClock()
    busy = refusal(429, retry_after=header_of(value))
    async with room(wire, FaultServer(busy), FaultServer(good(wire), good(wire)), retry=GIVEN, clock=clock) as here:
        assert (await here.turn()).said == ["Fine."]
        assert here.requests == [1, 1]
        clock.ahead += 30
        assert (await here.turn()).said == ["Fine."]
        assert here.requests == [1, 2]
        clock.ahead += 3600
        await here.next_turn_works()
        assert here.requests == [2, 2]
        assert clock.slept == []


@both_wires
async def test_P49_a_wait_that_is_too_long_is_an_error_at_once_for_the_only_provider(wire: Wire) -> None:
    clock = LeapClock()
    async with room(wire, FaultServer(refusal(429, retry_after="3600")), clock=clock) as here:
        assert kind_of(await here.turn()) == "rate_limit"
        assert (here.requests, clock.slept) == ([1], [])
        await here.next_turn_works()


@pytest.mark.parametrize(
    ("wire", "spent"),
    [
        pytest.param(OPENAI, refusal(429, {"code": "insufficient_quota", "message": "pay"}), id="P51 by code"),
        pytest.param(OPENAI, refusal(429, {"type": "insufficient_quota", "message": "pay"}), id="P51 by type"),
        pytest.param(OPENAI, response(o.error("insufficient_quota")), id="P51 in the stream"),
        pytest.param(ANTHROPIC, refusal(402, {"type": "billing_error", "message": "pay"}), id="P51 billing"),
        pytest.param(ANTHROPIC, response(a.error("billing_error")), id="P51 billing in the stream"),
    ],
)
async def test_a_spent_quota_is_not_asked_again(wire: Wire, spent: Script) -> None:
    clock = LeapClock()
    async with room(wire, FaultServer(spent), FaultServer(good(wire), good(wire)), retry=GIVEN, clock=clock) as here:
        assert (await here.turn()).said == ["Fine."]
        clock.ahead += 590
        assert (await here.turn()).said == ["Fine."]
        assert here.requests == [1, 2]
        assert clock.slept == []
        clock.ahead += 20
        await here.next_turn_works()
    async with room(wire, FaultServer(spent), clock=clock) as here:
        assert kind_of(await here.turn()) == "quota"
        assert here.requests == [1]
        await here.next_turn_works()


RESET: Script = ["reset"]
DOWN: dict[str, list[Script]] = {
    "resets": [RESET, RESET, RESET],
    "statuses": [refusal(503), refusal(503), refusal(503)],
    "empty bodies": [response(), response(), response()],
    "keys": [refusal(401)],
}


@both_wires
@pytest.mark.parametrize("second", DOWN)
@pytest.mark.parametrize("first", DOWN)
async def test_P54_all_providers_down_is_one_error_and_the_next_turn_works(wire: Wire, first: str, second: str) -> None:
    clock = LeapClock()
    async with room(wire, FaultServer(*DOWN[first]), FaultServer(*DOWN[second]), retry=GIVEN, clock=clock) as here:
        turn = await here.turn()
        assert isinstance(turn.error, ProviderError)
        assert turn.kinds == ["message:sent", "stream:start", "stream:end", "error"]
        assert [message.role for message in turn.added] == ["user"]
        assert here.requests == [len(DOWN[first]), len(DOWN[second])]
        assert sum(clock.slept) < 10
        await here.next_turn_works()
        assert here.atlas.conversation().messages[0] == turn.added[0]


@both_wires
async def test_P54_one_turn_has_one_budget_of_attempts(wire: Wire) -> None:
    down = [FaultServer(then=RESET) for _ in range(4)]
    async with room(wire, *down, retry=RetryPolicy(order="given", failures=5), clock=LeapClock()) as here:
        assert kind_of(await here.turn()) == "network"
        assert here.requests == [3, 2, 0, 0]


@both_wires
async def test_P54_nobody_listening_is_an_error_too(wire: Wire) -> None:
    gone = FaultServer()
    async with room(wire, gone, clock=LeapClock()) as here:
        await gone.stop_listening()
        assert kind_of(await here.turn()) == "network"


@pytest.mark.parametrize(
    ("wire", "refuses"),
    [
        pytest.param(OPENAI, response(o.text("I won't"), *o.end_with("content_filter")), id="P40 content_filter"),
        pytest.param(ANTHROPIC, response(a.start(), *a.block(0, "I won't"), *a.end_with("refusal")), id="P40 refusal"),
    ],
)
async def test_a_refusal_leads_to_another_provider_only_where_wanted(wire: Wire, refuses: Script) -> None:
    async with room(wire, FaultServer(refuses), FaultServer(), retry=GIVEN) as here:
        assert (await here.turn()).said == ["I won't"]
        await here.next_turn_works()
        assert here.requests == [2, 0]
    wanted = RetryPolicy(order="given", on_refusal="failover")
    async with room(wire, FaultServer(refuses, refuses), FaultServer(good(wire), refuses), retry=wanted) as here:
        turn = await here.turn()
        assert (turn.said, turn.resets, here.requests) == (["Fine."], 1, [1, 1])
        turn = await here.turn()
        assert (turn.said, turn.resets, here.requests) == (["I won't"], 1, [2, 2])
        assert turn.reply is not None
        assert turn.reply.metadata["refused"] is True
        await here.next_turn_works()
        assert here.requests == [3, 2]
