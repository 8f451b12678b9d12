"""Budgets: reserved before a model call, settled after it, and never exceeded."""

import asyncio
import re
from typing import Any

import pytest

from atlas_agents import (
    Agent,
    Atlas,
    Budget,
    BudgetExceeded,
    Cancelled,
    ConfigError,
    OpenAIProvider,
    Plan,
    Price,
    ProviderError,
    QuotaExceeded,
    RetryPolicy,
)
from atlas_agents.builtin_tools.team import delegate_task
from atlas_agents.core.store import ReserveBudget, Store
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, VirtualClock, calls, fails, says
from atlas_agents.tools.tool import tool
from metered_models import Hanging, Metered
from model_server import Reply, run_model_server


async def look() -> str:
    """Look around."""
    return "nothing"


def open_atlas(model: Any, *, tools: Any = (), durable: bool = True, retry: Any = None, **options: Any) -> Atlas:
    store = MemoryStore(**{name: options[name] for name in ("clock",) if name in options}) if durable else None
    return Atlas([Agent("a", model=model, tools=tools, retry=retry)], store=store, **options)


def stored(atlas: Atlas) -> Store:
    assert atlas.store is not None
    return atlas.store


async def ask_all(atlas: Atlas, count: int, **options: Any) -> tuple[int, list[BaseException]]:
    """Ask in sessions of their own at once; return how many turns were answered, and the other errors."""
    turns = [atlas.ask("hi", session=str(n), **options) for n in range(count)]
    results = await asyncio.gather(*turns, return_exceptions=True)
    failed = [each for each in results if isinstance(each, BaseException)]
    return count - len(failed), failed


async def test_concurrent_turns_stay_within_the_token_plan_of_their_tenant() -> None:
    model = Metered(10, 660)
    async with Atlas([Agent("a", model=model)], store=MemoryStore()) as atlas:
        await atlas.tenancy.put_plan(Plan("small", tokens=1000))
        await atlas.tenancy.use_plan("small")
        answered, failed = await ask_all(atlas, 10)
        used = (await atlas.tenancy.used()).tokens
    assert used <= 1000, f"{used} tokens used of 1,000"
    assert answered == 2, "the second answer was cut to what was left"
    assert all(isinstance(each, QuotaExceeded) for each in failed)


async def used(atlas: Atlas, scope: str = "user", user: str = "") -> dict[str, float]:
    """Return what is used of the budgets of one scope, by measure; nothing may be reserved."""
    status = await atlas.budget_status(user=user, session="default")
    found = [each for each in status if each.scope == scope]
    assert all(each.reserved == 0 for each in found), found
    return {each.measure: each.used for each in found}


@pytest.mark.parametrize("durable", [False, True])
async def test_hundred_concurrent_turns_use_exactly_what_a_user_may(durable: bool) -> None:
    model, budget = Metered(30, 70), Budget(tokens=4000, requests=60, scope="user", per="day")
    async with open_atlas(model, budgets=budget, durable=durable) as atlas:
        answered, failed = await ask_all(atlas, 100, user="ann")
        assert await used(atlas, user="ann") == {"tokens": 4000, "requests": 40}
        assert answered == 40 and {type(each) for each in failed} == {BudgetExceeded}
        assert (await ask_all(atlas, 1, user="bob"))[0] == 1, "another user has a budget of their own"


async def test_last_answer_is_cut_to_what_is_left_instead_of_refused() -> None:
    model = Metered(10, 600)
    async with open_atlas(model, budgets=Budget(tokens=1000, scope="session")) as atlas:
        await atlas.ask("hi")
        reply = await atlas.ask("again")
        assert model.requests[-1].settings.max_tokens is not None
        assert reply.metadata["truncated"] and "budget" in str(reply.metadata["budget"])
        with pytest.raises(BudgetExceeded, match=r"session 'default' of 1,000 tokens"):
            await atlas.ask("once more")
        assert (await used(atlas, "session"))["tokens"] <= 1000 and len(model.requests) == 2


