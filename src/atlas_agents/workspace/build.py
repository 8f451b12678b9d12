"""Build agents from a workspace: resolve their models and tools."""

import difflib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from atlas_agents.agents.agent import Agent
from atlas_agents.core.errors import BadModelRef, ConfigError, MissingKey
from atlas_agents.local.models import CATALOG
from atlas_agents.providers.catalogue import parse_model_ref
from atlas_agents.providers.discovery import describe_missing_key, provider_title
from atlas_agents.providers.failover import RetryPolicy
from atlas_agents.providers.registry import Model, Registry
from atlas_agents.tools.tool import Tool, ToolLike, expand_tools
from atlas_agents.workspace.workspace import AgentSpec, WorkspaceState, default_prompt

logger = logging.getLogger(__name__)

_MAX_LOGGED = 3
LOCAL_MODEL = "local/smollm2-135m"
"""Model of last resort, which needs no API key."""
Fallback: TypeAlias = Callable[[str], tuple[Model, str] | None]
"""Returns the replacement for a model that is not available, and a notice about it."""


def resolve_models(
    spec: AgentSpec, providers: Registry, default: str | None = None, *, generated: bool = False
) -> tuple[tuple[str, ...], str | None]:
    """Return the models that an agent can use, in order of preference, and a notice if they differ from those it names.

    Models without an API key are skipped; if none is left, use `default` (or `ATLAS_MODEL`), then the local model. An
    agent of the `generated` file names a model that the user did not choose, so `default` replaces it. Without a key,
    that model is not used, not even at a custom address.
    """
    ref = (default or providers.default_model or "").strip()
    named = () if generated and ref else spec.models
    missing = {each: _missing_key(each, f"{spec.where or spec.id}: Model", providers, generated) for each in named}
    reasons = [reason for reason in missing.values() if reason]
    if available := tuple(each for each, reason in missing.items() if not reason):
        return available, _notice(reasons, available[0])
    if not ref:
        if not named:
            reasons.append("no model is chosen")
    elif reason := _missing_key(ref, "ATLAS_MODEL", providers):
        reasons.append(reason)
    else:
        return (ref,), _notice(reasons, ref)
    return (LOCAL_MODEL,), _notice(reasons, LOCAL_MODEL)


def _missing_key(ref: str, where: str, providers: Registry, required: bool = False) -> str | None:
    """Return the reason why a provider's API key is missing; None if it is set, or if none is needed unless `required`.

    Other errors are raised with their location.
    """
    try:
        provider = parse_model_ref(ref).provider
        providers.provider(provider)
    except MissingKey as error:
        return describe_missing_key(parse_model_ref(ref).provider, error)
    except ConfigError as error:
        raise BadModelRef(f"{where}: {error}") from error
    return f"no {provider_title(provider)} key" if required and not providers.has_key(provider) else None


def _notice(reasons: list[str], used: str) -> str | None:
    return f"Using {model_title(used)}: {', '.join(dict.fromkeys(reasons))}." if reasons else None


def model_title(ref: str) -> str:
    """Return the name of a model as people know it: `SmolLM2 135M` for a local one, else its reference."""
    provider, _, name = ref.partition("/")
    if provider != "local" or name not in CATALOG:
        return ref
    return CATALOG[name].title.partition(" Instruct")[0]


class BuiltAgents(msgspec.Struct, frozen=True):
    """Agents in the order of the file, notices about them by agent id, and the references of all models.

    Attributes:
        agents: Agents in the order of the file.
        notices: Notices about replaced models and tools that are not available, by agent id.
        refs: References of all models.
        without_key: Agents whose own model has no API key.
    """

    agents: tuple[Agent, ...]
    notices: dict[str, str]
    refs: tuple[str, ...] = ()
    without_key: frozenset[str] = frozenset()


def build_agents(
    state: WorkspaceState,
    tools: Iterable[ToolLike],
    providers: Registry,
    default: str | None = None,
    fallback: Fallback | None = None,
    tool_search: int | None = None,
    *,
    only_named: Collection[str] = (),
    unavailable: Mapping[str, str] | None = None,
    quiet: bool = False,
) -> BuiltAgents:
    """Build all agents of a workspace; ConfigError if any is invalid. The workspace's prompt comes before their own.

    `fallback` can replace a model that is not available. `tool_search` is for agents that do not set it. Tools in
    `only_named` are for agents that name them: `*` does not include them. No agent gets a tool of `unavailable`, which
    maps names to the reason. The tiny local model gets no tools unless the agent names some, because it calls them for
    small talk. The notices are logged, unless `quiet`.
    """
    known = list(expand_tools(tools))
    agents: list[Agent] = []
    notices: dict[str, str] = {}
    refs: list[str] = []
    without_key: list[str] = []
    ids = [spec.id for spec in state.agents]
    for spec in state.agents:
        if spec.tool_search is None:
            spec = msgspec.structs.replace(spec, tool_search=tool_search)
        _check_handoffs(spec, ids)
        found, notice = resolve_models(spec, providers, default, generated=state.generated)
        refs += found
        if spec.models and spec.models[0] not in found and notice:
            without_key.append(spec.id)
        replaced = {ref: other for ref in found if fallback is not None and (other := fallback(ref)) is not None}
        if found and found[0] in replaced:
            notice = replaced[found[0]][1]
        models = [replaced[ref][0] if ref in replaced else ref for ref in found]
        is_tiny = found[0] == LOCAL_MODEL and LOCAL_MODEL not in replaced
        offered = known
        if spec.tools == ("*",):
            offered = [] if is_tiny else [tool for tool in known if tool.name not in only_named]
        prompt = "" if is_tiny and state.prompt == default_prompt() else state.prompt
        spec, offered, missing = _withhold(spec, offered, unavailable or {})
        agents.append(build_agent(spec, offered, models=models, prompt=prompt))
        if about := " ".join(filter(None, (notice, missing))):
            notices[spec.id] = about
    if not quiet:
        _log_notices(notices)
    return BuiltAgents(tuple(agents), notices, tuple(dict.fromkeys(refs)), frozenset(without_key))


def _check_handoffs(spec: AgentSpec, ids: Sequence[str]) -> None:
    if missing := next((id for id in spec.hands_off_to if id not in ids), None):
        where, known = spec.where or spec.id, ", ".join(ids)
        raise ConfigError(f"{where}: Hands off to: unknown agent {missing!r}; known agents: {known}")


def _withhold(
    spec: AgentSpec, tools: list[Tool], unavailable: Mapping[str, str]
) -> tuple[AgentSpec, list[Tool], str | None]:
    """Remove unavailable tools from an agent; return the notice about those that it would have."""
    wanted = [tool.name for tool in tools] if spec.tools == ("*",) else spec.tools
    missing = [name for name in wanted if name in unavailable]
    if not missing:
        return spec, tools, None
    spec = msgspec.structs.replace(spec, tools=tuple(name for name in spec.tools if name not in missing))
    reason = "; ".join(dict.fromkeys(unavailable[name] for name in missing))
    notice = f"Not available: {', '.join(missing)}, because {reason}."
    return spec, [tool for tool in tools if tool.name not in missing], notice


def _log_notices(notices: dict[str, str]) -> None:
    """Log each notice once, with the agents that it is about."""
    for notice in dict.fromkeys(notices.values()):
        ids = [id for id, other in notices.items() if other == notice]
        shown = ", ".join(ids[:_MAX_LOGGED]) + (f" and {len(ids) - _MAX_LOGGED} more" if ids[_MAX_LOGGED:] else "")
        logger.info("agents changed on this machine: agents=%s notice=%r", shown, notice)


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
