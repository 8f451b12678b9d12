"""One turn through `Atlas.send` over a real socket, all that can be seen of it, and what must hold for every turn."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from atlas_agents import (
    Agent,
    AnthropicProvider,
    Atlas,
    History,
    Message,
    OpenAIProvider,
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
from atlas_agents.providers.base import Provider
from fault_server import FaultServer, response
from sse_events import EventBuilder, a, o

PATIENCE = 20.0
KEY = "sk-canary-0123456789"


class QuickClock(SystemClock):
    """The system's clock at many times its speed; remembers how long it was asked to sleep."""

    def __init__(self, speed: float = 100) -> None:
        self.speed = speed
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return super().monotonic() * self.speed

    def call_later(self, seconds: float, ring: Callable[[], object]) -> Any:
        return super().call_later(seconds / self.speed, ring)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await super().sleep(seconds / self.speed)


class LeapClock(SystemClock):
    """The system's clock, which leaps over every sleep and says how long it was."""

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
    """A vendor's wire: its words, and how we speak it."""

    name: str
    builder: EventBuilder
    history: Callable[[Any], None]

    def provider(self, url: str, timeouts: Timeouts | None = None, clock: Clock = SYSTEM_CLOCK) -> Provider:
        if self.name == "openai":
            return OpenAIProvider("m-1", base_url=f"{url}/v1", api_key=KEY, timeouts=timeouts, clock=clock)
        return AnthropicProvider("m-1", base_url=url, api_key=KEY, timeouts=timeouts, clock=clock)

    def __repr__(self) -> str:
        return self.name


@dataclass
class Turn:
    """What a caller saw of one turn."""

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
        """All text that a client would have on its screen: a reset takes back what came since the last tool call."""
        kept: list[str] = []
        fresh: list[str] = []
        for event in self.events:
            match event:
                case StreamChunk(text=text):
                    fresh.append(text)
                case StreamReset():
                    fresh.clear()
                case ToolCalled():
                    kept, fresh = kept + fresh, []
                case _:
                    pass
        return "".join(kept + fresh)

    @property
    def said(self) -> list[str]:
        """The text of every message of the model that was kept."""
        return [message.text for message in self.added if message.role == "assistant"]


@dataclass
class Room:
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
        """How many requests each server saw."""
        return [len(server.requests) for server in self.servers]

    async def turn(self, text: str = "Pay bob 5.") -> Turn:
        """Take a turn, and check what must hold for every one."""
        messages = self.atlas.conversation().messages
        before = len(messages)
        async with asyncio.timeout(PATIENCE):
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
        """The conversation goes on, and every request so far carried a history that its vendor accepts."""
        for wire, server in zip(self.wires, self.servers, strict=True):
            server.add(response(*wire.builder.says("Next.")))
        turn = await self.turn("And now?")
        assert turn.reply is not None, turn.error
        assert turn.reply.text == "Next."
        for wire, server in zip(self.wires, self.servers, strict=True):
            for asked in server.requests:
                wire.history(asked.body)
                assert asked.headers["authorization" if wire.name == "openai" else "x-api-key"].endswith(KEY)


def check_pairs(messages: Sequence[Message]) -> None:
    """Every call is answered by the message right after it, in its order, and nothing else is."""
    awaited: list[str] = []
    for message in messages:
        assert [result.call_id for result in message.tool_results] == awaited
        awaited = [call.id for call in message.tool_calls]
    assert awaited == []


def check_turn(turn: Turn, text: str) -> None:
    """One beginning, one end; what was shown is what was kept."""
    kinds = turn.kinds
    assert kinds[:2] == ["message:sent", "stream:start"]
    assert kinds.count("stream:end") == 1
    assert turn.added[0].text == text
    assert turn.shown == "".join(turn.said) == turn.stream.text
    end = next(event for event in turn.events if isinstance(event, StreamEnd))
    if turn.error is None:
        assert turn.reply is turn.added[-1]
        assert kinds[-2:] == ["stream:end", "message:received"]
        assert end.error is None
    else:
        told = turn.events[-1]
        assert isinstance(told, ErrorRaised)
        assert isinstance(turn.error, ProviderError)
        assert (told.kind, told.message) == (turn.error.kind, str(turn.error))
        assert kinds[-2:] == ["stream:end", "error"]
        assert end.error == str(turn.error)
        assert KEY not in told.message


@asynccontextmanager
async def room(
    wire: Wire | Sequence[Wire],
    *servers: FaultServer,
    retry: RetryPolicy | None = None,
    timeouts: Timeouts | None = None,
    clock: Clock | None = None,
    history: History | None = None,
) -> AsyncGenerator[Room]:
    """An Atlas with one provider per server, in that order; it waits little between attempts.

    One wire is that of all servers.
    """
    paid: list[tuple[str, int]] = []

    @tool
    async def pay(to: str, amount: int) -> str:
        """Pay somebody."""
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
            yield Room(wires, atlas, list(servers), paid)


@asynccontextmanager
async def _started(servers: Sequence[FaultServer]) -> AsyncGenerator[None]:
    async with AsyncExitStack() as stack:
        for server in servers:
            await stack.enter_async_context(server)
        yield


def check_openai_history(body: Any) -> None:
    """Every call is answered by the tool messages right after it, and nothing else is."""
    assert body["stream"] is True
    awaited: list[str] = []
    for message in body["messages"]:
        if message["role"] == "tool":
            assert message["tool_call_id"] in awaited, "an answer without its call"
            awaited.remove(message["tool_call_id"])
            continue
        assert awaited == [], "a call without its answer"
        assert message.get("content") or message.get("tool_calls")
        awaited = [call["id"] for call in message.get("tool_calls", ())]
        assert len(set(awaited)) == len(awaited)
        for call in message.get("tool_calls", ()):
            assert isinstance(call["function"]["arguments"], str)
            assert call["function"]["name"]
    assert awaited == []
    assert body["messages"][-1]["role"] in ("user", "tool")


def check_anthropic_history(body: Any) -> None:
    """Every tool use is answered in the message right after it, and no thought is sent without its signature."""
    assert body["stream"] is True
    assert body["max_tokens"] > 0
    awaited: list[str] = []
    for message in body["messages"]:
        blocks = message["content"]
        assert blocks
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        assert sorted(results) == sorted(awaited)
        awaited = [block["id"] for block in blocks if block["type"] == "tool_use"]
        assert len(set(awaited)) == len(awaited)
        assert not (awaited and message["role"] != "assistant")
        assert all(block["signature"] for block in blocks if block["type"] == "thinking")
    assert awaited == []


OPENAI = Wire("openai", o, check_openai_history)
ANTHROPIC = Wire("anthropic", a, check_anthropic_history)
WIRES = [OPENAI, ANTHROPIC]
