"""A tool called from outside, from whichever door: by a token's owner, as far as the agent's rules let them."""

from typing import Any

from atlas_agents.core.ids import new_id
from atlas_agents.engine.agent import Agent
from atlas_agents.engine.direct import session_of
from atlas_agents.engine.stream import AtlasStream
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.protocol.faults import Fault
from atlas_agents.gateway.tokens import Grant

_NEW = ("started", "queued")


async def call_tool(
    hub: Hub,
    who: Grant,
    agent: Agent,
    tool: str,
    arguments: dict[str, Any],
    *,
    idempotency_key: str = "",
    asks: bool = True,
) -> AtlasStream:
    """Begin a call; it is on the disk when this returns, in a session of its own that is archived from the start."""
    if hub.stopping:
        raise Fault("UNAVAILABLE", "the gateway stops", retry_after_ms=hub.retry_after_ms)
    user = who.principal.id
    session = who.prefix + session_of(user, new_id(), idempotency_key)
    await hub.atlas.sessions.put(session, label=tool[:80], archived=True)
    stream = await hub.atlas.begin_call(
        tool,
        arguments,
        agent_id=agent.id,
        user=user,
        session=session,
        idempotency_key=idempotency_key,
        asks=asks,
    )
    accepted = await stream.accepted()
    if accepted.status in _NEW:
        hub.runs.follow(stream, "")
    return stream
