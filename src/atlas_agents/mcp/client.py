"""MCP client sessions and connections: a server starts on first use and restarts with backoff when it ends."""

import asyncio
import base64
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import httpx2
import mcp_types as types
import msgspec
from mcp.client.session import ClientRequestContext, ClientSession, ElicitationFnT, IncomingMessage
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from atlas_agents.builtin_tools.files.read import detect_image
from atlas_agents.builtin_tools.sandbox import SandboxKind
from atlas_agents.builtin_tools.sandbox.process import Sandbox, SandboxCommand
from atlas_agents.core import package_version
from atlas_agents.core.aio import SYSTEM_CLOCK, BackgroundTasks, Clock, run_in_thread
from atlas_agents.core.errors import AtlasError, ConfigError, ToolFailed, Transient
from atlas_agents.core.http import backoff
from atlas_agents.core.messages import Image
from atlas_agents.core.paths import SettingLookup
from atlas_agents.core.telemetry import (
    MCP_METHOD,
    MCP_SERVER,
    NO_SPAN,
    OPERATION,
    TOOL_NAME,
    Attributes,
    Span,
    current_span,
    split_trace_context,
)
from atlas_agents.mcp.callbacks import ActiveCalls, Elicitation
from atlas_agents.mcp.config import DiscoveredTool, ServerConfig, ServerProgram, resource_tools, reveal_invisible
from atlas_agents.mcp.programs import build_command, choose_sandbox, describe_program
from atlas_agents.mcp.transports import (
    LOGIN_REQUIRED,
    NOT_SENT,
    StdioTransport,
    StoredAuth,
    TokenStore,
    http_transport,
    stdio_transport,
)
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.execute import MAX_RESULT

logger = logging.getLogger(__name__)
MAX_TOOLS = 500
_MAX_PAGES = 50
_MAX_INPUT_ROUNDS, _INPUT_DELAY = 10, 0.25
_CONNECTION_LOST = (types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT)
CONNECT_TIMEOUT = 60.0
_MIN_BACKOFF, _MAX_BACKOFF = 1.0, 30.0
_STABLE_AFTER = 60.0
_RELIST_AFTER = 300.0
_OVERHEAD = 100
"""Characters that a piece of a result takes besides its text or data."""


def convert_call_result(result: types.CallToolResult) -> Any:
    """Convert the result of a call; ToolFailed with the server's message if it reports an error."""
    pieces = _convert_blocks(result.content)
    if result.is_error:
        raise ToolFailed(_join_text(pieces) or "the server reported an error without a message")
    if not pieces and result.structured_content is not None:
        return result.structured_content
    return _join_text(pieces) if all(isinstance(piece, str) for piece in pieces) else pieces


def _join_text(pieces: list[Any]) -> str:
    texts = [_describe_image(piece) if isinstance(piece, Image) else str(piece) for piece in pieces]
    return "\n".join(texts)


def pick_fields(values: Sequence[Any], *names: str) -> list[dict[str, Any]]:
    """Extract the named fields of listed objects."""
    dumped = [value.model_dump(mode="json", by_alias=True, exclude_none=True) for value in values]
    return [{name: each[name] for name in names if name in each} for each in dumped]


def _convert_blocks(blocks: Sequence[Any]) -> list[Any]:
    """Convert content. Images are passed on as far as the result has space for them, the others are described."""
    pieces = [_convert_block(block) for block in blocks]
    texts = [piece for piece in pieces if not isinstance(piece, Image)]
    space = MAX_RESULT - len(msgspec.json.encode(texts)) - _OVERHEAD * len(pieces)
    for index, piece in enumerate(pieces):
        if isinstance(piece, Image):
            if len(piece.data) > space:
                pieces[index] = _describe_image(piece, "too large for a result")
            else:
                space -= len(piece.data)
    return pieces


def _convert_block(block: Any) -> Any:
    match block:
        case types.TextContent(text=text):
            return text
        case types.ImageContent(data=data, mime_type=kind):
            return _convert_image(data, kind)
        case types.AudioContent(data=data, mime_type=kind):
            return {"type": "audio", "mimeType": kind, "bytes": _decoded_size(data)}
        case types.EmbeddedResource(resource=resource):
            return _convert_resource_contents(resource)
        case types.ResourceLink(uri=uri, name=name):
            return {"type": "resource_link", "uri": str(uri), "name": name}
        case _:
            return {"type": str(getattr(block, "type", "unknown"))}


