"""The one HTTP client: POST a body, read the answer as it comes, under four clocks.

aiohttp is imported with the first client, not with the package: it is most of what a first import would cost.
"""

import asyncio
import json
import weakref
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec

from atlas_agents.core.aio import SYSTEM_CLOCK, Clock
from atlas_agents.core.errors import MissingKey, ProviderError
from atlas_agents.core.paths import Secret
from atlas_agents.core.text import clean
from atlas_agents.providers.base import Chunk, fault_of_status

T = TypeVar("T")
MAX_EVENT = 4 * 1024 * 1024
MAX_RESPONSE = 32 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"


class EventSplitter:
    """Feed it bytes, get whole events as (name, data). An event that never saw its blank line is not one."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._waiting = 0
        self._total = 0
        self._begun = False
        self._half = False

    def feed(self, piece: bytes) -> list[tuple[bytes, bytes]]:
        self._total += len(piece)
        if self._total > MAX_RESPONSE:
            raise ProviderError(f"the answer is longer than {MAX_RESPONSE >> 20} MB", "protocol")
        if self._half or b"\r" in piece:
            piece = self._unify(piece)
        if self._rest or not self._begun:
            piece = self._join(piece)
        *blocks, last = piece.split(b"\n\n")
        if last:
            self._rest.append(last)
            self._waiting = len(last)
        if len(last) > MAX_EVENT or any([len(block) > MAX_EVENT for block in blocks]):
            raise _too_long()
        return [_read(block) for block in blocks if block]

    def _join(self, piece: bytes) -> bytes:
        """What waited and this, or nothing while no event can have ended: a long one is joined once, not per piece."""
        rest = self._rest
        ended = b"\n\n" in (rest[-1][-1:] + piece if rest else piece)
        if piece:
            rest.append(piece)
        if self._begun and not ended:
            self._waiting += len(piece)
            if self._waiting > MAX_EVENT:
                raise _too_long()
            return b""
        piece = b"".join(rest)
        if not self._begun:
            if len(piece) < 3 and _BOM.startswith(piece):
                return b""
            self._begun, piece = True, piece.removeprefix(_BOM)
        self._rest = []
        return piece

    def _unify(self, piece: bytes) -> bytes:
        """All line ends as LF. Of a CRLF that was cut in half, the CR has already been counted as one."""
        if self._half:
            piece = piece.removeprefix(b"\n")
        self._half = piece.endswith(b"\r")
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _too_long() -> ProviderError:
    return ProviderError(f"one event is longer than {MAX_EVENT >> 20} MB", "protocol")


def _read(block: bytes) -> tuple[bytes, bytes]:
    if block.startswith(b"data: ") and b"\n" not in block:
        return b"", block[6:]
    name, data = b"", list[bytes]()
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
    return name, b"\n".join(data)


def read_event(decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    """One event's JSON as a typed value, or ProviderError."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # or JSON to others: half a surrogate pair
        try:
            return msgspec.convert(json.loads(data), decoder.type)
        except (ValueError, RecursionError) as error:
            raise ProviderError(f"an event of the stream could not be read: {error}", "incomplete") from error


