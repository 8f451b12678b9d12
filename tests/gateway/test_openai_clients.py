"""Clients of OpenAI's APIs that others wrote use an agent unchanged: LangChain and pydantic-ai.

They are imported by the tests, as their imports take seconds in each process that collects these.
"""

from pathlib import Path
from typing import Any

from gateway_client import main_token
from openai_client import MODEL, serve_openai, stored_atlas, upper
from pydantic import BaseModel, SecretStr

from atlas_agents import Tool
from atlas_agents.gateway.server import Gateway
from atlas_agents.testing import Scripted, calls, says
from checks import TIMEOUT

UPPER = Tool("upper", upper, in_process=True)
SHOUT = (says("Let me see. ") + calls("upper", input="hey"), says("It is HEY."))
CITY = says('{"name": "Bonn", "people": 330000}')


class City(BaseModel):
    name: str
    people: int


def weather(city: str) -> str:
    """Get the weather."""
    return f"rain in {city}"


def langchain_model(gateway: Gateway, **options: Any) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        model=MODEL,
        base_url=f"http://127.0.0.1:{gateway.port}/v1",
        api_key=SecretStr(main_token(gateway)),
        use_responses_api=True,
        max_retries=0,
        timeout=TIMEOUT,
        **options,
    )


async def test_langchain_uses_responses(tmp_path: Path) -> None:
    from langchain_core.messages import AIMessage, BaseMessageChunk, HumanMessage, ToolMessage

    model = Scripted(*SHOUT, *SHOUT, says("Again."), CITY, calls("weather", city="Oslo"), says("Rain."))
    async with serve_openai(tmp_path, stored_atlas(model, (UPPER,))) as (gateway, _):
        chat = langchain_model(gateway)
        answer: AIMessage = await chat.ainvoke("Shout hey.")
        chunks: list[BaseMessageChunk] = [chunk async for chunk in chat.astream("Shout hey.")]
        streamed = chunks[0]
        for chunk in chunks[1:]:
            streamed += chunk
        history = [HumanMessage("Shout hey."), answer, HumanMessage("Once more.")]
        again = await langchain_model(gateway, use_previous_response_id=True).ainvoke(history)
        city = await chat.with_structured_output(City).ainvoke("Which city?")
        bound: Any = chat.bind_tools([weather])
        asked: AIMessage = await bound.ainvoke("Weather?")
        output = ToolMessage("rain", tool_call_id=asked.tool_calls[0]["id"])
        rain: AIMessage = await bound.ainvoke([HumanMessage("Weather?"), asked, output])
    assert [(call["name"], call["args"]) for call in asked.tool_calls] == [("weather", {"city": "Oslo"})]
    results = [result.result for result in model.requests[-1].messages[-1].tool_results]
    assert (rain.text, results) == ("Rain.", ["rain"])
    for message in (answer, streamed):
        assert isinstance(message, AIMessage) and message.tool_calls == []
        blocks: Any = message.content
        assert [block["type"] for block in blocks] == ["text", "mcp_call", "text"]
        assert (blocks[1]["name"], blocks[1]["output"], message.text) == ("upper", "HEY", "Let me see. It is HEY.")
    assert (again.text, city) == ("Again.", City(name="Bonn", people=330000))
    sent = [message.text for message in model.requests[4].messages]
    assert (sent[0], sent[-1]) == ("Shout hey.", "Once more.") and "HEY" in str(model.requests[4].messages[2])


async def test_pydantic_ai_uses_responses(tmp_path: Path) -> None:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    asked = calls("weather", city="Oslo")
    typed = calls("final_result", name="Bonn", people=330000)
    model = Scripted(*SHOUT, *SHOUT, says("Again."), CITY, asked, typed)
    async with serve_openai(tmp_path, stored_atlas(model, (UPPER,))) as (_, client):
        responses = OpenAIResponsesModel(MODEL, provider=OpenAIProvider(openai_client=client))
        agent = Agent(responses, instructions="Be loud.")
        answer = await agent.run("Shout hey.")
        async with agent.run_stream("Shout hey.") as stream:
            streamed = await stream.get_output()
        again = await agent.run("Once more.", message_history=answer.all_messages())
        city = await Agent(responses, output_type=NativeOutput(City)).run("Which city?")
        called = await Agent(responses, output_type=City, tools=[weather]).run("Which city has rain?")
    last = answer.new_messages()[-1]
    assert isinstance(last, ModelResponse)
    assert [part.part_kind for part in last.parts] == ["text", "builtin-tool-call", "builtin-tool-return", "text"]
    assert (answer.output, streamed, again.output) == ("It is HEY.", "It is HEY.", "Again.")
    assert city.output == called.output == City(name="Bonn", people=330000)
    assert [result.result for result in model.requests[-1].messages[-1].tool_results] == ["rain in Oslo"]
    assert ["Be loud." in request.system for request in model.requests] == [*[True] * 5, *[False] * 3]
