"""Tools that call a model: what they spend is charged to the turn, the tenant and its plan, and is audited."""

import time

import pytest

from atlas_agents import Agent, Atlas, Plan, Question, ToolContext, Usage, tool
from atlas_agents.core.aio import utc_day
from atlas_agents.core.errors import QuotaExceeded
from atlas_agents.core.store import AddUsage, RecountBudget, UsageRow
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, calls, says


async def test_tokens_that_a_tool_spends_are_charged_to_turn_session_and_tenant_and_audited() -> None:
    @tool
    async def summarize(context: ToolContext) -> str:
        """Summarize with another model."""
        await context.check_budget(100)
        await context.spend("gpt-4o", Usage(1000, 20))
        return "short"

    model = Scripted(calls("summarize"), says("Done."))
    async with Atlas([Agent("assistant", model=model, tools=[summarize])], store=MemoryStore()) as atlas:
        ends: list[Usage] = []
        atlas.on("stream:end", lambda event: ends.append(event.usage))
        await atlas.ask("go", session="main")
        rows = {row.model: row for row in await atlas.usage()}
        spent = rows.pop("gpt-4o")
        assert (spent.session, spent.agent_id, spent.turns) == ("main", "assistant", 0)
        assert (spent.input_tokens, spent.output_tokens, spent.cost_microcents) == (1000, 20, 270_000)
        (own,) = rows.values()
        assert ends == [
            Usage(own.input_tokens + 1000, own.output_tokens + 20, own.cached_tokens, ends[0].estimated, cost=0.0027)
        ]
        (record,) = await atlas.audit.records("default")
        assert record.entry.meta["models"] == [{"model": "gpt-4o", "input": 1000, "output": 20, "cost": 0.0027}]
        assert (await atlas.tenancy.used()).tokens == sum(row.input_tokens + row.output_tokens for row in (spent, own))


async def test_tool_cannot_spend_once_the_plan_is_used_up() -> None:
    @tool(confirm=True)
    async def summarize(context: ToolContext) -> str:
        """Summarize with another model."""
        with pytest.raises(QuotaExceeded):
            await context.check_budget(100)
        return "not called"

    async def use_up_plan(question: Question) -> bool:
        row = UsageRow(utc_day(time.time()), "other", "assistant", "gpt-4o", 2000)
        await store.commit("default", [AddUsage(row), RecountBudget(row.day[:7])])
        return True

    store, model = MemoryStore(), Scripted(calls("summarize"), says("Done."))
    agent = Agent("assistant", model=model, tools=[summarize])
    async with Atlas([agent], store=store, approve=use_up_plan) as atlas:
        await atlas.tenancy.put_plan(Plan("small", tokens=1000))
        await atlas.tenancy.use_plan("small")
        assert (await atlas.invoke("summarize", {})).result == "not called"
