"""ASGI application: authentication, health, metrics, the web UI, protocol documents and the OpenAPI document."""

import asyncio
import inspect
import logging
import math
import mimetypes
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, TypeAlias

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from atlas_agents.core import package_version
from atlas_agents.core.errors import StoreError, StoreFull
from atlas_agents.gateway import auth
from atlas_agents.gateway.auth import Authenticator, Grant
from atlas_agents.gateway.connection import ClientConnection, Receive
from atlas_agents.gateway.devices import cookie_name, read_cookie
from atlas_agents.gateway.http_errors import ErrorResponse, HTTPError
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.protocol.documents import asyncapi, json_schema
from atlas_agents.gateway.settings import LOOPBACK
from atlas_agents.gateway.telemetry import Metrics, printable
from atlas_agents.gateway.websocket import TRANSPORT_KEY

logger = logging.getLogger(__name__)
Scope: TypeAlias = Any
Send: TypeAlias = Callable[[Any], Awaitable[None]]
HttpApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
WEBSOCKET_PATHS = ("/", "/ws")
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}
HEADERS: list[tuple[bytes, bytes]] = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        b"font-src 'self'; connect-src 'self'; frame-src 'self'; manifest-src 'self'; frame-ancestors 'none'; "
        b"base-uri 'none'; form-action 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]
ARTIFACT_HEADERS = {
    "Content-Security-Policy": "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:; font-src data:; media-src data: blob:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'; require-trusted-types-for 'script'; trusted-types default",
    "Connection-Allowlist": "()",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=(), display-capture=()",
    "X-DNS-Prefetch-Control": "off",
    "X-Frame-Options": "SAMEORIGIN",
}
"""Headers of the document that runs HTML written by a model: an origin of its own, and no connections."""
Assets: TypeAlias = dict[str, "Asset"]
_UI_FOLDER = "page"
_INDEX = "/index.html"
_HASHED = "/assets/"
_IMMUTABLE = "public, max-age=31536000, immutable"
_COMPRESSED = {"br": ".br", "gzip": ".gz"}
_PAGE_API = "/api/"
"""Prefix of the paths that accept the cookie of a signed-in browser."""
_API_PATHS = (_PAGE_API, "/v1/", "/ag-ui/", "/mcp")
"""API paths: an unknown path below them returns 404 instead of the web UI."""
_HEALTH_PATHS = ("/health", "/healthz", "/readyz", "/metrics")
"""Paths that are served while the gateway starts."""
CHECK_INTERVAL = 1.0
"""Seconds for which the result of a readiness check is used."""
_CHECK_TIMEOUT = 2.0
_encoder = msgspec.json.Encoder()


