"""A gateway in its own process: `gateway_process.py HOME PAUSE REPLY…`. Its first line of output is the port.

A reply is text; `!name` calls the tool `note`, which appends the name to HOME/effects, and `?name` the tool `ask`;
`*number` is a text of that many kilobytes. FILES and MEMORY (in MB) limit the process, USED (in MB) it reserves,
GRACE is the time for turns at shutdown in seconds, QUEUED (in MB) what may wait for a client that reads slowly.
"""

import asyncio
import mmap
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paced_model import Paced

from atlas_agents import Approvals, TextChunk, Tool
from atlas_agents.core.store import Write
from atlas_agents.gateway.server import Gateway, run
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.gateway.telemetry import configure_logging
from atlas_agents.storage.sqlite import SqliteStore
from atlas_agents.testing import Reply, calls, in_memory_atlas, says


class SlowStore(SqliteStore):
    """Waits before each commit while the file `slow` in its folder contains a number of seconds: a busy disk."""

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        if (slow := self.path.with_name("slow")).exists():
            await asyncio.sleep(float(slow.read_text()))
        return await super().commit(tenant, writes)


async def main(home: Path, pause: float, replies: list[str]) -> None:
    async def note(input: str) -> str:
        with (home / "effects").open("a") as file:
            file.write(f"{input}\n")
        await asyncio.sleep(pause * 20)
        return "noted"

    tools = [Tool("note", note), Tool("ask", note, confirm=True)]
    store = SlowStore(home / "atlas.db")
    await store.open()
    model = Paced(*[_reply(text) for text in replies], pause=pause)
    atlas = in_memory_atlas(model, tools, store=store, approve=Approvals(wait=True))
    grace, queued = float(os.environ.get("GRACE", "1")), int(os.environ.get("QUEUED", "1")) << 20
    gateway = Gateway(atlas, GatewaySettings(home=home, port=0, grace=grace, max_queued=queued))
    await gateway.serve(lambda ready: print(ready.port, flush=True))
    await store.close()


def _reply(text: str) -> Reply:
    if text.startswith("*"):
        return Reply(*[TextChunk("x" * 4096)] * (int(text[1:]) // 4))
    if text.startswith("!"):
        return calls("note", input=text[1:])
    return calls("ask", input=text[1:]) if text.startswith("?") else says(text)


if __name__ == "__main__":
    configure_logging()
    files = int(os.environ.get("FILES", 0)) or resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    if memory := int(os.environ.get("MEMORY", 0)) << 20:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    used = mmap.mmap(-1, (int(os.environ.get("USED", 0)) << 20) or 1)
    run(main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
