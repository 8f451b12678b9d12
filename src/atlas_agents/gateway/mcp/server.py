"""MCP server: lists and calls tools, asks agents, gets prompts and reads documents for MCP clients.

Every request is authorised by its own token. Sessions, which only clients up to 2025-11-25 have, grant nothing.
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from typing import Any

import mcp_types as types
import msgspec
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.session import ServerSession
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.responses import Response

from atlas_agents.agents.agent import Agent
from atlas_agents.core.errors import AtlasError
from atlas_agents.core.store import RunRow
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
    describe_task,
    find_task,
    list_tools,
)
from atlas_agents.gateway.mcp.resources import MAX_COMPLETIONS, DocumentResources, ResourceReader
from atlas_agents.gateway.protocol.frames import ProtocolError
from atlas_agents.gateway.protocol.types import Scope
from atlas_agents.workspace.skills import Prompt

logger = logging.getLogger(__name__)
_MAX_SESSIONS = 10_000
_SESSION_HEADER = "mcp-session-id"
_MAX_SUBSCRIPTIONS = 100
_WITH_TASKS = "2025-11-25"
"""The protocol version of the tasks that clients ask for."""
_STATE_SECONDS = 86_400.0
"""Seconds within which a client can repeat a call with answers; the questions have deadlines of their own."""
_WATCH_INTERVAL = 2.0
"""Polling interval in seconds for changes that clients subscribed to, including changes by other processes."""
_WRITING = ("tools/call", "tasks/get", "tasks/result", "tasks/cancel")
"""Methods that need the scope `write`."""
_GONE = "mcp_client_gone"
_INSTRUCTIONS = (
    "The tools of an Atlas Agents gateway, and its agents, which are called with ask_… tools. A call may wait until a "
    "person approves it."
)


class _Session(msgspec.Struct):
    """A session of a client up to 2025-11-25, through which the server can ask the client during a call."""

    log_level: types.LoggingLevel | None = None
    streams: int = 0
    """Open streams on which the client receives unsolicited messages of the server."""
    watched: dict[str, str] = {}
    """The URIs that the client subscribed to, with the versions it knows of."""
    subscriber: tuple[Grant, ResourceReader, ServerSession] | None = None
    """The subscriber, and the stream for its notifications."""


class _Server(Server[Any]):
    """The library's server; it also declares tasks, which the library does not know."""

    def get_capabilities(
        self, *args: Any, protocol_version: str | None = None, **named: Any
    ) -> types.ServerCapabilities:
        found = super().get_capabilities(*args, protocol_version=protocol_version, **named)
        if protocol_version not in MODERN_PROTOCOL_VERSIONS:
            calls = types.TasksToolsCapability(call=types.TasksCallCapability())
            requests = types.ServerTasksRequestsCapability(tools=calls)
            found.tasks = types.ServerTasksCapability(cancel=types.TasksCancelCapability(), requests=requests)
        return found


