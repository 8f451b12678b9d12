"""Throughput and cost of a cluster: turns per second with one gateway and 1, 2, 4 … workers on one Postgres.

python bench/cluster.py [--workers 1 2 4] [--turns 400] [--sessions 32] [--rounds 3] [--pause 0] [--unsafe]
    [--against PATH] [--statements] [--wal]

A turn is a message, one governed tool call and an answer of fifty words. The model is a function in the worker process,
so that only our code is measured. Clients, gateway, workers and Postgres share this machine: the turns per second
depend on its cores; plan with the CPU time per turn of each process. Postgres syncs every commit to disk, unless
`--unsafe` is set. `--pause` sets the seconds between two words, as with a real model. `--against` measures another
checkout in the same run, in alternating rounds. `--statements` lists what a turn sends to Postgres, and `--wal` what
Postgres writes to its WAL for a turn, by table or index.

Three figures describe the database: `statements` is the number per turn, from the server's log; `lock ms` is the time
per turn during which a transaction holds an exclusive lock of a tenant or its audit chain, from samples of `pg_locks`;
`WAL KB` is without the pages that the first changes after a checkpoint write, because there is no checkpoint meanwhile.
"""

import argparse
import asyncio
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import LiteralString

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
_WAL_BYTES = "SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn"
_TRANSACTIONS = """
SELECT sum(xact_commit), sum(active_time + idle_in_transaction_time) FROM pg_stat_database
WHERE datname = current_database()"""
"""Commits and milliseconds in transactions. Sessions report them when they end, so they cover a whole round."""
_LOCKS_HELD = """
SELECT count(*) FILTER (WHERE granted AND mode = 'ExclusiveLock'), count(*) FILTER (WHERE NOT granted)
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND a.application_name = 'atlas-agents' AND l.database =
    (SELECT oid FROM pg_database WHERE datname = current_database())"""
"""Advisory locks of stores, held and awaited, without those of sessions, which have two keys. Locks of members have
other connections."""
_SAMPLE_INTERVAL = 0.01
_LOGGED_TURNS = 4
_LOG_ENTRY = re.compile(r"^#(?=LOG|DETAIL|ERROR|STATEMENT|HINT|WARNING|CONTEXT)", re.MULTILINE)
_LOGGED_STATEMENT = re.compile(r"LOG:\s+(?:statement|execute [^:]*): (.*)", re.DOTALL)
_VALUE = re.compile(r"'[^']*'|\$?-?\b\d+\b")
_WAL_RECORD = re.compile(r"rmgr: (\S+).*?len \(rec/tot\): +(\d+)/ *(\d+), tx:.*?desc: (\S+)(?:.*?rel \d+/\d+/(\d+))?")
_RELATIONS = "SELECT pg_relation_filenode(oid), relname FROM pg_class WHERE pg_relation_filenode(oid) IS NOT NULL"
ROOT = Path(__file__).parent.parent


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
async def member(
    role: str, url: str, home: Path, pause: float, checkout: Path
) -> AsyncGenerator[tuple[int, int], None]:
    """Run a member of a checkout in a process and yield (process id, port) once it is ready."""
    command = (sys.executable, __file__, "serve", role, url, str(home), str(pause))
    environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=environment)
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
            with suppress(FileNotFoundError, ProcessLookupError):  # it has just exited, and is counted with its parent
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
        frame = await socket.recv(decode=True)  # not parsed, because the clients use the same cores
        if '"event":"chat.final"' in frame:
            return time.monotonic() - started
        if '"event":"chat.error"' in frame or '"error":{' in frame:
            raise SystemExit(f"a turn failed: {frame}")


async def one_row(url: str, options: LiteralString) -> list[float]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        row = await (await connection.execute(options)).fetchone()
        assert row is not None
        return [float(value) for value in row]


