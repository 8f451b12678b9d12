"""What a cluster costs and carries: turns a second with one gateway and 1, 2, 4 … workers on one Postgres.

python bench/cluster.py [--workers 1 2 4] [--turns 400] [--sessions 32] [--rounds 3] [--pause 0] [--unsafe]

A turn is a message, one governed tool call and an answer of fifty words. The model is a function in the worker's own
process, so that what is measured is ours. Clients, gateway, workers and Postgres share this machine: the turns a second
are those of its cores, and CPU per turn, told for each of them, is the figure to plan with. Postgres syncs every commit
to the disk, unless `--unsafe`. With `--pause` a word comes each so many seconds, as models really speak.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from websockets.asyncio.client import ClientConnection, connect

from atlas_agents import (
    Agent,
    Atlas,
    Capabilities,
    Chunk,
    DoneChunk,
    Request,
    TextChunk,
    ToolCall,
    ToolCallChunk,
    Usage,
)
from atlas_agents.dispatch.cluster import Cluster
from atlas_agents.gateway.cluster import ClusterMembership, work
from atlas_agents.gateway.server import Gateway, run
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.storage.history_cache import HistoryCache
from atlas_agents.storage.postgres import PostgresStore
from atlas_agents.tools.tool import tool

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from stores.postgres_server import PostgresServer

WORDS = 50
TICK = os.sysconf("SC_CLK_TCK")
WARM = 2
_LOGGED = "SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn) / 1024"
_COUNTED = """
SELECT sum(xact_commit), sum(active_time + idle_in_transaction_time) FROM pg_stat_database
WHERE datname = current_database()"""
"""Commits, and milliseconds in transactions. A session tells them when it ends, so they are those of a whole round."""


@tool
async def look(thing: str) -> str:
    """Look at something."""
    return f"It is a {thing}."


class Model:
    """Calls a tool, then says fifty words."""

    id = "model"
    capabilities = Capabilities()

    def __init__(self, pause: float) -> None:
        self._pause = pause

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        if request.messages[-1].role == "user":
            yield ToolCallChunk(ToolCall(f"call{len(request.messages)}", "look", {"thing": "stone"}))
        else:
            for _ in range(WORDS):
                await asyncio.sleep(self._pause)
                yield TextChunk("word ")
        yield DoneChunk(Usage(1, WORDS))


async def serve(role: str, url: str, home: Path, pause: float) -> None:
    cluster = Cluster(url)
    store = PostgresStore(url, transaction_hook=cluster.beside, history_cache=HistoryCache())
    await store.open()
    atlas = Atlas([Agent("assistant", model=Model(pause), tools=[look])], store=store, dispatcher=cluster)
    if role == "worker":
        await work(atlas, cluster, 1.0, lambda: print("0", flush=True))
    else:
        membership = ClusterMembership(cluster, works=False)
        gateway = Gateway(atlas, GatewaySettings(home=home, port=0), membership=membership)
        await gateway.serve(lambda it: print(it.port, flush=True))
    await store.close()


@asynccontextmanager
async def member(role: str, url: str, home: Path, pause: float) -> AsyncGenerator[tuple[int, int], None]:
    """(process id, port) of one that is ready."""
    command = (sys.executable, __file__, "serve", role, url, str(home), str(pause))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout
    try:
        yield process.pid, int(await process.stdout.readline())
    finally:
        process.terminate()
        await process.wait()


def cpu(process: int, *, children: bool = False) -> float:
    """Seconds of CPU that a process has used, or it and all that it has started."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    used = sum(map(int, fields[11 : 15 if children else 13])) / TICK
    if children:
        for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
            with suppress(FileNotFoundError):  # it has just ended, and is counted with its parent
                used += cpu(int(child))
    return used


async def join(port: int, home: Path) -> ClientConnection:
    socket = await connect(f"ws://127.0.0.1:{port}/", compression=None)
    token = (home / "token").read_text().strip()
    await socket.send(json.dumps({"type": "auth", "token": token, "protocol": 1}))
    await socket.recv()
    return socket


