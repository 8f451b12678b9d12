"""A process is killed while a tool runs; another process resumes the turn."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from atlas_agents import Agent, Atlas, SqliteStore, tool
from atlas_agents.testing import Scripted, calls, says

LEDGER = Path("ledger.txt")


@tool(effect="keyed", in_process=True)
def book(amount: int) -> str:
    """Write an amount into the ledger, once per idempotency key."""
    if not LEDGER.exists():
        LEDGER.write_text(f"{amount}\n")
        os.kill(os.getpid(), signal.SIGKILL)  # crash after the write, before the result is recorded
    return f"booked {amount}"


async def work(model: Scripted, words: str | None) -> None:
    store = SqliteStore("atlas.db")
    await store.open()
    async with Atlas([Agent("clerk", model=model, tools=[book])], store=store) as atlas:
        for stream in await atlas.recover():
            print("resumed:", (await atlas.sessions.history(stream.session))[0].text)
            print("answer:", (await stream.reply()).text)
        if words:
            await atlas.ask(words, session="books")
    await store.close()


if len(sys.argv) > 1:
    asyncio.run(work(Scripted(calls("book", amount=40)), "Book 40, please."))
else:
    died = subprocess.run([sys.executable, __file__, "first"], check=False).returncode
    print("the first process ended with", signal.Signals(-died).name)
    asyncio.run(work(Scripted(says("It is booked.")), None))
    print("ledger:", LEDGER.read_text().split())
