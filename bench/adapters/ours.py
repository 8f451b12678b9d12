"""Atlas Agents with its defaults: every call is authorised, validated, limited and audited; every event is sent."""

from atlas_agents import Agent, Atlas, Conversation, OpenAIProvider, assistant, user
from scenarios import MODEL, SYSTEM

PIP = ["$BENCH_OURS"]
IMPORT = "from atlas_agents import Agent, Atlas, OpenAIProvider"
LONG_TURNS = True


def setup(base_url):
    global PROVIDER
    PROVIDER = OpenAIProvider(base_url=base_url, api_key="x", model=MODEL)


def make_agent(tools):
    agent = Agent("bench", model=PROVIDER, system_prompt=SYSTEM, tools=tools, max_rounds=1000)
    return Atlas(agents=[agent])


def make_history(pairs):
    return [user(text) if role == "user" else assistant(text) for role, text in pairs]


async def turn(atlas, prompt, history, on_delta):
    stream = atlas.send(prompt, session=Conversation(history))
    async for event in stream:
        if event.type == "stream:chunk":
            on_delta(event.text)
    return (await stream.reply()).text
