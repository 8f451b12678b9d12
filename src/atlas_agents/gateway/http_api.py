"""Sign-in of browsers, and shared parts of the HTTP APIs: authorization, bodies, uploads, limits, event streams."""

import asyncio
import logging
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager, suppress
from typing import IO, Any, Literal, TypeAlias, TypeVar, cast, get_args

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from atlas_agents.agents.options import WhenBusy
from atlas_agents.agents.stream import AtlasStream
from atlas_agents.core.aio import run_in_thread
from atlas_agents.core.approvals import Question
from atlas_agents.core.errors import BadArguments, BadTool, ConfigError, Conflict, NotFound
from atlas_agents.core.events import ClientToolsCalled, Event, StreamChunk, ToolCalled
from atlas_agents.core.messages import Message
from atlas_agents.core.telemetry import read_trace_context
from atlas_agents.gateway.asgi import ApiRoute, JsonResponse, Operation, get_grant
from atlas_agents.gateway.auth import Grant
from atlas_agents.gateway.devices import REMEMBERED_SECONDS, describe_browser, read_cookie, set_cookie
from atlas_agents.gateway.http_errors import Hide, HTTPError, bad_request, to_http_error
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.methods.admin import accept_invitation
from atlas_agents.gateway.protocol.frames import RESTART
from atlas_agents.gateway.protocol.types import Scope
from atlas_agents.gateway.uploads import UploadedFile, Uploads, check_name
from atlas_agents.knowledge.loaders import MAX_SIZE
from atlas_agents.tools.client_tools import ClientResult, ClientTools

T = TypeVar("T")
Answer: TypeAlias = Callable[[Request], Awaitable[Any]]
OnDisconnect: TypeAlias = Literal["continue", "cancel"]
BODY_TIMEOUT = 30.0
"""Seconds within which a request body must arrive."""
MAX_CONCURRENT = 64
"""Maximum number of concurrent HTTP turns per token."""
FIRST_OUTPUT_TIMEOUT = 2.0
"""Seconds to wait before a stream starts. Failures within it set the HTTP status, later ones end the stream."""
_MAX_HEADER = 200
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
]
_KEEP_ALIVE = b": keep-alive\n\n"
_MAX_SIGN_IN_BYTES = 8192
logger = logging.getLogger(__name__)


class ClientDisconnected(Exception):
    """The client closed the connection before the response was complete."""


def with_error_responses(answer: Answer, hide: Hide) -> Answer:
    """Wrap an endpoint so that exceptions become error responses in OpenAI's format, without tracebacks."""

    async def respond(request: Request) -> Any:
        try:
            return await answer(request)
        except (ClientDisconnected, ClientDisconnect):
            return Response(status_code=499)
        except Exception as failure:  # noqa: BLE001 - every exception becomes an error response
            error = to_http_error(failure, hide)
            return Response(error.body, error.status, error.headers, "application/json")

    return respond


def authorize(request: Request, *needed: Scope) -> Grant:
    """Return the grant of the token; raise HTTPError unless it has all `needed` scopes."""
    grant = get_grant(request)
    if grant is None:
        raise HTTPError(
            401, "invalid_api_key", "authentication required: send the header 'Authorization: Bearer <token>'"
        )
    missing = [scope for scope in needed if not grant.allows(scope)]
    if missing:
        raise HTTPError(403, "insufficient_scope", f"this token lacks the scope {' and '.join(missing)}")
    return grant


