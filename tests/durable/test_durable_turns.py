"""Durable turns: sessions, runs, counters and audit rows survive a restart."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypedDict

import pytest

from atlas_agents import (
    Agent,
    Atlas,
    Cancelled,
    Chunk,
    Context,
    Interceptor,
    Limits,
    Message,
    PromptFailed,
    ProviderError,
    Request,
    RetryPolicy,
    Rule,
    StoreError,
    tool,
    verify,
)
from atlas_agents.core.events import StreamEnd
from atlas_agents.core.store import AcceptRun, PutSession, RunRow, SetRun, Write
from atlas_agents.storage.sqlite import MemoryStore, SqliteStore
from atlas_agents.testing import Scripted, calls, fails, in_memory_atlas, says
from atlas_agents.tools.audit import AuditRecord
from checks import TIMEOUT, endless_tool, wait_until


@asynccontextmanager
async def open_atlas(path: Path) -> AsyncGenerator[SqliteStore]:
    store = SqliteStore(path / "atlas.db")
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@tool
async def act(n: int) -> str:
    """Act."""
    return f"did {n}"


class SlowToCancel(MemoryStore):
    """Records that a run was cancelled only when `allowed` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.cancelling, self.allowed = asyncio.Event(), asyncio.Event()

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        if any(isinstance(write, SetRun) and write.status == "cancelled" for write in writes):
            self.cancelling.set()
            await self.allowed.wait()
        return await super().commit(tenant, writes)


async def test_turn_starts_although_the_one_before_it_was_cancelled_a_moment_ago() -> None:
    store, started, released = SlowToCancel(), asyncio.Event(), asyncio.Event()

    class Slow(Scripted):
        async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
            started.set()
            await released.wait()
            async for chunk in super().stream(request):
                yield chunk

    async with asyncio.timeout(TIMEOUT), in_memory_atlas(Slow(says("One."), says("Three.")), store=store) as atlas:
        first = atlas.send("1", session="s")
        await started.wait()
        second, third = [atlas.send(text, session="s") for text in ("2", "3")]
        assert [(await each.accepted()).status for each in (second, third)] == ["queued", "queued"]
        second.cancel()
        await store.cancelling.wait()
        released.set()
        assert (await first.reply()).text == "One."
        asyncio.get_running_loop().call_later(0.03, store.allowed.set)
        assert (await third.reply()).text == "Three."
        with pytest.raises(Cancelled):
            await second.reply()
    assert [run.status for run in await store.runs("default", "s")] == ["done", "cancelled", "done"]


async def test_session_continues_in_another_process(tmp_path: Path) -> None:
    async with (
        open_atlas(tmp_path) as store,
        in_memory_atlas(Scripted(calls("act", n=1), says("Done.")), [act], store=store) as atlas,
    ):
        await atlas.ask("go", session="s")
        before = atlas.conversation("s").messages
    model = Scripted(says("I remember."))
    async with open_atlas(tmp_path) as store, in_memory_atlas(model, [act], store=store) as atlas:
        await atlas.ask("and?", session="s")
    assert list(model.requests[0].messages[:4]) == before


async def test_turn_with_one_call_takes_four_transactions(tmp_path: Path) -> None:
    async with (
        open_atlas(tmp_path) as store,
        in_memory_atlas(Scripted(calls("act", n=1), says("Done.")), [act], store=store) as atlas,
    ):
        before = store.transactions
        await atlas.ask("go")
        assert store.transactions - before == 4


async def test_store_records_how_a_run_ended() -> None:
    store, (forever, running) = MemoryStore(), endless_tool()
    await store.open()
    model = Scripted(says("Fine."), fails(ProviderError("no", "bad_request")), calls("forever"), says("On."))
    async with in_memory_atlas(model, [forever], store=store) as atlas, asyncio.timeout(TIMEOUT):
        await atlas.ask("one")
        with pytest.raises(ProviderError):
            await atlas.ask("two")
        stream = atlas.send("three")
        await running.wait()
        stream.cancel()
        with pytest.raises(Cancelled):
            await stream.reply()
        await atlas.ask("four")
    runs = await store.runs("default", "default")
    assert [run.status for run in runs] == ["done", "failed", "cancelled", "done"]
    assert runs[1].error == "no"
    assert await store.open_runs() == []


