"""Cost of durable turns on one machine: rows and bytes kept, bytes written and synced, and CPU, per turn.

python bench/disk.py [--turns 100] [--rounds 3] [--against PATH] [--lengths 100 5000] [--pages]

A turn is a message, one governed tool call and an answer of fifty deltas. `library` runs it with an SQLite store,
`memory` the same without a store, and `gateway` through a server whose client is this process. `--against` measures
another checkout of this repository too, alternating with this one. `--lengths` compares sessions of different lengths:
the CPU of a turn and the time of three requests.

Written bytes and syncs are counted in the write-ahead log, which a reader keeps from starting over: SQLite syncs it
once per commit, and writes whole pages. A checkpoint writes each page that the log contains once more, to the file.
`--pages` lists the pages that a turn writes by table and index.
"""

import argparse
import asyncio
import json
import os
import sqlite3
import statistics
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

WORDS = 50
SESSIONS = 10
WARM_UP_TURNS = 20
TICK = os.sysconf("SC_CLK_TCK")
WAL_HEADER, FRAME_HEADER = 32, 24
REQUESTS = ("chat.history", "chat.wait", "sessions.subscribe")
HERE = Path(__file__).parent.parent


# The measured process


async def serve(kind: str, home: Path) -> None:
    from atlas_agents import Agent, Atlas, Capabilities, DoneChunk, TextChunk, ToolCall, ToolCallChunk, Usage
    from atlas_agents.gateway.server import Gateway
    from atlas_agents.gateway.settings import GatewaySettings
    from atlas_agents.storage.sqlite import SqliteStore
    from atlas_agents.tools.tool import tool

    class Model:
        id = "model"
        capabilities = Capabilities()

        async def stream(self, request: Any) -> AsyncGenerator[Any, None]:
            if request.messages[-1].role == "user":
                yield ToolCallChunk(ToolCall(f"call{len(request.messages)}", "look", {"thing": "stone"}))
            else:
                for _ in range(WORDS):
                    await asyncio.sleep(0)
                    yield TextChunk("word ")
            yield DoneChunk(Usage(1, WORDS))

    @tool
    async def look(thing: str) -> str:
        """Look at something."""
        return f"It is a {thing}."

    store = None if kind == "memory" else SqliteStore(home / "atlas.db")
    if store is not None:
        await store.open()
        for length in map(int, sys.argv[4:]):
            await add_history(store, f"length{length}", length)
    atlas = Atlas([Agent("assistant", model=Model(), tools=[look])], store=store)
    if kind == "gateway":
        await Gateway(atlas, GatewaySettings(home=home, port=0)).serve(lambda it: print(it.port, flush=True))
    else:
        await run_library(atlas)
    if store is not None:
        await store.close()


