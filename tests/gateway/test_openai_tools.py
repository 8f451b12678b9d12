"""`/v1/chat/completions` with tools that the client runs, used by the OpenAI SDK, LangChain and pydantic-ai.

The latter two are imported by their tests, as their imports take seconds in each process that collects these.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from gateway_client import connect_client, main_token, serve_gateway
from openai import AsyncOpenAI
from openai_client import MODEL, connect_openai, serve_openai, stored_atlas, upper, user_messages
from pydantic import BaseModel, SecretStr

from atlas_agents import Tool
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, VirtualClock, calls, in_memory_atlas, says
from checks import TIMEOUT

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


def definition(name: str, parameters: dict[str, Any] = CITY) -> Any:
    function = {"name": name, "description": f"Get the {name}.", "parameters": parameters, "strict": True}
    return {"type": "function", "function": function}


WEATHER, TIME = definition("weather"), definition("time")
ASKED, BOTH = calls("weather", city="Oslo"), calls("weather", city="Oslo") + calls("time", city="Rome")
UPPER = Tool("upper", upper, in_process=True)


async def complete(client: AsyncOpenAI, messages: list[Any], **options: Any) -> Any:
    """Send a request and return its only choice; the message of the assistant is added to the messages."""
    create: Any = client.chat.completions.create
    async with asyncio.timeout(TIMEOUT):
        answer = await create(model=MODEL, messages=messages, **options)
    (choice,) = answer.choices
    messages.append(choice.message.model_dump(exclude_none=True))
    return choice


def add_results(messages: list[Any], *contents: Any) -> None:
    """Add the results of the calls in the last message."""
    asked = messages[-1]["tool_calls"]
    messages += [
        {"role": "tool", "tool_call_id": call["id"], "content": content}
        for call, content in zip(asked, contents, strict=True)
    ]


async def test_client_runs_the_tools_and_the_turn_goes_on(tmp_path: Path) -> None:
    own = says("Let me see.") + calls("upper", input="hey")
    model = Scripted(own, says("Two more.") + BOTH, ASKED, says("Rain."))
    async with serve_openai(tmp_path, stored_atlas(model, (UPPER,))) as (gateway, client):
        messages = [{"role": "system", "content": "Be brief."}, *user_messages("Weather?")]
        choice = await complete(client, messages, tools=[WEATHER, TIME])
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "Let me see.\n\nTwo more."
        found = [
            (call.type, call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls
        ]
        assert found == [("function", "weather", {"city": "Oslo"}), ("function", "time", {"city": "Rome"})]
        add_results(messages, "rain", [{"type": "text", "text": "noon"}])
        choice = await complete(client, messages, tools=[WEATHER])
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        add_results(messages, "still rain")
        choice = await complete(client, messages)
        assert (choice.finish_reason, choice.message.content) == ("stop", "Rain.")
        async with connect_client(gateway) as page:
            assert (await page.get("sessions.list"))["sessions"] == []
    shown = [[spec.name for spec in request.tools] for request in model.requests]
    assert shown == [["weather", "time", "upper"]] * 2 + [["weather", "upper"], ["upper"]]
    assert [message.role for message in model.requests[0].messages] == ["system", "user"]
    last = model.requests[-1].messages
    assert [result.result for message in last for result in message.tool_results] == [
        "HEY",
        "rain",
        "noon",
        "still rain",
    ]


async def test_request_that_is_repeated_gets_the_same_answer(tmp_path: Path) -> None:
    model = Scripted(ASKED, BOTH, says("Rain."))
    async with serve_openai(tmp_path, stored_atlas(model)) as (_, client):
        messages = user_messages("Weather?")
        await complete(client, messages, tools=[WEATHER, TIME])
        add_results(messages, "rain")
        first = [*messages]
        choice = await complete(client, messages, tools=[WEATHER, TIME])
        assert (await complete(client, [*first], tools=[WEATHER, TIME])).message == choice.message
        add_results(messages, "rain", "noon")
        for _ in range(2):  # while the turn runs or has just ended, and after it
            assert (await complete(client, [*messages])).message.content == "Rain."
        assert (await complete(client, [*first])).message == choice.message
        messages[-1]["content"] = "midnight"
        with pytest.raises(openai.BadRequestError, match="already answered with another result"):
            await complete(client, messages)
    assert len(model.requests) == 3


async def test_stream_has_the_calls_in_parts(tmp_path: Path) -> None:
    model = Scripted(says("Let me see.") + BOTH, says("Rain."))
    async with serve_openai(tmp_path, stored_atlas(model)) as (_, client):
        messages = user_messages("Weather?")
        chunks: list[Any] = []
        options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
        create: Any = client.chat.completions.create
        sent = await create(model=MODEL, messages=messages, tools=[WEATHER, TIME], **options)
        async for chunk in sent:
            chunks.append(chunk.model_dump(exclude_none=True))
        *head, end, usage = chunks
        parts = [part for chunk in head for part in chunk["choices"][0]["delta"].get("tool_calls", ())]
        ids = [part["id"] for part in parts if "id" in part]
        assert parts == [
            {"index": 0, "id": ids[0], "type": "function", "function": {"name": "weather", "arguments": ""}},
            {"index": 0, "function": {"arguments": '{"city":"Oslo"}'}},
            {"index": 1, "id": ids[1], "type": "function", "function": {"name": "time", "arguments": ""}},
            {"index": 1, "function": {"arguments": '{"city":"Rome"}'}},
        ]
        assert end["choices"][0]["finish_reason"] == "tool_calls"
        assert usage["choices"] == [] and usage["usage"]["completion_tokens"] > 0
        asked = [{"id": id, "type": "function", "function": {"name": "x", "arguments": "{}"}} for id in ids]
        messages.append({"role": "assistant", "tool_calls": asked})
        add_results(messages, "rain", "noon")
        async with client.chat.completions.stream(model=MODEL, messages=messages, tools=[WEATHER, TIME]) as stream:
            final = await stream.get_final_completion()
    assert (final.choices[0].finish_reason, final.choices[0].message.content) == ("stop", "Rain.")


class City(BaseModel):
    """Weather of a city."""

    city: str


async def test_openai_client_parses_the_arguments(tmp_path: Path) -> None:
    model = Scripted(ASKED)
    async with serve_openai(tmp_path, stored_atlas(model)) as (_, client):
        answer = await client.chat.completions.parse(
            model=MODEL, messages=user_messages("?"), tools=[openai.pydantic_function_tool(City, name="weather")]
        )
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == City(city="Oslo")


@pytest.mark.parametrize(
    ("choice", "shown", "sent"),
    [
        ("auto", ["weather", "time"], "auto"),
        ("none", [], "auto"),
        ("required", ["weather", "time"], "required"),
        ({"type": "function", "function": {"name": "time"}}, ["weather", "time"], "time"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [TIME]}},
            ["time"],
            "required",
        ),
    ],
)
async def test_tool_choice_reaches_the_model(choice: Any, shown: list[str], sent: str, tmp_path: Path) -> None:
    reply = says("Hi.") if choice in ("auto", "none") else calls("time", city="Rome")
    model = Scripted(reply)
    async with serve_openai(tmp_path, stored_atlas(model)) as (_, client):
        await complete(client, user_messages("?"), tools=[WEATHER, TIME], tool_choice=choice)
    (request,) = model.requests
    assert ([spec.name for spec in request.tools], request.tool_choice) == (shown, sent)


async def test_forced_call_is_demanded_from_a_model_that_answers(tmp_path: Path) -> None:
    forced: Any = {"type": "function", "function": {"name": "weather"}}
    model = Scripted(says("It rains."), calls("weather", city=7), BOTH)
    async with (
        serve_openai(tmp_path, stored_atlas(model)) as (_, client),
        client.chat.completions.stream(
            model=MODEL,
            messages=user_messages("?"),
            tools=[WEATHER, TIME],
            tool_choice=forced,
            parallel_tool_calls=False,
        ) as events,
    ):
        final = (await events.get_final_completion()).choices[0]
    assert [call.function.name for call in final.message.tool_calls or ()] == ["weather"]
    assert not final.message.content


async def test_missing_and_foreign_results_are_refused(tmp_path: Path) -> None:
    async with serve_openai(tmp_path, stored_atlas(Scripted(BOTH, says("Rain.")))) as (gateway, client):
        messages = user_messages("Weather?")
        await complete(client, messages, tools=[WEATHER, TIME])
        add_results(messages, "rain", "noon")
        partial = [messages[0], {**messages[1], "tool_calls": messages[1]["tool_calls"][:1]}, messages[2]]
        with pytest.raises(openai.BadRequestError, match="no tool output found for these tool calls"):
            await complete(client, partial)
        async with connect_client(gateway) as owner:
            made = await owner.get("tokens.create", name="laptop", scopes=["write", "read"], user="mara")
        async with connect_openai(gateway, made["secret"]) as other:
            with pytest.raises(openai.BadRequestError, match="not found: tool call"):
                await complete(other, messages)
        assert (await complete(client, messages)).message.content == "Rain."


async def test_call_without_a_result_expires_and_a_new_message_goes_on(tmp_path: Path) -> None:
    clock, store = VirtualClock(), MemoryStore()
    model = Scripted(ASKED, ASKED, says("Hello."))
    async with serve_openai(tmp_path, in_memory_atlas(model, store=store, clock=clock)) as (_, client):
        expired = user_messages("Weather?")
        await complete(client, expired, tools=[WEATHER], user="s1")
        add_results(expired, "rain")
        await clock.advance(601)
        with pytest.raises(openai.BadRequestError, match=r"no longer accepts a result|has expired") as refused:
            await complete(client, expired, tools=[WEATHER], user="s1")
        assert (refused.value.param, refused.value.code) == ("messages.[2].tool_call_id", "invalid_tool_call_id")
        await complete(client, user_messages("Weather?"), tools=[WEATHER], user="s2")
        assert (await complete(client, user_messages("Hi"), user="s2")).message.content == "Hello."
    assert len(model.requests) == 3


async def test_waiting_turn_survives_a_restart_of_the_gateway(tmp_path: Path) -> None:
    store = MemoryStore()
    messages = user_messages("Weather?")
    async with serve_openai(tmp_path, in_memory_atlas(Scripted(ASKED), store=store)) as (_, client):
        await complete(client, messages, tools=[WEATHER])
    add_results(messages, "rain")
    model = Scripted(says("Rain."))
    async with serve_openai(tmp_path, in_memory_atlas(model, store=store)) as (_, client):
        assert (await complete(client, messages, tools=[WEATHER])).message.content == "Rain."
    (result,) = model.requests[0].messages[-1].tool_results
    assert (result.result, result.untrusted) == ("rain", "client: client/weather")


@asynccontextmanager
async def serve_langchain(home: Path, model: Scripted) -> AsyncGenerator[Any, None]:
    """Serve a gateway and connect LangChain's client to it, with connections that are closed."""
    from langchain_openai import ChatOpenAI

    async with serve_gateway(home, stored_atlas(model, (UPPER,))) as gateway, httpx.AsyncClient() as connections:
        where, key = f"http://127.0.0.1:{gateway.port}/v1", SecretStr(main_token(gateway))
        yield ChatOpenAI(model=MODEL, base_url=where, api_key=key, max_retries=0, http_async_client=connections)


