"""P53: a cancelled turn closes the provider's socket at once, runs nothing, and leaves a conversation that goes on."""

import asyncio

import pytest
from wire_turns import ANTHROPIC, OPENAI, PATIENCE, WIRES, Room, Wire, check_pairs, room

from atlas_agents import AtlasStream, Cancelled, RetryPolicy
from atlas_agents.core.events import StreamEnd
from checks import measure_loop_time, run_ready_tasks
from fault_server import FaultServer, Script, response, response_head
from sse_events import a, o

PAY = '{"to":"bob","amount":5}'
SOON = 0.5
OPENED = [a.start(), a.open(0), a.text("Pay")]
HELD: dict[str, tuple[Wire, Script, str]] = {
    "before the headers (openai)": (OPENAI, ["hold"], ""),
    "before the headers (anthropic)": (ANTHROPIC, ["hold"], ""),
    "before the body (openai)": (OPENAI, [response_head(transfer_encoding="chunked"), "hold"], ""),
    "before the body (anthropic)": (ANTHROPIC, [response_head(connection="close"), "hold"], ""),
    "mid text (openai)": (OPENAI, response(o.text("Pay"), "hold"), "Pay"),
    "mid text (anthropic)": (ANTHROPIC, response(*OPENED, "hold"), "Pay"),
    "in the arguments of a call (openai)": (
        OPENAI,
        response(o.text("Pay"), o.call(0, "c1", "pay", PAY), "hold"),
        "Pay",
    ),
    "in the arguments of a call (anthropic)": (
        ANTHROPIC,
        response(*OPENED, a.close(0), *a.tool_block(1, "c1", "pay", PAY), "hold"),
        "Pay",
    ),
    "between finish and done (openai)": (
        OPENAI,
        response(o.text("Pay"), o.call(0, "c1", "pay", PAY), o.finish("tool_calls"), "hold"),
        "Pay",
    ),
    "between stop reason and message_stop (anthropic)": (
        ANTHROPIC,
        response(*OPENED, a.close(0), *a.tool_block(1, "c1", "pay", PAY), a.stop("tool_use"), "hold"),
        "Pay",
    ),
    "in an endless error body (openai)": (OPENAI, response(b"no", "hold", status="500 No"), ""),
}


async def until_held(here: Room, stream: AtlasStream, text: str) -> None:
    """Wait until the server has the request and we have all that it will say."""
    await here.server.request_received.wait()
    async for _ in stream:
        if stream.text == text:
            break
    await run_ready_tasks()  # what follows the words is not seen by a listener


async def check_cancelled(here: Room, stream: AtlasStream, text: str) -> None:
    """Cancel now, and look at all that is left of the turn."""
    async with measure_loop_time() as spent:
        stream.cancel()
        events = [event async for event in stream]
        asked = here.server.requests[-1]
        await asked.disconnected.wait()
        assert spent.seconds < SOON
    with pytest.raises(Cancelled):
        await stream.reply()
    end = events[-1]
    assert isinstance(end, StreamEnd)
    assert end.cancelled
    assert [event.type for event in events if event.type in ("error", "message:received", "tool:called")] == []
    assert stream.text == text
    messages = here.atlas.conversation().messages
    assert [message.role for message in messages] == ["user"]
    check_pairs(messages)
    assert here.paid == []


@pytest.mark.parametrize("place", HELD)
async def test_P53_cancelling_closes_the_socket_at_once_and_runs_no_tool(place: str) -> None:
    wire, script, text = HELD[place]
    async with room(wire, FaultServer(script)) as here, asyncio.timeout(PATIENCE):
        stream = here.atlas.send("Pay bob 5.")
        await until_held(here, stream, text)
        await check_cancelled(here, stream, text)
        assert here.paid == []
        await here.next_turn_works()
        assert here.requests == [2]


@pytest.mark.parametrize("wire", WIRES, ids=repr)
async def test_P53_a_turn_that_waits_for_its_next_attempt_can_be_cancelled(wire: Wire) -> None:
    busy = response(b"{}", status="503 Busy", framing="sized")
    retry = RetryPolicy(backoff=20)
    async with room(wire, FaultServer(busy), retry=retry) as here, asyncio.timeout(PATIENCE):
        stream = here.atlas.send("Pay bob 5.")
        await until_held(here, stream, "")
        stream.cancel()
        async with measure_loop_time() as spent:
            assert [event.type async for event in stream][-1] == "stream:end"
            assert spent.seconds < SOON
        await here.next_turn_works()
        assert here.requests == [2]


@pytest.mark.parametrize("wire", WIRES, ids=repr)
async def test_P53_a_flood_of_words_can_be_cancelled(wire: Wire) -> None:
    words = b"".join(wire.builder.says(*["word "] * 20_000)[:-3])
    flood: Script = [response_head(connection="close"), words, "hold"]
    async with room(wire, FaultServer(flood)) as here, asyncio.timeout(PATIENCE):
        stream = here.atlas.send("Pay bob 5.")
        async for event in stream:
            if event.type == "stream:chunk":
                break
        async with measure_loop_time() as spent:
            stream.cancel()
            with pytest.raises(Cancelled):
                await stream.reply()
            await here.server.requests[0].disconnected.wait()
            assert spent.seconds < SOON
        await here.next_turn_works()


@pytest.mark.parametrize("wire", WIRES, ids=repr)
async def test_P53_closing_the_house_closes_the_sockets_of_its_turns(wire: Wire) -> None:
    async with room(wire, FaultServer(["hold"])) as here, asyncio.timeout(PATIENCE):
        stream = here.atlas.send("Pay bob 5.")
        await until_held(here, stream, "")
        async with measure_loop_time() as spent:
            await here.atlas.close()
            await here.server.requests[0].disconnected.wait()
            assert spent.seconds < SOON
        with pytest.raises(Cancelled):
            await stream.reply()
