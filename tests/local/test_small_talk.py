"""The default agent with the tiny local model: everyday messages get plain text, never tool calls or JSON."""

from pathlib import Path

import pytest

from atlas_agents import Atlas
from atlas_agents.testing import Environment, Registry
from atlas_agents.tools.tool import tool
from atlas_agents.workspace import LOCAL_MODEL, Workspace, build_agents

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MESSAGES = (
    *("Hi", "Hello there!", "Good morning", "How are you?", "What's your name?", "Who are you?", "Thanks!"),
    *("Thank you very much", "Bye", "Tell me a joke", "What is the capital of France?", "What is 2 + 2?"),
    *("Write a short poem about rain", "I feel tired today", "What should I cook tonight?", "ok", "I like music"),
    *("Explain what an email is", "Can you help me?", "What can you do?", "Give me a name for my cat"),
    *("Say something nice", "How do I boil an egg?", "What is a computer?", "Translate good morning to Spanish"),
    *("Who wrote Romeo and Juliet?", "What is the meaning of life?", "Recommend me a book", "Nice to meet you"),
    *("Write a haiku about the sea", "What day is today?", "I have a question", "Write a birthday greeting"),
)


@tool(effect="pure")
async def current_time() -> str:
    """Tell the date and the time of this machine."""
    return "Monday, 09:00"


async def test_everyday_messages_are_answered_with_plain_text(shared_home: Path, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    workspace.prepare()
    registry = Registry(Environment({"ATLAS_HOME": str(shared_home)}, dotenv=None))
    built = build_agents(workspace.state, [current_time], registry)
    assert built.refs == (LOCAL_MODEL,)
    wrong: dict[str, str] = {}
    async with Atlas(built.agents, registry=registry) as atlas:
        for message in MESSAGES:
            result = await atlas.run(message, settings={"max_tokens": 4})  # its first token opens a call
            if result.steps or "{" in result.answer or not result.answer.strip():
                wrong[message] = f"{result.answer} {result.steps}"
    assert wrong == {}
