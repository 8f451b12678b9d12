"""What a turn on a cluster reads of its conversation, and that copies of it elsewhere can go or lie."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from members import Member, member

from atlas_agents import assistant, user
from atlas_agents.config.open import open_valkey
from atlas_agents.core.paths import Secret
from atlas_agents.core.store import AddMessage, PutSession, Write
from atlas_agents.storage.sql.query import Query, Row
from atlas_agents.testing import Scripted, says
from checks import PATIENCE
from stores.valkey_server import ValkeyServer

pytestmark = pytest.mark.slow
_TURNS = 4


def counting(here: Member) -> Callable[[], tuple[int, int]]:
    """How many statements its store has read with since the last time, and how many rows they gave."""
    fetch, counts = here.store.fetch, [0, 0]

    async def counted(query: Query) -> list[Row]:
        rows = await fetch(query)
        counts[0] += 1
        counts[1] += len(rows)
        return rows

    def since() -> tuple[int, int]:
        found = counts[0], counts[1]
        counts[:] = 0, 0
        return found

    here.store.fetch = counted
    return since


async def said_before(here: Member, session: str, count: int) -> None:
    messages = [user(f"{n}") if n % 2 == 0 else assistant(f"{n}") for n in range(count)]
    writes: list[Write] = [PutSession(session)]
    writes += [AddMessage(session, message.id, message.to_json()) for message in messages]
    await here.store.commit("default", writes)


async def test_a_turn_reads_as_much_after_ten_messages_as_after_a_thousand(url: str, schema: str) -> None:
    model = Scripted(*[says("Yes.")] * 2 * (_TURNS + 1))
    async with (
        asyncio.timeout(3 * PATIENCE),
        member(url, schema, Scripted(), works=False) as front,
        member(url, schema, model) as back,
    ):
        read: dict[int, list[tuple[int, int]]] = {10: [], 1000: []}
        for length, per_turn in read.items():
            await said_before(front, f"s{length}", length)
            await front.atlas.ask("first", session=f"s{length}")  # each reads the whole of it once
            at_front, at_back = counting(front), counting(back)
            for _ in range(_TURNS):
                await front.atlas.ask("next", session=f"s{length}")
                per_turn.append((at_front()[1], at_back()[1]))
        assert len(model.requests[-1].messages) == 1000 + 2 * _TURNS + 1
        # what is looked at now and then falls into some turn, too: the least of each is the turn's own
        fewest = [min(count) for turns in read.values() for count in zip(*turns, strict=True)]
        assert max(fewest) < 100, read  # a gateway looks for the answer among the last fifty


async def flush(client: Any) -> None:
    await client.flushall()


async def garble(client: Any) -> None:
    for key in await client.keys("atlas:*:session:*"):
        for field, value in (await client.hgetall(key)).items():
            await client.hset(key, field, value[:20] + bytes(reversed(value[20:])))


async def replace(client: Any) -> None:
    for key in await client.keys("atlas:*:session:*"):
        await client.delete(key)
        await client.lpush(key, "of another kind")


async def test_a_conversation_is_the_same_whatever_is_done_to_valkey_in_the_midst_of_it(url: str, schema: str) -> None:
    harms = [flush, garble, replace]
    with ValkeyServer() as server:
        client = open_valkey(Secret(server.url))
        async with (
            asyncio.timeout(5 * PATIENCE),
            member(url, schema, Scripted(), works=False, redis_url=server.url) as front,
        ):
            for number in range(2 * len(harms)):
                model = Scripted(says(f"{number}."))
                async with member(url, schema, model, redis_url=server.url):  # each has only what is in Valkey
                    assert (await front.atlas.ask(f"go {number}", session="s")).text == f"{number}."
                texts = [message.text for message in model.requests[0].messages]
                assert texts == [word for n in range(number) for word in (f"go {n}", f"{n}.")] + [f"go {number}"]
                if number % 2:
                    await harms[number // 2](client)
        await client.aclose()
