"""How a process is, over plain HTTP: does it live, can it be used, what has it counted. Every role answers the same."""

from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from atlas_agents.gateway.metrics import Metrics
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


def vital_routes(
    readiness: Readiness, metrics: Metrics, uptime: Callable[[], float], *, exposed: bool
) -> list[BaseRoute]:
    """Health, readiness and metrics; the last one is told to strangers only on a machine that is not `exposed`."""

    async def health(_: Request) -> Response:
        return Json({"status": "ok", "uptime": uptime()})

    async def ready(_: Request) -> Response:
        problem = await readiness.problem()
        return Json({"status": "ok"}) if problem is None else Json({"status": problem}, 503)

    async def counted(request: Request) -> Response:
        near = request.client is not None and request.client.host in LOOPBACK
        grant = grant_of(request)
        if not (near and not exposed) and (grant is None or not grant.may("read")):
            return PlainTextResponse("a token is needed\n", 401, {"WWW-Authenticate": "Bearer"})
        text, kind = metrics.text()
        return Response(text, headers={"Content-Type": kind})

    return [
        Route("/health", health),
        Route("/healthz", health),
        Route("/readyz", ready),
        Route("/metrics", counted),
    ]
