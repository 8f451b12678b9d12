"""Throughput and cost of a cluster: turns per second with one gateway and 1, 2, 4 … workers on one Postgres.

python bench/cluster.py [--workers 1 2 4] [--turns 400] [--sessions 32] [--rounds 3] [--pause 0] [--unsafe]

A turn is a message, one governed tool call and an answer of fifty words. The model is a function in the worker process,
so that only our code is measured. Clients, gateway, workers and Postgres share this machine: the turns per second
depend on its cores; plan with the CPU time per turn of each process. Postgres syncs every commit to disk, unless
`--unsafe` is set. `--pause` sets the seconds between two words, as with a real model.
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
from atlas_agents.gateway.cluster import ClusterMembership, run_worker
from atlas_agents.gateway.server import Gateway, run
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.storage.history_cache import HistoryCache
from atlas_agents.storage.postgres import PostgresStore
from atlas_agents.tools.tool import tool

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from stores.postgres_server import PostgresServer

WORDS = 50
TICK = os.sysconf("SC_CLK_TCK")
WARM_UP_TURNS = 2
_WAL_KB = "SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn) / 1024"
_TRANSACTIONS = """
SELECT sum(xact_commit), sum(active_time + idle_in_transaction_time) FROM pg_stat_database
WHERE datname = current_database()"""
"""Commits and milliseconds in transactions. Sessions report them when they end, so they cover a whole round."""


@tool
async def look(thing: str) -> str:
    """Look at something."""
    return f"It is a {thing}."


class Model:
    """Calls a tool, then answers with fifty words."""

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
    store = PostgresStore(url, transaction_hook=cluster.enqueue_and_notify, history_cache=HistoryCache())
    await store.open()
    atlas = Atlas([Agent("assistant", model=Model(pause), tools=[look])], store=store, dispatcher=cluster)
    if role == "worker":
        await run_worker(atlas, cluster, 1.0, lambda: print("0", flush=True))
    else:
        membership = ClusterMembership(cluster, executes_runs=False)
        gateway = Gateway(atlas, GatewaySettings(home=home, port=0), membership=membership)
        await gateway.serve(lambda it: print(it.port, flush=True))
    await store.close()


@asynccontextmanager
async def member(role: str, url: str, home: Path, pause: float) -> AsyncGenerator[tuple[int, int], None]:
    """Run a member in a process and yield (process id, port) once it is ready."""
    command = (sys.executable, __file__, "serve", role, url, str(home), str(pause))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout
    try:
        yield process.pid, int(await process.stdout.readline())
    finally:
        process.terminate()
        await process.wait()


def cpu(process: int, *, children: bool = False) -> float:
    """Return the CPU seconds used by a process, with `children` including its descendants."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    used = sum(map(int, fields[11 : 15 if children else 13])) / TICK
    if children:
        for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
            with suppress(FileNotFoundError):  # it has just exited, and is counted with its parent
                used += cpu(int(child))
    return used


async def connect_client(port: int, home: Path) -> ClientConnection:
    socket = await connect(f"ws://127.0.0.1:{port}/", compression=None)
    token = (home / "token").read_text().strip()
    await socket.send(json.dumps({"type": "auth", "token": token, "protocol": 1}))
    await socket.recv()
    return socket


async def turn(socket: ClientConnection, session: str) -> float:
    """Run one turn and return its duration."""
    started = time.monotonic()
    await socket.send(json.dumps({"id": 1, "method": "chat.send", "params": {"sessionKey": session, "message": "Go"}}))
    while True:
        frame: Any = json.loads(await socket.recv())
        if frame.get("event") == "chat.final":
            return time.monotonic() - started
        if frame.get("event") == "chat.error" or "error" in frame:
            raise SystemExit(f"a turn failed: {frame}")


async def one_row(url: str, options: LiteralString) -> list[float]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        row = await (await connection.execute(options)).fetchone()
        assert row is not None
        return [float(value) for value in row]


async def measure(server: PostgresServer, workers: int, options: argparse.Namespace, name: str) -> dict[str, float]:
    """Measure one round on a new database."""
    url = server.made(name)
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        gateway, port = await stack.enter_async_context(member("gateway", url, home, options.pause))
        workers_pids = [
            (await stack.enter_async_context(member("worker", url, home, options.pause)))[0] for _ in range(workers)
        ]
        sockets = [await connect_client(port, home) for _ in range(options.sessions)]
        each = max(1, options.turns // options.sessions)

        async def client(index: int, turns: int) -> list[float]:
            return [await turn(sockets[index], f"s{index}") for _ in range(turns)]

        async def run_all(turns: int) -> list[float]:
            found = await asyncio.gather(*(client(index, turns) for index in range(options.sessions)))
            return sorted(durations for durations_of_client in found for durations in durations_of_client)

        await run_all(WARM_UP_TURNS)

        def used() -> tuple[float, float, float]:
            return cpu(gateway), sum(map(cpu, workers_pids)), cpu(server.pid, children=True)

        (log_before,), before, started = await one_row(url, _WAL_KB), used(), time.monotonic()
        durations = await run_all(each)
        wall, after, (log_after,) = time.monotonic() - started, used(), await one_row(url, _WAL_KB)
        for socket in sockets:
            await socket.close()
    commits, busy = [value / (each + WARM_UP_TURNS) / options.sessions for value in await one_row(url, _TRANSACTIONS)]
    turns = each * options.sessions
    gateway_ms, worker_ms, postgres_ms = (1000 * (now - then) / turns for now, then in zip(after, before, strict=True))
    return {
        "turns/s": turns / wall,
        "gateway CPU ms": gateway_ms,
        "worker CPU ms": worker_ms,
        "Postgres CPU ms": postgres_ms,
        "p50 s": durations[len(durations) // 2],
        "p95 s": durations[int(len(durations) * 0.95)],
        "commits": commits,
        "WAL KB": (log_after - log_before) / turns,
        "in transaction ms": busy,
    }


async def main(options: argparse.Namespace) -> None:
    found: dict[int, list[dict[str, float]]] = {workers: [] for workers in options.workers}
    with PostgresServer(safe=not options.unsafe) as server:
        for number in range(options.rounds):
            for workers in options.workers:  # interleaved, so that noise affects all of them
                found[workers].append(await measure(server, workers, options, f"b{number}w{workers}"))
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
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
        parser.add_argument("--turns", type=int, default=400, help="turns per round")
        parser.add_argument("--sessions", type=int, default=32, help="concurrent clients, each with its own session")
        parser.add_argument("--rounds", type=int, default=3)
        parser.add_argument("--pause", type=float, default=0.0, help="seconds between two words")
        parser.add_argument("--unsafe", action="store_true", help="turn off fsync in Postgres")
        asyncio.run(main(parser.parse_args()))
