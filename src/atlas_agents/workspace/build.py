"""From what the workspace says to agents that can answer."""

import difflib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

import msgspec

from atlas_agents.agents.agent import Agent
from atlas_agents.core.errors import BadModelRef, ConfigError, MissingKey
from atlas_agents.providers.failover import RetryPolicy
from atlas_agents.providers.registry import Model, parse_model_ref
from atlas_agents.tools.tool import Function, Tool, as_tool
from atlas_agents.workspace.workspace import AgentSpec, WorkspaceState

LOCAL_MODEL = "local/smollm2-135m"
"""Who speaks when nobody else can: the model that needs no key."""


class Providers(Protocol):
    """What is asked of a `Registry`: MissingKey from `provider` means that there is no key."""

    def provider(self, id: str) -> object: ...

    @property
    def default_model(self) -> str | None: ...


def resolve_models(
    spec: AgentSpec, providers: Providers, default: str | None = None
) -> tuple[tuple[str, ...], str | None]:
    """The refs that can answer for an agent, first one first, and a sentence if they are not those that it names.

    Models without a key are left out; if none is left, `default` (else `ATLAS_MODEL`) answers, else the local model.
    """
    missing = {ref: _missing(ref, f"{spec.where or spec.id}: Model", providers) for ref in spec.models}
    reasons = [f"{ref} cannot answer ({why})" for ref, why in missing.items() if why]
    if able := tuple(ref for ref, why in missing.items() if not why):
        return able, _notice(spec, reasons, able[0])
    ref = (default or providers.default_model or "").strip()
    if not ref:
        if not spec.models:
            reasons.append("it names no model and ATLAS_MODEL is not set")
    elif why := _missing(ref, "ATLAS_MODEL", providers):
        reasons.append(f"{ref} of ATLAS_MODEL cannot answer ({why})")
    else:
        return (ref,), _notice(spec, reasons, ref)
    return (LOCAL_MODEL,), _notice(spec, reasons, LOCAL_MODEL)


def _missing(ref: str, where: str, providers: Providers) -> str | None:
    """What stands in the way of a model, if it is a key; what else is wrong with it is raised with its place."""
    try:
        providers.provider(parse_model_ref(ref).provider)
    except MissingKey as error:
        return str(error)
    except ConfigError as error:
        raise BadModelRef(f"{where}: {error}") from error
    return None


def _notice(spec: AgentSpec, reasons: list[str], answers: str) -> str | None:
    return f"agent {spec.id!r}: {'; '.join(reasons)}; {answers} answers instead" if reasons else None


logger = logging.getLogger(__name__)
StandIn: TypeAlias = Callable[[str], tuple[Model, str] | None]
"""For a ref that cannot answer: who does instead, and a sentence that says so."""


class Built(msgspec.Struct, frozen=True):
    """Agents in the order of the file, by their ids the sentences about models that others stand in for, and the refs
    of all models that are to speak."""

    agents: tuple[Agent, ...]
    notices: dict[str, str]
    refs: tuple[str, ...] = ()


def build_agents(
    state: WorkspaceState,
    tools: Iterable[Tool | Function],
    providers: Providers,
    default: str | None = None,
    stand_in: StandIn | None = None,
) -> Built:
    """All agents of a workspace, each told the workspace's prompt and then its own; all or, with ConfigError, none.

    `stand_in` may put another in the place of a model that cannot answer.
    """
    known = [as_tool(tool) for tool in tools]
    agents: list[Agent] = []
    notices: dict[str, str] = {}
    refs: list[str] = []
    ids = [spec.id for spec in state.agents]
    for spec in state.agents:
        if missing := next((id for id in spec.hands_off_to if id not in ids), None):
            raise ConfigError(f"{spec.where or spec.id}: Hands off to: there is no agent {missing!r}")
        found, notice = resolve_models(spec, providers, default)
        refs += found
        others = {ref: other for ref in found if stand_in is not None and (other := stand_in(ref)) is not None}
        if found and found[0] in others:
            notice = f"agent {spec.id!r}: {others[found[0]][1]}"
        models = [others[ref][0] if ref in others else ref for ref in found]
        agents.append(build_agent(spec, known, models=models, prompt=state.prompt))
        if notice:
            notices[spec.id] = notice
            logger.warning("%s", notice)
    return Built(tuple(agents), notices, tuple(dict.fromkeys(refs)))


def build_agent(
    spec: AgentSpec, tools: Iterable[Tool | Function] = (), *, models: Sequence[Model] | None = None, prompt: str = ""
) -> Agent:
    """One agent; `models` stands in for those that it names, `prompt` comes before its own."""
    refs = spec.models if models is None else models
    return Agent(
        spec.id,
        name=spec.name,
        description=spec.description,
        providers=list(refs) or None,
        retry=RetryPolicy(order="given"),
        system_prompt="\n\n".join(piece for piece in (prompt, spec.prompt) if piece),
        temperature=spec.temperature,
        max_tokens=spec.max_tokens,
        tools=_picked(spec, {tool.name: tool for tool in map(as_tool, tools)}),
        role=spec.role,
        mode=spec.mode,
        max_rounds=spec.max_rounds,
        hands_off_to=spec.hands_off_to,
    )


def _picked(spec: AgentSpec, known: dict[str, Tool]) -> list[Tool]:
    if spec.tools == ("*",):
        return list(known.values())
    for name in spec.tools:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            guess = f"did you mean {close[0]}? " if close else ""
            if "/" in name:
                guess += "is its MCP server approved? Say: atlas mcp list. "
            names = ", ".join(sorted(known)) or "none"
            raise ConfigError(f"{spec.where or spec.id}: Tools: there is no tool {name!r}; {guess}There are: {names}")
    return [known[name] for name in spec.tools]
