"""Requests equal those of the vendors' SDKs."""

import asyncio
from typing import Any

import pydantic
import pytest
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params
from sdk_clients import anthropic_client, openai_client
from wire_setup import RESPONSES, TIMEOUT, WIRES, Wire

from atlas_agents import (
    Agent,
    Atlas,
    Conversation,
    File,
    Image,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    assistant,
    tool,
    tool_message,
    user,
)
from atlas_agents.providers.base import Request, make_cache_key
from fault_server import FaultServer, response
from sse_events import a, o, r


@tool
async def pay(to: str, amount: int) -> str:
    """Pay a person.

    Args:
        to: The recipient.
        amount: How much.
    """
    return f"paid {amount} to {to}"


PNG = Image.of(b"\x89PNG", "image/png")
REMOTE_IMAGE = Image("image/png", url="https://example.com/cat.png")
PDF = File.of(b"%PDF", "bill.pdf")
PAST: list[Message] = [
    user("Pay bob 😀."),
    assistant(Thinking("Hm", "c2ln"), "Paying.", ToolCall("c1", "pay", {"to": "bob", "amount": 5})),
    tool_message(ToolResult("c1", "ok", "paid 5 to bob")),
    assistant("Done."),
    user("Twice more."),
    assistant(ToolCall("c2", "pay", {"to": "bob", "amount": 1}), ToolCall("c3", "pay", {"to": "eve", "amount": 2})),
    tool_message(ToolResult("c2", "ok", {"paid": 1}), ToolResult("c3", "error", "no money", "failed")),
    assistant("One of two."),
]
QUESTION = user("What is ", Text("this? "), PNG, REMOTE_IMAGE, PDF)


async def our_request(wire: Wire, output: Any = None) -> Any:
    async with FaultServer(response(*wire.builder.says('{"n":1}'))) as server:
        agent = Agent(
            "assistant",
            model=wire.provider(server.url),
            system_prompt="Be brief.",
            tools=[pay],
            temperature=0.5,
            max_tokens=99,
            stop=["END"],
            tool_choice="required",
        )
        async with Atlas([agent]) as atlas:
            await atlas.ask(QUESTION, session=Conversation(PAST), output=output)
        return server.requests[0].body


def o_call(id: str, to: str, amount: int) -> Any:
    return {
        "id": id,
        "type": "function",
        "function": {"name": "pay", "arguments": f'{{"to":"{to}","amount":{amount}}}'},
    }


async def openai_request() -> Any:
    """Send the same conversation with OpenAI's SDK."""
    messages: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Pay bob 😀."},
        {"role": "assistant", "content": "Paying.", "tool_calls": [o_call("c1", "bob", 5)]},
        {"role": "tool", "tool_call_id": "c1", "content": "paid 5 to bob"},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "Twice more."},
        {"role": "assistant", "content": None, "tool_calls": [o_call("c2", "bob", 1), o_call("c3", "eve", 2)]},
        {"role": "tool", "tool_call_id": "c2", "content": '{"paid":1}'},
        {"role": "tool", "tool_call_id": "c3", "content": "Error (failed): no money"},
        {"role": "assistant", "content": "One of two."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is "},
                {"type": "text", "text": "this? "},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG.data}"}},
                {"type": "image_url", "image_url": {"url": REMOTE_IMAGE.url}},
                {
                    "type": "file",
                    "file": {"filename": "bill.pdf", "file_data": f"data:application/pdf;base64,{PDF.data}"},
                },
            ],
        },
    ]
    function: Any = {"name": "pay", "description": "Pay a person.", "parameters": pay.parameters}
    async with FaultServer(response(*o.says("Hi"))) as server, openai_client(server.url) as client:
        stream = await client.chat.completions.create(
            model="m-1",
            messages=messages,
            tools=[{"type": "function", "function": function}],
            temperature=0.5,
            max_tokens=99,
            stop=["END"],
            tool_choice="required",
            stream=True,
            stream_options={"include_usage": True},
        )
        async for _ in stream:
            pass
        return server.requests[0].body


def text(text: str) -> Any:
    return {"type": "text", "text": text}


def tool_use(id: str, to: str, amount: int) -> Any:
    return {"type": "tool_use", "id": id, "name": "pay", "input": {"to": to, "amount": amount}}


def tool_result(id: str, content: str) -> Any:
    return {"type": "tool_result", "tool_use_id": id, "content": content}


def encoded(part: Image | File) -> Any:
    return {"type": "base64", "media_type": part.media_type, "data": part.data}


