"""What a model is called."""

from atlas_agents.engine.agent import Agent
from atlas_agents.providers.base import Provider
from atlas_agents.providers.failover import Route
from atlas_agents.providers.registry import Model, Registry


def model_of(agent: Agent, registry: Registry) -> str:
    """The name of the model that an agent speaks with first."""
    return name_of(agent.models[0]) if agent.models else registry.default_model or ""


def name_of(model: Model) -> str:
    if isinstance(model, str):
        return model
    if isinstance(model, Route):
        return model.label
    return model.id if isinstance(model, Provider) else getattr(model, "__name__", "function")
