"""Soak test: half an hour of turns against one gateway, and the slopes of its memory, descriptors, threads and disk.

python bench/soak.py                        30 minutes, 8 clients, 4 turns per second
python bench/soak.py --minutes 5 --rate 10

The gateway runs in its own process with SQLite, every commit on disk. A turn is a message, one governed tool call and
fifty words. One turn in ten is cancelled, one client in twenty turns reconnects in the middle of a turn, and every
client reads lists and histories in between. A client keeps a session for fifty turns and then deletes it, so what grows
is the gateway and not the conversations. Every turn must end; the slopes are fitted to the second half of the samples.
"""

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from atlas_agents import Agent, Atlas
from atlas_agents.client import GatewayClient, SessionFeed
from atlas_agents.gateway.protocol.events import ChatDelta
from atlas_agents.gateway.server import Gateway, run
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.storage.sqlite import SqliteStore
from harness import Model, look, owner_token, print_line, started
from tables import table

SESSION_TURNS = 50
SAMPLE_SECONDS = 10.0
TURN_TIMEOUT = 120.0
LIMITS = {"memory MiB": 5.0, "descriptors": 1.0, "threads": 0.5}
"""Allowed growth per 1,000 turns."""

Sample = dict[str, float]


async def serve(home: Path) -> None:
    store = SqliteStore(home / "atlas.db")
    await store.open()
    atlas = Atlas([Agent("assistant", model=Model(0.004), tools=[look])], store=store)
    await Gateway(atlas, GatewaySettings(home=home, port=0)).serve(lambda it: print_line(it.port))
    await store.close()


class Traffic:
    """The clients, and what happened to their turns."""

    def __init__(self, url: str, token: str, pause: float, seed: int) -> None:
        self._url, self._token, self._pause = url, token, pause
        self._random = random.Random(seed)
        self.ended: Counter[str] = Counter()
        self.stopping = False

    async def run_client(self, number: int) -> None:
        """Send turns until `stopping` is set."""
        client = GatewayClient(self._url, self._token)
        try:
            while not self.stopping:
                key = f"soak-{number}-{self._random.getrandbits(48):x}"
                for _ in range(SESSION_TURNS):
                    client = await self._turn(client, key)
                    await asyncio.sleep(self._random.uniform(0.5, 1.5) * self._pause)
                    if self.stopping:
                        break
                for method in ("sessions.list", "approvals.list", "jobs.list"):
                    await client.call(method)
                await client.call("chat.history", session_key=key)
                await client.call("sessions.delete", session_key=key)
        finally:
            await client.close()

    async def _turn(self, client: GatewayClient, key: str) -> GatewayClient:
        chance = self._random.random()
        async with asyncio.timeout(TURN_TIMEOUT), client.follow(key) as feed:
            sent = await feed.send("Go")
            if chance < 0.1:
                await client.call("chat.abort", run_id=sent.run_id)
            elif chance < 0.15:
                await self._read_some(feed, sent.run_id)
                await client.close()
                client = GatewayClient(self._url, self._token)
                status = (await client.call("chat.wait", run_id=sent.run_id))["status"]
                self.ended[f"reconnected: {status}"] += 1
                return client
            last = ""
            async for event in feed.run_events(sent.run_id):
                last = type(event).__name__
            self.ended[last] += 1
        return client

    async def _read_some(self, feed: SessionFeed, run_id: str) -> None:
        async for event in feed.run_events(run_id):
            if isinstance(event, ChatDelta):
                return


def measure(pid: int, home: Path, turns: int) -> Sample:
    """Return the state of the gateway's process and folder after a number of turns."""
    process = Path(f"/proc/{pid}")
    return {
        "turns": turns,
        "memory MiB": int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20,
        "descriptors": len(list((process / "fd").iterdir())),
        "threads": len(list((process / "task").iterdir())),
        "disk MiB": sum(file.stat().st_size for file in home.rglob("*") if file.is_file()) / 2**20,
    }


def slope(samples: Sequence[Sample], name: str) -> float:
    """Return the growth per 1,000 turns, by least squares over the second half of the samples."""
    half = samples[len(samples) // 2 :]
    xs, ys = [each["turns"] / 1000 for each in half], [each[name] for each in half]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((each - x) ** 2 for each in xs)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / spread if spread else 0.0


def report(samples: dict[float, Sample], ended: Counter[str]) -> bool:
    """Print the table and return whether the slopes are within the limits."""
    shown = list(samples.items())[:: max(1, len(samples) // 10)]
    print(table("minute", {f"{seconds / 60:.1f}": sample for seconds, sample in shown}))
    slopes = {name: slope(list(samples.values()), name) for name in (*LIMITS, "disk MiB")}
    print("\nPer 1,000 turns, second half:", ", ".join(f"{name} {value:+.2f}" for name, value in slopes.items()))
    print("Turns ended:", ", ".join(f"{name} {count}" for name, count in sorted(ended.items())))
    return all(slopes[name] <= limit for name, limit in LIMITS.items())


async def soak(home: Path, options: argparse.Namespace) -> bool:
    samples: dict[float, Sample] = {}
    async with started("serve", home) as process, asyncio.TaskGroup() as tasks:
        url = f"ws://127.0.0.1:{await process.read_line()}/"
        traffic = Traffic(url, owner_token(home), options.clients / options.rate, options.seed)
        for number in range(options.clients):
            tasks.create_task(traffic.run_client(number))
        begin = time.monotonic()
        while (seconds := time.monotonic() - begin) < options.minutes * 60:
            samples[seconds] = measure(process.pid, home, traffic.ended.total())
            await asyncio.sleep(SAMPLE_SECONDS)
        traffic.stopping = True
    return report(samples, traffic.ended)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rate", type=float, default=4, help="turns per second")
    parser.add_argument("--seed", type=int, default=1)
    with tempfile.TemporaryDirectory() as home:
        within_limits = asyncio.run(soak(Path(home), parser.parse_args()))
    if not within_limits:
        sys.exit("a slope is above its limit")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        run(serve(Path(sys.argv[2])))
    else:
        main()
