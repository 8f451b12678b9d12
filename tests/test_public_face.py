"""Public API: the specified lines run verbatim, and every specified name exists."""

import ast
import asyncio
import importlib
import inspect
import json
import types
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, get_args

import pytest

import atlas_agents
import atlas_agents.testing
from atlas_agents import Agent, Atlas, Event, Message, OpenAIProvider, Provider, Request, tool
from atlas_agents.testing import Environment, Scripted, calls, says
from checks import TIMEOUT

FACE = '''\
from atlas_agents import Agent, Atlas, Context, Metadata, Rule, Tool, tool

@tool
async def get_weather(city: str) -> str:
    """Tell today's weather in a city."""
    return f"Sunny in {city}"

assistant = Agent("assistant", model="anthropic/claude-opus-4-6", system_prompt="Be brief.", tools=[get_weather])
atlas = Atlas(agents=[assistant])

reply = await atlas.ask("Weather in Lima?")           # a Message; reply.text
stream = atlas.send("And in Oslo?")                   # an AtlasStream
async for event in stream:                            # typed events; event.type is "stream:chunk", "tool:called", …
    if event.type == "stream:chunk":
        print(event.text, end="")
reply = await stream.reply()
atlas.on("tool:result", lambda event: print(event.name, event.status))
await atlas.close()                                   # or: async with Atlas(...) as atlas
'''


# A server with the minimum of each vendor's API


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(f"event: {event.get('type', '')}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


def anthropic(block: dict[str, Any], delta: dict[str, Any], stop: str) -> bytes:
    message = {"id": "m", "type": "message", "role": "assistant", "model": "c", "usage": {"input_tokens": 9}}
    return sse(
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    )


def tool_call_events(city: str) -> bytes:
    block: dict[str, Any] = {"type": "tool_use", "id": f"toolu_{city}", "name": "get_weather", "input": {}}
    return anthropic(block, {"type": "input_json_delta", "partial_json": json.dumps({"city": city})}, "tool_use")


def text_events(text: str) -> bytes:
    return anthropic({"type": "text", "text": ""}, {"type": "text_delta", "text": text}, "end_turn")


def openai(text: str) -> bytes:
    chunk = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}]}
    return f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()


