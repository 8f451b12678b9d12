"""One session, one turn at a time: later messages are acknowledged and wait in the store, in order."""

import asyncio
from pathlib import Path

import pytest

from atlas_agents import (
    AtlasError,
    AtlasStream,
    Cancelled,
    ConfigError,
    Conflict,
    Conversation,
    ProviderError,
    SessionBusy,
    tool,
)
from atlas_agents.core.store import Store
from atlas_agents.storage.sqlite import MemoryStore, SqliteStore
from atlas_agents.testing import Scripted, calls, fails, in_memory_atlas, says
from atlas_agents.tools.tool import Tool
from checks import TIMEOUT


class Gate:
    """A tool that waits until it is released."""

    def __init__(self) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()

        @tool(effect="pure")
        async def wait() -> str:
            """Wait."""
            self.reached.set()
            await self.open.wait()
            return "went on"

        self.tool: Tool = wait


async def open_atlas() -> MemoryStore:
    store = MemoryStore()
    await store.open()
    return store


async def texts(store: Store, session: str = "s") -> list[str]:
    from atlas_agents import Message

    rows = await store.messages("default", session)
    return [message.text for row in rows if (message := Message.from_json(row.body)).role in ("user", "assistant")]


async def test_messages_to_a_busy_session_are_answered_in_order() -> None:
    gate, store = Gate(), await open_atlas()
    model = Scripted(calls("wait"), says("one."), says("two."), says("three."))
    async with in_memory_atlas(model, [gate.tool], store=store) as atlas, asyncio.timeout(TIMEOUT):
        first = atlas.send("1", session="s")
        await gate.reached.wait()
        later = [atlas.send(text, session="s") for text in ("2", "3")]
        assert [(await stream.accepted()).status for stream in (first, *later)] == ["started", "queued", "queued"]
        assert [run.status for run in await store.runs("default", "s")] == ["running", "queued", "queued"]
        gate.open.set()
        assert [(await stream.reply()).text for stream in later] == ["two.", "three."]
    assert await texts(store) == ["1", "", "one.", "2", "two.", "3", "three."]


async def test_queued_message_is_answered_after_a_restart(tmp_path: Path) -> None:
    gate, path = Gate(), tmp_path / "atlas.db"
    store = SqliteStore(path)
    await store.open()
    atlas = in_memory_atlas(Scripted(calls("wait")), [gate.tool], store=store)
    atlas.send("1", session="s")
    await gate.reached.wait()
    await atlas.send("2", session="s").accepted()
    await atlas.close()
    await store.close()
    gate.open.set()

    store = SqliteStore(path)
    await store.open()
    async with (
        in_memory_atlas(Scripted(says("one."), says("two.")), [gate.tool], store=store) as atlas,
        asyncio.timeout(TIMEOUT),
    ):
        streams = await atlas.recover()
        assert [(await stream.reply()).text for stream in streams] == ["one.", "two."]
    assert await texts(store) == ["1", "", "one.", "2", "two."]
    await store.close()


async def test_unfinished_turns_resume_before_a_new_message() -> None:
    gate, store = Gate(), await open_atlas()
    atlas = in_memory_atlas(Scripted(calls("wait")), [gate.tool], store=store)
    atlas.send("1", session="s")
    await gate.reached.wait()
    await atlas.send("2", session="s").accepted()
    await atlas.close()
    gate.open.set()
    model = Scripted(says("one."), says("two."), says("three."))
    async with in_memory_atlas(model, [gate.tool], store=store) as atlas, asyncio.timeout(TIMEOUT):
        assert (await atlas.ask("3", session="s")).text == "three."
    assert await texts(store) == ["1", "", "one.", "2", "two.", "3", "three."]