async def test_audit_rows_and_daily_count_survive_a_restart(tmp_path: Path) -> None:
    statuses: list[str] = []
    rows: Sequence[AuditRecord] = ()
    for _ in range(2):
        model = Scripted(calls("act", n=1) + calls("act", n=2), says("Done."))
        async with (
            open_atlas(tmp_path) as store,
            in_memory_atlas(model, [act], store=store, limits=Limits(per_day=3)) as atlas,
        ):
            await atlas.ask("go")
            statuses += [result.status for result in model.requests[-1].messages[-1].tool_results]
            rows = await atlas.audit.records("default")
    assert statuses == ["ok", "ok", "ok", "error"]
    assert [row.seq for row in rows] == [1, 2, 3, 4]
    assert verify(rows) is None


async def test_run_of_a_removed_agent_is_failed() -> None:
    store = MemoryStore()
    await store.open()
    waits = asyncio.Event()

    async def hang(_: object) -> dict[str, object]:
        await waits.wait()
        return {}

    old = Atlas([Agent("old", model=hang)], store=store)
    old.send("go")
    async with asyncio.timeout(TIMEOUT):
        await wait_until(store.open_runs)
        assert await in_memory_atlas(Scripted(), store=store).recover() == []
    (run,) = await store.runs("default", "default")
    assert (run.status, run.error) == ("failed", "agent 'old' no longer exists")
    await old.close()


async def test_error_of_a_prompt_is_raised_again_after_a_restart(tmp_path: Path) -> None:
    def broken(context: Context) -> bool:
        raise LookupError("no calendar")

    for _ in range(2):
        agent = Agent("a", model=Scripted(), rules=[Rule("x", when=broken)])
        async with open_atlas(tmp_path) as store, Atlas([agent], store=store) as atlas:
            with pytest.raises(PromptFailed, match="the condition of rule 'x' failed: LookupError: no calendar"):
                await atlas.ask("go", session="s", idempotency_key="k")
            assert [run.status for run in await store.runs("default", "s")] == ["failed"]


async def test_conversation_objects_and_run_are_not_stored() -> None:
    store = MemoryStore()
    await store.open()
    async with in_memory_atlas(Scripted(says("one")), store=store) as atlas:
        await atlas.run("go")
    assert await store.sessions("default") == []


async def test_repeated_message_can_cancel_its_turn() -> None:
    store, (forever, running) = MemoryStore(), endless_tool()
    await store.open()
    async with in_memory_atlas(Scripted(calls("forever")), [forever], store=store) as atlas, asyncio.timeout(TIMEOUT):
        first = atlas.send("go", session="s", idempotency_key="k")
        await running.wait()
        again = atlas.send("go", session="s", idempotency_key="k")
        assert (await again.accepted()).status == "in_flight"
        again.cancel()
        for stream in (first, again):
            with pytest.raises(Cancelled):
                await stream.reply()
    assert [run.status for run in await store.runs("default", "s")] == ["cancelled"]