class McpProtocolServer:
    """Handles the requests of MCP clients. Each tool call is an `McpCall`.

    A request without a session, or with one that this process did not create, is served all the same, so clients
    survive a restart and any process of a cluster can serve them. Only the server's questions need the session.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        extra: dict[str, Any] = {}
        if hub.services.resources is not None:
            extra = {
                "on_list_resources": self._list_resources,
                "on_read_resource": self._read_resource,
                "on_list_resource_templates": self._list_templates,
                "on_subscribe_resource": self._subscribe,
                "on_unsubscribe_resource": self._unsubscribe,
            }
        server = _Server(
            hub.server.name,
            version=hub.server.version,
            instructions=_INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
            on_completion=self._complete,
            on_subscriptions_listen=self._listen,
            **extra,
        )
        server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, self._set_log_level)
        server.add_request_handler("tasks/get", types.GetTaskRequestParams, self._get_task)
        server.add_request_handler("tasks/result", types.GetTaskPayloadRequestParams, self._get_task_result)
        server.add_request_handler("tasks/cancel", types.CancelTaskRequestParams, self._cancel_task)
        server.middleware.append(self._create_task)
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
            while True:
                await asyncio.sleep(_WATCH_INTERVAL)
                for session in [each for each in self._sessions.values() if each.watched and each.streams]:
                    await self._notify_updates(session)

    async def answer(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        grant: Grant = scope["state"]["grant"]
        scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=grant.principal.id, scopes=[]))
        gone = scope["state"][_GONE] = asyncio.Event()
        session = _find_header(scope["headers"], _SESSION_HEADER)
        body = await _read_messages(receive, self._hub.settings.max_frame) if scope["method"] == "POST" else []
        request = _read_request(body)
        if request.method in _WRITING and not grant.allows("write"):
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

        known = self._sessions.get(session)
        manager = self._stateful if opens or known is not None else self._stateless
        streams = 1 if known is not None and scope["method"] == "GET" else 0
        if known is not None:
            known.streams += streams
        try:
            await manager.handle_request(scope, watch_disconnect, note_session)
        finally:
            if known is not None:
                known.streams -= streams

    def _remember(self, session: str) -> None:
        if session:
            self._sessions[session] = _Session()
        if len(self._sessions) > 2 * _MAX_SESSIONS:
            self._sessions.popitem(last=False)

    def _state_security(self) -> RequestStateSecurity:
        """Seal the state that clients send back, so that only the same user can use it, in any process."""
        secret = hashlib.sha256(f"mcp request state\n{self._hub.tokens.main.reveal()}".encode()).digest()
        return RequestStateSecurity(
            keys=[secret], ttl=_STATE_SECONDS, bind_principal=lambda ctx: self._authorize(ctx).principal.id
        )

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
        execution = types.ToolExecution(task_support="optional") if ctx.protocol_version == _WITH_TASKS else None
        return types.ListToolsResult(tools=[_to_wire_tool(each, execution) for each in listed])

    async def _call_tool(
        self, ctx: RequestContext, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        grant, agent, client = self._authorize(ctx, "write"), self._agent(ctx), self._client(ctx)
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
        return types.CallToolResult(
            content=outcome.content, structured_content=outcome.structure, is_error=outcome.failed
        )

    def _client(self, ctx: RequestContext) -> CallClient:
        session = self._find_session(ctx)
        gone: asyncio.Event = ctx.request.scope["state"][_GONE] if ctx.request is not None else asyncio.Event()
        return CallClient(ctx, session.log_level if session is not None else None, gone)

    async def _create_task(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Middleware: start a call as a task if its client asks for one, because the library does not support tasks."""
        wanted = (ctx.params or {}).get("task") is not None and ctx.protocol_version == _WITH_TASKS
        if ctx.method != "tools/call" or not wanted:
            return await call_next(ctx)
        grant, agent = self._authorize(ctx, "write"), self._agent(ctx)
        try:
            params = types.CallToolRequestParams.model_validate(ctx.params, by_name=False)
            call = McpCall(self._hub, grant, self._client(ctx))
            row = await call.start_task(agent, params.name, params.arguments or {})
        except (AtlasError, ProtocolError) as error:
            raise _invalid_params(self._hub.atlas.hide(str(error))) from error
        return {"task": await self._describe_task(row)}

    async def _get_task(self, ctx: RequestContext, params: types.GetTaskRequestParams) -> HandlerResult:
        return await self._describe_task(await self._find_task(ctx, params.task_id))

    async def _get_task_result(self, ctx: RequestContext, params: types.GetTaskPayloadRequestParams) -> HandlerResult:
        row = await self._find_task(ctx, params.task_id)
        try:
            outcome = await McpCall(self._hub, self._authorize(ctx), self._client(ctx)).finish_task(row)
        except AtlasError as error:
            outcome = ToolOutcome(self._hub.atlas.hide(str(error)), failed=True)
        result = types.CallToolResult(
            content=outcome.content, structured_content=outcome.structure, is_error=outcome.failed
        )
        related = {"_meta": {"io.modelcontextprotocol/related-task": {"taskId": row.id}}}
        return {**result.model_dump(by_alias=True, mode="json", exclude_none=True), **related}

    async def _cancel_task(self, ctx: RequestContext, params: types.CancelTaskRequestParams) -> HandlerResult:
        row = await self._find_task(ctx, params.task_id)
        if not await self._hub.atlas.cancel(row.id):
            raise _invalid_params(f"task {row.id!r} has already ended")
        return {**await self._describe_task(row), "status": "cancelled"}

    async def _describe_task(self, row: RunRow) -> dict[str, Any]:
        task = await describe_task(self._hub, row)
        return {**task.model_dump(by_alias=True, mode="json", exclude_none=True), "ttl": None}

    async def _find_task(self, ctx: RequestContext, id: str) -> RunRow:
        if ctx.protocol_version != _WITH_TASKS:
            raise MCPError(code=types.METHOD_NOT_FOUND, message="Method not found", data=ctx.method)
        try:
            return await find_task(self._hub, self._authorize(ctx, "write"), id)
        except AtlasError as error:
            raise _invalid_params(str(error)) from error

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
        prompt = self._find_prompt(params.name)
        try:
            text = prompt.fill(params.arguments or {})
        except AtlasError as error:
            raise _invalid_params(str(error)) from error
        message = types.PromptMessage(role="user", content=types.TextContent(text=text))
        return types.GetPromptResult(description=prompt.description or None, messages=[message])

    def _find_prompt(self, name: str) -> Prompt:
        prompt = next((each for each in self._hub.services.prompts() if each.name == name), None)
        if prompt is None:
            raise _invalid_params(f"unknown prompt {name[:80]!r}")
        return prompt

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
            raise MCPError(code=types.INVALID_PARAMS, message=str(error), data={"uri": uri}) from error
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=uri, text=text, mime_type=kind)])

    async def _list_templates(self, ctx: RequestContext, params: Any) -> types.ListResourceTemplatesResult:
        templates = [
            types.ResourceTemplate(
                uri_template=each.uri, name=each.name, description=each.description, mime_type=each.media_type
            )
            for each in self._resources.templates(self._reader(ctx))
        ]
        return types.ListResourceTemplatesResult(resource_templates=templates)

    async def _complete(self, ctx: RequestContext, params: types.CompleteRequestParams) -> types.CompleteResult:
        """Complete the id of a document. Values of prompts are free text, for which there are no suggestions."""
        self._authorize(ctx)
        values: list[str] = []
        if isinstance(params.ref, types.PromptReference):
            prompt = self._find_prompt(params.ref.name)
            if params.argument.name not in prompt.placeholders:
                raise _invalid_params(f"prompt {prompt.name!r} has no argument {params.argument.name[:80]!r}")
        else:
            try:
                values = [*await self._resources.complete(params.ref.uri, params.argument.value, self._reader(ctx))]
            except AtlasError as error:
                raise _invalid_params(str(error)) from error
        return types.CompleteResult(completion=types.Completion(values=values, has_more=len(values) >= MAX_COMPLETIONS))

    async def _subscribe(self, ctx: RequestContext, params: types.SubscribeRequestParams) -> types.EmptyResult:
        reader, session = self._reader(ctx), self._find_session(ctx)
        if session is None:
            raise _invalid_params("a subscription needs a session: initialize the connection again")
        if len(session.watched) >= _MAX_SUBSCRIPTIONS and params.uri not in session.watched:
            raise _invalid_params(f"too many subscriptions: the maximum is {_MAX_SUBSCRIPTIONS} per session")
        session.watched[params.uri] = await self._resources.version(params.uri, reader)
        session.subscriber = self._authorize(ctx), reader, ctx.session
        return types.EmptyResult()

    async def _unsubscribe(self, ctx: RequestContext, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        self._authorize(ctx)
        if (session := self._find_session(ctx)) is not None:
            session.watched.pop(params.uri, None)
        return types.EmptyResult()

    async def _notify_updates(self, session: _Session) -> None:
        """Notify a client of the resources that have changed since it was last notified."""
        if session.subscriber is None or not self._hub.is_authorized(session.subscriber[0]):
            return
        _, reader, client = session.subscriber
        for uri, known in [*session.watched.items()]:
            try:
                version = await self._resources.version(uri, reader)
                if version != known and uri in session.watched:
                    await client.send_resource_updated(uri)
                    session.watched[uri] = version
            except Exception:  # a client that is gone must not end the server
                logger.warning("could not notify an MCP client: uri=%s", uri, exc_info=True)

    async def _listen(
        self, ctx: RequestContext, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Send the changes that a client of 2026-07-28 asked for until it disconnects."""
        if len(params.notifications.resource_subscriptions or ()) > _MAX_SUBSCRIPTIONS:
            raise _invalid_params(f"too many subscriptions: the maximum is {_MAX_SUBSCRIPTIONS}")
        bus, known = InMemorySubscriptionBus(), await self._versions(ctx, params.notifications)
        watching = asyncio.create_task(self._publish_changes(ctx, params.notifications, bus, known))
        try:
            return await ListenHandler(bus)(ctx, params)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _publish_changes(
        self,
        ctx: RequestContext,
        wanted: types.SubscriptionFilter,
        bus: InMemorySubscriptionBus,
        known: dict[ServerEvent, Any],
    ) -> None:
        while True:
            await asyncio.sleep(_WATCH_INTERVAL)
            found = await self._versions(ctx, wanted)
            for event in [each for each, version in found.items() if version != known.get(each)]:
                await bus.publish(event)
            known = found

    async def _versions(self, ctx: RequestContext, wanted: types.SubscriptionFilter) -> dict[ServerEvent, Any]:
        """Return the lists and resources that a client subscribed to, each with a value that changes with it."""
        found: dict[ServerEvent, Any] = {}
        if wanted.tools_list_changed:
            found[ToolsListChanged()] = list_tools(self._hub, self._agent(ctx), self._authorize(ctx))
        if wanted.prompts_list_changed:
            found[PromptsListChanged()] = self._hub.services.prompts()
        if self._hub.services.resources is not None:
            if wanted.resources_list_changed:
                found[ResourcesListChanged()] = await self._resources.list(self._reader(ctx))
            for uri in wanted.resource_subscriptions or ():
                found[ResourceUpdated(uri)] = await self._resources.version(uri, self._reader(ctx))
        return found

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
        if grant is None or not self._hub.is_authorized(grant):
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


def _to_wire_tool(tool: McpTool, execution: types.ToolExecution | None) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.parameters,
        output_schema=tool.result,
        execution=execution,
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
    """Read the messages of a request's body, up to slightly more than the accepted size."""
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
