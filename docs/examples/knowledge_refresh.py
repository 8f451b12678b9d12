"""Keep documents up to date: only changed files are read again, and deleted files are removed."""

import asyncio
import tempfile
from pathlib import Path

from atlas_agents import MemoryStore
from atlas_agents.knowledge.knowledge_base import KnowledgeBase
from atlas_agents.knowledge.library import Progress


async def main() -> None:
    knowledge_base = KnowledgeBase(MemoryStore())  # no embedder: full-text search only
    knowledge = knowledge_base.knowledge
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "tea.md").write_text("# Tea\n\nGreen tea needs 80 degrees.\n")
        (folder / "bread.txt").write_text("Bread needs 220 degrees.\n")

        def show(progress: Progress) -> None:
            print(progress.done, "of", progress.total)

        print(await knowledge.add("default", place, category="kitchen", on_progress=show))

        (folder / "tea.md").write_text("# Tea\n\nBlack tea needs 95 degrees.\n")
        (folder / "bread.txt").unlink()
        print(await knowledge.refresh("default"))

        for found in await knowledge.search("default", "degrees", category="kitchen"):
            print(found.document.title, "|", found.passage.text)
        print(await knowledge.search("another tenant", "degrees"))
        print("removed:", await knowledge.remove("default", place))
    await knowledge_base.close()


asyncio.run(main())