async def anthropic_request() -> Any:
    """Send the same conversation with Anthropic's SDK."""
    thought = {"type": "thinking", "thinking": "Hm", "signature": "c2ln"}
    messages: Any = [
        {"role": "user", "content": [text("Pay bob 😀.")]},
        {"role": "assistant", "content": [thought, text("Paying."), tool_use("c1", to="bob", amount=5)]},
        {"role": "user", "content": [tool_result("c1", "paid 5 to bob")]},
        {"role": "assistant", "content": [text("Done.")]},
        {"role": "user", "content": [text("Twice more.")]},
        {"role": "assistant", "content": [tool_use("c2", to="bob", amount=1), tool_use("c3", to="eve", amount=2)]},
        {
            "role": "user",
            "content": [
                tool_result("c2", '{"paid":1}'),
                {**tool_result("c3", "Error (failed): no money"), "is_error": True},
            ],
        },
        {"role": "assistant", "content": [text("One of two.")]},
        {
            "role": "user",
            "content": [
                text("What is "),
                text("this? "),
                {"type": "image", "source": encoded(PNG)},
                {"type": "image", "source": {"type": "url", "url": REMOTE_IMAGE.url}},
                {"type": "document", "source": encoded(PDF), "title": "bill.pdf"},
            ],
        },
    ]
    shape: Any = {"name": "pay", "description": "Pay a person.", "input_schema": pay.parameters}
    async with FaultServer(response(*a.says("Hi"))) as server, anthropic_client(server.url) as client:
        stream = await client.messages.create(
            model="m-1",
            system="Be brief.",
            messages=messages,
            tools=[shape],
            extra_body={"temperature": 0.5},  # no longer among its parameters
            max_tokens=99,
            stop_sequences=["END"],
            tool_choice={"type": "any"},
            stream=True,
        )
        async for _ in stream:
            pass
        return server.requests[0].body


def r_call(id: str, to: str, amount: int) -> Any:
    arguments = f'{{"to":"{to}","amount":{amount}}}'
    return {"type": "function_call", "call_id": id, "name": "pay", "arguments": arguments}


def r_message(text: str) -> Any:
    """An assistant message of unknown origin, so that it has no id. Its types demand one, the API does not."""
    content: Any = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "status": "completed", "content": content}


async def responses_request() -> Any:
    """Send the same conversation with OpenAI's SDK, to the Responses API."""
    items: Any = [
        {"role": "user", "content": "Pay bob 😀."},
        r_message("Paying."),
        r_call("c1", "bob", 5),
        {"type": "function_call_output", "call_id": "c1", "output": "paid 5 to bob"},
        r_message("Done."),
        {"role": "user", "content": "Twice more."},
        *[r_call("c2", "bob", 1), r_call("c3", "eve", 2)],
        {"type": "function_call_output", "call_id": "c2", "output": '{"paid":1}'},
        {"type": "function_call_output", "call_id": "c3", "output": "Error (failed): no money"},
        r_message("One of two."),
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "What is "},
                {"type": "input_text", "text": "this? "},
                {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{PNG.data}"},
                {"type": "input_image", "detail": "auto", "image_url": REMOTE_IMAGE.url},
                {
                    "type": "input_file",
                    "filename": "bill.pdf",
                    "file_data": f"data:application/pdf;base64,{PDF.data}",
                },
            ],
        },
    ]
    shape: Any = {"type": "function", "name": "pay", "description": "Pay a person.", "parameters": pay.parameters}
    async with FaultServer(response(*r.says("Hi"))) as server, openai_client(server.url) as client:
        api: Any = client.responses
        stream = await api.create(
            model="m-1",
            instructions="Be brief.",
            input=items,
            tools=[{**shape, "strict": False}],
            store=False,
            include=["reasoning.encrypted_content"],
            prompt_cache_key=make_cache_key(Request(PAST)),
            temperature=0.5,
            max_output_tokens=99,
            tool_choice="required",
            stream=True,
        )
        async for _ in stream:
            pass
        return server.requests[0].body


SDK_REQUESTS = {"openai": openai_request, "anthropic": anthropic_request, "responses": responses_request}
every_wire = pytest.mark.parametrize("wire", [wire for wire in WIRES if wire.name in SDK_REQUESTS], ids=repr)


@every_wire
async def test_request_equals_that_of_the_vendor_sdk(wire: Wire) -> None:
    async with asyncio.timeout(TIMEOUT):
        ours = await our_request(wire)
        theirs = await SDK_REQUESTS[wire.name]()
    assert ours == theirs


@every_wire
@pytest.mark.parametrize("output", [None, {"type": "object", "properties": {"n": {"type": "integer"}}}])
async def test_request_matches_the_published_types_of_the_vendor(wire: Wire, output: Any) -> None:
    import anthropic.types.message_create_params  # slow to import

    shapes: dict[str, Any] = {
        "openai": completion_create_params.CompletionCreateParamsStreaming,
        "anthropic": anthropic.types.message_create_params.MessageCreateParamsStreaming,
        "responses": response_create_params.ResponseCreateParamsStreaming,
    }
    ours = await our_request(wire, output)
    if wire is RESPONSES:
        ours["input"] = [{"id": "msg_1", **item} if item.get("status") else item for item in ours["input"]]
    fitted: Any = pydantic.TypeAdapter(shapes[wire.name]).validate_python(ours)
    assert set(ours) - set(fitted) <= {"temperature"}
    assert len(list(fitted[wire.messages])) == len(ours[wire.messages])
