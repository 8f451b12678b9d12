"""Failover after k events, for every k: one answer, never two joined, and no tool call runs twice."""

from collections.abc import Sequence
from typing import Literal

import pytest
from canonical_responses import BODIES, Body
from wire_setup import ANTHROPIC, WIRES, Turn, Wire, WireSetup, open_setup

from atlas_agents import ProviderError, RetryPolicy
from fault_server import FaultServer, Script, broken_response, response

ONCE = RetryPolicy(order="given", retries=0, cooldown=0)
Ending = Literal["a close", "a clean end", "a reset", "an error event"]
ENDINGS: list[Ending] = ["a close", "a clean end", "a reset", "an error event"]
PAY = ("c1", "pay", '{"to":"bob","amount":5}')
LOOK = ("c2", "look", "{}")
HI = "Hi 😀 é\u2028!"
TEXT_ONLY = [body for body in BODIES if not body.tools]
CALL = [body for body in BODIES if body.tools]
every_ending = pytest.mark.parametrize("ending", ENDINGS)
every_text = pytest.mark.parametrize("body", TEXT_ONLY, ids=repr)
every_body = pytest.mark.parametrize("body", BODIES, ids=repr)


def with_second(bodies: Sequence[Body]) -> pytest.MarkDecorator:
    """Each body with each ending, followed by a provider of its own wire; after a close also by one of the next wire.

    What the second provider sends does not depend on how the response of the first one ended.
    """
    cases = [(body, ending, body.wire) for body in bodies for ending in ENDINGS]
    cases += [(body, "a close", WIRES[(WIRES.index(body.wire) + 1) % len(WIRES)]) for body in bodies]
    marked = [pytest.param(*case, id=f"{case[0]}, {case[1]}, then {case[2]}") for case in cases]
    return pytest.mark.parametrize(("body", "ending", "second"), marked)


def broken_script(body: Body, count: int, ending: Ending) -> Script:
    """Return the first events of a response and the way it ends."""
    events = body.events[:count]
    error = "overloaded_error" if body.wire is ANTHROPIC else "server_error"
    match ending:
        case "a close":
            return broken_response(*events, by="close")
        case "a clean end":
            return response(*events)
        case "a reset":
            return broken_response(*events, by="reset")
        case "an error event":
            return response(*events, body.wire.builder.error(error))


def is_complete(body: Body, count: int, ending: Ending) -> bool:
    """Return whether the message counts as complete: its end was received, and no error event followed."""
    return count >= body.last and (ending != "an error event" or count == len(body.events))


def cut_points(body: Body, ending: Ending) -> Sequence[int]:
    """Return every point for a close; for the other endings those at which the state changes, and all complete ones."""
    whole = range(body.last, len(body.events) + 1)
    return range(len(body.events) + 1) if ending == "a close" else [*key_points(body), *whole]


def key_points(body: Body) -> Sequence[int]:
    """Return the points at which the state of an incomplete response changes; other tests cut it at every point."""
    return sorted({0, body.first, body.last - 1})


@with_second(TEXT_ONLY)
async def test_failover_returns_one_answer_and_never_joins_two(body: Body, ending: Ending, second: Wire) -> None:
    for count in cut_points(body, ending):
        servers = (
            FaultServer(broken_script(body, count, ending)),
            FaultServer(response(*second.builder.says("From ", "the second."))),
        )
        async with open_setup([body.wire, second], *servers, retry=ONCE) as setup:
            turn = await setup.turn()
            whole = is_complete(body, count, ending)
            assert turn.reply_texts == [HI if whole else "From the second."], count
            assert setup.requests == [1, not whole], count
            assert turn.resets == (count >= body.first and not whole), count
            await setup.next_turn_works()


@with_second(CALL)
async def test_calls_of_a_broken_response_never_run(body: Body, ending: Ending, second: Wire) -> None:
    for count in cut_points(body, ending):
        done = response(*second.builder.says("Done."))
        servers = (
            FaultServer(broken_script(body, count, ending), then=response(*body.wire.builder.says("Done."))),
            FaultServer(done),
        )
        async with open_setup([body.wire, second], *servers, retry=ONCE) as setup:
            turn = await setup.turn()
            whole = is_complete(body, count, ending)
            assert turn.reply_texts == ["Hm", "Done."][not whole :], count
            assert setup.paid == [("bob", 5), ("éve 😀", -1)] * whole, count
            await setup.next_turn_works()


@with_second(TEXT_ONLY)
async def test_failover_does_not_repeat_tools_of_an_earlier_round(body: Body, ending: Ending, second: Wire) -> None:
    for count in (*key_points(body), body.last):
        first = FaultServer(
            response(*body.wire.builder.calls(PAY, LOOK, says="Paying.")), broken_script(body, count, ending)
        )
        other = FaultServer(response(*second.builder.says("From the second.")))
        async with open_setup([body.wire, second], first, other, retry=ONCE) as setup:
            turn = await setup.turn()
            whole = is_complete(body, count, ending)
            assert turn.reply_texts == ["Paying.", HI if whole else "From the second."], count
            assert setup.paid == [("bob", 5), ("look", 0)], count
            assert turn.results == [("ok", None)] * 2
            assert setup.requests == [2, not whole], count
            await setup.next_turn_works()


@every_ending
@every_body
async def test_single_provider_that_always_breaks_ends_the_turn_with_one_error(body: Body, ending: Ending) -> None:
    for count in key_points(body):
        script = broken_script(body, count, ending)
        async with open_setup(
            body.wire, FaultServer(script, script), retry=RetryPolicy(retries=1, backoff=0.001)
        ) as setup:
            turn = await setup.turn()
            check_failed(setup, turn)
            assert setup.requests == [2]
            await setup.next_turn_works()


@every_ending
@every_text
async def test_failed_turn_keeps_the_results_of_its_tools(body: Body, ending: Ending) -> None:
    for count in key_points(body):
        first = response(*body.wire.builder.calls(PAY, LOOK, says="Paying."))
        async with open_setup(body.wire, FaultServer(first, broken_script(body, count, ending)), retry=ONCE) as setup:
            turn = await setup.turn()
            assert isinstance(turn.error, ProviderError)
            assert [message.role for message in turn.added] == ["user", "assistant", "tool"]
            assert setup.paid == [("bob", 5), ("look", 0)]
            await setup.next_turn_works()
            assert setup.paid == [("bob", 5), ("look", 0)]


def check_failed(setup: WireSetup, turn: Turn) -> None:
    assert isinstance(turn.error, ProviderError)
    assert turn.kinds.count("error") == turn.kinds.count("stream:end") == 1
    assert [message.role for message in turn.added] == ["user"]
    assert turn.shown == ""
    assert setup.paid == []