class FakeVendor:
    """A server on loopback with one scripted response per request."""

    def __init__(self, *script: bytes) -> None:
        self._script = list(script)
        self.url = ""
        self.asked: list[tuple[str, dict[str, str], dict[str, Any]]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        self.asked.append((head[0], headers, body))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        writer.write(self._script.pop(0))
        writer.close()


@asynccontextmanager
async def peer(*script: bytes) -> AsyncGenerator[FakeVendor, None]:
    found = FakeVendor(*script)
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    async with server, asyncio.timeout(TIMEOUT):
        found.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield found


async def run(code: str) -> dict[str, Any]:
    """Run lines with top-level await, as a notebook does."""
    names: dict[str, Any] = {}
    compiled = compile(code, "face", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    await types.FunctionType(compiled, names)()
    return names


# The lines themselves


async def test_specified_lines_run_verbatim_against_anthropic(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with peer(
        tool_call_events("Lima"), text_events("Sunny, I hear."), tool_call_events("Oslo"), text_events("Sunny too.")
    ) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
        names = await run(FACE)
    assert capsys.readouterr().out == "Sunny too."
    assert (names["reply"].text, names["stream"].text) == ("Sunny too.", "Sunny too.")
    line, headers, body = server.asked[1]
    assert line == "POST /v1/messages HTTP/1.1"
    assert headers["x-api-key"] == "sk-test"
    assert body["model"] == "claude-opus-4-6"
    assert "Be brief." in json.dumps(body["system"])
    assert "Sunny in Lima" in json.dumps(body["messages"])


@pytest.mark.parametrize("ref", ["openai/gpt-5", "http/gpt-5"])
async def test_specified_lines_run_against_an_openai_compatible_server(
    ref: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with peer(openai("Sunny."), openai("Sunny too.")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        names = await run(FACE.replace("anthropic/claude-opus-4-6", ref))
    assert (capsys.readouterr().out, names["reply"].text) == ("Sunny too.", "Sunny too.")
    line, headers, body = server.asked[0]
    assert (line, body["model"]) == ("POST /v1/chat/completions HTTP/1.1", "gpt-5")
    assert "authorization" not in headers


async def test_specified_lines_run_with_a_scripted_model(capsys: pytest.CaptureFixture[str]) -> None:
    script = 'calls("get_weather", city="Lima"), says("Sunny."), calls("get_weather", city="Oslo"), says("Sunny too.")'
    code = FACE.replace('"anthropic/claude-opus-4-6"', f"Scripted({script})")
    code = f"from atlas_agents.testing import Scripted, says, calls\n{code}"
    names = await run(code)
    assert capsys.readouterr().out == "Sunny too."
    assert [message.role for message in names["atlas"].conversation().messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ] * 2


async def test_subscriber_gets_name_and_status(capsys: pytest.CaptureFixture[str]) -> None:
    @tool
    async def get_weather(city: str) -> str:
        """Tell today's weather in a city."""
        return f"Sunny in {city}"

    model = Scripted(calls("get_weather", city="Lima"), says("Sunny."))
    async with Atlas(agents=[Agent("assistant", model=model, tools=[get_weather])]) as atlas:
        atlas.on("tool:result", lambda event: print(event.name, event.status))
        await atlas.ask("Weather in Lima?")
    assert capsys.readouterr().out == "get_weather ok\n"


async def test_providers_of_every_kind_fail_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def my_callable(request: Request) -> Any:
        return {"choices": [{"message": {"content": "mine"}, "finish_reason": "stop"}]}

    async with peer(openai("theirs")) as server:
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
        provider = OpenAIProvider("m", base_url=server.url, api_key="k", environment=Environment({}, dotenv=None))
        agent = Agent("a", providers=["anthropic/claude-x", provider, my_callable])
        one = Agent("b", providers=[provider])
        async with Atlas([agent, one]) as atlas:
            assert len(agent.models) == 3
            assert (await atlas.ask("hi", agent_id="b")).text == "theirs"


# What is there


def test_every_specified_name_is_importable_from_the_package() -> None:
    names = {"Agent", "Atlas", "Context", "Metadata", "Rule", "Tool", "tool", "agent", "user", "assistant", "system"}
    names |= {"OpenAIProvider", "AnthropicProvider", "History", "ToolContext", "Message", "Conversation", "RunResult"}
    names |= {"ProviderError", "Cancelled", "BadTool", "parse_model_ref", "AtlasStream", "Interceptor"}
    assert names <= set(atlas_agents.__all__)


@pytest.mark.parametrize("module", [atlas_agents, atlas_agents.testing], ids=["top", "testing"])
def test_all_lists_existing_names_once(module: Any) -> None:
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    assert len(module.__all__) == len(set(module.__all__))


def test_every_public_class_and_function_has_a_docstring() -> None:
    silent = [
        name
        for name in atlas_agents.__all__
        if (inspect.isclass(value := getattr(atlas_agents, name)) or inspect.isfunction(value))
        and not inspect.getdoc(value)
    ]
    assert silent == []


def test_every_public_method_is_typed() -> None:
    untyped: list[str] = []
    for kind in (Agent, Atlas, atlas_agents.AtlasStream, atlas_agents.Context, atlas_agents.Metadata):
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if name.startswith("_"):
                continue
            signature = inspect.signature(method)
            bare = [each.name for each in list(signature.parameters.values())[1:] if each.annotation is each.empty]
            if bare or signature.return_annotation is signature.empty:
                untyped.append(f"{kind.__name__}.{name}")
    assert untyped == []


def test_scripted_model_is_a_provider() -> None:
    assert isinstance(Scripted(), Provider)


async def test_events_are_one_union_discriminated_by_type() -> None:
    kinds: Sequence[Any] = get_args(Event)
    assert sorted(kind.type for kind in kinds) == sorted(
        [
            "message:sent",
            "message:steered",
            "stream:start",
            "stream:chunk",
            "stream:thinking",
            "stream:reset",
            "tool:called",
            "approval:asked",
            "approval:answered",
            "tool:pending",
            "plan:updated",
            "state:changed",
            "run:handoff",
            "session:compacted",
            "tool:progress",
            "tool:result",
            "message:kept",
            "stream:end",
            "message:received",
            "error",
        ]
    )
    assert all("stream_id" in inspect.signature(kind).parameters for kind in kinds)


async def test_creating_and_closing_an_atlas_sends_nothing() -> None:
    async with Atlas([Agent("a", model="openai/gpt-x")]) as atlas:
        assert atlas.get_agent() is not None
        assert isinstance(atlas.conversation().messages, list)
        message: list[Message] = atlas.conversation().messages
        assert message == []


def test_type_checker_imports_equal_the_loaded_names() -> None:
    source = ast.parse(inspect.getsource(atlas_agents))
    (declared,) = [node for node in source.body if isinstance(node, ast.If)]
    names = [
        (alias.asname or alias.name, f"{node.module}.{alias.name}")
        for node in declared.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    stores = ["MemoryStore", "PostgresStore", "SqliteStore"]  # `import *` would load their database drivers
    assert sorted(name for name, _ in names) == sorted([*atlas_agents.__all__, *stores])
    for name, path in names:
        module, _, there = path.rpartition(".")
        assert getattr(atlas_agents, name) is getattr(importlib.import_module(module), there)
