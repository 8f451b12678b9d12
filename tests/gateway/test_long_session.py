"""Long sessions on a gateway: 120 turns with tool calls on a model whose context window has 20,000 characters."""

import json
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from gateway_client import connect_client, serve_gateway

from atlas_agents import Agent, Atlas, Compaction, History, OpenAIProvider, register_model
from atlas_agents.core.store import AcceptRun, AddJournal, ClaimRun, PutSession, RunRow, SetRun, StoredMessage
from atlas_agents.storage.sqlite import MemoryStore, SqliteStore
from atlas_agents.testing import Environment, Scripted, VirtualClock, fails, in_memory_atlas, says
from checks import cpu_factor, repeat_for_block, wait_until
from model_server import ModelRequest, ModelServer, Reply, run_model_server

WINDOW = 20_000
TURNS = 120
SUMMARY = "<summary>The user counts. Open task: keep counting. The file is notes/count.md.</summary>"


async def look(number: int) -> str:
    """Look a number up."""
    return f"Number {number}: " + "z" * 700


def size_of(request: ModelRequest) -> int:
    return len(json.dumps(request.body["messages"]))


def is_summary(request: ModelRequest) -> bool:
    return "You compress the history" in str(request.body["messages"][0])


def respond(request: ModelRequest) -> Reply:
    if size_of(request) > WINDOW:
        return Reply("Your input exceeds the context window of this model.", status=400)
    if is_summary(request):
        return Reply(SUMMARY)
    if request.results:
        return Reply(f"Answer to {request.text}. " + "y" * 300)
    return Reply(calls=(("look", {"number": int(request.text.split()[1])}),))


@contextmanager
def small_model(name: str = "rules-1") -> Generator[tuple[ModelServer, OpenAIProvider]]:
    with run_model_server(respond) as server:
        yield server, OpenAIProvider(name, base_url=server.url, api_key="key", environment=Environment({}))


class ShortReads(MemoryStore):
    """Fails if all messages or all runs of a session are read."""

    strict = False
    runs_read = 0

    async def messages(self, tenant: str, session: str, **options: Any) -> list[StoredMessage]:
        assert not self.strict or options.get("limit", 10_000) <= 201
        return await super().messages(tenant, session, **options)

    async def runs(
        self, tenant: str, session: str, *, open_only: bool = False, last: int | None = None
    ) -> list[RunRow]:
        assert not self.strict or open_only or last is not None
        found = await super().runs(tenant, session, open_only=open_only, last=last)
        self.runs_read += len(found)
        return found


async def test_requests_do_not_read_a_whole_session(tmp_path: Path) -> None:
    store = ShortReads()
    model = Scripted(says("One."), says("Two."), fails("no luck"))
    async with (
        serve_gateway(tmp_path, in_memory_atlas(model, store=store)) as gateway,
        connect_client(gateway) as client,
    ):
        ids: list[str] = []
        for _ in range(3):
            ids.append((await client.get("chat.send", sessionKey="main", message="Go"))["runId"])
            await client.until("chat.final", "chat.error")
        await wait_until(lambda: not gateway.hub.runs.all)
        store.strict = True
        history = await client.get("chat.history", sessionKey="main")
        found = await client.get("sessions.subscribe", sessionKey="main")
        waited = [await client.get("chat.wait", runId=id) for id in ids]
        of_session = await client.get("runs.list", sessionKey="main", limit=2)
    assert [each["runId"] for each in of_session["runs"]] == ids[:0:-1] and store.runs_read == 2
    assert [each["runId"] for each in history["outcomes"]] == [each["runId"] for each in found["outcomes"]] == [ids[2]]
    assert [each["status"] for each in waited] == ["done", "done", "failed"]
    assert [part["text"] for each in waited for part in each.get("message", {"parts": ()})["parts"]] == [
        "One.",
        "Two.",
    ]


async def test_steps_of_a_long_run_are_converted_in_slices(tmp_path: Path) -> None:
    payload = json.dumps({"id": "c", "name": "look", "arguments": {"text": ["a word"] * 2000}}).encode()
    store = SqliteStore(tmp_path / "atlas.db")
    await store.open()
    atlas = in_memory_atlas(Scripted(), store=store)
    async with serve_gateway(tmp_path, atlas) as gateway, connect_client(gateway) as client:
        steps = [AddJournal("r", 1, "intent", f"c{number}", payload) for number in range(1500)]
        await store.commit(gateway.hub.atlas.tenant, [PutSession("s"), AcceptRun("r", "s", "assistant")])
        await store.commit(gateway.hub.atlas.tenant, [ClaimRun("r"), *steps])
        found, longest = await repeat_for_block(lambda: client.get("runs.get", runId="r"), times=2)
    await store.close()
    assert len(found["steps"]) == 1500 and found["steps"][-1]["name"] == "look"
    assert longest < 0.02 * cpu_factor()


