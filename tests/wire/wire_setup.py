"""Turns through `Atlas.send` over a real socket, and the checks that every turn must pass."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from atlas_agents import (
    Agent,
    AnthropicProvider,
    Atlas,
    GeminiProvider,
    History,
    Message,
    OpenAIProvider,
    OpenAIResponsesProvider,
    ProviderError,
    RetryPolicy,
    Timeouts,
    tool,
)
from atlas_agents.agents.stream import AtlasStream
from atlas_agents.core.aio import SYSTEM_CLOCK, Clock, SystemClock
from atlas_agents.core.events import (
    ErrorRaised,
    Event,
    StreamChunk,
    StreamEnd,
    StreamReset,
    StreamThinking,
    ToolAnswered,
    ToolCalled,
)
from atlas_agents.providers.anthropic import AnthropicReader
from atlas_agents.providers.base import Provider
from atlas_agents.providers.gemini import GeminiReader
from atlas_agents.providers.http import StreamReader
from atlas_agents.providers.openai import OpenAIReader
from atlas_agents.providers.openai_responses import ResponsesReader
from checks import TIMEOUT
from fault_server import FaultServer, response
from sse_events import EventBuilder, a, g, o, r

KEY = "sk-canary-0123456789"


class FastClock(SystemClock):
    """System clock at many times its speed; records the sleeps."""

    def __init__(self, speed: float = 100) -> None:
        self.speed = speed
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return super().monotonic() * self.speed

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Any:
        return super().call_later(seconds / self.speed, callback)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await super().sleep(seconds / self.speed)


class SkippingClock(SystemClock):
    """System clock that skips every sleep and records its length."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.ahead += seconds
        await super().sleep(0)


@dataclass(frozen=True)
class Wire:
    """A vendor's API: its event builder, its provider and reader, and the check of a request's history."""

    name: str
    builder: EventBuilder
    history: Callable[[Any], None]
    kind: Callable[..., Provider]
    reader: Callable[[], StreamReader]
    path: str = "/v1"
    """Path of the base URL."""
    key_header: str = "authorization"
    messages: str = "messages"
    """Field of a request's body that has the history."""
    model: str = "m-1"

    def provider(self, url: str, timeouts: Timeouts | None = None, clock: Clock = SYSTEM_CLOCK) -> Provider:
        return self.kind(self.model, base_url=url + self.path, api_key=KEY, timeouts=timeouts, clock=clock)

    def __repr__(self) -> str:
        return self.name


@dataclass
class Turn:
    """One turn as its caller sees it."""

    stream: AtlasStream
    events: list[Event]
    added: list[Message]
    reply: Message | None = None
    error: BaseException | None = None

    @property
    def kinds(self) -> list[str]:
        return [event.type for event in self.events]

    @property
    def resets(self) -> int:
        return self.kinds.count("stream:reset")

    @property
    def thoughts(self) -> str:
        return "".join([event.text for event in self.events if isinstance(event, StreamThinking)])

    @property
    def results(self) -> list[tuple[str, str | None]]:
        """(status, error) of each answered call."""
        return [(event.status, event.error) for event in self.events if isinstance(event, ToolAnswered)]

    @property
    def shown(self) -> str:
        """The text that a client shows: a reset withdraws the text since the last tool call."""
        complete: list[str] = []
        draft: list[str] = []
        for event in self.events:
            match event:
                case StreamChunk(text=text):
                    draft.append(text)
                case StreamReset():
                    draft.clear()
                case ToolCalled():
                    complete, draft = complete + draft, []
                case _:
                    pass
        return "".join(complete + draft)

    @property
    def reply_texts(self) -> list[str]:
        """The text of every stored assistant message."""
        return [message.text for message in self.added if message.role == "assistant"]


