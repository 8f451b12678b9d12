"""MCP server: lists and calls tools, asks agents, gets prompts and reads documents for MCP clients.

It is stateless: every request is authorised by its own token.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeAlias, cast

import mcp_types as types
import msgspec
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError

from atlas_agents.agents.agent import Agent
from atlas_agents.agents.runner import tool_call_result
from atlas_agents.agents.stream import AtlasStream
from atlas_agents.core.errors import AtlasError, BadArguments, Cancelled, ConfigError
from atlas_agents.core.events import ApprovalAsked, Event, ToolCalled, ToolProgress
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Image, ToolResult, extract_images, new_id, user
from atlas_agents.core.text import wire_name
from atlas_agents.gateway.asgi import Receive, Send
from atlas_agents.gateway.auth import Grant
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.mcp.resources import DocumentResources, ResourceReader
from atlas_agents.gateway.protocol.frames import ProtocolError
from atlas_agents.gateway.protocol.types import Scope
from atlas_agents.tools.schema import compile_check
from atlas_agents.tools.tool import Tool

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
RequestContext = ServerRequestContext[Any, Any]
_INSTRUCTIONS = (
    "The tools of an Atlas Agents gateway, and its agents, which are called with ask_… tools. A call may wait until a "
    "person approves it."
)


class McpTool(msgspec.Struct, frozen=True):
    """A tool as an MCP client sees it. The hints say what a call may do; clients decide with them when to ask."""

    name: str
    title: str
    description: str
    parameters: dict[str, Any]
    result: dict[str, Any] | None = None
    """JSON schema of the results, if they have one."""
    read_only: bool = False
    """A call changes nothing. Other calls count as destructive and as having an effect each time."""
    open_world: bool | None = None
    """A call reaches people or systems outside; None if that is not known."""


class ToolOutcome(msgspec.Struct, frozen=True):
    """The result of a call."""

    text: str
    structure: dict[str, Any] | None = None
    failed: bool = False
    images: tuple[Image, ...] = ()


class McpProtocolServer:
    """Handles the requests of MCP clients. Each tool call is an `McpRequest`."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        extra: dict[str, Any] = {}
        if hub.services.resources is not None:
            extra = {"on_list_resources": self._list_resources, "on_read_resource": self._read_resource}
        server: Server[Any] = Server(
            hub.server.name,
            version=hub.server.version,
            instructions=_INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
            **extra,
        )
        self._manager = StreamableHTTPSessionManager(
            server, stateless=True, max_request_body_size=hub.settings.max_frame
        )

    async def run(self, ready: asyncio.Event) -> None:
        """Run until cancelled."""
        async with self._manager.run():
            ready.set()
            await asyncio.Event().wait()

    async def answer(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        await self._manager.handle_request(scope, receive, send)

    async def _list_tools(self, ctx: RequestContext, params: Any) -> types.ListToolsResult:
        grant, agent = self._authorize(ctx), self._agent(ctx)
        listed = list_tools(self._hub, agent, grant)
        return types.ListToolsResult(tools=[_to_wire_tool(each) for each in listed])

    async def _call_tool(self, ctx: RequestContext, params: types.CallToolRequestParams) -> types.CallToolResult:
        grant, agent = self._authorize(ctx, "write"), self._agent(ctx)
        request = McpRequest(self._hub, grant, _progress_reporter(ctx))
        try:
            outcome = await request.call(agent, params.name, params.arguments or {})
        except AtlasError as error:
            outcome = ToolOutcome(self._hub.atlas.hide(str(error)), failed=True)
        images = [types.ImageContent(data=each.data, mime_type=each.media_type) for each in outcome.images]
        return types.CallToolResult(
            content=[types.TextContent(text=outcome.text), *images],
            structured_content=outcome.structure,
            is_error=outcome.failed,
        )

    async def _list_prompts(self, ctx: RequestContext, params: Any) -> types.ListPromptsResult:
        self._authorize(ctx)
        prompts = [
            types.Prompt(
                name=each.name,
                description=each.description or None,
                arguments=[types.PromptArgument(name=argument, required=True) for argument in each.placeholders],
            )
            for each in self._hub.services.prompts()
        ]
        return types.ListPromptsResult(prompts=prompts)

    async def _get_prompt(self, ctx: RequestContext, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        self._authorize(ctx)
        prompt = next((each for each in self._hub.services.prompts() if each.name == params.name), None)
        if prompt is None:
            raise _invalid_params(f"unknown prompt {params.name[:80]!r}")
        try:
            text = prompt.fill(params.arguments or {})
        except AtlasError as error:
            raise _invalid_params(str(error)) from error
        message = types.PromptMessage(role="user", content=types.TextContent(text=text))
        return types.GetPromptResult(description=prompt.description or None, messages=[message])

    async def _list_resources(
        self, ctx: RequestContext, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        cursor = (params.cursor if params is not None else None) or ""
        try:
            found, next_cursor = await self._resources.list(self._reader(ctx), cursor)
        except AtlasError as error:
            raise _invalid_params(str(error)) from error
        resources = [
            types.Resource(
                uri=each.uri,
                name=each.name,
                description=each.description,
                mime_type=each.media_type,
                size=each.size,
            )
            for each in found
        ]
        return types.ListResourcesResult(resources=resources, next_cursor=next_cursor or None)

    async def _read_resource(
        self, ctx: RequestContext, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        uri = str(params.uri)
        try:
            text, kind = await self._resources.read(uri, self._reader(ctx))
        except AtlasError as error:
            raise _invalid_params(str(error)) from error
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=uri, text=text, mime_type=kind)])

    @property
    def _resources(self) -> DocumentResources:
        if self._hub.services.resources is None:
            raise _invalid_params("no resources are available")
        return self._hub.services.resources

    def _reader(self, ctx: RequestContext) -> ResourceReader:
        return ResourceReader(self._agent(ctx), self._authorize(ctx).principal.id)

    def _authorize(self, ctx: RequestContext, *needed: Scope) -> Grant:
        """Return the grant of the request's token; raise if it was revoked or lacks a needed scope."""
        grant: Grant | None = ctx.request.scope["state"]["grant"] if ctx.request is not None else None
        if grant is None or not self._hub.tokens.is_valid(grant):
            raise _invalid_params("authentication required")
        for scope in needed:
            if not grant.allows(scope):
                raise _invalid_params(f"this token lacks the scope {scope}")
        return grant

    def _agent(self, ctx: RequestContext) -> Agent:
        wanted = ctx.request.path_params.get("agent_id", "") if ctx.request is not None else ""
        agent = self._hub.agent(wanted) if wanted else self._hub.atlas.get_agent()
        if agent is None:
            raise _invalid_params("unknown agent")
        return agent


class McpRequest:
    """One tool call of a client. If the client cancels the request, the call is cancelled too."""

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
            return _to_outcome(tool_call_result(await stream.reply()), _output_schema(agent, name))
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
            reply = await stream.reply()
            return ToolOutcome(f"{reply.text}\n\n{reply.refusal}".strip(), failed=bool(reply.refusal))
        except (ProtocolError, Cancelled) as fault:
            return ToolOutcome(str(fault), failed=True)

    async def _follow(self, stream: AtlasStream) -> None:
        """Report progress until the call ends; cancel it if the client disconnects or its token is revoked."""
        status = "working"
        try:
            async with aclosing(_with_timeouts(stream)) as events:
                async for event in events:
                    if not self._hub.tokens.is_valid(self._grant):
                        raise ConfigError("the token was revoked: connect with a valid one")
                    status = _progress_text(event) or status if event is not None else status
                    if event is None or _progress_text(event):
                        self._steps += 1
                        await self._progress(self._steps, status)
        except BaseException:
            stream.cancel()
            raise


def list_tools(hub: Hub, agent: Agent, grant: Grant) -> list[McpTool]:
    """Return the agent's tools that this user may call, and a tool to ask each agent."""
    allowed = [tool for tool in agent.tools if hub.atlas.verdict(agent, tool, grant.principal.id).cell != "no"]
    found = [_describe_tool(tool) for tool in allowed]
    names = {each.name for each in found}
    ask_tools = [
        McpTool(_ask_tool_name(each), f"Ask {each.name}", _describe_agent(each), _ASK_PARAMETERS, open_world=True)
        for each in hub.atlas.agents
    ]
    return [*found, *(each for each in ask_tools if each.name not in names)]


def _describe_tool(tool: Tool) -> McpTool:
    source, _, name = tool.name.rpartition("/")
    words = " ".join(name.replace("_", " ").replace("-", " ").split()) or tool.name
    title = words[:1].upper() + words[1:] + (f" ({source})" if source else "")
    return McpTool(
        tool.wire_name,
        title,
        tool.description.strip() or title,
        tool.parameters,
        tool.output_schema,
        read_only=tool.effect == "pure",
        open_world=True if tool.sends or tool.untrusted else None,
    )


def _to_wire_tool(tool: McpTool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.parameters,
        output_schema=tool.result,
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=tool.read_only,
            destructive_hint=not tool.read_only,
            idempotent_hint=tool.read_only,
            open_world_hint=tool.open_world,
        ),
    )


