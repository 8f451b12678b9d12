"""An agent remembers a fact about one user; other users cannot find it."""

import asyncio

from atlas_agents import Agent, Atlas, MemoryStore
from atlas_agents.knowledge.embedding import LocalEmbedder
from atlas_agents.knowledge.knowledge_base import KnowledgeBase
from atlas_agents.testing import Scripted, calls, says

LOOK = calls("search_my_memories", query="what may she not eat", sources=["memory"])


async def main() -> None:
    store = MemoryStore()
    knowledge_base = KnowledgeBase(store, LocalEmbedder())
    model = Scripted(
        calls("remember", text="Ann is allergic to peanuts.", tags=["food"]),
        says("I will remember that."),
        LOOK,
        says("No peanuts."),
        LOOK,
        says("I do not know."),
    )
    async with Atlas([Agent("tina", model=model, tools=knowledge_base.tools)], store=store) as atlas:
        await atlas.ask("I cannot eat peanuts", session="monday", user="ann")
        for user in ("ann", "bob"):
            await atlas.ask("What can I not eat?", session=f"{user} on friday", user=user)
            (found,) = [part.result for part in model.requests[-1].messages[-1].tool_results]
            print(user, [(each["source"], each["text"], each["tags"]) for each in found["results"]])
    await knowledge_base.close()


asyncio.run(main())
