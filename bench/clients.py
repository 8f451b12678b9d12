"""Many streaming clients: the latency that the gateway adds to a delta, and its CPU per delta.

python bench/clients.py [--clients 1000] [--seconds 15] [--rounds 3] [--against PATH]

Every client has a socket and a session of its own and runs one turn after the other. The model is a function in the
gateway process: fifty words, one every 200 ms. A word is the time at which it was due, so its latency includes every
wait in the gateway, also the one for its event loop. The gateway has a core of its own and the clients have another.

`control` is the same clients with a server of a few lines that sends frames of the same size at the same times: what
remains is the cost of the clients, of the timers and of the kernel. `--against` measures another checkout of this
repository too, alternating with this one.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop

WORDS = 50
INTERVAL = 0.2
TURN = WORDS * INTERVAL
TICK = os.sysconf("SC_CLK_TCK")
HERE = Path(__file__).parent.parent
DONE = b'"event":"chat.final"'
PING = b"\x89"
CONTROL_FRAME = b'{"event":"chat.delta","data":{"runId":"%b","text":"%%.6f ","sessionKey":"s000","seq":10}}' % (
    b"x" * 32
)


# The measured process


async def serve(home: Path) -> None:
    from atlas_agents import Agent, Atlas, Capabilities, DoneChunk, TextChunk, Usage
    from atlas_agents.gateway.server import Gateway
    from atlas_agents.gateway.settings import GatewaySettings
    from atlas_agents.storage.sqlite import SqliteStore

    class Model:
        id = "model"
        capabilities = Capabilities()

        async def stream(self, request: Any) -> AsyncGenerator[Any, None]:
            async for due in schedule():
                yield TextChunk(f"{due:.6f} ")
            yield DoneChunk(Usage(1, WORDS))

    store = SqliteStore(home / "atlas.db")
    await store.open()
    atlas = Atlas([Agent("assistant", model=Model())], store=store)
    await Gateway(atlas, GatewaySettings(home=home, port=0)).serve(lambda it: print(it.port, flush=True))
    await store.close()


async def schedule() -> AsyncGenerator[float, None]:
    """Yield the time at which each word is due, not before that time."""
    start = time.monotonic()
    for number in range(1, WORDS + 1):
        due = start + number * INTERVAL
        await asyncio.sleep(max(due - time.monotonic(), 0))
        yield due


class ControlConnection(asyncio.Protocol):
    """Server side of the control: answers as the gateway does, without doing anything."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._upgraded = False

    def data_received(self, data: bytes) -> None:
        if not self._upgraded:
            self._upgraded = True
            self._transport.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
        elif b'"auth"' in data:
            self._transport.write(encode_frame(b'{"type":"auth","ok":true}'))
        else:
            self._turn = asyncio.ensure_future(self._stream())

    async def _stream(self) -> None:
        async for due in schedule():
            self._transport.write(encode_frame(CONTROL_FRAME % due))
        self._transport.write(encode_frame(b"{%b}" % DONE))


