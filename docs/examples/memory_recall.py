"""Relevant memories are added before the message that the model reads."""

import asyncio
import re

from atlas_agents import Agent, Atlas, MemoryStore
from atlas_agents.knowledge.embedding import LocalEmbedder
from atlas_agents.knowledge.knowledge_base import KnowledgeBase
from atlas_agents.knowledge.memories import MemoryOrigin, MemoryOwner
from atlas_agents.testing import Scripted, says


async def main() -> None:
    store = MemoryStore()
    knowledge_base = KnowledgeBase(store, LocalEmbedder())
    ann = MemoryOwner("default", "tina", "ann")
    await knowledge_base.memories.remember(ann, "Ann drinks tea, never coffee.", ["food"], MemoryOrigin(key="1"))
    await knowledge_base.memories.remember(ann, "Her boat is called Petrel.", ["boat"], MemoryOrigin(key="2"))

    model = Scripted(says("A tea."))
    atlas = Atlas([Agent("tina", model=model)], store=store, interceptors=[knowledge_base.recall_interceptor()])
    async with atlas:
        await atlas.ask("Order me tea or coffee", user="ann")
    for message in model.requests[0].messages:
        print(f"{message.role}: {re.sub(r'20..-..-..', 'some day', message.text)}")
    await knowledge_base.close()


asyncio.run(main())
