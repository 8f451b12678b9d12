"""The local model's server speaks three APIs; the provider of each works with it."""

from typing import Any

import pytest

from atlas_agents import (
    Agent,
    Atlas,
    Conversation,
    RetryPolicy,
    ToolCall,
    ToolResult,
    assistant,
    tool,
    tool_message,
    user,
)
from atlas_agents.providers.anthropic import AnthropicProvider
from atlas_agents.providers.http import HttpProvider
from atlas_agents.providers.openai import OpenAIProvider
from atlas_agents.providers.openai_responses import OpenAIResponsesProvider
from local_weights import Make

WIRES: dict[str, type[HttpProvider]] = {
    "/v1/chat/completions": OpenAIProvider,
    "/v1/responses": OpenAIResponsesProvider,
    "/v1/messages": AnthropicProvider,
}
PAST = (
    user("What is the weather in Paris?"),
    assistant(ToolCall("call_1", "look_up", {"city": "Paris"})),
    tool_message(ToolResult("call_1", "ok", "sunny")),
    assistant("It is sunny."),
)


@tool
async def look_up(city: str) -> str:
    """Look up the weather in a city."""
    return f"sunny in {city}"


@pytest.mark.parametrize("path", WIRES)
async def test_two_turns_after_a_tool_call_through_each_api_of_the_server(path: str, share: Make) -> None:
    endpoint = await share().endpoint()
    provider: Any = WIRES[path]("local", base_url=f"{endpoint.url}/v1", api_key=endpoint.key.reveal())
    agent = Agent(
        "assistant",
        model=provider,
        tools=[look_up],
        max_tokens=16,
        temperature=0,
        retry=RetryPolicy(backoff=0.01),  # the server may close a kept-alive connection at any time
    )
    session = Conversation(PAST)
    async with Atlas([agent]) as atlas:
        replies = [await atlas.ask(text, session=session) for text in ("And in Rome?", "Thank you!")]
    assert all(reply.text for reply in replies)
    assert all(reply.metadata["usage"]["input"] > 10 and "estimated" not in reply.metadata for reply in replies)
    assert replies[0].metadata["stop_reason"] in ("stop", "length")
