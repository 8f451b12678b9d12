"""OpenAI's own client uses an agent as a model."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from agui_client import open_page
from gateway_client import connect_client, http, main_token, serve_gateway
from openai_client import MODEL, serve_openai, stored_atlas, upper, user_messages

from atlas_agents import Agent, Atlas, ProviderError, Tool
from atlas_agents.providers.base import ResetChunk, TextChunk
from atlas_agents.providers.settings import ModelSettings
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Reply, Scripted, calls, fails, refuses, says, thinks
from checks import PausedProvider


async def test_models_lists_the_agents(tmp_path: Path) -> None:
    agents = [Agent(id, model=Scripted(says("Hi."))) for id in ("ana", "team/bo")]
    async with serve_openai(tmp_path, Atlas(agents, store=MemoryStore())) as (_, client):
        found = await client.models.list()
        assert [model.id for model in found.data] == ["atlas/ana", "atlas/team/bo"]
        assert (await client.models.retrieve("atlas/ana")).owned_by == "atlas"
        with pytest.raises(openai.NotFoundError) as missing:
            await client.models.retrieve("gpt-4o")
        assert missing.value.code == "model_not_found"


async def test_completion_without_streaming(tmp_path: Path) -> None:
    model = Scripted(thinks("Hm.") + says("Two and two is four."), says("Again."))
    async with serve_openai(tmp_path, stored_atlas(model)) as (_, client):
        answer = await client.chat.completions.create(model=MODEL, messages=user_messages("2+2?"))
        bare = await client.chat.completions.create(model="assistant", messages=user_messages("2+2?"))
    assert answer.id.startswith("chatcmpl-") and answer.object == "chat.completion" and answer.model == MODEL
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "Two and two is four.")
    assert (choice.finish_reason, bare.model) == ("stop", MODEL)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (1, 5, 6)


async def test_completion_with_streaming(tmp_path: Path) -> None:
    async with serve_openai(tmp_path, stored_atlas(Scripted(says("One two three."), says("Four.")))) as (_, client):
        stream = await client.chat.completions.create(model=MODEL, messages=user_messages("Count."), stream=True)
        first, *pieces, last = [chunk async for chunk in stream]
        counted = await client.chat.completions.create(
            model=MODEL, messages=user_messages("Go on."), stream=True, stream_options={"include_usage": True}
        )
        *middle, usage = [chunk async for chunk in counted]
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert [piece.choices[0].delta.content for piece in pieces] == ["One ", "two ", "three."]
    assert (last.choices[0].finish_reason, last.choices[0].delta.content) == ("stop", None)
    assert len({chunk.id for chunk in (first, *pieces, last)}) == 1
    assert all(chunk.usage is None for chunk in (first, *pieces, last, *middle))
    assert usage.choices == [] and usage.usage is not None and usage.usage.total_tokens == 2


async def test_stream_has_the_format_of_openai(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path, stored_atlas(Scripted(says("Hi.")))) as gateway:
        body = json.dumps({"model": MODEL, "messages": user_messages("Hello"), "stream": True})
        headers = {"Authorization": f"Bearer {main_token(gateway)}", "Content_Type": "application/json"}
        code, answer = await http(gateway, "POST /v1/chat/completions", body=body, **headers)
    head, _, lines = answer.partition("\r\n\r\n")
    assert code == 200 and "content-type: text/event-stream" in head.lower()
    events = [line.removeprefix("data: ") for line in lines.replace("\r\n", "\n").split("\n") if "data: " in line]
    assert events[-1] == "[DONE]"
    shapes = [json.loads(event) for event in events[:-1]]
    assert [shape["choices"][0] for shape in shapes] == [
        {"delta": {"role": "assistant", "content": ""}, "finish_reason": None, "index": 0, "logprobs": None},
        {"delta": {"content": "Hi."}, "finish_reason": None, "index": 0, "logprobs": None},
        {"delta": {}, "finish_reason": "stop", "index": 0, "logprobs": None},
    ]
    assert all("usage" not in shape for shape in shapes)


async def test_tools_of_the_agent_run_in_the_gateway_and_are_not_reported(tmp_path: Path) -> None:
    script = (says("Let me see.") + calls("upper", input="hey"), says("It is HEY."))
    model = Scripted(*script, *script)
    async with serve_openai(tmp_path, stored_atlas(model, (Tool("upper", upper, in_process=True),))) as (_, client):
        answer = await client.chat.completions.create(model=MODEL, messages=user_messages("Shout hey."))
        stream = await client.chat.completions.create(model=MODEL, messages=user_messages("Shout hey."), stream=True)
        chunks = [chunk async for chunk in stream]
    assert answer.choices[0].message.content == "Let me see.\n\nIt is HEY."
    assert answer.choices[0].message.tool_calls is None
    assert "".join([chunk.choices[0].delta.content or "" for chunk in chunks]) == "Let me see.\n\nIt is HEY."
    assert all(chunk.choices[0].delta.tool_calls is None for chunk in chunks)
    (result,) = model.requests[1].messages[-1].tool_results
    assert result.result == "HEY"


async def test_request_without_a_session_brings_its_history_and_stores_nothing(tmp_path: Path) -> None:
    model = Scripted(says("Ana."))
    atlas = stored_atlas(model)
    history: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "I am Ana."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "a", "arguments": "{}"}},
                {"id": "c2", "type": "function", "function": {"name": "b", "arguments": '{"x":1}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "Hello Ana."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Who am I?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
            ],
        },
    ]
    async with serve_openai(tmp_path, atlas) as (gateway, client):
        answer = await client.chat.completions.create(model=MODEL, messages=history)
        async with connect_client(gateway) as page:
            assert (await page.get("sessions.list"))["sessions"] == []
    assert answer.choices[0].message.content == "Ana."
    (request,) = model.requests
    roles = [message.role for message in request.messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert [result.result for result in request.messages[3].tool_results] == ["one", "two"]
    assert [part.type for part in request.messages[-1].parts] == ["text", "image"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("stop", "reason"), [("length", "length"), ("refusal", "content_filter"), ("stop", "stop")])
async def test_finish_reason_matches_the_stop_reason(stop: Any, reason: str, stream: bool, tmp_path: Path) -> None:
    async with serve_openai(tmp_path, stored_atlas(Scripted(says("So", stop=stop)))) as (_, client):
        if stream:
            chunks = await client.chat.completions.create(model=MODEL, messages=user_messages("?"), stream=True)
            found = [chunk.choices[0].finish_reason async for chunk in chunks][-1]
        else:
            answer = await client.chat.completions.create(model=MODEL, messages=user_messages("?"))
            found = answer.choices[0].finish_reason
    assert found == reason


@pytest.mark.parametrize(
    ("reply", "refusal", "content"),
    [
        (refuses("cyber"), "The model refused to answer: cyber", None),
        (says("First,") + refuses("cyber"), "The model refused to continue: cyber", "First,"),
        (says("I cannot help.") + refuses(), "I cannot help.", "I cannot help."),
    ],
    ids=["without a word", "in the middle", "in its own words"],
)
async def test_refusal_is_in_its_own_field(reply: Reply, refusal: str, content: str | None, tmp_path: Path) -> None:
    async with serve_openai(tmp_path, stored_atlas(Scripted(reply, reply))) as (_, client):
        answer = (await client.chat.completions.create(model=MODEL, messages=user_messages("?"))).choices[0]
        assert (answer.message.refusal, answer.message.content) == (refusal, content)
        assert answer.finish_reason == "content_filter"
        stream = await client.chat.completions.create(model=MODEL, messages=user_messages("?"), stream=True)
        deltas = [chunk.choices[0].delta async for chunk in stream]
        assert "".join([each.content or "" for each in deltas]) == (content or "")
        assert [each.refusal for each in deltas if each.refusal] == [refusal]


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.mark.parametrize("stream", [True, False])
async def test_structured_output_is_corrected_before_it_is_sent(stream: bool, tmp_path: Path) -> None:
    model = Scripted(says("It is Lima."), says('```json\n{"city": "Lima"}\n```'))
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
    async with serve_openai(tmp_path, stored_atlas(model)) as (_, client):
        if stream:
            chunks = await client.chat.completions.create(
                model=MODEL, messages=user_messages("Where?"), response_format=wanted, stream=True
            )
            content = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])
        else:
            answer = await client.chat.completions.create(
                model=MODEL, messages=user_messages("Where?"), response_format=wanted
            )
            content = answer.choices[0].message.content or ""
    assert json.loads(content) == {"city": "Lima"}


async def test_structured_output_may_be_null(tmp_path: Path) -> None:
    model = Scripted(says("null"), says('{"value": null}'), says("```json\nnull\n```"), says("null"))
    nullable: list[Any] = [{"type": ["string", "null"]}] * 3 + [{"type": "null"}]
    async with serve_openai(tmp_path, stored_atlas(model)) as (_, client):
        for schema in nullable:
            wanted: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema}}
            answer = await client.chat.completions.create(
                model=MODEL, messages=user_messages("Where?"), response_format=wanted
            )
            assert answer.choices[0].message.content == "null"


async def test_settings_of_the_agent_limit_the_request(tmp_path: Path) -> None:
    model = Scripted(says("A."), says("B."))
    async with serve_openai(tmp_path, stored_atlas(model, agent={"temperature": 0.1, "max_tokens": 50})) as (_, client):
        await client.chat.completions.create(model=MODEL, messages=user_messages("?"), temperature=1.5, max_tokens=20)
        await client.chat.completions.create(
            model=MODEL,
            messages=user_messages("?"),
            max_completion_tokens=500,
            seed=1,
            extra_body={"of_next_year": True},
        )
    assert [(request.settings.temperature, request.settings.max_tokens) for request in model.requests] == [
        (0.1, 20),
        (0.1, 50),
    ]


async def test_body_fields_become_model_settings(tmp_path: Path) -> None:
    model = Scripted(says("A."), says("B."))
    async with serve_openai(tmp_path, stored_atlas(model, agent={"settings": {"effort": "low"}})) as (_, client):
        await client.chat.completions.create(
            model=MODEL,
            messages=user_messages("?"),
            top_p=0.5,
            seed=7,
            stop="END",
            service_tier="priority",
            parallel_tool_calls=False,
            reasoning_effort="high",
            extra_body={"extra_body": {"a": 1}, "extra_headers": {"X-A": "1"}},
        )
        await client.chat.completions.create(
            model=MODEL, messages=user_messages("?"), stop=["A", "B"], reasoning_effort="none"
        )
    first, second = (request.settings for request in model.requests)
    tier: Any = {"service_tier": "priority", "parallel_tool_calls": False}
    assert first == ModelSettings(top_p=0.5, seed=7, stop=("END",), effort="low", **tier)
    assert second == ModelSettings(stop=("A", "B"), effort="none")


TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": {}}}
CALLED: Any = {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": "{}"}}]}
ANSWERED: Any = {"role": "tool", "tool_call_id": "c1", "content": "1"}
HELLO: Any = {"role": "user", "content": "Hi"}


UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"n": 2}, "n"),
    ({"tools": [TOOL, TOOL]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "UPPER"}}]}, "tools"),
    ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "function": {"name": 7}}]}, "tools[0].function.name"),
    ({"tools": [TOOL], "tool_choice": "always"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "upper"}}}, "tool_choice"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"messages": [HELLO, ANSWERED]}, "messages.[1].role"),
    ({"messages": [HELLO, CALLED, HELLO]}, "messages.[2].role"),
    ({"messages": [HELLO, CALLED, ANSWERED, ANSWERED]}, "messages.[3].role"),
    ({"messages": [HELLO, CALLED, ANSWERED]}, "messages.[2].tool_call_id"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "assistant", "content": "Hi"}]}, "messages"),
    ({"messages": [{"role": "user", "content": ""}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": " "}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "king", "content": "Hi"}]}, "messages[0].role"),
    ({"temperature": 9}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"reasoning_effort": "huge"}, "reasoning_effort"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no"}}}},
        "response_format",
    ),
]


async def test_unsupported_request_gets_an_openai_error(tmp_path: Path) -> None:
    own = Tool("upper", upper, in_process=True)
    async with serve_openai(tmp_path, stored_atlas(Scripted(), (own,))) as (_, client):
        for wrong, param in UNSUPPORTED:
            with pytest.raises(openai.BadRequestError) as refused:
                body = {"model": MODEL, "messages": user_messages("Hi"), **wrong}
                await client.post("/chat/completions", cast_to=object, body=body)
            error: Any = refused.value.body
            assert set(error) == {"message", "type", "param", "code"}
            assert (error["type"], error["param"]) == ("invalid_request_error", param), wrong


async def test_empty_tools_are_accepted(tmp_path: Path) -> None:
    async with serve_openai(tmp_path, stored_atlas(Scripted(says("Hi.")))) as (_, client):
        answer = await client.chat.completions.create(model=MODEL, messages=user_messages("Hi"), tools=[], n=1)
    assert answer.choices[0].message.content == "Hi."


async def test_unexpected_error_hides_its_details(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serve_openai(tmp_path, stored_atlas(Scripted(fails(ZeroDivisionError("secret place"))))) as (_, client):
        with pytest.raises(openai.InternalServerError) as raised:
            await client.chat.completions.create(model=MODEL, messages=user_messages("Hi"))
    assert raised.value.body == {
        "message": "the turn failed",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }
    assert "secret place" in caplog.text


async def test_error_contains_no_secret(tmp_path: Path) -> None:
    secret = "sk-proj-" + "Ab1" * 12
    broken = fails(ProviderError(f"the key {secret} is wrong", "auth"))
    async with serve_openai(tmp_path, stored_atlas(Scripted(broken, says("So") + broken))) as (gateway, client):
        with pytest.raises(openai.InternalServerError, match=r"the key .* is wrong") as raised:
            await client.chat.completions.create(model=MODEL, messages=user_messages("Hi"))
        async with open_page(gateway) as page:
            events = await page.run("Hi")
    assert (raised.value.code, events[-1]["type"]) == ("provider_auth", "RUN_ERROR")
    assert secret not in raised.value.message and secret not in str(events)


async def test_failure_while_streaming_is_the_last_event(tmp_path: Path) -> None:
    broken = says("Half an") + fails(ProviderError("gone", "auth"))
    async with serve_openai(tmp_path, stored_atlas(Scripted(broken))) as (_, client):
        stream = await client.chat.completions.create(model=MODEL, messages=user_messages("Hi"), stream=True)
        received: list[str] = []
        with pytest.raises(openai.APIError, match="gone") as raised:
            async for chunk in stream:
                received.append(chunk.choices[0].delta.content or "")
    assert ("".join(received), raised.value.code) == ("Half an", "provider_auth")


async def test_withdrawn_text_ends_the_stream(tmp_path: Path) -> None:
    again = Reply(TextChunk("It is 5."), ResetChunk(1), TextChunk("It is 4."))
    async with serve_openai(
        tmp_path, stored_atlas(Scripted(again, again, Reply(ResetChunk(1), TextChunk("Fine."))))
    ) as (_, client):
        stream = await client.chat.completions.create(model=MODEL, messages=user_messages("2+2?"), stream=True)
        received: list[str] = []
        with pytest.raises(openai.APIError) as raised:
            async for chunk in stream:
                received.append(chunk.choices[0].delta.content or "")
        whole = await client.chat.completions.create(model=MODEL, messages=user_messages("2+2?"))
        unread = await client.chat.completions.create(model=MODEL, messages=user_messages("2+2?"), stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in unread]) == "Fine."
    assert ("".join(received), raised.value.code) == ("It is 5.", "answer_withdrawn")
    assert whole.choices[0].message.content == "It is 4."


async def test_text_is_streamed_as_it_is_generated(tmp_path: Path) -> None:
    model = PausedProvider(Scripted(says("one two three four five")), after=1)
    async with serve_openai(tmp_path, stored_atlas(model)) as (_, client):
        stream = await client.chat.completions.create(model=MODEL, messages=user_messages("Count"), stream=True)
        texts: list[str] = []
        async for chunk in stream:
            if text := chunk.choices[0].delta.content:
                texts.append(text)
                model.go.set()  # the first text is received before the model generates the next
    assert len(texts) > 1 and "".join(texts) == "one two three four five"
