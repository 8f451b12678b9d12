"""`atlas serve` with a Valkey server: in every role, it keeps copies of sessions there; its password is not logged."""

import asyncio
import json
from typing import Any

import pytest
from atlas_command import Home

from atlas_agents.app.session_copies import open_valkey
from atlas_agents.core.paths import Secret
from checks import wait_until
from stores.postgres_server import PostgresServer
from valkey_server import PASSWORD, ValkeyServer

pytestmark = pytest.mark.slow


def test_worker_of_a_cluster_copies_the_sessions_that_it_runs(home: Home) -> None:
    with PostgresServer() as postgres, ValkeyServer() as valkey:
        home.env |= {"ATLAS_DATABASE_URL": postgres.url, "ATLAS_REDIS_URL": valkey.url}
        with home.gateway("--role", "gateway") as gateway, home.gateway("--role", "worker") as worker:
            check_copied(home, valkey)
        for each in (gateway, worker):
            assert "Traceback" not in each.output and PASSWORD not in each.output, each.output
        assert PASSWORD not in home.run("config", "show").stdout


def test_single_process_copies_the_sessions_that_it_runs(home: Home) -> None:
    """With the role `alone`, the server was reported as healthy and never used."""
    with ValkeyServer() as valkey:
        home.env |= {"ATLAS_REDIS_URL": valkey.url}
        with home.gateway():
            check_copied(home, valkey)


def check_copied(home: Home, valkey: ValkeyServer) -> None:
    assert home.run("ask", "--session", "s", "Hello").stdout == "You wrote: Hello\n"
    state, expiry = asyncio.run(copied(valkey, "agent:session:s"))
    assert (state["status"], state["session"], state["agentId"], state["user"]) == ("done", "s", "assistant", "owner")
    assert 0 < state["startedAt"] <= state["endedAt"] == state["updatedAt"] and 3000 < expiry <= 3600


async def copied(server: ValkeyServer, key: str) -> tuple[dict[str, Any], int]:
    client: Any = open_valkey(Secret(server.url))

    async def ended() -> Any:
        state = json.loads(await client.get(key) or "{}")
        return "endedAt" in state and state

    state = await wait_until(ended)
    expiry = await client.ttl(key)
    await client.aclose()
    return state, expiry
