"""Edits are picked up while the program runs; an invalid edit changes nothing."""

import asyncio
import logging
from contextlib import aclosing
from pathlib import Path

from atlas_agents.workspace import Workspace

logging.disable()  # the log repeats the errors printed below
EDITS = ["## ana\nDescription: New here.\n", "## ana\nModel: gpt\n", "## ben\nDescription: Another one.\n"]


def edit(text: str) -> None:
    Path("workspace/AGENTS.md").write_text(text)


async def main() -> None:
    workspace = Workspace("workspace")
    workspace.prepare()
    workspace.load()
    async with aclosing(workspace.watch(every=0.05)) as states:
        for text in EDITS:
            edit(text)
            state = await anext(states)
            print([spec.id for spec in state.agents], *(error.rpartition("/AGENTS.md")[2] for error in state.errors))


asyncio.run(main())
