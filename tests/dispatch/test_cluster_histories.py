"""History cache on a cluster: turns read few rows."""

import asyncio
from collections.abc import Callable

import pytest
from in_process_members import Member, member

from atlas_agents import assistant, user
from atlas_agents.core.store import AddMessage, PutSession, Write
from atlas_agents.storage.sql.tables import Query, Row
from atlas_agents.testing import Scripted, says
from checks import TIMEOUT

pytestmark = pytest.mark.slow
_TURNS = 4


def count_reads(this: Member) -> Callable[[], tuple[int, int]]:
    """Return a function that returns the number of reads and of rows since its last call."""
    fetch, counts = this.store.fetch, [0, 0]

    async def counted(query: Query) -> list[Row]:
        rows = await fetch(query)
        counts[0] += 1
        counts[1] += len(rows)
        return rows

    def read_counts() -> tuple[int, int]:
        found = counts[0], counts[1]
        counts[:] = 0, 0
        return found

    this.store.fetch = counted
    return read_counts


async def add_history(this: Member, session: str, count: int) -> None:
    messages = [user(f"{n}") if n % 2 == 0 else assistant(f"{n}") for n in range(count)]
    writes: list[Write] = [PutSession(session)]
    writes += [AddMessage(session, message.id, message.to_json()) for message in messages]
    await this.store.commit("default", writes)


async def test_turn_reads_few_rows_however_long_the_history(url: str, schema: str) -> None:
    model = Scripted(*[says("Yes.")] * 2 * (_TURNS + 1))
    async with (
        asyncio.timeout(TIMEOUT),
        member(url, schema, Scripted(), executes_runs=False) as front,
        member(url, schema, model) as back,
    ):
        read: dict[int, list[tuple[int, int]]] = {10: [], 1000: []}
        for length, per_turn in read.items():
            await add_history(front, f"s{length}", length)
            await front.atlas.ask("first", session=f"s{length}")  # each process reads the whole history once
            at_front, at_back = count_reads(front), count_reads(back)
            for _ in range(_TURNS):
                await front.atlas.ask("next", session=f"s{length}")
                per_turn.append((at_front()[1], at_back()[1]))
        assert len(model.requests[-1].messages) == 1000 + 2 * _TURNS + 1
        # periodic reads fall into some turns, so the minimum is what a turn reads
        minimum = [min(count) for turns in read.values() for count in zip(*turns, strict=True)]
        assert max(minimum) < 100, read  # a gateway reads the last fifty messages for the answer