class App:
    """ASGI entry point: checks origin and token, then passes WebSockets to the hub and HTTP requests to the routes.

    Without a hub, WebSockets are refused. Until `started` is set, only health endpoints are served and other requests
    wait: a client that reconnects before open runs are resumed and registered would miss their events.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        metrics: Metrics,
        http: HttpApp,
        hub: Hub | None = None,
        started: asyncio.Event | None = None,
    ) -> None:
        self._authenticator = authenticator
        self._metrics = metrics
        self._http = http
        self._hub = hub
        self._started = started

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._started is not None and scope["path"] not in _HEALTH_PATHS:
            await self._started.wait()
        scope["client"] = (self._authenticator.proxies.client_address(scope), 0)
        refusal = self._authenticator.origin_policy.refusal(scope)
        if refusal is not None:
            await self._refuse(scope, send, *refusal)
        elif scope["type"] == "websocket":
            await self._serve_websocket(scope, receive, send)
        elif scope["type"] == "http":
            await self._serve_http(scope, receive, send)

    async def _serve_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        hub = self._hub
        if hub is None or scope["path"] not in WEBSOCKET_PATHS:
            await self._refuse(scope, send, 404, "this endpoint does not accept WebSockets")
            return
        if hub.stopping:
            await self._refuse(scope, send, 503, "the gateway is shutting down")
            return
        if not await self._authenticate(scope, send):
            return
        await receive()  # websocket.connect
        await send({"type": "websocket.accept"})
        connection = ClientConnection(hub, scope["extensions"][TRANSPORT_KEY], _address(scope))
        if scope["state"]["device"]:
            connection.grant, connection.device = scope["state"]["grant"], scope["state"]["device"]
        await connection.serve(receive)

    async def _serve_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        allowed_origin = self._authenticator.origin_policy.allowed_origin(scope)
        if auth.is_preflight(scope):
            await self._preflight(scope, send, allowed_origin)
            return
        if not await self._authenticate(scope, send):
            return
        more = [*auth.cors_headers(allowed_origin, scope), *HEADERS]

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(each for each in more if each[0] not in present)]
            await send(message)

        await self._http(scope, receive, send_with_headers)

    async def _preflight(self, scope: Scope, send: Send, allowed_origin: str | None) -> None:
        headers = auth.preflight_headers(allowed_origin, scope) if allowed_origin else []
        if not headers:
            await self._refuse(scope, send, 403, "cross-origin requests are not allowed for this path")
            return
        await send({"type": "http.response.start", "status": 204, "headers": [*headers, *HEADERS]})
        await send({"type": "http.response.body", "body": b""})

    async def _authenticate(self, scope: Scope, send: Send) -> bool:
        """Authenticate the bearer token in the headers, if there is one. Return False after refusing an invalid one.

        Without a bearer token, the cookie of a signed-in browser counts, if it is valid.
        """
        header = dict(scope["headers"]).get(b"authorization")
        scope.setdefault("state", {}).update(grant=None, device="")
        if header is None:
            await self._authenticate_cookie(scope)
            return True
        token = _bearer(header)
        wait, scope["state"]["grant"] = self._authenticator.authenticate(_address(scope), token, scope["path"])
        if scope["state"]["grant"] is None:
            code, message = (429, "too many invalid tokens") if wait else (401, "invalid token")
            await self._refuse(scope, send, code, message, retry_after=wait)
        return scope["state"]["grant"] is not None

    async def _authenticate_cookie(self, scope: Scope) -> None:
        """Use the cookie of a signed-in browser for WebSockets and the page's own API, never for the public APIs."""
        accepted: bool = scope["type"] == "websocket" or scope["path"].startswith(_PAGE_API)
        cookie = read_cookie(scope) if accepted and self._hub is not None else ""
        if not cookie or self._hub is None or not self._authenticator.origin_policy.is_own_page(scope):
            return
        found = await self._hub.devices.find(cookie)
        if found is not None:
            device, grant = found
            scope["state"].update(grant=grant, device=device.id)

    async def _refuse(self, scope: Scope, send: Send, code: int, message: str, *, retry_after: float = 0.0) -> None:
        self._metrics.refused.labels(message).inc()
        request_headers = dict(scope["headers"])
        fields = {name: printable(request_headers.get(name.encode())) for name in ("host", "origin", "user-agent")}
        fields |= {"address": _address(scope), "path": printable(scope["path"].encode("utf-8", "replace"))}
        logger.warning("request refused: status=%d reason=%s", code, message, extra={"fields": fields})
        content_type, body = _encode_error(scope, code, message)
        headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
        headers += HEADERS
        if scope["type"] == "http":
            headers += auth.cors_headers(self._authenticator.origin_policy.allowed_origin(scope), scope)
        if code == 401:
            headers.append((b"www-authenticate", auth.bearer_challenge(scope).encode("latin-1")))
        if retry_after:
            headers.append((b"retry-after", b"%d" % max(1, round(retry_after))))
        kind = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
        await send({"type": f"{kind}.start", "status": code, "headers": headers})
        await send({"type": f"{kind}.body", "body": body})


def _encode_error(scope: Scope, code: int, message: str) -> tuple[bytes, bytes]:
    """Return the content type and the body of an error: JSON for API paths, plain text otherwise."""
    if scope["path"].startswith(auth.CORS_PATHS):
        return b"application/json", HTTPError(code, _CODES.get(code, "refused"), message).body
    return b"text/plain; charset=utf-8", f"{message}\n".encode()


