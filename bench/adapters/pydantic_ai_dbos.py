"""pydantic-ai with `DBOSDurability` on SQLite: input and output of the turn, model replies and tool results are stored.

DBOS has no sessions: the history is an argument of the workflow, and so it is stored again with every turn.
"""

from dbos import DBOS
from pydantic_ai import (
    Agent,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    UserPromptPart,
)
from pydantic_ai.durable_exec.dbos import DBOSDurability
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from scenarios import MODEL, SYSTEM

PIP = ["pydantic-ai-slim[openai,dbos]"]
IMPORT = "from pydantic_ai import Agent; from pydantic_ai.models.openai import OpenAIChatModel; from dbos import DBOS"
DURABLE = True


def setup(base_url):
    global PROVIDER
    DBOS(config={"name": "bench", "system_database_url": "sqlite:///bench.db", "run_admin_server": False})
    PROVIDER = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=base_url, api_key="x"))


async def handle_events(_, events):
    async for event in events:
        if isinstance(event, PartDeltaEvent):
            if isinstance(event.delta, TextPartDelta):
                ON_DELTA(event.delta.content_delta)
        elif isinstance(event, PartStartEvent) and isinstance(event.part, TextPart) and event.part.content:
            ON_DELTA(event.part.content)


@DBOS.workflow()
async def run_turn(prompt, history):
    result = await AGENT.run(prompt, message_history=history)
    return result.output, result.new_messages()


def make_agent(tools):
    global AGENT
    steps = [DBOS.step()(tool) for tool in tools]
    durability = DBOSDurability(event_stream_handler=handle_events)
    AGENT = Agent(PROVIDER, name="bench", instructions=SYSTEM, tools=steps, capabilities=[durability])
    return AGENT


def make_history(pairs):
    return [
        ModelRequest([UserPromptPart(text)]) if role == "user" else ModelResponse([TextPart(text)])
        for role, text in pairs
    ]


async def store_history(agent, pairs):
    DBOS.launch()
    return make_history(pairs)


async def turn(agent, prompt, history, on_delta):
    global ON_DELTA
    ON_DELTA = on_delta
    output, messages = await run_turn(prompt, history)
    if history:
        history += messages
    return output
