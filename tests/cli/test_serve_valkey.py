"""`atlas serve` on a cluster with Valkey: notifications and cached sessions use it; its password is not logged."""

import asyncio
import json
from typing import Any

import pytest
from atlas_command import Home

from atlas_agents.config.open import open_valkey
from atlas_agents.core.paths import Secret
from checks import wait_until
from stores.postgres_server import PostgresServer
from stores.valkey_server import PASSWORD, ValkeyServer

pytestmark = pytest.mark.slow


def test_cluster_uses_valkey_and_does_not_start_with_a_wrong_password(home: Home) -> None:
    with PostgresServer() as postgres, ValkeyServer() as valkey:
        home.env |= {"ATLAS_DATABASE_URL": postgres.url, "ATLAS_REDIS_URL": valkey.url}
        with home.gateway("--role", "gateway") as gateway, home.gateway("--role", "worker") as worker:
            for _ in range(2):
                assert home.run("ask", "--session", "s", "Hello").stdout == "You wrote: Hello\n"
            copies, listeners = asyncio.run(seen(valkey))
            assert copies and listeners == 2
        for each in (gateway, worker):
            assert "Traceback" not in each.output and PASSWORD not in each.output, each.output
        assert PASSWORD not in home.run("config", "show").stdout
        refused = home.run("serve", "--role", "worker", ATLAS_REDIS_URL=valkey.url.replace(PASSWORD, "wrong-canary"))
        assert refused.returncode == 2 and "redis_url: access to Valkey denied" in refused.stderr
        assert "canary" not in refused.stderr + refused.stdout


def test_state_of_sessions_is_copied_with_any_role(home: Home) -> None:
    """With the role `alone`, the server was reported as healthy and never used."""
    with ValkeyServer() as valkey:
        home.env |= {"ATLAS_REDIS_URL": valkey.url}
        with home.gateway():
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


async def seen(server: ValkeyServer) -> tuple[int, int]:
    """The number of cached sessions and of subscribed processes."""
    client: Any = open_valkey(Secret(server.url))
    keys: list[bytes] = await client.keys("atlas:*:session:*")
    (channel,) = await client.pubsub_channels("atlas:*:news")
    ((_, listeners),) = await client.pubsub_numsub(channel)
    await client.aclose()
    return len(keys), listeners
