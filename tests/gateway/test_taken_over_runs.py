"""A run that its process no longer executes, fenced or without a recorded end: clients receive the rest."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest
from gateway_client import connect_client, serve_gateway

from atlas_agents import Approvals, Atlas, Chunk, Request, Tool
from atlas_agents.core.errors import StaleOwner, StoreError
from atlas_agents.core.events import ErrorRaised, StreamEnd
from atlas_agents.core.store import SetRun, Write
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Reply, Scripted, calls, in_memory_atlas, says
from checks import TIMEOUT

WORDS = "One two three four five six."


class Paused(Scripted):
    """Stops in the middle of its answer, as a process that is stopped, until it may continue."""

    def __init__(self, *replies: str) -> None:
        super().__init__(*map(says, replies))
        self.reached, self.proceed = asyncio.Event(), asyncio.Event()

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        count = 0
        async for chunk in super().stream(request):
            count += 1
            if count == 4:
                self.reached.set()
                await self.proceed.wait()
            yield chunk


@pytest.mark.parametrize("full", [True, False], ids=["full", "plain"])
async def test_clients_of_a_fenced_gateway_receive_the_answer_of_the_new_owner(full: bool, tmp_path: Path) -> None:
    store, model = MemoryStore(), Paused("One two three – this is never finished.")
    async with (
        asyncio.timeout(TIMEOUT),
        serve_gateway(tmp_path, in_memory_atlas(model, store=store), grace=0.0) as first,
        connect_client(first, full=full) as client,
    ):
        run_id = (await client.get("chat.send", sessionKey="main", message="Go"))["runId"]
        await model.reached.wait()
        async with serve_gateway(tmp_path, in_memory_atlas(Scripted(says(WORDS)), store=store), grace=0.0):
            model.proceed.set()
            await client.until("chat.final")
        frames = client.events(run_id)
        shown = ""
        for frame in frames:
            shown = "" if frame["event"] == "chat.reset" else shown + frame["data"].get("text", "")
        assert shown == WORDS
        assert [frame["event"] for frame in frames].count("chat.final") == 1
        if full:
            numbers = [frame["data"]["seq"] for frame in frames]
            assert numbers == sorted(set(numbers))
            async with connect_client(first) as late:  # the log of the run is the same for everybody
                await late.get("sessions.subscribe", sessionKey="main", runs={run_id: 0})
                await late.until("chat.final")
                assert late.events(run_id)[-1] == frames[-1]


async def test_fenced_gateway_whose_turn_waits_for_an_approval_hands_its_clients_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atlas_agents.gateway.runs._OWNER_CHECK_INTERVAL", 0.05)

    async def act(input: str) -> str:
        return input

    def make(*replies: Reply) -> Atlas:
        tools = [Tool("act", act, confirm=True)]
        return in_memory_atlas(Scripted(*replies), tools, store=store, approve=Approvals(wait=True))

    store = MemoryStore()
    async with (
        asyncio.timeout(TIMEOUT),
        serve_gateway(tmp_path, make(calls("act", input="a")), grace=0.0) as first,
        connect_client(first) as client,
    ):
        await client.get("chat.send", sessionKey="main", message="Go")
        approval = await client.until("exec.approval_request")
        async with (
            serve_gateway(tmp_path, make(says(WORDS)), grace=0.0) as second,
            connect_client(second) as other,
        ):
            assert await other.get("exec.approve", approvalId=approval["approvalId"]) == {"ok": True}
            final = await client.until("chat.final")
            assert final["message"]["parts"] == [{"type": "text", "text": WORDS}]


async def test_stream_of_a_fenced_turn_ends_with_an_error() -> None:
    store, model = MemoryStore(), Paused("One two three – this is never finished.")
    first: Atlas = in_memory_atlas(model, store=store)
    second = in_memory_atlas(Scripted(says(WORDS)), store=store)
    async with asyncio.timeout(TIMEOUT):
        stream = first.send("Go", session="main")
        await model.reached.wait()
        (resumed,) = await second.recover()
        assert (await resumed.reply()).text == WORDS
        model.proceed.set()
        with pytest.raises(StaleOwner, match="has a new owner"):
            await stream.reply()
        *_, ended, error = [event async for event in stream]
        assert isinstance(ended, StreamEnd) and ended.error
        assert isinstance(error, ErrorRaised) and error.kind == "StaleOwner"
    await first.close()
    await second.close()


class UnavailableStore(MemoryStore):
    """Does not record the end of a turn while it is unavailable."""

    def __init__(self, failure: Exception | None) -> None:
        super().__init__()
        self.available = False
        self.refused = asyncio.Event()
        self._failure = failure

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        if not self.available and any(isinstance(write, SetRun) and write.status == "cancelled" for write in writes):
            self.refused.set()
            if self._failure is not None:
                raise self._failure
            await asyncio.Event().wait()
        return await super().commit(tenant, writes)


@pytest.mark.parametrize("failure", [StoreError("disk failure"), None], ids=["refused", "too slow"])
async def test_turn_whose_end_could_not_be_recorded_ends_once_the_store_is_available(
    failure: Exception | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atlas_agents.agents.run._END_TIMEOUT", 0.05)
    monkeypatch.setattr("atlas_agents.agents.runner._RESUME_DELAYS", (0.2,))
    store, model = UnavailableStore(failure), Paused(WORDS, WORDS, WORDS)
    async with (
        asyncio.timeout(TIMEOUT),
        serve_gateway(tmp_path, in_memory_atlas(model, store=store), grace=0.0) as gateway,
        connect_client(gateway) as client,
    ):
        run_id = (await client.get("chat.send", sessionKey="main", message="Go"))["runId"]
        await model.reached.wait()
        assert (await client.get("chat.abort", runId=run_id))["aborted"] == [run_id]
        await store.refused.wait()
        store.available = True
        assert (await client.until("chat.final"))["cancelled"] is True
        numbers = [frame["data"]["seq"] for frame in client.events(run_id)]
        assert numbers == sorted(set(numbers))
        model.proceed.set()
        await client.get("chat.send", sessionKey="main", message="And now?")
        assert "cancelled" not in await client.until("chat.final"), "the session is not stuck"
