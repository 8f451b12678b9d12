"""The workspace: a folder whose files say who the agents are and what every model is told.

`AGENTS.md` names the agents, `SOUL.md` and `TOOLS.md` are for the models. All three together are the system prompt.
"""

from atlas_agents.core.hidden import Finding, hidden_characters
from atlas_agents.workspace.agents import AgentSpec, parse_agents
from atlas_agents.workspace.build import Built, build_agent, build_agents
from atlas_agents.workspace.models import LOCAL_MODEL, resolve_models
from atlas_agents.workspace.workspace import Workspace, WorkspaceState

__all__ = [
    "LOCAL_MODEL",
    "AgentSpec",
    "Built",
    "Finding",
    "Workspace",
    "WorkspaceState",
    "build_agent",
    "build_agents",
    "hidden_characters",
    "parse_agents",
    "resolve_models",
]