async def test_message_that_must_not_wait_is_rejected_without_a_trace() -> None:
    gate, store = Gate(), await open_atlas()
    async with (
        in_memory_atlas(Scripted(calls("wait"), says("one.")), [gate.tool], store=store) as atlas,
        asyncio.timeout(TIMEOUT),
    ):
        first = atlas.send("1", session="s")
        await gate.reached.wait()
        with pytest.raises(SessionBusy, match="is running"):
            await atlas.ask("2", session="s", when_busy="reject")
        refused = atlas.send("2", session="s", when_busy="reject")
        with pytest.raises(SessionBusy):
            await refused.accepted()
        gate.open.set()
        await first.reply()
        assert len(await store.runs("default", "s")) == 1
    assert await texts(store) == ["1", "", "one."]


async def test_busy_conversation_rejects_without_a_store() -> None:
    gate = Gate()
    async with in_memory_atlas(Scripted(calls("wait"), says("one.")), [gate.tool]) as atlas, asyncio.timeout(TIMEOUT):
        first = atlas.send("1")
        await gate.reached.wait()
        with pytest.raises(SessionBusy):
            await atlas.ask("2", when_busy="reject")
        assert (await atlas.send("2").accepted()).status == "queued"
        gate.open.set()
        await first.reply()


async def test_message_can_interrupt_earlier_turns() -> None:
    gate, store = Gate(), await open_atlas()
    async with (
        in_memory_atlas(Scripted(calls("wait"), says("three.")), [gate.tool], store=store) as atlas,
        asyncio.timeout(TIMEOUT),
    ):
        first = atlas.send("1", session="s")
        await gate.reached.wait()
        second = atlas.send("2", session="s")
        await second.accepted()
        assert (await atlas.ask("3", session="s", when_busy="interrupt")).text == "three."
        for stream in (first, second):
            with pytest.raises(Cancelled):
                await stream.reply()
    assert [run.status for run in await store.runs("default", "s")] == ["cancelled", "cancelled", "done"]


async def test_repeated_message_does_not_interrupt_again() -> None:
    gate, store = Gate(), await open_atlas()
    async with (
        in_memory_atlas(Scripted(calls("wait"), says("one.")), [gate.tool], store=store) as atlas,
        asyncio.timeout(TIMEOUT),
    ):
        atlas.send("1", session="s", when_busy="interrupt", idempotency_key="k")
        await gate.reached.wait()
        again = atlas.send("1", session="s", when_busy="interrupt", idempotency_key="k")
        assert (await again.accepted()).status == "in_flight"
        gate.open.set()
        assert (await again.reply()).text == "one."


async def test_message_cancelled_in_the_queue_is_never_sent() -> None:
    gate, store = Gate(), await open_atlas()
    async with (
        in_memory_atlas(Scripted(calls("wait"), says("one.")), [gate.tool], store=store) as atlas,
        asyncio.timeout(TIMEOUT),
    ):
        first = atlas.send("1", session="s")
        await gate.reached.wait()
        second = atlas.send("2", session="s")
        await second.accepted()
        second.cancel()
        with pytest.raises(Cancelled):
            await second.reply()
        gate.open.set()
        await first.reply()
    assert await texts(store) == ["1", "", "one."]
    assert [run.status for run in await store.runs("default", "s")] == ["done", "cancelled"]


async def events(stream: AtlasStream) -> list[str]:
    return [event.type async for event in stream]


async def test_repeated_key_returns_the_same_running_or_ended_turn() -> None:
    gate, store = Gate(), await open_atlas()
    async with (
        in_memory_atlas(Scripted(calls("wait"), says("one.")), [gate.tool], store=store) as atlas,
        asyncio.timeout(TIMEOUT),
    ):
        first = atlas.send("1", session="s", idempotency_key="k")
        await gate.reached.wait()
        second = atlas.send("1", session="s", idempotency_key="k")
        accepted = await second.accepted()
        assert (accepted.run_id, accepted.status) == (first.stream_id, "in_flight")
        gate.open.set()
        assert await second.reply() == await first.reply()
        assert await events(second) == await events(first)
        third = atlas.send("1", session="s", idempotency_key="k")
        assert await third.reply() == await first.reply()
        assert (await third.accepted()).status == "done"
        assert await atlas.ask("1", session="s", idempotency_key="k") == await first.reply()
    assert len(await store.runs("default", "s")) == 1


