"""The workspace: a folder whose files say who the agents are and what every model is told.

`AGENTS.md` names the agents, `SOUL.md` and `TOOLS.md` are for the models. All three together are the system prompt.
"""

from atlas_agents.core.text import HiddenCharacters, hidden_characters
from atlas_agents.workspace.build import LOCAL_MODEL, Built, build_agent, build_agents, resolve_models
from atlas_agents.workspace.workspace import AgentSpec, Workspace, WorkspaceState, parse_agents

__all__ = [
    "LOCAL_MODEL",
    "AgentSpec",
    "Built",
    "HiddenCharacters",
    "Workspace",
    "WorkspaceState",
    "build_agent",
    "build_agents",
    "hidden_characters",
    "parse_agents",
    "resolve_models",
]
