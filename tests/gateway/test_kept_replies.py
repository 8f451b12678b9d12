"""A reply that was stored before a crash stays visible: its words are not withdrawn, or they follow the reset."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from agui_client import kinds, open_page, text_of
from gateway_client import Client, connect_client, serve_gateway

from atlas_agents import Atlas, Tool
from atlas_agents.core.store import AddEvents, AddJournal, SetRun, Write
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Reply, Scripted, calls, in_memory_atlas, says
from checks import TIMEOUT

FIRST, WORDS = "Let me see. ", "It is a quarter past nine."


class CrashingStore(MemoryStore):
    """Never finishes a certain commit, as if the process were killed before it."""

    def __init__(self, *, others_continue: bool = False) -> None:
        super().__init__()
        self._others_continue = others_continue
        self.reached, self.proceed = asyncio.Event(), asyncio.Event()
        self.crashes_at: Callable[[Write], bool] = lambda write: False

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        if any(map(self.crashes_at, writes)) or (self.reached.is_set() and not self._others_continue):
            self.reached.set()
            await self.proceed.wait()
        return await super().commit(tenant, writes)

    def restart(self, at: Callable[[Write], bool] = lambda write: False) -> None:
        """Become the store of the next process, whose other commits continue."""
        self.reached.clear()
        self.proceed = asyncio.Event()
        self.crashes_at, self._others_continue = at, True


def is_end(write: Write) -> bool:
    return isinstance(write, SetRun) and write.status == "done"


def is_final(write: Write) -> bool:
    return isinstance(write, AddEvents) and any(b'"chat.final"' in body for _, body in write.events)


def is_second_reply(write: Write) -> bool:
    return isinstance(write, AddJournal) and (write.kind, write.key) == ("reply", "2")


def is_announcement(write: Write) -> bool:
    return isinstance(write, AddEvents) and any(b'"role":"assistant"' in body for _, body in write.events)


def make_atlas(store: MemoryStore, *replies: Reply) -> Atlas:
    async def look(input: str) -> str:
        return input

    return in_memory_atlas(Scripted(*replies), [Tool("look", look, effect="pure")], store=store)


def shown(frames: list[dict[str, Any]]) -> str:
    """Return what a plain client shows: the text since the last reset."""
    text = ""
    for frame in frames:
        text = "" if frame["event"] == "chat.reset" else text + frame["data"].get("text", "")
    return text


async def send(client: Client) -> str:
    sent = await client.get("chat.send", sessionKey="main", message="What time is it?", idempotencyKey="k")
    return sent["runId"]


async def receive_across_a_crash(
    store: CrashingStore, home: Path, at: Callable[[Write], bool], *, full: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Receive a run of two rounds whose process is killed before a commit; return the frames before and after."""
    store.crashes_at = at
    replies = (says(FIRST) + calls("look", input="clock"), says(WORDS))
    async with (
        serve_gateway(home, make_atlas(store, *replies), grace=0.0) as gateway,
        connect_client(gateway, full=full) as client,
    ):
        run_id = await send(client)
        async with asyncio.timeout(TIMEOUT):
            await store.reached.wait()
        await client.get("health.check")
        before = client.events(run_id)
    store.restart()
    async with (
        serve_gateway(home, make_atlas(store, says(WORDS))) as gateway,
        connect_client(gateway, full=full) as client,
    ):
        if full:
            last = before[-1]["data"]["seq"]
            await client.get("sessions.subscribe", sessionKey="main", runs={run_id: last})
        else:
            assert await send(client) == run_id
        await client.until("chat.final")
        return before, client.events(run_id)


@pytest.mark.parametrize("at", [is_final, is_second_reply])
async def test_plain_client_shows_the_whole_answer_after_a_crash(at: Callable[[Write], bool], tmp_path: Path) -> None:
    _, after = await receive_across_a_crash(CrashingStore(), tmp_path, at, full=False)
    assert shown(after) == FIRST + WORDS
    assert [frame["event"] for frame in after].count("chat.final") == 1


@pytest.mark.parametrize("at", [is_end, is_final, is_second_reply, is_announcement])
async def test_full_client_receives_each_reply_and_its_text_once(at: Callable[[Write], bool], tmp_path: Path) -> None:
    store = CrashingStore()
    before, after = await receive_across_a_crash(store, tmp_path, at, full=True)
    text, announced = "", list[str]()
    for frame in [*before, *after]:
        match frame["event"]:
            case "chat.reset":
                text = ""
            case "chat.delta":
                text += frame["data"]["text"]
            case "chat.message":
                message = frame["data"]["message"]
                announced.append(message["id"])
                if message["role"] == "assistant":
                    assert text == "".join(part["text"] for part in message["parts"] if part["type"] == "text")
                    text = ""
            case _:
                pass
    assert text == ""
    calls = [frame["event"] for frame in [*before, *after] if frame["event"].startswith("tool.")]
    assert calls == ["tool.call", "tool.result"]
    assert announced == [row.id for row in await store.messages("default", "main")]


async def test_last_reply_is_announced_only_after_the_end_of_the_turn_is_stored(tmp_path: Path) -> None:
    before, after = await receive_across_a_crash(CrashingStore(), tmp_path, is_end, full=True)

    def announced(frames: list[dict[str, Any]]) -> list[str]:
        messages = [frame["data"]["message"] for frame in frames if frame["event"] == "chat.message"]
        return [
            "".join(part.get("text", "") for part in each["parts"]) for each in messages if each["role"] == "assistant"
        ]

    assert announced(before) == [FIRST]
    assert announced(after) == [WORDS]


@pytest.mark.parametrize("full", [True, False], ids=["full", "plain"])
async def test_repeated_key_on_the_same_connection_repeats_no_event(full: bool, tmp_path: Path) -> None:
    atlas = make_atlas(MemoryStore(), says(WORDS))
    async with serve_gateway(tmp_path, atlas) as gateway, connect_client(gateway, full=full) as client:
        run_id = await send(client)
        await client.until("chat.final")
        once = client.events(run_id)
        assert await send(client) == run_id
        await client.get("health.check")
        assert client.events(run_id) == once
        async with connect_client(gateway, full=full) as other:
            assert await send(other) == run_id
            await other.until("chat.final")
            assert other.events(run_id) == once


@pytest.mark.parametrize("at", [is_end, is_second_reply])
async def test_agui_page_that_repeats_its_run_receives_the_whole_answer(
    at: Callable[[Write], bool], tmp_path: Path
) -> None:
    store = CrashingStore()
    store.crashes_at = at
    replies = (says(FIRST) + calls("look", input="clock"), says(WORDS))
    async with (
        asyncio.timeout(TIMEOUT),
        serve_gateway(tmp_path, make_atlas(store, *replies), grace=0.0) as gateway,
        open_page(gateway) as page,
    ):
        answer = await page.request("What time is it?")
        await store.reached.wait()
        answer.response.close()
    store.restart(is_end)
    async with (
        asyncio.timeout(TIMEOUT),
        serve_gateway(tmp_path, make_atlas(store, says(WORDS)), grace=0.0) as gateway,
        open_page(gateway) as page,
    ):
        await store.reached.wait()  # the resumed turn has its reply, but no end
        events: list[dict[str, Any]] = []
        async for event in (await page.request("What time is it?")).events():
            events.append(event)
            if text_of(events) == FIRST + WORDS:
                store.proceed.set()
        assert text_of(events) == FIRST + WORDS
        assert kinds(events).count("TOOL_CALL_START") == kinds(events).count("TOOL_CALL_RESULT") == 1
        assert kinds(events)[-1] == "RUN_FINISHED"
