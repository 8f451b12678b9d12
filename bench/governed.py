"""Cost of governance: one call of an empty async tool, and a turn stored in SQLite.

python bench/governed.py          needs atlas_agents; CPU time of this process, best of several
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

from atlas_agents import (
    Agent,
    Atlas,
    Capabilities,
    Chunk,
    DoneChunk,
    Request,
    TextChunk,
    ToolCall,
    ToolCallChunk,
    Usage,
    tool,
)
from atlas_agents.storage.sqlite import SqliteStore


@tool
async def nothing(query: str, limit: int = 5) -> str:
    """Do nothing."""
    return "x"


class Model:
    """Makes this many calls, then answers with twenty words."""

    id = "model"
    capabilities = Capabilities()

    def __init__(self, calls: int) -> None:
        self._calls = calls

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        if request.messages[-1].role == "user":
            for _ in range(self._calls):
                yield ToolCallChunk(ToolCall("", "nothing", {"query": "alpha", "limit": 3}))
            yield DoneChunk(Usage(1, 1), "tool_calls")
            return
        for _ in range(20):
            yield TextChunk("word ")
        yield DoneChunk(Usage(1, 1))


async def best(turn: Callable[[int], Awaitable[object]], count: int = 60, repeats: int = 6) -> float:
    """Return the CPU microseconds of one turn."""
    found: list[float] = []
    for repeat in range(repeats):
        started = time.process_time()
        for index in range(count):
            await turn(repeat * count + index)
        found.append((time.process_time() - started) / count * 1e6)
    return min(found)


async def main() -> None:
    costs: dict[int, float] = {}
    for calls in (1, 41):
        atlas = Atlas([Agent("bench", model=Model(calls), tools=[nothing], parallel_tools=False)])
        costs[calls] = await best(lambda _, atlas=atlas: atlas.run("go"))
    print(f"a governed call: {(costs[41] - costs[1]) / 40:.0f} µs CPU")
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(f"{folder}/bench.db")
        await store.open()
        stored = Atlas([Agent("bench", model=Model(1), tools=[nothing])], store=store)
        plain = Atlas([Agent("bench", model=Model(1), tools=[nothing])])
        in_memory = await best(lambda index: plain.ask("go", session=str(index)))
        before = store.transactions
        durable = await best(lambda index: stored.ask("go", session=str(index)))
        per_turn = (store.transactions - before) / 360
        print(f"a turn with one call: {in_memory / 1e3:.2f} ms in memory, {durable / 1e3:.2f} ms stored")
        print(f"commits of a stored turn: {per_turn:.0f}")
        await store.close()


if __name__ == "__main__":
    asyncio.run(main())
