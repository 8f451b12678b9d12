"""Shared parts of the HTTP APIs: authorization, request bodies, concurrency limits, server-sent events."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias, TypeVar, cast, get_args

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from atlas_agents.agents.options import WhenBusy
from atlas_agents.gateway.asgi import grant_of
from atlas_agents.gateway.auth import Grant
from atlas_agents.gateway.http_errors import Hide, HTTPError, bad, of_failure
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.protocol.frames import RESTART
from atlas_agents.gateway.protocol.types import Scope

T = TypeVar("T")
Answer: TypeAlias = Callable[[Request], Awaitable[Any]]
OnDisconnect: TypeAlias = Literal["continue", "cancel"]
BODY_WITHIN = 30.0
"""Seconds within which a request body must arrive."""
AT_ONCE = 64
"""Maximum number of concurrent HTTP turns per token."""
_LONGEST = 200


class ClientDisconnected(Exception):
    """The client closed the connection before the response was complete."""


def answered(answer: Answer, hide: Hide) -> Answer:
    """Wrap an endpoint so that exceptions become error responses in OpenAI's format, without tracebacks."""

    async def respond(request: Request) -> Any:
        try:
            return await answer(request)
        except (ClientDisconnected, ClientDisconnect):
            return Response(status_code=499)
        except Exception as failure:  # noqa: BLE001 - the border: the client is told, the log has the rest
            trouble = of_failure(failure, hide)
            return Response(trouble.body, trouble.status, trouble.headers, "application/json")

    return respond


def who_asks(request: Request, *needed: Scope) -> Grant:
    """Return the grant of the token; raise HTTPError unless it has all `needed` scopes."""
    grant = grant_of(request)
    if grant is None:
        raise HTTPError(
            401, "invalid_api_key", "authentication required: send the header 'Authorization: Bearer <token>'"
        )
    missing = [scope for scope in needed if not grant.may(scope)]
    if missing:
        raise HTTPError(403, "insufficient_scope", f"this token lacks the scope {' and '.join(missing)}")
    return grant


