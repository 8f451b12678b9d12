"""Usage of resumed turns: tokens and cost equal those of a turn that was never interrupted."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Literal, TypeAlias

import msgspec
import pytest

from atlas_agents import (
    Agent,
    Atlas,
    Chunk,
    Compaction,
    DoneChunk,
    History,
    Price,
    Request,
    TextChunk,
    ToolCallChunk,
    ToolContext,
    assistant,
    tool,
    user,
)
from atlas_agents.core.events import Usage
from atlas_agents.core.messages import ToolCall
from atlas_agents.core.store import AddMessage, PutSession, UsageRow, Write
from atlas_agents.providers.base import Capabilities
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.team import agent_tool
from checks import TIMEOUT

Mode: TypeAlias = Literal["tools", "plan"]
PRICES = {"large": Price(3, 15, 0.3, 3.75), "small": Price(0.1, 0.4)}
ARGUMENTS = {"ask_b": {"request": "Well?"}, "make_plan": {"steps": ["Spend."]}}
SUMMARY = "<summary>The user counts.</summary>"


class Model:
    """Calls one tool after the other and then answers; each reply uses different amounts."""

    def __init__(self, *names: str, summary: str = SUMMARY) -> None:
        self.id = "model"
        self.names = names
        self.summary = summary
        self.requests = 0

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        self.requests += 1
        done = sum(len(message.tool_results) for message in request.messages)
        if "You compress the history" in request.system:
            yield TextChunk(self.summary)
            yield DoneChunk(Usage(999, 11), model="large")
            return
        if done < len(self.names):
            name = self.names[done]
            yield ToolCallChunk(ToolCall("", name, ARGUMENTS.get(name, {})))
        else:
            yield TextChunk("Done.")
        used = Usage(101 + done, 7, 20, cache_write_tokens=10, reasoning_tokens=3, cache_write_1h_tokens=5)
        yield DoneChunk(used, model="large")


@tool(effect="pure")
async def spend(context: ToolContext) -> str:
    """Ask a model."""
    await context.spend("small", Usage(1000, 50))
    return "spent"


class Gate:
    """A tool at whose nth call a process is interrupted: the first one is the other agent's."""

    def __init__(self, closed_at: int = 0) -> None:
        self.calls_left = closed_at
        self.reached = asyncio.Event()

    async def wait(self) -> str:
        self.calls_left -= 1
        if self.calls_left == 0:
            self.reached.set()
            await asyncio.Event().wait()
        return "open"


def build(store: MemoryStore, gate: Gate, *, mode: Mode, summary: str) -> Atlas:
    @tool(effect="pure")
    async def wait() -> str:
        """Wait."""
        return await gate.wait()

    names = ("make_plan", "spend", "ask_b", "wait") if mode == "plan" else ("spend", "ask_b", "wait")
    other = Agent("b", model=Model("spend", "wait"), tools=[spend, wait])
    agent = Agent("a", model=Model(*names, summary=summary), tools=[spend, wait], mode=mode)
    history = History(compaction=Compaction(window=8000))
    atlas = Atlas([agent, other], store=store, prices=PRICES, history=history)
    agent.tools = [*agent.tools, agent_tool(atlas, other)]
    return atlas


async def run_turn(
    *, interrupted_at: int = 0, mode: Mode = "tools", summary: str = SUMMARY
) -> tuple[Usage, list[UsageRow]]:
    """Run a turn, in two processes if it is interrupted; return its usage and what the store has counted."""
    store = MemoryStore()
    await store.open()
    past = [user("x" * 16_000), assistant("y" * 16_000)]
    writes: list[Write] = [AddMessage("s", message.id, message.to_json()) for message in past]
    await store.commit("default", [PutSession("s"), *writes])
    if interrupted_at:
        gate = Gate(interrupted_at)
        async with build(store, gate, mode=mode, summary=summary) as atlas:
            atlas.send("go", session="s", agent_id="a")
            await gate.reached.wait()
    async with build(store, Gate(), mode=mode, summary=summary) as atlas:
        streams = await atlas.recover() if interrupted_at else [atlas.send("go", session="s", agent_id="a")]
        stream = next(each for each in streams if each.session == "s")
        assert (await stream.reply()).text == "Done."
        rows = await atlas.usage()
    return stream.usage, rows


@pytest.mark.parametrize(
    ("mode", "summary", "at"),
    [("tools", SUMMARY, 2), ("tools", "malformed", 2), ("plan", SUMMARY, 2), ("tools", SUMMARY, 1)],
    ids=["own tool", "failed summary", "plan", "tool of another agent"],
)
async def test_resumed_turn_reports_the_usage_of_its_replayed_steps(mode: Mode, summary: str, at: int) -> None:
    async with asyncio.timeout(TIMEOUT):
        whole, counted = await run_turn(mode=mode, summary=summary)
        resumed, recounted = await run_turn(interrupted_at=at, mode=mode, summary=summary)
    assert resumed.cost == pytest.approx(whole.cost, abs=1e-7) and resumed.saved == pytest.approx(whole.saved, abs=1e-7)
    without = {"cost": None, "saved": None}
    assert msgspec.structs.replace(resumed, **without) == msgspec.structs.replace(whole, **without)
    assert total(recounted) == total(counted) == (whole.input_tokens, whole.output_tokens, whole.cached_tokens)


async def test_repeated_message_reports_the_usage_of_the_earlier_turn() -> None:
    store = MemoryStore()
    await store.open()
    used = list[Usage]()
    for _ in range(2):
        async with build(store, Gate(), mode="tools", summary=SUMMARY) as atlas:
            stream = atlas.send("go", session="s", agent_id="a", idempotency_key="k")
            await stream.reply()
            used.append(stream.usage)
    assert used[1].input_tokens == used[0].input_tokens > 2000
    assert used[1].cost == pytest.approx(used[0].cost, abs=1e-7)


def total(rows: list[UsageRow]) -> tuple[int, int, int]:
    columns = [(row.input_tokens, row.output_tokens, row.cached_tokens) for row in rows]
    counts = [sum(column) for column in zip(*columns, strict=True)]
    return counts[0], counts[1], counts[2]
