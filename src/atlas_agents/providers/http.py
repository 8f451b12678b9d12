"""HTTP client for providers: server-sent events, timeouts, and one exchange of request and streamed response.

aiohttp is imported with the first client, because it dominates the cost of importing the package.
"""

import asyncio
import errno
import json
import logging
import os
import re
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar, cast
from urllib.parse import quote, urlsplit

import msgspec

from atlas_agents.core.aio import SYSTEM_CLOCK, Clock, invoke
from atlas_agents.core.errors import ConfigError, MissingKey, ProviderError
from atlas_agents.core.http import open_session
from atlas_agents.core.json import encode as encode_json
from atlas_agents.core.paths import Environment, Secret
from atlas_agents.core.text import clean, is_distinctive
from atlas_agents.providers.adaptation import REASONING, Adaptation, refuses_reasoning
from atlas_agents.providers.base import (
    BaseProvider,
    Capabilities,
    Chunk,
    Dialect,
    Request,
    check_prefix,
    classify_response,
)
from atlas_agents.providers.catalogue import ModelProfile, find_profile

logger = logging.getLogger(__name__)
T = TypeVar("T")
MAX_EVENT = 4 * 1024 * 1024
MAX_RESPONSE = 32 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_ERROR_BODY = 64 * 1024
_SLICE = 16 * 1024
_USAGE_TIMEOUT = 2.0
_EOF_TIMEOUT = 0.1
_KEY_TIMEOUT = 30.0
_JOINED_HEADERS = ("anthropic-beta",)
"""Headers with list values: a value from the settings is appended to the request's."""
_BEDROCK_INVOKE = re.compile(r"https?://bedrock-runtime(?:-fips)?\.([\w-]+)\.")
_DESCRIPTOR_WAITS = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds to wait for a file descriptor before an attempt to connect fails."""


KeyFunction: TypeAlias = Callable[[], str | Awaitable[str]]
"""A sync or async function that returns the current key. It is called for every request, so it should cache."""


class EventSplitter:
    """Server-sent event parser: feed it bytes, get complete events as (name, data)."""

    def __init__(self) -> None:
        self._buffer: list[bytes] = []
        self._buffered_bytes = 0
        self._total = 0
        self._started = False
        self._ends_with_cr = False

    def feed(self, piece: bytes) -> list[tuple[bytes, bytes]]:
        self._total += len(piece)
        if self._total > MAX_RESPONSE:
            raise ProviderError(f"the response exceeds {MAX_RESPONSE >> 20} MB", "protocol")
        if self._ends_with_cr or b"\r" in piece:
            piece = self._normalize_newlines(piece)
        if self._buffer or not self._started:
            piece = self._join(piece)
        *blocks, tail = piece.split(b"\n\n")
        if tail:
            self._buffer.append(tail)
            self._buffered_bytes = len(tail)
        if len(piece) > MAX_EVENT and any([len(block) > MAX_EVENT for block in (*blocks, tail)]):
            raise _event_too_long()
        return [_parse_block(block) for block in blocks if block]

    def _join(self, piece: bytes) -> bytes:
        """Return the buffered bytes with this piece, or nothing until an event may be complete: long events join
        once."""
        buffer = self._buffer
        has_event_end = b"\n\n" in (buffer[-1][-1:] + piece if buffer else piece)
        if piece:
            buffer.append(piece)
        if self._started and not has_event_end:
            self._buffered_bytes += len(piece)
            if self._buffered_bytes > MAX_EVENT:
                raise _event_too_long()
            return b""
        piece = b"".join(buffer)
        if not self._started:
            if len(piece) < 3 and _BOM.startswith(piece):
                return b""
            self._started, piece = True, piece.removeprefix(_BOM)
        self._buffer = []
        return piece

    def _normalize_newlines(self, piece: bytes) -> bytes:
        """Normalise line ends to LF, also for a CRLF split between two pieces."""
        if self._ends_with_cr:
            piece = piece.removeprefix(b"\n")
        self._ends_with_cr = piece.endswith(b"\r")
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _event_too_long() -> ProviderError:
    return ProviderError(f"an event exceeds {MAX_EVENT >> 20} MB", "protocol")


def _parse_block(block: bytes) -> tuple[bytes, bytes]:
    if block.startswith(b"data: ") and b"\n" not in block:
        return b"", block[6:]
    if block.startswith(b"event: "):  # the form in which the vendors send their events
        name, _, rest = block[7:].partition(b"\n")
        if rest.startswith(b"data: ") and b"\n" not in rest:
            return name, rest[6:]
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
    """Decode one event's JSON into a typed value; raises ProviderError."""
    try:
        return decoder.decode(data)
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        RecursionError,
    ):  # or JSON that other parsers accept, such as a lone surrogate
        try:
            return msgspec.convert(json.loads(data), decoder.type)
        except (ValueError, RecursionError) as error:
            raise ProviderError(f"invalid event in the stream: {error}", "incomplete") from error


