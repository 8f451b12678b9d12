"""OpenAI's own client uses `/v1/responses`: items, streams, continued sessions, background runs and errors."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable
from functools import partial
from pathlib import Path
from typing import Any, cast

import openai
import pytest
import pytest_asyncio
from gateway_client import connect_client
from openai.types.responses import Response
from openai_client import MODEL, Slow, serve_openai, stored_atlas, upper
from pydantic import BaseModel

from atlas_agents import ProviderError, RetryPolicy, Tool
from atlas_agents.providers.base import ResetChunk, TextChunk
from atlas_agents.testing import Reply, Scripted, calls, fails, refuses, says, thinks
from checks import TIMEOUT, PausedProvider, wait_until

UPPER = Tool("upper", upper, in_process=True)
USER = {"role": "user", "content": "Hi."}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"type": "function", "name": "weather", "parameters": CITY, "strict": False}
TIME: Any = {**WEATHER, "name": "time"}
KEYS = {
    *("id", "object", "created_at", "completed_at", "status", "incomplete_details", "model", "previous_response_id"),
    *("instructions", "output", "error", "tools", "tool_choice", "truncation", "parallel_tool_calls", "text", "top_p"),
    *("presence_penalty", "frequency_penalty", "top_logprobs", "temperature", "reasoning", "usage", "conversation"),
    *("max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata", "safety_identifier"),
    "prompt_cache_key",
}
"""Keys that a response must have; the first ones of Open Responses."""


def check_stream(events: list[dict[str, Any]], first: int = 0) -> dict[str, Any]:
    """Check the order, numbers and contents of the events of a response; return the response of the last one."""
    assert [event["sequence_number"] for event in events] == list(range(first, first + len(events)))
    if first == 0:
        assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
        assert [event["response"]["status"] for event in events[:2]] == ["in_progress"] * 2
    responses = [event["response"] for event in events if "response" in event]
    assert all(response.keys() == KEYS for response in responses)
    assert len({response["id"] for response in responses}) == 1 and responses[-1]["id"].startswith("resp_")
    final = responses[-1]
    assert events[-1]["type"] == f"response.{final['status'].replace('cancelled', 'incomplete')}"
    if first == 0:
        for index, item in enumerate(final["output"]):
            _check_item([event for event in events if event.get("output_index") == index], item)
    return final


def _check_item(events: list[dict[str, Any]], item: dict[str, Any]) -> None:
    """Check the events of one item against the item of the complete response."""
    added, *inner, done = events
    assert (added["type"], done["type"]) == ("response.output_item.added", "response.output_item.done")
    assert added["item"]["status"] == "in_progress" and done["item"] == item
    assert all(added["item"][key] == item[key] for key in ("id", "type"))
    assert {event["item_id"] for event in inner} == {item["id"]}
    kinds = [event["type"].removeprefix("response.") for event in inner]
    if item["type"] == "function_call":
        assert kinds == ["function_call_arguments.delta", "function_call_arguments.done"]
        assert added["item"] == {**item, "arguments": "", "status": "in_progress"}
        assert inner[0]["delta"] == inner[1]["arguments"] == item["arguments"]
        return
    if item["type"] == "mcp_call":
        assert kinds[:3] == ["mcp_call.in_progress", "mcp_call_arguments.delta", "mcp_call_arguments.done"]
        assert kinds[3:] == ([] if item["status"] == "incomplete" else [f"mcp_call.{item['status']}"])
        assert added["item"]["arguments"] == "" and inner[1]["delta"] == inner[2]["arguments"] == item["arguments"]
        return
    (part,) = item["content"]
    kind = "output_text" if part["type"] == "output_text" else "refusal"
    deltas = kinds.count(f"{kind}.delta")
    assert kinds == ["content_part.added", *[f"{kind}.delta"] * deltas, f"{kind}.done", "content_part.done"]
    whole = part["text" if kind == "output_text" else "refusal"]
    assert "".join([event["delta"] for event in inner if "delta" in event]) == whole
    assert inner[-1]["part"] == part and inner[-2][part["type"].removeprefix("output_")] == whole


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[openai.AsyncOpenAI, None]:
    async with serve_openai(tmp_path_factory.mktemp("home"), stored_atlas(Scripted(says("Hi.")))) as (_, client):
        yield client


async def read_stream(stream: AsyncIterable[Any]) -> list[dict[str, Any]]:
    return [event.model_dump(mode="json", exclude_unset=True) async for event in stream]


async def test_response_shows_the_tools_that_ran_in_the_gateway(tmp_path: Path) -> None:
    script = (
        thinks("Hm.") + says("Let me see.") + calls("upper", input="hey") + calls("fail", input="x"),
        says("It is HEY."),
    )
    atlas = stored_atlas(Scripted(*script * 4), (UPPER, Tool("fail", fail, in_process=True)))
    ask: dict[str, Any] = {"model": MODEL, "input": "Shout hey."}
    async with serve_openai(tmp_path, atlas) as (_, client):
        given: dict[str, Any] = {"instructions": "Be loud.", "metadata": {"team": "a"}, "temperature": 0.5}
        create: Any = client.responses.create
        response: Response = await create(**ask, **given)
        final = check_stream(await read_stream(await client.responses.create(**ask, stream=True)))
        async with client.responses.stream(**ask) as events:
            kinds = [event.type async for event in events]
            streamed = await events.get_final_response()
        unstored = check_stream(await read_stream(await client.responses.create(**ask, stream=True, store=False)))
        assert (await client.responses.retrieve(response.id)).to_dict() == response.to_dict()
        replay = await read_stream(await client.responses.retrieve(final["id"], stream=True))
        with pytest.raises(openai.NotFoundError, match=unstored["id"]):
            await client.responses.retrieve(unstored["id"])
    assert check_stream(replay) == final and kinds[-1] == "response.completed"
    whole = response.to_dict()
    assert whole.keys() == KEYS and whole.items() >= {**given, "model": MODEL, "status": "completed"}.items()
    assert response.usage is not None and response.usage.total_tokens > 0
    for output in (whole["output"], final["output"], streamed.to_dict()["output"], unstored["output"]):
        before, call, failed, after = cast(list[dict[str, Any]], output)
        assert (before["content"][0]["text"], after["content"][0]["text"]) == ("Let me see.", "It is HEY.")
        assert (call["type"], call["server_label"], call["name"]) == ("mcp_call", "atlas", "upper")
        assert (call["arguments"], call["output"], call["error"]) == ('{"input":"hey"}', "HEY", None)
        assert (failed["status"], failed["output"]) == ("failed", None) and "failed" in failed["error"]["content"]


def fail(input: str) -> str:
    """Fail."""
    raise RuntimeError("broken")


async def test_previous_response_is_a_position_in_the_session(tmp_path: Path) -> None:
    model = Scripted(*[says(f"Answer {number}.") for number in range(1, 7)])
    async with serve_openai(tmp_path, stored_atlas(model)) as (gateway, client), connect_client(gateway) as page:
        create = client.responses.create
        first = await create(model=MODEL, input="One.", instructions="Be brief.")
        second = await create(model=MODEL, input="Two.", previous_response_id=first.id)
        items: list[Any] = [*[item.to_dict() for item in second.output], {"role": "user", "content": "Three."}]
        await create(model=MODEL, input=items, previous_response_id=second.id)  # known items are not added again
        await create(model=MODEL, input="Other.", previous_response_id=first.id)  # an earlier one: a fork
        developer: list[Any] = [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "Five."}]
        fifth = await create(model=MODEL, input=developer, previous_response_id=first.id)
        await create(model=MODEL, input="Six.", previous_response_id=second.id, store=False)
        assert (await page.get("sessions.list"))["sessions"] == []  # they are in the archive
        assert len((await page.get("sessions.list", archived=True))["sessions"]) == 3
        shown = await client.responses.input_items.list(fifth.id, order="asc")
        page_1 = await client.responses.input_items.list(fifth.id, limit=1)
        page_2 = await page_1.get_next_page()
        await client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(first.id)
        with pytest.raises(openai.BadRequestError) as gone:
            await create(model=MODEL, input="Seven.", previous_response_id=first.id)
        assert (await client.responses.retrieve(second.id)).output_text == "Answer 2."
    texts = [[message.text for message in request.messages] for request in model.requests]
    assert texts[1:3] == [
        ["One.", "Answer 1.", "Two."],
        ["One.", "Answer 1.", "Two.", "Answer 2.", "Three."],
    ]
    assert texts[3:5] == [["One.", "Answer 1.", "Other."], ["One.", "Answer 1.", "Be kind.", "Five."]]
    assert texts[5] == ["One.", "Answer 1.", "Two.", "Answer 2.", "Six."]
    assert ["Be brief." in request.system for request in model.requests] == [True, *[False] * 5]
    assert [(item.to_dict()["role"], item.to_dict()["content"]) for item in shown.data] == [
        ("system", [{"type": "input_text", "text": "Be kind."}]),
        ("user", [{"type": "input_text", "text": "Five."}]),
    ]
    assert [item.id for item in (*page_1.data, *page_2.data)] == [item.id for item in reversed(shown.data)]
    assert (gone.value.code, gone.value.param) == ("previous_response_not_found", "previous_response_id")


async def test_input_items_bring_history_and_pictures(tmp_path: Path) -> None:
    model = Scripted(says("A cat."), says("Ana."))
    history: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "call_id": "c1", "name": "a", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "b", "arguments": '{"x":1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
        {"type": "mcp_call", "id": "mcp_1", "server_label": "atlas", "name": "c", "arguments": "{}", "output": "three"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Hello Ana."}]},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "What is this?"},
                {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "auto"},
                {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,aGk="},
            ],
        },
    ]
    async with serve_openai(tmp_path, stored_atlas(model)) as (_, client):
        kept = await client.responses.create(model=MODEL, input=history)
        items = (await client.responses.input_items.list(kept.id, order="asc", limit=100)).data
        await client.responses.create(model=MODEL, input=history, store=False)
    stored, unstored = model.requests
    for request in (stored, unstored):
        messages = request.messages
        assert [message.role for message in messages] == ["system", *["assistant", "tool"] * 2, "assistant", "user"]
        results = [result.result for message in messages for result in message.tool_results]
        assert results == ["one", "two", "three"]
        assert [part.type for part in messages[-1].parts] == ["text", "image", "file"]
    kinds = [item.type for item in items]
    calls_of_client, call_of_gateway = ["function_call"] * 2 + ["function_call_output"] * 2, ["function_call"]
    assert kinds == ["message", *calls_of_client, *call_of_gateway, "function_call_output", "message", "message"]


class City(BaseModel):
    name: str
    people: int


async def test_typed_output_is_sent_after_it_was_validated(tmp_path: Path) -> None:
    answer = says('Here: {"name": "Bonn", "people": 330000}')
    script = (says("Let me see.") + calls("upper", input="x"), says("no JSON"), answer)
    async with serve_openai(tmp_path, stored_atlas(Scripted(*script * 2), (UPPER,))) as (_, client):
        parsed = await client.responses.parse(model=MODEL, input="Which city?", text_format=City)
        async with client.responses.stream(model=MODEL, input="Which city?", text_format=City) as events:
            deltas = [event.delta async for event in events if event.type == "response.output_text.delta"]
            streamed = await events.get_final_response()
        kept = await client.responses.retrieve(streamed.id)
    assert parsed.output_parsed == streamed.output_parsed == City(name="Bonn", people=330000)
    assert deltas == ['{"name":"Bonn","people":330000}'] == [kept.output_text]
    assert [item.type for item in parsed.output] == ["mcp_call", "message"]
    assert kept.text is not None and kept.text.format is not None and kept.text.format.type == "json_schema"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("reply", "status", "reason", "parts"),
    [
        (says("So", stop="length"), "incomplete", "max_output_tokens", ["So"]),
        (says("So", stop="refusal"), "completed", None, ["So", "So"]),
        (says("First,") + refuses("cyber"), "completed", None, ["First,", "The model refused to continue: cyber"]),
    ],
)
async def test_answer_that_is_cut_off_or_refused(
    reply: Reply, status: str, reason: str | None, parts: list[str], stream: bool, tmp_path: Path
) -> None:
    async with serve_openai(tmp_path, stored_atlas(Scripted(reply))) as (_, client):
        created: Any = await client.responses.create(model=MODEL, input="?", stream=stream)
        found = check_stream(await read_stream(created)) if stream else created.to_dict()
    assert (found["status"], found["incomplete_details"]) == (status, reason and {"reason": reason})
    content = [part for item in found["output"] for part in item["content"]]
    assert [part.get("text") or part.get("refusal") for part in content] == parts


async def test_background_response_is_followed_and_cancelled(tmp_path: Path) -> None:
    slow = Slow()
    model = PausedProvider(Scripted(says("One two three.") + calls("slow", input="x"), says("Done."), says("No.")), 1)
    async with serve_openai(tmp_path, stored_atlas(model, (slow.tool,))) as (_, client):
        create, retrieve = client.responses.create, client.responses.retrieve
        queued = await create(model=MODEL, input="Go.", background=True)
        assert (queued.status, queued.background, queued.output) == ("queued", True, [])
        await asyncio.wait_for(model.reached.wait(), TIMEOUT)
        stream = await retrieve(queued.id, stream=True)
        model.go.set()
        head: list[Any] = []
        async for event in stream:
            head.append(event.model_dump(mode="json", exclude_unset=True))
            if event.type == "response.mcp_call_arguments.done":
                break
        await stream.close()
        running = await retrieve(queued.id)
        assert (running.status, [item.type for item in running.output]) == ("in_progress", ["message", "mcp_call"])
        with pytest.raises(openai.BadRequestError, match="cancel it first"):
            await client.responses.delete(queued.id)
        rest = await retrieve(queued.id, stream=True, starting_after=head[-1]["sequence_number"])
        slow.release.set()
        events = [*head, *await read_stream(rest)]
        assert check_stream(events)["output"][-1]["content"][0]["text"] == "Done."
        model.go.clear()
        again = await create(model=MODEL, input="Go.", background=True, previous_response_id=queued.id, stream=True)
        started = await anext(aiter(again))
        cancelled = [await client.responses.cancel(cast(Any, started).response.id) for _ in range(2)]
        last = check_stream([started.model_dump(mode="json", exclude_unset=True), *await read_stream(again)])
        assert [each.status for each in cancelled] == ["cancelled"] * 2 and last["status"] == "cancelled"
        assert cancelled[0].to_dict() == cancelled[1].to_dict() == last
        assert (await client.responses.cancel(queued.id)).status == "completed"


async def test_withdrawn_text_ends_the_stream_and_is_not_in_the_response(tmp_path: Path) -> None:
    again = Reply(TextChunk("It is 5."), ResetChunk(1), TextChunk("It is 4."))
    model = PausedProvider(Scripted(again, again), 1)
    async with serve_openai(tmp_path, stored_atlas(model)) as (_, client):
        stream = await client.responses.create(model=MODEL, input="2+2?", stream=True)
        head: list[Any] = []
        async for event in stream:
            head.append(event.model_dump(mode="json", exclude_unset=True))
            if event.type == "response.output_text.delta":
                break
        model.go.set()
        *_, error = await read_stream(stream)
        kept = (await client.responses.create(model=MODEL, input="2+2?")).output_text
        id = head[0]["response"]["id"]
        await wait_until(lambda: _is_completed(client, id))
        replay = check_stream(await read_stream(await client.responses.retrieve(id, stream=True)))
        with pytest.raises(openai.BadRequestError) as restarted:
            await client.responses.retrieve(id, stream=True, starting_after=3)
    assert (error["type"], error["code"], id in error["message"]) == ("error", "answer_withdrawn", True)
    assert kept == "It is 4." == replay["output"][0]["content"][0]["text"]
    assert restarted.value.code == "answer_withdrawn"


async def _is_completed(client: openai.AsyncOpenAI, id: str) -> bool:
    return (await client.responses.retrieve(id)).status == "completed"


async def test_repeated_idempotency_key_returns_the_same_response(tmp_path: Path) -> None:
    model = Scripted(says("Once."), says("Twice."), says("Hello."))
    async with serve_openai(tmp_path, stored_atlas(model)) as (gateway, client), connect_client(gateway) as page:
        ids: list[str] = []
        for previous in (None, "first"):
            for _ in range(2):
                response = await client.responses.create(
                    model=MODEL,
                    input="Do it.",
                    previous_response_id=ids[0] if previous else None,
                    extra_headers={"Idempotency-Key": str(previous)},
                )
                ids.append(response.id)
        named = client.responses.create(model=MODEL, input="Hi.", conversation="main", stream=True)
        hello = check_stream(await read_stream(await named))
        sessions = (await page.get("sessions.list"))["sessions"]
    assert ids[0] == ids[1] != ids[2] == ids[3] and len(model.requests) == 3
    assert (hello["status"], hello["conversation"]) == ("completed", {"id": "main"})
    assert [session["sessionKey"] for session in sessions] == ["main"]


INVALID: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", "web_search"),
    ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "b"}}, "tool_choice", "not among the tools"),
    ({"max_tool_calls": 3}, "max_tool_calls", "not supported"),
    ({"previous_response_id": "resp_x"}, "previous_response_id", "not found"),
    ({"previous_response_id": "resp_x", "conversation": "main"}, "previous_response_id", "without conversation"),
    ({"store": False, "background": True}, "background", "requires store"),
    ({"store": False, "conversation": "main"}, "store", "requires store"),
    ({"include": ["everything"]}, "include[0]", "Invalid enum value"),
    ({"input": [{"role": "assistant", "content": "Hi"}]}, "input", "the role 'user'"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id", "call"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id", "previous_response_id"),
    ({"input": [{"type": "computer_call"}]}, "input[0].type", "computer_call"),
    ({"input": ""}, "input[0].content", "is empty"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
        "input[0].content[0]",
        "image_url",
    ),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema", "expected a schema"),
    (
        {"input": [{"type": "function_call", "call_id": "c", "name": "a", "arguments": "{}"}, USER]},
        "input",
        "without its result",
    ),
]


@pytest.mark.parametrize(("changes", "param", "text"), INVALID)
@pytest.mark.asyncio(loop_scope="module")
async def test_invalid_request_names_the_parameter(
    changes: dict[str, Any], param: str, text: str, served: openai.AsyncOpenAI
) -> None:
    with pytest.raises(openai.BadRequestError, match=text) as raised:
        await cast(Any, served.responses).create(**{"model": MODEL, "input": "Hi.", **changes})
    assert (raised.value.param, raised.value.type) == (param, "invalid_request_error")


async def test_failed_turn_and_unknown_ids_set_the_status(tmp_path: Path) -> None:
    failing = [fails(ProviderError("slow down", "rate_limit"))] * 2 + [
        says("Half") + fails(ProviderError("gone", "auth"))
    ]
    atlas = stored_atlas(Scripted(*failing), agent={"retry": RetryPolicy(retries=0)})
    async with serve_openai(tmp_path, atlas) as (_, client):
        for stream in (True, False):
            with pytest.raises(openai.RateLimitError, match="slow down"):
                await client.responses.create(model=MODEL, input="Hi.", stream=stream)
        events = await read_stream(await client.responses.create(model=MODEL, input="Hi.", stream=True))
        for call in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
            with pytest.raises(openai.NotFoundError) as missing:
                await call("resp_nothing")
            assert missing.value.code == "response_not_found"
        with pytest.raises(openai.NotFoundError, match="unknown model"):
            await client.responses.create(model="gpt-5", input="Hi.")
    failed = check_stream(events)
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error") and "gone" in str(failed["error"])
    assert (failed["output"][0]["status"], failed["output"][0]["content"][0]["text"]) == ("incomplete", "Half")


async def test_client_runs_its_tools(tmp_path: Path) -> None:
    asked = calls("weather", city="Oslo")
    own = says("Let me see.") + calls("upper", input="hey")
    model = Scripted(own, says("Two more.") + asked + calls("time", city="Rome"), asked, says("Rain."), says("Bye."))
    async with serve_openai(tmp_path, stored_atlas(model, (UPPER,))) as (_, client):
        create: Any = partial(client.responses.create, model=MODEL, stream=True)
        first = check_stream(await read_stream(await create(input="Weather?", tools=[WEATHER, TIME])))
        kinds = ["message", "mcp_call", "message", "function_call", "function_call"]
        assert [item["type"] for item in first["output"]] == kinds and first["status"] == "completed"
        weather, time = outputs(first, "rain", "noon")
        with pytest.raises(openai.BadRequestError, match=f"no tool output found.*{time['call_id']}"):
            await create(input=[weather], previous_response_id=first["id"])
        given: dict[str, Any] = {"input": [weather, time], "tools": [TIME, WEATHER]}
        second = check_stream(await read_stream(await create(**given, previous_response_id=first["id"])))
        repeated = check_stream(await read_stream(await create(**given)))  # found by the ids of the calls
        assert repeated == second and second["previous_response_id"] == first["id"] != second["id"]
        transcript = [USER, *first["output"], weather, time, *second["output"], *outputs(second, "still rain")]
        third = check_stream(await read_stream(await create(input=transcript)))  # everything is sent again
        fourth = await client.responses.create(model=MODEL, input="Thanks.", previous_response_id=third["id"])
        for response in (first, second, third):
            assert (await client.responses.retrieve(response["id"])).to_dict() == response
            replay = await client.responses.retrieve(response["id"], stream=True)
            assert check_stream(await read_stream(replay)) == response
        items = (await client.responses.input_items.list(second["id"], order="asc")).data
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(f"{third['id']}1")
    assert [cast(Any, item).output for item in items] == ["rain", "noon"]
    assert (third["output"][0]["content"][0]["text"], fourth.output_text) == ("Rain.", "Bye.")
    results = [result.result for message in model.requests[-1].messages for result in message.tool_results]
    assert results == ["HEY", "rain", "noon", "still rain"]
    assert [[spec.name for spec in request.tools] for request in model.requests] == [
        *[["weather", "time", "upper"]] * 2,
        ["time", "weather", "upper"],
        *[["upper"]] * 2,
    ]


def outputs(response: dict[str, Any], *values: str) -> list[dict[str, Any]]:
    """Return the outputs of the function calls in a response."""
    asked = [item["call_id"] for item in response["output"] if item["type"] == "function_call"]
    return [
        {"type": "function_call_output", "call_id": id, "output": value}
        for id, value in zip(asked, values, strict=True)
    ]


async def test_required_call_replaces_text_and_can_be_left_unanswered(tmp_path: Path) -> None:
    model = Scripted(says("I think it rains."), calls("weather", city="Oslo"), says("Hello."))
    async with serve_openai(tmp_path, stored_atlas(model)) as (_, client):
        create: Any = client.responses.create
        ask: dict[str, Any] = {"model": MODEL, "input": "Weather?", "tools": [WEATHER], "tool_choice": "required"}
        asked = check_stream(await read_stream(await create(**ask, stream=True)))
        assert [item["type"] for item in asked["output"]] == ["function_call"]
        hello = await create(model=MODEL, input="Never mind.", previous_response_id=asked["id"])
        with pytest.raises(openai.BadRequestError):
            await create(model=MODEL, input=outputs(asked, "too late"))
    assert hello.output_text == "Hello."


async def test_client_tools_without_store_are_found_by_their_calls(tmp_path: Path) -> None:
    model = Scripted(calls("weather", city="Oslo"), says("Rain."))
    async with serve_openai(tmp_path, stored_atlas(model)) as (_, client):
        create: Any = partial(client.responses.create, model=MODEL, store=False, tools=[WEATHER])
        asked = (await create(input="Weather?")).to_dict()
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(asked["id"])
        answer = await create(input=[USER, *asked["output"], *outputs(asked, "rain")])
    assert (answer.output_text, answer.store) == ("Rain.", False)
