"""A store that is full, locked or gone: new work is refused clearly, what was begun waits and loses nothing."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from atlas_agents import Agent, Atlas, CrashLoop, Happened, NotHappened, Price, StoreError, Transient, tool
from atlas_agents.core.errors import StaleOwner, StoreBusy, StoreFull, StoreLost
from atlas_agents.core.store import AddJournal, ClaimRun, Write
from atlas_agents.storage.memory import MemoryStore
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says
from atlas_agents.tools.journal import MAX_RESUMES_WITHOUT_PROGRESS
from atlas_agents.tools.tool import Tool
from checks import TIMEOUT, run_ready_tasks, wait_until


class Moody(MemoryStore):
    """Fails the commits that write this kind of step, so many times; after the write if it is unclear."""

    def __init__(self, kind: str, trouble: Exception, times: int = 3, *, after: bool = False) -> None:
        super().__init__()
        self.kind, self.trouble, self.times, self.after = kind, trouble, times, after
        self.failed = 0

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        hit = any(isinstance(write, AddJournal) and write.kind == self.kind for write in writes)
        if not hit or self.failed >= self.times:
            return await super().commit(tenant, writes)
        self.failed += 1
        if self.after and self.failed == 1:
            await super().commit(tenant, writes)
        raise self.trouble


def counting(effects: list[int], **terms: Any) -> Tool:
    async def act(n: int) -> str:
        """Act."""
        effects.append(n)
        return f"did {n}"

    return tool(**terms)(act)


TROUBLES = [StoreBusy("locked"), StoreFull("full"), StoreLost("gone"), StoreLost("gone", unclear=True)]


@pytest.mark.parametrize("kind", ["reply", "intent", "outcome", "ended"])
@pytest.mark.parametrize("trouble", TROUBLES, ids=["busy", "full", "lost", "unclear"])
async def test_a_turn_outlasts_a_store_in_trouble_and_nothing_happens_twice(kind: str, trouble: StoreError) -> None:
    unclear = isinstance(trouble, StoreLost) and trouble.unclear
    store, effects = Moody(kind, trouble, after=unclear), list[int]()
    await store.open()
    model = Scripted(calls("act", n=1), says("Done."))
    async with in_memory_atlas(model, [counting(effects)], store=store) as atlas, asyncio.timeout(10):
        assert (await atlas.ask("go", session="s")).text == "Done."
    assert store.failed == 3 or (unclear and store.failed >= 1)
    assert effects == [1]
    (run,) = await store.runs("default", "s")
    assert run.status == "done"
    kinds = [row.kind for row in await store.journal("default", run.id)]
    assert kinds == ["accepted", "reply", "intent", "outcome", "reply", "ended"]
    assert len(await store.audit("default")) == 1


@pytest.mark.parametrize("trouble", TROUBLES[:3], ids=["busy", "full", "lost"])
async def test_a_new_message_is_refused_at_once_and_the_next_one_is_taken(trouble: StoreError) -> None:
    store = Moody("accepted", trouble, times=1)
    await store.open()
    async with in_memory_atlas(Scripted(says("Here.")), store=store) as atlas, asyncio.timeout(2):
        with pytest.raises(type(trouble)):
            await atlas.ask("lost", session="s")
        assert (await atlas.ask("kept", session="s")).text == "Here."
        assert [message.text for message in await atlas.sessions.history("s")] == ["kept", "Here."]
        assert [message.text for message in atlas.conversation("s").messages] == ["kept", "Here."]


async def test_a_message_whose_acceptance_was_unclear_is_accepted_if_it_was_written() -> None:
    store = Moody("accepted", StoreLost("gone", unclear=True), times=1, after=True)
    await store.open()
    async with in_memory_atlas(Scripted(says("Here.")), store=store) as atlas, asyncio.timeout(2):
        assert (await atlas.ask("once", session="s")).text == "Here."
        assert [message.text for message in await atlas.sessions.history("s")] == ["once", "Here."]


async def test_a_turn_that_cannot_be_written_down_can_still_be_cancelled() -> None:
    store = Moody("reply", StoreFull("full"), times=10**9)
    await store.open()
    async with in_memory_atlas(Scripted(says("Here.")), store=store) as atlas, asyncio.timeout(5):
        stream = atlas.send("go", session="s")
        await wait_until(lambda: store.failed)
        stream.cancel()
        assert [event.type async for event in stream][-1] == "stream:end"


async def test_who_lost_its_run_to_another_writes_nothing_more() -> None:
    store, effects, reached, go_on = MemoryStore(), list[int](), asyncio.Event(), asyncio.Event()
    await store.open()

    @tool(effect="keyed")
    async def slow() -> str:
        """Act slowly."""
        reached.set()
        await go_on.wait()
        return "late"

    model = Scripted(calls("slow") + calls("act", n=1), says("never"))
    async with in_memory_atlas(model, [slow, counting(effects)], store=store) as atlas, asyncio.timeout(5):
        stream = atlas.send("go", session="s")
        await reached.wait()

        async def is_written() -> bool:
            return len(await store.journal("default", stream.stream_id)) >= 4

        await wait_until(is_written)
        await store.commit("default", [ClaimRun(stream.stream_id)])
        before = await store.journal("default", stream.stream_id)
        go_on.set()
        with pytest.raises(StaleOwner):
            await stream.reply()
        assert await store.journal("default", stream.stream_id) == before
    assert [run.status for run in await store.runs("default", "s")] == ["running"]


async def test_turn_that_crashes_every_process_is_failed() -> None:
    store = MemoryStore()
    await store.open()
    for life in range(MAX_RESUMES_WITHOUT_PROGRESS + 1):
        began = asyncio.Event()
        atlas = in_memory_atlas(Scripted(calls("hang"), calls("hang")), [hanging(began)], store=store)
        if life == 0:
            atlas.send("go", session="s")
        else:
            await atlas.recover()
        await asyncio.wait_for(began.wait(), TIMEOUT)
        await atlas.close()
    async with in_memory_atlas(Scripted(says("Next.")), store=store) as atlas, asyncio.timeout(5):
        (stream,) = await atlas.recover()
        with pytest.raises(CrashLoop, match="crashed 5 times"):
            await stream.reply()
        assert (await atlas.ask("next", session="s")).text == "Next."
    assert [run.status for run in await store.runs("default", "s")] == ["failed", "done"]


def hanging(began: asyncio.Event) -> Tool:
    @tool(effect="pure")
    async def hang() -> None:
        """Never ends."""
        began.set()
        await asyncio.Event().wait()

    return hang


async def test_closing_leaves_turns_open_and_gives_those_time_that_need_little() -> None:
    store = MemoryStore()
    await store.open()

    @tool(effect="pure")
    async def brief() -> str:
        """Take a moment."""
        await run_ready_tasks()
        return "ok"

    atlas = in_memory_atlas(Scripted(calls("brief"), says("Done.")), [brief], store=store)
    stream = atlas.send("go", session="s")
    await stream.accepted()
    await atlas.close(grace=5)
    assert (await stream.reply()).text == "Done."
    atlas = in_memory_atlas(Scripted(calls("hang")), [hanging(asyncio.Event())], store=store)
    stream = atlas.send("on", session="s")
    await stream.accepted()
    await atlas.close()
    assert "stream:end" not in [event.type async for event in stream]
    assert [run.status for run in await store.open_runs()] == ["running"]


async def cut_short(found: Any, effects: list[int]) -> tuple[str, list[int], list[str]]:
    """(status and words of the result, what happened, keys asked about) after a turn was cut short in its tool."""
    store, reached, keys = MemoryStore(), asyncio.Event(), list[str]()
    await store.open()

    @tool
    async def pay(n: int) -> str:
        """Pay."""
        effects.append(n)
        reached.set()
        await asyncio.Event().wait()
        return "never"

    async def ask_bank(key: str, arguments: dict[str, Any]) -> Any:
        keys.append(key)
        assert arguments == {"n": 1}
        if isinstance(found, Exception):
            raise found
        return found

    async def paid(n: int) -> str:
        """Pay."""
        effects.append(n)
        return f"paid {n}"

    atlas = in_memory_atlas(Scripted(calls("pay", n=1)), [pay], store=store)
    stream = atlas.send("go", session="s")
    await reached.wait()
    await atlas.close()
    again = tool(name="pay", reconcile=ask_bank)(paid)
    async with in_memory_atlas(Scripted(says("Done.")), [again], store=store) as atlas, asyncio.timeout(5):
        (resumed,) = await atlas.recover()
        await resumed.reply()
        (result,) = [each for message in await atlas.sessions.history("s") for each in message.tool_results]
    assert all(key.startswith(stream.stream_id) for key in keys)
    return f"{result.status}: {result.result}", effects, keys


async def test_a_tool_that_can_find_out_is_asked_what_became_of_its_call() -> None:
    assert (await cut_short(Happened("receipt 7"), []))[:2] == ("ok: receipt 7", [1])
    assert (await cut_short(NotHappened(), []))[:2] == ("ok: paid 1", [1, 1])
    for cannot_tell in (None, "perhaps", Transient("bank is closed"), RuntimeError("bug")):
        words, effects, keys = await cut_short(cannot_tell, [])
        assert words.startswith("unknown: ")
        assert effects == [1]
        assert len(keys) == 1


async def test_an_outcome_that_got_lost_on_the_way_is_found_out_at_once() -> None:
    def made(found: Any) -> Tool:
        async def lose() -> None:
            """Lose the connection."""
            raise ConnectionResetError("gone")

        def look(key: str) -> Any:
            return found

        return tool(reconcile=look)(lose)

    for found, status in ((Happened("it did"), "ok"), (NotHappened(), "error"), (None, "unknown")):
        async with in_memory_atlas(Scripted(calls("lose"), says("Done.")), [made(found)]) as atlas:
            result = await atlas.run("go")
            assert [step.status for step in result.steps] == [status]


async def test_usage_and_cost_are_summed_by_session_agent_and_model_and_counted_once() -> None:
    store = MemoryStore()
    await store.open()
    agents = [Agent(id, model=Scripted(says("one two three"), says("four"))) for id in ("a", "b")]
    async with Atlas(agents, store=store, prices={"scripted": Price(1_000_000, 2_000_000)}) as atlas:
        first = await atlas.ask("hello", session="s", agent_id="a")
        await atlas.ask("hello", session="s", agent_id="a")
        await atlas.ask("hello", session="t", agent_id="b")
        rows = {(row.session, row.agent_id): row for row in await atlas.usage()}
    assert {key: row.turns for key, row in rows.items()} == {("s", "a"): 2, ("t", "b"): 1}
    row = rows["t", "b"]
    assert row.cost_microcents == (row.input_tokens + 2 * row.output_tokens) * 100_000_000
    assert first.metadata["cost"] == first.metadata["usage"]["input"] + 2 * first.metadata["usage"]["output"]
