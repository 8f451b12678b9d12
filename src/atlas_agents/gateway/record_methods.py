"""What can be looked up: agents, models, tools, the audit log, usage, limits."""

from collections import defaultdict
from datetime import date, timedelta

from atlas_agents.core.clock import SYSTEM_CLOCK, day_of
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.store import UsageRow
from atlas_agents.engine.agent import Agent
from atlas_agents.gateway.connection import Connection
from atlas_agents.gateway.dispatch import Methods
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.models import model_of, name_of
from atlas_agents.gateway.protocol.faults import Fault
from atlas_agents.gateway.protocol.records import (
    AgentFound,
    AgentsFound,
    AuditList,
    AuditPage,
    AuditVerified,
    LimitsFound,
    Matrix,
    MatrixRow,
    ModelsFound,
    OneAgent,
    ToolsFound,
    ToolsList,
    ToolsUsed,
    UsageFound,
    UsageSum,
    UsageSummary,
    UsageTools,
)
from atlas_agents.gateway.protocol.shapes import AgentShape, Done, ModelShape, Nothing, ToolShape
from atlas_agents.providers.registry import parse_model_ref


def add_record_methods(methods: Methods) -> None:
    methods.add("agents.list")(list_agents)
    methods.add("agents.get")(get_agent)
    methods.add("models.list")(list_models)
    methods.add("tools.list")(list_tools)
    methods.add("tools.matrix")(matrix)
    methods.add("audit.list")(list_audit)
    methods.add("audit.subscribe")(hear_audit)
    methods.add("audit.verify")(verify_audit)
    methods.add("usage.summary")(usage)
    methods.add("usage.tools")(tools_used)
    methods.add("limits.get")(limits)


async def list_agents(caller: Connection, _: Nothing) -> AgentsFound:
    hub = caller.hub
    return AgentsFound(tuple([_agent_shape(hub, agent, caller) for agent in hub.atlas.agents]))


async def get_agent(caller: Connection, params: OneAgent) -> AgentFound:
    return AgentFound(_agent_shape(caller.hub, _found(caller.hub, params.agent_id), caller))


async def list_models(caller: Connection, _: Nothing) -> ModelsFound:
    """Every model that some agent names, and who does."""
    hub = caller.hub
    users: defaultdict[str, list[str]] = defaultdict(list)
    for agent in hub.atlas.agents:
        for model in agent.models or (hub.atlas.registry.default_model or "",):
            users[name_of(model)].append(agent.id)
    shapes = [
        ModelShape(name, name.partition("/")[0], _is_available(hub, name), tuple(agents))
        for name, agents in users.items()
        if name
    ]
    return ModelsFound(tuple(shapes))


async def list_tools(caller: Connection, params: ToolsList) -> ToolsFound:
    """The tools of one agent, or of all."""
    hub = caller.hub
    wanted = params.agent_id
    if wanted is None and params.session_key is not None:
        current = hub.atlas.get_agent()
        wanted = await hub.assignments.agent_of(caller.who.prefix + params.session_key) or (current and current.id)
    agents = [_found(hub, wanted)] if wanted else list(hub.atlas.agents)
    return ToolsFound(tuple([shape for agent in agents for shape in _tool_shapes(caller, agent)]))


async def matrix(caller: Connection, _: Nothing) -> Matrix:
    atlas, who = caller.hub.atlas, caller.who.principal.id
    rows = [
        MatrixRow(agent.id, agent.role, {tool.name: atlas.verdict(agent, tool, who).cell for tool in agent.tools})
        for agent in atlas.agents
    ]
    return Matrix(tuple(sorted({name for row in rows for name in row.cells})), tuple(rows))


async def list_audit(caller: Connection, params: AuditList) -> AuditPage:
    _sees_all(caller)
    return await caller.hub.audit.page(params)


async def hear_audit(caller: Connection, _: Nothing) -> Done:
    _sees_all(caller)
    await caller.hub.audit.listen(caller)
    caller.on_close.add(lambda: caller.hub.audit.leave(caller))
    return Done(True)