async def test_running_out_ends_the_turn_with_what_there_is_so_far() -> None:
    model = Scripted(says("Let me look.") + calls("look"), says("never"))
    async with open_atlas(model, tools=[look]) as atlas:
        stream = atlas.send("hi", budget=Budget(requests=1))
        events = [event async for event in stream]
        with pytest.raises(BudgetExceeded, match="of the turn of 1 model requests is used up") as ended:
            await stream.reply()
        error = ended.value
        assert (error.scope, error.measure, error.limit, error.used) == ("turn", "requests", 1, 1)
        assert error.partial == "Let me look." and error.resets_at is None
        assert [(each.type, each.kind) for each in events if each.type == "error"] == [("error", "BudgetExceeded")]
        (run,) = await stored(atlas).runs("default", "default")
        assert (run.status, run.error) == ("failed", str(error))
        assert [each.role for each in await atlas.sessions.history("default")] == ["user", "assistant", "tool"]
        assert (await atlas.ask("next", budget=Budget(requests=1))).text == "never", "each turn has its own budget"
        result = await atlas.run("hi", budget={"tokens": 1})
        assert not result.success and "budget" in str(result.error)


async def test_callback_that_fails_does_not_replace_the_error_of_a_budget(caplog: pytest.LogCaptureFixture) -> None:
    def fail(exceeded: BudgetExceeded) -> None:
        raise ZeroDivisionError

    async with open_atlas(Metered(10, 10), budgets="tenant requests=1 per=day") as atlas:
        atlas.on_budget_exceeded(fail)
        await atlas.ask("hi")
        with pytest.raises(BudgetExceeded):
            await atlas.ask("hi")
    assert "callback failed" in caplog.text and "ZeroDivisionError" in caplog.text


async def test_day_ends_a_daily_budget() -> None:
    clock = VirtualClock(1_794_826_000.0)
    async with open_atlas(Metered(10, 10), budgets="tenant requests=1 per=day", clock=clock) as atlas:
        await atlas.ask("hi")
        with pytest.raises(BudgetExceeded, match="it resets at 2026-11-17T00:00Z") as ended:
            await atlas.ask("hi")
        assert ended.value.resets_at == 1_794_873_600
        await clock.advance(86_400)
        await atlas.ask("tomorrow")


async def test_tool_calls_are_counted_and_the_turn_ends_when_none_is_left() -> None:
    model = Scripted(calls("look") + calls("look"), calls("look"), says("never"))
    agent = Agent("a", model=model, tools=[look], budget=[Budget(tool_calls=2), "agent tool_calls=100 per=day"])
    async with Atlas([agent], store=MemoryStore()) as atlas:
        with pytest.raises(BudgetExceeded, match="2 tool calls is used up"):
            await atlas.ask("hi")
        assert await used(atlas, "agent") == {"tool_calls": 2}
        results = [
            part
            for each in await atlas.sessions.history("default")
            for part in each.parts
            if part.type == "tool_result"
        ]
        assert [each.error for each in results] == [None, None, "limit"]


async def test_cost_is_limited_and_an_unknown_price_is_refused() -> None:
    model, prices = Metered(1000, 100, model="m"), {"m": Price(10, 100)}
    async with open_atlas(model, budgets=Budget(dollars=0.05, scope="user"), prices=prices) as atlas:
        answered, failed = await ask_all(atlas, 10)
        assert await used(atlas) == {"dollars": 0.04} and answered == 2
        assert "of $0.05 has too little left for the next step ($0.04 used)" in str(failed[0])
    async with open_atlas(Metered(1, 1, model="unheard-of"), budgets=Budget(dollars=1)) as atlas:
        with pytest.raises(ConfigError, match="the price of model 'unheard-of' is unknown"):
            await atlas.ask("hi")


async def test_answer_under_another_model_name_costs_what_the_requested_model_costs() -> None:
    with run_model_server(lambda request: Reply("Hello.")) as server:  # it calls every model m-1
        provider = OpenAIProvider("my-deployment", api_key="key", base_url=server.url)
        async with Atlas([Agent("a", model=provider)], prices={"my-deployment": Price(10, 100)}) as atlas:
            result = await atlas.run("hi")
    assert result.usage.cost == pytest.approx((result.usage.input_tokens * 10 + result.usage.output_tokens * 100) / 1e6)


