"""Store failures: new messages are rejected, running turns wait and lose nothing."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from atlas_agents import (
    Agent,
    Approvals,
    Atlas,
    Cancelled,
    CrashLoop,
    Happened,
    NotHappened,
    Price,
    StoreError,
    Transient,
    tool,
)
from atlas_agents.core.errors import StaleOwner, StoreBusy, StoreFull, StoreLost
from atlas_agents.core.store import AddJournal, ClaimRun, Write
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says
from atlas_agents.tools import journal
from atlas_agents.tools.journal import MAX_RESUMES_WITHOUT_PROGRESS
from atlas_agents.tools.tool import Tool
from checks import TIMEOUT, run_ready_tasks, wait_until


class FailingStore(MemoryStore):
    """Fails a number of commits with this kind of step; if `unclear`, after the write."""

    def __init__(self, kind: str, failure: Exception, times: int = 3, *, after: bool = False) -> None:
        super().__init__()
        self.kind, self.failure, self.times, self.after = kind, failure, times, after
        self.failed = 0

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        hit = any(isinstance(write, AddJournal) and write.kind == self.kind for write in writes)
        if not hit or self.failed >= self.times:
            return await super().commit(tenant, writes)
        self.failed += 1
        if self.after and self.failed == 1:
            await super().commit(tenant, writes)
        raise self.failure


def count_calls(effects: list[int], **terms: Any) -> Tool:
    async def act(n: int) -> str:
        """Act."""
        effects.append(n)
        return f"did {n}"

    return tool(**terms)(act)


TROUBLES = [StoreBusy("locked"), StoreFull("full"), StoreLost("gone"), StoreLost("gone", unclear=True)]


@pytest.mark.parametrize("kind", ["reply", "intent", "outcome", "ended"])
@pytest.mark.parametrize("failure", TROUBLES, ids=["busy", "full", "lost", "unclear"])
async def test_turn_survives_store_failures_and_nothing_runs_twice(kind: str, failure: StoreError) -> None:
    unclear = isinstance(failure, StoreLost) and failure.unclear
    store, effects = FailingStore(kind, failure, after=unclear), list[int]()
    await store.open()
    model = Scripted(calls("act", n=1), says("Done."))
    async with in_memory_atlas(model, [count_calls(effects)], store=store) as atlas, asyncio.timeout(TIMEOUT):
        assert (await atlas.ask("go", session="s")).text == "Done."
    assert store.failed == 3 or (unclear and store.failed >= 1)
    assert effects == [1]
    (run,) = await store.runs("default", "s")
    assert run.status == "done"
    kinds = [row.kind for row in await store.journal("default", run.id)]
    assert kinds == ["accepted", "reply", "intent", "outcome", "reply", "ended"]
    assert len(await store.audit("default")) == 1


@pytest.mark.parametrize("failure", TROUBLES[:3], ids=["busy", "full", "lost"])
async def test_message_is_rejected_during_a_store_failure_and_accepted_after_it(failure: StoreError) -> None:
    store = FailingStore("accepted", failure, times=1)
    await store.open()
    async with in_memory_atlas(Scripted(says("Here.")), store=store) as atlas, asyncio.timeout(TIMEOUT):
        with pytest.raises(type(failure)):
            await atlas.ask("lost", session="s")
        assert (await atlas.ask("kept", session="s")).text == "Here."
        assert [message.text for message in await atlas.sessions.history("s")] == ["kept", "Here."]
        assert [message.text for message in atlas.conversation("s").messages] == ["kept", "Here."]


async def test_message_with_unclear_acceptance_counts_if_it_was_written() -> None:
    store = FailingStore("accepted", StoreLost("gone", unclear=True), times=1, after=True)
    await store.open()
    async with in_memory_atlas(Scripted(says("Here.")), store=store) as atlas, asyncio.timeout(TIMEOUT):
        assert (await atlas.ask("once", session="s")).text == "Here."
        assert [message.text for message in await atlas.sessions.history("s")] == ["once", "Here."]


async def test_turn_can_be_cancelled_during_a_store_failure() -> None:
    store = FailingStore("reply", StoreFull("full"), times=10**9)
    await store.open()
    async with in_memory_atlas(Scripted(calls("act", n=1)), store=store) as atlas, asyncio.timeout(TIMEOUT):
        stream = atlas.send("go", session="s")
        await wait_until(lambda: store.failed)
        stream.cancel()
        assert [event.type async for event in stream][-1] == "stream:end"


async def test_stale_owner_writes_nothing() -> None:
    store, effects, reached, go_on = MemoryStore(), list[int](), asyncio.Event(), asyncio.Event()
    await store.open()

    @tool(effect="keyed")
    async def slow() -> str:
        """Act slowly."""
        reached.set()
        await go_on.wait()
        return "late"

    model = Scripted(calls("slow") + calls("act", n=1), says("never"))
    async with in_memory_atlas(model, [slow, count_calls(effects)], store=store) as atlas, asyncio.timeout(TIMEOUT):
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


class LateIntents(MemoryStore):
    """Applies the intents of the first process only when another one is about to claim the run."""

    def __init__(self) -> None:
        super().__init__()
        self.late: dict[str, Sequence[Write]] | None = {}

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        steps = [write for write in writes if isinstance(write, AddJournal)]
        if self.late is not None and any(step.kind == "intent" for step in steps):
            self.late[steps[0].key] = writes
            raise StoreBusy("slow")
        if self.late is not None and any(step.kind == "resumed" for step in steps):
            late, self.late = self.late, None
            for each in late.values():
                await super().commit(tenant, each)
        return await super().commit(tenant, writes)


async def test_steps_that_the_last_owner_writes_until_its_run_is_claimed_are_restored() -> None:
    store, effects = LateIntents(), list[int]()
    await store.open()
    tools = [count_calls(effects), count_calls(effects, effect="keyed", name="keyed")]
    model = Scripted(calls("keyed", n=1) + calls("act", n=2), says("Done."))
    atlas = in_memory_atlas(model, tools, store=store)
    await atlas.send("go", session="s").accepted()
    await wait_until(lambda: store.late is not None and len(store.late) == 2)
    await atlas.close()
    async with in_memory_atlas(model, tools, store=store) as atlas, asyncio.timeout(TIMEOUT):
        (stream,) = await atlas.recover()
        assert (await stream.reply()).text == "Done."
        results = [part for message in await atlas.sessions.history("s") for part in message.tool_results]
    assert [result.status for result in results] == ["ok", "unknown"]
    assert effects == [1]


async def test_turn_that_crashes_every_process_is_failed() -> None:
    store = MemoryStore()
    await store.open()
    for process in range(MAX_RESUMES_WITHOUT_PROGRESS + 1):
        began = asyncio.Event()
        atlas = in_memory_atlas(Scripted(calls("hang"), calls("hang")), [hanging(began)], store=store)
        if process == 0:
            atlas.send("go", session="s")
        else:
            await atlas.recover()
        await asyncio.wait_for(began.wait(), TIMEOUT)
        await atlas.close()
    async with in_memory_atlas(Scripted(says("Next.")), store=store) as atlas, asyncio.timeout(TIMEOUT):
        (stream,) = await atlas.recover()
        with pytest.raises(CrashLoop, match="crashed 5 times"):
            await stream.reply()
        assert (await atlas.ask("next", session="s")).text == "Next."
    assert [run.status for run in await store.runs("default", "s")] == ["failed", "done"]


async def test_crash_loop_of_one_turn_gives_up_none_of_its_neighbours(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(journal, "ISOLATION_SECONDS", 0.1)
    store, free = MemoryStore(), asyncio.Event()
    await store.open()
    sessions = ["poison", *[f"neighbour {n}" for n in range(5)]]
    for process in range(MAX_RESUMES_WITHOUT_PROGRESS + 1):
        crash = asyncio.Event()
        atlas = in_memory_atlas(answering_model(crash, free), store=store)
        for session in sessions:
            if process == 0:
                await atlas.send(session, session=session).accepted()
        await atlas.recover()
        await asyncio.wait_for(crash.wait(), TIMEOUT)
        await atlas.close()  # as a crash would: nothing more is written
    free.set()
    async with in_memory_atlas(answering_model(asyncio.Event(), free), store=store) as atlas, asyncio.timeout(TIMEOUT):
        streams = await atlas.recover()
        replies = await asyncio.gather(*[stream.reply() for stream in streams], return_exceptions=True)
    assert [type(each) for each in replies if isinstance(each, BaseException)] == [CrashLoop]
    statuses = {session: [run.status for run in await store.runs("default", session)] for session in sessions}
    assert statuses == {"poison": ["failed"], **{session: ["done"] for session in sessions[1:]}}
    assert any("turn quarantined" in record.message and record.levelname == "ERROR" for record in caplog.records)


def answering_model(crash: asyncio.Event, free: asyncio.Event) -> Callable[..., Awaitable[dict[str, Any]]]:
    """A model that sets `crash` when it is asked for poison, and answers others once `free` is set."""

    async def answer(request: Any) -> dict[str, Any]:
        if "poison" in str(request):
            crash.set()
            await asyncio.Event().wait()
        await free.wait()
        return {
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "Done."}, "finish_reason": "stop"}]
        }

    return answer


async def test_turn_that_waits_for_an_approval_is_not_blamed_for_crashes() -> None:
    store = MemoryStore()
    await store.open()

    @tool(confirm=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    for process in range(2 * MAX_RESUMES_WITHOUT_PROGRESS):
        asked = asyncio.Event()
        atlas = in_memory_atlas(Scripted(calls("pay")), [pay], store=store, approve=Approvals(wait=True))
        atlas.on("approval:asked", lambda _, asked=asked: asked.set())
        if process == 0:
            atlas.send("go", session="s")
        await atlas.recover()
        await asyncio.wait_for(asked.wait(), TIMEOUT)
        await atlas.close()
    async with in_memory_atlas(Scripted(says("Done.")), [pay], store=store, approve=Approvals(wait=True)) as atlas:
        (stream,) = await atlas.recover()
        (question,) = await atlas.pending()
        await atlas.answer(question.id, "once")
        assert (await stream.reply()).text == "Done."


async def test_quarantined_turn_can_be_cancelled() -> None:
    store, free = MemoryStore(), asyncio.Event()
    await store.open()
    for process in range(3):
        crash = asyncio.Event()
        atlas = in_memory_atlas(answering_model(crash, free), store=store)
        for session in ("poison", "neighbour"):
            if process == 0:
                await atlas.send(session, session=session).accepted()
        await atlas.recover()
        await asyncio.wait_for(crash.wait(), TIMEOUT)
        await atlas.close()
    async with in_memory_atlas(answering_model(asyncio.Event(), free), store=store) as atlas, asyncio.timeout(TIMEOUT):
        streams = {stream.session: stream for stream in await atlas.recover()}
        await wait_until(lambda: len(atlas.quarantined) == 2)
        for session in ("poison", "neighbour"):
            streams[session].cancel()
            with pytest.raises(Cancelled):
                await streams[session].reply()
        assert atlas.quarantined == ()
    assert [run.status for key in streams for run in await store.runs("default", key)] == ["cancelled"] * 2


def hanging(began: asyncio.Event) -> Tool:
    @tool(effect="pure")
    async def hang() -> None:
        """Never ends."""
        began.set()
        await asyncio.Event().wait()

    return hang


async def test_close_waits_for_short_turns_and_leaves_others_open() -> None:
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


async def interrupted_atlas(found: Any, effects: list[int]) -> tuple[str, list[int], list[str]]:
    """Interrupt a turn in its tool, resume it, and return the result, the effects and the queried keys."""
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
    async with in_memory_atlas(Scripted(says("Done.")), [again], store=store) as atlas, asyncio.timeout(TIMEOUT):
        (resumed,) = await atlas.recover()
        await resumed.reply()
        (result,) = [each for message in await atlas.sessions.history("s") for each in message.tool_results]
    assert all(key.startswith(stream.stream_id) for key in keys)
    return f"{result.status}: {result.result}", effects, keys


async def test_tool_with_outcome_query_is_asked_after_a_crash() -> None:
    assert (await interrupted_atlas(Happened("receipt 7"), []))[:2] == ("ok: receipt 7", [1])
    assert (await interrupted_atlas(NotHappened(), []))[:2] == ("ok: paid 1", [1, 1])
    for unknown_outcome in (None, "perhaps", Transient("bank is closed"), RuntimeError("bug")):
        words, effects, keys = await interrupted_atlas(unknown_outcome, [])
        assert words.startswith("unknown: ")
        assert effects == [1]
        assert len(keys) == 1


async def test_lost_outcome_is_queried_at_once() -> None:
    def make_tool(found: Any) -> Tool:
        async def lose() -> None:
            """Lose the connection."""
            raise ConnectionResetError("gone")

        def look(key: str) -> Any:
            return found

        return tool(reconcile=look)(lose)

    for found, status in ((Happened("it did"), "ok"), (NotHappened(), "error"), (None, "unknown")):
        async with in_memory_atlas(Scripted(calls("lose"), says("Done.")), [make_tool(found)]) as atlas:
            result = await atlas.run("go")
            assert [step.status for step in result.steps] == [status]


async def test_usage_is_summed_by_session_agent_and_model_once() -> None:
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