def read_plain(data: bytes) -> object:
    """Decode JSON into plain values; return text that is not JSON unchanged."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return data.decode("utf-8", "replace")


class Timeouts(msgspec.Struct, frozen=True):
    """Timeouts of a request, in seconds.

    Args:
        connect: To connect.
        first_byte: For the first byte of the response.
        idle: Between two events.
        total: For one attempt in total.
        reasoning: Between two events while a model reasons, if its API says so.
    """

    connect: float = 5
    first_byte: float = 30
    idle: float = 30
    total: float = 300
    reasoning: float = 180


class IdleWatchdog:
    """Idle and total timeout of one response, with a single timer that checks the time of the last activity."""

    def __init__(self, clock: Clock, timeouts: Timeouts) -> None:
        self._clock = clock
        self._timeouts = timeouts
        self._start = self._last = clock.monotonic()
        self._limit = timeouts.first_byte
        self._task: asyncio.Task[Any] | None = None
        self.expired: str | None = None
        self._alarm = clock.call_later(min(self._limit, timeouts.total), self._check)

    def touch(self, reasoning: bool = False) -> None:
        """Record activity: restart the idle timeout."""
        self._last = self._clock.monotonic()
        limit = max(self._timeouts.reasoning, self._timeouts.idle) if reasoning else self._timeouts.idle
        if self._limit != limit:
            self.allow(limit)

    def allow(self, seconds: float) -> None:
        """Change the idle limit from now on; calling it again does not restart the timeout."""
        if seconds == self._limit:
            return
        self._limit = seconds
        self._last = self._clock.monotonic()
        self._alarm.cancel()
        self._alarm = self._clock.call_later(max(0, min(self._limit, self._total_left())), self._check)

    async def guard(self, awaitable: Awaitable[T]) -> T:
        """Await something within the timeouts."""
        task = self._task = asyncio.current_task()
        cancels_before = task.cancelling() if task else 0
        try:
            return await awaitable
        except asyncio.CancelledError:
            if not self.expired or task is None or task.uncancel() > cancels_before:
                raise
        finally:
            self._task = None
        raise ProviderError(self.expired, "timeout")  # without its cause, whose frames have the headers

    def stop(self) -> None:
        self._alarm.cancel()

    def _total_left(self) -> float:
        return self._start + self._timeouts.total - self._clock.monotonic()

    def _check(self) -> None:
        idle_left = self._last + self._limit - self._clock.monotonic()
        left = self._total_left()
        if idle_left > 0 and left > 0:
            self._alarm = self._clock.call_later(min(idle_left, left), self._check)
            return
        self.expired = (
            f"no data received for {self._limit:g} s"
            if idle_left <= 0
            else f"not finished within {self._timeouts.total:g} s"
        )
        if self._task:
            self._task.cancel()


class HttpResponse:
    """An HTTP response whose body is being read."""

    def __init__(self, response: Any, watch: IdleWatchdog, network_errors: tuple[type[BaseException], ...]) -> None:
        self.status: int = response.status
        self.headers: Mapping[str, str] = response.headers
        self.watch = watch
        self.event_count = 0
        """Number of significant events in what was read, when the idle timeout was last restarted."""
        self.rest = b""
        """Bytes that were read, but not yet returned by `read_slice`."""
        self._response = response
        self._network_errors = network_errors

    async def read_slice(self) -> bytes:
        """Read the next bytes, as many as are decoded at once; in a burst of more, other tasks run in between."""
        if self.rest:
            await asyncio.sleep(0)
        piece = self.rest or await self.read()
        self.rest = piece[_SLICE:]
        return piece[:_SLICE]

    async def read(self) -> bytes:
        """Read the next bytes; empty at the end."""
        if self.watch.expired:
            raise ProviderError(self.watch.expired, "timeout")
        try:
            return await self.watch.guard(self._response.content.readany())
        except self._network_errors as error:
            raise _network_error(error) from error

    async def read_all(self, limit: int) -> bytes:
        """Read the remaining body up to a limit."""
        pieces, size = list[bytes](), 0
        while size < limit and (piece := await self.read()):
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)[:limit]

    @property
    def ended(self) -> bool:
        return self._response.content.at_eof()

    def release(self) -> None:
        """Return the connection to the pool, or close it if the body was not read to its end."""
        if self.ended:
            self._response.release()
        else:
            self._response.close()


class HttpClient:
    """HTTP client with keep-alive and one connection pool per event loop.

    A pool closes with its loop; `close` closes it at once, but never under a request in flight.
    """

    def __init__(self, timeouts: Timeouts | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        import aiohttp
        import yarl

        self._aiohttp, self._yarl = aiohttp, yarl
        self._network_errors = (aiohttp.ClientError, OSError, asyncio.TimeoutError)
        self._timeouts = timeouts or Timeouts()
        self._clock = clock
        self._pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _SessionPool] = weakref.WeakKeyDictionary()
        self._addresses: dict[str, tuple[Any, str | None]] = {}

    def request(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> "HttpRequest":
        """Return a request, which is sent when its block is entered; leaving it early closes the connection."""
        return HttpRequest(self, method, url, headers, body)

    async def close(self) -> None:
        """Close this loop's connections once none is in use; the client can be used again."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is None:
            return
        pool.closing = True
        if not pool.busy:
            await pool.closer.aclose()

    async def open(
        self, watch: IdleWatchdog, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> "tuple[HttpResponse, _SessionPool]":
        """Send a request within its timeouts; return the response, and the pool that counts it until `release`."""
        pool = await self._pool()
        address, proxy = self._address(url)
        pool.busy += 1
        try:
            response = await watch.guard(self._send(pool.session, method, address, headers, body, proxy))
        except BaseException:
            await pool.release()
            raise
        return HttpResponse(response, watch, self._network_errors), pool

    def watch(self) -> IdleWatchdog:
        """Return the timeouts of one request, which begin now."""
        return IdleWatchdog(self._clock, self._timeouts)

    async def _send(
        self, session: Any, method: str, address: Any, headers: Mapping[str, str], body: bytes, proxy: str | None
    ) -> Any:
        failure = ProviderError("connection failed", "network")
        for pause in (*_DESCRIPTOR_WAITS, None):
            try:
                return await session.request(
                    method, address, data=body or None, headers=headers, proxy=proxy, allow_redirects=False
                )
            except self._network_errors as error:
                failure = _network_error(error)
                if pause is None or not _out_of_descriptors(error):
                    break
            except ValueError as error:
                failure = ProviderError(f"cannot send a request to {address}: {error}", "bad_request")
                break
            logger.warning("no file descriptor left for a connection to a provider, waiting: seconds=%g", pause)
            await self._clock.sleep(pause)
        raise failure  # without its cause, which has the headers and so the key

    async def _pool(self) -> "_SessionPool":
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            session = open_session(
                connect_timeout=self._timeouts.connect,
                connector=self._aiohttp.TCPConnector(limit=0),
                read_bufsize=1 << 18,
                headers={"Accept-Encoding": "identity"},
            )
            pool = self._pools[loop] = _SessionPool(session)
            await pool.closer.__anext__()
        return pool

    def _address(self, url: str) -> tuple[Any, str | None]:
        """Return the parsed URL, and the proxy that the environment sets for it."""
        if url not in self._addresses:
            from urllib.request import getproxies, proxy_bypass  # as slow to import as half of this package

            parts = urlsplit(url)
            proxies = getproxies()
            host = parts.hostname or ""
            local = host in ("localhost", "127.0.0.1", "::1") or bool(proxy_bypass(host))
            self._addresses[url] = (self._yarl.URL(url), None if local else proxies.get(parts.scheme))
        return self._addresses[url]


class HttpRequest:
    """One request of an `HttpClient`, as a context manager of its response."""

    __slots__ = ("_body", "_client", "_headers", "_method", "_pool", "_response", "_url", "_watch")

    def __init__(self, client: HttpClient, method: str, url: str, headers: Mapping[str, str], body: bytes) -> None:
        self._client, self._method, self._url = client, method, url
        self._headers, self._body = headers, body

    async def __aenter__(self) -> HttpResponse:
        self._watch = watch = self._client.watch()
        try:
            opened = await self._client.open(watch, self._method, self._url, self._headers, self._body)
        except BaseException:
            watch.stop()
            raise
        self._response, self._pool = opened
        return self._response

    async def __aexit__(self, *_: object) -> None:
        self._watch.stop()
        self._response.release()
        await self._pool.release()


class _SessionPool:
    """A client session, and a generator that the loop finalises at its end to close the session."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.busy = 0
        self.closing = False
        self.closer = self._close_at_end()

    async def release(self) -> None:
        """Count a request that has ended, and close the session after the last one if it is no longer needed."""
        self.busy -= 1
        if self.closing and not self.busy:
            await self.closer.aclose()

    async def _close_at_end(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await self.session.close()


def _out_of_descriptors(error: BaseException) -> bool:
    """Return whether a connection failed because this process, or the system, has no file descriptor left."""
    return getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE) or os.strerror(errno.EMFILE) in str(error)


def _network_error(error: BaseException) -> ProviderError:
    if isinstance(error, asyncio.TimeoutError):
        return ProviderError("connection timed out", "timeout")
    reason = str(error) or type(error).__name__
    return ProviderError(f"connection failed: {reason}", "network", unreachable=hasattr(error, "os_error"))


async def read_error(response: HttpResponse) -> object:
    """Read the body of a failed request, decoded if it is JSON."""
    try:
        body = await response.read_all(_ERROR_BODY)
    except ProviderError:
        return ""
    return read_plain(body)


def read_model_names(body: bytes) -> list[str]:
    """Return the names in a list of models, as OpenAI, Anthropic and Gemini write it; ProviderError if it is none."""
    decoded = read_plain(body)
    fields = cast(dict[str, Any], decoded) if isinstance(decoded, dict) else {}
    entries = fields.get("data", fields.get("models"))
    if not isinstance(entries, list):
        raise ProviderError("the response is not a list of models", "protocol")
    found = [cast(dict[str, Any], entry) for entry in cast(list[Any], entries) if isinstance(entry, dict)]
    names = [entry.get("id", entry.get("name")) for entry in found]
    return [name.removeprefix("models/") for name in names if isinstance(name, str)]


class StreamReader(Protocol):
    """Stream decoder of one vendor. It knows no socket, so it can be tested at every split."""

    event_count: int
    """Number of significant events so far; pings and comments do not count."""
    complete: bool
    """The message has ended; only its usage may follow."""
    closed: bool
    """The vendor announced the end of the stream. A reader may also have `is_reasoning`: events may be far apart."""

    def renew(self) -> "StreamReader":
        """Return a reader of the same kind for the response to the same request, sent again."""
        ...

    def feed(self, piece: bytes) -> list[Chunk]: ...

    def decode_body(self, body: bytes) -> list[Chunk]:
        """Decode a complete response from a server that does not stream."""
        ...

    def finish(self) -> list[Chunk]:
        """Return the tool calls and the final chunk; raises ProviderError if the message is incomplete."""
        ...


async def exchange(
    http: HttpClient,
    url: str,
    headers: Mapping[str, str] | Callable[[], Awaitable[Mapping[str, str]]],
    body: bytes,
    reader: StreamReader,
    keys: Sequence[Secret],
    correct: Callable[[ProviderError], bytes | None] | None = None,
) -> AsyncGenerator[Chunk, None]:
    """Make one request. Raises ProviderError, with the keys redacted from the server's message.

    `headers` may be a function, which is called for each attempt and may add to `keys`. `correct` is called with the
    error of a refused request, even if the error is the first event of a stream; the body that it returns is sent
    instead, until it returns None.
    """
    try:
        while True:
            started = False
            sent = await headers() if callable(headers) else headers
            async with http.request("POST", url, sent, body) as response:
                if response.status != 200:
                    error = await _response_error(response)
                elif response.headers.get("content-type", "").startswith("application/json"):
                    for chunk in _decode_whole(await response.read_all(MAX_RESPONSE), reader):
                        yield chunk
                    return
                else:
                    try:
                        while piece := await _read_next(response, reader):
                            for chunk in reader.feed(piece):
                                started = True
                                yield chunk
                        for chunk in reader.finish():
                            yield chunk
                        return
                    except ProviderError as failure:
                        error = failure
            body, reader = _correct_body(error, keys, None if started else correct), reader.renew()
    except ProviderError as error:
        remove_key(error, *keys)
        raise


def _decode_whole(body: bytes, reader: StreamReader) -> list[Chunk]:
    return reader.decode_body(body) if body.strip() else reader.finish()


def _correct_body(
    error: ProviderError, keys: Sequence[Secret], correct: Callable[[ProviderError], bytes | None] | None
) -> bytes:
    """Return the body to send instead of a refused one; raises the error if there is none."""
    remove_key(error, *keys)  # before it is logged
    corrected = correct(error) if correct else None
    if corrected is None:
        raise error
    return corrected


def remove_key(error: ProviderError, *keys: Secret | None) -> None:
    """Redact keys from a server's message, unless they are too short to be searched for."""
    for key in keys:
        if key and is_distinctive(key.reveal()) and key.reveal() in str(error):
            error.args = (str(error).replace(key.reveal(), "[REDACTED]"),)


async def _read_next(response: HttpResponse, reader: StreamReader) -> bytes:
    """Read the next bytes, or none once the message is complete; a later connection error then does not matter.

    Pings alone do not restart the idle timeout.
    """
    if reader.event_count != response.event_count:
        response.event_count = reader.event_count
        response.watch.touch(getattr(reader, "is_reasoning", False))
    if response.rest or not reader.complete:
        return await response.read_slice()
    if reader.closed and response.ended:
        return b""
    response.watch.allow(_EOF_TIMEOUT if reader.closed else _USAGE_TIMEOUT)
    try:
        return await response.read()
    except ProviderError:
        return b""


async def _response_error(response: HttpResponse) -> ProviderError:
    if 300 <= response.status < 400:
        target = clean(response.headers.get("location", "another address"))
        return ProviderError(
            f"HTTP {response.status}: redirected to {target}; set that address as base_url", "bad_request"
        )
    if response.status < 300:
        return ProviderError(f"expected HTTP 200, got HTTP {response.status}", "protocol")
    return classify_response(response.status, await read_error(response), response.headers)


class RequestHeaders(dict[str, str]):
    """Headers that carry a key: printing, logging or formatting them shows only their names."""

    def __repr__(self) -> str:
        return f"RequestHeaders({', '.join(self)})"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("headers with a key cannot be copied or pickled")


def header_value(key: Secret, vendor: str) -> str:
    """Return the key as a header value; a line break in it would inject another header."""
    if not _is_header_value(key.reveal().strip()):
        raise MissingKey(f"the API key for {vendor} is blank or contains invalid characters; paste it again")
    return key.reveal().strip()


def _is_header_value(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable()


def _as_secret(key: str | None) -> Secret | None:
    return Secret(key) if key else None


def _add_headers(headers: Mapping[str, str], more: Mapping[str, str]) -> RequestHeaders:
    """Return headers with others in place of those of the same name."""
    if not more:
        return RequestHeaders(headers)
    found = {name.lower(): value for name, value in headers.items()}
    added = {
        name: f"{found[name.lower()]},{value}" if name.lower() in _JOINED_HEADERS and name.lower() in found else value
        for name, value in more.items()
    }
    replaced = {name.lower() for name in more}
    return RequestHeaders({**{name: each for name, each in headers.items() if name.lower() not in replaced}, **added})


def _merge_fields(fields: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON fields with others in their place; objects are merged."""
    merged = dict(fields)
    for name, value in more.items():
        found = merged.get(name)
        if isinstance(found, msgspec.Raw) and isinstance(value, dict):
            found = msgspec.json.decode(found)
        if isinstance(found, dict) and isinstance(value, dict):
            merged[name] = _merge_fields(cast(dict[str, Any], found), cast(dict[str, Any], value))
        else:
            merged[name] = value
    return merged


def merge_body(body: bytes, more: Mapping[str, Any], without: str = "") -> bytes:
    """Return an encoded request with other fields in place of its own; objects are merged."""
    if not more and not without:
        return body
    fields: dict[str, Any] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    fields.pop(without, None)
    return encode_json(_merge_fields(fields, more))


def _check_address(address: str) -> None:
    if found := _BEDROCK_INVOKE.match(address):
        raise ConfigError(
            f"base_url {address!r}: the stream format of Bedrock's invoke API is not supported; "
            f"use https://bedrock-mantle.{found[1]}.api.aws/anthropic"
        )


MAX_MODELS_BODY = 4 << 20
"""Maximum size in bytes of a list of models."""


class HttpProvider(BaseProvider):
    """Base of the providers that talk to a vendor's API: address, key and connections.

    Args:
        model: Name of the model; required unless each request names one or the provider finds one.
        base_url: Address of the API; by default the vendor's `…_BASE_URL` variable, then its own address. One with
            `{model}` in it is the whole address of a request, and the body does not name the model.
        api_key: Key, or a function that returns the current one; by default the vendor's `…_API_KEY` variable. Your own
            server may need none.
        timeouts: Timeouts of a request.
        clock: Source of time.
        environment: Settings to read instead of the process environment and `.env`.
        id: Name of the provider in references, errors and usage; by default the vendor's.
        profile: Name of the model whose rules apply, where `model` is a name of your own, such as a deployment.
        key_header: Header that carries the key, if it is not the vendor's; `"Authorization"` sends a bearer token.
    """

    vendor: ClassVar[str]
    official_url: ClassVar[str]
    api_path: ClassVar[str] = ""
    """Path that requests add to the base URL, and that users may have added as well."""
    list_query: ClassVar[str] = ""
    """Query of the request for the list of models, so that it is complete."""
    list_headers: ClassVar[Mapping[str, str]] = {}
    path_model_fields: ClassVar[Mapping[str, Any]] = {}
    """Fields of the body where the address names the model."""

    def __init__(
        self,
        model: str | None = None,
        *,
        base_url: str | None = None,
        api_key: str | KeyFunction | None = None,
        timeouts: Timeouts | None = None,
        clock: Clock = SYSTEM_CLOCK,
        environment: Environment | None = None,
        id: str | None = None,
        profile: str | None = None,
        key_header: str | None = None,
    ) -> None:
        settings, prefix = environment or Environment(), self.vendor.upper()
        self.id = id or self.vendor.lower()
        self.model = model
        self.profile = profile
        address = base_url or settings.get(f"{prefix}_BASE_URL") or self.official_url
        self.base_url = address.rstrip("/").removesuffix(self.api_path)
        _check_address(self.base_url)
        self._key_header = key_header
        self._fetch_key = api_key if callable(api_key) else None
        fixed = None if callable(api_key) else api_key or self._read_key(settings)
        self.key = _as_secret(fixed)
        """The fixed key."""
        del api_key, fixed  # local variables may be logged with a traceback
        if not self.key and self._fetch_key is None and self.is_official:
            raise MissingKey(
                f"{self.vendor} API key missing: set {' or '.join(self._key_variables)} "
                "(in the environment or in .env) or pass api_key="
            )
        self._http = HttpClient(timeouts, clock)
        self._adaptation = Adaptation()
        self._headers()  # checks the key

    @property
    def _key_variables(self) -> tuple[str, ...]:
        """The variables that may hold the key, the first one that is set counts."""
        return (f"{self.vendor.upper()}_API_KEY",)

    def _read_key(self, settings: Environment) -> str | None:
        """Return the key that the environment sets."""
        return next((key for name in self._key_variables if (key := settings.secret(name))), None)

    def _headers(self, **others: str) -> RequestHeaders:
        """Return the headers of a request. They are not kept, because they carry the key."""
        headers = RequestHeaders({"Content-Type": "application/json", "Accept": "text/event-stream", **others})
        if self.key:
            headers.update(self._key_headers(header_value(self.key, self.vendor)))
        return headers

    async def _current_headers(self, **others: str) -> RequestHeaders:
        """Return the headers of a request with the current key."""
        headers = self._headers(**others)
        if self._fetch_key is not None:
            headers.update(self._key_headers((await self._fetch_current(self._fetch_key)).reveal()))
        return headers

    async def _fetch_current(self, fetch: KeyFunction) -> Secret:
        """Return the key that the function `api_key` returns; raises ProviderError if it is none."""
        try:
            async with asyncio.timeout(_KEY_TIMEOUT):
                found: object = await invoke(fetch)
        except ProviderError:
            raise
        except TimeoutError:
            raise ProviderError(f"api_key of {self.id}: no key after {_KEY_TIMEOUT:g} s", "timeout") from None
        except OSError as error:
            raise ProviderError(f"api_key of {self.id}: {type(error).__name__}: {error}", "network") from error
        except Exception as error:  # user code may raise anything
            kind = "network" if getattr(error, "retryable", False) else "auth"  # Google's library marks such errors
            raise ProviderError(f"api_key of {self.id}: {type(error).__name__}: {error}", kind) from error
        if not isinstance(found, str) or not _is_header_value(found.strip()):
            what = f"a {type(found).__name__}" if not isinstance(found, str) else "a blank or unprintable text"
            del found  # local variables may be logged with a traceback
            raise ProviderError(f"api_key of {self.id}: expected the function to return a key, got {what}", "auth")
        return Secret(found.strip())

    @property
    def rotates_key(self) -> bool:
        """Whether a function returns the key."""
        return self._fetch_key is not None

    def _key_headers(self, key: str) -> dict[str, str]:
        if self._key_header is None:
            return self._authorize(key)
        return {self._key_header: f"Bearer {key}" if self._key_header.lower() == "authorization" else key}

    def _authorize(self, key: str) -> dict[str, str]:
        """Return the header that carries the key."""
        return {"Authorization": f"Bearer {key}"}

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(structured=True)

    @property
    def is_official(self) -> bool:
        """Return whether requests go to the vendor itself."""
        return self.base_url == self.official_url

    def find_profile(self, model: str) -> ModelProfile:
        """Return the rules of a model of this provider."""
        return find_profile(self.profile or model)

    async def list_models(self) -> list[str]:
        """Return the names of the models that this key can use; raises ProviderError."""
        headers = await self._current_headers(**self.list_headers)
        url = f"{self.base_url}{self.api_path}/models{self.list_query}"
        async with self._http.request("GET", url, headers, b"") as response:
            if response.status != 200:
                raise classify_response(response.status, await read_error(response), response.headers)
            return read_model_names(await response.read_all(MAX_MODELS_BODY))

    def _output_dialect(self, profile: ModelProfile) -> Dialect:
        """Return the rules for output schemas; see `providers/schemas.py`."""
        return "plain"

    def _exchange(
        self,
        url: str,
        headers: Mapping[str, str],
        request: Request,
        model: str,
        encode: Callable[[Request], bytes],
        reader: StreamReader,
    ) -> AsyncGenerator[Chunk, None]:
        """Send a request as far as the model accepts it; refused parts are dropped and the rest is sent again."""
        profile = self.find_profile(model)
        extra = RequestHeaders(request.settings.extra_headers)
        keys = [*([self.key] if self.key else ()), *[Secret(value) for value in extra.values()]]
        check_prefix(request, f"{self.id}/{model}")
        adapted = _AdaptedRequest(self, request, model, profile, self._output_dialect(profile), encode)
        if "{model}" in self.base_url:
            url = self.base_url.replace("{model}", quote(model, safe="@"))
        signed: Mapping[str, str] | Callable[[], Awaitable[Mapping[str, str]]] = headers
        if self._fetch_key is not None:
            signed = partial(self._sign, self._fetch_key, headers, extra, keys)
        elif extra:
            signed = _add_headers(headers, extra)
        return exchange(self._http, url, signed, adapted.build(), reader, keys, adapted.correct)

    async def _sign(
        self, fetch: KeyFunction, headers: Mapping[str, str], extra: RequestHeaders, keys: list[Secret]
    ) -> Mapping[str, str]:
        """Return the headers of an attempt with the current key, which is added to `keys`."""
        key = await self._fetch_current(fetch)
        keys.append(key)
        return _add_headers(_add_headers(headers, self._key_headers(key.reveal())), extra)

    def adapt(self, request: Request, model: str, profile: ModelProfile, dialect: Dialect) -> Request:
        """Internal: return a request without the parts that the model is known to refuse."""
        return self._adaptation.adapt(request, model, profile, dialect)

    def learn(self, error: ProviderError, sent: Request, model: str) -> bool:
        """Internal: return whether a refused request may be accepted without the part that the error names."""
        return self._adaptation.learn(error, sent, model)

    def finish_body(self, body: bytes, request: Request) -> bytes:
        """Internal: add the fields of `extra_body`, and leave out the model if the address names it."""
        extra = request.settings.extra_body
        if "{model}" not in self.base_url:
            return merge_body(body, extra)
        return merge_body(body, {**self.path_model_fields, **extra}, without="model")

    def share_refusals(self, other: "HttpProvider") -> None:
        """Share the record of refusals with another provider of the same API."""
        self._adaptation = other._adaptation

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    def __repr__(self) -> str:
        address = re.sub(r"//[^/]*@", "//", self.base_url)
        address = re.sub(r"([?&][^=&]+=)[^&]+", r"\1…", address)
        return f"{type(self).__name__}({self.model!r}, base_url={address!r})"


class _AdaptedRequest:
    """A request to a model, encoded again after each refusal without the refused part."""

    __slots__ = ("_dialect", "_encode", "_model", "_profile", "_provider", "_renewed", "_request", "_sent")

    def __init__(
        self,
        provider: HttpProvider,
        request: Request,
        model: str,
        profile: ModelProfile,
        dialect: Dialect,
        encode: Callable[[Request], bytes],
    ) -> None:
        self._provider, self._model, self._profile = provider, model, profile
        self._dialect: Dialect = dialect
        self._encode = encode
        self._request = self._sent = request
        self._renewed = False

    def build(self) -> bytes:
        """Encode the request as far as the model is known to accept it."""
        self._sent = self._provider.adapt(self._request, self._model, self._profile, self._dialect)
        return self._provider.finish_body(self._encode(self._sent), self._request)

    def correct(self, error: ProviderError) -> bytes | None:
        """Return the body to send after the request was refused; None if it cannot be corrected."""
        if error.status == 401 and self._provider.rotates_key and not self._renewed:
            self._renewed = True
        elif REASONING not in self._request.without and refuses_reasoning(error):
            self._request = msgspec.structs.replace(self._request, without=self._request.without | {REASONING})
        elif not self._provider.learn(error, self._sent, self._model):
            return None
        return self.build()
