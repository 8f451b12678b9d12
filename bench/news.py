"""News by Postgres' NOTIFY beside news by Valkey: how late a word is heard in another process, and how fast commits go.

python bench/news.py [--rounds 5] [--words 200] [--seconds 3] [--tenants 8] [--unsafe]

One process commits events, this one hears of them. First one word each 20 ms: from before its commit until it is heard
here. Then the tenants, each with a run of its own, commit as fast as they can in two processes: a tenant's commits wait
for each other, those of different tenants do not, but for NOTIFY, which has one lock for the whole database. The two
ways take turns, so that what slows a round down slows both. Postgres syncs every commit to the disk, unless `--unsafe`.
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

PAUSE = 0.02
BODY = json.dumps({"event": "chat.delta", "text": "word " * 8}).encode()


async def joined(up: AsyncExitStack, url: str, redis: str) -> tuple[Cluster, PostgresStore]:
    cluster = Cluster(url, valkey=open_valkey(Secret(redis) if redis else None))
    store = PostgresStore(url, transaction_hook=cluster.beside)
    await store.open()
    up.push_async_callback(store.close)
    Atlas([Agent("a")], store=store, dispatcher=cluster)
    await up.enter_async_context(cluster.joined())
    news: Any = cluster._valkey
    while news is not None and not news.up:  # noqa: ASYNC110 - asked once, at the start
        await asyncio.sleep(0.01)
    return cluster, store


async def run_of(store: PostgresStore, tenant: str) -> str:
    id = new_id()
    begun = [PutSession(id), AcceptRun(id, id, "a"), ReserveEvents(id, 10_000_000)]
    await store.commit(tenant, begun)
    return id


async def words(store: PostgresStore, count: int) -> dict[str, Any]:
    id, told = await run_of(store, "default"), list[float]()
    for seq in range(1, count + 1):
        told.append(time.monotonic())
        await store.commit("default", [AddEvents(id, ((seq, BODY),))])
        await asyncio.sleep(PAUSE)
    await asyncio.sleep(0.2)
    return {"id": id, "told": told}


async def flood(store: PostgresStore, tenants: int, seconds: float) -> dict[str, Any]:
    end, commits = time.monotonic() + seconds, 0

    async def one(tenant: str) -> None:
        nonlocal commits
        id, seq = await run_of(store, tenant), 0
        while time.monotonic() < end:
            seq += 1
            await store.commit(tenant, [AddEvents(id, ((seq, BODY),))])
            commits += 1

    await asyncio.gather(*(one(new_id()) for _ in range(tenants)))
    return {"commits/s": commits / seconds}


async def tell(what: str, url: str, redis: str, number: str, seconds: str) -> None:
    async with AsyncExitStack() as up:
        _, store = await joined(up, url, redis)
        said = words(store, int(number)) if what == "words" else flood(store, int(number), float(seconds))
        print(json.dumps(await said), flush=True)


async def another(*given: object) -> Any:
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "tell", *map(str, given), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    return json.loads(out)


async def measure(server: PostgresServer, redis: str, asked: argparse.Namespace, name: str) -> dict[str, float]:
    """One round, on a database of its own."""
    url, heard = server.made(name), dict[tuple[str, int], float]()

    def hear(notice: Notification) -> None:
        heard[notice.id, notice.seq] = time.monotonic()

    async with AsyncExitStack() as up:
        cluster, _ = await joined(up, url, redis)
        cluster.on_notice = hear
        said = await another("words", url, redis, asked.words, 0)
        late = [heard.get((said["id"], n), 0) - told for n, told in enumerate(said["told"], 1)]
        assert min(late) > 0, "some were not heard"
        used = cpu(server.pid, children=True)
        half = asked.tenants // 2
        floods = await asyncio.gather(*(another("flood", url, redis, half, asked.seconds) for _ in range(2)))
        used = cpu(server.pid, children=True) - used
    rate = sum(each["commits/s"] for each in floods)
    late.sort()
    return {
        "heard after ms, p50": 1000 * late[len(late) // 2],
        "p95": 1000 * late[int(len(late) * 0.95)],
        "commits/s": rate,
        "Postgres CPU ms/commit": 1000 * used / (rate * asked.seconds),
    }


async def main(asked: argparse.Namespace) -> None:
    with PostgresServer(safe=not asked.unsafe) as server, ValkeyServer() as valkey:
        ways = {"NOTIFY": "", "Valkey": valkey.url}
        found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        for number in range(asked.rounds):
            for way, redis in ways.items():
                found[way].append(await measure(server, redis, asked, f"b{number}{way.lower()}"))
    names = list(found["NOTIFY"][0])
    print("news by | " + " | ".join(names))
    for way, rounds in found.items():
        print(f"{way} | " + " | ".join(f"{statistics.median([each[name] for each in rounds]):.2f}" for name in names))


if __name__ == "__main__":
    if sys.argv[1:2] == ["tell"]:
        asyncio.run(tell(*sys.argv[2:]))
    else:
        reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        reader.add_argument("--rounds", type=int, default=5)
        reader.add_argument("--words", type=int, default=200)
        reader.add_argument("--seconds", type=float, default=3.0)
        reader.add_argument("--tenants", type=int, default=8, help="of them half in each of two processes")
        reader.add_argument("--unsafe", action="store_true", help="let Postgres not wait for the disk")
        asyncio.run(main(reader.parse_args()))