def read_plain(data: bytes) -> object:
    """JSON as plain values, or the text itself where it is none."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return data.decode("utf-8", "replace")


_ERROR_BODY = 64 * 1024


class Timeouts(msgspec.Struct, frozen=True):
    """How long to wait, in seconds: to connect, for the first byte, between words, and for one attempt in all."""

    connect: float = 5
    first_byte: float = 30
    idle: float = 30
    total: float = 300


class IdleWatchdog:
    """One alarm for a whole answer. It does not ring per read: it looks when something was last heard."""

    def __init__(self, clock: Clock, clocks: Timeouts) -> None:
        self._clock = clock
        self._clocks = clocks
        self._start = self._last = clock.monotonic()
        self._limit = clocks.first_byte
        self._task: asyncio.Task[Any] | None = None
        self.expired: str | None = None
        self._alarm = clock.call_later(min(self._limit, clocks.total), self._look)

    def touch(self) -> None:
        """Something that counts was heard: the idle clock starts anew."""
        self._last = self._clock.monotonic()
        if self._limit != self._clocks.idle:
            self.allow(self._clocks.idle)

    def allow(self, seconds: float) -> None:
        """From now on, be silent for no longer than this; said again, it does not begin anew."""
        if seconds == self._limit:
            return
        self._limit = seconds
        self._last = self._clock.monotonic()
        self._alarm.cancel()
        self._alarm = self._clock.call_later(max(0, min(self._limit, self._left())), self._look)

    async def over(self, waiting: Awaitable[T]) -> T:
        """Await something, for as long as the clocks allow."""
        task = self._task = asyncio.current_task()
        asked = task.cancelling() if task else 0
        try:
            return await waiting
        except asyncio.CancelledError:
            if self.expired and task and task.uncancel() <= asked:
                raise ProviderError(self.expired, "timeout") from None
            raise
        finally:
            self._task = None

    def stop(self) -> None:
        self._alarm.cancel()

    def _left(self) -> float:
        return self._start + self._clocks.total - self._clock.monotonic()

    def _look(self) -> None:
        silent = self._last + self._limit - self._clock.monotonic()
        left = self._left()
        if silent > 0 and left > 0:
            self._alarm = self._clock.call_later(min(silent, left), self._look)
            return
        self.expired = (
            f"nothing heard for {self._limit:g} s" if silent <= 0 else f"not finished within {self._clocks.total:g} s"
        )
        if self._task:
            self._task.cancel()


class HttpResponse:
    """An HTTP answer under way."""

    def __init__(self, response: Any, watch: IdleWatchdog, trouble: tuple[type[BaseException], ...]) -> None:
        self.status: int = response.status
        self.headers: Mapping[str, str] = response.headers
        self.watch = watch
        self._response = response
        self._trouble = trouble

    async def read(self) -> bytes:
        """The next bytes; empty at the end."""
        if self.watch.expired:
            raise ProviderError(self.watch.expired, "timeout")
        try:
            return await self.watch.over(self._response.content.readany())
        except self._trouble as error:
            raise _network(error) from error

    async def read_all(self, limit: int) -> bytes:
        """All the rest, up to a limit."""
        pieces, size = list[bytes](), 0
        while size < limit and (piece := await self.read()):
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)[:limit]

    @property
    def ended(self) -> bool:
        return self._response.content.at_eof()


class HttpClient:
    """Keeps connections alive between requests, one pool per event loop.

    A loop that ends closes its pool by itself; `close` does so at once, but never under a request in flight.
    """

    def __init__(self, clocks: Timeouts | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        import aiohttp
        import yarl

        self._aiohttp, self._yarl = aiohttp, yarl
        self._trouble = (aiohttp.ClientError, OSError, asyncio.TimeoutError)
        self._clocks = clocks or Timeouts()
        self._clock = clock
        self._pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _SessionPool] = weakref.WeakKeyDictionary()
        self._addresses: dict[str, tuple[Any, str | None]] = {}

    @asynccontextmanager
    async def request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncGenerator[HttpResponse]:
        """Send, and give the answer while the `async with` lasts; leaving it early closes the socket."""
        pool = await self._pool()
        address, proxy = self._address(url)
        watch = IdleWatchdog(self._clock, self._clocks)
        pool.busy += 1
        response: Any = None
        try:
            response = await watch.over(self._send(pool.session, method, address, headers, body, proxy))
            yield HttpResponse(response, watch, self._trouble)
        finally:
            watch.stop()
            pool.busy -= 1
            if response is not None:
                if response.content.at_eof():
                    response.release()
                else:
                    response.close()
            if pool.closing and not pool.busy:
                await pool.keeper.aclose()

    async def close(self) -> None:
        """Close this loop's connections as soon as none is in use; the client can be used again."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is None:
            return
        pool.closing = True
        if not pool.busy:
            await pool.keeper.aclose()

    async def _send(
        self, session: Any, method: str, address: Any, headers: Mapping[str, str], body: bytes, proxy: str | None
    ) -> Any:
        try:
            return await session.request(
                method, address, data=body or None, headers=headers, proxy=proxy, allow_redirects=False
            )
        except self._trouble as error:
            raise _network(error) from error
        except ValueError as error:
            raise ProviderError(f"{address} cannot be asked: {error}", "bad_request") from error

    async def _pool(self) -> "_SessionPool":
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            timeout = self._aiohttp.ClientTimeout(total=None, sock_connect=self._clocks.connect)
            session = self._aiohttp.ClientSession(
                connector=self._aiohttp.TCPConnector(limit=0),
                timeout=timeout,
                read_bufsize=1 << 18,
                headers={"Accept-Encoding": "identity"},
                cookie_jar=self._aiohttp.DummyCookieJar(),
            )
            pool = self._pools[loop] = _SessionPool(session)
            await pool.keeper.__anext__()
        return pool

    def _address(self, url: str) -> tuple[Any, str | None]:
        """The parsed URL, and the proxy that the environment wants for it."""
        if url not in self._addresses:
            from urllib.request import getproxies, proxy_bypass  # costs as much to import as half of this package

            parts = urlsplit(url)
            proxies = getproxies()
            host = parts.hostname or ""
            local = host in ("localhost", "127.0.0.1", "::1") or bool(proxy_bypass(host))
            self._addresses[url] = (self._yarl.URL(url), None if local else proxies.get(parts.scheme))
        return self._addresses[url]


