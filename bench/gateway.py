"""What the gateway costs: CPU of its process per turn of 50 deltas, what it adds to a delta's way, sockets at rest.

python bench/gateway.py           needs atlas_agents[gateway] importable; SQLite with every commit on the disk

The model is a function in the gateway's own process that says fifty words; `engine` are the same turns in the same
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
PARTS = (0.5, 0.95, 0.99)
TICK = os.sysconf("SC_CLK_TCK")


class Model:
    """Says fifty words, at once or at a pace; each tells when it was said."""

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
    if "engine" in sys.argv:
        await engine(atlas)
    else:
        await Gateway(atlas, GatewaySettings(home=home, port=0)).serve(lambda it: print(it.port, flush=True))
    await store.close()


async def engine(atlas: Atlas, turns: int = 300) -> None:
    """The same turns without a gateway."""
    for number in range(turns + 50):
        if number == 50:
            begun = time.process_time()
        async for _ in atlas.send("Go", session=f"s{number % 10}"):
            pass
    print((time.process_time() - begun) / turns * 1000)


class Server:
    """A gateway in a process of its own."""

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
        """Seconds of CPU that it has used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def memory(self) -> float:
        """Resident MiB."""
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * 4096 / 1024 / 1024

    async def join(self) -> ClientConnection:
        socket = await connect(f"ws://127.0.0.1:{self.port}/", compression=None)
        token = (self.home / "token").read_text().strip()
        await socket.send(json.dumps({"type": "auth", "token": token, "protocol": 1}))
        await socket.recv()
        return socket


async def turn(socket: ClientConnection, session: str) -> list[float]:
    """One turn; how long each paced word was on its way, in milliseconds."""
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
        socket = await server.join()
        for number in range(50):
            await turn(socket, f"s{number % 10}")
        begun = server.cpu()
        for number in range(turns):
            await turn(socket, f"s{number % 10}")
        return (server.cpu() - begun) / turns * 1000


async def delays(streams: int, pause: float) -> tuple[list[float], float]:
    """(milliseconds of each word's way with so many streams at once, the server's share of a core)."""
    async with Server(pause) as server:
        sockets = [await server.join() for _ in range(streams)]
        begun, cpu = time.monotonic(), server.cpu()
        found = await asyncio.gather(*(turn(socket, f"s{place}") for place, socket in enumerate(sockets)))
        return sorted([delay for each in found for delay in each]), (server.cpu() - cpu) / (time.monotonic() - begun)


async def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        command = (sys.executable, __file__, "serve", home, "0", "engine")
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        alone = float((await process.communicate())[0])
    through = statistics.median([await cpu_per_turn() for _ in range(3)])
    print(f"CPU per turn of {WORDS} deltas: engine {alone:.2f} ms, through the gateway {through:.2f} ms (bar 10)")
    for streams, pause in ((1, 0.02), (200, 0.2)):
        rounds = [await delays(streams, pause) for _ in range(3)]
        p50, p95, p99 = (statistics.median([found[int(len(found) * part)] for found, _ in rounds]) for part in PARTS)
        share = statistics.median([share for _, share in rounds])
        print(f"{streams} streams: a delta's way p50 {p50:.2f}, p95 {p95:.2f}, p99 {p99:.2f} ms; {share:.0%} of a core")


if __name__ == "__main__":
    if "serve" in sys.argv:
        run(serve(Path(sys.argv[2]), float(sys.argv[3])))
    else:
        run(main())
