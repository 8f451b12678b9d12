"""A server breaks after k events, for every k, and another answers: one answer, never two joined, no tool run twice."""

from collections.abc import Sequence
from typing import Literal

import pytest
from canonical import BODIES, Body
from wire_turns import OPENAI, WIRES, Room, Turn, Wire, room

from atlas_agents import ProviderError, RetryPolicy
from fault_server import FaultServer, Script, broken_response, response

ONCE = RetryPolicy(order="given", retries=0, cooldown=0)
Way = Literal["a close", "a clean end", "a reset", "an error event"]
WAYS: list[Way] = ["a close", "a clean end", "a reset", "an error event"]
PAY = ("c1", "pay", '{"to":"bob","amount":5}')
LOOK = ("c2", "look", "{}")
HI = "Hi 😀 é\u2028!"
TALK = [body for body in BODIES if not body.tools]
CALL = [body for body in BODIES if body.tools]
every_way = pytest.mark.parametrize("way", WAYS)
every_talk = pytest.mark.parametrize("body", TALK, ids=repr)
every_body = pytest.mark.parametrize("body", BODIES, ids=repr)
every_second = pytest.mark.parametrize("second", WIRES, ids=lambda wire: f"then {wire}")


def breaks(body: Body, count: int, way: Way) -> Script:
    """The first events of an answer, and then its end."""
    events = body.events[:count]
    error = "server_error" if body.wire is OPENAI else "overloaded_error"
    match way:
        case "a close":
            return broken_response(*events, by="close")
        case "a clean end":
            return response(*events)
        case "a reset":
            return broken_response(*events, by="reset")
        case "an error event":
            return response(*events, body.wire.builder.error(error))


def is_whole(body: Body, count: int, way: Way) -> bool:
    """A message whose end was seen stands, whatever its connection did then; but not against the vendor's word."""
    return count >= body.last and (way != "an error event" or count == len(body.events))


def places(body: Body) -> Sequence[int]:
    return range(len(body.events) + 1)


@every_way
@every_talk
@every_second
async def test_one_of_two_answers_is_given_and_never_both(body: Body, way: Way, second: Wire) -> None:
    for count in places(body):
        servers = (
            FaultServer(breaks(body, count, way)),
            FaultServer(response(*second.builder.says("From ", "the second."))),
        )
        async with room([body.wire, second], *servers, retry=ONCE) as here:
            turn = await here.turn()
            whole = is_whole(body, count, way)
            assert turn.said == [HI if whole else "From the second."], count
            assert here.requests == [1, not whole], count
            assert turn.resets == (count >= body.first and not whole), count
            await here.next_turn_works()


@every_way
@pytest.mark.parametrize("body", CALL, ids=repr)
@every_second
async def test_calls_of_an_answer_that_broke_are_never_run(body: Body, way: Way, second: Wire) -> None:
    for count in places(body):
        done = response(*second.builder.says("Done."))
        servers = (
            FaultServer(breaks(body, count, way), then=response(*body.wire.builder.says("Done."))),
            FaultServer(done),
        )
        async with room([body.wire, second], *servers, retry=ONCE) as here:
            turn = await here.turn()
            whole = is_whole(body, count, way)
            assert turn.said == ["Hm", "Done."][not whole :], count
            assert here.paid == [("bob", 5), ("éve 😀", -1)] * whole, count
            await here.next_turn_works()


@every_way
@every_talk
@every_second
async def test_tools_of_an_earlier_round_are_not_run_again(body: Body, way: Way, second: Wire) -> None:
    for count in places(body):
        first = FaultServer(response(*body.wire.builder.calls(PAY, LOOK, says="Paying.")), breaks(body, count, way))
        other = FaultServer(response(*second.builder.says("From the second.")))
        async with room([body.wire, second], first, other, retry=ONCE) as here:
            turn = await here.turn()
            whole = is_whole(body, count, way)
            assert turn.said == ["Paying.", HI if whole else "From the second."], count
            assert here.paid == [("bob", 5), ("look", 0)], count
            assert turn.results == [("ok", None)] * 2
            assert here.requests == [2, not whole], count
            await here.next_turn_works()


@every_way
@every_body
async def test_an_only_provider_that_always_breaks_ends_the_turn_in_one_error(body: Body, way: Way) -> None:
    for count in range(body.last):
        script = breaks(body, count, way)
        async with room(body.wire, FaultServer(script, script), retry=RetryPolicy(retries=1, backoff=0.001)) as here:
            turn = await here.turn()
            check_failed(here, turn)
            assert here.requests == [2]
            await here.next_turn_works()


@every_way
@every_talk
async def test_a_turn_that_fails_after_its_tools_keeps_their_results(body: Body, way: Way) -> None:
    for count in range(body.last):
        first = response(*body.wire.builder.calls(PAY, LOOK, says="Paying."))
        async with room(body.wire, FaultServer(first, breaks(body, count, way)), retry=ONCE) as here:
            turn = await here.turn()
            assert isinstance(turn.error, ProviderError)
            assert [message.role for message in turn.added] == ["user", "assistant", "tool"]
            assert here.paid == [("bob", 5), ("look", 0)]
            await here.next_turn_works()
            assert here.paid == [("bob", 5), ("look", 0)]


def check_failed(here: Room, turn: Turn) -> None:
    assert isinstance(turn.error, ProviderError)
    assert turn.kinds.count("error") == turn.kinds.count("stream:end") == 1
    assert [message.role for message in turn.added] == ["user"]
    assert turn.shown == ""
    assert here.paid == []
