"""MCP client sessions and connections: a server starts on first use and restarts with backoff when it ends."""

import asyncio
import base64
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from contextvars import Context
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar, cast

import anyio
import httpx2
import mcp_types as types
from mcp.client.session import ClientRequestContext, ClientSession, ElicitationFnT, IncomingMessage, SamplingFnT
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from atlas_agents.core.aio import SYSTEM_CLOCK, BackgroundTasks, Clock
from atlas_agents.core.errors import AtlasError, ToolFailed, Transient
from atlas_agents.core.http import backoff
from atlas_agents.mcp import transports
from atlas_agents.mcp.callbacks import ActiveCalls, Caller, Elicitation, Sampling, Speak
from atlas_agents.mcp.config import DiscoveredTool, ServerConfig, VariableLookup, more_tools, shown
from atlas_agents.mcp.transports import StdioTransport, dialled, started


def of_call(result: types.CallToolResult) -> Any:
    """Convert the result of a call; ToolFailed with the server's message if it reports an error."""
    pieces = [_piece(block) for block in result.content]
    words = "\n".join(piece if isinstance(piece, str) else str(piece) for piece in pieces)
    if result.is_error:
        raise ToolFailed(words or "the server reported an error without a message")
    if not pieces and result.structured_content is not None:
        return result.structured_content
    return words if all(isinstance(piece, str) for piece in pieces) else pieces


def of_resource(result: types.ReadResourceResult) -> Any:
    pieces = [_content(each) for each in result.contents]
    return pieces[0] if len(pieces) == 1 else pieces


def of_prompt(result: types.GetPromptResult) -> Any:
    return [{"role": each.role, "content": _piece(each.content)} for each in result.messages]


def plain(values: Sequence[Any], *names: str) -> list[dict[str, Any]]:
    """Extract the named fields of listed objects."""
    found: list[dict[str, Any]] = []
    for value in values:
        given = value.model_dump(mode="json", by_alias=True, exclude_none=True)
        found.append({name: given[name] for name in names if name in given})
    return found


def _piece(block: Any) -> Any:
    match block:
        case types.TextContent(text=text):
            return text
        case types.ImageContent(data=data, mime_type=kind) | types.AudioContent(data=data, mime_type=kind):
            return {"type": block.type, "mimeType": kind, "bytes": _size(data)}
        case types.EmbeddedResource(resource=resource):
            return _content(resource)
        case types.ResourceLink(uri=uri, name=name):
            return {"type": "resource_link", "uri": str(uri), "name": name}
        case _:
            return {"type": str(getattr(block, "type", "unknown"))}


def _content(resource: Any) -> Any:
    if isinstance(resource, types.TextResourceContents):
        return {"uri": str(resource.uri), "text": resource.text}
    return {"uri": str(resource.uri), "mimeType": resource.mime_type, "bytes": _size(resource.blob)}


def _size(data: str) -> int:
    try:
        return len(base64.b64decode(data))
    except ValueError:
        return len(data)


T = TypeVar("T")
MOST_TOOLS = 500
_MOST_PAGES = 50
_MOST_ROUNDS, _PAUSE = 10, 0.25
_CLOSED = (types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT)


class McpSession(ClientSession):
    """The SDK's session without its output validation, which would run regular expressions supplied by the server."""

    async def validate_tool_result(self, name: str, result: types.CallToolResult) -> None:
        return None


