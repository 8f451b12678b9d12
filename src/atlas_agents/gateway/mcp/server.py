"""MCP server: lists and calls tools, asks agents, gets prompts and reads documents for MCP clients.

Every request is authorised by its own token. Sessions, which only clients up to 2025-11-25 have, grant nothing.
"""

import asyncio
import hashlib
from collections import OrderedDict
from typing import Any

import mcp_types as types
import msgspec
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from starlette.responses import Response

from atlas_agents.agents.agent import Agent
from atlas_agents.core.errors import AtlasError
from atlas_agents.gateway.asgi import Receive, Send
from atlas_agents.gateway.auth import Grant, bearer_challenge
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.mcp.calls import (
    CallClient,
    InputNeeded,
    McpCall,
    McpTool,
    RequestContext,
    ToolOutcome,
    list_tools,
)
from atlas_agents.gateway.mcp.resources import DocumentResources, ResourceReader
from atlas_agents.gateway.protocol.types import Scope

_MAX_SESSIONS = 10_000
_SESSION_HEADER = "mcp-session-id"
_GONE = "mcp_client_gone"
_INSTRUCTIONS = (
    "The tools of an Atlas Agents gateway, and its agents, which are called with ask_… tools. A call may wait until a "
    "person approves it."
)


class _Session(msgspec.Struct):
    """A session of a client up to 2025-11-25, through which the server can ask the client during a call."""

    log_level: types.LoggingLevel | None = None


class McpProtocolServer:
    """Handles the requests of MCP clients. Each tool call is an `McpCall`.

    A request without a session, or with one that this process did not create, is served all the same, so clients
    survive a restart and any process of a cluster can serve them. Only the server's questions need the session.
    """

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
        server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, self._set_log_level)
        server.middleware.append(RequestStateBoundary(self._state_security(), default_audience=hub.server.name))
        limit = hub.settings.max_frame
        self._stateless = StreamableHTTPSessionManager(server, stateless=True, max_request_body_size=limit)
        self._stateful = StreamableHTTPSessionManager(server, max_request_body_size=limit, max_sessions=_MAX_SESSIONS)
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        """Sessions that this process created, also those that have ended since."""

    async def run(self, ready: asyncio.Event) -> None:
        """Run until cancelled."""
        async with self._stateless.run(), self._stateful.run():
            ready.set()
            await asyncio.Event().wait()

    async def answer(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        grant: Grant = scope["state"]["grant"]
        scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=grant.principal.id, scopes=[]))
        gone = scope["state"][_GONE] = asyncio.Event()
        session = _find_header(scope["headers"], _SESSION_HEADER)
        body = await _read_messages(receive, self._hub.settings.max_frame) if scope["method"] == "POST" else []
        request = _read_request(body)
        if request.method == "tools/call" and not grant.allows("write"):
            await _refuse_scope(request, scope, receive, send)
            return
        opens = request.method == "initialize" and not session

        async def watch_disconnect() -> Any:
            message = body.pop(0) if body else await receive()
            if message["type"] == "http.disconnect":
                gone.set()
            return message

        async def note_session(message: Any) -> None:
            if opens and message["type"] == "http.response.start":
                self._remember(_find_header(message["headers"], _SESSION_HEADER))
            await send(message)

        manager = self._stateful if opens or session in self._sessions else self._stateless
        await manager.handle_request(scope, watch_disconnect, note_session)

    def _remember(self, session: str) -> None:
        if session:
            self._sessions[session] = _Session()
        if len(self._sessions) > 2 * _MAX_SESSIONS:
            self._sessions.popitem(last=False)

    def _state_security(self) -> RequestStateSecurity:
        """Seal the state that clients send back, so that only the same user can use it, in any process."""
        secret = hashlib.sha256(f"mcp request state\n{self._hub.tokens.main.reveal()}".encode()).digest()
        return RequestStateSecurity(keys=[secret], bind_principal=lambda ctx: self._authorize(ctx).principal.id)

    def _find_session(self, ctx: RequestContext) -> _Session | None:
        return self._sessions.get(ctx.request.headers.get(_SESSION_HEADER, "")) if ctx.request is not None else None

    async def _set_log_level(self, ctx: RequestContext, params: types.SetLevelRequestParams) -> types.EmptyResult:
        self._authorize(ctx)
        if (session := self._find_session(ctx)) is not None:
            session.log_level = params.level
        return types.EmptyResult()

    async def _list_tools(self, ctx: RequestContext, params: Any) -> types.ListToolsResult:
        grant, agent = self._authorize(ctx), self._agent(ctx)
        listed = list_tools(self._hub, agent, grant)
        return types.ListToolsResult(tools=[_to_wire_tool(each) for each in listed])

    async def _call_tool(
        self, ctx: RequestContext, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        grant, agent, session = self._authorize(ctx, "write"), self._agent(ctx), self._find_session(ctx)
        gone: asyncio.Event = ctx.request.scope["state"][_GONE] if ctx.request is not None else asyncio.Event()
        client = CallClient(ctx, session.log_level if session is not None else None, gone)
        call = McpCall(self._hub, grant, client, params.request_state or "")
        given = params.input_responses or {}
        answers = {key: each for key, each in given.items() if isinstance(each, types.ElicitResult)}
        try:
            outcome = await call.run(agent, params.name, params.arguments or {}, answers)
        except AtlasError as error:
            outcome = ToolOutcome(self._hub.atlas.hide(str(error)), failed=True)
        if isinstance(outcome, InputNeeded):
            requests: types.InputRequests = {
                each.id: client.elicitation(each, outcome.problems.get(each.id, "")) for each in outcome.questions
            }
            return types.InputRequiredResult(input_requests=requests, request_state=outcome.key)
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


def _invalid_params(text: str) -> MCPError:
    return MCPError(code=types.INVALID_PARAMS, message=text)


def _find_header(headers: Any, name: str) -> str:
    wanted = name.encode()
    return next((value.decode("latin-1") for key, value in headers if key.lower() == wanted), "")


async def _read_messages(receive: Receive, limit: int) -> list[Any]:
    """Return the messages of a request's body, up to a little more than the size that is accepted."""
    found: list[Any] = []
    size = 0
    while size <= limit:
        found.append(await receive())
        size += len(found[-1].get("body", b""))
        if not found[-1].get("more_body"):
            break
    return found


class _Request(msgspec.Struct, frozen=True):
    """The fields of a JSON-RPC request that decide how it is served."""

    method: str = ""
    id: str | int | None = None


def _read_request(messages: list[Any]) -> _Request:
    try:
        return msgspec.json.decode(b"".join([each.get("body", b"") for each in messages]), type=_Request)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _Request()


async def _refuse_scope(request: _Request, scope: Any, receive: Receive, send: Send) -> None:
    """Refuse a call of a token without the scope `write`, so that an OAuth client can request it."""
    error = types.ErrorData(code=types.INVALID_PARAMS, message="this token lacks the scope write")
    body = types.JSONRPCError(jsonrpc="2.0", id=request.id, error=error).model_dump_json(by_alias=True)
    headers = {"WWW-Authenticate": bearer_challenge(scope, error="insufficient_scope")}
    await Response(body, 403, headers, "application/json")(scope, receive, send)
