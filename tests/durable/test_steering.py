"""Steering: a message sent while a turn runs enters that turn after its current tool calls."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest

from atlas_agents import Agent, Approvals, Atlas, AtlasStream, Cancelled, ToolContext, tool, user
from atlas_agents.core.errors import Conflict, UnreadableRow
from atlas_agents.core.events import ApprovalAsked, MessageSent, MessageSteered, StreamChunk
from atlas_agents.core.store import MergeRun, StopRun, Store, Write
from atlas_agents.storage.sql.tables import unpack_value
from atlas_agents.storage.sqlite import MemoryStore, SqliteStore
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says
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


async def texts(store: Store, session: str = "s") -> list[str]:
    return [row.message.text or row.message.role for row in await store.messages("default", session)]


async def runs(store: Store, session: str = "s") -> list[str]:
    return [row.status for row in await store.runs("default", session)]


def shown(model: Scripted, request: int) -> list[str]:
    """Return the messages of a request to the model, as texts or roles."""
    return [message.text or message.role for message in model.requests[request].messages]


@pytest.mark.parametrize("stored", [True, False])
async def test_steering_message_enters_the_running_turn_after_its_tool_calls(stored: bool) -> None:
    gate, store = Gate(), MemoryStore()
    model = Scripted(calls("wait"), says("Both."))
    async with in_memory_atlas(model, [gate.tool], store=store if stored else None) as atlas, asyncio.timeout(TIMEOUT):
        first = atlas.send("1", session="s")
        await gate.reached.wait()
        steering = atlas.send("Also 2", session="s", when_busy="steer")
        assert (await steering.accepted()).status == "queued"
        gate.open.set()
        assert (await first.reply()).text == (await steering.reply()).text == "Both."
        assert shown(model, 1) == ["1", "assistant", "tool", "Also 2"]
        assert len(model.requests) == 2
        own = [event async for event in steering]
        assert own[0] == MessageSteered(steering.stream_id, first.stream_id)
        assert [event.text for event in own if isinstance(event, StreamChunk)] == ["Both."]
        sent = [event.message.text async for event in first if isinstance(event, MessageSent)]
        assert sent == ["1", "Also 2"]
    if stored:
        assert await texts(store) == ["1", "assistant", "tool", "Also 2", "Both."]
        assert await runs(store) == ["done", "done"]


async def test_several_steering_messages_enter_in_order_before_queued_ones() -> None:
    gate, store = Gate(), MemoryStore()
    model = Scripted(calls("wait"), says("One."), says("Two."))
    async with in_memory_atlas(model, [gate.tool], store=store) as atlas, asyncio.timeout(TIMEOUT):
        asked = asyncio.create_task(atlas.ask("1", session="s"))
        await gate.reached.wait()
        queued = atlas.send("later", session="s")
        await queued.accepted()
        steering = [atlas.send(text, session="s", when_busy="steer") for text in ("a", "b")]
        for stream in steering:
            await stream.accepted()
        gate.open.set()
        assert [(await stream.reply()).text for stream in steering] == ["One.", "One."]
        assert ((await asked).text, (await queued.reply()).text) == ("One.", "Two.")
    assert await texts(store) == ["1", "assistant", "tool", "a", "b", "One.", "later", "Two."]


async def test_steering_message_is_a_turn_of_its_own_if_the_running_turn_ends_first() -> None:
    gate, store = Gate(), MemoryStore()

    async def answer(_: object) -> str:
        gate.reached.set()
        await gate.open.wait()
        return "One."

    async with Atlas(agents=[Agent("a", model=answer)], store=store) as atlas, asyncio.timeout(TIMEOUT):
        first = atlas.send("1", session="s")
        await gate.reached.wait()
        steering = atlas.send("2", session="s", when_busy="steer")
        await steering.accepted()
        gate.open.set()
        assert (await steering.reply()).text == "One."
        await first.reply()
        assert (await atlas.ask("3", session="s", when_busy="steer")).text == "One."
    assert await texts(store) == ["1", "One.", "2", "One.", "3", "One."]


@pytest.mark.parametrize("cancelled", ["message", "turn"])
async def test_cancelling_the_message_or_the_turn_leaves_the_other(cancelled: str) -> None:
    gate, store = Gate(), MemoryStore()
    model = Scripted(calls("wait"), says("Answer."))
    async with in_memory_atlas(model, [gate.tool], store=store) as atlas, asyncio.timeout(TIMEOUT):
        first = atlas.send("1", session="s")
        await gate.reached.wait()
        steering = atlas.send("2", session="s", when_busy="steer")
        await steering.accepted()
        stopped, kept = (steering, first) if cancelled == "message" else (first, steering)
        stopped.cancel()
        with pytest.raises(Cancelled):
            await stopped.reply()
        gate.open.set()
        assert (await kept.reply()).text == "Answer."
    found = await texts(store)
    assert found == (
        ["1", "assistant", "tool", "Answer."] if cancelled == "message" else ["1", "assistant", "tool", "2", "Answer."]
    )
    assert sorted(await runs(store)) == ["cancelled", "done"]


async def test_cancelling_a_message_that_has_entered_only_ends_its_stream() -> None:
    gate, store = Gate(), MemoryStore()
    model = Scripted(calls("wait"), calls("wait"), says("Both."))
    async with in_memory_atlas(model, [gate.tool], store=store) as atlas, asyncio.timeout(TIMEOUT):
        first = atlas.send("1", session="s")
        await gate.reached.wait()
        steering = atlas.send("2", session="s", when_busy="steer", idempotency_key="k")
        await steering.accepted()
        gate.open.set()
        async for event in steering:
            if isinstance(event, MessageSteered):
                gate.open.clear()
            elif event.type == "tool:called":
                steering.cancel()
        with pytest.raises(Cancelled):
            await steering.reply()
        again = atlas.send("2", session="s", when_busy="steer", idempotency_key="k")
        assert (await again.accepted()).status == "in_flight"
        gate.open.set()
        assert (await again.reply()).text == (await first.reply()).text == "Both."
    assert await runs(store) == ["done", "done"]


@pytest.mark.parametrize("options", [{"user": "ben"}, {"agent_id": "other"}, {"output": int}])
async def test_message_of_another_user_agent_or_output_waits_for_its_own_turn(options: dict[str, object]) -> None:
    gate, store = Gate(), MemoryStore()
    model = Scripted(calls("wait"), says("1"), says("2"))
    agents = [Agent(id, model=model, tools=[gate.tool]) for id in ("a", "other")]
    async with Atlas(agents=agents, store=store) as atlas, asyncio.timeout(TIMEOUT):
        first = atlas.send("one", session="s", user="ana")
        await gate.reached.wait()
        given: dict[str, Any] = {"user": "ana", **options}
        steering = atlas.send("two", session="s", when_busy="steer", **given)
        await steering.accepted()
        gate.open.set()
        assert [(await stream.reply()).text for stream in (first, steering)] == ["1", "2"]
    assert await texts(store) == ["one", "assistant", "tool", "1", "two", "2"]


async def test_repeated_idempotency_key_returns_the_answer_of_the_turn_it_entered() -> None:
    gate, store = Gate(), MemoryStore()
    model = Scripted(calls("wait"), says("Both."))
    async with in_memory_atlas(model, [gate.tool], store=store) as atlas, asyncio.timeout(TIMEOUT):
        first = atlas.send("1", session="s")
        await gate.reached.wait()
        steering = atlas.send("2", session="s", when_busy="steer", idempotency_key="k")
        accepted = await steering.accepted()
        again = atlas.send("2", session="s", when_busy="steer", idempotency_key="k")
        assert (await again.accepted()).run_id == accepted.run_id
        gate.open.set()
        assert [(await stream.reply()).text for stream in (first, steering, again)] == ["Both."] * 3
        assert (await atlas.ask("2", session="s", when_busy="steer", idempotency_key="k")).text == "Both."
        later = atlas.send("2", session="s", when_busy="queue", idempotency_key="k")
        assert (await later.accepted(), (await later.reply()).text) == (
            type(accepted)(accepted.run_id, "done"),
            "Both.",
        )
    assert len(model.requests) == 2


async def stop(atlas: Atlas, store: SqliteStore) -> None:
    await atlas.close()
    await store.close()


async def reopen(path: Path) -> SqliteStore:
    store = SqliteStore(path)
    await store.open()
    return store


@pytest.mark.parametrize("entered", [True, False], ids=["after it entered", "before it entered"])
async def test_restart_keeps_the_message_at_its_place(tmp_path: Path, entered: bool) -> None:
    gate, path = Gate(), tmp_path / "atlas.db"
    store = await reopen(path)
    atlas = in_memory_atlas(Scripted(calls("wait"), calls("wait")), [gate.tool], store=store)
    first = atlas.send("1", session="s")
    await gate.reached.wait()
    steering = atlas.send("2", session="s", when_busy="steer", idempotency_key="k")
    await steering.accepted()
    if entered:
        gate.open.set()
        async for event in steering:
            if isinstance(event, MessageSteered):
                gate.open.clear()
            elif event.type == "tool:called":
                break
    await stop(atlas, store)
    gate.open.set()

    store = await reopen(path)
    model = Scripted(says("Both."))
    async with in_memory_atlas(model, [gate.tool], store=store) as atlas, asyncio.timeout(TIMEOUT):
        streams = await atlas.recover()
        assert [(await stream.reply()).text for stream in streams] == ["Both."] * (1 if entered else 2)
        steps = [step.kind for step in await store.journal("default", first.stream_id)]
        assert steps.count("steer") == 1
        assert (await atlas.ask("2", session="s", when_busy="steer", idempotency_key="k")).text == "Both."
    expected = ["1", "assistant", "tool", "2", *(["assistant", "tool"] if entered else [])]
    assert shown(model, 0) == expected
    assert await texts(store) == [*expected, "Both."]
    assert await runs(store) == ["done", "done"]
    await store.close()


async def test_unreadable_steering_message_fails_and_the_running_turn_ends() -> None:
    gate, store = Gate(), MemoryStore()
    atlas = in_memory_atlas(Scripted(calls("wait")), [gate.tool], store=store)
    atlas.send("1", session="s")
    await gate.reached.wait()
    steering = await atlas.send("2", session="s", when_busy="steer").accepted()
    await atlas.close()
    connection = store._connect()
    connection.create_function("unpack", 1, unpack_value)
    garble = "UPDATE runs SET request = CAST(replace(unpack(request), '\"user\"', '7') AS BLOB) WHERE id = ?"
    connection.execute(garble, (steering.run_id,))
    gate.open.set()
    async with in_memory_atlas(Scripted(says("One.")), [gate.tool], store=store) as atlas, asyncio.timeout(TIMEOUT):
        first, second = await atlas.recover()
        assert (await first.reply()).text == "One."
        with pytest.raises(UnreadableRow):
            await second.reply()
    assert await texts(store) == ["1", "assistant", "tool", "One."]
    assert await runs(store) == ["done", "failed"]


async def until_asked(stream: AtlasStream) -> AsyncGenerator[ApprovalAsked, None]:
    async for event in stream:
        if isinstance(event, ApprovalAsked):
            yield event
            return


async def test_turn_that_waits_for_approval_takes_the_message_after_the_answer() -> None:
    @tool(confirm=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    model, store = Scripted(calls("pay"), says("Paid both.")), MemoryStore()
    async with (
        in_memory_atlas(model, [pay], store=store, approve=Approvals(wait=True)) as atlas,
        asyncio.timeout(TIMEOUT),
    ):
        first = atlas.send("Pay", session="s")
        (question,) = [event.question async for event in until_asked(first)]
        steering = atlas.send("And the other", session="s", when_busy="steer")
        await steering.accepted()
        assert await runs(store) == ["waiting", "queued"]
        await atlas.answer(question.id, "once")
        assert (await steering.reply()).text == (await first.reply()).text == "Paid both."
    assert shown(model, 1) == ["Pay", "assistant", "tool", "And the other"]


async def test_untrusted_steering_message_taints_the_turn_that_it_enters() -> None:
    gate, asked = Gate(), list[tuple[str, ...]]()

    @tool(effect="pure")
    async def check(context: ToolContext) -> str:
        """Check."""
        asked.append(context.untrusted)
        return "checked"

    model = Scripted(calls("wait"), calls("check"), says("Done."))
    async with in_memory_atlas(model, [gate.tool, check], store=MemoryStore()) as atlas, asyncio.timeout(TIMEOUT):
        first = atlas.send("1", session="s")
        await gate.reached.wait()
        await atlas.send(user("2", untrusted=["mail: eve"]), session="s", when_busy="steer").accepted()
        gate.open.set()
        await first.reply()
    assert asked == [("mail: eve",)]


async def test_message_that_is_cancelled_while_it_enters_does_not_keep_others_out() -> None:
    gate, store = Gate(), MemoryStore()
    model = Scripted(calls("wait"), says("Done."))
    async with in_memory_atlas(model, [gate.tool], store=store) as atlas, asyncio.timeout(TIMEOUT):
        first = atlas.send("1", session="s")
        await gate.reached.wait()
        cancelled, kept = [atlas.send(text, session="s", when_busy="steer") for text in ("a", "b")]
        await kept.accepted()
        await store.commit("default", [StopRun((await cancelled.accepted()).run_id)])  # by another process
        gate.open.set()
        assert (await kept.reply()).text == (await first.reply()).text == "Done."
        with pytest.raises(Conflict):
            await cancelled.reply()
    assert await texts(store) == ["1", "assistant", "tool", "b", "Done."]
    assert await runs(store) == ["done", "cancelled", "done"]


class SlowStore(MemoryStore):
    """A store whose commits of steering messages wait until they are released, and then succeed."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.release = asyncio.Event(), asyncio.Event()

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        if any(isinstance(write, MergeRun) for write in writes):
            self.reached.set()
            await self.release.wait()
        return await super().commit(tenant, writes)


async def test_turn_that_is_cancelled_while_a_message_enters_keeps_it() -> None:
    gate, store = Gate(), SlowStore()
    model = Scripted(calls("wait"), says("Never completed."), says("Next."))
    async with in_memory_atlas(model, [gate.tool], store=store) as atlas, asyncio.timeout(TIMEOUT):
        first = atlas.send("1", session="s")
        await gate.reached.wait()
        steering = atlas.send("2", session="s", when_busy="steer")
        await steering.accepted()
        gate.open.set()
        await store.reached.wait()
        first.cancel()
        await asyncio.sleep(0)
        store.release.set()
        for stream in (first, steering):
            with pytest.raises(Cancelled):
                await stream.reply()
        assert (await atlas.ask("3", session="s")).text == "Next."
    assert shown(model, 2) == ["1", "assistant", "tool", "2", "3"]
    assert await texts(store) == ["1", "assistant", "tool", "2", "3", "Next."]
    assert await runs(store) == ["cancelled", "done", "done"]
