"""A gateway that kills itself: `kill_process.py HOME PORT SCRIPT KILL_AT SEED`.

It is killed with SIGKILL at its KILL_AT-th fault point, counted from its start; 0 means never. Before and after every
store operation and before every piece of text there is a fault point, which waits for a random time, as on a busy disk.
"""

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any

from kill_scripts import PAUSE, SCRIPTS

from atlas_agents import Approvals, Chunk, Request, TextChunk, Tool
from atlas_agents.gateway.server import Gateway, run
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.gateway.telemetry import configure_logging
from atlas_agents.storage.sqlite import SqliteStore
from atlas_agents.testing import Reply, Scripted, calls, in_memory_atlas, says

_OPERATIONS = ("commit", "messages", "events", "run", "runs", "open_runs", "orphaned_runs", "session", "journal")
_DELAYS = (0.0, 0.001, 0.001, 0.002, 0.004, 0.015)


class FaultPoints:
    """Counts fault points, waits at each, and kills the process at one of them."""

    def __init__(self, kill_at: int, seed: int) -> None:
        self._kill_at = kill_at
        self._random = random.Random(seed)
        self._count = 0

    async def reach(self) -> None:
        self._count += 1
        if self._count == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(self._random.choice(_DELAYS))


def add_fault_points(store: SqliteStore, points: FaultPoints) -> None:
    """Reach a fault point before and after every operation of the store."""

    def surrounded(operation: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @wraps(operation)
        async def call(*arguments: Any, **options: Any) -> Any:
            await points.reach()
            result = await operation(*arguments, **options)
            await points.reach()
            return result

        return call

    for name in _OPERATIONS:
        setattr(store, name, surrounded(getattr(store, name)))


class ScriptModel(Scripted):
    """Gives the reply that follows from the conversation, so that a restarted process continues the script."""

    def __init__(self, script: str, points: FaultPoints) -> None:
        super().__init__()
        self._points = points
        self._script = [_reply(text) for text in SCRIPTS[script]]

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        replies = 0
        for message in request.messages:
            replies = 0 if message.role == "user" else replies + (message.role == "assistant")
        async for chunk in Scripted(self._script[replies]).stream(request):
            if isinstance(chunk, TextChunk):
                await self._points.reach()
            yield chunk


def _reply(text: str) -> Reply:
    """Build a reply from its text; a text that ends with `!name` or `?name` calls the tool `note` or `ask`."""
    for mark, tool in (("!", "note"), ("?", "ask")):
        before, found, name = text.partition(mark)
        if found:
            return says(before) + calls(tool, input=name) if before else calls(tool, input=name)
    return says(text)


async def main(home: Path, port: int, script: str, kill_at: int, seed: int) -> None:
    async def note(input: str) -> str:
        await asyncio.sleep(PAUSE)
        return "noted"

    points = FaultPoints(kill_at, seed)
    store = SqliteStore(home / "atlas.db")
    await points.reach()
    await store.open()
    add_fault_points(store, points)
    tools = [Tool("note", note), Tool("ask", note, confirm=True)]
    atlas = in_memory_atlas(ScriptModel(script, points), tools, store=store, approve=Approvals(wait=True))
    await Gateway(atlas, GatewaySettings(home=home, port=port, grace=0.5)).serve(lambda _: print("ready", flush=True))
    await store.close()


if __name__ == "__main__":
    configure_logging()
    home, port, script, kill_at, seed = sys.argv[1:]
    run(main(Path(home), int(port), script, int(kill_at), int(seed)))
