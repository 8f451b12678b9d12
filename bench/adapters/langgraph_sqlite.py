"""langchain's `create_agent` (a LangGraph graph) with `AsyncSqliteSaver`: a checkpoint after every node.

By default a checkpoint is written while the next node runs already.
"""

from uuid import uuid4

import aiosqlite
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from scenarios import MODEL, SYSTEM

PIP = ["langchain", "langchain-openai", "langgraph-checkpoint-sqlite"]
IMPORT = "from langchain.agents import create_agent; from langchain_openai import ChatOpenAI"
DURABLE = True


def setup(base_url):
    global PROVIDER
    PROVIDER = ChatOpenAI(model=MODEL, base_url=base_url, api_key="x")


def make_agent(tools):
    saver = AsyncSqliteSaver(aiosqlite.connect("bench.db"))
    return create_agent(PROVIDER, tools, system_prompt=SYSTEM, checkpointer=saver)


def make_history(pairs):
    return [HumanMessage(text) if role == "user" else AIMessage(text) for role, text in pairs]


async def store_history(agent, pairs):
    await agent.checkpointer.conn
    if not pairs:
        return None
    await agent.aupdate_state({"configurable": {"thread_id": "history"}}, {"messages": make_history(pairs)})
    return "history"


async def turn(agent, prompt, session, on_delta):
    texts = []
    config = {"configurable": {"thread_id": session or uuid4().hex}}
    state = {"messages": [HumanMessage(prompt)]}
    async for message, _ in agent.astream(state, stream_mode="messages", config=config):
        if message.type == "AIMessageChunk" and message.content:
            texts.append(message.content)
            on_delta(message.content)
    return "".join(texts)
