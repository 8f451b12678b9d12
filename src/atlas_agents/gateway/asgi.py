"""ASGI application: authentication, health, metrics, protocol documents and the web UI."""

import asyncio
import logging
import mimetypes
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, TypeAlias

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from atlas_agents.core.errors import StoreError
from atlas_agents.gateway import auth
from atlas_agents.gateway.auth import Authenticator, Grant
from atlas_agents.gateway.connection import ClientConnection, Receive
from atlas_agents.gateway.http_errors import HTTPError
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.protocol.documents import asyncapi, json_schema
from atlas_agents.gateway.settings import LOOPBACK
from atlas_agents.gateway.telemetry import Metrics, shown
from atlas_agents.gateway.websocket import KEY

logger = logging.getLogger(__name__)
Scope: TypeAlias = Any
Send: TypeAlias = Callable[[Any], Awaitable[None]]
Http: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
SOCKETS = ("/", "/ws")
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}
HEADERS: list[tuple[bytes, bytes]] = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        b"font-src 'self'; connect-src 'self'; manifest-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
        b"form-action 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]


class App:
    """ASGI entry point: checks origin and token, then passes WebSockets to the hub and HTTP requests to the routes.

    Without a hub, WebSockets are refused.
    """

    def __init__(self, porch: Authenticator, metrics: Metrics, http: Http, hub: Hub | None = None) -> None:
        self._porch = porch
        self._metrics = metrics
        self._http = http
        self._hub = hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._porch.guard.refusal(scope)
        if refusal is not None:
            await self._refuse(scope, send, *refusal)
        elif scope["type"] == "websocket":
            await self._socket(scope, receive, send)
        elif scope["type"] == "http":
            await self._page(scope, receive, send)

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        hub = self._hub
        if hub is None or scope["path"] not in SOCKETS:
            await self._refuse(scope, send, 404, "this endpoint does not accept WebSockets")
            return
        if hub.stopping:
            await self._refuse(scope, send, 503, "the gateway is shutting down")
            return
        if not await self._recognise(scope, send):
            return
        await receive()  # websocket.connect
        await send({"type": "websocket.accept"})
        await ClientConnection(hub, scope["extensions"][KEY], _address(scope)).serve(receive)

    async def _page(self, scope: Scope, receive: Receive, send: Send) -> None:
        guest = self._porch.guard.guest(scope)
        if auth.is_preflight(scope):
            await self._preflight(scope, send, guest)
            return
        if not await self._recognise(scope, send):
            return
        more = [*auth.headers_for(guest, scope), *HEADERS]

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                said = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(each for each in more if each[0] not in said)]
            await send(message)

        await self._http(scope, receive, send_with_headers)

    async def _preflight(self, scope: Scope, send: Send, guest: str | None) -> None:
        headers = auth.preflight_headers(guest, scope) if guest else []
        if not headers:
            await self._refuse(scope, send, 403, "cross-origin requests are not allowed for this path")
            return
        await send({"type": "http.response.start", "status": 204, "headers": [*headers, *HEADERS]})
        await send({"type": "http.response.body", "body": b""})

    async def _recognise(self, scope: Scope, send: Send) -> bool:
        """Authenticate the bearer token in the headers, if there is one. Return False after refusing an invalid one."""
        header = dict(scope["headers"]).get(b"authorization")
        scope.setdefault("state", {})["grant"] = None
        if header is None:
            return True
        wait, scope["state"]["grant"] = self._porch.admit(_address(scope), _bearer(header))
        if scope["state"]["grant"] is None:
            code, words = (429, "too many invalid tokens") if wait else (401, "invalid token")
            await self._refuse(scope, send, code, words, retry_after=wait)
        return scope["state"]["grant"] is not None

    async def _refuse(self, scope: Scope, send: Send, code: int, words: str, *, retry_after: float = 0.0) -> None:
        self._metrics.refused.labels(words).inc()
        told = dict(scope["headers"])
        fields = {name: shown(told.get(name.encode())) for name in ("host", "origin", "user-agent")}
        fields |= {"address": _address(scope), "path": shown(scope["path"].encode("utf-8", "replace"))}
        logger.warning("request refused: status=%d reason=%s", code, words, extra={"fields": fields})
        content_type, body = _words(scope, code, words)
        headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
        headers += HEADERS
        if scope["type"] == "http":
            headers += auth.headers_for(self._porch.guard.guest(scope), scope)
        if code == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if retry_after:
            headers.append((b"retry-after", b"%d" % max(1, round(retry_after))))
        kind = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
        await send({"type": f"{kind}.start", "status": code, "headers": headers})
        await send({"type": f"{kind}.body", "body": body})


def _words(scope: Scope, code: int, words: str) -> tuple[bytes, bytes]:
    """Return the content type and the body of an error: JSON for API paths, plain text otherwise."""
    if scope["path"].startswith(auth.PATHS):
        return b"application/json", HTTPError(code, _CODES.get(code, "refused"), words).body
    return b"text/plain; charset=utf-8", f"{words}\n".encode()


def _address(scope: Scope) -> str:
    return scope["client"][0] if scope["client"] else ""


def _bearer(header: bytes) -> str:
    kind, _, token = header.decode("latin-1").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


Found: TypeAlias = dict[str, "Asset"]
_FOLDER = "page"
_INDEX = "/index.html"
_HASHED = "/assets/"
_FOREVER = "public, max-age=31536000, immutable"
_PACKED = {"br": ".br", "gzip": ".gz"}
_APART = ("/v1/", "/ag-ui/", "/mcp")
"""API paths: an unknown path below them returns 404 instead of the web UI."""