class _SessionPool:
    """A session and its keeper: a generator that the loop closes at its end, and the session with it."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.busy = 0
        self.closing = False
        self.keeper = self._keep()

    async def _keep(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await self.session.close()


def _network(error: BaseException) -> ProviderError:
    if isinstance(error, asyncio.TimeoutError):
        return ProviderError("the connection could not be made in time", "timeout")
    words = str(error) or type(error).__name__
    return ProviderError(f"the connection failed: {words}", "network")


async def read_error(answer: HttpResponse) -> object:
    """The body of a failed request, parsed where it is JSON."""
    try:
        body = await answer.read_all(_ERROR_BODY)
    except ProviderError:
        return ""
    return read_plain(body)


_SLICE = 16 * 1024
_AFTER_FINISH = 2.0
_AFTER_DONE = 0.1


class StreamReader(Protocol):
    """Reads one vendor's stream. Knows no socket, so that it can be tried at every cut."""

    heard: int
    """How many events counted so far; pings and comments don't."""
    complete: bool
    """The message has ended; at most its usage is still to come."""
    closed: bool
    """The vendor said that nothing follows."""

    def feed(self, piece: bytes) -> list[Chunk]: ...

    def whole(self, body: bytes) -> list[Chunk]:
        """Read an answer that came in one piece, from a server that does not stream."""
        ...

    def finish(self) -> list[Chunk]:
        """The tool calls and the end, or ProviderError if the message was not complete."""
        ...


async def exchange(
    http: HttpClient, url: str, headers: Mapping[str, str], body: bytes, reader: StreamReader, key: Secret | None
) -> AsyncGenerator[Chunk, None]:
    """Ask once. Raises ProviderError, with the key taken out of whatever the server said."""
    try:
        async with http.request("POST", url, headers, body) as answer:
            if answer.status != 200:
                raise await _refusal(answer)
            if answer.headers.get("content-type", "").startswith("application/json"):
                whole = await answer.read_all(MAX_RESPONSE)
                for chunk in reader.whole(whole) if whole.strip() else reader.finish():
                    yield chunk
                return
            async for piece in _pieces(answer, reader):
                for chunk in reader.feed(piece):
                    yield chunk
            for chunk in reader.finish():
                yield chunk
    except ProviderError as error:
        if key and key.reveal() in str(error):
            error.args = (str(error).replace(key.reveal(), "[REDACTED]"),)
        raise


async def _pieces(answer: HttpResponse, reader: StreamReader) -> AsyncGenerator[bytes, None]:
    """The answer's bytes until nothing more is needed; the idle clock runs on while the reader hears only pings."""
    while piece := await _next(answer, reader):
        heard = reader.heard
        for start in range(0, len(piece), _SLICE):
            if start:
                await asyncio.sleep(0)  # a burst must not keep others, or its own listener, waiting
            yield piece[start : start + _SLICE]
        if reader.heard != heard:
            answer.watch.touch()


async def _next(answer: HttpResponse, reader: StreamReader) -> bytes:
    """The next bytes, or none when nothing more is needed. A complete message outlives what its connection does."""
    if not reader.complete:
        return await answer.read()
    if reader.closed and answer.ended:
        return b""
    answer.watch.allow(_AFTER_DONE if reader.closed else _AFTER_FINISH)
    try:
        return await answer.read()
    except ProviderError:
        return b""


async def _refusal(answer: HttpResponse) -> ProviderError:
    if 300 <= answer.status < 400:
        target = clean(answer.headers.get("location", "another address"))
        return ProviderError(
            f"HTTP {answer.status}: the server points to {target}; set that as base_url", "bad_request"
        )
    if answer.status < 300:
        return ProviderError(f"HTTP {answer.status} where 200 was expected", "protocol")
    return fault_of_status(answer.status, await read_error(answer), answer.headers)


def header_value(key: Secret, vendor: str) -> str:
    """The key as it goes into a header; a pasted line break would forge another one."""
    value = key.reveal().strip()
    if not value or not (value.isascii() and value.isprintable()):
        raise MissingKey(f"the key for {vendor} is blank or has characters that no key has; paste it again")
    return value
