"""Processes of a cluster, as far as one process can play several: each with a store, a dispatcher and an Atlas."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from atlas_agents import Atlas, Provider, Tool
from atlas_agents.config.open import open_valkey
from atlas_agents.core.paths import Secret
from atlas_agents.core.store import RunRow
from atlas_agents.dispatch.base import RunningTurn
from atlas_agents.dispatch.cluster import Cluster
from atlas_agents.storage.history_cache import HistoryCache
from atlas_agents.storage.postgres import PostgresStore
from atlas_agents.storage.valkey_cache import ValkeyCache
from atlas_agents.testing import in_memory_atlas


class Member:
    """One of them."""

    def __init__(self, atlas: Atlas, cluster: Cluster, store: PostgresStore) -> None:
        self.atlas = atlas
        self.cluster = cluster
        self.store = store
        self.taken: list[str] = []


@asynccontextmanager
async def member(
    url: str,
    schema: str,
    model: Provider,
    tools: Sequence[Tool] = (),
    *,
    works: bool = True,
    concurrency: int = 8,
    redis_url: str = "",
    **more: Any,
) -> AsyncGenerator[Member, None]:
    """A member as long as the block lasts; one that does not work only takes messages in."""
    news, copies = [open_valkey(Secret(redis_url) if redis_url else None) for _ in range(2)]
    histories = HistoryCache(ValkeyCache(copies) if copies is not None else None)
    cluster = Cluster(url, schema=schema, concurrency=concurrency, valkey=news)
    store = PostgresStore(url, schema=schema, transaction_hook=cluster.enqueue_and_notify, history_cache=histories)
    await store.open()
    async with AsyncExitStack() as closing:
        closing.push_async_callback(store.close)
        atlas = in_memory_atlas(model, tools, store=store, dispatcher=cluster, **more)
        here = Member(atlas, cluster, store)
        closing.push_async_callback(atlas.close)
        await closing.enter_async_context(cluster.join())

        async def taken(turn: RunningTurn, row: RunRow) -> None:
            here.taken.append(row.id)

        if works:
            await closing.enter_async_context(cluster.run_worker(taken, atlas.close))
        yield here
