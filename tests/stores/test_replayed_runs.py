"""Stored runs are replayed from every kind of store, and what they refer to is deleted with their journals."""

from typing import Any

from atlas_agents import Agent, Atlas, tool
from atlas_agents.app.store_maintenance import RetentionJob, RetentionPolicy
from atlas_agents.core.aio import SystemClock
from atlas_agents.core.store import Store
from atlas_agents.testing import RunRecord, Scripted, calls, replay, says


@tool(effect="pure")
async def look(n: int) -> str:
    """Look something up."""
    return f"saw {n}"


def agent(*replies: Any, prompt: str = "Be brief.") -> Agent:
    return Agent("clerk", model=Scripted(*replies), tools=[look], system_prompt=prompt)


async def test_run_is_replayed_from_its_store(store: Store) -> None:
    async with Atlas([agent(calls("look", n=1), says("One."), says("Two."))], store=store) as atlas:
        await atlas.ask("1", session="s")
        await atlas.ask("2", session="s")
    for run in await store.runs("default", "s"):
        result = await replay(run.id, agent(), store=store)
        assert result.same and result.not_compared == ()
        changed = await replay(run.id, agent(prompt="Be long."), store=store)
        assert changed.difference is not None and changed.difference.expected == "Be brief."
        record = await RunRecord.read(store, run.id)
        assert len(record.history) == (0 if result.answer == "One." else 4)


class LaterClock(SystemClock):
    """The system clock, some days later."""

    def __init__(self, days: float) -> None:
        self._days = days

    def time(self) -> float:
        return super().time() + self._days * 86_400

    async def sleep(self, seconds: float) -> None:
        """Do not wait."""


async def test_contents_of_requests_are_deleted_after_the_last_journal_that_uses_them(store: Store) -> None:
    async with Atlas([agent(says("One."))], store=store) as atlas:
        await atlas.ask("1")
    for days, left in ((10, 3), (29, 3), (32, 0)):
        assert await RetentionJob(store, "default", RetentionPolicy(0, 30), LaterClock(days)).run_round()
        assert len(await store.records("default", "request")) == left
