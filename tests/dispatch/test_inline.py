"""The dispatcher of one machine: what an earlier life has left goes on as it was asked for, and stops by its name."""

import asyncio
from pathlib import Path

import pytest

from atlas_agents import Cancelled
from atlas_agents.agents.options import SamplingOptions
from atlas_agents.core.store import AcceptRun, PutSession, StopRun
from atlas_agents.storage.memory import MemoryStore
from atlas_agents.storage.sqlite import SqliteStore
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says
from atlas_agents.tools.tool import tool


async def test_what_the_caller_wished_of_the_model_holds_in_the_next_life_too(tmp_path: Path) -> None:
    asked = asyncio.Event()

    @tool(effect="pure")
    async def look() -> str:
        """Look, and never see."""
        asked.set()
        await asyncio.Event().wait()
        return ""

    for model in (Scripted(calls("look")), Scripted(calls("look"))):
        store = SqliteStore(tmp_path / "atlas.db")
        await store.open()
        async with in_memory_atlas(model, [look], store=store) as atlas, asyncio.timeout(5):
            if not await atlas.recover():
                atlas.send("go", session="s", sampling=SamplingOptions(temperature=0.25, max_tokens=7))
            await asked.wait()
            asked.clear()
        await store.close()
    store = SqliteStore(tmp_path / "atlas.db")
    await store.open()
    last = Scripted(says("Seen."))
    look_again = tool(effect="pure", name="look")(lambda: "seen")
    async with in_memory_atlas(last, [look_again], store=store) as atlas, asyncio.timeout(5):
        (stream,) = await atlas.recover()
        assert (await stream.reply()).text == "Seen."
        assert [(each.temperature, each.max_tokens) for each in last.requests] == [(0.25, 7)]
    await store.close()


async def test_a_turn_is_stopped_by_its_id_as_long_as_it_is_there() -> None:
    store, running = MemoryStore(), asyncio.Event()
    await store.open()

    @tool
    async def forever() -> None:
        """Never ends."""
        running.set()
        await asyncio.Event().wait()

    async with in_memory_atlas(Scripted(calls("forever")), [forever], store=store) as atlas, asyncio.timeout(5):
        stream = atlas.send("go", session="s")
        await running.wait()
        assert [await atlas.cancel(id) for id in (stream.stream_id, "another")] == [True, False]
        with pytest.raises(Cancelled):
            await stream.reply()


async def test_a_turn_that_was_wanted_to_stop_while_nobody_was_at_it_is_stopped_when_it_is_taken_on() -> None:
    store = MemoryStore()
    await store.open()
    model = Scripted(says("Never said."))
    errand = b'{"messages":[{"role":"user","parts":[{"type":"text","text":"go"}],"id":"m"}]}'
    await store.commit("default", [PutSession("s"), AcceptRun("r", "s", "assistant", request=errand), StopRun("r")])
    async with in_memory_atlas(model, store=store) as atlas, asyncio.timeout(5):
        (stream,) = await atlas.recover()
        with pytest.raises(Cancelled):
            await stream.reply()
        ended = await store.run("default", "r")
        assert ended is not None and ended.status == "cancelled"
