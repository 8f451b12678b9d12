"""Kills cluster processes at random while turns run: `chaos.py TURNS SEED` prints lost and repeated side effects,
clients without an answer, and how long other workers took to resume the turns of a killed worker.

Starts two gateways, three workers and Postgres. Side effects are read from a file outside of the database, outcomes of
turns from the database.
"""

import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from websockets.exceptions import WebSocketException

HERE = Path(__file__).parent
sys.path += [str(HERE.parent), str(HERE.parent / "gateway")]  # before the imports of helpers, hence E402 below

from gateway_client import Client  # noqa: E402
from member_processes import member  # noqa: E402
from processes import Process, connect_process  # noqa: E402

from atlas_agents.storage.postgres import PostgresStore  # noqa: E402
from checks import TIMEOUT  # noqa: E402
from stores.postgres_server import PostgresServer  # noqa: E402

ROLES = ("gateway", "gateway", "worker", "worker", "worker")
_TERMINAL_EVENTS = ("chat.final", "chat.error")
_ENDED = ("done", "failed", "cancelled")
_MAX_SILENCE = 30.0
"""Seconds after which a client without a terminal event counts as silent if its run has ended."""
_RETRIABLE = (OSError, WebSocketException, TimeoutError, AssertionError)


class Report(msgspec.Struct):
    """Result of a chaos run. `lost`, `repeated`, `orphaned`, `silent` and `failed` must be empty."""

    turns: int = 0
    kills: dict[str, int] = {}
    lost: int = 0
    repeated: int = 0
    orphaned: int = 0
    silent: int = 0
    """Clients that were connected and did not receive the terminal event of a run that had ended."""
    failed: list[str] = []
    unknown: int = 0
    """Calls that were running in a killed process; expected."""
    slowest: float = 0.0
    """Seconds from the message to the terminal event, of the slowest turn."""
    takeovers: int = 0
    """How often another process resumed a turn after a kill."""
    takeover_p50: float = 0.0
    takeover_max: float = 0.0
    """Seconds from the kill to the takeover."""
    meanwhile: list[str] = []
    """Further kills during the slowest takeover."""


