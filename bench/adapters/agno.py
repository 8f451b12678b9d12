"""agno: `Agent.arun(stream=True)`, without a database; telemetry is off."""

from agno.agent import Agent
from agno.models.message import Message
from agno.models.openai import OpenAIChat, OpenAIResponses

from scenarios import MODEL, SYSTEM, uses_responses

PIP = ["agno", "openai"]
IMPORT = "from agno.agent import Agent; from agno.models.openai import OpenAIChat"
RESPONSES = True


def setup(base_url):
    global PROVIDER
    if uses_responses(base_url):
        PROVIDER = OpenAIResponses(
            id=MODEL, base_url=base_url, api_key="x", store=False, include=["reasoning.encrypted_content"]
        )
    else:
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
