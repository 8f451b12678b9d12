"""What governance costs: one call of an async tool that does nothing, and a turn that is kept in SQLite.

python bench/governed.py          needs atlas_agents importable; CPU time of this process, best of several
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
    """Asks for so many calls, then says twenty words."""

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
    """CPU microseconds of one turn."""
    found: list[float] = []
    for repeat in range(repeats):
        begin = time.process_time()
        for place in range(count):
            await turn(repeat * count + place)
        found.append((time.process_time() - begin) / count * 1e6)
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
        kept = Atlas([Agent("bench", model=Model(1), tools=[nothing])], store=store)
        plain = Atlas([Agent("bench", model=Model(1), tools=[nothing])])
        in_memory = await best(lambda place: plain.ask("go", session=str(place)))
        before = store.transactions
        durable = await best(lambda place: kept.ask("go", session=str(place)))
        per_turn = (store.transactions - before) / 360
        print(f"a turn with one call: {in_memory / 1e3:.2f} ms in memory, {durable / 1e3:.2f} ms kept")
        print(f"commits of a kept turn: {per_turn:.0f}")
        await store.close()


if __name__ == "__main__":
    asyncio.run(main())
