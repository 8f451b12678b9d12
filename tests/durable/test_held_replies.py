"""Replies that are written together with the intent or the outcome of their tool call."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from atlas_agents import Cancelled, Interceptor, Limits, Question, tool
from atlas_agents.core.errors import StoreFull
from atlas_agents.core.store import AddJournal, Write
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, VirtualClock, calls, in_memory_atlas, says
from atlas_agents.tools.limits import Slots
from atlas_agents.tools.tool import Tool
from checks import TIMEOUT, run_ready_tasks, wait_until


class SlowStore(MemoryStore):
    """Commits a step of this kind slowly: the commit is applied `before` or after `go_on` is set."""

    def __init__(self, kind: str, *, before: bool = False) -> None:
        super().__init__()
        self.kind, self.before = kind, before
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        if not any(isinstance(write, AddJournal) and write.kind == self.kind for write in writes):
            return await super().commit(tenant, writes)
        results = await super().commit(tenant, writes) if self.before else None
        self.reached.set()
        await self.go_on.wait()
        return results if results is not None else await super().commit(tenant, writes)


def counting(effects: list[int], **terms: Any) -> Tool:
    @tool(**terms)
    async def act(n: int) -> str:
        """Act."""
        effects.append(n)
        return f"did {n}"

    return act


async def kinds(store: MemoryStore, run: str = "") -> list[str]:
    run = run or (await store.runs("default", "default"))[0].id
    return [step.kind for step in await store.journal("default", run)]


async def used_tokens(store: MemoryStore) -> int:
    return sum([row.output_tokens for row in await store.usage("default")])


async def test_call_is_neither_announced_nor_run_before_its_reply_is_stored() -> None:
    store, effects, seen = SlowStore("intent"), list[int](), list[str]()
    await store.open()
    model = Scripted(calls("act", n=1), says("Done."))
    async with in_memory_atlas(model, [counting(effects)], store=store) as atlas, asyncio.timeout(TIMEOUT):
        for name in ("message:kept", "tool:called", "tool:result"):
            atlas.on(name, lambda event: seen.append(event.type))
        stream = atlas.send("go")
        await store.reached.wait()
        await run_ready_tasks()
        assert seen == ["message:kept"] and effects == []
        store.go_on.set()
        await stream.reply()
    assert seen == ["message:kept", "message:kept", "tool:called", "tool:result", "message:kept", "message:kept"]
    assert effects == [1]


@pytest.mark.parametrize("before", [True, False])
async def test_call_that_is_cancelled_while_its_reply_is_written_has_one_reply_and_one_result(before: bool) -> None:
    store, effects, seen = SlowStore("intent", before=before), list[int](), list[str]()
    await store.open()
    model = Scripted(calls("act", n=1), says("Never."))
    async with in_memory_atlas(model, [counting(effects)], store=store) as atlas, asyncio.timeout(TIMEOUT):
        for name in ("tool:called", "tool:result"):
            atlas.on(name, lambda event: seen.append(event.type))
        stream = atlas.send("go")
        await store.reached.wait()
        stream.cancel()
        await run_ready_tasks()
        assert seen == []
        store.go_on.set()
        with pytest.raises(Cancelled):
            await stream.reply()
        assert await kinds(store) == ["accepted", "reply", "intent", "outcome", "ended"]
        assert [message.role for message in await atlas.sessions.history("default")] == ["user", "assistant", "tool"]
    assert (seen, effects) == (["tool:called", "tool:result"], [])


async def test_result_of_a_cancelled_call_is_announced_after_the_call_when_the_store_is_slow() -> None:
    store, seen = SlowStore("intent"), list[str]()
    await store.open()
    model = Scripted(calls("act", n=1), says("Never."))
    async with in_memory_atlas(model, [counting([])], store=store) as atlas, asyncio.timeout(TIMEOUT):
        stream = atlas.send("go")
        await store.reached.wait()
        stream.cancel()
        await wait_until(lambda: len(atlas.conversation("default").messages) == 3)  # the turn no longer waits for it
        store.go_on.set()
        seen = [event.type async for event in stream]
    assert [each for each in seen if each.startswith("tool")] == ["tool:called", "tool:result"]
    assert (await kinds(store))[-1] == "ended"


async def test_result_of_a_cancelled_call_is_stored_before_the_end_when_the_store_is_slow_and_full() -> None:
    class SlowAndFull(SlowStore):
        is_full = True

        async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
            is_outcome = any(isinstance(write, AddJournal) and write.kind == "outcome" for write in writes)
            if is_outcome and self.is_full:
                self.is_full = False
                raise StoreFull("full")
            return await super().commit(tenant, writes)

    store = SlowAndFull("intent")
    await store.open()
    model = Scripted(calls("act", n=1), says("Never."))
    async with in_memory_atlas(model, [counting([])], store=store) as atlas, asyncio.timeout(TIMEOUT):
        stream = atlas.send("go")
        await store.reached.wait()
        stream.cancel()
        await wait_until(lambda: len(atlas.conversation("default").messages) == 3)  # the turn no longer waits for it
        await run_ready_tasks()
        store.go_on.set()
        with pytest.raises(Cancelled):
            await stream.reply()
        *messages, results = await atlas.sessions.history("default")
    assert [message.role for message in messages] == ["user", "assistant"]
    assert [(each.status, each.error) for each in results.tool_results] == [("error", "declined")]  # it did not run
    assert await kinds(store) == ["accepted", "reply", "intent", "outcome", "ended"]
    assert len(await store.audit("default")) == 1


async def test_cancelled_turn_ends_after_a_commit_that_takes_longer_than_it_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("atlas_agents.agents.run._END_TIMEOUT", 0.05)
    store = SlowStore("intent")
    await store.open()
    model = Scripted(calls("act", n=1), says("Never."))
    async with in_memory_atlas(model, [counting([])], store=store) as atlas, asyncio.timeout(TIMEOUT):
        stream = atlas.send("go")
        await store.reached.wait()
        stream.cancel()
        with pytest.raises(Cancelled):
            await stream.reply()
        store.go_on.set()
        await run_ready_tasks()
    assert await kinds(store) == ["accepted", "reply", "intent", "outcome", "ended"]


async def test_reply_of_an_invalid_call_is_stored_with_its_outcome() -> None:
    store, effects = MemoryStore(), list[int]()
    await store.open()
    model = Scripted(calls("act", n="x"), says("Sorry."))
    async with in_memory_atlas(model, [counting(effects)], store=store) as atlas, asyncio.timeout(TIMEOUT):
        stream = atlas.send("go")
        seen = [event.type async for event in stream if event.type.startswith(("tool", "message:kept"))]
    assert seen == ["message:kept", "message:kept", "tool:called", "tool:result", "message:kept", "message:kept"]
    assert await kinds(store) == ["accepted", "reply", "outcome", "reply", "ended"]
    assert effects == []


async def test_reply_of_a_call_over_the_daily_limit_is_stored_with_its_outcome() -> None:
    store, effects = MemoryStore(), list[int]()
    await store.open()
    model = Scripted(calls("act", n=1), calls("act", n=2), says("Enough."))
    limits = Limits(per_day=1)
    async with in_memory_atlas(model, [counting(effects)], store=store, limits=limits) as atlas:
        await atlas.ask("go")
    assert effects == [1]
    assert await kinds(store) == ["accepted", "reply", "intent", "outcome", "reply", "outcome", "reply", "ended"]


async def test_person_is_asked_after_the_reply_is_stored() -> None:
    store, seen = MemoryStore(), list[list[str]]()
    await store.open()

    async def must_ask(arguments: Any) -> bool:
        seen.append(await kinds(store))
        return True

    async def approve(question: Question) -> bool:
        seen.append(await kinds(store, question.run_id))
        return True

    model = Scripted(calls("act", n=1), says("Done."))
    async with in_memory_atlas(model, [counting([], confirm=must_ask)], store=store, approve=approve) as atlas:
        await atlas.ask("go")
    assert seen == [["accepted", "reply"], ["accepted", "reply", "asked"]]


async def test_hook_is_asked_after_the_reply_is_stored() -> None:
    store, seen = MemoryStore(), list[list[str]]()
    await store.open()

    async def watch(call: Any, context: Any) -> None:
        seen.append(await kinds(store))

    model = Scripted(calls("act", n=1), says("Done."))
    async with in_memory_atlas(
        model, [counting([])], store=store, interceptors=[Interceptor(tool_call=watch)]
    ) as atlas:
        await atlas.ask("go")
    assert seen == [["accepted", "reply"]]


async def test_reply_of_a_call_that_waits_for_the_next_tick_is_stored_before() -> None:
    store, clock, effects = MemoryStore(), VirtualClock(), list[int]()
    await store.open()
    model = Scripted(calls("act", n=1), calls("act", n=2), says("Done."))
    atlas = in_memory_atlas(model, [counting(effects)], store=store, clock=clock, limits=Limits(per_tick=1))
    async with atlas, asyncio.timeout(TIMEOUT):
        stream = atlas.send("go")
        await wait_until(lambda: len(model.requests) == 2)
        await run_ready_tasks()
        assert (await kinds(store), effects) == (["accepted", "reply", "intent", "outcome", "reply"], [1])
        await clock.advance(5)
        assert (await stream.reply()).text == "Done."
    assert effects == [1, 2]


async def test_reply_of_a_call_that_waits_for_a_slot_is_stored_before(monkeypatch: pytest.MonkeyPatch) -> None:
    slots, store, effects = Slots(0), MemoryStore(), list[int]()
    monkeypatch.setattr("atlas_agents.tools.execute.process_slots", lambda: slots)
    await store.open()
    model = Scripted(calls("act", n=1), says("Done."))
    async with in_memory_atlas(model, [counting(effects)], store=store) as atlas, asyncio.timeout(TIMEOUT):
        stream = atlas.send("go")
        await wait_until(lambda: len(model.requests) == 1)
        await run_ready_tasks()
        assert (await kinds(store), effects) == (["accepted", "reply"], [])
        slots.release()
        await stream.reply()
    assert effects == [1]


async def test_usage_of_a_held_reply_counts_once_if_its_commit_is_refused_at_first() -> None:
    class Full(MemoryStore):
        failed = 0

        async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
            if any(isinstance(write, AddJournal) and write.kind == "intent" for write in writes) and self.failed < 2:
                self.failed += 1
                raise StoreFull("full")
            return await super().commit(tenant, writes)

    plain, full = MemoryStore(), Full()
    for store in (plain, full):
        await store.open()
        model = Scripted(calls("act", n=1), says("Done."))
        async with in_memory_atlas(model, [counting([])], store=store) as atlas, asyncio.timeout(TIMEOUT):
            await atlas.ask("go")
    assert full.failed == 2
    assert await used_tokens(full) == await used_tokens(plain) > 0


async def test_turn_that_is_cancelled_while_its_held_reply_is_written_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atlas_agents.core.aio._CANCEL_GRACE", 0.05)
    store = SlowStore("reply", before=True)
    await store.open()
    model = Scripted(says("not JSON"), says("1"))
    async with in_memory_atlas(model, [], store=store) as atlas, asyncio.timeout(TIMEOUT):
        stream = atlas.send("go", output=int)
        await store.reached.wait()
        stream.cancel()
        with pytest.raises(Cancelled):
            await stream.reply()
    assert await kinds(store) == ["accepted", "reply", "ended"]
    assert [row.status for row in await store.runs("default", "default")] == ["cancelled"]


async def test_call_whose_tool_cannot_be_built_for_the_user_is_refused() -> None:
    def build(user: str) -> Tool:
        raise OSError("no folder for this user")

    store, effects = MemoryStore(), list[int]()
    await store.open()
    model = Scripted(calls("act", n=1), says("Sorry."))
    async with in_memory_atlas(model, [counting(effects).per_user(build)], store=store) as atlas:
        assert (await atlas.ask("go")).text == "Sorry."
    assert await kinds(store) == ["accepted", "reply", "outcome", "reply", "ended"]
    assert effects == []