async def run_library(atlas: Any) -> None:
    """Run the turns that stdin requests, and print the CPU milliseconds of each batch."""
    print(0, flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        session, turns = line.split()
        started = time.process_time()
        for number in range(int(turns)):
            async for _ in atlas.send("Go", session=session if session != "*" else f"s{number % SESSIONS}"):
                pass
        print((time.process_time() - started) * 1000, flush=True)


async def add_history(store: Any, session: str, length: int) -> None:
    """Store a session of turns with one question and one answer each."""
    from atlas_agents import assistant, user
    from atlas_agents.core.store import AcceptRun, AddMessage, ClaimRun, PutSession, SetRun

    await store.commit("default", [PutSession(session)])
    for first in range(0, length, 200):
        writes: list[Any] = []
        for number in range(first, min(first + 200, length), 2):
            run, texts = f"{session}.{number}", (user(f"Question {number}?"), assistant("Answer. " + "word " * 20))
            writes += [AcceptRun(run, session, "assistant", "", "", "", texts[0].to_json()), ClaimRun(run)]
            writes += [AddMessage(session, message.id, message.to_json(), run) for message in texts]
            writes.append(SetRun(run, 1, "done"))
        await store.commit("default", writes)


# The measuring process


class Process:
    """A measured process: turns are run by a command on its stdin, or through its gateway."""

    def __init__(self, process: asyncio.subprocess.Process, home: Path, port: int) -> None:
        self.home = home
        self._process = process
        self._port = port
        self._sockets: list[ClientConnection] = []

    async def connect(self) -> ClientConnection:
        socket = await connect(f"ws://127.0.0.1:{self._port}/", compression=None, max_size=None)
        token = (self.home / "token").read_text().strip()
        await socket.send(json.dumps({"type": "auth", "token": token, "protocol": 1}))
        await socket.recv()
        return socket

    async def run(self, turns: int, session: str = "*") -> float:
        """Run turns one after the other, and return the CPU milliseconds that they took."""
        if not self._port:
            assert self._process.stdin and self._process.stdout
            self._process.stdin.write(f"{session} {turns}\n".encode())
            return float(await self._process.stdout.readline())
        if not self._sockets:
            self._sockets = [await self.connect() for _ in range(SESSIONS)]
        before = self._cpu()
        for number in range(turns):
            key = session if session != "*" else f"s{number % SESSIONS}"
            await gateway_turn(self._sockets[number % SESSIONS if session == "*" else 0], key)
        return self._cpu() - before

    def _cpu(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return 1000 * (int(fields[11]) + int(fields[12])) / TICK


async def gateway_turn(socket: ClientConnection, session: str) -> None:
    params = {"sessionKey": session, "message": "Go"}
    await socket.send(json.dumps({"id": 1, "method": "chat.send", "params": params}))
    while True:
        frame = await socket.recv()
        text = frame if isinstance(frame, str) else frame.decode()
        if '"chat.final"' in text:
            return
        if '"chat.error"' in text or '"error":{' in text:
            raise SystemExit(f"a turn failed: {text}")


@asynccontextmanager
async def running(kind: str, checkout: Path, lengths: list[int]) -> AsyncGenerator[Process, None]:
    with tempfile.TemporaryDirectory() as folder:
        command = (sys.executable, __file__, "serve", kind, folder, *map(str, lengths))
        environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, env=environment)
        assert process.stdin and process.stdout
        try:
            yield Process(process, Path(folder), int(await process.stdout.readline()))
        finally:
            process.stdin.close()
            if process.returncode is None and kind == "gateway":
                process.terminate()
            await process.wait()


class LogReader:
    """Counts frames and commits of the write-ahead log while a read transaction keeps the log from starting over."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(f"{database.name}-wal")
        self._reader = sqlite3.connect(database, isolation_level=None)
        self._reader.execute("BEGIN")
        self._reader.execute("SELECT count(*) FROM sessions").fetchone()
        self._salt, self.page_size, frames = self._read()
        self._start = len(frames)

    def _read(self) -> tuple[bytes, int, list[tuple[int, bool]]]:
        """Return the salt of the log, the size of a page, and page number and end of a commit of each frame.

        Older frames have another salt.
        """
        data = self._path.read_bytes()
        size, salt = struct.unpack(">I", data[8:12])[0], data[16:24]
        places = range(WAL_HEADER, len(data), FRAME_HEADER + size)
        heads = [struct.unpack(">II", data[at : at + 8]) for at in places if data[at + 8 : at + 16] == salt]
        return salt, size, [(page, length > 0) for page, length in heads]

    def close(self) -> list[tuple[int, bool]] | None:
        """Return the frames since the start; None if the log started over nevertheless.

        A reader that starts right after a checkpoint does not need the log.
        """
        salt, _, frames = self._read()
        self._reader.close()
        return frames[self._start :] if salt == self._salt else None


def count_pages(database: Path, frames: list[tuple[int, bool]]) -> Counter[str]:
    """Count the written pages by table and index."""
    with closing(sqlite3.connect(database)) as connection:
        names = dict(connection.execute("SELECT pageno, name FROM dbstat"))
    return Counter(names.get(page, "free") for page, _ in frames)


def count_events(database: Path) -> tuple[int, int]:
    """Return the rows of events, and the bytes that they and their indexes take in the file."""
    with closing(sqlite3.connect(database)) as connection:
        (rows,) = connection.execute("SELECT count(*) FROM events").fetchone()
        (size,) = connection.execute(
            "SELECT sum(pgsize - unused) FROM dbstat JOIN sqlite_master USING (name)"
            " WHERE tbl_name IN ('events', 'event_rows')"
        ).fetchone()
    return rows, size


async def measure_disk(checkout: Path, kind: str, turns: int, *, pages: bool = False) -> dict[str, float]:
    async with running(kind, checkout, []) as process:
        await process.run(WARM_UP_TURNS)
        found: dict[str, float] = {}
        if kind != "memory":
            database = process.home / "atlas.db"
            while True:
                await process.run(1)
                log, (rows, size) = LogReader(database), count_events(database)
                await process.run(counted := min(turns, 50))
                await asyncio.sleep(0.2)
                frames, (rows_after, size_after) = log.close(), count_events(database)
                if frames is not None:
                    break
            found = {
                "KB written": len(frames) * (FRAME_HEADER + log.page_size) / counted / 1024,
                "KB checkpointed": len({page for page, _ in frames}) * log.page_size / counted / 1024,
                "syncs": sum(ends for _, ends in frames) / counted,
                "event rows": (rows_after - rows) / counted,
                "event KB": (size_after - size) / counted / 1024,
            }
            if pages:
                found |= {f"pages of {name}": count / counted for name, count in count_pages(database, frames).items()}
        return {**found, "CPU ms": await process.run(turns) / turns}


async def measure_lengths(checkout: Path, lengths: list[int], turns: int) -> dict[str, float]:
    """Measure turns and requests in sessions of different lengths."""
    found: dict[str, float] = {}
    async with running("gateway", checkout, lengths) as process:
        for length in lengths:
            await process.run(WARM_UP_TURNS, f"length{length}")
            found[f"turn, CPU ms ({length})"] = await process.run(turns, f"length{length}") / turns
            for method in REQUESTS:
                socket = await process.connect()
                times = [await request(socket, method, f"length{length}") for _ in range(20)]
                found[f"{method}, ms ({length})"] = statistics.median(times) * 1000
                await socket.close()
    return found


async def request(socket: ClientConnection, method: str, session: str) -> float:
    params: dict[str, Any] = {"sessionKey": session}
    if method == "chat.wait":
        await socket.send(
            json.dumps({"id": 7, "method": "chat.history", "params": {"sessionKey": session, "limit": 3}})
        )
        while (frame := json.loads(await socket.recv())).get("id") != 7:
            pass
        params = {"runId": next(m["runId"] for m in frame["result"]["messages"] if m.get("runId"))}
    started = time.monotonic()
    await socket.send(json.dumps({"id": 8, "method": method, "params": params}))
    while True:
        text = await socket.recv()
        if json.loads(text).get("id") == 8:
            if '"error"' in str(text)[:200]:
                raise SystemExit(f"{method} failed: {str(text)[:500]}")
            return time.monotonic() - started


async def main(options: argparse.Namespace) -> None:
    checkouts = {"this": HERE} | ({"other": options.against.resolve()} if options.against else {})
    rounds: dict[tuple[str, str], list[dict[str, float]]] = {}
    for _ in range(options.rounds):
        for name, path in checkouts.items():  # alternating, so that noise affects both
            for kind in ("memory", "library", "gateway"):
                found = await measure_disk(path, kind, options.turns, pages=options.pages)
                rounds.setdefault((kind, name), []).append(found)
            if options.lengths:
                found = await measure_lengths(path, options.lengths, options.turns)
                rounds.setdefault(("lengths", name), []).append(found)
    for kind in ("memory", "library", "gateway", "lengths"):
        names = list(dict.fromkeys(key for name in checkouts for key in rounds.get((kind, name), [{}])[0]))
        for key in names:
            values = [statistics.median(each.get(key, 0) for each in rounds[kind, name]) for name in checkouts]
            print(f"{kind:8} {key:44} " + "  ".join(f"{value:10.2f}" for value in values))
    print("columns: " + ", ".join(checkouts))


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        from atlas_agents.gateway.server import run

        start = run if sys.argv[2] == "gateway" else asyncio.run  # the gateway has an event loop of its own
        start(serve(sys.argv[2], Path(sys.argv[3])))
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--turns", type=int, default=100, help="turns per measurement")
        parser.add_argument("--rounds", type=int, default=3)
        parser.add_argument("--against", type=Path, help="another checkout to compare with")
        parser.add_argument("--lengths", type=int, nargs="*", default=[], help="lengths of sessions to compare")
        parser.add_argument("--pages", action="store_true", help="list written pages by table and index")
        asyncio.run(main(parser.parse_args()))
