"""The first run of a workspace: default files, and the agent they define."""

import asyncio

from atlas_agents import Atlas, Registry
from atlas_agents.workspace import Workspace, build_agents


async def main() -> None:
    workspace = Workspace("workspace")
    print("written:", workspace.prepare(), sorted(path.name for path in workspace.path.iterdir()))
    print(workspace.system_prompt().count("\n\n---\n\n"), "lines between the files")
    built = build_agents(workspace.state, tools=[], providers=Registry())
    async with Atlas(built.agents) as atlas:
        print((await atlas.ask("Hello!")).text)


asyncio.run(main())
