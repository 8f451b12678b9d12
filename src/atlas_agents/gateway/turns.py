"""Taking a message in, from whichever door it comes."""

from typing import Any

from atlas_agents.core.messages import Message
from atlas_agents.engine.agent import Agent
from atlas_agents.engine.run import Accepted, WhenBusy, Wishes
from atlas_agents.engine.settings import Mode
from atlas_agents.engine.stream import AtlasStream
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.models import model_of
from atlas_agents.gateway.protocol.faults import Fault

_NEW = ("started", "queued")


async def take_in(
    hub: Hub,
    agent: Agent,
    message: Message,
    *,
    session: str,
    user: str,
    model: str = "",
    mode: Mode | None = None,
    when_busy: WhenBusy = "queue",
    idempotency_key: str = "",
    output: Any = None,
    asks: bool = True,
    wishes: Wishes | None = None,
) -> tuple[Accepted, AtlasStream]:
    """Start a turn; it is on the disk when this returns. What it says is logged, and told to all who hear the session.

    The stream is the turn's own, or an echo of the one that the same key named before.
    """
    if hub.stopping:
        raise Fault("UNAVAILABLE", "the gateway stops", retry_after_ms=hub.retry_after_ms)
    stream = hub.atlas.send(
        message,
        session=session,
        agent_id=agent.id,
        user=user,
        model=model,
        mode=mode,
        when_busy=when_busy,
        idempotency_key=idempotency_key,
        output=output,
        asks=asks,
        wishes=wishes,
    )
    accepted = await stream.accepted()
    if accepted.status in _NEW:
        hub.runs.follow(stream, model or model_of(agent, hub.atlas.registry))
    return accepted, stream


async def agent_for(hub: Hub, session: str, wanted: str | None = None) -> Agent:
    """The agent that is named, else the one the session talks to, else the default; Fault if there is none."""
    name = wanted or await hub.assignments.agent_of(session)
    agent = hub.agent(name) if name else hub.atlas.get_agent()
    if agent is None:
        raise Fault("AGENT_NOT_FOUND", f"there is no agent {name!r}" if name else "there is no agent")
    return agent
