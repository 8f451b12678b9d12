"""Two providers for one agent: when the first fails mid-stream, the second starts the answer again."""

import asyncio

from atlas_agents import Agent, Atlas, RetryPolicy
from atlas_agents.testing import Scripted, fails, says

first = Scripted(says("Half an ans") + fails("connection lost"), id="first")
second = Scripted(says("A whole answer."), says("Another one."), id="second")

assistant = Agent("assistant", providers=[first, second], retry=RetryPolicy(order="given", retries=0))


async def main() -> None:
    async with Atlas(agents=[assistant]) as atlas:
        async for event in atlas.send("Hello?"):
            match event.type:
                case "stream:chunk":
                    print(repr(event.text))
                case "stream:reset":
                    print("reset: the message starts again")
                case "message:received":
                    print(event.message.text, "from", event.message.metadata["provider"])
                case _:
                    pass

        reply = await atlas.ask("And now?")  # the first provider is cooling down and is skipped
        print(reply.text, "from", reply.metadata["provider"])


asyncio.run(main())