async def test_seconds_end_a_turn_that_runs_too_long() -> None:
    clock, started = VirtualClock(), asyncio.Event()

    @tool(timeout=5000)
    async def wait() -> str:
        """Wait for a long time."""
        started.set()
        await clock.sleep(1000)
        return "done"

    model = Scripted(says("Wait.") + calls("wait"), says("never"))
    async with open_atlas(model, tools=[wait], clock=clock, budgets=Budget(seconds=200, scope="user")) as atlas:
        stream = atlas.send("hi", budget=Budget(seconds=90))
        await started.wait()
        await clock.advance(89)
        assert [each.status for each in await stored(atlas).runs("default", "default")] == ["running"]
        await clock.advance(2)
        with pytest.raises(BudgetExceeded, match="of the turn of 90 seconds is used up"):
            await stream.reply()
        assert await used(atlas) == {"seconds": 90}
        last = (await atlas.sessions.history("default"))[-1]
        assert last.role == "tool", "the call has a result"


async def test_cancelled_turn_is_charged_for_what_was_streamed() -> None:
    clock = VirtualClock()
    model = Hanging("word " * 50)
    async with open_atlas(model, budgets=Budget(tokens=10_000, requests=10, scope="user"), clock=clock) as atlas:
        stream = atlas.send("hi")
        async for event in stream:
            if event.type == "stream:chunk":
                break
        stream.cancel()
        await stream.wait_ended()
        counted = await used(atlas)
        assert counted["requests"] == 1 and 60 <= counted["tokens"] <= 100


async def test_withdrawn_answers_are_charged_and_refused_requests_are_not() -> None:
    partial = "word " * 50
    model = Scripted(
        fails(ProviderError("busy", "rate_limit", retry_after=0)), says(partial) + fails("gone"), says("Yes.")
    )
    retry = RetryPolicy(backoff=0)
    async with open_atlas(model, retry=retry, budgets=Budget(tokens=10_000, requests=10, scope="user")) as atlas:
        await atlas.ask("hi")
        counted = await used(atlas)
        assert counted["requests"] == 2 and 60 <= counted["tokens"] <= 120


async def test_failover_stops_when_the_next_attempt_does_not_fit() -> None:
    model = Scripted(says("word " * 100) + fails("gone"), says("never"))
    async with open_atlas(model, retry=RetryPolicy(backoff=0)) as atlas:
        with pytest.raises(BudgetExceeded):
            await atlas.ask("hi", budget=Budget(tokens=150))
        assert len(model.requests) == 1


async def test_turns_that_a_tool_starts_count_against_the_turn_of_the_tool() -> None:
    inner = Agent("inner", model=Metered(40, 60))

    async def research() -> str:
        """Ask another agent."""
        return (await atlas.ask("look", agent_id="inner", session="inner")).text

    async def call_alone() -> str:
        """Ask an agent of its own."""
        return str((await Agent("alone", model=Metered(40, 60)).call("look")).error)

    replies = [calls("research"), calls("research") + calls("call_alone"), says("never")]
    outer = Agent("outer", model=Scripted(*replies), tools=[research, call_alone])
    async with Atlas([outer, inner], store=MemoryStore()) as atlas:
        with pytest.raises(BudgetExceeded, match="of the turn"):
            await atlas.ask("hi", budget=Budget(tokens=450, requests=3))
        runs = await stored(atlas).runs("default", "inner")
        assert [each.status for each in runs].count("done") == 1


async def test_delegated_jobs_count_against_the_turn_that_delegated_them() -> None:
    worker = Agent("worker", model=Metered(10, 20))
    replies = [calls("delegate_task", target_agent="worker", task_description="do it"), says("Asked.")]
    lead = Agent("lead", model=Scripted(*replies), tools=[delegate_task], budget=Budget(requests=2))
    async with Atlas([lead, worker], store=MemoryStore()) as atlas, atlas.jobs.running():
        await atlas.ask("hi")
        (job,) = await atlas.jobs.list()
        ended = await atlas.jobs.ended(job.id)
        assert (ended.state, ended.error) == (
            "failed",
            "the budget of the turn of 2 model requests is used up (2 used)",
        )


