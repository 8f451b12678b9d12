"""Cost of the gateway: CPU of its process per turn of 50 deltas, and the latency it adds to a delta.

python bench/gateway.py [--turns 300] [--rounds 3]

The model is a function in the gateway process that answers with fifty words, and SQLite syncs every commit. `library`
runs the same turns in the same process and store without a gateway. The client runs in another process. A paced word is
the time at which it was sent, so its latency includes every wait in the gateway.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from atlas_agents import Agent, Atlas
from atlas_agents.gateway.server import Gateway, run
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.storage.sqlite import SqliteStore
from harness import WORDS, Model, owner_token, print_line, run_turn, sign_in, started
from tables import medians, table

WARM_UP_TURNS = 50
SESSIONS = 10
STREAMS = ((1, 0.02), (200, 0.2))
"""Streams at a time, and seconds between two words of each."""


class TimedModel(Model):
    """Model whose words are the times at which they are sent."""

    def word(self) -> str:
        return f"{time.monotonic():.6f} "


async def serve(home: Path, pause: float, turns: int) -> None:
    """Be a gateway; with a number of turns, run them without one."""
    store = SqliteStore(home / "atlas.db")
    await store.open()
    atlas = Atlas([Agent("assistant", model=TimedModel(pause) if pause else Model())], store=store)
    if turns:
        await run_library(atlas, turns)
    else:
        await Gateway(atlas, GatewaySettings(home=home, port=0)).serve(lambda it: print_line(it.port))
    await store.close()


async def run_library(atlas: Atlas, turns: int) -> None:
    """Print the CPU milliseconds of a turn."""
    started = 0.0
    for number in range(WARM_UP_TURNS + turns):
        if number == WARM_UP_TURNS:
            started = time.process_time()
        async for _ in atlas.send("Go", session=f"s{number % SESSIONS}"):
            pass
    print_line((time.process_time() - started) / turns * 1000)


async def cpu_of_library(turns: int) -> float:
    with tempfile.TemporaryDirectory() as home:
        async with started("serve", home, 0, turns) as process:
            return await process.read_line()


async def cpu_of_gateway(turns: int) -> float:
    with tempfile.TemporaryDirectory() as home:
        async with started("serve", home, 0, 0) as process:
            socket = await sign_in(await process.read_line(), owner_token(Path(home)))
            for number in range(WARM_UP_TURNS):
                await run_turn(socket, f"s{number % SESSIONS}")
            before = process.cpu()
            for number in range(turns):
                await run_turn(socket, f"s{number % SESSIONS}")
            return (process.cpu() - before) / turns * 1000


async def latencies(streams: int, pause: float) -> dict[str, float]:
    """Return quantiles of the latency of a word with this many streams, and the share of a core that they take."""
    with tempfile.TemporaryDirectory() as home:
        async with started("serve", home, pause, 0) as process:
            port = await process.read_line()
            sockets = [await sign_in(port, owner_token(Path(home))) for _ in range(streams)]
            begin, cpu = time.monotonic(), process.cpu()
            turns = await asyncio.gather(*(run_turn(socket, f"s{index}") for index, socket in enumerate(sockets)))
            share = (process.cpu() - cpu) / (time.monotonic() - begin)
    deltas = [(at, frame) for frames in turns for at, frame in frames if '"event":"chat.delta"' in frame]
    delays = sorted([(at - float(json.loads(frame)["data"]["text"])) * 1000 for at, frame in deltas])
    assert len(delays) == streams * WORDS, f"{len(delays)} deltas, {streams * WORDS} expected"
    p50, p95, p99 = (delays[int(len(delays) * quantile)] for quantile in (0.5, 0.95, 0.99))
    return {"p50 ms": p50, "p95 ms": p95, "p99 ms": p99, "% of a core": share * 100}


async def main(options: argparse.Namespace) -> None:
    rounds = range(options.rounds)
    cpu = [
        {"library": await cpu_of_library(options.turns), "gateway": await cpu_of_gateway(options.turns)} for _ in rounds
    ]
    print(table("", {"a turn, CPU ms": medians(cpu)}) + "\n")
    rows: dict[str, dict[str, float]] = {}
    for streams, pause in STREAMS:
        rows[f"{streams}"] = medians([await latencies(streams, pause) for _ in rounds])
    print(table("streams, latency of a delta", rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        run(serve(Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])))
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--turns", type=int, default=300)
        parser.add_argument("--rounds", type=int, default=3)
        asyncio.run(main(parser.parse_args()))
