"""Unusual output of models and tools, and unusual input of clients: nothing breaks."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from gateway_client import connect_client, http, serve_and_connect, serve_gateway

from atlas_agents import Atlas, ProviderError, TextChunk, Tool
from atlas_agents.core.errors import StoreFull
from atlas_agents.core.paths import Secret
from atlas_agents.core.store import Write
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Reply, Scripted, calls, fails, in_memory_atlas, says
from checks import TIMEOUT


def stored_atlas(*replies: Reply, tools: tuple[Tool, ...] = ()) -> Atlas:
    return in_memory_atlas(Scripted(*replies), tools, store=MemoryStore())


@pytest.mark.parametrize(
    ("method", "params", "message"),
    [
        ("agents.get", {"agentId": "zoe"}, "unknown agent 'zoe'; agents: assistant"),
        ("chat.send", {"sessionKey": "s", "message": "Hi", "agentId": "zoe"}, "unknown agent 'zoe'; agents: assistant"),
        ("schedules.run", {"name": "daily"}, "unknown schedule 'daily'; schedules: weekly"),
        ("users.remove", {"name": "zoe"}, "not found: user 'zoe'; users: owner"),
    ],
)
async def test_error_about_an_unknown_thing_names_those_that_exist(
    method: str, params: dict[str, Any], message: str, tmp_path: Path
) -> None:
    async with serve_and_connect(tmp_path, stored_atlas()) as client:
        await client.get("schedules.add", name="weekly", cron="@weekly", task="Look")
        assert (await client.request(method, **params))["error"]["message"] == message


async def test_lone_surrogate_does_not_break_a_turn(tmp_path: Path) -> None:
    async def half(input: str) -> str:
        return "\ud800"

    atlas = stored_atlas(
        calls("half", input="x"), Reply(TextChunk("so "), TextChunk("\ud83d")), tools=(Tool("half", half),)
    )
    async with serve_and_connect(tmp_path, atlas) as client:
        await client.get("chat.send", sessionKey="main", message="Go")
        assert (await client.until("tool.result"))["status"] in ("ok", "error")
        await client.until("chat.final", "chat.error")


@pytest.mark.parametrize("key", ["a\x00b", "a\nb", "\x7f", "x" * 201])
async def test_session_key_must_be_a_short_line(key: str, tmp_path: Path) -> None:
    async with serve_and_connect(tmp_path, stored_atlas(says("Hi."))) as client:
        for method in ("chat.send", "sessions.get", "sessions.subscribe", "chat.history"):
            answer = await client.request(method, sessionKey=key, message="Hi")
            assert answer["error"]["data"]["kind"] == "INVALID_PARAMS"


@pytest.mark.parametrize("key", ["main", "telegram:123", "日本", "../../etc/passwd", "' OR 1=1;--", "{}", " "])
async def test_session_key_may_have_any_characters(key: str, tmp_path: Path) -> None:
    async with serve_and_connect(tmp_path, stored_atlas(says("Hi."))) as client:
        await client.get("chat.send", sessionKey=key, message="Hi")
        assert (await client.until("chat.final"))["sessionKey"] == key
        assert len((await client.get("chat.history", sessionKey=key))["messages"]) == 2


async def test_provider_error_is_sent_without_the_api_key(tmp_path: Path) -> None:
    key = "sk-proj-0123456789abcdefghijklmnopqrstuv"
    broken = fails(ProviderError(f"Incorrect API key provided: {key}", "auth"))
    async with serve_and_connect(tmp_path, stored_atlas(broken)) as client:
        run_id = (await client.get("chat.send", sessionKey="main", message="Hi"))["runId"]
        assert key not in (await client.until("chat.error"))["message"]
        assert key not in (await client.get("chat.wait", runId=run_id))["error"]


class Full(MemoryStore):
    """A store that can be set to be full."""

    full = False

    def __init__(self) -> None:
        super().__init__()
        self.refused = asyncio.Event()

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        if self.full:
            self.refused.set()
            raise StoreFull("the disk is full")
        return await super().commit(tenant, writes)


async def test_full_store_refuses_new_turns_but_shows_the_history(tmp_path: Path) -> None:
    store = Full()
    atlas = in_memory_atlas(Scripted(says("One."), says("Two.")), store=store)
    async with serve_and_connect(tmp_path, atlas) as client:
        await client.get("chat.send", sessionKey="main", message="Hi")
        await client.until("chat.final")
        store.full = True
        refused = await client.request("chat.send", sessionKey="main", message="Hi again")
        assert (refused["error"]["code"], refused["error"]["data"]["retryable"]) == (-32004, True)
        assert "full" in refused["error"]["message"]
        assert len((await client.get("chat.history", sessionKey="main"))["messages"]) == 2
        store.full = False
        await client.get("chat.send", sessionKey="main", message="Hi again")
        await client.until("chat.final")


async def test_events_are_written_once_the_store_recovers(tmp_path: Path) -> None:
    store = Full()
    go = asyncio.Event()

    async def slow(input: str) -> str:
        store.full = True
        await go.wait()
        return input

    tool = Tool("slow", slow, effect="pure")
    atlas = in_memory_atlas(Scripted(calls("slow", input="x"), says("Done.")), [tool], store=store)
    async with serve_and_connect(tmp_path, atlas) as client:
        run_id = (await client.get("chat.send", sessionKey="main", message="Hi"))["runId"]
        await client.until("tool.call")
        go.set()
        await asyncio.wait_for(store.refused.wait(), TIMEOUT)
        store.full = False
        await client.until("chat.final")
        numbers = [frame["data"]["seq"] for frame in client.events(run_id)]
        assert numbers == list(range(1, len(numbers) + 1))


async def test_wildcard_address_is_not_an_allowed_host(tmp_path: Path) -> None:
    token = Secret("k9Vd2mQ8xZ4tR7wB1nL5cH")
    async with serve_gateway(tmp_path, host="0.0.0.0", token=token) as gateway:
        assert (await http(gateway, "GET /health", Host="0.0.0.0"))[0] == 421
        assert (await http(gateway, "GET /health"))[0] == 200
        async with connect_client(gateway, token.reveal()) as client:
            assert (await client.get("health.check"))["status"] == "ok"