async def read_body(request: Request, kind: type[T], max_bytes: int) -> T:
    """Read and decode the JSON body. Other content types are refused, so HTML forms cannot send requests."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPError(415, "unsupported_media_type", "unsupported content type: expected application/json")
    content = await read_bytes(request, max_bytes)
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        raise bad_request(str(error), _find_param(str(error))) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise bad_request(f"the request body is not valid JSON: {error}", code="invalid_json") from None


async def read_bytes(request: Request, max_bytes: int) -> bytes:
    """Read the body; raise HTTPError if it is too large or does not arrive in time."""
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            async for piece in request.stream():
                content += piece
                if len(content) > max_bytes:
                    raise HTTPError(413, "request_too_large", f"the request body is larger than {max_bytes} bytes")
    except TimeoutError:
        raise HTTPError(408, "timeout", "the request body did not arrive in time") from None
    return bytes(content)


class SignIn(msgspec.Struct, frozen=True):
    """Body of `POST /api/session`. With `remember` the browser stays signed in for 30 days."""

    token: str
    remember: bool = False


class SignedIn(msgspec.Struct, frozen=True, rename="camel"):
    """The user, and until when the browser is signed in, in milliseconds since 1970."""

    user: str
    expires_at: int


class AcceptInvitation(msgspec.Struct, frozen=True):
    """Body of `POST /api/invitation`."""

    code: str


class AcceptedInvitation(msgspec.Struct, frozen=True):
    """The new user and its token, which is not shown again."""

    user: str
    token: str


def session_routes(hub: Hub) -> list[Route]:
    """Return the routes that sign a browser in and out: it exchanges its token for a cookie."""

    async def sign_in(request: Request) -> Response:
        require_own_page(hub, request)
        body = await read_body(request, SignIn, _MAX_SIGN_IN_BYTES)
        address = request.client.host if request.client else ""
        wait, grant = hub.authenticator.authenticate(address, body.token)
        if grant is None:
            if wait:
                raise HTTPError(429, "rate_limit_exceeded", "too many invalid tokens", retry_after=wait)
            raise HTTPError(401, "invalid_api_key", "invalid token")
        browser = describe_browser(request.headers.get("user-agent", ""))
        cookie = read_cookie(request.scope)
        present = await hub.devices.find(cookie) if grant == get_grant(request) else None
        if present is not None:  # the browser has this token's cookie, and other tabs that use it
            device = await hub.devices.renew(present[0], remember=body.remember)
        else:
            await _sign_out(hub, request)
            device, cookie = await hub.devices.sign_in(grant, browser, remember=body.remember)
        fields = {"address": address, "principal": device.user, "device": device.id, "browser": browser}
        logger.info("signed in", extra={"fields": fields})
        max_age = REMEMBERED_SECONDS if body.remember else None
        header = set_cookie(request.scope, cookie, max_age, secure=_is_secure(request))
        return JsonResponse(SignedIn(device.user, device.expires_at), headers={"Set-Cookie": header})

    async def sign_out(request: Request) -> Response:
        require_own_page(hub, request)
        await _sign_out(hub, request)
        header = set_cookie(request.scope, "", 0, secure=_is_secure(request))
        return Response(status_code=204, headers={"Set-Cookie": header})

    def route(answer: Answer, method: str, operation: Operation) -> Route:
        return ApiRoute("/api/session", with_error_responses(answer, hub.atlas.hide), operation, [method])

    return [
        route(
            sign_in,
            "POST",
            Operation("Sign a browser in: exchange a token for a cookie.", "page", body=SignIn, result=SignedIn),
        ),
        route(sign_out, "DELETE", Operation("Sign a browser out.", "page", status=204)),
        _invitation_route(hub),
    ]


def _invitation_route(hub: Hub) -> Route:
    """Return the route that exchanges the code of an invitation for the token of the invited user."""

    async def accept(request: Request) -> Response:
        require_own_page(hub, request)
        body = await read_body(request, AcceptInvitation, _MAX_SIGN_IN_BYTES)
        address = request.client.host if request.client else ""
        wait, user = hub.authenticator.find_invited(address, body.code)
        token = await accept_invitation(hub, user) if user is not None else None
        if token is None:
            if wait:
                raise HTTPError(429, "rate_limit_exceeded", "too many invalid codes", retry_after=wait)
            raise HTTPError(401, "invalid_invitation", "this invitation is not valid: it was used or expired")
        logger.info("invitation accepted", extra={"fields": {"address": address, "principal": user}})
        return JsonResponse(AcceptedInvitation(user or "", token.reveal()), headers={"Cache-Control": "no-store"})

    operation = Operation(
        "Accept an invitation: exchange its code for a token.", "page", body=AcceptInvitation, result=AcceptedInvitation
    )
    return ApiRoute("/api/invitation", with_error_responses(accept, hub.atlas.hide), operation, ["POST"])


def require_own_page(hub: Hub, request: Request) -> None:
    """Refuse requests that a page of this gateway did not send: other sites must not act for a user."""
    if not hub.authenticator.origin_policy.is_own_page(request.scope):
        raise HTTPError(403, "origin_required", "only the gateway's own page can do this: send its Origin header")


def _is_secure(request: Request) -> bool:
    return request.headers.get("origin", "").startswith("https://")


async def _sign_out(hub: Hub, request: Request) -> None:
    """Remove the device of the request's cookie, if there is one, and close its sockets."""
    id = request.scope["state"]["device"]
    for device in await hub.devices.list() if id else ():
        if device.id == id:
            await hub.devices.remove(device)
            hub.close_device(id)
            logger.info("signed out", extra={"fields": {"principal": device.user, "device": id}})


