"""Each user's calls work in a folder of their own: the tool is built for the user who makes the call."""

import asyncio
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from atlas_agents import MemoryStore, Tool
from atlas_agents.builtin_tools.files import file_tools
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says

TOP = Path(tempfile.mkdtemp())


@cache
def file_read(user: str) -> Tool:
    folder = TOP / (user or "shared")
    folder.mkdir(exist_ok=True)
    return file_tools(folder)[0]


def show(event: Any) -> None:
    print(f"{event.name}: {event.error or 'ok'}: {event.result}")


async def main() -> None:
    file_read("ana")
    (TOP / "ana" / "notes.txt").write_text("water the plants\n")
    model = Scripted(
        calls("file_read", path="notes.txt"), says("Read."), calls("file_read", path="notes.txt"), says("?")
    )
    async with in_memory_atlas(model, [file_read("").per_user(file_read)], store=MemoryStore()) as atlas:
        atlas.on("tool:result", show)
        for user in ("ana", "bo"):
            await atlas.send("Read my notes.", session=user, user=user).reply()


asyncio.run(main())
