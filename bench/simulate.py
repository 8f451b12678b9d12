"""What a Postgres can take: simulated workers replay a recorded turn, and sleep where a real one computes or waits.

python bench/simulate.py [--sessions 16 64 256] [--tenants 1 8] [--processes 2] [--seconds 20] [--pause 0.02]
    [--rates 500 5000 100000] [--unsafe]

1. One turn (a message, one governed tool call, fifty words) is made by a real gateway and a real worker. Its commits,
   its reads and the time between them are recorded. `--pause` sets the seconds between two words of the model.
2. Simulated workers in few processes replay the turn with new ids, through the real store, the real queue and the real
   notifications, and sleep for the recorded times, so that many turns at a time cost little but Postgres' own work.
   Each session starts its next turn when the last one has ended.
3. From the CPU and the WAL of Postgres per turn, the needs of higher rates are calculated. Only what is printed under
   "measured" was measured.
"""

import argparse
import asyncio
import functools
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec

from atlas_agents.core import store as records
from atlas_agents.core.messages import new_id
from atlas_agents.storage.sql.tables import Query
from cluster import (
    Cluster,
    HistoryCache,
    LockSampler,
    PostgresServer,
    PostgresStore,
    one_row,
    run,
    serve,
)
from harness import Process, cpu_seconds_of_tree, owner_token, print_line, run_turn, sign_in, started
from tables import table

_SESSION = "recorded-session"
_WARM_UP_TURNS = 3
_TOTALS = """SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn) / 1024,
(SELECT sum(xact_commit) FROM pg_stat_database WHERE datname = current_database()),
(SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal'), pg_database_size(current_database()) / 1024,
(SELECT count(*) FROM pg_stat_activity WHERE datname = current_database())"""
_WARM_UP_SECONDS = 4.0
_UTILISATION = 0.6
"""Share of the cores that a plan uses; the rest is for peaks, vacuum, replication and backups."""
_SLOTS = 64
"""Turns that one worker process runs at a time."""


class Operation(msgspec.Struct):
    """A commit or a read of the recorded turn, with the time at which it began."""

    at: float
    writes: list[records.Write] = []
    sql: str = ""
    values: dict[str, Any] = {}


class RecordingStore(PostgresStore):
    """A Postgres store that appends each commit and read to a file."""

    def __init__(self, *arguments: Any, path: Path, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._path = path

    async def commit(self, tenant: str, writes: Sequence[records.Write]) -> list[Any]:
        self._record(Operation(time.time(), list(writes)))
        return await super().commit(tenant, writes)

    async def fetch(self, query: Query) -> list[Any]:
        self._record(Operation(time.time(), sql=query.sql, values=dict(query.values)))
        return await super().fetch(query)

    def _record(self, operation: Operation) -> None:
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(operation) + b"\n")


async def record_turn(server: PostgresServer, pause: float) -> list[Operation]:
    """Return the commits and reads of one turn in the order of their times."""
    url = server.made("recording")
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        members = [
            await stack.enter_async_context(started("serve", role, url, home, pause)) for role in ("gateway", "worker")
        ]
        port, _ = [await member.read_line() for member in members]
        socket = await sign_in(port, owner_token(home))
        for _ in range(_WARM_UP_TURNS):
            await run_turn(socket, _SESSION)
        begin = time.time()
        await run_turn(socket, _SESSION)
        await socket.close()
        lines = b"".join([(home / f"{role}.jsonl").read_bytes() for role in ("gateway", "worker")]).splitlines()
    found = sorted([msgspec.json.decode(line, type=Operation) for line in lines], key=lambda each: each.at)
    found = [each for each in found if each.at >= begin and not _is_maintenance(each)]
    first = next(n for n, each in enumerate(found) if _accepted(each.writes))
    return found[first:]


def _is_maintenance(operation: Operation) -> bool:
    return any(isinstance(write, records.RefreshIndexes) for write in operation.writes)


