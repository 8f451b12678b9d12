"""Run code written by a model in a sandbox, after a person approved it."""

import asyncio
from pathlib import Path

from atlas_agents import Agent, Atlas, MemoryAudit, Question
from atlas_agents.builtin_tools.code.tool import CodeInterpreter, code_tool
from atlas_agents.testing import Scripted, calls, says

CODE = """
import statistics
numbers = [3, 1, 4, 1, 5, 9, 2, 6]
open("numbers.txt", "w").write(str(numbers))
print("of", len(numbers), "numbers")
statistics.median(numbers)
"""


def approve(question: Question) -> bool:
    print(f"Run {question.tool}?")
    return True


async def main() -> None:
    interpreter = CodeInterpreter(Path("workspace"), sandbox="bubblewrap")
    model = Scripted(calls("code_interpreter", code=CODE), says("The median is 3.5."))
    audit = MemoryAudit()
    atlas = Atlas([Agent("analyst", model=model, tools=[code_tool(interpreter)])], audit=audit, approve=approve)
    async with atlas:
        reply = await atlas.ask("What is the median of the first digits of pi?")
        print(reply.text)
    await interpreter.close()
    for record in await audit.records():
        print(record.entry.meta["result"])
        print(record.entry.meta["notes"])


asyncio.run(main())
