"""`atlas serve` on a cluster with Valkey: notifications and cached sessions use it; its password is not logged."""

import asyncio
from typing import Any

import pytest
from atlas_command import Home

from atlas_agents.config.open import open_valkey
from atlas_agents.core.paths import Secret
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


async def seen(server: ValkeyServer) -> tuple[int, int]:
    """The number of cached sessions and of subscribed processes."""
    client: Any = open_valkey(Secret(server.url))
    keys: list[bytes] = await client.keys("atlas:*:session:*")
    (channel,) = await client.pubsub_channels("atlas:*:news")
    ((_, listeners),) = await client.pubsub_numsub(channel)
    await client.aclose()
    return len(keys), listeners