async def test_agent_that_takes_over_brings_its_own_budget() -> None:
    second = Agent("second", model=Metered(10, 20), budget=Budget(requests=1, scope="agent", per="day"))
    first = Agent("first", model=Scripted(calls("hand_off", agent="second")), hands_off_to=["second"])
    async with Atlas([first, second], store=MemoryStore(), budgets=Budget(requests=10)) as atlas:
        await atlas.ask("hi")
        assert await used(atlas, "agent") == {"requests": 1}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tokens": 0}, "invalid budget tokens=0: must be more than 0"),
        ("turn dollars=-1", "invalid budget 'turn dollars=-1'"),
        ("user tokens=5 tokens=6", "invalid budget"),
        (
            {"words": 5},
            "unknown budget setting 'words'; known settings: tokens, requests, tool_calls, dollars, seconds",
        ),
        ("turn words=5", "unknown budget setting 'words'"),
        ("team tokens=5", "unknown scope of a budget 'team'; known scopes: turn, session, agent, user, tenant"),
        ("user tokens=5 per=week", "unknown period of a budget 'week': expected day or month"),
        ("turn tokens=5 per=day", "a budget per day needs a scope other than turn"),
        ("user tokens=1.5", "invalid budget: Expected `int | null`"),
        ("user", "invalid budget 'user': expected limits"),
        ({}, "a budget needs at least one of tokens"),
        (5, "invalid budget 5: expected a Budget, a mapping of its fields, or several of them"),
    ],
)
async def test_invalid_budget_is_refused_with_what_is_expected(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        Atlas(budgets=given)


async def test_budget_is_refused_where_it_cannot_apply() -> None:
    with pytest.raises(ConfigError, match="agent 'a': a budget of scope 'tenant' cannot be set here"):
        Agent("a", model=Metered(), budget=Budget(tokens=1, scope="tenant"))
    async with open_atlas(Metered()) as atlas:
        with pytest.raises(ConfigError, match="expected turn"):
            await atlas.ask("hi", budget=Budget(tokens=1, scope="user"))


async def test_message_is_not_accepted_once_a_budget_is_used_up() -> None:
    async with open_atlas(Metered(10, 10), budgets="user requests=1 per=month") as atlas:
        await atlas.ask("hi")
        with pytest.raises(BudgetExceeded):
            await atlas.ask("hi")
        assert [each.status for each in await stored(atlas).runs("default", "default")] == ["done"]


async def test_turns_that_tools_start_at_once_wait_for_each_other() -> None:
    inner = Agent("inner", model=Metered(40, 60))

    async def research(n: int) -> str:
        """Ask another agent."""
        return (await atlas.ask("look", agent_id="inner", session=str(n))).text

    three = calls("research", n=1) + calls("research", n=2) + calls("research", n=3)
    outer = Agent("outer", model=Scripted(three, says("Done.")), tools=[research])
    async with Atlas([outer, inner], store=MemoryStore()) as atlas:
        assert (await atlas.ask("hi", budget=Budget(tokens=900, requests=5))).text == "Done."


async def test_agent_without_an_atlas_keeps_its_budget() -> None:
    agent = Agent("a", model=Metered(10, 20), budget="agent requests=1")
    assert (await agent.call("hi")).success
    _, success, error = await agent.call("again")
    assert not success and "of agent 'a' of 1 model requests is used up" in str(error)


async def test_turn_that_is_cancelled_while_it_reserves_leaves_nothing_reserved() -> None:
    class Cancelling(MemoryStore):
        """Commits a reservation and then reports that the turn was cancelled meanwhile."""

        async def commit(self, tenant: str, writes: Any) -> list[Any]:
            results = await super().commit(tenant, writes)
            if any(isinstance(each, ReserveBudget) for each in writes):
                raise asyncio.CancelledError
            return results

    async with Atlas([Agent("a", model=Metered(10, 10))], store=Cancelling()) as atlas:
        await atlas.tenancy.put_plan(Plan("small", tokens=1000))
        await atlas.tenancy.use_plan("small")
        with pytest.raises(Cancelled):
            await atlas.send("hi").reply()
        assert await used(atlas, "tenant") == {"tokens": 0}
