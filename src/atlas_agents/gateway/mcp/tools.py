"""MCP tools: calls of an agent's tools and questions to agents."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeAlias, cast

import msgspec

from atlas_agents.agents.agent import Agent
from atlas_agents.agents.runner import tool_call_result
from atlas_agents.agents.stream import AtlasStream
from atlas_agents.core.errors import BadArguments, Cancelled, ConfigError
from atlas_agents.core.events import ApprovalAsked, Event, ToolCalled, ToolProgress
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Image, ToolResult, extract_images, new_id, user
from atlas_agents.core.text import wire_name
from atlas_agents.gateway.auth import Grant
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.protocol.frames import ProtocolError

Progress: TypeAlias = Callable[[int, str], Awaitable[None]]
_ASK = "ask_"
_PROGRESS_INTERVAL = 10.0
"""Seconds between progress notifications; many clients time out on a call without progress."""
_ASK_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "message": {"type": "string", "description": "The message to the agent."},
        "session": {
            "type": "string",
            "description": "A name for the conversation, to continue it later; without one, each question stands "
            "alone.",
            "maxLength": 100,
        },
    },
    "required": ["message"],
    "additionalProperties": False,
}


class McpTool(msgspec.Struct, frozen=True):
    """A tool as an MCP client sees it."""

    name: str
    description: str
    parameters: dict[str, Any]


class ToolOutcome(msgspec.Struct, frozen=True):
    """The result of a call."""

    text: str
    structure: dict[str, Any] | None = None
    failed: bool = False
    images: tuple[Image, ...] = ()


def list_tools(hub: Hub, agent: Agent, grant: Grant) -> list[McpTool]:
    """Return the agent's tools that this user may call, and a tool to ask each agent."""
    allowed = [tool for tool in agent.tools if hub.atlas.verdict(agent, tool, grant.principal.id).cell != "no"]
    found = [McpTool(tool.wire_name, tool.description, tool.parameters) for tool in allowed]
    names = {each.name for each in found}
    ask_tools = [McpTool(_ask_tool_name(each), _describe(each), _ASK_PARAMETERS) for each in hub.atlas.agents]
    return [*found, *(each for each in ask_tools if each.name not in names)]


class McpRequest:
    """One request of a client. If the client cancels it, the call is cancelled too."""

    def __init__(self, hub: Hub, grant: Grant, progress: Progress) -> None:
        self._hub = hub
        self._grant = grant
        self._progress = progress
        self._steps = 0

    async def call(self, agent: Agent, name: str, arguments: dict[str, Any]) -> ToolOutcome:
        """Call a tool of the agent by its wire name, or ask an agent."""
        if name not in agent.context.tool_map():
            target = next((each for each in self._hub.atlas.agents if _ask_tool_name(each) == name), None)
            if target is not None:
                return await self._ask(target, arguments)
        try:
            stream = await self._hub.call_tool(self._grant, agent, name, arguments)
            await self._follow(stream)
            return _outcome(tool_call_result(await stream.reply()))
        except (ProtocolError, Cancelled) as fault:
            return ToolOutcome(str(fault), failed=True)

    async def _ask(self, agent: Agent, arguments: dict[str, Any]) -> ToolOutcome:
        message, name = arguments.get("message"), arguments.get("session") or f"mcp-{new_id()}"
        if not isinstance(message, str) or not message.strip() or not isinstance(name, str) or len(name) > 100:
            raise BadArguments("expected 'message' to be a text and 'session' a short name")
        try:
            session = self._grant.prefix + name
            _, stream = await self._hub.submit_turn(
                agent, user(message), session=session, user=self._grant.principal.id
            )
            await self._follow(stream)
            return ToolOutcome((await stream.reply()).text)
        except (ProtocolError, Cancelled) as fault:
            return ToolOutcome(str(fault), failed=True)

    async def _follow(self, stream: AtlasStream) -> None:
        """Report progress until the call ends; cancel it if the client disconnects or its token is revoked."""
        status = "working"
        try:
            async with aclosing(_with_timeouts(stream)) as events:
                async for event in events:
                    if not self._hub.tokens.is_valid(self._grant):
                        raise ConfigError("the token was revoked")
                    status = _progress_text(event) or status if event is not None else status
                    if event is None or _progress_text(event):
                        self._steps += 1
                        await self._progress(self._steps, status)
        except BaseException:
            stream.cancel()
            raise


async def _with_timeouts(stream: AtlasStream) -> AsyncGenerator[Event | None, None]:
    """Yield the events of a stream, and None after each interval without one."""
    events = aiter(stream)
    upcoming = asyncio.ensure_future(anext(events))
    try:
        while True:
            await asyncio.wait((upcoming,), timeout=_PROGRESS_INTERVAL)
            if not upcoming.done():
                yield None
                continue
            try:
                event = upcoming.result()
            except StopAsyncIteration:
                return
            upcoming = asyncio.ensure_future(anext(events))
            yield event
    finally:
        upcoming.cancel()
        await asyncio.gather(upcoming, return_exceptions=True)
        await events.aclose()


def _progress_text(event: Event) -> str:
    """Return the progress message of an event; empty for most events."""
    match event:
        case ApprovalAsked(_, question) if question.form is not None:
            return (
                f"waiting for input requested by {question.form.asker}: answer in the web UI or with `atlas approvals`"
            )
        case ApprovalAsked(_, question):
            return f"waiting for approval of {question.tool}: answer in the web UI or with `atlas approvals`"
        case ToolProgress(_, name, _, message):
            return f"{name}: {message}"
        case ToolCalled(_, name):
            return f"calling {name}"
        case _:
            return ""


def _outcome(result: ToolResult) -> ToolOutcome:
    failed = result.status != "ok"
    value, images = extract_images(result.result)
    text = value if isinstance(value, str) else encode(value).decode()
    if result.error == "declined" and value == {"cancelled": True}:
        text = "The call was denied, or it was not approved in time. Nothing was done."
    structure = cast(dict[str, Any], value) if isinstance(value, dict) and not failed else None
    return ToolOutcome(text, structure, failed, tuple(images))


def _ask_tool_name(agent: Agent) -> str:
    return wire_name(_ASK + agent.id)


def _describe(agent: Agent) -> str:
    description = f": {agent.description}" if agent.description else ""
    return f"Ask the agent {agent.name}{description}. It answers with text and may use its own tools."
