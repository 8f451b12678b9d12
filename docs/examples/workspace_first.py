"""The first run of a workspace: default files, and an agent that answers although its key is not set."""

import asyncio
import logging
import sys

from atlas_agents import Atlas
from atlas_agents.providers.registry import Registry
from atlas_agents.workspace import Workspace, build_agents


async def main() -> None:
    logging.basicConfig(stream=sys.stdout, format="log: %(message)s")
    workspace = Workspace("workspace")
    print("written:", workspace.prepare(), sorted(path.name for path in workspace.path.iterdir()))
    built = build_agents(workspace.state, tools=[], providers=Registry())
    async with Atlas(built.agents) as atlas:
        print((await atlas.ask("Hello!")).text)


asyncio.run(main())
