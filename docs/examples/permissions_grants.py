"""A tool names the permissions it needs; a grant to the agent, its role or the user allows the call."""

import asyncio

from atlas_agents import Policy, tool
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says

policy = Policy(grants={"assistant": ["file:read"], "operator": ["file:*"], "user:uma": ["file:write"]})


@tool(permissions=["file:read", "file:write"])
async def rename(old: str, new: str) -> str:
    """Give a file another name."""
    return f"{old} is now {new}"


async def main() -> None:
    call = calls("rename", old="a.txt", new="b.txt")
    for user, role in [("tom", ""), ("uma", ""), ("tom", "operator")]:
        model = Scripted(call, says("Done."))
        async with in_memory_atlas(model, [rename], agent={"role": role}, policy=policy) as atlas:
            await atlas.ask("Rename a.txt to b.txt", user=user)
            for row in await atlas.audit.records("default"):
                print(row.entry.meta["verdict"], "|", row.entry.meta["result"])


asyncio.run(main())
