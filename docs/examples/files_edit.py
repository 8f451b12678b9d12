"""An agent reads and edits files in one folder; a person sees each change before it is written."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from atlas_agents import Policy, Question
from atlas_agents.builtin_tools.files import file_tools
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says

POLICY = Policy(tools={"file_write": {"*": "yes"}, "file_edit": {"*": "ask"}})


def approve(question: Question) -> bool:
    print(question.preview)
    return "AGENTS.md" not in question.preview


def show(event: Any) -> None:
    print(f"{event.name}: {event.error or 'ok'}: {event.result}")


async def main() -> None:
    folder = Path(tempfile.mkdtemp())
    (folder / "tea.txt").write_text("green\nblack\n")
    model = Scripted(
        calls("file_read", path="tee.txt"),
        calls("file_read", path="tea.txt"),
        calls("file_edit", path="tea.txt", old="black", new="white"),
        calls("file_write", path="AGENTS.md", content="## boss\n"),  # always asks, whatever the policy says
        calls("file_read", path="../../etc/passwd"),
        says("Done."),
    )
    async with in_memory_atlas(model, file_tools(folder), policy=POLICY, approve=approve) as atlas:
        atlas.on("tool:result", show)
        await atlas.ask("Tidy up.")


asyncio.run(main())
