"""One conversation with a server: how it begins, what the server has, and a call of it."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any, TypeVar

import anyio
import httpx2
import mcp_types as types
from mcp.client.session import ClientRequestContext, ClientSession, ElicitationFnT, IncomingMessage, SamplingFnT
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from atlas_agents.core.errors import ToolFailed
from atlas_agents.mcp import results
from atlas_agents.mcp.found import Found, more_tools
from atlas_agents.mcp.underway import Caller

T = TypeVar("T")
MOST_TOOLS = 500
_MOST_PAGES = 50
_MOST_ROUNDS, _PAUSE = 10, 0.25
_CLOSED = (types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT)


class Session(ClientSession):
    """The library's, without its check of what a tool gave back: it runs patterns that the server has written."""

    async def validate_tool_result(self, name: str, result: types.CallToolResult) -> None:
        return None


@asynccontextmanager
async def begun(
    streams: Any, sampling: SamplingFnT | None, elicitation: ElicitationFnT, on_change: Callable[[], object]
) -> AsyncGenerator[Session, None]:
    """A conversation over two streams: in the newer way if the server knows it, else with a handshake."""

    async def hear(message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            on_change()

    about = types.Implementation(name="atlas-agents", version=version("atlas-agents"))
    async with Session(
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


async def tools_of(session: Session) -> tuple[Found, ...]:
    """All that the server has; ToolFailed if it has no end of it."""
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
        raise ToolFailed(f"the server has more than {MOST_TOOLS} tools")
    found = {tool.name: Found(tool.name, tool.description or "", _schema(tool.input_schema)) for tool in tools}
    resources = can.resources is not None and bool(await _list_resources(session, "", {}, None))
    prompts = can.prompts is not None and bool(await _list_prompts(session, "", {}, None))
    return (*found.values(), *more_tools(resources=resources, prompts=prompts, taken=set(found)))


async def call(session: Session, tool: Found, arguments: dict[str, Any], caller: Caller) -> Any:
    """What came of a call. ConnectionError where nobody can say; ToolFailed where the server says no."""

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
        raise ToolFailed(f"the server's answer is not to be understood: {str(error)[:300]}") from error


async def _tool(session: Session, name: str, arguments: dict[str, Any], progress: Any) -> Any:
    return results.of_call(
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
    session: Session,
    ask: Callable[[types.InputResponses | None, str | None], Awaitable[T | types.InputRequiredResult]],
) -> T:
    """The answer of a server that may ask back first, as the newer protocol has it: then it is asked again, with what
    it wanted to know."""
    answer = await ask(None, None)
    for _ in range(_MOST_ROUNDS):
        if not isinstance(answer, types.InputRequiredResult):
            return answer
        said: types.InputResponses = {}
        for key, wanted in (answer.input_requests or {}).items():
            context = ClientRequestContext(session=session, request_id=key)
            response = await session.dispatch_input_request(context, wanted)
            if isinstance(response, types.ErrorData):
                raise ToolFailed(f"the server wants to know something first, and {response.message}")
            said[key] = response
        if not said:
            await anyio.sleep(_PAUSE)
        answer = await ask(said or None, answer.request_state)
    raise ToolFailed("the server asks without end")


async def _list_resources(session: Session, name: str, arguments: dict[str, Any], progress: Any) -> Any:
    found = await session.list_resources()
    try:
        templates = (await session.list_resource_templates()).resource_templates
    except MCPError:  # many have none, and do not know the question
        templates = []
    fields = ("uri", "uriTemplate", "name", "description", "mimeType")
    return results.plain([*found.resources, *templates], *fields)


async def _read_resource(session: Session, name: str, arguments: dict[str, Any], progress: Any) -> Any:
    uri = arguments["uri"]
    return results.of_resource(
        await _answered(
            session,
            lambda said, state: session.read_resource(
                uri, input_responses=said, request_state=state, allow_input_required=True
            ),
        )
    )


async def _list_prompts(session: Session, name: str, arguments: dict[str, Any], progress: Any) -> Any:
    return results.plain((await session.list_prompts()).prompts, "name", "description", "arguments")


async def _get_prompt(session: Session, name: str, arguments: dict[str, Any], progress: Any) -> Any:
    wanted, blanks = arguments["name"], arguments.get("arguments")
    return results.of_prompt(
        await _answered(
            session,
            lambda said, state: session.get_prompt(
                wanted, blanks, input_responses=said, request_state=state, allow_input_required=True
            ),
        )
    )


_KINDS: dict[str, Callable[[Session, str, dict[str, Any], Any], Awaitable[Any]]] = {
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
