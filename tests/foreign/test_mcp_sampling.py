"""Sampling by MCP servers: its usage is charged to the turn, the tenant and its plan, and is audited."""

import json
import time
from pathlib import Path
from typing import Any

from mcp_workspace import open_atlas, scripted_entry, write_config

from atlas_agents import Plan, Question, Usage
from atlas_agents.core.aio import utc_day
from atlas_agents.core.store import AddUsage, RecountBudget, UsageRow
from atlas_agents.mcp.callbacks import SampledMessage
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, calls, says

SAMPLE = {"text": "Say it.", "count": 30}


class Model:
    """A model that counts its calls."""

    def __init__(self) -> None:
        self.call_count = 0

    async def sample(self, messages: list[Any], system: str, max_tokens: int) -> SampledMessage:
        self.call_count += 1
        return SampledMessage("I say so.", "gpt-4o", Usage(1000, 20))


async def test_sampling_is_charged_to_turn_session_and_tenant_and_audited(
    tmp_path: Path,
) -> None:
    entry = scripted_entry(tmp_path / "s", confirm=False, sampling_tokens=100)
    script = Scripted(calls("s__sample", **SAMPLE), says("Done."))
    model, store = Model(), MemoryStore()
    async with open_atlas(write_config(tmp_path, s=entry), model=script, sample_model=model.sample, store=store) as (
        atlas,
        _,
    ):
        ends: list[Usage] = []
        atlas.on("stream:end", lambda event: ends.append(event.usage))
        await atlas.ask("go", session="main")
        rows = {row.model: row for row in await atlas.usage()}
        sampled = rows.pop("gpt-4o")
        assert (sampled.session, sampled.agent_id, sampled.turns) == ("main", "assistant", 0)
        assert (sampled.input_tokens, sampled.output_tokens, sampled.cost_microcents) == (1000, 20, 270_000)
        (own,) = rows.values()
        assert ends == [
            Usage(own.input_tokens + 1000, own.output_tokens + 20, own.cached_tokens, ends[0].estimated, cost=0.0027)
        ]
        (record,) = await atlas.audit.records("default")
        assert record.entry.meta["models"] == [{"model": "gpt-4o", "input": 1000, "output": 20, "cost": 0.0027}]
        assert (await atlas.tenancy.used()).tokens == sum(
            row.input_tokens + row.output_tokens for row in (sampled, own)
        )


async def test_model_is_not_called_once_the_plan_is_used_up(tmp_path: Path) -> None:
    entry = scripted_entry(tmp_path / "s", sampling_tokens=100)
    model, store = Model(), MemoryStore()

    async def spend(question: Question) -> bool:
        """Use up the rest of the plan during the approval."""
        row = UsageRow(utc_day(time.time()), "other", "assistant", "gpt-4o", 2000)
        await store.commit("default", [AddUsage(row), RecountBudget(row.day[:7])])
        return True

    async with open_atlas(write_config(tmp_path, s=entry), sample_model=model.sample, store=store, approve=spend) as (
        atlas,
        _,
    ):
        await atlas.tenancy.put_plan(Plan("small", tokens=1000))
        await atlas.tenancy.use_plan("small")
        response = json.loads((await atlas.invoke("s/sample", SAMPLE)).result)
        assert response["error"]["message"] == "the model call failed" and model.call_count == 0