def _address(scope: Scope) -> str:
    return scope["client"][0]


def _bearer(header: bytes) -> str:
    kind, _, token = header.decode("latin-1").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


class Asset(msgspec.Struct, frozen=True):
    """One static file, with its compressed form."""

    kind: str
    plain: bytes
    compressed: dict[str, bytes]


class WebUiFiles:
    """The built files of the web UI, read into memory at the first request for one. False without `index.html`.

    They are hundreds of files. A gateway that only programs use starts without them.
    """

    def __init__(self, folder: Traversable | None = None) -> None:
        self._folder = folder or files("atlas_agents.gateway").joinpath(_UI_FOLDER)
        self._reading = asyncio.Lock()
        self._assets: Assets = {}

    def __bool__(self) -> bool:
        return self._folder.joinpath(_INDEX.removeprefix("/")).is_file()

    async def respond(self, request: Request) -> Response:
        """Return the static file at the path, or `index.html` for the routes of the web UI."""
        async with self._reading:
            self._assets = self._assets or await asyncio.to_thread(_read_assets, self._folder)
        path = request.url.path
        asset = self._assets.get(path)
        if asset is None:
            wants_page = path == "/" or "text/html" in request.headers.get("accept", "")
            if path.startswith((_HASHED, *_API_PATHS)) or not wants_page:
                return PlainTextResponse("not found\n", 404)
            asset, path = self._assets[_INDEX], _INDEX
        headers = {"Cache-Control": _IMMUTABLE if path.startswith(_HASHED) else "no-cache", "Vary": "Accept-Encoding"}
        accepted = {each.split(";")[0].strip() for each in request.headers.get("accept-encoding", "").split(",")}
        for encoding, body in asset.compressed.items():
            if encoding in accepted:
                return Response(body, media_type=asset.kind, headers={**headers, "Content-Encoding": encoding})
        return Response(asset.plain, media_type=asset.kind, headers=headers)


def _read_assets(folder: Traversable, path: str = "") -> Assets:
    found: Assets = {}
    entries = {each.name: each for each in folder.iterdir()}
    for name, each in entries.items():
        if each.is_dir():
            found |= _read_assets(each, f"{path}/{name}")
        elif not name.endswith(tuple(_COMPRESSED.values())) and not name.startswith("."):
            compressed = {
                form: entries[name + end].read_bytes() for form, end in _COMPRESSED.items() if name + end in entries
            }
            found[f"{path}/{name}"] = Asset(_media_type(name), each.read_bytes(), compressed)
    return found


def _media_type(name: str) -> str:
    """Return the media type. The system's table is not used: browsers refuse scripts with a wrong type."""
    if name.endswith(".js"):
        return "text/javascript"
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


class Readiness:
    """Readiness check: the process has started, is not shutting down, and its store works.

    The result of a check is used for a moment, so that many requests do not cause many checks.
    """

    def __init__(self, check: Callable[[], Awaitable[object]]) -> None:
        self._check = check
        self._lock = asyncio.Lock()
        self._checked_at = -math.inf
        self._store_problem: str | None = None
        self.started = asyncio.Event()
        self.stopping = False

    async def problem(self) -> str | None:
        """Return the reason why the process is not ready, or None if it is."""
        if self.stopping:
            return "draining"
        if not self.started.is_set():
            return "starting"
        async with self._lock:
            if time.monotonic() - self._checked_at >= CHECK_INTERVAL:
                self._store_problem = await self._check_store()
                self._checked_at = time.monotonic()
        return self._store_problem

    async def _check_store(self) -> str | None:
        try:
            async with asyncio.timeout(_CHECK_TIMEOUT):
                await self._check()
        except StoreFull:
            return "the store is full"
        except (StoreError, TimeoutError):
            return "the store is unavailable"
        return None


