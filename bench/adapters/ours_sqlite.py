"""Atlas Agents as `ours`, with its SQLite store: message, reply, call, result, audit record and end are committed."""

from pathlib import Path
from uuid import uuid4

from adapters import ours
from adapters.ours import make_history, setup
from atlas_agents import Agent, Atlas, SqliteStore, assistant, user
from atlas_agents.core.store import AcceptRun, AddMessage, ClaimRun, PutSession, SetRun
from scenarios import SYSTEM

PIP = ["$BENCH_OURS"]
IMPORT = "from atlas_agents import Agent, Atlas, OpenAIProvider, SqliteStore"
DURABLE = True
__all__ = ["make_agent", "make_history", "setup", "store_history", "turn"]


def make_agent(tools):
    agent = Agent("bench", model=ours.PROVIDER, system_prompt=SYSTEM, tools=tools)
    return Atlas(agents=[agent], store=SqliteStore(Path("bench.db")))


async def store_history(atlas, pairs):
    await atlas.store.open()
    if not pairs:
        return None
    writes = [PutSession("history")]
    for number in range(0, len(pairs), 2):
        run, messages = f"run{number}", (user(pairs[number][1]), assistant(pairs[number + 1][1]))
        writes += [AcceptRun(run, "history", "bench", "", "", "", messages[0].to_json()), ClaimRun(run)]
        writes += [AddMessage("history", message.id, message.to_json(), run) for message in messages]
        writes.append(SetRun(run, 1, "done"))
    await atlas.store.commit("default", writes)
    return "history"


async def turn(atlas, prompt, session, on_delta):
    stream = atlas.send(prompt, session=session or uuid4().hex)
    async for event in stream:
        if event.type == "stream:chunk":
            on_delta(event.text)
    return (await stream.reply()).text