def _output_schema(agent: Agent, name: str) -> dict[str, Any] | None:
    tool = agent.context.tool_map().get(name)
    return tool.output_schema if tool is not None else None


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


def _to_outcome(result: ToolResult, schema: dict[str, Any] | None = None) -> ToolOutcome:
    """Convert the result of a call. One that does not match the tool's output schema is an error, as clients check it.

    Images are sent beside the structure, with a note in their place, unless the schema has them.
    """
    failed = result.status != "ok"
    value, images = extract_images(result.result)
    text = value if isinstance(value, str) else encode(value).decode()
    if result.error == "declined" and value == {"cancelled": True}:
        text = "The call was denied, or it was not approved in time. Nothing was done."
    if failed:
        return ToolOutcome(text, failed=True, images=tuple(images))
    structure = cast(dict[str, Any], value) if isinstance(value, dict) else None
    if schema is not None:
        structure = next((each for each in (cast(Any, value), result.result) if _matches(schema, each)), None)
        if structure is None:
            note = "The call succeeded, but its result does not match the tool's output schema: "
            return ToolOutcome(note + text, failed=True, images=tuple(images))
    return ToolOutcome(text, structure, images=tuple(images))


def _matches(schema: dict[str, Any], value: Any) -> bool:
    try:
        compile_check("result", schema)(value)
    except BadArguments:
        return False
    return isinstance(value, dict)


def _ask_tool_name(agent: Agent) -> str:
    return wire_name(_ASK + agent.id)


def _describe_agent(agent: Agent) -> str:
    description = f": {agent.description}" if agent.description else ""
    return f"Ask the agent {agent.name}{description}. It answers with text and may use its own tools."


def _progress_reporter(ctx: RequestContext) -> Progress:
    """Return a function that sends progress notifications if the client requested them."""

    async def report(step: int, text: str) -> None:
        await ctx.session.report_progress(float(step), None, text)

    return report


def _invalid_params(text: str) -> MCPError:
    return MCPError(code=types.INVALID_PARAMS, message=text)
