"""Build agents from a workspace: resolve their models and tools."""

import difflib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec

from atlas_agents.agents.agent import Agent
from atlas_agents.core.errors import BadModelRef, ConfigError, MissingKey
from atlas_agents.providers.failover import RetryPolicy
from atlas_agents.providers.registry import Model, Registry, parse_model_ref
from atlas_agents.tools.tool import Tool, ToolLike, expand_tools
from atlas_agents.workspace.workspace import AgentSpec, WorkspaceState

logger = logging.getLogger(__name__)

LOCAL_MODEL = "local/smollm2-135m"
"""Model of last resort, which needs no API key."""
Fallback: TypeAlias = Callable[[str], tuple[Model, str] | None]
"""Returns the replacement for a model that is not available, and a notice about it."""


def resolve_models(
    spec: AgentSpec, providers: Registry, default: str | None = None
) -> tuple[tuple[str, ...], str | None]:
    """Return the models an agent can use, in order of preference, and a notice if they are not those it names.

    Models without an API key are skipped; if none is left, use `default` (or `ATLAS_MODEL`), then the local model.
    """
    missing = {ref: _missing_key(ref, f"{spec.where or spec.id}: Model", providers) for ref in spec.models}
    reasons = [f"{ref} is not available ({reason})" for ref, reason in missing.items() if reason]
    if available := tuple(ref for ref, reason in missing.items() if not reason):
        return available, _notice(spec, reasons, available[0])
    ref = (default or providers.default_model or "").strip()
    if not ref:
        if not spec.models:
            reasons.append("the agent names no model and ATLAS_MODEL is not set")
    elif reason := _missing_key(ref, "ATLAS_MODEL", providers):
        reasons.append(f"ATLAS_MODEL {ref} is not available ({reason})")
    else:
        return (ref,), _notice(spec, reasons, ref)
    return (LOCAL_MODEL,), _notice(spec, reasons, LOCAL_MODEL)


def _missing_key(ref: str, where: str, providers: Registry) -> str | None:
    """Return why a provider has no API key, or None if it has one. Other errors are raised with their location."""
    try:
        providers.provider(parse_model_ref(ref).provider)
    except MissingKey as error:
        return str(error)
    except ConfigError as error:
        raise BadModelRef(f"{where}: {error}") from error
    return None


def _notice(spec: AgentSpec, reasons: list[str], used: str) -> str | None:
    return f"agent {spec.id!r}: {'; '.join(reasons)}; using {used} instead" if reasons else None


class BuiltAgents(msgspec.Struct, frozen=True):
    """Agents in the order of the file, notices about replaced models by agent id, and the references of all models."""

    agents: tuple[Agent, ...]
    notices: dict[str, str]
    refs: tuple[str, ...] = ()


def build_agents(
    state: WorkspaceState,
    tools: Iterable[ToolLike],
    providers: Registry,
    default: str | None = None,
    fallback: Fallback | None = None,
    tool_search: int | None = None,
) -> BuiltAgents:
    """Build all agents of a workspace; ConfigError if any is invalid. The workspace's prompt comes before their own.

    `fallback` can replace a model that is not available. `tool_search` is for agents that do not set it.
    """
    known = list(expand_tools(tools))
    agents: list[Agent] = []
    notices: dict[str, str] = {}
    refs: list[str] = []
    ids = [spec.id for spec in state.agents]
    for spec in state.agents:
        if spec.tool_search is None:
            spec = msgspec.structs.replace(spec, tool_search=tool_search)
        if missing := next((id for id in spec.hands_off_to if id not in ids), None):
            where, known_ids = spec.where or spec.id, ", ".join(ids)
            raise ConfigError(f"{where}: Hands off to: unknown agent {missing!r}; known agents: {known_ids}")
        found, notice = resolve_models(spec, providers, default)
        refs += found
        replaced = {ref: other for ref in found if fallback is not None and (other := fallback(ref)) is not None}
        if found and found[0] in replaced:
            notice = f"agent {spec.id!r}: {replaced[found[0]][1]}"
        models = [replaced[ref][0] if ref in replaced else ref for ref in found]
        agents.append(build_agent(spec, known, models=models, prompt=state.prompt))
        if notice:
            notices[spec.id] = notice
            logger.warning("%s", notice)
    return BuiltAgents(tuple(agents), notices, tuple(dict.fromkeys(refs)))


def build_agent(
    spec: AgentSpec, tools: Iterable[ToolLike] = (), *, models: Sequence[Model] | None = None, prompt: str = ""
) -> Agent:
    """Build one agent. `models` replaces the models it names; `prompt` comes before its own prompt."""
    refs = spec.models if models is None else models
    return Agent(
        spec.id,
        name=spec.name,
        description=spec.description,
        providers=list(refs) or None,
        retry=RetryPolicy(order="given"),
        system_prompt="\n\n".join(piece for piece in (prompt, spec.prompt) if piece),
        settings=spec.settings,
        tools=_select_tools(spec, {tool.name: tool for tool in expand_tools(tools)}),
        role=spec.role,
        mode=spec.mode,
        max_rounds=spec.max_rounds,
        output_retries=spec.output_retries,
        hands_off_to=spec.hands_off_to,
        budget=spec.budget,
        tool_search=spec.tool_search,
    )


def _select_tools(spec: AgentSpec, known: dict[str, Tool]) -> list[Tool]:
    if spec.tools == ("*",):
        return list(known.values())
    for name in spec.tools:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            guess = f"did you mean {close[0]}? " if close else ""
            if "/" in name:
                guess += "is its MCP server approved? Run: atlas mcp list. "
            names = ", ".join(sorted(known)) or "none"
            raise ConfigError(f"{spec.where or spec.id}: Tools: unknown tool {name!r}; {guess}Known tools: {names}")
    return [known[name] for name in spec.tools]
