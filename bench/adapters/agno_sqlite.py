"""agno as `agno`, with `AsyncSqliteDb`: the session and the whole run are written when the turn ends."""

from uuid import uuid4

from agno.agent import Agent
from agno.db.sqlite import AsyncSqliteDb
from agno.models.message import Message
from agno.run.agent import RunOutput
from agno.run.base import RunStatus
from agno.session import AgentSession

from adapters import agno
from adapters.agno import make_history, setup
from scenarios import SYSTEM

PIP = ["agno", "openai", "sqlalchemy[asyncio]", "aiosqlite"]
IMPORT = "from agno.agent import Agent; from agno.models.openai import OpenAIChat; import agno.db.sqlite"
DURABLE = True
__all__ = ["make_agent", "make_history", "setup", "store_history", "turn"]


def make_agent(tools):
    return Agent(
        id="bench",
        model=agno.PROVIDER,
        instructions=SYSTEM,
        tools=tools,
        telemetry=False,
        db=AsyncSqliteDb(db_file="bench.db"),
        add_history_to_context=True,
        num_history_runs=1000,
    )


async def store_history(agent, pairs):
    if not pairs:
        return None
    await agent.db.upsert_session(AgentSession("history", agent_id="bench", created_at=1))
    for number in range(0, len(pairs), 2):
        messages = [Message(role=role, content=text) for role, text in pairs[number : number + 2]]
        run = RunOutput(
            f"run{number}", agent_id="bench", session_id="history", messages=messages, status=RunStatus.completed
        )
        await agent.db.upsert_run(run, "history", run_index=number // 2)
    return "history"


async def turn(agent, prompt, session, on_delta):
    texts = []
    async for event in agent.arun(prompt, session_id=session or uuid4().hex, stream=True):
        if event.event == "RunContent" and event.content:
            texts.append(event.content)
            on_delta(event.content)
    return "".join(texts)
