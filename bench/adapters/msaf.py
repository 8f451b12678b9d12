"""Microsoft agent-framework: `Agent.run(stream=True)` on its chat completions client."""

from agent_framework import Agent, Message
from agent_framework_openai import OpenAIChatCompletionClient

from scenarios import MODEL, SYSTEM

PIP = ["agent-framework-core", "agent-framework-openai"]
IMPORT = "from agent_framework import Agent; from agent_framework_openai import OpenAIChatCompletionClient"


def setup(base_url):
    global PROVIDER
    PROVIDER = OpenAIChatCompletionClient(model=MODEL, base_url=base_url, api_key="x")


def make_agent(tools):
    return Agent(PROVIDER, instructions=SYSTEM, tools=tools)


def make_history(pairs):
    return [Message(role, [text]) for role, text in pairs]


async def turn(agent, prompt, history, on_delta):
    stream = agent.run([*history, Message("user", [prompt])], stream=True)
    async for update in stream:
        if update.text:
            on_delta(update.text)
    return (await stream.get_final_response()).messages[-1].text
