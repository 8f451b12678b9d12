"""Limits: concurrent calls, calls per tick, calls per day, and repeated calls."""

import asyncio
import threading
import time

import pytest

from atlas_agents import Agent, Atlas, ConfigError, Conversation, Limits, ToolResult, tool
from atlas_agents.core.aio import SystemClock
from atlas_agents.core.paths import Environment
from atlas_agents.testing import Reply, Scripted, VirtualClock, calls, in_memory_atlas, says
from atlas_agents.tools.limits import Ticker, TickLimiter
from checks import TIMEOUT, run_ready_tasks, wait_until


def _together(count: int, name: str = "act") -> Reply:
    reply = calls(name, n=0)
    for n in range(1, count):
        reply = reply + calls(name, n=n)
    return reply


def _results(model: Scripted) -> list[ToolResult]:
    return [part for message in model.requests[-1].messages for part in message.parts if isinstance(part, ToolResult)]


class Gate:
    """A tool that blocks until `open` is set, and counts its running calls."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.now = self.most = 0

        async def act(n: int) -> int:
            """Act."""
            self.now += 1
            self.most = max(self.most, self.now)
            await self.open.wait()
            self.now -= 1
            return n

        self.tool = tool(act)


async def test_session_runs_five_calls_at_once_and_the_others_in_order() -> None:
    gate, model = Gate(), Scripted(_together(12), says("Done."))
    async with in_memory_atlas(model, [gate.tool]) as atlas:
        stream = atlas.send("go")
        await wait_until(lambda: gate.now == 5)
        await run_ready_tasks()
        assert gate.now == 5
        gate.open.set()
        async with asyncio.timeout(TIMEOUT):
            await stream.reply()
    assert gate.most == 5
    assert [result.result for result in _results(model)] == list(range(12))


async def test_hanging_tool_does_not_block_other_sessions() -> None:
    gate = Gate()

    @tool
    async def quick(n: int) -> int:
        """Return at once."""
        return n

    hung = Agent("hung", model=Scripted(_together(8)), tools=[gate.tool])
    free = Agent("free", model=Scripted(_together(3, "quick"), says("Free.")), tools=[quick])
    async with Atlas([hung, free]) as atlas:
        atlas.send("go", agent_id="hung", session="one")
        await wait_until(lambda: gate.now == 5)
        async with asyncio.timeout(TIMEOUT):  # the others never end
            reply = await atlas.ask("go", agent_id="free", session="two")
    assert reply.text == "Free."


async def test_calls_over_the_tick_limit_wait_for_the_next_ticks_in_order() -> None:
    clock, when = VirtualClock(), list[tuple[int, float]]()

    @tool
    async def act(n: int) -> int:
        """Act."""
        when.append((n, clock.monotonic()))
        return n

    model = Scripted(_together(25), says("Done."))
    async with in_memory_atlas(model, [act], clock=clock, limits=Limits(per_tick=10, tick=5)) as atlas:
        stream = atlas.send("go")
        await clock.advance(0)
        await wait_until(lambda: len(when) == 10)
        await clock.advance(4.9)
        assert len(when) == 10
        for _ in range(3):
            await clock.advance(5)
        async with asyncio.timeout(TIMEOUT):
            await stream.reply()
    assert [n for n, _ in when] == list(range(25))
    assert [sum(1 for _, at in when if at == tick) for tick in (0, 5, 10)] == [10, 10, 5]
    assert [result.result for result in _results(model)] == list(range(25))


async def test_turn_cancelled_while_its_calls_wait_for_a_tick_runs_none_of_them() -> None:
    clock, ran = VirtualClock(), list[int]()

    @tool
    async def act(n: int) -> int:
        """Act."""
        ran.append(n)
        return n

    model = Scripted(_together(4), says("Going on."), calls("act", n=9), says("ok"))
    async with in_memory_atlas(model, [act], clock=clock, limits=Limits(per_tick=2, tick=5)) as atlas:
        stream = atlas.send("go")
        await wait_until(lambda: len(ran) == 2)
        stream.cancel()
        async with asyncio.timeout(TIMEOUT):
            types = [event.type async for event in stream]
        await clock.advance(20)
        assert ran == [0, 1]
        assert types.count("tool:result") == 4
        assert (await atlas.ask("on")).text == "Going on."


def test_tick_limit_holds_in_another_event_loop_while_the_first_one_does_not_run() -> None:
    started = list[float]()

    @tool
    async def act(n: int) -> int:
        """Act."""
        started.append(time.monotonic())
        return n

    model = Scripted(calls("act", n=1), says("One."), calls("act", n=2), says("Two."))
    atlas = in_memory_atlas(model, [act], limits=Limits(per_tick=1, tick=0.1))
    assert atlas.ask_sync("go", session="one").text == "One."
    assert asyncio.run(asyncio.wait_for(atlas.ask("go", session="two"), TIMEOUT)).text == "Two."
    assert started[1] - started[0] >= 0.1


def test_tick_limit_is_shared_by_threads_whose_loops_start_and_stop() -> None:
    ticks, started = TickLimiter(Ticker(SystemClock(), 0.02), 1), list[int]()

    async def turn(place: int) -> None:
        async with asyncio.timeout(TIMEOUT):
            await ticks.acquire("worker")
        started.append(place)

    threads = [threading.Thread(target=asyncio.run, args=(turn(place),), daemon=True) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert sorted(started) == list(range(8))


def test_call_that_is_left_in_a_sync_stream_does_not_block_the_calls_of_another_loop() -> None:
    async def act(n: int) -> int:
        """Act."""
        if n == 1:
            await asyncio.Event().wait()
        return n

    model = Scripted(calls("act", n=1), calls("act", n=2), says("Two."))
    atlas = in_memory_atlas(model, [act], limits=Limits(at_once=1))
    with atlas.stream_sync("go", session=Conversation(id="ana")) as stream:
        assert next(event for event in stream if event.type == "tool:called")
        reply = asyncio.run(asyncio.wait_for(atlas.ask("go", session=Conversation(id="ana")), TIMEOUT))
    assert reply.text == "Two."


async def test_each_agent_has_its_own_tick_limit() -> None:
    clock, ran = VirtualClock(), list[int]()

    @tool
    async def act(n: int) -> int:
        """Act."""
        ran.append(n)
        return n

    agents = [Agent(name, model=Scripted(_together(2), says(name)), tools=[act]) for name in ("a", "b")]
    async with Atlas(agents, clock=clock, limits=Limits(per_tick=2)) as atlas:
        async with asyncio.timeout(TIMEOUT):
            for name in ("a", "b"):
                await atlas.ask("go", agent_id=name, session=name)
    assert len(ran) == 4


async def test_daily_limit_is_exact_under_concurrency_and_resets_the_next_day() -> None:
    clock, ran = VirtualClock(), list[int]()

    @tool
    async def act(n: int) -> int:
        """Act."""
        ran.append(n)
        await asyncio.sleep(0)
        return n

    models = [Scripted(_together(8), says("ok")) for _ in range(6)]
    agent = [Agent("worker", model=model, tools=[act]) for model in models]
    async with Atlas(agent[:1], clock=clock, limits=Limits(per_day=20)) as atlas:
        for one in agent[1:]:
            atlas.set_agent(one)
        streams = [atlas.set_agent(one).send("go", session=str(place)) for place, one in enumerate(agent)]
        async with asyncio.timeout(TIMEOUT):
            for stream in streams:
                await stream.reply()
        assert len(ran) == 20
        refused = [result for model in models for result in _results(model) if result.error == "limit"]
        assert len(refused) == 28
        await clock.advance(24 * 3600)
        again = Agent("worker", model=Scripted(calls("act", n=1), says("ok")), tools=[act])
        async with asyncio.timeout(TIMEOUT):
            await atlas.set_agent(again).ask("go", session="tomorrow")
    assert len(ran) == 21


async def test_repeated_identical_calls_are_stopped() -> None:
    ran: list[int] = []

    @tool
    async def poll(n: int) -> str:
        """Poll."""
        ran.append(n)
        return "nothing new"

    model = Scripted(*(calls("poll", n=1) for _ in range(6)), calls("poll", n=2), says("I give up."))
    async with in_memory_atlas(model, [poll], limits=Limits(repeats=4), agent={"max_rounds": 20}) as atlas:
        await atlas.ask("poll")
    assert ran == [1, 1, 1, 1, 2]
    assert [result.error for result in _results(model)] == [None] * 4 + ["limit"] * 2 + [None]


@pytest.mark.parametrize("name", ["at_once", "per_tick", "per_day", "repeats"])
def test_limit_below_one_is_rejected(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Limits(**{name: 0})


def test_gateway_limits_are_read_from_the_environment() -> None:
    limits = Limits.from_environment(Environment({"MAX_ACTIONS_PER_DAY": "7"}, dotenv=None))
    assert (limits.per_day, limits.per_tick, limits.tick, limits.repeats, limits.at_once) == (7, 10, 5, 10, 5)
    assert Limits.from_environment(Environment({}, dotenv=None)).per_day == 1000
    with pytest.raises(ConfigError, match="MAX_ACTIONS_PER_DAY must be a whole number"):
        Limits.from_environment(Environment({"MAX_ACTIONS_PER_DAY": "many"}, dotenv=None))
