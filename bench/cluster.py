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
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import LiteralString

import psycopg
from websockets.asyncio.client import ClientConnection

from atlas_agents import Agent, Atlas
from atlas_agents.dispatch.cluster import Cluster
from atlas_agents.gateway.cluster import ClusterMembership, run_worker
from atlas_agents.gateway.server import Gateway, run
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.storage.history_cache import HistoryCache
from atlas_agents.storage.postgres import PostgresStore
from harness import ROOT, Model, cpu_seconds_of_tree, look, owner_token, print_line, run_turn, sign_in, started
from tables import medians, table

sys.path.append(str(ROOT / "tests"))
from stores.postgres_server import PostgresServer

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


async def serve(
    role: str, url: str, home: Path, pause: float, make_store: Callable[..., PostgresStore] = PostgresStore
) -> None:
    """Be a gateway or a worker of the cluster."""
    cluster = Cluster(url)
    store = make_store(url, transaction_hook=cluster.enqueue_and_notify, history_cache=HistoryCache())
    await store.open()
    atlas = Atlas([Agent("assistant", model=Model(pause), tools=[look])], store=store, dispatcher=cluster)
    if role == "worker":
        await run_worker(atlas, cluster, 1.0, lambda: print_line(0))
    else:
        membership = ClusterMembership(cluster, executes_runs=False)
        gateway = Gateway(atlas, GatewaySettings(home=home, port=0), membership=membership)
        await gateway.serve(lambda it: print_line(it.port))
    await store.close()


async def one_row(url: str, statement: LiteralString) -> list[float]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        row = await (await connection.execute(statement)).fetchone()
        assert row is not None
        return [float(value) for value in row]


async def execute(url: str, *statements: LiteralString) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        for statement in statements:
            await connection.execute(statement)


class LockSampler:
    """Context manager that samples how many advisory locks the stores hold and wait for."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._samples: list[tuple[int, int]] = []

    async def __aenter__(self) -> "LockSampler":
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        async with await psycopg.AsyncConnection.connect(self._url, autocommit=True) as connection:
            while True:
                row = await (await connection.execute(_LOCKS_HELD)).fetchone()
                self._samples.append(row or (0, 0))
                await asyncio.sleep(_SAMPLE_INTERVAL)

    def milliseconds(self, wall: float, turns: float) -> tuple[float, float]:
        """Return the time per turn during which locks were held, and during which transactions waited for one."""
        held, awaited = (statistics.fmean(values) for values in zip(*self._samples, strict=True))
        return 1000 * held * wall / turns, 1000 * awaited * wall / turns


def read_statements(log: str) -> Counter[str]:
    """Count the statements in a server log, without their values. One message may contain several statements."""
    found: Counter[str] = Counter()
    for entry in _LOG_ENTRY.split(log):
        if (match := _LOGGED_STATEMENT.match(entry)) is not None:
            for statement in filter(None, map(str.strip, match[1].split(";"))):
                found[_VALUE.sub("?", " ".join(statement.split()))[:110]] += 1
    return found


class Clients:
    """Clients that run one turn after the other, each in a session of its own."""

    def __init__(self, sockets: Sequence[ClientConnection]) -> None:
        self._sockets = sockets

    async def run(self, turns: int) -> list[float]:
        """Run some turns per client; return their durations, shortest first."""
        durations = await asyncio.gather(*(self._run_client(number, turns) for number in range(len(self._sockets))))
        return sorted([each for of_client in durations for each in of_client])

    async def _run_client(self, number: int, turns: int) -> list[float]:
        durations: list[float] = []
        for _ in range(turns):
            begin = time.monotonic()
            frames = await run_turn(self._sockets[number], f"s{number}")
            durations.append(frames[-1][0] - begin)
        return durations


async def measure(
    server: PostgresServer, workers: int, options: argparse.Namespace, name: str, checkout: Path
) -> dict[str, float]:
    """Measure one round on a new database."""
    url = server.made(name)
    each = max(1, options.turns // options.sessions)
    turns = each * options.sessions
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        roles = ("gateway", *("worker",) * workers)
        members = [
            await stack.enter_async_context(started("serve", role, url, home, options.pause, checkout=checkout))
            for role in roles
        ]
        port, *_ = [await member.read_line() for member in members]
        sockets = [await sign_in(port, owner_token(home)) for _ in range(options.sessions)]
        clients = Clients([await stack.enter_async_context(socket) for socket in sockets])
        await clients.run(WARM_UP_TURNS)

        def used() -> tuple[float, float, float]:
            gateway, *others = [member.cpu() for member in members]
            return gateway, sum(others), cpu_seconds_of_tree(server.pid)

        async with LockSampler(url) as sampler:
            (wal_start,), before, begin = await one_row(url, _WAL_BYTES), used(), time.monotonic()
            durations = await clients.run(each)
            wall, after, (wal_end,) = time.monotonic() - begin, used(), await one_row(url, _WAL_BYTES)
        title = f"{workers} workers, {checkout}"
        if options.wal:
            print_wal(await read_wal(server, url, wal_start, wal_end), turns, title)
        statements = await count_statements(server, url, clients.run)
        if options.statements:
            print_statements(statements, _LOGGED_TURNS * options.sessions, title)
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


def print_wal(found: dict[str, Counter[str]], turns: int, title: str) -> None:
    total = Counter[str]()
    for each in found.values():
        total.update(each)
    print(f"\nWAL per turn, {title}\n records    bytes   images")
    for name, each in sorted([*found.items(), ("all", total)], key=lambda item: -item[1]["bytes"]):
        print(*(f"{each[column] / turns:8.2f}" for column in ("records", "bytes", "images")), name)


async def count_statements(
    server: PostgresServer, url: str, run_turns: Callable[[int], Awaitable[object]]
) -> Counter[str]:
    """Count the statements of some turns that are run after the measurement, because the log costs time."""
    reload: LiteralString = "SELECT pg_reload_conf(), pg_sleep(0.3)"  # every server process must have read the setting
    await execute(url, "ALTER SYSTEM SET log_line_prefix = '#'", "ALTER SYSTEM SET log_statement = 'all'", reload)
    start = server.log.stat().st_size
    await run_turns(_LOGGED_TURNS)
    text = server.log.read_bytes()[start:].decode(errors="replace")
    await execute(url, "ALTER SYSTEM SET log_statement = 'none'", reload)
    return read_statements(text)


async def main(options: argparse.Namespace) -> None:
    checkouts = {"": ROOT} | ({"before: ": options.against.resolve()} if options.against else {})
    found: dict[str, list[dict[str, float]]] = {}
    with PostgresServer(safe=not options.unsafe) as server:
        # The first change of a page after a checkpoint writes the whole page to the WAL, and autovacuum writes
        # statistics once a minute. Without both, the WAL of a turn does not depend on when it happens.
        await execute(
            server.url,
            "ALTER SYSTEM SET checkpoint_timeout = '1d'",
            "ALTER SYSTEM SET max_wal_size = '16GB'",
            "ALTER SYSTEM SET autovacuum = off",
            "SELECT pg_reload_conf()",
        )
        for number in range(options.rounds):
            for workers in options.workers:  # interleaved, so that noise affects all of them
                for index, (label, checkout) in enumerate(checkouts.items()):
                    row = await measure(server, workers, options, f"b{number}w{workers}c{index}", checkout)
                    found.setdefault(f"{label}{workers}", []).append(row)
    print(table("workers", {label: medians(rounds) for label, rounds in found.items()}))


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