class JsonResponse(Response):
    """JSON response, encoded with msgspec."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return _encoder.encode(content)


class Operation(msgspec.Struct, frozen=True):
    """Description of an endpoint for the OpenAPI document.

    `body` and `result` are types of JSON, or media types. The result of one that `streams` may be an event stream.
    """

    summary: str
    tag: str
    scopes: tuple[str, ...] = ()
    """Scopes that the token needs; none if the endpoint needs no token."""
    body: Any = None
    result: Any = None
    status: int = 200
    streams: bool = False
    query: dict[str, Any] = {}
    """Types of the parameters in the query."""


class ApiRoute(Route):
    """A route that the OpenAPI document describes."""

    def __init__(self, path: str, endpoint: Any, operation: Operation, methods: Sequence[str] = ("GET",)) -> None:
        super().__init__(path, endpoint, methods=list(methods))
        self.operation = operation


def openapi(routes: Sequence[BaseRoute], cookie: str = "atlas") -> dict[str, Any]:
    """Return the OpenAPI document of all routes, except those of the web UI; `cookie` is the name of its cookie."""
    shown = [route for route in routes if isinstance(route, Route) and route.include_in_schema]
    operations = [(route, _operation_of(route)) for route in shown]
    types = [each for _, operation in operations for each in _types_of(operation)]
    unique = list(dict.fromkeys([ErrorResponse, *types]))
    found, definitions = msgspec.json.schema_components(unique, ref_template="#/components/schemas/{name}")
    schemas = dict(zip(unique, found, strict=True))
    for definition in definitions.values():
        if "description" in definition:  # Python 3.13 removes the indentation of docstrings, older versions do not
            definition["description"] = inspect.cleandoc(definition["description"])
    paths: dict[str, dict[str, Any]] = {}
    for route, operation in operations:
        methods = paths.setdefault(_PATH_TYPE.sub("}", route.path), {})
        for method in sorted(route.methods or ()):
            if method != "HEAD":
                methods[method.lower()] = _describe_operation(route, method, operation, schemas)
    error = {"description": "The error, in OpenAI's format.", "content": _content(ErrorResponse, schemas)}
    return {
        "openapi": "3.1.1",
        "info": {
            "title": "Atlas gateway",
            "version": package_version(),
            "description": "HTTP APIs of the gateway. Its WebSocket protocol is in `/asyncapi.json`.",
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": definitions,
            "responses": {"Error": error},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "A token of the gateway."},
                "cookie": {"type": "apiKey", "in": "cookie", "name": cookie, "description": "A signed-in browser."},
            },
        },
    }


_PATH_TYPE = re.compile(r":\w+\}")


def _operation_of(route: Route) -> Operation:
    """Return the description of a route; for a route that others added, from its function."""
    if isinstance(route, ApiRoute):
        return route.operation
    return Operation((inspect.getdoc(route.endpoint) or route.name).partition("\n")[0], "other")


def _types_of(operation: Operation) -> list[Any]:
    types = (operation.body, operation.result, *operation.query.values())
    return [each for each in types if each is not None and not isinstance(each, str)]


def _describe_operation(route: Route, method: str, operation: Operation, schemas: dict[Any, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{method.lower()}{route.path}").strip("_"),
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [
            *[
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in route.param_convertors
            ],
            *[{"name": name, "in": "query", "schema": schemas[kind]} for name, kind in operation.query.items()],
        ],
        "responses": {str(operation.status): {"description": "Success."}},
        "security": [],
    }
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _content(operation.body, schemas)}
    content = _content(operation.result, schemas) if operation.result is not None else {}
    if operation.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    if content:
        described["responses"][str(operation.status)]["content"] = content
    if operation.scopes:
        schemes = ("bearer", "cookie") if route.path.startswith(_PAGE_API) else ("bearer",)
        described["security"] = [{scheme: list(operation.scopes)} for scheme in schemes]
    if operation.scopes or operation.body is not None:
        described["responses"]["default"] = {"$ref": "#/components/responses/Error"}
    return described


def _content(kind: Any, schemas: dict[Any, Any]) -> dict[str, Any]:
    """Return the content of a body: JSON of a type, or anything of a media type."""
    return {kind: {}} if isinstance(kind, str) else {"application/json": {"schema": schemas[kind]}}


class ProcessHealth(msgspec.Struct, frozen=True):
    """The state of the process, and for how many seconds it has been running."""

    status: str
    uptime: float | msgspec.UnsetType = msgspec.UNSET


def get_grant(request: Request) -> Grant | None:
    """Return the grant of the request's token, or None if it has none. Invalid tokens are refused earlier."""
    return request.scope["state"]["grant"]


