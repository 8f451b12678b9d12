"""The ASGI application: guard first, then a socket or a page."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from atlas_agents.gateway import guests
from atlas_agents.gateway.connection import Connection, Receive
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.link import KEY
from atlas_agents.gateway.logs import shown
from atlas_agents.gateway.metrics import Metrics
from atlas_agents.gateway.porch import Porch
from atlas_agents.gateway.trouble import Trouble

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
    """Lets in whom the guard lets in, and knows who shows a token. Sockets are the hub's; without it there are none."""

    def __init__(self, porch: Porch, metrics: Metrics, http: Http, hub: Hub | None = None) -> None:
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
            await self._refuse(scope, send, 404, "there is no socket here")
            return
        if hub.stopping:
            await self._refuse(scope, send, 503, "the gateway stops")
            return
        if not await self._recognise(scope, send):
            return
        await receive()  # websocket.connect
        await send({"type": "websocket.accept"})
        await Connection(hub, scope["extensions"][KEY], _address(scope)).serve(receive)

    async def _page(self, scope: Scope, receive: Receive, send: Send) -> None:
        guest = self._porch.guard.guest(scope)
        if guests.is_preflight(scope):
            await self._preflight(scope, send, guest)
            return
        if not await self._recognise(scope, send):
            return
        more = [*guests.headers_for(guest, scope), *HEADERS]

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                said = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(each for each in more if each[0] not in said)]
            await send(message)

        await self._http(scope, receive, send_with_headers)

    async def _preflight(self, scope: Scope, send: Send, guest: str | None) -> None:
        headers = guests.preflight_headers(guest, scope) if guest else []
        if not headers:
            await self._refuse(scope, send, 403, "pages of other sites may not ask this")
            return
        await send({"type": "http.response.start", "status": 204, "headers": [*headers, *HEADERS]})
        await send({"type": "http.response.body", "body": b""})

    async def _recognise(self, scope: Scope, send: Send) -> bool:
        """Whose token is in the headers, if one is; a wrong one is refused wherever it is shown."""
        header = dict(scope["headers"]).get(b"authorization")
        scope.setdefault("state", {})["grant"] = None
        if header is None:
            return True
        wait, scope["state"]["grant"] = self._porch.admit(_address(scope), _bearer(header))
        if scope["state"]["grant"] is None:
            code, words = (429, "too many wrong tokens") if wait else (401, "invalid token")
            await self._refuse(scope, send, code, words, retry_after=wait)
        return scope["state"]["grant"] is not None

    async def _refuse(self, scope: Scope, send: Send, code: int, words: str, *, retry_after: float = 0.0) -> None:
        self._metrics.refused.labels(words).inc()
        told = dict(scope["headers"])
        fields = {name: shown(told.get(name.encode())) for name in ("host", "origin", "user-agent")}
        fields |= {"address": _address(scope), "path": shown(scope["path"].encode("utf-8", "replace"))}
        logger.warning("refused with %d: %s", code, words, extra={"fields": fields})
        content_type, body = _words(scope, code, words)
        headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
        headers += HEADERS
        if scope["type"] == "http":
            headers += guests.headers_for(self._porch.guard.guest(scope), scope)
        if code == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if retry_after:
            headers.append((b"retry-after", b"%d" % max(1, round(retry_after))))
        kind = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
        await send({"type": f"{kind}.start", "status": code, "headers": headers})
        await send({"type": f"{kind}.body", "body": body})


def _words(scope: Scope, code: int, words: str) -> tuple[bytes, bytes]:
    """(content type, body): for programs in the shape that they read, for people as text."""
    if scope["path"].startswith(guests.PATHS):
        return b"application/json", Trouble(code, _CODES.get(code, "refused"), words).body
    return b"text/plain; charset=utf-8", f"{words}\n".encode()


def _address(scope: Scope) -> str:
    return scope["client"][0] if scope["client"] else ""


def _bearer(header: bytes) -> str:
    kind, _, token = header.decode("latin-1").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""