async def test_langchain_binds_tools(tmp_path: Path) -> None:
    from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage

    model = Scripted(calls("upper", input="hey"), BOTH, says("Rain."), BOTH)
    async with serve_langchain(tmp_path, model) as chat:
        bound = chat.bind_tools([WEATHER, TIME])
        messages: list[Any] = [HumanMessage("Weather?")]
        reply = await bound.ainvoke(messages)
        assert isinstance(reply, AIMessage)
        assert [(call["name"], call["args"]["city"]) for call in reply.tool_calls] == [
            ("weather", "Oslo"),
            ("time", "Rome"),
        ]
        messages += [reply, *[ToolMessage("rain", tool_call_id=call["id"]) for call in reply.tool_calls]]
        assert (await bound.ainvoke(messages)).text == "Rain."
        whole: AIMessageChunk | None = None
        async for chunk in bound.astream("Weather?"):
            assert isinstance(chunk, AIMessageChunk)
            whole = chunk if whole is None else whole + chunk
        assert whole is not None and [call["name"] for call in whole.tool_calls] == ["weather", "time"]


async def test_langchain_gets_structured_output_by_function_calling(tmp_path: Path) -> None:
    model = Scripted(says("Oslo, I guess."), calls("City", city="Oslo"))
    async with serve_langchain(tmp_path, model) as chat:
        typed = chat.with_structured_output(City, method="function_calling")
        assert await typed.ainvoke("Where?") == City(city="Oslo")
    assert [request.tool_choice for request in model.requests] == ["City", "City"]


async def test_pydantic_ai_runs_tools_and_gets_typed_output(tmp_path: Path) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = Scripted(
        calls("weather", city="Oslo"),
        says("It is Oslo."),
        calls("upper", input="x"),
        calls("final_result", city="Oslo"),
        calls("final_result", city="Rome"),
    )
    async with serve_openai(tmp_path, stored_atlas(model, (UPPER,))) as (_, client):
        provider = OpenAIProvider(openai_client=client)
        agent = Agent(OpenAIChatModel(MODEL, provider=provider), output_type=City)

        @agent.tool_plain
        def weather(city: str) -> str:
            """Weather of a city."""
            return f"rain in {city}"

        result = await agent.run("Where does it rain?")
        assert result.output == City(city="Oslo")
        again = await agent.run("And now?", message_history=result.all_messages())
        assert again.output == City(city="Rome")
    assert {request.tool_choice for request in model.requests} == {"required"}
