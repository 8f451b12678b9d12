"""Cancel an answer while it streams, then continue the same conversation."""

import asyncio

from atlas_agents import Agent, Atlas, Cancelled, tool


@tool
async def get_weather(city: str) -> str:
    """Get today's weather in a city."""
    return f"Sunny in {city}, 24 degrees."


assistant = Agent("assistant", system_prompt="Be brief.", tools=[get_weather])


async def main() -> None:
    async with Atlas(agents=[assistant]) as atlas:
        stream = atlas.send("Tell me a long story.")
        async for event in stream:
            if event.type == "stream:chunk":
                print(event.text, end="", flush=True)
                if len(stream.text) > 30:
                    stream.cancel()
        try:
            await stream.reply()
        except Cancelled:
            print(" … stopped.")

        reply = await atlas.ask("Never mind. What is the weather in Oslo?")
        print(reply.text)
        for message in atlas.conversation().messages:
            print(f"  {message.role}: {message.text or message.parts[0].type}")


asyncio.run(main())