async def test_latest_runs_are_found_in_the_sessions_that_changed_last(tmp_path: Path) -> None:
    clock = VirtualClock()
    store = ShortReads(clock=clock)
    async with (
        serve_gateway(tmp_path, in_memory_atlas(Scripted(), store=store)) as gateway,
        connect_client(gateway) as client,
    ):
        tenant = gateway.hub.atlas.tenant
        for number in range(200):
            await clock.advance(1)
            session, run = f"s{number // 4}", f"r{number:03}"
            accepted = [AcceptRun(run, session, "assistant"), ClaimRun(run)]
            await store.commit(tenant, [PutSession(session), *accepted, SetRun(run, 1, "done")])
        await clock.advance(1)
        await store.commit(tenant, [PutSession("s0", label="renamed")])
        store.strict = True
        runs = (await client.get("runs.list", limit=6))["runs"]
    assert [each["runId"] for each in runs] == [f"r{number}" for number in range(199, 193, -1)]
    assert store.runs_read == 12, "the runs of s0, s49 and s48"


@pytest.mark.timeout(600)
async def test_session_of_120_turns_keeps_answering(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, sizes, took = SqliteStore(tmp_path / "atlas.db"), list[int](), list[float]()
    await store.open()
    with small_model() as (server, model):
        atlas = Atlas([Agent("a", model=model, tools=[look])], store=store, history=History(compaction=Compaction()))
        async with serve_gateway(tmp_path, atlas) as gateway, connect_client(gateway) as client:
            for number in range(TURNS):
                before, start = len(server.requests), time.process_time()
                await client.request("chat.send", sessionKey="main", message=f"Question {number} " + "x" * 200)
                final = await client.until("chat.final", "chat.error")
                assert final.get("message", {}).get("parts", [{}])[0].get("text", "").startswith("Answer to Question")
                took.append(time.process_time() - start)
                sizes.append(sum(size_of(request) for request in server.requests[before:]))
            compacted = [frame for frame in client.frames if frame.get("event") == "session.compacted"]
            stored = [row.message for row in await store.messages("default", compacted[0]["data"]["sessionKey"])]
    await store.close()
    refused = [request for request in server.requests if size_of(request) > WINDOW]
    summaries = [request for request in server.requests if is_summary(request)]
    assert len(refused) == 1, "only the first request that is too long tells the limit"
    assert len(summaries) == len(compacted) < TURNS / 5
    assert len(server.requests) == 2 * TURNS + len(summaries) + len(refused)
    assert sum(sizes[-40:]) < 1.2 * sum(sizes[40:80])
    assert sum(took[-30:]) < 2.5 * sum(took[30:60]), "the CPU time of a turn does not grow with the session"
    assert not caplog.records, "a summary is an expected change of the prompt"
    asked = [message.text.split()[1] for message in stored if message.role == "user" and not message.metadata]
    assert asked == [str(number) for number in range(TURNS)]
    results = [result.result.split(":")[0] for message in stored for result in message.tool_results]
    assert results == [f"Number {number}" for number in range(TURNS)]


async def test_nothing_is_refused_if_the_window_is_known_and_a_pinned_message_stays(tmp_path: Path) -> None:
    register_model("small-window", context_window=3000)
    store = SqliteStore(tmp_path / "atlas.db")
    await store.open()
    with small_model("small-window") as (server, model):
        atlas = Atlas([Agent("a", model=model, tools=[look])], store=store, history=History(compaction=Compaction()))
        async with serve_gateway(tmp_path, atlas) as gateway, connect_client(gateway) as client:
            for number in range(40):
                question = f"Question {number} " + "x" * 200
                await client.request("chat.send", sessionKey="main", message=question, pinned=number == 0)
                assert "message" in await client.until("chat.final", "chat.error")
    await store.close()
    assert max(size_of(request) for request in server.requests) < WINDOW
    assert any(is_summary(request) for request in server.requests)
    shown = [str(request.body["messages"]) for request in server.requests if not is_summary(request)]
    assert all("Question 0 " in messages for messages in shown) and "Question 1 " not in shown[-1]


@pytest.mark.parametrize("compaction", [Compaction(), None], ids=["summaries", "truncation"])
async def test_session_that_overflowed_continues_after_a_restart(tmp_path: Path, compaction: Compaction | None) -> None:
    refused, asked = list[int](), 0
    for _ in range(2):
        store = SqliteStore(tmp_path / "atlas.db")
        await store.open()
        with small_model() as (server, model):
            atlas = Atlas([Agent("a", model=model, tools=[look])], store=store, history=History(compaction=compaction))
            async with serve_gateway(tmp_path, atlas) as gateway, connect_client(gateway) as client:
                for _ in range(8):
                    await client.request("chat.send", sessionKey="main", message=f"Question {asked} " + "x" * 2000)
                    assert "message" in await client.until("chat.final", "chat.error")
                    asked += 1
        await store.close()
        refused.append(sum(size_of(request) > WINDOW for request in server.requests))
    assert refused[0] == 1 and refused[1] <= 1, "a process learns the limit from one request"