def health_routes(
    readiness: Readiness, metrics: Metrics, uptime: Callable[[], float], *, exposed: bool
) -> list[BaseRoute]:
    """Return the routes for health, readiness and metrics. If `exposed`, metrics require a token."""

    async def health(_: Request) -> Response:
        return JsonResponse(ProcessHealth("ok", uptime()))

    async def ready(_: Request) -> Response:
        problem = await readiness.problem()
        return JsonResponse(ProcessHealth("ok")) if problem is None else JsonResponse(ProcessHealth(problem), 503)

    async def serve_metrics(request: Request) -> Response:
        forwarded = "x-forwarded-for" in request.headers  # sent by a reverse proxy on this machine for someone else
        local = request.client is not None and request.client.host in LOOPBACK and not forwarded
        grant = get_grant(request)
        if not (local and not exposed) and (grant is None or not grant.allows("read")):
            return PlainTextResponse("authentication required\n", 401, {"WWW-Authenticate": "Bearer"})
        text, kind = metrics.text()
        return Response(text, headers={"Content-Type": kind})

    alive = Operation("Check that the process runs.", "health", result=ProcessHealth)
    return [
        ApiRoute("/health", health, alive),
        ApiRoute("/healthz", health, alive),
        ApiRoute(
            "/readyz",
            ready,
            Operation("Check that the gateway can answer; 503 if not.", "health", result=ProcessHealth),
        ),
        ApiRoute(
            "/metrics",
            serve_metrics,
            Operation(
                "Get metrics for Prometheus; without a token on this machine only.", "health", result="text/plain"
            ),
        ),
    ]


def build_http_app(hub: Hub, readiness: Readiness, more: Sequence[BaseRoute] = ()) -> Starlette:
    """Build the HTTP application from the built-in routes and the `more` routes of other APIs."""
    folder = files("atlas_agents.gateway")
    built = WebUiFiles()
    names = ("welcome.html", "welcome.js", "artifact-frame.html")
    page, script, frame = [folder.joinpath(name).read_text(encoding="utf-8") for name in names]

    async def protocol_document(request: Request) -> Response:
        return JsonResponse(asyncapi() if request.url.path == "/asyncapi.json" else json_schema())

    async def openapi_document(request: Request) -> Response:
        return JsonResponse(openapi(request.app.routes, cookie_name(request.scope)))

    async def welcome(_: Request) -> Response:
        return HTMLResponse(page)

    async def welcome_script(_: Request) -> Response:
        return Response(script, media_type="text/javascript")

    async def artifact_frame(_: Request) -> Response:
        return HTMLResponse(frame, headers=ARTIFACT_HEADERS)

    routes: list[BaseRoute] = [
        *health_routes(readiness, hub.metrics, lambda: hub.uptime, exposed=hub.settings.exposed),
        *[
            ApiRoute(path, document, Operation(f"Get the {name}.", "documents", result="application/json"))
            for path, document, name in (
                ("/openapi.json", openapi_document, "OpenAPI document of the HTTP APIs"),
                ("/asyncapi.json", protocol_document, "AsyncAPI document of the WebSocket protocol"),
                ("/protocol.json", protocol_document, "JSON Schema of the WebSocket protocol"),
            )
        ],
    ]
    files_of_page = (
        [("/artifact-frame", artifact_frame), ("/{path:path}", built.respond)]
        if built
        else [("/", welcome), ("/welcome.js", welcome_script)]
    )
    routes += [Route(path, respond, include_in_schema=False) for path, respond in files_of_page]
    return Starlette(routes=[*more, *routes])
