"""Older messages become a summary before the conversation exceeds the context window."""

import asyncio

from atlas_agents import Compaction, History
from atlas_agents.testing import Scripted, in_memory_atlas, says

SUMMARY = "<summary>The user moves to Lima in May. Open task: find a flat.</summary>"


async def main() -> None:
    model = Scripted(says("Noted."), says(SUMMARY), says("In May."))
    async with in_memory_atlas(model, history=History(compaction=Compaction(window=2000))) as atlas:
        atlas.on("session:compacted", lambda event: print(event.messages, "messages were summarised"))
        await atlas.ask("I move to Lima in May. " + "These are my notes. " * 400)
        reply = await atlas.ask("When do I move?")
        print(reply.text)
        for message in model.requests[-1].messages:
            print("-", message.text.replace("\n\n", " "))
        print(len(atlas.conversation()), "messages are stored")


asyncio.run(main())
