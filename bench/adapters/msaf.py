"""Microsoft agent-framework: `Agent.run(stream=True)` on its clients of both APIs."""

from agent_framework import Agent, Message
from agent_framework_openai import OpenAIChatClient, OpenAIChatCompletionClient

from scenarios import MODEL, SYSTEM, uses_responses

PIP = ["agent-framework-core", "agent-framework-openai"]
IMPORT = "from agent_framework import Agent; from agent_framework_openai import OpenAIChatCompletionClient"
RESPONSES = True


def setup(base_url):
    global PROVIDER
    kind = OpenAIChatClient if uses_responses(base_url) else OpenAIChatCompletionClient
    PROVIDER = kind(model=MODEL, base_url=base_url, api_key="x")


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