def _convert_resource_contents(resource: Any) -> Any:
    if isinstance(resource, types.TextResourceContents):
        return {"uri": str(resource.uri), "text": resource.text}
    if (resource.mime_type or "").startswith("image/"):
        return _convert_image(resource.blob, resource.mime_type)
    return {"uri": str(resource.uri), "mimeType": resource.mime_type, "bytes": _decoded_size(resource.blob)}


def _convert_image(data: str, declared: str) -> Any:
    """Return an image whose content is of a type that models accept, whatever the server declares; else a note."""
    try:
        content = base64.b64decode(data, validate=True)
    except ValueError:
        return f"({reveal_invisible(declared)[:100]}, not passed on: invalid Base64)"
    if (found := detect_image(content)) is None:
        kind = f"{reveal_invisible(declared)[:100]}, {len(content):,} bytes"
        return f"({kind}, not passed on: expected a PNG, JPEG, GIF or WebP image)"
    return Image.of(content, found)


def _describe_image(image: Image, problem: str = "") -> str:
    note = f", not passed on: {problem}" if problem else ""
    return f"({image.media_type}, {_decoded_size(image.data):,} bytes{note})"


def _decoded_size(data: str) -> int:
    try:
        return len(base64.b64decode(data))
    except ValueError:
        return len(data)


class LoginRequired(ToolFailed):
    """The server refused a call until a person logs in."""


class McpSession(ClientSession):
    """The SDK's session without its output validation, which would run regular expressions supplied by the server."""

    async def validate_tool_result(self, name: str, result: types.CallToolResult) -> None:
        return None


@asynccontextmanager
async def open_session(
    streams: Any, elicitation: ElicitationFnT, on_change: Callable[[], object]
) -> AsyncGenerator[McpSession, None]:
    """Open an MCP session over two streams; servers without the newer protocol get a handshake."""

    async def on_message(message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            on_change()

    info = types.Implementation(name="atlas-agents", version=package_version())
    async with McpSession(
        *streams, message_handler=on_message, client_info=info, elicitation_callback=elicitation
    ) as session:
        try:
            await session.discover()
        except (MCPError, RuntimeError, ValidationError) as error:
            try:
                await session.initialize()
            except MCPError:
                if not (isinstance(error, MCPError) and error.code == types.REQUEST_TIMEOUT):
                    raise
                await session.discover()  # the server took long to start, and knows only the newer protocol
        yield session


async def list_tools(session: McpSession) -> tuple[DiscoveredTool, ...]:
    """List all tools of the server; ToolFailed if there are too many."""
    capabilities = session.server_capabilities or types.ServerCapabilities()
    tools: list[types.Tool] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES if capabilities.tools else 0):
        page = await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    if len(tools) > MAX_TOOLS or cursor is not None:
        raise ToolFailed(f"the server offers more than {MAX_TOOLS} tools")
    found = {
        tool.name: DiscoveredTool(tool.name, tool.description or "", _object_schema(tool.input_schema))
        for tool in tools
    }
    resources = capabilities.resources is not None and bool(await _list_resources(session, "", {}, None))
    prompts = capabilities.prompts is not None and bool(await _list_prompts(session, "", {}, None))
    return (*found.values(), *resource_tools(resources=resources, prompts=prompts, taken=set(found)))