async def test_repeated_key_with_other_content_is_a_conflict() -> None:
    store = await open_atlas()
    async with in_memory_atlas(Scripted(says("one.")), store=store) as atlas:
        await atlas.ask("1", session="s", idempotency_key="k")
        with pytest.raises(Conflict, match="'k' was used before"):
            await atlas.ask("2", session="s", idempotency_key="k")
    assert await texts(store) == ["1", "one."]


async def test_repeated_key_returns_the_outcome_after_a_restart() -> None:
    store = await open_atlas()
    async with in_memory_atlas(Scripted(fails(ProviderError("no such model", "bad_request"))), store=store) as atlas:
        with pytest.raises(ProviderError):
            await atlas.ask("1", session="s", idempotency_key="k")
    async with in_memory_atlas(Scripted(says("never")), store=store) as atlas:
        with pytest.raises(AtlasError, match="no such model"):
            await atlas.ask("1", session="s", idempotency_key="k")


async def test_invalid_keys_and_policies_are_reported() -> None:
    async with in_memory_atlas(Scripted(says("one."))) as atlas:
        with pytest.raises(ConfigError, match="requires a store"):
            atlas.send("1", idempotency_key="k")
        with pytest.raises(ConfigError, match="unknown when_busy"):
            atlas.send("1", when_busy="later")  # pyrefly: ignore[bad-argument-type] - wrong on purpose
    async with in_memory_atlas(Scripted(says("one.")), store=await open_atlas()) as atlas:
        with pytest.raises(ConfigError, match="a session key"):
            atlas.send("1", session=Conversation(), idempotency_key="k")


async def test_sessions_do_not_wait_for_each_other() -> None:
    gate, store = Gate(), await open_atlas()
    async with in_memory_atlas(
        Scripted(calls("wait"), says("other."), says("one.")), [gate.tool], store=store
    ) as atlas:
        async with asyncio.timeout(TIMEOUT):
            first = atlas.send("1", session="s")
            await gate.reached.wait()
            assert (await atlas.ask("2", session="t")).text == "other."
            gate.open.set()
            await first.reply()


async def test_every_stored_message_is_emitted_once_after_it_is_stored() -> None:
    store = await open_atlas()

    @tool
    async def act() -> str:
        """Act."""
        return "did"

    seen: list[tuple[str, bool]] = []
    async with in_memory_atlas(Scripted(calls("act"), says("Done.")), [act], store=store) as atlas:
        stream = atlas.send("go", session="s")
        async for event in stream:
            if event.type == "message:kept":
                rows = await store.messages("default", "s")
                seen.append((event.message.role, event.message.id in [row.id for row in rows]))
    assert seen == [("user", True), ("assistant", True), ("tool", True), ("assistant", True)]


async def test_model_override_holds_for_a_resumed_turn() -> None:
    gate, store, other_user = Gate(), await open_atlas(), Scripted(calls("wait"), says("I was a guest."))
    atlas = in_memory_atlas(Scripted(says("Me.")), [gate.tool], store=store)
    atlas.registry.register("guest", lambda environment: other_user)
    assert (await atlas.ask("1", session="s")).text == "Me."
    atlas.send("2", session="s", model="guest/one")
    await gate.reached.wait()
    await atlas.close()
    gate.open.set()
    async with (
        in_memory_atlas(Scripted(says("Me again.")), [gate.tool], store=store) as atlas,
        asyncio.timeout(TIMEOUT),
    ):
        atlas.registry.register("guest", lambda environment: other_user)
        (stream,) = await atlas.recover()
        assert (await stream.reply()).text == "I was a guest."
        assert (await atlas.ask("3", session="s")).text == "Me again."
        with pytest.raises(ConfigError, match="unknown provider 'unknown'"):
            await atlas.ask("4", session="s", model="unknown/x")
