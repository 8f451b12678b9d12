"""`tools.invoke`: a tool called without a model. `mcp.servers`: where tools of others come from."""

from atlas_agents.engine.direct import result_of
from atlas_agents.gateway.calls import call_tool
from atlas_agents.gateway.connection import Connection
from atlas_agents.gateway.dispatch import Methods
from atlas_agents.gateway.protocol.calls import Called, ForeignServers, ToolsInvoke
from atlas_agents.gateway.protocol.faults import Fault
from atlas_agents.gateway.protocol.shapes import Nothing


def add_call_methods(methods: Methods) -> None:
    methods.add("tools.invoke")(invoke)
    methods.add("mcp.servers")(servers)


async def invoke(caller: Connection, params: ToolsInvoke) -> Called:
    """Call it as the agent could, and wait for what comes of it. A call that needs a yes waits for that, too."""
    hub = caller.hub
    agent = hub.agent(params.agent_id) if params.agent_id else hub.atlas.get_agent()
    if agent is None:
        raise Fault("AGENT_NOT_FOUND", f"there is no agent {params.agent_id!r}")
    key = params.idempotency_key or ""
    stream = await call_tool(hub, caller.who, agent, params.name, params.arguments, idempotency_key=key)
    result = result_of(await stream.reply())
    return Called(stream.stream_id, result.status, result.result, result.error)


async def servers(caller: Connection, _: Nothing) -> ForeignServers:
    return caller.hub.foreign()