def _accepted(writes: Sequence[records.Write]) -> records.AcceptRun | None:
    return next((write for write in writes if isinstance(write, records.AcceptRun)), None)


class RecordedTurn:
    """The operations of a turn, to be written again with other ids."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = operations
        accepted = _accepted(operations[0].writes)
        assert accepted is not None
        self._run_id = accepted.id
        self._texts = [msgspec.json.encode(each).decode() for each in operations]

    def delays(self) -> list[float]:
        """Return the seconds before each operation."""
        times = [each.at for each in self._operations]
        return [0.0, *(max(0.0, now - then) for then, now in itertools.pairwise(times))]

    def operations(self, tenant: str, session: str, run_id: str) -> list[Operation]:
        made: list[Operation] = []
        for number, text in enumerate(self._texts):
            text = text.replace(self._run_id, run_id).replace(_SESSION, session)
            each = msgspec.json.decode(text, type=Operation)
            each.writes = [_renamed(write, f"{run_id}.{number}.{n}") for n, write in enumerate(each.writes)]
            if "tenant" in each.values:
                each.values["tenant"] = tenant
            made.append(each)
        return made


def _renamed(write: records.Write, id: str) -> records.Write:
    """Give a message an id that is new in its session, and drop the idempotency key."""
    if isinstance(write, records.AddMessage):
        return msgspec.structs.replace(write, id=id)
    if isinstance(write, records.AcceptRun):
        return msgspec.structs.replace(write, idempotency_key="")
    return write


class Measured(msgspec.Struct):
    """What one process of simulated workers measured."""

    seconds: float
    cpu: float
    turns: list[float]
    latencies: list[float]
    failed: list[str]


class SimulatedTurn:
    """A run that sleeps instead of computing."""

    epoch = 1

    def __init__(self, work: Any) -> None:
        self.task = asyncio.ensure_future(work)

    def cancel(self) -> None:
        self.task.cancel()

    async def wait_ended(self) -> None:
        await asyncio.wait([self.task])


class SimulatedTenant:
    """Clients and a worker of one tenant in this process."""

    def __init__(self, url: str, tenant: str, recorded: RecordedTurn, latencies: list[float]) -> None:
        self.tenant = tenant
        self._recorded = recorded
        self._delays = recorded.delays()
        self._latencies = latencies
        self.turns: list[float] = []
        self.cluster = Cluster(url, tenant=tenant, concurrency=100_000, heartbeat_timeout=60.0)
        self.cluster.serve(self)
        self.store = PostgresStore(
            url, transaction_hook=self.cluster.enqueue_and_notify, history_cache=HistoryCache(), connections=4
        )
        self._running: dict[str, SimulatedTurn] = {}

    async def client(self, session: str) -> None:
        """Start turns in a session, one after the other."""
        await asyncio.sleep(sum(self._delays) * (hash(session) % 1000) / 1000)  # so that they do not start together
        while True:
            started, run_id = time.monotonic(), new_id()
            accept = self._recorded.operations(self.tenant, session, run_id)[0]
            results = await self._commit(accept.writes)
            row = next(each for each in results if isinstance(each, records.RunRow))
            await self.cluster.submit(row, lambda _: None)
            self.turns.append(time.monotonic() - started)

    async def _commit(self, writes: Sequence[records.Write]) -> list[Any]:
        started = time.monotonic()
        results = await self.store.commit(self.tenant, writes)
        self._latencies.append(time.monotonic() - started)
        return results

    async def _replay(self, row: records.RunRow) -> None:
        operations = self._recorded.operations(self.tenant, row.session, row.id)
        for delay, each in list(zip(self._delays, operations, strict=True))[1:]:
            await asyncio.sleep(delay)
            if each.writes:
                await self._commit(each.writes)
            else:
                await self.store.fetch(Query(each.sql, each.values))

    async def run_row(self, run_id: str) -> records.RunRow | None:
        return await self.store.run(self.tenant, run_id)

    async def resume_run(self, row: records.RunRow) -> SimulatedTurn | None:
        self._running[row.id] = turn = SimulatedTurn(self._replay(row))
        turn.task.add_done_callback(lambda _: self._running.pop(row.id))
        return turn

    def running_turn(self, run_id: str) -> SimulatedTurn | None:
        return self._running.get(run_id)

    async def orphaned_runs(self) -> list[records.RunRow]:
        return []

    async def request_stop(self, run_id: str) -> bool:
        return False

    async def deliver_answer(self, approval_id: str) -> None: ...

    async def refresh_job(self, job_id: str) -> None: ...

    async def start_jobs(self) -> None: ...

    async def stop_jobs(self) -> None: ...

    async def recheck(self) -> None: ...


async def simulate(
    url: str, recorded: RecordedTurn, names: Sequence[str], prefix: str, sessions: int, seconds: float
) -> None:
    """Run the simulated tenants of one process: print a line when they run, and the results at the end."""
    latencies: list[float] = []

    async def ignore(*_: Any) -> None: ...

    async with AsyncExitStack() as stack:
        tenants = [SimulatedTenant(url, name, recorded, latencies) for name in names]
        for each in tenants:
            await each.store.open()
            stack.push_async_callback(each.store.close)
            await stack.enter_async_context(each.cluster.join())
            await stack.enter_async_context(each.cluster.run_worker(ignore, ignore))
        print_line("ready")
        clients = [asyncio.create_task(tenants[n % len(tenants)].client(f"{prefix}s{n}")) for n in range(sessions)]
        await asyncio.sleep(_WARM_UP_SECONDS + sum(recorded.delays()))
        latencies.clear()
        for each in tenants:
            each.turns.clear()
        print_line("measuring")
        used, begin = time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        turns = [duration for each in tenants for duration in each.turns]
        failed = [repr(client.exception()) for client in clients if client.done()]
        cpu = time.process_time() - used
        print_line(Measured(time.monotonic() - begin, cpu, turns, list(latencies), failed))
        os._exit(0)


async def measure(
    server: PostgresServer, path: Path, tenants: int, sessions: int, options: argparse.Namespace
) -> dict[str, float]:
    """Measure one combination on a new database."""
    url = server.made(f"t{tenants}s{sessions}")
    store = PostgresStore(url)
    await store.open()
    await store.close()
    async with AsyncExitStack() as stack:
        processes: list[Process] = []
        for number in range(options.processes):
            names = [f"t{n}" for n in range(tenants) if tenants < options.processes or n % options.processes == number]
            share = (sessions // options.processes, options.seconds)
            arguments = ("simulate", url, path, ",".join(names), f"p{number}", *share)
            processes.append(await stack.enter_async_context(started(*arguments)))
            await processes[-1].read_line()
        for each in processes:
            await each.read_line()
        async with LockSampler(url) as sampler:
            before, used, begin = await one_row(url, _TOTALS), cpu_seconds_of_tree(server.pid), time.monotonic()
            found = [msgspec.convert(await each.read_line(), Measured) for each in processes]
            wall, used = time.monotonic() - begin, cpu_seconds_of_tree(server.pid) - used
            after = await one_row(url, _TOTALS)
    if failed := [each for result in found for each in result.failed]:
        raise SystemExit(f"simulated clients failed: {failed[:3]}")
    turns = sorted([each for result in found for each in result.turns])
    latencies = sorted([each for result in found for each in result.latencies])
    made = len(latencies) / options.commits  # turns, of which some are only begun or only ended in this time
    held, awaited = sampler.milliseconds(wall, made)
    wal, transactions, syncs, size = [(now - then) / made for then, now in zip(before[:4], after[:4], strict=True)]
    return {
        "turns/s": made / statistics.fmean([result.seconds for result in found]),
        "turn p50 s": turns[len(turns) // 2],
        "turn p99 s": turns[int(len(turns) * 0.99)],
        "commit p50 ms": 1000 * latencies[len(latencies) // 2],
        "commit p99 ms": 1000 * latencies[int(len(latencies) * 0.99)],
        "Postgres CPU ms": 1000 * used / made,
        "Postgres cores": used / wall,
        "simulator CPU ms": 1000 * sum(result.cpu for result in found) / made,
        "transactions": transactions,
        "syncs": syncs,
        "WAL KB": wal,
        "kept KB": size,
        "lock ms": held,
        "lock wait ms": awaited,
        "connections": after[4],
    }


def plan(rate: int, row: dict[str, float], options: argparse.Namespace) -> dict[str, float]:
    """Return what a rate needs, calculated from the measured cost per turn."""
    turns = rate * options.turn_seconds
    return {
        "Postgres cores": rate * row["Postgres CPU ms"] / 1000 / _UTILISATION,
        "WAL MB/s": rate * row["WAL KB"] / 1024,
        "WAL syncs/s, at most": rate * row["syncs"],
        "worker cores": rate * options.worker_ms / 1000 / _UTILISATION,
        "gateway cores": rate * options.gateway_ms / 1000 / _UTILISATION,
        "turns at a time": turns,
        "worker processes": turns / _UTILISATION / _SLOTS,
        "kept GB/day": rate * row["kept KB"] * 86400 / 1024**2,
    }


async def main(options: argparse.Namespace) -> None:
    with PostgresServer(safe=not options.unsafe) as server, tempfile.TemporaryDirectory() as folder:
        operations = await record_turn(server, options.pause)
        path = Path(folder) / "turn.json"
        path.write_bytes(msgspec.json.encode(operations))
        commits = [each for each in operations if each.writes]
        options.commits = len(commits)
        seconds = operations[-1].at - operations[0].at
        print(f"recorded turn: {len(commits)} commits, {len(operations) - len(commits)} reads, {seconds:.2f} s\n")
        rows = {
            f"{tenants}, {sessions}": await measure(server, path, tenants, sessions, options)
            for tenants in options.tenants
            for sessions in options.sessions
        }
    print("Measured:\n\n" + table("tenants, turns at a time", rows))
    cheapest = min(rows.values(), key=lambda row: row["Postgres CPU ms"])
    print(f"\nCalculated, at {_UTILISATION:.0%} of the cores, from {cheapest['Postgres CPU ms']:.1f} ms per turn:\n")
    print(table("turns/s", {f"{rate:,}": plan(rate, cheapest, options) for rate in options.rates}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        role, url, home, pause = sys.argv[2:]
        make_store = functools.partial(RecordingStore, path=Path(home) / f"{role}.jsonl")
        run(serve(role, url, Path(home), float(pause), make_store))
    elif sys.argv[1:2] == ["simulate"]:
        url, path, names, prefix, sessions, duration = sys.argv[2:]
        recording = RecordedTurn(msgspec.json.decode(Path(path).read_bytes(), type=list[Operation]))
        asyncio.run(simulate(url, recording, names.split(","), prefix, int(sessions), float(duration)))
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--sessions", type=int, nargs="+", default=[16, 64, 256], help="turns at a time")
        parser.add_argument("--tenants", type=int, nargs="+", default=[1, 8])
        parser.add_argument("--processes", type=int, default=2, help="processes of simulated workers")
        parser.add_argument("--seconds", type=float, default=20.0, help="duration of each measurement")
        parser.add_argument("--pause", type=float, default=0.02, help="seconds between two words of the model")
        parser.add_argument("--rates", type=int, nargs="+", default=[500, 5000, 100_000], help="turns/s to calculate")
        parser.add_argument("--turn-seconds", type=float, default=10.0, help="length of a turn in the calculation")
        parser.add_argument("--worker-ms", type=float, default=7.0, help="CPU per turn, from bench/cluster.py")
        parser.add_argument("--gateway-ms", type=float, default=2.7, help="CPU per turn, from bench/cluster.py")
        parser.add_argument("--unsafe", action="store_true", help="turn off fsync in Postgres")
        asyncio.run(main(parser.parse_args()))
