"""The few plain HTTP answers: health, metrics, the protocol's description, and the page."""

from collections.abc import Sequence
from importlib.resources import files

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.page import BuiltPage
from atlas_agents.gateway.protocol.asyncapi import asyncapi
from atlas_agents.gateway.protocol.schema import json_schema
from atlas_agents.gateway.ready import Readiness
from atlas_agents.gateway.vitals import Json, vital_routes


def site(hub: Hub, readiness: Readiness, more: Sequence[BaseRoute] = ()) -> Starlette:
    """All HTTP routes; `more` are those of other families."""
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