class Asset(msgspec.Struct, frozen=True):
    """One static file, with its compressed form."""

    kind: str
    plain: bytes
    packed: dict[str, bytes]


class BuiltPage:
    """The built files of the web UI, read into memory. Empty if there is no `index.html`."""

    def __init__(self, folder: Traversable | None = None) -> None:
        folder = folder or files("atlas_agents.gateway").joinpath(_FOLDER)
        self._assets = _read(folder) if folder.is_dir() else {}

    def __bool__(self) -> bool:
        return _INDEX in self._assets

    async def answer(self, request: Request) -> Response:
        """Return the static file at the path, or `index.html` for the routes of the web UI."""
        path = request.url.path
        asset = self._assets.get(path)
        if asset is None:
            wants_page = path == "/" or "text/html" in request.headers.get("accept", "")
            if path.startswith((_HASHED, *_APART)) or not wants_page:
                return PlainTextResponse("not found\n", 404)
            asset, path = self._assets[_INDEX], _INDEX
        headers = {"Cache-Control": _FOREVER if path.startswith(_HASHED) else "no-cache", "Vary": "Accept-Encoding"}
        taken = {each.split(";")[0].strip() for each in request.headers.get("accept-encoding", "").split(",")}
        for encoding, body in asset.packed.items():
            if encoding in taken:
                return Response(body, media_type=asset.kind, headers={**headers, "Content-Encoding": encoding})
        return Response(asset.plain, media_type=asset.kind, headers=headers)


def _read(folder: Traversable, path: str = "") -> Found:
    found: Found = {}
    here = {each.name: each for each in folder.iterdir()}
    for name, each in here.items():
        if each.is_dir():
            found |= _read(each, f"{path}/{name}")
        elif not name.endswith(tuple(_PACKED.values())) and not name.startswith("."):
            packed = {form: here[name + end].read_bytes() for form, end in _PACKED.items() if name + end in here}
            found[f"{path}/{name}"] = Asset(_kind(name), each.read_bytes(), packed)
    return found


def _kind(name: str) -> str:
    """Return the media type. The system's table is not used: browsers refuse scripts with a wrong type."""
    if name.endswith(".js"):
        return "text/javascript"
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


_WITHIN = 2.0


class Readiness:
    """Readiness check: the process has started, is not shutting down, and can read its store."""

    def __init__(self, look: Callable[[], Awaitable[object]]) -> None:
        self._look = look
        self.started = False
        self.stopping = False

    async def problem(self) -> str | None:
        """Return why the process is not ready, or None if it is."""
        if self.stopping:
            return "draining"
        if not self.started:
            return "starting"
        try:
            async with asyncio.timeout(_WITHIN):
                await self._look()
        except (StoreError, TimeoutError):
            return "the store is unavailable"
        return None


_encoder = msgspec.json.Encoder()


class Json(Response):
    """JSON response, encoded with msgspec."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return _encoder.encode(content)


def grant_of(request: Request) -> Grant | None:
    """Return the grant of the request's token, or None if it has none. Invalid tokens are refused earlier."""
    return request.scope["state"]["grant"]


def vital_routes(
    readiness: Readiness, metrics: Metrics, uptime: Callable[[], float], *, exposed: bool
) -> list[BaseRoute]:
    """Return the routes for health, readiness and metrics. If `exposed`, metrics require a token."""

    async def health(_: Request) -> Response:
        return Json({"status": "ok", "uptime": uptime()})

    async def ready(_: Request) -> Response:
        problem = await readiness.problem()
        return Json({"status": "ok"}) if problem is None else Json({"status": problem}, 503)

    async def counted(request: Request) -> Response:
        near = request.client is not None and request.client.host in LOOPBACK
        grant = grant_of(request)
        if not (near and not exposed) and (grant is None or not grant.may("read")):
            return PlainTextResponse("authentication required\n", 401, {"WWW-Authenticate": "Bearer"})
        text, kind = metrics.text()
        return Response(text, headers={"Content-Type": kind})

    return [
        Route("/health", health),
        Route("/healthz", health),
        Route("/readyz", ready),
        Route("/metrics", counted),
    ]


def site(hub: Hub, readiness: Readiness, more: Sequence[BaseRoute] = ()) -> Starlette:
    """Build the HTTP application from the built-in routes and the `more` routes of other APIs."""
    folder = files("atlas_agents.gateway")
    built = BuiltPage()
    page, script = [folder.joinpath(name).read_text(encoding="utf-8") for name in ("welcome.html", "welcome.js")]

    async def described(request: Request) -> Response:
        return Json(asyncapi() if request.url.path == "/asyncapi.json" else json_schema())

    async def welcome(_: Request) -> Response:
        return HTMLResponse(page)

    async def welcome_script(_: Request) -> Response:
        return Response(script, media_type="text/javascript")

    routes: list[BaseRoute] = [
        *vital_routes(readiness, hub.metrics, lambda: hub.uptime, exposed=hub.settings.exposed),
        Route("/asyncapi.json", described),
        Route("/protocol.json", described),
    ]
    if built:
        routes.append(Route("/{path:path}", built.answer))
    else:
        routes += [Route("/", welcome), Route("/welcome.js", welcome_script)]
    return Starlette(routes=[*more, *routes])
