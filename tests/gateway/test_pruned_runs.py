"""Runs whose events were pruned: a client that resumes still learns how they ended."""

from pathlib import Path
from typing import Any

import pytest
from gateway_client import Client, connect_client, serve_gateway

from atlas_agents import Atlas, Tool
from atlas_agents.core.store import Prunable, Prune, Pruned, Store
from atlas_agents.gateway.events import split_rows
from atlas_agents.storage.sqlite import MemoryStore, SqliteStore
from atlas_agents.testing import Scripted, calls, fails, in_memory_atlas, says

LATER = 1 << 62


async def echo(input: str) -> str:
    return input


def two_round_atlas(store: Store) -> Atlas:
    """Return an Atlas whose model calls a tool and then answers."""
    replies = (says("Let me see.") + calls("echo", input="a"), says("It is all there, word by word."))
    return in_memory_atlas(Scripted(*replies), [Tool("echo", echo, effect="pure")], store=store)


async def run_turn(client: Client) -> tuple[str, list[dict[str, Any]]]:
    """Run a turn to its end; return its id and its events."""
    run_id = (await client.get("chat.send", sessionKey="main", message="Go"))["runId"]
    await client.until("chat.final", "chat.error")
    await client.get("chat.wait", runId=run_id)
    return run_id, client.events(run_id)


@pytest.mark.parametrize("limit", [1, 3, 1000])
async def test_pruned_run_still_ends_with_its_terminal_event(limit: int, tmp_path: Path) -> None:
    store = MemoryStore()
    async with serve_gateway(tmp_path, two_round_atlas(store)) as gateway, connect_client(gateway) as client:
        run_id, events = await run_turn(client)
        history = await client.get("chat.history", sessionKey="main")
        rows = await store.events("default", run_id)
        assert len(split_rows(rows, 0)) == len(events) > len(rows)
        await store.commit("default", [Prune("events", LATER, limit=limit)])
        assert await store.events("default", run_id) == rows[: max(0, len(rows) - limit)]
        remaining = len(split_rows(rows[: max(0, len(rows) - limit)], 0))
        for last in (0, 2, len(events)):
            async with connect_client(gateway) as back:
                found = await back.get("sessions.subscribe", sessionKey="main", runs={run_id: last})
                assert found["messages"] == history["messages"]
                final = await back.until("chat.final")
                assert final["message"] == events[-1]["data"]["message"]
                assert final["seq"] == found["runs"][0]["seq"] > len(events)
                again = back.events(run_id)
                assert again[: max(0, remaining - last)] == events[last:remaining]
                names = [each["event"] for each in again[max(0, remaining - last) :]]
                if limit == 1:  # the reply and its event are still stored
                    assert names == ["chat.final"]
                else:
                    assert names[0] == "chat.reset" and names[-3:] == ["chat.delta", "chat.message", "chat.final"]
                    assert again[-3]["data"]["text"] == "It is all there, word by word."
        assert await client.get("chat.history", sessionKey="main") == history


@pytest.mark.parametrize("what", ["events", "journal"])
async def test_failed_run_is_reported_after_pruning(what: Prunable, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "atlas.db")
    await store.open()
    async with (
        serve_gateway(tmp_path, in_memory_atlas(Scripted(fails("no luck")), store=store)) as gateway,
        connect_client(gateway) as client,
    ):
        run_id, events = await run_turn(client)
        assert events[-1]["event"] == "chat.error"
        assert await store.commit("default", [Prune(what, LATER)]) != [Pruned()]
        async with connect_client(gateway) as back:
            await back.get("sessions.subscribe", sessionKey="main", runs={run_id: 0})
            assert (await back.until("chat.error"))["message"] == events[-1]["data"]["message"]
        found = await client.get("runs.get", runId=run_id)
        assert found["run"]["status"] == "failed" and bool(found["steps"]) == (what == "events")
        assert (await client.get("chat.history", sessionKey="main"))["outcomes"][0]["status"] == "failed"
    await store.close()