async def serve_control() -> None:
    server = await asyncio.get_running_loop().create_server(ControlConnection, "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def encode_frame(payload: bytes) -> bytes:
    """Return a text frame from a server."""
    head = bytes((0x81, len(payload))) if len(payload) < 126 else b"\x81\x7e" + len(payload).to_bytes(2)
    return head + payload


# The clients


class Client(asyncio.Protocol):
    """Socket that runs turns and keeps what it reads with the time; frames are decoded after the measurement."""

    def __init__(self, session: str, token: str) -> None:
        self.ready = asyncio.get_running_loop().create_future()
        self.idle = asyncio.Event()
        self.active = True
        self._session = session
        self._token = token
        self._reads: list[tuple[float, bytes]] = []
        self._end = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        lines = ("GET / HTTP/1.1", "Host: 127.0.0.1", "Connection: Upgrade", "Upgrade: websocket")
        keys = ("Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "", "")
        self._transport.write("\r\n".join((*lines, *keys)).encode())

    def data_received(self, data: bytes) -> None:
        if self.ready.done():
            self._reads.append((time.monotonic(), data))
            if PING in data:  # the byte is in no text
                start = data.index(PING) + 2
                self._write(0x8A, data[start : start + data[start - 1]])
            if DONE in self._end + data:
                self.run_turn()
            self._end = data[-len(DONE) :]
        elif data.startswith(b"HTTP/1.1 101"):
            self._send({"type": "auth", "token": self._token, "protocol": 1})
        else:
            assert b'"ok":true' in data, data
            self.ready.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.active:
            sys.exit(f"the server has closed the socket of {self._session}")

    def run_turn(self) -> None:
        if self.active:
            self._send({"id": 1, "method": "chat.send", "params": {"sessionKey": self._session, "message": "Go"}})
        else:
            self.idle.set()

    def close(self) -> None:
        self._transport.close()

    def _send(self, value: object) -> None:
        self._write(0x81, json.dumps(value).encode())

    def _write(self, head: int, payload: bytes) -> None:
        assert len(payload) < 126
        self._transport.write(bytes((head, 0x80 | len(payload), 0, 0, 0, 0)) + payload)

    def frames(self) -> Iterator[tuple[float, bytes]]:
        """Yield every text frame with the time at which its end was read."""
        buffer = b""
        for moment, data in self._reads:
            buffer += data
            while len(buffer) >= 2:
                size, start = buffer[1], 2
                if size >= 126:
                    start = 4 if size == 126 else 10
                    size = int.from_bytes(buffer[2:start])
                if len(buffer) < start + size:
                    break
                if buffer[0] == 0x81:
                    yield moment, buffer[start : start + size]
                buffer = buffer[start + size :]


async def generate(port: int, pid: int, token: str, clients: int, seconds: float) -> dict[str, float]:
    """Run the turns of all clients, and measure for some seconds while all of them stream."""
    loop = asyncio.get_running_loop()
    memory = resident(pid)
    peers: list[Client] = []
    for number in range(clients):
        peer = Client(f"s{number}", token)
        await loop.create_connection(lambda peer=peer: peer, "127.0.0.1", port)
        await peer.ready
        peers.append(peer)
    for peer in peers:  # turns begin at different times, as those of people do
        peer.run_turn()
        await asyncio.sleep(TURN / clients)
    await asyncio.sleep(TURN / 2)
    start, cpu, own = time.monotonic(), cpu_seconds(pid), time.process_time()
    await asyncio.sleep(seconds)
    end, cpu, own = time.monotonic(), cpu_seconds(pid) - cpu, time.process_time() - own
    memory = resident(pid) - memory
    for peer in peers:
        peer.active = False
    await asyncio.gather(*(peer.idle.wait() for peer in peers))
    for peer in peers:
        peer.close()
    delays = sorted(delay for peer in peers for due, delay in read_delays(peer) if start <= due < end)
    return {
        "deltas/s": len(delays) / (end - start),
        "latency p50, ms": delays[len(delays) // 2],
        "latency p95, ms": delays[int(len(delays) * 0.95)],
        "latency p99, ms": delays[int(len(delays) * 0.99)],
        "latency max, ms": delays[-1],
        "CPU µs per delta": cpu / len(delays) * 1e6,
        "CPU ms per turn": cpu / len(delays) * WORDS * 1e3,
        "share of its core, %": cpu / (end - start) * 100,
        "share of the clients' core, %": own / (end - start) * 100,
        "KB per client": memory / clients / 1024,
    }


def read_delays(peer: Client) -> list[tuple[float, float]]:
    """Return when each word was due and its latency in milliseconds; check that none is missing or repeated."""
    delays: list[tuple[float, float]] = []
    count = 0
    for moment, frame in peer.frames():
        if frame.startswith(b'{"event":"chat.delta"'):
            due = float(json.loads(frame)["data"]["text"])
            if delays and due <= delays[-1][0]:
                sys.exit(f"a delta is repeated or out of order: {frame.decode()}")
            delays.append((due, (moment - due) * 1000))
            count += 1
        elif DONE in frame:
            if count != WORDS:
                sys.exit(f"a turn had {count} deltas, expected {WORDS}")
            count = 0
        elif b'"error"' in frame:
            sys.exit(f"a turn failed: {frame.decode()}")
    return delays


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


# The measuring process


@asynccontextmanager
async def running(command: str, checkout: Path, core: int) -> AsyncGenerator[tuple[int, int, Path], None]:
    """Run a server on a core; yield its port, its process id and its home folder."""
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "BENCH_CORE": str(core)}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, __file__, command, home), stdout=asyncio.subprocess.PIPE, env=environment
        )
        assert process.stdout
        try:
            yield int(await process.stdout.readline()), process.pid, Path(home)
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def measure(command: str, checkout: Path, options: argparse.Namespace) -> dict[str, float]:
    own, other = sorted(os.sched_getaffinity(0))[:2]
    async with running(command, checkout, own) as (port, pid, home):
        token = (home / "token").read_text().strip() if command == "serve" else ""
        arguments = (port, pid, token or "-", options.clients, options.seconds)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, __file__, "generate", *map(str, arguments)),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "BENCH_CORE": str(other)},
        )
        output, _ = await process.communicate()
        if process.returncode:
            sys.exit("the clients have failed")
        return json.loads(output)


async def main(options: argparse.Namespace) -> None:
    kinds = {"control": ("control", HERE), "this": ("serve", HERE)}
    if options.against:
        kinds["other"] = ("serve", options.against.resolve())
    rounds: dict[str, list[dict[str, float]]] = {}
    for _ in range(options.rounds):
        for name, (command, checkout) in kinds.items():  # alternating, so that noise affects all
            rounds.setdefault(name, []).append(await measure(command, checkout, options))
    print(f"{options.clients} clients, {WORDS} deltas per turn, one every {INTERVAL * 1000:.0f} ms")
    print(f"{'':30}" + "".join(f"{name:>10}" for name in kinds))
    for key in rounds["control"][0]:
        print(f"{key:30}" + "".join(f"{statistics.median(r[key] for r in rounds[name]):10.1f}" for name in kinds))


def run_part(command: str, *arguments: str) -> None:
    """Run one of the processes of a measurement."""
    os.sched_setaffinity(0, {int(os.environ["BENCH_CORE"])})
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    if command == "serve":
        from atlas_agents.gateway.server import run

        run(serve(Path(arguments[0])))
    elif command == "control":
        uvloop.run(serve_control())
    else:
        port, pid, token, clients, seconds = arguments
        print(json.dumps(uvloop.run(generate(int(port), int(pid), token, int(clients), float(seconds)))))


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in ("serve", "control", "generate"):
        run_part(*sys.argv[1:])
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--clients", type=int, default=1000)
        parser.add_argument("--seconds", type=float, default=15, help="seconds of one measurement")
        parser.add_argument("--rounds", type=int, default=3)
        parser.add_argument("--against", type=Path, help="another checkout to compare with")
        asyncio.run(main(parser.parse_args()))