class ChaosRun:
    """One chaos run."""

    def __init__(self, server: PostgresServer, home: Path, turns: int, seed: int) -> None:
        self._server = server
        self._home = home
        self._turns = turns
        self._random = random.Random(seed)
        self._members: list[tuple[Process, AsyncExitStack] | None] = [None] * len(ROLES)
        self._run_ids: list[str] = []
        self._kills: list[tuple[float, str]] = []
        """Time in milliseconds and role of each kill."""
        self.report = Report(turns, {})

    async def run(self, kills: int, delay: float) -> Report:
        """Send all turns at random times, and kill this many processes meanwhile."""
        for index in range(len(ROLES)):
            await self._start(index)
        try:
            begins = sorted([self._random.uniform(0, kills * delay) for _ in range(self._turns)])
            turns = [asyncio.create_task(self._turn(n, start)) for n, start in enumerate(begins)]
            for _ in range(kills):
                await asyncio.sleep(self._random.uniform(0.5, 1.5) * delay)
                await self._kill()
            await asyncio.gather(*turns)
            await self._evaluate()
        finally:
            for member_ in self._members:
                if member_ is not None:
                    await member_[1].aclose()
        return self.report

    async def _start(self, index: int) -> None:
        stack = AsyncExitStack()
        self._members[index] = (await stack.enter_async_context(member(ROLES[index], self._server, self._home)), stack)

    async def _kill(self) -> None:
        index = self._random.randrange(len(ROLES) + 1)
        name = "postgres" if index == len(ROLES) else ROLES[index]
        self.report.kills[name] = self.report.kills.get(name, 0) + 1
        self._kills.append((time.time() * 1000, name))
        if name == "postgres":
            await asyncio.to_thread(self._server.stop)
            await asyncio.to_thread(self._server.start)
            return
        member_, self._members[index] = self._members[index], None
        assert member_ is not None
        await member_[0].kill()
        await member_[1].aclose()
        await self._start(index)

    async def _turn(self, n: int, start: float) -> None:
        """Send a message to any gateway until it is acknowledged, and follow its events, at any gateway, to the end."""
        await asyncio.sleep(start)
        started, run_id, frames = time.monotonic(), "", list[dict[str, Any]]()
        session = f"s{n % 20}"
        while not (ends := [frame for frame in frames if frame["event"] in _TERMINAL_EVENTS]):
            gateways = [
                member_[0] for index, member_ in enumerate(self._members) if member_ and ROLES[index] == "gateway"
            ]
            with suppress(*_RETRIABLE):
                async with connect_process(self._random.choice(gateways)) as client:
                    if not run_id:
                        params = {"sessionKey": session, "message": f"turn{n}", "idempotencyKey": f"k{n}"}
                        async with asyncio.timeout(TIMEOUT):
                            run_id = (await client.get("chat.send", **params))["runId"]
                    if not await self._receive(client, session, run_id, frames):
                        break
            await asyncio.sleep(0.2)
        self._run_ids.append(run_id)
        if not ends or ends[0]["event"] != "chat.final":
            self.report.failed.append(f"turn{n}: {ends}")
        self.report.slowest = max(self.report.slowest, round(time.monotonic() - started, 1))

    async def _receive(self, client: Client, session: str, run_id: str, frames: list[dict[str, Any]]) -> bool:
        """Append the further frames of a run; False if its end did not arrive although it was there."""
        count = len(frames)
        try:
            since = frames[-1]["data"]["seq"] if frames else 0
            await client.get("sessions.subscribe", sessionKey=session, runs={run_id: since})
            while not any(frame["event"] in _TERMINAL_EVENTS for frame in client.events(run_id)):
                try:
                    async with asyncio.timeout(_MAX_SILENCE):
                        await client.next()
                except TimeoutError:
                    waited = await client.get("chat.wait", runId=run_id, timeoutMs=0)
                    received = [frame["event"] for frame in client.events(run_id)]
                    if waited["status"] in _ENDED and not set(received) & set(_TERMINAL_EVENTS):
                        self.report.silent += 1
                        return False
            return True
        finally:
            frames[count:] = client.events(run_id)

    async def _evaluate(self) -> None:
        lines = (self._home / "effects").read_text().splitlines()
        effects = Counter([line.split(" ", 1)[1] for line in lines])
        expected = {f"turn{n} {step}" for n in range(self._turns) for step in (1, 2, 3)}
        store = PostgresStore(self._server.url)
        await store.open()
        self.report.orphaned = len(await store.open_runs())
        audit = [row.entry for row in await store.audit("default")]
        self.report.unknown = sum(b'"unknown"' in entry for entry in audit)
        durations = sorted([each for id in self._run_ids for each in await self._takeovers(store, id)])
        await store.close()
        self.report.takeovers = len(durations)
        if durations:
            self.report.takeover_p50 = round(durations[len(durations) // 2][0], 1)
            self.report.takeover_max, begun = round(durations[-1][0], 1), durations[-1][1]
            during = [(at - begun, name) for at, name in self._kills if 0 <= at - begun <= durations[-1][0] * 1000]
            self.report.meanwhile = [f"{name} after {later / 1000:.1f} s" for later, name in during]
        self.report.repeated = sum(count - 1 for count in effects.values())
        self.report.lost = max(0, len(expected - effects.keys()) - self.report.unknown)

    async def _takeovers(self, store: PostgresStore, run_id: str) -> list[tuple[float, float]]:
        """Return (seconds, start) of each time a run had no owner: from the first kill of a worker after its last step
        until it was resumed."""
        steps = await store.journal("default", run_id)
        pairs = [(last.at, step.at) for last, step in pairwise(steps) if step.kind == "resumed"]
        workers = [at for at, name in self._kills if name == "worker"]
        kills = [(on, next((at for at in workers if last <= at <= on), None)) for last, on in pairs]
        return [((on - at) / 1000, at) for on, at in kills if at is not None]


async def chaos(turns: int, seed: int, *, kills: int, delay: float) -> Report:
    with PostgresServer() as server, tempfile.TemporaryDirectory() as home:
        return await ChaosRun(server, Path(home), turns, seed).run(kills, delay)


if __name__ == "__main__":
    count, number = int(sys.argv[1]), int(sys.argv[2])
    report = asyncio.run(chaos(count, number, kills=count // 10, delay=2.0))
    print(msgspec.json.format(msgspec.json.encode(report)).decode())
