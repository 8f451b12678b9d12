"""Interceptors change, add or refuse messages and requests."""

import asyncio
import re

from msgspec.structs import replace

from atlas_agents import Interceptor, Message, ModelSettings, Refused, Request, Text, user
from atlas_agents.testing import Scripted, in_memory_atlas, says


def hide_numbers(message: Message) -> Message:
    """Change the user's message before it joins the conversation."""
    if "secret" in message.text:
        raise Refused("messages about secrets are not allowed")
    return user(re.sub(r"\d{4,}", "[number]", message.text))


async def sign(message: Message) -> Message:
    """Change the model's message before it joins the conversation; keep its other parts."""
    return replace(message, parts=(*message.parts, Text(" (Written by a model.)")))


def set_temperature(request: Request) -> Request:
    """Change the request before it is sent to the model."""
    return replace(request, settings=request.settings.merge(ModelSettings(temperature=0.0)))


async def main() -> None:
    model = Scripted(says("I will call you."))
    guard = Interceptor(outgoing=hide_numbers, incoming=sign, request=set_temperature)
    async with in_memory_atlas(model, interceptors=[guard]) as atlas:
        reply = await atlas.ask("Call me: 5550123")
        print(reply.text)
        print(model.requests[0].messages[0].text, model.requests[0].settings.temperature)
        try:
            await atlas.ask("My secret is …")
        except Refused as error:
            print("refused:", error)


asyncio.run(main())