@asynccontextmanager
async def begun(
    streams: Any, sampling: SamplingFnT | None, elicitation: ElicitationFnT, on_change: Callable[[], object]
) -> AsyncGenerator[McpSession, None]:
    """Open an MCP session over two streams, with the newer protocol if the server supports it, else with a
    handshake."""

    async def hear(message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            on_change()

    about = types.Implementation(name="atlas-agents", version=version("atlas-agents"))
    async with McpSession(
        *streams,
        message_handler=hear,
        sampling_callback=sampling,
        elicitation_callback=elicitation,
        client_info=about,
    ) as session:
        try:
            await session.discover()
        except (MCPError, RuntimeError, ValidationError):
            await session.initialize()
        yield session


async def tools_of(session: McpSession) -> tuple[DiscoveredTool, ...]:
    """List all tools of the server; ToolFailed if there are too many."""
    can = session.server_capabilities or types.ServerCapabilities()
    tools: list[types.Tool] = []
    cursor: str | None = None
    for _ in range(_MOST_PAGES if can.tools else 0):
        page = await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    if len(tools) > MOST_TOOLS or cursor is not None:
        raise ToolFailed(f"the server offers more than {MOST_TOOLS} tools")
    found = {tool.name: DiscoveredTool(tool.name, tool.description or "", _schema(tool.input_schema)) for tool in tools}
    resources = can.resources is not None and bool(await _list_resources(session, "", {}, None))
    prompts = can.prompts is not None and bool(await _list_prompts(session, "", {}, None))
    return (*found.values(), *more_tools(resources=resources, prompts=prompts, taken=set(found)))


async def call(session: McpSession, tool: DiscoveredTool, arguments: dict[str, Any], caller: Caller) -> Any:
    """Call a tool. ConnectionError if the outcome is unknown, ToolFailed if the server rejects the call."""

    async def progress(done: float, total: float | None, message: str | None) -> None:
        caller.progress(_progress(done, total, message))

    try:
        return await _KINDS[tool.kind](session, tool.name, arguments, progress)
    except MCPError as error:
        if error.code in _CLOSED:
            raise ConnectionError(error.message) from error
        raise ToolFailed(error.message) from error
    except (httpx2.TransportError, anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
        raise ConnectionError(str(error) or type(error).__name__) from error
    except (ValidationError, RuntimeError) as error:
        raise ToolFailed(f"invalid response from the server: {str(error)[:300]}") from error


async def _tool(session: McpSession, name: str, arguments: dict[str, Any], progress: Any) -> Any:
    return of_call(
        await _answered(
            session,
            lambda said, state: session.call_tool(
                name,
                arguments,
                progress_callback=progress,
                input_responses=said,
                request_state=state,
                allow_input_required=True,
            ),
        )
    )


async def _answered(
    session: McpSession,
    ask: Callable[[types.InputResponses | None, str | None], Awaitable[T | types.InputRequiredResult]],
) -> T:
    """Send a request that the server may answer with a question first, as the newer protocol allows; then repeat it
    with the requested input."""
    answer = await ask(None, None)
    for _ in range(_MOST_ROUNDS):
        if not isinstance(answer, types.InputRequiredResult):
            return answer
        said: types.InputResponses = {}
        for key, wanted in (answer.input_requests or {}).items():
            context = ClientRequestContext(session=session, request_id=key)
            response = await session.dispatch_input_request(context, wanted)
            if isinstance(response, types.ErrorData):
                raise ToolFailed(f"the server requires further input: {response.message}")
            said[key] = response
        if not said:
            await anyio.sleep(_PAUSE)
        answer = await ask(said or None, answer.request_state)
    raise ToolFailed("the server keeps asking for input")


async def _list_resources(session: McpSession, name: str, arguments: dict[str, Any], progress: Any) -> Any:
    found = await session.list_resources()
    try:
        templates = (await session.list_resource_templates()).resource_templates
    except MCPError:  # many servers have none and do not know the request
        templates = []
    fields = ("uri", "uriTemplate", "name", "description", "mimeType")
    return plain([*found.resources, *templates], *fields)


async def _read_resource(session: McpSession, name: str, arguments: dict[str, Any], progress: Any) -> Any:
    uri = arguments["uri"]
    return of_resource(
        await _answered(
            session,
            lambda said, state: session.read_resource(
                uri, input_responses=said, request_state=state, allow_input_required=True
            ),
        )
    )


async def _list_prompts(session: McpSession, name: str, arguments: dict[str, Any], progress: Any) -> Any:
    return plain((await session.list_prompts()).prompts, "name", "description", "arguments")


async def _get_prompt(session: McpSession, name: str, arguments: dict[str, Any], progress: Any) -> Any:
    wanted, blanks = arguments["name"], arguments.get("arguments")
    return of_prompt(
        await _answered(
            session,
            lambda said, state: session.get_prompt(
                wanted, blanks, input_responses=said, request_state=state, allow_input_required=True
            ),
        )
    )


_KINDS: dict[str, Callable[[McpSession, str, dict[str, Any], Any], Awaitable[Any]]] = {
    "tool": _tool,
    "list_resources": _list_resources,
    "read_resource": _read_resource,
    "list_prompts": _list_prompts,
    "get_prompt": _get_prompt,
}


def _schema(given: dict[str, Any]) -> dict[str, Any]:
    return given if given.get("type") == "object" else {**given, "type": "object"}


def _progress(done: float, total: float | None, message: str | None) -> str:
    share = f"{done:g} of {total:g}" if total else f"{done:g}"
    return f"{share}: {message}" if message else share


logger = logging.getLogger(__name__)
CONNECTS_WITHIN = 60.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_STEADY = 60.0
_STALE = 300.0


class McpConnection:
    """Connection to one server. Every new session starts by listing the tools; a tool that differs from its approved
    version is not called."""

    def __init__(
        self,
        server: ServerConfig,
        environment: VariableLookup,
        folder: Path,
        *,
        speak: Speak | None = None,
        auth: httpx2.Auth | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.server = server
        self.trouble = ""
        """Why the server is unreachable; empty while it is connected."""
        self.pauses: list[float] = []
        """The backoff delays of consecutive restarts."""
        self._environment = environment
        self._folder = folder
        self._auth = auth
        self._clock = clock
        tokens = server.entry.sampling_tokens
        self._underway = ActiveCalls()
        self._elicitation = Elicitation(server.name, self._underway)
        self._sampling = (
            Sampling(server.name, speak, tokens, self._underway, clock) if speak is not None and tokens else None
        )
        self._session: McpSession | None = None
        self._tools: dict[str, DiscoveredTool] = {}
        self._listed = 0.0
        self._gone = asyncio.Event()
        self._stale = asyncio.Event()
        self._news = asyncio.Condition()
        self._resting_until: float | None = None
        self._tasks = BackgroundTasks(f"MCP server {server.name}")
        self._keeping: asyncio.Task[None] | None = None

    async def tools(self) -> tuple[DiscoveredTool, ...]:
        """Return the server's current tools; raises Transient if it is unreachable."""
        await self._reached(CONNECTS_WITHIN)
        return tuple(self._tools.values())

    async def call(self, tool: DiscoveredTool, arguments: dict[str, Any], caller: Caller) -> Any:
        """Call an approved tool. If the server ends during the call, ConnectionError is raised and the tool pipeline
        decides what that means. Questions of the server go to the caller."""
        session = await self._reached(min(CONNECTS_WITHIN, self.server.entry.timeout * 0.75))
        if self._clock.monotonic() - self._listed > _STALE:
            await self._list(session)
        self._check(tool)
        try:
            with self._underway.of(caller):
                return await call(session, tool, arguments, caller)
        except ConnectionError as error:
            self._gone.set()
            raise ConnectionError(f"the MCP server {self.server.name} ended during the call") from error

    async def close(self) -> None:
        self._keeping = None
        await self._tasks.close()

    def _check(self, tool: DiscoveredTool) -> None:
        if tool.kind != "tool":  # a tool of ours, whose description does not come from the server
            return
        now = self._tools.get(tool.name)
        name = f"{self.server.name}/{tool.name}"
        if now is None:
            raise ToolFailed(f"{shown(name)} is no longer offered by its server")
        if now.digest != tool.digest:
            raise ToolFailed(
                f"{shown(name)} is disabled: its description has changed since it was approved. "
                f"To review it, run: atlas mcp approve {self.server.name}"
            )

    async def _reached(self, patience: float) -> McpSession:
        """Return the session, opening it if needed. During a backoff delay it fails at once."""
        if self._keeping is None or self._keeping.done():
            self._keeping = self._tasks.spawn(
                self._keep(), Context()
            )  # not the context of one call: the task serves many
            self._resting_until = None
        with suppress(TimeoutError):
            async with asyncio.timeout(patience), self._news:
                while self._session is None and self._resting_until is None:
                    await self._news.wait()
        if self._session is not None:
            return self._session
        wait = max(0.0, (self._resting_until or 0.0) - self._clock.monotonic())
        words = self.trouble or f"no response within {patience:g} s"
        raise Transient(f"the MCP server {self.server.name} is unreachable: {words}", retry_after=wait + 0.1)

    async def _keep(self) -> None:
        """Keep the session open until cancelled; when it ends, reopen it with backoff."""
        while True:
            began = self._clock.monotonic()
            try:
                await self._talk()
            except Exception as error:  # noqa: BLE001 - whatever a foreign program makes of it
                self.trouble = _words(error)
            steady = self._clock.monotonic() - began > _STEADY
            self.pauses = [] if steady else self.pauses
            pause = backoff(len(self.pauses), _FIRST_PAUSE, _LONGEST_PAUSE)
            self.pauses.append(pause)
            logger.warning(
                "MCP server disconnected: server=%s error=%s retry_in=%.1f s", self.server.name, self.trouble, pause
            )
            async with self._news:
                self._resting_until = self._clock.monotonic() + pause
                self._news.notify_all()
            await self._clock.sleep(pause)
            self._resting_until = None

    async def _talk(self) -> None:
        self._gone.clear()
        async with self._opened() as (session, child):
            await self._list(session)
            async with self._news:
                self._session, self.trouble = session, ""
                self._news.notify_all()
            try:
                await self._listen(session, child)
            finally:
                self._session = None
            self.trouble = _last_words(child) or "the process ended"

    async def _listen(self, session: McpSession, child: StdioTransport | None) -> None:
        """Listen until the session ends; list the tools again when the server reports a change."""
        ends = [self._gone, *([child.gone] if child else [])]
        while not any(end.is_set() for end in ends):
            waiting = [asyncio.create_task(event.wait()) for event in (*ends, self._stale)]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in waiting:
                    task.cancel()
            if self._stale.is_set():
                self._stale.clear()
                await self._list(session)

    async def _list(self, session: McpSession) -> None:
        self._tools = {tool.name: tool for tool in await tools_of(session)}
        self._listed = self._clock.monotonic()

    @asynccontextmanager
    async def _opened(self) -> AsyncGenerator[tuple[McpSession, StdioTransport | None], None]:
        server, entry = self.server, self.server.filled(self._environment)
        sampling, asking = self._sampling.answer if self._sampling is not None else None, self._elicitation.answer
        async with AsyncExitStack() as opening:
            child: StdioTransport | None = None
            streams: Any
            if entry.command:
                folder = server.folder / entry.cwd
                child = await opening.enter_async_context(
                    started(server.name, entry.command, entry.args, entry.env, folder)
                )
                streams = (child.heard, child.said)
            else:
                auth = self._auth or transports.remembered(server.name, entry.url, self._folder)
                streams = await opening.enter_async_context(dialled(entry, auth))
            try:
                async with asyncio.timeout(CONNECTS_WITHIN):
                    session = await opening.enter_async_context(begun(streams, sampling, asking, self._stale.set))
            except Exception as error:
                if words := _last_words(child):
                    raise ToolFailed(f"{_words(error)}; last output: {words}") from error
                raise
            yield session, child


def _words(error: BaseException) -> str:
    """Describe an error in one line, unwrapping exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = cast(BaseExceptionGroup[BaseException], error).exceptions[0]
    if isinstance(error, AtlasError):
        return str(error)
    if isinstance(error, TimeoutError):
        return f"no response within {CONNECTS_WITHIN:g} s"
    return f"{str(error) or type(error).__name__}"[:500]


def _last_words(child: StdioTransport | None) -> str:
    return shown(" / ".join(list(child.last_words)[-3:]))[:500] if child else ""
