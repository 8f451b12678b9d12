"""`/v1/models` and `/v1/chat/completions`, for every client that speaks to OpenAI."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from atlas_agents.engine.agent import Agent
from atlas_agents.gateway.asking import Seats, answered, body_of, on_disconnect, who_asks
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.openai.reading import check
from atlas_agents.gateway.openai.shapes import Asked, Models, ModelShape
from atlas_agents.gateway.openai.turn import Answering, start
from atlas_agents.gateway.sse import EventStream
from atlas_agents.gateway.trouble import Trouble
from atlas_agents.gateway.vitals import Json

_PREFIX = "atlas/"


def openai_routes(hub: Hub) -> Sequence[BaseRoute]:
    """The family's routes."""
    family = _Family(hub)
    table = (
        ("/v1/models", family.models, ["GET"]),
        ("/v1/models/{id:path}", family.model, ["GET"]),
        ("/v1/chat/completions", family.complete, ["POST"]),
        ("/v1/{rest:path}", family.nothing, ["GET", "POST", "PUT", "PATCH", "DELETE"]),
    )
    return [Route(path, answered(answer, hub.atlas.hide), methods=methods) for path, answer, methods in table]


class _Family:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._seats = Seats(hub)

    async def models(self, request: Request) -> Response:
        who_asks(request, "read")
        return Json(Models(tuple([self._shape(agent) for agent in self._hub.atlas.agents])))

    async def model(self, request: Request) -> Response:
        who_asks(request, "read")
        return Json(self._shape(self._agent(request.path_params["id"])))

    async def complete(self, request: Request) -> Any:
        """Take a turn. A client that has shown no right to it is not even read."""
        who = who_asks(request, "read", "write")
        with ExitStack() as stack:
            seat = stack.enter_context(self._seats.taken(request, who))
            asked = await body_of(request, Asked, self._hub.settings.max_frame)
            check(asked)
            agent, stays = self._agent(asked.model), on_disconnect(request) == "continue"
            stream, kept = await start(self._hub, who, request, asked, agent)
            if not (kept and stays):
                stack.callback(stream.cancel)
            answering = Answering(self._hub, stream, asked, agent)
            if not asked.stream:
                return Json(await seat.wait_for(answering.whole()))
            await seat.wait_for(answering.begun())
            return EventStream(seat, answering.lines(), self._hub.settings.ping, stack.pop_all().close)

    async def nothing(self, request: Request) -> Response:
        who_asks(request)
        raise Trouble(404, "unknown_url", f"there is no {request.method} {request.url.path} here")

    def _agent(self, model: str) -> Agent:
        """By its id, with or without our name before it."""
        agent = self._hub.agent(model) or self._hub.agent(model.removeprefix(_PREFIX))
        if agent is None:
            raise Trouble(404, "model_not_found", f"there is no model {model[:200]!r} here", param="model")
        return agent

    def _shape(self, agent: Agent) -> ModelShape:
        return ModelShape(_PREFIX + agent.id, self._hub.began_at)