async def verify_audit(caller: Connection, _: Nothing) -> AuditVerified:
    _sees_all(caller)
    return await caller.hub.audit.verify()


async def tools_used(caller: Connection, params: UsageTools) -> ToolsUsed:
    _sees_all(caller)
    return ToolsUsed(await caller.hub.audit.used(params.since or "", params.to or "9999"))


async def usage(caller: Connection, params: UsageSummary) -> UsageFound:
    """Sums of the caller's own sessions, by one name."""
    until = (date.fromisoformat(params.to) + timedelta(days=1)).isoformat() if params.to else "9999"
    sums: dict[tuple[str, str], UsageSum] = {}
    prefix = caller.who.prefix
    for row in await caller.hub.atlas.usage(params.since or "", until):
        if row.session.startswith(prefix):
            name, day = _name(row, params.group_by, prefix), row.day if params.by_day else ""
            sums[name, day] = _added(sums.get((name, day)) or UsageSum(name, 0, 0, 0, 0, 0, day), row)
    return UsageFound(tuple(sums.values()))


async def limits(caller: Connection, _: Nothing) -> LimitsFound:
    return await limits_of(caller.hub)


async def limits_of(hub: Hub) -> LimitsFound:
    limits, day = hub.atlas.limits, day_of(SYSTEM_CLOCK.time())
    used = {agent.id: await hub.store.counted(hub.atlas.tenant, agent.id, day) for agent in hub.atlas.agents}
    return LimitsFound(limits.per_tick, limits.tick, limits.per_day, limits.at_once, limits.repeats, used)


def _agent_shape(hub: Hub, agent: Agent, caller: Connection) -> AgentShape:
    who = caller.who.principal.id
    tools = tuple([tool.name for tool in agent.tools if hub.atlas.verdict(agent, tool, who).cell != "no"])
    model = model_of(agent, hub.atlas.registry)
    default = agent is hub.atlas.get_agent()
    notice = hub.runs.notice(agent.id)
    return AgentShape(agent.id, agent.name, model, agent.description, agent.role, tools, default, notice)


def _tool_shapes(caller: Connection, agent: Agent) -> list[ToolShape]:
    shapes: list[ToolShape] = []
    for tool in agent.tools:
        cell = caller.hub.atlas.verdict(agent, tool, caller.who.principal.id).cell
        source = "mcp" if "/" in tool.name else "custom"
        asks = cell == "ask" or bool(tool.confirm)
        shapes.append(ToolShape(tool.name, tool.description, tool.parameters, source, asks, cell != "no", agent.id))
    return shapes


def _found(hub: Hub, agent_id: str) -> Agent:
    agent = hub.agent(agent_id)
    if agent is None:
        raise Fault("AGENT_NOT_FOUND", f"there is no agent {agent_id!r}")
    return agent


def _is_available(hub: Hub, name: str) -> bool:
    """A provider that was handed over is there; one that is named needs its key."""
    refs = {model for agent in hub.atlas.agents for model in agent.models if isinstance(model, str)}
    if name not in refs and name != hub.atlas.registry.default_model:
        return True
    try:
        hub.atlas.registry.provider(parse_model_ref(name).provider)
    except ConfigError:
        return False
    return True


def _sees_all(caller: Connection) -> None:
    """The audit log is of the whole house."""
    if caller.who.prefix:
        raise Fault("FORBIDDEN", "the audit log is for those who see all sessions")


def _name(row: UsageRow, group_by: str, prefix: str) -> str:
    names = {"agent": row.agent_id, "model": row.model, "session": row.session.removeprefix(prefix), "day": row.day}
    return names[group_by]


def _added(to: UsageSum, row: UsageRow) -> UsageSum:
    return UsageSum(
        to.name,
        to.turns + row.turns,
        to.input_tokens + row.input_tokens,
        to.output_tokens + row.output_tokens,
        to.cached_tokens + row.cached_tokens,
        to.cost_microcents + row.cost_microcents,
        to.day,
    )
