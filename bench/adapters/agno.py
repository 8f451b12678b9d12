"""agno: `Agent.arun(stream=True)`, without a database; telemetry is off."""

from agno.agent import Agent
from agno.models.message import Message
from agno.models.openai import OpenAIChat

from scenarios import MODEL, SYSTEM

PIP = ["agno", "openai"]
IMPORT = "from agno.agent import Agent; from agno.models.openai import OpenAIChat"


def setup(base_url):
    global PROVIDER
    PROVIDER = OpenAIChat(id=MODEL, base_url=base_url, api_key="x")


def make_agent(tools):
    return Agent(model=PROVIDER, instructions=SYSTEM, tools=tools, telemetry=False)


def make_history(pairs):
    return [Message(role=role, content=text) for role, text in pairs]


async def turn(agent, prompt, history, on_delta):
    texts = []
    given = [*history, Message(role="user", content=prompt)] if history else prompt
    async for event in agent.arun(given, stream=True):
        if event.event == "RunContent" and event.content:
            texts.append(event.content)
            on_delta(event.content)
    return "".join(texts)