def when_busy(request: Request) -> WhenBusy:
    """Read from the headers what to do while another turn of the session is running."""
    return cast(WhenBusy, _one_of(request, "x-atlas-when-busy", get_args(WhenBusy)))


def on_disconnect(request: Request) -> OnDisconnect:
    """Read from the headers whether a stored turn continues after its client disconnects."""
    return cast(OnDisconnect, _one_of(request, "x-atlas-on-disconnect", get_args(OnDisconnect)))


def waits_for_approvals(request: Request) -> bool:
    """Read from the headers whether the turn waits for approvals, or is refused what requires one."""
    return _one_of(request, "x-atlas-approvals", ("refuse", "wait")) == "wait"


async def wait_for_output(events: AsyncIterable[Event], stream: AtlasStream, hub: Hub) -> None:
    """Wait until a turn produces output, for a limited time; raise if it fails first.

    `events` are those of the turn that belong to the answer.
    """
    try:
        async with asyncio.timeout(FIRST_OUTPUT_TIMEOUT):
            async for event in events:
                if isinstance(event, StreamChunk | ToolCalled | ClientToolsCalled):
                    return
            await wait_for_reply(stream, hub)
    except TimeoutError:
        pass


async def wait_for_reply(stream: AtlasStream, hub: Hub) -> Message:
    """Return the reply of a turn, or raise its error."""
    try:
        return await stream.reply()
    except Exception as failure:
        if hub.stopping:
            wait = hub.retry_after_ms / 1000
            raise HTTPError(503, "unavailable", "the gateway is shutting down", retry_after=wait) from failure
        raise


async def post_tool_results(
    hub: Hub, grant: Grant, results: Mapping[str, ClientResult], offer: ClientTools | None
) -> list[Question]:
    """Post the results of all calls that a turn waits for, by the parameter of each, and return these calls.

    The turn continues with the tools of the new `offer`, or with none. Raises a 400 for a result that has no effect.
    """
    calls: list[Question] = []
    for param, result in results.items():
        try:
            calls += await hub.atlas.find_client_calls([result.call_id], user=grant.principal.id)
        except NotFound as error:
            raise bad_request(str(error), param, "invalid_tool_call_id") from error
    run_id, given = calls[0].run_id, {call.id for call in calls}
    waiting = [each for each in await hub.atlas.pending_client_calls(calls[0].session) if each.run_id == run_id]
    first = next(iter(results))
    if any(call.run_id != run_id for call in calls):
        raise bad_request("the tool results belong to calls of different turns", first, "invalid_tool_call_id")
    missing = [each.id for each in waiting if each.id not in given]
    if missing and len(missing) < len(waiting):  # else the results were posted before, and the turn has gone on
        raise bad_request(f"no tool output found for these tool calls: {', '.join(missing)}", first.partition("[")[0])
    offer = offer or ClientTools((), unanswered="end")
    try:
        await hub.atlas.post_results([*results.values()], user=grant.principal.id, offer=offer)
    except (Conflict, BadArguments) as error:
        raise bad_request(str(error), first, "invalid_tool_call_id") from error
    return calls


