"""A turn whose process kills itself while a tool runs: `python killed_turn.py ADDRESS PROVIDER MODEL DATABASE`."""

import asyncio
import os
import signal
import sys

from atlas_agents import Agent, Atlas, tool
from atlas_agents.providers.gemini import GeminiProvider
from atlas_agents.providers.openai import OpenAIProvider
from atlas_agents.storage.sqlite import SqliteStore

KEY = "sk-canary-0123456789"


@tool(effect="keyed", in_process=True)
def weather(city: str) -> str:
    """Look up the weather."""
    if sys.argv[0] == __file__:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"Sunny in {city}"


async def run_turn(address: str, provider: str, model: str, database: str, text: str = "") -> list[str]:
    """Resume what is unfinished, then ask; return the answers."""
    store = SqliteStore(database)
    await store.open()
    kind = GeminiProvider if provider == "google" else OpenAIProvider
    chosen = kind(model, base_url=address, api_key=KEY, id=provider)
    async with Atlas([Agent("assistant", model=chosen, tools=[weather])], store=store) as atlas:
        answers = [(await stream.reply()).text for stream in await atlas.recover()]
        if text:
            answers.append((await atlas.ask(text, session="weather")).text)
    await store.close()
    return answers


if __name__ == "__main__":
    asyncio.run(run_turn(*sys.argv[1:], text="Weather?"))
