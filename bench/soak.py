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
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import msgspec

from atlas_agents import Agent, Atlas, Capabilities, Chunk, DoneChunk, Request, TextChunk, Usage, tool
from atlas_agents.client import GatewayClient, SessionFeed
from atlas_agents.core.messages import ToolCall
from atlas_agents.gateway.protocol.events import ChatDelta
from atlas_agents.gateway.server import Gateway, run
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.providers.base import ToolCallChunk
from atlas_agents.storage.sqlite import SqliteStore

WORDS = 50
SESSION_TURNS = 50
SAMPLE_SECONDS = 10.0
TURN_TIMEOUT = 120.0
LIMITS = {"memory_mib": 5.0, "descriptors": 1.0, "threads": 0.5}
"""Allowed growth per 1,000 turns."""


@tool(effect="pure")
def look_up(word: str) -> str:
    """Return a text about a word."""
    return f"{word} is a word."


class Model:
    """Calls the tool once per turn, then answers with fifty words."""

    id = "model"
    capabilities = Capabilities()

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        if request.messages[-1].role == "user":
            yield ToolCallChunk(ToolCall(f"call-{random.getrandbits(64):x}", "look_up", {"word": "soak"}))
        else:
            for _ in range(WORDS):
                await asyncio.sleep(0.004)
                yield TextChunk("word ")
        yield DoneChunk(Usage(1, WORDS))


async def serve(home: Path) -> None:
    store = SqliteStore(home / "atlas.db")
    await store.open()
    atlas = Atlas([Agent("assistant", model=Model(), tools=[look_up])], store=store)
    await Gateway(atlas, GatewaySettings(home=home, port=0)).serve(lambda it: print(it.port, flush=True))
    await store.close()


class Sample(msgspec.Struct, frozen=True):
    """State of the gateway's process and folder after a number of turns."""

    seconds: float
    turns: int
    memory_mib: float
    descriptors: int
    threads: int
    disk_mib: float


class Traffic:
    """The clients, and what happened to their turns."""

    def __init__(self, url: str, token: str, pause: float, seed: int) -> None:
        self._url, self._token, self._pause = url, token, pause
        self._random = random.Random(seed)
        self.ended: Counter[str] = Counter()
        self.stopping = False

    @property
    def turns(self) -> int:
        return self.ended.total()

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


def measure(pid: int, home: Path, seconds: float, turns: int) -> Sample:
    process = Path(f"/proc/{pid}")
    memory = int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    disk = sum(file.stat().st_size for file in home.rglob("*") if file.is_file()) / 2**20
    threads = len(list((process / "task").iterdir()))
    return Sample(seconds, turns, memory, len(list((process / "fd").iterdir())), threads, disk)


def slope(samples: Sequence[Sample], field: str) -> float:
    """Return the growth per 1,000 turns, by least squares over the second half of the samples."""
    half = samples[len(samples) // 2 :]
    xs, ys = [each.turns / 1000 for each in half], [float(getattr(each, field)) for each in half]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((each - x) ** 2 for each in xs)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / spread if spread else 0.0


def report(samples: Sequence[Sample], ended: Counter[str]) -> bool:
    """Print the table and return whether the slopes are within the limits."""
    print("\n| minute | turns | memory MiB | descriptors | threads | disk MiB |\n|---:|---:|---:|---:|---:|---:|")
    for each in samples[:: max(1, len(samples) // 10)]:
        numbers = f"{each.memory_mib:.1f} | {each.descriptors} | {each.threads} | {each.disk_mib:.1f}"
        print(f"| {each.seconds / 60:.1f} | {each.turns} | {numbers} |")
    slopes = {name: slope(samples, name) for name in (*LIMITS, "disk_mib")}
    print("\nPer 1,000 turns, second half:", ", ".join(f"{name} {value:+.2f}" for name, value in slopes.items()))
    print("Turns ended:", ", ".join(f"{name} {count}" for name, count in sorted(ended.items())))
    return all(slopes[name] <= limit for name, limit in LIMITS.items())


async def soak(home: Path, minutes: float, clients: int, rate: float, seed: int) -> bool:
    command = (sys.executable, __file__, "serve", str(home))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout
    port = int(await process.stdout.readline())
    token = (home / "token").read_text().strip()
    traffic = Traffic(f"ws://127.0.0.1:{port}/", token, clients / rate, seed)
    tasks = [asyncio.create_task(traffic.run_client(number)) for number in range(clients)]
    started, samples = time.monotonic(), list[Sample]()
    try:
        while (seconds := time.monotonic() - started) < minutes * 60:
            samples.append(measure(process.pid, home, seconds, traffic.turns))
            if sys.stderr.isatty():
                print(json.dumps(msgspec.to_builtins(samples[-1])), file=sys.stderr)
            done, _ = await asyncio.wait(tasks, timeout=SAMPLE_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        traffic.stopping = True
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        process.terminate()
        await process.wait()
    return report(samples, traffic.ended)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rate", type=float, default=4, help="turns per second")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        within_limits = asyncio.run(soak(Path(home), options.minutes, options.clients, options.rate, options.seed))
    if not within_limits:
        sys.exit("a slope is above its limit")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        run(serve(Path(sys.argv[2])))
    else:
        main()
