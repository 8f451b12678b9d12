"""Long sessions on the strict doubles: no vendor refuses a request after a summary, cleared results or a cut history.

Anthropic's newest models bind thinking blocks to the conversation before them, Gemini and DeepSeek require those of the
current turn, and all of them refuse a result without its call.
"""

from typing import Any

import pytest

from atlas_agents import Agent, AnthropicProvider, Atlas, Compaction, GeminiProvider, History, OpenAIProvider, tool
from atlas_agents.core.messages import Conversation
from atlas_agents.providers.openai_responses import OpenAIResponsesProvider
from vendors.anthropic import AnthropicDouble
from vendors.common import KEY, Answer, VendorDouble, VendorRequest
from vendors.deepseek import DeepSeekDouble
from vendors.gemini import GeminiDouble
from vendors.openai_chat import OpenAIChatDouble
from vendors.openai_responses import OpenAIResponsesDouble

TURNS = 14
ANSWER = "It is sunny. " + "y" * 400
SUMMARY = Answer("<summary>The user asks for the weather.</summary>")


@tool
async def weather(city: str) -> str:
    """Return the weather in a city."""
    return f"{city}: sunny " + "z" * 1500


class Model:
    """Two rounds with a tool call each, then an answer."""

    def __init__(self, *, thinks: bool) -> None:
        self.thinking = ("I look it up.",) if thinks else ()
        self.rounds = 0
        self.summaries = 0

    def __call__(self, request: VendorRequest) -> Answer:
        if "You compress the history" in str(request.body):
            self.summaries += 1
            return SUMMARY
        self.rounds += 1
        if self.rounds % 3:
            return Answer(calls=(("weather", {"city": f"City {self.rounds}"}),), thinking=self.thinking)
        return Answer(ANSWER, thinking=self.thinking)


def connect(vendor: Any, model: str) -> Any:
    if isinstance(vendor, AnthropicDouble):
        return AnthropicProvider(model, base_url=vendor.url, api_key=KEY)
    if isinstance(vendor, GeminiDouble):
        return GeminiProvider(model, base_url=vendor.base_url, api_key=KEY)
    if isinstance(vendor, OpenAIResponsesDouble):
        return OpenAIResponsesProvider(model, base_url=vendor.address, api_key=KEY)
    return OpenAIProvider(model, base_url=vendor.address, api_key=KEY)


HISTORIES = {
    "summaries": History(compaction=Compaction(window=3000, clear_results=False)),
    "cleared results": History(compaction=Compaction(window=3000)),
    "cut": History(max_tokens=1500),
}
FAMILIES: dict[str, tuple[type[VendorDouble], str, dict[str, Any]]] = {
    "Claude 5.5": (AnthropicDouble, "claude-opus-5-5", {"binding_controls": False}),
    "Claude 4.6": (AnthropicDouble, "claude-opus-4-6", {}),
    "GPT on Responses": (OpenAIResponsesDouble, "gpt-5.6-sol", {}),
    "GPT on chat completions": (OpenAIChatDouble, "gpt-4.1", {}),
    "Gemini": (GeminiDouble, "gemini-3.8-flash", {}),
    "DeepSeek": (DeepSeekDouble, "deepseek-v4-pro", {}),
}


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("family", FAMILIES)
async def test_no_request_of_a_long_session_is_refused(family: str, history: str) -> None:
    double, name, options = FAMILIES[family]
    model, conversation = Model(thinks=family != "GPT on chat completions"), Conversation()
    async with double(then=model, **options) as vendor:
        agent = Agent("a", model=connect(vendor, name), tools=[weather])
        async with Atlas([agent], history=HISTORIES[history]) as atlas:
            for number in range(TURNS):
                reply = await atlas.ask(f"Question {number} " + "x" * 300, session=conversation)
                assert reply.text == ANSWER
    assert [str(refusal) for refusal in vendor.refusals] == []
    assert bool(model.summaries) == (history != "cut")
    assert len(vendor.requests) == 3 * TURNS + model.summaries
    assert max(len(str(request.body)) for request in vendor.requests) < 25_000
