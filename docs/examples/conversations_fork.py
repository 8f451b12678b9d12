"""Keep a conversation yourself: save it, load it and fork it at any message."""

import asyncio

from atlas_agents import Conversation, assistant
from atlas_agents.testing import Scripted, in_memory_atlas, says


async def main() -> None:
    model = Scripted(says("Blue."), says("The sea."), says("A meadow."))
    async with in_memory_atlas(model) as atlas:
        talk = Conversation(metadata={"topic": "colours"})
        await atlas.ask("Pick a colour.", session=talk)
        await atlas.ask("What has this colour?", session=talk)

        loaded = Conversation.from_json(talk.to_json())
        other = loaded.fork(at=loaded.messages[0])  # keeps only the first message
        other.messages.append(assistant("Green."))
        await atlas.ask("What has this colour?", session=other)

    for each in (talk, other):
        print([message.text for message in each])


asyncio.run(main())
