"""`POST /ag-ui/{agentId}`: a run of an AG-UI page."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from atlas_agents.gateway.agui.asked import RunInput
from atlas_agents.gateway.agui.run import PageRun
from atlas_agents.gateway.asking import Seats, answered, body_of, on_disconnect, who_asks
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.protocol.faults import Fault
from atlas_agents.gateway.sse import EventStream
from atlas_agents.gateway.trouble import Trouble


def agui_routes(hub: Hub) -> Sequence[BaseRoute]:
    """The family's routes."""
    seats = Seats(hub)

    async def run(request: Request) -> Any:
        """Start a run. Who answers a question needs the right to approve."""
        who = who_asks(request, "read", "write")
        with ExitStack() as stack:
            seat = stack.enter_context(seats.taken(request, who))
            asked = await body_of(request, RunInput, hub.settings.max_frame)
            if asked.resume:
                who_asks(request, "approve")
            agent = hub.agent(request.path_params["agent_id"])
            if agent is None:
                raise Trouble(404, "agent_not_found", "there is no such agent here")
            if hub.stopping:
                raise Fault("UNAVAILABLE", "the gateway stops", retry_after_ms=hub.retry_after_ms)
            page = PageRun(hub, who, request, asked, agent)
            if on_disconnect(request) == "cancel":
                stack.callback(page.stop)
            return EventStream(seat, page.lines(), hub.settings.ping, stack.pop_all().close)

    return (Route("/ag-ui/{agent_id:path}", answered(run, hub.atlas.hide), methods=["POST"]),)
