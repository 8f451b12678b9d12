"""A gateway that is still starting: health checks are answered, everything else waits until open runs are resumed."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from gateway_client import UPGRADE, connect_client, http

from atlas_agents import Atlas
from atlas_agents.core.store import RunRow
from atlas_agents.gateway.server import Gateway
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, in_memory_atlas, says
from checks import TIMEOUT, wait_until

WORDS = "All of the answer."


class SlowStart(MemoryStore):
    """Lists the runs of earlier processes only when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.proceed = asyncio.Event(), asyncio.Event()

    async def orphaned_runs(self) -> list[RunRow]:
        self.asked.set()
        await self.proceed.wait()
        return await super().orphaned_runs()


async def leave_open_run(store: MemoryStore) -> str:
    """Accept a message in a process that ends before it has asked the model."""
    atlas: Atlas = in_memory_atlas(Scripted(), store=store)
    stream = atlas.send("Go", session="main", idempotency_key="k")
    run_id = (await stream.accepted()).run_id
    await atlas.close()
    return run_id


async def start(gateway: Gateway, ready: asyncio.Event) -> None:
    async with gateway.running():
        ready.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("how", ["subscribe", "repeat the key", "plain"])
async def test_client_that_connects_during_the_start_receives_the_whole_run(how: str, tmp_path: Path) -> None:
    store, ready = SlowStart(), asyncio.Event()
    run_id = await leave_open_run(store)
    gateway = Gateway(in_memory_atlas(Scripted(says(WORDS)), store=store), GatewaySettings(home=tmp_path, port=0))
    starting = asyncio.create_task(start(gateway, ready))
    try:
        async with asyncio.timeout(TIMEOUT):
            await store.asked.wait()
            connecting = asyncio.create_task(converse(gateway, how, run_id))
            assert (await http(gateway, "GET /healthz"))[0] == 200
            assert (await http(gateway, "GET /readyz"))[0] == 503
            assert not connecting.done()
            store.proceed.set()
            frames = await connecting
        text = [frame["data"]["text"] for frame in frames if frame["event"] == "chat.delta"]
        assert "".join(text) == WORDS and frames[-1]["event"] == "chat.final"
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)


async def converse(gateway: Gateway, how: str, run_id: str) -> Sequence[dict[str, Any]]:
    async with connect_client(gateway, full=how != "plain") as client:
        if how == "subscribe":
            await client.get("sessions.subscribe", sessionKey="main", runs={run_id: 0})
        else:
            sent = await client.get("chat.send", sessionKey="main", message="Go", idempotencyKey="k")
            assert sent["runId"] == run_id
        await client.until("chat.final")
        return client.events(run_id)


async def test_clients_that_give_up_during_the_start_do_no_harm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, ready = SlowStart(), asyncio.Event()
    gateway = Gateway(in_memory_atlas(Scripted(says(WORDS)), store=store), GatewaySettings(home=tmp_path, port=0))
    starting = asyncio.create_task(start(gateway, ready))
    try:
        async with asyncio.timeout(TIMEOUT):
            await store.asked.wait()
            head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in UPGRADE.items())
            for request in ("GET / HTTP/1.1", "GET /v1/models HTTP/1.1"):
                _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
                upgrade = head if request.startswith("GET / ") else ""
                writer.write(f"{request}\r\nHost: 127.0.0.1:{gateway.port}\r\n{upgrade}\r\n".encode())
                await writer.drain()
                await http(gateway, "GET /healthz")
                writer.transport.abort()
            await http(gateway, "GET /healthz")
            store.proceed.set()
            await ready.wait()
            async with connect_client(gateway) as client:
                assert (await client.get("health.check"))["status"] == "ok"

            async def all_closed() -> bool:
                return len(gateway.hub.connections) == 0

            await wait_until(all_closed)
        assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
