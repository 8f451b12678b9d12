"""Inline dispatcher: open runs resume after a restart with their options, and are cancelled by id."""

import asyncio
from pathlib import Path

import pytest

from atlas_agents import Cancelled
from atlas_agents.core.store import AcceptRun, PutSession, StopRun
from atlas_agents.storage.sqlite import MemoryStore, SqliteStore
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says
from atlas_agents.tools.tool import tool
from checks import TIMEOUT, endless_tool


async def test_resumed_turn_keeps_its_sampling_options(tmp_path: Path) -> None:
    called = asyncio.Event()

    @tool(effect="pure")
    async def look() -> str:
        """Wait forever."""
        called.set()
        await asyncio.Event().wait()
        return ""

    for model in (Scripted(calls("look")), Scripted(calls("look"))):
        store = SqliteStore(tmp_path / "atlas.db")
        await store.open()
        async with in_memory_atlas(model, [look], store=store) as atlas, asyncio.timeout(TIMEOUT):
            if not await atlas.recover():
                atlas.send("go", session="s", settings={"temperature": 0.25, "max_tokens": 7})
            await called.wait()
            called.clear()
        await store.close()
    store = SqliteStore(tmp_path / "atlas.db")
    await store.open()
    last = Scripted(says("Seen."))
    look_again = tool(effect="pure", name="look")(lambda: "seen")
    async with in_memory_atlas(last, [look_again], store=store) as atlas, asyncio.timeout(TIMEOUT):
        (stream,) = await atlas.recover()
        assert (await stream.reply()).text == "Seen."
        assert [(each.settings.temperature, each.settings.max_tokens) for each in last.requests] == [(0.25, 7)]
    await store.close()


async def test_running_turn_is_cancelled_by_id() -> None:
    store, (forever, running) = MemoryStore(), endless_tool()
    await store.open()
    async with in_memory_atlas(Scripted(calls("forever")), [forever], store=store) as atlas, asyncio.timeout(TIMEOUT):
        stream = atlas.send("go", session="s")
        await running.wait()
        assert [await atlas.cancel(id) for id in (stream.stream_id, "another")] == [True, False]
        with pytest.raises(Cancelled):
            await stream.reply()


async def test_turn_cancelled_without_an_owner_ends_when_it_is_resumed() -> None:
    store = MemoryStore()
    await store.open()
    model = Scripted(says("Never sent."))
    request = b'{"messages":[{"role":"user","parts":[{"type":"text","text":"go"}],"id":"m"}]}'
    await store.commit("default", [PutSession("s"), AcceptRun("r", "s", "assistant", request=request), StopRun("r")])
    async with in_memory_atlas(model, store=store) as atlas, asyncio.timeout(TIMEOUT):
        (stream,) = await atlas.recover()
        with pytest.raises(Cancelled):
            await stream.reply()
        ended = await store.run("default", "r")
        assert ended is not None and ended.status == "cancelled"
