"""The one HTTP client: POST a body, read the answer as it comes, under four clocks.

aiohttp is imported with the first client, not with the package: it is most of what a first import would cost.
"""

import asyncio
import weakref
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from atlas_agents.core.clock import SYSTEM_CLOCK, Clock
from atlas_agents.core.errors import ProviderError
from atlas_agents.providers.sse import read_plain

T = TypeVar("T")
_ERROR_BODY = 64 * 1024


class Clocks(msgspec.Struct, frozen=True):
    """How long to wait, in seconds: to connect, for the first byte, between words, and for one attempt in all."""

    connect: float = 5
    first_byte: float = 30
    idle: float = 30
    total: float = 300


class Watch:
    """One alarm for a whole answer. It does not ring per read: it looks when something was last heard."""

    def __init__(self, clock: Clock, clocks: Clocks) -> None:
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


class Answer:
    """An HTTP answer under way."""

    def __init__(self, response: Any, watch: Watch, trouble: tuple[type[BaseException], ...]) -> None:
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

    def __init__(self, clocks: Clocks | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        import aiohttp
        import yarl

        self._aiohttp, self._yarl = aiohttp, yarl
        self._trouble = (aiohttp.ClientError, OSError, asyncio.TimeoutError)
        self._clocks = clocks or Clocks()
        self._clock = clock
        self._pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = weakref.WeakKeyDictionary()
        self._addresses: dict[str, tuple[Any, str | None]] = {}

    @asynccontextmanager
    async def request(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> AsyncGenerator[Answer]:
        """Send, and give the answer while the `async with` lasts; leaving it early closes the socket."""
        pool = await self._pool()
        address, proxy = self._address(url)
        watch = Watch(self._clock, self._clocks)
        pool.busy += 1
        response: Any = None
        try:
            response = await watch.over(self._send(pool.session, method, address, headers, body, proxy))
            yield Answer(response, watch, self._trouble)
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

    async def _pool(self) -> "_Pool":
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
            pool = self._pools[loop] = _Pool(session)
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


class _Pool:
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


async def read_error(answer: Answer) -> object:
    """The body of a failed request, parsed where it is JSON."""
    try:
        body = await answer.read_all(_ERROR_BODY)
    except ProviderError:
        return ""
    return read_plain(body)
