"""The few plain HTTP answers: health, metrics, the protocol's description, and the page."""

from collections.abc import Sequence
from importlib.resources import files

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.page import BuiltPage
from atlas_agents.gateway.protocol.asyncapi import asyncapi
from atlas_agents.gateway.protocol.schema import json_schema
from atlas_agents.gateway.ready import Readiness
from atlas_agents.gateway.settings import LOOPBACK
from atlas_agents.gateway.tokens import Grant

_encoder = msgspec.json.Encoder()


class Json(Response):
    """Anything that msgspec can write."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return _encoder.encode(content)


def grant_of(request: Request) -> Grant | None:
    """Whose token the request showed; a wrong one does not come this far."""
    return request.scope["state"]["grant"]


def site(hub: Hub, readiness: Readiness, more: Sequence[BaseRoute] = ()) -> Starlette:
    """All HTTP routes; `more` are those of other families."""
    folder = files("atlas_agents.gateway")
    built = BuiltPage()
    page, script = [folder.joinpath(name).read_text(encoding="utf-8") for name in ("welcome.html", "welcome.js")]

    async def health(_: Request) -> Response:
        return Json({"status": "ok", "uptime": hub.uptime})

    async def ready(_: Request) -> Response:
        problem = await readiness.problem()
        return Json({"status": "ok"}) if problem is None else Json({"status": problem}, 503)

    async def metrics(request: Request) -> Response:
        near = request.client is not None and request.client.host in LOOPBACK
        grant = grant_of(request)
        if not (near and not hub.settings.exposed) and (grant is None or not grant.may("read")):
            return PlainTextResponse("a token is needed\n", 401, {"WWW-Authenticate": "Bearer"})
        text, kind = hub.metrics.text()
        return Response(text, headers={"Content-Type": kind})

    async def described(request: Request) -> Response:
        return Json(asyncapi() if request.url.path == "/asyncapi.json" else json_schema())

    async def welcome(_: Request) -> Response:
        return HTMLResponse(page)

    async def welcome_script(_: Request) -> Response:
        return Response(script, media_type="text/javascript")

    routes: list[BaseRoute] = [
        Route("/health", health),
        Route("/healthz", health),
        Route("/readyz", ready),
        Route("/metrics", metrics),
        Route("/asyncapi.json", described),
        Route("/protocol.json", described),
    ]
    if built:
        routes.append(Route("/{path:path}", built.answer))
    else:
        routes += [Route("/", welcome), Route("/welcome.js", welcome_script)]
    return Starlette(routes=[*more, *routes])
