"""A rule allows a plain command without approval; anything that needs a shell asks."""

import asyncio
import tempfile
from typing import Any

from atlas_agents import Policy, Question
from atlas_agents.builtin_tools.bash import bash_tool
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says

POLICY = Policy(tools={"bash": {"*": "ask"}}, commands=[{"argv": ["echo", "**"]}])


def approve(question: Question) -> bool:
    print(f"asked: {question.arguments['command']}")
    return "rm" not in question.arguments["command"]


def show(event: Any) -> None:
    print(event.error or str(event.result).splitlines()[0])


async def main() -> None:
    model = Scripted(
        calls("bash", command="echo hello 'wide world'"),
        calls("bash", command="echo hello | tr a-z A-Z"),
        calls("bash", command="echo hello; rm -rf ."),
        says("Done."),
    )
    async with in_memory_atlas(model, [bash_tool(tempfile.mkdtemp())], policy=POLICY, approve=approve) as atlas:
        atlas.on("tool:result", show)
        await atlas.ask("Greet.")


asyncio.run(main())
