"""Tools for models that know only text: Thought, Action, Action Input, Observation, Final Answer."""

from atlas_agents.providers.react.provider import React

__all__ = ["React"]