class LockSampler:
    """Samples how many advisory locks the stores hold and wait for."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._samples: list[tuple[int, int]] = []

    async def run(self) -> None:
        async with await psycopg.AsyncConnection.connect(self._url, autocommit=True) as connection:
            while True:
                row = await (await connection.execute(_LOCKS_HELD)).fetchone()
                self._samples.append(row or (0, 0))
                await asyncio.sleep(_SAMPLE_INTERVAL)

    def milliseconds(self, wall: float, turns: int) -> tuple[float, float]:
        """Return the time per turn during which locks were held, and during which transactions waited for one."""
        held, awaited = (statistics.fmean(values) for values in zip(*self._samples, strict=True))
        return 1000 * held * wall / turns, 1000 * awaited * wall / turns


async def set_statement_log(url: str, value: LiteralString) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("ALTER SYSTEM SET log_line_prefix = '#'")
        await connection.execute("ALTER SYSTEM SET log_statement = " + value)
        await connection.execute("SELECT pg_reload_conf()")
        await connection.execute("SELECT pg_sleep(0.3)")  # every server process must have read the setting


def read_statements(log: str) -> Counter[str]:
    """Count the statements in a server log, without their values. One message may contain several statements."""
    found: Counter[str] = Counter()
    for entry in _LOG_ENTRY.split(log):
        if (match := _LOGGED_STATEMENT.match(entry)) is not None:
            for statement in filter(None, map(str.strip, match[1].split(";"))):
                found[_VALUE.sub("?", " ".join(statement.split()))[:110]] += 1
    return found


async def measure(
    server: PostgresServer, workers: int, options: argparse.Namespace, name: str, checkout: Path
) -> dict[str, float]:
    """Measure one round on a new database."""
    url = server.made(name)
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        gateway, port = await stack.enter_async_context(member("gateway", url, home, options.pause, checkout))
        workers_pids = [
            (await stack.enter_async_context(member("worker", url, home, options.pause, checkout)))[0]
            for _ in range(workers)
        ]
        sockets = [await connect_client(port, home) for _ in range(options.sessions)]
        each = max(1, options.turns // options.sessions)
        turns = each * options.sessions

        async def client(index: int, turns: int) -> list[float]:
            return [await turn(sockets[index], f"s{index}") for _ in range(turns)]

        async def run_all(turns: int) -> list[float]:
            found = await asyncio.gather(*(client(index, turns) for index in range(options.sessions)))
            return sorted(durations for durations_of_client in found for durations in durations_of_client)

        await run_all(WARM_UP_TURNS)

        def used() -> tuple[float, float, float]:
            return cpu(gateway), sum(map(cpu, workers_pids)), cpu(server.pid, children=True)

        sampling = asyncio.create_task((sampler := LockSampler(url)).run())
        (wal_start,), before, started = await one_row(url, _WAL_BYTES), used(), time.monotonic()
        durations = await run_all(each)
        wall, after, (wal_end,) = time.monotonic() - started, used(), await one_row(url, _WAL_BYTES)
        sampling.cancel()
        await asyncio.wait([sampling])
        if options.wal:
            print_wal(await read_wal(server, url, wal_start, wal_end), turns, workers, checkout)
        statements = await count_statements(server, url, run_all)
        if options.statements:
            print_statements(statements, _LOGGED_TURNS * options.sessions, f"{workers} workers, {checkout}")
        for socket in sockets:
            await socket.close()
    others = (_LOGGED_TURNS + WARM_UP_TURNS) * options.sessions
    commits, busy = [value / (turns + others) for value in await one_row(url, _TRANSACTIONS)]
    lock_ms, wait_ms = sampler.milliseconds(wall, turns)
    gateway_ms, worker_ms, postgres_ms = (1000 * (now - then) / turns for now, then in zip(after, before, strict=True))
    return {
        "turns/s": turns / wall,
        "gateway CPU ms": gateway_ms,
        "worker CPU ms": worker_ms,
        "Postgres CPU ms": postgres_ms,
        "p50 s": durations[len(durations) // 2],
        "p95 s": durations[int(len(durations) * 0.95)],
        "commits": commits,
        "WAL KB": (wal_end - wal_start) / turns / 1024,
        "in transaction ms": busy,
        "statements": statements.total() / _LOGGED_TURNS / options.sessions,
        "lock ms": lock_ms,
        "lock wait ms": wait_ms,
    }


def print_statements(statements: Counter[str], turns: int, title: str) -> None:
    print(f"\nstatements per turn, {title}")
    for statement, count in statements.most_common(60):
        print(f"{count / turns:7.2f}  {statement}")


async def read_wal(server: PostgresServer, url: str, start: float, end: float) -> dict[str, Counter[str]]:
    """Count records, their bytes and those of page images, by table or index and kind of record."""
    async with await psycopg.AsyncConnection.connect(url) as connection:
        names = dict(await (await connection.execute(_RELATIONS)).fetchall())
    found: dict[str, Counter[str]] = {}
    for line in server.dump_wal(*[f"{int(at) >> 32:X}/{int(at) & 0xFFFFFFFF:X}" for at in (start, end)]).splitlines():
        if (match := _WAL_RECORD.match(line)) is not None:
            manager, length, total, kind, relation = match.groups()
            name = names.get(int(relation), relation) if relation else "-"
            counts = {"records": 1, "bytes": int(length), "images": int(total) - int(length)}
            found.setdefault(f"{name} {manager} {kind}", Counter()).update(counts)
    return found


def print_wal(found: dict[str, Counter[str]], turns: int, workers: int, checkout: Path) -> None:
    total = Counter[str]()
    for each in found.values():
        total.update(each)
    print(f"\nWAL per turn, {workers} workers, {checkout}\n records    bytes   images")
    for name, each in sorted([*found.items(), ("all", total)], key=lambda item: -item[1]["bytes"]):
        print(*(f"{each[column] / turns:8.2f}" for column in ("records", "bytes", "images")), name)


async def count_statements(
    server: PostgresServer, url: str, run_all: Callable[[int], Awaitable[list[float]]]
) -> Counter[str]:
    """Count the statements of some turns that are run after the measurement, because the log costs time."""
    await set_statement_log(url, "'all'")
    start = server.log.stat().st_size
    await run_all(_LOGGED_TURNS)
    with server.log.open("rb") as log:
        log.seek(start)
        text = log.read().decode(errors="replace")
    await set_statement_log(url, "'none'")
    return read_statements(text)


async def put_off_checkpoints(url: str) -> None:
    """Make no checkpoint during the measurement: the first change of a page after one writes the whole page to the WAL,
    so the WAL of a turn would depend on when it happens."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("ALTER SYSTEM SET checkpoint_timeout = '1d'")
        await connection.execute("ALTER SYSTEM SET max_wal_size = '16GB'")
        await connection.execute("SELECT pg_reload_conf()")