@dataclass
class WireSetup:
    """An Atlas whose agent has two tools, and the servers behind its providers."""

    wires: Sequence[Wire]
    atlas: Atlas
    servers: list[FaultServer]
    paid: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])

    @property
    def server(self) -> FaultServer:
        return self.servers[0]

    @property
    def requests(self) -> list[int]:
        """The number of requests that each server received."""
        return [len(server.requests) for server in self.servers]

    async def turn(self, text: str = "Pay bob 5.") -> Turn:
        """Run a turn and check what must hold for every turn."""
        messages = self.atlas.conversation().messages
        before = len(messages)
        async with asyncio.timeout(TIMEOUT):
            stream = self.atlas.send(text)
            turn = Turn(stream, [event async for event in stream], [])
            try:
                turn.reply = await stream.reply()
            except ProviderError as error:
                turn.error = error
        turn.added = messages[before:]
        check_turn(turn, text)
        check_pairs(messages)
        return turn

    async def next_turn_works(self) -> None:
        """Check that the next turn works, and that every request had a history that its vendor accepts."""
        for wire, server in zip(self.wires, self.servers, strict=True):
            server.add(response(*wire.builder.says("Next.")))
        turn = await self.turn("And now?")
        assert turn.reply is not None, turn.error
        assert turn.reply.text == "Next."
        for wire, server in zip(self.wires, self.servers, strict=True):
            for request in server.requests:
                wire.history(request.body)
                assert request.headers[wire.key_header].endswith(KEY)


def check_pairs(messages: Sequence[Message]) -> None:
    """Check that the next message answers every call, in order, and nothing else."""
    expected_ids: list[str] = []
    for message in messages:
        assert [result.call_id for result in message.tool_results] == expected_ids
        expected_ids = [call.id for call in message.tool_calls]
    assert expected_ids == []


def check_turn(turn: Turn, text: str) -> None:
    """Check that the turn starts and ends once, and that the shown text equals the stored text."""
    kinds = turn.kinds
    assert kinds[:2] == ["message:sent", "stream:start"]
    assert kinds.count("stream:end") == 1
    assert turn.added[0].text == text
    assert turn.shown == "".join(turn.reply_texts) == turn.stream.text
    end = next(event for event in turn.events if isinstance(event, StreamEnd))
    if turn.error is None:
        assert turn.reply is turn.added[-1]
        assert kinds[-2:] == ["stream:end", "message:received"]
        assert end.error is None
    else:
        last_event = turn.events[-1]
        assert isinstance(last_event, ErrorRaised)
        assert isinstance(turn.error, ProviderError)
        assert (last_event.kind, last_event.message) == (turn.error.kind, str(turn.error))
        assert kinds[-2:] == ["stream:end", "error"]
        assert end.error == str(turn.error)
        assert KEY not in last_event.message


@asynccontextmanager
async def open_setup(
    wire: Wire | Sequence[Wire],
    *servers: FaultServer,
    retry: RetryPolicy | None = None,
    timeouts: Timeouts | None = None,
    clock: Clock | None = None,
    history: History | None = None,
) -> AsyncGenerator[WireSetup]:
    """Open an Atlas with one provider per server, in order, and short retry delays. A single wire applies to all."""
    paid: list[tuple[str, int]] = []

    @tool
    async def pay(to: str, amount: int) -> str:
        """Pay a person."""
        paid.append((to, amount))
        return f"paid {amount} to {to}"

    @tool
    async def look() -> str:
        """Look around."""
        paid.append(("look", 0))
        return "nothing"

    policy = retry or RetryPolicy(order="given", backoff=0.001)
    time = clock or SYSTEM_CLOCK
    async with _started(servers):
        wires = [wire] * len(servers) if isinstance(wire, Wire) else wire
        providers = [each.provider(server.url, timeouts, time) for each, server in zip(wires, servers, strict=True)]
        agent = Agent("assistant", providers=providers, tools=[pay, look], retry=policy, system_prompt="Be brief.")
        async with Atlas([agent], clock=time, history=history) as atlas:
            yield WireSetup(wires, atlas, list(servers), paid)


@asynccontextmanager
async def _started(servers: Sequence[FaultServer]) -> AsyncGenerator[None]:
    async with AsyncExitStack() as stack:
        for server in servers:
            await stack.enter_async_context(server)
        yield


