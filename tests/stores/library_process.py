"""A program that runs one turn on an SQLite file: `library_process.py DATABASE SESSION GATE [recover]`.

It prints `running` when its tool runs, and the tool ends when something is written to the pipe GATE.
"""

import asyncio
import sys
from pathlib import Path

from atlas_agents import Agent, Atlas, StoreError, tool
from atlas_agents.storage.sqlite import SqliteStore
from atlas_agents.testing import Scripted, calls, says

DATABASE, SESSION, GATE, *FLAGS = sys.argv[1:]


@tool(effect="pure")
async def wait() -> str:
    """Wait for the gate."""
    print("running", flush=True)
    return await asyncio.to_thread(Path(GATE).read_text)


async def main() -> None:
    store = SqliteStore(DATABASE)
    await store.open()
    model = Scripted(calls("wait"), says("Done."), calls("wait"), says("Done."))
    try:
        async with Atlas([Agent("assistant", model=model, tools=[wait])], store=store) as atlas:
            streams = await atlas.recover() if FLAGS else [atlas.send("Go.", session=SESSION)]
            for stream in streams:
                print((await stream.reply()).text, flush=True)
    except StoreError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    finally:
        await store.close()


asyncio.run(main())