async def main(options: argparse.Namespace) -> None:
    checkouts = {"": ROOT} | ({"before: ": options.against.resolve()} if options.against else {})
    found: dict[str, list[dict[str, float]]] = {}
    with PostgresServer(safe=not options.unsafe) as server:
        await put_off_checkpoints(server.url)
        for number in range(options.rounds):
            for workers in options.workers:  # interleaved, so that noise affects all of them
                for index, (label, checkout) in enumerate(checkouts.items()):
                    name = f"b{number}w{workers}c{index}"
                    row = await measure(server, workers, options, name, checkout)
                    found.setdefault(f"{label}{workers}", []).append(row)
    names = list(next(iter(found.values()))[0])
    print("workers | " + " | ".join(names))
    for label, rounds in found.items():
        print(f"{label} | " + " | ".join(f"{statistics.median([each[name] for each in rounds]):.2f}" for name in names))


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
        parser.add_argument("--against", type=Path, help="another checkout to measure in the same run")
        parser.add_argument("--statements", action="store_true", help="list the statements of a turn")
        parser.add_argument("--wal", action="store_true", help="list what a turn writes to the WAL")
        parser.add_argument("--unsafe", action="store_true", help="turn off fsync in Postgres")
        asyncio.run(main(parser.parse_args()))
