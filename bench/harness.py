"""What the benchmarks of gateways share: the model, processes and their CPU, and turns over the WebSocket."""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect

from atlas_agents import Capabilities, Chunk, DoneChunk, Request, TextChunk, ToolCall, ToolCallChunk, Usage, tool

ROOT = Path(__file__).parent.parent
WORDS = 50
TICK = os.sysconf("SC_CLK_TCK")


@tool
async def look(thing: str) -> str:
    """Look at something."""
    return f"It is a {thing}."


class Model:
    """Calls `look` if the agent has it, then answers with fifty words."""

    id = "model"
    capabilities = Capabilities()

    def __init__(self, pause: float = 0.0) -> None:
        """`pause` is the number of seconds before each word."""
        self._pause = pause

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        if request.tools and request.messages[-1].role == "user":
            yield ToolCallChunk(ToolCall(f"call{len(request.messages)}", "look", {"thing": "stone"}))
        else:
            for _ in range(WORDS):
                await asyncio.sleep(self._pause)
                yield TextChunk(self.word())
        yield DoneChunk(Usage(1, WORDS))

    def word(self) -> str:
        return "word "


class Process:
    """A process that a benchmark measures."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self._child = child
        self.pid = child.pid

    async def read_line(self) -> Any:
        """Decode the next line of its output, which is JSON; fail if there is none."""
        assert self._child.stdout
        line = await self._child.stdout.readline()
        if not line:
            raise SystemExit("a measured process has ended")
        return msgspec.json.decode(line)

    def cpu(self) -> float:
        """Return the CPU seconds of all its threads, ended ones too."""
        return cpu_seconds(self.pid)


def cpu_seconds(pid: int) -> float:
    return time.clock_gettime(~pid << 3 | 2)  # the clock of another process: clock_getcpuclockid(3)


def cpu_seconds_of_tree(pid: int) -> float:
    """Return the CPU seconds of a process and its descendants, ended ones too."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    used = cpu_seconds(pid) + (int(fields[13]) + int(fields[14])) / TICK
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(OSError):  # it has just ended: counted with its parent
            used += cpu_seconds_of_tree(int(child))
    return used


@asynccontextmanager
async def started(*arguments: object, checkout: Path = ROOT) -> AsyncGenerator[Process]:
    """Run this benchmark with other arguments in a process, on the package of a checkout."""
    command = (sys.executable, sys.argv[0], *map(str, arguments))
    environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
    child = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, env=environment, limit=1 << 26
    )
    try:
        yield Process(child)
    finally:
        if child.returncode is None:
            child.terminate()
        await child.wait()


def print_line(value: object) -> None:
    """Write a line to the process that measures this one."""
    print(msgspec.json.encode(value).decode(), flush=True)


async def sign_in(port: int, token: str) -> ClientConnection:
    socket = await connect(f"ws://127.0.0.1:{port}/", compression=None, max_size=None)
    await socket.send(json.dumps({"type": "auth", "token": token, "protocol": 1}))
    await socket.recv()
    return socket


def owner_token(home: Path) -> str:
    return (home / "token").read_text().strip()


async def call(socket: ClientConnection, method: str, params: dict[str, Any]) -> Any:
    """Call a method and return its result."""
    await socket.send(json.dumps({"id": 1, "method": method, "params": params}))
    while True:
        frame: Any = json.loads(await socket.recv())
        if frame.get("id") == 1:
            if "error" in frame:
                raise SystemExit(f"{method} {params} failed: {frame['error']}")
            return frame["result"]


async def run_turn(socket: ClientConnection, session: str) -> list[tuple[float, str]]:
    """Run one turn; return its frames with their times. They are not decoded, because that costs CPU, too."""
    frames: list[tuple[float, str]] = []
    await socket.send(json.dumps({"id": 1, "method": "chat.send", "params": {"sessionKey": session, "message": "Go"}}))
    while True:
        frame = await socket.recv(decode=True)
        frames.append((time.monotonic(), frame))
        if '"event":"chat.final"' in frame:
            return frames
        if '"event":"chat.error"' in frame or '"error":{' in frame:
            raise SystemExit(f"a turn failed: {frame}")
