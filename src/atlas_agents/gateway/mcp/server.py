"""MCP protocol server. It is stateless: every request is authorized by its own token."""

import asyncio
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError

from atlas_agents.agents.agent import Agent
from atlas_agents.core.errors import AtlasError
from atlas_agents.gateway.asgi import Receive, Send
from atlas_agents.gateway.auth import Grant
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.mcp import tools as tools_module
from atlas_agents.gateway.mcp.resources import ResourceLibrary, ResourceReader
from atlas_agents.gateway.mcp.tools import Progress
from atlas_agents.gateway.protocol.types import Scope

Context = ServerRequestContext[Any, Any]
_INSTRUCTIONS = (
    "The tools of an Atlas Agents gateway, and its agents, which are called with ask_… tools. A call may wait until a "
    "person approves it."
)


class McpProtocolServer:
    """Handles MCP requests; the calls themselves are in `tools`."""

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
        await self._manager.handle_request(scope, receive, send)

    async def _list_tools(self, ctx: Context, params: Any) -> types.ListToolsResult:
        grant, agent = self._authorize(ctx), self._agent(ctx)
        listed = tools_module.list_tools(self._hub, agent, grant)
        tools = [
            types.Tool(name=each.name, description=each.description, input_schema=each.parameters) for each in listed
        ]
        return types.ListToolsResult(tools=tools)

    async def _call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        grant, agent = self._authorize(ctx, "write"), self._agent(ctx)
        request = tools_module.McpRequest(self._hub, grant, _progress(ctx))
        try:
            outcome = await request.call(agent, params.name, params.arguments or {})
        except AtlasError as error:
            outcome = tools_module.ToolOutcome(self._hub.atlas.hide(str(error)), failed=True)
        images = [types.ImageContent(data=each.data, mime_type=each.media_type) for each in outcome.images]
        return types.CallToolResult(
            content=[types.TextContent(text=outcome.text), *images],
            structured_content=outcome.structure,
            is_error=outcome.failed,
        )

    async def _list_prompts(self, ctx: Context, params: Any) -> types.ListPromptsResult:
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

    async def _get_prompt(self, ctx: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        self._authorize(ctx)
        prompt = next((each for each in self._hub.services.prompts() if each.name == params.name), None)
        if prompt is None:
            raise _refused(f"unknown prompt {params.name[:80]!r}")
        try:
            text = prompt.fill(params.arguments or {})
        except AtlasError as error:
            raise _refused(str(error)) from error
        message = types.PromptMessage(role="user", content=types.TextContent(text=text))
        return types.GetPromptResult(description=prompt.description or None, messages=[message])

    async def _list_resources(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        cursor = (params.cursor if params is not None else None) or ""
        try:
            found, next_cursor = await self._library.list(self._reader(ctx), cursor)
        except AtlasError as error:
            raise _refused(str(error)) from error
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

    async def _read_resource(self, ctx: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        uri = str(params.uri)
        try:
            text, kind = await self._library.read(uri, self._reader(ctx))
        except AtlasError as error:
            raise _refused(str(error)) from error
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=uri, text=text, mime_type=kind)])

    @property
    def _library(self) -> ResourceLibrary:
        if self._hub.services.resources is None:
            raise _refused("no resources are available")
        return self._hub.services.resources

    def _reader(self, ctx: Context) -> ResourceReader:
        return ResourceReader(self._agent(ctx), self._authorize(ctx).principal.id)

    def _authorize(self, ctx: Context, *needed: Scope) -> Grant:
        """Return the grant of the request's token; raise if it was revoked or lacks a needed scope."""
        grant: Grant | None = ctx.request.scope["state"]["grant"] if ctx.request is not None else None
        if grant is None or not self._hub.tokens.is_valid(grant):
            raise _refused("authentication required")
        for scope in needed:
            if not grant.allows(scope):
                raise _refused(f"this token lacks the scope {scope}")
        return grant

    def _agent(self, ctx: Context) -> Agent:
        wanted = ctx.request.path_params.get("agent_id", "") if ctx.request is not None else ""
        agent = self._hub.agent(wanted) if wanted else self._hub.atlas.get_agent()
        if agent is None:
            raise _refused("unknown agent")
        return agent


def _progress(ctx: Context) -> Progress:
    """Return a function that sends progress notifications, if the client requested them."""

    async def report(step: int, text: str) -> None:
        await ctx.session.report_progress(float(step), None, text)

    return report


def _refused(text: str) -> MCPError:
    return MCPError(code=types.INVALID_PARAMS, message=text)
