"""strands-agents: `Agent.stream_async`. An agent holds one conversation, so idle agents wait in a pool."""

from openai import AsyncOpenAI
from strands import Agent, tool
from strands.models.openai import OpenAIModel

from scenarios import MODEL, SYSTEM

PIP = ["strands-agents[openai]"]
IMPORT = "from strands import Agent, tool; from strands.models.openai import OpenAIModel"
IDLE = []


def setup(base_url):
    global PROVIDER
    PROVIDER = OpenAIModel(client=AsyncOpenAI(base_url=base_url, api_key="x"), model_id=MODEL)


def build(tools):
    described = [tool(function) for function in tools]
    return Agent(model=PROVIDER, tools=described, system_prompt=SYSTEM, callback_handler=None)


def make_agent(tools):
    """Return the tools: a turn that finds no idle agent builds one from them."""
    IDLE[:] = [build(tools)]
    return tools


def make_history(pairs):
    return [{"role": role, "content": [{"text": text}]} for role, text in pairs]


async def turn(tools, prompt, history, on_delta):
    agent = IDLE.pop() if IDLE else build(tools)
    agent.messages = list(history)
    final = ""
    async for event in agent.stream_async(prompt):
        if "data" in event:
            on_delta(event["data"])
        elif "result" in event:
            final = event["result"].message["content"][0]["text"]
    IDLE.append(agent)
    return final
