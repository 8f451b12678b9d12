"""Interceptors see messages and requests on their way, and may change, add or refuse."""

import asyncio
import re

from msgspec.structs import replace

from atlas_agents import Interceptor, Message, Refused, Request, Text, user
from atlas_agents.testing import Scripted, house, says


def hide_numbers(message: Message) -> Message:
    """What the user says, on its way into the conversation."""
    if "secret" in message.text:
        raise Refused("secrets stay here")
    return user(re.sub(r"\d{4,}", "[number]", message.text))


async def sign(message: Message) -> Message:
    """What the model says, on its way into the conversation; its other parts (calls, thinking) stay."""
    return replace(message, parts=(*message.parts, Text(" (A machine said so.)")))


def cool(request: Request) -> Request:
    """What is about to be sent to the model."""
    return replace(request, temperature=0.0)


async def main() -> None:
    model = Scripted(says("I will call you."))
    guard = Interceptor(outgoing=hide_numbers, incoming=sign, request=cool)
    async with house(model, interceptors=[guard]) as atlas:
        reply = await atlas.ask("Call me: 5550123")
        print(reply.text)
        print(model.requests[0].messages[0].text, model.requests[0].temperature)
        try:
            await atlas.ask("My secret is …")
        except Refused as error:
            print("refused:", error)


asyncio.run(main())
