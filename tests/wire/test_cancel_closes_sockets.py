"""P53: cancel closes the provider's socket at once, runs no tool, and leaves a valid conversation."""

import asyncio

import pytest
from wire_setup import ANTHROPIC, GEMINI, OPENAI, RESPONSES, TIMEOUT, WIRES, Wire, WireSetup, check_pairs, open_setup

from atlas_agents import AtlasStream, Cancelled, RetryPolicy
from atlas_agents.core.events import StreamEnd
from checks import measure_loop_time, run_ready_tasks
from fault_server import FaultServer, Script, response, response_head
from sse_events import a, g, o, r

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
    "mid text (gemini)": (GEMINI, response(g.text("Pay"), "hold"), "Pay"),
    "after a call (gemini)": (GEMINI, response(g.text("Pay"), g.call("c1", "pay", PAY), "hold"), "Pay"),
    "after the finish (gemini)": (GEMINI, response(*g.calls(("c1", "pay", PAY), says="Pay"), "hold"), "Pay"),
    "mid text (responses)": (RESPONSES, response(r.start(), *r.open_message(), r.text("Pay"), "hold"), "Pay"),
    "after a call (responses)": (RESPONSES, response(*r.calls(("c1", "pay", PAY), says="Pay")[:-1], "hold"), "Pay"),
    "in an endless error body (openai)": (OPENAI, response(b"no", "hold", status="500 No"), ""),
}


async def wait_until_held(setup: WireSetup, stream: AtlasStream, text: str) -> None:
    """Wait until the server has the request and the client has received everything it sends."""
    await setup.server.request_received.wait()
    async for _ in stream:
        if stream.text == text:
            break
    await run_ready_tasks()  # no event announces what follows the text


async def check_cancelled(setup: WireSetup, stream: AtlasStream, text: str) -> None:
    """Cancel the turn and check its outcome."""
    async with measure_loop_time() as elapsed:
        stream.cancel()
        events = [event async for event in stream]
        request = setup.server.requests[-1]
        await request.disconnected.wait()
        assert elapsed.seconds < SOON
    with pytest.raises(Cancelled):
        await stream.reply()
    end = events[-1]
    assert isinstance(end, StreamEnd)
    assert end.cancelled
    assert [event.type for event in events if event.type in ("error", "message:received", "tool:called")] == []
    assert stream.text == text
    messages = setup.atlas.conversation().messages
    assert [message.role for message in messages] == ["user"]
    check_pairs(messages)
    assert setup.paid == []


@pytest.mark.parametrize("case", HELD)
async def test_P53_cancel_closes_the_socket_at_once_and_runs_no_tool(case: str) -> None:
    wire, script, text = HELD[case]
    async with open_setup(wire, FaultServer(script)) as setup, asyncio.timeout(TIMEOUT):
        stream = setup.atlas.send("Pay bob 5.")
        await wait_until_held(setup, stream, text)
        await check_cancelled(setup, stream, text)
        assert setup.paid == []
        await setup.next_turn_works()
        assert setup.requests == [2]


@pytest.mark.parametrize("wire", WIRES, ids=repr)
async def test_P53_cancel_stops_a_turn_that_waits_for_a_retry(wire: Wire) -> None:
    busy = response(b"{}", status="503 Busy", framing="sized")
    retry = RetryPolicy(backoff=20)
    async with open_setup(wire, FaultServer(busy), retry=retry) as setup, asyncio.timeout(TIMEOUT):
        stream = setup.atlas.send("Pay bob 5.")
        await wait_until_held(setup, stream, "")
        stream.cancel()
        async with measure_loop_time() as elapsed:
            assert [event.type async for event in stream][-1] == "stream:end"
            assert elapsed.seconds < SOON
        await setup.next_turn_works()
        assert setup.requests == [2]


@pytest.mark.parametrize("wire", WIRES, ids=repr)
async def test_P53_cancel_stops_a_flood_of_text(wire: Wire) -> None:
    texts = b"".join(wire.builder.says(*["word "] * 20_000)[:-3])
    flood: Script = [response_head(connection="close"), texts, "hold"]
    async with open_setup(wire, FaultServer(flood)) as setup, asyncio.timeout(TIMEOUT):
        stream = setup.atlas.send("Pay bob 5.")
        async for event in stream:
            if event.type == "stream:chunk":
                break
        async with measure_loop_time() as elapsed:
            stream.cancel()
            with pytest.raises(Cancelled):
                await stream.reply()
            await setup.server.requests[0].disconnected.wait()
            assert elapsed.seconds < SOON
        await setup.next_turn_works()


@pytest.mark.parametrize("wire", WIRES, ids=repr)
async def test_P53_closing_the_atlas_closes_the_sockets_of_its_turns(wire: Wire) -> None:
    async with open_setup(wire, FaultServer(["hold"])) as setup, asyncio.timeout(TIMEOUT):
        stream = setup.atlas.send("Pay bob 5.")
        await wait_until_held(setup, stream, "")
        async with measure_loop_time() as elapsed:
            await setup.atlas.close()
            await setup.server.requests[0].disconnected.wait()
            assert elapsed.seconds < SOON
        with pytest.raises(Cancelled):
            await stream.reply()