def check_offer(hub: Hub, offer: ClientTools | None) -> ClientTools | None:
    """Return the tools that a client runs; raises a 400 for tools that it cannot offer."""
    try:
        if offer is not None:
            hub.atlas.check_client_tools(offer)
    except BadTool as error:
        raise bad_request(str(error), "tools") from error
    return offer


def short_header(request: Request, name: str) -> str:
    """Return a header of limited length, decoded as UTF-8 or else as Latin-1; empty if it is missing."""
    value = request.headers.get(name, "")
    with suppress(UnicodeDecodeError):
        value = value.encode("latin-1").decode()
    if len(value) > _MAX_HEADER:
        raise bad_request(f"{name} is longer than {_MAX_HEADER} characters", name)
    return value


def trace_of(request: Request) -> str | msgspec.UnsetType:
    """Return the trace context of a request; one that is invalid is ignored, as W3C Trace Context requires."""
    given = [request.headers.get("traceparent"), ",".join(request.headers.getlist("tracestate"))]
    return read_trace_context(*given) or msgspec.UNSET


class PendingRequest:
    """An HTTP request in progress. The hub treats it as a connection and closes it when its token becomes invalid."""

    full = jobs = False
    device = ""

    def __init__(self, request: Request, grant: Grant) -> None:
        self.grant = grant
        self.error: HTTPError | None = None
        self._request = request
        self._close_requested = asyncio.Event()

    def send(self, frame: bytes) -> bool:
        """Ignore the frame: HTTP requests receive no unsolicited events."""
        return False

    def close(self, code: int, reason: str) -> None:
        stops = code == RESTART
        self.error = HTTPError(503, "unavailable", reason) if stops else HTTPError(401, "invalid_api_key", reason)
        self._close_requested.set()

    async def wait_closed(self) -> None:
        """Wait until the client disconnects or is disconnected."""
        disconnecting = asyncio.create_task(self._disconnected())
        closing = asyncio.create_task(self._close_requested.wait())
        try:
            await asyncio.wait((disconnecting, closing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (disconnecting, closing):
                task.cancel()

    async def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Await the work while the client is connected; raise ClientDisconnected when it leaves."""
        running, disconnecting = asyncio.create_task(work), asyncio.create_task(self.wait_closed())
        try:
            await asyncio.wait((running, disconnecting), return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise self.error or ClientDisconnected
            return running.result()
        finally:
            for task in (running, disconnecting):
                task.cancel()
            await asyncio.gather(running, disconnecting, return_exceptions=True)

    async def _disconnected(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass


class ConcurrencyLimiter:
    """Limits the number of concurrent turns per token."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._in_progress: Counter[str] = Counter()

    @contextmanager
    def acquire(self, request: Request, grant: Grant) -> Generator[PendingRequest, None, None]:
        id = grant.principal.id
        if self._in_progress[id] >= MAX_CONCURRENT:
            raise HTTPError(429, "too_many_requests", f"this token already has {MAX_CONCURRENT} turns in progress")
        self._in_progress[id] += 1
        pending = PendingRequest(request, grant)
        self._hub.connections.add(pending)
        try:
            yield pending
        finally:
            self._hub.connections.discard(pending)
            self._in_progress[id] -= 1


def _one_of(request: Request, name: str, allowed: tuple[str, ...]) -> str:
    value = request.headers.get(name, allowed[0]).strip().lower()
    if value not in allowed:
        raise bad_request(f"invalid {name}: expected one of {', '.join(allowed)}", name)
    return value


def _find_param(message: str) -> str | None:
    """Return the field named at the end of a msgspec validation error."""
    found = message.rpartition("`$.")[2]
    return found.rstrip("`") if found != message else None


def sse_event(content: bytes) -> bytes:
    """Encode one server-sent event."""
    return b"data: %b\n\n" % content


class EventStream:
    """Streaming response of server-sent events.

    `on_end` is always called, even if the client disconnects before the first event.
    """

    def __init__(
        self,
        pending: PendingRequest,
        events: AsyncGenerator[bytes, None],
        keep_alive_interval: float,
        on_end: Callable[[], None],
    ) -> None:
        self._pending = pending
        self._events = events
        self._keep_alive_interval = keep_alive_interval
        self._on_end = on_end
        self._last = 0.0

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        try:
            await self._stream(send)
        finally:
            self._on_end()

    async def _stream(self, send: Send) -> None:
        self._last = asyncio.get_running_loop().time()
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        writing = asyncio.create_task(self._write(send))
        helpers = [asyncio.create_task(self._send_keep_alives(send)), asyncio.create_task(self._pending.wait_closed())]
        try:
            await asyncio.wait((writing, helpers[1]), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (writing, *helpers):
                task.cancel()
            await asyncio.gather(writing, *helpers, return_exceptions=True)
            await self._events.aclose()
        if not writing.cancelled():
            writing.result()

    async def _write(self, send: Send) -> None:
        async for event in self._events:
            await self._send(send, event)
        await send({"type": "http.response.body", "body": b""})

    async def _send(self, send: Send, event: bytes) -> None:
        self._last = asyncio.get_running_loop().time()
        message: dict[str, Any] = {"type": "http.response.body", "body": event, "more_body": True}
        await send(message)

    async def _send_keep_alives(self, send: Send) -> None:
        """Send comments while no events are sent, so that proxies and clients do not time out."""
        while True:
            silent = asyncio.get_running_loop().time() - self._last
            if silent >= self._keep_alive_interval:
                await self._send(send, _KEEP_ALIVE)
                silent = 0.0
            await asyncio.sleep(self._keep_alive_interval - silent)


def upload_routes(uploads: Uploads, hide: Hide) -> Sequence[BaseRoute]:
    """Return the route `POST /api/uploads?name=…`, whose body is the file. It requires the scope `admin`."""

    async def upload(request: Request) -> JsonResponse:
        authorize(request, "admin")
        try:
            name = check_name(request.query_params.get("name", ""))
        except ConfigError as error:
            raise bad_request(str(error), "name") from None
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/octet-stream":
            raise HTTPError(
                415, "unsupported_media_type", "unsupported content type: expected application/octet-stream"
            )
        if int(request.headers.get("content-length") or 0) > MAX_SIZE:
            raise _too_large()
        id, file = await run_in_thread(uploads.create, name)
        try:
            with file:
                size = await _receive_file(request, file)
        except BaseException:
            await asyncio.shield(run_in_thread(uploads.delete, id))
            raise
        return JsonResponse(UploadedFile(id, name, size), 201)

    operation = Operation(
        "Upload a file, to be used by a method of the WebSocket protocol.",
        "files",
        ("admin",),
        body="application/octet-stream",
        result=UploadedFile,
        status=201,
        query={"name": str},
    )
    return [ApiRoute("/api/uploads", with_error_responses(upload, hide), operation, ["POST"])]


async def _receive_file(request: Request, file: IO[bytes]) -> int:
    size, pieces = 0, request.stream().__aiter__()
    while True:
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                piece = await anext(pieces)
        except StopAsyncIteration:
            return size
        except TimeoutError:
            raise HTTPError(408, "timeout", "the upload was interrupted") from None
        size += len(piece)
        if size > MAX_SIZE:
            raise _too_large()
        await run_in_thread(file.write, piece)


def _too_large() -> HTTPError:
    return HTTPError(413, "request_too_large", f"the file is larger than {MAX_SIZE / 1e6:.0f} MB")