async def turn(socket: ClientConnection, session: str) -> float:
    """One turn, and how long it took."""
    begun = time.monotonic()
    await socket.send(json.dumps({"id": 1, "method": "chat.send", "params": {"sessionKey": session, "message": "Go"}}))
    while True:
        frame: Any = json.loads(await socket.recv())
        if frame.get("event") == "chat.final":
            return time.monotonic() - begun
        if frame.get("event") == "chat.error" or "error" in frame:
            raise SystemExit(f"a turn failed: {frame}")


async def one_row(url: str, asked: LiteralString) -> list[float]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as line:
        row = await (await line.execute(asked)).fetchone()
        assert row is not None
        return [float(value) for value in row]


async def measure(server: PostgresServer, workers: int, asked: argparse.Namespace, name: str) -> dict[str, float]:
    """One round, on a database of its own."""
    url = server.made(name)
    async with AsyncExitStack() as up:
        home = Path(up.enter_context(tempfile.TemporaryDirectory()))
        gateway, port = await up.enter_async_context(member("gateway", url, home, asked.pause))
        crew = [(await up.enter_async_context(member("worker", url, home, asked.pause)))[0] for _ in range(workers)]
        sockets = [await join(port, home) for _ in range(asked.sessions)]
        each = max(1, asked.turns // asked.sessions)

        async def client(place: int, turns: int) -> list[float]:
            return [await turn(sockets[place], f"s{place}") for _ in range(turns)]

        async def all_of(turns: int) -> list[float]:
            found = await asyncio.gather(*(client(place, turns) for place in range(asked.sessions)))
            return sorted(took for took_by_one in found for took in took_by_one)

        await all_of(WARM)

        def used() -> tuple[float, float, float]:
            return cpu(gateway), sum(map(cpu, crew)), cpu(server.pid, children=True)

        (log,), before, begun = await one_row(url, _LOGGED), used(), time.monotonic()
        took = await all_of(each)
        wall, after, (grown,) = time.monotonic() - begun, used(), await one_row(url, _LOGGED)
        for socket in sockets:
            await socket.close()
    commits, busy = [value / (each + WARM) / asked.sessions for value in await one_row(url, _COUNTED)]
    turns = each * asked.sessions
    front, back, base = (1000 * (now - then) / turns for now, then in zip(after, before, strict=True))
    return {
        "turns/s": turns / wall,
        "gateway CPU ms": front,
        "worker CPU ms": back,
        "Postgres CPU ms": base,
        "p50 s": took[len(took) // 2],
        "p95 s": took[int(len(took) * 0.95)],
        "commits": commits,
        "WAL KB": (grown - log) / turns,
        "in transaction ms": busy,
    }


async def main(asked: argparse.Namespace) -> None:
    found: dict[int, list[dict[str, float]]] = {workers: [] for workers in asked.workers}
    with PostgresServer(safe=not asked.unsafe) as server:
        for number in range(asked.rounds):
            for workers in asked.workers:  # side by side: what slows a round down slows all of them
                found[workers].append(await measure(server, workers, asked, f"b{number}w{workers}"))
    names = list(next(iter(found.values()))[0])
    print("workers | " + " | ".join(names))
    for workers, rounds in found.items():
        print(
            f"{workers} | " + " | ".join(f"{statistics.median([each[name] for each in rounds]):.2f}" for name in names)
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        run(serve(sys.argv[2], sys.argv[3], Path(sys.argv[4]), float(sys.argv[5])))
    else:
        reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        reader.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
        reader.add_argument("--turns", type=int, default=400, help="of each round")
        reader.add_argument("--sessions", type=int, default=32, help="clients at once, each with a session of its own")
        reader.add_argument("--rounds", type=int, default=3)
        reader.add_argument("--pause", type=float, default=0.0, help="seconds between two words")
        reader.add_argument("--unsafe", action="store_true", help="let Postgres not wait for the disk")
        asyncio.run(main(reader.parse_args()))
