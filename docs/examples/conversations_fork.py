"""Keep a conversation yourself: save it, load it and fork it at any message."""

import asyncio

from atlas_agents import Conversation, Message, assistant
from atlas_agents.testing import Scripted, in_memory_atlas, says


async def main() -> None:
    model = Scripted(says("Blue."), says("The sea."), says("A meadow."))
    async with in_memory_atlas(model) as atlas:
        talk = Conversation(metadata={"topic": "colours"})
        await atlas.ask("Pick a colour.", session=talk)
        await atlas.ask("What has this colour?", session=talk)

        lines = [message.to_json() for message in talk.messages]
        loaded = Conversation(Message.from_json(line) for line in lines)

        other = loaded.fork(at=loaded.messages[0])  # keeps only the first message
        other.messages.append(assistant("Green."))
        await atlas.ask("What has this colour?", session=other)

    for each in (talk, other):
        print([message.text for message in each.messages])


asyncio.run(main())
