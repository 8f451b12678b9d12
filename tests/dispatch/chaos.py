"""Turns on a cluster while its processes are killed at random: `chaos.py TURNS SEED` prints what was lost and repeated,
and how long it took until others went on with the turns of a worker that was killed.

Two gateways, three workers and a Postgres of its own. What happened is read from a file outside of the database, and
how turns ended from the database.
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

import msgspec
from websockets.exceptions import WebSocketException

HERE = Path(__file__).parent
sys.path += [str(HERE.parent), str(HERE.parent / "gateway")]

from cluster_members import member  # noqa: E402

from atlas_agents.storage.postgres import PostgresStore  # noqa: E402
from gateway.processes import Process, connect_process  # noqa: E402
from stores.postgres_server import PostgresServer  # noqa: E402

ROLES = ("gateway", "gateway", "worker", "worker", "worker")
_TROUBLE = (OSError, WebSocketException, TimeoutError, AssertionError)


class Report(msgspec.Struct):
    """What came of it: all but the first two should be nothing."""

    turns: int = 0
    kills: dict[str, int] = {}
    lost: int = 0
    repeated: int = 0
    orphaned: int = 0
    failed: list[str] = []
    unknown: int = 0
    """Calls that were under way in a process that was killed; that is honest, and no fault."""
    slowest: float = 0.0
    """Seconds from the message to the last word, of the turn that took longest."""
    takeovers: int = 0
    """How often a turn went on in another process than the one that was killed."""
    takeover_p50: float = 0.0
    takeover_max: float = 0.0
    """Seconds from the kill to the moment when the turn was another's."""
    meanwhile: list[str] = []
    """What was killed while the longest of them lasted, and when."""


class Chaos:
    """One run of it."""

    def __init__(self, server: PostgresServer, home: Path, turns: int, seed: int) -> None:
        self._server = server
        self._home = home
        self._turns = turns
        self._random = random.Random(seed)
        self._places: list[tuple[Process, AsyncExitStack] | None] = [None] * len(ROLES)
        self._run_ids: list[str] = []
        self._killed: list[tuple[float, str]] = []
        """When what was killed, in milliseconds."""
        self.report = Report(turns, {})

    async def run(self, kills: int, pause: float) -> Report:
        """Send all turns, some now and some later, and kill so often meanwhile."""
        for place in range(len(ROLES)):
            await self._start(place)
        try:
            begins = sorted([self._random.uniform(0, kills * pause) for _ in range(self._turns)])
            turns = [asyncio.create_task(self._turn(n, begin)) for n, begin in enumerate(begins)]
            for _ in range(kills):
                await asyncio.sleep(self._random.uniform(0.5, 1.5) * pause)
                await self._kill()
            await asyncio.gather(*turns)
            await self._judge()
        finally:
            for found in self._places:
                if found is not None:
                    await found[1].aclose()
        return self.report

    async def _start(self, place: int) -> None:
        stack = AsyncExitStack()
        self._places[place] = (await stack.enter_async_context(member(ROLES[place], self._server, self._home)), stack)

    async def _kill(self) -> None:
        place = self._random.randrange(len(ROLES) + 1)
        name = "postgres" if place == len(ROLES) else ROLES[place]
        self.report.kills[name] = self.report.kills.get(name, 0) + 1
        self._killed.append((time.time() * 1000, name))
        if name == "postgres":
            await asyncio.to_thread(self._server.stop)
            await asyncio.to_thread(self._server.start)
            return
        found, self._places[place] = self._places[place], None
        assert found is not None
        await found[0].kill()
        await found[1].aclose()
        await self._start(place)

    async def _turn(self, n: int, begin: float) -> None:
        """Say something until it is acknowledged, by whichever gateway, and wait for its end, at whichever."""
        await asyncio.sleep(begin)
        began, run_id = time.monotonic(), ""
        while True:
            gateways = [found[0] for place, found in enumerate(self._places) if found and ROLES[place] == "gateway"]
            with suppress(*_TROUBLE):
                async with asyncio.timeout(30), connect_process(self._random.choice(gateways)) as client:
                    if not run_id:
                        asked = {"sessionKey": f"s{n % 20}", "message": f"turn{n}", "idempotencyKey": f"k{n}"}
                        run_id = (await client.get("chat.send", **asked))["runId"]
                    waited = await client.get("chat.wait", runId=run_id, timeoutMs=5000)
                    if waited["status"] in ("done", "failed", "cancelled"):
                        break
            await asyncio.sleep(0.2)
        self._run_ids.append(run_id)
        if waited["status"] != "done":
            self.report.failed.append(str(waited))
        self.report.slowest = max(self.report.slowest, round(time.monotonic() - began, 1))

    async def _judge(self) -> None:
        lines = (self._home / "effects").read_text().splitlines()
        happened = Counter([line.split(" ", 1)[1] for line in lines])
        wanted = {f"turn{n} {step}" for n in range(self._turns) for step in (1, 2, 3)}
        store = PostgresStore(self._server.url)
        await store.open()
        self.report.orphaned = len(await store.open_runs())
        audit = [row.entry for row in await store.audit("default")]
        self.report.unknown = sum(b'"unknown"' in entry for entry in audit)
        took = sorted([each for id in self._run_ids for each in await self._takeovers(store, id)])
        await store.close()
        self.report.takeovers = len(took)
        if took:
            self.report.takeover_p50 = round(took[len(took) // 2][0], 1)
            self.report.takeover_max, begun = round(took[-1][0], 1), took[-1][1]
            during = [(at - begun, name) for at, name in self._killed if 0 <= at - begun <= took[-1][0] * 1000]
            self.report.meanwhile = [f"{name} after {later / 1000:.1f} s" for later, name in during]
        self.report.repeated = sum(count - 1 for count in happened.values())
        self.report.lost = max(0, len(wanted - happened.keys()) - self.report.unknown)

    async def _takeovers(self, store: PostgresStore, run_id: str) -> list[tuple[float, float]]:
        """How long nobody was at a run, each time, and since when: from the first kill of a worker after its last step
        to when it went on."""
        steps = await store.journal("default", run_id)
        pairs = [(last.at, step.at) for last, step in pairwise(steps) if step.kind == "resumed"]
        workers = [at for at, name in self._killed if name == "worker"]
        kills = [(on, next((at for at in workers if last <= at <= on), None)) for last, on in pairs]
        return [((on - at) / 1000, at) for on, at in kills if at is not None]


async def chaos(turns: int, seed: int, *, kills: int, pause: float) -> Report:
    with PostgresServer() as server, tempfile.TemporaryDirectory() as home:
        return await Chaos(server, Path(home), turns, seed).run(kills, pause)


if __name__ == "__main__":
    count, number = int(sys.argv[1]), int(sys.argv[2])
    report = asyncio.run(chaos(count, number, kills=count // 10, pause=2.0))
    print(msgspec.json.format(msgspec.json.encode(report)).decode())
