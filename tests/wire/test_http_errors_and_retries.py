"""HTTP errors (P40, P46–P51, P54) lead to a retry, failover, a shorter history, or the end of the turn."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from wire_setup import ANTHROPIC, GEMINI, KEY, OPENAI, RESPONSES, WIRES, SkippingClock, Turn, Wire, open_setup

from atlas_agents import ProviderError, RetryPolicy
from fault_server import FaultServer, Script, response
from sse_events import a, g, o, r

both_wires = pytest.mark.parametrize("wire", WIRES, ids=repr)


def with_a_wire(name: str, values: Iterable[Any], prefix: str) -> pytest.MarkDecorator:
    """Each value with one wire, and each wire at least once: retries do not depend on the wire."""
    cases = [*values]
    count = len(WIRES)
    rows = [(cases[n % len(cases)], WIRES[(n + n // count) % count]) for n in range(max(len(cases), count))]
    return pytest.mark.parametrize((name, "wire"), rows, ids=[f"{prefix} {value} {wire}" for value, wire in rows])


IN_ORDER = RetryPolicy(order="given")
PLAIN = {400: "bad_request", 422: "bad_request", 418: "bad_request", 302: "bad_request"}
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
    "Anthropic's message": (
        400,
        {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8"},
    ),
    "Google's message": (
        400,
        {"status": "INVALID_ARGUMENT", "message": "The input token count (9) exceeds the maximum number of tokens"},
    ),
    "a proxy's message": (400, {"message": "This model's maximum context length is 8 tokens"}),
}


DAILY_QUOTA = {
    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
    "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}],
}


def error_response(status: int, error: object = None, **headers: str) -> Script:
    body = json.dumps({"error": error or {"message": "no luck"}}).encode()
    return response(body, status=f"{status} No", type="application/json", framing="sized", **headers)


def success(wire: Wire, text: str = "Fine.") -> Script:
    return response(*wire.builder.says(text))


def error_kind(turn: Turn) -> str:
    assert isinstance(turn.error, ProviderError)
    return turn.error.kind


@with_a_wire("status", PLAIN, "P46")
async def test_bad_request_is_final_and_not_sent_to_other_providers(status: int, wire: Wire) -> None:
    async with open_setup(wire, FaultServer(error_response(status)), FaultServer(), retry=IN_ORDER) as setup:
        turn = await setup.turn()
        assert error_kind(turn) == PLAIN[status]
        assert [message.role for message in turn.added] == ["user"]
        assert setup.requests == [1, 0]
        await setup.next_turn_works()
        assert setup.requests == [2, 0]


@both_wires
@pytest.mark.parametrize("status", KEYS, ids=lambda status: f"P46 {status}")
async def test_provider_that_rejects_the_key_cools_down_for_long(status: int, wire: Wire) -> None:
    clock = SkippingClock()
    first, second = FaultServer(error_response(status)), FaultServer(success(wire), success(wire))
    async with open_setup(wire, first, second, retry=IN_ORDER, clock=clock) as setup:
        assert (await setup.turn()).reply_texts == ["Fine."]
        assert setup.requests == [1, 1]
        clock.ahead += 590
        assert (await setup.turn()).reply_texts == ["Fine."]
        assert setup.requests == [1, 2]
        clock.ahead += 20
        await setup.next_turn_works()
        assert setup.requests == [2, 2]
        assert clock.slept == []


@both_wires
@pytest.mark.parametrize("status", KEYS, ids=lambda status: f"P46 {status}")
async def test_rejected_key_of_a_single_provider_is_final(status: int, wire: Wire) -> None:
    async with open_setup(
        wire, FaultServer(error_response(status, {"message": f"wrong key: {KEY}"})), clock=SkippingClock()
    ) as setup:
        turn = await setup.turn()
        assert error_kind(turn) == "auth"
        assert str(turn.error) == f"HTTP {status}: wrong key: [REDACTED]"
        assert setup.requests == [1]
        await setup.next_turn_works()


@both_wires
@pytest.mark.parametrize("case", TOO_LONG, ids=lambda case: f"P46 {case}")
async def test_history_that_is_too_long_is_shortened(case: str, wire: Wire) -> None:
    too_long = error_response(TOO_LONG[case][0], TOO_LONG[case][1])
    calling = response(*wire.builder.calls(("c1", "pay", '{"to":"bob","amount":5}')))
    shorter = success(wire, "Shorter.")
    server = FaultServer(calling, success(wire), success(wire), too_long, shorter, then=too_long)
    async with open_setup(wire, server) as setup:
        await setup.turn("first " * 50)
        await setup.turn("second " * 50)
        turn = await setup.turn("third")
        assert turn.reply_texts == ["Shorter."]
        assert setup.requests == [5]
        before, after = [request.body[wire.messages] for request in server.requests[3:5]]
        assert len(after) < len(before)
        assert after[-1] == before[-1]
        assert setup.paid == [("bob", 5)]
        assert error_kind(await setup.turn("fourth")) == "context_length"
        assert 6 <= setup.requests[0] <= 7  # once more, if an estimate leaves something to omit
        await setup.next_turn_works()


@pytest.mark.parametrize(
    ("wire", "too_long"),
    [
        pytest.param(OPENAI, [o.text("Well"), o.error("", code="context_length_exceeded")], id="P19 openai"),
        pytest.param(ANTHROPIC, [*a.says("Well")[:3], a.error("request_too_large")], id="P21 anthropic"),
        pytest.param(RESPONSES, [*r.says("Well")[:4], r.fail("context_length_exceeded")], id="P19 responses"),
        pytest.param(
            GEMINI,
            [g.text("Well"), g.error("INVALID_ARGUMENT", "token count exceeds the maximum number of tokens allowed")],
            id="P19 gemini",
        ),
    ],
)
async def test_length_error_in_mid_stream_shortens_the_history(wire: Wire, too_long: list[bytes]) -> None:
    server = FaultServer(success(wire), success(wire), response(*too_long), success(wire, "Shorter."))
    async with open_setup(wire, server) as setup:
        await setup.turn("first " * 50)
        await setup.turn("second " * 50)
        turn = await setup.turn("third")
        assert (turn.reply_texts, turn.resets) == (["Shorter."], 1)
        assert setup.requests == [4]
        await setup.next_turn_works()


@both_wires
async def test_P46_error_names_the_target_of_a_redirect(wire: Wire) -> None:
    moved = [b"HTTP/1.1 302 Moved\r\nlocation: http://\xff/\r\ncontent-length: 0\r\n\r\n"]
    async with open_setup(wire, FaultServer(moved)) as setup:
        turn = await setup.turn()
        assert error_kind(turn) == "bad_request"
        assert "http://\ufffd/" in str(turn.error)
        await setup.next_turn_works()


@both_wires
async def test_P46_single_message_that_is_too_long_is_final(wire: Wire) -> None:
    async with open_setup(wire, FaultServer(error_response(413))) as setup:
        assert error_kind(await setup.turn()) == "context_length"
        assert setup.requests == [1]
        await setup.next_turn_works()


@with_a_wire("status", PASSING, "P47")
async def test_transient_error_is_retried_twice_with_backoff(status: int, wire: Wire) -> None:
    clock = SkippingClock()
    async with open_setup(
        wire, FaultServer(error_response(status), error_response(status), success(wire)), retry=IN_ORDER, clock=clock
    ) as setup:
        turn = await setup.turn()
        assert turn.reply_texts == ["Fine."]
        assert turn.resets == 0
        assert setup.requests == [3]
        assert 0.37 < clock.slept[0] < 0.63
        assert 0.74 < clock.slept[1] < 1.26
        await setup.next_turn_works()


@with_a_wire("status", PASSING, "P47")
async def test_persistent_error_fails_over_and_starts_a_cooldown(status: int, wire: Wire) -> None:
    clock = SkippingClock()
    first, second = FaultServer(*[error_response(status)] * 3), FaultServer(success(wire), success(wire))
    async with open_setup(wire, first, second, retry=IN_ORDER, clock=clock) as setup:
        assert (await setup.turn()).reply_texts == ["Fine."]
        assert setup.requests == [3, 1]
        assert (await setup.turn()).reply_texts == ["Fine."]
        assert setup.requests == [3, 2]
        clock.ahead += 16
        await setup.next_turn_works()
        assert setup.requests == [4, 2]


@pytest.mark.parametrize("status", PASSING, ids=lambda status: f"P47 {status}")
async def test_persistent_error_of_a_single_provider_ends_the_turn(status: int) -> None:
    async with open_setup(OPENAI, FaultServer(*[error_response(status)] * 3), clock=SkippingClock()) as setup:
        turn = await setup.turn()
        assert error_kind(turn) == PASSING[status]
        assert setup.requests == [3]
        await setup.next_turn_works()


def format_header(value: str) -> str:
    """Replace `in 25 s` by that date; return any other value unchanged."""
    match value.split():
        case ["in", seconds, "s"]:
            return format_datetime(datetime.now(UTC) + timedelta(seconds=float(seconds)), usegmt=True)
        case _:
            return value


@pytest.mark.parametrize("wire", [OPENAI, ANTHROPIC], ids=repr)
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
async def test_valid_retry_after_is_honoured_and_an_invalid_one_is_ignored(
    wire: Wire, header: str, value: str, least: float, most: float
) -> None:
    clock = SkippingClock()
    busy = error_response(429, **{header: format_header(value)})
    async with open_setup(wire, FaultServer(busy, success(wire)), retry=IN_ORDER, clock=clock) as setup:
        assert (await setup.turn()).reply_texts == ["Fine."]
        assert len(clock.slept) == 1
        assert least <= clock.slept[0] <= most
        await setup.next_turn_works()
        assert setup.requests == [3]


@with_a_wire("value", ["3600", "31", "inf", "1e400", "in 7200 s"], "P49")
async def test_retry_after_that_is_too_long_fails_over(value: str, wire: Wire) -> None:
    clock = SkippingClock()
    busy = error_response(429, retry_after=format_header(value))
    async with open_setup(
        wire, FaultServer(busy), FaultServer(success(wire), success(wire)), retry=IN_ORDER, clock=clock
    ) as setup:
        assert (await setup.turn()).reply_texts == ["Fine."]
        assert setup.requests == [1, 1]
        clock.ahead += 30
        assert (await setup.turn()).reply_texts == ["Fine."]
        assert setup.requests == [1, 2]
        clock.ahead += 3600
        await setup.next_turn_works()
        assert setup.requests == [2, 2]
        assert clock.slept == []


@both_wires
async def test_P49_retry_after_that_is_too_long_fails_a_single_provider(wire: Wire) -> None:
    clock = SkippingClock()
    async with open_setup(wire, FaultServer(error_response(429, retry_after="3600")), clock=clock) as setup:
        assert error_kind(await setup.turn()) == "rate_limit"
        assert (setup.requests, clock.slept) == ([1], [])
        await setup.next_turn_works()


@pytest.mark.parametrize(
    ("wire", "no_quota"),
    [
        pytest.param(OPENAI, error_response(429, {"code": "insufficient_quota", "message": "pay"}), id="P51 by code"),
        pytest.param(OPENAI, error_response(429, {"type": "insufficient_quota", "message": "pay"}), id="P51 by type"),
        pytest.param(OPENAI, response(o.error("insufficient_quota")), id="P51 in the stream"),
        pytest.param(ANTHROPIC, error_response(402, {"type": "billing_error", "message": "pay"}), id="P51 billing"),
        pytest.param(ANTHROPIC, response(a.error("billing_error")), id="P51 billing in the stream"),
        pytest.param(GEMINI, error_response(429, {"details": [DAILY_QUOTA]}), id="P51 quota of the day"),
        pytest.param(RESPONSES, response(r.start(), r.fail("insufficient_quota")), id="P51 in a failed response"),
    ],
)
async def test_exhausted_quota_is_not_retried(wire: Wire, no_quota: Script) -> None:
    clock = SkippingClock()
    async with open_setup(
        wire, FaultServer(no_quota), FaultServer(success(wire), success(wire)), retry=IN_ORDER, clock=clock
    ) as setup:
        assert (await setup.turn()).reply_texts == ["Fine."]
        clock.ahead += 590
        assert (await setup.turn()).reply_texts == ["Fine."]
        assert setup.requests == [1, 2]
        assert clock.slept == []
        clock.ahead += 20
        await setup.next_turn_works()
    async with open_setup(wire, FaultServer(no_quota), clock=clock) as setup:
        assert error_kind(await setup.turn()) == "quota"
        assert setup.requests == [1]
        await setup.next_turn_works()


RESET: Script = ["reset"]
DOWN: dict[str, list[Script]] = {
    "resets": [RESET, RESET, RESET],
    "statuses": [error_response(503), error_response(503), error_response(503)],
    "empty bodies": [response(), response(), response()],
    "keys": [error_response(401)],
}


@with_a_wire("pair", [(first, second) for first in DOWN for second in DOWN], "P54")
async def test_P54_all_providers_down_gives_one_error_and_the_next_turn_works(
    pair: tuple[str, str], wire: Wire
) -> None:
    first, second = pair
    clock = SkippingClock()
    async with open_setup(
        wire, FaultServer(*DOWN[first]), FaultServer(*DOWN[second]), retry=IN_ORDER, clock=clock
    ) as setup:
        turn = await setup.turn()
        assert isinstance(turn.error, ProviderError)
        assert turn.kinds == ["message:sent", "stream:start", "stream:end", "error"]
        assert [message.role for message in turn.added] == ["user"]
        assert setup.requests == [len(DOWN[first]), len(DOWN[second])]
        assert sum(clock.slept) < 10
        await setup.next_turn_works()
        assert setup.atlas.conversation().messages[0] == turn.added[0]


@both_wires
async def test_P54_turn_has_one_retry_budget(wire: Wire) -> None:
    down = [FaultServer(then=RESET) for _ in range(4)]
    async with open_setup(wire, *down, retry=RetryPolicy(order="given", failures=5), clock=SkippingClock()) as setup:
        assert error_kind(await setup.turn()) == "network"
        assert setup.requests == [3, 2, 0, 0]


@both_wires
async def test_P54_closed_port_is_a_network_error(wire: Wire) -> None:
    gone = FaultServer()
    async with open_setup(wire, gone, clock=SkippingClock()) as setup:
        await gone.stop_listening()
        assert error_kind(await setup.turn()) == "network"


@pytest.mark.parametrize(
    ("wire", "refuses"),
    [
        pytest.param(OPENAI, response(o.text("I won't"), *o.end_with("content_filter")), id="P40 content_filter"),
        pytest.param(ANTHROPIC, response(a.start(), *a.block(0, "I won't"), *a.end_with("refusal")), id="P40 refusal"),
        pytest.param(GEMINI, response(g.text("I won't"), g.finish("SAFETY")), id="P40 SAFETY"),
        pytest.param(
            RESPONSES, response(*r.says("I won't")[:-1], r.stop("content_filter")), id="P40 content_filter (responses)"
        ),
    ],
)
async def test_model_refusal_fails_over_only_if_configured(wire: Wire, refuses: Script) -> None:
    async with open_setup(wire, FaultServer(refuses), FaultServer(), retry=IN_ORDER) as setup:
        assert (await setup.turn()).reply_texts == ["I won't"]
        await setup.next_turn_works()
        assert setup.requests == [2, 0]
    on_refusal = RetryPolicy(order="given", on_refusal="failover")
    async with open_setup(
        wire, FaultServer(refuses, refuses), FaultServer(success(wire), refuses), retry=on_refusal
    ) as setup:
        turn = await setup.turn()
        assert (turn.reply_texts, turn.resets, setup.requests) == (["Fine."], 1, [1, 1])
        turn = await setup.turn()
        assert (turn.reply_texts, turn.resets, setup.requests) == (["I won't"], 1, [2, 2])
        assert turn.reply is not None
        assert turn.reply.metadata["refused"] is True
        await setup.next_turn_works()
        assert setup.requests == [3, 2]
