"""Server-sent events: a line when there is something to say, a sign of life when there is not."""

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

from atlas_agents.engine.options import WhenBusy
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
"""Seconds that a request may take to say what it wants."""
AT_ONCE = 64
"""Turns that one token may wait for over HTTP at the same time."""
_LONGEST = 200


class ClientDisconnected(Exception):
    """Nobody waits for the answer any more."""


def answered(answer: Answer, hide: Hide) -> Answer:
    """The same, with whatever is raised told in the shape that programs read; never a trace."""

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
    """The owner of the token, who may do all of this. Rights come from the token, never from what a client says."""
    grant = grant_of(request)
    if grant is None:
        raise HTTPError(401, "invalid_api_key", "a token is needed: Authorization: Bearer …")
    missing = [scope for scope in needed if not grant.may(scope)]
    if missing:
        raise HTTPError(403, "insufficient_scope", f"this token has no right to {' and '.join(missing)}")
    return grant


async def body_of(request: Request, kind: type[T], most: int) -> T:
    """What the request asks for; only now is it read. A page's form or `text/plain` is no request of a program."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPError(415, "unsupported_media_type", "the content type must be application/json")
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_WITHIN):
            async for piece in request.stream():
                content += piece
                if len(content) > most:
                    raise HTTPError(413, "request_too_large", f"the request is larger than {most} bytes")
    except TimeoutError:
        raise HTTPError(408, "timeout", "the request did not come to its end in time") from None
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        raise bad(str(error), _param(str(error))) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise bad(f"the request is no JSON: {error}", code="invalid_json") from None


def when_busy(request: Request) -> WhenBusy:
    """What is to be done while another turn of the session is under way."""
    return cast(WhenBusy, _one_of(request, "x-atlas-when-busy", get_args(WhenBusy)))


def on_disconnect(request: Request) -> OnDisconnect:
    """Whether a turn that is kept goes on when its client has left."""
    return cast(OnDisconnect, _one_of(request, "x-atlas-on-disconnect", get_args(OnDisconnect)))


def short(request: Request, name: str) -> str:
    """A header that names something; nothing if it is not there."""
    value = request.headers.get(name, "")
    if len(value) > _LONGEST:
        raise bad(f"{name} is longer than {_LONGEST} characters", name)
    return value


class PendingRequest:
    """A request that is waited for. To the hub it is a connection like others, closed when its token is void."""

    full = lists = jobs = False

    def __init__(self, request: Request, grant: Grant) -> None:
        self.sessions: set[str] = set()
        self.grant: Grant | None = grant
        self.trouble: HTTPError | None = None
        self._request = request
        self._closed = asyncio.Event()

    def put(self, frame: bytes) -> bool:
        """Nothing is told here that was not asked for."""
        return False

    def close(self, code: int, reason: str) -> None:
        stops = code == RESTART
        self.trouble = HTTPError(503, "unavailable", reason) if stops else HTTPError(401, "invalid_api_key", reason)
        self._closed.set()

    async def left(self) -> None:
        """Until the client has left, or was sent away."""
        leaving = asyncio.create_task(self._disconnected())
        closing = asyncio.create_task(self._closed.wait())
        try:
            await asyncio.wait((leaving, closing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (leaving, closing):
                task.cancel()

    async def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it as long as the client waits; Gone when it has left."""
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
    """Counts who is waited for, so that one token cannot hold everything."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._taken: Counter[str] = Counter()

    @contextmanager
    def taken(self, request: Request, grant: Grant) -> Generator[PendingRequest, None, None]:
        id = grant.principal.id
        if self._taken[id] >= AT_ONCE:
            raise HTTPError(429, "too_many_requests", f"{AT_ONCE} turns of this token are waited for already")
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
        raise bad(f"{name} is one of {', '.join(known)}", name)
    return value


def _param(words: str) -> str | None:
    """The field that msgspec names at the end of what it says."""
    found = words.rpartition("`$.")[2]
    return found.rstrip("`") if found != words else None


HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
]
_ALIVE = b": still at work\n\n"


def data(content: bytes) -> bytes:
    """One event."""
    return b"data: %b\n\n" % content


class EventStream:
    """An answer that is told as it comes. `on_end` is called in any case: also when the client leaves in the middle, or
    before the first line."""

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
        """Proxies and clients take silence for death, and a tool may take its time."""
        while True:
            silent = asyncio.get_running_loop().time() - self._last
            if silent >= self._pause:
                await self._send(send, _ALIVE)
                silent = 0.0
            await asyncio.sleep(self._pause - silent)