def check_openai_history(body: Any) -> None:
    """Check that the next tool messages answer every call, and nothing else."""
    assert body["stream"] is True
    expected_ids: list[str] = []
    for message in body["messages"]:
        if message["role"] == "tool":
            assert message["tool_call_id"] in expected_ids, "an answer without its call"
            expected_ids.remove(message["tool_call_id"])
            continue
        assert expected_ids == [], "a call without its answer"
        assert message.get("content") or message.get("tool_calls")
        expected_ids = [call["id"] for call in message.get("tool_calls", ())]
        assert len(set(expected_ids)) == len(expected_ids)
        for call in message.get("tool_calls", ()):
            assert isinstance(call["function"]["arguments"], str)
            assert call["function"]["name"]
    assert expected_ids == []
    assert body["messages"][-1]["role"] in ("user", "tool")


def check_anthropic_history(body: Any) -> None:
    """Check that the next message answers every tool call, and that all thinking has its signature."""
    assert body["stream"] is True
    assert body["max_tokens"] > 0
    expected_ids: list[str] = []
    for message in body["messages"]:
        blocks = message["content"]
        assert blocks
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        assert sorted(results) == sorted(expected_ids)
        expected_ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
        assert len(set(expected_ids)) == len(expected_ids)
        assert not (expected_ids and message["role"] != "assistant")
        assert all(block["signature"] for block in blocks if block["type"] == "thinking")
    assert expected_ids == []


def check_responses_history(body: Any) -> None:
    """Check that outputs answer every call, and that reasoning is followed by the item that it led to."""
    assert body["stream"] is True
    assert body["store"] is False
    expected_ids: list[str] = []
    items: list[dict[str, Any]] = body["input"]
    for item, following in zip(items, [*items[1:], dict[str, Any]()], strict=True):
        match item.get("type", "message"):
            case "function_call_output":
                assert item["call_id"] in expected_ids, "an answer without its call"
                expected_ids.remove(item["call_id"])
            case "function_call":
                assert item["call_id"] not in expected_ids
                assert isinstance(item["arguments"], str)
                assert item["name"]
                expected_ids.append(item["call_id"])
            case "reasoning":
                assert item.get("encrypted_content") or item["content"]
                assert following.get("type") in ("message", "function_call")
            case "message":
                assert expected_ids == [] or item["role"] == "assistant", "a call without its answer"
                assert item["content"]
            case _:
                pass
    assert expected_ids == []
    assert items[-1].get("type") == "function_call_output" or items[-1]["role"] == "user"


def check_gemini_history(body: Any) -> None:
    """Check that the next content answers every call, and that the first call of each step is signed."""
    expected: list[tuple[str, str]] = []
    for content in body["contents"]:
        blocks = content["parts"]
        assert blocks
        answers = [block["functionResponse"] for block in blocks if "functionResponse" in block]
        assert [(answer["id"], answer["name"]) for answer in answers] == expected
        assert all(isinstance(answer["response"], dict) for answer in answers)
        assert not answers or len(answers) == len(blocks)
        calls = [block for block in blocks if "functionCall" in block]
        assert not calls or (content["role"] == "model" and calls[0]["thoughtSignature"])
        expected = [(call["functionCall"]["id"], call["functionCall"]["name"]) for call in calls]
        assert len(set(expected)) == len(expected)
        assert all(isinstance(call["functionCall"]["args"], dict) for call in calls)
    assert expected == []
    assert body["contents"][-1]["role"] == "user"


OPENAI = Wire("openai", o, check_openai_history, OpenAIProvider, OpenAIReader)
ANTHROPIC = Wire("anthropic", a, check_anthropic_history, AnthropicProvider, AnthropicReader, "", "x-api-key")
RESPONSES = Wire("responses", r, check_responses_history, OpenAIResponsesProvider, ResponsesReader, messages="input")
GEMINI = Wire(
    "gemini",
    g,
    check_gemini_history,
    GeminiProvider,
    GeminiReader,
    "",
    "x-goog-api-key",
    "contents",
    "gemini-3.8-flash",
)
WIRES = [OPENAI, ANTHROPIC, RESPONSES, GEMINI]
