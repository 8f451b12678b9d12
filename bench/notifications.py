"""Pub/sub by Postgres NOTIFY and by Valkey: latency of a notification in another process, and commits per second.

python bench/notifications.py [--rounds 5] [--words 200] [--seconds 3] [--tenants 8] [--unsafe]

One process commits events, this one receives their notifications. First it commits one event every 20 ms; the latency
counts from before the commit until the notification arrives here. Then several tenants, each with its own run, commit
as fast as they can in two processes. Commits of one tenant wait for each other; those of different tenants do not,
except for NOTIFY, which takes one lock for the whole database. The two methods alternate, so that noise affects both.
Postgres syncs every commit to disk, unless `--unsafe` is set.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from atlas_agents import Agent, Atlas
from atlas_agents.config.open import open_valkey
from atlas_agents.core.messages import new_id
from atlas_agents.core.paths import Secret
from atlas_agents.core.store import AcceptRun, AddEvents, PutSession, ReserveEvents
from atlas_agents.dispatch.cluster import Cluster
from atlas_agents.dispatch.notifications import Notification
from atlas_agents.storage.postgres import PostgresStore

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from cluster import cpu
from stores.postgres_server import PostgresServer
from stores.valkey_server import ValkeyServer

INTERVAL = 0.02
BODY = json.dumps({"event": "chat.delta", "text": "word " * 8}).encode()


async def join_cluster(stack: AsyncExitStack, url: str, redis: str) -> tuple[Cluster, PostgresStore]:
    cluster = Cluster(url, valkey=open_valkey(Secret(redis) if redis else None))
    store = PostgresStore(url, transaction_hook=cluster.enqueue_and_notify)
    await store.open()
    stack.push_async_callback(store.close)
    Atlas([Agent("a")], store=store, dispatcher=cluster)
    await stack.enter_async_context(cluster.join())
    pubsub: Any = cluster._valkey
    while pubsub is not None and not pubsub.connected:  # noqa: ASYNC110 - once, at the start
        await asyncio.sleep(0.01)
    return cluster, store


async def start_run(store: PostgresStore, tenant: str) -> str:
    id = new_id()
    writes = [PutSession(id), AcceptRun(id, id, "a"), ReserveEvents(id, 10_000_000)]
    await store.commit(tenant, writes)
    return id


async def commit_paced(store: PostgresStore, count: int) -> dict[str, Any]:
    id, sent_at = await start_run(store, "default"), list[float]()
    for seq in range(1, count + 1):
        sent_at.append(time.monotonic())
        await store.commit("default", [AddEvents(id, ((seq, BODY),))])
        await asyncio.sleep(INTERVAL)
    await asyncio.sleep(0.2)
    return {"id": id, "sent_at": sent_at}


async def commit_fast(store: PostgresStore, tenants: int, seconds: float) -> dict[str, Any]:
    end, commits = time.monotonic() + seconds, 0

    async def one(tenant: str) -> None:
        nonlocal commits
        id, seq = await start_run(store, tenant), 0
        while time.monotonic() < end:
            seq += 1
            await store.commit(tenant, [AddEvents(id, ((seq, BODY),))])
            commits += 1

    await asyncio.gather(*(one(new_id()) for _ in range(tenants)))
    return {"commits/s": commits / seconds}


async def run_committer(mode: str, url: str, redis: str, number: str, seconds: str) -> None:
    async with AsyncExitStack() as stack:
        _, store = await join_cluster(stack, url, redis)
        sent = commit_paced(store, int(number)) if mode == "paced" else commit_fast(store, int(number), float(seconds))
        print(json.dumps(await sent), flush=True)


async def run_process(*arguments: object) -> Any:
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "commit", *map(str, arguments), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    return json.loads(out)


async def measure(server: PostgresServer, redis: str, options: argparse.Namespace, name: str) -> dict[str, float]:
    """Measure one round on a new database."""
    url, received = server.made(name), dict[tuple[str, int], float]()

    def on_notification(notice: Notification) -> None:
        received[notice.id, notice.seq] = time.monotonic()

    async with AsyncExitStack() as stack:
        cluster, _ = await join_cluster(stack, url, redis)
        cluster.subscribe(on_notification)
        sent = await run_process("paced", url, redis, options.words, 0)
        latencies = [received.get((sent["id"], n), 0) - sent_at for n, sent_at in enumerate(sent["sent_at"], 1)]
        assert min(latencies) > 0, "some notifications did not arrive"
        used = cpu(server.pid, children=True)
        half = options.tenants // 2
        floods = await asyncio.gather(*(run_process("fast", url, redis, half, options.seconds) for _ in range(2)))
        used = cpu(server.pid, children=True) - used
    rate = sum(each["commits/s"] for each in floods)
    latencies.sort()
    return {
        "latency ms, p50": 1000 * latencies[len(latencies) // 2],
        "p95": 1000 * latencies[int(len(latencies) * 0.95)],
        "commits/s": rate,
        "Postgres CPU ms/commit": 1000 * used / (rate * options.seconds),
    }


async def main(options: argparse.Namespace) -> None:
    with PostgresServer(safe=not options.unsafe) as server, ValkeyServer() as valkey:
        methods = {"NOTIFY": "", "Valkey": valkey.url}
        found: dict[str, list[dict[str, float]]] = {method: [] for method in methods}
        for number in range(options.rounds):
            for method, redis in methods.items():
                found[method].append(await measure(server, redis, options, f"b{number}{method.lower()}"))
    names = list(found["NOTIFY"][0])
    print("pub/sub | " + " | ".join(names))
    for method, rounds in found.items():
        print(
            f"{method} | " + " | ".join(f"{statistics.median([each[name] for each in rounds]):.2f}" for name in names)
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["commit"]:
        asyncio.run(run_committer(*sys.argv[2:]))
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--rounds", type=int, default=5)
        parser.add_argument("--words", type=int, default=200)
        parser.add_argument("--seconds", type=float, default=3.0)
        parser.add_argument("--tenants", type=int, default=8, help="half of them in each of two processes")
        parser.add_argument("--unsafe", action="store_true", help="turn off fsync in Postgres")
        asyncio.run(main(parser.parse_args()))