async def body_of(request: Request, kind: type[T], most: int) -> T:
    """Read and decode the JSON body. Other content types are refused, so HTML forms cannot send requests."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPError(415, "unsupported_media_type", "unsupported content type: expected application/json")
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_WITHIN):
            async for piece in request.stream():
                content += piece
                if len(content) > most:
                    raise HTTPError(413, "request_too_large", f"the request body is larger than {most} bytes")
    except TimeoutError:
        raise HTTPError(408, "timeout", "the request body did not arrive in time") from None
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        raise bad(str(error), _param(str(error))) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise bad(f"the request body is not valid JSON: {error}", code="invalid_json") from None


def when_busy(request: Request) -> WhenBusy:
    """Read from the headers what to do while another turn of the session is running."""
    return cast(WhenBusy, _one_of(request, "x-atlas-when-busy", get_args(WhenBusy)))


def on_disconnect(request: Request) -> OnDisconnect:
    """Read from the headers whether a stored turn continues after its client disconnects."""
    return cast(OnDisconnect, _one_of(request, "x-atlas-on-disconnect", get_args(OnDisconnect)))


def short(request: Request, name: str) -> str:
    """Return a header of limited length; empty if it is missing."""
    value = request.headers.get(name, "")
    if len(value) > _LONGEST:
        raise bad(f"{name} is longer than {_LONGEST} characters", name)
    return value


class PendingRequest:
    """An HTTP request in progress. The hub treats it as a connection and closes it when its token becomes invalid."""

    full = lists = jobs = False

    def __init__(self, request: Request, grant: Grant) -> None:
        self.sessions: set[str] = set()
        self.grant: Grant | None = grant
        self.trouble: HTTPError | None = None
        self._request = request
        self._closed = asyncio.Event()

    def put(self, frame: bytes) -> bool:
        """Ignore the frame: HTTP requests receive no unsolicited events."""
        return False

    def close(self, code: int, reason: str) -> None:
        stops = code == RESTART
        self.trouble = HTTPError(503, "unavailable", reason) if stops else HTTPError(401, "invalid_api_key", reason)
        self._closed.set()

    async def left(self) -> None:
        """Wait until the client disconnects or is disconnected."""
        leaving = asyncio.create_task(self._disconnected())
        closing = asyncio.create_task(self._closed.wait())
        try:
            await asyncio.wait((leaving, closing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (leaving, closing):
                task.cancel()

    async def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Await the work while the client is connected; raise ClientDisconnected when it leaves."""
        doing, leaving = asyncio.create_task(work), asyncio.create_task(self.left())
        try:
            await asyncio.wait((doing, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                raise self.trouble or ClientDisconnected
            return doing.result()
        finally:
            for task in (doing, leaving):
                task.cancel()
            await asyncio.gather(doing, leaving, return_exceptions=True)

    async def _disconnected(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass


class ConcurrencyLimiter:
    """Limits the number of concurrent turns per token."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._taken: Counter[str] = Counter()

    @contextmanager
    def taken(self, request: Request, grant: Grant) -> Generator[PendingRequest, None, None]:
        id = grant.principal.id
        if self._taken[id] >= AT_ONCE:
            raise HTTPError(429, "too_many_requests", f"this token already has {AT_ONCE} turns in progress")
        self._taken[id] += 1
        seat = PendingRequest(request, grant)
        self._hub.connections.add(seat)
        try:
            yield seat
        finally:
            self._hub.connections.discard(seat)
            self._taken[id] -= 1


def _one_of(request: Request, name: str, known: tuple[str, ...]) -> str:
    value = request.headers.get(name, known[0]).strip().lower()
    if value not in known:
        raise bad(f"invalid {name}: expected one of {', '.join(known)}", name)
    return value


def _param(words: str) -> str | None:
    """Return the field named at the end of a msgspec validation error."""
    found = words.rpartition("`$.")[2]
    return found.rstrip("`") if found != words else None


HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
]
_ALIVE = b": keep-alive\n\n"


def data(content: bytes) -> bytes:
    """Encode one server-sent event."""
    return b"data: %b\n\n" % content


class EventStream:
    """Streaming response of server-sent events.

    `on_end` is always called, even if the client disconnects before the first event.
    """

    def __init__(
        self, seat: PendingRequest, lines: AsyncGenerator[bytes, None], pause: float, on_end: Callable[[], None]
    ) -> None:
        self._seat = seat
        self._lines = lines
        self._pause = pause
        self._on_end = on_end
        self._last = 0.0

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        try:
            await self._tell(send)
        finally:
            self._on_end()

    async def _tell(self, send: Send) -> None:
        self._last = asyncio.get_running_loop().time()
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        writing = asyncio.create_task(self._write(send))
        beside = [asyncio.create_task(self._stay_alive(send)), asyncio.create_task(self._seat.left())]
        try:
            await asyncio.wait((writing, beside[1]), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (writing, *beside):
                task.cancel()
            await asyncio.gather(writing, *beside, return_exceptions=True)
            await self._lines.aclose()
        if not writing.cancelled():
            writing.result()

    async def _write(self, send: Send) -> None:
        async for line in self._lines:
            await self._send(send, line)
        await send({"type": "http.response.body", "body": b""})

    async def _send(self, send: Send, line: bytes) -> None:
        self._last = asyncio.get_running_loop().time()
        message: dict[str, Any] = {"type": "http.response.body", "body": line, "more_body": True}
        await send(message)

    async def _stay_alive(self, send: Send) -> None:
        """Send comments while no events are sent, so that proxies and clients do not time out."""
        while True:
            silent = asyncio.get_running_loop().time() - self._last
            if silent >= self._pause:
                await self._send(send, _ALIVE)
                silent = 0.0
            await asyncio.sleep(self._pause - silent)
