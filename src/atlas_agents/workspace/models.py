"""Which models speak for an agent of the workspace, where not every provider has its key."""

from typing import Protocol

from atlas_agents.core.errors import BadModelRef, ConfigError, MissingKey
from atlas_agents.providers.registry import parse_model_ref
from atlas_agents.workspace.agents import AgentSpec

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