class SlowStore(MemoryStore):
    """A store whose commits wait until they are released."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.through = asyncio.Event(), asyncio.Event()

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        self.reached.set()
        written = asyncio.ensure_future(
            self._late(tenant, writes)
        )  # the commit continues even if the caller is cancelled
        return await asyncio.shield(written)

    async def _late(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        await self.through.wait()
        return await super().commit(tenant, writes)


async def test_turn_cancelled_during_acceptance_ends_and_the_next_one_starts() -> None:
    store = SlowStore()
    await store.open()
    async with (
        in_memory_atlas(Scripted(says("Never received."), says("Fine.")), store=store) as atlas,
        asyncio.timeout(TIMEOUT),
    ):
        stream = atlas.send("one", session="s")
        await store.reached.wait()
        stream.cancel()
        await asyncio.sleep(0)
        store.through.set()
        with pytest.raises(Cancelled):
            await stream.reply()
        assert (await atlas.ask("two", session="s")).text == "Fine."
    assert [run.status for run in await store.runs("default", "s")] == ["cancelled", "done"]


async def test_turn_that_ends_before_it_is_accepted_is_reported_once() -> None:
    """While its session is loaded, a turn may be cancelled, or the store may fail."""

    class BrokenStore(MemoryStore):
        async def runs(self, *_: Any, **__: Any) -> list[RunRow]:
            raise StoreError("the disk is gone")

    async def ends(store: MemoryStore, act: Callable[[Atlas], Awaitable[object]]) -> list[tuple[str, bool, str | None]]:
        published: list[StreamEnd] = []
        async with in_memory_atlas(Scripted(says("Hi.")), store=store) as atlas, asyncio.timeout(TIMEOUT):
            atlas.on("stream:end", published.append)
            await act(atlas)
            assert await store.messages("default", "s") == []
        return [(end.type, end.cancelled, end.error) for end in published]

    async def cancel_stream(atlas: Atlas) -> None:
        stream = atlas.send("Hello", session="s")
        stream.cancel()
        assert [event.type async for event in stream] == ["stream:end"]
        with pytest.raises(Cancelled):
            await stream.reply()

    async def cancel_ask(atlas: Atlas) -> None:
        asking = asyncio.create_task(atlas.ask("Hello", session="s"))
        asyncio.get_running_loop().call_soon(asking.cancel)
        with pytest.raises(asyncio.CancelledError):
            await asking

    async def fail(atlas: Atlas) -> None:
        stream = atlas.send("Hello", session="s")
        assert [event.type async for event in stream] == ["stream:end", "error"]
        with pytest.raises(StoreError, match="the disk is gone"):
            await stream.reply()

    assert await ends(MemoryStore(), cancel_stream) == [("stream:end", True, None)]
    assert await ends(MemoryStore(), cancel_ask) == [("stream:end", True, None)]
    assert await ends(BrokenStore(), fail) == [("stream:end", False, "the disk is gone")]


async def test_turn_cancelled_right_after_recovery_leaves_no_call_without_result(tmp_path: Path) -> None:
    running = asyncio.Event()

    @tool
    async def forever() -> None:
        """Never ends."""
        running.set()
        await asyncio.Event().wait()

    model = Scripted(calls("forever"))
    async with (
        open_atlas(tmp_path) as store,
        in_memory_atlas(model, [forever], store=store) as atlas,
        asyncio.timeout(TIMEOUT),
    ):
        atlas.send("go", session="s")
        await running.wait()
    async with (
        open_atlas(tmp_path) as store,
        in_memory_atlas(model, [forever], store=store) as atlas,
        asyncio.timeout(TIMEOUT),
    ):
        (stream,) = await atlas.recover()
        stream.cancel()
        with pytest.raises(Cancelled):
            await stream.reply()
        assert [message.role for message in await atlas.sessions.history("s")] == ["user", "assistant", "tool"]
        (run,) = await store.runs("default", "s")
        assert run.status == "cancelled"
        assert (await store.journal("default", run.id))[-1].kind == "ended"


async def test_turn_cancelled_while_a_reply_is_stored_leaves_no_call_without_result() -> None:
    store = SlowStore()
    await store.open()
    async with in_memory_atlas(Scripted(calls("act", n=1)), [act], store=store) as atlas, asyncio.timeout(TIMEOUT):
        store.through.set()
        stream = atlas.send("go", session="s")
        await stream.accepted()
        store.through.clear()
        store.reached.clear()
        await store.reached.wait()
        stream.cancel()
        await asyncio.sleep(0)
        store.through.set()
        with pytest.raises(Cancelled):
            await stream.reply()
        assert [message.role for message in await atlas.sessions.history("s")] == ["user", "assistant", "tool"]


async def test_turn_cancelled_while_its_end_is_stored_is_reported_as_it_is_stored() -> None:
    storing, cancelled = asyncio.Event(), asyncio.Event()

    class SlowEnd(MemoryStore):
        async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
            if any(isinstance(write, SetRun) and write.status == "done" for write in writes):
                storing.set()
                await cancelled.wait()
            return await super().commit(tenant, writes)

    store, ends = SlowEnd(), list[bool]()
    await store.open()
    async with in_memory_atlas(Scripted(says("Done."), says("Next.")), store=store) as atlas, asyncio.timeout(TIMEOUT):
        stream = atlas.send("go", session="s")
        stream.follow(lambda event: ends.append(event.cancelled) if event.type == "stream:end" else None)
        await storing.wait()
        stream.cancel()
        asyncio.get_running_loop().call_soon(cancelled.set)
        assert (await stream.reply()).text == "Done."
        (row,) = await store.runs("default", "s")
        assert (row.status, ends) == ("done", [False])
        messages = [message.message.text for message in await store.messages("default", "s")]
        assert messages == ["go", "Done."]
        assert (await atlas.ask("on", session="s")).text == "Next."


async def test_reply_that_does_not_end_the_turn_is_stored_before_the_model_is_asked_again() -> None:
    class Answer(TypedDict):
        n: int

    stored: list[int] = []

    class Watching(Scripted):
        async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
            stored.append(len([row for row in await store.messages("default", "s") if row.message.role == "assistant"]))
            async for chunk in super().stream(request):
                yield chunk

    store = MemoryStore()
    await store.open()
    async with in_memory_atlas(Watching(says("{}"), says('{"n": 1}')), store=store) as atlas:
        await atlas.ask("go", session="s", output=Answer)
    assert stored == [0, 1]


async def test_subscriber_gets_no_result_that_is_not_stored_at_shutdown() -> None:
    store, (forever, running) = MemoryStore(), endless_tool()
    await store.open()
    async with in_memory_atlas(Scripted(calls("forever")), [forever], store=store) as atlas, asyncio.timeout(TIMEOUT):
        stream = atlas.send("go", session="s")
        await running.wait()
    assert "tool:result" not in [event.type async for event in stream]


async def test_turn_with_structured_output_resumes_in_another_process(tmp_path: Path) -> None:
    shape = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    async with open_atlas(tmp_path) as store, asyncio.timeout(TIMEOUT):
        atlas = in_memory_atlas(Scripted(says("seven"), says("It ") + says("goes on.")), store=store)
        stream = atlas.send("go", session="s", output=shape)
        async for event in stream:
            if event.type == "stream:chunk" and event.text == "It ":
                break
        await atlas.close()
    model = Scripted(says('{"n": 7}'))
    async with open_atlas(tmp_path) as store, in_memory_atlas(model, store=store) as atlas, asyncio.timeout(TIMEOUT):
        (stream,) = await atlas.recover()
        await stream.reply()
        assert stream.output == {"n": 7}


async def test_resumed_turn_never_reuses_a_call_id(tmp_path: Path) -> None:
    cut_off = calls("act", n=1) + fails(ProviderError("gone", "network"))
    model = Scripted(cut_off, calls("act", n=1), says("It ") + says("goes on."))
    async with open_atlas(tmp_path) as store, asyncio.timeout(TIMEOUT):
        atlas = in_memory_atlas(model, [act], store=store, agent={"retry": RetryPolicy(backoff=0)})
        async for event in atlas.send("go", session="s"):
            if event.type == "stream:chunk":
                break
        await atlas.close()
    model = Scripted(calls("act", n=2), says("Done."))
    async with (
        open_atlas(tmp_path) as store,
        in_memory_atlas(model, [act], store=store) as atlas,
        asyncio.timeout(TIMEOUT),
    ):
        (stream,) = await atlas.recover()
        await stream.reply()
        history = await atlas.sessions.history("s")
    assert [result.result for message in history for result in message.tool_results] == ["did 1", "did 2"]


class ClosingStore(MemoryStore):
    """Starts `close` while the first reply of the model is being committed."""

    atlas: Atlas | None = None
    closing: "asyncio.Task[None] | None" = None

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        if self.atlas and self.closing is None and any(getattr(write, "kind", "") == "reply" for write in writes):
            await self.close_atlas()
        return await super().commit(tenant, writes)

    async def close_atlas(self) -> None:
        assert self.atlas is not None
        self.closing = asyncio.create_task(self.atlas.close())
        await asyncio.sleep(0)  # every turn is detached and cancelled now


async def test_turn_stopped_while_its_end_is_stored_is_reported_as_ended() -> None:
    store = ClosingStore()
    async with asyncio.timeout(TIMEOUT):
        atlas = store.atlas = in_memory_atlas(Scripted(says("Done.")), store=store)
        stream = atlas.send("go", session="s")
        events = [event.type async for event in stream]
        assert (await stream.reply()).text == "Done." and "stream:end" in events
        assert store.closing is not None
        await store.closing
        async with in_memory_atlas(Scripted(), store=store) as resumed:
            assert await resumed.recover() == []


async def test_turn_stopped_after_its_last_reply_is_not_reported_as_ended() -> None:
    store = ClosingStore()

    async def stop(reply: Message) -> None:
        await store.close_atlas()

    async with asyncio.timeout(TIMEOUT):
        model = Scripted(says("Done."))
        atlas = in_memory_atlas(model, store=store, interceptors=[Interceptor(incoming=stop)])
        store.atlas = atlas
        stream = atlas.send("go", session="s")
        events = [event.type async for event in stream]
        with pytest.raises((StoreError, Cancelled)):
            await stream.reply()
        assert "stream:chunk" in events and "stream:end" not in events
        assert store.closing is not None
        await store.closing
        async with in_memory_atlas(Scripted(says("Done.")), store=store) as resumed:
            (again,) = await resumed.recover()
            assert (await again.reply()).text == "Done."


class SlowListing(MemoryStore):
    """Lists open runs as they were before the last turn ended."""

    listed: list[RunRow] | None = None

    async def open_runs(self) -> list[RunRow]:
        return await super().open_runs() if self.listed is None else self.listed


async def test_recovery_does_not_resume_a_run_that_ended_after_it_was_listed() -> None:
    store, model = SlowListing(), Scripted(says("Done."))
    async with in_memory_atlas(model, store=store) as atlas:
        stream = atlas.send("go")
        await stream.accepted()
        store.listed = await store.open_runs()
        assert [row.id for row in store.listed] == [stream.stream_id]
        await stream.reply()
        await wait_until(lambda: atlas.stream(stream.stream_id) is None)
        assert await atlas.recover() == []
    assert len(model.requests) == 1


class FailingRead(MemoryStore):
    """Cannot read single runs while `failing`."""

    failing = False

    async def run(self, tenant: str, run_id: str) -> RunRow | None:
        if self.failing:
            raise StoreError("the database restarts")
        return await super().run(tenant, run_id)


async def test_recovery_returns_the_streams_of_all_runs_although_a_read_fails() -> None:
    store = FailingRead()
    await store.open()
    async with in_memory_atlas(Scripted(says("One."), says("Two.")), store=store) as atlas:
        (agent,) = [each.id for each in atlas.agents]
        for run, session in (("r1", "s"), ("r2", "t")):
            await store.commit("default", [PutSession(session), AcceptRun(run, session, agent, request=b"{}")])
        store.failing = True
        streams = await atlas.recover()
        store.failing = False
        assert {stream.stream_id for stream in streams} == {"r1", "r2"}
        await asyncio.gather(*[stream.reply() for stream in streams], return_exceptions=True)
