"""An agent searches documents and cites its source."""

import asyncio
import tempfile
from pathlib import Path

from atlas_agents import Agent, Atlas, MemoryStore
from atlas_agents.knowledge.embedding import LocalEmbedder
from atlas_agents.knowledge.knowledge_base import KnowledgeBase
from atlas_agents.testing import Scripted, calls, says

HANDBOOK = """\
# Handbook

## Holidays

Everyone has 27 days off a year. Ask two weeks ahead.

## Access

Your badge opens the building from six in the morning until ten at night.
"""


async def main() -> None:
    store = MemoryStore()
    knowledge_base = KnowledgeBase(store, LocalEmbedder())
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "handbook.md").write_text(HANDBOOK)
        report = await knowledge_base.knowledge.add("default", f"{folder}/handbook.md", category="people")
    print(f"{report.added} document, {report.passages} passages")

    model = Scripted(
        calls("search_knowledge", query="how much vacation do I get", max_results=1),
        says("27 days a year (handbook.md, line 5)."),
    )
    agent = Agent("tina", model=model, tools=knowledge_base.tools)
    async with Atlas([agent], store=store) as atlas:
        async for event in atlas.send("How much vacation do I get?"):
            if event.type == "tool:result":
                (found,) = event.result["results"]
                print(f"{found['source']}, {found['position']}: {found['heading']}\n{found['text']}")
            elif event.type == "message:received":
                print("→", event.message.text)
    await knowledge_base.close()


asyncio.run(main())
