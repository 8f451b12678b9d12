"""Submission of turns and of direct tool calls, shared by all APIs of the gateway."""

from typing import Any

from atlas_agents.agents.agent import Agent
from atlas_agents.agents.options import DEFAULT_OPTIONS, TurnOptions
from atlas_agents.agents.run import Accepted
from atlas_agents.agents.runner import tool_call_session
from atlas_agents.agents.stream import AtlasStream
from atlas_agents.core.messages import Message, new_id
from atlas_agents.gateway.auth import Grant
from atlas_agents.gateway.convert import agent_model
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.protocol.frames import ProtocolError

_NEW = ("started", "queued")


async def submit_turn(
    hub: Hub,
    agent: Agent,
    message: Message,
    *,
    session: str,
    user: str,
    options: TurnOptions = DEFAULT_OPTIONS,
) -> tuple[Accepted, AtlasStream]:
    """Start a turn and return when it is stored. Its events are logged and delivered to the session's subscribers.

    For a repeated idempotency key, the stream replays the turn that was started with it.
    """
    hub.check_accepting()
    stream = hub.atlas.start_turn(message, options, session=session, agent_id=agent.id, user=user)
    accepted = await stream.accepted()
    if accepted.status in _NEW:
        hub.runs.follow(stream, options.model or agent_model(agent, hub.atlas.registry))
    return accepted, stream


async def resolve_agent(hub: Hub, session: str, agent_id: str | None = None) -> Agent:
    """Return the named agent, else the session's, else the default; raise ProtocolError if there is none."""
    name = agent_id or await hub.assignments.agent_of(session)
    agent = hub.agent(name) if name else hub.atlas.get_agent()
    if agent is None:
        raise ProtocolError("AGENT_NOT_FOUND", f"unknown agent {name!r}" if name else "no agents are configured")
    return agent


async def call_tool(
    hub: Hub,
    grant: Grant,
    agent: Agent,
    tool: str,
    arguments: dict[str, Any],
    *,
    idempotency_key: str = "",
    asks: bool = True,
) -> AtlasStream:
    """Start a tool call and return when it is stored, in a session of its own that is archived from the start."""
    hub.check_accepting()
    user = grant.principal.id
    session = grant.prefix + tool_call_session(user, new_id(), idempotency_key)
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