async def call(
    session: McpSession, tool: DiscoveredTool, arguments: dict[str, Any], caller: ToolContext, server: str
) -> Any:
    """Call a tool. ConnectionError if the outcome is unknown, ToolFailed if the server rejects the call, LoginRequired
    if a person must log in first, and Transient if the call was not sent."""

    async def progress(done: float, total: float | None, message: str | None) -> None:
        caller.progress(_format_progress(done, total, message))

    try:
        with _start_span(tool, arguments, server):
            return await _HANDLERS[tool.kind](session, tool.name, arguments, progress)
    except MCPError as error:
        if error.data == NOT_SENT:
            raise Transient(error.message) from error
        if error.data == LOGIN_REQUIRED:
            raise LoginRequired(error.message) from error
        if error.code in _CONNECTION_LOST:
            raise ConnectionError(error.message) from error
        raise ToolFailed(error.message) from error
    except (httpx2.TransportError, anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
        raise ConnectionError(str(error) or type(error).__name__) from error
    except (ValidationError, RuntimeError) as error:
        raise ToolFailed(f"invalid response from the server: {str(error)[:300]}") from error


def _start_span(tool: DiscoveredTool, arguments: dict[str, Any], server: str) -> Span:
    """Start the span of a request; its name has the tool or the prompt, not the URI of a resource."""
    if not current_span().recording:
        return NO_SPAN
    method, name = _METHODS[tool.kind], tool.name if tool.kind == "tool" else ""
    attributes: Attributes = {MCP_METHOD: method, MCP_SERVER: server}
    if name:
        attributes |= {OPERATION: "execute_tool", TOOL_NAME: name}
    return current_span().start(f"{method} {name}".rstrip(), attributes, "CLIENT")


def _trace_meta() -> Any:
    """Return the trace context for `_meta` (SEP-414); the SDK replaces it with its own span, if that is recorded."""
    return split_trace_context(current_span().traceparent) or None


async def _call_tool(session: McpSession, name: str, arguments: dict[str, Any], progress: Any) -> Any:
    send: Any = partial(session.call_tool, name, arguments, progress_callback=progress, meta=_trace_meta())
    return convert_call_result(await _request_with_input(session, send))


async def _request_with_input(session: McpSession, send: Callable[..., Awaitable[Any]]) -> Any:
    """Send a request that the server may answer with a question first, as the newer protocol allows; then repeat it
    with the requested input."""
    answer = await send(allow_input_required=True)
    for _ in range(_MAX_INPUT_ROUNDS):
        if not isinstance(answer, types.InputRequiredResult):
            return answer
        responses: types.InputResponses = {}
        for key, request in (answer.input_requests or {}).items():
            context = ClientRequestContext(session=session, request_id=key)
            response = await session.dispatch_input_request(context, request)
            if isinstance(response, types.ErrorData):
                raise ToolFailed(f"the server requires further input: {response.message}")
            responses[key] = response
        if not responses:
            await anyio.sleep(_INPUT_DELAY)
        state = answer.request_state
        answer = await send(input_responses=responses or None, request_state=state, allow_input_required=True)
    raise ToolFailed("the server keeps asking for input")


async def _list_resources(session: McpSession, name: str, arguments: dict[str, Any], progress: Any) -> Any:
    found = await session.list_resources()
    try:
        templates = (await session.list_resource_templates()).resource_templates
    except MCPError:  # many servers have none and do not know the request
        templates = []
    fields = ("uri", "uriTemplate", "name", "description", "mimeType")
    return pick_fields([*found.resources, *templates], *fields)


async def _read_resource(session: McpSession, name: str, arguments: dict[str, Any], progress: Any) -> Any:
    send: Any = partial(session.read_resource, arguments["uri"], meta=_trace_meta())
    found = (await _request_with_input(session, send)).contents
    contents = _convert_blocks([types.EmbeddedResource(type="resource", resource=each) for each in found])
    return contents[0] if len(contents) == 1 else contents


async def _list_prompts(session: McpSession, name: str, arguments: dict[str, Any], progress: Any) -> Any:
    return pick_fields((await session.list_prompts()).prompts, "name", "description", "arguments")


async def _get_prompt(session: McpSession, name: str, arguments: dict[str, Any], progress: Any) -> Any:
    send: Any = partial(session.get_prompt, arguments["name"], arguments.get("arguments"), meta=_trace_meta())
    prompt = await _request_with_input(session, send)
    contents = _convert_blocks([each.content for each in prompt.messages])
    return [{"role": each.role, "content": content} for each, content in zip(prompt.messages, contents, strict=True)]


_METHODS = {
    "tool": "tools/call",
    "list_resources": "resources/list",
    "read_resource": "resources/read",
    "list_prompts": "prompts/list",
    "get_prompt": "prompts/get",
}
_HANDLERS: dict[str, Callable[[McpSession, str, dict[str, Any], Any], Awaitable[Any]]] = {
    "tool": _call_tool,
    "list_resources": _list_resources,
    "read_resource": _read_resource,
    "list_prompts": _list_prompts,
    "get_prompt": _get_prompt,
}


def _object_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return schema if schema.get("type") == "object" else {**schema, "type": "object"}


def _format_progress(done: float, total: float | None, message: str | None) -> str:
    share = f"{done:g} of {total:g}" if total else f"{done:g}"
    return f"{share}: {message}" if message else share


class McpConnection:
    """Connection to one server. Every session lists the tools; one that differs from its approval is not called."""

    def __init__(
        self,
        server: ServerConfig,
        environment: SettingLookup,
        folder: Path,
        *,
        program: ServerProgram | None = None,
        sandbox: SandboxKind = "auto",
        auth: httpx2.Auth | None = None,
        connect_timeout: float | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.server = server
        self._connect_timeout = connect_timeout or CONNECT_TIMEOUT
        self.error = ""
        """The reason why the server is unreachable; empty while it is connected."""
        self.login_error = ""
        """The reason why a person must log in again, although other calls may succeed."""
        self._restarts = 0
        self._environment = environment
        self._folder = folder
        self.program = program
        """The program that it may start. Without an approval, the program of the first start."""
        self._sandbox: SandboxKind = sandbox
        self._auth = auth
        self._clock = clock
        self._calls = ActiveCalls()
        self._elicitation = Elicitation(server.name, self._calls)
        self._session: McpSession | None = None
        self._tools: dict[str, DiscoveredTool] = {}
        self._listed = 0.0
        self._ended = asyncio.Event()
        self._tools_changed = asyncio.Event()
        self._changed = asyncio.Condition()
        self._backoff_until: float | None = None
        self._tasks = BackgroundTasks(f"MCP server {server.name}")
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def tools(self) -> tuple[DiscoveredTool, ...]:
        """Return the server's current tools; raises Transient if it is unreachable."""
        await self._wait_for_session(self._connect_timeout)
        return tuple(self._tools.values())

    async def call(self, tool: DiscoveredTool, arguments: dict[str, Any], caller: ToolContext) -> Any:
        """Call an approved tool. If the server ends during the call, ConnectionError is raised, and the tool pipeline
        decides about the outcome. Questions of the server go to the caller."""
        session = await self._wait_for_session(min(CONNECT_TIMEOUT, self.server.entry.timeout * 0.75))
        if self._clock.monotonic() - self._listed > _RELIST_AFTER:
            await self._refresh_tools(session)
        self._check(tool)
        try:
            with self._calls.track(caller):
                return await call(session, tool, arguments, caller, self.server.name)
        except LoginRequired as error:
            self.login_error = str(error)
            raise
        except Transient as error:
            self._ended.set()
            raise Transient(f"the MCP server {self.server.name} is unreachable: {error}") from error
        except ConnectionError as error:
            self._ended.set()
            raise ConnectionError(f"the MCP server {self.server.name} ended during the call") from error

    @property
    def connected(self) -> bool:
        return self._session is not None

    async def close(self) -> None:
        self._closed = True
        self._task = None
        await self._tasks.close()

    def _check(self, tool: DiscoveredTool) -> None:
        if tool.kind != "tool":  # a tool of ours, whose description does not come from the server
            return
        now = self._tools.get(tool.name)
        name = f"{self.server.name}/{tool.name}"
        if now is None:
            raise ToolFailed(f"{reveal_invisible(name)} is no longer offered by its server")
        if now.digest != tool.digest:
            raise ToolFailed(
                f"{reveal_invisible(name)} is disabled: its description has changed since it was approved. "
                f"To review it, run: atlas mcp approve {self.server.name}"
            )

    async def _wait_for_session(self, limit: float) -> McpSession:
        """Return the session, opening it if needed. During a backoff delay it fails at once."""
        if self._task is None or self._task.done():
            self._closed = False
            self._task = self._tasks.spawn(self._run(), Context())  # not the context of one call: the task serves many
            self._backoff_until = None
        with suppress(TimeoutError):
            async with asyncio.timeout(limit), self._changed:
                while self._session is None and self._backoff_until is None:
                    await self._changed.wait()
        if self._session is not None:
            return self._session
        wait = max(0.0, (self._backoff_until or 0.0) - self._clock.monotonic())
        text = self.error or f"no response within {limit:g} s"
        raise Transient(f"the MCP server {self.server.name} is unreachable: {text}", retry_after=wait + 0.1)

    async def _run(self) -> None:
        """Keep the session open until cancelled; when it ends, reopen it with backoff."""
        while True:
            began = self._clock.monotonic()
            try:
                await self._run_session()
            except Exception as error:  # noqa: BLE001 - whatever a foreign program makes of it
                self.error = _describe_error(error)
            if self._closed:  # the library may turn the cancellation into an error of a closed stream
                return
            if self._clock.monotonic() - began > _STABLE_AFTER:
                self._restarts = 0
            delay = backoff(self._restarts, _MIN_BACKOFF, _MAX_BACKOFF)
            self._restarts += 1
            logger.warning(
                "MCP server disconnected: server=%s error=%s retry_in=%.1f s", self.server.name, self.error, delay
            )
            async with self._changed:
                self._backoff_until = self._clock.monotonic() + delay
                self._changed.notify_all()
            await self._clock.sleep(delay)
            self._backoff_until = None

    async def _run_session(self) -> None:
        self._ended.clear()
        async with self._open() as (session, process):
            await self._refresh_tools(session)
            async with self._changed:
                self._session, self.error = session, ""
                self._changed.notify_all()
            try:
                await self._wait_until_ended(session, process)
            finally:
                self._session = None
            self.error = _stderr_tail(process) or "the process ended"

    async def _wait_until_ended(self, session: McpSession, process: StdioTransport | None) -> None:
        """Listen until the session ends; list the tools again when the server reports a change."""
        ends = [self._ended, *([process.ended] if process else [])]
        while not any(end.is_set() for end in ends):
            waiting = [asyncio.create_task(event.wait()) for event in (*ends, self._tools_changed)]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in waiting:
                    task.cancel()
            if self._tools_changed.is_set():
                self._tools_changed.clear()
                await self._refresh_tools(session)

    async def _refresh_tools(self, session: McpSession) -> None:
        self._tools = {tool.name: tool for tool in await list_tools(session)}
        self._listed = self._clock.monotonic()

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[tuple[McpSession, StdioTransport | None], None]:
        server, entry = self.server, self.server.expanded(self._environment)
        async with AsyncExitStack() as stack:
            process: StdioTransport | None = None
            streams: Any
            if entry.command:
                process = await stack.enter_async_context(stdio_transport(server.name, *await self._prepare_command()))
                streams = (process.incoming, process.outgoing)
            else:
                auth = self._auth or StoredAuth(server.name, entry, TokenStore(self._folder, server.name))
                streams = await stack.enter_async_context(http_transport(entry, auth))
            try:
                async with asyncio.timeout(self._connect_timeout):
                    session = await stack.enter_async_context(
                        open_session(streams, self._elicitation.answer, self._tools_changed.set)
                    )
            except Exception as error:
                if text := _stderr_tail(process):
                    raise ToolFailed(f"{_describe_error(error)}; last output: {text}") from error
                raise
            yield session, process

    async def _prepare_command(self) -> tuple[Sandbox, SandboxCommand]:
        """Return the sandbox and the command that starts the server, if its program is still the approved one."""
        server = self.server
        program = await run_in_thread(describe_program, server, self._environment)
        self.program = self.program or program
        if changes := self.program.changes(program):
            raise ConfigError(
                f"the program of the MCP server {server.name} has changed since it was approved: "
                f"{', '.join(changes[:5])}; to review it, run: atlas mcp approve {server.name}"
            )
        sandbox = await choose_sandbox(server, self._sandbox)
        confined = sandbox.confines
        command = await run_in_thread(
            partial(build_command, server, self._environment, program, self._folder, confined=confined)
        )
        return sandbox, command


def _describe_error(error: BaseException) -> str:
    """Describe an error in one line, unwrapping exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = cast(BaseExceptionGroup[BaseException], error).exceptions[0]
    if isinstance(error, AtlasError):
        return str(error)
    if isinstance(error, TimeoutError):
        return f"no response within {CONNECT_TIMEOUT:g} s"
    return f"{str(error) or type(error).__name__}"[:500]


def _stderr_tail(process: StdioTransport | None) -> str:
    return reveal_invisible(" / ".join(list(process.stderr_tail)[-3:]))[:500] if process else ""
