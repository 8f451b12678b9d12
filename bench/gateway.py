"""Cost of the gateway: CPU of its process per turn of 50 deltas, and the latency it adds to a delta.

python bench/gateway.py           SQLite with every commit on disk

The model is a function in the gateway process that answers with fifty words; `library` runs the same turns in the same
process and store without a gateway. The client runs in another process.
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from atlas_agents import Agent, Atlas, Capabilities, Chunk, DoneChunk, Request, TextChunk, Usage
from atlas_agents.gateway.server import Gateway, run
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.storage.sqlite import SqliteStore

WORDS = 50
QUANTILES = (0.5, 0.95, 0.99)
TICK = os.sysconf("SC_CLK_TCK")


class Model:
    """Answers with fifty words, at once or paced; each paced word is its time."""

    id = "model"
    capabilities = Capabilities()

    def __init__(self, pause: float) -> None:
        self._pause = pause

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        for _ in range(WORDS):
            await asyncio.sleep(self._pause)
            yield TextChunk(f"{time.monotonic():.6f} " if self._pause else "word ")
        yield DoneChunk(Usage(1, WORDS))


async def serve(home: Path, pause: float) -> None:
    store = SqliteStore(home / "atlas.db")
    await store.open()
    atlas = Atlas([Agent("assistant", model=Model(pause))], store=store)
    if "library" in sys.argv:
        await run_library(atlas)
    else:
        await Gateway(atlas, GatewaySettings(home=home, port=0)).serve(lambda it: print(it.port, flush=True))
    await store.close()


async def run_library(atlas: Atlas, turns: int = 300) -> None:
    """Run the same turns without a gateway."""
    for number in range(turns + 50):
        if number == 50:
            started = time.process_time()
        async for _ in atlas.send("Go", session=f"s{number % 10}"):
            pass
    print((time.process_time() - started) / turns * 1000)


class Server:
    """A gateway in its own process."""

    def __init__(self, pause: float = 0.0) -> None:
        self._pause = pause

    async def __aenter__(self) -> "Server":
        self.home = Path(tempfile.mkdtemp())
        command = (sys.executable, __file__, "serve", str(self.home), str(self._pause))
        self._process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert self._process.stdout
        self.port = int(await self._process.stdout.readline())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.terminate()
        await self._process.wait()

    def cpu(self) -> float:
        """Return the CPU seconds it has used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def memory(self) -> float:
        """Return its resident memory in MiB."""
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * 4096 / 1024 / 1024

    async def connect_client(self) -> ClientConnection:
        socket = await connect(f"ws://127.0.0.1:{self.port}/", compression=None)
        token = (self.home / "token").read_text().strip()
        await socket.send(json.dumps({"type": "auth", "token": token, "protocol": 1}))
        await socket.recv()
        return socket


async def turn(socket: ClientConnection, session: str) -> list[float]:
    """Run one turn and return the latency of each paced word in milliseconds."""
    await socket.send(json.dumps({"id": 1, "method": "chat.send", "params": {"sessionKey": session, "message": "Go"}}))
    delays: list[float] = []
    while True:
        frame: Any = json.loads(await socket.recv())
        if frame.get("event") == "chat.delta" and frame["data"]["text"][0].isdigit():
            delays.append((time.monotonic() - float(frame["data"]["text"])) * 1000)
        elif frame.get("event") in ("chat.final", "chat.error"):
            return delays


async def cpu_per_turn(turns: int = 300) -> float:
    async with Server() as server:
        socket = await server.connect_client()
        for number in range(50):
            await turn(socket, f"s{number % 10}")
        started = server.cpu()
        for number in range(turns):
            await turn(socket, f"s{number % 10}")
        return (server.cpu() - started) / turns * 1000


async def delays(streams: int, pause: float) -> tuple[list[float], float]:
    """Return (latency of each word in milliseconds with this many streams, the server's share of a core)."""
    async with Server(pause) as server:
        sockets = [await server.connect_client() for _ in range(streams)]
        started, cpu = time.monotonic(), server.cpu()
        results = await asyncio.gather(*(turn(socket, f"s{index}") for index, socket in enumerate(sockets)))
        share = (server.cpu() - cpu) / (time.monotonic() - started)
        return sorted([delay for each in results for delay in each]), share


async def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        command = (sys.executable, __file__, "serve", home, "0", "library")
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        alone = float((await process.communicate())[0])
    through = statistics.median([await cpu_per_turn() for _ in range(3)])
    print(f"CPU per turn of {WORDS} deltas: library {alone:.2f} ms, through the gateway {through:.2f} ms (bar 10)")
    for streams, pause in ((1, 0.02), (200, 0.2)):
        rounds = [await delays(streams, pause) for _ in range(3)]
        p50, p95, p99 = (
            statistics.median([results[int(len(results) * quantile)] for results, _ in rounds])
            for quantile in QUANTILES
        )
        share = statistics.median([share for _, share in rounds])
        print(f"{streams} streams: delta latency p50 {p50:.2f}, p95 {p95:.2f}, p99 {p99:.2f} ms; {share:.0%} of a core")


if __name__ == "__main__":
    if "serve" in sys.argv:
        run(serve(Path(sys.argv[2]), float(sys.argv[3])))
    else:
        run(main())
