"""Base of the strict vendor doubles: an HTTP server on a free port, its request log, and a script of answers.

A double enforces its vendor's documented rules. `check` raises `Refusal` for a request that the vendor would refuse;
the client gets it in the vendor's error format, and the test finds it in `double.refusals`. An accepted request gets
the next answer of the script, in the vendor's stream format or as a whole body.

    async with AnthropicDouble(Answer(calls=(("weather", {"city": "Paris"}),)), Answer("Sunny.")) as vendor:
        provider = AnthropicProvider("claude-opus-5-5", base_url=vendor.url, api_key=KEY)
"""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn, Self, TypeAlias, cast

from aiohttp import web

KEY = "sk-canary-0123456789"
_HANG_TIMEOUT = 60.0
_MAX_BODY = 64 << 20


class Refusal(Exception):
    """A request that the vendor refuses. `type`, `code` and `param` are fields of its error, where it has them."""

    def __init__(
        self, message: str, *, status: int = 400, type: str = "", code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.type, self.code, self.param = message, status, type, code, param


def refuse(message: str, **fields: Any) -> NoReturn:
    """Raise a refusal."""
    raise Refusal(message, **fields)


def require(condition: object, message: str, **fields: Any) -> None:
    """Raise a refusal unless the condition holds."""
    if not condition:
        raise Refusal(message, **fields)


def check_fields(value: Mapping[str, Any], known: Iterable[str], where: str = "") -> None:
    """Refuse a field that is not known, as the vendors do: `tools.0.foo: Extra inputs are not permitted`."""
    for name in value:
        if name not in known:
            path = f"{where}.{name}" if where else name
            raise Refusal(f"{path}: Extra inputs are not permitted", param=path)


@dataclass(frozen=True)
class VendorRequest:
    """One request as received."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    """With names in lower case."""
    raw: bytes
    disconnected: asyncio.Event = field(default_factory=asyncio.Event, compare=False)
    """Set when the client closes the connection before the answer is complete."""

    @property
    def body(self) -> dict[str, Any]:
        return cast(dict[str, Any], json.loads(self.raw))


@dataclass(frozen=True)
class Answer:
    """A model's answer, the same for every vendor; each double encodes it in its own format."""

    text: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    """(name, arguments) of each tool call; the double makes the ids."""
    thinking: tuple[str, ...] = ()
    """Reasoning before the answer; the double signs or encrypts each piece and expects it back."""
    stop: str = ""
    """The vendor's stop reason, if it is not the usual one of such an answer."""
    usage: dict[str, Any] | None = None
    """The vendor's usage fields, if not those that the double counts."""
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    """Vendor-specific details, as the double documents them."""
    events: tuple[bytes, ...] = ()
    """Exact events to send instead of all of the above."""
    hangs: bool = False
    """Send the beginning of the stream, then nothing until the client disconnects."""


Script: TypeAlias = Answer | Refusal | Callable[[VendorRequest], Answer | Refusal]
"""What an accepted request gets: an answer, an error, or a function that chooses."""


class VendorDouble(ABC):
    """A vendor's API on loopback. `async with Double(answer, …) as vendor`: `vendor.url` is its address.

    `then` is the answer to every further request; without one they get HTTP 500.
    """

    def __init__(self, *answers: Script, then: Script | None = None) -> None:
        self.requests: list[VendorRequest] = []
        """Every request, including refused ones."""
        self.refusals: list[Refusal] = []
        """Every refused request's reason, not those that the script asked for."""
        self.url = ""
        self._answers = list(answers)
        self._then = then
        self._runner: web.AppRunner | None = None

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """The body of every request."""
        return [request.body for request in self.requests]

    @property
    def address(self) -> str:
        """The base URL for a client of this API."""
        return self.url

    def add(self, *answers: Script) -> None:
        """Add answers to the end of the script."""
        self._answers += answers

    @abstractmethod
    def check(self, request: VendorRequest) -> None:
        """Raise `Refusal` if the vendor would refuse the request."""

    @staticmethod
    @abstractmethod
    def find_schema(body: dict[str, Any]) -> dict[str, Any] | None:
        """Return the output schema of a request; None if it has none."""

    @staticmethod
    @abstractmethod
    def find_system(body: dict[str, Any]) -> str:
        """Return the system prompt of a request."""

    @abstractmethod
    def encode_error(self, refusal: Refusal) -> dict[str, Any]:
        """Encode an error as the vendor does."""

    @abstractmethod
    def encode_stream(self, request: VendorRequest, answer: Answer) -> list[bytes]:
        """Encode an answer as the events of a stream, each in bytes."""

    def encode_body(self, request: VendorRequest, answer: Answer) -> dict[str, Any] | None:
        """Encode an answer to a request that does not stream; None if this request streams."""
        return None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=_MAX_BODY)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _handle(self, received: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in received.headers.items()}
        raw = await received.read()
        request = VendorRequest(received.method, received.path, dict(received.query), headers, raw)
        self.requests.append(request)
        try:
            self.check(request)
        except Refusal as refusal:
            self.refusals.append(refusal)
            return self._error(refusal)
        answer = self._next_answer(request)
        if isinstance(answer, Refusal):
            return self._error(answer)
        if (body := self.encode_body(request, answer)) is not None:
            return web.json_response(body)
        return await self._stream(received, request, answer)

    def _next_answer(self, request: VendorRequest) -> Answer | Refusal:
        script = self._answers.pop(0) if self._answers else self._then
        if script is None:
            return Refusal("the double has no answer left for this request", status=500)
        return script if isinstance(script, Answer | Refusal) else script(request)

    def _error(self, refusal: Refusal) -> web.Response:
        return web.json_response(self.encode_error(refusal), status=refusal.status)

    async def _stream(self, received: web.Request, request: VendorRequest, answer: Answer) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        events = list(answer.events) or self.encode_stream(request, answer)
        try:
            await response.prepare(received)
            for event in events[: len(events) // 2] if answer.hangs else events:
                await response.write(event)
            if answer.hangs:
                async with asyncio.timeout(_HANG_TIMEOUT):
                    await asyncio.Event().wait()
            await response.write_eof()
        except (ConnectionError, TimeoutError, asyncio.CancelledError):
            request.disconnected.set()
            with suppress(ConnectionError):
                await response.write_eof()
        return response


def sse(value: object, event: str = "") -> bytes:
    """Encode one server-sent event."""
    data = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return (f"event: {event}\n" if event else "").encode() + f"data: {data}\n\n".encode()


def split(text: str, size: int = 5) -> list[str]:
    """Split a text into pieces, as a stream does."""
    return [text[start : start + size] for start in range(0, len(text), size)] or [""]


def count_tokens(value: object) -> int:
    """Count tokens for the usage: one for every four characters of the JSON."""
    return (len(json.dumps(value, separators=(",", ":"), ensure_ascii=False)) + 3) // 4


def common_prefix(one: str, other: str) -> int:
    """Count the characters that two texts begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


def content_parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of a message in the format of chat completions; none if its content is a text."""
    content = message.get("content")
    return cast(list[dict[str, Any]], content) if isinstance(content, list) else []
